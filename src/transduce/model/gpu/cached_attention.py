"""Run attention of a decoding step on a GPU: the newest tokens of each sentence's hypotheses attend to the KV cache.

The cache is read in place, and the newest keys and values are appended to it in the same pass.

Legend: B sentences, W hypotheses of each, L cached positions, H heads, K width of a head.
"""

from typing import NamedTuple

from torch import Tensor

from transduce.model.gpu.programs import cached_attention as programs
from transduce.model.gpu.sizes import power_of_2

_BLOCK_BYTES = 1 << 12  # of the keys in a block of cached positions


class Seen(NamedTuple):
    """A selection of the cached positions that hypotheses attend to; by default all."""

    allowed: Tensor | None = None
    """A mask of positions for each hypothesis, bool (B, W or 1, at least L)."""
    counts: Tensor | None = None
    """The number of positions of each sentence, int32 (B,)."""
    listed: Tensor | None = None
    """Positions, int32 (B, capacity): 256 × position + a bit for each hypothesis that attends to it."""


def attend_cached(query: Tensor, cache: Tensor, length: int | Tensor, seen: Seen, num_heads: int) -> Tensor:
    """Apply attention, equation (1), to the newest tokens.

    Args:
        query: queries, (B, W, H × K); or queries, keys and values, (B, W, 3 × H × K). The latter are appended to the
            cache, and each token also attends to itself. Contiguous.
        cache: keys and values, (B, capacity, 2 × H × K), contiguous within a sentence.
        length: the number of cached positions L, as an integer or as a tensor of one number.
        seen: the cached positions to attend to.
        num_heads: H.

    Returns:
        (B, W, H × K); zeros for a sentence that attends to nothing.
    """
    sentences, width, columns = query.shape
    inner = cache.shape[2] // 2
    head = inner // num_heads
    out = query.new_empty(sentences, width, inner)
    rows = max(16, power_of_2(width))
    allowed, counts, listed = (query if tensor is None else tensor for tensor in seen)
    row_stride = 0 if seen.allowed is None or allowed.shape[1] == 1 else allowed.stride(1)
    programs.attend_cached[(num_heads, sentences)](
        query, cache, allowed, listed, counts, out, length, width, inner, columns, cache.stride(0), allowed.stride(0),
        row_stride, listed.stride(0), head**-0.5, isinstance(length, Tensor), seen.counts is not None,
        seen.listed is not None, columns > inner, seen.allowed is not None,
        rows, max(16, _BLOCK_BYTES // (head * query.element_size())), head, num_warps=1 if rows == 16 else 4,
    )  # fmt: skip
    return out
