"""What tells the order of the pieces: sinusoids (section 3.5), a learned table, rotations, a bias by distance.

PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/d)): one frequency for each *pair* of
dimensions (2i, 2i+1). Here a table is laid out as all sines, then all cosines, which is what Marian and Pegasus hold;
the paper interleaves them. The two differ by a permutation of dimensions, `interleaving`.

Positions are counted from 0 in each sequence; where they are given, they have the shape (T,), or (B, T) where the
sequences of a batch differ.
Legend: B batch, T positions, Q queries, L keys, D model width, H heads, K width of a head's queries and keys.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig, RotaryScaling


def sinusoids(length: int, d_model: int, *, interleaved: bool = False, to_end: bool = False) -> Tensor:
    """The table of positional encodings.

    Args:
        length: number of positions, from 0.
        d_model: width, an even number.
        interleaved: the paper's own layout (sine, cosine, sine, …) in place of sines, then cosines.
        to_end: the exponent 2i / (d_model - 2) in place of 2i / d_model, as M2M100 has it: the longest wavelength is
            then exactly 10000 · 2π.

    Returns:
        float32, (length, d_model).
    """
    pair = torch.arange(d_model // 2, dtype=torch.float64)
    frequency = 10000.0 ** (-2.0 * pair / (max(2, d_model - 2) if to_end else d_model))
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

    def __init__(self, d_model: int, *, offset: int = 0, to_end: bool = False) -> None:
        super().__init__()
        self.d_model = d_model
        self.offset = offset
        self.to_end = to_end
        self.register_buffer("table", torch.empty(0, d_model, device="cpu"), persistent=False)

    def forward(self, x: Tensor, positions: Tensor | None = None, end: int | None = None) -> Tensor:
        """Embeddings (B, T, D) plus positions, 0 … T-1 or as given in `positions`, all before `end` if it is known."""
        first = self.offset
        table = self.until(first + _end(x, positions, end), x)
        return x + (table[first : first + x.shape[1]] if positions is None else table[positions + first])

    def until(self, needed: int, like: Tensor) -> Tensor:
        """The table, of so many rows at least, where and as `like` is."""
        table = self.table  # another thread may replace it meanwhile
        if needed > len(table) or table.dtype != like.dtype or table.device != like.device:
            rows = max(needed, 2 * len(table), 256)
            self.table = table = sinusoids(rows, self.d_model, to_end=self.to_end).to(like)
        return table


def _end(x: Tensor, positions: Tensor | None, end: int | None) -> int:
    """What all positions come before. Asking a GPU is waiting for it."""
    if positions is None:
        return x.shape[1]
    return int(positions.max()) + 1 if end is None else end


class LearnedPositions(nn.Module):
    """Adds its position's row of a table that is learned: BERT's, GPT-2's and BART's positions."""

    def __init__(self, length: int, d_model: int, *, offset: int = 0) -> None:
        super().__init__()
        self.length = length
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(offset + length, d_model))  # the first `offset` rows are not used

    def forward(self, x: Tensor, positions: Tensor | None = None, end: int | None = None) -> Tensor:
        """Embeddings (B, T, D) plus positions, 0 … T-1 or as given in `positions`, all before `end` if it is known.

        Raises:
            TransduceError: the sequence is longer than the table.
        """
        needed = _end(x, positions, end)
        self.check(needed)
        first = self.offset
        return x + (self.weight[first : first + needed] if positions is None else self.weight[positions + first])

    def check(self, needed: int) -> None:
        """Whether there are so many positions.

        Raises:
            TransduceError: the sequence is longer than the table.
        """
        if needed > self.length:
            raise TransduceError(
                f"The model's learned positions end at {self.length} pieces (`model.max_positions`), but a sequence "
                f"has {needed}: shorten the input or the longest output."
            )


class NoPositions(nn.Module):
    """The stand-in where embeddings carry no positions: an encoder without others sees a bag of pieces."""

    def forward(self, x: Tensor, positions: Tensor | None = None, end: int | None = None) -> Tensor:  # noqa: ARG002
        """Returns the embeddings as they are."""
        return x


def build_embedding_positions(config: ModelConfig) -> SinusoidalPositions | LearnedPositions | NoPositions:
    """What is added to the embeddings. Rotations and the bias by distance act in self-attention instead."""
    if config.kind == "recurrent":
        return NoPositions()
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.d_model, offset=config.position_offset, to_end=config.sinusoids_to_end)
    if config.positions == "learned":
        return LearnedPositions(config.max_positions, config.d_model, offset=config.position_offset)
    return NoPositions()


class Rotation(NamedTuple):
    """Turns each pair of a query's or key's dimensions by an angle that grows with the position (Su et al. 2021).

    The product of a turned query with a turned key then depends on their distance alone.
    """

    cosine: Tensor
    """(T, K / 2), or (B, 1, T, K / 2) where the positions of sentences differ."""
    sine: Tensor
    """Of the same shape."""
    interleaved: bool
    """Pairs are (2i, 2i + 1), as in the paper; otherwise (i, i + K / 2), as in Llama."""

    def apply(self, x: Tensor) -> Tensor:
        """Queries or keys, (B, H, T, K), turned."""
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1) if self.interleaved else x.chunk(2, dim=-1)
        turned = (first * self.cosine - second * self.sine, second * self.cosine + first * self.sine)
        return torch.stack(turned, dim=-1).flatten(-2) if self.interleaved else torch.cat(turned, dim=-1)


class Reach(NamedTuple):
    """How the positions of a pass act in the self-attention of each layer, beside the mask."""

    rotation: Rotation | None = None
    """Turns queries and keys."""
    first_key: int = 0
    """Cached keys before this one are out of everybody's reach; the mask begins with it."""


EVERYWHERE = Reach()


class RotaryPositions(nn.Module):
    """Makes rotations. The table of cosines and sines grows when a longer sequence comes."""

    table: Tensor

    def __init__(
        self, width: int, *, base: float = 10000.0, interleaved: bool = False, scaling: RotaryScaling | None = None
    ) -> None:
        super().__init__()
        self.width = width
        self.base = base
        self.scaling = scaling
        self.interleaved = interleaved
        self.register_buffer("table", torch.empty(0, width, device="cpu"), persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype, end: int | None = None) -> Rotation:
        """The rotation at these positions, (T,) or (B, T), which are all before `end` where that is known."""
        needed = int(positions.max()) + 1 if end is None else end  # asking a GPU is waiting for it
        table = self.table  # another thread may replace it meanwhile
        if needed > len(table) or table.dtype != dtype or table.device != positions.device:
            # A tensor made in inference mode could not serve training later.
            with torch.inference_mode(mode=False):
                table = self._angles(max(needed, 2 * len(table), 256)).to(positions.device, dtype)
                self.table = table
        rows = table[positions]
        if positions.dim() == 2:
            rows = rows[:, None]
        cosine, sine = rows.chunk(2, dim=-1)
        return Rotation(cosine, sine, self.interleaved)

    def _angles(self, length: int) -> Tensor:
        """Cosines, then sines, (length, K)."""
        pair = torch.arange(self.width // 2, dtype=torch.float64)
        frequency = self.base ** (-2.0 * pair / self.width)
        if self.scaling is not None:
            frequency = _stretched(frequency, self.scaling)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency  # (length, K / 2)
        return torch.cat([angle.cos(), angle.sin()], dim=1)


def _stretched(frequency: Tensor, scaling: RotaryScaling) -> Tensor:
    """Low frequencies divided by the factor, high ones kept."""
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns = scaling.original_length * frequency / (2.0 * math.pi)  # in the original length
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequency * (kept + (1.0 - kept) / scaling.factor)


class RelativePositions(nn.Module):
    """T5's bias on the scores: one learned number a head for each bucket of distances (Raffel et al. 2020).

    Half of the buckets hold one distance each; the others grow logarithmically up to the greatest distance.
    """

    def __init__(self, *, num_buckets: int, max_distance: int, num_heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """The bias of every query at every key, (1 or B, H, Q, L), of positions (Q,) and (L,), or (B, Q) and (B, L)."""
        distance = key_positions[..., None, :] - query_positions[..., :, None]  # (Q, L) or (B, Q, L)
        bias = F.embedding(self.buckets(distance), self.weight)  # (…, Q, L, H)
        bias = bias.movedim(-1, -3).contiguous()  # a GPU's fused attention wants neighbouring keys side by side
        return bias if bias.dim() == 4 else bias[None]

    def buckets(self, distance: Tensor) -> Tensor:
        """The bucket of each distance, key minus query; without `bidirectional` all of the future is distance 0."""
        if self.bidirectional:
            number = self.num_buckets // 2
            start = (distance > 0) * number
            distance = distance.abs()
        else:
            number, start = self.num_buckets, torch.zeros_like(distance)
            distance = (-distance).clamp_min(0)
        exact = number // 2
        growth = torch.log(distance.clamp_min(1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (number - exact)).long()).clamp_max(number - 1)
        return start + torch.where(distance < exact, distance, far)
