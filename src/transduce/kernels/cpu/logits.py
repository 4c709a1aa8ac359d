"""Provide kernels over a vocabulary: top-k, log-sum-exp, and the selection of a beam's next hypotheses.

Legend: B sentences, W hypotheses of each, N hypotheses (B × W), V vocabulary size, k top tokens per row, n candidates.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from transduce.kernels.cpu.decode_rows import exponential
from transduce.kernels.cpu.jit.compiler import CompiledKernel, compile_kernels, find_integer_tile, kernel, new_builder
from transduce.kernels.cpu.jit.ir_builder import F32, I16, I32, I64, POINTER, Fields, KernelBuilder, Value
from transduce.kernels.cpu.jit.threads import useful_threads

# --- one row of logits ---
# Block-wise top-k, log-sum-exp, and recomputation of the greatest logits. Legend: V vocabulary size.


_VECTORS = 4  # per block
_MINUS_INFINITY = float("-inf")
_LIKELY = 2.0  # logits so close to the greatest are recomputed; rounding changes a logit by at most a tenth of that


class LogitsRow:
    """One row of logits during a top-k search, divided into blocks whose maxima are kept, and a remainder."""

    def __init__(self, k: KernelBuilder, place: Value, width: Value, maxima: Value) -> None:
        """Describe a row of `width` logits.

        `maxima` points to scratch space for one float32 per block and for two vectors.
        """
        self.k = k
        self.place = place
        self.width = width
        self.maxima = maxima
        self.block = block_size(k)
        self.blocks = k.build.sdiv(width, k.int64(self.block))

    def find_maxima(self) -> None:
        """Emit the computation of all blocks' maxima; the remainder counts as one more block."""
        k = self.k
        with k.loop(0, self.blocks) as number:
            k.store(self._block_maximum(number), k.element_pointer(self.maxima, number))
        k.store(self._rest_maximum(), k.element_pointer(self.maxima, self.blocks))
        k.store(
            k.splat(_MINUS_INFINITY), k.element_pointer(self.maxima, k.add(self.blocks, 1))
        )  # pads to whole vectors

    def _block_maximum(self, number: Value) -> Value:
        """Emit the maximum of one block of the row of logits."""
        k, start = self.k, self.k.mul(number, self.block)
        return k.reduce_max(_greatest_of_vectors(k, self.place, start, _VECTORS))

    def _rest_maximum(self) -> Value:
        """Emit the maximum of the logits behind the last whole block of the row."""
        k, greatest = self.k, self.k.variable(self.k.float32(_MINUS_INFINITY))
        with k.loop(k.mul(self.blocks, self.block), self.width) as index:
            value, best = k.load(k.element_pointer(self.place, index)), k.load_variable(greatest, k.float32(0.0))
            k.store(k.maximum(value, best), greatest)
        return k.load_variable(greatest, k.float32(0.0))

    def greatest(self) -> tuple[Value, Value]:
        """Return the greatest logit and the first block that contains it."""
        return emit_argmax(self.k, self.maxima, self.k.add(self.blocks, 1))

    def store_top_k(self, count: Value, values: Value, places: Value) -> None:
        """Emit the storing of the `count` greatest logits and of their indices (int64), best first.

        The row is unchanged afterwards.
        """
        k = self.k
        with k.loop(0, count) as number:
            value, index = self.take_greatest()
            k.store(value, k.element_pointer(values, number))
            k.store(index, k.element_pointer(places, number, I64))
        with k.loop(0, count) as number:
            # In reverse order: if only -inf was left, an index may occur twice.
            last = k.build.sub(k.add(count, -1), number)
            index = k.load(k.element_pointer(places, last, I64), I64)
            k.store(k.load(k.element_pointer(values, last)), k.element_pointer(self.place, index))

    def replace(self, index: Value, value: Value) -> None:
        """Replace one logit, and update the maximum of its block."""
        k = self.k
        k.store(value, k.element_pointer(self.place, index))
        self._renew_maximum(k.minimum(k.build.sdiv(index, k.int64(self.block)), self.blocks))

    def take_greatest(self) -> tuple[Value, Value]:
        """Return the greatest logit and its index, and replace it in the row by -inf."""
        k = self.k
        value, number = self.greatest()
        index = self._find_in_row(value, k.mul(number, self.block))
        k.store(k.float32(_MINUS_INFINITY), k.element_pointer(self.place, index))
        self._renew_maximum(number)
        return value, index

    def _renew_maximum(self, number: Value) -> None:
        """Compute the maximum of a block again, whose logits changed; the remainder is the last block."""
        k = self.k
        inside = k.build.icmp_signed("<", number, self.blocks)
        new_maximum = k.variable(k.float32(0.0))
        with k.build.if_else(inside) as (then, otherwise):
            with then:
                k.store(self._block_maximum(number), new_maximum)
            with otherwise:
                k.store(self._rest_maximum(), new_maximum)
        k.store(k.load_variable(new_maximum, k.float32(0.0)), k.element_pointer(self.maxima, number))

    def _find_in_row(self, value: Value, start: Value) -> Value:
        """Return the index of the first element from `start` on that equals a value; the last index if none does (NaN).

        It compares single elements, so nothing behind the last row is read.
        """
        k, last = self.k, self.k.add(self.width, -1)
        start = k.build.select(k.build.icmp_signed("<", start, last), start, last)
        index = k.variable(start)
        with k.do_while() as done:
            current = k.load_variable(index, start)
            k.store(k.add(current, 1), index)
            equal = k.build.fcmp_ordered("==", k.load(k.element_pointer(self.place, current)), value)
            done(k.build.or_(equal, k.build.icmp_signed(">=", k.add(current, 1), self.width)))
        return k.add(k.load_variable(index, start), -1)

    def log_sum_exp(self) -> Value:
        """Return the log-sum-exp of the row of logits."""
        greatest = self.greatest()[0]
        total = self.k.intrinsic("llvm.log.f32", F32, self.sum_of_exponentials(greatest))
        return self.k.build.fadd(greatest, total)

    def sum_of_exponentials(self, greatest: Value, factor: Value | None = None) -> Value:
        """Return the sum of exp(logit - greatest logit) over the row; the differences are multiplied by a factor."""
        k, greatest_vector = self.k, self.k.splat(greatest)
        factors = None if factor is None else k.splat(factor)

        def exponent(logits: Value) -> Value:
            difference = k.build.fsub(logits, greatest_vector)
            return difference if factors is None else k.build.fmul(difference, factors)

        total = k.variable(k.splat(0.0))
        blocked_end = k.mul(self.blocks, self.block)
        with k.loop(0, blocked_end, self.block) as start:
            for vector in range(_VECTORS):
                logits = k.load_floats(self.place, k.add(start, vector * k.lanes))
                term = exponential(k, exponent(logits))
                k.store(k.build.fadd(k.load_variable(total, term), term), total)
        rest = k.variable(k.reduce_sum(k.load_variable(total, k.splat(0.0))))
        with k.loop(blocked_end, self.width) as index:
            logits = k.splat(k.load(k.element_pointer(self.place, index)))
            term = k.build.extract_element(exponential(k, exponent(logits)), ir.Constant(ir.IntType(32), 0))
            k.store(k.build.fadd(k.load_variable(rest, term), term), rest)
        return k.load_variable(rest, k.float32(0.0))


def block_size(k: KernelBuilder) -> int:
    """Return the number of logits in a block whose maximum the top-k search keeps."""
    return k.lanes * _VECTORS


def emit_argmax(k: KernelBuilder, array: Value, count: Value) -> tuple[Value, Value]:
    """Return the maximum of a float32 array and its first index.

    One vector behind the array is read too; its elements must be lower.
    """
    greatest = k.variable(k.splat(_MINUS_INFINITY))
    with k.loop(0, count, k.lanes) as number:
        value, best = k.load_floats(array, number), k.load_variable(greatest, k.splat(0.0))
        k.store(k.maximum(value, best), greatest)
    value = k.reduce_max(k.load_variable(greatest, k.splat(0.0)))
    return value, _find(k, array, value, count)


def _find(k: KernelBuilder, array: Value, value: Value, end: Value) -> Value:
    """Return the index of the first of `end` elements that equals a value; the last index if none does (NaN)."""
    bits_kind = ir.IntType(k.lanes)
    bits_variable, index = k.variable(ir.Constant(bits_kind, 0)), k.variable(k.int64(0))
    with k.do_while() as done:
        current = k.load_variable(index, end)
        equal = k.build.fcmp_ordered("==", k.load_floats(array, current), k.splat(value))
        bits = k.build.bitcast(equal, bits_kind)
        k.store(bits, bits_variable)
        k.store(k.add(current, k.lanes), index)
        at_end = k.build.icmp_signed(">=", k.add(current, k.lanes), end)
        done(k.build.or_(k.build.icmp_unsigned("!=", bits, ir.Constant(bits_kind, 0)), at_end))
    offset = k.lowest_bit(k.load_variable(bits_variable, ir.Constant(bits_kind, 0)))
    index_found = k.add(k.load_variable(index, end), -k.lanes, offset)
    last = k.add(end, -1)
    return k.build.select(k.build.icmp_signed("<", index_found, last), index_found, last)


def emit_refinement(k: KernelBuilder, vectors: int) -> None:
    """Emit `refine(x, N, D, weights, bias, logits, P, thread, threads)`: recompute the likeliest logits in float32.

    In each row of logits (N, P), those that are less than `_LIKELY` below the greatest become x (N, D) · weightsᵀ (O,
    D) + bias (O,). P is a multiple of `vectors` vectors.
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, POINTER, I64, I64, I64)
    with k.function("refine", *kinds) as (x, rows, width, weights, bias, logits, stride, *share):
        output = _Output(F32, vectors, width, weights, bias, stride)
        first, last = k.thread_range(rows, *share)
        with k.loop(first, last) as row:
            _refine_line(
                k, output, k.element_pointer(x, k.mul(row, width)), k.element_pointer(logits, k.mul(row, stride))
            )


def emit_bfloat16_refinement(k: KernelBuilder, vectors: int) -> None:
    """Emit `widen(x, N, D, weights, bias, rounded, V, logits, P, thread, threads)`, which refines bfloat16 logits.

    It converts rounded (N, V) in bfloat16 to float32 logits (N, P), and pads the rows with -inf. Then it recomputes the
    likeliest logits from x and weights in bfloat16 and a float32 bias.
    """
    kinds = (POINTER, I64, I64, POINTER, POINTER, POINTER, I64, POINTER, I64, I64, I64)
    with k.function("widen", *kinds) as (x, rows, width, weights, bias, rounded, outputs, logits, stride, *share):
        output = _Output(I16, vectors, width, weights, bias, stride)
        first, last = k.thread_range(rows, *share)
        with k.loop(first, last) as row:
            line = k.element_pointer(logits, k.mul(row, stride))
            _widen_line(k, k.element_pointer(rounded, k.mul(row, outputs), I16), outputs, line, stride)
            _refine_line(k, output, k.element_pointer(x, k.mul(row, width), I16), line)


def _widen_line(k: KernelBuilder, rounded: Value, outputs: Value, line: Value, stride: Value) -> None:
    """Convert a row of bfloat16 logits to float32, padded with -inf."""
    vector_end = k.mul(k.build.sdiv(outputs, k.int64(k.lanes)), k.lanes)
    with k.loop(0, vector_end, k.lanes) as column:
        k.store(k.load_as_float32(rounded, column, I16), k.element_pointer(line, column))
    with k.loop(vector_end, outputs) as column:
        bits = k.build.shl(
            k.build.zext(k.load(k.element_pointer(rounded, column, I16), I16), I32), ir.Constant(I32, 16)
        )
        k.store(k.build.bitcast(bits, F32), k.element_pointer(line, column))
    with k.loop(outputs, stride) as column:
        k.store(k.float32(_MINUS_INFINITY), k.element_pointer(line, column))


class _Output(NamedTuple):
    """The sizes of a vocabulary projection, and pointers to its weights, bias, inputs and logits."""

    kind: Any
    """The element type of weights and states."""
    vectors: int
    """Vectors per block of logits."""
    width: Value
    weights: Value
    bias: Value
    stride: Value


def _refine_line(k: KernelBuilder, output: _Output, x: Value, line: Value) -> None:
    """Emit the recomputation of the likeliest logits of one row from its state x."""
    block = output.vectors * k.lanes
    greatest = k.variable(k.splat(_MINUS_INFINITY))
    with k.loop(0, output.stride, block) as column:
        best = k.load_variable(greatest, k.splat(0.0))
        k.store(k.maximum(_greatest_of_vectors(k, line, column, output.vectors), best), greatest)
    bound = k.splat(k.build.fsub(k.reduce_max(k.load_variable(greatest, k.splat(0.0))), k.float32(_LIKELY)))
    with k.loop(0, output.stride, block) as column:
        is_likely_block = k.build.fcmp_ordered(">", _greatest_of_vectors(k, line, column, output.vectors), bound)
        with k.when_any(is_likely_block), k.loop(column, k.add(column, block), k.lanes) as start:
            likely = k.build.fcmp_ordered(">", k.load_floats(line, start), bound)
            with k.each_true_lane(likely) as lane:
                number = k.add(start, lane)
                exact = _dot(k, output, x, k.element_pointer(output.weights, k.mul(number, output.width), output.kind))
                k.store(
                    k.build.fadd(exact, k.load(k.element_pointer(output.bias, number))), k.element_pointer(line, number)
                )


def _dot(k: KernelBuilder, output: _Output, first: Value, second: Value) -> Value:
    """Return the dot product of two rows of float32 or bfloat16 elements."""
    total = k.variable(k.splat(0.0))
    with k.loop(0, output.width, k.lanes) as column:
        sum_so_far, kind = k.load_variable(total, k.splat(0.0)), output.kind
        k.store(
            k.madd(k.load_as_float32(first, column, kind), k.load_as_float32(second, column, kind), sum_so_far), total
        )
    return k.reduce_sum(k.load_variable(total, k.splat(0.0)))


def _greatest_of_vectors(k: KernelBuilder, array: Value, start: Value, count: int) -> Value:
    """Return the elementwise maximum of `count` consecutive vectors; count is a power of two."""
    vectors = [k.load_floats(array, k.add(start, number * k.lanes)) for number in range(count)]
    while len(vectors) > 1:
        vectors = [k.maximum(*pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


# --- kernels over a vocabulary ---


_ELEMENT_WORK = 16  # cost of a logit's exponential in multiply-adds
_NEVER = float("-inf")
_Quadruple = tuple[Tensor, Tensor, Tensor, Tensor]


class SelectArguments(NamedTuple):
    """Arguments of the kernel `select`, which selects each beam's best continuations: mostly addresses."""

    logits: Any
    """float32, (N, V)."""
    rows: Any
    """The number of hypotheses N."""
    vocabulary_size: Any
    """The vocabulary size V."""
    stride: Any
    """Elements from one row of logits to the next."""
    beams: Any
    """The number of hypotheses of each sentence W."""
    normalizer: Any
    """The log-sum-exp of each row, float32 (N,); 0: it is computed from the logits."""
    scores: Any
    """The total log-probability of each hypothesis, float32 (N,)."""
    eos_id: Any
    """The id of the end symbol."""
    beam_size: Any
    """The number of continuations to select."""
    live_parents: Any
    """Output: parents of the best continuations that do not end, int64 (B, beam size)."""
    live_tokens: Any
    """Output: their tokens, int64 (B, beam size)."""
    live_scores: Any
    """Output: the log-probabilities of these tokens, float32 (B, beam size)."""
    live_totals: Any
    """Output: total log-probabilities of these continuations, float32 (B, beam size)."""
    ended_parents: Any
    """Output: parents of the 2 × beam size best continuations of any kind, int64 (B, 2 × beam size)."""
    ended_tokens: Any
    """Output: the tokens of all these candidates, int64 (B, 2 × beam size)."""
    ended_scores: Any
    """Output: the log-probabilities of these tokens, float32 (B, 2 × beam size)."""
    ended_totals: Any
    """Output: totals of candidates that end and are among the beam size best, else -inf, float32 (B, 2 × beam size)."""
    scratch: Any
    """Scratch space of `scratch_per_thread` float32 for each thread."""
    scratch_per_thread: Any
    """The number of float32 of scratch space per thread, as `select_scratch_size` returns it."""
    rules: Any
    """`RuleArguments` of the rules that the kernel applies; 0: none."""


class RuleArguments(NamedTuple):
    """Arguments of the rules that `select` applies to logits: addresses, unless stated otherwise."""

    never: Any
    """Token ids that no hypothesis contains and that have no probability, int64."""
    never_count: Any
    """The number of token ids in `never`."""
    forbidden: Any
    """Token ids that no hypothesis contains; their probability counts in the log-sum-exp, unless `renormalizes`."""
    forbidden_count: Any
    """The number of token ids in `forbidden`."""
    renormalizes: Any
    """1: the log-sum-exp is over the tokens that rules permit; 0: over all tokens."""
    more_ends: Any
    """Token ids that end a hypothesis too, int64: the end symbol gets the greatest of their logits and its own."""
    more_ends_count: Any
    """The number of token ids in `more_ends`."""
    sums_ends: Any
    """1: the end symbol gets the sum of the probabilities instead, which suits sampling."""
    min_length: Any
    """The number of tokens before which the end symbol is forbidden."""
    ngram: Any
    """The length of the n-grams that may not occur twice; 0: no restriction."""
    forced: Any
    """The first tokens of each sentence's hypotheses by index in the input batch, int64 (N, F); -1: no token."""
    forced_count: Any
    """The number of forced positions F."""
    certain_count: Any
    """The number of first positions at which a forced token has probability 1 instead of the model's."""
    forced_last: Any
    """The token at the greatest length of a sentence, with probability 1; -1: none."""
    indices: Any
    """Each sentence's index in the input batch, int64 (B,)."""
    longest: Any
    """Each sentence's greatest number of tokens, int64 (B,)."""
    tokens: Any
    """The hypotheses' tokens, int32 (B × W, capacity)."""
    capacity: Any
    """The number of elements between two hypotheses' tokens."""
    length: Any
    """The number of tokens of each hypothesis t."""


class NativeReductions:
    """Reductions over a vocabulary with compiled kernels (implements `selection.Reductions`)."""

    def supports(self, logits: Tensor) -> bool:
        """Return whether the kernels take these logits.

        They take float32 on a CPU, (B, W, V), in contiguous and evenly spaced rows.
        """
        fits = logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.dim() == 3
        return fits and logits.stride(2) == 1 and _row_stride(logits) > 0

    def top_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` greatest logits of each row and their indices, best first: two tensors (B, W, k)."""
        return self._reduce(logits, count, normalize=False)[:2]

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        """Return the log-sum-exp of each row: (B, W, V) to (B, W, 1)."""
        return self._reduce(logits, 0, normalize=True)[2]

    def top_tokens_and_log_sum_exp(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the `count` greatest logits, their indices, both (B, W, k), and the log-sum-exp (B, W, 1)."""
        return self._reduce(logits, count, normalize=True)

    def _reduce(self, logits: Tensor, count: int, *, normalize: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Run the kernel `reduce` (top-k and log-sum-exp); without `normalize` the log-sum-exp is uninitialized."""
        batch, beams, width = logits.shape
        values, indices = logits.new_empty(batch, beams, count), torch.empty(batch, beams, count, dtype=torch.int64)
        normalizer = logits.new_empty(batch, beams, 1)
        programs, block = _kernels()
        scratch = torch.empty(torch.get_num_threads(), width // block + 2 * block)
        programs["reduce"].run(
            *_rows(logits),
            count,
            values.data_ptr(),
            indices.data_ptr(),
            normalizer.data_ptr() if normalize else 0,
            scratch.data_ptr(),
            scratch.shape[1],
            threads=useful_threads(_ELEMENT_WORK * logits.numel()),
        )
        return values, indices, normalizer

    def select(
        self, logits: Tensor, normalizer: Tensor | None, scores: Tensor, *, eos_id: int, beam_size: int
    ) -> tuple[_Quadruple, _Quadruple]:
        """Return the best continuations that do not end, (B, beam_size), and the 2 × beam_size best of all, (B, n).

        Each is a tuple of parents, tokens, the tokens' log-probabilities, and totals. In the second, only candidates
        that end and are among the `beam_size` best have a total; the others' is -inf.

        Args:
            logits: (B, W, V), V at least 2 × beam_size.
            normalizer: the log-sum-exp, (B, W, 1); computed from the logits if None.
            scores: the hypotheses' total log-probabilities, (B, W).
            eos_id: the end symbol.
            beam_size: the number of continuations to select.
        """
        batch, beams, width = logits.shape
        count = 2 * beam_size
        live = _allocate_candidates(logits, batch, beam_size)
        ended = _allocate_candidates(logits, batch, count)
        programs, _ = _kernels()
        scratch = torch.empty(torch.get_num_threads(), select_scratch_size(width, beams, beam_size))
        scores = scores.contiguous()
        normalizer = None if normalizer is None else normalizer.contiguous()
        programs["select"].run(
            *_rows(logits),
            beams,
            0 if normalizer is None else normalizer.data_ptr(),
            scores.data_ptr(),
            eos_id,
            beam_size,
            *(each.data_ptr() for each in (*live, *ended)),
            scratch.data_ptr(),
            scratch.shape[1],
            0,
            threads=useful_threads(_ELEMENT_WORK * logits.numel()),
        )
        return live, ended


def select_scratch_size(width: int, beams: int, beam_size: int) -> int:
    """Return the number of float32 of scratch space that `select` needs per thread, for V tokens and W hypotheses."""
    block = _kernels()[1]
    return width // block + 2 * block + 4 * (beams * 2 * beam_size + block)


def _rows(logits: Tensor) -> tuple[int, int, int, int]:
    """Return the address of the logits, the number of rows N, the vocabulary size V, and the row stride in elements."""
    return logits.data_ptr(), logits.shape[0] * logits.shape[1], logits.shape[2], _row_stride(logits)


def _row_stride(logits: Tensor) -> int:
    """Return the stride of rows in elements; 0 if they are not evenly spaced."""
    batch, beams, _ = logits.shape
    if beams == 1:
        return logits.stride(0)
    return logits.stride(1) if batch == 1 or logits.stride(0) == beams * logits.stride(1) else 0


def _allocate_candidates(logits: Tensor, batch: int, count: int) -> _Quadruple:
    """Allocate parents and tokens (int64), log-probabilities and totals (float32), each (batch, count)."""
    parents, tokens = torch.empty(2, batch, count, dtype=torch.int64).unbind(0)
    token_scores, totals = logits.new_empty(2, batch, count).unbind(0)
    return parents, tokens, token_scores, totals


@cache
def _kernels() -> tuple[dict[str, CompiledKernel], int]:
    """Compile the kernels `reduce` (top-k, log-sum-exp) and `select` (beam selection); also return the block size."""
    tile = find_integer_tile()
    assert tile is not None
    k = new_builder("reductions", tile)
    _write_reduce(k)
    emit_select(k)
    return compile_kernels(k, ("reduce", "select")), block_size(k)


def _write_reduce(k: KernelBuilder) -> None:
    """Emit the kernel `reduce(logits, N, V, stride, k, values, indices, normalizer, scratch, scratch per thread)`.

    If the address of the normalizer is 0, the log-sum-exp is not computed.
    """
    with kernel(k, "reduce", 10) as (numbers, thread, threads):
        logits, rows, width, stride, count, values, indices, normalizer, scratch, scratch_per_thread = numbers
        maxima = k.element_pointer(k.pointer(scratch), k.mul(thread, scratch_per_thread))
        first, last = k.thread_range(rows, thread, threads)
        with k.loop(first, last) as row:
            line = LogitsRow(k, k.element_pointer(k.pointer(logits), k.mul(row, stride)), width, maxima)
            line.find_maxima()
            with k.when(k.build.icmp_signed("!=", normalizer, k.int64(0))):
                k.store(line.log_sum_exp(), k.element_pointer(k.pointer(normalizer), row))
            first_output = k.mul(row, count)
            line.store_top_k(
                count,
                k.element_pointer(k.pointer(values), first_output),
                k.element_pointer(k.pointer(indices), first_output, I64),
            )


def emit_select(k: KernelBuilder) -> None:
    """Emit the kernel `select`, which selects the best continuations of each beam, with `SelectArguments`."""
    with kernel(k, "select", len(SelectArguments._fields)) as (numbers, thread, threads):
        args = SelectArguments(*numbers)
        width, beams, normalizer, beam_size = args.vocabulary_size, args.beams, args.normalizer, args.beam_size
        scratch = k.element_pointer(k.pointer(args.scratch), k.mul(thread, args.scratch_per_thread))
        count = k.mul(beam_size, 2)
        all_candidates = k.mul(beams, count)
        maxima = k.element_pointer(scratch, k.mul(k.add(all_candidates, block_size(k)), 4))
        candidates = _Candidates(k, scratch, all_candidates)
        first, last = k.thread_range(k.build.sdiv(args.rows, beams), thread, threads)
        with k.loop(first, last) as sentence:
            with k.loop(0, beams) as beam:
                row = k.add(k.mul(sentence, beams), beam)
                line = LogitsRow(k, k.element_pointer(k.pointer(args.logits), k.mul(row, args.stride)), width, maxima)
                row_normalizer, start = k.variable(k.float32(0.0)), k.mul(beam, count)
                best = (
                    k.element_pointer(candidates.scores, start),
                    k.element_pointer(candidates.tokens, start, I64),
                )
                with k.build.if_else(k.is_nonzero(args.rules)) as (with_rules, without):
                    with with_rules:
                        rules = Rules(k, args, sentence, row)
                        k.store(rules.store_top_k(line, count, *best), row_normalizer)
                    with without:
                        line.find_maxima()
                        with k.build.if_else(k.is_nonzero(normalizer)) as (is_known, is_open):
                            with is_known:
                                k.store(k.load(k.element_pointer(k.pointer(normalizer), row)), row_normalizer)
                            with is_open:
                                k.store(line.log_sum_exp(), row_normalizer)
                        line.store_top_k(count, *best)
                score = k.load(k.element_pointer(k.pointer(args.scores), row))
                candidates.add_up(start, count, k.load_variable(row_normalizer, score), score)
            candidates.close()
            live, ended = (
                _Selected(k, [k.pointer(each) for each in outputs], k.mul(sentence, capacity))
                for outputs, capacity in (
                    ((args.live_parents, args.live_tokens, args.live_scores, args.live_totals), beam_size),
                    ((args.ended_parents, args.ended_tokens, args.ended_scores, args.ended_totals), count),
                )
            )
            _choose(k, candidates, (count, beam_size, args.eos_id), live, ended)


class RuleResult(NamedTuple):
    """The result of the rules for the next token of a hypothesis."""

    normalizer: Any
    """The log-sum-exp to subtract from a logit."""
    forced: Any
    """The token that must come next, or -1."""
    forced_value: Any
    """The log-probability of the forced token."""


class Rules:
    """The rules that apply to the next token of one hypothesis."""

    def __init__(self, k: KernelBuilder, args: SelectArguments, sentence: Value, row: Value) -> None:
        """Describe the rules for one hypothesis, given its row in the batch and the index of its sentence."""
        self.k = k
        self.fields = Fields(k, k.pointer(args.rules), RuleArguments._fields)
        self.eos_id = args.eos_id
        self.sentence = sentence
        self.row = row

    def apply(self, line: LogitsRow) -> "RuleResult":
        """Emit the rules for a row of logits, whose forbidden ones become -inf, and find its maxima."""
        k, fields = self.k, self.fields
        normalizer = k.variable(k.float32(0.0))
        renormalizes = k.is_nonzero(fields.get("renormalizes"))
        with k.loop(0, fields.get("never_count")) as number:
            id = fields.element("never", number, I64)
            k.store(k.float32(_MINUS_INFINITY), k.element_pointer(line.place, id))
        line.find_maxima()
        forced, is_certain = self._forced_token()
        with k.when(k.build.not_(renormalizes)):
            k.store(line.log_sum_exp(), normalizer)
        is_forced, forced_value = k.build.icmp_signed(">=", forced, k.int64(0)), k.variable(k.float32(0.0))
        with k.build.if_else(is_forced) as (then, otherwise):
            with then, k.when(k.build.not_(k.build.or_(is_certain, renormalizes))):
                logit = k.load(k.element_pointer(line.place, forced))
                k.store(k.build.fsub(logit, k.load_variable(normalizer, logit)), forced_value)
            with otherwise:
                self._forbid(line)
                with k.when(renormalizes):
                    k.store(line.log_sum_exp(), normalizer)
        zero = k.float32(0.0)
        return RuleResult(k.load_variable(normalizer, zero), forced, k.load_variable(forced_value, zero))

    def store_top_k(self, line: LogitsRow, count: Value, values: Value, places: Value) -> Value:
        """Store the `count` greatest permitted logits and their indices; return the log-sum-exp to subtract."""
        k, result = self.k, self.apply(line)
        with k.build.if_else(k.build.icmp_signed(">=", result.forced, k.int64(0))) as (then, otherwise):
            with then:
                with k.loop(0, count) as number:
                    k.store(k.float32(_MINUS_INFINITY), k.element_pointer(values, number))
                    k.store(result.forced, k.element_pointer(places, number, I64))
                k.store(k.build.fadd(result.forced_value, result.normalizer), values)
            with otherwise:
                line.store_top_k(count, values, places)
        return result.normalizer

    def _forced_token(self) -> tuple[Value, Value]:
        """Return the token that must come next, or -1, and whether its probability is 1."""
        k, fields = self.k, self.fields
        position, count = fields.get("length"), fields.get("forced_count")
        token = k.variable(k.int64(-1))
        with k.when(k.build.icmp_signed("<", position, count)):
            index = fields.element("indices", self.sentence, I64)
            k.store(fields.element("forced", k.add(k.mul(index, count), position), I64), token)
        forced_last, first = fields.get("forced_last"), k.load_variable(token, position)
        is_last = k.build.and_(
            k.build.icmp_signed(">=", forced_last, k.int64(0)),
            k.build.icmp_signed("==", k.add(position, 1), fields.element("longest", self.sentence, I64)),
        )
        is_certain = k.build.or_(is_last, k.build.icmp_signed("<", position, fields.get("certain_count")))
        return k.build.select(is_last, forced_last, first), is_certain

    def _forbid(self, line: LogitsRow) -> None:
        """Set the logits of all tokens that may not come next to -inf."""
        k, fields = self.k, self.fields
        with k.loop(0, fields.get("more_ends_count")) as number:
            id = fields.element("more_ends", number, I64)
            other, end = (k.load(k.element_pointer(line.place, each)) for each in (id, self.eos_id))
            line.replace(self.eos_id, self._joined(other, end))
            line.replace(id, k.float32(_MINUS_INFINITY))
        with k.loop(0, fields.get("forbidden_count")) as number:
            line.replace(fields.element("forbidden", number, I64), k.float32(_MINUS_INFINITY))
        with k.when(k.build.icmp_signed("<", fields.get("length"), fields.get("min_length"))):
            line.replace(self.eos_id, k.float32(_MINUS_INFINITY))
        with k.when(k.is_nonzero(fields.get("ngram"))):
            self._forbid_repetitions(line)

    def _joined(self, one: Value, other: Value) -> Value:
        """Return one logit for two end symbols: the greater logit, or the logit of the sum of both probabilities."""
        k, joined = self.k, self.k.variable(self.k.maximum(one, other))
        greater = k.load_variable(joined, one)
        is_possible = k.build.fcmp_ordered(">", greater, k.float32(_MINUS_INFINITY))
        with k.when(k.build.and_(k.is_nonzero(self.fields.get("sums_ends")), is_possible)):
            powers = (exponential(k, k.splat(k.build.fsub(each, greater))) for each in (one, other))
            parts = (k.build.extract_element(power, ir.Constant(I32, 0)) for power in powers)
            k.store(k.build.fadd(greater, k.intrinsic("llvm.log.f32", F32, k.build.fadd(*parts))), joined)
        return k.load_variable(joined, one)

    def _forbid_repetitions(self, line: LogitsRow) -> None:
        """Forbid every token that would complete an n-gram of the hypothesis a second time."""
        k, fields = self.k, self.fields
        before = k.add(fields.get("ngram"), -1)  # tokens of an n-gram before its last one
        length = fields.get("length")
        history = fields.at("tokens", k.mul(self.row, fields.get("capacity")), I32)
        end = k.build.sub(length, before)  # the newest tokens start here
        with k.loop(0, end) as first:
            differences = k.variable(k.int64(0))
            with k.loop(0, before) as number:
                one, other = (
                    k.load(k.element_pointer(history, k.add(start, number), I32), I32) for start in (first, end)
                )
                differs = k.build.zext(k.build.icmp_signed("!=", one, other), I64)
                k.store(k.add(k.load_variable(differences, first), differs), differences)
            with k.when(k.build.icmp_signed("==", k.load_variable(differences, first), k.int64(0))):
                token = k.load(k.element_pointer(history, k.add(first, before), I32), I32)
                line.replace(k.build.zext(token, I64), k.float32(_MINUS_INFINITY))


class _Candidates:
    """The `count` best continuations of each of a sentence's hypotheses, in a thread's scratch space."""

    def __init__(self, k: KernelBuilder, scratch: Value, total_count: Value) -> None:
        self.k = k
        self.whole = total_count
        part = k.add(total_count, block_size(k))
        self.totals = scratch
        self.scores = k.element_pointer(scratch, part)
        self.tokens = k.element_pointer(scratch, k.mul(part, 2))  # int64, hence twice the size

    def add_up(self, start: Value, count: Value, normalizer: Value, score: Value) -> None:
        """Convert the logits of one hypothesis' candidates to log-probabilities, and compute their totals."""
        k = self.k
        with k.loop(0, count) as number:
            index = k.add(start, number)
            score_of_token = k.build.fsub(k.load(k.element_pointer(self.scores, index)), normalizer)
            k.store(score_of_token, k.element_pointer(self.scores, index))
            k.store(k.build.fadd(score, score_of_token), k.element_pointer(self.totals, index))

    def close(self) -> None:
        """Append a vector of -inf to the candidates, so that vector loads may read beyond the last one."""
        self.k.store(self.k.splat(_NEVER), self.k.element_pointer(self.totals, self.whole))


class _Selected:
    """The output arrays of one sentence's selected candidates."""

    def __init__(self, k: KernelBuilder, arrays: list[Value], start: Value) -> None:
        self.k = k
        self.parents, self.tokens = (k.element_pointer(array, start, I64) for array in arrays[:2])
        self.scores, self.totals = (k.element_pointer(array, start) for array in arrays[2:])

    def put(self, number: Value, parent: Value, token: Value, score: Value, total: Value) -> None:
        """Store a selected candidate (a hypothesis with its next token) at an index of the output arrays."""
        k = self.k
        k.store(parent, k.element_pointer(self.parents, number, I64))
        k.store(token, k.element_pointer(self.tokens, number, I64))
        k.store(score, k.element_pointer(self.scores, number))
        k.store(total, k.element_pointer(self.totals, number))


def _choose(
    k: KernelBuilder, candidates: _Candidates, sizes: tuple[Value, ...], live: _Selected, ended: _Selected
) -> None:
    """Emit the selection of a sentence's best candidates, best first; of equal ones the first hypothesis' wins."""
    count, beam_size, end = sizes
    live_counter = k.variable(k.int64(0))  # selected candidates that do not end
    with k.loop(0, count) as number:
        total, index = emit_argmax(k, candidates.totals, candidates.whole)
        k.store(k.float32(_NEVER), k.element_pointer(candidates.totals, index))
        parent = k.build.sdiv(index, count)
        token = k.load(k.element_pointer(candidates.tokens, index, I64), I64)
        score = k.load(k.element_pointer(candidates.scores, index))
        ends = k.build.icmp_signed("==", token, end)
        counts = k.build.and_(ends, k.build.icmp_signed("<", number, beam_size))
        ended.put(number, parent, token, score, k.build.select(counts, total, k.float32(_NEVER)))
        live_count = k.load_variable(live_counter, number)
        fits = k.build.icmp_signed("<", live_count, beam_size)
        with k.when(k.build.and_(k.build.not_(ends), fits)):
            live.put(live_count, parent, token, score, total)
            k.store(k.add(live_count, 1), live_counter)
    # If rules leave too few candidates, the others are hypotheses with a probability of zero.
    nobody, never = k.int64(0), k.float32(_NEVER)
    with k.loop(k.load_variable(live_counter, nobody), beam_size) as number:
        live.put(number, nobody, nobody, never, never)
