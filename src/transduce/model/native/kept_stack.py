"""Allocate, on one stack, what a training layer keeps for its backward pass and its scratch space.

Batch sizes vary, so blocks of some 10 MB fragment the C library's heap: a sixth of it lay idle. The layer that ran last
runs its backward pass first, which suits a stack. It reserves as much address space as the machine has memory; pages
that were never used take none.
"""

import ctypes
import mmap
import os
from functools import cache
from threading import RLock

import torch

from transduce.model.native.arena import whole_lines


class Piece:
    """A block of uninitialized memory, freed when the object is released or garbage-collected."""

    def __init__(self, stack: "KeptStack", address: int) -> None:
        self.address = address
        self._stack = stack

    def give_back(self) -> None:
        """Free the block."""
        self._stack.live.pop(self.address, None)

    def __del__(self) -> None:
        self.give_back()


class KeptStack:
    """A stack allocator: each new block follows all blocks in use."""

    def __init__(self, size: int) -> None:
        """Reserve `size` bytes of address space; if the system refuses, every block comes from the heap."""
        self.live: dict[int, int] = {}
        """The end address of each block in use, by its start address."""
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
        """Allocate `count` bytes, on the heap if the stack is full."""
        with self._lock:
            start = max([*self.live.values()], default=self._first)
            end = start + whole_lines(count)
            if end <= self._end:
                self.live[start] = end
                return Piece(self, start)
        return _HeapPiece(self, torch.empty(count, dtype=torch.uint8))


class _HeapPiece(Piece):
    """A block on the heap, for when the stack is full."""

    def __init__(self, stack: KeptStack, memory: torch.Tensor) -> None:
        super().__init__(stack, memory.data_ptr())
        self._memory: torch.Tensor | None = memory

    def give_back(self) -> None:
        """Free the block."""
        self._memory = None


@cache
def own_stack() -> KeptStack:
    """Return the stack of this process, created on first use."""
    return KeptStack(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
