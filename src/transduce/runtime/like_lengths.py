"""Batch texts by length, so that little of a batch is padding."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def pieces_at_once(device: torch.device) -> int:
    """Return the budget of a batch on a device: source tokens times beam hypotheses.

    On a CPU, a small batch stays in the cache. On a GPU, a step takes as long for few tokens as for many, so batches
    are large; their logits take about 200 MB.
    """
    return 2_048 if device.type == "cpu" else 32_768


def of_like_lengths(lengths: Sequence[int], most_pieces: int) -> Iterator[list[int]]:
    """Yield batches of text indices, shortest texts first.

    Args:
        lengths: number of tokens in each text.
        most_pieces: maximum number of tokens in a batch, including padding; a longer text forms its own batch.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        if batch and lengths[index] * (len(batch) + 1) > most_pieces:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device, *, width: int = 0) -> Tensor:
    """Pad rows of token ids on the right to one tensor (B, S), at least `width` wide."""
    width = max(width, *(len(row) for row in rows))
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], device=device)
