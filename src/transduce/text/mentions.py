"""Search for a phrase in a text: whole words in scripts with spaces, any position in others."""

import unicodedata
from collections.abc import Iterator

from transduce.text.languages import is_of_word, unspaced_characters


def as_compared(text: str) -> str:
    """Return the text normalized for comparison: composed (NFC), with single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def in_spaced_word(character: str) -> bool:
    """Return whether a character belongs to a word in a script with spaces between words."""
    return is_of_word(character) and not unspaced_characters(character)


def is_whole(text: str, start: int, end: int) -> bool:
    """Return whether a part of a text starts and ends at word boundaries, which exist only in scripts with spaces."""
    continues_before = start > 0 and in_spaced_word(text[start]) and in_spaced_word(text[start - 1])
    continues_after = end < len(text) and in_spaced_word(text[end - 1]) and in_spaced_word(text[end])
    return not continues_before and not continues_after


def mentions(text: str, phrase: str) -> bool:
    """Return whether a text contains a phrase, with matching case; an empty phrase never is."""
    return any(True for _ in occurrences(as_compared(text), as_compared(phrase)))


def occurrences(text: str, phrase: str) -> Iterator[int]:
    """Yield the positions at which a phrase starts in a text; none for an empty phrase."""
    start = text.find(phrase) if phrase else -1
    while start >= 0:
        if is_whole(text, start, start + len(phrase)):
            yield start
        start = text.find(phrase, start + 1)
