"""Rules on scores: small objects, applied in turn before a piece is chosen."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Rule(Protocol):
    """Changes the logits of one step."""

    def apply(self, logits: Tensor, pieces: Tensor) -> Tensor:
        """New or changed logits.

        Args:
            logits: (B, W, V), float32; may be changed in place.
            pieces: what each hypothesis holds so far, (B, W, t).
        """


class Forbid:
    """These pieces are never chosen."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def apply(self, logits: Tensor, pieces: Tensor) -> Tensor:  # noqa: ARG002
        """Sets their logits to minus infinity."""
        logits[..., self.ids] = float("-inf")
        return logits


class MinimumLength:
    """No end symbol before so many pieces."""

    def __init__(self, length: int, eos_id: int) -> None:
        self.length = length
        self.eos_id = eos_id

    def apply(self, logits: Tensor, pieces: Tensor) -> Tensor:
        """Forbids the end symbol while hypotheses are too short."""
        if pieces.shape[-1] < self.length:
            logits[..., self.eos_id] = float("-inf")
        return logits
