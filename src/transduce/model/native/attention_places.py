"""Define the arguments, the shape and the scratch space of the attention kernels of training.

Legend: B sentences, H heads, Q queries, L keys, K width of a head's queries, keys and values.
"""

from typing import Any, NamedTuple

TOGETHER = 4
"""Queries or keys in a group that shares loaded operands, limited by the number of registers."""
QUERIES_AT_ONCE = 64
"""Queries whose attention weights and score gradients are kept at a time in the backward pass."""
AMX_KEYS = 32
"""Keys or queries in a row of an AMX tile register, as pairs."""
_APART = 16 * 17  # elements between arrays, which would otherwise map to the same sets of the L1 cache


class AttentionPlaces(NamedTuple):
    """Arguments of the kernels `attend` and `attend_back`: addresses, unless stated otherwise.

    Strides count elements.
    """

    queries: Any
    """Queries of the first head; each position has H × K contiguous elements, also for keys and values."""
    keys: Any
    """Keys of the first head."""
    values: Any
    """Values of the first head."""
    query_stride: Any
    """The stride from one query to the next."""
    key_stride: Any
    """The stride from one key to the next, and from one value to the next."""
    batch: Any
    """The number of sentences B."""
    heads: Any
    """The number of heads H."""
    num_queries: Any
    """The number of queries per sentence Q."""
    num_keys: Any
    """The number of keys per sentence L."""
    lengths: Any
    """The number of valid keys of each sentence, int64 (B,); 0: all keys are valid, under a causal mask."""
    context: Any
    """The contexts, (B, Q, H × K); in the backward pass their gradient."""
    sums: Any
    """float32 (B, H, Q, 2): each query's greatest score, and the inverse of its scores' sum of exponentials."""
    query_gradient: Any
    """Output of the backward pass: the gradient of the queries, with the queries' stride."""
    key_gradient: Any
    """Output of the backward pass: the gradient of the keys, with the keys' stride."""
    value_gradient: Any
    """Output of the backward pass: the gradient of the values, with the keys' stride."""
    room: Any
    """Scratch space of `own_room` float32 for each thread."""
    own_room: Any
    """The number of float32 of scratch space per thread, as `room_to_attend` returns it."""


class AttentionShape(NamedTuple):
    """The sizes and types that attention kernels are compiled for."""

    width: int
    """The head width K, a multiple of the lanes."""
    kind: Any
    """The LLVM type of elements: F32, or I16 for bfloat16."""
    lanes: int
    """32-bit elements per vector register."""
    amx: bool = False
    """True if AMX multiplies; requires bfloat16 and K a multiple of `AMX_KEYS`."""


def room_to_attend(shape: AttentionShape, num_keys: int, num_queries: int) -> int:
    """Return the number of float32 of scratch space that each thread needs."""
    if shape.amx:
        filled = -(-num_keys // AMX_KEYS) * AMX_KEYS
        return sum(filled * each_key + rest for each_key, rest in amx_room(shape.width))
    filled, queries = -(-num_keys // shape.lanes) * shape.lanes, min(num_queries, QUERIES_AT_ONCE)
    return 6 * filled * shape.width + 2 * max(queries, TOGETHER) * (shape.width + filled)


def amx_room(width: int) -> list[tuple[int, int]]:
    """Return for each array of `AmxRoom` its float32 elements per key and its fixed number of elements.

    The number of keys is rounded up to a multiple of `AMX_KEYS`.
    """
    rows, sixteen = (width // 2, 0), (16, 0)
    transposed, queries = (0, 8 * width), (0, 16 * width)
    pairs, float_rows = (8, 0), (width, 0)
    sizes = [
        *[rows] * 4,
        *[transposed] * 2,
        *[sixteen] * 2,
        *[pairs] * 2,
        queries,
        (0, 16),
        *[queries] * 2,
        *[sixteen] * 2,
        *[float_rows] * 2,
    ]
    return [(each_key, rest + _APART) for each_key, rest in sizes]
