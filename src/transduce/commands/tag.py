"""`transduce tag MODEL < sentences > columns`: tag the words of sentences, or with `--score` report how well."""

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.atomic_io import write_file
from transduce.commands.options import add_computing, check_writable, file_or_stream, write_report
from transduce.commands.translate import standard_output, stdin_lines
from transduce.errors import TransduceError
from transduce.text.files import read_lines
from transduce.text.tagged import is_tagged_file, read_tagged
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.tagger import Tagger, Tagging

_SENTENCES_AT_A_TIME = 1_024
_MOST_SHOWN = 8  # tags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce tag`."""
    add = parser.add_argument
    add("model", help="the folder of a tagger")
    add(
        "text",
        nargs="?",
        metavar="FILE",
        type=file_or_stream,
        help="sentences, one per line, words separated by spaces; or columns (.conll, .conllu, …) or JSON lines "
        "(default: standard input)",
    )
    add(
        "--columns",
        nargs="+",
        metavar="COLUMN",
        help="FILE has columns: which of them holds the word and, for --score, the tag; numbers from 1, or names",
    )
    add(
        "--score", action="store_true", help="compare with the tags in FILE: report accuracy and span F1, print no tags"
    )
    add("--output", metavar="FILE", type=file_or_stream, help="write the tags here (default: standard output)")
    add("--json", metavar="PATH", help="with --score: write the report as JSON; -: to standard output")
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Print a line `word TAB tag` for each word, with an empty line after each sentence, or a report of scores."""
    from transduce.inference.tagger import load_tagger

    check_writable(options.output, report=options.json, inputs=[options.model, options.text])
    if options.json and not options.score:
        raise TransduceError("`--json` writes the report of `--score`: pass that too, or leave it out.")
    if (options.score or options.columns) and not options.text:
        option = "--score" if options.score else "--columns"
        raise TransduceError(f"`{option}` needs a file of columns, but standard input has sentences: name a file.")
    if options.columns and len(options.columns) > 2:
        raise TransduceError(f"`--columns` names those of word and tag, but there are {len(options.columns)}.")
    tagger = load_tagger(options.model, precision=options.precision, device=options.device, threads=options.threads)
    if options.score:
        _report(options, tagger)
    elif options.output:
        taggings = _tagged(tagger, _sentences(options))
        write_file(Path(options.output), "".join(f"{tagging}\n\n" for tagging in taggings).encode())
    else:
        with standard_output() as output:
            for tagging in _tagged(tagger, _sentences(options)):
                output.write(f"{tagging}\n\n")
                output.flush()
    return 0


def _sentences(options: argparse.Namespace) -> Iterable[Sequence[str]]:
    """Return the sentences of the input, each as a list of words."""
    if not options.text:
        return (line.split() for line in stdin_lines())
    if options.columns or is_tagged_file(options.text):
        return [sentence.words for sentence in read_tagged(options.text, options.columns, needs_tags=False)]
    return (line.split() for line in read_lines(options.text))


def _report(options: argparse.Namespace, tagger: "Tagger") -> None:
    """Tag the sentences of a tagged file, compare the tags with those of the file, and print a report."""
    from transduce.evaluation.scores import score_tags

    sentences = read_tagged(options.text, options.columns)
    tags = {tag for sentence in sentences for tag in sentence.tags}
    unknown = sorted(tags - set(tagger.tags))
    if len(unknown) == len(tags):
        more = ", …" if len(tagger.tags) > _MOST_SHOWN else ""
        raise TransduceError(
            f'{options.text} has tags such as "{unknown[0][:40]}", none of which the model knows: its tags are '
            f"{', '.join(tagger.tags[:_MOST_SHOWN])}{more}; choose the column of the tags by --columns."
        )
    if unknown:
        shown = ", ".join(unknown[:_MOST_SHOWN])
        sys.stderr.write(localized(f"The model does not know {len(unknown)} of {len(tags)} tags: {shown}\n"))
    taggings = list(_tagged(tagger, [sentence.words for sentence in sentences]))
    if options.output:
        write_file(Path(options.output), "".join(f"{tagging}\n\n" for tagging in taggings).encode())
    report = score_tags([tagging.tags for tagging in taggings], [sentence.tags for sentence in sentences])
    write_report(report, options.json)


def _tagged(tagger: "Tagger", sentences: Iterable[Sequence[str]]) -> "Iterator[Tagging]":
    waiting = iter(sentences)
    while block := list(itertools.islice(waiting, _SENTENCES_AT_A_TIME)):
        yield from tagger.tag(block)
