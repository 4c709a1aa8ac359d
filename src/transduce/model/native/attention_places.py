"""What the programs of `attention.py` are given, and what they are written for.

Legend: B sentences, H heads, Q queries, L keys, K width of a head's queries, keys and values.
"""

from typing import Any, NamedTuple

# Queries or keys that share what is loaded: as many as there are registers for.
TOGETHER = 4
# Queries whose weights and slopes are kept for the gradient.
QUERIES_AT_ONCE = 64
# Keys, or queries, that one of AMX's registers holds next to one another, as pairs.
AMX_KEYS = 32
_APART = 16 * 17  # numbers between arrays, which would begin in one and the same part of the first cache else


class AttentionPlaces(NamedTuple):
    """The numbers that both programs are given: addresses, where nothing else is said. Strides count elements."""

    queries: Any
    """Of the first head: a sentence's query, H × K next to one another; as keys and values."""
    keys: Any
    values: Any
    query_stride: Any
    """A number: from one query to the next."""
    key_stride: Any
    """A number: from one key to the next, and from one value to the next."""
    batch: Any
    """A number: B."""
    heads: Any
    """A number: H."""
    num_queries: Any
    """A number: Q."""
    num_keys: Any
    """A number: L."""
    lengths: Any
    """How many keys of each sentence there are, int64, (B,); 0 where all are and no query sees what follows it."""
    context: Any
    """The result, (B, Q, H × K); for the gradient, the gradient by it."""
    sums: Any
    """float32, (B, H, Q, 2): of each query's scores, the greatest and one over the sum of the exponentials."""
    query_gradient: Any
    """As the queries, with their strides; and so on. Written by the gradient's program alone."""
    key_gradient: Any
    value_gradient: Any
    room: Any
    """float32: room for the next number, for each thread."""
    own_room: Any
    """A number: see `room_to_attend`."""


class AttentionShape(NamedTuple):
    """What the programs are written for."""

    width: int
    """K, a multiple of the lanes."""
    kind: Any
    """Of elements: F32, or I16 for bfloat16."""
    lanes: int
    amx: bool = False
    """Whether products are AMX's; of bfloat16, and K is a multiple of `AMX_KEYS`."""


def room_to_attend(shape: AttentionShape, num_keys: int, num_queries: int) -> int:
    """How many numbers of room each thread needs."""
    if shape.amx:
        filled = -(-num_keys // AMX_KEYS) * AMX_KEYS
        return sum(filled * each_key + rest for each_key, rest in amx_room(shape.width))
    filled, queries = -(-num_keys // shape.lanes) * shape.lanes, min(num_queries, QUERIES_AT_ONCE)
    return 6 * filled * shape.width + 2 * max(queries, TOGETHER) * (shape.width + filled)


def amx_room(width: int) -> list[tuple[int, int]]:
    """Of each array of `AmxRoom`: the numbers for each key, of which there are a multiple of `AMX_KEYS`, and more."""
    rows, sixteen = (width // 2, 0), (16, 0)
    columns, queries = (0, 8 * width), (0, 16 * width)
    pairs, whole = (8, 0), (width, 0)
    found = [
        *[rows] * 4,
        *[columns] * 2,
        *[sixteen] * 2,
        *[pairs] * 2,
        queries,
        (0, 16),
        *[queries] * 2,
        *[sixteen] * 2,
        *[whole] * 2,
    ]
    return [(each_key, rest + _APART) for each_key, rest in found]
