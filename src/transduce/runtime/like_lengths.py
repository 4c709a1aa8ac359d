"""Texts of like lengths together, so that little of a batch is padding."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def pieces_at_once(device: torch.device) -> int:
    """Source pieces times hypotheses that are decoded at a time: on a CPU few, which stay in its cache. On a GPU a step
    takes as long for few as for many, so it has many; their logits are some 200 MB.
    """
    return 2_048 if device.type == "cpu" else 32_768


def of_like_lengths(lengths: Sequence[int], most_pieces: int) -> Iterator[list[int]]:
    """Places of texts by batch, the shortest first.

    Args:
        lengths: pieces of each text.
        most_pieces: of a batch, padding included; a single longer text is a batch of its own.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        if batch and lengths[place] * (len(batch) + 1) > most_pieces:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def pad(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device, *, width: int = 0) -> Tensor:
    """Rows of ids as one tensor (B, S), filled up at the right, `width` wide at least."""
    width = max(width, *(len(row) for row in rows))
    return torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], device=device)
