"""Arrays for machine code: one piece of memory in which each array has an address.

An operation of PyTorch takes one to three microseconds however little it does, and a search has two dozen arrays: made
one by one, they took a fifth of the time of a sentence that is decoded alone.
"""

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_LINE = 64  # bytes; each array begins on a cache line of its own
_IN_C: dict[torch.dtype, Any] = {
    torch.int32: ctypes.c_int32,
    torch.int64: ctypes.c_int64,
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
}


def whole_lines(count: int) -> int:
    """So many bytes, filled up to cache lines, one at least: whatever there is has a place of its own."""
    return -(-max(count, 1) // _LINE) * _LINE


class Arena:
    """Arrays by name; they live as long as this does."""

    def __init__(self, arrays: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], *, zeroed: bool = False) -> None:
        """Type and shape of each; what they hold is zeros, or whatever."""
        self._arrays = arrays
        self._sizes = {name: math.prod(shape) * dtype.itemsize for name, (dtype, shape) in arrays.items()}
        self._starts, end = {}, 0
        for name, size in self._sizes.items():
            self._starts[name] = end
            end += whole_lines(size)
        self._memory = (torch.zeros if zeroed else torch.empty)(end, dtype=torch.uint8)
        base = self._memory.data_ptr()
        self.addresses = {name: base + start for name, start in self._starts.items()}
        self._tensors: dict[str, Tensor] = {}
        self._numbers: dict[str, Any] = {}

    def tensor(self, name: str) -> Tensor:
        """An array as a view of the memory."""
        if name not in self._tensors:
            (dtype, shape), start = self._arrays[name], self._starts[name]
            self._tensors[name] = self._memory[start : start + self._sizes[name]].view(dtype).view(shape)
        return self._tensors[name]

    def numbers(self, name: str) -> Any:
        """An array as a flat one of ctypes, to read and to write a few numbers. It does not keep the memory alive."""
        if name not in self._numbers:
            kind = _IN_C[self._arrays[name][0]]
            count = self._sizes[name] // ctypes.sizeof(kind)
            self._numbers[name] = (kind * count).from_address(self.addresses[name])
        return self._numbers[name]
