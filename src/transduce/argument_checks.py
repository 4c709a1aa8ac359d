"""Validate arguments that users pass: texts, numbers, shards and paths."""

import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import TypeVar

from transduce.errors import TransduceError, shown_value

T = TypeVar("T")

Files = str | Path | Sequence[str | Path]
"""The path of one file, or those of several."""


def as_texts(value: str | Iterable[str]) -> list[str]:
    """Return a text, or an iterable of texts, as a list of `str`.

    The iterable may be a column of an Arrow table.

    Raises:
        TransduceError: the argument is neither a text nor an iterable, or it is a table, mapping, set or `bytes`; or
            one of its items is not a `str`.
    """
    if isinstance(value, str):
        return [value]
    if is_table(value) or isinstance(value, Mapping | set | frozenset):
        form = "one of its columns"
        if not is_table(value):
            form = "a list of its values" if isinstance(value, Mapping) else "a sorted list"
        raise TransduceError(f"Pass a text (a `str`) or a list of texts, not a `{type(value).__name__}`: pass {form}.")
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray):
        raise TransduceError(f"Pass a text (a `str`) or a list of texts, not {shown_value(value)}.")
    texts = list(value.to_pylist() if hasattr(value, "to_pylist") else value)  # an Arrow array has scalars of its own
    for number, text in enumerate(texts, 1):
        if isinstance(text, str):
            continue
        if isinstance(getattr(text, "text", None), str):
            raise TransduceError(
                f"Each text must be a `str`, but text number {number} is a `{type(text).__name__}`: pass its `text`."
            )
        raise TransduceError(
            f"Each text must be a `str`, but text number {number} is {shown_value(text)}: leave it out, or pass an "
            "empty text."
        )
    return texts


def is_table(value: object) -> bool:
    """Return whether an object is a table with named columns, of pandas, polars, Arrow or datasets.

    A loop over such a table may give the columns' names instead of the rows.
    """
    return hasattr(value, "columns") or hasattr(value, "column_names")


def as_text(value: str) -> str:
    """Check that an argument is a single text, and return it.

    Raises:
        TransduceError: the argument is not a `str`.
    """
    if not isinstance(value, str):
        raise TransduceError(f"Pass one text (a `str`), not {shown_value(value)}.")
    return value


def as_phrases(value: Iterable[str]) -> list[str]:
    """Return an iterable of phrases as a list.

    A single text is refused, because it would be split into characters.

    Raises:
        TransduceError: the argument is a single text, or `as_texts` refuses it.
    """
    if isinstance(value, str):
        raise TransduceError(f"Phrases are a list of texts, but `{value}` is one text: write [`{value}`].")
    return as_texts(value)


def as_list(value: Iterable[T], name: str) -> list[T]:
    """Return the items of an argument as a list.

    A single text is refused, because it would be split into characters.

    Args:
        value: the argument.
        name: the argument's name, for the error message.

    Raises:
        TransduceError: the argument is a text, `bytes`, a mapping, a table, or no iterable.
    """
    if is_table(value):
        raise TransduceError(f"`{name}` must be a list, but is a `{type(value).__name__}`: pass one of its columns.")
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise TransduceError(
            f"`{name}` must be a list, but is {shown_value(value)}: write [{shown_value(value)}] if it has one item."
        )
    return list(value)


def one_per_sentence(description: str, sentences: int, value: Iterable[T]) -> list[T]:
    """Check that there is one item for each sentence, and return the items as a list.

    Args:
        description: noun for one item, used in the error message.
        sentences: number of sentences.
        value: the items, one for each sentence.

    Raises:
        TransduceError: there are more or fewer items than sentences.
    """
    items = list(value)
    if len(items) != sentences:
        raise TransduceError(
            f"Pass one {description} for each sentence: there are {sentences:,} sentences, but {len(items):,} of these."
        )
    return items


def as_integer(value: int, name: str, *, minimum: int, maximum: int | None = None) -> int:
    """Check that a value is an integer in a range, and return it as a Python `int`; NumPy integers are accepted.

    Args:
        value: the value.
        name: name of the value, used in the error message.
        minimum: smallest value allowed.
        maximum: largest value allowed; None: no limit.

    Raises:
        TransduceError: the value is not an integer or is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TransduceError(f"`{name}` must be a whole number, but is {shown_value(value)}.")
    if value < minimum or (maximum is not None and value > maximum):
        bound = f"at least {minimum:,}" if value < minimum else f"at most {maximum:,}"
        raise TransduceError(f"`{name}` must be {bound}, but is {value:,}.")
    return int(value)


def as_shard(value: str | tuple[int, int]) -> tuple[int, int]:
    """Return a shard as two integers: its number, counted from 1, and the count of shards.

    A shard is one of several equal shares of a corpus.

    Args:
        value: the two integers, or a text such as "2/4".

    Raises:
        TransduceError: the argument is not a shard.
    """
    text = value if isinstance(value, str) else "/".join(map(str, value))
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise TransduceError(f"A shard must be I/N with I from 1 to N, such as 1/4, but is {text}.")
    return int(match[1]), int(match[2])


def as_path(value: str | Path, description: str) -> Path:
    """Return the argument as a path, which need not exist; `description` names the path in error messages.

    Raises:
        TransduceError: the argument is not a `str` or `Path`, or it is an empty text.
    """
    if not isinstance(value, str | Path):
        raise TransduceError(f"{description} must be a path, a `str` or a `Path`, but is {shown_value(value)}.")
    if value == "":
        raise TransduceError(f"{description} is an empty text: pass `.` for the current folder.")
    return Path(value)


def as_paths(value: Files, description: str) -> list[Path]:
    """Return one path or several as a list of paths; `description` names the paths in error messages.

    Raises:
        TransduceError: the argument or one of its items is not a path, or is an empty text.
    """
    if isinstance(value, str | Path):
        return [as_path(value, description)]
    if not isinstance(value, Iterable) or isinstance(value, bytes | bytearray) or is_table(value):
        raise TransduceError(
            f"{description} must be a path, a `str` or a `Path`, or a list of them, but is {shown_value(value)}."
        )
    return [as_path(each, description) for each in value]
