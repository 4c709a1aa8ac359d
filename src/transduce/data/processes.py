"""Prepare the parts of a corpus in worker processes on this machine.

Each process is a fresh interpreter that runs `main`: it reads its task from standard input, and writes its
progress to standard output, one line per block. So the calling script needs no `__main__` guard, and nothing is
unpickled.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO

import msgspec

from transduce.data.parts import PartRequest, write_part
from transduce.errors import TransduceError
from transduce.process_environment import child_environment
from transduce.text import Tokenizer


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a worker process, sent as JSON: to prepare a part of a corpus and write it to a folder."""

    request: PartRequest
    tokenizer: str
    """The folder of the tokenizer's files, from which the worker process loads the tokenizer."""
    tokenizer_module: str
    tokenizer_class: str
    """The qualified name, in the module `tokenizer_module`, of the class that reads the tokenizer's files."""
    folder: str


class WorkerMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message from a worker process, a line of JSON: the number of pairs read so far, or an error for the user."""

    read: int = 0
    error: str | None = None


def write_parts(
    request: PartRequest,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    workers: int,
    report_progress: Callable[[int], None] | None = None,
) -> list[Path]:
    """Prepare one part of a corpus in each of `workers` processes, and return a list of the parts' folders.

    The folders are subfolders of `folder`, which must not exist. A single part is prepared in this process.
    ``report_progress`` is called after each block with the number of pairs that all workers have read.

    Raises:
        TransduceError: a file cannot be read, a process was killed, or `workers` is below 1.
    """
    if workers < 1:
        raise TransduceError(f"`workers` must be at least 1, but is {workers}.")
    folder.mkdir(parents=True)
    folders = [folder / str(worker) for worker in range(workers)]
    if workers == 1:
        write_part(request, tokenizer, folders[0], report_progress)
        return folders
    tokenizer.save(folder / "tokenizer")
    tasks = [
        Task(
            request=msgspec.structs.replace(request, worker=(worker + 1, workers)),
            tokenizer=str(folder / "tokenizer"),
            tokenizer_module=type(tokenizer).__module__,
            tokenizer_class=type(tokenizer).__qualname__,
            folder=str(part),
        )
        for worker, part in enumerate(folders)
    ]
    _WorkerGroup(report_progress).work(tasks)
    shutil.rmtree(folder / "tokenizer")
    return folders


class _WorkerGroup:
    """A group of running worker processes; the first error ends all of them."""

    def __init__(self, report_progress: Callable[[int], None] | None) -> None:
        self._report_progress = report_progress
        self._progress_lock = threading.Lock()
        self._read: dict[int, int] = {}
        self._errors: list[str] = []

    def work(self, tasks: list[Task]) -> None:
        """Run all tasks in worker processes, and wait for them.

        Raises:
            TransduceError: a worker process failed.
        """
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for task in tasks:
                processes.append(_start(task))  # noqa: PERF401 -- if one fails to start, `finally` must know those before it
            listeners = [
                threading.Thread(target=self._listen, args=(number, process, processes), daemon=True)
                for number, process in enumerate(processes)
            ]
            for listener in listeners:
                listener.start()
            for listener in listeners:
                listener.join()
        finally:
            for process in processes:
                process.kill()
                process.wait()
                _stream(process.stdout).close()
        if self._errors:
            raise TransduceError(self._errors[0])

    def _listen(self, number: int, process: subprocess.Popen[bytes], processes: list[subprocess.Popen[bytes]]) -> None:
        for line in _stream(process.stdout):
            message = msgspec.json.decode(line, type=WorkerMessage)
            if message.error is not None:
                self._errors.append(message.error)
                _kill(processes)
            with self._progress_lock:
                self._read[number] = message.read
                if self._report_progress is not None and message.error is None:
                    self._report_progress(sum(self._read.values()))
        if process.wait() != 0:
            self._errors.append(
                f"A process that prepared a part of the corpus ended with status {process.returncode}: if memory ran "
                "out, use fewer workers."
            )
            _kill(processes)


def _kill(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()


# `python -m` would warn that the package imports this module before it runs.
_PROGRAM = "from transduce.data.processes import main; main()"


def _start(task: Task) -> subprocess.Popen[bytes]:
    """Start a worker process that imports the package from this process's location; send its task and return it."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    stdin = _stream(process.stdin)
    stdin.write(msgspec.json.encode(task))
    stdin.close()
    return process


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


# --- the program of a worker process ---


def main() -> None:
    """Prepare the part of a corpus that the task on standard input describes.

    Progress, and errors for the user, are written to standard output. If the parent process has closed it, this
    process exits without a message.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C and ends this process
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    try:
        kind: type[Tokenizer] = getattr(import_module(task.tokenizer_module), task.tokenizer_class)
        write_part(task.request, kind.load(task.tokenizer), Path(task.folder), lambda read: _send(WorkerMessage(read)))
    except TransduceError as error:
        _send(WorkerMessage(error=str(error)))
    except BrokenPipeError:
        os._exit(1)  # a normal exit would flush standard output and fail again


def _send(message: WorkerMessage) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()
