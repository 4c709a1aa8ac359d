"""Encode positions: sinusoids (section 3.5), a learned table, rotary embeddings, a relative position bias.

PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/d)): one frequency for each pair of
dimensions (2i, 2i+1). Here a table has all sines first, then all cosines, like Marian's and Pegasus'; the paper
interleaves them. The two differ by a permutation of dimensions, `interleaving`.

Positions are counted from 0 in each sequence. As an argument they have the shape (T,), or (B, T) if the sequences of a
batch differ. Legend: B batch, T positions, Q queries, L keys, D model width, H heads, K width of a head's queries and
keys.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig, RotaryScaling


def sinusoids(length: int, d_model: int, *, interleaved: bool = False, to_end: bool = False) -> Tensor:
    """Return the table of sinusoidal position encodings.

    Args:
        length: number of positions, from 0.
        d_model: width, an even number.
        interleaved: the paper's layout (sine, cosine, sine, …) in place of sines, then cosines.
        to_end: the exponent 2i / (d_model - 2) in place of 2i / d_model, as in M2M100: the longest wavelength is then
            exactly 10000 · 2π.

    Returns:
        float32, (length, d_model).

    Raises:
        TransduceError: d_model is odd.
    """
    if d_model % 2:
        raise TransduceError(
            f"Sinusoids encode a position in pairs of dimensions, so `d_model` must be even, but it is {d_model}."
        )
    pair = torch.arange(d_model // 2, dtype=torch.float64)
    frequency = 10000.0 ** (-2.0 * pair / (max(2, d_model - 2) if to_end else d_model))
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency  # (length, d_model / 2)
    table = torch.cat([angle.sin(), angle.cos()], dim=1).float()
    return table[:, interleaving(d_model)] if interleaved else table


def interleaving(d_model: int) -> Tensor:
    """Return the permutation of dimensions from [sines, cosines] to the paper's alternating order, (d_model,).

    ``interleaved = halves[:, permutation]``
    """
    half = d_model // 2
    return torch.stack([torch.arange(half), torch.arange(half, d_model)], dim=1).flatten()


class _Tabulated(nn.Module):
    """A base class of modules that look up positions in a table, (rows, width).

    The row of a position does not depend on the sequence. The table is in the attribute `table`, and grows for longer
    sequences. It is not a buffer, because weight averages and PyTorch's DDP copy buffers, and the tables of two models
    may differ in length.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = torch.empty(0, width, device="cpu")

    def compute_table(self, length: int) -> Tensor:
        """Return the rows of the table for positions 0 … length - 1, on the CPU; subclasses define this method."""
        raise NotImplementedError

    def until(self, needed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a table of at least `needed` rows on a device, in a dtype.

        If the stored table is too short or has another device or dtype, a new one is computed and stored.
        """
        table = self.table  # one read, because another thread may replace the table
        if needed > len(table) or table.dtype != dtype or table.device != device:
            # A tensor made in inference mode cannot be used in training; `torch.compile` traces no keyword here.
            with torch.inference_mode(False):  # noqa: FBT003
                self.table = table = self.compute_table(max(needed, 2 * len(table), 256)).to(device, dtype)
        return table

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # The module moves to another device or dtype: no table stays behind, such as in a GPU's memory or in a pickle.
        self.table = torch.empty(0, self.table.shape[1], device="cpu")
        return super()._apply(fn, recurse)  # type: ignore[no-any-return,no-untyped-call]

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if (table := self._buffers.pop("table", None)) is not None:  # a model that version 0.1 pickled, with a buffer
            self._non_persistent_buffers_set.discard("table")
            self.table = table


class SinusoidalPositions(_Tabulated):
    """A module that adds sinusoids to embeddings; its table is extended for longer sequences."""

    def __init__(self, d_model: int, *, offset: int = 0, to_end: bool = False) -> None:
        super().__init__(d_model)
        self.d_model = d_model
        self.offset = offset
        self.to_end = to_end

    def forward(self, x: Tensor, positions: Tensor | None = None, end: int | None = None) -> Tensor:
        """Add position encodings to embeddings: (B, T, D) to (B, T, D).

        `positions`, (T,) or (B, T), defaults to 0 … T-1. `end`, if it is known, is greater than all positions.
        """
        first = self.offset
        table = self.until(first + _end(x, positions, end), x.device, x.dtype)
        return x + (table[first : first + x.shape[1]] if positions is None else table[positions + first])

    @override
    def compute_table(self, length: int) -> Tensor:
        return sinusoids(length, self.d_model, to_end=self.to_end)


def _end(x: Tensor, positions: Tensor | None, end: int | None) -> int:
    """Return the number of table rows that the positions of embeddings x, (B, T, D), need.

    Without `positions` it is T. With `positions` it is `end` or, if `end` is None, the greatest position plus 1.
    Reading the greatest position from a GPU is slow.
    """
    if positions is None:
        return x.shape[1]
    return int(positions.max()) + 1 if end is None else end


class LearnedPositions(nn.Module):
    """A module that adds a learned vector for each position to embeddings, as in BERT, GPT-2 and BART."""

    def __init__(self, length: int, d_model: int, *, offset: int = 0) -> None:
        super().__init__()
        self.length = length
        self.offset = offset
        self.weight = nn.Parameter(torch.empty(offset + length, d_model))  # the first `offset` rows are not used

    def forward(self, x: Tensor, positions: Tensor | None = None, end: int | None = None) -> Tensor:
        """Add position encodings to embeddings: (B, T, D) to (B, T, D).

        `positions`, (T,) or (B, T), defaults to 0 … T-1. `end`, if it is known, is greater than all positions.

        Raises:
            TransduceError: a position, or `end` - 1, has no row in the table.
        """
        needed = _end(x, positions, end)
        self.check(needed)
        first = self.offset
        return x + (self.weight[first : first + needed] if positions is None else self.weight[positions + first])

    def check(self, needed: int) -> None:
        """Check that the table has at least `needed` positions.

        Raises:
            TransduceError: the table is shorter.
        """
        if needed > self.length:
            raise TransduceError(
                f"The model's learned positions end at {self.length} tokens (`model.max_positions`), but a sequence "
                f"has {needed}: shorten the input or the longest output."
            )


class NoPositions(nn.Module):
    """A module in place of position encodings that adds nothing to the embeddings."""

    def forward(self, x: Tensor, positions: Tensor | None = None, end: int | None = None) -> Tensor:  # noqa: ARG002
        """Return the embeddings unchanged, since no positions are added to them."""
        return x


def build_embedding_positions(config: ModelConfig) -> SinusoidalPositions | LearnedPositions | NoPositions:
    """Build the module that adds position encodings to embeddings.

    The module adds nothing if positions act in self-attention (rotary embeddings and biases), or in a recurrent model.
    """
    if config.kind == "recurrent":
        return NoPositions()
    if config.positions == "sinusoidal":
        return SinusoidalPositions(
            config.embedding_width, offset=config.position_offset, to_end=config.sinusoids_to_end
        )
    if config.positions == "learned":
        return LearnedPositions(config.max_positions, config.embedding_width, offset=config.position_offset)
    return NoPositions()


class Rotation(NamedTuple):
    """A rotary embedding at given positions: it rotates pairs of dimensions of queries and keys (Su et al. 2021).

    The angle grows with the position, so the product of a rotated query and a rotated key depends on their distance
    alone.
    """

    cosine: Tensor
    """The cosines of the angles, (T, K / 2), or (B, 1, T, K / 2) if the positions of sentences differ."""
    sine: Tensor
    """The sines of the angles, in the shape of `cosine`."""
    interleaved: bool
    """True if pairs are dimensions (2i, 2i + 1), as in the paper; otherwise (i, i + K / 2), as in Llama."""

    def apply(self, x: Tensor) -> Tensor:
        """Rotate queries or keys, (B, H, T, K), by the angles of their positions."""
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1) if self.interleaved else x.chunk(2, dim=-1)
        rotated = (first * self.cosine - second * self.sine, second * self.cosine + first * self.sine)
        return torch.stack(rotated, dim=-1).flatten(-2) if self.interleaved else torch.cat(rotated, dim=-1)


class PositionEffect(NamedTuple):
    """The effect of positions on self-attention, which all layers share.

    It does not include a bias of the scores, which is in the mask.
    """

    rotation: Rotation | None = None
    """The rotary embedding of queries and keys; None: the model has none."""
    first_key: int = 0
    """The index of the first cached key that is near enough to any query; the mask begins with this key."""


NO_POSITION_EFFECT = PositionEffect()


class RotaryPositions(_Tabulated):
    """A module that makes rotary embeddings; a row of its table, (rows, K), has the cosines, then the sines."""

    def __init__(
        self, width: int, *, base: float = 10000.0, interleaved: bool = False, scaling: RotaryScaling | None = None
    ) -> None:
        super().__init__(width)
        self.width = width
        self.base = base
        self.scaling = scaling
        self.interleaved = interleaved

    def forward(self, positions: Tensor, dtype: torch.dtype, end: int | None = None) -> Rotation:
        """Return the rotary embedding (a `Rotation`) at positions (T,) or (B, T).

        All positions are below `end`, if that is known.
        """
        needed = int(positions.max()) + 1 if end is None else end  # reading a value from a GPU waits for it
        rows = self.until(needed, positions.device, dtype)[positions]
        if positions.dim() == 2:
            rows = rows[:, None]
        cosine, sine = rows.chunk(2, dim=-1)
        return Rotation(cosine, sine, self.interleaved)

    @override
    def compute_table(self, length: int) -> Tensor:
        pair = torch.arange(self.width // 2, dtype=torch.float64)
        frequency = self.base ** (-2.0 * pair / self.width)
        if self.scaling is not None:
            frequency = _scaled_frequencies(frequency, self.scaling)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency  # (length, K / 2)
        return torch.cat([angle.cos(), angle.sin()], dim=1)


def _scaled_frequencies(frequency: Tensor, scaling: RotaryScaling) -> Tensor:
    """Scale the frequencies of rotary embeddings, (K / 2,), for a longer context than in pre-training (Llama 3.1).

    Low frequencies are divided by `scaling.factor`, and high ones stay. Between them the divisor changes gradually.
    """
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    rotations = scaling.original_length * frequency / (2.0 * math.pi)  # rotations within the original context
    share = ((rotations - low) / (high - low)).clamp(0.0, 1.0)
    return frequency * (share + (1.0 - share) / scaling.factor)


class RelativePositions(nn.Module):
    """T5's relative position bias: a learned number for each head and bucket of distances (Raffel et al. 2020).

    Half of the buckets hold one distance each; the others grow logarithmically up to the greatest distance.
    """

    def __init__(self, *, num_buckets: int, max_distance: int, num_heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(num_buckets, num_heads))

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias of each query at each key, (1 or B, H, Q, L).

        Positions are (Q,) and (L,), or (B, Q) and (B, L).
        """
        distance = key_positions[..., None, :] - query_positions[..., :, None]  # (Q, L) or (B, Q, L)
        bias = F.embedding(self.buckets(distance), self.weight)  # (…, Q, L, H)
        bias = bias.movedim(-1, -3).contiguous()  # fused attention on a GPU requires contiguous keys
        return bias if bias.dim() == 4 else bias[None]

    def buckets(self, distance: Tensor) -> Tensor:
        """Return a tensor of each distance's bucket index, shaped like `distance` (key minus query position).

        If not `bidirectional`, keys in the future have distance 0.
        """
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


BIASES: dict[str, Callable[[ModelConfig, bool], nn.Module]] = {
    "relative": lambda config, causal: RelativePositions(
        num_buckets=config.relative_buckets,
        max_distance=config.relative_max_distance,
        num_heads=config.num_heads,
        bidirectional=not causal,
    )
}
"""A dict from a name in the setting `model.positions` to the function that builds a bias of attention scores.

The function gets the configuration, and True for layers with a look-ahead mask. The bias is a module with the arguments
and the result of `RelativePositions.forward`.
"""
