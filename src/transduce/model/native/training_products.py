"""Emit the linear layers of training, forward and backward, with fused epilogues.

PyTorch's library compiles a kernel for each shape, which takes up to a millisecond, and batch shapes vary. These
kernels take any size, and fuse bias, ReLU, and the summation of the bias and weight gradients in float32. Legend: N
positions, I inputs and O outputs of a layer.
"""

from typing import Any, NamedTuple

from transduce.model.native.emit import Emitter, Value
from transduce.model.native.engine import program
from transduce.model.native.pair_packing import Gradient, Matrix
from transduce.model.native.pair_products import PairMultiplier, Product


class ForwardPlaces(NamedTuple):
    """Arguments of the kernel `forward`, out = x Wᵀ + b.

    They are addresses of matrices in the GEMM's dtype unless stated otherwise.
    """

    x: Any
    """Input, (N, I)."""
    weight: Any
    """Weight, (O, I); 0: `room` already holds the packed weight."""
    bias: Any
    """Bias, (O,); 0: none."""
    out: Any
    """Output, (N, O)."""
    positions: Any
    """The number of positions N."""
    inputs: Any
    """The number of inputs I."""
    outputs: Any
    """The number of outputs O."""
    least: Any
    """The lower bound of the outputs, as the bits of a float32: 0 for ReLU, else -inf."""
    room: Any
    """Scratch space of O × I elements for the packed weight."""
    streams: Any
    """Whether outputs are written by non-temporal stores, past the caches: 0 or 1."""
    threads_room: Any
    """Scratch space of `PairMultiplier.thread_bytes` for each thread."""
    positive: Any
    """A bit array of N × O bits that is set where outputs are positive; 0: not requested."""


class BackPlaces(NamedTuple):
    """Arguments of the kernel `back`, the backward pass of a linear layer.

    They are addresses of matrices in the GEMM's dtype unless stated otherwise; 0: not requested.
    """

    x: Any
    """Input, (N, I)."""
    weight: Any
    """Weight, (O, I); 0: `weight_room` already holds the packed weight."""
    gradient: Any
    """The gradient with respect to the output, (N, O)."""
    by_x: Any
    """The gradient with respect to x, (N, I)."""
    is_open: Any
    """If x is a ReLU's output, N × I bits that say where it was positive; elsewhere the gradient is set to 0."""
    weight_sum: Any
    """float32, (O, I): the gradient with respect to the weight is added to it."""
    bias_sum: Any
    """float32, (O,): the gradient with respect to the bias is added to it."""
    positions: Any
    """The number of positions N."""
    inputs: Any
    """The number of inputs I."""
    outputs: Any
    """The number of outputs O."""
    weight_room: Any
    """Scratch space of O × I elements for the packed weight."""
    x_room: Any
    """Scratch space for the packed input: I × N elements, N padded as in `Packer.pairs_of`."""
    threads_room: Any
    """Scratch space of `PairMultiplier.thread_bytes` for each thread."""
    streams: Any
    """Whether `by_x` is written by non-temporal stores, past the caches: 0 or 1."""


class ProductWriter:
    """An emitter of the kernels `forward` and `back` of linear layers."""

    names = ("forward", "back")

    def __init__(self, k: Emitter, multiplier: type[PairMultiplier]) -> None:
        self.k = k
        self.multiplier = multiplier(k, "bias", "add")

    def write(self) -> None:
        """Emit the kernels `forward` and `back`."""
        k = self.k
        with program(k, "forward", len(ForwardPlaces._fields)) as (numbers, thread, threads):
            self._forward(ForwardPlaces(*numbers), thread, threads)
        with program(k, "back", len(BackPlaces._fields)) as (numbers, thread, threads):
            self._back(BackPlaces(*numbers), thread, threads)

    def _forward(self, args: ForwardPlaces, thread: Value, threads: Value) -> None:
        """Emit the kernel `forward`: pack the weight unless that is done, and multiply."""
        k = self.k
        with k.where(k.is_given(args.weight)):
            weight = Matrix(k.place(args.weight), args.outputs, args.inputs)
            self.multiplier.packer(k, self.multiplier.layout, thread, threads).pack_transposed(
                weight, k.place(args.room)
            )
            k.barrier(threads)
        gemm = Product(
            left=k.place(args.x),
            rows=args.positions,
            panels=k.place(args.room),
            columns=args.outputs,
            pairs=k.build.sdiv(args.inputs, k.number(self.multiplier.layout.group)),
            out=args.out,
            ending="bias",
            values=(args.bias, k.float_of(args.least), args.streams, args.positive, k.number(0)),
            room=args.threads_room,
        )
        self.multiplier.multiply(gemm, thread, threads)

    def _back(self, args: BackPlaces, thread: Value, threads: Value) -> None:
        """Emit the kernel `back`: pack the operands, then compute the gradients of x and of the weight and bias."""
        k = self.k
        packer = self.multiplier.packer(k, self.multiplier.layout, thread, threads)
        wants_x, wants_weight = k.is_given(args.by_x), k.is_given(args.weight_sum)
        gradient = Gradient(Matrix(k.place(args.gradient), args.positions, args.outputs), args.bias_sum)
        with k.where(wants_weight):
            packer.pack(Matrix(k.place(args.x), args.positions, args.inputs), k.place(args.x_room))
        with k.where(k.build.and_(wants_x, k.is_given(args.weight))):
            packer.pack(Matrix(k.place(args.weight), args.outputs, args.inputs), k.place(args.weight_room))
        k.barrier(threads)
        with k.where(wants_x):
            gemm = Product(
                left=k.place(args.gradient),
                rows=args.positions,
                panels=k.place(args.weight_room),
                columns=args.inputs,
                pairs=k.build.sdiv(args.outputs, k.number(self.multiplier.layout.group)),
                out=args.by_x,
                ending="bias",
                values=(k.number(0), k.real(float("-inf")), args.streams, k.number(0), args.is_open),
                room=args.threads_room,
            )
            self.multiplier.multiply(gemm, thread, threads)
        gemm = Product(
            left=gradient.matrix.place,
            rows=args.outputs,
            panels=k.place(args.x_room),
            columns=args.inputs,
            pairs=packer.pairs_of(args.positions),
            out=args.weight_sum,
            ending="add",
            room=args.threads_room,
        )
        self.multiplier.add_up(gemm, gradient, thread, threads)
