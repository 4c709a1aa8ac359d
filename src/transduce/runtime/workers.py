"""Several processes that translate side by side, each with the model and its share of the threads.

Messages are JSON over pipes: portions of lines one way, what is written for them the other.
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

_WAITING_EACH = 2  # portions that a worker has, so that it need not wait for the next one
_DONE, _FAILED = b"+", b"-"


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to know."""

    folders: list[str]
    job: Job
    precision: str = "auto"
    device: str = "auto"
    threads: int = 1
    source_language: str | None = None
    """As `load` takes them, for models with tags of languages."""
    target_language: str | None = None
    examples: str | None = None


class _Worker:
    """One process, and the numbers of the portions that it has."""

    def __init__(self, recipe: Recipe) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = (theirs, msgspec.json.encode(recipe))
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.numbers: deque[int] = deque()

    def send(self, number: int, portion: Portion) -> None:
        """Gives it a portion."""
        self.numbers.append(number)
        try:
            self.connection.send_bytes(msgspec.json.encode(portion))
        except (BrokenPipeError, ConnectionResetError):
            self.receive()  # raises what it failed for

    def receive(self) -> tuple[int, str]:
        """The oldest portion's number and what is written for it."""
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
    """A context in which portions are translated by several processes."""

    def __init__(self, recipe: Recipe, count: int) -> None:
        """At most so many, which start as there is work for them; each opens the model on its own."""
        self.count = count
        self.workers: list[_Worker] = []
        self._recipe = recipe

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.connection.close()  # a worker that waits for work ends by itself
            if kind is not None:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join()

    def translate(self, waiting: Iterable[Portion]) -> Iterator[tuple[Portion, str]]:
        """Each portion with what is written for it, in order.

        Raises:
            TransduceError: what a worker raised, or one has died.
        """
        given: dict[int, Portion] = {}
        finished: dict[int, str] = {}
        following = 0
        for number, portion in enumerate(waiting):
            given[number] = portion
            self._idlest().send(number, portion)
            while len(given) >= _WAITING_EACH * self.count:
                finished |= self._receive()
                while following in finished:
                    yield given.pop(following), finished.pop(following)
                    following += 1
        while given:
            while following not in finished:
                finished |= self._receive()
            yield given.pop(following), finished.pop(following)
            following += 1

    def _idlest(self) -> _Worker:
        if len(self.workers) < self.count and all(worker.numbers for worker in self.workers):
            self.workers.append(_Worker(self._recipe))
        return min(self.workers, key=lambda worker: len(worker.numbers))

    def _receive(self) -> dict[int, str]:
        """What at least one worker has finished."""
        busy = {worker.connection: worker for worker in self.workers if worker.numbers}
        # Windows has another class of connections.
        return dict(busy[cast("Connection", ready)].receive() for ready in wait(list(busy)))


def _work(connection: Connection, recipe_json: bytes) -> None:
    """A worker's life: until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent ends the others
    from transduce.runtime.opening import load

    recipe = msgspec.json.decode(recipe_json, type=Recipe)
    waiting = incoming(connection)
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
        for message in waiting:
            text = translate_portion(translator, recipe.job, msgspec.json.decode(message, type=Portion))
            connection.send_bytes(_DONE + text.encode("utf-8", "surrogatepass"))
    except TransduceError as error:
        connection.send_bytes(_FAILED + str(error).encode("utf-8", "replace"))
    except (BrokenPipeError, ConnectionResetError):
        return


def incoming(connection: Connection) -> Iterator[bytes]:
    """The messages that arrive, until the other end is closed.

    A thread takes them in at once. Otherwise both ends could be in the middle of sending more than a pipe holds, and
    each would wait for the other for ever.
    """
    arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def take() -> None:
        try:
            while True:
                arrived.put(connection.recv_bytes())
        except (EOFError, OSError):
            arrived.put(None)

    threading.Thread(target=take, daemon=True).start()
    return iter(arrived.get, None)
