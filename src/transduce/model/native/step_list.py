"""Programs one after another, started once: written down for sizes that are known, and run with other addresses each
time.

Whatever Python and PyTorch do between two programs, they do with caches that the first one has filled, some hundred
microseconds long; here nothing is left to do between them.
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
    """An address: so many bytes from what a base is when the steps run."""

    base: int
    bytes: int = 0

    def further(self, count: int) -> "Spot":
        """So many bytes on."""
        return Spot(self.base, self.bytes + count)


class Room:
    """Memory that steps write to and read, handed out and given back in the order of the steps."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.size = 0
        """Bytes that were in use at once, at the most."""
        self._taken: dict[int, int] = {}

    def take(self, count: int) -> Spot:
        """So many bytes, in the first gap that has them."""
        start, needed = 0, whole_lines(count)
        for other in sorted(self._taken):
            if other - start >= needed:
                break
            start = other + self._taken[other]
        self._taken[start] = needed
        self.size = max(self.size, start + needed)
        return Spot(self.base, start)

    def give_back(self, spots: Iterable[Spot]) -> None:
        """Steps that follow may write there. What is of another room stays as it is."""
        for spot in spots:
            if spot.base == self.base:
                del self._taken[spot.bytes]


class StepList:
    """Steps, each a program with its numbers: known ones, or spots."""

    def __init__(self) -> None:
        self._table: list[tuple[int, int]] = []
        self._spots: list[Spot] = []

    def add(self, step: Program, numbers: Sequence[int | Spot]) -> None:
        """After those that are there. Base 0 is nowhere: what is a number already is one from there."""
        self._table.append((step.address, len(self._spots)))
        self._spots += [each if isinstance(each, Spot) else Spot(0, each) for each in numbers]

    def finish(self) -> "Steps":
        """As they are run."""
        return Steps(self._table, self._spots)


class Steps:
    """They wait for one another."""

    def __init__(self, table: list[tuple[int, int]], spots: list[Spot]) -> None:
        self._table = np.array(table, dtype=np.int64)
        self._bases, self._bytes = np.array(spots, dtype=np.int64).T.copy()
        self._place = self._table.ctypes.data

    def run(self, bases: Sequence[int], threads: int) -> None:
        """With these addresses, the first one 0, on so many threads. Nothing is checked."""
        numbers = np.array(bases, dtype=np.int64)[self._bases]
        numbers += self._bytes
        _runner(own_tile()).run(self._place, len(self._table), numbers.ctypes.data, threads=threads)


@cache
def _runner(tile: Tile) -> Program:
    """`run_steps(table, steps, numbers)`."""
    k = new_emitter("steps", tile)
    with program(k, "run_steps", 3) as ((table, steps, numbers), thread, threads), k.loop(0, steps) as step:
        there = k.at(k.place(table), k.times(step, 2), I64)
        address, first = (k.load(k.at(there, number, I64), I64) for number in range(2))
        k.call_at(address, k.at(k.place(numbers), first, I64), thread, threads)
        k.barrier(threads)
    return compile_programs(k, ("run_steps",))["run_steps"]
