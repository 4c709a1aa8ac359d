"""The corpus on disk, cut into pieces once: written in one pass, read in runs."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.holdout import HoldOut, HoldOutSettings
from transduce.data.idfiles import IdRun, SideCard, SideReader, SideWriter
from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.text import CorpusFiles, FilterReport, FilterSettings, LineNotes, Pair, Tokenizer, read_pairs
from transduce.text.filters import HELD_OUT, PairFilter

_FORMAT_VERSION = 1
_CARD_NAME = "corpus.json"
_HELD_OUT_NAMES = ("held_out.source.txt", "held_out.target.txt")
_CHUNK_PAIRS = 10_000


class CorpusStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a prepared corpus; lengths are in ids, the end of sentence counted."""

    pairs: int
    source_tokens: int
    target_tokens: int
    mean_source_length: float
    mean_target_length: float
    # The lengths that 50, 90 and 99 of 100 sentences do not exceed, and the longest of all.
    source_percentiles: tuple[int, int, int, int]
    target_percentiles: tuple[int, int, int, int]


class CorpusCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What corpus.json says of the files beside it."""

    format_version: int
    pairs: int
    tokenizer_fingerprint: str
    source: SideCard
    target: SideCard
    filters: FilterReport


class PreparedCorpus:
    """A prepared folder. Pairs are numbered from 0; reading keeps nothing in memory and no file open."""

    def __init__(self, folder: Path, card: CorpusCard) -> None:
        """Use ``PreparedCorpus.open``."""
        self.folder = folder
        self.card = card
        self.pairs = card.pairs
        self.source_tokens = card.source.tokens
        self.target_tokens = card.target.tokens
        self.source_pad_id = card.source.pad_id
        self.target_pad_id = card.target.pad_id
        self._source = SideReader(folder, "source", card.source, card.pairs)
        self._target = SideReader(folder, "target", card.target, card.pairs)

    @classmethod
    def open(cls, folder: str | Path, tokenizer: Tokenizer | None = None) -> "PreparedCorpus":
        """Open what ``prepare`` wrote.

        Raises TransduceError when the folder is something else, of another format, damaged, or, where a
        tokenizer is given, prepared with another one.
        """
        folder = Path(folder)
        card = _read_card(folder / _CARD_NAME)
        if tokenizer is not None and tokenizer.fingerprint != card.tokenizer_fingerprint:
            raise TransduceError(
                f"{folder} was prepared with another tokenizer than the one given: prepare it again, or use "
                "the tokenizer it was prepared with."
            )
        return cls(folder, card)

    @property
    def filters(self) -> FilterReport:
        """What was read, dropped and kept when the corpus was prepared."""
        return self.card.filters

    @property
    def held_out(self) -> CorpusFiles | None:
        """The pairs held out of training, as text files; None when there are none."""
        source, target = (str(self.folder / name) for name in _HELD_OUT_NAMES)
        return CorpusFiles(source=(source,), target=(target,)) if self.filters.held_out else None

    @property
    def statistics(self) -> CorpusStatistics:
        """Sizes and lengths."""
        return CorpusStatistics(
            pairs=self.pairs,
            source_tokens=self.source_tokens,
            target_tokens=self.target_tokens,
            mean_source_length=self.source_tokens / self.pairs,
            mean_target_length=self.target_tokens / self.pairs,
            source_percentiles=_percentiles(self.card.source),
            target_percentiles=_percentiles(self.card.target),
        )

    def read(self, start: int, stop: int) -> tuple[IdRun, IdRun]:
        """Ids of the pairs from start to stop: sources and targets."""
        return self._source.read(start, stop), self._target.read(start, stop)

    def read_lengths(self, start: int, stop: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Lengths of the pairs from start to stop: sources and targets."""
        return self._source.read_lengths(start, stop), self._target.read_lengths(start, stop)

    def source_lengths(self) -> NDArray[np.int32]:
        """Lengths of all sources, the end of sentence counted: 4 bytes a pair."""
        return self._source.read_lengths(0, self.pairs)

    def target_lengths(self) -> NDArray[np.int32]:
        """Lengths of all targets."""
        return self._target.read_lengths(0, self.pairs)

    def verify(self) -> None:
        """Read the files and raise TransduceError when their content is not what was written."""
        self._source.verify()
        self._target.verify()


def prepare(
    files: CorpusFiles,
    tokenizer: Tokenizer,
    filters: FilterSettings,
    folder: str | Path,
    *,
    hold_out: HoldOutSettings | None = None,
    threads: int = 1,
    report_progress: Callable[[int], None] | None = None,
) -> PreparedCorpus:
    """Filter the pairs, cut them into pieces and write the folder, in one pass and constant memory.

    With ``hold_out``, some pairs are kept as text for validation instead. ``report_progress`` is told now and
    then how many pairs were read. A folder that was prepared before is replaced when all is done; any other
    folder that is not empty is refused. Raises TransduceError when no pair is left, and whatever reading
    raises.
    """
    folder = Path(folder).absolute()
    _check_replaceable(folder)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        run = _Preparation(tokenizer, filters, partial, threads, report_progress)
        card = run.write(files, hold_out)
        write_file(partial / _CARD_NAME, msgspec.json.format(msgspec.json.encode(card), indent=1) + b"\n")
        _replace_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return PreparedCorpus.open(folder)


class _Preparation:
    """One pass over the files: what is read, dropped, held back and written."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        filters: FilterSettings,
        folder: Path,
        threads: int,
        report_progress: Callable[[int], None] | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._filter = PairFilter(filters)
        self._folder = folder
        self._threads = threads
        self._report_progress = report_progress
        self._report = FilterReport()
        self._held: list[Pair] = []

    def write(self, files: CorpusFiles, hold_out: HoldOutSettings | None) -> CorpusCard:
        sides = {"source": self._tokenizer.source, "target": self._tokenizer.target}
        source_writer, target_writer = (
            SideWriter(self._folder, side, vocabulary_size=it.size, pad_id=it.pad_id, eos_id=it.eos_id)
            for side, it in sides.items()
        )
        notes = LineNotes()
        read = self._read(read_pairs(files, notes))
        with source_writer, target_writer:
            training = read if hold_out is None else self._hold_out(read, hold_out)
            for sources, targets, _ in self._encode(training):
                source_writer.append(sources)
                target_writer.append(targets)
                self._report.kept += len(sources)
        self._report.carriage_returns = notes.carriage_returns
        self._report.byte_order_marks = notes.byte_order_marks
        if not self._report.kept:
            raise TransduceError(_nothing_left(self._report, files.source[0]))
        self._write_held_out()
        return CorpusCard(
            format_version=_FORMAT_VERSION,
            pairs=self._report.kept,
            tokenizer_fingerprint=self._tokenizer.fingerprint,
            source=source_writer.card(),
            target=target_writer.card(),
            filters=self._report,
        )

    def _read(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The pairs whose text passes."""
        for pair in pairs:
            self._report.read += 1
            reason = self._filter.text_reason(pair.source, pair.target)
            if reason is None:
                yield pair
            else:
                self._report.drop(reason, pair)

    def _hold_out(self, pairs: Iterable[Pair], settings: HoldOutSettings) -> Iterator[Pair]:
        """The pairs to train on; the others are kept aside."""
        hold_out = HoldOut(settings)
        for pair in pairs:
            yield from hold_out.offer(pair)
        training, self._held, further = hold_out.finish()
        yield from training
        for pair in further:
            self._report.drop(HELD_OUT, pair)

    def _encode(self, pairs: Iterable[Pair]) -> Iterator[tuple[list[list[int]], list[list[int]], list[Pair]]]:
        """Ids of both sides and the pairs themselves, where the lengths pass; some thousands at a time."""
        pairs = iter(pairs)
        while chunk := list(islice(pairs, _CHUNK_PAIRS)):
            sources = self._tokenizer.source.encode_batch([pair.source for pair in chunk], self._threads)
            targets = self._tokenizer.target.encode_batch([pair.target for pair in chunk], self._threads)
            kept = [
                row
                for row in zip(sources, targets, chunk, strict=True)
                if self._passes(row[2], len(row[0]), len(row[1]))
            ]
            if self._report_progress is not None:
                self._report_progress(self._report.read)
            yield [row[0] for row in kept], [row[1] for row in kept], [row[2] for row in kept]

    def _passes(self, pair: Pair, source_pieces: int, target_pieces: int) -> bool:
        reason = self._filter.length_reason(source_pieces, target_pieces)
        if reason is not None:
            self._report.drop(reason, pair)
        return reason is None

    def _write_held_out(self) -> None:
        held = [pair for _, _, pairs in self._encode(self._held) for pair in pairs]
        self._report.held_out = len(held)
        if held:
            for side, name in enumerate(_HELD_OUT_NAMES):
                text = "".join(f"{pair[side]}\n" for pair in held)
                write_file(self._folder / name, text.encode("utf-8"))


def _check_replaceable(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise TransduceError(f"{folder} is a file, but a prepared corpus is a folder: name another place.")
    if folder.is_dir() and not (folder / _CARD_NAME).exists() and any(folder.iterdir()):
        raise TransduceError(f"{folder} holds something else than a prepared corpus: name an empty or a new folder.")


def _replace_folder(partial: Path, folder: Path) -> None:
    """Rename a finished folder into place; what stood there is moved away first and deleted last."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(partial, folder)
    shutil.rmtree(old, ignore_errors=True)


def _nothing_left(report: FilterReport, path: str) -> str:
    counts = ", ".join(f"{count} for {reason}" for reason, count in report.dropped.items() if count) or "none"
    return (
        f"No pair of {path} is left to train on: of {report.read} read, the filters dropped {counts} and "
        f"{report.held_out} are held out; check the files or change `filters`."
    )


def _read_card(path: Path) -> CorpusCard:
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=dict[str, object]).get("format_version")
        if version != _FORMAT_VERSION:
            raise TransduceError(
                f"{path} has format {version}, but this version reads format {_FORMAT_VERSION}: prepare it again."
            )
        return msgspec.json.decode(content, type=CorpusCard)
    except FileNotFoundError:
        raise TransduceError(f"{path} does not exist: {path.parent} holds no prepared corpus.") from None
    except msgspec.DecodeError as error:
        raise TransduceError(f"{path} is not a corpus's description ({error}): prepare it again.") from None


def _percentiles(card: SideCard) -> tuple[int, int, int, int]:
    reached = np.cumsum(card.sentences_by_length)
    at_50, at_90, at_99 = (int(np.searchsorted(reached, share * reached[-1])) for share in (0.5, 0.9, 0.99))
    return at_50, at_90, at_99, len(card.sentences_by_length) - 1
