"""Plots that explain the parts of a Transformer, computed with the model's own modules.

Shapes: T positions, D model width.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from transduce.errors import TransduceError
from transduce.inspection.charts import Chart, Curves, HeatMap, curve
from transduce.model.feed_forward import ACTIVATIONS
from transduce.model.masks import look_ahead_mask, padding_mask, target_mask
from transduce.model.positions import RotaryPositions, sinusoids
from transduce.training.schedule import ScheduleName, learning_rate, paper_peak

_POINTS = 400


def plot_positions(*, length: int, d_model: int) -> Chart:
    """Return a chart of the sinusoids of section 3.5 in the paper's layout: the whole table, and some of its columns.

    Dimension 2i is sin(position / 10000^(2i/d_model)), dimension 2i + 1 the cosine.
    """
    _check_even(d_model)
    table = sinusoids(length, d_model, interleaved=True).double().numpy()  # (T, D)
    return Chart(
        (
            HeatMap(
                title="Sinusoidal positions",
                x_label="dimension",
                y_label="position",
                values=table,
                least=-1.0,
                most=1.0,
            ),
            Curves(
                title="Sines of some dimensions",
                x_label="position",
                y_label="value",
                curves=tuple(
                    curve(f"dimension {dimension}", np.arange(length), table[:, dimension])
                    for dimension in _readable(length, d_model)
                ),
            ),
        )
    )


def _readable(length: int, d_model: int) -> list[int]:
    """Return even dimensions whose sines have about eight, four, two and one periods within the length."""
    exponents = [math.log(max(1.0, length / times / math.tau), 10000.0) for times in (8, 4, 2, 1)]
    return sorted({2 * min(round(exponent * d_model / 2), d_model // 2 - 1) for exponent in exponents})


def plot_rotation(*, length: int, d_k: int) -> Chart:
    """Return a chart showing that query-key products depend on distance only with rotary embeddings (Su et al. 2021).

    The query and the key are the same vector of ones with norm 1, so their product at distance 0 is 1.
    """
    _check_even(d_k)
    vector = torch.full((1, 1, length, d_k), d_k**-0.5, dtype=torch.float64)
    rotated = RotaryPositions(d_k)(torch.arange(length), torch.float64).apply(vector)[0, 0]  # (T, K)
    products = (rotated @ rotated.T).numpy()  # (T, T)
    return Chart(
        (
            HeatMap(
                title="Query · key after the rotation",
                x_label="position of the key",
                y_label="position of the query",
                values=products,
                least=-1.0,
                most=1.0,
            ),
            Curves(
                title="Query · key by distance",
                x_label="key's position − query's position",
                y_label="query · key",
                curves=(
                    curve("from the first query", np.arange(length), products[0]),
                    curve("from the last query", np.arange(length) - length + 1, products[-1]),
                ),
            ),
        )
    )


def plot_masks(*, length: int, padding: int) -> Chart:
    """Return a chart of the masks of a target whose last tokens are padding: 1 where a query may attend to a key."""
    if not 0 <= padding < length:
        raise TransduceError(f"`--padding` must be from 0 to {length - 1} (`--length` - 1), but is {padding}.")
    ids = torch.ones(1, length, dtype=torch.int64)
    ids[0, length - padding :] = 0
    masks = {
        "Look-ahead mask": look_ahead_mask(length).allowed[0, 0],
        "Padding mask": padding_mask(ids, 0).allowed[0, 0].expand(length, length),
        "Both: the target's mask": target_mask(ids, 0).allowed[0, 0],
    }
    return Chart(
        tuple(
            HeatMap(
                title=title,
                x_label="key (dark: may be attended to)",
                y_label="query",
                values=allowed.double().numpy(),
                least=0.0,
                most=1.0,
            )
            for title, allowed in masks.items()
        )
    )


def plot_schedules(
    *,
    schedules: Sequence[ScheduleName],
    warmups: Sequence[int],
    widths: Sequence[int],
    steps: int,
) -> Chart:
    """Return a chart of learning rates for each schedule, warm-up and width, with the peak of equation (3)."""
    x = np.unique(np.linspace(1, steps, min(steps, _POINTS)).round().astype(np.int64))
    curves = []
    for schedule in schedules:
        for width in widths:
            for warmup in warmups:
                peak = paper_peak(width, warmup)
                rates = [
                    learning_rate(step, schedule=schedule, peak=peak, warmup_steps=warmup, steps=steps)
                    for step in x.tolist()
                ]
                curves.append(curve(f"{schedule}, d_model {width}, warm-up {warmup:,}", x, rates))
    return Chart((Curves(title="Learning rate", x_label="step", y_label="rate", curves=tuple(curves)),))


def plot_activations() -> Chart:
    """Return a chart of the activation functions of feed-forward layers, and of their derivatives."""
    x = torch.linspace(-4.0, 4.0, _POINTS, dtype=torch.float64, requires_grad=True)
    values, slopes = [], []
    for name, function in ACTIVATIONS.items():
        y = function(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        values.append(curve(name, x.detach().numpy(), y.detach().numpy()))
        slopes.append(curve(name, x.detach().numpy(), slope.numpy()))
    return Chart(
        (
            Curves(title="Activation functions", x_label="input", y_label="output", curves=tuple(values)),
            Curves(title="Their slopes", x_label="input", y_label="slope", curves=tuple(slopes)),
        )
    )


def _check_even(width: int) -> None:
    if width < 2 or width % 2:
        raise TransduceError(f"Positions come in pairs of dimensions, so `--d-model` must be even, but is {width}.")
