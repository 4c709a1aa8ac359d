"""The text of a run: its tokenizer, its training pairs on disk, its dev set."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from transduce.data.batches import Batch
from transduce.data.card import CARD_NAME
from transduce.data.holdout import HoldOutSettings
from transduce.data.prepared import PreparedCorpus, prepare
from transduce.data.sample import write_sample
from transduce.durable import is_no_file, write_file
from transduce.errors import TransduceError
from transduce.interop.stored_tokenizer import load_tokenizer
from transduce.runtime.machine import usable_cores
from transduce.tasks.preparation_bar import PreparationBar
from transduce.tasks.prepared_folder import (
    CORPUS_FOLDER,
    check_marks,
    check_task,
    check_vocabulary,
    open_prepared_folder,
    settings_of,
)
from transduce.tasks.settings import DataSettings, Settings
from transduce.tasks.text_files import remember_text_files
from transduce.tasks.text_notices import overlap_notice, vocabulary_notices
from transduce.text.corpus import CorpusFiles, Pair, PairReader, read_pairs
from transduce.text.files import is_decodable, read_lines
from transduce.text.filters import FilterSettings
from transduce.text.languages import language_of, unspaced_characters
from transduce.text.sentencepiece_model import MAX_TRAINING_LINES, TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import CorpusSize
from transduce.training.events import ProgressDisplay
from transduce.training.processes import joined_processes

_DEV_FOLDER = "corpus-dev"
_ENOUGH_OCCURRENCES = 3
# A process takes as long to start as it takes to prepare some ten thousand pairs.
_PAIRS_A_WORKER = 100_000
# The card of the corpus that a run was started with, where that was prepared ahead.
_CARD_COPY = "prepared_corpus.json"


class TaskText(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of task reads."""

    files: CorpusFiles
    dev: CorpusFiles | None
    """None: something is held out, or the kind finds its dev set by itself."""
    filters: FilterSettings
    hold_out: HoldOutSettings | None
    marks: tuple[str, ...] = ()
    """Pieces of the vocabulary that no text holds."""
    writes_text: bool = True
    """Whether the target side is text, and not labels."""


class RunCorpus(Protocol):
    """What a run itself needs of what it learns from, text or numbers; the rest is between a kind and its corpus."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Cuts text; None for numbers."""

    @property
    def tokenizer_settings(self) -> TokenizerSettings | None:
        """How it cuts."""

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Of source and target, where they are known."""

    @property
    def pairs(self) -> int:
        """Examples."""

    @property
    def target_tokens(self) -> int:
        """What is to be told in an epoch: pieces, or numbers."""

    def describe(self, batch: Any) -> dict[str, Any]:
        """A batch as JSON that a person can read."""


class TaskCorpus(msgspec.Struct, frozen=True):
    """What a run needs of its text."""

    tokenizer: Tokenizer
    tokenizer_settings: TokenizerSettings
    prepared: PreparedCorpus
    languages: tuple[str | None, str | None]
    filters: FilterSettings
    """What pairs were left out; of a corpus that was prepared ahead, its own."""
    dev: PreparedCorpus | None
    """None where the kind of task takes its dev set out of the training text."""
    dev_sources: Sequence[str]
    dev_targets: Sequence[str]

    @property
    def pairs(self) -> int:
        """Training pairs."""
        return self.prepared.pairs

    @property
    def target_tokens(self) -> int:
        """Target pieces of an epoch, end symbols included."""
        return self.prepared.target_tokens

    def describe(self, batch: Batch) -> dict[str, Any]:
        """Numbers of the pairs in the prepared corpus, from 0, and their text and ids."""
        sides = {"source": (self.tokenizer.source, batch.source), "target": (self.tokenizer.target, batch.target)}
        rows = {
            name: [[id for id in row if id != vocabulary.pad_id] for row in ids.tolist()]
            for name, (vocabulary, ids) in sides.items()
        }
        texts = {name: [sides[name][0].decode(row) for row in found] for name, found in rows.items()}
        return {"pairs": batch.indices.tolist(), **texts, "source_ids": rows["source"], "target_ids": rows["target"]}


def prepare_corpus(
    settings: Settings,
    text: TaskText,
    folder: Path,
    choose_tokenizer: Callable[[CorpusSize], TokenizerSettings],
    display: ProgressDisplay,
    tokenizer: Tokenizer | None = None,
) -> TaskCorpus:
    """Learns the vocabulary and cuts the training text, once.

    Args:
        settings: as the user gave them.
        text: what of it is read, and how.
        folder: of the run; tokenizer and corpus are written there.
        choose_tokenizer: settles the vocabulary when the corpus' size is known.
        display: is told what is read and left out.
        tokenizer: one that is there already, in place of learning one.

    Raises:
        TransduceError: files are missing or not what they should be.
    """
    # Everything is read once before anything is written, so that a missing or uneven file leaves nothing behind.
    size = measure(text.files)
    if text.dev is not None:
        measure(text.dev)
    if tokenizer is None:
        tokenizer, chosen = learn_tokenizer(
            text.files, size, settings, choose_tokenizer, folder, display, marks=text.marks
        )
    else:
        lacking = [mark for mark in text.marks if not tokenizer.target.has_mark(mark)]
        if lacking:
            raise TransduceError(
                f"The vocabulary of {settings.start_from} lacks the piece {lacking[0]}, which `task.kind` "
                f"{settings.task.kind} needs for this text: begin with another model, or with none."
            )
        chosen = settings_of(tokenizer)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(folder)
        for line in vocabulary_notices(tokenizer, text.files, str(settings.start_from), both=text.writes_text):
            display.say(line)
    remember_text_files(folder, settings.data, text.dev)
    with PreparationBar(display.console, size.pairs) as bar:
        prepared = prepare(
            text.files,
            tokenizer,
            text.filters,
            folder / CORPUS_FOLDER,
            hold_out=text.hold_out,
            workers=choose_workers(size.pairs),
            report_progress=bar,
        )
    for line in prepared.filters.lines(text.files.thing):
        display.say(line)
    if text.dev is not None and (notice := overlap_notice(text.files, text.dev)) is not None:
        display.say(notice)
    return _task_corpus(folder, settings.data, text, tokenizer, chosen, prepared)


def open_corpus(folder: Path, settings: Settings, text: TaskText) -> TaskCorpus:
    """What `prepare_corpus` made, for a run that goes on; its settings leave nothing open."""
    tokenizer = load_tokenizer(folder)
    prepared = PreparedCorpus.open(folder / CORPUS_FOLDER, tokenizer)
    prepared.verify()
    said = msgspec.structs.asdict(settings.tokenizer)
    names = [name for name in TokenizerSettings.__struct_fields__ if said.get(name) is not None]
    chosen = TokenizerSettings(**{name: said[name] for name in names}, user_symbols=text.marks)
    return _task_corpus(folder, settings.data, text, tokenizer, chosen, prepared)


def use_prepared(
    settings: Settings, read: Callable[[Settings, Path], TaskText], folder: Path, display: ProgressDisplay
) -> TaskCorpus:
    """What `transduce prepare` made, in place of `prepare_corpus`: nothing is copied but the tokenizer.

    Args:
        settings: as the user gave them; what they say of files, filters and vocabulary must be what was prepared.
        read: what the task makes of settings that name all files; its second argument is the run's folder.
        folder: of the run.
        display: is told what was left out.

    Raises:
        TransduceError: the folder was not prepared, is damaged, or was prepared otherwise than the settings say.
    """
    prepared = Path(str(settings.data.prepared))
    card, tokenizer, corpus = open_prepared_folder(prepared)
    check_task(prepared, card, settings.task.kind)
    check_vocabulary(settings.tokenizer, tokenizer, prepared)
    data, known = settings.data, _with_files(settings, card.files)
    text = read(known, folder)
    check_marks(prepared, tokenizer, text.marks)
    for name, said, found in (
        ("data.source", data.source, card.files.source),
        ("data.target", data.target, card.files.target),
        ("data.languages", card.files.languages and data.languages, card.files.languages),
        *(
            (f"data.filters.{name}", None if data.filters == FilterSettings() else value, getattr(card.filters, name))
            for name, value in msgspec.structs.asdict(text.filters).items()
        ),
        ("tokenizer.vocabulary_size", settings.tokenizer.vocabulary_size, tokenizer.source.size),
    ):
        if said not in (None, ()) and said != found:
            one, other = (" ".join(each) if isinstance(each, tuple) else each for each in (said, found))
            raise TransduceError(
                f"`{name}` is {one}, but {prepared} was prepared with {other}: leave it out, or prepare again."
            )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    write_file(folder / _CARD_COPY, (corpus.folder / CARD_NAME).read_bytes())
    for line in corpus.filters.lines(text.files.thing):
        display.say(line)
    text = msgspec.structs.replace(text, filters=card.filters)  # the dev set's too
    found = _task_corpus(folder, known.data, text, tokenizer, settings_of(tokenizer), corpus)
    remember_text_files(folder, settings.data, text.dev)
    return found


def reopen_prepared(settings: Settings, read: Callable[[Settings, Path], TaskText], folder: Path) -> TaskCorpus:
    """The same for a run that goes on, in place of `open_corpus`.

    Raises:
        TransduceError: the corpus is not the one that the run began with.
    """
    prepared = Path(str(settings.data.prepared))
    card, tokenizer, corpus = open_prepared_folder(prepared)
    if (folder / _CARD_COPY).read_bytes() != (corpus.folder / CARD_NAME).read_bytes():
        raise TransduceError(
            f"{prepared} was prepared anew since the run in {folder} began, which cannot go on with another corpus: "
            "start another run with another --out."
        )
    known = _with_files(settings, card.files)
    text = msgspec.structs.replace(read(known, folder), filters=card.filters)
    return _task_corpus(folder, known.data, text, tokenizer, settings_of(tokenizer), corpus)


def measure(files: CorpusFiles) -> CorpusSize:
    """Pairs, and distinct characters of scripts without spaces that occur often enough to be learnt.

    Raises:
        TransduceError: a file is missing, or a pipe.
    """
    for path in map(Path, (*files.source, *files.target)):
        if is_no_file(path) and not path.is_dir():
            raise TransduceError(f"{path} is a pipe or a device, but text is read several times: write it to a file.")
    counts = np.zeros(0, np.int64)
    reader = PairReader(files)
    for block in reader:
        text = "".join(block.sources) + "".join(block.targets)
        found = np.bincount(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4")))
        longer, shorter = (counts, found) if len(counts) > len(found) else (found, counts)
        longer[: len(shorter)] += shorter
        counts = longer
    frequent = "".join(map(chr, np.flatnonzero(counts >= _ENOUGH_OCCURRENCES).tolist()))
    return CorpusSize(pairs=reader.pairs, unspaced_characters=len(unspaced_characters(frequent)))


def learn_tokenizer(
    files: CorpusFiles,
    size: CorpusSize,
    settings: Settings,
    choose: Callable[[CorpusSize], TokenizerSettings],
    folder: Path,
    display: ProgressDisplay,
    *,
    marks: tuple[str, ...] = (),
) -> tuple[Tokenizer, TokenizerSettings]:
    """A vocabulary from the corpus, or from a sample of it where it is large, saved in a folder; and its settings."""
    chosen, adjust = choose(size), settings.tokenizer.vocabulary_size is None
    if files.is_text_alone and not chosen.joint:
        raise TransduceError(
            "`tokenizer.joint` = false is for a vocabulary on either side, but here is one text alone: leave it out."
        )
    # A size that was chosen is one for words; what the task adds comes on top.
    more = len(marks) if adjust else 0
    chosen = msgspec.structs.replace(chosen, vocabulary_size=chosen.vocabulary_size + more, user_symbols=marks)
    folder.mkdir(parents=True, exist_ok=True)
    most = MAX_TRAINING_LINES // (2 if chosen.joint else 1)
    sample = folder / ".sample.jsonl"
    try:
        text = write_sample(files, size.pairs, most, sample) if size.pairs > most else files
        tokenizer = Tokenizer.train(lambda: _vocabulary_text(text, settings.tokenizer.text), chosen, adjust=adjust)
    finally:
        sample.unlink(missing_ok=True)
    if tokenizer.source.size != chosen.vocabulary_size and chosen.kind != "character":
        why = "allows" if tokenizer.source.size < chosen.vocabulary_size else "needs"
        display.say(f"The text {why} {tokenizer.source.size:,} pieces, not {chosen.vocabulary_size:,}.")
        chosen = msgspec.structs.replace(chosen, vocabulary_size=tokenizer.source.size)
    tokenizer.save(folder)
    return tokenizer, chosen


def _vocabulary_text(files: CorpusFiles, more: tuple[str, ...]) -> Iterator[Pair]:
    """What a vocabulary is learnt from: the pairs, and further text."""
    alone = files.is_text_alone
    for pair in read_pairs(files):
        yield Pair(pair.source, "", pair.line, pair.path) if alone else pair
    for path in more:
        for line, text in enumerate(read_lines(path, keep_undecodable=True), 1):
            yield Pair(text, "", line, path)


def choose_workers(pairs: int) -> int:
    """A process a core, where each has enough to do; their number changes no bit."""
    return max(1, min(usable_cores(), pairs // _PAIRS_A_WORKER))


def _task_corpus(
    folder: Path,
    data: DataSettings,
    text: TaskText,
    tokenizer: Tokenizer,
    tokenizer_settings: TokenizerSettings,
    prepared: PreparedCorpus,
) -> TaskCorpus:
    dev = text.dev if text.dev is not None else prepared.held_out
    if dev is None and text.hold_out is not None:
        raise TransduceError(
            "The corpus has too few different sources to hold a dev set out of it: give --dev-source and --dev-target."
            if data.prepared is None
            else f"Nothing was held out as a dev set when {data.prepared} was prepared: give --dev-source and "
            "--dev-target, or prepare it again."
        )
    pairs = [] if dev is None else [pair for pair in read_pairs(dev) if is_decodable(pair.source + pair.target)]
    return TaskCorpus(
        tokenizer=tokenizer,
        tokenizer_settings=tokenizer_settings,
        prepared=prepared,
        languages=_languages(data),
        filters=text.filters,
        dev=None if dev is None else _cut_dev(dev, tokenizer, text.filters, folder / _DEV_FOLDER),
        dev_sources=[pair.source for pair in pairs],
        dev_targets=[pair.target for pair in pairs],
    )


def _cut_dev(dev: CorpusFiles, tokenizer: Tokenizer, filters: FilterSettings, folder: Path) -> PreparedCorpus:
    """The dev set, which of several processes the first one cuts before the others come here."""
    if joined_processes().is_first:
        return prepare(dev, tokenizer, filters, folder)
    return PreparedCorpus.open(folder, tokenizer)


def _with_files(settings: Settings, files: CorpusFiles) -> Settings:
    """The settings of a run, with the files that were prepared for it: their names tell the languages."""
    data = settings.data
    target = () if files.is_text_alone else files.target
    known = msgspec.structs.replace(
        data,
        source=files.source,
        target=target,
        back_translated=files.back_translated,
        languages=data.languages or files.languages,
    )
    return msgspec.structs.replace(settings, data=known)


def _languages(data: DataSettings) -> tuple[str | None, str | None]:
    """As said, or by the suffixes of the files."""
    if data.languages is not None:
        return data.languages
    source = language_of(data.source[0]) if data.target else None
    return source, language_of(data.target[0]) if data.target else None
