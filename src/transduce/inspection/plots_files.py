"""Render charts as PNG, SVG or PDF with matplotlib (the extra `plot`)."""

import importlib.util
import io
import math
import warnings
from pathlib import Path
from typing import Any

from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.inspection.charts import Chart, Curves, HeatMap, texts
from transduce.text.languages import unspaced_characters

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
_CHINESE_FONT_FILES = (
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
_SMALL_PANEL_INCHES = (3.1, 3.1)  # for more than three panels
_MAX_NAMES = 60  # more are illegible next to a heat map
_MAX_SQUARES = 24  # a larger heat map fills its frame
_DOTS_PER_INCH = 110
_NO_MATPLOTLIB = (
    "Pictures in files need matplotlib, which is not installed: pip install 'transduce[plot]', or omit --out to draw "
    "in the terminal."
)


def check_picture(path: Path) -> None:
    """Check that a picture can be rendered, before its chart is computed.

    Raises:
        TransduceError: the suffix is not supported, or matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise TransduceError(
            f"A picture's name must end in {', '.join(SUFFIXES)}, but this one is {path.name}: change its suffix."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise TransduceError(_NO_MATPLOTLIB)


def save_chart(chart: Chart, path: Path) -> None:
    """Write a chart to a file, in the format of its suffix.

    Raises:
        TransduceError: the suffix is not supported, matplotlib is missing, or no font has the characters.
    """
    check_picture(path)
    content = render_chart(chart, path.suffix.lower().removeprefix("."))
    write_file(path, content)


def render_chart(chart: Chart, format: str) -> bytes:
    """Return the bytes of a picture; equal charts give equal bytes."""
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
        warnings.simplefilter("ignore", UserWarning)  # about rare characters that no font has; the picture shows boxes
        rows, columns = _grid(chart)
        width, height = _panel_size(len(chart.panels))
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=_DOTS_PER_INCH)
        for number, panel in enumerate(chart.panels, 1):
            axes = figure.add_subplot(rows, columns, number)
            if isinstance(panel, Curves):
                _draw_curves(axes, panel)
            else:
                _draw_heat_map(figure, axes, panel, with_bar=len(chart.panels) <= 2)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=format, metadata=_metadata_without_date(format))
    return buffer.getvalue()


def _grid(chart: Chart) -> tuple[int, int]:
    columns = min(chart.columns, len(chart.panels))
    return math.ceil(len(chart.panels) / columns), columns


def _panel_size(panels: int) -> tuple[float, float]:
    """Return the width and height of a panel in inches."""
    if panels == 1:
        return _ONE_PANEL_INCHES
    return _PANEL_INCHES if panels <= 3 else _SMALL_PANEL_INCHES


def _metadata_without_date(format: str) -> dict[str, None]:
    return {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[format]


def _draw_curves(axes: Any, panel: Curves) -> None:
    for number, each in enumerate(panel.curves):
        # Later curves are thinner, so that an earlier curve under them remains visible on both sides.
        width = max(1.2, 2.6 - 0.5 * number) if len(panel.curves) > 1 else 1.8
        axes.plot(each.x, each.y, label=each.name, linewidth=width, marker="o" if panel.marked else None, markersize=4)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.25)
    if len(panel.curves) > 1:
        axes.legend(
            frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2 if _has_short_names(panel) else 1
        )


def _has_short_names(panel: Curves) -> bool:
    """Return whether two names fit side by side in the legend."""
    return all(len(each.name) <= 24 for each in panel.curves)


def _draw_heat_map(figure: Any, axes: Any, panel: HeatMap, *, with_bar: bool) -> None:
    colors = "RdBu_r" if panel.least < 0.0 else "Blues"
    rows, columns = panel.values.shape
    has_few_cells = max(rows, columns) <= _MAX_SQUARES
    picture = axes.imshow(
        panel.values,
        cmap=colors,
        vmin=panel.least,
        vmax=panel.most,
        aspect="equal" if has_few_cells else "auto",
        interpolation="nearest",
    )
    if has_few_cells:  # a thin line between the squares
        axes.set_xticks([column - 0.5 for column in range(1, columns)], minor=True)
        axes.set_yticks([row - 0.5 for row in range(1, rows)], minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8)
        axes.tick_params(which="minor", length=0)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    for spine in axes.spines.values():
        spine.set_visible(True)
    if panel.column_names and len(panel.column_names) <= _MAX_NAMES:
        axes.set_xticks(range(len(panel.column_names)), map(_visible, panel.column_names), rotation=90)
    if panel.row_names and len(panel.row_names) <= _MAX_NAMES:
        axes.set_yticks(range(len(panel.row_names)), map(_visible, panel.row_names))
    if with_bar:
        figure.colorbar(picture, ax=axes, shrink=0.9)


def _visible(token: str) -> str:
    """Return a token in readable form: many fonts draw ▁ as a heavy block, and $ would start a formula."""
    return token.replace("▁", "_").replace("$", r"\$")


def _font_families(chart: Chart) -> list[str]:
    """Return the default font and, if necessary, one with Chinese characters."""
    if not unspaced_characters("".join(texts(chart))):
        return ["DejaVu Sans"]
    name = _chinese_font()
    if name is None:
        raise TransduceError(
            "The picture has Chinese characters, but no font here has them: install one (on Debian and Ubuntu the "
            "package fonts-noto-cjk), or omit --out to draw in the terminal."
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
