"""`transduce compare A B --source F --reference F`: compare two model folders or files of translations."""

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
    load_translator,
    read_aligned_lines,
    refuse_options,
    search_settings,
    write_report,
)
from transduce.errors import TransduceError
from transduce.text.languages import language_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce compare`."""
    add = parser.add_argument
    add("a", metavar="A", help="a model folder, or a file of translations")
    add("b", metavar="B", help="another model folder or file of translations")
    add("--source", metavar="FILE", help="source sentences, one per line; required if A or B is a model")
    add("--reference", required=True, metavar="FILE", help="human translations of the source, one per line")
    add("--language", metavar="CODE", help="target language (default: the model's, or the reference's suffix)")
    add("--json", metavar="PATH", help="write the comparison as JSON; -: to standard output")
    tests = parser.add_argument_group("significance tests")
    tests.add_argument("--resamples", type=int, default=1000, metavar="N", help="resamples of each test")
    tests.add_argument("--seed", type=int, default=12345, metavar="N", help="random seed of the resampling")
    add_scoring(parser)
    add_search(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Print both systems' scores, the difference, and whether it is significant."""
    from transduce.evaluation.significance import compare

    names = _names(options.a, options.b)
    _check_options(options, names)
    check_writable(report=options.json, inputs=[options.a, options.b, options.source, options.reference])
    # Files are read and checked before any model translates; a pipe can be read only once.
    files = [path for path in (options.a, options.b) if not Path(path).is_dir()]
    paths = list(dict.fromkeys(filter(None, [options.source, *files, options.reference])))
    texts = dict(zip(paths, read_aligned_lines(*paths), strict=True))
    a, b = (
        _System(texts[path]) if path in texts else _translate(path, texts[options.source], options)
        for path in (options.a, options.b)
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
    """The translations of a system, with its languages and decoding settings if known."""

    lines: list[str]
    languages: tuple[str | None, str | None] = (None, None)
    """Source and target language of a model."""
    decoding: dict[str, str | int | float | bool] = {}


def _check_options(options: argparse.Namespace, names: tuple[str, str]) -> None:
    from transduce.evaluation.scores import choose_tokenizer
    from transduce.evaluation.significance import check_trial

    folders = [path for path in (options.a, options.b) if Path(path).is_dir()]
    for folder in folders:
        search_settings(options, folder)
    if not folders:
        refuse_options(options, SEARCH_OPTIONS, "sets how to translate, but A and B are translations: leave it out.")
    check_trial(options.resamples, options.seed, names)
    choose_tokenizer(options.language or language_of(options.reference), options.tokenize)
    for path in folders:
        if options.source is None:
            raise TransduceError(f"{path} is a model, which needs sentences to translate: pass --source.")


def _translate(folder: str, sources: list[str], options: argparse.Namespace) -> _System:
    from transduce.inference.evaluate import decoding_record

    search = search_settings(options, folder)
    translator = load_translator(folder, options)
    lines = [translation.text for translation in translator(sources, search=search, document=True)]
    languages = translator.source_language, translator.target_language
    return _System(lines, languages, decoding_record(search, translator.precision))


def _pair_warning(names: tuple[str, str], a: _System, b: _System) -> list[str]:
    """Return a warning if two models have different languages; zh and zho may be equal."""
    codes = [[re.split("[-_]", code.lower())[0] if code else "" for code in each.languages] for each in (a, b)]
    if not any(len(one) == len(other) and one != other for one, other in zip(*codes, strict=True)):
        return []
    pairs = [" to ".join(code or "?" for code in each.languages) for each in (a, b)]
    statements = (f"{name} translates {pair}" for name, pair in zip(names, pairs, strict=True))
    return [f"{' and '.join(statements)}, but both had the same sentences: compare models of one pair of languages."]


def _names(a: str, b: str) -> tuple[str, str]:
    """Return the shortest different suffixes of the two paths, as names of the systems."""
    parts_a, parts_b = Path(a).parts, Path(b).parts
    for length in range(1, max(len(parts_a), len(parts_b)) + 1):
        names = str(Path(*parts_a[-length:])), str(Path(*parts_b[-length:]))
        if names[0] != names[1]:
            return names
    return f"{a} (1)", f"{b} (2)"
