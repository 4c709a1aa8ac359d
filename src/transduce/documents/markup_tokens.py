"""Read HTML, XML and the content of XLIFF segments as tokens: text, inline tags, and tags that divide the text.

Any input is read, well-formed or not, and the tokens' sources concatenate to the document. The time is linear in its
length.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html.entities import html5
from typing import Literal, NamedTuple

import msgspec

from transduce.documents.units import formula_part, is_after_word, is_mark_a_word, is_note_mark
from transduce.text.languages import canonical, detect_other_language, short_code
from transduce.text.protected import FORMULA

# --- settings ---


class MarkupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for reading HTML, XML or the content of an XLIFF segment: what ends a text, and what stays unchanged."""

    kind: Literal["html", "xml", "xliff"] = "html"
    """`html` knows the elements of HTML. In `xml`, the content of an element that contains text is one text with inline
    elements. In `xliff`, the document is the content of a `<source>` element of XLIFF 1.2 or 2, which is one text.
    """
    ignore_tags: tuple[str, ...] = ()
    """Names of elements that are copied unchanged, into the translation of the sentence around them."""
    splitting_tags: tuple[str, ...] = ()
    """Names of elements whose tags always end a text."""
    non_splitting_tags: tuple[str, ...] = ()
    """Names of elements whose tags never end a text."""
    outline_detection: bool = True
    """Elements of XML that stand outside of text end a text; if false, only `splitting_tags` do."""
    split_lines: bool = False
    """A line break or tab in the document ends a text; if false, both count as a space."""
    attributes: tuple[str, ...] = ()
    """Names of attributes whose values are translated, in lower case, such as `alt` and `title`."""
    source_language: str | None = None
    """Code of the language of the text. Phrases whose `lang` names another language stay, and so do paragraphs that are
    clearly in it. None: the language of the model or the request.
    """


# --- the elements of HTML and XLIFF ---


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BLOCK = _names(
    """address applet article aside base blockquote body button canvas caption center col colgroup dd details dialog dir
    div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe
    legend li link main map menu meta nav noframes noscript object ol optgroup option p param pre search section select
    slot source summary table tbody td template textarea tfoot th thead title tr track ul video audio"""
)
_COMPONENTS = _names(
    """address area article aside base button caption details dialog figcaption figure footer header hgroup legend link
    main map menu meta nav param search section slot source summary title track"""
)
"""Names of HTML elements that end a text in pages, but in a program's messages may stand for parts of a sentence."""
_XML_BLOCK = _names(
    "article blockquote body dd div dl dt h1 h2 h3 h4 h5 h6 head hr html li ol p section table tbody td th thead tr ul"
)
_XML_TEXTS = _XML_BLOCK | _names("source target seg")
"""Names of elements of XHTML, XLIFF and TMX whose content is one text, with known inline elements in it."""
_XLIFF_INLINE = _names("g x bx ex bpt ept it ph mrk pc sc ec")
_INLINE = _names(
    """a abbr acronym b bdi bdo big br cite code data del dfn em font i img ins kbd label mark q ruby s samp small span
    strike strong sub sup time tt u var wbr"""
)
"""Names of inline elements of HTML; an empty element of this kind stands for no word."""
NUMBERED = "n-"
"""The prefix of the names that numbered tags of messages, such as `<1>`, get during translation."""
FORMATTING = _names("b big em font g i ins del mark pc s small strike strong sub sup u")
"""Names of elements that format words within a sentence, even if several of them contain all its words."""
_VOID = _names("area base br col embed hr img input link meta param source track wbr")
_OPAQUE_WORDS = _names("code kbd math samp tt var")
_OPAQUE_EMPTY = _names("script style svg template rt rp")
_OPAQUE_BLOCKS = _names("pre")
_SVG_TEXTS, _SVG_INLINE = _names("text title desc"), _names("a tspan textpath")
OPENING_CODES, CLOSING_CODES = _names("bpt bx sc"), _names("ept ex ec")
_XLIFF_OPAQUE = _names("bpt ept it ph")

# Comments, CDATA sections, declarations, tags. Possessive quantifiers keep malformed markup from causing backtracking.
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z)|<!DOCTYPE[^<>\[]*+\[[^\]]*+\]\s*+>|<[!?][^<>]*+>"
    r"|<(?P<end>/?)(?P<name>[A-Za-z_][\w:.-]*+)(?P<attributes>(?:[^<>\"']++|\"[^\"]*+\"|'[^']*+')*+)>",
    re.DOTALL | re.IGNORECASE,
)
_MARKUP_OR_INSTRUCTION = re.compile(rf"<\?.*?\?>|{_MARKUP.pattern}", re.DOTALL | re.IGNORECASE)
# Scripts, styles and the texts of text fields contain no tags except their end tag.
_RAW_END = {name: re.compile(rf"</{name}(?=[\s/>])[^<>]*+>", re.IGNORECASE) for name in ("script", "style", "textarea")}
_CLOSES_ITSELF = re.compile(r"(?:^|[\s\"'])/\s*$")  # excludes a slash in an unquoted value, as in src=/js/
_ATTRIBUTE = re.compile(
    r"""(?:^|(?<=[\s"']))(?P<name>[^\s"'<>/=]++)\s*+=\s*+(?:"(?P<double>[^"]*+)"|'(?P<single>[^']*+)'|(?P<bare>[^\s"'>]++))"""
)
_DESCRIPTIONS = _names("description og:title og:description og:image:alt twitter:title twitter:description")
"""The `name` or `property` of HTML `<meta>` elements whose attribute `content` is a text."""
_BUTTONS = ("submit", "button", "reset")
"""The `type` values with which an HTML `<input>` shows its attribute `value`."""
_LABELED = ("option", "optgroup", "track")
"""Names of HTML elements that show their attribute `label`."""
_FORMULA = re.compile(FORMULA, re.DOTALL)
_MATH_CLASSES = _names("arithmatex katex katex-display MathJax MathJax_Display mwe-math-element")  # not arXiv's mathjax
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]+)*")
_FROM_OFFICE = re.compile(r"schemas-microsoft-com:office|class=\"?Mso|content=\"?(?:LibreOffice|OpenOffice)")
_INPUT = re.compile(r"<input(?![\w:.-])", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z_][\w.-]*);")
_SPACE = re.compile(r"\A(?:\s|&nbsp;|&#160;|&#xA0;)++", re.IGNORECASE)
_SPACE_BACKWARDS = re.compile(r"\A(?:\s|;psbn&|;061#&|;0Ax#&)++", re.IGNORECASE)
_FORMATTING_CODE = re.compile(
    r"""\b(?:ctype|type|equiv-text|equiv|disp)\s*=\s*["'](?:bold|italic|underlined?|link|font|fmt|pb|x-(?!text)[\w-]*|&lt;/?[a-z])"""
    r"""|\bid\s*=\s*["'](?:START|CLOSE)_""",
    re.IGNORECASE,
)
_LINE_BREAK_CODE = re.compile(
    r"""\b(?:ctype|subType|id|type)\s*=\s*["'](?:lb|xlf:lb|x-(?:html-)?br|LINE_BREAK)|&lt;br\b""", re.IGNORECASE
)
_LETTER_NOTE = re.compile(r"\[?(?:[^\W\d_]|[ivxl]{2,5})\]?|\[[^\[\]]{0,12}\d{1,3}\]")
_NOTE_ROLE = re.compile(r"(?<![\w-])(?:doc-)?noteref(?![\w-])|(?<![\w-])footnote-ref", re.IGNORECASE)
_RAISED = ("sup", "sub")
_MAX_NOTE = 12  # tags and texts in the reference to a note
_MAX_DETECTED = 500  # items and characters of an element by which its language is detected
_NATIVE_TAG = re.compile(r"^\s*&lt;/?[A-Za-z]")

Side = Literal["", "next", "previous"]
"""The word beside which a tag without words stays in the translation: the next, the previous, or neither ("")."""
Kind = Literal["text", "start", "end", "empty", "break", "protected", "block"]


class Token(NamedTuple):
    """A part of an HTML, XML or XLIFF document: a text, a tag, or an element that is copied with its content."""

    kind: Kind
    """The kind of the part: a text; the `start` or `end` tag of an inline element; an `empty` element without words,
    such as an image, a comment or a tag without its partner; a line `break`; an element that is `protected` within a
    sentence and stands for a word; or anything that ends the text (`block`).
    """
    source: str
    """The part as it is in the document."""
    name: str = ""
    """The element's name, without a namespace."""
    pair: int = -1
    """Number that an inline start tag shares with its end tag; -1: none."""
    side: Side = ""
    """The neighbor that an empty element stays beside in the translation: the next or previous word; "": neither."""
    texts: tuple[tuple[int, int, int], ...] = ()
    """A tuple of (start, end, index) for each attribute value to translate: its offsets in the source, and the index of
    its sentence in the document's list of sentences.
    """


def has_words(text: str) -> bool:
    """Return whether a text has a letter or a digit."""
    return any(map(str.isalnum, text))


def unescape(source: str, settings: MarkupSettings) -> str:
    """Return the text that a token's source stands for, with entities such as `&amp;` decoded.

    HTML's rules also decode some entities without a semicolon; in XML and XLIFF an entity must have one.
    """
    return html.unescape(source) if settings.kind == "html" else _ENTITY.sub(lambda m: html.unescape(m[0]), source)


def split_white_space(source: str) -> tuple[str, str, str]:
    """Return three texts: a text's leading white space, its content, and its trailing white space (`&nbsp;` included).

    A text of white space only is all leading white space.
    """
    start = len(source) - len(_SPACE.sub("", source))
    end = max(start, len(_SPACE_BACKWARDS.sub("", source[::-1])))
    return source[:start], source[start:end], source[end:]


def attribute_values(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield (name, start, end) for each attribute value of the start tags in a piece of HTML or XML.

    The positions are in `source` and exclude quotes; attributes without a value are skipped.
    """
    for tag in _MARKUP.finditer(source):
        if not tag["name"] or tag["end"]:
            continue
        offset = tag.start("attributes")
        for match in _ATTRIBUTE.finditer(tag["attributes"]):
            group = next(name for name in ("double", "single", "bare") if match[name] is not None)
            yield match["name"], offset + match.start(group), offset + match.end(group)


def translatable_values(token: Token, settings: MarkupSettings) -> Iterator[tuple[int, int]]:
    """Yield (start, end), in a token's source, for each text in it that is translated.

    These texts are the values of `settings.attributes`, and in HTML the texts of SVG images. In HTML, `value` counts
    only for buttons (`<input>`), `label` only in `<option>` and similar elements, and `content` only in a `<meta>`
    description. An element that is copied with its content has no texts. A protected token has only those of its HTML
    `<input>` tags.
    """
    opening = _MARKUP.match(token.source)
    if token.kind in ("text", "end") or opening is None:
        return
    source, attributes, is_html = token.source, opening["attributes"] or "", settings.kind == "html"
    is_image = is_html and token.name == "svg" and not _excludes(token.name, attributes, settings)
    if is_image:
        yield from _image_texts(source, settings)
    elif _copies(token.name, attributes, settings):
        return
    if not settings.attributes or (source != opening[0] and _other_language(attributes, settings)):
        return
    for tag in _MARKUP.finditer(source):
        is_input = is_html and _INPUT.match(tag[0]) is not None
        if token.kind == "protected" and not is_input:
            continue
        values = [(name.lower(), start, end) for name, start, end in attribute_values(tag[0])]
        found = {name: tag[0][start:end].strip().lower() for name, start, end in reversed(values)}
        element, roles = (tag["name"] or "").lower(), {found.get("name", ""), found.get("property", "")}
        shows = {"value": is_input and found.get("type") in _BUTTONS, "label": element in _LABELED}
        shows["content"] = element == "meta" and not _DESCRIPTIONS.isdisjoint(roles)
        for name, start, end in values:
            if name in settings.attributes and (not is_html or shows.get(name, True)):
                yield tag.start() + start, tag.start() + end


def _image_texts(source: str, settings: MarkupSettings) -> Iterator[tuple[int, int]]:
    """Yield (start, end) for each text with a letter in an SVG image's source: labels, titles, descriptions.

    Texts in elements with attributes such as `translate="no"` are left out.
    """
    position = 0
    opened: list[tuple[str, bool]] = []  # the names of the elements around a text, and whether they are left out
    for tag in _MARKUP.finditer(source):
        text = source[position : tag.start()]
        names = {name for name, _ in opened}
        if names & _SVG_TEXTS and opened[-1][0] in _SVG_TEXTS | _SVG_INLINE and any(map(str.isalpha, text)):
            yield from [] if any(is_out for _, is_out in opened) else [(position, tag.start())]
        position, name = tag.end(), (tag["name"] or "").lower()
        if tag["end"] and name in names:
            while opened.pop()[0] != name:
                pass
        elif name and not tag["end"] and not _CLOSES_ITSELF.search(tag["attributes"]):
            opened.append((name, _excludes(name, tag["attributes"], settings)))


def _copies(name: str, attributes: str, settings: MarkupSettings) -> bool:
    """Return whether an element is copied with all its content instead of being translated, such as `<code>`.

    Args:
        name: the element's name.
        attributes: the attributes as written in the start tag; `translate="no"` is an example of a reason.
        settings: the markup language, and further elements to copy (`ignore_tags`).
    """
    opaque = _OPAQUE_WORDS | _OPAQUE_EMPTY | _OPAQUE_BLOCKS if settings.kind == "html" else _XLIFF_OPAQUE
    return name in opaque or _excludes(name, attributes, settings)


def _excludes(name: str, attributes: str, settings: MarkupSettings) -> bool:
    """Return whether `ignore_tags` names an element, or its attributes exclude it from translation."""
    return name in settings.ignore_tags or is_untranslated(attributes)


def _attributes(source: str) -> Iterator[tuple[str, str]]:
    """Yield (lower-case name, value) for each attribute in a tag's text; those without a value are skipped."""
    for match in _ATTRIBUTE.finditer(source):
        yield match["name"].lower(), (match["double"] or match["single"] or match["bare"] or "").strip()


def _attribute(attributes: str, *names: str) -> str:
    """Return the value of the last attribute, of those with the given names, in a tag's text; "" without any."""
    return ["", *(value for name, value in _attributes(attributes) if name in names)][-1]


def is_untranslated(attributes: str) -> bool:
    """Return whether a tag's attributes exclude the element from translation.

    `translate="no"`, the class `notranslate`, classes of formulas and XLIFF's `mtype="protected"` do.
    """
    found = [(name.rpartition(":")[2], value) for name, value in _attributes(attributes)]
    classes = {each for name, value in found if name == "class" for each in value.split()}
    is_math = bool(classes & _MATH_CLASSES) or ("math" in classes and not classes.isdisjoint(("inline", "display")))
    is_kept = any((name, value.lower()) in (("translate", "no"), ("mtype", "protected")) for name, value in found)
    return is_math or is_kept or "notranslate" in map(str.lower, classes)


def _other_language(attributes: str, settings: MarkupSettings) -> str | None:
    """Return the language code in a tag's attribute `lang`; None without one, or if it is the language of the text."""
    if settings.source_language is None:
        return None
    code = _attribute(attributes, "lang", "xml:lang")
    if not _LANGUAGE.fullmatch(code) or code.lower() in ("und", "mul", "mis"):
        return None
    one, other = (short_code(canonical(each)) for each in (code, settings.source_language))
    return None if one == other else code


# --- scanning ---


class _Item(NamedTuple):
    """A piece of a document found by scanning: a text, a tag with its name and attributes, or other markup."""

    source: str
    name: str = ""
    """The name of a tag, without a namespace and in lower case for HTML; empty for text, comments and the like."""
    role: Literal["text", "start", "end", "single", "other"] = "text"
    attributes: str = ""


def _scan(document: str, settings: MarkupSettings) -> Iterator[_Item]:
    """Yield an `_Item` for each text, tag and other markup of a document; their sources concatenate to the document.

    The content of HTML's `script` and `style` is other markup, not text.
    """
    position, is_html = 0, settings.kind == "html"
    # XML that is written like HTML leaves line breaks and images open. Messages have components such as <link>.
    names = _VOID & _COMPONENTS if is_html else {"br", "img", "wbr"}
    closed = document.lower() if is_html else document
    voids = {n for n in names if f"</{n}" not in closed} | (_VOID - names if is_html else set())
    last_instruction = document.rfind("?>")  # behind it, searching for the end of another one would take long
    while match := (_MARKUP_OR_INSTRUCTION if position < last_instruction else _MARKUP).search(document, position):
        if match.start() > position:
            yield from _texts(document[position : match.start()], settings)
        position = match.end()
        name, attributes = (match["name"] or "").rpartition(":")[2], match["attributes"] or ""
        name = name.lower() if is_html else name
        if not name:
            yield _Item(match[0], role="other")
            continue
        is_single = _CLOSES_ITSELF.search(attributes) or name in voids
        role: Literal["start", "end", "single"] = "end" if match["end"] else "single" if is_single else "start"
        yield _Item(match[0], name, role, attributes)
        if role == "start" and is_html and name in _RAW_END:
            end = _RAW_END[name].search(document, position)
            stop = end.start() if end else len(document)
            content = document[position:stop]
            is_text = name == "textarea"
            own = _texts(content, msgspec.structs.replace(settings, split_lines=True)) if is_text else iter(())
            yield from own if is_text else [_Item(content, role="other")]
            position = stop
    if position < len(document):
        yield from _texts(document[position:], settings)


def _texts(source: str, settings: MarkupSettings) -> Iterator[_Item]:
    """Divide the text between two tags at other markup, and yield an `_Item` for each part.

    Other markup is a LaTeX formula in HTML, and an entity unknown to HTML in XML and XLIFF. With `split_lines`, line
    breaks and tabs count as markup, too.
    """
    is_html = settings.kind == "html"
    found = (_FORMULA if is_html else _ENTITY).finditer(source)
    cuts = [each.span() for each in found if is_html or (each[0][1] != "#" and each[0][1:] not in html5)]
    if settings.split_lines:
        cuts = sorted(cuts + [match.span() for match in re.finditer(r"\r?\n|\t", source)])
    position = 0
    for start, end in (*cuts, (len(source), len(source))):
        if start > position:
            yield _Item(source[position:start])
        if end > start >= position:  # not a line break in a formula
            yield _Item(source[start:end], role="other")
            position = end


# --- the elements' extents ---


class _ElementTree(NamedTuple):
    """The tree of a document's items (texts and tags): pairs of tags, parents, and the elements that have words."""

    partner: dict[int, int]
    """A dict from the index of a start tag to that of its end tag, and the other way around; single tags are left
    out.
    """
    parent: list[int]
    """For each item (text or markup) of the document, the index of the start tag of the element around it; -1: none."""
    has_text: set[int]
    """The indices of the start tags of elements that contain words themselves; -1 for the document."""


def _element_tree(items: Sequence[_Item]) -> _ElementTree:
    """Match the start and end tags of a scanned document, and return its `_ElementTree`.

    A start tag that is not closed before its parent, and an end tag without an open element, have no partner.
    """
    partner: dict[int, int] = {}
    parent: list[int] = []
    has_text: set[int] = set()
    stack: list[int] = []
    open_names = Counter[str]()
    for index, item in enumerate(items):
        if item.role == "end" and open_names[item.name]:
            while True:
                start = stack.pop()
                open_names[items[start].name] -= 1
                if items[start].name == item.name:
                    break
            partner[start], partner[index] = index, start
        parent.append(stack[-1] if stack else -1)
        if item.role == "text" and parent[-1] not in has_text and has_words(item.source):
            has_text.add(parent[-1])
        if item.role == "start":
            stack.append(index)
            open_names[item.name] += 1
    return _ElementTree(partner, parent, has_text)


# --- tokens ---


def read_tokens(document: str, settings: MarkupSettings) -> list[Token]:
    """Return a document as a list of tokens: texts, inline tags, copied elements, and tags that end a text.

    The tokens' sources concatenate to the document, which may be malformed.
    """
    return _MarkupReader(document, settings).tokens()


class _Content:
    """A summary of the content of an inline element while it is read: its texts and the kinds of its tokens.

    From the summary follows whether the element, such as `<b></b>`, has no words and becomes a single token.
    """

    def __init__(self, start: int) -> None:
        self.start = start
        self._texts: list[str] = []
        self._kinds: set[Kind] = set()

    @property
    def is_empty(self) -> bool:
        """True if the inline element contains neither text nor tags."""
        return not self._kinds

    def add(self, token: Token) -> None:
        """Record a token that stands directly in the inline element, not in a nested element that keeps its tags."""
        self._kinds.add(token.kind)
        if token.kind == "text":
            self._texts.append(token.source)

    def include(self, inner: "_Content") -> None:
        """Record a nested inline element that keeps its tags, so that the outer element keeps its tags too."""
        self._kinds |= inner._kinds | {"start"}

    def kind_without_words(self, settings: MarkupSettings) -> Kind | None:
        """Return the kind of the single token that replaces an inline element without words, including its content.

        Returns:
            `protected` if the element contains a protected element and no white space at its ends; `empty` if it has no
            text at all; None if the element keeps its tags.
        """
        if self._kinds - {"text", "empty", "protected"}:
            return None
        text = "".join(self._texts)
        if has_words(unescape(text, settings)):
            return None
        if "protected" in self._kinds:
            return "protected" if text == text.strip() else None
        return None if text else "empty"


class _MarkupReader:
    """A converter of a document to tokens, which scans it, matches its tags, and decides which elements are inline."""

    def __init__(self, document: str, settings: MarkupSettings) -> None:
        self.settings = settings
        self.items = list(_scan(document, settings))
        self.tree = _element_tree(self.items)
        self._inline: dict[int, bool] = {}
        self._has_languages = settings.source_language is not None and not _FROM_OFFICE.search(document)
        """True if attributes `lang` are to be trusted; those that word processors write are only for their spelling
        check.
        """
        pairs = zip(self.items, self.tree.parent, strict=True)
        roots = sum(parent < 0 and item.role in ("start", "single") for item, parent in pairs)
        self._is_fragment = roots > 1 or -1 in self.tree.has_text
        """True if the document has text or several elements at the top, as a sentence with tags has, and no page."""

    def tokens(self) -> list[Token]:
        """Return a list of the document's tokens in order: texts, inline tags, copied elements, ends of text.

        An inline element without words is one token with all its content.
        """
        found: list[Token] = []
        contents = [_Content(0)]
        index = 0
        while index < len(self.items):
            stop = self._opaque_end(index)
            if stop > index and self._is_in_word(index, stop):
                token, index = self._formula(index, stop, found)
            else:
                token = self._copied(index, stop) if stop > index else self._token(index)
                index = max(stop, index) + 1
            if token.kind == "start":
                contents.append(_Content(len(found)))
                found.append(token)
                continue
            if token.kind == "end":
                content = contents.pop()
                found.append(token)
                if (kind := content.kind_without_words(self.settings)) is not None:
                    source = "".join(part.source for part in found[content.start :])
                    kind = self._kind_of_empty(token.pair) if content.is_empty else kind
                    token = Token(kind, source, token.name, side=_side(token.name))
                    del found[content.start :]
                else:
                    contents[-1].include(content)
                    continue
            contents[-1].add(token)
            found.append(token)
        return found

    def _token(self, index: int) -> Token:
        """Return the `Token` for the text or piece of markup with this index in the document.

        A tag without a partner becomes an empty element if it is inline.
        """
        item = self.items[index]
        if item.role == "text":
            return Token("text", item.source)
        if item.role == "other":
            return Token(self._other_kind(item.source), item.source)
        if item.role == "single":
            return Token(self._kind_of_empty(index), item.source, item.name, side=_side(item.name))
        partner, start = self.tree.partner.get(index), self._start_of(index)
        if not self._is_inline(start):
            return Token("block", item.source, item.name)
        if partner is None:
            return Token("empty", item.source, item.name, side="previous" if item.role == "end" else "next")
        return Token(item.role, item.source, item.name, start)

    def _start_of(self, index: int) -> int:
        """Return the index of the start tag that belongs to an end tag; the index itself for all other items."""
        return self.tree.partner.get(index, index) if self.items[index].role == "end" else index

    def _other_kind(self, source: str) -> Kind:
        if source.startswith(("<!--", "<?")):
            return "empty"
        return "protected" if source.startswith(("<![CDATA[", "&", "\\", "$")) else "block"

    def _opaque_end(self, index: int) -> int:
        """Return the index of the end tag of the element that starts at an index and is copied with its content.

        The result is -1 if the item at the index is no start tag of such an element, or has no end tag.
        """
        item = self.items[index]
        end = self.tree.partner.get(index, -1) if item.role == "start" else -1
        is_copied = end >= 0 and (
            _copies(item.name, item.attributes, self.settings)
            or self._is_note(index, end)
            or self._is_raised_number(index, end)
            or self._is_in_other_language(index, end)
        )
        return end if is_copied else -1

    def _is_in_other_language(self, start: int, stop: int) -> bool:
        """Return whether the element between two tags has text in another language, as its attribute `lang` says.

        Labels are often wrong. So the text must not clearly be in another language than the label's. Outside sentences,
        the text must clearly be in another language than the document. `<html>` and `<body>` never count.
        """
        item, expected = self.items[start], self.settings.source_language
        language = _other_language(item.attributes, self.settings) if self._has_languages else None
        if language is None or expected is None or item.name in ("html", "body"):
            return False
        inner = self.items[start + 1 : min(stop, start + _MAX_DETECTED)]
        text = unescape("".join(each.source[:_MAX_DETECTED] for each in inner if each.role == "text"), self.settings)
        text = " ".join(text.split())[:_MAX_DETECTED]
        is_clear = self._is_phrase(start) or detect_other_language(text, expected) is not None
        return is_clear and detect_other_language(text, language) is None

    def _is_phrase(self, index: int) -> bool:
        """Return whether the element with this start tag is part of a sentence: inline, with words beside it."""
        return self._is_inline(index) and any(outer in self.tree.has_text for outer in self._around(index))

    def _around(self, index: int) -> list[int]:
        """Return the start-tag indices of up to 16 inline elements around an item, then of the outer one, or -1."""
        found = [self.tree.parent[index]]
        while len(found) <= 16 and self._inline.get(found[-1], False):
            found.append(self.tree.parent[found[-1]])
        return found

    def _is_raised_number(self, start: int, stop: int) -> bool:
        """Return whether an HTML element from one index to another is a number or sign in `<sup>` or `<sub>`."""
        item, inner = self.items[start], self.items[start + 1]
        if item.name not in _RAISED or self.settings.kind != "html" or stop != start + 2 or inner.role != "text":
            return False
        text = unescape(inner.source, self.settings).strip()
        return _is_number_or_sign(text) and not _copies(item.name, item.attributes, self.settings)

    def _is_note(self, start: int, stop: int) -> bool:
        """Return whether the HTML element between two tags is the mark of a note, such as a raised number.

        A number in square brackets is a mark. So is a link's number in round brackets. So is a number or sign that
        links to a place in a page after a word (`is_after_word`). With a note's role or in a raised link, a number,
        sign, letter, small Roman numeral or label such as [note 3] is a mark. The element must have inline tags only,
        and at most `_MAX_NOTE` items inside.
        """
        if self.settings.kind != "html" or stop - start - 1 > _MAX_NOTE:
            return False
        elements = [item for item in self.items[start : stop + 1] if item.role != "text"]
        if not {item.name for item in elements} <= _INLINE:
            return False
        text = "".join(item.source for item in self.items[start + 1 : stop] if item.role == "text")
        text = unescape(text, self.settings).strip()
        is_number = _is_number_or_sign(text)
        if self._is_reference(start, stop):
            return is_number or _LETTER_NOTE.fullmatch(text) is not None
        targets = [
            _attribute(item.attributes, "href") for item in elements if item.name == "a" and item.role == "start"
        ]
        if is_number and any("#" in each for each in targets) and is_after_word(self._text_before(start)):
            return True
        return is_note_mark(text, is_link=bool(targets))

    def _is_reference(self, start: int, stop: int) -> bool:
        """Return whether an HTML element, from one index to another, has a note's role, or both `<a>` and `<sup>`."""
        elements = self.items[start : stop + 1]
        return {"a", "sup"} <= {item.name for item in elements} or any(
            _NOTE_ROLE.search(item.attributes) for item in elements
        )

    def _text_before(self, index: int) -> str:
        """Return the last character of the text before an inline element, with the white space after it.

        The result is "" if the element with this index is at the start of a text.
        """
        space = ""
        for number in range(index - 1, -1, -1):
            item = self.items[number]
            if item.role == "text":
                text = unescape(item.source, self.settings)
                if text.strip():
                    return text.rstrip()[-1] + text[len(text.rstrip()) :] + space
                space = text + space
            elif item.role == "other" or not self._is_inline(self._start_of(number)):
                break
        return ""

    def _is_in_word(self, start: int, stop: int) -> bool:
        """Return whether the element from one index to another is a number inside a word, as in H<sub>2</sub>O.

        A number in `<sub>` also counts at the end of a word, as in CO<sub>2</sub>.
        """
        if not self._is_raised_number(start, stop):
            return False
        before, after = (
            "".join(each.source for each in self.items[max(0, index) : index + 1] if each.role == "text")
            for index in (start - 1, stop + 1)
        )
        has_end = self.items[start].name == "sub" or formula_part(after) != ""
        return formula_part(before, at_end=True) != "" and has_end

    def _formula(self, start: int, stop: int, found: list[Token]) -> tuple[Token, int]:
        """Return a protected token for the whole word around a raised number, and the index of the item after it.

        Args:
            start: index of the number's start tag.
            stop: index of its end tag.
            found: the tokens before it, of which the last one loses the start of the word.
        """
        source = formula_part(found[-1].source, at_end=True)
        text = found.pop().source
        if text != source:
            found.append(Token("text", text[: len(text) - len(source)]))
        while True:
            source += "".join(item.source for item in self.items[start : stop + 1])
            start = stop + 1
            if start < len(self.items) and self.items[start].role == "text":
                text = self.items[start].source
                part = formula_part(text)
                source += part
                if part != text:
                    self.items[start] = self.items[start]._replace(source=text[len(part) :])
                    break
                start += 1
            stop = self._opaque_end(start) if start < len(self.items) else -1
            if stop < 0 or not self._is_raised_number(start, stop):
                break
        return Token("protected", source), start

    def _copied(self, start: int, stop: int) -> Token:
        """Return the single token for an element that is copied to the translation with its content.

        Args:
            start: index of its start tag among the document's items.
            stop: index of its end tag.
        """
        source = "".join(item.source for item in self.items[start : stop + 1])
        item = self.items[start]
        if not self._is_inline(start):
            return Token("block", source, item.name)
        if self._is_in_other_language(start, stop):
            return Token("protected", source, item.name)
        if not _copies(item.name, item.attributes, self.settings):  # the mark of a note, or a raised number
            is_raised = self._is_raised_number(start, stop) or self._is_reference(start, stop)
            if not is_raised and is_mark_a_word(self._text_before(start)):
                return Token("protected", source, item.name)
            return Token("empty", source, item.name, side="previous")
        if item.name in _XLIFF_OPAQUE and self.settings.kind != "html":
            content = "".join(inner.source for inner in self.items[start + 1 : stop])
            kind = code_kind(item.name, item.attributes, content)
            return Token(kind, source, item.name, side="" if kind == "break" else _side(item.name))
        is_empty = item.name in _OPAQUE_EMPTY and self.settings.kind == "html"
        return Token("empty" if is_empty else "protected", source, item.name)

    def _kind_of_empty(self, index: int) -> Kind:
        """Return the kind of the token for an element without content, by its name and attributes.

        The kind is `block` if the element is not inline, `break` for line breaks, `empty` for known inline elements and
        formatting codes, and `protected` for all others, which may stand for a word.

        Args:
            index: index of its tag among the document's items.
        """
        item, settings = self.items[index], self.settings
        if not self._is_inline(index):
            return "block"
        kind = code_kind(item.name, item.attributes)
        if kind == "break":
            return kind
        if item.name in settings.ignore_tags or item.name == "input":
            return "protected"
        is_known = (item.name in _INLINE or item.name in _VOID) and settings.kind != "xliff"
        return "empty" if is_known else kind

    def _is_inline(self, index: int) -> bool:
        """Return whether the element whose tag has this index is part of a sentence around it and does not end a text.

        The answer is computed once for each tag.
        """
        found = self._inline.get(index)
        if found is None:
            found = self._inline[index] = self._decide_inline(index)
        return found

    def _decide_inline(self, index: int) -> bool:
        name, settings, parent = self.items[index].name, self.settings, self.tree.parent[index]
        if name in settings.splitting_tags:
            return False
        if name in settings.non_splitting_tags or settings.kind == "xliff":
            return True
        if settings.kind == "html":
            return name not in _BLOCK or (name in _COMPONENTS and self._is_in_sentence(index))
        if not settings.outline_detection:
            return True
        if name in _XML_BLOCK:
            return False
        # Parents come before their children, so the answer for the parent is known.
        if parent in self.tree.has_text or (parent >= 0 and self._inline.get(parent, False)):
            return True
        # Names of inline elements may be those of records, too, unless the element around them is known to be a text.
        is_in_text = self.items[parent].name in _XML_TEXTS if parent >= 0 else self._is_fragment
        return is_in_text and (name in _INLINE or name in _XLIFF_INLINE)

    def _is_in_sentence(self, index: int) -> bool:
        """Return whether the element with this tag is in text outside of all blocks, or in a `<p>` before words."""
        outer = self._around(index)[-1]
        end = self.tree.partner.get(index, index) + 1
        is_followed = any(item.role == "text" and has_words(item.source) for item in self.items[end : end + 1])
        return outer in self.tree.has_text and (outer < 0 or (self.items[outer].name == "p" and is_followed))


def _is_number_or_sign(text: str) -> bool:
    return bool(text) and not any(map(str.isalpha, text))


def _side(name: str) -> Side:
    """Return which neighboring word a tag stays beside in the translation, by the tag's name.

    The result is "next" for XLIFF's opening codes, "previous" for its closing codes, and "" (neither) for other tags.
    """
    return "next" if name in OPENING_CODES else "previous" if name in CLOSING_CODES else ""


def code_kind(name: str, attributes: str, content: str = "") -> Literal["break", "empty", "protected"]:
    """Return the role in a sentence of a tag or code without words, such as `<x ctype="lb"/>` of XLIFF.

    The roles are `break` (a line break), `empty` (a code that only formats) and `protected` (one instead of a word).

    Args:
        name: the element's name.
        attributes: the attributes as written in its start tag, such as `ctype` and `subType`.
        content: the code of the original format in the element, as written in the document.
    """
    if name == "br" or _LINE_BREAK_CODE.search(attributes) or _LINE_BREAK_CODE.search(content):
        return "break"
    is_format = name in OPENING_CODES | CLOSING_CODES | {"it"} or _NATIVE_TAG.match(content)
    return "empty" if is_format or _FORMATTING_CODE.search(attributes) else "protected"


def reference_id(token: Token) -> str:
    """Return the id that an opening code of XLIFF (`bpt`, `bx`, `sc`) shares with its closing code (`ept`, `ex`, `ec`).

    The id is the first of the attributes `rid`, `startRef` and `id` that the tag has; "" if there is none.
    """
    values = {name: token.source[start:end] for name, start, end in attribute_values(token.source)}
    return values.get("rid") or values.get("startRef") or values.get("id") or ""
