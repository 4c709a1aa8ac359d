"""Make attention masks, which define the positions that each query may attend to; all are made in this module.

A mask is boolean, True = may attend, and broadcasts to (B, H, Q, K): batch, heads, queries, keys. It becomes a term
that is added to the scores before the softmax: 0 where the mask is True, the lowest finite number where it is False. A
query that may attend to nothing thereby gets uniform weights instead of NaN.
"""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from transduce.errors import TransduceError


class AttentionMask:
    """A boolean attention mask, with the term that it adds to the scores, computed once for each dtype."""

    def __init__(self, allowed: Tensor) -> None:
        """Wrap a boolean tensor that is True where a query may attend to a key.

        Args:
            allowed: broadcastable to (batch, heads, queries, keys), with these four axes: (B, 1, 1, K) hides padding
                from all queries, (1, 1, Q, K) is the same for all sentences.

        Raises:
            TransduceError: the tensor is not boolean, or does not have four axes.
        """
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool or allowed.dim() != 4:
            raise TransduceError(_why_not_a_mask(allowed))
        self.allowed = allowed
        self._bias: dict[torch.dtype, Tensor] = {}

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return the term to add to attention scores: 0 where attention is allowed, else the dtype's lowest number.

        The term has the mask's shape and is stored for the next call.
        """
        if dtype not in self._bias:
            blocked = torch.zeros(self.allowed.shape, dtype=dtype, device=self.allowed.device)
            self._bias[dtype] = blocked.masked_fill(~self.allowed, torch.finfo(dtype).min)  # as `torch.vmap` demands
        return self._bias[dtype]

    @cached_property
    def lengths(self) -> Tensor | None:
        """The number of keys that each sentence may attend to, int64, (B,); None if the mask is not plain padding.

        Plain padding hides keys at the right, from all queries alike, and leaves each sentence at least one key. The
        values are read from the mask's device, which stalls a GPU: use this on a CPU only.
        """
        if self.allowed.shape[1:3] != (1, 1):
            return None
        keys = self.allowed[:, 0, 0]
        counts = keys.sum(dim=1)
        expected = torch.arange(keys.shape[1], device=keys.device) < counts[:, None]
        return counts if bool((counts > 0).all()) and torch.equal(expected, keys) else None

    def __and__(self, other: "AttentionMask") -> "AttentionMask":
        """Return the mask that allows attention where both masks do; it has the sum of their additional score terms."""
        if isinstance(other, BiasedMask):
            return other & self
        return AttentionMask(self.allowed & other.allowed)

    def from_key(self, first: int) -> "AttentionMask":
        """Return this mask without the keys before the index `first`.

        A mask whose only column stands for all keys (an axis of size 1 that is broadcast) keeps this column.
        """
        return AttentionMask(_from_key(self.allowed, first))


def _why_not_a_mask(value: object) -> str:
    rule = (
        "A mask must be a boolean tensor with the axes (batch, heads, queries, keys), True where a query may attend to "
        "a key"
    )
    if not isinstance(value, Tensor):
        return f"{rule}, but this one is a `{type(value).__name__}`."
    actual = f"{rule}, but this one is of the type {value.dtype} and the shape {tuple(value.shape)}"
    if value.dtype.is_floating_point:
        return f"{actual}: pass `mask == 0` for a mask that is added to scores."
    if value.dtype != torch.bool:
        return f"{actual}: pass `mask != 0` if 1 stands for may attend."
    if value.dim() == 2:
        return (
            f"{actual}: pass `mask[None, None]` for (queries, keys), `mask[:, None, None]` for (batch, keys), and "
            "`~mask` if True means hidden, as in `torch.nn.MultiheadAttention`."
        )
    return f"{actual}: insert the missing axes by `None`."


def as_attention_mask(mask: object) -> AttentionMask:
    """Return an `AttentionMask` unchanged; wrap a boolean tensor, with the axes (batch, heads, queries, keys), in one.

    Raises:
        TransduceError: the argument is neither.
    """
    if isinstance(mask, AttentionMask):
        return mask
    return AttentionMask(mask)  # type: ignore[arg-type]


class LookAheadMask(AttentionMask):
    """A lower triangular mask: each position attends to itself and to earlier positions; no key is padding."""


class BiasedMask(AttentionMask):
    """A mask with an additional term for the scores where attention is allowed, such as T5's relative bias."""

    def __init__(self, allowed: Tensor, term: Tensor, base: AttentionMask | None = None) -> None:
        """Combine a boolean mask and a term to add to the scores, both broadcastable to (B, H, Q, K).

        `base` is the `AttentionMask` that `allowed` comes from, if there is one.
        """
        super().__init__(allowed)
        self.term, self.base = term, base
        self._sum: dict[torch.dtype, Tensor] = {}

    @property
    def lengths(self) -> None:
        """None, because numbers of keys cannot express the mask's additional score term."""
        return None

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return the boolean mask's term plus the additional term, in one broadcast shape.

        The boolean mask's term is 0, or the lowest number where a key is hidden.
        """
        if dtype not in self._sum:
            self._sum[dtype] = super().bias(dtype) + self.term.to(dtype)
        return self._sum[dtype]

    @override
    def __and__(self, other: AttentionMask) -> "BiasedMask":
        term = self.term + other.term if isinstance(other, BiasedMask) else self.term
        return BiasedMask(self.allowed & other.allowed, term)

    @override
    def from_key(self, first: int) -> "BiasedMask":
        return BiasedMask(_from_key(self.allowed, first), _from_key(self.term, first))


def _from_key(tensor: Tensor, first: int) -> Tensor:
    return tensor if tensor.shape[-1] == 1 else tensor[..., first:]


def padding_mask(ids: Tensor, pad_id: int) -> AttentionMask:
    """Return the mask that hides padding from all queries.

    Args:
        ids: token ids, (B, K).
        pad_id: the id that fills short rows.

    Returns:
        A mask of shape (B, 1, 1, K).
    """
    return AttentionMask((ids != pad_id)[:, None, None, :])


def look_ahead_mask(length: int, device: torch.device | None = None, *, cached: int = 0) -> AttentionMask:
    """Return the mask by which position i attends to positions 0 … i, never to the future (section 3.2.3).

    Args:
        length: T, the number of queries.
        device: the device of the mask.
        cached: C, the number of positions before the first query; every query may attend to them.

    Returns:
        A mask of shape (1, 1, T, C + T); with C = 0 the lower triangle with its diagonal.
    """
    allowed = torch.ones(length, cached + length, dtype=torch.bool, device=device).tril_(cached)
    return AttentionMask(allowed[None, None]) if cached else LookAheadMask(allowed[None, None])


def target_mask(target_input_ids: Tensor, pad_id: int) -> AttentionMask:
    """Return the mask of the decoder's self-attention, which hides later positions and padding.

    The first position always counts, because the start symbol may be the padding id (Pegasus, T5, Marian).

    Args:
        target_input_ids: start symbol and target token ids, padded at the right, (B, T).
        pad_id: the id that fills short rows.

    Returns:
        A mask of shape (B, 1, T, T).
    """
    present = present_positions(target_input_ids, pad_id)
    return AttentionMask(present[:, None, None, :]) & look_ahead_mask(
        target_input_ids.shape[1], target_input_ids.device
    )


def ancestry_mask(ancestors: Tensor) -> AttentionMask:
    """Return the mask by which each of W hypotheses attends to the cached positions of its own past.

    Args:
        ancestors: True where the cached position l belongs to the past of hypothesis w, (B, W, L).

    Returns:
        A mask of shape (B, 1, W, L).
    """
    return AttentionMask(ancestors[:, None])


def window_mask(query_positions: Tensor, key_positions: Tensor, radius: int) -> AttentionMask:
    """Return the mask by which each query attends to keys at most `radius` positions away, on either side.

    Args:
        query_positions: (Q,), or (B, Q) if sentences differ.
        key_positions: (K,) or (B, K).
        radius: r.

    Returns:
        A mask of shape (1 or B, 1, Q, K).
    """
    near = (key_positions[..., None, :] - query_positions[..., :, None]).abs() <= radius  # (Q, K) or (B, Q, K)
    return AttentionMask(near[:, None] if near.dim() == 3 else near[None, None])


def band_mask(block: int, radius: int, present: Tensor, *, causal: bool) -> AttentionMask:
    """Return the mask of windowed attention for N blocks of queries, which see their own and neighboring blocks.

    Args:
        block: b, the number of queries in a block; at least the radius.
        radius: the greatest distance of a key that a query attends to.
        present: True at positions that are not padding, (B, positions). It covers the block before the first one and
            then the N blocks. If not causal, one more block follows at the end.
        causal: True if no query sees later positions. A block then sees only itself and the block before it.

    Returns:
        A mask of shape (B × N, 1, b, 2b), or (B × N, 1, b, 3b) if not causal.
    """
    span = 2 * block if causal else 3 * block
    keys = torch.arange(-block, span - block, device=present.device)
    distance = keys - torch.arange(block, device=present.device)[:, None]  # (b, span)
    near = (distance.abs() <= radius) & (distance <= 0) if causal else distance.abs() <= radius
    exists = present.unfold(1, span, block).flatten(0, 1)  # (B, N, span) -> (B × N, span)
    return AttentionMask((near & exists[:, None])[:, None])


def present_positions(ids: Tensor, pad_id: int) -> Tensor:
    """Return a boolean tensor of the positions that are not padding, (B, T), for token ids (B, T).

    The first position always counts, because the start symbol may be the padding id.
    """
    present = ids != pad_id
    present[:, 0] = True
    return present


# --- packed batches ---
# A GPU trains on sentences one after another without padding. Only attention depends on more than one position, so a
# batch (B, T) can be one row of its N tokens; the start and the length of each sentence replace its mask.
# Legend: B sentences, S source length, T target length, M source tokens of all sentences, N target tokens of all.


class Packing(NamedTuple):
    """The positions of the sentences in a packed batch, whose sentences are concatenated without padding."""

    starts: Tensor
    """The index of each sentence's first token, int32, (B,)."""
    counts: Tensor
    """The number of tokens of each sentence, at least one, int32, (B,)."""
    positions: Tensor
    """The position of each of the N tokens in its sentence, int64, (N,)."""
    max_length: int
    """The number of tokens of the longest sentence."""


class PackedMask(NamedTuple):
    """A mask for batches without padding, in which each query attends to keys of its own sentence only.

    If `causal` is True, a query does not attend to later positions of the sentence either.
    """

    queries: Packing
    keys: Packing
    causal: bool = False


class PackedBatch(NamedTuple):
    """A batch of sentence pairs without padding: each side's sentences are concatenated into one sequence."""

    source: Tensor
    """Source token ids of all sentences, M in total, int64, (1, M)."""
    source_packing: Packing
    target_input: Tensor
    """The decoder's input: the target shifted right by the start symbol, N tokens in total, int64, (1, N)."""
    target_packing: Packing
    labels: Tensor
    """The token ids to predict: the targets of all sentences, N tokens in total, int64, (1, N)."""
    present: Tensor | None = None
    """True at the labels that count in the loss, (N,), if padding fills the sequences up to a common length; None: all
    labels count.
    """
