"""Detect spikes of the training loss, and dropout that does harm.

A step with a spike changes no weights and is recorded for the user. The record holds the batch, its text, and the first
module or gradient with a number that is not finite.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from transduce.atomic_io import write_json
from transduce.model.feed_forward import Dropout
from transduce.model.known_classes import only_observes
from transduce.training.loss import Loss, StepTotals
from transduce.training.prefetch import recording_disabled

# --- detection ---
# A loss jumps for one of two reasons. A single bad batch is skipped: its step changes nothing. If the weights have
# diverged, every batch has a high loss and skipping does not help: the run must train on and recover, or stop.
#
# * A step is skipped if the loss of a micro-batch is not finite.
# * A step is also skipped if its mean loss, over all micro-batches and processes, exceeds that of the last 128 steps by
#   more than six standard deviations (the limit of OLMo-core's optimizer that skips steps), by more than twice the
#   mean, and by more than 3 nats. The second limit is not lower because batches are grouped by length: once a model
#   has learned short sentences, the longest may have more than twice the mean (the limit of llm-foundry's
#   KillLossSpike) and must still be trained on.
# * At most 4 steps in a row are skipped for a high loss (KillLossSpike also waits for the fifth). The following losses
#   are taken as the new level, and the window is cleared.
# * A run has diverged when the mean of 64 steps is 1.5 times the lowest such mean before, and 2 nats above it; or when
#   20 steps in a row had no finite loss and gradient.
# * A step whose targets all have the weight 0 is skipped, too. A run stops if such a step is the 20th in a row that is
#   skipped: its data or its loss have no targets that count.
#
# The window contains only the finite losses of steps that changed the weights, so a NaN does not corrupt it. It is
# stored in each checkpoint, so that a resumed run decides like an uninterrupted one.


_WINDOW_STEPS = 128
_MIN_STEPS = 8  # with fewer losses in the window no step is skipped for a high loss
_DEVIATIONS = 6.0
_MIN_JUMP_NATS, _JUMP_MEANS = 3.0, 2.0
_MAX_SKIPPED_HIGH = 4
_LEVEL_STEPS = 64
_DIVERGED_NATS = 2.0
_DIVERGED_SHARE = 0.5
_MAX_SKIPPED = 20

NO_FINITE_LOSS = "No model was kept, as the dev loss was not finite at any validation: lower `training.learning_rate`."


class LossWindow(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The losses of a run's latest steps, means per target token in nats, which show spikes and divergence."""

    losses: list[float] = []
    """Losses of up to 128 last steps that changed the weights, newest last."""
    refused_in_a_row: int = 0
    """The number of steps that were skipped for a high loss since the last step that changed the weights."""
    skipped_in_a_row: int = 0
    """The number of steps that were skipped for any reason since the last step that changed the weights."""
    lowest_mean: float | None = None
    """The lowest mean of 64 consecutive losses in the run; None if there are fewer losses."""
    lowest_step: int = 0
    """The number of the last of the 64 steps whose mean loss is the lowest of the run."""

    def limit(self) -> float:
        """Return the highest loss of a step that is accepted: the window's mean plus a tolerance.

        The limit is infinite while the window has fewer than 8 losses, and after 4 steps in a row that were skipped for
        a high loss.
        """
        if len(self.losses) < _MIN_STEPS or self.refused_in_a_row >= _MAX_SKIPPED_HIGH:
            return math.inf
        mean = fmean(self.losses)
        deviation = math.sqrt(fmean((loss - mean) ** 2 for loss in self.losses))
        return mean + max(_DEVIATIONS * deviation, _JUMP_MEANS * mean, _MIN_JUMP_NATS)

    def record_accepted(self, step: int, loss: float) -> None:
        """Record the loss of a step that changed the weights, from which the limit of later losses follows."""
        if self.refused_in_a_row >= _MAX_SKIPPED_HIGH:
            self.losses = []
        self.refused_in_a_row = self.skipped_in_a_row = 0
        self.losses = [*self.losses[-_WINDOW_STEPS + 1 :], loss]
        level = self.level()
        if level is not None and (self.lowest_mean is None or level < self.lowest_mean):
            self.lowest_mean, self.lowest_step = level, step

    def skipped(self, *, high: bool) -> None:
        """Count a skipped step; `high` is True if its loss was too high, False for any other cause."""
        self.skipped_in_a_row += 1
        self.refused_in_a_row += high

    def level(self) -> float | None:
        """Return the mean of the last 64 accepted losses; None while there are fewer accepted losses."""
        return fmean(self.losses[-_LEVEL_STEPS:]) if len(self.losses) >= _LEVEL_STEPS else None

    @property
    def skips_too_many(self) -> bool:
        """True if so many steps in a row were skipped that the run should stop."""
        return self.skipped_in_a_row >= _MAX_SKIPPED

    def verdict(self, step: int) -> str | None:
        """Return why the run should stop because it diverged, as a clause for a message; None if it should continue."""
        if self.skips_too_many:
            return f"No gradient was finite over the last {self.skipped_in_a_row} steps (until step {step})"
        level, lowest = self.level(), self.lowest_mean
        if level is None or lowest is None or level <= lowest + max(_DIVERGED_NATS, _DIVERGED_SHARE * lowest):
            return None
        return (
            f"Training has diverged: the mean loss of the last {_LEVEL_STEPS} steps (until step {step}) is "
            f"{level:.2f} nats per token, and was {lowest:.2f} until step {self.lowest_step}"
        )


# --- records of skipped steps ---


FOLDER = "faults"
_MAX_FILES = 50  # per run; later skipped steps are only reported
_MAX_PARAMETERS = 10


class MicroBatch(NamedTuple):
    """A micro-batch of a training step, with its loss."""

    position: int
    """The index of the micro-batch in the whole run, from 0, which seeds its random numbers."""
    batch: Any
    loss: float
    """Mean loss per target token, in nats."""


class NonFiniteOrigin(msgspec.Struct, frozen=True):
    """The origin of a non-finite loss or gradient, found by computing the batch once more."""

    module: str | None = None
    """The name of the first module whose output was not finite; None: all outputs were finite."""
    parameters: list[str] = []
    """The names of the first parameters, in the order of the backward pass, whose gradient was not finite."""


class SkippedStep(NamedTuple):
    """A training step that changed no weights, because its loss or gradient gave no usable update.

    The loss was too high, the loss or the gradient was not finite, or no target counted in the loss.
    """

    step: int
    parts: Sequence[MicroBatch]
    """The micro-batches of the step that this process computed, with their losses."""
    loss: float
    """Mean loss per target token over all micro-batches of all processes, in nats."""
    limit: float
    """The highest mean loss per target token that would have been accepted, in nats."""
    gradient_norm: float
    learning_rate: float
    divisor: float = 1.0
    """The sum of the weights of the target tokens of all micro-batches of all processes."""

    @property
    def at_fault(self) -> Sequence[MicroBatch]:
        """This process's micro-batches whose loss was too high or not finite; empty if the cause was another.

        Another cause is a gradient that was not finite, or a micro-batch of another process.
        """
        if self.is_high:
            return [part for part in self.parts if part.loss > self.limit]
        return [part for part in self.parts if not math.isfinite(part.loss)]

    @property
    def suspects(self) -> Sequence[MicroBatch]:
        """The micro-batches to record: those of `at_fault` or, if there are none, all of this process."""
        return self.at_fault or self.parts

    @property
    def is_high(self) -> bool:
        """True if the step was skipped because its finite loss exceeds the limit."""
        return math.isfinite(self.loss) and self.loss > self.limit

    @property
    def is_empty(self) -> bool:
        """True if the step was skipped because no target token of its batches has a weight above 0."""
        return self.divisor == 0.0 and math.isfinite(self.loss)

    @property
    def reason(self) -> str:
        """The reason why the step was skipped, as a clause for a message."""
        if self.is_high:
            return f"its loss of {self.loss:.4g} nats per token is above the limit of {self.limit:.4g}"
        if not math.isfinite(self.loss):
            return f"its loss is {self.loss:g}"
        if self.is_empty:
            return "no target of its batches has a weight above 0 in the loss"
        return f"the norm of its gradient is {self.gradient_norm:g}"

    def write(
        self, folder: Path, describe: Callable[[Any], dict[str, Any]] | None, origin: NonFiniteOrigin
    ) -> Path | None:
        """Write a JSON record of the step into the run folder, and return the file's path.

        Nothing is written, and None returned, if the disk is full or 50 records exist already.
        """
        path = folder / FOLDER / f"step-{self.step:09d}.json"
        content = {
            "step": self.step,
            "reason": self.reason,
            "limit": _json_number(self.limit),
            "gradient_norm": _json_number(self.gradient_norm),
            "learning_rate": self.learning_rate,
            "first_module_not_finite": origin.module,
            "first_gradients_not_finite": origin.parameters,
            "micro_batches": [
                {"position": part.position, "loss": _json_number(part.loss)}
                | (describe(part.batch) if describe else {})
                for part in self.suspects
            ],
        }
        try:
            path.parent.mkdir(exist_ok=True)
            if len(list(path.parent.iterdir())) >= _MAX_FILES and not path.exists():
                return None
            write_json(path, content)
        except OSError:
            return None
        return path


def _json_number(number: float) -> float | str:
    """Return a number in a form that JSON can hold: NaN and infinities become text such as "nan"."""
    return number if math.isfinite(number) else f"{number:g}"


def find_origin(model: nn.Module, compute: Callable[[], Loss]) -> NonFiniteOrigin:
    """Compute a micro-batch once more, to find the first module and gradients with numbers that are not finite.

    The result is a `NonFiniteOrigin`: the names of the first module with such an output, and of the first 10 parameters
    with such a gradient in the order of the backward pass, so nearest to the fault first.

    Args:
        model: the model, to whose gradients this computation adds.
        compute: computes the loss of the micro-batch with the same random numbers as before.
    """
    outputs: list[str] = []  # inner modules come before those that contain them
    gradients: list[str] = []
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                hooks.callback(module.register_forward_hook(only_observes(_watch(name, outputs))).remove)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hooks.callback(parameter.register_hook(_watch(name, gradients)).remove)
        # Compiled layers and recorded steps do not run hooks.
        with torch.compiler.set_stance("force_eager"), recording_disabled():
            compute().total.backward()
    first = list(dict.fromkeys(gradients))[:_MAX_PARAMETERS]  # a gradient may be computed in several parts
    return NonFiniteOrigin(next(iter(outputs), None), first)


def _watch(name: str, names: list[str]) -> Callable[..., None]:
    """Return a hook that adds `name` to `names` if its last argument is a tensor with a number that is not finite.

    The last argument is the output of a module, or the gradient of a parameter.
    """

    def look(*arguments: Any) -> None:
        if isinstance(arguments[-1], Tensor) and not bool(arguments[-1].isfinite().all()):
            names.append(name)

    return look


# --- dropout that does harm ---
# A model normally predicts its training text better without dropout. If the opposite is true, the model has come to
# depend on the noise, as one model that sorts words did: its translations, made without dropout, get worse while the
# training loss falls. Dropout is then disabled (`training.adapt_dropout`).


# Ratio of losses on the same batches. A step on a text usually lowers the text's loss by a tenth or more.
_HARM = 1.05


class DropoutMonitor:
    """A monitor that disables all dropout modules of a model for the rest of a run if dropout does harm."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [module for module in model.modules() if isinstance(module, Dropout) and module.p > 0]
        self.is_off = False

    @property
    def is_active(self) -> bool:
        """True if the model has dropout that has not been disabled."""
        return bool(self._modules) and not self.is_off

    def disable(self) -> None:
        """Disable all dropout of the model for the rest of the run."""
        for module in self._modules:
            module.p = 0.0
        self.is_off = True

    @torch.no_grad()
    def negative_log_likelihood_without_dropout(self, losses: Iterable[Loss]) -> float:
        """Return the summed negative log-likelihood of batches, in nats, computed without dropout.

        Args:
            losses: the losses of the batches. The iterable must compute each loss only when it is requested, because
                dropout is disabled only during the iteration.
        """
        for module in self._modules:
            module.eval()
        try:
            with torch.compiler.set_stance("force_eager"):  # compiled code is specialized for one of the two modes
                return sum(float(loss.negative_log_likelihood) for loss in losses)
        finally:
            for module in self._modules:
                module.train()

    def judge(self, step: int, sums: StepTotals, without: float) -> str | None:
        """Disable dropout if it does harm, and return a message for the user; else return None.

        Dropout does harm if the loss is more than 5 % higher without dropout: the model has come to depend on the
        noise. A loss that is not finite disables nothing.

        Args:
            step: the number of the last step.
            sums: the totals of that step, with dropout.
            without: the summed negative log-likelihood of the same batches without dropout.
        """
        if not 0.0 < sums.negative_log_likelihood * _HARM < without < math.inf:
            return None
        self.disable()
        return (
            f"Dropout is off from step {step + 1:,} on: the batches of this step have a loss of "
            f"{sums.negative_log_likelihood / sums.divisor:.3f} with dropout and {without / sums.divisor:.3f} without, "
            "so the model has come to depend on the noise (`training.adapt_dropout`)."
        )
