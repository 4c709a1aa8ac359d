"""Our models as Hugging Face's: Pegasus, Marian, BART, mBART, M2M100, T5, BERT, GPT-2, Llama, Qwen2 compute the same.

A model folder holds the weights under the names of the class that fits, so that it opens there with no export step. A
configuration that no class can hold keeps our own names, and its `config.json` names no class. Folders that were
written before a class was known have our own names too: what stands in a file decides.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from transduce.interop.components import MAXIMUM_POSITIONS
from transduce.interop.hugging_face.families import Family, family_for
from transduce.interop.hugging_face.import_families import names_of
from transduce.interop.hugging_face.import_names import Family as StoredNames
from transduce.interop.hugging_face.import_names import Names, find_names
from transduce.model.config import ModelConfig
from transduce.model.positions import sinusoids

_OWN_NAME = "source_weight"
# BERT's second head in pretraining. Its first class is that of a stretch that follows; ours is the other.
_FOLLOWS_HEAD = "cls.seq_relationship"


class Place(NamedTuple):
    """Where a file keeps a parameter of ours."""

    names: tuple[str, ...]
    layout: Literal["rows", "transposed", "reversed", "flat"] = "rows"
    """The rows of several tensors, one below another; inputs before outputs; the last row first; one row, (1, V)."""

    def store(self, tensor: Tensor, sizes: Sequence[int]) -> dict[str, Tensor]:
        """The tensors of the file; `sizes` are the rows of each where there are several."""
        if self.layout == "transposed":
            parts: Sequence[Tensor] = (tensor.t() if tensor.dim() == 2 else tensor,)
        elif self.layout == "reversed":
            parts = (tensor.flip(0),)
        elif self.layout == "flat":
            parts = (tensor[None],)
        else:
            parts = tensor.split(list(sizes)) if len(self.names) > 1 else (tensor,)
        return {name: part.contiguous() for name, part in zip(self.names, parts, strict=True)}

    def restore(self, parts: Sequence[Tensor]) -> Tensor:
        """Our parameter, of the file's tensors."""
        if self.layout == "transposed":
            return (parts[0].t() if parts[0].dim() == 2 else parts[0]).contiguous()
        if self.layout == "reversed":
            return parts[0].flip(0)
        if self.layout == "flat":
            return parts[0].flatten()
        return torch.cat(list(parts))


def class_for(config: ModelConfig) -> str | None:
    """The class that computes this model, or None."""
    family = family_for(config)
    return None if family is None else family.architecture


def automatic_class_for(config: ModelConfig) -> str | None:
    """Hugging Face's automatic class that opens this model, or None."""
    family = family_for(config)
    return None if family is None else family.automatic


def config_json(config: ModelConfig, labels: Sequence[str] = (), names: Collection[str] = ()) -> dict[str, Any]:
    """Return the content of `config.json`: the class's own keys, and under "transduce" our configuration.

    Args:
        config: the model's configuration.
        labels: the names of the model's classes; empty: numbers.
        names: the names of the model's parameters and buffers, of which the class must know every one.
    """
    own = {"transduce": msgspec.to_builtins(config)}
    two_sides = {"is_encoder_decoder": config.kind in ("transformer", "recurrent")}
    family = family_for(config) if has_every_name(names, config) else None
    if family is None:
        return {"model_type": "transduce"} | two_sides | own
    named: dict[str, Any] = {}
    if config.num_labels:
        names = labels if len(labels) == config.num_labels else [f"LABEL_{n}" for n in range(config.num_labels)]
        named = {
            "id2label": {str(number): name for number, name in enumerate(names)},
            "label2id": {name: number for number, name in enumerate(names)},
        }
    ids = {"pad_token_id": config.pad_id, "eos_token_id": config.eos_id, "dtype": "float32"}
    described = {"architectures": [family.architecture], "model_type": family.model_type}
    return described | two_sides | family.content(config) | named | ids | own


def generation_config(config: ModelConfig, unk_id: int) -> dict[str, Any] | None:
    """The content of `generation_config.json`: how `generate` is to search; None where the model writes nothing.

    Args:
        config: of the model.
        unk_id: the unknown piece of the target's vocabulary, which no language model writes.
    """
    ids = {"eos_token_id": config.eos_id, "pad_token_id": config.pad_id}
    if config.kind == "decoder":
        longest = config.max_positions if config.positions == "learned" else MAXIMUM_POSITIONS
        never = sorted({config.pad_id, unk_id} - {config.eos_id})
        return {
            "bos_token_id": config.start_id,
            **ids,
            "bad_words_ids": [[id] for id in never] or None,
            "max_length": longest,
        }
    if config.kind not in ("transformer", "recurrent"):
        return None
    found = {"decoder_start_token_id": config.start_id, **ids, "bad_words_ids": [[config.pad_id]]}
    return found | {"num_beams": 4, "max_length": 512}


def to_folder_names(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return our weights under the names that `model.safetensors` has for them.

    A parameter or buffer of a component that the class does not know keeps all tensors under our names.
    """
    family = family_for(config)
    if family is None or not has_every_name(weights, config):
        return dict(weights)
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        stored |= _place(name, config, family).store(tensor, _sizes(name, config))
    names = _stored_names(family, config)
    if family.stores_sinusoids:
        for stack in ("encoder", "decoder"):
            stored[f"model.{stack}.embed_positions.weight"] = sinusoids(MAXIMUM_POSITIONS, config.d_model)
    if family.stores_output_bias and not config.output_bias:
        zeros = torch.zeros(config.target_vocabulary_size)
        stored |= _output_bias_place(names).store(zeros, ())
    return stored


def has_every_name(names: Collection[str], config: ModelConfig) -> bool:
    """Return whether the class of this configuration, if there is one, has a name for every parameter and buffer."""
    family = family_for(config)
    if family is None:
        return True
    own = ("output_bias", "source_weight", "own_target_weight", "own_output_weight")
    known = _stored_names(family, config).names
    return all(name in own or name.startswith("classifier.") or find_names(known, name) is not None for name in names)


def places(names: Collection[str], config: ModelConfig, present: Collection[str]) -> dict[str, Place]:
    """Where a file keeps each of our parameters.

    Args:
        names: of ours.
        config: of the model.
        present: the names in the file.
    """
    family = family_for(config)
    if family is None or _OWN_NAME in present:
        return {name: Place((name,)) for name in names}
    return {name: _place(name, config, family) for name in names}


def derived_names(config: ModelConfig, present: Collection[str]) -> set[str]:
    """Tensors in a file that we compute ourselves, or hold elsewhere."""
    family = family_for(config)
    if family is None or _OWN_NAME in present:
        return set()
    names = _stored_names(family, config)
    tables = {names.shared, names.source, names.target, names.output, *names.output_bias}
    ignored = re.compile(names.ignored)
    return {name for name in present if name in tables or ignored.fullmatch(name)}


def surplus_names(config: ModelConfig) -> set[str]:
    """Tensors of our folder that its class leaves aside, because it has no such head."""
    family = family_for(config)
    if family is None or family.model_type != "bert":
        return set()
    if config.masked_language_head:
        has_surplus = config.pooler and config.num_labels == 0
        return {"bert.pooler.dense.weight", "bert.pooler.dense.bias"} if has_surplus else set()
    return {"cls.predictions.bias"} if config.output_bias else set()


# --- one parameter ----------------------------------------------------------------------------------------------


def _place(name: str, config: ModelConfig, family: Family) -> Place:
    names = _stored_names(family, config)
    if name == "output_bias":
        return _output_bias_place(names)
    table = {
        "source_weight": names.shared if config.tie_source_target else names.source,
        "own_target_weight": names.target,
        "own_output_weight": names.output,
    }.get(name)
    if table is not None:
        return Place((table,))
    if family.architecture == "BertForPreTraining" and name.startswith("classifier."):
        return Place((name.replace("classifier", _FOLLOWS_HEAD),), "reversed")
    found: Names | None = find_names(names.names, name)
    if found is None:
        raise ValueError(f"{family.architecture} has no name for the parameter {name}")
    return Place(found.theirs, "transposed" if found.transposed else "rows")


def _output_bias_place(names: StoredNames) -> Place:
    name = names.output_bias[0]
    return Place((name,), "flat" if name == "final_logits_bias" else "rows")


def _stored_names(family: Family, config: ModelConfig) -> StoredNames:
    """The table of names; T5 has two, of which the gated one is told by a tensor."""
    gated = config.activation.endswith(("glu", "glu-tanh"))
    return names_of(family.model_type, ["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"] if gated else [])


def _sizes(name: str, config: ModelConfig) -> Sequence[int]:
    """Rows of the tensors that ours is cut into."""
    if ".feed_forward.inner." in name:
        return (config.d_ff, config.d_ff)
    heads = config.num_key_value_heads or config.num_heads
    return (config.num_heads * config.key_width, heads * config.key_width, heads * config.value_width)
