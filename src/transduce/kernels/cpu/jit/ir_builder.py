"""Build LLVM intermediate representation (IR) for kernels: loops, vectors, loads and stores.

Python code runs once, while it emits instructions: a Python loop is unrolled, `KernelBuilder.loop` becomes a loop in
the machine code. `KernelBuilder.variable` allocates mutable variables on the stack, which LLVM promotes to registers.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dis import Positions, get_instructions
from functools import lru_cache, wraps
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Concatenate, ParamSpec

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
VOID = ir.VoidType()
UNROLLED_VECTORS = 4
"""The number of a row's vectors that are processed per loop iteration, each with its own accumulator.

Independent accumulators hide the latency of instructions.
"""

Value = Any
"""An LLVM value, such as the result of an instruction (llvmlite has no type annotations)."""


class BFloat(ir.types.Type):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """LLVM's bfloat16 type, which llvmlite lacks."""

    null = "0.0"

    def _to_string(self) -> str:
        """Return the name of LLVM's bfloat16 type in LLVM's IR."""
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(type(self))


@lru_cache(1 << 10, typed=True)
def _constant(kind: Any, value: Any) -> Value:
    """Return a constant of an LLVM type; for a vector type, `value` is a tuple of its elements, or None for zeros.

    Constants are cached, as modules use the same ones many times. The cache holds zeros of either sign as equal, so
    floating-point scalars, whose sign counts, are not made here.
    """
    return ir.Constant(kind, value)


class KernelBuilder:
    """A builder of LLVM IR: it holds one LLVM module, and appends instructions to the function being emitted."""

    def __init__(
        self,
        name: str,
        lanes: int,
        *,
        threaded: bool = False,
        has_bfloat16_rounding: bool = False,
        outline: "Outline | None" = None,
    ) -> None:
        """Create an empty LLVM module.

        Args:
            name: the module's name.
            lanes: 32-bit elements per vector register.
            threaded: whether several threads may run the kernels, so that barriers are emitted.
            has_bfloat16_rounding: whether the processor has an instruction that rounds 16 float32 to bfloat16.
            outline: where functions decorated with `outlined` note their calls instead of emitting code; None: nowhere.
        """
        self.module = ir.Module(name=name)
        self.lanes = lanes
        self.ints = ir.VectorType(I32, lanes)
        self.floats = ir.VectorType(F32, lanes)
        self.threaded = threaded
        self.has_bfloat16_rounding = has_bfloat16_rounding
        self.features: set[str] = set()
        """A set of CPU features, such as "amx-tile", that the compiler must enable for intrinsics called by name."""
        self.build: Any = None
        self.outline = outline

    @contextmanager
    def function(self, name: str, *types: Any, exported: bool = False) -> Iterator[list[Value]]:
        """Emit a void function, whose code is emitted in the body of `with`; yield a list of its arguments.

        `types` are the arguments' LLVM types. An exported function can be looked up from Python; others are internal to
        the module.
        """
        function = ir.Function(self.module, ir.FunctionType(VOID, types), name=name)
        function.linkage = "external" if exported else "internal"
        function.attributes.add("nounwind")
        function.attributes.add("noinline")  # functions are large and have many call sites
        outer, self.build = self.build, ir.IRBuilder(function.append_basic_block())
        yield list(function.args)
        self.build.ret_void()
        self.build = outer

    def has(self, name: str) -> bool:
        """Return whether the LLVM module has a function called `name`, finished or still being emitted."""
        return name in self.module.globals

    def call(self, name: str, *values: Value) -> None:
        """Emit a call of a void function of the same LLVM module, with the arguments `values`.

        The function must have been emitted before. In an outline, a function that was only noted may be called too.
        """
        if self.outline is not None:
            self.intrinsic(name, VOID, *values)
        else:
            self.build.call(self.module.get_global(name), values)

    def call_address(self, address: Value, *values: Value) -> None:
        """Emit a call of the void function at a 64-bit address, with the arguments `values`."""
        kind = ir.FunctionType(VOID, [value.type for value in values])
        self.build.call(self.build.inttoptr(address, kind.as_pointer()), values)

    def intrinsic(self, name: str, result: Any, *values: Value) -> Value:
        """Emit a call of an LLVM intrinsic or an external function, declared on first use; return the call's result.

        `result` is the LLVM type of the result.
        """
        callee = self.module.globals.get(name)
        if callee is None:
            callee = ir.Function(self.module, ir.FunctionType(result, [value.type for value in values]), name=name)
        return self.build.call(callee, values)

    # --- control ---------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: int = 1) -> Iterator[Value]:
        """Emit a loop around the code in the body of `with`; yield the 64-bit counter, from start up to below stop."""
        start, stop = self.int64(start), self.int64(stop)
        entry = self.build.block
        header, body, after = (self.build.append_basic_block() for _ in range(3))
        self.build.branch(header)
        self.build.position_at_end(header)
        number = self.build.phi(I64)
        number.add_incoming(start, entry)
        self.build.cbranch(self.build.icmp_signed("<", number, stop), body, after)
        self.build.position_at_end(body)
        yield number
        number.add_incoming(self.build.add(number, self.int64(step)), self.build.block)
        self.build.branch(header)
        self.build.position_at_end(after)

    @contextmanager
    def thread_loop(self, whole: Value, share: Sequence[Value], size: int = 1) -> Iterator[Value]:
        """Emit a loop over one thread's share of `whole` items, whose body is emitted in the body of `with`.

        Yield the index of an item's first element, where each item has `size` elements. `share` is the thread's index
        and the number of threads. The items are divided evenly among the threads.
        """
        first, last = self.thread_range(whole, *share)
        if size > 1:
            first, last = self.mul(first, size), self.mul(last, size)
        with self.loop(first, last, size) as start:
            yield start

    def each_vector(self, width: Value) -> Iterator[tuple[Value, int]]:
        """Emit a loop over the vectors of a row of `width` elements.

        Yield the first column of a vector (an IR value), and the number of the accumulator to use. The caller's `for`
        loop emits the code of one vector at a time.

        In the emitted loop, each iteration has `UNROLLED_VECTORS` vectors with different accumulators. A second loop
        handles the remaining vectors one by one, with accumulator 0.
        """
        block = UNROLLED_VECTORS * self.lanes
        blocked_end = self.mul(self.build.sdiv(width, self.int64(block)), block)
        with self.loop(0, blocked_end, block) as start:
            for number in range(UNROLLED_VECTORS):
                yield self.add(start, number * self.lanes), number
        with self.loop(blocked_end, width, self.lanes) as column:
            yield column, 0

    def when_any(self, conditions: Value) -> Any:
        """Return a context manager; code emitted in its body runs only if any condition in a vector is true."""
        bits = self._bits(conditions)
        return self.when(self.build.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0)))

    @contextmanager
    def each_true_lane(self, conditions: Value) -> Iterator[Value]:
        """Emit a loop over the true elements of a vector of conditions, for the body of `with`; yield the lane's index.

        The index is a 64-bit integer.
        """
        remaining = self.variable(self._bits(conditions))
        none = ir.Constant(ir.IntType(self.lanes), 0)
        with self.when_any(conditions), self.do_while() as done:
            bits = self.load_variable(remaining)
            self.store(self.build.and_(bits, self.build.sub(bits, ir.Constant(none.type, 1))), remaining)
            yield self.lowest_bit(bits)
            done(self.build.icmp_unsigned("==", self.load_variable(remaining), none))

    def _bits(self, conditions: Value) -> Value:
        """Return an integer with one bit per lane, converted from a vector of conditions."""
        return self.build.bitcast(conditions, ir.IntType(self.lanes))

    @contextmanager
    def do_while(self) -> Iterator[Callable[[Value], None]]:
        """Emit a do-while loop, whose body is emitted in the body of `with`.

        Yield a function that emits the end of the loop. The body must end by calling this function with the condition
        to stop.
        """
        again, after = self.build.append_basic_block(), self.build.append_basic_block()
        self.build.branch(again)
        self.build.position_at_end(again)
        yield lambda condition: self.build.cbranch(condition, after, again)
        self.build.position_at_end(after)

    def barrier(self, threads: Value) -> None:
        """Emit a barrier, at which the threads of a kernel call wait for one another.

        Nothing is emitted if kernels run on one thread only, and a single thread passes at once.
        """
        if self.threaded:
            with self.when(self.build.icmp_signed(">", threads, self.int64(1))):
                self.intrinsic("transduce_barrier", VOID)

    def when(self, condition: Value) -> Any:
        """Return a context manager; code emitted in its body runs only if the condition is true."""
        return self.build.if_then(condition)

    def lowest_bit(self, bits: Value) -> Value:
        """Return (an IR value) the index of the lowest set bit of a nonzero integer, as a 64-bit integer."""
        wide = self.build.zext(bits, I64)
        return self.intrinsic("llvm.cttz.i64", I64, wide, ir.Constant(ir.IntType(1), 0))

    # --- numbers ---------------------------------------------------------------------------------------------------

    def int64(self, value: Value | int) -> Value:
        """Return a Python integer as a 64-bit LLVM constant; return an LLVM value unchanged."""
        return _constant(I64, value) if isinstance(value, int) else value

    def float32(self, value: float) -> Value:
        """Return a Python number as an LLVM float32 constant."""
        return ir.Constant(F32, value)

    def float_from_bits(self, bits: Value) -> Value:
        """Return the float32 value whose bits are the lower 32 bits of a 64-bit integer (see `compiler.float_bits`).

        So a float can be passed as an integer kernel argument.
        """
        return self.build.bitcast(self.build.trunc(bits, I32), F32)

    def is_nonzero(self, address: Value) -> Value:
        """Return the condition (an IR value) that a 64-bit address or flag is not 0."""
        return self.build.icmp_signed("!=", address, self.int64(0))

    def splat(self, value: Value | float) -> Value:
        """Return a vector with one value in all lanes; a Python float becomes a float32 constant."""
        if isinstance(value, float):
            return _constant(self.floats, (value,) * self.lanes if value else None)
        kind = ir.VectorType(value.type, self.lanes)
        first = self.build.insert_element(ir.Constant(kind, ir.Undefined), value, _constant(I32, 0))
        return self.build.shuffle_vector(first, first, self.splat_int(0))

    def add(self, *values: Value | int) -> Value:
        """Return the sum of any number of 64-bit integers; Python integers become constants."""
        total = self.int64(values[0])
        for value in values[1:]:
            total = self.build.add(total, self.int64(value))
        return total

    def mul(self, *values: Value | int) -> Value:
        """Return the product of any number of 64-bit integers; Python integers become constants."""
        product = self.int64(values[0])
        for value in values[1:]:
            product = self.build.mul(product, self.int64(value))
        return product

    def thread_range(self, whole: Value, thread: Value, threads: Value) -> tuple[Value, Value]:
        """Return (IR values) the range [first, last) of the items that one thread takes.

        The `whole` items are divided evenly among `threads` threads.
        """
        start = self.build.sdiv(self.mul(whole, thread), threads)
        return start, self.build.sdiv(self.mul(whole, self.add(thread, 1)), threads)

    def madd(self, one: Value, other: Value, summand: Value) -> Value:
        """Return one × other + summand, a fused multiply-add of float32 scalars or vectors."""
        kind = one.type
        name = "f32" if kind == F32 else f"v{self.lanes}f32"
        return self.intrinsic(f"llvm.fma.{name}", kind, one, other, summand)

    def minimum(self, one: Value, other: Value) -> Value:
        """Return the minimum of two 64-bit signed integers."""
        return self.build.select(self.build.icmp_signed("<", one, other), one, other)

    def maximum(self, one: Value, other: Value) -> Value:
        """Return the maximum of two floats or, element by element, of two float vectors.

        If either is NaN, `other` is returned.
        """
        return self.build.select(self.build.fcmp_ordered(">", one, other), one, other)

    def round_to_int(self, values: Value) -> Value:
        """Return a vector of float32 rounded to 32-bit integers, ties to even."""
        return self.intrinsic(f"llvm.lrint.v{self.lanes}i32.v{self.lanes}f32", self.ints, values)

    def reduce_max(self, values: Value) -> Value:
        """Return the maximum of a float vector's elements, a scalar.

        NaN is not handled. LLVM's own reduction intrinsic handles it, and takes several instructions per element.
        """
        return self._fold(values, self.maximum)

    def reduce_sum(self, values: Value) -> Value:
        """Return the sum of a float vector's elements, by repeated halving.

        The order of additions depends only on the number of lanes.
        """
        return self._fold(values, self.build.fadd)

    def reduce_sums(self, vectors: list[Value]) -> Value:
        """Return one vector with the sums of several float vectors, whose number is a power of two.

        Each sum is added in the order of `reduce_sum`. Reducing several vectors at once takes fewer instructions.
        """
        width, count = self.lanes, len(vectors)  # partial sums that remain of each vector
        while len(vectors) > 1:
            width //= 2
            vectors = [self._join(*two, width) for two in zip(vectors[::2], vectors[1::2], strict=True)]
        (values,) = vectors
        while width > 1:
            width //= 2
            values = self.build.fadd(values, self.shuffle(values, values, [n ^ width for n in range(self.lanes)]))
        return self.shuffle(values, values, [n * self.lanes // count for n in range(count)])

    def _join(self, one: Value, other: Value, width: int) -> Value:
        """Return one vector of partial sums of two vectors, a step of `reduce_sums`.

        In each segment of 2 × width elements, the upper half is added to the lower half.
        """
        starts = range(0, 2 * self.lanes, 2 * width)  # of the segments in both vectors
        low = [start + n for start in starts for n in range(width)]
        halves = (self.shuffle(one, other, numbers) for numbers in (low, [n + width for n in low]))
        return self.build.fadd(*halves)

    def shuffle(self, one: Value, other: Value, numbers: Sequence[int]) -> Value:
        """Return a vector of elements of two vectors, selected by indices `numbers` into their concatenation."""
        mask = _constant(ir.VectorType(I32, len(numbers)), tuple(numbers))
        return self.build.shuffle_vector(one, other, mask)

    def _fold(self, values: Value, join: Callable[[Value, Value], Value]) -> Value:
        """Return the reduction of a vector to a scalar: `join` combines the vector's halves, again and again."""
        width = self.lanes
        while width > 1:
            width //= 2
            sides = (range(width), range(width, 2 * width))
            halves = (self.shuffle(values, values, numbers) for numbers in sides)
            values = join(*halves)
        return self.build.extract_element(values, _constant(I32, 0))

    def pointer(self, address: Value | int) -> Value:
        """Return a pointer converted from a 64-bit integer address."""
        return self.build.inttoptr(self.int64(address), POINTER)

    # --- memory ----------------------------------------------------------------------------------------------------

    def element_pointer(self, pointer: Value, index: Value | int, kind: Any = F32) -> Value:
        """Return a pointer to element `index` of an array whose elements have the LLVM type `kind`."""
        return self.build.gep(pointer, [self.int64(index)], source_etype=kind)

    def load(self, pointer: Value, kind: Any = F32) -> Value:
        """Emit a load of a value of the LLVM type `kind`, a scalar or a vector; return the value.

        The pointer need not be aligned to a vector's size.
        """
        return self.build.load(pointer, typ=kind, align=_alignment(kind))

    def load_floats(self, pointer: Value, index: Value | int = 0) -> Value:
        """Return a float32 vector, loaded from element `index` of a float32 array on."""
        return self.load(self.element_pointer(pointer, index), self.floats)

    def store(self, value: Value, pointer: Value) -> None:
        """Emit a store of a scalar or of a vector to an address that need not be aligned to a vector's size."""
        self.build.store(value, pointer, align=_alignment(value.type))

    def load_as_float32(self, pointer: Value, index: Value | int, kind: Any, *, mask: Value | None = None) -> Value:
        """Return a float32 vector, loaded from an array of F32, bfloat16 (I16) or F16 elements and converted.

        Args:
            pointer: a pointer to the array.
            index: the index of the first element.
            kind: the LLVM type of the elements.
            mask: a mask of the lanes to load, zeros elsewhere; for F32 and bfloat16 only. None: all lanes.
        """
        elements = ir.VectorType(kind, self.lanes)
        at = self.element_pointer(pointer, index, kind)
        values = self.load(at, elements) if mask is None else self._load_inside(at, elements, mask)
        if kind == F32:
            return values
        if kind == F16:
            return self.build.fpext(values, self.floats)
        bits = self.build.shl(self.build.zext(values, self.ints), self.splat_int(16))
        return self.build.bitcast(bits, self.floats)

    def store_float32_as(
        self, values: Value, pointer: Value, index: Value | int, kind: Any, *, mask: Value | None = None
    ) -> None:
        """Emit a store of a float32 vector as F32 or bfloat16 (I16), rounded to nearest even; NaN remains NaN.

        `index` is that of the first element to write, and `mask` is a mask of the lanes to store; None: all lanes.
        """
        at = self.element_pointer(pointer, index, kind)
        values = values if kind == F32 else self.to_bfloat16(values)
        if mask is None:
            self.store(values, at)
        else:
            name = f"llvm.masked.store.v{self.lanes}{'f32' if kind == F32 else 'i16'}.p0"
            self.intrinsic(name, VOID, values, at, mask)

    def _load_inside(self, at: Value, elements: Any, mask: Value) -> Value:
        """Return a vector of type `elements`, loaded from the pointer `at`; elements outside the mask are zero."""
        name = f"llvm.masked.load.v{self.lanes}{'f32' if elements.element == F32 else 'i16'}.p0"
        return self.intrinsic(name, elements, at, mask, ir.Constant(elements, None))

    def to_bfloat16(self, values: Value) -> Value:
        """Return a float32 vector converted to bfloat16 bits (I16), rounded to nearest even; NaN remains NaN.

        The processor's instruction, where there is one, flushes subnormal numbers to zero.
        """
        if self.has_bfloat16_rounding:
            kind = ir.VectorType(BFloat(), self.lanes)
            return self.build.bitcast(
                self.intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", kind, values), ir.VectorType(I16, self.lanes)
            )
        bits = self.build.bitcast(values, self.ints)
        odd = self.build.and_(self.build.lshr(bits, self.splat_int(16)), self.splat_int(1))
        rounded = self.build.add(self.build.add(bits, self.splat_int(0x7FFF)), odd)
        is_nan = self.build.fcmp_unordered("uno", values, values)
        rounded = self.build.select(is_nan, self.splat_int(0x7FC00000), rounded)
        return self.build.trunc(self.build.lshr(rounded, self.splat_int(16)), ir.VectorType(I16, self.lanes))

    def splat_int(self, number: int) -> Value:
        """Return a constant vector with one 32-bit integer in all lanes."""
        return _constant(self.ints, (number,) * self.lanes)

    def prefetch(self, pointer: Value, *, to_write: bool = False, level: int = 1) -> None:
        """Emit a prefetch of an address into the data cache of level `level`.

        `to_write` says that the memory will be written.
        """
        flags = (_constant(I32, number) for number in (int(to_write), 4 - level, 1))  # locality 3: keep; 1: data cache
        self.intrinsic("llvm.prefetch.p0", VOID, pointer, *flags)

    def store_nontemporal(self, value: Value, pointer: Value) -> None:
        """Emit a non-temporal store, which bypasses the caches, of a 64-byte vector to a 64-byte-aligned address.

        LLVM loses its own non-temporal marker in later passes, so this store is inline assembly. A kernel must call
        `store_fence` afterwards.
        """
        floats = self.build.bitcast(value, self.floats)
        kind = ir.FunctionType(VOID, [self.floats, POINTER])
        self.build.asm(kind, "vmovntps $0, ($1)", "v,r,~{memory}", [floats, pointer], side_effect=True)

    def store_fence(self) -> None:
        """Emit a store fence, so that other threads see non-temporal stores before any later store."""
        self.intrinsic("llvm.x86.sse.sfence", VOID)

    def copy(self, source: Value, target: Value, count: Value) -> None:
        """Emit a copy of `count` 32-bit elements from source to target."""
        volatile = ir.Constant(ir.IntType(1), 0)
        self.intrinsic("llvm.memcpy.p0.p0.i64", VOID, target, source, self.mul(count, 4), volatile)

    def variable(self, start: Value) -> Value:
        """Emit the allocation of a variable on the stack with an initial value; return the variable's address."""
        with self.build.goto_entry_block():
            address = self.build.alloca(start.type)
        self.build.store(start, address)
        return address

    def load_variable(self, address: Value) -> Value:
        """Return the value of a stack variable from its address, which `variable` returned."""
        return self.build.load(address)

    def accumulators(self, start: float = 0.0) -> list[Value]:
        """Return a list of pointers to `UNROLLED_VECTORS` float32 vector variables filled with `start`.

        The loop of `each_vector` adds up in such accumulators.
        """
        return [self.variable(self.splat(start)) for _ in range(UNROLLED_VECTORS)]

    def accumulate(self, variable: Value, value: Value, join: Callable[[Value, Value], Value]) -> None:
        """Emit code that sets a stack variable to join(value, variable), such as the sum of both.

        `variable` is the variable's address.
        """
        self.store(join(value, self.load_variable(variable)), variable)

    def combine_accumulators(self, variables: list[Value], join: Callable[[Value, Value], Value]) -> Value:
        """Return one vector that combines all accumulators pairwise by the operation `join`, such as addition."""
        values = [self.build.load(each, typ=self.floats) for each in variables]
        while len(values) > 1:
            values = [join(one, other) for one, other in zip(values[::2], values[1::2], strict=True)]
        return values[0]


class Fields:
    """An accessor by which emitted code reads and writes kernel arguments (64-bit integers in memory) by name."""

    def __init__(self, k: KernelBuilder, pointer: Value, names: tuple[str, ...]) -> None:
        self.k = k
        self.pointer = pointer
        self.names = names

    def get(self, name: str) -> Value:
        """Return the kernel argument with the given name, loaded from memory as a 64-bit integer."""
        return self.k.load(self._at(name), I64)

    def set(self, **values: Value | int) -> None:
        """Emit stores that set kernel arguments, by name, to values."""
        for name, value in values.items():
            self.k.store(self.k.int64(value), self._at(name))

    def at(self, name: str, index: Value, kind: Any = F32) -> Value:
        """Return a pointer to element `index` of the array whose address is the kernel argument `name`."""
        return self.k.element_pointer(self.k.pointer(self.get(name)), index, kind)

    def element(self, name: str, index: Value, kind: Any = F32) -> Value:
        """Return element `index`, of LLVM type `kind`, of the array whose address is the kernel argument `name`."""
        return self.k.load(self.at(name, index, kind), kind)

    def swap(self, one: str, other: str) -> None:
        """Emit an exchange of the values of two kernel arguments."""
        self.set(**{other: self.get(one), one: self.get(other)})

    def _at(self, name: str) -> Value:
        """Return a pointer to the memory of the kernel argument with the given name."""
        return self.k.element_pointer(self.pointer, self.names.index(name), I64)


def _alignment(kind: Any) -> int:
    """Return the alignment in bytes that loads and stores of an LLVM type may assume: that of one element.

    The alignment is 1, 2 or 4; 64-bit elements have 4.
    """
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    return {I8: 1, I16: 2, F16: 2}.get(element, 4)


# --- outlines ---
# Emitting and printing the IR of a model takes a fifth of a second, and its machine code is mostly cached. An outline
# identifies the code in a fraction of that time: the IR of what is emitted directly, and the calls of other emitters
# with all that these read. What they read is taken from this process's memory, since source files may have changed.


_Inputs = ParamSpec("_Inputs")


def outlined(
    emit: Callable[Concatenate[KernelBuilder, _Inputs], None],
) -> Callable[Concatenate[KernelBuilder, _Inputs], None]:
    """Decorate a function that emits LLVM functions, so that outlines note its calls.

    A builder with an `Outline` notes the function and its arguments, and emits no code. So the emitted code must depend
    on nothing but the builder's properties and what an outline describes.
    """

    @wraps(emit)
    def emit_or_note(k: KernelBuilder, /, *inputs: _Inputs.args, **named: _Inputs.kwargs) -> None:
        if k.outline is None:
            emit(k, *inputs, **named)
        else:
            k.outline.note(emit, *inputs, named)

    return emit_or_note


_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, type(...))
# Packages whose functions and classes are identified by their names: they depend on nothing but Python, llvmlite and
# the processor, which keys of the cache contain. So `os` and `torch`, which have settings, are not among them.
_KNOWN_PACKAGES = {"_abc", "_collections", "_functools", "abc", "builtins", "collections", "contextlib", "functools"}
_KNOWN_PACKAGES |= {"itertools", "llvmlite", "math", "typing"}
_FIELD_TYPE: Any = type(vars(Positions)["lineno"])  # of the fields of all named tuples
# Attributes of classes on which no emitted code depends.
_SKIPPED_ATTRIBUTES = {"__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dict__"}
_SKIPPED_ATTRIBUTES |= {"__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__weakref__"}


class Outline:
    """A short description of a module's IR: the calls of emitters, whose code is not emitted.

    A call is described by its arguments and its function. Of a function, the text contains the bytecode, the global
    variables that it reads and what its closure holds; of a class, the attributes; and so on from there. So two texts
    are equal only if the calls emit the same code.
    """

    def __init__(self, *values: object) -> None:
        """Create an outline that describes some values, such as the functions that compile the IR."""
        self._parts: list[str] = []
        self._seen: dict[int, tuple[int, object]] = {}  # holds the objects, as ids of deleted objects are used again
        self._is_exact = True
        self.note(*values)

    @property
    def text(self) -> str | None:
        """The text; None if it is not exact, because a value is of a kind that cannot be described."""
        return "\0".join(self._parts) if self._is_exact else None

    def note(self, *values: object) -> None:
        """Append a description of values and of all that they use, breadth first."""
        waiting = deque[object](values)
        while waiting and self._is_exact:
            try:
                text, used = self._describe(waiting.popleft())
            except (TypeError, ValueError):  # ValueError: a closure's variable has no value yet
                self._is_exact = False
                return
            self._parts.append(f"{text} {len(used)}")
            waiting.extend(used)

    def _describe(self, value: Any) -> tuple[str, Sequence[object]]:
        """Return a text about a value, and a sequence of the values that complete its description.

        Raises:
            TypeError: the value is of a kind that cannot be described.
        """
        kind = type(value)
        if kind in _PLAIN_TYPES or isinstance(value, ir.Type | ir.Constant):
            return f"{kind.__qualname__} {value!r}", ()
        if kind in (tuple, list):
            return kind.__name__, value
        if kind is dict:
            return "dict", [part for item in value.items() for part in item]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return "named tuple", [kind, *value]
        if id(value) in self._seen:
            return f"#{self._seen[id(value)][0]}", ()
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, FunctionType):
            return _describe_function(value)
        if isinstance(value, type):
            return _describe_class(value)
        return _describe_wrapper(value)


def _describe_function(value: FunctionType) -> tuple[str, Sequence[object]]:
    """Return what `Outline` describes of a function written in Python."""
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    module = str(value.__globals__.get("__name__"))
    if _is_known(module):
        return f"{module}.{value.__code__.co_qualname}", cells
    text, read, attributes = _describe_code(value.__code__)
    used: list[object] = [value.__defaults__, value.__kwdefaults__, *cells]
    for name in read:
        if name in value.__globals__:
            found = value.__globals__[name]
            if isinstance(found, ModuleType) and not _is_known(found.__name__):
                used += [part for each in attributes if each in vars(found) for part in (each, vars(found)[each])]
            else:
                used += [name, found]
    return text, used


def _describe_class(value: type) -> tuple[str, Sequence[object]]:
    """Return what `Outline` describes of a class."""
    if _is_known(value.__module__):
        return f"{value.__module__}.{value.__qualname__}", ()
    attributes = [item for item in sorted(vars(value).items()) if item[0] not in _SKIPPED_ATTRIBUTES]
    return f"{value.__module__}.{value.__qualname__}", [*value.__bases__, *attributes]


def _describe_wrapper(value: Any) -> tuple[str, Sequence[object]]:
    """Return what `Outline` describes of a module, of a function written in C, and of what wraps other functions.

    Raises:
        TypeError: the value is none of these.
    """
    if isinstance(value, staticmethod | classmethod):
        return type(value).__name__, (value.__func__,)
    if isinstance(value, property):
        return "property", (value.fget, value.fset, value.fdel)
    if value is _constant:
        return "cached", (_constant.__wrapped__,)
    if isinstance(value, _FIELD_TYPE):
        return f"field {value.__reduce__()[1][0]}", ()
    if isinstance(value, BuiltinFunctionType) and _is_known(value.__module__ or "builtins"):
        return f"builtin {value.__qualname__}", (value.__self__,)
    if isinstance(value, ModuleType) and _is_known(value.__name__):
        return f"module {value.__name__}", ()
    raise TypeError(type(value))


def _is_known(module: str) -> bool:
    """Return whether a module belongs to a package whose functions are identified by their names."""
    return module.partition(".")[0] in _KNOWN_PACKAGES


@lru_cache(None)
def _describe_code(code: CodeType) -> tuple[str, list[str], list[str]]:
    """Return a text about a function's bytecode, and the names of global variables and of attributes that it uses.

    Raises:
        TypeError: the function imports a module.
    """
    read = []
    for instruction in get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            raise TypeError(instruction.argval)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.append(instruction.argval)
    attributes, constants = list(code.co_names), []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            text, *more = _describe_code(constant)
            read, attributes = read + more[0], attributes + more[1]
        else:
            text = repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
        constants.append(text)
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    text = repr((code.co_qualname, code.co_code, code.co_exceptiontable, counts, names, constants))
    return text, list(dict.fromkeys(read)), list(dict.fromkeys(attributes))
