"""Attention among packed sequences, on a GPU: sentences are short, so one program computes a head of one at once.

Queries, keys and values are read where the projection wrote them, and their gradients written where it reads them:
nothing is transposed, split or joined in between. What the backward pass needs of the weights is computed anew.
Legend: N rows of queries, M rows of keys, B sentences, H heads, K width of a head.
"""

from typing import Any

import torch
from torch import Tensor

from transduce.model.config import ModelConfig
from transduce.model.gpu.programs import attention as programs
from transduce.model.gpu.sizes import power_of_2, shared_bytes
from transduce.model.packing import PackedMask, Packing

LONGEST = 128  # pieces of a sentence: the scores of one head stay in registers
LEAST_WIDTH, MOST_WIDTH = 16, 128


class PackedHeads:
    """Attention among packed sentences: the kernels of a `backend.PackedAttention`."""

    def suits_heads(self, config: ModelConfig, longest: int, weight: Tensor) -> bool:
        """Return whether one head's computation fits into a multiprocessor, and all heads have a width of 2^n."""
        width = config.key_width
        plain = width == config.value_width and config.num_key_value_heads in (None, config.num_heads)
        if not plain or longest > LONGEST or not LEAST_WIDTH <= width <= MOST_WIDTH or width & (width - 1):
            return False
        rows = max(16, power_of_2(longest))
        # The backward pass multiplies four matrices of rows × width, and two of rows × rows.
        return (4 * width + 2 * rows) * rows * weight.element_size() <= shared_bytes(weight.device)

    def attend(self, projected: Tensor, memory: Tensor | None, mask: PackedMask, num_heads: int) -> Tensor:
        """See `backend.PackedAttention`."""
        return AttentionNode.apply(projected, memory, mask, num_heads)  # type: ignore[no-any-return,no-untyped-call]


class AttentionNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, memory: Tensor | None, mask: PackedMask, num_heads: int) -> Tensor:
        own = projected.contiguous()
        others = own if memory is None else memory.contiguous()
        ctx.save_for_backward(*((own,) if memory is None else (own, others)))
        ctx.mask, ctx.num_heads = mask, num_heads
        inner = own.shape[-1] // (3 if memory is None else 1)
        out = own.new_empty(*own.shape[:-1], inner)
        first = inner if memory is None else 0
        grid, options = _shape(mask, num_heads, inner)
        programs.attend[grid](
            own, others[..., first:], others[..., first + inner :], out, *_places(mask.queries), *_places(mask.keys),
            own.shape[-1], others.shape[-1], inner, (inner // num_heads) ** -0.5, CAUSAL=mask.causal, **options,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        own = ctx.saved_tensors[0]
        has_memory = len(ctx.saved_tensors) == 2
        others = ctx.saved_tensors[-1]
        mask, num_heads = ctx.mask, ctx.num_heads
        by_out = gradients[0].contiguous()
        inner = by_out.shape[-1]
        by_own = torch.empty_like(own)
        by_others = torch.empty_like(others) if has_memory else by_own
        first = 0 if has_memory else inner
        grid, options = _shape(mask, num_heads, inner)
        programs.attend_back[grid](
            own, others[..., first:], others[..., first + inner :], by_out,
            by_own, by_others[..., first:], by_others[..., first + inner :],
            *_places(mask.queries), *_places(mask.keys),
            own.shape[-1], others.shape[-1], inner, (inner // num_heads) ** -0.5, CAUSAL=mask.causal, **options,
        )  # fmt: skip
        return by_own, by_others if has_memory else None, None, None


def _places(packing: Packing) -> tuple[Tensor, Tensor]:
    return packing.starts, packing.counts


def _shape(mask: PackedMask, num_heads: int, inner: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The programs, and how large a sentence is taken to be."""
    rows, columns = (max(16, power_of_2(each.longest)) for each in (mask.queries, mask.keys))
    warps = {16: 1, 32: 2, 64: 4, 128: 8}[max(rows, columns)]
    options = {"ROWS": rows, "COLUMNS": columns, "WIDTH": inner // num_heads, "num_warps": warps}
    return (num_heads, len(mask.queries.starts)), options
