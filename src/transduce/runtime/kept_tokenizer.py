"""The files of a tokenizer of Hugging Face's, kept beside an imported model, so that it opens there as before."""

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
    """Whether a tokenizer's own files are there."""
    return any((folder / name).is_file() for name in _VOCABULARIES)


def read_kept_files(folder: Path, languages: tuple[str | None, str | None]) -> dict[str, bytes]:
    """A tokenizer's files by name, and how its makers have `generate` search.

    Args:
        folder: with the files.
        languages: that the model is told, which the tokenizer is told too where its files name any.

    Raises:
        TransduceError: one of them cannot be read.
    """
    names = [name for name in (*_VOCABULARIES, *_TABLES) if (folder / name).is_file()]
    files = {name: read_bounded(folder, name, MOST_VOCABULARY_BYTES) for name in names}
    if (folder / _SETTINGS).is_file():
        settings = read_json(folder, _SETTINGS, dict[str, Any])
        settings.pop("auto_map", None)  # code of its own, which is never run
        for side, language in zip(("src_lang", "tgt_lang"), languages, strict=True):
            if side in settings and language is not None:
                settings[side] = language
        files[_SETTINGS] = msgspec.json.format(msgspec.json.encode(settings)) + b"\n"
    return files


def write_kept_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Puts them into a model's folder, where its own `generation_config.json` makes way."""
    for name, content in files.items():
        write_file(folder / name, content)
