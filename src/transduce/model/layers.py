"""Define encoder and decoder layers (section 3.1), and the mask and positions that all layers of a stack share.

Legend: B batch, S source length, T target length or positions of the input, L attended positions, D model width,
K width of a head's keys.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from transduce.errors import TransduceError
from transduce.model.attention import AttentionTrace, DecoderCache, LayerCache, Window, block_length, build_attention
from transduce.model.backend import Component
from transduce.model.config import REGISTERED_NAMES, ModelConfig
from transduce.model.feed_forward import Dropout, build_feed_forward
from transduce.model.masks import AttentionMask, BiasedMask, look_ahead_mask, window_mask
from transduce.model.norms import build_norm, normalize
from transduce.model.positions import BIASES, NO_POSITION_EFFECT, PositionEffect, RotaryPositions


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
        """Apply a sub-layer (a function) with its residual connection, dropout and norm: (B, T, D) to (B, T, D).

        `present`, (B, T), marks the positions that a BatchNorm counts; None: all.
        """
        return self.complete(x, sublayer(normalize(self.norm_before, x, present)), present)

    def complete(self, x: Tensor, y: Tensor, present: Tensor | None) -> Tensor:
        """Apply dropout and norm to a sub-layer's output y, and add x, in the configured order: to (B, T, D).

        `present`, (B, T), marks the positions that a BatchNorm counts; None: all.
        """
        if self.is_sandwich:
            return self.dropout(normalize(self.norm_after, y, present), residual=x)  # type: ignore[no-any-return]
        return normalize(self.norm_after, self.dropout(y, residual=x), present)


class EncoderLayer(Component):
    """An encoder layer: self-attention and a feed-forward network.

    Decoder-only models use it too, with a look-ahead mask.
    """

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
        position_effect: PositionEffect = NO_POSITION_EFFECT,
        present: Tensor | None = None,
        cache: LayerCache | None = None,
        weights_out: list[Tensor] | None = None,
    ) -> Tensor:
        """Compute the layer: (B, S, D) to (B, S, D).

        Args:
            x: (B, S, D).
            mask: the mask of self-attention, as `StackPositions` returns it.
            position_effect: how positions act on self-attention, as `StackPositions` returns it.
            present: the positions that a BatchNorm counts, (B, S); None: all.
            cache: the keys and values of past positions.
            weights_out: a list that receives the attention weights.
        """
        past = None if cache is None else cache.past
        x = self.self_attention_residual(
            x,
            lambda y: self.self_attention(
                y, mask=mask, cache=past, weights_out=weights_out, position_effect=position_effect
            ),
            present,
        )
        return self.feed_forward_residual(x, self.feed_forward, present)  # type: ignore[no-any-return]

    @override
    def _check_call(self, x: Tensor, mask: object = None, **options: Any) -> None:
        self._check_input(x, self.feed_forward.inner.in_features, self.feed_forward.inner.weight)


class DecoderLayer(Component):
    """A decoder layer: masked self-attention, cross-attention to the encoder's output, and a feed-forward network."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = build_attention(config)
        self.self_attention_residual = Residual(config)
        # The cross-attention; stored weights, and hook points of recordings, have this name.
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
        position_effect: PositionEffect = NO_POSITION_EFFECT,
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
            position_effect: how positions act on self-attention, as `StackPositions` returns it.
            present: the positions that a BatchNorm counts, (B, T); None: all.
            cache: keys and values of past positions, and of the memory.
            trace: receives the attention weights.
        """
        past = None if cache is None else cache.past
        self_weights = None if trace is None else trace.decoder
        x = self.self_attention_residual(
            x,
            lambda y: self.self_attention(
                y, mask=mask, cache=past, weights_out=self_weights, position_effect=position_effect
            ),
            present,
        )
        memory_cache = None if cache is None else cache.memory
        memory_weights = None if trace is None else trace.memory
        x = self.memory_attention_residual(
            x,
            lambda y: self.memory_attention(
                y, memory, mask=memory_mask, cache=memory_cache, weights_out=memory_weights
            ),
            present,
        )
        return self.feed_forward_residual(x, self.feed_forward, present)  # type: ignore[no-any-return]

    @override
    def _check_call(self, x: Tensor, memory: Tensor, **options: Any) -> None:
        for name, value in (("x", x), ("memory", memory)):
            self._check_input(value, self.feed_forward.inner.in_features, self.feed_forward.inner.weight, name=name)


# --- stacks of layers ---


def _bias(config: ModelConfig, causal: bool) -> nn.Module:
    try:
        bias = BIASES["relative" if config.relative_bias else config.positions](config, causal)
    except TypeError as error:
        raise TransduceError(
            f"`model.positions` = {config.positions} cannot be built: {error}. It is called with the configuration and "
            "whether the stack is causal."
        ) from None
    if config.positions in REGISTERED_NAMES["positions"] and not torch.empty(0).is_meta:
        _check_bias(bias, config)
    return bias


def _check_bias(bias: nn.Module, config: ModelConfig) -> None:
    """Check that a registered position scheme maps positions of queries and keys to a bias of attention scores.

    Raises:
        TransduceError: it does something else, such as adding positions to embeddings.
    """
    queries, keys = torch.arange(2), torch.arange(3)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = bias(queries, keys)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        result = f"it fails with {type(error).__name__}: {error}"
    else:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if shape in ((1, config.num_heads, 2, 3), (1, 1, 2, 3)):
            return
        result = f"the result has the shape {shape}"
    raise TransduceError(
        f"`model.positions` = {config.positions} must be a bias on attention scores, a module that maps the positions "
        f"of queries (Q,) and keys (L,) to (1, heads, Q, L), but with 2 queries and 3 keys {result}. Positions that "
        "are added to embeddings cannot be registered: change `build_embedding_positions` (docs/adding.md)."
    )


class StackPositions(nn.Module):
    """A module that makes the mask and the position encodings for the self-attention of all layers of a stack.

    It holds the rotary embedding or the bias of attention scores by positions, which the layers share.
    """

    def __init__(self, config: ModelConfig, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.num_layers = config.num_decoder_layers if causal else config.num_encoder_layers
        self.radius = config.attention_window
        self.rotary = _rotary(config) if config.positions in ("rotary", "rotary-interleaved") else None
        # Model folders name the weights of every bias `relative`.
        self.relative = _bias(config, causal) if config.relative_bias or config.positions in BIASES else None
        self.is_plain = self.rotary is None and self.bias is None and self.radius is None

    @property
    def bias(self) -> nn.Module | None:
        """The module that makes the term of attention scores that depends on positions; None if there is none."""
        return self.relative

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask | None,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
        end: int | None = None,
    ) -> tuple[AttentionMask | Window | None, PositionEffect]:
        """Return the attention mask and the position effects that all layers of a stack share.

        Args:
            x: the embedded inputs, (B, T, D).
            mask: hides padding, or positions that a hypothesis does not see. None: a decoder uses the look-ahead mask,
                and an encoder hides nothing.
            positions: the positions of the inputs, (T,) or (B, T); None: the next ones after the cached positions.
            cache: the cache of a decoder. The positions are added to it if attention depends on them.
            end: a number above all positions, if it is known.

        Returns:
            A tuple of the mask of self-attention and a `PositionEffect`. The mask is None if nothing is hidden, and a
            `Window` for a long sequence with a window.
        """
        length, cached = x.shape[1], 0 if cache is None else cache.length
        # A mask of length × length would cost more than the window saves.
        long = self.radius is not None and not cached and length > 3 * block_length(self.radius)
        banded = long and not (self.causal and mask is not None) and not isinstance(mask, BiasedMask)
        if self.causal and mask is None and length > 1 and not banded:
            mask = look_ahead_mask(length, x.device, cached=cached)
        if self.is_plain:
            return mask, NO_POSITION_EFFECT
        if positions is None:
            end = cached + length
            positions = torch.arange(cached, cached + length, device=x.device)
        keys = positions if cache is None else cache.append_positions(positions)
        rotation = None if self.rotary is None else self.rotary(positions, x.dtype, end)
        if banded and self.radius is not None:
            present = None if mask is None else mask.allowed[:, 0, 0]
            return Window(self.radius, self.causal, present, self.bias), PositionEffect(rotation)
        first_key = 0
        if self.radius is not None:
            mask, first_key = _narrow(mask, window_mask(positions, keys, self.radius))
        if self.bias is not None:
            mask = _with_bias(mask, self.bias(positions, keys[..., first_key:]))
        return mask, PositionEffect(rotation, first_key)


def _rotary(config: ModelConfig) -> RotaryPositions:
    return RotaryPositions(
        config.key_width,
        base=config.rotary_base,
        interleaved=config.positions == "rotary-interleaved",
        scaling=config.rotary_scaling,
    )


def _narrow(mask: AttentionMask | None, near: AttentionMask) -> tuple[AttentionMask, int]:
    """Combine an attention mask with the window mask `near`, and drop the leading keys that no query reaches.

    `mask` may be None.

    Returns:
        The mask of the remaining keys, and the number of dropped keys.
    """
    reached = near.allowed.flatten(0, 2).any(dim=0)  # (L,)
    first = int(reached.to(torch.int8).argmax())
    near = near.from_key(first)
    return near if mask is None else mask.from_key(first) & near, first


def _with_bias(mask: AttentionMask | None, bias: Tensor) -> AttentionMask:
    allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=bias.device) if mask is None else mask.allowed
    return BiasedMask(allowed, bias + mask.term if isinstance(mask, BiasedMask) else bias, mask)


def build_layers(make: Callable[[ModelConfig], nn.Module], config: ModelConfig, count: int) -> nn.ModuleList:
    """Build the layers of a stack as an `nn.ModuleList`: `count` layers, or one if the configuration shares weights.

    `make` builds a layer from the configuration, as the class `EncoderLayer` does.
    """
    return nn.ModuleList(make(config) for _ in range(1 if config.share_layers else count))


def each_layer(layers: nn.ModuleList, count: int) -> Iterator[nn.Module]:
    """Yield `count` layers of a stack in the order of computation; a single layer with shared weights is repeated."""
    return islice(cycle(layers), count)


def run_stack(
    stack: StackPositions,
    layers: nn.ModuleList,
    norm: nn.Module,
    x: Tensor,
    mask: AttentionMask | None,
    *inputs: Tensor,
    positions: Tensor | None = None,
    cache: DecoderCache | None = None,
    present: Tensor | None = None,
    end: int | None = None,
    **options: Any,
) -> Tensor:
    """Compute all layers of a stack in turn, then the norm after the last one: (B, T, D) to (B, T, D).

    Args:
        stack: makes the mask and the positions that the layers share.
        layers: the layers, as `build_layers` returns them.
        norm: the norm after the last layer.
        x: the embedded inputs.
        mask: as in `StackPositions`.
        *inputs: further inputs of every layer, such as the encoder's output.
        positions: as in `StackPositions`.
        cache: the keys and values of past positions; None: there are none.
        present: the positions that a BatchNorm counts, (B, T); None: all.
        end: as in `StackPositions`.
        **options: other keyword arguments of every layer.
    """
    known_end = {"end": end} if type(stack) is StackPositions else {}  # a subclass may not have this argument
    self_mask, position_effect = stack(x, mask, positions, cache, **known_end)
    for number, layer in enumerate(each_layer(layers, stack.num_layers)):
        x = layer(
            x,
            *inputs,
            mask=self_mask,
            position_effect=position_effect,
            present=present,
            cache=None if cache is None else cache.layers[number],
            **options,
        )
    return normalize(norm, x, present)
