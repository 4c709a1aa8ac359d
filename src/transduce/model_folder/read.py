"""Read a model folder: configuration, weights, tokenizer, and the manifest that `write.py` wrote."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transduce.atomic_io import file_sha256
from transduce.errors import TransduceError
from transduce.interop.hugging_face.export import StoredParameter, places, redundant_names
from transduce.interop.hugging_face.import_settings import check_sizes
from transduce.interop.hugging_face.imported_tokenizer import IMPORTED_TOKENIZER_FILE, load_tokenizer
from transduce.model.build import AnyModel, EncoderDecoder, Model, build_model, compute_unstored_buffers
from transduce.model.config import Kind, ModelConfig, convert_config
from transduce.model.decoder import Decoder
from transduce.model.recurrent import Recurrent
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Transformer
from transduce.model_folder.hugging_face import (
    check_hugging_face_folder,
    hugging_face_kind,
    is_hugging_face_folder,
    read_hugging_face_folder,
    refuse_adapter,
)
from transduce.model_folder.safety import (
    MAX_VOCABULARY_BYTES,
    file_inside,
    read_bounded,
    read_json,
    read_tensor_entries,
)
from transduce.text.tokenizer import Tokenizer

M = TypeVar("M", bound=Model)
Built = TypeVar("Built", bound=AnyModel)

FORMAT_VERSION = 1
CONFIG = "config.json"
TOKENIZER_CARD = "tokenizer_settings.json"
VOCABULARIES = ("sentencepiece.model", "source.spm", "target.spm", IMPORTED_TOKENIZER_FILE)
WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
DIRECTIONS = "directions.json"

_MAX_SHOWN = 20


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a model folder: the versions that wrote it and the SHA-256 digest of each file."""

    format_version: int
    versions: dict[str, str]
    """Versions of the packages that wrote the folder."""
    source_language: str | None
    """Code of the source language, if known."""
    target_language: str | None
    """Code of the target language, if known."""
    sha256: dict[str, list[str]]
    """The digests of each file; while the weights are being replaced, both the old and the new digest are listed."""


class ModelFolder(msgspec.Struct, Generic[M], frozen=True):
    """The contents of a model folder."""

    model: M
    tokenizer: Tokenizer
    manifest: Manifest
    directions: tuple[tuple[str, str], ...] = ()
    """The pairs of source and target language that a model of several language pairs was trained for."""


class _Directions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of directions.json."""

    directions: list[tuple[str, str]]


def directions_text(directions: Iterable[tuple[str, str]]) -> str:
    """Return the text of directions.json, which lists the language pairs of a model."""
    return msgspec.json.format(msgspec.json.encode(_Directions(list(directions)))).decode() + "\n"


def read_directions(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the language pairs of a model folder for several; an empty tuple for one pair.

    Raises:
        TransduceError: the file is damaged.
    """
    return tuple(read_json(folder, DIRECTIONS, _Directions).directions) if (folder / DIRECTIONS).is_file() else ()


# The command that uses each kind of model, for error messages.
_USES = {
    "transformer": "`transduce translate` uses it",
    "recurrent": "`transduce translate` uses it",
    "decoder": "`transduce generate` uses it",
    "encoder": "`transduce fill-mask`, `transduce classify` or `transduce tag` uses it, as it was trained for",
    "series": "`transduce forecast` uses it",
}


def read_model_folder(folder: Path) -> ModelFolder[Transformer]:
    """Read the folder of an encoder-decoder Transformer.

    Raises:
        TransduceError: the model is of another kind, or the folder cannot be read (`read_any_model_folder`).
    """
    content = read_any_model_folder(folder)
    if not isinstance(content.model, Transformer):
        raise _other_kind(folder, content.model.config, "a Transformer with an encoder and a decoder")
    return ModelFolder(content.model, content.tokenizer, content.manifest)


def read_encoder_decoder_folder(folder: Path) -> ModelFolder[EncoderDecoder]:
    """Read the folder of an encoder-decoder model, a Transformer or a recurrent one.

    Raises:
        TransduceError: the model is of another kind, or the folder cannot be read (`read_any_model_folder`).
    """
    content = read_any_model_folder(folder)
    if not isinstance(content.model, Transformer | Recurrent):
        raise _other_kind(folder, content.model.config, "a model with an encoder and a decoder")
    return ModelFolder(content.model, content.tokenizer, content.manifest, read_directions(folder))


def read_decoder_folder(folder: Path) -> ModelFolder[Decoder]:
    """Read the folder of a decoder-only language model.

    Raises:
        TransduceError: the model is of another kind, or the folder cannot be read (`read_any_model_folder`).
    """
    content = read_any_model_folder(folder)
    if not isinstance(content.model, Decoder):
        raise _other_kind(folder, content.model.config, "a language model (decoder-only)")
    return ModelFolder(content.model, content.tokenizer, content.manifest)


def _other_kind(folder: Path, config: ModelConfig, needed: str) -> TransduceError:
    return TransduceError(
        f"{needed[0].upper()}{needed[1:]} is needed here, but the model in {folder} is of the kind `{config.kind}`: "
        f"{_USES[config.kind]}."
    )


def model_kind(folder: Path) -> Kind:
    """Return the kind of the model in a folder, without reading its weights.

    Raises:
        TransduceError: the configuration is missing or cannot be read.
    """
    return hugging_face_kind(folder) if is_hugging_face_folder(_checked_folder(folder)) else _read_config(folder).kind


def _checked_folder(folder: Path) -> Path:
    if not folder.exists():
        raise TransduceError(f"{folder} does not exist: name the folder of a model.")
    refuse_adapter(folder)
    if not (folder / CONFIG).is_file():
        raise TransduceError(
            f"A model folder holds a config.json, but {folder} does not: name a folder that `transduce train` wrote "
            "(a run has one from its first validation on)."
        )
    return folder


def read_any_model_folder(folder: Path) -> ModelFolder[Model]:
    """Read a model folder in float32. Everything is checked before it is used, and no code from the folder is run.

    Raises:
        TransduceError: the folder is missing, incomplete or damaged, or its kind or version is not supported.
    """
    if is_hugging_face_folder(_checked_folder(folder)):
        return _read_imported(folder)
    config = _read_config(folder)
    if config.kind == "series":
        raise _other_kind(folder, config, "a model of text")
    model, manifest = _read_own(folder, config, build_model)
    return ModelFolder(model, _read_tokenizer(folder, config), manifest)


def was_saved_by_transformers(folder: Path) -> bool:
    """Return whether transformers loaded a transduce model and saved it again, in place or to another folder."""
    if not (folder / CONFIG).is_file():
        return False
    content = read_json(folder, CONFIG, dict[str, Any], " as a model's configuration")
    return "transduce" in content and "transformers_version" in content


def read_saved_by_transformers(folder: Path) -> ModelFolder[Model]:
    """Read a model folder that transformers saved again, with the tokenizer files that transduce wrote.

    If the folder still has a manifest, only its languages are used, because the files have changed since.

    Raises:
        TransduceError: the tokenizer files are missing, or the folder is damaged.
    """
    if not (folder / TOKENIZER_CARD).exists():
        raise TransduceError(
            f"{folder} was saved by Hugging Face's library from a model of transduce, without our tokenizer: copy "
            f"{TOKENIZER_CARD} and {' or '.join(VOCABULARIES[:2])} (and target.spm) there from the folder that was "
            "opened."
        )
    config = _read_config(folder)
    model: Model = _read_model(folder, config, build_model)
    old_manifest = _read_manifest(folder) if (folder / MANIFEST).exists() else None
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        versions={},
        source_language=old_manifest.source_language if old_manifest else None,
        target_language=old_manifest.target_language if old_manifest else None,
        sha256={},
    )
    return ModelFolder(model, _read_tokenizer(folder, config), manifest)


def read_series_model(folder: Path) -> SeriesTransformer:
    """Read the model of a folder for time-series forecasting.

    Raises:
        TransduceError: the model is of another kind, or the folder cannot be read (`read_any_model_folder`).
    """
    config = _read_config(_checked_folder(folder))
    if config.kind != "series":
        raise _other_kind(folder, config, "a model of time series")
    return _read_own(folder, config, SeriesTransformer)[0]


def _read_own(folder: Path, config: ModelConfig, build: Callable[[ModelConfig], Built]) -> tuple[Built, Manifest]:
    """Read the model and manifest of a folder that this package wrote."""
    if was_saved_by_transformers(folder):
        raise TransduceError(
            f"{folder} was saved by Hugging Face's library, which keeps no manifest: bring it in by "
            f"`transduce import {folder} OUT`."
        )
    manifest = _read_checked_manifest(folder)
    return _read_model(folder, config, build), manifest


def _read_model(folder: Path, config: ModelConfig, build: Callable[[ModelConfig], Built]) -> Built:
    model = _empty_model(folder, config, build)
    whole_numbers = [name for name, tensor in model.state_dict().items() if not tensor.is_floating_point()]
    read_tensor_entries(folder, WEIGHTS, whole_numbers=whole_numbers)
    model.load_state_dict(_read_weights(folder / WEIGHTS, model, config), assign=True)
    compute_unstored_buffers(model, build)
    model.eval()
    return model


def _read_imported(folder: Path) -> ModelFolder[Model]:
    """Read a Hugging Face folder that transduce did not write."""
    imported = read_hugging_face_folder(folder)
    model = _empty_model(folder, imported.model.config, build_model)
    model.load_state_dict(imported.model.weights, assign=True)
    compute_unstored_buffers(model, build_model)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        versions={},
        source_language=imported.languages[0],
        target_language=imported.languages[1],
        sha256={},
    )
    return ModelFolder(model.eval(), imported.tokenizer, manifest)


def _read_config(folder: Path) -> ModelConfig:
    path = folder / CONFIG
    content = read_json(folder, CONFIG, dict[str, Any], " as a model's configuration")
    if "auto_map" in content:
        raise TransduceError(f"{path} asks for code of its own to be run (`auto_map`), which is never done: remove it.")
    if "transduce" not in content:
        if "model_type" in content:
            check_hugging_face_folder(folder)  # raises an error with the alternatives
        raise TransduceError(f"{path} is not of a model that transduce wrote: it has no key `transduce`.")
    try:
        described = msgspec.convert(content["transduce"], dict[str, Any])
        config = convert_config(described)
    except msgspec.ValidationError as error:
        own = str(error).startswith("Invalid enum value")
        remedy = "; a component of your own needs the file that registers it (--plugin FILE.py)" if own else ""
        raise TransduceError(
            f"{path} cannot be read as a model's configuration: {str(error).rstrip('.')}{remedy}."
        ) from error
    check_sizes(path, config)
    return config


def _empty_model(folder: Path, config: ModelConfig, build: Callable[[ModelConfig], Built]) -> Built:
    """Build the model on the meta device, without memory for its weights."""
    try:
        with torch.device("meta"):
            return build(config)
    except (RuntimeError, OverflowError) as error:
        raise TransduceError(f"{folder / CONFIG} describes no model that can be built: {error}.") from error


def _read_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """Read the tokenizer and check that its ids match the model's."""
    for name in (TOKENIZER_CARD, *VOCABULARIES):
        if (folder / name).exists() or (folder / name).is_symlink():
            read_bounded(folder, name, MAX_VOCABULARY_BYTES)
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer, config, str(folder))
    return tokenizer


def check_tokenizer(tokenizer: Tokenizer, config: ModelConfig, place: str) -> None:
    """Refuse a tokenizer whose ids do not match the model's; `place` names the folder in the error message.

    Raises:
        TransduceError: the vocabulary sizes or the ids of special tokens differ.
    """
    sizes = tokenizer.source.size, tokenizer.target.size
    if sizes != (config.source_vocabulary_size, config.target_vocabulary_size):
        raise TransduceError(
            f"{place}: the model has {config.source_vocabulary_size} and {config.target_vocabulary_size} tokens for "
            f"source and target, but its tokenizer has {sizes[0]} and {sizes[1]}: they are of different models."
        )
    for side in (tokenizer.source, tokenizer.target):
        if (side.pad_id, side.eos_id) != (config.pad_id, config.eos_id):
            raise TransduceError(
                f"{place}: padding and end are the ids {config.pad_id} and {config.eos_id} to the model, but "
                f"{side.pad_id} and {side.eos_id} to its tokenizer: they are of different models."
            )


def _read_manifest(folder: Path) -> Manifest:
    manifest = read_json(folder, MANIFEST, Manifest)
    if manifest.format_version != FORMAT_VERSION:
        raise TransduceError(
            f"{folder} has format {manifest.format_version}, and this version of transduce reads {FORMAT_VERSION}."
        )
    return manifest


def _read_checked_manifest(folder: Path) -> Manifest:
    """Read the manifest and check every file against its digest."""
    manifest = _read_manifest(folder)
    try:
        _check_digests(folder, manifest)
    except TransduceError:
        # A run may have replaced its weights since the manifest was read; then the manifest has changed, too.
        newer = _read_manifest(folder)
        if newer == manifest:
            raise
        manifest = newer
        _check_digests(folder, manifest)
    return manifest


def _check_digests(folder: Path, manifest: Manifest) -> None:
    required: dict[str, list[str]] = {WEIGHTS: []}
    for name, digests in (required | manifest.sha256).items():
        path = file_inside(folder, name)
        if not path.is_file():
            raise TransduceError(f"{folder} is incomplete: its manifest lists {name}, which is not there.")
        if file_sha256(path) not in digests:
            raise TransduceError(f"{path} is damaged: it is not what the manifest says was written.")


def _read_weights(path: Path, model: AnyModel, config: ModelConfig) -> dict[str, Tensor]:
    """Read exactly the model's parameters and BatchNorm statistics from the folder's tensors."""
    weights: dict[str, Tensor] = {}
    outline = model.state_dict()
    try:
        with safe_open(path, framework="pt") as file:
            present = set(file.keys())
            locations = places(outline, config, present)
            missing = [part for location in locations.values() for part in location.names if part not in present]
            expected = {part for location in locations.values() for part in location.names} | redundant_names(
                config, present
            )
            if missing or present - expected:
                raise TransduceError(
                    f"{path} does not hold the weights of its config.json: missing {_shorten_list(missing)}, "
                    f"unexpected {_shorten_list(sorted(present - expected))}."
                )
            for name, location in locations.items():
                parts = {part: file.get_tensor(part) for part in location.names}
                weights[name] = _restore(path, location, parts, outline[name].dtype)
    except (OSError, SafetensorError) as error:
        raise TransduceError(f"{path} cannot be read: {error}.") from error
    _check_shapes(path, weights, model)
    _check_finite(path, weights)
    return weights


def _shorten_list(names: list[str]) -> str:
    """Format a list of names for a message; a long list is shortened."""
    return f"{names[:_MAX_SHOWN] or 'none'}" + (f" and {len(names) - _MAX_SHOWN} more" * (len(names) > _MAX_SHOWN))


def _restore(path: Path, location: StoredParameter, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    """Return a parameter or buffer of the model, joined from its stored parts.

    Floating-point numbers come back as float32; others, such as a buffer of indices, with the model's `dtype`.
    """
    dtype = torch.float32 if dtype.is_floating_point else dtype
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    if shapes and not any(shapes.values()) and len(parts) == 1:
        return next(iter(parts.values())).to(dtype)
    if len({(len(shape), shape[1:]) for shape in shapes.values()}) > 1 or () in shapes.values():
        raise TransduceError(f"{path}: these tensors must have rows of one length, but have the shapes {shapes}.")
    return location.restore(list(parts.values())).to(dtype)


def _check_shapes(path: Path, weights: Mapping[str, Tensor], model: AnyModel) -> None:
    for name, expected in model.state_dict().items():
        if weights[name].shape != expected.shape:
            raise TransduceError(
                f"{path}: {name} must have the shape {tuple(expected.shape)} by config.json, but has "
                f"{tuple(weights[name].shape)}."
            )


def _check_finite(path: Path, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise TransduceError(f"{path}: {name} has values that are not finite (NaN or infinite): train it again.")
