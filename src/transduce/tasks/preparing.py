"""Prepare a corpus before training (`transduce prepare`), at once or in shards on several machines."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from transduce.argument_checks import Files, as_path, as_paths, as_shard
from transduce.atomic_io import atomic_folder
from transduce.data.merging import check_parts, write_corpus
from transduce.data.parts import CorpusPart, PartRequest
from transduce.data.prepared import PreparedCorpus
from transduce.data.prepared import prepare as write_prepared_corpus
from transduce.data.processes import write_parts
from transduce.errors import TransduceError, count_noun, explain_wrong_types
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.tasks.corpus import PreparationBar, TaskText, choose_workers, measure_corpus
from transduce.tasks.kinds import KINDS, kind_of
from transduce.tasks.kinds.kind import TextKind
from transduce.tasks.prepared_folder import (
    CORPUS_FOLDER,
    PREPARED_NAME,
    PreparedCard,
    check_kept_vocabulary,
    check_special_tokens,
    check_vocabulary,
    write_prepared_card,
)
from transduce.tasks.run.resolving import resolve_tokenizer
from transduce.tasks.settings.options import OPTIONS
from transduce.tasks.settings.reading import make_settings, put_arguments
from transduce.tasks.settings.structs import Settings
from transduce.tasks.vocabularies import learn_tokenizer
from transduce.text.corpus import CorpusFiles
from transduce.text.files import LineNotes
from transduce.text.tokenizer import TOKENIZER_CARD, Tokenizer
from transduce.training.choices import ChoiceLog, CorpusSize
from transduce.training.display import ProgressDisplay
from transduce.ui_language import localized

PARTS_FOLDER = "parts"
PREPARED_KINDS = [name for name, kind in KINDS.items() if isinstance(kind, TextKind) and kind.may_be_prepared]
"""The names of the tasks whose corpora can be prepared before training."""
_A_PREPARED_CORPUS = "a prepared corpus"


class PrepareRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `transduce prepare`."""

    settings: Mapping[str, Any]
    """Settings, nested as in a settings file, of which only the tables `task`, `data` and `tokenizer` are used."""
    out: Path
    """The folder to write the prepared corpus to."""
    tokenizer: Path | None = None
    """A folder with the tokenizer to use; None: learn one from the text."""
    tokenizer_only: bool = False
    """True if only the tokenizer is written, for shards to be prepared later."""
    shard: tuple[int, int] | None = None
    """The shard to prepare, as (number from 1, count of shards); None: the whole corpus."""
    workers: int | None = None
    """Number of worker processes; None: chosen by cores and pairs, and 1 for a shard."""
    hold_out: bool = True
    """True if a dev set is held out when the settings name none."""


class PreparationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a prepared corpus: its pairs and tokens, and the time of its preparation."""

    folder: str
    vocabulary_size: int
    pairs: int
    """Number of training pairs."""
    held_out: int
    """Number of pairs held out as a dev set."""
    source_tokens: int
    """Number of source tokens in the training pairs."""
    target_tokens: int
    """Number of target tokens in the training pairs."""
    mean_source_length: float
    """Mean length of a source sentence in tokens, including the end symbol."""
    mean_target_length: float
    """Mean length of a target sentence in tokens, including the end symbol."""
    elapsed_seconds: float
    """Time of the preparation in seconds."""
    pairs_per_second: float
    """Pairs read per second of the elapsed time, which includes learning the vocabulary."""

    def __str__(self) -> str:
        return (
            f"{self.folder}: {count_noun(self.pairs, 'pair')} ({self.held_out:,} more held out), "
            f"{self.source_tokens:,} source and {self.target_tokens:,} target tokens"
            f" of a vocabulary of {self.vocabulary_size:,}, in "
            f"{self.elapsed_seconds:,.1f} s ({self.pairs_per_second:,.0f} pairs/s)."
        )


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one prepared shard of a corpus.

    Duplicates that occur in different shards are removed only when the shards are merged.
    """

    folder: str
    shard: str
    """Number of the shard, from 1, and count of shards, as text such as "2/4"."""
    pairs: int
    """Number of pairs in the shard that passed the filters."""
    elapsed_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.folder}: shard {self.shard}, {count_noun(self.pairs, 'pair')} in {self.elapsed_seconds:,.1f} s. "
            "Merge all shards with `transduce prepare --merge`."
        )


class TokenizerReport(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a vocabulary learned without preparing the corpus."""

    folder: str
    vocabulary_size: int
    elapsed_seconds: float

    def __str__(self) -> str:
        return f"{self.folder}: a vocabulary of {self.vocabulary_size:,} tokens, in {self.elapsed_seconds:,.1f} s."


@explain_wrong_types
def prepare(  # noqa: PLR0913  (the command's own options)
    *,
    out: str | Path,
    source: Files,
    target: Files | None = None,
    dev_source: Files | None = None,
    dev_target: Files | None = None,
    back_translated: Files | None = None,
    languages: tuple[str, str] | None = None,
    task: str | None = None,
    settings: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    tokenizer_only: bool = False,
    shard: tuple[int, int] | None = None,
    workers: int | None = None,
    hold_out: bool = True,
) -> PreparationReport | ShardReport | TokenizerReport:
    """Tokenize a corpus, or a shard of it, before training; or learn only its tokenizer.

    `transduce.train(out=…, settings={"data.prepared": out})` trains on the result.

    Args:
        out: the folder to write; a prepared corpus in it is replaced.
        source: files of source sentences, of pairs (.tsv, .jsonl), or of text alone.
        target: files of the translations of `source`.
        dev_source: the dev set to train with. It is not read yet, but no pairs are held out. None: `hold_out` decides.
        dev_target: the target side of the dev set.
        back_translated: files of `source` that a machine wrote by translating their targets back.
        languages: source and target language; None: by the files' suffixes.
        task: the task that the corpus is for; None: "translation".
        settings: further settings of the tables `task`, `data` and `tokenizer`, by their dotted names.
        tokenizer: a folder with the tokenizer to use, such as a model folder; None: learn one. A shard needs it.
        tokenizer_only: write only the tokenizer, for shards to be prepared later.
        shard: prepare only part I of N, for (I, N) counted from 1; `transduce.merge_shards` merges all parts.
        workers: number of worker processes; None: chosen by cores and pairs, 1 for a shard.
        hold_out: hold out a part of the training pairs as the dev set if `dev_source` is None.

    Returns:
        A `PreparationReport`; with `shard`, a `ShardReport`; with `tokenizer_only`, a `TokenizerReport`.

    Raises:
        TransduceError: settings or files are invalid, arguments contradict each other, or no pair is left.
    """
    arguments = {name: value for name, value in locals().items() if name in OPTIONS}
    content: dict[str, Any] = {}
    put_arguments(content, arguments, settings)
    request = PrepareRequest(
        settings=content,
        out=as_path(out, "`out`"),
        tokenizer=None if tokenizer is None else as_path(tokenizer, "`tokenizer`"),
        tokenizer_only=tokenizer_only,
        shard=None if shard is None else as_shard(shard),
        workers=workers,
        hold_out=hold_out,
    )
    return prepare_as_requested(request)


def prepare_as_requested(request: PrepareRequest) -> PreparationReport | ShardReport | TokenizerReport:
    """Prepare a whole corpus, one of its shards, or only its tokenizer, and return statistics of what was written.

    Raises:
        TransduceError: settings or files are invalid, arguments contradict each other, or no pair is left.
    """
    if not request.tokenizer_only:
        return prepare_corpus_folder(request) if request.shard is None else prepare_shard(request, request.shard)
    for name in ("shard", "tokenizer", "workers"):
        if getattr(request, name) is not None:
            raise TransduceError(f"`tokenizer_only` cannot be combined with `{name}`: leave one of them out.")
    return prepare_tokenizer(request)


def prepare_tokenizer(request: PrepareRequest) -> TokenizerReport:
    """Learn the vocabulary that training would learn, and write only the tokenizer, to prepare shards with it.

    Raises:
        TransduceError: settings or files are invalid.
    """
    started_at = time.monotonic()
    task = _check_request(request)
    with atomic_folder(request.out, TOKENIZER_CARD, "a tokenizer") as partial, _text_files(task, partial) as text:
        tokenizer = _learn(text, measure_corpus(text.files), task.settings, partial, ProgressDisplay())
    return TokenizerReport(
        folder=str(request.out),
        vocabulary_size=tokenizer.source.size,
        elapsed_seconds=time.monotonic() - started_at,
    )


def prepare_corpus_folder(request: PrepareRequest) -> PreparationReport:
    """Prepare a whole corpus with its tokenizer, and return its statistics.

    An earlier prepared corpus in the folder is replaced only when the new one is complete.

    Raises:
        TransduceError: settings or files are invalid, or no pair is left.
    """
    started_at, display = time.monotonic(), ProgressDisplay()
    task = _check_request(request)
    with atomic_folder(request.out, PREPARED_NAME, _A_PREPARED_CORPUS) as partial, _text_files(task, partial) as text:
        notes = LineNotes()
        size = measure_corpus(text.files, notes)
        for line in notes.notices():
            display.say(line)
        if request.tokenizer is None:
            tokenizer = _learn(text, size, task.settings, partial, display)
        else:
            tokenizer = _load_named_tokenizer(request.tokenizer, task.settings, text.special_tokens)
            tokenizer.save(partial)
        with PreparationBar(display.console, size.pairs, text.example_noun) as bar:
            corpus = write_prepared_corpus(
                text.files,
                tokenizer,
                text.filters,
                partial / CORPUS_FOLDER,
                hold_out=text.hold_out,
                workers=request.workers or choose_workers(size.pairs),
                report_progress=bar,
            )
        write_prepared_card(partial, PreparedCard(files=task.files, filters=text.filters, task=task.kind.name))
        return _report(request.out, tokenizer, corpus, started_at, display, text.files.noun)


def prepare_shard(request: PrepareRequest, shard: tuple[int, int]) -> ShardReport:
    """Prepare shard I of N with the tokenizer that all shards of a corpus share, and return its statistics.

    `shard` is (I, N), counted from 1.

    Raises:
        TransduceError: no tokenizer is named, or settings or files are invalid.
    """
    started_at, display = time.monotonic(), ProgressDisplay()
    task = _check_request(request)
    if request.tokenizer is None:
        raise TransduceError(
            "All shards of a corpus need one tokenizer: make it with `transduce prepare --tokenizer-only`, and name "
            "its folder with --tokenizer."
        )
    with (
        atomic_folder(request.out, PARTS_FOLDER, "a shard of a corpus") as partial,
        _text_files(task, partial) as text,
    ):
        tokenizer = _load_named_tokenizer(request.tokenizer, task.settings, text.special_tokens)
        part = PartRequest(
            files=task.files,
            written_out=None if text.files == task.files else text.files,
            task=task.kind.name,
            filters=text.filters,
            hold_out=text.hold_out,
            shard=shard,
        )
        tokenizer.save(partial)
        with PreparationBar(display.console, None, task.files.noun) as bar:
            folders = write_parts(
                part, tokenizer, partial / PARTS_FOLDER, workers=request.workers or 1, report_progress=bar
            )
        pairs = sum(CorpusPart(folder).kept for folder in folders)
    number, count = shard
    return ShardReport(
        folder=str(request.out),
        shard=f"{number}/{count}",
        pairs=pairs,
        elapsed_seconds=time.monotonic() - started_at,
    )


@explain_wrong_types
def merge_shards(shards: Sequence[str | Path], out: str | Path) -> PreparationReport:
    """Merge all shards of a corpus into one folder, with the same files as preparing the whole corpus at once.

    Args:
        shards: the folders of all shards.
        out: the folder to write.

    Returns:
        The statistics of the corpus.

    Raises:
        TransduceError: a folder is not a shard or is damaged; or shards are missing, overlap, or were prepared
            differently.
    """
    started_at, display = time.monotonic(), ProgressDisplay()
    shards, out = as_paths(shards, "A shard's folder"), as_path(out, "`out`")
    if not shards:
        raise TransduceError("`shards` is empty: name the folders of all shards.")
    for shard in shards:
        if shards.count(shard) > 1:
            raise TransduceError(f"Each shard is merged once, but {shard} is named {shards.count(shard)} times.")
    parts = [CorpusPart(folder) for shard in shards for folder in _parts_of(shard)]
    check_parts(parts)
    for part in parts:
        part.verify()
    request, tokenizer = parts[0].card.request, load_tokenizer(shards[0])
    if tokenizer.fingerprint != parts[0].card.tokenizer_fingerprint:
        raise TransduceError(f"{shards[0]} does not hold the tokenizer that it was prepared with: prepare it again.")
    with atomic_folder(out, PREPARED_NAME, _A_PREPARED_CORPUS) as partial:
        tokenizer.save(partial)
        (partial / CORPUS_FOLDER).mkdir()
        with PreparationBar(display.console, sum(part.kept for part in parts), request.files.noun) as bar:
            write_corpus(parts, tokenizer, partial / CORPUS_FOLDER, bar)
        card = PreparedCard(files=request.files, filters=request.filters, task=request.task)
        write_prepared_card(partial, card)
        corpus = PreparedCorpus.open(partial / CORPUS_FOLDER, tokenizer)
        return _report(out, tokenizer, corpus, started_at, display, request.files.noun)


class _CheckedRequest(NamedTuple):
    """The content of a `PrepareRequest` that was found valid: its settings, kind of task and files."""

    settings: Settings
    kind: TextKind
    files: CorpusFiles
    """The files of training text, as the user named them, before any of them is converted."""
    holds_out: bool
    """True if a dev set is held out of the training text."""


def _check_request(request: PrepareRequest) -> _CheckedRequest:
    """Check a request to prepare a corpus, and return its settings, kind of task and files.

    If the request names a dev set, no training pairs are held out. The files of the dev set need not exist yet.

    Raises:
        TransduceError: settings are wrong, the named tokenizer cannot be read, or the task's corpus cannot be prepared
            in advance.
    """
    if request.workers is not None and request.workers < 1:
        raise TransduceError(f"`workers` must be at least 1, but is {request.workers}.")
    settings = make_settings(request.settings)
    kind = kind_of(settings.task.kind)
    if not isinstance(kind, TextKind) or not kind.may_be_prepared:
        raise TransduceError(
            f"`task.kind` is {settings.task.kind}, whose corpus is prepared when training starts: prepare one for "
            f"{', '.join(PREPARED_KINDS)}, or train without."
        )
    if settings.data.corpora:
        raise TransduceError(
            "A corpus of several language pairs is prepared when training starts, but `data.corpora` is set: run "
            "`transduce train` with it, or prepare one pair by `data.source` and `data.target`."
        )
    if request.tokenizer is not None and load_tokenizer(request.tokenizer).writes_line_feeds:
        tokenizer = msgspec.structs.replace(settings.tokenizer, line_feeds=True)
        settings = msgspec.structs.replace(settings, tokenizer=tokenizer)
    data = msgspec.structs.replace(settings.data, dev_source=(), dev_target=())
    settings, has_dev = msgspec.structs.replace(settings, data=data), bool(settings.data.dev_source)
    kind.check(settings)
    return _CheckedRequest(settings, kind, kind.text(data).files, request.hold_out and not has_dev)


@contextmanager
def _text_files(task: _CheckedRequest, partial: Path) -> Iterator[TaskText]:
    """Yield the text to prepare, as files that can be read line by line, within a `with` block.

    Files of other formats are converted first. The converted files lie in the folder `partial` and are deleted at the
    end of the block. A dev set is held out only if the request asks for it.
    """
    with tempfile.TemporaryDirectory(dir=partial, prefix=".text-") as folder:
        text = task.kind.read_text(task.settings, Path(folder), overwrite=True)
        yield text if task.holds_out else msgspec.structs.replace(text, hold_out=None)


def _learn(text: TaskText, size: CorpusSize, settings: Settings, folder: Path, display: ProgressDisplay) -> Tokenizer:
    choice_log = ChoiceLog()
    tokenizer, _ = learn_tokenizer(
        text.files,
        size,
        settings,
        lambda size: resolve_tokenizer(settings, size, choice_log),
        folder,
        display,
        special_tokens=text.special_tokens,
    )
    for line in choice_log.lines:
        display.show(f"  {line.name}  {line.shown_value}  {localized(line.reason)}")
    return tokenizer


def _load_named_tokenizer(folder: Path, settings: Settings, special_tokens: Sequence[str]) -> Tokenizer:
    """Return the tokenizer in a folder, after checking that it fits the settings and has the task's special tokens."""
    tokenizer = load_tokenizer(folder)
    check_special_tokens(folder, tokenizer, special_tokens)
    check_vocabulary(settings.tokenizer, tokenizer, folder)
    check_kept_vocabulary(settings.tokenizer, tokenizer, folder)
    size = settings.tokenizer.vocabulary_size
    if size is not None and size != tokenizer.source.size:
        raise TransduceError(
            f"`tokenizer.vocabulary_size` is {size:,}, but the tokenizer in {folder} has {tokenizer.source.size:,} "
            "tokens: leave one of them out."
        )
    return tokenizer


def _parts_of(shard: Path) -> list[Path]:
    if not (shard / PARTS_FOLDER).is_dir():
        raise TransduceError(f"{shard} holds no shard of a corpus: name what `transduce prepare --shard` wrote.")
    return sorted((shard / PARTS_FOLDER).iterdir(), key=lambda folder: (len(folder.name), folder.name))


def _report(
    out: Path, tokenizer: Tokenizer, corpus: PreparedCorpus, started_at: float, display: ProgressDisplay, noun: str
) -> PreparationReport:
    for line in corpus.filters.lines(noun):
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
