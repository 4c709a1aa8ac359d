"""The interface of a search that a backend runs for a whole batch, from its first step to its last.

Legend: B sentences that are still decoded, W hypotheses of each, t tokens so far.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray
from torch import Tensor


class SearchBounds(NamedTuple):
    """How a search begins and ends."""

    start_id: int
    """What the decoder is given first."""
    eos_id: int
    """The end symbol."""
    forbidden_tokens: Sequence[int]
    """Pieces that no hypothesis holds."""
    max_lengths: Sequence[int]
    """The greatest number of pieces of each sentence, end symbol included."""
    beam_size: int
    """W; 1 is greedy search."""
    n_best: int
    """How many hypotheses must be certain before a sentence is done."""
    penalties: Tensor
    """The length penalty of 0, 1, … pieces, up to one more than the greatest of `longest` at least, float64."""


class FoundHypothesis(NamedTuple):
    """What was found."""

    tokens: Tensor | NDArray[Any]
    """With the end symbol, where it ended, (t,)."""
    log_probabilities: Tensor | NDArray[Any]
    """Of each piece, (t,)."""
    ended: bool
    """Whether it ended, or was cut."""


class BatchSearch(Protocol):
    """Hypotheses of a batch: the best of every sentence, and the live ones of those that are still decoded."""

    @property
    def active(self) -> Tensor:
        """The places in the batch of the sentences that are still decoded, (B,)."""

    def advance(self, steps: int) -> None:
        """At most so many steps; none after all sentences are done."""

    def live(self) -> tuple[Tensor, Tensor]:
        """What live hypotheses hold, int64 (B, W, t), and their log-probabilities, (B, W)."""

    def found(self, place: int, count: int) -> list[FoundHypothesis]:
        """At most so many hypotheses of the sentence at this place, best first."""

    def abandon(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """The sentences at these rows leave; their live hypotheses, as they are."""
