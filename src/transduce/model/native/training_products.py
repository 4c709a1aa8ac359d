"""Products of training, with what surrounds them.

PyTorch's library writes a program for each shape, which takes it up to a millisecond, and batches have ever
new shapes. These take sizes as they come; and what surrounds a product is done on the way: bias and ReLU, the sums of
the gradient by the bias, the sum of the matrix' gradient in float32.
Legend: N positions, I inputs and O outputs of a layer.
"""

from typing import Any, NamedTuple

from transduce.model.native.emit import Emitter, Value
from transduce.model.native.engine import program
from transduce.model.native.pair_packing import Gradient, Matrix
from transduce.model.native.pair_products import PairMultiplier, Product


class ForwardPlaces(NamedTuple):
    """The numbers of `forward`, y = x Wᵀ + b: addresses of what is multiplied, where nothing else is said."""

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
    streams: Any
    """A number: whether the outputs go past the caches."""
    threads_room: Any
    """`PairMultiplier.thread_bytes` for each thread."""
    positive: Any
    """N × O bits, which become 1 where outputs are positive; 0: not asked for."""


class BackPlaces(NamedTuple):
    """The numbers of `back`: addresses of what is multiplied, where nothing else is said; 0: not asked for."""

    x: Any
    """(N, I)."""
    weight: Any
    """(O, I)."""
    gradient: Any
    """(N, O)."""
    by_x: Any
    """(N, I)."""
    is_open: Any
    """N × I bits: where x is ReLU's, and was positive; where one is 0, so is the gradient by x."""
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
    """I × N, filled up as the layout says."""
    threads_room: Any
    """As `ForwardPlaces`."""
    streams: Any
    """A number: whether the gradient by x goes past the caches."""


class ProductWriter:
    """Writes the programs `forward` and `back`."""

    names = ("forward", "back")

    def __init__(self, k: Emitter, multiplier: type[PairMultiplier]) -> None:
        self.k = k
        self.multiplier = multiplier(k, "bias", "add")

    def write(self) -> None:
        """Both."""
        k = self.k
        with program(k, "forward", len(ForwardPlaces._fields)) as (numbers, thread, threads):
            self._forward(ForwardPlaces(*numbers), thread, threads)
        with program(k, "back", len(BackPlaces._fields)) as (numbers, thread, threads):
            self._back(BackPlaces(*numbers), thread, threads)

    def _forward(self, given: ForwardPlaces, thread: Value, threads: Value) -> None:
        k = self.k
        with k.where(k.is_given(given.weight)):
            weight = Matrix(k.place(given.weight), given.outputs, given.inputs)
            self.multiplier.packer(k, self.multiplier.layout, thread, threads).pack_transposed(
                weight, k.place(given.room)
            )
            k.barrier(threads)
        made = Product(
            left=k.place(given.x),
            rows=given.positions,
            panels=k.place(given.room),
            columns=given.outputs,
            pairs=k.build.sdiv(given.inputs, k.number(self.multiplier.layout.group)),
            out=given.out,
            ending="bias",
            values=(given.bias, k.float_of(given.least), given.streams, given.positive, k.number(0)),
            room=given.threads_room,
        )
        self.multiplier.multiply(made, thread, threads)

    def _back(self, given: BackPlaces, thread: Value, threads: Value) -> None:
        k = self.k
        packer = self.multiplier.packer(k, self.multiplier.layout, thread, threads)
        wants_x, wants_weight = k.is_given(given.by_x), k.is_given(given.weight_sum)
        gradient = Gradient(Matrix(k.place(given.gradient), given.positions, given.outputs), given.bias_sum)
        with k.where(wants_weight):
            packer.pack(Matrix(k.place(given.x), given.positions, given.inputs), k.place(given.x_room))
        with k.where(k.build.and_(wants_x, k.is_given(given.weight))):
            packer.pack(Matrix(k.place(given.weight), given.outputs, given.inputs), k.place(given.weight_room))
        k.barrier(threads)
        with k.where(wants_x):
            made = Product(
                left=k.place(given.gradient),
                rows=given.positions,
                panels=k.place(given.weight_room),
                columns=given.inputs,
                pairs=k.build.sdiv(given.outputs, k.number(self.multiplier.layout.group)),
                out=given.by_x,
                ending="bias",
                values=(k.number(0), k.real(float("-inf")), given.streams, k.number(0), given.is_open),
                room=given.threads_room,
            )
            self.multiplier.multiply(made, thread, threads)
        made = Product(
            left=gradient.matrix.place,
            rows=given.outputs,
            panels=k.place(given.x_room),
            columns=given.inputs,
            pairs=packer.pairs_of(given.positions),
            out=given.weight_sum,
            ending="add",
            room=given.threads_room,
        )
        self.multiplier.add_up(made, gradient, thread, threads)
