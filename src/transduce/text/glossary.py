"""Terms that are to be translated in one way: which of them a text has, and whether its translation has theirs."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from transduce.errors import TransduceError
from transduce.text.counted import counted
from transduce.text.files import read_lines
from transduce.text.mentions import as_compared, is_whole, mentions

MOST_SHOWN = 5  # terms that are missing, one by one


class Term(msgspec.Struct, frozen=True):
    """A term of the source's language, and what may stand for it."""

    source: str
    """In lower case it is found in any case, as at the start of a sentence; with a capital as it is written."""
    targets: tuple[str, ...]
    """Any of these will do: forms of a word, say."""
    place: str = ""
    """Where it was read, for error messages: file and line."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The targets, and those in lower case also as they begin a sentence."""
        capitalised = [target[:1].upper() + target[1:] for target in self.targets if target == target.lower()]
        return tuple(dict.fromkeys([*self.targets, *capitalised]))

    def __str__(self) -> str:
        return f"`{self.source}` as {' or '.join(f'`{target}`' for target in self.targets)}"


class Glossary:
    """Terms by their sources. It never changes."""

    def __init__(self, terms: Iterable[Term]) -> None:
        """Of terms with one source, the targets of all will do.

        Raises:
            TransduceError: a source or a target is empty.
        """
        self._terms: dict[str, Term] = {}
        for term in terms:
            source, targets = as_compared(term.source), tuple(map(as_compared, term.targets))
            if not source or not targets or not all(targets):
                where = f"{term.place}: " if term.place else ""
                raise TransduceError(
                    f"{where}A term needs a text for the source and at least one for the translation, but here one is "
                    f"empty, of {term.source!r} and {list(term.targets)!r}: a term that stays as it is stands alone in "
                    "its line."
                )
            known = self._terms.get(source)
            both = targets if known is None else (*known.targets, *targets)
            self._terms[source] = Term(source, tuple(dict.fromkeys(both)), known.place if known else term.place)
        # How long the terms are that begin with a character: what is to be looked up at each place of a text.
        lengths: dict[str, set[int]] = {}
        for source in self._terms:
            lengths.setdefault(source[0], set()).add(len(source))
        self._lengths = lengths

    @property
    def terms(self) -> tuple[Term, ...]:
        """All of them, in the order in which their sources were first given."""
        return tuple(self._terms.values())

    def __len__(self) -> int:
        return len(self._terms)

    def find(self, text: str) -> list[Term]:
        """The terms that a text has, each once, in the order of their first places: from left to right the longest, and
        none within another. Words of scripts with spaces are whole words.
        """
        return list({term.source: term for _, _, term in self.places(as_compared(text))}.values())

    def without(self, text: str, term: Term) -> str:
        """A text from which one of its terms is taken out, wherever it stands."""
        text, rest, before = as_compared(text), "", 0
        for start, end, found in self.places(text):
            if found == term:
                rest, before = rest + text[before:start], end
        return as_compared(rest + text[before:])

    def places(self, text: str) -> Iterator[tuple[int, int, Term]]:
        """Where terms begin and end in a text that `mentions.as_compared` leaves as it is."""
        start = 0
        while start < len(text):
            term, length = self._term_at(text, start)
            if term is not None:
                yield start, start + length, term
            start += length

    def _term_at(self, text: str, start: int) -> tuple[Term | None, int]:
        """The longest term that begins at a place of a text, and how much of the text it takes."""
        lengths = {length for first in (text[start], text[start].lower()) for length in self._lengths.get(first, ())}
        for length in sorted(lengths, reverse=True):
            part = text[start : start + length]
            term = self._terms.get(part) or self._terms.get(part.lower())
            if term is not None and is_whole(text, start, start + length):
                return term, length
        return None, 1

    def missing(self, source: str, translation: str) -> list[Term]:
        """The terms of a source of which its translation has no form."""
        return [term for term in self.find(source) if not any(mentions(translation, form) for form in term.forms)]


def read_glossary(path: Path) -> Glossary:
    """A file's terms, one a line: the source's, a tab, the translation's, and further ones that will do behind tabs.

    A term alone in its line stays as it is. Empty lines are nothing.

    Raises:
        TransduceError: the file cannot be read, a line has nothing before or behind a tab, or there is no term.
    """
    glossary = Glossary(_read_terms(path))
    if not len(glossary):
        raise TransduceError(f"A glossary has terms, but {path} has none: write `term`, a tab, `translation` a line.")
    return glossary


def _read_terms(path: Path) -> Iterator[Term]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            source, *targets = line.split("\t")
            yield Term(source, tuple(targets or [source]), f"{path}, line {number:,}")


class TermTally:
    """Counts in how many translations terms are as a glossary says."""

    def __init__(self, glossary: Glossary) -> None:
        self.glossary = glossary
        self.terms = 0
        """Of all lines, a term of a line counted once."""
        self.missing: list[tuple[int, Term]] = []
        """Those that are not in a line's translation, with the line's number."""

    def add(self, number: int, source: str, translation: str) -> None:
        """Looks at one line."""
        self.terms += len(self.glossary.find(source))
        self.missing += [(number, term) for term in self.glossary.missing(source, translation)]

    def __str__(self) -> str:
        there = self.terms - len(self.missing)
        shown = "".join(f"\n  line {number:,}: {term}" for number, term in self.missing[:MOST_SHOWN])
        more = f"\n  and {len(self.missing) - MOST_SHOWN:,} more" if len(self.missing) > MOST_SHOWN else ""
        counts = f"glossary: {counted(self.terms, 'term')} in the sources, {there:,} of them in the translations"
        return f"{counts}{'; missing' if self.missing else ''}{shown}{more}"
