"""Read a model folder: configuration, weights, tokenizer, and the manifest that `write.py` wrote."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec
import torch
from torch import Tensor

from transduce.acceleration import quantize_without_data
from transduce.atomic_io import json_bytes
from transduce.deprecation import with_current_keys, with_current_settings
from transduce.errors import TransduceError, shell_word
from transduce.interop.hugging_face.export import redundant_names, stored_parameters
from transduce.interop.hugging_face.import_weights import LazyTensors, all_finite, check_sizes
from transduce.interop.hugging_face.imported_tokenizer import IMPORTED_TOKENIZER_FILE, load_tokenizer
from transduce.interop.hugging_face.stored_names import StoredParameter, check_rows, check_shape, wrong_tensors
from transduce.machine import available_memory, format_bytes
from transduce.model.build import AnyModel, EncoderDecoder, Model, build_model, compute_unstored_buffers
from transduce.model.config import Kind, ModelConfig, convert_config, explained
from transduce.model.recurrent import Recurrent
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Decoder, Encoder, Transformer
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
    read_config_json,
    read_json,
    read_toml,
    refuse_weights_file,
)
from transduce.model_folder.tensor_files import MappedTensors
from transduce.model_folder.weight_cache import PrepackedCache, VerifiedFiles
from transduce.text.tokenizer import TOKENIZER_CARD, Tokenizer

M = TypeVar("M", bound=Model)
S = TypeVar("S")
Built = TypeVar("Built", bound=AnyModel)

FORMAT_VERSION = 1
CONFIG = "config.json"
VOCABULARIES = ("sentencepiece.model", "source.spm", "target.spm", IMPORTED_TOKENIZER_FILE)
WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"
DIRECTIONS = "directions.json"
CONTEXT = "context.json"
SETTINGS_FILE = "settings.toml"
"""The name of the file with the settings of the run that made a model folder, or of an imported model."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a model folder: the versions that wrote it and the SHA-256 digest of each file."""

    format_version: int
    versions: dict[str, str]
    """Versions of the packages that wrote the folder, by package name."""
    source_language: str | None
    """Code of the source language; None if unknown."""
    target_language: str | None
    """Code of the target language; None if unknown."""
    sha256: dict[str, list[str]]
    """A dict from each file's name to its SHA-256 digest, in a list; for weights that are being replaced, the list has
    the old and the new digest.
    """


class ModelFolder(msgspec.Struct, Generic[M], frozen=True):
    """A model with its tokenizer, manifest and files, as read from a model folder."""

    model: M
    tokenizer: Tokenizer
    manifest: Manifest
    directions: tuple[tuple[str, str], ...] = ()
    """The pairs of source and target language that a model of several language pairs was trained for; else empty."""
    weights_digest: str = ""
    """A SHA-256 digest of the weights and the configuration, by which cached weights are checked; empty for a folder
    without a manifest.
    """
    files: tuple[MappedTensors, ...] = ()
    """The files whose tensors the model has mapped into memory, so that their pages can be released."""
    prepacked: MappedTensors | None = None
    """The cache file from which the model has its prepacked weights; None if it does not use one."""


class _Directions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of directions.json: the pairs of source and target language that a model translates."""

    directions: list[tuple[str, str]]


def directions_text(directions: Iterable[tuple[str, str]]) -> str:
    """Return pairs of source and target language as JSON text, the content of directions.json."""
    return json_bytes(_Directions(list(directions))).decode()


def read_directions(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return a tuple of the pairs of source and target language that a model folder lists; empty without a list.

    Only models of several language pairs have a list.

    Raises:
        TransduceError: the file is damaged.
    """
    return tuple(read_json(folder, DIRECTIONS, _Directions).directions) if (folder / DIRECTIONS).is_file() else ()


def read_run_settings(folder: Path) -> dict[str, Any]:
    """Return the settings that a training run stored in its folder, as nested dicts.

    Settings that have been renamed since then get their current names.

    Raises:
        TransduceError: the file cannot be read.
    """
    return with_current_settings(read_toml(folder, SETTINGS_FILE), warn=False)


def read_run_setting(folder: Path, name: str, kind: type[S]) -> S | None:
    """Return a setting or table of the run that made the model in a folder; None if it is not set there.

    Args:
        folder: the model folder, which need not have settings.
        name: the dotted name of the setting.
        kind: the type of the setting's values.

    Raises:
        TransduceError: the file cannot be read, or the value has another type.
    """
    value: Any = read_run_settings(folder) if (folder / SETTINGS_FILE).is_file() else None
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    try:
        return None if value is None else msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise TransduceError(f"The settings in {folder / SETTINGS_FILE} cannot be used: {error}.") from None


class ContextRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of context.json: how a model reads earlier sentences of a document before each sentence."""

    before: int
    """Maximum number of earlier sentences that the model reads as context."""
    sides: Literal["source", "both"]
    """The sides that read earlier sentences. `source`: the encoder reads them; `both`: the decoder also reads their
    translations.
    """


def context_text(record: ContextRecord) -> str:
    """Return the content of context.json: JSON text that says how a model reads earlier sentences."""
    return json_bytes(record).decode()


def read_context(folder: Path) -> ContextRecord | None:
    """Return how the model of a folder reads earlier sentences; None if it translates each sentence by itself.

    Raises:
        TransduceError: the file is damaged.
    """
    return read_json(folder, CONTEXT, ContextRecord) if (folder / CONTEXT).is_file() else None


# The command that uses each kind of model, for error messages.
_USES = {
    "transformer": "`transduce translate` uses it",
    "recurrent": "`transduce translate` uses it",
    "decoder": "`transduce generate` uses it",
    "encoder": "`transduce fill-mask`, `transduce classify` or `transduce tag` uses it, as it was trained for",
    "series": "`transduce forecast` uses it",
}


class FolderReader(Generic[M]):
    """A function that reads and checks the folder of one kind of model, in float32, and refuses other models."""

    def __init__(self, needed: str, *kinds: type[M]) -> None:
        """Create a reader of models of certain classes.

        Args:
            needed: the kind of model in words, for error messages, such as "an encoder-only model".
            kinds: the classes of models that the reader accepts.
        """
        self._needed = needed
        self._kinds = kinds

    def __call__(self, folder: Path, *, prepacked: bool = False) -> ModelFolder[M]:
        """Read a model folder as `read_any_model_folder` does, and return its content as a `ModelFolder`.

        Raises:
            TransduceError: the model is of another kind, or the folder cannot be read.
        """
        content = read_any_model_folder(folder, prepacked=prepacked)
        if not isinstance(content.model, self._kinds):
            raise _other_kind(folder, content.model.config, self._needed)
        return cast(ModelFolder[M], content)


read_model_folder = FolderReader("a Transformer with an encoder and a decoder", Transformer)
read_encoder_decoder_folder = FolderReader[EncoderDecoder](
    "a model with an encoder and a decoder", Transformer, Recurrent
)
read_decoder_folder = FolderReader("a language model (decoder-only)", Decoder)
read_encoder_folder = FolderReader("an encoder-only model", Encoder)


def _other_kind(folder: Path, config: ModelConfig, needed: str) -> TransduceError:
    return TransduceError(
        f"The model in {folder} is of the kind `{config.kind}`, but {needed} is needed here: {_USES[config.kind]}."
    )


def model_kind(folder: Path) -> Kind:
    """Return the kind of the model in a folder, such as "transformer" or "decoder", without reading its weights.

    Raises:
        TransduceError: the configuration is missing or cannot be read.
    """
    return hugging_face_kind(folder) if is_hugging_face_folder(_checked_folder(folder)) else _read_config(folder).kind


def _checked_folder(folder: Path) -> Path:
    if not folder.exists():
        raise TransduceError(f"{folder} does not exist: name the folder of a model.")
    refuse_weights_file(folder)
    refuse_adapter(folder)
    if folder.is_file():
        raise TransduceError(
            f"A model is a folder, but {folder} is a file: name the model's folder. A text to read comes after it."
        )
    if not (folder / CONFIG).is_file():
        raise TransduceError(
            f"A model folder holds a config.json, but {folder} does not: name a folder that `transduce train` wrote "
            "(a run has one from its first validation on)."
        )
    return folder


def read_any_model_folder(folder: Path, *, prepacked: bool = False) -> ModelFolder[Model]:
    """Read a model folder in float32 as a `ModelFolder`, after checking its files; no code from the folder is run.

    The weights are mapped from disk, and are read into memory when they are used.

    Args:
        folder: the model folder.
        prepacked: True to take prepacked 8-bit weights from the folder's cache if it has them; the model is then a
            `PrepackedModel`.

    Raises:
        TransduceError: the folder is missing, incomplete or damaged, or its kind or version is not supported.
    """
    if is_hugging_face_folder(_checked_folder(folder)):
        return msgspec.structs.replace(_read_imported(folder), directions=read_directions(folder))
    config = _read_config(folder)
    if config.kind == "series":
        raise _other_kind(folder, config, "a model of text")
    verified = VerifiedFiles(folder)
    manifest, digest = _read_checked_manifest(folder, verified)
    weights_digest = hashlib.sha256(digest.encode() + msgspec.json.encode(config)).hexdigest()
    found = _read_prepacked(folder, config, PrepackedCache(folder, weights_digest)) if prepacked else None
    if found is not None:
        model, file, cached = found
    else:
        (model, file), cached = _read_model(folder, config, build_model, verified, is_quantized=prepacked), None
    tokenizer = _read_tokenizer(folder, config)
    return ModelFolder(model, tokenizer, manifest, read_directions(folder), weights_digest, (file,), cached)


def was_saved_by_transformers(folder: Path) -> bool:
    """Return whether a folder's config.json shows that transformers saved a transduce model again.

    The result is False for a folder without a config.json.
    """
    if not (folder / CONFIG).is_file():
        return False
    content = read_config_json(folder)
    return "transduce" in content and "transformers_version" in content


def read_saved_by_transformers(folder: Path) -> ModelFolder[Model]:
    """Read a model folder that transformers saved again as a `ModelFolder`, with the tokenizer files of transduce.

    If the folder still has a manifest, only its languages are used, because the files have changed since.

    Raises:
        TransduceError: the tokenizer files are missing, or the folder is damaged.
    """
    if not any((folder / name).exists() for name in (TOKENIZER_CARD, IMPORTED_TOKENIZER_FILE)):
        raise TransduceError(
            f"{folder} was saved by Hugging Face's library from a model of transduce, without our tokenizer: copy "
            f"{TOKENIZER_CARD} and {' or '.join(VOCABULARIES[:2])} (and target.spm), or {IMPORTED_TOKENIZER_FILE}, "
            f"there from the folder that was opened, and {DIRECTIONS}, {CONTEXT}, {SETTINGS_FILE} and other files of "
            "transduce if it has them."
        )
    config = _read_config(folder)
    if config.kind == "encoder" and not config.masked_language_head:
        config = msgspec.structs.replace(config, output_bias=False)  # their class without the head drops the bias
    model: Model = _read_model(folder, config, build_model, None)[0]
    old = _read_manifest(folder) if (folder / MANIFEST).exists() else None
    manifest = _unwritten_manifest(*((old.source_language, old.target_language) if old else (None, None)))
    return ModelFolder(model, _read_tokenizer(folder, config), manifest, directions=read_directions(folder))


def _unwritten_manifest(source_language: str | None, target_language: str | None) -> Manifest:
    """Return a manifest that only names the languages, for a folder whose manifest is missing or out of date."""
    return Manifest(
        format_version=FORMAT_VERSION,
        versions={},
        source_language=source_language,
        target_language=target_language,
        sha256={},
    )


def read_series_model(folder: Path) -> SeriesTransformer:
    """Read a folder's model of time series, in float32, and return the model; refuse other models.

    Raises:
        TransduceError: the model is of another kind, or the folder cannot be read.
    """
    config = _read_config(_checked_folder(folder))
    if config.kind != "series":
        raise _other_kind(folder, config, "a model of time series")
    verified = VerifiedFiles(folder)
    _read_checked_manifest(folder, verified)
    return _read_model(folder, config, SeriesTransformer, verified)[0]


def _read_prepacked(
    folder: Path, config: ModelConfig, cache: PrepackedCache
) -> tuple[Model, MappedTensors, MappedTensors] | None:
    """Read a model whose prepacked layers are in the folder's cache.

    The result is None if the cache has no usable file, or if no layer of the model can be prepacked.

    Returns:
        A triple: the model, the file with its other weights, and the file with its prepacked layers.
    """
    if not cache.has_files():
        return None
    skeleton = _empty_model(folder, config, build_model)
    stored = skeleton.state_dict()
    packed = quantize_without_data(skeleton)
    prepacked = None if packed is None else cache.load(packed)
    if packed is None or prepacked is None:
        return None
    file = _map_weights(folder, stored)
    others = _read_weights(file, stored, config, [name for name in packed.needed if name in stored])
    layers = {name: prepacked.tensor(name) for name in prepacked.entries}
    model = cast(Model, packed.fill(layers, others).eval())  # of a subclass of its class
    compute_unstored_buffers(model, build_model)
    return model, file, prepacked


def _read_model(
    folder: Path,
    config: ModelConfig,
    build: Callable[[ModelConfig], Built],
    verified: VerifiedFiles | None,
    *,
    is_quantized: bool = False,
) -> tuple[Built, MappedTensors]:
    """Read the model of a folder in float32; return a pair of the model and its mapped weights file.

    The model is in evaluation mode.

    Args:
        folder: the model folder.
        config: the model's configuration.
        build: makes a model from a configuration.
        verified: records whose weights are finite, so that a large file is checked only once; None: the weights are
            checked.
        is_quantized: True if the model will be used with 8-bit weights, which need less free memory.

    Raises:
        TransduceError: the file is damaged, a weight is not finite, or the memory does not suffice.
    """
    model = _empty_model(folder, config, build)
    stored = model.state_dict()
    file = _map_weights(folder, stored)
    _refuse_too_large(folder, [file], is_quantized=is_quantized)
    weights = _read_weights(file, stored, config, stored)
    if verified is None or not verified.is_finite(file.path, file.version):
        _check_finite(file, weights)
        if verified is not None:
            verified.record_finite(file.path, file.version)
    model.load_state_dict(weights, assign=True)
    compute_unstored_buffers(model, build)
    model.eval()
    return model, file


_SMALL = 1 << 28  # bytes, for which free memory is not looked up


def _refuse_too_large(folder: Path, files: Iterable[MappedTensors], *, is_quantized: bool = False) -> None:
    """Raise an error if the weights in mapped files need more memory than is free, before they are read.

    A float32 weight counts with 2 bytes, its size in bfloat16, or with 1 byte if the model will be quantized. Weights
    of other types count with 4 bytes, because they become float32 when they are read.

    Raises:
        TransduceError: the memory does not suffice.
    """
    entries = [entry for file in files for entry in file.entries.values()]
    sizes = [(math.prod(entry.shape), entry.dtype == "F32") for entry in entries]
    needed = sum(count * ((1 if is_quantized else 2) if is_mapped else 4) for count, is_mapped in sizes)
    if needed < _SMALL:
        return
    # The mapped files are a part of the address space already.
    free = available_memory(address_space=False)
    if free is not None and needed > free:
        raise TransduceError(
            f"The model in {folder} has {sum(count for count, _ in sizes):,} weights, which need at least "
            f"{format_bytes(needed)} of memory, but only {format_bytes(free)} are free: use a smaller model, or close "
            "other programs."
        )


def _map_weights(folder: Path, templates: Mapping[str, Tensor]) -> MappedTensors:
    """Map the weights file of a folder into memory, check its header, and return the mapped tensors.

    `templates` holds the model's parameters and stored buffers without data. Tensors that are floating-point there must
    be floating-point in the file, too.

    Raises:
        TransduceError: the file is missing or damaged, or holds tensors of another type.
    """
    whole_numbers = [name for name, tensor in templates.items() if not tensor.is_floating_point()]
    return MappedTensors(folder, WEIGHTS, whole_numbers=whole_numbers)


def _read_imported(folder: Path) -> ModelFolder[Model]:
    """Read a Hugging Face folder that transduce did not write as a `ModelFolder`; the model is in evaluation mode."""
    content, weights = describe_imported(folder)
    _refuse_too_large(folder, content.files)
    content.model.load_state_dict(dict(weights), assign=True)
    compute_unstored_buffers(content.model, build_model)
    content.model.eval()
    return content


def describe_imported(folder: Path) -> tuple[ModelFolder[Model], LazyTensors]:
    """Read a Hugging Face folder without its weights: the model is on the meta device, and weights are read on access.

    The result is a pair: the folder's content, and a mapping of the weights by name. Reading a weight releases the
    memory of the weights that were read before.

    Raises:
        TransduceError: a file is missing or damaged, or the model is not supported.
    """
    imported = read_hugging_face_folder(folder)
    model = _empty_model(folder, imported.model.config, build_model)

    def read(name: str) -> Tensor:
        for file in imported.files:
            file.release()
        return imported.model.weights[name]

    weights = LazyTensors({name: partial(read, name) for name in imported.model.weights}, model.state_dict())
    manifest = _unwritten_manifest(*imported.languages)
    return ModelFolder(model, imported.tokenizer, manifest, files=tuple(imported.files)), weights


def _read_config(folder: Path) -> ModelConfig:
    path = folder / CONFIG
    content = read_config_json(folder)
    if "auto_map" in content:
        raise TransduceError(f"{path} asks for code of its own to be run (`auto_map`), which is never done: remove it.")
    if "transduce" not in content:
        if "model_type" in content:
            check_hugging_face_folder(folder)  # raises an error with the alternatives
        raise TransduceError(f"{path} is not of a model that transduce wrote: it has no key `transduce`.")
    try:
        described = msgspec.convert(content["transduce"], dict[str, Any])
        config = convert_config(with_current_keys(described, ModelConfig))
    except msgspec.ValidationError as error:
        raise TransduceError(f"{path} cannot be read as a model's configuration: {explained(error)}.") from error
    check_sizes(path, config)
    return config


def _empty_model(folder: Path, config: ModelConfig, build: Callable[[ModelConfig], Built]) -> Built:
    """Build the model of a configuration on the meta device, without memory for its weights.

    Raises:
        TransduceError: the configuration describes no model that can be built.
    """
    try:
        with torch.device("meta"):
            return build(config)
    except (RuntimeError, OverflowError) as error:
        raise TransduceError(f"{folder / CONFIG} describes no model that can be built: {error}.") from error


def _read_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """Read the tokenizer of a folder and return it, if its vocabulary sizes and special ids match the model's.

    Raises:
        TransduceError: a file is too large, missing or damaged, or does not match.
    """
    for name in (TOKENIZER_CARD, *VOCABULARIES):
        if (folder / name).exists() or (folder / name).is_symlink():
            read_bounded(folder, name, MAX_VOCABULARY_BYTES)
    tokenizer = load_tokenizer(folder)
    check_tokenizer(tokenizer, config, str(folder))
    return tokenizer


def check_tokenizer(tokenizer: Tokenizer, config: ModelConfig, location: str) -> None:
    """Raise an error if a tokenizer does not match a model's configuration; `location` names the folder in the message.

    Raises:
        TransduceError: the vocabulary sizes or the ids of special tokens differ.
    """
    sizes = tokenizer.source.size, tokenizer.target.size
    if sizes != (config.source_vocabulary_size, config.target_vocabulary_size):
        raise TransduceError(
            f"{location}: the model has {config.source_vocabulary_size} and {config.target_vocabulary_size} tokens for "
            f"source and target, but its tokenizer has {sizes[0]} and {sizes[1]}: they are of different models."
        )
    for side in (tokenizer.source, tokenizer.target):
        if (side.pad_id, side.eos_id) != (config.pad_id, config.eos_id):
            raise TransduceError(
                f"{location}: padding and end are the ids {config.pad_id} and {config.eos_id} to the model, but "
                f"{side.pad_id} and {side.eos_id} to its tokenizer: they are of different models."
            )


def _read_manifest(folder: Path) -> Manifest:
    manifest = read_json(folder, MANIFEST, Manifest)
    if manifest.format_version != FORMAT_VERSION:
        raise TransduceError(
            f"{folder} has format {manifest.format_version}, and this version of transduce reads {FORMAT_VERSION}."
        )
    return manifest


def _read_checked_manifest(folder: Path, verified: VerifiedFiles) -> tuple[Manifest, str]:
    """Read a folder's manifest, and check that every file has the digest that the manifest lists.

    A training run may replace files during the check. If a check fails and the manifest has changed, the files are
    checked once more with the new manifest.

    Returns:
        A pair: the manifest, and the SHA-256 (hexadecimal) of the weights file.

    Raises:
        TransduceError: transformers saved the folder again, or a file is missing or damaged.
    """
    if was_saved_by_transformers(folder):
        raise TransduceError(
            f"{folder} was saved by Hugging Face's library, which keeps no manifest: bring it in by "
            f"`transduce import {shell_word(folder)} OUT`."
        )
    manifest = _read_manifest(folder)
    try:
        return manifest, check_digests(folder, manifest, verified.digest)[WEIGHTS]
    except TransduceError:
        # A run may have replaced its weights since the manifest was read; then the manifest has changed, too.
        newer = _read_manifest(folder)
        if newer == manifest:
            raise
        return newer, check_digests(folder, newer, verified.digest)[WEIGHTS]


def check_digests(folder: Path, manifest: Manifest, digest: Callable[[Path], str]) -> dict[str, str]:
    """Check that every file in a manifest has one of the digests that the manifest lists for it.

    Args:
        folder: the model folder.
        manifest: its manifest.
        digest: a function that returns the SHA-256 of a file.

    Returns:
        A dict from file names to digests.

    Raises:
        TransduceError: a file is missing or has another digest.
    """
    required: dict[str, list[str]] = {WEIGHTS: []}
    found: dict[str, str] = {}
    for name, digests in (required | manifest.sha256).items():
        path = file_inside(folder, name)
        if not path.is_file():
            raise TransduceError(f"{folder} is incomplete: its manifest lists {name}, which is not there.")
        found[name] = digest(path)
        if found[name] not in digests:
            raise TransduceError(
                f"{path} is damaged: it is not what the manifest says was written. Copy the folder again, or train or "
                "import the model again."
            )
    return found


def _read_weights(
    file: MappedTensors, templates: Mapping[str, Tensor], config: ModelConfig, names: Iterable[str]
) -> dict[str, Tensor]:
    """Return a dict of a model's parameters and buffers, mapped from a file that must hold exactly the model's weights.

    Args:
        file: the file.
        templates: the model's parameters and stored buffers, on the meta device.
        config: the model's configuration.
        names: the names of the parameters and buffers to return.

    Raises:
        TransduceError: a weight is missing, unexpected, or has another shape.
    """
    path, present = file.path, set(file.entries)
    locations = stored_parameters(templates, config, present)
    missing = [part for location in locations.values() for part in location.names if part not in present]
    expected = {part for location in locations.values() for part in location.names} | redundant_names(config, present)
    if missing or present - expected:
        raise wrong_tensors(path, missing, sorted(present - expected))
    weights = {name: _restore(file, locations[name], templates[name].dtype) for name in names}
    for name, tensor in weights.items():
        check_shape(path, name, tensor.shape, templates[name].shape)
    return weights


def _restore(file: MappedTensors, location: StoredParameter, dtype: torch.dtype) -> Tensor:
    """Return a parameter or buffer of the model, joined from the tensors that store its parts in a file.

    Parts that are adjacent rows in the file are joined without a copy.

    Args:
        file: the mapped weights file.
        location: the names of the stored tensors, and how they are joined.
        dtype: the type in the model. Every floating-point type becomes float32.

    Raises:
        TransduceError: the shapes of the stored tensors do not fit together.
    """
    dtype = torch.float32 if dtype.is_floating_point else dtype
    if location.layout == "rows" and (whole := file.rows(location.names)) is not None:
        return whole.to(dtype)
    parts = {name: file.tensor(name) for name in location.names}
    check_rows(file.path, {name: tuple(part.shape) for name, part in parts.items()})
    return location.restore(list(parts.values())).to(dtype)


def _check_finite(file: MappedTensors, weights: Mapping[str, Tensor]) -> None:
    """Raise an error if a weight that was mapped from a file is not finite; release the weights' memory.

    Raises:
        TransduceError: a weight is NaN or infinite.
    """
    for name, tensor in weights.items():
        if not all_finite(tensor):
            raise TransduceError(
                f"{file.path}: {name} has values that are not finite (NaN or infinite): train it again."
            )
        file.release()
