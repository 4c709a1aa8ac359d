"""Running text → documents of sentences: hard-wrapped lines are joined, then sentences are split.

A document is a list of sentences in their order. In a hard-wrapped file (a book) a line ends where the next word would
not have fitted, sentences end anywhere in it, an empty line ends a paragraph, and the file is one document. In any
other file a line is a paragraph, and an empty line ends a document.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

from transduce.text.files import read_lines
from transduce.text.languages import stands_without_spaces
from transduce.text.sentence_ends import CALLS, STOPS, UNSPACED

# What is looked at to tell how a file is written.
_LOOKED_AT = 2_000
# Books are wrapped at 60 to 80 characters.
_WIDEST = 120
_FULL_SHARE = 0.8
# Wrapped prose has a sentence's end within a line every few lines, and most lines that go on with a sentence begin with
# a small letter, if the script has any; titles, names and words have no ends, and the lines of a log begin with digits.
_LEAST_ENDS, _MOST_LARGE = 0.05, 0.75
# What leaves so much of the width empty was not wrapped: a heading, a verse.
_SHORT_SHARE = 0.6
# Ends of sentences: the mark, with the quotes and brackets that close after it.
_END = re.compile(rf"(?P<spaced>[{STOPS}{CALLS}]+[”’\"'»)\]]*(?=\s))|{UNSPACED}+[」』”’）»)\]]*(?:[\"'](?=\s))?")
# A sentence begins with a capital, a digit, or what opens a quotation.
_LOWER_CASE = re.compile(r"\s+[\"“‘'«(\[—–-]*[a-zà-öø-ÿ]")
_ABBREVIATION = re.compile(
    r"mr|mrs|ms|messrs|mme|mlle|dr|st|prof|rev|hon|capt|col|gen|lieut|lt|sergt|sgt|maj|gov|sir|jr|sr|esq|"
    r"vols?|chap|ch|nos?|figs?|eqs?|pp?|cf|eds?|al|vs|viz|etc|e\.g|i\.e|inc|ltd|co|corp|dept|univ|approx|ca|mt|ft",
    re.IGNORECASE,
)
_OPENING = "\"“‘'«([—–-_"
_LAST_WORD = re.compile(r"([^\s\"“‘'(\[—–-]+)\.$")


def read_documents(path: str | Path) -> Iterator[list[str]]:
    """The documents of a text file, plain or gzip.

    Raises:
        TransduceError: the file cannot be read.
    """
    lines = read_lines(path)
    first = list(islice(lines, _LOOKED_AT))
    rest = _chain(first, lines)
    if is_hard_wrapped(first):
        sentences = _wrapped_sentences(first, rest)
        yield from [sentences] if sentences else []
    else:
        yield from _documents_of_lines(rest)


def sentences_of(text: str) -> list[str]:
    """The sentences of one document, whose lines may be hard-wrapped."""
    lines = text.split("\n")
    if is_hard_wrapped(lines):
        return _wrapped_sentences(lines, lines)
    return [sentence for document in _documents_of_lines(lines) for sentence in document]


def _wrapped_sentences(first: Sequence[str], lines: Iterable[str]) -> list[str]:
    """The sentences of a hard-wrapped text, whose first lines tell the width."""
    paragraphs = join_lines(lines, _width(_followed(first)))
    return [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]


def _chain(first: Iterable[str], rest: Iterable[str]) -> Iterator[str]:
    yield from first
    yield from rest


def _documents_of_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    document: list[str] = []
    for line in lines:
        if line.strip():
            document += split_sentences(" ".join(line.split()))
        elif document:
            yield document
            document = []
    if document:
        yield document


def is_hard_wrapped(lines: Sequence[str]) -> bool:
    """Whether text was wrapped by width: lines end where the next word would not have fitted, sentences within lines.

    The second is what tells prose from a list, whose lines may well be about as long.
    """
    followed = _followed(lines)
    if len(followed) < 2:
        return False
    width = _width(followed)
    full = sum(len(line) + 1 + _first_word(after) > width for line, after in followed)
    return width <= _WIDEST and full >= _FULL_SHARE * len(followed) and _runs_on(followed)


def _followed(lines: Sequence[str]) -> list[tuple[str, str]]:
    """The lines that another one follows, with that one."""
    return [(line.rstrip(), after.strip()) for line, after in pairwise(lines) if line.strip() and after.strip()]


def _width(followed: Sequence[tuple[str, str]]) -> int:
    """Typesetters let lines be somewhat longer or shorter, so the width is what most lines keep within."""
    return sorted(len(line) for line, _ in followed)[(len(followed) - 1) * 3 // 4]


def _runs_on(followed: Sequence[tuple[str, str]]) -> bool:
    """Whether sentences go on from line to line: they end within lines, more often than with them."""
    within = at_end = large = 0
    for line, after in followed:
        ends = list(_find_ends(f"{line} ", before_small=True))
        ended = bool(ends) and ends[-1] == len(line)
        within += len(ends) - ended
        at_end += ended
        first = after.lstrip(_OPENING)[:1]
        large += not ended and (first.isupper() or first.isdigit())
    is_prose = within > max(at_end, _LEAST_ENDS * len(followed))
    return is_prose and large <= _MOST_LARGE * (len(followed) - at_end)


def _first_word(line: str) -> int:
    """Characters that cannot be parted from the beginning of a line: none in a script without spaces."""
    word = line.split(maxsplit=1)[0]
    return 0 if stands_without_spaces(word[0]) else len(word)


def join_lines(lines: Iterable[str], width: int = 0) -> Iterator[str]:
    """Paragraphs, each on one line: what stands between empty lines, with one space where a line ended.

    There is no space after a dash, for two words that it joins stay joined, and none in a script without spaces.

    Args:
        lines: of a text.
        width: at which the text was wrapped. A line that ends far from it stays a line, unless a small letter follows:
            contents, verses. 0: all lines are joined.
    """
    paragraph, last = "", ""
    for line in lines:
        text = " ".join(line.split())
        if paragraph and (not text or _ends_early(last, text, width)):
            yield paragraph
            paragraph = text
        elif paragraph:
            closed = paragraph.endswith(("-", "—")) or (_is_unspaced(paragraph[-1]) and _is_unspaced(text[0]))
            paragraph += text if closed else f" {text}"
        else:
            paragraph = text
        last = line.rstrip()
    if paragraph:
        yield paragraph


def _ends_early(line: str, after: str, width: int) -> bool:
    fits = len(line) + 1 + _first_word(after) <= _SHORT_SHARE * width
    return fits and not after.lstrip(_OPENING)[:1].islower()


def _is_unspaced(character: str) -> bool:
    """Whether it is a letter of a script without spaces, or a mark that stands among such."""
    is_mark = "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uff65"
    return is_mark or stands_without_spaces(character)


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph. Joined by spaces they are the paragraph.

    A full stop ends none after an abbreviation ("Mr."), an initial ("J. Smith"), or before a small letter.
    """
    stops = [*_find_ends(paragraph), len(paragraph)]
    sentences = [paragraph[start:stop].strip() for start, stop in pairwise([0, *stops])]
    return [sentence for sentence in sentences if sentence]


def sentence_ends(text: str, *, before_small: bool = False) -> list[int]:
    """Return the offsets at which the sentences of a text end; with `before_small` also before small letters."""
    return list(_find_ends(text, before_small=before_small))


def _find_ends(text: str, *, before_small: bool = False) -> Iterator[int]:
    """Where sentences end in a text; also before small letters, for text that may have no others."""
    start = 0
    for match in _END.finditer(text):
        stop = match.end()
        after = "" if before_small else text[stop : stop + 8]
        if match["spaced"] is None or _ends_sentence(text[start:stop], after):
            yield stop
            start = stop


def _ends_sentence(text: str, after: str) -> bool:
    if _LOWER_CASE.match(after):
        return False
    last = _LAST_WORD.search(text)
    if last is None:
        return True
    word = last[1]
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    return not is_initial and not _ABBREVIATION.fullmatch(word)
