"""A training run of a tiny Transformer on random batches, with its console output, into which tests inject faults."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console
from torch import Tensor

from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training.display import ProgressDisplay
from transduce.training.loop import Safeguards, Trainer
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.settings import ResolvedTraining

Pair = tuple[Tensor, Tensor]
LENGTH = 5  # micro-batches of an epoch

PLAIN = ResolvedTraining(
    seed=1,
    steps=40,
    minutes=None,
    batch_tokens=32,
    accumulate=1,
    optimizer="adam",
    learning_rate=0.003,
    schedule="constant",
    warmup_steps=0,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-9,
    weight_decay=0.0,
    clip_norm=1.0,
    label_smoothing=0.0,
    precision="fp32",
    kernels="torch",
    cuda_graphs=False,
    average_decay=0.9,
    adapt_dropout=False,
    report_every=1,
    validate_every=1000,
    save_every=1000,
    best_by="loss",
    patience=0,
    translate_dev=0,
    keep_checkpoints=2,
)


class RandomBatches:
    """Batches of random pairs, as a pure function of epoch and position."""

    def __len__(self) -> int:
        return LENGTH

    def batch(self, epoch: int, position: int) -> Pair:
        generator = torch.Generator().manual_seed(1000 * epoch + position)
        return tuple(torch.randint(1, 13, (3, 4), generator=generator) for _ in range(2))  # type: ignore[return-value]


class TinyRun:
    """A training run with its model and output; `corrupt` may change the loss of the micro-batch at any position."""

    def __init__(
        self,
        folder: Path,
        *,
        corrupt: Callable[[int, Loss], Loss] = lambda _, loss: loss,
        options: dict[str, Any] | None = None,
        **changes: object,
    ) -> None:
        folder.mkdir(exist_ok=True)
        torch.manual_seed(7)
        self.folder = folder
        self.corrupt = corrupt
        self.settings = msgspec.structs.replace(PLAIN, **changes)
        self.model = Transformer(
            ModelConfig(
                source_vocabulary_size=13,
                target_vocabulary_size=13,
                num_encoder_layers=1,
                num_decoder_layers=1,
                d_model=8,
                d_ff=12,
                num_heads=2,
                dropout=0.1,
            )
        )
        self.output = io.StringIO()
        self.trainer = Trainer(
            model=self.model,
            loss=self.loss,
            batches=RandomBatches(),
            settings=self.settings,
            folder=folder,
            display=ProgressDisplay(Console(file=self.output, width=300)),
            safeguards=Safeguards(describe=describe),
            **(options or {}),
        )

    def loss(self, batch: Pair) -> Loss:
        source, target = batch
        inputs = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
        hidden = self.model.hidden(source, inputs)
        loss = projected_cross_entropy(hidden, self.model.output_weight, target, pad_id=0)
        return self.corrupt(self.position(), loss)

    def position(self) -> int:
        """Return the index, in the run, of the first micro-batch of the current step."""
        return self.trainer.step * self.settings.accumulate

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().float().flatten() for parameter in self.model.parameters()])


def describe(batch: Pair) -> dict[str, Any]:
    return {"source": batch[0].tolist(), "target": batch[1].tolist()}


@pytest.fixture(scope="session")
def tiny_run() -> type[TinyRun]:
    return TinyRun
