"""The training loop: batches in, a sequence of steps, and at times a report, a validation, a checkpoint.

It knows neither text nor translation: the loss of a batch and the validation are functions that it is handed.
"""

import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.training.checkpoint import Checkpoint, RunState, load_newest, save_checkpoint
from transduce.training.events import EventLog, ProgressDisplay, TrainEvent, ValidationEvent
from transduce.training.interruption import Interruption
from transduce.training.loss import Loss
from transduce.training.optimizer import FlatOptimizer
from transduce.training.schedule import learning_rate
from transduce.training.settings import ResolvedTraining

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_RATE_STEPS = 10  # at least so many, and so much of the time, before minutes become steps
_RATE_SHARE = 0.05
_VALIDATION_SHARE = 0.08  # of the minutes, kept for validations
_VALIDATIONS = 12  # of a run, where the user says nothing,
_FEWEST_STEPS = 50  # but not after fewer steps than this


class Batches(Protocol):
    """Micro-batches by position; a pure function of the corpus and the seed."""

    def __len__(self) -> int:
        """Micro-batches of an epoch."""

    def batch(self, epoch: int, position: int) -> Any:
        """One of them."""


class Validator(Protocol):
    """Measures a model on the dev set."""

    def __call__(self, weights: Mapping[str, Tensor], step: int) -> ValidationEvent:
        """The dev set under these weights."""


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    step: int
    steps: int | None
    best_step: int | None
    best_value: float | None
    elapsed_seconds: float
    reason: str
    """"finished", "no improvement", or the signal that stopped it."""


class Trainer:
    """One run: model, optimiser, position, and what is best so far."""

    def __init__(
        self,
        *,
        model: nn.Module,
        loss: Callable[[Any], Loss],
        batches: Batches,
        settings: ResolvedTraining,
        folder: Path,
        validate: Validator | None = None,
        keep_model: Callable[[Mapping[str, Tensor], ValidationEvent | None], None] | None = None,
        display: ProgressDisplay | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.batches = batches
        self.settings = settings
        self.folder = folder
        self.validate = validate
        self.keep_model = keep_model
        self.display = display or ProgressDisplay()
        self.optimizer = FlatOptimizer(model, settings, _DTYPES[settings.precision])
        self.steps = settings.steps
        self.step = 0
        self.elapsed_seconds = 0.0
        self.best_step: int | None = None
        self.best_value: float | None = None
        self.validations_without_better = 0
        self._report = _Report()

    def resume(self) -> bool:
        """Takes up the newest sound checkpoint; False where there is none."""
        checkpoint, refused = load_newest(self.folder / "checkpoints")
        for sentence in refused:
            self.display.say(sentence)
        if checkpoint is None:
            return False
        state = checkpoint.state
        self.optimizer.load_state(checkpoint.tensors, state.updates)
        self.step, self.elapsed_seconds = state.step, state.elapsed_seconds
        self.steps = self.settings.steps or state.steps
        self.best_step, self.best_value = state.best_step, state.best_value
        self.validations_without_better = state.validations_without_better
        return True

    def run(self) -> TrainResult:
        """Trains until the last step, until nothing improves, or until a signal comes; then saves."""
        log = EventLog(self.folder, resume_at=self.step)
        self.model.train()
        self.display.start(self.step, self.steps)
        try:
            with Interruption() as interruption:
                reason = self._run_steps(log, interruption)
                self._save()
        finally:
            self.display.stop()
            log.close()
        return TrainResult(
            step=self.step,
            steps=self.steps,
            best_step=self.best_step,
            best_value=self.best_value,
            elapsed_seconds=self.elapsed_seconds,
            reason=reason,
        )

    def _run_steps(self, log: EventLog, interruption: Interruption) -> str:
        started_at = time.monotonic() - self.elapsed_seconds
        while self.steps is None or self.step < self.steps:
            if not self._take_step(interruption):
                break
            self.elapsed_seconds = time.monotonic() - started_at
            self._decide_steps()
            self.display.advance(self.step, self.steps, self._report.text())
            last = self.step == self.steps
            if self.step % self.settings.report_every == 0 or last:
                self._write_report(log)
            if self._is_due(self.settings.validate_every, last) and not self._validate(log):
                return "no improvement"
            self.elapsed_seconds = time.monotonic() - started_at
            if self._is_due(self.settings.save_every, last):
                self._save()
            if interruption.requested:
                break
        return _signal_name(interruption.requested) if interruption.requested else "finished"

    def _take_step(self, interruption: Interruption) -> bool:
        """One update, or False where a signal came before it was complete."""
        started_at = time.monotonic()
        step, tokens, total, likelihood = self.step + 1, 0, 0.0, 0.0
        for number in range(self.settings.accumulate):
            if interruption.requested:
                return False
            loss = self._accumulate_gradient(number)
            tokens += loss.tokens
            total += float(loss.total.detach())
            likelihood += float(loss.negative_log_likelihood)
        rate = self._learning_rate(step)
        norm = self.optimizer.step(tokens, rate)
        self.step = step
        self._report.add(tokens, total, likelihood, norm, rate, time.monotonic() - started_at)
        return True

    def _accumulate_gradient(self, number: int) -> Loss:
        """Adds the gradient of one micro-batch of the present step."""
        position = self.step * self.settings.accumulate + number
        batch = self.batches.batch(*divmod(position, len(self.batches)))
        torch.manual_seed(_seed(self.settings.seed, position))
        loss = self.loss(batch)
        loss.total.backward()
        self.optimizer.collect_gradient()
        return loss

    def _learning_rate(self, step: int) -> float:
        return learning_rate(
            step,
            schedule=self.settings.schedule,
            peak=self.settings.learning_rate,
            warmup_steps=self.settings.warmup_steps,
            steps=self.steps,
        )

    def _decide_steps(self) -> None:
        """Turns minutes into steps, once, when the rate is known. The number is saved with the run."""
        minutes = self.settings.minutes
        if self.steps is not None or minutes is None:
            return
        budget_seconds = minutes * 60.0 * (1.0 - (_VALIDATION_SHARE if self.validate else 0.0))
        if self.step >= _RATE_STEPS and self.elapsed_seconds >= _RATE_SHARE * budget_seconds:
            self.steps = max(self.step + 1, int(self.step * budget_seconds / self.elapsed_seconds))
            self.display.say(f"{minutes:g} minutes are {self.steps:,} steps at the present rate.")

    def _is_due(self, every: int | None, last: bool) -> bool:
        """Whether what happens every so many steps is due; None: twelve times a run, but at least 50 steps apart."""
        if every is None:
            if self.steps is None:
                return False
            every = max(_FEWEST_STEPS, math.ceil(self.steps / _VALIDATIONS))
        return last or self.step % every == 0

    def _write_report(self, log: EventLog) -> None:
        batches_done = self.step * self.settings.accumulate
        event = self._report.event(self.step, batches_done / len(self.batches), self.elapsed_seconds)
        self._report = _Report()
        log.write(event)
        left = None if self.steps is None else (self.steps - self.step) * self.elapsed_seconds / self.step
        self.display.report(event, self.steps, left)
        if event.skipped == self.settings.report_every:
            raise TransduceError(
                f"No gradient was finite over the last {event.skipped} steps (until step {self.step}): lower "
                f"`training.learning_rate` ({self.settings.learning_rate:g}) or raise `training.warmup_steps` "
                f"({self.settings.warmup_steps})."
            )

    def _validate(self, log: EventLog) -> bool:
        """Validates, keeps the model where it is the best; False where patience has run out."""
        weights = self.optimizer.kept_weights()
        if self.validate is None:
            if self.keep_model is not None:
                self.keep_model(weights, None)
            return True
        event = self.validate(weights, self.step)
        self.model.train()
        value = {"loss": -event.loss, "bleu": event.bleu, "chrf": event.chrf}[self.settings.best_by]
        best = self.best_value is None or (value is not None and value > self.best_value)
        log.write(event)
        self.display.validation(event, best=best)
        if best:
            self.best_step, self.best_value, self.validations_without_better = self.step, value, 0
            if self.keep_model is not None:
                self.keep_model(weights, event)
            return True
        self.validations_without_better += 1
        patience = self.settings.patience
        return not patience or self.validations_without_better < patience

    def _save(self) -> None:
        state = RunState(
            step=self.step,
            updates=self.optimizer.updates,
            steps=self.steps,
            best_step=self.best_step,
            best_value=self.best_value,
            validations_without_better=self.validations_without_better,
            elapsed_seconds=self.elapsed_seconds,
        )
        checkpoint = Checkpoint(state, self.optimizer.state())
        save_checkpoint(self.folder / "checkpoints", checkpoint, keep=self.settings.keep_checkpoints)


class _Report:
    """Sums over the steps since the last report."""

    def __init__(self) -> None:
        self.tokens = self.healthy_tokens = self.steps = self.skipped = 0
        self.total = self.likelihood = self.norms = self.seconds = self.rate = 0.0

    def add(self, tokens: int, total: float, likelihood: float, norm: float, rate: float, seconds: float) -> None:
        """A step. One that was skipped counts as time, and in no mean."""
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds
        self.rate = rate
        if not math.isfinite(norm):
            self.skipped += 1
            return
        self.healthy_tokens += tokens
        self.total += total
        self.likelihood += likelihood
        self.norms += norm

    def text(self) -> str:
        """Loss and rate so far, for the bar."""
        if not self.healthy_tokens:
            return ""
        return f"loss {self.total / self.healthy_tokens:.3f} · {self.tokens / self.seconds:,.0f} tokens/s"

    def event(self, step: int, epoch: float, elapsed_seconds: float) -> TrainEvent:
        """The means."""
        healthy = self.healthy_tokens or math.nan
        return TrainEvent(
            step=step,
            epoch=round(epoch, 4),
            loss=self.total / healthy,
            perplexity=math.exp(min(self.likelihood / healthy, 100.0)),
            learning_rate=self.rate,
            gradient_norm=self.norms / (self.steps - self.skipped or math.nan),
            tokens_per_second=self.tokens / self.seconds,
            elapsed_seconds=elapsed_seconds,
            skipped=self.skipped,
        )


def _seed(seed: int, position: int) -> int:
    """The generator's seed for one micro-batch, distinct for every (seed, position)."""
    return (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 1) % 2**63


def _signal_name(number: signal.Signals) -> str:
    return number.name
