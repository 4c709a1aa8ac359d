"""Multi-head attention (section 3.2.2), for training and decoding, self-attention and cross-attention.

Legend: B batch, Q queries, L keys, S source length, D model width, H query heads, G key/value heads, K width of a key,
V width of a value.
"""

import torch
from torch import Tensor

from transduce.model.backend import Component, Rows
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import Dropout, Linear
from transduce.model.masks import AttentionMask
from transduce.model.positions import EVERYWHERE, Reach
from transduce.model.scores import Attend, ScoredAttention, attend, build_score
from transduce.model.window import Window, attend_in_window

# --- cache ---
# The cache of keys and values that lets each decoding step compute only its newest position.
# Hypotheses of one sentence share a row: beam search adds W positions to it in each step, and a mask shows each
# hypothesis its own ones (`masks.ancestry_mask`). Nothing is therefore copied when hypotheses are reordered.
# Legend: B sentences, H heads, L cached positions, K width of a key, V width of a value.


class KeyValueCache:
    """The cached keys and values of one attention."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None  # (B, H, capacity, K)
        self._values: Tensor | None = None  # (B, H, capacity, V)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add positions, (B, H, n, K) and (B, H, n, V), and return all cached keys and values in order."""
        end = self.length + keys.shape[2]
        self._keys = _with_capacity(self._keys, keys, self.length, end)
        self._values = _with_capacity(self._values, values, self.length, end)
        self._keys[:, :, self.length : end] = keys
        self._values[:, :, self.length : end] = values
        self.length = end
        return self.content()

    def hold(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of a memory, which does not grow, and return them."""
        self._keys, self._values, self.length = keys.contiguous(), values.contiguous(), keys.shape[2]
        return self.content()

    def content(self) -> tuple[Tensor, Tensor]:
        """Return all cached keys (B, H, L, K) and values (B, H, L, V)."""
        if self._keys is None or self._values is None:
            raise ValueError("the cache is empty: append to it first")
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; the other sentences are finished."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(
                0, rows
            )  # the whole capacity, or the next step would allocate it again
            self._values = self._values.index_select(0, rows)


def _with_capacity(buffer: Tensor | None, new: Tensor, length: int, end: int) -> Tensor:
    """Return a buffer with capacity for `end` positions that starts with the first `length` of the old buffer."""
    if buffer is not None and end <= buffer.shape[2]:
        return buffer
    batch, heads, _, width = new.shape
    larger = torch.empty(batch, heads, max(16, 2 * end), width, dtype=new.dtype, device=new.device)
    if buffer is not None:
        larger[:, :, :length] = buffer[:, :, :length]
    return larger


class LayerCache:
    """The two caches of a decoder layer: past positions, and the memory, which is projected once for each sentence."""

    def __init__(self) -> None:
        self.past = KeyValueCache()
        self.memory = KeyValueCache()


class DecoderCache:
    """The caches of all layers of a decoder."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]
        self.positions: Tensor | None = None  # (L,), or (B, L) if sentences differ; kept for models that need them

    @property
    def length(self) -> int:
        """Return the number of cached positions."""
        return self.layers[0].past.length

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        for layer in self.layers:
            layer.past.keep_sentences(rows)
            layer.memory.keep_sentences(rows)
        if self.positions is not None and self.positions.dim() == 2:
            self.positions = self.positions.index_select(0, rows)

    def next_positions(self, ids: Tensor) -> Tensor:
        """Return the positions of token ids (B, T) that continue the cached ones: (T,)."""
        return torch.arange(self.length, self.length + ids.shape[1], device=ids.device)

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


# --- attention ---


class AttentionTrace:
    """A collector of attention weights: a model that is called with one appends each layer's weights to its lists."""

    def __init__(self) -> None:
        self.encoder: list[Tensor] = []
        self.decoder: list[Tensor] = []
        self.memory: list[Tensor] = []


class MultiHeadAttention(Component):
    """H attention heads, each over its own projection of queries, keys and values.

    The projections are one matrix with the rows [queries; keys; values], so that self-attention takes one matrix
    multiplication. With fewer key/value heads (grouped-query attention), neighboring query heads share one of them, and
    a cache holds only those.
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        d_k: int,
        d_v: int,
        num_key_value_heads: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        dropout: float = 0.0,
        score: ScoredAttention | None = None,
    ) -> None:
        """Create the projections; arguments are named as in `ModelConfig`.

        A `score` of None is the scaled dot product, and an `output_bias` of None is the value of `bias`.
        """
        super().__init__()
        self.num_heads = num_heads
        self.num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        self.d_k = d_k
        self.d_v = d_v
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
        weights_to: list[Tensor] | None = None,
        reach: Reach = EVERYWHERE,
    ) -> Tensor:
        """Attend from x to itself and the cached past, or to the memory.

        Args:
            x: (B, Q, D).
            memory: the encoder's output, (B, S, D); None for self-attention.
            mask: broadcastable to (B, H, Q, L); or a window, for self-attention without a cache.
            cache: self-attention appends its keys and values and attends to all cached ones; cross-attention fills an
                empty cache and then reads it.
            weights_to: a list that receives the weights, (B, H, Q, L).
            reach: the rotary embedding of self-attention, and the first cached key that is near enough.

        Returns:
            (B, Q, D).
        """
        if memory is None:
            query, key, value = self._project_self(x)
            if reach.rotation is not None:
                query, key = reach.rotation.apply(query), reach.rotation.apply(key)
            if cache is not None:
                key, value = cache.append(key, value)
                if reach.first_key:
                    key, value = key[:, :, reach.first_key :], value[:, :, reach.first_key :]
        else:
            query, key, value = self._project_memory(x, memory, cache)
        heads = self._attend(query, key, value, mask, weights_to)
        joined = heads.transpose(1, 2).flatten(2)  # (B, Q, H × V)
        return self.output(joined)  # type: ignore[no-any-return]

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask | Window | None,
        weights_to: list[Tensor] | None,
    ) -> Tensor:
        """Attend with H heads of queries to G heads of keys and values: (B, H, Q, K) to (B, H, Q, V)."""
        groups, one_query = self.num_key_value_heads, query.shape[2] == 1
        if groups == self.num_heads:
            return self._attend_by_head(query, key, value, mask, weights_to)
        if one_query and self.score is None and weights_to is None and _hides_keys_from_all(mask):
            # The H / G heads that share keys become queries of one head, so that no cached key is copied.
            query = query.reshape(len(query), groups, -1, self.d_k)  # (B, G, H / G, K)
            heads = self._attend_by_head(query, key, value, mask, None)
            return heads.reshape(len(query), self.num_heads, 1, self.d_v)
        key, value = (each.repeat_interleave(self.num_heads // groups, dim=1) for each in (key, value))
        return self._attend_by_head(query, key, value, mask, weights_to)

    def _attend_by_head(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask | Window | None,
        weights_to: list[Tensor] | None,
    ) -> Tensor:
        """Attend with each head to its own keys and values, by the score that was configured."""
        compute: Attend = attend if self.score is None else self.score
        if isinstance(mask, Window):
            return attend_in_window(compute, query, key, value, mask, dropout=self.dropout, weights_to=weights_to)
        return compute(query, key, value, mask, dropout=self.dropout, weights_to=weights_to)

    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.projection(x).split(self.widths, dim=-1)
        return self._heads(query, self.d_k), self._heads(key, self.d_k), self._heads(value, self.d_v)

    def _project_memory(self, x: Tensor, memory: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, Tensor, Tensor]:
        query = self._heads(self._queries(x), self.d_k)
        if cache is not None and cache.length:
            return query, *cache.content()
        key, value = self._keys_and_values(memory).split(self.widths[1:], dim=-1)
        key, value = self._heads(key, self.d_k), self._heads(value, self.d_v)
        return (query, *cache.hold(key, value)) if cache is not None else (query, key, value)

    def _queries(self, x: Tensor) -> Tensor:
        """Project queries: (B, Q, D) to (B, Q, H × K)."""
        return self.projection(x, Rows(0, self.widths[0]))  # type: ignore[no-any-return]

    def _keys_and_values(self, memory: Tensor) -> Tensor:
        """Project keys and values of the memory: (B, S, D) to (B, S, G × K + G × V)."""
        return self.projection(memory, Rows(self.widths[0], sum(self.widths)))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor, width: int) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, width))  # (B, L, H × K) -> (B, L, H, K)
        return heads.transpose(1, 2)  # (B, H, L, K)


def _hides_keys_from_all(mask: AttentionMask | Window | None) -> bool:
    """Return whether the mask hides the same keys from all heads and queries of a sentence."""
    return mask is None or (type(mask) is AttentionMask and mask.allowed.shape[1:3] == (1, 1))


def build_attention(config: ModelConfig) -> MultiHeadAttention:
    """Build the attention that a configuration describes."""
    return MultiHeadAttention(
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_k=config.key_width,
        d_v=config.value_width,
        num_key_value_heads=config.num_key_value_heads,
        bias=config.bias if config.projection_bias is None else config.projection_bias,
        output_bias=config.bias if config.attention_output_bias is None else config.attention_output_bias,
        dropout=config.attention_dropout,
        score=build_score(config, num_heads=config.num_heads, d_k=config.key_width),
    )
