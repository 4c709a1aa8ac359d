"""Where marked parts of a source are in its translation: bold words, links.

The words that come from a part are those that lose much without it (`occlusion.py`). Of all runs of words the one is
taken that loses most beyond what words lose by the way. Marks that enclose others enclose them in the translation, and
those that are apart stay apart.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transduce.runtime.occlusion import Occlusion, Scoring, word_losses, word_spans
from transduce.text.languages import is_of_word
from transduce.text.mentions import as_compared
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span

# A run goes on with words that lose so much, or such a share of what its strongest word loses, if that is less.
BY_THE_WAY_NATS = 2.5
_SHARE = 0.5
_CERTAIN_NATS = 10.0
_FEWEST_NATS = 0.3  # where no word loses more, none is known to come from the part


class Marked(NamedTuple):
    """A sentence, its translation, and parts of the sentence, each in another one or apart from it."""

    source: str
    text: str
    spans: Sequence[Span]
    is_scored: bool = True
    """False where the model cannot score it, for its length."""
    ties: Sequence[tuple[Span, Span]] = ()
    """Parts of the source and of the translation that are known to belong together."""


def locate(asked: Sequence[Marked], vocabulary: Vocabulary, score: Scoring) -> list[list[Span]]:
    """Where each part is in the translation, as it encloses others and is apart from others in the source.

    Where no word depends on a part, the word stands for it that is as far along in the translation. A part without
    words is a place between words.

    Args:
        asked: translations and what is marked in their sources.
        vocabulary: the target's.
        score: of the model.
    """
    unclear = [
        [
            span
            for span in each.spans
            if each.is_scored and each.text and _has_words(each, span) and not _is_all(each, span)
        ]
        for each in asked
    ]
    questions = [
        Occlusion(each.source, each.text, [as_compared(each.source[: s.start] + each.source[s.end :]) for s in own])
        for each, own in zip(asked, unclear, strict=True)
    ]
    found = []
    for each, own, losses in zip(asked, unclear, _losses_of(questions, vocabulary, score), strict=True):
        known = dict(zip(own, losses, strict=True))
        found.append(_Placing(each, [known.get(span, []) for span in each.spans]).places())
    return found


def _has_words(each: Marked, span: Span) -> bool:
    return any(map(is_of_word, each.source[span.start : span.end]))


def _is_all(each: Marked, span: Span) -> bool:
    """Whether a part has all words."""
    return not any(map(is_of_word, each.source[: span.start] + each.source[span.end :]))


def _losses_of(asked: Sequence[Occlusion], vocabulary: Vocabulary, score: Scoring) -> Iterator[list[list[float]]]:
    """The losses of questions, none of those that have no part."""
    real = word_losses([each for each in asked if each.without], vocabulary, score)
    return (next(real) if each.without else [] for each in asked)


class _Placing:
    """The parts of one sentence, placed one after another: those that enclose others first, then the clearest."""

    def __init__(self, marked: Marked, losses: Sequence[Sequence[float]]) -> None:
        self.marked = marked
        self.words = word_spans(marked.text)
        self.losses = [self._tied(span, own) for span, own in zip(marked.spans, losses, strict=True)]
        self.placed: dict[int, Span] = {}
        self.taken: dict[int, range] = {}
        """The words of those that are placed."""

    def places(self) -> list[Span]:
        """One of each part."""
        spans = self.marked.spans
        depths = [sum(self._encloses(other, number) for other in range(len(spans))) for number in range(len(spans))]
        order = sorted(range(len(spans)), key=lambda n: (depths[n], -max(self.losses[n], default=0.0), n))
        for number in order:
            self._place(number)
        return [self.placed[number] for number in range(len(spans))]

    def _tied(self, span: Span, losses: Sequence[float]) -> list[float]:
        """A part's losses, certain for words that are known to come from it, and for those that come from others."""
        known = list(losses)
        for source, target in self.marked.ties:
            is_within = span.start <= source.start and source.end <= span.end
            for number, word in enumerate(self.words):
                if known and target.start <= word.start and word.end <= target.end:
                    known[number] = _CERTAIN_NATS if is_within else min(known[number], 0.0)
        return known

    def _encloses(self, outer: int, inner: int) -> bool:
        """Whether a part has another in it; of two with the same text, the first the second."""
        one, other = self.marked.spans[outer], self.marked.spans[inner]
        is_around = one.start <= other.start and other.end <= one.end
        return outer != inner and is_around and (one != other or outer < inner)

    def _place(self, number: int) -> None:
        text, span = self.marked.text, self.marked.spans[number]
        parents = [other for other in self.placed if self._encloses(other, number)]
        bounds = min(
            (self.placed[other] for other in parents), key=lambda s: s.end - s.start, default=Span(0, len(text))
        )
        free = self._free(parents, bounds)
        chosen = self._run(number, free)
        self.taken[number] = chosen
        if not chosen:
            self.placed[number] = self._between(span, free, bounds)
        elif _is_all(self.marked, span) and not parents:
            self.placed[number] = Span(len(text) - len(text.lstrip()), len(text.rstrip()))
        else:
            own = Span(self.words[chosen.start].start, self.words[chosen.stop - 1].end)
            for source, target in self.marked.ties:  # with signs at the end of a term
                if span.start <= source.start and source.end <= span.end and target.start <= own.end <= target.end:
                    own = Span(own.start, min(target.end, bounds.end))
            self.placed[number] = self._with_punctuation(own, span, bounds)

    def _free(self, parents: Sequence[int], bounds: Span) -> list[int]:
        """The words that it may have: those of what encloses it, without those of others."""
        taken = {word for other, words in self.taken.items() if other not in parents for word in words}
        inside = (n for n, word in enumerate(self.words) if bounds.start <= word.start and word.end <= bounds.end)
        return [word for word in inside if word not in taken]

    def _run(self, number: int, free: Sequence[int]) -> range:
        """The words that are taken for a part."""
        span, losses = self.marked.spans[number], self.losses[number]
        if not free or not _has_words(self.marked, span):
            return range(0)
        if _is_all(self.marked, span):
            return range(free[0], free[-1] + 1)
        strongest = max(losses[word] for word in free) if losses else 0.0
        if strongest < _FEWEST_NATS:
            return self._with_contractions(self._as_far_along(span, free), free)
        usual = min(BY_THE_WAY_NATS, _SHARE * strongest)
        best, start, total = (0.0, range(0)), 0, 0.0
        for place, word in enumerate(free):
            if total <= 0 or free[place - 1] != word - 1:
                start, total = word, 0.0
            total += losses[word] - usual
            best = max(best, (total, range(start, word + 1)), key=lambda each: each[0])
        return self._with_contractions(best[1], free)

    def _with_contractions(self, run: range, free: Sequence[int]) -> range:
        """No tag comes into the middle of `doesn't`."""
        first, last = run.start, run.stop - 1
        while last + 1 in free and self._joins(last):
            last += 1
        while first - 1 in free and self._joins(first - 1):
            first -= 1
        return range(first, last + 1)

    def _joins(self, word: int) -> bool:
        """Whether nothing but an apostrophe is between a word and the next."""
        return self.marked.text[self.words[word].end : self.words[word + 1].start] in ("'", "\u2019")

    def _as_far_along(self, span: Span, free: Sequence[int]) -> range:
        """The free word that is nearest to where the part would be if all words stood in the source's order."""
        source = word_spans(self.marked.source)
        before = sum(word.end <= span.start for word in source)
        own = sum(span.start <= word.start and word.end <= span.end for word in source)
        middle = round((before + own / 2) / max(1, len(source)) * len(self.words) - 0.5)
        nearest = min(free, key=lambda word: abs(word - middle))
        return range(nearest, nearest + 1)

    def _between(self, span: Span, free: Sequence[int], bounds: Span) -> Span:
        """A place between words."""
        source = word_spans(self.marked.source)
        before = sum(word.end <= span.start for word in source)
        if before == 0 or not free:
            place = bounds.start if before == 0 and not self._is_inside(bounds.start) else bounds.end
            return Span(place, place)
        if before == len(source):
            return Span(bounds.end, bounds.end)
        goal = before / len(source) * len(self.words)
        place = self.words[min(free, key=lambda word: abs(word - goal))].start
        return Span(place, place)

    def _is_inside(self, place: int) -> bool:
        return any(other.start < place < other.end for other in self.placed.values())

    def _with_punctuation(self, own: Span, span: Span, bounds: Span) -> Span:
        """With the marks behind it, or the brackets before it, where the part in the source has some there."""
        source, text = self.marked.source, self.marked.text
        start, end = own
        if not source[span.end - 1].isalnum():
            while end < bounds.end and not text[end].isspace() and not text[end].isalnum() and not _opens(text[end]):
                end += 1
        if not source[span.start].isalnum():
            while start > bounds.start and _opens(text[start - 1]):
                start -= 1
        return Span(start, end)


def _opens(character: str) -> bool:
    """Whether it is an opening bracket or quotation mark."""
    return unicodedata.category(character) in ("Ps", "Pi")
