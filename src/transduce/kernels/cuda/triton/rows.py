"""Define Triton kernels for row-wise operations: dropout, sums, norms, softmax, embeddings and optimizer updates."""

import triton
import triton.language as tl


@triton.jit
def _hash(x, seed):
    """Return a 32-bit hash of x and a 64-bit seed, as random bits; every output bit depends on all input bits."""
    x = x ^ seed.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16) ^ (seed >> 32).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit(do_not_specialize=["seed"])
def drop(
    residual, x, out, seed, count, drop_256ths, scale,
    HAS_RESIDUAL: tl.constexpr, SEED_IS_ADDRESS: tl.constexpr, EIGHTS: tl.constexpr,
):  # fmt: skip
    """Write residual + dropout(x) to `out`; each program processes EIGHTS groups of 8 elements.

    An element is dropped if its random byte is below `drop_256ths`. The 8 bytes of a group are from two 32-bit hashes.
    If SEED_IS_ADDRESS, `seed` is the address of the seed. Without HAS_RESIDUAL, nothing is added.
    """
    if SEED_IS_ADDRESS:
        seed = tl.load(seed)
    eighths = tl.program_id(0) * EIGHTS + tl.arange(0, EIGHTS)
    lanes = tl.arange(0, 8)[None, :]
    offsets = eighths[:, None].to(tl.int64) * 8 + lanes
    exist = offsets < count
    words = tl.where(
        lanes < 4, _hash(eighths.to(tl.uint32) * 2, seed)[:, None], _hash(eighths.to(tl.uint32) * 2 + 1, seed)[:, None]
    )
    is_kept = ((words >> ((lanes & 3) * 8).to(tl.uint32)) & 255).to(tl.int32) >= drop_256ths
    values = tl.where(is_kept, tl.load(x + offsets, mask=exist, other=0.0).to(tl.float32) * scale, 0.0)
    if HAS_RESIDUAL:
        values += tl.load(residual + offsets, mask=exist, other=0.0).to(tl.float32)
    tl.store(out + offsets, values.to(out.dtype.element_ty), mask=exist)


@triton.jit
def sum_rows(
    x, kept, out, total, count, width, rows_each,
    MASKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the sum of the rows of x to `total`, float32; a program sums BLOCK columns of `rows_each` rows.

    If MASKED, elements count as zero where `kept` is not positive, and the masked rows are stored to `out`.
    """
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(1) * rows_each
    sums = tl.zeros((ROWS, BLOCK), tl.float32)  # reduced across threads only at the end
    for start in range(first, tl.minimum(first + rows_each, count), ROWS):
        rows = start + tl.arange(0, ROWS)
        exist = (rows < count)[:, None] & (lanes < width)[None, :]
        offsets = rows[:, None].to(tl.int64) * width + lanes[None, :]
        values = tl.load(x + offsets, mask=exist, other=0.0)
        if MASKED:
            is_open = tl.load(kept + offsets, mask=exist, other=0.0).to(tl.float32) > 0
            values = tl.where(is_open, values, 0.0).to(values.dtype)
            tl.store(out + offsets, values, mask=exist)
        sums += values.to(tl.float32)
    tl.atomic_add(total + lanes, tl.sum(sums, axis=0), mask=lanes < width)


@triton.jit
def add_rows(total, ids, part, factor, frozen_row, width, BLOCK: tl.constexpr):
    """Add factor × row n of `part` to row ids[n] of `total`, except to the frozen row (that of padding; -1: none).

    A program adds BLOCK columns of one row.
    """
    row, lanes = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target_row = tl.load(ids + row)
    values = tl.load(part + row.to(tl.int64) * width + lanes, mask=lanes < width, other=0.0).to(tl.float32)
    values *= tl.where(target_row == frozen_row, 0.0, factor)
    tl.atomic_add(total + target_row * width + lanes, values, mask=lanes < width)


@triton.jit
def softmax_(logits, normalizers, width, BLOCK: tl.constexpr):
    """Replace one row of logits per program by its softmax, in place; store the row's log-sum-exp in `normalizers`."""
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * width
    lanes = tl.arange(0, BLOCK)
    greatest = tl.full((BLOCK,), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, width, BLOCK):
        values = tl.load(start + first + lanes, mask=first + lanes < width, other=float("-inf")).to(tl.float32)
        more = tl.maximum(greatest, values)
        # Lanes that have seen only -inf would give NaN.
        sums = tl.where(more == float("-inf"), 0.0, sums * tl.exp(greatest - more) + tl.exp(values - more))
        greatest = more
    top = tl.max(greatest, axis=0)
    normalizer = top + tl.log(tl.sum(tl.where(greatest == float("-inf"), 0.0, sums * tl.exp(greatest - top)), axis=0))
    tl.store(normalizers + row, normalizer)
    for first in range(0, width, BLOCK):
        inside = first + lanes < width
        values = tl.load(start + first + lanes, mask=inside, other=float("-inf")).to(tl.float32)
        tl.store(start + first + lanes, tl.exp(values - normalizer).to(logits.dtype.element_ty), mask=inside)


# --- LayerNorm and RMSNorm with their gradients ---
# A program holds whole rows.


@triton.jit
def norm(
    x, weight, bias, out, means, roots, count, width, epsilon,
    CENTERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the norm of ROWS rows of x per program to `out`; LayerNorm if CENTERED, else RMSNorm.

    For the backward pass, LayerNorm stores each row's mean in `means`, and the inverse standard deviation in `roots`.
    RMSNorm stores only the inverse root mean square in `roots`.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < width
    exist = (rows < count)[:, None] & inside[None, :]
    offsets = rows[:, None].to(tl.int64) * width + lanes[None, :]
    values = tl.load(x + offsets, mask=exist, other=0.0).to(tl.float32)
    if CENTERED:
        mean = tl.sum(values, axis=1) / width
        values = tl.where(exist, values - mean[:, None], 0.0)
        tl.store(means + rows, mean, mask=rows < count)
    root = 1.0 / tl.sqrt(tl.sum(values * values, axis=1) / width + epsilon)
    tl.store(roots + rows, root, mask=rows < count)
    y = values * root[:, None] * tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
    if CENTERED:
        y += tl.load(bias + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(out + offsets, y.to(out.dtype.element_ty), mask=exist)


@triton.jit
def norm_backward(
    x, weight, grad_out, grad_kept, means, roots, grad_x, grad_weight, grad_bias, count, width,
    CENTERED: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of a norm's input x to `grad_x`, and add the weight and bias gradients to their sums.

    Each program processes several blocks of rows, and adds to the weight and bias sums once, at its end. If KEPT,
    `grad_kept` is added to the gradient of x. The norm is LayerNorm if CENTERED, else RMSNorm, which has no bias.
    """
    lanes = tl.arange(0, BLOCK)
    inside = lanes < width
    factors = tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
    weight_sum = tl.zeros((ROWS, BLOCK), tl.float32)
    bias_sum = tl.zeros((ROWS, BLOCK), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(count, ROWS), tl.num_programs(0)):
        rows = block * ROWS + tl.arange(0, ROWS)
        exist = (rows < count)[:, None] & inside[None, :]
        offsets = rows[:, None].to(tl.int64) * width + lanes[None, :]
        values = tl.load(x + offsets, mask=exist, other=0.0).to(tl.float32)
        grad_y = tl.load(grad_out + offsets, mask=exist, other=0.0).to(tl.float32)
        root = tl.load(roots + rows, mask=rows < count, other=0.0)[:, None]
        if CENTERED:
            values = values - tl.load(means + rows, mask=rows < count, other=0.0)[:, None]
        unit = tl.where(exist, values * root, 0.0)
        weight_sum += grad_y * unit
        grad_unit = grad_y * factors
        change = grad_unit - unit * (tl.sum(grad_unit * unit, axis=1) / width)[:, None]
        if CENTERED:
            bias_sum += grad_y
            change -= (tl.sum(grad_unit, axis=1) / width)[:, None]
        change *= root
        if KEPT:
            change += tl.load(grad_kept + offsets, mask=exist, other=0.0).to(tl.float32)
        tl.store(grad_x + offsets, change.to(grad_x.dtype.element_ty), mask=exist)
    tl.atomic_add(grad_weight + lanes, tl.sum(weight_sum, axis=0), mask=inside)
    if CENTERED:
        tl.atomic_add(grad_bias + lanes, tl.sum(bias_sum, axis=0), mask=inside)


@triton.jit
def add_and_norm(
    x, y, weight, bias, total, out, count, width, epsilon,
    CENTERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write x + y to `total` and the normalized sum to `out`, ROWS rows per program.

    The norm is LayerNorm if CENTERED, else RMSNorm.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < width
    exist = (rows < count)[:, None] & inside[None, :]
    offsets = rows[:, None].to(tl.int64) * width + lanes[None, :]
    values = tl.load(x + offsets, mask=exist, other=0.0).to(tl.float32)
    values += tl.load(y + offsets, mask=exist, other=0.0).to(tl.float32)
    rounded = values.to(total.dtype.element_ty)
    tl.store(total + offsets, rounded, mask=exist)
    values = rounded.to(tl.float32)
    if CENTERED:
        values = tl.where(exist, values - (tl.sum(values, axis=1) / width)[:, None], 0.0)
    root = 1.0 / tl.sqrt(tl.sum(values * values, axis=1) / width + epsilon)
    values = values * root[:, None] * tl.load(weight + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
    if CENTERED:
        values += tl.load(bias + lanes, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(out + offsets, values.to(out.dtype.element_ty), mask=exist)


# --- embedding of the newest tokens ---


@triton.jit
def embed(
    tokens, weight, table, position, out, scale, offset, width,
    ADDS_POSITION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write scale × the embedding of one token per program to `out`; if ADDS_POSITION, add the position encoding.

    The embedding is rounded before the addition, as in the model's own module.
    """
    row, lanes = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = lanes < width
    x = tl.load(weight + tl.load(tokens + row) * width + lanes, mask=inside, other=0.0).to(tl.float32) * scale
    if ADDS_POSITION:
        encoding = table + (tl.load(position) + offset) * width + lanes
        x = x.to(out.dtype.element_ty).to(tl.float32) + tl.load(encoding, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + lanes, x.to(out.dtype.element_ty), mask=inside)


# --- optimizer updates ---
# A program updates a block of elements of one flat vector.


@triton.jit
def _finish_update(
    master, offsets, exist, values, gradient, average, working, kept,
    HAS_AVERAGE: tl.constexpr, HAS_WORKING: tl.constexpr,
):  # fmt: skip
    """Store a block of new parameters, zero the gradient, and refresh the moving average and the bfloat16 copy.

    There is a moving average only if HAS_AVERAGE, and a bfloat16 copy only if HAS_WORKING.
    """
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
    """Update the moments and parameters of a block of BLOCK elements by Adam, and zero the gradient.

    The moving average and the bfloat16 copy are refreshed, if there are any.
    """
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
def apply_update(
    master, gradient, average, working, direction, count, rate, kept,
    HAS_AVERAGE: tl.constexpr, HAS_WORKING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Subtract rate × direction from a block of master weights, and zero the gradient.

    The moving average and the bfloat16 copy are refreshed, if there are any.
    """
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exist = offsets < count
    values = tl.load(master + offsets, mask=exist, other=0.0)
    values -= rate * tl.load(direction + offsets, mask=exist, other=0.0).to(tl.float32)
    _finish_update(master, offsets, exist, values, gradient, average, working, kept, HAS_AVERAGE, HAS_WORKING)


@triton.jit
def update_momentum(gradient, momentum, out, count, factor, decay, BLOCK: tl.constexpr):
    """Update Nesterov momentum of a block of BLOCK elements, and store the update's direction in `out`.

    The gradient is first multiplied by `factor`. The new momentum is decay × old momentum + (1 - decay) × gradient. The
    direction is decay × new momentum + (1 - decay) × gradient.
    """
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exist = offsets < count
    slope = tl.load(gradient + offsets, mask=exist, other=0.0) * factor
    new_momentum = tl.load(momentum + offsets, mask=exist, other=0.0)
    new_momentum += (slope - new_momentum) * (1.0 - decay)
    tl.store(momentum + offsets, new_momentum, mask=exist)
    tl.store(out + offsets, (slope + (new_momentum - slope) * decay).to(out.dtype.element_ty), mask=exist)
