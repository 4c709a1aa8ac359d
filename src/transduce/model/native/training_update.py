"""An update of all parameters in one pass: Adam (section 5.3), the running average, and what the model computes with.

Operations one after another read and write each vector from memory, as a model's parameters are more than a cache
holds: some 70 bytes a parameter, of which 42 are left in one pass.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, I16, I32, Emitter, Value
from transduce.model.native.engine import program


class UpdatePlaces(NamedTuple):
    """The numbers of `adam` and `follow`: addresses of float32 vectors, where nothing else is said."""

    master: Any
    gradient: Any
    """Zero afterwards."""
    average: Any
    """0: there is none."""
    working: Any
    """bfloat16: what the masters are rounded to. 0: there is none."""
    count: Any
    """A number: elements."""
    kept: Any
    """A number, the bits of a float32, as all below: how much of the average stays."""
    first: Any
    """The moments; for `adam` alone, as the next."""
    second: Any
    factor: Any
    """Of the gradient, before anything else."""
    beta1: Any
    beta2: Any
    rate: Any
    """The learning rate over 1 - β1^t."""
    inverse_root: Any
    """1 / √(1 - β2^t)."""
    epsilon: Any
    move: Any
    """Of the masters, times the rate; 0: none. For `follow` alone, as all below."""
    has_narrow_move: Any
    """A number: not 0 if that is bfloat16."""
    shrink: Any
    """What masters that move are multiplied by before."""


class MomentumPlaces(NamedTuple):
    """The numbers of `momentum`: addresses of float32 vectors, where nothing else is said."""

    gradient: Any
    momentum: Any
    out: Any
    """float32 or bfloat16."""
    is_narrow: Any
    """A number: not 0 for bfloat16."""
    count: Any
    """A number: elements."""
    factor: Any
    """A number, the bits of a float32, as the next: of the gradient, before anything else."""
    decay: Any


class UpdateWriter:
    """Writes the programs `adam`, and `momentum` and `follow` for parameters that are updated otherwise."""

    names = ("adam", "follow", "momentum")

    def __init__(self, k: Emitter) -> None:
        self.k = k

    def write(self) -> None:
        """All."""
        k = self.k
        for name, work in (("adam", self._adam), ("follow", self._take)):
            with program(k, name, len(UpdatePlaces._fields)) as (numbers, thread, threads):
                given = UpdatePlaces(*numbers)
                for number, inside in self._each_vector(given.count, thread, threads):
                    self._follow(given, number, inside, work)
        with program(k, "momentum", len(MomentumPlaces._fields)) as (numbers, thread, threads):
            own = MomentumPlaces(*numbers)
            for number, inside in self._each_vector(own.count, thread, threads):
                self._momentum(own, number, inside)

    def _each_vector(self, count: Value, thread: Value, threads: Value) -> Iterator[tuple[Value, Value | None]]:
        """The thread's share of elements, a vector at a time; and which of a last one are among them."""
        k = self.k
        whole = k.build.sdiv(count, k.number(k.lanes))
        first, last = k.share(whole, thread, threads)
        with k.loop(k.times(first, k.lanes), k.times(last, k.lanes), k.lanes) as number:
            yield number, None
        rest = k.build.sub(count, k.times(whole, k.lanes))
        is_last = k.build.icmp_signed("==", k.sum_of(thread, 1), threads)
        with k.where(k.build.and_(is_last, k.build.icmp_signed(">", rest, k.number(0)))):
            lanes = ir.Constant(k.ints, list(range(k.lanes)))
            yield k.times(whole, k.lanes), k.build.icmp_signed("<", lanes, k.splat(k.build.trunc(rest, I32)))

    def _momentum(self, given: "MomentumPlaces", number: Value, inside: Value | None) -> None:
        """Nesterov's: the gradient moves the momentum, and the momentum the gradient."""
        k = self.k
        gradient = k.build.fmul(self._get(given.gradient, number, inside), self._real(given.factor))
        momentum = self._mean(given.momentum, given.decay, gradient, number, inside)
        ahead = k.madd(self._real(given.decay), k.build.fsub(momentum, gradient), gradient)
        with k.build.if_else(k.is_given(given.is_narrow)) as (narrow, wide):
            with narrow:
                self._put(ahead, given.out, number, inside, I16)
            with wide:
                self._put(ahead, given.out, number, inside)

    def _follow(
        self,
        given: UpdatePlaces,
        number: Value,
        inside: Value | None,
        work: Callable[[UpdatePlaces, Value, Value | None], Value],
    ) -> None:
        """From the new masters on."""
        k = self.k
        master = work(given, number, inside)
        self._put(k.splat(0.0), given.gradient, number, inside)
        with k.where(k.is_given(given.average)):
            average = self._get(given.average, number, inside)
            kept = self._real(given.kept)
            self._put(k.madd(kept, k.build.fsub(average, master), master), given.average, number, inside)
        with k.where(k.is_given(given.working)):
            self._put(master, given.working, number, inside, I16)

    def _take(self, given: UpdatePlaces, number: Value, inside: Value | None) -> Value:
        """Masters times a number, less a move."""
        k = self.k
        known = self._get(given.master, number, inside)
        master, shrunk = k.variable(known), k.build.fmul(known, self._real(given.shrink))
        rate = k.build.fsub(k.splat(0.0), self._real(given.rate))
        has_move, is_narrow = (
            k.build.icmp_signed("!=", each, k.number(0)) for each in (given.move, given.has_narrow_move)
        )
        with k.where(has_move), k.build.if_else(is_narrow) as (narrow, wide):
            for branch, kind in ((narrow, I16), (wide, F32)):
                with branch:
                    move = k.load_wide(k.place(given.move), number, kind, inside=inside)
                    moved = k.madd(rate, move, shrunk)
                    k.store(moved, master)
                    self._put(moved, given.master, number, inside)
        return k.get(master, rate)

    def _adam(self, given: UpdatePlaces, number: Value, inside: Value | None) -> Value:
        k = self.k
        gradient = k.build.fmul(self._get(given.gradient, number, inside), self._real(given.factor))
        first = self._mean(given.first, given.beta1, gradient, number, inside)
        second = self._mean(given.second, given.beta2, k.build.fmul(gradient, gradient), number, inside)
        root = k.intrinsic(f"llvm.sqrt.v{k.lanes}f32", k.floats, second)
        below = k.madd(root, self._real(given.inverse_root), self._real(given.epsilon))
        move = k.build.fdiv(k.build.fmul(first, self._real(given.rate)), below)
        master = k.build.fsub(self._get(given.master, number, inside), move)
        self._put(master, given.master, number, inside)
        return master

    def _mean(self, address: Value, beta: Value, new: Value, number: Value, inside: Value | None) -> Value:
        """β of the moment before and 1 - β of what is new."""
        k = self.k
        before = self._get(address, number, inside)
        moment = k.madd(self._real(beta), k.build.fsub(before, new), new)
        self._put(moment, address, number, inside)
        return moment

    def _real(self, bits: Value) -> Value:
        """A vector of the float32 of these bits."""
        k = self.k
        return k.splat(k.float_of(bits))

    def _get(self, address: Value, number: Value, inside: Value | None) -> Value:
        return self.k.load_wide(self.k.place(address), number, F32, inside=inside)

    def _put(self, value: Value, address: Value, number: Value, inside: Value | None, kind: Any = F32) -> None:
        self.k.store_narrow(value, self.k.place(address), number, kind, inside=inside)
