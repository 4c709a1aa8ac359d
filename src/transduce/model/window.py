"""Self-attention restricted to a window, computed block by block, at a cost of length × radius.

A sequence is cut into blocks at least as long as the radius. The queries of a block attend to the block itself, to the
one before it and, where the future is visible, to the one after it. Several blocks are computed at once, as a batch.
Legend: B batch, H heads, L positions, K width of a key, V width of a value, N blocks, b positions of a block,
s positions that a block sees: 2b or 3b.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.feed_forward import Dropout
from transduce.model.masks import AttentionMask, BiasedMask, band_mask
from transduce.model.scores import Attend

_SHORTEST_BLOCK = 32
_SCORES_AT_ONCE = 2**20  # 4 MiB in float32: scores stay in the cache of a CPU


class Window(NamedTuple):
    """A description of a window that replaces the mask of a sequence whose mask would be too large."""

    radius: int
    causal: bool
    """Whether each position is hidden from all before it."""
    present: Tensor | None
    """Which positions are no padding, (B, L); None: all."""
    relative: nn.Module | None
    """A bias by distance; None: none."""

    @property
    def block(self) -> int:
        """Return b, the number of positions of a block."""
        return block_length(self.radius)


def block_length(radius: int) -> int:
    """Return the number of positions of a block for a radius."""
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
    """Return what `attend` would compute with the window's mask.

    Args:
        attend: the attention of a block.
        query: (B, H, L, K).
        key: (B, H, L, K).
        value: (B, H, L, V).
        window: which keys each query sees.
        dropout: applied to the weights.
        weights_to: a list that receives the weights as of full attention, (B, H, L, L).

    Returns:
        (B, H, L, V).
    """
    batch, heads, length, _ = query.shape
    block = window.block
    blocks = -(-length // block)
    padding = blocks * block - length
    after = padding if window.causal else padding + block
    span = block + block if window.causal else 3 * block
    queries = F.pad(query, (0, 0, 0, padding)).unflatten(2, (blocks, block))  # (B, H, N, b, K)
    keys, values = (F.pad(x, (0, 0, block, after)).unfold(2, span, block) for x in (key, value))  # (B, H, N, K, s)
    present = window.present
    if present is None:
        present = torch.ones(batch, length, dtype=torch.bool, device=query.device)
    present = F.pad(present, (block, after))
    outputs: list[Tensor] = []
    parts: list[Tensor] | None = None if weights_to is None else []
    for first, last in _ranges(blocks, batch * heads * block * span, query.device):
        # (B × N, H, …) with contiguous rows, as fused kernels require.
        block_queries = queries[:, :, first:last].transpose(1, 2).flatten(0, 1)
        block_keys, block_values = (x[:, :, first:last].transpose(1, 2).mT.flatten(0, 1) for x in (keys, values))
        seen = present[:, first * block : (last - 1) * block + span]
        mask = _mask(window, seen, (block, span), query.device)
        part = attend(block_queries, block_keys, block_values, mask, dropout=dropout, weights_to=parts)
        outputs.append(part.unflatten(0, (batch, last - first)))
    if weights_to is not None and parts:
        weights_to.append(_as_full(torch.cat([part.unflatten(0, (batch, -1)) for part in parts], dim=1), length))
    joined: Tensor = torch.cat(outputs, dim=1).transpose(1, 2).flatten(2, 3)  # (B, H, N × b, V)
    return joined[:, :, :length]


def _ranges(blocks: int, scores: int, device: torch.device) -> Iterable[tuple[int, int]]:
    """Return the ranges of blocks, (first, end), to compute at once.

    `scores` is the number of scores of one block: on a CPU, the scores of a range fit into the cache. A GPU computes
    all blocks at once; without a loop, a compiled layer works for any number of blocks.
    """
    if device.type != "cpu":
        return [(0, blocks)]
    at_once = max(1, _SCORES_AT_ONCE // scores)
    return [(first, min(blocks, first + at_once)) for first in range(0, blocks, at_once)]


def _mask(window: Window, present: Tensor, sizes: tuple[int, int], device: torch.device) -> AttentionMask:
    """Return the mask of some blocks, (block, span) in `sizes`, from the positions that exist among those they see."""
    block, span = sizes
    mask = band_mask(block, window.radius, present, causal=window.causal)
    if window.relative is None:
        return mask
    positions = torch.arange(span, device=device)
    return BiasedMask(mask.allowed, window.relative(positions[block : 2 * block], positions))


def _as_full(weights: Tensor, length: int) -> Tensor:
    """Return the weights of blocks, (B, N, H, b, s), as weights over all keys: (B, H, L, L)."""
    batch, blocks, heads, block, span = weights.shape
    full = weights.new_zeros(batch, heads, blocks * block, (blocks - 1) * block + span)
    for number in range(blocks):
        start = number * block
        full[:, :, start : start + block, start : start + span] = weights[:, number]
    return full[:, :, :length, block : block + length]
