"""Models of one side as one ONNX graph each.

A language model takes `ids` (the newest pieces, one or many), `positions` of all pieces of a row, those before too, and
what it gave before, `past_key.N` and `past_value.N`, of length 0 at first. It gives `logits` and all keys and values so
far, `key.N` and `value.N`. Positions count from 0 in each row; where a row has no piece, in the padding of prompts of
different lengths, the position is -1, and nothing attends to it. An encoder takes `ids`, padded at the right, and
`token_types` where it has any. It gives `states` and what its heads make of them.
Legend: B batch, T pieces of this call, P pieces before them, L = P + T, D model width, V vocabulary, C classes.
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
