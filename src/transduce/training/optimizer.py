"""The optimizer: a model's parameters as one flat vector, and the update that changes them.

The model computes with float32 or bfloat16 weights; master weights, moments and the moving average are float32. Since
everything lies in one vector, an update is a handful of operations, clipping needs one norm, and processes exchange
few tensors.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from transduce.model.matrices import layer_matrices
from transduce.training.frozen import FrozenWeights
from transduce.training.processes import Processes
from transduce.training.reduction import GradientReduction
from transduce.training.rows import Rows, Sliceable
from transduce.training.settings import ResolvedTraining
from transduce.training.statistics import KIND, RunningStatistics
from transduce.training.sums import collect_gradients, forget_gradients, norm_of
from transduce.training.update import FlatUpdate


class Optimizer(Protocol):
    """An interface of optimizers: it accumulates gradients of micro-batches and applies one update per step."""

    def begin_batch(self, *, last: bool) -> None:
        """Prepare for a micro-batch; during the last one of a step, gradients are summed over processes."""

    def collect_gradient(self) -> None:
        """Collect the gradient of the micro-batch whose backward pass has finished."""

    def step(self, tokens: int, rate: float, weight_decay: float = 0.0) -> float:
        """Update the weights and return the gradient's norm per token; nothing is updated if the norm is not finite."""

    def forget_gradient(self) -> None:
        """Discard the gradients of all micro-batches since the last step."""

    @property
    def updates(self) -> int:
        """The number of updates taken."""

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the master weights, moments and average that this process holds, by kind and name."""

    @property
    def rows(self) -> dict[str, Rows] | None:
        """The rows of the complete tensors that this process holds; None if it holds all."""

    def load_state(self, state: Mapping[str, Mapping[str, Sliceable]], updates: int) -> None:
        """Load the state of a checkpoint; of its complete tensors, only the needed rows are read."""

    def kept_weights(self) -> dict[str, Tensor]:
        """Return the complete weights to be written into a model folder."""


class FlatOptimizer:
    """An optimizer that turns a model's trainable parameters into views of one vector in the working precision.

    Gradients are *sums* over the target tokens of micro-batches; `step` divides them once by the tokens of the step.
    Every process holds the complete model.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: ResolvedTraining,
        dtype: torch.dtype,
        processes: Processes | None = None,
    ) -> None:
        self.settings = settings
        learning, matrices = learning_parameters(model, settings)
        parameters = list(learning.values())
        self.master = torch.cat([p.detach().float().flatten() for p in parameters])
        self.gradient = torch.zeros_like(self.master)
        self.working = self.master if dtype == torch.float32 else self.master.to(dtype)
        self._parameters = parameters
        self._frozen = FrozenWeights(model)
        if dtype != torch.float32:
            model.to(dtype)  # before views are made, since recurrent cells reallocate their weights here
        _make_views(parameters, self.working)
        collect_gradients(parameters, self.gradient)
        self._statistics, self._between_steps = RunningStatistics(model), True
        shapes = {name: parameter.shape for name, parameter in learning.items()}
        working = None if self.working is self.master else self.working
        self._update = FlatUpdate(
            self.master, self.gradient, shapes, settings, matrices, working=working, processes=processes
        )
        several = processes is not None and processes.count > 1
        self._reduction = GradientReduction(parameters, self.gradient) if several else None

    def begin_batch(self, *, last: bool) -> None:
        """Prepare for a micro-batch; during the last one of a step, gradients are summed over processes."""
        if self._between_steps:
            self._statistics.restore()
            self._between_steps = False
        if self._reduction is not None:
            self._reduction.begin(last=last)

    def collect_gradient(self) -> None:
        """Finish a micro-batch; after the last one of a step, wait for the sums over processes."""
        if self._reduction is not None:
            self._reduction.finish()

    def step(self, tokens: int, rate: float, weight_decay: float = 0.0) -> float:
        """Update the weights from the accumulated gradient.

        Args:
            tokens: target tokens of the whole step, over all micro-batches and processes.
            rate: the learning rate.
            weight_decay: matrices are multiplied by 1 - rate × weight_decay before the update.

        Returns:
            The norm of the gradient per token before clipping. If it is not finite, nothing was updated.
        """
        norm = norm_of(self.gradient) / tokens
        if math.isfinite(norm):
            self._update.update(norm, tokens, rate, weight_decay)
            self._statistics.accept()
        else:
            self.gradient.zero_()
        self._between_steps = True
        return norm

    def forget_gradient(self) -> None:
        """Discard the gradients since the last step, including that of an interrupted backward pass."""
        forget_gradients(self._parameters, self.gradient)
        self._between_steps = True

    def _show_masters(self) -> None:
        if self.working is not self.master:
            self.working.copy_(self.master)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return named views of master weights, moments, average and, if the model has any, running statistics."""
        return self._update.state() | ({KIND: self._statistics.accepted} if self._statistics.accepted else {})

    @property
    def rows(self) -> None:
        """None, as each process holds all rows."""
        return None

    @property
    def updates(self) -> int:
        """The number of updates taken."""
        return self._update.updates

    def load_state(self, state: Mapping[str, Mapping[str, Sliceable]], updates: int) -> None:
        """Load what `state` returned."""
        for kind, tensors in self._update.state().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[kind][name][:])
        self._statistics.load(state.get(KIND, {}))
        self._update.updates = updates
        self._show_masters()

    def kept_weights(self) -> dict[str, Tensor]:
        """Return the weights for a model folder: the average, or else the masters, with the newest statistics."""
        return self._frozen.complete(self._update.kept) | self._statistics.accepted


def learning_parameters(
    model: nn.Module, settings: ResolvedTraining
) -> tuple[dict[str, nn.Parameter], dict[str, tuple[int, ...]]]:
    """Return the trainable parameters by name, those of Muon last, and the matrix rows of Muon's parameters.

    Shared parameters are listed once.
    """
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    matrices = layer_matrices(model) if settings.optimizer == "muon" else {}
    taken = {name: matrices[name] for name in learning if name in matrices}
    return {name: learning[name] for name in sorted(learning, key=taken.__contains__)}, taken


def _make_views(parameters: Sequence[nn.Parameter], working: Tensor) -> None:
    for parameter, weights in zip(parameters, working.split([p.numel() for p in parameters]), strict=True):
        parameter.data = weights.view(parameter.shape)
