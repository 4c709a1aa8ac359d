"""Random masking of tokens that a model learns to predict (Devlin et al. 2019, section 3.1).

All random numbers are a pure function of a key, so any batch of any epoch can be made without those before it.
Legend: B rows, L tokens of a row.
"""

import math
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]


class MaskingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of which tokens are masked, and how."""

    share: float = 0.15
    """Share of a row's tokens that the model must predict; at least one token."""
    masked: float = 0.8
    """Share of the tokens to predict that are replaced by the mask token."""
    random: float = 0.1
    """Share of the tokens to predict that are replaced by random tokens; the rest stays unchanged."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise TransduceError(f"`task.masking.share` must be between 0 and 1, but is {self.share}.")
        if not (self.masked >= 0.0 and self.random >= 0.0 and self.masked + self.random <= 1.0 + 1e-9):
            raise TransduceError(
                "`task.masking.masked` and `task.masking.random` are shares of predicted tokens, 1 together at most, "
                f"but are {self.masked} and {self.random}."
            )


class Masked(NamedTuple):
    """The model's input and the tokens it must predict."""

    ids: Ids
    """The input tokens, (B, L)."""
    labels: Ids
    """The original token where one must be predicted, otherwise the padding id, (B, L)."""


def mask_tokens(
    ids: Ids,
    maskable: Flags,
    uniform: NDArray[np.float64],
    settings: MaskingSettings,
    *,
    mask_id: int,
    pad_id: int,
    ordinary: Ids,
) -> Masked:
    """Mask an equal share of every row.

    Args:
        ids: tokens, (B, L).
        maskable: which of them are neither special tokens nor padding, (B, L).
        uniform: random numbers in [0, 1), three for every token: (3, B, L).
        settings: how many tokens to mask, and how.
        mask_id: the mask token.
        pad_id: the label where there is nothing to predict.
        ordinary: the tokens from which random replacements are drawn.
    """
    order, kind, other = uniform
    hidden = maskable & (
        _ranks(np.where(maskable, order, np.inf)) < masked_counts(maskable.sum(axis=1), settings.share)[:, None]
    )
    masked = hidden & (kind < settings.masked)
    replaced = hidden & ~masked & (kind < settings.masked + settings.random)
    drawn = ordinary[(other * len(ordinary)).astype(np.int64)]
    return Masked(
        ids=np.where(masked, mask_id, np.where(replaced, drawn, ids)),
        labels=np.where(hidden, ids, pad_id),
    )


def masked_counts(candidates: Ids, share: float) -> Ids:
    """Return how many tokens of each row are masked: the rounded share, but at least one if any may be."""
    counts: Ids = np.minimum(candidates, np.maximum(1, np.rint(candidates * share).astype(np.int64)))
    return counts


def _ranks(values: NDArray[np.float64]) -> Ids:
    """Return the rank of each value in its row, 0 for the smallest."""
    ranks: Ids = values.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return ranks


def draw_uniform(shape: tuple[int, ...], *key: int) -> NDArray[np.float64]:
    """Return random numbers in [0, 1) that depend only on the key.

    They are the raw bits of a counter-based generator (Philox), which numpy keeps stable across versions.
    """
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(math.prod(shape))
    numbers: NDArray[np.float64] = ((bits >> np.uint64(11)) * np.float64(2.0**-53)).reshape(shape)
    return numbers
