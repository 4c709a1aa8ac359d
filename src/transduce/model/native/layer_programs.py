"""What each of a model's programs does, layer by layer.

Legend: N rows, D model width, S source pieces of all sentences, G heads of keys and values, K width of a head.
"""

from typing import Any

from torch import nn

from transduce.model.feed_forward import FeedForward, GatedFeedForward
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.native.emit import F32, Value
from transduce.model.native.linear import NativeVocabulary
from transduce.model.native.model_writer import ModelWriter
from transduce.model.packed import PackedDecoder, PackedTransformer
from transduce.model.stack import each_layer


def write_encoder(w: ModelWriter, model: PackedTransformer) -> None:
    """An encoder; then the memory's keys and values for each layer of the decoder."""
    config, heads, k = model.config, w.heads, w.k
    w.embed_runs(model.source_embedding, model.source_weight)
    projected = heads.queries + 2 * heads.keys
    for layer in each_layer(model.encoder_layers, config.num_encoder_layers):
        assert isinstance(layer, EncoderLayer)

        def attend(source: Value, attention: Any = layer.self_attention) -> None:
            w.product("store", attention.projection, w.round(source, attention.projection), w.places.projected)
            w.turn("run", w.places.projected, projected, heads.number + heads.shared)
            keys = k.at(w.places.projected, heads.queries)
            w.attend("run", projected, (keys, projected), _run(w), element=F32)
            w.self_attention_output(attention.output)

        w.sublayer(layer.self_attention_residual, attend)
        _feed_forward(w, layer)
    _norm(w, model.encoder_norm)
    memories: list[Any] = [
        layer.memory_attention for layer in each_layer(model.decoder_layers, config.num_decoder_layers)
    ]
    rounded = w.round(w.places.x, memories[0].key_value)
    for number, memory in enumerate(memories):
        w.keep(memory.key_value, rounded, _entry(w, w.places.memory, number, w.numbers.sources))


def write_step(w: ModelWriter, model: PackedTransformer, output: NativeVocabulary) -> None:
    """A decoder's last layer after each row's newest piece, all at one position, and the logits."""
    config, k = model.config, w.k
    length = k.variable(w.numbers.length)
    w.embed(model.target_embedding, model.target_weight)
    for number, layer in enumerate(each_layer(model.decoder_layers, config.num_decoder_layers)):
        assert isinstance(layer, DecoderLayer)
        memory_place = _entry(w, w.places.memory, number, w.numbers.sources)
        lists = (w.places.lists, length, w.numbers.list_stride)

        def attend_to_memory(source: Value, memory: Any = layer.memory_attention, place: Value = memory_place) -> None:
            inner, entry = w.heads.queries, 2 * w.heads.keys
            w.product("store", memory.query, w.round(source, memory.query), w.places.projected)
            w.attend("run", inner, (place, entry), _run(w), to_memory=True)
            w.self_attention_output(memory.output)

        _self_attention(w, number, layer, ("all", "list"), lists)
        w.sublayer(layer.memory_attention_residual, attend_to_memory)
        _feed_forward(w, layer)
    _norm(w, model.decoder_norm)
    w.project(output)


def write_prompts(w: ModelWriter, model: PackedDecoder) -> None:
    """A decoder's last layer at all pieces of prompts, whose keys and values become the first entries of the pool."""
    w.embed_runs(model.embedding, model.source_weight)
    for number, layer in enumerate(each_layer(model.layers, model.config.num_decoder_layers)):
        _self_attention(w, number, layer, ("run", "run"), _run(w))
        _feed_forward(w, layer)
    _norm(w, model.norm)
    w.finish()


def write_continuing(w: ModelWriter, model: PackedDecoder, output: NativeVocabulary) -> None:
    """A decoder's last layer after each row's newest piece, each at a position of its own, and the logits."""
    w.embed(model.embedding, model.target_weight, is_ragged=True)
    lists = (w.places.lists, w.places.counts, w.numbers.list_stride)
    for number, layer in enumerate(each_layer(model.layers, model.config.num_decoder_layers)):
        _self_attention(w, number, layer, ("each", "lists"), lists)
        _feed_forward(w, layer)
    _norm(w, model.norm)
    w.project(output)


def _self_attention(
    w: ModelWriter, number: int, layer: nn.Module, kinds: tuple[str, str], lists: tuple[Value, Value, Value]
) -> None:
    """Attention to entries of the pool, the newest among them; kinds of `ModelWriter.turn` and `attend`."""
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    turning, attending = kinds
    inner, entry = w.heads.queries, 2 * w.heads.keys
    past = _entry(w, w.places.past, number, w.numbers.entries)
    newest = _entry(w, w.places.past, number, w.numbers.entries, w.numbers.used)

    def attend(source: Value, own: Any = layer.self_attention) -> None:
        rounded = w.round(source, own.projection)
        w.product("store", own.projection, rounded, w.places.projected, (0, inner))
        w.keep(own.projection, rounded, newest, (inner, inner + entry))
        w.turn(turning, w.places.projected, inner, w.heads.number)
        w.turn(turning, newest, entry, w.heads.shared)
        w.attend(attending, inner, (past, entry), lists)
        w.self_attention_output(own.output)

    w.sublayer(layer.self_attention_residual, attend)


def _feed_forward(w: ModelWriter, layer: nn.Module) -> None:
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    network: FeedForward | GatedFeedForward = layer.feed_forward
    w.sublayer(layer.feed_forward_residual, lambda source: w.feed_forward(network, source))


def _norm(w: ModelWriter, norm: nn.Module) -> None:
    """The one after a stack."""
    if not isinstance(norm, nn.Identity):
        w.norm(norm, w.places.x, w.places.x)


def _run(w: ModelWriter) -> tuple[Value, Value, Value]:
    """What attention in runs is given for lists."""
    return w.places.firsts, w.places.counts, w.k.number(0)


def _entry(w: ModelWriter, place: Value, layer: int, entries: Value, number: Value | int = 0) -> Value:
    """Where an entry of a layer begins, of keys and values that are kept (layers, entries, 2 × G × K)."""
    k = w.k
    return k.at(place, k.times(k.sum_of(k.times(entries, layer), number), 2 * w.heads.keys), w.kept)
