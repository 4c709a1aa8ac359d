"""Prepare the text of a run: its tokenizer, its training pairs on disk, and its dev set."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from transduce.atomic_io import is_special_file, write_file
from transduce.data.batches import Batch
from transduce.data.holdout import HoldOutSettings, source_keys
from transduce.data.parts import CORPUS_CARD_NAME
from transduce.data.prepared import (
    ContextCorpus,
    ContextSettings,
    PreparedCorpus,
    RepeatedCorpus,
    prepare,
)
from transduce.errors import TransduceError, count_noun
from transduce.inference.bulk_files import ReportClock
from transduce.inference.quality_estimation import without_protected
from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.machine import usable_cores
from transduce.tasks.prepared_folder import (
    CORPUS_FOLDER,
    check_kept_vocabulary,
    check_special_tokens,
    check_task,
    check_vocabulary,
    open_prepared_folder,
    tokenizer_settings_of,
)
from transduce.tasks.settings.structs import DataSettings, Settings
from transduce.tasks.text_files import store_text_file_states
from transduce.tasks.vocabularies import extend_base_tokenizer, learn_tokenizer, vocabulary_notices
from transduce.text.corpus import HEADER, MALFORMED, CorpusFiles, Pair, PairBlock, PairReader, read_pairs
from transduce.text.files import DAMAGED, INVISIBLE, MARKUP, LineNotes, is_composed, is_decodable
from transduce.text.filters import FilterSettings
from transduce.text.languages import detect_other_language, english_name, language_of, unspaced_characters
from transduce.text.pair_files import location_of
from transduce.text.protected import PLACEHOLDER_TOKENS
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import CONTEXT_SEPARATOR
from transduce.training.choices import CorpusSize
from transduce.training.display import ProgressDisplay
from transduce.training.distributed import current_processes
from transduce.ui_language import localized

# --- notices about likely mistakes ---


def overlap_notice(training: CorpusFiles, dev: CorpusFiles) -> str | None:
    """Return a sentence for the user if sources of the dev set also occur in the training text; None if none does.

    Case, spaces and punctuation are ignored.

    Raises:
        TransduceError: a file is missing or invalid.
    """
    pairs = [pair for pair in read_pairs(dev) if pair.source.strip()]
    keys = source_keys([pair.source for pair in pairs])
    in_training = np.zeros(len(keys), bool)
    for block in PairReader(training):
        in_training |= np.isin(keys, source_keys(block.sources))
    if not in_training.any():
        return None
    first = pairs[int(in_training.argmax())]
    return (
        f"The training text has {in_training.sum():,} of the dev set's {count_noun(len(keys), 'source')}, too (first: "
        f"{location_of(first.path, first.line)}): leave them out of one of the two, or the dev scores will be too high."
    )


_SAMPLED_LINES = 1000
_MIN_WRONG_LINES, _MIN_WRONG_SHARE = 20, 0.5


def language_notice(files: CorpusFiles, languages: tuple[str | None, str | None]) -> str | None:
    """Return a warning for the user if a side of a corpus is mostly in another language than expected; else None.

    Args:
        files: text on both sides; the first 1,000 pairs are examined.
        languages: the expected languages of source and target, from the settings or the files' suffixes; a side whose
            language is None is not examined.

    Raises:
        TransduceError: a file is missing or invalid.
    """
    pairs = list(islice(read_pairs(files), _SAMPLED_LINES))
    found: list[tuple[str, str, str]] = []
    sides = (("source", [pair.source for pair in pairs]), ("target", [pair.target for pair in pairs]))
    for (side, lines), expected in zip(sides, languages, strict=True):
        if expected and (other := _usual_other_language(lines, expected)) is not None:
            found.append((side, other, english_name(expected)))
    if not found:
        return None
    looks = " and ".join(f"the {side} looks {other} instead of {expected}" for side, other, expected in found)
    are_swapped = len(found) == len(sides) and found[0][1] == found[1][2] and found[1][1] == found[0][2]
    remedy = "the files seem to be swapped" if are_swapped else "check the files and `--languages`"
    return f"warning: In the first {len(pairs):,} pairs {looks}: {remedy}."


def _usual_other_language(lines: list[str], expected: str) -> str | None:
    """Return the most frequent other language, if most lines are in another language than expected; else None.

    Most lines means at least half of all lines, and at least 20 lines.
    """
    needed = max(_MIN_WRONG_LINES, _MIN_WRONG_SHARE * len(lines))
    others = Counter[str]()
    for number, line in enumerate(lines):
        if others.total() + len(lines) - number < needed:
            return None
        if detect_other_language(line, expected) and (
            other := detect_other_language(without_protected(line), expected)
        ):
            others[other] += 1
    return others.most_common(1)[0][0] if others.total() >= needed else None


# --- progress ---


_SECONDS_BETWEEN_LINES = 15.0


class PreparationBar:
    """A progress display of preparing a corpus, for use in a ``with`` statement.

    It is called with the number of examples read so far. On a terminal it is a bar, and elsewhere a line of text every
    15 seconds.
    """

    def __init__(self, console: Console, total: int | None, noun: str) -> None:
        """Create the progress display of preparing a corpus.

        Args:
            console: the terminal or file to print to.
            total: the number of examples; None if unknown.
            noun: the noun for one example, in the singular.
        """
        self._console = console
        self._total, self._noun = total, noun
        self._clock = ReportClock(_SECONDS_BETWEEN_LINES)
        columns = (TextColumn("{task.fields[text]}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("prepare", total=total, text="preparing the corpus")

    def __enter__(self) -> "PreparationBar":
        self._bar.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._bar.stop()

    def __call__(self, read: int) -> None:
        """Show that `read` examples (such as pairs) have been read so far, and how many were read per second."""
        count, speed = count_noun(read, self._noun), read / max(self._clock.elapsed_seconds, 1e-9)
        text = (
            f"{count} · {speed:,.0f} a second"
            if self._total is None
            else f"{count} of {self._total:,} · {speed:,.0f} a second"
        )
        self._bar.update(self._task, completed=read, text=localized(text))
        if not self._console.is_terminal and self._clock.is_due():
            self._console.print(localized(f"prepared {text}"), markup=False, soft_wrap=True)


# --- preparation ---


_DEV_FOLDER = "corpus-dev"
_ENOUGH_OCCURRENCES = 3
# Preparing this many pairs takes much longer than starting a worker process.
_PAIRS_A_WORKER = 100_000
# A copy of the card of the prepared corpus that a run was started with.
_CARD_COPY = "prepared_corpus.json"


class TaskText(msgspec.Struct, frozen=True, kw_only=True):
    """The text files of a task, with the filters that apply to them and the special tokens that the task needs."""

    files: CorpusFiles
    """Files of the training text."""
    dev: CorpusFiles | None
    """Files of the dev set; None: pairs are held out of the training text, or the task splits its dev text off later.
    """
    filters: FilterSettings
    """Rules by which pairs of the training text are left out, such as a maximum length."""
    hold_out: HoldOutSettings | None
    """How to hold a dev set out of the training text; None: none is held out."""
    special_tokens: tuple[str, ...] = ()
    """Special tokens that the task adds to the vocabulary, which no text contains."""
    writes_text: bool = True
    """True if the target side is text, False if it is labels or trees."""
    noun: str = ""
    """The noun for one example in messages, in the singular; empty: the files' noun, "line" or "pair"."""

    @property
    def example_noun(self) -> str:
        """The noun for one example in messages, in the singular, such as "pair".

        A task without a noun of its own uses the noun of its files.
        """
        return self.noun or self.files.noun

    def with_line_feeds(self, *, keeps: bool) -> "TaskText":
        """Return a copy of the task's text with another treatment of line feeds within texts.

        Line feeds are kept if `keeps` is true, for which the vocabulary needs a token for them. Otherwise they are read
        as spaces.
        """
        files = msgspec.structs.replace(self.files, line_feeds=keeps)
        dev = None if self.dev is None else msgspec.structs.replace(self.dev, line_feeds=keeps)
        return msgspec.structs.replace(self, files=files, dev=dev)


class RunCorpus(Protocol):
    """An interface of the prepared data that a training run uses, whatever its task."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The corpus's tokenizer; None if the corpus consists of numbers (time series)."""

    @property
    def tokenizer_settings(self) -> TokenizerSettings | None:
        """The tokenizer's settings; None if the corpus consists of numbers (time series)."""

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The language codes of source and target, a pair; None for one that is unknown."""

    @property
    def pairs(self) -> int:
        """The number of training examples."""

    @property
    def target_tokens(self) -> int:
        """The number of targets to predict in an epoch: tokens or numbers."""

    def describe(self, batch: Any) -> dict[str, Any]:
        """Return a description of a batch as a dict that can be written as JSON, for records of skipped steps."""


class DevGroups(NamedTuple):
    """The language pair, tag and document of each sentence of a dev set.

    Sentences of different language pairs or tags are scored separately; in a document, earlier sentences are context.
    Each field has a value for each sentence, or is empty.
    """

    directions: Sequence[tuple[str, str]] = ()
    """The language pair of each sentence, (source, target); sentences of a pair are adjacent. Empty in a run without
    tokens of target languages.
    """
    tags: Sequence[str] = ()
    """The tag of each sentence's corpus, "" without one; empty in a run without tags."""
    continues: Sequence[bool] = ()
    """Whether each sentence continues the document of the one before it; empty in a run without documents."""


class TaskCorpus(msgspec.Struct, frozen=True):
    """A prepared corpus of text, with its tokenizer and dev set."""

    tokenizer: Tokenizer
    tokenizer_settings: TokenizerSettings
    prepared: PreparedCorpus
    """The tokenized training pairs, read from files in the run's folder or a prepared one."""
    languages: tuple[str | None, str | None]
    """Language codes of source and target, a pair; None for one that is unknown."""
    filters: FilterSettings
    """Rules by which pairs were left out of the corpus; for one that was prepared earlier, the rules of that time."""
    dev: PreparedCorpus | None
    """The tokenized dev set; None if the task splits its dev text off the training text later, as for language models.
    """
    dev_sources: Sequence[str]
    """The source sentences of the dev set."""
    dev_targets: Sequence[str]
    """The target sentences of the dev set."""
    dev_groups: DevGroups = DevGroups()
    """The language pairs, tags and documents of the dev set's sentences."""

    @property
    def pairs(self) -> int:
        """The number of training pairs."""
        return self.prepared.pairs

    @property
    def target_tokens(self) -> int:
        """The number of target tokens in an epoch, including end symbols."""
        return self.prepared.target_tokens

    def describe(self, batch: Batch) -> dict[str, Any]:
        """Return a dict that describes a batch: indices of its pairs in the prepared corpus, texts and token ids.

        The dict can be written as JSON. Its keys are `pairs`, `source`, `target`, `source_ids` and `target_ids`.
        """
        sides = {"source": (self.tokenizer.source, batch.source), "target": (self.tokenizer.target, batch.target)}
        rows = {
            name: [[id for id in row if id != vocabulary.pad_id] for row in ids.tolist()]
            for name, (vocabulary, ids) in sides.items()
        }
        texts = {name: [sides[name][0].decode(row) for row in side_rows] for name, side_rows in rows.items()}
        return {"pairs": batch.indices.tolist(), **texts, "source_ids": rows["source"], "target_ids": rows["target"]}


def prepare_corpus(
    settings: Settings,
    text: TaskText,
    folder: Path,
    choose_tokenizer: Callable[[CorpusSize], TokenizerSettings],
    display: ProgressDisplay,
    tokenizer: Tokenizer | None = None,
) -> TaskCorpus:
    """Tokenize the training text and the dev set, by a tokenizer that is passed or learned, and return the corpus.

    All files are read once before anything is written.

    Args:
        settings: the user's settings.
        text: the text to read, and how it is filtered.
        folder: the run's folder, where tokenizer and corpus are written.
        choose_tokenizer: chooses the tokenizer's settings from the size of the corpus.
        display: shows what is read and left out.
        tokenizer: an existing tokenizer, such as the base model's, to use; None: one is learned.

    Raises:
        TransduceError: files are missing or invalid, or have too few different sources to hold out a dev set.
    """
    if tokenizer is not None:
        tokenizer = extend_base_tokenizer(tokenizer, settings, text.special_tokens, display)
        text = text.with_line_feeds(keeps=tokenizer.writes_line_feeds)
    # Everything is read once before anything is written, so that a missing or uneven file leaves no files behind.
    notes = LineNotes()
    size = measure_corpus(text.files, notes)
    if text.dev is not None:
        measure_corpus(text.dev, notes)
    if text.files.is_text_alone or settings.tokenizer.kind == "character":  # such vocabularies keep all spaces
        notes.repeated_spaces = 0
    if text.files.is_text_alone:  # code, for example, and the doctor examines pairs
        notes.marked_up = notes.damaged = notes.invisible = 0
    for line in notes.notices(writes_text=text.writes_text):
        display.say(line)
    has_languages = text.writes_text and not text.files.is_text_alone
    if has_languages and (notice := language_notice(text.files, languages_of(settings.data))) is not None:
        display.say(notice)
    if tokenizer is None:
        tokenizer, tokenizer_settings = learn_tokenizer(
            text.files, size, settings, choose_tokenizer, folder, display, special_tokens=text.special_tokens
        )
    else:
        tokenizer_settings = tokenizer_settings_of(tokenizer)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(folder)
        for line in vocabulary_notices(tokenizer, text.files, str(settings.init_from), both=text.writes_text):
            display.say(line)
    text = text.with_line_feeds(keeps=tokenizer.writes_line_feeds)
    store_text_file_states(folder, settings.data, text.dev)
    with PreparationBar(display.console, size.pairs, text.example_noun) as bar:
        prepared = prepare(
            text.files,
            tokenizer,
            text.filters,
            folder / CORPUS_FOLDER,
            hold_out=text.hold_out,
            workers=choose_workers(size.pairs),
            report_progress=bar,
        )
    for line in prepared.filters.lines(text.example_noun):
        display.say(line)
    if text.dev is not None and (notice := overlap_notice(text.files, text.dev)) is not None:
        display.say(notice)
    return _task_corpus(folder, settings.data, text, tokenizer, tokenizer_settings, prepared)


def open_corpus(folder: Path, settings: Settings, text: TaskText) -> TaskCorpus:
    """Return the corpus that `prepare_corpus` wrote to a run's folder, for a run that resumes with complete settings.

    Raises:
        TransduceError: the corpus is missing or damaged.
    """
    tokenizer = load_tokenizer(folder)
    prepared = PreparedCorpus.open(folder / CORPUS_FOLDER, tokenizer)
    prepared.verify()
    saved = msgspec.structs.asdict(settings.tokenizer)
    names = [name for name in TokenizerSettings.__struct_fields__ if saved.get(name) is not None]
    special_tokens = (*text.special_tokens, *PLACEHOLDER_TOKENS[: settings.tokenizer.placeholders or 0])
    tokenizer_settings = TokenizerSettings(
        **{name: saved[name] for name in names if name != "user_symbols"},
        user_symbols=tuple(dict.fromkeys((*special_tokens, *settings.tokenizer.user_symbols))),
    )
    return _task_corpus(folder, settings.data, text, tokenizer, tokenizer_settings, prepared)


def use_prepared_corpus(
    settings: Settings, read: Callable[[Settings, Path], TaskText], folder: Path, display: ProgressDisplay
) -> TaskCorpus:
    """Return the corpus that `transduce prepare` wrote (`data.prepared`), for a new run.

    The training pairs stay in the folder of the prepared corpus. The run's folder gets the tokenizer, the tokenized dev
    set, a copy of the corpus's card, and a record of the dev set's files.

    Args:
        settings: the user's settings. Files, languages, filters and vocabulary must be those of the prepared corpus, or
            be left out.
        read: a function that returns the task's text. Its arguments are settings that name all files, and the run's
            folder.
        folder: the run's folder.
        display: shows what the filters left out when the corpus was prepared.

    Raises:
        TransduceError: `data.prepared` holds no prepared corpus, is damaged, or was prepared for another task or with
            other settings; or the task needs a dev set, but none is named or was held out.
    """
    prepared = Path(str(settings.data.prepared))
    card, tokenizer, corpus = open_prepared_folder(prepared)
    check_task(prepared, card, settings.task.kind)
    check_vocabulary(settings.tokenizer, tokenizer, prepared)
    check_kept_vocabulary(settings.tokenizer, tokenizer, prepared)
    data, with_files = settings.data, _with_files(settings, card.files)
    text = read(with_files, folder).with_line_feeds(keeps=tokenizer.writes_line_feeds)
    check_special_tokens(prepared, tokenizer, text.special_tokens)
    for name, specified, actual in (
        ("data.source", data.source, card.files.source),
        ("data.target", data.target, card.files.target),
        ("data.languages", card.files.languages and data.languages, card.files.languages),
        *(
            (f"data.filters.{name}", None if data.filters == FilterSettings() else value, getattr(card.filters, name))
            for name, value in msgspec.structs.asdict(text.filters).items()
        ),
        ("tokenizer.vocabulary_size", settings.tokenizer.vocabulary_size, tokenizer.source.size),
    ):
        if specified not in (None, ()) and specified != actual:
            one, other = (" ".join(each) if isinstance(each, tuple) else each for each in (specified, actual))
            raise TransduceError(
                f"`{name}` is {one}, but {prepared} was prepared with {other}: leave it out, or prepare again."
            )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    write_file(folder / _CARD_COPY, (corpus.folder / CORPUS_CARD_NAME).read_bytes())
    for line in corpus.filters.lines(text.example_noun):
        display.say(line)
    text = msgspec.structs.replace(text, filters=card.filters)  # applies to the dev set, too
    result = _task_corpus(folder, with_files.data, text, tokenizer, tokenizer_settings_of(tokenizer), corpus)
    store_text_file_states(folder, settings.data, text.dev)
    return result


def reopen_prepared_corpus(settings: Settings, read: Callable[[Settings, Path], TaskText], folder: Path) -> TaskCorpus:
    """Return the corpus that `transduce prepare` wrote, for a run that started with this corpus and resumes.

    `read` is a function that returns the task's text. Its arguments are settings that name all files, and the run's
    folder.

    Raises:
        TransduceError: the corpus is missing or damaged, or was prepared again since the run started.
    """
    prepared = Path(str(settings.data.prepared))
    card, tokenizer, corpus = open_prepared_folder(prepared)
    if (folder / _CARD_COPY).read_bytes() != (corpus.folder / CORPUS_CARD_NAME).read_bytes():
        raise TransduceError(
            f"{prepared} was prepared again since the run in {folder} started, and a run cannot change its corpus: "
            "start another run with another --out."
        )
    with_files = _with_files(settings, card.files)
    text = msgspec.structs.replace(read(with_files, folder), filters=card.filters)
    text = text.with_line_feeds(keeps=tokenizer.writes_line_feeds)
    return _task_corpus(folder, with_files.data, text, tokenizer, tokenizer_settings_of(tokenizer), corpus)


def _note_texts(block: PairBlock, notes: LineNotes) -> None:
    """Count the texts of a block of pairs that tokenization may change or that probably need repair.

    The counts are added to `notes`. Tokenization may change texts with "▁", repeated spaces or decomposed characters
    (Unicode NFC). Texts that need repair have tags, entities, damaged or invisible characters.
    """
    texts = "\n".join((*block.sources, *block.targets))
    if "\u2581" in texts:
        notes.space_marks += sum("\u2581" in text for text in texts.split("\n"))
    notes.repeated_spaces += len(_ODD_SPACES.findall(texts))
    notes.marked_up += _count_matching(MARKUP, texts)
    if not texts.isascii():
        notes.damaged += _count_matching(DAMAGED, texts)
        notes.invisible += _count_matching(INVISIBLE, texts)
    if not is_composed(texts):
        notes.decomposed += sum(not is_composed(text) for text in texts.split("\n"))


def _count_matching(pattern: re.Pattern[str], texts: str) -> int:
    """Return the number of lines of `texts` in which a regular expression is found."""
    return 0 if pattern.search(texts) is None else sum(pattern.search(text) is not None for text in texts.split("\n"))


_ODD_SPACES = re.compile("^(?: .*|.* |.*  .*)$", re.MULTILINE)


def measure_corpus(files: CorpusFiles, notes: LineNotes | None = None) -> CorpusSize:
    """Return the size of a corpus (`CorpusSize`), on which the default size of the vocabulary depends.

    The size has two numbers: that of the pairs, and that of different characters of scripts such as Chinese or Hangul.
    A character must occur at least three times to count. `notes` receives counts of what reading removed or replaced,
    and of texts with problems.

    Raises:
        TransduceError: a file is missing or invalid, or is a pipe or a device.
    """
    for path in map(Path, (*files.source, *files.target)):
        if is_special_file(path) and not path.is_dir():
            raise TransduceError(f"{path} is a pipe or a device, but text is read several times: write it to a file.")
    counts, notes = np.zeros(0, np.int64), notes if notes is not None else LineNotes()
    reader, skipped = PairReader(files, notes), notes.skipped_lines
    for block in reader:
        text = "".join(block.sources) + "".join(block.targets)
        _note_texts(block, notes)
        block_counts = np.bincount(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4")))
        longer, shorter = (counts, block_counts) if len(counts) > len(block_counts) else (block_counts, counts)
        longer[: len(shorter)] += shorter
        counts = longer
    frequent = "".join(map(chr, np.flatnonzero(counts >= _ENOUGH_OCCURRENCES).tolist()))
    return CorpusSize(
        pairs=reader.pairs - notes.skipped_lines + skipped, unspaced_characters=len(unspaced_characters(frequent))
    )


def choose_workers(pairs: int) -> int:
    """Return the number of worker processes that prepare a corpus of this many pairs.

    The number is that of usable cores, but at most one for each 100,000 pairs, and at least one. The prepared corpus
    does not depend on it.
    """
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
            "The corpus has too few different sources to hold a dev set out of it: set `data.dev_source` "
            "and `data.dev_target`."
            if data.prepared is None
            else f"{data.prepared} holds no dev set, because none was held out when it was prepared, and the files of "
            "one that was named then are not copied: set `data.dev_source` and `data.dev_target` (again), or prepare "
            "it again so that one is held out."
        )
    pairs, groups = _read_dev(dev)
    prepared_dev = None if dev is None else _prepare_dev(dev, tokenizer, text.filters, folder / _DEV_FOLDER)
    if data.context_before:
        if "documents" not in prepared.card.columns:
            raise TransduceError(
                f"`data.context_before` is {data.context_before}, but {data.prepared} was prepared without documents: "
                "prepare it again with `data.context_before`, or leave it out."
            )
        source, target = (side.id(CONTEXT_SEPARATOR) for side in (tokenizer.source, tokenizer.target))
        on_target = target if data.context_sides == "both" else None
        prepared = ContextCorpus(prepared, ContextSettings(data.context_before, source, on_target))
        assert prepared_dev is not None
        prepared_dev = ContextCorpus(prepared_dev, prepared.settings)
    return TaskCorpus(
        tokenizer=tokenizer,
        tokenizer_settings=tokenizer_settings,
        prepared=RepeatedCorpus(prepared, data.repetitions(prepared.card.file_pairs)) if data.corpora else prepared,
        languages=languages_of(
            data if data.corpora else msgspec.structs.replace(data, languages=data.languages or text.files.languages)
        ),
        filters=text.filters,
        dev=prepared_dev,
        dev_sources=[pair.source for pair in pairs],
        dev_targets=[pair.target for pair in pairs],
        dev_groups=groups,
    )


def _read_dev(dev: CorpusFiles | None) -> tuple[list[Pair], DevGroups]:
    """Return the pairs of a dev set as a list, and their language pairs, tags and documents (`DevGroups`).

    Malformed lines, header lines, undecodable pairs, and blank lines between documents are left out. If `dev` is None,
    both results are empty.
    """
    pairs, directions, tags, continues = list[Pair](), list[tuple[str, str]](), list[str](), list[bool]()
    document: tuple[int, object] | None = None
    boundaries = 0
    for block in () if dev is None else PairReader(dev):
        assert dev is not None
        for row in range(len(block.sources)):
            pair = block.pair(row)
            if pair.source in (MALFORMED, HEADER) or not is_decodable(pair.source + pair.target):
                continue
            if dev.has_documents:
                if not (pair.source.strip() or pair.target.strip()):
                    boundaries += 1
                    continue
                own = (block.file, boundaries if block.documents is None else block.documents[row])
                continues.append(own == document)
                document = own
            pairs.append(pair)
            directions += dev.directions[block.file : block.file + 1]
            tags += dev.tags[block.file : block.file + 1]
    return pairs, DevGroups(directions, tags, continues)


def _prepare_dev(dev: CorpusFiles, tokenizer: Tokenizer, filters: FilterSettings, folder: Path) -> PreparedCorpus:
    """Tokenize the dev set, store it in `folder`, and return it opened.

    In a run of several processes, the first one stores the dev set, and the others only open it.
    """
    if current_processes().is_first:
        return prepare(dev, tokenizer, filters, folder)
    return PreparedCorpus.open(folder, tokenizer)


def _with_files(settings: Settings, files: CorpusFiles) -> Settings:
    """Return settings that name the `files` of a prepared corpus, and the files' languages if none are set."""
    data = settings.data
    target = () if files.is_text_alone else files.target
    with_files = msgspec.structs.replace(
        data,
        source=files.source,
        target=target,
        back_translated=files.back_translated,
        languages=data.languages or files.languages,
    )
    return msgspec.structs.replace(settings, data=with_files)


def languages_of(data: DataSettings) -> tuple[str | None, str | None]:
    """Return the languages of source and target, as set or by the files' suffixes; None for an unknown language."""
    if data.languages is not None or data.corpora:
        return data.pair or (None, None)
    source = language_of(data.source[0]) if data.target else None
    return source, language_of(data.target[0]) if data.target else None
