"""Scaled dot-product attention (section 3.2.1, equation 1).

Legend: B batch, H heads, Q queries, L keys, K width of a key, V width of a value.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.model.dropout import Dropout
from transduce.model.masks import AttentionMask, LookAheadMask


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
