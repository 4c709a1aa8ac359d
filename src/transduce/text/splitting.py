"""Splitting of texts that are too long for a model: at sentence ends, then at commas, at spaces, or anywhere."""

import re
from collections.abc import Callable, Iterator

from transduce.text.sentence_ends import CALLS, STOPS, UNSPACED

# Sentence ends, including closing quotes and brackets.
_SENTENCE_END = re.compile(rf"(?:{UNSPACED}|[{CALLS}])+[”’\"'」』）)\]]*|(?<![{STOPS}])[{STOPS}]++[”’\"')\]]*+(?=\s)")
# Split points, best first.
_SPLIT_POINTS = (_SENTENCE_END, re.compile(r"[,;:，；：、]+"), re.compile(r"\s+"))


def split_text(text: str, fits: Callable[[str], bool], *, gathers: bool = False) -> list[str]:
    """Split a text into parts that fit; together they are the text, except for spaces between them.

    Args:
        text: a text of any length.
        fits: returns whether a part is short enough; a single character is assumed to fit.
        gathers: whether consecutive sentences form one part as far as they fit; otherwise each sentence is a part.
    """
    if fits(text):
        return [text]
    sentences = [text] if gathers else _cut(text, _SENTENCE_END)
    parts = (part for sentence in sentences for part in _split(sentence, fits, 0 if gathers else 1))
    return [part.strip() for part in parts if part.strip()]


def _split(text: str, fits: Callable[[str], bool], level: int) -> Iterator[str]:
    """Yield as few parts as splitting at the best points permits."""
    if len(text) == 1 or fits(text.strip()):
        yield text
        return
    halves = [text[: len(text) // 2], text[len(text) // 2 :]]
    gathered = ""
    for piece in _cut(text, _SPLIT_POINTS[level]) if level < len(_SPLIT_POINTS) else halves:
        if gathered and not fits((gathered + piece).strip()):
            yield from _split(gathered, fits, level + 1)
            gathered = ""
        gathered += piece
    yield from _split(gathered, fits, level + 1)


def _cut(text: str, points: re.Pattern[str]) -> list[str]:
    """Split a text after each match; the parts concatenated are the text."""
    ends = [match.end() for match in points.finditer(text)]
    parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [part for part in parts if part]
