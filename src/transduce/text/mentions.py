"""Whether a text stands in another: words of scripts with spaces as whole words, others anywhere."""

import unicodedata
from collections.abc import Iterator

from transduce.text.languages import is_of_word, unspaced_characters


def as_compared(text: str) -> str:
    """The text as it is compared with others: composed (NFC), with one space wherever there are some."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def in_spaced_word(character: str) -> bool:
    """Whether a character is of a word, in a script that puts spaces between words."""
    return is_of_word(character) and not unspaced_characters(character)


def is_whole(text: str, start: int, end: int) -> bool:
    """Whether no word of a script with spaces goes on over the start or the end of a part of a text."""
    goes_on_before = start > 0 and in_spaced_word(text[start]) and in_spaced_word(text[start - 1])
    goes_on_behind = end < len(text) and in_spaced_word(text[end - 1]) and in_spaced_word(text[end])
    return not goes_on_before and not goes_on_behind


def mentions(text: str, wanted: str) -> bool:
    """Whether one text is in another, upper and lower case as written; an empty one never is."""
    return any(True for _ in occurrences(as_compared(text), as_compared(wanted)))


def occurrences(text: str, wanted: str) -> Iterator[int]:
    """Where one text, as it is, begins in another, of an empty one nowhere."""
    start = text.find(wanted) if wanted else -1
    while start >= 0:
        if is_whole(text, start, start + len(wanted)):
            yield start
        start = text.find(wanted, start + 1)
