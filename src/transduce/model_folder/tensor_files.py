"""Map the tensors of safetensors files from disk, and write such files tensor by tensor.

A mapped tensor costs no memory until it is read, and processes that map the same file share its pages. So a file that
may be mapped is never changed in place: a new file is written under another name and renamed. On Windows tensors are
copied.
"""

import hashlib
import os
import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from transduce.atomic_io import name_path_in_errors
from transduce.errors import TransduceError
from transduce.model_folder.safety import file_inside, read_tensor_header
from transduce.process_environment import release_mapped_pages

SAFETENSORS_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""PyTorch's data types for the tensors of a model's safetensors file, by the names that the format uses."""
_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}
ALIGNMENT = 64
"""The data section of a file starts at a multiple of this many bytes, the size of a vector register."""


class FileVersion(msgspec.Struct, frozen=True):
    """A file's size, times and inode, which differ after the file was replaced or written to."""

    size: int
    """The file's size in bytes."""
    modified_ns: int
    """Time of the last change of the content, in nanoseconds since 1970."""
    changed_ns: int
    """Time of the last change of content, name or rights, in nanoseconds since 1970; programs cannot set it on Unix."""
    inode: int
    """The file's number on its file system."""

    @classmethod
    def of(cls, path: Path) -> "FileVersion":
        """Return the current version of a file: its size, times and inode."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


# --- reading ---


class MappedTensors:
    """The tensors of a safetensors file, mapped from disk, so that they are read only when they are used.

    Writing to a mapped tensor changes neither the file nor the tensors of other processes.
    """

    def __init__(self, folder: Path, name: str, *, whole_numbers: Collection[str] | None = ()) -> None:
        """Check the header of a file in a folder, and map the file.

        Args:
            folder: the folder.
            name: the file's name in the folder.
            whole_numbers: the names of tensors that may hold integers or booleans; None: all.

        Raises:
            TransduceError: the file is missing or damaged, or holds tensors of another type.
        """
        self.path = file_inside(folder, name)
        while True:  # until the file is not replaced meanwhile
            self.header = read_tensor_header(folder, name, whole_numbers=whole_numbers)
            try:
                self.version = FileVersion.of(self.path)
                size = self.version.size
                self._bytes: Any = torch.UntypedStorage.from_file(str(self.path), shared=False, nbytes=size)
                if FileVersion.of(self.path) == self.version:
                    break
            except (OSError, RuntimeError) as error:
                raise TransduceError(f"{self.path} cannot be read: {error}.") from error
        self.entries = self.header.entries

    def tensor(self, name: str) -> Tensor:
        """Return the tensor with this name, mapped from the file (on Windows a copy)."""
        entry = self.entries[name]
        return self._view(*entry.data_offsets, entry.dtype, entry.shape)

    def rows(self, names: Iterable[str]) -> Tensor | None:
        """Return one mapped tensor that joins the tensors with these names along their rows, without a copy.

        The result is None if the tensors are not adjacent in the file, or differ in dtype or in the shape of a row.
        """
        first, *others = (self.entries[name] for name in names)
        end, rows = first.data_offsets[1], first.shape[0] if first.shape else 0
        for entry in others:
            is_next = (entry.dtype, entry.shape[1:]) == (first.dtype, first.shape[1:]) and entry.data_offsets[0] == end
            if not entry.shape or not first.shape or not is_next:
                return None
            end, rows = entry.data_offsets[1], rows + entry.shape[0]
        shape = [rows, *first.shape[1:]] if first.shape else []
        return self._view(first.data_offsets[0], end, first.dtype, shape)

    def release(self) -> None:
        """Give back to the system the memory of the file's pages, which are read again when they are needed.

        No mapped tensor may have been written to, because the change would be undone.
        """
        release_mapped_pages(self._bytes.data_ptr(), self.version.size)

    def _view(self, start: int, stop: int, dtype: str, shape: list[int]) -> Tensor:
        """Return a tensor of this dtype and shape over the bytes from `start` to `stop` of the file's data section."""
        if start == stop:
            return torch.empty(shape, dtype=SAFETENSORS_DTYPES[dtype])
        # Each tensor has a storage of its own, so that copying or pickling a tensor does not take the whole file along.
        data = len(self.header.content)
        part = self._bytes[data + start : data + stop]
        tensor = torch.asarray(part, dtype=torch.uint8).view(SAFETENSORS_DTYPES[dtype]).view(shape)
        # Windows refuses to replace a file that is mapped, and a run replaces its weights while others use them.
        return tensor.clone() if os.name == "nt" else tensor


# --- writing ---


def write_tensors(
    path: Path, templates: Mapping[str, Tensor], tensors: Iterable[tuple[str, Tensor]], metadata: Mapping[str, str]
) -> str:
    """Write a safetensors file tensor by tensor, so that only one must be in memory; return its SHA-256 (hexadecimal).

    Args:
        path: the file, which must not be in use: write under another name and rename.
        templates: a mapping from names to tensors on any device, such as the meta device, with the shape and dtype of
            each.
        tensors: pairs of a name and a tensor, in the order of `templates`.
        metadata: texts by name for the file's header.

    Raises:
        OSError: the file cannot be written.
        ValueError: a tensor differs from `templates`.
    """
    digest = hashlib.sha256()
    with name_path_in_errors(path), path.open("wb") as file:

        def write(content: Any) -> None:
            file.write(content)
            digest.update(content)

        write(header_bytes(templates, metadata))
        for (name, tensor), (expected_name, expected) in zip(tensors, templates.items(), strict=True):
            if (name, tensor.shape, tensor.dtype) != (expected_name, expected.shape, expected.dtype):
                raise ValueError(f"expected {expected_name} {tuple(expected.shape)}, not {name} {tuple(tensor.shape)}")
            write(memoryview(bytes_of(tensor)))
    return digest.hexdigest()


def header_bytes(templates: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the header of a safetensors file as bytes.

    The bytes begin with the header's length, and are padded so that the tensors' data after the header are aligned.

    Args:
        templates: tensors by name, of which only shapes and dtypes are used. The file's data must follow in this order.
        metadata: free texts by name.
    """
    content: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, tensor in templates.items():
        size = tensor.numel() * tensor.itemsize
        content[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, position + size],
        }
        position += size
    encoded = msgspec.json.encode(content)
    encoded += b" " * (-(len(encoded) + 8) % ALIGNMENT)
    return struct.pack("<Q", len(encoded)) + encoded


def bytes_of(tensor: Tensor) -> Any:
    """Return a tensor's bytes as a NumPy array, uint8, which shares the memory of a contiguous tensor on the CPU."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
