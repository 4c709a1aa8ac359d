"""Read Hugging Face folders from their own files, without the transformers library.

Nothing is unpickled and no code from a folder is run. A model that the components here cannot compute is refused with
an error that names the setting.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from transduce.errors import TransduceError, shown_names
from transduce.interop.hugging_face.import_settings import (
    IMPORT_FAMILIES,
    ConfigReader,
    check_config,
    import_generation,
)
from transduce.interop.hugging_face.import_tokenizer import ModelIds, TokenizerFiles, import_tokenizer, text_of
from transduce.interop.hugging_face.import_weights import ImportedModel, StoredTensors, encoder_heads, import_model
from transduce.interop.hugging_face.imported_tokenizer import ChatTemplate, ImportedTokenizer
from transduce.interop.hugging_face.stored_names import Settings, end_ids, start_id
from transduce.model.config import Kind
from transduce.model_folder.safety import (
    MAX_VOCABULARY_BYTES,
    read_bounded,
    read_config_json,
    read_json,
    read_optional_json,
)
from transduce.model_folder.tensor_files import MappedTensors
from transduce.search.settings import SearchSettings

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_CHAT_TEMPLATE = "chat_template.jinja"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
# A learned position table shorter than this limits the length of outputs; longer tables are hardly ever filled.
_SHORT_TABLE = 512


class HuggingFaceFolder(NamedTuple):
    """A Hugging Face model converted to a transduce model, with its tokenizer; weights are read from disk on access."""

    model_type: str
    """The `model_type` of config.json, such as "marian"."""
    model: ImportedModel
    tokenizer: ImportedTokenizer
    languages: tuple[str | None, str | None]
    """A pair of the source and target language codes; None for one that the folder does not name."""
    files: Sequence[MappedTensors]
    """The mapped files with the weights, whose memory the reader can release."""


def is_hugging_face_folder(folder: Path) -> bool:
    """Return whether a folder's `config.json` describes a supported Hugging Face model that transduce did not write.

    The result is False if there is no such file, for an unsupported type of model, and for one that needs code of its
    own.
    """
    if not (folder / "config.json").is_file():
        return False
    content = read_config_json(folder)
    model_type = content.get("model_type")
    is_known = isinstance(model_type, str) and model_type in IMPORT_FAMILIES
    return "transduce" not in content and is_known and "auto_map" not in content


def hugging_face_kind(folder: Path) -> Kind:
    """Return the kind of a Hugging Face folder's model: "transformer", "decoder" or "encoder".

    Raises:
        TransduceError: the model cannot be imported.
    """
    return IMPORT_FAMILIES[check_hugging_face_folder(folder)].kind


def read_hugging_face_folder(folder: Path) -> HuggingFaceFolder:
    """Read a Hugging Face folder as a `HuggingFaceFolder`: a transduce model, its tokenizer, languages and files.

    Weights are read on access, in float32.

    Raises:
        TransduceError: a file is missing or damaged, or the model is not supported.
    """
    config = _config(folder)
    model_type = str(config.get("model_type"))
    generation = read_optional_json(folder, "generation_config.json")
    files = _tokenizer_files(folder)
    known = _model_ids(config, generation, model_type)
    record = import_tokenizer(files, known)
    if known.family.kind == "decoder":
        record = msgspec.structs.replace(record, chat_template=read_chat_template(files))
    ids = {"pad_id": record.source.pad_id, "eos_id": record.source.eos_id}
    tokenizer = ImportedTokenizer(record)
    languages = (
        _text(files.settings.get("src_lang") or files.settings.get("source_lang")),
        _text(files.settings.get("tgt_lang") or files.settings.get("target_lang")),
    )
    if known.family.kind == "transformer":
        default = ids["eos_id" if known.family.begins_with_end else "pad_id"]
        ids["start_id"] = default if known.start_id is None else known.start_id
    elif record.source.before:
        ids["start_id"] = record.source.before[0]
    elif not isinstance(config.get("bos_token_id"), int):
        ids["start_id"] = ids["eos_id"]
    if record.languages is not None:
        # The folder's languages are only a default; the tokenizer's tags list the available ones.
        tags = record.languages.tags
        source, target = (language if language in tags else None for language in languages)
        begun = known.start_id if known.forced_id is None else known.forced_id
        target = next((name for name, id in tags.items() if id == begun), target)
        if target is not None and record.languages.target_tag == "start":
            ids["start_id"] = tags[target]
        languages = (source, target)
        tokenizer = tokenizer.for_languages(*languages)
    mapped = _mapped_files(folder)
    model = import_model(config, _stored_tensors(folder, mapped), ids)
    return HuggingFaceFolder(model_type, model, tokenizer, languages, mapped)


class HuggingFaceHeads(NamedTuple):
    """The output heads of a Hugging Face encoder, as its weights and configuration show them."""

    masked_language: bool
    """True if the model has a head that predicts masked tokens."""
    labels: tuple[str, ...]
    """Names of the classes of texts or of the labels of tokens; empty for a model without such a head."""
    length: int
    """Maximum number of tokens of a text, which is the number of the encoder's learned positions."""
    labels_tokens: bool
    """True if the labels are predicted for each token, False if for the whole text."""
    unused: str | None
    """What a head does that no task here uses, such as "predicts a number"; None if the model has no such head."""


def hugging_face_heads(folder: Path) -> HuggingFaceHeads | None:
    """Return the output heads of a Hugging Face encoder; None if the folder's model is no encoder.

    Raises:
        TransduceError: the model cannot be imported, or its weights are missing.
    """
    if hugging_face_kind(folder) != "encoder":
        return None
    config = _config(folder)
    heads = encoder_heads(config, _stored_tensors(folder, _mapped_files(folder)))
    classes, problem = heads["num_labels"], config.get("problem_type")
    # Neither a multi-label classifier nor a regression assigns exactly one of several classes.
    has_one_label = classes > 1 and problem in (None, "single_label_classification")
    unused, architectures = None, config.get("architectures")
    names = map(str, architectures if isinstance(architectures, list) else ())
    if classes and not has_one_label:
        is_number = classes == 1 or problem == "regression"
        unused = "predicts a number" if is_number else "assigns several labels at once"
    elif any(name.endswith("ForNextSentencePrediction") for name in names):
        unused = "predicts whether one text follows another"
    return HuggingFaceHeads(
        heads["masked_language_head"],
        _label_names(config, classes) if has_one_label else (),
        _settings(folder, config)["max_positions"],
        heads["token_labels"],
        unused,
    )


def _settings(folder: Path, config: Mapping[str, Any]) -> Settings:
    """Return the fields of `ModelConfig` for a checked `config.json` of Hugging Face: a dict from field to value."""
    return IMPORT_FAMILIES[str(config["model_type"])].settings(ConfigReader(config, str(folder / "config.json")))


def _label_names(config: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    """Return the names of the classes in a Hugging Face configuration: a tuple of `classes` different names.

    The names are those of `id2label`. A class without a name is named LABEL_ and its number, as in transformers. A
    class that shares its name with another class is also renamed in this way. If the names still are not all different,
    every class is named LABEL_ and its number.
    """
    id2label = config.get("id2label")
    labels = id2label if isinstance(id2label, dict) else {}
    numbered = tuple(f"LABEL_{number}" for number in range(classes))
    stated = tuple(str(labels.get(str(number), name)) for number, name in enumerate(numbered))
    names = tuple(name if stated.count(name) == 1 else default for name, default in zip(stated, numbered, strict=True))
    return names if len(set(names)) == classes else numbered


def hugging_face_notes(folder: Path) -> tuple[str, ...]:
    """Return a tuple of notes for the user who imports a Hugging Face folder.

    A note mentions a language model's chat template, an encoder's output head that no task here uses, or an encoder's
    labels that had to be renamed.

    Raises:
        TransduceError: the model cannot be imported, or a file is missing or cannot be read.
    """
    kind, notes = hugging_face_kind(folder), list[str]()
    if kind == "decoder" and read_chat_template(_tokenizer_files(folder)) is not UNSET:
        notes.append(
            f"{folder} has a chat template: `transduce generate --chat`, `Generator.chat` and the server apply it."
        )
    if (heads := hugging_face_heads(folder)) is None:
        return tuple(notes)
    if (purpose := heads.unused) is not None:
        notes.append(
            f"The head of {folder} {purpose}, which no task here uses: the model serves for vectors of texts and as a "
            "base model (`--init-from`)."
        )
    stated = _config(folder).get("id2label")
    renamed = [
        f"{name} → {label}"
        for number, label in enumerate(heads.labels)
        if isinstance(stated, dict) and (name := str(stated.get(str(number), label))) != label
    ]
    if renamed:
        notes.append(
            f"Several labels in {folder}/config.json have the same name, so they are numbered: {shown_names(renamed)}."
        )
    return tuple(notes)


_SPECIAL_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def read_chat_template(files: TokenizerFiles) -> ChatTemplate | UnsetType:
    """Return the chat template of a Hugging Face folder with its special tokens; UNSET if there is none.

    The template is in chat_template.jinja. Without this file, it is in tokenizer_config.json or chat_template.json. Of
    several named templates there, the one named `default` is returned.

    Raises:
        TransduceError: a file cannot be read.
    """
    settings = files.settings
    if (content := files.read(_CHAT_TEMPLATE)) is not None:
        source: Any = content.decode("utf-8", "replace")
    else:
        source = settings.get("chat_template") or files.json("chat_template.json").get("chat_template")
    if isinstance(source, list):
        named = {each.get("name"): each.get("template") for each in source if isinstance(each, dict)}
        source = named.get("default")
    if not source or not isinstance(source, str):
        return UNSET
    tokens = settings if "added_tokens_decoder" in settings else settings | files.json("special_tokens_map.json")
    texts = {name: text for name in _SPECIAL_TOKENS if (text := text_of(tokens.get(name))) is not None}
    return ChatTemplate(source=source, special_tokens=texts)


def hugging_face_context(folder: Path) -> int | None:
    """Return the maximum number of positions (tokens) that a folder's config.json states; None if it states none.

    A number below 2 counts as none.

    Raises:
        TransduceError: the configuration cannot be read.
    """
    content = read_config_json(folder)
    length = content.get("max_position_embeddings")
    return length if isinstance(length, int) and length >= 2 else None


def hugging_face_search_settings(folder: Path) -> SearchSettings:
    """Return the default search settings of a Hugging Face folder, from its generation_config.json and config.json.

    Raises:
        TransduceError: a file cannot be read, the model is not supported, or the folder uses a search option that is
            not.
    """
    config = _config(folder)
    settings = _settings(folder, config)
    is_short = settings.get("positions") == "learned" and settings["max_positions"] <= _SHORT_TABLE
    max_positions = settings["max_positions"] if is_short else None
    generation = read_optional_json(folder, "generation_config.json")
    return import_generation(generation, config, str(folder), max_positions=max_positions)


def refuse_adapter(folder: Path) -> None:
    """Raise an error if a folder holds a PEFT adapter, alone or beside a Hugging Face model.

    transformers applies an adapter beside a model, so that the model alone would give other results.

    Raises:
        TransduceError: the folder holds an adapter, and no model of transduce.
    """
    adapter = read_optional_json(folder, "adapter_config.json")
    if not adapter:
        return
    if not (folder / "config.json").is_file():
        base = adapter.get("base_model_name_or_path", "another model")
        raise TransduceError(
            f"{folder} holds only a PEFT adapter of {base}: merge both in PEFT "
            "(`merge_and_unload`, then `save_pretrained`), and name the folder that this writes."
        )
    if "transduce" not in read_config_json(folder):
        raise TransduceError(
            f"{folder} holds a PEFT adapter beside the model, which transformers applies: merge both in PEFT "
            "(`merge_and_unload`, then `save_pretrained`), and name the folder that this writes; or move "
            "adapter_config.json away to use the model without it."
        )


def check_hugging_face_folder(folder: Path) -> str:
    """Check that a Hugging Face folder can be imported, and return its `model_type`.

    Raises:
        TransduceError: the folder is missing, holds no model or holds a PEFT adapter; or its model is not supported, or
            is in the format of transduce already.
    """
    if not folder.exists():
        raise TransduceError(f"{folder} does not exist: name the folder of a model.")
    refuse_adapter(folder)
    if not (folder / "config.json").is_file():
        raise TransduceError(
            f"A Hugging Face folder holds a config.json, but {folder} does not: name the folder of a model"
            f"{', not a file in it' if folder.is_file() else ''}."
        )
    if "transduce" in read_config_json(folder):
        raise TransduceError(f"{folder} holds a model of transduce already: use it as it is.")
    return str(_config(folder)["model_type"])


def _config(folder: Path) -> dict[str, Any]:
    config = read_config_json(folder)
    check_config(config, str(folder / "config.json"))
    return config


def _model_ids(config: Mapping[str, Any], generation: Mapping[str, Any], model_type: str) -> ModelIds:
    size = config.get("vocab_size")
    target_size = config.get("decoder_vocab_size") or size
    if not isinstance(size, int) or not isinstance(target_size, int):
        raise TransduceError(f"config.json must say `vocab_size`, a whole number, but says {size!r}.")
    ends, family = end_ids(config), IMPORT_FAMILIES[model_type]
    if family.kind == "decoder":  # generation_config.json takes precedence over config.json
        # GPT-2's default, 50256, is outside of smaller vocabularies; no text ends there.
        ends = tuple(id for id in end_ids(generation) or ends if id < size)
    pad_id = config.get("pad_token_id")
    return ModelIds(
        model_type=model_type,
        sizes=(size, target_size),
        pad_id=pad_id if isinstance(pad_id, int) and pad_id >= 0 else None,
        eos_id=ends[0] if ends and not family.end_is_separator else None,
        other_ends=ends[1:] if family.kind == "decoder" else (),
        start_id=start_id(generation, config),
        forced_id=ConfigReader(generation or config, "").optional_id("forced_bos_token_id"),
    )


def _tokenizer_files(folder: Path) -> TokenizerFiles:
    def read(name: str) -> bytes | None:
        return read_bounded(folder, name, MAX_VOCABULARY_BYTES) if (folder / name).exists() else None

    return TokenizerFiles(read, str(folder))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# --- weights ---


def _mapped_files(folder: Path) -> list[MappedTensors]:
    """Map a folder's model.safetensors, or all files that its index lists; return a list of the mapped files.

    Raises:
        TransduceError: the folder has neither, or a file is damaged.
    """
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
    return [MappedTensors(folder, name, whole_numbers=None) for name in names]


def _stored_tensors(folder: Path, files: Sequence[MappedTensors]) -> StoredTensors:
    """Return a mapping of tensors by name in all mapped files; a tensor is read only when it is accessed."""
    return StoredTensors({name: partial(file.tensor, name) for file in files for name in file.entries}, str(folder))


def _no_weights(folder: Path) -> TransduceError:
    pickled = next((name for name in _PICKLES if (folder / name).is_file()), None)
    if pickled is None:
        return TransduceError(f"{folder} must hold {_WEIGHTS}, but does not: copy the folder again.")
    return TransduceError(
        f"{folder} holds its weights as {pickled}, which is not opened because it could run code: save the model as "
        "safetensors where you trust it, and copy that."
    )
