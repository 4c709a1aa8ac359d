"""What a caller hands in: texts, and paths."""

from collections.abc import Iterable, Sequence
from pathlib import Path

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
