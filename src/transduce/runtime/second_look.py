"""Doubtful translations are looked for once more, by a wider search with rules against what was doubted."""

from collections.abc import Iterable, Sequence

import msgspec

from transduce.errors import TransduceError
from transduce.given import as_many, as_phrases
from transduce.runtime.doubts import Doubt, find_doubts
from transduce.runtime.parts import Part
from transduce.runtime.substitution import put_terms
from transduce.runtime.translation import Alternative, Translation
from transduce.runtime.translator import Translator
from transduce.runtime.wanted import GivenGlossary, as_glossary
from transduce.runtime.written_numbers import is_date_or_clock, missing_numbers
from transduce.search.settings import SearchSettings, checked_search
from transduce.text.glossary import Glossary, Term
from transduce.text.mentions import mentions

_WIDTH = 8
# What a run of pieces may not do twice, first and then where that was not enough.
_REPEATED_PIECES = (3, 2)


def review(
    translator: Translator, translations: Iterable[Translation], *, glossary: GivenGlossary = None
) -> list[tuple[Doubt, ...]]:
    """What speaks against each of a translator's translations; mostly nothing. With a glossary, also terms that are not
    translated as it says.

    Where it does not know its languages, or has one alone, nothing is said of words and numbers that stayed or went.

    Raises:
        TransduceError: they are no translations.
    """
    translations = _checked(translations)
    source, target = translator.source_language, translator.target_language
    unread, terms = translator.tokenizer.source.unread, as_glossary(glossary)
    return [
        find_doubts(each, source_language=source, target_language=target, unread=unread(each.source), glossary=terms)
        for each in translations
    ]


def look_again(
    translator: Translator,
    translations: Iterable[Translation],
    search: SearchSettings | None = None,
    *,
    prefix: str = "",
    phrases: Iterable[Iterable[str]] | None = None,
    glossary: GivenGlossary = None,
) -> list[Translation]:
    """The same translations; those of which one with fewer doubts is found have it as their best alternative.

    A second search has a beam of 8 at least, takes the likeliest of its alternatives with the fewest doubts, puts in
    numbers that were missing, and may not repeat runs of pieces where that, or the length, was the doubt.

    Args:
        translator: that made them.
        translations: as they were made.
        search: how they were; the translator's own settings where nothing is said.
        prefix: what each begins with, as in `Translator.translate`.
        phrases: what each contains, likewise.
        glossary: terms, and what translations contain of those that are in their sentences, likewise.

    Raises:
        TransduceError: as `Translator.translate`.
    """
    found, search = _checked(translations), checked_search(search or translator.search)
    wanted = [[]] * len(found) if phrases is None else as_many("list of phrases", len(found), map(as_phrases, phrases))
    terms = as_glossary(glossary)
    doubts = review(translator, found, glossary=terms)
    if terms is not None and any(doubt.kind == "terms" for own in doubts for doubt in own):
        found = _put_terms(translator, found, terms, search)
        doubts = review(translator, found, glossary=terms)
    for attempt, forbidden_run in enumerate(_REPEATED_PIECES):
        groups: dict[int, list[int]] = {}
        for number, own in enumerate(doubts):
            repeats = any(doubt.kind in ("repeated", "cut") for doubt in own)
            if _weight(own) > (0, 0) and (repeats or attempt == 0):
                groups.setdefault(forbidden_run if repeats else 0, []).append(number)
        for ngrams, numbers in groups.items():
            missing = [
                each for number in numbers for each in _numbers(translator, found[number], doubts[number], search)
            ]
            again = translator.translate(
                [found[number].source for number in numbers],
                _wider(search, ngrams),
                prefix=prefix,
                phrases=[wanted[number] for number in numbers],
                glossary=_with_numbers(terms, missing),
            )
            for number, other in zip(numbers, again, strict=True):
                best, known = _least_doubted(translator, other, terms)
                if _weight(known) < _weight(doubts[number]):
                    former = found[number].alternatives
                    alternatives = (best, *(each for each in former if each.text != best.text))[: len(former)]
                    found[number] = msgspec.structs.replace(other, alternatives=alternatives)
                    doubts[number] = known
    return found


def _put_terms(
    translator: Translator, translations: Sequence[Translation], glossary: Glossary, search: SearchSettings
) -> list[Translation]:
    """The same translations, with terms that they lack where it is clear where these belong."""
    source = translator.tokenizer.source
    parts = [
        Part(each.source, number, 0, source.closed(source.encode(each.source)))
        for number, each in enumerate(translations)
    ]
    found = dict(zip((part.key for part in parts), translations, strict=True))
    changed = put_terms(parts, found, glossary, search, translator.view(search))
    return [changed.get(key, translation) for key, translation in found.items()]


def _with_numbers(glossary: Glossary | None, numbers: Sequence[str]) -> Glossary | None:
    """A glossary by which numbers stay as they are."""
    if not numbers:
        return glossary
    return Glossary([*(glossary.terms if glossary else ()), *(Term(number, (number,)) for number in numbers)])


def _checked(translations: Iterable[Translation]) -> list[Translation]:
    """What is handed in, as a list.

    Raises:
        TransduceError: there is something else among it.
    """
    if isinstance(translations, Translation) or not isinstance(translations, Iterable):
        raise TransduceError(f"A list of translations is asked for, but {translations!r} was given: write [it].")
    found = list(translations)
    for each in found:
        if not isinstance(each, Translation):
            raise TransduceError(
                f"What a translator returned is asked for, `Translation`s, but {each!r} is among it: translate first."
            )
    return found


def _wider(search: SearchSettings, ngrams: int) -> SearchSettings:
    wide = max(_WIDTH, search.beam_size)
    return msgspec.structs.replace(
        search,
        beam_size=wide,
        n_best=wide,
        sampling=None,
        diverse_groups=1,
        min_length=search.min_length or (0 if search.max_length == 1 else 1),
        no_repeated_ngrams=ngrams or search.no_repeated_ngrams,
    )


def _numbers(
    translator: Translator, translation: Translation, doubts: Sequence[Doubt], search: SearchSettings
) -> list[str]:
    """What is missing, if that is a doubt, and the model can and may write it, at whatever length; no date and no time
    of day, which the translation may have in a form of its own.
    """
    if search.max_length is not None or not any(doubt.kind == "numbers" for doubt in doubts):
        return []
    target = translator.tokenizer.target
    return [
        number
        for number in missing_numbers(translation.source, translation.text)
        if not is_date_or_clock(number)
        and target.unk_id not in target.encode(number)
        and not any(mentions(number, text) for text in search.forbidden)
    ]


def _least_doubted(
    translator: Translator, translation: Translation, glossary: Glossary | None
) -> tuple[Alternative, tuple[Doubt, ...]]:
    """The first of the alternatives that have the fewest doubts, and these."""
    each = [msgspec.structs.replace(translation, alternatives=(one,)) for one in translation.alternatives]
    doubts = review(translator, each, glossary=glossary)
    return min(zip(translation.alternatives, doubts, strict=True), key=lambda one: _weight(one[1]))


def _weight(doubts: Sequence[Doubt]) -> tuple[int, int]:
    """What shows weighs more than what the model holds for unlikely; what it could not read is no fault of a search."""
    kinds = [doubt.kind for doubt in doubts if doubt.kind != "unread"]
    return sum(kind != "unlikely" for kind in kinds), len(kinds)
