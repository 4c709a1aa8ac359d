"""Run the compiled training GEMMs: linear layers forward and backward, and the vocabulary projection.

bfloat16 uses AMX where available; the kernels are in `training_products.py`. Legend: N positions, I inputs and O
outputs of a layer.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduce.kernels.cpu.gemm.packing import Gradient, Matrix
from transduce.kernels.cpu.gemm.train import NarrowMultiplier, PairMultiplier, PlainMultiplier, Product
from transduce.kernels.cpu.gemm.train_amx import AmxMultiplier
from transduce.kernels.cpu.jit.compiler import (
    Program,
    address_of,
    compile_programs,
    find_float_tile,
    float_bits,
    new_emitter,
    program,
)
from transduce.kernels.cpu.jit.ir_builder import Emitter, Value
from transduce.kernels.cpu.jit.memory import own_stack
from transduce.kernels.cpu.jit.tile import WIDE, Tile

# --- training products ---
# Emit the linear layers of training, forward and backward, with fused epilogues.
# PyTorch's library compiles a kernel for each shape, which takes up to a millisecond, and batch shapes vary. These
# kernels take any size, and fuse bias, ReLU, and the summation of the bias and weight gradients in float32. Legend:
# N positions, I inputs and O outputs of a layer.


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


# --- train calls ---


_INPUTS_TOGETHER = 32  # the number of inputs must be a multiple of this
_LINE_BYTES = 64  # of a cache line
_STREAMED_BYTES = 3 << 20  # larger results are written past the caches, as they would evict everything else
_SLIGHT = 2.0**-7  # tolerance for rounded sums in another order, relative to the greatest one


class Sums(NamedTuple):
    """Contiguous float32 tensors that gradients are added to; None: the gradient is not requested."""

    weight: Tensor | None
    """The sum of the weight's gradients, (O, I)."""
    bias: Tensor | None = None
    """The sum of the bias' gradients, (O,)."""


def suits_product(x: Tensor, weight: Tensor) -> bool:
    """Return whether `multiply` and `multiply_back` take x (N, I) and rows of a weight (O, I)."""
    return x.dtype == weight.dtype and suits_sizes(len(x), weight.shape[1], len(weight), x.dtype)


def suits_sizes(positions: int, inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    """Return whether the GEMM kernels take a linear layer of these sizes and this dtype."""
    tile = product_tile(dtype)
    if tile is None:
        return False
    layout = multiplier_of(tile).layout
    fits = inputs % _INPUTS_TOGETHER == outputs % max(tile.lanes, layout.together) == 0
    return fits and positions >= layout.least_rows


@cache
def pair_tile() -> Tile | None:
    """Return the tile for bfloat16 GEMMs on this processor; None if there are no kernels.

    AMX is used only if it multiplies a small example correctly.
    """
    tile = find_float_tile("pairs")
    if tile is None or not tile.amx or multiplies_rightly(tile):
        return tile
    return tile._replace(amx=False)


def product_tile(dtype: torch.dtype) -> Tile | None:
    """Return the tile for GEMMs of a dtype on this processor; None if there are no kernels."""
    if dtype == torch.float32:
        return find_float_tile("floats")
    return pair_tile() if dtype == torch.bfloat16 else None


def own_product_tile(dtype: torch.dtype) -> Tile:
    """Return `product_tile(dtype)`, which must not be None."""
    tile = product_tile(dtype)
    assert tile is not None, f"there are no GEMM kernels for {dtype} on this processor"
    return tile


def multiplier_of(tile: Tile) -> type[PairMultiplier]:
    """Return the class that emits GEMMs for a tile."""
    if tile.kind == "floats":
        return PlainMultiplier if tile.lanes == WIDE.lanes else NarrowMultiplier
    return AmxMultiplier if tile.amx else PairMultiplier


def multiplies_rightly(tile: Tile) -> bool:
    """Return whether a tile's kernels multiply small matrices correctly, within rounding."""
    numbers = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(rows, 96, generator=numbers).bfloat16() for rows in (53, 96))
    product, total = x.new_empty(53, 96), torch.zeros(96, 96)
    _forward(x, weight, product, torch.empty_like(weight), tile=tile)
    _back(product, x, None, None, Sums(total), torch.empty_like(weight), tile=tile)
    exact = x.double() @ weight.double().t()
    pairs = ((product, exact), (total, product.double().t() @ x.double()))
    return all(
        bool((actual.double() - expected).abs().max() < _SLIGHT * expected.abs().max()) for actual, expected in pairs
    )


def multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    activation: str | None = None,
    positive: Tensor | None = None,
) -> Tensor:
    """Return activation(x · weightᵀ + bias), (N, O); all tensors are contiguous and of one dtype.

    Args:
        x: (N, I).
        weight: (O, I).
        bias: (O,).
        activation: None, or "relu".
        positive: N × O bits, in bytes, that are set where the result is positive.
    """
    out, packed = x.new_empty(len(x), len(weight)), torch.empty_like(weight)
    _forward(x, weight, out, packed, bias=bias, least=0.0 if activation == "relu" else float("-inf"), positive=positive)
    return out


def multiply_back(
    gradient: Tensor, x: Tensor, weight: Tensor, sums: Sums, *, by_x: bool, is_open: Tensor | None = None
) -> Tensor | None:
    """Run the backward pass of a linear layer; return the gradient of x, (N, I), if `by_x`, else None.

    Args:
        gradient: of the output, (N, O), contiguous, as are x and weight, all of one dtype.
        x: (N, I).
        weight: (O, I).
        sums: tensors that the weight and bias gradients are added to.
        by_x: whether the gradient of x is requested.
        is_open: if x is a ReLU's output, N × I bits that are set where it was positive. The result is then the gradient
            of the ReLU's input.
    """
    result = torch.empty_like(x) if by_x else None
    _back(gradient, x, weight, result, sums, torch.empty_like(weight), is_open=is_open)
    return result


class PackedProjection:
    """A vocabulary projection whose weight is packed once and then multiplied by several blocks of rows.

    Implements `backend.Projection`.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._packed: list[Tensor | None] = [None, None]  # the packed weight for the forward and the backward pass

    def logits(self, x: Tensor, out: Tensor) -> None:
        """Write the logits x · weightᵀ to `out`."""
        weight, packed = self._packed_weight(0)
        _forward(x, weight, out, packed, streams=False)  # the logits are read immediately

    def back(self, gradient: Tensor, x: Tensor, by_x: Tensor | None, weight_sum: Tensor | None) -> None:
        """Write the gradient of x to `by_x`, and add the weight's gradient to `weight_sum`, each if it is not None."""
        weight, packed = self._packed_weight(1)
        _back(gradient, x, weight, by_x, Sums(weight_sum), packed)

    def _packed_weight(self, number: int) -> tuple[Tensor | None, Tensor]:
        """Return the weight if it must still be packed (else None), and the tensor for the packed weight."""
        packed = self._packed[number]
        if packed is not None:
            return None, packed
        self._packed[number] = packed = torch.empty_like(self._weight)
        return self._weight, packed


def project(hidden: Tensor, weight: Tensor) -> PackedProjection | None:
    """Return a packed vocabulary projection for hidden states (N, D); None if the kernels do not take them."""
    fits = hidden.is_contiguous() and weight.is_contiguous() and suits_product(hidden, weight)
    return PackedProjection(weight) if fits else None


def _forward(
    x: Tensor,
    weight: Tensor | None,
    out: Tensor,
    room: Tensor,
    *,
    bias: Tensor | None = None,
    least: float = float("-inf"),
    streams: bool = True,
    positive: Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    """Run the kernel `forward`; `room` receives the packed weight, or holds it already if `weight` is None."""
    tile = tile or own_product_tile(x.dtype)
    scratch = own_stack().take(torch.get_num_threads() * multiplier_of(tile).thread_bytes)
    arguments = ForwardPlaces(
        x=x.data_ptr(),
        weight=address_of(weight),
        bias=address_of(bias),
        out=out.data_ptr(),
        positions=len(x),
        inputs=x.shape[1],
        outputs=out.shape[1],
        least=float_bits(least),
        room=room.data_ptr(),
        streams=int(streams and _is_streamed(out)),
        threads_room=scratch.address,
        positive=address_of(positive),
    )
    product_programs(tile)["forward"].run(*arguments)
    scratch.give_back()


def is_streamed(size: int) -> bool:
    """Return whether a result of `size` bytes is written by non-temporal stores, past the caches."""
    return size >= _STREAMED_BYTES


def _is_streamed(out: Tensor) -> bool:
    """Return whether a tensor is written by non-temporal stores: it is large, and aligned to a cache line."""
    return is_streamed(out.nbytes) and out.data_ptr() % _LINE_BYTES == 0


def rows_filled_up(rows: int, tile: Tile) -> int:
    """Round a number of summed rows up to the multiple that a tile's GEMM pads to."""
    together = multiplier_of(tile).layout.together
    return -(-rows // together) * together


def _back(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    by_x: Tensor | None,
    sums: Sums,
    room: Tensor,
    *,
    is_open: Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    """Run the kernel `back`; `room` receives the packed weight, or holds it already if `weight` is None."""
    tile = tile or own_product_tile(x.dtype)
    multiplier = multiplier_of(tile)
    (positions, outputs), inputs = gradient.shape, x.shape[1]
    filled = rows_filled_up(positions, tile)
    packed_x = x.new_empty(inputs, filled)
    scratch = own_stack().take(torch.get_num_threads() * multiplier.thread_bytes)
    arguments = BackPlaces(
        x=x.data_ptr(),
        weight=address_of(weight),
        gradient=gradient.data_ptr(),
        by_x=address_of(by_x),
        is_open=address_of(is_open),
        weight_sum=address_of(sums.weight),
        bias_sum=address_of(sums.bias),
        positions=positions,
        inputs=inputs,
        outputs=outputs,
        weight_room=room.data_ptr(),
        x_room=packed_x.data_ptr(),
        threads_room=scratch.address,
        streams=int(by_x is not None and _is_streamed(by_x)),
    )
    product_programs(tile)["back"].run(*arguments)
    scratch.give_back()


@cache
def product_programs(tile: Tile) -> dict[str, Program]:
    """Return the compiled kernels `forward` and `back` of a tile."""
    k = new_emitter("products", tile)
    ProductWriter(k, multiplier_of(tile)).write()
    return compile_programs(k, ProductWriter.names)
