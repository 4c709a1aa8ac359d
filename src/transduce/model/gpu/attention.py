"""Run attention on packed sequences on a GPU, with one Triton program per head and sentence.

Sentences are short, so a program holds all scores of a head. Queries, keys and values are read from the projection's
output, and their gradients are written in that layout, without transposing, splitting or joining. The backward pass
recomputes the attention weights.

Legend: N rows of queries, M rows of keys, B sentences, H heads, K width of a head.
"""

from typing import Any

import torch
from torch import Tensor

from transduce.model.config import ModelConfig
from transduce.model.gpu.programs import attention as programs
from transduce.model.gpu.sizes import power_of_2, shared_bytes
from transduce.model.packing import PackedMask, Packing

LONGEST = 128
"""The greatest sentence length in tokens, so that the scores of one head stay in registers."""
LEAST_WIDTH, MOST_WIDTH = 16, 128
"""The range of head widths."""


class PackedHeads:
    """Attention on packed batches by Triton kernels (implements `backend.PackedAttention`)."""

    def suits_heads(self, config: ModelConfig, longest: int, weight: Tensor) -> bool:
        """Return whether one head's data fits in shared memory, and all heads have one width, a power of two."""
        width = config.key_width
        plain = width == config.value_width and config.num_key_value_heads in (None, config.num_heads)
        if not plain or longest > LONGEST or not LEAST_WIDTH <= width <= MOST_WIDTH or width & (width - 1):
            return False
        rows = max(16, power_of_2(longest))
        # The backward pass multiplies four matrices of rows × width, and two of rows × rows.
        return (4 * width + 2 * rows) * rows * weight.element_size() <= shared_bytes(weight.device)

    def attend(self, projected: Tensor, memory: Tensor | None, mask: PackedMask, num_heads: int) -> Tensor:
        """Apply attention, equation (1), to packed sentences; see `backend.PackedAttention.attend` for the shapes."""
        return AttentionNode.apply(projected, memory, mask, num_heads)  # type: ignore[no-any-return,no-untyped-call]


class AttentionNode(torch.autograd.Function):
    """Attention on packed sentences as an autograd function."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, memory: Tensor | None, mask: PackedMask, num_heads: int) -> Tensor:
        queries = projected.contiguous()
        keys = queries if memory is None else memory.contiguous()
        ctx.save_for_backward(*((queries,) if memory is None else (queries, keys)))
        ctx.mask, ctx.num_heads = mask, num_heads
        inner = queries.shape[-1] // (3 if memory is None else 1)
        out = queries.new_empty(*queries.shape[:-1], inner)
        first = inner if memory is None else 0
        grid, options = _launch_shape(mask, num_heads, inner)
        programs.attend[grid](
            queries, keys[..., first:], keys[..., first + inner :], out, *_spans(mask.queries), *_spans(mask.keys),
            queries.shape[-1], keys.shape[-1], inner, (inner // num_heads) ** -0.5, CAUSAL=mask.causal, **options,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        queries = ctx.saved_tensors[0]
        has_memory = len(ctx.saved_tensors) == 2
        keys = ctx.saved_tensors[-1]
        mask, num_heads = ctx.mask, ctx.num_heads
        by_out = gradients[0].contiguous()
        inner = by_out.shape[-1]
        by_queries = torch.empty_like(queries)
        by_keys = torch.empty_like(keys) if has_memory else by_queries
        first = 0 if has_memory else inner
        grid, options = _launch_shape(mask, num_heads, inner)
        programs.attend_back[grid](
            queries, keys[..., first:], keys[..., first + inner :], by_out,
            by_queries, by_keys[..., first:], by_keys[..., first + inner :],
            *_spans(mask.queries), *_spans(mask.keys),
            queries.shape[-1], keys.shape[-1], inner, (inner // num_heads) ** -0.5, CAUSAL=mask.causal, **options,
        )  # fmt: skip
        return by_queries, by_keys if has_memory else None, None, None


def _spans(packing: Packing) -> tuple[Tensor, Tensor]:
    """Return the sentences' offsets and lengths."""
    return packing.starts, packing.counts


def _launch_shape(mask: PackedMask, num_heads: int, inner: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the launch grid and the compile-time block sizes."""
    rows, columns = (max(16, power_of_2(each.longest)) for each in (mask.queries, mask.keys))
    warps = {16: 1, 32: 2, 64: 4, 128: 8}[max(rows, columns)]
    options = {"ROWS": rows, "COLUMNS": columns, "WIDTH": inner // num_heads, "num_warps": warps}
    return (num_heads, len(mask.queries.starts)), options
