"""One side of a corpus on disk: a flat file of ids, and a file of the offsets at which sentences begin."""

import hashlib
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from transduce.atomic_io import file_sha256
from transduce.errors import TransduceError

# Little endian on every machine, so that a prepared folder is portable.
_OFFSET = np.dtype("<i8")
# Constants of splitmix64, which makes a random number of a position.
_STEP, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


class EncodedSentences(NamedTuple):
    """N consecutive sentences as token ids in memory: the concatenated ids, and N + 1 offsets of their boundaries."""

    ids: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]], dtype: DTypeLike = np.uint32) -> "EncodedSentences":
        """Pack lists of token ids, one for each sentence, into an `EncodedSentences` with ids of the type `dtype`."""
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        ids = np.fromiter(chain.from_iterable(sentences), dtype, int(lengths.sum()))
        return cls(ids, np.append(0, np.cumsum(lengths)))

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The number of ids of each sentence, including the end symbol, (N,)."""
        return np.diff(self.offsets).astype(np.int32)

    def padded(self, rows: NDArray[np.int64], pad_id: int) -> tuple[NDArray[np.int64], int]:
        """Return the sentences with these indices as one int64 array (B, S), and the number of ids without padding.

        Args:
            rows: the indices of B sentences; S is the longest of their lengths.
            pad_id: the id of the padding.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        columns = np.arange(lengths.max())
        filled = columns < lengths[:, None]  # (B, S)
        array = np.full(filled.shape, pad_id, dtype=np.int64)
        array[filled] = self.ids[(starts[:, None] + columns)[filled]]
        return array, int(lengths.sum())

    def select(self, chosen: NDArray[np.bool_]) -> "EncodedSentences":
        """Return an `EncodedSentences` of the sentences for which the mask ``chosen`` (N,) is true."""
        if chosen.all():
            return self
        lengths = np.diff(self.offsets)
        return EncodedSentences(self.ids[np.repeat(chosen, lengths)], np.append(0, np.cumsum(lengths[chosen])))

    def digests(self) -> NDArray[np.uint64]:
        """Return a 64-bit hash of each sentence's ids, (N,); each sentence must have at least one id."""
        starts = self.offsets[:-1]
        positions = (np.arange(len(self.ids)) - np.repeat(starts, np.diff(self.offsets))).astype(np.uint64)
        factors = (positions + np.uint64(1)) * _STEP
        factors = (factors ^ (factors >> np.uint64(30))) * _MIX
        factors ^= factors >> np.uint64(27)
        return np.add.reduceat((self.ids.astype(np.uint64) + np.uint64(1)) * factors, starts.astype(np.int64))

    def with_prefix(self, id: int) -> "EncodedSentences":
        """Return a copy, as `EncodedSentences`, in which the token `id` stands before each sentence."""
        ids = np.insert(self.ids, self.offsets[:-1], id)
        return EncodedSentences(ids, self.offsets + np.arange(len(self.offsets)))

    @property
    def sentences(self) -> int:
        """The number of sentences."""
        return len(self.offsets) - 1


class SideCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The description of the two files of one side (source or target) of a corpus, by which damage is detected."""

    dtype: str
    tokens: int
    pad_id: int
    ids_sha256: str
    offsets_sha256: str
    sentences_by_length: list[int]
    """The number of sentences with 0, 1, 2, … ids, including the end symbol."""


class SideWriter:
    """A writer of the two files of one side (source or target) of a corpus."""

    def __init__(self, folder: Path, side: str, *, vocabulary_size: int, pad_id: int) -> None:
        self._dtype = np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
        self._pad_id = pad_id
        self._ids = HashedFile(folder / f"{side}.ids")
        self._offsets = HashedFile(folder / f"{side}.offsets")
        self._offsets.write(np.zeros(1, _OFFSET).tobytes())
        self._tokens = 0
        self._sentences_by_length = np.zeros(1, np.int64)

    def append(self, sentences: EncodedSentences) -> None:
        """Append sentences, whose ids include the end symbol, to the side's two files and to the counts of its card."""
        self._ids.write(np.ascontiguousarray(sentences.ids, self._dtype).data)
        self._offsets.write(np.ascontiguousarray(self._tokens + sentences.offsets[1:], _OFFSET).data)
        self._tokens += int(sentences.offsets[-1])
        counts = np.bincount(np.diff(sentences.offsets), minlength=len(self._sentences_by_length))
        counts[: len(self._sentences_by_length)] += self._sentences_by_length
        self._sentences_by_length = counts

    def card(self) -> SideCard:
        """Return the description of the side's two files as written so far."""
        return SideCard(
            dtype=self._dtype.str,
            tokens=self._tokens,
            pad_id=self._pad_id,
            ids_sha256=self._ids.sha256,
            offsets_sha256=self._offsets.sha256,
            sentences_by_length=self._sentences_by_length.tolist(),
        )

    def close(self) -> None:
        """Flush both files to the disk and close them."""
        self._ids.close()
        self._offsets.close()


class SideReader:
    """A reader of one side (source or target) of a corpus, which keeps nothing in memory and no file open."""

    def __init__(self, folder: Path, side: str, card: SideCard, sentences: int) -> None:
        """Check the sizes of the files of a side, and note when they were written, so that a later change is noticed.

        Raises:
            TransduceError: a file is missing or has another size than the card specifies.
        """
        self._ids, self._offsets = folder / f"{side}.ids", folder / f"{side}.offsets"
        self._dtype = np.dtype(card.dtype)
        self._card = card
        for path, size in (
            (self._ids, card.tokens * self._dtype.itemsize),
            (self._offsets, (sentences + 1) * _OFFSET.itemsize),
        ):
            check_size(path, size)
        self._written_at = {path: path.stat().st_mtime_ns for path in (self._ids, self._offsets)}

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> EncodedSentences:
        """Return the sentences of several ranges (start, stop) as one `EncodedSentences`, range after range.

        A range holds the sentences with the indices from start to stop (exclusive).
        """
        offsets, lengths = self._read_offsets(ranges)
        ends = np.cumsum([stop - start + 1 for start, stop in ranges])
        starts = ends - [stop - start + 1 for start, stop in ranges]
        ids = self._read_items(self._ids, self._dtype, offsets[starts].tolist(), offsets[ends - 1].tolist())
        return EncodedSentences(ids, np.append(0, np.cumsum(lengths)))

    def read_range_lengths(self, ranges: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
        """Return an array of the lengths of the sentences in several ranges (start, stop), concatenated.

        Lengths are in tokens and include the end symbol.
        """
        return self._read_offsets(ranges)[1].astype(np.int32)

    def verify(self) -> None:
        """Check the contents of the side's two files against their digests.

        Raises:
            TransduceError: a content differs from what was written.
        """
        check_sha256(self._ids, self._card.ids_sha256)
        check_sha256(self._offsets, self._card.offsets_sha256)

    def _read_offsets(self, ranges: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return two arrays: the boundary offsets of each range of sentences, and the lengths of all sentences.

        Both are concatenated over the ranges. A range of n sentences has n + 1 offsets.
        """
        starts, stops = ([each[side] for each in ranges] for side in (0, 1))
        offsets = self._read_items(self._offsets, _OFFSET, starts, [stop + 1 for stop in stops])
        between = np.cumsum([stop - start + 1 for start, stop in ranges])[:-1] - 1
        return offsets, np.delete(np.diff(offsets), between)

    def _read_items(self, path: Path, dtype: np.dtype[Any], starts: list[int], stops: list[int]) -> NDArray[Any]:
        """Return the numbers of a file in several ranges, from `starts[i]` to `stops[i]` (exclusive), as one array.

        Raises:
            TransduceError: the file became shorter or was written again since this reader was made.
        """
        content = np.empty(sum(stops) - sum(starts), dtype)
        rest = content.view(np.uint8).data
        with path.open("rb", buffering=0) as file:
            for start, stop in zip(starts, stops, strict=True):
                size = (stop - start) * dtype.itemsize
                file.seek(start * dtype.itemsize)
                if size and file.readinto(rest[:size]) != size:
                    raise TransduceError(f"{path} has become shorter while it was read: prepare the corpus again.")
                rest = rest[size:]
            # If the corpus was prepared again in the meantime, these offsets belong to other sentences.
            if os.fstat(file.fileno()).st_mtime_ns != self._written_at[path]:
                raise TransduceError(
                    f"{path} was written again while in use, but a corpus must not change while a run trains on it: "
                    "prepare another corpus in another folder; --resume checks whether this one is unchanged."
                )
        return content


class HashedFile:
    """A writer of a new file, which computes the file's SHA-256 on the way, and flushes the file to disk at the end."""

    def __init__(self, path: Path) -> None:
        """Create a new file at `path` and start its hash."""
        self._stream = path.open("wb")
        self._digest = hashlib.sha256()

    def write(self, content: bytes | memoryview) -> None:
        """Append bytes to the file and to its hash."""
        self._stream.write(content)
        self._digest.update(content)

    @property
    def sha256(self) -> str:
        """The SHA-256 of what was written so far, in hexadecimal."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Flush the file, whose hash is then complete, to the disk and close it."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()


def check_size(path: Path, size: int) -> None:
    """Check that a file of a prepared corpus exists and has the expected size in bytes.

    Raises:
        TransduceError: the file is missing or has another size.
    """
    if not path.is_file():
        raise TransduceError(f"{path} does not exist: the prepared corpus is incomplete, prepare it again.")
    if path.stat().st_size != size:
        raise TransduceError(
            f"{path} must have {size} bytes, but has {path.stat().st_size}: the prepared corpus is damaged, "
            "prepare it again."
        )


def check_sha256(path: Path, expected: str) -> None:
    """Check the content of a file of a prepared corpus against its SHA-256 in hexadecimal.

    Raises:
        TransduceError: the content differs from what was written.
    """
    if file_sha256(path) != expected:
        raise TransduceError(f"{path} is not what was prepared (its SHA-256 differs): prepare again.")
