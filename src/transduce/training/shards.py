"""Tensors cut by rows: one part in each process, or in each file of a checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor


class Rows(msgspec.Struct, frozen=True):
    """The range of a complete tensor's rows that one file or process holds."""

    start: int
    whole: list[int]
    """The shape of the complete tensor."""


class Sliceable(Protocol):
    """An interface of tensors in memory or in files whose rows can be read."""

    @property
    def shape(self) -> Sequence[int]:
        """The shape of the complete tensor."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Return a range of the tensor's rows."""


class _Part(NamedTuple):
    path: Path
    start: int
    stop: int


class StoredTensor:
    """A tensor whose rows lie in several files and are read on demand."""

    def __init__(self, name: str, shape: Sequence[int]) -> None:
        self.name = name
        self.shape = shape
        self.parts: list[_Part] = []

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Read a range of rows from the files that hold them."""
        start, stop, _ = rows.indices(self.shape[0])
        parts = []
        for part in self.parts:
            first, last = max(start, part.start), min(stop, part.stop)
            if first < last:
                with safe_open(part.path, framework="pt") as file:
                    parts.append(file.get_slice(self.name)[first - part.start : last - part.start])
        return torch.cat(parts) if parts else torch.empty(0, *self.shape[1:])


def open_parts(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """Return, by name, the tensors whose rows are spread over several files."""
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name, encoded in (file.metadata() or {}).items():
                rows = msgspec.json.decode(encoded, type=Rows)
                length = file.get_slice(name).get_shape()[0]
                tensor = tensors.setdefault(name, StoredTensor(name, rows.whole))
                tensor.parts.append(_Part(path, rows.start, rows.start + length))
    for tensor in tensors.values():
        tensor.parts.sort(key=lambda part: part.start)
    return tensors
