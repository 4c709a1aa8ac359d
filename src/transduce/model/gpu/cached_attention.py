"""A step of decoding's attention on a GPU: the newest pieces of each sentence's hypotheses look at what is cached.

The cache is read where it lies, and the newest keys and values are written to it in the same pass.
Legend: B sentences, W hypotheses of each, L cached positions, H heads, K width of a head.
"""

from typing import NamedTuple

from torch import Tensor

from transduce.model.gpu.programs import cached_attention as programs
from transduce.model.gpu.sizes import power_of_2

_BLOCK_BYTES = 1 << 12  # of the keys of cached positions that are looked at together


class Seen(NamedTuple):
    """Which cached positions are looked at, where it is not all of them."""

    allowed: Tensor | None = None
    """By each hypothesis, bool, (B, W or 1, at least L)."""
    counts: Tensor | None = None
    """How many there are for each sentence, int32, (B,)."""
    listed: Tensor | None = None
    """Which these are, int32, (B, room): 256 times the position, and a bit for each hypothesis that looks at it."""


def attend_cached(query: Tensor, cache: Tensor, length: int | Tensor, seen: Seen, num_heads: int) -> Tensor:
    """Equation (1) for the newest pieces, each of which looks at itself too where it brings keys and values.

    Args:
        query: queries, (B, W, H × K); or queries, keys and values, (B, W, 3 × H × K), of which the last two are put
            into the cache, after what is there. Contiguous.
        cache: keys and values, (B, room, 2 × H × K), contiguous but for the sentences.
        length: L, how many of them there are; or where that stands, a tensor of one number.
        seen: which of these are looked at.
        num_heads: H.

    Returns:
        (B, W, H × K); zeros for a sentence that looks at nothing.
    """
    sentences, width, columns = query.shape
    inner = cache.shape[2] // 2
    head = inner // num_heads
    out = query.new_empty(sentences, width, inner)
    rows = max(16, power_of_2(width))
    allowed, counts, listed = (query if part is None else part for part in seen)
    row_stride = 0 if seen.allowed is None or allowed.shape[1] == 1 else allowed.stride(1)
    programs.attend_cached[(num_heads, sentences)](
        query, cache, allowed, listed, counts, out, length, width, inner, columns, cache.stride(0), allowed.stride(0),
        row_stride, listed.stride(0), head**-0.5, isinstance(length, Tensor), seen.counts is not None,
        seen.listed is not None, columns > inner, seen.allowed is not None,
        rows, max(16, _BLOCK_BYTES // (head * query.element_size())), head, num_warps=1 if rows == 16 else 4,
    )  # fmt: skip
    return out
