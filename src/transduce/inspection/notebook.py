"""HTML without scripts for notebooks: shaded tables and small heat maps.

Shapes: N layers, H heads, Q queries, L keys.
"""

import html
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_RGB = "11, 110, 153"
_CELL_PIXELS = 6
_MIN_SHOWN = 0.004


def shaded_table(
    rows: Sequence[str], columns: Sequence[str], weights: Sequence[Sequence[float]] | npt.NDArray[np.float32]
) -> str:
    """Return an HTML table with a shade and a number for each weight (0 to 1), and with row and column names."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr><th style='text-align: right'>{html.escape(name)}</th>{''.join(map(_shaded_cell, row))}</tr>"
        for name, row in zip(rows, weights, strict=True)
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shaded_cell(weight: float) -> str:
    shade = f"background: rgba({_RGB}, {min(1.0, float(weight)) * 0.85:.2f})"
    return f"<td style='{shade}; text-align: center'>{float(weight):.2f}</td>"


def small_heat_maps(weights: npt.NDArray[np.float32]) -> str:
    """Return an HTML table with a small picture of each head (N, H, Q, L): a row per layer, a column per head."""
    heads = "".join(f"<th>head {number}</th>" for number in range(1, weights.shape[1] + 1))
    rows = "".join(
        f"<tr><th>layer {number}</th>{''.join(f'<td>{_small_heat_map(head)}</td>' for head in layer)}</tr>"
        for number, layer in enumerate(weights, 1)
    )
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _small_heat_map(weights: npt.NDArray[np.float32]) -> str:
    queries, keys = weights.shape
    cells = "".join(
        f"<rect x='{key}' y='{query}' width='1' height='1' fill-opacity='{weights[query, key]:.2f}'/>"
        for query, key in np.argwhere(weights >= _MIN_SHOWN).tolist()
    )
    size = f"width='{keys * _CELL_PIXELS}' height='{queries * _CELL_PIXELS}' viewBox='0 0 {keys} {queries}'"
    return f"<svg {size} style='border: 1px solid #ccc' fill='rgb({_RGB})'>{cells}</svg>"


def framed(page: str, *, height_pixels: int = 720) -> str:
    """Return a page in an iframe for a notebook, so that its style does not affect the notebook."""
    style = f"width: 100%; height: {height_pixels}px; border: 1px solid #ccc"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page, quote=True)}"></iframe>'
