"""Split plain text, HTML or XML into sentences to translate, and assemble the translations into a document again.

Each line of plain text is translated by itself, as by `transduce translate`; line breaks and empty lines are kept.
"""

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from unicodedata import east_asian_width

from transduce.text.word_spans import Span

# --- tokens of HTML and XML ---
# Split HTML and XML into tokens: text, inline tags, and everything else, which breaks the flow.
# Scripts, code, comments, and elements with `translate="no"` or `class="notranslate"` are copied unchanged.


# Comments, CDATA sections, declarations, tags. Possessive quantifiers keep malformed markup from causing backtracking.
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<[!?][^<>]*+>|<(?P<end>/?)(?P<name>[A-Za-z][\w:.-]*+)"
    r"(?P<attributes>(?:[^<>\"']++|\"[^\"]*+\"|'[^']*+')*+)>",
    re.DOTALL,
)
# Scripts and styles contain no tags except their end tag.
_RAW_END = re.compile(r"<(?P<end>/)(?P<name>script|style)(?P<attributes>[^<>]*+)>", re.IGNORECASE)
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|del|dfn|em|font|g|i|ins|label|mark|q|s|small|span|strike|strong|sub|sup|u"
)
_VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr")
_OPAQUE = re.compile("code|kbd|math|pre|samp|script|style|svg|textarea|var")
_CLOSES_ITSELF = re.compile(r"(?:^|[\s\"'])/\s*$")  # excludes a slash in an unquoted value, as in src=/js/
_ATTRIBUTE = re.compile(
    r"""(?:^|(?<=\s))(?P<name>translate|class)\s*+=\s*+(?:"(?P<double>[^"]*+)|'(?P<single>[^']*+)|(?P<bare>[^\s"'>]++))""",
    re.IGNORECASE,
)


class Token(NamedTuple):
    """A part of an HTML or XML document: a text or a tag."""

    kind: Literal["text", "start", "end", "other"]
    """A text, an inline start or end tag, or anything else, which breaks the flow and is copied."""
    source: str
    """The part as it is in the document."""
    name: str = ""
    """The name of a tag, in lower case."""


def tokens(document: str) -> Iterator[Token]:
    """Yield the tokens of a document; their sources concatenate to the document."""
    start, opaque = 0, _Opaque()
    while match := (_RAW_END if opaque.is_raw else _MARKUP).search(document, start):
        if match.start() > start:
            yield Token("other" if opaque.depth else "text", document[start : match.start()])
        start = match.end()
        yield _tag(match, opaque)
    if start < len(document):
        yield Token("other" if opaque.depth else "text", document[start:])


def _tag(match: re.Match[str], opaque: "_Opaque") -> Token:
    """Return the token of the markup (tag, comment or other) that `_MARKUP` matched."""
    name = (match["name"] or "").lower()
    is_single = not name or _VOID.fullmatch(name) or _CLOSES_ITSELF.search(match["attributes"])
    is_inside = opaque.depth > 0
    if not is_single:
        opaque.step(name, match["attributes"], is_end=bool(match["end"]))
    if is_single or is_inside or opaque.depth or not _INLINE.fullmatch(name):
        return Token("other", match[0])
    return Token("end" if match["end"] else "start", match[0], name)


class _Opaque:
    """The nesting depth inside an element whose content is not translated."""

    def __init__(self) -> None:
        self.depth = 0
        self._name = ""

    @property
    def is_raw(self) -> bool:
        """True if the position is inside a script or style, which contains no tags."""
        return self.depth > 0 and self._name in ("script", "style")

    def step(self, name: str, attributes: str, *, is_end: bool) -> None:
        """Enter or leave an element, counting nested elements of the same name so as to find the end tag."""
        if not self.depth and not is_end and (_OPAQUE.fullmatch(name) or _is_untranslated(attributes)):
            self.depth, self._name = 1, name
        elif self.depth and name == self._name:
            self.depth += -1 if is_end else 1


def blocks(document_tokens: Iterable[Token]) -> Iterator[list[Token]]:
    """Group tokens into runs of text and inline tags; every other token is a block by itself."""
    block: list[Token] = []
    for token in document_tokens:
        if token.kind == "other":
            yield from ([block] if block else [])
            yield [token]
            block = []
        else:
            block.append(token)
    yield from ([block] if block else [])


def _is_untranslated(attributes: str) -> bool:
    """Return whether the attributes of a tag exclude its content from translation."""
    for match in _ATTRIBUTE.finditer(attributes):
        value = match["double"] or match["single"] or match["bare"] or ""
        pattern = r"no\b" if match["name"].lower() == "translate" else r".*\bnotranslate\b"
        if re.match(pattern, value, re.IGNORECASE | re.DOTALL):
            return True
    return False


# --- blocks with inline tags ---
# Translate HTML and XML: tags keep their nesting, and the text between them is translated.
# The text between two tags that break the flow (paragraphs, cells, line breaks, …) is a block. A block is
# translated as a whole, without the inline tags in it (bold, links, …). Afterwards each inline tag is put around
# the translation of the words that it enclosed, which the model aligns (`inference/spans.py:locate`). Two kinds of
# blocks are translated one text node at a time: those with unbalanced tags, and those in which several tags enclose
# all words, as in a row of links.
# Entities are decoded for the model, and the translation is escaped again.


_SPACE = re.compile(r"(?:\s|&nbsp;)*+")
_SPACE_BACKWARDS = re.compile(r"(?:\s|;psbn&)*+")
_MAX_MARKS = 16  # of a block that is translated as a whole: the model aligns each of them

Assemble = Callable[[Sequence[str], Mapping[int, Sequence[Span]]], str]
"""Makes the document from its sentences' translations and, by sentence number, the aligned spans of their marks."""


class MarkedSentences(NamedTuple):
    """The marked sentences of a document to translate, and the function that assembles the translated document."""

    sentences: list[str]
    marks: dict[int, tuple[Span, ...]]
    """Spans of the inline elements of a sentence, by its number, if it has some; any two are nested or disjoint."""
    assemble: Assemble


@dataclass
class Mark:
    """An inline element: its tags, and the span that it encloses in the plain text of its block."""

    opening: str
    start: int
    closing: str = ""
    end: int = 0
    children: list["Mark"] = field(default_factory=list)
    has_words: bool = False

    def worded(self) -> list["Mark"]:
        """Return this mark and all marks nested in it that contain words, in the order of their opening tags."""
        return [self, *(mark for child in self.children for mark in child.worded())] if self.has_words else []


def markup_plan(document: str, *, spaced: bool) -> MarkedSentences:
    """Return the sentences of a document with their marks, and the function that assembles the translated document.

    Args:
        document: HTML or XML; it may be malformed.
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
    """Append a block's sentences and marks to the lists; return the function that assembles the translated block."""
    parsed = _read_block(block)
    if parsed is None or not parsed.is_one_sentence:
        numbers = [_add_sentence(token, sentences) for token in block]
        return lambda translations, _: _assemble_separately(block, numbers, translations, spaced=spaced)
    number = len(sentences)
    sentences.append(parsed.text)
    worded = [mark for top in parsed.marks for mark in top.worded()]
    if worded:
        marks[number] = tuple(Span(mark.start, mark.end) for mark in worded)

    def assemble(translations: Sequence[str], spans: Mapping[int, Sequence[Span]]) -> str:
        span_by_mark = dict(zip(map(id, worded), spans.get(number, ()), strict=True))
        root = Mark("", 0, "", len(parsed.text), parsed.marks)
        rendered = _render(root, parsed.text, Span(0, len(translations[number])), translations[number], span_by_mark)
        return parsed.before + rendered + parsed.after

    return assemble


# --- reading a block -----------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """A block of a document as plain text, with the inline tags as marks at positions of the text."""

    before: str
    """White space before the text, as in the document."""
    text: str
    marks: list[Mark]
    after: str

    @property
    def is_one_sentence(self) -> bool:
        """True if the block is to be translated as one sentence with marks."""
        worded = [mark for mark in self.marks if mark.has_words]
        edges = [0, *(edge for mark in worded for edge in (mark.start, mark.end)), len(self.text)]
        outside = "".join(self.text[edges[index] : edges[index + 1]] for index in range(0, len(edges), 2))
        return bool(self.marks) and _has_words(self.text) and (len(worded) <= 1 or _has_words(outside))


def _read_block(block: Sequence[Token]) -> _Block | None:
    """Return a block's plain text and its marks, with white space collapsed to single spaces.

    Return None if the tags are unbalanced, or too many for the block to be one sentence.
    """
    source = "".join(token.source for token in block if token.kind == "text")
    before, _, after = _split_white_space(source)
    text, top_marks, open_marks = "", list[Mark](), list[tuple[str, Mark]]()
    for token in block:
        if token.kind == "text":
            for character in html.unescape(token.source):
                if not character.isspace():
                    text += character
                elif text and not text.endswith(" "):
                    text += " "
        elif token.kind == "start":
            mark = Mark(token.source, len(text))
            (open_marks[-1][1].children if open_marks else top_marks).append(mark)
            open_marks.append((token.name, mark))
        elif token.kind == "end" and open_marks and open_marks[-1][0] == token.name:
            _, mark = open_marks.pop()
            mark.closing, mark.end = token.source, len(text)
        else:
            return None
    if open_marks or sum(token.kind == "start" for token in block) > _MAX_MARKS:
        return None
    text = text.rstrip()
    for mark in top_marks:
        _trim(mark, text, Span(0, len(text)))
    return _Block(before, text, top_marks, after)


def _trim(mark: Mark, text: str, bounds: Span) -> None:
    """Move the edges of a mark past white space, and clip the marks nested in it accordingly."""
    start, end = (min(max(edge, bounds.start), bounds.end) for edge in (mark.start, mark.end))
    inner = text[start:end]
    mark.start, mark.end = start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
    mark.end = max(mark.start, mark.end)
    mark.has_words = _has_words(inner)
    for child in mark.children:
        _trim(child, text, Span(mark.start, mark.end))


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))


def _render(mark: Mark, source: str, part: Span, text: str, spans_by_mark: Mapping[int, Span]) -> str:
    """Return the translation of what a mark encloses, with the tags of the marks nested in it.

    Args:
        mark: the outer mark; its span in the source contains the nested ones.
        source: the block's source text.
        part: span of the outer mark in the translation.
        text: the block's translation.
        spans_by_mark: spans in the translation of all marks with words, by `id`.
    """
    spans = {id(child): spans_by_mark[id(child)] for child in mark.children if child.has_words}
    for number, child in enumerate(mark.children):
        if not child.has_words:
            spans[id(child)] = _place_wordless(mark, number, source, part, text, spans)
    rendered, position = "", part.start
    for child in sorted(mark.children, key=lambda child: spans[id(child)]):
        start, end = (min(max(edge, position), part.end) for edge in spans[id(child)])  # never render text twice
        inner = _render(child, source, Span(start, end), text, spans_by_mark)
        rendered += _escape(text[position:start]) + child.opening + inner + child.closing
        position = end
    return rendered + _escape(text[position : part.end])


def _place_wordless(mark: Mark, number: int, source: str, part: Span, text: str, spans: Mapping[int, Span]) -> Span:
    """Return the position in the translation of an inline element that contains no words, such as an image.

    It goes around the same signs if they occur once, else next to the neighbor or edge that it touches in the source,
    else to the word boundary at about the same relative position.
    """
    element = mark.children[number]
    occupied = [spans[id(child)] for child in mark.children if id(child) in spans]
    signs, part_text = source[element.start : element.end], text[part.start : part.end]
    if signs and part_text.count(signs) == 1:
        start = part.start + part_text.index(signs)
        if not any(span.start < start + len(signs) and start < span.end for span in occupied):
            return Span(start, start + len(signs))
    if number and not _has_words(source[mark.children[number - 1].end : element.start]):
        position = spans[id(mark.children[number - 1])].end
    elif not _has_words(source[mark.start : element.start]):
        position = part.start
    elif not _has_words(source[element.end : mark.end]):
        position = part.end
    else:
        edges = r"(?<=\w)(?!\w)" if not source[element.start - 1].isspace() else r"(?<!\w)(?=\w)"
        boundaries = (part.start + match.start() for match in re.finditer(edges, part_text))
        free = [position for position in boundaries if not any(span.start < position < span.end for span in occupied)]
        target = part.start + (element.start - mark.start) / max(1, mark.end - mark.start) * (part.end - part.start)
        following = next((child for child in mark.children[number + 1 :] if child.has_words), None)
        if following is not None and not _has_words(source[element.end : following.start]):
            target = spans[id(following)].start
        position = min([*free, part.end], key=lambda position: abs(position - target))
    return Span(position, position)


# --- text nodes one by one -----------------------------------------------------------------------------------


def _split_white_space(source: str) -> tuple[str, str, str]:
    """Split a text into leading white space, content and trailing white space."""
    start = _match_length(_SPACE, source)
    end = max(start, len(source) - _match_length(_SPACE_BACKWARDS, source[::-1]))
    return source[:start], source[start:end], source[end:]


def _match_length(space: re.Pattern[str], source: str) -> int:
    """Return the length of the white space at the start of a text."""
    match = space.match(source)
    return match.end() if match else 0


def _add_sentence(token: Token, sentences: list[str]) -> int | None:
    """Append the sentence in a text token to the list and return its number, or None if nothing is to be translated."""
    content = " ".join(html.unescape(_split_white_space(token.source)[1]).split())
    if token.kind != "text" or not _has_words(content):
        return None
    sentences.append(content)
    return len(sentences) - 1


def _assemble_separately(
    block: Sequence[Token], numbers: Sequence[int | None], translations: Sequence[str], *, spaced: bool
) -> str:
    """Return the block with each text token replaced by its translation."""
    parts: list[str] = []
    source = translated = ""  # the preceding text token and its translation
    for token, number in zip(block, numbers, strict=True):
        part = token.source
        if number is not None:
            before, _, after = _split_white_space(part)
            translation = _escape(translations[number])
            part = _gap(source, part, translated, translation, spaced=spaced) + before + translation + after
        if token.kind == "text":
            source, translated = token.source, part
        parts.append(part)
    return "".join(parts)


_SPACE_FOLLOWS = (".", ",", "!", "?", ";", ":", ")", '"', "”", "’", "…")


def _gap(source_before: str, source: str, before: str, after: str, *, spaced: bool) -> str:
    """Return the space that a spaced target language needs before a translation, if the unspaced source has none."""
    is_unspaced = any(east_asian_width(letter) == "W" for letter in (*source_before[-1:], *source[:1]))
    between_words = (before[-1:].isalnum() or before.endswith(_SPACE_FOLLOWS)) and after[:1].isalnum()
    return " " if spaced and is_unspaced and between_words else ""


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


# --- plans ---

_LINE_ENDS = re.compile(r"(\r?\n)")


class Plan(NamedTuple):
    """The sentences of a text to translate, and the function that assembles the translated text."""

    sentences: list[str]
    assemble: Assemble
    """Makes the translated text from the translations, in order, and the aligned spans of their marks."""
    marks: Mapping[int, Sequence[Span]] = {}
    """Spans of the inline elements in each sentence that has some, by sentence number."""


def plan_text(text: str) -> Plan:
    """Return the plan of a plain text: one sentence per line that is not blank."""
    parts = _LINE_ENDS.split(text)  # lines at even indices, line breaks at odd ones
    line_indices = [index for index in range(0, len(parts), 2) if parts[index].strip()]

    def assemble(translations: Sequence[str], spans: Mapping[int, Sequence[Span]]) -> str:  # noqa: ARG001
        translated = [part if index % 2 else "" for index, part in enumerate(parts)]
        for index, translation in zip(line_indices, translations, strict=True):
            translated[index] = translation
        return "".join(translated)

    return Plan([parts[index] for index in line_indices], assemble)


def plan(text: str, format: str, *, spaced: bool) -> Plan:
    """Return the plan of a text in the format `text` or `html`.

    Args:
        text: the text to translate.
        format: `text` or `html`.
        spaced: whether the target language puts spaces between words.
    """
    if format != "html":
        return plan_text(text)
    marked = markup_plan(text, spaced=spaced)
    return Plan(marked.sentences, marked.assemble, marked.marks)
