"""Top-k and log-sum-exp over the vocabulary, faster than PyTorch's on a CPU by working in blocks or with kernels.

Legend: B sentences, W hypotheses of each, N hypotheses, V vocabulary, G blocks of it, k requested tokens.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

_BLOCK = 64  # tokens
_LEAST_PIECES = 1024  # smaller vocabularies gain nothing from blocks


Quadruple = tuple[Tensor, Tensor, Tensor, Tensor]


class Reductions(Protocol):
    """An interface of compiled kernels for reductions over logits (B, W, V)."""

    def suits(self, logits: Tensor) -> bool:
        """Return whether the kernels support these logits."""

    def best_pieces(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` greatest logits of each row and their indices, best first."""

    def log_normalizer(self, logits: Tensor) -> Tensor:
        """Return the log-sum-exp of each row, (B, W, 1)."""

    def best_normalized(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the `count` greatest logits of each row, their indices, and the log-sum-exp."""

    def select(
        self, logits: Tensor, normalizer: Tensor | None, scores: Tensor, *, eos_id: int, beam_size: int
    ) -> tuple[Quadruple, Quadruple]:
        """Return the live and the ended candidates that `BestSelection` chooses, from at least 2 × beam_size tokens.

        Each result consists of parents, tokens, token log-probabilities and totals. If `normalizer` is None, the
        log-sum-exp of the logits is computed.
        """


class _Kernels:
    """The kernels in use, shared by the whole process."""

    reductions: Reductions | None = None


def use_kernels(reductions: Reductions | None) -> Reductions | None:
    """Use these kernels from now on for all logits they support; return the previous ones."""
    before, _Kernels.reductions = _Kernels.reductions, reductions
    return before


def kernels_for(logits: Tensor, count: int) -> Reductions | None:
    """Return kernels for the `count` best of each row, or None if they do not support the logits or gain nothing."""
    kernels = _Kernels.reductions
    if kernels is None or logits.shape[-1] < max(_BLOCK, count):
        return None
    return kernels if kernels.suits(logits) else None


def best_normalized(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` greatest logits of each row, their indices, and the log-sum-exp of the row."""
    if (kernels := kernels_for(logits, count)) is not None:
        return kernels.best_normalized(logits, count)
    return *best_pieces(logits, count), log_normalizer(logits)


def best_piece(logits: Tensor) -> Tensor:
    """Return the index of the greatest logit of each row, (…, V) to (…); ties are broken arbitrarily."""
    if not _has_blocks(logits, 1) and kernels_for(logits, 1) is None:
        return logits.argmax(dim=-1)
    return best_pieces(logits, 1)[1][..., 0]


def best_pieces(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` greatest logits of each row and their indices, best first: (…, V) to twice (…, k).

    They lie in the `count` blocks with the greatest maxima, or after the last complete block.
    """
    if (kernels := kernels_for(logits, count)) is not None:
        return kernels.best_pieces(logits, count)
    if not _has_blocks(logits, count):
        values, indices = logits.topk(count, dim=-1)
        return values, indices
    rows = logits.reshape(-1, logits.shape[-1])  # (N, V)
    aligned = rows.shape[1] // _BLOCK * _BLOCK
    blocks = rows[:, :aligned].unflatten(1, (-1, _BLOCK))  # (N, G, 64)
    chosen = blocks.amax(dim=-1).topk(count, dim=-1, sorted=False).indices  # (N, k)
    block_rows = chosen + torch.arange(len(rows))[:, None] * blocks.shape[1]
    block_values = blocks.reshape(-1, _BLOCK).index_select(0, block_rows.flatten()).view(len(rows), -1)  # (N, k × 64)
    values, positions = torch.cat([block_values, rows[:, aligned:]], dim=1).topk(count, dim=-1)
    # Logits after the last complete block are treated as one more chosen block.
    starts = F.pad(chosen * _BLOCK, (0, 1), value=aligned)
    indices = starts.gather(1, positions // _BLOCK) + positions % _BLOCK
    return values.view(*logits.shape[:-1], count), indices.view(*logits.shape[:-1], count)


def _has_blocks(logits: Tensor, count: int) -> bool:
    """Return whether working in blocks is faster."""
    return logits.device.type == "cpu" and logits.shape[-1] >= max(_LEAST_PIECES, 4 * count * _BLOCK)


def log_normalizer(logits: Tensor) -> Tensor:
    """Return the log-sum-exp of each row: (…, V) to (…, 1)."""
    if (kernels := kernels_for(logits, 1)) is not None:
        return kernels.log_normalizer(logits)
    if logits.device.type != "cpu":
        return logits.logsumexp(dim=-1, keepdim=True)
    # The softmax of the greatest logit is 1 over the sum of exp(logit - greatest).
    best = best_piece(logits)[..., None]
    return logits.gather(-1, best) - logits.softmax(dim=-1).gather(-1, best).log()
