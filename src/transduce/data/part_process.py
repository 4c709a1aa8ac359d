"""One of the processes that prepare a corpus together; `transduce.data.processes` starts it."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import msgspec

from transduce.data.parts import write_part
from transduce.data.processes import News, Task
from transduce.errors import TransduceError
from transduce.text import Tokenizer


def main() -> int:
    """Does the task on standard input; leaves quietly when nobody listens any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process ends it
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    try:
        kind: type[Tokenizer] = getattr(import_module(task.tokenizer_module), task.tokenizer_class)
        write_part(task.request, kind.load(task.tokenizer), Path(task.folder), lambda read: _tell(News(read)))
    except TransduceError as error:
        _tell(News(mistake=str(error)))
    except BrokenPipeError:
        os._exit(1)  # the interpreter's own end would write once more
    return 0


def _tell(news: News) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(news) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
