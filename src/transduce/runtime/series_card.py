"""Describe the time series that a folder's model was trained on."""

from pathlib import Path

import msgspec

from transduce.data.series_scale import SeriesScale
from transduce.errors import TransduceError
from transduce.runtime.untrusted import read_json

SERIES_CARD = "series.json"


class SeriesCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A description of the series: their scale, and the lengths of history and forecast."""

    columns: tuple[str, ...]
    """Names of the series, in the model's order."""
    past: int
    """Number of past points that the model reads."""
    horizon: int
    """Number of points that the model was trained to forecast at once."""
    season: int
    """Season length in points, detected in the training data; 1: no season."""
    scale: SeriesScale
    """Mean and standard deviation of each series."""

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.scale.means) or not self.columns:
            raise TransduceError(
                f"A series card needs a scale for each series, but it has {len(self.columns)} names and "
                f"{len(self.scale.means)} scales."
            )
        if self.horizon < 1 or not 1 <= self.season <= self.past:
            raise TransduceError(
                "A series card needs a positive horizon and a season no longer than the past, but it has the horizon "
                f"{self.horizon}, the season {self.season} and the past {self.past}."
            )

    def text(self) -> str:
        """Return the card as JSON text."""
        return msgspec.json.format(msgspec.json.encode(self)).decode() + "\n"


def read_series_card(folder: Path) -> SeriesCard:
    """Read the series card of a model folder.

    Raises:
        TransduceError: the card is missing, cannot be read, or is inconsistent.
    """
    return read_json(folder, SERIES_CARD, SeriesCard)
