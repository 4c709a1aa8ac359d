"""A step of decoding's attention on a GPU: the newest pieces of each sentence's hypotheses look at what is cached.

The cache is read where it lies, and the newest keys and values are written to it in the same pass.
Legend: B sentences, W hypotheses of each, L cached positions, H heads, K width of a head.
"""

from torch import Tensor

from transduce.model.gpu.programs import cached_attention as programs
from transduce.model.gpu.sizes import power_of_2

_BLOCK_BYTES = 1 << 13  # of the keys of cached positions that are looked at together


def attend_cached(query: Tensor, cache: Tensor, length: int | Tensor, allowed: Tensor | None, num_heads: int) -> Tensor:
    """Equation (1) for the newest pieces, each of which looks at itself too where it brings keys and values.

    Args:
        query: queries, (B, W, H × K); or queries, keys and values, (B, W, 3 × H × K), of which the last two are put
            into the cache, after what is there. Contiguous.
        cache: keys and values, (B, room, 2 × H × K), contiguous but for the sentences.
        length: L, how many of them there are; or where that stands, a tensor of one number.
        allowed: which of these each hypothesis may look at, bool, (B, W or 1, at least L); None: at all.
        num_heads: H.

    Returns:
        (B, W, H × K).
    """
    sentences, width, columns = query.shape
    inner = cache.shape[2] // 2
    head = inner // num_heads
    out = query.new_empty(sentences, width, inner)
    rows = max(16, power_of_2(width))
    mask = query if allowed is None else allowed
    row_stride = 0 if allowed is None or allowed.shape[1] == 1 else allowed.stride(1)
    programs.attend_cached[(num_heads, sentences)](
        query, cache, mask, out, length, width, inner, columns, cache.stride(0), mask.stride(0), row_stride,
        head**-0.5,
        isinstance(length, Tensor), columns > inner, allowed is not None,
        rows, max(16, _BLOCK_BYTES // (head * query.element_size())), head, num_warps=1 if rows == 16 else 4,
    )  # fmt: skip
    return out
