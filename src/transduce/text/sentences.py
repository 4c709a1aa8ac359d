"""Running text → documents of sentences: hard-wrapped lines are joined, then sentences are split.

A document is a list of sentences in their order. In a hard-wrapped file (a book) a line ends where the next word would
not have fitted, an empty line ends a paragraph, and the file is one document. In any other file a line is a
paragraph, and an empty line ends a document.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

from transduce.text.files import read_lines
from transduce.text.languages import stands_without_spaces

# What is looked at to tell how a file is written.
_LOOKED_AT = 2_000
# Books are wrapped at 60 to 80 characters.
_WIDEST = 120
_FULL_SHARE = 0.8
# Ends of sentences: the mark, with the quotes and brackets that close after it.
_END = re.compile(r"(?:[.!?…]+[”’\"'»)\]]*(?=\s)|[。！？]+[」』”’）]*)")
# Without a space before the next sentence, as Chinese and Japanese are written.
_WIDE = "。！？"
# A sentence begins with a capital, a digit, or what opens a quotation.
_LOWER_CASE = re.compile(r"\s+[\"“‘'«(\[—–-]*[a-zà-öø-ÿ]")
_ABBREVIATION = re.compile(
    r"mr|mrs|ms|messrs|mme|mlle|dr|st|prof|rev|hon|capt|col|gen|lieut|lt|sergt|sgt|maj|gov|sir|jr|sr|esq|"
    r"vols?|chap|ch|nos?|figs?|eqs?|pp?|cf|eds?|al|vs|viz|etc|e\.g|i\.e|inc|ltd|co|corp|dept|univ|approx|ca|mt|ft",
    re.IGNORECASE,
)
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
        sentences = [sentence for paragraph in join_lines(rest) for sentence in split_sentences(paragraph)]
        yield from [sentences] if sentences else []
    else:
        yield from _documents_of_lines(rest)


def sentences_of(text: str) -> list[str]:
    """The sentences of one document, whose lines may be hard-wrapped."""
    lines = text.split("\n")
    if is_hard_wrapped(lines):
        return [sentence for paragraph in join_lines(lines) for sentence in split_sentences(paragraph)]
    return [sentence for document in _documents_of_lines(lines) for sentence in document]


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
    """Whether lines end where the next word would not have fitted: the mark of text that was wrapped by width."""
    followed = [
        (len(line.rstrip()), _first_word(after)) for line, after in pairwise(lines) if line.strip() and after.strip()
    ]
    if len(followed) < 2:
        return False
    # Typesetters let lines be somewhat longer or shorter, so the width is what most lines keep within.
    width = sorted(length for length, _ in followed)[(len(followed) - 1) * 3 // 4]
    full = sum(length + 1 + word > width for length, word in followed)
    return width <= _WIDEST and full >= _FULL_SHARE * len(followed)


def _first_word(line: str) -> int:
    """Characters that cannot be parted from the beginning of a line: none in a script without spaces."""
    word = line.split(maxsplit=1)[0]
    return 0 if stands_without_spaces(word[0]) else len(word)


def join_lines(lines: Iterable[str]) -> Iterator[str]:
    """Paragraphs, each on one line: what stands between empty lines, with one space where a line ended.

    There is no space after a dash, for two words that it joins stay joined, and none in a script without spaces.
    """
    paragraph = ""
    for line in lines:
        text = " ".join(line.split())
        if not text and paragraph:
            yield paragraph
            paragraph = ""
        elif paragraph:
            closed = paragraph.endswith(("-", "—")) or (_is_unspaced(paragraph[-1]) and _is_unspaced(text[0]))
            paragraph += text if closed else f" {text}"
        else:
            paragraph = text
    if paragraph:
        yield paragraph


def _is_unspaced(character: str) -> bool:
    """Whether it is a letter of a script without spaces, or a mark that stands among such."""
    is_mark = "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uff65"
    return is_mark or stands_without_spaces(character)


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph. Joined by spaces they are the paragraph.

    A full stop ends none after an abbreviation ("Mr."), an initial ("J. Smith"), or before a small letter.
    """
    sentences, start = [], 0
    for match in _END.finditer(paragraph):
        stop = match.end()
        if _ends_sentence(paragraph[start:stop], paragraph[stop : stop + 8]):
            sentences.append(paragraph[start:stop].strip())
            start = stop
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(text: str, after: str) -> bool:
    if text.rstrip("」』”’）")[-1:] in _WIDE:
        return True
    if _LOWER_CASE.match(after):
        return False
    last = _LAST_WORD.search(text)
    if last is None:
        return True
    word = last[1]
    is_initial = len(word) == 1 and word.isupper() and word != "I"
    return not is_initial and not _ABBREVIATION.fullmatch(word)
