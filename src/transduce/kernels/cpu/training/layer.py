"""Train on a CPU with compiled kernels: whole layers as autograd functions, and the backend that offers all kernels.

Legend: B sentences, T positions of each, S source positions, D model width, H heads, K width of a head.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from transduce.kernel_interfaces import PLAIN_ATTENTION
from transduce.kernels.cpu import train_rows
from transduce.kernels.cpu.gemm.train_calls import gemm_tile, project, require_gemm_tile, supports_gemm_sizes
from transduce.kernels.cpu.jit.compiler import address_of
from transduce.kernels.cpu.jit.memory import process_stack
from transduce.kernels.cpu.training import autograd, optimizer
from transduce.kernels.cpu.training.autograd import angles_of, padded_bias, supports_attention, supports_rotary
from transduce.kernels.cpu.training.layer_plan import LayerPlan, LayerShape, SublayerShape
from transduce.kernels.training_executor import (
    KeyLengths,
    MaskedSublayer,
    execute,
    kernel_lengths,
    options_of,
    sublayers_of,
    supports_positions,
)
from transduce.model.backend import sum_of_gradients
from transduce.model.feed_forward import Linear
from transduce.model.layer_graph import refusal, table
from transduce.model.positions import Rotation

# --- layers as autograd functions ---


_MAX_CACHED_PLANS = 512
_MANY_ROWS = 2**20  # more than the fewest rows that any kernel takes
_WHOLE_LAYERS = table(
    "the layer kernel",
    norm_order="pre post",
    norm="layer rms",
    linear_layers="Linear",
    activation="relu gelu gelu-tanh silu swiglu geglu geglu-tanh reglu",
    attention_score="scaled dot",
    attention_kind="soft",
    attention_scale="default other",
    key_value_heads="equal shared",
    value_width="equal",
)


def why_not_whole(layer: nn.Module, dtype: torch.dtype) -> str | None:
    """Return a clause that says why a layer is trained component by component; None if kernels compute it as a whole.

    The layer may be on the meta device.
    """
    if (reason := refusal(_WHOLE_LAYERS, layer)) is not None:
        return reason
    sizes = [(each.in_features, each.out_features) for each in layer.modules() if isinstance(each, Linear)]
    odd = next((each for each in sizes if not supports_gemm_sizes(_MANY_ROWS, *each, dtype)), None)
    return None if odd is None else f"a matrix from {odd[0]} to {odd[1]} numbers does not fill the kernels' blocks"


def run_layer(
    layer: nn.Module,
    x: Tensor,
    memory: Tensor | None,
    masks: Sequence[object],
    rotation: Rotation | None = None,
) -> Tensor | None:
    """Compute an encoder or decoder layer as one autograd node; return its output, (B, T, D), or None.

    The result is None if gradients are disabled, or if the kernels do not support a sub-layer, its mask or its sizes.

    Args:
        layer: an encoder or decoder layer.
        x: its input, (B, T, D).
        memory: the encoder output, (B, S, D), for a decoder layer.
        masks: the mask of self-attention, then, in a decoder layer, that of cross-attention.
        rotation: the rotary embedding of the queries and keys of self-attention.
    """
    if not torch.is_grad_enabled() or gemm_tile(x.dtype) is None:
        return None
    memories = (None, memory)[: len(masks)]
    lengths = [kernel_lengths(x, attended, mask) for attended, mask in zip(memories, masks, strict=True)]
    sublayers = None if any(each is None for each in lengths) else sublayers_of(layer, lengths, _WHOLE_LAYERS)
    if sublayers is None or not all(_supports_sublayer(sublayer, x, memory) for sublayer in sublayers):
        return None
    attention, bias = sublayers[0].attention, None if lengths[0] is None else lengths[0].bias
    if attention is None or not supports_positions(attention, x, rotation, bias, supports_rotary):
        return None
    parameters = [each for sublayer in sublayers for each in sublayer.parameters()]
    return _CompiledLayer.apply(sublayers, rotation, x, memory, bias, *parameters)  # type: ignore[no-any-return,no-untyped-call]


def _supports_sublayer(sublayer: MaskedSublayer, x: Tensor, memory: Tensor | None) -> bool:
    """Return whether whole-layer kernels support the dtypes, sizes and memory layout of a sub-layer's tensors."""
    parameters = [each for each in sublayer.parameters() if each is not None]
    attended = memory if sublayer.reads_memory and memory is not None else x
    if not all(each.dtype == x.dtype and each.is_contiguous() for each in (*parameters, attended)):
        return False
    attention, (first, last) = sublayer.attention, sublayer.linears
    if attention is not None and not supports_attention(x, attended.shape[1], attention.d_k):
        return False
    inner, width = last.in_features, x.shape[-1]
    rows, attended_rows = x.numel() // width, attended.numel() // width
    gemms = (
        (min(rows, attended_rows), width, first.out_features),
        (rows, width, inner),  # queries only, or the inner layer of a feed-forward network
        (rows, inner, width),
    )
    return x.is_contiguous() and all(supports_gemm_sizes(*sizes, x.dtype) for sizes in gemms)


class _CompiledLayer(torch.autograd.Function):
    """A whole encoder or decoder layer as an autograd function; each pass runs one list of kernel calls.

    Parameter gradients are added to their float32 sums. The parameters are arguments only so that autograd runs their
    hooks.
    """

    @staticmethod
    def forward(
        ctx: Any,
        sublayers: Sequence[MaskedSublayer],
        rotation: Rotation | None,
        x: Tensor,
        memory: Tensor | None,
        bias: Tensor | None,
        *parameters: Tensor | None,
    ) -> Tensor:
        plan = _plan_of(_shape_of(sublayers, rotation, x, memory))
        angles = None if rotation is None else angles_of(rotation)
        bias = None if bias is None else padded_bias(bias)
        saved, scratch = process_stack().allocate(plan.saved_bytes), process_stack().allocate(plan.scratch_bytes)
        out = torch.empty_like(x)
        sublayer_addresses = _addresses_of_sublayers(sublayers, parameters)
        inputs, positions, no_gradients = map(address_of, (x, memory, out)), map(address_of, (angles, bias)), (0, 0, 0)
        plan.forward.run(
            [0, *inputs, saved.address, scratch.address, *no_gradients, *positions, 0, *sublayer_addresses],
            plan.threads,
        )
        scratch.free()
        ctx.save_for_backward(x, memory, angles, bias)
        # Keeps the lengths alive, which the backward pass reads by address.
        ctx.plan, ctx.kept, ctx.own, ctx.sublayers = plan, saved, sublayer_addresses, sublayers
        ctx.count = len(parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, memory, angles, bias = ctx.saved_tensors
        if ctx.kept is None:
            raise RuntimeError("the backward pass of this layer was taken before: compute it again")
        grad_out, grad_x = gradients[0].contiguous(), torch.empty_like(x)
        grad_memory = None if memory is None else torch.empty_like(memory)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        inputs, outputs = map(address_of, (x, memory)), map(address_of, (grad_out, grad_x, grad_memory))
        positions = map(address_of, (angles, bias, grad_bias))
        scratch = process_stack().allocate(ctx.plan.backward_scratch_bytes)
        ctx.plan.backward.run(
            [0, *inputs, 0, ctx.kept.address, scratch.address, *outputs, *positions, *ctx.own], ctx.plan.threads
        )
        scratch.free()
        ctx.kept = None
        grad_bias = None if grad_bias is None else grad_bias[:, :, : grad_bias.shape[1]].to(x.dtype)
        return None, None, grad_x, grad_memory, grad_bias, *[None] * ctx.count


def _shape_of(
    sublayers: Sequence[MaskedSublayer], rotation: Rotation | None, x: Tensor, memory: Tensor | None
) -> LayerShape:
    """Return the `LayerShape` (sizes and options) of a layer for given tensors and PyTorch's number of threads."""
    batch, length, width = x.shape
    shapes = tuple(_sublayer_shape_of(each, None if number else rotation) for number, each in enumerate(sublayers))
    memory_length = 0 if memory is None else memory.shape[1]
    return LayerShape(batch, length, memory_length, width, shapes, torch.get_num_threads(), require_gemm_tile(x.dtype))


def _sublayer_shape_of(sublayer: MaskedSublayer, rotation: Rotation | None) -> SublayerShape:
    """Return the `SublayerShape` of a sub-layer; `rotation` is a rotary embedding of queries and keys, or None."""
    attention, (first, last) = sublayer.attention, sublayer.linears
    options = PLAIN_ATTENTION if attention is None else options_of(attention)
    assert sublayer.norm.eps is not None
    assert options is not None
    return SublayerShape(
        heads=0 if attention is None else attention.num_heads,
        inner=last.in_features,
        reads_memory=sublayer.reads_memory,
        has_lengths=isinstance(sublayer.mask, KeyLengths) and sublayer.mask.lengths is not None,
        norm_is_before=sublayer.norm_is_before,
        norm_has_bias=getattr(sublayer.norm, "bias", None) is not None,
        epsilon=sublayer.norm.eps,
        has_biases=(first.bias is not None, last.bias is not None),
        drop_256ths=sublayer.drop_256ths,
        inner_drop_256ths=sublayer.inner_drop_256ths,
        attention=options,
        activation=sublayer.activation,
        projected=first.out_features,
        is_biased=isinstance(sublayer.mask, KeyLengths) and sublayer.mask.bias is not None,
        rotary=None if rotation is None else "interleaved" if rotation.interleaved else "halves",
    )


def _addresses_of_sublayers(sublayers: Sequence[MaskedSublayer], parameters: Sequence[Tensor | None]) -> list[int]:
    """Return a list of the base addresses of all sub-layers, one after another, in the order of `SublayerBase`.

    The address of a None parameter is 0. Dropout seeds are new random numbers, 0 without dropout.
    """
    seeds = torch.empty(len(sublayers), 2, dtype=torch.int64)
    for pair, sublayer in zip(seeds, sublayers, strict=True):
        for seed, drop_256ths in zip(pair, (sublayer.inner_drop_256ths, sublayer.drop_256ths), strict=True):
            if drop_256ths:
                seed.random_()
    addresses: list[int] = []
    each_count = len(parameters) // len(sublayers)
    for number, ((inner_seed, seed), sublayer) in enumerate(zip(seeds.tolist(), sublayers, strict=True)):
        lengths = sublayer.mask.lengths if isinstance(sublayer.mask, KeyLengths) else None
        addresses += [seed, inner_seed, address_of(lengths)]
        for parameter in parameters[number * each_count : (number + 1) * each_count]:
            total = None if parameter is None else sum_of_gradients(parameter)
            addresses += [address_of(parameter), address_of(total)]
    return addresses


# The plans that were used last are cached, as batch sizes recur.
_plan_of = lru_cache(_MAX_CACHED_PLANS)(LayerPlan)


# --- backend ---


class CompiledTraining:
    """A training backend of compiled CPU kernels.

    The class implements `TrainingKernels`.
    """

    packed = None  # padding costs little here: attention skips it, and short batches stay in the cache
    linear_activations = frozenset(("relu",))

    run_layer = staticmethod(run_layer)
    project = staticmethod(project)
    supports_attention, attend = staticmethod(supports_attention), staticmethod(autograd.attend)
    supports_rotary, apply_rotary = staticmethod(supports_rotary), staticmethod(autograd.apply_rotary)
    supports_linear, linear = staticmethod(autograd.supports_linear), staticmethod(autograd.linear)
    residual_norm = staticmethod(autograd.residual_norm)
    add_rows_in_place = staticmethod(autograd.add_rows_in_place)
    supports_rows, dropout_add = staticmethod(train_rows.supports_rows), staticmethod(train_rows.dropout_add)
    supports_activation, activate = staticmethod(train_rows.supports_activation), staticmethod(train_rows.activate)
    supports_logits, softmax_ = staticmethod(train_rows.supports_logits), staticmethod(train_rows.softmax_)
    sum_rows, add_in_place = staticmethod(train_rows.sum_rows), staticmethod(train_rows.add_in_place)
    supports_orthogonalization = staticmethod(optimizer.supports_orthogonalization)
    orthogonalize_in_place = staticmethod(optimizer.orthogonalize_in_place)
    supports_update, update_by_adam = staticmethod(optimizer.supports_update), staticmethod(optimizer.update_by_adam)
    update_momentum, apply_update = staticmethod(optimizer.update_momentum), staticmethod(optimizer.apply_update)

    def execute(self, component: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Return `component(*args, **kwargs)`, computed with CPU kernels if these support it, else with PyTorch."""
        return execute(self, component, *args, **kwargs)
