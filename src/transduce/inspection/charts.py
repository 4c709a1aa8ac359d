"""Charts as data, independent of what draws them: curves and heat maps."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


class Curve(msgspec.Struct, frozen=True):
    """A curve through points."""

    name: str
    x: Numbers
    y: Numbers


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """A panel with one or more curves."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    marked: bool = False
    """True to mark each point, for curves with few points."""


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """A panel with a table of numbers as shades; the first row is at the top."""

    title: str
    x_label: str
    y_label: str
    values: Numbers
    least: float
    most: float
    row_names: tuple[str, ...] = ()
    """Names of the rows; if empty, rows are numbered from 0."""
    column_names: tuple[str, ...] = ()


class Chart(msgspec.Struct, frozen=True):
    """A picture of one or more panels."""

    panels: tuple[Curves | HeatMap, ...]
    columns: int = 3
    """Maximum number of panels in a row."""


def curve(name: str, x: Any, y: Any) -> Curve:
    """Return a curve with coordinates from anything that numpy can convert."""
    return Curve(name, np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))


def texts(chart: Chart) -> list[str]:
    """Return all texts of a chart."""
    result: list[str] = []
    for panel in chart.panels:
        result += [panel.title, panel.x_label, panel.y_label]
        if isinstance(panel, Curves):
            result += [item.name for item in panel.curves]
        else:
            result += [*panel.row_names, *panel.column_names]
    return result
