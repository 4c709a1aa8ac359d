"""One side of a corpus on disk: a flat file of ids, and a file of where each sentence begins in it."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.durable import file_sha256
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

    def select(self, chosen: NDArray[np.bool_]) -> "IdRun":
        """The sentences for which ``chosen`` (N,) is true."""
        if chosen.all():
            return self
        lengths = np.diff(self.offsets)
        return IdRun(self.ids[np.repeat(chosen, lengths)], np.concatenate(([0], np.cumsum(lengths[chosen]))))

    def begun_with(self, id: int) -> "IdRun":
        """The sentences with an id more before each."""
        ids = np.insert(self.ids, self.offsets[:-1], id)
        return IdRun(ids, self.offsets + np.arange(len(self.offsets)))

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

    def __init__(self, folder: Path, side: str, *, vocabulary_size: int, pad_id: int) -> None:
        self._dtype = np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
        self._pad_id = pad_id
        self._ids = HashedFile(folder / f"{side}.ids")
        self._offsets = HashedFile(folder / f"{side}.offsets")
        self._offsets.write(np.zeros(1, _OFFSET).tobytes())
        self._tokens = 0
        self._sentences_by_length = np.zeros(1, np.int64)

    def append(self, run: IdRun) -> None:
        """Write sentences, each of which ends with the end of sentence."""
        self._ids.write(np.ascontiguousarray(run.ids, self._dtype).data)
        self._offsets.write(np.ascontiguousarray(self._tokens + run.offsets[1:], _OFFSET).data)
        self._tokens += int(run.offsets[-1])
        counts = np.bincount(np.diff(run.offsets), minlength=len(self._sentences_by_length))
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
            check_size(path, size)
        self._written_at = {path: path.stat().st_mtime_ns for path in (self._ids, self._offsets)}

    def read(self, start: int, stop: int) -> IdRun:
        """Sentences from start to stop."""
        return self.read_runs([(start, stop)])

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> IdRun:
        """Sentences of several runs (start, stop), one after another."""
        offsets, lengths = self._read_offsets(runs)
        ends = np.cumsum([stop - start + 1 for start, stop in runs])
        starts = ends - [stop - start + 1 for start, stop in runs]
        ids = self._read_stretches(self._ids, self._dtype, offsets[starts].tolist(), offsets[ends - 1].tolist())
        return IdRun(ids, np.concatenate(([0], np.cumsum(lengths))))

    def read_run_lengths(self, runs: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
        """Lengths of the sentences of several runs, one after another, the end of sentence counted."""
        return self._read_offsets(runs)[1].astype(np.int32)

    def verify(self) -> None:
        """Raise TransduceError when a file's content is not what was written."""
        check_sha256(self._ids, self._card.ids_sha256)
        check_sha256(self._offsets, self._card.offsets_sha256)

    def _read_offsets(self, runs: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each run's offsets, one more than its sentences, and all sentences' lengths."""
        starts, stops = ([run[side] for run in runs] for side in (0, 1))
        offsets = self._read_stretches(self._offsets, _OFFSET, starts, [stop + 1 for stop in stops])
        between = np.cumsum([stop - start + 1 for start, stop in runs])[:-1] - 1
        return offsets, np.delete(np.diff(offsets), between)

    def _read_stretches(self, path: Path, dtype: np.dtype[Any], starts: list[int], stops: list[int]) -> NDArray[Any]:
        """Numbers of a file from each start to its stop; one file that is read at hundreds of places is opened once."""
        content = np.empty(sum(stops) - sum(starts), dtype)
        rest = content.view(np.uint8).data
        with path.open("rb", buffering=0) as file:
            for start, stop in zip(starts, stops, strict=True):
                size = (stop - start) * dtype.itemsize
                file.seek(start * dtype.itemsize)
                if size and file.readinto(rest[:size]) != size:
                    raise TransduceError(f"{path} has become shorter while it was read: prepare the corpus again.")
                rest = rest[size:]
            # Of a corpus that was prepared anew under the same name, other sentences stand at these places.
            if os.fstat(file.fileno()).st_mtime_ns != self._written_at[path]:
                raise TransduceError(
                    f"{path} was written anew while it was in use, but a corpus must stay as it is while a run learns "
                    "from it: prepare another one in another folder; --resume tells whether this one is still the same."
                )
        return content


class HashedFile:
    """A new file that knows its SHA-256 and is on the disk when closed."""

    def __init__(self, path: Path) -> None:
        """Creates the file."""
        self._stream = path.open("wb")
        self._digest = hashlib.sha256()

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes."""
        self._stream.write(content)
        self._digest.update(content)

    @property
    def sha256(self) -> str:
        """Of what was written so far, in hexadecimal."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Flush the file to the disk and close it."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()


def check_size(path: Path, size: int) -> None:
    """Raise TransduceError when a file is missing or has another size."""
    if not path.is_file():
        raise TransduceError(f"{path} does not exist: the prepared corpus is not whole, prepare it again.")
    if path.stat().st_size != size:
        raise TransduceError(
            f"{path} must have {size} bytes, but has {path.stat().st_size}: the prepared corpus is damaged, "
            "prepare it again."
        )


def check_sha256(path: Path, expected: str) -> None:
    """Raise TransduceError when a file's content is not what was written."""
    if file_sha256(path) != expected:
        raise TransduceError(f"{path} is not what was prepared (its SHA-256 differs): prepare again.")
