"""Test that a layer run as one kernel call forward and one backward equals its modules to the last bit."""

import gc
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernels.cpu.gemm.train_calls import gemm_tile
from transduce.kernels.cpu.jit.compiler import require_integer_tile
from transduce.kernels.cpu.jit.memory import MemoryOffset, MemoryPlan, StackAllocator, process_stack
from transduce.kernels.cpu.training import layer as fused_layers
from transduce.kernels.cpu.training import layer_plan
from transduce.kernels.cpu.training.layer import CompiledTraining
from transduce.model.backend import add_gradients_to, using_backend
from transduce.model.config import ModelConfig
from transduce.model.layers import EncoderLayer, StackPositions
from transduce.model.masks import AttentionMask, BiasedMask, padding_mask
from transduce.model.positions import PositionEffect, Rotation
from transduce.model.transformer import Transformer

KINDS = [dtype for dtype in (torch.bfloat16, torch.float32) if gemm_tile(dtype) is not None]
if not KINDS:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)

of_each_kind = pytest.mark.parametrize("dtype", KINDS, ids=str)
PAD, LANES = 0, require_integer_tile().lanes


def config(**changes: Any) -> ModelConfig:
    """Return a configuration with two encoder and two decoder layers."""
    sizes: dict[str, Any] = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 96}
    vocabulary = {"source_vocabulary_size": 50, "target_vocabulary_size": 50}
    return ModelConfig(**(sizes | vocabulary | {"num_heads": 2, "dropout": 0.25} | changes))


def layer_and_input(dtype: torch.dtype, **changes: Any) -> tuple[EncoderLayer, Tensor]:
    """Return a layer in training mode, and an input of four sentences of nine tokens."""
    layer = EncoderLayer(config(**changes)).to(dtype).train()
    return layer, torch.randn(4, 9, 64).to(dtype).requires_grad_()


def sums_of(module: torch.nn.Module) -> dict[str, Tensor]:
    """Register gradient sums for all parameters, filled with ones, and return them by name."""
    sums = {name: torch.ones_like(each, dtype=torch.float32) for name, each in module.named_parameters()}
    for name, parameter in module.named_parameters():
        add_gradients_to(parameter, sums[name])
    return sums


class Counting(CompiledTraining):
    """Training kernels that count how many layers were run as a whole."""

    def __init__(self, *, whole: bool) -> None:
        self.whole, self.layers = whole, 0

    def run_layer(self, *given: Any) -> Tensor | None:
        found = fused_layers.run_layer(*given) if self.whole else None
        self.layers += found is not None
        return found


def learn(model: Transformer, *, whole: bool, times: int = 1) -> tuple[list[Tensor], int]:
    """Run forward and backward passes, each layer as a whole or not.

    Returns the states, gradient sums and other gradients, and the number of layers that ran as a whole.
    """
    sums, kernels = sums_of(model), Counting(whole=whole)
    torch.manual_seed(3)
    source, target = torch.randint(3, 50, (5, 9)), torch.randint(3, 50, (5, 7))
    source[1, 4:] = target[2, 2:] = PAD
    model.zero_grad()
    states = torch.empty(0)
    with using_backend(kernels):
        for _ in range(times):
            states = model.hidden(source, target)
            states.float().square().sum().backward()
    others = [each.grad for each in model.parameters() if each.grad is not None]
    return [states.detach(), *sums.values(), *others], kernels.layers


SETTINGS: list[dict[str, Any]] = [
    {},
    {"norm_order": "post"},
    {"norm": "rms"},
    {"norm": "rms", "norm_order": "post", "bias": False},
    {"dropout": 0.0},
    {"bias": False},
    {"d_k": 48, "d_v": 48, "d_model": 96},
    {"num_decoder_layers": 1, "num_encoder_layers": 3},
    {"activation": "gelu"},
    {"activation": "gelu-tanh", "attention_dropout": 0.1},
    {"activation": "silu", "norm_order": "post"},
    {"activation": "swiglu", "norm": "rms", "bias": False, "num_key_value_heads": 1},
    {"activation": "geglu", "activation_dropout": 0.2, "attention_dropout": 0.3, "num_heads": 4, "d_k": 32, "d_v": 32},
    {"activation": "geglu-tanh", "norm": "rms", "attention_scale": 1.0},
    {"activation": "reglu", "attention_score": "dot"},
    {"activation_dropout": 0.1, "attention_dropout": 0.1, "dropout": 0.0},
    {"num_heads": 6, "d_k": 32, "d_v": 32, "num_key_value_heads": 2, "attention_dropout": 0.2},
    {"positions": "rotary"},
    {"positions": "rotary", "norm": "rms", "activation": "swiglu", "bias": False, "num_key_value_heads": 1},
    {"positions": "rotary-interleaved", "norm_order": "post", "attention_dropout": 0.2},
    {"positions": "relative", "relative_buckets": 4, "relative_max_distance": 6},
    {"positions": "relative", "norm": "rms", "bias": False, "attention_scale": 1.0, "attention_dropout": 0.1},
    {"positions": "relative", "activation": "geglu", "num_heads": 4, "num_key_value_heads": 2, "d_k": 32, "d_v": 32},
]


@pytest.mark.usefixtures("one_or_two_threads")
@of_each_kind
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("large", [False, True], ids=["norms stored", "norms recomputed"])
def test_a_layer_kernel_equals_its_modules(settings: dict[str, Any], large: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    model = Transformer(config(**settings)).to(dtype).train()
    wanted, none = learn(model, whole=False, times=2)
    fused_layers._plan_of.cache_clear()
    with mock.patch.object(layer_plan, "_LARGE", 0 if large else 1 << 30):
        found, layers = learn(model, whole=True, times=2)
    fused_layers._plan_of.cache_clear()
    assert (none, layers) == (0, 2 * (model.config.num_encoder_layers + model.config.num_decoder_layers))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    assert not process_stack().live


@pytest.mark.parametrize(
    "settings",
    [
        {"norm_order": "sandwich"},
        {"norm": "batch"},
        {"positions": "rotary", "d_k": LANES, "d_v": LANES},  # half a head does not fill a vector
        {"positions": "relative", "attention_window": 3},
        {"attention_score": "additive"},
        {"attention_kind": "hard"},
        {"d_k": 16, "d_v": 16, "d_model": 48},
    ],
    ids=str,
)
def test_layers_with_unsupported_components_run_as_modules(settings: dict[str, Any]) -> None:
    model = Transformer(config(**settings)).to(KINDS[0]).train()
    assert learn(model, whole=True)[1] == 0


class OtherRotation(Rotation):
    """A rotation of another class, which may rotate in another way."""


def positions_of(kind: str, **changes: Any) -> tuple[EncoderLayer, Tensor, AttentionMask, PositionEffect]:
    """Return a layer, its input, and the mask and the effect of positions of this kind for the input."""
    layer, x = layer_and_input(KINDS[0], positions=kind, **changes)
    sums_of(layer)
    positions = StackPositions(config(positions=kind, **changes), causal=False).to(KINDS[0])
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter)
    mask, effect = positions(x, padding_mask(torch.randint(3, 50, (4, 9)), PAD))
    assert isinstance(mask, AttentionMask)
    return layer, x, mask, effect


def test_layers_with_unsupported_rotations_run_as_modules() -> None:
    layer, x, mask, (rotation, _) = positions_of("rotary")
    assert rotation is not None
    assert fused_layers.run_layer(layer, x, None, [mask], rotation) is not None
    cosine, sine, interleaved = rotation
    others = {
        "another class": OtherRotation(*rotation),
        "positions of each sentence": Rotation(cosine.expand(4, 1, 9, 16), sine.expand(4, 1, 9, 16), interleaved),
        "fewer positions": Rotation(cosine[:8], sine[:8], interleaved),
        "narrower heads": Rotation(cosine[:, :8], sine[:, :8], interleaved),
    }
    for name, other in others.items():
        assert fused_layers.run_layer(layer, x, None, [mask], other) is None, name


def test_layers_with_unsupported_relative_biases_run_as_modules() -> None:
    layer, x, mask, _ = positions_of("relative")
    assert isinstance(mask, BiasedMask)
    term, base = mask.term, mask.base
    assert fused_layers.run_layer(layer, x, None, [mask]) is not None

    class OtherMask(BiasedMask):
        """A mask of another class, which may hide other keys."""

    others = {
        "another class": OtherMask(mask.allowed, term, base),
        "a bias of each sentence": BiasedMask(mask.allowed, term.expand(4, -1, -1, -1), base),
        "one bias for all heads": BiasedMask(mask.allowed, term[:, :1], base),
        "no base": BiasedMask(mask.allowed, term),
        "fewer keys": BiasedMask(mask.allowed[..., :8], term[..., :8], base),
    }
    for name, other in others.items():
        assert fused_layers.run_layer(layer, x, None, [other]) is None, name
    _, _, _, (rotation, _) = positions_of("rotary")
    assert fused_layers.run_layer(layer, x, None, [mask], rotation) is None  # a bias and a rotation at once


@of_each_kind
def test_layers_with_hooks_other_dtypes_or_no_gradients_run_as_modules(dtype: torch.dtype) -> None:
    layer, x = layer_and_input(dtype)
    mask = padding_mask(torch.randint(3, 50, (4, 9)), PAD)
    assert fused_layers.run_layer(layer, x, None, [mask]) is None  # nobody collects gradients
    sums_of(layer)
    assert fused_layers.run_layer(layer, x, None, [mask]) is not None
    assert fused_layers.run_layer(layer, x.double(), None, [mask]) is None
    assert fused_layers.run_layer(layer.double(), x, None, [mask]) is None
    layer.to(dtype)
    assert fused_layers.run_layer(layer, x[:1, :8], None, [mask]) is None  # the mask is another batch's
    with torch.no_grad():
        assert fused_layers.run_layer(layer, x, None, [mask]) is None
    next(layer.parameters()).register_hook(lambda gradient: gradient)
    assert fused_layers.run_layer(layer, x, None, [mask]) is None


@of_each_kind
def test_a_layer_kernel_runs_backward_once_in_the_mode_of_its_forward(dtype: torch.dtype) -> None:
    layer, x = layer_and_input(dtype)
    mask, slopes = padding_mask(torch.randint(3, 50, (4, 9)), PAD), []
    sums_of(layer)
    for turns_off in (False, True):
        layer.train()
        torch.manual_seed(6)
        found = fused_layers.run_layer(layer, x, None, [mask])
        assert found is not None
        layer.train(not turns_off)
        slopes.append(torch.autograd.grad(found.sum(), x, retain_graph=True)[0])
        with pytest.raises(RuntimeError, match="was taken before: compute it again"):
            found.sum().backward()
    assert torch.equal(*slopes)


@of_each_kind
def test_the_number_of_threads_may_change_between_forward_and_backward(dtype: torch.dtype) -> None:
    layer, x = layer_and_input(dtype, dropout=0.0)
    mask, slopes, before = padding_mask(torch.randint(3, 50, (4, 9)), PAD), [], torch.get_num_threads()
    sums_of(layer)
    for threads in (1, 2):
        torch.set_num_threads(1)
        found = fused_layers.run_layer(layer, x, None, [mask])
        assert found is not None
        torch.set_num_threads(threads)
        slopes.append(torch.autograd.grad(found.sum(), x)[0])
    torch.set_num_threads(before)
    assert torch.equal(*slopes)


def test_layers_without_a_backward_pass_free_their_memory() -> None:
    layer, x = layer_and_input(KINDS[0])
    sums_of(layer)
    found = fused_layers.run_layer(layer, x, None, [padding_mask(torch.full((4, 9), 5), PAD)])
    assert len(process_stack().live) == 1
    del found
    gc.collect()
    assert not process_stack().live


# --- memory ---


def test_the_stack_allocates_after_all_blocks_in_use() -> None:
    stack = StackAllocator(1 << 20)
    first, second = stack.allocate(1000), stack.allocate(64)
    assert second.address - first.address == 1024  # whole lines of a cache
    first.free()
    third = stack.allocate(10)
    assert third.address == second.address + 64
    second.free()
    third.free()
    assert stack.allocate(5).address == first.address


def test_a_garbage_collected_block_is_freed() -> None:
    stack = StackAllocator(1 << 20)
    piece = stack.allocate(1000)
    address = piece.address
    del piece
    assert stack.allocate(64).address == address


@pytest.mark.parametrize("size", [1 << 12, 1 << 62], ids=["a full stack", "no stack"])
def test_blocks_beyond_the_stacks_capacity_are_allocated_on_the_heap(size: int) -> None:
    stack = StackAllocator(size)
    pieces = [stack.allocate(1 << 13), stack.allocate(1 << 13)]
    assert abs(pieces[0].address - pieces[1].address) >= 1 << 13
    assert not stack.live
    for piece in pieces:
        piece.free()


def test_a_memory_plan_reuses_the_first_gap_that_is_large_enough() -> None:
    room = MemoryPlan(3)
    spots = [room.allocate(count) for count in (64, 128, 64)]
    assert spots == [MemoryOffset(3, 0), MemoryOffset(3, 64), MemoryOffset(3, 192)]
    room.free([spots[1], MemoryOffset(5, 64)])  # the last slot belongs to another buffer
    assert room.allocate(129) == MemoryOffset(3, 256)
    assert room.allocate(65) == MemoryOffset(3, 64)
    assert room.size == 256 + 192
