"""What tells programs the order of the pieces: tables by position, and the kernel that turns queries and keys.

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
    """As far as positions were asked for: T. Empty where a model has none of that kind."""

    added: Tensor
    """What is added to embeddings, (T, D)."""
    turns: Tensor
    """Cosines, then sines, of the angles by which pairs of a query's or key's dimensions are turned, (T, K)."""
    near: Tensor
    """What is added to scores, (H, distances): of each key's position less the query's, from 1 - T on."""
    length: int
    """T."""

    def addresses(self) -> dict[str, int]:
        """Those of `Places`; they hold as long as this does."""
        return {
            "added": self.added.data_ptr(),
            "turns": self.turns.data_ptr(),
            "near": self.near.data_ptr() + (self.length - 1) * self.near.element_size(),  # of distance 0
            "near_stride": self.near.shape[1],
        }


class GrowingTables:
    """The tables of an encoder or of a decoder; they grow as longer sequences come."""

    def __init__(self, positions: StackPositions, add: Callable[[int], Tensor], most: int) -> None:
        """With what makes (T, D), which is to be added to embeddings; at most so many positions."""
        self._positions = positions
        self._add = add
        self._most = most
        nothing = torch.empty(0, 0)
        self._known = PositionTables(nothing, nothing, nothing, 0)

    def until(self, position: int) -> PositionTables:
        """Up to this position at least; to be kept while they are read."""
        known = self._known  # other threads may put longer tables in their place
        if position >= known.length:
            known = self._known = self._make(max(min(max(2 * position, 64), self._most), position + 1))
        return known

    def _make(self, count: int) -> PositionTables:
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
    """`turn_run`, `turn_all` and `turn_each(x, N, stride, heads, table, numbers, thread, threads)`: heads, in place.

    Row n is at position n - numbers[n]; of `turn_all` at the table's first position; of `turn_each` at numbers[n] - 1.
    Pairs of dimensions are neighbours, or stand K / 2 apart. K is a multiple of two vectors.
    """
    for kind in ("run", "all", "each"):
        kinds = (POINTER, I64, I64, I64, POINTER, POINTER, I64, I64)
        with k.function(f"turn_{kind}", *kinds) as (x, rows, stride, count, table, numbers, *share):
            first, last = k.share(k.times(rows, count), *share)
            with k.loop(first, last) as number:
                row, head = k.build.sdiv(number, count), k.build.srem(number, count)
                position = k.number(0)
                if kind == "run":
                    position = k.build.sub(row, k.load(k.at(numbers, row, I64), I64))
                elif kind == "each":
                    position = k.sum_of(k.load(k.at(numbers, row, I64), I64), -1)
                angles = k.at(table, k.times(position, heads.width))
                place = k.at(x, k.sum_of(k.times(row, stride), k.times(head, heads.width)))
                turn_head(k, heads.width, (place, place), angles, interleaved=interleaved)


def turn_head(
    k: Emitter, width: int, places: tuple[Value, Value], angles: Value, *, interleaved: bool, kind: Any = F32
) -> None:
    """A head's dimensions, of this kind of numbers, from one place to another; angles are float32."""
    half, (source, target) = width // 2, places
    for column in range(0, half, k.lanes):
        cosine, sine = k.load_floats(angles, column), k.load_floats(angles, half + column)
        starts = (2 * column, 2 * column + k.lanes) if interleaved else (column, half + column)
        first, second = (k.load_wide(source, start, kind) for start in starts)
        if interleaved:
            first, second = (_pick(k, first, second, range(odd, 2 * k.lanes, 2)) for odd in (0, 1))
        turned = (
            k.build.fsub(k.build.fmul(first, cosine), k.build.fmul(second, sine)),
            k.build.fadd(k.build.fmul(second, cosine), k.build.fmul(first, sine)),
        )
        if interleaved:
            pairs = [lane + side * k.lanes for lane in range(k.lanes) for side in range(2)]
            turned = (_pick(k, *turned, pairs[: k.lanes]), _pick(k, *turned, pairs[k.lanes :]))
        for start, value in zip(starts, turned, strict=True):
            k.store_narrow(value, target, start, kind)


def _pick(k: Emitter, one: Value, other: Value, numbers: range | list[int]) -> Value:
    """Elements of two vectors by their numbers."""
    return k.build.shuffle_vector(one, other, ir.Constant(k.ints, list(numbers)))
