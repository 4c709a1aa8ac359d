"""Keys and values of the pieces that hypotheses have so far, and what drops those that nobody continues.

Legend: N hypotheses, t pieces of each, G heads of keys and values, K width of a head's keys and of its values.
"""

from functools import cache

import torch
from torch import Tensor

from transduce.model.native.emit import I64
from transduce.model.native.engine import Program, compile_programs, new_emitter, own_tile, program

ROOM = 8  # steps for which there is room at first, and after the pool was enlarged
_LEAST_ROOM = 256  # entries, however few hypotheses there are


class Pool:
    """Keys and values of pieces, whatever hypotheses they belong to."""

    def __init__(self, layers: int, rows: int, width: int, dtype: torch.dtype, *, more: int = 0) -> None:
        """With room for some steps of so many hypotheses, and for more entries, which are 2 × G × K wide."""
        self.entries = torch.empty(layers, more + _room_for(rows), width, dtype=dtype)
        self.used = 0

    def expect(self, count: int) -> None:
        """So many entries: there is room for them before the first one comes. Memory is taken as they are written."""
        if not self.used and not self.has_room(count):
            layers, _, width = self.entries.shape
            self.entries = self.entries.new_empty(layers, count, width)

    def has_room(self, count: int) -> bool:
        """Whether so many fit in."""
        return self.used + count <= self.entries.shape[1]

    def compact(self, lists: Tensor, rows: int) -> Tensor:
        """Drops what no list (N, t) names, makes room for steps of so many rows, and returns the lists' new names."""
        live, renamed = lists.unique(return_inverse=True)  # ascending
        live, self.used = live.long(), len(live)
        layers, room, width = self.entries.shape
        if self.used + rows * ROOM // 2 > room:
            old, self.entries = self.entries, self.entries.new_empty(layers, self.used + _room_for(rows), width)
            for layer, kept in enumerate(old):
                torch.index_select(kept, 0, live, out=self.entries[layer, : self.used])
        else:
            floats = width * self.entries.itemsize // torch.float32.itemsize
            _move_program().run(self.entries.data_ptr(), layers, room, floats, live.data_ptr(), self.used)
        names: Tensor = renamed.to(torch.int32)
        return names


def _room_for(rows: int) -> int:
    """Entries for some steps of so many rows."""
    return max(_LEAST_ROOM, ROOM * rows)


@cache
def _move_program() -> Program:
    """`move(entries, layers, room, width, live, count)`: entry live[n] of each layer to place n, no earlier one.

    In place, which an operation of PyTorch does by a copy of all and another one back.
    """
    k = new_emitter("pool", own_tile())
    with program(k, "move", 6) as (numbers, thread, threads):
        entries, layers, room, width, live, count = numbers
        first, last = k.share(layers, thread, threads)
        with k.loop(first, last) as layer:
            start = k.at(k.place(entries), k.times(layer, room, width))
            with k.loop(0, count) as place:
                entry = k.load(k.at(k.place(live), place, I64), I64)
                with k.where(k.build.icmp_signed("!=", entry, place)):
                    k.copy(k.at(start, k.times(entry, width)), k.at(start, k.times(place, width)), width)
    return compile_programs(k, ("move",))["move"]
