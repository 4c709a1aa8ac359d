"""Reader of time series tables: .csv and .tsv files with a header, one line per time, one column per series."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transduce.data.series_scale import Numbers
from transduce.errors import TransduceError
from transduce.text.files import read_lines


class Table(NamedTuple):
    """The series of a file."""

    columns: tuple[str, ...]
    """The names of the series."""
    values: Numbers
    """The values, (N, C)."""


def read_table(path: str | Path, columns: Sequence[str] = ()) -> Table:
    """Read a table, plain or gzip, with tabs in .tsv files and otherwise the delimiter that the header uses.

    Args:
        path: the file.
        columns: the columns to read, in this order; empty: all of them.

    Raises:
        TransduceError: the file is missing or empty, lacks a column, or has a cell that is not a finite number.
    """
    rows = _rows(Path(path))
    _, header = next(rows, (0, []))
    if not header:
        raise TransduceError(f"{path} is empty, but a table begins with a line of column names: check it.")
    names = [name.strip() for name in header]
    _check_header(Path(path), names, columns)
    chosen = [names.index(name) for name in columns] if columns else list(range(len(names)))
    values = [_numbers(path, line, row, names, chosen) for line, row in rows]
    if not values:
        raise TransduceError(f"{path} has column names but no numbers: add a line for each point in time.")
    return Table(tuple(names[column] for column in chosen), np.array(values))


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each line, from 1, and its cells."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    delimiter = "\t" if ".tsv" in suffixes[-2:] else ","
    blank = 0
    for number, line in enumerate(read_lines(path), 1):
        if number == 1 and delimiter == "," and "," not in line:
            delimiter = next((other for other in ";\t" if other in line), ",")
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            raise TransduceError(f"{path}:{blank}: a line of a table is empty: complete it, or remove it.")
        try:
            yield number, next(csv.reader([line], delimiter=delimiter, strict=True), [])
        except csv.Error as error:
            raise TransduceError(f"{path}:{number}: this line of a table cannot be read ({error}): fix it.") from None


def _check_header(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise TransduceError(f"{path}:1: column names must be distinct, but {names.count(name)} are `{name}`.")
    if all(_is_number(name) for name in names):
        raise TransduceError(f"{path}:1: a table begins with a line of column names, but this line has numbers.")
    for name in columns:
        if name not in names:
            raise TransduceError(
                f"{path}:1: there is no column `{name}` (`task.series.columns`): the columns are {', '.join(names)}."
            )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(
    path: str | Path, line: int, row: Sequence[str], names: Sequence[str], chosen: Sequence[int]
) -> list[float]:
    if len(row) != len(names):
        raise TransduceError(
            f"{path}:{line}: every line has a cell for each of the {len(names)} columns, but this one has {len(row)}: "
            "complete it, or remove it."
        )
    return [_number(path, line, row[column], names[column]) for column in chosen]


def _number(path: str | Path, line: int, cell: str, name: str) -> float:
    text = cell.strip()
    if not text:
        raise TransduceError(f"{path}:{line}: the value of `{name}` is missing: fill it in, or leave the column out.")
    # Python parses 1_000 as a number, but in a table it is probably an error.
    value = float(text) if _is_number(text) and "_" not in text else math.nan
    if not math.isfinite(value):
        raise TransduceError(
            f"{path}:{line}: the value of `{name}` must be a finite number, but is `{text[:40]}`: fix it, or set "
            "the columns to use in `task.series.columns`."
        )
    return value
