"""Filter and tokenize a part of a corpus in one process, on this machine or another, and store it for merging.

A part contains every n-th block of the corpus. Its preparation makes all decisions that concern a single pair, and
stores what merging needs for the decisions that compare pairs.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count, islice
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from transduce.atomic_io import write_file
from transduce.data.holdout import HoldOut, HoldOutCandidate, HoldOutSettings, source_keys
from transduce.data.id_files import (
    EncodedSentences,
    HashedFile,
    SideCard,
    SideReader,
    SideWriter,
    check_sha256,
    check_size,
)
from transduce.errors import TransduceError
from transduce.text import CorpusFiles, FilterReport, FilterSettings, Tokenizer
from transduce.text.corpus import PairBlock, PairReader
from transduce.text.filters import (
    BETWEEN_DOCUMENTS,
    EXCHANGED,
    NO_WEIGHT,
    PairFilter,
    are_exchanged,
    pair_digest,
    with_current_names,
)
from transduce.text.languages import language_of
from transduce.text.sentencepiece_model import tokenizes_words_independently
from transduce.text.vocabulary import BACK_TRANSLATED, Vocabulary, language_token, tag_token

# --- tokenization of many sentences, each word only once if the vocabulary permits ---
# Nine of ten words of a corpus have occurred before. Looking a word up takes a tenth of the time of tokenizing it.


# Maximum number of words in the table, which is then cleared; this affects only the speed.
_MAX_WORDS = 300_000
_END = "\n"


class SentenceEncoder:
    """A tokenizer of many sentences that looks words up in a cache, and appends the end symbol to each sentence."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._dtype: np.dtype[np.unsignedinteger] = np.dtype("u2" if vocabulary.size <= 1 << 16 else "u4")
        self._words = (
            _WordTable(vocabulary, self._dtype) if tokenizes_words_independently(vocabulary.model_bytes) else None
        )

    def encode(self, sentences: Sequence[str]) -> EncodedSentences:
        """Return the token ids of all sentences, each with its end symbol, in order as one `EncodedSentences`."""
        text = _END.join(sentences)
        has_line_feeds = text.count(_END) >= len(sentences)  # also without sentences
        if self._words is None or "▁" in text or has_line_feeds:
            before, after = self._vocabulary.before, self._vocabulary.after
            rows = [[*before, *ids, *after] for ids in self._vocabulary.encode_batch(sentences)]
            return EncodedSentences.of(rows, self._dtype)
        text = self._vocabulary.normalize(text)
        # `_END` becomes a separate word.
        return self._words.encode(f"{text}{_END}".replace(_END, f" {_END} ").split(" "))


class _WordTable:
    """A table of the words seen so far with their token ids, so that each word is tokenized only once.

    A word has a number, and its ids are a slice of one array.
    """

    def __init__(self, vocabulary: Vocabulary, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._vocabulary = vocabulary
        self._dtype = dtype
        self._clear()

    def encode(self, words: list[str]) -> EncodedSentences:
        """Return the token ids of the words of several sentences as `EncodedSentences`.

        After each sentence, the list has the word `_END`, which becomes the end symbol.
        """
        if len(self._numbers) > _MAX_WORDS:
            self._clear()
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int32, len(words))
        self._encode_new_words()
        lengths = self._lengths[numbers]
        stops = np.cumsum(lengths)
        positions = np.repeat(self._starts[numbers] - (stops - lengths), lengths) + np.arange(int(stops[-1]))
        return EncodedSentences(self._tokens[positions], np.append(0, stops[numbers == 0]))

    def _clear(self) -> None:
        self._numbers = defaultdict[str, int](count(1).__next__, {_END: 0})  # a new word gets the next number
        self._tokens = np.array([self._vocabulary.eos_id], self._dtype)
        self._lengths = np.ones(1, np.int64)
        self._starts = np.zeros(1, np.int64)

    def _encode_new_words(self) -> None:
        new = list(islice(reversed(self._numbers), len(self._numbers) - len(self._lengths)))[::-1]
        if not new:
            return
        ids, offsets = EncodedSentences.of(self._vocabulary.encode_batch(new), self._dtype)
        self._starts = np.append(self._starts, len(self._tokens) + offsets[:-1])
        self._lengths = np.append(self._lengths, np.diff(offsets))
        self._tokens = np.append(self._tokens, ids)


# --- description of a prepared corpus ---
# Stored as corpus.json.


CORPUS_FORMAT_VERSION = 1
CORPUS_CARD_NAME = "corpus.json"


def held_out_pairs_name(file: int | None = None) -> str:
    """Return the name of the JSON-lines file for held-out pairs whose texts have line feeds.

    `file` is the index of the corpus file that the pairs come from; None: one file holds the pairs of all corpus files.
    """
    number = "" if file is None else f"{file + 1}."
    return f"held_out.{number}jsonl"


def held_out_names(file: int | None = None) -> tuple[str, str]:
    """Return the names of two text files for held-out pairs: of the sources and of the targets.

    `file` is the index of the corpus file that the pairs come from; None: one pair of text files holds the pairs of all
    corpus files.
    """
    number = "" if file is None else f"{file + 1}."
    return f"held_out.{number}source.txt", f"held_out.{number}target.txt"


class CorpusCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of corpus.json, which describes the files of a prepared corpus."""

    format_version: int
    pairs: int
    tokenizer_fingerprint: str
    source: SideCard
    target: SideCard
    filters: FilterReport
    directions: list[tuple[str, str]] = []
    """Source and target language of each file, in a corpus of several language pairs; else empty."""
    tags: list[str] = []
    """The tag of each file, which becomes a token before its sources, in a corpus with tags; an empty tag: none."""
    file_pairs: list[int] = []
    """The number of pairs of each source file, after filters and without held-out pairs."""
    held_out_pairs: list[int] = []
    """The number of held-out pairs of each source file, in a corpus of several language pairs or with tags; else
    empty."""
    columns: dict["Column", "ColumnCard"] = {}
    """A dict from a column's name to the card of its file, which has one number for each pair: "weights" (in the loss)
    and "documents" (1: continues the previous pair's document)."""


def read_card(folder: Path) -> CorpusCard:
    """Read, check and return the `CorpusCard` (metadata) of a prepared corpus, from corpus.json in its folder.

    Raises:
        TransduceError: the file is missing, damaged or of another format.
    """
    return _read_card(folder / CORPUS_CARD_NAME, CorpusCard, CORPUS_FORMAT_VERSION, "prepared corpus")


# --- columns ---
# Files with one number for each kept pair.


# rows: the pair's row in its block; keys: a hash of the source's letters; digests: a hash of both sides; weights: the
# pair's weight in the loss; documents: in a part, a number that differs between the documents of a block, and in a
# corpus, 1 if the pair continues the document of the pair before it, else 0.
Column = Literal["rows", "keys", "digests", "weights", "documents"]
_COLUMN_DTYPES: dict[Column, np.dtype[Any]] = {
    "rows": np.dtype("<u2"),
    "keys": np.dtype("<u8"),
    "digests": np.dtype("<u8"),
    "weights": np.dtype("<f4"),
    "documents": np.dtype("<u8"),
}


class ColumnCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of a column: a file with one number for each pair, such as its hash or its weight in the loss."""

    sha256: str

    def check_size(self, folder: Path, name: Column, pairs: int) -> None:
        """Check that the column's file exists in a folder and has the size of one number for each of `pairs` pairs.

        Raises:
            TransduceError: the file is missing or has another size.
        """
        check_size(folder / name, pairs * _COLUMN_DTYPES[name].itemsize)

    def read(self, folder: Path, name: Column) -> NDArray[Any]:
        """Read the whole column from its file in a folder: an array with one number for each pair, (pairs,)."""
        return np.fromfile(folder / name, _COLUMN_DTYPES[name])

    def read_ranges(self, folder: Path, name: Column, ranges: Sequence[tuple[int, int]]) -> NDArray[Any]:
        """Read the column's numbers for the pairs in several ranges (start, stop), concatenated.

        Without ranges, the array is empty.
        """
        path, dtype = folder / name, _COLUMN_DTYPES[name]
        parts = [np.fromfile(path, dtype, stop - start, offset=start * dtype.itemsize) for start, stop in ranges]
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    def verify(self, folder: Path, name: Column) -> None:
        """Check the content of the column's file against the SHA-256 that this card stores.

        Raises:
            TransduceError: the content differs from what was written.
        """
        check_sha256(folder / name, self.sha256)


class TokenizedPairs(NamedTuple):
    """Tokenized sentence pairs in memory: source ids and target ids, with end symbols, and columns by name.

    A column is an array with a number for each pair, such as its hash.
    """

    source: EncodedSentences
    target: EncodedSentences
    columns: Mapping[Column, NDArray[Any]]


class PairsWriter(AbstractContextManager["PairsWriter"]):
    """A writer of the files of tokenized pairs in a folder: two for each side, and one for each column.

    It is used in a ``with`` statement, which closes the files at its end.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, columns: Iterable[Column]) -> None:
        """Create empty files in an existing folder.

        Args:
            folder: the folder.
            tokenizer: the tokenizer, whose vocabulary sizes determine how ids are stored.
            columns: the names of the columns to write.
        """
        self._source, self._target = (
            SideWriter(folder, side, vocabulary_size=vocabulary.size, pad_id=vocabulary.pad_id)
            for side, vocabulary in (("source", tokenizer.source), ("target", tokenizer.target))
        )
        self._columns = {name: HashedFile(folder / name) for name in columns}

    def append(self, pairs: TokenizedPairs) -> None:
        """Append tokenized pairs, with their numbers for each column."""
        self._source.append(pairs.source)
        self._target.append(pairs.target)
        for name, file in self._columns.items():
            file.write(np.ascontiguousarray(pairs.columns[name], _COLUMN_DTYPES[name]).data)

    def cards(self) -> dict[str, Any]:
        """Return the fields "source", "target" and "columns" of a `CorpusCard` for the data written so far."""
        columns = {name: ColumnCard(file.sha256) for name, file in self._columns.items()}
        return {"source": self._source.card(), "target": self._target.card(), "columns": columns}

    @override
    def __exit__(self, *error: object) -> None:
        self._source.close()
        self._target.close()
        for file in self._columns.values():
            file.close()


# --- preparation of a part ---


FORMAT_VERSION = 1
CARD_NAME = "part.json"


NEEDS_DEV_DOCUMENTS = (
    "`data.context_before` needs a dev set of whole documents, as single sentences cannot be held out of them: pass "
    "--dev-source and --dev-target."
)


class PartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request to prepare one part of a corpus, in one worker process of one machine.

    A corpus is divided into blocks of lines. With n shards (one per machine), a shard has every n-th block. With m
    workers, a worker prepares every m-th block of its shard.
    """

    files: CorpusFiles
    written_out: CorpusFiles | None = None
    """Files on this machine with the same text line by line, which are read in place of `files` if those have another
    format; None: `files` are read.
    """
    task: str = "translation"
    """The kind of task that the corpus is for, such as "translation"."""
    filters: FilterSettings
    hold_out: HoldOutSettings | None = None
    shard: tuple[int, int] = (1, 1)
    """Number and count of the shard, both from 1: (2, 4) is the second of four."""
    worker: tuple[int, int] = (1, 1)
    """Number and count of the worker within the shard, both from 1."""

    def __post_init__(self) -> None:
        if self.files.has_documents and self.hold_out is not None:
            raise TransduceError(NEEDS_DEV_DOCUMENTS)

    def takes(self, block: int) -> bool:
        """Return whether the block of pairs with this index (from 0) belongs to the requested part."""
        (shard, shards), (worker, workers) = self.shard, self.worker
        return block % shards == shard - 1 and block // shards % workers == worker - 1


class TakenBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A block of pairs (consecutive lines of a file) in a part of a corpus, with the number of kept pairs."""

    number: int
    path: str
    first_line: int
    kept: int
    file: int = 0
    """The index of the block's file in the corpus."""
    boundaries: int = 0
    """The number of blank lines of the block, which separate documents; 0 if the file names its documents or the corpus
    has none.
    """


class PartCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of part.json, which describes the files of a part of a corpus and what the filters did."""

    format_version: int
    request: PartRequest
    tokenizer_fingerprint: str
    blocks: int
    """The number of blocks of the whole corpus, which every part counts."""
    pairs: int
    """The number of pairs of the whole corpus, which every part counts."""
    checksums: list[int] = []
    """The CRC-32 of each file's content, in the corpus's order of files."""
    taken: list[TakenBlock]
    read: int
    """The number of pairs of this part before the filters."""
    dropped: dict[str, int]
    """A dict from each reason to the number of pairs that filters dropped for it."""
    first_dropped: dict[str, tuple[int, int]]
    """A dict from each reason to the first pair that was dropped for it: the index of its block, and its row in the
    block. The first pair whose sides seem exchanged is included."""
    of_targets: list[str] = []
    """The reasons for which only the target of the first dropped pair is at fault, so that messages name the target
    file.
    """
    exchanged: int = 0
    """The number of kept pairs whose sides seem exchanged."""
    identical: int = 0
    """The number of kept pairs whose sides are the same text."""
    carriage_returns: int
    byte_order_marks: int
    candidates: list[HoldOutCandidate]
    source: SideCard
    target: SideCard
    columns: dict[Column, ColumnCard]
    """A dict from a column's name to the card of its file. A column has a number for each kept pair, such as the pair's
    hash, that merging needs."""


def write_part(
    request: PartRequest, tokenizer: Tokenizer, folder: Path, report_progress: Callable[[int], None] | None = None
) -> PartCard:
    """Filter and tokenize one part of a corpus, write the part into a new folder, and return its card.

    ``report_progress`` is called after each block with the number of pairs read.

    Raises:
        TransduceError: a file cannot be read.
    """
    folder.mkdir(parents=True)
    preparation = _Preparation(request, tokenizer)
    reader = PairReader(request.written_out or request.files, wanted=request.takes)
    with PairsWriter(folder, tokenizer, preparation.column_names()) as writer:
        for block in reader:
            writer.append(preparation.take(block))
            if report_progress is not None:
                report_progress(preparation.read)
    card = PartCard(
        format_version=FORMAT_VERSION,
        request=msgspec.structs.replace(request, written_out=None),
        tokenizer_fingerprint=tokenizer.fingerprint,
        blocks=reader.blocks,
        pairs=reader.pairs,
        checksums=list(reader.checksums.values()),
        taken=preparation.taken,
        read=preparation.read,
        dropped=dict(preparation.dropped),
        first_dropped=preparation.first_dropped,
        of_targets=preparation.of_targets,
        exchanged=preparation.exchanged,
        identical=preparation.identical,
        carriage_returns=reader.notes.carriage_returns,
        byte_order_marks=reader.notes.byte_order_marks,
        candidates=preparation.candidates(),
        **writer.cards(),
    )
    write_file(folder / CARD_NAME, msgspec.json.encode(card))
    return card


class _Preparation:
    """A preparation of a part in progress, block by block, with counts of pairs read, dropped and kept."""

    def __init__(self, request: PartRequest, tokenizer: Tokenizer) -> None:
        self.read = 0
        self.dropped: Counter[str] = Counter()
        self.first_dropped: dict[str, tuple[int, int]] = {}
        self.of_targets: list[str] = []
        self.exchanged = self.identical = 0
        self.taken: list[TakenBlock] = []
        self._request = request
        self._filter = PairFilter(request.filters, line_feeds=(request.written_out or request.files).line_feeds)
        self._hold_out = HoldOut(request.hold_out) if request.hold_out is not None else None
        self._source = SentenceEncoder(tokenizer.source)
        self._target = self._source if tokenizer.joint else SentenceEncoder(tokenizer.target)
        self._tag = (
            tokenizer.source.id(BACK_TRANSLATED) if tokenizer.source.has_special_token(BACK_TRANSLATED) else None
        )
        targets = [target for _, target in request.files.directions]
        self._language_ids = [tokenizer.source.id(language_token(target)) for target in targets]
        """The id of each file's target-language token, which begins sources; empty unless there are several language
        pairs."""
        self._tag_ids = [tokenizer.source.id(tag_token(tag)) if tag else None for tag in request.files.tags]
        """The id of each file's tag token, which begins sources; None: the file has no tag."""

    def column_names(self) -> list[Column]:
        """Return a list of the names of the columns (a number for each kept pair) that the request needs.

        Columns serve to find duplicates, to choose the dev set, and to store weights and documents.
        """
        keys: list[Column] = ["keys"] if self._hold_out is not None else []
        digests: list[Column] = ["digests"] if self._request.filters.drop_duplicates else []
        rows: list[Column] = ["rows"] if keys or digests else []
        weights: list[Column] = ["weights"] if self._request.files.has_weights else []
        documents: list[Column] = ["documents"] if self._request.files.has_documents else []
        return rows + keys + digests + weights + documents

    def candidates(self) -> list[HoldOutCandidate]:
        """Return a list of the part's pairs that may be held out as dev set; empty if none shall be held out."""
        return self._hold_out.candidates() if self._hold_out is not None else []

    def take(self, block: PairBlock) -> TokenizedPairs:
        """Filter and tokenize a block of pairs, count what is dropped, and return the pairs that are kept.

        The tokens of tags and target languages come before the sources.
        """
        self.read += len(block.sources)
        rows = self._rows_by_text(block)
        sources, targets = ([side[row] for row in rows] for side in (block.sources, block.targets))
        source, target = self._source.encode(sources), self._target.encode(targets)
        kept = self._by_length(block.number, rows, source, target)
        self._count_doubtful(block, [row for row, is_kept in zip(rows, kept.tolist(), strict=True) if is_kept])
        columns: dict[Column, NDArray[Any]] = {}
        is_back_translated = block.path in self._request.files.back_translated
        if self._hold_out is not None:
            # The side written by a person decides whether a pair overlaps with the dev set.
            keys = source_keys(targets if is_back_translated else sources) ^ self._direction_key(block.file)
            if not is_back_translated:
                self._hold_out.offer(block, rows, keys, kept)
            columns["keys"] = keys[kept]
        if self._request.filters.drop_duplicates:
            digests = b"".join(map(pair_digest, sources, targets))
            columns["digests"] = np.frombuffer(digests, np.dtype("<u8"))[kept] ^ self._direction_key(block.file)
        if columns:
            columns["rows"] = np.array(rows, np.uint16)[kept]
        if self._request.files.has_weights:
            columns["weights"] = self._weights(block)[rows][kept]
        boundaries = 0
        if self._request.files.has_documents:
            documents, boundaries = _documents(block)
            columns["documents"] = documents[rows][kept]
        self.taken.append(
            TakenBlock(block.number, block.path, block.first_line, int(kept.sum()), block.file, boundaries)
        )
        source, target = source.select(kept), target.select(kept)
        if self._tag is not None and is_back_translated:
            source = source.with_prefix(self._tag)
        if self._tag_ids and (tag := self._tag_ids[block.file]) is not None:
            source = source.with_prefix(tag)
        if self._language_ids:
            source = source.with_prefix(self._language_ids[block.file])
        return TokenizedPairs(source, target, columns)

    def _weights(self, block: PairBlock) -> NDArray[np.float32]:
        """Return each pair's weight in the loss, (pairs,): the pair's own weight, or 1, times the file's weight."""
        factors = self._request.files.loss_weights
        weights = np.ones(len(block.sources)) if block.weights is None else np.array(block.weights)
        return (weights * (factors[block.file] if factors else 1.0)).astype(np.float32)

    def _direction_key(self, file: int) -> np.uint64:
        """Return a 64-bit hash of a file's language pair; 0 if the corpus has only one language pair.

        The keys of the file's pairs are combined with it by xor, so that equal sources in different language pairs have
        different keys.
        """
        directions = self._request.files.directions
        return source_keys(["-".join(directions[file])])[0] if directions else np.uint64(0)

    def _rows_by_text(self, block: PairBlock) -> list[int]:
        """Return a list of the rows of a block that pass the filters of text, and count the other rows by reason.

        Rows of weight 0 and blank lines between documents are dropped, too. `_by_length` checks lengths in tokens.
        """
        reasons = list(map(self._filter.text_reason, block.sources, block.targets))
        if block.weights is not None:
            reasons = [
                NO_WEIGHT if reason is None and weight == 0.0 else reason
                for reason, weight in zip(reasons, block.weights, strict=True)
            ]
        if self._request.files.has_documents and block.documents is None:
            reasons = [
                reason if source.strip() or target.strip() else BETWEEN_DOCUMENTS
                for reason, source, target in zip(reasons, block.sources, block.targets, strict=True)
            ]
        for row, reason in enumerate(reasons):
            if reason is not None:
                if reason not in self.dropped and self._filter.is_target_reason(reason, block.sources[row]):
                    self.of_targets.append(reason)
                self._drop(reason, block.number, row)
        return [row for row, reason in enumerate(reasons) if reason is None]

    def _by_length(
        self, block: int, rows: list[int], source: EncodedSentences, target: EncodedSentences
    ) -> NDArray[np.bool_]:
        """Return a boolean mask of the rows whose lengths in tokens pass the filters, and count the others by reason.

        For speed, each distinct pair of lengths is checked once.
        """
        # The end symbol does not count.
        lengths = np.stack([source.lengths, target.lengths]).astype(np.int64) - 1
        distinct, index_of_pair = np.unique(lengths[0] << 32 | lengths[1], return_inverse=True)
        reasons = [self._filter.length_reason(both >> 32, both & 0xFFFFFFFF) for both in distinct.tolist()]
        kept = np.array([reason is None for reason in reasons], bool)[index_of_pair]
        for index in np.flatnonzero(~kept).tolist():
            self._drop(str(reasons[index_of_pair[index]]), block, rows[index])
        return kept

    def _count_doubtful(self, block: PairBlock, rows: list[int]) -> None:
        """Count suspicious pairs among a block's kept `rows`, in `self.exchanged` and `self.identical`.

        `exchanged` counts pairs whose source seems to be in the target language and the reverse; it needs both
        languages. `identical` counts pairs of equal texts, unless a filter drops them. Nothing is counted for a corpus
        whose two sides are the same files.
        """
        files = self._request.files
        if files.is_text_alone:
            return
        if not self._request.filters.drop_identical:
            self.identical += sum(block.sources[row].strip() == block.targets[row].strip() for row in rows)
        languages = _languages(files, block.file)
        if languages is not None:
            exchanged = [row for row in rows if are_exchanged(block.sources[row], block.targets[row], languages)]
            self.exchanged += len(exchanged)
            for row in exchanged[:1]:
                self._note_first(EXCHANGED, block.number, row)

    def _drop(self, reason: str, block: int, row: int) -> None:
        self.dropped[reason] += 1
        self._note_first(reason, block, row)

    def _note_first(self, reason: str, block: int, row: int) -> None:
        location = (block, row)
        self.first_dropped[reason] = min(location, self.first_dropped.get(reason, location))


def _languages(files: CorpusFiles, file: int) -> tuple[str, str] | None:
    """Return a file's two language codes, from the settings or else from the file names; None if one is unknown."""
    if files.directions or files.languages is not None:
        return files.directions[file] if files.directions else files.languages
    codes = [language_of(side[file]) for side in (files.source, files.target) if side]
    return (codes[0], codes[1]) if len(codes) == 2 and codes[0] and codes[1] else None


def _documents(block: PairBlock) -> tuple[NDArray[np.uint64], int]:
    """Return a document number for each pair of a block, (pairs,), and the count of blank lines.

    Pairs of the same document have the same number. If the pairs name their documents, the number is a hash of the
    name, and the count is 0. Otherwise blank lines separate the documents.
    """
    if block.documents is not None:
        names = (name.encode("utf-8", "surrogatepass") for name in block.documents)
        digests = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in names)
        return np.frombuffer(digests, np.dtype("<u8")), 0
    blank = [
        not (source.strip() or target.strip()) for source, target in zip(block.sources, block.targets, strict=True)
    ]
    numbers = np.cumsum(blank).astype(np.uint64)
    return numbers, int(numbers[-1])


AnyCard = TypeVar("AnyCard", CorpusCard, PartCard)


class StoredPairs(Generic[AnyCard]):
    """Tokenized sentence pairs in a folder: source ids, target ids and columns with a number for each pair.

    Pairs are numbered from 0.
    """

    def __init__(self, folder: Path, card: AnyCard, pairs: int) -> None:
        """Open the files of `pairs` tokenized pairs in a folder, which the card describes.

        Raises:
            TransduceError: a file is missing or has another size than the card specifies.
        """
        self.folder = folder
        self.card: AnyCard = card
        self._source = SideReader(folder, "source", card.source, pairs)
        self._target = SideReader(folder, "target", card.target, pairs)

    def read(self, start: int, stop: int) -> tuple[EncodedSentences, EncodedSentences]:
        """Return a pair of `EncodedSentences`: the sources and targets with indices from start to stop (exclusive)."""
        return self.read_ranges([(start, stop)])

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> tuple[EncodedSentences, EncodedSentences]:
        """Return two `EncodedSentences`: the sources and the targets of the pairs in ranges (start, stop), joined."""
        return self._source.read_ranges(ranges), self._target.read_ranges(ranges)

    def verify(self) -> None:
        """Check the contents of all files against the SHA-256 digests in the card.

        Raises:
            TransduceError: a content differs from what was written.
        """
        self._source.verify()
        self._target.verify()
        for name, card in self.card.columns.items():
            card.verify(self.folder, name)


class CorpusPart(StoredPairs[PartCard]):
    """A filtered and tokenized part of a corpus, stored in a folder until all parts are merged."""

    def __init__(self, folder: Path) -> None:
        """Open a part of a corpus in its folder.

        Raises:
            TransduceError: the folder is not a part, or is incomplete.
        """
        card = _read_card(folder / CARD_NAME, PartCard, FORMAT_VERSION, "part of a corpus")
        self.kept = sum(block.kept for block in card.taken)
        super().__init__(folder, card, self.kept)
        for name, column in self.card.columns.items():
            column.check_size(folder, name, self.kept)

    def column(self, name: Column) -> NDArray[Any]:
        """Return a column of the part by name: an array with a number for each kept pair, such as its hash."""
        return self.card.columns[name].read(self.folder, name)

    def segments(self) -> Iterator[tuple[TakenBlock, int, int]]:
        """Yield a triple for each block: the block, and start and stop of its pairs among the part's kept pairs."""
        start = 0
        for block in self.card.taken:
            yield block, start, start + block.kept
            start += block.kept


def _read_card(path: Path, kind: type[AnyCard], expected: int, described: str) -> AnyCard:
    """Read and return the card of a corpus or of a part, which must have the expected version of its format.

    Raises:
        TransduceError: the file is missing, damaged or of another format. The message uses the word `described`, such
            as "corpus", for its content.
    """
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=dict[str, msgspec.Raw]).get("format_version")
        actual = "none" if version is None else bytes(version).decode()
        if actual != str(expected):
            raise TransduceError(
                f"{path} has format {actual}, but this version reads format {expected}: prepare it again."
            )
        return msgspec.json.decode(with_current_names(content), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        raise TransduceError(
            f"{path} does not exist: {path.parent} holds no {described}; copy it back, or prepare or train in a new "
            "folder."
        ) from None
    except msgspec.DecodeError as error:
        raise TransduceError(f"{path} does not describe a {described} ({error}): prepare it again.") from None
