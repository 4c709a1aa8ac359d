"""`transduce compare A B --source F --reference F`: A and B are model folders, or files of translations."""

import argparse
from pathlib import Path

from transduce.commands.options import (
    add_computing,
    add_scoring,
    add_search,
    check_writable,
    load_translator,
    search_settings,
    write_report,
)
from transduce.errors import TransduceError
from transduce.evaluation.scores import check_line_counts
from transduce.evaluation.significance import compare
from transduce.text.files import read_lines
from transduce.text.languages import language_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("a", metavar="A", help="a model folder, or a file of translations")
    parser.add_argument("b", metavar="B", help="another")
    parser.add_argument("--source", metavar="FILE", help="source sentences, one a line; needed where A or B is a model")
    parser.add_argument("--reference", required=True, metavar="FILE", help="their translations by people, one a line")
    parser.add_argument(
        "--language",
        metavar="CODE",
        help="target language; the model's or the reference's suffix where nothing is said",
    )
    parser.add_argument("--resamples", type=int, default=1000, metavar="N", help="of each test")
    parser.add_argument("--seed", type=int, default=12345, metavar="N", help="of the resampling")
    parser.add_argument("--json", metavar="PATH", help="write the comparison as JSON; - for standard output")
    add_scoring(parser)
    add_search(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Prints both systems' scores, the difference, and whether it is real."""
    search_settings(options)  # refuses what is out of range before anything is read
    check_writable(options.json)
    references = list(read_lines(options.reference))
    if options.source is not None:
        check_line_counts({"sources": list(read_lines(options.source)), "references": references})
    hypotheses_a, language_a = _hypotheses(options.a, options)
    hypotheses_b, language_b = _hypotheses(options.b, options)
    comparison = compare(
        hypotheses_a,
        hypotheses_b,
        references,
        target_language=options.language or language_a or language_b or language_of(options.reference),
        tokenize=options.tokenize,
        lowercase=options.lowercase,
        resamples=options.resamples,
        seed=options.seed,
        names=_names(options.a, options.b),
    )
    write_report(comparison, options.json)
    return 0


def _hypotheses(place: str, options: argparse.Namespace) -> tuple[list[str], str | None]:
    """Translations out of a file or by a model, and the model's target language."""
    if not Path(place).is_dir():
        return list(read_lines(place)), None
    if options.source is None:
        raise TransduceError(f"{place} is a model, which needs sentences to translate: give --source.")
    translator = load_translator(place, options)
    translations = translator(list(read_lines(options.source)), search=search_settings(options, place))
    return [translation.text for translation in translations], translator.target_language


def _names(a: str, b: str) -> tuple[str, str]:
    """The shortest ends of the two paths that differ."""
    parts_a, parts_b = Path(a).parts, Path(b).parts
    for length in range(1, max(len(parts_a), len(parts_b)) + 1):
        names = str(Path(*parts_a[-length:])), str(Path(*parts_b[-length:]))
        if names[0] != names[1]:
            return names
    return f"{a} (1)", f"{b} (2)"
