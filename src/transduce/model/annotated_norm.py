"""The norm of "The Annotated Transformer", for models that were trained by the tutorial's code."""

import torch
from torch import Tensor, nn


class AnnotatedNorm(nn.Module):
    """A norm over the last dimension: weight · (x - mean) / (standard deviation + ε) + bias.

    Two things differ from LayerNorm: the standard deviation is that of a sample (n - 1 in place of n), and ε is added
    outside of the root, which matters where the deviation is small.
    """

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize a tensor of any shape that ends in the width; return one of the same shape."""
        centered = x - x.mean(-1, keepdim=True)
        return self.weight * centered / (x.std(-1, keepdim=True) + self.eps) + self.bias
