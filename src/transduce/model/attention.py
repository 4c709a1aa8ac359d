"""Multi-head attention (section 3.2.2): the only one there is.

It serves training and decoding, self-attention and attention to the memory, with any score (`scores.py`).
Legend: B batch, Q queries, L keys, D model width, H heads, G heads of keys and values, K width of a key, V width of a
value.
"""

from typing import NamedTuple

from torch import Tensor, nn

from transduce.model.attend import attend
from transduce.model.cache import KeyValueCache
from transduce.model.config import ModelConfig
from transduce.model.dropout import Dropout
from transduce.model.fused import Rows, training_kernels
from transduce.model.linear import Linear, linear
from transduce.model.masks import AttentionMask, LookAheadMask
from transduce.model.packing import PackedMask
from transduce.model.positions import EVERYWHERE, Reach, Rotation
from transduce.model.scores import Attend, ScoredAttention, build_score
from transduce.model.window import Window, attend_in_window


class AttentionTrace:
    """Collects attention weights. Handing one in is how they are asked for; without it they may never exist."""

    def __init__(self) -> None:
        self.encoder: list[Tensor] = []
        self.decoder: list[Tensor] = []
        self.memory: list[Tensor] = []


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each over its own projection of queries, keys and values.

    The projections stand in one matrix, rows [queries; keys; values], so that self-attention takes one product. With
    fewer heads of keys and values, neighbouring heads of queries share one of them, and a cache holds only those.
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
        """As `ModelConfig` names them; a score of None is the scaled dot product, an output bias of None is `bias`."""
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
        mask: AttentionMask | Window | PackedMask | None = None,
        cache: KeyValueCache | None = None,
        weights_to: list[Tensor] | None = None,
        reach: Reach = EVERYWHERE,
    ) -> Tensor:
        """Attention of x to itself and what the cache holds of the past, or to the memory.

        Args:
            x: (B, Q, D).
            memory: the encoder's output, (B, S, D); None for self-attention.
            mask: broadcastable to (B, H, Q, L); or a window, for self-attention without a past; or where the sentences
                of a packed batch stand, for kernels that were asked.
            cache: self-attention appends to it and attends to all of it; attention to the memory fills it once and
                then reads it.
            weights_to: a list that receives the weights, (B, H, Q, L).
            reach: of self-attention: turns queries and keys by their positions, and leaves out what is too far away.

        Returns:
            (B, Q, D).
        """
        if isinstance(mask, PackedMask):
            return self.output(self._attend_packed(x, memory, mask))  # type: ignore[no-any-return]
        if weights_to is None and cache is None:
            joined = self._attend_fused(x, memory, mask, reach.rotation)
            if joined is not None:
                return self.output(joined)  # type: ignore[no-any-return]
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
        if self.num_key_value_heads == self.num_heads:
            heads = self._attend(query, key, value, mask, weights_to)
        elif self._can_fold(query, mask, weights_to):
            folded = query.reshape(len(query), self.num_key_value_heads, -1, self.d_k)
            heads = self._attend(folded, key, value, mask, None).reshape(len(query), self.num_heads, 1, self.d_v)
        else:
            heads = self._attend(query, self._share(key), self._share(value), mask, weights_to)
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
        compute: Attend = attend if self.score is None else self.score
        if isinstance(mask, Window):
            return attend_in_window(compute, query, key, value, mask, dropout=self.dropout, weights_to=weights_to)
        return compute(query, key, value, mask, dropout=self.dropout, weights_to=weights_to)

    def _attend_fused(
        self, x: Tensor, memory: Tensor | None, mask: AttentionMask | Window | None, rotation: Rotation | None
    ) -> Tensor | None:
        """Context by kernels of our own, (B, Q, H × V), where there are some that do just this."""
        kernels, others = training_kernels(), x if memory is None else memory
        if kernels is None or not self.is_plain or not kernels.suits_attention(x, others.shape[1], self.d_k):
            return None
        known = kernel_lengths(x, memory, mask)
        if known is None:
            return None
        if rotation is not None and (rotation.cosine.dim() > 2 or not kernels.suits_turning(x, self.d_k)):
            return None
        if memory is None:
            projected = self.projection(x)
            if rotation is not None:
                projected = kernels.turn(projected, rotation, 2 * self.num_heads)
            return kernels.attend(projected, None, known.lengths, self.num_heads)
        return kernels.attend(self._queries(x), self._keys_and_values(memory), known.lengths, self.num_heads)

    def _attend_packed(self, x: Tensor, memory: Tensor | None, mask: PackedMask) -> Tensor:
        """Context of a packed batch, (1, Q, H × V)."""
        kernels = training_kernels()
        if kernels is None or kernels.packed is None:
            raise ValueError("a packed batch is for kernels that take one")
        if memory is None:
            return kernels.packed.attend(self.projection(x), None, mask, self.num_heads)
        return kernels.packed.attend(self._queries(x), self._keys_and_values(memory), mask, self.num_heads)

    @property
    def is_plain(self) -> bool:
        """Scaled products of as many keys as queries, nothing dropped."""
        drops = self.dropout.training and self.dropout.drop_of_256
        return self.score is None and len(set(self.widths)) == 1 and not drops

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
        """(B, Q, D) to (B, Q, H × K)."""
        return linear(x, self.projection.weight, self.projection.bias, rows=Rows(0, self.widths[0]))

    def _keys_and_values(self, memory: Tensor) -> Tensor:
        """(B, S, D) to (B, S, G × K + G × V)."""
        rows = Rows(self.widths[0], sum(self.widths))
        return linear(memory, self.projection.weight, self.projection.bias, rows=rows)

    def _heads(self, x: Tensor, width: int) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, width))  # (B, L, H × K) -> (B, L, H, K)
        return heads.transpose(1, 2)  # (B, H, L, K)

    def _can_fold(self, query: Tensor, mask: AttentionMask | Window | None, weights_to: list[Tensor] | None) -> bool:
        """Whether heads that share keys can stand as queries of one head, so that a step need not copy all its keys."""
        if query.shape[2] != 1 or self.score is not None or weights_to is not None:
            return False
        return mask is None or (type(mask) is AttentionMask and mask.allowed.shape[1:3] == (1, 1))

    def _share(self, x: Tensor) -> Tensor:
        """Keys or values of G heads for all H: (B, G, L, K) to (B, H, L, K)."""
        return x.repeat_interleave(self.num_heads // self.num_key_value_heads, dim=1)


class KeyLengths(NamedTuple):
    """How kernels are told who attends to whom."""

    lengths: Tensor | None
    """Keys of each sentence, int64, (B,); None: no position sees what follows it."""


def kernel_lengths(x: Tensor, memory: Tensor | None, mask: object) -> KeyLengths | None:
    """Of attention of x, (B, Q, D), to itself or to a memory, (B, S, D); None where the mask says something else."""
    if memory is None and isinstance(mask, LookAheadMask):
        return KeyLengths(None)
    num_keys = (x if memory is None else memory).shape[1]
    if not isinstance(mask, AttentionMask) or mask.allowed.shape[-1] != num_keys or mask.lengths is None:
        return None
    if len(mask.lengths) not in (1, len(x)) or (memory is not None and len(memory) != len(x)):
        return None
    return KeyLengths(mask.lengths.expand(len(x)).contiguous())


def build_attention(config: ModelConfig) -> MultiHeadAttention:
    """The attention brick that the configuration describes."""
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
