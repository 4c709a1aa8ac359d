"""The search loop: state, "is there anything left?", and one step.

Legend: B sentences still in the batch, W hypotheses of each, t pieces so far.
"""

from collections.abc import Collection
from typing import Protocol

from torch import Tensor

from transduce.search.scorer import Hypothesis, Observer

_MANY = 2**31  # steps: until all sentences have left


class Search(Protocol):
    """A search for the target sequences of a batch, somewhere between its first step and its last."""

    @property
    def rows(self) -> Tensor:
        """The places in the batch of the sentences that are still decoded, (B,)."""

    def advance(self, steps: int = 1) -> None:
        """A step, or more where that is faster, but not more than `steps`.

        In a step every hypothesis grows by a piece; sentences that are finished leave.
        """

    def hypotheses(self) -> Tensor:
        """What an observer is shown: see `Observer.after_step`, (B, W, t)."""

    def give_up(self, places: Collection[int]) -> None:
        """Sentences at these places leave with what they have; places of others mean nothing."""

    def found(self) -> list[list[Hypothesis]]:
        """The hypotheses of all sentences that have left, best first; none yet for the others."""


def run(search: Search, observer: Observer | None = None) -> list[list[Hypothesis]]:
    """Searches to the end.

    Args:
        search: at its first step, or further.
        observer: told of every step.

    Returns:
        Each sentence's hypotheses. One that was given up may have none.
    """
    while len(search.rows):
        search.advance(_MANY if observer is None else 1)
        if observer is not None and len(search.rows):
            search.give_up(observer.after_step(search.rows, search.hypotheses()))
    return search.found()
