"""Which words of a translation come from a part of the source: those that the model holds for less likely without it.

The part is taken out, and the translation scored anew (occlusion). That needs no attention, so it serves models of all
kinds, and no alignment that somebody knows.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from transduce.runtime.scoring import Score
from transduce.text.languages import is_of_word
from transduce.text.mentions import in_spaced_word
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span, overlap, piece_spans

_WITHIN_NUMBERS = re.compile(r"(?<=\d)[.,:](?=\d)")

Scoring = Callable[[Sequence[str], Sequence[str]], list[Score]]
"""How probable translations are, given their sources."""


class Occlusion(NamedTuple):
    """A question: which words of the translation come from what some sources lack?"""

    source: str
    text: str
    without: Sequence[str]
    """The source without a part, for several parts."""


def word_losses(asked: Sequence[Occlusion], vocabulary: Vocabulary, score: Scoring) -> Iterator[list[list[float]]]:
    """For each question, and each of its parts, how many nats every word of `word_spans` loses without it.

    Args:
        asked: the questions; all are scored together.
        vocabulary: the target's.
        score: of the model.
    """
    pairs = [(source, each.text) for each in asked for source in (each.source, *each.without)]
    scores = iter(score_pairs(pairs, score))
    for each in asked:
        words, whole = word_spans(each.text), next(scores)
        yield [_losses(each.text, words, whole, next(scores), vocabulary) for _ in each.without]


def score_pairs(pairs: Sequence[tuple[str, str]], score: Scoring) -> list[Score]:
    """The scores of sources and translations, of none as well."""
    return score([source for source, _ in pairs], [target for _, target in pairs]) if pairs else []


def word_spans(text: str) -> list[Span]:
    """The words of a text without punctuation, numbers such as 1,234.5 whole; in scripts without spaces every character
    is one.
    """
    within = {match.start() for match in _WITHIN_NUMBERS.finditer(text)}
    spans: list[Span] = []
    for place, character in enumerate(text):
        if not is_of_word(character) and place not in within:
            continue
        joins = {place - 1, place} & within or (place and in_spaced_word(text[place - 1]) and in_spaced_word(character))
        goes_on = joins and spans and spans[-1].end == place
        start = spans.pop().start if goes_on else place
        spans.append(Span(start, place + 1))
    return spans


def _losses(text: str, words: Sequence[Span], whole: Score, without: Score, vocabulary: Vocabulary) -> list[float]:
    """How many nats each word loses with a part of the source: all that its pieces lose together, and where a piece has
    several words, as in scripts without spaces, each of them all that the piece loses.
    """
    if vocabulary.as_seen(text) != text:  # pieces would spell something else
        return [0.0] * len(words)
    ids = vocabulary.encode(text)
    spans = piece_spans(vocabulary.spellings(ids), text)
    pairs = zip(whole.piece_log_probabilities, without.piece_log_probabilities, strict=True)
    lost = [one - other for one, other in pairs][-1 - len(ids) : -1]  # without what is forced first, and the end
    lengths = [[max(1, min(w.end - w.start, p.end - p.start)) for p in spans] for w in words]
    shares = overlap(words, spans) / np.array(lengths, dtype=np.float32).reshape(len(words), len(spans))
    return [float(value) for value in (shares * np.array(lost, dtype=np.float32)).sum(axis=1)]
