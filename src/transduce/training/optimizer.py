"""A model's parameters as one flat vector, and the step that changes them.

The model computes with float32 or bfloat16 weights; masters, momenta and the average are float32. As everything lies
in one vector, a step is a handful of operations, clipping takes one norm, and processes exchange few tensors.
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
    """What the training loop needs: gradients of micro-batches in, one update out."""

    def begin_batch(self, *, last: bool) -> None:
        """A micro-batch begins; in the last of a step the processes' gradients are added up."""

    def collect_gradient(self) -> None:
        """The micro-batch's backward pass is over."""

    def step(self, tokens: int, rate: float, weight_decay: float = 0.0) -> float:
        """One update; the gradient's norm per token, and nothing was updated where that is not finite."""

    def forget_gradient(self) -> None:
        """The micro-batches since the last step count for nothing."""

    @property
    def updates(self) -> int:
        """Updates taken."""

    def state(self) -> dict[str, dict[str, Tensor]]:
        """What this process holds of master weights, momenta and average, by kind and name."""

    @property
    def rows(self) -> dict[str, Rows] | None:
        """Which rows of the whole tensors that is; None: all."""

    def load_state(self, state: Mapping[str, Mapping[str, Sliceable]], updates: int) -> None:
        """Takes back what a checkpoint holds: whole tensors, of which it reads what it needs."""

    def kept_weights(self) -> dict[str, Tensor]:
        """The whole weights that a model folder gets."""


class FlatOptimizer:
    """Owns a model's parameters that learn: they become views into one vector of the working precision.

    Gradients are *sums* over the target tokens of micro-batches; `step` divides them once, by the tokens of the step.
    Every process holds the whole model; `begin_batch` says when their gradients are to be added up.
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
            model.to(dtype)  # before there are views: recurrent cells lay their weights out anew, away from them
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
        """A micro-batch begins; in the last of a step the processes' gradients are added up."""
        if self._between_steps:
            self._statistics.restore()
            self._between_steps = False
        if self._reduction is not None:
            self._reduction.begin(last=last)

    def collect_gradient(self) -> None:
        """The backward pass has added the micro-batch's gradient to the step's; in the last come other processes'."""
        if self._reduction is not None:
            self._reduction.finish()

    def step(self, tokens: int, rate: float, weight_decay: float = 0.0) -> float:
        """One update.

        Args:
            tokens: target tokens of the whole step, over all micro-batches and processes.
            rate: the learning rate.
            weight_decay: matrices are multiplied by 1 - rate × weight_decay before they move.

        Returns:
            The norm of the gradient per token before clipping. Where it is not finite nothing was updated.
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
        """The micro-batches since the last step count for nothing, also one whose backward pass was cut."""
        forget_gradients(self._parameters, self.gradient)
        self._between_steps = True

    def _show_masters(self) -> None:
        if self.working is not self.master:
            self.working.copy_(self.master)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Named views of master weights, momenta and average, and running statistics where the model has some."""
        return self._update.state() | ({KIND: self._statistics.accepted} if self._statistics.accepted else {})

    @property
    def rows(self) -> None:
        """All of them."""
        return None

    @property
    def updates(self) -> int:
        """Updates taken."""
        return self._update.updates

    def load_state(self, state: Mapping[str, Mapping[str, Sliceable]], updates: int) -> None:
        """Takes back what `state` returned."""
        for kind, tensors in self._update.state().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[kind][name][:])
        self._statistics.load(state.get(KIND, {}))
        self._update.updates = updates
        self._show_masters()

    def kept_weights(self) -> dict[str, Tensor]:
        """What a model folder gets: the average, or the masters where there is none; and the newest statistics."""
        return self._frozen.complete(self._update.kept) | self._statistics.accepted


def learning_parameters(
    model: nn.Module, settings: ResolvedTraining
) -> tuple[dict[str, nn.Parameter], dict[str, tuple[int, ...]]]:
    """The parameters that learn, by name, shared ones once; and of those that Muon takes, which stand last, the rows of
    their matrices.
    """
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    matrices = layer_matrices(model) if settings.optimizer == "muon" else {}
    taken = {name: matrices[name] for name in learning if name in matrices}
    return {name: learning[name] for name in sorted(learning, key=taken.__contains__)}, taken


def _make_views(parameters: Sequence[nn.Parameter], working: Tensor) -> None:
    for parameter, weights in zip(parameters, working.split([p.numel() for p in parameters]), strict=True):
        parameter.data = weights.view(parameter.shape)
