"""Run the compiled orthogonalization of matrices for the Muon optimizer (`training_squares.py`)."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from transduce.model.backend import Polynomials
from transduce.model.native.engine import Program, compile_programs, float_bits, new_emitter
from transduce.model.native.fused_products import multiplier_of, own_product_tile, pair_tile
from transduce.model.native.tile import Tile
from transduce.model.native.training_squares import POLYNOMIALS, SQUARES, SquarePlaces, SquareWriter

_TOGETHER = 32  # the numbers of rows and columns must be multiples of this
_MARGIN = 1.01  # safety factor for rounding: the polynomials grow fast beyond 1
_MOST = 1e15  # limit on ‖x xᵀ‖ and its inverse, whose squares must fit in float32
_BYTES = 2  # of an element


def suits_squares(matrices: Sequence[Tensor]) -> bool:
    """Return whether `make_orthogonal` takes these matrices."""
    return pair_tile() is not None and all(_suits(each) for each in matrices)


def _suits(matrix: Tensor) -> bool:
    """Return whether `make_orthogonal` takes a matrix."""
    fits = matrix.shape[0] % _TOGETHER == matrix.shape[1] % _TOGETHER == 0 and matrix.numel() > 0
    return fits and matrix.dtype == torch.bfloat16 and matrix.device.type == "cpu" and matrix.is_contiguous()


def make_orthogonal(
    matrices: Sequence[Tensor], polynomials: Polynomials, scale: float, *, by_gram_matrix: bool
) -> list[bool]:
    """Orthogonalize matrices of one shape in place by odd polynomials; see `backend.TrainingKernels.make_orthogonal`.

    Returns:
        For each matrix whether it was changed; False if it was too large or too small for float32.
    """
    if len({each.shape for each in matrices}) > 1 or len(polynomials) != POLYNOMIALS:
        raise ValueError("matrices have one shape, and there are three polynomials")
    rows, columns = matrices[0].shape
    scratch_bytes = _BYTES * (2 * rows * columns + SQUARES * min(rows, columns) ** 2)
    threads = torch.get_num_threads()
    scratch_count = threads if len(matrices) >= threads else 1  # fewer matrices are processed by all threads together
    scratch = torch.empty(scratch_count * scratch_bytes, dtype=torch.uint8)
    addresses, done = np.array([each.data_ptr() for each in matrices], np.int64), np.zeros(len(matrices), np.int64)
    coefficients = np.array(polynomials, np.float32)
    arguments = SquarePlaces(
        matrices=addresses.ctypes.data,
        done=done.ctypes.data,
        count=len(matrices),
        rows=rows,
        columns=columns,
        coefficients=coefficients.ctypes.data,
        margin=float_bits(_MARGIN),
        most=float_bits(_MOST),
        scale=float_bits(scale),
        by_gram_matrix=int(by_gram_matrix),
        room=scratch.data_ptr(),
        room_bytes=scratch_bytes,
    )
    _kernels(own_product_tile(torch.bfloat16))["orthogonalize"].run(*arguments)
    return [bool(each) for each in done]


@cache
def _kernels(tile: Tile) -> dict[str, Program]:
    """Compile the kernel `orthogonalize`."""
    k = new_emitter("squares", tile)
    SquareWriter(k, multiplier_of(tile)).write()
    return compile_programs(k, SquareWriter.names)
