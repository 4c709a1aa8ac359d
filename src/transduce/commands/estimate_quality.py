"""`transduce estimate-quality MODEL --source F`: list translations with quality warnings."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.atomic_io import write_file
from transduce.commands.options import (
    add_computing,
    add_glossary,
    add_languages,
    add_search,
    check_writable,
    glossary_from,
    load_translator,
    read_aligned_lines,
    search_settings,
    write_lines,
)
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.quality_estimation import QualityWarning, WarningKind
    from transduce.inference.translation import Translation
    from transduce.inference.translator import Translator


class FlaggedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the source whose translation has quality warnings."""

    line: int
    """The line number, from 1."""
    warnings: "tuple[QualityWarning, ...]" = msgspec.field(name="doubts")
    """The quality warnings."""
    source: str
    translation: str

    def __str__(self) -> str:
        return "\t".join((str(self.line), ", ".join(map(str, self.warnings)), self.source, self.translation))


class QualityReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report of all source lines whose translations have quality warnings."""

    lines: int
    counts: "dict[WarningKind, int]"
    """The number of lines with each kind of warning."""
    flagged: list[FlaggedLine] = msgspec.field(name="doubtful")

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
        return f"{len(self.flagged):,} of {self.lines:,} translations have quality warnings" + (
            f": {kinds}" if kinds else ""
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce estimate-quality`."""
    add = parser.add_argument
    add("model", nargs="+", help="a model folder; the probabilities of several models are averaged")
    add("--source", required=True, metavar="FILE", help="sentences, one per line")
    add("--translation", metavar="FILE", help="translations of any origin (default: the model's own)")
    add("--redecode", metavar="FILE", help="write all translations, improved by re-decoding those with warnings")
    add("--json", metavar="PATH", help="write the warnings as JSON; -: to standard output")
    add_glossary(parser)
    add_search(parser)
    add_languages(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Print the lines with quality warnings: number, warnings, source and translation, separated by tabs."""
    from transduce.inference.redecoding import estimate_quality, redecode

    search = search_settings(options, options.model[0])
    inputs, glossary = [options.model, options.source, options.translation, options.glossary], glossary_from(options)
    check_writable(options.redecode, report=options.json, inputs=inputs)
    sources, *passed = read_aligned_lines(options.source, *([options.translation] if options.translation else []))
    translator = load_translator(options.model, options)
    if passed:
        translations = _with_scores(translator, sources, passed[0])
    else:
        translations = translator(sources, search=search, glossary=glossary, document=True)
    report = _report(translations, estimate_quality(translator, translations, glossary=glossary))
    write_lines(report.flagged, report, options.json)
    if options.redecode:
        redecoded = redecode(translator, translations, search, glossary=glossary)
        write_file(Path(options.redecode), "".join(f"{each.text}\n" for each in redecoded).encode("utf-8", "replace"))
        remaining = _report(redecoded, estimate_quality(translator, redecoded, glossary=glossary))
        changed = sum(one.text != other.text for one, other in zip(translations, redecoded, strict=True))
        sys.stderr.write(localized(f"Re-decoding changed {changed:,}; {remaining}\n"))
    return 0


def _with_scores(translator: "Translator", sources: list[str], targets: list[str]) -> "list[Translation]":
    """Return existing translations with the model's scores.

    There is no score if the model would split the source, or if either side is too long.
    """
    from transduce.inference.scoring import as_translation
    from transduce.inference.spans import can_score
    from transduce.inference.translation import Translation

    pairs = list(zip(sources, targets, strict=True))
    scored = [
        number
        for number, ids in enumerate(translator.tokenizer.source.encode_batch(sources))
        if len(ids) <= translator.longest_source and can_score(translator, *pairs[number])
    ]
    scores = translator.score([pairs[number][0] for number in scored], [pairs[number][1] for number in scored])
    scored_translations = dict(zip(scored, map(as_translation, scores), strict=True))
    return [scored_translations.get(number) or Translation.of(*pair) for number, pair in enumerate(pairs)]


def _report(translations: "list[Translation]", warnings: "list[tuple[QualityWarning, ...]]") -> QualityReport:
    from transduce.inference.quality_estimation import count_warnings

    return QualityReport(
        lines=len(translations),
        counts=count_warnings(warnings),
        flagged=[
            FlaggedLine(line=number, warnings=line_warnings, source=each.source, translation=each.text)
            for number, (each, line_warnings) in enumerate(zip(translations, warnings, strict=True), 1)
            if line_warnings
        ],
    )
