"""What training does with each row or element by itself: dropout, LayerNorm and its gradient, softmax, sums.

Legend: N rows, D model width, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I8, I32, Emitter, Value
from transduce.model.native.engine import program
from transduce.model.native.rows import exponential, means

_NEVER = float("-inf")
_PAGE_BYTES = 4096  # of memory
_HASHES = 16  # of a block of elements of which some are dropped
_DROPPED = 64  # elements of such a block: four bytes of each hash
_ROWS = 8  # whose columns are added up before they join their sums
# The rounds of a hash of 32 bits: shift right and exclude, then multiply (none the last time).
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1))


class DropPlaces(NamedTuple):
    """The numbers of `drop`: out = residual + x / kept share, where an element is kept."""

    x: Any
    residual: Any
    """0: there is none. It may be where x is, as may the result."""
    out: Any
    count: Any
    """A number, a multiple of the lanes: elements."""
    seed: Any
    """A number of 64 bits."""
    drop_of_256: Any
    """A number: so many of 256 are dropped."""


class NormPlaces(NamedTuple):
    """The numbers of `norm` and `norm_back`, LayerNorm's; and of `rms` and `rms_back`, RMSNorm's."""

    x: Any
    """(N, D)."""
    weight: Any
    """(D,)."""
    bias: Any
    """(D,); LayerNorm's alone."""
    rows: Any
    """A number: N."""
    width: Any
    """A number: D, a multiple of the lanes."""
    epsilon: Any
    """A number: the bits of a float32."""
    sums: Any
    """float32, (N, 2): each row's mean, 0 of RMSNorm, and one over its deviation from that."""
    out: Any
    """(N, D): the result, or the gradient by x."""
    gradient: Any
    """(N, D): by the result. For the way back alone, as all that follow."""
    kept: Any
    """(N, D): a gradient by x that has come already, which is added to its own. Or 0."""
    shares: Any
    """float32, room for (threads, 2, D): each thread's of the gradients by weight and bias."""
    weight_sum: Any
    """float32, (D,): to which the gradient is added."""
    bias_sum: Any
    """float32, (D,): likewise; LayerNorm's alone."""


class SoftmaxPlaces(NamedTuple):
    """The numbers of `softmax`: rows of logits become probabilities where they stand."""

    logits: Any
    """(N, V)."""
    rows: Any
    """A number: N."""
    width: Any
    """A number: V."""
    normalizers: Any
    """float32, (N,): the logarithm of the sum of each row's exponentials."""
    room: Any
    """float32, (threads, V + lanes)."""


class SumPlaces(NamedTuple):
    """The numbers of `sum_columns`: what a gradient by rows adds up to."""

    source: Any
    """(N, D)."""
    rows: Any
    """A number: N."""
    width: Any
    """A number: D, a multiple of the lanes."""
    sums: Any
    """float32, (threads, D), zero at first: each thread's share."""
    gate: Any
    """(N, D): where it is not positive, the source counts as zero. Or 0."""
    gated: Any
    """(N, D): the source with these zeros. For a gate alone."""


class AddPlaces(NamedTuple):
    """The numbers of `add`: total += part."""

    total: Any
    """float32, (count,)."""
    part: Any
    """(count,)."""
    count: Any
    """A number, a multiple of the lanes."""


class RowWriter:
    """Writes the programs `drop`, `norm` and `rms` with their `…_back`, `softmax`, `sum_columns` and `add`."""

    names = ("drop", "norm", "norm_back", "rms", "rms_back", "softmax", "sum_columns", "add")

    def __init__(self, k: Emitter, kind: Any) -> None:
        """Of elements F32, or I16 for bfloat16."""
        self.k = k
        self.kind = kind

    def write(self) -> None:
        """All."""
        k = self.k
        with program(k, "drop", len(DropPlaces._fields)) as (numbers, *share):
            self._drop(DropPlaces(*numbers), *share)
        for name, work, is_centred in (
            ("norm", self._norm, True),
            ("norm_back", self._norm_back, True),
            ("rms", self._norm, False),
            ("rms_back", self._norm_back, False),
        ):
            with program(k, name, len(NormPlaces._fields)) as (numbers, *share):
                given = NormPlaces(*numbers)
                first, last = k.share(given.rows, *share)
                if work == self._norm_back:
                    self._clear_share(given, share[0])
                with k.loop(first, last) as row:
                    work(given, row, share[0], is_centred=is_centred)
                if work == self._norm_back:
                    k.barrier(share[1])
                    self._add_shares(given, *share, is_centred=is_centred)
        with program(k, "softmax", len(SoftmaxPlaces._fields)) as (numbers, *share):
            softmax = SoftmaxPlaces(*numbers)
            room = k.at(k.place(softmax.room), k.times(share[0], k.sum_of(softmax.width, k.lanes)))
            first, last = k.share(softmax.rows, *share)
            with k.loop(first, last) as row:
                self._softmax(softmax, row, room)
        with program(k, "sum_columns", len(SumPlaces._fields)) as (numbers, *share):
            self._sum_columns(SumPlaces(*numbers), *share)
        with program(k, "add", len(AddPlaces._fields)) as (numbers, *share):
            added = AddPlaces(*numbers)
            first, last = k.share(k.build.sdiv(added.count, k.number(k.lanes)), *share)
            with k.loop(k.times(first, k.lanes), k.times(last, k.lanes), k.lanes) as number:
                part, there = k.load_wide(k.place(added.part), number, self.kind), k.at(k.place(added.total), number)
                k.store(k.build.fadd(k.load_floats(there), part), there)

    def _load(self, address: Value, row: Value | int, width: Value | int, column: Value) -> Value:
        k = self.k
        return k.load_wide(k.place(address), k.sum_of(k.times(row, width), column), self.kind)

    def _store(self, values: Value, address: Value, row: Value, width: Value, column: Value) -> None:
        k = self.k
        k.store_narrow(values, k.place(address), k.sum_of(k.times(row, width), column), self.kind)

    def _fetch_later(self, address: Value, row: Value, width: Value, column: Value) -> None:
        """Has what comes a page of memory later fetched: by itself the processor looks no further than a page's end."""
        k = self.k
        place = k.at(k.place(address), k.sum_of(k.times(row, width), column), self.kind)
        k.fetch(k.at(place, _PAGE_BYTES, I8), level=2)

    # --- dropout -----------------------------------------------------------------------------------------------------

    def _drop(self, given: DropPlaces, thread: Value, threads: Value) -> None:
        k = self.k
        kept = k.build.sitofp(k.build.sub(k.number(256), given.drop_of_256), F32)
        scale = k.splat(k.build.fdiv(k.real(256.0), kept))
        dropped = k.splat(k.build.trunc(given.drop_of_256, I32))
        first, last = k.share(k.build.sdiv(k.sum_of(given.count, _DROPPED - 1), k.number(_DROPPED)), thread, threads)
        with k.loop(first, last) as block:
            for vector, bytes_ in self._random_bytes(block, given.seed):
                number = k.sum_of(k.times(block, _DROPPED), vector)
                with k.where(k.build.icmp_signed("<", number, given.count)):
                    self._drop_vector(given, number, k.build.icmp_signed(">=", bytes_, dropped), scale)

    def _drop_vector(self, given: DropPlaces, number: Value, is_kept: Value, scale: Value) -> None:
        """From this element on."""
        k = self.k
        value = k.build.fmul(k.load_wide(k.place(given.x), number, self.kind), scale)
        value = k.build.select(is_kept, value, k.splat(0.0))
        result = k.variable(value)
        with k.where(k.is_given(given.residual)):
            k.store(k.build.fadd(value, k.load_wide(k.place(given.residual), number, self.kind)), result)
        k.store_narrow(k.get(result, value), k.place(given.out), number, self.kind)

    def _random_bytes(self, block: Value, seed: Value) -> Iterator[tuple[int, Value]]:
        """Of the vectors of a block, which begin with these of its elements.

        A hash of the seed and of a number gives four, of elements that are sixteen apart, as many as the widest
        vectors have: the same ones on every processor.
        """
        k = self.k
        low, high = (k.splat(k.build.trunc(each, I32)) for each in (seed, k.build.lshr(seed, k.number(32))))
        start = k.splat(k.build.trunc(k.times(block, _HASHES), I32))
        for first in range(0, _HASHES, k.lanes):
            own = ir.Constant(k.ints, list(range(first, first + k.lanes)))
            bits = k.build.add(k.build.add(start, own), low)
            for shift, factor in _ROUNDS:
                bits = k.build.xor(bits, k.build.lshr(bits, k.all_ints(shift)))
                bits = k.build.xor(k.build.mul(bits, k.all_ints(factor)), high)
            for byte in range(_DROPPED // _HASHES):
                shifted = k.build.lshr(bits, k.all_ints(8 * byte))
                yield byte * _HASHES + first, k.build.and_(shifted, k.all_ints(255))

    # --- sums over rows ----------------------------------------------------------------------------------------------

    def _sum_columns(self, given: SumPlaces, thread: Value, threads: Value) -> None:
        """A thread takes some rows, several at a time, and of them all columns."""
        k = self.k
        sums = k.at(k.place(given.sums), k.times(thread, given.width))
        start, stop = k.share(given.rows, thread, threads)
        whole = k.sum_of(start, k.times(k.build.sdiv(k.build.sub(stop, start), k.number(_ROWS)), _ROWS))
        for first, last, count in ((start, whole, _ROWS), (whole, stop, 1)):
            with k.loop(first, last, count) as row, k.loop(0, given.width, k.lanes) as column:
                total = k.load_floats(sums, column)
                for number in range(count):
                    total = k.build.fadd(total, self._gated(given, k.sum_of(row, number), column))
                k.store(total, k.at(sums, column))

    def _gated(self, given: SumPlaces, row: Value, column: Value) -> Value:
        """Of the source, what passes the gate; and it is written."""
        k = self.k
        value = self._load(given.source, row, given.width, column)
        found = k.variable(value)
        with k.where(k.build.icmp_signed("!=", given.gate, k.number(0))):
            gate = self._load(given.gate, row, given.width, column)
            is_closed = k.build.fcmp_ordered("<=", gate, k.splat(0.0))
            gated = k.build.select(is_closed, k.splat(0.0), value)
            self._store(gated, given.gated, row, given.width, column)
            k.store(gated, found)
        return k.get(found, value)

    # --- LayerNorm ---------------------------------------------------------------------------------------------------

    def _norm(self, given: NormPlaces, row: Value, _thread: Value, *, is_centred: bool) -> None:
        k, width = self.k, given.width

        def own(column: Value, *, is_first: bool = False) -> Value:
            if is_first:
                self._fetch_later(given.x, row, width, column)
            return self._load(given.x, row, width, column)

        (mean,) = means(k, width, lambda column: [own(column, is_first=True)]) if is_centred else (k.real(0.0),)
        spread = k.splat(mean)

        def deviation(column: Value) -> Value:
            return k.build.fsub(own(column, is_first=not is_centred), spread)

        (variance,) = means(k, width, lambda column: [self._square(deviation(column))])
        epsilon = k.float_of(given.epsilon)
        root = k.intrinsic("llvm.sqrt.f32", F32, k.build.fadd(variance, epsilon))
        inverse = k.build.fdiv(k.real(1.0), root)
        sums = k.at(k.place(given.sums), k.times(row, 2))
        k.store(mean, k.at(sums, 0))
        k.store(inverse, k.at(sums, 1))
        scale = k.splat(inverse)
        with k.loop(0, width, k.lanes) as column:
            moved = k.build.fmul(k.build.fsub(own(column), spread), scale)
            weight = k.load_wide(k.place(given.weight), column, self.kind)
            value = k.build.fmul(moved, weight)
            if is_centred:
                value = k.madd(moved, weight, k.load_wide(k.place(given.bias), column, self.kind))
            self._store(value, given.out, row, width, column)

    def _norm_back(self, given: NormPlaces, row: Value, thread: Value, *, is_centred: bool) -> None:
        """By x: (g w - mean(g w) - x' mean(g w x')) / deviation, where x' is the normalised row.

        The first mean is of centred rows alone.
        """
        k, width = self.k, given.width
        sums = k.at(k.place(given.sums), k.times(row, 2))
        mean, inverse = (k.splat(k.load(k.at(sums, number))) for number in range(2))
        shares = k.at(k.place(given.shares), k.times(thread, 2, width))

        def normalized(column: Value) -> Value:
            return k.build.fmul(k.build.fsub(self._load(given.x, row, width, column), mean), inverse)

        def weighted(column: Value) -> Value:
            weight = k.load_wide(k.place(given.weight), column, self.kind)
            return k.build.fmul(self._load(given.gradient, row, width, column), weight)

        def both(column: Value) -> list[Value]:
            for address in (given.x, given.gradient):
                self._fetch_later(address, row, width, column)
            gradient, x = self._load(given.gradient, row, width, column), normalized(column)
            shared = [(column, k.build.fmul(gradient, x)), (k.sum_of(width, column), gradient)]
            for place, term in shared if is_centred else shared[:1]:
                k.store(k.build.fadd(k.load_floats(shares, place), term), k.at(shares, place))
            own = weighted(column)
            return [own, k.build.fmul(own, x)]

        level, tilt = (k.splat(each) for each in means(self.k, width, both, 2))
        with k.loop(0, width, k.lanes) as column:
            rest = k.build.fsub(weighted(column), level) if is_centred else weighted(column)
            rest = k.build.fsub(rest, k.build.fmul(normalized(column), tilt))
            result = k.build.fmul(rest, inverse)
            found = k.variable(result)
            with k.where(k.is_given(given.kept)):
                k.store(k.build.fadd(self._load(given.kept, row, width, column), result), found)
            self._store(k.get(found, result), given.out, row, width, column)

    def _clear_share(self, given: NormPlaces, thread: Value) -> None:
        """A thread's own, before its rows."""
        k = self.k
        size = k.times(given.width, 2)
        with k.loop(0, size, k.lanes) as place:
            k.store(k.splat(0.0), k.at(k.place(given.shares), k.sum_of(k.times(thread, size), place)))

    def _add_shares(self, given: NormPlaces, thread: Value, threads: Value, *, is_centred: bool) -> None:
        """Of the gradients by weight and bias, some columns of them, one thread's share after the other."""
        k, width = self.k, given.width
        first, last = k.share(k.build.sdiv(width, k.number(k.lanes)), thread, threads)
        with k.loop(k.times(first, k.lanes), k.times(last, k.lanes), k.lanes) as column:
            for number, total in enumerate((given.weight_sum, given.bias_sum) if is_centred else (given.weight_sum,)):
                there = k.at(k.place(total), column)
                own = k.variable(k.load_floats(there))
                with k.loop(0, threads) as other:
                    place = k.sum_of(k.times(k.sum_of(k.times(other, 2), number), width), column)
                    known = k.get(own, k.splat(0.0))
                    k.store(k.build.fadd(known, k.load_floats(k.place(given.shares), place)), own)
                k.store(k.get(own, k.splat(0.0)), there)

    def _square(self, value: Value) -> Value:
        return self.k.build.fmul(value, value)

    # --- softmax -----------------------------------------------------------------------------------------------------

    def _softmax(self, given: SoftmaxPlaces, row: Value, room: Value) -> None:
        k, width = self.k, given.width
        most = k.sums(_NEVER)
        for column, inside, number in self._vectors(width):
            k.add_to(most, number, self._logits(given, row, column, inside), k.greater)
        greatest = k.greatest(k.joined(most, k.greater))
        totals = k.sums()
        for column, inside, number in self._vectors(width):
            value = self._logits(given, row, column, inside)
            value = exponential(k, k.build.fsub(value, k.splat(greatest)), keeps_nan=True)
            if inside is not None:
                value = k.build.select(inside, value, k.splat(0.0))
            k.store(value, k.at(room, column))
            k.add_to(totals, number, value, k.build.fadd)
        total = k.total(k.joined(totals, k.build.fadd))
        logarithm = k.intrinsic("llvm.log.f32", F32, total)
        k.store(k.build.fadd(greatest, logarithm), k.at(k.place(given.normalizers), row))
        scale = k.splat(k.build.fdiv(k.real(1.0), total))
        for column, inside, _ in self._vectors(width):
            value = k.build.fmul(k.load_floats(room, column), scale)
            place = k.sum_of(k.times(row, width), column)
            k.store_narrow(value, k.place(given.logits), place, self.kind, inside=inside)

    def _logits(self, given: SoftmaxPlaces, row: Value, column: Value, inside: Value | None) -> Value:
        k = self.k
        place = k.sum_of(k.times(row, given.width), column)
        value = k.load_wide(k.place(given.logits), place, self.kind, inside=inside)
        return value if inside is None else k.build.select(inside, value, k.splat(_NEVER))

    def _vectors(self, width: Value) -> Iterator[tuple[Value, Value | None, int]]:
        """A row's columns: several vectors at a time, then the rest, and the last ones with what is inside the row."""
        k = self.k
        whole = k.times(k.build.sdiv(width, k.number(k.lanes)), k.lanes)
        for column, number in k.each_vector(whole):
            yield column, None, number
        with k.where(k.build.icmp_signed("<", whole, width)):
            left = k.splat(k.build.trunc(k.build.sub(width, whole), I32))
            yield whole, k.build.icmp_signed("<", ir.Constant(k.ints, list(range(k.lanes))), left), 0
