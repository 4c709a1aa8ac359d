"""Detection of translations that have fewer sentences than their source."""

import re

from transduce.text.languages import is_of_word, stands_without_spaces
from transduce.text.sentences import sentence_ends

_CLOSING = re.compile("[\"'”’»）)」』\\]]\\s*$")
_ELLIPSIS = re.compile(r"(?:\.{2,}|…+)\s*$")
_ORDINAL = re.compile(r"(?:^|\s)\d+\.\s*$")  # "am 5. Mai"
# In addition to those in `sentences.py`, whose splitting of training text must not change.
_ABBREVIATION = re.compile(
    r"\b(?:bzw|usw|z\.\s?B|d\.\s?h|u\.\s?a|nr|tel|str|evtl|ggf|sra?|p\.\s?ej|núm|env)\.\s*$", re.IGNORECASE
)
_NOT_SENTENCE_ENDS = (_CLOSING, _ELLIPSIS, _ORDINAL, _ABBREVIATION)
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
    unspaced = sum(map(stands_without_spaces, sentence))
    words = [word for word in sentence.split() if any(map(is_of_word, word))]
    return unspaced >= _MIN_CHARACTERS or len(words) >= _MIN_WORDS
