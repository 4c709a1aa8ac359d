"""Where a run's weights come from: random numbers, or the folder of a model that was trained before (`--from`).

The folder's tokenizer and its model's settings are kept, so a copy of the settings stays with the run, which can be
resumed when the folder has gone. Where checkpoints do not hold all weights, `stored_beginning.py` keeps them too.
"""

from pathlib import Path

import msgspec
import torch

from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.model.build import AnyModel, Model, build_any_model, build_model
from transduce.model.config import ModelConfig
from transduce.runtime.folder import ModelFolder, read_any_model_folder
from transduce.tasks.account import Account
from transduce.tasks.kind import Fresh
from transduce.tasks.prepared_folder import check_vocabulary
from transduce.tasks.resolved import ResolvedSettings
from transduce.tasks.settings import Settings
from transduce.tasks.stored_beginning import (
    account_for_adaptation,
    fill_with_vectors,
    load_beginning,
    needs_stored,
    store_beginning,
)
from transduce.text.tokenizer import Tokenizer
from transduce.training.choices import PRESETS

_CONFIG_COPY = "started_from.json"
ALL_TAKEN = Fresh()


def read_beginning(settings: Settings) -> ModelFolder[Model] | None:
    """The model that training begins with, or None where it begins afresh.

    Raises:
        TransduceError: there is none in the folder, or the settings ask for another vocabulary than it has.
    """
    if settings.start_from is None:
        return None
    content = read_any_model_folder(Path(settings.start_from))
    width = content.model.config.d_model
    if settings.preset is not None and PRESETS[settings.preset].d_model != width:
        raise TransduceError(
            f"`preset` is {settings.preset}, which is {PRESETS[settings.preset].d_model} wide, but the model in "
            f"{settings.start_from} has a width of {width}, and its weights are kept: leave it out."
        )
    if settings.tokenizer.text:
        raise TransduceError(
            f"`tokenizer.text` is for a vocabulary that is learnt, but that of {settings.start_from} is kept: leave it "
            "out."
        )
    check_vocabulary(settings.tokenizer, content.tokenizer, settings.start_from)
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


def prepare_beginning(
    folder: Path | None,
    resolved: ResolvedSettings,
    tokenizer: Tokenizer | None,
    account: Account,
    fresh: Fresh = ALL_TAKEN,
) -> None:
    """Enters in the account what LoRA and word vectors do to the first weights, and stores these where they are needed.

    Args:
        folder: of the run; None: only the account is wanted.
        resolved: its settings.
        tokenizer: its vocabularies; None for numbers.
        account: of the choices.
        fresh: which weights are not those of the folder to begin with.

    Raises:
        TransduceError: a file of vectors is not what it should be, or the model has nothing to adapt.
    """
    if resolved.word_vectors is not None and tokenizer is None:
        raise TransduceError(
            f"`word_vectors` are for text, but `task.kind` = {resolved.task.kind} learns from numbers: leave them out."
        )
    account_for_adaptation(resolved, account, fresh.lacking)
    if not needs_stored(resolved) or (folder is None and resolved.word_vectors is None):
        return
    torch.manual_seed(resolved.training.seed)
    model, vectors = _build(resolved, fresh), {}
    if resolved.word_vectors is not None and tokenizer is not None:
        vectors = fill_with_vectors(model, resolved, tokenizer, account)
    if folder is not None:
        store_beginning(folder, model, vectors)


def build_beginning(resolved: ResolvedSettings, folder: Path, *, trained: bool, fresh: Fresh = ALL_TAKEN) -> AnyModel:
    """The model as it is before the first step.

    Args:
        resolved: the run's settings.
        folder: of the run, which holds the weights where `prepare_beginning` stored them.
        trained: whether a checkpoint will replace all weights, so that they need not be read.
        fresh: which weights are not those of the folder to begin with.

    Raises:
        TransduceError: the folder to begin with cannot be read, or its model has changed since.
    """
    if needs_stored(resolved):
        model = build_model(resolved.model)
        model.load_state_dict(load_beginning(folder)[0])
        return model
    if trained or resolved.start_from is None:
        return build_any_model(resolved.model)
    return _build(resolved, fresh)


def _build(resolved: ResolvedSettings, fresh: Fresh) -> Model:
    model = build_model(resolved.model)
    if resolved.start_from is None:
        return model
    folder = Path(resolved.start_from)
    found = read_any_model_folder(folder).model.state_dict()
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if fresh.anew is not None:
        anew = fresh.anew(folder)
        found = {name: tensor for name, tensor in found.items() if not name.startswith(anew)}
    if fresh.lacking:
        found = {name: tensor for name, tensor in found.items() if wanted.get(name) == tensor.shape}
        wanted = {name: shape for name, shape in wanted.items() if name in found or not name.startswith(fresh.lacking)}
    if {name: tensor.shape for name, tensor in found.items()} != wanted:
        raise TransduceError(
            f"The model in {resolved.start_from} is not the one that this run was begun with: start another run with "
            "another --out."
        )
    model.load_state_dict(found, strict=not fresh.lacking)
    return model
