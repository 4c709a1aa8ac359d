"""The length penalty of the paper's beam search (section 6.1; Wu et al. 2016, equation 14)."""


def length_penalty(length: int, alpha: float) -> float:
    """((5 + |Y|) / 6)^alpha, by which a hypothesis' log-probability is divided; |Y| counts the end symbol."""
    return float(((5.0 + length) / 6.0) ** alpha)
