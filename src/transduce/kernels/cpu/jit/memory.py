"""Manage the memory of compiled kernels: named arrays, a stack for training, rows of files, and recorded calls."""

import ctypes
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    compile_kernels,
    kernel,
    require_integer_tile,
)
from transduce.kernels.cpu.jit.ir_builder import I32, I64, POINTER, KernelBuilder, Value, outlined
from transduce.kernels.cpu.jit.tile import Tile
from transduce.kernels.prepacked import version_of

# --- named arrays ---
# A PyTorch allocation takes 1–3 µs however small it is, and a search has two dozen arrays. Separate allocations took
# a fifth of the time of decoding a single sentence.


_LINE = 64  # bytes of a cache line, to which arrays are aligned
_IN_C: dict[torch.dtype, Any] = {
    torch.int32: ctypes.c_int32,
    torch.int64: ctypes.c_int64,
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
}


class KernelArguments:
    """A ctypes array of 64-bit kernel arguments, which Python code reads and writes by name, as in a dictionary."""

    def __init__(self, kind: type[Any], **values: int) -> None:
        """Create a kernel's arguments, whose names are the fields of the NamedTuple class `kind`.

        Arguments that are not passed are 0.
        """
        self._indices = _indices(kind._fields)
        self.array = (ctypes.c_int64 * len(self._indices))(*kind(**dict.fromkeys(kind._fields, 0) | values))

    def __getitem__(self, name: str) -> int:
        return self.array[self._indices[name]]

    def __setitem__(self, name: str, value: int) -> None:
        self.array[self._indices[name]] = value


@cache
def _indices(names: tuple[str, ...]) -> dict[str, int]:
    return {name: index for index, name in enumerate(names)}


def round_up_to_cache_lines(count: int) -> int:
    """Return a size in bytes, rounded up to whole cache lines of 64 bytes, and at least one line.

    So empty arrays have distinct addresses too.
    """
    return -(-max(count, 1) // _LINE) * _LINE


class Arena:
    """A block of memory that holds several named arrays; one allocation is faster than one for each array.

    The arrays live as long as the arena.
    """

    def __init__(self, arrays: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], *, zeroed: bool = False) -> None:
        """Allocate arrays in one block, zeroed or else uninitialized.

        `arrays` maps each array's name to its dtype and shape.
        """
        self._arrays = arrays
        self._sizes = {name: math.prod(shape) * dtype.itemsize for name, (dtype, shape) in arrays.items()}
        self._starts, end = {}, 0
        for name, size in self._sizes.items():
            self._starts[name] = end
            end += round_up_to_cache_lines(size)
        self._memory = (torch.zeros if zeroed else torch.empty)(end, dtype=torch.uint8)
        base = self._memory.data_ptr()
        self.addresses = {name: base + start for name, start in self._starts.items()}
        """A dict from each array's name to its memory address."""
        self._tensors: dict[str, Tensor] = {}
        self._numbers: dict[str, Any] = {}

    def tensor(self, name: str) -> Tensor:
        """Return the arena's array with the given name as a tensor that shares the memory."""
        if name not in self._tensors:
            (dtype, shape), start = self._arrays[name], self._starts[name]
            self._tensors[name] = self._memory[start : start + self._sizes[name]].view(dtype).view(shape)
        return self._tensors[name]

    def ctypes_array(self, name: str) -> Any:
        """Return the arena's array with the given name as a flat ctypes array, for fast access to a few elements.

        The ctypes array does not keep the memory alive.
        """
        if name not in self._numbers:
            kind = _IN_C[self._arrays[name][0]]
            count = self._sizes[name] // ctypes.sizeof(kind)
            self._numbers[name] = (kind * count).from_address(self.addresses[name])
        return self._numbers[name]


# --- rows of a mapped file ---
# A step reads few rows of a vocabulary matrix: embeddings, and the weights of the likeliest tokens. If the matrix is
# mapped from a file, Linux maps 64 KiB around each of them, or 2 MiB where the page cache holds large pages. That makes
# the whole matrix resident after some hundred steps. Kernels therefore read rows by `pread`.


_MIN_FILE_BYTES = 32 << 20  # smaller matrices are read through their mapping
_READ, _DESCRIPTOR, _START = range(3)  # the elements of `FileRows.numbers`
_MAPS = Path("/proc/self/maps")  # exists on Linux only


class FileRows:
    """A file, opened for kernels that read single rows of a float32 matrix mapped from it, such as embeddings.

    Reading rows by `pread` leaves the rest of the matrix out of memory.
    """

    def __init__(self, descriptor: int, start: int) -> None:
        """Take over an open file descriptor of the file, in which the matrix begins at byte offset `start`."""
        self._descriptor = descriptor
        read = ctypes.cast(ctypes.CDLL(None).pread, ctypes.c_void_p).value or 0
        self.numbers = torch.tensor([read, descriptor, start])
        """A tensor of three int64, from which `row_pointer` reads rows.

        The numbers are the address of `pread` (0: read the mapping), the file descriptor, and the matrix's offset in
        bytes.
        """

    def __del__(self) -> None:
        os.close(self._descriptor)

    @classmethod
    def find(cls, matrix: Tensor) -> "FileRows | None":
        """Return a `FileRows` for the file that a matrix is mapped from; None if rows are to be read from memory.

        Rows are read from memory if the matrix is not mapped from a file that can be opened, or was changed in memory.
        The same holds for a matrix below 32 MiB, and for one that is not two-dimensional, contiguous and float32.
        Systems other than Linux, without /proc/self/maps, always read from memory.
        """
        size, address = matrix.numel() * matrix.itemsize, matrix.data_ptr()
        fits = (
            matrix.dtype == torch.float32 and matrix.dim() == 2 and matrix.is_contiguous() and version_of(matrix) == 0
        )
        if not fits or size < _MIN_FILE_BYTES or not _MAPS.exists():
            return None
        for line in _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            area, _, offset, device, inode, *path = line.split(maxsplit=5)
            first, last = (int(each, 16) for each in area.split("-"))
            if first <= address and address + size <= last:
                found = int(inode), os.makedev(*(int(each, 16) for each in device.split(":")))
                return cls._open(path, found, address - first + int(offset, 16), matrix)
        return None

    @classmethod
    def _open(cls, path: Sequence[str], found: tuple[int, int], start: int, matrix: Tensor) -> "FileRows | None":
        """Return a `FileRows` for the file of a mapped matrix; None if the file cannot be used.

        The file must exist, be readable, be the mapped one, and have the matrix's first and last rows.

        Args:
            path: a list with the file's path as its only element; empty if the mapping has no file.
            found: the mapping's inode and device.
            start: the byte offset of the matrix in the file.
            matrix: the mapped matrix.
        """
        size, row = matrix.numel() * matrix.itemsize, matrix.shape[1] * matrix.itemsize
        try:
            descriptor = os.open(path[0], os.O_RDONLY | os.O_CLOEXEC) if path else -1
        except OSError:
            return None
        if descriptor < 0:
            return None
        rows, status = cls(descriptor, start), os.fstat(descriptor)
        is_same = (status.st_ino, status.st_dev) == found and all(
            os.pread(descriptor, row, start + at) == ctypes.string_at(matrix.data_ptr() + at, row)
            for at in (0, size - row)
        )
        return rows if is_same else None


_FILE_ROWS = WeakTensorKeyDictionary()
_FILE_ROWS_LOCK = RLock()
_ROWS_BY_ADDRESS: WeakValueDictionary[tuple[int, int], FileRows] = WeakValueDictionary()  # by address and size
_NO_FILE = torch.zeros(1, dtype=torch.int64)


def file_rows(matrix: Tensor) -> Tensor:
    """Return an int64 tensor by which emitted code (`row_pointer`) reads a matrix's rows from its file.

    The elements are those of `FileRows.numbers`. The first is 0 if rows are to be read from memory: there is no file,
    or the matrix was changed in memory. The caller keeps the tensor while a kernel runs.
    """
    with _FILE_ROWS_LOCK:  # rows found twice would be closed once, under a kernel that reads them
        if matrix not in _FILE_ROWS:
            key = matrix.data_ptr(), matrix.numel()
            rows = _ROWS_BY_ADDRESS.get(key) or FileRows.find(matrix)
            if rows is not None:
                _ROWS_BY_ADDRESS[key] = rows
            _FILE_ROWS[matrix] = rows
        rows = _FILE_ROWS[matrix]
    if rows is None:
        return _NO_FILE
    if version_of(matrix):
        rows.numbers[_READ] = 0
    numbers: Tensor = rows.numbers
    return numbers


def row_pointer(k: KernelBuilder, matrix: Value, rows: Value, number: Value, width: Value, scratch: Value) -> Value:
    """Return a pointer to a row of a float32 matrix; emit its reading from the matrix's file, if any, into `scratch`.

    If there is no file or reading fails, the pointer is into the matrix in memory.

    Args:
        k: the IR builder.
        matrix: a pointer to the matrix, (rows, width).
        rows: a pointer to the elements of the tensor that `file_rows` returned for the matrix.
        number: the index of the row.
        width: the number of columns.
        scratch: a pointer to space for one row.
    """
    mapped = k.element_pointer(matrix, k.mul(number, width))
    found = k.variable(mapped)
    read = k.load(k.element_pointer(rows, _READ, I64), I64)
    with k.when(k.is_nonzero(read)):
        size = k.mul(width, 4)
        descriptor, start = (k.load(k.element_pointer(rows, each, I64), I64) for each in (_DESCRIPTOR, _START))
        kind = ir.FunctionType(I64, [I32, POINTER, I64, I64])
        function = k.build.inttoptr(read, kind.as_pointer())
        values = (k.build.trunc(descriptor, I32), scratch, size, k.add(start, k.mul(number, size)))
        with k.when(k.build.icmp_signed("==", k.build.call(function, values), size)):
            k.store(scratch, found)
    return k.load_variable(found)


# --- stack allocator ---
# For what a training layer saves for its backward pass, and for its scratch space. Batch sizes vary, so blocks of
# some 10 MB fragment the C library's heap: a sixth of it lay idle. The layer that ran last runs its backward pass
# first, which suits a stack. The stack reserves as much address space as the machine has memory; pages that were
# never used take none.


class MemoryBlock:
    """A block of uninitialized memory from a `StackAllocator`, freed when `free` is called or the object is deleted."""

    def __init__(self, live: dict[int, int], address: int, on_heap: Tensor | None = None) -> None:
        """Create a block at an address.

        Args:
            live: `StackAllocator.live`, from which the address is removed when the block is freed.
            address: the block's memory address.
            on_heap: the tensor that holds the block's memory; None if the block is on the stack.
        """
        self.address = address
        self._live, self._on_heap = live, on_heap
        self._is_free = False

    def free(self) -> None:
        """Free the memory block; a second call does nothing, since another block may then have the address."""
        if not self._is_free:
            self._is_free, self._on_heap = True, None
            self._live.pop(self.address, None)

    def __del__(self) -> None:
        self.free()


class StackAllocator:
    """An allocator of memory blocks on a stack: each new block lies behind all blocks in use.

    A stack suits what a training layer saves for its backward pass, as layers run in the reverse order there.
    """

    def __init__(self, size: int) -> None:
        """Reserve `size` bytes of address space; if the system refuses, all blocks are allocated on the heap."""
        self.live: dict[int, int] = {}
        """A dict from the start address of each block in use on the stack to its end address."""
        self._first = self._end = 0
        self._lock = RLock()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            self._memory = mmap.mmap(-1, size, flags=flags)
        except (OSError, OverflowError):
            return
        self._first = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._end = self._first + size

    def allocate(self, count: int) -> MemoryBlock:
        """Return a new block of `count` bytes, on the heap if the stack is full.

        The block is freed when its object is deleted.
        """
        with self._lock:
            start = max([*self.live.values()], default=self._first)
            end = start + round_up_to_cache_lines(count)
            if end <= self._end:
                self.live[start] = end
                return MemoryBlock(self.live, start)
        on_heap = torch.empty(count, dtype=torch.uint8)
        return MemoryBlock({}, on_heap.data_ptr(), on_heap)


@cache
def process_stack() -> StackAllocator:
    """Return this process's stack for training memory, created on first use with as much address space as memory."""
    return StackAllocator(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


# --- recorded lists of kernel calls ---
# Between two separate calls, Python and PyTorch run with caches that the first call has evicted, which takes some
# hundred microseconds. A single call of a whole list avoids that.


class MemoryOffset(NamedTuple):
    """A memory address as an offset from a base address, which is known only when the recorded kernel calls run."""

    base: int
    """The index of the offset's base address in the sequence of addresses that `CompiledSteps.run` takes."""
    bytes: int = 0
    """The offset from the base address in bytes."""

    def advance(self, count: int) -> "MemoryOffset":
        """Return the memory offset that lies `count` bytes later, from the same base address."""
        return MemoryOffset(self.base, self.bytes + count)


class MemoryPlan:
    """A planner of scratch memory for a list of kernel calls, in which later calls reuse freed memory.

    The planner only assigns offsets, and the caller allocates the memory. `base` is the index of the memory's address
    among the base addresses that `CompiledSteps.run` takes.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self.size = 0
        """The peak of the memory that is in use at once, in bytes, which the caller must allocate."""
        self._taken: dict[int, int] = {}

    def allocate(self, count: int) -> MemoryOffset:
        """Assign `count` bytes in the first free gap that is large enough; return the gap's `MemoryOffset`."""
        start, needed = 0, round_up_to_cache_lines(count)
        for allocated in sorted(self._taken):
            if allocated - start >= needed:
                break
            start = allocated + self._taken[allocated]
        self._taken[start] = needed
        self.size = max(self.size, start + needed)
        return MemoryOffset(self.base, start)

    def free(self, offsets: Iterable[MemoryOffset]) -> None:
        """Mark the memory at some offsets as free for later kernel calls; offsets from another base are ignored."""
        for offset in offsets:
            if offset.base == self.base:
                del self._taken[offset.bytes]


class StepList:
    """A builder of a list of kernel calls, whose arguments are numbers or memory offsets, to be run again and again."""

    def __init__(self) -> None:
        self._table: list[tuple[int, int]] = []
        self._arguments: list[MemoryOffset] = []

    def add(self, step: CompiledKernel, numbers: Sequence[int | MemoryOffset]) -> None:
        """Append a kernel call, whose arguments are numbers or memory offsets.

        A memory offset becomes an address when the call runs.
        """
        self._table.append((step.address, len(self._arguments)))
        # Base 0 has the address 0, so a plain number is an offset from it.
        self._arguments += [each if isinstance(each, MemoryOffset) else MemoryOffset(0, each) for each in numbers]

    def finish(self) -> "CompiledSteps":
        """Return the kernel calls that were added as `CompiledSteps`, which can be run."""
        return CompiledSteps(self._table, self._arguments)


class CompiledSteps:
    """A list of kernel calls that one call from Python runs, with a barrier after each kernel call."""

    def __init__(self, table: list[tuple[int, int]], offsets: list[MemoryOffset]) -> None:
        self._table = np.array(table, dtype=np.int64)
        self._bases, self._bytes = np.array(offsets, dtype=np.int64).T.copy()
        self._table_address = self._table.ctypes.data

    def run(self, bases: Sequence[int], threads: int) -> None:
        """Run all kernel calls in order on `threads` threads; memory offsets in their arguments become addresses.

        `bases` holds the base addresses to which offsets refer by index; the first must be 0. Nothing is checked.
        """
        numbers = np.array(bases, dtype=np.int64)[self._bases]
        numbers += self._bytes
        _runner(require_integer_tile()).run(self._table_address, len(self._table), numbers.ctypes.data, threads=threads)


@cache
def _runner(tile: Tile) -> CompiledKernel:
    """Return the compiled kernel `run_steps(table, steps, numbers)`, which runs a list of kernel calls.

    The table holds, for each step, a kernel's address and the index of its first argument in `numbers`. After each step
    there is a barrier.
    """
    return compile_kernels("steps", tile, ("run_steps",), _emit_runner)["run_steps"]


@outlined
def _emit_runner(k: KernelBuilder) -> None:
    """Emit the kernel `run_steps`."""
    with kernel(k, "run_steps", 3) as ((table, steps, numbers), thread, threads), k.loop(0, steps) as step:
        entry = k.element_pointer(k.pointer(table), k.mul(step, 2), I64)
        address, first = (k.load(k.element_pointer(entry, number, I64), I64) for number in range(2))
        k.call_address(address, k.element_pointer(k.pointer(numbers), first, I64), thread, threads)
        k.barrier(threads)
