"""Muon: a matrix moves by the momentum of its gradient, made orthogonal (Jordan et al. 2024).

The gradient of a layer's matrix has a few large singular values; what the small ones tell is lost in a step along it,
and in Adam's, which goes by the size of single elements. With all singular values made nearly one, every direction that
the gradient knows counts alike.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.training.settings import ResolvedTraining

# Odd polynomials a x + b x³ + c x⁵, one after another, that take singular values of 0.01 to 1 to 0.73 to 1.27, and make
# smaller ones 78 times as large. Each is the best for what the one before leaves (Amsel et al. 2025, "The Polar
# Express").
_POLYNOMIALS = ((8.0195, -22.9987, 16.899), (3.6414, -2.7254, 0.5369), (2.6684, -1.9829, 0.4533))
_MARGIN = 1.01  # for rounding: beyond 1, the first polynomial grows fast
_LEAST_NORM, _LEAST_SCALE = 1e-30, 1e-6
# What an element of Adam's update usually is, so that both go by one learning rate (Liu et al. 2025, "Muon is Scalable
# for LLM Training", section 2.2).
_USUAL_UPDATE = 0.2

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def orthogonalize(matrices: Tensor) -> Tensor:
    """Matrices (N, R, C) with the same singular vectors, and singular values near one.

    The largest become 0.73 to 1.27, and with them all that are at least a hundredth of the fourth root of the sum of
    all values' fourth powers. Smaller ones grow 78 fold; zero stays zero. Computed in the precision of the matrices.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_LEAST_NORM)
    gram = x @ x.mT
    # Closer to the greatest singular value than ‖M‖ is, so that fewer polynomials do. Zero alone is below the least.
    scale = 1.0 / (_MARGIN * gram.norm(dim=(1, 2), keepdim=True).sqrt()).clamp(min=_LEAST_SCALE)
    x, gram = x * scale, gram * scale.square()
    for number, (a, b, c) in enumerate(_POLYNOMIALS):
        if number:
            gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon:
    """The momentum of matrices that lie in a vector one after another, and the update by it."""

    def __init__(
        self, master: Tensor, gradient: Tensor, shapes: Sequence[tuple[int, int]], settings: ResolvedTraining
    ) -> None:
        """`master` and `gradient` are float32 vectors of matrices of these shapes."""
        self.master, self.gradient = master, gradient
        self.momentum = torch.zeros_like(master)
        self._decay = settings.momentum
        self._dtype = _DTYPES[settings.precision]
        sizes = [rows * columns for rows, columns in shapes]
        starts = [0, *torch.tensor(sizes).cumsum(0).tolist()]
        # Matrices of one shape are made orthogonal together.
        self._alike: dict[tuple[int, int], list[slice]] = {}
        for shape, start, size in zip(shapes, starts, sizes, strict=False):
            self._alike.setdefault(shape, []).append(slice(start, start + size))

    def step(self, rate: float) -> None:
        """One update by the gradient, with Nesterov's momentum."""
        self.momentum.lerp_(self.gradient, 1.0 - self._decay)
        ahead = self.gradient.lerp(self.momentum, self._decay)
        for (rows, columns), places in self._alike.items():
            matrices = torch.stack([ahead[place].view(rows, columns) for place in places])
            updates = orthogonalize(matrices.to(self._dtype)).float().flatten(1)
            masters = [self.master[place] for place in places]
            size = rate * _USUAL_UPDATE * math.sqrt(max(rows, columns))
            torch._foreach_add_(masters, list(updates.unbind()), alpha=-size)

    def vectors(self) -> dict[str, Tensor]:
        """What a checkpoint holds beside the weights."""
        return {"momentum": self.momentum}
