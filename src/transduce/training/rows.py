"""Tensors that lie in parts: one part in each process, or in each file of a checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor


class Rows(msgspec.Struct, frozen=True):
    """Which rows of a whole tensor a part is."""

    start: int
    whole: list[int]
    """The shape of the tensor that they are part of."""


class Sliceable(Protocol):
    """A tensor, or what reads one from files."""

    @property
    def shape(self) -> Sequence[int]:
        """Its shape."""

    def __getitem__(self, rows: slice, /) -> Tensor:
        """These rows of it."""


class _Part(NamedTuple):
    path: Path
    start: int
    stop: int


class StoredTensor:
    """A tensor whose rows lie in several files; those that are asked for are read."""

    def __init__(self, name: str, shape: Sequence[int]) -> None:
        self.name = name
        self.shape = shape
        self.parts: list[_Part] = []

    def __getitem__(self, rows: slice, /) -> Tensor:
        """These rows, of which there is at least one file with each."""
        start, stop, _ = rows.indices(self.shape[0])
        found = []
        for part in self.parts:
            first, last = max(start, part.start), min(stop, part.stop)
            if first < last:
                with safe_open(part.path, framework="pt") as file:
                    found.append(file.get_slice(self.name)[first - part.start : last - part.start])
        return torch.cat(found) if found else torch.empty(0, *self.shape[1:])


def open_parts(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """The tensors of which these files hold the rows, by name."""
    found: dict[str, StoredTensor] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name, encoded in (file.metadata() or {}).items():
                rows = msgspec.json.decode(encoded, type=Rows)
                length = file.get_slice(name).get_shape()[0]
                tensor = found.setdefault(name, StoredTensor(name, rows.whole))
                tensor.parts.append(_Part(path, rows.start, rows.start + length))
    for tensor in found.values():
        tensor.parts.sort(key=lambda part: part.start)
    return found
