"""Map this package's names of parameters and settings to the names in Hugging Face's files, by tables for each family.

In the names of parameters, `{n}` is the number of a layer, `{p}` is `weight` or `bias`. If several stored matrices form
one matrix of this package, their rows are concatenated.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from transduce.errors import TransduceError, shown_names

Layout = Literal["rows", "transposed", "reversed", "flat", "minus-one"]


class StoredParameter(NamedTuple):
    """The names of the tensors in a weights file that hold one parameter of a model, with their layout."""

    names: tuple[str, ...]
    layout: Layout = "rows"
    """The way in which the parameter is stored. `rows`: several tensors are concatenated by rows; `transposed`: as
    (inputs, outputs); `reversed`: rows in reverse order; `flat`: a vector (rows,) as (1, rows); `minus-one`: each
    number less 1, as the weights of Gemma's norms.
    """

    def store(self, tensor: Tensor, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Return the tensors that a weights file stores for a model's parameter, a dict by name.

        The tensors are contiguous.

        Args:
            tensor: the parameter.
            sizes: the number of rows of each stored tensor; not used if there is only one.
        """
        if self.layout == "transposed":
            parts: Sequence[Tensor] = (tensor.t() if tensor.dim() == 2 else tensor,)
        elif self.layout == "reversed":
            parts = (tensor.flip(0),)
        elif self.layout == "flat":
            parts = (tensor[None],)
        elif self.layout == "minus-one":
            parts = (tensor - 1.0,)
        else:
            parts = tensor.split(list(sizes)) if len(self.names) > 1 else (tensor,)
        return {name: part.contiguous() for name, part in zip(self.names, parts, strict=True)}

    def restore(self, parts: Sequence[Tensor]) -> Tensor:
        """Return a model's parameter, one tensor, from the tensors that are stored for it.

        Args:
            parts: the stored tensors, in the order of `names`.
        """
        if self.layout == "transposed":
            return (parts[0].t() if parts[0].dim() == 2 else parts[0]).contiguous()
        if self.layout == "reversed":
            return parts[0].flip(0)
        if self.layout == "flat":
            return parts[0].flatten()
        if self.layout == "minus-one":
            return parts[0] + 1.0
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def wrong_tensors(location: object, missing: Sequence[str], unexpected: Sequence[str]) -> TransduceError:
    """Return the error for a file or folder at `location` that does not hold exactly the weights of its config.json."""
    return TransduceError(
        f"{location} does not hold the weights of its config.json: missing {shown_names(missing)}; unexpected "
        f"{shown_names(unexpected)}."
    )


def check_rows(location: object, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that stored tensors can be concatenated by rows.

    Args:
        location: the file or folder, for the message.
        shapes: the shape of each tensor, by its name.

    Raises:
        TransduceError: the rows of two tensors differ in size, or a tensor is a single number.
    """
    if len({(len(shape), shape[1:]) for shape in shapes.values()}) > 1 or () in shapes.values():
        raise TransduceError(
            f"{location}: these tensors must have rows of one length, but have the shapes {dict(shapes)}."
        )


def check_shape(location: object, name: str, found: Sequence[int], expected: Sequence[int]) -> None:
    """Check that a parameter has the shape that follows from the configuration.

    Raises:
        TransduceError: it has another shape.
    """
    if tuple(found) != tuple(expected):
        raise TransduceError(
            f"{location}: {name} must have the shape {tuple(expected)} by config.json, but has {tuple(found)}."
        )


class Names(NamedTuple):
    """The names of the stored tensors that form one parameter of this package's models, or a template of such names."""

    ours: str
    """This package's name of the parameter."""
    theirs: tuple[str, ...]
    """Names of the stored tensors, whose rows are concatenated."""
    layout: Layout = "rows"
    """The way in which the parameter is stored; see `StoredParameter.layout`."""


class StoredNames(NamedTuple):
    """The names of all tensors that a Hugging Face model family stores, with this package's parameters for them."""

    names: tuple[Names, ...]
    """The names of all parameters except embeddings and the output projection."""
    shared: str
    """Name of the embeddings that both sides share, or of the embeddings of a model with one side."""
    source: str | None = None
    """Name of the source's separate embeddings, if the family can have them."""
    target: str | None = None
    """Name of the target's separate embeddings, if the family can have them."""
    output: str | None = None
    """Name of the output projection, if the family can store it separately from the embeddings."""
    output_bias: tuple[str, ...] = ()
    """Names under which the bias on the logits may be stored; if several are present, the last one is used."""
    prefix: str = ""
    """The prefix, such as `model.`, of most names in a folder; it is missing if a model without a head was stored."""
    ignored: str = r"(?!)"
    """A regular expression for tensors that the import ignores: they are recomputed, or belong to heads without a
    counterpart in this package.
    """


def _same_name(ours: str, theirs: str) -> Names:
    return Names(ours + ".{p}", (theirs + ".{p}",))


def _projection(ours: str, theirs: str, parts: Sequence[str]) -> Names:
    return Names(ours + ".projection.{p}", tuple(f"{theirs}.{part}.{{p}}" for part in parts))


def _bart_attention(ours: str, theirs: str) -> tuple[Names, ...]:
    return (
        _projection(ours, theirs, ("q_proj", "k_proj", "v_proj")),
        _same_name(f"{ours}.output", f"{theirs}.out_proj"),
    )


def _bart_stack(side: str, stack: str) -> tuple[Names, ...]:
    ours, theirs = f"{stack}_layers.{{n}}", f"model.{stack}.layers.{{n}}"
    layers = (
        *_bart_attention(f"{ours}.self_attention", f"{theirs}.self_attn"),
        _same_name(f"{ours}.self_attention_residual.{{norm}}", f"{theirs}.self_attn_layer_norm"),
        _same_name(f"{ours}.feed_forward.inner", f"{theirs}.fc1"),
        _same_name(f"{ours}.feed_forward.outer", f"{theirs}.fc2"),
        _same_name(f"{ours}.feed_forward_residual.{{norm}}", f"{theirs}.final_layer_norm"),
        _same_name(f"{stack}_norm", f"model.{stack}.layer_norm"),
        _same_name(f"{side}_embedding.norm", f"model.{stack}.layernorm_embedding"),
        Names(f"{side}_embedding.positions.weight", (f"model.{stack}.embed_positions.weight",)),
    )
    cross_attention = (
        *_bart_attention(f"{ours}.memory_attention", f"{theirs}.encoder_attn"),
        _same_name(f"{ours}.memory_attention_residual.{{norm}}", f"{theirs}.encoder_attn_layer_norm"),
    )
    return layers if stack == "encoder" else layers + cross_attention


def _t5_attention(ours: str, theirs: str) -> tuple[Names, ...]:
    return (_projection(ours, theirs, ("q", "k", "v")), _same_name(f"{ours}.output", f"{theirs}.o"))


def _t5_stack(stack: str, inner: tuple[str, ...]) -> tuple[Names, ...]:
    ours, theirs = f"{stack}_layers.{{n}}", f"{stack}.block.{{n}}"
    feed_forward_index = 1 if stack == "encoder" else 2
    layers = (
        *_t5_attention(f"{ours}.self_attention", f"{theirs}.layer.0.SelfAttention"),
        _same_name(f"{ours}.self_attention_residual.{{norm}}", f"{theirs}.layer.0.layer_norm"),
        Names(
            f"{ours}.feed_forward.inner.weight",
            tuple(f"{theirs}.layer.{feed_forward_index}.DenseReluDense.{part}.weight" for part in inner),
        ),
        _same_name(f"{ours}.feed_forward.outer", f"{theirs}.layer.{feed_forward_index}.DenseReluDense.wo"),
        _same_name(f"{ours}.feed_forward_residual.{{norm}}", f"{theirs}.layer.{feed_forward_index}.layer_norm"),
        _same_name(f"{stack}_norm", f"{stack}.final_layer_norm"),
        Names(
            f"{stack}_positions.relative.weight",
            (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
        ),
    )
    cross_attention = (
        *_t5_attention(f"{ours}.memory_attention", f"{theirs}.layer.1.EncDecAttention"),
        _same_name(f"{ours}.memory_attention_residual.{{norm}}", f"{theirs}.layer.1.layer_norm"),
    )
    return layers if stack == "encoder" else layers + cross_attention


def _bert_names(base: str) -> tuple[Names, ...]:
    ours, theirs = "layers.{n}", f"{base}.encoder.layer.{{n}}"
    return (
        _projection(f"{ours}.self_attention", f"{theirs}.attention.self", ("query", "key", "value")),
        _same_name(f"{ours}.self_attention.output", f"{theirs}.attention.output.dense"),
        _same_name(f"{ours}.self_attention_residual.{{norm}}", f"{theirs}.attention.output.LayerNorm"),
        *_bert_feed_forward_names(theirs),
        *_bert_embedding_names(base),
    )


def _bert_feed_forward_names(layer: str) -> tuple[Names, ...]:
    return (
        _same_name("layers.{n}.feed_forward.inner", f"{layer}.intermediate.dense"),
        _same_name("layers.{n}.feed_forward.outer", f"{layer}.output.dense"),
        _same_name("layers.{n}.feed_forward_residual.{norm}", f"{layer}.output.LayerNorm"),
    )


def _bert_embedding_names(base: str) -> tuple[Names, ...]:
    return (
        _same_name("embedding.norm", f"{base}.embeddings.LayerNorm"),
        Names("embedding.positions.weight", (f"{base}.embeddings.position_embeddings.weight",)),
        Names("embedding.token_types", (f"{base}.embeddings.token_type_embeddings.weight",)),
    )


_DISTILBERT_LAYER = "distilbert.transformer.layer.{n}"
_DISTILBERT_NAMES = (
    _projection("layers.{n}.self_attention", f"{_DISTILBERT_LAYER}.attention", ("q_lin", "k_lin", "v_lin")),
    _same_name("layers.{n}.self_attention.output", f"{_DISTILBERT_LAYER}.attention.out_lin"),
    _same_name("layers.{n}.self_attention_residual.{norm}", f"{_DISTILBERT_LAYER}.sa_layer_norm"),
    _same_name("layers.{n}.feed_forward.inner", f"{_DISTILBERT_LAYER}.ffn.lin1"),
    _same_name("layers.{n}.feed_forward.outer", f"{_DISTILBERT_LAYER}.ffn.lin2"),
    _same_name("layers.{n}.feed_forward_residual.{norm}", f"{_DISTILBERT_LAYER}.output_layer_norm"),
    _same_name("embedding.norm", "distilbert.embeddings.LayerNorm"),
    Names("embedding.positions.weight", ("distilbert.embeddings.position_embeddings.weight",)),
    _same_name("masked_language_head.dense", "vocab_transform"),
    _same_name("masked_language_head.norm", "vocab_layer_norm"),
    _same_name("pooler", "pre_classifier"),
    _same_name("classifier", "classifier"),
)
_ALBERT_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0"
_ALBERT_NAMES = (
    _projection("layers.0.self_attention", f"{_ALBERT_LAYER}.attention", ("query", "key", "value")),
    _same_name("layers.0.self_attention.output", f"{_ALBERT_LAYER}.attention.dense"),
    _same_name("layers.0.self_attention_residual.{norm}", f"{_ALBERT_LAYER}.attention.LayerNorm"),
    _same_name("layers.0.feed_forward.inner", f"{_ALBERT_LAYER}.ffn"),
    _same_name("layers.0.feed_forward.outer", f"{_ALBERT_LAYER}.ffn_output"),
    _same_name("layers.0.feed_forward_residual.{norm}", f"{_ALBERT_LAYER}.full_layer_layer_norm"),
    *_bert_embedding_names("albert"),
    _same_name("embedding.projection", "albert.encoder.embedding_hidden_mapping_in"),
    _same_name("masked_language_head.dense", "predictions.dense"),
    _same_name("masked_language_head.norm", "predictions.LayerNorm"),
    _same_name("pooler", "albert.pooler"),
    _same_name("classifier", "classifier"),
)
_MPNET_LAYER = "mpnet.encoder.layer.{n}"
_MPNET_NAMES = (
    _projection("layers.{n}.self_attention", f"{_MPNET_LAYER}.attention.attn", ("q", "k", "v")),
    _same_name("layers.{n}.self_attention.output", f"{_MPNET_LAYER}.attention.attn.o"),
    _same_name("layers.{n}.self_attention_residual.{norm}", f"{_MPNET_LAYER}.attention.LayerNorm"),
    *_bert_feed_forward_names(_MPNET_LAYER),
    *_bert_embedding_names("mpnet"),
    Names("positions.relative.weight", ("mpnet.encoder.relative_attention_bias.weight",)),
)
_BERT_HEADS = (
    _same_name("masked_language_head.dense", "cls.predictions.transform.dense"),
    _same_name("masked_language_head.norm", "cls.predictions.transform.LayerNorm"),
    _same_name("pooler", "bert.pooler.dense"),
    _same_name("classifier", "classifier"),
)
_ROBERTA_HEADS = (
    _same_name("masked_language_head.dense", "lm_head.dense"),
    _same_name("masked_language_head.norm", "lm_head.layer_norm"),
    _same_name("classifier", "classifier.out_proj"),
    # `variant` adds the pooler, which a classification model stores in its classifier.
)

_GPT2_NAMES = (
    Names("layers.{n}.self_attention.projection.{p}", ("transformer.h.{n}.attn.c_attn.{p}",), layout="transposed"),
    Names("layers.{n}.self_attention.output.{p}", ("transformer.h.{n}.attn.c_proj.{p}",), layout="transposed"),
    Names("layers.{n}.feed_forward.inner.{p}", ("transformer.h.{n}.mlp.c_fc.{p}",), layout="transposed"),
    Names("layers.{n}.feed_forward.outer.{p}", ("transformer.h.{n}.mlp.c_proj.{p}",), layout="transposed"),
    _same_name("layers.{n}.self_attention_residual.{norm}", "transformer.h.{n}.ln_1"),
    _same_name("layers.{n}.feed_forward_residual.{norm}", "transformer.h.{n}.ln_2"),
    _same_name("norm", "transformer.ln_f"),
    Names("embedding.positions.weight", ("transformer.wpe.weight",)),
)
_LLAMA_NAMES = (
    _projection("layers.{n}.self_attention", "model.layers.{n}.self_attn", ("q_proj", "k_proj", "v_proj")),
    _same_name("layers.{n}.self_attention.output", "model.layers.{n}.self_attn.o_proj"),
    _same_name("layers.{n}.self_attention.query_norm", "model.layers.{n}.self_attn.q_norm"),
    _same_name("layers.{n}.self_attention.key_norm", "model.layers.{n}.self_attn.k_norm"),
    Names(
        "layers.{n}.feed_forward.inner.{p}", ("model.layers.{n}.mlp.gate_proj.{p}", "model.layers.{n}.mlp.up_proj.{p}")
    ),
    _same_name("layers.{n}.feed_forward.outer", "model.layers.{n}.mlp.down_proj"),
    _same_name("layers.{n}.self_attention_residual.{norm}", "model.layers.{n}.input_layernorm"),
    _same_name("layers.{n}.feed_forward_residual.{norm}", "model.layers.{n}.post_attention_layernorm"),
    _same_name("norm", "model.norm"),
)
_GEMMA_NAMES = tuple(
    each._replace(layout="minus-one") if each.ours.endswith(("{norm}.{p}", "norm.{p}")) else each
    for each in _LLAMA_NAMES
)
_PHI3_NAMES = (
    Names("layers.{n}.self_attention.projection.{p}", ("model.layers.{n}.self_attn.qkv_proj.{p}",)),
    Names("layers.{n}.feed_forward.inner.{p}", ("model.layers.{n}.mlp.gate_up_proj.{p}",)),
    *(each for each in _LLAMA_NAMES if len(each.theirs) == 1),
)
_OPT_LAYER = "model.decoder.layers.{n}"
_OPT_NAMES = (
    *_bart_attention("layers.{n}.self_attention", f"{_OPT_LAYER}.self_attn"),
    _same_name("layers.{n}.self_attention_residual.{norm}", f"{_OPT_LAYER}.self_attn_layer_norm"),
    _same_name("layers.{n}.feed_forward.inner", f"{_OPT_LAYER}.fc1"),
    _same_name("layers.{n}.feed_forward.outer", f"{_OPT_LAYER}.fc2"),
    _same_name("layers.{n}.feed_forward_residual.{norm}", f"{_OPT_LAYER}.final_layer_norm"),
    _same_name("norm", "model.decoder.final_layer_norm"),
    Names("embedding.positions.weight", ("model.decoder.embed_positions.weight",)),
)

BART = StoredNames(
    names=_bart_stack("source", "encoder") + _bart_stack("target", "decoder"),
    shared="model.shared.weight",
    source="model.encoder.embed_tokens.weight",
    target="model.decoder.embed_tokens.weight",
    output="lm_head.weight",
    output_bias=("final_logits_bias",),
    prefix="model.",
)
# Ignores stored tables of sinusoids, which are recomputed.
SINUSOIDAL = BART._replace(ignored=r"model\.(en|de)coder\.embed_positions\.(weight|weights|_float_tensor)")


def _roberta_tables(base: str, layers: tuple[Names, ...]) -> tuple[StoredNames, StoredNames, StoredNames]:
    """Return the tables of tensor names of a family with RoBERTa's heads.

    Returns:
        Three tables: for a model without a classifier, for a classifier of texts, and for a tagger of tokens.
    """
    plain = StoredNames(
        names=(*layers, *_ROBERTA_HEADS, _same_name("pooler", f"{base}.pooler.dense")),
        shared=f"{base}.embeddings.word_embeddings.weight",
        output="lm_head.decoder.weight",
        output_bias=("lm_head.bias", "lm_head.decoder.bias"),
        prefix=f"{base}.",
        ignored=rf"{base}\.embeddings\.position_ids",
    )
    classifier = plain._replace(
        names=(*layers, *_ROBERTA_HEADS, _same_name("pooler", "classifier.dense")),
        ignored=rf"{plain.ignored}|{base}\.pooler\.dense\.(weight|bias)",  # nothing reads this pooler
    )
    return plain, classifier, plain._replace(names=(*layers, _same_name("classifier", "classifier")))


ROBERTA, _CLASSIFIER_ROBERTA, _TAGGER_ROBERTA = _roberta_tables("roberta", _bert_names("roberta"))
MPNET, _CLASSIFIER_MPNET, _TAGGER_MPNET = _roberta_tables("mpnet", _MPNET_NAMES)

T5 = StoredNames(
    names=_t5_stack("encoder", ("wi",)) + _t5_stack("decoder", ("wi",)),
    shared="shared.weight",
    source="encoder.embed_tokens.weight",
    target="decoder.embed_tokens.weight",
    output="lm_head.weight",
    # Old files contain this table, which no version uses.
    ignored=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)
_GATED_T5 = T5._replace(names=_t5_stack("encoder", ("wi_0", "wi_1")) + _t5_stack("decoder", ("wi_0", "wi_1")))

LLAMA = StoredNames(
    names=_LLAMA_NAMES,
    shared="model.embed_tokens.weight",
    output="lm_head.weight",
    prefix="model.",
    ignored=r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
)
GEMMA = LLAMA._replace(names=_GEMMA_NAMES)
PHI3 = LLAMA._replace(names=_PHI3_NAMES)
OPT = StoredNames(
    names=_OPT_NAMES, shared="model.decoder.embed_tokens.weight", output="lm_head.weight", prefix="model."
)

BERT = StoredNames(
    names=_bert_names("bert") + _BERT_HEADS,
    shared="bert.embeddings.word_embeddings.weight",
    output="cls.predictions.decoder.weight",
    output_bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
    prefix="bert.",
    # Position ids, and the head of next-sentence prediction.
    ignored=r"bert\.embeddings\.position_ids|cls\.seq_relationship\.(weight|bias)",
)
DISTILBERT = StoredNames(
    names=_DISTILBERT_NAMES,
    shared="distilbert.embeddings.word_embeddings.weight",
    output="vocab_projector.weight",
    output_bias=("vocab_projector.bias",),
    prefix="distilbert.",
    ignored=r"distilbert\.embeddings\.position_ids",
)
ALBERT = StoredNames(
    names=_ALBERT_NAMES,
    shared="albert.embeddings.word_embeddings.weight",
    output="predictions.decoder.weight",
    output_bias=("predictions.bias", "predictions.decoder.bias"),
    prefix="albert.",
    # Position ids, and the head that finds exchanged sentences.
    ignored=r"albert\.embeddings\.position_ids|sop_classifier\..*",
)
_ELECTRA_NAMES = (
    *_bert_names("electra"),
    _same_name("embedding.projection", "electra.embeddings_project"),
    _same_name("masked_language_head.dense", "generator_predictions.dense"),
    _same_name("masked_language_head.norm", "generator_predictions.LayerNorm"),
)
ELECTRA = StoredNames(
    names=(*_ELECTRA_NAMES, _same_name("classifier", "classifier")),
    shared="electra.embeddings.word_embeddings.weight",
    output="generator_lm_head.weight",
    output_bias=("generator_lm_head.bias",),
    prefix="electra.",
    # Position ids, and the head that finds replaced tokens.
    ignored=r"electra\.embeddings\.position_ids|discriminator_predictions\..*",
)
_CLASSIFIER_ELECTRA = ELECTRA._replace(
    names=(
        *_ELECTRA_NAMES,
        _same_name("classifier", "classifier.out_proj"),
        _same_name("pooler", "classifier.dense"),
    )
)
GPT2 = StoredNames(
    names=_GPT2_NAMES,
    shared="transformer.wte.weight",
    output="lm_head.weight",
    prefix="transformer.",
    # The causal mask, stored as a buffer.
    ignored=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
)


# The tables of classifiers of texts and of tokens of families that have others than `family` itself.
_WITH_LABELS = {
    ELECTRA: (_CLASSIFIER_ELECTRA, ELECTRA),
    ROBERTA: (_CLASSIFIER_ROBERTA, _TAGGER_ROBERTA),
    MPNET: (_CLASSIFIER_MPNET, _TAGGER_MPNET),
}


def variant(family: StoredNames, present: Collection[str]) -> StoredNames:
    """Return the table of tensor names (`StoredNames`) that fits a file of weights.

    The result is `family` itself, unless the file is of a T5 with gated feed-forward layers, a classifier or tagger
    with RoBERTa's heads, or an ELECTRA classifier.

    Args:
        family: the table of the model's family.
        present: the names of the tensors in the file.
    """
    if family is T5 and any(name.endswith(".DenseReluDense.wi_0.weight") for name in present):
        return _GATED_T5
    classifier, tagger = _WITH_LABELS.get(family, (family, family))
    if "classifier.dense.weight" in present:
        return classifier
    return tagger if "classifier.weight" in present else family


def find_names(table: tuple[Names, ...], name: str) -> StoredParameter | None:
    """Return the stored names and layout of a parameter of this package; None if the table lacks the parameter.

    Args:
        table: the names of all parameters, as templates with placeholders such as `{n}` for the number of a layer.
        name: this package's name of the parameter, such as `layers.0.feed_forward.inner.weight`.
    """
    for entry in table:
        match = _pattern(entry.ours).fullmatch(name)
        if match is not None:
            theirs = tuple(template.format(**match.groupdict()) for template in entry.theirs)
            return StoredParameter(theirs, entry.layout)
    return None


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = {"{n}": r"(?P<n>\d+)", "{p}": "(?P<p>weight|bias)", "{norm}": "(?P<norm>norm_before|norm_after)"}
    text = re.escape(template)
    for key, pattern in parts.items():
        text = text.replace(re.escape(key), pattern)
    return re.compile(text)


# --- config.json: names of activations, ids of special tokens, and keys that hold settings as they are ---


# This package's names of activations by Hugging Face's, of which the last is written.
ACTIVATIONS = {
    "relu": "relu",
    "gelu_python": "gelu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "swish": "silu",
    "silu": "silu",
}
GATES = {"relu": "reglu", "gelu": "geglu", "gelu-tanh": "geglu-tanh", "silu": "swiglu"}


def end_ids(content: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the token ids of `eos_token_id` in the content of a JSON file, a tuple without duplicates.

    The setting holds one id or a list of ids, whose order is kept. Without the setting, the tuple is empty.
    """
    value = content.get("eos_token_id")
    listed = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(id for id in listed if isinstance(id, int) and not isinstance(id, bool)))


def start_id(generation: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """Return the token id with which the decoder of an encoder–decoder starts; None if the folder's files set none.

    Args:
        generation: the content of `generation_config.json`, which takes precedence.
        config: the content of `config.json`.
    """
    ids = (content.get("decoder_start_token_id") for content in (generation, config))
    return next((id for id in ids if isinstance(id, int)), None)


Settings = dict[str, Any]


class Key(NamedTuple):
    """A key of Hugging Face's config.json that holds one of this package's settings, with its default."""

    name: str
    default: float | Callable[[Settings], int] | None = None
    """The meaning of a missing key: a value, whose type is that of the setting, or a function that computes it from the
    settings read before; None: the key must be present.
    """


Keys = Mapping[str, Key]
"""A mapping from this package's names of settings to the keys of a family's config.json. If several settings have the
same key, the last one is exported.
"""

BART_KEYS: Keys = {
    "source_vocabulary_size": Key("vocab_size"),
    "target_vocabulary_size": Key("decoder_vocab_size", lambda settings: int(settings["source_vocabulary_size"])),
    "num_encoder_layers": Key("encoder_layers"),
    "num_decoder_layers": Key("decoder_layers"),
    "d_model": Key("d_model"),
    "dropout": Key("dropout", 0.1),
    "attention_dropout": Key("attention_dropout", 0.0),
    "activation_dropout": Key("activation_dropout", 0.0),
    "scale_embeddings": Key("scale_embedding", default=False),
    "pad_id": Key("pad_token_id"),
    "eos_id": Key("eos_token_id"),
}
T5_KEYS: Keys = {
    "d_model": Key("d_model"),
    "source_vocabulary_size": Key("vocab_size"),
    "target_vocabulary_size": Key("vocab_size"),
    "num_encoder_layers": Key("num_layers"),
    "num_decoder_layers": Key("num_decoder_layers", lambda settings: int(settings["num_encoder_layers"])),
    "d_ff": Key("d_ff"),
    "num_heads": Key("num_heads"),
    "d_k": Key("d_kv"),
    "d_v": Key("d_kv"),
    "attention_dropout": Key("dropout_rate", 0.1),
    "activation_dropout": Key("dropout_rate", 0.1),
    "dropout": Key("dropout_rate", 0.1),
    "norm_epsilon": Key("layer_norm_epsilon", 1e-6),
    "relative_buckets": Key("relative_attention_num_buckets", 32),
    "relative_max_distance": Key("relative_attention_max_distance", 128),
    "pad_id": Key("pad_token_id", 0),
    "eos_id": Key("eos_token_id", 1),
}
BERT_KEYS: Keys = {
    "source_vocabulary_size": Key("vocab_size"),
    "target_vocabulary_size": Key("vocab_size"),
    "num_encoder_layers": Key("num_hidden_layers"),
    "d_model": Key("hidden_size"),
    "d_ff": Key("intermediate_size"),
    "num_heads": Key("num_attention_heads"),
    "dropout": Key("hidden_dropout_prob", 0.1),
    "attention_dropout": Key("attention_probs_dropout_prob", 0.1),
    "norm_epsilon": Key("layer_norm_eps", 1e-12),
    "max_positions": Key("max_position_embeddings"),
    "token_types": Key("type_vocab_size", 2),
    "pad_id": Key("pad_token_id", 0),
}
ALBERT_KEYS: Keys = {
    **BERT_KEYS,
    "embedding_size": Key("embedding_size", 128),
    "dropout": Key("hidden_dropout_prob", 0.0),
    "attention_dropout": Key("attention_probs_dropout_prob", 0.0),
}
MPNET_KEYS: Keys = {name: key for name, key in BERT_KEYS.items() if name != "token_types"}
DISTILBERT_KEYS: Keys = {
    "source_vocabulary_size": Key("vocab_size"),
    "target_vocabulary_size": Key("vocab_size"),
    "num_encoder_layers": Key("n_layers", 6),
    "d_model": Key("dim", 768),
    "d_ff": Key("hidden_dim", 3072),
    "num_heads": Key("n_heads", 12),
    "dropout": Key("dropout", 0.1),
    "attention_dropout": Key("attention_dropout", 0.1),
    "max_positions": Key("max_position_embeddings", 512),
    "pad_id": Key("pad_token_id", 0),
}
GPT2_KEYS: Keys = {
    "source_vocabulary_size": Key("vocab_size"),
    "target_vocabulary_size": Key("vocab_size"),
    "num_decoder_layers": Key("n_layer"),
    "d_model": Key("n_embd"),
    "d_ff": Key("n_inner", lambda settings: 4 * int(settings["d_model"])),
    "num_heads": Key("n_head"),
    "dropout": Key("resid_pdrop", 0.1),
    "attention_dropout": Key("attn_pdrop", 0.1),
    "norm_epsilon": Key("layer_norm_epsilon", 1e-5),
    "max_positions": Key("n_positions"),
}
OPT_KEYS: Keys = {
    "source_vocabulary_size": Key("vocab_size"),
    "target_vocabulary_size": Key("vocab_size"),
    "num_decoder_layers": Key("num_hidden_layers"),
    "d_model": Key("hidden_size"),
    "d_ff": Key("ffn_dim"),
    "num_heads": Key("num_attention_heads"),
    "dropout": Key("dropout", 0.1),
    "attention_dropout": Key("attention_dropout", 0.0),
    "max_positions": Key("max_position_embeddings"),
    "bias": Key("enable_bias", default=True),
}
LLAMA_KEYS: Keys = {
    "source_vocabulary_size": Key("vocab_size"),
    "target_vocabulary_size": Key("vocab_size"),
    "num_decoder_layers": Key("num_hidden_layers"),
    "d_model": Key("hidden_size"),
    "d_ff": Key("intermediate_size"),
    "num_heads": Key("num_attention_heads"),
    "num_key_value_heads": Key("num_key_value_heads", lambda settings: int(settings["num_heads"])),
    "d_k": Key("head_dim", lambda settings: int(settings["d_model"] // settings["num_heads"])),
    "attention_dropout": Key("attention_dropout", 0.0),
    "norm_epsilon": Key("rms_norm_eps", 1e-6),
    "projection_bias": Key("attention_bias", default=False),
    "feed_forward_bias": Key("mlp_bias", default=False),
}
