"""What is kept of a step that could not be learnt from: the batch, its text, and where the first bad number arose."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from transduce.durable import write_file
from transduce.model.layer_graph import only_observes
from transduce.training.loss import Loss
from transduce.training.packed_loss import nothing_recorded

FOLDER = "faults"
_MOST_FILES = 50  # of a run; later faults are told only
_MOST_PARAMETERS = 10


class MicroBatch(NamedTuple):
    """A micro-batch of a step, and what came of it."""

    position: int
    """Micro-batches of the run before it."""
    batch: Any
    loss: float
    """Per target token, in nats."""


class Origin(msgspec.Struct, frozen=True):
    """Where the first number that is not finite arose, when the batch was computed once more."""

    module: str | None = None
    """The first module with such an output, by its name in the model."""
    parameters: list[str] = []
    """The first parameters with such a gradient."""


class SkippedStep(NamedTuple):
    """A step that changed nothing."""

    step: int
    parts: Sequence[MicroBatch]
    """Of this process."""
    loss: float
    """Of all micro-batches of all processes, per target token."""
    limit: float
    """The highest loss that would have been learnt from."""
    gradient_norm: float
    learning_rate: float

    @property
    def at_fault(self) -> Sequence[MicroBatch]:
        """The micro-batches whose loss is the reason, as far as it is one."""
        if self.is_high:
            return [part for part in self.parts if part.loss > self.limit]
        return [part for part in self.parts if not math.isfinite(part.loss)]

    @property
    def suspects(self) -> Sequence[MicroBatch]:
        """These; all of them where only the gradient tells that something is wrong."""
        return self.at_fault or self.parts

    @property
    def is_high(self) -> bool:
        """Whether a finite loss above the limit is the reason."""
        return math.isfinite(self.loss) and self.loss > self.limit

    @property
    def reason(self) -> str:
        """For people."""
        if self.is_high:
            return f"its loss of {self.loss:.4g} nats per token is above {self.limit:.4g}, far from all before it"
        if not math.isfinite(self.loss):
            return f"its loss is {self.loss:g}"
        return f"the norm of its gradient is {self.gradient_norm:g}"

    def write(self, folder: Path, describe: Callable[[Any], dict[str, Any]] | None, origin: Origin) -> Path | None:
        """Writes all of it into the run's folder; None where there are enough such files, or no room."""
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
    """JSON has no NaN and no infinity."""
    return number if math.isfinite(number) else f"{number:g}"


def find_origin(model: nn.Module, compute: Callable[[], Loss]) -> Origin:
    """Computes a micro-batch once more, looking at every module's output and at every parameter's gradient.

    Args:
        model: to whose gradients this adds.
        compute: the loss, with the same random numbers as before.
    """
    outputs: list[str] = []  # those of modules inside others come first
    gradients: list[str] = []
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                hook = only_observes(_watch_output(name, outputs))
                hooks.callback(module.register_forward_hook(hook).remove)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hooks.callback(parameter.register_hook(_watch_gradient(name, gradients)).remove)
        # Compiled layers and recorded steps have no place for hooks.
        with torch.compiler.set_stance("force_eager"), nothing_recorded():
            compute().total.backward()
    bad = [name for name, _ in model.named_parameters() if name in gradients]
    return Origin(next(iter(outputs), None), bad[:_MOST_PARAMETERS])


def _watch_output(name: str, found: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def look(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001
        if isinstance(output, Tensor) and not bool(output.isfinite().all()):
            found.append(name)

    return look


def _watch_gradient(name: str, found: list[str]) -> Callable[[Tensor], None]:
    def look(gradient: Tensor) -> None:
        if not bool(gradient.isfinite().all()):
            found.append(name)

    return look
