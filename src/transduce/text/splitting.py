"""Cutting a text that is too long for a model: at sentence ends; what is still too long at commas, spaces, anywhere."""

import re
from collections.abc import Callable, Iterator

from transduce.text.sentence_ends import CALLS, STOPS, UNSPACED

# A sentence ends after these; closing quotes and brackets stay with it.
_SENTENCE_END = re.compile(rf"(?:{UNSPACED}|[{CALLS}])+[”’\"'」』）)\]]*|(?<![{STOPS}])[{STOPS}]++[”’\"')\]]*+(?=\s)")
# The better places first.
_PLACES = (_SENTENCE_END, re.compile(r"[,;:，；：、]+"), re.compile(r"\s+"))


def split_text(text: str, fits: Callable[[str], bool], *, gathers: bool = False) -> list[str]:
    """Parts that fit: together they are the text, but for spaces between them.

    Args:
        text: of any length.
        fits: whether a part is short enough; a single character is taken to fit.
        gathers: sentences that follow one another are one part as far as they fit; otherwise each is its own.
    """
    if fits(text):
        return [text]
    sentences = [text] if gathers else _cut(text, _SENTENCE_END)
    parts = (part for sentence in sentences for part in _split(sentence, fits, 0 if gathers else 1))
    return [part.strip() for part in parts if part.strip()]


def _split(text: str, fits: Callable[[str], bool], level: int) -> Iterator[str]:
    """As few parts as cutting at the best places allows."""
    if len(text) == 1 or fits(text.strip()):
        yield text
        return
    halves = [text[: len(text) // 2], text[len(text) // 2 :]]
    gathered = ""
    for piece in _cut(text, _PLACES[level]) if level < len(_PLACES) else halves:
        if gathered and not fits((gathered + piece).strip()):
            yield from _split(gathered, fits, level + 1)
            gathered = ""
        gathered += piece
    yield from _split(gathered, fits, level + 1)


def _cut(text: str, places: re.Pattern[str]) -> list[str]:
    """The text cut after each place; the parts concatenated are the text."""
    ends = [match.end() for match in places.finditer(text)]
    parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [part for part in parts if part]
