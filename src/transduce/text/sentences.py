"""Splitting of running text into sentences and documents, and of long texts into parts that a model can read.

A document is a list of sentences in order. In a hard-wrapped file (a book) a line ends where the next word would not
have fitted, sentences end anywhere in a line, an empty line ends a paragraph, and the file is one document. In any
other file a line is a paragraph, and an empty line ends a document.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

from transduce.text.files import read_lines
from transduce.text.languages import is_unspaced, is_word_character
from transduce.text.word_spans import Span

# --- punctuation ---
# Thai, Lao and Tibetan have no unambiguous marks.


# All strings are for use within a character class of a regular expression.
# Full stops: Latin, Urdu, Armenian. They also occur in numbers and abbreviations, so a space must follow.
STOPS = ".\u06d4\u0589"
# Exclamation marks, question marks and ellipses of scripts with spaces: Latin, Arabic, Greek.
CALLS = "!?…‼⁇⁈⁉\u061e\u061f\u037e"
# Marks that end a sentence without a following space. Chinese and Japanese:
WIDE = "。！？｡"
# Ethiopic, Myanmar, Khmer, Mongolian, Ol Chiki, Meetei:
_OTHERS = "\u1362\u1367\u1368\u104b\u17d5\u1803\u1809\u1c7e\u1c7f\uabeb"
# Chinese and Japanese texts also have the narrow marks without a space after them.
_NARROW = r"(?<=[\u3040-\u30ff\u3400-\u9fff])[!?]+"
# Also a danda, possibly with a verse number between two of them; a Khmer full stop, except the first one of "and so on"
# (។ល។); a wide full stop, except as a decimal point.
UNSPACED = (
    rf"(?:[{WIDE}{_OTHERS}]|{_NARROW}|[\u0964\u0965](?:\s?\d+\s?[\u0964\u0965])?"
    r"|\u17d4(?!\u179b\u17d4)|(?<!\d)\uff0e)"
)


# --- parts of long texts ---
# Texts that are too long for a model are split at sentence ends, then at commas, at spaces, or anywhere.


# Sentence ends, including closing quotes and brackets.
_SENTENCE_END = re.compile(rf"(?:{UNSPACED}|[{CALLS}])+[”’\"'」』）)\]]*|(?<![{STOPS}])[{STOPS}]++[”’\"')\]]*+(?=\s)")
# Split points, best first.
_SPLIT_POINTS = (_SENTENCE_END, re.compile(r"[,;:，；：、]+"), re.compile(r"\s+"))


def split_text(text: str, fits: Callable[[str], bool], *, gathers: bool = False) -> list[str]:
    """Split a text into parts that are short enough; joined, the parts are the text except for spaces between them.

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


# --- documents of running text ---


# Number of first lines that decide whether a file is hard-wrapped.
_INSPECTED_LINES = 2_000
# Books are wrapped at 60 to 80 characters.
_WIDEST = 120
_FULL_SHARE = 0.8
# In wrapped prose a sentence ends within a line every few lines, and most lines that continue a sentence begin with a
# small letter, if the script has any. Lists of titles or names have no sentence ends, and lines of a log begin with
# digits.
_MIN_ENDS, _MAX_LARGE = 0.05, 0.75
# A line shorter than this share of the width was not wrapped: a heading, a verse.
_SHORT_SHARE = 0.6
# Ends of sentences: the mark with the closing quotes and brackets after it.
_END = re.compile(rf"(?P<spaced>[{STOPS}{CALLS}]+[”’\"'»)\]]*(?=\s))|{UNSPACED}+[」』”’）»)\]]*(?:[\"'](?=\s))?")
# After a sentence end the next word does not start in lower case, even within quotes or brackets.
_LOWER_CASE = re.compile(r"\s+[\"“‘'«(\[—–-]*[a-zà-öø-ÿ]")
_ABBREVIATION = re.compile(
    r"mr|mrs|ms|messrs|mme|mlle|dr|st|prof|rev|hon|capt|col|gen|lieut|lt|sergt|sgt|maj|gov|sir|jr|sr|esq|"
    r"vols?|chap|ch|nos?|figs?|eqs?|pp?|cf|eds?|al|vs|viz|etc|e\.g|i\.e|inc|ltd|co|corp|dept|univ|approx|ca|mt|ft",
    re.IGNORECASE,
)
_OPENING = "\"“‘'«([—–-_"
_LAST_WORD = re.compile(r"([^\s\"“‘'(\[—–-]+)\.$")


def read_documents(path: str | Path) -> Iterator[list[str]]:
    """Yield the documents of a text file, plain or gzip, each as a list of sentences.

    Raises:
        TransduceError: the file cannot be read.
    """
    lines = read_lines(path)
    first = list(islice(lines, _INSPECTED_LINES))
    rest = _chain(first, lines)
    if is_hard_wrapped(first):
        sentences = _wrapped_sentences(first, rest)
        yield from [sentences] if sentences else []
    else:
        yield from _documents_of_lines(rest)


def sentences_of(text: str) -> list[str]:
    """Return the sentences of one document, whose lines may be hard-wrapped."""
    lines = text.split("\n")
    if is_hard_wrapped(lines):
        return _wrapped_sentences(lines, lines)
    return [sentence for document in _documents_of_lines(lines) for sentence in document]


def _wrapped_sentences(first: Sequence[str], lines: Iterable[str]) -> list[str]:
    """Return the sentences of a hard-wrapped text; its first lines determine the width."""
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
    """Return whether text was wrapped by width: lines end where the next word does not fit, sentences end within lines.

    Sentences that end within lines distinguish prose from a list, whose lines may be about equally long.
    """
    followed = _followed(lines)
    if len(followed) < 2:
        return False
    width = _width(followed)
    full = sum(len(line) + 1 + _first_word(after) > width for line, after in followed)
    return width <= _WIDEST and full >= _FULL_SHARE * len(followed) and _runs_on(followed)


def _followed(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of consecutive lines of which neither is empty."""
    return [(line.rstrip(), after.strip()) for line, after in pairwise(lines) if line.strip() and after.strip()]


def _width(followed: Sequence[tuple[str, str]]) -> int:
    """Return the width that most lines keep within, as typesetters permit slightly longer or shorter lines."""
    return sorted(len(line) for line, _ in followed)[(len(followed) - 1) * 3 // 4]


def _runs_on(followed: Sequence[tuple[str, str]]) -> bool:
    """Return whether sentences continue from line to line: more of them end within lines than at their ends."""
    within = at_end = large = 0
    for line, after in followed:
        ends = list(_find_ends(f"{line} ", before_small=True))
        ended = bool(ends) and ends[-1] == len(line)
        within += len(ends) - ended
        at_end += ended
        first = after.lstrip(_OPENING)[:1]
        large += not ended and (first.isupper() or first.isdigit())
    is_prose = within > max(at_end, _MIN_ENDS * len(followed))
    return is_prose and large <= _MAX_LARGE * (len(followed) - at_end)


def _first_word(line: str) -> int:
    """Return the length of the unbreakable start of a line; 0 in a script without spaces."""
    word = line.split(maxsplit=1)[0]
    return 0 if is_unspaced(word[0]) else len(word)


def join_lines(lines: Iterable[str], width: int = 0) -> Iterator[str]:
    """Yield paragraphs, each as one line: text between empty lines, with one space for each line end.

    No space is inserted after a dash, which may join two words, or in a script without spaces.

    Args:
        lines: the lines of a text.
        width: the width at which the text was wrapped. A much shorter line stays separate unless a small letter
            follows, as in contents or verses. 0: all lines are joined.
    """
    paragraph, last = "", ""
    for line in lines:
        text = " ".join(line.split())
        if paragraph and (not text or _ends_early(last, text, width)):
            yield paragraph
            paragraph = text
        elif paragraph:
            joins_directly = paragraph.endswith(("-", "—")) or (_is_unspaced(paragraph[-1]) and _is_unspaced(text[0]))
            paragraph += text if joins_directly else f" {text}"
        else:
            paragraph = text
        last = line.rstrip()
    if paragraph:
        yield paragraph


def _ends_early(line: str, after: str, width: int) -> bool:
    fits = len(line) + 1 + _first_word(after) <= _SHORT_SHARE * width
    return fits and not after.lstrip(_OPENING)[:1].islower()


def _is_unspaced(character: str) -> bool:
    """Return whether a character is a letter of a script without spaces, or punctuation of such a script."""
    is_mark = "\u3000" <= character <= "\u303f" or "\uff00" <= character <= "\uff65"
    return is_mark or is_unspaced(character)


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph, which equals the sentences joined by spaces.

    A full stop does not end a sentence after an abbreviation ("Mr.") or an initial ("J. Smith"), or before a small
    letter.
    """
    stops = [*_find_ends(paragraph), len(paragraph)]
    sentences = [paragraph[start:stop].strip() for start, stop in pairwise([0, *stops])]
    return [sentence for sentence in sentences if sentence]


def sentence_ends(text: str, *, before_small: bool = False) -> list[int]:
    """Return the offsets at which the sentences of a text end; with `before_small` also before small letters."""
    return list(_find_ends(text, before_small=before_small))


def _find_ends(text: str, *, before_small: bool = False) -> Iterator[int]:
    """Yield the positions at which sentences end; `before_small` includes those before small letters."""
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


# --- sentences to translate ---


def find_sentences(text: str) -> list[Span]:
    """Return the spans of a text's sentences without the spaces around them, in order."""
    spans = []
    for start, stop in pairwise([0, *_find_ends(text), len(text)]):
        sentence = text[start:stop]
        if sentence.strip():
            begin = start + len(sentence) - len(sentence.lstrip())
            spans.append(Span(begin, begin + len(sentence.strip())))
    return spans


# --- lost sentences ---
# Detection of translations that have fewer sentences than their source.


_CLOSING = re.compile("[\"'”’»）)」』\\]]\\s*$")
_ELLIPSIS = re.compile(r"(?:\.{2,}|…+)\s*$")
_ORDINAL = re.compile(r"(?:^|\s)\d+\.\s*$")  # "am 5. Mai"
# Abbreviations in addition to `_ABBREVIATION`, which also splits training text and must therefore not change.
_FURTHER_ABBREVIATION = re.compile(
    r"\b(?:bzw|usw|z\.\s?B|d\.\s?h|u\.\s?a|nr|tel|str|evtl|ggf|sra?|p\.\s?ej|núm|env)\.\s*$", re.IGNORECASE
)
_NOT_SENTENCE_ENDS = (_CLOSING, _ELLIPSIS, _ORDINAL, _FURTHER_ABBREVIATION)
# Punctuation that a translator may use instead of the end of a source sentence.
_POSSIBLE_ENDS = re.compile("[;；:：—–]")
# Thai, Lao and Tibetan have no punctuation that only ends sentences.
_UNPUNCTUATED = re.compile("[\u0e00-\u0fff]")
# Faithful translations often join shorter sentences ("Yes.", "好吧。") to the next one.
_MIN_WORDS, _MIN_CHARACTERS = 3, 4


def find_lost_sentences(source: str, translation: str) -> tuple[int, int] | None:
    """Return the numbers of sentences of a source and its translation if the translation surely has fewer, else None.

    The source's number is a lower bound: short sentences, quotations and ellipses do not count. The translation's is an
    upper bound: semicolons, colons and dashes count too. Abbreviations, initials and decimals end no sentence.

    Returns:
        Both numbers. None if no sentence is lost, the source is one sentence, or the script of either text has no
        punctuation for the end of a sentence.
    """
    if _UNPUNCTUATED.search(source) or _UNPUNCTUATED.search(translation) or not translation.strip():
        return None
    least = _min_sentences(source)
    if least < 2:
        return None
    most = _max_sentences(translation)
    return (least, most) if most < least else None


def _min_sentences(text: str) -> int:
    count, start = 0, 0
    for stop in [*sentence_ends(text), len(text)]:
        sentence = text[start:stop]
        is_end = stop == len(text) or not any(pattern.search(sentence) for pattern in _NOT_SENTENCE_ENDS)
        if is_end:
            count += _is_long(sentence)
            start = stop
    return count


def _max_sentences(text: str) -> int:
    stops = [0, *sentence_ends(text, before_small=True)]
    rest = text[stops[-1] :]
    return len(stops) - 1 + any(map(str.isalnum, rest)) + len(_POSSIBLE_ENDS.findall(text))


def _is_long(sentence: str) -> bool:
    unspaced = sum(map(is_unspaced, sentence))
    words = [word for word in sentence.split() if any(map(is_word_character, word))]
    return unspaced >= _MIN_CHARACTERS or len(words) >= _MIN_WORDS
