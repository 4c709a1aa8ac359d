"""Handling of exhausted memory, detected at the start of a run, and of a full disk, which does not end a run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from transduce.errors import TransduceError

if TYPE_CHECKING:  # search uses this module too and must not import training
    from transduce.training.loss import Loss
    from transduce.training.optimizer import Optimizer


def try_batches(optimizer: "Optimizer", loss: Callable[[Any], "Loss"], batches: Sequence[Any]) -> None:
    """Compute and discard the gradients of batches, so that a lack of memory shows before the run starts."""
    try:
        for batch in batches:
            optimizer.begin_batch(last=True)
            loss(batch).total.backward()
            optimizer.collect_gradient()
    finally:
        optimizer.discard_gradient()


@contextmanager
def explain_out_of_memory(sentence: str) -> Iterator[None]:
    """Raise a `TransduceError` with the message `sentence` if the body of `with` runs out of memory.

    Raises:
        TransduceError: memory ran out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TransduceError(sentence) from error


def explain_step_out_of_memory(what: str, batch_tokens: int, accumulate: int) -> AbstractContextManager[None]:
    """Return a context that explains exhausted memory in a training step and names the settings that reduce it."""
    return explain_out_of_memory(
        f"Memory ran out with {what}: lower `training.batch_tokens` ({batch_tokens}), or raise "
        f"`training.accumulate` ({accumulate}), which splits a step into that many micro-batches."
    )


def explain_model_out_of_memory() -> AbstractContextManager[None]:
    """Return a context that explains exhausted memory while a model and its optimizer state are created."""
    return explain_out_of_memory(
        "Memory ran out for the model and its optimizer state: lower `model.d_model`, `model.d_ff`, "
        "the numbers of layers or `tokenizer.vocabulary_size`."
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out; PyTorch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "DefaultCPUAllocator" in str(error) or "could not create a memory object" in str(error)


@contextmanager
def tolerate_full_disk(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Pass a message to `say` instead of raising an error if a write in the body of `with` fails; `what` names it."""
    try:
        yield
    except TransduceError as error:
        if not isinstance(error.__cause__, OSError | SafetensorError):
            raise
        say(f"{error} Training goes on.")
    except (OSError, SafetensorError) as error:
        say(f"{what} could not be written ({error}): free some space or repair the folder. Training goes on.")
