"""Charts in block characters, for a terminal."""

import importlib.util
import io
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from transduce.atomic_io import write_file
from transduce.errors import TransduceError
from transduce.text.languages import unspaced_characters

# --- charts ---
# What a picture shows, whoever draws it: curves and heat maps, as data.


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


# --- plots files ---
# Charts as PNG, SVG or PDF, by matplotlib (the extra `plot`).


SUFFIXES = (".png", ".svg", ".pdf")
# Any of these has the Chinese characters; the first that is installed is taken.
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "Arial Unicode MS",
)
_FILES_OF_CHINESE_FONTS = (
    "notosanscjk",
    "notosanssc",
    "sourcehansans",
    "pingfang",
    "msyh",
    "simhei",
    "wqy",
    "droidsansf",
)
_ONE_PANEL_INCHES = (6.4, 4.4)
_PANEL_INCHES = (4.6, 3.7)
_SMALL_PANEL_INCHES = (3.1, 3.1)  # where there are more than three
_MOST_NAMES = 60  # more cannot be read beside a heat map
_MOST_SQUARES = 24  # a larger heat map fills its frame
_DOTS_PER_INCH = 110
_NO_MATPLOTLIB = (
    "Pictures in files need matplotlib, which is not installed: pip install 'transduce[plot]', or leave --out away to "
    "draw in the terminal."
)


def check_picture(path: Path) -> None:
    """Refuses what could not be drawn, before there is anything to draw.

    Raises:
        TransduceError: the suffix is another one, or matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise TransduceError(
            f"A picture's name ends in {', '.join(SUFFIXES)}, but this one is {path.name}: change its suffix."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise TransduceError(_NO_MATPLOTLIB)


def save_chart(chart: Chart, path: Path) -> None:
    """Writes the picture in the format that the file's suffix names.

    Raises:
        TransduceError: the suffix is another one, matplotlib is missing, or no font has the characters.
    """
    check_picture(path)
    content = render_chart(chart, path.suffix.lower().removeprefix("."))
    write_file(path, content)


def render_chart(chart: Chart, format: str) -> bytes:
    """The picture's bytes; the same chart gives the same bytes."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise TransduceError(_NO_MATPLOTLIB) from None
    settings: dict[Any, object] = {
        "font.family": _font_families(chart),
        "svg.hashsalt": "transduce",
        "axes.unicode_minus": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.labelsize": 10,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.fontsize": 9,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a rare glyph that no font has; the picture shows a box
        rows, columns = _grid(chart)
        width, height = _panel_size(len(chart.panels))
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=_DOTS_PER_INCH)
        for number, panel in enumerate(chart.panels, 1):
            axes = figure.add_subplot(rows, columns, number)
            if isinstance(panel, Curves):
                _plot_curves(axes, panel)
            else:
                _plot_heat_map(figure, axes, panel, with_bar=len(chart.panels) <= 2)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, metadata=_no_date(format))
    return buffer.getvalue()


def _grid(chart: Chart) -> tuple[int, int]:
    columns = min(chart.columns, len(chart.panels))
    return math.ceil(len(chart.panels) / columns), columns


def _panel_size(panels: int) -> tuple[float, float]:
    """Width and height in inches."""
    if panels == 1:
        return _ONE_PANEL_INCHES
    return _PANEL_INCHES if panels <= 3 else _SMALL_PANEL_INCHES


def _no_date(format: str) -> dict[str, None]:
    return {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[format]


def _plot_curves(axes: Any, panel: Curves) -> None:
    for number, each in enumerate(panel.curves):
        # Later ones are thinner, so that an earlier one shows on both sides of a later one that covers it.
        width = max(1.2, 2.6 - 0.5 * number) if len(panel.curves) > 1 else 1.8
        axes.plot(each.x, each.y, label=each.name, linewidth=width, marker="o" if panel.marked else None, markersize=4)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.25)
    if len(panel.curves) > 1:
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2 if _short(panel) else 1)


def _short(panel: Curves) -> bool:
    """Whether two names fit beside each other."""
    return all(len(each.name) <= 24 for each in panel.curves)


def _plot_heat_map(figure: Any, axes: Any, panel: HeatMap, *, with_bar: bool) -> None:
    colours = "RdBu_r" if panel.least < 0.0 else "Blues"
    rows, columns = panel.values.shape
    small = max(rows, columns) <= _MOST_SQUARES
    picture = axes.imshow(
        panel.values,
        cmap=colours,
        vmin=panel.least,
        vmax=panel.most,
        aspect="equal" if small else "auto",
        interpolation="nearest",
    )
    if small:  # a thin line between the squares
        axes.set_xticks([column - 0.5 for column in range(1, columns)], minor=True)
        axes.set_yticks([row - 0.5 for row in range(1, rows)], minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    for spine in axes.spines.values():
        spine.set_visible(True)
    if panel.column_names and len(panel.column_names) <= _MOST_NAMES:
        axes.set_xticks(range(len(panel.column_names)), map(_visible, panel.column_names), rotation=90)
    if panel.row_names and len(panel.row_names) <= _MOST_NAMES:
        axes.set_yticks(range(len(panel.row_names)), map(_visible, panel.row_names))
    if with_bar:
        figure.colorbar(picture, ax=axes, shrink=0.9)


def _visible(token: str) -> str:
    """A piece as it can be read: many fonts draw the mark of a space as a heavy block, and a $ begins a formula."""
    return token.replace("▁", "_").replace("$", r"\$")


def _font_families(chart: Chart) -> list[str]:
    """The usual font, and one with Chinese characters where they are needed."""
    if not unspaced_characters("".join(texts(chart))):
        return ["DejaVu Sans"]
    name = _chinese_font()
    if name is None:
        raise TransduceError(
            "The picture has Chinese characters, but no font here has them: install one (on Debian and Ubuntu the "
            "package fonts-noto-cjk), or leave --out away to draw in the terminal."
        )
    return ["DejaVu Sans", name]


def _chinese_font() -> str | None:
    from matplotlib import font_manager

    manager = font_manager.fontManager
    known = {font.name for font in manager.ttflist}
    if not known.intersection(CHINESE_FONTS):
        # matplotlib remembers which fonts there were when it first ran.
        for path in map(Path, sorted(font_manager.findSystemFonts())):
            if path.stem.lower().startswith(_FILES_OF_CHINESE_FONTS):
                manager.addfont(path)
        known = {font.name for font in manager.ttflist}
    return next((name for name in CHINESE_FONTS if name in known), None)


# --- plots ---


_SHADES = " ░▒▓█"
_MARKS = "●×+○▲◆□*"
_ROWS = 16
_LEAST_COLUMNS = 20
_MOST_SHOWN = 40  # rows of a heat map


def draw_chart(chart: Chart, *, columns: int = 80) -> str:
    """The panels one below another, each at most so many columns wide."""
    drawn = [
        _draw_curves(each, columns) if isinstance(each, Curves) else _draw_heat_map(each, columns)
        for each in chart.panels
    ]
    return "\n\n".join(drawn)


def _draw_curves(panel: Curves, columns: int) -> str:
    """A frame with a mark for each curve at each column; the last one drawn lies on top."""
    x = np.concatenate([each.x for each in panel.curves])
    y = np.concatenate([each.y for each in panel.curves])
    if not len(x):
        return f"{panel.title}\n(nothing to draw)"
    low, high = _limits(y)
    scale = [f"{high:.4g}", f"{low:.4g}"]
    margin = max(map(len, scale)) + 1
    width = max(_LEAST_COLUMNS, columns - margin - 1)
    grid = [[" "] * width for _ in range(_ROWS)]
    for number, each in enumerate(panel.curves):
        for column, value in _columns(each.x, each.y, _limits(x), width):
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


def _columns(x: Numbers, y: Numbers, limits: tuple[float, float], width: int) -> list[tuple[int, float]]:
    """The curve's height at each column that it spans, straight between its points."""
    if not len(x):
        return []
    order = np.argsort(x, kind="stable")
    first, last = ((float(value) - limits[0]) / (limits[1] - limits[0]) * (width - 1) for value in (x.min(), x.max()))
    places = range(round(first), round(last) + 1)
    at = [limits[0] + place / (width - 1) * (limits[1] - limits[0]) for place in places]
    heights = np.interp(at, x[order], y[order])
    return list(zip(places, heights.tolist(), strict=True))


def _draw_heat_map(panel: HeatMap, columns: int) -> str:
    """A shade a number; a large table is shown by the means of its parts."""
    rows = list(panel.row_names) or [str(number) for number in range(len(panel.values))]
    margin = max(map(cell_len, rows)) + 1
    width = max(_LEAST_COLUMNS, columns - margin)
    values, row_step, column_step = _shrink(panel.values, _MOST_SHOWN, width)
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
    """Names from top to bottom, a character a line; none where a column stands for several."""
    if not names or step > 1:
        return []
    lines = []
    for line in range(max(map(len, names))):
        letters = (name[line] if line < len(name) else " " for name in names)
        lines.append(
            (" " * margin + "".join(letter + " " * max(0, cell - cell_len(letter)) for letter in letters)).rstrip()
        )
    return lines


def _shrink(values: Numbers, most_rows: int, most_columns: int) -> tuple[Numbers, int, int]:
    """Means over blocks, and how many rows and columns a block has."""
    row_step = math.ceil(values.shape[0] / most_rows)
    column_step = math.ceil(values.shape[1] / most_columns)
    by_rows = [values[first : first + row_step].mean(axis=0) for first in range(0, values.shape[0], row_step)]
    table = np.stack(by_rows)
    by_columns = [table[:, first : first + column_step].mean(axis=1) for first in range(0, table.shape[1], column_step)]
    return np.stack(by_columns, axis=1), row_step, column_step
