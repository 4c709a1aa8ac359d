"""Attention of whole sentences in machine code, as PyTorch's automatic differentiation sees it.

Legend: B sentences, H heads, Q queries, L keys, K width of a head's queries, keys and values.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.model.native.amx_attention import AmxAttentionWriter
from transduce.model.native.attention import AttentionWriter
from transduce.model.native.attention_places import AMX_KEYS, AttentionPlaces, AttentionShape, room_to_attend
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, own_tile
from transduce.model.native.fused_products import own_product_tile, pair_tile
from transduce.model.native.fused_rows import KINDS
from transduce.model.native.tile import Tile

_MOST_KEYS = 256  # beyond, PyTorch's blocks of scores are products large enough for its library
_WIDEST = 128


def suits_attention(x: Tensor, num_keys: int, width: int) -> bool:
    """See `backend.TrainingKernels`."""
    tile = find_tile()
    if x.device.type != "cpu" or x.dtype not in KINDS or tile is None:
        return False
    return width % tile.lanes == 0 and width <= _WIDEST and 0 < num_keys <= _MOST_KEYS and x.numel() > 0


def attend(projected: Tensor, memory: Tensor | None, lengths: Tensor | None, num_heads: int) -> Tensor:
    """See `backend.TrainingKernels`."""
    _check(projected, memory, lengths)
    found: Tensor = _Attend.apply(projected, memory, lengths, num_heads)  # type: ignore[no-untyped-call]
    return found


def _check(projected: Tensor, memory: Tensor | None, lengths: Tensor | None) -> None:
    """Machine code would read beyond what does not fit."""
    batch = len(projected)
    if memory is not None:
        fits = len(memory) == batch and memory.shape[2] == 2 * projected.shape[2] and memory.dtype == projected.dtype
        if not fits or lengths is None:
            raise ValueError(
                f"a memory of {tuple(memory.shape)} for queries of {tuple(projected.shape)}, or no lengths"
            )
    if lengths is not None and (lengths.dtype != torch.int64 or lengths.shape != (batch,)):
        raise ValueError(f"lengths must be int64 of shape ({batch},), not {lengths.dtype} of {tuple(lengths.shape)}")


class _Attend(torch.autograd.Function):
    """Only the greatest score and the normaliser of each query are kept for the gradient; weights are made again."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, memory: Tensor | None, lengths: Tensor | None, num_heads: int) -> Tensor:
        given = _Given(projected.contiguous(), None if memory is None else memory.contiguous(), lengths)
        batch, num_queries, width = projected.shape
        context = projected.new_empty(batch, num_queries, width // 3 if memory is None else width)
        sums = torch.empty(batch, num_heads, num_queries, 2, dtype=torch.float32)
        _run("attend", given, context, sums)
        ctx.save_for_backward(*given, sums)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        *kept, sums = ctx.saved_tensors
        given = _Given(*kept)
        memory = None if given.memory is None else torch.empty_like(given.memory)
        found = _Given(torch.empty_like(given.projected), memory)
        _run("attend_back", given, gradients[0].contiguous(), sums, found)
        return found.projected, found.memory, None, None


class _Given(NamedTuple):
    projected: Tensor
    memory: Tensor | None
    lengths: Tensor | None = None

    def starts(self, inner: int) -> tuple[int, int, int]:
        """Where queries, keys and values begin."""
        size = inner * self.projected.element_size()
        start = self.projected.data_ptr()
        if self.memory is None:
            return start, start + size, start + 2 * size
        return start, self.memory.data_ptr(), self.memory.data_ptr() + size


def _run(name: str, given: _Given, context: Tensor, sums: Tensor, found: _Given | None = None) -> None:
    batch, num_heads, num_queries, _ = sums.shape
    inner = context.shape[2]
    keyed = given.projected if given.memory is None else given.memory
    shape = attention_shape(inner // num_heads, keyed.dtype)
    room = torch.empty(torch.get_num_threads(), room_to_attend(shape, keyed.shape[1], num_queries), dtype=torch.float32)
    queries, keys, values = given.starts(inner)
    by_queries, by_keys, by_values = (0, 0, 0) if found is None else found.starts(inner)
    places = AttentionPlaces(
        queries=queries,
        keys=keys,
        values=values,
        query_stride=given.projected.shape[2],
        key_stride=keyed.shape[2],
        batch=batch,
        heads=num_heads,
        num_queries=num_queries,
        num_keys=keyed.shape[1],
        lengths=0 if given.lengths is None else given.lengths.data_ptr(),
        context=context.data_ptr(),
        sums=sums.data_ptr(),
        query_gradient=by_queries,
        key_gradient=by_keys,
        value_gradient=by_values,
        room=room.data_ptr(),
        own_room=room.shape[1],
    )
    attention_programs(shape)[name].run(*places)


def attention_shape(width: int, dtype: torch.dtype) -> AttentionShape:
    """Of heads of this width, as this processor does best."""
    lanes, pairs = own_tile().lanes, pair_tile()
    takes_pairs = dtype == torch.bfloat16 and width % AMX_KEYS == 0 and pairs is not None and pairs.lanes == lanes
    return AttentionShape(width, KINDS[dtype], lanes, takes_pairs and own_product_tile(torch.bfloat16).amx)


def attention_programs(shape: AttentionShape) -> dict[str, Program]:
    """`attend` and `attend_back`."""
    return _programs(shape, own_tile())


@cache
def _programs(shape: AttentionShape, tile: Tile) -> dict[str, Program]:
    k = new_emitter("attention", tile)
    (AmxAttentionWriter if shape.amx else AttentionWriter)(k, shape).write()
    return compile_programs(k, ("attend", "attend_back"))
