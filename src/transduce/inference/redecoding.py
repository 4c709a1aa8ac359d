"""Decode translations with quality warnings again, with a wider beam and rules against the problems found."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from transduce.argument_checks import as_phrases, one_per_sentence
from transduce.errors import TransduceError, explain_wrong_types, shown_value
from transduce.inference.batching import TextPart
from transduce.inference.glossary_search import GlossaryLike, as_glossary
from transduce.inference.quality_estimation import QualityWarning, find_quality_warnings
from transduce.inference.substitution import insert_terms
from transduce.inference.translation import Alternative, Translation, with_best, with_sentences
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings, checked_search, override_search
from transduce.text.glossary import Glossary, Term, contains_phrase
from transduce.text.numbers import is_date_or_clock, missing_numbers
from transduce.text.text_settings import TextSettings

_WIDTH = 8
"""Minimum beam size of the second search; a greater beam size of the first search is kept."""
# Lengths of token n-grams that may not repeat: of the first attempt, and of the second if the first does not help.
_FORBIDDEN_NGRAMS = (3, 2)


@explain_wrong_types
def estimate_quality(
    translator: Translator, translations: Iterable[Translation], *, glossary: GlossaryLike = None
) -> list[tuple[QualityWarning, ...]]:
    """Return a list with a tuple of quality warnings for each translation; most translations have none.

    The checks for copied or untranslated text, for numbers and for lost sentences run only if the translator knows its
    two languages and they differ.

    Args:
        translator: the translator that made the translations.
        translations: the translations.
        glossary: terms that must be translated as specified; missing terms give a warning.

    Raises:
        TransduceError: an item is not a translation.
    """
    translations = _checked(translations)
    source, target = translator.source_language, translator.target_language
    vocabulary, terms = translator.tokenizer.source, as_glossary(glossary)
    return [
        find_quality_warnings(
            each,
            source_language=source,
            target_language=target,
            unknown_characters=vocabulary.unknown_characters(vocabulary.readable(each.source)),
            glossary=terms,
        )
        for each in translations
    ]


@explain_wrong_types
def redecode(
    translator: Translator,
    translations: Iterable[Translation],
    search: SearchSettings | None = None,
    *,
    prefix: str = "",
    phrases: Iterable[Iterable[str]] | None = None,
    glossary: GlossaryLike = None,
    text_settings: TextSettings | None = None,
) -> list[Translation]:
    """Decode translations with quality warnings again; a result with fewer warnings becomes the best alternative.

    The second search has a beam of at least 8. Of its alternatives with the fewest warnings, the best-ranked is taken.
    Missing numbers above twenty are inserted. If the warning was about repetition or length, repeated n-grams are
    forbidden. Of a text with several sentences, those with warnings are decoded again.

    Args:
        translator: the translator that made the translations.
        translations: the translations.
        search: the search settings of the first search; None: the translator's settings.
        prefix: text that each translation must start with.
        phrases: for each translation, the phrases that it must contain; None: no phrases.
        glossary: terms that must be translated as specified.
        text_settings: the settings of the texts in the first search; None: the translator's settings.

    Returns:
        The translations, some of them with a better alternative first.

    Raises:
        TransduceError: an argument is invalid, as in `Translator.translate`, or the model translates with document
            context (`data.context_before`).
    """
    if translator.document_context is not None:
        raise TransduceError(
            "Re-decoding translates sentences by themselves, but the model reads earlier sentences of a document "
            "(`data.context_before`): leave it out."
        )
    results, search = _checked(translations), checked_search(search or translator.search)
    required: Sequence[list[str]] = [[]] * len(results)
    if phrases is not None:
        required = one_per_sentence("list of phrases", len(results), map(as_phrases, phrases))
    settings, terms = text_settings or translator.text, as_glossary(glossary)
    unsplit = msgspec.structs.replace(settings, split_sentences="never")
    # Units that are decoded alike: texts of one sentence, the first sentences of other texts, and the sentences after.
    groups: dict[tuple[str, TextSettings], list[_Unit]] = {}
    for number, (each, own) in enumerate(zip(results, required, strict=True)):
        for index, sentence in enumerate(each.sentences or (each,)):
            phrases_within = own if not each.sentences else [one for one in own if contains_phrase(sentence.text, one)]
            key = "" if index else prefix, unsplit if each.sentences else settings
            groups.setdefault(key, []).append(_Unit(number, sentence, phrases_within))
    redecoded: list[list[Translation]] = [[] for _ in results]
    for (start, own_settings), units in groups.items():
        found = _redecode_units(translator, units, search, terms, prefix=start, text_settings=own_settings)
        for unit, translation in zip(units, found, strict=True):
            redecoded[unit.text].append(translation)
    return [
        with_sentences(each, sentences, sampled=search.sampling is not None) if each.sentences else sentences[0]
        for each, sentences in zip(results, redecoded, strict=True)
    ]


class _Unit(NamedTuple):
    """A sentence whose translation is checked and perhaps decoded again: a whole text, or one sentence of a text."""

    text: int
    """Index of the text that the sentence belongs to."""
    translation: Translation
    phrases: list[str]
    """Phrases that the sentence's translation must contain."""


def _redecode_units(
    translator: Translator,
    units: Sequence[_Unit],
    search: SearchSettings,
    terms: Glossary | None,
    *,
    prefix: str,
    text_settings: TextSettings,
) -> list[Translation]:
    """Decode sentences with quality warnings again, and return a list of the translations of all sentences, in order.

    A new translation replaces a former one only if it has fewer or less severe warnings. Missing glossary terms are
    inserted first. Repetitions are tried a second time with shorter forbidden n-grams.
    """
    results = [unit.translation for unit in units]
    found_warnings = estimate_quality(translator, results, glossary=terms)
    if terms is not None and any(warning.kind == "terms" for warnings in found_warnings for warning in warnings):
        results = _put_terms(translator, results, terms, search)
        found_warnings = estimate_quality(translator, results, glossary=terms)
    for attempt, forbidden_run in enumerate(_FORBIDDEN_NGRAMS):
        groups: dict[int, list[int]] = {}
        for number, warnings in enumerate(found_warnings):
            repeats = any(warning.kind in ("repeated", "cut") for warning in warnings)
            if _severity(warnings) > (0, 0) and (repeats or attempt == 0):
                groups.setdefault(forbidden_run if repeats else 0, []).append(number)
        for ngrams, numbers in groups.items():
            lost = (_numbers(translator, results[number], found_warnings[number], search) for number in numbers)
            again = translator.translate(
                [results[number].source for number in numbers],
                _wider(search, ngrams),
                prefix=prefix,
                phrases=[units[number].phrases for number in numbers],
                glossary=_with_numbers(terms, [*chain(*lost)]),
                text_settings=text_settings,
                protected=[[source for source, _ in results[number].protected] or None for number in numbers],
            )
            for number, translation in zip(numbers, again, strict=True):
                best, new_warnings = _fewest_warnings(translator, translation, terms)
                if _severity(new_warnings) < _severity(found_warnings[number]):
                    former = results[number].alternatives
                    alternatives = with_best(best, former, sampled=search.sampling is not None)
                    results[number] = msgspec.structs.replace(translation, alternatives=alternatives)
                    found_warnings[number] = new_warnings
    return results


def _put_terms(
    translator: Translator, translations: Sequence[Translation], glossary: Glossary, search: SearchSettings
) -> list[Translation]:
    """Insert missing glossary terms where their position in a translation is clear.

    Return a list of all translations, changed or not.
    """
    source = translator.tokenizer.source
    parts = [
        TextPart(each.source, number, 0, source.with_special_tokens(source.encode(each.source)))
        for number, each in enumerate(translations)
    ]
    by_key = dict(zip((part.key for part in parts), translations, strict=True))
    changed = insert_terms(parts, by_key, glossary, search, translator.term_model(search))
    return [changed.get(key, translation) for key, translation in by_key.items()]


def _with_numbers(glossary: Glossary | None, numbers: Sequence[str]) -> Glossary | None:
    """Return a glossary in which numbers are further terms, to be copied unchanged, so that they are not lost again.

    Without numbers, the glossary (which may be None) is returned unchanged.
    """
    if not numbers:
        return glossary
    return Glossary([*(glossary.terms if glossary else ()), *(Term(number, (number,)) for number in numbers)])


def _checked(translations: Iterable[Translation]) -> list[Translation]:
    """Check that all items are translations, and return the items as a list.

    Raises:
        TransduceError: an item is not a translation.
    """
    if isinstance(translations, Translation) or not isinstance(translations, Iterable):
        raise TransduceError(f"Pass a list of translations, not {shown_value(translations)}.")
    checked = list(translations)
    for each in checked:
        if not isinstance(each, Translation):
            raise TransduceError(
                f"Pass the `Translation`s that a translator returned, not {shown_value(each)}: translate first."
            )
    return checked


def _wider(search: SearchSettings, ngrams: int) -> SearchSettings:
    """Return the settings of the second search: a beam of at least 8 hypotheses, without beam groups.

    All hypotheses are returned. A translation must have at least one token, unless `max_length` is 1. Other settings
    are those of the first search.

    Args:
        search: the settings of the first search.
        ngrams: the length of n-grams that may not repeat; 0: as in the first search.
    """
    wide = max(_WIDTH, search.beam_size)
    changes = {
        "beam_size": wide,
        "n_best": wide,
        "diverse_groups": 1,
        "min_length": search.min_length or (0 if search.max_length == 1 else 1),
        "no_repeated_ngrams": ngrams or search.no_repeated_ngrams,
    }
    return override_search(search, changes)


def _numbers(
    translator: Translator, translation: Translation, found_warnings: Sequence[QualityWarning], search: SearchSettings
) -> list[str]:
    """Return a list of missing numbers that re-decoding can insert as if they were glossary terms.

    The list is empty if there is no warning about numbers, or if a maximum length is set. Forbidden numbers and numbers
    that the model cannot write are left out. Small numbers, dates and times are also left out, because a translation
    may write them in another form.
    """
    if search.max_length is not None or not any(warning.kind == "numbers" for warning in found_warnings):
        return []
    target = translator.tokenizer.target
    return [
        number
        for number in missing_numbers(translation.source, translation.text, changed_small=False)
        if not is_date_or_clock(number)
        and target.unk_id not in target.encode(number)
        and not any(contains_phrase(number, text) for text in search.forbidden)
    ]


def _fewest_warnings(
    translator: Translator, translation: Translation, glossary: Glossary | None
) -> tuple[Alternative, tuple[QualityWarning, ...]]:
    """Return the alternative of a translation with the least severe quality warnings, and a tuple of its warnings.

    Of several such alternatives, the first is returned.
    """
    variants = [msgspec.structs.replace(translation, alternatives=(one,)) for one in translation.alternatives]
    found_warnings = estimate_quality(translator, variants, glossary=glossary)
    return min(zip(translation.alternatives, found_warnings, strict=True), key=lambda one: _severity(one[1]))


def _severity(found_warnings: Sequence[QualityWarning]) -> tuple[int, int]:
    """Return a sort key of quality warnings, a pair: the number that are not "unlikely", and the number of all.

    An "unlikely" translation has a low probability. Warnings about characters of the source that the model cannot read
    do not count, because re-decoding cannot help.
    """
    kinds = [warning.kind for warning in found_warnings if warning.kind != "unread"]
    return sum(kind != "unlikely" for kind in kinds), len(kinds)
