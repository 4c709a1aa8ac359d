"""Handle interruptions of a run: signals that ask it to save and stop, exhausted memory, and a full disk."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from transduce.errors import TransduceError
from transduce.machine import explain_out_of_memory

if TYPE_CHECKING:
    from transduce.training.loss import Loss
    from transduce.training.optimizer import Optimizer


class AbandonedError(BaseException):
    """An exception that a signal raises during work that can be abandoned and repeated later, such as a validation."""


class Interruption:
    """A context in which Ctrl-C and SIGTERM only set `requested`; a second Ctrl-C ends the process without saving.

    If several processes train together, a second Ctrl-C changes nothing: `torchrun` forwards the first Ctrl-C, which
    the terminal has sent to each process already. Besides, a process that ended alone would leave the others waiting.
    Signals are handled only in the main thread.
    """

    def __init__(self, *, alone: bool = True) -> None:
        self.alone = alone
        self.requested: signal.Signals | None = None
        self._abandoning = False
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextlib.contextmanager
    def abandonable(self, *, by_itself: bool = False) -> Iterator[None]:
        """Return a context for work that leaves no trace until it is complete; a signal aborts this work at once.

        With several processes that all take part in the work, a signal does not abort it.

        Args:
            by_itself: this process does the work without the others and sends them the result.

        Raises:
            AbandonedError: a signal arrived before or during the work.
        """
        if not (self.alone or by_itself):
            yield
            return
        try:
            self._abandoning = True
            if self.requested is not None:
                raise AbandonedError
            yield
        finally:
            self._abandoning = False

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.requested is not None:
            if number == signal.SIGINT and self.alone:
                raise KeyboardInterrupt
            return
        self.requested = signal.Signals(number)
        if self._abandoning:
            self._abandoning = False  # raise only once, wherever the first exception is handled
            raise AbandonedError


@contextlib.contextmanager
def ignore_hangup() -> Iterator[None]:
    """Ignore the hang-up signal, which the system sends when the terminal closes, in the body of `with`.

    Nothing changes on systems without the signal, or outside of the main thread.
    """
    if not hasattr(signal, "SIGHUP") or threading.current_thread() is not threading.main_thread():
        yield  # Windows has no SIGHUP, and only the main thread may set handlers
        return
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, previous)


# --- exhausted memory, detected at the start of a run, and a full disk, which does not end a run ---


def try_batches(optimizer: "Optimizer", loss: Callable[[Any], "Loss"], batches: Sequence[Any]) -> None:
    """Compute and discard the gradients of the largest batches, so that a lack of memory shows before the start."""
    try:
        for batch in batches:
            optimizer.begin_batch(last=True)
            loss(batch).total.backward()
            optimizer.finish_batch()
    finally:
        optimizer.discard_gradient()


def explain_step_out_of_memory(
    what: str, batch_setting: str, batch_tokens: int, accumulate: int
) -> AbstractContextManager[None]:
    """Return a context manager that explains exhausted memory in a training step and names settings that reduce it.

    Args:
        what: the step, as the message names it.
        batch_setting: the dotted name of the setting of a step's size.
        batch_tokens: the size of a step.
        accumulate: the number of micro-batches of a step.
    """
    return explain_out_of_memory(
        f"Memory ran out with {what}: lower `{batch_setting}` ({batch_tokens}), or raise "
        f"`training.accumulate` ({accumulate}), which splits a step into that many micro-batches."
    )


def explain_model_out_of_memory() -> AbstractContextManager[None]:
    """Return a context manager that explains exhausted memory during the creation of a model and its optimizer."""
    return explain_out_of_memory(
        "Memory ran out for the model and its optimizer state: lower `model.d_model`, `model.d_ff`, "
        "the numbers of layers or `tokenizer.vocabulary_size`."
    )


@contextmanager
def tolerate_full_disk(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Pass a message to `say`, so that training goes on, if writing `what` fails in the body of `with`.

    Only errors of files are tolerated; others are raised.
    """
    try:
        yield
    except TransduceError as error:
        if not isinstance(error.__cause__, OSError | SafetensorError):
            raise
        say(f"{error} Training goes on.")
    except (OSError, SafetensorError) as error:
        say(f"{what} could not be written ({error}): free some space or repair the folder. Training goes on.")
