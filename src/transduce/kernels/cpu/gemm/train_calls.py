"""Run the compiled GEMMs of training: linear layers forward and backward, and the output projection.

bfloat16 uses AMX where available.

Legend: N positions, I inputs and O outputs of a layer.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from transduce.kernels.cpu.gemm.packing import Gradient, Matrix
from transduce.kernels.cpu.gemm.train import (
    AmxGemmEmitter,
    Avx2GemmEmitter,
    Epilogue,
    Float32GemmEmitter,
    Gemm,
    GemmEmitter,
)
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    address_of,
    compile_kernels,
    find_float_tile,
    float_bits,
    kernel_of,
)
from transduce.kernels.cpu.jit.ir_builder import KernelBuilder, Value, outlined
from transduce.kernels.cpu.jit.memory import process_stack
from transduce.kernels.cpu.jit.tile import AVX512_TILE, Tile

# --- linear layer kernels ---
# PyTorch's library compiles a kernel for each shape, which takes up to a millisecond, and batch shapes vary. These
# kernels take any size, and fuse bias, ReLU, and the summation of the bias and weight gradients in float32.


class ForwardArguments(NamedTuple):
    """Arguments of the kernel `forward`, out = x Wᵀ + b.

    The fields are addresses of matrices in the GEMM's dtype, unless stated otherwise.
    """

    x: Any
    """Address of the layer's input, (N, I)."""
    weight: Any
    """Address of the weight, (O, I), which the kernel packs first; 0: `packed_weight` holds it packed already."""
    bias: Any
    """Address of the bias, (O,); 0: none."""
    out: Any
    """Address of the layer's output, (N, O), which is written."""
    positions: Any
    """The number of positions N, the rows of the input and of the output."""
    inputs: Any
    """The number of inputs I of the layer."""
    outputs: Any
    """The number of outputs O of the layer."""
    lower_bound: Any
    """The lower bound of the outputs, as the bits of a float32: 0 for ReLU, else -inf."""
    packed_weight: Any
    """Address of scratch space of O × I elements for the packed weight, or of the weight that was packed before."""
    is_nontemporal: Any
    """1 if outputs are written by non-temporal stores, past the caches, else 0."""
    thread_scratch: Any
    """Address of scratch space of `GemmEmitter.thread_bytes` bytes for each thread."""
    relu_mask: Any
    """Address of N × O bits, which are set where outputs are positive, for the backward pass; 0: not requested."""


class BackwardArguments(NamedTuple):
    """Arguments of the kernel `backward`, the backward pass of a linear layer.

    The fields are addresses of matrices in the GEMM's dtype, unless stated otherwise; 0: not requested.
    """

    x: Any
    """Address of the layer's input, (N, I)."""
    weight: Any
    """Address of the weight, (O, I), which the kernel packs first; 0: `packed_weight` holds it packed already."""
    gradient: Any
    """Address of the gradient with respect to the layer's output, (N, O)."""
    x_gradient: Any
    """Address of the gradient with respect to x, (N, I), which is written."""
    relu_mask: Any
    """Address of N × I bits for x that is a ReLU's output: where a bit is 0, the gradient of x is set to 0.

    0: x is not a ReLU's output.
    """
    weight_gradient_sum: Any
    """Address of float32, (O, I): the gradient with respect to the weight is added to it."""
    bias_gradient_sum: Any
    """Address of float32, (O,): the gradient with respect to the bias is added to it."""
    positions: Any
    """The number of positions N, the rows of the input and of the output."""
    inputs: Any
    """The number of inputs I of the layer."""
    outputs: Any
    """The number of outputs O of the layer."""
    packed_weight: Any
    """Address of scratch space of O × I elements for the packed weight, or of the weight that was packed before."""
    packed_x: Any
    """Address of scratch space for the packed input: I × N elements, N rounded up to the GEMM's multiple."""
    thread_scratch: Any
    """Address of scratch space of `GemmEmitter.thread_bytes` bytes for each thread."""
    is_nontemporal: Any
    """1 if `x_gradient` is written by non-temporal stores, past the caches, else 0."""
    partial_sums: Any = 0
    """Address of scratch space for the gradient of x, N × I float32, N rounded up to whole row tiles; 0: none.

    The space is used only for very many outputs, such as those of a vocabulary, whose sum is split into ranges.
    """


class LinearKernelEmitter:
    """An emitter of the kernels `forward` and `backward`, which compute a linear layer and its gradients."""

    names = ("forward", "backward")

    def __init__(self, k: KernelBuilder, multiplier: type[GemmEmitter]) -> None:
        self.k = k
        epilogues: tuple[Epilogue, ...] = ("bias", "add", "sum") if multiplier.splits_sums else ("bias", "add")
        self.multiplier = multiplier(k, *epilogues)

    def write(self) -> None:
        """Emit the kernels `forward`, x Wᵀ + b, and `backward`, the gradients of x, W and b.

        The arguments are the fields of `ForwardArguments` and `BackwardArguments`.
        """
        with kernel_of(self.k, "forward", ForwardArguments) as forward:
            self._forward(*forward)
        with kernel_of(self.k, "backward", BackwardArguments) as backward:
            self._backward(*backward)

    def _forward(self, args: ForwardArguments, thread: Value, threads: Value) -> None:
        """Emit the body of the kernel `forward`: pack the weight unless that is done, then compute out = x Wᵀ + b."""
        k = self.k
        with k.when(k.is_nonzero(args.weight)):
            weight = Matrix(k.pointer(args.weight), args.outputs, args.inputs)
            packer = self.multiplier.packer(k, self.multiplier.layout, thread, threads)
            packer.pack_transposed(weight, k.pointer(args.packed_weight))
            k.barrier(threads)
        gemm = Gemm(
            left=k.pointer(args.x),
            rows=args.positions,
            panels=k.pointer(args.packed_weight),
            columns=args.outputs,
            pairs=k.build.sdiv(args.inputs, k.int64(self.multiplier.layout.group)),
            out=args.out,
            epilogue="bias",
            values=(args.bias, k.float_from_bits(args.lower_bound), args.is_nontemporal, args.relu_mask, k.int64(0)),
            scratch=args.thread_scratch,
        )
        self.multiplier.multiply(gemm, thread, threads)

    def _backward(self, args: BackwardArguments, thread: Value, threads: Value) -> None:
        """Emit the body of the kernel `backward`: pack operands, then compute the requested gradients of x, W and b."""
        k = self.k
        packer = self.multiplier.packer(k, self.multiplier.layout, thread, threads)
        wants_x, wants_weight = k.is_nonzero(args.x_gradient), k.is_nonzero(args.weight_gradient_sum)
        gradient = Gradient(Matrix(k.pointer(args.gradient), args.positions, args.outputs), args.bias_gradient_sum)
        with k.when(wants_weight):
            packer.pack(Matrix(k.pointer(args.x), args.positions, args.inputs), k.pointer(args.packed_x))
        with k.when(k.build.and_(wants_x, k.is_nonzero(args.weight))):
            packer.pack(Matrix(k.pointer(args.weight), args.outputs, args.inputs), k.pointer(args.packed_weight))
        k.barrier(threads)
        with k.when(wants_x):
            gemm = Gemm(
                left=k.pointer(args.gradient),
                rows=args.positions,
                panels=k.pointer(args.packed_weight),
                columns=args.inputs,
                pairs=k.build.sdiv(args.outputs, k.int64(self.multiplier.layout.group)),
                out=args.x_gradient,
                epilogue="bias",
                values=(k.int64(0), k.float32(float("-inf")), args.is_nontemporal, k.int64(0), args.relu_mask),
                scratch=args.thread_scratch,
                partial_sums=args.partial_sums if self.multiplier.splits_sums else None,
            )
            self.multiplier.multiply(gemm, thread, threads)
        gemm = Gemm(
            left=gradient.matrix.pointer,
            rows=args.outputs,
            panels=k.pointer(args.packed_x),
            columns=args.inputs,
            pairs=packer.pairs_of(args.positions),
            out=args.weight_gradient_sum,
            epilogue="add",
            scratch=args.thread_scratch,
        )
        self.multiplier.accumulate_gradient(gemm, gradient, thread, threads)


# --- calls ---


_INPUTS_MULTIPLE = 32  # the number of inputs must be a multiple of this
_LINE_BYTES = 64  # of a cache line
_STREAMED_BYTES = 3 << 20  # larger results are written past the caches, as they would evict everything else
_MANY_OUTPUTS = 1 << 13  # the summed dimension of a gradient by so many outputs is split
_SLIGHT = 2.0**-7  # tolerance for rounded sums in another order, relative to the greatest one


class GradientSums(NamedTuple):
    """The float32 tensors to which a linear layer's gradients are added; None: that gradient is not requested."""

    weight: Tensor | None
    """The float32 tensor (O, I) to which the weight's gradient is added."""
    bias: Tensor | None = None
    """The float32 tensor (O,) to which the bias' gradient is added."""


def supports_gemm(x: Tensor, weight: Tensor) -> bool:
    """Return whether `multiply` and `linear_backward` support an input x (N, I) and a weight (O, I).

    x and the weight need the same dtype, and sizes that `supports_gemm_sizes` accepts. The weight may be a slice of
    rows.
    """
    return x.dtype == weight.dtype and supports_gemm_sizes(len(x), weight.shape[1], len(weight), x.dtype)


def supports_gemm_sizes(positions: int, inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    """Return whether compiled GEMM kernels support a linear layer of the given sizes and dtype on this processor.

    Inputs must be a multiple of 32, outputs a multiple of the GEMM's block, and positions (rows) no fewer than the rows
    that the GEMM computes at once.
    """
    tile = gemm_tile(dtype)
    if tile is None:
        return False
    fits = inputs % _INPUTS_MULTIPLE == outputs % _outputs_multiple(tile) == 0
    return fits and positions >= gemm_emitter_of(tile).layout.min_rows


def _outputs_multiple(tile: Tile) -> int:
    """Return the number of which a linear layer's outputs must be a multiple, for training GEMMs with a `Tile`."""
    return max(tile.lanes, gemm_emitter_of(tile).layout.row_multiple)


@cache
def bfloat16_tile() -> Tile | None:
    """Return the `Tile` of bfloat16 GEMMs on this processor; None if the processor has no such kernels.

    AMX is used only if it multiplies a small example correctly, else vector instructions.
    """
    tile = find_float_tile("pairs")
    if tile is None or not tile.amx or multiplies_correctly(tile):
        return tile
    return tile._replace(amx=False)


def gemm_tile(dtype: torch.dtype) -> Tile | None:
    """Return the `Tile` (instructions and vector length) for training GEMMs of a dtype on this processor.

    The result is None for a dtype other than float32 and bfloat16, and on a processor without kernels.
    """
    if dtype == torch.float32:
        return find_float_tile("floats")
    return bfloat16_tile() if dtype == torch.bfloat16 else None


def require_gemm_tile(dtype: torch.dtype) -> Tile:
    """Return the `Tile` for training GEMMs of a dtype; AssertionError if this processor has none."""
    tile = gemm_tile(dtype)
    assert tile is not None, f"there are no GEMM kernels for {dtype} on this processor"
    return tile


def gemm_emitter_of(tile: Tile) -> type[GemmEmitter]:
    """Return the class that emits the training GEMMs for a `Tile`: float32, bfloat16, or bfloat16 with AMX."""
    if tile.format == "floats":
        return Float32GemmEmitter if tile.lanes == AVX512_TILE.lanes else Avx2GemmEmitter
    return AmxGemmEmitter if tile.amx else GemmEmitter


def multiplies_correctly(tile: Tile) -> bool:
    """Return whether the bfloat16 GEMM kernels for a `Tile` multiply small matrices correctly on this machine.

    A product and a weight gradient are compared with PyTorch's float64 results, within rounding.
    """
    numbers = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(rows, 96, generator=numbers).bfloat16() for rows in (53, 96))
    product, total = x.new_empty(53, 96), torch.zeros(96, 96)
    run_forward(x, weight, product, torch.empty_like(weight), tile=tile)
    run_backward(product, x, None, None, GradientSums(total), torch.empty_like(weight), tile=tile)
    exact = x.double() @ weight.double().t()
    pairs = ((product, exact), (total, product.double().t() @ x.double()))
    return all(
        bool((actual.double() - expected).abs().max() < _SLIGHT * expected.abs().max()) for actual, expected in pairs
    )


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, *, activation: str | None = None) -> Tensor:
    """Return activation(x · weightᵀ + bias), (N, O), in x's dtype; all tensors are contiguous and of one dtype.

    Args:
        x: (N, I).
        weight: (O, I).
        bias: (O,); None: no bias.
        activation: None, or "relu".

    Raises:
        AssertionError: there are no kernels for the dtype on this processor.
    """
    out, packed = x.new_empty(len(x), len(weight)), torch.empty_like(weight)
    run_forward(x, weight, out, packed, bias=bias, lower_bound=0.0 if activation == "relu" else float("-inf"))
    return out


def linear_backward(gradient: Tensor, x: Tensor, weight: Tensor, sums: GradientSums, *, needs_x: bool) -> Tensor | None:
    """Run the backward pass of a linear layer; return the gradient of x.

    `gradient`, x and `weight` are contiguous and of one dtype.

    Args:
        gradient: the gradient of the output, (N, O).
        x: (N, I).
        weight: (O, I).
        sums: tensors that the weight and bias gradients are added to.
        needs_x: True if the gradient of x is requested.

    Returns:
        The gradient of x, (N, I); None if `needs_x` is False.

    Raises:
        AssertionError: there are no kernels for the dtype on this processor.
    """
    result = torch.empty_like(x) if needs_x else None
    run_backward(gradient, x, weight, result, sums, torch.empty_like(weight))
    return result


class PackedProjection:
    """A vocabulary projection whose weight is packed once and then multiplied by several blocks of rows.

    The class implements `Projection`. The vocabulary is padded to C tokens, a number that the GEMM kernels support.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, columns: int) -> None:
        self._weight = weight
        self.columns = columns
        self._bias = bias
        if columns > len(weight):
            self._bias = weight.new_zeros(columns)
            self._bias[len(weight) :] = float("-inf")
            if bias is not None:
                self._bias[: len(weight)] = bias
        self._packed: list[Tensor | None] = [None, None]  # the packed weight for the forward and the backward pass

    def logits(self, x: Tensor, out: Tensor) -> None:
        """Write the logits, x · weightᵀ + bias, of rows x (N, D) to `out` (N, C); padding columns are -inf."""
        weight, packed = self._packed_weight(0)
        run_forward(x, weight, out, packed, bias=self._bias, streams=False)  # the logits are read immediately

    def backward(self, gradient: Tensor, x: Tensor, grad_x: Tensor | None, weight_sum: Tensor | None) -> None:
        """Write the gradient of hidden states x (N, D) to `grad_x`, and add the weight's gradient to `weight_sum`.

        `weight_sum` is float32, (C, D), and `gradient` is that of the logits, (N, C). If `grad_x` or `weight_sum` is
        None, that gradient is not computed.
        """
        weight, packed = self._packed_weight(1)
        run_backward(gradient, x, weight, grad_x, GradientSums(weight_sum), packed)

    def _packed_weight(self, number: int) -> tuple[Tensor | None, Tensor]:
        """Return the weight that the kernel must still pack, and the tensor for the packed weight.

        `number` is 0 for the forward and 1 for the backward pass, which pack the weight differently. If the weight is
        packed already for this pass, None is returned instead of the weight, and the tensor holds the packed weight.
        """
        packed = self._packed[number]
        if packed is not None:
            return None, packed
        self._packed[number] = packed = self._weight.new_empty(self.columns, self._weight.shape[1])
        missing = self.columns - len(self._weight)
        return functional.pad(self._weight, (0, 0, 0, missing)) if missing else self._weight, packed


def project(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> PackedProjection | None:
    """Return a vocabulary projection that packs its weight (V, D) once, for hidden states (N, D) of the same dtype.

    The result is None if the compiled kernels do not support the dtypes, sizes or memory layout. This function
    implements `TrainingKernels.project`.
    """
    tile = gemm_tile(hidden.dtype)
    if tile is None or not hidden.dtype == weight.dtype == (weight if bias is None else bias).dtype:
        return None
    multiple = _outputs_multiple(tile)
    columns = -(-len(weight) // multiple) * multiple
    fits = hidden.is_contiguous() and weight.is_contiguous() and (bias is None or bias.is_contiguous())
    is_supported = fits and supports_gemm_sizes(len(hidden), weight.shape[1], columns, hidden.dtype)
    return PackedProjection(weight, bias, columns) if is_supported else None


def run_forward(
    x: Tensor,
    weight: Tensor | None,
    out: Tensor,
    packed_weight: Tensor,
    *,
    bias: Tensor | None = None,
    lower_bound: float = float("-inf"),
    streams: bool = True,
    relu_mask: Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    """Run the kernel `forward`, which computes a linear layer.

    Args:
        x: (N, I).
        weight: (O, I); None: `packed_weight` holds the packed weight already.
        out: receives x · weightᵀ + bias, (N, O).
        packed_weight: receives the packed weight, unless `weight` is None.
        bias: (O,); None: no bias.
        lower_bound: smaller outputs are replaced by this number, such as 0 for ReLU.
        streams: False if even large outputs are to be written to the caches, not past them.
        relu_mask: receives N × O bits, in bytes, that are set where outputs are positive; None: not requested.
        tile: the kernel's `Tile`; None: that for x's dtype.

    Raises:
        AssertionError: `tile` is None, and there are no kernels for the dtype on this processor.
    """
    tile = tile or require_gemm_tile(x.dtype)
    scratch = process_stack().allocate(torch.get_num_threads() * gemm_emitter_of(tile).thread_bytes)
    arguments = ForwardArguments(
        x=x.data_ptr(),
        weight=address_of(weight),
        bias=address_of(bias),
        out=out.data_ptr(),
        positions=len(x),
        inputs=x.shape[1],
        outputs=out.shape[1],
        lower_bound=float_bits(lower_bound),
        packed_weight=packed_weight.data_ptr(),
        is_nontemporal=int(streams and _is_streamed(out)),
        thread_scratch=scratch.address,
        relu_mask=address_of(relu_mask),
    )
    gemm_kernels(tile)["forward"].run(*arguments)
    scratch.free()


def is_nontemporal(size: int) -> bool:
    """Return whether a result of `size` bytes should be written past the caches, by non-temporal stores.

    Results of 3 MiB or more should be, as they would evict everything else from the caches.
    """
    return size >= _STREAMED_BYTES


def _is_streamed(out: Tensor) -> bool:
    """Return whether kernels write a tensor past the caches: it has at least 3 MiB, and is aligned to a cache line."""
    return is_nontemporal(out.nbytes) and out.data_ptr() % _LINE_BYTES == 0


def padded_rows(rows: int, tile: Tile) -> int:
    """Return a number of rows rounded up to the multiple that a training GEMM needs along its summed dimension."""
    multiple = gemm_emitter_of(tile).layout.row_multiple
    return -(-rows // multiple) * multiple


def run_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    grad_x: Tensor | None,
    sums: GradientSums,
    packed_weight: Tensor,
    *,
    relu_mask: Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    """Run the kernel `backward`, which computes the gradients of a linear layer.

    Args:
        gradient: the gradient of the output, (N, O).
        x: (N, I).
        weight: (O, I); None: `packed_weight` holds the packed weight already.
        grad_x: receives the gradient of x, (N, I); None: not requested.
        sums: tensors that the weight and bias gradients are added to.
        packed_weight: receives the packed weight, unless `weight` is None.
        relu_mask: if x is the output of a ReLU, N × I bits that are set where x is positive. `grad_x` then receives the
            gradient of the ReLU's input. None: x is no such output.
        tile: the kernel's `Tile`; None: that for x's dtype.

    Raises:
        AssertionError: `tile` is None, and there are no kernels for the dtype on this processor.
    """
    tile = tile or require_gemm_tile(x.dtype)
    multiplier = gemm_emitter_of(tile)
    (positions, outputs), inputs = gradient.shape, x.shape[1]
    packed_x = x.new_empty(inputs, padded_rows(positions, tile))
    scratch = process_stack().allocate(torch.get_num_threads() * multiplier.thread_bytes)
    splits, tile_rows = outputs >= _MANY_OUTPUTS and multiplier.splits_sums, multiplier.layout.tile_rows
    tiled_positions = -(-positions // tile_rows) * tile_rows
    partial_sums = process_stack().allocate(tiled_positions * inputs * 4 if splits else 0)
    arguments = BackwardArguments(
        x=x.data_ptr(),
        weight=address_of(weight),
        gradient=gradient.data_ptr(),
        x_gradient=address_of(grad_x),
        relu_mask=address_of(relu_mask),
        weight_gradient_sum=address_of(sums.weight),
        bias_gradient_sum=address_of(sums.bias),
        positions=positions,
        inputs=inputs,
        outputs=outputs,
        packed_weight=packed_weight.data_ptr(),
        packed_x=packed_x.data_ptr(),
        thread_scratch=scratch.address,
        is_nontemporal=int(grad_x is not None and _is_streamed(grad_x)),
        partial_sums=partial_sums.address if splits else 0,
    )
    gemm_kernels(tile)["backward"].run(*arguments)
    partial_sums.free()
    scratch.free()


@cache
def gemm_kernels(tile: Tile) -> dict[str, CompiledKernel]:
    """Return a dict with the kernels `forward` and `backward` of linear layers for a `Tile`, compiled on first use."""
    return compile_kernels("products", tile, LinearKernelEmitter.names, lambda k: _emit_products(k, tile))


@outlined
def _emit_products(k: KernelBuilder, tile: Tile) -> None:
    """Emit the kernels `forward` and `backward` of linear layers for a `Tile`."""
    LinearKernelEmitter(k, gemm_emitter_of(tile)).write()
