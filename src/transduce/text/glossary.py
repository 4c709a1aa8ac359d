"""Use glossaries: terms with required translations, which are found in texts and checked in translations."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from transduce.deprecation import renamed_attribute
from transduce.errors import TransduceError, count_noun, explain_wrong_types, shown_value
from transduce.text.files import compose, read_lines
from transduce.text.languages import is_word_character, short_code, unspaced_characters

# --- phrases in a text ---
# Phrases match whole words in scripts with spaces, and at any position in others.


_LIGATURES = str.maketrans(dict(zip("ﬀﬁﬂﬃﬄﬅﬆ", ("ff", "fi", "fl", "ffi", "ffl", "st", "st"), strict=True)))
_APOSTROPHES = "’ʼ＇"
_EQUAL = {ord(character): "'" for character in _APOSTROPHES} | {0xFF01 + code: chr(0x21 + code) for code in range(94)}
"""A table for `str.translate` that maps variants of the apostrophe to ', and full-width forms to ASCII."""
JOINERS = "\u200c\u200d\u00ad"
"""Invisible characters within words: two joiners, as in Persian and Hindi, and the soft hyphen."""


def normalize_for_comparison(text: str) -> str:
    """Return a text in composed form (NFC) with single spaces and none at its ends, so that phrases can be found in it.

    Ligatures such as ﬁ become letters.
    """
    return " ".join(compose(text).translate(_LIGATURES).split())


def is_spaced_word_character(character: str) -> bool:
    """Return whether a character is part of a word in a script with spaces between words."""
    return character in JOINERS or (is_word_character(character) and not unspaced_characters(character))


def capitalize(text: str, language: str | None = None) -> str:
    """Return a text with a capital first letter, as at the beginning of a sentence.

    Some languages have rules of their own: Turkish and Azerbaijani write İ for i, Dutch writes IJ for ij, and Georgian
    has no capitals at the beginning.

    Args:
        text: the text.
        language: the code of its language; None: unknown, and i and ij get their usual capital.
    """
    code = None if language is None else short_code(language)
    if code == "nl" and text[:2] == "ij":
        return f"IJ{text[2:]}"
    return ("İ" if code in ("tr", "az") and text[:1] == "i" else text[:1].title()) + text[1:]


def _lower_forms(text: str) -> tuple[str, ...]:
    """Return a tuple of lower-case forms of a text for lookup.

    The first form is the usual one. The second is Turkish, where I becomes ı. If the text has SS, both forms follow
    again with ß in place of ss.
    """
    forms = (text.replace("İ", "i").lower(), text.replace("İ", "i").replace("I", "ı").lower())
    return (*forms, *(form.replace("ss", "ß") for form in forms if "SS" in text))


def ends_at_word_boundaries(text: str, start: int, end: int) -> bool:
    """Return whether the part of a text from index `start` to `end` (exclusive) begins and ends at word boundaries.

    In scripts without spaces between words, every position is a boundary.
    """
    continues_before = start > 0 and is_spaced_word_character(text[start]) and is_spaced_word_character(text[start - 1])
    continues_after = (
        end < len(text) and is_spaced_word_character(text[end - 1]) and is_spaced_word_character(text[end])
    )
    return not continues_before and not continues_after


_HYPHENS = "-\u2010\u2011"


def _is_part_of_hyphenated(text: str, start: int, end: int) -> bool:
    """Return whether a hyphen joins the part of a text from `start` to `end` to another word, as in `man-made`."""
    follows = start > 1 and text[start - 1] in _HYPHENS and is_spaced_word_character(text[start - 2])
    precedes = end + 1 < len(text) and text[end] in _HYPHENS and is_spaced_word_character(text[end + 1])
    return (follows and is_spaced_word_character(text[start])) or (precedes and is_spaced_word_character(text[end - 1]))


def contains_phrase(text: str, phrase: str) -> bool:
    """Return whether a text contains a phrase as whole words, with matching case; no text contains an empty phrase.

    Apostrophes (' and ’) are equal, and full-width forms are equal to ASCII.
    """
    text, phrase = (normalize_for_comparison(each).translate(_EQUAL) for each in (text, phrase))
    return any(True for _ in occurrences(text, phrase))


def occurrences(text: str, phrase: str) -> Iterator[int]:
    """Yield the index of each occurrence of a phrase in a text, with matching case.

    In scripts with spaces, only whole words match. Occurrences may overlap; an empty phrase has none.
    """
    start = text.find(phrase) if phrase else -1
    while start >= 0:
        if ends_at_word_boundaries(text, start, start + len(phrase)):
            yield start
        start = text.find(phrase, start + 1)


# --- glossary ---


MAX_SHOWN = 5  # missing terms that are listed individually


class Term(msgspec.Struct, frozen=True):
    """A glossary term: a source phrase and its permitted translations."""

    source: str
    """The source phrase. A phrase in lower case matches text in any case, as at a sentence start; one with a capital
    matches only text written the same.
    """
    targets: tuple[str, ...]
    """The permitted translations, such as forms of a word."""
    location: str = ""
    """The file and line that defined the term, for error messages."""

    place = renamed_attribute("place", "location")

    @property
    def forms(self) -> tuple[str, ...]:
        """A tuple of the permitted translations: all targets, then capitalized forms.

        A capitalized form is a lower-case target with a capital as its first letter.
        """
        capitalized = [capitalize(target) for target in self.targets if target == target.lower()]
        return tuple(dict.fromkeys([*self.targets, *capitalized]))

    def __str__(self) -> str:
        return f"`{self.source}` as {' or '.join(f'`{target}`' for target in self.targets)}"


def _check_term(term: Term) -> None:
    """Check the type of a term and of its texts.

    Raises:
        TransduceError: the argument is no `Term`, its source is no text, or its translations are no tuple of texts.
    """
    if not isinstance(term, Term):
        raise TransduceError(
            f"A glossary has terms, but one is {shown_value(term)}: write Term('source', ('translation',))."
        )
    if isinstance(term.targets, str) or not all(isinstance(text, str) for text in (term.source, *term.targets)):
        raise TransduceError(
            f"A term has a text and a tuple of translations, but one is {shown_value((term.source, term.targets))}: "
            "write Term('source', ('translation',))."
        )


def _other_capitals(term: Term) -> Iterator[str]:
    """Yield Turkish and Dutch capitalized forms of a term's translations that begin with i.

    Only translations in lower case have these forms.
    """
    for target in term.targets:
        if target[:1] == "i" and target == target.lower():
            yield from (capitalize(target, "tr"), capitalize(target, "nl"))


@explain_wrong_types
class Glossary:
    """An immutable collection of terms with required translations, which finds its terms in source texts."""

    def __init__(self, terms: Iterable[Term]) -> None:
        """Collect terms into a glossary; terms with equal sources become one with all their targets.

        Raises:
            TransduceError: a source or a target is empty, or a term has no target.
        """
        self._terms: dict[str, Term] = {}
        self.repeated: list[str] = []
        """The sources of terms whose entries differ in their translations, which then count as alternatives."""
        for term in terms if isinstance(terms, Iterable) else (terms,):
            _check_term(term)
            source, targets = normalize_for_comparison(term.source), tuple(map(normalize_for_comparison, term.targets))
            if not source or not targets or not all(targets):
                where = f"{term.location}: " if term.location else ""
                raise TransduceError(
                    f"{where}A term needs a text for the source and at least one for the translation, but one of "
                    f"{term.source!r} and {list(term.targets)!r} is empty: "
                    "write an unchanged term alone in its line, or in JSON as its own translation."
                )
            earlier = self._terms.get(source)
            if earlier is not None and not {*targets} <= {*earlier.targets} and source not in self.repeated:
                self.repeated.append(source)
            combined = targets if earlier is None else (*earlier.targets, *targets)
            self._terms[source] = Term(
                source, tuple(dict.fromkeys(combined)), earlier.location if earlier else term.location
            )
        # The lengths of the terms by first character, which are looked up at each position of a text.
        self._by_source = {source.translate(_EQUAL): term for source, term in reversed(self._terms.items())}
        lengths: dict[str, set[int]] = {}
        for source in self._by_source:
            lengths.setdefault(source[0], set()).update((len(source), len(source) + source.count("ß")))
        self._lengths = lengths

    @property
    def terms(self) -> tuple[Term, ...]:
        """A tuple of all terms, one for each source, in the order in which the sources were first defined."""
        return tuple(self._terms.values())

    def __len__(self) -> int:
        return len(self._terms)

    def find(self, text: str) -> list[Term]:
        """Return a list of the distinct terms that occur in a text, in order of first occurrence.

        Matching goes from left to right, prefers the longest term, and finds no term within another. In scripts with
        spaces, terms match whole words, and no part of a word with hyphens.
        """
        return list({term.source: term for _, _, term in self.occurrences(normalize_for_comparison(text))}.values())

    def without(self, text: str, term: Term) -> str:
        """Normalize a text for comparison, and return it without the occurrences of a term."""
        text, rest, before = normalize_for_comparison(text), "", 0
        for start, end, match in self.occurrences(text):
            if match == term:
                rest, before = rest + text[before:start], end
        return normalize_for_comparison(rest + text[before:])

    def occurrences(self, text: str) -> Iterator[tuple[int, int, Term]]:
        """Yield (start, end, term) for each glossary term in a text, from left to right without overlaps.

        The text must be normalized by `normalize_for_comparison`; `end` is exclusive.
        """
        start = 0
        while start < len(text):
            term, length = self._term_at(text, start)
            if term is not None:
                yield start, start + length, term
            start += length

    places = renamed_attribute("places", "occurrences")

    def term_of(self, text: str) -> Term | None:
        """Return the glossary term that makes up a whole text, apart from spaces at its ends; None if none does."""
        text = normalize_for_comparison(text)
        term, length = self._term_at(text, 0) if text else (None, 0)
        return term if length == len(text) else None

    def _term_at(self, text: str, start: int) -> tuple[Term | None, int]:
        """Return the longest term that starts at an index of a text, and its length in the text.

        The result is (None, 1) if no term starts there.
        """
        first = text[start].translate(_EQUAL)
        lengths = {length for each in (first, *_lower_forms(first)) for length in self._lengths.get(each, ())}
        for length in sorted(lengths, reverse=True):
            part = text[start : start + length]
            plain = part.translate(_EQUAL)
            found = (self._by_source.get(form) for form in (plain, *_lower_forms(plain)))
            term = self._terms.get(part) or next(filter(None, found), None)
            if term is None or not ends_at_word_boundaries(text, start, start + length):
                continue
            if not _is_part_of_hyphenated(text, start, min(len(text), start + length)):
                return term, len(part)  # shorter at the end of the text
        return None, 1

    def missing(self, source: str, translation: str) -> list[Term]:
        """Return a list of the terms in a source text of which the translation contains no permitted form."""
        return [
            term
            for term in self.find(source)
            if not any(contains_phrase(translation, form) for form in (*term.forms, *_other_capitals(term)))
        ]


# In files that were not written for this format.
_OTHER_SEPARATOR = re.compile(r"[,;=|\uff0c\uff1b\u3001\uff1a]|: |->|→")


@explain_wrong_types
def read_glossary(path: Path) -> Glossary:
    """Read a glossary from a file whose lines have a source term, a tab and its translation.

    More tabs separate alternatives. A term alone in its line stays unchanged in translation. Empty lines are ignored.

    Raises:
        TransduceError: the file cannot be read, a line has an empty term, there is no term, or the columns are not
            separated by tabs.
    """
    glossary = Glossary(_read_terms(path))
    separated = [each for term in glossary.terms for each in _OTHER_SEPARATOR.findall(term.source)[:1]]
    if len(separated) * 2 > len(glossary) and all(term.targets == (term.source,) for term in glossary.terms):
        raise TransduceError(
            f"{path} has no tabs, so its lines would be copied as they are, but most of them have `{separated[0]}`: "
            "write `term`, a tab and `translation` on each line."
        )
    if not len(glossary):
        raise TransduceError(
            f"A glossary needs terms, but {path} has none: write `term`, a tab and `translation` on each line."
        )
    return glossary


def _read_terms(path: Path) -> Iterator[Term]:
    for number, line in enumerate(read_lines(path), 1):
        if number == 1 and line.lstrip("\ufeff ").startswith(("<?xml", "<martif", "<tbx")):
            raise TransduceError(
                f"{path} is XML, such as TBX, but a glossary is a text file: export it with `term`, a tab and "
                "`translation` on each line."
            )
        if line.strip():
            source, *targets = line.split("\t")
            yield Term(source, tuple(targets or [source]), f"{path}, line {number:,}")


class TermTally:
    """A running comparison of source lines and translations: it counts glossary terms and lists the missing ones."""

    def __init__(self, glossary: Glossary, *, of_document: bool = False) -> None:
        """Start with no lines.

        Args:
            glossary: the glossary.
            of_document: True if the report calls a line a text.
        """
        self.glossary = glossary
        self.of_document = of_document
        self.terms = 0
        """The number of terms in all lines; each term counts once per line."""
        self.missing: list[tuple[int, Term]] = []
        """A list of (line number, term) for each term that the translation of a line lacks."""

    def add(self, number: int, source: str, translation: str) -> None:
        """Count the glossary terms in the source line with this number, and record those missing in its translation."""
        self.terms += len(self.glossary.find(source))
        self.missing += [(number, term) for term in self.glossary.missing(source, translation)]

    def __str__(self) -> str:
        translated = self.terms - len(self.missing)
        shown = "".join(
            f"\n  {'text' if self.of_document else 'line'} {number:,} lacks "
            f"{' or '.join(f'`{target}`' for target in term.targets)} for `{term.source}`"
            for number, term in self.missing[:MAX_SHOWN]
        )
        more = f"\n  and {len(self.missing) - MAX_SHOWN:,} more" if len(self.missing) > MAX_SHOWN else ""
        more += "".join(
            f"\n  the translations of `{source}` in several entries count as alternatives"
            for source in self.glossary.repeated[:MAX_SHOWN]
        )
        counts = (
            f"glossary: {count_noun(self.terms, 'term')} in the sources, {translated:,} of them in the translations"
        )
        return f"{counts}{'; missing' if self.missing else ''}{shown}{more}"
