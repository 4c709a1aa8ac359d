"""What a caller from Python hands in as text."""

from collections.abc import Iterable

from transduce.errors import TransduceError


def as_texts(given: str | Iterable[str]) -> list[str]:
    """One text, or several, as a list.

    Raises:
        TransduceError: it is neither.
    """
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, bytes | bytearray):
        raise TransduceError(f"A text, a `str`, or a list of texts is asked for, but {given!r} was given.")
    texts = list(given)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise TransduceError(
                f"A text must be a `str`, but number {number} of those given is {text!r}: leave it out, or give an "
                "empty text."
            )
    return texts


def as_text(given: str) -> str:
    """The text, where one is asked for and no list.

    Raises:
        TransduceError: it is none.
    """
    if not isinstance(given, str):
        raise TransduceError(f"One text, a `str`, is asked for, but {given!r} was given.")
    return given
