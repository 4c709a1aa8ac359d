"""HTML and XML: tags stay as they are, in their nesting, and what stands between them is translated.

What lies between two tags that break the flow (paragraphs, cells, line breaks, …) is a block. It is translated as a
whole, without the inline tags in it (bold, links, …); these go around the words that come from what they mark, as the
model tells (`runtime/occlusion.py:locate`). Where all words are marked by several tags one after another, as links in a
row, each mark is translated by itself; so it is where tags are not balanced.

Entities are resolved for the model, and what must be escaped is escaped again.
"""

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from unicodedata import east_asian_width

from transduce.serving.tags import Token, blocks, tokens
from transduce.text.word_spans import Span

_SPACE = re.compile(r"(?:\s|&nbsp;)*+")
_SPACE_BACKWARDS = re.compile(r"(?:\s|;psbn&)*+")
_MOST_MARKS = 16  # of a block that is translated as a whole: each takes the model a look

Assemble = Callable[[Sequence[str], Mapping[int, Sequence[Span]]], str]
"""Translations of the sentences, and where the marks of those that have some are in them → the document."""


class MarkedSentences(NamedTuple):
    """What is to be translated of a document."""

    sentences: list[str]
    marks: dict[int, tuple[Span, ...]]
    """The marked parts of those sentences that have some, by their numbers; nested or apart."""
    assemble: Assemble


@dataclass
class Mark:
    """An inline element: what it encloses, in the block's plain text."""

    opening: str
    start: int
    closing: str = ""
    end: int = 0
    children: list["Mark"] = field(default_factory=list)

    def with_children(self) -> list["Mark"]:
        """Itself and all that is in it, in the order of their opening tags."""
        return [self, *(mark for child in self.children for mark in child.with_children())]


def markup_plan(document: str, *, spaced: bool) -> MarkedSentences:
    """The sentences of a document, and what makes it a document again out of their translations.

    Args:
        document: HTML or XML, of any quality.
        spaced: whether the target language puts spaces between words.
    """
    sentences: list[str] = []
    marks: dict[int, tuple[Span, ...]] = {}
    assemblies = [_plan_block(block, sentences, marks, spaced=spaced) for block in blocks(tokens(document))]
    return MarkedSentences(
        sentences, marks, lambda found, places: "".join(assemble(found, places) for assemble in assemblies)
    )


def _plan_block(
    block: list[Token], sentences: list[str], marks: dict[int, tuple[Span, ...]], *, spaced: bool
) -> Assemble:
    """Enters what the block needs among the sentences, and their marks."""
    whole = _read_block(block)
    if whole is None or not whole.is_one:
        numbers = [_enter(token, sentences) for token in block]
        return lambda found, _: _one_by_one(block, numbers, found, spaced=spaced)
    number = len(sentences)
    sentences.append(whole.text)
    every = [mark for top in whole.marks for mark in top.with_children()]
    marks[number] = tuple(Span(mark.start, mark.end) for mark in every)

    def assemble(found: Sequence[str], places: Mapping[int, Sequence[Span]]) -> str:
        put = dict(zip(map(id, every), places[number], strict=True))
        return whole.before + _render(found[number], Span(0, len(found[number])), whole.marks, put) + whole.after

    return assemble


# --- reading a block -----------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """A block as text with marks."""

    before: str
    """White space, as it stands in the document."""
    text: str
    marks: list[Mark]
    after: str

    @property
    def is_one(self) -> bool:
        """Whether it is to be translated as one sentence with marks."""
        every = [mark for top in self.marks for mark in top.with_children()]
        worded = [mark for mark in self.marks if _has_words(self.text[mark.start : mark.end])]
        covered = {place for mark in worded for place in range(mark.start, mark.end)}
        outside = "".join(character for place, character in enumerate(self.text) if place not in covered)
        return 1 <= len(every) <= _MOST_MARKS and bool(worded) and (len(worded) == 1 or _has_words(outside))


def _read_block(block: Sequence[Token]) -> _Block | None:
    """The block's text with one space wherever there are some, and its marks; None where tags are not balanced."""
    source = "".join(token.source for token in block if token.kind == "text")
    before, _, after = _edges(source)
    text, top, opened = "", list[Mark](), list[tuple[str, Mark]]()
    for token in block:
        if token.kind == "text":
            for character in html.unescape(token.source):
                if not character.isspace():
                    text += character
                elif text and not text.endswith(" "):
                    text += " "
        elif token.kind == "start":
            mark = Mark(token.source, len(text))
            (opened[-1][1].children if opened else top).append(mark)
            opened.append((token.name, mark))
        elif token.kind == "end" and opened and opened[-1][0] == token.name:
            _, mark = opened.pop()
            mark.closing, mark.end = token.source, len(text)
        else:
            return None
    if opened:
        return None
    text = text.rstrip()
    for mark in (mark for each in top for mark in each.with_children()):
        _trim(mark, text)
    return _Block(before, text, top, after)


def _trim(mark: Mark, text: str) -> None:
    """A mark's spaces at its edges are left out of it."""
    mark.end = min(mark.end, len(text))
    mark.start = min(mark.start, mark.end)
    while mark.start < mark.end and text[mark.start] == " ":
        mark.start += 1
    while mark.end > mark.start and text[mark.end - 1] == " ":
        mark.end -= 1


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))


def _render(text: str, part: Span, marks: Sequence[Mark], places: Mapping[int, Span]) -> str:
    """A part of the translation with the tags of the marks in it."""
    rendered, position = "", part.start
    for mark in sorted(marks, key=lambda mark: places[id(mark)]):
        span = places[id(mark)]
        inner = _render(text, span, mark.children, places)
        rendered += _escape(text[position : span.start]) + mark.opening + inner + mark.closing
        position = span.end
    return rendered + _escape(text[position : part.end])


# --- one by one ----------------------------------------------------------------------------------------------


def _edges(source: str) -> tuple[str, str, str]:
    """White space, what is between, white space."""
    start = _width(_SPACE, source)
    end = max(start, len(source) - _width(_SPACE_BACKWARDS, source[::-1]))
    return source[:start], source[start:end], source[end:]


def _width(space: re.Pattern[str], source: str) -> int:
    found = space.match(source)
    return found.end() if found else 0


def _enter(token: Token, sentences: list[str]) -> int | None:
    """The number of a text's sentence; None where there is nothing to translate."""
    spoken = " ".join(html.unescape(_edges(token.source)[1]).split())
    if token.kind != "text" or not _has_words(spoken):
        return None
    sentences.append(spoken)
    return len(sentences) - 1


def _one_by_one(
    block: Sequence[Token], numbers: Sequence[int | None], translations: Sequence[str], *, spaced: bool
) -> str:
    """Everything in its old place."""
    parts: list[str] = []
    source = translated = ""  # the text before the present one
    for token, number in zip(block, numbers, strict=True):
        part = token.source
        if number is not None:
            before, _, after = _edges(part)
            said = _escape(translations[number])
            part = _gap(source, part, translated, said, spaced=spaced) + before + said + after
        if token.kind == "text":
            source, translated = token.source, part
        parts.append(part)
    return "".join(parts)


_SPACE_FOLLOWS = (".", ",", "!", "?", ";", ":", ")", '"', "”", "’", "…")


def _gap(source_before: str, source: str, before: str, after: str, *, spaced: bool) -> str:
    """A space between two words, or behind a sentence, where the source is written without and the target is not."""
    is_unspaced = any(east_asian_width(letter) == "W" for letter in (*source_before[-1:], *source[:1]))
    between_words = (before[-1:].isalnum() or before.endswith(_SPACE_FOLLOWS)) and after[:1].isalnum()
    return " " if spaced and is_unspaced and between_words else ""


def _escape(text: str) -> str:
    return html.escape(text, quote=False)
