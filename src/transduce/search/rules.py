"""Rules that change logits in turn before a token is chosen.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t tokens so far.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

_NEVER = float("-inf")


class Rule(Protocol):
    """An interface of objects that change the logits of one step."""

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """Return new or changed logits.

        Args:
            logits: (B, W, V), float32; may be changed in place.
            pieces: the tokens of each hypothesis so far, (B, W, t).
            rows: each sentence's index in the input, (B,).
        """


class Forbid:
    """A rule that forbids tokens."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Set the logits of the forbidden tokens to minus infinity."""
        logits[..., self.ids] = _NEVER
        return logits


class MinimumLength:
    """A rule that forbids the end symbol before a minimum number of tokens."""

    def __init__(self, length: int, eos_id: int) -> None:
        self.length = length
        self.eos_id = eos_id

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Forbid the end symbol while hypotheses are too short."""
        if pieces.shape[-1] < self.length:
            logits[..., self.eos_id] = _NEVER
        return logits


class OtherEnds:
    """A rule that treats further tokens as the end symbol."""

    def __init__(self, eos_id: int, others: Sequence[int], *, summed: bool) -> None:
        """Treat `others` as end symbols.

        Args:
            eos_id: the end symbol.
            others: further tokens that end a hypothesis.
            summed: the end symbol gets the sum of all their probabilities, which suits sampling; otherwise the
                greatest, which suits search.
        """
        self.eos_id = eos_id
        self.others = list(others)
        self.summed = summed

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Give the end symbol the combined logit of all ends, and forbid the others."""
        ends = logits[..., [self.eos_id, *self.others]]  # (B, W, ends)
        logits[..., self.others] = _NEVER
        logits[..., self.eos_id] = ends.logsumexp(dim=-1) if self.summed else ends.amax(dim=-1)
        return logits


class NoRepeatedNgrams:
    """A rule that lets no n-gram of `length` tokens occur twice in a hypothesis (Paulus et al. 2018)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Forbid every token that would complete an n-gram a second time."""
        if pieces.shape[-1] < self.length:
            return logits
        runs = pieces.unfold(-1, self.length, 1)  # (B, W, t - length + 1, length)
        begun = pieces[..., pieces.shape[-1] - self.length + 1 :]  # (B, W, length - 1)
        repeats = (runs[..., :-1] == begun[..., None, :]).all(dim=-1)  # (B, W, t - length + 1)
        limits = torch.full_like(repeats, torch.inf, dtype=logits.dtype).masked_fill_(repeats, _NEVER)
        return logits.scatter_reduce_(-1, runs[..., -1], limits, "amin", include_self=True)


class ForcedPrefix:
    """A rule that starts each hypothesis with its sentence's prefix; the wrapped rules apply after the prefix."""

    def __init__(self, prefixes: Sequence[Sequence[int]], rules: Sequence[Rule] = ()) -> None:
        self.prefixes = [list(prefix) for prefix in prefixes]
        self.longest = max(map(len, self.prefixes), default=0)
        self.rules = rules

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """Within a prefix, forbid every token but the next one of the prefix, which keeps its model score."""
        position = pieces.shape[-1]
        forced = {}
        for row, sentence in enumerate(rows.tolist() if position < self.longest else ()):
            if position < len(self.prefixes[sentence]):
                piece = self.prefixes[sentence][position]
                forced[row] = (piece, logits[row, :, piece].clone())
        for rule in self.rules:
            logits = rule.apply(logits, pieces, rows)
        for row, (piece, score) in forced.items():
            logits[row] = _NEVER
            logits[row, :, piece] = score
        return logits
