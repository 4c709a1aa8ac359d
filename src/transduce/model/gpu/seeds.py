"""Provide dropout seeds on a GPU, from the CPU's generator or, in CUDA graphs, from a buffer.

The CPU's generator is seeded for every batch. A graph reads its seeds from a buffer, which is filled from that
generator before each replay.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MOST = 1024
"""The greatest number of seeds per batch."""


class _Buffer:
    """The addresses of the next seeds, if they come from a buffer."""

    remaining: Iterator[Tensor] | None = None


def draw_seeds(count: int) -> Tensor:
    """Draw `count` seeds, int64 on the CPU; the sequence does not depend on how many are drawn at once."""
    return torch.empty(count, dtype=torch.int64, device="cpu").random_()


def next_seed() -> int | Tensor:
    """Return a seed, or a tensor (1,) on the GPU that will hold one."""
    if _Buffer.remaining is None:
        return int(draw_seeds(1))
    seed = next(_Buffer.remaining, None)
    if seed is None:
        raise RuntimeError(f"there are seeds for {MOST} dropouts, but the model has more")
    return seed


@contextmanager
def seeds_from(places: Tensor) -> Iterator[None]:
    """Take the seeds in the body of `with` from a buffer (N,), one after another."""
    previous, _Buffer.remaining = _Buffer.remaining, iter(places.split(1))
    try:
        yield
    finally:
        _Buffer.remaining = previous
