"""Translations with a glossary's terms: put where they belong, or searched for; what that would spoil stays."""

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

# A word that loses so little stands for a term where the second search found no better place.
_FEWEST_NATS = 0.25
_ENDS = re.compile(r"[.!?。！？…][\"'”’»)）」』]*\s*$")

Translations = dict[tuple[int, int], Translation]


def find_with_terms(
    parts: Sequence[Part],
    found: Mapping[tuple[int, int], Translation],
    glossary: Glossary,
    search: SearchSettings,
    model: ModelView,
    search_again: Callable[[list[Part]], Translations],
) -> Translations:
    """The translations of parts, with those terms that can be had without spoiling them.

    Args:
        parts: of sentences.
        found: their translations by their keys; one that is not there was given up.
        glossary: whose terms they are to have.
        search: how they were found.
        model: that made them.
        search_again: by which parts are translated anew, with further phrases.
    """
    own = {part.key: found[part.key] for part in parts if part.key in found}
    own |= put_terms(parts, own, glossary, search, model)
    again = search_again(with_terms(parts, own, glossary, search, model.vocabulary))
    sound = {key: _sound(own[key].text, translation, glossary) for key, translation in again.items() if key in own}
    poor = [part for part in parts if part.key in sound and _goes_on(own[part.key].text, sound[part.key])]
    placed = put_terms(poor, own, glossary, search, model, fewest_nats=_FEWEST_NATS)
    return {
        key: placed.get(key) or with_most_terms(translation, sound.get(key), glossary)
        for key, translation in own.items()
    }


def _sound(plain: str, again: Translation, glossary: Glossary) -> Translation | None:
    """A second translation with those alternatives that are not spoilt; None where all are."""
    sound = tuple(
        each
        for each in again.alternatives
        if each.ended and not is_spoilt(again.source, plain, each.text, glossary, rewritten=True)
    )
    return msgspec.structs.replace(again, alternatives=sound) if sound else None


def _goes_on(plain: str, again: Translation | None) -> bool:
    """Whether a second translation is none, or the first one with something behind its end: a poor place for a term."""
    return again is None or (_ENDS.search(plain) is not None and again.text.startswith(plain))
