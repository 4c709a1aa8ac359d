"""Pieces hidden at random for a model to find again (Devlin et al. 2019, section 3.1).

All that is drawn is a pure function of a key, so any batch of any epoch can be made without those before it.
Legend: B rows, L pieces of a row.
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
    """What is hidden, and how."""

    # Share of a row's pieces that are to be found again; one piece at least.
    share: float = 0.15
    # Share of these that the mask replaces.
    masked: float = 0.8
    # Share of these that any piece replaces, drawn at random; what is neither stays as it is.
    random: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise TransduceError(f"`task.masking.share` must be between 0 and 1, but is {self.share}.")
        if not (self.masked >= 0.0 and self.random >= 0.0 and self.masked + self.random <= 1.0 + 1e-9):
            raise TransduceError(
                "`task.masking.masked` and `task.masking.random` are shares of what is hidden, 1 together at most, "
                f"but are {self.masked} and {self.random}."
            )


class Masked(NamedTuple):
    """What a model reads, and what it is to find."""

    ids: Ids
    """(B, L)."""
    labels: Ids
    """The piece that stood there, where one is to be found; elsewhere the padding id. (B, L)."""


def mask_pieces(
    ids: Ids,
    may_hide: Flags,
    uniform: NDArray[np.float64],
    settings: MaskingSettings,
    *,
    mask_id: int,
    pad_id: int,
    ordinary: Ids,
) -> Masked:
    """Hides the same share of every row.

    Args:
        ids: pieces, (B, L).
        may_hide: which of them are no special pieces and no padding, (B, L).
        uniform: numbers in [0, 1), three for every piece: (3, B, L).
        settings: how many, and how.
        mask_id: of the mask.
        pad_id: the label where there is nothing to find.
        ordinary: the pieces that one is replaced by at random.
    """
    order, kind, other = uniform
    hidden = may_hide & (
        _ranks(np.where(may_hide, order, np.inf)) < hidden_counts(may_hide.sum(axis=1), settings.share)[:, None]
    )
    masked = hidden & (kind < settings.masked)
    replaced = hidden & ~masked & (kind < settings.masked + settings.random)
    drawn = ordinary[(other * len(ordinary)).astype(np.int64)]
    return Masked(
        ids=np.where(masked, mask_id, np.where(replaced, drawn, ids)),
        labels=np.where(hidden, ids, pad_id),
    )


def hidden_counts(there: Ids, share: float) -> Ids:
    """How many pieces of each row are hidden, of those that may be: the share, rounded; one, where there is any."""
    counts: Ids = np.minimum(there, np.maximum(1, np.rint(there * share).astype(np.int64)))
    return counts


def _ranks(values: NDArray[np.float64]) -> Ids:
    """Each value's place among those of its row, from the least."""
    ranks: Ids = values.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return ranks


def draw_uniform(shape: tuple[int, ...], *key: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) that depend on the key alone.

    Made of a counter-based generator's raw bits (Philox), whose stream numpy keeps the same in all versions.
    """
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(math.prod(shape))
    numbers: NDArray[np.float64] = ((bits >> np.uint64(11)) * np.float64(2.0**-53)).reshape(shape)
    return numbers
