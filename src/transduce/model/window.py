"""Self-attention restricted to a neighbourhood, computed block by block: its cost is length × radius.

A sequence is cut into blocks at least as long as the radius. The queries of a block attend to the block itself, to the
one before it and, where the future is visible, to the one after it; the blocks stand side by side in the batch.
Legend: B batch, H heads, L positions, K width of a key, V width of a value, N blocks, b positions of a block,
s positions that a block sees: 2b or 3b.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.model.dropout import Dropout
from transduce.model.masks import AttentionMask, BiasedMask, band_mask
from transduce.model.positions import RelativePositions
from transduce.model.scores import Attend

_SHORTEST_BLOCK = 32


class Window(NamedTuple):
    """Stands for the mask of a whole sequence that is too long for one."""

    radius: int
    causal: bool
    """No position attends to its future."""
    present: Tensor | None
    """Which positions are no padding, (B, L); None: all are."""
    relative: RelativePositions | None
    """A bias by distance."""

    @property
    def block(self) -> int:
        """b."""
        return block_length(self.radius)


def block_length(radius: int) -> int:
    """Positions of a block."""
    return max(radius, _SHORTEST_BLOCK)


def attend_in_window(
    attend: Attend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Window,
    *,
    dropout: Dropout | None = None,
    weights_to: list[Tensor] | None = None,
) -> Tensor:
    """What `attend` computes with the window's mask.

    Args:
        attend: the attention of a block.
        query: (B, H, L, K).
        key: (B, H, L, K).
        value: (B, H, L, V).
        window: who may attend to whom.
        dropout: applied to the weights.
        weights_to: a list that receives the weights as of full attention, (B, H, L, L).

    Returns:
        (B, H, L, V).
    """
    batch, _, length, _ = query.shape
    block = window.block
    blocks = -(-length // block)
    padding = blocks * block - length
    after = padding if window.causal else padding + block
    queries = F.pad(query, (0, 0, 0, padding)).unflatten(2, (blocks, block))  # (B, H, N, b, K)
    queries = queries.transpose(1, 2).flatten(0, 1)  # (B × N, H, b, K)
    span = block + block if window.causal else 3 * block
    keys, values = _seen(key, block, span, after), _seen(value, block, span, after)
    parts: list[Tensor] | None = None if weights_to is None else []
    mask = _mask(window, batch, length, (block, span, after), query.device)
    heads = attend(queries, keys, values, mask, dropout=dropout, weights_to=parts)  # (B × N, H, b, V)
    if weights_to is not None and parts:
        weights_to.append(_as_full(parts[0].unflatten(0, (batch, blocks)), length))
    joined: Tensor = heads.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)  # (B, H, N × b, V)
    return joined[:, :, :length]


def _seen(x: Tensor, block: int, span: int, after: int) -> Tensor:
    """The keys or values that each block sees: (B, H, L, K) to (B × N, H, s, K)."""
    views = F.pad(x, (0, 0, block, after)).unfold(2, span, block)  # (B, H, N, K, s)
    return views.permute(0, 2, 1, 4, 3).flatten(0, 1)


def _mask(window: Window, batch: int, length: int, sizes: tuple[int, int, int], device: torch.device) -> AttentionMask:
    block, span, after = sizes
    present = window.present
    if present is None:
        present = torch.ones(batch, length, dtype=torch.bool, device=device)
    mask = band_mask(block, window.radius, F.pad(present, (block, after)), causal=window.causal)
    if window.relative is None:
        return mask
    positions = torch.arange(span, device=device)
    return BiasedMask(mask.allowed, window.relative(positions[block : 2 * block], positions))


def _as_full(weights: Tensor, length: int) -> Tensor:
    """The weights of blocks, (B, N, H, b, s), in their places among all keys: (B, H, L, L)."""
    batch, blocks, heads, block, span = weights.shape
    full = weights.new_zeros(batch, heads, blocks * block, (blocks - 1) * block + span)
    for number in range(blocks):
        start = number * block
        full[:, :, start : start + block, start : start + span] = weights[:, number]
    return full[:, :, :length, block : block + length]
