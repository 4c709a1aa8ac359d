"""Writing LLVM's intermediate language: loops, variables and vectors, with as little ceremony as the rest allows.

A kernel is a function that is called while its instructions are written: Python's loops are unrolled, `loop` runs in
the machine. Variables are places on the stack, which LLVM turns into registers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
VOID = ir.VoidType()
AT_ONCE = 4  # vectors of a row that are worked at side by side: what sums them up need not wait for one another

# A value of LLVM: what an instruction gives. The library has no types.
Value = Any


class BFloat(ir.types.Type):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """LLVM's type of bfloat16, which the library does not know."""

    null = "0.0"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(type(self))


class Emitter:
    """A module in the making, and the function that is being written."""

    def __init__(self, name: str, lanes: int, *, threaded: bool = False, narrows: bool = False) -> None:
        """Vectors have so many elements of 32 bits; with `threaded`, several threads may run what is written.

        With `narrows`, the processor has an instruction that rounds 16 of them to bfloat16.
        """
        self.module = ir.Module(name=name)
        self.lanes = lanes
        self.ints = ir.VectorType(I32, lanes)
        self.floats = ir.VectorType(F32, lanes)
        self.threaded = threaded
        self._narrows = narrows
        self.features: set[str] = set()
        """Instructions that are used by name, beyond what the processor at hand is known for."""
        self.build: Any = None

    @contextmanager
    def function(self, name: str, *types: Any, exported: bool = False) -> Iterator[list[Value]]:
        """The arguments of a function without a result, which is written in the body of `with`."""
        made = ir.Function(self.module, ir.FunctionType(VOID, types), name=name)
        made.linkage = "external" if exported else "internal"
        made.attributes.add("nounwind")
        made.attributes.add("noinline")  # kernels are large, and programs call them many times
        outer, self.build = self.build, ir.IRBuilder(made.append_basic_block())
        yield list(made.args)
        self.build.ret_void()
        self.build = outer

    def has(self, name: str) -> bool:
        """Whether there is such a function, finished or being written."""
        return name in self.module.globals

    def call(self, name: str, *values: Value) -> None:
        """Calls a function that was written before."""
        self.build.call(self.module.get_global(name), values)

    def call_at(self, address: Value, *values: Value) -> None:
        """Calls a function without a result by its address."""
        kind = ir.FunctionType(VOID, [value.type for value in values])
        self.build.call(self.build.inttoptr(address, kind.as_pointer()), values)

    def ask(self, name: str) -> Value:
        """What a function outside of the module says, which takes nothing and gives an int; as 64 bits."""
        return self.build.sext(self.intrinsic(name, I32), I64)

    def intrinsic(self, name: str, result: Any, *values: Value) -> Value:
        """An instruction that LLVM knows by name, or a function outside of the module."""
        kind = ir.FunctionType(result, [value.type for value in values])
        declared = self.module.globals.get(name) or ir.Function(self.module, kind, name=name)
        return self.build.call(declared, values)

    # --- control ---------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: int = 1) -> Iterator[Value]:
        """From start to below stop; gives the number, of 64 bits."""
        start, stop = self.number(start), self.number(stop)
        before = self.build.block
        head, body, after = (self.build.append_basic_block() for _ in range(3))
        self.build.branch(head)
        self.build.position_at_end(head)
        number = self.build.phi(I64)
        number.add_incoming(start, before)
        self.build.cbranch(self.build.icmp_signed("<", number, stop), body, after)
        self.build.position_at_end(body)
        yield number
        number.add_incoming(self.build.add(number, self.number(step)), self.build.block)
        self.build.branch(head)
        self.build.position_at_end(after)

    def each_vector(self, width: Value) -> Iterator[tuple[Value, int]]:
        """Where a row's vectors begin, `AT_ONCE` at a time and then one by one; with its number of those at a time."""
        block = AT_ONCE * self.lanes
        many = self.times(self.build.sdiv(width, self.number(block)), block)
        with self.loop(0, many, block) as start:
            for number in range(AT_ONCE):
                yield self.sum_of(start, number * self.lanes), number
        with self.loop(many, width, self.lanes) as column:
            yield column, 0

    def where_any(self, conditions: Value) -> Any:
        """What is written in the body of `with` is done where a condition of a vector holds."""
        bits = self._bits(conditions)
        return self.where(self.build.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0)))

    @contextmanager
    def each_set(self, conditions: Value) -> Iterator[Value]:
        """For each element of a vector of conditions that holds; gives its number, of 64 bits."""
        left = self.variable(self._bits(conditions))
        none = ir.Constant(ir.IntType(self.lanes), 0)
        with self.where_any(conditions), self.until() as done:
            bits = self.get(left, none)
            self.store(self.build.and_(bits, self.build.sub(bits, ir.Constant(none.type, 1))), left)
            yield self.lowest_bit(bits)
            done(self.build.icmp_unsigned("==", self.get(left, none), none))

    def _bits(self, conditions: Value) -> Value:
        """A number with a bit for each."""
        return self.build.bitcast(conditions, ir.IntType(self.lanes))

    @contextmanager
    def until(self) -> Iterator[Callable[[Value], None]]:
        """Repeats the body of `with` until the condition holds that it hands over as the last thing it does."""
        again, after = self.build.append_basic_block(), self.build.append_basic_block()
        self.build.branch(again)
        self.build.position_at_end(again)
        yield lambda condition: self.build.cbranch(condition, after, again)
        self.build.position_at_end(after)

    def barrier(self, threads: Value) -> None:
        """All threads wait for one another, where there are several."""
        if self.threaded:
            with self.where(self.build.icmp_signed(">", threads, self.number(1))):
                self.intrinsic("transduce_barrier", VOID)

    def where(self, condition: Value) -> Any:
        """What is written in the body of `with` is done where the condition holds."""
        return self.build.if_then(condition)

    def lowest_bit(self, bits: Value) -> Value:
        """The number of the lowest bit that is set, of a number that is not 0."""
        wide = self.build.zext(bits, I64)
        return self.intrinsic("llvm.cttz.i64", I64, wide, ir.Constant(ir.IntType(1), 0))

    # --- numbers ---------------------------------------------------------------------------------------------------

    def number(self, value: Value | int) -> Value:
        """A number of 64 bits."""
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def real(self, value: float) -> Value:
        """A float32."""
        return ir.Constant(F32, value)

    def float_of(self, bits: Value) -> Value:
        """The float32 of the bits that a number of 64 bits ends in."""
        return self.build.bitcast(self.build.trunc(bits, I32), F32)

    def is_given(self, address: Value) -> Value:
        """Whether an address is not 0."""
        return self.build.icmp_signed("!=", address, self.number(0))

    def splat(self, value: Value | float) -> Value:
        """A vector whose elements are all this one."""
        if isinstance(value, float):
            return ir.Constant(self.floats, [value] * self.lanes if value else None)
        kind = ir.VectorType(value.type, self.lanes)
        first = self.build.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
        return self.build.shuffle_vector(first, first, ir.Constant(self.ints, [0] * self.lanes))

    def sum_of(self, *values: Value | int) -> Value:
        """Of numbers of 64 bits."""
        total = self.number(values[0])
        for value in values[1:]:
            total = self.build.add(total, self.number(value))
        return total

    def times(self, *values: Value | int) -> Value:
        """The product of numbers of 64 bits."""
        product = self.number(values[0])
        for value in values[1:]:
            product = self.build.mul(product, self.number(value))
        return product

    def share(self, whole: Value, thread: Value, threads: Value) -> tuple[Value, Value]:
        """A thread's part of so many things: the first one, and the one after the last."""
        start = self.build.sdiv(self.times(whole, thread), threads)
        return start, self.build.sdiv(self.times(whole, self.sum_of(thread, 1)), threads)

    def madd(self, one: Value, other: Value, summand: Value) -> Value:
        """One times other plus summand, rounded once."""
        kind = one.type
        name = "f32" if kind == F32 else f"v{self.lanes}f32"
        return self.intrinsic(f"llvm.fma.{name}", kind, one, other, summand)

    def lesser(self, one: Value, other: Value) -> Value:
        """Of two whole numbers."""
        return self.build.select(self.build.icmp_signed("<", one, other), one, other)

    def greater(self, one: Value, other: Value) -> Value:
        """Of two numbers, or of each two of two vectors; the other where one is no number."""
        return self.build.select(self.build.fcmp_ordered(">", one, other), one, other)

    def nearest(self, values: Value) -> Value:
        """A vector of floats to whole numbers of 32 bits, to even between two."""
        return self.intrinsic(f"llvm.lrint.v{self.lanes}i32.v{self.lanes}f32", self.ints, values)

    def greatest(self, values: Value) -> Value:
        """Of a vector of floats. LLVM's own way minds every NaN, and takes several instructions for each element."""
        return self._fold(values, self.greater)

    def total(self, values: Value) -> Value:
        """The sum of a vector of floats, halves first: the same order on every machine."""
        return self._fold(values, self.build.fadd)

    def totals(self, vectors: list[Value]) -> Value:
        """What `total` gives of each of some vectors, a quarter as many as there are lanes; a vector of so many."""
        width, count = self.lanes, len(vectors)  # elements that are left of each one
        while len(vectors) > 1:
            width //= 2
            vectors = [self._join(*two, width) for two in zip(vectors[::2], vectors[1::2], strict=True)]
        (values,) = vectors
        while width > 1:
            width //= 2
            values = self.build.fadd(values, self._shuffle(values, values, [n ^ width for n in range(self.lanes)]))
        return self._shuffle(values, values, [n * self.lanes // count for n in range(count)])

    def _join(self, one: Value, other: Value, width: int) -> Value:
        """Adds the halves, of so many elements, of what two vectors hold."""
        starts = range(0, 2 * self.lanes, 2 * width)  # of both
        low = [start + n for start in starts for n in range(width)]
        halves = (self._shuffle(one, other, numbers) for numbers in (low, [n + width for n in low]))
        return self.build.fadd(*halves)

    def _shuffle(self, one: Value, other: Value, numbers: list[int]) -> Value:
        mask = ir.Constant(ir.VectorType(I32, len(numbers)), numbers)
        return self.build.shuffle_vector(one, other, mask)

    def _fold(self, values: Value, join: Callable[[Value, Value], Value]) -> Value:
        width = self.lanes
        while width > 1:
            width //= 2
            sides = (range(width), range(width, 2 * width))
            halves = (self._shuffle(values, values, list(numbers)) for numbers in sides)
            values = join(*halves)
        return self.build.extract_element(values, ir.Constant(I32, 0))

    def place(self, address: Value | int) -> Value:
        """The place of this address."""
        return self.build.inttoptr(self.number(address), POINTER)

    # --- memory ----------------------------------------------------------------------------------------------------

    def at(self, place: Value, index: Value | int, kind: Any = F32) -> Value:
        """The place of the element of this number, of an array of this kind."""
        return self.build.gep(place, [self.number(index)], source_etype=kind)

    def load(self, place: Value, kind: Any = F32) -> Value:
        """What stands there; vectors need not be aligned."""
        return self.build.load(place, typ=kind, align=_alignment(kind))

    def load_floats(self, place: Value, index: Value | int = 0) -> Value:
        """A vector of floats from an array's element of this number on."""
        return self.load(self.at(place, index), self.floats)

    def store(self, value: Value, place: Value) -> None:
        """Puts it there; vectors need not be aligned."""
        self.build.store(value, place, align=_alignment(value.type))

    def load_wide(self, place: Value, index: Value | int, kind: Any, *, inside: Value | None = None) -> Value:
        """A vector of floats from an array of F32, bfloat16 (I16) or F16; of the first two, what is inside alone."""
        elements = ir.VectorType(kind, self.lanes)
        at = self.at(place, index, kind)
        found = self.load(at, elements) if inside is None else self._load_inside(at, elements, inside)
        if kind == F32:
            return found
        if kind == F16:
            return self.build.fpext(found, self.floats)
        bits = self.build.shl(self.build.zext(found, self.ints), self.all_ints(16))
        return self.build.bitcast(bits, self.floats)

    def store_narrow(
        self, values: Value, place: Value, index: Value | int, kind: Any, *, inside: Value | None = None
    ) -> None:
        """A vector of floats into such an array, rounded to the nearest, and to even between two; NaN remains NaN."""
        at = self.at(place, index, kind)
        values = values if kind == F32 else self.narrow(values)
        if inside is None:
            self.store(values, at)
        else:
            name = f"llvm.masked.store.v{self.lanes}{'f32' if kind == F32 else 'i16'}.p0"
            self.intrinsic(name, VOID, values, at, inside)

    def _load_inside(self, at: Value, elements: Any, inside: Value) -> Value:
        name = f"llvm.masked.load.v{self.lanes}{'f32' if elements.element == F32 else 'i16'}.p0"
        return self.intrinsic(name, elements, at, inside, ir.Constant(elements, None))

    def narrow(self, values: Value) -> Value:
        """To the bits of bfloat16, likewise; the instruction makes numbers below the least normal one zero."""
        if self._narrows:
            kind = ir.VectorType(BFloat(), self.lanes)
            return self.build.bitcast(
                self.intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", kind, values), ir.VectorType(I16, self.lanes)
            )
        bits = self.build.bitcast(values, self.ints)
        odd = self.build.and_(self.build.lshr(bits, self.all_ints(16)), self.all_ints(1))
        rounded = self.build.add(self.build.add(bits, self.all_ints(0x7FFF)), odd)
        is_nan = self.build.fcmp_unordered("uno", values, values)
        rounded = self.build.select(is_nan, self.all_ints(0x7FC00000), rounded)
        return self.build.trunc(self.build.lshr(rounded, self.all_ints(16)), ir.VectorType(I16, self.lanes))

    def all_ints(self, number: int) -> Value:
        """A vector whose elements are all this number, of 32 bits."""
        return ir.Constant(self.ints, [number] * self.lanes)

    def fetch(self, place: Value, *, to_write: bool = False, level: int = 1) -> None:
        """Has what stands there brought into the cache of this level while other things are done."""
        flags = [ir.Constant(I32, number) for number in (int(to_write), 4 - level, 1)]  # 3: to stay; 1: data
        self.intrinsic("llvm.prefetch.p0", VOID, place, *flags)

    def stream(self, value: Value, place: Value) -> None:
        """Puts a vector of 64 bytes where nobody reads it soon, past the caches; the place is a multiple of 64.

        LLVM has a mark for such stores, which it forgets on the way. See `finish_streams`.
        """
        floats = self.build.bitcast(value, self.floats)
        kind = ir.FunctionType(VOID, [self.floats, POINTER])
        self.build.asm(kind, "vmovntps $0, ($1)", "v,r,~{memory}", [floats, place], side_effect=True)

    def finish_streams(self) -> None:
        """Other threads see what was streamed before they see what comes after this."""
        self.intrinsic("llvm.x86.sse.sfence", VOID)

    def copy(self, source: Value, target: Value, count: Value) -> None:
        """So many numbers of 32 bits from one place to another."""
        volatile = ir.Constant(ir.IntType(1), 0)
        self.intrinsic("llvm.memcpy.p0.p0.i64", VOID, target, source, self.times(count, 4), volatile)

    def variable(self, start: Value) -> Value:
        """A place on the stack that holds a value of this type, first this one."""
        with self.build.goto_entry_block():
            place = self.build.alloca(start.type)
        self.build.store(start, place)
        return place

    def get(self, place: Value, like: Value) -> Value:
        """What a variable holds, which is of this one's type."""
        return self.build.load(place, typ=like.type)

    def sums(self, start: float = 0.0) -> list[Value]:
        """Variables for what `each_vector` finds, vectors of floats."""
        return [self.variable(self.splat(start)) for _ in range(AT_ONCE)]

    def add_to(self, variables: list[Value], number: int, value: Value, join: Callable[[Value, Value], Value]) -> None:
        """Joins a vector of floats to what one of them holds."""
        self.store(join(value, self.get(variables[number], value)), variables[number])

    def joined(self, variables: list[Value], join: Callable[[Value, Value], Value]) -> Value:
        """What variables hold, vectors of floats, by twos."""
        values = [self.build.load(each, typ=self.floats) for each in variables]
        while len(values) > 1:
            values = [join(one, other) for one, other in zip(values[::2], values[1::2], strict=True)]
        return values[0]


def _alignment(kind: Any) -> int:
    """In bytes: arrays begin anywhere among their elements."""
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    return {I8: 1, I16: 2, F16: 2}.get(element, 4)
