"""Encoder and decoder layers (section 3.1), built of sub-layers that are wired in one place.

Legend: B batch, S source length, T target length, D model width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from transduce.model.attention import AttentionTrace, MultiHeadAttention
from transduce.model.cache import LayerCache
from transduce.model.config import ModelConfig
from transduce.model.dropout import Dropout
from transduce.model.feed_forward import build_feed_forward
from transduce.model.masks import AttentionMask


def build_norm(config: ModelConfig) -> nn.Module:
    """LayerNorm over the model width: each position by itself, so padding and batch-mates play no part."""
    return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)


def build_attention(config: ModelConfig) -> MultiHeadAttention:
    """The attention brick that the configuration describes."""
    return MultiHeadAttention(
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_k=config.key_width,
        d_v=config.value_width,
        bias=config.bias,
        dropout=config.attention_dropout,
    )


class Residual(nn.Module):
    """Residual connection, dropout and normalisation around a sub-layer.

    Post-norm, the paper's: norm(x + dropout(f(x))). Pre-norm: x + dropout(f(norm(x))). The slot that an order leaves
    empty holds the identity.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        pre = config.norm_order == "pre"
        self.norm_before = build_norm(config) if pre else nn.Identity()
        self.norm_after = nn.Identity() if pre else build_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        return self.norm_after(self.dropout.add(x, sublayer(self.norm_before(x))))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = build_attention(config)
        self.self_attention_residual = Residual(config)
        self.feed_forward = build_feed_forward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: Tensor, mask: AttentionMask | None, *, trace: AttentionTrace | None = None) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        weights_to = None if trace is None else trace.encoder
        x = self.self_attention_residual(x, lambda y: self.self_attention(y, mask=mask, weights_to=weights_to))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the memory, then the feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = build_attention(config)
        self.self_attention_residual = Residual(config)
        self.memory_attention = build_attention(config)
        self.memory_attention_residual = Residual(config)
        self.feed_forward = build_feed_forward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        *,
        mask: AttentionMask | None,
        memory_mask: AttentionMask | None,
        cache: LayerCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        past = None if cache is None else cache.past
        own_weights = None if trace is None else trace.decoder
        x = self.self_attention_residual(
            x, lambda y: self.self_attention(y, mask=mask, cache=past, weights_to=own_weights)
        )
        known = None if cache is None else cache.memory
        memory_weights = None if trace is None else trace.memory
        x = self.memory_attention_residual(
            x,
            lambda y: self.memory_attention(y, memory, mask=memory_mask, cache=known, weights_to=memory_weights),
        )
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]
