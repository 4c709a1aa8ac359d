"""Save a model that your own training loop trained or changed, as a folder that `load` and every command can read."""

from pathlib import Path

import torch

from transduce.errors import TransduceError
from transduce.given import as_path
from transduce.model.decoder import Decoder
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.runtime.folder import MANIFEST, check_tokenizer
from transduce.runtime.folder_writing import write_model_folder
from transduce.runtime.precision import precision_of
from transduce.text.languages import valid_language
from transduce.text.tokenizer import Tokenizer

# The settings file of runs and imported models; `save` writes none.
_SETTINGS = "settings.toml"


def save(
    model: Transformer | Recurrent | Decoder,
    folder: str | Path,
    *,
    tokenizer: Tokenizer,
    languages: tuple[str | None, str | None] = (None, None),
) -> None:
    """Write a model folder: weights in float32, configuration, tokenizer and manifest.

    If Hugging Face has a class for the model, that class can read the folder, too. An earlier save in the folder is
    replaced file by file and stays readable throughout, so a training loop can save repeatedly.

    Args:
        model: a model on any device, in fp32 or bf16; it is not changed.
        folder: a new or empty folder, or one that `save` wrote.
        tokenizer: the tokenizer whose ids the model was trained with.
        languages: language codes of source and target, for scores and the service; None if there is none.

    Raises:
        TransduceError: tokenizer and model do not match, the model is of another kind or in int8, or the folder holds
            something else.
    """
    folder = as_path(folder, "The folder to save in")
    _check_kind(model)
    if not isinstance(tokenizer, Tokenizer):
        raise TransduceError(f"`tokenizer` must be a Tokenizer, but is {tokenizer!r}.")
    check_tokenizer(tokenizer, model.config, "`save`")
    _check_languages(languages)
    _check_folder(folder)
    write_model_folder(
        folder,
        weights={name: tensor.to("cpu", torch.float32) for name, tensor in model.state_dict().items()},
        config=model.config,
        tokenizer=tokenizer,
        languages=languages,
        documents={},
    )


def _check_kind(model: object) -> None:
    if not isinstance(model, Transformer | Recurrent | Decoder):
        raise TransduceError(
            f"`save` takes a Transformer, a recurrent model or a decoder of transduce, not {type(model).__name__}: "
            "for what `load` returned, pass its `model`."
        )
    if precision_of(model) == "int8":
        raise TransduceError(
            "The model's weights are quantized to 8 bits, but a folder holds them in float32: load the model with "
            '`precision="fp32"`, and save that.'
        )


def _check_languages(languages: tuple[str | None, str | None]) -> None:
    if not isinstance(languages, tuple | list) or len(languages) != 2:
        raise TransduceError(f"`languages` must be two codes, such as zh and en, but is {languages!r}.")
    for code in languages:
        if code is not None and not (isinstance(code, str) and valid_language(code)):
            raise TransduceError(f"`languages` must be language codes such as zh or en, but one is {code!r}.")


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TransduceError(f"{folder} is a file: name another folder to save in.")
    if (folder / _SETTINGS).exists():
        raise TransduceError(
            f"{folder} holds a run or an imported model, which `save` does not replace: name another folder."
        )
    if any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise TransduceError(f"{folder} holds other files: name a new or an empty folder to save in.")
