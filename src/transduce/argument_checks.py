"""Validate arguments that users pass: texts, numbers and paths."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import TypeVar

from transduce.errors import TransduceError

T = TypeVar("T")


def as_texts(given: str | Iterable[str]) -> list[str]:
    """Return one text or several as a list of texts.

    Raises:
        TransduceError: the argument is neither a text nor an iterable of texts.
    """
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable) or isinstance(given, bytes | bytearray):
        raise TransduceError(f"Pass a text (a `str`) or a list of texts, not {given!r}.")
    texts = list(given)
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise TransduceError(
                f"Each text must be a `str`, but text number {number} is {text!r}: leave it out, or pass an empty text."
            )
    return texts


def as_text(given: str) -> str:
    """Return the argument if it is a single text.

    Raises:
        TransduceError: the argument is not a `str`.
    """
    if not isinstance(given, str):
        raise TransduceError(f"Pass one text (a `str`), not {given!r}.")
    return given


def as_phrases(given: Iterable[str]) -> list[str]:
    """Return a list of phrases; a single text is refused because it would be split into characters.

    Raises:
        TransduceError: the argument is not a list of texts.
    """
    if isinstance(given, str):
        raise TransduceError(f"Phrases are a list of texts, but `{given}` is one text: write [`{given}`].")
    return as_texts(given)


def one_per_sentence(what: str, sentences: int, given: Iterable[T]) -> list[T]:
    """Return a list with one item for each sentence.

    Args:
        what: noun for one item, used in the error message.
        sentences: number of sentences.
        given: the items, one for each sentence.

    Raises:
        TransduceError: there are more or fewer items than sentences.
    """
    items = list(given)
    if len(items) != sentences:
        raise TransduceError(
            f"Pass one {what} for each sentence: there are {sentences:,} sentences, but {len(items):,} of these."
        )
    return items


def as_integer(given: int, name: str, *, least: int, most: int | None = None) -> int:
    """Return an integer in its range as a Python `int`; NumPy integers are accepted.

    Args:
        given: the value.
        name: name of the value, used in the error message.
        least: smallest value allowed.
        most: largest value allowed; None: no limit.

    Raises:
        TransduceError: the value is not an integer or is out of range.
    """
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise TransduceError(f"`{name}` must be a whole number, but is {given!r}.")
    if given < least or (most is not None and given > most):
        bound = f"at least {least:,}" if given < least else f"at most {most:,}"
        raise TransduceError(f"`{name}` must be {bound}, but is {given:,}.")
    return int(given)


def as_path(given: str | Path, what: str) -> Path:
    """Return a path; `what` names the path in error messages. The path need not exist.

    Raises:
        TransduceError: the argument is not a path or is empty, which would mean the current folder.
    """
    if not isinstance(given, str | Path):
        raise TransduceError(f"{what} must be a path, a `str` or a `Path`, but is {given!r}.")
    if given == "":
        raise TransduceError(f"{what} is an empty text: pass `.` for the current folder.")
    return Path(given)


def as_paths(given: str | Path | Sequence[str | Path], what: str) -> list[Path]:
    """Return one path or several as a list of paths; `what` names the paths in error messages.

    Raises:
        TransduceError: an item is not a path or is empty.
    """
    if isinstance(given, str | Path):
        return [as_path(given, what)]
    if not isinstance(given, Iterable) or isinstance(given, bytes | bytearray):
        raise TransduceError(f"{what} must be a path, a `str` or a `Path`, or a list of them, but is {given!r}.")
    return [as_path(each, what) for each in given]
