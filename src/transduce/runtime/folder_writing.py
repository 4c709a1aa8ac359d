"""Write a model folder.

Every file is replaced atomically. The weights and their digest are in two files, so the manifest lists the old and the
new digest while the weights change. The folder is thus consistent at every moment.
"""

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from transduce.durable import file_sha256, replace_file, write_file
from transduce.errors import TransduceError
from transduce.interop.huggingface import config_json, generation_config, to_folder_names
from transduce.interop.tokenizer_files import tokenizer_files
from transduce.model.config import ModelConfig
from transduce.runtime.folder import CONFIG, FORMAT_VERSION, MANIFEST, TOKENIZER_CARD, VOCABULARIES, WEIGHTS, Manifest
from transduce.runtime.series_card import SERIES_CARD
from transduce.runtime.task_card import labels_among
from transduce.text.tokenizer import Tokenizer


def write_json(path: Path, content: Any) -> None:
    """Write JSON to a file atomically, indented, in UTF-8."""
    write_file(path, msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def write_model_folder(
    folder: Path,
    *,
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    languages: tuple[str | None, str | None],
    documents: Mapping[str, str],
) -> None:
    """Write or replace a complete model folder.

    Args:
        folder: the folder.
        weights: the weights by parameter name, float32.
        config: the model's configuration.
        tokenizer: the tokenizer; None for a model of time series.
        languages: language codes of source and target.
        documents: further text files by name, such as the settings and README.md.

    Raises:
        TransduceError: the weights cannot be written, for example because the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CONFIG, config_json(config, labels_among(documents), weights.keys()))
    if tokenizer is not None:
        _write_tokenizer(folder, tokenizer, config, languages)
    for name, text in documents.items():
        write_file(folder / name, text.encode())
    partial = folder / f".partial-{WEIGHTS}"
    try:
        save_file(to_folder_names(weights, config), partial, metadata={"format": "pt"})
    except SafetensorError as error:  # also raised if the disk is full
        partial.unlink(missing_ok=True)
        raise TransduceError(
            f"{folder / WEIGHTS} cannot be written ({error}): free disk space, then resume."
        ) from error
    shutil.copymode(folder / "config.json", partial)  # safetensors creates files that only the owner can read
    new, old = file_sha256(partial), _known_digests(folder)
    _write_manifest(folder, languages, [new, *old])
    replace_file(partial, folder / WEIGHTS)
    _write_manifest(folder, languages, [new])


def _write_tokenizer(
    folder: Path, tokenizer: Tokenizer, config: ModelConfig, languages: tuple[str | None, str | None]
) -> None:
    if (generation := generation_config(config, tokenizer.target.unk_id)) is not None:
        write_json(folder / "generation_config.json", generation)
    tokenizer.save(folder)
    for name, content in tokenizer_files(tokenizer, config, languages).items():
        write_json(folder / name, content)


def _known_digests(folder: Path) -> list[str]:
    """Return all digests that the manifest lists for the weights; several if an earlier write was interrupted."""
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest).sha256.get(WEIGHTS, [])
    except (OSError, msgspec.MsgspecError):
        return []


def _write_manifest(folder: Path, languages: tuple[str | None, str | None], weights: list[str]) -> None:
    other_files = [name for name in (CONFIG, TOKENIZER_CARD, SERIES_CARD, *VOCABULARIES) if (folder / name).exists()]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        versions={name: version(name) for name in ("torch", "sentencepiece", "numpy")}
        | {"transduce": version("transduce")},
        source_language=languages[0],
        target_language=languages[1],
        sha256={WEIGHTS: weights} | {name: [file_sha256(folder / name)] for name in other_files},
    )
    write_json(folder / MANIFEST, manifest)
