"""The program of a worker process that prepares a part of a corpus; `transduce.data.processes` starts it."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import msgspec

from transduce.data.parts import write_part
from transduce.data.processes import Task, WorkerMessage
from transduce.errors import TransduceError
from transduce.text import Tokenizer


def main() -> int:
    """Run the task read from standard input; exit silently if the parent process has closed standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C and ends this process
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    try:
        kind: type[Tokenizer] = getattr(import_module(task.tokenizer_module), task.tokenizer_class)
        write_part(task.request, kind.load(task.tokenizer), Path(task.folder), lambda read: _send(WorkerMessage(read)))
    except TransduceError as error:
        _send(WorkerMessage(mistake=str(error)))
    except BrokenPipeError:
        os._exit(1)  # a normal exit would flush standard output and fail again
    return 0


def _send(news: WorkerMessage) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(news) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
