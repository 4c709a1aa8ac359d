"""Import the weights of a Hugging Face folder.

The folder's tensors decide which heads the model has and which tables are tied.

Legend: V vocabulary, D model width.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.interop.hugging_face.import_settings import IMPORT_FAMILIES, ConfigReader, check_config, names_of
from transduce.interop.hugging_face.stored_names import (
    StoredNames,
    StoredParameter,
    check_rows,
    check_shape,
    find_names,
    wrong_tensors,
)
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.positions import sinusoids

# --- bounds ---
# Upper bounds on the sizes in an imported configuration, checked before a model is built from it.


# Larger than in any real model, yet small enough to build on the meta device in a moment.
_MAX_SIZE = 1 << 24
_MAX_LAYERS = 1_000
_MAX_POSITION_OFFSET = 1 << 16  # limits the size of the table of sinusoids


def check_sizes(location: str | Path, config: ModelConfig) -> None:
    """Reject a configuration with sizes that no model could have, before memory or time is spent on building it.

    Args:
        location: the file that the configuration comes from, for the message.
        config: the configuration; all of its integer settings are checked.

    Raises:
        TransduceError: a setting is negative or exceeds its limit.
    """
    for name, value in msgspec.to_builtins(config).items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        limit = _MAX_LAYERS if name.endswith("_layers") else _MAX_SIZE
        if name == "position_offset":
            limit = _MAX_POSITION_OFFSET
        if not 0 <= value <= limit:
            raise TransduceError(f"{location}: `{name}` must be from 0 to {limit:,}, but is {value:,}.")


# --- import weights ---


class StoredTensors:
    """A reader of the tensors of a Hugging Face folder by name, which reads each one when it is needed."""

    def __init__(self, names: Mapping[str, Callable[[], Tensor]], location: str) -> None:
        """Create a reader of a folder's tensors.

        Args:
            names: a mapping from each tensor's name to a function that reads the tensor.
            location: the folder's name in error messages.
        """
        self.names = names
        self.location = location

    def read(self, name: str) -> Tensor:
        """Read and return the tensor with this name, converted to float32."""
        return self.names[name]().float()

    def shape(self, name: str) -> torch.Size:
        """Return the shape of the tensor with this name; the tensor is read for that."""
        return self.names[name]().shape

    def with_prefix(self, prefix: str) -> "StoredTensors":
        """Return a copy of this reader with the tensor names that current versions of transformers use.

        In the copy, norms have `weight` and `bias` instead of `gamma` and `beta`.

        Args:
            prefix: the family's prefix of names, such as `model.`. It is put before all names if no name begins with
                it, as in the folder of a model without a head. Empty: no prefix is put.
        """
        bare = prefix and not any(name.startswith(prefix) for name in self.names)
        renamed = {(prefix if bare else "") + name: read for name, read in self.names.items()}
        modern = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
        for old, new in modern:
            renamed = {name.replace(old, new): read for name, read in renamed.items()}
        return StoredTensors(renamed, self.location)


class LazyTensors(Mapping[str, Tensor]):
    """A mapping from names to tensors, which computes a tensor at every access.

    Not all tensors are therefore in memory at once.
    """

    def __init__(self, functions: Mapping[str, Callable[[], Tensor]], templates: Mapping[str, Tensor]) -> None:
        """Store the functions that compute the tensors.

        Args:
            functions: a function for each name.
            templates: a tensor on the meta device for each name, with the shape and dtype of the computed tensor.
        """
        self._functions = functions
        self.templates = templates

    def __getitem__(self, name: str) -> Tensor:
        return self._functions[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


class ImportedModel(NamedTuple):
    """An imported model's configuration, and its weights, a mapping by this package's names.

    Weights from a Hugging Face folder are read at each access, and refused then if they are not finite.
    """

    config: ModelConfig
    weights: Mapping[str, Tensor]


def import_model(content: Mapping[str, Any], stored: StoredTensors, special_ids: dict[str, int]) -> ImportedModel:
    """Convert the model of a Hugging Face folder to this package's configuration and weights, as `ImportedModel`.

    Shapes are checked at once; the weights are read only when they are accessed.

    Args:
        content: the content of the folder's `config.json`.
        stored: the tensors of the folder.
        special_ids: `eos_id` and `start_id`, as far as files other than the configuration specify them.

    Raises:
        TransduceError: this package cannot compute the model, or tensors are missing, unexpected or of another shape.
    """
    location = f"{stored.location}/config.json"
    rules, model_type = check_config(content, location), content["model_type"]
    reader = ConfigReader(content, location)
    settings = rules.settings(reader) | special_ids | {"kind": rules.kind}
    _refuse_quantized(stored)
    stored = stored.with_prefix(rules.names.prefix)
    family = names_of(model_type, stored.names)
    # T5 ties its tables whatever the setting is, and an encoder may have no head for hidden tokens.
    may_tie = model_type in ("t5", "mt5") or rules.kind == "encoder"
    needs_output = not may_tie and not reader.flag("tie_word_embeddings", default=not rules.stores_output)
    tables = _read_tables(family, stored, settings, needs_output=needs_output)
    settings |= _ties(stored, tables, settings["pad_id"]) | encoder_heads(content, stored)
    if settings.get("masked_language_head") and rules.gelu_head and settings["activation"] != "gelu":
        reader.refuse("hidden_act", "must be gelu, which the head for hidden tokens always uses,")
    if settings.get("token_labels"):  # nothing reads the pooler that old files of taggers have
        family = family._replace(ignored=rf"{family.ignored}|\w+\.pooler(\.dense)?\.(weight|bias)")
    bias = _output_bias(family, stored, masked=settings.get("masked_language_head", True))
    config = _config(settings | {"output_bias": bias is not None}, location)
    with torch.device("meta"):
        skeleton = build_model(config)
    templates = {name: parameter.detach() for name, parameter in skeleton.named_parameters()}
    sources = _collect(family, stored, templates)
    sources["source_weight"] = StoredParameter((tables.source,))
    if not config.tie_source_target:
        sources["own_target_weight"] = StoredParameter((tables.target,))
    if not config.tie_output:
        sources["own_output_weight"] = StoredParameter((tables.output,))
    if bias is not None:
        sources["output_bias"] = StoredParameter((bias,), "flat")
    for name, expected in templates.items():
        check_shape(stored.location, name, _shape_of(stored, sources[name]), expected.shape)
    _check_sinusoids(stored, config)
    functions = {name: partial(_read_parameter, stored, name, sources[name]) for name in templates}
    return ImportedModel(config, LazyTensors(functions, templates))


def _refuse_quantized(stored: StoredTensors) -> None:
    """Raise a TransduceError if a weight is stored as integers, whose scales and layout the import does not know."""
    for name in (name for name in stored.names if name.endswith(("weight", "weight_packed"))):
        dtype = stored.names[name]().dtype
        if not dtype.is_floating_point:
            raise TransduceError(
                f"{stored.location}: weights must be floating-point numbers, but {name} is {str(dtype)[6:]}, as in a "
                "quantized model: take the model's folder from before it was quantized, or open this one with "
                "transformers, call `dequantize()`, and save it."
            )


def _read_parameter(stored: StoredTensors, name: str, source: StoredParameter) -> Tensor:
    """Read the stored tensors of a parameter and return the parameter as one float32 tensor.

    Args:
        stored: the folder's tensors.
        name: this package's name of the parameter, for the message.
        source: the tensors that make up the parameter.

    Raises:
        TransduceError: a value is not finite.
    """
    tensor = source.restore([stored.read(part) for part in source.names])
    if not all_finite(tensor):
        raise TransduceError(f"{stored.location}: {name} has values that are not finite (NaN or infinite).")
    return tensor


def all_finite(tensor: Tensor) -> bool:
    """Return whether all values of a tensor are finite: neither NaN nor infinite.

    A sum shows this in a tenth of the time of `isfinite`, which is only needed if the sum overflows.
    """
    # A sum with NaN or an infinite number is never finite; that of finite numbers may overflow.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


class _Tables(NamedTuple):
    """The stored names of source embeddings, target embeddings and output projection; shared tables have one name."""

    source: str
    target: str
    output: str


def _read_tables(
    family: StoredNames, stored: StoredTensors, settings: Mapping[str, Any], *, needs_output: bool
) -> _Tables:
    candidates = [name for name in (family.shared, family.source, family.target, family.output) if name is not None]
    present = [name for name in candidates if name in stored.names]
    if not present or (needs_output and family.output not in present):
        missing = [family.output] if present else [family.shared]
        raise wrong_tensors(stored.location, [str(name) for name in missing], [])
    for name in present:
        if len(stored.shape(name)) != 2:
            raise TransduceError(
                f"{stored.location}: {name} must have a row for each token, but has the shape "
                f"{tuple(stored.shape(name))}."
            )
    shared = family.shared if family.shared in present else present[0]
    is_two_sided = settings["kind"] == "transformer"
    source = family.source if family.source in present and is_two_sided else shared
    target = family.target if family.target in present else shared
    output = family.output if family.output in present else target
    return _Tables(source, target if is_two_sided else shared, output)


def _ties(stored: StoredTensors, tables: _Tables, pad_id: int) -> dict[str, bool]:
    """Return a dict of model settings: which tables are tied, and whether embeddings of padding are zero.

    Args:
        stored: the folder's tensors.
        tables: the names of the tables; two tables with equal values count as tied.
        pad_id: id of padding, whose row in the embeddings may be all zeros.
    """

    def has_zero_row(name: str) -> bool:
        return pad_id < stored.shape(name)[0] and not bool(stored.names[name]()[pad_id].any())

    return {
        "tie_source_target": _equal(stored, tables.source, tables.target),
        "tie_output": _equal(stored, tables.output, tables.target),
        "zero_padding_row": has_zero_row(tables.source) and has_zero_row(tables.target),
    }


def _equal(stored: StoredTensors, first: str, second: str) -> bool:
    """Return whether two stored tensors have the same shape and values; tensors of the same name are not read."""
    if first == second:
        return True
    return stored.shape(first) == stored.shape(second) and torch.equal(stored.read(first), stored.read(second))


def encoder_heads(config: Mapping[str, Any], stored: StoredTensors) -> dict[str, Any]:
    """Return a dict of the settings of the heads that an encoder-only model has, by its tensors.

    The dict is empty for other kinds of models.

    Args:
        config: the content of config.json, whose class tells whether a classifier labels texts or tokens.
        stored: the folder's tensors.
    """
    model_type = config["model_type"]
    if IMPORT_FAMILIES[model_type].kind != "encoder":
        return {}
    table = names_of(model_type, stored.names).names

    def stored_name(parameter: str) -> str | None:
        """Return the name of the stored tensor of one of our parameters; None if the folder does not hold it."""
        found = find_names(table, parameter)
        return None if found is None or found.names[0] not in stored.names else found.names[0]

    label, pooler = stored_name("classifier.weight"), stored_name("pooler.weight")
    # The classifier of RoBERTa and ELECTRA contains a pooler, which a classifier of texts has anyway.
    has_pooler = pooler is not None and pooler != "classifier.dense.weight"
    architectures = config.get("architectures")
    is_tagger = isinstance(architectures, list) and any(
        str(name).endswith("ForTokenClassification") for name in architectures
    )
    # Classifiers of texts have a pooler, and taggers have none, except in old files.
    labels_tokens = label == "classifier.weight" and (is_tagger or not has_pooler)
    return {
        "masked_language_head": stored_name("masked_language_head.dense.weight") is not None,
        "pooler": has_pooler and not labels_tokens,
        "num_labels": 0 if label is None else len(stored.read(label)),
        "token_labels": labels_tokens,
    }


def _output_bias(family: StoredNames, stored: StoredTensors, *, masked: bool) -> str | None:
    """Return the stored name of the bias on the logits.

    The result is None if there is no such bias, or if all its values are zero.

    Args:
        family: the names of the family's tensors.
        stored: the folder's tensors.
        masked: False for an encoder without a masked language model's head. Such an encoder has no logits, and the
            result is None.
    """
    present = [name for name in family.output_bias if name in stored.names]
    if not present or not masked:
        return None
    return present[-1] if bool(stored.read(present[-1]).any()) else None


def _config(settings: Mapping[str, Any], location: str) -> ModelConfig:
    try:
        config = msgspec.convert(dict(settings), ModelConfig)
    except (msgspec.ValidationError, TransduceError) as error:
        raise TransduceError(f"{location} describes no model that can be built: {str(error).rstrip('.')}.") from error
    check_sizes(location, config)
    return config


def _collect(family: StoredNames, stored: StoredTensors, parameters: Collection[str]) -> dict[str, StoredParameter]:
    """Find the stored tensors for each parameter except the embeddings, the output projection and its bias.

    Args:
        family: the names of the family's tensors.
        stored: the folder's tensors.
        parameters: this package's names of the model's parameters.

    Returns:
        A dict from this package's name of each parameter to the `StoredParameter` of which it is made.

    Raises:
        TransduceError: a tensor is missing or unused.
    """
    tables = ("source_weight", "own_target_weight", "own_output_weight", "output_bias")
    entries = {name: find_names(family.names, name) for name in parameters if name not in tables}
    used = {family.shared, family.source, family.target, family.output, *family.output_bias}
    missing = [name for name, entry in entries.items() if entry is None]
    for entry in entries.values():
        if entry is not None:
            used.update(entry.names)
            missing += [name for name in entry.names if name not in stored.names]
    ignored = re.compile(family.ignored)
    unexpected = [name for name in stored.names if name not in used and not ignored.fullmatch(name)]
    if missing or unexpected:
        raise wrong_tensors(stored.location, sorted(missing), sorted(unexpected))
    return {name: entry for name, entry in entries.items() if entry is not None}


def _shape_of(stored: StoredTensors, source: StoredParameter) -> tuple[int, ...]:
    """Return the shape, a tuple, that a parameter will have when it is made of its stored tensors.

    Raises:
        TransduceError: the tensors cannot be concatenated by rows.
    """
    shapes = {name: tuple(stored.shape(name)) for name in source.names}
    check_rows(stored.location, shapes)
    return tuple(source.restore([torch.empty(shape, device="meta") for shape in shapes.values()]).shape)


def _check_sinusoids(stored: StoredTensors, config: ModelConfig) -> None:
    """Refuse a model whose stored table of sinusoids is not the one that this package computes.

    Nothing is checked if the model has no sinusoidal positions, or no table is stored.

    Raises:
        TransduceError: a table has another width or other values.
    """
    names = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    for name in (name for name in names if config.positions == "sinusoidal" and name in stored.names):
        table = stored.read(name)
        if table.dim() != 2 or table.shape[1] != config.d_model:
            raise TransduceError(f"{stored.location}: {name} must have rows of {config.d_model} numbers.")
        if not torch.allclose(table, sinusoids(len(table), config.d_model), atol=2e-3):
            raise TransduceError(
                f"{stored.location}: {name} must hold sines, then cosines, of the positions for a model that can be "
                "imported, but holds something else."
            )
