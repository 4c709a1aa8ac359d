"""Define GEMM tiles of decoding: the shape of a register block, and the number format that rows are quantized to.

With 8-bit weights, rows are quantized to one of four integer formats:

* `bytes`: 8 bits, for instructions that add four byte products to a 32-bit sum (`vpdpbusd`, and AMX's `tdpbusd`);
* `halves`: 12 bits on the same machines, as two 6-bit halves that are multiplied one after the other as bytes; more
  exact, and half as fast;
* `six_bits`: 6 bits on other machines, where `vpmaddubsw` adds two byte products in 16 bits (8 bits would overflow);
* `words`: 12 bits on other machines, where `vpmaddwd` adds pairs of 16-bit products in 32 bits.

All but `words` are unsigned for their instructions, so a zero point is added to each activation. What it contributes
to a sum depends only on the weights, and each sum starts with the negative of that.

Two formats are floating-point, with weights of the same format and float32 sums that start with the bias:

* `pairs`: bfloat16, of which two neighboring products are added to a sum at once (`vpdpbf16ps`, AMX's `tdpbf16ps`);
* `floats`: float32, unchanged.
"""

from typing import Any, Literal, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.jit.ir_builder import F16, F32, I8, I16, I64, POINTER, KernelBuilder, Value

Format = Literal["bytes", "halves", "six_bits", "words", "pairs", "floats"]

HALF_BITS = 6
"""The number of bits in each half of a 12-bit activation (format `halves`)."""
_MAX_HALF = 65504.0  # the greatest finite float16


class Tile(NamedTuple):
    """The shape and number format of a GEMM register block, the part of the result that a micro-kernel computes."""

    lanes: int
    """The number of 32-bit elements per vector register."""
    vectors: int
    """The number of vector registers that hold one row of the block, so the block has lanes × vectors outputs."""
    rows: int
    """The number of rows of activations that a micro-kernel multiplies at once."""
    format: Format
    """The format of activations in the product: quantized, such as `bytes`, or `pairs` or `floats`."""
    amx: bool = False
    """True if rows are multiplied by AMX.

    Integer formats use it for batches of enough rows, since the sums are equal; `pairs` uses it for all batches.
    """

    @property
    def is_float(self) -> bool:
        """True if activations and weights are floating-point (float32 or bfloat16), not scaled integers."""
        return self.format in ("pairs", "floats")

    @property
    def max_quantized(self) -> int:
        """The greatest magnitude of a quantized activation.

        With 12 bits, this number is small enough that sums of `max_inputs` products fit in 32 bits. Raises KeyError for
        the floating-point formats `pairs` and `floats`.
        """
        return {"bytes": 127, "halves": 2047, "six_bits": 31, "words": 2047}[self.format]

    @property
    def zero_point(self) -> int:
        """The number that makes quantized activations unsigned when added; 0 in the format `words`, which is signed.

        Raises KeyError for the floating-point formats `pairs` and `floats`.
        """
        return {"bytes": 128, "halves": 2048, "six_bits": 32, "words": 0}[self.format]

    @property
    def max_inputs(self) -> int:
        """The greatest number of inputs of a linear layer with which no 32-bit sum can overflow, for any weights."""
        return 8192 if self.format in ("halves", "words") else 65_536

    @property
    def element(self) -> Any:
        """The LLVM type of a stored activation, or of half of one for `halves`."""
        return {"floats": F32, "pairs": I16, "words": I16}.get(self.format, I8)

    @property
    def weight(self) -> Any:
        """The LLVM type of a packed weight: 8-bit integer, or that of activations for floating-point formats."""
        return self.element if self.is_float else I8

    @property
    def weight_bytes(self) -> int:
        """The size of a packed weight in bytes: 1, 2 (bfloat16) or 4 (float32)."""
        return {"floats": 4, "pairs": 2}.get(self.format, 1)

    @property
    def elements_per_activation(self) -> int:
        """The number of elements per activation: 2 for `halves` (all high halves, then all low ones), otherwise 1."""
        return 2 if self.format == "halves" else 1

    @property
    def group(self) -> int:
        """The number of consecutive inputs in a group, which fill 32 bits of a register and are multiplied together."""
        return {"floats": 1, "pairs": 2, "words": 2}.get(self.format, 4)

    @property
    def groups(self) -> int:
        """The number of groups of inputs whose products are added to a 32-bit sum at once.

        For the format `six_bits`, the products of two groups are first added to each other in 16 bits. For all other
        formats the number is 1.
        """
        return 2 if self.format == "six_bits" else 1

    @property
    def columns(self) -> int:
        """The number C of outputs in a block of packed weights, which a micro-kernel computes at once."""
        return self.lanes * self.vectors

    @property
    def with_12_bits(self) -> "Tile":
        """The tile for 12-bit activations on the same processor, with the format `halves` or `words`.

        `halves` replaces `bytes`, and `words` replaces `six_bits`; the block's shape is unchanged.
        """
        return self._replace(format="halves" if self.format == "bytes" else "words")


AVX512_TILE = Tile(lanes=16, vectors=4, rows=6, format="bytes")
"""The register block for AVX-512, of 6 rows × 64 outputs: 24 of the 32 registers of 512 bits hold sums."""
AVX2_TILE = Tile(lanes=8, vectors=2, rows=6, format="bytes")
"""The register block for AVX2, of 6 rows × 16 outputs: 12 of the 16 registers of 256 bits hold sums."""
MAX_LANES = AVX512_TILE.lanes


class MicroKernelArguments(NamedTuple):
    """Arguments (IR values) of a micro-kernel, which multiplies a few rows by one block of C outputs."""

    rounded: Value
    """Pointer to the first row of rounded activations, of D elements, or 2 × D for `halves` (two halves of 6 bits)."""
    scales: Value
    """Pointer to the scale of each row, float32, by which integer sums are multiplied; unused for floats."""
    width: Value
    """The number of inputs D of the linear layer."""
    weights: Value
    """Pointer to the weights of the block's C outputs, (D / group, C, group), where a group fills 32 bits."""
    initial_sums: Value
    """Pointer to 32-bit integers, one for each output of the block, from which the outputs' sums start.

    An initial sum cancels what the activations' zero point contributes.
    """
    weight_scales: Value
    """Pointer to the weight scales, float32, one for each output of the block."""
    bias: Value
    """Pointer to the bias, float32, one number for each output of the block."""
    out: Value
    """Pointer to the first of the block's outputs in the first row of the result."""
    stride: Value
    """The number of elements from one output row to the next."""


MICRO_KERNEL_TYPES: tuple[Any, ...] = (POINTER, POINTER, I64, POINTER, POINTER, POINTER, POINTER, POINTER, I64)
"""The LLVM types of the fields of `MicroKernelArguments`, in their order."""


def output_type(epilogue: str) -> Any:
    """Return the LLVM type of an output element: float16 for the epilogue `half`, else float32."""
    return F16 if epilogue == "half" else F32


def dequantize_and_store(
    k: KernelBuilder, args: MicroKernelArguments, epilogue: str, row: Value | int, sums: dict[int, Value]
) -> None:
    """Emit the GEMM epilogue of one row: dequantize its integer sums, add the bias, and store the outputs.

    `sums` maps the index of each vector of the block to the vector's 32-bit sums. `epilogue` is that of
    `store_outputs`.
    """
    scale = k.splat(k.load(k.element_pointer(args.scales, row)))
    for vector, total in sums.items():
        column = vector * k.lanes
        size = k.build.fmul(scale, k.load_floats(args.weight_scales, column))
        value = k.madd(k.build.sitofp(total, k.floats), size, k.load_floats(args.bias, column))
        store_outputs(k, args, epilogue, row, vector, value)


def store_outputs(
    k: KernelBuilder, args: MicroKernelArguments, epilogue: str, row: Value | int, vector: int, value: Value
) -> None:
    """Emit the store of one vector of a row's outputs, with ReLU, addition or conversion as the epilogue says.

    Args:
        k: the IR builder.
        args: the micro-kernel's arguments.
        epilogue: "store", "relu", "add" (to what `out` holds), or "half" (clamp and convert to float16).
        row: the row within the block.
        vector: the vector's index within the block.
        value: a float32 vector of outputs.
    """
    target = k.element_pointer(args.out, k.add(k.mul(args.stride, row), vector * k.lanes), output_type(epilogue))
    if epilogue == "relu":
        value = k.maximum(value, k.splat(0.0))
    elif epilogue == "add":
        value = k.build.fadd(value, k.load(target, k.floats))
    elif epilogue == "half":
        value = k.maximum(k.splat(-_MAX_HALF), value)
        value = k.build.select(k.build.fcmp_ordered(">", value, k.splat(_MAX_HALF)), k.splat(_MAX_HALF), value)
        value = k.build.fptrunc(value, ir.VectorType(F16, k.lanes))
    k.store(value, target)


def shift_high_half(k: KernelBuilder, high: Value) -> Value:
    """Return a vector of integer sums, shifted left by `HALF_BITS` bits.

    `high` has the sums of products with the high halves of 12-bit activations. Bits that the shift loses do not matter:
    the final sum, to which the low halves' products are added, fits in 32 bits.
    """
    return k.build.shl(high, ir.Constant(k.ints, [HALF_BITS] * k.lanes))
