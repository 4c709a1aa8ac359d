"""Choose the number of threads of a decoding step, by its work and by the cores that are actually free.

The threads of a kernel meet at several barriers per layer. If another process occupies a core, the system suspends one
thread for milliseconds and the others wait: two threads took up to 19 times as long as one (docs/results.md). So
small steps run on one thread, and fewer threads are used while cores are busy. Results do not depend on the number of
threads.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from transduce.kernels.cpu.jit.compiler import CompiledKernel

_THREAD_WORK = 8_000_000  # multiply-adds per thread, a few tenths of a millisecond
_MIN_SHARE = 0.7  # CPU time over wall time × threads below which cores count as busy; on an idle machine it is ≥ 0.9
_WINDOW = 0.05  # seconds of calls per measurement: the system counts CPU time in ticks of milliseconds
_SHORTEST, _LONGEST = 0.25, 4.0  # seconds before more threads are tried again, doubled after each failure


class ThreadLimiter:
    """A controller that reduces the number of decoding threads while cores are busy, and later tries more again."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Create a limiter that starts without a limit; `clock` returns the time in seconds."""
        self._clock = clock
        self._most: int | None = None  # limit on threads; None: no limit
        self._failed = 0  # number of threads that last proved too many
        self._pause = _SHORTEST
        self._retry_at = 0.0  # clock time at which more threads are tried
        self._threads = 0  # of the calls in the current window; 0: none yet
        self._seconds = self._own = 0.0  # wall time and the caller's CPU time of those calls
        self._others = 0.0  # CPU time of the other threads when the window began

    def size(self, wanted: int) -> int:
        """Return how many threads to use for work that could use `wanted` threads."""
        if self._most is not None and self._clock() >= self._retry_at:
            self._most = self._most * 2 if self._most * 2 < self._failed else None
        return wanted if self._most is None else min(wanted, self._most)

    def record_call(
        self, threads: int, seconds: float, cpu_seconds: float, other_cpu_seconds: tuple[float, float]
    ) -> None:
        """Record the timing of a call on several threads, and lower the limit if the threads lacked cores.

        Args:
            threads: the number of threads that ran.
            seconds: the wall time of the call.
            cpu_seconds: the CPU time of the calling thread during the call, in seconds.
            other_cpu_seconds: the total CPU time of the process's other threads before and after the call, in seconds.
        """
        if threads != self._threads:
            self._threads, self._others = threads, other_cpu_seconds[0]
            self._seconds = self._own = 0.0
        self._seconds += seconds
        self._own += cpu_seconds
        if self._seconds < _WINDOW:
            return
        if self._own + other_cpu_seconds[1] - self._others < _MIN_SHARE * threads * self._seconds:
            self._most, self._failed = threads // 2, threads
            self._retry_at = self._clock() + self._pause
            self._pause = min(2 * self._pause, _LONGEST)
        elif threads >= self._failed:
            self._pause = _SHORTEST
        self._threads = 0


_LIMITER = ThreadLimiter()  # one per process


def useful_threads(work: int, max_threads: int | None = None) -> int:
    """Return how many threads to use for `work` multiply-adds, at most `max_threads`; None: PyTorch's number."""
    wanted = min(torch.get_num_threads() if max_threads is None else max_threads, work // _THREAD_WORK)
    return _LIMITER.size(wanted) if wanted > 1 else 1


def run_timed(kernel: CompiledKernel, numbers: Sequence[int] | Any, work: int, max_threads: int | None = None) -> None:
    """Run a kernel whose steps take `work` multiply-adds each, and record its timing for the choice of threads.

    Args:
        kernel: a kernel whose threads meet at barriers.
        numbers: its arguments, as a tuple or as a ctypes array of 64-bit integers.
        work: multiply-adds between barriers, roughly.
        max_threads: the maximum number of threads; PyTorch's if None.
    """
    array = (ctypes.c_int64 * len(numbers))(*numbers) if isinstance(numbers, tuple) else numbers
    threads = useful_threads(work, max_threads)
    if threads == 1:
        kernel.run_array(array, 1)
        return
    before = time.perf_counter(), time.thread_time(), time.process_time()
    kernel.run_array(array, threads)
    after = time.perf_counter(), time.thread_time(), time.process_time()
    seconds, own, _ = (now - then for then, now in zip(before, after, strict=True))
    _LIMITER.record_call(threads, seconds, own, (before[2] - before[1], after[2] - after[1]))
