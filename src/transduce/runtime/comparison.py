"""Is an exported model the one that it came from? Log-probabilities and greedy translations of both, side by side.

A language model's translation of a prompt is its continuation.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from transduce.errors import TransduceError
from transduce.interop.exported import ExportedModel, Ids

# In nats, for a log-probability of up to 10 nats; it grows with what is compared, as rounding errors do.
TOLERANCE = 1e-4
# Quantized weights make a mean difference of some thousandths. A model that is broken is off by whole nats.
QUANTIZED_TOLERANCE = 0.5
_SENTENCES_AT_ONCE = 16
_LONGEST_RANDOM = 12


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far two models agree."""

    sentences: int
    """Compared."""
    log_probabilities: int
    """Compared: of the pieces and end symbols of the model's own translations, and of random pieces."""
    largest_difference: float
    """Of these, in nats."""
    mean_difference: float
    """In nats, of the model's own translations alone."""
    same_translations: int
    """Sentences for which greedy search finds the same pieces, or leaves them where the model itself has a tie."""

    def lines(self, name: str) -> list[str]:
        """What people read, of the weights that are called so."""
        largest, mean = self.largest_difference, self.mean_difference
        compared = f"{self.log_probabilities:,} log-probabilities, largest difference {largest:.2g} nats"
        return [
            f"{name}: {compared}, mean of the model's own texts {mean:.2g}",
            f"{name}: {self.same_translations:,} of {self.sentences:,} greedy translations are the same",
        ]


class _Place(NamedTuple):
    """A log-probability and where it stands."""

    difference: float
    allowed: float
    ours: float
    theirs: float
    sentence: int
    piece: int


def compare_models(
    own: ExportedModel, other: ExportedModel, sources: Ids, *, pieces: Sequence[int], most_pieces: int
) -> "Comparison":
    """Compares two models on these sentences.

    Args:
        own: what is right.
        other: what may not be.
        sources: pieces of sentences, without the end symbol.
        pieces: of the target, that random targets are drawn from.
        most_pieces: of a translation.
    """
    comparison = Comparison()
    draw = random.Random(1)
    for first in range(0, len(sources), _SENTENCES_AT_ONCE):
        batch = sources[first : first + _SENTENCES_AT_ONCE]
        translations = own.translate(batch, most_pieces)
        drawn = [draw.choices(pieces, k=draw.randint(0, min(_LONGEST_RANDOM, most_pieces))) for _ in batch]
        comparison.own_places += _differences(own, other, batch, translations, first)
        comparison.random_places += _differences(own, other, batch, drawn, first)
        comparison.agreeing += [
            _agree(own, source, ours, theirs)
            for source, ours, theirs in zip(batch, translations, other.translate(batch, most_pieces), strict=True)
        ]
    return comparison


class Comparison:
    """Every difference that was found."""

    def __init__(self) -> None:
        self.own_places: list[_Place] = []
        self.random_places: list[_Place] = []
        self.agreeing: list[bool] = []

    @property
    def agreement(self) -> Agreement:
        """In figures."""
        places = [*self.own_places, *self.random_places]
        return Agreement(
            sentences=len(self.agreeing),
            log_probabilities=len(places),
            largest_difference=max(place.difference for place in places),
            mean_difference=sum(place.difference for place in self.own_places) / len(self.own_places),
            same_translations=sum(self.agreeing),
        )

    def check_equal(self, name: str) -> None:
        """For a model that computes in float32 as we do.

        Raises:
            TransduceError: a log-probability differs by more than rounding, or a translation does.
        """
        worst = max([*self.own_places, *self.random_places], key=lambda place: place.difference / place.allowed)
        if not worst.difference <= worst.allowed:
            raise TransduceError(
                f"The export to {name} was checked and is wrong, so nothing was written: at piece {worst.piece + 1} of "
                f"sentence {worst.sentence + 1} its log-probability is {worst.theirs:.5f}, and the model's own is "
                f"{worst.ours:.5f}; please report this with the model's config.json."
            )
        if not all(self.agreeing):
            raise TransduceError(
                f"The export to {name} was checked and is wrong, so nothing was written: greedy search finds another "
                f"translation of sentence {self.agreeing.index(False) + 1}; please report this with the model's "
                "config.json."
            )

    def check_close(self, name: str) -> None:
        """For a model whose weights were rounded.

        Raises:
            TransduceError: it is not the same model any more.
        """
        mean = self.agreement.mean_difference
        if not mean <= QUANTIZED_TOLERANCE:
            raise TransduceError(
                f"The export to {name} was checked and nothing was written: rounding its weights changes the "
                f"log-probability of a piece by {mean:.2f} nats on average, and at most {QUANTIZED_TOLERANCE:g} is "
                "taken; choose another quantization."
            )


def _differences(own: ExportedModel, other: ExportedModel, sources: Ids, targets: Ids, first: int) -> Iterator[_Place]:
    """Of each log-probability; `first` is the first sentence's number."""
    pairs = zip(own.log_probabilities(sources, targets), other.log_probabilities(sources, targets), strict=True)
    for sentence, (ours, theirs) in enumerate(pairs, first):
        for piece, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            allowed = TOLERANCE * max(1.0, abs(left) / 10.0)
            difference = abs(left - right)
            yield _Place(math.inf if math.isnan(difference) else difference, allowed, left, right, sentence, piece)


def _agree(own: ExportedModel, source: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether two greedy translations are the same, or part where the model has two best pieces."""
    if list(ours) == list(theirs):
        return True
    common = next((n for n, (left, right) in enumerate(zip(ours, theirs, strict=False)) if left != right), None)
    place = min(len(ours), len(theirs)) if common is None else common
    # A target's log-probabilities have the end symbol's after its pieces'.
    after_ours, after_theirs = (own.log_probabilities([source], [row[: place + 1]])[0][place] for row in (ours, theirs))
    return abs(after_ours - after_theirs) <= 2 * TOLERANCE
