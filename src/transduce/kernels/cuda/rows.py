"""Run row-wise operations on a GPU by Triton kernels: dropout, norms, sums over rows, softmax, and a step's embedding.

Each kernel reads its inputs once and writes its result once: memory bandwidth limits such operations.

Legend: N rows, D columns, V vocabulary size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from transduce.kernels.cuda import ceil_div, power_of_2
from transduce.kernels.cuda.triton import rows as triton_kernels
from transduce.kernels.training_executor import NormInputs, NormKernels, NormNode
from transduce.model.embedding import Embedding
from transduce.model.positions import LearnedPositions, NoPositions, SinusoidalPositions

# --- dropout seeds ---
# The CPU's generator is seeded for every batch. A graph reads its seeds from a buffer, which is filled from that
# generator before each replay.


MAX_SEEDS = 1024
"""The maximum number of dropout seeds per batch when losses are recorded as CUDA graphs."""


class _Buffer:
    """A namespace for the process-wide variable `remaining`.

    The variable is an iterator over the dropout seeds in a buffer on the GPU. If it is None, there is no buffer, and
    each seed is drawn when it is needed.
    """

    remaining: Iterator[Tensor] | None = None


def draw_seeds(count: int) -> Tensor:
    """Draw `count` dropout seeds, an int64 tensor on the CPU.

    The sequence of seeds is the same however many are drawn at once.
    """
    return torch.empty(count, dtype=torch.int64, device="cpu").random_()


def next_seed() -> int | Tensor:
    """Return a new dropout seed: an int, or in the body of `seeds_from_buffer` a tensor (1,).

    The tensor is a part of the buffer on the GPU, from which a CUDA graph reads the seed at each replay. Raises
    RuntimeError if the buffer has no more seeds: a recorded batch has at most `MAX_SEEDS` dropouts.
    """
    if _Buffer.remaining is None:
        return int(draw_seeds(1))
    seed = next(_Buffer.remaining, None)
    if seed is None:
        raise RuntimeError(f"there are seeds for {MAX_SEEDS} dropouts, but the model has more")
    return seed


@contextmanager
def seeds_from_buffer(buffer: Tensor) -> Iterator[None]:
    """Let `next_seed` take dropout seeds from a buffer (N,) on the GPU, one after another, in the body of `with`."""
    previous, _Buffer.remaining = _Buffer.remaining, iter(buffer.split(1))
    try:
        yield
    finally:
        _Buffer.remaining = previous


# --- embedding of a decoding step ---
# Legend: B sentences, W hypotheses of each, D model width, V vocabulary size.


def embed_step(embedding: Embedding, tokens: Tensor, weight: Tensor, position: Tensor, capacity: int) -> Tensor:
    """Return the embeddings of tokens that are all at one position, as in a decoding step of a batch.

    Args:
        embedding: the model's embedding, which computes the result if the kernel does not support it.
        tokens: token ids, (B sentences, W hypotheses), contiguous.
        weight: the embedding matrix, (V, D).
        position: the position, int64, (1,), on the GPU.
        capacity: the maximum number of positions.

    Returns:
        (B, W, D), in the dtype of the matrix.
    """
    positions = embedding.positions
    table, offset = weight, 0
    if isinstance(positions, SinusoidalPositions):
        table, offset = positions.until(positions.offset + capacity, weight.device, weight.dtype), positions.offset
    elif isinstance(positions, LearnedPositions):
        table, offset = positions.weight, positions.offset
    has_table = table is not weight
    is_supported = has_table or isinstance(positions, NoPositions)
    if (
        not is_supported
        or embedding.norm is not None
        or embedding.token_types is not None
        or table.dtype != weight.dtype
    ):
        limit = positions.length if isinstance(positions, LearnedPositions) else capacity
        return embedding(tokens, weight, position, end=min(capacity, limit))  # type: ignore[no-any-return]
    width = weight.shape[1]
    out = weight.new_empty(*tokens.shape, width)
    block = power_of_2(width)
    triton_kernels.embed[(tokens.numel(),)](
        tokens, weight, table, position, out, embedding.scale, offset, width, has_table, block,
        num_warps=min(4, max(1, block // 256)),
    )  # fmt: skip
    return out


# --- LayerNorm and RMSNorm ---
# Legend: N rows, D columns.


# The backward pass: number of programs, elements per iteration, and warps. Programs are few, as all of them add their
# weight and bias gradients to the same sums.
_PROGRAMS, _ELEMENTS, _WARPS = 132 * 2, 4096, 4


def residual_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return x and the normalized x, both (N, D): by LayerNorm, or by RMSNorm if `bias` is None.

    The returned x is for the residual connection. So the norm's backward kernel receives the gradient of this
    connection, and adds it to the gradient of x. This function implements `TrainingKernels.residual_norm`.
    """
    return NormNode.apply(x, weight, bias, epsilon, NORM)  # type: ignore[no-any-return,no-untyped-call]


def add_and_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return x + y and the normalized sum (LayerNorm, or RMSNorm without a bias), both (…, D), without gradients."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    count, width = x.numel() // x.shape[-1], x.shape[-1]
    rows, block, warps = _launch_shape(width)
    shift, centered = (weight, False) if bias is None else (bias, True)
    triton_kernels.add_and_norm[(ceil_div(count, rows),)](
        x, y, weight, shift, total, out, count, width, epsilon, centered, rows, block, num_warps=warps
    )
    return total, out


def _norm(inputs: NormInputs) -> tuple[Tensor, Tensor]:
    """Return the normalized x, and each row's mean and inverse deviation, float32 (2, N), for `NormKernels.forward`."""
    x, weight, bias, epsilon = inputs
    count, width = x.numel() // x.shape[-1], x.shape[-1]
    out, statistics = torch.empty_like(x), torch.empty(2, count, dtype=torch.float32, device=x.device)
    rows, block, warps = _launch_shape(width)
    shift, centered = (weight, False) if bias is None else (bias, True)
    triton_kernels.norm[(ceil_div(count, rows),)](
        x, weight, shift, out, *statistics, count, width, epsilon, centered, rows, block, num_warps=warps
    )
    return out, statistics


def _norm_backward(
    inputs: NormInputs, statistics: Tensor, gradient: Tensor, kept: Tensor | None, totals: tuple[Tensor, Tensor | None]
) -> Tensor:
    """Return the gradient of x, and add those of weight and bias to `totals`, for `NormKernels.backward`."""
    (x, weight, _, _), (total, bias_total) = inputs, totals
    count, width = x.numel() // x.shape[-1], x.shape[-1]
    grad_x, block = torch.empty_like(x), power_of_2(width)
    rows, warps = max(1, _ELEMENTS // block), max(_WARPS, block // 1024)
    triton_kernels.norm_backward[(min(_PROGRAMS, ceil_div(count, rows)),)](
        x, weight, gradient, gradient if kept is None else kept, *statistics, grad_x, total,
        total if bias_total is None else bias_total, count, width, bias_total is not None, kept is not None, rows,
        block, num_warps=warps,
    )  # fmt: skip
    return grad_x


NORM = NormKernels(_norm, _norm_backward)
"""The functions that compute norms, forward and backward."""


def _launch_shape(width: int) -> tuple[int, int, int]:
    """Return three numbers for a norm's Triton kernel: rows per program, row width, and warps.

    The row width is rounded up to a power of two. A row uses few warps, so that they rarely wait for one another.
    """
    block = power_of_2(width)
    return max(1, 1024 // block), block, max(1, block // 1024)


# --- dropout, sums and softmax ---


_EIGHTS = 256  # groups of 8 elements per program of dropout
_SUM_ROWS, _SUM_COLUMNS, _ROWS_EACH = 32, 128, 256  # of sums: block of a program, and its rows in all


def drop_and_add(residual: Tensor | None, x: Tensor, drop_256ths: int) -> Tensor:
    """Return residual + dropout(x), or dropout(x) if `residual` is None, as a differentiable function.

    Each element is dropped with probability drop_256ths / 256.
    """
    return GpuDropNode.apply(residual, x, drop_256ths)  # type: ignore[no-any-return,no-untyped-call]


class GpuDropNode(torch.autograd.Function):
    """Dropout and residual addition as an autograd function, which saves only the seed of the mask.

    The backward pass computes the mask of dropped elements again.
    """

    @staticmethod
    def forward(ctx: Any, residual: Tensor | None, x: Tensor, drop_256ths: int) -> Tensor:
        ctx.seed, ctx.drop_256ths = next_seed(), drop_256ths
        ctx.has_residual = residual is not None
        return _drop(ctx, None if residual is None else residual.contiguous(), x.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        return gradients[0] if ctx.has_residual else None, _drop(ctx, None, gradients[0].contiguous()), None


def _drop(ctx: Any, residual: Tensor | None, x: Tensor) -> Tensor:
    """Run the dropout kernel with the seed and rate that an autograd context stores; return residual + dropout(x).

    If `residual` is None, return dropout(x).
    """
    out, count = torch.empty_like(x), x.numel()
    residual_or_x, has_residual = (x, False) if residual is None else (residual, True)
    scale = 256.0 / (256 - ctx.drop_256ths)
    grid = (ceil_div(count, 8 * _EIGHTS),)
    is_address = isinstance(ctx.seed, Tensor)
    triton_kernels.drop[grid](
        residual_or_x, x, out, ctx.seed, count, ctx.drop_256ths, scale, has_residual, is_address, _EIGHTS
    )
    return out


def add_sum_of_rows(x: Tensor, total: Tensor, kept: Tensor | None = None) -> Tensor:
    """Add the sum of the rows of x (N, D) to `total`, float32 (D,), in place; return x.

    If `kept` (N, D) is passed, a copy of x is summed and returned instead. The copy has zeros where `kept` is not
    positive. If `kept` is the output of a ReLU, this is the backward pass of the ReLU and of the bias before it.
    """
    (count, width), out = x.shape, x if kept is None else torch.empty_like(x)
    triton_kernels.sum_rows[(ceil_div(width, _SUM_COLUMNS), ceil_div(count, _ROWS_EACH))](
        x, x if kept is None else kept, out, total, count, width, _ROWS_EACH, kept is not None, _SUM_ROWS, _SUM_COLUMNS
    )
    return out


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum of the rows of x (N, D), float32 (D,)."""
    total = torch.zeros(x.shape[1], dtype=torch.float32, device=x.device)
    add_sum_of_rows(x.contiguous(), total)
    return total


def add_rows_in_place(total: Tensor, ids: Tensor, part: Tensor, factor: float, frozen_row: int | None) -> None:
    """Add factor · part[n] to row ids[n] of `total`, float32, for each n; the row `frozen_row` (padding) is skipped.

    This function implements `TrainingKernels.add_rows_in_place`, which describes the arguments.
    """
    width = part.shape[-1]
    block = min(1024, power_of_2(width))
    frozen = -1 if frozen_row is None else frozen_row
    grid = (ids.numel(), ceil_div(width, block))
    triton_kernels.add_rows[grid](total, ids.contiguous(), part.contiguous(), factor, frozen, width, block)


def softmax_(logits: Tensor) -> Tensor:
    """Replace each row of logits (N, V) by its softmax, and return each row's log-sum-exp, float32 (N,)."""
    normalizers = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    block = min(4096, power_of_2(logits.shape[1]))
    triton_kernels.softmax_[(len(logits),)](
        logits, normalizers, logits.shape[1], block, num_warps=8 if block > 1024 else 4
    )
    return normalizers
