"""Products of training in bfloat16, by the instruction that adds two products to each of 16 sums: `vpdpbf16ps`.

PyTorch's library writes a program for each shape, a quarter of a millisecond to a whole one each, and batches have ever
new shapes. These take sizes as they come; and what surrounds a product is done on the way: bias and ReLU, the sums of
the gradient by the bias, the sum of the matrix' gradient in float32.
Legend: N positions, I inputs and O outputs of a layer.
"""

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I16, I32, I64, POINTER, VOID, Emitter, Value
from transduce.model.native.engine import program
from transduce.model.native.training_packing import PANEL, TILE_ROWS, Gradient, Matrix, Packer

_UNROLLED = 4  # pairs
_BLOCK_PAIRS = 1 << 13  # of the rows that are multiplied by one panel after another: 256 KB


class ForwardPlaces(NamedTuple):
    """The numbers of `forward`, y = x Wᵀ + b: addresses of bfloat16, where nothing else is said."""

    x: Any
    """(N, I)."""
    weight: Any
    """(O, I)."""
    bias: Any
    """(O,); 0: none."""
    out: Any
    """(N, O)."""
    positions: Any
    """A number, N, as the next two."""
    inputs: Any
    outputs: Any
    least: Any
    """A number, the bits of a float32: outputs are not less."""
    room: Any
    """O × I, in which the matrix is packed already if its address is 0."""


class BackPlaces(NamedTuple):
    """The numbers of `back`: addresses of bfloat16, where nothing else is said; 0: not asked for."""

    x: Any
    """(N, I)."""
    weight: Any
    """(O, I)."""
    gradient: Any
    """(N, O)."""
    gate: Any
    """(N, O): the outputs, if they are ReLU's."""
    kept: Any
    """(N, O): room, if there is a gate."""
    by_x: Any
    """(N, I)."""
    weight_sum: Any
    """float32, (O, I): to which the gradient is added."""
    bias_sum: Any
    """float32, (O,): likewise."""
    positions: Any
    """A number, N, as the next two."""
    inputs: Any
    outputs: Any
    weight_room: Any
    """O × I, in which the matrix is packed already if its address is 0."""
    x_room: Any
    """I × N, filled up as `ROWS_TOGETHER` says."""
    gradient_room: Any
    """O × N, likewise."""


class _BFloat(ir.types.Type):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """LLVM's type of bfloat16, which the library does not know."""

    null = "0.0"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(type(self))


class _Product(NamedTuple):
    """Rows by columns. A sum in float32 grows by it, if the rows are packed; else it is written in bfloat16."""

    left: Value
    rows: Value
    is_packed: bool
    """Rows are in panels of `TILE_ROWS`."""
    panels: Value
    columns: Value
    pairs: Value
    """Of what is summed over."""
    out: Value
    """An address."""
    bias: Value = None
    """An address, 0: none; and what the result is not less than. Of a result in bfloat16."""
    least: Value = None


class ProductWriter:
    """Writes the programs `forward` and `back`."""

    names = ("forward", "back")

    def __init__(self, k: Emitter) -> None:
        self.k = k
        self.pairs = ir.VectorType(_BFloat(), 2 * k.lanes)

    def write(self) -> None:
        """Both."""
        k = self.k
        for vectors in range(1, PANEL // k.lanes + 1):
            self._write_tile(vectors, is_packed=False)
            self._write_tile(vectors, is_packed=True)
        with program(k, "forward", len(ForwardPlaces._fields)) as (numbers, thread, threads):
            self._forward(ForwardPlaces(*numbers), thread, threads)
        with program(k, "back", len(BackPlaces._fields)) as (numbers, thread, threads):
            self._back(BackPlaces(*numbers), thread, threads)

    def _forward(self, given: ForwardPlaces, thread: Value, threads: Value) -> None:
        k = self.k
        with k.where(self._is_given(given.weight)):
            weight = Matrix(k.place(given.weight), given.outputs, given.inputs)
            Packer(k, thread, threads).pack_transposed(weight, k.place(given.room))
            k.barrier(threads)
        made = _Product(
            left=k.place(given.x),
            rows=given.positions,
            is_packed=False,
            panels=k.place(given.room),
            columns=given.outputs,
            pairs=k.build.sdiv(given.inputs, k.number(2)),
            out=given.out,
            bias=given.bias,
            least=k.build.bitcast(k.build.trunc(given.least, I32), F32),
        )
        self._multiply(made, thread, threads)

    def _is_given(self, address: Value) -> Value:
        return self.k.build.icmp_signed("!=", address, self.k.number(0))

    def _back(self, given: BackPlaces, thread: Value, threads: Value) -> None:
        k = self.k
        packer = Packer(k, thread, threads)
        wants_x, wants_weight = self._is_given(given.by_x), self._is_given(given.weight_sum)
        gradient = Matrix(k.place(given.gradient), given.positions, given.outputs)
        packed = k.place(given.gradient_room)
        packer.pack_gradient(Gradient(gradient, given.gate, given.kept, given.bias_sum), packed)
        with k.where(wants_weight):
            packer.pack(Matrix(k.place(given.x), given.positions, given.inputs), k.place(given.x_room))
        with k.where(k.build.and_(wants_x, self._is_given(given.weight))):
            packer.pack(Matrix(k.place(given.weight), given.outputs, given.inputs), k.place(given.weight_room))
        k.barrier(threads)
        with k.where(wants_x):
            made = _Product(
                left=k.place(k.build.select(self._is_given(given.gate), given.kept, given.gradient)),
                rows=given.positions,
                is_packed=False,
                panels=k.place(given.weight_room),
                columns=given.inputs,
                pairs=k.build.sdiv(given.outputs, k.number(2)),
                out=given.by_x,
                bias=k.number(0),
                least=k.real(float("-inf")),
            )
            self._multiply(made, thread, threads)
        with k.where(wants_weight):
            made = _Product(
                left=packed,
                rows=given.outputs,
                is_packed=True,
                panels=k.place(given.x_room),
                columns=given.inputs,
                pairs=packer.pairs_of(given.positions),
                out=given.weight_sum,
            )
            self._multiply(made, thread, threads)

    def _multiply(self, made: _Product, thread: Value, threads: Value) -> None:
        """A thread takes some rows of the result, so many at a time that a cache holds them beside a panel."""
        k = self.k
        whole = k.times(k.build.sdiv(made.columns, k.number(PANEL)), PANEL)
        tiles = k.build.sdiv(k.sum_of(made.rows, TILE_ROWS - 1), k.number(TILE_ROWS))
        first, last = k.share(tiles, thread, threads)
        block = k.build.sdiv(k.number(_BLOCK_PAIRS), made.pairs)
        block = k.build.select(k.build.icmp_signed("<", block, k.number(1)), k.number(1), block)
        with k.loop(first, last, block) as start:
            stop = k.lesser(k.sum_of(start, block), last)
            with k.loop(0, whole, PANEL) as column:
                self._panel(made, (start, stop), column, PANEL)
            for width in range(k.lanes, PANEL, k.lanes):
                with k.where(k.build.icmp_signed("==", k.build.sub(made.columns, whole), k.number(width))):
                    self._panel(made, (start, stop), whole, width)

    def _panel(self, made: _Product, tiles: tuple[Value, Value], column: Value, width: int) -> None:
        """Some rows by the panel of so many columns; the last tile takes some rows once more, to have enough."""
        k = self.k
        panel = k.at(made.panels, k.times(column, made.pairs), I32)
        name = _tile_name(width // k.lanes, is_packed=made.is_packed)
        ending = []
        if not made.is_packed:
            own_bias = k.sum_of(made.bias, k.times(column, 2))
            ending = [k.build.select(self._is_given(made.bias), own_bias, made.bias), made.least]
        with k.loop(*tiles) as number:
            row = k.lesser(k.times(number, TILE_ROWS), k.build.sub(made.rows, k.number(TILE_ROWS)))
            left = k.at(made.left, k.times(row, made.pairs), I32)
            place = k.sum_of(k.times(row, made.columns), column)
            target = k.at(k.place(made.out), place, F32 if made.is_packed else I16)
            k.call(name, left, panel, made.pairs, target, made.columns, *ending)

    # --- a tile ------------------------------------------------------------------------------------------------------

    def _write_tile(self, vectors: int, *, is_packed: bool) -> None:
        """`TILE_ROWS` rows by so many vectors of columns."""
        k = self.k
        types: tuple[Any, ...] = (POINTER, POINTER, I64, POINTER, I64)
        types = types if is_packed else (*types, I64, F32)
        with k.function(_tile_name(vectors, is_packed=is_packed), *types) as (left, panel, pairs, out, stride, *ending):
            if is_packed:
                self._fetch(vectors, out, stride)
                starts = [k.splat(0.0)] * vectors
            else:
                starts = self._bias(vectors, ending[0])
            sums = [[k.variable(start) for start in starts] for _ in range(TILE_ROWS)]
            with k.loop(0, pairs, _UNROLLED) as first:
                for pair in (k.sum_of(first, step) for step in range(_UNROLLED)):
                    self._add_pair(sums, left, panel, pair, None if is_packed else pairs)
            for row, own in enumerate(sums):
                for vector, total in enumerate(own):
                    place = k.sum_of(k.times(stride, row), vector * k.lanes)
                    value = k.get(total, k.splat(0.0))
                    if is_packed:
                        k.store(k.build.fadd(k.load_floats(out, place), value), k.at(out, place))
                    else:
                        least = k.splat(ending[1])
                        value = k.build.select(k.build.fcmp_ordered("<", value, least), least, value)  # NaN stays
                        k.store(self._narrow(value), k.at(out, place, I16))

    def _add_pair(self, sums: list[list[Value]], left: Value, panel: Value, pair: Value, stride: Value | None) -> None:
        """The products of a pair of each row with those of the panel's columns; rows stride pairs apart, or packed."""
        k = self.k
        vectors = len(sums[0])
        columns = [
            k.load(k.at(panel, k.sum_of(k.times(pair, vectors * k.lanes), n * k.lanes), I32), k.ints)
            for n in range(vectors)
        ]
        for row, own in enumerate(sums):
            place = k.sum_of(k.times(pair, TILE_ROWS), row) if stride is None else k.sum_of(k.times(stride, row), pair)
            factor = k.splat(k.load(k.at(left, place, I32), I32))
            for total, column in zip(own, columns, strict=True):
                k.store(self._multiply_pairs(k.get(total, k.splat(0.0)), factor, column), total)

    def _multiply_pairs(self, total: Value, one: Value, other: Value) -> Value:
        pairs = (self.k.build.bitcast(value, self.pairs) for value in (one, other))
        return self.k.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", self.k.floats, total, *pairs)

    def _narrow(self, values: Value) -> Value:
        """To bfloat16, to the nearest, and to even between two; numbers below the least normal one become zero."""
        k = self.k
        made = k.intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", ir.VectorType(_BFloat(), k.lanes), values)
        return k.build.bitcast(made, ir.VectorType(I16, k.lanes))

    def _bias(self, vectors: int, address: Value) -> list[Value]:
        """What sums begin with."""
        k = self.k
        found = [k.variable(k.splat(0.0)) for _ in range(vectors)]
        with k.where(k.build.icmp_signed("!=", address, k.number(0))):
            for n, variable in enumerate(found):
                k.store(k.load_wide(k.place(address), n * k.lanes, I16), variable)
        return [k.get(variable, k.splat(0.0)) for variable in found]

    def _fetch(self, vectors: int, out: Value, stride: Value) -> None:
        """Has the sums fetched to which the tile is added in the end."""
        k = self.k
        flags = [ir.Constant(I32, number) for number in (1, 3, 1)]  # to write, often, data
        for row in range(TILE_ROWS):
            for vector in range(vectors):
                place = k.at(out, k.sum_of(k.times(stride, row), vector * k.lanes))
                k.intrinsic("llvm.prefetch.p0", VOID, place, *flags)


def _tile_name(vectors: int, *, is_packed: bool) -> str:
    return f"add_tile_{vectors}" if is_packed else f"tile_{vectors}"
