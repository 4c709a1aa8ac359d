"""A model's programs: its encoder, and a step of its decoder. Models of one kind and size have the same.

Legend: N rows, D model width, H heads, K width of a head, F inner width of the feed-forward network, S source pieces of
all sentences together.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from transduce.model.config import ModelConfig
from transduce.model.feed_forward import FeedForward
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual
from transduce.model.native.emit import I8, I32, I64, Emitter, Value
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, program
from transduce.model.native.linear import NativeLinear, NativeVocabulary
from transduce.model.native.lines import write_refining
from transduce.model.native.products import write_products, write_rounding
from transduce.model.native.rows import Heads, write_attention, write_embedding, write_heads, write_norms
from transduce.model.packed import PackedMemoryAttention, PackedTransformer
from transduce.model.stack import each_layer
from transduce.model.transformer import Transformer

ROWS_AT_ONCE = 128  # in the feed-forward network, so that its inner layer stays in the processor's cache


class Places(NamedTuple):
    """The numbers that both programs are given: addresses, where nothing else is said."""

    rows: Any
    """How many: N."""
    weights: Any
    """The addresses of the model's weights: `ModelPrograms.weights`."""
    x: Any
    """The embedded pieces, (N, D); what becomes of them ends up here."""
    normed: Any
    """Room for (N, D)."""
    rounded: Any
    """Room for N × D or N × H × K words, whichever is more, and for `amx.MORE_ROWS` more rows."""
    scales: Any
    """Room for N."""
    projected: Any
    """Room for queries (N, H × K); in the encoder for keys and values too, (N, 3 × H × K)."""
    heads: Any
    """Room for (N, H × K)."""
    inner: Any
    """Room for (128, F)."""
    rounded_inner: Any
    """Room for 128 × F words, and for `amx.MORE_ROWS` more rows."""
    scores: Any
    """Room for `room` numbers for each thread."""
    room: Any
    """A number: how many positions any row attends to, and a few more."""
    firsts: Any
    """The row's first source piece, int64 (N,)."""
    counts: Any
    """How many source pieces it attends to, int64 (N,)."""
    memory: Any
    """Keys and values of the source, (layers, S, 2 × H × K)."""
    sources: Any
    """A number: S."""
    past: Any
    """Keys and values of the pieces so far, (layers, entries, 2 × H × K)."""
    entries: Any
    """A number: for how many entries there is room."""
    used: Any
    """A number: entries in use. The step's own follow."""
    lists: Any
    """Each row's entries, its own last, int32 (N, at least `length`)."""
    list_stride: Any
    """A number: from one row's list to the next."""
    length: Any
    """A number: entries of each list."""
    ids: Any
    """The newest pieces, int64 (N,). From here on the step's alone."""
    added: Any
    """What is added to their embeddings, (D,)."""
    logits: Any
    """Room for (N, V), V in whole blocks."""


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
        weights = _Weights(config.d_model)
        for name, write in (("encode", _write_encoder), ("step", _write_step)):
            with program(k, name, len(Places._fields)) as (numbers, thread, threads):
                write(_Writer(k, self.heads, Places(*numbers), (thread, threads), weights), model)
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


class _Weights:
    """The weights that programs read, in the order in which they are first asked for."""

    def __init__(self, d_model: int) -> None:
        self.zeros = torch.zeros(d_model)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def number_of(self, tensor: Tensor) -> int:
        """Its place among them."""
        number = self._numbers.setdefault(tensor.data_ptr(), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(tensor)
        return number


class _Writer:
    """Writes the calls of a program."""

    def __init__(
        self, k: Emitter, heads: Heads, numbers: Places, share: tuple[Value, Value], weights: _Weights
    ) -> None:
        self.k = k
        self.heads = heads
        self.numbers = numbers
        self.share = share
        self.weights = weights

    @cached_property
    def places(self) -> Places:
        """The addresses as places."""
        return Places(*(self.k.place(number) for number in self.numbers))

    def weight(self, tensor: Tensor, first_byte: int = 0) -> Value:
        """The place of a weight, or of what begins so many bytes behind."""
        k = self.k
        address = k.load(k.at(self.places.weights, self.weights.number_of(tensor), I64), I64)
        return k.at(k.place(address), first_byte, I8)

    def embed(self, model: Transformer) -> None:
        """The newest pieces; their entries become the last of the lists."""
        k, numbers, places = self.k, self.numbers, self.places
        k.call(
            "embed",
            places.ids,
            numbers.rows,
            k.number(model.config.d_model),
            self.weight(model.target_weight),
            k.real(model.target_embedding.scale),
            places.added,
            places.x,
            k.at(places.lists, k.sum_of(numbers.length, -1), I32),
            numbers.list_stride,
            numbers.used,
            *self.share,
        )
        k.barrier(self.share[1])

    def norm(self, norm: nn.Module, x: Value, out: Value) -> None:
        """LayerNorm or RMSNorm of all rows."""
        k = self.k
        if isinstance(norm, nn.LayerNorm):
            name, epsilon, bias = "norm_layer", norm.eps, norm.bias
        else:
            assert isinstance(norm, nn.RMSNorm)
            name, epsilon, bias = "norm_rms", norm.eps or torch.finfo(torch.float32).eps, None
        weight_place, bias_place = self.weight(norm.weight), self.weight(self.weights.zeros if bias is None else bias)
        width = k.number(norm.normalized_shape[0])
        k.call(name, x, self.numbers.rows, width, weight_place, bias_place, k.real(epsilon), out, *self.share)
        k.barrier(self.share[1])

    def round(self, x: Value, linear: Any) -> Value:
        """All rows (N, D) for this product, in `rounded` where they have to be rounded; where they are."""
        return self._round(linear, x, self.numbers.rows, self.places.rounded)

    def _round(self, linear: Any, x: Value, rows: Value, rounded: Value) -> Value:
        k = self.k
        if linear.tile.kind == "floats":
            return x
        name = f"round_{linear.tile.kind}"
        if not k.has(name):
            write_rounding(k, linear.tile)
        k.call(name, x, rows, k.number(linear.width), rounded, self.places.scales, *self.share)
        k.barrier(self.share[1])
        return rounded

    def product(
        self, ending: str, linear: Any, rounded: Value, out: Value, outputs: tuple[int, int] | None = None
    ) -> None:
        """Rounded rows times a matrix, or times the rows of it from one to another."""
        rows = (rounded, self.places.scales, self.numbers.rows, self.k.number(linear.width))
        self._product(ending, linear, rows, out, outputs)

    def _product(
        self,
        ending: str,
        linear: Any,
        rows: tuple[Value, ...],
        out: Value,
        outputs: tuple[int, int] | None = None,
    ) -> None:
        k, (first, last) = self.k, outputs or (0, linear.padded_outputs)
        name = f"product_{linear.tile.kind}_{ending}"
        if not k.has(name):
            write_products(k, linear.tile, (ending,))
        weights = self.weight(linear.weights, first * linear.width * linear.tile.weight_bytes)
        vectors = (self.weight(vector, first * 4) for vector in (linear.start, linear.steps, linear.bias))
        k.call(name, *rows, weights, *vectors, k.number(last - first), out, *self.share)
        k.barrier(self.share[1])

    def attend(self, kind: str, query_stride: int, keys: tuple[Value, int], lists: tuple[Value, Value, Value]) -> None:
        """Of `projected` to keys, and values that follow them, which have this stride."""
        k, places = self.k, self.places
        place, stride = keys
        k.call(
            f"attend_{kind}",
            places.projected,
            k.number(query_stride),
            place,
            k.at(place, self.heads.inner),
            k.number(stride),
            *lists,
            self.numbers.rows,
            places.heads,
            places.scores,
            self.numbers.room,
            *self.share,
        )
        k.barrier(self.share[1])

    def sublayer(self, residual: Residual, write: Callable[[Value], None]) -> None:
        """Norms around what adds to x; pre-norm or post-norm."""
        source = self.places.x
        if not isinstance(residual.norm_before, nn.Identity):
            source = self.places.normed
            self.norm(residual.norm_before, self.places.x, source)
        write(source)
        if not isinstance(residual.norm_after, nn.Identity):
            self.norm(residual.norm_after, self.places.x, self.places.x)

    def feed_forward(self, network: FeedForward, source: Value) -> None:
        """max(0, x W1 + b1) W2 + b2, added to x, some rows at a time."""
        k, places, inner, outer = self.k, self.places, network.inner, network.outer
        assert isinstance(inner, NativeLinear)
        assert isinstance(outer, NativeLinear)
        width, inner_width = k.number(inner.width), k.number(outer.width)
        with k.loop(0, self.numbers.rows, ROWS_AT_ONCE) as first:
            left = k.build.sub(self.numbers.rows, first)
            count = k.lesser(left, k.number(ROWS_AT_ONCE))
            some, there = (k.at(place, k.times(first, width)) for place in (source, places.x))
            rows = (self._round(inner, some, count, places.rounded), places.scales, count, width)
            self._product("relu", inner, rows, places.inner)
            rounded = self._round(outer, places.inner, count, places.rounded_inner)
            rows = (rounded, places.scales, count, inner_width)
            self._product("add", outer, rows, there)

    def project(self, output: NativeVocabulary) -> None:
        """Of x to logits."""
        k, places = self.k, self.places
        self.product("store", output, self.round(places.x, output), places.logits)
        if not output.is_refined:
            return
        weights = (self.weight(output.exact), self.weight(output.bias))
        sizes = (self.numbers.rows, k.number(output.width))
        k.call("refine", places.x, *sizes, *weights, places.logits, k.number(output.padded_outputs), *self.share)
        k.barrier(self.share[1])

    def self_attention_output(self, output: Any) -> None:
        """The heads, joined and projected, added to x."""
        self.product("add", output, self.round(self.places.heads, output), self.places.x)


def _write_encoder(w: _Writer, model: Transformer) -> None:
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


def _entry(w: _Writer, layer: int, entries: Value, number: Value | int) -> Value:
    """Where an entry of a layer begins, of keys and values (layers, entries, 2 × H × K)."""
    k = w.k
    return k.times(k.sum_of(k.times(entries, layer), number), 2 * w.heads.inner)


def _write_step(w: _Writer, model: Transformer) -> None:
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
