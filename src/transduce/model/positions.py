"""Sinusoidal positions (section 3.5).

PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/d)): one frequency for each *pair* of
dimensions (2i, 2i+1). Here a table is laid out as all sines, then all cosines, which is what Marian and Pegasus hold;
the paper interleaves them. The two differ by a permutation of dimensions, `interleaving`.
"""

import torch
from torch import Tensor, nn


def sinusoids(length: int, d_model: int, *, interleaved: bool = False) -> Tensor:
    """The table of positional encodings.

    Args:
        length: number of positions, from 0.
        d_model: width, an even number.
        interleaved: the paper's own layout (sine, cosine, sine, …) in place of sines, then cosines.

    Returns:
        float32, (length, d_model).
    """
    pair = torch.arange(d_model // 2, dtype=torch.float64)
    frequency = 10000.0 ** (-2.0 * pair / d_model)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency  # (length, d_model / 2)
    table = torch.cat([angle.sin(), angle.cos()], dim=1).float()
    return table[:, interleaving(d_model)] if interleaved else table


def interleaving(d_model: int) -> Tensor:
    """The permutation that takes sines-then-cosines to the paper's layout: ``interleaved = halves[:, permutation]``."""
    half = d_model // 2
    return torch.stack([torch.arange(half), torch.arange(half, d_model)], dim=1).flatten()


class SinusoidalPositions(nn.Module):
    """Adds its position's row to each embedding. The table is made, and grows, when a longer sequence comes."""

    table: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", torch.empty(0, d_model, device="cpu"), persistent=False)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embeddings (B, T, D) plus positions, 0 … T-1 or as given in `positions` (T,)."""
        needed = x.shape[1] if positions is None else int(positions.max()) + 1
        if needed > len(self.table) or self.table.dtype != x.dtype or self.table.device != x.device:
            self.table = sinusoids(max(needed, 2 * len(self.table), 256), self.d_model).to(x)
        return x + (self.table[: x.shape[1]] if positions is None else self.table[positions])


class NoPositions(nn.Module):
    """The stand-in where positions are switched off: the encoder then sees a bag of pieces."""

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """Returns the embeddings as they are."""
        return x
