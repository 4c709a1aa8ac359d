"""Cross-entropy with label smoothing (section 5.4), fused with the projection to the vocabulary.

Logits of a whole batch would be its largest tensor by far (4,096 × 32,000). They are made, used and dropped in chunks
of rows; their gradient is known in closed form, so it is taken in the same pass.
Legend: N target positions, D model width, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_CHUNK_ELEMENTS = 1 << 21  # of float32 logits at a time: 8 MB stay in a processor's cache


class Loss(NamedTuple):
    """Sums over target tokens, in nats. Whoever holds the whole step divides them, once."""

    total: Tensor
    """What is minimised: with label smoothing. A scalar, float32."""
    negative_log_likelihood: Tensor
    """Without smoothing: its mean's exponential is the perplexity. A scalar, float32, detached."""
    tokens: int
    """Target tokens counted, end symbols included and padding excluded."""


def projected_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, *, pad_id: int, label_smoothing: float = 0.0
) -> Loss:
    """Cross-entropy of softmax(hidden · weightᵀ) against labels: (1 - ε) at the label plus ε / V everywhere.

    Args:
        hidden: the decoder's output, (B, T, D).
        weight: the output matrix, (V, D). Its row `pad_id` receives no gradient: it stays zero.
        labels: the pieces to predict, (B, T), `pad_id` where there is none.
        pad_id: the id that fills short rows.
        label_smoothing: ε.

    Returns:
        Sums over the labels that are not padding.
    """
    present = (labels != pad_id).flatten().nonzero().flatten()
    rows = hidden.flatten(0, 1)  # (B × T, D)
    if len(present) < len(rows):
        rows = rows.index_select(0, present)
    chosen = labels.flatten()[present]  # (N,)
    total, likelihood = _ProjectedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        rows, weight, chosen, label_smoothing, pad_id
    )
    return Loss(total, likelihood.detach(), len(chosen))


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, pad_id: int
    ) -> tuple[Tensor, Tensor]:
        wants_gradient = any(ctx.needs_input_grad[:2])
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        likelihood = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_gradient = torch.empty_like(hidden) if wants_gradient else None
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if wants_gradient else None
        rows = max(1, _CHUNK_ELEMENTS // weight.shape[0])
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = F.linear(hidden[part], weight).float()  # (rows, V)
            chunk = _chunk_loss(logits, labels[part], smoothing)
            total += chunk.total
            likelihood += chunk.likelihood
            if hidden_gradient is not None and weight_gradient is not None:
                gradient = _chunk_gradient(chunk, labels[part], smoothing).to(hidden.dtype)
                torch.mm(gradient, weight, out=hidden_gradient[part])
                weight_gradient += gradient.t() @ hidden[part]
        if weight_gradient is not None:
            weight_gradient[pad_id] = 0.0
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(likelihood)
        return total, likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        scale = gradients[0]
        return (
            hidden_gradient * scale.to(hidden_gradient.dtype),
            (weight_gradient * scale).to(ctx.weight_dtype),
            None,
            None,
            None,
        )


class _Chunk(NamedTuple):
    total: Tensor
    likelihood: Tensor
    exponentials: Tensor
    """exp(logits - maximum), (rows, V)."""
    sums: Tensor
    """Their sums, (rows, 1)."""


def _chunk_loss(logits: Tensor, labels: Tensor, smoothing: float) -> _Chunk:
    """Smoothed loss and negative log-likelihood, summed. Overwrites the logits: one exponential serves both uses."""
    logits.sub_(logits.amax(dim=-1, keepdim=True))
    at_label = logits.gather(1, labels[:, None])
    mean = logits.mean(dim=-1, keepdim=True) if smoothing else at_label
    exponentials = logits.exp_()
    sums = exponentials.sum(dim=-1, keepdim=True)
    normalizer = sums.log()
    likelihood = (normalizer - at_label).sum()
    uniform = (normalizer - mean).sum()
    total = (1.0 - smoothing) * likelihood + smoothing * uniform
    return _Chunk(total, likelihood, exponentials, sums)


def _chunk_gradient(chunk: _Chunk, labels: Tensor, smoothing: float) -> Tensor:
    """softmax - (1 - ε) one-hot - ε / V, written over the exponentials."""
    gradient = chunk.exponentials.mul_(chunk.sums.reciprocal())
    if smoothing:
        gradient.sub_(smoothing / gradient.shape[-1])
    at_label = torch.full_like(labels[:, None], -(1.0 - smoothing), dtype=gradient.dtype)
    return gradient.scatter_add_(1, labels[:, None], at_label)
