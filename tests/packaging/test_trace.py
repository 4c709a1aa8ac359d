"""Test how many lines of the package a training step and a greedy translation execute without kernels."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search.greedy import greedy_search
from transduce.training.loss import projected_cross_entropy
from transduce.training.optimizer import FlatOptimizer
from transduce.training.settings import ResolvedTraining


class PlainScorer:
    """A scorer that runs the model's own `start` and `step`."""

    def __init__(self, model: Transformer, source_ids: Tensor) -> None:
        self.forbidden_tokens = model.config.forbidden_tokens
        self._model, self._state = model, model.start(source_ids)

    def step(self, tokens: Tensor) -> Tensor:
        return self._model.project(self._state.step(tokens))

    def reorder(self, parents: Tensor) -> None:
        self._state.reorder(parents)

    def keep_sentences(self, rows: Tensor) -> None:
        self._state.keep_sentences(rows)


PACKAGE = Path(__file__).resolve().parents[2] / "src" / "transduce"
MAX_FILES, MAX_LINES = 15, 1200


def lines_executed(run: Callable[[], object]) -> set[tuple[str, int]]:
    """Return the distinct lines of the package, as (file, number), that a call executes."""
    found: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return None
        if event == "line":
            found.add((str(Path(frame.f_code.co_filename).relative_to(PACKAGE)), frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return found


def test_a_training_step_and_a_translation_without_kernels_execute_few_lines() -> None:
    """Count the model's forward and backward passes, the loss, the optimizer's step, and a greedy search."""
    torch.manual_seed(1)
    config = ModelConfig(
        source_vocabulary_size=40, target_vocabulary_size=40, num_encoder_layers=2, num_decoder_layers=2, d_model=32,
        d_ff=64, num_heads=4, dropout=0.1,
    )  # fmt: skip
    settings = ResolvedTraining(
        seed=1, steps=10, minutes=None, batch_tokens=64, accumulate=1, optimizer="adam", learning_rate=0.01,
        schedule="linear", warmup_steps=0, beta1=0.9, beta2=0.98, epsilon=1e-9, weight_decay=0.0, clip_norm=1.0,
        label_smoothing=0.1, precision="fp32", kernels="torch", cuda_graphs=False, average_decay=0.9,
        adapt_dropout=False, report_every=5, validate_every=None, save_every=None, best_by="loss",
        patience=0, translate_dev=0, keep_checkpoints=1,
    )  # fmt: skip
    model = Transformer(config).train()
    optimizer = FlatOptimizer(model, settings, torch.float32)
    source, target = torch.randint(4, 40, (3, 7)), torch.randint(4, 40, (3, 6))

    def step() -> None:
        optimizer.begin_batch(last=True)
        hidden = model.hidden(source, target)
        loss = projected_cross_entropy(hidden, model.output_weight, target, pad_id=config.pad_id, label_smoothing=0.1)
        loss.total.backward()
        optimizer.finish_batch()
        optimizer.step(loss.tokens, 0.01)

    def translate() -> None:
        with torch.inference_mode():
            scorer = PlainScorer(model, source[:1])
            greedy_search(scorer, start_id=config.start_id, eos_id=config.eos_id, max_lengths=torch.tensor([8]))

    step()  # tables of positions are made once
    found = lines_executed(step)
    model.eval()
    found |= lines_executed(translate)
    files = sorted({name for name, _ in found})
    assert len(found) <= MAX_LINES, len(found)
    assert len(files) <= MAX_FILES, files
