"""Phrases in two languages at once, and the two ways to join them.

An inversion transduction grammar (Wu 1997, "Stochastic Inversion Transduction Grammars and Bilingual Parsing of
Parallel Corpora") builds a sentence and its translation together. Two phrases are joined either in the same order in
both languages, `a + b`, or in opposite orders, `swap(a, b)`. Word alignments follow directly. Joining with NOTHING
changes nothing.
"""

from functools import cache

import msgspec

Links = tuple[tuple[int, int], ...]

# Articles have no counterpart in Chinese, so they are linked only if a rule defines that.
_ARTICLES = frozenset({"a", "an", "the"})


class Phrase(msgspec.Struct, frozen=True):
    """Words in both languages with their alignment links (source index, target index)."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    links: Links

    def __add__(self, following: "Phrase") -> "Phrase":
        """Join two phrases in the same order in both languages."""
        if following is NOTHING:
            return self
        if self is NOTHING:
            return following
        return Phrase(
            self.source + following.source,
            self.target + following.target,
            self.links + _shifted(following.links, len(self.source), len(self.target)),
        )


NOTHING = Phrase((), (), ())


def swap(first: Phrase, second: Phrase) -> Phrase:
    """Join two phrases in this order in the source language, and in the opposite order in the target language."""
    if first is NOTHING:
        return second
    return Phrase(
        first.source + second.source,
        second.target + first.target,
        _shifted(first.links, 0, len(second.target)) + _shifted(second.links, len(first.source), 0),
    )


@cache
def phrase(source: str, target: str, links: str = "") -> Phrase:
    """Return a phrase from words that are separated by spaces.

    ``links`` has the form "0-1 1-0", source index first; without it every source word is linked to every target word
    that is not an article.
    """
    left, right = tuple(source.split()), tuple(target.split())
    if not left and not right:
        return NOTHING
    if links:
        pairs = [link.split("-") for link in links.split()]
        return Phrase(left, right, tuple((int(i), int(j)) for i, j in pairs))
    linked = [j for j, word in enumerate(right) if word not in _ARTICLES]
    return Phrase(left, right, tuple((i, j) for i in range(len(left)) for j in linked))


QUESTION_MARK = phrase("？", "?")


def _shifted(links: Links, sources: int, targets: int) -> Links:
    if not sources and not targets:
        return links
    return tuple([(i + sources, j + targets) for i, j in links])
