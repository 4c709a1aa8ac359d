"""Run a recorded list of kernel calls as one call, for fixed sizes and with other addresses each time.

Between two separate calls, Python and PyTorch run with caches that the first call has evicted, which takes some hundred
microseconds. A single call avoids that.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from transduce.model.native.arena import whole_lines
from transduce.model.native.emit import I64
from transduce.model.native.engine import Program, compile_programs, new_emitter, own_tile, program
from transduce.model.native.tile import Tile


class Spot(NamedTuple):
    """An address as an offset in bytes from a base, whose address is known when the steps run."""

    base: int
    """The index of the base among those passed to `Steps.run`."""
    bytes: int = 0
    """The offset in bytes."""

    def further(self, count: int) -> "Spot":
        """Return the spot `count` bytes later."""
        return Spot(self.base, self.bytes + count)


class Room:
    """An allocator that plans the memory of a list of steps, in the order of the steps."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.size = 0
        """The peak memory in bytes."""
        self._taken: dict[int, int] = {}

    def take(self, count: int) -> Spot:
        """Allocate `count` bytes in the first gap that is large enough."""
        start, needed = 0, whole_lines(count)
        for allocated in sorted(self._taken):
            if allocated - start >= needed:
                break
            start = allocated + self._taken[allocated]
        self._taken[start] = needed
        self.size = max(self.size, start + needed)
        return Spot(self.base, start)

    def give_back(self, spots: Iterable[Spot]) -> None:
        """Free spots for later steps; spots with another base are ignored."""
        for spot in spots:
            if spot.base == self.base:
                del self._taken[spot.bytes]


class StepList:
    """A list of steps under construction, each a kernel with its arguments (numbers or spots)."""

    def __init__(self) -> None:
        self._table: list[tuple[int, int]] = []
        self._spots: list[Spot] = []

    def add(self, step: Program, numbers: Sequence[int | Spot]) -> None:
        """Append a step."""
        self._table.append((step.address, len(self._spots)))
        # Base 0 has the address 0, so a plain number is an offset from it.
        self._spots += [each if isinstance(each, Spot) else Spot(0, each) for each in numbers]

    def finish(self) -> "Steps":
        """Return the steps in executable form."""
        return Steps(self._table, self._spots)


class Steps:
    """An executable list of kernel calls, with a barrier after each."""

    def __init__(self, table: list[tuple[int, int]], spots: list[Spot]) -> None:
        self._table = np.array(table, dtype=np.int64)
        self._bases, self._bytes = np.array(spots, dtype=np.int64).T.copy()
        self._table_address = self._table.ctypes.data

    def run(self, bases: Sequence[int], threads: int) -> None:
        """Run all steps with these base addresses, the first one 0, on `threads` threads; nothing is checked."""
        numbers = np.array(bases, dtype=np.int64)[self._bases]
        numbers += self._bytes
        _runner(own_tile()).run(self._table_address, len(self._table), numbers.ctypes.data, threads=threads)


@cache
def _runner(tile: Tile) -> Program:
    """Compile the kernel `run_steps(table, steps, numbers)`, which calls each step's kernel."""
    k = new_emitter("steps", tile)
    with program(k, "run_steps", 3) as ((table, steps, numbers), thread, threads), k.loop(0, steps) as step:
        entry = k.at(k.place(table), k.times(step, 2), I64)
        address, first = (k.load(k.at(entry, number, I64), I64) for number in range(2))
        k.call_at(address, k.at(k.place(numbers), first, I64), thread, threads)
        k.barrier(threads)
    return compile_programs(k, ("run_steps",))["run_steps"]
