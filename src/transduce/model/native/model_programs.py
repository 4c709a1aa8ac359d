"""A model's programs: its encoder, and a step of its decoder. Models of one kind and size have the same.

Legend: N rows, D model width, H heads, K width of a head, F inner width of the feed-forward network, S source pieces of
all sentences together.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.native.emit import Value
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, program
from transduce.model.native.linear import NativeLinear, NativeVocabulary
from transduce.model.native.lines import write_refining
from transduce.model.native.model_writer import ModelWriter, Places, Weights
from transduce.model.native.rows import Heads, write_attention, write_embedding, write_heads, write_norms
from transduce.model.packed import PackedMemoryAttention, PackedTransformer
from transduce.model.stack import each_layer
from transduce.model.transformer import Transformer


def supports_native(model: Transformer) -> bool:
    """Whether the programs can be written for a model of which `flat.supports` holds."""
    return fits(model.config) and all(isinstance(product, NativeLinear) for product in _all_products(model))


def fits(config: ModelConfig) -> bool:
    """Whether the programs can be written for models of these sizes and bricks, once the kernels have the products."""
    tile = find_tile()
    if tile is None or config.d_model % tile.columns or config.d_ff % tile.columns or config.key_width % tile.lanes:
        return False
    if (config.num_heads * config.key_width) % tile.columns or config.activation != "relu":
        return False
    return not (config.embedding_norm or config.token_types or config.output_scale != 1.0)


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
        self.heads = Heads(config.num_heads, config.key_width)
        self.d_model, self.d_ff = config.d_model, config.d_ff
        self._positions = model.target_embedding.positions
        self._added = torch.empty(0, config.d_model)  # (positions, D)
        self._most_positions = config.max_positions if config.positions == "learned" else 2**31
        self._products = [vars(product) for product in _all_products(model)]
        k = new_emitter("model", output_of(model).tile)
        write_refining(k, output_of(model).tile.vectors)
        write_embedding(k)
        write_norms(k)
        write_heads(k, self.heads)
        write_attention(k, self.heads)
        weights = Weights(config.d_model)
        for name, write in (("encode", _write_encoder), ("step", _write_step)):
            with program(k, name, len(Places._fields)) as (numbers, thread, threads):
                write(ModelWriter(k, self.heads, Places(*numbers), (thread, threads), weights), model)
        self._kept = weights.tensors
        self.weights = torch.tensor([tensor.data_ptr() for tensor in self._kept])
        programs = compile_programs(k, ("encode", "step"))
        self.encode: Program = programs["encode"]
        self.step: Program = programs["step"]

    def have_other_products(self) -> bool:
        """Whether somebody put something else in a product's place, which machine code would pass over."""
        return any("forward" in own for own in self._products)

    def added_until(self, position: int) -> Tensor:
        """What is added to embeddings, up to this position at least, (positions, D); to be kept while it is read."""
        known = self._added  # other threads may put a longer table in its place
        if position >= len(known):
            count = min(max(2 * position, 64), self._most_positions)
            known = self._added = self._positions(torch.zeros(1, max(count, position + 1), self.d_model))[0]
        return known


_PROGRAMS: WeakKeyDictionary[Transformer, ModelPrograms | None] = WeakKeyDictionary()


def find_programs(model: Transformer) -> ModelPrograms | None:
    """A model's programs, of which `flat.supports` holds; they are written when they are first asked for.

    None where the kernels do not fit the model or this processor.
    """
    if model not in _PROGRAMS:
        _PROGRAMS[model] = ModelPrograms(model) if supports_native(model) else None
    return _PROGRAMS[model]


def _write_encoder(w: ModelWriter, model: Transformer) -> None:
    """The memory's keys and values for each layer of the decoder."""
    config, inner, k = model.config, w.heads.inner, w.k
    for layer in each_layer(model.encoder_layers, config.num_encoder_layers):
        assert isinstance(layer, EncoderLayer)
        attention, network = layer.self_attention, layer.feed_forward

        def attend(source: Value, attention: Any = attention) -> None:
            w.product("store", attention.projection, w.round(source, attention.projection), w.places.projected)
            keys = k.at(w.places.projected, inner)
            w.attend("run", 3 * inner, (keys, 3 * inner), (w.places.firsts, w.places.counts, k.number(0)))
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
    """Where an entry of a layer begins, of keys and values (layers, entries, 2 × H × K)."""
    k = w.k
    return k.times(k.sum_of(k.times(entries, layer), number), 2 * w.heads.inner)


def _write_step(w: ModelWriter, model: Transformer) -> None:
    """The last layer after each row's newest piece."""
    config, inner, k = model.config, w.heads.inner, w.k
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
            w.product("store", own.projection, rounded, newest, (inner, 3 * inner))
            w.attend("list", inner, (past, 2 * inner), (w.places.lists, length, w.numbers.list_stride))
            w.self_attention_output(own.output)

        def attend_to_memory(source: Value, memory: Any = memory, place: Value = memory_place) -> None:
            w.product("store", memory.query, w.round(source, memory.query), w.places.projected)
            w.attend("run", inner, (place, 2 * inner), (w.places.firsts, w.places.counts, k.number(0)))
            w.self_attention_output(memory.output)

        def feed(source: Value, network: Any = network) -> None:
            w.feed_forward(network, source)

        w.sublayer(layer.self_attention_residual, attend_to_past)
        w.sublayer(layer.memory_attention_residual, attend_to_memory)
        w.sublayer(layer.feed_forward_residual, feed)
    if not isinstance(model.decoder_norm, nn.Identity):
        w.norm(model.decoder_norm, w.places.x, w.places.x)
    w.project(output_of(model))
