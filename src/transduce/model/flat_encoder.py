"""Encoding with as few operations as possible: the same function as `Transformer.encode`, for the usual bricks.

Everything but attention looks at one position at a time, so padding is left out of it, and a few hundred positions at a
time keep what lies between two products in the processor's cache.
Legend: B sentences, S source length, N pieces that are no padding, D model width, H heads, K width of a head.
"""

import math

import torch
from torch import Tensor

from transduce.model.layers import EncoderLayer
from transduce.model.masks import AttentionMask, padding_mask
from transduce.model.stack import each_layer
from transduce.model.transformer import Transformer

_ROWS_AT_ONCE = 128


def encode_flat(model: Transformer, source_ids: Tensor) -> tuple[Tensor, AttentionMask]:
    """The memory (B, S, D), zero where there is padding, and the mask that hides it.

    Args:
        model: one that `flat.supports`.
        source_ids: padded at the right, (B, S).
    """
    mask = padding_mask(source_ids, model.config.pad_id)
    batch, length = source_ids.shape
    present = mask.allowed.flatten().nonzero()[:, 0]  # (N,)
    embedded = model.source_embedding(source_ids, model.source_weight).flatten(0, 1)  # (B × S, D)
    x = embedded.index_select(0, present)  # (N, D)
    bias = None
    if len(present) < batch * length:
        bias = mask.bias(x.dtype).expand(-1, model.config.num_heads, -1, -1).flatten(0, 1)  # (B × H, 1, S)
    places = _Places(present, batch, length, bias)
    for layer in each_layer(model.encoder_layers, model.config.num_encoder_layers):
        assert isinstance(layer, EncoderLayer)
        x = _feed_forward(layer, _attention(layer, x, places))
    memory = embedded.new_zeros(batch * length, x.shape[1])
    memory.index_copy_(0, present, model.encoder_norm(x))
    return memory.unflatten(0, (batch, length)), mask


class _Places:
    """Where the pieces stand, and what their attention adds to its scores, (B × H, 1, S)."""

    def __init__(self, present: Tensor, batch: int, length: int, bias: Tensor | None) -> None:
        self.present = present
        self.batch = batch
        self.length = length
        self.bias = bias


def _attention(layer: EncoderLayer, x: Tensor, places: _Places) -> Tensor:
    """Self-attention with its residual, (N, D) to (N, D)."""
    attention, residual = layer.self_attention, layer.self_attention_residual
    heads, width = attention.num_heads, attention.d_k
    padded = x.new_zeros(places.batch * places.length, 3 * heads * width)
    for rows, where in zip(_cut(x), _cut(places.present), strict=True):
        padded.index_copy_(0, where, attention.projection(residual.norm_before(rows)))
    by_head = padded.view(places.batch, places.length, 3, heads, width).permute(2, 0, 3, 1, 4)
    query, key, value = by_head.reshape(3, places.batch * heads, places.length, width).unbind(0)
    bias, beta = (x.new_zeros(1), 0.0) if places.bias is None else (places.bias, 1.0)
    scores = torch.baddbmm(bias, query, key.transpose(1, 2), beta=beta, alpha=1.0 / math.sqrt(width))  # (B × H, S, S)
    found = torch.bmm(scores.softmax(dim=-1), value)  # (B × H, S, K)
    joined = found.view(places.batch, heads, places.length, width).transpose(1, 2).reshape(len(padded), -1)
    joined = joined.index_select(0, places.present)  # (N, H × K)
    parts = zip(_cut(x), _cut(joined), strict=True)
    return torch.cat([residual.norm_after(rows + attention.output(each)) for rows, each in parts])


def _feed_forward(layer: EncoderLayer, x: Tensor) -> Tensor:
    """The feed-forward network with its residual, (N, D) to (N, D)."""
    residual = layer.feed_forward_residual
    return torch.cat([residual.norm_after(rows + layer.feed_forward(residual.norm_before(rows))) for rows in _cut(x)])


def _cut(x: Tensor) -> tuple[Tensor, ...]:
    """Rows in parts of like size, none of them small: products of few rows would be summed in another order."""
    return x.tensor_split(max(1, len(x) // _ROWS_AT_ONCE))
