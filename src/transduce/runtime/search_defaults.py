"""Read the default search settings of a model folder, and the maximum source length of its training."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from transduce.errors import TransduceError
from transduce.runtime.foreign import foreign_search_settings, is_foreign
from transduce.runtime.parts import LONGEST_SOURCE
from transduce.runtime.untrusted import read_json, read_toml
from transduce.search.settings import SearchSettings

_RUN_SETTINGS = "settings.toml"


def read_search_settings(folder: Path) -> SearchSettings:
    """Return the default search settings of a model folder.

    A run's `settings.toml` takes precedence over `generation_config.json`. Of the latter, only the beam size and the
    limit on repeated n-grams are used, because its length penalty is a different formula. Without either file, the
    paper's settings apply. Hugging Face folders are searched as transformers' `generate` does.

    Raises:
        TransduceError: a file cannot be read.
    """
    if is_foreign(folder):
        return foreign_search_settings(folder)
    table, path = _read_run_settings(folder / _RUN_SETTINGS), folder / _RUN_SETTINGS
    if table is None:
        path = folder / "generation_config.json"
        table = _read_generation_config(path)
    try:
        return msgspec.convert(table, SearchSettings)
    except msgspec.ValidationError as error:
        raise TransduceError(f"The search settings in {path} cannot be used: {str(error).rstrip('.')}.") from None


def read_longest_source(folder: Path) -> int:
    """Return the maximum source length of training in tokens (`data.filters.max_pieces`), or the default length.

    Raises:
        TransduceError: the run's settings cannot be read.
    """
    if is_foreign(folder) or not (folder / _RUN_SETTINGS).is_file():
        return LONGEST_SOURCE
    try:
        return msgspec.convert(read_toml(folder, _RUN_SETTINGS), _Run).data.filters.max_pieces
    except msgspec.ValidationError as error:
        raise TransduceError(f"The settings in {folder / _RUN_SETTINGS} cannot be used: {error}.") from None


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
    """The keys of `generation_config.json` that are used."""

    num_beams: int = 1
    no_repeat_ngram_size: int = 0


class _Filters(msgspec.Struct, frozen=True):
    """The keys of `data.filters` that are used."""

    max_pieces: Annotated[int, msgspec.Meta(ge=1)] = LONGEST_SOURCE


class _Data(msgspec.Struct, frozen=True):
    """The keys of `data` that are used."""

    filters: _Filters = _Filters()


class _Run(msgspec.Struct, frozen=True):
    """The keys of a run's settings that are used."""

    data: _Data = _Data()
