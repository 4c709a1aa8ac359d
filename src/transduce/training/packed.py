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


def longest_of(ids: Ids, pad_id: int) -> int:
    """Pieces of the longest sentence, (B, T) padded at the right."""
    return int((ids != pad_id).sum(axis=1).max(initial=0))


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
    plans = [_plan(ids, pad_id) for ids in (source, target)]
    if plans[0] is None or plans[1] is None:
        return None
    target_input = np.concatenate([np.full_like(target[:, :1], start_id), target[:, :-1]], axis=1)
    texts = ((source, plans[0]), (target_input, plans[1]), (target, plans[1]))
    parts = [ids.ravel()[plan.places] for ids, plan in texts]
    numbers = [each for plan in (plans[0], plans[1]) for each in (plan.positions, plan.starts, plan.counts)]
    # One copy in place of nine.
    placed = to_device(np.concatenate([*parts, *numbers]), device).split([len(each) for each in (*parts, *numbers)])
    packings = (_packing(placed[3 + 3 * side : 6 + 3 * side], plan.longest) for side, plan in enumerate(plans) if plan)
    source_packing, target_packing = packings
    return PackedBatch(placed[0][None], source_packing, placed[1][None], target_packing, placed[2][None])


class _Plan(NamedTuple):
    places: Ids
    """Of every piece in the padded batch, flattened, (N,)."""
    positions: Ids
    starts: Ids
    counts: Ids
    longest: int


def _plan(ids: Ids, pad_id: int) -> _Plan | None:
    present = ids != pad_id
    counts = present.sum(axis=1)
    if not len(ids) or counts.min() < 1 or not np.array_equal(present, np.arange(ids.shape[1]) < counts[:, None]):
        return None
    places = np.flatnonzero(present)
    return _Plan(places, places % ids.shape[1], np.cumsum(counts) - counts, counts, int(counts.max()))


def _packing(numbers: tuple[Tensor, ...], longest: int) -> Packing:
    positions, starts, counts = numbers
    return Packing(starts.to(torch.int32), counts.to(torch.int32), positions, longest)
