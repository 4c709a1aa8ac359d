"""Multi-head scaled dot-product attention (sections 3.2.1 and 3.2.2): the only attention there is.

It serves training and decoding, self-attention and attention to the memory.
Legend: B batch, Q queries, L keys, D model width, H heads, K width of a key, V width of a value.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.cache import KeyValueCache
from transduce.model.dropout import Dropout
from transduce.model.masks import AttentionMask


class AttentionTrace:
    """Collects attention weights. Handing one in is how they are asked for; without it they may never exist."""

    def __init__(self) -> None:
        self.encoder: list[Tensor] = []
        self.decoder: list[Tensor] = []
        self.memory: list[Tensor] = []


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask | None = None,
    *,
    dropout: Dropout | None = None,
    weights_to: list[Tensor] | None = None,
) -> Tensor:
    """softmax(Q Kᵀ / √d_k + mask) V, equation (1).

    Args:
        query: (B, H, Q, K).
        key: (B, H, L, K).
        value: (B, H, L, V).
        mask: broadcastable to (B, H, Q, L), True = may attend.
        dropout: applied to the weights.
        weights_to: a list that receives the weights, (B, H, Q, L).

    Returns:
        (B, H, Q, V).
    """
    scale = 1.0 / math.sqrt(query.shape[-1])
    if weights_to is None and _library_kernel_is_better(query, key, dropout):
        bias = None if mask is None else mask.bias(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale)
    scores = torch.matmul(query * scale, key.transpose(-1, -2))  # (B, H, Q, L)
    if mask is not None:
        scores = scores + mask.bias(scores.dtype)
    weights = scores.softmax(dim=-1)
    if weights_to is not None:
        weights_to.append(weights.detach())
    if dropout is not None:
        weights = dropout(weights)
    return torch.matmul(weights, value)


def _library_kernel_is_better(query: Tensor, key: Tensor, dropout: Dropout | None) -> bool:
    """On a GPU always; on a CPU where scores would be large, since its backward pass is slow (docs/benchmarks.md)."""
    if dropout is not None and dropout.training and dropout.drop_of_256:
        return False
    return query.device.type != "cpu" or query.shape[2] * key.shape[2] > 256 * 256


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each over its own projection of queries, keys and values.

    The projections stand in one matrix, rows [queries; keys; values], so that self-attention takes one product.
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.d_k = d_k
        self.d_v = d_v
        self.widths = (num_heads * d_k, num_heads * d_k, num_heads * d_v)
        self.projection = nn.Linear(d_model, sum(self.widths), bias=bias)
        self.output = nn.Linear(num_heads * d_v, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: AttentionMask | None = None,
        cache: KeyValueCache | None = None,
        weights_to: list[Tensor] | None = None,
    ) -> Tensor:
        """Attention of x to itself and what the cache holds of the past, or to the memory.

        Args:
            x: (B, Q, D).
            memory: the encoder's output, (B, S, D); None for self-attention.
            mask: broadcastable to (B, H, Q, L).
            cache: self-attention appends to it and attends to all of it; attention to the memory fills it once and
                then reads it.
            weights_to: a list that receives the weights, (B, H, Q, L).

        Returns:
            (B, Q, D).
        """
        if memory is None:
            query, key, value = self._project_self(x)
            if cache is not None:
                key, value = cache.append(key, value)
        else:
            query, key, value = self._project_memory(x, memory, cache)
        heads = attend(query, key, value, mask, dropout=self.dropout, weights_to=weights_to)
        joined = heads.transpose(1, 2).flatten(2)  # (B, Q, H × V)
        return self.output(joined)  # type: ignore[no-any-return]

    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.projection(x).split(self.widths, dim=-1)
        return self._heads(query), self._heads(key), self._heads(value)

    def _project_memory(self, x: Tensor, memory: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, Tensor, Tensor]:
        query_width = self.widths[0]
        rows = (query_width, sum(self.widths) - query_width)
        query_weight, memory_weight = self.projection.weight.split(rows)
        bias = self.projection.bias
        query_bias, memory_bias = (None, None) if bias is None else bias.split(rows)
        query = self._heads(F.linear(x, query_weight, query_bias))
        if cache is not None and cache.length:
            return query, *cache.content()
        key, value = F.linear(memory, memory_weight, memory_bias).split(self.widths[1:], dim=-1)
        key, value = self._heads(key), self._heads(value)
        return (query, *cache.append(key, value)) if cache is not None else (query, key, value)

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.num_heads, -1))  # (B, L, H × K) -> (B, L, H, K)
        return heads.transpose(1, 2)  # (B, H, L, K)
