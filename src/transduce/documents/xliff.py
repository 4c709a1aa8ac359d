"""Read XLIFF files, versions 1.2 and 2, and write translations into them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Literal, NamedTuple

from transduce.documents.formats import Source
from transduce.documents.limits import check_xml, xml_encoding, xml_text
from transduce.documents.markup_blocks import with_paired_codes
from transduce.documents.markup_tokens import Kind, Token, code_kind, is_untranslated
from transduce.documents.units import (
    Document,
    DocumentSettings,
    Edit,
    InlinePart,
    InlineText,
    Tag,
    TextFile,
    has_letters,
)
from transduce.errors import TransduceError

_XML_TOKEN = re.compile(
    r"<!--.*?-->|<!\[CDATA\[(?P<data>.*?)\]\]>|<\?.*?\?>"
    r"|<(?P<end>/?)(?P<name>[^\s<>/!?]+)(?P<attributes>(?:[^<>\"']|\"[^\"]*\"|'[^']*')*?)(?P<empty>/?)>",
    re.DOTALL,
)
_XML_ATTRIBUTE = re.compile(r"""(?P<name>[^\s=]+)\s*=\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)')""")
_PAIRS = {"g", "pc", "mrk"}
_CODES = {"x", "ph", "it"}
_UNTRANSLATED_STATES = {"new", "needs-translation", "initial"}
"""States of a `target` (XLIFF 1.2) or a `segment` (XLIFF 2) that mean that the translation is still to be made."""


@dataclass
class _Element:
    """An element of an XLIFF file whose end has not been read yet, with what was found in it so far."""

    name: str
    attributes: dict[str, str]
    start: int
    """The offset of the element's start tag in the file."""
    inner: int
    """The offset after the element's start tag in the file."""
    is_untranslated: bool
    """True if the element or one around it says `translate="no"`."""
    preserves_space: bool
    """True if `xml:space="preserve"` applies to the element."""
    source: tuple[int, int] | None = None
    """Start and end of the content of the element's `source` child; None if no such child was read."""
    segments: tuple[int, int] | None = None
    """Start and end of the content of the element's `seg-source` child, the source divided into segments; None without
    one.
    """
    source_end: int = 0
    """The offset after the `source` child, or after the `seg-source` element that follows; 0: neither was read."""
    target: tuple[int, int, str] | None = None
    """Start and end of the element's `target` child, and its start tag as text; None if no such child was read."""
    translation: tuple[int, int] | None = None
    """Start and end of the content of the `target` child if that is a finished translation; None otherwise."""


def _attributes(text: str) -> dict[str, str]:
    return {m["name"]: unescape(m["double"] or m["single"] or "") for m in _XML_ATTRIBUTE.finditer(text)}


def read_xliff(source: Source) -> Document:
    """Read an XLIFF file as a `Document`, whose units are the segments without a translation.

    With `overwrite`, the units are all segments. Segments without a letter or with `translate="no"` are left out.

    Translations are written as `target` elements. The target language is added where it is missing. If a segment lacks
    a translation but cannot get one, its unit stays as it is, and `Document.kept_units` lists the unit.

    Raises:
        TransduceError: the file is damaged or not XLIFF.
    """
    file = source.text_file(xml_encoding(source.content), is_markup=True)
    check_xml(file.text, "XLIFF")
    edits: list[Edit] = []
    kept: list[str] = []
    root: re.Match[str] | None = None
    opened: list[_Element] = []
    for match in _XML_TOKEN.finditer(file.text):
        name = (match["name"] or "").rpartition(":")[2]
        if not name:
            continue
        if root is None and not match["end"]:
            root = match
            if name != "xliff":
                raise TransduceError(f"The document should be XLIFF, but its root element is <{match['name']}>.")
        if match["end"]:
            edits += _close(file, opened, match, source.settings, kept)
        else:
            _open(opened, match, name)
            if match["empty"]:
                edits += _close(file, opened, match, source.settings, kept)
    languages = [] if root is None else list(_language_edits(file, root, source.settings.target_language))
    document = file.document(sorted([*edits, *languages], key=lambda edit: edit.start) if edits else [])
    return document._replace(kept_units=tuple(kept))


def _open(opened: list[_Element], match: re.Match[str], name: str) -> None:
    attributes = _attributes(match["attributes"])
    parent = opened[-1] if opened else None
    translate = attributes.get("translate")
    is_untranslated = translate == "no" or (translate is None and parent is not None and parent.is_untranslated)
    space = attributes.get("xml:space")
    preserves = space == "preserve" if space else parent is not None and parent.preserves_space
    opened.append(_Element(name, attributes, match.start(), match.end(), is_untranslated, preserves))


def _close(
    file: TextFile, opened: list[_Element], match: re.Match[str], settings: DocumentSettings, kept: list[str]
) -> Iterator[Edit]:
    """Close the innermost open element of an XLIFF file, and yield each `Edit` for a segment that is to be translated.

    A `source` or `target` element is recorded in the segment around it instead.

    Args:
        file: the XLIFF file.
        opened: the open elements, of which the last one is removed.
        match: the end tag, or the tag of an empty element.
        settings: the setting `overwrite`: also yield edits for segments that have a translation.
        kept: receives the id and source of a unit that stays as it is although a segment has no translation.
    """
    element = opened.pop()
    parent = opened[-1] if opened else None
    inner = (element.inner, max(element.inner, match.start()) if not match["empty"] else element.inner)
    if parent is not None and parent.name in ("trans-unit", "segment"):
        if element.name == "source":
            parent.source, parent.source_end = inner, match.end()
            parent.preserves_space = element.preserves_space
        elif element.name == "seg-source":
            parent.segments, parent.source_end = inner, match.end()
        elif element.name == "target":
            start_tag = file.text[element.start : element.inner]
            parent.target = (element.start, match.end(), start_tag)
            is_open = not _UNTRANSLATED_STATES.isdisjoint(
                each.attributes.get("state", "") for each in (element, parent)
            )
            parent.translation = inner if not is_open and _has_text(file.text[slice(*inner)]) else None
    if element.name not in ("trans-unit", "segment") or element.source is None or element.is_untranslated:
        return
    edit = _edit_segment(file, element, overwrite=settings.overwrite)
    if edit is None:
        text = unescape(_XML_TOKEN.sub("", file.text[slice(*element.source)]))
        kept.append(f"{element.attributes.get('id', '')}: {' '.join(text.split())}")
    elif edit.units:
        yield from _state_edits(file, element)
        yield edit


def _has_text(content: str) -> bool:
    return bool(_XML_TOKEN.sub(lambda match: match["data"] or "", content).strip())


def _state_edits(file: TextFile, element: _Element) -> Iterator[Edit]:
    """Yield the `Edit` of the attribute by which a new translation counts as unreviewed.

    Nothing is yielded if the attribute needs no change. In XLIFF 2, the state of a segment becomes `translated`. In
    XLIFF 1.2, the attribute `approved` of a unit becomes `no`.
    """
    expression, new = (r"state\s*=\s*[\"'](initial|reviewed|final)", "translated")
    if element.name == "trans-unit":
        expression, new = (r"approved\s*=\s*[\"'](yes)", "no")
    state = re.search(rf"\s{expression}[\"']", file.text[element.start : element.inner])
    if state is not None:
        start, end = (element.start + position for position in state.span(1))
        yield Edit(start, end, [], lambda _: new, is_in_place=False)


_MAX_INDENTATION = 400  # columns


def _edit_segment(file: TextFile, element: _Element, *, overwrite: bool) -> Edit | None:
    """Return the `Edit` that writes the translation of an XLIFF segment's source into its `target`.

    A missing `target` is added after the source, with the same indentation. A state such as `new` or `final` in the
    target becomes `needs-review-translation`.

    A target with a translation stays as it is without `overwrite`. If it is divided into segments, only the missing
    translations are added. The result is None if this is not possible.

    Args:
        file: the XLIFF file.
        element: the `trans-unit` or `segment` element.
        overwrite: replace a translation that the target has.
    """
    assert element.source is not None
    content = file.text[slice(*(element.segments or element.source))]
    segments = _segments(content) if element.segments else []
    if element.translation is not None and not overwrite:
        return _edit_open_segments(file, element, content, segments)
    spans = [(each.inner, each.inner_end) for each in segments]
    if not spans:
        content = file.text[slice(*element.source)]
        spans = [(0, len(content))]
    texts = [(*span, _inline_text(content[slice(*span)], element)) for span in spans]
    texts = [each for each in texts if has_letters(each[2].text.plain)]
    line_start = file.text.rfind("\n", max(0, element.source[0] - _MAX_INDENTATION), element.source[0]) + 1
    indentation = re.match(r"[ \t]*(?=<)", file.text[line_start : element.source[0]]) if line_start else None
    between = "" if indentation is None else file.newline + indentation[0]
    prefix = re.match(r"<((?:[^\s<>:/]+:)?)source", file.text[file.text.rfind("<", 0, element.source[0]) :])
    name = f"{prefix[1] if prefix else ''}target"
    if element.target is None:
        start, end, start_tag = element.source_end, element.source_end, f"{between}<{name}>"
    else:
        start, end, start_tag = element.target
        start_tag = re.sub(r"(?<!\s)\s*+/>$", ">", start_tag)
        start_tag = re.sub(
            r"""(\sstate\s*=\s*["'])(?:new|needs-translation|translated|signed-off|final)(?=["'])""",
            r"\1needs-review-translation",
            start_tag,
        )

    def render(translations: Sequence[str]) -> str:
        written, position = start_tag, 0
        for (first, last, inline), translation in zip(texts, translations, strict=True):
            written += content[position:first] + inline.written(translation)
            position = last
        return f"{written}{content[position:]}</{name}>"

    return Edit(start, end, [inline.text.unit for *_, inline in texts], render, is_in_place=False)


class _InlineText(NamedTuple):
    """A text of an XLIFF file with inline tags, and a dict from each tag to its source in the file."""

    text: InlineText
    sources: dict[Tag, str]

    def written(self, translation: str) -> str:
        """Return a translation of the text as the content of an XML element."""
        return "".join(
            escape(xml_text(part), quote=False) if isinstance(part, str) else self.sources[part]
            for part in self.text.translated(translation)
        )


def _inline_text(content: str, element: _Element) -> _InlineText:
    parts, sources = _inline_parts(content, preserves_space=element.preserves_space)
    return _InlineText(InlineText(parts), sources)


class _XliffSegment(NamedTuple):
    """A segment (`mrk` of the type `seg`) in a `seg-source` or `target` element, as offsets in its content."""

    id: str
    """The attribute `mid`, which is equal in a segment of the source and that of its translation."""
    start: int
    inner: int
    """The offset after the segment's start tag."""
    inner_end: int
    end: int
    tag: str
    """The segment's start tag as text."""


def _segments(content: str) -> list[_XliffSegment]:
    """Return a list of the segments (`mrk` of the type `seg`) in the content of a `seg-source` or `target` element."""
    segments: list[_XliffSegment] = []
    depth, opening = 0, None  # elements that are open, counted from the start tag of a segment
    for match in _XML_TOKEN.finditer(content):
        if not match["name"]:
            continue
        if match["end"]:
            depth -= depth > 0
        elif depth or _attributes(match["attributes"]).get("mtype") == "seg":
            opening = opening or match
            depth += not match["empty"]
        if opening is not None and not depth:
            inner_end = max(opening.end(), match.start())
            id = _attributes(opening["attributes"]).get("mid", "")
            segments.append(_XliffSegment(id, opening.start(), opening.end(), inner_end, match.end(), opening[0]))
            opening = None
    return segments


def _edit_open_segments(
    file: TextFile, element: _Element, source: str, segments: Sequence[_XliffSegment]
) -> Edit | None:
    """Return the `Edit` that adds missing translations to a `target` with translated segments.

    Segments of source and target are matched by their `mid`. The result is an edit without units, which changes
    nothing, in three cases:

    * no segment matches;
    * source segments share a `mid`;
    * the target lacks a segment, and the text between segments is not only white space, so that the place of the
      segment among inline tags is not known.

    In these cases, the result is None instead if the target has segments and fewer translated ones than the source has
    segments with letters.

    Args:
        file: the XLIFF file.
        element: the `trans-unit` element.
        source: the content of its `seg-source` element.
        segments: the segments in `source`.
    """
    assert element.translation is not None
    start, end = element.translation
    target = file.text[start:end]
    translated = _segments(target)
    known = {each.id: each for each in translated}
    ids = {each.id for each in segments}
    is_divided = len(ids) == len(segments) and not known.keys().isdisjoint(ids)
    if not ids <= known.keys():
        is_divided = is_divided and not (_around(segments, source) + _around(translated, target)).strip()
    if not is_divided and translated:
        done = sum(_has_text(target[each.inner : each.inner_end]) for each in translated)
        texts = (_inline_text(source[each.inner : each.inner_end], element).text.plain for each in segments)
        if done < sum(map(has_letters, texts)):
            return None
    additions: list[_Addition] = []
    position = source_end = 0
    for each in segments if is_divided else ():
        found, content = known.get(each.id), source[each.inner : each.inner_end]
        first, last, tag = (position, position, each.tag) if found is None else (found.start, found.end, found.tag)
        if found is None or not _has_text(target[found.inner : found.inner_end]):
            before = source[source_end : each.start] if found is None else ""
            inline = _inline_text(content, element)
            text = inline if has_letters(inline.text.plain) else content
            opening = before + re.sub(r"(?<!\s)\s*+/>\Z", ">", tag)
            additions.append(_Addition(first, last, opening, text, f"</{tag[1:].split()[0]}>"))
        position, source_end = last, each.end
    additions.sort(key=lambda each: each.start)  # a translator may have changed the order of the segments

    def render(translations: Sequence[str]) -> str:
        waiting, written, done = iter(translations), "", 0
        for each in additions:
            text = each.text if isinstance(each.text, str) else each.text.written(next(waiting))
            written += target[done : each.start] + each.opening + text + each.closing
            done = each.end
        return written + target[done:]

    units = [each.text.text.unit for each in additions if not isinstance(each.text, str)]
    return Edit(start, end, units, render, is_in_place=False)


def _around(segments: Sequence[_XliffSegment], content: str) -> str:
    """Return the content of an element without its segments: the text before, between and after them, joined."""
    starts, ends = [each.start for each in segments], [each.end for each in segments]
    return "".join(content[end:start] for end, start in zip([0, *ends], [*starts, len(content)], strict=True))


class _Addition(NamedTuple):
    """A segment to write into a `target` between two positions in its content, with the tags around the text."""

    start: int
    end: int
    opening: str
    text: _InlineText | str
    """The text to translate, or a text without a letter as it is in the source."""
    closing: str


def _inline_parts(text: str, *, preserves_space: bool) -> tuple[list[InlinePart], dict[Tag, str]]:
    """Divide the content of an XLIFF `source` element into strings and inline tags.

    An element that contains codes of the original format, not text, is a single tag.

    Args:
        text: the content, as it is in the file.
        preserves_space: keep line breaks in the text; without it each becomes a space.

    Returns:
        A list of the strings and tags in order, and a dict from each tag to its source in the file.
    """
    parts: list[InlinePart] = []
    sources: dict[Tag, str] = {}
    position = inner = number = 0
    opened: list[int] = []
    name, attributes = "", ""  # of the element that contains no text to translate
    depth = 0  # of elements that contain no text to translate

    def add_text(part: str) -> None:
        part = unescape(part)
        parts.append(part if preserves_space else re.sub(r"(?<!\s)[^\S\r\n]*+[\r\n]\s*", " ", part))

    def add_tag(tag: Tag, source: str) -> None:
        parts.append(tag)
        sources[tag] = source

    for match in _XML_TOKEN.finditer(text):
        if depth:
            depth += -1 if match["end"] else int(bool(match["name"]) and not match["empty"])
            if not depth:
                add_tag(Tag(_kind(name, attributes, text[inner : match.start()]), number), text[position : match.end()])
                number, position = number + 1, match.end()
            continue
        add_text(text[position : match.start()])
        position = match.end()
        name, attributes = (match["name"] or "").rpartition(":")[2], match["attributes"]
        if not name:
            parts.append(match["data"]) if match["data"] is not None else add_tag(Tag("empty", number), match[0])
        elif match["end"]:
            add_tag(Tag("close", opened.pop()), match[0])
        elif match["empty"]:
            add_tag(Tag(_kind(name, attributes), number), match[0])
        elif name in _PAIRS and not is_untranslated(attributes):
            opened.append(number)
            add_tag(Tag("open", number), match[0])
        else:
            depth, position, inner, number = 1, match.start(), match.end(), number - 1
        number += 1
    add_text(text[position:])
    return _with_pairs(parts, sources), sources


def _with_pairs(parts: Sequence[InlinePart], sources: dict[Tag, str]) -> list[InlinePart]:
    """Return an XLIFF text's strings and tags as a list, with codes in pairs (as `bx`, `ex`) as start and end tags.

    Args:
        parts: the strings and tags of the text.
        sources: each tag's source in the file; the start and end tags that replace codes are added.
    """
    kinds: dict[str, Kind] = {"open": "start", "close": "end"}
    tokens = []
    for part in parts:
        source = part if isinstance(part, str) else sources[part]
        name = re.match(r"<(?:[\w.-]+:)?(\w+)", source)
        kind: Kind = "text" if isinstance(part, str) else kinds.get(part.kind, "empty")
        number = part.id if isinstance(part, Tag) and kind != "empty" else -1
        tokens.append(Token(kind, source, name[1] if name and kind == "empty" else "", number))
    paired: list[InlinePart] = []
    numbers: dict[int, int] = {}  # numbers of the start tags, by the numbers of the new pairs
    for part, token, new in zip(parts, tokens, with_paired_codes(tokens), strict=True):
        if isinstance(part, str) or new.kind == token.kind:
            paired.append(part)
            continue
        number = numbers.setdefault(new.pair, part.id)
        tag = Tag("open" if new.kind == "start" else "close", number)
        sources[tag] = token.source
        paired.append(tag)
    return paired


def _kind(name: str, attributes: str, content: str = "") -> Literal["empty", "break", "object"]:
    """Return the kind of tag for an XLIFF element without text to translate, by its name, attributes and content.

    The kind is `object` for placeholders that stand for a word and for protected spans, `break` for line breaks, and
    `empty` for codes that only format.
    """
    if name not in _CODES:
        return "object" if name in ("mrk", "g", "pc", "cp") else "empty"
    kind = code_kind(name, attributes, content)
    return "object" if kind == "protected" else kind


def _language_edits(file: TextFile, root: re.Match[str], language: str | None) -> Iterator[Edit]:
    """Yield each `Edit` that adds the target language to an XLIFF file where it is missing.

    Args:
        file: the XLIFF file.
        root: the start tag of its root element, which has the language in XLIFF 2; in 1.2 each `file` element has it.
        language: code of the target language; None yields no edits.
    """
    if language is None:
        return
    is_2 = "srcLang" in root["attributes"]
    name = "trgLang" if is_2 else "target-language"
    tags = (
        [root]
        if is_2
        else [each for each in _XML_TOKEN.finditer(file.text) if each["name"] == "file" and not each["end"]]
    )
    for tag in tags:
        if name not in _attributes(tag["attributes"]):
            position = tag.end("attributes")
            position -= len(tag["attributes"]) - len(tag["attributes"].rstrip())
            yield Edit(position, position, [], lambda _: f' {name}="{escape(language)}"', is_in_place=False)
