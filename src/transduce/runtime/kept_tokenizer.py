"""Keep a Hugging Face tokenizer's own files in an imported model's folder, so that transformers can open the folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from transduce.durable import write_file
from transduce.runtime.untrusted import MOST_VOCABULARY_BYTES, read_bounded, read_json

_SETTINGS = "tokenizer_config.json"
_VOCABULARIES = (
    *("tokenizer.json", "vocab.json", "target_vocab.json", "vocab.txt", "merges.txt", "source.spm", "target.spm"),
    *("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "sentencepiece.model"),
)
_TABLES = ("special_tokens_map.json", "added_tokens.json", "generation_config.json")


def has_kept_files(folder: Path) -> bool:
    """Return whether a folder holds a Hugging Face tokenizer's vocabulary file."""
    return any((folder / name).is_file() for name in _VOCABULARIES)


def read_kept_files(folder: Path, languages: tuple[str | None, str | None]) -> dict[str, bytes]:
    """Read a Hugging Face tokenizer's files, and generation_config.json, by name.

    Args:
        folder: the folder with the files.
        languages: source and target language, which replace those in the tokenizer's settings if these name any.

    Raises:
        TransduceError: a file cannot be read.
    """
    names = [name for name in (*_VOCABULARIES, *_TABLES) if (folder / name).is_file()]
    files = {name: read_bounded(folder, name, MOST_VOCABULARY_BYTES) for name in names}
    if (folder / _SETTINGS).is_file():
        settings = read_json(folder, _SETTINGS, dict[str, Any])
        settings.pop("auto_map", None)  # names custom code, which is never run
        for side, language in zip(("src_lang", "tgt_lang"), languages, strict=True):
            if side in settings and language is not None:
                settings[side] = language
        files[_SETTINGS] = msgspec.json.format(msgspec.json.encode(settings)) + b"\n"
    return files


def write_kept_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a tokenizer's files to a model's folder; an existing `generation_config.json` is replaced."""
    for name, content in files.items():
        write_file(folder / name, content)
