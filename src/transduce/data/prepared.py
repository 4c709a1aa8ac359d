"""The corpus on disk, cut into pieces once: written in one pass, read in runs."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.data.card import CARD_NAME, HELD_OUT_NAMES, CorpusCard, read_card, write_card
from transduce.data.holdout import HoldOutSettings
from transduce.data.idfiles import IdRun, SideCard, SideReader
from transduce.data.merging import merge_parts
from transduce.data.order import Run
from transduce.data.parts import Part, PartRequest
from transduce.data.processes import write_parts
from transduce.data.replacing import new_folder
from transduce.errors import TransduceError
from transduce.text import CorpusFiles, FilterReport, FilterSettings, Tokenizer


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
        card = read_card(folder)
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
        source, target = (str(self.folder / name) for name in HELD_OUT_NAMES)
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

    def read_runs(self, runs: Sequence[Run]) -> tuple[IdRun, IdRun]:
        """Ids of the pairs of several runs (start, stop), one after another: sources and targets."""
        return self._source.read_runs(runs), self._target.read_runs(runs)

    def read_run_lengths(self, runs: Sequence[Run]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Lengths of the pairs of several runs, one after another: sources and targets."""
        return self._source.read_run_lengths(runs), self._target.read_run_lengths(runs)

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
    workers: int = 1,
    report_progress: Callable[[int], None] | None = None,
) -> PreparedCorpus:
    """Filter the pairs, cut them into pieces and write the folder, in one pass and little memory.

    With ``hold_out``, some pairs are kept as text for validation instead. The work is dealt out to ``workers``
    processes; their number changes nothing but the time. ``report_progress`` is told now and then how many pairs were
    read. A folder that was prepared before is replaced when all is done; any other folder that is not empty is refused.
    Raises TransduceError when no pair is left, and whatever reading raises.
    """
    request = PartRequest(files=files, filters=filters, hold_out=hold_out)
    with new_folder(folder, CARD_NAME, "a prepared corpus") as partial:
        parts = write_parts(request, tokenizer, partial / "parts", workers=workers, report_progress=report_progress)
        write_corpus([Part(part) for part in parts], tokenizer, partial)
        shutil.rmtree(partial / "parts")
    return PreparedCorpus.open(folder)


def write_corpus(
    parts: Sequence[Part], tokenizer: Tokenizer, folder: Path, report_progress: Callable[[int], None] | None = None
) -> CorpusCard:
    """Write a corpus out of its parts into a folder that is there; ``merge_parts`` says what is reported and raised."""
    card = merge_parts(parts, tokenizer, folder, report_progress)
    write_card(card, folder)
    return card


def _percentiles(card: SideCard) -> tuple[int, int, int, int]:
    reached = np.cumsum(card.sentences_by_length)
    at_50, at_90, at_99 = (int(np.searchsorted(reached, share * reached[-1])) for share in (0.5, 0.9, 0.99))
    return at_50, at_90, at_99, len(card.sentences_by_length) - 1
