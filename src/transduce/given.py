"""What a caller hands in: texts, and paths."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import TypeVar

from transduce.errors import TransduceError

T = TypeVar("T")


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


def as_phrases(given: Iterable[str]) -> list[str]:
    """What a translation contains, as a list; one text is refused, for it would be its characters.

    Raises:
        TransduceError: it is no list of texts.
    """
    if isinstance(given, str):
        raise TransduceError(f"Phrases are a list of texts, but `{given}` is one text: write [`{given}`].")
    return as_texts(given)


def as_many(what: str, sentences: int, given: Iterable[T]) -> list[T]:
    """What each of so many sentences has of its own, as a list.

    Raises:
        TransduceError: there are more of it or fewer.
    """
    found = list(given)
    if len(found) != sentences:
        raise TransduceError(
            f"Each sentence has a {what} of its own, but there are {sentences:,} sentences and {len(found):,} of these."
        )
    return found


def as_whole(given: int, name: str, *, least: int, most: int | None = None) -> int:
    """A whole number in its range, NumPy's too, as one of Python's; `name` names it in a sentence.

    Raises:
        TransduceError: it is none, or out of the range.
    """
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise TransduceError(f"`{name}` must be a whole number, but is {given!r}.")
    if given < least or (most is not None and given > most):
        bound = f"at least {least:,}" if given < least else f"at most {most:,}"
        raise TransduceError(f"`{name}` must be {bound}, but is {given:,}.")
    return int(given)


def as_path(given: str | Path, what: str) -> Path:
    """A path, of which nothing is known but that there is one; `what` names it in a sentence.

    Raises:
        TransduceError: it is none, or empty, which would be the current folder.
    """
    if not isinstance(given, str | Path):
        raise TransduceError(f"{what} must be a path, a `str` or a `Path`, but is {given!r}.")
    if given == "":
        raise TransduceError(f"{what} is named by an empty text: say `.` for the current folder.")
    return Path(given)


def as_paths(given: str | Path | Sequence[str | Path], what: str) -> list[Path]:
    """One path, or several, as a list.

    Raises:
        TransduceError: one is no path, or empty.
    """
    if isinstance(given, str | Path):
        return [as_path(given, what)]
    if not isinstance(given, Iterable) or isinstance(given, bytes | bytearray):
        raise TransduceError(f"{what} must be a path, a `str` or a `Path`, or a list of them, but is {given!r}.")
    return [as_path(each, what) for each in given]
