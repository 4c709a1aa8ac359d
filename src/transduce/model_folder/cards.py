"""Describe what a folder's model was trained for: its task, and the time series of a forecaster."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from transduce.data.series import SeriesScale
from transduce.errors import TransduceError
from transduce.model_folder.hugging_face import hugging_face_heads, is_hugging_face_folder
from transduce.model_folder.safety import read_json

# --- tasks ---


TASK_CARD = "task.json"


class TaskCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The task that a model was trained for, as stored in task.json."""

    kind: Literal["masked-language-model", "classification", "tagging", "parsing", "time-series"]
    """The task."""
    labels: tuple[str, ...] = ()
    """Names of the classes, or of the tags of words, in the model's order."""
    length: int = 512
    """Maximum number of tokens that an encoder reads from a text, including special tokens."""

    def text(self) -> str:
        """Return the card as JSON text."""
        return msgspec.json.format(msgspec.json.encode(self)).decode() + "\n"


def labels_among(documents: Mapping[str, str]) -> tuple[str, ...]:
    """Return the class names of the task card among a folder's documents; empty without one."""
    card = documents.get(TASK_CARD)
    return () if card is None else msgspec.json.decode(card, type=TaskCard).labels


def find_task_card(folder: Path) -> TaskCard | None:
    """Return the task card of a folder, or None; for a Hugging Face folder, the card follows from the model's heads.

    Raises:
        TransduceError: the card cannot be read.
    """
    if (folder / TASK_CARD).is_file():
        return read_json(folder, TASK_CARD, TaskCard)
    heads = hugging_face_heads(folder) if is_hugging_face_folder(folder) else None
    if heads is None:
        return None
    if heads.masked_language:
        return TaskCard(kind="masked-language-model", length=heads.length)
    kind: Literal["tagging", "classification"] = "tagging" if heads.labels_tokens else "classification"
    return TaskCard(kind=kind, labels=heads.labels, length=heads.length) if heads.labels else None


def refuse_parsers(folders: Sequence[Path]) -> None:
    """Refuse the folder of a parser where a translator is expected.

    Raises:
        TransduceError: a folder holds a parser.
    """
    for folder in folders:
        card = find_task_card(folder)
        if card is not None and card.kind == "parsing":
            raise TransduceError(
                f"A translator is needed here, but {folder} holds a parser: `transduce parse` uses it."
            )


def read_task_card(folder: Path, kind: str, *, use: str) -> TaskCard:
    """Return the task card of a folder whose model was trained for the given task.

    Args:
        folder: the model folder.
        kind: the task.
        use: what needs such a model, for the error message.

    Raises:
        TransduceError: the folder holds no model, or one for another task.
    """
    if not folder.is_dir():
        raise TransduceError(
            f"{use} needs a model folder, but {folder} is not one: name one that `transduce train` wrote."
        )
    card = find_task_card(folder)
    if card is None or card.kind != kind:
        actual = "another task" if card is None else f"`{card.kind}`"
        raise TransduceError(
            f"{use} needs a model that was trained with `--task {kind}`, but the one in {folder} is for {actual}: name "
            "another folder."
        )
    return card


# --- time series ---


SERIES_CARD = "series.json"


class SeriesCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The metadata of a forecasting model: the scale of its series, and the lengths of history and forecast."""

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
