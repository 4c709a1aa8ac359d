"""Our models as ONNX graphs: encoder-decoders as two, models of one side as one. All sizes but a model's own are free.

encoder.onnx takes `source_ids` and gives what the decoder needs of them: `memory_mask`, and for each decoder layer N
`memory_key.N` and `memory_value.N`, the memory projected once a sentence. decoder.onnx takes these, `target_ids` (the
newest pieces, one or many) and what it gave before, `past_key.N` and `past_value.N`, of length 0 at first. It gives
`logits` and all keys and values so far, `key.N` and `value.N`. Other kinds: `onnx_recurrent.py`, `onnx_single.py`.
Legend: B batch, S source length, T target pieces of this call, L all of them so far.
"""

from pathlib import Path
from typing import cast

import numpy as np

from transduce.interop.components import (
    MAXIMUM_POSITIONS,
    READABLE,
    check_components,
    decoder_layers_of,
    encoder_layers_of,
    linear_of,
)
from transduce.interop.onnx.graph import Graph
from transduce.interop.onnx.layers import (
    Known,
    add_inputs,
    add_outputs,
    build_activation,
    build_bias,
    build_context,
    build_decoder_layer,
    build_embedding,
    build_encoder_layer,
    build_finish,
    build_linear,
    build_memory_projection,
    build_norm,
    build_output,
    key_value_shapes,
    of_keys,
)
from transduce.interop.onnx.recurrent import build_recurrent_decoder, build_recurrent_encoder
from transduce.model.build import Model
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.encoder import Encoder
from transduce.model.layer_graph import table, unsupported_settings
from transduce.model.layers import EncoderLayer, each_layer
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer

# --- onnx single ---
# Models of one side as one ONNX graph each.
# A language model takes `ids` (the newest pieces, one or many), `positions` of all pieces of a row, those before
# too, and what it gave before, `past_key.N` and `past_value.N`, of length 0 at first. It gives `logits` and all
# keys and values so far, `key.N` and `value.N`. Positions count from 0 in each row; where a row has no piece, in
# the padding of prompts of different lengths, the position is -1, and nothing attends to it. An encoder takes
# `ids`, padded at the right, and `token_types` where it has any. It gives `states` and what its heads make of them.
# Legend: B batch, T pieces of this call, P pieces before them, L = P + T, D model width, V vocabulary, C classes.


_TO_THE_END = 2**62


def build_language_model(model: Decoder) -> Graph:
    """The graph of `decode` and `project`."""
    graph, config = Graph("language_model"), model.config
    ids = graph.add_input("ids", np.int64, ("batch", "length"))
    positions = graph.add_input("positions", np.int64, ("batch", "total"))
    layers = range(config.num_decoder_layers)
    pasts = [add_inputs(graph, ("past_key", "past_value"), n, key_value_shapes(config, "past")) for n in layers]
    first = graph.size(pasts[0].keys, 2)
    own = graph.apply("Slice", positions, first, graph.integers(_TO_THE_END), graph.integers(1))  # (B, T)
    present = graph.apply("GreaterOrEqual", positions, graph.integer(0))
    # What a row without a piece is given matters to nobody, but a table has no row -1.
    places = graph.apply("Max", own, graph.integer(0))
    x = build_embedding(graph, ids, places, model.embedding, model.source_weight, config)
    context = build_context(graph, model.positions, config, places, positions, present)
    known = []
    for layer, past in zip(each_layer(model.layers, config.num_decoder_layers), pasts, strict=True):
        x, keys_and_values = build_encoder_layer(graph, x, cast(EncoderLayer, layer), context, config, past)
        known.append(keys_and_values)
    x = build_finish(graph, build_norm(graph, x, model.norm), config)
    graph.add_output(
        build_output(graph, x, model), "logits", np.float32, ("batch", "length", config.target_vocabulary_size)
    )
    for number, each in enumerate(known):
        add_outputs(graph, each, ("key", "value"), number, key_value_shapes(config, "total"))
    return graph


def build_encoder_alone(model: Encoder) -> Graph:
    """The graph of `encode` and of all heads: `logits` of pieces, the `pooled` first state, `classes`."""
    graph, config = Graph("encoder"), model.config
    ids = graph.add_input("ids", np.int64, ("batch", "length"))
    types = graph.add_input("token_types", np.int64, ("batch", "length")) if config.token_types else None
    positions = graph.unsqueeze(graph.count(graph.integers(0), graph.size(ids, 1)), 0)
    present = graph.apply("Not", graph.apply("Equal", ids, graph.integer(config.pad_id)))
    x = build_embedding(graph, ids, positions, model.embedding, model.source_weight, config, token_types=types)
    context = build_context(graph, model.positions, config, positions, positions, present)
    for layer in each_layer(model.layers, config.num_encoder_layers):
        x, _ = build_encoder_layer(graph, x, cast(EncoderLayer, layer), context, config)
    states = build_norm(graph, x, model.norm)
    graph.add_output(states, "states", np.float32, ("batch", "length", config.d_model))
    if model.masked_language_head is not None:
        _add_logits(graph, states, model)
    if model.pooler is not None:
        _add_pooled(graph, states, model)
    return graph


def _add_logits(graph: Graph, states: str, model: Encoder) -> None:
    """Of the piece at every position."""
    head, config = model.masked_language_head, model.config
    assert head is not None
    hidden = build_activation(graph, build_linear(graph, states, linear_of(head.dense)), config.activation)
    hidden = build_finish(graph, build_norm(graph, hidden, head.norm), config)
    shape = ("batch", "length", config.target_vocabulary_size)
    graph.add_output(build_output(graph, hidden, model), "logits", np.float32, shape)


def _add_pooled(graph: Graph, states: str, model: Encoder) -> None:
    """The pooled first state, and the classes where there are any."""
    assert model.pooler is not None
    first = graph.apply("Gather", states, graph.integer(0), attributes={"axis": 1})  # (B, D)
    pooled = graph.apply("Tanh", build_linear(graph, first, linear_of(model.pooler)))
    graph.add_output(pooled, "pooled", np.float32, ("batch", model.config.d_model))
    if model.classifier is not None:
        classes = build_linear(graph, pooled, linear_of(model.classifier))
        graph.add_output(classes, "classes", np.float32, ("batch", model.config.num_labels))


# --- export ---


ENCODER, DECODER, MODEL = "encoder.onnx", "decoder.onnx", "model.onnx"


ONNX = table("the ONNX export", **READABLE)
"""The models that have a graph here."""


def onnx_obstacles(config: ModelConfig) -> list[str]:
    """Settings that have no graph here: those that came later."""
    return unsupported_settings(ONNX, config)


def write_onnx(model: Model, folder: Path) -> None:
    """Writes encoder.onnx and decoder.onnx; of a model of one side model.onnx.

    Args:
        model: in float32.
        folder: exists.

    Raises:
        TransduceError: the package is missing, or a component of the model is not in `ONNX`.
    """
    check_components(ONNX, model)
    config = model.config
    metadata = {"pad_id": str(config.pad_id), "eos_id": str(config.eos_id), "start_id": str(config.start_id)}
    metadata |= {"max_positions": str(longest_sequence(config)), "kind": config.kind}
    for name, graph in _graphs(model).items():
        graph.save(folder / name, metadata)


def _graphs(model: Model) -> dict[str, Graph]:
    match model:
        case Encoder():
            return {MODEL: build_encoder_alone(model)}
        case Decoder():
            return {MODEL: build_language_model(model)}
        case Recurrent():
            return {ENCODER: build_recurrent_encoder(model), DECODER: build_recurrent_decoder(model)}
        case Transformer():
            return {ENCODER: build_encoder(model), DECODER: build_decoder(model)}


def longest_sequence(config: ModelConfig) -> int:
    """How many pieces a source or target can have in the exported model."""
    return config.max_positions if config.positions == "learned" else MAXIMUM_POSITIONS


def build_encoder(model: Transformer) -> Graph:
    """The graph of `encode`, with the decoder's projections of the memory."""
    graph, config = Graph("encoder"), model.config
    ids = graph.add_input("source_ids", np.int64, ("batch", "source"))
    positions = graph.unsqueeze(graph.count(graph.integers(0), graph.size(ids, 1)), 0)
    present = graph.apply("Not", graph.apply("Equal", ids, graph.integer(config.pad_id)))
    x = build_embedding(graph, ids, positions, model.source_embedding, model.source_weight, config)
    context = build_context(graph, model.encoder_positions, config, positions, positions, present)
    for layer in encoder_layers_of(model):
        x, _ = build_encoder_layer(graph, x, layer, context, config)
    memory = build_norm(graph, x, model.encoder_norm)
    graph.add_output(present, "memory_mask", np.bool_, ("batch", "source"))
    for number, decoder_layer in enumerate(decoder_layers_of(model)):
        projected = build_memory_projection(graph, memory, decoder_layer.memory_attention)
        add_outputs(graph, projected, ("memory_key", "memory_value"), number, key_value_shapes(config, "source"))
    return graph


def build_decoder(model: Transformer) -> Graph:
    """The graph of `decode` and `project`."""
    graph, config = Graph("decoder"), model.config
    ids = graph.add_input("target_ids", np.int64, ("batch", "target"))
    mask = graph.add_input("memory_mask", np.bool_, ("batch", "source"))
    layers = decoder_layers_of(model)
    of_memory, of_past = key_value_shapes(config, "source"), key_value_shapes(config, "past")
    memories = [add_inputs(graph, ("memory_key", "memory_value"), n, of_memory) for n in range(len(layers))]
    pasts = [add_inputs(graph, ("past_key", "past_value"), n, of_past) for n in range(len(layers))]
    first = graph.size(pasts[0].keys, 2)
    end = graph.apply("Add", first, graph.size(ids, 1))
    positions, all_positions = (graph.unsqueeze(graph.count(start, end), 0) for start in (first, graph.integers(0)))
    x = build_embedding(graph, ids, positions, model.target_embedding, model.target_weight, config)
    context = build_context(graph, model.decoder_positions, config, positions, all_positions)
    memory_bias = build_bias(graph, of_keys(graph, mask))
    known = []
    for layer, memory, past in zip(layers, memories, pasts, strict=True):
        x, keys_and_values = build_decoder_layer(graph, x, layer, context, Known(memory, memory_bias, past), config)
        known.append(keys_and_values)
    x = build_finish(graph, build_norm(graph, x, model.decoder_norm), config)
    graph.add_output(
        build_output(graph, x, model), "logits", np.float32, ("batch", "target", config.target_vocabulary_size)
    )
    for number, each in enumerate(known):
        add_outputs(graph, each, ("key", "value"), number, key_value_shapes(config, "total"))
    return graph
