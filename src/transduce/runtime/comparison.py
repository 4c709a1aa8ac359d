"""Compare an exported model with its original: log-probabilities of targets, and greedy translations.

For a language model, the translation of a prompt is its greedy continuation.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from transduce.errors import TransduceError
from transduce.interop.exported import ExportedModel, Ids

# In nats, for log-probabilities down to -10; the tolerance grows with the magnitude, as rounding errors do.
TOLERANCE = 1e-4
# Quantized weights change log-probabilities by some thousandths of a nat on average; a broken model, by whole nats.
QUANTIZED_TOLERANCE = 0.5
_SENTENCES_AT_ONCE = 16
_MOST_RANDOM_TOKENS = 12


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of how closely an exported model agrees with its original."""

    sentences: int
    """Number of sentences compared."""
    log_probabilities: int
    """Number of log-probabilities compared: of each token and end symbol in the original's translations and in random
    targets.
    """
    largest_difference: float
    """Largest absolute difference of log-probabilities, in nats."""
    mean_difference: float
    """Mean absolute difference over the original's translations only, in nats."""
    same_translations: int
    """Number of sentences with the same greedy translation, or with translations that diverge at a tie of the original.
    """

    def lines(self, name: str) -> list[str]:
        """Return the statistics as lines of text; `name` names the weights, such as "float32" or "int8"."""
        largest, mean = self.largest_difference, self.mean_difference
        compared = f"{self.log_probabilities:,} log-probabilities, largest difference {largest:.2g} nats"
        return [
            f"{name}: {compared}, mean of the model's own texts {mean:.2g}",
            f"{name}: {self.same_translations:,} of {self.sentences:,} greedy translations are the same",
        ]


class _Difference(NamedTuple):
    """The log-probabilities of one token by both models, and the token's position."""

    difference: float
    allowed: float
    ours: float
    theirs: float
    sentence: int
    piece: int


def compare_models(
    own: ExportedModel, other: ExportedModel, sources: Ids, *, pieces: Sequence[int], most_pieces: int
) -> "Comparison":
    """Compare two models on the given sentences.

    Args:
        own: the original model.
        other: the exported model.
        sources: token ids of the sentences, without the end symbol.
        pieces: token ids of the target vocabulary from which random targets are drawn.
        most_pieces: maximum number of tokens in a translation.
    """
    comparison = Comparison()
    draw = random.Random(1)
    for first in range(0, len(sources), _SENTENCES_AT_ONCE):
        batch = sources[first : first + _SENTENCES_AT_ONCE]
        translations = own.translate(batch, most_pieces)
        drawn = [draw.choices(pieces, k=draw.randint(0, min(_MOST_RANDOM_TOKENS, most_pieces))) for _ in batch]
        comparison.own_places += _differences(own, other, batch, translations, first)
        comparison.random_places += _differences(own, other, batch, drawn, first)
        comparison.agreeing += [
            _agree(own, source, ours, theirs)
            for source, ours, theirs in zip(batch, translations, other.translate(batch, most_pieces), strict=True)
        ]
    return comparison


class Comparison:
    """The differences between an exported model and its original on all compared sentences."""

    def __init__(self) -> None:
        self.own_places: list[_Difference] = []
        self.random_places: list[_Difference] = []
        self.agreeing: list[bool] = []

    @property
    def agreement(self) -> Agreement:
        """Return the statistics of all differences."""
        differences = [*self.own_places, *self.random_places]
        return Agreement(
            sentences=len(self.agreeing),
            log_probabilities=len(differences),
            largest_difference=max(difference.difference for difference in differences),
            mean_difference=sum(difference.difference for difference in self.own_places) / len(self.own_places),
            same_translations=sum(self.agreeing),
        )

    def check_equal(self, name: str) -> None:
        """Check an export that computes in float32, like the original.

        Raises:
            TransduceError: a log-probability differs by more than rounding error, or a greedy translation differs.
        """
        worst = max(
            [*self.own_places, *self.random_places], key=lambda difference: difference.difference / difference.allowed
        )
        if not worst.difference <= worst.allowed:
            raise TransduceError(
                f"The export to {name} was checked and is wrong, so nothing was written: at token {worst.piece + 1} of "
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
        """Check an export whose weights were quantized.

        Raises:
            TransduceError: the mean difference of log-probabilities exceeds QUANTIZED_TOLERANCE.
        """
        mean = self.agreement.mean_difference
        if not mean <= QUANTIZED_TOLERANCE:
            raise TransduceError(
                f"The export to {name} was checked and nothing was written: quantization changes the "
                f"log-probability of a token by {mean:.2f} nats on average, but at most {QUANTIZED_TOLERANCE:g} is "
                "accepted; choose another quantization."
            )


def _differences(
    original: ExportedModel, exported: ExportedModel, sources: Ids, targets: Ids, first: int
) -> Iterator[_Difference]:
    """Yield the difference of each log-probability; `first` is the index of the first sentence."""
    pairs = zip(original.log_probabilities(sources, targets), exported.log_probabilities(sources, targets), strict=True)
    for sentence, (ours, theirs) in enumerate(pairs, first):
        for position, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            allowed = TOLERANCE * max(1.0, abs(left) / 10.0)
            difference = abs(left - right)
            yield _Difference(
                math.inf if math.isnan(difference) else difference, allowed, left, right, sentence, position
            )


def _agree(original: ExportedModel, source: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Return whether two greedy translations are equal or diverge at a tie of the original model."""
    if list(ours) == list(theirs):
        return True
    common = next((n for n, (left, right) in enumerate(zip(ours, theirs, strict=False)) if left != right), None)
    position = min(len(ours), len(theirs)) if common is None else common
    # The log-probabilities of a target include the end symbol's, after those of its tokens.
    after_ours, after_theirs = (
        original.log_probabilities([source], [row[: position + 1]])[0][position] for row in (ours, theirs)
    )
    return abs(after_ours - after_theirs) <= 2 * TOLERANCE
