"""The search loop: it advances a search step by step until no sentence is left.

Legend: B sentences still in the batch, W hypotheses of each, t tokens so far.
"""

from collections.abc import Collection
from typing import Protocol

from torch import Tensor

from transduce.search.scorer import Hypothesis, Observer

_MANY = 2**31  # steps: no limit before all sentences are finished


class Search(Protocol):
    """A search in progress for the target sequences of a batch."""

    @property
    def rows(self) -> Tensor:
        """The indices of the sentences that are still decoded, (B,)."""

    def advance(self, steps: int = 1) -> None:
        """Take one step, or up to `steps` if that is faster.

        In a step every hypothesis grows by one token, and finished sentences leave the batch.
        """

    def hypotheses(self) -> Tensor:
        """Return the hypotheses for `Observer.after_step`, (B, W, t)."""

    def give_up(self, places: Collection[int]) -> None:
        """Remove sentences from the batch with the hypotheses they have; indices of finished sentences are ignored."""

    def found(self) -> list[list[Hypothesis]]:
        """Return the hypotheses of all finished sentences, best first; empty lists for the others."""


def run(search: Search, observer: Observer | None = None) -> list[list[Hypothesis]]:
    """Run a search to its end.

    Args:
        search: a search at its first step or later.
        observer: is called after every step.

    Returns:
        The hypotheses of each sentence. A sentence that was given up may have none.
    """
    while len(search.rows):
        search.advance(_MANY if observer is None else 1)
        if observer is not None and len(search.rows):
            search.give_up(observer.after_step(search.rows, search.hypotheses()))
    return search.found()
