"""Products with a matrix that is learnt, by kernels of our own where a process trains with them and they suit."""

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.fused import Rows, training_kernels


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, rows: Rows | None = None, relu: bool = False) -> Tensor:
    """x · weightᵀ + bias; arguments as in `fused.TrainingKernels.linear`."""
    kernels = training_kernels()
    if kernels is not None and kernels.suits_linear(x, weight, rows):
        return kernels.linear(x, weight, bias, rows, relu=relu)
    if rows is not None:
        weight, bias = weight[slice(*rows)], None if bias is None else bias[slice(*rows)]
    y = F.linear(x, weight, bias)
    return F.relu(y) if relu else y


class Linear(nn.Linear):
    """x · weightᵀ + bias, (…, I) to (…, O)."""

    def forward(self, input: Tensor, *, relu: bool = False) -> Tensor:  # noqa: A002 -- the name it has in PyTorch
        """All rows; with `relu`, what of them is positive."""
        return linear(input, self.weight, self.bias, relu=relu)
