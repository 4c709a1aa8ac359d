"""How numbers are brought to a common scale before a model sees them, and back.

Each series has the mean and deviation of its training part taken out. Where the level changes with time (a trend), the
numbers to come lie outside what training saw; so each window is measured from its own past as well, by that past's
mean and deviation (as in RevIN, Kim et al. 2022). A straight line then looks the same wherever on it the window lies.
Legend: B windows, S points of the past, T points, C series.
"""

from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError

Normalization = Literal["window", "series"]
Numbers = NDArray[np.float64]

# A window that hardly moves is not blown up: so much, in deviations of its series, is added to its variance' root.
_LEAST_DEVIATION = 0.01
_ROUNDING = 1e-10


class WindowScale(NamedTuple):
    """What was taken out of each window."""

    shift: Numbers
    """(B, 1, C)."""
    factor: Numbers
    """(B, 1, C), positive."""

    def apply(self, values: Numbers) -> Numbers:
        """(B, T, C) to the window's scale."""
        return (values - self.shift) / self.factor

    def undo(self, values: Numbers) -> Numbers:
        """(B, T, C) from the window's scale."""
        return values * self.factor + self.shift


class SeriesScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The scale of each series; stored with the model."""

    means: tuple[float, ...]
    """Of the training part, by series."""
    deviations: tuple[float, ...]
    """Standard deviations of the training part; 1 for a series that never changes."""
    normalization: Normalization
    """`window`: by the window's own past as well; `series`: by these means and deviations alone."""

    def __post_init__(self) -> None:
        numbers = np.array([*self.means, *self.deviations])
        if len(self.means) != len(self.deviations) or not np.isfinite(numbers).all() or min(self.deviations) <= 0.0:
            raise TransduceError(
                "A scale has a finite mean and a positive deviation for each series, but this one has the means "
                f"{list(self.means)} and the deviations {list(self.deviations)}."
            )

    def of(self, past: Numbers) -> WindowScale:
        """What is taken out of windows with this past, (B, S, C)."""
        means, deviations = np.array(self.means), np.array(self.deviations)
        if self.normalization == "series":
            shape = (len(past), 1, len(means))
            return WindowScale(np.broadcast_to(means, shape), np.broadcast_to(deviations, shape))
        spread = past.std(axis=1, keepdims=True)
        return WindowScale(past.mean(axis=1, keepdims=True), np.hypot(spread, _LEAST_DEVIATION * deviations))


def measure_scale(values: Numbers, normalization: Normalization) -> SeriesScale:
    """The scale of series, from (N, C) numbers of their training part."""
    deviations = values.std(axis=0)
    # Of a constant that is not exact in binary, rounding leaves a deviation of its last digits.
    changes = deviations > _ROUNDING * np.abs(values).max(axis=0)
    return SeriesScale(
        means=tuple(values.mean(axis=0).tolist()),
        deviations=tuple(np.where(changes, deviations, 1.0).tolist()),
        normalization=normalization,
    )
