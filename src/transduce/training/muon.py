"""Optimize by Muon: a matrix moves by the orthogonalized momentum of its gradient (Jordan et al. 2024).

The gradient of a layer's matrix has a few large singular values, which dominate a step along it; Adam scales each
element separately and does not change that. With all singular values close to one, every direction of the gradient
counts equally.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.kernel_interfaces import Polynomials, TrainingKernels
from transduce.machine import DTYPES
from transduce.model.backend import backend_in_use
from transduce.training.distributed import Processes
from transduce.training.settings import ResolvedTraining

# Odd polynomials a x + b x³ + c x⁵, applied in turn, that map singular values in [0.01, 1] into [0.73, 1.27] and
# multiply smaller ones by 78. Each is optimal given the one before (Amsel et al. 2025, "The Polar Express").
_POLYNOMIALS: Polynomials = ((8.0195, -22.9987, 16.899), (3.6414, -2.7254, 0.5369), (2.6684, -1.9829, 0.4533))
_MANY_COLUMNS = 2  # times the rows: above this ratio the Gram matrix is faster
_MARGIN = 1.01  # for rounding: above 1 the first polynomial grows fast
_MIN_NORM, _MIN_SCALE = 1e-30, 1e-6
# The typical size of an element of Adam's update, so that both can use one learning rate (Liu et al. 2025, "Muon is
# Scalable for LLM Training", section 2.2).
_USUAL_UPDATE = 0.2

# Approximate number of elements orthogonalized in one group: on a CPU several matrices per thread; on a GPU,
# where launches take longer than multiplications, most of a model, which is small compared to a step's activations.
_MAX_ELEMENTS, _MAX_ELEMENTS_OF_THREAD, _MAX_ELEMENTS_OF_GPU = 1 << 22, 1 << 21, 1 << 26

# Maps a weight's name and this process's rows to a copy of the complete weight and the index of the first of the rows.
Gather = Callable[[str, Tensor], tuple[Tensor, int]]


class MatrixShapes(NamedTuple):
    """The shape of a parameter that Muon updates: one matrix, or several matrices that are stacked by rows."""

    local_shape: torch.Size
    """The shape of the rows of the parameter that this process holds."""
    rows: tuple[int, ...]
    """The number of rows of each stacked matrix of the complete parameter."""


def orthogonalize(matrices: Tensor, scale: float = 1.0) -> Tensor:
    """Return matrices (N, R, C) with unchanged singular vectors, and with singular values close to `scale`.

    Let r be the fourth root of the sum of σ⁴ over the singular values σ of a matrix. A singular value of at least
    0.01 r, such as the largest one, becomes 0.72 to 1.27 times `scale`. A smaller one becomes about 77 σ / r times
    `scale`, so zero stays zero. The computation uses the matrices' dtype.
    """
    result = matrices.clone()
    _orthogonalize_in_place(list(result), scale, matrices.dtype)
    return result


def _orthogonalize_in_place(matrices: Sequence[Tensor], scale: float, dtype: torch.dtype) -> None:
    """Replace matrices (R, C) of equal shape by orthogonalized ones, with singular values close to `scale`.

    The computation uses `dtype`. A backend's kernels compute those matrices that they support.
    """
    kernels: TrainingKernels | None = backend_in_use()
    rows, columns = matrices[0].shape
    by_gram_matrix = max(rows, columns) > _MANY_COLUMNS * min(rows, columns)
    if kernels is not None and matrices[0].dtype == dtype and kernels.supports_orthogonalization(matrices):
        done = kernels.orthogonalize_in_place(matrices, _POLYNOMIALS, scale, by_gram_matrix=by_gram_matrix)
        matrices = [matrix for matrix, is_done in zip(matrices, done, strict=True) if not is_done]
    if matrices:
        x = torch.stack([matrix.mT for matrix in matrices] if rows > columns else list(matrices)).to(dtype)
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_MIN_NORM)
        gram = x @ x.mT
        # This bound on the largest singular value is tighter than ‖x‖ and saves polynomials. Only zero is clamped.
        shrink = 1.0 / (_MARGIN * gram.norm(dim=(1, 2), keepdim=True).sqrt()).clamp(min=_MIN_SCALE)
        apply = _by_gram_matrix if by_gram_matrix else _one_by_one
        result = apply(x * shrink, gram * shrink.square(), scale)
        torch._foreach_copy_(list(matrices), list((result.mT if rows > columns else result).unbind()))


def _one_by_one(x: Tensor, gram: Tensor, scale: float) -> Tensor:
    """Apply Muon's polynomials, one after another, to matrices x (N, R, C); return the results times `scale`.

    `gram`, (N, R, R), holds the Gram matrices x xᵀ, which the caller has computed already.
    """
    for number, (a, b, c) in enumerate(_POLYNOMIALS):
        if number:
            gram = x @ x.mT
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        output_scale = scale if number == len(_POLYNOMIALS) - 1 else 1.0
        x = torch.baddbmm(x, factor, x, beta=output_scale * a, alpha=output_scale)
    return x


def _by_gram_matrix(x: Tensor, gram: Tensor, scale: float) -> Tensor:
    """Apply Muon's polynomials to matrices x (N, R, C) with few rows; return the results times `scale`.

    `gram`, (N, R, R), holds the Gram matrices x xᵀ. Each polynomial is p(x xᵀ) x, and the Gram matrix x xᵀ (N, R, R)
    then becomes p(x xᵀ) x xᵀ p(x xᵀ), so x itself is needed only at the end. Three polynomials take 2 C / R + 9 times
    R³ multiplications, including x xᵀ. All but the last matrix product are symmetric, since they are polynomials of one
    matrix.
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
    """The Muon optimizer (Jordan et al. 2024) of matrices that are stored one after another in one vector.

    Each matrix moves by the momentum of its gradients, orthogonalized: all singular values of an update are about
    equal.
    """

    def __init__(
        self,
        master: Tensor,
        gradient: Tensor,
        weights: Mapping[str, MatrixShapes],
        settings: ResolvedTraining,
        *,
        gather: Gather | None = None,
        processes: Processes | None = None,
    ) -> None:
        """Create the optimizer state with zero momentum.

        Args:
            master: float32 vector, changed by each update: the rows of the weights that this process holds, in their
                order.
            gradient: a vector of equal length.
            weights: the shapes of the weights by name.
            settings: settings of the run.
            gather: a function for processes that each hold some of the rows; None if this process holds all rows. It
                takes a weight's name and its local rows, and returns the complete weight and the index of the first
                local row.
            processes: the processes that share the work, if each holds all rows; None: this process does all work.
        """
        self.master, self.gradient = master, gradient
        self.momentum = torch.zeros_like(master)
        self._decay = settings.momentum
        self._dtype = DTYPES[settings.precision]
        self._weights, self._gather, self._processes = weights, gather, processes or Processes()
        max_elements = _MAX_ELEMENTS if master.device.type == "cpu" else _MAX_ELEMENTS_OF_GPU
        # Several processes must form equal groups, whatever their threads.
        if master.device.type == "cpu" and gather is None and self._processes.count == 1:
            max_elements = max(max_elements, _MAX_ELEMENTS_OF_THREAD * torch.get_num_threads())
        self._groups = _group_by_memory(weights, self._processes.count, max_elements)

    def step(self, rate: float) -> None:
        """Update the vector of master weights in place from the gradient with orthogonalized Nesterov momentum.

        `rate` is the learning rate.
        """
        self.momentum.lerp_(self.gradient, 1.0 - self._decay)
        direction = self.gradient.lerp(self.momentum, self._decay)
        self._make_all_orthogonal(direction)
        self.master.add_(direction, alpha=-rate)

    def find_update(self, kernels: TrainingKernels, factor: float) -> Tensor:
        """Update the momentum by the gradient times `factor`, and return the orthogonalized update.

        The update is a vector in the model's dtype, which the caller multiplies by the learning rate.
        """
        direction = torch.empty_like(self.gradient, dtype=self._dtype)
        kernels.update_momentum(self.gradient, self.momentum, direction, factor, self._decay)
        self._make_all_orthogonal(direction)
        return direction

    def _make_all_orthogonal(self, update: Tensor) -> None:
        """Orthogonalize the update vector of all weights in place.

        Of several processes, each orthogonalizes some groups of weights, and sends the result to the others.
        """
        sizes = [sum(self._weights[name].local_shape.numel() for name in names) for names in self._groups]
        works = []
        for number, (names, part) in enumerate(zip(self._groups, update.split(sizes), strict=True)):
            # Every process has the same update; one of them orthogonalizes this part and broadcasts it.
            source = number % self._processes.count
            if source == self._processes.rank:
                self._update_group(names, part)
            works.append(self._processes.start_broadcast(part, source))
        for work in works:
            if work is not None:
                work.wait()

    def _update_group(self, names: Sequence[str], update: Tensor) -> None:
        """Orthogonalize, in place, the part of the update vector that belongs to these weights."""
        parts = update.split([self._weights[name].local_shape.numel() for name in names])
        local_parts = {
            name: part.view(self._weights[name].local_shape) for name, part in zip(names, parts, strict=True)
        }
        if self._gather is None:
            self._make_orthogonal(local_parts)
            return
        gathered = {name: self._gather(name, part) for name, part in local_parts.items()}
        self._make_orthogonal({name: complete for name, (complete, _) in gathered.items()})
        for name, part in local_parts.items():
            complete, start = gathered[name]
            part.copy_(complete[start : start + len(part)])

    def _make_orthogonal(self, weights: Mapping[str, Tensor]) -> None:
        """Orthogonalize updates, given by weight name, in place, and scale them to the usual size of Adam's updates.

        Matrices of equal shape are orthogonalized in one batch.
        """
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for name, weight in weights.items():
            for matrix in weight.split(self._weights[name].rows):
                by_shape.setdefault(matrix.shape, []).append(matrix)
        for shape, matrices in by_shape.items():
            scale = _USUAL_UPDATE * math.sqrt(max(shape))
            _orthogonalize_in_place(matrices, scale, self._dtype)

    def vectors(self) -> dict[str, Tensor]:
        """Return a dict of the optimizer state that a checkpoint stores besides the weights: the momentum vector."""
        return {"momentum": self.momentum}


def _group_by_memory(weights: Mapping[str, MatrixShapes], processes: int, max_elements: int) -> list[list[str]]:
    """Divide weights into groups, each of which is orthogonalized together, to limit the memory.

    A group is a list of names. It ends with the weight that makes it reach the target size, in elements. The target
    size is `max_elements`, or the elements of all weights divided by `processes` if that is smaller.
    """
    sizes = {name: sum(weight.rows) * weight.local_shape[1] for name, weight in weights.items()}
    max_elements = min(max_elements, sum(sizes.values()) // processes)
    groups: list[list[str]] = []
    elements = max_elements
    for name, size in sizes.items():
        if elements >= max_elements:
            groups.append([])
            elements = 0
        groups[-1].append(name)
        elements += size
    return groups
