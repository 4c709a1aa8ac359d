"""What a folder says of the time series that its model was trained on."""

from pathlib import Path

import msgspec

from transduce.data.series_scale import SeriesScale
from transduce.errors import TransduceError
from transduce.runtime.untrusted import read_json

SERIES_CARD = "series.json"


class SeriesCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The series, their scale, and what a forecast reads and tells."""

    columns: tuple[str, ...]
    """Names of the series, in the order of the model's."""
    past: int
    """Points that are read."""
    horizon: int
    """Points that training foretold at a time."""
    season: int
    """Points of a season, as the training part has it; 1: none."""
    scale: SeriesScale

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.scale.means) or not self.columns:
            raise TransduceError(
                f"A card of series names each one that it has a scale for, but it has {len(self.columns)} names and "
                f"{len(self.scale.means)} scales."
            )
        if self.horizon < 1 or not 1 <= self.season <= self.past:
            raise TransduceError(
                "A card of series has a positive horizon, and a season within the past, but it has the horizon "
                f"{self.horizon}, the season {self.season} and the past {self.past}."
            )

    def text(self) -> str:
        """The card as the folder has it."""
        return msgspec.json.format(msgspec.json.encode(self)).decode() + "\n"


def read_series_card(folder: Path) -> SeriesCard:
    """The card of a folder.

    Raises:
        TransduceError: it is missing, cannot be read, or contradicts itself.
    """
    return read_json(folder, SERIES_CARD, SeriesCard)
