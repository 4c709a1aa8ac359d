"""Multiply matrices in decoding: GEMM kernels with prepacked weights, and the linear layers that call them.

Legend: N rows, D inputs, O outputs, P outputs padded to whole blocks of weights, C outputs per block, V vocabulary
size.
"""

from collections.abc import Sequence
from functools import cache

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import TransduceError
from transduce.kernels.cpu.gemm import amx
from transduce.kernels.cpu.gemm.amx import READABLE_EXTRA_ROWS
from transduce.kernels.cpu.gemm.train import multiply_pairs
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    compile_kernels,
    kernel,
    require_integer_tile,
    useful_threads,
)
from transduce.kernels.cpu.jit.ir_builder import I8, I16, I32, I64, POINTER, KernelBuilder, Value, outlined
from transduce.kernels.cpu.jit.memory import file_rows
from transduce.kernels.cpu.jit.tile import (
    HALF_BITS,
    MICRO_KERNEL_TYPES,
    MicroKernelArguments,
    Tile,
    dequantize_and_store,
    output_type,
    shift_high_half,
    store_outputs,
)
from transduce.kernels.cpu.logits import emit_bfloat16_refinement, emit_refinement
from transduce.kernels.prepacked import LinearUse, MakeLinear
from transduce.model.feed_forward import Linear
from transduce.model.known_classes import register_class

# --- floating-point micro-kernels ---
# A few rows by one block of weights, in bfloat16 or float32. Legend: N rows, D inputs.


# Inputs that an iteration multiplies, by number of rows; from 3 rows on, one input per iteration hides the latency.
_UNROLLED = {1: 4, 2: 4}


def _emit_float_micro_kernel(
    k: KernelBuilder, tile: Tile, rows: int, epilogue: str, args: MicroKernelArguments
) -> None:
    """Emit the code that multiplies `rows` rows by one block of weights, in bfloat16 or float32, with an epilogue.

    Each row's sum is added in the same order whatever the number of rows, so results do not depend on the batch.
    """
    starts = [k.load_floats(args.bias, vector * tile.lanes) for vector in range(tile.vectors)]
    sums = [[k.variable(start) for start in starts] for _ in range(rows)]
    unrolled_groups = _UNROLLED.get(rows, 1)
    with k.loop(0, args.width, tile.group * unrolled_groups) as first:
        for position in (k.add(first, step * tile.group) for step in range(unrolled_groups)):
            line = k.element_pointer(args.weights, k.mul(position, tile.columns), tile.weight)
            weights = [
                k.load(k.element_pointer(line, vector * tile.lanes, I32), k.ints) for vector in range(tile.vectors)
            ]
            for row, totals in enumerate(sums):
                source = k.element_pointer(args.rounded, k.add(k.mul(args.width, row), position), tile.element)
                factor = k.splat(k.load(source, I32))
                for total, weight in zip(totals, weights, strict=True):
                    k.store(_multiply_elements(k, tile, k.load_variable(total), factor, weight), total)
    for row, totals in enumerate(sums):
        for vector, total in enumerate(totals):
            store_outputs(k, args, epilogue, row, vector, k.load_variable(total))


def _multiply_elements(k: KernelBuilder, tile: Tile, total: Value, one: Value, other: Value) -> Value:
    """Return total + one · other for vectors of 32-bit elements, each a float32 number or a bfloat16 pair."""
    if tile.format == "pairs":
        return multiply_pairs(k, total, one, other)
    return k.madd(k.build.bitcast(one, k.floats), k.build.bitcast(other, k.floats), total)


# --- GEMM kernels ---
# Rows are quantized, multiplied by blocks of prepacked weights, and dequantized. Legend: N rows, D inputs, O outputs,
# C outputs per block of weights.


_MIN_ROW_MAGNITUDE = 1e-30  # lower bound on a row's greatest magnitude, against division by zero


@outlined
def emit_quantization(k: KernelBuilder, tile: Tile) -> None:
    """Emit `round_<format>(x, N, D, rounded, scales, thread, threads)`, which quantizes float32 rows x (N, D).

    For integer tiles, the function writes the quantized rows and each row's scale, float32 (N,). For `pairs`, it
    converts to bfloat16 and does not write `scales`. Tiles of format `floats` need no such function.
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, I64, I64)
    with k.function(f"round_{tile.format}", *kinds) as (x, rows, width, rounded, scales, *share):
        if tile.is_float:
            first, last = (k.mul(row, width) for row in k.thread_range(rows, *share))
            with k.loop(first, last, k.lanes) as index:
                k.store(k.to_bfloat16(k.load_floats(x, index)), k.element_pointer(rounded, index, I16))
            return
        with k.thread_loop(rows, share) as row:
            source = k.element_pointer(x, k.mul(row, width))
            maxima = k.accumulators()
            for column, number in k.each_vector(width):
                size = k.intrinsic(f"llvm.fabs.v{k.lanes}f32", k.floats, k.load_floats(source, column))
                k.accumulate(maxima[number], size, k.maximum)
            greatest = k.maximum(k.reduce_max(k.combine_accumulators(maxima, k.maximum)), k.float32(_MIN_ROW_MAGNITUDE))
            k.store(k.build.fdiv(greatest, k.float32(float(tile.max_quantized))), k.element_pointer(scales, row))
            inverse = k.splat(k.build.fdiv(k.float32(float(tile.max_quantized)), greatest))
            target = k.element_pointer(rounded, k.mul(row, width, tile.elements_per_activation), tile.element)
            for column, _ in k.each_vector(width):
                rounded_values = k.round_to_int(k.build.fmul(k.load_floats(source, column), inverse))
                shifted = k.build.add(rounded_values, ir.Constant(k.ints, [tile.zero_point] * k.lanes))
                planes = [shifted]
                if tile.elements_per_activation == 2:
                    low = k.splat_int(2**HALF_BITS - 1)
                    planes = [k.build.lshr(shifted, k.splat_int(HALF_BITS)), k.build.and_(shifted, low)]
                for number, plane in enumerate(planes):
                    narrow = k.build.trunc(plane, ir.VectorType(tile.element, k.lanes))
                    k.store(narrow, k.element_pointer(target, k.add(column, k.mul(width, number)), tile.element))


@outlined
def emit_gemm(k: KernelBuilder, tile: Tile, epilogue: str) -> None:
    """Emit the GEMM function `product_<format>_<epilogue>`, and the micro-kernels that it calls.

    product_<format>_<epilogue>(rounded, scales, N, D, weights, initial_sums, weight_scales, bias, O, out, thread,
    threads) computes out = rounded · weightsᵀ + bias, (N, O).

    Args:
        k: the IR builder.
        tile: the tile. rounded (N, D) and scales (N,) come from `round_<format>`; float32 rows are passed unchanged.
            With AMX, `amx.READABLE_EXTRA_ROWS` rows behind the last one must be readable. weights, initial_sums,
            weight_scales and bias (O,) are those of `CompiledLinear`, and O is a multiple of C.
        epilogue: what is done with the sums: "store"; "relu", which applies ReLU; "add", which adds to what out holds;
            "half", which clamps to float16's range and writes float16.
    """
    micro_kernel = _emit_float_micro_kernel if tile.is_float else _emit_integer_micro_kernel
    for rows in range(1, tile.rows + 1):
        with k.function(f"tile_{tile.format}_{epilogue}_{rows}", *MICRO_KERNEL_TYPES) as arguments:
            micro_kernel(k, tile, rows, epilogue, MicroKernelArguments(*arguments))
    if tile.amx:
        amx.emit_blocks(k, tile, epilogue)
    kinds = (POINTER, POINTER, I64, I64, POINTER, POINTER, POINTER, POINTER, I64, POINTER, I64, I64)
    with k.function(f"product_{tile.format}_{epilogue}", *kinds) as arguments:
        rounded, scales, rows, width, weights, initial_sums, weight_scales, bias, outputs, out, *share = arguments
        first, last = k.thread_range(k.build.sdiv(outputs, k.int64(tile.columns)), *share)
        full_rows = k.mul(k.build.sdiv(rows, k.int64(tile.rows)), tile.rows)

        def arguments_at(row: Value, block: Value) -> MicroKernelArguments:
            """Return the `MicroKernelArguments` for the rows from `row` on and block `block` of outputs."""
            column = k.mul(block, tile.columns)
            first_input = k.element_pointer(rounded, k.mul(row, width, tile.elements_per_activation), tile.element)
            inputs = first_input, k.element_pointer(scales, row), width
            first_weight = k.element_pointer(weights, k.mul(column, width), tile.weight)
            # These have 32 bits for each output.
            sums, sizes, biases = (k.element_pointer(each, column) for each in (initial_sums, weight_scales, bias))
            target = k.element_pointer(out, k.add(k.mul(row, outputs), column), output_type(epilogue))
            return MicroKernelArguments(*inputs, first_weight, sums, sizes, biases, target, outputs)

        def by_vectors() -> None:
            """Emit the multiplication with vector instructions, for the case that AMX is not used."""
            with k.loop(first, last) as block:
                with k.loop(0, full_rows, tile.rows) as row:
                    k.call(f"tile_{tile.format}_{epilogue}_{tile.rows}", *arguments_at(row, block))
                for count in range(1, tile.rows):
                    has_count = k.build.icmp_signed("==", k.build.sub(rows, full_rows), k.int64(count))
                    with k.when(has_count):
                        k.call(f"tile_{tile.format}_{epilogue}_{count}", *arguments_at(full_rows, block))

        if not tile.amx:
            by_vectors()
            return
        with k.build.if_else(amx.is_worthwhile(k, tile, rows, width)) as (use_amx, use_vectors):
            with use_amx:
                amx.configure(k)
                with k.loop(first, last) as block:
                    amx.emit_rows(k, tile, epilogue, rows, lambda row: arguments_at(row, block))
                amx.release(k)
            with use_vectors:
                by_vectors()


def _emit_integer_micro_kernel(
    k: KernelBuilder, tile: Tile, rows: int, epilogue: str, args: MicroKernelArguments
) -> None:
    """Emit the code that multiplies `rows` rows of quantized integers by one block of C outputs, with an epilogue."""
    starts = [k.load(k.element_pointer(args.initial_sums, v * tile.lanes, I32), k.ints) for v in range(tile.vectors)]
    begin = [k.splat_int(0)] * tile.vectors if tile.elements_per_activation == 2 else starts
    sums = [[k.variable(start) for start in begin] for _ in range(rows)]
    row_width = k.mul(args.width, tile.elements_per_activation)
    for plane in range(tile.elements_per_activation):
        with k.loop(0, args.width, tile.group * tile.groups) as first:
            line = k.element_pointer(args.weights, k.mul(first, tile.columns), I8)
            weights = [_load_weights(k, tile, line, number) for number in range(tile.groups * tile.vectors)]
            offset = k.add(k.mul(args.width, plane), first)
            for row in range(rows):
                inputs = k.element_pointer(args.rounded, k.add(k.mul(row_width, row), offset), tile.element)
                spread = [
                    k.splat(k.load(k.element_pointer(inputs, g * tile.group, tile.element), I32))
                    for g in range(tile.groups)
                ]
                for vector in range(tile.vectors):
                    total = k.load_variable(sums[row][vector])
                    k.store(_multiply(k, tile, total, spread, weights[vector :: tile.vectors]), sums[row][vector])
        if tile.elements_per_activation == 2 and plane == 0:
            for row in range(rows):
                for vector, start in enumerate(starts):
                    high = shift_high_half(k, k.load_variable(sums[row][vector]))
                    k.store(k.build.add(high, start), sums[row][vector])
    for row in range(rows):
        totals = {vector: k.load_variable(each) for vector, each in enumerate(sums[row])}
        dequantize_and_store(k, args, epilogue, row, totals)


def _load_weights(k: KernelBuilder, tile: Tile, line: Value, number: int) -> Value:
    """Return vector `number` of a line of packed 8-bit weights.

    A line holds the weights of a few inputs for all outputs of a block. For tiles of format `words`, the weights are
    widened to 16 bits.
    """
    count = tile.group * k.lanes
    weights = k.load(k.element_pointer(line, number * count, I8), ir.VectorType(I8, count))
    return k.build.sext(weights, ir.VectorType(I16, count)) if tile.format == "words" else weights


def _multiply(k: KernelBuilder, tile: Tile, total: Value, inputs: Sequence[Value], weights: Sequence[Value]) -> Value:
    """Return total + inputs · weights, a vector of 32-bit integer sums.

    `inputs` and `weights` are sequences of vectors of quantized numbers. Each vector has one group of inputs (32 bits)
    for each sum. The sequences have two vectors for the format `six_bits`, else one.
    """
    groups = [(k.build.bitcast(one, other.type), other) for one, other in zip(inputs, weights, strict=True)]
    if tile.format in ("bytes", "halves"):
        return k.intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * k.lanes}", k.ints, total, *groups[0])
    if tile.format == "six_bits":
        halves = ir.VectorType(I16, 2 * k.lanes)
        pairs = (k.intrinsic(_BYTES_TO_PAIRS[k.lanes], halves, *group) for group in groups)
        groups = [(k.build.add(*pairs), ir.Constant(halves, [1] * 2 * k.lanes))]
    return k.build.add(total, k.intrinsic(_WORDS_TO_SUMS[k.lanes], k.ints, *groups[0]))


_BYTES_TO_PAIRS = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
_WORDS_TO_SUMS = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}


# --- linear layers ---


_LEAST = 1e-30  # lower bound on an output's greatest weight, against division by zero
_SLIGHT = 1e-4  # tolerance for float sums in another order, relative to the greatest one
_LEVELS = 127  # the greatest quantized magnitude of a weight
_ROUNDED_ROWS = 1024  # rows that are quantized at a time
_LAYOUT_VERSION = 1  # to be raised when weights are quantized or packed in another way, so that no cache is used
_LAYOUT_FORMATS = {"six_bits": "sextets"}  # formats that files name otherwise
INPUT_MULTIPLE = 16
"""The divisor that the number of inputs D of a prepacked layer must have."""
MIN_INPUTS_FOR_8_BITS = 512
"""The minimum number of inputs D of layers with 8-bit activations; layers with fewer have 12-bit activations.

In long sums, more rounding errors cancel out.
"""


class CompiledLinear(nn.Module):
    """A linear layer x Wᵀ + b, (…, D) to (…, O), with weights that are packed for compiled kernels; inference only.

    Inputs and outputs are float32; the tile determines the number format (8-bit, bfloat16 or float32) of the product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tile: Tile) -> None:
        """Quantize and pack a float32 matrix (O, D), where D is a multiple of `INPUT_MULTIPLE`; a None bias is 0.

        If the matrix is on the meta device, only shapes and dtypes are determined.

        Raises:
            TransduceError: 32-bit sums of products could overflow.
        """
        super().__init__()
        outputs, width = weight.shape
        padding = -outputs % tile.columns
        self.tile = tile
        self.is_rounded = tile.format != "floats"
        """True if inputs and weights are rounded before the multiplication, so that results differ from float32's."""
        self.outputs, self.width = outputs, width
        self.padded_outputs = outputs + padding
        packed = self._meta_tensors(weight) if weight.is_meta else self._pack(weight.detach(), bias)
        self.weights, self.initial_sums, self.weight_scales, self.bias = (
            nn.Parameter(tensor, requires_grad=False) for tensor in packed
        )

    def _meta_tensors(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Return four tensors on the meta device (without data): packed weights, initial sums, scales and bias.

        The shapes and dtypes are those of the tensors that `_pack` returns.
        """
        # Only `empty`, because PyTorch loads a second of Python modules to run other operations on this device.
        tile, padded = self.tile, self.padded_outputs
        blocks = (padded // tile.columns, self.width // tile.group, tile.columns, tile.group)
        dtype = torch.int8 if not tile.is_float else torch.bfloat16 if tile.format == "pairs" else torch.float32
        vectors = (weight.new_empty(padded, dtype=each) for each in (torch.int32, torch.float32, torch.float32))
        return weight.new_empty(blocks, dtype=dtype), *vectors

    def _pack(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        """Return four tensors: packed weights, initial sums, weight scales and bias.

        The packed weights are (P / C, D / group, C, group), where group is `Tile.group`. The other tensors are (P,)
        each. P is the number of outputs O, padded to whole blocks of C outputs.

        Raises:
            TransduceError: 32-bit sums of products could overflow.
        """
        tile, padding = self.tile, self.padded_outputs - self.outputs
        rounded, initial_sums, weight_scales = _round(weight, tile)
        grouped = F.pad(rounded, (0, 0, 0, padding)).view(-1, tile.columns, self.width // tile.group, tile.group)
        blocks = grouped.permute(0, 2, 1, 3)  # (P / C, D / group, C, group)
        full_bias = torch.zeros(self.outputs) if bias is None else bias.detach().float()
        return blocks.contiguous(), *(F.pad(each, (0, padding)) for each in (initial_sums, weight_scales, full_bias))

    @property
    def layout(self) -> str:
        """A text that identifies the format and order of the packed weights.

        Packed weights in a cache file are usable only if the file was written with the same text. The text depends on
        the processor and the version of the packing code.
        """
        tile = self.tile
        return f"{_LAYOUT_VERSION} {_LAYOUT_FORMATS.get(tile.format, tile.format)} {tile.lanes}x{tile.vectors}"

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear layer to float32 x (…, D); return float32 (…, O).

        A row's result does not depend on the other rows.
        """
        rows = x.reshape(-1, self.width).contiguous()
        out = rows.new_empty(len(rows), self.padded_outputs)
        rounded = rows.new_empty(len(rows) + READABLE_EXTRA_ROWS, self.width, dtype=torch.int16)
        scales = rows.new_empty(len(rows))
        parameters, threads = (self.weights, self.initial_sums, self.weight_scales, self.bias), self._threads(rows)
        inputs, outputs = (rows, len(rows), self.width, rounded, scales), (self.padded_outputs, out)
        _linear_kernel(self.tile).run(*inputs, *parameters, *outputs, threads=threads)
        result: Tensor = out[:, : self.outputs].unflatten(0, x.shape[:-1])
        return result

    def _threads(self, rows: Tensor) -> int:
        """Return how many threads to use for `rows` (N, D), which depends on the number of multiply-adds."""
        return useful_threads(len(rows) * self.width * self.padded_outputs)

    def extra_repr(self) -> str:
        """Return the layer's sizes and number format, which `print(model)` shows."""
        return f"{self.width}, {self.outputs}, {self.tile.format}"


def _round(weight: Tensor, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    """Return a quantized weight matrix (O, D), the initial sums (O,) and the weight scales (O,).

    The matrix has the tile's number format. In floating-point formats, initial sums and scales are zero. In integer
    formats, an output's sum of products starts with its initial sum, which cancels the contribution of the activations'
    zero point.

    Raises:
        TransduceError: 32-bit sums of products could overflow.
    """
    if tile.is_float:
        dtype = torch.bfloat16 if tile.format == "pairs" else torch.float32
        none = torch.zeros(len(weight))
        return weight.to(dtype), none.int(), none
    weight_scales = weight.new_empty(len(weight))  # (O,)
    rounded = torch.empty_like(weight, dtype=torch.int8, memory_format=torch.contiguous_format)
    # A part at a time, because the intermediate results are in float32.
    for part, scales, out in zip(
        *(each.split(_ROUNDED_ROWS) for each in (weight, weight_scales, rounded)), strict=True
    ):
        scales.copy_(part.abs().amax(dim=1).clamp_min_(_LEAST).div_(_LEVELS))
        out.copy_((part / scales[:, None]).round_())
        if weight.shape[1] > tile.max_inputs:
            _check_sums(out, tile)
    return rounded, rounded.sum(dim=1, dtype=torch.int32) * -tile.zero_point, weight_scales


def _check_sums(rounded: Tensor, tile: Tile) -> None:
    """Check that 32-bit sums of products cannot overflow with quantized weights (O, D).

    Raises:
        TransduceError: the greatest possible inputs would make an output's sum overflow.
    """
    greatest = tile.max_quantized * int(rounded.abs().sum(dim=1, dtype=torch.int64).max())
    if greatest >= 2**31:
        raise TransduceError(
            f"Precision `int8` cannot multiply a linear layer of {rounded.shape[1]} inputs whose weights are almost "
            "equal, because sums would exceed 32 bits: use `fp32` or `bf16`."
        )


class CompiledVocabulary(CompiledLinear):
    """A vocabulary projection with packed weights, which computes the logits of the likeliest tokens again in float32.

    Decoding needs the greatest logits, whose order rounding would change. With float32 weights nothing is computed
    twice.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tile: Tile) -> None:
        """Pack the matrix (V, D), and keep the original to compute the likeliest tokens' logits again.

        With tied embeddings the original takes no extra memory. If `bias` is None, the bias is 0. Padding outputs have
        the bias -inf, so that they are never selected.

        Raises:
            TransduceError: 32-bit sums of products could overflow.
        """
        super().__init__(weight, bias, tile)
        self.exact_weight = weight
        self.recomputes_likeliest = self.is_rounded
        if not weight.is_meta:
            with torch.no_grad():
                self.bias[self.outputs :] = float("-inf")  # padding outputs are never selected

    def forward(self, x: Tensor) -> Tensor:
        """Return the float32 logits of states x, (…, D) to (…, V).

        A row's result does not depend on the other rows.
        """
        logits = super().forward(x)
        if not self.recomputes_likeliest:
            return logits
        rows = x.reshape(-1, self.width).contiguous()
        weights = self.exact_weight, file_rows(self.exact_weight), self.bias
        sizes, outputs = (len(rows), self.width), (logits, self.padded_outputs)
        _refining_kernel(self.tile).run(rows, *sizes, *weights, *outputs, threads=self._threads(rows))
        return logits


class BFloat16Vocabulary:
    """A vocabulary projection in bfloat16 that computes the likeliest tokens' logits again in float32.

    PyTorch rounds the logits to 8 bits of precision, so many would be equal.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep the matrix (V, D), D a multiple of `INPUT_MULTIPLE`, and the bias (V,) or None, both in bfloat16."""
        self._weight, self._bias = weight, bias
        self._exact_bias = weight.new_zeros(len(weight), dtype=torch.float32) if bias is None else bias.float()
        self._tile = require_integer_tile()
        self._padded = -(-len(weight) // self._tile.columns) * self._tile.columns  # P

    def __call__(self, x: Tensor) -> Tensor:
        """Return float32 logits (…, V) of bfloat16 states (…, D); only those of unlikely tokens are rounded."""
        outputs, width = self._weight.shape
        rows = x.reshape(-1, width).contiguous()
        rounded = F.linear(rows, self._weight, self._bias)
        padded_logits = rows.new_empty(len(rows), self._padded, dtype=torch.float32)
        weights, sizes = (self._weight, self._exact_bias), (outputs, padded_logits, self._padded)
        threads = useful_threads(len(rows) * width * outputs)
        _widening_kernel(self._tile).run(rows, len(rows), width, *weights, rounded, *sizes, threads=threads)
        logits: Tensor = padded_logits[:, :outputs].unflatten(0, x.shape[:-1])
        return logits


for _kind, _more in ((CompiledLinear, ()), (CompiledVocabulary, ("exact_weight",))):
    _tensors = ("weights", "initial_sums", "weight_scales", "bias", *_more)
    register_class(_kind, computes=Linear, tensors=_tensors, sizes=("width", "outputs"))


def make_int8_linear(weight: Tensor, bias: Tensor | None, use: LinearUse = "layer", /) -> nn.Module:
    """Return a linear layer with 8-bit weights; the arguments are those of `prepacked.MakeLinear`.

    The number of bits of activations depends on `use`:

    * `layer`: 8 bits if the processor multiplies 8-bit numbers and there are at least `MIN_INPUTS_FOR_8_BITS` inputs;
      else 12;
    * `memory` (keys and values of cross-attention): 12 bits;
    * `vocabulary`: 8 bits or, on processors without such multiplications, 6; the likeliest logits are computed again.

    Raises:
        TransduceError: the number of inputs is no multiple of `INPUT_MULTIPLE`, or sums could exceed 32 bits.
        AssertionError: there are no kernels for this processor.
    """
    if weight.shape[1] % INPUT_MULTIPLE:
        raise TransduceError(
            f"With precision `int8` the number of inputs of each linear layer must be a multiple of {INPUT_MULTIPLE}, "
            f"but one has {weight.shape[1]}: use `fp32` or `bf16`."
        )
    tile = require_integer_tile()
    if tile.amx and not amx_matches_vectors(tile):
        tile = tile._replace(amx=False)
    if use != "vocabulary":
        is_enough = use == "layer" and tile.format == "bytes" and weight.shape[1] >= MIN_INPUTS_FOR_8_BITS
        tile = tile if is_enough else tile.with_12_bits
    return (CompiledVocabulary if use == "vocabulary" else CompiledLinear)(weight, bias, tile)


def make_float_linear(tile: Tile) -> MakeLinear:
    """Return a function that makes linear layers in the floating-point format of a tile.

    The function is a `prepacked.MakeLinear`. AMX is used only if it gives the results of vector instructions on this
    machine.
    """
    if tile.amx and not amx_matches_vectors(tile):
        tile = tile._replace(amx=False)

    def make(weight: Tensor, bias: Tensor | None, use: LinearUse = "layer", /) -> nn.Module:
        """Return a linear layer of the tile's format, or a vocabulary projection if `use` is "vocabulary"."""
        return (CompiledVocabulary if use == "vocabulary" else CompiledLinear)(weight, bias, tile)

    return make


@cache
def amx_matches_vectors(tile: Tile) -> bool:
    """Return whether AMX gives the results of vector instructions on this machine, tested once on a small product.

    Integer results must be equal, floating-point results within a tolerance. If not, AMX is not used.
    """
    numbers = torch.Generator().manual_seed(1)
    weight, x = torch.randn(100, 192, generator=numbers), torch.randn(53, 192, generator=numbers)
    if tile.is_float:  # AMX adds in another order
        actual, expected = (CompiledLinear(weight, None, each)(x) for each in (tile, tile._replace(amx=False)))
        return bool((actual - expected).abs().max() < _SLIGHT * expected.abs().max())
    tiles = [each_tile._replace(rows=1) for each_tile in (tile, tile.with_12_bits)]  # less code to compile
    pairs = ((each_tile, each_tile._replace(amx=False)) for each_tile in tiles)
    return all(torch.equal(*(CompiledLinear(weight, None, one)(x) for one in pair)) for pair in pairs)


@cache
def _linear_kernel(tile: Tile) -> CompiledKernel:
    """Return the compiled kernel `linear`, which applies a linear layer with packed weights to float32 rows.

    The call is `linear(x, N, D, rounded, scales, weights, initial sums, weight scales, bias, P, out)`. The kernel
    computes `out`, float32 (N, P), from x, float32 (N, D). P is the number of outputs, padded to whole blocks. The four
    arrays from `weights` to `bias` are those of `CompiledLinear`. The rows are first converted to the tile's format,
    and the kernel writes them to the scratch space `rounded`. The scales of integer rows are written to the scratch
    space `scales`. A tile of format `floats` multiplies x itself.
    """

    def emit(k: KernelBuilder) -> None:
        emit_gemm(k, tile, "store")
        with kernel(k, "linear", 11) as (numbers, thread, threads):
            x, rows, width, rounded, scales, weights, initial_sums, weight_scales, bias, outputs, out = numbers
            inputs: list[Value] = [k.pointer(each) for each in (rounded, scales)]
            if tile.format == "floats":
                inputs[0] = k.pointer(x)
            else:
                emit_quantization(k, tile)
                k.call(f"round_{tile.format}", k.pointer(x), rows, width, *inputs, thread, threads)
                k.barrier(threads)
            parameters = [k.pointer(each) for each in (weights, initial_sums, weight_scales, bias)]
            sizes = outputs, k.pointer(out), thread, threads
            k.call(f"product_{tile.format}_store", *inputs, rows, width, *parameters, *sizes)

    return compile_kernels("linear", tile, ("linear",), emit)["linear"]


@cache
def _refining_kernel(tile: Tile) -> CompiledKernel:
    """Return the compiled kernel `refine_rows`, which computes the likeliest logits of each row again in float32.

    The call is `refine_rows(x, N, D, weights, file rows, bias, logits, P)`; `logits.emit_refinement` explains the
    arguments.
    """

    def emit(k: KernelBuilder) -> None:
        emit_refinement(k, tile.vectors)
        with kernel(k, "refine_rows", 8) as (numbers, thread, threads):
            x, rows, width, weights, file, bias, logits, stride = numbers
            parameters = [k.pointer(each) for each in (weights, file, bias, logits)]
            k.call("refine", k.pointer(x), rows, width, *parameters, stride, thread, threads)

    return compile_kernels("refining", tile, ("refine_rows",), emit)["refine_rows"]


@cache
def _widening_kernel(tile: Tile) -> CompiledKernel:
    """Return the compiled kernel that converts bfloat16 logits to float32 and computes the likeliest ones again.

    The call is `widen_rows(x, N, D, weights, bias, rounded, V, logits, P)`; `emit_bfloat16_refinement` explains the
    arguments.
    """

    def emit(k: KernelBuilder) -> None:
        emit_bfloat16_refinement(k, tile.vectors)
        with kernel(k, "widen_rows", 9) as (numbers, thread, threads):
            x, rows, width, weights, bias, rounded, outputs, logits, stride = numbers
            parameters = [k.pointer(each) for each in (weights, bias, rounded)]
            k.call("widen", k.pointer(x), rows, width, *parameters, outputs, k.pointer(logits), stride, thread, threads)

    return compile_kernels("widening", tile, ("widen_rows",), emit)["widen_rows"]
