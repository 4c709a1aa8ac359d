"""Our models as ONNX graphs: encoder-decoders as two, models of one side as one. All sizes but a model's own are free.

encoder.onnx takes `source_ids` and gives what the decoder needs of them: `memory_mask`, and for each decoder layer N
`memory_key.N` and `memory_value.N`, the memory projected once a sentence. decoder.onnx takes these, `target_ids` (the
newest pieces, one or many) and what it gave before, `past_key.N` and `past_value.N`, of length 0 at first. It gives
`logits` and all keys and values so far, `key.N` and `value.N`. Other kinds: `onnx_recurrent.py`, `onnx_single.py`.
Legend: B batch, S source length, T target pieces of this call, L all of them so far.
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
"""The models that have a graph here."""


def onnx_obstacles(config: ModelConfig) -> list[str]:
    """Settings that have no graph here: those that came later."""
    return settings_outside(ONNX, config)


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
