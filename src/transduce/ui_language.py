"""Show messages in the user's language: the code's English messages are looked up in a catalog, a `.po` file.

The code writes its messages in English, often as f-strings. Where a message is shown, `localized` looks it up. The
catalog's keys are the English messages with fields, such as "`{name}` must be at least {minimum}, but is {value}.". A
message with fields is found by its fixed parts; what stands between them are the fields, which its translation repeats.
Machine-readable output, exceptions' types and the server's answers stay English.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

LANGUAGES = ("en", "zh")
"""Languages that messages exist in; English needs no catalog."""
CATALOGS = Path(__file__).with_name("locale")
"""Folder of the catalogs, `LANGUAGE/LC_MESSAGES/transduce.po`, of which `docs/generate_messages.py` writes the keys."""
_LONGEST_MESSAGE = 20_000  # a longer text is data, not a message

# Fields of a template may be anything if its fixed parts have this many letters; else they have at most 3 words, and
# no phrase of English words, of which "{part} of {whole}" would make a sentence of neither language.
_MIN_LETTERS = 12
_MAX_WORDS = 3
_MEETING = re.compile(r"[\u4e00-\u9fff][\w`]|[\w`][\u4e00-\u9fff]", re.ASCII)  # no space between these
_PHRASE = re.compile(r"\b(?!transduce )[A-Za-z][a-z]+ [a-z]{2,}\b")  # a command is no phrase
# What stands between messages in one text, in this order, and between their translations.
_SEPARATORS = {"\n": "\n", " · ": " · ", "; ": "；", ", ": "，", " and ": "，"}
_BETWEEN_LINES = ("\n", " · ")  # what stands between these is independent
_WORD = re.compile("[a-z]")  # a part without one, such as "BLEU 0.3", is the same in every language
_NAMES = re.compile(r"[\w.*/-]+(?:, (?:[\w.*/-]+|…))+")  # a list of values, which stay as they are
_FULL_WIDTH = "，。；：、（）"  # a mark of this kind has its own space around it

_state = {"language": "en"}


def ui_language() -> str:
    """Return the language of messages: "en", or "zh" after `set_ui_language` or in a command that sets it."""
    return _state["language"]


def select_catalog(language: str) -> None:
    """Show messages in one of `LANGUAGES` from now on, without a check.

    `set_ui_language` is the function that checks its argument.
    """
    _state["language"] = language


def localized(text: str) -> str:
    """Return a message in the user's language.

    The message is unchanged if the language is English, if the catalog lacks the message, or if it is longer than
    20,000 characters. White space around the message stays. If the catalog lacks the whole text, its lines and parts
    are looked up.
    """
    if _state["language"] == "en" or len(text) > _LONGEST_MESSAGE:
        return text
    return _catalog(_state["language"]).translate(text)


def labeled(label: str, text: str) -> str:
    """Return a translated label, a colon and a text that is not translated: "Machine: Linux"."""
    return f"{localized(label)}{': ' if _state['language'] == 'en' else '：'}{text}"


def listed(texts: Iterable[str]) -> str:
    """Join texts with the comma of the user's language, without translating them: "Linux, 2 threads"."""
    return (", " if _state["language"] == "en" else "，").join(texts)


def noted(text: str, note: str) -> str:
    """Return a text with a note in parentheses, without translating either: "7 of 7 (2.1 s)"."""
    return f"{text} ({note})" if _state["language"] == "en" else f"{text}（{note}）"


def column(text: str, width: int, *, right: bool = False) -> str:
    """Return a message in the user's language, padded to a width in terminal columns; `right` aligns it right."""
    return padded(localized(text), width, right=right)


def shortened(text: str, width: int) -> str:
    """Return a text of at most `width` columns of a terminal; the middle of a longer one is replaced by "…"."""
    if columns_of(text) <= width:
        return text
    start, end = text, text
    while columns_of(start) > width // 2:
        start = start[:-1]
    while columns_of(end) > width - 1 - width // 2:
        end = end[1:]
    return f"{start}…{end}"


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a text with spaces added up to a width in terminal columns.

    The spaces follow the text; with `right`, they precede the text. A text that is wider is returned unchanged.
    """
    spaces = " " * (width - columns_of(text))
    return spaces + text if right else text + spaces


def aligned(rows: Sequence[Sequence[str]], *, left: int | None = None) -> list[str]:
    """Return rows of cells as a list of lines with aligned columns.

    A column is as wide as its widest cell in a terminal, where a Chinese character takes two columns.

    Args:
        rows: the rows, with equally many cells.
        left: number of columns, from the first, that are aligned left; the others are aligned right. None: all columns
            are aligned left.
    """
    widths = [max(map(columns_of, cells)) for cells in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            padded(cell, width, right=left is not None and number >= left)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return [line.rstrip() for line in lines]


def columns_of(text: str) -> int:
    """Return the width of a text in terminal columns, of which a Chinese character takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


_CLOSING_MARKS = "、。，．！？：；）」』】》”’"
_OPENING_MARKS = "（「『【《“‘"
# A word, or a character of a script that is divided between characters, with the marks that stay on its line.
_UNIT = re.compile(rf"\s*[{_OPENING_MARKS}]*(?:[^\s\u2e80-\u9fff\uff00-\uffef]+|\S)[{_CLOSING_MARKS}]*")


def wrap(text: str, width: int) -> list[str]:
    """Return a list of the lines into which a text is divided, each of at most `width` columns of a terminal.

    Words longer than that stay whole. Chinese and Japanese are divided between characters, but not before closing or
    after opening punctuation.
    """
    lines = [""]
    for unit in _UNIT.findall(text):
        if lines[-1] and columns_of(lines[-1] + unit) > width:
            lines.append("")
        lines[-1] += unit if lines[-1] else unit.lstrip()
    return lines


# --- the catalog ---

NUMBER = "n"
"""Name of a field that stands for a number only, as in "{n} lines"."""


class Template(NamedTuple):
    """A message with fields: its fixed parts, the names of the fields between them, and the translation."""

    parts: tuple[str, ...]
    names: tuple[str, ...]
    translation: str

    def fields(self, text: str) -> Iterator[dict[str, str]]:
        """Match a text against the template's fixed parts, and yield each match as a dict from field names to texts.

        There are several matches if a fixed part between two fields occurs more than once in the text. At most 16 are
        yielded, those with the shortest first fields first. The field `n` is always a number.
        """
        first, *middle, last = self.parts
        end = len(text) - len(last)
        if not (text.startswith(first) and text.endswith(last)) or end < len(first):
            return
        for values in islice(_divisions(text, middle, len(first), end), _MAX_MATCHES):
            fields = dict(zip(self.names, values, strict=True))
            if fields.get(NUMBER, "0").replace(",", "").replace(".", "").isdigit():
                yield fields

    def is_case_of(self, other: "Template") -> bool:
        """Return whether this template is a special case of another one.

        It is a special case if the other template matches each text that this template matches, and if the fixed parts
        of the two templates differ.
        """
        return self.parts != other.parts and any(other.fields(_ANY.join(self.parts)))


_ANY = "\ue000"  # stands for a field
_MAX_MATCHES = 16
_EDGE = 3  # templates are looked up by this many first and last characters, unless a field begins or ends them earlier


def _divisions(text: str, parts: Sequence[str], start: int, end: int) -> Iterator[list[str]]:
    """Yield the ways to divide `text[start:end]` at these parts, which must occur in this order.

    Each way is a list of the strings before, between and after the parts.
    """
    last = end  # the last place at which the first part leaves the others theirs
    for part in reversed(parts):
        last = text.rfind(part, start, last)
        if last < 0:
            return
    if not parts:
        yield [text[start:end]]
    found = text.find(parts[0], start, last + len(parts[0])) if parts else -1
    while found >= 0:
        for rest in _divisions(text, parts[1:], found + len(parts[0]), end):
            yield [text[start:found], *rest]
        found = text.find(parts[0], found + 1, last + len(parts[0]))


def parse_template(text: str, translation: str) -> Template:
    """Return the `Template` of a message with fields in braces, where two braces stand for one."""
    from string import Formatter  # as the imports in other functions here: `transduce --help` in English needs none

    parts, names = [""], []
    for literal, name, _, _ in Formatter().parse(text):
        parts[-1] += literal
        if name is not None:
            names.append(name)
            parts.append("")
    return Template(tuple(parts), tuple(names), translation)


class Catalog:
    """A catalog of the translations into one language: fixed texts, and templates (messages with fields).

    Templates are ordered from the longest to the shortest. A text is compared only with templates that have the same
    first and last characters, because these are few.
    """

    def __init__(self, translations: Mapping[str, str]) -> None:
        self._texts: dict[str, str] = {}
        templates: list[Template] = []
        for text, translation in translations.items():
            template = parse_template(text, translation)
            if template.names:
                templates.append(template)
            else:
                self._texts[template.parts[0]] = self._fill(translation, {})
        templates.sort(key=lambda each: -sum(map(len, each.parts)))
        self._templates: dict[tuple[str, str], list[tuple[int, Template]]] = {}
        for number, template in enumerate(templates):
            first, last = template.parts[0], template.parts[-1]
            key = (first[:_EDGE] if len(first) >= _EDGE else "", last[-_EDGE:] if len(last) >= _EDGE else "")
            self._templates.setdefault(key, []).append((number, template))

    def translate(self, text: str) -> str:
        """Return the translation of a message; what the catalog lacks stays unchanged.

        If the catalog lacks the whole message, its lines, and parts of lines between " · ", are translated separately.
        A line may be a list of messages. It is translated only if the catalog has all of them: otherwise it may be
        data, such as a list of file names, of which one is a message only by chance.
        """
        core = text.strip()
        found = self.find(core)
        if found is not None:
            # Several messages in one line may match a template by chance, whose fields then hold most of them.
            messages = list(map(self.find, core.split("; "))) if "; " in core else [found]
            joined = "；".join(each for each in messages if each is not None)
            found = found if None in messages else min(found, joined, key=_letters)
            before, _, after = text.partition(core) if core else (text, "", "")
            begins, ends = found.startswith(tuple(_FULL_WIDTH)), found.endswith(tuple(_FULL_WIDTH))
            return f"{before.rstrip(' ') if begins else before}{found}{after.lstrip(' ') if ends else after}"
        for separator, translated in _SEPARATORS.items():
            if separator in text:
                parts = text.split(separator)
                shown = [self.translate(part) for part in parts]
                if separator in _BETWEEN_LINES:
                    return separator.join(shown)
                is_known = all(one != other or not _WORD.search(one) for one, other in zip(parts, shown, strict=True))
                return translated.join(shown) if is_known and shown != parts else text
        return text

    def find(self, text: str) -> str | None:
        """Return the translation of a whole message; None if neither a fixed text nor a template matches it."""
        if text in self._texts:
            return self._texts[text]
        matches = [(template, fields) for template in self._candidates(text) for fields in template.fields(text)]
        matches = [(template, fields) for template, fields in matches if self._is_plausible(template, text, fields)]
        found = [
            self._fill(template.translation, fields)
            for template, fields in matches
            if not any(other.is_case_of(template) for other, _ in matches)
        ]
        # Of those left, the right template is the one by which most is translated: it leaves the fewest letters.
        return min(found, key=_letters, default=None)

    def _candidates(self, text: str) -> list[Template]:
        """Return the templates whose first and last characters agree with a text, in the catalog's order."""
        keys = product({"", text[:_EDGE]}, {"", text[-_EDGE:]})
        return [template for _, template in sorted(each for key in keys for each in self._templates.get(key, ()))]

    def _is_plausible(self, template: Template, text: str, fields: Mapping[str, str]) -> bool:
        """Return whether a text matches a template, with these fields, not only by chance.

        A template of one line matches only one line. A field that the translation leaves out must be an ending or a
        word, such as "s" or "has". In a template with few letters, fields must be short or translated themselves.
        """
        fixed = "".join(template.parts)
        left_out = [value for name, value in fields.items() if f"{{{name}" not in template.translation]
        if ("\n" in text and "\n" not in fixed) or not all(
            re.fullmatch("(?:[a-z]+ ?){0,2}", value) for value in left_out
        ):
            return False
        if sum(map(str.isalpha, fixed)) >= _MIN_LETTERS:
            return True
        return all(
            len(value.split()) <= _MAX_WORDS and not _PHRASE.search(value)
            for value in self._untranslated(template, fields).values()
        )

    def _untranslated(self, template: Template, fields: Mapping[str, str]) -> dict[str, str]:
        """Return a dict by name of the fields that stay untranslated in the translation.

        A field stays untranslated unless the translation marks it with `!t` and the catalog has its text.
        """
        return {
            name: value
            for name, value in fields.items()
            if f"{{{name}!t}}" not in template.translation or self.translate(value) == value
        }

    def _fill(self, translation: str, fields: Mapping[str, str]) -> str:
        """Return a translation with its fields filled in.

        The text of a field `{name!t}` is translated, too. The text of `{name!n}` is a list of names, of which only
        "none" is translated. `{name!w}` is a number of millions, which is shown in units of 10,000, as Chinese counts.
        If a field begins or ends with a Latin letter, a space separates the letter from a Chinese character beside it.
        """
        from string import Formatter

        result = ""
        for literal, name, _, conversion in Formatter().parse(translation):
            result = _joined(result, literal)
            if name is not None:
                value = fields[name]
                if conversion == "t" or (conversion == "n" and value == "none"):
                    value = self.translate(value)
                if conversion == "w" and re.fullmatch(r"[\d,]+(?:\.\d+)?", value):
                    value = f"{100.0 * float(value.replace(',', '')):,.0f}"
                if _NAMES.fullmatch(value) and not result.endswith(("`", '"')):
                    value = value.replace(", ", "、")
                result = _joined(result, value)
        return result


def _letters(text: str) -> int:
    """Return the number of English letters in a text."""
    return sum(letter.isascii() and letter.isalpha() for letter in text)


def _joined(before: str, after: str) -> str:
    """Return both texts as one, with a space where a Chinese character meets a Latin letter, but not in backticks."""
    is_quoted = before.count("`") % 2 == 1
    return f"{before} {after}" if not is_quoted and _MEETING.fullmatch(before[-1:] + after[:1]) else before + after


def read_translations(language: str) -> dict[str, str]:
    """Return a dict from English messages to their translations, read from the catalog of a language.

    Empty translations are left out.
    """
    import json

    content = (CATALOGS / language / "LC_MESSAGES" / "transduce.po").read_text("utf-8")
    entries = re.findall(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"\n)+)', content, re.MULTILINE)
    # The quoted lines of a text form one string, whose escapes are those of JSON.
    texts = iter(json.loads(lines.replace('"\n"', "")) for entry in entries for lines in entry)
    return {text: translation for text, translation in zip(texts, texts, strict=True) if text and translation}


@cache
def _catalog(language: str) -> Catalog:
    return Catalog(read_translations(language))
