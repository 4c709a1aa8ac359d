"""Pretrained word vectors: word2vec's text and binary files and GloVe's, into a matrix of embeddings.

Legend: V vocabulary, D width of the vectors and of the model.
"""

import codecs
import gzip
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.text.vocabulary import Vocabulary

_SPACE = "▁"
_FLOAT_BYTES = 4
_LONGEST_WORD = 10_000  # bytes; more is no word but another kind of file
_LARGEST_WIDTH = 1 << 16
_LONGEST_LINE = 1 << 24  # bytes
_LINES_TO_LOOK_AT = 10

Vector = np.ndarray[Any, np.dtype[np.float32]]


class WordVectorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Word vectors that embeddings start from: `word_vectors.*` in a settings file."""

    source: str | None = None
    """A file of word2vec (text or binary) or GloVe, plain or gzip, for the source's embeddings. If both sides share
    their embeddings, the file fills the shared matrix.
    """
    target: str | None = None
    """A file of vectors for the target's embeddings. In a shared matrix it wins for a word in both files."""
    rescale: bool = True
    """Multiply all vectors by one number, so that they are as long as the random ones that they replace."""
    frozen: bool = False
    """Keep the rows with a vector fixed while the other rows are trained."""

    def __post_init__(self) -> None:
        if self.source is None and self.target is None:
            raise TransduceError(
                "`word_vectors` needs a file of vectors: name one in `word_vectors.source` or `word_vectors.target`."
            )


class FoundVectors(NamedTuple):
    """What a file has for a vocabulary."""

    rows: Tensor
    """The pieces that have a vector, ascending, (N,)."""
    vectors: Tensor
    """Theirs, (N, D), float32."""
    coverage: "Coverage"


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a vocabulary has got a vector."""

    tokens: int
    """Pieces of the vocabulary that could have one."""
    found: int
    words_in_file: int
    width: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.found / max(1, self.tokens)

    def __str__(self) -> str:
        return (
            f"{self.found:,} of {self.tokens:,} pieces ({self.share:.1%}) have one of the "
            f"{self.words_in_file:,} vectors of {self.width} numbers"
        )


def fill_embeddings(weight: Tensor, vocabulary: Vocabulary, path: str | Path, *, rescale: bool = True) -> Coverage:
    """Puts the vectors of a file in the rows of the pieces that are words.

    A piece has the vector of its own spelling, or of that without the ▁ that begins a word, or of the same in small
    letters; rows of other pieces, and of padding, end and unknown, stay as they are.

    Args:
        weight: (V, D); changed in place.
        vocabulary: its pieces.
        path: a file of word2vec (text or binary) or GloVe, plain or gzip.
        rescale: all vectors are multiplied by one number, so that they are as long as the rows that they replace.

    Returns:
        The coverage.

    Raises:
        TransduceError: the file is none of these, or its vectors are not as wide as the model.
    """
    found = find_vectors(vocabulary, path, weight.shape[1])
    put_vectors(weight, found, rescale=rescale)
    return found.coverage


def find_vectors(vocabulary: Vocabulary, path: str | Path, width: int) -> FoundVectors:
    """The vectors of a file that belong to pieces of a vocabulary, as `fill_embeddings` says.

    Raises:
        TransduceError: the file is none that can be read, or its vectors do not have this width.
    """
    path = Path(path)
    wanted = _rows_by_spelling(vocabulary)
    best: dict[int, tuple[int, Vector]] = {}
    words = 0
    for word, vector in read_word_vectors(path):
        words += 1
        if len(vector) != width:
            raise _wrong_width(path, len(vector), width)
        for row, order in wanted.get(word, ()):
            if row not in best or order < best[row][0]:
                best[row] = (order, vector)
    tokens = len({row for rows in wanted.values() for row, _ in rows})
    rows = sorted(best)
    vectors = np.stack([best[row][1] for row in rows]) if rows else np.zeros((0, width), np.float32)
    coverage = Coverage(tokens=tokens, found=len(rows), words_in_file=words, width=width)
    return FoundVectors(torch.tensor(rows, dtype=torch.int64), torch.from_numpy(vectors), coverage)


def vector_width(path: str | Path, width: int | None = None) -> int:
    """How many numbers the first vector of a file has.

    Args:
        path: the file.
        width: how many it must have; None: any number.

    Raises:
        TransduceError: there is no such file, it holds none, or its vectors are of another width.
    """
    first = next((vector for _, vector in read_word_vectors(Path(path))), None)
    if first is None:
        raise TransduceError(f"{path} must hold word vectors, but is empty: name another file.")
    if width is not None and len(first) != width:
        raise _wrong_width(Path(path), len(first), width)
    return len(first)


def _wrong_width(path: Path, found: int, width: int) -> TransduceError:
    return TransduceError(
        f"{path}: the vectors must be as wide as the model, {width} (`model.d_model`), but have {found} numbers."
    )


@torch.no_grad()
def put_vectors(weight: Tensor, found: FoundVectors, *, rescale: bool) -> None:
    """Puts them in their rows of a matrix (V, D), in place; `rescale` as in `fill_embeddings`."""
    if not len(found.rows):
        return
    rows, new = found.rows.to(weight.device), found.vectors.to(weight)
    if rescale:
        new = new * (weight[rows].norm(dim=1).mean() / new.norm(dim=1).mean().clamp_min(1e-12))
    weight[rows] = new


def _rows_by_spelling(vocabulary: Vocabulary) -> dict[str, list[tuple[int, int]]]:
    """For each word that would do, the rows that want it, and how good it is: 0 is best."""
    wanted: dict[str, list[tuple[int, int]]] = {}
    silent = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id}
    for row in (row for row in range(vocabulary.size) if row not in silent):
        token = vocabulary.piece(row)
        word = token.removeprefix(_SPACE)
        for order, spelling in enumerate(dict.fromkeys((token, word, word.lower()))):
            if spelling:
                wanted.setdefault(spelling, []).append((row, order))
    return wanted


def read_word_vectors(path: Path) -> Iterator[tuple[str, Vector]]:
    """The words of a file and their vectors, in its order.

    Raises:
        TransduceError: it is none of the three kinds, or breaks off.
    """
    try:
        with _open(path) as file:
            yield from _read(file, path)
    except (EOFError, OSError) as error:
        raise TransduceError(f"{path} cannot be read: {error}.") from error


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    opened: Any = gzip.GzipFile(path) if is_gzip else path.open("rb")
    stream: IO[bytes] = opened
    return stream


def _read(file: IO[bytes], path: Path) -> Iterator[tuple[str, Vector]]:
    first = file.readline(_LONGEST_LINE).removeprefix(codecs.BOM_UTF8)
    header = first.split()
    if len(header) != 2 or not all(part.isdigit() for part in header):
        yield from _read_text(first, file, path)  # GloVe has no header
        return
    count, width = int(header[0]), int(header[1])
    if not 0 < width <= _LARGEST_WIDTH:
        raise TransduceError(f"{path}, line 1: vectors must have 1 to {_LARGEST_WIDTH:,} numbers, but have {width:,}.")
    start = file.readline(_LONGEST_LINE)
    if _is_text(start, width):
        yield from _read_text(start, file, path, count)
    else:
        yield from _read_binary(start, file, path, (count, width))


def _is_text(line: bytes, width: int) -> bool:
    parts = line.rstrip().rsplit(b" ", width)
    try:
        return len(parts) == width + 1 and all(np.isfinite(float(part)) for part in parts[1:])
    except ValueError:
        return False


def _numbers_at_end(line: bytes) -> int:
    """How many parts of a line behind the first one are numbers, counted from its end."""
    count = 0
    for part in reversed(line.rstrip().split(b" ")[1:]):
        try:
            float(part)
        except ValueError:
            break
        count += 1
    return count


def _read_text(first: bytes, file: IO[bytes], path: Path, count: int | None = None) -> Iterator[tuple[str, Vector]]:
    """A word a line, then its numbers; a word may hold spaces (some of GloVe's do).

    Args:
        first: the first line of them.
        file: the others.
        path: of the file.
        count: how many there must be at least, where a line before them says it.
    """
    begin = [first, *(file.readline(_LONGEST_LINE) for _ in range(_LINES_TO_LOOK_AT - 1))]
    # A word may end with a number, or a line be damaged: what most lines have is the width.
    widths = [_numbers_at_end(line) for line in begin if line]
    width = max(widths, key=lambda each: (widths.count(each), each), default=0)
    before, number = int(count is not None), 0
    lines = itertools.chain(begin, iter(lambda: file.readline(_LONGEST_LINE), b""))
    for number, line in enumerate(itertools.takewhile(bool, lines), 1 + before):
        parts = line.rstrip().rsplit(b" ", width)
        try:
            with np.errstate(over="ignore"):
                vector = np.array([float(part) for part in parts[1:]], np.float32)
        except ValueError:
            vector = np.zeros(0, np.float32)
        if width < 1 or len(vector) != width:
            raise TransduceError(
                f"{path}, line {number:,}: a line must hold a word and {max(1, width)} numbers, but begins "
                f"{line[:40].decode('utf-8', 'replace')!r}: it is no file of word2vec or GloVe, or damaged."
            )
        if not np.isfinite(vector).all():
            raise TransduceError(f"{path}, line {number:,}: a vector must hold finite numbers: leave the line out.")
        yield parts[0].decode("utf-8", "replace"), vector
    found = number - before
    if count is not None and found < count:
        raise _breaks_off(path, (count, width), found)


def _breaks_off(path: Path, shape: tuple[int, int], found: int) -> TransduceError:
    return TransduceError(
        f"{path} must hold {shape[0]:,} vectors of {shape[1]:,} numbers by its first line, but breaks off after "
        f"{found:,}: copy it again, or correct that line."
    )


def _read_binary(start: bytes, file: IO[bytes], path: Path, shape: tuple[int, int]) -> Iterator[tuple[str, Vector]]:
    """A word, a space, and its numbers as float32, little-endian; some writers put a line feed behind them."""
    content = _Bytes(start, file)
    for number in range(shape[0]):
        word = content.until_space()
        vector = content.take(shape[1] * _FLOAT_BYTES)
        if word is None or vector is None:
            raise _breaks_off(path, shape, number)
        values = np.frombuffer(vector, "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise TransduceError(f"{path}: vector {number + 1:,} must hold finite numbers, but does not: leave it out.")
        yield word.lstrip(b"\n").decode("utf-8", "replace"), values


class _Bytes:
    """A file whose beginning has been read already."""

    def __init__(self, start: bytes, file: IO[bytes]) -> None:
        self.waiting = start
        self.file = file

    def take(self, count: int) -> bytes | None:
        """The next bytes; None where there are fewer."""
        if len(self.waiting) < count:
            self.waiting += self.file.read(max(count - len(self.waiting), 1 << 16))
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken if len(taken) == count else None

    def until_space(self) -> bytes | None:
        """What stands before the next space; None where there is none."""
        while (end := self.waiting.find(b" ")) < 0:
            more = self.file.read(1 << 16)
            if not more or len(self.waiting) > _LONGEST_WORD:
                return None
            self.waiting += more
        word, self.waiting = self.waiting[:end], self.waiting[end + 1 :]
        return word
