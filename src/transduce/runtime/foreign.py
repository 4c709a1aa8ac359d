"""Hugging Face folders: read from their own files, without transformers, and written as folders of ours.

Nothing is unpickled and no code of theirs is run. What the bricks cannot compute is an error that names it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transduce.errors import TransduceError
from transduce.interop.foreign_tokenizer import ForeignTokenizer
from transduce.interop.import_families import FAMILIES, check_config
from transduce.interop.import_generation import import_generation, start_id
from transduce.interop.import_settings import ConfigReader, Settings
from transduce.interop.import_tokenizer import ModelIds, import_tokenizer
from transduce.interop.import_tokenizer_files import TokenizerFiles
from transduce.interop.import_weights import ImportedModel, StoredTensors, encoder_heads, import_model
from transduce.model.config import Kind
from transduce.runtime.untrusted import MOST_VOCABULARY_BYTES, file_inside, read_bounded, read_json
from transduce.search.settings import SearchSettings

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
# Learned tables shorter than this limit what is written; others are hardly ever reached.
_SHORT_TABLE = 512


class ForeignFolder(NamedTuple):
    """A model of another toolkit, as ours."""

    model_type: str
    model: ImportedModel
    tokenizer: ForeignTokenizer
    languages: tuple[str | None, str | None]
    """Source and target, as far as the folder names them."""


def is_foreign(folder: Path) -> bool:
    """Whether a folder holds a model that is not of ours, by its `config.json`."""
    if not (folder / "config.json").is_file():
        return False
    content = read_json(folder, "config.json", dict[str, Any], " as a model's configuration")
    model_type = content.get("model_type")
    is_known = isinstance(model_type, str) and model_type in FAMILIES
    return "transduce" not in content and is_known and "auto_map" not in content


def foreign_kind(folder: Path) -> Kind:
    """What a Hugging Face folder's model is made of.

    Raises:
        TransduceError: it is none that can be imported.
    """
    return FAMILIES[check_foreign(folder)].kind


def read_foreign_folder(folder: Path) -> ForeignFolder:
    """Reads a Hugging Face folder, in float32.

    Raises:
        TransduceError: a file is missing or damaged, or the model is none that the bricks here compute.
    """
    config = _config(folder)
    model_type = str(config.get("model_type"))
    generation = _optional_json(folder, "generation_config.json")
    files = TokenizerFiles(_reader(folder), str(folder))
    record = import_tokenizer(files, _model_ids(config, generation, model_type))
    ids = {"pad_id": record.source.pad_id, "eos_id": record.source.eos_id}
    if FAMILIES[model_type].kind == "transformer":
        ids["start_id"] = start_id(model_type, generation, config, (ids["pad_id"], ids["eos_id"]))
    elif record.source.before:
        ids["start_id"] = record.source.before[0]
    elif not isinstance(config.get("bos_token_id"), int):
        ids["start_id"] = ids["eos_id"]
    model = import_model(config, _stored_tensors(folder), ids)
    tokenizer = ForeignTokenizer(record)
    said = files.json("tokenizer_config.json")
    languages = (
        _text(said.get("src_lang") or said.get("source_lang")),
        _text(said.get("tgt_lang") or said.get("target_lang")),
    )
    if record.languages is not None:
        # What a folder names is only a wish: the tags tell what can be had.
        known = tuple(language if language in record.languages.tags else None for language in languages)
        forced = generation.get("forced_bos_token_id")
        named = next((name for name, id in record.languages.tags.items() if id == forced), None)
        languages = (known[0], named or known[1])
        tokenizer = tokenizer.for_languages(*languages)
    return ForeignFolder(model_type, model, tokenizer, languages)


class ForeignHeads(NamedTuple):
    """What a Hugging Face encoder is for, by the weights that are there and its configuration."""

    masked_language: bool
    """Pieces that are hidden are found."""
    labels: tuple[str, ...]
    """The names of the classes, of which a text has one; none where texts are not told apart so."""
    length: int
    """Pieces that it has positions for."""


def foreign_heads(folder: Path) -> ForeignHeads | None:
    """The heads of a Hugging Face folder's encoder; None where the model is of another kind.

    Raises:
        TransduceError: it is none that can be imported, or its weights are missing.
    """
    if foreign_kind(folder) != "encoder":
        return None
    config = _config(folder)
    model_type = str(config["model_type"])
    heads = encoder_heads(model_type, _stored_tensors(folder))
    settings = _settings(folder, config)
    labels = _label_names(config, heads["num_labels"]) if _has_one_label(config, heads["num_labels"]) else ()
    return ForeignHeads(heads["masked_language_head"], labels, settings["max_positions"])


def _settings(folder: Path, config: Mapping[str, Any]) -> Settings:
    """Ours, of what a checked `config.json` says."""
    return FAMILIES[str(config["model_type"])].settings(ConfigReader(config, str(folder / "config.json")))


def _has_one_label(config: Mapping[str, Any], classes: int) -> bool:
    """Whether a text has one of several classes: not any number of them, nor a number in place of a class."""
    return classes > 1 and config.get("problem_type") in (None, "single_label_classification")


def _label_names(config: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    """As `id2label` says; where it does not fit, the numbers that transformers would show."""
    said = config.get("id2label")
    named = said if isinstance(said, dict) else {}
    names = tuple(str(named.get(str(number), f"LABEL_{number}")) for number in range(classes))
    return names if len(set(names)) == classes else tuple(f"LABEL_{number}" for number in range(classes))


def foreign_context(folder: Path) -> int | None:
    """How many pieces a Hugging Face folder's language model was made to look back on; None where it does not say.

    Raises:
        TransduceError: it cannot be read.
    """
    said = _config(folder).get("max_position_embeddings")
    return said if isinstance(said, int) and said >= 2 else None


def foreign_search_settings(folder: Path) -> SearchSettings:
    """How a Hugging Face folder wants to be searched.

    Raises:
        TransduceError: it asks for something that has no counterpart here.
    """
    config = _config(folder)
    settings = _settings(folder, config)
    is_short = settings.get("positions") == "learned" and settings["max_positions"] <= _SHORT_TABLE
    greatest = settings["max_positions"] if is_short else None
    generation = _optional_json(folder, "generation_config.json")
    return import_generation(generation, config, str(folder), greatest=greatest)


def check_foreign(folder: Path) -> str:
    """The `model_type` of a Hugging Face folder that can be imported.

    Raises:
        TransduceError: it is something else.
    """
    if not folder.exists():
        raise TransduceError(f"{folder} does not exist: name the folder of a model.")
    if not (folder / "config.json").is_file():
        raise TransduceError(
            f"A Hugging Face folder holds a config.json, but {folder} does not: name the folder, not a file in it."
        )
    if "transduce" in read_json(folder, "config.json", dict[str, Any], " as a model's configuration"):
        raise TransduceError(f"{folder} holds a model of transduce already: use it as it is.")
    return str(_config(folder)["model_type"])


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder, "config.json", dict[str, Any], " as a model's configuration")
    check_config(config, str(folder / "config.json"))
    return config


def _model_ids(config: Mapping[str, Any], generation: Mapping[str, Any], model_type: str) -> ModelIds:
    size = config.get("vocab_size")
    target_size = config.get("decoder_vocab_size") or size
    if not isinstance(size, int) or not isinstance(target_size, int):
        raise TransduceError(f"config.json must say `vocab_size`, a whole number, but says {size!r}.")
    ends = _ends(config)
    if FAMILIES[model_type].kind == "decoder":  # where the way to generate goes before the model's own word
        ends = _ends(generation) or ends
    pad_id = config.get("pad_token_id")
    return ModelIds(
        model_type=model_type,
        sizes=(size, target_size),
        pad_id=pad_id if isinstance(pad_id, int) and pad_id >= 0 else None,
        eos_id=ends[0] if ends and not FAMILIES[model_type].end_is_separator else None,
        other_ends=ends[1:] if FAMILIES[model_type].kind == "decoder" else (),
    )


def _ends(said: Mapping[str, Any]) -> tuple[int, ...]:
    """All that ends a text, the end symbol first."""
    value = said.get("eos_token_id")
    listed = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(id for id in listed if isinstance(id, int) and not isinstance(id, bool)))


def _optional_json(folder: Path, name: str) -> dict[str, Any]:
    return read_json(folder, name, dict[str, Any]) if (folder / name).is_file() else {}


def _reader(folder: Path) -> Callable[[str], bytes | None]:
    def read(name: str) -> bytes | None:
        return read_bounded(folder, name, MOST_VOCABULARY_BYTES) if (folder / name).exists() else None

    return read


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# --- weights ----------------------------------------------------------------------------------------------------


def _stored_tensors(folder: Path) -> StoredTensors:
    """The tensors of one safetensors file, or of all that an index lists."""
    if (folder / _WEIGHTS).is_file():
        names = [_WEIGHTS]
    elif (folder / _INDEX).is_file():
        index = read_json(folder, _INDEX, dict[str, Any])
        try:
            table = msgspec.convert(index.get("weight_map", {}), dict[str, str])
        except msgspec.ValidationError as error:
            raise TransduceError(f"{folder / _INDEX} must name the file of each tensor: {error}.") from error
        names = sorted(set(table.values()))
    else:
        raise _no_weights(folder)
    tensors: dict[str, Callable[[], Tensor]] = {}
    for name in names:
        tensors |= _tensors_of(file_inside(folder, name))
    return StoredTensors(tensors, str(folder))


def _tensors_of(path: Path) -> dict[str, Callable[[], Tensor]]:
    if not path.is_file():
        raise TransduceError(f"{path} cannot be read: there is no such file; copy the folder again.")
    try:
        file: Any = safe_open(path, framework="pt")
        return {name: partial(file.get_tensor, name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise TransduceError(f"{path} cannot be read: {error}.") from error


def _no_weights(folder: Path) -> TransduceError:
    pickled = next((name for name in _PICKLES if (folder / name).is_file()), None)
    if pickled is None:
        return TransduceError(f"{folder} must hold {_WEIGHTS}, but does not: copy the folder again.")
    return TransduceError(
        f"{folder} holds its weights as {pickled}, which is not opened because it could run code: save the model as "
        "safetensors where you trust it, and copy that."
    )
