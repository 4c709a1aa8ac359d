"""`transduce classify MODEL < texts > labels`: a label a line; with `--labels`, how many are right."""

import argparse
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from transduce.commands.options import add_computing, check_writable, or_standard, write_report
from transduce.commands.translate import standard_output, stdin_lines
from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.evaluation.accuracy import score_labels
from transduce.evaluation.scores import check_line_counts
from transduce.runtime.classifier import Classification, Classifier, load_classifier
from transduce.text.files import read_lines

_LINES_AT_A_TIME = 1_024
_MOST_SHOWN = 8  # labels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    add = parser.add_argument
    add("model", help="the folder of a classifier")
    add(
        "text",
        nargs="?",
        metavar="FILE",
        type=or_standard,
        help="texts, one a line; standard input where nothing is said",
    )
    add(
        "--probabilities",
        type=_number_of_labels,
        nargs="?",
        const=-1,
        metavar="N",
        help="after each label its probability, and the next ones up to N labels; all where N is not said",
    )
    add("--labels", metavar="FILE", help="the right labels, one a line: report the accuracy, print no labels")
    add("--output", metavar="FILE", type=or_standard, help="write the labels here")
    add("--json", metavar="PATH", help="with --labels: write the report as JSON; - for standard output")
    add_computing(parser, int8=False)


def _number_of_labels(text: str) -> int:
    """Also where a file follows the option, which would be taken for the number."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of labels, 1 or more; a file of texts goes before it")


def run(options: argparse.Namespace) -> int:
    """Writes a line for each text, or a report."""
    check_writable(options.output, report=options.json, inputs=[options.model, options.text, options.labels])
    if options.json and not options.labels:
        raise TransduceError("`--json` is the report on `--labels`: name the right labels too, or leave it out.")
    if options.probabilities and options.labels and not options.output:
        raise TransduceError(
            "`--probabilities` stand behind labels, but `--labels` prints none: name a file for them by `--output`, or "
            "leave one out."
        )
    classifier = load_classifier(
        options.model, precision=options.precision, device=options.device, threads=options.threads
    )
    lines = read_lines(options.text) if options.text else stdin_lines()
    if options.labels or options.output:
        _report(options, classifier, list(lines))
        return 0
    with standard_output() as output:
        for found in _classified(classifier, lines):
            output.write(line_of(found, options.probabilities) + "\n")
            output.flush()
    return 0


def _report(options: argparse.Namespace, classifier: Classifier, texts: list[str]) -> None:
    """Writes labels to a file, and scores them where the right ones are known."""
    labels = list(read_lines(options.labels)) if options.labels else None
    if labels is not None:
        place = options.text or "standard input"
        check_line_counts({f"lines in {place}": texts, f"lines in {options.labels}": labels})
        if not set(classifier.labels).intersection(labels):
            more = ", …" if len(classifier.labels) > _MOST_SHOWN else ""
            raise TransduceError(
                f'{options.labels}:1: "{labels[0][:40]}" is no label of this model, nor is any other line: its labels '
                f"are {', '.join(classifier.labels[:_MOST_SHOWN])}{more}."
            )
    found = list(_classified(classifier, texts))
    if options.output:
        lines = "".join(f"{line_of(each, options.probabilities)}\n" for each in found)
        write_file(Path(options.output), lines.encode())
    if labels is not None:
        write_report(score_labels([each.label for each in found], labels), options.json)


def _classified(classifier: Classifier, lines: Iterable[str]) -> Iterator[Classification]:
    waiting = iter(lines)
    while block := list(itertools.islice(waiting, _LINES_AT_A_TIME)):
        yield from classifier(block)


def line_of(found: Classification, shown: int | None) -> str:
    """A label, or labels with their probabilities, tabs between them."""
    if not shown:
        return found.label
    ranked = list(found.probabilities.items())[: shown if shown > 0 else None]
    return "\t".join(f"{label}\t{probability:.4f}" for label, probability in ranked)
