"""How a model folder wants to be searched: the `[search]` table of its run, or what Hugging Face's file says."""

from pathlib import Path
from typing import Any

import msgspec

from transduce.errors import TransduceError
from transduce.runtime.foreign import foreign_search_settings, is_foreign
from transduce.runtime.untrusted import read_json, read_toml
from transduce.search.settings import SearchSettings


def read_search_settings(folder: Path) -> SearchSettings:
    """The settings to search with where nobody says otherwise.

    `settings.toml`, which a run writes, goes before `generation_config.json`, of which the beam's size and the rule on
    repeated n-grams are taken: what it calls a length penalty is another formula. Without either, the paper's. A folder
    of Hugging Face's is searched as `generate` does it.

    Raises:
        TransduceError: a file is there and cannot be read.
    """
    if is_foreign(folder):
        return foreign_search_settings(folder)
    table = _read_run_settings(folder / "settings.toml")
    if table is None:
        table = _read_generation_config(folder / "generation_config.json")
    try:
        return msgspec.convert(table, SearchSettings)
    except msgspec.ValidationError as error:
        raise TransduceError(f"The search settings in {folder} cannot be used: {error}.") from None


def _read_run_settings(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    table = read_toml(path.parent, path.name).get("search")
    return table if isinstance(table, dict) else None


def _read_generation_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = read_json(path.parent, path.name, _GenerationConfig)
    return {"beam_size": content.num_beams, "no_repeated_ngrams": content.no_repeat_ngram_size}


class _GenerationConfig(msgspec.Struct, frozen=True):
    """What is taken of Hugging Face's file."""

    num_beams: int = 1
    no_repeat_ngram_size: int = 0
