"""Store the decoder's KV cache as a pool of entries that beam hypotheses share, and compact the pool when it is full.

Legend: N hypotheses, t tokens of each, G key/value heads, K width of a head's keys and of its values.
"""

from functools import cache

import torch
from torch import Tensor

from transduce.model.native.emit import I64
from transduce.model.native.engine import Program, compile_programs, new_emitter, own_tile, program

ROOM = 8
"""Steps that fit into the pool at first, and again after it is enlarged."""
_LEAST_ENTRIES = 256  # minimum number of entries to allocate


class Pool:
    """A KV cache of tokens in any order; each hypothesis has a list of the entries of its tokens."""

    def __init__(self, layers: int, rows: int, width: int, dtype: torch.dtype, *, more: int = 0) -> None:
        """Allocate capacity for some steps of `rows` hypotheses, and for `more` entries besides.

        `width` is 2 × G × K, the elements of an entry per layer.
        """
        self.entries = torch.empty(layers, more + _capacity_for(rows), width, dtype=dtype)
        self.used = 0

    def expect(self, count: int) -> None:
        """Enlarge an empty pool to `count` entries; the system allocates pages only as they are written."""
        if not self.used and not self.has_room(count):
            layers, _, width = self.entries.shape
            self.entries = self.entries.new_empty(layers, count, width)

    def has_room(self, count: int) -> bool:
        """Return whether `count` more entries fit."""
        return self.used + count <= self.entries.shape[1]

    def compact(self, lists: Tensor, rows: int) -> Tensor:
        """Drop entries that no list (N, t) contains, and return the lists with the entries' new indices.

        Afterwards there is capacity for at least `ROOM` / 2 more steps of `rows` hypotheses.
        """
        live, renamed = lists.unique(return_inverse=True)  # ascending
        live, self.used = live.long(), len(live)
        layers, capacity, width = self.entries.shape
        if self.used + rows * ROOM // 2 > capacity:
            old, self.entries = self.entries, self.entries.new_empty(layers, self.used + _capacity_for(rows), width)
            for layer, layer_entries in enumerate(old):
                torch.index_select(layer_entries, 0, live, out=self.entries[layer, : self.used])
        else:
            floats = width * self.entries.itemsize // torch.float32.itemsize
            _compaction_kernel().run(self.entries.data_ptr(), layers, capacity, floats, live.data_ptr(), self.used)
        new_lists: Tensor = renamed.to(torch.int32)
        return new_lists


def _capacity_for(rows: int) -> int:
    """Return the number of entries to allocate for some steps of `rows` hypotheses."""
    return max(_LEAST_ENTRIES, ROOM * rows)


@cache
def _compaction_kernel() -> Program:
    """Compile `move(entries, layers, capacity, width, live, count)`: copy entry live[n] of each layer to index n.

    live is ascending, so the move works in place; a PyTorch operation would copy everything twice. width counts
    float32.
    """
    k = new_emitter("pool", own_tile())
    with program(k, "move", 6) as (numbers, thread, threads):
        entries, layers, capacity, width, live, count = numbers
        first, last = k.share(layers, thread, threads)
        with k.loop(first, last) as layer:
            start = k.at(k.place(entries), k.times(layer, capacity, width))
            with k.loop(0, count) as index:
                entry = k.load(k.at(k.place(live), index, I64), I64)
                with k.where(k.build.icmp_signed("!=", entry, index)):
                    k.copy(k.at(start, k.times(entry, width)), k.at(start, k.times(index, width)), width)
    return compile_programs(k, ("move",))["move"]
