"""A model's programs: its encoder, and a step of its decoder. Models of one kind and size have the same.

Legend: N rows, D model width, G heads of keys and values, K width of a head.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from transduce.model.config import ModelConfig
from transduce.model.feed_forward import GATES
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.native.activations import write_scaling
from transduce.model.native.emit import Value
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, program
from transduce.model.native.linear import NativeLinear, NativeVocabulary
from transduce.model.native.lines import write_refining
from transduce.model.native.model_writer import ModelWriter, Places, Weights
from transduce.model.native.position_tables import GrowingTables, write_turning
from transduce.model.native.rows import Heads, write_embedding, write_norms
from transduce.model.native.tile import Tile
from transduce.model.packed import PackedMemoryAttention, PackedTransformer
from transduce.model.stack import each_layer
from transduce.model.transformer import Transformer


def supports_native(model: Transformer) -> bool:
    """Whether the programs can be written for a model."""
    return fits(model.config) and all(isinstance(product, NativeLinear) for product in _all_products(model))


def fits(config: ModelConfig) -> bool:
    """Whether the programs can be written for models of these sizes and bricks, once the kernels have the products."""
    tile = find_tile()
    return tile is not None and _has_bricks(config) and _has_sizes(config, tile)


def _has_bricks(config: ModelConfig) -> bool:
    if config.kind != "transformer" or config.norm == "batch" or config.norm_order == "sandwich" or config.token_types:
        return False
    scores = config.attention_score in ("scaled", "dot") and config.attention_kind == "soft"
    return scores and config.attention_window is None


def _has_sizes(config: ModelConfig, tile: Tile) -> bool:
    """Whole blocks of products, and whole vectors of a head, or of half of one that is turned."""
    heads = Heads.of(config)
    blocks = (config.d_model, config.d_ff, heads.queries, 2 * heads.keys)
    lanes = tile.lanes * (2 if config.positions.startswith("rotary") else 1)
    return (
        all(size % tile.columns == 0 for size in blocks)
        and config.key_width % lanes == 0
        and config.key_width == config.value_width
    )


def output_of(model: Transformer) -> NativeVocabulary:
    """The product with the vocabulary."""
    assert isinstance(model, PackedTransformer)
    assert isinstance(model.packed_output, NativeVocabulary)
    return model.packed_output


def _all_products(model: Transformer) -> list[nn.Module]:
    return [module for layer in (*model.encoder_layers, *model.decoder_layers) for module in _products(layer)]


def _products(layer: nn.Module) -> list[nn.Module]:
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    own, network = layer.self_attention, layer.feed_forward
    found: list[nn.Module] = [own.projection, own.output, network.inner, network.outer]
    if isinstance(layer, DecoderLayer):
        memory = layer.memory_attention
        if not isinstance(memory, PackedMemoryAttention):
            return [memory.projection]
        found += [memory.query, memory.key_value, memory.output]
    return found


class ModelPrograms:
    """What runs a model."""

    def __init__(self, model: Transformer) -> None:
        """Writes and compiles both programs."""
        config = model.config
        self.heads = Heads.of(config)
        self.d_model, self.d_ff, self.is_gated = config.d_model, config.d_ff, config.activation in GATES
        add, most = model.target_embedding.positions, 2**31
        if config.positions == "learned":
            most = config.max_positions
        self.source_positions = GrowingTables(model.encoder_positions, None, most)
        self.target_positions = GrowingTables(
            model.decoder_positions, lambda count: add(torch.zeros(1, count, config.d_model))[0], most
        )
        self._products = [vars(product) for product in _all_products(model)]
        k = new_emitter("model", output_of(model).tile)
        write_refining(k, output_of(model).tile.vectors)
        write_embedding(k)
        write_norms(k)
        write_scaling(k)
        write_turning(k, self.heads, interleaved=config.positions == "rotary-interleaved")
        weights = Weights(config.d_model)
        for name, write in (("encode", _write_encoder), ("step", _write_step)):
            with program(k, name, len(Places._fields)) as (numbers, thread, threads):
                write(ModelWriter(k, config, Places(*numbers), (thread, threads), weights), model)
        self._kept = weights.tensors
        self.weights = torch.tensor([tensor.data_ptr() for tensor in self._kept])
        programs = compile_programs(k, ("encode", "step"))
        self.encode: Program = programs["encode"]
        self.step: Program = programs["step"]

    def have_other_products(self) -> bool:
        """Whether somebody put something else in a product's place, which machine code would pass over."""
        return any("forward" in own for own in self._products)


_PROGRAMS: WeakKeyDictionary[Transformer, ModelPrograms | None] = WeakKeyDictionary()


def find_programs(model: Transformer) -> ModelPrograms | None:
    """A model's programs, that is decoded on a CPU; they are written when they are first asked for.

    None where the kernels do not fit the model or this processor.
    """
    if model not in _PROGRAMS:
        _PROGRAMS[model] = ModelPrograms(model) if supports_native(model) else None
    return _PROGRAMS[model]


def _write_encoder(w: ModelWriter, model: Transformer) -> None:
    """The memory's keys and values for each layer of the decoder."""
    config, heads, k = model.config, w.heads, w.k
    projected = heads.queries + 2 * heads.keys
    for layer in each_layer(model.encoder_layers, config.num_encoder_layers):
        assert isinstance(layer, EncoderLayer)
        attention, network = layer.self_attention, layer.feed_forward

        def attend(source: Value, attention: Any = attention) -> None:
            w.product("store", attention.projection, w.round(source, attention.projection), w.places.projected)
            w.turn("run", w.places.projected, projected, heads.number + heads.shared)
            keys = k.at(w.places.projected, heads.queries)
            w.attend("run", projected, (keys, projected), (w.places.firsts, w.places.counts, k.number(0)))
            w.self_attention_output(attention.output)

        def feed(source: Value, network: Any = network) -> None:
            w.feed_forward(network, source)

        w.sublayer(layer.self_attention_residual, attend)
        w.sublayer(layer.feed_forward_residual, feed)
    if not isinstance(model.encoder_norm, nn.Identity):
        w.norm(model.encoder_norm, w.places.x, w.places.x)
    memories: list[Any] = [
        layer.memory_attention for layer in each_layer(model.decoder_layers, config.num_decoder_layers)
    ]
    rounded = w.round(w.places.x, memories[0].key_value)
    for number, memory in enumerate(memories):
        w.product("store", memory.key_value, rounded, k.at(w.places.memory, _entry(w, number, w.numbers.sources, 0)))


def _entry(w: ModelWriter, layer: int, entries: Value, number: Value | int) -> Value:
    """Where an entry of a layer begins, of keys and values (layers, entries, 2 × G × K)."""
    k = w.k
    return k.times(k.sum_of(k.times(entries, layer), number), 2 * w.heads.keys)


def _write_step(w: ModelWriter, model: Transformer) -> None:
    """The last layer after each row's newest piece."""
    config, heads, k = model.config, w.heads, w.k
    inner, entry = heads.queries, 2 * heads.keys
    length = k.variable(w.numbers.length)
    w.embed(model)
    for number, layer in enumerate(each_layer(model.decoder_layers, config.num_decoder_layers)):
        assert isinstance(layer, DecoderLayer)
        past = k.at(w.places.past, _entry(w, number, w.numbers.entries, 0))
        newest = k.at(w.places.past, _entry(w, number, w.numbers.entries, w.numbers.used))
        memory_place = k.at(w.places.memory, _entry(w, number, w.numbers.sources, 0))
        own, memory, network = layer.self_attention, layer.memory_attention, layer.feed_forward

        def attend_to_past(source: Value, own: Any = own, past: Value = past, newest: Value = newest) -> None:
            rounded = w.round(source, own.projection)
            w.product("store", own.projection, rounded, w.places.projected, (0, inner))
            w.product("store", own.projection, rounded, newest, (inner, inner + entry))
            w.turn("all", w.places.projected, inner, heads.number)
            w.turn("all", newest, entry, heads.shared)
            w.attend("list", inner, (past, entry), (w.places.lists, length, w.numbers.list_stride))
            w.self_attention_output(own.output)

        def attend_to_memory(source: Value, memory: Any = memory, place: Value = memory_place) -> None:
            w.product("store", memory.query, w.round(source, memory.query), w.places.projected)
            lists = (w.places.firsts, w.places.counts, k.number(0))
            w.attend("run", inner, (place, entry), lists, to_memory=True)
            w.self_attention_output(memory.output)

        def feed(source: Value, network: Any = network) -> None:
            w.feed_forward(network, source)

        w.sublayer(layer.self_attention_residual, attend_to_past)
        w.sublayer(layer.memory_attention_residual, attend_to_memory)
        w.sublayer(layer.feed_forward_residual, feed)
    if not isinstance(model.decoder_norm, nn.Identity):
        w.norm(model.decoder_norm, w.places.x, w.places.x)
    w.project(output_of(model))
