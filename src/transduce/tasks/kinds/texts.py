"""Find the text files that settings name, convert JSON lines to files of text, and cut text into windows of tokens."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from transduce.atomic_io import open_atomically
from transduce.data.batches import Batch, Indices, Plan, RandomPurpose, non_padding_id, own_part, permutation
from transduce.data.holdout import HoldOutSettings
from transduce.data.prepared import PreparedCorpus
from transduce.errors import TransduceError
from transduce.tasks.corpus import TaskText
from transduce.tasks.kinds.kind import Outcome, TextKind
from transduce.tasks.settings.structs import DataSettings, Settings
from transduce.text.corpus import CorpusFiles, Format, format_of, read_texts
from transduce.text.filters import FilterSettings
from transduce.training.events import ValidationEvent

# --- text and pairs that the settings name ---


ALL_LINES = FilterSettings(max_tokens=2**31 - 1, drop_empty=False, drop_identical=False)
"""Filter settings that keep all lines, even empty and very long ones."""


def text_only(data: DataSettings, name: str, filters: FilterSettings = ALL_LINES) -> TaskText:
    """Return the training and dev files (`TaskText`) of a task that learns from text alone.

    Each line is both source and target. No dev text is held out if the settings name none.

    Args:
        data: names the files of text.
        name: the kind of model, for messages, such as "language model".
        filters: choose the lines that stay.

    Raises:
        TransduceError: the settings name a target file, no source file, or a format with columns.
    """
    if not data.source:
        raise TransduceError(f"A {name} learns from text: name it by `data.source`.")
    if data.format == "tsv":
        raise TransduceError(
            f"A {name} learns from text only, but `data.format` is tsv, for pairs: write the text to a file of lines, "
            "and leave the format out."
        )
    for setting, files in (("target", data.target), ("dev_target", data.dev_target)):
        if files:
            raise TransduceError(
                f"A {name} learns from text only, but `data.{setting}` names {files[0]}: leave it out, or name all "
                f"files in `data.{setting.replace('target', 'source')}`."
            )
    dev = _both_sides(data.dev_source) if data.dev_source else None
    return TaskText(files=_both_sides(data.source), dev=dev, filters=filters, hold_out=None)


def _both_sides(files: tuple[str, ...]) -> CorpusFiles:
    return CorpusFiles(source=files, target=files, format="lines")


def pairs_of_files(data: DataSettings) -> TaskText:
    """Return the training and dev files (`TaskText`) of a task that learns from pairs.

    A dev set is held out of the training pairs if the settings name none.

    Raises:
        TransduceError: the settings name no text, or name runs instead of files (`data.mix`, or `run` of a corpus).
    """
    if data.mix or any(corpus.run for corpus in data.corpora):
        raise TransduceError(
            "`data.mix` and `run` of a corpus name runs whose text only `transduce train` looks up: name its files "
            "instead."
        )
    if not data.source:
        raise TransduceError("There is no text to learn from: name it by `data.source` and `data.target`.")

    def files(source: tuple[str, ...], target: tuple[str, ...], directions: tuple[tuple[str, str], ...]) -> CorpusFiles:
        return CorpusFiles(
            source=source,
            target=target,
            format=data.format,
            languages=data.pair,
            strict=data.strict_format,
            directions=directions,
            has_documents=data.context_before > 0,
            document_field=data.document_column,
        )

    weights = tuple(corpus.loss_weight for corpus in data.corpora for _ in corpus.source)
    training = msgspec.structs.replace(
        files(data.source, data.target, data.directions),
        back_translated=data.back_translated,
        tags=_tags(data, "source"),
        weight_field=data.weight_column,
        loss_weights=weights if any(weight != 1.0 for weight in weights) else (),
    )
    dev = files(data.dev_source, data.dev_target, data.dev_directions) if data.dev_source else None
    if dev is not None:
        ignored = () if data.weight_column is None else (data.weight_column,)
        dev = msgspec.structs.replace(dev, ignored_fields=ignored, tags=_tags(data, "dev_source"))
    return TaskText(
        files=training,
        dev=dev,
        filters=data.filters,
        hold_out=None if data.dev_source else HoldOutSettings(),
    )


def _tags(data: DataSettings, side: str) -> tuple[str, ...]:
    """Return a tuple with the tag of each file of `data.corpora`, on one side.

    `side` is the field of a corpus that lists the files, such as "source". A file of a corpus without a tag has "". The
    tuple is empty if no corpus has a tag.
    """
    tags = tuple(corpus.tag or "" for corpus in data.corpora for _ in getattr(corpus, side))
    return tags if any(corpus.tag for corpus in data.corpora) else ()


class TextOnlyKind(TextKind):
    """A base class of kinds of tasks that learn from text alone.

    Each line of the text is both the source and the target of a pair.
    """

    may_be_prepared = True
    model_noun: ClassVar[str]
    """The noun for the task's model in messages, such as "language model"."""

    @override
    def rewrite(self, settings: Settings, folder: Path, *, overwrite: bool) -> DataSettings:
        text_only(settings.data, self.model_noun)
        return write_texts(settings.data, folder, overwrite=overwrite)


# --- JSON lines, written as files of text ---


def write_texts(data: DataSettings, folder: Path, *, overwrite: bool) -> DataSettings:
    """Write the texts of JSON-lines files to text files, and return data settings that name these files.

    Plain text files stay as they are, and are named as before.

    Args:
        data: names the files. Training text of a prepared corpus is not written again.
        folder: folder of the written files.
        overwrite: True for a new run. False for a resumed run: no training text is written, because the run has stored
            it in another form. Dev text is written only if its file is missing.

    Raises:
        TransduceError: a file has columns, or is not JSON lines of texts.
    """
    source, dev = data.source, data.dev_source
    if overwrite and data.prepared is None:
        source = tuple(_lines_of(path, data.format, folder / f"text-{n}.txt") for n, path in enumerate(source, 1))
    dev = tuple(
        _lines_of(path, data.format, folder / f"dev-text-{n}.txt", overwrite=overwrite) for n, path in enumerate(dev, 1)
    )
    return msgspec.structs.replace(data, source=source, dev_source=dev, format="lines")


def holds_texts(path: str, chosen: Format) -> bool:
    """Return True if a file is JSON lines of texts, and False if each of its lines is a text.

    Raises:
        TransduceError: the file has columns.
    """
    file_format = format_of(path, chosen)
    if file_format == "tsv":
        raise TransduceError(
            f"{path} has columns, but this task learns from text only: extract one (cut -f1 {path} > text.txt), or "
            "use `--set data.format=lines` if its lines are the text."
        )
    return file_format == "jsonl"


def _lines_of(path: str, chosen: Format, out: Path, *, overwrite: bool = True) -> str:
    """Convert a JSON-lines file to the text file `out`, one text per line, and return the path of `out`.

    A file of plain lines is not converted: its own `path` is returned. An existing file `out` is kept unless
    `overwrite` is true.

    Raises:
        TransduceError: the file has columns, or is not JSON lines of texts.
    """
    if not holds_texts(path, chosen):
        return path
    if overwrite or not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        _write(read_texts(path), out)
    return str(out)


def _write(texts: Iterable[str], out: Path) -> None:
    with open_atomically(out) as file:
        file.writelines(text.removesuffix("\n").encode() + b"\n" for text in texts)


# --- baseline of token frequencies ---


_COUNTED_BATCHES = 100
# Above this share of the baseline's perplexity, a model has learned little more than the frequencies.
_WEAK_SHARE = 0.8


def frequency_perplexity(training: Plan[Batch], dev: Sequence[Batch], *, size: int, ignored: int | None) -> float:
    """Return the perplexity of the dev labels for a model that knows only how frequent tokens are.

    The frequency of a token is one plus its count among the labels of the first 100 training batches.

    Args:
        training: the plan of training batches.
        dev: the dev batches.
        size: the number of tokens of the vocabulary.
        ignored: the id of labels that do not count; None: there is no such id. Negative labels never count.
    """
    counts = np.ones(size)
    for position in range(min(len(training), _COUNTED_BATCHES)):
        counts += np.bincount(_labels(training.batch(0, position), ignored), minlength=size)
    labels = np.concatenate([_labels(batch, ignored) for batch in dev])
    nats = float(-np.log(counts[labels] / counts.sum()).mean()) if len(labels) else 0.0
    return math.exp(min(nats, 100.0))


def _labels(batch: Batch, ignored: int | None) -> NDArray[np.int64]:
    labels = batch.target.ravel()
    counted: NDArray[np.int64] = labels[(labels >= 0) & (labels != (-1 if ignored is None else ignored))]
    return counted


def text_outcome(summary: str, event: ValidationEvent, frequencies: float) -> Outcome:
    """Return the `Outcome` of a task on text alone.

    The model is reported as weak if its perplexity is near that of token frequencies.

    Args:
        summary: the measured quality, for the terminal and the model card.
        event: the validation of the best model.
        frequencies: the perplexity of token frequencies alone.
    """
    weakness = describe_frequencies(event.perplexity, frequencies)
    return Outcome(measured=summary, report=summary, scores=event, weakness=weakness)


def describe_frequencies(perplexity: float, frequencies: float) -> str | None:
    """Return a sentence for the user if a model has learned little more than token frequencies; else None.

    `frequencies` is the perplexity of token frequencies alone. The sentence is returned if `perplexity`, the model's,
    is at least 80 % of it.
    """
    if perplexity < _WEAK_SHARE * frequencies:
        return None
    return (
        f"The model has learned little more than how frequent tokens are: its perplexity of {perplexity:.2f} is near "
        f"that of token frequencies alone, {frequencies:.2f}."
    )


# --- windows of a token stream ---
# Line ends are tokens, so the stream is the text. Each epoch starts at another offset of the stream and takes the
# windows in another order.
# Legend: B windows, T tokens of a window.


Ids = NDArray[np.unsignedinteger]
"""Token ids of a text, unsigned integers, (N,)."""


def read_stream(corpus: PreparedCorpus) -> Ids:
    """Return all token ids of a prepared text in order, (N,), mapped from disk."""
    return np.memmap(corpus.folder / "target.ids", dtype=np.dtype(corpus.card.target.dtype), mode="r")


class WindowPlan:
    """A plan of batches of windows (spans of T consecutive tokens of a text) by epoch and position.

    An epoch has almost every token of the text once, with windows in random order.
    """

    def __init__(
        self, stream: Ids, *, context: int, rows: int, seed: int, pad_id: int, rank_and_count: tuple[int, int] = (0, 1)
    ) -> None:
        """Create the plan of batches of windows.

        Args:
            stream: token ids, (N,).
            context: tokens in a window, T.
            rows: windows in a batch, over all processes.
            seed: random seed of each epoch's first window and order of windows.
            pad_id: the padding id, which the artificial batch of `largest_batches` must not contain.
            rank_and_count: (rank, world size): this process gets every n-th window of a batch, from its rank on.

        Raises:
            TransduceError: the text is shorter than a window and its last label, T + 1 tokens.
        """
        if len(stream) <= context:
            raise TransduceError(
                f"The text must have more tokens than `task.context` ({context:,}), but has {len(stream):,}: add more "
                "text, or make the context smaller."
            )
        self._stream, self._context, self._seed, self._pad_id = stream, context, seed, pad_id
        self._rows, self._rank_and_count = rows, rank_and_count
        self.windows = max(1, (len(stream) - context) // context)
        self._offsets = min(context, len(stream) - self.windows * context)
        self._epoch: tuple[int, int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return (self.windows + self._rows - 1) // self._rows

    def batch(self, epoch: int, position: int) -> Batch:
        """Return a process's windows of the batch at a position of an epoch; source and target are (B, T).

        The target of each token is the next token. If the batch has fewer windows than there are processes, a process
        without a window gets one as a stand-in.
        """
        offset, order = self._epoch_order(epoch)

        def batch_of(rows: Indices) -> Batch:
            return replace(cut_windows(self._stream, offset + rows * self._context, self._context), indices=rows)

        return own_part(order[position * self._rows : (position + 1) * self._rows], self._rank_and_count, batch_of)

    def largest_batches(self) -> list[Batch]:
        """Return a list with one artificial batch of the maximum size, to try whether it fits in memory.

        Its tokens all have one id, which is not the padding's.
        """
        ids = np.full((min(self._rows, self.windows), self._context), non_padding_id(self._pad_id), np.int64)
        return [Batch(ids, ids, np.full(len(ids), -1), ids.size, ids.size)]

    def _epoch_order(self, epoch: int) -> tuple[int, NDArray[np.int64]]:
        if self._epoch is None or self._epoch[0] != epoch:
            offset = int(permutation(self._offsets, self._seed, RandomPurpose.TEXT_WINDOW_OFFSET, epoch)[0])
            self._epoch = epoch, offset, permutation(self.windows, self._seed, RandomPurpose.TEXT_WINDOW_ORDER, epoch)
        return self._epoch[1:]


def cut_windows(stream: Ids, starts: NDArray[np.int64], context: int) -> Batch:
    """Return a batch of windows of `context` tokens from a stream (N,), one from each of the positions `starts` (B,).

    Source and target are (B, `context`); the target of each token is the next token of the stream.
    """
    windows = stream[starts[:, None] + np.arange(context + 1)].astype(np.int64)  # (B, T + 1)
    size = len(starts) * context
    return Batch(windows[:, :-1], windows[:, 1:], starts, size, size)


def consecutive_batches(stream: Ids, *, context: int, rows: int) -> list[Batch]:
    """Return a list of batches of consecutive windows of a text, for validation, with `rows` windows each.

    Tokens at the end that do not fill a window are left out. If the whole text is shorter than a window, it becomes a
    single, shorter window.

    Raises:
        TransduceError: the text has fewer than two tokens.
    """
    if len(stream) < 2:
        raise TransduceError("A validation text needs at least two tokens: add more text.")
    context = min(context, len(stream) - 1)
    starts = np.arange((len(stream) - 1) // context) * context
    return [cut_windows(stream, starts[first : first + rows], context) for first in range(0, len(starts), rows)]
