"""HTML and XML: tags stay as they are, in their order and nesting, and what stands between them is translated.

What lies between two tags that break the flow (paragraphs, cells, line breaks, …) is a block. A block without tags is
translated as it is. Where parts of a block are marked (bold, links, …), it is translated as a whole without the tags,
and so is each part by itself: where every marked part's translation is found once in the whole one, the tags go around
it there. Otherwise the parts are translated one by one and keep their order, which always works and reads less well.

Entities are resolved for the model, and what must be escaped is escaped again. Scripts, code, comments, and whatever is
marked `translate="no"` or `class="notranslate"` come through untouched.
"""

import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple
from unicodedata import east_asian_width

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
_ATTRIBUTE = re.compile(
    r"""(?:^|(?<=\s))(?P<name>translate|class)\s*+=\s*+(?:"(?P<double>[^"]*+)|'(?P<single>[^']*+)|(?P<bare>[^\s"'>]++))""",
    re.IGNORECASE,
)
_SPACE = re.compile(r"(?:\s|&nbsp;)*+")
_SPACE_BACKWARDS = re.compile(r"(?:\s|;psbn&)*+")
_LAST_MARKS = " .。!！?？…,，;；:："  # a part by itself is easily given a full stop
_MOST_RUNS = 64  # of a block that is translated as a whole: a longer one is no sentence

Assemble = Callable[[Sequence[str]], str]


class Token(NamedTuple):
    """A piece of the document."""

    kind: Literal["text", "start", "end", "other"]
    """Text; an inline tag; anything else, which breaks the flow and is copied."""
    source: str
    """As it stands in the document."""
    name: str = ""
    """Of a tag, in lower case."""


class Run(NamedTuple):
    """A part of a block without tags within: `<b><i>text</i></b>`, or text that is not marked."""

    opening: str
    text: Token
    closing: str


def markup_plan(document: str, *, spaced: bool) -> tuple[list[str], Assemble]:
    """The sentences of a document, and what makes it a document again out of their translations.

    Args:
        document: HTML or XML, of any quality.
        spaced: whether the target language puts spaces between words, so that a part must be found as whole words.
    """
    sentences: list[str] = []
    assemblies = [_plan_block(block, sentences, spaced=spaced) for block in _blocks(tokens(document))]
    return sentences, lambda translations: "".join(assemble(translations) for assemble in assemblies)


def _is_untranslated(attributes: str) -> bool:
    """Whether a tag with these attributes says that what it encloses stays as it is."""
    for found in _ATTRIBUTE.finditer(attributes):
        value = found["double"] or found["single"] or found["bare"] or ""
        pattern = r"no\b" if found["name"].lower() == "translate" else r".*\bnotranslate\b"
        if re.match(pattern, value, re.IGNORECASE | re.DOTALL):
            return True
    return False


# --- reading -------------------------------------------------------------------------------------------------


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
    is_single = not name or _VOID.fullmatch(name) or found["attributes"].rstrip().endswith("/")
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


def _blocks(pieces: Iterable[Token]) -> Iterator[list[Token]]:
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


def _runs(block: Sequence[Token]) -> list[Run] | None:
    """The block's runs; None where its tags are not balanced, or mark more than one run."""
    runs: list[Run] = []
    opened: list[Token] = []
    closing: list[Token] = []
    text: Token | None = None
    for token in block:
        if token.kind == "text":
            if text is not None:
                return None
            text = token
        elif token.kind == "start":
            if text is not None:
                return None
            opened.append(token)
        elif text is None or not opened or opened[-1 - len(closing)].name != token.name:
            return None
        else:
            closing.append(token)
        if text is not None and len(closing) == len(opened):
            runs.append(Run(_joined(opened), text, _joined(closing)))
            opened, closing, text = [], [], None
    return None if opened else runs


def _joined(block: Iterable[Token]) -> str:
    return "".join(token.source for token in block)


# --- planning ------------------------------------------------------------------------------------------------


def _plan_block(block: list[Token], sentences: list[str], *, spaced: bool) -> Assemble:
    """Enters what the block needs among the sentences."""
    numbers = [_enter(token, sentences) for token in block]
    runs = _runs(block)
    if runs is None or not 2 <= len(runs) <= _MOST_RUNS or not any(run.opening for run in runs):
        return lambda translations: _one_by_one(block, numbers, translations, spaced=spaced)
    texts = [token for token in block if token.kind == "text"]
    before, _, after = _edges(_joined(texts))
    whole = _enter(Token("text", _joined(texts)), sentences)
    spoken = [number for token, number in zip(block, numbers, strict=True) if token.kind == "text"]

    def assemble(translations: Sequence[str]) -> str:
        single = ["" if number is None else translations[number] for number in spoken]
        placed = None if whole is None else place_marks(translations[whole], runs, single, spaced=spaced)
        if placed is None:
            return _one_by_one(block, numbers, translations, spaced=spaced)
        return before + placed + after

    return assemble


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
    if token.kind != "text" or not any(map(str.isalnum, spoken)):
        return None
    sentences.append(spoken)
    return len(sentences) - 1


# --- putting together ----------------------------------------------------------------------------------------


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


def place_marks(whole: str, runs: Sequence[Run], single: Sequence[str], *, spaced: bool) -> str | None:
    """The translation of a block with its tags, or None where their places cannot be told.

    Args:
        whole: the translation of the block without tags.
        runs: what it is made of.
        single: the translation of each run by itself.
        spaced: whether only whole words count as found.
    """
    spans = []
    for run, translation in zip(runs, single, strict=True):
        if run.opening:
            span = _only_place(translation.strip(_LAST_MARKS), whole, spaced=spaced)
            if span is None:
                return None
            spans.append((*span, run))
    spans.sort(key=lambda entry: entry[:2])
    placed, position = "", 0
    for start, end, run in spans:
        if start < position:
            return None
        placed += _escape(whole[position:start]) + run.opening + _escape(whole[start:end]) + run.closing
        position = end
    return placed + _escape(whole[position:])


def _only_place(part: str, whole: str, *, spaced: bool) -> tuple[int, int] | None:
    """Where a part stands, if it does so once, upper and lower case aside."""
    if not part:
        return None
    pattern = rf"(?<!\w){re.escape(part)}(?!\w)" if spaced else re.escape(part)
    found = list(re.finditer(pattern, whole, re.IGNORECASE))
    return found[0].span() if len(found) == 1 else None


def _escape(text: str) -> str:
    return html.escape(text, quote=False)
