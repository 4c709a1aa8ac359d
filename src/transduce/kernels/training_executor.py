"""Run the components of a model with a backend's kernels, in training and validation.

Each function of `_KERNELS` computes what the `forward` of one class computes. It is used only for a component that the
layer graph knows: the component has exactly that class, and nothing in it is overridden, hooked or parametrized. Any
other component runs its own `forward`. Three kinds of changes are registered with the layer graph and keep the kernels
in use: `fully_shard`, LoRA, and hooks that only observe.

Legend: B sentences, Q queries, S source length, N and M target and source tokens of a packed batch, D model width.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduce.kernel_interfaces import AttentionOptions, TrainingKernels
from transduce.model.attention import MultiHeadAttention, ScoredAttention
from transduce.model.backend import Rows, sum_of_gradients
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import ACTIVATIONS, GATES, Dropout, FeedForward, GatedFeedForward, Linear
from transduce.model.known_classes import HOOKS, METHODS, GlobalChangeCheck, checked_once, global_change
from transduce.model.layer_graph import (
    LayerGraph,
    ModelGraph,
    Sublayer,
    SupportTable,
    description_of,
    graph_of,
    known_class,
)
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual, each_layer
from transduce.model.masks import AttentionMask, BiasedMask, LookAheadMask, PackedBatch, PackedMask
from transduce.model.norms import LayerNorm, RMSNorm
from transduce.model.positions import NO_POSITION_EFFECT, PositionEffect, Rotation
from transduce.model.transformer import Transformer

_ACTIVATION_NAMES = {function: name for name, function in ACTIVATIONS.items()}
_GATE_NAMES = {function: name for name, function in GATES.items()}


def execute(kernels: TrainingKernels, component: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Return `component(*args, **kwargs)`, computed with the backend's kernels if they support it, else by PyTorch."""
    if not GlobalChangeCheck.is_open:
        with checked_once():
            return execute(kernels, component, *args, **kwargs)
    found = _kernel_of(component)
    if found is None:
        return nn.Module.__call__(component, *args, **kwargs)
    if not _has_hooks(component):
        return found(kernels, component, *args, **kwargs)
    with _forward_of(component, partial(found, kernels, component)):
        return nn.Module.__call__(component, *args, **kwargs)


@contextmanager
def _forward_of(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's `forward` in the body of the `with` statement, so that hooks run around the replacement."""
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        del vars(module)["forward"]


def _kernel_of(component: nn.Module) -> Callable[..., Any] | None:
    """Return the function that computes a component with kernels; None if the component's own `forward` must run.

    The component's `forward` runs for an unknown class, an overridden or replaced method, a replaced function that the
    reference calls, an unknown hook, or a global PyTorch hook.
    """
    kind, own = type(component), vars(component)
    if kind not in _KERNELS or _has_hooks(component):
        known = known_class(component)
        if known is None:
            return None
        kind = known
    found = _KERNELS.get(kind)
    if found is None or "_compiled_call_impl" in own or global_change() is not None:
        return None
    return found if own.keys().isdisjoint(METHODS[kind]) else None


def _has_hooks(module: nn.Module) -> bool:
    own = vars(module)
    return any(map(own.__getitem__, HOOKS))


def _is_bare(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return whether a module's class is one of `kinds` and it has no hooks, so that a kernel may compute it instead.

    A subclass that is registered with the layer graph counts as the class that it computes.
    """
    if _has_hooks(module) or _kernel_of(module) is None:
        return False
    return type(module) in kinds or known_class(module) in kinds


# --- gradient sums ---
# Autograd functions of both backends add the gradients of parameters to the float32 tensors of
# `model/backend.py:add_gradients_to` where these exist, and return them to PyTorch elsewhere.


class LinearKernels(NamedTuple):
    """The functions of a backend that compute a linear layer of rows x (N, I), with a weight (O, I) and a bias (O,)."""

    forward: Callable[[Tensor, Tensor, Tensor | None, str | None], Tensor]
    """Returns activation(x · weightᵀ + bias), (N, O), from x, weight, bias or None, and activation: "relu" or None."""
    backward: Callable[[Tensor, Tensor, Tensor, Tensor | None, Sequence[Tensor | None], bool], Tensor | None]
    """Returns the gradient of x if the last argument is True, and adds the gradients of weight and bias to sums.

    The arguments are the gradient of the output, contiguous, x, weight, the output if the layer has an activation, else
    None, the float32 sums of weight and bias (None: that gradient is not requested), and whether x needs a gradient.
    """


class LinearSums(NamedTuple):
    """Arguments of a linear layer's kernel: its options, and the float32 tensors that collect gradients.

    If a tensor is None, the kernel returns the gradient to PyTorch instead.
    """

    kernels: LinearKernels
    rows: Rows
    activation: str | None
    """The name of the activation that the kernel applies to the layer's output; None: there is none."""
    weight_sum: Tensor | None
    bias_sum: Tensor | None


def linear_sums(
    kernels: LinearKernels, weight: Tensor, bias: Tensor | None, rows: Rows | None, activation: str | None = None
) -> LinearSums:
    """Return the kernel arguments of a linear layer, a `LinearSums`.

    Args:
        kernels: the kernels of the backend.
        weight: (O, I).
        bias: (O,), or None.
        rows: the range of weight rows that the layer uses; None: all.
        activation: the activation after the layer; None: there is none.

    Raises:
        ValueError: the range is empty or not inside the weight.
    """
    rows = rows or Rows(0, len(weight))
    if not 0 <= rows.start < rows.stop <= len(weight):
        raise ValueError(f"{rows} of a matrix of {len(weight)} rows")
    bias_sum = None if bias is None else sum_of_gradients(bias)
    return LinearSums(kernels, rows, activation, sum_of_gradients(weight), bias_sum)


class LinearNode(torch.autograd.Function):
    """A linear layer, with an activation if requested, as an autograd function that a backend's kernels compute.

    The weight and bias gradients are added to the parameters' float32 sums where these exist, else returned to PyTorch.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: LinearSums) -> Tensor:
        rows, flat = slice(*options.rows), x.reshape(-1, x.shape[-1])
        out = options.kernels.forward(flat, weight[rows], None if bias is None else bias[rows], options.activation)
        ctx.options = options
        ctx.save_for_backward(flat, weight, bias, None if options.activation is None else out)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        flat, weight, bias, out = ctx.saved_tensors
        options: LinearSums = ctx.options
        rows, (needs_x, needs_weight, needs_bias) = slice(*options.rows), ctx.needs_input_grad[:3]
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1]).contiguous()
        total, grad_weight = sum_or_zeros(options.weight_sum, weight) if needs_weight else (None, None)
        bias_total, grad_bias = sum_or_zeros(options.bias_sum, bias) if needs_bias else (None, None)
        sums = [None if each is None else each[rows] for each in (total, bias_total)]
        grad_x = options.kernels.backward(gradient, flat, weight[rows], out, sums, needs_x)
        grad_x = None if grad_x is None else grad_x.view(*gradients[0].shape[:-1], -1)
        return grad_x, in_dtype_of(weight, grad_weight), in_dtype_of(bias, grad_bias), None


def sum_or_zeros(total: Tensor | None, parameter: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a pair: a float32 tensor to add a parameter's gradient to, and the gradient that PyTorch receives.

    If `total` is None, both are the same new tensor of zeros; otherwise they are `total` and None.
    """
    if total is not None:
        return total, None
    zeros = torch.zeros_like(parameter, dtype=torch.float32)
    return zeros, zeros


def in_dtype_of(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Return a gradient converted to the dtype of its parameter, as PyTorch expects it; None stays None."""
    return None if gradient is None else gradient.to(parameter.dtype)


NormInputs = tuple[Tensor, Tensor, Tensor | None, float]
"""The inputs of a norm: contiguous x (…, D), weight (D,), bias (D,) or None, and epsilon."""


class NormKernels(NamedTuple):
    """The functions of a backend that compute a norm: LayerNorm, or RMSNorm if there is no bias."""

    forward: Callable[[NormInputs], tuple[Tensor, Tensor]]
    """Returns the normalized x, and statistics of the rows of x, which `backward` reads."""
    backward: Callable[[NormInputs, Tensor, Tensor, Tensor | None, tuple[Tensor, Tensor | None]], Tensor]
    """Returns the gradient of x, and adds the gradients of weight and bias to sums.

    The arguments are the inputs, the statistics, the gradient of the normalized x, another gradient of x to add to the
    result (None: nothing is added), and the float32 sums of weight and bias.
    """


class NormNode(torch.autograd.Function):
    """A norm as an autograd function that returns x, for a residual connection, and the normalized x.

    The backward pass adds the gradients of both outputs in one kernel, and adds the weight and bias gradients to the
    parameters' float32 sums (`sum_of_gradients`) where these exist.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, kernels: NormKernels
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        flat = x.contiguous()
        out, statistics = kernels.forward((flat, weight, bias, epsilon))
        ctx.save_for_backward(flat, weight, bias, statistics)
        ctx.epsilon, ctx.kernels = epsilon, kernels
        ctx.sums = sum_of_gradients(weight), None if bias is None else sum_of_gradients(bias)
        return x, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        grad_residual, grad_out = gradients
        if grad_out is None:
            return grad_residual, None, None, None, None
        x, weight, bias, statistics = ctx.saved_tensors
        total, grad_weight = sum_or_zeros(ctx.sums[0], weight)
        bias_total, grad_bias = (None, None) if bias is None else sum_or_zeros(ctx.sums[1], bias)
        grad_residual = None if grad_residual is None else grad_residual.contiguous()
        inputs, totals = (x, weight, bias, ctx.epsilon), (total, bias_total)
        grad_x = ctx.kernels.backward(inputs, statistics, grad_out.contiguous(), grad_residual, totals)
        return grad_x, in_dtype_of(weight, grad_weight), in_dtype_of(bias, grad_bias), None, None


# --- single components ---


def _linear(kernels: TrainingKernels, module: Linear, x: Tensor, rows: Rows | None = None) -> Tensor:
    """Compute a linear layer with the training backend's kernel if it supports the tensors, else with PyTorch.

    `rows` is the range of the weight's rows that are used; None: all rows.
    """
    weight = module.weight
    if not kernels.supports_linear(x, weight, rows):
        return Linear.forward(module, x, rows)
    return kernels.linear(x, weight, module.bias, rows)


def _norm(kernels: TrainingKernels, module: LayerNorm | RMSNorm, x: Tensor) -> Tensor:
    """Return the LayerNorm or RMSNorm of x, from the training backend's kernel, or from PyTorch if it has none."""
    arguments = _norm_arguments(module)
    if arguments is None or not kernels.supports_rows(x):
        return type(module).forward(module, x)  # type: ignore[arg-type]
    return kernels.residual_norm(x, *arguments)[1]


def _norm_arguments(module: nn.Module) -> tuple[Tensor, Tensor | None, float] | None:
    """Return a norm's weight, bias (None for RMSNorm) and epsilon, for the kernel; None if no kernel computes the norm.

    Kernels compute a LayerNorm that has a bias, and an RMSNorm that has a fixed epsilon.
    """
    if isinstance(module, RMSNorm):
        return None if module.eps is None else (module.weight, None, module.eps)
    return (
        (module.weight, module.bias, module.eps) if isinstance(module, LayerNorm) and module.bias is not None else None
    )


def _dropout(kernels: TrainingKernels, module: Dropout, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """Compute residual + dropout(x), or dropout(x) if `residual` is None, with a kernel or else with PyTorch.

    PyTorch computes it in evaluation mode, at rate 0, and for a tensor that the kernel does not support.
    """
    if not module.drops or not kernels.supports_rows(x):
        return Dropout.forward(module, x, residual)
    return kernels.dropout_add(residual, x, module.drop_256ths)


def _embedding(
    kernels: TrainingKernels, module: Embedding, ids: Tensor, weight: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """Embed token ids with the training backend's kernel if it supports the tensors, else with PyTorch."""
    if not kernels.supports_rows(weight):
        return Embedding.forward(module, ids, weight, *args, **kwargs)
    return module.complete(embed(kernels, ids, weight, module.scale, module.frozen_row), *args, **kwargs)


def embed(kernels: TrainingKernels, ids: Tensor, weight: Tensor, scale: float, frozen_row: int | None) -> Tensor:
    """Return the rows of an embedding matrix (V, D) at ids (…), int64, times a scale: (…, D).

    The row `frozen_row` (that of padding) receives no gradient; None: every row does.
    """
    options = _EmbeddingOptions(scale, frozen_row, sum_of_gradients(weight), kernels)
    rows: Tensor = _EmbeddedRows.apply(ids, weight, options)  # type: ignore[no-untyped-call]
    return rows


class _EmbeddingOptions(NamedTuple):
    """The scale, frozen row and kernels of an embedding lookup, and the float32 sum that its gradient is added to.

    If `weight_sum` is None, the gradient is returned to PyTorch.
    """

    scale: float
    frozen_row: int | None
    weight_sum: Tensor | None
    kernels: TrainingKernels


class _EmbeddedRows(torch.autograd.Function):
    """An embedding lookup as an autograd function, which adds its gradient to the matrix's float32 sum, if any.

    PyTorch's own lookup makes a dense gradient (V, D), nearly all zeros, for each use of the embedding.
    """

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, options: _EmbeddingOptions) -> Tensor:
        ctx.options = options
        ctx.save_for_backward(ids, weight)
        rows = F.embedding(ids, weight)
        return rows if options.scale == 1.0 else rows.mul_(options.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, None]:
        ids, weight = ctx.saved_tensors
        scale, frozen_row, weight_sum, kernels = ctx.options
        total, grad_weight = sum_or_zeros(weight_sum, weight)
        kernels.add_rows_in_place(total, ids, gradients[0], scale, frozen_row)
        return None, in_dtype_of(weight, grad_weight), None


def _feed_forward(kernels: TrainingKernels, module: FeedForward, x: Tensor) -> Tensor:
    """Compute a feed-forward network, whose activation is part of the first linear layer's kernel where possible.

    Otherwise the activation has a kernel of its own, or the module's `forward` computes the whole network.
    """
    name, inner = _ACTIVATION_NAMES.get(module.activation), module.inner
    if name not in kernels.linear_activations or not _is_bare(inner, Linear):
        return _activated(kernels, module, x, name)
    weight = inner.weight
    if not kernels.supports_linear(x, weight, None):
        return FeedForward.forward(module, x)
    hidden = kernels.linear(x, weight, inner.bias, None, activation=name)
    return module.outer(module.dropout(hidden))  # type: ignore[no-any-return]


def _gated_feed_forward(kernels: TrainingKernels, module: GatedFeedForward, x: Tensor) -> Tensor:
    """Compute a gated feed-forward network, with a kernel for activation(gate) · value if there is one.

    Without such a kernel PyTorch computes the network.
    """
    return _activated(kernels, module, x, _GATE_NAMES.get(module.gate))


def _activated(kernels: TrainingKernels, module: FeedForward | GatedFeedForward, x: Tensor, name: str | None) -> Tensor:
    """Return the output of a feed-forward network whose activation is computed by the kernel `name`.

    The module's own `forward` computes all of it if `name` is None, the kernel does not support x, or the outer layer
    is not a plain linear layer.
    """
    outer = module.outer  # without a width of its own if its weights are packed for inference
    if name is None or not _is_bare(outer, Linear) or not kernels.supports_activation(name, x, outer.in_features):
        return type(module).forward(module, x)  # type: ignore[arg-type]
    return module.outer(module.dropout(kernels.activate(module.inner(x), name)))  # type: ignore[no-any-return]


def _residual(
    kernels: TrainingKernels,
    module: Residual,
    x: Tensor,
    sublayer: Callable[[Tensor], Tensor],
    present: Tensor | None = None,
) -> Tensor:
    """Compute a residual connection around the function `sublayer`, with a kernel for its pre-norm if there is one.

    In the backward pass the kernel adds the gradients of the skip connection and of the norm. Without a kernel,
    `Residual.forward` computes the connection.
    """
    norm = module.norm_before
    arguments = _norm_arguments(norm) if _is_bare(norm, LayerNorm, RMSNorm) else None
    if arguments is None or not kernels.supports_rows(x):
        return Residual.forward(module, x, sublayer, present)
    x, normalized = kernels.residual_norm(x, *arguments)
    return module.complete(x, sublayer(normalized), present)


# --- attention ---


class KeyLengths(NamedTuple):
    """An attention mask in one of two forms that kernels support, with an optional bias.

    The form is either a number of keys for each sentence, or the look-ahead mask.
    """

    lengths: Tensor | None
    """The number of keys in each sentence, int64, (B,); padding follows them. None: the look-ahead mask."""
    bias: Tensor | None = None
    """Biases that are added to the attention scores of every sentence, (heads, queries, keys); None: none."""


def kernel_lengths(x: Tensor, memory: Tensor | None, mask: object) -> KeyLengths | None:
    """Convert an attention mask to `KeyLengths`; None if kernels do not support the mask.

    Kernels support a mask that hides padding at the end and, in self-attention, the look-ahead mask. In self-attention
    they also support a bias of the scores that is the same for all sentences.

    Args:
        x: the input of the queries, (sentences, queries, D).
        memory: the input of the keys and values, (sentences, source length, D); None: x.
        mask: the mask that a layer was called with.
    """
    if type(mask) is BiasedMask:
        known = None if mask.base is None else kernel_lengths(x, memory, mask.base)
        is_shared = mask.term.dim() == 4 and mask.term.shape[0] == 1 and mask.term.shape[2:] == (x.shape[1], x.shape[1])
        return known._replace(bias=mask.term[0]) if known is not None and memory is None and is_shared else None
    if memory is None and type(mask) is LookAheadMask and mask.allowed.shape[-1] == x.shape[1]:
        return KeyLengths(None)
    num_keys = (x if memory is None else memory).shape[1]
    if type(mask) is not AttentionMask or mask.allowed.shape[-1] != num_keys or mask.lengths is None:
        return None
    if len(mask.lengths) not in (1, len(x)) or (memory is not None and len(memory) != len(x)):
        return None
    return KeyLengths(mask.lengths.expand(len(x)).contiguous())


def options_of(attention: MultiHeadAttention) -> AttentionOptions | None:
    """Return the kernel options (shared heads, scale, dropout) of attention; None if kernels do not support it.

    Kernels compute soft attention with dot-product scores, whose queries, keys and values have one head width.
    """
    dropout, score, scale = attention.dropout, attention.score, None
    if not isinstance(dropout, Dropout) or _kernel_of(dropout) is None or attention.d_k != attention.d_v:
        return None
    if score is not None:
        is_product = known_class(score) is ScoredAttention and score.matrix is None and score.vector is None
        if not is_product or score.hard:
            return None
        scale = score.factor / math.sqrt(attention.d_k)
    drop_256ths = dropout.drop_256ths if dropout.drops else 0
    return AttentionOptions(attention.num_heads // attention.num_key_value_heads, scale, drop_256ths)


def _attention(
    kernels: TrainingKernels,
    module: MultiHeadAttention,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    mask: Any = None,
    cache: Any = None,
    weights_out: list[Tensor] | None = None,
    position_effect: PositionEffect = NO_POSITION_EFFECT,
) -> Tensor:
    """Compute multi-head attention with a kernel on the joint projection's output if possible, else with PyTorch.

    Kernels do not support a cache, or a request for the attention weights.
    """
    attend: Callable[[Tensor, Tensor | None], Tensor] | None = None
    if isinstance(mask, PackedMask):
        attend = partial(_packed_attend, kernels, mask, module.num_heads)
    elif weights_out is None and cache is None:
        attend = _padded_attend(kernels, module, x, memory, mask, position_effect)
    if attend is None:
        return MultiHeadAttention.forward(
            module, x, memory, mask=mask, cache=cache, weights_out=weights_out, position_effect=position_effect
        )
    if memory is None:
        return module.output(attend(module.projection(x), None))  # type: ignore[no-any-return]
    inner = module.widths[0]
    queries = module.projection(x, Rows(0, inner))  # (B, Q, H × K)
    keys_and_values = module.projection(memory, Rows(inner, sum(module.widths)))  # (B, S, 2 × H × K)
    return module.output(attend(queries, keys_and_values))  # type: ignore[no-any-return]


def _packed_attend(
    kernels: TrainingKernels, mask: PackedMask, num_heads: int, projected: Tensor, memory: Tensor | None
) -> Tensor:
    """Compute the attention of a packed batch, whose sentences are concatenated without padding.

    `memory` holds the keys and values of the encoder output in cross-attention. It is None in self-attention: then
    `projected` holds queries, keys and values. Otherwise `projected` holds only the queries.
    """
    assert kernels.packed is not None
    return kernels.packed.attend(projected, memory, mask, num_heads)


def _padded_attend(
    kernels: TrainingKernels,
    module: MultiHeadAttention,
    x: Tensor,
    memory: Tensor | None,
    mask: object,
    position_effect: PositionEffect,
) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """Return a function that computes the attention of a padded batch with a kernel; None if no kernel supports it.

    The function takes two tensors. In self-attention these are the joint projection and None; in cross-attention they
    are the queries, and the keys and values of the memory.
    """
    others, rotation, options = x if memory is None else memory, position_effect.rotation, options_of(module)
    if options is None or not kernels.supports_attention(x, others.shape[1], module.d_k):
        return None
    known = kernel_lengths(x, memory, mask)
    if known is None:
        return None
    if not supports_positions(module, x, rotation, known.bias, kernels.supports_rotary):
        return None
    if rotation is None:
        return lambda projected, keyed: kernels.attend(
            projected, keyed, known.lengths, module.num_heads, options, known.bias
        )
    if memory is not None:
        return None
    heads, rotated = module.num_heads, module.num_heads + module.num_key_value_heads
    return lambda projected, _: kernels.attend(
        kernels.apply_rotary(projected, rotation, rotated), None, known.lengths, heads, options
    )


def supports_positions(
    attention: MultiHeadAttention,
    x: Tensor,
    rotation: Rotation | None,
    bias: Tensor | None,
    supports_rotary: Callable[[Tensor, int], bool],
) -> bool:
    """Return whether kernels support the positions of an attention module.

    Positions act by a rotary embedding, by a bias of the scores, or not at all.

    Args:
        attention: a module whose other properties kernels support.
        x: its input, (B, T, D).
        rotation: the rotary embedding, or None; its positions must be the same in all sentences.
        bias: the bias of all heads, (H, T, T), or None.
        supports_rotary: the backend's method `TrainingKernels.supports_rotary`.
    """
    if bias is not None and (rotation is not None or len(bias) != attention.num_heads):
        return False
    if rotation is None:
        return True
    shape = x.shape[1], attention.d_k // 2
    is_known = type(rotation) is Rotation and rotation.cosine.shape == rotation.sine.shape == shape
    return is_known and supports_rotary(x, attention.d_k)


# --- whole layers ---


def _encoder_layer(kernels: TrainingKernels, layer: EncoderLayer, x: Tensor, mask: Any, **kwargs: Any) -> Tensor:
    """Compute an encoder layer as one autograd node if the kernels support the layer, else component by component."""
    if _is_plain_call(layer, kwargs) and kernels.supports_rows(x):
        found = kernels.run_layer(layer, x, None, (mask,), _rotation_of(kwargs))
        if found is not None:
            return found
    return EncoderLayer.forward(layer, x, mask, **kwargs)


def _decoder_layer(
    kernels: TrainingKernels,
    layer: DecoderLayer,
    x: Tensor,
    memory: Tensor,
    *,
    mask: Any,
    memory_mask: Any,
    **kwargs: Any,
) -> Tensor:
    """Compute a decoder layer as one autograd node if the kernels support the layer, else component by component."""
    if _is_plain_call(layer, kwargs) and kernels.supports_rows(x):
        found = kernels.run_layer(layer, x, memory, (mask, memory_mask), _rotation_of(kwargs))
        if found is not None:
            return found
    return DecoderLayer.forward(layer, x, memory, mask=mask, memory_mask=memory_mask, **kwargs)


def _is_plain_call(layer: nn.Module, options: dict[str, Any]) -> bool:
    """Return whether a layer has no hooks, and its call asks for no cache, attention weights or trace.

    Whole-layer kernels compute only such calls.

    Args:
        layer: an encoder or decoder layer.
        options: the keyword arguments of the call.
    """
    asks = any(options.get(name) is not None for name in ("cache", "weights_out", "trace"))
    return not asks and not _has_hooks(layer)


def _rotation_of(options: dict[str, Any]) -> Rotation | None:
    """Return the rotary embedding in the keyword arguments `options` of a layer's call; None if they have none."""
    effect: PositionEffect = options.get("position_effect", NO_POSITION_EFFECT)
    return effect.rotation


class MaskedSublayer(NamedTuple):
    """A sub-layer (attention or feed-forward network) with its mask, in the form that whole-layer kernels compute.

    A sub-layer has a norm, two linear layers, dropout, and in between attention or an activation.
    """

    mask: object
    """The mask of the sub-layer's attention, in a form that kernels take; None for a feed-forward network."""
    attention: MultiHeadAttention | None
    """The attention module; None for a feed-forward network."""
    reads_memory: bool
    """True for cross-attention, whose keys and values come from the encoder output."""
    activation: str | None
    """The name of the feed-forward network's activation; None for attention."""
    norm_is_before: bool
    """True if the norm precedes the sub-layer (pre-norm); False if it follows (post-norm)."""
    norm: LayerNorm | RMSNorm
    """The sub-layer's only norm."""
    linears: tuple[Linear, Linear]
    """The first and the last linear layer of the sub-layer, such as its joint projection and output projection."""
    drop_256ths: int
    """The dropout rate of the sub-layer's output in 256ths; 0 in evaluation mode."""
    inner_drop_256ths: int
    """The dropout rate of the attention weights, or of the activation, in 256ths; 0 in evaluation mode."""

    @classmethod
    def of(cls, sublayer: Sublayer, mask: object) -> "MaskedSublayer":
        """Return a sub-layer of a layer graph with its mask; the sub-layer's modules must have known classes."""
        attention, activation = sublayer.attention, sublayer.activation
        first, last = (cast("Linear", each.module) for each in sublayer.linears)
        return cls(
            mask=mask,
            attention=None if attention is None else attention.module,
            reads_memory=attention is not None and attention.reads_memory,
            activation=None if activation is None else activation.name,
            norm_is_before=sublayer.order == "pre",
            norm=cast("LayerNorm | RMSNorm", sublayer.norms[0].module),
            linears=(first, last),
            drop_256ths=_rate_of(sublayer.residual.dropout),
            inner_drop_256ths=_rate_of(cast("nn.Module", sublayer.module.dropout)),
        )

    def parameters(self) -> list[Tensor | None]:
        """Return a list of six: weight and bias of the norm and of both linear layers, None for a missing bias."""
        return [getattr(module, name, None) for module in (self.norm, *self.linears) for name in ("weight", "bias")]


def _rate_of(dropout: nn.Module) -> int:
    """Return a `Dropout` module's rate in 256ths; 0 in evaluation mode."""
    assert isinstance(dropout, Dropout)
    return dropout.drop_256ths if dropout.drops else 0


def sublayers_of(layer: nn.Module, masks: Sequence[object], supported: SupportTable) -> list[MaskedSublayer] | None:
    """Return the sub-layers of an encoder or decoder layer in order, for whole-layer kernels.

    Args:
        layer: a layer in training mode.
        masks: the mask of self-attention, then, in a decoder, the mask of cross-attention.
        supported: the operations that the kernels compute, apart from dropout inside of a sub-layer.

    Returns:
        A list of `MaskedSublayer`, or None if whole-layer kernels cannot compute the layer. Then an operation of the
        layer is not in `supported`, a dropout module is not this package's `Dropout`, or the gradient of a parameter is
        not collected by `model/backend.py:add_gradients_to`.
    """
    description = description_of(layer)
    graph = description.graph
    if not isinstance(graph, LayerGraph) or description.refusal(supported) is not None:
        return None
    if not all(isinstance(each.module.dropout, Dropout) for each in graph.sublayers):
        return None
    found = [MaskedSublayer.of(*pair) for pair in zip(graph.sublayers, (*masks, None), strict=True)]
    learned = [parameter for each in found for parameter in each.parameters() if parameter is not None]
    return found if all(sum_of_gradients(parameter) is not None for parameter in learned) else None


# --- packed batches ---


def is_known(model: nn.Module) -> bool:
    """Return whether a model has a layer graph, that is, whether all its components are known and unchanged.

    Only then do kernels compute all of the model's attention.
    """
    return isinstance(graph_of(model), ModelGraph)


@checked_once()
def packed_hidden(model: nn.Module, batch: PackedBatch) -> Tensor:
    """Return a Transformer decoder's output for a batch without padding, (1, target tokens, D).

    A training backend must be in use, since only kernels compute attention for batches without padding.
    """
    assert isinstance(model, Transformer)
    source, target = batch.source_packing, batch.target_packing
    x = model.source_embedding(batch.source, model.source_weight, source.positions, end=source.max_length)  # (1, M, D)
    mask: Any = PackedMask(source, source)
    for layer in each_layer(model.encoder_layers, model.config.num_encoder_layers):
        x = layer(x, mask)
    memory = model.encoder_norm(x)
    y = model.target_embedding(batch.target_input, model.target_weight, target.positions, end=target.max_length)
    mask = PackedMask(target, target, causal=True)
    for layer in each_layer(model.decoder_layers, model.config.num_decoder_layers):
        y = layer(y, memory, mask=mask, memory_mask=PackedMask(target, source))
    return model.scale_output(model.decoder_norm(y))


# --- which component is computed by which function ---


_KERNELS: dict[type[nn.Module], Callable[..., Any]] = {
    Linear: _linear,
    LayerNorm: _norm,
    RMSNorm: _norm,
    Dropout: _dropout,
    Embedding: _embedding,
    FeedForward: _feed_forward,
    GatedFeedForward: _gated_feed_forward,
    Residual: _residual,
    MultiHeadAttention: _attention,
    EncoderLayer: _encoder_layer,
    DecoderLayer: _decoder_layer,
}
