"""Where dropout's seeds come from: the processor's generator, which is seeded for every batch; or from places that were
filled out of it, for what is recorded goes by the seeds of each time that it is played.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

MOST = 1024  # of one batch


class _Places:
    """Those that are taken from now, one after another."""

    left: Iterator[Tensor] | None = None


def draw_seeds(count: int) -> Tensor:
    """So many, int64, on the processor: the same whether they are drawn at once or one by one."""
    return torch.empty(count, dtype=torch.int64, device="cpu").random_()


def next_seed() -> int | Tensor:
    """A seed, or the place, (1,), where it stands."""
    if _Places.left is None:
        return int(draw_seeds(1))
    place = next(_Places.left, None)
    if place is None:
        raise RuntimeError(f"there are seeds for {MOST} dropouts, but the model has more")
    return place


@contextmanager
def seeds_from(places: Tensor) -> Iterator[None]:
    """In the body of `with`, seeds are those that stand in these places, (N,), in their order."""
    before, _Places.left = _Places.left, iter(places.split(1))
    try:
        yield
    finally:
        _Places.left = before
