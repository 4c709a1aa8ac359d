"""Emit the kernel that adds rows to indexed rows of a matrix: the gradient of an embedding.

Legend: N positions, D model width, V vocabulary size.
"""

from typing import Any, NamedTuple

from transduce.model.native.emit import I64, Emitter, Value
from transduce.model.native.engine import program


class ScatterPlaces(NamedTuple):
    """Arguments of the kernel `scatter`: total[ids[n]] += factor · part[n], except for a frozen row."""

    total: Any
    """Address of the matrix, float32 (V, D)."""
    ids: Any
    """Address of row indices, int64 (N,)."""
    part: Any
    """Address of the rows to add, (N, D)."""
    rows: Any
    """The number of rows to add N."""
    width: Any
    """The width D, a multiple of the lanes."""
    factor: Any
    """The bits of a float32 factor."""
    frozen: Any
    """The row that nothing is added to, or -1."""


class ScatterWriter:
    """An emitter of the kernel `scatter`."""

    names = ("scatter",)
    """The kernel's name."""

    def __init__(self, k: Emitter, kind: Any) -> None:
        """Prepare for rows of type F32, or I16 for bfloat16."""
        self.k = k
        self.kind = kind

    def write(self) -> None:
        """Emit the kernel, in which a thread adds some columns of all rows.

        Ids repeat, so splitting by rows would let two threads update one element.
        """
        k = self.k
        with program(k, "scatter", len(ScatterPlaces._fields)) as (numbers, thread, threads):
            args = ScatterPlaces(*numbers)
            first, last = k.share(k.build.sdiv(args.width, k.number(k.lanes)), thread, threads)
            factor = k.splat(k.float_of(args.factor))
            with k.loop(0, args.rows) as row:
                row_id = k.load(k.at(k.place(args.ids), row, I64), I64)
                with k.where(k.build.icmp_signed("!=", row_id, args.frozen)):
                    self._add(args, (row_id, row), (k.times(first, k.lanes), k.times(last, k.lanes)), factor)

    def _add(self, args: ScatterPlaces, rows: tuple[Value, Value], columns: tuple[Value, Value], factor: Value) -> None:
        """Add a range of columns of one row; `rows` is the target and the source row."""
        k = self.k
        target_row, source_row = (k.times(row, args.width) for row in rows)
        with k.loop(*columns, k.lanes) as column:
            target = k.at(k.place(args.total), k.sum_of(target_row, column))
            value = k.load_wide(k.place(args.part), k.sum_of(source_row, column), self.kind)
            k.store(k.madd(value, factor, k.load_floats(target)), target)
