"""Attention with other scores than the scaled dot product, and hard attention.

Legend: B batch, H heads, Q queries, L keys, K width of a key, V width of a value.
"""

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.config import AttentionKind, AttentionScore, ModelConfig
from transduce.model.feed_forward import Dropout
from transduce.model.masks import AttentionMask, LookAheadMask

# --- attend ---
# Scaled dot-product attention (section 3.2.1, equation 1).
# Legend: B batch, H heads, Q queries, L keys, K width of a key, V width of a value.


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask | None = None,
    *,
    dropout: Dropout | None = None,
    weights_to: list[Tensor] | None = None,
) -> Tensor:
    """Return softmax(Q Kᵀ / √d_k + mask) V, equation (1).

    Args:
        query: (B, H, Q, K).
        key: (B, H, L, K).
        value: (B, H, L, V).
        mask: broadcastable to (B, H, Q, L), True = may attend.
        dropout: applied to the weights.
        weights_to: a list that receives the weights, (B, H, Q, L).

    Returns:
        (B, H, Q, V).
    """
    scale = 1.0 / math.sqrt(query.shape[-1])
    if weights_to is None and _library_kernel_is_better(query, key, dropout):
        is_causal = isinstance(mask, LookAheadMask)
        bias = None if mask is None or is_causal else mask.bias(query.dtype)
        rate = dropout.p if dropout is not None and dropout.training else 0.0
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=rate, is_causal=is_causal, scale=scale
        )
    scores = torch.matmul(query * scale, key.transpose(-1, -2))  # (B, H, Q, L)
    if mask is not None:
        scores = scores + mask.bias(scores.dtype)
    weights = scores.softmax(dim=-1)
    if weights_to is not None:
        weights_to.append(weights.detach())
    if dropout is not None:
        weights = dropout(weights)
    return torch.matmul(weights, value)


def _library_kernel_is_better(query: Tensor, key: Tensor, dropout: Dropout | None) -> bool:
    """Return whether PyTorch's fused attention is faster than the three operations of equation (1).

    On a GPU it always is. On a CPU its backward pass is slow, so it is used only where scores would take much memory.
    """
    if query.device.type != "cpu":
        return True
    if dropout is not None and dropout.training and dropout.drop_of_256:
        return False
    return query.shape[2] * key.shape[2] > 256 * 256


# --- scores ---


class Attend(Protocol):
    """The signature that `attend` and `ScoredAttention` share: queries, keys and values to (B, H, Q, V)."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask | None = None,
        *,
        dropout: Dropout | None = None,
        weights_to: list[Tensor] | None = None,
    ) -> Tensor:
        """Attend; arguments and result are those of `attend`."""


class ScoredAttention(nn.Module):
    """Attention with the score and the kind of choice, soft or hard, that a configuration names.

    `dot`: Q Kᵀ. `general`: Q W Kᵀ with a matrix W for each head; initially it is the scaled dot product. `additive`:
    v · tanh(Q + K) with a vector v for each head; the matrices of Bahdanau et al. 2015 are the projections to Q and K.
    """

    def __init__(
        self,
        *,
        score: AttentionScore,
        kind: AttentionKind,
        scale: float | None,
        num_heads: int,
        d_k: int,
    ) -> None:
        super().__init__()
        self.hard = kind == "hard"
        # The queries are multiplied by this factor first, because `attend` divides by √d_k.
        root = math.sqrt(d_k)
        self.factor = (1.0 if scale is None else scale * root) if score == "scaled" else root
        self.matrix = nn.Parameter(torch.empty(num_heads, d_k, d_k)) if score == "general" else None
        self.vector = nn.Parameter(torch.empty(num_heads, d_k)) if score == "additive" else None

    def reset_parameters(self) -> None:
        """Set initial weights: W = I / √d_k, and v so that the variance of scores is at most 1."""
        with torch.no_grad():
            if self.matrix is not None:
                width = self.matrix.shape[-1]
                self.matrix.copy_(torch.eye(width).expand_as(self.matrix) / math.sqrt(width))
            if self.vector is not None:
                self.vector.normal_(std=1.0 / math.sqrt(self.vector.shape[-1]))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: AttentionMask | None = None,
        *,
        dropout: Dropout | None = None,
        weights_to: list[Tensor] | None = None,
    ) -> Tensor:
        """Attend: (B, H, Q, K), (B, H, L, K), (B, H, L, V) to (B, H, Q, V); arguments are those of `attend`."""
        if self.vector is None:
            query = query if self.matrix is None else query @ self.matrix
            if not self.hard:
                return attend(query * self.factor, key, value, mask, dropout=dropout, weights_to=weights_to)
            scores = (query * (self.factor / math.sqrt(query.shape[-1]))) @ key.transpose(-1, -2)  # (B, H, Q, L)
        else:
            sums = query[:, :, :, None] + key[:, :, None]  # (B, H, Q, L, K)
            scores = (sums.tanh() * self.vector[:, None, None]).sum(dim=-1)  # (B, H, Q, L)
        weights = (scores if mask is None else scores + mask.bias(scores.dtype)).softmax(dim=-1)
        if self.hard:
            weights = straight_through(weights)
        if weights_to is not None:
            weights_to.append(weights.detach())
        return torch.matmul(weights if dropout is None else dropout(weights), value)


def straight_through(weights: Tensor) -> Tensor:
    """Return 1 at the greatest weight of each row and 0 elsewhere, with the gradient of the weights themselves."""
    best = torch.zeros_like(weights).scatter_(-1, weights.argmax(dim=-1, keepdim=True), 1.0)
    return best + (weights - weights.detach())


SCORES: dict[str, type[ScoredAttention]] = {
    "scaled": ScoredAttention,
    "dot": ScoredAttention,
    "general": ScoredAttention,
    "additive": ScoredAttention,
}
"""The class of each score that `model.attention_score` names."""


def build_score(config: ModelConfig, *, num_heads: int, d_k: int) -> ScoredAttention | None:
    """Build the attention that a configuration names; None stands for `attend`, the paper's."""
    if config.attention_score == "scaled" and config.attention_kind == "soft" and config.attention_scale is None:
        return None
    return SCORES[config.attention_score](
        score=config.attention_score,
        kind=config.attention_kind,
        scale=config.attention_scale,
        num_heads=num_heads,
        d_k=d_k,
    )
