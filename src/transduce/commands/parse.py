"""`transduce parse MODEL < sentences > trees`: parse sentences, or with `--reference` report bracket scores."""

import argparse
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.atomic_io import write_file
from transduce.commands.options import add_computing, check_writable, file_or_stream, write_report
from transduce.commands.translate import standard_output, stdin_lines
from transduce.errors import TransduceError
from transduce.text.files import read_lines
from transduce.text.trees import clean, read_trees, unescape_word

if TYPE_CHECKING:
    from transduce.evaluation.brackets import BracketReport
    from transduce.inference.parser import Parse, Parser

_LINES_AT_A_TIME = 256


class ParsingReport(msgspec.Struct, frozen=True, kw_only=True):
    """The bracket scores of a treebank, with the settings of the parser."""

    brackets: "BracketReport"
    f1: float
    """F1 of sentences of all lengths, in percent."""
    f1_of_short: float
    """F1 of short sentences, in percent."""
    valid: float
    """Share of the sentences with a tree over exactly their words, in percent."""
    cut: int
    """Number of trees that were cut at their greatest length and then closed."""
    beam_size: int

    def __str__(self) -> str:
        return f"{self.brackets}\nvalid trees {self.valid:.2f} %, {self.cut:,} of them cut, beam {self.beam_size}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce parse`."""
    add = parser.add_argument
    add("model", help="the folder of a parser")
    add(
        "text",
        nargs="?",
        metavar="FILE",
        type=file_or_stream,
        help="sentences, one per line, words separated by spaces (default: standard input)",
    )
    add("--pretty", action="store_true", help="draw each tree on several lines, followed by an empty line")
    add(
        "--beam-size",
        type=int,
        metavar="N",
        help="hypotheses kept at each step; 1: greedy (default: the setting in the model's folder)",
    )
    add("--reference", metavar="TREEBANK", help="parse its sentences and report bracket scores, print no trees")
    add("--output", metavar="FILE", type=file_or_stream, help="write the trees here (default: standard output)")
    add("--json", metavar="PATH", help="with --reference: write the report as JSON; -: to standard output")
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Print a tree for each sentence or, given a treebank, a report of bracket scores."""
    from transduce.inference.parser import load_parser

    check_writable(options.output, report=options.json, inputs=[options.model, options.text, options.reference])
    if options.json and not options.reference:
        raise TransduceError("`--json` writes the report of `--reference`: pass a treebank too, or leave it out.")
    if options.reference and options.text:
        raise TransduceError(f"--reference has its own sentences, but {options.text} is named too: leave one out.")
    if options.pretty and options.reference and not options.output:
        raise TransduceError(
            "`--pretty` draws trees, but `--reference` prints none: add `--output`, or leave one of them out."
        )
    parser = load_parser(options.model, precision=options.precision, device=options.device, threads=options.threads)
    if options.beam_size is not None:
        parser.search = msgspec.structs.replace(parser.search, beam_size=options.beam_size)
    if options.reference:
        write_report(_report(options, parser), options.json)
        return 0
    lines = read_lines(options.text) if options.text else stdin_lines()
    sentences = ([unescape_word(word) for word in line.split()] for line in lines)
    if options.output:
        write_file(
            Path(options.output), "".join(_shown(parse, options) for parse in _parsed(parser, sentences)).encode()
        )
        return 0
    with standard_output() as output:
        for parse in _parsed(parser, sentences):
            output.write(_shown(parse, options))
            output.flush()
    return 0


def _shown(parse: "Parse", options: argparse.Namespace) -> str:
    return f"{parse.draw()}\n\n" if options.pretty else f"{parse}\n"


def _report(options: argparse.Namespace, parser: "Parser") -> ParsingReport:
    """Parse a treebank's sentences, write the trees to a file if requested, and return the bracket scores."""
    from transduce.evaluation.brackets import BracketSettings, score_trees

    references = [tree for tree in map(clean, read_trees(options.reference)) if tree is not None]
    parses = list(_parsed(parser, [reference.words() for reference in references]))
    if options.output:
        write_file(Path(options.output), "".join(_shown(parse, options) for parse in parses).encode())
    brackets = score_trees([parse.tree for parse in parses], references, BracketSettings())
    all_lengths = brackets.all
    return ParsingReport(
        brackets=brackets,
        f1=all_lengths.f1,
        f1_of_short=brackets.short.f1,
        valid=100.0 * (all_lengths.sentences - all_lengths.invalid) / max(1, all_lengths.sentences),
        cut=sum(not parse.ended for parse in parses),
        beam_size=parser.search.beam_size,
    )


def _parsed(parser: "Parser", sentences: Iterable[Sequence[str]]) -> "Iterator[Parse]":
    waiting = iter(sentences)
    while block := list(itertools.islice(waiting, _LINES_AT_A_TIME)):
        yield from parser.parse(block)
