"""Read Office Open XML files (Word, PowerPoint, Excel), and write them with translations.

`opendocument.py` builds on the classes of this module.
"""

import copy
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from html import unescape
from itertools import islice
from typing import Any, NamedTuple

from typing_extensions import override

from transduce.documents.formats import Source
from transduce.documents.limits import Archive, escaped, parse_xml, unescaped, write_xml, xml_text
from transduce.documents.units import (
    Document,
    InlinePart,
    InlineText,
    Tag,
    Unit,
    find_code_styles,
    find_nested_ranges,
    has_letters,
    is_code_style,
    joined_parts,
    plain_text,
    split_at,
)
from transduce.text.languages import is_sign
from transduce.text.protected import find_protected

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_S = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_C = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_THREADS = "{http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments}"
_SPACE = "{http://www.w3.org/XML/1998/namespace}space"


def names_in(namespace: str, names: str) -> frozenset[str]:
    """Return a set of the qualified names of XML elements in a namespace, from a text of names separated by spaces."""
    return frozenset(namespace + name for name in names.split())


class _Dialect(NamedTuple):
    """The XML names that an Office format uses for paragraphs, runs (spans of formatted text) and their parts."""

    paragraph: str
    run: str
    run_properties: str
    text: str
    kept: frozenset[str]
    """Names of children of a paragraph that stay where they are: the properties of the paragraph."""
    containers: frozenset[str] = frozenset()
    """Names of children of a paragraph that contain runs, such as links."""
    holders: frozenset[str] = frozenset()
    """Names of elements inside a container that hold the container's runs."""
    separators: frozenset[str] = frozenset()
    """Names of elements that end a text: tabs."""
    breaks: frozenset[str] = frozenset()
    """Names of line breaks, which end a text unless the sentence goes on after them."""
    ignored: frozenset[str] = frozenset()
    """Names of elements that are dropped because a program adds them again by itself, such as marks of spelling
    errors.
    """
    objects: frozenset[str] = frozenset()
    """Names of elements that stand for content which is not translated, such as formulas."""
    has_escapes: bool = False
    """True if texts have escapes such as `_x000D_` for characters that XML cannot store."""
    code_styles: frozenset[str] = frozenset()
    """Identifiers of a Word file's styles for code, in addition to those that are recognized by the identifier
    itself.
    """


_WORD = _Dialect(
    f"{_W}p",
    f"{_W}r",
    f"{_W}rPr",
    f"{_W}t",
    names_in(_W, "pPr"),
    names_in(_W, "hyperlink ins moveTo smartTag customXml sdt fldSimple dir bdo"),
    names_in(_W, "sdtContent"),
    names_in(_W, "tab ptab"),
    names_in(_W, "br cr"),
    names_in(_W, "proofErr lastRenderedPageBreak softHyphen"),
    names_in(_W, "sym ruby pgNum fldSimple sdt") | names_in(_M, "oMath oMathPara"),
)
_DRAWING = _Dialect(f"{_A}p", f"{_A}r", f"{_A}rPr", f"{_A}t", names_in(_A, "pPr endParaRPr"))
_DRAWING = _DRAWING._replace(breaks=names_in(_A, "br"), objects=names_in(_A, "fld"))
_SHEET = _Dialect(f"{_S}si", f"{_S}r", f"{_S}rPr", f"{_S}t", names_in(_S, "rPh phoneticPr"), has_escapes=True)
_THREAD = _SHEET._replace(paragraph=f"{_THREADS}threadedComment", text=f"{_THREADS}text")
_REMARK = _SHEET._replace(paragraph=f"{_P}cm", text=f"{_P}text", has_escapes=False)
"""The dialect (`_Dialect`) of PowerPoint's comments before 2021; newer ones have the paragraphs of slides."""
_CHART_LABEL = _Dialect(f"{_C}pt", f"{_S}r", f"{_S}rPr", f"{_C}v", frozenset(), has_escapes=True)
_CHART_LABELS = (_CHART_LABEL, _CHART_LABEL._replace(paragraph=f"{_C}tx"))
"""The dialects (`_Dialect`) for names of categories and data series that a chart stores beside the cells they come
from.
"""
_UNIMPORTANT = names_in(_W, "lang noProof")

# --- reading a paragraph ---


class _Leaf(NamedTuple):
    """An XML element that is copied to the translation, and the run (span of formatted text) that contains it.

    `run` is None for an element outside of runs.
    """

    run: Any
    element: Any


class _Container(NamedTuple):
    """An XML element that surrounds runs, such as a link, and the inner element that directly holds the runs."""

    element: Any
    holder: Any


class _Format(NamedTuple):
    """A formatting other than the usual one of the paragraph. A sample run (span of text) represents it."""

    run: Any


class _WordField(NamedTuple):
    """The elements before and after the text of a Word field that shows text to translate, such as a link."""

    start: list[_Leaf]
    end: list[_Leaf]


_Payload = list[_Leaf] | _Container | _Format | _WordField


class Paragraph:
    """A paragraph of an office document that is read as texts with inline tags and written back with translations."""

    element: Any
    texts: Sequence[InlineText | InlinePart]
    """A list of the texts (`InlineText`) that are translated by themselves, and of the tags between them, such as
    tabs.
    """
    range_ids: tuple[str, ...]
    """Names of XML attributes by which the start and the end of a range, such as a bookmark, are known to belong
    together.
    """

    @property
    def units(self) -> list[Unit]:
        """A list of the paragraph's texts to translate, as `Unit` with inline tags; only those with a letter."""
        return [text.unit for text in self.texts if isinstance(text, InlineText) and has_letters(text.plain)]

    def write(self, translations: Sequence[str]) -> None:
        """Replace the paragraph's texts by translations, one for each of `units`; formatted words stay formatted."""
        waiting = list(translations)
        parts: list[InlinePart] = []
        for text in self.texts:
            if not isinstance(text, InlineText):
                parts.append(text)
            elif has_letters(text.plain):
                parts += text.translated(waiting.pop(0))
            else:
                parts += text.parts
        self._rebuild(self._with_ordered_ranges(joined_parts(parts)))

    def _with_ordered_ranges(self, parts: list[InlinePart]) -> list[InlinePart]:
        """Return translated strings and tags as a list, with the start of each comment or other range before its end.

        Translation can exchange a start and an end; they are then swapped, in place.
        """
        ends: dict[Hashable, int] = {}
        for index, part in enumerate(parts):
            found = self._range_of(part) if isinstance(part, Tag) and part.kind == "empty" else None
            key, is_start = found or (None, True)
            if not is_start:
                ends[key] = index
            elif (end := ends.get(key)) is not None:
                parts[end], parts[index] = parts[index], parts[end]
        return parts

    def _range_of(self, tag: Tag) -> tuple[Hashable, bool] | None:
        """Return (key, is_start) for a tag that starts or ends a range, such as a comment; None for other tags.

        Both ends of a range have the same key.
        """
        element = self._element(tag)
        number = next(filter(None, map(element.get, self.range_ids)), None) if element is not None else None
        name = re.fullmatch("(.*?)-?([Ss]tart|[Ee]nd)", element.tag) if number else None
        return None if name is None else ((name[1], number), name[2].lower() == "start")

    def _element(self, tag: Tag) -> Any:
        """Return the single XML element that a tag without text stands for, or None if it stands for several."""
        raise NotImplementedError

    def _rebuild(self, parts: Sequence[InlinePart]) -> None:
        raise NotImplementedError


class _OpenXmlParagraph(Paragraph):
    """A paragraph of a Word, PowerPoint or Excel document, read as texts with inline tags."""

    range_ids = (f"{_W}id",)

    def __init__(self, element: Any, dialect: _Dialect) -> None:
        self.element = element
        self.dialect = dialect
        self.payloads: dict[int, _Payload] = {}
        self.base: Any = None
        """A run (span of text) with the formatting of most characters, whose text needs no tags; None: no runs."""
        atoms = _without_fields(list(self._atoms(element)))
        self._choose_base(atoms)
        separators: set[Tag] = set()
        parts = self._parts(atoms, separators)
        for start, end in find_nested_ranges(parts, self._range_of).items():
            self.payloads[start.id] = _WordField(self.payloads[start.id], self.payloads[end.id])  # type: ignore[arg-type]
            parts[parts.index(start)], parts[parts.index(end)] = Tag("open", start.id), Tag("close", start.id)
        self.texts = split_at(parts, separators)

    @property
    def is_kept(self) -> bool:
        """True if the paragraph is not translated: it has a Word style for code, or is a list or date to choose."""
        is_choice = any(map(_is_copied, self.element.iterancestors(f"{_W}sdt")))
        return is_choice or self._is_code_style(self.element, f"{_W}pPr/{_W}pStyle")

    def _is_code_style(self, parent: Any, path: str) -> bool:
        """Return whether the element at a path below an XML element names a Word style for code; False for None."""
        style = None if parent is None else parent.find(path)
        identifier = None if style is None else style.get(f"{_W}val")
        return is_code_style(identifier) or identifier in self.dialect.code_styles

    def _atoms(self, parent: Any) -> Iterator["_Atom"]:
        """Yield the content of a paragraph or container as triples (kind, run or container, text or element).

        The kinds are `text`, `leaf` and `code` (elements to copy), and the `open` and `close` of a container.
        """
        dialect = self.dialect
        for child in parent:
            if child.tag in dialect.kept or child.tag in dialect.ignored:
                continue
            if child.tag == dialect.run and self._is_code_style(self._run_properties(child), f"{_W}rStyle"):
                yield "code", None, [_Leaf(child, part) for part in child if part.tag != dialect.run_properties]
            elif child.tag == dialect.run and (base := self._ruby_base(child)) is not None:
                yield "open", child, base
                yield from self._atoms(base)
                yield "close", child, base
            elif child.tag == dialect.run:
                for part in child:
                    if part.tag == dialect.text:
                        yield "text", child, self._text(part)
                    elif part.tag == f"{_W}noBreakHyphen":
                        yield "text", child, "\u2011"
                    elif part.tag != dialect.run_properties and part.tag not in dialect.ignored:
                        yield "leaf", child, part
            elif child.tag == dialect.text:  # a cell without runs
                yield "text", None, self._text(child)
            elif child.tag in dialect.containers and not _is_copied(child):
                holder = next((each for each in child if each.tag in dialect.holders), child)
                yield "open", child, holder
                yield from self._atoms(holder)
                yield "close", child, holder
            else:
                yield "leaf", None, child

    def _ruby_base(self, run: Any) -> Any:
        """Return the element with the base text of a run's ruby (text with a pronunciation above it).

        The result is None if the run has no ruby, or has other content too.
        """
        parts = [part for part in run if part.tag not in (self.dialect.run_properties, *self.dialect.ignored)]
        return parts[0].find(f"{_W}rubyBase") if len(parts) == 1 and parts[0].tag == f"{_W}ruby" else None

    def _text(self, element: Any) -> str:
        """Return the text of an XML element, with Excel's escapes decoded, and line ends as spaces in Word.

        The result is "" for an element without text.
        """
        text = element.text or ""
        if self.dialect.has_escapes:
            return unescaped(text)
        return re.sub(r"(?<!\s)[^\S\n]*+\n\s*", " ", text) if element.tag == f"{_W}t" else text

    def _choose_base(self, atoms: Sequence["_Atom"]) -> None:
        """Store the formatting of most of the paragraph's characters, so that text with it needs no inline tags."""
        counts: Counter[bytes] = Counter()
        runs: dict[bytes, Any] = {}
        for kind, run, content in atoms:
            if kind == "text":
                key = self._format_key(run)
                counts[key] += len(content)
                runs.setdefault(key, run)
        self.base_key = max(counts, key=lambda key: counts[key], default=b"")
        self.base = runs.get(self.base_key)

    def _run_properties(self, run: Any) -> Any:
        """Return the properties element of a run (span of formatted text), or None if the run has none."""
        first = next(iter(run), None) if run is not None else None
        return first if first is not None and first.tag == self.dialect.run_properties else None

    def _format_key(self, run: Any) -> bytes:
        """Return bytes that are equal for runs (spans of formatted text) that look the same; b"" if unformatted."""
        properties = self._run_properties(run)
        if properties is None:
            return b""
        properties = copy.deepcopy(properties)
        for child in list(properties):
            child.attrib.pop(f"{_W}hint", None)
            if child.tag in _UNIMPORTANT or (child.tag == f"{_W}rFonts" and not child.attrib):
                properties.remove(child)
        for name in ("lang", "altLang", "dirty", "err", "noProof"):
            properties.attrib.pop(name, None)
        if not len(properties) and not properties.attrib:
            return b""
        from lxml import etree

        return bytes(etree.tostring(properties, method="c14n", exclusive=True))

    def _parts(self, atoms: Sequence["_Atom"], separators: set[Tag]) -> list[InlinePart]:
        """Return a paragraph's content as a list of strings and inline tags.

        Text with the paragraph's most frequent formatting gets no tags. What each tag stands for is stored in
        `payloads`.

        Args:
            atoms: the content as `_atoms` yields it.
            separators: a set to which the tags that end a text are added.
        """
        parts: list[InlinePart] = []
        opened: list[int] = []
        formatted: tuple[bytes, int] | None = None  # key and number of the open tag of formatting
        for index, (kind, run, content) in enumerate(atoms):
            key = self._format_key(run) if kind == "text" else b""
            if formatted is not None and (kind != "text" or key != formatted[0]):
                parts.append(Tag("close", formatted[1]))
                formatted = None
            if kind == "text":
                if key != self.base_key and formatted is None:
                    formatted = key, self._add(_Format(run))
                    parts.append(Tag("open", formatted[1]))
                parts.append(content)
            elif kind in ("open", "open field"):
                opened.append(self._add(_Container(run, content) if kind == "open" else content))
                parts.append(Tag("open", opened[-1]))
            elif kind in ("close", "close field"):
                parts.append(Tag("close", opened.pop()))
            else:
                leaves = [_Leaf(run, content)] if kind == "leaf" else content
                is_object = kind != "leaf" or content.tag in self.dialect.objects
                is_break = not is_object and content.tag in self.dialect.breaks
                tag = Tag("object" if is_object else "break" if is_break else "empty", self._add(leaves))
                parts.append(tag)
                if kind == "leaf" and self._ends_text(content, atoms, index):
                    separators.add(tag)
        return [*parts, *([Tag("close", formatted[1])] if formatted is not None else [])]

    def _add(self, payload: _Payload) -> int:
        self.payloads[len(self.payloads)] = payload
        return len(self.payloads) - 1

    def _ends_text(self, element: Any, atoms: Sequence["_Atom"], index: int) -> bool:
        """Return whether an element in a paragraph ends a text, so that the next one is translated separately.

        Tabs end a text, as do marks of a field that spans several paragraphs, and line breaks outside a sentence.
        """
        if element.tag in self.dialect.separators or element.tag == f"{_W}fldChar":
            return True
        if element.tag not in self.dialect.breaks:
            return False
        before, after = (
            "".join(content for kind, _, content in part if kind == "text")
            for part in (atoms[max(0, index - 3) : index], atoms[index + 1 : index + 4])
        )
        return bool(element.attrib) or not goes_on(before, after)

    # --- writing ---

    @override
    def _element(self, tag: Tag) -> Any:
        payload = self.payloads[tag.id]
        return payload[0].element if isinstance(payload, list) and len(payload) == 1 else None

    @override
    def _rebuild(self, parts: Sequence[InlinePart]) -> None:
        for control in self.element.iterancestors(f"{_W}sdt"):
            _remove_binding(control)
        kept = [child for child in self.element if child.tag in self.dialect.kept]
        for child in list(self.element):
            self.element.remove(child)
        start = [child for child in kept if not child.tag.endswith(("endParaRPr", "rPh", "phoneticPr"))]
        for child in start:
            self.element.append(child)
        holders, runs = [self.element], [self.base]
        for part in parts:
            if isinstance(part, str):
                self._append_text(holders[-1], runs[-1], part)
            else:
                self._append_tag(part, holders, runs)
        for child in kept:
            if child not in start:
                self.element.append(child)

    def _append_tag(self, tag: Tag, holders: list[Any], runs: list[Any]) -> None:
        """Append an inline tag of a translation to the paragraph's XML.

        A tag without text appends the XML elements that it stands for. The tag of a container, such as a link, opens or
        closes this container. The tag of a formatting, such as bold, starts or ends the formatting.

        Args:
            tag: the tag.
            holders: a stack of the open elements that contain runs (spans of text); a container's tag changes it.
            runs: a stack of runs with the current formatting; a formatting's tag changes it.
        """
        payload = self.payloads[tag.id]
        if isinstance(payload, list):
            for leaf in payload:
                self._append_leaf(holders[-1], leaf)
        elif isinstance(payload, _WordField):
            for leaf in payload.start if tag.kind == "open" else payload.end:
                self._append_leaf(holders[-1], leaf)
        elif isinstance(payload, _Format):
            runs.append(payload.run) if tag.kind == "open" else runs.pop()
        elif tag.kind == "close":
            holders.pop()
        else:
            _remove_binding(payload.element)
            for child in list(payload.holder):
                if child.tag not in self.dialect.kept and not child.tag.endswith("Pr"):
                    payload.holder.remove(child)
            holders[-1].append(payload.element)
            holders.append(payload.holder)

    def _append_text(self, holder: Any, run: Any, text: str) -> None:
        parent = holder if run is None else self._empty_run(run)
        element = parent.makeelement(self.dialect.text)
        element.text = xml_text(escaped(text) if self.dialect.has_escapes else text)
        if self.dialect.paragraph != f"{_A}p" and text != text.strip():
            element.set(_SPACE, "preserve")
        parent.append(element)
        if parent is not holder:
            holder.append(parent)

    def _append_leaf(self, holder: Any, leaf: _Leaf) -> None:
        if leaf.run is None:
            leaf.element.tail = None
            holder.append(leaf.element)
            return
        new = self._empty_run(leaf.run)
        new.append(leaf.element)
        holder.append(new)

    def _empty_run(self, run: Any) -> Any:
        """Return a new, empty run (span of formatted text) with the attributes and formatting of another."""
        new = run.makeelement(run.tag, dict(run.attrib))
        properties = self._run_properties(run)
        if properties is not None:
            new.append(copy.deepcopy(properties))
        return new


def _remove_binding(control: Any) -> None:
    """Remove the link between a content control (`w:sdt`) and data such as the document's title.

    Word would replace the control's translation by these data.
    """
    for properties in control.iterchildren(f"{_W}sdtPr"):
        for child in [each for each in properties if each.tag.endswith("}dataBinding")]:
            properties.remove(child)


_Atom = tuple[str, Any, Any]


def goes_on(before: str, after: str) -> bool:
    """Return whether a sentence goes on after a line break: a small letter after a letter, digit or comma."""
    before, after = before.rstrip(), after.lstrip()
    return after[:1].islower() and (before[-1:].isalnum() or before.endswith(","))


def _without_fields(atoms: Sequence[_Atom]) -> list[_Atom]:
    """Return a Word paragraph's content as a list, in which each field, such as a page number, is one item to copy.

    The text of links and tables of contents stays text, between the start and the end of the field.
    """
    result: list[_Atom] = []
    spans = _field_spans(atoms)
    ends: dict[int, _WordField] = {}  # by the index of the mark that ends a field with text
    index = 0
    while index < len(atoms):
        span = spans.get(index)
        if index in ends:
            result.append(("close field", None, ends[index]))
        elif span is None:
            result.append(atoms[index])
        elif span.separator is not None and _is_text_field(
            _instruction(atoms[index : span.separator]),
            "".join(content for kind, _, content in atoms[span.separator : span.end] if kind == "text"),
        ):
            field = _WordField(_leaves(atoms[index : span.separator + 1]), _leaves(atoms[span.end : span.end + 1]))
            result.append(("open field", None, field))
            ends[span.end] = field
            index = span.separator
        else:
            result.append(("field", None, _leaves(atoms[index : span.end + 1])))
            index = span.end
        index += 1
    return result


class _FieldSpan(NamedTuple):
    """The indices, in a paragraph's content, of the marks in the middle and at the end of a Word field."""

    separator: int | None
    """The index of the mark between the field's instruction and its result; None: the field has no result."""
    end: int


def _field_spans(atoms: Sequence[_Atom]) -> dict[int, _FieldSpan]:
    """Return a dict from the index of a Word field's first mark to the indices of its other marks, as `_FieldSpan`.

    Fields that start and end in different elements are left out.
    """
    spans: dict[int, _FieldSpan] = {}
    containers = [-1]  # indices at which the open containers start
    opened: list[tuple[int, int, int | None]] = []  # start, container and separator of each open field
    for index, atom in enumerate(atoms):
        if atom[0] == "open":
            containers.append(index)
        elif atom[0] == "close":
            containers.pop()
        elif _is_field_mark(atom, "begin"):
            opened.append((index, containers[-1], None))
        elif _is_field_mark(atom, "separate") and opened and opened[-1][1] == containers[-1]:
            opened[-1] = (*opened[-1][:2], index)
        elif _is_field_mark(atom, "end") and opened:
            start, container, separator = opened.pop()
            if container == containers[-1]:
                spans[start] = _FieldSpan(separator, index)
    return spans


def _leaves(atoms: Sequence[_Atom]) -> list[_Leaf]:
    """Return the elements to copy, a list of `_Leaf`, for a part of a paragraph that is not translated.

    Text becomes a copied element; a container with its content is one element.
    """
    leaves: list[_Leaf] = []
    depth = 0
    for kind, run, content in atoms:
        if kind in ("open", "close"):
            if kind == "open" and not depth:
                leaves.append(_Leaf(None, run))
            depth += 1 if kind == "open" else -1
        elif depth:
            continue
        elif kind == "text":
            element = run.makeelement(f"{_W}t")
            element.text = content
            element.set(_SPACE, "preserve")
            leaves.append(_Leaf(run, element))
        else:
            leaves += content if kind == "code" else [_Leaf(run, content)]
    return leaves


def _instruction(atoms: Sequence[_Atom]) -> str:
    """Return the instruction in the content of a Word field, such as `HYPERLINK "https://example.org"`, or ""."""
    return "".join(each.text or "" for kind, _, each in atoms if kind == "leaf" and each.tag == f"{_W}instrText")


def _is_copied(container: Any) -> bool:
    """Return whether a Word element with runs is copied: a field that shows no text, or a list or date to choose.

    Other such elements are translated.
    """
    if container.tag == f"{_W}fldSimple":
        return not _is_text_field(container.get(f"{_W}instr", ""), "".join(container.itertext(f"{_W}t")))
    return any(container.find(f"{_W}sdtPr/{_W}{name}") is not None for name in ("dropDownList", "comboBox", "date"))


def _is_text_field(instruction: str, result: str) -> bool:
    """Return whether a Word field shows text to translate.

    Links and tables of contents do. Form texts, index entries, references (REF) and fields with a text of their own
    (IF, QUOTE) do if the text has a letter.

    Args:
        instruction: what the field does, such as `REF _Ref1`.
        result: the text that it shows.
    """
    name = instruction.strip().upper()
    return name.startswith(("HYPERLINK", "TOC")) or (
        re.match(r"(?:REF|FORMTEXT|XE|IF|QUOTE)\b", name) is not None and has_letters(result)
    )


def _is_field_mark(atom: _Atom, type: str) -> bool:
    kind, _, content = atom
    return kind == "leaf" and content.tag == f"{_W}fldChar" and content.get(f"{_W}fldCharType") == type


# --- documents ---


class PartFile(NamedTuple):
    """An XML file in a document's archive: its name, its tree, and the paragraphs in it that are translated."""

    name: str
    tree: Any
    paragraphs: Sequence[Paragraph]


def document_of_archive(
    archive: Archive,
    files: Iterable[PartFile],
    others: Callable[[Archive], dict[str, bytes]] | None = None,
    formulas: Iterable[str] = (),
) -> Document:
    """Return a `Document` whose units are the texts of an archive's files, in their order.

    Args:
        archive: the archive.
        files: the files in the archive that have texts.
        others: a function that returns further files to write, as bytes by name. It is called only if a text changes;
            None: there are none.
        formulas: the formulas of a spreadsheet. Those that contain a translated cell text are stored in
            `Document.text_formulas`.
    """
    files = list(files)
    units = [unit for file in files for paragraph in file.paragraphs for unit in paragraph.units]

    def write(translations: Sequence[str]) -> bytes:
        waiting, changes = iter(translations), {}
        for file in files:
            has_changed = False
            for paragraph in file.paragraphs:
                sources = [unit.text for unit in paragraph.units]
                own = list(islice(waiting, len(sources)))
                if own != sources:
                    paragraph.write(own)
                    has_changed = True
            if has_changed:
                changes[file.name] = write_xml(file.tree)
        return archive.write({**changes, **(others(archive) if changes and others is not None else {})})

    return Document(units, write, text_formulas=_formulas_with_texts(formulas, files))


_QUOTED = re.compile('"((?:[^"]|"")+)"')
_CELL_FORMULA = re.compile(r'<c r="(\w+)"[^<>]*+>\s*+<f(?:\s[^<>]*+)?>([^<"]*+"[^<]*+)</f>')
_CELL_FILES = ("xl/sharedStrings.", "xl/worksheets/", "content.xml")


def _formulas_with_texts(formulas: Iterable[str], files: Iterable[PartFile]) -> tuple[str, ...]:
    """Return the formulas that contain, in quotation marks, the translatable text of a cell.

    Cell texts that translation does not change do not count, such as signs.
    """
    quoted = [(each, {text.replace('""', '"').casefold() for text in _QUOTED.findall(each)}) for each in formulas]
    sought = {text for _, texts in quoted for text in texts}
    paragraphs = (each for file in files if file.name.startswith(_CELL_FILES) for each in file.paragraphs)
    cells = [plain_text(*unit) for paragraph in paragraphs for unit in paragraph.units] if sought else []
    found = {
        text.casefold()
        for text in cells
        if text.casefold() in sought and not is_sign(text) and find_protected(text) != [(0, len(text))]
    }
    return tuple(formula for formula, texts in quoted if texts & found)


def _part_files(archive: Archive, pattern: str, *dialects: _Dialect) -> Iterator[PartFile]:
    """Yield a `PartFile` for each XML file of an archive whose whole name matches a pattern.

    The paragraphs of the `PartFile` are those with a letter that are to be translated. Sheets of Excel without inline
    strings are left out.
    """
    for name, content in archive.files.items():
        is_sheet = name.startswith("xl/worksheets/")
        if re.fullmatch(pattern, name) and not (is_sheet and b"inlineStr" not in content):
            tree = parse_xml(content, name)
            by_tag = {dialect.paragraph: dialect for dialect in dialects}
            paragraphs = [_OpenXmlParagraph(each, by_tag[each.tag]) for each in tree.getroot().iter(*by_tag)]
            yield PartFile(name, tree, [each for each in paragraphs if each.units and not each.is_kept])


_WORKBOOK = "xl/workbook.xml"
_STYLES = "word/styles.xml"
_DRAWINGS = r"charts/chart[^/]*|diagrams/(?:data|drawing)[^/]*|drawings/drawing[^/]*"


def read_docx(source: Source) -> Document:
    """Read a Word file as a `Document` to translate: body, headers, footers, notes, comments, charts and diagrams."""
    archive = source.archive()
    texts = r"document\d*|header\d*|footer\d*|footnotes|endnotes|comments"
    pattern = rf"word/(?:{texts}|{_DRAWINGS})\.xml"
    word = _WORD._replace(code_styles=_code_styles(archive))
    return document_of_archive(archive, _part_files(archive, pattern, word, _DRAWING, *_CHART_LABELS))


def _code_styles(archive: Archive) -> frozenset[str]:
    """Return a set of the identifiers of a Word file's styles for code, which depend on the language of Word."""
    styles = parse_xml(archive.files[_STYLES], _STYLES).getroot().iter(f"{_W}style") if _STYLES in archive.files else ()
    found = ([each.get(f"{_W}styleId", ""), *map(each.find, (f"{_W}name", f"{_W}basedOn"))] for each in styles)
    return find_code_styles((style, *(e if e is None else e.get(f"{_W}val") for e in rest)) for style, *rest in found)


def read_pptx(source: Source) -> Document:
    """Read a PowerPoint file as a `Document` to translate: slides, notes, comments, charts and diagrams."""
    archive = source.archive()
    pattern = rf"ppt/(?:slides/slide\d+|notesSlides/notesSlide\d+|comments/[^/]*|{_DRAWINGS})\.xml"
    return document_of_archive(archive, _part_files(archive, pattern, _DRAWING, _REMARK, *_CHART_LABELS))


def read_xlsx(source: Source) -> Document:
    """Read an Excel file as a `Document` to translate: texts of cells, comments, text boxes and charts.

    Formulas, numbers, names of sheets and the column names of tables stay the same, since formulas refer to them.
    """
    archive = source.archive()
    column_names = {
        unescaped(column.get("name", ""))
        for name, content in archive.files.items()
        if re.fullmatch(r"xl/tables/[^/]*\.xml", name)
        for column in parse_xml(content, name).getroot().iter(f"{_S}tableColumn")
    }
    tags = (f"{_S}si", f"{_S}is", f"{_S}text")
    dialects = (*(_SHEET._replace(paragraph=tag) for tag in tags), _THREAD, _DRAWING, *_CHART_LABELS)
    comments = r"comments[^/]*|comments/comment[^/]*|threadedComments/[^/]*"
    pattern = rf"xl/(?:sharedStrings|worksheets/[^/]*|{comments}|{_DRAWINGS})\.xml"
    notes = (f"{_A}p", f"{_S}text", _THREAD.paragraph)
    files = []
    for file in _part_files(archive, pattern, *dialects):
        kept = [
            each
            for each in file.paragraphs
            if (each.element.tag in notes or unescaped("".join(each.element.itertext())) not in column_names)
            and each.element.find(f"{_THREADS}mentions") is None  # which contain positions in the text
        ]
        files.append(file._replace(paragraphs=kept))
    sheets = [content for name, content in archive.files.items() if name.startswith("xl/worksheets/")]
    has_formulas = any(b"</f>" in sheet for sheet in sheets)
    recalculated = _recalculated_workbook if has_formulas and _WORKBOOK in archive.files else None
    texts = (sheet.decode("utf-8", "ignore").replace("&quot;", '"') for sheet in sheets)
    cells = (match.groups() for text in texts for match in _CELL_FORMULA.finditer(text))
    formulas = (f"{name}: {unescape(formula)}" for name, formula in cells)
    return document_of_archive(archive, files, recalculated, formulas)


def _recalculated_workbook(archive: Archive) -> dict[str, bytes]:
    """Return a dict with an Excel file's workbook (bytes by name), changed so that opening it recomputes formulas."""
    tree = parse_xml(archive.files[_WORKBOOK], _WORKBOOK)
    for properties in tree.getroot().iter(f"{_S}calcPr"):
        properties.set("fullCalcOnLoad", "1")
    return {_WORKBOOK: write_xml(tree)}
