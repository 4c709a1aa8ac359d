"""Compare an exported encoder with its original: hidden states and the outputs of its heads.

Legend: L tokens of a row, V vocabulary, D model width, C classes.
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
    """Statistics of how closely an exported encoder agrees with its original."""

    texts: int
    """Number of texts compared."""
    largest_differences: dict[str, float]
    """Largest absolute difference of each output that both encoders have: states, token logits, pooled state, class
    logits.
    """
    largest_difference: float
    """Largest absolute difference over all outputs."""
    same_choices: int
    """Number of texts with the same most probable token at each position and the same most probable class, up to ties.
    """

    def lines(self, name: str) -> list[str]:
        """Return the statistics as lines of text; `name` names the weights, such as "float32"."""
        each = ", ".join(f"{output} {value:.2g}" for output, value in self.largest_differences.items())
        return [
            f"{name}: largest differences of {each}",
            f"{name}: {self.same_choices:,} of {self.texts:,} texts have the same best tokens and classes",
        ]


class _Worst(NamedTuple):
    """The output value with the largest error relative to the tolerance."""

    excess: float
    ours: float
    theirs: float
    text: int


class EncoderComparison:
    """The differences between an exported encoder and its original over all outputs of all texts."""

    def __init__(self) -> None:
        self._worst: dict[str, _Worst] = {}
        self._largest: dict[str, float] = {}
        self._agreeing: list[bool] = []

    def add(self, name: str, ours: NDArray[Any], theirs: NDArray[Any], text: int) -> None:
        """Add one output of one text.

        Raises:
            TransduceError: the shapes differ.
        """
        if ours.shape != theirs.shape:
            raise TransduceError(
                f"The export was checked and is wrong, so nothing was written: its {name} of text {text + 1} have the "
                f"shape {theirs.shape}, and the model's own {ours.shape}; please report this with the model's "
                "config.json."
            )
        difference = np.nan_to_num(np.abs(ours - theirs), nan=math.inf)
        excess = difference / (TOLERANCE * np.maximum(1.0, np.abs(ours) / 10.0))
        index = np.unravel_index(int(excess.argmax()), excess.shape)
        worst = _Worst(float(excess[index]), float(ours[index]), float(theirs[index]), text)
        self._worst[name] = max(worst, self._worst.get(name, worst))
        self._largest[name] = max(float(difference.max()), self._largest.get(name, 0.0))

    def add_choices(self, agreeing: bool) -> None:
        """Add whether one text's most probable tokens and classes agree."""
        self._agreeing.append(agreeing)

    @property
    def agreement(self) -> EncoderAgreement:
        """Return the statistics of all differences."""
        return EncoderAgreement(
            texts=len(self._agreeing),
            largest_differences=dict(self._largest),
            largest_difference=max(self._largest.values()),
            same_choices=sum(self._agreeing),
        )

    def check_equal(self, name: str) -> None:
        """Check an export that computes in float32, like the original.

        Raises:
            TransduceError: an output differs by more than rounding error, or the most probable tokens or classes
                differ.
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
                f"The export to {name} was checked and is wrong, so nothing was written: its best token or class "
                f"differs in text {self._agreeing.index(False) + 1}; please report this with the model's config.json."
            )


def compare_encoders(own: ExportedEncoder, other: ExportedEncoder, rows: Ids, token_types: Ids) -> EncoderComparison:
    """Compare the outputs that both encoders have, on rows of token ids.

    Args:
        own: the original encoder.
        other: the exported encoder.
        rows: token ids of each text, with special tokens.
        token_types: segment id of each token.
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
    """Return whether both have the same argmax in each row, or a tie within the tolerance."""
    values = np.take_along_axis(ours, theirs.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return bool((ours.max(axis=-1) - values <= 2 * TOLERANCE).all())
