"""Compile a whole model for decoding on a CPU: one kernel that reads the input, and one that runs a decoding step.

`COMPILABLE` lists the components that a model may have. A `CompiledModel` holds the kernels of one model with prepacked
weights.

Legend: N rows, D model width, S source tokens of all sentences, G key/value heads, K width of a head.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
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
from transduce.kernels.cpu.decoding.writer import ModelEmitter, StepArguments, Weights
from transduce.kernels.cpu.gemm.decode import CompiledVocabulary
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    compile_kernels,
    find_integer_tile,
    kernel,
    require_integer_tile,
)
from transduce.kernels.cpu.jit.ir_builder import F16, F32, I64, POINTER, KernelBuilder, Value, outlined
from transduce.kernels.cpu.jit.memory import file_rows
from transduce.kernels.cpu.logits import emit_refinement
from transduce.kernels.prepacked import (
    AnyPrepacked,
    PrepackedDecoder,
    PrepackedEncoder,
    PrepackedModel,
    PrepackedSelfAttention,
    PrepackedTransformer,
)
from transduce.model.attention import QueryKeyNormAttention
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import GATES
from transduce.model.layer_graph import Graph, SupportTable, description_of, refusal, table
from transduce.model.layers import DecoderLayer, EncoderLayer, each_layer
from transduce.model.transformer import Encoder

# --- the encoder: its layers over whole texts without padding, a chunk of texts at a time ---
# A chunk's intermediate results and a layer's weights then stay in the processor's cache.
#
# Legend: N rows (tokens of all texts), D model width.


CHUNK_ROWS = 256
"""The maximum number of rows (tokens) that the encoder computes at a time, unless a single text has more."""


class Chunk(NamedTuple):
    """Consecutive texts that the compiled encoder computes together, so that data stays in the processor's cache."""

    first_row: int
    """The index of the chunk's first row (token) among those of all texts."""
    rows: int
    """The number of rows (tokens) of the chunk."""
    first_text: int
    """The index of the chunk's first text."""
    texts: int
    """The number of texts of the chunk."""


class TextLayout(NamedTuple):
    """Tables for the encoder's kernel: where each text begins and ends, and which texts form a chunk."""

    firsts: Tensor
    """For each row (token), the index of its text's first token, counted from the start of the chunk, int64."""
    starts: Tensor
    """For each text, the index of its first token, counted from the start of its chunk, int64."""
    lengths: Tensor
    """The number of tokens of each text, a tensor, int64."""
    chunks: Tensor
    """The chunks of texts that are computed together, int64 (chunks, 4): the four fields of each `Chunk`."""
    chunk_rows: int
    """The number of rows (tokens) of the largest chunk, for which scratch space must suffice."""

    @staticmethod
    def of(counts: Sequence[int]) -> "TextLayout":
        """Return the layout tables of texts that have `counts` tokens, each at least 1."""
        chunks = _chunks_of(counts)
        lengths = torch.tensor(counts)
        chunk_starts = torch.tensor([chunk.first_row for chunk in chunks for _ in range(chunk.texts)])
        starts = lengths.cumsum(0) - lengths - chunk_starts
        chunk_rows = max(chunk.rows for chunk in chunks)
        return TextLayout(starts.repeat_interleave(lengths), starts, lengths, torch.tensor(chunks), chunk_rows)

    def addresses(self) -> dict[str, int]:
        """Return the tables' addresses and lengths, as a dict from names of fields of `StepArguments`.

        The addresses are valid while the tables exist.
        """
        return {
            "firsts": self.firsts.data_ptr(),
            "starts": self.starts.data_ptr(),
            "lengths": self.lengths.data_ptr(),
            "texts": len(self.lengths),
            "chunks": self.chunks.data_ptr(),
            "num_chunks": len(self.chunks),
        }


def _chunks_of(counts: Sequence[int]) -> list[Chunk]:
    """Return a list of chunks of consecutive texts with at most `CHUNK_ROWS` tokens together.

    `counts` has the texts' numbers of tokens. A longer text is a chunk of its own.
    """
    chunks = [Chunk(0, 0, 0, 0)]
    for count in counts:
        first_row, rows, first_text, texts = chunks[-1]
        if texts and rows + count > CHUNK_ROWS:
            chunks.append(Chunk(first_row + rows, count, first_text + texts, 1))
        else:
            chunks[-1] = Chunk(first_row, rows + count, first_text, texts + 1)
    return chunks


@contextmanager
def each_chunk(w: ModelEmitter) -> Iterator[tuple[ModelEmitter, Value]]:
    """Emit a loop over the chunks of texts, whose body is emitted in the body of `with`.

    Yield an emitter that computes the rows of one chunk, and the index of the chunk's first row. After the body, the
    multiplications per row that this emitter has counted are added to those of `w`.
    """
    k, size, chunks = w.k, len(Chunk._fields), w.pointers.chunks
    with k.loop(0, w.arguments.num_chunks) as number:
        entry = k.element_pointer(chunks, k.mul(number, size), I64)
        fields = [k.load(k.element_pointer(entry, field, I64), I64) for field in range(size)]
        made = w.for_chunk(fields)
        yield made, fields[0]
        w.multiplications_per_row += made.multiplications_per_row


def emit_encoder_stack(
    w: ModelEmitter, embedding: Embedding, weight: Tensor, layers: nn.ModuleList, norm: nn.Module
) -> None:
    """Emit an encoder's embeddings, layers and final norm.

    Each layer is computed for all chunks of texts before the next layer. If `norm` is `nn.Identity`, no norm is
    emitted.
    """
    with each_chunk(w) as (of_chunk, _):
        of_chunk.embed_runs(embedding, weight)
    for layer in each_layer(layers, w.config.num_encoder_layers):
        with each_chunk(w) as (of_chunk, _):
            _encoder_self_attention(of_chunk, layer)
            _feed_forward(of_chunk, layer)
    if not isinstance(norm, nn.Identity):
        with each_chunk(w) as (of_chunk, _):
            _norm(of_chunk, norm)


def _encoder_self_attention(w: ModelEmitter, layer: nn.Module) -> None:
    """Emit an encoder layer's self-attention for the rows of the emitter `w`, such as those of a chunk of texts."""
    assert isinstance(layer, EncoderLayer)

    def attend(source: Value, attention: Any = layer.self_attention) -> None:
        heads, projection = w.heads, attention.projection
        w.gemm("store", projection, w.quantize(source, projection), w.pointers.projected)
        stride = heads.queries + 2 * heads.keys
        if isinstance(attention, QueryKeyNormAttention):
            keys = w.k.element_pointer(w.pointers.projected, heads.queries)
            w.norm_heads(attention.query_norm, w.pointers.projected, stride, heads.number)
            w.norm_heads(attention.key_norm, keys, stride, heads.shared)
        w.rotate("run", w.pointers.projected, stride, heads.number + heads.shared)
        w.attend_texts()
        w.attention_output(attention.output)

    w.sublayer(layer.self_attention_residual, attend)


@outlined
def emit_row_addition(k: KernelBuilder) -> None:
    """Emit `add_rows(x, N, D, table, numbers, thread, threads)`: add the table's row `numbers[n]` to row n of x.

    The function adds the embeddings of token types.
    """
    with k.function("add_rows", POINTER, I64, I64, POINTER, POINTER, I64, I64) as (x, rows, width, *more):
        table, numbers, *share = more
        with k.thread_loop(rows, share) as row:
            number = k.load(k.element_pointer(numbers, row, I64), I64)
            source = k.element_pointer(table, k.mul(number, width))
            target = k.element_pointer(x, k.mul(row, width))
            with k.loop(0, width, k.lanes) as column:
                value = k.build.fadd(k.load_floats(target, column), k.load_floats(source, column))
                k.store(value, k.element_pointer(target, column))


# --- kernels of a model, layer by layer ---


def emit_encoder(w: ModelEmitter, model: PrepackedTransformer) -> None:
    """Emit the encoder, then the projection of its output to the cross-attention keys and values of each layer.

    The keys and values are stored in `StepArguments.memory`.
    """
    emit_encoder_stack(w, model.source_embedding, model.source_weight, model.encoder_layers, model.encoder_norm)
    layers: Iterator[Any] = each_layer(model.decoder_layers, model.config.num_decoder_layers)
    memories = [layer.memory_attention for layer in layers]
    with each_chunk(w) as (of_chunk, first_row):
        rounded = of_chunk.quantize(of_chunk.pointers.x, memories[0].key_value)
        for number, memory in enumerate(memories):
            entry = _cache_entry(w, w.pointers.memory, number, w.arguments.sources, first_row)
            of_chunk.gemm_to_cache(memory.key_value, rounded, entry)
            if isinstance(memory, QueryKeyNormAttention):
                of_chunk.norm_heads(memory.key_norm, entry, 2 * w.heads.keys, w.heads.shared)


def emit_decoder_step(w: ModelEmitter, model: PrepackedTransformer, output: CompiledVocabulary) -> None:
    """Emit a decoding step of an encoder-decoder model, from the newest token of each row to its logits.

    Rows are hypotheses, all at one position.
    """
    config, k = model.config, w.k
    length = k.variable(w.arguments.length)
    w.embed(model.target_embedding, model.target_weight)
    for number, layer in enumerate(each_layer(model.decoder_layers, config.num_decoder_layers)):
        assert isinstance(layer, DecoderLayer)
        memory_entries = _cache_entry(w, w.pointers.memory, number, w.arguments.sources)
        lists = (w.pointers.lists, length, w.arguments.list_stride)

        def attend_to_memory(
            source: Value, memory: Any = layer.memory_attention, entries: Value = memory_entries
        ) -> None:
            inner, entry = w.heads.queries, 2 * w.heads.keys
            w.gemm("store", memory.query, w.quantize(source, memory.query), w.pointers.projected)
            if isinstance(memory, QueryKeyNormAttention):
                w.norm_heads(memory.query_norm, w.pointers.projected, inner, w.heads.number)
            w.attend("run", inner, (entries, entry), _own_sequence(w), to_memory=True)
            w.attention_output(memory.output)

        _self_attention(w, number, layer, ("all", "list"), lists)
        w.sublayer(layer.memory_attention_residual, attend_to_memory)
        _feed_forward(w, layer)
    _norm(w, model.decoder_norm)
    w.project(output)


def emit_prompts(w: ModelEmitter, model: PrepackedDecoder) -> None:
    """Emit a decoder-only model's pass over whole prompts, which stores their keys and values at the cache's start."""
    w.embed_runs(model.embedding, model.source_weight)
    for number, layer in enumerate(each_layer(model.layers, model.config.num_decoder_layers)):
        _self_attention(w, number, layer, ("run", "run"), _own_sequence(w))
        _feed_forward(w, layer)
    _norm(w, model.norm)
    w.scale_output()


def emit_prompt_step(w: ModelEmitter, model: PrepackedDecoder, output: CompiledVocabulary) -> None:
    """Emit a decoding step of a decoder-only model, from the newest token of each row to its logits.

    Rows are hypotheses, each at its own position.
    """
    w.embed(model.embedding, model.target_weight, is_ragged=True)
    lists = (w.pointers.lists, w.pointers.counts, w.arguments.list_stride)
    for number, layer in enumerate(each_layer(model.layers, model.config.num_decoder_layers)):
        _self_attention(w, number, layer, ("each", "lists"), lists)
        _feed_forward(w, layer)
    _norm(w, model.norm)
    w.project(output)


def _self_attention(
    w: ModelEmitter, number: int, layer: nn.Module, kinds: tuple[str, str], lists: tuple[Value, Value, Value]
) -> None:
    """Emit the self-attention of one layer, over the tokens in the layer's key/value cache.

    The newest keys and values are appended to the cache first.

    Args:
        w: the emitter of the model.
        number: the layer's index.
        layer: the encoder or decoder layer.
        kinds: the argument `kind` of `ModelEmitter.rotate`, and the argument `kind` of `ModelEmitter.attend`.
        lists: the argument `lists` of `ModelEmitter.attend`.
    """
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    rotation_kind, attention_kind = kinds
    inner, entry = w.heads.queries, 2 * w.heads.keys
    past = _cache_entry(w, w.pointers.past, number, w.arguments.entries)
    newest = _cache_entry(w, w.pointers.past, number, w.arguments.entries, w.arguments.used)

    def attend(source: Value, attention: Any = layer.self_attention) -> None:
        rounded = w.quantize(source, attention.projection)
        w.gemm("store", attention.projection, rounded, w.pointers.projected, (0, inner))
        w.gemm_to_cache(attention.projection, rounded, newest, (inner, inner + entry))
        if isinstance(attention, QueryKeyNormAttention):
            w.norm_heads(attention.query_norm, w.pointers.projected, inner, w.heads.number)
            w.norm_heads(attention.key_norm, newest, entry, w.heads.shared)
        w.rotate(rotation_kind, w.pointers.projected, inner, w.heads.number)
        w.rotate(rotation_kind, newest, entry, w.heads.shared)
        w.attend(attention_kind, inner, (past, entry), lists)
        w.attention_output(attention.output)

    w.sublayer(layer.self_attention_residual, attend)


def _feed_forward(w: ModelEmitter, layer: nn.Module) -> None:
    """Emit the feed-forward network of one layer with its residual connection."""
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    w.sublayer(layer.feed_forward_residual, lambda source: w.feed_forward(layer.feed_forward, source))


def _norm(w: ModelEmitter, norm: nn.Module) -> None:
    """Emit the final norm after a stack of layers, if the stack has one, in place."""
    if not isinstance(norm, nn.Identity):
        w.norm(norm, w.pointers.x, w.pointers.x)


def _own_sequence(w: ModelEmitter) -> tuple[Value, Value, Value]:
    """Return the argument `lists` of `ModelEmitter.attend` for rows that attend to their own source or prompt.

    The three IR values are a pointer to each row's first token, a pointer to each row's number of tokens, and an unused
    0.
    """
    return w.pointers.firsts, w.pointers.counts, w.k.int64(0)


def _cache_entry(w: ModelEmitter, cache: Value, layer: int, entries: Value, number: Value | int = 0) -> Value:
    """Return a pointer to the keys and values of token `number` in one layer of a cache (layers, tokens, elements).

    `entries` is the cache's number of tokens per layer.
    """
    k = w.k
    return k.element_pointer(cache, k.mul(k.add(k.mul(entries, layer), number), 2 * w.heads.keys), w.cache_type)


# --- compiled models ---


_TYPES = {torch.float16: F16, torch.float32: F32}
_COMPONENTS = {
    "positions": "sinusoidal learned rotary rotary-interleaved relative none",
    "position_bias": "relative",
    "attention_window": "none past",
    "token_types": "none",
    "norm": "layer rms",
    "norm_order": "pre post",
    "activation": "relu gelu gelu-tanh silu swiglu geglu geglu-tanh reglu",
    "attention": "query-key-norm",
    "attention_score": "scaled dot",
    "attention_kind": "soft",
    "attention_scale": "default other",
    "key_value_heads": "equal shared",
    "value_width": "equal",
}


def _table(what: str, classes: str, linear: str, projection: str, **changed: str) -> SupportTable:
    """Return the `SupportTable` of the components with which a decoder or an encoder can be compiled.

    The table has the given classes and linear layers, and the entries of `_COMPONENTS`, some of which `changed`
    replaces.
    """
    components = _COMPONENTS | changed
    return table(what, class_=classes, linear_layers=linear, output_projection=projection, **components)


COMPILED = _table(
    "the compiled decoder", "PrepackedTransformer PrepackedDecoder", "CompiledLinear", "CompiledVocabulary"
)
"""The `SupportTable` of components and options that a model with prepacked weights may have for a `CompiledModel`."""
COMPILABLE = _table("the compiled decoder", "Transformer Decoder", "Linear", "Linear")
"""The `SupportTable` of components and options that a model may have so that its inference copy can be compiled.

An inference copy has prepacked weights, and a `CompiledModel` computes it.
"""
_ENCODER = {"token_types": "none some", "embedding_projection": "some"}
ENCODED = _table("the compiled encoder", "PrepackedEncoder", "CompiledLinear", "Linear", **_ENCODER)
"""The `SupportTable` of what an encoder with prepacked weights may have for a `CompiledModel`."""
ENCODABLE = _table("the compiled encoder", "Encoder", "Linear", "Linear", **_ENCODER)
"""The `SupportTable` of components and options that an encoder may have so that its inference copy can be compiled."""


def why_not_compilable(model: nn.Module) -> str | None:
    """Return a clause that says why a model cannot be compiled for decoding; None if it can.

    The model's weights need not be prepacked yet.
    """
    if (reason := refusal(ENCODABLE if isinstance(model, Encoder) else COMPILABLE, model)) is not None:
        return reason
    return _why_not_sizes(model.config)  # type: ignore[arg-type]


def _why_not_sizes(config: ModelConfig) -> str | None:
    """Return a clause that says why kernels do not support a model's sizes; None if they do.

    Each size must be a multiple of a block size. The clause names the first size that is not, or says that there are no
    kernels for this processor.
    """
    tile = find_integer_tile()
    if tile is None:
        return "there are no kernels for this processor"
    heads = HeadShape.of(config)
    lanes = tile.lanes * (2 if config.positions.startswith("rotary") else 1)
    sizes = {
        "`model.d_model`": (config.d_model, tile.columns),
        "`model.embedding_size`": (config.embedding_width, tile.columns),
        "`model.d_ff`": (config.d_ff, tile.columns),
        "the width of all query heads": (heads.queries, tile.columns),
        "the width of all key and value heads": (2 * heads.keys, tile.columns),
        "the width of a head": (config.key_width, lanes),
    }
    wrong = ((name, size, factor) for name, (size, factor) in sizes.items() if size % factor)
    return next((f"{name}, {size}, is no multiple of {factor}" for name, size, factor in wrong), None)


def output_projection_of(model: PrepackedModel) -> CompiledVocabulary:
    """Return a model's output projection with prepacked weights, which computes logits outside of compiled steps."""
    assert isinstance(model.prepacked_output, CompiledVocabulary)
    return model.prepacked_output


class CompiledModel:
    """The compiled kernels of one model for decoding on a CPU.

    `read` encodes the source or the prompt, and `step` runs a decoding step.
    """

    step: CompiledKernel
    """The `CompiledKernel` of a decoding step; encoder-only models have no such attribute."""
    step_multiplications: int
    """The number of multiplications of `step` for each row (hypothesis), without those of attention.

    The number of threads depends on it.
    """

    def __init__(self, model: AnyPrepacked) -> None:
        """Emit and compile a model's kernels `read` (encodes the input) and `step` (a decoding step)."""
        config = model.config
        tile = require_integer_tile() if isinstance(model, PrepackedEncoder) else output_projection_of(model).tile
        self.heads = HeadShape.of(config)
        self.d_model, self.d_ff, self.is_gated = config.d_model, config.d_ff, config.activation in GATES
        self.widest = max(config.d_model, config.embedding_width)
        """The greater of the widths of layers and embeddings."""
        cached = (part for part in model.modules() if isinstance(part, PrepackedSelfAttention))
        self.cache_dtype = next((attention.cache_dtype for attention in cached), torch.float32)
        """The dtype of the cached keys and values, float32 or float16; encoder-only models cache none."""
        self.read_positions, self.step_positions = _position_tables(model)
        emitters = _emitters(model)
        weights, multiplications = Weights(self.widest), dict[str, int]()

        def emit(k: KernelBuilder) -> None:
            nonlocal weights
            weights = Weights(self.widest)
            emit_refinement(k, tile.vectors)
            emit_embedding(k, is_ragged=isinstance(model, PrepackedDecoder))
            emit_sequence_embedding(k)
            emit_row_addition(k)
            emit_norms(k)
            emit_scaling(k)
            emit_rotary(k, self.heads, interleaved=config.positions == "rotary-interleaved")
            for name, emit_kernel in emitters.items():
                with kernel(k, name, len(StepArguments._fields)) as (numbers, thread, threads):
                    emitter = ModelEmitter(
                        k, config, StepArguments(*numbers), (thread, threads), weights, _TYPES[self.cache_dtype]
                    )
                    emit_kernel(emitter)
                    multiplications[name] = emitter.multiplications_per_row

        kernels = compile_kernels("model", tile, tuple(emitters), emit)
        self._kept, self._matrices = weights.tensors, weights.matrices
        self.weights = torch.tensor([tensor.data_ptr() for tensor in self._kept])
        self.read: CompiledKernel = kernels["read"]
        """The `CompiledKernel` that runs the encoder, or that processes the prompts of a decoder-only model."""
        self.read_multiplications = multiplications["read"]
        """The number of multiplications of `read` for each row (token), without those of attention.

        The number of threads depends on it.
        """
        if "step" in kernels:
            self.step, self.step_multiplications = kernels["step"], multiplications["step"]

    def check_files(self) -> None:
        """Make kernels read the rows of changed weight matrices from memory instead of from their files.

        A matrix that is mapped from a file and unchanged is still read from the file, row by row.
        """
        for matrix in self._matrices:
            file_rows(matrix)


def _emitters(model: AnyPrepacked) -> dict[str, Callable[[ModelEmitter], None]]:
    """Return a dict from the names of a model's kernels to functions that emit the kernels.

    The kernel `read` encodes the input, and `step` runs a decoding step. An encoder-only model has no `step`.
    """
    if isinstance(model, PrepackedEncoder):
        return {"read": lambda w: emit_encoder_stack(w, model.embedding, model.source_weight, model.layers, model.norm)}
    output = output_projection_of(model)
    if isinstance(model, PrepackedDecoder):
        return {"read": lambda w: emit_prompts(w, model), "step": lambda w: emit_prompt_step(w, model, output)}
    return {"read": lambda w: emit_encoder(w, model), "step": lambda w: emit_decoder_step(w, model, output)}


def _position_tables(model: AnyPrepacked) -> tuple[GrowingTables, GrowingTables]:
    """Return a pair of position encoding tables: those of the kernel `read` and those of `step`.

    If the model has one stack of layers, the pair has the same object twice.
    """
    config = model.config
    if isinstance(model, PrepackedDecoder | PrepackedEncoder):
        tables = GrowingTables(model.embedding, model.positions, config)
        return tables, tables
    encoder = GrowingTables(model.source_embedding, model.encoder_positions, config)
    return encoder, GrowingTables(model.target_embedding, model.decoder_positions, config)


_COMPILED_MODELS: WeakKeyDictionary[nn.Module, tuple[Graph, CompiledModel]] = WeakKeyDictionary()


def find_compiled_model(model: AnyPrepacked, *, is_private: bool = False) -> CompiledModel | str:
    """Return a model's compiled kernels, or a clause that says why the model cannot be compiled now.

    The kernels are compiled on first use, and again if the model's components have changed.

    Args:
        model: a model with prepacked weights.
        is_private: True if no other code can change the model, so that it is inspected only once.
    """
    known = _COMPILED_MODELS.get(model)
    if known is not None:
        known[1].check_files()
        if is_private:
            return known[1]
    described = description_of(model)
    reason = described.refusal(ENCODED if isinstance(model, PrepackedEncoder) else COMPILED)
    if reason is None:
        reason = "the model is in training mode" if described.is_training else _why_not_sizes(model.config)
    if reason is not None:
        return reason
    if known is None or known[0] is not described.graph:
        known = _COMPILED_MODELS[model] = described.graph, CompiledModel(model)
    return known[1]
