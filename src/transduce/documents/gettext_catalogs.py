"""Read gettext catalogs (PO), and write translations into them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from gettext import c2py
from typing import NamedTuple

from transduce.documents.formats import Source
from transduce.documents.text_formats import Line, Message, lines_of, plural_rule
from transduce.documents.units import (
    Document,
    DocumentSettings,
    Edit,
    TextFile,
    has_letters,
)
from transduce.errors import TransduceError

_STATEMENT = re.compile(r'\s*(?P<key>msgctxt|msgid|msgid_plural|msgstr)(?:\[(?P<number>\d+)\])?\s*(?P<string>".*")\s*')
_CONTINUATION = re.compile(r'\s*(?P<string>".*")\s*')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CHARSET = re.compile(rb"Content-Type:[^\"]*?charset=([\w.:-]+)", re.IGNORECASE)
_PLURALS = re.compile(r"nplurals\s*=\s*(\d+)(?:\s*;\s*plural\s*=([^;\n]*))?")
_PO_WIDTH = 77


class _String(NamedTuple):
    """A string of a gettext catalog, decoded, with the offsets of its quoted literals in the file."""

    start: int
    end: int
    text: str
    before: str = ""
    """The keyword to write before the string, such as `msgstr[1]`, which the file lacks; "" if the file has the
    string.
    """


@dataclass
class _CatalogEntry:
    """An entry of a gettext catalog: its notes (flags and former text), the text to translate and its translations."""

    start: int
    """The offset in the file of the entry's first statement."""
    notes: list[Line] = field(default_factory=list)
    """The lines before the entry with its flags (`#,`) and with the former text of a fuzzy entry (`#|`)."""
    ids: list[_String] = field(default_factory=list)
    """A list of the text to translate and, if the entry has plural forms, its plural text."""
    translations: dict[int, _String] = field(default_factory=dict)
    """A dict from the number of a plural form (0 without plural forms) to its translation (`msgstr`), which may be
    empty.
    """
    surplus: list[_String] = field(default_factory=list)
    """A list of empty translations with numbers that the target language has no plural forms for; they are removed."""

    @property
    def is_fuzzy(self) -> bool:
        """True if the entry is flagged fuzzy: gettext's programs do not use its translation."""
        return any("fuzzy" in _flags(line) for line in self.notes)


def read_po(source: Source) -> Document:
    """Read a gettext catalog as a `Document`, whose units are the texts that have no translation yet.

    With the setting `overwrite`, all texts are units. With `overwrite_fuzzy`, texts of entries that are flagged fuzzy
    are units, too. A translation is written into the `msgstr` of its text.

    Raises:
        TransduceError: the file is not a gettext catalog or not text in its encoding.
    """
    declared = _CHARSET.search(source.content[:65_536])
    is_named = declared is not None and declared[1] != b"CHARSET"
    file = source.text_file(declared[1].decode() if declared is not None and is_named else "utf-8")
    entries = list(_entries(file.text))
    header = next((entry for entry in entries if _is_header(entry)), None)
    filled, edits = _filled_header(file, header, source.settings.target_language)
    counted = _PLURALS.search(filled)
    plurals = int(counted[1]) if counted else 2
    singular = _singular_form(counted[2], plurals) if counted else 0
    chosen = [
        entry
        for entry in entries
        if not _is_header(entry) and entry.ids and entry.translations and has_letters(entry.ids[0].text)
    ]
    if counted is not None and plurals <= _MAX_PLURALS:
        for entry in chosen:
            _fit_forms(entry, plurals, file.newline)
    opened = [(entry, _open_strings(entry, plurals, singular or 0, source.settings)) for entry in chosen]
    edits += [_edit_entry(file, *each, source.settings) for each in opened if each[1] or each[0].surplus]
    return file.document(edits)._replace(
        kept_fuzzy=sum(entry.is_fuzzy and len(strings) < len(entry.translations) for entry, strings in opened),
        same_plurals=sum(len(entry.ids) > 1 and len(strings) > 2 for entry, strings in opened),
        lacks_plural_rule=bool(chosen) and "nplurals=INTEGER" in filled,
        guesses_singular=singular is None and any(len(entry.ids) > 1 and strings for entry, strings in opened),
    )


_MAX_PLURALS = 6  # of any language
_NO_LANGUAGE = r'"Language: \n"'


def _filled_header(file: TextFile, header: _CatalogEntry | None, language: str | None) -> tuple[str, list[Edit]]:
    """Fill in the header of a catalog that is a template (POT).

    The header gets the encoding, the language if one is set, and the plural forms if they are known. It loses the flag
    `fuzzy`, because gettext's programs ignore a header with the flag. The header of any other catalog stays unchanged.

    Returns:
        The text of the header, and a list of the edits that write it. The text is "" if the catalog has no header.
    """
    if header is None:
        return "", []
    start, end, text = *header.translations[0][:2], header.translations[0].text
    forms = plural_rule(language or "")
    blanks = {"charset=CHARSET": "charset=UTF-8"}
    if language is not None:
        blanks[_NO_LANGUAGE] = _NO_LANGUAGE.replace("\\", language.replace("-", "_") + "\\")
    if forms is not None:
        blanks |= {"nplurals=INTEGER": f"nplurals={forms[0]}", "plural=EXPRESSION": f"plural=({forms[1]})"}
    if "charset=CHARSET" not in text and "nplurals=INTEGER" not in text:
        return text, []
    written = file.text[start:end]
    for blank, value in blanks.items():
        written, text = written.replace(blank, value), text.replace(blank, value)
    edits = [
        Edit(line.start, line.end + len(line.break_), [], lambda _: "", is_in_place=False)
        for line in header.notes
        if _flags(line) == ["fuzzy"]
    ]
    return text, [*edits, Edit(start, end, [], lambda _: written, is_in_place=False)]


def _singular_form(expression: str | None, plurals: int) -> int | None:
    """Return the number of the plural form for 1, by the expression in a catalog's header; None if it is not valid."""
    if plurals == 1:
        return 0
    try:
        form = int(c2py((expression or "").strip())(1))
    except (ValueError, OverflowError, ZeroDivisionError, RecursionError):
        return None
    return form if form < plurals else None


def _fit_forms(entry: _CatalogEntry, plurals: int, newline: str) -> None:
    """Fit the plural forms of a catalog's entry, in place, to the number of forms in the target language.

    Missing forms are added after the last form. Empty forms beyond the number `plurals` are moved to the entry's
    `surplus`, because gettext's programs refuse a catalog with such forms.
    """
    if len(entry.ids) < 2:
        return
    used = {number: string for number, string in entry.translations.items() if number < plurals or string.text}
    end = max((string.end for string in used.values()), default=0)
    surplus = [string for number, string in entry.translations.items() if number not in used]
    if used and all(string.start > end for string in surplus):
        entry.translations, entry.surplus = used, surplus
    end = max(string.end for string in entry.translations.values())
    for number in range(max(entry.translations) + 1, plurals):
        entry.translations[number] = _String(end, end, "", f"{newline}msgstr[{number}] ")


def _is_header(entry: _CatalogEntry) -> bool:
    return bool(entry.ids) and not entry.ids[0].text and 0 in entry.translations


def _entries(text: str) -> Iterator[_CatalogEntry]:
    """Yield a `_CatalogEntry` for each entry of a gettext catalog, its header first, without obsolete ones (`#~`).

    Raises:
        TransduceError: a line is neither empty nor a comment nor part of an entry.
    """
    entry: _CatalogEntry | None = None
    notes: list[Line] = []
    literals: list[tuple[Line, str]] = []
    key: tuple[str, int] = ("", 0)

    def close() -> None:
        if entry is None or not literals:
            return
        first, last = literals[0], literals[-1]
        start = first[0].start + first[0].text.index('"')
        end = last[0].start + last[0].text.rindex('"') + 1
        string = _String(start, end, "".join(_unquoted(literal) for _, literal in literals))
        if key[0].startswith("msgid"):
            entry.ids.append(string)
        elif key[0] == "msgstr":
            entry.translations[key[1]] = string
        literals.clear()

    for number, line in enumerate(lines_of(text), 1):
        stripped = line.text.strip()
        statement = _STATEMENT.fullmatch(line.text)
        continuation = _CONTINUATION.fullmatch(line.text)
        if statement is not None:
            close()
            is_first = statement["key"] == "msgctxt" or (statement["key"] == "msgid" and key[0] != "msgctxt")
            if is_first:
                if entry is not None:
                    yield entry
                entry, notes = _CatalogEntry(line.start, notes), []
            key = (statement["key"], int(statement["number"] or 0))
            literals.append((line, statement["string"]))
        elif continuation is not None and literals:
            literals.append((line, continuation["string"]))
        elif stripped.startswith("#") or not stripped:
            close()
            notes = _notes_after(line, notes)
        else:
            raise TransduceError(f"The document should be a gettext catalog, but line {number} is {stripped[:60]!r}.")
    close()
    if entry is not None:
        yield entry


def _notes_after(line: Line, notes: list[Line]) -> list[Line]:
    """Return a list of the notes (lines with `#,` or `#|`) found so far for a catalog's next entry.

    Args:
        line: the line that is read now: a comment or an empty line. A note is appended. A line of an obsolete entry
            (`#~`) empties the list, because the notes belong to the obsolete entry.
        notes: the notes that were found before `line`.
    """
    comment = line.text.lstrip()
    return [] if comment.startswith("#~") else [*notes, line] if comment.startswith(("#,", "#|")) else notes


def _flags(line: Line) -> list[str]:
    """Return a list of the flags, such as `fuzzy`, in a line of a catalog; empty for a line without flags."""
    text = line.text.strip()
    return [flag.strip() for flag in text[2:].split(",") if flag.strip()] if text.startswith("#,") else []


def _unquoted(literal: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), literal[1:-1])


def _quoted(text: str, newline: str) -> str:
    """Return a text as quoted and escaped literals of a gettext catalog.

    A short text without inner line breaks is one literal. Any other text becomes an empty literal and one literal for
    each line: lines end after line breaks, and where they would get too long.

    Args:
        text: the text.
        newline: line break of the file, which is put between the literals.
    """
    escapes = {value: f"\\{key}" for key, value in _ESCAPED.items()} | {"\\": "\\\\", '"': '\\"'}
    escaped = "".join(escapes.get(character, character) for character in text)
    if len(escaped) <= _PO_WIDTH - 7 and "\\n" not in escaped.removesuffix("\\n"):
        return f'"{escaped}"'
    lines = [""]
    for word in re.findall(r"(?:\\[^n]|[^\s\\])*(?:\\n|\s+|\Z)", escaped):
        if lines[-1].endswith("\\n") or (lines[-1] and len(lines[-1]) + len(word) > _PO_WIDTH):
            lines.append("")
        lines[-1] += word
    return newline.join(['""', *(f'"{line}"' for line in lines if line)])


def _open_strings(
    entry: _CatalogEntry, plurals: int, singular: int, settings: DocumentSettings
) -> list[tuple[_String, str]]:
    """Return a list of the strings of a catalog entry to translate, each paired with its source text, in file order.

    These are the strings without a translation. All strings are translated if `overwrite` is set, or if
    `overwrite_fuzzy` is set and the entry is fuzzy.

    Args:
        entry: the entry.
        plurals: the number of plural forms in the target language.
        singular: the number of the plural form for 1. Its source text is the singular, unless the language has only one
            form. The source text of other forms is the plural.
        settings: the settings `overwrite` and `overwrite_fuzzy`.
    """
    is_open = settings.overwrite or (settings.overwrite_fuzzy and entry.is_fuzzy)
    return [
        (string, entry.ids[0 if number == singular and plurals > 1 else -1].text)
        for number, string in sorted(entry.translations.items(), key=lambda each: (each[1].start, each[0]))
        if is_open or not string.text
    ]


def _edit_entry(
    file: TextFile, entry: _CatalogEntry, open_strings: Sequence[tuple[_String, str]], settings: DocumentSettings
) -> Edit:
    """Return the `Edit` that writes new translations into an entry of a gettext catalog.

    The flag `fuzzy` of the former translation is removed if all strings of the entry get new translations. With
    `mark_fuzzy` the entry gets the flag.

    Args:
        file: the catalog.
        entry: the entry.
        open_strings: the strings to write, each with its source text, which is a unit of the edit.
        settings: the setting `mark_fuzzy`.
    """
    end = max(string.end for string in (*entry.translations.values(), *entry.surplus))
    start = min(entry.start, *(line.start for line in entry.notes)) if entry.notes else entry.start
    is_new = len(open_strings) == len(entry.translations)
    mark_fuzzy = settings.mark_fuzzy and bool(open_strings)  # an entry that only loses surplus forms stays as it was
    ends = [string.end for string in (*entry.ids, *entry.translations.values(), *entry.surplus)]
    # The line break and the keyword before a surplus string are removed with it.
    removed = [(max(each for each in ends if each < string.start), string.end) for string in sorted(entry.surplus)]

    def render(translations: Sequence[str]) -> str:
        written, position = "", start
        # Flags stand before the notes on the former source text; tools refuse them behind these.
        if mark_fuzzy and not any(map(_flags, entry.notes)):
            written += "#, fuzzy" + file.newline
        for line in entry.notes:
            note = _new_note(line, entry, is_new=is_new, mark_fuzzy=mark_fuzzy)
            written += file.text[position : line.start] + (note + line.break_ if note else "")
            position = line.end + len(line.break_)
        written, position = written + file.text[position : entry.start], entry.start
        for (string, id_text), message, new in zip(open_strings, messages, translations, strict=True):
            before, after = _outer_breaks(id_text)
            translation = message.written(new).strip("\n")
            written += (
                file.text[position : string.start] + string.before + _quoted(before + translation + after, file.newline)
            )
            position = string.end
        for first, last in removed:
            written, position = written + file.text[position:first], last
        return written + file.text[position:end]

    messages = [Message(text.strip("\n")) for _, text in open_strings]
    return Edit(start, end, [message.unit for message in messages], render, is_in_place=False)


def _new_note(line: Line, entry: _CatalogEntry, *, is_new: bool, mark_fuzzy: bool) -> str:
    """Return the new text of a note when an entry's translation is written; "" if the line is to be removed.

    A note is a line `#,` with flags such as `fuzzy`, or a line `#|` with the former source text.

    Args:
        line: one of the entry's notes.
        entry: the entry.
        is_new: True if all strings of the translation are new. Then a fuzzy entry loses its former source text. It also
            loses the flag `fuzzy`, unless `mark_fuzzy` is set. Other flags stay.
        mark_fuzzy: True if the translation is to be flagged fuzzy.
    """
    flags = _flags(line)
    if flags and mark_fuzzy:
        is_first = line == next(each for each in entry.notes if _flags(each))
        return ", ".join(["#", "fuzzy", *flags]) if is_first and not entry.is_fuzzy else line.text
    if not is_new or not entry.is_fuzzy:
        return line.text
    others = [flag for flag in flags if flag != "fuzzy"]
    return ", ".join(["#", *others]) if others else ""


def _outer_breaks(text: str) -> tuple[str, str]:
    """Return two texts, the line breaks at the start and those at the end of a text, which its translation gets too."""
    core = text.strip("\n")
    start = text.index(core) if core else 0
    return text[:start], text[start + len(core) :]
