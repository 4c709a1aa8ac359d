"""Measure how well placeholders, tags and URLs survive translation, and what they cost in BLEU.

    python benchmarks/protected_spans.py --model DIR --source FILE --target FILE
    python benchmarks/protected_spans.py --model DIR --source FILE --target FILE --replace

Each sentence gets one to four spans, at corresponding positions of source and reference: beside words that translate
each other according to IBM Model 1 on the model's own training corpus, or at an end. With `--replace`, the spans
replace such words. Counted is the share of spans that the translation has exactly as often as the source. The
translation without its spans is scored against the reference, and compared with the translation of the sentence without
spans. The bars are those of a model with placeholder tokens, or of one without.
"""

import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from report import Row, machine, parser, report

from transduce import Translator, load, score
from transduce.data.placeholders import WordAligner
from transduce.data.prepared import PreparedCorpus
from transduce.search.settings import SearchSettings
from transduce.text.files import read_lines
from transduce.text.tokenizer import placeholder_tokens
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span, token_spans

SPANS = (
    "{name}",
    "{0}",
    "%s",
    "%(count)d",
    "{{user.email}}",
    "${total}",
    "<0>",
    "</b>",
    "<br/>",
    '<ph id="1"/>',
    "https://example.org/a_b?c=1",
    "info@example.org",
    "report-2024.pdf",
    "`make all`",
    "@kim",
    "#news",
    "😀",
    "👩‍👩‍👧",
    "2,345,678",
    "3.5 GB",
)
_EDGE = 0.15  # share of spans at the start or the end


class Case(NamedTuple):
    """A sentence pair with spans at corresponding positions of both sides."""

    source: str
    reference: str
    planted_source: str
    planted_reference: str
    spans: tuple[str, ...]


def plant(translator: Translator, model: Path, pairs: Sequence[tuple[str, str]], *, replace: bool) -> list[Case]:
    """Return the pairs into which spans can be planted, with one to four spans each."""
    tokenizer = translator.tokenizer
    sides = (tokenizer.source, tokenizer.target)
    aligner = WordAligner(PreparedCorpus.open(model / "corpus"), sides, placeholder_tokens(tokenizer))
    generator, cases = random.Random(1), []
    for source, reference in pairs:
        ids = [np.array(side.encode(text), np.int64) for side, text in zip(sides, (source, reference), strict=True)]
        offsets = [_spans(*each) for each in zip(sides, ids, (source, reference), strict=True)]
        words = aligner.pairs(*ids)
        count = min(generator.choice((1, 1, 2, 2, 3, 4)), len(words) if replace else 4)
        edits: list[tuple[Span, Span, str]] = []
        taken = generator.sample(words, min(len(words), count))
        for literal in generator.sample(SPANS, count):
            at_edge = not replace and (not taken or generator.random() < _EDGE)
            if at_edge:
                edits.append((*_edge(source, reference, generator), literal))
            else:
                word = taken.pop()
                one, other = (
                    Span(side[start].start, side[stop - 1].end)
                    for side, (start, stop) in zip(offsets, word, strict=True)
                )
                if not replace:
                    index = generator.randrange(2)
                    one, other = Span(one[index], one[index]), Span(other[index], other[index])
                edits.append((one, other, literal))
        if edits:
            planted = _write(source, [(a, s) for a, _, s in edits]), _write(reference, [(b, s) for _, b, s in edits])
            cases.append(Case(source, reference, *planted, tuple(s for _, _, s in edits)))
    return cases


def _spans(vocabulary: Vocabulary, ids: np.ndarray, text: str) -> list[Span]:
    return token_spans(vocabulary.token_texts(ids.tolist()), text)


def _edge(source: str, reference: str, generator: random.Random) -> tuple[Span, Span]:
    if generator.random() < 0.5:
        return Span(0, 0), Span(0, 0)
    return Span(len(source), len(source)), Span(len(reference), len(reference))


def _write(text: str, edits: Sequence[tuple[Span, str]]) -> str:
    """Return a text with spans, with spaces around them if its words have spaces."""
    spaced = " " in text
    for (start, end), literal in sorted(edits, reverse=True):
        before, after = text[:start], text[end:]
        left = " " if spaced and before and not before.endswith(" ") else ""
        meets_span = after[:1].isascii() and after[:1] not in (" ", ".", ",", "!", "?", "")
        right = " " if (spaced or meets_span) and after and not after.startswith((" ", ".", ",", "!", "?")) else ""
        text = before + left + literal + right + after
    return text


def without_spans(text: str, spans: Sequence[str]) -> str:
    """Return a text without its spans and with the spaces of a text that never had them."""
    for literal in sorted(spans, key=len, reverse=True):
        text = text.replace(literal, " " if " " in text else "", 1)
    return re.sub(r" +(?=[.,!?]|$)", "", re.sub(" +", " ", text)).strip()


def main() -> int:
    """Translate the sentences with and without spans, and compare."""
    options = parser(__doc__)
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--source", required=True)
    options.add_argument("--target", required=True)
    options.add_argument("--replace", action="store_true", help="the spans replace words instead of standing between")
    options.add_argument("--beam-size", type=int)
    options.add_argument("--show", type=int, default=0, help="print this many examples")
    options.add_argument("--sentences", type=int, default=1000)
    options.add_argument("--threads", type=int)
    args = options.parse_args()
    print(machine())
    translator = load(args.model, task="translation", threads=args.threads)
    pairs = list(zip(read_lines(args.source), read_lines(args.target), strict=True))
    pairs = random.Random(0).sample(pairs, len(pairs))
    cases = plant(translator, args.model, pairs, replace=args.replace)[: 100 if args.quick else args.sentences]
    search = translator.search
    if args.beam_size:
        search = msgspec.structs.replace(search, beam_size=args.beam_size)
    return report(_rows(translator, cases, search, args.show, replace=args.replace), args.json)


def _rows(
    translator: Translator, cases: Sequence[Case], search: SearchSettings, show: int, *, replace: bool
) -> Iterator[Row]:
    language, has_tokens = translator.target_language, bool(placeholder_tokens(translator.tokenizer))
    started = time.perf_counter()
    plain = [each.text for each in translator.translate([case.source for case in cases], search)]
    between = time.perf_counter()
    planted = translator.translate([case.planted_source for case in cases], search)
    seconds = time.perf_counter() - between
    texts = [each.text for each in planted]
    for case, text in list(zip(cases, texts, strict=True))[:show]:
        print(f"{case.planted_source}\n  = {case.planted_reference}\n  > {text}")
    counts = [
        (text.count(each), case.planted_source.count(each))
        for case, text in zip(cases, texts, strict=True)
        for each in case.spans
    ]
    for case, text in zip(cases, texts, strict=True):
        wrong = [each for each in case.spans if text.count(each) != case.planted_source.count(each)]
        if wrong and show:
            print(f"changed {wrong}:\n  {case.planted_source}\n  > {text}")
    kept = 100.0 * sum(one == other for one, other in counts) / len(counts)
    bar = 99.8 if has_tokens else 99.0
    yield Row("spans kept exactly as often as in the source", kept, "%", bar=f">= {bar}", holds=kept >= bar)
    references = [case.reference for case in cases]
    with_spans = score(texts, [case.planted_reference for case in cases], target_language=language).bleu.value
    yield Row("BLEU of the translations with their spans", with_spans, "BLEU")
    if not replace:
        usual = score(plain, references, target_language=language).bleu.value
        bare = [without_spans(text, case.spans) for case, text in zip(cases, texts, strict=True)]
        value = score(bare, references, target_language=language).bleu.value
        least = -0.5 if has_tokens else -2.0
        yield Row("BLEU without the spans", value, "BLEU", "sentences without spans", usual)
        yield Row("difference", value - usual, "BLEU", bar=f">= {least}", holds=value - usual >= least)
        yield Row("order of spans as in the reference", 100.0 * _ordered(cases, texts), "% of sentences")
        yield Row("distance from the place in the reference", _distance(cases, texts), "% of the length")
    yield Row("time with spans / without", seconds / (between - started), "")


def _ordered(cases: Sequence[Case], texts: Sequence[str]) -> float:
    right = [
        sorted(case.spans, key=text.find) == sorted(case.spans, key=case.planted_reference.find)
        for case, text in zip(cases, texts, strict=True)
        if len(case.spans) > 1
    ]
    return sum(right) / max(1, len(right))


def _distance(cases: Sequence[Case], texts: Sequence[str]) -> float:
    """Return the mean difference of the relative positions of spans in translations and references, in percent."""
    differences = []
    for case, text in zip(cases, texts, strict=True):
        for literal in case.spans:
            places = [
                len(without_spans(side[: max(0, side.find(literal))], case.spans))
                / max(1, len(without_spans(side, case.spans)))
                for side in (text, case.planted_reference)
            ]
            differences.append(abs(places[0] - places[1]))
    return 100.0 * sum(differences) / max(1, len(differences))


if __name__ == "__main__":
    raise SystemExit(main())
