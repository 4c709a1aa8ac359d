"""Where a run's weights come from: random numbers, or the folder of a model that was trained before (`--from`).

The folder's tokenizer and its model's settings are kept, so a copy of the settings stays with the run, which can be
resumed when the folder has gone.
"""

from pathlib import Path

import msgspec

from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.model.build import Model, build_model
from transduce.model.config import ModelConfig
from transduce.runtime.folder import ModelFolder, read_any_model_folder
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.settings import Settings

_CONFIG_COPY = "started_from.json"


def read_beginning(settings: Settings) -> ModelFolder[Model] | None:
    """The model that training begins with, or None where it begins afresh.

    Raises:
        TransduceError: there is none in the folder, or the settings ask for another vocabulary than it has.
    """
    if settings.start_from is None:
        return None
    content = read_any_model_folder(Path(settings.start_from))
    said, size = settings.tokenizer.vocabulary_size, content.tokenizer.target.size
    if said is not None and said != size:
        raise TransduceError(
            f"`tokenizer.vocabulary_size` is {said:,}, but the model in {settings.start_from} has {size:,} pieces, and "
            "its tokenizer is kept: leave it out."
        )
    return content


def remember_beginning(folder: Path, config: ModelConfig) -> None:
    """Puts the settings of the model that training begins with into the run's folder."""
    write_file(folder / _CONFIG_COPY, msgspec.json.format(msgspec.json.encode(config)) + b"\n")


def recall_beginning(folder: Path) -> ModelConfig:
    """What `remember_beginning` wrote.

    Raises:
        TransduceError: it is missing or damaged.
    """
    path = folder / _CONFIG_COPY
    try:
        return msgspec.json.decode(path.read_bytes(), type=ModelConfig)
    except (OSError, msgspec.MsgspecError) as error:
        raise TransduceError(f"{path} cannot be read ({error}): start another run with another --out.") from error


def build_beginning(resolved: ResolvedSettings, *, trained: bool, fresh: tuple[str, ...] = ()) -> Model:
    """The model as it is before the first step.

    Args:
        resolved: the run's settings.
        trained: whether a checkpoint will replace its weights, so that they need not be read.
        fresh: what the names of parameters begin with that the folder's model may lack; it may then have others too.

    Raises:
        TransduceError: the folder to begin with cannot be read, or its model has changed since.
    """
    model = build_model(resolved.model)
    if resolved.start_from is None or trained:
        return model
    found = read_any_model_folder(Path(resolved.start_from)).model.state_dict()
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if fresh:
        found = {name: tensor for name, tensor in found.items() if wanted.get(name) == tensor.shape}
        wanted = {name: shape for name, shape in wanted.items() if name in found or not name.startswith(fresh)}
    if {name: tensor.shape for name, tensor in found.items()} != wanted:
        raise TransduceError(
            f"The model in {resolved.start_from} is not the one that this run was begun with: start another run with "
            "another --out."
        )
    model.load_state_dict(found, strict=not fresh)
    return model
