"""The weights of a Hugging Face folder as ours: what is there decides about heads and ties, and all of it is used.

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
    """What a folder's weights are called, and how each is read."""

    def __init__(self, names: Mapping[str, Callable[[], Tensor]], place: str) -> None:
        """`place` names the folder in messages."""
        self.names = names
        self.place = place

    def read(self, name: str) -> Tensor:
        """A tensor, in float32."""
        return self.names[name]().float()

    def with_prefix(self, prefix: str) -> "StoredTensors":
        """The same under the names of a model with heads, and under the newer of two names of a norm's weights."""
        bare = prefix and not any(name.startswith(prefix) for name in self.names)
        renamed = {(prefix if bare else "") + name: read for name, read in self.names.items()}
        modern = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
        for old, new in modern:
            renamed = {name.replace(old, new): read for name, read in renamed.items()}
        return StoredTensors(renamed, self.place)


class ImportedModel(NamedTuple):
    """A configuration and the weights for it, by our names."""

    config: ModelConfig
    weights: dict[str, Tensor]


def import_model(content: Mapping[str, Any], stored: StoredTensors, special_ids: dict[str, int]) -> ImportedModel:
    """The model that a folder holds.

    Args:
        content: of its `config.json`.
        stored: its weights.
        special_ids: `eos_id` and `start_id`, as far as other files than the configuration tell them.

    Raises:
        TransduceError: the bricks here cannot compute it, or tensors are missing, unexpected or of another shape.
    """
    place = f"{stored.place}/config.json"
    known, model_type = check_config(content, place), content["model_type"]
    reader = ConfigReader(content, place)
    settings = known.settings(reader) | special_ids
    stored = stored.with_prefix(known.names.prefix)
    family = names_of(model_type, stored.names)
    needs_output = known.stores_output and not reader.flag("tie_word_embeddings", default=False)
    tables = _tables(family, stored, settings, needs_output=needs_output)
    settings |= _ties(tables, settings["pad_id"]) | encoder_heads(model_type, stored)
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
    """Embeddings of both sides and the output projection, (V, D) each; often all the same."""

    source: Tensor
    target: Tensor
    output: Tensor


def _tables(family: Family, stored: StoredTensors, settings: Mapping[str, Any], *, needs_output: bool) -> _Tables:
    candidates = [name for name in (family.shared, family.source, family.target, family.output) if name is not None]
    present = [name for name in candidates if name in stored.names]
    if not present or (needs_output and family.output not in present):
        missing = [family.output] if present else [family.shared]
        raise _wrong_tensors(stored, missing=[str(name) for name in missing], unexpected=[])
    read = {name: stored.read(name) for name in present}
    for name, table in read.items():
        if table.dim() != 2:
            raise TransduceError(
                f"{stored.place}: {name} must have a row for each piece, but has the shape {tuple(table.shape)}."
            )
    shared = read[family.shared] if family.shared in read else read[present[0]]
    target = read.get(str(family.target), shared)
    output = read.get(str(family.output), target)
    if settings["kind"] != "transformer":
        return _Tables(shared, shared, output)
    return _Tables(read.get(str(family.source), shared), target, output)


def _ties(tables: _Tables, pad_id: int) -> dict[str, bool]:
    """Tables with the same values are one."""
    tied = _same(tables.source, tables.target)
    zero = all(pad_id < len(table) and not bool(table[pad_id].any()) for table in (tables.source, tables.target))
    return {
        "tie_source_target": tied,
        "tie_output": _same(tables.output, tables.target),
        "zero_padding_row": zero,
    }


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)


def encoder_heads(model_type: str, stored: StoredTensors) -> dict[str, Any]:
    """Which heads of an encoder are there, as settings of ours; nothing of models of other kinds."""
    if FAMILIES[model_type].kind != "encoder":
        return {}
    label = next((name for name in ("classifier.weight", "classifier.out_proj.weight") if name in stored.names), None)
    masked = {"cls.predictions.transform.dense.weight", "lm_head.dense.weight"}
    pooled = {"bert.pooler.dense.weight", "roberta.pooler.dense.weight"}
    if "classifier.dense.weight" in stored.names:
        pooled = set()  # RoBERTa's classifier has a layer of its own in its place
    return {
        "masked_language_head": bool(masked & set(stored.names)),
        "pooler": bool(pooled & set(stored.names)),
        "num_labels": 0 if label is None else len(stored.read(label)),
    }


def _output_bias(family: Family, stored: StoredTensors, *, masked: bool) -> Tensor | None:
    """The bias on the logits, (V,), where there is one that is not zero everywhere."""
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
    """All parameters but the tables, and proof that nothing is missing or left over."""
    with torch.device("meta"):
        outline = build_model(config)
    own = ("source_weight", "own_target_weight", "own_output_weight", "output_bias")
    wanted = {name: find_names(family.names, name) for name, _ in outline.named_parameters() if name not in own}
    used = {family.shared, family.source, family.target, family.output, *family.output_bias}
    missing = [name for name, entry in wanted.items() if entry is None]
    for entry in wanted.values():
        if entry is not None:
            used.update(entry.theirs)
            missing += [name for name in entry.theirs if name not in stored.names]
    ignored = re.compile(family.ignored)
    unexpected = [name for name in stored.names if name not in used and not ignored.fullmatch(name)]
    if missing or unexpected:
        raise _wrong_tensors(stored, missing=sorted(missing), unexpected=sorted(unexpected))
    weights = {}
    for name, entry in wanted.items():
        if entry is not None:
            parts = [stored.read(part) for part in entry.theirs]
            parts = [part.t() if entry.transposed and part.dim() == 2 else part for part in parts]
            weights[name] = _joined(parts, entry.theirs, stored.place)
    return weights


def _joined(parts: list[Tensor], names: Sequence[str], place: str) -> Tensor:
    """The rows of several tensors, one below another."""
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
    """Where sinusoids are stored, they must be those that are computed here."""
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
        outline = build_model(config)
    for name, parameter in outline.named_parameters():
        if weights[name].shape != parameter.shape:
            raise TransduceError(
                f"{place}: {name} must have the shape {tuple(parameter.shape)} by config.json, but has "
                f"{tuple(weights[name].shape)}."
            )
        if not bool(torch.isfinite(weights[name]).all()):
            raise TransduceError(f"{place}: {name} has values that are not finite (NaN or infinite).")
