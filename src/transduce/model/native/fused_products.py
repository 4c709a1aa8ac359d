"""Products of training in machine code: see `training_products.py`.

Legend: N positions, I inputs and O outputs of a layer.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.model.native.engine import (
    Program,
    address_of,
    compile_programs,
    float_bits,
    multiplies_pairs,
    new_emitter,
    own_tile,
)
from transduce.model.native.pair_packing import ROWS_TOGETHER, TILE_ROWS
from transduce.model.native.tile import Tile
from transduce.model.native.training_products import BackPlaces, ForwardPlaces, ProductWriter

_INPUTS_TOGETHER = 32


class Sums(NamedTuple):
    """float32, contiguous: to which gradients are added; None: not asked for."""

    weight: Tensor | None
    """(O, I)."""
    bias: Tensor | None = None
    """(O,)."""


def suits_product(x: Tensor, weight: Tensor) -> bool:
    """Whether `multiply` and `multiply_back` take x, (N, I), and some rows of a matrix, (O, I), and pay here."""
    fits = len(x) >= TILE_ROWS and weight.shape[1] % _INPUTS_TOGETHER == len(weight) % own_tile().lanes == 0
    return fits and x.dtype == weight.dtype == torch.bfloat16 and multiplies_pairs()


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool) -> Tensor:
    """x · weightᵀ + bias, (N, O), or ReLU of it; all contiguous, bfloat16."""
    out = x.new_empty(len(x), len(weight))
    _forward(x, weight, out, torch.empty_like(weight), bias=bias, least=0.0 if relu else float("-inf"))
    return out


def multiply_back(
    gradient: Tensor, x: Tensor, weight: Tensor, gate: Tensor | None, sums: Sums, *, by_x: bool
) -> Tensor | None:
    """The gradient by x, (N, I), if it is asked for, from the one by the outputs, (N, O).

    Args:
        gradient: bfloat16 and contiguous, as x, (N, I), weight, (O, I), and gate.
        gate: the outputs, (N, O), if they are ReLU's.
        sums: what grows by the gradients by weight and bias.
        by_x: whether it is asked for.
    """
    found = torch.empty_like(x) if by_x else None
    _back(gradient, x, weight, found, sums, torch.empty_like(weight), gate=gate)
    return found


class PackedProjection:
    """See `fused.Projection`: the matrix is packed once for all rows."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._rooms: list[Tensor | None] = [None, None]  # forward, back

    def logits(self, x: Tensor, out: Tensor) -> None:
        """See `fused.Projection`."""
        known, room = self._room(0)
        _forward(x, known, out, room)

    def back(self, gradient: Tensor, x: Tensor, by_x: Tensor | None, weight_sum: Tensor | None) -> None:
        """See `fused.Projection`."""
        known, room = self._room(1)
        _back(gradient, x, known, by_x, Sums(weight_sum), room)

    def _room(self, number: int) -> tuple[Tensor | None, Tensor]:
        """The matrix if it must be packed yet, and where."""
        room = self._rooms[number]
        if room is not None:
            return None, room
        self._rooms[number] = room = torch.empty_like(self._weight)
        return self._weight, room


def project(hidden: Tensor, weight: Tensor) -> PackedProjection | None:
    """See `fused.TrainingKernels`."""
    fits = hidden.is_contiguous() and weight.is_contiguous() and suits_product(hidden, weight)
    return PackedProjection(weight) if fits else None


def _forward(
    x: Tensor,
    weight: Tensor | None,
    out: Tensor,
    room: Tensor,
    *,
    bias: Tensor | None = None,
    least: float = float("-inf"),
) -> None:
    places = ForwardPlaces(
        x=x.data_ptr(),
        weight=address_of(weight),
        bias=address_of(bias),
        out=out.data_ptr(),
        positions=len(x),
        inputs=x.shape[1],
        outputs=out.shape[1],
        least=float_bits(least),
        room=room.data_ptr(),
    )
    _programs(own_tile())["forward"].run(*places)


def _back(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    by_x: Tensor | None,
    sums: Sums,
    room: Tensor,
    *,
    gate: Tensor | None = None,
) -> None:
    (positions, outputs), inputs = gradient.shape, x.shape[1]
    filled = -(-positions // ROWS_TOGETHER) * ROWS_TOGETHER
    kept = None if gate is None else torch.empty_like(gradient)
    packed_x, packed_gradient = x.new_empty(inputs, filled), x.new_empty(outputs, filled)
    places = BackPlaces(
        x=x.data_ptr(),
        weight=address_of(weight),
        gradient=gradient.data_ptr(),
        gate=address_of(gate),
        kept=address_of(kept),
        by_x=address_of(by_x),
        weight_sum=address_of(sums.weight),
        bias_sum=address_of(sums.bias),
        positions=positions,
        inputs=inputs,
        outputs=outputs,
        weight_room=room.data_ptr(),
        x_room=packed_x.data_ptr(),
        gradient_room=packed_gradient.data_ptr(),
    )
    _programs(own_tile())["back"].run(*places)


@cache
def _programs(tile: Tile) -> dict[str, Program]:
    k = new_emitter("products", tile)
    ProductWriter(k).write()
    return compile_programs(k, ProductWriter.names)
