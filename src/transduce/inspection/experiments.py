"""Report on experiments: train variants with several seeds, and write a table of scores, significance and a plot."""

import importlib.util
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from transduce.atomic_io import write_file, write_json
from transduce.errors import TransduceError, count_noun, explain_wrong_types
from transduce.evaluation.label_scores import count_tags
from transduce.evaluation.scores import check_line_counts, choose_tokenizer, find_warnings, make_metrics
from transduce.evaluation.significance import (
    LEVEL,
    Floats,
    Formula,
    bleu_from_counts,
    bootstrap_differences,
    chrf_from_counts,
    count_sentences,
    min_p_value,
    p_value,
    permutation_p_value,
)
from transduce.inspection.plots import draw_chart, save_chart
from transduce.inspection.plots_runs import plot_variants
from transduce.model_folder.read import SETTINGS_FILE
from transduce.tasks.experiments import (
    ExperimentOptions,
    ExperimentRun,
    ExperimentSettings,
    Failure,
    expand,
    make_experiment,
    read_experiment,
    run_all,
    test_set,
)
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.settings.reading import make_settings
from transduce.text.files import read_lines
from transduce.text.languages import language_of
from transduce.text.tagged import describe_spans, read_tagged
from transduce.ui_language import aligned, localized

_RESAMPLES, _SEED = 1_000, 12345
_LOWER_IS_BETTER = ("loss",)
REPORT, REPORT_JSON, PLOT = "report.md", "report.json", "plot.png"

# --- scores of a run ---


class _Measured(NamedTuple):
    """The scores of one training run by measure, such as BLEU.

    For a measure that is computed from counts, the counts of each sentence are included.
    """

    values: dict[str, float]
    counts: dict[str, Floats]
    """Dict: measure → counts in each sentence, such as of matching n-grams, whose sums give the score, (sentences,
    counts). Measures without such counts, such as the dev loss, are left out.
    """
    formulas: dict[str, Formula]
    notes: tuple[str, ...] = ()
    """Notes on how the measures were computed, such as sacreBLEU's signatures."""
    warnings: tuple[str, ...] = ()
    """Sentences on what may make the run's scores misleading, such as references that look tokenized."""


def _ratio_formula(counts: Floats) -> Floats:
    """Return R percentages, (R,), computed from R pairs of numerator and denominator, (R, 2).

    Numerators and denominators are sums over sentences.
    """
    return 100.0 * counts[:, 0] / np.maximum(counts[:, 1], 1)


def _from_counts(formulas: dict[str, Formula], counts: dict[str, Floats], notes: tuple[str, ...] = ()) -> _Measured:
    values = {name: float(formulas[name](each.sum(axis=0)[None])[0]) for name, each in counts.items()}
    return _Measured(values, counts, formulas, notes)


def _score_translations(run: ExperimentRun, target: str, tokenize: str | None) -> _Measured:
    data = make_settings(run.content).data
    hypotheses, references = list(read_lines(run.output_path)), list(read_lines(target))
    check_line_counts({f"lines in {run.output_path}": hypotheses, f"lines in {target}": references})
    language = data.languages[1] if data.languages else language_of(target)
    choice = choose_tokenizer(language, tokenize)
    bleu, chrf = make_metrics(choice.name, lowercase=False, references=references)
    counts = {"BLEU": count_sentences(bleu, hypotheses), "chrF": count_sentences(chrf, hypotheses)}
    notes = tuple(f"{name}  {metric.get_signature()}" for name, metric in (("BLEU", bleu), ("chrF", chrf)))
    measured = _from_counts({"BLEU": bleu_from_counts, "chrF": chrf_from_counts}, counts, notes)
    return measured._replace(warnings=find_warnings({}, references, choice, language))


def _score_labels(run: ExperimentRun, target: str) -> _Measured:
    predicted, right = list(read_lines(run.output_path)), list(read_lines(target))
    check_line_counts({f"lines in {run.output_path}": predicted, f"lines in {target}": right})
    hits = np.array([[one == other, 1] for one, other in zip(predicted, right, strict=True)], np.float64)
    return _from_counts({"accuracy": _ratio_formula}, {"accuracy": hits})


def _score_tags(run: ExperimentRun, source: str) -> _Measured:
    right = [each.tags for each in read_tagged(source, make_settings(run.content).data.columns)]
    predicted = [each.tags for each in read_tagged(run.output_path)]
    if len(right) != len(predicted):
        raise TransduceError(
            f"{run.output_path} has {len(predicted):,} sentences, but {source} has {len(right):,}: delete the former, "
            "and start again."
        )
    counted = [count_tags(*pair) for pair in zip(predicted, right, strict=True)]
    counts = {"accuracy": np.array([[each.right, each.words] for each in counted], np.float64)}
    if describe_spans(tag for tags in right for tag in tags):
        spans = [[2 * each.common, each.predicted + each.wanted] for each in counted]
        counts = {"span F1": np.array(spans, np.float64)} | counts
    return _from_counts(dict.fromkeys(counts, _ratio_formula), counts)


def _measure(experiment: ExperimentSettings, run: ExperimentRun) -> _Measured:
    """Return a finished run's scores on the test set, if any, and its best validation score, as `_Measured`."""
    result, test = run.result(), test_set(experiment, run)
    measured = _Measured({}, {}, {})
    if test is not None and run.output_path.exists():
        kind = make_settings(run.content).task.kind
        if kind == "tagging":
            measured = _score_tags(run, test.source)
        elif kind == "translation":
            measured = _score_translations(run, str(test.target), test.tokenize)
        else:
            measured = _score_labels(run, str(test.target))
    if result is not None and result.best_value is not None:
        name = f"dev {read_stored(run.folder / SETTINGS_FILE).training.best_by}"
        measured.values[name] = result.best_value
    return measured


# --- report ---


class VariantResult(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of all finished runs of one variant of an experiment."""

    name: str
    changes: dict[str, Any]
    """The settings in which the variant differs from the experiment's base settings: dotted name → value."""
    seeds: tuple[int, ...]
    """The random seeds of the variant's finished runs."""
    values: dict[str, tuple[float, ...]]
    """Dict: measure, such as "BLEU" → the score of each finished run, in the order of `seeds`."""
    minutes: float
    """Mean training time of a run, in minutes."""

    def mean(self, measure: str) -> float:
        """Return the mean score of the variant's runs by a measure that all its runs have."""
        return statistics.fmean(self.values[measure])

    def deviation(self, measure: str) -> float | None:
        """Return the standard deviation of a measure over the variant's runs (seeds); None for a single run."""
        values = self.values[measure]
        return statistics.stdev(values) if len(values) > 1 else None

    def cell(self, measure: str) -> str:
        """Return a table cell with mean ± standard deviation of a measure; "–" if the variant's runs lack it.

        A single run has no deviation, and gives the mean alone.
        """
        if measure not in self.values:
            return "–"
        deviation = self.deviation(measure)
        digits = 4 if measure.removeprefix("dev ") in _LOWER_IS_BETTER else 2
        return f"{self.mean(measure):.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


class VariantDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a variant with the first variant, the baseline: difference of mean scores, and significance."""

    name: str
    baseline: str
    difference: float
    """The variant's mean score less the first variant's; positive: the variant's score is higher."""
    interval_low: float | None = None
    """Lower end of the middle 95 % of the differences on resampled test sets; None if sentences have no scores."""
    interval_high: float | None = None
    """Upper end of the middle 95 % of the differences on resampled test sets; None if sentences have no scores."""
    p_sentences: float | None = None
    """Two-sided p value of the paired bootstrap over test sentences, for the mean scores over seeds; None if sentences
    have no scores.
    """
    p_seeds: float
    """Two-sided p value of the permutation test over runs (seeds)."""
    min_p_seeds: float
    """The smallest value that `p_seeds` can have for so few runs."""
    verdict: str
    """The conclusion in a few words: "real", "may be due to the seeds", "too few seeds to tell", …"""


class ExperimentReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of an experiment; `str` formats them as a table."""

    measure: str
    """The name of the score, such as "BLEU", by which the variants are compared: the first that all runs have."""
    measures: tuple[str, ...]
    """The names of all scores in the report, in the order of its columns; a variant may lack some."""
    variants: tuple[VariantResult, ...]
    """The results of the variants that have a finished run, the baseline first."""
    differences: tuple[VariantDifference, ...]
    """The comparison of each further variant with the first, the baseline."""
    tested_on: str
    """The path of the test set's source, or a description of the dev set, on which the variants are compared."""
    notes: tuple[str, ...] = ()
    """Notes on how the scores were computed, such as sacreBLEU's signatures."""
    warnings: tuple[str, ...] = ()
    """Sentences on what makes the comparison less reliable, such as missing runs or too few seeds."""
    failures: tuple[Failure, ...] = ()
    """The runs that failed, each with the reason."""

    def __str__(self) -> str:
        lines = aligned(self._rows())
        lines += ["", *aligned(self._difference_rows())] if self.differences else []
        return "\n".join([*lines, *self.notes, *(f"warning: {warning}" for warning in self.warnings)])

    def _rows(self) -> list[list[str]]:
        heading = [localized("variant"), localized("runs"), *map(localized, self.measures), localized("minutes")]
        return [heading] + [
            [each.name, str(len(each.seeds)), *map(each.cell, self.measures), f"{each.minutes:.1f}"]
            for each in self.variants
        ]

    def _difference_rows(self) -> list[list[str]]:
        heads = (f"{self.measure}: difference", "", "95 % (sentences)", "p (sentences)", "p (seeds)", "")
        rows = [list(map(localized, heads))]
        for each in self.differences:
            interval = "–" if each.interval_low is None else f"{each.interval_low:+.2f} … {each.interval_high:+.2f}"
            p = "–" if each.p_sentences is None else f"{each.p_sentences:.3f}"
            name = f"{each.name} − {each.baseline}"
            rows.append([name, f"{each.difference:+.3f}", interval, p, f"{each.p_seeds:.3f}", localized(each.verdict)])
        return rows

    def markdown(self, drawn: str = "") -> str:
        """Return the report as the text of a Markdown page.

        The page shows the plot as the text `drawn`, or if that is empty, as the picture `plot.png`.
        """
        title = localized("Scores by seed, and dev loss by step")
        plot = f"```\n{drawn}\n```" if drawn else f"![{title}]({PLOT})"
        seeds = [[localized("variant"), localized("seed"), *map(localized, self.measures)]]
        changes = [[localized("variant"), localized("differs by")]]
        for each in self.variants:
            for number, seed in enumerate(each.seeds):
                values = (f"{each.values[m][number]:.4f}" if m in each.values else "–" for m in self.measures)
                seeds.append([each.name, str(seed), *values])
            changed = ", ".join(f"`{key} = {value}`" for key, value in each.changes.items())
            changes.append([each.name, changed or "–"])
        significance = [f"## {localized('Significance')}", _table(self._difference_rows()), localized(_EXPLANATION)]
        parts = [
            f"# {localized('Experiment')}",
            localized(f"Mean ± standard deviation between runs, measured on {self.tested_on}."),
            _table(self._rows()),
            *(significance if self.differences else []),
            *(f"* {localized(warning)}" for warning in self.warnings),
            plot,
            f"## {localized('Runs')}",
            _table(seeds),
            f"## {localized('Settings')}",
            _table(changes),
            *(f"    {note}" for note in self.notes),
            *(f"* {localized(f'failed: `{failure.run}`: {failure.reason}')}" for failure in self.failures),
        ]
        return "\n\n".join(parts) + "\n"


_EXPLANATION = (
    "p (sentences): paired bootstrap over the sentences of the mean over seeds (Koehn 2004); it says whether other "
    "test sentences would change the result of these runs. p (seeds): a permutation test over runs; it says whether "
    "other seeds would. A difference is called real if both are below 0.05 divided by the number of comparisons."
)


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _report(
    experiment: ExperimentSettings, runs: Sequence[ExperimentRun], failures: Sequence[Failure]
) -> ExperimentReport:
    """Score the finished runs of an experiment, compare each further variant with the first, and return the report.

    Runs in `failures` are left out of the scores and listed in the report.

    Raises:
        TransduceError: no run has finished, runs have no measure in common, or texts cannot be read.
    """
    failed = {failure.run for failure in failures}
    measured = {
        (run.variant, run.seed): (run, _measure(experiment, run))
        for run in runs
        if run.result() is not None and str(run.folder) not in failed
    }
    if not measured:
        reason = f": {failures[0].run}: {failures[0].reason}" if failures else "."
        raise TransduceError(f"No run of the experiment in {experiment.out} has finished{reason}")
    by_variant: dict[str, list[tuple[ExperimentRun, _Measured]]] = {}
    for name, seed in product(dict.fromkeys(run.variant for run in runs), experiment.seeds):
        if (name, seed) in measured:
            by_variant.setdefault(name, []).append(measured[name, seed])
    variants = [_variant_result(name, each) for name, each in by_variant.items()]
    first = next(iter(by_variant.values()))[0]
    measures = tuple(first[1].values)
    shared = [name for name in measures if all(name in each.values for each in variants)]
    if not shared:
        raise TransduceError(
            f"The runs in {experiment.out} have no measure in common: give all one `training.best_by`."
        )
    measure = shared[0]
    baseline, *others = variants
    level = LEVEL / max(1, len(others))
    differences = [
        _difference(measure, level, *((each, [m for _, m in by_variant[each.name]]) for each in (baseline, other)))
        for other in others
    ]
    test = test_set(experiment, first[0])
    tested_on = "the dev set, by the best validation" if test is None else f"{test.source}"
    if test is not None and experiment.test is None:
        tested_on += " (the dev set)"
    return ExperimentReport(
        measure=measure,
        measures=measures,
        variants=tuple(variants),
        differences=tuple(differences),
        tested_on=tested_on,
        notes=first[1].notes,
        warnings=(*first[1].warnings, *_warnings(experiment, variants, differences, level)),
        failures=tuple(failures),
    )


def _variant_result(name: str, runs: Sequence[tuple[ExperimentRun, _Measured]]) -> VariantResult:
    common = [measure for measure in runs[0][1].values if all(measure in each.values for _, each in runs)]
    seconds = [result.elapsed_seconds for run, _ in runs if (result := run.result()) is not None]
    return VariantResult(
        name=name,
        changes=runs[0][0].changes,
        seeds=tuple(run.seed for run, _ in runs),
        values={measure: tuple(each.values[measure] for _, each in runs) for measure in common},
        minutes=statistics.fmean(seconds) / 60,
    )


def _difference(
    measure: str,
    level: float,
    baseline: tuple[VariantResult, Sequence[_Measured]],
    other: tuple[VariantResult, Sequence[_Measured]],
) -> VariantDifference:
    (result_a, runs_a), (result_b, runs_b) = baseline, other
    values_a, values_b = result_a.values[measure], result_b.values[measure]
    difference = statistics.fmean(values_b) - statistics.fmean(values_a)
    p_seeds, min_p = permutation_p_value(values_a, values_b), min_p_value(len(values_a), len(values_b))
    sentences: dict[str, float] = {}
    if all(measure in each.counts for each in (*runs_a, *runs_b)):
        counts = [[each.counts[measure] for each in runs] for runs in (runs_a, runs_b)]
        resampled = bootstrap_differences(
            counts[0], counts[1], runs_a[0].formulas[measure], resamples=_RESAMPLES, seed=_SEED
        )
        low, high = np.quantile(resampled, [0.025, 0.975])
        sentences = {
            "interval_low": float(low),
            "interval_high": float(high),
            "p_sentences": p_value(difference, resampled - resampled.mean()),
        }
    p_sentences = sentences.get("p_sentences")
    if difference == 0.0:
        verdict = "no difference"
    elif p_sentences is not None and p_sentences >= level:
        verdict = "may be due to the sentences"
    elif min_p >= level:
        verdict = "too few seeds to tell"
    else:
        verdict = "real" if p_seeds < level else "may be due to the seeds"
    return VariantDifference(
        name=result_b.name,
        baseline=result_a.name,
        difference=difference,
        p_seeds=p_seeds,
        min_p_seeds=min_p,
        verdict=verdict,
        **sentences,
    )


def _warnings(
    experiment: ExperimentSettings,
    variants: Sequence[VariantResult],
    differences: Sequence[VariantDifference],
    level: float,
) -> list[str]:
    """Return warnings, a list of sentences, about missing runs of variants and about too few seeds for significance."""
    warnings = [
        f"{each.name} has {len(each.seeds)} of {len(experiment.seeds)} runs."
        for each in variants
        if len(each.seeds) < len(experiment.seeds)
    ]
    if any(each.min_p_seeds >= level for each in differences):
        needed = next(number for number in range(1, 100) if min_p_value(number, number) < level)
        min_p = max(each.min_p_seeds for each in differences)
        warnings.append(
            f"Too few seeds: the smallest possible p is {min_p:.2f}, but must be below {level:.3g} for "
            f"{count_noun(len(differences), 'comparison')}. Train each variant with at least {needed} seeds."
        )
    return warnings


# --- transduce.experiment ---


@explain_wrong_types
def experiment(
    settings: str | Path | Mapping[str, Any],
    *,
    jobs: int = 1,
    device: str = "auto",
    threads: int | None = None,
    precision: str = "auto",
    say: Callable[[str], None] | None = None,
) -> ExperimentReport:
    """Train variants of settings with several seeds, test them, and report means, deviations and significance.

    Each run is a process of its own. Finished runs are not repeated, an interrupted run resumes, and a run that fails
    stops no other. The experiment's folder gets `report.md`, `report.json` and `plot.png`.

    Args:
        settings: the experiment's file, or its content (docs/experiments.md).
        jobs: number of runs at once, which share the cores.
        device: "cpu", "cuda" or "auto".
        threads: number of threads of a run; None: $OMP_NUM_THREADS, or its share of the cores.
        precision: "fp32", "bf16" or "auto".
        say: called with each line of progress; None: standard error.

    Returns:
        The report on the finished runs; its `failures` lists the others.

    Raises:
        TransduceError: settings are wrong, or no run has finished.
    """
    content = make_experiment(settings) if isinstance(settings, Mapping) else read_experiment(settings)
    options = ExperimentOptions(jobs=jobs, device=device, threads=threads, precision=precision)
    return train_and_compare(content, options, say)


def train_and_compare(
    content: ExperimentSettings, options: ExperimentOptions, say: Callable[[str], None] | None = None
) -> ExperimentReport:
    """Train and test an experiment's variants, as the function `experiment` does, write its report, and return it.

    Raises:
        TransduceError: settings of variants are wrong, or no run has finished.
    """
    runs = expand(content)
    say = say or (lambda line: print(localized(line), file=sys.stderr, flush=True))
    failures = run_all(content, runs, options, say)
    report = _report(content, runs, failures)
    _write(content, runs, report)
    return report


def _write(content: ExperimentSettings, runs: Sequence[ExperimentRun], report: ExperimentReport) -> None:
    """Write an experiment's report as Markdown and JSON, and its plot, into the experiment's folder.

    Without matplotlib, the Markdown page has the plot as text.
    """
    out = Path(content.out)
    folders = {
        each.name: [run.folder for run in runs if run.variant == each.name and run.seed in each.seeds]
        for each in report.variants
    }
    scores = {each.name: dict(zip(each.seeds, each.values[report.measure], strict=True)) for each in report.variants}
    chart, drawn = plot_variants(folders, scores, report.measure), ""
    if importlib.util.find_spec("matplotlib") is None:
        drawn = draw_chart(chart)
    else:
        save_chart(chart, out / PLOT)
    write_file(out / REPORT, report.markdown(drawn).encode())
    write_json(out / REPORT_JSON, report)
