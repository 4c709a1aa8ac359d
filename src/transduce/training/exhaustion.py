"""Memory or room on the disk runs out: the first is found in the first seconds, the second does not end a run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from transduce.errors import TransduceError

if TYPE_CHECKING:  # search tells that memory ran out too, and loads nothing of training for it
    from transduce.training.loss import Loss
    from transduce.training.optimizer import Optimizer


def try_batches(optimizer: "Optimizer", loss: Callable[[Any], "Loss"], batches: Sequence[Any]) -> None:
    """Computes gradients of batches and forgets them. Nothing that decides a run's bits is touched."""
    try:
        for batch in batches:
            optimizer.begin_batch(last=True)
            loss(batch).total.backward()
            optimizer.collect_gradient()
    finally:
        optimizer.forget_gradient()


@contextmanager
def telling_exhaustion(sentence: str) -> Iterator[None]:
    """Turns running out of memory into a sentence.

    Raises:
        TransduceError: memory ran out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_exhaustion(error):
            raise
        raise TransduceError(sentence) from error


def explaining_exhaustion(what: str, batch_tokens: int, accumulate: int) -> AbstractContextManager[None]:
    """The same of a step, with the settings that make it smaller."""
    return telling_exhaustion(
        f"Memory ran out with {what}: lower `training.batch_tokens` ({batch_tokens}), or raise "
        f"`training.accumulate` ({accumulate}), which computes a step in so many parts."
    )


def explaining_a_large_model() -> AbstractContextManager[None]:
    """The same while a model and its optimizer's state are made."""
    return telling_exhaustion(
        "Memory ran out for the model and what training keeps of each weight: lower `model.d_model`, `model.d_ff`, "
        "the numbers of layers or `tokenizer.vocabulary_size`."
    )


def is_exhaustion(error: BaseException) -> bool:
    """Whether memory ran out: the processor's allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "DefaultCPUAllocator" in str(error) or "could not create a memory object" in str(error)


@contextmanager
def surviving_a_full_disk(say: Callable[[str], None], what: str) -> Iterator[None]:
    """What cannot be written now is told, and the run goes on: it may have room the next time."""
    try:
        yield
    except TransduceError as error:
        if not isinstance(error.__cause__, OSError | SafetensorError):
            raise
        say(f"{error} Training goes on.")
    except (OSError, SafetensorError) as error:
        say(f"{what} could not be written ({error}): make room or mend the folder. Training goes on.")
