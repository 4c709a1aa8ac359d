"""Read pretrained word vectors (word2vec text and binary, GloVe), from which embedding matrices are initialized.

Legend: V vocabulary, D width of the vectors and of the model.
"""

import codecs
import gzip
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import msgspec
import numpy as np
import torch
from torch import Tensor

from transduce.errors import TransduceError, explain_wrong_types, is_utf8, not_utf8, wide_encoding
from transduce.interop.hugging_face.imported_tokenizer import ImportedVocabulary
from transduce.interop.hugging_face.token_pipelines import TokenizerJson, WordListRecord
from transduce.text.files import compose
from transduce.text.languages import is_unspaced_character, is_word_character
from transduce.text.vocabulary import Vocabulary

_SPACE = "▁"
_TOKEN_MARKS = (_SPACE, "Ġ", "##")  # with which toolkits spell tokens after a space, or inside words
_TOKENS_SHARE = 0.1  # of a file's words with such a mark, from which on its vectors are of tokens
_FLOAT_BYTES = 4
_MAX_WORD = 10_000  # bytes; a longer word means that the file has another format
_MAX_WIDTH = 1 << 16
_MAX_LINE = 1 << 24  # bytes
_SAMPLED_LINES = 10
_FASTTEXT = (793_712_314).to_bytes(4, "little")  # the first bytes of a model of fastText

Vector = np.ndarray[Any, np.dtype[np.float32]]


class WordVectorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Pretrained word vectors from which a model's embeddings start: `word_vectors.*` in a settings file."""

    source: str | None = None
    """A file of word2vec (text or binary) or GloVe, plain or gzip, for the source's embeddings. If both sides share
    their embeddings, the file fills the shared matrix.
    """
    target: str | None = None
    """A file of vectors for the target's embeddings. In a shared matrix, its vectors are used for words in both files.
    """
    rescale: bool = True
    """True to multiply all vectors by one number, so that their mean length equals that of the random vectors that they
    replace.
    """
    frozen: bool = False
    """True to keep embeddings that have a pretrained vector fixed while the others are trained."""

    def __post_init__(self) -> None:
        if self.source is None and self.target is None:
            raise TransduceError(
                "`word_vectors` needs a file of vectors: name one in `word_vectors.source` or `word_vectors.target`."
            )


class MatchedVectors(NamedTuple):
    """The vectors of a file that belong to tokens of a vocabulary, the tokens' ids, and a report of the coverage."""

    rows: Tensor
    """The ids of the tokens with a vector, ascending, int64 (number of these tokens,)."""
    vectors: Tensor
    """The vectors in the order of `rows`, float32 (number of tokens with a vector, width)."""
    coverage: "Coverage"


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """A report of how many tokens of a vocabulary have a pretrained vector."""

    tokens: int
    """The number of the vocabulary's tokens but padding, end and unknown."""
    found: int
    """The number of tokens that have a pretrained vector."""
    words_in_file: int
    """The number of vectors in the file."""
    width: int
    """The number of dimensions of each vector."""

    @property
    def share(self) -> float:
        """The fraction of the vocabulary's tokens that have a pretrained vector, from 0 to 1; 0 without tokens."""
        return self.found / max(1, self.tokens)

    def __str__(self) -> str:
        return (
            f"{self.found:,} of {self.tokens:,} tokens ({self.share:.1%}) have one of the "
            f"{self.words_in_file:,} vectors of {self.width} numbers"
        )


@explain_wrong_types
def fill_embeddings(weight: Tensor, vocabulary: Vocabulary, path: str | Path, *, rescale: bool = True) -> Coverage:
    """Overwrite the embeddings of a vocabulary's tokens with word vectors from a file.

    A token that begins a word gets the vector of the first of these spellings that the file has: the token; the token
    without its leading ▁; the token without ▁ in lower case. A token inside words gets a vector only if it is
    punctuation or of a script without spaces, such as Chinese: the `ing` of `sing` is not the word `ing`.

    If at least a tenth of the file's words begin with ▁, Ġ or ##, the file has vectors of tokens. Then every token gets
    the vector of exactly its own spelling.

    Rows of other tokens, and of padding, end and unknown, stay unchanged.

    Args:
        weight: the embeddings, (V, D); changed in place.
        vocabulary: the vocabulary of the embeddings.
        path: a file of word2vec (text or binary) or GloVe, plain or gzip.
        rescale: whether to multiply all vectors by one number, so that their mean length equals that of the rows that
            they replace.

    Returns:
        The `Coverage` of the vocabulary: how many tokens have a vector.

    Raises:
        TransduceError: the file cannot be read or has another format, or its vectors are not as wide as the model.
    """
    found = match_vectors(vocabulary, path, weight.shape[1])
    copy_vectors(weight, found, rescale=rescale)
    return found.coverage


def match_vectors(vocabulary: Vocabulary, path: str | Path, width: int) -> MatchedVectors:
    """Return the vectors of a file that belong to tokens of a vocabulary, as `MatchedVectors`.

    A token that begins a word gets the vector of the first of these spellings that the file has: the token; the token
    without its leading ▁; the token without ▁ in lower case. A token inside words gets a vector only if it is
    punctuation or of a script without spaces, such as Chinese: the `ing` of `sing` is not the word `ing`.

    If at least a tenth of the file's words begin with ▁, Ġ or ##, the file has vectors of tokens. Then every token gets
    the vector of exactly its own spelling.

    Args:
        vocabulary: the vocabulary; padding, end and unknown get no vector.
        path: a file of word2vec (text or binary) or GloVe, plain or gzip.
        width: the required number of dimensions of the vectors.

    Raises:
        TransduceError: the file cannot be read, or its vectors do not have this width.
    """
    path = Path(path)
    ids = _vector_ids(vocabulary)
    spellings = _word_spellings(vocabulary, ids), {row: [vocabulary.token(row)] for row in ids}
    matches = [_Matches(each) for each in spellings]
    word_count = token_count = 0
    for word, vector in read_word_vectors(path):
        word_count += 1
        token_count += word.startswith(_TOKEN_MARKS)
        if len(vector) != width:
            raise _wrong_width(path, len(vector), width)
        for each in matches:
            each.add(compose(word), vector)
    has_tokens = token_count >= _TOKENS_SHARE * word_count
    best = matches[has_tokens].best
    rows = sorted(best)
    vectors = np.stack([best[row][1] for row in rows]) if rows else np.zeros((0, width), np.float32)
    coverage = Coverage(tokens=len(ids), found=len(rows), words_in_file=word_count, width=width)
    return MatchedVectors(torch.tensor(rows, dtype=torch.int64), torch.from_numpy(vectors), coverage)


def vector_width(path: str | Path, width: int | None = None) -> int:
    """Return the number of dimensions of the first vector in a file of word vectors.

    Args:
        path: a file of word2vec (text or binary) or GloVe, plain or gzip.
        width: the required number of dimensions; None: any number.

    Raises:
        TransduceError: the file is missing, damaged or empty, or its first vector has another width.
    """
    _, first = next(read_word_vectors(Path(path)))
    if width is not None and len(first) != width:
        raise _wrong_width(Path(path), len(first), width)
    return len(first)


def _wrong_width(path: Path, found: int, width: int) -> TransduceError:
    return TransduceError(
        f"{path}: the vectors must be as wide as the embeddings, {width} (`model.d_model`, or `model.embedding_size` "
        f"if that is set), but have {found} numbers."
    )


@torch.no_grad()
def copy_vectors(weight: Tensor, found: MatchedVectors, *, rescale: bool) -> None:
    """Overwrite rows of an embedding matrix with the word vectors that were found for their tokens.

    Args:
        weight: the embeddings, (V, D); changed in place, or not at all if no token has a vector.
        found: the vectors and the ids of their tokens.
        rescale: multiply all vectors by one number, so that their mean length equals that of the replaced rows.
    """
    if not len(found.rows):
        return
    rows, new = found.rows.to(weight.device), found.vectors.to(weight)
    if rescale:
        new = new * (weight[rows].norm(dim=1).mean() / new.norm(dim=1).mean().clamp_min(1e-12))
    weight[rows] = new


def _vector_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of the tokens that may have a vector: all but padding, end and unknown."""
    special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id}
    return [row for row in range(vocabulary.size) if row not in special]


def _word_spellings(vocabulary: Vocabulary, ids: Sequence[int]) -> dict[int, list[str]]:
    """Return a dict from token id to the words whose vectors the token may have, the preferred one first.

    The list is empty for a token that is only part of words. A token that follows no space, but a character that joins
    no words, cannot be told from one inside a word, except in a vocabulary of whole words.
    """
    has_words = _has_whole_words(vocabulary)
    spellings: dict[int, list[str]] = {}
    for row, spelled in zip(ids, vocabulary.token_texts(ids), strict=True):
        word = spelled.removeprefix(_SPACE)
        is_word = has_words or word != spelled or not any(map(_is_spaced_letter, word))
        candidates = dict.fromkeys((vocabulary.token(row), spelled, word, word.lower())) if is_word else ()
        spellings[row] = [each for each in candidates if each]
    return spellings


def _has_whole_words(vocabulary: Vocabulary) -> bool:
    """Return whether no token of a vocabulary is part of a word, since it is a list of words."""
    if not isinstance(vocabulary, ImportedVocabulary):
        return False
    algorithm = vocabulary.record.algorithm
    is_word_level = isinstance(algorithm, TokenizerJson) and algorithm.content["model"].get("type") == "WordLevel"
    return is_word_level or isinstance(algorithm, WordListRecord)


def _is_spaced_letter(character: str) -> bool:
    """Return whether a character is a letter or digit of a script with spaces between words."""
    return is_word_character(character) and not is_unspaced_character(character)


class _Matches:
    """The vectors of a file that belong to tokens, by the spellings of each token."""

    def __init__(self, spellings: Mapping[int, Sequence[str]]) -> None:
        """Find no vectors yet; `spellings` has the spellings of each token by its id, the preferred one first."""
        self._rows: dict[str, list[tuple[int, int]]] = {}
        for row, texts in spellings.items():
            for rank, text in enumerate(texts):
                self._rows.setdefault(text, []).append((row, rank))
        self.best: dict[int, tuple[int, Vector]] = {}
        """The rank of the spelling that was found, and its vector, by token id."""

    def add(self, word: str, vector: Vector) -> None:
        """Take the vector of a word for the tokens that have no vector yet, or that of a less preferred spelling."""
        for row, rank in self._rows.get(word, ()):
            if row not in self.best or rank < self.best[row][0]:
                self.best[row] = (rank, vector)


def read_word_vectors(path: Path) -> Iterator[tuple[str, Vector]]:
    """Yield (word, vector) for each word of a file of word vectors, in the file's order; vectors are float32 arrays.

    The format (word2vec text or binary, GloVe; plain or gzip) is recognized by the content.

    Raises:
        TransduceError: the file cannot be read, is empty, has none of the three formats, or is truncated.
    """
    is_empty = True
    try:
        with _open(path) as file:
            for pair in _read(file, path):
                is_empty = False
                yield pair
    except (EOFError, OSError) as error:
        raise TransduceError(f"{path} cannot be read: {error}.") from error
    if is_empty:
        raise TransduceError(f"{path} must hold word vectors, but is empty: name another file.")


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.GzipFile(path)) if is_gzip else path.open("rb")


def _read(file: IO[bytes], path: Path) -> Iterator[tuple[str, Vector]]:
    first = file.readline(_MAX_LINE).removeprefix(codecs.BOM_UTF8)
    if first.startswith(_FASTTEXT):
        raise TransduceError(
            f"{path} is a model of fastText, not a file of vectors: name the .vec file that fastText writes beside it."
        )
    header = first.split()
    if len(header) != 2 or not all(part.isdigit() for part in header):
        yield from _read_text(first, file, path)  # GloVe has no header
        return
    count, width = int(header[0]), int(header[1])
    if not 0 < width <= _MAX_WIDTH:
        raise TransduceError(f"{path}, line 1: vectors must have 1 to {_MAX_WIDTH:,} numbers, but have {width:,}.")
    start = file.readline(_MAX_LINE)
    if _is_text(start):
        yield from _read_text(start, file, path, (count, width))
    else:
        yield from _read_binary(start, file, path, (count, width))


def _is_text(line: bytes) -> bool:
    """Return whether the bytes after a header are a text line that ends with a number; binary vectors never are."""
    parts = line.split()
    try:
        return len(parts) > 1 and math.isfinite(float(parts[-1])) and not re.search(rb"[\x00-\x08\x0e-\x1f]", line)
    except ValueError:
        return False


def _numbers_at_end(line: bytes) -> int:
    """Return how many space-separated parts at the end of a line are numbers, which shows the width of its vector.

    The first part is a word and never counts.
    """
    count = 0
    for part in reversed(line.rstrip().split(b" ")[1:]):
        try:
            float(part)
        except ValueError:
            break
        count += 1
    return count


def _is_numbered_word(line: bytes, width: int) -> bool:
    """Return whether a line seems to begin with a word that ends with whole numbers, such as `article 5`.

    The result is True if more than `width` numbers end the line, the last `width` of them (the vector) have decimal
    points, and the numbers before have none.
    """
    word, *numbers = line.rstrip().rsplit(b" ", width)
    extra = word.split(b" ")[1:][width - _numbers_at_end(line) :]
    return b"." in b"".join(numbers) and _numbers_at_end(line) > width and b"." not in b"".join(extra)


def _read_text(
    first: bytes, file: IO[bytes], path: Path, shape: tuple[int, int] | None = None
) -> Iterator[tuple[str, Vector]]:
    """Yield (word, vector) from lines of text with a word and the numbers of its vector, which is float32.

    A word may contain spaces, as some of GloVe's do. The header states the vectors' width, or else the first lines show
    it.

    Args:
        first: the first line with a vector.
        file: the rest of the file.
        path: the file's path, for messages.
        shape: number and width of the vectors that the file's header states; None: it has no header.

    Raises:
        TransduceError: a line does not hold a word and a vector of this width and of finite numbers, or the file has
            other vectors than its header states.
    """
    sample = [first, *(file.readline(_MAX_LINE) for _ in range(_SAMPLED_LINES - 1))]
    encoding = wide_encoding(b"".join(sample))
    if encoding:
        raise not_utf8(path, f"this one is {encoding}", encoding)
    sample = [line for line in sample if line]
    damaged = sum(not is_utf8(line) for line in sample)
    if 2 * damaged > len(sample):
        raise not_utf8(path, f"{damaged} of the first {len(sample)} lines are not")
    # A word may end with a number, and a line may be damaged, so the most frequent count is the width.
    sample_lines = [line for line in sample if line.strip() and b"\t" not in line]
    widths = [_numbers_at_end(line) for line in sample_lines]
    width = max(widths, key=lambda each: (widths.count(each), each), default=0)
    if shape is not None and (shape[1] in widths or all(_is_numbered_word(line, shape[1]) for line in sample_lines)):
        width = shape[1]
    if shape is not None and 0 < width != shape[1]:
        raise TransduceError(
            f"{path}, line 1: the vectors have {shape[1]:,} numbers by this line, but {width:,} on the next lines: "
            "correct it."
        )
    first_line = 1 if shape is None else 2
    number = found = 0
    lines = itertools.chain(sample, iter(lambda: file.readline(_MAX_LINE), b""))
    for number, line in enumerate(itertools.takewhile(bool, lines), first_line):
        if not line.strip():
            continue  # refused below unless it is at the end
        if found != number - first_line:
            raise TransduceError(f"{path}, line {number - 1:,}: a line must hold a word and numbers, but is empty.")
        yield _word_of_line(line, width, f"{path}, line {number:,}", is_stated=shape is not None)
        found += 1
    if shape is not None and found < shape[0]:
        raise _truncated(path, shape, found)
    if shape is not None and found > shape[0]:
        raise _too_long(path, shape, f"{found:,}")


def _word_of_line(line: bytes, width: int, location: str, *, is_stated: bool) -> tuple[str, Vector]:
    """Return the word in a line and its vector, float32 (width,).

    Args:
        line: the line.
        width: the number of dimensions of the vector.
        location: the file and line, for messages.
        is_stated: whether the file's header states the width. If not, a word must not end with a number such as 1.5.

    Raises:
        TransduceError: the line does not hold a word and a vector of this width and of finite numbers.
    """
    if b"\t" in line.rstrip():
        raise TransduceError(
            f"{location}: spaces must separate a word and its numbers, but there is a tab: replace all tabs."
        )
    word, *numbers = line.rstrip().rsplit(b" ", width)
    try:
        with np.errstate(over="ignore"):
            vector = np.array([float(number) for number in numbers], np.float32)
    except ValueError:
        vector = np.zeros(0, np.float32)
    too_many = not is_stated and re.search(rb" [-+]?\d*\.\d+(e[-+]?\d+)?$", word)
    if width < 1 or len(vector) != width or too_many:
        raise TransduceError(
            f"{location}: a line must hold a word and {max(1, width)} numbers, but begins "
            f"{line[:40].decode('utf-8', 'replace')!r}: the file is damaged, or not of word2vec or GloVe."
        )
    if not np.isfinite(vector).all():
        raise TransduceError(f"{location}: a vector must hold finite numbers: remove the line.")
    return word.decode("utf-8", "replace"), vector


def _truncated(path: Path, shape: tuple[int, int], found: int) -> TransduceError:
    return TransduceError(
        f"{path} must hold {shape[0]:,} vectors of {shape[1]:,} numbers by its first line, but breaks off after "
        f"{found:,}: copy it again, or correct that line."
    )


def _too_long(path: Path, shape: tuple[int, int], found: str) -> TransduceError:
    return TransduceError(
        f"{path} must hold {shape[0]:,} vectors of {shape[1]:,} numbers by its first line, but has {found}: correct "
        "that line."
    )


def _read_binary(start: bytes, file: IO[bytes], path: Path, shape: tuple[int, int]) -> Iterator[tuple[str, Vector]]:
    """Yield (word, vector) from a file in word2vec's binary format; vectors are float32 arrays.

    There a word, a space and little-endian float32 numbers follow one another; some writers add a line feed after each
    vector.

    Args:
        start: bytes of the file behind the header that were read already.
        file: the rest of the file.
        path: the file's path, for messages.
        shape: number and width of the vectors, as the header states.

    Raises:
        TransduceError: the file has more or fewer vectors, or a vector has numbers that are not finite.
    """
    content = _BufferedBytes(start, file)
    for number in range(shape[0]):
        word = content.until_space()
        vector = content.take(shape[1] * _FLOAT_BYTES)
        if word is None or vector is None:
            raise _truncated(path, shape, number)
        values = np.frombuffer(vector, "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise TransduceError(f"{path}: vector {number + 1:,} must hold finite numbers, but does not: remove it.")
        yield word.lstrip(b"\n").decode("utf-8", "replace"), values
    if content.rest().strip():
        raise _too_long(path, shape, "more")


class _BufferedBytes:
    """A binary file reader whose buffer initially holds bytes that were read earlier."""

    def __init__(self, start: bytes, file: IO[bytes]) -> None:
        self.buffer = start
        self.file = file

    def take(self, count: int) -> bytes | None:
        """Return the next `count` bytes and skip them; None if fewer are left."""
        if len(self.buffer) < count:
            self.buffer += self.file.read(max(count - len(self.buffer), 1 << 16))
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken if len(taken) == count else None

    def rest(self) -> bytes:
        """Return the next bytes of the file: all that are in the buffer, and up to 64 KiB more."""
        return self.buffer + self.file.read(1 << 16)

    def until_space(self) -> bytes | None:
        """Return the bytes of the file before the next space; skip these bytes and the space.

        The result is None if no space follows, or only after more than about 10,000 bytes, which cannot be a word.
        """
        while (end := self.buffer.find(b" ")) < 0:
            more = self.file.read(1 << 16)
            if not more or len(self.buffer) > _MAX_WORD:
                return None
            self.buffer += more
        word, self.buffer = self.buffer[:end], self.buffer[end + 1 :]
        return word
