"""The steps of a whole layer in training, forward and back, for sizes that are known.

What the backward pass needs is kept in one piece of memory, but for large norms, which are made again from what they
were made of. All that lives shorter shares another piece.
Legend: B sentences, T positions of each, S of its source, D model width, N rows (B × T, or B × S of the memory), I
inputs and O outputs of a product, H heads, K width of a head's queries, keys and values.
"""

from enum import IntEnum
from typing import NamedTuple

import torch

from transduce.model.native.attention_places import AttentionPlaces, room_to_attend
from transduce.model.native.engine import Program, float_bits
from transduce.model.native.fused_attention import attention_programs, attention_shape
from transduce.model.native.fused_products import is_streamed, multiplier_of, product_programs, rows_filled_up
from transduce.model.native.fused_rows import row_programs
from transduce.model.native.step_list import Room, Spot, StepList
from transduce.model.native.tile import Tile
from transduce.model.native.training_products import BackPlaces, ForwardPlaces
from transduce.model.native.training_rows import DropPlaces, NormPlaces

_FLOAT = 4  # bytes
_LARGE = 2 << 20  # bytes of a norm that is rather made again than kept
_GRADIENTS = "query_gradient", "key_gradient", "value_gradient"


class Base(IntEnum):
    """Where spots are counted from, in the order in which addresses are given to the steps."""

    NOWHERE = 0
    X = 1
    MEMORY = 2
    OUT = 3
    KEPT = 4
    TEMPORARY = 5
    BY_OUT = 6
    BY_X = 7
    BY_MEMORY = 8
    PARTS = 9
    """From here on for each part: `PartBase`."""


class PartBase(IntEnum):
    """What a part has of its own. Weights and biases are followed by the sums of their gradients."""

    SEED = 0
    """A number: of its dropout."""
    LENGTHS = 1
    NORM = 2
    NORM_BIAS = 4
    FIRST = 6
    FIRST_BIAS = 8
    LAST = 10
    LAST_BIAS = 12
    COUNT = 14


class PartShape(NamedTuple):
    """A sub-layer, as far as its steps go."""

    heads: int
    """H; 0: it is a feed-forward network."""
    inner: int
    """H × K, or the width inside the network."""
    reads_memory: bool
    has_lengths: bool
    """Of attention: else no position sees what follows it."""
    norm_is_before: bool
    norm_has_bias: bool
    """Then it is LayerNorm, else RMSNorm."""
    epsilon: float
    has_biases: tuple[bool, bool]
    """The first product, and the last."""
    drop_of_256: int


class LayerShape(NamedTuple):
    """What steps are written for."""

    batch: int
    length: int
    memory_length: int
    width: int
    parts: tuple[PartShape, ...]
    threads: int
    tile: Tile
    """Of products."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what is multiplied, and of all that is not said to be float32."""
        return torch.float32 if self.tile.kind == "floats" else torch.bfloat16


class _Matrix(NamedTuple):
    """Rows of a matrix of weights, with their biases."""

    slot: PartBase
    start: int
    stop: int
    inputs: int

    @property
    def outputs(self) -> int:
        """O."""
        return self.stop - self.start


class LayerPlan:
    """Forward and back, and how many bytes each needs."""

    def __init__(self, shape: LayerShape) -> None:
        kept, room, room_back = Room(Base.KEPT), Room(Base.TEMPORARY), Room(Base.TEMPORARY)
        there, back = StepList(), StepList()
        parts = [_Part(shape, number, kept) for number in range(len(shape.parts))]
        x = Spot(Base.X)
        for part in parts:
            out = Spot(Base.OUT) if part is parts[-1] else kept.take(part.bytes)
            part.write_forward(_Writer(part, there, room), x, out)
            x = out
        gradient = Spot(Base.BY_OUT)
        for part in reversed(parts):
            by_x = Spot(Base.BY_X) if part is parts[0] else room_back.take(part.bytes)
            part.write_back(_Writer(part, back, room_back), gradient, by_x)
            room_back.give_back([gradient])
            gradient = by_x
        self.threads = shape.threads
        """For which there is room, forward and back."""
        self.kept_bytes, self.room_bytes, self.back_room_bytes = kept.size, room.size, room_back.size
        self.forward, self.back = there.finish(), back.finish()


def _sum_of(parameter: Spot, bytes_each: int) -> Spot:
    """Where the gradients by some of a parameter, of elements of so many bytes, are added up."""
    return Spot(parameter.base + 1, parameter.bytes // bytes_each * _FLOAT)


class _Part:
    """A sub-layer: what it keeps from its way there for its way back."""

    def __init__(self, layer: LayerShape, number: int, kept: Room) -> None:
        self.layer, self.shape, self.kept = layer, layer.parts[number], kept
        self.first_base = Base.PARTS + number * PartBase.COUNT
        self.rows, self.memory_rows = layer.batch * layer.length, layer.batch * layer.memory_length
        self.each = layer.dtype.itemsize  # bytes of an element
        self.bytes = self.rows * layer.width * self.each
        self.keeps_norm = self.bytes < _LARGE
        self.last = _Matrix(PartBase.LAST, 0, layer.width, self.shape.inner)
        self.positive: Spot | None = None
        """Where a network's ReLU was open."""

    def _first(self, start: int, stop: int) -> _Matrix:
        return _Matrix(PartBase.FIRST, start, stop, self.layer.width)

    def own(self, base: PartBase) -> Spot:
        """Of its own."""
        return Spot(self.first_base + base)

    def write_forward(self, w: "_Writer", x: Spot, out: Spot) -> None:
        """norm(x + dropout(f(x))), or x + dropout(f(norm(x)))."""
        shape = self.shape
        self.x = x
        self.norm_sums = self.kept.take(self.rows * 2 * _FLOAT)
        before = x
        if shape.norm_is_before:
            before = (self.kept if self.keeps_norm else w.room).take(self.bytes)
            w.norm(x, self.norm_sums, before)
        self.before = before
        (self._attend if shape.heads else self._feed_forward)(w, before)
        w.room.give_back([before])
        added = w.room.take(self.bytes)
        w.product(self.inner, self.rows, self.last, added)
        if shape.norm_is_before:
            w.drop(added, x, out)
        else:
            self.sum = self.kept.take(self.bytes)
            w.drop(added, x, self.sum)
            w.norm(self.sum, self.norm_sums, out)
        w.room.give_back([added])

    def _attend(self, w: "_Writer", x: Spot) -> None:
        inner, row_bytes = self.shape.inner, self.shape.inner * self.each
        if self.shape.reads_memory:
            self.projected = self.kept.take(self.rows * row_bytes)
            self.memory = self.kept.take(self.memory_rows * 2 * row_bytes)
            w.product(x, self.rows, self._first(0, inner), self.projected)
            w.product(Spot(Base.MEMORY), self.memory_rows, self._first(inner, 3 * inner), self.memory)
        else:
            self.projected = self.memory = self.kept.take(self.rows * 3 * row_bytes)
            w.product(x, self.rows, self._first(0, 3 * inner), self.projected)
        self.inner = self.kept.take(self.rows * row_bytes)
        self.attention_sums = self.kept.take(self.rows * self.shape.heads * 2 * _FLOAT)
        w.attend(self.inner)

    def _feed_forward(self, w: "_Writer", x: Spot) -> None:
        inner = self.shape.inner
        self.inner = self.kept.take(self.rows * inner * self.each)
        self.positive = self.kept.take(self.rows * inner // 8)
        w.product(x, self.rows, self._first(0, inner), self.inner, positive=self.positive)

    def write_back(self, w: "_Writer", by_out: Spot, by_x: Spot) -> None:
        """From the gradient by the result to the one by x, and to the memory's."""
        shape, room = self.shape, w.room
        by_sum = by_out
        if not shape.norm_is_before:
            by_sum = room.take(self.bytes)
            w.norm_back(self.sum, self.norm_sums, by_out, None, by_sum)
        by_added = by_sum
        if shape.drop_of_256:
            by_added = room.take(self.bytes)
            w.drop(by_sum, None, by_added)
        by_inner = room.take(self.rows * shape.inner * self.each)
        w.product_back(self.inner, self.rows, self.last, by_added, by_inner, is_open=self.positive)
        if by_added != by_sum:
            room.give_back([by_added])
        by_before = room.take(self.bytes)
        before = self.before
        if shape.norm_is_before and not self.keeps_norm:
            before = room.take(self.bytes)
            w.norm(self.x, self.norm_sums, before)
        (self._attend_back if shape.heads else self._feed_forward_back)(w, before, by_inner, by_before)
        room.give_back([before])
        if shape.norm_is_before:
            w.norm_back(self.x, self.norm_sums, by_before, by_sum, by_x)
        else:
            w.add(by_before, by_sum, by_x)
            room.give_back([by_sum])
        room.give_back([by_before])

    def _attend_back(self, w: "_Writer", x: Spot, by_inner: Spot, by_x: Spot) -> None:
        inner, reads_memory = self.shape.inner, self.shape.reads_memory
        own = self._first(0, inner if reads_memory else 3 * inner)
        by_projected = by_memory = w.room.take(self.rows * own.stop * self.each)
        if reads_memory:
            by_memory = w.room.take(self.memory_rows * 2 * inner * self.each)
        w.attend_back(by_inner, by_projected, by_memory)
        w.room.give_back([by_inner])
        if reads_memory:
            others = self._first(inner, 3 * inner)
            w.product_back(Spot(Base.MEMORY), self.memory_rows, others, by_memory, Spot(Base.BY_MEMORY))
            w.room.give_back([by_memory])
        w.product_back(x, self.rows, own, by_projected, by_x)
        w.room.give_back([by_projected])

    def _feed_forward_back(self, w: "_Writer", x: Spot, by_inner: Spot, by_x: Spot) -> None:
        w.product_back(x, self.rows, self._first(0, self.shape.inner), by_inner, by_x)
        w.room.give_back([by_inner])


class _Writer:
    """Writes a part's steps."""

    def __init__(self, part: _Part, steps: StepList, room: Room) -> None:
        self.part, self.steps, self.room = part, steps, room
        self._rows = row_programs(part.layer.dtype)
        self._products = product_programs(part.layer.tile)
        self._multiplier = multiplier_of(part.layer.tile)
        self._thread_bytes = part.layer.threads * self._multiplier.thread_bytes

    def norm(self, x: Spot, sums: Spot, out: Spot) -> None:
        """To the norm."""
        self.steps.add(self._norm_program(""), self._norm_places(x, sums, out))

    def norm_back(self, x: Spot, sums: Spot, gradient: Spot, kept: Spot | None, out: Spot) -> None:
        """To the gradient by x, with one that has come already."""
        part = self.part
        shares = self.room.take(part.layer.threads * 2 * part.layer.width * _FLOAT)
        places = self._norm_places(x, sums, out)._replace(
            gradient=gradient,
            kept=kept or 0,
            shares=shares,
            weight_sum=_sum_of(part.own(PartBase.NORM), part.each),
            bias_sum=_sum_of(part.own(PartBase.NORM_BIAS), part.each),
        )
        self.steps.add(self._norm_program("_back"), places)
        self.room.give_back([shares])

    def _norm_program(self, which: str) -> Program:
        return self._rows[("norm" if self.part.shape.norm_has_bias else "rms") + which]

    def _norm_places(self, x: Spot, sums: Spot, out: Spot) -> NormPlaces:
        part = self.part
        vectors = part.own(PartBase.NORM), part.own(PartBase.NORM_BIAS)
        epsilon = float_bits(part.shape.epsilon)
        return NormPlaces(x, *vectors, part.rows, part.layer.width, epsilon, sums, out, 0, 0, 0, 0, 0)

    def drop(self, x: Spot, residual: Spot | None, out: Spot) -> None:
        """residual + dropout(x)."""
        drops = self.part.shape.drop_of_256
        self._drop(DropPlaces(x, residual or 0, out, self._count, self.part.own(PartBase.SEED), drops))

    def add(self, x: Spot, other: Spot, out: Spot) -> None:
        """other + x."""
        self._drop(DropPlaces(x, other, out, self._count, 0, 0))

    def _drop(self, places: DropPlaces) -> None:
        self.steps.add(self._rows["drop"], places)

    @property
    def _count(self) -> int:
        return self.part.rows * self.part.layer.width

    def product(self, x: Spot, rows: int, matrix: _Matrix, out: Spot, *, positive: Spot | None = None) -> None:
        """x · Wᵀ + b, or ReLU of it, and bits where that is positive."""
        inputs, outputs = matrix.inputs, matrix.outputs
        weight, bias = self._parameters(matrix)
        packed = self.room.take(outputs * inputs * self.part.each)
        streams = is_streamed(rows * outputs * self.part.each)
        least = float_bits(0.0 if positive else float("-inf"))
        own = self.room.take(self._thread_bytes)
        sizes = rows, inputs, outputs
        places = ForwardPlaces(x, weight, bias or 0, out, *sizes, least, packed, int(streams), own, positive or 0)
        self.steps.add(self._products["forward"], places)
        self.room.give_back([packed, own])

    def product_back(
        self, x: Spot, rows: int, matrix: _Matrix, gradient: Spot, by_x: Spot, *, is_open: Spot | None = None
    ) -> None:
        """To the gradient by x, where ReLU was open; and those by the matrix and the bias are added to their sums."""
        inputs, outputs = matrix.inputs, matrix.outputs
        filled = rows_filled_up(rows, self.part.layer.tile)
        weight, bias = self._parameters(matrix)
        each = self.part.each
        room_bytes = (
            outputs * inputs * each,
            inputs * filled * each,
            self._thread_bytes,
        )
        rooms = [self.room.take(count) for count in room_bytes]
        places = BackPlaces(
            x=x,
            weight=weight,
            gradient=gradient,
            by_x=by_x,
            is_open=is_open or 0,
            weight_sum=_sum_of(weight, each),
            bias_sum=_sum_of(bias, each) if bias else 0,
            positions=rows,
            inputs=inputs,
            outputs=outputs,
            weight_room=rooms[0],
            x_room=rooms[1],
            threads_room=rooms[2],
            streams=int(is_streamed(rows * inputs * each)),
        )
        self.steps.add(self._products["back"], places)
        self.room.give_back(rooms)

    def _parameters(self, matrix: _Matrix) -> tuple[Spot, Spot | None]:
        """Its first row, and that one's bias."""
        part, (slot, start, _, inputs) = self.part, matrix
        has_bias = part.shape.has_biases[slot == PartBase.LAST]
        weight, bias = part.own(slot), part.own(PartBase(slot + 2))
        return weight.further(start * inputs * part.each), bias.further(start * part.each) if has_bias else None

    def attend(self, context: Spot) -> None:
        """Of what was projected."""
        self._attend("attend", context, None)

    def attend_back(self, by_context: Spot, by_projected: Spot, by_memory: Spot) -> None:
        """Likewise."""
        self._attend("attend_back", by_context, (by_projected, by_memory))

    def _attend(self, name: str, context: Spot, gradients: tuple[Spot, Spot] | None) -> None:
        part, layer, shape = self.part, self.part.layer, self.part.shape
        keys = layer.memory_length if shape.reads_memory else layer.length
        kind = attention_shape(shape.inner // shape.heads, layer.dtype)
        room_each = room_to_attend(kind, keys, layer.length)
        room = self.room.take(layer.threads * room_each * _FLOAT)
        places = AttentionPlaces(
            *self._thirds(part.projected, part.memory),
            query_stride=shape.inner * (1 if shape.reads_memory else 3),
            key_stride=shape.inner * (2 if shape.reads_memory else 3),
            batch=layer.batch,
            heads=shape.heads,
            num_queries=layer.length,
            num_keys=keys,
            lengths=part.own(PartBase.LENGTHS) if shape.has_lengths else 0,
            context=context,
            sums=part.attention_sums,
            **dict(zip(_GRADIENTS, self._thirds(*gradients) if gradients else (0, 0, 0), strict=True)),
            room=room,
            own_room=room_each,
        )
        self.steps.add(attention_programs(kind)[name], places)
        self.room.give_back([room])

    def _thirds(self, projected: Spot, memory: Spot) -> tuple[Spot, Spot, Spot]:
        """Queries, keys and values, which stand in the memory's or behind the queries."""
        size = self.part.shape.inner * self.part.each
        first = 0 if self.part.shape.reads_memory else size
        return projected, memory.further(first), memory.further(first + size)
