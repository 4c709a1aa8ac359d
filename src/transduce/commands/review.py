"""`transduce review MODEL --source F`: which translations are doubtful, and why."""

import argparse
import sys
from pathlib import Path

import msgspec

from transduce.commands.options import (
    add_computing,
    add_glossary,
    add_languages,
    add_search,
    check_writable,
    glossary_from,
    load_translator,
    read_side_by_side,
    search_settings,
    write_lines,
)
from transduce.durable import write_file
from transduce.runtime.doubts import Doubt, DoubtKind, count_doubts
from transduce.runtime.located import can_score
from transduce.runtime.scoring import as_translation
from transduce.runtime.second_look import look_again, review
from transduce.runtime.translation import Translation
from transduce.runtime.translator import Translator


class DoubtfulLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the source whose translation is doubtful."""

    line: int
    """From 1."""
    doubts: tuple[Doubt, ...]
    source: str
    translation: str

    def __str__(self) -> str:
        return "\t".join((str(self.line), ", ".join(map(str, self.doubts)), self.source, self.translation))


class ReviewReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    lines: int
    counts: dict[DoubtKind, int]
    """Lines with a doubt of each kind."""
    doubtful: list[DoubtfulLine]

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
        return f"{len(self.doubtful):,} of {self.lines:,} translations are doubtful" + (f": {kinds}" if kinds else "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("model", nargs="+", help="a model folder; of several, the probabilities are averaged")
    parser.add_argument("--source", required=True, metavar="FILE", help="sentences, one a line")
    parser.add_argument(
        "--translation", metavar="FILE", help="their translations, of whatever origin; the model's where none is given"
    )
    parser.add_argument(
        "--look-again", metavar="FILE", help="write all translations, with better ones where a second search finds them"
    )
    add_glossary(parser)
    parser.add_argument("--json", metavar="PATH", help="write doubts as JSON; - for standard output")
    add_search(parser)
    add_languages(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the doubtful lines: number, doubts, source and translation, with tabs between."""
    search = search_settings(options, options.model[0])
    inputs, glossary = [options.model, options.source, options.translation, options.glossary], glossary_from(options)
    check_writable(options.look_again, report=options.json, inputs=inputs)
    sources, *given = read_side_by_side(options.source, *([options.translation] if options.translation else []))
    translator = load_translator(options.model, options)
    if given:
        translations = _with_scores(translator, sources, given[0])
    else:
        translations = translator(sources, search=search, glossary=glossary)
    report = _report(translations, review(translator, translations, glossary=glossary))
    write_lines(report.doubtful, report, options.json)
    if options.look_again:
        again = look_again(translator, translations, search, glossary=glossary)
        write_file(Path(options.look_again), "".join(f"{each.text}\n" for each in again).encode("utf-8", "replace"))
        left = _report(again, review(translator, again, glossary=glossary))
        changed = sum(one.text != other.text for one, other in zip(translations, again, strict=True))
        sys.stderr.write(f"A second search changed {changed:,}; {left}\n")
    return 0


def _with_scores(translator: Translator, sources: list[str], targets: list[str]) -> list[Translation]:
    """Given translations with what the model says of them: nothing where it would read the source in parts, or one of
    both is too long to be scored.
    """
    pairs = list(zip(sources, targets, strict=True))
    scored = [
        number
        for number, ids in enumerate(translator.tokenizer.source.encode_batch(sources))
        if len(ids) <= translator.longest_source and can_score(translator, *pairs[number])
    ]
    scores = translator.score([pairs[number][0] for number in scored], [pairs[number][1] for number in scored])
    known = dict(zip(scored, map(as_translation, scores), strict=True))
    return [known.get(number) or Translation.of(*pair) for number, pair in enumerate(pairs)]


def _report(translations: list[Translation], doubts: list[tuple[Doubt, ...]]) -> ReviewReport:
    return ReviewReport(
        lines=len(translations),
        counts=count_doubts(doubts),
        doubtful=[
            DoubtfulLine(line=number, doubts=own, source=each.source, translation=each.text)
            for number, (each, own) in enumerate(zip(translations, doubts, strict=True), 1)
            if own
        ],
    )
