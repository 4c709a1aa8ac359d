"""Provide the compiled training attention as a PyTorch autograd function.

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

_MOST_KEYS = 256  # with more, PyTorch's GEMMs over blocks of scores are efficient
_WIDEST = 128  # greatest head width


def suits_attention(x: Tensor, num_keys: int, width: int) -> bool:
    """Return whether `attend` takes heads of this width with so many keys, in x's dtype and on its device."""
    tile = find_tile()
    if x.device.type != "cpu" or x.dtype not in KINDS or tile is None:
        return False
    return width % tile.lanes == 0 and width <= _WIDEST and 0 < num_keys <= _MOST_KEYS and x.numel() > 0


def attend(projected: Tensor, memory: Tensor | None, lengths: Tensor | None, num_heads: int) -> Tensor:
    """Apply scaled dot-product attention, equation (1), to all heads (implements `backend.TrainingKernels.attend`)."""
    _check(projected, memory, lengths)
    context: Tensor = _Attend.apply(projected, memory, lengths, num_heads)  # type: ignore[no-untyped-call]
    return context


def _check(projected: Tensor, memory: Tensor | None, lengths: Tensor | None) -> None:
    """Raise ValueError unless the arguments' shapes and dtypes match; the machine code does not check bounds."""
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
    """Attention as an autograd function that recomputes the attention weights in the backward pass.

    It stores only each query's greatest score and the inverse of its sum of exponentials.
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, memory: Tensor | None, lengths: Tensor | None, num_heads: int) -> Tensor:
        inputs = _Inputs(projected.contiguous(), None if memory is None else memory.contiguous(), lengths)
        batch, num_queries, width = projected.shape
        context = projected.new_empty(batch, num_queries, width // 3 if memory is None else width)
        sums = torch.empty(batch, num_heads, num_queries, 2, dtype=torch.float32)
        _run("attend", inputs, context, sums)
        ctx.save_for_backward(*inputs, sums)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        *saved, sums = ctx.saved_tensors
        inputs = _Inputs(*saved)
        memory = None if inputs.memory is None else torch.empty_like(inputs.memory)
        input_gradients = _Inputs(torch.empty_like(inputs.projected), memory)
        _run("attend_back", inputs, gradients[0].contiguous(), sums, input_gradients)
        return input_gradients.projected, input_gradients.memory, None, None


class _Inputs(NamedTuple):
    """The inputs of attention, or their gradients."""

    projected: Tensor
    """Queries, keys and values, (B, Q, 3 × H × K); with a memory, queries alone, (B, Q, H × K)."""
    memory: Tensor | None
    """Keys and values of the memory, (B, L, 2 × H × K)."""
    lengths: Tensor | None = None
    """The number of keys of each sentence, int64 (B,); None: a causal mask."""

    def starts(self, inner: int) -> tuple[int, int, int]:
        """Return the addresses of the first query, key and value."""
        size = inner * self.projected.element_size()
        start = self.projected.data_ptr()
        if self.memory is None:
            return start, start + size, start + 2 * size
        return start, self.memory.data_ptr(), self.memory.data_ptr() + size


def _run(name: str, inputs: _Inputs, context: Tensor, sums: Tensor, gradients: _Inputs | None = None) -> None:
    """Run the kernel `attend`, or `attend_back` with `found` for the resulting gradients."""
    batch, num_heads, num_queries, _ = sums.shape
    inner = context.shape[2]
    key_source = inputs.projected if inputs.memory is None else inputs.memory
    shape = attention_shape(inner // num_heads, key_source.dtype)
    scratch = torch.empty(
        torch.get_num_threads(), room_to_attend(shape, key_source.shape[1], num_queries), dtype=torch.float32
    )
    queries, keys, values = inputs.starts(inner)
    query_gradient, key_gradient, value_gradient = (0, 0, 0) if gradients is None else gradients.starts(inner)
    arguments = AttentionPlaces(
        queries=queries,
        keys=keys,
        values=values,
        query_stride=inputs.projected.shape[2],
        key_stride=key_source.shape[2],
        batch=batch,
        heads=num_heads,
        num_queries=num_queries,
        num_keys=key_source.shape[1],
        lengths=0 if inputs.lengths is None else inputs.lengths.data_ptr(),
        context=context.data_ptr(),
        sums=sums.data_ptr(),
        query_gradient=query_gradient,
        key_gradient=key_gradient,
        value_gradient=value_gradient,
        room=scratch.data_ptr(),
        own_room=scratch.shape[1],
    )
    attention_programs(shape)[name].run(*arguments)


def attention_shape(width: int, dtype: torch.dtype) -> AttentionShape:
    """Return what to compile attention kernels for, given a head width and dtype, on this processor."""
    lanes, pairs = own_tile().lanes, pair_tile()
    has_pairs = dtype == torch.bfloat16 and width % AMX_KEYS == 0 and pairs is not None and pairs.lanes == lanes
    return AttentionShape(width, KINDS[dtype], lanes, has_pairs and own_product_tile(torch.bfloat16).amx)


def attention_programs(shape: AttentionShape) -> dict[str, Program]:
    """Return the compiled kernels `attend` and `attend_back`, compiled on first use."""
    return _kernels(shape, own_tile())


@cache
def _kernels(shape: AttentionShape, tile: Tile) -> dict[str, Program]:
    """Compile `attend` and `attend_back`."""
    k = new_emitter("attention", tile)
    (AmxAttentionWriter if shape.amx else AttentionWriter)(k, shape).write()
    return compile_programs(k, ("attend", "attend_back"))
