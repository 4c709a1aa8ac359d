"""Export encoder–decoders and decoder-only models to CTranslate2, and run the exported models for comparison.

The export fills the specification classes of CTranslate2's Python package. It sets everything explicitly: the table of
positions (CTranslate2's own sinusoids differ), the embedding scale, and one relative bias per layer. CTranslate2
detects tied weights by their equal values and stores them once.
Legend: B batch, V vocabulary, D model width.
"""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from transduce.errors import import_extra
from transduce.interop.components import (
    EXPORTABLE,
    MAXIMUM_POSITIONS,
    ExportedModel,
    Ids,
    LinearWeights,
    check_components,
    decoder_layers_of,
    embedding_scale,
    encoder_layers_of,
    has_sandwich_norm,
    join,
    linear_weights,
    position_encoding_table,
    scaled_attention_projections,
)
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizer
from transduce.model.attention import MultiHeadAttention
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding, VocabularyModel
from transduce.model.feed_forward import FeedForward, GatedFeedForward
from transduce.model.layer_graph import table, unsupported_settings
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual, StackPositions, each_layer
from transduce.model.positions import RelativePositions
from transduce.model.transformer import Decoder, Transformer
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary

QUANTIZATIONS = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")

_ACTIVATIONS = {
    "relu": "RELU",
    "reglu": "RELU",
    "gelu": "GELU",
    "geglu": "GELU",
    "gelu-tanh": "GELUTanh",
    "geglu-tanh": "GELUTanh",
    "silu": "SWISH",
    "swiglu": "SWISH",
}


CTRANSLATE2 = table(
    "CTranslate2",
    **EXPORTABLE
    | {
        "class_": "Transformer Decoder",  # neither an encoder's heads nor recurrent cells
        "norm": "layer rms",
        "attention_window": "none",
        "attention": "",
        "attention_score": "scaled dot general",
        "attention_kind": "soft",
        "value_width": "equal",
        "token_types": "none",
        "position_bias": "",
    },
)
"""A table of the model components that CTranslate2 can compute; models with others cannot be exported."""


def ctranslate2_obstacles(config: ModelConfig) -> list[str]:
    """Return a list of the names of a configuration's settings that CTranslate2 does not support; empty without any."""
    unsupported = {
        # CTranslate2's decoders apply a wrong relative bias after a prompt of several tokens.
        "positions": config.kind == "decoder" and config.positions == "relative",
        "rotary_scaling": config.rotary_scaling is not None,
        "final_norm": config.norm_order == "post" and config.has_final_norm,
    }
    return [
        *unsupported_settings(CTRANSLATE2, config),
        *(name for name, is_unsupported in unsupported.items() if is_unsupported),
    ]


def write_ctranslate2(
    model: Transformer | Decoder, tokenizer: Tokenizer, folder: Path, *, quantization: str = "float32"
) -> None:
    """Write a translation or language model in CTranslate2's format: model.bin, config.json and the vocabularies.

    Args:
        model: a model with float32 weights.
        tokenizer: the model's tokenizer, whose vocabularies are written.
        folder: an existing folder.
        quantization: number format of the stored weights, one of `QUANTIZATIONS`.

    Raises:
        TransduceError: the ctranslate2 package is missing, or `CTRANSLATE2` lacks a component of the model.
        ValueError: `ctranslate2_obstacles` names a setting of the model.
    """
    check_components(CTRANSLATE2, model)
    target = tokenizer.target
    if isinstance(model, Decoder):
        spec = _language_model_specification(model)
        spec.register_vocabulary(_tokens(target))
    else:
        spec = _specification(model)
        spec.register_source_vocabulary(_tokens(tokenizer.source))
        spec.register_target_vocabulary(_tokens(target))
        spec.config.decoder_start_token = target.token(model.config.start_id)
        # An imported tokenizer may add more special tokens than the end symbol, so callers add them.
        spec.config.add_source_eos = not isinstance(tokenizer, ImportedTokenizer)
    settings = spec.config
    settings.unk_token = target.token(target.unk_id)
    settings.eos_token = settings.bos_token = target.token(target.eos_id)
    settings.layer_norm_epsilon = model.config.norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _tokens(vocabulary: Vocabulary) -> list[str]:
    return vocabulary.tokens(range(vocabulary.size))


def _specification(model: Transformer) -> Any:
    specs = import_extra("ctranslate2", "export").specs
    config = model.config
    encoder = specs.TransformerEncoderSpec(config.num_encoder_layers, config.num_heads, **_stack_settings(config))
    decoder = specs.TransformerDecoderSpec(
        config.num_decoder_layers,
        config.num_heads,
        external_pre_post_encoder_layers=config.norm_order == "sandwich",
        **_stack_settings(config),
    )
    _set_embedding(encoder, encoder.embeddings[0], model.source_embedding, model.source_weight, config)
    _set_embedding(decoder, decoder.embeddings, model.target_embedding, model.target_weight, config)
    if config.has_final_norm:
        _set_norm(encoder.layer_norm, model.encoder_norm)
    _set_output(decoder, model, model.decoder_norm)
    for spec, layer in zip(encoder.layer, encoder_layers_of(model), strict=True):
        _set_encoder_layer(spec, layer, model.encoder_positions)
    for spec, decoder_layer in zip(decoder.layer, decoder_layers_of(model), strict=True):
        _set_decoder_layer(spec, decoder_layer, model.decoder_positions)
    return specs.TransformerSpec(encoder, decoder)


def _language_model_specification(model: Decoder) -> Any:
    specs = import_extra("ctranslate2", "export").specs
    config = model.config
    decoder = specs.TransformerDecoderSpec(
        config.num_decoder_layers, config.num_heads, with_encoder_attention=False, **_stack_settings(config)
    )
    _set_embedding(decoder, decoder.embeddings, model.embedding, model.source_weight, config)
    _set_output(decoder, model, model.norm)
    for spec, layer in zip(decoder.layer, each_layer(model.layers, config.num_decoder_layers), strict=True):
        _set_encoder_layer(spec, cast(EncoderLayer, layer), model.positions)
    return specs.TransformerDecoderModelSpec(decoder)


def _stack_settings(config: ModelConfig) -> dict[str, Any]:
    """Return a dict of keyword arguments for CTranslate2's specifications of encoder and decoder.

    The arguments state norms, activation, positions and heads, as the model's configuration sets them.
    """
    common = import_extra("ctranslate2", "export").specs.common_spec
    rotary = config.positions.startswith("rotary")
    return {
        "pre_norm": config.norm_order != "post",
        "no_final_norm": not config.has_final_norm,
        "pre_post_layer_norm": config.norm_order == "sandwich",
        "rms_norm": config.norm == "rms",
        "layernorm_embedding": config.embedding_norm,
        "activation": common.Activation[_ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation.endswith(("glu", "glu-tanh")),
        "relative_attention_bias": config.positions == "relative",
        "rotary_dim": 0 if rotary else None,
        "rotary_interleave": config.positions == "rotary-interleaved",
        "rotary_base": config.rotary_base,
        "num_heads_kv": config.num_key_value_heads,
        "head_dim": config.key_width if config.key_width * config.num_heads != config.d_model else None,
    }


def _set_output(decoder: Any, model: VocabularyModel, norm: nn.Module) -> None:
    if model.config.has_final_norm:
        _set_norm(decoder.layer_norm, norm)
    bias = None if model.output_bias is None else model.output_bias.detach()
    _set_linear(decoder.projection, LinearWeights(model.output_weight.detach(), bias))
    if model.config.output_scale != 1.0:
        decoder.scale_outputs = model.config.output_scale


def _set_embedding(stack: Any, spec: Any, embedding: Embedding, weight: Tensor, config: ModelConfig) -> None:
    spec.weight = weight.detach().clone()  # CTranslate2's quantization multiplies it in place
    scale = embedding_scale(config)
    stack.scale_embeddings = False if scale == 1.0 else scale
    if embedding.norm is not None:
        _set_norm(stack.layernorm_embedding, embedding.norm)
    if config.positions in ("sinusoidal", "learned", "none"):
        encodings = position_encoding_table(embedding, config)
        if encodings is None:
            encodings = torch.zeros(MAXIMUM_POSITIONS, config.d_model)
        stack.position_encodings.encodings = encodings


def _set_encoder_layer(spec: Any, layer: EncoderLayer | DecoderLayer, positions: StackPositions) -> None:
    _set_self_attention(spec.self_attention, layer.self_attention, positions)
    _set_feed_forward(spec.ffn, layer.feed_forward)
    names = "self_attention.layer_norm", "input_layer_norm", "post_attention_layer_norm"
    _set_norms(spec, layer.self_attention_residual, *names)
    names = "ffn.layer_norm", "pre_feedforward_layer_norm", "post_feedforward_layer_norm"
    _set_norms(spec, layer.feed_forward_residual, *names)


def _set_decoder_layer(spec: Any, layer: DecoderLayer, positions: StackPositions) -> None:
    _set_encoder_layer(spec, layer, positions)
    projections = scaled_attention_projections(layer.memory_attention)
    _set_linear(spec.attention.linear[0], projections.query)
    _set_linear(spec.attention.linear[1], join([projections.key, projections.value]))
    _set_linear(spec.attention.linear[2], projections.output)
    sandwich = "external_pre_encoder_attention_layer_norm", "external_post_encoder_attention_layer_norm"
    _set_norms(spec, layer.memory_attention_residual, "attention.layer_norm", *sandwich)


def _set_self_attention(spec: Any, attention: MultiHeadAttention, positions: StackPositions) -> None:
    projections = scaled_attention_projections(attention)
    _set_linear(spec.linear[0], join([projections.query, projections.key, projections.value]))
    _set_linear(spec.linear[1], projections.output)
    if positions.bias is not None:
        assert isinstance(positions.bias, RelativePositions)
        spec.relative_attention_bias = positions.bias.weight.detach()
        spec.relative_attention_max_distance = np.int32(positions.bias.max_distance)


def _set_feed_forward(spec: Any, feed_forward: FeedForward | GatedFeedForward) -> None:
    inner = linear_weights(feed_forward.inner)
    if isinstance(feed_forward, GatedFeedForward):
        biases = (None, None) if inner.bias is None else inner.bias.chunk(2)
        gate, linear = (LinearWeights(weight, bias) for weight, bias in zip(inner.weight.chunk(2), biases, strict=True))
        _set_linear(spec.linear_0, gate)
        _set_linear(spec.linear_0_noact, linear)
    else:
        _set_linear(spec.linear_0, inner)
    _set_linear(spec.linear_1, linear_weights(feed_forward.outer))


def _set_norms(spec: Any, residual: Residual, only: str, before: str, after: str) -> None:
    """Set the norms around a sub-layer in CTranslate2's specification of a layer.

    Args:
        spec: the specification.
        residual: the norms of the model's sub-layer.
        only: the attribute of the specification that holds the only norm of a sub-layer with one norm.
        before: the attribute for the norm before the sub-layer, if there are two.
        after: the attribute for the norm after the sub-layer, if there are two.
    """
    if has_sandwich_norm(residual):
        _set_norm(getattr(spec, before), residual.norm_before)
        _set_norm(getattr(spec, after), residual.norm_after)
    else:
        is_after = isinstance(residual.norm_before, nn.Identity)
        _set_norm(attrgetter(only)(spec), residual.norm_after if is_after else residual.norm_before)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    weights = dict(norm.named_parameters())
    spec.gamma = weights["weight"].detach()
    if "bias" in weights:
        spec.beta = weights["bias"].detach()


def _set_linear(spec: Any, linear: LinearWeights) -> None:
    spec.weight = linear.weight.clone()  # CTranslate2's quantization multiplies the weight in place
    if linear.bias is not None:
        spec.bias = linear.bias


class CTranslate2Model(ExportedModel):
    """An exported encoder–decoder that CTranslate2 runs on the CPU, to compare it with its original."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, *, start_id: int, threads: int) -> None:
        package = import_extra("ctranslate2", "export")
        self._translator = package.Translator(str(folder), device="cpu", inter_threads=1, intra_threads=threads)
        self._source = _tokens(tokenizer.source)
        self._target = _tokens(tokenizer.target)
        self._ids = {token: id for id, token in enumerate(self._target)}
        self._adds_end = not isinstance(tokenizer, ImportedTokenizer)  # as `write_ctranslate2` sets `add_source_eos`
        self._forced = tokenizer.target.tokens(tokenizer.target.forced)
        self._forbidden = [[self._target[id]] for id in sorted({tokenizer.target.pad_id, start_id})]
        self._forbidden = [tokens for tokens in self._forbidden if tokens != [self._target[tokenizer.target.eos_id]]]

    @override
    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        tokens = [[self._target[id] for id in row] for row in targets]
        scored = self._translator.score_batch(self._source_tokens(sources), tokens)
        return [result.log_probs for result in scored]

    @override
    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        results = self._translator.translate_batch(
            self._source_tokens(sources),
            target_prefix=[self._forced] * len(sources),
            beam_size=1,
            max_decoding_length=max_tokens,
            min_decoding_length=0,
            suppress_sequences=self._forbidden,
        )
        return [[self._ids[token] for token in result.hypotheses[0]] for result in results]

    def _source_tokens(self, sources: Ids) -> list[list[str]]:
        return [[self._source[id] for id in (row[:-1] if self._adds_end else row)] for row in sources]


class CTranslate2LanguageModel(ExportedModel):
    """An exported decoder-only language model that CTranslate2 runs on the CPU, to compare it with its original."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, *, start_id: int, threads: int) -> None:
        package = import_extra("ctranslate2", "export")
        self._generator = package.Generator(str(folder), device="cpu", inter_threads=1, intra_threads=threads)
        vocabulary = tokenizer.target
        self._tokens_by_id = _tokens(vocabulary)
        self._start = self._tokens_by_id[start_id]
        self._end_id = vocabulary.eos_id
        self._forbidden = [
            [self._tokens_by_id[id]] for id in sorted({vocabulary.pad_id, vocabulary.unk_id} - {self._end_id})
        ]

    @override
    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        rows = [
            [self._start, *self._tokens_of([*source, *target, self._end_id])]
            for source, target in zip(sources, targets, strict=True)
        ]
        scored = self._generator.score_batch(rows)
        return [result.log_probs[len(source) :] for result, source in zip(scored, sources, strict=True)]

    @override
    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        continuations: list[list[int]] = [[] for _ in sources]
        # If a batch has an empty prompt, CTranslate2 4.8.5 repeats the other prompts in its results: split the batch.
        for has_tokens in (True, False):
            indices = [index for index, row in enumerate(sources) if bool(row) == has_tokens]
            results = self._continue([sources[index] for index in indices], max_tokens)
            for index, ids in zip(indices, results, strict=True):
                continuations[index] = ids
        return continuations

    def _continue(self, prompts: Ids, max_tokens: int) -> list[list[int]]:
        """Return a list of token ids for each prompt, its greedy continuation.

        Prompts must be all empty or all nonempty.

        Args:
            prompts: token ids of each prompt, without the start symbol.
            max_tokens: maximum number of tokens of a continuation.
        """
        results = self._generator.generate_batch(
            [[self._start, *self._tokens_of(row)] for row in prompts],
            beam_size=1,
            max_length=max_tokens,
            include_prompt_in_result=False,
            suppress_sequences=self._forbidden,
        )
        return [list(result.sequences_ids[0]) for result in results]

    def _tokens_of(self, ids: Sequence[int]) -> list[str]:
        return [self._tokens_by_id[id] for id in ids]
