"""Update parameters in one flat vector, a block of elements per program."""

import triton
import triton.language as tl


@triton.jit
def _finish_update(
    master, offsets, exist, values, gradient, average, working, kept,
    HAS_AVERAGE: tl.constexpr, HAS_WORKING: tl.constexpr,
):  # fmt: skip
    """Store new parameters, zero the gradient, and refresh the moving average and the bfloat16 copy."""
    tl.store(master + offsets, values, mask=exist)
    tl.store(gradient + offsets, tl.zeros_like(values), mask=exist)
    if HAS_AVERAGE:
        old_average = tl.load(average + offsets, mask=exist)
        tl.store(average + offsets, old_average + (values - old_average) * (1.0 - kept), mask=exist)
    if HAS_WORKING:
        tl.store(working + offsets, values.to(working.dtype.element_ty), mask=exist)


@triton.jit
def adam(
    master, gradient, average, working, mean, square, count,
    factor, beta1, beta2, rate, inverse_root, epsilon, kept,
    HAS_AVERAGE: tl.constexpr, HAS_WORKING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update the moments and parameters of a block by Adam."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exist = offsets < count
    slope = tl.load(gradient + offsets, mask=exist, other=0.0) * factor
    first = tl.load(mean + offsets, mask=exist, other=0.0)
    first += (slope - first) * (1.0 - beta1)
    second = tl.load(square + offsets, mask=exist, other=0.0) * beta2 + slope * slope * (1.0 - beta2)
    tl.store(mean + offsets, first, mask=exist)
    tl.store(square + offsets, second, mask=exist)
    values = tl.load(master + offsets, mask=exist, other=0.0)
    values -= rate * first / (tl.sqrt(second) * inverse_root + epsilon)
    _finish_update(master, offsets, exist, values, gradient, average, working, kept, HAS_AVERAGE, HAS_WORKING)


@triton.jit
def follow(
    master, gradient, average, working, move, count, rate, kept,
    HAS_MOVE: tl.constexpr, HAS_AVERAGE: tl.constexpr, HAS_WORKING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Subtract rate × move from the parameters of a block, if there is a move, and refresh what depends on them."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exist = offsets < count
    values = tl.load(master + offsets, mask=exist, other=0.0)
    if HAS_MOVE:
        values -= rate * tl.load(move + offsets, mask=exist, other=0.0).to(tl.float32)
    _finish_update(master, offsets, exist, values, gradient, average, working, kept, HAS_AVERAGE, HAS_WORKING)


@triton.jit
def take_momentum(gradient, momentum, out, count, factor, decay, BLOCK: tl.constexpr):
    """Update Nesterov momentum, and store the decayed combination of momentum and gradient."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exist = offsets < count
    slope = tl.load(gradient + offsets, mask=exist, other=0.0) * factor
    new_momentum = tl.load(momentum + offsets, mask=exist, other=0.0)
    new_momentum += (slope - new_momentum) * (1.0 - decay)
    tl.store(momentum + offsets, new_momentum, mask=exist)
    tl.store(out + offsets, (slope + (new_momentum - slope) * decay).to(out.dtype.element_ty), mask=exist)
