"""The texts of documents that are translated, with inline formatting as tags; text files whose texts are replaced."""

import codecs
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import accumulate, groupby, islice
from typing import Literal, NamedTuple

import msgspec

from transduce.errors import TransduceError, utf16_name
from transduce.text.protected import find_protected

# --- settings ---


class DocumentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that choose which texts of a document are translated, and how they are written."""

    format: str | None = None
    """Name of the format, such as `srt`; None: by the file's name and content."""
    columns: tuple[str, ...] = ()
    """CSV and TSV: the columns to translate, by the names in the first row or by numbers from 1."""
    fields: tuple[str, ...] = ()
    """JSON: the values to translate, as paths such as `items.*.title`; `*` stands for any key or index."""
    keep_source: bool = False
    """Plain text and subtitles: write each source text above its translation."""
    join_lines: bool = False
    """Plain text: join the lines of a paragraph before translation, and wrap them again after it."""
    overwrite: bool = False
    """PO and XLIFF: translate entries again that already have a translation."""
    overwrite_fuzzy: bool = False
    """PO: translate entries again whose translation is flagged `fuzzy`, which gettext's programs do not use."""
    mark_fuzzy: bool = False
    """PO: mark new translations with the flag `fuzzy`, so that a person reviews them before use."""
    encoding: str | None = None
    """Text formats: the encoding of a file without a byte order mark; None: the one that it declares, or UTF-8."""
    target_language: str | None = None
    """Code of the target language, which XLIFF stores if the file has none."""


# --- units ---

UnitKind = Literal["text", "xml", "html", "message"]
"""Plain text; text with XLIFF's inline tags (`<g id="1">…</g>`, `<x id="2"/>`); HTML; or a program's text with tags."""


class Unit(NamedTuple):
    """A text of a document, such as a paragraph or a cell, that is translated independently of the others."""

    text: str
    """The source text. Its line breaks are spaces, unless the author separated lines on purpose."""
    kind: UnitKind = "text"


class UntranslatedText(str):
    """A text of a document in place of its translation, so that a format that stores both has no translation of it."""

    __slots__ = ()


class Document(NamedTuple):
    """A document that was read: its texts to translate, and the function that writes it with their translations."""

    units: list[Unit]
    write: Callable[[Sequence[str]], bytes]
    """Return the document's bytes with its texts replaced by these translations, one for each unit, in order."""
    kept_fuzzy: int = 0
    """The number of entries of a PO file that are flagged fuzzy and keep their translation, or a part of it."""
    kept_units: tuple[str, ...] = ()
    """The units of an XLIFF file, by id and source, that stay as they are although a segment has no translation."""
    messages: "MessageRecord | None" = None
    """What becomes of the document's ICU messages with branches; None: it has none."""


# --- inline tags ---


TagKind = Literal["open", "close", "empty", "break", "object"]


class Tag(NamedTuple):
    """An inline tag in a text: the start or end of a formatted span, or an element without text."""

    kind: TagKind
    """The start or end of a formatted span; an element without content, such as a bookmark; a line break; or an object
    that stands for content which is not translated, such as code.
    """
    id: int
    """Number of the element, unique in its text; the end tag has the number of its start tag."""


Part = str | Tag
# The names of tags in a unit are those of XLIFF.
_TAG_NAMES: dict[TagKind, str] = {"open": "g", "empty": "it", "break": "br", "object": "x"}
_TAG = re.compile(r'<(?P<end>/?)(?P<name>g|x|it|br)(?:\s+id="(?P<id>\d{1,6})")?\s*(?P<empty>/?)>')


class InlineText:
    """A text with inline tags that is translated as one unit, and whose tags are placed in the translation.

    Tags and white space that stand before or after all words are not part of the unit.
    """

    def __init__(self, parts: Iterable[Part]) -> None:
        """Separate what is translated from the tags and white space around all words.

        Args:
            parts: texts and tags in order; start and end tags are balanced.
        """
        self.parts = joined_parts(parts)
        """All texts and tags of the source, with adjacent texts joined."""
        start, end = _core(self.parts)
        self.before, self.after = list(self.parts[:start]), list(self.parts[end:])
        core = list(self.parts[start:end])
        if core and isinstance(core[0], str):
            stripped = core[0].lstrip()
            self.before.append(core[0][: len(core[0]) - len(stripped)])
            core[0] = stripped
        if core and isinstance(core[-1], str):
            stripped = core[-1].rstrip()
            self.after.insert(0, core[-1][len(stripped) :])
            core[-1] = stripped
        self.core = [part for part in core if part]
        """Texts and tags of the unit, without those before and after all words."""

    @property
    def plain(self) -> str:
        """The text to translate without its inline tags; "" if it has only tags."""
        return "".join(part for part in self.core if isinstance(part, str))

    @property
    def unit(self) -> Unit:
        """The text as one unit to translate: of kind `xml` if tags are left between words, otherwise plain text."""
        if any(isinstance(part, Tag) for part in self.core):
            return Unit("".join(map(_write_part, self.core)), "xml")
        return Unit(self.plain)

    def translated(self, translation: str) -> list[Part]:
        """Return the translated text with the outer tags and white space of the source, as texts and balanced tags.

        Each tag of the source occurs once: unknown and repeated tags in the translation are removed, and missing ones
        are added at its end.

        Args:
            translation: the translation of `unit`, with tags written as in the unit.
        """
        source = self.unit
        if source.kind == "text":
            core: list[Part] = [translation]
        else:
            core = list(self.core) if translation == source.text else _read_parts(translation, self.core)
        return [part for part in (*self.before, *core, *self.after) if part]


def split_at(parts: Sequence[Part], separators: Collection[Tag]) -> list[InlineText | Part]:
    """Divide texts and tags at separators, such as tabs, so that what stands between them is translated by itself.

    Args:
        parts: texts and tags; start and end tags are balanced.
        separators: tags at which a text ends.

    Returns:
        In order: the texts with their inline tags, the separators, and the tags whose partner is in another text.
    """
    number = 0
    stretch: dict[Tag, int] = {}
    for part in parts:
        if isinstance(part, Tag):
            number += part in separators
            stretch[part] = number
    divided: list[InlineText | Part] = []
    waiting: list[Part] = []
    for part in parts:
        is_outer = isinstance(part, Tag) and (
            part in separators
            or (part.kind == "open" and stretch[part] != stretch[Tag("close", part.id)])
            or (part.kind == "close" and stretch[part] != stretch[Tag("open", part.id)])
        )
        if not is_outer:
            waiting.append(part)
            continue
        divided += [*([InlineText(waiting)] if waiting else []), part]
        waiting = []
    return [*divided, *([InlineText(waiting)] if waiting else [])]


def find_nested_ranges(
    parts: Sequence[Part], range_of: Callable[[Tag], tuple[Hashable, bool] | None]
) -> dict[Tag, Tag]:
    """Return the empty tags that start ranges with words, such as comments, with those that end them.

    Ranges that cross another range or a formatted span are left out. `range_of` returns what a tag has in common with
    the other end of its range, and whether it is the start; None for other tags.
    """
    found: dict[Tag, Tag] = {}
    opened: list[tuple[Hashable, Tag, int]] = []  # key, tag and index of each start
    for index, part in enumerate(parts):
        if not isinstance(part, Tag):
            continue
        key, is_start = (range_of(part) if part.kind == "empty" else (part.id, part.kind == "open")) or (None, False)
        numbers = [number for number, each in enumerate(opened) if each[0] == key]
        if is_start:
            opened.append((key, part, index))
        elif numbers:
            _, start, first = opened[-1]
            has_text = any(isinstance(each, str) and each.strip() for each in parts[first:index])
            if part.kind == "empty" and numbers[-1] == len(opened) - 1 and has_text:
                found[start] = part
            del opened[numbers[-1] :]
    return found


def joined_parts(parts: Iterable[Part]) -> list[Part]:
    """Return a text's parts (strings and tags) with adjacent strings joined and empty strings removed."""
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part:
            joined.append(part)
    return joined


def _core(parts: Sequence[Part]) -> tuple[int, int]:
    """Return the start and end index of the parts to translate, among a text's strings and tags.

    Outside of this range are white space, elements without text, and tags that stand before, after or around all
    words; tags inside of it are balanced. Without words or objects the range is empty.
    """
    partner: dict[int, int] = {}
    opened: dict[int, int] = {}
    for index, part in enumerate(parts):
        if isinstance(part, Tag) and part.kind == "open":
            opened[part.id] = index
        elif isinstance(part, Tag) and part.kind == "close":
            partner[opened[part.id]], partner[index] = index, opened[part.id]
    start, end = 0, len(parts)
    while start < end:
        first, last = parts[start], parts[end - 1]
        if _is_wordless(first):
            start += 1
        elif _is_wordless(last):
            end -= 1
        elif partner.get(start) == end - 1:
            start, end = start + 1, end - 1
        elif start in partner and all(map(_is_wordless_or_tag, parts[start : partner[start]])):
            start = partner[start] + 1
        elif end - 1 in partner and all(map(_is_wordless_or_tag, parts[partner[end - 1] : end])):
            end = partner[end - 1]
        else:
            break
    return start, end


def _is_wordless(part: Part) -> bool:
    """Return whether a part of a text is white space, an element without text (`empty`) or a line break."""
    return not part.strip() if isinstance(part, str) else part.kind in ("empty", "break")


def _is_wordless_or_tag(part: Part) -> bool:
    return part.kind != "object" if isinstance(part, Tag) else not part.strip()


def _write_part(part: Part) -> str:
    if isinstance(part, str):
        return escape(part, quote=False)
    if part.kind == "close":
        return "</g>"
    return f'<{_TAG_NAMES[part.kind]} id="{part.id}"{"" if part.kind == "open" else "/"}>'


def _read_parts(text: str, source: Sequence[Part]) -> list[Part]:
    """Return the strings and tags of a translated XML text, such that each tag of the source occurs once and balanced.

    Unknown and repeated tags are removed, open elements are closed at the end, and missing tags are added there.

    Args:
        text: the translation.
        source: the strings and tags of the source.
    """
    missing = {part.id: part.kind for part in source if isinstance(part, Tag) and part.kind != "close"}
    parts: list[Part] = []
    open_ids: list[int | None] = []
    position = 0
    for match in _TAG.finditer(text):
        parts.append(unescape(text[position : match.start()]))
        position = match.end()
        name, number = match["name"], int(match["id"] or -1)
        if name != "g":
            kind = missing.get(number)
            if not match["end"] and kind in ("empty", "break", "object"):
                parts.append(Tag(kind, number))
                del missing[number]
        elif match["end"]:
            closed = open_ids.pop() if open_ids else None
            parts.extend([] if closed is None else [Tag("close", closed)])
        else:
            is_known = missing.pop(number, None) == "open" if missing.get(number) == "open" else False
            parts.extend([Tag("open", number)] if is_known else [])
            if match["empty"]:
                parts.extend([Tag("close", number)] if is_known else [])
            else:
                open_ids.append(number if is_known else None)
    parts.append(unescape(text[position:]))
    parts.extend(Tag("close", number) for number in reversed(open_ids) if number is not None)
    for number, kind in missing.items():
        parts.extend([Tag("open", number), Tag("close", number)] if kind == "open" else [Tag(kind, number)])
    return joined_parts(parts)


def plain_text(text: str, kind: UnitKind) -> str:
    """Return the text of a unit, or of its translation, without the inline tags and with entities decoded.

    Args:
        text: the text.
        kind: the unit's kind; a text of kind `text` is returned as it is.
    """
    return text if kind == "text" else unescape(_TAG.sub("", text))


# --- ICU messages ---
# `You have {n, plural, one {# file} other {# files}}` becomes a sentence for each branch, `You have {#n} file` and
# `You have {#n} files`, because a model translates whole sentences. They become the branches of the translation.
# Apostrophes quote as in ICU's default mode (DOUBLE_OPTIONAL).


_MAX_SENTENCES, _MAX_CHOICES = 64, 16  # of a message
MESSAGE_BRANCHES = re.compile(r"\{\s*+[\w.-]++\s*+,\s*+(?:plural|select|selectordinal|choice)\s*+,")
_ARGUMENT = re.compile(r"\{\s*+(?P<name>[\w.-]++)\s*+(?:\}|,\s*+(?P<type>\w++)\s*+(?:\}|(?P<style>,)))")
_OFFSET = re.compile(r"\s*+offset:\s*+\d++")
_KEY = re.compile(r"\s*+(?:=-?+\d++|[\w-]++)\s*+\{")
_END = re.compile(r"\s*+\}")
_QUOTED = re.compile(r"'[{}#](?:[^']|'')*+'")
_STYLE_BRACE = re.compile(r"'[^']*+'|[{}]")
_LITERAL = re.compile(r"[^{}#']++")


@dataclass
class MessageRecord:
    """A record of what becomes of a document's ICU messages with branches, such as `{n, plural, one {…} other {…}}`."""

    kept: list[str] = field(default_factory=list)
    """The texts with messages that stay as they are."""
    lost: list[str] = field(default_factory=list)
    """The texts whose translation lacked an argument when the document was written, so that they stay, too."""
    plural_forms: list[frozenset[str]] = field(default_factory=list)
    """The forms, such as `one` and `other`, of each plural in the messages that are translated."""


class _Copied(NamedTuple):
    """A part of an ICU message that a translation copies: an argument such as `{name}`, quoted text, or a `#`."""

    source: str
    shown: str
    """The part as the translator gets it; a `#` is in braces, by which it is known to be a placeholder."""
    number_of: "_Choice | None" = None
    """The plural whose number a `#` stands for; None for other parts."""


@dataclass(eq=False)
class _Choice:
    """An argument of an ICU message with branches, such as `{n, plural, one {# file} other {# files}}`."""

    name: str
    is_plural: bool
    has_offset: bool = False
    keys: list[str] = field(default_factory=list)
    """The source before each branch up to its opening brace, such as `{n, plural, one {` and ` other {`."""
    branches: list["_Pattern"] = field(default_factory=list)
    end: str = "}"
    """The source after the closing brace of the last branch, up to that of the argument."""

    def chooses_like(self, other: "_Choice") -> bool:
        """Return whether this argument and another always choose branches with the same index."""
        return ["".join(key.split()) for key in self.keys] == ["".join(key.split()) for key in other.keys]


_Pattern = list[str | _Copied | _Choice]
_Around = tuple[tuple[_Choice, int], ...]
"""The arguments around a part of an ICU message, from the outermost, each with the index of the branch."""


class _MessageReader:
    """Reads the pattern of an ICU message; each method raises ValueError if it cannot be divided into sentences."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.doubles_apostrophes = False
        """True if the message writes an apostrophe as two."""
        self._choices = 0

    def pattern(self, around: Sequence[_Choice] = ()) -> _Pattern:
        """Return the parts up to the closing brace of a branch; without arguments `around`, those of the message."""
        parts: _Pattern = []
        in_plural = any(each.is_plural for each in around)
        while (character := self.text[self.position : self.position + 1]) not in ("", "}"):
            end = self.position + 1
            if character == "{":
                parts.append(self._argument(around))
                continue
            if character == "#" and in_plural:
                if not around[-1].is_plural:  # a number in some implementations, and a sign in others
                    raise ValueError
                parts.append(_Copied("#", f"{{#{around[-1].name}}}", around[-1]))
            elif character == "'" and self.text.startswith("''", self.position):
                self.doubles_apostrophes = True
                parts.append("'")
                end += 1
            elif character == "'" and self.text[end : end + 1] in ("{", "}", "#" if in_plural else "{"):
                if (quoted := _QUOTED.match(self.text, self.position)) is None:
                    raise ValueError
                parts.append(_Copied(quoted[0], quoted[0]))
                end = quoted.end()
            else:
                literal = _LITERAL.match(self.text, self.position)
                end = end if literal is None else literal.end()
                parts.append(self.text[self.position : end])
            self.position = end
        if bool(around) != (self.position < len(self.text)):
            raise ValueError
        return parts

    def _argument(self, around: Sequence[_Choice]) -> _Copied | _Choice:
        start = self.position
        match = _ARGUMENT.match(self.text, start)
        if match is None or (match["style"] and match["type"] in ("selectordinal", "choice")):
            raise ValueError
        self.position = match.end()
        if match["style"] and match["type"] in ("plural", "select"):
            return self._choice(start, _Choice(match["name"], match["type"] == "plural"), around)
        depth = 1 if match["style"] else 0
        while depth:
            brace = _STYLE_BRACE.search(self.text, self.position)
            if brace is None:
                raise ValueError
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            self.position = brace.end()
        source = self.text[start : self.position]
        return _Copied(source, source)

    def _choice(self, start: int, choice: _Choice, around: Sequence[_Choice]) -> _Choice:
        """Read the branches of an argument, which begins at `start`, and return it."""
        offset = _OFFSET.match(self.text, self.position) if choice.is_plural else None
        if offset is not None:
            choice.has_offset, self.position = True, offset.end()
        self._choices += 1
        while (key := _KEY.match(self.text, self.position)) is not None and self._choices <= _MAX_CHOICES:
            choice.keys.append(self.text[start : key.end()])
            self.position = key.end()
            choice.branches.append(self.pattern([*around, choice]))
            self.position += 1
            start = self.position
        end = _END.match(self.text, self.position)
        if end is None or not choice.keys:
            raise ValueError
        choice.end, self.position = end[0], end.end()
        return choice


class _Sentence:
    """The text of an ICU message for one choice of branches: literal texts, and parts that a translation copies."""

    def __init__(self, parts: Sequence[str | _Copied], around: _Around) -> None:
        """Write each `#` as it is read inside the branch; raise ValueError if this is not possible."""
        self.in_plural = bool(around) and around[-1][0].is_plural
        has_sign = any(isinstance(part, str) and "#" in part for part in parts)
        if has_sign and not self.in_plural and any(choice.is_plural for choice, _ in around):
            raise ValueError
        self._sources: dict[str, str] = {}
        for part in parts:
            if isinstance(part, _Copied):
                source, plural = part.source, part.number_of
                if plural is not None and not around[-1][0].chooses_like(plural):
                    if plural.has_offset:
                        raise ValueError
                    source = f"{{{plural.name},number}}"
                if self._sources.setdefault(part.shown, source) != source:
                    raise ValueError
        self._copied = Counter(part.shown for part in parts if isinstance(part, _Copied))
        text = "".join(part if isinstance(part, str) else part.shown for part in parts)
        self.text = text.strip()
        """The sentence to translate, without white space around it."""
        start = len(text) - len(text.lstrip())
        self._around = text[:start], text[start + len(self.text) :]
        self.has_letters = any(isinstance(part, str) and has_letters(part) for part in parts)

    def written(self, translation: str, *, doubles_apostrophes: bool) -> str:
        """Return a translation of the sentence as the content of a branch; raise ValueError if it lacks an argument."""
        pattern = "|".join(map(re.escape, sorted(self._sources, key=len, reverse=True)))
        pieces = re.split(f"({pattern})", translation) if pattern else [translation]
        if Counter(pieces[1::2]) != self._copied:
            raise ValueError
        parts: list[tuple[bool, str]] = []  # texts, and whether they are quoted
        for number, piece in enumerate(pieces):
            if number % 2:
                source = self._sources[piece]
                parts.append((True, source[1:-1]) if source.startswith("'") else (False, source))
                continue
            for index, text in enumerate(re.split("([{}#]+)" if self.in_plural else "([{}]+)", piece)):
                if index % 2:
                    parts.append((True, text))
                elif doubles_apostrophes:
                    parts.append((False, text.replace("'", "''")))
                elif text:  # another apostrophe where this one would begin or end quoted text
                    is_after_quoted = bool(parts) and parts[-1][0]
                    parts.append((False, re.sub(r"\A'" if is_after_quoted else r"(?!)", "\u2019", text)))
                    parts[-1] = False, re.sub(r"'(?=['#]|\Z)", "\u2019", parts[-1][1])
        written = ""
        for is_quoted, group in groupby((part for part in parts if part[1]), key=lambda part: part[0]):
            text = "".join(text for _, text in group)
            written += f"'{text}'" if is_quoted else text
        return f"{self._around[0]}{written}{self._around[1]}"


def _sentences(parts: Sequence[str | _Copied | _Choice], around: _Around = ()) -> Iterator[_Sentence]:
    """Yield the sentences of a message, one for each choice of branches; raise ValueError if one cannot be written."""
    flat = [part for part in parts if not isinstance(part, _Choice)]
    if len(flat) == len(parts):
        yield _Sentence(flat, around)
    else:
        for inner, branch in _branches(parts, around):
            yield from _sentences(inner, branch)


def _branches(parts: Sequence[str | _Copied | _Choice], around: _Around) -> Iterator[tuple[_Pattern, _Around]]:
    """Yield the parts of a message once for each branch of its first argument with branches, which they replace.

    Of an argument that chooses like one `around`, only the same branch is possible.

    Args:
        parts: the parts.
        around: the arguments around the message's first argument with branches.

    Yields:
        The parts, and the arguments around them.
    """
    index, choice = next((index, part) for index, part in enumerate(parts) if isinstance(part, _Choice))
    chosen = next((number for other, number in around if choice.chooses_like(other)), None)
    for number, branch in enumerate(choice.branches):
        if chosen in (None, number):
            inside = around if chosen is not None else (*around, (choice, number))
            yield [*parts[:index], *branch, *parts[index + 1 :]], inside


class _Message:
    """An ICU message with branches, as sentences to translate, which become the branches of its translation."""

    def __init__(self, text: str) -> None:
        """Read a message; raise ValueError if it cannot be divided into sentences exactly."""
        reader = _MessageReader(text.strip())
        self.text = text
        self._pattern = reader.pattern()
        self._doubles = reader.doubles_apostrophes
        self._sentences = list(islice(_sentences(self._pattern), _MAX_SENTENCES + 1))
        if len(self._sentences) > _MAX_SENTENCES:
            raise ValueError
        # An inline tag of the message must be in one sentence, and its end tag in the same.
        tags = Counter(tag[0] for each in self._sentences for tag in _TAG.finditer(each.text))
        if tags != Counter(tag[0] for tag in _TAG.finditer(text)) or not all(map(_is_balanced, self._sentences)):
            raise ValueError
        self.texts = [each.text for each in self._sentences if each.has_letters]
        """The sentences to translate; those without a letter are left out."""

    @property
    def plural_forms(self) -> Iterator[frozenset[str]]:
        """The forms of each plural of the message, such as `one`, `other` and `=0`."""
        waiting = list(self._pattern)
        for part in waiting:
            if isinstance(part, _Choice):
                waiting += [each for branch in part.branches for each in branch]
                if part.is_plural:
                    yield frozenset(re.split(r"[\s,]", key.removesuffix("{").rstrip())[-1] for key in part.keys)

    def written(self, translations: Sequence[str]) -> str:
        """Return the message with translations of its texts in the branches; raise ValueError if one lacks an argument.

        A message whose texts do not change stays as it is.
        """
        if list(translations) == self.texts:
            return self.text
        waiting = iter(translations)
        texts = iter(
            [
                each.written(next(waiting) if each.has_letters else each.text, doubles_apostrophes=self._doubles)
                for each in self._sentences
            ]
        )
        core = self.text.strip()
        start = self.text.index(core)
        return self.text[:start] + _written(self._pattern, texts) + self.text[start + len(core) :]


def _is_balanced(sentence: _Sentence) -> bool:
    """Return whether each inline tag `<g>` in a sentence has its end tag."""
    tags = [match["end"] for match in _TAG.finditer(sentence.text) if match["name"] == "g" and not match["empty"]]
    depths = list(accumulate(-1 if end else 1 for end in tags))
    return not depths or (depths[-1] == 0 and min(depths) >= 0)


def _is_protected(text: str) -> bool:
    """Return whether all ICU messages with branches in a text are in spans that translation copies."""
    spans = find_protected(text)
    return all(any(a <= match.start() < b for a, b in spans) for match in MESSAGE_BRANCHES.finditer(text))


def _written(parts: Sequence[str | _Copied | _Choice], texts: Iterator[str], around: _Around = ()) -> str:
    """Return a message with the texts of its branches, in the order of `_sentences`."""
    choice = next((part for part in parts if isinstance(part, _Choice)), None)
    if choice is None:
        return next(texts)
    inner = list(_branches(parts, around))
    if inner[0][1] == around:  # the argument chooses like one around it
        return _written(inner[0][0], texts, around)
    pairs = zip(choice.keys, inner, strict=True)
    return "".join(f"{key}{_written(each, texts, inside)}}}" for key, (each, inside) in pairs) + choice.end


def with_divided_messages(document: Document) -> Document:
    """Return a document in which ICU messages with branches are divided into the sentences of these branches.

    Messages that cannot be divided exactly are left out, or stay a part of their unit if translation copies them. Those
    in units of HTML, which are pages or parts of pages, are left out.
    """
    record, units = MessageRecord(), list[Unit]()
    found: list[list[Unit] | _Message] = []
    for unit in document.units:
        own: list[Unit] | _Message = [unit]
        if MESSAGE_BRANCHES.search(unit.text):
            try:
                own = own if unit.kind == "html" else _Message(unit.text)
            except ValueError:
                # What surrounds a message that can be told from it is translated.
                own = [unit] if unit.kind == "text" and _is_protected(unit.text) else []
            if isinstance(own, _Message):
                record.plural_forms += own.plural_forms
            else:
                record.kept.append(unit.text)
        found.append(own)
        units += [Unit(text, unit.kind) for text in own.texts] if isinstance(own, _Message) else own
    if not record.kept and not any(isinstance(own, _Message) for own in found):
        return document

    def write(translations: Sequence[str]) -> bytes:
        texts: list[str] = []
        record.lost, position = [], 0
        for unit, own in zip(document.units, found, strict=True):
            count = len(own.texts if isinstance(own, _Message) else own)
            new = translations[position : position + count]
            try:
                text = own.written(new) if isinstance(own, _Message) else new[0] if own else None
            except ValueError:
                text = None
                record.lost.append(unit.text)
            texts.append(UntranslatedText(unit.text) if text is None else text)
            position += count
        return document.write(texts)

    return document._replace(units=units, write=write, messages=record)


# --- text files ---

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Edit(NamedTuple):
    """The characters `start` to `end` of a text file, which are replaced when the texts in them are translated."""

    start: int
    end: int
    units: list[Unit]
    """The units whose translations the new content contains."""
    render: Callable[[Sequence[str]], str]
    """Return the new content of the span, given the translations of its units."""
    is_in_place: bool = True
    """True if the span is where the source texts stand: it stays as it is if all translations equal the texts. False
    if it stores translations beside the source, as in PO and XLIFF: it is always written.
    """


class TextFile:
    """A decoded text file that is written again with some spans replaced; its other bytes never change."""

    def __init__(self, content: bytes, encoding: str = "utf-8", *, is_markup: bool = False) -> None:
        """Decode the content of a text file and find its line break.

        Args:
            content: the bytes; a byte order mark decides the encoding.
            encoding: encoding of a file without a byte order mark.
            is_markup: the file is HTML or XML, where characters that the encoding lacks are written as references
                such as `&#8364;`; without it they are an error.

        Raises:
            TransduceError: the bytes are not text in this encoding.
        """
        encoding_16 = utf16_name(content) if encoding == "utf-8" else None
        if encoding_16 and not content.startswith(tuple(mark for mark, _ in _MARKS)):
            raise TransduceError(
                f"The document is {encoding_16} without a byte order mark: set `encoding` to {encoding_16}."
            )
        self.mark, self.encoding = next((each for each in _MARKS if content.startswith(each[0])), (b"", encoding))
        try:
            self.text = content[len(self.mark) :].decode(self.encoding)
        except LookupError:
            raise TransduceError(f"The document's encoding {self.encoding!r} is unknown: save it as UTF-8.") from None
        except UnicodeDecodeError as error:
            raise TransduceError(
                f"The document should be text in {self.encoding}, but byte {error.start + len(self.mark):,} is not: "
                "convert it to UTF-8, or set `encoding` to its encoding, such as gb18030."
            ) from None
        self._is_markup = is_markup
        self.newline = next((each for each in ("\r\n", "\n", "\r") if each in self.text), "\n")

    def document(self, edits: Iterable[Edit], *, always: bool = False) -> Document:
        """Return the document whose units are the texts of these edits, and which is written with their spans replaced.

        Args:
            edits: the spans to replace, which are disjoint and in order.
            always: replace spans even if the translations equal the source, as when the output keeps the source text.
        """
        edits = list(edits)
        units = [unit for edit in edits for unit in edit.units]

        def write(translations: Sequence[str]) -> bytes:
            parts: list[str] = []
            position = number = 0
            for edit in edits:
                chosen = translations[number : number + len(edit.units)]
                number += len(edit.units)
                parts.append(self.text[position : edit.start])
                is_same = all(a == b.text for a, b in zip(chosen, edit.units, strict=True))
                is_kept = is_same and (
                    (edit.is_in_place and not always) or any(isinstance(each, UntranslatedText) for each in chosen)
                )
                parts.append(self.text[edit.start : edit.end] if is_kept else edit.render(chosen))
                position = edit.end
            parts.append(self.text[position:])
            return self.encode("".join(parts))

        return Document(units, write)

    def encode(self, text: str) -> bytes:
        """Return the bytes of a text in the file's encoding, after the file's byte order mark if it has one.

        Characters that the encoding lacks become references such as `&#8364;` in HTML and XML.

        Raises:
            TransduceError: the encoding of another file lacks a character of the text.
        """
        try:
            return self.mark + text.encode(self.encoding, "xmlcharrefreplace" if self._is_markup else "strict")
        except UnicodeEncodeError as error:
            raise TransduceError(
                f"The document is in {self.encoding}, which has no {text[error.start]!r}: convert it to UTF-8 first."
            ) from None


_CODE_STYLE = re.compile(
    r"code|verbatim|preformatted|source ?text|listing|macro|html ?(?:keyboard|sample|typewriter)", re.IGNORECASE
)


def is_code_style(name: str | None) -> bool:
    """Return whether a style's name in an office document, such as `Source Text`, is one of code; None is no style."""
    return name is not None and _CODE_STYLE.search(name.replace("_20_", " ").replace("_", " ")) is not None


def find_code_styles(styles: Iterable[tuple[str, str | None, str | None]]) -> frozenset[str]:
    """Return the identifiers of the styles for code among a document's styles.

    Args:
        styles: the identifier of each style, its name, and the identifier of the style that it is based on, if any. A
            style that is based on one for code is one, too.
    """
    found = set[str]()
    for identifier, name, base in list(styles) * 4:  # so many styles may be based on each other
        if is_code_style(name) or base in found:
            found.add(identifier)
    return frozenset(found)


def has_letters(text: str) -> bool:
    """Return whether a text has a letter of any script, so that there is something to translate."""
    return any(map(str.isalpha, text))
