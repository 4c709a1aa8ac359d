"""Translate with several worker processes, each with its own copy of the model and its share of the threads.

Messages are JSON over pipes: portions of lines to the workers, and their translations back.
"""

import multiprocessing
import queue
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import cast

import msgspec

from transduce.errors import TransduceError
from transduce.runtime.bulk import Job, Portion, translate_portion

_WAITING_EACH = 2  # portions queued for each worker, so that no worker waits for the next one
_DONE, _FAILED = b"+", b"-"


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The model and settings that a worker process loads."""

    folders: list[str]
    """Model folders, as for `load`."""
    job: Job
    """The search settings and constraints of the lines."""
    precision: str = "auto"
    device: str = "auto"
    threads: int = 1
    """Number of compute threads of each worker."""
    source_language: str | None = None
    """Source language, for models with language tags."""
    target_language: str | None = None
    """Target language, for models with language tags."""
    examples: str | None = None
    """Datastore file for kNN retrieval."""


class _Worker:
    """A worker process, with the numbers of the portions queued for it."""

    def __init__(self, recipe: Recipe) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        arguments = (child_end, msgspec.json.encode(recipe))
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        child_end.close()
        self.numbers: deque[int] = deque()

    def send(self, number: int, portion: Portion) -> None:
        """Send a portion to the worker."""
        self.numbers.append(number)
        try:
            self.connection.send_bytes(msgspec.json.encode(portion))
        except (BrokenPipeError, ConnectionResetError):
            self.receive()  # raises the worker's error

    def receive(self) -> tuple[int, str]:
        """Return the number and the output of the oldest queued portion."""
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


class Workers:
    """A context in which several worker processes translate portions."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        """Prepare up to `count` workers; each starts when there is work for it and loads its own model."""
        self.count = count
        self.workers: list[_Worker] = []
        self._recipe = recipe

    def __enter__(self) -> "Workers":
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
        """Yield each portion with its output text, in order.

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
            self.workers.append(_Worker(self._recipe))
        return min(self.workers, key=lambda worker: len(worker.numbers))

    def _receive(self) -> dict[int, str]:
        """Return the outputs that at least one worker has finished, by portion number."""
        busy = {worker.connection: worker for worker in self.workers if worker.numbers}
        # On Windows, connections have another class.
        return dict(busy[cast("Connection", ready)].receive() for ready in wait(list(busy)))


def _work(connection: Connection, recipe_json: bytes) -> None:
    """Run a worker process until the other end of its connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends the workers
    from transduce.runtime.opening import load

    recipe = msgspec.json.decode(recipe_json, type=Recipe)
    messages = incoming(connection)
    try:
        translator = load(
            recipe.folders,
            precision=recipe.precision,
            device=recipe.device,
            threads=recipe.threads,
            source_language=recipe.source_language,
            target_language=recipe.target_language,
            examples=recipe.examples,
        )
        for message in messages:
            text = translate_portion(translator, recipe.job, msgspec.json.decode(message, type=Portion))
            connection.send_bytes(_DONE + text.encode("utf-8", "surrogatepass"))
    except TransduceError as error:
        connection.send_bytes(_FAILED + str(error).encode("utf-8", "replace"))
    except (BrokenPipeError, ConnectionResetError):
        return


def incoming(connection: Connection) -> Iterator[bytes]:
    """Return an iterator over incoming messages that ends when the other end is closed.

    A thread receives messages at once. Otherwise, both ends could block while sending more than a pipe holds, in a
    deadlock.
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
