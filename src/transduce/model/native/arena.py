"""Allocate many named arrays in one block of memory, and give kernels their addresses.

A PyTorch allocation takes 1–3 µs however small it is, and a search has two dozen arrays: separate allocations took a
fifth of the time of decoding a single sentence.
"""

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_LINE = 64  # bytes of a cache line, to which arrays are aligned
_IN_C: dict[torch.dtype, Any] = {
    torch.int32: ctypes.c_int32,
    torch.int64: ctypes.c_int64,
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
}


def whole_lines(count: int) -> int:
    """Round a size in bytes up to whole cache lines, at least one, so that empty arrays have distinct addresses too."""
    return -(-max(count, 1) // _LINE) * _LINE


class Arena:
    """A block of memory with named arrays, which live as long as the arena."""

    def __init__(self, arrays: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], *, zeroed: bool = False) -> None:
        """Allocate arrays of these dtypes and shapes, zeroed or uninitialized."""
        self._arrays = arrays
        self._sizes = {name: math.prod(shape) * dtype.itemsize for name, (dtype, shape) in arrays.items()}
        self._starts, end = {}, 0
        for name, size in self._sizes.items():
            self._starts[name] = end
            end += whole_lines(size)
        self._memory = (torch.zeros if zeroed else torch.empty)(end, dtype=torch.uint8)
        base = self._memory.data_ptr()
        self.addresses = {name: base + start for name, start in self._starts.items()}
        """The address of each array by name."""
        self._tensors: dict[str, Tensor] = {}
        self._numbers: dict[str, Any] = {}

    def tensor(self, name: str) -> Tensor:
        """Return an array as a tensor that shares the arena's memory."""
        if name not in self._tensors:
            (dtype, shape), start = self._arrays[name], self._starts[name]
            self._tensors[name] = self._memory[start : start + self._sizes[name]].view(dtype).view(shape)
        return self._tensors[name]

    def numbers(self, name: str) -> Any:
        """Return an array as a flat ctypes array, for fast access to a few elements.

        The ctypes array does not keep the memory alive.
        """
        if name not in self._numbers:
            kind = _IN_C[self._arrays[name][0]]
            count = self._sizes[name] // ctypes.sizeof(kind)
            self._numbers[name] = (kind * count).from_address(self.addresses[name])
        return self._numbers[name]
