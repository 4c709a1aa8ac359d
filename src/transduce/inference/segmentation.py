"""Divide texts into sentences and layout before translation, and put the translated texts together again.

Layout is everything that a model should not see: line ends, indentation, list marks, tabs, spaces at the ends of lines,
and lines without a letter. It is copied to the translation unchanged.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from transduce.text.protected import find_protected
from transduce.text.sentences import find_sentences
from transduce.text.text_settings import TextSettings
from transduce.text.word_spans import Span


class Sentence(NamedTuple):
    """A sentence of a text, or a part of a sentence that is too long for the model."""

    text: str
    """The sentence without the spaces and the layout around it."""
    offsets: Sequence[int]
    """For each character of the sentence and for its end, the offset in the source text."""
    protected: tuple[Span, ...] = ()
    """Spans of the sentence that translation must not change, in order and disjoint."""

    def source_span(self, span: Span) -> Span:
        """Return the span of the source text that a span of the sentence comes from."""
        end = self.offsets[span.end - 1] + 1 if span.end > span.start else self.offsets[span.start]
        return Span(self.offsets[span.start], end)


class Gap(NamedTuple):
    """The layout between two sentences of a text, before the first one, or after the last one."""

    text: str
    """The text to write into the translation."""
    is_soft: bool = False
    """True for the space between two sentences of a line, which is left out beside an empty translation."""


class SegmentedText(NamedTuple):
    """A text divided into sentences and layout."""

    source: str
    sentences: list[Sentence]
    gaps: list[Gap]
    """The gap before each sentence, and the one after the last; one more than there are sentences."""


class LayoutWriter:
    """A writer of one translated text, sentence by sentence, with the layout of its source."""

    def __init__(self, segmented: SegmentedText) -> None:
        self._gaps = iter(segmented.gaps)
        self._pending = ""
        self._line_has_text = False

    def next_gap(self) -> str:
        """Return the layout before the next sentence, or at the end; a soft gap waits for the sentence's first text."""
        gap = next(self._gaps)
        if gap.is_soft:
            self._pending = gap.text if self._line_has_text else ""
            return ""
        self._pending, self._line_has_text = "", False
        return gap.text

    def write(self, text: str) -> str:
        """Return further text of the current sentence, with the soft gap before its first text."""
        if not text:
            return ""
        gap, self._pending, self._line_has_text = self._pending, "", True
        return gap + text


class Segmenter:
    """A function from texts to sentences and layout, for one model and one choice of settings."""

    def __init__(
        self,
        settings: TextSettings,
        *,
        splits: bool,
        separator: str,
        source_language: str | None,
        passes_wordless: bool,
        cut: Callable[[str], list[str]],
    ) -> None:
        """Create a segmenter.

        Args:
            settings: the settings of the texts.
            splits: whether sentences of one line are translated one by one.
            separator: text between two sentences in the target language.
            source_language: code of the source language.
            passes_wordless: whether lines without a letter are copied instead of translated.
            cut: splits a sentence that is too long for the model into parts.
        """
        self.settings = settings
        self._splits = splits
        self._separator = separator
        self._source_language = source_language
        self._passes_wordless = passes_wordless
        self._cut = cut

    def __call__(self, text: str, protected: Sequence[Span] | None = None) -> SegmentedText:
        """Return a text divided into sentences and layout.

        Args:
            text: a text of any length.
            protected: spans that translation must not change; None: those that `find_protected` finds.
        """
        spans = find_protected(text, self.settings.protect) if protected is None else list(protected)
        collector = _Collector(text, spans, self._separator)
        for line in _lines(text, spans, joins=self.settings.lines == "join"):
            self._add_line(line, collector)
        return collector.finish()

    def _add_line(self, line: "_Line", collector: "_Collector") -> None:
        text, offsets = line
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        if start >= end:
            return
        is_first = True
        for span in self._sentences(text, Span(start, end)):
            position = span.start
            for part in self._cut(text[span.start : span.end]):
                position = text.index(part, position)
                collector.add(part, offsets[position : position + len(part) + 1], follows=not is_first)
                position += len(part)
                is_first = False

    def _sentences(self, text: str, body: Span) -> Iterator[Span]:
        if not self._splits:
            yield body
            return
        for start, end in find_sentences(text[body.start : body.end]):
            yield Span(body.start + start, body.start + end)


class _Line(NamedTuple):
    """A line of a text, or several joined lines."""

    text: str
    offsets: Sequence[int]
    """For each character and for the end, the offset in the source text."""


_LINE_END = re.compile("\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")


def _lines(text: str, protected: Sequence[Span], *, joins: bool) -> Iterator[_Line]:
    """Yield the lines of a text without their ends."""
    start = 0
    for match in _LINE_END.finditer(text):
        if joins or any(span.start < match.end() and match.start() < span.end for span in protected):
            continue
        yield _Line(text[start : match.start()], range(start, match.start() + 1))
        start = match.end()
    yield _Line(text[start:], range(start, len(text) + 1))


class _Collector:
    """A list of sentences that grows in the order of the source, with the gaps between them."""

    def __init__(self, source: str, protected: Sequence[Span], separator: str) -> None:
        self._source = source
        self._protected = protected
        self._separator = separator
        self._end = 0
        self._sentences: list[Sentence] = []
        self._gaps: list[Gap] = []

    def add(self, text: str, offsets: Sequence[int], *, follows: bool) -> None:
        """Append a sentence; `follows` states that it stands in the same line as the sentence before it."""
        between = self._source[self._end : offsets[0]]
        gap = Gap(self._separator if between in ("", " ") else between, is_soft=True) if follows else Gap(between)
        self._gaps.append(gap)
        start, self._end = offsets[0], offsets[-1]
        inside = tuple(
            Span(span.start - start, span.end - start)
            for span in self._protected
            if start <= span.start and span.end <= self._end
        )
        self._sentences.append(Sentence(text, offsets, inside))

    def finish(self) -> SegmentedText:
        """Return the collected sentences with their gaps."""
        return SegmentedText(self._source, self._sentences, [*self._gaps, Gap(self._source[self._end :])])
