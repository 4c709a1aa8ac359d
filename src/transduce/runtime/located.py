"""Marked parts of whole translations: those of long texts part by part, and a glossary's terms where they were put."""

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

_MARKS_AROUND = 4  # pieces that a vocabulary adds: tags of languages, the end symbol

Given = Translation | tuple[str, str]


class Scorer(Protocol):
    """What is needed of a translator."""

    tokenizer: Tokenizer
    search: SearchSettings

    @property
    def most_scored(self) -> int:
        """Pieces of the longest text that can be scored."""

    def scoring(self, search: SearchSettings) -> Scoring:
        """What scores pairs."""


class _Piece(NamedTuple):
    """A part of a text that was translated by itself."""

    source: Span
    target: Span


def checked_translations(given: Iterable[Given]) -> list[Translation]:
    """Translations, also where a source and a text are given.

    Raises:
        TransduceError: something is neither.
    """
    found = []
    for each in given:
        pair = each if isinstance(each, tuple | list) else None
        if isinstance(each, Translation):
            found.append(each)
        elif pair is not None and len(pair) == 2 and all(isinstance(text, str) for text in pair):
            found.append(Translation.of(*pair))
        else:
            raise TransduceError(
                f"What is looked into is a `Translation`, or a source and a text, but {each!r} was given: write "
                "(source, text)."
            )
    return found


def locate_all(
    translator: Scorer,
    translations: Sequence[Translation],
    spans: Sequence[Sequence[tuple[int, int]]],
    glossary: Glossary | None,
) -> list[list[Span]]:
    """The place of each part in the best alternative of its translation.

    Raises:
        TransduceError: a part is none.
    """
    asked: list[Marked] = []
    owners: list[tuple[int, int, list[int]]] = []
    for number, (each, own) in enumerate(zip(translations, spans, strict=True)):
        checked = _checked_spans(own, each.source)
        for piece in _pieces(each):
            inner = [
                n for n, span in enumerate(checked) if span.start < piece.source.end and span.end > piece.source.start
            ]
            if len(each.joined) < 2:
                inner = list(range(len(checked)))
            if not inner:
                continue
            source = each.source[slice(*piece.source)]
            local = [_within(checked[n], piece.source) for n in inner]
            text = each.text[slice(*piece.target)]
            asked.append(
                Marked(
                    source,
                    text,
                    local,
                    is_scored=can_score(translator, source, text),
                    ties=_ties(source, text, glossary),
                )
            )
            owners.append((number, piece.target.start, inner))
    places: list[list[Span | None]] = [[None] * len(own) for own in spans]
    located = locate(asked, translator.tokenizer.target, translator.scoring(translator.search))
    for (number, offset, inner), found in zip(owners, located, strict=True):
        for n, span in zip(inner, found, strict=True):
            moved, known = Span(span.start + offset, span.end + offset), places[number][n]
            places[number][n] = moved if known is None else Span(known.start, moved.end)
    ends = [Span(len(each.text), len(each.text)) for each in translations]
    return [[span or end for span in own] for own, end in zip(places, ends, strict=True)]


def _checked_spans(given: Sequence[tuple[int, int]], source: str) -> list[Span]:
    spans = []
    for each in given if isinstance(given, list | tuple) else [given]:
        numbers = tuple(each) if isinstance(each, tuple | list) else ()
        is_one = (
            len(numbers) == 2 and all(type(n) is int for n in numbers) and 0 <= numbers[0] <= numbers[1] <= len(source)
        )
        if not is_one:
            raise TransduceError(
                f"A part of a text is (start, end) in characters, from 0 to {len(source)} here, but {each!r} was given."
            )
        spans.append(Span(*numbers))
    for one in spans:
        for other in spans:
            if one.start < other.start < one.end < other.end:
                raise TransduceError(
                    f"Of two parts one is in the other, or they are apart, but {tuple(one)} and {tuple(other)} overlap."
                )
    return spans


def _pieces(each: Translation) -> Iterator[_Piece]:
    """The parts of a text that was cut, else the whole."""
    if len(each.joined) < 2:
        yield _Piece(Span(0, len(each.source)), Span(0, len(each.text)))
        return
    source = target = 0
    for part, text in each.joined:
        start, begin = each.source.find(part, source), each.text.find(text, target)
        if start < 0 or begin < 0:  # nothing that we know of
            continue
        source, target = start + len(part), begin + len(text)
        yield _Piece(Span(start, source), Span(begin, target))


def _within(span: Span, piece: Span) -> Span:
    """A span's share of a piece, counted from its start."""
    start, end = (min(max(edge, piece.start), piece.end) - piece.start for edge in span)
    return Span(start, end)


def can_score(translator: Scorer, source: str, text: str) -> bool:
    """Whether neither a source nor its translation is too long to be scored."""
    vocabularies = translator.tokenizer
    ids = (vocabularies.source.encode(source), vocabularies.target.encode(text))
    return max(map(len, ids)) + _MARKS_AROUND <= translator.most_scored


def _ties(source: str, text: str, glossary: Glossary | None) -> list[tuple[Span, Span]]:
    """Terms of the source, and what stands for them."""
    if glossary is None or as_compared(source) != source or as_compared(text) != text:
        return []
    ties: list[tuple[Span, Span]] = []
    for start, end, term in glossary.places(source):
        free = (Span(place, place + len(form)) for form in term.forms for place in occurrences(text, form))
        known = {tie[1] for tie in ties}
        target = next((span for span in sorted(free) if span not in known), None)
        if target is not None:
            ties.append((Span(start, end), target))
    return ties
