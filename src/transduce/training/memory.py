"""Check the memory of training: refuse a model that cannot fit, try the largest batches, and explain what ran out."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from transduce.errors import TransduceError
from transduce.machine import Machine, available_memory, explain_out_of_memory, format_bytes
from transduce.model.build import build_any_model
from transduce.model.config import ModelConfig
from transduce.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transduce.training.loss import Loss
    from transduce.training.optimizer import Optimizer

# --- before a run ---

_LARGEST_MODEL = 1 << 50  # parameters; where a matrix is too large even to be described
# Larger Transformers are extrapolated from two layers, as building a layer takes milliseconds. In a recurrent model,
# the number of layers changes other weights too.
_COUNTED_LAYERS = 8


def refuse_too_large_model(
    config: ModelConfig,
    training: TrainingSettings,
    machine: Machine,
    *,
    knows_vocabulary: bool = True,
) -> None:
    """Refuse a model whose training needs more memory than is free, before any of it is built.

    The arguments, and the memory that is counted, are those of `least_memory`. Nothing is refused if the free memory is
    not known.

    Raises:
        TransduceError: the memory does not suffice.
    """
    parameters, needed = least_memory(config, training, machine, knows_vocabulary=knows_vocabulary)
    free = available_memory(machine.device)
    if free is not None and needed > free:
        raise TransduceError(
            f"Training a model of {parameters:,} parameters needs at least {format_bytes(needed)} of memory for the "
            f"weights, gradients and optimizer state, but only {format_bytes(free)} are free: lower `model.d_model`, "
            "`model.d_ff`, the numbers of layers or `tokenizer.vocabulary_size`, or choose a smaller `preset`."
        )


def least_memory(
    config: ModelConfig,
    training: TrainingSettings,
    machine: Machine,
    *,
    knows_vocabulary: bool = True,
) -> tuple[int, int]:
    """Return a pair: the number of a model's parameters, and the bytes that its training needs at least.

    The bytes are those of the weights, their gradients, the optimizer's running means and the moving average. With
    LoRA, only the weights count. With `training.sharded`, the bytes are those of one process. Batches need memory in
    addition (`try_batches`).

    Args:
        config: the model's configuration.
        training: the settings of training. A setting of None counts as the value that needs least memory.
        machine: the machine that trains.
        knows_vocabulary: False if the configuration has placeholders as vocabulary sizes; the embeddings are then not
            counted.
    """
    parameters, vectors = count_unbuilt(config, with_embeddings=knows_vocabulary), 1
    if not training.lora_rank:
        vectors = 4 if training.optimizer == "adam" else 3
        vectors += bool(training.average_decay)
    return parameters, 4 * parameters * vectors // (machine.processes if training.sharded else 1)


def count_unbuilt(config: ModelConfig, *, with_embeddings: bool = True) -> int:
    """Return the number of a model's parameters without allocating memory for them.

    The number is 0 if the model cannot be built on PyTorch's meta device, because of a component of the user's. It is
    2^50 or more if the sizes overflow.

    Args:
        config: the model's configuration.
        with_embeddings: False: matrices with one row per token of the vocabulary are not counted.
    """
    stacks = {
        name: layers
        for name in ("num_encoder_layers", "num_decoder_layers")
        if config.kind != "recurrent" and (layers := getattr(config, name)) > _COUNTED_LAYERS
    }
    few = msgspec.structs.replace(config, **dict.fromkeys(stacks, 2))
    count = _count_on_meta(few, with_embeddings)
    for name, layers in stacks.items():
        added = _count_on_meta(msgspec.structs.replace(few, **{name: 3}), with_embeddings) - count
        count += added * (layers - 2)
    return count


def _count_on_meta(config: ModelConfig, with_embeddings: bool) -> int:
    try:
        with torch.device("meta"):
            model = build_any_model(config)
    except (RuntimeError, OverflowError) as error:
        # A component of the user's that reads values cannot be built without any; its model is not counted.
        return _LARGEST_MODEL if isinstance(error, OverflowError) or "overflow" in str(error) else 0
    tables = (config.source_vocabulary_size, config.target_vocabulary_size)
    return sum(
        parameter.numel()
        for parameter in model.parameters()
        if with_embeddings or parameter.ndim != 2 or parameter.shape[0] not in tables
    )


# --- during a run ---


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
