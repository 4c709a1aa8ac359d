"""Test decoding on float32 and bfloat16 kernels: linear layers, decoder steps, and inference copies."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernels import select
from transduce.kernels.cpu.decoding.state import CompiledState
from transduce.kernels.cpu.gemm.decode import CompiledLinear, CompiledVocabulary
from transduce.kernels.cpu.jit.compiler import find_float_tile, find_integer_tile
from transduce.kernels.cpu.jit.tile import AVX2_TILE, Tile
from transduce.kernels.select import decoding_model, make_inference_copy, start_fast, temporary_inference_copy
from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer
from transduce.model.transformer import DecodingState, MemoryState, Transformer

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)
FLOATS, PAIRS = find_float_tile("floats"), find_float_tile("pairs")
TILES = [tile for tile in (FLOATS, PAIRS, AVX2_TILE._replace(format="floats")) if tile is not None]
DTYPES = [torch.float32, *([torch.bfloat16] if PAIRS is not None else [])]
pytestmark = pytest.mark.usefixtures("every_thread")

Everywhere = Callable[[Callable[[Tensor], DecodingState], Tensor], list[Tensor]]  # of conftest.py
PAD, V = 0, 300
SOURCES = torch.tensor([[5, 6, 7, 8, 1], [9, 3, 1, PAD, PAD], [4, 1, PAD, PAD, PAD], [7, 7, 7, 1, PAD]])
VARIANTS: dict[str, dict[str, object]] = {
    "pre": {},
    "post, RMSNorm, no bias": {"norm_order": "post", "norm": "rms", "bias": False},
    "learned positions, untied": {"positions": "learned", "max_positions": 64, "tie_output": False},
    "one layer used twice, output bias": {"share_layers": True, "output_bias": True},
    "turned by positions": {"positions": "rotary"},
    "turned in pairs, one head of keys": {"positions": "rotary-interleaved", "num_key_value_heads": 1},
    "T5": {
        "positions": "relative",
        "attention_scale": 0.3,
        "norm": "rms",
        "bias": False,
        "activation": "geglu-tanh",
        "relative_buckets": 8,
        "relative_max_distance": 12,
        "output_scale": 0.125,
        "scale_embeddings": False,
    },
    "BART": {
        "positions": "learned",
        "position_offset": 2,
        "max_positions": 64,
        "embedding_norm": True,
        "activation": "gelu",
        "norm_order": "post",
        "scale_embeddings": False,
    },
    "Marian": {"activation": "silu", "norm_order": "post", "output_bias": True},
    "unscaled scores, GELU by tanh": {"attention_score": "dot", "activation": "gelu-tanh"},
    **{f"a gate, {gate}": {"activation": gate} for gate in ("swiglu", "geglu", "reglu")},
}

OTHERS: list[dict[str, object]] = [
    {"d_ff": 120},
    {"norm": "batch"},
    {"norm_order": "sandwich"},
    {"attention_window": 3},
    {"attention_score": "additive"},
    {"attention_kind": "hard"},
    {"d_v": 64},
]


def build(dtype: torch.dtype, changes: dict[str, object] | None = None) -> tuple[Transformer, Transformer]:
    """Return a model with an inference copy, and the same model in float32 without one."""
    torch.manual_seed(3)
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 2}
    vocabulary = {"source_vocabulary_size": V, "target_vocabulary_size": V}
    model = Transformer(ModelConfig(**(vocabulary | sizes | (changes or {})))).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    plain = copy.deepcopy(model)
    make_inference_copy(model, dtype)
    return model, plain


def first_logits(model: Transformer) -> Tensor:
    state = start_fast(model, SOURCES)
    assert isinstance(state, CompiledState)
    return state.step_to_logits(torch.full((len(SOURCES), 1), 7))[1].clone()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_keys_and_values_are_cached_in_float16_unless_the_model_is_float32(dtype: torch.dtype) -> None:
    state = start_fast(build(dtype)[0], SOURCES)
    assert isinstance(state, CompiledState)
    kept = torch.float32 if dtype == torch.float32 else torch.float16
    assert state.pool.entries.dtype == state.memory.dtype == kept


# --- products ---


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("tile", TILES, ids=str)
@torch.inference_mode()
def test_products_are_sums_of_float32_in_one_order(tile: Tile, threads: int) -> None:
    torch.manual_seed(1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if tile.format == "pairs" else torch.float32
    for width in (48, 128):
        weight, bias = torch.randn(150, width), torch.randn(150)
        product = CompiledLinear(weight, bias, tile)
        x = torch.randn(40, width)
        exact = x.to(dtype).double() @ weight.to(dtype).double().T + bias
        whole = product(x)
        torch.testing.assert_close(whole, exact.float(), rtol=1e-5, atol=1e-4)
        for rows in (slice(0, 1), slice(0, 2), slice(3, 8), slice(17, 40), slice(39, 40)):
            assert torch.equal(product(x[rows]), whole[rows])
        assert product(x[:0]).shape == (0, 150)
        assert bool(product(torch.full((2, width), float("nan"))).isnan().all())
    torch.set_num_threads(before)


@pytest.mark.skipif(PAIRS is None, reason="this processor has no instructions for bfloat16")
@torch.inference_mode()
def test_likely_tokens_have_exact_logits_in_bfloat16() -> None:
    torch.manual_seed(1)
    assert PAIRS is not None
    weight, bias, x = torch.randn(300, 64), torch.randn(300), torch.randn(40, 64)
    found = CompiledVocabulary(weight, bias, PAIRS)(x)
    coarse, exact = CompiledLinear(weight, bias, PAIRS)(x), x @ weight.T + bias
    likely = coarse > coarse.amax(dim=-1, keepdim=True) - 2.0
    torch.testing.assert_close(found[likely], exact[likely])
    assert torch.equal(found[~likely], coarse[~likely])
    assert not torch.allclose(coarse[likely], exact[likely], rtol=1e-5, atol=1e-5)


# --- steps ---


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_decoding_steps_equal_those_of_the_model(dtype: torch.dtype, changes: dict[str, object]) -> None:
    model, plain = build(dtype, changes)
    ours, expected = start_fast(model, SOURCES), plain.start(SOURCES)
    assert isinstance(ours, CompiledState)
    pieces = torch.zeros(len(SOURCES), 1, dtype=torch.int64)
    generator = torch.Generator().manual_seed(1)
    for step in range(20):
        one, other = ours.step(pieces), expected.step(pieces)
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < (1e-5 if dtype == torch.float32 else 0.04)
        parents = torch.randint(pieces.shape[1], (len(pieces), 3), generator=generator)
        pieces = torch.randint(3, V, parents.shape, generator=generator)
        for state in (ours, expected):
            state.reorder(parents)
            if step == 9:
                state.keep_sentences(torch.tensor([2, 0]))
        pieces = pieces[[2, 0]] if step == 9 else pieces


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_a_row_does_not_depend_on_batch_or_threads(dtype: torch.dtype, first_sentence_everywhere: Everywhere) -> None:
    model, _ = build(dtype)
    found = first_sentence_everywhere(lambda sources: start_fast(model, sources), SOURCES)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_logits_of_a_whole_target_equal_those_of_its_steps(dtype: torch.dtype) -> None:
    model, _ = build(dtype, {"output_bias": True})
    packed, target = decoding_model(model), torch.tensor([[0, 7, 9, 30, 4]])
    whole = packed.project(packed.hidden(SOURCES[:1], target))[0]
    state = start_fast(model, SOURCES[:1])
    assert isinstance(state, CompiledState)
    for place, piece in enumerate(target[0]):
        torch.testing.assert_close(state.step_to_logits(piece.view(1, 1))[1][0, 0], whole[place], rtol=1e-5, atol=1e-4)


# --- the model and its inference copy ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_making_an_inference_copy_leaves_the_model_unchanged(dtype: torch.dtype) -> None:
    model, plain = build(dtype)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()} == {
        name: (tensor.shape, dtype) for name, tensor in plain.state_dict().items()
    }
    assert all(isinstance(module, type(other)) for module, other in zip(model.modules(), plain.modules(), strict=True))
    target = torch.tensor([[0, 7]])
    loss = model(SOURCES[:1], target).float().logsumexp(dim=-1).sum()
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.testing.assert_close(model(SOURCES[:1], target), plain.to(dtype)(SOURCES[:1], target), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_that_somebody_changes_are_followed(dtype: torch.dtype) -> None:
    model, _ = build(dtype)
    layer = model.decoder_layers[0]
    assert isinstance(layer, DecoderLayer)
    with torch.inference_mode():
        before = first_logits(model)
    with torch.no_grad():
        layer.feed_forward.outer.weight.mul_(2.0)
    with torch.inference_mode():
        changed = first_logits(model)
        expected = model.project(model.start(SOURCES).step(torch.full((len(SOURCES), 1), 7)))
    assert not torch.allclose(changed, before, atol=0.05)
    torch.testing.assert_close(changed, expected.float(), rtol=0.05, atol=0.2)
    layer.feed_forward.outer.weight = torch.nn.Parameter(layer.feed_forward.outer.weight.detach() / 2.0)
    with torch.inference_mode():
        assert torch.allclose(first_logits(model), before, atol=0.05)


def _with_gaps(weight: Tensor) -> Tensor:
    return torch.cat([weight, weight], dim=1)[:, : weight.shape[1]]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda weight: weight.T.contiguous().T,
    "with gaps": _with_gaps,
    "transposed, with gaps": lambda weight: _with_gaps(weight.T).T,
    "expanded": lambda weight: weight[:, :1].clone().expand_as(weight),
    "overlapping": lambda weight: weight.clone().as_strided(weight.shape, (1, 1)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_in_any_layout_are_followed(layout: str, dtype: torch.dtype) -> None:
    model, _ = build(dtype)
    layer = model.decoder_layers[0]
    assert isinstance(layer, DecoderLayer)
    linear = layer.feed_forward.outer
    linear.weight = torch.nn.Parameter(LAYOUTS[layout](linear.weight.detach()))
    logits = []
    for _ in range(2):
        with torch.inference_mode():
            logits.append(first_logits(model))
            expected = model.project(model.start(SOURCES).step(torch.full((len(SOURCES), 1), 7)))
        torch.testing.assert_close(logits[-1], expected.float(), rtol=0.05, atol=0.2)
        memory = torch.empty(0, dtype=dtype).set_(linear.weight.data.untyped_storage())
        memory.mul_(3.0)  # which PyTorch does not count
    assert not torch.allclose(logits[0], logits[1], atol=0.05)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decoding_between_forward_and_backward_leaves_the_graph_usable(dtype: torch.dtype) -> None:
    model, _ = build(dtype)
    for parameter in model.parameters():
        parameter.data.mul_(1.1)  # which is not counted, as by a fused optimizer
    loss = model(SOURCES, torch.tensor([[0, 7]] * len(SOURCES))).float().logsumexp(dim=-1).sum()
    with torch.inference_mode():
        first_logits(model)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_a_replaced_module_takes_the_reference_path(dtype: torch.dtype) -> None:
    model, _ = build(dtype)
    layer = model.decoder_layers[0]
    assert isinstance(layer, DecoderLayer)
    own = layer.feed_forward
    layer.feed_forward = torch.nn.Sequential(own)  # type: ignore[assignment]
    assert isinstance(start_fast(model, SOURCES), MemoryState)
    layer.feed_forward = own
    assert isinstance(start_fast(model, SOURCES), CompiledState)
    vars(layer.self_attention.output)["forward"] = torch.zeros_like
    assert isinstance(start_fast(model, SOURCES), MemoryState)


@torch.inference_mode()
def test_a_model_beyond_the_size_limit_gets_no_inference_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build(torch.float32)
    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    for most, state in ((size, CompiledState), (size - 1, MemoryState)):
        monkeypatch.setattr(select, "_max_copy_bytes", lambda most=most: most)
        assert isinstance(start_fast(build(torch.float32)[0], SOURCES), state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_a_temporary_inference_copy_is_removed_afterwards(dtype: torch.dtype) -> None:
    _, model = build(torch.float32)
    model.to(dtype)
    assert isinstance(start_fast(model, SOURCES), MemoryState)
    with temporary_inference_copy(model):
        state = start_fast(model, SOURCES)
        assert isinstance(state, CompiledState)
    expected = model.float().start(SOURCES).step(torch.full((len(SOURCES), 1), 7))
    torch.testing.assert_close(state.step(torch.full((len(SOURCES), 1), 7)), expected, rtol=0.05, atol=0.05)
    assert isinstance(start_fast(model, SOURCES), MemoryState)


@torch.inference_mode()
def test_models_without_an_inference_copy_are_decoded_by_pytorch() -> None:
    model, plain = build(torch.float32)
    assert isinstance(start_fast(plain, SOURCES), MemoryState)
    assert isinstance(start_fast(copy.deepcopy(model), SOURCES), MemoryState)
    assert decoding_model(plain) is plain
    for changes in OTHERS:  # which compiled decoding does not support
        other, _ = build(torch.float32, changes)
        assert isinstance(start_fast(other, SOURCES), MemoryState)
        assert decoding_model(other) is other
