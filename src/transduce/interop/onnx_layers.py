"""Encoder and decoder layers as ONNX operators, with their masks, caches and the output projection.

Legend: B batch, T positions of this call, L positions that are attended to, S source length, D model width, H heads,
V vocabulary, G key/value heads, K width of a head's queries and keys.
"""

from functools import reduce
from typing import NamedTuple

import numpy as np
import torch

from transduce.interop.bricks import bias_by_distance
from transduce.interop.exported import MAXIMUM_POSITIONS
from transduce.interop.onnx_bricks import (
    Context,
    KeysAndValues,
    after_sublayer,
    before_sublayer,
    build_feed_forward,
    build_memory_attention,
    build_self_attention,
)
from transduce.interop.onnx_graph import Graph, lowest
from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.positions import RelativePositions
from transduce.model.stack import StackPositions
from transduce.model.vocabulary import VocabularyModel

Shapes = tuple[tuple[int | str, ...], tuple[int | str, ...]]


# --- layers -----------------------------------------------------------------------------------------------------


def build_encoder_layer(
    graph: Graph, x: str, layer: EncoderLayer, context: Context, config: ModelConfig, past: KeysAndValues | None = None
) -> tuple[str, KeysAndValues]:
    """Add an encoder layer, or with `past` a decoder layer without cross-attention; return its output, keys and
    values.
    """
    y = before_sublayer(graph, x, layer.self_attention_residual)
    y, keys_and_values = build_self_attention(graph, y, layer.self_attention, context, past)
    x = after_sublayer(graph, x, y, layer.self_attention_residual)
    y = before_sublayer(graph, x, layer.feed_forward_residual)
    y = build_feed_forward(graph, y, layer.feed_forward, config)
    return after_sublayer(graph, x, y, layer.feed_forward_residual), keys_and_values


class Known(NamedTuple):
    """Inputs of a decoder layer in addition to x: the projected encoder output, its mask as a bias, and the
    self-attention cache.
    """

    memory: KeysAndValues
    memory_bias: str
    past: KeysAndValues


def build_decoder_layer(
    graph: Graph, x: str, layer: DecoderLayer, context: Context, known: Known, config: ModelConfig
) -> tuple[str, KeysAndValues]:
    """Add a decoder layer; return its output, and the self-attention cache extended by this call's positions."""
    y = before_sublayer(graph, x, layer.self_attention_residual)
    y, cache = build_self_attention(graph, y, layer.self_attention, context, known.past)
    x = after_sublayer(graph, x, y, layer.self_attention_residual)
    y = before_sublayer(graph, x, layer.memory_attention_residual)
    y = build_memory_attention(graph, y, layer.memory_attention, known.memory, known.memory_bias)
    x = after_sublayer(graph, x, y, layer.memory_attention_residual)
    y = before_sublayer(graph, x, layer.feed_forward_residual)
    y = build_feed_forward(graph, y, layer.feed_forward, config)
    return after_sublayer(graph, x, y, layer.feed_forward_residual), cache


def build_finish(graph: Graph, x: str, config: ModelConfig) -> str:
    """Add the output scale of `VocabularyModel.finish`."""
    return x if config.output_scale == 1.0 else graph.apply("Mul", x, graph.number(config.output_scale))


def build_output(graph: Graph, x: str, model: VocabularyModel) -> str:
    """Add the output projection `project`: (B, T, D) to logits (B, T, V).

    A tied matrix is the embeddings' constant, transposed in the graph.
    """
    if model.output_weight is model.target_weight:
        matrix = graph.transpose(graph.weight(model.output_weight.detach()), 1, 0)
    else:
        matrix = graph.matrix(model.output_weight.detach())
    logits = graph.apply("MatMul", x, matrix)
    return logits if model.output_bias is None else graph.apply("Add", logits, graph.weight(model.output_bias))


# --- inputs and outputs -----------------------------------------------------------------------------------------


def key_value_shapes(config: ModelConfig, length: str) -> Shapes:
    """Return the shapes of a layer's keys and values, with the name of the dynamic length."""
    heads = config.num_key_value_heads or config.num_heads
    return ("batch", heads, length, config.key_width), ("batch", heads, length, config.value_width)


def add_inputs(graph: Graph, names: tuple[str, str], number: int, shapes: Shapes) -> KeysAndValues:
    """Add inputs for the keys and values of layer `number`, and return their names."""
    return KeysAndValues(
        *(graph.add_input(f"{name}.{number}", np.float32, shape) for name, shape in zip(names, shapes, strict=True))
    )


def add_outputs(graph: Graph, values: KeysAndValues, names: tuple[str, str], number: int, shapes: Shapes) -> None:
    """Add outputs for the keys and values of layer `number`."""
    for value, name, shape in zip(values, names, shapes, strict=True):
        graph.add_output(value, f"{name}.{number}", np.float32, shape)


# --- attention masks --------------------------------------------------------------------------------------------


def build_bias(graph: Graph, allowed: str) -> str:
    """Convert a boolean mask to a bias on the attention scores: 0 where allowed, else the lowest float32."""
    return graph.apply("Where", allowed, graph.number(0.0), graph.number(lowest()))


def of_keys(graph: Graph, present: str) -> str:
    """Reshape a mask of keys (B, L) so that it broadcasts over heads and queries: (B, 1, 1, L)."""
    return graph.unsqueeze(present, 1, 2)


def build_context(
    graph: Graph, stack: StackPositions, config: ModelConfig, queries: str, keys: str, present: str | None = None
) -> Context:
    """Combine padding mask, causal mask, window and relative bias into one bias, and add the rotary tables.

    Args:
        graph: the graph to extend.
        stack: the position modules of the encoder or decoder.
        config: the model's configuration.
        queries: positions of the queries, (B or 1, T).
        keys: positions of the keys, (B or 1, L).
        present: a boolean mask of the keys that are not padding, (B, L); None: no key is padding.
    """
    distance = graph.apply("Sub", graph.unsqueeze(keys, 1, 2), graph.unsqueeze(queries, 1, 3))  # (B or 1, 1, T, L)
    masks = [] if present is None else [of_keys(graph, present)]
    if stack.causal:
        masks.append(graph.apply("LessOrEqual", distance, graph.integer(0)))
    if config.attention_window is not None:
        masks.append(graph.apply("LessOrEqual", graph.apply("Abs", distance), graph.integer(config.attention_window)))
    bias = build_bias(graph, reduce(lambda left, right: graph.apply("And", left, right), masks))
    if stack.relative is not None:
        bias = graph.apply("Add", bias, _relative_bias(graph, stack.relative, distance))
    rotation = None
    if stack.rotary is not None:
        rows = stack.rotary(torch.arange(MAXIMUM_POSITIONS), torch.float32)
        tables = (graph.weight(table) for table in (rows.cosine, rows.sine))
        cosine, sine = (graph.unsqueeze(graph.apply("Gather", table, queries), 1) for table in tables)
        rotation = (cosine, sine)
    return Context(bias, rotation, config.positions == "rotary-interleaved")


def _relative_bias(graph: Graph, relative: RelativePositions, distance: str) -> str:
    """Look up T5's bias for distances between keys and queries: (B or 1, 1, T, L) to (B or 1, H, T, L)."""
    max_distance = relative.max_distance
    clipped = graph.apply("Clip", distance, graph.integer(-max_distance), graph.integer(max_distance))
    row = graph.apply("Add", clipped, graph.integer(max_distance))
    bias = graph.apply("Gather", graph.weight(bias_by_distance(relative)), row)  # (B or 1, 1, T, L, H)
    return graph.apply("Squeeze", graph.transpose(bias, 0, 4, 2, 3, 1), graph.integers(4))
