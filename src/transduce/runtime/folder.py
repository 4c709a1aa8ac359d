"""The model folder: configuration, weights, tokenizer, and a manifest of what was written.

Every file is replaced atomically. The weights and their digest are two files, so the manifest lists the old digest
beside the new one while the weights change: at every moment the folder is consistent.
"""

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from transduce.durable import file_sha256, replace_file, write_file
from transduce.errors import TransduceError
from transduce.interop.huggingface import config_json, derived_names, expected_names, to_folder_names
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import Tokenizer

FORMAT_VERSION = 1
WEIGHTS = "model.safetensors"
MANIFEST = "manifest.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: by which versions, and the SHA-256 of each file."""

    format_version: int
    versions: dict[str, str]
    source_language: str | None
    target_language: str | None
    sha256: dict[str, list[str]]
    """One a file; while the weights are replaced they have the digest of the old ones too."""


class ModelFolder(msgspec.Struct, frozen=True):
    """What is needed to run a model."""

    model: Transformer
    tokenizer: Tokenizer
    manifest: Manifest


def write_json(path: Path, content: Any) -> None:
    """Writes JSON atomically, indented, UTF-8."""
    write_file(path, msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def write_model_folder(
    folder: Path,
    *,
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer,
    languages: tuple[str | None, str | None],
    documents: Mapping[str, str],
) -> None:
    """Writes or replaces a complete model folder.

    Args:
        folder: where.
        weights: by our parameter names, float32.
        config: of the model.
        tokenizer: its vocabularies.
        languages: source and target.
        documents: further text files by name: settings, a card.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config_json(config))
    write_json(folder / "generation_config.json", _generation_config(config))
    tokenizer.save(folder)
    for name, text in documents.items():
        write_file(folder / name, text.encode())
    partial = folder / f".partial-{WEIGHTS}"
    save_file(to_folder_names(weights, config), partial, metadata={"format": "pt"})
    shutil.copymode(folder / "config.json", partial)  # safetensors lets the owner alone read
    new, old = file_sha256(partial), _known_digests(folder)
    _write_manifest(folder, languages, [new, *old])
    replace_file(partial, folder / WEIGHTS)
    _write_manifest(folder, languages, [new])


def _generation_config(config: ModelConfig) -> dict[str, Any]:
    return {
        "decoder_start_token_id": config.start_id,
        "eos_token_id": config.eos_id,
        "pad_token_id": config.pad_id,
        "bad_words_ids": [[config.pad_id]],
        "num_beams": 4,
        "max_length": 512,
    }


def _known_digests(folder: Path) -> list[str]:
    """All that the weights in the folder may have: where an earlier writer was killed there are several."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest).sha256.get(WEIGHTS, [])
    except (OSError, msgspec.MsgspecError):
        return []


def _write_manifest(folder: Path, languages: tuple[str | None, str | None], weights: list[str]) -> None:
    others = [
        name
        for name in ("config.json", "tokenizer_settings.json", "sentencepiece.model", "source.spm", "target.spm")
        if (folder / name).exists()
    ]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        versions={name: version(name) for name in ("torch", "sentencepiece", "numpy")}
        | {"transduce": version("transduce")},
        source_language=languages[0],
        target_language=languages[1],
        sha256={WEIGHTS: weights} | {name: [file_sha256(folder / name)] for name in others},
    )
    write_json(folder / MANIFEST, manifest)


def read_model_folder(folder: Path) -> ModelFolder:
    """Reads a model folder, in float32.

    Raises:
        TransduceError: it is missing, incomplete, damaged, or of a kind or version that this one cannot read.
    """
    if not (folder / "config.json").is_file():
        raise TransduceError(
            f"A model folder holds a config.json, but {folder} does not: name a folder that `transduce train` wrote "
            "(a run has one from its first validation on)."
        )
    config = _read_config(folder / "config.json")
    manifest = _read_checked_manifest(folder)
    with torch.device("meta"):
        model = Transformer(config)
    model.load_state_dict(_read_weights(folder / WEIGHTS, model, config), assign=True)
    return ModelFolder(model.eval(), Tokenizer.load(folder), manifest)


def _read_config(path: Path) -> ModelConfig:
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if "transduce" not in content:
            raise TransduceError(f"{path} is not of a model that transduce wrote: it has no key `transduce`.")
        return msgspec.convert(content["transduce"], ModelConfig)
    except msgspec.MsgspecError as error:
        raise TransduceError(f"{path} cannot be read as a model's configuration: {error}.") from error


def _read_manifest(folder: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise TransduceError(f"{folder / MANIFEST} cannot be read: {error}.") from error
    if manifest.format_version != FORMAT_VERSION:
        raise TransduceError(
            f"{folder} has format {manifest.format_version}, and this version of transduce reads {FORMAT_VERSION}."
        )
    return manifest


def _read_checked_manifest(folder: Path) -> Manifest:
    """The manifest, once every file is found to be what it says."""
    manifest = _read_manifest(folder)
    try:
        _check_digests(folder, manifest)
    except TransduceError:
        # A run may have replaced its weights since the manifest was read; then there is another one now.
        newer = _read_manifest(folder)
        if newer == manifest:
            raise
        manifest = newer
        _check_digests(folder, manifest)
    return manifest


def _check_digests(folder: Path, manifest: Manifest) -> None:
    nothing: dict[str, list[str]] = {WEIGHTS: []}
    for name, digests in (nothing | manifest.sha256).items():
        if Path(name).name != name:
            raise TransduceError(f"{folder / MANIFEST} must list files of its own folder, but lists `{name}`.")
        if not (folder / name).is_file():
            raise TransduceError(f"{folder} is incomplete: its manifest lists {name}, which is not there.")
        if file_sha256(folder / name) not in digests:
            raise TransduceError(f"{folder / name} is damaged: it is not what the manifest says was written.")


def _read_weights(path: Path, model: Transformer, config: ModelConfig) -> dict[str, Tensor]:
    """Our parameters from the folder's tensors, all of them and no others."""
    weights: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            present = set(file.keys())
            wanted = {name: expected_names(name, config) for name, _ in model.named_parameters()}
            missing = [part for parts in wanted.values() for part in parts if part not in present]
            known = {part for parts in wanted.values() for part in parts} | derived_names(config)
            if missing or present - known:
                raise TransduceError(
                    f"{path} does not hold the weights of its config.json: missing {missing or 'none'}, "
                    f"unexpected {sorted(present - known) or 'none'}."
                )
            for name, parts in wanted.items():
                weights[name] = _join(path, {part: file.get_tensor(part) for part in parts})
    except (OSError, SafetensorError) as error:
        raise TransduceError(f"{path} cannot be read: {error}.") from error
    _check_shapes(path, weights, model)
    return weights


def _join(path: Path, parts: Mapping[str, Tensor]) -> Tensor:
    """The rows of several tensors, one after another."""
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    if len({(len(shape), shape[1:]) for shape in shapes.values()}) > 1 or () in shapes.values():
        raise TransduceError(f"{path}: these tensors must have rows of one length, but have the shapes {shapes}.")
    return torch.cat(list(parts.values())).float()


def _check_shapes(path: Path, weights: Mapping[str, Tensor], model: Transformer) -> None:
    for name, parameter in model.named_parameters():
        if weights[name].shape != parameter.shape:
            raise TransduceError(
                f"{path}: {name} must have the shape {tuple(parameter.shape)} by config.json, but has "
                f"{tuple(weights[name].shape)}."
            )
