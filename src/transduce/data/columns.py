"""Columns of a part of a corpus: files with one number for each kept pair."""

from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.idfiles import HashedFile, check_sha256, check_size

# rows: the pair's row in its block; keys: a hash of the source's letters; digests: a hash of both sides.
Column = Literal["rows", "keys", "digests"]
_DTYPES: dict[Column, np.dtype[np.unsignedinteger]] = {
    "rows": np.dtype("<u2"),
    "keys": np.dtype("<u8"),
    "digests": np.dtype("<u8"),
}


class ColumnCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of a column's file."""

    sha256: str

    def check_size(self, folder: Path, name: Column, pairs: int) -> None:
        """Check that the file exists and has the expected size.

        Raises:
            TransduceError: the file is missing or has another size.
        """
        check_size(folder / name, pairs * _DTYPES[name].itemsize)

    def read(self, folder: Path, name: Column) -> NDArray[np.unsignedinteger]:
        """Return the numbers of all pairs."""
        return np.fromfile(folder / name, _DTYPES[name])

    def verify(self, folder: Path, name: Column) -> None:
        """Check the file's content against its digest.

        Raises:
            TransduceError: the content differs from what was written.
        """
        check_sha256(folder / name, self.sha256)


class ColumnWriter:
    """A writer that appends numbers to a column's file; used in a ``with`` statement."""

    def __init__(self, folder: Path, name: Column) -> None:
        self._dtype = _DTYPES[name]
        self._file = HashedFile(folder / name)

    def append(self, values: NDArray[np.unsignedinteger]) -> None:
        """Write the numbers of further pairs."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)

    def card(self) -> ColumnCard:
        """Return the description of what has been written so far."""
        return ColumnCard(self._file.sha256)

    def __enter__(self) -> "ColumnWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
