"""Export of models to ONNX graphs: two for an encoder–decoder, one for a model of one side.

encoder.onnx maps `source_ids` to the decoder's inputs: `memory_mask` and, for each decoder layer N, `memory_key.N` and
`memory_value.N`, the projected encoder output. decoder.onnx maps these, `target_ids` (one or more new tokens) and the
cache of the previous call, `past_key.N` and `past_value.N` (length 0 at first), to `logits` and the extended cache,
`key.N` and `value.N`. Batch sizes and lengths are dynamic. `onnx_recurrent.py` and `onnx_single.py` export other kinds.
Legend: B batch, S source length, T target tokens of this call, L target tokens so far.
"""

from pathlib import Path

import numpy as np

from transduce.interop.bricks import READABLE, check_components, decoder_layers_of, encoder_layers_of
from transduce.interop.exported import MAXIMUM_POSITIONS
from transduce.interop.onnx_bricks import build_embedding, build_memory_projection, build_norm
from transduce.interop.onnx_graph import Graph
from transduce.interop.onnx_layers import (
    Known,
    add_inputs,
    add_outputs,
    build_bias,
    build_context,
    build_decoder_layer,
    build_encoder_layer,
    build_finish,
    build_output,
    key_value_shapes,
    of_keys,
)
from transduce.interop.onnx_recurrent import build_recurrent_decoder, build_recurrent_encoder
from transduce.interop.onnx_single import build_encoder_alone, build_language_model
from transduce.model.build import Model
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.encoder import Encoder
from transduce.model.layer_graph import settings_outside, table
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer

ENCODER, DECODER, MODEL = "encoder.onnx", "decoder.onnx", "model.onnx"


ONNX = table("the ONNX export", **READABLE)
"""The components of models that can be exported to ONNX."""


def onnx_obstacles(config: ModelConfig) -> list[str]:
    """Return the names of settings of this configuration that the ONNX export does not support; empty if it supports
    all.
    """
    return settings_outside(ONNX, config)


def write_onnx(model: Model, folder: Path) -> None:
    """Write a model's ONNX graphs: encoder.onnx and decoder.onnx, or model.onnx for a model of one side.

    Args:
        model: a model with float32 weights.
        folder: an existing folder.

    Raises:
        TransduceError: the onnx package is missing, or `ONNX` lacks a component of the model.
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
    """Return the maximum number of tokens of a source or target in the exported model."""
    return config.max_positions if config.positions == "learned" else MAXIMUM_POSITIONS


def build_encoder(model: Transformer) -> Graph:
    """Build the graph of `Transformer.encode`, including the decoder layers' projections of the encoder output."""
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
    """Build the graph of `Transformer.decode` and `project`."""
    graph, config = Graph("decoder"), model.config
    ids = graph.add_input("target_ids", np.int64, ("batch", "target"))
    mask = graph.add_input("memory_mask", np.bool_, ("batch", "source"))
    layers = decoder_layers_of(model)
    memory_shapes, past_shapes = key_value_shapes(config, "source"), key_value_shapes(config, "past")
    memories = [add_inputs(graph, ("memory_key", "memory_value"), n, memory_shapes) for n in range(len(layers))]
    pasts = [add_inputs(graph, ("past_key", "past_value"), n, past_shapes) for n in range(len(layers))]
    past_length = graph.size(pasts[0].keys, 2)
    end = graph.apply("Add", past_length, graph.size(ids, 1))
    positions, all_positions = (
        graph.unsqueeze(graph.count(first, end), 0) for first in (past_length, graph.integers(0))
    )
    x = build_embedding(graph, ids, positions, model.target_embedding, model.target_weight, config)
    context = build_context(graph, model.decoder_positions, config, positions, all_positions)
    memory_bias = build_bias(graph, of_keys(graph, mask))
    caches = []
    for layer, memory, past in zip(layers, memories, pasts, strict=True):
        x, keys_and_values = build_decoder_layer(graph, x, layer, context, Known(memory, memory_bias, past), config)
        caches.append(keys_and_values)
    x = build_finish(graph, build_norm(graph, x, model.decoder_norm), config)
    graph.add_output(
        build_output(graph, x, model), "logits", np.float32, ("batch", "target", config.target_vocabulary_size)
    )
    for number, cache in enumerate(caches):
        add_outputs(graph, cache, ("key", "value"), number, key_value_shapes(config, "total"))
    return graph
