"""Divide ICU messages with branches into the sentences of the branches, and write their translations.

`You have {n, plural, one {# file} other {# files}}` becomes a sentence for each branch, `You have {#n} file` and `You
have {#n} files`, because a model translates whole sentences. Their translations become the branches of the translated
message. Apostrophes quote as in ICU's default mode (DOUBLE_OPTIONAL).
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice
from typing import NamedTuple

from transduce.documents.units import TAG, Document, MessageRecord, Unit, UntranslatedText, has_letters
from transduce.text.protected import find_protected

_MAX_SENTENCES, _MAX_CHOICES = 64, 16  # of a message
MESSAGE_BRANCHES = re.compile(r"\{\s*+[\w.-]++\s*+,\s*+(?:plural|select|selectordinal|choice)\s*+,")
_ARGUMENT = re.compile(r"\{\s*+(?P<name>[\w.-]++)\s*+(?:\}|,\s*+(?P<type>\w++)\s*+(?:\}|(?P<style>,)))")
_OFFSET = re.compile(r"\s*+offset:\s*+\d++")
_KEY = re.compile(r"\s*+(?:=-?+\d++|[\w-]++)\s*+\{")
_END = re.compile(r"\s*+\}")
_QUOTED = re.compile(r"'[{}#](?:[^']|'')*+'")
_STYLE_BRACE = re.compile(r"'[^']*+'|[{}]")
_LITERAL = re.compile(r"[^{}#']++")


class _Copied(NamedTuple):
    """A piece of an ICU message that a translation copies: an argument such as `{name}`, quoted text, or a `#`."""

    source: str
    shown: str
    """The text that stands for the copied piece in the sentence to translate; for a `#`, its plural's name, as in
    `{#n}`.
    """
    number_of: "_Choice | None" = None
    """The plural argument whose number a `#` stands for; None for arguments and quoted text."""


@dataclass(eq=False)
class _Choice:
    """An argument of an ICU message with branches, such as `{n, plural, one {# file} other {# files}}`."""

    name: str
    is_plural: bool
    has_offset: bool = False
    keys: list[str] = field(default_factory=list)
    """A list with the message's text before the content of each branch, such as `{n, plural, one {` and ` other {`."""
    branches: list["_Pattern"] = field(default_factory=list)
    end: str = "}"
    """The message's text after the closing brace of the last branch, through the argument's own closing brace."""

    def chooses_like(self, other: "_Choice") -> bool:
        """Return whether another argument has the same name and keys, so that both choose the same branch."""
        return ["".join(key.split()) for key in self.keys] == ["".join(key.split()) for key in other.keys]


_Pattern = list[str | _Copied | _Choice]
_Around = tuple[tuple[_Choice, int], ...]
"""The arguments with branches that enclose a place in an ICU message, outermost first, each with a branch index."""


class _MessageReader:
    """A parser of an ICU message; its methods raise ValueError if the message cannot be divided into sentences."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.doubles_apostrophes = False
        """True if the message that was read writes an apostrophe as two ('')."""
        self._choices = 0

    def pattern(self, around: Sequence[_Choice] = ()) -> _Pattern:
        """Read the whole message, or one branch up to its closing brace, and return a list of its parts.

        A part is a text, a `_Copied` or a `_Choice`. `around` has the choices in which a branch is nested; it is empty
        for the whole message.
        """
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
        """Read the branches of an argument, whose `{` is at `start`, into a `_Choice`, and return it."""
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


class _MessageSentence:
    """The sentence of an ICU message for one choice of branches: literal texts, and parts that a translation copies."""

    def __init__(self, parts: Sequence[str | _Copied], around: _Around) -> None:
        """Create the sentence from its parts and the choices around it; a `#` becomes a placeholder such as `{#n}`.

        Raise ValueError if the parts cannot be written back into a branch exactly.
        """
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
        """Return a translation of the sentence as the content of a branch, with quotes as ICU needs them.

        Raise ValueError if the translation lacks a copied part or has one too often.
        """
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


def _sentences(parts: Sequence[str | _Copied | _Choice], around: _Around = ()) -> Iterator[_MessageSentence]:
    """Yield a `_MessageSentence` for each choice of branches; raise ValueError if one cannot be written back."""
    flat = [part for part in parts if not isinstance(part, _Choice)]
    if len(flat) == len(parts):
        yield _MessageSentence(flat, around)
    else:
        for inner, branch in _branches(parts, around):
            yield from _sentences(inner, branch)


def _branches(parts: Sequence[str | _Copied | _Choice], around: _Around) -> Iterator[tuple[_Pattern, _Around]]:
    """Yield a message once for each branch of its first `_Choice`, with the parts of the branch in place of the choice.

    If a choice in `around` has the same name and keys as the first choice, both always take the same branch. Then only
    the branch with the index in `around` is yielded.

    Args:
        parts: the parts of the message, with at least one choice.
        around: the choices that were replaced by a branch before, each with the index of that branch.

    Yields:
        A pair: the parts as a list, and `around` with the first choice and the index of the branch.
    """
    index, choice = next((index, part) for index, part in enumerate(parts) if isinstance(part, _Choice))
    chosen = next((number for other, number in around if choice.chooses_like(other)), None)
    for number, branch in enumerate(choice.branches):
        if chosen in (None, number):
            inside = around if chosen is not None else (*around, (choice, number))
            yield [*parts[:index], *branch, *parts[index + 1 :]], inside


class _Message:
    """An ICU message with branches, divided into sentences to translate, one for each choice of branches."""

    def __init__(self, text: str) -> None:
        """Parse a message and divide it into at most 64 sentences; raise ValueError if that is not possible exactly."""
        reader = _MessageReader(text.strip())
        self.text = text
        self._pattern = reader.pattern()
        self._doubles = reader.doubles_apostrophes
        self._sentences = list(islice(_sentences(self._pattern), _MAX_SENTENCES + 1))
        if len(self._sentences) > _MAX_SENTENCES:
            raise ValueError
        # An inline tag of the message must be in one sentence, and its end tag in the same.
        tags = Counter(tag[0] for each in self._sentences for tag in TAG.finditer(each.text))
        if tags != Counter(tag[0] for tag in TAG.finditer(text)) or not all(map(_is_balanced, self._sentences)):
            raise ValueError
        self.texts = [each.text for each in self._sentences if each.has_letters]
        """A list of the sentences to translate, in the order of the branches; those without a letter are left out."""

    @property
    def plural_forms(self) -> Iterator[frozenset[str]]:
        """An iterator over the plurals of the message, each as a set of its forms, such as `one`, `other` and `=0`."""
        waiting = list(self._pattern)
        for part in waiting:
            if isinstance(part, _Choice):
                waiting += [each for branch in part.branches for each in branch]
                if part.is_plural:
                    yield frozenset(re.split(r"[\s,]", key.removesuffix("{").rstrip())[-1] for key in part.keys)

    def written(self, translations: Sequence[str]) -> str:
        """Return the message with translations of `texts` in its branches; raise ValueError if one lacks an argument.

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


def _is_balanced(sentence: _MessageSentence) -> bool:
    """Return whether each inline start tag `<g>` in a sentence has an end tag, and the other way around."""
    tags = [match["end"] for match in TAG.finditer(sentence.text) if match["name"] == "g" and not match["empty"]]
    depths = list(accumulate(-1 if end else 1 for end in tags))
    return not depths or (depths[-1] == 0 and min(depths) >= 0)


def _is_protected(text: str) -> bool:
    """Return whether all ICU messages with branches in a text lie in protected spans, which translation copies."""
    spans = find_protected(text)
    return all(any(a <= match.start() < b for a, b in spans) for match in MESSAGE_BRANCHES.finditer(text))


def _written(parts: Sequence[str | _Copied | _Choice], texts: Iterator[str], around: _Around = ()) -> str:
    """Return the text of a message whose branches have the given texts, in the order of `_sentences`."""
    choice = next((part for part in parts if isinstance(part, _Choice)), None)
    if choice is None:
        return next(texts)
    inner = list(_branches(parts, around))
    if inner[0][1] == around:  # the argument chooses like one around it
        return _written(inner[0][0], texts, around)
    pairs = zip(choice.keys, inner, strict=True)
    return "".join(f"{key}{_written(each, texts, inside)}}}" for key, (each, inside) in pairs) + choice.end


def with_divided_messages(document: Document) -> Document:
    """Return a document in which each ICU message with branches is replaced by the sentences of its branches.

    If a message cannot be divided exactly, its text is not translated. The exception is a text in which translation
    copies all messages as protected spans: it is translated undivided, and so is HTML. A document without ICU messages
    with branches is returned unchanged.
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
        record.lost, waiting = [], iter(translations)
        for unit, own in zip(document.units, found, strict=True):
            new = list(islice(waiting, len(own.texts if isinstance(own, _Message) else own)))
            try:
                text = own.written(new) if isinstance(own, _Message) else new[0] if own else None
            except ValueError:
                text = None
                record.lost.append(unit.text)
            texts.append(UntranslatedText(unit.text) if text is None else text)
        return document.write(texts)

    return document._replace(units=units, write=write, messages=record)
