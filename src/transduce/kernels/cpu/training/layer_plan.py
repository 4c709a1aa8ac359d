"""Plan the kernel calls of a whole layer's training, forward and backward, for fixed sizes.

What the backward pass needs is saved in one block of memory, except large norms and activations, which are recomputed.
Shorter-lived arrays share a second block.

Legend: B sentences, T positions of each, S source positions, D model width, N rows (B × T, or B × S of the encoder
output), I inputs and O outputs of a linear layer, H heads, K width of a head's queries, keys and values.
"""

import itertools
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import torch

from transduce.kernel_interfaces import AttentionOptions
from transduce.kernels.cpu.attention import AttentionArguments, attention_scratch_size
from transduce.kernels.cpu.gemm.train_calls import (
    BackwardArguments,
    ForwardArguments,
    gemm_emitter_of,
    gemm_kernels,
    is_nontemporal,
    padded_rows,
)
from transduce.kernels.cpu.jit.compiler import CompiledKernel, float_bits
from transduce.kernels.cpu.jit.memory import MemoryOffset, MemoryPlan, StepList
from transduce.kernels.cpu.jit.tile import Tile
from transduce.kernels.cpu.train_rows import (
    ActivationArguments,
    DropoutArguments,
    NormArguments,
    activation_kernels,
    row_kernels,
)
from transduce.kernels.cpu.training.autograd import (
    RotationArguments,
    attention_kernels,
    attention_shape,
    rotation_kernel,
)

_FLOAT = 4  # bytes
_LARGE = 2 << 20  # norms and activations of at least so many bytes are recomputed in the backward pass


class Base(IntEnum):
    """An enumeration of the base addresses to which the memory offsets in a layer plan are relative.

    A value is the index of an address in `bases`, the argument of `CompiledSteps.run` at each run.
    """

    ZERO = 0
    """The index of address 0, the base of arguments that are plain numbers."""
    X = 1
    """The index of the address of the layer's input, (B, T, D)."""
    MEMORY = 2
    """The index of the address of the encoder output, (B, S, D); the address is 0 in an encoder layer."""
    OUT = 3
    """The index of the address of the layer's output, (B, T, D)."""
    KEPT = 4
    """The index of the address of the memory block that the forward pass fills with what the backward pass needs."""
    TEMPORARY = 5
    """The index of the address of a pass's scratch space, which is not read after the pass."""
    GRAD_OUT = 6
    """The index of the address of the gradient of the layer's output, (B, T, D), which the backward pass reads."""
    GRAD_X = 7
    """The index of the address of the gradient of the layer's input, (B, T, D), which the backward pass writes."""
    GRAD_MEMORY = 8
    """The index of the address of the gradient of the encoder output, (B, S, D), which the backward pass writes."""
    ANGLES = 9
    """The index of the address of the float32 cosines, then sines, of each position, (T, K).

    The address is 0 without rotary positions.
    """
    BIAS = 10
    """The index of the address of the bias of the self-attention's scores, as `padded_bias` returns it.

    The address is 0 if there is no bias.
    """
    GRAD_BIAS = 11
    """The index of the address of the float32 gradient of the self-attention's score bias.

    The backward pass adds to this gradient. The address is 0 if there is no bias.
    """
    SUBLAYERS = 12
    """The index of the first base address of the first sub-layer; each sub-layer has `SublayerBase.COUNT` of them."""


class SublayerBase(IntEnum):
    """An enumeration of the base addresses of one sub-layer.

    After the index of a parameter's address comes the index of the address of the parameter's float32 gradient sum.
    """

    SEED = 0
    """The index of the seed of the dropout of the sub-layer's output; the seed is a number, not an address."""
    INNER_SEED = 1
    """The index of the seed of the dropout of attention weights or activation; the seed is a number, not an address."""
    LENGTHS = 2
    """The index of the address of each sentence's number of keys, for attention, int64 (B,); the address may be 0."""
    NORM = 3
    """The index of the address of the weight of the sub-layer's norm, (D,)."""
    NORM_BIAS = 5
    """The index of the address of the bias of the sub-layer's norm, (D,); the address is 0 for RMSNorm."""
    FIRST = 7
    """The index of the address of the weight of the first linear layer, such as attention's joint projection."""
    FIRST_BIAS = 9
    """The index of the address of the bias of the first linear layer; the address is 0 if there is no bias."""
    LAST = 11
    """The index of the address of the weight of the last linear layer, whose output has the model width D."""
    LAST_BIAS = 13
    """The index of the address of the bias of the last linear layer; the address is 0 if there is no bias."""
    COUNT = 15
    """The number of base addresses that each sub-layer has."""


class SublayerShape(NamedTuple):
    """The sizes and options of a sub-layer (attention or feed-forward network) on which its kernel calls depend."""

    heads: int
    """The number of heads H; 0 for a feed-forward network."""
    inner: int
    """The total width of the query heads, H × K, or the inner width of the feed-forward network."""
    reads_memory: bool
    """True for cross-attention, whose keys and values come from the encoder output."""
    has_lengths: bool
    """True if attention has a number of keys for each sentence; False if it is causal, or a feed-forward network."""
    norm_is_before: bool
    """True for pre-norm, False for post-norm."""
    norm_has_bias: bool
    """True for LayerNorm, False for RMSNorm."""
    epsilon: float
    """The number that the norm adds to the variance or mean square."""
    has_biases: tuple[bool, bool]
    """Two flags: whether the first and whether the last linear layer has a bias."""
    drop_256ths: int
    """The dropout rate of the sub-layer's output in 256ths; 0: no dropout."""
    inner_drop_256ths: int
    """The dropout rate of the attention weights or of the activation, in 256ths; 0: no dropout."""
    attention: AttentionOptions
    """The options of attention (shared heads, scale, dropout); defaults for a feed-forward network."""
    activation: str | None
    """The name of a feed-forward network's activation, such as "relu" or "swiglu"; None for attention."""
    projected: int
    """The number of outputs of the first linear layer: queries, keys and values together, or gates and values."""
    is_biased: bool = False
    """True if a bias, such as that of relative positions, is added to the attention scores."""
    rotary: Literal["halves", "interleaved"] | None = None
    """The pairs of dimensions that rotary positions rotate; None: no rotation.

    "halves": dimensions i and i + K / 2 of a head; "interleaved": dimensions 2i and 2i + 1.
    """

    @property
    def is_relu(self) -> bool:
        """True if the activation is ReLU, which the GEMM kernels apply themselves."""
        return self.activation == "relu"


class LayerShape(NamedTuple):
    """The sizes of a layer and of its batch; layers of equal shape share one plan of kernel calls."""

    batch: int
    """The number of sentences B."""
    length: int
    """The number of positions T of each sentence, padding included."""
    memory_length: int
    """The number of source positions S of each sentence; 0 without an encoder output."""
    width: int
    """The model width D."""
    sublayers: tuple[SublayerShape, ...]
    """The shapes of the layer's sub-layers, in the order in which they run."""
    threads: int
    """The number of threads that run the kernel calls, each with scratch space of its own."""
    tile: Tile
    """The `Tile` (instructions and vector length) for which the GEMM kernels are compiled."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the GEMMs, and of all arrays that are not explicitly float32."""
        return torch.float32 if self.tile.format == "floats" else torch.bfloat16


class _Matrix(NamedTuple):
    """A range of rows of a linear layer's weight, with the same range of the bias, for one GEMM.

    For example, cross-attention multiplies its joint projection in two ranges: that of queries, and that of keys and
    values.
    """

    slot: SublayerBase
    """The index of the weight in `SublayerBase`; the bias has this index plus 2."""
    start: int
    """The first row of the range, an index into the linear layer's weight."""
    stop: int
    """The row after the last row of the range, an index into the linear layer's weight."""
    inputs: int
    """The number of inputs I of the linear layer, which is its weight's number of columns."""

    @property
    def outputs(self) -> int:
        """The number of outputs O that the range of rows computes, which is its number of rows."""
        return self.stop - self.start


class LayerPlan:
    """A plan of one layer's training: the kernel calls of both passes, and the bytes of memory that the calls need.

    The plan holds no addresses, so that all layers and batches of equal shape use it.
    """

    def __init__(self, shape: LayerShape) -> None:
        """Plan the kernel calls of the forward and backward passes of a layer of the given shape."""
        kept, scratch, scratch_back = MemoryPlan(Base.KEPT), MemoryPlan(Base.TEMPORARY), MemoryPlan(Base.TEMPORARY)
        forward, backward = StepList(), StepList()
        sublayers = [_PlannedSublayer(shape, number, kept) for number in range(len(shape.sublayers))]
        x = MemoryOffset(Base.X)
        for sublayer in sublayers:
            block = kept if sublayer.keeps_output else scratch
            out = MemoryOffset(Base.OUT) if sublayer is sublayers[-1] else block.allocate(sublayer.bytes)
            sublayer.emit_forward(_Writer(sublayer, forward, scratch), x, out)
            scratch.free([x])
            x = out
        for sublayer, following in itertools.pairwise(sublayers):
            following.input_of = None if sublayer.keeps_output else sublayer
        gradient = MemoryOffset(Base.GRAD_OUT)
        for sublayer in reversed(sublayers):
            grad_x = MemoryOffset(Base.GRAD_X) if sublayer is sublayers[0] else scratch_back.allocate(sublayer.bytes)
            sublayer.emit_backward(_Writer(sublayer, backward, scratch_back), gradient, grad_x)
            scratch_back.free([gradient])
            gradient = grad_x
        self.threads = shape.threads
        """The number of threads on which the kernel calls run, and for which the scratch space suffices."""
        self.saved_bytes, self.scratch_bytes, self.backward_scratch_bytes = kept.size, scratch.size, scratch_back.size
        self.forward, self.backward = forward.finish(), backward.finish()


def _gradient_sum_of(parameter: MemoryOffset, bytes_each: int) -> MemoryOffset:
    """Return the memory offset of a parameter's float32 gradient sum, at the element that `parameter` points to.

    `bytes_each` is the size of a parameter's element.
    """
    return MemoryOffset(parameter.base + 1, parameter.bytes // bytes_each * _FLOAT)


class _PlannedSublayer:
    """A sub-layer in a layer's plan, with the memory offsets of what the forward pass saves for the backward pass."""

    def __init__(self, layer: LayerShape, number: int, kept: MemoryPlan) -> None:
        self.layer, self.shape, self.kept = layer, layer.sublayers[number], kept
        self.first_base = Base.SUBLAYERS + number * SublayerBase.COUNT
        self.rows, self.memory_rows = layer.batch * layer.length, layer.batch * layer.memory_length
        self.item_bytes = layer.dtype.itemsize  # bytes of an element
        self.bytes = self.rows * layer.width * self.item_bytes
        self.keeps_norm_output = self.bytes < _LARGE
        self.keeps_output = self.shape.norm_is_before or self.bytes < _LARGE
        """False if the sub-layer's output, that of a large post-norm, is recomputed in the backward pass, not saved."""
        self.input_of: _PlannedSublayer | None = None
        """The preceding sub-layer if the backward pass must compute that sub-layer's output again; else None."""
        self.last = _Matrix(SublayerBase.LAST, 0, layer.width, self.shape.inner)
        self.relu_mask: MemoryOffset | None = None
        """The memory offset of a bit array, 1 where a feed-forward network's ReLU was positive; None without ReLU."""
        self.keeps_inner = self.shape.is_relu or self.rows * self.shape.inner * self.item_bytes < _LARGE
        """False if the activation's large output is recomputed in the backward pass instead of being saved."""

    def _first(self, start: int, stop: int) -> _Matrix:
        """Return the `_Matrix` of rows [start, stop) of the weight of the sub-layer's first linear layer."""
        return _Matrix(SublayerBase.FIRST, start, stop, self.layer.width)

    def base_offset(self, base: SublayerBase) -> MemoryOffset:
        """Return the memory offset of the start of one of the sub-layer's arrays, such as the weight of its norm."""
        return MemoryOffset(self.first_base + base)

    def emit_forward(self, w: "_Writer", x: MemoryOffset, out: MemoryOffset) -> None:
        """Append the kernel calls of the forward pass of a sub-layer f to the list of the writer `w`.

        Post-norm computes norm(x + dropout(f(x))), pre-norm x + dropout(f(norm(x))).
        """
        shape = self.shape
        self.x = x
        self.norm_sums = self.kept.allocate(self.rows * 2 * _FLOAT)
        sublayer_input = x
        if shape.norm_is_before:
            sublayer_input = (self.kept if self.keeps_norm_output else w.scratch).allocate(self.bytes)
            w.norm(x, self.norm_sums, sublayer_input)
        self.before = sublayer_input
        (self._attend if shape.heads else self._feed_forward)(w, sublayer_input)
        if shape.norm_is_before:
            w.scratch.free([sublayer_input])
        added = w.scratch.allocate(self.bytes)
        w.gemm(self.inner, self.rows, self.last, added)
        w.scratch.free([self.inner])
        if shape.norm_is_before:
            w.drop(added, x, out)
        else:
            self.sum = self.kept.allocate(self.bytes)
            w.drop(added, x, self.sum)
            w.norm(self.sum, self.norm_sums, out)
        w.scratch.free([added])

    def _attend(self, w: "_Writer", x: MemoryOffset) -> None:
        """Append the kernel calls of the projections of x (queries, keys, values) and of attention.

        The calls write attention's result to the memory at `self.inner`, which is allocated here.
        """
        inner, projected, item_bytes = self.shape.inner, self.shape.projected, self.item_bytes
        if self.shape.reads_memory:
            self.projected = self.kept.allocate(self.rows * inner * item_bytes)
            self.memory = self.kept.allocate(self.memory_rows * (projected - inner) * item_bytes)
            w.gemm(x, self.rows, self._first(0, inner), self.projected)
            w.gemm(MemoryOffset(Base.MEMORY), self.memory_rows, self._first(inner, projected), self.memory)
        else:
            self.projected = self.memory = self.kept.allocate(self.rows * projected * item_bytes)
            w.gemm(x, self.rows, self._first(0, projected), self.projected)
            if self.shape.rotary is not None:
                w.rotate(self.projected, direction=1.0)
        self.inner = self.kept.allocate(self.rows * inner * item_bytes)
        self.attention_sums = self.kept.allocate(self.rows * self.shape.heads * 2 * _FLOAT)
        w.attend(self.inner)

    def _feed_forward(self, w: "_Writer", x: MemoryOffset) -> None:
        """Append the kernel calls of a feed-forward network up to its activation and dropout.

        The calls write their result to the memory at `self.inner`, which is allocated here.
        """
        shape, inner_bytes = self.shape, self.rows * self.shape.inner * self.item_bytes
        if shape.is_relu:
            self.inner = self.kept.allocate(inner_bytes)
            self.relu_mask = self.kept.allocate(self.rows * shape.inner // 8)
            w.gemm(x, self.rows, self._first(0, shape.inner), self.inner, relu_mask=self.relu_mask)
            if shape.inner_drop_256ths:
                w.drop_inner(self.inner)
        else:
            self.projected = self.kept.allocate(self.rows * shape.projected * self.item_bytes)
            w.gemm(x, self.rows, self._first(0, shape.projected), self.projected)
            self.inner = (self.kept if self.keeps_inner else w.scratch).allocate(inner_bytes)
            self._activate(w, self.inner)

    def _activate(self, w: "_Writer", out: MemoryOffset) -> None:
        """Append the kernel calls of an activation other than ReLU, and of the dropout after it, if any.

        The calls read `self.projected`, and write their result to the memory at `out`.
        """
        w.activate(self.projected, out)
        if self.shape.inner_drop_256ths:
            w.drop_inner(out)

    def emit_backward(self, w: "_Writer", grad_out: MemoryOffset, grad_x: MemoryOffset) -> None:
        """Append the kernel calls of a sub-layer's backward pass: gradients of x, of parameters and of encoder output.

        `grad_out` holds the gradient of the sub-layer's output, and `grad_x` receives that of x.
        """
        shape, scratch = self.shape, w.scratch
        grad_sum = grad_out
        if not shape.norm_is_before:
            grad_sum = scratch.allocate(self.bytes)
            w.norm_backward(self.sum, self.norm_sums, grad_out, None, grad_sum)
        grad_added = grad_sum
        if shape.drop_256ths:
            grad_added = scratch.allocate(self.bytes)
            w.drop(grad_sum, None, grad_added)
        grad_inner = scratch.allocate(self.rows * shape.inner * self.item_bytes)
        inner = self.inner
        if not shape.heads and not self.keeps_inner:
            inner = scratch.allocate(self.rows * shape.inner * self.item_bytes)
            self._activate(w, inner)
        w.gemm_backward(inner, self.rows, self.last, grad_added, grad_inner, relu_mask=self.relu_mask)
        scratch.free([inner])
        if grad_added != grad_sum:
            scratch.free([grad_added])
        grad_before = scratch.allocate(self.bytes)
        sublayer_input = self.before
        if shape.norm_is_before and not self.keeps_norm_output:
            sublayer_input = scratch.allocate(self.bytes)
            w.norm(self.x, self.norm_sums, sublayer_input)
        if self.input_of is not None:
            sublayer_input, before = scratch.allocate(self.bytes), self.input_of
            _Writer(before, w.steps, scratch).norm(before.sum, before.norm_sums, sublayer_input)
        emit_inner = self._attend_backward if shape.heads else self._feed_forward_backward
        emit_inner(w, sublayer_input, grad_inner, grad_before)
        scratch.free([sublayer_input])
        if shape.norm_is_before:
            w.norm_backward(self.x, self.norm_sums, grad_before, grad_sum, grad_x)
        else:
            w.add(grad_before, grad_sum, grad_x)
            scratch.free([grad_sum])
        scratch.free([grad_before])

    def _attend_backward(self, w: "_Writer", x: MemoryOffset, grad_inner: MemoryOffset, grad_x: MemoryOffset) -> None:
        """Append the kernel calls of the backward pass of attention and of its projections.

        `grad_inner` holds the gradient of attention's output, and `grad_x` receives that of x.
        """
        inner, projected, reads_memory = self.shape.inner, self.shape.projected, self.shape.reads_memory
        query_rows = self._first(0, inner if reads_memory else projected)
        grad_projected = grad_memory = w.scratch.allocate(self.rows * query_rows.stop * self.item_bytes)
        if reads_memory:
            grad_memory = w.scratch.allocate(self.memory_rows * (projected - inner) * self.item_bytes)
        w.attend(grad_inner, (grad_projected, grad_memory))
        w.scratch.free([grad_inner])
        if reads_memory:
            memory_rows = self._first(inner, projected)
            w.gemm_backward(
                MemoryOffset(Base.MEMORY), self.memory_rows, memory_rows, grad_memory, MemoryOffset(Base.GRAD_MEMORY)
            )
            w.scratch.free([grad_memory])
        if self.shape.rotary is not None:
            w.rotate(grad_projected, direction=-1.0)
        w.gemm_backward(x, self.rows, query_rows, grad_projected, grad_x)
        w.scratch.free([grad_projected])

    def _feed_forward_backward(
        self, w: "_Writer", x: MemoryOffset, grad_inner: MemoryOffset, grad_x: MemoryOffset
    ) -> None:
        """Append the kernel calls of the backward pass of a feed-forward network's dropout, activation and first layer.

        `grad_inner` holds the gradient of the last linear layer's input, and `grad_x` receives that of x.
        """
        shape, grad_projected = self.shape, grad_inner
        if shape.inner_drop_256ths:
            w.drop_inner(grad_inner)
        if not shape.is_relu:
            if shape.projected > shape.inner:
                grad_projected = w.scratch.allocate(self.rows * shape.projected * self.item_bytes)
            w.activate(self.projected, grad_projected, grad_inner)
            if grad_projected != grad_inner:
                w.scratch.free([grad_inner])
        w.gemm_backward(x, self.rows, self._first(0, shape.projected), grad_projected, grad_x)
        w.scratch.free([grad_projected])


class _Writer:
    """A writer that appends the kernel calls of one sub-layer to a list, to be run later.

    The writer also allocates scratch memory for each call from a memory plan.
    """

    def __init__(self, sublayer: _PlannedSublayer, steps: StepList, scratch: MemoryPlan) -> None:
        self.sublayer, self.steps, self.scratch = sublayer, steps, scratch
        self._rows = row_kernels(sublayer.layer.dtype)
        self._products = gemm_kernels(sublayer.layer.tile)
        self._multiplier = gemm_emitter_of(sublayer.layer.tile)
        self._thread_bytes = sublayer.layer.threads * self._multiplier.thread_bytes

    def norm(self, x: MemoryOffset, sums: MemoryOffset, out: MemoryOffset) -> None:
        """Append a call of the kernel that writes the norm of x to `out` and each row's statistics to `sums`."""
        self.steps.add(self._norm_kernel(""), self._norm_arguments(x, sums, out))

    def norm_backward(
        self, x: MemoryOffset, sums: MemoryOffset, gradient: MemoryOffset, kept: MemoryOffset | None, out: MemoryOffset
    ) -> None:
        """Append a call of the norm's backward kernel, which writes the gradient of x to `out`.

        The kernel adds `kept`, the gradient of x through the residual connection, to the gradient that it computes;
        None: nothing is added. The parameter gradients are added to their sums.
        """
        sublayer = self.sublayer
        shares = self.scratch.allocate(sublayer.layer.threads * 2 * sublayer.layer.width * _FLOAT)
        arguments = self._norm_arguments(x, sums, out)._replace(
            gradient=gradient,
            kept=kept or 0,
            thread_gradients=shares,
            weight_sum=_gradient_sum_of(sublayer.base_offset(SublayerBase.NORM), sublayer.item_bytes),
            bias_sum=_gradient_sum_of(sublayer.base_offset(SublayerBase.NORM_BIAS), sublayer.item_bytes),
        )
        self.steps.add(self._norm_kernel("_backward"), arguments)
        self.scratch.free([shares])

    def _norm_kernel(self, which: str) -> CompiledKernel:
        """Return the kernel of the sub-layer's norm, LayerNorm or RMSNorm.

        `which` is "" for the forward kernel, or "_backward".
        """
        return self._rows[("norm" if self.sublayer.shape.norm_has_bias else "rms") + which]

    def _norm_arguments(self, x: MemoryOffset, sums: MemoryOffset, out: MemoryOffset) -> NormArguments:
        """Return the `NormArguments` for the sub-layer's norm of x in the forward pass."""
        sublayer = self.sublayer
        vectors = sublayer.base_offset(SublayerBase.NORM), sublayer.base_offset(SublayerBase.NORM_BIAS)
        epsilon = float_bits(sublayer.shape.epsilon)
        return NormArguments(x, *vectors, sublayer.rows, sublayer.layer.width, epsilon, sums, out, 0, 0, 0, 0, 0)

    def drop(self, x: MemoryOffset, residual: MemoryOffset | None, out: MemoryOffset) -> None:
        """Append a call of the dropout kernel that computes out = residual + dropout(x); None counts as residual 0."""
        seed, drop_256ths = self.sublayer.base_offset(SublayerBase.SEED), self.sublayer.shape.drop_256ths
        arguments = DropoutArguments(x, residual or 0, out, self._count, seed, drop_256ths)
        self.steps.add(self._rows["drop"], arguments)

    def drop_inner(self, x: MemoryOffset) -> None:
        """Append a call of the dropout kernel for a feed-forward activation, or for its gradient, in place."""
        shape, count = self.sublayer.shape, self.sublayer.rows * self.sublayer.shape.inner
        seed = self.sublayer.base_offset(SublayerBase.INNER_SEED)
        self.steps.add(self._rows["drop"], DropoutArguments(x, 0, x, count, seed, shape.inner_drop_256ths))

    def activate(self, projected: MemoryOffset, out: MemoryOffset, gradient: MemoryOffset | None = None) -> None:
        """Append a call of the activation kernel, or of its backward kernel if the output's gradient is not None.

        The backward kernel writes the gradient of `projected` to `out`.
        """
        sublayer = self.sublayer
        assert sublayer.shape.activation is not None
        kernels = activation_kernels(sublayer.shape.activation, sublayer.layer.dtype)
        arguments = ActivationArguments(projected, out, sublayer.rows, sublayer.shape.inner, gradient or 0)
        self.steps.add(kernels["activate" if gradient is None else "activate_backward"], arguments)

    def add(self, x: MemoryOffset, other: MemoryOffset, out: MemoryOffset) -> None:
        """Append a call of the kernel that computes out = other + x, for arrays of the size of the layer's output."""
        self.steps.add(self._rows["drop"], DropoutArguments(x, other, out, self._count, 0, 0))

    @property
    def _count(self) -> int:
        """The number of elements of the sub-layer's output, N × D."""
        return self.sublayer.rows * self.sublayer.layer.width

    def gemm(
        self, x: MemoryOffset, rows: int, matrix: _Matrix, out: MemoryOffset, *, relu_mask: MemoryOffset | None = None
    ) -> None:
        """Append a call of a linear layer's forward kernel, out = x · Wᵀ + b, for `rows` rows of x.

        If `relu_mask` is passed, the kernel also applies ReLU, and sets the bits of the mask where results are
        positive.
        """
        inputs, outputs = matrix.inputs, matrix.outputs
        weight, bias = self._parameters(matrix)
        packed = self.scratch.allocate(outputs * inputs * self.sublayer.item_bytes)
        streams = is_nontemporal(rows * outputs * self.sublayer.item_bytes)
        lower_bound = float_bits(0.0 if relu_mask else float("-inf"))
        thread_scratch = self.scratch.allocate(self._thread_bytes)
        sizes = rows, inputs, outputs
        arguments = ForwardArguments(
            x, weight, bias or 0, out, *sizes, lower_bound, packed, int(streams), thread_scratch, relu_mask or 0
        )
        self.steps.add(self._products["forward"], arguments)
        self.scratch.free([packed, thread_scratch])

    def gemm_backward(
        self,
        x: MemoryOffset,
        rows: int,
        matrix: _Matrix,
        gradient: MemoryOffset,
        grad_x: MemoryOffset,
        *,
        relu_mask: MemoryOffset | None = None,
    ) -> None:
        """Append a call of a linear layer's backward kernel.

        `gradient` is the gradient of the layer's output. The kernel writes the gradient of x to `grad_x`, and adds the
        weight and bias gradients to their float32 sums. If `relu_mask` is passed, the gradient of x is zero where bits
        of the mask are 0.
        """
        inputs, outputs = matrix.inputs, matrix.outputs
        filled = padded_rows(rows, self.sublayer.layer.tile)
        weight, bias = self._parameters(matrix)
        item_bytes = self.sublayer.item_bytes
        sizes = outputs * inputs * item_bytes, inputs * filled * item_bytes, self._thread_bytes
        scratch = [self.scratch.allocate(count) for count in sizes]
        arguments = BackwardArguments(
            x=x,
            weight=weight,
            gradient=gradient,
            x_gradient=grad_x,
            relu_mask=relu_mask or 0,
            weight_gradient_sum=_gradient_sum_of(weight, item_bytes),
            bias_gradient_sum=_gradient_sum_of(bias, item_bytes) if bias else 0,
            positions=rows,
            inputs=inputs,
            outputs=outputs,
            packed_weight=scratch[0],
            packed_x=scratch[1],
            thread_scratch=scratch[2],
            is_nontemporal=int(is_nontemporal(rows * inputs * item_bytes)),
        )
        self.steps.add(self._products["backward"], arguments)
        self.scratch.free(scratch)

    def _parameters(self, matrix: _Matrix) -> tuple[MemoryOffset, MemoryOffset | None]:
        """Return two memory offsets: of the first weight row and of the first bias element of a matrix.

        The second is None if there is no bias.
        """
        sublayer, (slot, start, _, inputs) = self.sublayer, matrix
        has_bias = sublayer.shape.has_biases[slot == SublayerBase.LAST]
        weight, bias = sublayer.base_offset(slot), sublayer.base_offset(SublayerBase(slot + 2))
        first, first_bias = start * inputs * sublayer.item_bytes, start * sublayer.item_bytes
        return weight.advance(first), bias.advance(first_bias) if has_bias else None

    def rotate(self, projected: MemoryOffset, *, direction: float) -> None:
        """Append a call of the rotary embedding kernel, which rotates queries and keys, or their gradients, in place.

        The direction is 1 to rotate by the angles of the positions, -1 by the opposite angles.
        """
        layer, shape = self.sublayer.layer, self.sublayer.shape
        arguments = RotationArguments(
            x=projected,
            out=projected,
            rows=self.sublayer.rows,
            columns=shape.projected,
            heads=shape.heads + shape.heads // shape.attention.shared,
            length=layer.length,
            angles=MemoryOffset(Base.ANGLES),
            direction=float_bits(direction),
        )
        width, interleaved = shape.inner // shape.heads, shape.rotary == "interleaved"
        self.steps.add(rotation_kernel(layer.dtype, width, interleaved=interleaved), arguments)

    def attend(self, context: MemoryOffset, gradients: tuple[MemoryOffset, MemoryOffset] | None = None) -> None:
        """Append a call of the kernel `attend`, or of `attend_backward` if `gradients` is not None.

        `attend` writes attention's output to `context`. `attend_backward` reads the gradient of this output from
        `context`. It writes to the two arrays in `gradients`: the gradient of the projection of x, then that of the
        projection of the memory. In self-attention both are one array.
        """
        sublayer, layer, shape = self.sublayer, self.sublayer.layer, self.sublayer.shape
        keys = layer.memory_length if shape.reads_memory else layer.length
        head_shape = attention_shape(shape.inner // shape.heads, layer.dtype, shape.attention, biased=shape.is_biased)
        scratch_each = attention_scratch_size(head_shape, keys, layer.length)
        scratch = self.scratch.allocate(layer.threads * scratch_each * _FLOAT)
        gradient_arguments: tuple[Any, Any, Any] = self._query_key_value(*gradients) if gradients else (0, 0, 0)
        arguments = AttentionArguments(
            *self._query_key_value(sublayer.projected, sublayer.memory),
            *gradient_arguments,
            query_stride=shape.inner if shape.reads_memory else shape.projected,
            key_stride=shape.projected - shape.inner if shape.reads_memory else shape.projected,
            batch=layer.batch,
            heads=shape.heads,
            num_queries=layer.length,
            num_keys=keys,
            lengths=sublayer.base_offset(SublayerBase.LENGTHS) if shape.has_lengths else 0,
            context=context,
            sums=sublayer.attention_sums,
            scratch=scratch,
            scratch_per_thread=scratch_each,
            seed=sublayer.base_offset(SublayerBase.INNER_SEED),
            drop_256ths=shape.inner_drop_256ths,
            bias=MemoryOffset(Base.BIAS) if shape.is_biased else 0,
            bias_gradient=MemoryOffset(Base.GRAD_BIAS) if shape.is_biased else 0,
        )
        self.steps.add(attention_kernels(head_shape)["attend_backward" if gradients else "attend"], arguments)
        self.scratch.free([scratch])

    def _query_key_value(
        self, projected: MemoryOffset, memory: MemoryOffset
    ) -> tuple[MemoryOffset, MemoryOffset, MemoryOffset]:
        """Return three memory offsets: of queries, keys and values, or of their gradients.

        In self-attention, `memory` equals `projected`, in which keys and values follow the queries. In cross-attention,
        `memory` has only the keys and values.
        """
        size = self.sublayer.shape.inner * self.sublayer.item_bytes
        first = 0 if self.sublayer.shape.reads_memory else size
        return projected, memory.advance(first), memory.advance(first + size // self.sublayer.shape.attention.shared)
