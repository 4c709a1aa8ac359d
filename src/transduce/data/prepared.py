"""Prepare a corpus: tokenize it once, write it to disk in one pass, and read ranges of its pairs in training."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from transduce.atomic_io import atomic_folder
from transduce.data.batches import CHUNK_PAIRS, PairRange, RandomPurpose, permutation
from transduce.data.holdout import HoldOutSettings
from transduce.data.id_files import EncodedSentences
from transduce.data.merging import write_corpus
from transduce.data.parts import (
    CORPUS_CARD_NAME,
    CorpusCard,
    CorpusPart,
    PartRequest,
    StoredPairs,
    held_out_names,
    held_out_pairs_name,
    read_card,
)
from transduce.data.processes import write_parts
from transduce.errors import TransduceError
from transduce.text import CorpusFiles, FilterReport, FilterSettings, Tokenizer
from transduce.text.corpus import PairReader

# --- sample of pairs ---
# A deterministic sample for steps that do not need all pairs.


def write_sample(files: CorpusFiles, pairs: int, sample_size: int, path: Path) -> CorpusFiles:
    """Write a sample of `sample_size` of a corpus's `pairs` as JSON lines in corpus order; return it as `CorpusFiles`.

    Every block of pairs contributes its share of the sample, to within one pair. The pairs taken from a block depend on
    the block's number and a fixed seed, so that periodic patterns in a corpus do not bias the sample.
    """
    encoder = msgspec.json.Encoder()
    before = 0
    with path.open("wb") as stream:
        for block in PairReader(files):
            after = before + len(block.sources)
            share = after * sample_size // pairs - before * sample_size // pairs
            order = permutation(len(block.sources), RandomPurpose.CORPUS_SAMPLE, block.number)
            for row in sorted(order[:share].tolist()):
                pair = {"source": block.sources[row], "target": block.targets[row]}
                try:
                    line = encoder.encode(pair)
                except UnicodeEncodeError:  # the text has bytes that are not UTF-8, which the reader has escaped
                    line = json.dumps(pair).encode()
                stream.write(line + b"\n")
            before = after
    return CorpusFiles(source=(str(path),), format="jsonl")


# --- prepared corpus ---


class CorpusStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a prepared corpus; lengths of sentences are in token ids, including the end symbol."""

    pairs: int
    source_tokens: int
    target_tokens: int
    mean_source_length: float
    mean_target_length: float
    source_percentiles: tuple[int, int, int, int]
    """The 50th, 90th and 99th percentile and the maximum of source lengths."""
    target_percentiles: tuple[int, int, int, int]
    """The 50th, 90th and 99th percentile and the maximum of target lengths."""


class PreparedCorpus(StoredPairs[CorpusCard]):
    """A prepared corpus in a folder; reading keeps nothing in memory and no file open. Pairs are numbered from 0."""

    def __init__(self, folder: Path, card: CorpusCard) -> None:
        """Create a corpus from its checked card (metadata); callers use ``PreparedCorpus.open``, which reads it."""
        super().__init__(folder, card, card.pairs)
        self.pairs = card.pairs
        self.source_tokens = card.source.tokens
        self.target_tokens = card.target.tokens
        self.source_pad_id = card.source.pad_id
        self.target_pad_id = card.target.pad_id

    @classmethod
    def open(cls, folder: str | Path, tokenizer: Tokenizer | None = None) -> "PreparedCorpus":
        """Open a folder that ``prepare`` has written, and return it as a `PreparedCorpus`.

        Raises:
            TransduceError: the folder is not a prepared corpus, has another format, is damaged, or was prepared with
                another tokenizer than the one passed.
        """
        folder = Path(folder)
        card = read_card(folder)
        if tokenizer is not None and tokenizer.fingerprint != card.tokenizer_fingerprint:
            raise TransduceError(
                f"{folder} was prepared with another tokenizer than the one passed: prepare it again, or use "
                "the tokenizer it was prepared with."
            )
        return cls(folder, card)

    @property
    def sentences(self) -> "PreparedCorpus":
        """The corpus without repeated pairs and context sentences, which subclasses add."""
        return self

    def ranges(self) -> Iterator[tuple[tuple[str, str], int, int]]:
        """Yield ((source, target), start, stop) for each file: its language pair, and the range of its pairs.

        For a corpus of a single language pair, nothing is yielded.
        """
        start = 0
        for direction, pairs in zip(self.card.directions, self.card.file_pairs, strict=False):
            yield direction, start, start + pairs
            start += pairs

    @property
    def filters(self) -> FilterReport:
        """The numbers of pairs that were read, dropped and kept during preparation."""
        return self.card.filters

    @property
    def held_out(self) -> CorpusFiles | None:
        """A `CorpusFiles` that names the files with the held-out dev pairs, as text or JSON lines.

        None: no pair was held out.
        """
        if not self.filters.held_out:
            return None
        files = [file for file, pairs in enumerate(self.card.held_out_pairs) if pairs]
        directions = tuple(self.card.directions[file] for file in files if self.card.directions)
        tags = tuple(self.card.tags[file] for file in files if self.card.tags)
        paths = [self.folder / held_out_pairs_name(file) for file in files or (None,)]
        if all(path.exists() for path in paths):  # texts with line feeds
            return CorpusFiles(source=tuple(map(str, paths)), directions=directions, tags=tags, line_feeds=True)
        names = [held_out_names(file) for file in files] or [held_out_names()]
        return CorpusFiles(
            source=tuple(str(self.folder / source) for source, _ in names),
            target=tuple(str(self.folder / target) for _, target in names),
            directions=directions,
            tags=tags,
        )

    @property
    def statistics(self) -> CorpusStatistics:
        """The numbers of pairs and tokens of the corpus, and the lengths of sentences."""
        return CorpusStatistics(
            pairs=self.pairs,
            source_tokens=self.source_tokens,
            target_tokens=self.target_tokens,
            mean_source_length=self.source_tokens / self.pairs,
            mean_target_length=self.target_tokens / self.pairs,
            source_percentiles=_percentiles(np.array(self.card.source.sentences_by_length)),
            target_percentiles=_percentiles(np.array(self.card.target.sentences_by_length)),
        )

    def read_range_lengths(self, ranges: Sequence[PairRange]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return two arrays: the source and the target lengths of the pairs in ranges (start, stop), concatenated.

        Lengths are in tokens and include the end symbol.
        """
        return self._source.read_range_lengths(ranges), self._target.read_range_lengths(ranges)

    def read_range_weights(self, ranges: Sequence[PairRange]) -> NDArray[np.float32] | None:
        """Return an array of the loss weights of the pairs in several ranges (start, stop), in the order of the ranges.

        The result is None if the corpus has no weights.
        """
        card = self.card.columns.get("weights")
        return None if card is None else np.asarray(card.read_ranges(self.folder, "weights", ranges), np.float32)


class ContextSettings(NamedTuple):
    """The number of earlier sentences of a document that a sentence is read with, and the tokens that separate them."""

    before: int
    """Maximum number of preceding sentences of the same document; at a document's start there are fewer."""
    source_separator: int
    """The id of the token that ends each sentence of context in the source."""
    target_separator: int | None = None
    """The id of the token that ends each sentence of context in the target; None: targets have no context."""


class ContextCorpus(PreparedCorpus):
    """A prepared corpus whose sentences are preceded by earlier sentences of their documents.

    A pair of a document reads `s₁ <sep> s₂ <sep> s₃ </s>`: the sentence s₃ after two sentences of context.
    """

    def __init__(self, corpus: PreparedCorpus, settings: ContextSettings) -> None:
        """Create a corpus with context.

        Args:
            corpus: the prepared corpus, whose column `documents` shows which pairs continue a document.
            settings: the number of sentences and the separators.
        """
        super().__init__(corpus.folder, corpus.card)
        self._corpus = corpus
        self.settings = settings
        lengths = self.read_range_lengths([(0, self.pairs)])
        self.source_tokens, self.target_tokens = (int(each.sum(dtype=np.int64)) for each in lengths)
        self._percentiles = _percentiles(np.bincount(lengths[0])), _percentiles(np.bincount(lengths[1]))

    @property
    @override
    def sentences(self) -> PreparedCorpus:
        return self._corpus.sentences

    @property
    @override
    def statistics(self) -> CorpusStatistics:
        source, target = self._percentiles
        return msgspec.structs.replace(super().statistics, source_percentiles=source, target_percentiles=target)

    @override
    def read_ranges(self, ranges: Sequence[PairRange]) -> tuple[EncodedSentences, EncodedSentences]:
        rows, context = self._rows(ranges)
        source, target = super().read_ranges(self._extended(ranges))
        source = _with_context(source, rows, context, self.settings.source_separator)
        separator = self.settings.target_separator
        target = _with_context(target, rows, context if separator is not None else 0 * context, separator or 0)
        return source, target

    @override
    def read_range_lengths(self, ranges: Sequence[PairRange]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        rows, context = self._rows(ranges)
        source, target = super().read_range_lengths(self._extended(ranges))
        on_target = context if self.settings.target_separator is not None else 0 * context
        return _lengths_with_context(source, rows, context), _lengths_with_context(target, rows, on_target)

    def _extended(self, ranges: Sequence[PairRange]) -> list[PairRange]:
        """Return a list of the ranges (start, stop), each extended at its start by the number of context sentences."""
        return [(max(0, start - self.settings.before), stop) for start, stop in ranges]

    def _rows(self, ranges: Sequence[PairRange]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return two arrays, (N,), for the N pairs in ranges: indices, and numbers of context sentences.

        A pair's index counts all pairs that are read: those of the ranges, and those before each range that may serve
        as context.
        """
        extended = self._extended(ranges)
        continues = self.card.columns["documents"].read_ranges(self.folder, "documents", extended).astype(bool)
        sizes = [stop - start for start, stop in extended]
        firsts = np.cumsum(sizes) - sizes
        rows = np.concatenate(
            [
                np.arange(first + start - begin, first + stop - begin)
                for first, (start, stop), (begin, _) in zip(firsts.tolist(), ranges, extended, strict=True)
            ]
            or [np.zeros(0, np.int64)]
        )
        # The first pair of an extended range may continue a document, whose earlier pairs are not read.
        continues[firsts[np.array(sizes) > 0]] = False
        starts = np.maximum.accumulate(np.where(continues, 0, np.arange(len(continues))))
        return rows, np.minimum(rows - starts[rows], self.settings.before)


def _lengths_with_context(
    lengths: NDArray[np.int32], rows: NDArray[np.int64], context: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return the lengths in tokens of N sentences together with the sentences before them, (N,).

    `rows`, (N,), has the indices of the N sentences. `context`, (N,), has the number of sentences before each.
    """
    ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
    return np.asarray(ends[rows + 1] - ends[rows - context], np.int32)


def _with_context(
    sentences: EncodedSentences, rows: NDArray[np.int64], context: NDArray[np.int64], separator: int
) -> EncodedSentences:
    """Return N sentences, each joined to the sentences before it, as `EncodedSentences`.

    The separator token replaces the end symbols between sentences.

    Args:
        sentences: all sentences, in the order of their documents.
        rows: the indices of the N sentences, (N,).
        context: the number of sentences to put before each of the N sentences, (N,).
        separator: the separator token.
    """
    starts, stops = sentences.offsets[rows - context], sentences.offsets[rows + 1]
    lengths = stops - starts
    offsets = np.append(0, np.cumsum(lengths))
    is_end = np.zeros(len(sentences.ids), bool)
    is_end[sentences.offsets[1:] - 1] = True
    positions = np.repeat(starts - offsets[:-1], lengths) + np.arange(int(offsets[-1]))
    inner = is_end[positions]
    inner[offsets[1:] - 1] = False
    ids = sentences.ids[positions]
    ids[inner] = separator
    return EncodedSentences(ids, offsets)


class RepeatedCorpus(PreparedCorpus):
    """A prepared corpus whose files are repeated, so that an epoch has the pairs of some files more often than others.

    A file's factor of 2.5 means that an epoch contains each pair twice, and a fixed random half of the pairs once more.
    """

    def __init__(self, corpus: PreparedCorpus, factors: Sequence[float]) -> None:
        """Create a corpus from a prepared one of several files.

        Args:
            corpus: the prepared corpus.
            factors: how often an epoch contains each pair of a file, in the order of the files; below 1, an epoch
                contains a fixed random part of the pairs.
        """
        super().__init__(corpus.folder, corpus.card)
        self._corpus = corpus
        self._ranges: list[PairRange] = []
        """A list of ranges (start, stop) of the prepared corpus's pairs, whose concatenation is this corpus."""
        start = 0
        for file, (pairs, factor) in enumerate(zip(corpus.card.file_pairs, factors, strict=True)):
            self._ranges += [(start, start + pairs)] * int(factor)
            self._ranges += _sample_of_ranges(start, pairs, round((factor - int(factor)) * pairs), file)
            start += pairs
        self._ranges = [(start, stop) for start, stop in self._ranges if start < stop]
        self._starts = np.append(0, np.cumsum([stop - start for start, stop in self._ranges]))
        self.pairs = int(self._starts[-1])
        self.source_tokens, self.target_tokens = (
            int(lengths.sum(dtype=np.int64)) for lengths in corpus.read_range_lengths(self._ranges)
        )

    @property
    def unrepeated(self) -> PreparedCorpus:
        """The underlying corpus, which has each pair once, still with its context sentences."""
        return self._corpus

    @property
    @override
    def statistics(self) -> CorpusStatistics:
        of_files = self._corpus.statistics
        return msgspec.structs.replace(
            super().statistics,
            source_percentiles=of_files.source_percentiles,
            target_percentiles=of_files.target_percentiles,
        )

    @property
    @override
    def sentences(self) -> PreparedCorpus:
        return self._corpus.sentences

    @override
    def read_ranges(self, ranges: Sequence[PairRange]) -> tuple[EncodedSentences, EncodedSentences]:
        return self._corpus.read_ranges(self._prepared_ranges(ranges))

    @override
    def read_range_weights(self, ranges: Sequence[PairRange]) -> NDArray[np.float32] | None:
        return self._corpus.read_range_weights(self._prepared_ranges(ranges))

    @override
    def read_range_lengths(self, ranges: Sequence[PairRange]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return self._corpus.read_range_lengths(self._prepared_ranges(ranges))

    def _prepared_ranges(self, ranges: Sequence[PairRange]) -> list[PairRange]:
        """Convert ranges of this corpus to a list of ranges of the underlying corpus, which has each pair once."""
        result: list[PairRange] = []
        for start, stop in ranges:
            first = int(np.searchsorted(self._starts, start, side="right")) - 1
            while start < stop:
                end = min(stop, int(self._starts[first + 1]))
                shift = self._ranges[first][0] - int(self._starts[first])
                result.append((start + shift, end + shift))
                start, first = end, first + 1
        return result


def _sample_of_ranges(start: int, pairs: int, wanted: int, file: int) -> list[PairRange]:
    """Draw `wanted` of a file's pairs in random chunks; return a sorted list of their ranges (start, stop).

    A chunk has `CHUNK_PAIRS` consecutive pairs; one chunk may be shorter.

    Args:
        start: the index of the file's first pair.
        pairs: the number of pairs of the file.
        wanted: the number of pairs to draw.
        file: the index of the file, which seeds the choice.
    """
    ranges: list[PairRange] = []
    for chunk in permutation(-(-pairs // CHUNK_PAIRS), 0, RandomPurpose.REPEATED_PAIRS, file).tolist():
        first = chunk * CHUNK_PAIRS
        size = min(CHUNK_PAIRS, pairs - first, wanted)
        wanted -= size
        if size > 0:
            ranges.append((start + first, start + first + size))
    return sorted(ranges)


def prepare(
    files: CorpusFiles,
    tokenizer: Tokenizer,
    filters: FilterSettings,
    folder: str | Path,
    *,
    hold_out: HoldOutSettings | None = None,
    workers: int = 1,
    report_progress: Callable[[int], None] | None = None,
) -> PreparedCorpus:
    """Filter and tokenize a corpus, write it into a folder, and return it opened.

    It takes one pass over the files and little memory. With ``hold_out``, some pairs are left out of the corpus and
    written as text, for validation. The work is distributed to ``workers`` processes, whose number affects only the
    speed. ``report_progress`` is called from time to time with the number of pairs read. A folder that was prepared
    before is replaced at the end; any other non-empty folder is refused.

    Raises:
        TransduceError: no pair is left, a file cannot be read, or the folder is neither empty nor a prepared corpus.
    """
    request = PartRequest(files=files, filters=filters, hold_out=hold_out)
    with atomic_folder(folder, CORPUS_CARD_NAME, "a prepared corpus") as partial:
        parts = write_parts(request, tokenizer, partial / "parts", workers=workers, report_progress=report_progress)
        write_corpus([CorpusPart(part) for part in parts], tokenizer, partial)
        shutil.rmtree(partial / "parts")
    return PreparedCorpus.open(folder)


def _percentiles(sentences_by_length: NDArray[np.int64]) -> tuple[int, int, int, int]:
    """Return the 50th, 90th and 99th percentile and the maximum of the lengths of sentences.

    `sentences_by_length` has the number of sentences of length 0, of length 1, and so on.
    """
    reached = np.cumsum(sentences_by_length)
    at_50, at_90, at_99 = (int(np.searchsorted(reached, share * reached[-1])) for share in (0.5, 0.9, 0.99))
    return at_50, at_90, at_99, len(sentences_by_length) - 1
