"""`transduce prepare`: a corpus ahead of training, in one go or in shards on several machines."""

import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from transduce.data.merging import check_parts
from transduce.data.parts import Part, PartRequest
from transduce.data.prepared import PreparedCorpus, prepare, write_corpus
from transduce.data.processes import write_parts
from transduce.data.replacing import new_folder
from transduce.errors import TransduceError
from transduce.interop.stored_tokenizer import load_tokenizer
from transduce.tasks.account import Account
from transduce.tasks.corpus import TaskText, choose_workers, learn_tokenizer, measure
from transduce.tasks.kinds import KINDS, kind_of
from transduce.tasks.preparation_bar import PreparationBar
from transduce.tasks.prepared_folder import (
    CORPUS_FOLDER,
    PREPARED_NAME,
    PreparedCard,
    check_marks,
    check_vocabulary,
    write_prepared_card,
)
from transduce.tasks.resolve import resolve_tokenizer
from transduce.tasks.settings import Settings
from transduce.tasks.settings_reading import make_settings
from transduce.tasks.text_kind import TextKind
from transduce.text.corpus import CorpusFiles
from transduce.text.counted import counted
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import CorpusSize
from transduce.training.events import ProgressDisplay

PARTS_FOLDER = "parts"
PREPARED_KINDS = [name for name, kind in KINDS.items() if isinstance(kind, TextKind) and kind.may_be_prepared]
"""The tasks whose corpora can be made ahead."""
_TOKENIZER_CARD = "tokenizer_settings.json"
_A_PREPARED_CORPUS = "a prepared corpus"


class PrepareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for."""

    settings: Mapping[str, Any]
    """Nested, by the names of a settings file; of its tables `task`, `data` and `tokenizer` count."""
    out: Path
    tokenizer: Path | None = None
    """A folder with a tokenizer; where there is none, one is learnt."""
    shard: tuple[int, int] = (1, 1)
    """Number and count, from 1."""
    workers: int | None = None
    """Processes; by cores and pairs where nothing is said."""
    hold_out: bool = True
    """Whether a part is held out to validate on, where the settings name no dev set."""


class PreparationReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    folder: str
    vocabulary_size: int
    pairs: int
    held_out: int
    source_tokens: int
    target_tokens: int
    mean_source_length: float
    """In pieces, the end of sentence counted."""
    mean_target_length: float
    elapsed_seconds: float
    pairs_per_second: float
    """Pairs that were read in a second of it, the learning of a vocabulary counted."""

    def __str__(self) -> str:
        return (
            f"{self.folder}: {counted(self.pairs, 'pair')} ({self.held_out:,} more held out), {self.source_tokens:,} "
            f"source and {self.target_tokens:,} target tokens of a vocabulary of {self.vocabulary_size:,}, in "
            f"{self.elapsed_seconds:,.1f} s ({self.pairs_per_second:,.0f} pairs/s)."
        )


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of one shard: what pairs decide between them is still open."""

    folder: str
    shard: str
    pairs: int
    elapsed_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.folder}: shard {self.shard}, {counted(self.pairs, 'pair')} in {self.elapsed_seconds:,.1f} s. "
            "Merge all shards with `transduce prepare --merge`."
        )


class TokenizerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came out of learning a vocabulary alone."""

    folder: str
    vocabulary_size: int
    elapsed_seconds: float

    def __str__(self) -> str:
        return f"{self.folder}: a vocabulary of {self.vocabulary_size:,} pieces, in {self.elapsed_seconds:,.1f} s."


def prepare_tokenizer(request: PrepareRequest) -> TokenizerReport:
    """Learn the vocabulary that training would learn, and nothing else.

    Raises:
        TransduceError: settings or files are not what they should be.
    """
    started_at = time.monotonic()
    wanted = _understand(request)
    with new_folder(request.out, _TOKENIZER_CARD, "a tokenizer") as partial, _written_out(wanted, partial) as text:
        tokenizer = _learn(text, measure(text.files), wanted.settings, partial, ProgressDisplay())
    return TokenizerReport(
        folder=str(request.out),
        vocabulary_size=tokenizer.source.size,
        elapsed_seconds=time.monotonic() - started_at,
    )


def prepare_corpus_folder(request: PrepareRequest) -> PreparationReport:
    """Prepare a whole corpus; a folder that was prepared before is replaced when all is done.

    Raises:
        TransduceError: settings or files are not what they should be, or no pair is left.
    """
    started_at, display = time.monotonic(), ProgressDisplay()
    wanted = _understand(request)
    with new_folder(request.out, PREPARED_NAME, _A_PREPARED_CORPUS) as partial, _written_out(wanted, partial) as text:
        size = measure(text.files)
        if request.tokenizer is None:
            tokenizer = _learn(text, size, wanted.settings, partial, display)
        else:
            tokenizer = _given_tokenizer(request.tokenizer, wanted.settings, text.marks)
            tokenizer.save(partial)
        with PreparationBar(display.console, size.pairs) as bar:
            corpus = prepare(
                text.files,
                tokenizer,
                text.filters,
                partial / CORPUS_FOLDER,
                hold_out=text.hold_out,
                workers=request.workers or choose_workers(size.pairs),
                report_progress=bar,
            )
        write_prepared_card(partial, PreparedCard(files=wanted.files, filters=text.filters, task=wanted.kind.name))
        return _report(request.out, tokenizer, corpus, started_at, display, text.files.thing)


def prepare_shard(request: PrepareRequest) -> ShardReport:
    """Prepare one shard of several, by a tokenizer that all of them share.

    Raises:
        TransduceError: there is no tokenizer, or what `prepare_corpus_folder` raises.
    """
    started_at, display = time.monotonic(), ProgressDisplay()
    wanted = _understand(request)
    if request.tokenizer is None:
        raise TransduceError(
            "All shards of a corpus need one tokenizer: make it with `transduce prepare --tokenizer-only`, and name "
            "its folder with --tokenizer."
        )
    with (
        new_folder(request.out, PARTS_FOLDER, "a shard of a corpus") as partial,
        _written_out(wanted, partial) as text,
    ):
        tokenizer = _given_tokenizer(request.tokenizer, wanted.settings, text.marks)
        part = PartRequest(
            files=wanted.files,
            written_out=None if text.files == wanted.files else text.files,
            task=wanted.kind.name,
            filters=text.filters,
            hold_out=text.hold_out,
            shard=request.shard,
        )
        tokenizer.save(partial)
        with PreparationBar(display.console, None) as bar:
            folders = write_parts(
                part, tokenizer, partial / PARTS_FOLDER, workers=request.workers or 1, report_progress=bar
            )
        pairs = sum(Part(folder).kept for folder in folders)
    number, count = request.shard
    return ShardReport(
        folder=str(request.out),
        shard=f"{number}/{count}",
        pairs=pairs,
        elapsed_seconds=time.monotonic() - started_at,
    )


def merge_shards(shards: Sequence[Path], out: Path) -> PreparationReport:
    """Make one corpus of all its shards: the files that preparing it in one go would have written.

    Raises:
        TransduceError: a folder is no shard, or damaged; shards are missing, overlap, or were prepared differently.
    """
    started_at, display = time.monotonic(), ProgressDisplay()
    for shard in shards:
        if shards.count(shard) > 1:
            raise TransduceError(f"Each shard is merged once, but {shard} is named {shards.count(shard)} times.")
    parts = [Part(folder) for shard in shards for folder in _parts_of(shard)]
    check_parts(parts)
    for part in parts:
        part.verify()
    request, tokenizer = parts[0].card.request, load_tokenizer(shards[0])
    if tokenizer.fingerprint != parts[0].card.tokenizer_fingerprint:
        raise TransduceError(f"{shards[0]} does not hold the tokenizer that it was prepared with: prepare it again.")
    with new_folder(out, PREPARED_NAME, _A_PREPARED_CORPUS) as partial:
        tokenizer.save(partial)
        (partial / CORPUS_FOLDER).mkdir()
        with PreparationBar(display.console, sum(part.kept for part in parts)) as bar:
            write_corpus(parts, tokenizer, partial / CORPUS_FOLDER, bar)
        card = PreparedCard(files=request.files, filters=request.filters, task=request.task)
        write_prepared_card(partial, card)
        corpus = PreparedCorpus.open(partial / CORPUS_FOLDER, tokenizer)
        return _report(out, tokenizer, corpus, started_at, display, request.files.thing)


def parse_shard(text: str) -> tuple[int, int]:
    """Number and count of a shard that is written 2/4.

    Raises:
        TransduceError: it is written otherwise, or there is no such shard.
    """
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise TransduceError(f"`--shard` takes a number and a count, from 1/4 to 4/4 for instance, but is `{text}`.")
    return int(found[1]), int(found[2])


class _Wanted(NamedTuple):
    """A request, understood."""

    settings: Settings
    kind: TextKind
    files: CorpusFiles
    """As they were named."""
    holds_out: bool


def _understand(request: PrepareRequest) -> _Wanted:
    """What is to be prepared; beside a dev set, which need not be there yet, nothing is held out."""
    if request.workers is not None and request.workers < 1:
        raise TransduceError(f"`--workers` must be at least 1, but is {request.workers}.")
    settings = make_settings(request.settings)
    kind = kind_of(settings.task.kind)
    if not isinstance(kind, TextKind) or not kind.may_be_prepared:
        raise TransduceError(
            f"`task.kind` is {settings.task.kind}, whose corpus is made when training begins: prepare one for "
            f"{', '.join(PREPARED_KINDS)}, or train without."
        )
    data = msgspec.structs.replace(settings.data, dev_source=(), dev_target=())
    settings, has_dev = msgspec.structs.replace(settings, data=data), bool(settings.data.dev_source)
    kind.check(settings)
    return _Wanted(settings, kind, kind.text(data).files, request.hold_out and not has_dev)


@contextmanager
def _written_out(wanted: _Wanted, partial: Path) -> Iterator[TaskText]:
    """The text line by line, for as long as it is read."""
    with tempfile.TemporaryDirectory(dir=partial, prefix=".text-") as folder:
        text = wanted.kind.read_text(wanted.settings, Path(folder), anew=True)
        yield text if wanted.holds_out else msgspec.structs.replace(text, hold_out=None)


def _learn(text: TaskText, size: CorpusSize, settings: Settings, folder: Path, display: ProgressDisplay) -> Tokenizer:
    account = Account()
    tokenizer, _ = learn_tokenizer(
        text.files,
        size,
        settings,
        lambda size: resolve_tokenizer(settings, size, account),
        folder,
        display,
        marks=text.marks,
    )
    for line in account.lines:
        display.say(f"  {line.name}  {line.value}  {line.reason}")
    return tokenizer


def _given_tokenizer(folder: Path, settings: Settings, marks: Sequence[str]) -> Tokenizer:
    """A tokenizer that was named, which must be what the settings say of it, and have the task's marks."""
    tokenizer = load_tokenizer(folder)
    check_marks(folder, tokenizer, marks)
    check_vocabulary(settings.tokenizer, tokenizer, folder)
    said = settings.tokenizer.vocabulary_size
    if said is not None and said != tokenizer.source.size:
        raise TransduceError(
            f"`tokenizer.vocabulary_size` is {said:,}, but the tokenizer in {folder} has {tokenizer.source.size:,} "
            "pieces: leave one of them out."
        )
    return tokenizer


def _parts_of(shard: Path) -> list[Path]:
    if not (shard / PARTS_FOLDER).is_dir():
        raise TransduceError(f"{shard} holds no shard of a corpus: name what `transduce prepare --shard` wrote.")
    return sorted((shard / PARTS_FOLDER).iterdir(), key=lambda folder: (len(folder.name), folder.name))


def _report(
    out: Path, tokenizer: Tokenizer, corpus: PreparedCorpus, started_at: float, display: ProgressDisplay, thing: str
) -> PreparationReport:
    for line in corpus.filters.lines(thing):
        display.say(line)
    statistics, elapsed_seconds = corpus.statistics, time.monotonic() - started_at
    return PreparationReport(
        folder=str(out),
        vocabulary_size=tokenizer.source.size,
        pairs=corpus.pairs,
        held_out=corpus.filters.held_out,
        source_tokens=corpus.source_tokens,
        target_tokens=corpus.target_tokens,
        mean_source_length=statistics.mean_source_length,
        mean_target_length=statistics.mean_target_length,
        elapsed_seconds=elapsed_seconds,
        pairs_per_second=corpus.filters.read / elapsed_seconds,
    )
