"""Is an exported encoder the one that it came from? States and what heads make of them, number by number.

Legend: L pieces of a row, V vocabulary, D model width, C classes.
"""

import math
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError
from transduce.interop.exported import ExportedEncoder, Ids
from transduce.runtime.comparison import TOLERANCE

_ROWS_AT_ONCE = 16
_CHOICES = ("logits", "classes")


class EncoderAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far two encoders agree."""

    texts: int
    """Compared."""
    largest_differences: dict[str, float]
    """Of each output that both have: states, logits of pieces, the pooled state, logits of classes."""
    largest_difference: float
    """Of all of them."""
    same_choices: int
    """Texts with the same best piece at each place and the same best class, ties aside."""

    def lines(self, name: str) -> list[str]:
        """What people read, of the weights that are called so."""
        each = ", ".join(f"{output} {value:.2g}" for output, value in self.largest_differences.items())
        return [
            f"{name}: largest differences of {each}",
            f"{name}: {self.same_choices:,} of {self.texts:,} texts have the same best pieces and classes",
        ]


class _Worst(NamedTuple):
    """The number of an output that differs most, beside what is allowed."""

    excess: float
    ours: float
    theirs: float
    text: int


class EncoderComparison:
    """Every output of every text."""

    def __init__(self) -> None:
        self._worst: dict[str, _Worst] = {}
        self._largest: dict[str, float] = {}
        self._agreeing: list[bool] = []

    def add(self, name: str, ours: NDArray[Any], theirs: NDArray[Any], text: int) -> None:
        """One output of one text.

        Raises:
            TransduceError: its shape is another one.
        """
        if ours.shape != theirs.shape:
            raise TransduceError(
                f"The export was checked and is wrong, so nothing was written: its {name} of text {text + 1} have the "
                f"shape {theirs.shape}, and the model's own {ours.shape}; please report this with the model's "
                "config.json."
            )
        difference = np.nan_to_num(np.abs(ours - theirs), nan=math.inf)
        excess = difference / (TOLERANCE * np.maximum(1.0, np.abs(ours) / 10.0))
        place = np.unravel_index(int(excess.argmax()), excess.shape)
        found = _Worst(float(excess[place]), float(ours[place]), float(theirs[place]), text)
        self._worst[name] = max(found, self._worst.get(name, found))
        self._largest[name] = max(float(difference.max()), self._largest.get(name, 0.0))

    def add_choices(self, agreeing: bool) -> None:
        """Whether one text's best pieces and classes are the same."""
        self._agreeing.append(agreeing)

    @property
    def agreement(self) -> EncoderAgreement:
        """In figures."""
        return EncoderAgreement(
            texts=len(self._agreeing),
            largest_differences=dict(self._largest),
            largest_difference=max(self._largest.values()),
            same_choices=sum(self._agreeing),
        )

    def check_equal(self, name: str) -> None:
        """For an encoder that computes in float32 as we do.

        Raises:
            TransduceError: a number differs by more than rounding.
        """
        output, worst = max(self._worst.items(), key=lambda item: item[1].excess)
        if not worst.excess <= 1.0:
            raise TransduceError(
                f"The export to {name} was checked and is wrong, so nothing was written: in text {worst.text + 1} one "
                f"of its {output} is {worst.theirs:.5f}, and the model's own is {worst.ours:.5f}; please report this "
                "with the model's config.json."
            )
        if not all(self._agreeing):
            raise TransduceError(
                f"The export to {name} was checked and is wrong, so nothing was written: it chooses otherwise in text "
                f"{self._agreeing.index(False) + 1}; please report this with the model's config.json."
            )


def compare_encoders(own: ExportedEncoder, other: ExportedEncoder, rows: Ids, token_types: Ids) -> EncoderComparison:
    """Compares two encoders on these rows of pieces; of the outputs those that both have.

    Args:
        own: what is right.
        other: what may not be.
        rows: pieces, marks included.
        token_types: the segment of each.
    """
    comparison = EncoderComparison()
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        batch, types = rows[first : first + _ROWS_AT_ONCE], token_types[first : first + _ROWS_AT_ONCE]
        ours, theirs = own.outputs(batch, types), other.outputs(batch, types)
        for name in (name for name in ours if name in theirs):
            for number, (left, right) in enumerate(zip(ours[name], theirs[name], strict=True), first):
                comparison.add(name, left, right, number)
        for number in range(len(batch)):
            both = [(ours[name][number], theirs[name][number]) for name in _CHOICES if name in ours and name in theirs]
            comparison.add_choices(all(_same_best(left, right) for left, right in both))
    return comparison


def _same_best(ours: NDArray[Any], theirs: NDArray[Any]) -> bool:
    """Whether the best of each row is the same, or as good to the model itself."""
    chosen = np.take_along_axis(ours, theirs.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return bool((ours.max(axis=-1) - chosen <= 2 * TOLERANCE).all())
