"""One update of all trainable parameters: clipping, weight decay, Adam or Muon, and the moving average.

The parameters lie in one flat float32 vector: first those of Adam, then the matrices of Muon.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from transduce.model.backend import TrainingKernels, UpdatedVectors, training_kernels
from transduce.training.adam import Adam
from transduce.training.muon import Gather, Muon, Weight
from transduce.training.processes import Processes
from transduce.training.settings import ResolvedTraining


class FlatUpdate:
    """The master weights, optimizer states and moving average of a run, and the update of all of them."""

    def __init__(
        self,
        master: Tensor,
        gradient: Tensor,
        shapes: Mapping[str, torch.Size],
        settings: ResolvedTraining,
        matrices: Mapping[str, tuple[int, ...]],
        *,
        working: Tensor | None = None,
        gather: Gather | None = None,
        processes: Processes | None = None,
    ) -> None:
        """Start with empty optimizer states.

        Args:
            master: float32 vector of weights, changed by each update.
            gradient: a vector of equal length.
            shapes: shapes of the parameters by name, in their order in `master`; those of `matrices` come last.
            settings: settings of the run.
            matrices: the parameters that Muon updates, with the rows of each matrix in them.
            working: receives a rounded copy of the masters after each update; None if no copy is needed.
            gather: collects complete weights if each process holds only some rows (see `Muon`).
            processes: the processes, if each of them holds everything and takes the same update.
        """
        self.master, self.gradient, self.settings, self.shapes = master, gradient, settings, shapes
        self.masters = self._named(master, shapes)
        self.average = master.clone() if settings.average_decay else None
        self._vectors = UpdatedVectors(master, gradient, self.average, working)
        self._names = [name for name in shapes if name not in matrices], [name for name in shapes if name in matrices]
        # Parameters of Adam and of Muon that decay; all of Muon's are matrices.
        self._decaying = [[self.masters[name] for name in names if len(shapes[name]) > 1] for names in self._names]
        self._start_of_muon = start = sum(shapes[name].numel() for name in self._names[0])
        self.adam = Adam(master[:start], gradient[:start], settings)
        weights = {name: Weight(shapes[name], matrices[name]) for name in self._names[1]}
        self.muon = (
            Muon(master[start:], gradient[start:], weights, settings, gather=gather, processes=processes)
            if weights
            else None
        )

    def update(self, norm: float, tokens: int, rate: float, weight_decay: float) -> None:
        """Update all parameters from a gradient summed over `tokens` tokens, whose norm per token is `norm`.

        The gradient is zero afterwards.
        """
        clip = self.settings.clip_norm
        factor = (min(1.0, clip / (norm + 1e-6)) if clip else 1.0) / tokens
        updates = self.updates + 1
        # Decay of the average; smaller at the start, so that the average covers only the steps taken so far.
        decay = min(self.settings.average_decay or 0.0, (1 + updates) / (10 + updates))
        kernels = training_kernels()
        if kernels is not None and kernels.suits_update(self._vectors):
            self._update_by(kernels, factor, (rate, 1.0 - rate * weight_decay), decay, updates)
            return
        _shrink([*self._decaying[0], *self._decaying[1]], 1.0 - rate * weight_decay)
        self.gradient *= factor
        self.adam.step(rate)
        if self.muon is not None:
            self.muon.step(rate)
        if self.average is not None:
            self.average.lerp_(self.master, 1.0 - decay)
        if self._vectors.working is not None:
            self._vectors.working.copy_(self.master)
        self.gradient.zero_()

    def _update_by(
        self, kernels: TrainingKernels, factor: float, rates: tuple[float, float], decay: float, updates: int
    ) -> None:
        """Update all parameters with fused kernels in one pass, except for Muon's orthogonalization."""
        start, (rate, shrink) = self._start_of_muon, rates
        _shrink(self._decaying[0], shrink)
        if start:
            numbers = self.adam.numbers(factor, rate, updates)
            kernels.update_by_adam(self._part(slice(0, start)), self.adam.moments, numbers, decay)
        if self.muon is not None:
            move = self.muon.find_move(kernels, factor)
            kernels.follow_update(self._part(slice(start, None)), decay, move, rate, shrink)
        self.adam.updates = updates

    def _part(self, part: slice) -> UpdatedVectors:
        master, gradient, average, working = self._vectors
        cut = (None if vector is None else vector[part] for vector in (average, working))
        return UpdatedVectors(master[part], gradient[part], *cut)

    @property
    def updates(self) -> int:
        """The number of updates taken."""
        return self.adam.updates

    @updates.setter
    def updates(self, updates: int) -> None:
        self.adam.updates = updates

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return views of everything that a checkpoint stores, by kind and parameter name."""
        state = {"weights": self.masters}
        optimizer_states = (self.adam.vectors(), {} if self.muon is None else self.muon.vectors())
        for vectors, names in zip(optimizer_states, self._names, strict=True):
            state |= {kind: self._named(vector, names) for kind, vector in vectors.items()}
        if self.average is not None:
            state["average"] = self._named(self.average, self.shapes)
        return state

    @property
    def kept(self) -> dict[str, Tensor]:
        """The weights for a model folder: the average, or the masters if there is none."""
        return self.masters if self.average is None else self._named(self.average, self.shapes)

    def _named(self, vector: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        shapes = {name: self.shapes[name] for name in names}
        parts = vector.split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _shrink(masters: list[Tensor], factor: float) -> None:
    """Apply weight decay: multiply the masters by `factor`."""
    if masters and factor != 1.0:
        torch._foreach_mul_(masters, factor)
