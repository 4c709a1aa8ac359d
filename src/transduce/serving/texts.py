"""Split a text into sentences to translate, and assemble the translations into a text again.

Each line is translated by itself, as by `transduce translate`; line breaks and empty lines are kept.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transduce.serving.markup import Assemble, markup_plan
from transduce.text.word_spans import Span

_LINE_ENDS = re.compile(r"(\r?\n)")


class Plan(NamedTuple):
    """The sentences of a text to translate, and the function that assembles the translated text."""

    sentences: list[str]
    assemble: Assemble
    """Makes the translated text from the translations, in order, and the aligned spans of their marks."""
    marks: Mapping[int, Sequence[Span]] = {}
    """Spans of the inline elements in each sentence that has some, by sentence number."""


def plan_text(text: str) -> Plan:
    """Return the plan of a plain text: one sentence per line that is not blank."""
    parts = _LINE_ENDS.split(text)  # lines at even indices, line breaks at odd ones
    line_indices = [index for index in range(0, len(parts), 2) if parts[index].strip()]

    def assemble(translations: Sequence[str], spans: Mapping[int, Sequence[Span]]) -> str:  # noqa: ARG001
        translated = [part if index % 2 else "" for index, part in enumerate(parts)]
        for index, translation in zip(line_indices, translations, strict=True):
            translated[index] = translation
        return "".join(translated)

    return Plan([parts[index] for index in line_indices], assemble)


def plan(text: str, format: str, *, spaced: bool) -> Plan:
    """Return the plan of a text in the format `text` or `html`.

    Args:
        text: the text to translate.
        format: `text` or `html`.
        spaced: whether the target language puts spaces between words.
    """
    if format != "html":
        return plan_text(text)
    marked = markup_plan(text, spaced=spaced)
    return Plan(marked.sentences, marked.assemble, marked.marks)
