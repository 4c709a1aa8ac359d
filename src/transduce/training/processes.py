"""The processes that train one model together: who this one is, and how they speak to each other.

`torchrun` starts them and tells each its rank in the environment. A run of one process needs none of this, and every
method then does nothing.
"""

import datetime
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from transduce.errors import TransduceError

T = TypeVar("T")

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
# One process may prepare a corpus or validate for hours, while the others wait for it.
_LONGEST_WAIT = datetime.timedelta(days=7)
# Gradients lie on the GPUs; the few numbers by which all decide alike are the processor's, which NCCL does not take.
_GPU_BACKENDS = "cpu:gloo,cuda:nccl"


class Processes:
    """All processes of a run, seen from one of them."""

    def __init__(self, rank: int = 0, count: int = 1, *, local_rank: int = 0, local_count: int = 1) -> None:
        self.rank = rank
        self.count = count
        self.local_rank = local_rank  # of those on this machine
        self.local_count = local_count

    @property
    def is_first(self) -> bool:
        """Whether this process prepares, validates, reports and saves."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sum over all processes of each value, in float64; the same numbers in every process."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def share(self, value: T, kind: type[T]) -> T:
        """What the first process has, in all of them. The others wait for it, however long it takes.

        Args:
            value: of a type that is written as JSON; only the first process' counts.
            kind: that type.
        """
        if self.count == 1:
            return value
        content = torch.frombuffer(bytearray(msgspec.json.encode(value)), dtype=torch.uint8)
        size = torch.tensor(len(content))
        dist.broadcast(size, src=0, group=_patient_group())
        received = content if self.is_first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(received, src=0, group=_patient_group())
        return msgspec.json.decode(received.numpy().tobytes(), type=kind)

    def begin_to_give(self, tensor: Tensor, source: int) -> dist.Work | None:
        """Begins to give all processes what one of them has in a tensor, which must be left alone until that is done.

        Args:
            tensor: as long in all of them; changed in all others.
            source: the rank of the one that has it.

        Returns:
            What to wait for; None where there is one process alone.
        """
        return None if self.count == 1 else dist.broadcast(tensor, src=source, async_op=True)

    def wait(self) -> None:
        """Returns when all processes have come here."""
        if self.count > 1:
            dist.barrier(group=_patient_group())

    def leave(self) -> None:
        """Ends the connection."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()
            _groups.clear()


def join_processes(device: str) -> Processes:
    """The processes that `torchrun` started with this one, or this one alone.

    Args:
        device: "cpu" or "cuda"; on a GPU each process of a machine takes the one of its local rank.

    Raises:
        TransduceError: the environment is incomplete, or the others cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes()
    try:
        rank, count, local_rank, local_count = (int(os.environ[name]) for name in _VARIABLES)
    except (KeyError, ValueError) as error:
        raise TransduceError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(_VARIABLES)} are not all numbers ({error}): "
            "start the processes with torchrun, or unset WORLD_SIZE."
        ) from error
    if not dist.is_initialized():
        if device.startswith("cuda"):
            torch.cuda.set_device(local_rank)
        dist.init_process_group(_GPU_BACKENDS if device.startswith("cuda") else "gloo", timeout=_LONGEST_WAIT)
    return Processes(rank, count, local_rank=local_rank, local_count=local_count)


def joined_processes() -> Processes:
    """Those that `join_processes` has found before, or this one alone."""
    if not dist.is_available() or not dist.is_initialized():
        return Processes()
    return join_processes("cpu")


@contextmanager
def explaining_lost_processes() -> Iterator[None]:
    """One sentence, of the first process, where another has ended; the others leave in silence.

    Raises:
        TransduceError: in the first process.
        SystemExit: in the others.
    """
    try:
        yield
    except (RuntimeError, dist.DistBackendError) as error:
        processes = joined_processes()
        if processes.count == 1 or not _is_lost_connection(error):
            raise
        if not processes.is_first:
            raise SystemExit(1) from error
        raise TransduceError(
            f"One of the {processes.count} processes has ended, and so does this one: see what it said above, then go "
            "on with --resume."
        ) from error


def _is_lost_connection(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, dist.DistBackendError) or "connection" in text or "gloo" in text


_groups: list[dist.ProcessGroup] = []


def _patient_group() -> dist.ProcessGroup:
    """A group over gloo: a wait in NCCL would keep the GPU busy."""
    if not _groups:
        _groups.append(dist.new_group(backend="gloo", timeout=_LONGEST_WAIT))
    return _groups[0]
