"""Common settings of training speed measurements, with the optimizer settings of `transduce train`."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from training_worker import Ids, Work

from transduce.data.batches import Batch
from transduce.model.config import ModelConfig
from transduce.training.settings import OptimizerName, ResolvedTraining

T = TypeVar("T")

RATE, STEP_TOKENS, LABEL_SMOOTHING = 1e-4, 4096, 0.1


def optimizer_settings(precision: str, optimizer: OptimizerName = "adam") -> ResolvedTraining:
    """Return default training settings for a precision and optimizer; only the optimizer's settings are used here."""
    return ResolvedTraining(
        seed=1,
        steps=1000,
        minutes=None,
        batch_tokens=STEP_TOKENS,
        accumulate=1,
        optimizer=optimizer,
        learning_rate=RATE,
        schedule="linear",
        warmup_steps=0,
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-9,
        weight_decay=0.0,
        clip_norm=1.0,
        label_smoothing=LABEL_SMOOTHING,
        precision="fp32" if precision == "fp32" else "bf16",
        kernels="torch",
        cuda_graphs=False,
        average_decay=0.99,
        adapt_dropout=False,
        report_every=50,
        validate_every=None,
        save_every=None,
        best_by="loss",
        patience=0,
        translate_dev=0,
        keep_checkpoints=1,
    )


class Present(Generic[T]):
    """A sequence of batches that exist already, in place of prefetching."""

    def __init__(self, batches: Sequence[T]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, epoch: int, position: int) -> T:  # noqa: ARG002
        """Return the batch at a position, the same in every epoch."""
        return self._batches[position]


def config_of(work: Work) -> ModelConfig:
    """Return the configuration of transduce's model for the measurement."""
    return ModelConfig(
        source_vocabulary_size=work.vocabulary_size,
        target_vocabulary_size=work.vocabulary_size,
        num_encoder_layers=work.num_layers,
        num_decoder_layers=work.num_layers,
        d_model=work.d_model,
        d_ff=work.d_ff,
        num_heads=work.num_heads,
        dropout=work.dropout,
        pad_id=work.pad_id,
        eos_id=work.eos_id,
    )


def batch_of(source: Ids, target: Ids, pad_id: int) -> Batch:
    """Return a `Batch` of padded ids."""
    return Batch(source, target, np.arange(len(source)), int((source != pad_id).sum()), int((target != pad_id).sum()))
