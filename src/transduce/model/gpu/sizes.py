"""Sizes of what is launched. Triton has the same functions, which take longer than some programs."""


def ceil_div(count: int, size: int) -> int:
    """How many parts of this size hold so many."""
    return -(-count // size)


def power_of_2(least: int) -> int:
    """The smallest power of two that is at least this, which is positive."""
    return 1 << (least - 1).bit_length()
