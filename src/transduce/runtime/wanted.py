"""What translations must contain, in pieces: phrases that were asked for, and a glossary's terms."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import msgspec

from transduce.errors import TransduceError
from transduce.given import as_path, as_phrases
from transduce.runtime.decoding import check_phrases, least_pieces
from transduce.runtime.parts import Part
from transduce.runtime.phrases import spell_phrase
from transduce.runtime.translation import Translation
from transduce.search.constraints import Phrase
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary, Term, read_glossary
from transduce.text.vocabulary import Vocabulary

MOST_TERM_PIECES = 64
"""Of a sentence's terms: the beam is as wide as there are pieces that must be written."""

GivenGlossary: TypeAlias = Glossary | Mapping[str, str | Iterable[str]] | str | Path | None
"""What a caller may hand in."""


def as_glossary(given: GivenGlossary) -> Glossary | None:
    """What a caller hands in: a glossary, a file of one, or a mapping from terms to what stands for them.

    Raises:
        TransduceError: it is none of these, or what is in it is no text.
    """
    if given is None or isinstance(given, Glossary):
        return given
    if isinstance(given, str | Path):
        return read_glossary(as_path(given, "A glossary"))
    if not isinstance(given, Mapping):
        raise TransduceError(
            f"A glossary must map terms to their translations, or be a file of them, but {given!r} was given: write "
            '{"term": "translation"}.'
        )
    return Glossary(_mapped_terms(given))


def _mapped_terms(given: Mapping[str, str | Iterable[str]]) -> Iterator[Term]:
    for source, targets in given.items():
        if not isinstance(source, str) or not isinstance(targets, str | Iterable):
            raise TransduceError(f"A glossary maps texts to texts, but {source!r} is mapped to {targets!r}.")
        yield Term(source, (targets,) if isinstance(targets, str) else tuple(as_phrases(targets)))


def with_phrases(
    parts: list[Part], phrases: Sequence[Sequence[str]] | None, search: SearchSettings, vocabulary: Vocabulary
) -> list[Part]:
    """The same parts, with the phrases that their translations must contain.

    Args:
        parts: of sentences.
        phrases: a list for each sentence, or None; the first part of a sentence has them.
        search: how they will be translated.
        vocabulary: of the target.

    Raises:
        TransduceError: they cannot be had together with the search, or the vocabulary cannot write one.
    """
    if not any(phrases or ()):
        return parts
    for own in phrases or ():
        check_phrases(search, own)
    spelt = [tuple(spell_phrase(phrase, vocabulary) for phrase in own) for own in phrases or ()]
    return [part if part.number else part._replace(phrases=spelt[part.sentence]) for part in parts]


def with_terms(
    parts: Sequence[Part],
    found: Mapping[tuple[int, int], Translation],
    glossary: Glossary,
    search: SearchSettings,
    vocabulary: Vocabulary,
) -> list[Part]:
    """The parts of which all alternatives lack a term, with those that they have as further phrases.

    A model that knows the terms is not disturbed so: most translations need no second search. Of very many terms, those
    that come first are wanted.

    Args:
        parts: of sentences.
        found: their translations by their keys; one that is not there was given up.
        glossary: checked.
        search: how they will be translated once more.
        vocabulary: of the target.
    """
    spelt, again = check_glossary(glossary, search, vocabulary), []
    for part in parts:
        texts = [alternative.text for alternative in found[part.key].alternatives] if part.key in found else []
        if texts and all(glossary.missing(part.text, text) for text in texts):
            phrases = (*part.phrases, *(spelt[term.source] for term in glossary.find(part.text)))
            room = MOST_TERM_PIECES if search.max_length is None else search.max_length - len(part.prefix) - 1
            again.append(part._replace(phrases=_that_fit(phrases, len(part.phrases), min(room, MOST_TERM_PIECES))))
    return again


def with_most_terms(former: Translation, latter: Translation | None, glossary: Glossary) -> Translation:
    """The alternatives that lack the fewest terms: of a translation, or of a second one where all of the first lack
    more; what was cut in the second does not count.
    """
    later = () if latter is None else tuple(each for each in latter.alternatives if each.ended)
    counts = {each: len(glossary.missing(former.source, each.text)) for each in (*former.alternatives, *later)}
    fewest = min(counts.values())
    for translation in (former, latter or former):
        best = tuple(each for each in translation.alternatives if counts.get(each) == fewest)
        if best:
            chosen: Translation = msgspec.structs.replace(translation, alternatives=best)
            return chosen
    return former


def _that_fit(phrases: Sequence[Phrase], said: int, most: int) -> tuple[Phrase, ...]:
    """The phrases that were said, and those behind them up to the first one that would make them too many pieces."""
    totals = accumulate(map(least_pieces, phrases))
    return tuple(
        phrase
        for place, (phrase, total) in enumerate(zip(phrases, totals, strict=True))
        if place < said or total <= most
    )


def check_glossary(glossary: Glossary, search: SearchSettings, vocabulary: Vocabulary) -> dict[str, Phrase]:
    """The ways to write each of its terms' translations, by the terms' sources.

    Raises:
        TransduceError: it cannot be had together with the search, or the vocabulary cannot write it.
    """
    check_phrases(search, [target for term in glossary.terms for target in term.targets], "A glossary's terms")
    return _spell(glossary, vocabulary)


@lru_cache(maxsize=16)
def _spell(glossary: Glossary, vocabulary: Vocabulary) -> dict[str, Phrase]:
    return {term.source: _spell_term(term, vocabulary) for term in glossary.terms}


def _spell_term(term: Term, vocabulary: Vocabulary) -> Phrase:
    try:
        said = [spell_phrase(target, vocabulary) for target in term.targets]
    except TransduceError as error:
        raise TransduceError(f"{_before(term)}{error}") from None
    least = min(map(least_pieces, said))
    if least > MOST_TERM_PIECES:
        raise TransduceError(
            f"{_before(term)}What stands for a term may have {MOST_TERM_PIECES} pieces, but for `{term.source}` it has "
            f"{least}: make it shorter."
        )
    others = [form for form in term.forms if form not in term.targets and not vocabulary.unread(form)]
    spellings = [
        spelling for phrase in [*said, *(spell_phrase(form, vocabulary) for form in others)] for spelling in phrase
    ]
    return tuple(dict.fromkeys(spellings))


def _before(term: Term) -> str:
    """Where a term was read, in front of a sentence."""
    return f"{term.place}: " if term.place else ""
