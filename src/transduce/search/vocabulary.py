"""Reductions over a vocabulary, which PyTorch does an element at a time on a CPU, done by blocks or by kernels.

Legend: B sentences, W hypotheses of each, N hypotheses, V vocabulary, G blocks of it, k pieces asked for.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

_BLOCK = 64  # pieces
_LEAST_PIECES = 1024  # with fewer there is nothing to gain


Quadruple = tuple[Tensor, Tensor, Tensor, Tensor]


class Reductions(Protocol):
    """Kernels that do this in machine code, for logits (B, W, V)."""

    def suits(self, logits: Tensor) -> bool:
        """Whether they take these."""

    def best_pieces(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """As the function of this name."""

    def log_normalizer(self, logits: Tensor) -> Tensor:
        """As the function of this name."""

    def best_normalized(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """As the function of this name."""

    def select(
        self, logits: Tensor, normalizer: Tensor | None, scores: Tensor, *, eos_id: int, beam_size: int
    ) -> tuple[Quadruple, Quadruple]:
        """What `BestSelection` chooses, of at least 2 × beam_size pieces: the live ones, and those that end.

        Each as parents, pieces, the pieces' log-probabilities, and totals. Without a normaliser, the logits' own is
        taken.
        """


class _Kernels:
    """Those in use, by the whole process."""

    reductions: Reductions | None = None


def use_kernels(reductions: Reductions | None) -> Reductions | None:
    """From now on, these are used for whatever they suit; returns those that were before."""
    before, _Kernels.reductions = _Kernels.reductions, reductions
    return before


def kernels_for(logits: Tensor, count: int) -> Reductions | None:
    """Kernels that take these logits, where they are worth it, of which so many of each row are asked for."""
    kernels = _Kernels.reductions
    if kernels is None or logits.shape[-1] < max(_BLOCK, count):
        return None
    return kernels if kernels.suits(logits) else None


def best_normalized(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """`best_pieces` and `log_normalizer` in one go."""
    if (kernels := kernels_for(logits, count)) is not None:
        return kernels.best_normalized(logits, count)
    return *best_pieces(logits, count), log_normalizer(logits)


def best_piece(logits: Tensor) -> Tensor:
    """The place of the greatest of each row, one of them where there are several: (…, V) to (…)."""
    if not _has_blocks(logits, 1) and kernels_for(logits, 1) is None:
        return logits.argmax(dim=-1)
    return best_pieces(logits, 1)[1][..., 0]


def best_pieces(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The greatest `count` of each row and their places, best first: (…, V) to twice (…, k).

    They are in the `count` blocks whose greatest are greatest, or behind the last whole block.
    """
    if (kernels := kernels_for(logits, count)) is not None:
        return kernels.best_pieces(logits, count)
    if not _has_blocks(logits, count):
        values, places = logits.topk(count, dim=-1)
        return values, places
    rows = logits.reshape(-1, logits.shape[-1])  # (N, V)
    whole = rows.shape[1] // _BLOCK * _BLOCK
    blocks = rows[:, :whole].unflatten(1, (-1, _BLOCK))  # (N, G, 64)
    chosen = blocks.amax(dim=-1).topk(count, dim=-1, sorted=False).indices  # (N, k)
    lines = chosen + torch.arange(len(rows))[:, None] * blocks.shape[1]
    inside = blocks.reshape(-1, _BLOCK).index_select(0, lines.flatten()).view(len(rows), -1)  # (N, k × 64)
    values, found = torch.cat([inside, rows[:, whole:]], dim=1).topk(count, dim=-1)
    # What stands behind the last block follows the chosen ones as if it were one more of them.
    starts = F.pad(chosen * _BLOCK, (0, 1), value=whole)
    places = starts.gather(1, found // _BLOCK) + found % _BLOCK
    return values.view(*logits.shape[:-1], count), places.view(*logits.shape[:-1], count)


def _has_blocks(logits: Tensor, count: int) -> bool:
    """Whether blocks are worth it."""
    return logits.device.type == "cpu" and logits.shape[-1] >= max(_LEAST_PIECES, 4 * count * _BLOCK)


def log_normalizer(logits: Tensor) -> Tensor:
    """The logarithm of the sum of the exponentials of each row: (…, V) to (…, 1)."""
    if (kernels := kernels_for(logits, 1)) is not None:
        return kernels.log_normalizer(logits)
    if logits.device.type != "cpu":
        return logits.logsumexp(dim=-1, keepdim=True)
    # The softmax of the greatest is 1 over the sum of exp(logit - greatest).
    place = best_piece(logits)[..., None]
    return logits.gather(-1, place) - logits.softmax(dim=-1).gather(-1, place).log()
