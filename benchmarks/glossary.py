"""Measure whether glossary terms are placed correctly: Tatoeba Chinese to English, with substituted terms.

    python benchmarks/glossary.py                        # trains a model first, half an hour
    python benchmarks/glossary.py --model DIR --part dev
    python benchmarks/glossary.py --quick

A glossary requires target words that the model did not learn for these terms: Thomas for Tom, a goat for a dog. The
same words are substituted in the references, so a right translation has the new word at the right position. Scored are
the sentences with a term whose usual translation is in the reference. The upper bound is the score of plain
translations against the original references. The peer is the search that must produce the terms as phrases, at any
position. No bar.
"""

import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from quality_warnings import train_on, with_model
from report import Row, data_folder, machine, parser, report

from transduce import Translation, Translator, load, score
from transduce.search.settings import SearchSettings
from transduce.text.files import read_lines
from transduce.text.glossary import Glossary, Term, TermTally

# By source term: usual target words, and the words that the glossary requires instead.
CHANGED = {
    "汤姆": {"Tom": "Thomas"},
    "玛丽": {"Mary": "Maria"},
    "波士顿": {"Boston": "Chicago"},
    "法语": {"French": "Spanish"},
    "英语": {"English": "Italian"},
    "日本": {"Japan": "Canada"},
    "学校": {"school": "college", "schools": "colleges"},
    "书": {"book": "letter", "books": "letters"},
    "狗": {"dog": "goat", "dogs": "goats"},
    "猫": {"cat": "bird", "cats": "birds"},
    "老师": {"teacher": "lawyer", "teachers": "lawyers"},
    "医生": {"doctor": "driver", "doctors": "drivers"},
}


class Case(NamedTuple):
    """A sentence, its reference, and the reference with the glossary's words."""

    source: str
    usual: str
    wanted: str


def changed(source: str, reference: str, glossary: Glossary) -> str:
    """Return the reference with the glossary's words substituted."""
    for term in glossary.find(source):
        for usual, other in CHANGED[term.source].items():
            reference = re.sub(rf"\b{usual}\b", other, reference)
    return reference


def main() -> int:
    """Translate plainly, with phrases and with a glossary, and score each."""
    options = with_model(parser(__doc__))
    options.add_argument("--beam-size", type=int, default=4)
    options.add_argument("--threads", type=int)
    args = options.parse_args()
    print(machine())
    folder = data_folder() / "tatoeba-zh-en"
    model = args.model or train_on(folder, 1.0 if args.quick else args.minutes)
    glossary = Glossary(Term(source, tuple(words.values())) for source, words in CHANGED.items())
    pairs = zip(read_lines(folder / f"{args.part}.zh.gz"), read_lines(folder / f"{args.part}.en.gz"), strict=True)
    known = [Case(source, reference, changed(source, reference, glossary)) for source, reference in pairs]
    cases = [case for case in known if case.usual != case.wanted][: 100 if args.quick else None]
    translator = load(model, task="translation", threads=args.threads)
    search = msgspec.structs.replace(translator.search, beam_size=args.beam_size)
    return report(_rows(translator, search, cases, glossary), args.json)


def _rows(translator: Translator, search: SearchSettings, cases: list[Case], glossary: Glossary) -> list[Row]:
    sources = [case.source for case in cases]
    forced = [[term.targets[0] for term in glossary.find(source)] for source in sources]
    translator.translate(sources[:8], search)  # warm-up
    ways: dict[str, Callable[[], list[Translation]]] = {
        "plain": lambda: translator.translate(sources, search),
        "phrases": lambda: translator.translate(sources, search, phrases=forced),
        "glossary": lambda: translator.translate(sources, search, glossary=glossary),
    }
    rows: list[Row] = []
    for name, way in ways.items():
        started_at = time.monotonic()
        found = way()
        rows.append(Row(f"{name}, time", time.monotonic() - started_at, "seconds"))
        if name == "plain":
            bound = score([each.text for each in found], [case.usual for case in cases], target_language="en").bleu
            rows.append(Row("upper bound", bound.value, f"BLEU, {len(cases)} sentences, {bound.signature}"))
        rows += _scores(name, cases, found, glossary)
    return rows


def _scores(name: str, cases: Sequence[Case], found: Sequence[Translation], glossary: Glossary) -> list[Row]:
    tally = TermTally(glossary)
    for number, (case, translation) in enumerate(zip(cases, found, strict=True)):
        tally.add(number, case.source, translation.text)
    bleu = score([each.text for each in found], [case.wanted for case in cases], target_language="en").bleu.value
    share = 100.0 * (1 - len(tally.missing) / tally.terms)
    return [
        Row(f"{name}, changed references", bleu, "BLEU"),
        Row(f"{name}, terms as required", share, f"% of {tally.terms}"),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
