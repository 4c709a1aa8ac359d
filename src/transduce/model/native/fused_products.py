"""Products of training in machine code: see `training_products.py`. Those of bfloat16 by AMX where there is any.

Legend: N positions, I inputs and O outputs of a layer.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.model.native.amx_products import AmxMultiplier
from transduce.model.native.engine import (
    Program,
    address_of,
    compile_programs,
    find_float_tile,
    float_bits,
    new_emitter,
)
from transduce.model.native.kept_stack import own_stack
from transduce.model.native.pair_products import PairMultiplier
from transduce.model.native.plain_products import NarrowMultiplier, PlainMultiplier
from transduce.model.native.tile import WIDE, Tile
from transduce.model.native.training_products import BackPlaces, ForwardPlaces, ProductWriter

_INPUTS_TOGETHER = 32
_LINE_BYTES = 64  # of a cache
_STREAMED_BYTES = 3 << 20  # of a result, which goes past the caches: it would push everything else out of them
_SLIGHT = 2.0**-7  # what two orders of the same sum may differ by, beside the largest; then it is rounded


class Sums(NamedTuple):
    """float32, contiguous: to which gradients are added; None: not asked for."""

    weight: Tensor | None
    """(O, I)."""
    bias: Tensor | None = None
    """(O,)."""


def suits_product(x: Tensor, weight: Tensor) -> bool:
    """Whether `multiply` and `multiply_back` take x, (N, I), and some rows of a matrix, (O, I)."""
    return x.dtype == weight.dtype and suits_sizes(len(x), weight.shape[1], len(weight), x.dtype)


def suits_sizes(positions: int, inputs: int, outputs: int, dtype: torch.dtype) -> bool:
    """The same of so many of this type."""
    tile = product_tile(dtype)
    if tile is None:
        return False
    layout = multiplier_of(tile).layout
    fits = inputs % _INPUTS_TOGETHER == outputs % max(tile.lanes, layout.together) == 0
    return fits and positions >= layout.least_rows


@cache
def pair_tile() -> Tile | None:
    """What multiplies bfloat16 here: AMX if a small example comes out right by it, else vectors; None: nothing does."""
    tile = find_float_tile("pairs")
    if tile is None or not tile.amx or multiplies_rightly(tile):
        return tile
    return tile._replace(amx=False)


def product_tile(dtype: torch.dtype) -> Tile | None:
    """What multiplies numbers of this type here; None: nothing of our own does."""
    if dtype == torch.float32:
        return find_float_tile("floats")
    return pair_tile() if dtype == torch.bfloat16 else None


def own_product_tile(dtype: torch.dtype) -> Tile:
    """The same, where it is known that there is one."""
    tile = product_tile(dtype)
    assert tile is not None, f"asked for products of {dtype}, for which there are none"
    return tile


def multiplier_of(tile: Tile) -> type[PairMultiplier]:
    """What writes its products."""
    if tile.kind == "floats":
        return PlainMultiplier if tile.lanes == WIDE.lanes else NarrowMultiplier
    return AmxMultiplier if tile.amx else PairMultiplier


def multiplies_rightly(tile: Tile) -> bool:
    """Whether its products of small matrices are exact but for rounding."""
    numbers = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(rows, 96, generator=numbers).bfloat16() for rows in (53, 96))
    found, total = x.new_empty(53, 96), torch.zeros(96, 96)
    _forward(x, weight, found, torch.empty_like(weight), tile=tile)
    _back(found, x, None, None, Sums(total), torch.empty_like(weight), tile=tile)
    exact = x.double() @ weight.double().t()
    pairs = ((found, exact), (total, found.double().t() @ x.double()))
    return all(bool((one.double() - other).abs().max() < _SLIGHT * other.abs().max()) for one, other in pairs)


def multiply(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    activation: str | None = None,
    positive: Tensor | None = None,
) -> Tensor:
    """x · weightᵀ + bias, (N, O), or ReLU of it; all contiguous and of one type.

    Args:
        x: (N, I).
        weight: (O, I).
        bias: (O,).
        positive: N × O bits, bytes which are to tell what is positive.
    """
    out, room = x.new_empty(len(x), len(weight)), torch.empty_like(weight)
    _forward(x, weight, out, room, bias=bias, least=0.0 if activation == "relu" else float("-inf"), positive=positive)
    return out


def multiply_back(
    gradient: Tensor, x: Tensor, weight: Tensor, sums: Sums, *, by_x: bool, is_open: Tensor | None = None
) -> Tensor | None:
    """The gradient by x, (N, I), if it is asked for, from the one by the outputs, (N, O).

    Args:
        gradient: contiguous, as x, (N, I), and weight, (O, I), of the same type.
        sums: what grows by the gradients by weight and bias.
        by_x: whether it is asked for.
        is_open: if x is ReLU's, where it was positive, N × I bits; then the gradient is the one by what ReLU was given.
    """
    found = torch.empty_like(x) if by_x else None
    _back(gradient, x, weight, found, sums, torch.empty_like(weight), is_open=is_open)
    return found


class PackedProjection:
    """See `backend.Projection`: the matrix is packed once for all rows."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._rooms: list[Tensor | None] = [None, None]  # forward, back

    def logits(self, x: Tensor, out: Tensor) -> None:
        """See `backend.Projection`."""
        known, room = self._room(0)
        _forward(x, known, out, room, streams=False)  # they are read at once

    def back(self, gradient: Tensor, x: Tensor, by_x: Tensor | None, weight_sum: Tensor | None) -> None:
        """See `backend.Projection`."""
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
    """See `backend.TrainingKernels`."""
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
    streams: bool = True,
    positive: Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    tile = tile or own_product_tile(x.dtype)
    threads_room = own_stack().take(torch.get_num_threads() * multiplier_of(tile).thread_bytes)
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
        streams=int(streams and _is_streamed(out)),
        threads_room=threads_room.address,
        positive=address_of(positive),
    )
    product_programs(tile)["forward"].run(*places)
    threads_room.give_back()


def is_streamed(size: int) -> bool:
    """Whether a result of so many bytes, in whole lines of the caches, goes past them."""
    return size >= _STREAMED_BYTES


def _is_streamed(out: Tensor) -> bool:
    return is_streamed(out.nbytes) and out.data_ptr() % _LINE_BYTES == 0


def rows_filled_up(rows: int, tile: Tile) -> int:
    """With zeros, as many as are summed over."""
    together = multiplier_of(tile).layout.together
    return -(-rows // together) * together


def _back(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    by_x: Tensor | None,
    sums: Sums,
    room: Tensor,
    *,
    is_open: Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    tile = tile or own_product_tile(x.dtype)
    multiplier = multiplier_of(tile)
    (positions, outputs), inputs = gradient.shape, x.shape[1]
    filled = rows_filled_up(positions, tile)
    packed_x = x.new_empty(inputs, filled)
    threads_room = own_stack().take(torch.get_num_threads() * multiplier.thread_bytes)
    places = BackPlaces(
        x=x.data_ptr(),
        weight=address_of(weight),
        gradient=gradient.data_ptr(),
        by_x=address_of(by_x),
        is_open=address_of(is_open),
        weight_sum=address_of(sums.weight),
        bias_sum=address_of(sums.bias),
        positions=positions,
        inputs=inputs,
        outputs=outputs,
        weight_room=room.data_ptr(),
        x_room=packed_x.data_ptr(),
        threads_room=threads_room.address,
        streams=int(by_x is not None and _is_streamed(by_x)),
    )
    product_programs(tile)["back"].run(*places)
    threads_room.give_back()


@cache
def product_programs(tile: Tile) -> dict[str, Program]:
    """`forward` and `back`."""
    k = new_emitter("products", tile)
    ProductWriter(k, multiplier_of(tile)).write()
    return compile_programs(k, ProductWriter.names)
