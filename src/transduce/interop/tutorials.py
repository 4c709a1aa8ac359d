"""Import weights of models written after tutorials, such as `torch.nn.Transformer` or "The Annotated Transformer".

Most are encoder–decoders of "Attention Is All You Need"; nanoGPT and minGPT are decoders. The import renames weights.
Settings cover the differences: scaling of embeddings, layout of sinusoids, final norms. For positions that alternate
sines and cosines, the import permutes the dimensions of the residual stream, which changes no output
(`model/positions.py:interleaving`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError, explain_wrong_types, shown_names
from transduce.interop.hugging_face.import_weights import ImportedModel
from transduce.model.build import build_model
from transduce.model.config import Activation, ModelConfig
from transduce.model.positions import interleaving, sinusoids

Style = Literal["torch", "annotated", "separate", "blocks", "transduce", "karpathy"]

# This package's parameter name within a layer, and the names of the tensors that form the parameter.
_Layer = dict[str, tuple[str, ...]]


def _attention(ours: str, theirs: str, projections: Sequence[str], output: str, norm: str) -> _Layer:
    """Map this package's names of an attention's parameters to a tutorial's names.

    Args:
        ours: prefix of this package's names, such as `self_attention`.
        theirs: prefix of the tutorial's names.
        projections: the tutorial's names of the query, key and value projections, or the name of one joint projection.
            `{p}` in a name stands for weight or bias.
        output: the tutorial's name of the output projection.
        norm: the tutorial's full name of the sub-layer's norm.

    Returns:
        A dict from this package's name of each parameter to a tuple of the tutorial's names of its tensors. `{p}`
        stands for weight or bias, and `{norm}` for this package's name of the norm.
    """
    return {
        f"{ours}.projection.{{p}}": tuple(f"{theirs}.{name}" for name in projections),
        f"{ours}.output.{{p}}": (f"{theirs}.{output}.{{p}}",),
        f"{ours}_residual.{{norm}}.{{p}}": (f"{norm}.{{p}}",),
    }


def _feed_forward(inner: str, outer: str, norm: str) -> _Layer:
    """Map this package's names of a feed-forward network's parameters to a tutorial's names, a dict.

    The names have placeholders, as in the result of `_attention`.
    """
    return {
        "feed_forward.inner.{p}": (f"{inner}.{{p}}",),
        "feed_forward.outer.{p}": (f"{outer}.{{p}}",),
        "feed_forward_residual.{norm}.{p}": (f"{norm}.{{p}}",),
    }


def _torch(ours: str, theirs: str, norm: str) -> _Layer:
    return _attention(ours, theirs, ("in_proj_{p}",), "out_proj", norm)


def _annotated(ours: str, theirs: str, norm: str) -> _Layer:
    return _attention(ours, theirs, tuple(f"linears.{number}.{{p}}" for number in range(3)), "linears.3", norm)


def _separate(ours: str, theirs: str) -> _Layer:
    return _attention(ours, theirs, ("W_Q.{p}", "W_K.{p}", "W_V.{p}"), "fc", f"{theirs}.layer_norm")


def _block(ours: str, theirs: str, norm: str) -> _Layer:
    return _attention(ours, theirs, ("W_q.{p}", "W_k.{p}", "W_v.{p}"), "W_o", norm)


_TRANSDUCE_NAMES = (
    *(f"{name}.{{p}}" for name in ("self_attention.projection", "self_attention.output")),
    *(f"{name}.{{p}}" for name in ("memory_attention.projection", "memory_attention.output")),
    *("feed_forward.inner.{p}", "feed_forward.outer.{p}"),
)
_TRANSDUCE_RESIDUALS = ("self_attention_residual", "memory_attention_residual", "feed_forward_residual")
_TRANSDUCE_LAYER: _Layer = {
    **{name: (name,) for name in _TRANSDUCE_NAMES},
    **{f"{name}.{{norm}}.{{p}}": (f"{name}.norm_after.{{p}}",) for name in _TRANSDUCE_RESIDUALS},
}

_SEPARATE_FEED_FORWARD = _feed_forward("pos_ffn.fc.0", "pos_ffn.fc.2", "pos_ffn.layer_norm")
_LAYERS: dict[str, tuple[_Layer, _Layer]] = {
    "torch": (
        _torch("self_attention", "self_attn", "norm1") | _feed_forward("linear1", "linear2", "norm2"),
        _torch("self_attention", "self_attn", "norm1")
        | _torch("memory_attention", "multihead_attn", "norm2")
        | _feed_forward("linear1", "linear2", "norm3"),
    ),
    "annotated": (
        _annotated("self_attention", "self_attn", "sublayer.0.norm")
        | _feed_forward("feed_forward.w_1", "feed_forward.w_2", "sublayer.1.norm"),
        _annotated("self_attention", "self_attn", "sublayer.0.norm")
        | _annotated("memory_attention", "src_attn", "sublayer.1.norm")
        | _feed_forward("feed_forward.w_1", "feed_forward.w_2", "sublayer.2.norm"),
    ),
    "separate": (
        _separate("self_attention", "enc_self_attn") | _SEPARATE_FEED_FORWARD,
        _separate("self_attention", "dec_self_attn")
        | _separate("memory_attention", "dec_enc_attn")
        | _SEPARATE_FEED_FORWARD,
    ),
    "blocks": (
        _block("self_attention", "attention", "addnorm1.ln") | _feed_forward("ffn.dense1", "ffn.dense2", "addnorm2.ln"),
        _block("self_attention", "attention1", "addnorm1.ln")
        | _block("memory_attention", "attention2", "addnorm2.ln")
        | _feed_forward("ffn.dense1", "ffn.dense2", "addnorm3.ln"),
    ),
    "transduce": (_TRANSDUCE_LAYER, _TRANSDUCE_LAYER),
    "karpathy": (  # a decoder without an encoder
        {},
        _attention("self_attention", "attn", ("c_attn.{p}",), "c_proj", "ln_1")
        | _feed_forward("mlp.c_fc", "mlp.c_proj", "ln_2"),
    ),
}
_ANNOTATED_EPSILON = 1e-6
_DEFAULT_EPSILON = 1e-5  # ModelConfig's
# Names of the weights of "The Annotated Transformer"'s LayerNorm.
_RENAMED = ((r"\.a_2$", ".weight"), (r"\.b_2$", ".bias"))


class TutorialNames(NamedTuple):
    """The names of a tutorial model's embeddings, output layer and stacks, which differ between authors."""

    source: str
    """Name of the source embeddings' weight, in full."""
    target: str
    """Name of the target embeddings' weight, in full; equal to `source` if they are shared."""
    output: str
    """Name of the layer that computes logits, without `.weight`."""
    encoder: str = "encoder"
    """The prefix of the names of the encoder's weights, without the dot."""
    decoder: str = "decoder"
    """The prefix of the names of the decoder's weights, without the dot."""
    layer: str = "layers.{number}"
    """Name of a layer within its stack, in which `{number}` counts from 0."""


ANNOTATED = TutorialNames(source="src_embed.0.lut.weight", target="tgt_embed.0.lut.weight", output="generator.proj")
"""The names of embeddings, output layer and stacks in "The Annotated Transformer"."""

USUAL_NAMES: dict[Style, TutorialNames] = {
    "annotated": ANNOTATED,
    "torch": TutorialNames(
        source="src_tok_emb.embedding.weight",
        target="tgt_tok_emb.embedding.weight",
        output="generator",
        encoder="transformer.encoder",
        decoder="transformer.decoder",
    ),
    "separate": TutorialNames(source="encoder.src_emb.weight", target="decoder.tgt_emb.weight", output="projection"),
    "blocks": TutorialNames(
        source="encoder.embedding.weight",
        target="decoder.embedding.weight",
        output="decoder.dense",
        layer="blks.block{number}",
    ),
    "transduce": TutorialNames(
        source="source_weight",
        target="own_target_weight",
        output="output",
        encoder="encoder_layers",
        decoder="decoder_layers",
        layer="{number}",
    ),
    "karpathy": TutorialNames(
        source="transformer.wte.weight",
        target="transformer.wte.weight",
        output="lm_head",
        decoder="transformer",
        layer="h.{number}",
    ),
}
"""The names of embeddings, output layer and stacks in the best-known tutorial of each style, a dict by style."""


@explain_wrong_types
def import_tutorial(
    weights: Mapping[str, Tensor],
    config: ModelConfig,
    *,
    style: Style,
    names: TutorialNames = ANNOTATED,
    interleaved: bool = True,
) -> ImportedModel:
    """Convert a tutorial model's weights to this package's configuration and weights.

    Attention heads that are modules of their own (`heads.0.q`) are joined to one attention. Biases that no layer has
    become zeros, except in the style `annotated`. In the styles `separate` and `karpathy`, norms without weights
    (because `forward` makes them) get ones. Neither changes an output.

    In the style `annotated`, norms with the weights `a_2` and `b_2` use the formula of "The Annotated Transformer":
    `norm` becomes `annotated`. If `norm_epsilon` has its default, it becomes that tutorial's 1e-6.

    Args:
        weights: the model's state_dict; tables of sinusoids in it are ignored.
        config: settings that the weights do not show: `norm_order`, `num_heads`, `activation`, `scale_embeddings`,
            whether there is a final norm, ids. Positions must be sinusoidal or none, except in the style `karpathy`.
            The import detects tied weights.
        style: the tutorial's names of weights. `torch`: torch.nn.Transformer; `annotated`: "The Annotated Transformer";
            `separate`: `enc_self_attn.W_Q`, `pos_ffn.fc.0`; `blocks`: `blks.block0.attention.W_q`, `ffn.dense1`;
            `transduce`: the model of transduce's own tutorial, docs/tutorial; `karpathy`: the language models nanoGPT
            and minGPT, and the lecture that writes a GPT from an empty file. `language_model_config` returns the
            configuration for `karpathy`.
        names: the names of embeddings, output layer and stacks. The styles `transduce` and `karpathy` ignore this
            argument.
        interleaved: True if positions alternate sines and cosines, as in the paper and most tutorials; False if all
            sines precede the cosines. The style `transduce` ignores this argument.

    Returns:
        An `ImportedModel`: the configuration with tied weights and vocabulary sizes filled in, and the weights in
        float32 by this package's names.

    Raises:
        TransduceError: a weight is missing, unexpected, or of another shape.
    """
    if style == "annotated" and any(name.endswith(".a_2") for name in weights):
        is_default = config.norm_epsilon == _DEFAULT_EPSILON and config.norm != "annotated"
        epsilon = _ANNOTATED_EPSILON if is_default else config.norm_epsilon
        config = msgspec.structs.replace(config, norm="annotated", norm_epsilon=epsilon)
    if style == "karpathy":
        weights, names = _as_nano_gpt(weights, config.num_heads), USUAL_NAMES[style]
    if style == "transduce":  # its output layer is the target embedding, and its sinusoids are this package's
        weights = {**weights, "output.weight": _read(weights, "own_target_weight")}
        names, interleaved = USUAL_NAMES[style], False
    renamed_weights = _normalize_names(weights)
    source, target = _read(renamed_weights, names.source), _read(renamed_weights, names.target)
    output = _read(renamed_weights, f"{names.output}.weight")
    bias = renamed_weights.get(f"{names.output}.bias")
    config = _with_ties(config, source, target, output, bias)
    converted = {"source_weight": source}
    if not config.tie_source_target:
        converted["own_target_weight"] = target
    if not config.tie_output:
        converted["own_output_weight"] = output
    if config.output_bias and bias is not None:
        converted["output_bias"] = bias
    other_names = {names.source, names.target, f"{names.output}.weight", f"{names.output}.bias"}
    converted |= _layer_weights(renamed_weights, config, style, names, other_names)
    if interleaved and config.positions == "sinusoidal":
        converted = permute_model_width(converted, config, interleaving(config.d_model).argsort())
    return ImportedModel(config, converted)


# --- language models ---
# Legend: T positions, D model width.

_LECTURE_NAMES = (
    (r"token_embedding_table\.", "transformer.wte."),
    (r"position_embedding_table\.", "transformer.wpe."),
    (r"blocks\.(\d+)\.ln(\d)\.", r"transformer.h.\1.ln_\2."),
    (r"blocks\.(\d+)\.sa\.proj\.", r"transformer.h.\1.attn.c_proj."),
    (r"blocks\.(\d+)\.ffwd\.net\.0\.", r"transformer.h.\1.mlp.c_fc."),
    (r"blocks\.(\d+)\.ffwd\.net\.2\.", r"transformer.h.\1.mlp.c_proj."),
    (r"ln_f\.", "transformer.ln_f."),
)
_LECTURE_HEAD = re.compile(r"blocks\.(\d+)\.sa\.heads\.(\d+)\.(query|key|value)\.weight")
_CAUSAL_MASK = re.compile(r".*\.(attn\.(bias|masked_bias)|tril)")


@explain_wrong_types
def language_model_config(
    weights: Mapping[str, Tensor],
    num_heads: int,
    *,
    activation: Activation | None = None,
    pad_id: int = 0,
    eos_id: int = 0,
) -> ModelConfig:
    """Return the `ModelConfig` of a language model written after nanoGPT, minGPT or Karpathy's lecture.

    Args:
        weights: the model's state_dict.
        num_heads: the number of attention heads, which the weights of nanoGPT and minGPT do not show.
        activation: the activation of the feed-forward networks. None: that of the tutorial, `relu` for the lecture,
            `gelu` for nanoGPT and `gelu-tanh` for minGPT. Weights whose output layer is not tied to the embeddings
            count as minGPT's.
        pad_id: the id of padding; a row of zeros, or one that no text has.
        eos_id: the id of the end of a text.

    Raises:
        TransduceError: a weight is missing, or the number of heads is not that of the lecture's modules.
    """
    renamed = _as_nano_gpt(weights, num_heads)
    table, positions = _read(renamed, "transformer.wte.weight"), _read(renamed, "transformer.wpe.weight")
    if activation is None and any(_LECTURE_HEAD.fullmatch(name) for name in weights):
        activation = "relu"
    tied = torch.equal(renamed["lm_head.weight"], table)
    return ModelConfig(
        kind="decoder",
        source_vocabulary_size=len(table),
        target_vocabulary_size=len(table),
        num_decoder_layers=sum(name.endswith(".mlp.c_fc.weight") for name in renamed),
        d_model=table.shape[1],
        d_ff=len(_read(renamed, "transformer.h.0.mlp.c_fc.weight")),
        num_heads=num_heads,
        activation=activation or ("gelu" if tied else "gelu-tanh"),
        positions="learned",
        max_positions=len(positions),
        scale_embeddings=False,
        pad_id=pad_id,
        eos_id=eos_id,
        start_id=eos_id,
    )


def _as_nano_gpt(weights: Mapping[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    """Return the weights of a tutorial's language model as a dict by nanoGPT's names, with the shapes of `nn.Linear`.

    Causal masks are left out. The projections of the heads in Karpathy's lecture are joined. Matrices of GPT-2's
    Conv1D, (inputs, outputs), are transposed. A missing output layer is the embeddings.

    Args:
        weights: the state_dict of a model written after nanoGPT, minGPT or Karpathy's lecture.
        num_heads: number of attention heads.

    Raises:
        TransduceError: a model after the lecture has another number of heads.
    """
    renamed, heads = dict[str, Tensor](), dict[str, dict[tuple[str, int], Tensor]]()
    for name, tensor in weights.items():
        name = name.removeprefix("_orig_mod.")  # of torch.compile
        if match := _LECTURE_HEAD.fullmatch(name):
            joined = f"transformer.h.{match[1]}.attn.c_attn.weight"
            heads.setdefault(joined, {})[match[3], int(match[2])] = tensor
        elif not _CAUSAL_MASK.fullmatch(name):
            for theirs, nano in _LECTURE_NAMES:
                name = re.sub(f"^{theirs}", nano, name)
            renamed[name] = tensor
    for name, parts in heads.items():
        if len(parts) != 3 * num_heads:
            raise TransduceError(f"The weights hold {len(parts) // 3} attention heads, but {num_heads} are set.")
        order = ((kind, number) for kind in ("query", "key", "value") for number in range(num_heads))
        renamed[name] = torch.cat([parts[key] for key in order])
    first = renamed.get("transformer.h.0.attn.c_attn.weight")
    if first is not None and first.shape[1] == 3 * first.shape[0]:  # (D, 3 D)
        matrix = re.compile(r".*\.(attn|mlp)\.c_\w+\.weight")
        renamed = {name: tensor.T if matrix.fullmatch(name) else tensor for name, tensor in renamed.items()}
    if "lm_head.weight" not in renamed:
        renamed["lm_head.weight"] = _read(renamed, "transformer.wte.weight")
    return renamed


def _normalize_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a tutorial model's weights with uniform names, a dict of float32 tensors.

    The weights `a_2` and `b_2` of norms are renamed to `weight` and `bias`. Attention heads that are modules of their
    own are joined. Tables of sinusoids are left out.
    """
    renamed_weights = {}
    for name, tensor in weights.items():
        for old, new in _RENAMED:
            name = re.sub(old, new, name)
        if not _is_position_table(tensor):
            renamed_weights[name] = tensor.detach().float()
    return _join_heads(renamed_weights)


_HEAD = re.compile(r"(.*)\.heads\.(\d+)\.(?:W_?)?([qkvQKV])\.(weight|bias)")
_HEADS_OUTPUT = re.compile(r"(.*)\.output_linear\.(weight|bias)")


def _join_heads(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a dict of weights in which attention heads that are modules of their own are joined.

    The heads' query projections are concatenated to one matrix `W_Q`, and those of keys and values to `W_K` and `W_V`.
    The output layer is renamed to `fc`. Other weights keep their names.
    """
    heads: dict[str, dict[int, Tensor]] = {}
    joined = {}
    for name, tensor in weights.items():
        if match := _HEAD.fullmatch(name):
            heads.setdefault(f"{match[1]}.W_{match[3].upper()}.{match[4]}", {})[int(match[2])] = tensor
        elif match := _HEADS_OUTPUT.fullmatch(name):
            joined[f"{match[1]}.fc.{match[2]}"] = tensor
        else:
            joined[name] = tensor
    return joined | {name: torch.cat([parts[number] for number in sorted(parts)]) for name, parts in heads.items()}


def _is_position_table(tensor: Tensor) -> bool:
    """Return whether a tensor is a table of the paper's sinusoids, which the import leaves out.

    Such a table is (positions, width), with or without an axis of length 1 in front or in the middle; sines and cosines
    alternate.
    """
    table = tensor[0] if tensor.dim() == 3 and len(tensor) == 1 else tensor.squeeze(1) if tensor.dim() == 3 else tensor
    if table.dim() != 2 or table.shape[1] % 2 or not len(table):
        return False
    length, width = table.shape
    return torch.allclose(table.float(), sinusoids(length, width, interleaved=True), atol=1e-3)


def _read(renamed_weights: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in renamed_weights:
        raise TransduceError(
            f"The weights must hold {name}, but do not: name it in `names`; they hold {sorted(renamed_weights)}."
        )
    return renamed_weights[name]


def _with_ties(config: ModelConfig, source: Tensor, target: Tensor, output: Tensor, bias: Tensor | None) -> ModelConfig:
    pad = config.pad_id
    return msgspec.structs.replace(
        config,
        source_vocabulary_size=len(source),
        target_vocabulary_size=len(target),
        tie_source_target=torch.equal(source, target),
        tie_output=torch.equal(output, target),
        zero_padding_row=not bool(source[pad].any()) and not bool(target[pad].any()),
        output_bias=bias is not None and bool(bias.any()),
    )


def _layer_weights(
    renamed_weights: Mapping[str, Tensor],
    config: ModelConfig,
    style: Style,
    names: TutorialNames,
    other_names: set[str],
) -> dict[str, Tensor]:
    """Return all weights of a tutorial model except embeddings and output layer, a dict by this package's names.

    Args:
        renamed_weights: the model's weights with normalized names.
        config: the configuration, which determines the names and shapes that must exist.
        style: the tutorial's way of naming.
        names: the names of the model's stacks and layers.
        other_names: names of the embeddings and the output layer, which are used elsewhere.

    Raises:
        TransduceError: a weight is missing, unused, or of another shape.
    """
    with torch.device("meta"):
        skeleton = build_model(config)
    tables = ("source_weight", "own_target_weight", "own_output_weight", "output_bias")
    expected = {
        name: (_their_names(name, style, names), parameter.shape)
        for name, parameter in skeleton.named_parameters()
        if name not in tables
    }
    renamed_weights = {**renamed_weights, **_neutral(renamed_weights, expected, style)}
    used = other_names | {part for parts, _ in expected.values() for part in parts}
    missing = sorted(part for parts, _ in expected.values() for part in parts if part not in renamed_weights)
    unexpected = sorted(set(renamed_weights) - used)
    if missing or unexpected:
        raise TransduceError(
            f"The weights are not of this configuration: missing {shown_names(missing)}; unexpected "
            f"{shown_names(unexpected)}."
        )
    converted = {name: torch.cat([renamed_weights[part] for part in parts]) for name, (parts, _) in expected.items()}
    for name, (_, shape) in expected.items():
        if converted[name].shape != shape:
            raise TransduceError(f"{name} must have the shape {tuple(shape)}, but has {tuple(converted[name].shape)}.")
    return converted


def _neutral(
    weights: Mapping[str, Tensor], expected: Mapping[str, tuple[tuple[str, ...], torch.Size]], style: Style
) -> dict[str, Tensor]:
    """Return zeros for biases, and ones for norms, that no layer of a tutorial model has.

    These values change no output. Only the styles `separate` and `karpathy` may lack norms. In the style `annotated`
    nothing is added, because such a model has all weights.

    Args:
        weights: the weights that exist, by the tutorial's names.
        expected: for each parameter of this package, the tutorial's names of its tensors, and its shape.
        style: the tutorial's way of naming.

    Returns:
        A dict of the added tensors by the tutorial's names.
    """
    added = {}
    for name, (parts, shape) in expected.items():
        is_norm, may_lack_norms = "_residual.norm_" in name, style in ("separate", "karpathy")
        if style == "annotated" or (is_norm and not may_lack_norms) or not (is_norm or name.endswith(".bias")):
            continue
        for part in parts:
            kind = re.sub(r"\d+", "0", part)  # a weight that some layers have must not be missing in others
            if part not in weights and all(re.sub(r"\d+", "0", other) != kind for other in weights):
                size = torch.Size((shape[0] // len(parts), *shape[1:]))
                added[part] = torch.ones(size) if name.endswith(".weight") else torch.zeros(size)
    return added


def _their_names(name: str, style: Style, names: TutorialNames) -> tuple[str, ...]:
    """Return a tutorial's names of the tensors that form one parameter of this package, a tuple.

    The parameter is the concatenation of these tensors.

    Args:
        name: this package's name, such as `encoder_layers.0.feed_forward.inner.bias`.
        style: the tutorial's way of naming.
        names: the tutorial's names of stacks and layers.
    """
    stacks = {"encoder": names.encoder, "decoder": names.decoder}
    first, _, rest = name.partition(".")
    stack, _, part = ("decoder", "", first) if style == "karpathy" else first.partition("_")
    if style == "karpathy" and part != "layers":
        return (f"{names.decoder}.{'ln_f' if part == 'norm' else 'wpe'}.{name.rpartition('.')[2]}",)
    if part == "norm":
        return (f"{stacks[stack]}.norm.{rest}",)
    number, _, inside = rest.partition(".")
    parameter = inside.rpartition(".")[2]
    pattern = re.sub(r"norm_(before|after)", "{norm}", inside.removesuffix(parameter)) + "{p}"
    table = _LAYERS[style][0 if stack == "encoder" else 1]
    layer = f"{stacks[stack]}.{names.layer.format(number=number)}"
    return tuple(f"{layer}.{theirs.replace('{p}', parameter)}" for theirs in table[pattern])


# --- permutation of the model's dimensions ---

_READERS = ("projection.weight", "inner.weight")  # (outputs, D)
_WRITERS = ("output.weight", "output.bias", "outer.weight", "outer.bias")  # (D, inputs) or (D,)


def permute_model_width(weights: Mapping[str, Tensor], config: ModelConfig, order: Tensor) -> dict[str, Tensor]:
    """Return a dict of weights with the dimensions of the model's residual stream permuted, which changes no output.

    Positions are not weights, so the caller must compute them in the new order.

    Args:
        weights: all weights by this package's names.
        config: the model's configuration.
        order: the permutation, (D,): new dimension i is the old dimension `order[i]`.

    Raises:
        ValueError: the order does not have `d_model` dimensions.
    """
    if config.d_model != len(order):
        raise ValueError(f"an order of {len(order)} dimensions is not one of {config.d_model}")
    return {
        name: tensor if (axis := _axis(name)) is None else tensor.index_select(axis, order)
        for name, tensor in weights.items()
    }


def _axis(name: str) -> int | None:
    """Return the axis of a weight that is indexed by the residual stream's dimensions; None if there is none.

    `name` is this package's name of the weight.
    """
    if name == "output_bias":
        return None
    if name in ("source_weight", "own_target_weight", "own_output_weight") or name.endswith(_READERS):
        return 1
    return 0 if "norm" in name or name.endswith(_WRITERS) else None
