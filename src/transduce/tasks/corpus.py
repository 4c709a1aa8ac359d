"""The text of a run: its tokenizer, its training pairs on disk, its dev set."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from transduce.data.batches import Batch, BatchPlan
from transduce.data.holdout import HoldOutSettings
from transduce.data.prepared import PreparedCorpus, prepare
from transduce.errors import TransduceError
from transduce.tasks.settings import DataSettings, Settings
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.languages import language_of, unspaced_characters
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import CorpusSize
from transduce.training.events import ProgressDisplay

CORPUS_FOLDER = "corpus"
_DEV_FOLDER = "corpus-dev"
_DEV_BATCH_TOKENS = 4_096
_ENOUGH_OCCURRENCES = 3


class TaskCorpus(msgspec.Struct, frozen=True):
    """What a run needs of its text."""

    tokenizer: Tokenizer
    tokenizer_settings: TokenizerSettings
    prepared: PreparedCorpus
    languages: tuple[str | None, str | None]
    dev_sources: Sequence[str]
    dev_targets: Sequence[str]
    dev_batches: Sequence[Batch]

    @property
    def pairs(self) -> int:
        """Training pairs."""
        return self.prepared.pairs

    @property
    def target_tokens(self) -> int:
        """Target pieces of an epoch, end symbols included."""
        return self.prepared.target_tokens


def prepare_corpus(
    settings: Settings,
    folder: Path,
    choose_tokenizer: Callable[[CorpusSize], TokenizerSettings],
    display: ProgressDisplay,
) -> TaskCorpus:
    """Learns the vocabulary and cuts the training text, once.

    Args:
        settings: as the user gave them.
        folder: of the run; tokenizer and corpus are written there.
        choose_tokenizer: settles the vocabulary when the corpus' size is known.
        display: is told what is read and left out.

    Raises:
        TransduceError: files are missing or not what they should be.
    """
    data = settings.data
    if not data.source:
        raise TransduceError("Training needs text: give --source and --target, or `data.source` in the settings.")
    files = _files(data.source, data.target, data)
    # Everything is read once before anything is written, so that a missing or uneven file leaves nothing behind.
    size = measure(files)
    if data.dev_source:
        measure(_files(data.dev_source, data.dev_target, data))
    chosen = choose_tokenizer(size)
    tokenizer = Tokenizer.train(lambda: read_pairs(files), chosen, shrink=settings.tokenizer.vocabulary_size is None)
    if tokenizer.source.size < chosen.vocabulary_size:
        display.say(f"The text allows {tokenizer.source.size:,} pieces, not {chosen.vocabulary_size:,}.")
        chosen = msgspec.structs.replace(chosen, vocabulary_size=tokenizer.source.size)
    tokenizer.save(folder)
    hold_out = None if data.dev_source else HoldOutSettings()
    prepared = prepare(files, tokenizer, data.filters, folder / CORPUS_FOLDER, hold_out=hold_out)
    for line in prepared.filters.lines():
        display.say(line)
    return _task_corpus(folder, data, tokenizer, chosen, prepared)


def open_corpus(folder: Path, settings: Settings) -> TaskCorpus:
    """What `prepare_corpus` made, for a run that goes on; its settings leave nothing open."""
    tokenizer = Tokenizer.load(folder)
    prepared = PreparedCorpus.open(folder / CORPUS_FOLDER, tokenizer)
    chosen = TokenizerSettings(**msgspec.to_builtins(settings.tokenizer))
    return _task_corpus(folder, settings.data, tokenizer, chosen, prepared)


def _task_corpus(
    folder: Path,
    data: DataSettings,
    tokenizer: Tokenizer,
    tokenizer_settings: TokenizerSettings,
    prepared: PreparedCorpus,
) -> TaskCorpus:
    dev = _files(data.dev_source, data.dev_target, data) if data.dev_source else prepared.held_out
    if dev is None:
        raise TransduceError("The corpus is too small to hold a dev set out of it: give --dev-source and --dev-target.")
    pairs = list(read_pairs(dev))
    cut = prepare(dev, tokenizer, data.filters, folder / _DEV_FOLDER)
    plan = BatchPlan(cut, batch_tokens=_DEV_BATCH_TOKENS, seed=0)
    return TaskCorpus(
        tokenizer=tokenizer,
        tokenizer_settings=tokenizer_settings,
        prepared=prepared,
        languages=_languages(data),
        dev_sources=[pair.source for pair in pairs],
        dev_targets=[pair.target for pair in pairs],
        dev_batches=[plan.batch(0, position) for position in range(len(plan))],
    )


def _files(source: tuple[str, ...], target: tuple[str, ...], data: DataSettings) -> CorpusFiles:
    return CorpusFiles(source=source, target=target, format=data.format, languages=data.languages)


def _languages(data: DataSettings) -> tuple[str | None, str | None]:
    """As said, or by the suffixes of the files."""
    if data.languages is not None:
        return data.languages
    source = language_of(data.source[0]) if data.target else None
    return source, language_of(data.target[0]) if data.target else None


def measure(files: CorpusFiles) -> CorpusSize:
    """Pairs, and distinct characters of scripts without spaces that occur often enough to be learnt."""
    counts: Counter[str] = Counter()
    pairs = 0
    for pair in read_pairs(files):
        pairs += 1
        counts.update(unspaced_characters(pair.source))
        counts.update(unspaced_characters(pair.target))
    frequent = sum(count >= _ENOUGH_OCCURRENCES for count in counts.values())
    return CorpusSize(pairs=pairs, unspaced_characters=frequent)
