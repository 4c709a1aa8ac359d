"""What training adds to single rows of a matrix: the gradient by embeddings, of which a batch needs few.

Legend: N positions, D model width, V vocabulary.
"""

from typing import Any, NamedTuple

from transduce.model.native.emit import I64, Emitter, Value
from transduce.model.native.engine import program


class ScatterPlaces(NamedTuple):
    """The numbers of `scatter`: each row of `part` is added, times a factor, to the row of `total` that it names."""

    total: Any
    """float32, (V, D)."""
    ids: Any
    """int64, (N,): a row of `total` each."""
    part: Any
    """(N, D)."""
    rows: Any
    """A number: N."""
    width: Any
    """A number: D, a multiple of the lanes."""
    factor: Any
    """A number: the bits of a float32."""
    frozen: Any
    """A number: the row to which nothing is added, or -1."""


class ScatterWriter:
    """Writes the program `scatter`."""

    names = ("scatter",)

    def __init__(self, k: Emitter, kind: Any) -> None:
        """Of parts F32, or I16 for bfloat16."""
        self.k = k
        self.kind = kind

    def write(self) -> None:
        """A thread takes some columns of all rows: pieces repeat, and no two threads may add to one place."""
        k = self.k
        with program(k, "scatter", len(ScatterPlaces._fields)) as (numbers, thread, threads):
            given = ScatterPlaces(*numbers)
            first, last = k.share(k.build.sdiv(given.width, k.number(k.lanes)), thread, threads)
            factor = k.splat(k.float_of(given.factor))
            with k.loop(0, given.rows) as row:
                piece = k.load(k.at(k.place(given.ids), row, I64), I64)
                with k.where(k.build.icmp_signed("!=", piece, given.frozen)):
                    self._add(given, (piece, row), (k.times(first, k.lanes), k.times(last, k.lanes)), factor)

    def _add(
        self, given: ScatterPlaces, rows: tuple[Value, Value], columns: tuple[Value, Value], factor: Value
    ) -> None:
        k = self.k
        to, of = (k.times(row, given.width) for row in rows)
        with k.loop(*columns, k.lanes) as column:
            there = k.at(k.place(given.total), k.sum_of(to, column))
            value = k.load_wide(k.place(given.part), k.sum_of(of, column), self.kind)
            k.store(k.madd(value, factor, k.load_floats(there)), there)
