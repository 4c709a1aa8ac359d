"""Export of decoder-only and encoder-only models to one ONNX graph each.

A language model's graph maps `ids` (one or more new tokens), `positions` of all tokens of a row so far, and the cache,
`past_key.N` and `past_value.N` (length 0 at first), to `logits` and the extended cache, `key.N` and `value.N`.
Positions count from 0 in each row; padding has position -1 and is masked. An encoder's graph maps `ids`, padded at the
right, and `token_types`, if the model has any, to `states` and the outputs of its heads.
Legend: B batch, T tokens of this call, P cached tokens, L = P + T, D model width, V vocabulary, C classes.
"""

from typing import cast

import numpy as np

from transduce.interop.bricks import linear_of
from transduce.interop.onnx_bricks import build_activation, build_embedding, build_linear, build_norm
from transduce.interop.onnx_graph import Graph
from transduce.interop.onnx_layers import (
    add_inputs,
    add_outputs,
    build_context,
    build_encoder_layer,
    build_finish,
    build_output,
    key_value_shapes,
)
from transduce.model.decoder import Decoder
from transduce.model.encoder import Encoder
from transduce.model.layers import EncoderLayer
from transduce.model.stack import each_layer

_TO_THE_END = 2**62


def build_language_model(model: Decoder) -> Graph:
    """Build the graph of `Decoder.decode` and `project`."""
    graph, config = Graph("language_model"), model.config
    ids = graph.add_input("ids", np.int64, ("batch", "length"))
    positions = graph.add_input("positions", np.int64, ("batch", "total"))
    layers = range(config.num_decoder_layers)
    pasts = [add_inputs(graph, ("past_key", "past_value"), n, key_value_shapes(config, "past")) for n in layers]
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
        x, keys_and_values = build_encoder_layer(graph, x, cast(EncoderLayer, layer), context, config, past)
        caches.append(keys_and_values)
    x = build_finish(graph, build_norm(graph, x, model.norm), config)
    graph.add_output(
        build_output(graph, x, model), "logits", np.float32, ("batch", "length", config.target_vocabulary_size)
    )
    for number, cache in enumerate(caches):
        add_outputs(graph, cache, ("key", "value"), number, key_value_shapes(config, "total"))
    return graph


def build_encoder_alone(model: Encoder) -> Graph:
    """Build the graph of `Encoder.encode` and all heads: `logits` per token, the `pooled` first state, `classes`."""
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
    """Add the masked language model's logits at every position as an output."""
    head, config = model.masked_language_head, model.config
    assert head is not None
    hidden = build_activation(graph, build_linear(graph, states, linear_of(head.dense)), config.activation)
    hidden = build_finish(graph, build_norm(graph, hidden, head.norm), config)
    shape = ("batch", "length", config.target_vocabulary_size)
    graph.add_output(build_output(graph, hidden, model), "logits", np.float32, shape)


def _add_pooled(graph: Graph, states: str, model: Encoder) -> None:
    """Add the pooled first state as an output, and the logits of classes if the model has a classifier."""
    assert model.pooler is not None
    first = graph.apply("Gather", states, graph.integer(0), attributes={"axis": 1})  # (B, D)
    pooled = graph.apply("Tanh", build_linear(graph, first, linear_of(model.pooler)))
    graph.add_output(pooled, "pooled", np.float32, ("batch", model.config.d_model))
    if model.classifier is not None:
        classes = build_linear(graph, pooled, linear_of(model.classifier))
        graph.add_output(classes, "classes", np.float32, ("batch", model.config.num_labels))
