"""Records of skipped steps: the batch, its text, and the first module or gradient with a non-finite number."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from transduce.durable import write_file
from transduce.model.known_classes import only_observes
from transduce.training.loss import Loss
from transduce.training.packed_loss import nothing_recorded

FOLDER = "faults"
_MOST_FILES = 50  # per run; later skipped steps are only reported
_MOST_PARAMETERS = 10


class MicroBatch(NamedTuple):
    """A micro-batch of a step, with its loss."""

    position: int
    """The number of micro-batches of the run before this one."""
    batch: Any
    loss: float
    """Mean loss per target token, in nats."""


class Origin(msgspec.Struct, frozen=True):
    """The first non-finite numbers found when a batch was computed once more."""

    module: str | None = None
    """The name of the first module whose output was not finite."""
    parameters: list[str] = []
    """The names of the first parameters whose gradient was not finite."""


class SkippedStep(NamedTuple):
    """A training step that changed no weights."""

    step: int
    parts: Sequence[MicroBatch]
    """The micro-batches of this process."""
    loss: float
    """Mean loss per target token over all micro-batches of all processes."""
    limit: float
    """The highest loss that would have been accepted."""
    gradient_norm: float
    learning_rate: float

    @property
    def at_fault(self) -> Sequence[MicroBatch]:
        """The micro-batches whose loss caused the skip; empty if only the gradient was not finite."""
        if self.is_high:
            return [part for part in self.parts if part.loss > self.limit]
        return [part for part in self.parts if not math.isfinite(part.loss)]

    @property
    def suspects(self) -> Sequence[MicroBatch]:
        """The micro-batches to record: those with a bad loss, or all if only the gradient was not finite."""
        return self.at_fault or self.parts

    @property
    def is_high(self) -> bool:
        """True if the step was skipped because its finite loss exceeds the limit."""
        return math.isfinite(self.loss) and self.loss > self.limit

    @property
    def reason(self) -> str:
        """Why the step was skipped, for a message."""
        if self.is_high:
            return f"its loss of {self.loss:.4g} nats per token is above the limit of {self.limit:.4g}"
        if not math.isfinite(self.loss):
            return f"its loss is {self.loss:g}"
        return f"the norm of its gradient is {self.gradient_norm:g}"

    def write(self, folder: Path, describe: Callable[[Any], dict[str, Any]] | None, origin: Origin) -> Path | None:
        """Write a record of the step into the run folder; None if there are too many records or the disk is full."""
        path = folder / FOLDER / f"step-{self.step:09d}.json"
        content = {
            "step": self.step,
            "reason": self.reason,
            "limit": _shown(self.limit),
            "gradient_norm": _shown(self.gradient_norm),
            "learning_rate": self.learning_rate,
            "first_module_not_finite": origin.module,
            "first_gradients_not_finite": origin.parameters,
            "micro_batches": [
                {"position": part.position, "loss": _shown(part.loss)} | (describe(part.batch) if describe else {})
                for part in self.suspects
            ],
        }
        try:
            path.parent.mkdir(exist_ok=True)
            if len(list(path.parent.iterdir())) >= _MOST_FILES and not path.exists():
                return None
            write_file(path, msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        except OSError:
            return None
        return path


def _shown(number: float) -> float | str:
    """Return a number in a form that JSON can hold, which has no NaN or infinity."""
    return number if math.isfinite(number) else f"{number:g}"


def find_origin(model: nn.Module, compute: Callable[[], Loss]) -> Origin:
    """Compute a micro-batch once more and find the first non-finite module output and parameter gradients.

    Args:
        model: the model, to whose gradients this computation adds.
        compute: computes the loss with the same random numbers as before.
    """
    outputs: list[str] = []  # inner modules come before those that contain them
    gradients: list[str] = []
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                hook = only_observes(_watch_output(name, outputs))
                hooks.callback(module.register_forward_hook(hook).remove)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hooks.callback(parameter.register_hook(_watch_gradient(name, gradients)).remove)
        # Compiled layers and recorded steps do not run hooks.
        with torch.compiler.set_stance("force_eager"), nothing_recorded():
            compute().total.backward()
    bad = [name for name, _ in model.named_parameters() if name in gradients]
    return Origin(next(iter(outputs), None), bad[:_MOST_PARAMETERS])


def _watch_output(name: str, names: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def look(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001
        if isinstance(output, Tensor) and not bool(output.isfinite().all()):
            names.append(name)

    return look


def _watch_gradient(name: str, names: list[str]) -> Callable[[Tensor], None]:
    def look(gradient: Tensor) -> None:
        if not bool(gradient.isfinite().all()):
            names.append(name)

    return look
