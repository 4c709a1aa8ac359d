"""Compute tables of position encodings for compiled decoding, and emit rotary embedding kernels.

Legend: N rows, T positions, D model width, H heads, K width of a head's queries and keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from transduce.model.native.emit import F32, I64, POINTER, Emitter, Value
from transduce.model.native.rows import Heads
from transduce.model.stack import StackPositions


class PositionTables(NamedTuple):
    """Position encoding tables for positions 0 to T - 1; those that a model does not use are empty."""

    added: Tensor
    """Encodings that are added to embeddings, (T, D)."""
    turns: Tensor
    """Rotary angles (T, K): the cosines, then the sines, of the angle of each pair of dimensions."""
    near: Tensor
    """Relative position biases (H, distances), which are added to attention scores.

    The distance is the key's position minus the query's; the first column is that of 1 - T.
    """
    length: int
    """The number of positions T."""

    def addresses(self) -> dict[str, int]:
        """Return the tables' addresses as arguments of `model_writer.Places`, valid while this object lives."""
        return {
            "added": self.added.data_ptr(),
            "turns": self.turns.data_ptr(),
            "near": self.near.data_ptr() + (self.length - 1) * self.near.element_size(),  # of distance 0
            "near_stride": self.near.shape[1],
        }


class GrowingTables:
    """Position encoding tables of an encoder or a decoder that grow as longer sequences come."""

    def __init__(self, positions: StackPositions, add: Callable[[int], Tensor], most: int) -> None:
        """Start empty.

        Args:
            positions: the stack's position encodings.
            add: returns the encodings (T, D) that are added to embeddings, for a number of positions T.
            most: the greatest number of positions that the model supports.
        """
        self._positions = positions
        self._add = add
        self._most = most
        nothing = torch.empty(0, 0)
        self._tables = PositionTables(nothing, nothing, nothing, 0)

    def until(self, position: int) -> PositionTables:
        """Return tables that include this position; the caller must keep them alive while kernels read them."""
        tables = self._tables  # another thread may replace it by longer tables
        if position >= tables.length:
            tables = self._tables = self._make(max(min(max(2 * position, 64), self._most), position + 1))
        return tables

    def _make(self, count: int) -> PositionTables:
        """Return tables for `count` positions."""
        rotary, relative = self._positions.rotary, self._positions.relative
        added, turns, near = self._add(count), torch.empty(0, 0), torch.empty(0, 0)
        if rotary is not None:
            rotation = rotary(torch.arange(count), torch.float32, count)
            turns = torch.cat([rotation.cosine, rotation.sine], dim=1)
        if relative is not None:
            distances = torch.arange(1 - count, count if relative.bidirectional else 1)
            near = relative(torch.zeros(1, dtype=torch.int64), distances)[0, :, 0]  # (H, distances)
        return PositionTables(added.contiguous(), turns.contiguous(), near.contiguous(), count)


def write_turning(k: Emitter, heads: Heads, *, interleaved: bool) -> None:
    """Emit functions `turn_<kind>(x, N, stride, heads, table, numbers, thread, threads)`: rotary embedding in place.

    Row n of x has `heads` heads, and rows are `stride` elements apart. The position of row n is n - numbers[n] for
    `turn_run`, numbers[n] - 1 for `turn_each`, and for `turn_all` the first position of the table. A pair of dimensions
    is two neighbors if `interleaved`, else two dimensions that are K / 2 apart. K is a multiple of two vectors.
    """
    for kind in ("run", "all", "each"):
        kinds = (POINTER, I64, I64, I64, POINTER, POINTER, I64, I64)
        with k.function(f"turn_{kind}", *kinds) as (x, rows, stride, count, table, numbers, *share):
            first, last = k.share(k.times(rows, count), *share)
            with k.loop(first, last) as item:
                row, head = k.build.sdiv(item, count), k.build.srem(item, count)
                position = k.number(0)
                if kind == "run":
                    position = k.build.sub(row, k.load(k.at(numbers, row, I64), I64))
                elif kind == "each":
                    position = k.sum_of(k.load(k.at(numbers, row, I64), I64), -1)
                angles = k.at(table, k.times(position, heads.width))
                head_pointer = k.at(x, k.sum_of(k.times(row, stride), k.times(head, heads.width)))
                turn_head(k, heads.width, (head_pointer, head_pointer), angles, interleaved=interleaved)


def turn_head(
    k: Emitter, width: int, places: tuple[Value, Value], angles: Value, *, interleaved: bool, kind: Any = F32
) -> None:
    """Emit the rotation of one head of K = `width` elements of a type, from one pointer to another.

    Args:
        k: the IR builder.
        width: K.
        places: pointers to the source and the target, which may be equal.
        angles: pointer to K / 2 cosines, then K / 2 sines, float32.
        interleaved: whether the two dimensions of a pair are neighbors.
        kind: the element type.
    """
    half, (source, target) = width // 2, places
    for column in range(0, half, k.lanes):
        cosine, sine = k.load_floats(angles, column), k.load_floats(angles, half + column)
        starts = (2 * column, 2 * column + k.lanes) if interleaved else (column, half + column)
        first, second = (k.load_wide(source, start, kind) for start in starts)
        if interleaved:
            first, second = (_shuffle(k, first, second, range(odd, 2 * k.lanes, 2)) for odd in (0, 1))
        rotated = (
            k.build.fsub(k.build.fmul(first, cosine), k.build.fmul(second, sine)),
            k.build.fadd(k.build.fmul(second, cosine), k.build.fmul(first, sine)),
        )
        if interleaved:
            pairs = [lane + side * k.lanes for lane in range(k.lanes) for side in range(2)]
            rotated = (_shuffle(k, *rotated, pairs[: k.lanes]), _shuffle(k, *rotated, pairs[k.lanes :]))
        for start, value in zip(starts, rotated, strict=True):
            k.store_narrow(value, target, start, kind)


def _shuffle(k: Emitter, first: Value, second: Value, numbers: range | list[int]) -> Value:
    """Emit a vector of elements of two vectors, by their indices."""
    return k.build.shuffle_vector(first, second, ir.Constant(k.ints, list(numbers)))
