"""`transduce compare A B --source F --reference F`: A and B are model folders, or files of translations."""

import argparse
import re
from pathlib import Path

import msgspec

from transduce.commands.options import (
    SEARCH_OPTIONS,
    add_computing,
    add_scoring,
    add_search,
    check_writable,
    decoding_record,
    load_translator,
    read_side_by_side,
    refuse_beside,
    search_settings,
    write_report,
)
from transduce.errors import TransduceError
from transduce.evaluation.significance import check_trial, compare
from transduce.evaluation.tokenizers import choose_tokenizer
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
    names = _names(options.a, options.b)
    _check_options(options, names)
    check_writable(report=options.json, inputs=[options.a, options.b, options.source, options.reference])
    # Whatever is wrong with a file is told before a model translates any; a pipe can be read only once.
    given = [place for place in (options.a, options.b) if not Path(place).is_dir()]
    paths = list(dict.fromkeys(filter(None, [options.source, *given, options.reference])))
    texts = dict(zip(paths, read_side_by_side(*paths), strict=True))
    a, b = (
        _System(texts[place]) if place in texts else _translate(place, texts[options.source], options)
        for place in (options.a, options.b)
    )
    comparison = compare(
        a.lines,
        b.lines,
        texts[options.reference],
        target_language=options.language or a.languages[1] or b.languages[1] or language_of(options.reference),
        tokenize=options.tokenize,
        lowercase=options.lowercase,
        resamples=options.resamples,
        seed=options.seed,
        names=names,
    )
    warnings = (*comparison.warnings, *_pair_warning(names, a, b))
    write_report(
        msgspec.structs.replace(comparison, decoding_a=a.decoding, decoding_b=b.decoding, warnings=warnings),
        options.json,
    )
    return 0


class _System(msgspec.Struct, frozen=True):
    """Translations, and what is known of how they came about."""

    lines: list[str]
    languages: tuple[str | None, str | None] = (None, None)
    """A model's: source and target."""
    decoding: dict[str, str | int | float | bool] = {}


def _check_options(options: argparse.Namespace, names: tuple[str, str]) -> None:
    folders = [place for place in (options.a, options.b) if Path(place).is_dir()]
    for folder in folders:
        search_settings(options, folder)
    if not folders:
        refuse_beside(options, SEARCH_OPTIONS, "says how to translate, but both are translations: leave it out.")
    check_trial(options.resamples, options.seed, names)
    choose_tokenizer(options.language or language_of(options.reference), options.tokenize)
    for place in folders:
        if options.source is None:
            raise TransduceError(f"{place} is a model, which needs sentences to translate: give --source.")


def _translate(folder: str, sources: list[str], options: argparse.Namespace) -> _System:
    search = search_settings(options, folder)
    translator = load_translator(folder, options)
    lines = [translation.text for translation in translator(sources, search=search)]
    languages = translator.source_language, translator.target_language
    return _System(lines, languages, decoding_record(search, translator.precision))


def _pair_warning(names: tuple[str, str], a: _System, b: _System) -> list[str]:
    """Of two models that are not for the same languages; zh and zho may be one."""
    codes = [[re.split("[-_]", code.lower())[0] if code else "" for code in each.languages] for each in (a, b)]
    if not any(len(one) == len(other) and one != other for one, other in zip(*codes, strict=True)):
        return []
    pairs = [" to ".join(code or "?" for code in each.languages) for each in (a, b)]
    told = (f"{name} translates {pair}" for name, pair in zip(names, pairs, strict=True))
    return [f"{' and '.join(told)}, but both had the same sentences: compare models of one pair of languages."]


def _names(a: str, b: str) -> tuple[str, str]:
    """The shortest ends of the two paths that differ."""
    parts_a, parts_b = Path(a).parts, Path(b).parts
    for length in range(1, max(len(parts_a), len(parts_b)) + 1):
        names = str(Path(*parts_a[-length:])), str(Path(*parts_b[-length:]))
        if names[0] != names[1]:
            return names
    return f"{a} (1)", f"{b} (2)"
