"""Read Markdown, whose headings, paragraphs, list items and table cells are translated, and write it again.

Code, links' targets, formulas, front matter, HTML tags and the layout of blocks stay the same.
"""

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import unescape
from itertools import accumulate, takewhile
from typing import Any, Literal, NamedTuple

from transduce.documents.formats import Source
from transduce.documents.text_formats import line_joint
from transduce.documents.units import (
    Document,
    Edit,
    InlinePart,
    InlineText,
    Tag,
    TextFile,
    Unit,
    formula_part,
    has_letters,
    is_after_word,
    is_mark_a_word,
    is_note_mark,
    text_of,
)
from transduce.errors import TransduceError, import_extra
from transduce.text.languages import is_unspaced_or_punctuation
from transduce.text.protected import FORMULA
from transduce.ui_language import columns_of

_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n.*?\r?\n(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL)


_DRAWN_TABLE = re.compile(
    r"\s*(?:-{2,}(?:\s+-{2,})+|\+(?:[-=:]+\+)+)\s*\Z"
)  # tables of Pandoc, which are columns of text
_HTML_WITHOUT_TEXT = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style)(?=[\s/>]).*?(?:</\1>|\Z)|<[^<>]*+>", re.DOTALL | re.IGNORECASE
)
_MIN_WIDTH = 40  # columns of wrapped lines
_MAX_PARAGRAPH = 20_000  # characters


_FOOTNOTE = "\ue000"  # stands for the bracket of a footnote, which CommonMark would take for the target of links


class _BlockLine(NamedTuple):
    """A line of a Markdown block's text, without prefixes such as `> `, and its offset in the file."""

    start: int
    text: str


def read_markdown(source: Source) -> Document:
    """Read a Markdown file (CommonMark with tables and strikethrough) as a `Document`.

    Its units are the headings, paragraphs, list items, table cells, blocks of HTML, and descriptions of images.

    Raises:
        TransduceError: a paragraph is too long, or markdown-it-py is not installed.
    """
    file = source.text_file()
    front = _FRONT_MATTER.match(file.text)
    body = file.text[front.end() if front else 0 :]
    body = re.sub(r"(?m)^( {0,3})\[(?=\^[^\]\n]{1,100}\]:)", rf"\1{_FOOTNOTE}", body)
    raw_lines = re.findall(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", body)
    starts = list(accumulate(map(len, raw_lines), initial=front.end() if front else 0))
    markdown = import_extra("markdown_it", "documents").MarkdownIt("commonmark").enable(["table", "strikethrough"])
    env: dict[str, Any] = {}
    tokens = markdown.parse("".join(_without_indentation(re.sub(r"\r\n?", "\n", line) for line in raw_lines)), env)
    reader = _MarkdownReader(file, [line.rstrip("\r\n") for line in raw_lines], starts, _Inline(markdown, env))
    return file.document(reader.edits(tokens))


_DIRECTIVE = re.compile(r""" *(?:(?:!!!|\?\?\?\+?) +[A-Za-z][\w -]*+(?:"(?P<title>.*)")?|===[!+]? +"(?P<tab>.*)") *$""")
"""The line above a note or a tab of MkDocs, such as `!!! note "Title"`."""
_SURE_DIRECTIVE = re.compile(r' *!!! +[\w-]+ *(?:"|\Z)')  # others need indented lines below: "??? what is that"
_INDENTED_NEXT = re.compile(r"(?:[ \t]*\r?\n)+(?: {4}|\t)")
_FENCE = re.compile(r" *(?:(?:[-+*]|\d{1,9}[.)]) +)*(`{3,}(?=[^`]*\Z)|~{3,})")


def _without_indentation(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of Markdown without the indentation of footnotes and of MkDocs' notes.

    The content of these blocks is indented by four columns. CommonMark would read the content as code, except for lines
    that continue a paragraph.
    """
    opened: list[int] = []  # the indentation of each block around a line
    fence = ""
    for line in lines:
        if line.strip():
            text = line.lstrip(" \t")
            indentation = len(line[: len(line) - len(text)].expandtabs(4))
            while opened and not fence and indentation < opened[-1] + 4:
                opened.pop()
            line = " " * (indentation - 4 * len(opened)) + text if opened else line
            if fence:
                is_end = text.startswith(fence) and not text.strip().strip(fence[0])
                fence = "" if is_end else fence
            elif start := _FENCE.match(line):
                fence = start[1]
            elif text.startswith(_FOOTNOTE) or _DIRECTIVE.match(line):
                opened.append(indentation)
        yield line


class _MarkdownReader:
    """A finder of the texts to translate in the blocks of one parsed Markdown file."""

    def __init__(self, file: TextFile, lines: Sequence[str], starts: Sequence[int], inline: "_Inline") -> None:
        self.file = file
        self.lines = lines
        self.starts = starts
        self.inline = inline

    def edits(self, tokens: Sequence[Any]) -> Iterator[Edit]:
        """Yield an `Edit` (span of the file to replace by a translation) for each text in Markdown blocks, in order.

        Args:
            tokens: the file's tokens as markdown-it-py parsed them.
        """
        in_table = is_atx = False
        for token in tokens:
            if token.type == "table_open":
                in_table = True
                yield from self._table(*token.map)
            elif token.type == "table_close":
                in_table = False
            elif token.type in ("paragraph_open", "heading_open"):
                is_atx = token.markup.startswith("#")
            elif token.type == "inline" and not in_table and not self._is_drawn_table(*token.map):
                yield from self._block(self._locate(token.map[0], token.content), is_paragraph=not is_atx)
            elif token.type == "html_block" and token.level == 0:
                yield from self._html(*token.map)
            elif token.type == "html_block":
                yield from self._nested_html(self._locate(token.map[0], token.content.rstrip("\n")))

    def _is_drawn_table(self, first: int, end: int) -> bool:
        """Return whether a block is a table drawn with characters, which is not translated as its columns would move.

        Args:
            first: index of the block's first line; the lines before and after the block are checked too.
            end: index of the line after the block.
        """
        return any(_DRAWN_TABLE.match(line) for line in self.lines[max(0, first - 1) : end + 1])

    def _locate(self, first: int, content: str) -> list[_BlockLine]:
        """Find the lines of a Markdown block in the file, without prefixes such as `> `, as a list of `_BlockLine`.

        Args:
            first: the index of the block's first line.
            content: the block's content without prefixes.
        """
        located = []
        for number, line in enumerate(content.split("\n"), first):
            start = self.lines[number].rfind(line)
            if start < 0:  # tabs are expanded in the content
                line = line.lstrip()
                start = max(0, self.lines[number].rfind(line))
            start += self.starts[number]
            located.append(_BlockLine(start, self.file.text[start : start + len(line)]))
        return located

    def _block(self, lines: list[_BlockLine], *, is_paragraph: bool) -> Iterator[Edit]:
        lines = [_BlockLine(start + len(text) - len(text.lstrip()), text.lstrip()) for start, text in lines]
        first, above = lines[0]
        directive = _DIRECTIVE.match(above) if is_paragraph else None
        if not _SURE_DIRECTIVE.match(above) and not _INDENTED_NEXT.match(self.file.text, first + len(above)):
            directive = None
        if directive and (title := directive["title"] or directive["tab"]):
            title_start = first + above.rindex(f'"{title}"') + 1
            yield from self._edit([_BlockLine(title_start, title)], is_paragraph=False, is_cell=False)
        if directive or re.match(r"\{%|\[TOC\]", lines[0].text):  # a directive of a documentation tool
            lines = lines[1:]
        for text in _texts(lines):
            if sum(len(line.text) for line in text) > _MAX_PARAGRAPH:
                raise TransduceError(f"A paragraph of Markdown may have {_MAX_PARAGRAPH:,} characters: divide it.")
            yield from self._edit(text, is_paragraph=is_paragraph, is_cell=False)

    def _html(self, first: int, end: int) -> Iterator[Edit]:
        start, stop = self.starts[first], self.starts[end]
        text = self.file.text[start:stop]
        if has_letters(_HTML_WITHOUT_TEXT.sub("", text)):
            yield Edit(start, stop, [Unit(text, "html")], lambda translations: translations[0])

    def _nested_html(self, lines: Sequence[_BlockLine]) -> Iterator[Edit]:
        """Yield the edit for a block of HTML in a list or a quotation; none if it has no letter outside of tags.

        Args:
            lines: the block's lines, without the indentation or the `> ` before them, which the lines of the
                translation get again.
        """
        text = "\n".join(line.text for line in lines)
        between = self.file.text[lines[0].start + len(lines[0].text) : lines[1].start] if len(lines) > 1 else ""
        if has_letters(_HTML_WITHOUT_TEXT.sub("", text)):
            end = lines[-1].start + len(lines[-1].text)
            yield Edit(lines[0].start, end, [Unit(text, "html")], lambda new: new[0].replace("\n", between or " "))

    def _table(self, first: int, end: int) -> Iterator[Edit]:
        for number in (first, *range(first + 2, end)):
            position = 0
            for cell in re.split(r"(?<!\\)\|", self.lines[number]):
                text = cell.strip()
                start = self.starts[number] + position + len(cell) - len(cell.lstrip())
                position += len(cell) + 1
                if text:
                    yield from self._edit([_BlockLine(start, text)], is_paragraph=False, is_cell=True)

    def _edit(self, lines: Sequence[_BlockLine], *, is_paragraph: bool, is_cell: bool) -> Iterator[Edit]:
        """Yield the `Edit` (span of the file to replace by a translation) for a text in a Markdown block.

        Nothing is yielded if neither the text nor a description of an image in it has a letter.

        Args:
            lines: the lines of the text. The translation of a wrapped text is wrapped at the width of its longest line,
                at least 40 columns.
            is_paragraph: the text is a paragraph, whose lines must not look like the start of another block.
            is_cell: the text is a cell of a table, in which vertical bars are escaped.
        """
        parsed = self.inline.parse([line.text for line in lines])
        inline = InlineText(parsed.parts)
        start, end = lines[0].start, lines[-1].start + len(lines[-1].text)
        has_text = has_letters(inline.plain)
        between = self.file.text[lines[0].start + len(lines[0].text) : lines[1].start] if len(lines) > 1 else ""
        is_wrapped = len(lines) - 1 > len(parsed.breaks)
        width = max(_MIN_WIDTH, *(columns_of(line.text) for line in lines)) if is_wrapped else 0
        has_escaped_dollars = any("\\$" in line.text for line in lines)  # which would start formulas
        also_escaped = "|" * is_cell + "$" * has_escaped_dollars
        units = [*([inline.unit] if has_text else []), *(Unit(image.alt) for image in parsed.images)]

        def render(translations: Sequence[str]) -> str:
            waiting = list(translations)
            translated = inline.translated(waiting.pop(0)) if has_text else parsed.parts
            sources = dict(parsed.sources)
            for image, alt in zip(parsed.images, waiting, strict=True):
                sources[image.tag] = f"{image.before}{self.inline.escape(alt)}{image.after}"
            sources = {tag: source.replace("\n", between or self.file.newline) for tag, source in sources.items()}
            words = list(self.inline.words(_settled(translated, sources), sources, also_escaped=also_escaped))
            return _wrapped(words, width, between, is_paragraph=is_paragraph)

        if units:
            yield Edit(start, end, units, render)


# --- texts of a paragraph ---

_TITLED = re.compile(r":::+ ?[\w-]++(?:\[| +)(?P<title>(?<=\[)[^\]\n]++(?=\])|(?<= )[^\s{:=\[][^{:=\n]*+$)")
"""The line above a note of Docusaurus or VuePress with a title, such as `::: tip Title`."""
_COPIED_LINE = re.compile(r":::|\{:[^{}]*\}\s*\Z")  # a directive, or attributes of the block
_ALERT = re.compile(r"\[![A-Za-z]{1,20}\]")
_NOTE = re.compile(r"(?:\[\^[^\]\s]{1,100}|\*\[[^\]\n]{1,100})\]:")
_NEW_TEXT = re.compile(rf"{_NOTE.pattern}|\\item(?![A-Za-z])")
_DEFINITION = re.compile(r":[ \t]+(?=\S)")


def _texts(lines: Sequence[_BlockLine]) -> Iterator[list[_BlockLine]]:
    """Yield lists of lines, one for each text of a CommonMark paragraph that Markdown extensions divide.

    Footnotes, abbreviations, terms and their definitions are texts of their own. So is the first line of an alert.
    Directives (`:::`) and attributes (`{: .name}`) are left out.
    """
    first = next((number for number, line in enumerate(lines) if _DEFINITION.match(line.text)), 0)
    text: list[_BlockLine] = []
    for number, line in enumerate(lines):
        definition, is_copied = _DEFINITION.match(line.text), _COPIED_LINE.match(line.text) is not None
        is_new = definition is not None or is_copied or number < first or _NEW_TEXT.match(line.text) is not None
        if text and (is_new or (number == 1 and _ALERT.match(lines[0].text))):
            yield text
            text = []
        if title := _TITLED.match(line.text):
            yield [_BlockLine(line.start + title.start("title"), title["title"])]
        if not is_copied:
            start = definition.end() if definition else 0
            text.append(_BlockLine(line.start + start, line.text[start:]))
    if text:
        yield text


# --- inline elements ---


class _Image(NamedTuple):
    """An image whose description is translated: its tag, and the Markdown before and after the description."""

    tag: Tag
    before: str
    alt: str
    after: str


@dataclass
class _Parsed:
    """A parsed Markdown block: its strings and inline tags, the tags' sources in the file, images and line breaks."""

    parts: list[InlinePart] = field(default_factory=list)
    sources: dict[Tag, str] = field(default_factory=dict)
    images: list[_Image] = field(default_factory=list)
    breaks: list[Tag] = field(default_factory=list)
    """A list of the tags of hard line breaks in the block."""

    def add(self, kind: Any, source: str, number: int | None = None) -> Tag:
        """Append an inline tag to the block's strings and tags, and return the tag.

        Args:
            kind: the kind of the tag, as in `Tag`.
            source: the tag's source in the file.
            number: number of the start tag that an end tag belongs to; None: a new number.
        """
        tag = Tag(kind, len(self.sources) if number is None else number)
        self.parts.append(tag)
        self.sources[tag] = source
        return tag


@dataclass
class _Delimiters:
    """A sequence of equal characters in Markdown, such as `**`, that may start or end emphasis."""

    position: int
    """The index, among the block's strings and tags, at which the tags of the characters are inserted."""
    character: str
    length: int
    can_open: bool
    can_close: bool
    left: int
    """The number of the sequence's characters that no tag uses so far."""
    opens: list[Tag] = field(default_factory=list)
    closes: list[Tag] = field(default_factory=list)


# Formulas, footnotes, links of wikis, the attributes of a heading, and the tags of site generators.
_OPAQUE = re.compile(
    rf"(?!\\[(\[][\d\s,;–-]*\\[)\]])(?:{FORMULA})" + r"|\[\^[^\]\s]{1,100}\]"
    r"|\\\\\(.{1,1000}?\\\\\)|\\\\\[.{1,1000}?\\\\\]|\[\[[^\[\]\n]{1,200}\]\](?![(\[])"
    r"|\{\{.{0,200}?\}\}|\{%.{0,200}?%\}",
    re.DOTALL,
)
# Commands of LaTeX that stand for a word, those that stand for none, and those that format the words in their braces.
_LATEX_WORD = re.compile(
    r"\\(?:[A-Za-z]{0,8}(?:[Cc]ite|ref|includegraphics|url)[a-z]{0,8}\*?(?:\[[^\]\n]{0,200}\]){0,2}\{[^{}\n]{0,200}\}"
    r"|texttt\{[^{}\n]{0,200}\}|(?:La)?TeX(?![A-Za-z])(?:\{\})?)"
)
_LATEX_MARK = re.compile(
    r"\\(?:(?:begin|end|label|[vh]space|pagestyle|bibliography|input|include)\*?\{[^{}\n]{0,200}\}(?:\[[^\]\n]{0,200}\])?"
    r"|(?:item|noindent|newpage|clearpage|pagebreak|tableofcontents|maketitle|centering|(?:small|med|big)skip)(?![A-Za-z])"
    r"|(?:(?:re)?newcommand|usepackage|newtheorem)(?![A-Za-z])[^\n]*)"
)
_LATEX_STYLE = re.compile(r"\\(?:text(?:bf|it|sc|sf|sl|rm)|emph|underline|footnote)\{(?=[^{}]{1,1000}\})")
_EDGE = re.compile(
    rf"\A(?:\[[ xX]\](?=\s)|\[![A-Za-z]{{1,20}}\][+-]?|{_NOTE.pattern})|\{{[#.:][^{{}}\n]{{0,200}}\}}\s*\Z"
)
_INLINE_TAG = re.compile(r"<(?P<end>/?)(?P<name>[A-Za-z][\w-]*)[^<>]*?(?P<empty>/?)>", re.DOTALL)
_VOID = re.compile("br|hr|img|input|wbr", re.IGNORECASE)
_CODE = re.compile("code|kbd|samp|var|math|script|style|pre", re.IGNORECASE)
_SPECIAL = set("\\`[!<&*_~${\n")
_PUNCTUATION = set(string.punctuation)  # which a backslash escapes; before other characters it is text


class _Inline:
    """A converter of inline Markdown, such as emphasis and links, to strings and tags, and of these to Markdown."""

    def __init__(self, markdown: Any, env: dict[str, Any]) -> None:
        self.markdown = markdown
        self.env = env
        self.rules = import_extra("markdown_it.rules_inline", "documents")

    def parse(self, lines: Sequence[str]) -> _Parsed:
        """Divide the lines of a Markdown block into strings and inline tags, and return them as `_Parsed`.

        Links and emphasis become start and end tags; code, formulas and images become single tags.
        """
        content = "\n".join(lines)
        state = self.rules.StateInline(content, self.markdown, self.env, [])
        parsed = _Parsed()
        self._range(state, 0, len(content), parsed)
        _pair_html(parsed)
        return parsed

    def _match(self, state: Any, position: int) -> tuple[str, int]:
        """Return the name and the end offset of the inline element, such as a link or code, at a position.

        If none starts there, the name is "" and the end is the position. Emphasis is not among these elements.
        """
        if edge := _EDGE.match(state.src, position):
            return "edge", edge.end()
        opaque = _OPAQUE.match(state.src, position, state.posMax)
        if opaque is not None:
            return "opaque", opaque.end()
        for name, pattern in (("opaque", _LATEX_WORD), ("html_inline", _LATEX_MARK), ("style", _LATEX_STYLE)):
            if match := pattern.match(state.src, position, state.posMax):
                return name, match.end() if name != "style" else state.src.index("}", position) + 1
        for name in ("escape", "backtick", "autolink", "html_inline", "entity", "link", "image"):
            state.pos = position
            if getattr(self.rules, name)(state, True) and state.pos > position:  # noqa: FBT003
                return name, state.pos
        return "", position

    def _range(self, state: Any, start: int, end: int, parsed: _Parsed) -> None:
        """Parse the inline Markdown from `start` to `end` of a block, and append its strings and tags to `parsed`.

        Emphasis is paired only within this range, which may be the label of a link.
        """
        state.posMax = end
        delimiters: list[_Delimiters] = []
        position = start
        while position < end:
            character = state.src[position]
            name, stop = self._match(state, position) if character in _SPECIAL and character != "\n" else ("", position)
            source = state.src[position:stop]
            if name in ("link", "style"):
                self._element(state, position, stop, parsed)
                state.posMax = end
            elif name == "image":
                self._image(state, position, stop, parsed)
            elif name in ("edge", "opaque", "backtick", "autolink", "html_inline"):
                is_wordless = name in ("edge", "html_inline") or source.startswith("[^")
                parsed.add("empty" if is_wordless else "object", source)
            elif name == "escape" and source[1:] == "\n":
                parsed.breaks.append(parsed.add("break", source))
            elif name == "escape":
                parsed.parts.append(source[1:] if source[1] in _PUNCTUATION else source)
            elif name == "entity":
                parsed.parts.append(unescape(source))
            elif character in "*_" or state.src.startswith("~~", position):
                scanned = state.scanDelims(position, character == "*")
                length, at = scanned.length, len(parsed.parts)
                delimiters.append(_Delimiters(at, character, length, scanned.can_open, scanned.can_close, length))
                parsed.parts.append("")
                stop = position + length
            elif character == "\n":
                stop = _line_break(state.src, position, parsed)
            else:
                stop = position + 1
                while stop < end and state.src[stop] not in _SPECIAL:
                    stop += 1
                parsed.parts.append(state.src[position:stop].replace("\t", " "))  # a tab in a text is shown as a space
            position = stop
        _pair_emphasis(delimiters, parsed)

    def _element(self, state: Any, start: int, end: int, parsed: _Parsed) -> None:
        """Append a link, or a command of LaTeX with words in braces, to the strings and tags of a block."""
        if state.src[start] == "\\":
            inner = state.src.index("{", start) + 1
            opening = parsed.add("open", state.src[start:inner])
            self._range(state, inner, end - 1, parsed)
            parsed.add("close", "}", opening.id)
            return
        label_end = self.markdown.helpers.parseLinkLabel(state, start, False)  # noqa: FBT003
        closing = state.src[label_end:end]
        if mark := _mark_kind(state.src[start + 1 : label_end], closing, text_of(parsed.parts)):
            parsed.add(mark, state.src[start:end])
            return
        if closing in ("]", "][]"):  # the reference is the label, which changes
            closing = f"][{state.src[start + 1 : label_end]}]"
        opening = parsed.add("open", "[")
        self._range(state, start + 1, label_end, parsed)
        parsed.add("close", closing, opening.id)

    def _image(self, state: Any, start: int, end: int, parsed: _Parsed) -> None:
        source = state.src[start:end]
        tag = parsed.add("object", source)
        label_end = self.markdown.helpers.parseLinkLabel(state, start + 1, False)  # noqa: FBT003
        alt, after = state.src[start + 2 : label_end], state.src[label_end:end]
        if has_letters(alt) and after not in ("]", "][]"):
            inner = self.parse([alt])
            shown = (inner.sources[it] if isinstance(it, Tag) and it.kind == "object" else it for it in inner.parts)
            plain = text_of(shown) if re.search(r"[\\*&]", alt) else alt
            parsed.images.append(_Image(tag, "![", plain, after))

    def words(self, parts: Sequence[InlinePart], sources: dict[Tag, str], *, also_escaped: str) -> Iterator[str]:
        """Yield the words of a text as Markdown, so that lines can be broken between them.

        Args:
            parts: the text's strings, which are escaped, and tags.
            sources: the Markdown of each tag.
            also_escaped: further signs to escape, such as the vertical bar in the cell of a table.

        Yields:
            A word with the tags in it; the space before a word is its first character.
        """
        word = ""
        for part in parts:
            if isinstance(part, Tag):
                word += _tag_source(part, parts, sources[part])
                continue
            escaped = "".join(f"\\{each}" if each in also_escaped else each for each in self.escape(part))
            first, *others = re.split(r"(?=[ \n])", escaped)
            word += first
            for other in others:
                yield word
                word = other
        yield word

    def escape(self, text: str) -> str:
        """Return a text with backslashes before characters that would be Markdown, so that it is shown as it is."""
        references = self.env.get("references", {})

        def bracket(match: re.Match[str]) -> str:
            is_text = (
                match[1] is not None and match[2] not in ("(", "[", ":") and match[1].strip().upper() not in references
            )
            return match[0] if is_text else re.sub(r"[\[\]]", r"\\\g<0>", match[0])

        text = re.sub(r"`|\\(?![^\W_])", r"\\\g<0>", text)
        text = re.sub(r"(?<!\s)\*|\*(?!\s)|(?<!\w)_|_(?!\w)|~(?=~|\Z)|(?<=~)~|\A~", r"\\\g<0>", text)
        text = re.sub(r"<(?=[A-Za-z/!?])|&(?=#?\w+;)", r"\\\g<0>", text)
        return re.sub(r"\[([^\[\]]*)\](?=(.?))|[\[\]]", bracket, text)


def _tag_source(tag: Tag, parts: Sequence[InlinePart], source: str) -> str:
    """Return the Markdown of a tag; emphasis by `_` that would start or end inside a word is written with `*`.

    Args:
        tag: the tag.
        parts: the strings and tags of the text that contains it.
        source: the Markdown of the tag in the source.
    """
    ends = (Tag("open", tag.id), Tag("close", tag.id))
    is_inside = source != "" and not source.strip("_") and any(_outer_letter(parts, end) for end in ends)
    return "*" * len(source) if is_inside else source


def _outer_letter(parts: Sequence[InlinePart], tag: Tag) -> bool:
    """Return whether a letter or digit touches a start tag from the left, or an end tag from the right.

    The result is False if `parts`, the strings and tags of the text, do not contain the tag.
    """
    if tag not in parts:
        return False
    index = parts.index(tag)
    text = text_of(parts[:index] if tag.kind == "open" else parts[index + 1 :])
    return (text[-1:] if tag.kind == "open" else text[:1]).isalnum()


def _line_break(content: str, position: int, parsed: _Parsed) -> int:
    """Append the line break at a position of a Markdown block to `parsed`.

    A hard line break (after two spaces) becomes a tag. Any other line break becomes a space, or "" after a soft hyphen
    or in a script without spaces.

    Returns:
        The position after the line break and after the indentation of the next line.
    """
    before = parsed.parts[-1] if parsed.parts and isinstance(parsed.parts[-1], str) else ""
    following = re.compile(r"\n[ \t]*").match(content, position)
    end = following.end() if following else position + 1
    if before.endswith("  "):
        parsed.parts[-1] = before.rstrip(" ")
        parsed.breaks.append(parsed.add("break", "  \n"))
        return end
    if before:
        parsed.parts[-1] = before.rstrip(" ")
    parsed.parts.append(line_joint(before.rstrip(), content[end : end + 1]))
    return end


def _pair_emphasis(delimiters: list[_Delimiters], parsed: _Parsed) -> None:
    """Pair the sequences of `*`, `_` and `~` in a Markdown block by CommonMark's rules, and insert emphasis tags.

    Args:
        delimiters: the sequences, in order. Characters without a partner become text.
        parsed: the block's strings and tags, which are changed.
    """
    openers: list[_Delimiters] = []
    for closer in delimiters:
        while closer.can_close and closer.left:
            opener = next((each for each in reversed(openers) if _fits(each, closer)), None)
            if opener is None:
                break
            length = 2 if min(opener.left, closer.left) >= 2 else 1
            number = len(parsed.sources)
            for tag, owner in ((Tag("open", number), opener.opens), (Tag("close", number), closer.closes)):
                parsed.sources[tag] = closer.character * length
                owner.append(tag)
            opener.left -= length
            closer.left -= length
            del openers[openers.index(opener) + 1 :]
            if not opener.left:
                openers.remove(opener)
        if closer.can_open and closer.left:
            openers.append(closer)
    for run in reversed(delimiters):
        parsed.parts[run.position : run.position + 1] = [*run.closes, run.character * run.left, *reversed(run.opens)]


def _fits(opener: _Delimiters, closer: _Delimiters) -> bool:
    if opener.character != closer.character:
        return False
    if opener.character == "~":
        return opener.left >= 2 <= closer.left
    is_both = opener.can_close or closer.can_open
    return not (is_both and (opener.length + closer.length) % 3 == 0 and (opener.length % 3 or closer.length % 3))


def _pair_html(parsed: _Parsed) -> None:
    """Pair the inline HTML tags of a Markdown block, in place.

    Each pair becomes a start tag and an end tag. A code element and a raised number become one tag with their content.
    Tags without a partner stay single tags, and so do pairs that cross another pair.
    """
    opened: list[tuple[int, str]] = []
    for index, part in enumerate(parsed.parts):
        match = _INLINE_TAG.fullmatch(parsed.sources[part]) if isinstance(part, Tag) and part.kind == "empty" else None
        if match is None or match["empty"] or _VOID.fullmatch(match["name"]):
            continue
        if not match["end"]:
            opened.append((index, match["name"].lower()))
            continue
        while opened and opened[-1][1] != match["name"].lower():
            opened.pop()
        if opened:
            start = opened.pop()[0]
            if _is_balanced(parsed.parts[start + 1 : index]) and not _join_number(parsed, start, index):
                _make_pair(parsed, start, index, is_code=_CODE.fullmatch(match["name"]) is not None)
    parsed.parts = [part for part in parsed.parts if part != ""]


_RAISED = re.compile("su[bp]", re.IGNORECASE)
_FORMULA = re.compile(r"[A-Za-z0-9]+<su[bp][\s>].*[A-Za-z0-9]", re.IGNORECASE | re.DOTALL)  # such as C<sub>6</sub>H


def _mark_kind(label: str, closing: str, before: str) -> Literal["empty", "object"] | None:
    """Return the kind of tag for a link in Markdown whose label is a number or a sign, such as `[1](#n1)`.

    Args:
        label: the link's label.
        closing: the link's source after the label.
        before: the text before the link.

    Returns:
        `empty` if the link is the mark of a note; `object` if the link stands for a word of the sentence; None for any
        other link.
    """
    text = re.sub(r"\\(?=[\[\]()*#])", "", label).strip()
    if closing.startswith("](#") and is_after_word(before) and text and not has_letters(text):
        return "empty"
    if not is_note_mark(text, is_link=True):
        return None
    return "object" if is_mark_a_word(before) else "empty"


def _join_number(parsed: _Parsed, start: int, end: int) -> bool:
    """Replace an HTML element in Markdown by one tag if it is a raised or lowered number, as in H<sub>2</sub>O.

    The tag covers the whole word in two cases: the element is inside a word, or it is a subscript at the end of one.

    Args:
        parsed: the block's strings and tags, which are changed.
        start: the index of the element's start tag in `parsed.parts`.
        end: the index of the element's end tag.

    Returns:
        True if the element was replaced; False for any other element, which stays as it is.
    """
    inner = parsed.parts[start : end + 1]
    name = _INLINE_TAG.match(parsed.sources[inner[0]]) if isinstance(inner[0], Tag) else None
    tags = [part for part in inner if isinstance(part, Tag)]
    text = text_of(inner)
    is_raised = name is not None and any(_RAISED.match(parsed.sources[tag], 1) for tag in tags)
    has_mark = any(parsed.sources[tag].startswith("[") for tag in tags[1:-1])
    if not is_raised or not (text.strip() or has_mark) or has_letters(text):
        return False
    source = "".join(part if isinstance(part, str) else parsed.sources[part] for part in inner)
    previous = next((index for index in range(start - 1, -1, -1) if parsed.parts[index] != ""), start)
    before, after = parsed.parts[previous], next(iter(parsed.parts[end + 1 : end + 2]), "")
    beside = takewhile(lambda part: isinstance(part, str), parsed.parts[max(0, previous - 4) : start][::-1])
    part = formula_part("".join([str(part) for part in beside][::-1]), at_end=True)  # of several strings with entities
    first = part if isinstance(before, str) and previous < start and before.endswith(part) else ""
    last = formula_part(after) if isinstance(after, str) else ""
    is_formula = isinstance(before, Tag) and _FORMULA.fullmatch(parsed.sources[before]) is not None
    parsed.parts[start : end + 1] = [""] * (end + 1 - start)
    is_sub = any(parsed.sources[tag].lower().startswith("<sub") for tag in tags)
    is_in_word = is_formula or bool(first and (last or is_sub))
    if is_in_word:
        source = (parsed.sources[before] if isinstance(before, Tag) else first) + source + last
        parsed.parts[previous] = before[: len(before) - len(first)] if isinstance(before, str) else ""
        parsed.parts[end + 1 : end + 2] = [after[len(last) :]] if isinstance(after, str) else [after]
    parsed.parts[start] = tag = Tag("object" if is_in_word else "empty", tags[0].id)
    parsed.sources[tag] = source
    return True


def _is_balanced(parts: Sequence[InlinePart]) -> bool:
    tags = [part for part in parts if isinstance(part, Tag)]
    return {tag.id for tag in tags if tag.kind == "open"} == {tag.id for tag in tags if tag.kind == "close"}


def _make_pair(parsed: _Parsed, start: int, end: int, *, is_code: bool) -> None:
    opening, closing = parsed.parts[start], parsed.parts[end]
    assert isinstance(opening, Tag)
    assert isinstance(closing, Tag)
    if is_code:
        inner = (part if isinstance(part, str) else parsed.sources[part] for part in parsed.parts[start : end + 1])
        parsed.parts[start] = tag = Tag("object", opening.id)
        parsed.sources[tag] = "".join(inner)
        parsed.parts[start + 1 : end + 1] = [""] * (end - start)
        return
    for index, tag, old in ((start, Tag("open", opening.id), opening), (end, Tag("close", opening.id), closing)):
        parsed.parts[index] = tag
        parsed.sources[tag] = parsed.sources.pop(old)
        parsed.sources.setdefault(Tag("empty", old.id), "")  # keeps the numbers of later tags unique


# --- writing ---

_EMPHASIS = re.compile(r"[*_]+|~~")


def _settled(parts: Sequence[InlinePart], sources: dict[Tag, str]) -> list[InlinePart]:
    """Return a translation's strings and tags as a list, with emphasis that Markdown can express.

    Emphasis without content is removed. Spaces at the inner ends of emphasis move outside. At an end with a letter or
    digit directly outside of it, punctuation moves outside too.

    Args:
        parts: the strings and tags.
        sources: the Markdown of each tag, by which emphasis is recognized.
    """
    settled = list(parts)
    for tag in [part for part in parts if isinstance(part, Tag) and part.kind == "open"]:
        if not _EMPHASIS.fullmatch(sources[tag]):
            continue
        closing = Tag("close", tag.id)
        start, end = settled.index(tag), settled.index(closing)
        inner = settled[start + 1 : end]
        if not any(isinstance(part, Tag) or part.strip() for part in inner):
            settled[start : end + 1] = inner
            continue
        before, after = text_of(settled[:start])[-1:], text_of(settled[end + 1 :])[:1]
        if isinstance(inner[-1], str):
            kept = inner[-1].rstrip() if not after.isalnum() else re.sub(r"(?<![\W_])[\W_]++\Z", "", inner[-1])
            if kept or not inner[-1].strip():
                moved = inner[-1][len(kept) :]
                settled[end - 1 : end + 1] = [kept, closing, moved]
        if isinstance(inner[0], str) and len(inner) >= 1:
            text = str(settled[start + 1])
            kept = text.lstrip() if not before.isalnum() else re.sub(r"\A[\W_]+", "", text)
            if kept or not text.strip():
                moved = text[: len(text) - len(kept)]
                settled[start : start + 2] = [moved, tag, kept]
    return [part for part in settled if part]


_LINE_START = re.compile(r"\s*(?:[-+*>#=|:]|\d{1,9}[.)](?=\s|\Z)|~~~|```)")


def _wrapped(words: Sequence[str], width: int, between: str, *, is_paragraph: bool) -> str:
    """Join words of Markdown to a text with lines of at most `width` columns.

    A line is not broken before a word that Markdown would take for the start of another block.

    Args:
        words: the words; the space before a word is its first character.
        width: maximum width of a line in columns; 0: one line.
        between: what stands between two lines: a line break and the prefix of a line, such as `> `.
        is_paragraph: escape the start of the text if Markdown would take it for another kind of block.
    """
    text = _escaped_start(words[0], is_alone=len(words) == 1) if is_paragraph and words else "".join(words[:1])
    column = columns_of(text)
    for word in words[1:]:
        start = word.lstrip()
        may_start = start and not _LINE_START.match(start) and not is_unspaced_or_punctuation(start[:1])
        if not may_start or not width or column + columns_of(word) <= width:
            text += word
            column += columns_of(word)
        else:
            text += between + start
            column = columns_of(start)
        if "\n" in word:
            column = columns_of(word.rpartition("\n")[2])
    first, *others = text.split(between) if between else [text]
    return between.join([first, *(_escaped_start(line, is_alone=False) for line in others)])


_BLOCK_START = re.compile(r"[-+*](?=\s|\Z)|#{1,6}(?=\s|\Z)|>|=+\s*\Z|-{2,}\s*\Z|~~~|:?-+:?\s*\|")
_NUMBER_START = re.compile(r"(\d{1,9})([.)])(?=\s|\Z)")


def _escaped_start(text: str, *, is_alone: bool) -> str:
    """Return a line of a paragraph, with a backslash if it would start another block, such as a list item.

    Args:
        text: the line, or its first word.
        is_alone: whether the line ends after `text`. Otherwise a space is assumed to follow.
    """
    number = _NUMBER_START.match(text + ("" if is_alone else " "))
    if number is not None:
        return f"{number[1]}\\{text[number.end(1) :]}"
    return f"\\{text}" if _BLOCK_START.match(text + ("" if is_alone else " ")) else text
