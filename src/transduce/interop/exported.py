"""What every exported model can do here, so that it can be compared with the model that it came from."""

from collections.abc import Sequence
from typing import Protocol

# The longest sequence of an exported model, in pieces: rows of its table of positions.
MAXIMUM_POSITIONS = 1024

Ids = Sequence[Sequence[int]]


class ExportedModel(Protocol):
    """A translation model, wherever it runs. Sentences are pieces without start and end symbols."""

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """What the model gives each target's pieces and, after them, the end symbol, in nats."""

    def translate(self, sources: Ids, most_pieces: int) -> list[list[int]]:
        """The pieces that greedy search finds, at most so many; padding and the start symbol are never chosen."""
