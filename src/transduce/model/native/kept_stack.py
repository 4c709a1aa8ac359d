"""Memory of layers in training: what one keeps until its way back, and what it needs while it runs.

Batches have ever new sizes, and between pieces of some ten megabytes the C library's heap has ever more gaps: a sixth
of it lay idle. But the layer that came last goes back first. So there is one stack, of as many addresses as the machine
has memory; what has never been used takes none.
"""

import ctypes
import mmap
import os
from functools import cache
from threading import RLock

import torch

from transduce.model.native.arena import whole_lines


class Piece:
    """So many bytes, whatever they hold; given back when nobody has the piece any more."""

    def __init__(self, stack: "KeptStack", address: int) -> None:
        self.address = address
        self._stack = stack

    def give_back(self) -> None:
        """Others may have the memory from now on."""
        self._stack.live.pop(self.address, None)

    def __del__(self) -> None:
        self.give_back()


class KeptStack:
    """Pieces, each behind all that are in use."""

    def __init__(self, size: int) -> None:
        """Of so many bytes, or none where the system does not give the addresses."""
        self.live: dict[int, int] = {}
        """Where pieces begin, and where they end."""
        self._first = self._end = 0
        self._lock = RLock()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            self._memory = mmap.mmap(-1, size, flags=flags)
        except (OSError, OverflowError):
            return
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._end = self._first + size

    def take(self, count: int) -> Piece:
        """So many bytes; of the heap where the stack has no room."""
        with self._lock:
            start = max([*self.live.values()], default=self._first)
            end = start + whole_lines(count)
            if end <= self._end:
                self.live[start] = end
                return Piece(self, start)
        return _HeapPiece(self, torch.empty(count, dtype=torch.uint8))


class _HeapPiece(Piece):
    def __init__(self, stack: KeptStack, memory: torch.Tensor) -> None:
        super().__init__(stack, memory.data_ptr())
        self._memory: torch.Tensor | None = memory

    def give_back(self) -> None:
        self._memory = None


@cache
def own_stack() -> KeptStack:
    """The process' own."""
    return KeptStack(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
