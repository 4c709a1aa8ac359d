"""Self-attention restricted to a neighbourhood, computed block by block: its cost is length × radius.

A sequence is cut into blocks at least as long as the radius. The queries of a block attend to the block itself, to the
one before it and, where the future is visible, to the one after it; some blocks at a time stand side by side in the
batch.
Legend: B batch, H heads, L positions, K width of a key, V width of a value, N blocks, b positions of a block,
s positions that a block sees: 2b or 3b.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from transduce.model.dropout import Dropout
from transduce.model.masks import AttentionMask, BiasedMask, band_mask
from transduce.model.positions import RelativePositions
from transduce.model.scores import Attend

_SHORTEST_BLOCK = 32
_SCORES_AT_ONCE = 2**20  # on a CPU: 4 MiB


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
    found: list[Tensor] = []
    parts: list[Tensor] | None = None if weights_to is None else []
    for first, last in _turns(blocks, batch * heads * block * span, query.device):
        # What these blocks see, (B × N, H, …), rows without gaps, as fused kernels want them.
        asking = queries[:, :, first:last].transpose(1, 2).flatten(0, 1)
        asked, told = (x[:, :, first:last].transpose(1, 2).mT.flatten(0, 1) for x in (keys, values))
        seen = present[:, first * block : (last - 1) * block + span]
        mask = _mask(window, seen, (block, span), query.device)
        part = attend(asking, asked, told, mask, dropout=dropout, weights_to=parts)
        found.append(part.unflatten(0, (batch, last - first)))
    if weights_to is not None and parts:
        weights_to.append(_as_full(torch.cat([part.unflatten(0, (batch, -1)) for part in parts], dim=1), length))
    joined: Tensor = torch.cat(found, dim=1).transpose(1, 2).flatten(2, 3)  # (B, H, N × b, V)
    return joined[:, :, :length]


def _turns(blocks: int, scores: int, device: torch.device) -> Iterable[tuple[int, int]]:
    """First block and end of what is computed at a time: so many that their scores, of which each block has this
    number, stay in a processor's cache. On a GPU all, by no loop, as compiled layers are then for any number of blocks.
    """
    if device.type != "cpu":
        return [(0, blocks)]
    at_once = max(1, _SCORES_AT_ONCE // scores)
    return [(first, min(blocks, first + at_once)) for first in range(0, blocks, at_once)]


def _mask(window: Window, present: Tensor, sizes: tuple[int, int], device: torch.device) -> AttentionMask:
    """Of some blocks, by which of the positions that they see are there."""
    block, span = sizes
    mask = band_mask(block, window.radius, present, causal=window.causal)
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
