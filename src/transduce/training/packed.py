"""Packs a batch on the processor, from the arrays as they were read, so that nobody waits for the GPU.

Legend: B sentences, S source length, T target length, N pieces of all sentences.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.model.packing import PackedBatch, Packing
from transduce.training.ahead import to_device

Ids = NDArray[np.int64]


def pack(source: Ids, target: Ids, *, pad_id: int, start_id: int, device: torch.device) -> PackedBatch | None:
    """A batch on a device, without its padding.

    Args:
        source: (B, S), padded at the right.
        target: (B, T), likewise.
        pad_id: fills short rows.
        start_id: what the decoder is given first.
        device: where to.

    Returns:
        None where a sentence has no piece, or padding in between.
    """
    source_plan, target_plan = _plan(source, pad_id), _plan(target, pad_id)
    if source_plan is None or target_plan is None:
        return None
    target_input = np.concatenate([np.full_like(target[:, :1], start_id), target[:, :-1]], axis=1)
    parts = [
        *(source.ravel()[source_plan.places], *source_plan.numbers),
        *(target_input.ravel()[target_plan.places], target.ravel()[target_plan.places], *target_plan.numbers),
    ]
    placed = to_device(np.concatenate(parts), device).split([len(part) for part in parts])  # one copy in place of nine
    packings = _packing(placed[1:4], source_plan.longest), _packing(placed[6:9], target_plan.longest)
    return PackedBatch(placed[0][None], packings[0], placed[4][None], packings[1], placed[5][None])


class _Plan(NamedTuple):
    places: Ids
    """Of every piece in the padded batch, flattened, (N,)."""
    numbers: tuple[Ids, Ids, Ids]
    """Positions, starts and counts, as `Packing` has them."""
    longest: int


def _plan(ids: Ids, pad_id: int) -> _Plan | None:
    present = ids != pad_id
    counts = present.sum(axis=1)
    if not len(ids) or counts.min() < 1 or not np.array_equal(present, np.arange(ids.shape[1]) < counts[:, None]):
        return None
    places = np.flatnonzero(present)
    return _Plan(places, (places % ids.shape[1], np.cumsum(counts) - counts, counts), int(counts.max()))


def _packing(numbers: tuple[Tensor, ...], longest: int) -> Packing:
    positions, starts, counts = numbers
    return Packing(starts.to(torch.int32), counts.to(torch.int32), positions, longest)
