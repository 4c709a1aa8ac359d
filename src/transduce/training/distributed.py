"""Connect the processes that train one model together, and let them communicate.

`torchrun` starts them and passes each its rank in the environment. With a single process every method is a no-op.
"""

import datetime
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from transduce.errors import TransduceError
from transduce.process_environment import launched_ranks

T = TypeVar("T")

# One process may prepare a corpus or validate for hours, while the others wait for it. Within a step none has more to
# do than another, so that one that keeps the others waiting hangs.
_MAX_WAIT = datetime.timedelta(days=7)
_MAX_WAIT_IN_STEP = datetime.timedelta(minutes=30)
# Gradients lie on GPUs; the few numbers that processes must agree on lie on the CPU, which NCCL does not support.
_GPU_BACKENDS = "cpu:gloo,cuda:nccl"


class Processes:
    """The group of data-parallel processes that train one model: their number, and the rank of this process."""

    def __init__(self, rank: int = 0, count: int = 1, *, local_rank: int = 0, local_count: int = 1) -> None:
        self.rank = rank
        self.count = count
        self.local_rank = local_rank  # among those on this machine
        self.local_count = local_count

    @property
    def is_first(self) -> bool:
        """True for the process with rank 0, which alone prepares data, validates, reports and saves."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return a list of each value's sum over all processes, in float64; all must call this within 30 minutes."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def broadcast(self, value: T, kind: type[T]) -> T:
        """Send the first process's value to all processes, and return it in each.

        All processes must call this method, and wait for each other for up to seven days.

        Args:
            value: a value that can be written as JSON; only that of the first process counts.
            kind: the type of the value.
        """
        if self.count == 1:
            return value
        content = torch.frombuffer(bytearray(msgspec.json.encode(value)), dtype=torch.uint8)
        size = torch.tensor(len(content))
        dist.broadcast(size, src=0, group=_group_with_long_timeout())
        received = content if self.is_first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(received, src=0, group=_group_with_long_timeout())
        return msgspec.json.decode(received.numpy().tobytes(), type=kind)

    def start_broadcast(self, tensor: Tensor, source: int) -> dist.Work | None:
        """Start broadcasting a tensor from one process; the tensor must not be used until the broadcast is complete.

        Args:
            tensor: of equal shape in all processes; overwritten in all but the source.
            source: the rank of the sender.

        Returns:
            A handle whose `wait` returns when the broadcast is complete; None if there is a single process.
        """
        return None if self.count == 1 else dist.broadcast(tensor, src=source, async_op=True)

    def wait(self) -> None:
        """Wait until every process has called this method (a barrier)."""
        if self.count > 1:
            dist.barrier(group=_group_with_long_timeout())

    def leave(self) -> None:
        """Leave the process group and close the connections to the other processes; a single process does nothing."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()
            _group_with_long_timeout.cache_clear()


def join_processes(device: str) -> Processes:
    """Connect to the other processes that `torchrun` started, and return the group.

    If `torchrun` did not start this process, the group contains only this process.

    Args:
        device: "cpu" or "cuda"; each process of a machine uses the GPU of its local rank.

    Raises:
        TransduceError: the environment is incomplete.
    """
    ranks = launched_ranks()
    if ranks.world_size > 1 and not dist.is_initialized():
        if device.startswith("cuda"):
            torch.cuda.set_device(ranks.local_rank)
        backends = _GPU_BACKENDS if device.startswith("cuda") else "gloo"
        dist.init_process_group(backends, timeout=_MAX_WAIT_IN_STEP)
        _group_with_long_timeout()  # while all processes are here: to create it also takes all
    return Processes(ranks.rank, ranks.world_size, local_rank=ranks.local_rank, local_count=ranks.local_world_size)


def current_processes() -> Processes:
    """Return the processes that `join_processes` has connected, or only this one if it has not been called."""
    return join_processes("cpu") if dist.is_available() and dist.is_initialized() else Processes()


@contextmanager
def explain_lost_processes() -> Iterator[None]:
    """Replace errors of lost connections between processes, raised in the body of `with`, by a message.

    If another process has ended, only the first process shows the message. If another process hangs, each process that
    has waited in vain shows a message, since the first one may be the one that hangs. Other errors, and errors of a
    single process, pass unchanged.

    Raises:
        TransduceError: another process has ended (raised in the first process), or hangs.
        SystemExit: another process has ended (raised in all but the first), without a message.
    """
    try:
        yield
    except RuntimeError as error:
        processes = current_processes()
        if processes.count == 1 or not _is_lost_connection(error):
            raise
        if _TIMEOUT.search(str(error)):
            raise TransduceError(
                f"Process {processes.rank} of {processes.count} (counted from 0) waited in vain for another one, which "
                "hangs or cannot be reached. See what the other processes and their machines do, then continue with "
                "--resume."
            ) from error
        if not processes.is_first:
            raise SystemExit(1) from error
        raise TransduceError(
            f"One of the {processes.count} processes has ended, so this one stops too. Read its message above, then "
            "continue with --resume."
        ) from error


# Gloo raises plain runtime errors, which begin with the place in its source code.
_GLOO_ERROR = re.compile(r"gloo[/\\]transport[/\\]|connection\s(closed|reset)\sby\speer", re.IGNORECASE)
_TIMEOUT = re.compile(r"timed?\s?out", re.IGNORECASE)


def _is_lost_connection(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or _GLOO_ERROR.search(str(error)) is not None


@cache
def _group_with_long_timeout() -> dist.ProcessGroup:
    """Return a gloo process group with a timeout of seven days, since waiting in NCCL would keep the GPU busy.

    The group is created at the first call.
    """
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=_MAX_WAIT)
    return group
