"""Reductions over a vocabulary, which PyTorch does an element at a time on a CPU, done by blocks.

Legend: N hypotheses, V vocabulary, G blocks of it, k pieces asked for.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

_BLOCK = 64  # pieces
_LEAST_PIECES = 1024  # with fewer there is nothing to gain


def best_piece(logits: Tensor) -> Tensor:
    """The place of the greatest of each row, one of them where there are several: (…, V) to (…)."""
    if not _has_blocks(logits, 1):
        return logits.argmax(dim=-1)
    return best_pieces(logits, 1)[1][..., 0]


def best_pieces(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The greatest `count` of each row and their places, best first: (…, V) to twice (…, k).

    They are in the `count` blocks whose greatest are greatest, or behind the last whole block.
    """
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
    if logits.device.type != "cpu":
        return logits.logsumexp(dim=-1, keepdim=True)
    # The softmax of the greatest is 1 over the sum of exp(logit - greatest).
    place = best_piece(logits)[..., None]
    return logits.gather(-1, place) - logits.softmax(dim=-1).gather(-1, place).log()
