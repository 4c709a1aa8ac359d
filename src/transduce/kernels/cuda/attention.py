"""Run attention on a GPU with Triton: on packed sequences in training, and on the KV cache in decoding.

Sentences are short, so one program holds all scores of a head and sentence. Queries, keys and values are read from the
projection's output, and their gradients are written in that layout, without transposing, splitting or joining. The
backward pass recomputes the attention weights.

Legend: N rows of queries, M rows of keys, B sentences, H heads, K width of a head.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduce.kernels.cuda import power_of_2, shared_bytes
from transduce.kernels.cuda.triton import attention as triton_kernels
from transduce.model.config import ModelConfig
from transduce.model.masks import PackedMask, Packing

LONGEST = 128
"""The maximum sentence length in tokens for training, so that the scores of one head stay in registers."""
MIN_WIDTH, MAX_WIDTH = 16, 128
"""The smallest and the greatest width of a head, in elements, that the attention kernels support."""


def supports_heads(config: ModelConfig, max_length: int, weight: Tensor) -> bool:
    """Return whether `attend` supports a model's attention heads and sentence length.

    All heads must have keys and values of their own, of one width. The width must be a power of two from `MIN_WIDTH` to
    `MAX_WIDTH`. One head's data must fit in shared memory.

    Args:
        config: the model's settings.
        max_length: the length of the longest sentence in tokens, at most `LONGEST`.
        weight: a tensor in the dtype and on the device of the model.
    """
    width = config.key_width
    plain = width == config.value_width and config.key_value_heads == config.num_heads
    if not plain or max_length > LONGEST or not MIN_WIDTH <= width <= MAX_WIDTH or width & (width - 1):
        return False
    rows = max(16, power_of_2(max_length))
    # The backward pass multiplies four matrices of rows × width, and two of rows × rows.
    return (4 * width + 2 * rows) * rows * weight.element_size() <= shared_bytes(weight.device)


def attend(projected: Tensor, memory: Tensor | None, mask: PackedMask, num_heads: int) -> Tensor:
    """Return the attention of packed sentences (without padding), equation (1), as a differentiable function.

    `PackedAttention.attend` gives the shapes.
    """
    return AttentionNode.apply(projected, memory, mask, num_heads)  # type: ignore[no-any-return,no-untyped-call]


class AttentionNode(torch.autograd.Function):
    """Attention on packed sentences (without padding) as an autograd function.

    The backward pass computes the attention weights again.
    """

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
        triton_kernels.attend[grid](
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
        grad_out = gradients[0].contiguous()
        inner = grad_out.shape[-1]
        grad_queries = torch.empty_like(queries)
        grad_keys = torch.empty_like(keys) if has_memory else grad_queries
        first = 0 if has_memory else inner
        grid, options = _launch_shape(mask, num_heads, inner)
        triton_kernels.attend_backward[grid](
            queries, keys[..., first:], keys[..., first + inner :], grad_out,
            grad_queries, grad_keys[..., first:], grad_keys[..., first + inner :],
            *_spans(mask.queries), *_spans(mask.keys),
            queries.shape[-1], keys.shape[-1], inner, (inner // num_heads) ** -0.5, CAUSAL=mask.causal, **options,
        )  # fmt: skip
        return grad_queries, grad_keys if has_memory else None, None, None


def _spans(packing: Packing) -> tuple[Tensor, Tensor]:
    """Return two tensors, kernel arguments: each sentence's first row and number of rows in a packed batch."""
    return packing.starts, packing.counts


def _launch_shape(mask: PackedMask, num_heads: int, inner: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the launch grid of the attention kernels, (heads, sentences), and a dict of their block sizes.

    The block sizes are compile-time arguments.
    """
    rows, columns = (max(16, power_of_2(each.max_length)) for each in (mask.queries, mask.keys))
    warps = {16: 1, 32: 2, 64: 4, 128: 8}[max(rows, columns)]
    options = {"ROWS": rows, "COLUMNS": columns, "WIDTH": inner // num_heads, "num_warps": warps}
    return (num_heads, len(mask.queries.starts)), options


# --- attention of a decoding step ---
# The newest tokens of each sentence's hypotheses attend to the KV cache. The cache is read in place, and the newest
# keys and values are appended to it in the same pass.
# Legend: B sentences, W hypotheses of each, L cached positions, H heads, K width of a head.


_BLOCK_BYTES = 1 << 12  # of the keys in a block of cached positions


class AttendedPositions(NamedTuple):
    """The cached positions to which each sentence's hypotheses attend in a decoding step; by default all."""

    allowed: Tensor | None = None
    """A mask of positions, bool, (sentences, hypotheses or 1, at least the cached positions); True: attended to.

    None: all positions, or those that the other fields select.
    """
    counts: Tensor | None = None
    """The number of positions that each sentence attends to, int32, (sentences,); None: all cached positions.

    These are the first positions or, if there is a `position_list`, the first ones of that list.
    """
    position_list: Tensor | None = None
    """A list of positions for each sentence, int32, (sentences, capacity); None: positions are not listed.

    An element is 256 × position, plus the sum of one bit (1 << hypothesis) for each hypothesis that attends to it.
    """


def attend_cached(
    query: Tensor, cache: Tensor, length: int | Tensor, attended: AttendedPositions, num_heads: int
) -> Tensor:
    """Return the attention of each hypothesis' newest token to cached positions, as in equation (1).

    If the new keys and values are passed too, they are appended to the cache, and each token also attends to itself.

    Args:
        query: the queries, (B sentences, W hypotheses, H × K), or queries, keys and values, (B, W, 3 × H × K);
            contiguous.
        cache: keys and values, (B, capacity, 2 × H × K), contiguous within a sentence.
        length: the number of cached positions, as an integer or as a tensor of one number.
        attended: the cached positions to attend to.
        num_heads: the number of heads H, each of width K.

    Returns:
        (B, W, H × K); zeros for a sentence that attends to nothing.
    """
    sentences, width, columns = query.shape
    inner = cache.shape[2] // 2
    head = inner // num_heads
    out = query.new_empty(sentences, width, inner)
    rows = max(16, power_of_2(width))
    allowed, counts, position_list = (query if tensor is None else tensor for tensor in attended)
    row_stride = 0 if attended.allowed is None or allowed.shape[1] == 1 else allowed.stride(1)
    triton_kernels.attend_cached[(num_heads, sentences)](
        query, cache, allowed, position_list, counts, out, length, width, inner, columns, cache.stride(0),
        allowed.stride(0), row_stride, position_list.stride(0), head**-0.5,
        isinstance(length, Tensor), attended.counts is not None,
        attended.position_list is not None, columns > inner, attended.allowed is not None,
        rows, max(16, _BLOCK_BYTES // (head * query.element_size())), head, num_warps=1 if rows == 16 else 4,
    )  # fmt: skip
    return out
