"""Translate HTML, XML and plain text, keeping their structure.

A document in HTML or XML is a sequence of texts, divided by block elements such as paragraphs. A text is translated as
a whole, with the protected elements in it (`translate="no"`, code, …) as protected spans. Afterwards each inline tag
is put around the translation of the words that it enclosed, which the model aligns.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.entities import html5
from itertools import accumulate, islice, pairwise
from typing import NamedTuple
from unicodedata import east_asian_width

import msgspec

from transduce.argument_checks import as_texts
from transduce.documents.icu_messages import MESSAGE_BRANCHES
from transduce.documents.markup_blocks import (
    STAND_IN,
    Block,
    Rendering,
    has_too_many_tags,
    is_row,
    read_block,
    render,
)
from transduce.documents.markup_tokens import (
    CLOSING_CODES,
    OPENING_CODES,
    MarkupSettings,
    Token,
    has_words,
    read_tokens,
    split_white_space,
    translatable_values,
    unescape,
)
from transduce.errors import explain_wrong_types
from transduce.inference.batching import Documents
from transduce.inference.glossary_search import GlossaryLike
from transduce.inference.translation import Translation
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.text.languages import is_unspaced_language, is_unspaced_or_punctuation, is_word_character
from transduce.text.protected import find_protected
from transduce.text.sentences import SENTENCE_MARKS, find_sentences
from transduce.text.text_settings import TextSettings
from transduce.text.word_spans import Span

_MAX_NESTED_ROWS = 8
_BRACE = re.compile("[{}]")
_MAX_MESSAGE_PARTS = 100  # texts and tags in an ICU message

# --- plans ---


_Marks = Mapping[int, Sequence[Span]]
_Copies = Mapping[int, Sequence[tuple[Span, Span]]]


class MarkupPlan(NamedTuple):
    """An HTML, XML or plain-text document prepared for translation: its texts, and the function that writes it."""

    sentences: list[str]
    """A list of the document's texts to translate, each of one or more sentences."""
    write: Callable[[Sequence[str], _Marks, _Copies], str]
    """A function that returns the translated document; its arguments are those of `assemble`, none of them None."""
    marks: Mapping[int, Sequence[Span]] = {}
    """A mapping from the index of each text with inline tags to the spans of the tagged words, nested or disjoint,
    which are to be aligned with the translation.
    """
    protected: Mapping[int, Sequence[Span]] = {}
    """A mapping from the index of each text with protected elements to the spans that stand for these and must not
    change.
    """

    def assemble(
        self, translations: Sequence[str], marks: _Marks | None = None, protected: _Copies | None = None
    ) -> str:
        """Return the translated document as text.

        Args:
            translations: the translation of each text, in order.
            marks: for the index of each text with inline tags, the spans in its translation of the tagged words. If the
                spans are unknown, the tags are placed in proportion to the text's length.
            protected: for the index of each text with protected spans, pairs of a span in the text and its span in the
                translation.
        """
        return self.write(translations, marks or {}, protected or {})


def protected_spans(text: str, elements: Sequence[Span], text_settings: TextSettings) -> list[Span]:
    """Return a list of the spans of a text that translation must not change, in order and disjoint.

    The list has the spans of protected elements, and those of addresses, placeholders and the like. An address or the
    like that overlaps a protected element is left out.

    Args:
        text: the text.
        elements: the spans of the characters that stand for protected elements, such as `<code>`.
        text_settings: settings whose field `protect` names what else must not change.
    """
    found = find_protected(text, text_settings.protect)
    others = [span for span in found if not any(e.start < span.end and span.start < e.end for e in elements)]
    return sorted([*elements, *others])


_LINE_ENDS = re.compile(r"(\r?\n)")


def plan_text(text: str, *, joins_lines: bool = False) -> MarkupPlan:
    """Prepare a plain text for translation as a `MarkupPlan`: each line that is not blank is translated by itself.

    Args:
        text: the text.
        joins_lines: translate all lines as one text instead.

    Returns:
        The lines, and a function that puts the translated lines between the original line breaks and blank lines.
    """
    parts = [text] if joins_lines else _LINE_ENDS.split(text)  # lines at even indices, line breaks at odd ones
    line_indices = [index for index in range(0, len(parts), 2) if parts[index].strip()]

    def write(translations: Sequence[str], _marks: _Marks, _copies: _Copies) -> str:
        translated = list(parts)
        for index, translation in zip(line_indices, translations, strict=True):
            translated[index] = translation
        return "".join(translated)

    return MarkupPlan([parts[index] for index in line_indices], write)


def markup_plan(document: str, settings: MarkupSettings | None = None, *, spaced: bool) -> MarkupPlan:
    """Prepare an HTML or XML document for translation as a `MarkupPlan`: divide it into texts, with inline tags aside.

    Args:
        document: the document, which may be malformed.
        settings: how the document is divided into texts; None: the defaults, for HTML.
        spaced: True if the target language puts spaces between words.

    Returns:
        The texts, their spans to align and to protect, and a function that assembles the translated document.
    """
    return _Planner(document, settings or MarkupSettings(), spaced=spaced).plan()


def join_plans(plans: Sequence[MarkupPlan], write: Callable[[Sequence[str]], str]) -> MarkupPlan:
    """Join the plans of several documents, such as parts of a file, into one `MarkupPlan`, to translate all together.

    Args:
        plans: for each document, what to translate in it and how to assemble it.
        write: makes the result of the joint plan from the assembled documents.
    """
    starts = list(accumulate((len(each.sentences) for each in plans), initial=0))

    def write_all(translations: Sequence[str], marks: _Marks, copies: _Copies) -> str:
        return write(
            [
                each.write(
                    translations[start : start + len(each.sentences)],
                    {number: marks[start + number] for number in each.marks},
                    {number: copies[start + number] for number in each.protected},
                )
                for start, each in zip(starts, plans, strict=False)
            ]
        )

    return MarkupPlan(
        [sentence for each in plans for sentence in each.sentences],
        write_all,
        {start + n: spans for start, each in zip(starts, plans, strict=False) for n, spans in each.marks.items()},
        {start + n: spans for start, each in zip(starts, plans, strict=False) for n, spans in each.protected.items()},
    )


# --- markup ---

_MarkupPart = Token | int
"""A part of a document that is assembled: a string or tag that is copied, or the index of a text to translate."""


class _Planner:
    """A divider of one HTML or XML document into texts to translate, which keeps the tags of each text."""

    def __init__(self, document: str, settings: MarkupSettings, *, spaced: bool) -> None:
        self.settings = settings
        self.spaced = spaced
        self.sentences: list[str] = []
        self.blocks: dict[int, Block] = {}
        """A dict from the index of a text in the document's body to its `Block` with inline tags; attributes' texts
        have none.
        """
        self.tokens = [self._with_texts(token) for token in read_tokens(document, settings)]
        self.escape = _Escape(self.tokens, settings)

    def plan(self) -> MarkupPlan:
        """Return a `MarkupPlan` of the document: its texts, their tags' spans, and the assembling function."""
        parts: list[_MarkupPart] = []
        for block in _blocks(self.tokens, self.settings):
            parts += self._parts(_with_whole_messages(block))
        protected = ((n, [Span(node.start, node.end) for node in block.protected]) for n, block in self.blocks.items())
        return MarkupPlan(
            self.sentences,
            lambda translations, marks, copies: _Assembly(self, translations, marks, copies).document(parts),
            {number: spans for number, block in self.blocks.items() if (spans := block.located())},
            {number: spans for number, spans in protected if spans},
        )

    def _with_texts(self, token: Token) -> Token:
        """Add the translatable values of a tag's attributes, such as `title`, to the texts of the document.

        Returns:
            The tag with (start, end, index of the text) for each value; values without words are left out.
        """
        texts = []
        for start, end in translatable_values(token, self.settings):
            value = " ".join(unescape(token.source[start:end], self.settings).split())
            if has_words(value):
                texts.append((start, end, len(self.sentences)))
                self.sentences.append(value)
        return token._replace(texts=tuple(texts))

    def _parts(self, tokens: Sequence[Token], depth: int = 0) -> list[_MarkupPart]:
        """Add a text with inline tags to the texts of the document, and return what stands for it.

        A row of elements, such as a menu's links, becomes one text for each element. A text with too many tags becomes
        one text for each string between tags.

        Args:
            tokens: the strings and tags of the text.
            depth: how many rows enclose the text. At a depth of eight, rows are not divided further.

        Returns:
            A list, in order, of the tokens that stay as they are and the indices of the added texts. For a text without
            words, the result is the tokens.
        """
        first, last = _unwrapped(tokens)
        around = (list[_MarkupPart](tokens[:first]), list[_MarkupPart](tokens[last:]))
        inner = tokens[first:last]
        block = read_block(inner, self.settings)
        if block is None and has_too_many_tags(inner):
            return [*around[0], *map(self._text, inner), *around[1]]
        if block is None:
            return list(tokens)
        if depth < _MAX_NESTED_ROWS and is_row(block, self.settings):
            parts = [part for run in _runs(inner) for part in (self._parts(run, depth + 1) if len(run) > 1 else run)]
            return [*around[0], *parts, *around[1]]
        number = len(self.sentences)
        self.sentences.append(block.text)
        self.blocks[number] = block
        return [*around[0], number, *around[1]]

    def _text(self, token: Token) -> _MarkupPart:
        """Add the string of a token to the texts of the document, and return its index.

        A tag, or a string without words, is not added and is returned itself.
        """
        block = read_block([token], self.settings) if token.kind == "text" else None
        if block is None:
            return token
        self.sentences.append(block.text)
        self.blocks[len(self.sentences) - 1] = block
        return len(self.sentences) - 1


def _blocks(tokens: Iterable[Token], settings: MarkupSettings) -> Iterator[list[Token]]:
    """Yield lists of a document's tokens (strings and tags), one for each text that is translated as a whole.

    Every tag or line break that ends a text, such as `<p>`, is a list by itself.
    """
    block: list[Token] = []
    for token in tokens:
        if token.kind != "block":
            block.append(token)
            continue
        yield from _paragraphs(block, settings)
        yield [token]
        block = []
    yield from _paragraphs(block, settings)


def _paragraphs(tokens: list[Token], settings: MarkupSettings) -> Iterator[list[Token]]:
    """Divide a text with inline tags at line breaks, and yield the tokens of each part as a list.

    The text is not divided at a line break in the middle of a sentence, nor at a tag in `non_splitting_tags`. A line
    break that divides the text is a list by itself.
    """
    breaks = [index for index, token in enumerate(tokens) if token.kind == "break"]
    if not breaks:
        yield from _divided_at_marks(tokens, settings)
        return
    lines = [
        unescape("".join(token.source for token in tokens[start:end] if token.kind in ("text", "protected")), settings)
        for start, end in zip([0, *(index + 1 for index in breaks)], [*breaks, len(tokens)], strict=True)
    ]
    position = 0
    for number, index in enumerate(breaks):
        joins = tokens[index].name in settings.non_splitting_tags
        if not joins and not _continues(lines[number], lines[number + 1]):
            yield from _divided_at_marks(tokens[position:index], settings)
            yield [tokens[index]]
            position = index + 1
    yield from _divided_at_marks(tokens[position:], settings)


def _divided_at_marks(tokens: list[Token], settings: MarkupSettings) -> Iterator[list[Token]]:
    """Divide a text at wordless tags between two sentences, and yield the tokens of each part as a list.

    Examples of such tags are note numbers and images. Each such tag is a list by itself, and so stays between the
    translated sentences.
    """
    fixed = OPENING_CODES | CLOSING_CODES | set(settings.non_splitting_tags)
    marks = {index for index, token in enumerate(tokens) if token.kind == "empty" and token.name not in fixed}
    plain, starts = "", list[int]()
    for token in tokens:
        starts.append(len(plain))
        if token.kind == "text":
            plain += re.sub(r"\s", " ", unescape(token.source, settings))
        elif token.kind in ("protected", "break"):
            plain += STAND_IN if token.kind == "protected" else " "
    sentences = find_sentences(plain, settings.source_language) if marks and not MESSAGE_BRANCHES.search(plain) else []
    position = 0
    for index in sorted(marks):
        if any(one.end <= starts[index] <= other.start for one, other in pairwise(sentences)):
            yield from [tokens[position:index]] if index > position else []
            yield [tokens[index]]
            position = index + 1
    yield from [tokens[position:]] if position < len(tokens) else []


_LINE_ENDS_TEXT = re.compile(rf"[{SENTENCE_MARKS}:：;；][\"'”’»)）」』\]]*$")
# A list item, or a label such as "Address:".
_STARTS_ITEM = re.compile(r"(?:[-–—*•·▪◦●■]|\(?\w{1,3}[.)、])\s|[①-⓿・･※]|[^:：]{1,16}[:：]")
_MIN_WRAPPED_WORDS = 5  # in a line that may have been wrapped by hand before a word with a capital letter


def _continues(line: str, following: str) -> bool:
    """Return whether the sentence at the end of a line probably goes on in the following line.

    Punctuation, list marks, the case of the next letter and the number of words decide; False if a line has no words.
    """
    line, following = line.strip(), following.strip()
    if not has_words(line) or not has_words(following) or _LINE_ENDS_TEXT.search(line) or _STARTS_ITEM.match(following):
        return False
    first = next(character for character in following if character.isalnum())
    if first.islower() or line.endswith((",", "，", "、", "-", "(", "（")):
        return True
    if not first.isupper() and not first.isdigit():
        return True  # scripts without capital letters
    words = [word for word in line.split() if word[0].isalpha()]
    return len(words) >= _MIN_WRAPPED_WORDS and sum(word[0].islower() for word in words) * 2 >= len(words)


def _with_whole_messages(tokens: list[Token]) -> list[Token]:
    """Return a text's tokens as a list in which each ICU message with branches is one protected token.

    The protected token includes the tags in the message. A message is not protected in two cases: its end is missing,
    or it contains only one tag of a pair.
    """
    result: list[Token] = []
    waiting = list(reversed(tokens))
    while waiting:
        token = waiting.pop()
        match = MESSAGE_BRANCHES.search(token.source) if token.kind == "text" else None
        if match is None:
            result.append(token)
            continue
        source, taken, depth, end = "", list[Token](), 0, -1
        part = Token("text", token.source[match.start() :])
        while end < 0:
            for brace in _BRACE.finditer(part.source) if part.kind == "text" else ():
                depth += 1 if brace[0] == "{" else -1
                if not depth:
                    end = len(source) + brace.end()
                    break
            source += part.source
            if end >= 0 or not waiting or len(taken) == _MAX_MESSAGE_PARTS:
                break
            part = waiting.pop()
            taken.append(part)
        pairs = Counter(each.pair for each in taken if each.kind in ("start", "end"))
        if end < 0 or any(count != 2 for count in pairs.values()):
            result.append(token)
            waiting += reversed(taken)
            continue
        before = token.source[: match.start()]
        result += [Token("text", before)] if before else []
        result.append(Token("protected", source[:end]))
        waiting += [Token("text", source[end:])] if source[end:] else []
    return result


def _unwrapped(tokens: Sequence[Token]) -> tuple[int, int]:
    """Return the range of a text's tokens inside of outer white space and of elements around the whole text.

    The range is (start index, end index); the end index is exclusive.
    """
    first, last = 0, len(tokens)
    while first < last:
        if tokens[first].kind == "text" and not split_white_space(tokens[first].source)[1]:
            first += 1
        elif tokens[last - 1].kind == "text" and not split_white_space(tokens[last - 1].source)[1]:
            last -= 1
        elif tokens[first].kind == "start" and tokens[first].pair == tokens[last - 1].pair and last - first > 1:
            first, last = first + 1, last - 1
        else:
            break
    return first, last


def _runs(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the tokens of each outermost inline element, such as a link, as one list, and other tokens one by one."""
    ends = {token.pair: index for index, token in enumerate(tokens) if token.kind == "end"}
    position = 0
    while position < len(tokens):
        token = tokens[position]
        stop = ends.get(token.pair, position) if token.kind == "start" else position
        yield list(tokens[position : stop + 1])
        position = max(stop, position) + 1


@dataclass
class _Assembly:
    """A writer of one translated HTML or XML document, from its texts' translations and the spans of their tags."""

    planner: _Planner
    translations: Sequence[str]
    marks: _Marks
    protected: _Copies

    def document(self, parts: Sequence[_MarkupPart]) -> str:
        """Return the translated document as HTML or XML text.

        A space is inserted between two texts where the target language needs one and the source has none, and left out
        where the target language has none. Between two unchanged texts everything stays as it is.

        Args:
            parts: the copied strings and tags, and the indices of the translated texts, in order.
        """
        written: list[str] = []
        last_start = -1  # index of the first start tag after the last text
        source_end = translated_end = ""  # last characters of the last text, if no other text or block follows
        last_is_changed = False
        for part in parts:
            if not isinstance(part, int):
                if part.kind == "start" and last_start < 0:
                    last_start = len(written)
                if part.kind not in ("start", "end", "empty"):
                    source_end = translated_end = ""
                written.append(self._tag(part))
                continue
            source, translated = "".join(t.source for t in self.planner.blocks[part].tokens), self._text(part)
            is_spaced = self.planner.spaced or _SPACED_SENTENCES.match(translated_end[-1:]) is not None
            is_changed = self.translations[part] != self.planner.sentences[part]
            gap = ""
            if is_changed or last_is_changed:
                if is_spaced:
                    gap = _gap(source_end, source, translated_end, translated)
                elif all(map(is_unspaced_or_punctuation, (translated_end[-1:], translated.strip()[:1]))):
                    translated = translated.lstrip(" ")
            if gap:
                written.insert(last_start if last_start >= 0 else len(written), gap)
            written.append(translated)
            source_end, translated_end, last_start = source[-1:], translated, -1
            last_is_changed = is_changed
        return "".join(written)

    def _text(self, number: int) -> str:
        """Return the translation of the text with this index, with the inline tags of its source around its words.

        A tag whose words were not aligned is put at about the same share of the text's length.
        """
        block = self.planner.blocks[number]
        spans = dict(zip(block.located(), self.marks.get(number, ()), strict=False))
        text = self.translations[number]
        for source in block.located():  # without an alignment, at about the same share of the text
            share = len(text) / max(1, len(block.text))
            spans.setdefault(source, Span(round(source.start * share), round(source.end * share)))
        protected = {source.start: target for source, target in self.protected.get(number, ())}
        rendering = Rendering(self._tag, self.planner.escape, self.planner.spaced)
        return render(block, text, spans, protected, rendering)

    def _tag(self, token: Token) -> str:
        """Return the source of a tag, with the translated values of its attributes, escaped and quoted."""
        written, position = "", 0
        for start, end, number in token.texts:
            source, translation = token.source[start:end], self.translations[number]
            value = source
            if translation != self.planner.sentences[number]:
                quote = token.source[start - 1]
                value = html.escape(translation, quote=False)
                if quote == ">":  # a text in an image
                    before, _, after = split_white_space(source)
                    value = f"{before}{value}{after}"
                else:
                    value = value.replace('"', "&quot;").replace("'", "&#39;")
                    value = f'"{value}"' if quote not in "\"'" else value
            written += token.source[position:start] + value
            position = end
        return written + token.source[position:]


_SPACE_FOLLOWS = (".", ",", "!", "?", ";", ":", ")", '"', "”", "’", "…", "។", "။")


# Characters of Thai, Lao, Burmese and Khmer, which have spaces between sentences, though not between words.
_SPACED_SENTENCES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")


def _gap(source_before: str, source: str, before: str, after: str) -> str:
    """Return the text to insert between two translated texts: " " if a space is needed there, otherwise "".

    A space is needed if three conditions hold:

    * one of the sources has a wide (East Asian) character where the two sources meet;
    * the first translation ends with a letter, a digit, or a mark that a space follows;
    * the second translation starts with a letter or a digit.

    Args:
        source_before: source of the first text, or only the end of this source.
        source: source of the second text.
        before: translation of the first text.
        after: translation of the second text.
    """
    is_between_wide = any(east_asian_width(letter) == "W" for letter in (*source_before[-1:], *source[:1]))
    ends_word = bool(before) and (is_word_character(before[-1]) or before.endswith(_SPACE_FOLLOWS))
    between_words = ends_word and after[:1].isalnum()
    return " " if is_between_wide and between_words else ""


_NAMED = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_TEMPLATE = re.compile(r"\{%.{1,1000}?%\}|\{\{.{1,1000}?\}\}|\{#.{1,1000}?#\}", re.DOTALL)


class _Escape:
    """A function that escapes translated text in the same way as the source HTML or XML document.

    A character becomes an entity if the document always writes it as this entity. Template code, such as
    `{% if a > b %}`, is written as it is in the document.
    """

    def __init__(self, tokens: Iterable[Token], settings: MarkupSettings) -> None:
        sources = [token.source for token in tokens if token.kind == "text"]
        codes = [code for source in sources for code in _TEMPLATE.findall(source)]
        self._codes = {" ".join(unescape(code, settings).split()): code for code in codes}
        texts = [_TEMPLATE.sub("", source) for source in sources]
        entities = {entity: html.unescape(entity) for text in texts for entity in _NAMED.findall(text)}
        written = {character for text in texts for character in _NAMED.sub("", text)}
        known = {
            character: entity
            for entity, character in entities.items()
            if len(character) == 1
            and character not in written
            and not character.isspace()
            and not (character.isascii() and character.isalnum())
            and (settings.kind == "html" or entity.startswith("&#") or entity[1:] in html5)
        }
        always = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
        may_end_data = settings.kind != "html" and "]" in written  # XML forbids `]]>` in text
        if ">" in written and ">" not in entities.values() and not may_end_data:
            del always[">"]
        self._table = str.maketrans(always | known)

    def __call__(self, text: str) -> str:
        """Return a text with `&`, `<` and other characters as entities, as its HTML or XML document writes these."""
        written, position = "", 0
        for match in _TEMPLATE.finditer(text) if self._codes else ():
            code = self._codes.get(match[0])
            if code is not None:
                written += text[position : match.start()].translate(self._table) + code
                position = match.end()
        return written + text[position:].translate(self._table)


# --- translation ---


@explain_wrong_types
def translate_markup(
    translator: Translator,
    documents: Sequence[str],
    settings: MarkupSettings | None = None,
    *,
    search: SearchSettings | None = None,
    glossary: GlossaryLike = None,
    text_settings: TextSettings | None = None,
    before: Sequence[tuple[str, str]] | None = None,
) -> list[str]:
    """Translate documents in HTML or XML.

    Text is translated, and so are the attributes that `settings` names. Tags keep their nesting.

    Args:
        translator: the model.
        documents: the documents, which may be malformed.
        settings: how documents are divided into texts, which attributes are translated, and which elements stay
            unchanged; None: the defaults, for HTML.
        search: search settings; None: the translator's defaults.
        glossary: terms that must be translated as specified.
        text_settings: settings for the texts; None: the translator's defaults.
        before: pairs of an earlier text and its translation. If `before` is passed, even empty, all `documents` are
            consecutive parts of one document. Models with `data.context_before` then read earlier texts as context.
            None: each item is a document of its own.

    Returns:
        A list of the translated documents, in order.

    Raises:
        TransduceError: an option is invalid, as in `Translator.translate`.
    """
    texts = text_settings or translator.text
    settings = with_source_language(settings or MarkupSettings(), translator.source_language)
    spaced = not is_unspaced_language(translator.target_language)
    plans = [markup_plan(document, settings, spaced=spaced) for document in as_texts(documents)]
    translations = translator.translate(
        [sentence for each in plans for sentence in each.sentences],
        search or translator.search,
        glossary=glossary,
        text_settings=texts,
        protected=[
            protected_spans(text, each.protected.get(number, ()), texts)
            for each in plans
            for number, text in enumerate(each.sentences)
        ],
        documents=Documents(
            [
                number > 0 or (before is not None and (bool(before) or plan > 0))
                for plan, each in enumerate(plans)
                for number in range(len(each.sentences))
            ],
            before or (),
        ),
    )
    return assemble_plans(plans, translations, lambda *marked: translator.locate(*marked, glossary=glossary))


def with_source_language(settings: MarkupSettings, language: str | None) -> MarkupSettings:
    """Return markup settings with a source language, unless they have one; None (unknown) changes nothing."""
    if language is None or settings.source_language is not None:
        return settings
    return msgspec.structs.replace(settings, source_language=language)


Locate = Callable[[Sequence[Translation], Sequence[Sequence[Span]]], Sequence[Sequence[Span]]]
"""A function that finds the spans in translations that correspond to marked spans of their sources.

An example is `Translator.locate`.
"""


def assemble_plans(plans: Sequence[MarkupPlan], translations: Sequence[Translation], locate: Locate) -> list[str]:
    """Return a list of translated documents, each assembled from the translations of its texts.

    Args:
        plans: the prepared documents.
        translations: the translations of their texts, one document after another.
        locate: the function that aligns the spans of tagged words; called once for all documents, or not at all if
            there are none.
    """
    waiting = iter(translations)
    found = [(each, list(islice(waiting, len(each.sentences)))) for each in plans]
    marked = [(own[number], spans) for each, own in found for number, spans in each.marks.items()]
    located = iter(locate([pair[0] for pair in marked], [pair[1] for pair in marked]) if marked else ())
    return [
        each.write(
            [one.text for one in own],
            {number: next(located) for number in each.marks},
            {number: own[number].protected for number in each.protected},
        )
        for each, own in found
    ]
