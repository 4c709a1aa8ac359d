"""Resampling tests for score differences, without scoring a sentence twice.

BLEU and chrF are functions of counts that add up over sentences. So the counts of many resampled corpora are one
matrix product: how often each sentence was drawn, times the counts of each sentence.

Legend: N sentences, K counts of a sentence (10 for BLEU, 18 for chrF), R resamples.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# Maps summed counts (R, K) to scores (R,), from 0 to 100.
Formula = Callable[[Floats], Floats]

# Maximum number of draws in memory: 32 MB.
MAXIMUM_DRAWS = 4_000_000
# Equal corpora must tie even if a processor's vectorized and scalar logarithms differ in the last bit.
ROUNDING = 1e-9
NGRAM_ORDERS = 4
CHRF_BETA_SQUARED = 4


def bootstrap_differences(counts_a: Floats, counts_b: Floats, formula: Formula, *, resamples: int, seed: int) -> Floats:
    """Return the score differences B - A on R test sets drawn with replacement (Koehn 2004).

    Counts are (N, K) for each system; the result is (R,).
    """
    generator = np.random.default_rng(seed)
    sentences, width = counts_a.shape
    both = np.hstack([counts_a, counts_b])  # (N, 2K)
    differences = []
    for rows in _rows_at_once(resamples, sentences):
        drawn = generator.integers(sentences, size=(rows, sentences))
        sums = _times_drawn(drawn) @ both  # (rows, 2K)
        differences.append(formula(sums[:, width:]) - formula(sums[:, :width]))
    return np.concatenate(differences)


def randomisation_differences(
    counts_a: Floats, counts_b: Floats, formula: Formula, *, resamples: int, seed: int
) -> Floats:
    """Return the score differences after the two translations of each line are exchanged at random.

    Approximate randomization (Riezler and Maxwell 2005). Shapes are those of `bootstrap_differences`.
    """
    generator = np.random.default_rng(seed)
    sentences = len(counts_a)
    total_a, total_b = counts_a.sum(axis=0), counts_b.sum(axis=0)
    differences = []
    for rows in _rows_at_once(resamples, sentences):
        exchanged = generator.integers(2, size=(rows, sentences), dtype=bool)
        moved = exchanged.astype(np.float64) @ (counts_b - counts_a)  # (rows, K)
        differences.append(formula(total_b - moved) - formula(total_a + moved))
    return np.concatenate(differences)


def p_value(difference: float, chance_differences: Floats) -> float:
    """Return the probability that chance gives a difference at least as large, in either direction.

    The observed difference counts as one more draw (Noreen 1989), so the value is never zero.
    """
    as_large = np.count_nonzero(np.abs(chance_differences) >= abs(difference) - ROUNDING)
    return (int(as_large) + 1) / (len(chance_differences) + 1)


def bleu_from_counts(counts: Floats) -> Floats:
    """Compute BLEU (R,) from (R, 10): lengths of hypothesis and reference, matches of 4 orders, n-grams of 4 orders.

    The smoothing is sacreBLEU's default ("exp").
    """
    length, reference_length = counts[:, 0], counts[:, 1]
    matches, ngrams = counts[:, 2 : 2 + NGRAM_ORDERS], counts[:, 2 + NGRAM_ORDERS :]
    # BLEU is zero without any match, or without any n-gram of the highest order.
    defined = matches.any(axis=1) & ngrams.all(axis=1)
    # The first order without a match counts as 1/2 match, the second as 1/4, …
    smoothed = np.where(matches == 0, 0.5 ** np.cumsum(matches == 0, axis=1), matches)
    mean_logarithm = np.log(smoothed / np.maximum(ngrams, 1)).mean(axis=1)
    brevity = np.minimum(0.0, 1 - reference_length / np.maximum(length, 1))
    return np.where(defined, 100 * np.exp(brevity + mean_logarithm), 0.0)


def chrf_from_counts(counts: Floats) -> Floats:
    """Compute chrF (R,) from (R, 18): for each of 6 orders, n-grams of hypothesis and reference, and matches.

    An order that one side lacks is excluded from the means, as in sacreBLEU.
    """
    hypothesis, reference, matches = counts[:, 0::3], counts[:, 1::3], counts[:, 2::3]
    orders = np.maximum(np.count_nonzero((hypothesis > 0) & (reference > 0), axis=1), 1)
    # An excluded order has no matches, so it adds nothing to the sums.
    precision = (matches / np.maximum(hypothesis, 1)).sum(axis=1) / orders
    recall = (matches / np.maximum(reference, 1)).sum(axis=1) / orders
    weighted = CHRF_BETA_SQUARED * precision + recall
    score: Floats = (1 + CHRF_BETA_SQUARED) * precision * recall / np.where(weighted == 0, 1.0, weighted)
    return 100 * score


def _rows_at_once(resamples: int, sentences: int) -> Iterator[int]:
    """Yield portions of the resamples that fit into memory; their size does not affect the draws."""
    # numpy draws 32 bits from one random number and discards unused ones after each call.
    most = max(1, MAXIMUM_DRAWS // sentences // 32) * 32
    for start in range(0, resamples, most):
        yield min(most, resamples - start)


def _times_drawn(drawn: npt.NDArray[np.int64]) -> Floats:
    """Convert drawn sentence numbers (rows, N) to how often each sentence was drawn (rows, N)."""
    rows, sentences = drawn.shape
    cells = drawn + sentences * np.arange(rows)[:, None]
    times = np.bincount(cells.ravel(), minlength=rows * sentences).reshape(rows, sentences)
    return times.astype(np.float64)
