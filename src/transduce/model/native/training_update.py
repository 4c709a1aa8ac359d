"""An update of all parameters in one pass: Adam (section 5.3), the running average, and what the model computes with.

Operations one after another read and write each vector from memory, as a model's parameters are more than a cache
holds: some 70 bytes a parameter, of which 42 are left in one pass.
"""

from collections.abc import Callable
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


class UpdateWriter:
    """Writes the programs `adam`, and `follow` for parameters that were updated otherwise."""

    names = ("adam", "follow")

    def __init__(self, k: Emitter) -> None:
        self.k = k

    def write(self) -> None:
        """Both."""
        k = self.k
        for name, work in (("adam", self._adam), ("follow", self._take)):
            with program(k, name, len(UpdatePlaces._fields)) as (numbers, thread, threads):
                given = UpdatePlaces(*numbers)
                whole = k.build.sdiv(given.count, k.number(k.lanes))
                first, last = k.share(whole, thread, threads)
                with k.loop(k.times(first, k.lanes), k.times(last, k.lanes), k.lanes) as number:
                    self._follow(given, number, None, work)
                rest = k.build.sub(given.count, k.times(whole, k.lanes))
                is_last = k.build.icmp_signed("==", k.sum_of(thread, 1), threads)
                with k.where(k.build.and_(is_last, k.build.icmp_signed(">", rest, k.number(0)))):
                    lanes = ir.Constant(k.ints, list(range(k.lanes)))
                    inside = k.build.icmp_signed("<", lanes, k.splat(k.build.trunc(rest, I32)))
                    self._follow(given, k.times(whole, k.lanes), inside, work)

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
        with k.where(k.build.icmp_signed("!=", given.average, k.number(0))):
            average = self._get(given.average, number, inside)
            kept = self._real(given.kept)
            self._put(k.madd(kept, k.build.fsub(average, master), master), given.average, number, inside)
        with k.where(k.build.icmp_signed("!=", given.working, k.number(0))):
            self._put(master, given.working, number, inside, I16)

    def _take(self, given: UpdatePlaces, number: Value, inside: Value | None) -> Value:
        """Masters as they are."""
        return self._get(given.master, number, inside)

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
        return k.splat(k.build.bitcast(k.build.trunc(bits, I32), F32))

    def _get(self, address: Value, number: Value, inside: Value | None) -> Value:
        return self.k.load_wide(self.k.place(address), number, F32, inside=inside)

    def _put(self, value: Value, address: Value, number: Value, inside: Value | None, kind: Any = F32) -> None:
        self.k.store_narrow(value, self.k.place(address), number, kind, inside=inside)
