"""Describe a folder's model: the task that it was trained for, and the time series of a forecaster."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from transduce.atomic_io import json_bytes
from transduce.data.series import LearnedPoints, SeriesScale
from transduce.errors import TransduceError
from transduce.model_folder.hugging_face import hugging_face_heads, is_hugging_face_folder
from transduce.model_folder.safety import file_inside, read_json, read_optional_json
from transduce.text.languages import FILE_NAME as PROFILES_FILE
from transduce.text.text_settings import FILE_NAME as LINES_FILE

# --- tasks ---


TASK_CARD = "task.json"
Pooling = Literal["mean", "first", "max"]
"""A way to make one vector of all token states of a text: their mean, their maximum, or the first token's state."""
POOLINGS = get_args(Pooling)
"""The ways to make one vector of all token states of a text, as options and settings name them."""


class TaskCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The task that a model was trained for, as stored in task.json."""

    kind: Literal["masked-language-model", "classification", "tagging", "parsing", "time-series", "embedding"]
    """The name of the task that the model was trained for, as in `--task`."""
    labels: tuple[str, ...] = ()
    """Names of the classes of texts, or of the tags of words, in the model's order; empty for other tasks."""
    length: int = 512
    """Maximum number of tokens that an encoder reads from a text, including special tokens."""
    pooling: Pooling | None = None
    """Way in which an embedding model makes one vector of a text's token states; None for other models."""
    normalizes: bool = False
    """True if an embedding model divides each vector by its Euclidean norm."""

    def text(self) -> str:
        """Return this card as indented JSON text, which is the content of task.json."""
        return json_bytes(self).decode()


def labels_among(documents: Mapping[str, str]) -> tuple[str, ...]:
    """Return a tuple of the names of classes or tags in the task card of a model folder.

    The tuple is empty if there is no card, or if its task has no such names.

    Args:
        documents: the contents of the folder's text files, by file name.
    """
    card = documents.get(TASK_CARD)
    return () if card is None else msgspec.json.decode(card, type=TaskCard).labels


def kept_documents(folder: Path) -> dict[str, str]:
    """Return the text files that would be lost if the folder's model were written again.

    The files are the task card, the profiles of languages, and the measurements of training lines, which decide how
    texts are split into sentences. If the folder has no task card, `find_task_card` makes one if it can.

    Returns:
        A dict from file names to contents.

    Raises:
        TransduceError: the task card cannot be read, or the Hugging Face model cannot be imported.
    """
    card = find_task_card(folder)
    texts = {} if card is None else {TASK_CARD: card.text()}
    for name in (LINES_FILE, PROFILES_FILE):
        if (folder / name).is_file():
            texts[name] = file_inside(folder, name).read_text("utf-8")
    return texts


def find_task_card(folder: Path) -> TaskCard | None:
    """Return the task card of a folder, which names the task that its model was trained for.

    For a Hugging Face encoder without a card, the card is made from the model's output heads. The result is None if the
    folder has no card and none can be made, as for a translator.

    Raises:
        TransduceError: the card cannot be read, or the Hugging Face model cannot be imported.
    """
    if (folder / TASK_CARD).is_file():
        return read_json(folder, TASK_CARD, TaskCard)
    heads = hugging_face_heads(folder) if is_hugging_face_folder(folder) else None
    if heads is None:
        return None
    if (card := _sentence_transformer_card(folder, heads.length)) is not None:
        return card
    if heads.masked_language:
        return TaskCard(kind="masked-language-model", length=heads.length)
    kind: Literal["tagging", "classification"] = "tagging" if heads.labels_tokens else "classification"
    return TaskCard(kind=kind, labels=heads.labels, length=heads.length) if heads.labels else None


_MODULES = "modules.json"  # of sentence-transformers
_MODULE_TYPES = re.compile(r"sentence_transformers\.(?:[\w.]+\.)?(Transformer|Pooling|Normalize)")
_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "first", "max": "max"}
_TRANSFORMER_FILES = tuple(
    f"sentence_{family}_config.json" for family in ("bert", "roberta", "distilbert", "camembert", "xlm-roberta")
)
"""The files with the settings of the module Transformer, of which sentence-transformers reads the first that exists."""
_TOKENIZER_OPTIONS = ("processor_kwargs", "tokenizer_args")  # the second in files before version 6
_HARMLESS_OPTIONS = ("model_max_length", "use_fast", "trust_remote_code")  # which change no text


def _sentence_transformer_card(folder: Path, length: int) -> TaskCard | None:
    """Return the task card of an embedding model of sentence-transformers; None if the folder holds no such model.

    Args:
        folder: the folder.
        length: the number of positions of the model.

    Raises:
        TransduceError: the model has a module, a pooling or a change of texts that is not supported.
    """
    if not (folder / _MODULES).is_file():
        return None
    modules = read_json(folder, _MODULES, list[dict[str, Any]])
    found = [(_MODULE_TYPES.fullmatch(str(each.get("type"))), each) for each in modules]
    unknown = next((each.get("type") for match, each in found if match is None), None)
    kinds = [match[1] for match, _ in found if match is not None]
    if unknown is not None or kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise TransduceError(
            f"{folder / _MODULES}: an embedding model must consist of Transformer, Pooling and perhaps Normalize, but "
            f"this one has {unknown or ', '.join(kinds)}: it cannot be imported."
        )
    part = file_inside(folder, str(modules[1].get("path", "")))
    modes = _pooling_modes(read_json(part, "config.json", dict[str, Any]))
    mode = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if mode is None:
        shown = ", ".join(modes or ["none"])
        raise TransduceError(
            f"{part / 'config.json'}: pooling must be one of {', '.join(_POOLINGS)}, but is {shown}: the model cannot "
            "be imported."
        )
    name = next((each for each in _TRANSFORMER_FILES if read_optional_json(folder, each)), _TRANSFORMER_FILES[0])
    settings = read_optional_json(folder, name)
    arguments = {key: settings[key] for key in _TOKENIZER_OPTIONS if isinstance(settings.get(key), dict)}
    limits = [options.get("model_max_length") for options in arguments.values()]
    limit = next(filter(None, limits), None) or settings.get("max_seq_length")
    prompt = "config_sentence_transformers.json", "default_prompt_name"
    for file, setting, value in (
        (name, "do_lower_case", settings.get("do_lower_case")),
        *(
            (name, key, {option: value for option, value in options.items() if option not in _HARMLESS_OPTIONS})
            for key, options in arguments.items()
        ),
        (name, "processing_kwargs", settings.get("processing_kwargs")),
        (*prompt, read_optional_json(folder, prompt[0]).get(prompt[1])),
    ):
        if value:
            raise TransduceError(
                f"{folder / file}: `{setting}` is {value!r}, which changes texts before they are read and is not "
                "supported: the model cannot be imported."
            )
    if limit is None:
        limit = read_optional_json(folder, "tokenizer_config.json").get("model_max_length")
    if isinstance(limit, int | float) and limit > 2:
        length = int(min(length, limit))
    return TaskCard(kind="embedding", length=length, pooling=mode, normalizes="Normalize" in kinds)


def _pooling_modes(config: Mapping[str, Any]) -> list[str]:
    """Return a list of the poolings, such as "mean", that a configuration of sentence-transformers names.

    Since version 6 `pooling_mode` is a name or a list of names; before, there was a flag for each pooling.
    """
    named = config.get("pooling_mode")
    if named is not None:
        return [str(name) for name in (named if isinstance(named, list) else [named])]
    flags = (re.fullmatch(r"pooling_mode_(.*?)(_tokens?)?", key) for key, value in config.items() if value is True)
    return [flag[1] for flag in flags if flag is not None]


def refuse_parsers(folders: Sequence[Path]) -> None:
    """Raise an error if one of the folders holds a parser, because a translator is expected.

    A parser is an encoder-decoder too, and would be loaded without a message.

    Raises:
        TransduceError: a folder holds a parser, or its task card cannot be read.
    """
    for folder in folders:
        card = find_task_card(folder)
        if card is not None and card.kind == "parsing":
            raise TransduceError(
                f"A translator is needed here, but {folder} holds a parser: `transduce parse` uses it."
            )


def read_task_card(folder: Path, kind: str, *, use: str) -> TaskCard:
    """Return the task card of a folder, after checking that its model was trained for the task `kind`.

    Args:
        folder: the model folder.
        kind: the task.
        use: what needs such a model, for the error message.

    Raises:
        TransduceError: the folder does not exist, its task card cannot be read, or its model is not for this task.
    """
    if not folder.is_dir():
        raise TransduceError(
            f"{use} needs a model folder, but {folder} is not one: name one that `transduce train` wrote."
        )
    card = find_task_card(folder)
    if card is None or card.kind != kind:
        purpose = _unused_head(folder) if card is None else None
        actual = "another task" if card is None else f"`{card.kind}`"
        actual = actual if purpose is None else f"none of our tasks, as its head {purpose}"
        raise TransduceError(
            f"{use} needs a model that was trained with `--task {kind}`, but the one in {folder} is for {actual}: name "
            "another folder."
        )
    return card


def _unused_head(folder: Path) -> str | None:
    """Describe the output head of an encoder that no task here can use, such as "predicts a number".

    The description completes an error message about a folder without a task card. The result is None if the model has
    no such head or is no encoder.
    """
    if is_hugging_face_folder(folder):
        heads = hugging_face_heads(folder)
        return None if heads is None else heads.unused
    ours = read_optional_json(folder, "config.json").get("transduce")
    has_classes = isinstance(ours, dict) and ours.get("kind") == "encoder" and ours.get("num_labels", 0)
    return "predicts a number or assigns several labels at once" if has_classes else None


# --- time series ---


SERIES_CARD = "series.json"


class SeriesCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The description of a forecasting model in series.json: its series, their scale, and how many points it reads."""

    columns: tuple[str, ...]
    """Names of the series, in the model's order."""
    past: int
    """Number of past points that the model reads of each series."""
    horizon: int
    """Number of points that the model was trained to forecast at once."""
    season: int
    """Season length in points, detected in the training data, which may exceed `past`, the points that the model reads;
    1: no season.
    """
    scale: SeriesScale
    """Mean and standard deviation by which each series is normalized."""
    learned: tuple[LearnedPoints, ...] = ()
    """The segments of each series that the model was trained on, by which a later evaluation recognizes their points;
    empty in older folders.
    """

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.scale.means) or not self.columns:
            raise TransduceError(
                f"A series card needs a scale for each series, but it has {len(self.columns)} names and "
                f"{len(self.scale.means)} scales."
            )
        if min(self.horizon, self.season, self.past) < 1:
            raise TransduceError(
                "A series card needs a positive horizon, season and past, but it has the horizon "
                f"{self.horizon}, the season {self.season} and the past {self.past}."
            )

    def text(self) -> str:
        """Return this card as indented JSON text, which is the content of series.json."""
        return json_bytes(self).decode()


def read_series_card(folder: Path) -> SeriesCard:
    """Read series.json from a model folder, and return the `SeriesCard`, the description of a forecaster's series.

    Raises:
        TransduceError: the card is missing, cannot be read, or is inconsistent.
    """
    return read_json(folder, SERIES_CARD, SeriesCard)
