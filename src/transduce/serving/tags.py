"""HTML and XML in pieces: text, inline tags, and what breaks the flow.

Scripts, code, comments, and whatever is marked `translate="no"` or `class="notranslate"` are pieces that are copied.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

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


def blocks(pieces: Iterable[Token]) -> Iterator[list[Token]]:
    """Runs of text and inline tags; all else is a block of its own."""
    block: list[Token] = []
    for token in pieces:
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
