"""What a step of decoding computes on a GPU: a decoder's layers written out, with few operations.

Legend: B sentences, W hypotheses of each, S source length, D model width, H heads, K width of a head.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.feed_forward import FeedForward
from transduce.model.gpu.cached_attention import Seen, attend_cached
from transduce.model.gpu.norms import add_and_norm
from transduce.model.layers import DecoderLayer, Residual
from transduce.model.norms import LayerNorm, RMSNorm


class StepLayer:
    """A decoder layer's parts, the matrix of attention to the memory in two."""

    def __init__(self, layer: DecoderLayer) -> None:
        own, memory = layer.self_attention, layer.memory_attention
        self.heads = own.num_heads
        self.project, self.output = own.projection, own.output
        rows = (memory.widths[0], sum(memory.widths[1:]))
        weight, bias = memory.projection.weight, memory.projection.bias
        self.query, self.key_value = weight.split(rows)
        self.query_bias, self.key_value_bias = (None, None) if bias is None else bias.split(rows)
        self.memory_output = memory.output
        self.feed_forward = layer.feed_forward
        self.residuals = (layer.self_attention_residual, layer.memory_attention_residual, layer.feed_forward_residual)

    def keys_and_values(self, memory: Tensor) -> Tensor:
        """Of the memory, (B, S, D) to (B, S, 2 × H × K)."""
        return F.linear(memory, self.key_value, self.key_value_bias)


class Caches:
    """What a step reads, and its newest positions are added to."""

    past: Tensor
    """Keys and values, (layers, B, room, 2 × H × K)."""
    memory: Tensor
    """The same of the memory, (layers, B, S, 2 × H × K)."""
    length: Tensor
    """Of the past, int64, (1,)."""

    @property
    def seen_past(self) -> Seen:
        """What of the past is looked at."""
        raise NotImplementedError

    @property
    def seen_memory(self) -> Seen:
        """What of the memory is looked at."""
        raise NotImplementedError


def run_layers(layers: Sequence[StepLayer], last_norm: nn.Module, x: Tensor, caches: Caches) -> Tensor:
    """From embedded pieces to the decoder's output, (B, W, D) to (B, W, D)."""
    chain = _Chain(x, [residual for layer in layers for residual in layer.residuals], last_norm)
    seen_past, seen_memory = caches.seen_past, caches.seen_memory
    for layer, past, memory in zip(layers, caches.past, caches.memory, strict=True):
        projected = layer.project(chain.next)
        chain.add(layer.output(attend_cached(projected, past, caches.length, seen_past, layer.heads)))
        query = F.linear(chain.next, layer.query, layer.query_bias)
        chain.add(layer.memory_output(attend_cached(query, memory, memory.shape[1], seen_memory, layer.heads)))
        chain.add(_feed_forward(layer.feed_forward, chain.next))
    return chain.next


class _Chain:
    """What goes from one sub-layer to the next: a sum, and its norm, made together."""

    def __init__(self, x: Tensor, residuals: Sequence[Residual], last: nn.Module) -> None:
        befores = [*(residual.norm_before for residual in residuals), last]
        self._norms = iter(zip((residual.norm_after for residual in residuals), befores[1:], strict=True))
        self._sum = x
        self.next: Tensor = befores[0](x)  # the input of the next sub-layer

    def add(self, y: Tensor) -> None:
        """A sub-layer's output is added, and normalised as the model's order has it."""
        after, before = next(self._norms)
        if isinstance(after, LayerNorm | RMSNorm):  # post-norm
            _, self._sum = _add_and_norm(self._sum, y, after)
            self.next = before(self._sum)
        elif isinstance(before, LayerNorm | RMSNorm):
            self._sum, self.next = _add_and_norm(self._sum, y, before)
        else:
            self._sum = after(self._sum + y)
            self.next = before(self._sum)


def _add_and_norm(x: Tensor, y: Tensor, norm: LayerNorm | RMSNorm) -> tuple[Tensor, Tensor]:
    bias = norm.bias if isinstance(norm, LayerNorm) else None
    if norm.eps is None or (isinstance(norm, LayerNorm) and bias is None):
        total = x + y
        return total, norm(total)
    return add_and_norm(x, y, norm.weight, bias, norm.eps)


def _feed_forward(layer: nn.Module, x: Tensor) -> Tensor:
    if not isinstance(layer, FeedForward) or layer.activation is not F.relu or layer.inner.bias is None:
        return layer(x)  # type: ignore[no-any-return]
    hidden = torch._addmm_activation(layer.inner.bias, x.flatten(0, 1), layer.inner.weight.t())
    return layer.outer(hidden).view_as(x)  # type: ignore[no-any-return]
