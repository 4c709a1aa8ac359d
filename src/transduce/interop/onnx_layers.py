"""Layers and stacks in ONNX operators: who attends to whom, what is cached, and the projection to the vocabulary.

Legend: B batch, T positions of this call, L positions that are attended to, S source length, D model width, V pieces of
the vocabulary, G heads of keys and values, K width of a head's queries and keys.
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
    """The result, and all keys and values; a decoder without memory has such layers, with a past."""
    y = before_sublayer(graph, x, layer.self_attention_residual)
    y, known = build_self_attention(graph, y, layer.self_attention, context, past)
    x = after_sublayer(graph, x, y, layer.self_attention_residual)
    y = before_sublayer(graph, x, layer.feed_forward_residual)
    y = build_feed_forward(graph, y, layer.feed_forward, config)
    return after_sublayer(graph, x, y, layer.feed_forward_residual), known


class Known(NamedTuple):
    """What a decoder layer attends to besides the input itself."""

    memory: KeysAndValues
    memory_bias: str
    past: KeysAndValues


def build_decoder_layer(
    graph: Graph, x: str, layer: DecoderLayer, context: Context, known: Known, config: ModelConfig
) -> tuple[str, KeysAndValues]:
    """The result, and the past with the input."""
    y = before_sublayer(graph, x, layer.self_attention_residual)
    y, all_known = build_self_attention(graph, y, layer.self_attention, context, known.past)
    x = after_sublayer(graph, x, y, layer.self_attention_residual)
    y = before_sublayer(graph, x, layer.memory_attention_residual)
    y = build_memory_attention(graph, y, layer.memory_attention, known.memory, known.memory_bias)
    x = after_sublayer(graph, x, y, layer.memory_attention_residual)
    y = before_sublayer(graph, x, layer.feed_forward_residual)
    y = build_feed_forward(graph, y, layer.feed_forward, config)
    return after_sublayer(graph, x, y, layer.feed_forward_residual), all_known


def build_finish(graph: Graph, x: str, config: ModelConfig) -> str:
    """`VocabularyModel.finish`."""
    return x if config.output_scale == 1.0 else graph.apply("Mul", x, graph.number(config.output_scale))


def build_output(graph: Graph, x: str, model: VocabularyModel) -> str:
    """`project`: (B, T, D) to (B, T, V). A tied matrix is the one that the embeddings use, turned."""
    if model.output_weight is model.target_weight:
        matrix = graph.transpose(graph.weight(model.output_weight.detach()), 1, 0)
    else:
        matrix = graph.matrix(model.output_weight.detach())
    logits = graph.apply("MatMul", x, matrix)
    return logits if model.output_bias is None else graph.apply("Add", logits, graph.weight(model.output_bias))


# --- inputs and outputs -----------------------------------------------------------------------------------------


def key_value_shapes(config: ModelConfig, length: str) -> Shapes:
    """Of the keys and values of a layer."""
    heads = config.num_key_value_heads or config.num_heads
    return ("batch", heads, length, config.key_width), ("batch", heads, length, config.value_width)


def add_inputs(graph: Graph, names: tuple[str, str], number: int, shapes: Shapes) -> KeysAndValues:
    """Keys and values of a layer that are given."""
    return KeysAndValues(
        *(graph.add_input(f"{name}.{number}", np.float32, shape) for name, shape in zip(names, shapes, strict=True))
    )


def add_outputs(graph: Graph, values: KeysAndValues, names: tuple[str, str], number: int, shapes: Shapes) -> None:
    """Gives keys and values of a layer out."""
    for value, name, shape in zip(values, names, shapes, strict=True):
        graph.add_output(value, f"{name}.{number}", np.float32, shape)


# --- who attends to whom ----------------------------------------------------------------------------------------


def build_bias(graph: Graph, allowed: str) -> str:
    """A mask as a term to add to the scores."""
    return graph.apply("Where", allowed, graph.number(0.0), graph.number(lowest()))


def of_keys(graph: Graph, present: str) -> str:
    """Which keys exist, (B, L), as a mask: (B, 1, 1, L)."""
    return graph.unsqueeze(present, 1, 2)


def build_context(
    graph: Graph, stack: StackPositions, config: ModelConfig, queries: str, keys: str, present: str | None = None
) -> Context:
    """Padding, look-ahead, window and bias by distance as one term, and the rotation.

    Args:
        graph: to build in.
        stack: whose self-attention it is.
        config: of the model.
        queries: their positions, (B or 1, T).
        keys: their positions, (B or 1, L).
        present: which keys are no padding, (B, L); None: all are.
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
    """(B or 1, 1, T, L) to (B or 1, H, T, L)."""
    reach = relative.max_distance
    within = graph.apply("Clip", distance, graph.integer(-reach), graph.integer(reach))
    row = graph.apply("Add", within, graph.integer(reach))
    bias = graph.apply("Gather", graph.weight(bias_by_distance(relative)), row)  # (B or 1, 1, T, L, H)
    return graph.apply("Squeeze", graph.transpose(bias, 0, 4, 2, 3, 1), graph.integers(4))
