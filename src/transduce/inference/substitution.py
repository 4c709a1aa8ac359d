"""Insert glossary terms into translations that render the terms differently.

Occlusion finds the words of the translation that stand for a term: they become much less probable when the term is
removed from the source. These words are replaced, and the rest of the translation stays; of several target terms, the
model picks the most probable result. A search constrained to write a term does not know the term's position: it keeps
the word it would have written, and appends the term.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import msgspec

from transduce.inference.batching import TextPart
from transduce.inference.quality_estimation import has_new_faults
from transduce.inference.scoring import MAX_TOKENS, Score, as_translation
from transduce.inference.spans import OcclusionRequest, Scoring, score_pairs, word_losses, word_spans
from transduce.inference.translation import Alternative, Translation
from transduce.search.settings import SearchSettings
from transduce.text.glossary import (
    Glossary,
    Term,
    capitalize,
    contains_phrase,
    ends_at_word_boundaries,
    is_spaced_word_character,
    normalize_for_comparison,
)
from transduce.text.languages import short_code, unspaced_characters
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span

# The word that stands for a term mostly loses 2 to 15 nats without it, other words less than 1. Tuned on Tatoeba's dev
# set.
MIN_LOSS_NATS = 1.0
# Share of the strongest word's loss: neighbors that lose as much may belong to the term's translation.
_NEIGHBOURS_SHARE = 0.5
_SINGLE_TOKEN = 0.999
"""Adjacent characters whose loss of log-probability exceeds this fraction of the greatest loss count as one token."""
_MAX_PARTS = 20  # candidate spans tried in a script without spaces
_MAX_FORMS = 8  # target forms of a term that are tried
# A further form of a term replaces the first one only if it makes the translation this much more likely. Words that are
# new to the model differ by about 1 nat, whatever their number and case.
_FORM_NATS = 2.0
_BEFORE_A_SENTENCE = re.compile(r"(?:^|[.!?。！？…:।؟۔։።])[^\w.!?。！？…:।؟۔։።]*$")


class TermModel(NamedTuple):
    """The functions of a translation model that the insertion of glossary terms into translations needs."""

    vocabulary: Vocabulary
    """The model's target vocabulary."""
    score: Scoring
    """Scores lists of sources and translations, with the length penalty of the search, to find and rank positions."""
    translate: Callable[[Sequence[str]], list[Translation]]
    """Translates texts without a glossary; used to translate terms on their own."""
    max_tokens: int = MAX_TOKENS
    """Maximum number of tokens in a text that the model can score. Terms are inserted only into translations of fewer
    than half as many tokens.
    """
    target_language: str | None = None
    """Language code of the translations; None: unknown."""
    source_language: str | None = None
    """Language code of the sources; None: unknown."""


class Draft(NamedTuple):
    """A candidate translation from which some glossary terms are still missing."""

    part: TextPart
    """The sentence, or part of a long one, that was translated."""
    alternative: Alternative
    """An alternative translation of the sentence, from which glossary terms are missing."""


class _Position(NamedTuple):
    """The spans of a translation that one missing glossary term may replace."""

    spans: tuple[Span, ...]
    """Alternative character spans of the translation for the term, each of one word or more; the preferred first."""
    term: Term
    """The glossary term, whose target form replaces one of the spans."""
    repeats: tuple[Span, ...]
    """Spans of further occurrences of the replaced word that also depend on the term, such as a repeated name."""


def insert_terms(
    parts: Sequence[TextPart],
    translations: Mapping[tuple[int, int], Translation],
    glossary: Glossary,
    search: SearchSettings,
    model: TermModel,
    min_loss: float = MIN_LOSS_NATS,
) -> dict[tuple[int, int], Translation]:
    """Insert missing glossary terms into translations, and return the changed translations.

    A term is inserted only where its position is clear. Sentences with a prefix or required phrases stay unchanged, and
    so do alternatives that are truncated or too long to score. If repeated n-grams are forbidden, nothing is inserted.

    Args:
        parts: parts of sentences.
        translations: translations by the parts' keys; parts that were not decoded are missing.
        glossary: the glossary.
        search: the search settings; length limits and forbidden texts apply to the results, too.
        model: the model that made the translations.
        min_loss: the minimum loss of the word that a term replaces: the decrease in nats of its log-probability when
            the term is removed from the source. Below `MIN_LOSS_NATS`, every other word must also lose less than half
            as much.

    Returns:
        A dict of the changed translations by key. Each has only the alternatives that contain their terms, in the order
        of the search. They are not sorted again, because the cost of a term says nothing about the rest of a
        translation.
    """
    if search.no_repeated_ngrams:  # a term may occur twice
        return {}
    drafts = [
        Draft(part, alternative)
        for part in parts
        if part.key in translations and not part.prefix and not part.phrases and len(part.ids) <= MAX_TOKENS
        for alternative in translations[part.key].alternatives
        if alternative.ended
        and len(alternative.tokens) < model.max_tokens // 2
        and glossary.missing(part.text, alternative.text)
    ]
    changed = substitute([(draft.part.text, draft.alternative.text) for draft in drafts], glossary, model, min_loss)
    better: dict[tuple[int, int], dict[Alternative, Alternative]] = {}
    for draft, score in zip(drafts, changed, strict=True):
        if score is None or has_new_faults(score.source, draft.alternative.text, score.target, glossary):
            continue
        if is_allowed(score, search):
            better.setdefault(draft.part.key, {})[draft.alternative] = as_translation(score).alternatives[0]
    lacking = {(draft.part.key, draft.alternative) for draft in drafts}
    return {
        key: _with_alternatives(
            translations[key],
            [
                changed.get(one, one)
                for one in translations[key].alternatives
                if one in changed or (key, one) not in lacking
            ],
        )
        for key, changed in better.items()
    }


def is_allowed(changed: Score, search: SearchSettings) -> bool:
    """Return whether a translation with inserted terms obeys the length limits and contains no forbidden text."""
    num_tokens = len(changed.tokens)
    fits = num_tokens >= search.min_length and (search.max_length is None or num_tokens < search.max_length)
    return fits and not any(contains_phrase(changed.target, forbidden) for forbidden in search.forbidden)


def _with_alternatives(translation: Translation, alternatives: Sequence[Alternative]) -> Translation:
    """Replace the alternatives of a translation, and return it; of equal texts, only the first is kept."""
    different: dict[str, Alternative] = {}
    for each in alternatives:
        different.setdefault(each.text, each)
    return msgspec.structs.replace(translation, alternatives=tuple(different.values()))


def substitute(
    pairs: Sequence[tuple[str, str]], glossary: Glossary, model: TermModel, min_loss: float = MIN_LOSS_NATS
) -> list[Score | None]:
    """Insert the missing glossary terms into translations, and return the most probable result for each.

    Args:
        pairs: sources and their translations.
        glossary: the glossary.
        model: the model that made the translations.
        min_loss: the minimum loss of a word that a term may replace, as in `insert_terms`.

    Returns:
        A list with the `Score` of each translation with its terms. The list has None for a translation if no term is
        missing, if the position of a term is unclear, or if the result still lacks a term.
    """
    positions = _find_positions(pairs, glossary, model, min_loss)
    variants = [
        list(_variants(text, found or [], model.target_language))
        for (_, text), found in zip(pairs, positions, strict=True)
    ]
    candidates = [
        (source, text) for (source, _), each_variants in zip(pairs, variants, strict=True) for text, _ in each_variants
    ]
    scores = iter(score_pairs(candidates, model.score))
    scored = [[(next(scores), further) for _, further in each_variants] for each_variants in variants]
    best_scores = [max(each, key=lambda one: _preference(*one))[0] if each else None for each in scored]
    return [None if best is None or glossary.missing(best.source, best.target) else best for best in best_scores]


def _preference(score: Score, num_further: int) -> tuple[float, str]:
    """Return a sort key of a scored translation: its mean log-probability per token, and its text.

    A term's first form is preferred: each of the `num_further` insertions of another form lowers the log-probability of
    the translation by `_FORM_NATS`.
    """
    log_probability = score.log_probability - _FORM_NATS * num_further
    return log_probability / len(score.token_log_probabilities), score.target


def _find_positions(
    pairs: Sequence[tuple[str, str]], glossary: Glossary, model: TermModel, min_loss: float
) -> Iterator[list[_Position] | None]:
    """Yield a list of the positions of the missing terms of each translation, left to right.

    None is yielded for a translation in which a position is unclear: no word clearly becomes less probable without the
    term, or positions overlap.
    """
    lacking = [glossary.missing(*pair) for pair in pairs]
    pairs_of_terms = zip(pairs, lacking, strict=True)
    term_sources = sorted(
        {term.source for (_, text), own in pairs_of_terms if unspaced_characters(text) for term in own}
    )
    term_translations = dict(
        zip(term_sources, (_trim_to_words(each.text) for each in model.translate(term_sources)), strict=True)
    )
    requests = [
        OcclusionRequest(source, text, [glossary.without(source, term) for term in terms])
        for (source, text), terms in zip(pairs, lacking, strict=True)
    ]
    answers = word_losses(requests, model.vocabulary, model.score)
    for (source, text), terms, losses in zip(pairs, lacking, answers, strict=True):
        words = word_spans(text)
        counts = Counter(term for _, _, term in glossary.occurrences(normalize_for_comparison(source)))
        candidates = [
            _best_position(text, words, own, term, term_translations.get(term.source, ""), comes_again=counts[term] > 1)
            if _stands_out(own, min_loss)
            else None
            for own, term in zip(losses, terms, strict=True)
        ]
        positions = sorted(
            (position for position in candidates if position is not None), key=lambda position: position.spans
        )
        apart = all(one.spans[0].end <= other.spans[0].start for one, other in pairwise(positions))
        yield positions if len(positions) == len(terms) and apart else None


def _stands_out(losses: Sequence[float], min_loss: float) -> bool:
    """Return whether one word needs a term of the source so much that it must translate the term.

    `losses` has the decrease of each word's log-probability, in nats, without the term. The greatest must reach
    `min_loss`; if it is below `MIN_LOSS_NATS`, all others must also be less than half of it.
    """
    first, second = sorted([*losses, 0.0, 0.0], reverse=True)[:2]
    return first >= min_loss and (first >= MIN_LOSS_NATS or second < _NEIGHBOURS_SHARE * first)


def _trim_to_words(text: str) -> str:
    """Return a text without punctuation and spaces at its edges; empty if the text has no words."""
    words = word_spans(text)
    return text[words[0].start : words[-1].end] if words else ""


def _best_position(
    text: str, words: list[Span], losses: list[float], term: Term, usual_translation: str, *, comes_again: bool
) -> _Position:
    """Return the `_Position` of a term: the word whose log-probability falls most without the term.

    Alternatives are the word with neighbors whose log-probability falls much, too. In a script without spaces, the
    position is the term's usual translation if it is there; otherwise, runs of characters with a high loss are
    alternatives. The same word elsewhere is replaced as well if it loses as much, or if the term occurs several times
    in the source (`comes_again`).
    """
    strongest = max(losses)
    start = end = losses.index(strongest)
    while (
        end + 1 < len(words) and words[end].end == words[end + 1].start and losses[end + 1] > _SINGLE_TOKEN * strongest
    ):
        end += 1  # characters of one token, in a script without spaces
    first, last, enough = start, end, max(min(MIN_LOSS_NATS, strongest), strongest * _NEIGHBOURS_SHARE)
    while first > 0 and losses[first - 1] >= enough:
        first -= 1
    while last + 1 < len(words) and losses[last + 1] >= enough:
        last += 1
    core = Span(words[start].start, words[end].end)
    reaches = list(product((start, first), (end, last)))
    if not is_spaced_word_character(text[core.start]):  # tokens may cover several words
        usual_span = _find_near(usual_translation, text, Span(words[first].start, words[last].end))
        indices = range(first, last + 1)
        reaches = [] if usual_span else [(one, two) for one in indices for two in indices if one <= two]
        core = usual_span or core
    spans = dict.fromkeys([core, *(Span(words[one].start, words[two].end) for one, two in reaches[:_MAX_PARTS])])
    repeats = tuple(
        Span(match.start(), match.end())
        for match in re.finditer(re.escape(text[slice(*core)]), text, re.IGNORECASE)
        if match.start() != core.start and ends_at_word_boundaries(text, *match.span())
        if comes_again or _least_loss(words, losses, Span(*match.span())) >= enough
    )
    apart = (span for span in spans if all(repeat.end <= span.start or span.end <= repeat.start for repeat in repeats))
    return _Position(tuple(apart), term, repeats)


def _find_near(usual_translation: str, text: str, around: Span) -> Span | None:
    """Return the first span of the term's usual translation in a text that overlaps `around`; None if there is none.

    The usual translation is the model's translation of the term alone.
    """
    for match in re.finditer(re.escape(usual_translation), text) if usual_translation else ():
        if match.start() < around.end and around.start < match.end():
            return Span(*match.span())
    return None


def _least_loss(words: Sequence[Span], losses: Sequence[float], within: Span) -> float:
    """Return the smallest loss in nats among the words that overlap the character span `within`; 0 without words."""
    pairs = zip(words, losses, strict=True)
    return min((loss for word, loss in pairs if word.start < within.end and within.start < word.end), default=0.0)


def _variants(text: str, positions: Sequence[_Position], language: str | None) -> Iterator[tuple[str, int]]:
    """Yield variants of a translation with all terms inserted, each as a pair of a text and a number.

    In each variant, one term varies in its span or its form; the other terms are inserted in their preferred way. The
    number counts the insertions of a form that is not the first one of its term.
    """
    is_english = short_code(language or "") == "en"
    ways_of = [_ways(text, position, is_english=is_english) for position in positions]
    first_ways = [ways[0] for ways in ways_of]
    for number, own_ways in enumerate(ways_of):
        other_edits = [way for edits in first_ways[:number] + first_ways[number + 1 :] for way in edits]
        for edits in own_ways:
            ways = sorted([*other_edits, *edits])
            if all(one.end <= other.start for (one, _), (other, _) in pairwise(ways)):
                yield _put(text, ways, language), len(edits) if edits[0][1] != own_ways[0][0][1] else 0


def _ways(text: str, position: _Position, *, is_english: bool) -> list[list[tuple[Span, str]]]:
    """Return a list of the ways to insert a term into a translation, the preferred one first.

    Each way is a list of edits: pairs of the span to replace, and the new text. The first edit replaces one of the
    position's alternative spans, and further edits replace repeated occurrences of the same word.
    """
    forms: Sequence[str] = position.term.targets[:_MAX_FORMS]
    if is_english:
        forms = _forms_like(text[slice(*position.spans[0])], forms)
    return [
        [(span, target), *((repeat, target) for repeat in position.repeats)]
        for span, target in product(position.spans, forms)
    ]


_PLURALS_WITHOUT_S = {"children", "feet", "geese", "men", "mice", "people", "teeth", "women"}


def _forms_like(replaced: str, forms: Sequence[str]) -> Sequence[str]:
    """Return the English forms of a term that agree with `replaced` in number, singular or plural.

    Words that end with -s count as plurals. If no form agrees, all forms are returned. The model is not asked, because
    it may find the singular of a rare word more probable.
    """
    return [form for form in forms if _has_s(form) == _has_s(replaced)] or forms


def _has_s(words: str) -> bool:
    last = words.lower().rpartition(" ")[2]
    return last in _PLURALS_WITHOUT_S or (last.endswith("s") and not last.endswith(("ss", "us", "is", "'s")))


def _put(text: str, ways: Sequence[tuple[Span, str]], language: str | None) -> str:
    for span, target in reversed(ways):
        begins = text[span.start].isupper() and _BEFORE_A_SENTENCE.search(text[: span.start]) is not None
        written = capitalize(target, language) if begins and target == target.lower() else target
        text = text[: span.start] + written + text[span.end :]
    return text
