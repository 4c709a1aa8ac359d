"""Merge the parts of a corpus, with the decisions that compare pairs: duplicates and the held-out dev set.

The result is the same for any number of parts, whichever processes and machines prepared them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from transduce.atomic_io import write_file, write_json
from transduce.data.holdout import HoldOutCandidate, choose_held_out, is_held_out, join_candidates, source_keys
from transduce.data.id_files import EncodedSentences
from transduce.data.parts import (
    CORPUS_CARD_NAME,
    CORPUS_FORMAT_VERSION,
    Column,
    CorpusCard,
    CorpusPart,
    PairsWriter,
    TakenBlock,
    TokenizedPairs,
    held_out_names,
    held_out_pairs_name,
)
from transduce.errors import TransduceError, shown_names
from transduce.text import FilterReport, FilterSettings, Tokenizer
from transduce.text.corpus import CorpusFiles
from transduce.text.filters import DUPLICATE, EXCHANGED, HELD_OUT, RATIO, TOO_LONG
from transduce.text.pair_files import location_of, origin_of

# Duplicates are searched among pairs whose digests have equal lowest bits, to save memory.
_DIGEST_CLASSES = 16  # a power of 2

Chosen = NDArray[np.bool_]


def write_corpus(
    parts: Sequence[CorpusPart],
    tokenizer: Tokenizer,
    folder: Path,
    report_progress: Callable[[int], None] | None = None,
) -> None:
    """Merge prepared parts into one corpus, and write it into an existing folder, its card corpus.json last.

    ``report_progress`` is called from time to time with the number of pairs written.

    Raises:
        TransduceError: the parts do not make up one corpus, or no pair is left.
    """
    check_parts(parts)
    card = _Merging(parts).write(tokenizer, folder, report_progress)
    write_json(folder / CORPUS_CARD_NAME, card, indent=1)


def check_parts(parts: Sequence[CorpusPart]) -> None:
    """Check that the parts of a corpus, to be merged, had equal settings and contain each of its blocks once.

    Raises:
        TransduceError: the parts do not fit together.
    """
    first = parts[0]
    for part in parts[1:]:
        for what, one, other in _shared_properties(first, part):
            if one != other:
                raise TransduceError(
                    f"Parts of one corpus must be prepared alike, but {first.folder} and {part.folder} have different "
                    f"{what}{_shown(one, other)}: prepare one of them again."
                )
    owners: dict[int, CorpusPart] = {}
    for part in parts:
        for block in part.card.taken:
            other_part = owners.setdefault(block.number, part)
            if other_part is not part:
                raise TransduceError(
                    f"Parts must not overlap, but {other_part.folder} and {part.folder} both hold the pairs from "
                    f"{location_of(block.path, block.first_line)} on: leave one of them out."
                )
    if len(owners) < first.card.blocks:
        raise TransduceError(_incomplete(parts, first.card.blocks - len(owners)))


def _incomplete(parts: Sequence[CorpusPart], missing_blocks: int) -> str:
    shards = sorted({part.card.request.shard for part in parts})
    counts = {count for _, count in shards}
    names = shown_names((f"{number}/{count}" for number, count in shards), 20)
    if len(counts) > 1:
        lack = f"{missing_blocks} blocks of its pairs are in none of these shards"
    else:
        (count,) = counts
        missing = [f"{number}/{count}" for number in range(1, count + 1) if (number, count) not in shards]
        shown = shown_names(missing, 20) if missing else "a part of a shard"
        lack = f"{shown} {'are' if len(missing) > 1 else 'is'} not among these"
    return f"All shards of a corpus are needed, but {lack}: {names}; name the others too."


def _shared_properties(one: CorpusPart, other: CorpusPart) -> Iterator[tuple[str, object, object]]:
    """Yield a triple for each property that must be equal in two parts of a corpus.

    A triple is a name for the error message, the value of the first part, and the value of the second part.
    """
    yield "tokenizers", one.card.tokenizer_fingerprint, other.card.tokenizer_fingerprint
    yield "tasks", one.card.request.task, other.card.request.task
    yield "files", one.card.request.files, other.card.request.files
    yield "filters", one.card.request.filters, other.card.request.filters
    yield "rules for holding out", one.card.request.hold_out, other.card.request.hold_out
    yield "numbers of lines", one.card.pairs, other.card.pairs
    yield "text in the files of these names", one.card.checksums, other.card.checksums


def _shown(one: object, other: object) -> str:
    return f" ({one:,} and {other:,})" if isinstance(one, int) and isinstance(other, int) else ""


class _KeptBlock(NamedTuple):
    """The kept pairs of one block: the pairs of a range of lines that passed the filters."""

    block: TakenBlock
    part: CorpusPart
    start: int
    """The index of the block's first kept pair among the kept pairs of its part."""
    stop: int
    """The index after the block's last kept pair among the kept pairs of its part."""
    first: int
    """The index of the block's first kept pair among the kept pairs of all parts."""

    @property
    def pairs(self) -> slice:
        """The indices of the block's kept pairs among the kept pairs of all parts."""
        return slice(self.first, self.first + self.stop - self.start)


class _Merging:
    """A merge in progress of the pairs that the filters kept in all parts, with a flag for each pair that stays."""

    def __init__(self, parts: Sequence[CorpusPart]) -> None:
        self._parts = parts
        self._request = parts[0].card.request
        self._segments = list(_in_order(parts))
        self._report = _sum_reports(parts)
        self._stays = np.ones(sum(part.kept for part in parts), bool)
        self._held: list[HoldOutCandidate] = []

    def write(self, tokenizer: Tokenizer, folder: Path, report_progress: Callable[[int], None] | None) -> CorpusCard:
        """Drop duplicates, hold out dev pairs, write both the corpus and the dev pairs, and return the corpus's card.

        Raises:
            TransduceError: no pair is left.
        """
        if self._request.filters.drop_duplicates:
            self._drop_duplicates()
        if self._request.hold_out is not None:
            self._hold_out()
        self._report.kept = int(self._stays.sum())
        if not self._report.kept:
            raise TransduceError(_nothing_left(self._report, self._request.files, self._request.filters))
        self._write_held_out(folder)
        columns = self._final_columns()
        held_digests = self._held_target_digests(tokenizer)
        known = np.zeros(len(held_digests), bool)
        with PairsWriter(folder, tokenizer, columns) as writer:
            for segment in self._segments:
                stays = self._stays[segment.pairs]
                source, target = (each.select(stays) for each in segment.part.read(segment.start, segment.stop))
                writer.append(
                    TokenizedPairs(source, target, {name: each[segment.pairs][stays] for name, each in columns.items()})
                )
                if self._held and len(target.lengths):
                    known |= np.isin(held_digests, target.digests())
                if report_progress is not None:
                    report_progress(segment.first + len(stays))
        self._report.known_targets = int(known.sum())
        return CorpusCard(
            format_version=CORPUS_FORMAT_VERSION,
            pairs=self._report.kept,
            tokenizer_fingerprint=tokenizer.fingerprint,
            filters=self._report,
            directions=list(self._request.files.directions),
            tags=list(self._request.files.tags),
            file_pairs=self._pairs_of_files(),
            held_out_pairs=[len(self._held_out_of(file)) for file in range(self._request.files.grouped_files)],
            **writer.cards(),
        )

    def _final_columns(self) -> dict[Column, NDArray[Any]]:
        """Return a dict from name to array, with a number for each kept pair: the columns of the corpus.

        "weights", if the files have weights: the weight of each pair in the loss. "documents", if the files have
        documents: 1 if a pair continues the document of the previous pair that stays in the corpus, else 0.
        """
        columns: dict[Column, NDArray[Any]] = {}
        if self._request.files.has_weights:
            columns["weights"] = self._column("weights")
        if self._request.files.has_documents:
            # Blank lines of earlier blocks separate documents, too.
            boundaries = np.array([segment.block.boundaries for segment in self._segments], np.uint64)
            documents = (self._column("documents") + self._repeat(np.cumsum(boundaries) - boundaries))[self._stays]
            files = self._repeat([segment.block.file for segment in self._segments])[self._stays]
            continues = np.zeros(len(self._stays), np.uint64)
            remaining = np.flatnonzero(self._stays)[1:]
            continues[remaining] = (documents[1:] == documents[:-1]) & (files[1:] == files[:-1])
            columns["documents"] = continues
        return columns

    def _held_out_of(self, file: int) -> list[HoldOutCandidate]:
        """Return a list of the held-out pairs that come from the file with this index in the corpus."""
        return [held for held in self._held if self._segments[held.block].block.file == file]

    def _pairs_of_files(self) -> list[int]:
        """Return a list with the number of pairs of each source file that remain in the corpus."""
        counts = [0 for _ in self._request.files.source]
        for segment in self._segments:
            counts[segment.block.file] += int(self._stays[segment.pairs].sum())
        return counts

    def _drop_duplicates(self) -> None:
        digests = self._column("digests")
        repeats = np.zeros(len(digests), bool)
        for remainder in range(_DIGEST_CLASSES):
            members = np.flatnonzero(digests & np.uint64(_DIGEST_CLASSES - 1) == remainder)
            _, firsts = np.unique(digests[members], return_index=True)
            repeats[np.delete(members, firsts)] = True
        self._drop(DUPLICATE, repeats)

    def _hold_out(self) -> None:
        """Hold out the dev pairs, and drop other pairs whose source is that of a dev pair.

        A pair with a back-translated source is never held out. It is dropped if its target is that of a dev pair.
        """
        assert self._request.hold_out is not None
        keys = self._column("keys")
        failed = sum(self._report.dropped[reason] for reason in (TOO_LONG, RATIO))
        candidates = join_candidates(part.card.candidates for part in self._parts)
        back_translated = self._are_back_translated()
        remaining = keys[self._stays & ~back_translated]
        held = choose_held_out(candidates, self._request.hold_out, remaining, len(remaining) + failed)
        taken = self._stays & is_held_out(keys, held)
        is_known = np.isin(keys[back_translated], source_keys([candidate.target for candidate in held]))
        taken[back_translated] = self._stays[back_translated] & is_known
        self._held = [candidate for candidate in held if candidate.kept]
        self._report.held_out = len(self._held)
        firsts = [self._number(candidate.block, candidate.row) for candidate in self._held]
        self._stays[firsts] = False
        taken[firsts] = False
        self._drop(HELD_OUT, taken)

    def _held_target_digests(self, tokenizer: Tokenizer) -> NDArray[np.uint64]:
        """Return an array with a hash of the token ids of each held-out target, to find equal targets in the corpus."""
        vocabulary = tokenizer.target
        return EncodedSentences.of(
            [vocabulary.with_special_tokens(vocabulary.encode(held.target)) for held in self._held]
        ).digests()

    def _are_back_translated(self) -> Chosen:
        """Return a boolean mask over the kept pairs, (pairs,), True where the source is a back-translation."""
        files = set(self._request.files.back_translated)
        return self._repeat(np.array([segment.block.path in files for segment in self._segments], bool))

    def _repeat(self, values: ArrayLike) -> NDArray[Any]:
        """Return an array, (pairs,), with the value of each kept pair's block; `values` has one value per block."""
        return np.repeat(values, [segment.stop - segment.start for segment in self._segments])

    def _drop(self, reason: str, dropped: Chosen) -> None:
        self._stays &= ~dropped
        self._report.dropped[reason] = int(dropped.sum())
        if dropped.any():
            self._report.examples[reason] = self._location(int(dropped.argmax()))

    @cached_property
    def _rows(self) -> NDArray[np.unsignedinteger]:
        """The row index of each kept pair within its block, an array (pairs,)."""
        return self._column("rows")

    def _column(self, name: Column) -> NDArray[Any]:
        """Return a column: an array with a number for each kept pair, such as its hash, in the corpus's order."""
        columns = {id(part): part.column(name) for part in self._parts}
        return np.concatenate([columns[id(it.part)][it.start : it.stop] for it in self._segments])

    def _number(self, block: int, row: int) -> int:
        """Return the index of a pair, given its block and its row there, among the kept pairs of all parts."""
        segment = self._segments[block]
        return segment.first + int(np.searchsorted(self._rows[segment.pairs], row))

    def _location(self, number: int) -> str:
        """Return the file and line ("train.zh:17") of the pair with this index, for messages."""
        firsts = [segment.first for segment in self._segments]
        segment = self._segments[int(np.searchsorted(firsts, number, side="right")) - 1]
        return location_of(segment.block.path, segment.block.first_line + int(self._rows[number]))

    def _write_held_out(self, folder: Path) -> None:
        """Write the held-out pairs of each language pair that has any as two files of lines.

        If a text has a line feed, JSON lines in one file hold both sides instead.
        """
        has_line_feeds = any("\n" in each.source + each.target for each in self._held)
        files: list[int | None] = [*range(self._request.files.grouped_files)] or [None]
        for file in files:
            held = self._held if file is None else self._held_out_of(file)
            if held and has_line_feeds:
                lines = [msgspec.json.encode({"source": each.source, "target": each.target}) + b"\n" for each in held]
                write_file(folder / held_out_pairs_name(file), b"".join(lines))
            elif held:
                sides = ([each.source for each in held], [each.target for each in held])
                for name, texts in zip(held_out_names(file), sides, strict=True):
                    write_file(folder / name, "".join(f"{text}\n" for text in texts).encode("utf-8"))


def _in_order(parts: Sequence[CorpusPart]) -> Iterator[_KeptBlock]:
    """Yield a `_KeptBlock` (the kept pairs) for each block of all parts, in the order of the blocks in the corpus."""
    segments = [(block, part, start, stop) for part in parts for block, start, stop in part.segments()]
    first = 0
    for block, part, start, stop in sorted(segments, key=lambda it: it[0].number):
        yield _KeptBlock(block, part, start, stop, first)
        first += stop - start


def _sum_reports(parts: Sequence[CorpusPart]) -> FilterReport:
    """Return the sum of all parts' reports, with the file and line of the first pair dropped for each reason."""
    report = FilterReport()
    counts: Counter[str] = Counter()
    first: dict[str, tuple[tuple[int, int], bool]] = {}
    blocks = {block.number: block for part in parts for block in part.card.taken}
    for card in (part.card for part in parts):
        report.read += card.read
        report.exchanged += card.exchanged
        report.identical += card.identical
        report.carriage_returns += card.carriage_returns
        report.byte_order_marks += card.byte_order_marks
        counts.update(card.dropped)
        for reason, location in card.first_dropped.items():
            candidate = location, reason in card.of_targets
            first[reason] = min(candidate, first.get(reason, candidate))
    report.dropped.update(counts)
    for reason in filter(first.__contains__, (*report.dropped, EXCHANGED)):
        (number, row), is_of_target = first[reason]
        block = blocks[number]
        path = _target_of(block.path, parts[0].card.request.files) if is_of_target else block.path
        report.examples[reason] = location_of(path, block.first_line + row)
    return report


def _target_of(source: str, files: CorpusFiles) -> str:
    """Return the target file that corresponds to a source file, or the file itself if it holds both sides."""
    return dict(zip(files.source, files.target, strict=False)).get(source, source)


def _nothing_left(report: FilterReport, files: CorpusFiles, filters: FilterSettings) -> str:
    path = origin_of(files.source[0], 1)[0].name
    counts = ", ".join(
        f"{count} for {reason} (first {report.examples.get(reason, path)})"
        for reason, count in report.dropped.items()
        if count
    )
    limits = {
        TOO_LONG: f".max_tokens`, which is {filters.max_tokens:,}",
        RATIO: f".max_length_ratio`, which is {filters.max_length_ratio:g}",
    }
    limit = limits.get(max(report.dropped, key=lambda reason: report.dropped[reason]), "`")
    return (
        f"No pair of {path} is left: of {report.read} read, the filters dropped {counts or 'none'} and "
        f"{report.held_out} are held out; check the files or change `data.filters{limit}."
    )
