"""How many threads a step of decoding is worth, and how many of them get a core.

The threads of a program meet several times a layer. Where another process has a core, the system puts one of them aside
for milliseconds, and the others wait for it each time: two threads took up to nineteen times as long as one
(docs/benchmarks.md). So little work is done by one thread, and by fewer where the cores turn out to be somebody else's.
No result depends on their number.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from transduce.model.native.engine import Program

_THREAD_WORK = 8_000_000  # products of two numbers, a few tenths of a millisecond
_LEAST_SHARE = 0.7  # of the time that threads with a core each work or spin; alone it is 0.9 and more
_WINDOW = 0.05  # seconds; the system counts other threads' time by ticks of milliseconds
_SHORTEST, _LONGEST = 0.25, 4.0  # seconds until more threads are tried again


class Crew:
    """The threads that decode, as many as have a core each."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """The clock's seconds say when more threads are tried again."""
        self._clock = clock
        self._most: int | None = None  # threads, after more had no core each
        self._failed = 0  # so many had not
        self._pause = _SHORTEST
        self._again = 0.0  # when more are tried
        self._threads = 0  # of the calls of this window, none yet
        self._seconds = self._own = 0.0  # of those calls
        self._others = 0.0  # when the window began

    def size(self, wanted: int) -> int:
        """How many threads to take where so many could be of use."""
        if self._most is not None and self._clock() >= self._again:
            self._most = self._most * 2 if self._most * 2 < self._failed else None
        return wanted if self._most is None else min(wanted, self._most)

    def tell(self, threads: int, seconds: float, own: float, others: tuple[float, float]) -> None:
        """Of a call on several threads.

        Args:
            threads: on how many it ran.
            seconds: how long.
            own: the processor's seconds that the calling thread had meanwhile.
            others: those that the process's other threads had ever had, before and after.
        """
        if threads != self._threads:
            self._threads, self._others = threads, others[0]
            self._seconds = self._own = 0.0
        self._seconds += seconds
        self._own += own
        if self._seconds < _WINDOW:
            return
        if self._own + others[1] - self._others < _LEAST_SHARE * threads * self._seconds:
            self._most, self._failed = threads // 2, threads
            self._again = self._clock() + self._pause
            self._pause = min(2 * self._pause, _LONGEST)
        elif threads >= self._failed:
            self._pause = _SHORTEST
        self._threads = 0


_CREW = Crew()  # of the process, as the cores are the machine's


def useful_threads(work: int, most: int | None = None) -> int:
    """How many threads so many products of two numbers are worth, in one step; at most so many, or as PyTorch has."""
    wanted = min(torch.get_num_threads() if most is None else most, work // _THREAD_WORK)
    return _CREW.size(wanted) if wanted > 1 else 1


def run_watched(program: Program, numbers: Sequence[int] | Any, work: int, most: int | None = None) -> None:
    """Runs a program whose steps are so much work, with its numbers or ctypes' array of them, and notes what it got."""
    array = (ctypes.c_int64 * len(numbers))(*numbers) if isinstance(numbers, tuple) else numbers
    threads = useful_threads(work, most)
    if threads == 1:
        program.run_with(array, 1)
        return
    before = time.perf_counter(), time.thread_time(), time.process_time()
    program.run_with(array, threads)
    after = time.perf_counter(), time.thread_time(), time.process_time()
    seconds, own, _ = (now - then for then, now in zip(before, after, strict=True))
    _CREW.tell(threads, seconds, own, (before[2] - before[1], after[2] - after[1]))
