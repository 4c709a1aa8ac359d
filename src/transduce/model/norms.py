"""Normalisation: LayerNorm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019), BatchNorm (Ioffe and Szegedy 2015).

Legend: B batch, T positions, D width, N positions of the batch that are no padding.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from transduce.model.backend import Component
from transduce.model.config import ModelConfig


class BatchNorm(nn.Module):
    """Each dimension over all positions of the batch, padding excluded; in evaluation by running statistics.

    (x - mean) / √(variance + ε) · weight + bias. In training a position so learns of all others, in its own future
    too, which is one reason why Transformers use LayerNorm.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, width: int, *, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_variance", torch.ones(width))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Moves the module as PyTorch does, but its statistics stay float32: in bfloat16 they would stand still."""
        mean, variance = self.running_mean, self.running_variance
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # Only the place is PyTorch's: what it made of them is rounded already.
        if not self.running_mean.is_meta and not mean.is_meta:
            place = self.running_mean.device
            self.running_mean, self.running_variance = mean.to(place).float(), variance.to(place).float()
        return self

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """(B, T, D) to (B, T, D); `present`, (B, T), says which positions count in training (None: all)."""
        if self.training:
            rows = (x.flatten(0, -2) if present is None else x[present]).float()  # (N, D)
            mean, variance = rows.mean(dim=0), rows.var(dim=0, correction=0)
            self._remember(mean.detach(), variance.detach() * (len(rows) / max(1, len(rows) - 1)))
        else:
            mean, variance = self.running_mean, self.running_variance
        scale = (variance + self.epsilon).rsqrt() * self.weight
        return x * scale.to(x.dtype) + (self.bias - mean * scale).to(x.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        self.running_mean.lerp_(mean, self.momentum)
        self.running_variance.lerp_(variance, self.momentum)


class LayerNorm(Component, nn.LayerNorm):
    """LayerNorm over the last dimension: (x - mean) / √(variance + ε) · weight + bias."""


class RMSNorm(Component, nn.RMSNorm):
    """RMSNorm over the last dimension: x / √(mean of x² + ε) · weight."""


def build_norm(config: ModelConfig) -> nn.Module:
    """The norm that the configuration names. All but BatchNorm see each position by itself."""
    if config.norm == "batch":
        return BatchNorm(config.d_model, epsilon=config.norm_epsilon)
    if config.norm == "rms":
        return RMSNorm(config.d_model, eps=config.norm_epsilon)
    return LayerNorm(config.d_model, eps=config.norm_epsilon)


def build_final_norm(config: ModelConfig) -> nn.Module:
    """The norm after the last layer of a stack, or the identity."""
    return build_norm(config) if config.has_final_norm else nn.Identity()


def normalize(norm: nn.Module, x: Tensor, present: Tensor | None) -> Tensor:
    """Applies a norm; BatchNorm is told which positions count."""
    return norm(x, present) if isinstance(norm, BatchNorm) else norm(x)  # type: ignore[no-any-return]
