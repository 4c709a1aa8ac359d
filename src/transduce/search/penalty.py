"""What a hypothesis' log-probability is divided by: the paper's length penalty, and `generate`'s."""

from collections.abc import Callable

LengthPenalty = Callable[[int, float], float]
"""Of a number of pieces and of alpha."""


def length_penalty(length: int, alpha: float) -> float:
    """((5 + |Y|) / 6)^alpha (section 6.1; Wu et al. 2016, equation 14); |Y| counts the end symbol."""
    return float(((5.0 + length) / 6.0) ** alpha)


def power_of_length(length: int, alpha: float) -> float:
    """|Y|^alpha, by which Hugging Face's `generate` divides."""
    return float(length**alpha)
