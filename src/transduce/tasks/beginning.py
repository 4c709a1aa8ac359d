"""Create the initial weights of a run: random, or those of a base model (`--from`).

The base model's tokenizer and model settings are kept. The run stores a copy of the settings, so that it can resume
when the base model's folder is gone. If checkpoints do not hold all weights, `stored_beginning.py` stores them, too.
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
    """Read the base model that training starts from; None if training starts from random weights.

    Raises:
        TransduceError: the folder holds no model, or the settings ask for another vocabulary or size.
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
            f"`tokenizer.text` is for a vocabulary that is learned, but that of {settings.start_from} is kept: leave "
            "it out."
        )
    check_vocabulary(settings.tokenizer, content.tokenizer, settings.start_from)
    vocabulary_size, size = settings.tokenizer.vocabulary_size, content.tokenizer.target.size
    if vocabulary_size is not None and vocabulary_size != size:
        raise TransduceError(
            f"`tokenizer.vocabulary_size` is {vocabulary_size:,}, but the model in {settings.start_from} has {size:,} "
            "tokens, and its tokenizer is kept: leave it out."
        )
    return content


def remember_beginning(folder: Path, config: ModelConfig) -> None:
    """Store the base model's settings in the run's folder."""
    write_file(folder / _CONFIG_COPY, msgspec.json.format(msgspec.json.encode(config)) + b"\n")


def recall_beginning(folder: Path) -> ModelConfig:
    """Return the base model's settings that `remember_beginning` stored in the run's folder.

    Raises:
        TransduceError: the file is missing or damaged.
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
    """Log what LoRA and word vectors do to the initial weights, and store these weights if the run needs them.

    Args:
        folder: the run's folder; None: only update the choice log.
        resolved: the run's settings.
        tokenizer: the tokenizer; None for a task without text.
        account: the choice log.
        fresh: the weights that are not taken from the base model.

    Raises:
        TransduceError: a file of word vectors is invalid, or the model has no layers to adapt.
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
    """Return the model with its initial weights.

    Args:
        resolved: the run's settings.
        folder: the run's folder, which holds the weights if `prepare_beginning` stored them.
        trained: True if a checkpoint will replace all weights, so that the initial ones need not be read.
        fresh: the weights that are not taken from the base model.

    Raises:
        TransduceError: the base model cannot be read or has changed since.
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
    base_weights = read_any_model_folder(folder).model.state_dict()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if fresh.anew is not None:
        reinitialized = fresh.anew(folder)
        base_weights = {name: tensor for name, tensor in base_weights.items() if not name.startswith(reinitialized)}
    if fresh.lacking:
        base_weights = {name: tensor for name, tensor in base_weights.items() if shapes.get(name) == tensor.shape}
        shapes = {
            name: shape for name, shape in shapes.items() if name in base_weights or not name.startswith(fresh.lacking)
        }
    if {name: tensor.shape for name, tensor in base_weights.items()} != shapes:
        raise TransduceError(
            f"The model in {resolved.start_from} is not the one that this run was started from: start another run with "
            "another --out."
        )
    model.load_state_dict(base_weights, strict=not fresh.lacking)
    return model
