"""Scaling of time series to a common range before a model reads them, and back.

Each series has the mean and deviation of its training part removed. If the level changes with time (a trend), future
values lie outside the range seen in training. So each window is also normalized by the mean and deviation of its own
past (as in RevIN, Kim et al. 2022). A straight line then looks the same wherever the window lies on it.
Legend: B windows, S points of the past, T points, C series.
"""

from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError

Normalization = Literal["window", "series"]
Numbers = NDArray[np.float64]

# Lower limit of a window's deviation, relative to its series, so that nearly constant windows are not amplified.
_LEAST_DEVIATION = 0.01
_ROUNDING = 1e-10


class WindowScale(NamedTuple):
    """The shift and factor that were removed from each window."""

    shift: Numbers
    """The offset of each window, (B, 1, C)."""
    factor: Numbers
    """The scale of each window, (B, 1, C), positive."""

    def apply(self, values: Numbers) -> Numbers:
        """Convert values (B, T, C) to the window's scale."""
        return (values - self.shift) / self.factor

    def undo(self, values: Numbers) -> Numbers:
        """Convert values (B, T, C) back from the window's scale."""
        return values * self.factor + self.shift


class SeriesScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The scale of each series, which is stored with the model."""

    means: tuple[float, ...]
    """The means of the training part, by series."""
    deviations: tuple[float, ...]
    """The standard deviations of the training part; 1 for a constant series."""
    normalization: Normalization
    """`window`: also normalize by each window's own past; `series`: use only these means and deviations."""

    def __post_init__(self) -> None:
        numbers = np.array([*self.means, *self.deviations])
        if len(self.means) != len(self.deviations) or not np.isfinite(numbers).all() or min(self.deviations) <= 0.0:
            raise TransduceError(
                "A scale has a finite mean and a positive deviation for each series, but this one has the means "
                f"{list(self.means)} and the deviations {list(self.deviations)}."
            )

    def of(self, past: Numbers) -> WindowScale:
        """Return the scale of windows with this past, (B, S, C)."""
        means, deviations = np.array(self.means), np.array(self.deviations)
        if self.normalization == "series":
            shape = (len(past), 1, len(means))
            return WindowScale(np.broadcast_to(means, shape), np.broadcast_to(deviations, shape))
        spread = past.std(axis=1, keepdims=True)
        return WindowScale(past.mean(axis=1, keepdims=True), np.hypot(spread, _LEAST_DEVIATION * deviations))


def measure_scale(values: Numbers, normalization: Normalization) -> SeriesScale:
    """Return the scale of series from their training part, (N, C)."""
    deviations = values.std(axis=0)
    # Rounding gives a constant series a tiny deviation if its value is not exact in binary.
    changes = deviations > _ROUNDING * np.abs(values).max(axis=0)
    return SeriesScale(
        means=tuple(values.mean(axis=0).tolist()),
        deviations=tuple(np.where(changes, deviations, 1.0).tolist()),
        normalization=normalization,
    )
