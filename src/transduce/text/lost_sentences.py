"""Counts sentences, to find translations with fewer sentences than their source."""

import re

from transduce.text.languages import is_of_word, stands_without_spaces
from transduce.text.sentences import sentence_ends

_CLOSING = re.compile("[\"'”’»）)」』\\]]\\s*$")
_ELLIPSIS = re.compile(r"(?:\.{2,}|…+)\s*$")
_ORDINAL = re.compile(r"(?:^|\s)\d+\.\s*$")  # "am 5. Mai"
# Beside those that `sentences.py` knows, whose splitting of training text stays as it is.
_ABBREVIATION = re.compile(
    r"\b(?:bzw|usw|z\.\s?B|d\.\s?h|u\.\s?a|nr|tel|str|evtl|ggf|sra?|p\.\s?ej|núm|env)\.\s*$", re.IGNORECASE
)
_NO_ENDS = (_CLOSING, _ELLIPSIS, _ORDINAL, _ABBREVIATION)
# Marks at which a translator may well end a sentence of the source without a full stop.
_HALF_STOPS = re.compile("[;；:：—–]")
# Thai, Lao and Tibetan have no mark that only ends sentences.
_WITHOUT_MARKS = re.compile("[\u0e00-\u0fff]")
# Shorter sentences ("Yes.", "好吧。") are often joined to their neighbor in a faithful translation.
_FEWEST_WORDS, _FEWEST_CHARACTERS = 3, 4


def find_lost_sentences(source: str, translation: str) -> tuple[int, int] | None:
    """Return the numbers of sentences of a source and its translation where the translation surely has fewer.

    The source's number is a lower bound: short sentences, quotations and ellipses do not count. The translation's is an
    upper bound: semicolons, colons and dashes count too. Abbreviations, initials and decimals end no sentence.

    Returns:
        Both numbers, or None where no sentence is missed, the source is one sentence, or the script of either text has
        no mark for the end of a sentence.
    """
    if _WITHOUT_MARKS.search(source) or _WITHOUT_MARKS.search(translation) or not translation.strip():
        return None
    least = _least_sentences(source)
    if least < 2:
        return None
    most = _most_sentences(translation)
    return (least, most) if most < least else None


def _least_sentences(text: str) -> int:
    count, start = 0, 0
    for stop in [*sentence_ends(text), len(text)]:
        sentence = text[start:stop]
        is_end = stop == len(text) or not any(pattern.search(sentence) for pattern in _NO_ENDS)
        if is_end:
            count += _is_long(sentence)
            start = stop
    return count


def _most_sentences(text: str) -> int:
    stops = [0, *sentence_ends(text, before_small=True)]
    rest = text[stops[-1] :]
    return len(stops) - 1 + any(map(str.isalnum, rest)) + len(_HALF_STOPS.findall(text))


def _is_long(sentence: str) -> bool:
    unspaced = sum(map(stands_without_spaces, sentence))
    words = [word for word in sentence.split() if any(map(is_of_word, word))]
    return unspaced >= _FEWEST_CHARACTERS or len(words) >= _FEWEST_WORDS
