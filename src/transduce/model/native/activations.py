"""Emit kernels for the activation functions of feed-forward networks, other than ReLU.

The GEMM epilogue applies ReLU itself. Legend: N rows, F inner width of the feed-forward network.
"""

import math
from collections.abc import Callable

from transduce.model.native.emit import F32, I64, POINTER, Emitter, Value
from transduce.model.native.rows import exponential

# Coefficients of erfc(u) e^(u²), u ≥ 0, as a polynomial in t = 1 / (1 + p u); the absolute error is at most 1.5 · 10^-7
# (Abramowitz and Stegun 1964, 7.1.26).
_ERFC_P = 0.3275911
_ERFC = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_GATED_BY = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh", "reglu": "relu"}


def write_activation(k: Emitter, name: str) -> str:
    """Emit the function `activate_…(x, N, F, out, thread, threads)`, unless the module has it, and return its name.

    The function applies the activation to rows x (N, F) and writes out (N, F); out may be x. For a gated activation
    (such as SwiGLU) x is (N, 2 F), each row's gate before its value, and out must not overlap x. Threads split the
    columns as the GEMM that writes x does, so each thread finds its columns in its cache.
    """
    function = f"activate_{name.replace('-', '_')}"
    if k.has(function):
        return function
    is_gate = name in _GATED_BY
    activation = _ACTIVATIONS[_GATED_BY.get(name, name)]
    with k.function(function, POINTER, I64, I64, POINTER, I64, I64) as (x, rows, width, out, *share):
        first, last = (k.times(vector, k.lanes) for vector in k.share(k.build.sdiv(width, k.number(k.lanes)), *share))
        with k.loop(0, rows) as row:
            source = k.at(x, k.times(row, width, 2 if is_gate else 1))
            target = k.at(out, k.times(row, width))
            with k.loop(first, last, k.lanes) as column:
                value = activation(k, k.load_floats(source, column))
                if is_gate:
                    value = k.build.fmul(value, k.load_floats(source, k.sum_of(width, column)))
                k.store(value, k.at(target, column))
    return function


def write_scaling(k: Emitter) -> None:
    """Emit `scale(x, N, D, factor, thread, threads)`, which multiplies rows x (N, D) by a float32 factor in place."""
    with k.function("scale", POINTER, I64, I64, F32, I64, I64) as (x, rows, width, factor, *share):
        first, last = (k.times(row, width) for row in k.share(rows, *share))
        with k.loop(first, last, k.lanes) as index:
            k.store(k.build.fmul(k.load_floats(x, index), k.splat(factor)), k.at(x, index))


def _relu(k: Emitter, x: Value) -> Value:
    """Emit max(x, 0)."""
    return k.greater(x, k.splat(0.0))


def _silu(k: Emitter, x: Value) -> Value:
    """Emit x · sigmoid(x)."""
    return _times_sigmoid(k, x, x)


def _gelu_tanh(k: Emitter, x: Value) -> Value:
    """Emit x / 2 · (1 + tanh y) = x · sigmoid(2 y) with y = √(2 / π) (x + 0.044715 x³)."""
    factor = 2.0 * math.sqrt(2.0 / math.pi)
    cubic = k.madd(k.build.fmul(x, x), k.splat(0.044715 * factor), k.splat(factor))
    return _times_sigmoid(k, x, k.build.fmul(x, cubic))


def _gelu(k: Emitter, x: Value) -> Value:
    """Emit x Φ(x), computed through erfc on the side where it is small."""
    u = k.build.fmul(_absolute(k, x), k.splat(math.sqrt(0.5)))
    t = k.build.fdiv(k.splat(1.0), k.madd(u, k.splat(_ERFC_P), k.splat(1.0)))
    series = k.splat(_ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        series = k.madd(series, t, k.splat(coefficient))
    tail = exponential(k, k.build.fmul(u, k.build.fneg(u)))
    small = k.build.fmul(k.build.fmul(series, t), k.build.fmul(tail, k.splat(0.5)))
    is_positive = k.build.fcmp_ordered(">", x, k.splat(0.0))
    return k.build.fmul(x, k.build.select(is_positive, k.build.fsub(k.splat(1.0), small), small))


def _times_sigmoid(k: Emitter, x: Value, z: Value) -> Value:
    """Emit x / (1 + e^-z), using only exponentials of non-positive numbers, which cannot overflow."""
    power = exponential(k, k.build.fneg(_absolute(k, z)))
    inverse = k.build.fdiv(k.splat(1.0), k.build.fadd(power, k.splat(1.0)))
    is_positive = k.build.fcmp_ordered(">", z, k.splat(0.0))
    return k.build.fmul(x, k.build.select(is_positive, inverse, k.build.fmul(power, inverse)))


def _absolute(k: Emitter, x: Value) -> Value:
    """Emit |x|."""
    return k.intrinsic(f"llvm.fabs.v{k.lanes}f32", k.floats, x)


_ACTIVATIONS: dict[str, Callable[[Emitter, Value], Value]] = {
    "relu": _relu,
    "gelu": _gelu,
    "gelu-tanh": _gelu_tanh,
    "silu": _silu,
}
