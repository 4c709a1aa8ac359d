"""Rules on scores: small objects, applied in turn before a piece is chosen.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t pieces so far.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

_NEVER = float("-inf")


class Rule(Protocol):
    """Changes the logits of one step."""

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """New or changed logits.

        Args:
            logits: (B, W, V), float32; may be changed in place.
            pieces: what each hypothesis holds so far, (B, W, t).
            rows: each sentence's place in the input, (B,).
        """


class Forbid:
    """These pieces are never chosen."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Sets their logits to minus infinity."""
        logits[..., self.ids] = _NEVER
        return logits


class MinimumLength:
    """No end symbol before so many pieces."""

    def __init__(self, length: int, eos_id: int) -> None:
        self.length = length
        self.eos_id = eos_id

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Forbids the end symbol while hypotheses are too short."""
        if pieces.shape[-1] < self.length:
            logits[..., self.eos_id] = _NEVER
        return logits


class OtherEnds:
    """Further symbols end a hypothesis too: they count as the end symbol."""

    def __init__(self, eos_id: int, others: Sequence[int], *, summed: bool) -> None:
        """
        Args:
            eos_id: the end symbol.
            others: what ends as well.
            summed: the end is as probable as all of them together, as for what is drawn; otherwise as the likeliest
                one, as for what is searched for.
        """
        self.eos_id = eos_id
        self.others = list(others)
        self.summed = summed

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Gives the end symbol the logit of them all, and the others none."""
        ends = logits[..., [self.eos_id, *self.others]]  # (B, W, ends)
        logits[..., self.others] = _NEVER
        logits[..., self.eos_id] = ends.logsumexp(dim=-1) if self.summed else ends.amax(dim=-1)
        return logits


class NoRepeatedNgrams:
    """No run of `length` pieces occurs twice in a hypothesis (Paulus et al. 2018)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Forbids every piece that would complete a run a second time."""
        if pieces.shape[-1] < self.length:
            return logits
        runs = pieces.unfold(-1, self.length, 1)  # (B, W, t - length + 1, length)
        begun = pieces[..., pieces.shape[-1] - self.length + 1 :]  # (B, W, length - 1)
        again = (runs[..., :-1] == begun[..., None, :]).all(dim=-1)  # (B, W, t - length + 1)
        most = torch.full_like(again, torch.inf, dtype=logits.dtype).masked_fill_(again, _NEVER)
        return logits.scatter_reduce_(-1, runs[..., -1], most, "amin", include_self=True)


class ForcedPrefix:
    """Each hypothesis begins with its sentence's prefix; other rules hold from its end on."""

    def __init__(self, prefixes: Sequence[Sequence[int]], rules: Sequence[Rule] = ()) -> None:
        self.prefixes = [list(prefix) for prefix in prefixes]
        self.longest = max(map(len, self.prefixes), default=0)
        self.rules = rules

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """Forbids every piece but the prefix' next one, which keeps the score that the model gives it."""
        position = pieces.shape[-1]
        forced = {}
        for row, sentence in enumerate(rows.tolist() if position < self.longest else ()):
            if position < len(self.prefixes[sentence]):
                piece = self.prefixes[sentence][position]
                forced[row] = (piece, logits[row, :, piece].clone())
        for rule in self.rules:
            logits = rule.apply(logits, pieces, rows)
        for row, (piece, kept) in forced.items():
            logits[row] = _NEVER
            logits[row, :, piece] = kept
        return logits
