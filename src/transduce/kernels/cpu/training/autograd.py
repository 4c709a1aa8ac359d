"""Provide compiled training kernels as PyTorch autograd functions: attention, norms, linear layers, embeddings."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transduce.kernel_interfaces import PLAIN_ATTENTION, AttentionOptions
from transduce.kernels.cpu.attention import (
    AMX_KEYS,
    BIAS_KEYS,
    AttentionArguments,
    AttentionEmitter,
    AttentionShape,
    attention_scratch_size,
)
from transduce.kernels.cpu.attention_amx import AmxAttentionEmitter
from transduce.kernels.cpu.decode_rows import emit_rotary_head
from transduce.kernels.cpu.gemm.train_calls import (
    GradientSums,
    bfloat16_tile,
    linear_backward,
    multiply,
    require_gemm_tile,
    supports_gemm,
)
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    address_of,
    compile_kernels,
    find_integer_tile,
    float_bits,
    kernel_of,
    require_integer_tile,
)
from transduce.kernels.cpu.jit.ir_builder import KernelBuilder, outlined
from transduce.kernels.cpu.train_rows import (
    LLVM_TYPES,
    NormArguments,
    ScatterArguments,
    describe,
    emit_scatter,
    row_kernels,
    sum_columns,
    supports_logits,
)
from transduce.kernels.training_executor import (
    LinearKernels,
    LinearNode,
    NormInputs,
    NormKernels,
    NormNode,
    linear_sums,
)
from transduce.model.backend import Rows, add_product
from transduce.model.positions import Rotation

# --- attention ---
# Legend: B sentences, H heads, Q queries, L keys, K width of a head's queries, keys and values.


_MAX_KEYS = 256  # with more, PyTorch's GEMMs over blocks of scores are efficient
_WIDEST = 128  # greatest head width


def supports_attention(x: Tensor, num_keys: int, width: int) -> bool:
    """Return whether compiled attention kernels support a head width and number of keys, and x's dtype and device.

    Supported are CPUs with compiled kernels, float32 or bfloat16, 1 to 256 keys, and a head width of at most 128 that
    fills whole vector registers. The result is False for an empty x.
    """
    tile = find_integer_tile()
    if x.device.type != "cpu" or x.dtype not in LLVM_TYPES or tile is None:
        return False
    return width % tile.lanes == 0 and width <= _WIDEST and 0 < num_keys <= _MAX_KEYS and x.numel() > 0


def attend(
    projected: Tensor,
    memory: Tensor | None,
    lengths: Tensor | None,
    num_heads: int,
    options: AttentionOptions = PLAIN_ATTENTION,
    bias: Tensor | None = None,
) -> Tensor:
    """Return scaled dot-product attention of all heads, (B, Q, H × K), as a differentiable function.

    This function implements `TrainingKernels.attend`. Raises ValueError if shapes or dtypes do not fit together, if
    there is a memory without lengths, or if there is a memory and a bias.
    """
    _check(projected, memory, lengths, num_heads, options.shared)
    if bias is not None and (memory is not None or bias.shape != (num_heads, *[projected.shape[1]] * 2)):
        raise ValueError(f"a bias of {tuple(bias.shape)} for {num_heads} heads and {projected.shape[1]} positions")
    context: Tensor = _Attend.apply(projected, memory, lengths, bias, (num_heads, options))  # type: ignore[no-untyped-call]
    return context


def _check(projected: Tensor, memory: Tensor | None, lengths: Tensor | None, num_heads: int, shared: int) -> None:
    """Raise ValueError unless the tensors passed to `attend` have matching shapes and dtypes.

    A memory without lengths is an error too. The compiled kernels check no bounds themselves. `shared` is the number of
    query heads for each key/value head.
    """
    batch, heads = len(projected), num_heads + (0 if memory is not None else 2 * (num_heads // shared))
    if num_heads % shared or projected.shape[2] % heads:
        raise ValueError(f"{projected.shape[2]} columns for {num_heads} heads, of which {shared} share keys")
    if memory is not None:
        columns = 2 * projected.shape[2] // shared
        fits = len(memory) == batch and memory.shape[2] == columns and memory.dtype == projected.dtype
        if not fits or lengths is None:
            raise ValueError(
                f"a memory of {tuple(memory.shape)} for queries of {tuple(projected.shape)}, or no lengths"
            )
    if lengths is not None and (lengths.dtype != torch.int64 or lengths.shape != (batch,)):
        raise ValueError(f"lengths must be int64 of shape ({batch},), not {lengths.dtype} of {tuple(lengths.shape)}")


class _Attend(torch.autograd.Function):
    """Attention as an autograd function that recomputes the attention weights in the backward pass.

    Besides its inputs, the forward pass saves each query's greatest score and the inverse of its sum of exponentials.
    """

    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        memory: Tensor | None,
        lengths: Tensor | None,
        bias: Tensor | None,
        heads: tuple[int, AttentionOptions],
    ) -> Tensor:
        num_heads, options = heads
        padded = None if bias is None else padded_bias(bias)
        inputs = _Inputs(projected.contiguous(), None if memory is None else memory.contiguous(), lengths, padded)
        batch, num_queries, width = projected.shape
        inner = width if memory is not None else width * options.shared // (options.shared + 2)
        context = projected.new_empty(batch, num_queries, inner)
        sums = torch.empty(batch, num_heads, num_queries, 2, dtype=torch.float32)
        ctx.seed = int(torch.empty((), dtype=torch.int64).random_()) if options.drop_256ths else 0
        ctx.options = options
        _run_attention("attend", inputs, context, sums, (options, ctx.seed))
        ctx.save_for_backward(*inputs, sums)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *saved, sums = ctx.saved_tensors
        inputs = _Inputs(*saved)
        memory = None if inputs.memory is None else torch.empty_like(inputs.memory)
        grad_bias = None if inputs.bias is None else torch.zeros_like(inputs.bias)
        input_gradients = _Inputs(torch.empty_like(inputs.projected), memory, None, grad_bias)
        options_and_seed = (ctx.options, ctx.seed)
        _run_attention("attend_backward", inputs, gradients[0].contiguous(), sums, options_and_seed, input_gradients)
        if grad_bias is not None:
            grad_bias = grad_bias[:, :, : grad_bias.shape[1]].to(inputs.projected.dtype)
        return input_gradients.projected, input_gradients.memory, None, grad_bias, None


def padded_bias(bias: Tensor) -> Tensor:
    """Return an attention bias (H, Q, L) as a float32 copy for attention kernels.

    The last dimension is padded to a multiple of `BIAS_KEYS`.
    """
    return F.pad(bias.float(), (0, -bias.shape[2] % BIAS_KEYS)).contiguous()


class _Inputs(NamedTuple):
    """The input tensors of the attention kernels (projections, key counts, biases), or these tensors' gradients."""

    projected: Tensor
    """Queries, keys and values of all heads, joined along the last dimension; queries alone if there is a `memory`."""
    memory: Tensor | None
    """Projected keys and values of the encoder output, joined along the last dimension; None in self-attention."""
    lengths: Tensor | None = None
    """The number of keys of each sentence, int64 (B,); None: a causal mask."""
    bias: Tensor | None = None
    """Biases added to the scores of all sentences, float32, (heads, Q, Q padded to a multiple of `BIAS_KEYS`)."""

    def starts(self, inner: int, shared: int) -> tuple[int, int, int]:
        """Return three addresses: that of all queries, that of all keys and that of all values.

        Each is the address of the first head in the first row of the first sentence. The other heads follow in the same
        row.

        Args:
            inner: the number of columns of the queries of all heads.
            shared: the number of query heads for each key/value head.
        """
        size = inner * self.projected.element_size()
        start = self.projected.data_ptr()
        keys = start + size if self.memory is None else self.memory.data_ptr()
        return start, keys, keys + size // shared


def _run_attention(
    name: str,
    inputs: _Inputs,
    context: Tensor,
    sums: Tensor,
    options_and_seed: tuple[AttentionOptions, int],
    gradients: _Inputs | None = None,
) -> None:
    """Run the attention kernel `attend` or `attend_backward`.

    `attend` writes `context` and `sums`. `attend_backward` reads them, and writes `gradients`.

    Args:
        name: the kernel, `attend` or `attend_backward`.
        inputs: the projected queries, keys and values, with the mask.
        context: the attention output (B, Q, H × K); for `attend_backward`, its gradient.
        sums: float32 (B, H, Q, 2), each query's greatest score and the inverse of its sum of exponentials.
        options_and_seed: the options of attention, and the seed of its dropout.
        gradients: receives the gradients; None for `attend`.
    """
    options, seed = options_and_seed
    batch, num_heads, num_queries, _ = sums.shape
    inner = context.shape[2]
    key_source = inputs.projected if inputs.memory is None else inputs.memory
    shape = attention_shape(inner // num_heads, key_source.dtype, options, biased=inputs.bias is not None)
    scratch = torch.empty(
        torch.get_num_threads(), attention_scratch_size(shape, key_source.shape[1], num_queries), dtype=torch.float32
    )
    arguments = AttentionArguments(
        *inputs.starts(inner, options.shared),
        *((0, 0, 0) if gradients is None else gradients.starts(inner, options.shared)),
        query_stride=inputs.projected.shape[2],
        key_stride=key_source.shape[2],
        batch=batch,
        heads=num_heads,
        num_queries=num_queries,
        num_keys=key_source.shape[1],
        lengths=address_of(inputs.lengths),
        context=context.data_ptr(),
        sums=sums.data_ptr(),
        scratch=scratch.data_ptr(),
        scratch_per_thread=scratch.shape[1],
        seed=seed,
        drop_256ths=options.drop_256ths,
        bias=address_of(inputs.bias),
        bias_gradient=0 if gradients is None else address_of(gradients.bias),
    )
    attention_kernels(shape)[name].run(*arguments)


def attention_shape(
    width: int, dtype: torch.dtype, options: AttentionOptions, *, biased: bool = False
) -> AttentionShape:
    """Return the `AttentionShape` for which attention kernels are compiled, from a head width, a dtype and options.

    AMX is selected for bfloat16 without dropout, bias or shared key/value heads, if the processor has it and the width
    is a multiple of `AMX_KEYS`.
    """
    lanes, pairs, drops = require_integer_tile().lanes, bfloat16_tile(), options.drop_256ths > 0
    has_pairs = dtype == torch.bfloat16 and width % AMX_KEYS == 0 and pairs is not None and pairs.lanes == lanes
    is_plain = not drops and not biased and options.shared == 1
    by_amx = has_pairs and is_plain and require_gemm_tile(torch.bfloat16).amx
    scale = width**-0.5 if options.scale is None else options.scale
    return AttentionShape(width, LLVM_TYPES[dtype], lanes, scale, options.shared, drops, biased, by_amx)


@cache
def attention_kernels(shape: AttentionShape) -> dict[str, CompiledKernel]:
    """Return a dict with the kernels `attend` and `attend_backward` for an attention shape, compiled on first use."""
    names = ("attend", "attend_backward")
    return compile_kernels("attention", require_integer_tile(), names, lambda k: _emit_attention(k, shape))


@outlined
def _emit_attention(k: KernelBuilder, shape: AttentionShape) -> None:
    """Emit the kernels `attend` and `attend_backward` for an attention shape."""
    (AmxAttentionEmitter if shape.amx else AttentionEmitter)(k, shape).write()


# --- LayerNorm and RMSNorm ---
# Legend: N rows, D model width.


def residual_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return x and the normalized x: by LayerNorm, or by RMSNorm if `bias` is None.

    The returned x is for the residual connection. So the norm's backward kernel receives the gradient of this
    connection, and adds it to the gradient of x. Raises ValueError if the weight or the bias has another width or dtype
    than x.
    """
    for each in (weight, bias):
        if each is not None and (each.shape, each.dtype) != (x.shape[-1:], x.dtype):
            raise ValueError(f"{describe(each)} cannot be the weight or bias of a norm of {describe(x)}")
    return NormNode.apply(x, weight, bias, epsilon, _NORM)  # type: ignore[no-any-return,no-untyped-call]


def _norm(inputs: NormInputs) -> tuple[Tensor, Tensor]:
    """Return the normalized x and two statistics of each row, float32 (N, 2), for `NormKernels.forward`."""
    x = inputs[0]
    out, sums = torch.empty_like(x), torch.empty(x.numel() // x.shape[-1], 2, dtype=torch.float32)
    _run_norm("", inputs, sums, out)
    return out, sums


def _norm_backward(
    inputs: NormInputs, sums: Tensor, gradient: Tensor, kept: Tensor | None, totals: tuple[Tensor, Tensor | None]
) -> Tensor:
    """Return the gradient of x, and add those of weight and bias to `totals`, for `NormKernels.backward`."""
    grad_x = torch.empty_like(inputs[0])
    thread_gradients = torch.empty(torch.get_num_threads(), 2, grad_x.shape[-1], dtype=torch.float32)
    _run_norm("_backward", inputs, sums, grad_x, gradient, kept, thread_gradients, *totals)
    return grad_x


_NORM = NormKernels(_norm, _norm_backward)


def _run_norm(suffix: str, inputs: NormInputs, sums: Tensor, out: Tensor, *tensors: Tensor | None) -> None:
    """Run the compiled kernel of LayerNorm, or RMSNorm without a bias, which writes its result to `out`.

    Args:
        suffix: "" for the forward kernel, or "_backward".
        inputs: x (…, D), the weight, the bias or None, and epsilon.
        sums: float32 (N, 2), two statistics of each row, which the forward kernel writes and the backward kernel reads.
        out: receives the normalized x, or the gradient with respect to x.
        tensors: for a backward kernel, the last five of `NormArguments`, from `gradient` on.
    """
    x, weight, bias, epsilon = inputs
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    arguments = NormArguments(
        x.data_ptr(),
        weight.data_ptr(),
        address_of(bias),
        len(sums),
        x.shape[-1],
        float_bits(epsilon),
        sums.data_ptr(),
        out.data_ptr(),
        *map(address_of, tensors or (None,) * 5),
    )
    row_kernels(x.dtype)[("rms" if bias is None else "norm") + suffix].run(*arguments)


# --- linear layers ---
# The GEMMs are compiled kernels where these are faster (`gemm/train_calls.py`), else PyTorch's. PyTorch alone takes
# separate passes for the bias gradient and the ReLU mask. It also computes the weight gradient in bfloat16 first, and
# adds it up in float32 afterwards.
# Legend: N positions, I inputs and O outputs.


def supports_linear(x: Tensor, weight: Tensor, rows: Rows | None) -> bool:
    """Return whether the training function `linear` supports an input, a weight and a range of the weight's rows.

    x and the weight must be float32 or bfloat16, of one dtype, and on a CPU with compiled kernels. x must not be empty,
    and the weight must be contiguous. The number of inputs and both ends of the range must be multiples of the vector
    length. If `rows` is None, the range is all rows.
    """
    tile = find_integer_tile()
    kinds = x.dtype == weight.dtype and x.dtype in LLVM_TYPES and x.device.type == weight.device.type == "cpu"
    if tile is None or not kinds or not weight.is_contiguous() or x.shape[-1] != weight.shape[1]:
        return False
    start, stop = rows or Rows(0, len(weight))
    return start % tile.lanes == stop % tile.lanes == weight.shape[1] % tile.lanes == 0 and x.numel() > 0


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, *, activation: str | None = None
) -> Tensor:
    """Return activation(x · weightᵀ + bias) for the weight's rows in `rows` (None: all), as a differentiable function.

    `TrainingKernels.linear` gives the shapes. PyTorch's GEMM is used for sizes that the compiled GEMM does not
    support.
    """
    sums = linear_sums(_LINEAR, weight, bias, rows, activation)
    return LinearNode.apply(x.contiguous(), weight, bias, sums)  # type: ignore[no-any-return,no-untyped-call]


def _linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Return activation(x · weightᵀ + bias), for `LinearKernels.forward`."""
    if supports_gemm(x, weight):
        return multiply(x, weight, bias, activation=activation)
    out = F.linear(x, weight, bias)
    return out.relu_() if activation == "relu" else out


def _linear_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, out: Tensor | None, sums: Sequence[Tensor | None], needs_x: bool
) -> Tensor | None:
    """Add the gradients of weight and bias to `sums`, and return the gradient of x; for `LinearKernels.backward`.

    A sum that is None is left out. The result is None unless `needs_x`. `out` is the layer's output if the layer
    applies a ReLU, else None.
    """
    if supports_gemm(x, weight):
        if out is not None:
            gradient = torch.ops.aten.threshold_backward(gradient, out, 0.0)
        return linear_backward(gradient, x, weight, GradientSums(*sums), needs_x=needs_x)
    weight_sum, bias_sum = sums
    if out is not None or bias_sum is not None:
        gradient, columns = sum_columns(gradient, out)
        if bias_sum is not None:
            bias_sum.add_(columns)
    if weight_sum is not None:
        add_product(weight_sum, gradient.t(), x)
    return gradient @ weight if needs_x else None


_LINEAR = LinearKernels(_linear_forward, _linear_backward)


# --- gradients of embeddings ---
# Dense gradients of embeddings took an eighth of the time outside GEMMs, in a model of 6 + 6 layers × 512 with 8,000
# tokens.
# Legend: N positions, D model width, V vocabulary size.


def add_rows_in_place(total: Tensor, ids: Tensor, part: Tensor, factor: float, frozen_row: int | None) -> None:
    """Add factor · part[n] to row ids[n] of `total`, float32, for each n; the row `frozen_row` (padding) is skipped.

    This function implements `TrainingKernels.add_rows_in_place`. Raises ValueError if shapes or dtypes do not
    fit, and IndexError if an id is not a row of `total`.
    """
    ids, part = ids.flatten().contiguous(), part.reshape(-1, part.shape[-1]).contiguous()
    fits = total.dim() == 2 and total.shape[1:] == part.shape[1:] and len(ids) == len(part)
    if not fits or total.dtype != torch.float32 or ids.dtype != torch.int64 or not total.is_contiguous():
        raise ValueError(
            f"rows of {part.dtype} {tuple(part.shape)} cannot be added by {ids.dtype} {tuple(ids.shape)} "
            f"to {total.dtype} {tuple(total.shape)}"
        )
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(total):
        raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} of a matrix of {len(total)}")
    arguments = ScatterArguments(
        total=total.data_ptr(),
        ids=ids.data_ptr(),
        part=part.data_ptr(),
        rows=len(ids),
        width=part.shape[1],
        factor=float_bits(factor),
        frozen=-1 if frozen_row is None else frozen_row,
    )
    _scatter_kernel(part.dtype).run(*arguments)


@cache
def _scatter_kernel(dtype: torch.dtype) -> CompiledKernel:
    """Return the compiled kernel that adds factor · part[n] to row ids[n] of a float32 matrix.

    `dtype` is that of `part`.
    """
    kind = LLVM_TYPES[dtype]
    return compile_kernels("scatter", require_integer_tile(), ("scatter",), lambda k: emit_scatter(k, kind))["scatter"]


# --- rotary embeddings ---
# Legend: B sentences, T positions, C columns of a row, K width of a head.


class RotationArguments(NamedTuple):
    """Arguments of the kernel that applies rotary embeddings to a matrix.

    A row of the matrix has the heads at one position of a sentence.
    """

    x: Any
    """Address of the input, (rows, columns), float32 or bfloat16."""
    out: Any
    """Address of the output, (rows, columns), in the input's dtype; may equal `x`."""
    rows: Any
    """The number of rows: sentences × positions."""
    columns: Any
    """The number of columns of a row: the rotated heads, then columns that are copied unchanged."""
    heads: Any
    """The number of heads at the start of a row to rotate."""
    length: Any
    """The number of positions of each sentence."""
    angles: Any
    """Address of each position's float32 cosines, then sines, (positions, head width)."""
    direction: Any
    """The bits of a float32: 1 to rotate by the angles, -1 (in the backward pass) by the opposite angles."""


def supports_rotary(x: Tensor, width: int) -> bool:
    """Return whether `apply_rotary` supports heads of `width` elements, in x's dtype and memory layout on its device.

    Both halves of a head must fill whole vector registers.
    """
    tile = find_integer_tile()
    return tile is not None and width % (2 * tile.lanes) == 0 and supports_logits(x)


def apply_rotary(projected: Tensor, rotation: Rotation, heads: int) -> Tensor:
    """Return projected heads, of which the first `heads` are rotated by the angles of their positions.

    The other columns are copied. The function is differentiable.

    Args:
        projected: projected heads, (sentences, positions T, columns).
        rotation: the angles of each position, (T, head width / 2).
        heads: the number of heads to rotate.

    Returns:
        A tensor of the shape of `projected`.

    Raises:
        ValueError: the rotation has another T, or `projected` has fewer columns than these heads.
    """
    length, half = rotation.cosine.shape
    if projected.shape[1] != length or projected.shape[2] < 2 * half * heads:
        raise ValueError(f"{heads} heads of {2 * half} at {length} positions are not in {tuple(projected.shape)}")
    out: Tensor = _Rotate.apply(projected, angles_of(rotation), heads, rotation.interleaved)  # type: ignore[no-untyped-call]
    return out


def angles_of(rotation: Rotation) -> Tensor:
    """Return a float32 tensor (T, head width) for the rotary kernel: the cosines, then the sines, of each position."""
    return torch.cat([rotation.cosine, rotation.sine], dim=1).float()


class _Rotate(torch.autograd.Function):
    """Rotary embedding as an autograd function; the backward pass rotates the gradient by the opposite angles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor, heads: int, interleaved: bool) -> Tensor:
        ctx.save_for_backward(angles)
        ctx.heads, ctx.interleaved = heads, interleaved
        return _rotate(x, angles, heads, interleaved=interleaved, direction=1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (angles,), gradient = ctx.saved_tensors, gradients[0].contiguous()
        return _rotate(gradient, angles, ctx.heads, interleaved=ctx.interleaved, direction=-1.0), None, None, None


def _rotate(x: Tensor, angles: Tensor, heads: int, *, interleaved: bool, direction: float) -> Tensor:
    """Run the kernel of rotary embeddings on x, (sentences, T, columns), and return the rotated copy.

    `angles` is float32 (T, head width): each position's cosines, then its sines. The columns after the first `heads`
    heads are copied. `direction` is 1 to rotate by the angles, -1 by the opposite angles.
    """
    out = torch.empty_like(x)
    length, width = angles.shape
    arguments = RotationArguments(
        x=x.data_ptr(),
        out=out.data_ptr(),
        rows=x.numel() // x.shape[-1],
        columns=x.shape[-1],
        heads=heads,
        length=length,
        angles=angles.data_ptr(),
        direction=float_bits(direction),
    )
    rotation_kernel(x.dtype, width, interleaved=interleaved).run(*arguments)
    return out


@cache
def rotation_kernel(dtype: torch.dtype, width: int, *, interleaved: bool) -> CompiledKernel:
    """Return the kernel of rotary embeddings for heads of `width` elements, compiled on first use.

    The kernel copies the columns after the rotated heads, unless it rotates in place. If `interleaved`, it rotates
    pairs of neighboring elements; otherwise the first half of a head is paired with the second half.
    """
    kind = LLVM_TYPES[dtype]

    def emit(k: KernelBuilder) -> None:
        _emit_rotation(k, kind, width, interleaved=interleaved)

    return compile_kernels("rotary", require_integer_tile(), ("rotate",), emit)["rotate"]


@outlined
def _emit_rotation(k: KernelBuilder, kind: Any, width: int, *, interleaved: bool) -> None:
    """Emit the kernel `rotate` of `rotation_kernel` for elements of an LLVM type, F32 or I16."""
    with kernel_of(k, "rotate", RotationArguments) as (args, *share):
        direction = k.splat(k.float_from_bits(args.direction))
        rotated = k.mul(args.heads, width)
        end = k.build.select(k.build.icmp_signed("==", args.x, args.out), rotated, args.columns)
        first, last = k.thread_range(args.rows, *share)
        with k.loop(first, last) as row:
            angles = k.element_pointer(k.pointer(args.angles), k.mul(k.build.srem(row, args.length), width))
            pointers = [
                k.element_pointer(k.pointer(each), k.mul(row, args.columns), kind) for each in (args.x, args.out)
            ]
            with k.loop(0, args.heads) as head:
                column = k.mul(head, width)
                source, target = (k.element_pointer(each, column, kind) for each in pointers)
                emit_rotary_head(
                    k, width, (source, target), angles, interleaved=interleaved, element=kind, direction=direction
                )
            with k.loop(rotated, end, k.lanes) as column:
                k.store_float32_as(k.load_as_float32(pointers[0], column, kind), pointers[1], column, kind)
