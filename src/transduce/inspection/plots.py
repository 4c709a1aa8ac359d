"""Charts as data, and their rendering: as pictures with matplotlib, and as block characters for a terminal."""

import io
import math
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from transduce.atomic_io import write_file
from transduce.errors import TransduceError, import_extra, warn
from transduce.text.languages import unspaced_characters
from transduce.ui_language import columns_of, localized, padded, ui_language

# --- charts ---
# Charts as data, independent of what draws them: curves and heat maps.


Numbers = npt.NDArray[np.float64]


class Curve(msgspec.Struct, frozen=True):
    """A curve of a chart through points (x, y), with its name in the legend."""

    name: str
    x: Numbers
    y: Numbers
    color: int | None = None
    """Number of the color, from 0; None: the curve's index in its panel. Curves with equal numbers share a color."""
    dashed: bool = False
    """True to draw dashes, which also leave a curve below them visible."""
    marked: bool = False
    """True to mark each point, for curves with few points."""


class Curves(msgspec.Struct, frozen=True):
    """A panel of a chart with any number of curves, a title, and labels of its axes."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]


class HeatMap(msgspec.Struct, frozen=True):
    """A panel of a chart with a table of numbers as shades from `minimum` to `maximum`; the first row is on top."""

    title: str
    x_label: str
    y_label: str
    values: Numbers
    """The numbers, (rows, columns)."""
    minimum: float = 0.0
    maximum: float = 1.0
    row_names: tuple[str, ...] = ()
    """Names of the rows; if empty, rows are numbered from 0."""
    column_names: tuple[str, ...] = ()
    """Names of the columns; if empty, columns are numbered from 0."""


class WordLines(msgspec.Struct, frozen=True):
    """A panel of a chart with words on both sides and lines between them: the darker, the higher the weight."""

    title: str
    left: tuple[str, ...]
    """The words on the left, which attend."""
    right: tuple[str, ...]
    """The words on the right, which are attended to."""
    weights: Numbers
    """Weights from 0 to 1, (heads, left words, right words); each head has a color."""
    head_names: tuple[str, ...] = ()
    """Names of the heads in the legend; empty: no legend."""


Panel = Curves | HeatMap | WordLines


class Chart(msgspec.Struct, frozen=True):
    """A picture of one or more panels (curves, heat maps or lines between words)."""

    panels: tuple[Panel, ...]
    columns: int = 3
    """Maximum number of panels beside each other."""


def curve(name: str, x: Any, y: Any, **look: Any) -> Curve:
    """Return a `Curve` from x and y coordinates that NumPy can convert to arrays.

    `look` has values of other fields of `Curve`, such as `dashed`.
    """
    return Curve(name, np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64), **look)


def texts(chart: Chart) -> list[str]:
    """Return a list of all titles, labels and names that a chart shows, to find the characters a font must have."""
    result: list[str] = []
    for panel in chart.panels:
        if isinstance(panel, WordLines):
            result += [panel.title, *panel.left, *panel.right, *panel.head_names]
            continue
        result += [panel.title, panel.x_label, panel.y_label]
        if isinstance(panel, Curves):
            result += [item.name for item in panel.curves]
        else:
            result += [*panel.row_names, *panel.column_names]
    return result


def localized_chart(chart: Chart) -> Chart:
    """Return a chart whose titles, labels, and names of curves, layers and heads are in the user's language.

    Words of texts stay as they are. If the language is English, the same chart is returned.
    """
    if ui_language() == "en":
        return chart
    panels: list[Panel] = []
    for panel in chart.panels:
        if isinstance(panel, WordLines):
            names = tuple(map(localized, panel.head_names))
            panels.append(msgspec.structs.replace(panel, title=localized(panel.title), head_names=names))
            continue
        changed: dict[str, Any] = {name: localized(getattr(panel, name)) for name in ("title", "x_label", "y_label")}
        if isinstance(panel, Curves):
            changed["curves"] = tuple(msgspec.structs.replace(each, name=localized(each.name)) for each in panel.curves)
        else:
            for field in ("row_names", "column_names"):
                names = getattr(panel, field)
                if all(map(_PART.fullmatch, names)):  # else they are tokens
                    changed[field] = tuple(map(part_name, names))
        panels.append(msgspec.structs.replace(panel, **changed))
    return msgspec.structs.replace(chart, panels=tuple(panels))


_PART = re.compile(r"(?:layer|head) \d+|embedding|self-attention|cross-attention|feed-forward|whole layer")


def part_name(name: str) -> str:
    """Return the name of a layer, head or sub-layer in the user's language, and any other name as it is."""
    return localized(name) if _PART.fullmatch(name) else name


# --- plots files ---
# Render charts as PNG, SVG or PDF with matplotlib (the extra `plot`).


SUFFIXES = (".png", ".svg", ".pdf")
# Fonts with Chinese characters, in order of preference.
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
_CHINESE_FONT_FILES = ("notosanscjk", "notosanssc", "sourcehansans", "pingfang", "msyh", "simhei", "wqy", "droidsansf")
_ONE_PANEL_INCHES = (6.4, 4.4)
_PANEL_INCHES = (4.6, 3.7)
_SMALL_PANEL_INCHES = (3.1, 3.1)  # for more than three panels
_SHORT_NAME = 24  # maximum number of characters of names that stand side by side in a legend
_MAX_NAMES = 60  # more are illegible next to a heat map
_MAX_SQUARES = 24  # a larger heat map fills its frame
_DOTS_PER_INCH = 110
# Metadata without date and version, so that equal charts give equal files.
_WITHOUT_DATE = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def check_picture(path: Path) -> None:
    """Check, before a chart is computed, that its picture can be written to this path: suffix and matplotlib.

    Raises:
        TransduceError: the suffix is not supported, or matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise TransduceError(
            f"A picture's name must end in {', '.join(SUFFIXES)}, but this one is {path.name}: change its suffix."
        )
    _import_matplotlib()


def _import_matplotlib() -> Any:
    return import_extra("matplotlib", "plot", "A picture in a file")


def save_chart(chart: Chart, path: Path) -> None:
    """Write a chart to a file as a picture, in the format of the file's suffix (PNG, SVG or PDF).

    Raises:
        TransduceError: the suffix is not supported, matplotlib is missing, or no font has the characters.
    """
    check_picture(path)
    write_file(path, render_chart(chart, path.suffix.lower().removeprefix(".")))


def render_chart(chart: Chart, format: str) -> bytes:
    """Return a picture of a chart as the bytes of a file.

    Equal charts give equal bytes. Titles and labels are in the user's language. They stay English, with a warning, if
    that language is Chinese and no installed font has Chinese characters.

    Args:
        chart: the chart.
        format: "png", "svg" or "pdf".

    Raises:
        TransduceError: matplotlib is missing, or texts in the chart are Chinese and no font has their characters.
        KeyError: the format is another one.
    """
    mpl = _import_matplotlib()
    from matplotlib.figure import Figure

    if ui_language() != "en" and _chinese_font() is None:
        warn(
            "The labels of the picture are English, because no font here has Chinese characters: install one (on "
            "Debian and Ubuntu the package fonts-noto-cjk)."
        )
    else:
        chart = localized_chart(chart)
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
        warnings.simplefilter("ignore", UserWarning)  # about rare characters that no font has; the picture shows boxes
        columns = min(chart.columns, len(chart.panels))
        rows = math.ceil(len(chart.panels) / columns)
        width, height = _panel_size(len(chart.panels))
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=_DOTS_PER_INCH)
        for number, panel in enumerate(chart.panels, 1):
            axes = figure.add_subplot(rows, columns, number)
            if isinstance(panel, Curves):
                _plot_curves(axes, panel)
            elif isinstance(panel, WordLines):
                _plot_word_lines(axes, panel)
            else:
                _plot_heat_map(figure, axes, panel, with_bar=len(chart.panels) <= 2)
        buffer = io.BytesIO()
        # Square cells of a heat map may leave much of the width or height empty, or push titles out of the picture.
        margins = "tight" if any(isinstance(panel, HeatMap) for panel in chart.panels) else None
        figure.savefig(buffer, format=format, metadata=_WITHOUT_DATE[format], bbox_inches=margins)
    return buffer.getvalue()


def _panel_size(panels: int) -> tuple[float, float]:
    """Return the width and height in inches of each panel of a picture with `panels` panels: the more, the smaller."""
    if panels == 1:
        return _ONE_PANEL_INCHES
    return _PANEL_INCHES if panels <= 3 else _SMALL_PANEL_INCHES


def _plot_curves(axes: Any, panel: Curves) -> None:
    for number, each in enumerate(panel.curves):
        axes.plot(
            each.x,
            each.y,
            label=each.name,
            color=f"C{number if each.color is None else each.color}",
            linewidth=1.8,
            linestyle=(0, (4, 2.5)) if each.dashed else "-",
            zorder=3 if each.dashed else 2,
            marker="o" if each.marked else None,
            markersize=4,
        )
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if all(np.array_equal(each.x, np.rint(each.x)) for each in panel.curves):  # such as positions and steps
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.25)
    if panel.curves:
        names_in_row = 2 if all(len(each.name) <= _SHORT_NAME for each in panel.curves) else 1
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=names_in_row)


_FAINTEST = 0.02  # lines of less weight are not drawn


def _plot_word_lines(axes: Any, panel: WordLines) -> None:
    """Draw a panel of words into matplotlib's `axes`: two columns of words, and lines between them.

    The picture looks like Figures 3 to 5 of "Attention Is All You Need".
    """
    from matplotlib.lines import Line2D

    axes.set(title=panel.title, xlim=(-0.1, 1.1), ylim=(max(len(panel.left), len(panel.right)) - 0.5, -0.5))
    axes.axis("off")
    for words, x, side in ((panel.left, -0.02, "right"), (panel.right, 1.02, "left")):
        for row, word in enumerate(words):
            axes.text(x, row, _visible(word), ha=side, va="center")
    for head, weights in enumerate(panel.weights):
        for row, column in np.argwhere(weights >= _FAINTEST):
            weight = min(1.0, float(weights[row, column]))
            axes.plot([0.0, 1.0], [row, column], color=f"C{head}", alpha=weight, linewidth=2.2, solid_capstyle="butt")
    if panel.head_names:
        handles = [Line2D([], [], color=f"C{head}") for head in range(len(panel.head_names))]
        axes.legend(
            handles, panel.head_names, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(handles)
        )


def _plot_heat_map(figure: Any, axes: Any, panel: HeatMap, *, with_bar: bool) -> None:
    rows, columns = panel.values.shape
    has_few_cells = max(rows, columns) <= _MAX_SQUARES
    picture = axes.imshow(
        panel.values,
        cmap="RdBu_r" if panel.minimum < 0.0 else "Blues",
        vmin=panel.minimum,
        vmax=panel.maximum,
        aspect="equal" if has_few_cells else "auto",
        interpolation="nearest",
    )
    if has_few_cells:  # a thin line between the squares
        axes.set_xticks([column - 0.5 for column in range(1, columns)], minor=True)
        axes.set_yticks([row - 0.5 for row in range(1, rows)], minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    for axis in (axes.xaxis, axes.yaxis):  # rows and columns have whole numbers
        axis.get_major_locator().set_params(integer=True)
    for spine in axes.spines.values():
        spine.set_visible(True)
    if panel.column_names and len(panel.column_names) <= _MAX_NAMES:
        axes.set_xticks(range(len(panel.column_names)), map(_upright, panel.column_names), rotation=90)
        for label, name in zip(axes.get_xticklabels(), panel.column_names, strict=True):
            if unspaced_characters(name):
                label.set_rotation(0)
                label.set_linespacing(1.0)
    if panel.row_names and len(panel.row_names) <= _MAX_NAMES:
        axes.set_yticks(range(len(panel.row_names)), map(_visible, panel.row_names))
    if with_bar:
        figure.colorbar(picture, ax=axes, shrink=0.9)


def _visible(token: str) -> str:
    """Return a token with the sign $ escaped, as $ would start a formula in matplotlib."""
    return token.replace("$", r"\$")


def _upright(token: str) -> str:
    """Return the name of a heat map's column in the form in which matplotlib draws it.

    Names in scripts without spaces, such as Chinese, have one character below another.
    """
    return "\n".join(_visible(token.replace(" ", ""))) if unspaced_characters(token) else _visible(token)


def _font_families(chart: Chart) -> list[str]:
    """Return a list of fonts for a chart: the default one and, for Chinese characters, an installed Chinese one.

    Raises:
        TransduceError: the chart has Chinese characters, but no installed font has them.
    """
    if not unspaced_characters("".join(texts(chart))):
        return ["DejaVu Sans"]
    name = _chinese_font()
    if name is None:
        raise TransduceError(
            "The picture has Chinese characters, but no font here has them: install one (on Debian and Ubuntu the "
            "package fonts-noto-cjk), or omit --output to draw in the terminal."
        )
    return ["DejaVu Sans", name]


def _chinese_font() -> str | None:
    from matplotlib import font_manager

    manager = font_manager.fontManager
    installed = {font.name for font in manager.ttflist}
    if not installed.intersection(CHINESE_FONTS):
        # matplotlib caches the list of fonts from its first run.
        for path in map(Path, sorted(font_manager.findSystemFonts())):
            if path.stem.lower().startswith(_CHINESE_FONT_FILES):
                manager.addfont(path)
        installed = {font.name for font in manager.ttflist}
    return next((name for name in CHINESE_FONTS if name in installed), None)


# --- terminal ---
# Draw charts with block characters for a terminal.

_SHADES = " ░▒▓█"
_MARKS = "●×+○▲◆□*"
_ROWS = 16
_MIN_COLUMNS = 20
_MAX_ROWS = 40  # of a heat map


def draw_chart(chart: Chart, *, columns: int = 80) -> str:
    """Return a chart as text for a terminal: its panels below one another, each at most `columns` wide."""
    return "\n\n".join(_draw_panel(each, columns) for each in localized_chart(chart).panels)


def _draw_panel(panel: Panel, columns: int) -> str:
    if isinstance(panel, WordLines):
        return _draw_word_lines(panel)
    return _draw_curves(panel, columns) if isinstance(panel, Curves) else _draw_heat_map(panel, columns)


_LISTED = 3  # right words of a left word


def _draw_word_lines(panel: WordLines) -> str:
    """Return a panel of words as text: a line for each head and left word with its three strongest right words.

    Weights below 0.02 are left out.
    """
    lines, width = [panel.title], max(map(columns_of, panel.left), default=0)
    for head, weights in enumerate(panel.weights):
        lines += [panel.head_names[head]] if panel.head_names else []
        for row, word in enumerate(panel.left):
            best = [int(each) for each in np.argsort(-weights[row], kind="stable")[:_LISTED]]
            shown = [f"{panel.right[n]} {weights[row, n]:.2f}" for n in best if weights[row, n] >= _FAINTEST]
            if shown:
                lines.append(f"  {padded(word, width)} → {', '.join(shown)}")
    return "\n".join(lines)


def _draw_curves(panel: Curves, columns: int) -> str:
    """Return a panel of curves as text: a frame with one mark per curve and column, labels, and a legend.

    Where curves meet, the later one covers the earlier one.
    """
    x = np.concatenate([each.x for each in panel.curves])
    y = np.concatenate([each.y for each in panel.curves])
    if not len(x):
        return f"{panel.title}\n{localized('(nothing to draw)')}"
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
    label_columns = width - len(left) - len(right) - columns_of(panel.x_label) + len(panel.x_label)
    below = f"{'':{margin + 1}}{left}{panel.x_label.center(max(0, label_columns))}{right}"
    legend = [f"  {_MARKS[number % len(_MARKS)]} {each.name}" for number, each in enumerate(panel.curves)]
    return "\n".join([f"{panel.title}  [{panel.y_label}]", *lines, axis, below.rstrip(), *legend])


def _limits(values: Numbers) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _interpolate_columns(x: Numbers, y: Numbers, limits: tuple[float, float], width: int) -> list[tuple[int, float]]:
    """Return a curve's height in each column of a text drawing, as pairs (column, height).

    The curve is interpolated linearly between its points. Columns before its first and after its last point are left
    out. The list is empty for a curve without points.

    Args:
        x: the x values of the points.
        y: the y values of the points.
        limits: the x values of the first and the last column.
        width: the number of columns.
    """
    if not len(x):
        return []
    order = np.argsort(x, kind="stable")
    first, last = ((float(value) - limits[0]) / (limits[1] - limits[0]) * (width - 1) for value in (x.min(), x.max()))
    column_numbers = range(round(first), round(last) + 1)
    positions = [limits[0] + column / (width - 1) * (limits[1] - limits[0]) for column in column_numbers]
    heights = np.interp(positions, x[order], y[order])
    return list(zip(column_numbers, heights.tolist(), strict=True))


def _draw_heat_map(panel: HeatMap, columns: int) -> str:
    """Return a heat map as text with a shade (" ░▒▓█") for each value; a large table is reduced to means of blocks."""
    rows = list(panel.row_names) or [str(number) for number in range(len(panel.values))]
    margin = max(map(columns_of, rows)) + 1
    width = max(_MIN_COLUMNS, columns - margin)
    values, row_step, column_step = _shrink(panel.values, _MAX_ROWS, width)
    cell = max(1, min(2, width // values.shape[1]))
    share = np.clip((values - panel.minimum) / (panel.maximum - panel.minimum), 0.0, 1.0)
    shades = np.minimum((share * len(_SHADES)).astype(np.int64), len(_SHADES) - 1)
    lines = [panel.title, *_column_header(panel.column_names, margin, cell, column_step)]
    for number, row in enumerate(shades):
        name = rows[number * row_step]
        cells = "".join(_SHADES[shade] * cell for shade in row)
        lines.append((padded(name, margin - 1, right=True) + " " + cells).rstrip())
    named = [f"{label} {arrow}" for label, arrow in ((panel.y_label, "↓"), (panel.x_label, "→")) if label]
    axes = (", " if ui_language() == "en" else "，").join(named)
    shading = localized(f"; {panel.minimum:g} is light, {panel.maximum:g} dark")
    lines.append(axes + shading if axes else shading[1:].lstrip())
    return "\n".join(lines)


def _column_header(names: Sequence[str], margin: int, cell: int, step: int) -> list[str]:
    """Return lines of text with the column names of a heat map, written vertically.

    The list is empty if there are no names, or if each column stands for several values (`step` > 1).
    """
    if not names or step > 1:
        return []
    lines = []
    for line in range(max(map(len, names))):
        letters = (name[line] if line < len(name) else " " for name in names)
        lines.append((" " * margin + "".join(padded(letter, cell) for letter in letters)).rstrip())
    return lines


def _shrink(values: Numbers, max_rows: int, max_columns: int) -> tuple[Numbers, int, int]:
    """Return the means of a table's blocks, and the numbers of rows and columns of a block.

    Blocks are so large that their means have at most `max_rows` rows and `max_columns` columns.
    """
    row_step = math.ceil(values.shape[0] / max_rows)
    column_step = math.ceil(values.shape[1] / max_columns)
    table = np.stack([values[n : n + row_step].mean(axis=0) for n in range(0, values.shape[0], row_step)])
    columns = [table[:, n : n + column_step].mean(axis=1) for n in range(0, table.shape[1], column_step)]
    return np.stack(columns, axis=1), row_step, column_step
