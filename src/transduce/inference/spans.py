"""Locate marked spans of source texts, such as bold words or links, in their translations."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from transduce.errors import TransduceError, shown_value
from transduce.inference.scoring import Score
from transduce.inference.translation import ComposedTranslation, Translation, has_composed_texts
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary, is_spaced_word_character, normalize_for_comparison, occurrences
from transduce.text.languages import is_unspaced_character, is_word_character
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span, encode_with_spans, overlap, span_in_full_text

# --- attribution by occlusion ---
# A part is removed from the source, and the translation is scored again; words that depend on the part become less
# probable. Occlusion needs neither attention nor word alignments, so it works for models of all kinds.


_WITHIN_NUMBERS = re.compile(r"(?<=\d)[.,:](?=\d)")

Scoring = Callable[[Sequence[str], Sequence[str]], list[Score]]
"""A function from two lists of equal length, sources and translations, to a list with a model's `Score` of each pair.
"""


class OcclusionRequest(NamedTuple):
    """A request to measure how the words of a translation depend on parts of its source, by leaving out each part."""

    source: str
    """The complete source text."""
    text: str
    """The translation of the complete source."""
    without: Sequence[str]
    """The texts of the source without one of its parts, one text for each part."""


def word_losses(
    requests: Sequence[OcclusionRequest], vocabulary: Vocabulary, score: Scoring
) -> Iterator[list[list[float]]]:
    """Yield how much less probable each word of a translation becomes, in nats, when a part of its source is removed.

    Args:
        requests: the translations and parts to remove. All are scored in the same batches.
        vocabulary: the target vocabulary.
        score: scores pairs with the model.

    Yields:
        A list for each request. It has a list for each removed part: the decrease of the log-probability of each word.
        The words are those of `word_spans`. A request without parts to remove gives an empty list.
    """
    pairs = [(source, each.text) for each in requests if each.without for source in (each.source, *each.without)]
    scores = iter(score_pairs(pairs, score))
    for each in requests:
        if not each.without:
            yield []
            continue
        words, full_score = word_spans(each.text), next(scores)
        yield [_losses(each.text, words, full_score, next(scores), vocabulary) for _ in each.without]


def score_pairs(pairs: Sequence[tuple[str, str]], score: Scoring) -> list[Score]:
    """Return a list with the score of each pair of source and translation; an empty list for no pairs."""
    return score([source for source, _ in pairs], [target for _, target in pairs]) if pairs else []


def word_spans(text: str, continued: Collection[int] = ()) -> list[Span]:
    """Return a list of the character spans of a text's words, without punctuation.

    Numbers such as 1,234.5 are one word. In scripts without spaces, every character is a word, except for characters at
    the offsets `continued`, which belong to the word before them.
    """
    within = {match.start() for match in _WITHIN_NUMBERS.finditer(text)}
    spans: list[Span] = []
    for index, character in enumerate(text):
        if not is_word_character(character) and index not in within:
            continue
        in_number = not within.isdisjoint((index - 1, index))
        in_word = index > 0 and is_spaced_word_character(text[index - 1]) and is_spaced_word_character(character)
        goes_on = (in_number or in_word or index in continued) and spans and spans[-1].end == index
        start = spans.pop().start if goes_on else index
        spans.append(Span(start, index + 1))
    return spans


def _losses(text: str, words: Sequence[Span], full_score: Score, without: Score, vocabulary: Vocabulary) -> list[float]:
    """Return a list of the log-probability in nats that each word of a translation loses without a part of the source.

    `words` are character spans of the words. `full_score` is the translation's score with the full source, and
    `without` is its score with the source without the part. A word's loss is the sum over its tokens. A token that
    covers several words gives each of them its whole loss.
    """
    ids, spans = encode_with_spans(vocabulary, text)
    pairs = zip(full_score.token_log_probabilities, without.token_log_probabilities, strict=True)
    # drops forced first tokens and the end symbol
    token_losses = [one - other for one, other in pairs][-1 - len(ids) : -1]
    lengths = [[max(1, min(w.end - w.start, p.end - p.start)) for p in spans] for w in words]
    shares = overlap(words, spans) / np.array(lengths, dtype=np.float32).reshape(len(words), len(spans))
    return [float(value) for value in (shares * np.array(token_losses, dtype=np.float32)).sum(axis=1)]


# --- spans of one text ---
# Words of the translation belong to a span if they become much less probable when the span is removed from the
# source. The chosen run of words has the highest sum of losses above a threshold. Nested spans stay nested in the
# translation, and disjoint spans stay disjoint.


# The threshold, in nats, for a word that belongs to a run; at most this share of the strongest word's loss.
LOSS_THRESHOLD_NATS = 2.5
_SHARE = 0.5
_CERTAIN_NATS = 10.0
"""Loss in nats assigned to translated words that are known to belong to a source span."""
_MIN_NATS = 0.3  # if no word loses more, the alignment is by relative position


class MarkedSentence(NamedTuple):
    """A sentence, its translation, and marked spans of the sentence, which are nested or disjoint."""

    source: str
    """The source sentence."""
    text: str
    """The translation of the source sentence."""
    spans: Sequence[Span]
    """The marked character spans of the source."""
    is_scored: bool = True
    """True if source and translation are short enough for the model to score; False: positions are estimated."""
    ties: Sequence[tuple[Span, Span]] = ()
    """Pairs of a character span of the source and one of the translation that are known to correspond, such as glossary
    terms.
    """


def align_marked(requests: Sequence[MarkedSentence], vocabulary: Vocabulary, score: Scoring) -> list[list[Span]]:
    """Find the span of the translation that corresponds to each marked span; return a list for each sentence.

    The spans found are nested as in the source. If no word of the translation depends on a marked span, the word at the
    same relative position is used. A marked span without words becomes an empty span between words. In scripts without
    spaces, spans end at token boundaries, unless a marked span with words would then get no word.

    Args:
        requests: sentences, translations and marked spans.
        vocabulary: the target vocabulary.
        score: scores pairs with the model.
    """
    to_score: list[list[Span]] = []
    questions: list[OcclusionRequest] = []
    for each in requests:
        can_score = each.is_scored and each.text
        spans = [span for span in each.spans if can_score and _has_words(each, span) and not _is_all(each, span)]
        without = [normalize_for_comparison(each.source[: s.start] + each.source[s.end :]) for s in spans]
        to_score.append(spans)
        questions.append(OcclusionRequest(each.source, each.text, without))
    located = []
    for each, spans, losses in zip(requests, to_score, word_losses(questions, vocabulary, score), strict=True):
        losses_by_span = dict(zip(spans, losses, strict=True))
        own = [losses_by_span.get(span, []) for span in each.spans]
        found = _Aligner(each, own, _within_tokens(each.text, vocabulary)).positions()
        is_lacking = any(
            target.start == target.end and _has_words(each, span)
            for span, target in zip(each.spans, found, strict=True)
        )
        located.append(_Aligner(each, own).positions() if is_lacking else found)
    return located


def _within_tokens(text: str, vocabulary: Vocabulary) -> frozenset[int]:
    """Return the set of offsets at which a text must not be cut, because they are inside a token.

    Only characters of scripts without spaces count, so the set is empty for a text without such a script.
    """
    unspaced = list(map(is_unspaced_character, text))
    if not any(unspaced):
        return frozenset()
    _, spans = encode_with_spans(vocabulary, text)
    return frozenset(
        each for start, end in spans for each in range(start + 1, end) if unspaced[each - 1] and unspaced[each]
    )


def _has_words(each: MarkedSentence, span: Span) -> bool:
    return any(map(is_word_character, each.source[span.start : span.end]))


def _is_all(each: MarkedSentence, span: Span) -> bool:
    """Return whether a marked span contains all words of its source sentence."""
    return not any(map(is_word_character, each.source[: span.start] + each.source[span.end :]))


class _Aligner:
    """A finder of the spans of a translation that correspond to marked spans of its source, outer spans first.

    In scripts without spaces, every character is a word, unless `continued` has the offsets of characters that belong
    to the word before them.
    """

    def __init__(
        self, marked: MarkedSentence, losses: Sequence[Sequence[float]], continued: Collection[int] = ()
    ) -> None:
        self.marked = marked
        self.words = word_spans(marked.text, continued)
        known = (self._of_words(own) if continued else own for own in losses)
        self.losses = [self._with_known_losses(span, own) for span, own in zip(marked.spans, known, strict=True)]
        self.placed: dict[int, Span] = {}
        self.taken: dict[int, range] = {}
        """A dict from the index of each aligned span to the range of indices of the translated words that are assigned
        to it.
        """

    def _of_words(self, losses: Sequence[float]) -> list[float]:
        """Return the loss of each translated word: the greatest loss of a character of the word.

        In scripts without spaces, `losses` has a loss for each character; in others, for each word. If `losses` is
        empty, the result is empty.
        """
        starts = [word.start for word in self.words]
        found = [0.0 for _ in self.words] if losses else []
        for character, loss in zip(word_spans(self.marked.text) if losses else (), losses, strict=True):
            number = bisect_right(starts, character.start) - 1
            found[number] = max(found[number], loss)
        return found

    def positions(self) -> list[Span]:
        """Return a list: for each marked span of the source, in order, the character span of the translation."""
        spans = self.marked.spans
        depths = [sum(self._encloses(other, number) for other in range(len(spans))) for number in range(len(spans))]
        order = sorted(range(len(spans)), key=lambda n: (depths[n], -max(self.losses[n], default=0.0), n))
        for number in order:
            self._align(number)
        return [self.placed[number] for number in range(len(spans))]

    def _with_known_losses(self, span: Span, losses: Sequence[float]) -> list[float]:
        """Replace the losses of words of glossary terms by fixed values, and return the losses, in nats.

        A word of a term inside the marked `span` gets a high loss, and a word of any other term at most 0.

        Args:
            span: the marked span of the source.
            losses: each translated word's loss when `span` is left out of the source; may be empty.
        """
        adjusted = list(losses)
        for source, target in self.marked.ties:
            for number, word in enumerate(self.words):
                if adjusted and target.contains(word):
                    adjusted[number] = _CERTAIN_NATS if span.contains(source) else min(adjusted[number], 0.0)
        return adjusted

    def _encloses(self, outer: int, inner: int) -> bool:
        """Return whether the marked span with index `outer` contains that with index `inner`.

        Of two equal spans, the first contains the second.
        """
        one, other = self.marked.spans[outer], self.marked.spans[inner]
        return outer != inner and one.contains(other) and (one != other or outer < inner)

    def _align(self, number: int) -> None:
        text, span = self.marked.text, self.marked.spans[number]
        parents = [other for other in self.placed if self._encloses(other, number)]
        bounds = min(
            (self.placed[other] for other in parents), key=lambda s: s.end - s.start, default=Span(0, len(text))
        )
        free = self._free_words(parents, bounds)
        words = self._run(number, free)
        self.taken[number] = words
        if not words:
            self.placed[number] = self._between(span, free, bounds)
        elif _is_all(self.marked, span) and not parents:
            self.placed[number] = Span(len(text) - len(text.lstrip()), len(text.rstrip()))
        else:
            target_span = Span(self.words[words.start].start, self.words[words.stop - 1].end)
            for source, target in self.marked.ties:  # include punctuation that belongs to a glossary term
                if span.contains(source) and target.start <= target_span.end <= target.end:
                    target_span = Span(target_span.start, min(target.end, bounds.end))
            self.placed[number] = self._include_punctuation(target_span, span, bounds)

    def _free_words(self, parents: Sequence[int], bounds: Span) -> list[int]:
        """Return a list of the indices of the translated words that a marked span may get.

        Words of marked spans that are disjoint from this span are left out.

        Args:
            parents: the indices of the marked spans that enclose this one.
            bounds: the character span of the translation in which the words must be.
        """
        taken = {word for other, words in self.taken.items() if other not in parents for word in words}
        return [n for n, word in enumerate(self.words) if bounds.contains(word) and n not in taken]

    def _run(self, number: int, free: Sequence[int]) -> range:
        """Return the range of target words that corresponds to a marked span, as indices.

        A span without words gets no word, and a span with all words of the source gets all free words. For other spans,
        a word's loss is the decrease of its log-probability when the span is left out. The range is the run of free
        words with the highest sum of (loss - threshold). If every loss is small, the range is the free word nearest to
        the span's relative position. Contractions such as "don't" are not split.

        Args:
            number: the index of the marked span.
            free: the indices of the target words that may be used, in order.
        """
        span, losses = self.marked.spans[number], self.losses[number]
        if not free or not _has_words(self.marked, span):
            return range(0)
        if _is_all(self.marked, span):
            return range(free[0], free[-1] + 1)
        strongest = max(losses[word] for word in free) if losses else 0.0
        if strongest < _MIN_NATS:
            return self._with_contractions(self._at_same_relative_position(span, free), free)
        threshold = min(LOSS_THRESHOLD_NATS, _SHARE * strongest)
        best, start, total = (0.0, range(0)), 0, 0.0
        for index, word in enumerate(free):
            if total <= 0 or free[index - 1] != word - 1:
                start, total = word, 0.0
            total += losses[word] - threshold
            best = max(best, (total, range(start, word + 1)), key=lambda each: each[0])
        return self._with_contractions(best[1], free)

    def _with_contractions(self, run: range, free: Sequence[int]) -> range:
        """Return a range of target words, extended so that no contraction (`doesn't`) is split.

        Only words in `free`, which no other marked span has, are added.
        """
        first, last = run.start, run.stop - 1
        while last + 1 in free and self._is_contraction(last):
            last += 1
        while first - 1 in free and self._is_contraction(first - 1):
            first -= 1
        return range(first, last + 1)

    def _is_contraction(self, word: int) -> bool:
        """Return whether only an apostrophe separates the target word with this index from the next, as in "don't"."""
        return self.marked.text[self.words[word].end : self.words[word + 1].start] in ("'", "\u2019")

    def _at_same_relative_position(self, span: Span, free: Sequence[int]) -> range:
        """Return a range with the index of the free target word nearest to the source span's relative position."""
        source = word_spans(self.marked.source)
        before = sum(word.end <= span.start for word in source)
        span_words = sum(map(span.contains, source))
        middle = round((before + span_words / 2) / max(1, len(source)) * len(self.words) - 0.5)
        nearest = min(free, key=lambda word: abs(word - middle))
        return range(nearest, nearest + 1)

    def _between(self, span: Span, free: Sequence[int], bounds: Span) -> Span:
        """Return an empty character span between target words, at the relative position of the source span.

        If no word of the source precedes the span, the result is at the start of `bounds`. If no word follows it, or no
        target word is free, the result is at the end.
        """
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
        """Return a span of the translation, extended by punctuation at each end where the source span has some, too."""
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


# --- spans of long texts ---


_SPECIAL_TOKENS = 4  # that a vocabulary may add to a text: language tags, the end symbol

TranslationOrPair = Translation | tuple[str, str]
"""A translation, or a pair (source, translated text)."""


class _SpanPair(NamedTuple):
    """A pair of character spans, in source and translation, of a sentence or part that was translated separately."""

    source: Span
    target: Span


def as_translations(value: Iterable[TranslationOrPair]) -> list[Translation]:
    """Return `Translation`s as a list; pairs of a source and its translated text are converted to them.

    Raises:
        TransduceError: an item is neither a translation nor such a pair.
    """
    translations = []
    for each in value:
        if isinstance(each, Translation):
            translations.append(each)
        elif isinstance(each, tuple | list) and len(each) == 2 and all(isinstance(text, str) for text in each):
            translations.append(Translation.of(*each))
        else:
            raise TransduceError(
                f"Pass a `Translation`, or a source and a text, not {shown_value(each)}: write (source, text)."
            )
    return translations


class PairScorer(Protocol):
    """An interface of translators whose scores of sentence pairs show how spans correspond."""

    tokenizer: Tokenizer
    search: SearchSettings

    @property
    def max_scored_tokens(self) -> int:
        """The maximum number of tokens in a source or translation that the translator can score."""

    def scoring(self, search: SearchSettings) -> Scoring:
        """Return a function that scores sentence pairs in the same way as a search with these settings."""


def align_spans(
    translator: PairScorer,
    translations: Sequence[Translation],
    spans: Sequence[Sequence[tuple[int, int]]],
    glossary: Glossary | None,
) -> list[list[Span]]:
    """Find the span of the translation that corresponds to each marked span of its source.

    Returns a list of spans for each translation.

    Args:
        translator: scores sentence pairs.
        translations: the translations, whose best alternatives are used.
        spans: for each translation, the marked character spans of its source.
        glossary: the glossary; its terms are known to correspond to their forms in the translation. None: no terms.

    Raises:
        TransduceError: a marked span is invalid, or two spans overlap partly.
    """
    checked = [_checked_spans(marked, each.source) for each, marked in zip(translations, spans, strict=True)]
    if not translator.tokenizer.source.composes or all(map(has_composed_texts, translations)):
        return _align_spans(translator, translations, checked, glossary)
    composed = list(map(ComposedTranslation.of, translations))
    moved = [
        [each.source.normalized_span(span) for span in marked] for each, marked in zip(composed, checked, strict=True)
    ]
    found = _align_spans(translator, [each.translation for each in composed], moved, glossary)
    return [[each.target.original_span(span) for span in own] for each, own in zip(composed, found, strict=True)]


def _align_spans(
    translator: PairScorer,
    translations: Sequence[Translation],
    spans: Sequence[Sequence[Span]],
    glossary: Glossary | None,
) -> list[list[Span]]:
    """Return the result of `align_spans` for texts in the form that the model reads, and for spans that are checked."""
    parts: list[MarkedSentence] = []
    owners: list[tuple[int, int, list[int], _Stripped]] = []
    for number, (each, checked) in enumerate(zip(translations, spans, strict=True)):
        for part in _parts(each):
            inner = [
                n for n, span in enumerate(checked) if span.start < part.source.end and span.end > part.source.start
            ]
            if not each.positions:
                inner = list(range(len(checked)))
            if not inner:
                continue
            source, target = _strip_protected(each, part)
            local = [source.narrow(_within(checked[n], part.source)) for n in inner]
            texts = source.text, target.text
            is_scored, ties = can_score(translator, *texts), _ties(*texts, glossary)
            parts.append(MarkedSentence(*texts, local, is_scored=is_scored, ties=ties))
            owners.append((number, part.target.start, inner, target))
    targets: list[list[Span | None]] = [[None] * len(marked) for marked in spans]
    located = align_marked(parts, translator.tokenizer.target, translator.scoring(translator.search))
    for (number, offset, inner, target), target_spans in zip(owners, located, strict=True):
        for n, span in zip(inner, map(target.widen, target_spans), strict=True):
            moved, previous = Span(span.start + offset, span.end + offset), targets[number][n]
            targets[number][n] = moved if previous is None else Span(previous.start, moved.end)
    found = []
    for each, marked, own in zip(translations, spans, targets, strict=True):
        end = Span(len(each.text), len(each.text))
        found.append([_with_copies(each, source, span or end) for source, span in zip(marked, own, strict=True)])
    return found


def _copied(each: Translation) -> list[tuple[Span, Span]]:
    """Return pairs of a source span and a target span whose text was copied to the translation.

    The stored spans are those of the best alternative. A pair is left out if its texts differ, as in another
    alternative.
    """
    return [
        (source, target)
        for source, target in each.protected
        if each.source[slice(*source)] == each.text[slice(*target)]
    ]


def _with_copies(each: Translation, source: Span, target: Span) -> Span:
    """Adjust a target span to the protected spans that were copied to the translation.

    Copies of protected spans outside the source span are cut off the edges. The span is then extended by the copies of
    protected spans inside the source span, unless it would contain a copy from outside. If the source span has no other
    word, the result covers only the inner copies.
    """
    pairs = _copied(each)
    own = [copy for span, copy in pairs if source.contains(span)]
    others = [copy for _, copy in pairs if copy not in own]
    target = _without_edges(each.text, target, others)
    if not own:
        return target
    removed = [Span(span.start - source.start, span.end - source.start) for span, _ in pairs]
    rest = _strip(each.source[slice(*source)], removed).text
    edges = [*own, target] if any(map(is_word_character, rest)) else own
    hull = Span(min(span.start for span in edges), max(span.end for span in edges))
    return target if any(hull.start <= copy.start < hull.end for copy in others) else hull


def _without_edges(text: str, span: Span, copies: Sequence[Span]) -> Span:
    """Cut the copies of protected spans off both ends of a target span.

    Copies before the first other word and after the last other word are cut off. A span without copies, or without
    other words, is returned unchanged.
    """
    inside = [copy for copy in copies if span.contains(copy)]
    copied = {offset for copy in inside for offset in range(*copy)}
    words = [offset for offset in range(*span) if offset not in copied and is_word_character(text[offset])]
    if not inside or not words:
        return span
    start = max((copy.end for copy in inside if copy.end <= words[0]), default=span.start)
    end = min((copy.start for copy in inside if copy.start > words[-1]), default=span.end)
    inner = text[start:end]
    return Span(start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip()))


def _checked_spans(marked: Sequence[tuple[int, int]], source: str) -> list[Span]:
    spans = []
    items: Sequence[Any] = marked if isinstance(marked, list | tuple) else [marked]
    for each in items:
        is_pair = isinstance(each, tuple | list) and len(each) == 2 and all(type(n) is int for n in each)
        if not is_pair or not 0 <= each[0] <= each[1] <= len(source):
            raise TransduceError(
                f"A span of a text is (start, end) in characters, from 0 to {len(source)} here, not {each!r}."
            )
        spans.append(Span(*each))
    for one, other in product(spans, repeat=2):
        if one.start < other.start < one.end < other.end:
            raise TransduceError(f"Spans must be nested or disjoint, but {tuple(one)} and {tuple(other)} overlap.")
    return spans


def _parts(each: Translation) -> Iterator[_SpanPair]:
    """Yield the pairs of spans, in source and translation, of the sentences of a text that were translated separately.

    If the translation has no `positions`, which record the pairs, one pair covers the whole text.
    """
    if not each.positions:
        yield _SpanPair(Span(0, len(each.source)), Span(0, len(each.text)))
        return
    if not each.joined:  # one sentence with layout around it
        ((source, target),) = each.positions
        after = each.source[source.end :]
        end = len(each.text) - len(after) if each.text.endswith(after) else len(each.text)
        yield _SpanPair(source, Span(target.start, max(target.start, end)))
    elif all(
        each.text[slice(*target)] == text for (_, target), (_, text) in zip(each.positions, each.joined, strict=True)
    ):
        for source, target in each.positions:
            yield _SpanPair(source, target)
    else:
        yield from _found_parts(each)


def _found_parts(each: Translation) -> Iterator[_SpanPair]:
    """Find the sentences' translations in a changed translation, and yield pairs of source and target spans.

    The changed translation is another alternative or was edited. The sentences' translations are searched for in order.
    Consecutive sentences whose translations are not found form one pair.
    """
    position = 0
    start: int | None = None
    sentences = [(source, text) for (source, _), (_, text) in zip(each.positions, each.joined, strict=True)]
    for source, text in [*sentences, (Span(len(each.source), len(each.source)), None)]:
        found = len(each.text) if text is None else each.text.find(text, position)
        if found < 0:
            start = source.start if start is None else start
            continue
        if start is not None:
            yield _SpanPair(Span(start, source.start), Span(position, found))
            start = None
        if text is not None:
            position = found + len(text)
            yield _SpanPair(source, Span(found, position))


class _Stripped(NamedTuple):
    """A text from which protected (copied) spans were removed, because they do not show how other words correspond."""

    text: str
    offsets: Sequence[int]
    """The offset in the full text of each character of the stripped text; then the length of the full text."""

    def narrow(self, span: Span) -> Span:
        """Convert a character span of the full text to a span of the stripped `text`, and return it."""
        start, end = (bisect_left(self.offsets, edge) for edge in span)
        return Span(start, min(end, len(self.text)))

    def widen(self, span: Span) -> Span:
        """Convert a character span of the stripped `text` to a span of the full text, and return it."""
        return span_in_full_text(self.offsets, span)


def _strip_protected(each: Translation, part: _SpanPair) -> tuple[_Stripped, _Stripped]:
    """Return a part's source and translation, each as a `_Stripped` text without the spans copied between them."""
    pairs = _copied(each)
    sides = ([source for source, _ in pairs], [target for _, target in pairs])
    stripped = [
        _strip(text[slice(*bounds)], [Span(s.start - bounds.start, s.end - bounds.start) for s in spans])
        for text, bounds, spans in zip((each.source, each.text), part, sides, strict=True)
    ]
    return stripped[0], stripped[1]


def _strip(text: str, spans: Sequence[Span]) -> _Stripped:
    """Return a text with some character spans removed, as a `_Stripped`, with at most one space in place of each."""
    removed = {offset for span in spans for offset in range(max(0, span.start), min(span.end, len(text)))}
    if not removed:
        return _Stripped(text, range(len(text) + 1))
    offsets: list[int] = []
    for offset, character in enumerate(text):
        is_second_space = character == " " and (not offsets or text[offsets[-1]] == " ")
        if offset not in removed and not is_second_space:
            offsets.append(offset)
    while offsets and text[offsets[-1]] == " ":
        offsets.pop()
    return _Stripped("".join(text[offset] for offset in offsets), [*offsets, len(text)])


def _within(span: Span, part: Span) -> Span:
    """Return the overlap of two character spans, `span` and `part`, as offsets from the start of `part`.

    If the spans do not overlap, the result is an empty span at the nearer end of `part`.
    """
    start, end = (min(max(edge, part.start), part.end) - part.start for edge in span)
    return Span(start, end)


def can_score(translator: PairScorer, source: str, text: str) -> bool:
    """Return whether a source and its translation are both short enough to be scored."""
    vocabularies = translator.tokenizer
    ids = (vocabularies.source.encode(source), vocabularies.target.encode(text))
    return max(map(len, ids)) + _SPECIAL_TOKENS <= translator.max_scored_tokens


def _ties(source: str, text: str, glossary: Glossary | None) -> list[tuple[Span, Span]]:
    """Return a list of pairs of character spans: a glossary term in the source, and a form of it in the translation.

    The list is empty without a glossary, or if normalization would change a text. A term without a form is left out.
    """
    if glossary is None or normalize_for_comparison(source) != source or normalize_for_comparison(text) != text:
        return []
    ties: list[tuple[Span, Span]] = []
    for start, end, term in glossary.occurrences(source):
        candidates = (Span(at, at + len(form)) for form in term.forms for at in occurrences(text, form))
        used = {tie[1] for tie in ties}
        target = next((span for span in sorted(candidates) if span not in used), None)
        if target is not None:
            ties.append((Span(start, end), target))
    return ties
