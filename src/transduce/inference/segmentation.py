"""Divide texts into sentences and layout before translation, and put the translated texts together again.

Layout is everything that a model should not see: line ends, indentation, list marks, tabs, spaces at the ends of lines,
and lines without a letter. It is copied to the translation unchanged.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from transduce.text.files import compose, is_composed
from transduce.text.languages import CJK, SOFT_HYPHEN
from transduce.text.protected import find_protected
from transduce.text.sentences import CALLS, STOPS, UNSPACED, find_sentences, line_separator
from transduce.text.text_settings import TextSettings
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import NormalizedText, Span, normalized_text, span_in_full_text


class Sentence(NamedTuple):
    """A sentence of a text, or a part of a sentence that is too long for the model."""

    text: str
    """The text of the sentence, without the spaces, emoji and layout around it."""
    offsets: Sequence[int]
    """The character offset in the source text of each character of the sentence; the last item is that of the
    sentence's end.
    """
    protected: tuple[Span, ...] = ()
    """Character spans of the sentence that translation must not change, in order and disjoint."""

    def source_span(self, span: Span) -> Span:
        """Return the character span of the source text that a character span of the sentence comes from."""
        return span_in_full_text(self.offsets, span)


class Gap(NamedTuple):
    """The layout (spaces, line ends, list marks, lines without letters) between sentences, or at an end of a text."""

    text: str
    """The text to write into the translation: that of the source, with spaces as the target language has them."""
    start: int = 0
    """The character offset of the layout in the source text; one less if `text` begins with an additional space."""
    is_sentence_space: bool = False
    """True for the space between two sentences of a line, which is left out beside an empty translation."""


class SegmentedText(NamedTuple):
    """A text divided into sentences and the layout (spaces, line ends, list marks) between the sentences."""

    source: str
    sentences: list[Sentence]
    gaps: list[Gap]
    """The layout before each sentence, and after the last one; one item more than there are sentences."""
    protected: Sequence[Span] = ()
    """Character spans of the source that translation must not change, in order and disjoint."""
    original: str = ""
    """The source as the caller passed it, before composition (NFC)."""
    origin: NormalizedText | None = None
    """The mapping from characters of the source, which is composed, to those of `original`; None: both are equal."""

    def protected_in_gap(self, number: int) -> list[Span]:
        """Return a list of the protected spans in the `Gap` with index `number`, as offsets in the gap's text.

        A gap is the layout before a sentence or at the end of the text. The list is empty for a mere space between two
        sentences of a line.
        """
        gap = self.gaps[number]
        if gap.is_sentence_space:
            return []
        inside = spans_between(self.protected, gap.start, gap.start + len(gap.text))
        return [span.shifted(-gap.start) for span in inside]


class LayoutWriter:
    """A writer of a translated text, sentence by sentence, with the line ends, list marks and spaces of its source."""

    def __init__(self, segmented: SegmentedText) -> None:
        self._gaps = iter(segmented.gaps)
        self._pending = ""
        self._line_has_text = False

    def next_gap(self) -> str:
        """Return the layout (line ends, list marks, spaces) before the next sentence, or at the end of the text.

        For two sentences in the same line, the result is empty. The space between the two sentences is returned by
        `write`, because it is not needed if a translation is empty.
        """
        gap = next(self._gaps)
        if gap.is_sentence_space:
            self._pending = gap.text if self._line_has_text else ""
            return ""
        self._pending, self._line_has_text = "", False
        return gap.text

    def write(self, text: str) -> str:
        """Return the next part of a sentence's translation as it is to be written.

        If the sentence follows another one in its line, the space between the two is put before its first part. Empty
        text is returned as it is.
        """
        if not text:
            return ""
        gap, self._pending, self._line_has_text = self._pending, "", True
        return gap + text


# --- from texts to sentences ---


# Numbers of sections: "2.3.1 Title", and "2.3 标题" unless the number is a quantity or the subject of the sentence.
_NO_TITLE = (
    r"(?!是|为|的|和|或|与|至|到|版|以[上下]|左右|多|余|几|[万亿千百十兆倍成度元圆块角米克斤吨升秒岁级折寸尺瓦伏个次]"
    r"|公[斤里分尺顷升吨]|[厘毫微纳千][米克升秒瓦]|[平立]方|[美欧日港英]元|英[里寸尺镑]|小时(?!候)|分钟|分之|[天年月]|人民币|百分)"
)
_SECTION_NUMBER = (
    rf"(?:[1-9]\d?(?:\.[1-9]\d?){{1,5}}[ \t\u3000\u00a0]+(?=[{CJK}]){_NO_TITLE}"
    r"|[1-9]\d?(?:\.[1-9]\d?){2,5}[ \t\u3000\u00a0]+(?=[A-ZÄÖÜÀ-Þ]))"
)
_LETTER = r"[^\W\d_]"
# List marks, and quotation marks of e-mail, at a line's start: "- ", "* [x] ", "1. ", "2、", "a) ", "(3)", "①", "※".
_LIST_MARK = re.compile(
    r"(?:(?:[-*+•·‣◦▪▫■□●○◆◇►▶➤→✓✔☐☑★☆–—>]|\#{1,6})[ \t\u3000\u00a0]+(?:\[[ xX]\]\s+)?"
    rf"|(?:\d{{1,3}}(?:\.\d{{1,3}})*[.)]|{_LETTER}\)|\((?![{CJK}]){_LETTER}\)|[ivx]{{2,5}}[.)])[ \t\u3000\u00a0]+"
    rf"|{_SECTION_NUMBER}"
    rf"|\d{{1,3}}(?:[、）]|．(?!\d)|\.(?=[{CJK}]))\s*"
    r"|[一二三四五六七八九十]{1,3}、(?![一二三四五六七八九十]{1,3}[、，])\s*|[(（](?:\d{1,3}|[a-zA-Z]|[ivx]{1,5}|[一二三四五六七八九十]{1,3})[)）]\s*"
    r"|[\u2460-\u249b\u24eb-\u24ff\u2776-\u2793\u3220-\u3229\u3280-\u3289]\s*"
    r"|[・･※][ \t\u3000\u00a0]*)+"
)
# Numbers and letters of list items within a line.
_ITEM_NUMBER = re.compile(
    rf"(?:\d{{1,3}}(?:[.)](?!\d)|[、）])|(?![{CJK}]){_LETTER}[)）]|[(（](?:\d{{1,3}}|(?![{CJK}]){_LETTER})[)）]"
    r"|[\u2460-\u249b\u24eb-\u24ff\u2776-\u2793])\s*"
)
# In some languages a number with a full stop is also an ordinal: "5. Mai".
_ORDINAL = re.compile(r"\d{1,3}\.\s+(?:Jan|Feb|Mär|Mar|Apr|Mai|May|Jun|Jul|Aug|Sep|Okt|Oct|Nov|De[zc])", re.IGNORECASE)
_LINE_END = re.compile("\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
_LINE_END_BUT_FEED = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_SPACED_DASH = re.compile(r"\s[-–—]$")
_EMOJI = "\u2190-\u21ff\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001fbff\ufe0f\u200d"
_EMOJI_OR_SPACES = re.compile(rf"[\s{_EMOJI}]+")


@dataclass(frozen=True)
class Segmenter:
    """A function that divides texts into sentences and the layout between them (spaces, list marks), for one model."""

    settings: TextSettings
    """The settings of the texts."""
    _: KW_ONLY
    splits: bool
    """True if sentences of one line are translated one by one."""
    separator: str
    """Text between two sentences in the target language: a space, or nothing."""
    source_language: str | None
    """Code of the source language; None: unknown."""
    passes_wordless: bool
    """True if texts without a letter are copied instead of translated."""
    reads_line_feeds: bool = False
    """True if the model reads line feeds, so that a text with several lines is translated whole."""
    composes: bool = False
    """True if texts outside of protected spans are composed (Unicode NFC), as the model reads them."""
    read: Callable[[str], str] = str
    """Function from a sentence to the sentence as the model reads it, such as `Vocabulary.readable`."""
    cut: Callable[[str, Sequence[Span]], list[str]]
    """Function from a sentence and its protected spans to a list of parts that are short enough for the model."""

    @property
    def _keeps_lines(self) -> bool:
        settings = self.settings
        return self.reads_line_feeds and settings.lines == "separate" and settings.split_sentences != "always"

    def __call__(self, text: str, protected: Sequence[Span] | None = None) -> SegmentedText:
        """Return a `SegmentedText`: a text's sentences, and the spaces, line ends and list marks between them.

        Args:
            text: a text of any length.
            protected: spans that translation must not change, in order and disjoint; None: those that `find_protected`
                finds.
        """
        original, origin = text, None
        spans = find_protected(text, self.settings.protect) if protected is None else protected
        if self.composes and not is_composed(text):
            origin = normalized_text(text, compose, spans)
            text, spans = origin.text, list(map(origin.normalized_span, spans))
        collector = _Collector(text, spans, self.separator, self.read)
        lines = _lines(text, spans, _LINE_END_BUT_FEED if self._keeps_lines else _LINE_END)
        for line in _paragraphs(lines) if self.settings.lines == "join" else lines:
            self._add_line(line, collector)
        return collector.finish()._replace(original=original, origin=origin)

    def _add_line(self, line: "_SourceLine", collector: "_Collector") -> None:
        text, offsets = line
        protected = _local_spans(collector.protected, offsets)
        for start, end in self._cells(text):
            if not text[:start].strip() and (mark := list_mark_length(text[start:end])):
                start += mark
                if text[start - 1] in ".)":
                    collector.skip_wordless()
            follows = False
            for sentence in self._sentences(text, _stripped(text, Span(start, end), protected), protected):
                words = _without_emoji(text, sentence, protected) if self.passes_wordless else sentence
                item = _item_number(text[slice(*words)]) if follows and self.passes_wordless else 0
                words = Span(words.start + item, words.end)
                inner = _relative(protected, words)
                if self.passes_wordless and not _has_letter(text[slice(*words)], inner):
                    collector.skip_wordless()
                    continue
                position = words.start
                if position > sentence.start:
                    collector.skip_wordless(takes_no_space=item > 0 and text[position - 1] not in ".)")
                for part in self.cut(text[slice(*words)], inner):
                    position = text.index(part, position)
                    collector.add(part, offsets[position : position + len(part) + 1], follows=follows)
                    position += len(part)
                    follows = True
                if words.end < sentence.end:
                    collector.skip_wordless()
            collector.end_cell()

    def _cells(self, text: str) -> Iterator[Span]:
        """Yield the character spans between the tabs of a line, which separate columns.

        If texts are never split into sentences, the whole line is one span.
        """
        if self.settings.split_sentences == "never":
            yield Span(0, len(text))
            return
        start = 0
        for cell in text.split("\t"):
            yield Span(start, start + len(cell))
            start += len(cell) + 1

    def _sentences(self, text: str, body: Span, protected: Sequence[Span]) -> Iterator[Span]:
        if body.start >= body.end:
            return
        spans = [Span(0, body.end - body.start)]
        if self.splits and not (self._keeps_lines and "\n" in text[slice(*body)]):
            spans = find_sentences(text[slice(*body)], self.source_language, _relative(protected, body))
        yield from (span.shifted(body.start) for span in spans)


class _SourceLine(NamedTuple):
    """A line of a text, or a paragraph of joined lines, with the source offset of each character."""

    text: str
    offsets: Sequence[int]
    """The character offset in the source text of each character of the line, and of the line's end."""


def _lines(text: str, protected: Sequence[Span], end: re.Pattern[str]) -> Iterator[_SourceLine]:
    """Yield the lines of a text, without line ends.

    Args:
        text: the text.
        protected: the protected spans; a line end that overlaps one of these does not end a line.
        end: the pattern of a line end.
    """
    start = 0
    for match in end.finditer(text):
        if _overlapping(protected, Span(*match.span())):
            continue
        yield _SourceLine(text[start : match.start()], range(start, match.start() + 1))
        start = match.end()
    yield _SourceLine(text[start:], range(start, len(text) + 1))


def _paragraphs(lines: Iterable[_SourceLine]) -> Iterator[_SourceLine]:
    """Join consecutive lines of wrapped text to paragraphs, and yield each paragraph as one line.

    An empty line ends a paragraph, and is not yielded. A line with a list mark begins a new paragraph.
    """
    text, offsets = "", list[int]()
    for line in lines:
        words = line.text.strip()
        if text and (not words or list_mark_length(line.text)):
            yield _SourceLine(text, offsets)
            text, offsets = "", []
        if not words:
            continue
        if not text:
            text, offsets = line.text, list(line.offsets)
            continue
        before, skipped = text.rstrip(), len(line.text) - len(line.text.lstrip())
        # A dash after a space is between words, and a soft hyphen divides a word.
        space = " " if _SPACED_DASH.search(before) else line_separator(before, words)
        if before.endswith(SOFT_HYPHEN):
            before, space = before[:-1], ""
        # A space comes from the characters that it replaces: from the end of the line before it.
        offsets = [*offsets[: len(before)], *offsets[len(before) : len(before) + len(space)], *line.offsets[skipped:]]
        text = before + space + line.text[skipped:]
    if text:
        yield _SourceLine(text, offsets)


def join_wrapped_lines(lines: Iterable[str]) -> Iterator[str]:
    """Join consecutive lines of wrapped text to paragraphs, and yield each paragraph as one line.

    Blank lines end a paragraph and are yielded unchanged. A line with a list mark begins a new paragraph.
    """
    for is_blank, group in groupby(lines, lambda line: not line.strip()):
        if is_blank:
            yield from group
        else:
            yield from (
                paragraph.text for paragraph in _paragraphs(_SourceLine(each, range(len(each) + 1)) for each in group)
            )


def list_mark_length(line: str) -> int:
    """Return the number of characters in a line's indentation and list mark; 0 without a mark.

    A mark with nothing after it does not count, nor does the ordinal number of a date, such as "5. Mai".
    """
    indentation = len(line) - len(line.lstrip())
    match = _LIST_MARK.match(line, indentation)
    if match is None or _ORDINAL.match(line, indentation) or not line[match.end() :].strip():
        return 0
    return match.end()


def _item_number(sentence: str) -> int:
    """Return the number of characters in a list number such as "2) " at the start of a sentence; 0 without one.

    An ordinal number of a date, such as "5. Mai", does not count, nor does a number with nothing after it.
    """
    match = _ITEM_NUMBER.match(sentence)
    return 0 if match is None or _ORDINAL.match(sentence) or match.end() == len(sentence) else match.end()


def _stripped(text: str, span: Span, protected: Sequence[Span]) -> Span:
    """Return a character span of a text without the spaces at its ends, except those that a protected span has."""
    inner = text[slice(*span)]
    start = span.start + len(inner) - len(inner.lstrip())
    return _widened(Span(start, max(start, span.start + len(inner.rstrip()))), span, protected)


def _without_emoji(text: str, span: Span, protected: Sequence[Span]) -> Span:
    """Return a character span of a text without the emoji and spaces at its ends, unless they are protected.

    If nothing else is in it, the span is returned unchanged.
    """
    start, end = span
    if (match := _EMOJI_OR_SPACES.match(text, start, end)) is not None:
        start = match.end()
    if start == end:
        return span
    while _EMOJI_OR_SPACES.match(text, end - 1, end):
        end -= 1
    return _widened(Span(start, end), span, protected)


def _widened(span: Span, limits: Span, protected: Sequence[Span]) -> Span:
    """Return a character span, widened within `limits` so that neither of its ends is inside a protected span."""
    start, end = span
    for edge in _overlapping(protected, Span(start, start)) + _overlapping(protected, Span(end, end)):
        start = min(start, max(edge.start, limits.start)) if edge.start < start < edge.end else start
        end = max(end, min(edge.end, limits.end)) if edge.start < end < edge.end else end
    return Span(start, end)


def _has_letter(text: str, protected: Sequence[Span]) -> bool:
    """Return whether a text has a letter outside of its protected spans."""
    edges = [0, *(edge for span in protected for edge in span), len(text)]
    return any(any(map(str.isalpha, text[start:end])) for start, end in list(pairwise(edges))[::2])


# --- spans ---


_start, _end = attrgetter("start"), attrgetter("end")


def spans_between(spans: Sequence[Span], start: int, end: int) -> list[Span]:
    """Return a list of those of some character spans that lie completely between two offsets.

    `spans` are in order and disjoint.
    """
    return list(spans[bisect_left(spans, start, key=_start) : bisect_right(spans, end, key=_end)])


def _overlapping(spans: Sequence[Span], span: Span) -> list[Span]:
    """Return a list of the spans that overlap a given span; `spans` are in order and disjoint.

    An empty span is overlapped by a span that contains its offset.
    """
    limit = max(span.end, span.start + 1)
    return list(spans[bisect_right(spans, span.start, key=_end) : bisect_left(spans, limit, key=_start)])


def _relative(spans: Sequence[Span], bounds: Span) -> list[Span]:
    """Return a list of the spans that lie completely within `bounds`, as offsets from the start of `bounds`."""
    return [span.shifted(-bounds.start) for span in spans_between(spans, *bounds)]


def _local_spans(spans: Sequence[Span], offsets: Sequence[int]) -> list[Span]:
    """Return a list of the spans that lie completely in a line, as character offsets in the line.

    `spans` are offsets in the source text. `offsets` has the offset in the source text of each character of the line,
    and of the line's end.
    """
    inside = spans_between(spans, offsets[0], offsets[-1])
    return [Span(bisect_left(offsets, start), bisect_left(offsets, end)) for start, end in inside]


_NARROW_MARKS = str.maketrans("。！？", ".!?")


class _Collector:
    """A collector of a text's sentences, in order, which derives the layout between them from the source text."""

    def __init__(
        self, source: str, protected: Sequence[Span], separator: str, read: Callable[[str], str] = str
    ) -> None:
        self.protected = protected
        self._read = read
        self._source = source
        self._separator = separator
        self._end = 0
        self._sentences: list[Sentence] = []
        self._gaps: list[Gap] = []
        self._is_new_cell = True
        self._is_wordless_after = self._is_wordless_before = False

    def add(self, text: str, offsets: Sequence[int], *, follows: bool) -> None:
        """Append a sentence, whose characters are at `offsets` of the source, and the layout before it.

        `follows` is True if the sentence before it is in the same line.
        """
        between = self._source[self._end : offsets[0]]
        if follows and not between.strip():
            is_usual = between in ("", " ") or _LINE_END.search(between)
            gap = Gap(self._separator if is_usual else between, self._end, is_sentence_space=True)
        else:
            gap = self._copied(between)
        self._gaps.append(gap)
        self._end = offsets[-1]
        self._is_new_cell = self._is_wordless_after = self._is_wordless_before = False
        protected = _local_spans(self.protected, offsets)
        if self._read(text) != text:
            read = normalized_text(text, self._read, protected)
            text, offsets = read.text, [offsets[start] for start in read.starts]
            protected = list(map(read.normalized_span, protected))
        self._sentences.append(Sentence(text, offsets, tuple(protected)))

    def skip_wordless(self, *, takes_no_space: bool = False) -> None:
        """Record that a text without a letter (emoji, numbers, list marks) follows, which is copied to the translation.

        With `takes_no_space`, no space is added between the copied text and the sentence after it, as for "2、".
        """
        self._is_wordless_after = self._is_wordless_after or not self._is_new_cell
        self._is_wordless_before = not takes_no_space

    def end_cell(self) -> None:
        """Record the end of a line or of a table column; no space is added there beside copied text."""
        self._is_new_cell, self._is_wordless_before = True, False

    def _copied(self, between: str) -> Gap:
        """Return the source text between two sentences as a `Gap`, with the target language's spaces where needed."""
        text, start = between, self._end
        is_wordless = self._is_wordless_after or self._is_wordless_before
        if self._separator and is_wordless and _LINE_END.search(between) is None:
            text = self._with_narrow_marks(start, start + len(between))
        if self._is_wordless_after and not between[:1].isspace():
            text, start = self._separator + text, start - len(self._separator)
        if self._is_wordless_before and not between[-1:].isspace():
            text += self._separator
        return Gap(text, start)

    def _with_narrow_marks(self, start: int, end: int) -> str:
        """Return the source text from `start` to `end`, its full-width 。！？ made narrow except in protected spans."""
        spans = spans_between(self.protected, start, end)
        edges = [start, *(edge for span in spans for edge in span), end]
        parts = [self._source[slice(*edge)] for edge in pairwise(edges)]
        return "".join(part if index % 2 else part.translate(_NARROW_MARKS) for index, part in enumerate(parts))

    def finish(self) -> SegmentedText:
        """Return a `SegmentedText` of the collected sentences and the layout around them."""
        gaps = [*self._gaps, self._copied(self._source[self._end :])]
        return SegmentedText(self._source, self._sentences, gaps, self.protected)


# --- parts of long sentences ---
# Texts that are too long for a model are split at sentence ends, then at commas, at spaces, or anywhere.


# Marks of sentence ends, including closing quotes and brackets. A full stop may also follow an abbreviation.
_SENTENCE_MARK = re.compile(rf"(?:{UNSPACED}|[{CALLS}])+[”’\"'」』）)\]]*|(?<![{STOPS}])[{STOPS}]++[”’\"')\]]*+(?=\s)")
# Split points within sentences, best first.
_SPLIT_POINTS = (re.compile(r"[,;:，；：、]+"), re.compile(r"\s+"))


def split_text(
    text: str, fits: Callable[[str], bool], *, gathers: bool = False, language: str | None = None
) -> list[str]:
    """Split a text into a list of parts that are short enough for a model; spaces between the parts are left out.

    Args:
        text: a text of any length.
        fits: returns whether a part is short enough; a single character is assumed to fit.
        gathers: True to join consecutive sentences as far as they fit; otherwise each sentence is a part of its own.
        language: code of the text's language, which decides on abbreviations; None: unknown.
    """
    if fits(text):
        return [text]
    sentences = _cut(Span(0, len(text)), _sentence_ends(text, language))
    spans = (
        _gather(text, sentences, fits, 0) if gathers else (s for each in sentences for s in _split(text, each, fits, 0))
    )
    return [text[start:end].strip() for start, end in spans if text[start:end].strip()]


def _sentence_ends(text: str, language: str | None) -> list[int]:
    """Return a list of the offsets at which the sentences of a text end.

    A full stop ends a sentence only if `find_sentences` agrees, which knows the abbreviations of the language.
    """
    found = {span.end for span in find_sentences(text, language)}
    matches = _SENTENCE_MARK.finditer(text)
    return [match.end() for match in matches if match[0][0] not in STOPS or match.end() in found]


def _split(text: str, span: Span, fits: Callable[[str], bool], level: int) -> Iterator[Span]:
    """Divide a span of a text into spans that are as long as `fits` permits, and yield them.

    The span is divided at commas if `level` is 0. Parts that are still too long are divided at spaces (level 1), and
    then in the middle. A single character is yielded even if it does not fit.
    """
    start, end = span
    if end - start == 1 or fits(text[start:end].strip()):
        yield span
        return
    if level < len(_SPLIT_POINTS):
        points = [start + match.end() for match in _SPLIT_POINTS[level].finditer(text[start:end])]
    else:
        points = [start + (end - start) // 2]
    yield from _gather(text, _cut(span, points), fits, level + 1)


def _gather(text: str, parts: Sequence[Span], fits: Callable[[str], bool], level: int) -> Iterator[Span]:
    """Join consecutive parts of a text as far as they fit, and yield the joined spans.

    A part that does not fit by itself is divided by `_split`.
    """
    gathered = parts[0]
    for part in parts[1:]:
        joined = Span(gathered.start, part.end)
        if fits(text[slice(*joined)].strip()):
            gathered = joined
        else:
            yield from _split(text, gathered, fits, level)
            gathered = part
    yield from _split(text, gathered, fits, level)


def _cut(span: Span, points: Sequence[int]) -> list[Span]:
    """Split a span at offsets in ascending order, and return a list of the parts that are not empty."""
    return [Span(*edge) for edge in pairwise([span.start, *points, span.end]) if edge[0] < edge[1]]


# One character of a private-use area stands for a protected span while a sentence is cut.
_MARKS = range(0xF0000, 0xFFFFE)


def cut_long_sentence(
    sentence: str,
    protected: Sequence[Span],
    *,
    vocabulary: Vocabulary,
    max_tokens: int,
    gathers: bool,
    language: str | None = None,
) -> list[str]:
    """Split a sentence into parts of at most `max_tokens` tokens; return their texts. A short sentence is one part.

    Args:
        sentence: a sentence of any length.
        protected: character spans of the sentence that are never split, in order and disjoint. The model does not see
            them, so consecutive spans, with only spaces between, count as one token (a placeholder).
        vocabulary: the source vocabulary.
        max_tokens: maximum number of tokens in a part, without the end symbol.
        gathers: True if consecutive sentences form one part as far as they fit. Models trained on longer texts need the
            context; models trained on sentences translate single sentences best.
        language: code of the sentence's language, which decides on abbreviations; None: unknown.
    """
    # A token has at least one byte, so short sentences need no counting, unless the tokenizer lengthens the text (ﷺ).
    is_short = (
        not vocabulary.may_lengthen and len(vocabulary.normalize(sentence).encode("utf-8", "replace")) < max_tokens
    )
    if is_short or not sentence.strip():
        return [sentence]
    used = set(sentence) if protected else ()
    mark = next((character for character in map(chr, _MARKS) if character not in used), "")
    protected = protected if mark else ()
    counter, run = _TokenCounter(vocabulary), re.compile(rf"{mark}[{mark}\s]*+")
    cut = partial(split_text, gathers=gathers, language=language)

    def fits(text: str, count: Callable[[str], int]) -> bool:
        visible, runs = run.subn(" ", text) if protected and mark in text else (text, 0)
        return count(visible.strip() if runs else text) + runs <= max_tokens

    edges = [0, *(edge for span in protected for edge in span), len(sentence)]
    masked = mark.join(sentence[start:end] for start, end in list(pairwise(edges))[::2])
    # Imported vocabularies may have space tokens, which the counter ignores, so the parts are checked exactly.
    parts = [
        exact
        for part in cut(masked, lambda text: fits(text, counter.count))
        for exact in cut(part, lambda text: fits(text, lambda visible: len(vocabulary.encode(visible))))
    ]
    spans = iter(protected)
    return [re.sub(mark, lambda _: sentence[slice(*next(spans))], part) if protected else part for part in parts]


class _TokenCounter:
    """A counter of the tokens of texts.

    The number of tokens of each word is cached, because no token crosses a space.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.known: dict[str, int] = {}

    def count(self, text: str) -> int:
        """Return the number of tokens in a text."""
        words = text.split(" ")
        if len(words) == 1:
            return len(self.vocabulary.encode(text))
        return sum(map(self._count_word, words))

    def _count_word(self, word: str) -> int:
        if word not in self.known:
            self.known[word] = len(self.vocabulary.encode(word))
        return self.known[word]
