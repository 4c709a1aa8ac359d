"""Cross-entropy with label smoothing (section 5.4), fused with the projection to the vocabulary.

Logits of a whole batch would be its largest tensor by far (4,096 × 32,000). They are made, used and dropped in chunks
of rows; their gradient is known in closed form, so it is taken in the same pass.
Legend: N target positions, D model width, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

_CHUNK_ELEMENTS = 1 << 21  # of float32 logits at a time: 8 MB stay in a processor's cache


class Loss(NamedTuple):
    """Sums over target tokens, in nats. Whoever holds the whole step divides them, once."""

    total: Tensor
    """What is minimised: with label smoothing. A scalar, float32 (float64 where the model is)."""
    negative_log_likelihood: Tensor
    """Without smoothing: its mean's exponential is the perplexity. The same kind of scalar, detached."""
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
        rows, weight, chosen, label_smoothing, pad_id, torch.is_grad_enabled()
    )
    return Loss(total, likelihood.detach(), len(chosen))


class _ProjectedCrossEntropy(torch.autograd.Function):
    """The gradient by the logits is softmax - (1 - ε) one-hot - ε / V. Only the first term needs a pass over them.

    The one-hot term picks rows of the matrix, and the constant term is a sum of its rows: both are products of size
    N × D, as are their parts of the matrix' own gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, pad_id: int, recording: bool
    ) -> tuple[Tensor, Tensor]:
        vocabulary_size = weight.shape[0]
        # PyTorch says what needs a gradient, but not whether gradients are on: validation must not pay for them.
        wants_gradient = recording and any(ctx.needs_input_grad[:2])
        rows = min(len(hidden), max(1, _CHUNK_ELEMENTS // vocabulary_size))
        logits = hidden.new_empty(rows, vocabulary_size)
        likelihood, uniform = torch.zeros(2, dtype=_sum_dtype(hidden), device=hidden.device)
        weight_sum = weight.sum(dim=0, dtype=_sum_dtype(hidden))  # (D,)
        hidden_gradient = torch.empty_like(hidden) if wants_gradient else None
        weight_gradient = torch.zeros_like(weight, dtype=_sum_dtype(hidden)) if wants_gradient else None
        for start in range(0, len(hidden), rows):
            x, chosen = hidden[start : start + rows], labels[start : start + rows]
            chunk = torch.mm(x, weight.t(), out=logits[: len(x)])
            at_label = chunk.gather(1, chosen[:, None])[:, 0].to(likelihood.dtype)
            probabilities = chunk.softmax(dim=-1)  # (rows, V)
            chunk_likelihood = -_log_of_label(probabilities, chosen).to(likelihood.dtype).sum()
            likelihood += chunk_likelihood
            # Σ over v of -log p_v / V is (log-normaliser - mean logit), and the label tells the normaliser.
            mean = (x.to(weight_sum.dtype) @ weight_sum) / vocabulary_size
            uniform += chunk_likelihood + (at_label - mean).sum()
            if hidden_gradient is not None and weight_gradient is not None:
                torch.mm(probabilities, weight, out=hidden_gradient[start : start + rows])
                weight_gradient += probabilities.t() @ x
        if hidden_gradient is not None and weight_gradient is not None:
            _subtract_target(hidden_gradient, weight_gradient, hidden, weight, labels, weight_sum, smoothing)
            weight_gradient[pad_id] = 0.0
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(likelihood)
        return (1.0 - smoothing) * likelihood + smoothing * uniform, likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        scale = gradients[0]
        return (
            hidden_gradient * scale.to(hidden_gradient.dtype),
            (weight_gradient * scale).to(ctx.weight_dtype),
            None,
            None,
            None,
            None,
        )


def _sum_dtype(x: Tensor) -> torch.dtype:
    """What sums are taken in: float32, or float64 where the model computes in that."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _log_of_label(probabilities: Tensor, labels: Tensor) -> Tensor:
    """log p of each row's label (rows,), no lower than the smallest normal number's."""
    chosen = probabilities.gather(1, labels[:, None])[:, 0].to(_sum_dtype(probabilities))
    return chosen.clamp_min(torch.finfo(torch.float32).tiny).log()


def _subtract_target(
    hidden_gradient: Tensor,
    weight_gradient: Tensor,
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    weight_sum: Tensor,
    smoothing: float,
) -> None:
    """The gradient's constant terms, from the smoothed target distribution, in place."""
    confidence, share = 1.0 - smoothing, smoothing / weight.shape[0]
    hidden_gradient -= (weight[labels] * confidence).add_((share * weight_sum).to(weight.dtype))
    wide = hidden.to(weight_gradient.dtype)
    weight_gradient.index_add_(0, labels, wide, alpha=-confidence)
    weight_gradient -= share * wide.sum(dim=0)
