"""Draw charts with block characters for a terminal."""

import math
from collections.abc import Sequence

import numpy as np
from rich.cells import cell_len

from transduce.inspection.charts import Chart, Curves, HeatMap, Numbers

_SHADES = " ░▒▓█"
_MARKS = "●×+○▲◆□*"
_ROWS = 16
_MIN_COLUMNS = 20
_MAX_ROWS = 40  # of a heat map


def draw_chart(chart: Chart, *, columns: int = 80) -> str:
    """Return the panels of a chart as text, one below another, each at most `columns` wide."""
    drawn = [
        _draw_curves(each, columns) if isinstance(each, Curves) else _draw_heat_map(each, columns)
        for each in chart.panels
    ]
    return "\n\n".join(drawn)


def _draw_curves(panel: Curves, columns: int) -> str:
    """Draw a frame with one mark per curve and column; later curves cover earlier ones."""
    x = np.concatenate([each.x for each in panel.curves])
    y = np.concatenate([each.y for each in panel.curves])
    if not len(x):
        return f"{panel.title}\n(nothing to draw)"
    low, high = _limits(y)
    scale = [f"{high:.4g}", f"{low:.4g}"]
    margin = max(map(len, scale)) + 1
    width = max(_MIN_COLUMNS, columns - margin - 1)
    grid = [[" "] * width for _ in range(_ROWS)]
    for number, each in enumerate(panel.curves):
        for column, value in _interpolate_columns(each.x, each.y, _limits(x), width):
            row = round((high - value) / (high - low) * (_ROWS - 1))
            grid[row][column] = _MARKS[number % len(_MARKS)]
    labels = [scale[0], *[""] * (_ROWS - 2), scale[1]]
    lines = [f"{label:>{margin - 1}} ┤{''.join(row)}".rstrip() for label, row in zip(labels, grid, strict=True)]
    left, right = (f"{value:,.4g}" for value in _limits(x))
    axis = " " * margin + "└" + "─" * width
    below = " " * (margin + 1) + left + panel.x_label.center(max(0, width - len(left) - len(right))) + right
    legend = [f"  {_MARKS[number % len(_MARKS)]} {each.name}" for number, each in enumerate(panel.curves)]
    return "\n".join([f"{panel.title}  [{panel.y_label}]", *lines, axis, below.rstrip(), *legend])


def _limits(values: Numbers) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _interpolate_columns(x: Numbers, y: Numbers, limits: tuple[float, float], width: int) -> list[tuple[int, float]]:
    """Return the columns that a curve spans with its height at each, interpolated linearly between its points."""
    if not len(x):
        return []
    order = np.argsort(x, kind="stable")
    first, last = ((float(value) - limits[0]) / (limits[1] - limits[0]) * (width - 1) for value in (x.min(), x.max()))
    column_numbers = range(round(first), round(last) + 1)
    positions = [limits[0] + column / (width - 1) * (limits[1] - limits[0]) for column in column_numbers]
    heights = np.interp(positions, x[order], y[order])
    return list(zip(column_numbers, heights.tolist(), strict=True))


def _draw_heat_map(panel: HeatMap, columns: int) -> str:
    """Draw one shade per value; a large table is reduced to the means of its blocks."""
    rows = list(panel.row_names) or [str(number) for number in range(len(panel.values))]
    margin = max(map(cell_len, rows)) + 1
    width = max(_MIN_COLUMNS, columns - margin)
    values, row_step, column_step = _shrink(panel.values, _MAX_ROWS, width)
    cell = max(1, min(2, width // values.shape[1]))
    share = np.clip((values - panel.least) / (panel.most - panel.least), 0.0, 1.0)
    shades = np.minimum((share * len(_SHADES)).astype(np.int64), len(_SHADES) - 1)
    lines = [panel.title, *_column_header(panel.column_names, margin, cell, column_step)]
    for number, row in enumerate(shades):
        name = rows[number * row_step]
        cells = "".join(_SHADES[shade] * cell for shade in row)
        lines.append((" " * (margin - 1 - cell_len(name)) + name + " " + cells).rstrip())
    lines.append(
        f"{panel.y_label or 'rows'} ↓, {panel.x_label or 'columns'} →; {panel.least:g} is light, {panel.most:g} dark"
    )
    return "\n".join(lines)


def _column_header(names: Sequence[str], margin: int, cell: int, step: int) -> list[str]:
    """Return lines with the column names written vertically, or none if a column stands for several values."""
    if not names or step > 1:
        return []
    lines = []
    for line in range(max(map(len, names))):
        letters = (name[line] if line < len(name) else " " for name in names)
        lines.append(
            (" " * margin + "".join(letter + " " * max(0, cell - cell_len(letter)) for letter in letters)).rstrip()
        )
    return lines


def _shrink(values: Numbers, max_rows: int, max_columns: int) -> tuple[Numbers, int, int]:
    """Return the means over blocks of a table, and the number of rows and columns per block."""
    row_step = math.ceil(values.shape[0] / max_rows)
    column_step = math.ceil(values.shape[1] / max_columns)
    by_rows = [values[first : first + row_step].mean(axis=0) for first in range(0, values.shape[0], row_step)]
    table = np.stack(by_rows)
    by_columns = [table[:, first : first + column_step].mean(axis=1) for first in range(0, table.shape[1], column_step)]
    return np.stack(by_columns, axis=1), row_step, column_step
