"""Kernels of what stands inside the feed-forward network, where it is not ReLU, which products do as they write.

Legend: N rows, F inner width.
"""

import math
from collections.abc import Callable

from transduce.model.native.emit import F32, I64, POINTER, Emitter, Value
from transduce.model.native.rows import exponential

# Of erfc(u) e^(u²) for u ≥ 0 in t = 1 / (1 + p u), to 1.5 · 10^-7: Abramowitz and Stegun 1964, 7.1.26.
_ERFC_P = 0.3275911
_ERFC = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_GATED_BY = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh", "reglu": "relu"}


def write_activation(k: Emitter, name: str) -> str:
    """`activate_…(x, N, F, out, thread, threads)`: rows (N, F) by the activation of this name; out may be x.

    Of a gate, x is (N, 2 F), a row's gate before what it is multiplied by, and out (N, F) stands elsewhere. Columns are
    shared out as those of the product before it.

    Returns:
        The function's name; it is written where there is none.
    """
    function = f"activate_{name.replace('-', '_')}"
    if k.has(function):
        return function
    is_gate = name in _GATED_BY
    activation = _ACTIVATIONS[_GATED_BY.get(name, name)]
    with k.function(function, POINTER, I64, I64, POINTER, I64, I64) as (x, rows, width, out, *share):
        first, last = (k.times(vector, k.lanes) for vector in k.share(k.build.sdiv(width, k.number(k.lanes)), *share))
        with k.loop(0, rows) as row:
            here = k.at(x, k.times(row, width, 2 if is_gate else 1))
            there = k.at(out, k.times(row, width))
            with k.loop(first, last, k.lanes) as column:
                value = activation(k, k.load_floats(here, column))
                if is_gate:
                    value = k.build.fmul(value, k.load_floats(here, k.sum_of(width, column)))
                k.store(value, k.at(there, column))
    return function


def write_scaling(k: Emitter) -> None:
    """`scale(x, N, D, factor, thread, threads)`: rows (N, D) times a number, in place."""
    with k.function("scale", POINTER, I64, I64, F32, I64, I64) as (x, rows, width, factor, *share):
        first, last = (k.times(row, width) for row in k.share(rows, *share))
        with k.loop(first, last, k.lanes) as place:
            k.store(k.build.fmul(k.load_floats(x, place), k.splat(factor)), k.at(x, place))


def _relu(k: Emitter, x: Value) -> Value:
    return k.greater(x, k.splat(0.0))


def _silu(k: Emitter, x: Value) -> Value:
    return _times_sigmoid(k, x, x)


def _gelu_tanh(k: Emitter, x: Value) -> Value:
    """x / 2 · (1 + tanh y), which is x times the sigmoid of 2 y; y = √(2 / π) (x + 0.044715 x³)."""
    factor = 2.0 * math.sqrt(2.0 / math.pi)
    cubic = k.madd(k.build.fmul(x, x), k.splat(0.044715 * factor), k.splat(factor))
    return _times_sigmoid(k, x, k.build.fmul(x, cubic))


def _gelu(k: Emitter, x: Value) -> Value:
    """x Φ(x), by the complement of the error function on the side where it is small."""
    u = k.build.fmul(_size(k, x), k.splat(math.sqrt(0.5)))
    t = k.build.fdiv(k.splat(1.0), k.madd(u, k.splat(_ERFC_P), k.splat(1.0)))
    series = k.splat(_ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        series = k.madd(series, t, k.splat(coefficient))
    tail = exponential(k, k.build.fmul(u, k.build.fneg(u)))
    small = k.build.fmul(k.build.fmul(series, t), k.build.fmul(tail, k.splat(0.5)))
    is_positive = k.build.fcmp_ordered(">", x, k.splat(0.0))
    return k.build.fmul(x, k.build.select(is_positive, k.build.fsub(k.splat(1.0), small), small))


def _times_sigmoid(k: Emitter, x: Value, z: Value) -> Value:
    """x / (1 + e^-z), with no power that is greater than 1."""
    power = exponential(k, k.build.fneg(_size(k, z)))
    inverse = k.build.fdiv(k.splat(1.0), k.build.fadd(power, k.splat(1.0)))
    is_positive = k.build.fcmp_ordered(">", z, k.splat(0.0))
    return k.build.fmul(x, k.build.select(is_positive, inverse, k.build.fmul(power, inverse)))


def _size(k: Emitter, x: Value) -> Value:
    return k.intrinsic(f"llvm.fabs.v{k.lanes}f32", k.floats, x)


_ACTIVATIONS: dict[str, Callable[[Emitter, Value], Value]] = {
    "relu": _relu,
    "gelu": _gelu,
    "gelu-tanh": _gelu_tanh,
    "silu": _silu,
}
