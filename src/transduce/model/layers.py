"""Encoder and decoder layers (section 3.1): sub-layers with residual connections.

Legend: B batch, S source length, T target length, D model width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from transduce.model.attention import AttentionTrace, LayerCache, build_attention
from transduce.model.backend import Component
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import Dropout, build_feed_forward
from transduce.model.masks import AttentionMask
from transduce.model.norms import build_norm, normalize
from transduce.model.positions import EVERYWHERE, Reach
from transduce.model.window import Window


class Residual(Component):
    """A residual connection around a sub-layer f, with dropout and normalization.

    Post-norm, the paper's: norm(x + dropout(f(x))). Pre-norm: x + dropout(f(norm(x))). Sandwich:
    x + dropout(norm(f(norm(x)))) (Ding et al. 2021). A norm that an order does not use is the identity.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_sandwich = config.norm_order == "sandwich"
        self.norm_before = nn.Identity() if config.norm_order == "post" else build_norm(config)
        self.norm_after = nn.Identity() if config.norm_order == "pre" else build_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], present: Tensor | None = None) -> Tensor:
        """Apply a sub-layer with its residual connection: (B, T, D) to (B, T, D).

        `present`, (B, T), marks the positions that a BatchNorm counts; None: all.
        """
        y = sublayer(normalize(self.norm_before, x, present))
        if self.is_sandwich:
            return self.dropout(normalize(self.norm_after, y, present), residual=x)  # type: ignore[no-any-return]
        return normalize(self.norm_after, self.dropout(y, residual=x), present)


class EncoderLayer(Component):
    """Self-attention, then the feed-forward network; with a look-ahead mask, a layer of a decoder without memory."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = build_attention(config)
        self.self_attention_residual = Residual(config)
        self.feed_forward = build_feed_forward(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask | Window | None,
        *,
        reach: Reach = EVERYWHERE,
        present: Tensor | None = None,
        cache: LayerCache | None = None,
        weights_to: list[Tensor] | None = None,
    ) -> Tensor:
        """Compute the layer: (B, S, D) to (B, S, D).

        Args:
            x: (B, S, D).
            mask: the mask of self-attention, as `StackPositions` returns it.
            reach: how positions act on self-attention, as `StackPositions` returns it.
            present: the positions that a BatchNorm counts, (B, S); None: all.
            cache: the keys and values of past positions.
            weights_to: a list that receives the attention weights.
        """
        past = None if cache is None else cache.past
        x = self.self_attention_residual(
            x,
            lambda y: self.self_attention(y, mask=mask, cache=past, weights_to=weights_to, reach=reach),
            present,
        )
        return self.feed_forward_residual(x, self.feed_forward, present)  # type: ignore[no-any-return]


class DecoderLayer(Component):
    """Masked self-attention, cross-attention to the memory, then the feed-forward network."""

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
        mask: AttentionMask | Window | None,
        memory_mask: AttentionMask | None,
        reach: Reach = EVERYWHERE,
        present: Tensor | None = None,
        cache: LayerCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """Compute the layer: (B, T, D) to (B, T, D).

        Args:
            x: (B, T, D).
            memory: the encoder's output, (B, S, D).
            mask: the mask of self-attention, as `StackPositions` returns it.
            memory_mask: the mask of cross-attention.
            reach: how positions act on self-attention, as `StackPositions` returns it.
            present: the positions that a BatchNorm counts, (B, T); None: all.
            cache: keys and values of past positions, and of the memory.
            trace: receives the attention weights.
        """
        past = None if cache is None else cache.past
        own_weights = None if trace is None else trace.decoder
        x = self.self_attention_residual(
            x,
            lambda y: self.self_attention(y, mask=mask, cache=past, weights_to=own_weights, reach=reach),
            present,
        )
        memory_cache = None if cache is None else cache.memory
        memory_weights = None if trace is None else trace.memory
        x = self.memory_attention_residual(
            x,
            lambda y: self.memory_attention(y, memory, mask=memory_mask, cache=memory_cache, weights_to=memory_weights),
            present,
        )
        return self.feed_forward_residual(x, self.feed_forward, present)  # type: ignore[no-any-return]
