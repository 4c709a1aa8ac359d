"""Our encoder–decoders as two ONNX graphs: an encoder, and a decoder with its cache as inputs and outputs.

encoder.onnx takes `source_ids` and gives what the decoder needs of them: `memory_mask`, and for each decoder layer N
`memory_key.N` and `memory_value.N`, the memory projected once a sentence. decoder.onnx takes these, `target_ids` (the
newest pieces, one or many) and what it gave before, `past_key.N` and `past_value.N`, of length 0 at first. It gives
`logits` and all keys and values so far, `key.N` and `value.N`. All sizes but the model's own are free.
Legend: B batch, S source length, T target pieces of this call, P pieces before them, L = P + T, D model width,
G heads of keys and values, K and V the widths of keys and values.
"""

from functools import reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from transduce.interop.bricks import bias_by_distance, decoder_layers_of, encoder_layers_of, unknown_settings
from transduce.interop.exported import MAXIMUM_POSITIONS
from transduce.interop.onnx_bricks import (
    Context,
    KeysAndValues,
    after_sublayer,
    before_sublayer,
    build_embedding,
    build_feed_forward,
    build_memory_attention,
    build_memory_projection,
    build_norm,
    build_self_attention,
)
from transduce.interop.onnx_graph import Graph, lowest
from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.positions import RelativePositions
from transduce.model.stack import StackPositions
from transduce.model.transformer import Transformer

Shapes = tuple[tuple[int | str, ...], tuple[int | str, ...]]

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"


def onnx_obstacles(config: ModelConfig) -> list[str]:
    """Settings that have no graph here: attention is built in all its forms, recurrent cells are not."""
    return [*(["kind"] if config.kind != "transformer" else []), *unknown_settings(config)]


def write_onnx(model: Transformer, folder: Path) -> None:
    """Writes encoder.onnx and decoder.onnx.

    Args:
        model: in float32.
        folder: exists.

    Raises:
        TransduceError: the package is missing.
    """
    config = model.config
    metadata = {name: str(getattr(config, name)) for name in ("pad_id", "eos_id", "start_id")}
    metadata["max_positions"] = str(longest_sequence(config))
    build_encoder(model).save(folder / ENCODER, metadata)
    build_decoder(model).save(folder / DECODER, metadata)


def longest_sequence(config: ModelConfig) -> int:
    """How many pieces a source or target can have in the exported model."""
    return config.max_positions if config.positions == "learned" else MAXIMUM_POSITIONS


def build_encoder(model: Transformer) -> Graph:
    """The graph of `encode`, with the decoder's projections of the memory."""
    graph, config = Graph("encoder"), model.config
    ids = graph.add_input("source_ids", np.int64, ("batch", "source"))
    positions = graph.count(graph.integers(0), graph.size(ids, 1))
    present = graph.apply("Not", graph.apply("Equal", ids, graph.integer(config.pad_id)))
    x = build_embedding(graph, ids, positions, model.source_embedding, model.source_weight, config)
    context = _context(graph, model.encoder_positions, config, positions, positions, present)
    for layer in encoder_layers_of(model):
        x = _build_encoder_layer(graph, x, layer, context, config)
    memory = build_norm(graph, x, model.encoder_norm)
    graph.add_output(present, "memory_mask", np.bool_, ("batch", "source"))
    for number, decoder_layer in enumerate(decoder_layers_of(model)):
        projected = build_memory_projection(graph, memory, decoder_layer.memory_attention)
        _add_outputs(graph, projected, ("memory_key", "memory_value"), number, _shapes(config, "source"))
    return graph


def build_decoder(model: Transformer) -> Graph:
    """The graph of `decode` and `project`."""
    graph, config = Graph("decoder"), model.config
    ids = graph.add_input("target_ids", np.int64, ("batch", "target"))
    mask = graph.add_input("memory_mask", np.bool_, ("batch", "source"))
    layers = decoder_layers_of(model)
    of_memory, of_past = _shapes(config, "source"), _shapes(config, "past")
    memories = [_add_inputs(graph, ("memory_key", "memory_value"), n, of_memory) for n in range(len(layers))]
    pasts = [_add_inputs(graph, ("past_key", "past_value"), n, of_past) for n in range(len(layers))]
    first = graph.size(pasts[0].keys, 2)
    end = graph.apply("Add", first, graph.size(ids, 1))
    positions, known_positions = graph.count(first, end), graph.count(graph.integers(0), end)
    x = build_embedding(graph, ids, positions, model.target_embedding, model.target_weight, config)
    context = _context(graph, model.decoder_positions, config, positions, known_positions)
    memory_bias = _bias(graph, _of_keys(graph, mask))
    known = []
    for layer, memory, past in zip(layers, memories, pasts, strict=True):
        x, keys_and_values = _build_decoder_layer(graph, x, layer, context, _Known(memory, memory_bias, past), config)
        known.append(keys_and_values)
    x = build_norm(graph, x, model.decoder_norm)
    if config.output_scale != 1.0:
        x = graph.apply("Mul", x, graph.number(config.output_scale))
    graph.add_output(
        _build_output(graph, x, model), "logits", np.float32, ("batch", "target", config.target_vocabulary_size)
    )
    for number, each in enumerate(known):
        _add_outputs(graph, each, ("key", "value"), number, _shapes(config, "total"))
    return graph


def _build_output(graph: Graph, x: str, model: Transformer) -> str:
    """`project`: (B, T, D) to (B, T, V). A tied matrix is the one that the embeddings use, turned."""
    if model.output_weight is model.target_weight:
        matrix = graph.transpose(graph.weight(model.output_weight.detach()), 1, 0)
    else:
        matrix = graph.matrix(model.output_weight.detach())
    logits = graph.apply("MatMul", x, matrix)
    return logits if model.output_bias is None else graph.apply("Add", logits, graph.weight(model.output_bias))


def _build_encoder_layer(graph: Graph, x: str, layer: EncoderLayer, context: Context, config: ModelConfig) -> str:
    y = before_sublayer(graph, x, layer.self_attention_residual)
    y, _ = build_self_attention(graph, y, layer.self_attention, context)
    x = after_sublayer(graph, x, y, layer.self_attention_residual)
    y = before_sublayer(graph, x, layer.feed_forward_residual)
    y = build_feed_forward(graph, y, layer.feed_forward, config)
    return after_sublayer(graph, x, y, layer.feed_forward_residual)


class _Known(NamedTuple):
    """What a decoder layer attends to besides the input itself."""

    memory: KeysAndValues
    memory_bias: str
    past: KeysAndValues


def _build_decoder_layer(
    graph: Graph, x: str, layer: DecoderLayer, context: Context, known: _Known, config: ModelConfig
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


# --- inputs and outputs -----------------------------------------------------------------------------------------


def _shapes(config: ModelConfig, length: str) -> Shapes:
    """Of keys and values."""
    heads = config.num_key_value_heads or config.num_heads
    return ("batch", heads, length, config.key_width), ("batch", heads, length, config.value_width)


def _add_inputs(graph: Graph, names: tuple[str, str], number: int, shapes: Shapes) -> KeysAndValues:
    return KeysAndValues(
        *(graph.add_input(f"{name}.{number}", np.float32, shape) for name, shape in zip(names, shapes, strict=True))
    )


def _add_outputs(graph: Graph, values: KeysAndValues, names: tuple[str, str], number: int, shapes: Shapes) -> None:
    for value, name, shape in zip(values, names, shapes, strict=True):
        graph.add_output(value, f"{name}.{number}", np.float32, shape)


# --- who attends to whom ----------------------------------------------------------------------------------------


def _bias(graph: Graph, allowed: str) -> str:
    """A mask as a term to add to the scores."""
    return graph.apply("Where", allowed, graph.number(0.0), graph.number(lowest()))


def _of_keys(graph: Graph, present: str) -> str:
    """Which keys exist, (B, S), as a mask: (B, 1, 1, S)."""
    return graph.unsqueeze(present, 1, 2)


def _context(
    graph: Graph, stack: StackPositions, config: ModelConfig, queries: str, keys: str, present: str | None = None
) -> Context:
    """Padding, look-ahead, window and bias by distance as one term, and the rotation.

    Args:
        graph: to build in.
        stack: whose self-attention it is.
        config: of the model.
        queries: their positions, (T,).
        keys: their positions, (L,).
        present: which keys are no padding, (B, L); None: all are.
    """
    distance = graph.apply("Sub", graph.unsqueeze(keys, 0), graph.unsqueeze(queries, 1))  # (T, L)
    masks = [] if present is None else [_of_keys(graph, present)]
    if stack.causal:
        masks.append(graph.apply("LessOrEqual", distance, graph.integer(0)))
    if config.attention_window is not None:
        masks.append(graph.apply("LessOrEqual", graph.apply("Abs", distance), graph.integer(config.attention_window)))
    bias = _bias(graph, reduce(lambda left, right: graph.apply("And", left, right), masks))
    if stack.relative is not None:
        bias = graph.apply("Add", bias, _relative_bias(graph, stack.relative, distance))
    rotation = None
    if stack.rotary is not None:
        rows = stack.rotary(torch.arange(MAXIMUM_POSITIONS), torch.float32)
        cosine, sine = (graph.apply("Gather", graph.weight(table), queries) for table in (rows.cosine, rows.sine))
        rotation = (cosine, sine)
    return Context(bias, rotation, config.positions == "rotary-interleaved")


def _relative_bias(graph: Graph, relative: RelativePositions, distance: str) -> str:
    """(T, L) to (1, H, T, L)."""
    reach = relative.max_distance
    within = graph.apply("Clip", distance, graph.integer(-reach), graph.integer(reach))
    row = graph.apply("Add", within, graph.integer(reach))
    bias = graph.apply("Gather", graph.weight(bias_by_distance(relative)), row)  # (T, L, H)
    return graph.unsqueeze(graph.transpose(bias, 2, 0, 1), 0)
