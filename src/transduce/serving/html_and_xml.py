"""A text of a request → the sentences to translate, and their translations → the text again.

Lines are translated one by one, as `transduce translate` does it; line ends and empty lines stay as they are.
"""

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from unicodedata import east_asian_width

from transduce.text.word_spans import Span

# --- tags ---
# HTML and XML in pieces: text, inline tags, and what breaks the flow.
# Scripts, code, comments, and whatever is marked `translate="no"` or `class="notranslate"` are pieces that are
# copied.


# Comments, sections of characters, declarations, tags. Possessive, so that broken markup costs no search for other ways
# to read it.
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<[!?][^<>]*+>|<(?P<end>/?)(?P<name>[A-Za-z][\w:.-]*+)"
    r"(?P<attributes>(?:[^<>\"']++|\"[^\"]*+\"|'[^']*+')*+)>",
    re.DOTALL,
)
# There are no tags in these, but for their end.
_RAW_END = re.compile(r"<(?P<end>/)(?P<name>script|style)(?P<attributes>[^<>]*+)>", re.IGNORECASE)
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|del|dfn|em|font|g|i|ins|label|mark|q|s|small|span|strike|strong|sub|sup|u"
)
_VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr")
_OPAQUE = re.compile("code|kbd|math|pre|samp|script|style|svg|textarea|var")
_CLOSES_ITSELF = re.compile(r"(?:^|[\s\"'])/\s*$")  # and no value without quotation marks, as in src=/js/
_ATTRIBUTE = re.compile(
    r"""(?:^|(?<=\s))(?P<name>translate|class)\s*+=\s*+(?:"(?P<double>[^"]*+)|'(?P<single>[^']*+)|(?P<bare>[^\s"'>]++))""",
    re.IGNORECASE,
)


class Token(NamedTuple):
    """A piece of the document."""

    kind: Literal["text", "start", "end", "other"]
    """Text; an inline tag; anything else, which breaks the flow and is copied."""
    source: str
    """As it stands in the document."""
    name: str = ""
    """Of a tag, in lower case."""


def tokens(document: str) -> Iterator[Token]:
    """The document in pieces, which put together are the document."""
    start, opaque = 0, _Opaque()
    while found := (_RAW_END if opaque.is_raw else _MARKUP).search(document, start):
        if found.start() > start:
            yield Token("other" if opaque.depth else "text", document[start : found.start()])
        start = found.end()
        yield _tag(found, opaque)
    if start < len(document):
        yield Token("other" if opaque.depth else "text", document[start:])


def _tag(found: re.Match[str], opaque: "_Opaque") -> Token:
    """What a match of `_MARKUP` is."""
    name = (found["name"] or "").lower()
    is_single = not name or _VOID.fullmatch(name) or _CLOSES_ITSELF.search(found["attributes"])
    inside = opaque.depth > 0
    if not is_single:
        opaque.step(name, found["attributes"], is_end=bool(found["end"]))
    if is_single or inside or opaque.depth or not _INLINE.fullmatch(name):
        return Token("other", found[0])
    return Token("end" if found["end"] else "start", found[0], name)


class _Opaque:
    """How deep inside an element we are whose content is not translated."""

    def __init__(self) -> None:
        self.depth = 0
        self._name = ""

    @property
    def is_raw(self) -> bool:
        """Whether it is one without tags."""
        return self.depth > 0 and self._name in ("script", "style")

    def step(self, name: str, attributes: str, *, is_end: bool) -> None:
        """Counts the elements of the same name in it, so as to find its end."""
        if not self.depth and not is_end and (_OPAQUE.fullmatch(name) or _is_untranslated(attributes)):
            self.depth, self._name = 1, name
        elif self.depth and name == self._name:
            self.depth += -1 if is_end else 1


def blocks(tokens: Iterable[Token]) -> Iterator[list[Token]]:
    """Runs of text and inline tags; all else is a block of its own."""
    block: list[Token] = []
    for token in tokens:
        if token.kind == "other":
            yield from ([block] if block else [])
            yield [token]
            block = []
        else:
            block.append(token)
    yield from ([block] if block else [])


def _is_untranslated(attributes: str) -> bool:
    """Whether a tag with these attributes says that what it encloses stays as it is."""
    for found in _ATTRIBUTE.finditer(attributes):
        value = found["double"] or found["single"] or found["bare"] or ""
        pattern = r"no\b" if found["name"].lower() == "translate" else r".*\bnotranslate\b"
        if re.match(pattern, value, re.IGNORECASE | re.DOTALL):
            return True
    return False


# --- markup ---
# HTML and XML: tags stay as they are, in their nesting, and what stands between them is translated.
# What lies between two tags that break the flow (paragraphs, cells, line breaks, …) is a block. It is translated as
# a whole, without the inline tags in it (bold, links, …); these go around the words that come from what they mark,
# as the model tells (`inference/spans.py:locate`). Where all words are marked by several tags one after another,
# as links in a row, each mark is translated by itself; so it is where tags are not balanced.
# Entities are resolved for the model, and what must be escaped is escaped again.


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
    has_words: bool = False

    def worded(self) -> list["Mark"]:
        """Itself and all that is in it, as far as there are words in them, in the order of their opening tags."""
        return [self, *(mark for child in self.children for mark in child.worded())] if self.has_words else []


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
    worded = [mark for top in whole.marks for mark in top.worded()]
    if worded:
        marks[number] = tuple(Span(mark.start, mark.end) for mark in worded)

    def assemble(found: Sequence[str], places: Mapping[int, Sequence[Span]]) -> str:
        put = dict(zip(map(id, worded), places.get(number, ()), strict=True))
        everything = Mark("", 0, "", len(whole.text), whole.marks)
        rendered = _render(everything, whole.text, Span(0, len(found[number])), found[number], put)
        return whole.before + rendered + whole.after

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
        worded = [mark for mark in self.marks if mark.has_words]
        edges = [0, *(edge for mark in worded for edge in (mark.start, mark.end)), len(self.text)]
        outside = "".join(self.text[edges[place] : edges[place + 1]] for place in range(0, len(edges), 2))
        return bool(self.marks) and _has_words(self.text) and (len(worded) <= 1 or _has_words(outside))


def _read_block(block: Sequence[Token]) -> _Block | None:
    """The block's text with one space wherever there are some, and its marks; None where tags are not balanced, or so
    many that it is no sentence.
    """
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
    if opened or sum(token.kind == "start" for token in block) > _MOST_MARKS:
        return None
    text = text.rstrip()
    for mark in top:
        _trim(mark, text, Span(0, len(text)))
    return _Block(before, text, top, after)


def _trim(mark: Mark, text: str, bounds: Span) -> None:
    """Spaces at the edges of a mark are left out of it, and so out of what is in it."""
    start, end = (min(max(edge, bounds.start), bounds.end) for edge in (mark.start, mark.end))
    inner = text[start:end]
    mark.start, mark.end = start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
    mark.end = max(mark.start, mark.end)
    mark.has_words = _has_words(inner)
    for child in mark.children:
        _trim(child, text, Span(mark.start, mark.end))


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))


def _render(mark: Mark, source: str, part: Span, text: str, places: Mapping[int, Span]) -> str:
    """What is within a mark, translated, with the tags of the marks in it.

    Args:
        mark: in whose part of the source the others are.
        source: the block.
        part: its part of the translation.
        text: the translation.
        places: where marks with words are in it, by `id`.
    """
    placed = {id(child): places[id(child)] for child in mark.children if child.has_words}
    for number, child in enumerate(mark.children):
        if not child.has_words:
            placed[id(child)] = _place_of_nothing(mark, number, source, part, text, placed)
    rendered, position = "", part.start
    for child in sorted(mark.children, key=lambda child: placed[id(child)]):
        start, end = (min(max(edge, position), part.end) for edge in placed[id(child)])  # whatever comes, no text twice
        inner = _render(child, source, Span(start, end), text, places)
        rendered += _escape(text[position:start]) + child.opening + inner + child.closing
        position = end
    return rendered + _escape(text[position : part.end])


def _place_of_nothing(mark: Mark, number: int, source: str, part: Span, text: str, placed: Mapping[int, Span]) -> Span:
    """Where an element without words goes: around its signs, to the neighbour or the edge that it stands at, or else as
    far along as it is.
    """
    own = mark.children[number]
    taken = [placed[id(child)] for child in mark.children if id(child) in placed]
    signs, within = source[own.start : own.end], text[part.start : part.end]
    if signs and within.count(signs) == 1:
        start = part.start + within.index(signs)
        if not any(span.start < start + len(signs) and start < span.end for span in taken):
            return Span(start, start + len(signs))
    if number and not _has_words(source[mark.children[number - 1].end : own.start]):
        place = placed[id(mark.children[number - 1])].end
    elif not _has_words(source[mark.start : own.start]):
        place = part.start
    elif not _has_words(source[own.end : mark.end]):
        place = part.end
    else:
        edges = r"(?<=\w)(?!\w)" if not source[own.start - 1].isspace() else r"(?<!\w)(?=\w)"
        found = (part.start + match.start() for match in re.finditer(edges, within))
        free = [place for place in found if not any(span.start < place < span.end for span in taken)]
        goal = part.start + (own.start - mark.start) / max(1, mark.end - mark.start) * (part.end - part.start)
        following = next((child for child in mark.children[number + 1 :] if child.has_words), None)
        if following is not None and not _has_words(source[own.end : following.start]):
            goal = placed[id(following)].start
        place = min([*free, part.end], key=lambda place: abs(place - goal))
    return Span(place, place)


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


# --- html and xml ---


_LINE_ENDS = re.compile(r"(\r?\n)")


class Plan(NamedTuple):
    """What is to be translated, and what becomes of it."""

    sentences: list[str]
    assemble: Assemble
    """The translations of the sentences, in order, and where their marks are in them, to the translated text."""
    marks: Mapping[int, Sequence[Span]] = {}
    """The marked parts of those sentences that have some."""


def plan_text(text: str) -> Plan:
    """Of plain text."""
    tokens = _LINE_ENDS.split(text)  # lines at even places, line ends between them
    spoken = [place for place in range(0, len(tokens), 2) if tokens[place].strip()]

    def assemble(translations: Sequence[str], places: Mapping[int, Sequence[Span]]) -> str:  # noqa: ARG001
        translated = [piece if place % 2 else "" for place, piece in enumerate(tokens)]
        for place, translation in zip(spoken, translations, strict=True):
            translated[place] = translation
        return "".join(translated)

    return Plan([tokens[place] for place in spoken], assemble)


def plan(text: str, format: str, *, spaced: bool) -> Plan:
    """Of text or HTML; `spaced` is whether the target language puts spaces between words."""
    if format != "html":
        return plan_text(text)
    marked = markup_plan(text, spaced=spaced)
    return Plan(marked.sentences, marked.assemble, marked.marks)
