"""What every exported model can do here, so that it can be compared with the model that it came from."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

# The longest sequence of an exported model, in pieces: rows of its table of positions.
MAXIMUM_POSITIONS = 1024

Ids = Sequence[Sequence[int]]


@runtime_checkable
class ExportedModel(Protocol):
    """A model that writes, wherever it runs.

    A translation model's source is what it reads, with all that stands around it: the end symbol, a language's tag. A
    language model's source is the prompt that it continues, without what begins it. Targets are pieces without start
    and end symbols; a tag that every translation begins with is one of them.
    """

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """What the model gives each target's pieces and, after them, the end symbol, in nats."""

    def translate(self, sources: Ids, most_pieces: int) -> list[list[int]]:
        """The pieces that greedy search finds, at most so many; padding and the start symbol are never chosen."""


@runtime_checkable
class ExportedEncoder(Protocol):
    """A model that reads, wherever it runs."""

    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        """What the model computes of each row, by name.

        Args:
            rows: pieces, marks included.
            token_types: the segment of each; all 0 where the model has none.

        Returns:
            `states` (pieces, D), `logits` (pieces, V), `pooled` (D,) and `classes` (C,) of each row, as far as the
            model has them.
        """
