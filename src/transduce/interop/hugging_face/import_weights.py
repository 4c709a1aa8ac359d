"""Import of the weights of a Hugging Face folder, whose tensors decide which heads and ties the model has.

Legend: V vocabulary, D model width.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.interop.hugging_face.import_families import FAMILIES, check_config, names_of
from transduce.interop.hugging_face.import_names import Family, find_names
from transduce.interop.hugging_face.import_settings import ConfigReader, check_sizes
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.positions import sinusoids


class StoredTensors:
    """The tensors of a folder by name, each read when it is needed."""

    def __init__(self, names: Mapping[str, Callable[[], Tensor]], place: str) -> None:
        """Store the functions that read the tensors by name; `place` is the folder's name in error messages."""
        self.names = names
        self.place = place

    def read(self, name: str) -> Tensor:
        """Read the tensor with this name, converted to float32."""
        return self.names[name]().float()

    def with_prefix(self, prefix: str) -> "StoredTensors":
        """Return the tensors under their current names.

        The names get the prefix that models with heads have, and norms' `gamma` and `beta` become `weight` and `bias`.
        """
        bare = prefix and not any(name.startswith(prefix) for name in self.names)
        renamed = {(prefix if bare else "") + name: read for name, read in self.names.items()}
        modern = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
        for old, new in modern:
            renamed = {name.replace(old, new): read for name, read in renamed.items()}
        return StoredTensors(renamed, self.place)


class ImportedModel(NamedTuple):
    """An imported model's configuration and its weights under this package's names."""

    config: ModelConfig
    weights: dict[str, Tensor]


def import_model(content: Mapping[str, Any], stored: StoredTensors, special_ids: dict[str, int]) -> ImportedModel:
    """Convert the model of a folder to a configuration and weights.

    Args:
        content: the content of its `config.json`.
        stored: the tensors of the folder.
        special_ids: `eos_id` and `start_id`, as far as files other than the configuration specify them.

    Raises:
        TransduceError: this package cannot compute the model, or tensors are missing, unexpected or of another shape.
    """
    place = f"{stored.place}/config.json"
    rules, model_type = check_config(content, place), content["model_type"]
    reader = ConfigReader(content, place)
    settings = rules.settings(reader) | special_ids
    stored = stored.with_prefix(rules.names.prefix)
    family = names_of(model_type, stored.names)
    needs_output = rules.stores_output and not reader.flag("tie_word_embeddings", default=False)
    tables = _read_tables(family, stored, settings, needs_output=needs_output)
    settings |= _ties(tables, settings["pad_id"]) | encoder_heads(content, stored)
    if settings.get("token_labels"):  # nothing reads the pooler that old files of taggers have
        family = family._replace(ignored=rf"{family.ignored}|(bert|roberta)\.pooler\.dense\.(weight|bias)")
    bias = _output_bias(family, stored, masked=settings.get("masked_language_head", True))
    config = _config(settings | {"output_bias": bias is not None}, place)
    weights = _collect(family, stored, config)
    weights["source_weight"] = tables.source
    if not config.tie_source_target:
        weights["own_target_weight"] = tables.target
    if not config.tie_output:
        weights["own_output_weight"] = tables.output
    if bias is not None:
        weights["output_bias"] = bias
    _check_shapes(weights, config, stored.place)
    _check_sinusoids(stored, config)
    return ImportedModel(config, weights)


class _Tables(NamedTuple):
    """The embedding tables of a model: source embeddings, target embeddings and output projection, (V, D) each."""

    source: Tensor
    target: Tensor
    output: Tensor


def _read_tables(family: Family, stored: StoredTensors, settings: Mapping[str, Any], *, needs_output: bool) -> _Tables:
    candidates = [name for name in (family.shared, family.source, family.target, family.output) if name is not None]
    present = [name for name in candidates if name in stored.names]
    if not present or (needs_output and family.output not in present):
        missing = [family.output] if present else [family.shared]
        raise _wrong_tensors(stored, missing=[str(name) for name in missing], unexpected=[])
    tables = {name: stored.read(name) for name in present}
    for name, table in tables.items():
        if table.dim() != 2:
            raise TransduceError(
                f"{stored.place}: {name} must have a row for each token, but has the shape {tuple(table.shape)}."
            )
    shared = tables[family.shared] if family.shared in tables else tables[present[0]]
    target = tables.get(str(family.target), shared)
    output = tables.get(str(family.output), target)
    if settings["kind"] != "transformer":
        return _Tables(shared, shared, output)
    return _Tables(tables.get(str(family.source), shared), target, output)


def _ties(tables: _Tables, pad_id: int) -> dict[str, bool]:
    """Return the settings of tied embeddings; tables with equal values count as tied."""
    source_is_target = _equal(tables.source, tables.target)
    zero_row = all(pad_id < len(table) and not bool(table[pad_id].any()) for table in (tables.source, tables.target))
    return {
        "tie_source_target": source_is_target,
        "tie_output": _equal(tables.output, tables.target),
        "zero_padding_row": zero_row,
    }


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)


def encoder_heads(config: Mapping[str, Any], stored: StoredTensors) -> dict[str, Any]:
    """Return the settings of an encoder's heads by its `config.json` and tensors; empty for other kinds of models."""
    model_type = config["model_type"]
    if FAMILIES[model_type].kind != "encoder":
        return {}
    label = next((name for name in ("classifier.weight", "classifier.out_proj.weight") if name in stored.names), None)
    masked = {"cls.predictions.transform.dense.weight", "lm_head.dense.weight"}
    pooled = {"bert.pooler.dense.weight", "roberta.pooler.dense.weight"}
    if "classifier.dense.weight" in stored.names:
        pooled = set()  # RoBERTa's classifier contains the pooler
    has_pooler = bool(pooled & set(stored.names))
    architectures = config.get("architectures")
    is_tagger = isinstance(architectures, list) and any(
        str(name).endswith("ForTokenClassification") for name in architectures
    )
    # Classifiers of texts have a pooler, and taggers have none, except in old files.
    labels_tokens = label == "classifier.weight" and (is_tagger or not has_pooler)
    return {
        "masked_language_head": bool(masked & set(stored.names)),
        "pooler": has_pooler and not labels_tokens,
        "num_labels": 0 if label is None else len(stored.read(label)),
        "token_labels": labels_tokens,
    }


def _output_bias(family: Family, stored: StoredTensors, *, masked: bool) -> Tensor | None:
    """Return the bias on the logits, (V,), or None if none is stored or all values are zero."""
    present = [name for name in family.output_bias if name in stored.names]
    if not present or not masked:
        return None
    bias = stored.read(present[-1]).flatten()
    return bias if bool(bias.any()) else None


def _config(settings: Mapping[str, Any], place: str) -> ModelConfig:
    try:
        config = msgspec.convert(dict(settings), ModelConfig)
    except (msgspec.ValidationError, TransduceError) as error:
        raise TransduceError(f"{place} describes no model that can be built: {str(error).rstrip('.')}.") from error
    check_sizes(place, config)
    return config


def _collect(family: Family, stored: StoredTensors, config: ModelConfig) -> dict[str, Tensor]:
    """Return all parameters but the embeddings and output projection.

    Raises:
        TransduceError: a tensor is missing or unused.
    """
    with torch.device("meta"):
        skeleton = build_model(config)
    tables = ("source_weight", "own_target_weight", "own_output_weight", "output_bias")
    entries = {name: find_names(family.names, name) for name, _ in skeleton.named_parameters() if name not in tables}
    used = {family.shared, family.source, family.target, family.output, *family.output_bias}
    missing = [name for name, entry in entries.items() if entry is None]
    for entry in entries.values():
        if entry is not None:
            used.update(entry.theirs)
            missing += [name for name in entry.theirs if name not in stored.names]
    ignored = re.compile(family.ignored)
    unexpected = [name for name in stored.names if name not in used and not ignored.fullmatch(name)]
    if missing or unexpected:
        raise _wrong_tensors(stored, missing=sorted(missing), unexpected=sorted(unexpected))
    weights = {}
    for name, entry in entries.items():
        if entry is not None:
            parts = [stored.read(part) for part in entry.theirs]
            parts = [part.t() if entry.transposed and part.dim() == 2 else part for part in parts]
            weights[name] = _concatenate(parts, entry.theirs, stored.place)
    return weights


def _concatenate(parts: list[Tensor], names: Sequence[str], place: str) -> Tensor:
    """Concatenate the rows of several tensors."""
    if len({(part.dim(), part.shape[1:]) for part in parts}) > 1 or parts[0].dim() == 0:
        shapes = {name: tuple(part.shape) for name, part in zip(names, parts, strict=True)}
        raise TransduceError(f"{place}: these tensors must have rows of one length, but have the shapes {shapes}.")
    return torch.cat(parts).contiguous()


def _wrong_tensors(stored: StoredTensors, *, missing: list[str], unexpected: list[str]) -> TransduceError:
    def shown(names: list[str]) -> str:
        return ", ".join(names) or "none"

    return TransduceError(
        f"{stored.place} does not hold the weights of its config.json: missing {shown(missing)}; unexpected "
        f"{shown(unexpected)}."
    )


def _check_sinusoids(stored: StoredTensors, config: ModelConfig) -> None:
    """Check that a stored table of sinusoids equals the computed one."""
    names = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    for name in (name for name in names if config.positions == "sinusoidal" and name in stored.names):
        table = stored.read(name)
        if table.dim() != 2 or table.shape[1] != config.d_model:
            raise TransduceError(f"{stored.place}: {name} must have rows of {config.d_model} numbers.")
        if not torch.allclose(table, sinusoids(len(table), config.d_model), atol=2e-3):
            raise TransduceError(
                f"{stored.place}: {name} must hold sines, then cosines, of the positions for a model that can be "
                "imported, but holds something else."
            )


def _check_shapes(weights: Mapping[str, Tensor], config: ModelConfig, place: str) -> None:
    with torch.device("meta"):
        skeleton = build_model(config)
    for name, parameter in skeleton.named_parameters():
        if weights[name].shape != parameter.shape:
            raise TransduceError(
                f"{place}: {name} must have the shape {tuple(parameter.shape)} by config.json, but has "
                f"{tuple(weights[name].shape)}."
            )
        if not bool(torch.isfinite(weights[name]).all()):
            raise TransduceError(f"{place}: {name} has values that are not finite (NaN or infinite).")
