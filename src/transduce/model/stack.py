"""What all layers of a stack share: the mask of self-attention, the positions that act on it, and the order of layers.

Legend: B batch, T positions of the input, L attended positions, D model width, K width of a head's keys.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, islice

import torch
from torch import Tensor, nn

from transduce.model.attention import DecoderCache
from transduce.model.config import ModelConfig
from transduce.model.masks import AttentionMask, BiasedMask, look_ahead_mask, window_mask
from transduce.model.positions import BIASES, EVERYWHERE, Reach, RotaryPositions
from transduce.model.window import Window, block_length


class StackPositions(nn.Module):
    """The mask and the positions that act on the self-attention of all layers of a stack.

    It holds the bias by distance, which the layers share.
    """

    def __init__(self, config: ModelConfig, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.radius = config.attention_window
        self.rotary = _rotary(config) if config.positions in ("rotary", "rotary-interleaved") else None
        self.relative = BIASES[config.positions](config, causal) if config.positions in BIASES else None
        self.is_plain = self.rotary is None and self.relative is None and self.radius is None

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask | None,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> tuple[AttentionMask | Window | None, Reach]:
        """Return the mask and the reach for one pass through the stack; they are the same in each layer.

        Args:
            x: the embedded inputs, (B, T, D).
            mask: hides padding, or says which positions each hypothesis sees; None in a decoder: the look-ahead mask.
            positions: (T,) or (B, T); None: those after the cached positions.
            cache: the cache of a decoder; the positions are added to it.
        """
        length, cached = x.shape[1], 0 if cache is None else cache.length
        # A mask of length × length would cost more than the window saves.
        long = self.radius is not None and not cached and length > 3 * block_length(self.radius)
        banded = long and not (self.causal and mask is not None)
        if self.causal and mask is None and length > 1 and not banded:
            mask = look_ahead_mask(length, x.device, cached=cached)
        if self.is_plain:
            return mask, EVERYWHERE
        end = cached + length if positions is None else None
        if positions is None:
            positions = torch.arange(cached, cached + length, device=x.device)
        keys = positions if cache is None else cache.append_positions(positions)
        rotation = None if self.rotary is None else self.rotary(positions, x.dtype, end)
        if banded and self.radius is not None:
            present = None if mask is None else mask.allowed[:, 0, 0]
            return Window(self.radius, self.causal, present, self.relative), Reach(rotation)
        first_key = 0
        if self.radius is not None:
            mask, first_key = _narrow(mask, window_mask(positions, keys, self.radius))
        if self.relative is not None:
            mask = _with_bias(mask, self.relative(positions, keys[..., first_key:]))
        return mask, Reach(rotation, first_key)


def _rotary(config: ModelConfig) -> RotaryPositions:
    return RotaryPositions(
        config.key_width,
        base=config.rotary_base,
        interleaved=config.positions == "rotary-interleaved",
        scaling=config.rotary_scaling,
    )


def _narrow(mask: AttentionMask | None, near: AttentionMask) -> tuple[AttentionMask, int]:
    """Combine two masks from the first key that any query is near to, and return that key's index too."""
    reached = near.allowed.flatten(0, 2).any(dim=0)  # (L,)
    first = int(reached.to(torch.int8).argmax())
    allowed = near.allowed[..., first:]
    if mask is None:
        return AttentionMask(allowed), first
    narrowed = mask.allowed if mask.allowed.shape[-1] == 1 else mask.allowed[..., first:]
    return AttentionMask(narrowed & allowed), first


def _with_bias(mask: AttentionMask | None, bias: Tensor) -> AttentionMask:
    allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=bias.device) if mask is None else mask.allowed
    return BiasedMask(allowed, bias)


def build_layers(make: Callable[[ModelConfig], nn.Module], config: ModelConfig, count: int) -> nn.ModuleList:
    """Build the layers of a stack: `count` layers, or a single one if the configuration shares it."""
    return nn.ModuleList(make(config) for _ in range(1 if config.share_layers else count))


def each_layer(layers: nn.ModuleList, count: int) -> Iterator[nn.Module]:
    """Yield the layers in the order in which they are computed."""
    return islice(cycle(layers), count)
