"""Terms put into translations that have others in their place.

Which words stand for a term the model itself tells: those that it holds for much less likely once the term is taken
out of the source. They are replaced, and the rest stays; of several targets the model likes one best. A search that is
forced to write a term knows nothing of its place: it leaves the word that it would have written, and appends the term.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import msgspec

from transduce.runtime.doubts import is_spoilt
from transduce.runtime.occlusion import Occlusion, Scoring, score_pairs, word_losses, word_spans
from transduce.runtime.parts import Part
from transduce.runtime.scoring import MOST_PIECES, Score, as_translation
from transduce.runtime.translation import Alternative, Translation
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary, Term
from transduce.text.languages import unspaced_characters
from transduce.text.mentions import as_compared, in_spaced_word, is_whole, mentions
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span

# A word that stands for a term mostly loses 2 to 15 nats with it, other words less than one. Chosen on Tatoeba's dev.
FEWEST_NATS = 1.0
# Of the loss of the word that loses most: neighbours that lose as much may stand for the term together with it.
_NEIGHBOURS_SHARE = 0.5
_OF_ONE_PIECE = 0.999
_MOST_PARTS = 20  # of what loses much in a script without spaces: each is tried
_MOST_FORMS = 8  # of a term that are tried
_BEFORE_A_SENTENCE = re.compile(r"(?:^|[.!?。！？…:])[^\w.!?。！？…:]*$")


class ModelView(NamedTuple):
    """What is asked of the model that made the translations."""

    vocabulary: Vocabulary
    """Of the target."""
    score: Scoring
    """With the search's own penalty."""
    translate: Callable[[Sequence[str]], list[Translation]]
    """Without a glossary: how it translates terms by themselves."""
    most_pieces: int = MOST_PIECES
    """Of a translation that it can score."""


class Draft(NamedTuple):
    """An alternative that lacks terms."""

    part: Part
    alternative: Alternative


class _Place(NamedTuple):
    """Where a term belongs in a translation."""

    spans: tuple[Span, ...]
    """What it may replace: a word, or more."""
    term: Term
    twins: tuple[Span, ...]
    """The same word elsewhere, where it depends on the term as well: a name that comes twice."""


def put_terms(
    parts: Sequence[Part],
    found: Mapping[tuple[int, int], Translation],
    glossary: Glossary,
    search: SearchSettings,
    model: ModelView,
    fewest_nats: float = FEWEST_NATS,
) -> dict[tuple[int, int], Translation]:
    """The translations of parts whose alternatives lack terms, with those alternatives of which it is clear where terms
    belong, and those that have theirs; in the order in which the search ranked them, for what a term costs says nothing
    of the rest.

    Args:
        parts: of sentences.
        found: their translations by their keys; one that is not there was given up.
        glossary: whose terms they lack.
        search: how they were found; its greatest and least length, and what it forbids, hold here, too.
        model: that made them.
        fewest_nats: that a word loses which stands for a term; below `FEWEST_NATS`, others lose less than half of it.
    """
    if search.no_repeated_ngrams:  # a term may well be said twice
        return {}
    drafts = [
        Draft(part, alternative)
        for part in parts
        if part.key in found and not part.prefix and not part.phrases and len(part.ids) <= MOST_PIECES
        for alternative in found[part.key].alternatives
        if alternative.ended
        and len(alternative.pieces) < model.most_pieces // 2
        and glossary.missing(part.text, alternative.text)
    ]
    changed = substitute([(draft.part.text, draft.alternative.text) for draft in drafts], glossary, model, fewest_nats)
    better: dict[tuple[int, int], dict[Alternative, Alternative]] = {}
    for draft, own in zip(drafts, changed, strict=True):
        if own is None or is_spoilt(own.source, draft.alternative.text, own.target, glossary):
            continue
        if _is_allowed(own, search):
            better.setdefault(draft.part.key, {})[draft.alternative] = as_translation(own).alternatives[0]
    lacking = {(draft.part.key, draft.alternative) for draft in drafts}
    return {
        key: _with_alternatives(
            found[key],
            [changed.get(one, one) for one in found[key].alternatives if one in changed or (key, one) not in lacking],
        )
        for key, changed in better.items()
    }


def _is_allowed(changed: Score, search: SearchSettings) -> bool:
    """Whether it has as many pieces as it may have, the end symbol counted, and must have, and nothing forbidden."""
    pieces = len(changed.pieces)
    fits = pieces >= search.min_length and (search.max_length is None or pieces < search.max_length)
    return fits and not any(mentions(changed.target, forbidden) for forbidden in search.forbidden)


def _with_alternatives(translation: Translation, alternatives: Sequence[Alternative]) -> Translation:
    """With these, none twice."""
    different: dict[str, Alternative] = {}
    for each in alternatives:
        different.setdefault(each.text, each)
    return msgspec.structs.replace(translation, alternatives=tuple(different.values()))


def substitute(
    pairs: Sequence[tuple[str, str]], glossary: Glossary, model: ModelView, fewest_nats: float = FEWEST_NATS
) -> list[Score | None]:
    """Each translation with the terms that it lacks, as the model scores it; None where their places are not clear.

    Args:
        pairs: sources and their translations.
        glossary: whose terms they lack.
        model: that made them.
        fewest_nats: as in `put_terms`.
    """
    places = _find_places(pairs, glossary, model, fewest_nats)
    variants = [list(_variants(text, own or [])) for (_, text), own in zip(pairs, places, strict=True)]
    asked = [(source, each) for (source, _), own in zip(pairs, variants, strict=True) for each in own]
    scores = iter(score_pairs(asked, model.score))
    found = [max((next(scores) for _ in own), key=_preference, default=None) for own in variants]
    return [None if best is None or glossary.missing(best.source, best.target) else best for best in found]


def _preference(score: Score) -> tuple[float, str]:
    """The log-probability of a piece, as of whole texts the shorter would be the likelier; and what tells equals."""
    return score.log_probability / len(score.piece_log_probabilities), score.target


def _find_places(
    pairs: Sequence[tuple[str, str]], glossary: Glossary, model: ModelView, fewest_nats: float
) -> Iterator[list[_Place] | None]:
    """Where each translation's terms belong, from left to right; None where that is not clear."""
    lacking = [glossary.missing(*pair) for pair in pairs]
    pairs_of_terms = zip(pairs, lacking, strict=True)
    known = sorted({term.source for (_, text), own in pairs_of_terms if unspaced_characters(text) for term in own})
    usual = dict(zip(known, (_words_of(each.text) for each in model.translate(known)), strict=True))
    asked = [
        Occlusion(source, text, [glossary.without(source, term) for term in terms])
        for (source, text), terms in zip(pairs, lacking, strict=True)
    ]
    answers = word_losses(asked, model.vocabulary, model.score)
    for (source, text), terms, losses in zip(pairs, lacking, answers, strict=True):
        words = word_spans(text)
        counts = Counter(term for _, _, term in glossary.places(as_compared(source)))
        found = [
            _best_place(text, words, own, term, usual.get(term.source, ""), comes_again=counts[term] > 1)
            if _stands_out(own, fewest_nats)
            else None
            for own, term in zip(losses, terms, strict=True)
        ]
        places = sorted((place for place in found if place is not None), key=lambda place: place.spans)
        apart = all(one.spans[0].end <= other.spans[0].start for one, other in pairwise(places))
        yield places if len(places) == len(terms) and apart else None


def _stands_out(losses: Sequence[float], fewest_nats: float) -> bool:
    """Whether a word loses so much, and, where that is little, no other one half of it."""
    first, second = sorted([*losses, 0.0, 0.0], reverse=True)[:2]
    return first >= fewest_nats and (first >= FEWEST_NATS or second < _NEIGHBOURS_SHARE * first)


def _words_of(text: str) -> str:
    """A text without what is no word at its edges."""
    words = word_spans(text)
    return text[words[0].start : words[-1].end] if words else ""


def _best_place(
    text: str, words: list[Span], losses: list[float], term: Term, usual: str, *, comes_again: bool
) -> _Place:
    """The word that loses most, also with the neighbours that lose much, on either side; and the same word elsewhere,
    where it loses as much, or the term comes again in the source. In a script without spaces, the term's usual
    translation there, or else any part of what loses much.
    """
    strongest = max(losses)
    start = end = losses.index(strongest)
    while (
        end + 1 < len(words) and words[end].end == words[end + 1].start and losses[end + 1] > _OF_ONE_PIECE * strongest
    ):
        end += 1  # characters of one piece, in a script without spaces
    first, last, enough = start, end, max(min(FEWEST_NATS, strongest), strongest * _NEIGHBOURS_SHARE)
    while first > 0 and losses[first - 1] >= enough:
        first -= 1
    while last + 1 < len(words) and losses[last + 1] >= enough:
        last += 1
    core = Span(words[start].start, words[end].end)
    reaches = list(product((start, first), (end, last)))
    if not in_spaced_word(text[core.start]):  # pieces go over several words there
        known = _place_of(usual, text, Span(words[first].start, words[last].end))
        places = range(first, last + 1)
        reaches = [] if known else [(one, two) for one in places for two in places if one <= two]
        core = known or core
    spans = dict.fromkeys([core, *(Span(words[one].start, words[two].end) for one, two in reaches[:_MOST_PARTS])])
    twins = tuple(
        Span(match.start(), match.end())
        for match in re.finditer(re.escape(text[slice(*core)]), text, re.IGNORECASE)
        if match.start() != core.start and is_whole(text, *match.span())
        if comes_again or _least_loss(words, losses, Span(*match.span())) >= enough
    )
    apart = (span for span in spans if all(twin.end <= span.start or span.end <= twin.start for twin in twins))
    return _Place(tuple(apart), term, twins)


def _place_of(usual: str, text: str, around: Span) -> Span | None:
    """Where a term's usual translation is, as far as it is there."""
    for match in re.finditer(re.escape(usual), text) if usual else ():
        if match.start() < around.end and around.start < match.end():
            return Span(*match.span())
    return None


def _least_loss(words: Sequence[Span], losses: Sequence[float], within: Span) -> float:
    """Of the words of a span, what the one loses that loses least."""
    pairs = zip(words, losses, strict=True)
    return min((loss for word, loss in pairs if word.start < within.end and within.start < word.end), default=0.0)


def _variants(text: str, places: Sequence[_Place]) -> Iterator[str]:
    """The text with its terms, for each way to put each of them, while the others are put in their first ways."""
    usual = [_ways(place)[0] for place in places]
    for number, place in enumerate(places):
        others = [way for own in usual[:number] + usual[number + 1 :] for way in own]
        for own in _ways(place):
            ways = sorted([*others, *own])
            if all(one.end <= other.start for (one, _), (other, _) in pairwise(ways)):
                yield _put(text, ways)


def _ways(place: _Place) -> list[list[tuple[Span, str]]]:
    """What may be replaced by what, the usual way first."""
    ways = product(place.spans, place.term.targets[:_MOST_FORMS])
    return [[(span, target), *((twin, target) for twin in place.twins)] for span, target in ways]


def _put(text: str, ways: Sequence[tuple[Span, str]]) -> str:
    for span, target in reversed(ways):
        begins = text[span.start].isupper() and _BEFORE_A_SENTENCE.search(text[: span.start]) is not None
        written = target[:1].upper() + target[1:] if begins and target == target.lower() else target
        text = text[: span.start] + written + text[span.end :]
    return text
