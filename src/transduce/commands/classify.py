"""`transduce classify MODEL < texts > labels`: label lines of text, or with `--labels` report the accuracy."""

import argparse
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.atomic_io import write_file
from transduce.commands.options import add_computing, check_writable, file_or_stream, write_report
from transduce.commands.translate import standard_output, stdin_lines
from transduce.errors import TransduceError
from transduce.text.files import read_lines

if TYPE_CHECKING:
    from transduce.inference.classifier import Classification, Classifier

_LINES_AT_A_TIME = 1_024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce classify`."""
    add = parser.add_argument
    add("model", help="the folder of a classifier")
    add("text", nargs="?", metavar="FILE", type=file_or_stream, help="texts, one per line (default: standard input)")
    add(
        "--probabilities",
        type=_number_of_labels,
        nargs="?",
        const=-1,
        metavar="N",
        help="print the N most likely labels with their probabilities; all labels without N",
    )
    add("--labels", metavar="FILE", help="the right labels, one per line: report the accuracy, print no labels")
    add("--output", metavar="FILE", type=file_or_stream, help="write the labels here (default: standard output)")
    add("--json", metavar="PATH", help="with --labels: write the report as JSON; -: to standard output")
    add_computing(parser)


def _number_of_labels(text: str) -> int:
    """Parse the number of labels; the error message also explains a file name that is taken for the option's value."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of labels (1 or more); put a file before the option")


def run(options: argparse.Namespace) -> int:
    """Print a label for each text or, if the correct labels are known, a report of scores."""
    from transduce.inference.classifier import load_classifier

    check_writable(options.output, report=options.json, inputs=[options.model, options.text, options.labels])
    if options.json and not options.labels:
        raise TransduceError("`--json` writes the report of `--labels`: pass the right labels too, or leave it out.")
    if options.probabilities and options.labels and not options.output:
        raise TransduceError(
            "`--probabilities` are printed after labels, but `--labels` prints none: add `--output`, or leave one "
            "of them out."
        )
    classifier = load_classifier(
        options.model, precision=options.precision, device=options.device, threads=options.threads
    )
    lines = read_lines(options.text) if options.text else stdin_lines()
    if options.labels or options.output:
        _report(options, classifier, list(lines))
        return 0
    with standard_output() as output:
        for classification in _classified(classifier, lines):
            output.write(format_classification(classification, options.probabilities) + "\n")
            output.flush()
    return 0


def _report(options: argparse.Namespace, classifier: "Classifier", texts: list[str]) -> None:
    """Classify all texts, write the labels to a file if requested, and print scores if the right labels are known."""
    from transduce.evaluation.scores import check_line_counts, score_labels
    from transduce.inference.evaluate import check_labels

    labels = list(read_lines(options.labels)) if options.labels else None
    if labels is not None:
        place = options.text or "standard input"
        check_line_counts({f"lines in {place}": texts, f"lines in {options.labels}": labels})
        check_labels(classifier, labels, f"{options.labels}:1")
    classification = list(_classified(classifier, texts))
    if options.output:
        lines = "".join(f"{format_classification(each, options.probabilities)}\n" for each in classification)
        write_file(Path(options.output), lines.encode())
    if labels is not None:
        write_report(score_labels([each.label for each in classification], labels), options.json)


def _classified(classifier: "Classifier", lines: Iterable[str]) -> "Iterator[Classification]":
    waiting = iter(lines)
    while block := list(itertools.islice(waiting, _LINES_AT_A_TIME)):
        yield from classifier(block)


def format_classification(classification: "Classification", shown: int | None) -> str:
    """Format a label, or labels with their probabilities, separated by tabs."""
    if not shown:
        return classification.label
    ranked = list(classification.probabilities.items())[: shown if shown > 0 else None]
    return "\t".join(f"{label}\t{probability:.4f}" for label, probability in ranked)
