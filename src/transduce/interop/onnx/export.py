"""Export models to ONNX graphs: two for an encoder–decoder, one for a language model or an encoder alone.

encoder.onnx maps `source_ids` to the decoder's inputs: `memory_mask` and, for each decoder layer N, `memory_key.N` and
`memory_value.N`, the projected encoder output. decoder.onnx maps these, `target_ids` (one or more new tokens) and the
cache of the previous call, `past_key.N` and `past_value.N` (length 0 at first), to `logits` and the extended cache,
`key.N` and `value.N`. Batch sizes and lengths are dynamic. `recurrent.py` exports recurrent encoder–decoders.

A language model's model.onnx maps `ids` (one or more new tokens), `positions` of all tokens of a row so far, and the
cache to `logits` and the extended cache. Positions count from 0 in each row; padding has position -1 and is masked. An
encoder's model.onnx maps `ids`, padded at the right, and `token_types`, if the model has any, to `states` and the
outputs of its heads.
Legend: B batch, S source length, T tokens of this call, L tokens so far, D model width.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from transduce.errors import import_extra
from transduce.interop.components import (
    EXPORTABLE,
    ExportedEncoder,
    ExportedModel,
    Ids,
    check_components,
    decoder_layers_of,
    encoder_layers_of,
    linear_weights,
    max_sequence_length,
    padded,
    split_outputs,
    target_log_probabilities,
    until_end,
)
from transduce.interop.onnx.layers import (
    Graph,
    KeysAndValues,
    Memory,
    add_inputs,
    add_outputs,
    build_activation,
    build_bias,
    build_context,
    build_embedding,
    build_layer,
    build_linear,
    build_memory_keys_and_values,
    build_norm,
    build_output,
    build_output_scale,
    key_mask,
)
from transduce.interop.onnx.recurrent import build_recurrent_decoder, build_recurrent_encoder
from transduce.model.build import Model
from transduce.model.config import ModelConfig
from transduce.model.layer_graph import table, unsupported_settings
from transduce.model.layers import EncoderLayer, each_layer
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Decoder, Encoder, Transformer

# --- one graph: a decoder or an encoder alone ---


_TO_THE_END = 2**62


def build_language_model(model: Decoder) -> Graph:
    """Build the ONNX `Graph` of a decoder-only model, which computes the logits of one or more new tokens.

    The graph's inputs are the new tokens' ids, the positions of all tokens so far, and each layer's cached keys and
    values. Its outputs are the logits and the extended cache.
    """
    graph, config = Graph("language_model"), model.config
    ids = graph.add_input("ids", np.int64, ("batch", "length"))
    positions = graph.add_input("positions", np.int64, ("batch", "total"))
    pasts = [add_inputs(graph, config, "past_", n, "past") for n in range(config.num_decoder_layers)]
    past_length = graph.size(pasts[0].keys, 2)
    new_positions = graph.apply(
        "Slice", positions, past_length, graph.integers(_TO_THE_END), graph.integers(1)
    )  # (B, T)
    present = graph.apply("GreaterOrEqual", positions, graph.integer(0))
    # Padding has position -1, for which tables have no row; its result is unused.
    table_positions = graph.apply("Max", new_positions, graph.integer(0))
    x = build_embedding(graph, ids, table_positions, model.embedding, model.source_weight, config)
    context = build_context(graph, model.positions, config, table_positions, positions, present)
    caches = []
    for layer, past in zip(each_layer(model.layers, config.num_decoder_layers), pasts, strict=True):
        x, cache = build_layer(graph, x, cast(EncoderLayer, layer), context, config, past=past)
        caches.append(cache)
    x = build_output_scale(graph, build_norm(graph, x, model.norm), config)
    _add_step_outputs(graph, x, caches, model, "length")
    return graph


def _add_step_outputs(
    graph: Graph, x: str, caches: Sequence[KeysAndValues], model: Decoder | Transformer, length: str
) -> None:
    """Add the outputs of a decoder step to its graph: `logits`, and each layer's keys and values so far.

    Args:
        graph: the graph.
        x: name of the decoder's last states, (B, T, D), from which the logits are computed.
        caches: names of each layer's keys and values, (B, heads, L, width).
        model: the model, whose output projection is used.
        length: name of the graph's dimension T.
    """
    shape = ("batch", length, model.config.target_vocabulary_size)
    graph.add_output(build_output(graph, x, model), "logits", np.float32, shape)
    for number, cache in enumerate(caches):
        add_outputs(graph, cache, model.config, "", number, "total")


def build_encoder_only(model: Encoder) -> Graph:
    """Build the ONNX `Graph` of an encoder-only model, which outputs its last states and what its heads compute.

    The graph's inputs are the tokens' ids and, if the model has segments, their types. The outputs of heads are
    `logits` of each token, the `pooled` first state, and `classes`: logits of the text's classes or, in a tagger, of
    each token's labels.
    """
    graph, config = Graph("encoder"), model.config
    ids = graph.add_input("ids", np.int64, ("batch", "length"))
    types = graph.add_input("token_types", np.int64, ("batch", "length")) if config.token_types else None
    positions, present = _positions_and_mask(graph, ids, config.pad_id)
    x = build_embedding(graph, ids, positions, model.embedding, model.source_weight, config, token_types=types)
    context = build_context(graph, model.positions, config, positions, positions, present)
    for layer in each_layer(model.layers, config.num_encoder_layers):
        x, _ = build_layer(graph, x, cast(EncoderLayer, layer), context, config)
    states = build_norm(graph, x, model.norm)
    graph.add_output(states, "states", np.float32, ("batch", "length", config.d_model))
    if model.masked_language_head is not None:
        _add_logits(graph, states, model)
    if model.pooler is not None:
        _add_pooled(graph, states, model)
    if model.classifier is not None and config.token_labels:
        labels = build_linear(graph, states, linear_weights(model.classifier))
        graph.add_output(labels, "classes", np.float32, ("batch", "length", config.num_labels))
    return graph


def _positions_and_mask(graph: Graph, ids: str, pad_id: int) -> tuple[str, str]:
    """Add an encoder's positions and padding mask to an ONNX graph.

    Returns:
        The names of the tokens' positions, (1, length), and of the mask, (batch, length), which is true for tokens that
        are not padding.
    """
    positions = graph.unsqueeze(graph.count(graph.integers(0), graph.size(ids, 1)), 0)
    return positions, graph.apply("Not", graph.apply("Equal", ids, graph.integer(pad_id)))


def _add_logits(graph: Graph, states: str, model: Encoder) -> None:
    """Add a masked language model's logits, (batch, length, vocabulary), as an output of an encoder's graph."""
    head, config = model.masked_language_head, model.config
    assert head is not None
    hidden = build_activation(graph, build_linear(graph, states, linear_weights(head.dense)), config.activation)
    hidden = build_output_scale(graph, build_norm(graph, hidden, head.norm), config)
    shape = ("batch", "length", config.target_vocabulary_size)
    graph.add_output(build_output(graph, hidden, model), "logits", np.float32, shape)


def _add_pooled(graph: Graph, states: str, model: Encoder) -> None:
    """Add the pooled first state, (batch, width), and the logits of a text's classes to an encoder graph's outputs.

    The logits, (batch, classes), are only added if the model classifies texts, not their tokens.
    """
    assert model.pooler is not None
    first = graph.apply("Gather", states, graph.integer(0), attributes={"axis": 1})  # (B, D)
    pooled, activation = build_linear(graph, first, linear_weights(model.pooler)), model.config.pooler_activation
    pooled = graph.apply("Tanh", pooled) if activation == "tanh" else build_activation(graph, pooled, activation)
    graph.add_output(pooled, "pooled", np.float32, ("batch", model.config.d_model))
    if model.classifier is not None and not model.config.token_labels:
        classes = build_linear(graph, pooled, linear_weights(model.classifier))
        graph.add_output(classes, "classes", np.float32, ("batch", model.config.num_labels))


# --- export ---


ENCODER, DECODER, MODEL = "encoder.onnx", "decoder.onnx", "model.onnx"


ONNX = table("the ONNX export", **EXPORTABLE)
"""A table of the model components that can be exported to ONNX."""


def onnx_obstacles(config: ModelConfig) -> list[str]:
    """Return a list of names of a configuration's settings that the export to ONNX does not support; empty if none."""
    return unsupported_settings(ONNX, config)


def write_onnx(model: Model, folder: Path) -> None:
    """Write a model's ONNX graphs: encoder.onnx and decoder.onnx, or model.onnx for an encoder or decoder alone.

    Each graph has the ids of padding, end and start, the kind of model and the longest sequence as metadata.

    Args:
        model: a model with float32 weights.
        folder: an existing folder.

    Raises:
        TransduceError: the onnx package is missing, or `ONNX` lacks a component of the model.
    """
    check_components(ONNX, model)
    config = model.config
    metadata = {"pad_id": str(config.pad_id), "eos_id": str(config.eos_id), "start_id": str(config.start_id)}
    metadata |= {"max_positions": str(max_sequence_length(config)), "kind": config.kind}
    for name, graph in _graphs(model).items():
        graph.save(folder / name, metadata)


def _graphs(model: Model) -> dict[str, Graph]:
    match model:
        case Encoder():
            return {MODEL: build_encoder_only(model)}
        case Decoder():
            return {MODEL: build_language_model(model)}
        case Recurrent():
            return {ENCODER: build_recurrent_encoder(model), DECODER: build_recurrent_decoder(model)}
        case Transformer():
            return {ENCODER: build_encoder(model), DECODER: build_decoder(model)}


def build_encoder(model: Transformer) -> Graph:
    """Build the ONNX `Graph` of an encoder–decoder's encoder, from source ids to what the decoder's graph needs.

    The graph's outputs are the mask of tokens that are not padding, and each decoder layer's keys and values of the
    encoder output.
    """
    graph, config = Graph("encoder"), model.config
    ids = graph.add_input("source_ids", np.int64, ("batch", "source"))
    positions, present = _positions_and_mask(graph, ids, config.pad_id)
    x = build_embedding(graph, ids, positions, model.source_embedding, model.source_weight, config)
    context = build_context(graph, model.encoder_positions, config, positions, positions, present)
    for layer in encoder_layers_of(model):
        x, _ = build_layer(graph, x, layer, context, config)
    memory = build_norm(graph, x, model.encoder_norm)
    graph.add_output(present, "memory_mask", np.bool_, ("batch", "source"))
    for number, decoder_layer in enumerate(decoder_layers_of(model)):
        projected = build_memory_keys_and_values(graph, memory, decoder_layer.memory_attention)
        add_outputs(graph, projected, config, "memory_", number, "source")
    return graph


def build_decoder(model: Transformer) -> Graph:
    """Build the ONNX `Graph` of an encoder–decoder's decoder, which computes the logits of one or more new tokens.

    The graph's inputs are the tokens' ids, the outputs of the encoder's graph, and each layer's cached keys and values.
    Its outputs are the logits and the extended cache.
    """
    graph, config = Graph("decoder"), model.config
    ids = graph.add_input("target_ids", np.int64, ("batch", "target"))
    mask = graph.add_input("memory_mask", np.bool_, ("batch", "source"))
    layers = decoder_layers_of(model)
    memories = [add_inputs(graph, config, "memory_", n, "source") for n in range(len(layers))]
    pasts = [add_inputs(graph, config, "past_", n, "past") for n in range(len(layers))]
    past_length = graph.size(pasts[0].keys, 2)
    end = graph.apply("Add", past_length, graph.size(ids, 1))
    positions, all_positions = (
        graph.unsqueeze(graph.count(first, end), 0) for first in (past_length, graph.integers(0))
    )
    x = build_embedding(graph, ids, positions, model.target_embedding, model.target_weight, config)
    context = build_context(graph, model.decoder_positions, config, positions, all_positions)
    memory_bias = build_bias(graph, key_mask(graph, mask))
    caches = []
    for layer, memory, past in zip(layers, memories, pasts, strict=True):
        x, cache = build_layer(graph, x, layer, context, config, past=past, memory=Memory(memory, memory_bias))
        caches.append(cache)
    x = build_output_scale(graph, build_norm(graph, x, model.decoder_norm), config)
    _add_step_outputs(graph, x, caches, model, "target")
    return graph


# --- exported models, run by onnxruntime ---
# Legend: B rows, S source length, T tokens of a call, L tokens of a row so far, V vocabulary.


Arrays = dict[str, NDArray[Any]]


class _Session:
    """One ONNX graph opened by onnxruntime on the CPU, with the special ids from its metadata."""

    def __init__(self, path: Path, threads: int) -> None:
        onnxruntime = import_extra("onnxruntime", "export")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.pad_id, self.eos_id, self.start_id = (int(metadata[name]) for name in ("pad_id", "eos_id", "start_id"))
        self.inputs: dict[str, list[Any]] = {given.name: given.shape for given in self._session.get_inputs()}
        self.outputs: list[str] = [output.name for output in self._session.get_outputs()]

    def run(self, given: Arrays) -> Arrays:
        """Run the ONNX graph on arrays, a dict by input name, and return all outputs as a dict of arrays by name."""
        return dict(zip(self.outputs, self._session.run(None, given), strict=True))

    def empty_cache(self, rows: int, given: Mapping[str, Any]) -> Arrays:
        """Return empty caches, with which the first call of a decoder's graph starts.

        Args:
            rows: number of texts in the batch.
            given: inputs that have values already, by name; they get no cache.

        Returns:
            A dict from each other input whose name starts with `past_` to zeros of (rows, heads, 0, width).
        """
        missing = {name: shape for name, shape in self.inputs.items() if name.startswith("past_") and name not in given}
        return {name: np.zeros((rows, shape[1], 0, shape[3]), np.float32) for name, shape in missing.items()}

    def best(self, logits: NDArray[Any], *forbidden: int) -> NDArray[np.int64]:
        """Return the id of the most probable token of each text as an array (texts, 1), for a step of greedy search.

        Args:
            logits: the logits of each text's next token, (texts, vocabulary); not changed.
            forbidden: ids that are not chosen. Padding is not chosen either; the end symbol is always allowed.
        """
        allowed = logits.copy()
        allowed[:, sorted({self.pad_id, *forbidden} - {self.eos_id})] = -np.inf
        token: NDArray[np.int64] = allowed.argmax(axis=-1)[:, None]
        return token


def _cache_from(outputs: Arrays) -> Arrays:
    """Return the cache for the next call of a decoder's graph, from the outputs of a call.

    Both are dicts of arrays by name. Each output except `logits` becomes the input with `past_` before its name.
    """
    return {f"past_{name}": array for name, array in outputs.items() if name != "logits"}


class OnnxModel(ExportedModel):
    """An encoder–decoder in ONNX (a Transformer or a recurrent network), which onnxruntime runs on the CPU."""

    def __init__(self, folder: Path, *, threads: int, forced: Sequence[int] = ()) -> None:
        """Open a folder's graphs of encoder and decoder.

        Args:
            folder: the folder.
            threads: number of threads of each computation.
            forced: ids with which every translation begins, such as a language tag.
        """
        self._encoder = _Session(folder / ENCODER, threads)
        self._decoder = _Session(folder / DECODER, threads)
        self._forced = list(forced)

    def encode(self, sources: Ids) -> Arrays:
        """Run the encoder's graph on sources' token ids; return its outputs (for the decoder) as arrays by name."""
        return self._encoder.run({"source_ids": padded(sources, self._encoder.pad_id).numpy()})

    def empty_caches(self, sentences: int) -> Arrays:
        """Return empty caches of keys and values, a dict of arrays by the names of the decoder's inputs.

        The initial state of a recurrent model is not included, because the encoder returns it.

        Args:
            sentences: number of sentences in the batch.
        """
        return self._decoder.empty_cache(sentences, dict.fromkeys(self._encoder.outputs))

    def decode(self, target_ids: NDArray[np.int64], memory: Arrays, known: Arrays) -> tuple[NDArray[Any], Arrays]:
        """Return the logits after each new target token, an array (B, T, V), and the extended cache for the next call.

        A graph that accepts one token per call, such as a recurrent model's, is called T times.

        Args:
            target_ids: the new tokens, (B, T).
            memory: what `encode` returned for the sources.
            known: the cache of the previous tokens: what `empty_caches` or the previous call returned.
        """
        tokens_per_call = target_ids.shape[1] if self._decoder.inputs["target_ids"][1] != 1 else 1
        logits = []
        for first in range(0, target_ids.shape[1], tokens_per_call):
            outputs = self._decoder.run(
                {**memory, **known, "target_ids": target_ids[:, first : first + tokens_per_call]}
            )
            known = _cache_from(outputs)
            logits.append(outputs["logits"])
        return np.concatenate(logits, axis=1), known

    @override
    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        inputs = padded([[self._decoder.start_id, *row] for row in targets], self._decoder.pad_id).numpy()
        logits, _ = self.decode(inputs, self.encode(sources), self.empty_caches(len(sources)))
        return target_log_probabilities(torch.from_numpy(logits), targets, [0] * len(targets), self._decoder.eos_id)

    @override
    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        decoder, memory, cache = self._decoder, self.encode(sources), self.empty_caches(len(sources))
        newest = np.array([[decoder.start_id, *self._forced]] * len(sources), dtype=np.int64)
        written = newest[:, 1:]
        while written.shape[1] < max_tokens and not (written == decoder.eos_id).any(axis=1).all():
            logits, cache = self.decode(newest, memory, cache)
            newest = decoder.best(logits[:, -1], decoder.start_id)
            written = np.concatenate([written, newest], axis=1)
        return until_end(written.tolist(), decoder.eos_id)


class OnnxLanguageModel(ExportedModel):
    """A decoder-only language model in ONNX, which onnxruntime runs on the CPU."""

    def __init__(self, folder: Path, *, threads: int, unknown_id: int) -> None:
        """Open a folder's graph of a language model.

        Args:
            folder: the folder.
            threads: number of threads of each computation.
            unknown_id: id of the unknown token, which `translate` must not generate.
        """
        self._graph = _Session(folder / MODEL, threads)
        self._unknown_id = unknown_id

    def decode(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], known: Arrays
    ) -> tuple[NDArray[Any], Arrays]:
        """Return the logits after each new token, an array (B, T, V), and the extended cache for the next call.

        Args:
            ids: the new tokens, (B, T).
            positions: the positions of all tokens so far, (B, L), with -1 in padding.
            known: the cache of the earlier tokens, which is of length 0 at first.
        """
        outputs = self._graph.run({"ids": ids, "positions": positions, **known})
        return outputs["logits"], _cache_from(outputs)

    @override
    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        logits, _, _ = self._start([[*source, *target] for source, target in zip(sources, targets, strict=True)])
        first = list(map(len, sources))
        return target_log_probabilities(torch.from_numpy(logits), targets, first, self._graph.eos_id)

    @override
    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        graph, lengths = self._graph, np.array([[len(row)] for row in sources])
        logits, positions, cache = self._start(sources)
        written = newest = graph.best(logits[range(len(sources)), lengths[:, 0]], self._unknown_id)
        while written.shape[1] < max_tokens and not (written == graph.eos_id).any(axis=1).all():
            positions = np.concatenate([positions, lengths + written.shape[1]], axis=1)
            logits, cache = self.decode(newest, positions, cache)
            newest = graph.best(logits[:, -1], self._unknown_id)
            written = np.concatenate([written, newest], axis=1)
        return until_end(written.tolist(), graph.eos_id)

    def _start(self, texts: Ids) -> tuple[NDArray[Any], NDArray[np.int64], Arrays]:
        """Run the graph on texts without a cache, each after the start symbol.

        Returns:
            The logits after each token, (B, T, V), the positions of the tokens, (B, T), with -1 in padding, and the
            cache of the next call.
        """
        rows = [[self._graph.start_id, *text] for text in texts]
        positions = padded([range(len(row)) for row in rows], -1).numpy()
        ids = padded(rows, self._graph.pad_id).numpy()
        logits, cache = self.decode(ids, positions, self._graph.empty_cache(len(rows), {}))
        return logits, positions, cache


class OnnxEncoder(ExportedEncoder):
    """An encoder-only model in ONNX, which onnxruntime runs on the CPU."""

    def __init__(self, folder: Path, *, threads: int) -> None:
        self._graph = _Session(folder / MODEL, threads)

    @override
    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        inputs = {"ids": padded(rows, self._graph.pad_id).numpy()}
        if "token_types" in self._graph.inputs:
            inputs["token_types"] = padded(token_types, 0).numpy()
        return {name: split_outputs(array, rows) for name, array in self._graph.run(inputs).items()}
