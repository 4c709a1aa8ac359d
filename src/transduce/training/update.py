"""One update of all parameters that learn: clipping, weight decay, Adam or Muon, and the running average.

The parameters lie in one flat float32 vector: first those that Adam takes, then the matrices that Muon takes.
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
    """Masters, what the optimisers remember and, where one is kept, the average; and the gradient's vector."""

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
        """Begins with nothing remembered.

        Args:
            master: float32, changed by each update.
            gradient: as long.
            shapes: of the parameters by name, in their order in `master`: those of `matrices` last.
            settings: of the run.
            matrices: which of them Muon takes, and the rows of each matrix that stands in one.
            working: what the masters are rounded to after each update; None: nobody asks for it.
            gather: see `Muon`, where processes hold some rows each.
            processes: where each holds everything, and takes the same update.
        """
        self.master, self.gradient, self.settings, self.shapes = master, gradient, settings, shapes
        self.masters = self._named(master, shapes)
        self.average = master.clone() if settings.average_decay else None
        self._vectors = UpdatedVectors(master, gradient, self.average, working)
        self._names = [name for name in shapes if name not in matrices], [name for name in shapes if name in matrices]
        # By Adam, and by Muon, which takes nothing else than matrices.
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
        """One update by a gradient that is a sum over so many tokens, whose norm per token is `norm`.

        The gradient is zero afterwards.
        """
        clip = self.settings.clip_norm
        factor = (min(1.0, clip / (norm + 1e-6)) if clip else 1.0) / tokens
        updates = self.updates + 1
        # Of the average; at the start, where there is no past, over what there is.
        kept = min(self.settings.average_decay or 0.0, (1 + updates) / (10 + updates))
        kernels = training_kernels()
        if kernels is not None and kernels.suits_update(self._vectors):
            self._update_by(kernels, factor, (rate, 1.0 - rate * weight_decay), kept, updates)
            return
        _shrink([*self._decaying[0], *self._decaying[1]], 1.0 - rate * weight_decay)
        self.gradient *= factor
        self.adam.step(rate)
        if self.muon is not None:
            self.muon.step(rate)
        if self.average is not None:
            self.average.lerp_(self.master, 1.0 - kept)
        if self._vectors.working is not None:
            self._vectors.working.copy_(self.master)
        self.gradient.zero_()

    def _update_by(
        self, kernels: TrainingKernels, factor: float, rates: tuple[float, float], kept: float, updates: int
    ) -> None:
        """The same in one pass, but for what Muon does."""
        start, (rate, shrink) = self._start_of_muon, rates
        _shrink(self._decaying[0], shrink)
        if start:
            numbers = self.adam.numbers(factor, rate, updates)
            kernels.update_by_adam(self._part(slice(0, start)), self.adam.moments, numbers, kept)
        if self.muon is not None:
            move = self.muon.find_move(kernels, factor)
            kernels.follow_update(self._part(slice(start, None)), kept, move, rate, shrink)
        self.adam.updates = updates

    def _part(self, part: slice) -> UpdatedVectors:
        master, gradient, average, working = self._vectors
        cut = (None if vector is None else vector[part] for vector in (average, working))
        return UpdatedVectors(master[part], gradient[part], *cut)

    @property
    def updates(self) -> int:
        """Updates taken."""
        return self.adam.updates

    @updates.setter
    def updates(self, updates: int) -> None:
        self.adam.updates = updates

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Views of all that a checkpoint holds, by kind and parameter."""
        found = {"weights": self.masters}
        remembered = (self.adam.vectors(), {} if self.muon is None else self.muon.vectors())
        for vectors, names in zip(remembered, self._names, strict=True):
            found |= {kind: self._named(vector, names) for kind, vector in vectors.items()}
        if self.average is not None:
            found["average"] = self._named(self.average, self.shapes)
        return found

    @property
    def kept(self) -> dict[str, Tensor]:
        """What a model folder gets: the average, or the masters where there is none."""
        return self.masters if self.average is None else self._named(self.average, self.shapes)

    def _named(self, vector: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        shapes = {name: self.shapes[name] for name in names}
        parts = vector.split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _shrink(masters: list[Tensor], factor: float) -> None:
    """Weight decay."""
    if masters and factor != 1.0:
        torch._foreach_mul_(masters, factor)
