"""One side of a corpus on disk: a flat file of ids, and a file of where each sentence begins in it."""

import hashlib
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError

# Little endian on every machine, so that a prepared folder can travel.
_OFFSET = np.dtype("<i8")


class IdRun(NamedTuple):
    """N sentences in memory: all ids in a row, and the N + 1 places where one begins or the last ends."""

    ids: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """(N,) ids of each sentence, the end of sentence counted."""
        return np.diff(self.offsets).astype(np.int32)

    def padded(self, rows: NDArray[np.int64], pad_id: int) -> tuple[NDArray[np.int64], int]:
        """Some sentences as one array, padded at the right, and how many of its ids are not padding."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        columns = np.arange(lengths.max())
        filled = columns < lengths[:, None]  # (B, S)
        array = np.full(filled.shape, pad_id, dtype=np.int64)
        array[filled] = self.ids[(starts[:, None] + columns)[filled]]
        return array, int(lengths.sum())

    @classmethod
    def join(cls, runs: Sequence["IdRun"]) -> "IdRun":
        """Runs one after another."""
        ids = np.concatenate([run.ids for run in runs])
        lengths = np.concatenate([np.diff(run.offsets) for run in runs])
        return cls(ids, np.concatenate(([0], np.cumsum(lengths))))

    @property
    def sentences(self) -> int:
        """How many sentences there are."""
        return len(self.offsets) - 1


class SideCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one side's files hold: enough to read them and to notice that they are damaged."""

    dtype: str
    tokens: int
    pad_id: int
    ids_sha256: str
    offsets_sha256: str
    # How many sentences have 0, 1, 2, … ids, the end of sentence counted.
    sentences_by_length: list[int]


class SideWriter:
    """Appends sentences to the two files of a side; used in a ``with`` statement."""

    def __init__(self, folder: Path, side: str, *, vocabulary_size: int, pad_id: int, eos_id: int) -> None:
        self._dtype = np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
        self._pad_id, self._eos_id = pad_id, eos_id
        self._ids = _HashedFile(folder / f"{side}.ids")
        self._offsets = _HashedFile(folder / f"{side}.offsets")
        self._offsets.write(np.zeros(1, _OFFSET).tobytes())
        self._tokens = 0
        self._sentences_by_length = np.zeros(1, np.int64)

    def append(self, sentences: Sequence[list[int]]) -> None:
        """Write sentences of ids, each followed by the end of sentence."""
        lengths = np.array([len(ids) + 1 for ids in sentences], dtype=np.int64)
        flat = chain.from_iterable((*ids, self._eos_id) for ids in sentences)
        self._ids.write(np.fromiter(flat, self._dtype, int(lengths.sum())).tobytes())
        self._offsets.write((self._tokens + np.cumsum(lengths)).astype(_OFFSET).tobytes())
        self._tokens += int(lengths.sum())
        counts = np.bincount(lengths, minlength=len(self._sentences_by_length))
        counts[: len(self._sentences_by_length)] += self._sentences_by_length
        self._sentences_by_length = counts

    def card(self) -> SideCard:
        """What has been written so far."""
        return SideCard(
            dtype=self._dtype.str,
            tokens=self._tokens,
            pad_id=self._pad_id,
            ids_sha256=self._ids.sha256,
            offsets_sha256=self._offsets.sha256,
            sentences_by_length=self._sentences_by_length.tolist(),
        )

    def __enter__(self) -> "SideWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ids.close()
        self._offsets.close()


class SideReader:
    """Reads runs of sentences; nothing stays in memory and no file stays open."""

    def __init__(self, folder: Path, side: str, card: SideCard, sentences: int) -> None:
        """Raises TransduceError when a file is missing or has another size than the card says."""
        self._ids, self._offsets = folder / f"{side}.ids", folder / f"{side}.offsets"
        self._dtype = np.dtype(card.dtype)
        self._card = card
        for path, size in (
            (self._ids, card.tokens * self._dtype.itemsize),
            (self._offsets, (sentences + 1) * _OFFSET.itemsize),
        ):
            _check_size(path, size)

    def read(self, start: int, stop: int) -> IdRun:
        """Sentences from start to stop."""
        offsets = self._read_offsets(start, stop)
        first = int(offsets[0])
        ids = np.fromfile(self._ids, self._dtype, count=int(offsets[-1]) - first, offset=first * self._dtype.itemsize)
        return IdRun(ids, offsets - first)

    def read_lengths(self, start: int, stop: int) -> NDArray[np.int32]:
        """Lengths of the sentences from start to stop, the end of sentence counted."""
        return np.diff(self._read_offsets(start, stop)).astype(np.int32)

    def verify(self) -> None:
        """Raise TransduceError when a file's content is not what was written."""
        for path, expected in (
            (self._ids, self._card.ids_sha256),
            (self._offsets, self._card.offsets_sha256),
        ):
            with path.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != expected:
                    raise TransduceError(f"{path} is not what was prepared (its SHA-256 differs): prepare again.")

    def _read_offsets(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.fromfile(self._offsets, _OFFSET, count=stop - start + 1, offset=start * _OFFSET.itemsize)


class _HashedFile:
    """A new file that knows its SHA-256 and is on the disk when closed."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("wb")
        self._digest = hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._stream.write(content)
        self._digest.update(content)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def close(self) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()


def _check_size(path: Path, size: int) -> None:
    if not path.is_file():
        raise TransduceError(f"{path} does not exist: the prepared corpus is not whole, prepare it again.")
    if path.stat().st_size != size:
        raise TransduceError(
            f"{path} must have {size} bytes, but has {path.stat().st_size}: the prepared corpus is damaged, "
            "prepare it again."
        )
