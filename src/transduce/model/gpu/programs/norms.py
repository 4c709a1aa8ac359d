"""Compute LayerNorm and RMSNorm and their gradients, with whole rows in a program."""

import triton
import triton.language as tl


@triton.jit
def norm(
    x, weight, bias, out, means, roots, count, width, epsilon,
    CENTERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the norm of ROWS rows per program; LayerNorm if CENTERED, else RMSNorm.

    Stores each row's mean and inverse standard deviation for the backward pass.
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
def norm_back(
    x, weight, by_out, by_kept, means, roots, by_x, by_weight, by_bias, count, width,
    CENTERED: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x, and add the weight and bias gradients to their sums at the end.

    Programs take blocks of rows in turns. With KEPT, `by_kept` is added to the gradient of x.
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
        by_y = tl.load(by_out + offsets, mask=exist, other=0.0).to(tl.float32)
        root = tl.load(roots + rows, mask=rows < count, other=0.0)[:, None]
        if CENTERED:
            values = values - tl.load(means + rows, mask=rows < count, other=0.0)[:, None]
        unit = tl.where(exist, values * root, 0.0)
        weight_sum += by_y * unit
        by_unit = by_y * factors
        change = by_unit - unit * (tl.sum(by_unit * unit, axis=1) / width)[:, None]
        if CENTERED:
            bias_sum += by_y
            change -= (tl.sum(by_unit, axis=1) / width)[:, None]
        change *= root
        if KEPT:
            change += tl.load(by_kept + offsets, mask=exist, other=0.0).to(tl.float32)
        tl.store(by_x + offsets, change.to(by_x.dtype.element_ty), mask=exist)
    tl.atomic_add(by_weight + lanes, tl.sum(weight_sum, axis=0), mask=inside)
    if CENTERED:
        tl.atomic_add(by_bias + lanes, tl.sum(bias_sum, axis=0), mask=inside)


@triton.jit
def add_and_norm(
    x, y, weight, bias, total, out, count, width, epsilon,
    CENTERED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute x + y and its norm, for ROWS rows per program; LayerNorm if CENTERED, else RMSNorm."""
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
