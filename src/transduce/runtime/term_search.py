"""Translate with glossary terms: insert the terms, or search again for translations that contain them.

Where both would corrupt the translation, it stays without the term.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from transduce.runtime.doubts import is_spoilt
from transduce.runtime.parts import Part
from transduce.runtime.substitution import ModelView, put_terms
from transduce.runtime.translation import Translation
from transduce.runtime.wanted import with_most_terms, with_terms
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary

# Lower minimum loss of a word that stands for a term, used if the second search gave no good result.
_FEWEST_NATS = 0.25
_ENDS = re.compile(r"[.!?。！？…][\"'”’»)）」』]*\s*$")

Translations = dict[tuple[int, int], Translation]
"""Translations by the keys of their parts."""


def find_with_terms(
    parts: Sequence[Part],
    found: Mapping[tuple[int, int], Translation],
    glossary: Glossary,
    search: SearchSettings,
    model: ModelView,
    search_again: Callable[[list[Part]], Translations],
) -> Translations:
    """Return translations with as many glossary terms as possible without corrupting them.

    Args:
        parts: parts of sentences.
        found: translations by the parts' keys; parts that were not decoded are missing.
        glossary: the glossary.
        search: the search settings.
        model: the model that made the translations.
        search_again: translates parts again, with additional required phrases.
    """
    current = {part.key: found[part.key] for part in parts if part.key in found}
    current |= put_terms(parts, current, glossary, search, model)
    second = search_again(with_terms(parts, current, glossary, search, model.vocabulary))
    acceptable = {
        key: _without_faults(current[key].text, translation, glossary)
        for key, translation in second.items()
        if key in current
    }
    failed = [
        part for part in parts if part.key in acceptable and _only_appends(current[part.key].text, acceptable[part.key])
    ]
    inserted = put_terms(failed, current, glossary, search, model, fewest_nats=_FEWEST_NATS)
    return {
        key: inserted.get(key) or with_most_terms(translation, acceptable.get(key), glossary)
        for key, translation in current.items()
    }


def _without_faults(plain: str, again: Translation, glossary: Glossary) -> Translation | None:
    """Return a second translation with only its faultless alternatives; None if none is left."""
    faultless = tuple(
        each
        for each in again.alternatives
        if each.ended and not is_spoilt(again.source, plain, each.text, glossary, rewritten=True)
    )
    return msgspec.structs.replace(again, alternatives=faultless) if faultless else None


def _only_appends(plain: str, again: Translation | None) -> bool:
    """Return whether the second translation is missing or only appends to the end of the first.

    An appended term is in the wrong position.
    """
    return again is None or (_ENDS.search(plain) is not None and again.text.startswith(plain))
