"""Attribute words of a translation to a part of the source by occlusion.

The part is removed from the source, and the translation is scored again; words that depend on the part become less
probable. Occlusion needs neither attention nor word alignments, so it works for models of all kinds.
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
"""A function that scores translations given their sources."""


class Occlusion(NamedTuple):
    """An attribution request: a translation, and versions of its source that each lack a part."""

    source: str
    """The complete source."""
    text: str
    """The translation."""
    without: Sequence[str]
    """The source without one part, for each part."""


def word_losses(asked: Sequence[Occlusion], vocabulary: Vocabulary, score: Scoring) -> Iterator[list[list[float]]]:
    """Yield the loss of every word in nats, for each request and each of its parts.

    Args:
        asked: the requests; all are scored in the same batches.
        vocabulary: the target vocabulary.
        score: scores pairs with the model.

    Yields:
        For each part, one value for each word of `word_spans`: the decrease of its log-probability without the part.
    """
    pairs = [(source, each.text) for each in asked for source in (each.source, *each.without)]
    scores = iter(score_pairs(pairs, score))
    for each in asked:
        words, full_score = word_spans(each.text), next(scores)
        yield [_losses(each.text, words, full_score, next(scores), vocabulary) for _ in each.without]


def score_pairs(pairs: Sequence[tuple[str, str]], score: Scoring) -> list[Score]:
    """Return the scores of pairs of sources and translations; an empty list for no pairs."""
    return score([source for source, _ in pairs], [target for _, target in pairs]) if pairs else []


def word_spans(text: str) -> list[Span]:
    """Return the spans of a text's words without punctuation.

    Numbers such as 1,234.5 are one word. In scripts without spaces, every character is a word.
    """
    within = {match.start() for match in _WITHIN_NUMBERS.finditer(text)}
    spans: list[Span] = []
    for index, character in enumerate(text):
        if not is_of_word(character) and index not in within:
            continue
        joins = {index - 1, index} & within or (index and in_spaced_word(text[index - 1]) and in_spaced_word(character))
        goes_on = joins and spans and spans[-1].end == index
        start = spans.pop().start if goes_on else index
        spans.append(Span(start, index + 1))
    return spans


def _losses(text: str, words: Sequence[Span], full_score: Score, without: Score, vocabulary: Vocabulary) -> list[float]:
    """Return the loss of each word in nats: the sum of the losses of its tokens.

    If a token covers several words, as in scripts without spaces, each of these words gets the token's whole loss.
    """
    if vocabulary.as_seen(text) != text:  # the vocabulary normalizes the text, so token spans would not match
        return [0.0] * len(words)
    ids = vocabulary.encode(text)
    spans = piece_spans(vocabulary.spellings(ids), text)
    pairs = zip(full_score.piece_log_probabilities, without.piece_log_probabilities, strict=True)
    # drops forced first tokens and the end symbol
    token_losses = [one - other for one, other in pairs][-1 - len(ids) : -1]
    lengths = [[max(1, min(w.end - w.start, p.end - p.start)) for p in spans] for w in words]
    shares = overlap(words, spans) / np.array(lengths, dtype=np.float32).reshape(len(words), len(spans))
    return [float(value) for value in (shares * np.array(token_losses, dtype=np.float32)).sum(axis=1)]
