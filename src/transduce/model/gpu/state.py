"""Decoding on a GPU with few operations, which is what a step there takes time for: the same function as `MemoryState`.

What the modules of a decoder layer do is written out once more. `supports` says for which models.
Legend: B sentences, W hypotheses of each, S source length, L cached positions, D model width, H heads, K width of a
head.
"""

from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.attention import AttentionTrace
from transduce.model.feed_forward import FeedForward
from transduce.model.gpu.cached_attention import MOST_HYPOTHESES, attend_cached
from transduce.model.gpu.norms import add_and_norm
from transduce.model.layers import DecoderLayer, Residual
from transduce.model.norms import LayerNorm, RMSNorm
from transduce.model.stack import each_layer
from transduce.model.state import Ancestry
from transduce.model.transformer import Transformer

_KINDS = (torch.bfloat16, torch.float32)
_FIRST_ROOM = 64  # positions
_MOST_COLUMNS = 8192


def supports(model: nn.Module) -> TypeGuard[Transformer]:
    """Whether a model's decoder is of the bricks that are written out here."""
    if not isinstance(model, Transformer) or model.training or not model.can_be_packed:
        return False
    config = model.config
    width = config.key_width
    return (
        model.source_weight.dtype in _KINDS
        and config.norm != "batch"
        and config.norm_order != "sandwich"
        and config.norm_epsilon is not None
        and width == config.value_width
        and config.num_key_value_heads in (None, config.num_heads)
        and width in (16, 32, 64, 128)
        and config.d_model <= _MOST_COLUMNS
    )


class _Layer:
    """A decoder layer's matrices, the memory attention's in two."""

    def __init__(self, layer: DecoderLayer) -> None:
        own, memory = layer.self_attention, layer.memory_attention
        self.project, self.output = own.projection, own.output
        rows = (memory.widths[0], sum(memory.widths[1:]))
        weight, bias = memory.projection.weight, memory.projection.bias
        biases = (None, None) if bias is None else bias.split(rows)
        (self.query, self.query_bias), (self.key_value, self.key_value_bias) = zip(
            weight.split(rows), biases, strict=True
        )
        self.memory_output = memory.output
        self.feed_forward = layer.feed_forward
        self.residuals = (layer.self_attention_residual, layer.memory_attention_residual, layer.feed_forward_residual)


class GpuState:
    """A batch in the middle of decoding. Implements `DecodingState`; attention weights cannot be traced."""

    def __init__(self, model: Transformer, source_ids: Tensor) -> None:
        """Encodes source_ids (B, S)."""
        memory, mask = model.encode(source_ids)
        self.model = model
        self.heads = model.config.num_heads
        layers = each_layer(model.decoder_layers, model.config.num_decoder_layers)
        self.layers = [_Layer(layer) for layer in layers if isinstance(layer, DecoderLayer)]
        each = [F.linear(memory, layer.key_value, layer.key_value_bias) for layer in self.layers]
        self.memory = torch.stack(each)  # (layers, B, S, 2 × H × K)
        self.present = mask.allowed[:, 0]  # (B, 1, S)
        self.past = memory.new_empty(len(each), len(source_ids), _FIRST_ROOM, self.memory.shape[-1])
        self.length = self.position = 0
        self.ancestry = Ancestry(torch.zeros(len(source_ids), 0, dtype=torch.bool, device=source_ids.device))

    def step(self, pieces: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """The last layer after each hypothesis' newest piece, (B, W) to (B, W, D)."""
        if trace is not None or pieces.shape[1] > MOST_HYPOTHESES:
            raise ValueError("attention weights, or so many hypotheses, are for the model's own state")
        model, width = self.model, pieces.shape[1]
        mask = self.ancestry.extend(width)
        allowed = None if mask is None else mask.allowed[:, 0]  # (B, W, L + W)
        self._make_room(width)
        position = torch.full((1,), self.position, device=pieces.device)
        x = model.target_embedding(pieces, model.target_weight, position, end=self.position + 1)
        chain = _Chain(x, [residual for layer in self.layers for residual in layer.residuals], model.decoder_norm)
        for layer, past, memory in zip(self.layers, self.past, self.memory, strict=True):
            projected = layer.project(chain.next)
            chain.add(layer.output(attend_cached(projected, past, self.length, allowed, self.heads)))
            query = F.linear(chain.next, layer.query, layer.query_bias)
            found = attend_cached(query, memory, memory.shape[1], self.present, self.heads)
            chain.add(layer.memory_output(found))
            chain.add(_feed_forward(layer.feed_forward, chain.next))
        self.length += width
        self.position += 1
        return model.finish(chain.next)

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        self.ancestry.reorder(parents)

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self.past, self.memory = self.past.index_select(1, rows), self.memory.index_select(1, rows)
        self.present = self.present.index_select(0, rows)
        self.ancestry.keep_sentences(rows)

    def _make_room(self, positions: int) -> None:
        if self.length + positions > self.past.shape[2]:
            layers, sentences, _, columns = self.past.shape
            room = self.past.new_empty(layers, sentences, 2 * (self.length + positions), columns)
            room[:, :, : self.length] = self.past[:, :, : self.length]
            self.past = room


class _Chain:
    """What goes from one sub-layer to the next: a sum, and its norm, made together."""

    def __init__(self, x: Tensor, residuals: list[Residual], last: nn.Module) -> None:
        befores = [*(residual.norm_before for residual in residuals), last]
        self._norms = iter(zip((residual.norm_after for residual in residuals), befores[1:], strict=True))
        self._sum = x
        self.next = befores[0](x)  # the input of the next sub-layer

    def add(self, y: Tensor) -> None:
        """A sub-layer's output is added, and normalised as the model's order has it."""
        after, before = next(self._norms)
        if isinstance(after, LayerNorm | RMSNorm):  # post-norm
            _, self._sum = _add_and_norm(self._sum, y, after)
            self.next = before(self._sum)
        elif isinstance(before, LayerNorm | RMSNorm):
            self._sum, self.next = _add_and_norm(self._sum, y, before)
        else:
            self._sum = self.next = self._sum + y


def _add_and_norm(x: Tensor, y: Tensor, norm: LayerNorm | RMSNorm) -> tuple[Tensor, Tensor]:
    assert norm.eps is not None
    bias = norm.bias if isinstance(norm, LayerNorm) else None
    if isinstance(norm, LayerNorm) and bias is None:
        total = x + y
        return total, norm(total)
    return add_and_norm(x, y, norm.weight, bias, norm.eps)


def _feed_forward(layer: nn.Module, x: Tensor) -> Tensor:
    if not isinstance(layer, FeedForward) or layer.activation is not F.relu or layer.inner.bias is None:
        return layer(x)  # type: ignore[no-any-return]
    flat = x.flatten(0, 1)
    hidden = torch._addmm_activation(layer.inner.bias, flat, layer.inner.weight.t())
    return layer.outer(hidden).view_as(x)  # type: ignore[no-any-return]
