"""Test whether two systems differ significantly in BLEU and chrF, and describe the result in a sentence."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from sacrebleu.metrics.base import Metric

from transduce.argument_checks import as_integer, as_texts
from transduce.deprecation import renamed_attribute
from transduce.errors import TransduceError, count_noun, explain_wrong_types
from transduce.evaluation.scores import aligned_lines, choose_tokenizer, find_warnings, lines_sha256, make_metrics
from transduce.ui_language import aligned, localized

# --- resampling ---
# BLEU and chrF are functions of counts that add up over sentences. So the counts of many resampled corpora are one
# matrix product: how often each sentence was drawn, times the counts of each sentence.
# Legend: N sentences, K counts of a sentence (10 for BLEU, 18 for chrF), R resamples.


Floats = npt.NDArray[np.float64]
# Maps summed counts (R, K) to scores (R,), from 0 to 100.
Formula = Callable[[Floats], Floats]

# Maximum number of draws in memory: 32 MB.
MAXIMUM_DRAWS = 4_000_000
# Equal corpora must tie even if a processor's vectorized and scalar logarithms differ in the last bit.
ROUNDING = 1e-9
NGRAM_ORDERS = 4
CHRF_BETA_SQUARED = 4


def bootstrap_differences(
    systems_a: Sequence[Floats], systems_b: Sequence[Floats], formula: Formula, *, resamples: int, seed: int
) -> Floats:
    """Return the differences B - A of two groups' mean scores on random test sets.

    This is paired bootstrap resampling (Koehn 2004): each test set is N sentences drawn with replacement, the same for
    all systems. A group has one or several systems, such as runs with different seeds. The score of a group is the mean
    of its systems' scores.

    Args:
        systems_a: an array (N, K) for each system of group A: K counts of each of N sentences, whose sums over the
            sentences determine the system's score.
        systems_b: the same for group B.
        formula: computes scores (R,) from sums of counts (R, K).
        resamples: the number R of test sets.
        seed: the random seed.

    Returns:
        The differences, (R,).
    """
    generator = np.random.default_rng(seed)
    sentences, width = systems_a[0].shape
    every = np.hstack([*systems_a, *systems_b])  # (N, systems · K)
    differences = []
    for rows in _rows_at_once(resamples, sentences):
        sums = _times_drawn(generator.integers(sentences, size=(rows, sentences))) @ every
        scores = np.stack(
            [formula(part) for part in np.split(sums, every.shape[1] // width, axis=1)]
        )  # (systems, rows)
        differences.append(scores[len(systems_a) :].mean(axis=0) - scores[: len(systems_a)].mean(axis=0))
    return np.concatenate(differences)


def randomization_differences(
    counts_a: Floats, counts_b: Floats, formula: Formula, *, resamples: int, seed: int
) -> Floats:
    """Return the score differences B - A, (R,), when the two translations of each line are exchanged at random.

    This is approximate randomization (Riezler and Maxwell 2005): it shows which differences arise by chance alone.

    Args:
        counts_a: K counts of each sentence of system A, (N, K), whose sums over sentences determine its score.
        counts_b: the same counts of system B, (N, K).
        formula: computes scores (R,) from sums of counts (R, K).
        resamples: the number R of random exchanges.
        seed: the random seed.
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
    """Return the probability that chance gives a score difference as large as the observed one, in either direction.

    Args:
        difference: the observed difference.
        chance_differences: the differences of R random draws, (R,). The observed one counts as one more draw (Noreen
            1989), so the result is never zero.
    """
    as_large = np.count_nonzero(np.abs(chance_differences) >= abs(difference) - ROUNDING)
    return (int(as_large) + 1) / (len(chance_differences) + 1)


# Maximum number of divisions of runs into two groups that are all tried; of more, as many are drawn at random.
_MAX_DIVISIONS = 20_000


def permutation_p_value(values_a: Sequence[float], values_b: Sequence[float]) -> float:
    """Return the p value of the difference between the mean scores of two groups of runs, by a permutation test.

    A run is a system trained with one seed. The p value is the share of all divisions of the runs into groups of these
    sizes whose means differ at least as much, in either direction. If there are more than 20,000 divisions, that many
    are drawn at random. The test assumes nothing about the distribution (Fisher 1935).
    """
    values = np.array([*values_a, *values_b])
    size, total = len(values_a), len(values)
    observed = abs(np.mean(values_b) - np.mean(values_a))
    count = math.comb(total, size)
    if count <= _MAX_DIVISIONS:
        chosen = np.array(list(combinations(range(total), size)))
    else:
        generator = np.random.default_rng(12345)
        chosen = np.array([generator.permutation(total)[:size] for _ in range(_MAX_DIVISIONS)])
    sums = values[chosen].sum(axis=1)
    differences = np.abs((values.sum() - sums) / (total - size) - sums / size)
    as_large = int(np.count_nonzero(differences >= observed - ROUNDING))
    return as_large / count if count <= _MAX_DIVISIONS else (as_large + 1) / (_MAX_DIVISIONS + 1)


def min_p_value(runs_a: int, runs_b: int) -> float:
    """Return the smallest p value that a two-sided permutation test of the runs of two systems can give.

    If this value is above the level of significance, more runs are needed.

    Args:
        runs_a: number of runs of one system.
        runs_b: number of runs of the other.
    """
    # Groups of equal size can be exchanged, which gives the same difference in the other direction.
    return (2 if runs_a == runs_b else 1) / math.comb(runs_a + runs_b, runs_a)


def bleu_from_counts(counts: Floats) -> Floats:
    """Compute BLEU from 0 to 100, an array (R,), from the summed counts of R test sets, (R, 10).

    The 10 counts are the lengths of hypothesis and reference in tokens, the matches of 4 n-gram orders, and the
    hypothesis' n-grams of 4 orders. The smoothing is sacreBLEU's default ("exp").
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
    """Compute chrF from 0 to 100, an array (R,), from the summed counts of R test sets, (R, 18).

    The 18 counts are, for each of 6 orders of character n-grams, those of the hypothesis, of the reference, and
    matches. An order that one side lacks is excluded from the means, as in sacreBLEU.
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
    """Divide the test sets to draw into batches, and yield the size of each batch.

    A batch has at most 4,000,000 draws (32 MB), or 32 test sets if these have more draws. The division does not affect
    the random draws.

    Args:
        resamples: number of test sets; the sum of the sizes.
        sentences: number of draws of each test set.
    """
    # numpy draws 32 bits from one random number and discards unused ones after each call.
    max_rows = max(1, MAXIMUM_DRAWS // sentences // 32) * 32
    for start in range(0, resamples, max_rows):
        yield min(max_rows, resamples - start)


def _times_drawn(drawn: npt.NDArray[np.int64]) -> Floats:
    """Convert the indices of the sentences drawn for test sets to how often each of the N sentences was drawn.

    Args:
        drawn: the indices, (test sets, N).

    Returns:
        The numbers as float64, (test sets, N).
    """
    rows, sentences = drawn.shape
    cells = drawn + sentences * np.arange(rows)[:, None]
    times = np.bincount(cells.ravel(), minlength=rows * sentences).reshape(rows, sentences)
    return times.astype(np.float64)


# --- tests and verdict ---


MetricName = Literal["BLEU", "chrF"]

# A difference is called real if chance alone gives one as large with a lower probability than this.
LEVEL = 0.05
MINIMUM_RESAMPLES = 100
# A system below both does not translate yet. Good translations of a word or two have a high chrF, but no BLEU.
MIN_BLEU, MIN_CHRF = 1.0, 30.0
# Number of standard errors at which a true difference is detected at this level.
STANDARD_ERRORS = 1.96
# If n sentences differ, at least two of 2^n exchanges give a difference as large: the observed one and its opposite.
MIN_DIFFERING = 6


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of two systems by one metric, and the significance of their difference."""

    metric: MetricName
    signature: str
    """sacreBLEU's signature: references, case, tokenizer, smoothing, version."""
    value_a: float
    """The score of system A, from 0 to 100."""
    value_b: float
    """The score of system B, from 0 to 100."""
    difference: float
    """The score of system B minus that of system A; positive if B is better."""
    interval_low: float
    """Lower end of the interval with the middle 95 % of the bootstrap differences."""
    interval_high: float
    """Upper end of the interval with the middle 95 % of the bootstrap differences."""
    p_bootstrap: float
    """Two-sided p value of the difference by paired bootstrap resampling."""
    p_randomization: float
    """Two-sided p value of the difference by approximate randomization, which decides the verdict."""
    is_real: bool
    """True if the difference is significant: `p_randomization` is below 0.05."""
    verdict: str
    """The result in one sentence, for readers without knowledge of statistics."""

    p_randomisation = renamed_attribute("p_randomisation", "p_randomization")


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of two systems, A and B, on one test set; `str` formats the comparison as a table with a verdict."""

    name_a: str
    name_b: str
    bleu: MetricComparison
    chrf: MetricComparison
    sentences: int
    """The number of lines (sentences) of the test set."""
    differing: int
    """The number of lines that the two systems translate differently."""
    resamples: int
    """The number of random draws of each of the two tests."""
    seed: int
    """The random seed of the resampling."""
    hypothesis_a_sha256: str
    """SHA-256 (hexadecimal) of system A's hypotheses as a UTF-8 file with a line feed after each line."""
    hypothesis_b_sha256: str
    """SHA-256 (hexadecimal) of system B's hypotheses as a UTF-8 file with a line feed after each line."""
    reference_sha256: str
    """SHA-256 (hexadecimal) of the references as a UTF-8 file with a line feed after each line."""
    decoding_a: dict[str, str | int | float | bool] = {}
    """A dict of the decoding settings of system A, such as beam size, length penalty and precision; empty if
    unknown.
    """
    decoding_b: dict[str, str | int | float | bool] = {}
    """A dict of the decoding settings of system B, such as beam size, length penalty and precision; empty if
    unknown.
    """
    warnings: tuple[str, ...] = ()
    """Sentences about what may make the comparison misleading."""

    def __str__(self) -> str:
        heading = [
            "",
            self.name_a,
            self.name_b,
            *map(localized, ("difference", "95 % interval", "p randomization", "p bootstrap")),
        ]
        metrics = (self.bleu, self.chrf)
        sentences = count_noun(self.sentences, "sentence")
        facts = f"{sentences}, {self.differing:,} differ; {self.resamples:,} resamples, seed {self.seed}"
        return "\n".join(
            [
                *aligned([heading, *map(_cells, metrics)], left=0),
                *(row.verdict for row in metrics),
                *_disagreement(self.bleu, self.chrf),
                facts,
                *(f"{row.metric}  {row.signature}" for row in metrics),
                *_decoding_lines({self.name_a: self.decoding_a, self.name_b: self.decoding_b}),
                *(f"warning: {sentence}" for sentence in self.warnings),
            ]
        )


class PairedTrial(NamedTuple):
    """Two systems' translations of the same lines, to be compared, with the systems' names and the tests' settings."""

    lines_a: list[str]
    lines_b: list[str]
    names: tuple[str, str]
    resamples: int
    seed: int


@explain_wrong_types
def compare(
    hypotheses_a: Sequence[str],
    hypotheses_b: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None,
    tokenize: str | None = None,
    lowercase: bool = False,
    resamples: int = 1000,
    seed: int = 12345,
    names: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Compare two systems' translations of the same lines by BLEU and chrF, and test whether they differ significantly.

    The result is a `Comparison`. The tests are paired bootstrap resampling (Koehn 2004) and paired approximate
    randomization (Riezler and Maxwell 2005). The verdict follows the latter, which that paper finds to raise fewer
    false alarms. With the default seed, draws equal those of sacreBLEU's `--paired-bs` and `--paired-ar` for as many
    resamples. Two things differ: a draw that ties with the observed difference counts as chance, so equal outputs have
    p = 1; and the bootstrap's p is two-sided too.

    Args:
        hypotheses_a: the translations of system A.
        hypotheses_b: the translations of system B.
        references: one reference for each line.
        target_language: language code of the references, which selects BLEU's tokenizer; None: unknown.
        tokenize: sacreBLEU's tokenizer instead.
        lowercase: ignore case.
        resamples: number of random draws of each test.
        seed: random seed of the draws.
        names: names of the systems, for the verdict.

    Raises:
        TransduceError: `score` would refuse an argument, there are fewer than 100 resamples, the seed is negative, or
            both systems have the same name.
    """
    check_trial(resamples, seed, names)
    name_a, name_b = names
    named = {f"hypotheses of {name_a}": hypotheses_a, f"hypotheses of {name_b}": hypotheses_b}
    lines_a, lines_b, references = aligned_lines({**named, "references": references})
    choice = choose_tokenizer(target_language, tokenize)
    systems = dict(zip(named, (lines_a, lines_b), strict=True))
    bleu, chrf = make_metrics(choice.name, lowercase=lowercase, references=references)
    trial = PairedTrial(lines_a, lines_b, names, resamples, seed)
    by_bleu = compare_metric("BLEU", bleu, bleu_from_counts, trial)
    by_chrf = compare_metric("chrF", chrf, chrf_from_counts, trial)
    return Comparison(
        name_a=name_a,
        name_b=name_b,
        bleu=by_bleu,
        chrf=by_chrf,
        sentences=len(references),
        differing=sum(one != other for one, other in zip(lines_a, lines_b, strict=True)),
        resamples=resamples,
        seed=seed,
        hypothesis_a_sha256=lines_sha256(lines_a),
        hypothesis_b_sha256=lines_sha256(lines_b),
        reference_sha256=lines_sha256(references),
        warnings=(*find_warnings(systems, references, choice, target_language), *_too_low(by_bleu, by_chrf)),
    )


def compare_metric(name: MetricName, metric: Metric, formula: Formula, trial: PairedTrial) -> MetricComparison:
    """Run the bootstrap and the randomization test of one metric for two systems, and return a `MetricComparison`.

    Args:
        name: name of the metric.
        metric: sacreBLEU's metric, which must already hold the references.
        formula: computes the metric's scores (R,) from sums of sentences' counts (R, K).
        trial: the translations of both systems and the settings of the tests.
    """
    counts_a, counts_b = count_sentences(metric, trial.lines_a), count_sentences(metric, trial.lines_b)
    value_a, value_b = (float(formula(counts.sum(axis=0)[None])[0]) for counts in (counts_a, counts_b))
    difference = value_b - value_a
    draws = {"resamples": trial.resamples, "seed": trial.seed}
    resampled = bootstrap_differences([counts_a], [counts_b], formula, **draws)
    exchanged = randomization_differences(counts_a, counts_b, formula, **draws)
    low, high = np.quantile(resampled, [0.025, 0.975])
    p_randomization = p_value(difference, exchanged)
    return MetricComparison(
        metric=name,
        signature=str(metric.get_signature()),
        value_a=value_a,
        value_b=value_b,
        difference=difference,
        interval_low=float(low),
        interval_high=float(high),
        # Shifted to mean zero, the resampled differences are those of two equal systems.
        p_bootstrap=p_value(difference, resampled - resampled.mean()),
        p_randomization=p_randomization,
        is_real=p_randomization < LEVEL,
        verdict=describe(name, trial, difference, p_randomization, standard_error=float(resampled.std())),
    )


def count_sentences(metric: Metric, lines: Sequence[str]) -> Floats:
    """Return the counts of n-grams that sacreBLEU takes of each line, whose sums over the lines determine a score.

    Args:
        metric: sacreBLEU's metric, which must already hold the references.
        lines: the N translations.

    Returns:
        An array of the counts, (N, K), where K is 10 for BLEU and 18 for chrF.
    """
    return np.array(metric._extract_corpus_statistics(lines, None), dtype=np.float64)


def score_contributions(
    name: MetricName, hypotheses: Sequence[str], references: Sequence[str], *, target_language: str | None
) -> list[float]:
    """Return a list of each sentence's contribution to BLEU or chrF, from which the score's standard error follows.

    Contributions are the jackknife's pseudo-values (Efron and Tibshirani 1993, chapter 11): N times the score of all N
    sentences, minus N - 1 times the score without the sentence. The mean of all pseudo-values estimates the score.

    Args:
        name: the metric.
        hypotheses: the translations.
        references: one reference for each.
        target_language: language code of the references, which selects BLEU's tokenizer; None: unknown.
    """
    lines, references = aligned_lines({"hypotheses": hypotheses, "references": references})
    metrics = make_metrics(choose_tokenizer(target_language, None).name, lowercase=False, references=references)
    metric, formula = (metrics[0], bleu_from_counts) if name == "BLEU" else (metrics[1], chrf_from_counts)
    counts = count_sentences(metric, lines)
    total, sentences = counts.sum(axis=0), len(lines)
    contributions: list[float] = (
        sentences * formula(total[None])[0] - (sentences - 1) * formula(total - counts)
    ).tolist()
    return contributions


def standard_error(contributions: Sequence[float]) -> float | None:
    """Return the standard error of a score from the contributions of its sentences; None for fewer than two of them."""
    if len(contributions) < 2:
        return None
    return float(np.std(contributions, ddof=1) / math.sqrt(len(contributions)))


def describe(metric: MetricName, trial: PairedTrial, difference: float, p: float, *, standard_error: float) -> str:
    """Return a verdict in a sentence: one system is better, the difference may be chance, or there is none.

    Args:
        metric: the metric's name.
        trial: the translations of both systems A and B, and their names.
        difference: the observed difference B - A.
        p: the p value by approximate randomization, which is significant below 0.05.
        standard_error: the standard error of the difference, from the bootstrap.
    """
    name_a, name_b = trial.names
    if abs(difference) < ROUNDING:
        return f"{name_a} and {name_b} have the same {metric}: there is no difference to explain (p = {p:.3f})."
    # The observed difference itself is one of the draws behind p.
    as_large = round(p * (trial.resamples + 1)) - 1
    share = f"{as_large:,} of {trial.resamples:,} random exchanges of their translations give one as large"
    size = f"{abs(difference):.2f} {metric}"
    if p < LEVEL:
        better, worse = (name_b, name_a) if difference > 0 else (name_a, name_b)
        return f"{better} is better than {worse} by {size}, and the difference is significant (p = {p:.3f}): {share}."
    differing = sum(one != other for one, other in zip(trial.lines_a, trial.lines_b, strict=True))
    needed = describe_needed(difference, standard_error, sentences=len(trial.lines_a), differing=differing)
    between = f"The difference of {size} between {name_a} and {name_b}"
    return f"{between} may be chance (p = {p:.3f}): {share}; {needed}."


def describe_needed(difference: float, standard_error: float, *, sentences: int, differing: int) -> str:
    """Return a clause with the size of a test set on which the difference of two systems would be significant.

    The size is in sentences; the standard error falls with its square root. If the size cannot be estimated, the clause
    says why.

    Args:
        difference: the observed difference of two systems' scores.
        standard_error: the difference's standard error on this test set.
        sentences: number of sentences of this test set.
        differing: how many of its sentences the systems translate differently.
    """
    if differing < MIN_DIFFERING:
        return f"they differ in {count_noun(differing, 'sentence')}, and fewer than {MIN_DIFFERING} cannot decide"
    needed = sentences * (STANDARD_ERRORS * standard_error / difference) ** 2
    if needed <= sentences:
        return "more sentences would be needed to decide"
    if needed > 1000 * sentences:
        return f"even 1,000 times as many sentences as these {sentences:,} would not decide"
    return f"about {float(f'{needed:.2g}'):,.0f} sentences would be needed to decide, not {sentences:,}"


def check_trial(resamples: int, seed: int, names: tuple[str, str]) -> None:
    """Check the arguments of `compare` other than the texts: number of resamples, seed, and names of the systems.

    Raises:
        TransduceError: an argument is invalid.
    """
    as_integer(resamples, "resamples", minimum=MINIMUM_RESAMPLES)
    as_integer(seed, "seed", minimum=0)
    if isinstance(names, str) or len(as_texts(names)) != 2:
        raise TransduceError(f"`names` must be two texts, one for each system, but is {names!r}.")
    if names[0] == names[1]:
        raise TransduceError(f"Two systems need two names, but both are called {names[0]!r}: rename one.")


def _decoding_lines(decoding: Mapping[str, Mapping[str, str | int | float | bool]]) -> list[str]:
    return [
        f"decoding of {name}: {', '.join(f'{setting}={value}' for setting, value in settings.items())}"
        for name, settings in decoding.items()
        if settings
    ]


def _too_low(bleu: MetricComparison, chrf: MetricComparison) -> tuple[str, ...]:
    """Return a warning, in a tuple, if both systems have less than 1 BLEU and 30 chrF; otherwise an empty tuple.

    Such systems do not translate yet.
    """
    if max(bleu.value_a, bleu.value_b) >= MIN_BLEU or max(chrf.value_a, chrf.value_b) >= MIN_CHRF:
        return ()
    message = (
        "Both systems have less than 1 BLEU and 30 chrF: neither translates yet, so the difference says little about "
        "quality."
    )
    return (message,)


def _disagreement(bleu: MetricComparison, chrf: MetricComparison) -> list[str]:
    """Return a list of one sentence if BLEU and chrF disagree on the better system or on significance; otherwise []."""
    if bleu.is_real and chrf.is_real and bleu.difference * chrf.difference < 0.0:
        return ["BLEU and chrF disagree: each prefers another system."]
    if bleu.is_real != chrf.is_real:
        yes, no = (bleu, chrf) if bleu.is_real else (chrf, bleu)
        return [f"BLEU and chrF disagree: the difference is significant by {yes.metric}, but not by {no.metric}."]
    return []


def _cells(row: MetricComparison) -> list[str]:
    values = [f"{row.value_a:.2f}", f"{row.value_b:.2f}", f"{row.difference:+.2f}"]
    interval = localized(f"{row.interval_low:+.2f} to {row.interval_high:+.2f}")
    return [row.metric, *values, interval, f"{row.p_randomization:.3f}", f"{row.p_bootstrap:.3f}"]
