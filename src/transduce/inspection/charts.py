"""What a picture shows, whoever draws it: curves and heat maps, as data."""

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]


class Curve(msgspec.Struct, frozen=True):
    """A line through points."""

    name: str
    x: Numbers
    y: Numbers


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """Lines in one frame."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    marked: bool = False
    """Whether each point is marked: where there are few."""


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """A table of numbers as shades; the first row is at the top."""

    title: str
    x_label: str
    y_label: str
    values: Numbers
    least: float
    most: float
    row_names: tuple[str, ...] = ()
    """Names of the rows; numbers from 0 where there are none."""
    column_names: tuple[str, ...] = ()


class Chart(msgspec.Struct, frozen=True):
    """A picture of one or more panels, side by side."""

    panels: tuple[Curves | HeatMap, ...]
    columns: int = 3
    """Panels in a row, at most."""


def curve(name: str, x: Any, y: Any) -> Curve:
    """A curve from anything that numpy reads as numbers."""
    return Curve(name, np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))


def texts(chart: Chart) -> list[str]:
    """Everything that is written in the picture."""
    found: list[str] = []
    for panel in chart.panels:
        found += [panel.title, panel.x_label, panel.y_label]
        if isinstance(panel, Curves):
            found += [each.name for each in panel.curves]
        else:
            found += [*panel.row_names, *panel.column_names]
    return found
