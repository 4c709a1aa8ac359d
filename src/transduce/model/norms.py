"""Define normalizations: LayerNorm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019), BatchNorm and others.

BatchNorm is that of Ioffe and Szegedy 2015.

Legend: B batch, T positions, D width, N positions of the batch that are no padding.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.backend import Component
from transduce.model.config import ModelConfig


class LayerNorm(Component, nn.LayerNorm):
    """LayerNorm over the last dimension: (x - mean) / √(variance + ε) · weight + bias."""


class RMSNorm(Component, nn.RMSNorm):
    """RMSNorm over the last dimension: x / √(mean of x² + ε) · weight."""


class BatchNorm(nn.Module):
    """BatchNorm over all positions of a batch except padding; in evaluation it uses running statistics.

    (x - mean) / √(variance + ε) · weight + bias, for each dimension by itself. In training each position thereby
    depends on all others, including its own future, which is one reason why Transformers use LayerNorm.
    """

    momentum = 0.1
    """The weight of a new batch in the running mean and variance, PyTorch's default."""
    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, width: int, *, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_variance", torch.ones(width))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Move the module to another device or dtype, but keep its running statistics in float32.

        In bfloat16 small updates of the statistics would be lost.
        """
        mean, variance = self.running_mean, self.running_variance
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # PyTorch may have rounded the statistics: only its choice of device is taken.
        if not self.running_mean.is_meta and not mean.is_meta:
            device = self.running_mean.device
            self.running_mean, self.running_variance = mean.to(device).float(), variance.to(device).float()
        return self

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Normalize x, (B, T, D), to the same shape; `present` is True at the positions that are no padding, (B, T).

        In training, mean and variance are those of the positions that are present (None: all), and the running
        statistics are updated. In evaluation the running statistics are used.
        """
        _check_width(self, x)
        if self.training:
            rows = (x.flatten(0, -2) if present is None else x[present]).float()  # (N, D)
            mean, variance = rows.mean(dim=0), rows.var(dim=0, correction=0)
            unbiased = variance.detach() * (len(rows) / max(1, len(rows) - 1))
            self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_variance.lerp_(unbiased, self.momentum)
        else:
            mean, variance = self.running_mean, self.running_variance
        scale = (variance + self.epsilon).rsqrt() * self.weight
        return x * scale.to(x.dtype) + (self.bias - mean * scale).to(x.dtype)


class AnnotatedNorm(nn.Module):
    """The norm of "The Annotated Transformer": weight · (x - mean) / (standard deviation + ε) + bias.

    Two things differ from LayerNorm. The standard deviation is that of a sample (n - 1 in place of n). ε is added
    outside of the root, which matters for small deviations.
    """

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize a tensor over its last dimension, and return one of the same shape."""
        _check_width(self, x)
        centered = x - x.mean(-1, keepdim=True)
        return self.weight * centered / (x.std(-1, keepdim=True) + self.eps) + self.bias


def _check_width(norm: BatchNorm | AnnotatedNorm, x: Tensor) -> None:
    if x.shape[-1:] != norm.weight.shape:
        raise TransduceError(
            f"`{type(norm).__name__}` normalizes vectors of the width {len(norm.weight)}, but its input has the shape "
            f"{tuple(x.shape)}."
        )


NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layer": lambda width, epsilon: LayerNorm(width, eps=epsilon),
    "rms": lambda width, epsilon: RMSNorm(width, eps=epsilon),
    "batch": lambda width, epsilon: BatchNorm(width, epsilon=epsilon),
    "annotated": lambda width, epsilon: AnnotatedNorm(width, eps=epsilon),
}
"""A dict from a norm's name in the setting `model.norm` to the function that builds it from the model width and ε."""


def build_norm(config: ModelConfig, width: int | None = None) -> nn.Module:
    """Build the norm that a model configuration names, such as LayerNorm, over `width` numbers (None: d_model)."""
    return NORMS[config.norm](width or config.d_model, config.norm_epsilon)


def build_final_norm(config: ModelConfig) -> nn.Module:
    """Build the norm after the last layer of a stack, or the identity if the configuration has none there."""
    return build_norm(config) if config.has_final_norm else nn.Identity()


def normalize(norm: nn.Module, x: Tensor, present: Tensor | None) -> Tensor:
    """Apply a norm of any class to x, (B, T, D), and return the same shape.

    Statistics of a BatchNorm include only positions where `present`, (B, T), is True; None: all. Other norms ignore it.
    """
    return norm(x, present) if isinstance(norm, BatchNorm) else norm(x)  # type: ignore[no-any-return]
