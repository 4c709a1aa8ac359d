"""Split HTML and XML into tokens: text, inline tags, and everything else, which breaks the flow.

Scripts, code, comments, and elements with `translate="no"` or `class="notranslate"` are copied unchanged.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

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
    """Return the token for a match of `_MARKUP`."""
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
        """Return whether the position is inside a script or style, which contains no tags."""
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
