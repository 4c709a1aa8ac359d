"""Length penalties that divide a hypothesis's log-probability: the paper's, and that of `generate`."""

from collections.abc import Callable

LengthPenalty = Callable[[int, float], float]
"""Maps a number of tokens and alpha to the divisor of a log-probability."""


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + |Y|) / 6)^alpha (section 6.1; Wu et al. 2016, equation 14); |Y| counts the end symbol."""
    return float(((5.0 + length) / 6.0) ** alpha)


def power_of_length(length: int, alpha: float) -> float:
    """Return |Y|^alpha, the divisor of Hugging Face's `generate`."""
    return float(length**alpha)
