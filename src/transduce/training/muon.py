"""Muon: a matrix moves by the momentum of its gradient, made orthogonal (Jordan et al. 2024).

The gradient of a layer's matrix has a few large singular values; what the small ones tell is lost in a step along it,
and in Adam's, which scales each element by itself. With all singular values made nearly one, every direction that
the gradient knows counts alike.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.model.backend import Polynomials, TrainingKernels, training_kernels
from transduce.model.precision import DTYPES
from transduce.training.processes import Processes
from transduce.training.settings import ResolvedTraining

# Odd polynomials a x + b x³ + c x⁵, one after another, that take singular values of 0.01 to 1 to 0.73 to 1.27, and make
# smaller ones 78 times as large. Each is the best for what the one before leaves (Amsel et al. 2025, "The Polar
# Express").
_POLYNOMIALS: Polynomials = ((8.0195, -22.9987, 16.899), (3.6414, -2.7254, 0.5369), (2.6684, -1.9829, 0.4533))
_MANY_COLUMNS = 2  # times the rows: beyond, going by the Gram matrix is faster
_MARGIN = 1.01  # for rounding: beyond 1, the first polynomial grows fast
_LEAST_NORM, _LEAST_SCALE = 1e-30, 1e-6
# What an element of Adam's update usually is, so that both go by one learning rate (Liu et al. 2025, "Muon is Scalable
# for LLM Training", section 2.2).
_USUAL_UPDATE = 0.2

# Of matrices that are made orthogonal at a time, about: on a CPU some for each thread; on a GPU, which takes longer to
# be asked than to multiply, most of a model, whose room is small beside that of a step.
_MOST_ELEMENTS, _MOST_ELEMENTS_OF_THREAD, _MOST_ELEMENTS_OF_GPU = 1 << 22, 1 << 21, 1 << 26

# A weight's name and the rows of it that this process holds → the whole weight, a new one, and their first row in it.
Gather = Callable[[str, Tensor], tuple[Tensor, int]]


class Weight(NamedTuple):
    """A parameter in which matrices stand below one another."""

    held: torch.Size
    """What this process holds of it."""
    rows: tuple[int, ...]
    """Of each matrix."""


def orthogonalize(matrices: Tensor, scale: float = 1.0) -> Tensor:
    """Matrices (N, R, C) with the same singular vectors, and singular values near one, times a scale.

    The largest become 0.73 to 1.27, and with them all that are at least a hundredth of the fourth root of the sum of
    all values' fourth powers. Smaller ones grow 78 fold; zero stays zero. Computed in the precision of the matrices.
    """
    made = matrices.clone()
    _replace(list(made), scale, matrices.dtype)
    return made


def _replace(matrices: Sequence[Tensor], scale: float, dtype: torch.dtype) -> None:
    """The same of matrices (R, C), wherever they are, where they stand; computed in a dtype."""
    kernels, (rows, columns) = training_kernels(), matrices[0].shape
    by_gram_matrix = max(rows, columns) > _MANY_COLUMNS * min(rows, columns)
    if kernels is not None and matrices[0].dtype == dtype and kernels.suits_squares(matrices):
        done = kernels.make_orthogonal(matrices, _POLYNOMIALS, scale, by_gram_matrix=by_gram_matrix)
        matrices = [matrix for matrix, is_done in zip(matrices, done, strict=True) if not is_done]
    if matrices:
        x = torch.stack([matrix.mT for matrix in matrices] if rows > columns else list(matrices)).to(dtype)
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_LEAST_NORM)
        gram = x @ x.mT
        # Closer to the greatest singular value than ‖x‖ is, so fewer polynomials do. Zero alone is below the least.
        shrink = 1.0 / (_MARGIN * gram.norm(dim=(1, 2), keepdim=True).sqrt()).clamp(min=_LEAST_SCALE)
        make = _by_gram_matrix if by_gram_matrix else _one_by_one
        found = make(x * shrink, gram * shrink.square(), scale)
        torch._foreach_copy_(list(matrices), list((found.mT if rows > columns else found).unbind()))


def _one_by_one(x: Tensor, gram: Tensor, scale: float) -> Tensor:
    """All polynomials of matrices (N, R, C), given x xᵀ. Three take 6 C / R + 3 times R³ multiplications."""
    for number, (a, b, c) in enumerate(_POLYNOMIALS):
        if number:
            gram = x @ x.mT
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        own = scale if number == len(_POLYNOMIALS) - 1 else 1.0
        x = torch.baddbmm(x, factor, x, beta=own * a, alpha=own)
    return x


def _by_gram_matrix(x: Tensor, gram: Tensor, scale: float) -> Tensor:
    """The same, where rows are few: each polynomial is p(x xᵀ) x, and x xᵀ afterwards p(x xᵀ) x xᵀ p(x xᵀ), so that the
    matrices themselves are needed at the end alone. Three take 2 C / R + 9 times R³ multiplications, x xᵀ among them.
    All but the last product are symmetric, for they are of polynomials of one matrix.
    """
    values: list[Tensor] = []
    for number, (a, b, c) in enumerate(_POLYNOMIALS):
        if number:
            gram = values[-1] @ gram @ values[-1]
        value = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        value.diagonal(dim1=1, dim2=2).add_(a)
        values.append(value)
    factor = values[0]
    for value in values[1:]:
        factor = value @ factor
    return (factor @ x).mul_(scale)


class Muon:
    """The momentum of matrices that lie in a vector one after another, and the update by it."""

    def __init__(
        self,
        master: Tensor,
        gradient: Tensor,
        weights: Mapping[str, Weight],
        settings: ResolvedTraining,
        *,
        gather: Gather | None = None,
        processes: Processes | None = None,
    ) -> None:
        """Begins with no momentum.

        Args:
            master: float32, changed by each update: the rows that this process holds of the weights, in their order.
            gradient: as long.
            weights: by name.
            settings: of the run.
            gather: where processes hold some rows each: makes a whole weight of everybody's, and finds the own ones.
            processes: where each holds everything, they share the work out.
        """
        self.master, self.gradient = master, gradient
        self.momentum = torch.zeros_like(master)
        self._decay = settings.momentum
        self._dtype = DTYPES[settings.precision]
        self._weights, self._gather, self._processes = weights, gather, processes or Processes()
        most = _MOST_ELEMENTS if master.device.type == "cpu" else _MOST_ELEMENTS_OF_GPU
        if master.device.type == "cpu" and gather is None and self._processes.count == 1:  # or they had to agree
            most = max(most, _MOST_ELEMENTS_OF_THREAD * torch.get_num_threads())
        self._groups = _some_at_a_time(weights, self._processes.count, most)

    def step(self, rate: float) -> None:
        """One update by the gradient, with Nesterov's momentum."""
        self.momentum.lerp_(self.gradient, 1.0 - self._decay)
        move = self.gradient.lerp(self.momentum, self._decay)
        self._make_all_orthogonal(move)
        self.master.add_(move, alpha=-rate)

    def find_move(self, kernels: TrainingKernels, factor: float) -> Tensor:
        """What an update is to move the masters by, times the rate, in the dtype that the model computes in; and the
        momentum has moved. The gradient is multiplied by a factor first.
        """
        move = torch.empty_like(self.gradient, dtype=self._dtype)
        kernels.take_momentum(self.gradient, self.momentum, move, factor, self._decay)
        self._make_all_orthogonal(move)
        return move

    def _make_all_orthogonal(self, update: Tensor) -> None:
        """In place."""
        sizes = [sum(self._weights[name].held.numel() for name in names) for names in self._groups]
        works = []
        for number, (names, part) in enumerate(zip(self._groups, update.split(sizes), strict=True)):
            # Every process has the same update; one of them makes this part orthogonal, and gives it to the others.
            source = number % self._processes.count
            if source == self._processes.rank:
                self._update_group(names, part)
            works.append(self._processes.begin_to_give(part, source))
        for work in works:
            if work is not None:
                work.wait()

    def _update_group(self, names: Sequence[str], update: Tensor) -> None:
        """Of the weights that lie in this part of the update."""
        parts = update.split([self._weights[name].held.numel() for name in names])
        held = {name: part.view(self._weights[name].held) for name, part in zip(names, parts, strict=True)}
        if self._gather is None:
            self._make_orthogonal(held)
            return
        gathered = {name: self._gather(name, part) for name, part in held.items()}
        self._make_orthogonal({name: whole for name, (whole, _) in gathered.items()})
        for name, part in held.items():
            whole, start = gathered[name]
            part.copy_(whole[start : start + len(part)])

    def _make_orthogonal(self, weights: Mapping[str, Tensor]) -> None:
        """In place, and as large as an update should be. Matrices of one shape go together."""
        alike: dict[torch.Size, list[Tensor]] = {}
        for name, weight in weights.items():
            for matrix in weight.split(self._weights[name].rows):
                alike.setdefault(matrix.shape, []).append(matrix)
        for shape, matrices in alike.items():
            scale = _USUAL_UPDATE * math.sqrt(max(shape))
            _replace(matrices, scale, self._dtype)

    def vectors(self) -> dict[str, Tensor]:
        """What a checkpoint holds beside the weights."""
        return {"momentum": self.momentum}


def _some_at_a_time(weights: Mapping[str, Weight], processes: int, most: int) -> list[list[str]]:
    """Names in groups that are small beside the model, so that little is held twice, and the processes share them."""
    sizes = {name: sum(weight.rows) * weight.held[1] for name, weight in weights.items()}
    most = min(most, sum(sizes.values()) // processes)
    groups: list[list[str]] = []
    elements = most
    for name, size in sizes.items():
        if elements >= most:
            groups.append([])
            elements = 0
        groups[-1].append(name)
        elements += size
    return groups
