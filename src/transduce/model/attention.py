"""Multi-head attention (section 3.2), for training and decoding, self-attention and cross-attention.

The file begins with the paper's attention. Key/value caches, other scores and attention in a window follow.

Legend: B batch, Q queries, L keys, S source length, D model width, H query heads, G key/value heads, K width of a key,
V width of a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from transduce.errors import TransduceError, explain_wrong_types
from transduce.model.backend import Component, Rows
from transduce.model.config import AttentionKind, AttentionScore, ModelConfig
from transduce.model.feed_forward import Dropout, Linear
from transduce.model.masks import AttentionMask, BiasedMask, LookAheadMask, as_attention_mask, band_mask
from transduce.model.norms import RMSNorm
from transduce.model.positions import NO_POSITION_EFFECT, PositionEffect, RelativePositions

# --- scaled dot-product attention (section 3.2.1) ---


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask | None = None,
    *,
    dropout: Dropout | None = None,
    weights_out: list[Tensor] | None = None,
) -> Tensor:
    """Return softmax(Q Kᵀ / √d_k + mask) V, equation (1), by PyTorch's fused kernel or by separate operations.

    Args:
        query: (B, H, Q, K).
        key: (B, H, L, K).
        value: (B, H, L, V).
        mask: an `AttentionMask` or a boolean tensor, broadcastable to (B, H, Q, L), True = may attend; None: all may.
        dropout: applied to the weights.
        weights_out: a list to which the weights, (B, H, Q, L), are appended, before dropout and without a gradient.

    Returns:
        (B, H, Q, V).
    """
    if isinstance(mask, Tensor):
        mask = as_attention_mask(mask)
    scale = 1.0 / math.sqrt(query.shape[-1])
    if weights_out is None and _library_kernel_is_better(query, key, dropout):
        # A mask of another size is refused as by separate operations; the kernel's own causal mask would fit any size.
        bias, is_causal = None, False
        if isinstance(mask, LookAheadMask) and mask.allowed.shape[2:] == (query.shape[2], key.shape[2]):
            is_causal = True  # a branch, because the comparison of traced sizes is no bool under `torch.compile`
        elif mask is not None:
            bias = mask.bias(query.dtype)
        rate = _dropout_rate(dropout)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=rate, is_causal=is_causal, scale=scale
        )
    scores = torch.matmul(query * scale, key.transpose(-1, -2))  # (B, H, Q, L)
    if mask is not None:
        scores = scores + mask.bias(scores.dtype)
    weights = scores.softmax(dim=-1)
    if weights_out is not None:
        weights_out.append(weights.detach())
    if dropout is not None:
        weights = dropout(weights)
    return torch.matmul(weights, value)


def _dropout_rate(dropout: Dropout | None) -> float:
    """Return the probability with which attention weights are dropped now; 0 if none are, as in evaluation."""
    rate = 0.0 if dropout is None or not dropout.training else dropout.p
    return 0.0 if isinstance(dropout, Dropout) and not dropout.drops else rate  # PyTorch's class has no `drops`


def _library_kernel_is_better(query: Tensor, key: Tensor, dropout: Dropout | None) -> bool:
    """Return whether PyTorch's fused attention is preferred to separate matrix multiplications and softmax.

    On a GPU it always is. On a CPU its backward pass is slow. There it is preferred only to save memory: without
    dropout, and for more than 256² scores for each head.
    """
    if query.device.type != "cpu":
        return True
    if _dropout_rate(dropout):
        return False
    return query.shape[2] * key.shape[2] > 256 * 256


# --- multi-head attention (section 3.2.2) ---


class AttentionTrace:
    """A collector of attention weights, passed to a model whose layers append their weights to three lists.

    The lists are `encoder` and `decoder` for self-attention, and `memory` for cross-attention. Each layer adds one
    tensor, (B, H, Q, L), at each call.
    """

    def __init__(self) -> None:
        self.encoder: list[Tensor] = []
        self.decoder: list[Tensor] = []
        self.memory: list[Tensor] = []

    def of_memory(self) -> list[Tensor]:
        """Return the list `memory`: the weights of cross-attention, a tensor (B, H, Q, L) from each call of a layer.

        Raises:
            TransduceError: no layer has appended weights.
        """
        if not self.memory:
            raise no_weights("cross-attention")
        return self.memory


def no_weights(module: str) -> TransduceError:
    """Return the error for the attention `module`, which appends no attention weights although they are needed."""
    return TransduceError(
        f"The weights of {module} are needed, but it does not append them to `weights_out`: pass on `weights_out` in "
        "an attention or a score of your own."
    )


class MultiHeadAttention(Component):
    """A module of multi-head attention (section 3.2.2): self-attention, or cross-attention to the encoder's output.

    One projection matrix has the rows [queries; keys; values], so that self-attention takes one matrix multiplication.
    With fewer key/value heads than query heads (grouped-query attention), neighboring query heads share a key/value
    head, and a cache holds the key/value heads only.
    """

    @explain_wrong_types
    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        num_key_value_heads: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        dropout: float = 0.0,
        score: ScoredAttention | None = None,
    ) -> None:
        """Create the projections; arguments are named as the settings in `ModelConfig`.

        Args:
            d_model: D, the width of the inputs and of the output.
            num_heads: H, the number of query heads.
            d_k: K, the width of one head's queries and keys; None: d_model / num_heads, as in the paper.
            d_v: V, the width of one head's values; None: d_model / num_heads.
            num_key_value_heads: G, the number of key/value heads, a divisor of `num_heads`; None: `num_heads`.
            bias: whether the projections to queries, keys and values have a bias.
            output_bias: whether the output projection has a bias; None: as `bias`.
            dropout: the dropout probability of the attention weights in training.
            score: computes attention by another score function; None: the scaled dot product.

        Raises:
            TransduceError: `d_model` is no multiple of `num_heads` and `d_k` or `d_v` is None, or `num_heads` is no
                multiple of `num_key_value_heads`.
        """
        super().__init__()
        if d_model % num_heads and (d_k is None or d_v is None):
            raise TransduceError(
                f"`d_model` must be a multiple of `num_heads`, but {d_model} is not a multiple of {num_heads}: set "
                "`d_k` and `d_v` for heads of another width."
            )
        self.num_heads = num_heads
        self.num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        if num_heads % self.num_key_value_heads:
            raise TransduceError(
                f"`num_heads` must be a multiple of `num_key_value_heads`, but {num_heads} is not a multiple of "
                f"{self.num_key_value_heads}."
            )
        self.d_model = d_model
        self.d_k = d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = d_v = d_model // num_heads if d_v is None else d_v
        self.widths = (num_heads * d_k, self.num_key_value_heads * d_k, self.num_key_value_heads * d_v)
        self.projection = Linear(d_model, sum(self.widths), bias=bias)
        self.output = Linear(num_heads * d_v, d_model, bias=bias if output_bias is None else output_bias)
        self.dropout = Dropout(dropout)
        self.score = score

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: AttentionMask | Window | None = None,
        cache: KeyValueCache | None = None,
        weights_out: list[Tensor] | None = None,
        position_effect: PositionEffect = NO_POSITION_EFFECT,
    ) -> Tensor:
        """Compute attention from x to itself and the cached past, or from x to the encoder's output.

        Args:
            x: (B, Q, D).
            memory: the encoder's output, (B, S, D); None for self-attention.
            mask: an `AttentionMask` that is broadcastable to (B, H, Q, L), or a boolean tensor of this form, True = may
                attend; or a `Window`, for self-attention without a cache. None: every query attends to every key.
            cache: self-attention appends its keys and values and attends to all cached ones; cross-attention fills an
                empty cache and then reads it.
            weights_out: a list that receives the weights, (B, H, Q, L).
            position_effect: for self-attention: the rotary embedding of queries and keys, and the index of the first
                cached key that is near enough to any query; earlier keys are left out.

        Returns:
            The output projection of all heads' results, (B, Q, D).

        Raises:
            TransduceError: an input has other axes or another dtype, or the mask does not fit.
        """
        if x.dim() != 3:
            self._check_input(x, self.d_model)
        if mask is not None and not isinstance(mask, (AttentionMask, Window)):
            mask = as_attention_mask(mask)
        if memory is None:
            query, key, value = self._project_self(x)
            if position_effect.rotation is not None:
                query, key = position_effect.rotation.apply(query), position_effect.rotation.apply(key)
            if cache is not None:
                key, value = cache.append(key, value)
                if position_effect.first_key:
                    key, value = key[:, :, position_effect.first_key :], value[:, :, position_effect.first_key :]
        else:
            query, key, value = self._project_memory(x, memory, cache)
        heads = self._attend(query, key, value, mask, weights_out)
        joined = heads.transpose(1, 2).flatten(2)  # (B, Q, H × V)
        if joined.shape[:2] != x.shape[:2]:  # PyTorch broadcasts a mask or a memory of too many sentences or queries
            self._check_call(x, memory, mask=mask, cache=cache)
        return self.output(joined)  # type: ignore[no-any-return]

    @override
    def _check_call(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: AttentionMask | Window | None = None,
        cache: KeyValueCache | None = None,
        **options: object,
    ) -> None:
        weight = self.projection.weight
        self._check_input(x, self.d_model, weight)
        if memory is not None:
            self._check_input(memory, self.d_model, weight, name="memory")
            if len(memory) != len(x):
                raise TransduceError(
                    f"`x` and `memory` must have the same batch size, but theirs are {len(x)} and {len(memory)}."
                )
        if mask is None or isinstance(mask, Window):
            return
        shape = as_attention_mask(mask).allowed.shape
        keys = (x if memory is None else memory).shape[1] if cache is None else shape[3]
        axes = (len(x), self.num_heads, x.shape[1], keys)
        if any(size not in (1, axis) for size, axis in zip(shape, axes, strict=True)):
            raise TransduceError(
                f"`mask` of `{type(self).__name__}` must have the size 1 or that of (batch, heads, queries, keys) at "
                f"each axis, here {axes}, but its shape is {tuple(shape)}."
            )

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask | Window | None,
        weights_out: list[Tensor] | None,
    ) -> Tensor:
        """Compute attention of all query heads, each to the key/value head that its group of heads shares.

        Args:
            query: (B, H, Q, K).
            key: (B, G, L, K), for G key/value heads.
            value: (B, G, L, V).
            mask: as in `forward`.
            weights_out: a list that receives the weights, (B, H, Q, L).

        Returns:
            (B, H, Q, V).
        """
        compute: AttentionFunction = attend if self.score is None else self.score
        sharing, queries = self.num_heads // self.num_key_value_heads, query.shape[2]
        if (
            sharing > 1
            and self.score is None
            and weights_out is None
            and not isinstance(mask, Window)
            and _is_of_few_queries(mask, queries, key.shape[2])
        ):
            # The H / G heads that share keys become queries of one head, so that no cached key is copied.
            query = query.reshape(len(query), self.num_key_value_heads, -1, self.d_k)  # (B, G, H / G × Q, K)
            if isinstance(mask, AttentionMask) and queries > 1:
                mask = AttentionMask(mask.allowed.repeat(1, 1, sharing, 1))
            heads = compute(query, key, value, mask, dropout=self.dropout)
            return heads.reshape(len(query), self.num_heads, queries, self.d_v)
        if sharing > 1:
            key, value = (each.repeat_interleave(sharing, dim=1) for each in (key, value))
        if isinstance(mask, Window):
            return attend_in_window(compute, query, key, value, mask, dropout=self.dropout, weights_out=weights_out)
        return compute(query, key, value, mask, dropout=self.dropout, weights_out=weights_out)

    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.projection(x).split(self.widths, dim=-1)
        return self._heads(query, self.d_k), self._heads(key, self.d_k), self._heads(value, self.d_v)

    def _project_memory(self, x: Tensor, memory: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, Tensor, Tensor]:
        query = self._query_heads(x)
        if cache is not None and cache.length:
            return query, *cache.content()
        key, value = self._memory_heads(memory)
        return (query, *cache.set_content(key, value)) if cache is not None else (query, key, value)

    def _query_heads(self, x: Tensor) -> Tensor:
        return self._heads(self._queries(x), self.d_k)

    def _memory_heads(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        key, value = self._keys_and_values(memory).split(self.widths[1:], dim=-1)
        return self._heads(key, self.d_k), self._heads(value, self.d_v)

    def _queries(self, x: Tensor) -> Tensor:
        """Project x to the queries of all heads: (B, Q, D) to (B, Q, H × K)."""
        return self.projection(x, Rows(0, self.widths[0]))  # type: ignore[no-any-return]

    def _keys_and_values(self, memory: Tensor) -> Tensor:
        """Return one tensor of all G key/value heads' keys, then values: (B, S, D) to (B, S, G × K + G × V)."""
        return self.projection(memory, Rows(self.widths[0], sum(self.widths)))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor, width: int) -> Tensor:
        heads = x.view(*x.shape[:-1], x.shape[-1] // width, width)  # (B, L, H × K) -> (B, L, H, K)
        return heads.transpose(1, 2)  # (B, H, L, K)


def _is_of_few_queries(mask: AttentionMask | None, queries: int, keys: int) -> bool:
    """Return whether the queries are those of a decoding step, with the same mask for all heads.

    If so, the query heads that share keys are computed as more queries of one head, without a copy of the keys.
    """
    if type(mask) is not AttentionMask:
        return mask is None and queries == 1
    return mask.allowed.shape[1:3] == (1, queries) and (queries == 1 or queries < keys)


class QueryKeyNormAttention(MultiHeadAttention):
    """Multi-head attention with an RMSNorm of each head's queries and keys, before rotary positions, as in Qwen3.

    The norms bound the scores, so that training stays stable (Henry et al. 2020, "Query-Key Normalization"; Dehghani et
    al. 2023). All heads of a module share one weight for queries and one for keys.
    """

    def __init__(self, *, norm_epsilon: float = 1e-6, **options: Any) -> None:
        """Create the projections and the two norms; other arguments are those of `MultiHeadAttention`.

        Args:
            norm_epsilon: ε of both norms.
            options: the arguments of `MultiHeadAttention`.
        """
        super().__init__(**options)
        self.query_norm = RMSNorm(self.d_k, eps=norm_epsilon)
        self.key_norm = RMSNorm(self.d_k, eps=norm_epsilon)

    @override
    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super()._project_self(x)
        return self.query_norm(query), self.key_norm(key), value

    @override
    def _query_heads(self, x: Tensor) -> Tensor:
        return self.query_norm(super()._query_heads(x))  # type: ignore[no-any-return]

    @override
    def _memory_heads(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        key, value = super()._memory_heads(memory)
        return self.key_norm(key), value


ATTENTIONS: dict[str, type[MultiHeadAttention]] = {
    "multi-head": MultiHeadAttention,
    "query-key-norm": QueryKeyNormAttention,
}
"""The attention classes by their names in the setting `model.attention`."""


def build_attention(config: ModelConfig) -> MultiHeadAttention:
    """Build the multi-head attention module that a configuration describes, with new initial parameters."""
    kind = ATTENTIONS[config.attention]
    norms = {"norm_epsilon": config.norm_epsilon} if issubclass(kind, QueryKeyNormAttention) else {}
    return kind(
        **norms,
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_k=config.key_width,
        d_v=config.value_width,
        num_key_value_heads=config.num_key_value_heads,
        bias=config.has_projection_bias,
        output_bias=config.has_attention_output_bias,
        dropout=config.attention_dropout,
        score=build_score(config, num_heads=config.num_heads, d_k=config.key_width),
    )


# --- key/value caches ---
# Beam search adds W positions to a sentence's row at each step, one for each hypothesis. A mask shows each hypothesis
# its own past (`masks.ancestry_mask`), so that no keys are copied when hypotheses are reordered.


class KeyValueCache:
    """The cached keys and values of one attention module, so that they are computed once for each position."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None  # (B, G, capacity, K)
        self._values: Tensor | None = None  # (B, G, capacity, V)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys (B, G, n, K) and values (B, G, n, V) of n new positions, for G key/value heads.

        Returns:
            All cached keys, (B, G, L, K), and all cached values, (B, G, L, V).
        """
        start, count = self.length, keys.shape[2]
        self._keys = _with_capacity(self._keys, keys, start)
        self._values = _with_capacity(self._values, values, start)
        self._keys.narrow(2, start, count).copy_(keys)
        self._values.narrow(2, start, count).copy_(values)
        self.length = start + count
        return self.content()

    def set_content(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys (B, G, S, K) and values (B, G, S, V) of an encoder's output, and return both tensors.

        The cache of cross-attention does not grow afterwards.
        """
        self._keys, self._values, self.length = keys.contiguous(), values.contiguous(), keys.shape[2]
        return self.content()

    def content(self) -> tuple[Tensor, Tensor]:
        """Return a pair: all cached keys, (B, G, L, K), and all cached values, (B, G, L, V).

        Raises:
            ValueError: the cache is empty.
        """
        if self._keys is None or self._values is None:
            raise ValueError("the cache is empty: append to it first")
        return self._keys.narrow(2, 0, self.length), self._values.narrow(2, 0, self.length)

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the cached keys and values of the sentences at these batch indices, in this order.

        An empty cache stays empty.
        """
        if self._keys is not None and self._values is not None:
            # The whole capacity, or the next step would allocate it again.
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)


def _with_capacity(buffer: Tensor | None, new: Tensor, length: int) -> Tensor:
    """Return a buffer, (B, G, capacity, width), that has space for `length` cached positions and those of `new`.

    If `buffer` is long enough, it is returned. Otherwise the cached positions are copied to a larger one, with twice
    the needed capacity and at least 16 positions. The caller copies `new`.
    """
    batch, heads, count, width = new.shape
    end = length + count
    if buffer is not None and end <= buffer.shape[2]:
        return buffer
    larger = torch.empty(batch, heads, max(16, 2 * end), width, dtype=new.dtype, device=new.device)
    if buffer is not None:
        larger[:, :, :length] = buffer[:, :, :length]
    return larger


class LayerCache:
    """The two KV caches of a decoder layer: self-attention over past positions, and cross-attention to the memory."""

    def __init__(self) -> None:
        self.past = KeyValueCache()
        self.memory = KeyValueCache()


class DecoderCache:
    """The key/value caches of all layers of a decoder, and the cached tokens' positions for models that need them."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]
        self.positions: Tensor | None = None  # (L,), or (B, L) if sentences differ; kept for models that need them

    @property
    def length(self) -> int:
        """The number of positions whose keys and values of self-attention are cached."""
        return self.layers[0].past.length

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the caches and positions of the sentences at these batch indices, in this order."""
        for layer in self.layers:
            layer.past.keep_sentences(rows)
            layer.memory.keep_sentences(rows)
        if self.positions is not None and self.positions.dim() == 2:
            self.positions = self.positions.index_select(0, rows)

    def next_positions(self, ids: Tensor) -> tuple[Tensor, int]:
        """Return the next positions after the cached ones, (T,), for token ids (B, T), and the position after them."""
        end = self.length + ids.shape[1]
        return torch.arange(self.length, end, device=ids.device), end

    def append_positions(self, positions: Tensor) -> Tensor:
        """Add the positions of the next tokens, (n,) or (B, n), and return all positions, (L,) or (B, L)."""
        cached = self.positions
        if cached is None:
            self.positions = positions
        elif cached.dim() == positions.dim():
            self.positions = torch.cat([cached, positions], dim=-1)
        else:
            rows = max(len(part) for part in (cached, positions) if part.dim() == 2)
            self.positions = torch.cat([part.expand(rows, -1) for part in (cached, positions)], dim=-1)
        return self.positions


# --- other scores, and hard attention ---


class AttentionFunction(Protocol):
    """An interface of functions that compute multi-head attention from queries, keys and values, as `attend` does."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask | None = None,
        *,
        dropout: Dropout | None = None,
        weights_out: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the attention output of all heads, (B, H, Q, V): for each query, a weighted sum of the values.

        Args:
            query: (B, H, Q, K).
            key: (B, H, L, K).
            value: (B, H, L, V).
            mask: the keys that each query may attend to, broadcastable to (B, H, Q, L); None: all.
            dropout: applied to the weights.
            weights_out: a list to which the weights, (B, H, Q, L), are appended, before dropout and without a gradient.
        """


class ScoredAttention(nn.Module):
    """Soft or hard attention with the score function that a configuration names.

    `dot`: Q Kᵀ. `general`: Q W Kᵀ with a matrix W for each head; initially it is the scaled dot product. `additive`:
    v · tanh(Q + K) with a vector v for each head; the matrices of Bahdanau et al. 2015 are the projections to Q and K.
    """

    @explain_wrong_types
    def __init__(
        self,
        *,
        score: AttentionScore,
        kind: AttentionKind,
        scale: float | None,
        num_heads: int,
        d_k: int,
    ) -> None:
        """Create the parameters of a score function; the setting in `ModelConfig` is in parentheses.

        Args:
            score: `scaled`, `dot`, `general` or `additive` (`attention_score`).
            kind: `soft`, or `hard`: each query takes the value of its best key alone (`attention_kind`).
            scale: the factor of scaled dot products; None: 1 / √d_k (`attention_scale`). Other scores ignore it.
            num_heads: H, the number of heads.
            d_k: K, the width of one head's queries and keys.
        """
        super().__init__()
        self.hard = kind == "hard"
        # The queries are multiplied by this factor first, because `attend` divides by √d_k.
        root = math.sqrt(d_k)
        self.factor = (1.0 if scale is None else scale * root) if score == "scaled" else root
        self.matrix = nn.Parameter(torch.empty(num_heads, d_k, d_k)) if score == "general" else None
        self.vector = nn.Parameter(torch.empty(num_heads, d_k)) if score == "additive" else None

    def reset_parameters(self) -> None:
        """Set initial weights: the matrices of `general` to I / √d_k, and the vectors of `additive` to random numbers.

        The vectors are small enough that the variance of scores is at most 1.
        """
        with torch.no_grad():
            if self.matrix is not None:
                width = self.matrix.shape[-1]
                self.matrix.copy_(torch.eye(width).expand_as(self.matrix) / math.sqrt(width))
            if self.vector is not None:
                self.vector.normal_(std=1.0 / math.sqrt(self.vector.shape[-1]))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask | None = None,
        *,
        dropout: Dropout | None = None,
        weights_out: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the attention output, (B, H, Q, V), computed with this module's score function.

        Arguments are those of every `AttentionFunction`.
        """
        if isinstance(mask, Tensor):
            mask = as_attention_mask(mask)
        if self.vector is None:
            query = query if self.matrix is None else query @ self.matrix
            if not self.hard:
                return attend(query * self.factor, key, value, mask, dropout=dropout, weights_out=weights_out)
            scores = (query * (self.factor / math.sqrt(query.shape[-1]))) @ key.transpose(-1, -2)  # (B, H, Q, L)
        else:
            sums = query[:, :, :, None] + key[:, :, None]  # (B, H, Q, L, K)
            scores = (sums.tanh() * self.vector[:, None, None]).sum(dim=-1)  # (B, H, Q, L)
        weights = (scores if mask is None else scores + mask.bias(scores.dtype)).softmax(dim=-1)
        if self.hard:
            weights = straight_through(weights)
        if weights_out is not None:
            weights_out.append(weights.detach())
        return torch.matmul(weights if dropout is None else dropout(weights), value)


def straight_through(weights: Tensor) -> Tensor:
    """Make attention weights hard: 1 at the greatest weight of each row (last axis), 0 elsewhere, in the same shape.

    Gradients pass through unchanged, so that hard attention trains as soft attention does.
    """
    best = torch.zeros_like(weights).scatter_(-1, weights.argmax(dim=-1, keepdim=True), 1.0)
    return best + (weights - weights.detach())


SCORES: dict[str, type[ScoredAttention]] = {
    "scaled": ScoredAttention,
    "dot": ScoredAttention,
    "general": ScoredAttention,
    "additive": ScoredAttention,
}
"""A dict from the name of a score, in the setting `model.attention_score`, to the class of its attention module."""


def build_score(config: ModelConfig, *, num_heads: int, d_k: int) -> ScoredAttention | None:
    """Build the attention module for the score function that a configuration names, for heads of width `d_k`.

    The result is None for the paper's soft scaled dot-product attention, which `attend` computes without a module.
    """
    if config.attention_score == "scaled" and config.attention_kind == "soft" and config.attention_scale is None:
        return None
    return SCORES[config.attention_score](
        score=config.attention_score,
        kind=config.attention_kind,
        scale=config.attention_scale,
        num_heads=num_heads,
        d_k=d_k,
    )


# --- attention in a window ---
# A sequence is cut into blocks at least as long as the radius, so that the cost is length × radius. The queries of a
# block attend to the block itself, to the one before it and, unless causal, to the one after it.
# Legend: L positions, N blocks, b positions of a block, s positions that a block sees: 2b or 3b.


_MIN_BLOCK = 32
_MAX_SCORES = 2**20  # 4 MiB in float32: scores stay in the cache of a CPU


class Window(NamedTuple):
    """A limit of self-attention to positions at most `radius` away, passed in place of a mask for long sequences."""

    radius: int
    causal: bool
    """True if positions may not attend to later ones."""
    present: Tensor | None
    """The positions that are not padding, boolean (B, L); None: all."""
    bias: nn.Module | None
    """The module that computes a term of attention scores from positions; None: the model has none."""


def block_length(radius: int) -> int:
    """Return the number of positions in a block of windowed attention: the window's radius, but at least 32."""
    return max(radius, _MIN_BLOCK)


def attend_in_window(
    attend: AttentionFunction,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    *,
    dropout: Dropout | None = None,
    weights_out: list[Tensor] | None = None,
) -> Tensor:
    """Compute attention within a window block by block, equal to `attend` with the window's full mask.

    Args:
        attend: computes the attention of a block.
        query: (B, H, L, K).
        key: (B, H, L, K).
        value: (B, H, L, V).
        window: the keys that each query attends to.
        dropout: applied to the weights.
        weights_out: a list that receives the attention weights, (B, H, L, L), with zeros outside the window.

    Returns:
        (B, H, L, V).
    """
    batch, heads, length, _ = query.shape
    block = block_length(window.radius)
    blocks = -(-length // block)
    padding = blocks * block - length
    after = padding if window.causal else padding + block
    span = block + block if window.causal else 3 * block
    queries = F.pad(query, (0, 0, 0, padding)).unflatten(2, (blocks, block))  # (B, H, N, b, K)
    keys, values = (F.pad(x, (0, 0, block, after)).unfold(2, span, block) for x in (key, value))  # (B, H, N, K, s)
    present = window.present
    if present is None:
        present = torch.ones(batch, length, dtype=torch.bool, device=query.device)
    present = F.pad(present, (block, after))
    outputs: list[Tensor] = []
    parts: list[Tensor] | None = None if weights_out is None else []
    for first, last in _block_ranges(blocks, batch * heads * block * span, query.device):
        # (B × N, H, …) with contiguous rows, as fused kernels require.
        block_queries = queries[:, :, first:last].transpose(1, 2).flatten(0, 1)
        block_keys, block_values = (x[:, :, first:last].transpose(1, 2).mT.flatten(0, 1) for x in (keys, values))
        seen = present[:, first * block : (last - 1) * block + span]
        mask = _block_mask(window, seen, (block, span, length), (first, last))
        part = attend(block_queries, block_keys, block_values, mask, dropout=dropout, weights_out=parts)
        outputs.append(part.unflatten(0, (batch, last - first)))
    if weights_out is not None and parts:
        weights_out.append(
            _as_full_weights(torch.cat([part.unflatten(0, (batch, -1)) for part in parts], dim=1), length)
        )
    joined: Tensor = torch.cat(outputs, dim=1).transpose(1, 2).flatten(2, 3)  # (B, H, N × b, V)
    return joined[:, :, :length]


def _block_ranges(blocks: int, scores: int, device: torch.device) -> Iterable[tuple[int, int]]:
    """Return ranges (first, end) of block indices; attention computes all blocks of a range at once.

    On a CPU, the scores of a range fit in the processor's cache; `scores` is the number of scores of one block. On a
    GPU, one range holds all blocks, so that a compiled layer has no loop.
    """
    if device.type != "cpu":
        return [(0, blocks)]
    at_once = max(1, _MAX_SCORES // scores)
    return [(first, min(blocks, first + at_once)) for first in range(0, blocks, at_once)]


def _block_mask(window: Window, present: Tensor, sizes: tuple[int, int, int], blocks: tuple[int, int]) -> AttentionMask:
    """Return the mask of windowed attention for N consecutive blocks of b queries: (B × N, 1, b, 2b or 3b).

    The queries of a block see the keys of the block before and of their own block. Without a causal mask they also see
    the next block, so there are 3b keys. The mask adds the model's position bias to the scores, if there is one.

    Args:
        window: the window.
        present: True at positions that are not padding, (B, positions). It begins with the block before the first of
            the N blocks. Without a causal mask it ends with the block after the last one.
        sizes: a tuple: the number of queries of a block, b; its number of keys, 2b or 3b; the sequence length.
        blocks: the index of the first of the N blocks, and the index after the last one.
    """
    block, span, length = sizes
    mask = band_mask(block, window.radius, present, causal=window.causal)
    if window.bias is None:
        return mask
    positions = torch.arange(span, device=present.device)
    if type(window.bias) is RelativePositions:  # which only reads distances, equal in all blocks
        return BiasedMask(mask.allowed, window.bias(positions[block : 2 * block], positions))
    starts = torch.arange(*blocks, device=present.device)[:, None] * block
    # The mask hides keys outside the sequence, for which a table of positions may have no row.
    queries, keys = (starts + each for each in (positions[:block], positions - block))
    bias = window.bias(queries.clamp_max(length - 1), keys.clamp(0, length - 1))  # (N or 1, H, b, 2b or 3b)
    return BiasedMask(mask.allowed, bias.repeat(len(mask.allowed) // len(bias), 1, 1, 1))


def _as_full_weights(weights: Tensor, length: int) -> Tensor:
    """Convert attention weights of N blocks, (B, N, H, queries, keys), to weights over all keys, (B, H, L, L).

    A key that a query's block does not see has weight 0. `length` is L; the padding of the last block is cut off.
    """
    batch, blocks, heads, block, span = weights.shape
    full = weights.new_zeros(batch, heads, blocks * block, (blocks - 1) * block + span)
    for number in range(blocks):
        start = number * block
        full[:, :, start : start + block, start : start + span] = weights[:, number]
    return full[:, :, :length, block : block + length]
