"""A whole layer in machine code, as one node of PyTorch's graph that starts one program forward and one back.

Legend: B sentences, T positions of each, S of its source, D model width.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from transduce.model.gradient_sums import sum_of_gradients
from transduce.model.native.engine import address_of
from transduce.model.native.fused_attention import suits_attention
from transduce.model.native.fused_products import own_product_tile, product_tile, suits_sizes
from transduce.model.native.kept_stack import own_stack
from transduce.model.native.layer_plan import LayerPlan, LayerShape, PartShape
from transduce.model.training_executor import KeyLengths, LayerPart, kernel_lengths, parts_of

_SHAPES = 512  # whose steps are kept


def run_layer(layer: nn.Module, x: Tensor, memory: Tensor | None, masks: Sequence[object]) -> Tensor | None:
    """See `backend.TrainingKernels`: where our own products are used and the bricks are the usual ones."""
    if not torch.is_grad_enabled() or product_tile(x.dtype) is None:
        return None
    memories = (None, memory)[: len(masks)]
    lengths = [kernel_lengths(x, others, mask) for others, mask in zip(memories, masks, strict=True)]
    parts = None if None in lengths else parts_of(layer, lengths)
    if parts is None or not all(_suits(part, x, memory) for part in parts):
        return None
    parameters = [each for part in parts for each in part.parameters()]
    return _Layer.apply(parts, x, memory, *parameters)  # type: ignore[no-any-return,no-untyped-call]


def _suits(part: LayerPart, x: Tensor, memory: Tensor | None) -> bool:
    """Whether kernels take all that the part's bricks would give them."""
    learnt = [each for each in part.parameters() if each is not None]
    others = memory if part.reads_memory and memory is not None else x
    if not all(each.dtype == x.dtype and each.is_contiguous() for each in (*learnt, others)):
        return False
    attention, (first, last) = part.attention, part.linears
    if attention is not None and not suits_attention(x, others.shape[1], attention.d_k):
        return False
    inner, width = last.in_features, x.shape[-1]
    rows, other_rows = x.numel() // width, others.numel() // width
    return (
        x.is_contiguous()
        and suits_sizes(min(rows, other_rows), width, first.out_features, x.dtype)
        and suits_sizes(rows, width, inner, x.dtype)  # queries alone, or all that is inside a network
        and suits_sizes(rows, inner, width, x.dtype)
    )


class _Layer(torch.autograd.Function):
    """Gradients by parameters, which are arguments for their hooks alone, go where they are summed."""

    @staticmethod
    def forward(
        ctx: Any, parts: Sequence[LayerPart], x: Tensor, memory: Tensor | None, *parameters: Tensor | None
    ) -> Tensor:
        plan = _plan_of(_shape_of(parts, x, memory))
        kept, room = own_stack().take(plan.kept_bytes), own_stack().take(plan.room_bytes)
        out = torch.empty_like(x)
        own = _addresses_of_parts(parts, parameters)
        plan.forward.run(
            [0, *map(address_of, (x, memory, out)), kept.address, room.address, 0, 0, 0, *own], plan.threads
        )
        room.give_back()
        ctx.save_for_backward(x, memory)
        # The parts hold the lengths, which the way back reads by their addresses.
        ctx.plan, ctx.kept, ctx.own, ctx.parts, ctx.count = plan, kept, own, parts, len(parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, memory = ctx.saved_tensors
        if ctx.kept is None:
            raise RuntimeError("the backward pass of this layer was taken before: compute it again")
        by_out, by_x = gradients[0].contiguous(), torch.empty_like(x)
        by_memory = None if memory is None else torch.empty_like(memory)
        given, found = map(address_of, (x, memory)), map(address_of, (by_out, by_x, by_memory))
        room = own_stack().take(ctx.plan.back_room_bytes)
        ctx.plan.back.run([0, *given, 0, ctx.kept.address, room.address, *found, *ctx.own], ctx.plan.threads)
        room.give_back()
        ctx.kept = None
        return None, by_x, by_memory, *[None] * ctx.count


def _shape_of(parts: Sequence[LayerPart], x: Tensor, memory: Tensor | None) -> LayerShape:
    batch, length, width = x.shape
    shapes = tuple(_part_shape_of(part) for part in parts)
    memory_length = 0 if memory is None else memory.shape[1]
    return LayerShape(batch, length, memory_length, width, shapes, torch.get_num_threads(), own_product_tile(x.dtype))


def _part_shape_of(part: LayerPart) -> PartShape:
    attention, (first, last) = part.attention, part.linears
    assert part.norm.eps is not None
    return PartShape(
        heads=0 if attention is None else attention.num_heads,
        inner=last.in_features,
        reads_memory=part.reads_memory,
        has_lengths=isinstance(part.mask, KeyLengths) and part.mask.lengths is not None,
        norm_is_before=part.norm_is_before,
        norm_has_bias=getattr(part.norm, "bias", None) is not None,
        epsilon=part.norm.eps,
        has_biases=(first.bias is not None, last.bias is not None),
        drop_of_256=part.drop_of_256,
    )


def _addresses_of_parts(parts: Sequence[LayerPart], parameters: Sequence[Tensor | None]) -> list[int]:
    """In the order of `PartBase`, part by part. The sums live as long as the parameters."""
    seeds = torch.empty(len(parts), dtype=torch.int64)
    for seed, part in zip(seeds, parts, strict=True):
        if part.drop_of_256:
            seed.random_()
    found: list[int] = []
    each_count = len(parameters) // len(parts)
    for number, (seed, part) in enumerate(zip(seeds.tolist(), parts, strict=True)):
        lengths = part.mask.lengths if isinstance(part.mask, KeyLengths) else None
        found += [seed, address_of(lengths)]
        for parameter in parameters[number * each_count : (number + 1) * each_count]:
            total = None if parameter is None else sum_of_gradients(parameter)
            found += [address_of(parameter), address_of(total)]
    return found


@lru_cache(_SHAPES)
def _plan_of(shape: LayerShape) -> LayerPlan:
    return LayerPlan(shape)
