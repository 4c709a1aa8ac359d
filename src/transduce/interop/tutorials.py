"""Weights of models that were written after the tutorials: `torch.nn.Transformer`, and "The Annotated Transformer".

Both are encoder–decoders of this paper, so a map of names brings their weights in. Beside the map stands what such
models do differently: where embeddings are scaled, how the sinusoids are laid out, which norms come last. Positions
that alternate sines and cosines are taken in by a permutation of the residual stream's dimensions, which changes no
output (`model/positions.py:interleaving`).
"""

import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.interop.hugging_face.import_weights import ImportedModel
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.positions import interleaving, sinusoids

Style = Literal["torch", "annotated"]

# Ours, then theirs, below a layer.
_Layer = dict[str, tuple[str, ...]]
_TORCH_LAYER: _Layer = {
    "self_attention.projection.{p}": ("self_attn.in_proj_{p}",),
    "self_attention.output.{p}": ("self_attn.out_proj.{p}",),
    "memory_attention.projection.{p}": ("multihead_attn.in_proj_{p}",),
    "memory_attention.output.{p}": ("multihead_attn.out_proj.{p}",),
    "feed_forward.inner.{p}": ("linear1.{p}",),
    "feed_forward.outer.{p}": ("linear2.{p}",),
    "self_attention_residual.{norm}.{p}": ("norm1.{p}",),
}
_TORCH_ENCODER = _TORCH_LAYER | {"feed_forward_residual.{norm}.{p}": ("norm2.{p}",)}
_TORCH_DECODER = _TORCH_LAYER | {
    "memory_attention_residual.{norm}.{p}": ("norm2.{p}",),
    "feed_forward_residual.{norm}.{p}": ("norm3.{p}",),
}
_ANNOTATED_LAYER: _Layer = {
    "self_attention.projection.{p}": tuple(f"self_attn.linears.{number}.{{p}}" for number in range(3)),
    "self_attention.output.{p}": ("self_attn.linears.3.{p}",),
    "memory_attention.projection.{p}": tuple(f"src_attn.linears.{number}.{{p}}" for number in range(3)),
    "memory_attention.output.{p}": ("src_attn.linears.3.{p}",),
    "feed_forward.inner.{p}": ("feed_forward.w_1.{p}",),
    "feed_forward.outer.{p}": ("feed_forward.w_2.{p}",),
    "self_attention_residual.{norm}.{p}": ("sublayer.0.norm.{p}",),
}
_ANNOTATED_ENCODER = _ANNOTATED_LAYER | {"feed_forward_residual.{norm}.{p}": ("sublayer.1.norm.{p}",)}
_ANNOTATED_DECODER = _ANNOTATED_LAYER | {
    "memory_attention_residual.{norm}.{p}": ("sublayer.1.norm.{p}",),
    "feed_forward_residual.{norm}.{p}": ("sublayer.2.norm.{p}",),
}
_LAYERS: dict[str, tuple[_Layer, _Layer]] = {
    "torch": (_TORCH_ENCODER, _TORCH_DECODER),
    "annotated": (_ANNOTATED_ENCODER, _ANNOTATED_DECODER),
}
_ANNOTATED_EPSILON = 1e-6
_DEFAULT_EPSILON = 1e-5  # ModelConfig's
# The tutorial's own norm calls its two weights otherwise.
_RENAMED = ((r"\.a_2$", ".weight"), (r"\.b_2$", ".bias"))


class TutorialNames(NamedTuple):
    """What a model of a tutorial calls the parts that are around the layers; each author has names of their own."""

    source: str
    """The source's embeddings."""
    target: str
    """The target's embeddings; the same name where they are shared."""
    output: str
    """The layer that makes logits, without `.weight`."""
    encoder: str = "encoder"
    """What stands before `.layers.0` of the encoder."""
    decoder: str = "decoder"


ANNOTATED = TutorialNames(source="src_embed.0.lut.weight", target="tgt_embed.0.lut.weight", output="generator.proj")
"""As "The Annotated Transformer" has them."""


def import_tutorial(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    *,
    style: Style,
    names: TutorialNames = ANNOTATED,
    interleaved: bool = True,
) -> ImportedModel:
    """A tutorial's weights as ours.

    Args:
        weights: the model's state_dict; tables of positions in it are left out.
        config: what cannot be read off the weights: `norm_order`, `num_heads`, `activation`, `scale_embeddings`,
            whether there is a last norm, ids. Positions must be sinusoidal or none. Ties are found out here.
        style: `torch` for torch.nn.Transformer's names, `annotated` for those of "The Annotated Transformer". Norms
            with the tutorial's own weights, `a_2` and `b_2`, follow the tutorial's formula: `norm` becomes `annotated`,
            and `norm_epsilon` the tutorial's 1e-6 unless `config` has another value than the default.
        names: what stands around the layers.
        interleaved: positions alternate sines and cosines, as the paper and both tutorials have them.

    Returns:
        The configuration with its ties, and the weights.

    Raises:
        TransduceError: a weight is missing, left over, or of another shape.
    """
    if style == "annotated" and any(name.endswith(".a_2") for name in weights):
        config = _with_its_norm(config)
    given = _renamed(weights)
    source, target = _read(given, names.source), _read(given, names.target)
    output = _read(given, f"{names.output}.weight")
    bias = given.get(f"{names.output}.bias")
    config = _with_ties(config, source, target, output, bias)
    found = {"source_weight": source}
    if not config.tie_source_target:
        found["own_target_weight"] = target
    if not config.tie_output:
        found["own_output_weight"] = output
    if config.output_bias and bias is not None:
        found["output_bias"] = bias
    around = {names.source, names.target, f"{names.output}.weight", f"{names.output}.bias"}
    found |= _layers(given, config, style, names, around)
    if interleaved and config.positions == "sinusoidal":
        found = permute_model_width(found, config, interleaving(config.d_model).argsort())
    return ImportedModel(config, found)


def _with_its_norm(config: ModelConfig) -> ModelConfig:
    is_default = config.norm_epsilon == _DEFAULT_EPSILON
    epsilon = _ANNOTATED_EPSILON if is_default and config.norm != "annotated" else config.norm_epsilon
    return msgspec.structs.replace(config, norm="annotated", norm_epsilon=epsilon)


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under the usual names of norms, in float32, without tables of positions."""
    given = {}
    for name, tensor in weights.items():
        for old, new in _RENAMED:
            name = re.sub(old, new, name)
        if not _is_position_table(tensor):
            given[name] = tensor.detach().float()
    return given


def _is_position_table(tensor: Tensor) -> bool:
    """Whether it holds the sinusoids, in the layout of the paper, alone or as one of a batch."""
    table = tensor[0] if tensor.dim() == 3 and len(tensor) == 1 else tensor.squeeze(1) if tensor.dim() == 3 else tensor
    if table.dim() != 2 or table.shape[1] % 2 or not len(table):
        return False
    length, width = table.shape
    return torch.allclose(table.float(), sinusoids(length, width, interleaved=True), atol=1e-3)


def _read(given: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in given:
        raise TransduceError(
            f"The weights must hold {name}, but do not: name it in `names`; they hold {sorted(given)}."
        )
    return given[name]


def _with_ties(config: ModelConfig, source: Tensor, target: Tensor, output: Tensor, bias: Tensor | None) -> ModelConfig:
    pad = config.pad_id
    return msgspec.structs.replace(
        config,
        source_vocabulary_size=len(source),
        target_vocabulary_size=len(target),
        tie_source_target=torch.equal(source, target) if source.shape == target.shape else False,
        tie_output=torch.equal(output, target) if output.shape == target.shape else False,
        zero_padding_row=not bool(source[pad].any()) and not bool(target[pad].any()),
        output_bias=bias is not None and bool(bias.any()),
    )


def _layers(
    given: Mapping[str, Tensor], config: ModelConfig, style: Style, names: TutorialNames, around: set[str]
) -> dict[str, Tensor]:
    """Everything but the tables, by our names; nothing may be missing or left over."""
    with torch.device("meta"):
        outline = build_model(config)
    own = ("source_weight", "own_target_weight", "own_output_weight", "output_bias")
    wanted = {
        name: (_their_names(name, style, names), parameter.shape)
        for name, parameter in outline.named_parameters()
        if name not in own
    }
    used = around | {part for parts, _ in wanted.values() for part in parts}
    missing = sorted(part for parts, _ in wanted.values() for part in parts if part not in given)
    unexpected = sorted(set(given) - used)
    if missing or unexpected:
        raise TransduceError(
            f"The weights are not of this configuration: missing {', '.join(missing) or 'none'}; unexpected "
            f"{', '.join(unexpected) or 'none'}."
        )
    found = {name: torch.cat([given[part] for part in parts]) for name, (parts, _) in wanted.items()}
    for name, (_, shape) in wanted.items():
        if found[name].shape != shape:
            raise TransduceError(f"{name} must have the shape {tuple(shape)}, but has {tuple(found[name].shape)}.")
    return found


def _their_names(name: str, style: Style, names: TutorialNames) -> tuple[str, ...]:
    """From our name, encoder_layers.0.feed_forward.inner.bias, to theirs."""
    stacks = {"encoder": names.encoder, "decoder": names.decoder}
    first, _, rest = name.partition(".")
    stack, _, part = first.partition("_")
    if part == "norm":
        return (f"{stacks[stack]}.norm.{rest}",)
    number, _, inside = rest.partition(".")
    parameter = inside.rpartition(".")[2]
    pattern = re.sub(r"norm_(before|after)", "{norm}", inside.removesuffix(parameter)) + "{p}"
    table = _LAYERS[style][0 if stack == "encoder" else 1]
    return tuple(f"{stacks[stack]}.layers.{number}.{theirs.replace('{p}', parameter)}" for theirs in table[pattern])


# --- another order of the model's dimensions ---------------------------------------------------------------------

_READERS = ("projection.weight", "inner.weight")  # (outputs, D)
_WRITERS = ("output.weight", "output.bias", "outer.weight", "outer.bias")  # (D, inputs) or (D,)


def permute_model_width(weights: Mapping[str, Tensor], config: ModelConfig, order: Tensor) -> dict[str, Tensor]:
    """The same model with the dimensions of its residual stream in another order, (D,): every output stays as it is.

    Positions are not weights, so they must be laid out in the new order by whoever computes them.
    """
    take: dict[str, Callable[[Tensor], Tensor]] = {
        "columns": lambda tensor: tensor[:, order],
        "rows": lambda tensor: tensor[order],
    }
    if config.d_model != len(order):
        raise ValueError(f"an order of {len(order)} dimensions is not one of {config.d_model}")
    permuted = {}
    for name, tensor in weights.items():
        kind = _axis(name)
        permuted[name] = tensor if kind is None else take[kind](tensor).contiguous()
    return permuted


def _axis(name: str) -> str | None:
    """Which axis of a weight is the model's width."""
    if name in ("source_weight", "own_target_weight", "own_output_weight"):
        return "columns"
    if name == "output_bias":
        return None
    if name.endswith(_READERS):
        return "columns"
    if "norm" in name or name.endswith(_WRITERS):
        return "rows"
    return None
