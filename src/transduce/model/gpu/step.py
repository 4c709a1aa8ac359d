"""Run a decoder step on a GPU with few operations: a decoder's layers written out.

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
    """The modules of a decoder layer, with the projection of cross-attention split into queries and keys/values."""

    def __init__(self, layer: DecoderLayer) -> None:
        self_attention, memory = layer.self_attention, layer.memory_attention
        self.heads = self_attention.num_heads
        self.project, self.output = self_attention.projection, self_attention.output
        rows = (memory.widths[0], sum(memory.widths[1:]))
        weight, bias = memory.projection.weight, memory.projection.bias
        self.query, self.key_value = weight.split(rows)
        self.query_bias, self.key_value_bias = (None, None) if bias is None else bias.split(rows)
        self.memory_output = memory.output
        self.feed_forward = layer.feed_forward
        self.residuals = (layer.self_attention_residual, layer.memory_attention_residual, layer.feed_forward_residual)

    def keys_and_values(self, memory: Tensor) -> Tensor:
        """Project encoder outputs (B, S, D) to keys and values (B, S, 2 × H × K)."""
        return F.linear(memory, self.key_value, self.key_value_bias)


class Caches:
    """The KV caches of a step."""

    past: Tensor
    """Keys and values of the tokens so far, (layers, B, capacity, 2 × H × K)."""
    memory: Tensor
    """Keys and values of the encoder output, (layers, B, S, 2 × H × K)."""
    length: Tensor
    """The number of cached positions in `past`, int64 (1,)."""

    @property
    def seen_past(self) -> Seen:
        """The positions in `past` to attend to."""
        raise NotImplementedError

    @property
    def seen_memory(self) -> Seen:
        """The positions in `memory` to attend to."""
        raise NotImplementedError


def run_layers(layers: Sequence[StepLayer], last_norm: nn.Module, x: Tensor, caches: Caches) -> Tensor:
    """Run decoder layers and the last norm on embedded tokens: (B, W, D) to (B, W, D)."""
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
    """The residual stream between sub-layers, which fuses each addition with the norm that follows."""

    def __init__(self, x: Tensor, residuals: Sequence[Residual], last: nn.Module) -> None:
        befores = [*(residual.norm_before for residual in residuals), last]
        self._norms = iter(zip((residual.norm_after for residual in residuals), befores[1:], strict=True))
        self._sum = x
        self.next: Tensor = befores[0](x)  # the input of the next sub-layer

    def add(self, y: Tensor) -> None:
        """Add a sub-layer's output, and apply the norms of the model's order (pre-norm or post-norm)."""
        after, before = next(self._norms)
        if isinstance(after, LayerNorm | RMSNorm):  # post-norm
            _, self._sum = _add_and_norm(self._sum, y, after)
            self.next = before(self._sum)
        elif isinstance(before, LayerNorm | RMSNorm):
            self._sum, self.next = _add_and_norm(self._sum, y, before)
        else:
            self._sum = self.next = self._sum + y


def _add_and_norm(x: Tensor, y: Tensor, norm: LayerNorm | RMSNorm) -> tuple[Tensor, Tensor]:
    """Return x + y and its norm."""
    bias = norm.bias if isinstance(norm, LayerNorm) else None
    if norm.eps is None or (isinstance(norm, LayerNorm) and bias is None):
        total = x + y
        return total, norm(total)
    return add_and_norm(x, y, norm.weight, bias, norm.eps)


def _feed_forward(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a feed-forward network, with a fused ReLU if it is a plain one."""
    if not isinstance(layer, FeedForward) or layer.activation is not F.relu or layer.inner.bias is None:
        return layer(x)  # type: ignore[no-any-return]
    hidden = torch._addmm_activation(layer.inner.bias, x.flatten(0, 1), layer.inner.weight.t())
    return layer.outer(hidden).view_as(x)  # type: ignore[no-any-return]
