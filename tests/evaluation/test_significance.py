"""Test paired significance tests on equal, clearly and randomly different systems, and against sacreBLEU."""

import math
import random
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from transduce.deprecation import RenamedWarning
from transduce.errors import TransduceError
from transduce.evaluation import Comparison, compare, score, significance
from transduce.evaluation.significance import (
    Formula,
    bleu_from_counts,
    bootstrap_differences,
    chrf_from_counts,
    count_sentences,
    describe_needed,
    p_value,
    randomization_differences,
)

WORDS = [
    "the",
    "a",
    "dog",
    "cat",
    "man",
    "woman",
    "house",
    "river",
    "sees",
    "finds",
    "paints",
    "old",
    "young",
    "red",
    "green",
    "near",
    "under",
    "with",
]


def make_references(sentences: int, seed: int = 1) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(5, 12))) + "." for _ in range(sentences)]


def corrupt(lines: list[str], share: float, seed: int) -> list[str]:
    """Return lines in which a random share of the words is replaced by others."""
    generator = random.Random(seed)

    def translate(line: str) -> str:
        return " ".join(generator.choice(WORDS) if generator.random() < share else word for word in line.split(" "))

    return [translate(line) for line in lines]


REFERENCES = make_references(300)
SYSTEM_A = corrupt(REFERENCES, 0.30, seed=2)
SLIGHTLY_BETTER = corrupt(REFERENCES, 0.27, seed=3)
MUCH_BETTER = corrupt(REFERENCES, 0.15, seed=4)


@pytest.fixture(scope="module")
def slight_difference() -> Comparison:
    return compare(SYSTEM_A, SLIGHTLY_BETTER, REFERENCES, target_language="en")


def test_values_are_those_of_score(slight_difference: Comparison) -> None:
    for system, bleu, chrf in (
        (SYSTEM_A, slight_difference.bleu.value_a, slight_difference.chrf.value_a),
        (SLIGHTLY_BETTER, slight_difference.bleu.value_b, slight_difference.chrf.value_b),
    ):
        report = score(system, REFERENCES, target_language="en")
        assert report.bleu.value == pytest.approx(bleu)
        assert report.chrf.value == pytest.approx(chrf)
        assert report.bleu.signature == slight_difference.bleu.signature
        assert report.chrf.signature == slight_difference.chrf.signature
    assert slight_difference.bleu.difference == pytest.approx(
        slight_difference.bleu.value_b - slight_difference.bleu.value_a
    )


@pytest.mark.parametrize(("metric", "formula"), [(BLEU, bleu_from_counts), (CHRF, chrf_from_counts)])
def test_formulas_are_sacrebleus_even_where_counts_are_missing(metric: type[BLEU | CHRF], formula: Formula) -> None:
    pairs = [
        ("", "a b c d e"),  # nothing at all
        ("x y z v w", "a b c d e"),  # no match
        ("a", "a b c d e"),  # no n-gram of higher order
        ("a x b", "a b"),  # orders without a match; an order that only one side has
        ("a b x c d e", "a b c d e f g h"),  # short: brevity penalty
        ("a b c d e f", "a b c d e"),
        ("a", ""),
    ]
    for hypothesis, reference in pairs:
        oracle = metric(references=[[reference]])
        counts = count_sentences(oracle, [hypothesis])
        expected = oracle._aggregate_and_compute(counts.tolist()).score
        assert formula(counts) == pytest.approx([expected], abs=1e-9), (hypothesis, reference)


def test_equal_outputs_show_no_difference() -> None:
    result = compare(SYSTEM_A, list(SYSTEM_A), REFERENCES, target_language="en")
    for row in (result.bleu, result.chrf):
        assert (row.difference, row.interval_low, row.interval_high) == (0, 0, 0)
        assert (row.p_bootstrap, row.p_randomization, row.is_real) == (1, 1, False)
        expected = f"A and B have the same {row.metric}: there is no difference to explain (p = 1.000)."
        assert row.verdict == expected
    assert result.differing == 0


def test_a_clear_difference_is_significant_in_both_directions() -> None:
    better = compare(SYSTEM_A, MUCH_BETTER, REFERENCES, target_language="en", names=("old", "new"))
    worse = compare(MUCH_BETTER, SYSTEM_A, REFERENCES, target_language="en", names=("new", "old"))
    for forth, back in ((better.bleu, worse.bleu), (better.chrf, worse.chrf)):
        assert forth.p_bootstrap < 0.01 > forth.p_randomization
        assert forth.is_real
        assert 0 < forth.interval_low < forth.difference < forth.interval_high
        assert back.difference == -forth.difference
        assert back.p_randomization == forth.p_randomization
        assert back.verdict == forth.verdict
    assert better.bleu.verdict == (
        f"new is better than old by {better.bleu.difference:.2f} BLEU, "
        "and the difference is significant (p = 0.001): "
        "0 of 1,000 random exchanges of their translations give one as large."
    )


def test_an_inconclusive_difference_names_the_number_of_sentences_needed() -> None:
    half = slice(0, 60)
    row = compare(SYSTEM_A[half], SLIGHTLY_BETTER[half], REFERENCES[half], target_language="en").bleu
    assert 0.05 < row.p_randomization < 1
    assert row.interval_low < 0 < row.interval_high
    assert not row.is_real
    assert row.verdict.startswith(f"The difference of {abs(row.difference):.2f} BLEU between A and B may be chance")
    assert row.verdict.endswith(" sentences would be needed to decide, not 60.")


def test_the_verdict_counts_the_draws_behind_p(slight_difference: Comparison) -> None:
    as_large = round(slight_difference.bleu.p_randomization * 1001) - 1
    assert 0 < as_large < 1000
    assert f": {as_large:,} of 1,000 random exchanges of their translations" in slight_difference.bleu.verdict


def test_sentences_needed_by_hand() -> None:
    # Twice the standard error is needed, half is there: (1.96 * 2) ** 2 = 15.4 times as many.
    assert describe_needed(0.5, 1.0, sentences=100, differing=9).startswith("about 1,500 sentences would be needed")
    assert describe_needed(-3.0, 1.0, sentences=100, differing=9) == "more sentences would be needed to decide"
    assert describe_needed(0.001, 1.0, sentences=100, differing=9).startswith(
        "even 1,000 times as many sentences as these 100"
    )


def sacrebleu_results(test_type: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Result, Result]:
    """Return the results of sacrebleu.significance for the slightly better system, (BLEU, chrF)."""
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    systems: list[tuple[str, Sequence[str]]] = [("A", SYSTEM_A), ("B", SLIGHTLY_BETTER)]
    metrics = {"BLEU": BLEU(), "chrF2": CHRF()}
    _, results = PairedTest(systems, metrics, [REFERENCES], test_type=test_type, n_samples=1000)()
    bleu, chrf = results["BLEU"][1], results["chrF2"][1]
    assert isinstance(bleu, Result)
    assert isinstance(chrf, Result)
    return bleu, chrf


def test_approximate_randomization_is_sacrebleus(
    slight_difference: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    bleu, chrf = sacrebleu_results("ar", monkeypatch)
    # The same draws, and none ties with the observed difference: not near, but equal.
    assert slight_difference.bleu.p_randomization == pytest.approx(bleu.p_value, abs=1e-12)
    assert slight_difference.chrf.p_randomization == pytest.approx(chrf.p_value, abs=1e-12)
    assert 0.002 < slight_difference.bleu.p_randomization < 0.5
    with pytest.warns(RenamedWarning, match="`p_randomisation` is now `p_randomization`"):
        assert slight_difference.bleu.p_randomisation == slight_difference.bleu.p_randomization


def test_bootstrap_agrees_with_sacrebleus(slight_difference: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    for theirs, metric, formula, row in zip(
        sacrebleu_results("bs", monkeypatch),
        (BLEU(references=[REFERENCES]), CHRF(references=[REFERENCES])),
        (bleu_from_counts, chrf_from_counts),
        (slight_difference.bleu, slight_difference.chrf),
        strict=True,
    ):
        counts_a, counts_b = count_sentences(metric, SYSTEM_A), count_sentences(metric, SLIGHTLY_BETTER)
        differences = bootstrap_differences([counts_a], [counts_b], formula, resamples=1000, seed=12345)
        # From the same draws, sacreBLEU tests the size of the difference without its sign, and one side only.
        sizes = np.abs(differences)
        their_p = (np.count_nonzero(sizes - sizes.mean() > abs(row.difference)) + 1) / 1001
        assert their_p == pytest.approx(theirs.p_value, abs=0.002)
        assert (row.interval_low, row.interval_high) == tuple(np.quantile(differences, [0.025, 0.975]))
        # The two-sided p-value of a normal distribution with this standard deviation.
        deviations = abs(row.difference) / differences.std()
        assert row.p_bootstrap == pytest.approx(math.erfc(deviations / math.sqrt(2)), abs=0.03)


@pytest.mark.parametrize(("metric", "formula"), [(BLEU, bleu_from_counts), (CHRF, chrf_from_counts)])
def test_without_a_true_difference_p_is_uniform(metric: type[BLEU | CHRF], formula: Formula) -> None:
    references = make_references(50, seed=9)
    oracle = metric(references=[references])
    systems = [count_sentences(oracle, corrupt(references, 0.3, seed)) for seed in range(100, 140)]
    randomization, bootstrap = [], []
    for number in range(150):
        a, b = systems[number % 40], systems[(number + 1 + number // 40) % 40]
        difference = float((formula(b.sum(axis=0)[None]) - formula(a.sum(axis=0)[None]))[0])
        exchanged = randomization_differences(a, b, formula, resamples=199, seed=number)
        resampled = bootstrap_differences([a], [b], formula, resamples=199, seed=number)
        randomization.append(p_value(difference, exchanged))
        bootstrap.append(p_value(difference, resampled - resampled.mean()))
    for p_values in (np.array(randomization), np.array(bootstrap)):
        assert np.mean(p_values) == pytest.approx(0.5, abs=0.08)
        for level in (0.1, 0.25, 0.5, 0.75):
            assert np.mean(p_values <= level) == pytest.approx(level, abs=0.1)


def test_the_seed_decides_everything() -> None:
    first, again, other = (
        compare(SYSTEM_A, SLIGHTLY_BETTER, REFERENCES, target_language="en", resamples=200, seed=seed)
        for seed in (7, 7, 8)
    )
    assert first == again
    assert first.bleu.interval_low != other.bleu.interval_low


def test_resampling_in_portions_gives_the_same_result(
    slight_difference: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(significance, "MAXIMUM_DRAWS", 70 * len(REFERENCES))
    assert compare(SYSTEM_A, SLIGHTLY_BETTER, REFERENCES, target_language="en") == slight_difference


def test_one_sentence_proves_nothing() -> None:
    result = compare(["a b c d e"], ["v w x y z"], ["a b c d e"], target_language="en")
    assert result.bleu.difference == pytest.approx(-100)
    assert result.bleu.p_randomization == 1
    assert result.bleu.verdict.endswith("; they differ in 1 sentence, and fewer than 6 cannot decide.")
    assert "1 sentence, 1 differ; " in str(result)


@pytest.mark.parametrize(("differing", "is_real"), [(5, False), (6, True)])
def test_fewer_than_six_differing_sentences_decide_nothing(differing: int, is_real: bool) -> None:
    references = make_references(12)
    worse = [*("x" for _ in range(differing)), *references[differing:]]
    result = compare(worse, references, references, target_language="en")
    assert result.bleu.is_real == is_real
    assert ("cannot decide" in result.bleu.verdict) != is_real


def test_as_many_sentences_as_a_test_set_take_little_time() -> None:
    references = make_references(1500)
    system_a, system_b = corrupt(references, 0.3, seed=5), corrupt(references, 0.3, seed=6)
    metric = BLEU(references=[references])
    counts_a, counts_b = count_sentences(metric, system_a), count_sentences(metric, system_b)
    started_at = time.process_time()
    bootstrap_differences([counts_a], [counts_b], bleu_from_counts, resamples=1000, seed=1)
    randomization_differences(counts_a, counts_b, bleu_from_counts, resamples=1000, seed=1)
    # Seconds of the processor, whatever else it has to do.
    elapsed_seconds = time.process_time() - started_at
    assert elapsed_seconds < 2


def test_settings_reach_the_metrics() -> None:
    result = compare(["我爱你。"] * 2, ["我爱她。"] * 2, ["我爱他。"] * 2, target_language="zh", lowercase=True)
    assert "tok:zh" in result.bleu.signature
    assert "case:lc" in result.bleu.signature
    assert "case:lc" in result.chrf.signature


def test_warnings_name_the_system() -> None:
    lines = ["a b c d", "b c d e"]
    result = compare(["", lines[1]], lines, lines, target_language="en", names=("old", "new"))
    assert result.warnings == ("Empty lines among the hypotheses of old: 1 of 2.",)


def test_systems_that_do_not_translate_yet_are_named() -> None:
    """Short translations without a common 4-gram may be good, which chrF shows."""
    references = ["the old man reads a book", "she goes home early today"] * 4
    nothing, little = ["xyz qqq"] * 8, ["vvv the", "zzz qqq"] * 4
    (sentence,) = compare(nothing, little, references, target_language="en", resamples=100).warnings
    assert sentence.startswith("Both systems have less than 1 BLEU and 30 chrF: neither translates yet")
    for better in (references, ["the old mann read books", "she went homes early"] * 4):
        assert compare(nothing, better, references, target_language="en", resamples=100).warnings == ()


def test_the_report_is_an_aligned_table_with_verdicts_and_signatures(slight_difference: Comparison) -> None:
    lines = str(slight_difference).split("\n")
    assert " ".join(lines[0].split()) == "A B difference 95 % interval p randomization p bootstrap"
    values = [
        f"{slight_difference.bleu.value_a:.2f}",
        f"{slight_difference.bleu.value_b:.2f}",
        f"{slight_difference.bleu.difference:+.2f}",
    ]
    assert lines[1].split()[:4] == ["BLEU", *values]
    assert len({len(line) for line in lines[:3]}) == 1
    assert lines[3:5] == [slight_difference.bleu.verdict, slight_difference.chrf.verdict]
    assert lines[5].endswith("; 1,000 resamples, seed 12345")
    assert lines[6:] == [f"BLEU  {slight_difference.bleu.signature}", f"chrF  {slight_difference.chrf.signature}"]


def test_metrics_that_disagree_are_named(slight_difference: Comparison) -> None:
    by_bleu = msgspec.structs.replace(
        slight_difference,
        bleu=msgspec.structs.replace(slight_difference.bleu, is_real=True),
        chrf=msgspec.structs.replace(slight_difference.chrf, is_real=False),
    )
    assert "BLEU and chrF disagree: the difference is significant by BLEU, but not by chrF." in str(by_bleu)


def test_comparison_survives_json(slight_difference: Comparison) -> None:
    assert msgspec.json.decode(msgspec.json.encode(slight_difference), type=Comparison) == slight_difference


def test_systems_with_different_numbers_of_lines_are_refused() -> None:
    message = "there are 1 hypothesis of A and 2 hypotheses of B and 2 references"
    with pytest.raises(TransduceError, match=message):
        compare(["a"], ["a", "b"], ["a", "b"], target_language="en")


def test_fewer_than_100_resamples_are_refused() -> None:
    with pytest.raises(TransduceError, match="`resamples` must be at least 100, but is 99"):
        compare(["a"], ["b"], ["a"], target_language="en", resamples=99)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(TransduceError, match="`seed` must be at least 0, but is -1"):
        compare(["a"], ["b"], ["a"], target_language="en", seed=-1)


def test_two_systems_with_the_same_name_are_refused() -> None:
    with pytest.raises(TransduceError, match="two names, but both are called 'model'"):
        compare(["a"], ["b"], ["a"], target_language="en", names=("model", "model"))


def test_iterators_of_lines_are_accepted() -> None:
    one, other = ["a b c d", "e f"], ["a b c", "e f"]
    given = (iter(one), iter(other), iter(one))
    assert compare(*given, target_language="en") == compare(one, other, one, target_language="en")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resamples": "x"}, "`resamples` must be a whole number, but is 'x'"),
        ({"resamples": 150.5}, "`resamples` must be a whole number, but is 150.5"),
        ({"seed": None}, "`seed` must be a whole number, but is None"),
        ({"names": ("a",)}, "`names` must be two texts"),
        ({"names": "ab"}, "`names` must be two texts"),
    ],
)
def test_arguments_of_wrong_type_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        compare(["a"], ["b"], ["a"], target_language="en", **options)


@pytest.mark.parametrize("name", ["BLEU", "chrF"])
def test_the_standard_error_from_contributions_is_that_of_the_bootstrap(name: significance.MetricName) -> None:
    generator = random.Random(3)
    references = [" ".join(generator.choices(WORDS, k=12)) for _ in range(300)]
    hypotheses = [" ".join(w for w in line.split() if generator.random() < 0.9) for line in references]
    contributions = significance.score_contributions(name, hypotheses, references, target_language="en")
    report = score(hypotheses, references, target_language="en")
    value = report.bleu.value if name == "BLEU" else report.chrf.value
    assert sum(contributions) / len(contributions) == pytest.approx(value, abs=0.1)

    metric: BLEU | CHRF = BLEU(references=[references])
    formula = bleu_from_counts
    if name == "chrF":
        metric, formula = CHRF(references=[references]), chrf_from_counts
    counts = count_sentences(metric, hypotheses)
    none = np.zeros_like(counts)
    spread = bootstrap_differences([none], [counts], formula, resamples=2000, seed=1).std()
    assert significance.standard_error(contributions) == pytest.approx(spread, rel=0.1)
    assert significance.standard_error([1.0]) is None
