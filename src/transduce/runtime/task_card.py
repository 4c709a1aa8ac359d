"""What a model folder says of its task, where the model alone does not tell what it is for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from transduce.errors import TransduceError
from transduce.runtime.foreign import foreign_heads, is_foreign
from transduce.runtime.untrusted import read_json

TASK_CARD = "task.json"


class TaskCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The task that a model was trained for."""

    kind: Literal["masked-language-model", "classification", "parsing", "time-series"]
    labels: tuple[str, ...] = ()
    """The classes, in the order of the model's."""
    length: int = 512
    """Pieces of a text that an encoder reads at most, marks included."""

    def text(self) -> str:
        """The card as the folder has it."""
        return msgspec.json.format(msgspec.json.encode(self)).decode() + "\n"


def labels_among(documents: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the classes, where a folder's documents, by name, say what its model is for."""
    card = documents.get(TASK_CARD)
    return () if card is None else msgspec.json.decode(card, type=TaskCard).labels


def find_task_card(folder: Path) -> TaskCard | None:
    """The card of a folder, or None where it has none. Of a Hugging Face folder it follows from the model's heads.

    Raises:
        TransduceError: it cannot be read.
    """
    if (folder / TASK_CARD).is_file():
        return read_json(folder, TASK_CARD, TaskCard)
    heads = foreign_heads(folder) if is_foreign(folder) else None
    if heads is None:
        return None
    if heads.masked_language:
        return TaskCard(kind="masked-language-model", length=heads.length)
    return TaskCard(kind="classification", labels=heads.labels, length=heads.length) if heads.labels else None


def refuse_parsers(folders: Sequence[Path]) -> None:
    """A parser's model is a translator's, but what it writes means nothing by itself.

    Raises:
        TransduceError: a folder holds one.
    """
    for folder in folders:
        card = find_task_card(folder)
        if card is not None and card.kind == "parsing":
            raise TransduceError(
                f"A translator is needed here, but {folder} holds a parser: `transduce parse` uses it."
            )


def read_task_card(folder: Path, kind: str, *, use: str) -> TaskCard:
    """The card of a folder that was trained for a kind of task.

    Args:
        folder: of the model.
        kind: of task.
        use: what needs such a model.

    Raises:
        TransduceError: the folder's model is for something else.
    """
    if not folder.is_dir():
        raise TransduceError(
            f"{use} needs a model folder, but {folder} is none: name one that `transduce train` wrote."
        )
    card = find_task_card(folder)
    if card is None or card.kind != kind:
        found = "another task" if card is None else f"`{card.kind}`"
        raise TransduceError(
            f"{use} needs a model that was trained with `--task {kind}`, but the one in {folder} is for {found}: name "
            "another folder."
        )
    return card
