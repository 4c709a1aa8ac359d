"""Linear layers with learned weights."""

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.backend import Component, Rows


class Linear(Component, nn.Linear):
    """A linear layer, x · weightᵀ + bias, that can also compute some of its outputs alone."""

    def forward(self, input: Tensor, rows: Rows | None = None) -> Tensor:  # noqa: A002 -- the name it has in PyTorch
        """Return x · weightᵀ + bias, (…, I) to (…, O), or the outputs of the weight's rows `rows` alone."""
        if rows is None:
            return F.linear(input, self.weight, self.bias)
        part = slice(*rows)
        return F.linear(input, self.weight[part], None if self.bias is None else self.bias[part])
