"""Write model folders, including those of models from your own training loop (`transduce.save`)."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import torch
from msgspec import UNSET
from torch import Tensor, nn

from transduce.argument_checks import as_path
from transduce.atomic_io import file_sha256, json_bytes, lock_output, replace_file, write_file, write_json
from transduce.errors import TransduceError, explain_wrong_types, shown_names, shown_value, warn, writing_remedy
from transduce.interop.components import MAXIMUM_POSITIONS
from transduce.interop.hugging_face.export import config_json, generation_config, stored_tensors, tokenizer_files
from transduce.interop.hugging_face.import_weights import LazyTensors, all_finite
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.interop.hugging_face.token_pipelines import flags_of
from transduce.interop.vocabulary_files import extend_tokenizer
from transduce.model.build import build_any_model, check_registered, difference_from_config, forward_hooks
from transduce.model.config import ModelConfig
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Decoder, Transformer
from transduce.model_folder.cards import SERIES_CARD, labels_among
from transduce.model_folder.load import precision_of
from transduce.model_folder.read import (
    CONFIG,
    FORMAT_VERSION,
    MANIFEST,
    SETTINGS_FILE,
    VOCABULARIES,
    WEIGHTS,
    Manifest,
    check_tokenizer,
)
from transduce.model_folder.safety import MAX_VOCABULARY_BYTES, file_inside, read_bounded, read_optional_json
from transduce.model_folder.tensor_files import write_tensors
from transduce.search.settings import SearchSettings
from transduce.text.languages import valid_language
from transduce.text.tokenizer import TOKENIZER_CARD, Tokenizer

# --- tokenizer files ---
# The files of a Hugging Face tokenizer are kept in an imported model's folder, so that transformers can open it.


_TOKENIZER_SETTINGS = "tokenizer_config.json"
_VOCABULARIES = (
    *("tokenizer.json", "vocab.json", "target_vocab.json", "vocab.txt", "merges.txt", "source.spm", "target.spm"),
    *("spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "sentencepiece.model"),
)
_TABLES = (
    *("special_tokens_map.json", "added_tokens.json", "generation_config.json"),
    *("chat_template.jinja", "chat_template.json"),
)


def has_original_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a vocabulary file of a Hugging Face tokenizer, such as tokenizer.json."""
    return any((folder / name).is_file() for name in _VOCABULARIES)


def read_original_tokenizer(folder: Path, languages: tuple[str | None, str | None]) -> dict[str, bytes]:
    """Return the tokenizer files of a Hugging Face folder: a dict from file names to bytes.

    Chat templates and generation_config.json are included. Named templates and the tokenizer's class are moved to
    tokenizer_config.json if they are stored elsewhere. A reference to custom code (`auto_map`) is removed there.

    Args:
        folder: the folder with the files.
        languages: source and target language. Each replaces the language in tokenizer_config.json, if one is set there;
            None: unchanged.

    Raises:
        TransduceError: a file cannot be read.
    """
    names = [name for name in (*_VOCABULARIES, *_TABLES) if (folder / name).is_file()]
    files = {name: read_bounded(folder, name, MAX_VOCABULARY_BYTES) for name in names}
    settings, config = (read_optional_json(folder, name) for name in (_TOKENIZER_SETTINGS, "config.json"))
    if named := sorted(file_inside(folder, "additional_chat_templates").glob("*.jinja")):
        # The same templates are a list in tokenizer_config.json, so that no further folder is needed.
        contents = {path.stem: read_bounded(path.parent, path.name, MAX_VOCABULARY_BYTES) for path in named}
        if (default := files.pop("chat_template.jinja", None)) is not None:
            contents["default"] = default
        settings["chat_template"] = [
            {"name": name, "template": content.decode("utf-8", "replace")} for name, content in contents.items()
        ]
    # Earlier versions of transformers name the class in config.json, which is not kept.
    settings |= {name: config[name] for name in ("tokenizer_class",) if config.get(name) and not settings.get(name)}
    if settings:
        settings.pop("auto_map", None)  # names custom code, which is never run
        for side, language in zip(("src_lang", "tgt_lang"), languages, strict=True):
            if side in settings and language is not None:
                settings[side] = language
        files[_TOKENIZER_SETTINGS] = json_bytes(settings)
    return files


def with_added_tokens(files: Mapping[str, bytes], tokenizer: ImportedTokenizer) -> dict[str, bytes]:
    """Return the files of a Hugging Face tokenizer, extended by the symbols that only `tokenizer` has.

    A user may define such symbols for a training run. They are appended to the added tokens of tokenizer.json. If there
    is no tokenizer.json, the files are returned unchanged.

    Args:
        files: the content of the files by name.
        tokenizer: the tokenizer of the model.

    Returns:
        The content of the files by name.

    Raises:
        TransduceError: a file of the tokenizer cannot be read.
    """
    if "tokenizer.json" not in files:
        return dict(files)
    try:
        content, settings, named, numbered = (
            msgspec.json.decode(files.get(name, b"{}"), type=dict[str, Any])
            for name in ("tokenizer.json", _TOKENIZER_SETTINGS, "special_tokens_map.json", "added_tokens.json")
        )
        added = list(content["added_tokens"])
        tokens = [value for name, value in settings.items() if name.endswith(("_token", "_special_tokens"))]
        decoded = list(settings.get("added_tokens_decoder", {}).values())
        known = {*numbered, *_texts([added, decoded, named, tokens])}
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise TransduceError(f"The files of the model's tokenizer cannot be read: {error!r}.") from error
    record = tokenizer.record.source
    missing = [symbol for symbol in record.all_symbols() if symbol.text not in known]
    if not missing:
        return dict(files)
    missing.sort(key=lambda symbol: record.ids[symbol.text])
    added += [{"id": record.ids[symbol.text], "content": symbol.text} | flags_of(symbol) for symbol in missing]
    return dict(files) | {"tokenizer.json": json_bytes(content | {"added_tokens": added})}


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of tokens in decoded JSON: strings, or objects with a `content`, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and "content" in value:
        yield value["content"]
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def carry_original_tokenizer(
    base: Path, folder: Path, languages: tuple[str | None, str | None], before: Tokenizer, now: Tokenizer
) -> None:
    """Copy a base model's Hugging Face tokenizer files to a run's folder, if they describe the run's tokenizer.

    The symbols that the run added to the vocabulary are added to tokenizer.json. A chat template is left out if the
    run's tokenizer has none. generation_config.json is left out, because the run writes its own.

    Nothing is copied if the base model was not imported from Hugging Face, or if the run's tokenizer differs by more
    than added symbols. Nothing is copied if symbols were added and there is no tokenizer.json. Nothing is copied for a
    language model of single lines whose tokenizer has no start tokens: here its lines begin with the end symbol.

    Args:
        base: the base model's folder.
        folder: the run's folder.
        languages: source and target language.
        before: the base model's tokenizer.
        now: the run's tokenizer.

    Raises:
        TransduceError: a file cannot be read, or would replace a different one.
    """
    if not isinstance(before, ImportedTokenizer) or not isinstance(now, ImportedTokenizer):
        return
    if before.target.keeps_line_feeds and not now.target.keeps_line_feeds:
        if not now.source.before:
            return
        before = before.line_by_line()
    added = [each for each in now.record.source.symbols if each not in before.record.source.symbols]
    extended = extend_tokenizer(before, [each for each in added if isinstance(each, str)])
    if now.fingerprint != extended.fingerprint or (added and not (base / "tokenizer.json").is_file()):
        return
    files = with_added_tokens(read_original_tokenizer(base, languages), now)
    files.pop("generation_config.json", None)
    if now.record.chat_template is UNSET:
        settings = msgspec.json.decode(files.get(_TOKENIZER_SETTINGS, b"{}"), type=dict[str, Any])
        files = {name: content for name, content in files.items() if not name.startswith("chat_template.")}
        if settings.pop("chat_template", None) is not None:
            files[_TOKENIZER_SETTINGS] = json_bytes(settings)
    for name, content in files.items():
        if (folder / name).exists() and (folder / name).read_bytes() != content:
            raise TransduceError(f"{folder / name} would be replaced by a run's: name another folder with --out.")
    for name, content in files.items():
        write_file(folder / name, content)


# --- settings.toml ---


def to_toml(settings: msgspec.Struct | Mapping[str, Any]) -> str:
    """Return settings as the text of a TOML file; settings that are None are left out."""
    return "\n".join(_toml_lines(msgspec.to_builtins(settings), "")).strip() + "\n"


def _toml_lines(content: Mapping[str, Any], prefix: str) -> Iterable[str]:
    for key, value in content.items():
        if value is not None and not isinstance(value, Mapping):
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield f"\n[{prefix}{key}]"
            yield from _toml_lines(value, f"{prefix}{key}.")


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else msgspec.json.encode(key).decode()


_BARE_KEY = re.compile("[A-Za-z0-9_-]+")


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items() if item is not None)
            + "}"
        )
    # JSON strings, numbers and booleans are valid TOML, except for DEL, which TOML requires to be escaped.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


# --- writing ---
# Every file is replaced atomically. The weights and their digest are in two files, so the manifest lists the old and
# the new digest while the weights change. The folder is thus consistent at every moment.


_PARTIAL_WEIGHTS = f".partial-{WEIGHTS}"


class TransformersContent(NamedTuple):
    """The content of a model folder that only Hugging Face's transformers reads."""

    files: Mapping[str, bytes] = MappingProxyType({})
    """The files of a Hugging Face tokenizer by name, such as `read_original_tokenizer` returns; they replace files of
    the same names that the folder has for transformers, and the manifest does not list them.
    """
    search: SearchSettings | None = None
    """The model's search settings, for `generate` of transformers; None: unknown."""
    max_positions: int | None = None
    """The maximum number of tokens that config.json states; None: 1,024. Tables of sinusoids get as many rows. Learned
    positions have a limit of their own.
    """
    is_export: bool = False
    """True for an export to Hugging Face, whose class may hold some weights rounded."""


_NOTHING_MORE = TransformersContent()


def write_model_folder(
    folder: Path,
    *,
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    languages: tuple[str | None, str | None],
    documents: Mapping[str, str],
    for_transformers: TransformersContent = _NOTHING_MORE,
) -> None:
    """Write or replace a complete model folder.

    Args:
        folder: the folder.
        weights: the weights by parameter name, float32; each is taken from the mapping when it is written.
        config: the model's configuration.
        tokenizer: the tokenizer; None for a model of time series.
        languages: language codes of source and target.
        documents: further text files by name, such as the settings and README.md.
        for_transformers: further content, which only Hugging Face's transformers reads.

    Raises:
        TransduceError: the weights do not fit the configuration or are not finite, they cannot be written, for example
            because the disk is full, or another process writes this folder.
    """
    _check_weights(folder, weights, config)
    files, search, max_positions, is_export = for_transformers
    max_positions = MAXIMUM_POSITIONS if max_positions is None else min(max_positions, _MAX_TABLE_ROWS)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_output(folder / WEIGHTS):
        partial_file = folder / _PARTIAL_WEIGHTS
        try:
            # The weights come first: if one cannot be read or written, nothing else is.
            digest = _write_weights(partial_file, weights, config, max_positions, is_export=is_export)
            labels = labels_among(documents)
            write_json(folder / CONFIG, config_json(config, labels, weights.keys(), max_positions, is_export=is_export))
            if tokenizer is not None:
                if (generation := generation_config(config, tokenizer.target.unk_id, search)) is not None:
                    write_json(folder / "generation_config.json", generation)
                tokenizer.save(folder)
                for name, value in tokenizer_files(tokenizer, config, languages).items():
                    write_json(folder / name, value)
            texts = {name: text.encode() for name, text in documents.items()}
            for name, content in (texts | dict(files)).items():
                write_file(folder / name, content)
            _write_manifest(folder, languages, [digest, *_known_digests(folder)], files)
            replace_file(partial_file, folder / WEIGHTS)
        finally:
            partial_file.unlink(missing_ok=True)  # frees space on a full disk
        _write_manifest(folder, languages, [digest], files)


def was_interrupted(folder: Path) -> bool:
    """Return whether a process died while it wrote a new model to a folder, which thus holds no complete model."""
    return (folder / _PARTIAL_WEIGHTS).exists() and not (folder / WEIGHTS).exists()


def _check_weights(folder: Path, weights: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Check that weights have the names and shapes that a configuration describes, as reading the folder demands.

    Raises:
        TransduceError: a weight is missing, unexpected, or has another shape.
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        described = build_any_model(config).state_dict()
    templates = _templates_of(weights)
    missing, unexpected = (sorted(each) for each in (described.keys() - templates, templates.keys() - described))
    reshaped = [name for name in described.keys() & templates if described[name].shape != templates[name].shape]
    if missing or unexpected or reshaped:
        raise TransduceError(
            f"The weights for {folder} are not those that the model's configuration describes, so nothing was written: "
            f"missing {shown_names(missing)}; unexpected {shown_names(unexpected)}; of other shapes "
            f"{shown_names(sorted(reshaped))}."
        )


def _templates_of(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return a mapping of tensors that have the names, shapes and types of weights, without reading lazy weights."""
    return weights.templates if isinstance(weights, LazyTensors) else weights


# No model has more positions; it bounds tables of sinusoids, which are written.
_MAX_TABLE_ROWS = 1 << 20


def _write_weights(
    path: Path, weights: Mapping[str, Tensor], config: ModelConfig, max_positions: int, *, is_export: bool
) -> str:
    """Write the content of a folder's model.safetensors to `path`, and return its SHA-256 (hexadecimal).

    Weights are taken from the mapping one after the other, so that only one must be in memory. Tables of sinusoids have
    `max_positions` rows. In an export to Hugging Face (`is_export`), some weights may be rounded.

    Raises:
        TransduceError: a weight is not finite, or the file cannot be written, for example because the disk is full.
    """

    def finite(name: str) -> Tensor:
        if not all_finite(tensor := weights[name]):
            raise TransduceError(
                f"`{name}` has values that are not finite (NaN or infinite), so nothing was written to {path.parent}: "
                "write the model of an earlier step."
            )
        return tensor

    # Numbers of more bytes come first, so that each tensor is aligned to the size of its numbers.
    templates = _templates_of(weights)
    names = sorted(templates, key=lambda name: -templates[name].itemsize)
    shapes = {name: templates[name].to("meta") for name in names}
    in_order = LazyTensors({name: partial(finite, name) for name in names}, shapes)
    try:
        return write_tensors(
            path,
            dict(stored_tensors(shapes, config, max_positions, is_export=is_export)),
            stored_tensors(in_order, config, max_positions, is_export=is_export),
            {"format": "pt"},
        )
    except OSError as error:
        raise TransduceError(
            f"{path.with_name(WEIGHTS)} cannot be written ({error.strerror}): {writing_remedy(error)}, then run the "
            "command again."
        ) from error


def _known_digests(folder: Path) -> list[str]:
    """Return a list of the digests that a folder's manifest lists for the weights file.

    The list has several digests if writing was interrupted. It is empty if there is no manifest or it cannot be read.
    """
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest).sha256.get(WEIGHTS, [])
    except (OSError, msgspec.MsgspecError):
        return []


def _write_manifest(
    folder: Path, languages: tuple[str | None, str | None], weights: list[str], unlisted: Collection[str]
) -> None:
    names = (CONFIG, TOKENIZER_CARD, SERIES_CARD, *VOCABULARIES)
    other_files = [name for name in names if (folder / name).exists() and name not in unlisted]
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        versions={name: version(name) for name in ("torch", "sentencepiece", "numpy", "transduce")},
        source_language=languages[0],
        target_language=languages[1],
        sha256={WEIGHTS: weights} | {name: [file_sha256(folder / name)] for name in other_files},
    )
    write_json(folder / MANIFEST, manifest)


# --- transduce.save ---


@explain_wrong_types
def save(
    model: Transformer | Recurrent | Decoder,
    folder: str | Path,
    *,
    tokenizer: Tokenizer,
    languages: tuple[str | None, str | None] = (None, None),
) -> None:
    """Write a model folder: weights in float32, configuration, tokenizer and manifest.

    Opening the folder builds the model that the configuration describes. So a model that differs from it is refused:
    layers of your own that are not registered (`transduce.register`), changed attributes, weights that are not merged.
    Forward hooks are not saved; a warning names them. Dropout rates may differ.

    If Hugging Face has a class for the model, that class can read the folder, too, except Gemma's. An earlier save is
    replaced file by file and stays readable throughout, so a training loop can save repeatedly.

    Args:
        model: a model on any device, in fp32 or bf16; it is not changed.
        folder: a new or empty folder, or one that `save` wrote.
        tokenizer: the tokenizer whose ids the model was trained with.
        languages: language codes of source and target, for scores and the service; None if there is none.

    Raises:
        TransduceError: the model is of another kind, is in int8 or on the meta device, or differs from what its
            configuration describes; the tokenizer does not match; a weight is not finite; or the folder holds something
            else.
    """
    folder = as_path(folder, "The folder to save in")
    _check_kind(model)
    if not isinstance(tokenizer, Tokenizer):
        raise TransduceError(f"`tokenizer` must be a Tokenizer, but is {shown_value(tokenizer)}.")
    check_tokenizer(tokenizer, model.config, "`save`")
    _check_languages(languages)
    _check_folder(folder)
    _check_saved_alone(model)
    write_model_folder(
        folder,
        weights={name: tensor.to("cpu", torch.float32) for name, tensor in model.state_dict().items()},
        config=model.config,
        tokenizer=tokenizer,
        languages=languages,
        documents={},
    )


def _check_kind(model: object) -> None:
    if not isinstance(model, Transformer | Recurrent | Decoder):
        held = (name for name in ("_orig_mod", "module") if isinstance(getattr(model, name, None), nn.Module))
        wrapped = next(held, None) if isinstance(model, nn.Module) else None
        remedy = "for what `load` returned, pass its `model`" if wrapped is None else f"pass the model in `{wrapped}`"
        raise TransduceError(
            f"`save` takes a Transformer, a recurrent model or a decoder of transduce, not {type(model).__name__}: "
            f"{remedy}."
        )
    if precision_of(model) == "int8":
        raise TransduceError(
            "The model's weights are quantized to 8 bits, but a folder holds them in float32: load the model with "
            '`precision="fp32"`, and save that.'
        )
    without_values = next((name for name, tensor in model.state_dict().items() if tensor.is_meta), None)
    if without_values is not None:
        raise TransduceError(
            f"The weight `{without_values}` is on PyTorch's meta device, which holds no values: fill the model by "
            '`model.to_empty(device="cpu")` and `load_state_dict` before `save`.'
        )


def _check_saved_alone(model: Transformer | Recurrent | Decoder) -> None:
    """Check that a model computes what its configuration and weights say, and warn of forward hooks.

    Raises:
        TransduceError: the model differs from the one that its configuration describes, or a registered component
            gives other outputs in decoding or in batches than in training.
    """
    check_registered(model.config)
    if (difference := difference_from_config(model)) is not None:
        raise TransduceError(
            f"A folder holds only what the model's configuration describes, but {difference.what}: {difference.remedy}."
        )
    if hooked := forward_hooks(model):
        warn(
            f"The saved model is without its forward hooks (on {shown_names(hooked)}): if they change what it "
            "computes, the model in the folder computes something else."
        )


def _check_languages(languages: tuple[str | None, str | None]) -> None:
    if not isinstance(languages, tuple | list) or len(languages) != 2:
        raise TransduceError(f"`languages` must be two codes, such as zh and en, but is {languages!r}.")
    for code in languages:
        if code is not None and not (isinstance(code, str) and valid_language(code)):
            raise TransduceError(f"`languages` must be language codes such as zh or en, but one is {code!r}.")


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise TransduceError(f"{folder} is a file: name another folder to save in.")
    if (folder / SETTINGS_FILE).exists():
        raise TransduceError(
            f"{folder} holds a run or an imported model, which `save` does not replace: name another folder."
        )
    if any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise TransduceError(f"{folder} holds other files: name a new or an empty folder to save in.")
