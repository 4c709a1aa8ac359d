"""A model's programs, and which models they can be written for. Models of one kind and size have the same."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from transduce.kernels.cpu.decode_rows import (
    GrowingTables,
    HeadShape,
    emit_embedding,
    emit_norms,
    emit_rotary,
    emit_scaling,
    emit_sequence_embedding,
)
from transduce.kernels.cpu.decoding.writer import ModelWriter, StepArguments, Weights
from transduce.kernels.cpu.gemm.decode import NativeVocabulary
from transduce.kernels.cpu.jit.compiler import CompiledKernel, compile_kernels, find_integer_tile, kernel, new_builder
from transduce.kernels.cpu.jit.ir_builder import F16, F32, Value
from transduce.kernels.cpu.logits import emit_refinement
from transduce.kernels.prepacked import Packed, PackedDecoder, PackedSelfAttention, PackedTransformer
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import GATES, FeedForward, GatedFeedForward
from transduce.model.layer_graph import Graph, description_of, refusal, table
from transduce.model.layers import DecoderLayer, EncoderLayer, StackPositions, each_layer

# --- layer programs ---
# What each of a model's programs does, layer by layer.
# Legend: N rows, D model width, S source pieces of all sentences, G heads of keys and values, K width of a head.


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
            keys = k.element_pointer(w.places.projected, heads.queries)
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
    return w.places.firsts, w.places.counts, w.k.int64(0)


def _entry(w: ModelWriter, place: Value, layer: int, entries: Value, number: Value | int = 0) -> Value:
    """Where an entry of a layer begins, of keys and values that are kept (layers, entries, 2 × G × K)."""
    k = w.k
    return k.element_pointer(place, k.mul(k.add(k.mul(entries, layer), number), 2 * w.heads.keys), w.kept)


# --- compiled steps ---


_TYPES = {torch.float16: F16, torch.float32: F32}
_COMPONENTS = {
    "positions": "sinusoidal learned rotary rotary-interleaved relative none",
    "attention_window": "none",
    "token_types": "none",
    "norm": "layer rms",
    "norm_order": "pre post",
    "activation": "relu gelu gelu-tanh silu swiglu geglu geglu-tanh reglu",
    "attention_score": "scaled dot",
    "attention_kind": "soft",
    "attention_scale": "default other",
    "key_value_heads": "equal shared",
    "value_width": "equal",
}
COMPILED = table(
    "the compiled decoder",
    class_="PackedTransformer PackedDecoder",
    linear_layers="NativeLinear",
    output_projection="NativeVocabulary",
    **_COMPONENTS,
)
"""The models that `ModelPrograms` computes."""
COMPILABLE = table(
    "the compiled decoder",
    class_="Transformer Decoder",
    linear_layers="Linear",
    output_projection="Linear",
    **_COMPONENTS,
)
"""The models whose prepacked copy `ModelPrograms` computes."""


def why_not_compilable(model: nn.Module) -> str | None:
    """Return a clause that says why a model's prepacked copy could not be compiled; None: it could."""
    if (reason := refusal(COMPILABLE, model)) is not None:
        return reason
    return _why_not_sizes(model.config)  # type: ignore[arg-type]


def _why_not_sizes(config: ModelConfig) -> str | None:
    """Return which size is not of whole blocks of outputs, or of whole vectors of a head (half of one that rotates)."""
    tile = find_integer_tile()
    if tile is None:
        return "there are no kernels for this processor"
    heads = HeadShape.of(config)
    lanes = tile.lanes * (2 if config.positions.startswith("rotary") else 1)
    sizes = {
        "`model.d_model`": (config.d_model, tile.columns),
        "`model.d_ff`": (config.d_ff, tile.columns),
        "the width of all query heads": (heads.queries, tile.columns),
        "the width of all key and value heads": (2 * heads.keys, tile.columns),
        "the width of a head": (config.key_width, lanes),
    }
    wrong = ((name, size, factor) for name, (size, factor) in sizes.items() if size % factor)
    return next((f"{name}, {size}, is no multiple of {factor}" for name, size, factor in wrong), None)


def output_of(model: Packed) -> NativeVocabulary:
    """The product with the vocabulary."""
    assert isinstance(model.packed_output, NativeVocabulary)
    return model.packed_output


class ModelPrograms:
    """What runs a model: one program that reads what is given, and one that does a step."""

    def __init__(self, model: PackedTransformer | PackedDecoder) -> None:
        """Writes and compiles both programs."""
        config, output = model.config, output_of(model)
        self.heads = HeadShape.of(config)
        self.d_model, self.d_ff, self.is_gated = config.d_model, config.d_ff, config.activation in GATES
        self.kept_dtype = _kept_dtype(model)
        """Of the keys and values that steps attend to."""
        self.read_positions, self.step_positions = _position_tables(model)
        is_ragged = isinstance(model, PackedDecoder)
        k = new_builder("model", output.tile)
        emit_refinement(k, output.tile.vectors)
        emit_embedding(k, is_ragged=is_ragged)
        emit_sequence_embedding(k)
        emit_norms(k)
        emit_scaling(k)
        emit_rotary(k, self.heads, interleaved=config.positions == "rotary-interleaved")
        weights = Weights(config.d_model)
        row_work = {}
        for name, write in _writers(model, output).items():
            with kernel(k, name, len(StepArguments._fields)) as (numbers, thread, threads):
                writer = ModelWriter(
                    k, config, StepArguments(*numbers), (thread, threads), weights, _TYPES[self.kept_dtype]
                )
                write(writer)
                row_work[name] = writer.row_work
        self._kept = weights.tensors
        self.weights = torch.tensor([tensor.data_ptr() for tensor in self._kept])
        programs = compile_kernels(k, ("read", "step"))
        self.read: CompiledKernel = programs["read"]
        """The encoder, or prompts."""
        self.step: CompiledKernel = programs["step"]
        self.read_work, self.step_work = row_work["read"], row_work["step"]
        """Products of two numbers that they take for each row, but those of attention."""


def _kept_dtype(model: PackedTransformer | PackedDecoder) -> torch.dtype:
    layer = (model.layers if isinstance(model, PackedDecoder) else model.decoder_layers)[0]
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    assert isinstance(layer.self_attention, PackedSelfAttention)
    return layer.self_attention.kept_dtype


def _writers(
    model: PackedTransformer | PackedDecoder, output: NativeVocabulary
) -> dict[str, Callable[[ModelWriter], None]]:
    """What writes each program."""
    if isinstance(model, PackedDecoder):
        return {"read": lambda w: write_prompts(w, model), "step": lambda w: write_continuing(w, model, output)}
    return {"read": lambda w: write_encoder(w, model), "step": lambda w: write_step(w, model, output)}


def _position_tables(model: PackedTransformer | PackedDecoder) -> tuple[GrowingTables, GrowingTables]:
    """Those of what is read, and of steps."""
    if isinstance(model, PackedDecoder):
        of_steps = _tables(model.embedding, model.positions, model.config)
        return of_steps, of_steps
    return (
        _tables(model.source_embedding, model.encoder_positions, model.config),
        _tables(model.target_embedding, model.decoder_positions, model.config),
    )


def _tables(embedding: Embedding, positions: StackPositions, config: ModelConfig) -> GrowingTables:
    def added(count: int) -> Tensor:
        table: Tensor = embedding.positions(torch.zeros(1, count, config.d_model))[0]
        return table

    return GrowingTables(positions, added, config.max_positions if config.positions == "learned" else 2**31)


_PROGRAMS: WeakKeyDictionary[nn.Module, tuple[Graph, ModelPrograms]] = WeakKeyDictionary()


def find_programs(model: PackedTransformer | PackedDecoder, *, is_private: bool = False) -> ModelPrograms | str:
    """Return a model's compiled steps, made when they are first asked for; or why it cannot be compiled as it is now.

    Args:
        model: with prepacked weights.
        is_private: nobody else holds the model, so that it is looked at once only.
    """
    known = _PROGRAMS.get(model)
    if known is not None and is_private:
        return known[1]
    described = description_of(model)
    reason = described.refusal(COMPILED)
    if reason is None:
        reason = "the model is in training mode" if described.is_training else _why_not_sizes(model.config)
    if reason is not None:
        return reason
    if known is None or known[0] is not described.graph:
        known = _PROGRAMS[model] = described.graph, ModelPrograms(model)
    return known[1]
