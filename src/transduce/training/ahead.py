"""Prefetching: a background thread prepares the next batch while a GPU computes the current one."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor


class Batches(Protocol):
    """A source of micro-batches by position: a pure function of the corpus and the seed."""

    def __len__(self) -> int:
        """Return the number of micro-batches in an epoch."""

    def batch(self, epoch: int, position: int) -> Any:
        """Return one micro-batch of an epoch."""


@runtime_checkable
class LooksAhead(Protocol):
    """A loss that can do part of its work on a batch before the batch is computed."""

    def look_ahead(self, batch: Any) -> None:
        """Prepare a batch on the CPU; any thread may call this."""


class BatchesAhead:
    """A wrapper of `Batches` that prepares each batch in a background thread while the previous one is computed.

    With a GPU that thread would otherwise idle. On a CPU it would take time from the computation.
    """

    def __init__(self, batches: Batches, loss: object = None) -> None:
        """Prefetch from `batches`; a loss with `look_ahead` prepares each batch in the background thread."""
        self._batches = batches
        self._look_ahead = loss.look_ahead if isinstance(loss, LooksAhead) else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: tuple[tuple[int, int], Future[Any]] | None = None

    def __len__(self) -> int:
        """Return the number of micro-batches in an epoch."""
        return len(self._batches)

    def batch(self, epoch: int, position: int) -> Any:
        """Return a micro-batch, and start preparing the one after it."""
        requested, prefetched = (epoch, position), self._next
        future = prefetched[1] if prefetched is not None and prefetched[0] == requested else self._begin(requested)
        batch = future.result()
        following = divmod(epoch * len(self) + position + 1, len(self))
        self._next = following, self._begin(following)
        return batch

    def _begin(self, position: tuple[int, int]) -> "Future[Any]":
        return self._thread.submit(self._make, position)

    def _make(self, position: tuple[int, int]) -> Any:
        batch = self._batches.batch(*position)
        if self._look_ahead is not None:
            self._look_ahead(batch)
        return batch


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array of a batch as a tensor on `device`; a copy to a GPU overlaps with computation."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
