"""The interface of a search that a backend runs for a whole batch, from its first step to its last.

Legend: B sentences that are still decoded, W hypotheses of each, t tokens so far.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray
from torch import Tensor


class SearchBounds(NamedTuple):
    """The options of a batch search: start and end symbols, maximum lengths, and the ranking of hypotheses."""

    start_id: int
    """The first input of the decoder."""
    eos_id: int
    """The end symbol."""
    forbidden_tokens: Sequence[int]
    """Token ids that no hypothesis may contain."""
    max_lengths: Sequence[int]
    """The maximum number of tokens of each sentence's hypotheses, end symbol included."""
    beam_size: int
    """W, the number of hypotheses of each sentence; 1 is greedy search."""
    n_best: int
    """The number of hypotheses that must be certain before a sentence is finished."""
    penalties: Tensor
    """The length penalty of a hypothesis of 0, 1, … tokens, float64; at least max(max_lengths) + 2 entries."""


class FoundHypothesis(NamedTuple):
    """A result of a batch search: the tokens of a hypothesis, their log-probabilities, and whether it ended."""

    tokens: Tensor | NDArray[Any]
    """Token ids, (t,), with the end symbol if the hypothesis ended."""
    log_probabilities: Tensor | NDArray[Any]
    """The log-probability of each token, (t,)."""
    ended: bool
    """Whether the hypothesis ended with the end symbol; otherwise it was cut."""


class BatchSearch(Protocol):
    """A search in progress: the live hypotheses of a batch, and the best finished ones of every sentence."""

    @property
    def active(self) -> Tensor:
        """The indices in the batch of the sentences that are still decoded, (B,)."""

    def advance(self, steps: int) -> None:
        """Take at most `steps` steps; the search stops earlier when all sentences are finished."""

    def live(self) -> tuple[Tensor, Tensor]:
        """Return the tokens of the live hypotheses, int64 (B, W, t), and the hypotheses' log-probabilities, (B, W)."""

    def finished(self, index: int, count: int) -> list[FoundHypothesis]:
        """Return at most `count` finished hypotheses of the sentence with this index in the batch, best first."""

    def abandon(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """Remove the active sentences at these rows from the batch, and return their live hypotheses as they are."""
