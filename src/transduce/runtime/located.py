"""Locate marked spans of source texts in whole translations; long texts are handled part by part."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from transduce.errors import TransduceError
from transduce.runtime.locating import Marked, locate
from transduce.runtime.occlusion import Scoring
from transduce.runtime.translation import Translation
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary
from transduce.text.mentions import as_compared, occurrences
from transduce.text.tokenizer import Tokenizer
from transduce.text.word_spans import Span

_MARKS_AROUND = 4  # special tokens that a vocabulary adds: language tags, the end symbol

Given = Translation | tuple[str, str]
"""A translation, or a pair of a source and its translated text."""


class Scorer(Protocol):
    """The methods of a translator that span alignment needs."""

    tokenizer: Tokenizer
    search: SearchSettings

    @property
    def most_scored(self) -> int:
        """Maximum number of tokens in a text that can be scored."""

    def scoring(self, search: SearchSettings) -> Scoring:
        """Return a function that scores pairs of sources and translations."""


class _Part(NamedTuple):
    """A part of a text that was translated separately."""

    source: Span
    target: Span


def checked_translations(given: Iterable[Given]) -> list[Translation]:
    """Return a list of translations; pairs of a source and a text are converted.

    Raises:
        TransduceError: an item is neither a translation nor such a pair.
    """
    translations = []
    for each in given:
        pair = each if isinstance(each, tuple | list) else None
        if isinstance(each, Translation):
            translations.append(each)
        elif pair is not None and len(pair) == 2 and all(isinstance(text, str) for text in pair):
            translations.append(Translation.of(*pair))
        else:
            raise TransduceError(f"Pass a `Translation`, or a source and a text, not {each!r}: write (source, text).")
    return translations


def locate_all(
    translator: Scorer,
    translations: Sequence[Translation],
    spans: Sequence[Sequence[tuple[int, int]]],
    glossary: Glossary | None,
) -> list[list[Span]]:
    """Return the span of the best translation that corresponds to each marked span of its source.

    Raises:
        TransduceError: a marked span is invalid, or two spans overlap partly.
    """
    parts: list[Marked] = []
    owners: list[tuple[int, int, list[int]]] = []
    for number, (each, marked) in enumerate(zip(translations, spans, strict=True)):
        checked = _checked_spans(marked, each.source)
        for part in _parts(each):
            inner = [
                n for n, span in enumerate(checked) if span.start < part.source.end and span.end > part.source.start
            ]
            if len(each.joined) < 2:
                inner = list(range(len(checked)))
            if not inner:
                continue
            source = each.source[slice(*part.source)]
            local = [_within(checked[n], part.source) for n in inner]
            text = each.text[slice(*part.target)]
            parts.append(
                Marked(
                    source,
                    text,
                    local,
                    is_scored=can_score(translator, source, text),
                    ties=_ties(source, text, glossary),
                )
            )
            owners.append((number, part.target.start, inner))
    targets: list[list[Span | None]] = [[None] * len(marked) for marked in spans]
    located = locate(parts, translator.tokenizer.target, translator.scoring(translator.search))
    for (number, offset, inner), target_spans in zip(owners, located, strict=True):
        for n, span in zip(inner, target_spans, strict=True):
            moved, previous = Span(span.start + offset, span.end + offset), targets[number][n]
            targets[number][n] = moved if previous is None else Span(previous.start, moved.end)
    ends = [Span(len(each.text), len(each.text)) for each in translations]
    return [[span or end for span in marked] for marked, end in zip(targets, ends, strict=True)]


def _checked_spans(marked: Sequence[tuple[int, int]], source: str) -> list[Span]:
    spans = []
    for each in marked if isinstance(marked, list | tuple) else [marked]:
        numbers = tuple(each) if isinstance(each, tuple | list) else ()
        is_one = (
            len(numbers) == 2 and all(type(n) is int for n in numbers) and 0 <= numbers[0] <= numbers[1] <= len(source)
        )
        if not is_one:
            raise TransduceError(
                f"A span of a text is (start, end) in characters, from 0 to {len(source)} here, not {each!r}."
            )
        spans.append(Span(*numbers))
    for one in spans:
        for other in spans:
            if one.start < other.start < one.end < other.end:
                raise TransduceError(f"Spans must be nested or disjoint, but {tuple(one)} and {tuple(other)} overlap.")
    return spans


def _parts(each: Translation) -> Iterator[_Part]:
    """Yield the parts of a text that was translated in parts, or else the whole text."""
    if len(each.joined) < 2:
        yield _Part(Span(0, len(each.source)), Span(0, len(each.text)))
        return
    source = target = 0
    for part, text in each.joined:
        start, target_start = each.source.find(part, source), each.text.find(text, target)
        if start < 0 or target_start < 0:  # the translation was edited, so the part cannot be found
            continue
        source, target = start + len(part), target_start + len(text)
        yield _Part(Span(start, source), Span(target_start, target))


def _within(span: Span, part: Span) -> Span:
    """Return the part of a span that lies in a piece of text, relative to that piece's start."""
    start, end = (min(max(edge, part.start), part.end) - part.start for edge in span)
    return Span(start, end)


def can_score(translator: Scorer, source: str, text: str) -> bool:
    """Return whether a source and its translation are both short enough to be scored."""
    vocabularies = translator.tokenizer
    ids = (vocabularies.source.encode(source), vocabularies.target.encode(text))
    return max(map(len, ids)) + _MARKS_AROUND <= translator.most_scored


def _ties(source: str, text: str, glossary: Glossary | None) -> list[tuple[Span, Span]]:
    """Return pairs of spans: glossary terms in the source, and their translations in the text."""
    if glossary is None or as_compared(source) != source or as_compared(text) != text:
        return []
    ties: list[tuple[Span, Span]] = []
    for start, end, term in glossary.places(source):
        candidates = (
            Span(start_of_form, start_of_form + len(form))
            for form in term.forms
            for start_of_form in occurrences(text, form)
        )
        used = {tie[1] for tie in ties}
        target = next((span for span in sorted(candidates) if span not in used), None)
        if target is not None:
            ties.append((Span(start, end), target))
    return ties
