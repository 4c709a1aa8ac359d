"""Translate files of any size in portions, with worker processes, so that an interrupted translation can resume."""

import hashlib
import multiprocessing
import os
import queue
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import chain, zip_longest
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from transduce.atomic_io import exclusive_lock, file_sha256, link_target, name_path_in_errors, replace_file, write_file
from transduce.errors import IdleSettingWarning, TransduceError, UntrainedDirectionWarning, count_noun
from transduce.inference.batching import Documents
from transduce.inference.redecoding import redecode
from transduce.inference.translation import Translation
from transduce.inference.translator import Translator
from transduce.model_folder.read import MANIFEST
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary, Term
from transduce.text.text_settings import TextSettings

# --- progress reports ---


class ReportClock:
    """A clock that measures wall-clock time since its creation and decides when the next progress report is due."""

    def __init__(self, every_seconds: float = 10.0) -> None:
        self.every_seconds = every_seconds
        self._started_at = self._reported_at = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        """The seconds of wall-clock time since the clock was created."""
        return time.monotonic() - self._started_at

    def is_due(self) -> bool:
        """Return whether `every_seconds` have passed since the last report; if so, start the next interval."""
        now = time.monotonic()
        if now - self._reported_at < self.every_seconds:
            return False
        self._reported_at = now
        return True


# --- portions and shards ---


# Lines that are sorted by length together and written at once. The number does not depend on the number of workers, so
# that each sentence is always batched with the same others.
PORTION_LINES = 512
_LINES_OF_A_GPU = 16 * PORTION_LINES  # GPU batches are larger by the same factor


class LineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The search settings and constraints that apply to every line of a file."""

    search: SearchSettings
    """The search settings for every line."""
    prefix: str = ""
    """Text that every translation must start with; empty: none."""
    phrases: tuple[str, ...] = ()
    """Phrases that every translation must contain, in addition to those of each line; empty: none."""
    terms: tuple[Term, ...] = ()
    """Glossary terms with the translations that they should get; empty: none."""
    redecode: bool = False
    """True if translations with quality warnings are decoded again (re-decoding)."""
    text_settings: TextSettings = TextSettings()
    """Settings of how lines are translated: whether they are split into sentences, and what stays unchanged."""

    @property
    def glossary(self) -> Glossary | None:
        """The glossary of the job's terms, or None without terms; equal terms give the same cached object."""
        return _glossary(self.terms) if self.terms else None


class Portion(msgspec.Struct, frozen=True):
    """A group of lines of a file (or of a shard of it) that are translated together, with their required phrases."""

    indices: list[int]
    """Indices of the group's lines in the whole input, from 0."""
    lines: list[str]
    """The texts of the group's lines, without line ends."""
    phrases: list[list[str]]
    """For each line, a list of the phrases that its translation must contain, in addition to the job's phrases."""
    before: list[tuple[str, str]] = []
    """The preceding lines of the same document, which the model reads as context, each with its translation (empty
    until that is known, or if the model does not read translations).
    """


def portion_size(device: str) -> int:
    """Return how many lines of a file are translated and written at once: 8,192 on a GPU ("cuda…"), otherwise 512."""
    return _LINES_OF_A_GPU if device.startswith("cuda") else PORTION_LINES


def portions(
    lines: Iterable[str],
    *,
    shard: tuple[int, int] = (1, 1),
    phrases: Iterable[str] | None = None,
    size: int | None = None,
    context: int = 0,
) -> Iterator[Portion]:
    """Yield the lines of a shard of a file as `Portion`s: groups of lines that are translated and written together.

    Args:
        lines: all lines of the input.
        shard: the number of the shard, from 1, and the count N of shards: shard I has the lines I, I + N, I + 2 N, …,
            so that several machines can translate one file.
        phrases: for each line of the input, the phrases that its translation must contain, separated by tabs; None: no
            phrases.
        size: lines in a portion (the last may have fewer); None: PORTION_LINES.
        context: how many earlier lines of the same document the model reads as context.

    Raises:
        TransduceError: the numbers of input lines and of lines of phrases differ.
    """
    (number, count), size = shard, size or PORTION_LINES
    portion = Portion([], [], [])
    for index, (line, terms) in enumerate(_pairs(lines, phrases)):
        if index % count != number - 1:
            continue
        portion.indices.append(index)
        portion.lines.append(line)
        portion.phrases.append([term for term in terms.split("\t") if term.strip()])
        if len(portion.lines) == size:
            yield portion
            portion = Portion([], [], [], _last_lines(portion.before, portion.lines, context))
    if portion.lines:
        yield portion


def _last_lines(before: Sequence[tuple[str, str]], lines: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Return at most `count` last lines of the document that `lines` end with, as context for the model.

    Each line is in a pair with its translation. An empty line ends a document. `before` holds the pairs of the lines
    before `lines`. The pairs of `lines` themselves have an empty translation, because the translation is not known yet.
    """
    document = [*before, *((line, "") for line in lines)]
    starts = [number + 1 for number, (line, _) in enumerate(document) if not line.strip()]
    return document[max([*starts, len(document) - count]) :] if count else []


def _pairs(lines: Iterable[str], phrases: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    if phrases is None:
        yield from ((line, "") for line in lines)
        return
    for number, (line, terms) in enumerate(zip_longest(lines, phrases), 1):
        if line is None or terms is None:
            shorter = "input" if line is None else "file of phrases"
            raise TransduceError(
                f"Each line of the input needs a line of phrases, possibly empty, but the {shorter} ends before line "
                f"{number:,}: use files with the same number of lines."
            )
        yield line, terms


@lru_cache(maxsize=4)
def _glossary(terms: tuple[Term, ...]) -> Glossary:
    return Glossary(terms)


def translate_portion(translator: Translator, job: LineOptions, portion: Portion) -> str:
    """Translate a portion (group of lines) with the job's settings, and return the output text.

    The output has one line for each input line. If `n_best` is greater than 1, the output has a line for each
    alternative instead. Such a line holds the input line's index from 0, the text and its score, separated by " ||| ".
    """
    return _output_text(job, portion, _translate_lines(translator, job, portion))


def _translate_lines(translator: Translator, job: LineOptions, portion: Portion) -> list[Translation]:
    """Translate the lines of a portion with the job's settings, and return a list of a translation for each line."""
    has_phrases = bool(job.phrases) or any(portion.phrases)
    constraints: dict[str, Any] = {
        "prefix": job.prefix,
        "phrases": [[*job.phrases, *line_phrases] for line_phrases in portion.phrases] if has_phrases else None,
        "glossary": job.glossary,
        "text_settings": job.text_settings,
    }
    documents = Documents.of_lines(portion.lines, portion.before)
    translations = translator.translate(
        portion.lines, job.search, indices=portion.indices, documents=documents, **constraints
    )
    return redecode(translator, translations, job.search, **constraints) if job.redecode else translations


def _output_text(job: LineOptions, portion: Portion, translations: Sequence[Translation]) -> str:
    """Return the text that is written for the translations of a portion (group of lines)."""
    if job.search.n_best == 1:
        return "".join(f"{each.text}\n" for each in translations)
    return "".join(
        f"{index} ||| {each.text} ||| {each.score:.4f}\n"
        for index, translation in zip(portion.indices, translations, strict=True)
        for each in translation.alternatives
    )


def translate_portions(
    translator: Translator, job: LineOptions, portions: Iterable[Portion]
) -> Iterator[tuple[Portion, str]]:
    """Translate portions (groups of lines) in this process; yield each portion with its output text, in order.

    If the model reads translations as context, each portion gets the translations of the document's lines before it.
    """
    translations: list[str] = []
    for portion in portions:
        if translator.document_context is not None and translator.document_context.on_target and portion.before:
            known = translations[len(translations) - len(portion.before) :]
            before = [(line, known[number]) for number, (line, _) in enumerate(portion.before)]
            portion = msgspec.structs.replace(portion, before=before)
        translated = _translate_lines(translator, job, portion)
        yield portion, _output_text(job, portion, translated)
        translations = [each.text for each in translated]


def skip_lines(waiting: Iterable[Portion], done: int) -> tuple[list[str], Iterator[Portion]]:
    """Return a list of the first `done` lines, which an earlier run translated, and an iterator over the rest.

    The rest consists of portions (groups of lines). If `done` ends inside a portion, the first portion of the rest
    holds the other lines of that portion. If the input has fewer than `done` lines, the list holds all of them.
    """
    skipped: list[str] = []
    portions_left = iter(waiting)
    while len(skipped) < done:
        portion = next(portions_left, None)
        if portion is None:
            break
        count = done - len(skipped)
        skipped += portion.lines[:count]
        if count < len(portion.lines):
            # No document has as many sentences of context as a portion has lines.
            before = _last_lines(portion.before, portion.lines[:count], len(portion.lines))
            rest = Portion(portion.indices[count:], portion.lines[count:], portion.phrases[count:], before)
            return skipped, chain([rest], portions_left)
    return skipped, portions_left


# --- resumable output files ---
# Write a text file in portions so that writing can resume after a crash.
# The file grows under the name FILE.partial. FILE.progress records how many lines of the input are finished and the
# file's size in bytes at that point. It is replaced atomically after each portion is flushed to disk. Whatever
# stops the program, both files agree on where to resume. The finished file is renamed to FILE in the last step.


_FORMAT_VERSION = 1


class FileProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The progress of writing an output file, as stored in FILE.progress, from which an interrupted run resumes."""

    format_version: int = _FORMAT_VERSION
    lines: int = 0
    """Number of finished lines of the input."""
    size_bytes: int = 0
    """Size in bytes of the output file up to the end of the finished lines, where writing resumes."""
    input_sha256: str = ""
    """SHA-256 digest of the finished lines of the input, to check that a resumed run has the same input."""
    options_sha256: str = ""
    """SHA-256 digest of models and settings, to check that a resumed run would give the same output."""


class ResumableFile:
    """An output file that grows portion by portion as FILE.partial and gets its name at the end; writing can resume."""

    def __init__(self, path: Path, *, options: bytes, resume: bool) -> None:
        """Prepare to write a new file, or to resume an unfinished one; write nothing yet.

        FILE.progress shows that a file is unfinished, and records where to resume.

        Args:
            path: final path of the file.
            options: everything that determines the content (models and settings); only its SHA-256 is stored and
                compared.
            resume: resume an unfinished file; an existing finished file is then left as it is.

        Raises:
            TransduceError: there is an unfinished file and `resume` is False, or the file was started with other
                options, is shorter than recorded or has an unreadable record.
        """
        self.path = path = link_target(path)  # keeps a symbolic link and writes its target
        self.partial = path.with_name(f"{path.name}.partial")
        self.side = path.with_name(f"{path.name}.progress")
        self.options_sha256 = hashlib.sha256(options).hexdigest()
        self.digest = hashlib.sha256()
        self.line_end = "\n"
        """The end of each line that is written; it is also hashed after each input line in the digest of the input."""
        self.progress = FileProgress(options_sha256=self.options_sha256)
        # FILE.partial alone is of a run that was killed in its first portion; FILE is then of an earlier one.
        self.is_finished = resume and path.is_file() and not self.side.exists() and not self.partial.exists()
        if self.side.exists():
            self.progress = self._read(resume)
            if not self.partial.exists():
                self.is_finished = True
                self.side.unlink()
        self._lock, self._is_open = ExitStack(), False

    def __enter__(self) -> Self:
        """Return this output file; the end of the `with` block releases the file's lock."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock; after an error before the first finished line, delete the empty FILE.partial.

        If FILE exists, an earlier run wrote it, and FILE.partial is kept. Otherwise, resuming this run would take FILE
        for its finished output.
        """
        if kind is not None and self._is_open and self.progress.lines == 0 and not self.path.exists():
            self.partial.unlink(missing_ok=True)
        self._lock.close()

    def _read(self, resume: bool) -> FileProgress:
        try:
            progress = msgspec.json.decode(self.side.read_bytes(), type=FileProgress)
        except (OSError, msgspec.MsgspecError) as error:
            raise TransduceError(f"{self.side} cannot be read ({error}): delete it to start again.") from None
        if not resume:
            self._hold_lock().close()  # an unfinished file may be one that another process writes just now
            raise TransduceError(
                f"{self.partial} has {count_noun(progress.lines, 'line')} of an interrupted translation: pass --resume "
                f"to continue, or delete {self.side} to start again."
            )
        if progress.options_sha256 != self.options_sha256 or progress.format_version != _FORMAT_VERSION:
            raise TransduceError(
                f"{self.partial} was started with another model or other options: use the same, or delete {self.side} "
                "to start again."
            )
        if self.partial.is_file():
            is_complete = self.partial.stat().st_size >= progress.size_bytes
        else:  # the program stopped after the final rename
            is_complete = self.path.is_file() and self.path.stat().st_size == progress.size_bytes
        if not is_complete:
            raise TransduceError(f"{self.partial} is shorter than {self.side} says: delete the latter to start again.")
        return progress

    def skip(self, lines: list[str]) -> None:
        """Check that an earlier run translated `lines`, the first lines of the input; add them to the input's hash.

        Raises:
            TransduceError: there are fewer lines than the earlier run translated, or the lines differ.
        """
        self._add(lines)
        if len(lines) < self.progress.lines or self.digest.hexdigest() != self.progress.input_sha256:
            raise TransduceError(
                f"{self.partial} holds translations of {count_noun(self.progress.lines, 'line')}, but the input begins "
                f"with other lines: use the same input, or delete {self.side} to start again."
            )

    def open(self) -> None:
        """Create or open FILE.partial, lock it, and cut off what was written after the last recorded progress.

        Raises:
            TransduceError: another process writes the file, or has changed its progress since it was read.
        """
        self._lock = self._hold_lock()
        stored = self.side.read_bytes() if self.side.exists() else None
        if stored != (self._encoded() if self.progress.lines else None):  # another process made progress meanwhile
            raise self._locked_error()
        if self.progress.lines == 0:
            self.partial.touch()
        elif not self.partial.exists():
            raise self._locked_error()
        os.truncate(self.partial, self.progress.size_bytes)
        self._is_open = True

    def append(self, lines: list[str], text: str) -> None:
        """Append the output text of further input `lines` in UTF-8, flush it to disk, and record the progress."""
        content = text.replace("\n", self.line_end).encode("utf-8", "replace")
        with name_path_in_errors(self.partial), self.partial.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._add(lines)
        self.progress = msgspec.structs.replace(
            self.progress,
            lines=self.progress.lines + len(lines),
            size_bytes=self.progress.size_bytes + len(content),
            input_sha256=self.digest.hexdigest(),
        )
        write_file(self.side, self._encoded())

    def finish(self) -> None:
        """Rename FILE.partial to the final name, delete FILE.progress, and release the lock.

        Raises:
            TransduceError: the file's size differs from what was written.
        """
        if self.partial.stat().st_size != self.progress.size_bytes:
            raise self._locked_error()
        replace_file(self.partial, self.path)
        self.side.unlink(missing_ok=True)
        self._lock.close()

    def _hold_lock(self) -> ExitStack:
        """Acquire the lock of this file, and return a context that holds it until the context is closed.

        Raises:
            TransduceError: another process, or another instance, holds the lock.
        """
        lock = ExitStack()
        try:
            lock.enter_context(exclusive_lock(self.partial.with_name(f"{self.partial.name}.lock")))
        except BlockingIOError:
            raise self._locked_error() from None
        return lock

    def _encoded(self) -> bytes:
        return msgspec.json.encode(self.progress) + b"\n"

    def _locked_error(self) -> TransduceError:
        return TransduceError(
            f"Another process is writing {self.path}: wait until it has ended, or name another file with --output."
        )

    def _add(self, lines: list[str]) -> None:
        for line in lines:
            self.digest.update(f"{line}{self.line_end}".encode("utf-8", "replace"))


# --- worker processes ---
# Messages are JSON over pipes: portions of lines to the workers, and their translations back.


_WAITING_EACH = 2  # portions queued for each worker, so that no worker waits for the next one
_DONE, _FAILED = b"+", b"-"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The model and settings that a worker process loads, as sent to it by the main process."""

    folders: list[str]
    """Model folders; several form an ensemble."""
    job: LineOptions
    """The search settings and constraints that apply to every line."""
    loading: dict[str, Any] = {}
    """Keyword arguments of `open_translator` in each worker process, such as `device`, `threads` and `datastore`."""
    plugins: tuple[str, ...] = ()
    """Python files that register components of the models."""
    opened: tuple[str, ...] = ()
    """What `_states` returned when the pool was made: each worker must open the same models and datastore."""


class _Worker:
    """A worker process that translates portions (groups of lines), with the numbers of the portions still awaited."""

    def __init__(self, settings: WorkerSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        arguments = (child_end, msgspec.json.encode(settings))
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        child_end.close()
        self.numbers: deque[int] = deque()

    def send(self, number: int, portion: Portion) -> None:
        """Send a portion (group of lines) to the worker process.

        The portion's number is recorded until `receive` returns the portion.

        Args:
            number: a number that identifies the portion.
            portion: the portion.

        Raises:
            TransduceError: the process has ended; the message is the worker's error, if it sent one.
        """
        self.numbers.append(number)
        try:
            self.connection.send_bytes(msgspec.json.encode(portion))
        except (BrokenPipeError, ConnectionResetError):
            self.receive()  # raises the worker's error

    def receive(self) -> tuple[int, str]:
        """Wait for the worker process to answer the oldest portion of lines that it has not answered yet.

        Returns:
            The number that identifies the portion, as passed to `send`, and the portion's output text.

        Raises:
            TransduceError: the worker reports an error, or ended unexpectedly.
        """
        try:
            message = self.connection.recv_bytes()
        except (EOFError, ConnectionResetError):
            self.process.join()
            raise TransduceError(
                f"A worker process ended unexpectedly (exit code {self.process.exitcode}), perhaps for lack of memory: "
                "use fewer workers."
            ) from None
        if message[:1] == _FAILED:
            raise TransduceError(message[1:].decode())
        return self.numbers.popleft(), message[1:].decode("utf-8", "surrogatepass")


class WorkerProcesses:
    """A pool of worker processes that translate portions of lines, for a `with` block; its end stops them."""

    def __init__(self, settings: WorkerSettings, count: int) -> None:
        """Create a pool of at most `count` workers; each starts when it has work, and loads its own model."""
        self.count = count
        self.workers: list[_Worker] = []
        self._settings = msgspec.structs.replace(settings, opened=_states(settings))

    def __enter__(self) -> "WorkerProcesses":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.connection.close()  # an idle worker exits when its connection closes
            if kind is not None:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join()

    def translate(self, portions: Iterable[Portion]) -> Iterator[tuple[Portion, str]]:
        """Translate portions (groups of lines) in worker processes; yield each with its output text, in order.

        Raises:
            TransduceError: a worker raised the error, or ended unexpectedly.
        """
        pending: dict[int, Portion] = {}
        finished: dict[int, str] = {}
        next_number = 0
        for number, portion in enumerate(portions):
            pending[number] = portion
            self._idlest().send(number, portion)
            while len(pending) >= _WAITING_EACH * self.count:
                finished |= self._receive()
                while next_number in finished:
                    yield pending.pop(next_number), finished.pop(next_number)
                    next_number += 1
        while pending:
            while next_number not in finished:
                finished |= self._receive()
            yield pending.pop(next_number), finished.pop(next_number)
            next_number += 1

    def _idlest(self) -> _Worker:
        if len(self.workers) < self.count and all(worker.numbers for worker in self.workers):
            self.workers.append(_Worker(self._settings))
        return min(self.workers, key=lambda worker: len(worker.numbers))

    def _receive(self) -> dict[int, str]:
        """Wait until a worker has finished a portion of lines; return finished output texts by portion number."""
        busy = {worker.connection: worker for worker in self.workers if worker.numbers}
        # On Windows, connections have another class.
        return dict(busy[cast("Connection", ready)].receive() for ready in wait(list(busy)))


def _work(connection: Connection, settings_json: bytes) -> None:
    """Run a worker process: load the model, then translate each portion received, until the connection is closed.

    A `TransduceError` is sent back as a message, and ends the loop.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends the workers
    from transduce.inference.load import open_translator
    from transduce.model.build import load_plugin

    settings = msgspec.json.decode(settings_json, type=WorkerSettings)
    messages = receive_messages(connection)
    for category in (UntrainedDirectionWarning, IdleSettingWarning):
        warnings.simplefilter("ignore", category)  # the parent reports them once
    try:
        for path in settings.plugins:
            load_plugin(path)
        _check_states(settings)
        translator = open_translator(settings.folders, **settings.loading)
        _check_states(settings)  # it may have been replaced while it was read
        for message in messages:
            text = translate_portion(translator, settings.job, msgspec.json.decode(message, type=Portion))
            connection.send_bytes(_DONE + text.encode("utf-8", "surrogatepass"))
    except TransduceError as error:
        connection.send_bytes(_FAILED + str(error).encode("utf-8", "replace"))
    except (BrokenPipeError, ConnectionResetError):
        return


def _opened_paths(settings: WorkerSettings) -> list[Path]:
    return [Path(path) for path in (*settings.folders, settings.loading.get("datastore")) if path]


def _states(settings: WorkerSettings) -> tuple[str, ...]:
    """Return a fingerprint of each model folder and of the datastore, if there is one.

    A fingerprint is a text that changes when the folder or file is replaced.
    """
    return tuple(map(_state, _opened_paths(settings)))


def _state(path: Path) -> str:
    manifest = path / MANIFEST
    if manifest.is_file():
        return file_sha256(manifest)
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    found = [(each.name, each.stat()) for each in files if each.exists()]
    return repr([(name, one.st_ino, one.st_size, one.st_mtime_ns) for name, one in found])


def _check_states(settings: WorkerSettings) -> None:
    """Raise an error if a model or the datastore is not the one that the other workers opened.

    Raises:
        TransduceError: a model or the datastore was replaced after the pool of workers was made.
    """
    for path, before, now in zip(_opened_paths(settings), settings.opened, _states(settings), strict=True):
        if before != now:
            raise TransduceError(
                f"{path} was replaced after workers had started with it: start again, so that one model translates all "
                "lines."
            )


def receive_messages(connection: Connection) -> Iterator[bytes]:
    """Return an iterator over the messages that arrive at a connection; it ends when the other end is closed.

    A thread receives and queues messages as they arrive. Otherwise, both ends could block in a deadlock, each sending
    more than a pipe holds.
    """
    received: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def receive_all() -> None:
        try:
            while True:
                received.put(connection.recv_bytes())
        except (EOFError, OSError):
            received.put(None)

    threading.Thread(target=receive_all, daemon=True).start()
    return iter(received.get, None)
