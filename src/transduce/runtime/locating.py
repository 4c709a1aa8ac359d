"""Align marked spans of a source, such as bold words or links, with spans of its translation.

Words of the translation belong to a span if they become much less probable when the span is removed from the source
(`occlusion.py`). The chosen run of words has the highest sum of losses above a threshold. Nested spans stay nested in
the translation, and disjoint spans stay disjoint.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transduce.runtime.occlusion import Occlusion, Scoring, word_losses, word_spans
from transduce.text.languages import is_of_word
from transduce.text.mentions import as_compared
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span

# The threshold, in nats, for a word that belongs to a run; at most this share of the strongest word's loss.
BY_THE_WAY_NATS = 2.5
_SHARE = 0.5
_CERTAIN_NATS = 10.0
"""Loss assigned to words that are known to belong to a span."""
_FEWEST_NATS = 0.3  # if no word loses more, the alignment is by relative position


class Marked(NamedTuple):
    """A sentence, its translation, and marked spans of the sentence, which are nested or disjoint."""

    source: str
    """The source sentence."""
    text: str
    """Its translation."""
    spans: Sequence[Span]
    """The marked spans of the source."""
    is_scored: bool = True
    """False if the sentence is too long for the model to score."""
    ties: Sequence[tuple[Span, Span]] = ()
    """Pairs of a source span and a translation span that are known to correspond."""


def locate(asked: Sequence[Marked], vocabulary: Vocabulary, score: Scoring) -> list[list[Span]]:
    """Return the span of the translation for each marked span; nesting is the same as in the source.

    If no word of the translation depends on a span, the word at the same relative position is used. A span without
    words becomes an empty span between words.

    Args:
        asked: sentences, translations and marked spans.
        vocabulary: the target vocabulary.
        score: scores pairs with the model.
    """
    to_score = [
        [
            span
            for span in each.spans
            if each.is_scored and each.text and _has_words(each, span) and not _is_all(each, span)
        ]
        for each in asked
    ]
    questions = [
        Occlusion(each.source, each.text, [as_compared(each.source[: s.start] + each.source[s.end :]) for s in spans])
        for each, spans in zip(asked, to_score, strict=True)
    ]
    located = []
    for each, spans, losses in zip(asked, to_score, _question_losses(questions, vocabulary, score), strict=True):
        losses_by_span = dict(zip(spans, losses, strict=True))
        located.append(_Aligner(each, [losses_by_span.get(span, []) for span in each.spans]).places())
    return located


def _has_words(each: Marked, span: Span) -> bool:
    return any(map(is_of_word, each.source[span.start : span.end]))


def _is_all(each: Marked, span: Span) -> bool:
    """Return whether a span contains all words of its source."""
    return not any(map(is_of_word, each.source[: span.start] + each.source[span.end :]))


def _question_losses(asked: Sequence[Occlusion], vocabulary: Vocabulary, score: Scoring) -> Iterator[list[list[float]]]:
    """Yield the losses of each question; an empty list for questions without spans."""
    real = word_losses([each for each in asked if each.without], vocabulary, score)
    return (next(real) if each.without else [] for each in asked)


class _Aligner:
    """Aligns the spans of one sentence, one after another: outer spans first, then those with the largest losses."""

    def __init__(self, marked: Marked, losses: Sequence[Sequence[float]]) -> None:
        self.marked = marked
        self.words = word_spans(marked.text)
        self.losses = [self._tied(span, own) for span, own in zip(marked.spans, losses, strict=True)]
        self.placed: dict[int, Span] = {}
        self.taken: dict[int, range] = {}
        """The words that are assigned to each aligned span."""

    def places(self) -> list[Span]:
        """Return the target span of each marked span."""
        spans = self.marked.spans
        depths = [sum(self._encloses(other, number) for other in range(len(spans))) for number in range(len(spans))]
        order = sorted(range(len(spans)), key=lambda n: (depths[n], -max(self.losses[n], default=0.0), n))
        for number in order:
            self._align(number)
        return [self.placed[number] for number in range(len(spans))]

    def _tied(self, span: Span, losses: Sequence[float]) -> list[float]:
        """Return the losses of a span's words, with fixed values for words that are known to belong to a span."""
        adjusted = list(losses)
        for source, target in self.marked.ties:
            is_within = span.start <= source.start and source.end <= span.end
            for number, word in enumerate(self.words):
                if adjusted and target.start <= word.start and word.end <= target.end:
                    adjusted[number] = _CERTAIN_NATS if is_within else min(adjusted[number], 0.0)
        return adjusted

    def _encloses(self, outer: int, inner: int) -> bool:
        """Return whether a span contains another; of two equal spans, the first contains the second."""
        one, other = self.marked.spans[outer], self.marked.spans[inner]
        is_around = one.start <= other.start and other.end <= one.end
        return outer != inner and is_around and (one != other or outer < inner)

    def _align(self, number: int) -> None:
        text, span = self.marked.text, self.marked.spans[number]
        parents = [other for other in self.placed if self._encloses(other, number)]
        bounds = min(
            (self.placed[other] for other in parents), key=lambda s: s.end - s.start, default=Span(0, len(text))
        )
        free = self._free(parents, bounds)
        words = self._run(number, free)
        self.taken[number] = words
        if not words:
            self.placed[number] = self._between(span, free, bounds)
        elif _is_all(self.marked, span) and not parents:
            self.placed[number] = Span(len(text) - len(text.lstrip()), len(text.rstrip()))
        else:
            target_span = Span(self.words[words.start].start, self.words[words.stop - 1].end)
            for source, target in self.marked.ties:  # include punctuation that belongs to a glossary term
                if (
                    span.start <= source.start
                    and source.end <= span.end
                    and target.start <= target_span.end <= target.end
                ):
                    target_span = Span(target_span.start, min(target.end, bounds.end))
            self.placed[number] = self._include_punctuation(target_span, span, bounds)

    def _free(self, parents: Sequence[int], bounds: Span) -> list[int]:
        """Return the words available for a span: those of its enclosing span that no disjoint span has taken."""
        taken = {word for other, words in self.taken.items() if other not in parents for word in words}
        inside = (n for n, word in enumerate(self.words) if bounds.start <= word.start and word.end <= bounds.end)
        return [word for word in inside if word not in taken]

    def _run(self, number: int, free: Sequence[int]) -> range:
        """Return the run of words that corresponds to a span; an empty range if the span has no words."""
        span, losses = self.marked.spans[number], self.losses[number]
        if not free or not _has_words(self.marked, span):
            return range(0)
        if _is_all(self.marked, span):
            return range(free[0], free[-1] + 1)
        strongest = max(losses[word] for word in free) if losses else 0.0
        if strongest < _FEWEST_NATS:
            return self._with_contractions(self._as_far_along(span, free), free)
        threshold = min(BY_THE_WAY_NATS, _SHARE * strongest)
        best, start, total = (0.0, range(0)), 0, 0.0
        for index, word in enumerate(free):
            if total <= 0 or free[index - 1] != word - 1:
                start, total = word, 0.0
            total += losses[word] - threshold
            best = max(best, (total, range(start, word + 1)), key=lambda each: each[0])
        return self._with_contractions(best[1], free)

    def _with_contractions(self, run: range, free: Sequence[int]) -> range:
        """Extend a run so that it does not split a contraction such as `doesn't`."""
        first, last = run.start, run.stop - 1
        while last + 1 in free and self._joins(last):
            last += 1
        while first - 1 in free and self._joins(first - 1):
            first -= 1
        return range(first, last + 1)

    def _joins(self, word: int) -> bool:
        """Return whether only an apostrophe separates a word from the next."""
        return self.marked.text[self.words[word].end : self.words[word + 1].start] in ("'", "\u2019")

    def _as_far_along(self, span: Span, free: Sequence[int]) -> range:
        """Return the available word that is nearest to the span's relative position in the source."""
        source = word_spans(self.marked.source)
        before = sum(word.end <= span.start for word in source)
        span_words = sum(span.start <= word.start and word.end <= span.end for word in source)
        middle = round((before + span_words / 2) / max(1, len(source)) * len(self.words) - 0.5)
        nearest = min(free, key=lambda word: abs(word - middle))
        return range(nearest, nearest + 1)

    def _between(self, span: Span, free: Sequence[int], bounds: Span) -> Span:
        """Return an empty span between words, at the source span's relative position."""
        source = word_spans(self.marked.source)
        before = sum(word.end <= span.start for word in source)
        if before == 0 or not free:
            offset = bounds.start if before == 0 and not self._is_inside(bounds.start) else bounds.end
            return Span(offset, offset)
        if before == len(source):
            return Span(bounds.end, bounds.end)
        goal = before / len(source) * len(self.words)
        offset = self.words[min(free, key=lambda word: abs(word - goal))].start
        return Span(offset, offset)

    def _is_inside(self, offset: int) -> bool:
        return any(other.start < offset < other.end for other in self.placed.values())

    def _include_punctuation(self, target_span: Span, span: Span, bounds: Span) -> Span:
        """Extend a target span by adjacent punctuation or opening brackets if the source span has some at that edge."""
        source, text = self.marked.source, self.marked.text
        start, end = target_span
        if not source[span.end - 1].isalnum():
            while end < bounds.end and not text[end].isspace() and not text[end].isalnum() and not _opens(text[end]):
                end += 1
        if not source[span.start].isalnum():
            while start > bounds.start and _opens(text[start - 1]):
                start -= 1
        return Span(start, end)


def _opens(character: str) -> bool:
    """Return whether a character is an opening bracket or quotation mark."""
    return unicodedata.category(character) in ("Ps", "Pi")
