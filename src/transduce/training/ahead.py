"""Input for a GPU: the next batch is made while this one is computed, and copied without waiting."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor


class Batches(Protocol):
    """Micro-batches by position; a pure function of the corpus and the seed."""

    def __len__(self) -> int:
        """Micro-batches of an epoch."""

    def batch(self, epoch: int, position: int) -> Any:
        """One of them."""


@runtime_checkable
class LooksAhead(Protocol):
    """A loss that can do some of its work on a batch before that has its turn."""

    def look_ahead(self, batch: Any) -> None:
        """Does it, on the processor, in any thread."""


class BatchesAhead:
    """The same batches, each made by a thread of its own while the one before it is computed.

    A thread that is idle anyway does this beside a GPU. On a CPU it would take time from the computation.
    """

    def __init__(self, batches: Batches, loss: object = None) -> None:
        """Of these; a loss that looks ahead does so in the thread."""
        self._batches = batches
        self._look_ahead = loss.look_ahead if isinstance(loss, LooksAhead) else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: tuple[tuple[int, int], Future[Any]] | None = None

    def __len__(self) -> int:
        """Micro-batches of an epoch."""
        return len(self._batches)

    def batch(self, epoch: int, position: int) -> Any:
        """A micro-batch. The one after it is begun."""
        wanted, ahead = (epoch, position), self._next
        made = ahead[1] if ahead is not None and ahead[0] == wanted else self._begin(wanted)
        batch = made.result()
        following = divmod(epoch * len(self) + position + 1, len(self))
        self._next = following, self._begin(following)
        return batch

    def _begin(self, place: tuple[int, int]) -> "Future[Any]":
        return self._thread.submit(self._make, place)

    def _make(self, place: tuple[int, int]) -> Any:
        batch = self._batches.batch(*place)
        if self._look_ahead is not None:
            self._look_ahead(batch)
        return batch


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array of a batch as a tensor there; the copy to a GPU goes on beside the computation."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
