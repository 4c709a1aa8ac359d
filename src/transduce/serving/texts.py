"""A text of a request → the sentences to translate, and their translations → the text again.

Lines are translated one by one, as `transduce translate` does it; line ends and empty lines stay as they are.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transduce.serving.markup import Assemble, markup_plan
from transduce.text.word_spans import Span

_LINE_ENDS = re.compile(r"(\r?\n)")


class Plan(NamedTuple):
    """What is to be translated, and what becomes of it."""

    sentences: list[str]
    assemble: Assemble
    """The translations of the sentences, in order, and where their marks are in them, to the translated text."""
    marks: Mapping[int, Sequence[Span]] = {}
    """The marked parts of those sentences that have some."""


def plan_text(text: str) -> Plan:
    """Of plain text."""
    pieces = _LINE_ENDS.split(text)  # lines at even places, line ends between them
    spoken = [place for place in range(0, len(pieces), 2) if pieces[place].strip()]

    def assemble(translations: Sequence[str], places: Mapping[int, Sequence[Span]]) -> str:  # noqa: ARG001
        translated = [piece if place % 2 else "" for place, piece in enumerate(pieces)]
        for place, translation in zip(spoken, translations, strict=True):
            translated[place] = translation
        return "".join(translated)

    return Plan([pieces[place] for place in spoken], assemble)


def plan(text: str, format: str, *, spaced: bool) -> Plan:
    """Of text or HTML; `spaced` is whether the target language puts spaces between words."""
    if format != "html":
        return plan_text(text)
    marked = markup_plan(text, spaced=spaced)
    return Plan(marked.sentences, marked.assemble, marked.marks)
