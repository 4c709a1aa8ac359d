"""Emit the calls of a compiled model: GEMMs, norms and attention, with the addresses of their arguments.

Legend: N rows, D model width, H heads, G key/value heads, K width of a head, F inner width of the feed-forward
network, S source tokens of all sentences, V vocabulary size.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from transduce.kernels.cpu.decode_rows import HeadShape, emit_activation, emit_attention, emit_head_norm
from transduce.kernels.cpu.gemm.decode import CompiledLinear, CompiledVocabulary, emit_gemm, emit_quantization
from transduce.kernels.cpu.jit.ir_builder import F16, I8, I32, I64, KernelBuilder, Value
from transduce.kernels.cpu.jit.memory import file_rows
from transduce.kernels.cpu.sequence_attention import SequenceArguments, emit_sequence_attention
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import GATES, FeedForward, GatedFeedForward
from transduce.model.layers import Residual

FEED_FORWARD_ROWS = 128  # in the feed-forward network, so that its inner layer stays in the processor's cache


class StepArguments(NamedTuple):
    """Arguments of a compiled model's kernels `read` (reads the input) and `step` (decoding): mostly addresses."""

    rows: Any
    """The number N of rows: hypotheses in a step, tokens in `read`."""
    weights: Any
    """Address of `CompiledModel.weights`, an array with the addresses of the model's weights."""
    x: Any
    """Address of the residual stream (N, D), which holds the last layer's output in the end."""
    normed: Any
    """Address of scratch space for the outputs of norms, float32 (N, D)."""
    quantized: Any
    """Address of scratch space for quantized rows, 16-bit words: max(N × D, N × H × K), and some rows more.

    Kernels may read `amx.READABLE_EXTRA_ROWS` rows after the last one.
    """
    scales: Any
    """Address of scratch space for the scales of quantized rows, float32 (N,)."""
    projected: Any
    """Address of scratch space for each row's projected queries; when texts are encoded, also keys and values."""
    heads: Any
    """Address of scratch space for the attention heads' outputs, float32 (N, H × K)."""
    inner: Any
    """Address of scratch space for the inner layer of feed-forward networks, of 128 rows at a time.

    The space is (128, F), or (128, 3 × F) with a gated activation.
    """
    quantized_inner: Any
    """Address of scratch space for the quantized inner layer, 16-bit words: 128 × F, and some rows more.

    Kernels may read `amx.READABLE_EXTRA_ROWS` rows after the last one.
    """
    scores: Any
    """Address of scratch space for attention scores: `score_capacity` float32 numbers for each thread."""
    score_capacity: Any
    """The number of float32 scores per thread: the most positions to which a row attends, and one vector more."""
    firsts: Any
    """Address of the index of the first token of each row's source, or of its prompt, int64 (N,)."""
    counts: Any
    """Address of the number of source tokens of each row, int64 (N,).

    In decoder-only models, the number is that of the tokens of the row's own sequence.
    """
    memory: Any
    """Address of keys and values of the encoder output, (layers, source tokens, keys and values of all heads)."""
    sources: Any
    """The number of source tokens S of all sentences."""
    past: Any
    """Address of the key/value cache of the tokens so far, (layers, entries, keys and values of all heads)."""
    entries: Any
    """The capacity of the key/value cache in entries (tokens)."""
    rotary_angles: Any
    """Address of a table with the rotary embedding's cosines and sines of each position, float32 (positions, K)."""
    relative_bias: Any
    """Address of the relative position bias at distance 0, in a table (H, distances)."""
    relative_bias_stride: Any
    """The number of elements between two heads' rows in the table of relative position biases."""
    position_encodings: Any
    """Address of encodings that are added to embeddings, by position, (positions, D)."""
    ids: Any
    """Address of the tokens to read, or each row's newest token, int64 (N,)."""
    used: Any
    """The number of used entries of the key/value cache, to which a step appends.

    Only steps have this field and those that follow, up to `logits`.
    """
    lists: Any
    """Address of the cache entries of each row's tokens, the newest last, int32 (N, at least `length`)."""
    list_stride: Any
    """The number of elements from one row's list of cache entries to the next row's list."""
    length: Any
    """The number of entries in each list of cache entries, the newest token's included."""
    logits: Any
    """Address of the output: the logits, float32 (N, V), V padded to whole blocks."""
    token_types: Any
    """Address of the token type (segment) of each token, int64 (N,); 0: none.

    Only encoders have this field and those that follow.
    """
    starts: Any
    """Address of the index of the first token of each text within its chunk, int64, one for each text."""
    lengths: Any
    """Address of the number of tokens of each text, int64, one for each text."""
    texts: Any
    """The number of texts that an encoder reads."""
    chunks: Any
    """Address of the chunks of texts that are computed together, int64 (chunks, 4): the fields of `Chunk`."""
    num_chunks: Any
    """The number of chunks of texts, which are computed one after another."""
    attention: Any
    """Address of scratch space for attention of whole texts: `attention_each` float32 numbers for each thread."""
    attention_each: Any
    """The number of float32 numbers of each thread's scratch space for attention of whole texts."""


class Weights:
    """A list of the weights of a model, from which kernels load addresses by index.

    The weights are in the order of their first use.
    """

    def __init__(self, d_model: int) -> None:
        self.zeros = torch.zeros(d_model)
        self.tensors: list[Tensor] = []
        self.matrices: list[Tensor] = []
        """A list of the matrices of which kernels read single rows, perhaps from the file of a mapped matrix."""
        self._numbers: dict[int, int] = {}

    def index_of(self, tensor: Tensor) -> int:
        """Return the index of a weight in the list whose addresses kernels read; append the weight if it is new."""
        number = self._numbers.setdefault(tensor.data_ptr(), len(self.tensors))
        if number == len(self.tensors):
            self.tensors.append(tensor)
        return number


class ModelEmitter:
    """An emitter of kernel calls that compute the components of a model, such as norms and attention.

    The calls compute the rows (tokens or hypotheses) that `StepArguments` describes.
    """

    def __init__(
        self,
        k: KernelBuilder,
        config: ModelConfig,
        numbers: StepArguments,
        share: tuple[Value, Value],
        weights: Weights,
        cache_type: Any,
    ) -> None:
        self.k = k
        self.config = config
        self.heads = HeadShape.of(config)
        self.arguments = numbers
        self.share = share
        self.weights = weights
        self.cache_type = cache_type
        """The LLVM type of the cached keys and values."""
        self.multiplications_per_row = 0
        """The number of multiplications per row in the GEMMs emitted so far; the number of threads depends on it."""

    @cached_property
    def pointers(self) -> StepArguments:
        """A copy of the kernel's `StepArguments`, with each 64-bit integer converted to a pointer (an IR value)."""
        return StepArguments(*(self.k.pointer(number) for number in self.arguments))

    def for_chunk(self, chunk: Sequence[Value]) -> "ModelEmitter":
        """Return an emitter that computes only one chunk of texts; `chunk` has the fields of a `Chunk` (IR values)."""
        k, arguments, (first_row, rows, first_text, texts) = self.k, self.arguments, chunk
        row_bytes = {"x": 4 * self.config.d_model, "ids": 8, "firsts": 8, "token_types": 8}
        moved = {name: k.add(getattr(arguments, name), k.mul(first_row, size)) for name, size in row_bytes.items()}
        moved |= {name: k.add(getattr(arguments, name), k.mul(first_text, 8)) for name in ("starts", "lengths")}
        of_chunk = arguments._replace(rows=rows, texts=texts, **moved)
        made = ModelEmitter(k, self.config, of_chunk, self.share, self.weights, self.cache_type)
        _ = made.pointers  # emitted here, so that all later code may use them
        return made

    def weight(self, tensor: Tensor, first_byte: int = 0) -> Value:
        """Return a pointer to byte `first_byte` of a weight.

        The emitted code loads the weight's address from the list `StepArguments.weights`.
        """
        k = self.k
        address = k.load(k.element_pointer(self.pointers.weights, self.weights.index_of(tensor), I64), I64)
        return k.element_pointer(k.pointer(address), first_byte, I8)

    def matrix(self, tensor: Tensor) -> tuple[Value, Value]:
        """Return a pointer to a matrix, and a pointer to the matrix's tensor from `memory.file_rows`.

        Kernels need both pointers to read single rows of the matrix.
        """
        self.weights.matrices.append(tensor)
        return self.weight(tensor), self.weight(file_rows(tensor))

    def embed(self, embedding: Embedding, weight: Tensor, *, is_ragged: bool = False) -> None:
        """Emit the embedding of each row's newest token, and append its cache entry to the row's list of entries.

        If `is_ragged`, each row is at its own position; otherwise all rows are at the step's position.
        """
        k, arguments, pointers = self.k, self.arguments, self.pointers
        added, lists = pointers.position_encodings, pointers.lists
        if not is_ragged:
            added = k.element_pointer(added, k.mul(self.position, self.config.d_model))
            lists = k.element_pointer(lists, self.position, I32)
        table = *self.matrix(weight), k.float32(embedding.scale), added
        more = pointers.x, lists, arguments.list_stride, arguments.used, pointers.counts
        self._call("embed", pointers.ids, arguments.rows, k.int64(self.config.d_model), *table, *more)
        self._norm_embedded(embedding, pointers.x)

    def embed_runs(self, embedding: Embedding, weight: Tensor) -> None:
        """Emit the embedding of every token of whole sequences, with position and token type.

        The code is for the kernel `read`. If the embedding has a projection, the embeddings are written to
        `StepArguments.normed`, and then projected to the model width.
        """
        k, pointers, projection = self.k, self.pointers, embedding.projection
        x = pointers.x if projection is None else pointers.normed
        sizes = self.arguments.rows, k.int64(self.config.embedding_width)
        table = *self.matrix(weight), k.float32(embedding.scale), pointers.position_encodings
        k.call("embed_run", pointers.ids, *sizes, *table, x, pointers.firsts, *self.share)
        if embedding.token_types is not None:
            types = self.weight(embedding.token_types), pointers.token_types
            k.call("add_rows", x, *sizes, *types, *self.share)
        k.barrier(self.share[1])
        self._norm_embedded(embedding, x)
        if projection is not None:
            linear = cast(CompiledLinear, projection)
            self.gemm("store", linear, self.quantize(x, linear), pointers.x)

    def _call(self, name: str, *values: Value) -> None:
        """Emit a call of the function `name`, and a barrier; the thread's index and the number of threads come last."""
        self.k.call(name, *values, *self.share)
        self.k.barrier(self.share[1])

    def _norm_embedded(self, embedding: Embedding, x: Value) -> None:
        """Emit the norm of the embeddings at the pointer x, in place, if the model has one."""
        if embedding.norm is not None:
            self.norm(embedding.norm, x, x)

    @property
    def position(self) -> Value:
        """The position (an IR value) of all tokens that a step of an encoder-decoder model reads."""
        return self.k.add(self.arguments.length, -1)

    def norm(self, norm: nn.Module, x: Value, out: Value) -> None:
        """Emit LayerNorm or RMSNorm of all rows x, (N, D), written to `out`, and a barrier; `out` may be x."""
        k = self.k
        if isinstance(norm, nn.LayerNorm):
            name, epsilon, bias = "norm_layer", norm.eps, norm.bias
        else:
            assert isinstance(norm, nn.RMSNorm)
            name, epsilon, bias = "norm_rms", norm.eps or torch.finfo(torch.float32).eps, None
        weights = self.weight(norm.weight), self.weight(self.weights.zeros if bias is None else bias)
        width = k.int64(norm.normalized_shape[0])
        self._call(name, x, self.arguments.rows, width, *weights, k.float32(epsilon), out)

    def norm_heads(self, norm: nn.Module, x: Value, stride: int, heads: int) -> None:
        """Emit the norm of some heads of all rows, in place, and a barrier.

        Args:
            norm: the RMSNorm of all queries or keys of an attention module, over the head width.
            x: a pointer to the first head of row 0.
            stride: the number of elements from one row to the next.
            heads: the number of heads.
        """
        k = self.k
        assert isinstance(norm, nn.RMSNorm)
        assert norm.eps is not None
        if not k.has("norm_heads"):
            emit_head_norm(k, self.heads.width)
        sizes = (self.arguments.rows, k.int64(stride), k.int64(heads))
        self._call("norm_heads", x, *sizes, self.weight(norm.weight), k.float32(norm.eps))

    def quantize(
        self, x: Value, linear: CompiledLinear, rows: Value | None = None, quantized: Value | None = None
    ) -> Value:
        """Emit the quantization of rows x to a linear layer's number format; return a pointer to the result.

        The rows' scales are written to `StepArguments.scales`. For layers in float32 the result is `x` itself, and
        nothing is emitted.

        Args:
            x: a pointer to the rows.
            linear: the layer, which has as many inputs as a row has elements.
            rows: the number of rows; None: `StepArguments.rows`.
            quantized: where to write the result; None: `StepArguments.quantized`.
        """
        k, format = self.k, linear.tile.format
        if format == "floats":
            return x
        if not k.has(f"round_{format}"):
            emit_quantization(k, linear.tile)
        result = self.pointers.quantized if quantized is None else quantized
        rows = self.arguments.rows if rows is None else rows
        self._call(f"round_{format}", x, rows, k.int64(linear.width), result, self.pointers.scales)
        return result

    def gemm(
        self,
        epilogue: str,
        linear: CompiledLinear,
        quantized: Value,
        out: Value,
        outputs: tuple[int, int] | None = None,
        *,
        rows: Value | None = None,
    ) -> None:
        """Emit the product of quantized rows and a linear layer's weight, plus bias, written to `out`.

        Args:
            epilogue: says whether results are stored, added, or passed through ReLU; see `emit_gemm`.
            linear: the layer.
            quantized: a pointer to the rows, as `quantize` returns it.
            out: a pointer to the result.
            outputs: the range of outputs to compute; None: all.
            rows: the number of rows; None: `StepArguments.rows`.
        """
        k, (first, last) = self.k, outputs or (0, linear.padded_outputs)
        self.multiplications_per_row += (last - first) * linear.width
        name = f"product_{linear.tile.format}_{epilogue}"
        if not k.has(name):
            emit_gemm(k, linear.tile, epilogue)
        sizes = self.arguments.rows if rows is None else rows, k.int64(linear.width)
        weights = self.weight(linear.weights, first * linear.width * linear.tile.weight_bytes)
        vectors = [self.weight(each, first * 4) for each in (linear.initial_sums, linear.weight_scales, linear.bias)]
        self._call(name, quantized, self.pointers.scales, *sizes, weights, *vectors, k.int64(last - first), out)

    def gemm_to_cache(
        self, linear: CompiledLinear, quantized: Value, out: Value, outputs: tuple[int, int] | None = None
    ) -> None:
        """Emit a GEMM whose results are stored as cached keys and values, in float16 or float32.

        `outputs` is the range of the layer's outputs to compute; None: all.
        """
        self.gemm("half" if self.cache_type == F16 else "store", linear, quantized, out, outputs)

    def rotate(self, kind: str, x: Value, stride: int, heads: int) -> None:
        """Emit the rotary embedding of some heads of all rows, in place, if the model uses it.

        Args:
            kind: `run` for whole sequences, `all` for rows at the step's position, `each` for rows at their own
                positions.
            x: a pointer to the first head of row 0.
            stride: the number of elements from one row to the next.
            heads: the number of heads.
        """
        k, pointers = self.k, self.pointers
        if not self.config.positions.startswith("rotary"):
            return
        table = pointers.rotary_angles
        if kind == "all":
            table = k.element_pointer(table, k.mul(self.position, self.heads.width))
        sizes = (self.arguments.rows, k.int64(stride), k.int64(heads))
        self._call(f"rotate_{kind}", x, *sizes, table, pointers.counts if kind == "each" else pointers.firsts)

    def attend(
        self,
        kind: str,
        query_stride: int,
        keys: tuple[Value, int],
        lists: tuple[Value, Value, Value],
        *,
        to_memory: bool = False,
    ) -> None:
        """Emit attention from the queries in `StepArguments.projected` to cached or projected keys and values.

        The result is written to `StepArguments.heads`.

        Args:
            kind: the kind of attention function that `emit_attention` emits: `run`, `list` or `lists`.
            query_stride: the number of elements from one row of queries to the next.
            keys: a pointer to the first token's keys, and the number of elements from one token's keys to the next.
                Each token's values follow its keys.
            lists: the arguments `firsts`, `counts` and `list stride` of the attention function. They determine to which
                tokens each row attends.
            to_memory: True for cross-attention, which has neither a relative position bias nor a window.
        """
        k, pointers = self.k, self.pointers
        first_key, stride = keys
        is_biased = self.config.has_relative_bias and not to_memory
        window = None if to_memory else self.config.attention_window
        name = emit_attention(k, self.heads, kind, is_biased=is_biased, element=self.cache_type, window=window)
        queries = pointers.projected, k.int64(query_stride)
        cache = first_key, k.element_pointer(first_key, self.heads.keys, self.cache_type), k.int64(stride)
        bias = pointers.relative_bias, self.arguments.relative_bias_stride
        scratch = pointers.scores, self.arguments.score_capacity
        self._call(name, *queries, *cache, *lists, *bias, self.arguments.rows, pointers.heads, *scratch)

    def attend_texts(self) -> None:
        """Emit attention of every token to all tokens of its text, for encoders.

        Queries, keys and values are read from `StepArguments.projected`; the result is written to
        `StepArguments.heads`.
        """
        k, pointers, arguments, heads = self.k, self.pointers, self.arguments, self.heads
        name = emit_sequence_attention(k, heads, is_biased=self.config.has_relative_bias)
        of_texts = SequenceArguments(
            queries=pointers.projected,
            keys=k.element_pointer(pointers.projected, heads.queries),
            values=k.element_pointer(pointers.projected, heads.queries + heads.keys),
            stride=k.int64(heads.queries + 2 * heads.keys),
            starts=pointers.starts,
            counts=pointers.lengths,
            sentences=arguments.texts,
            bias=pointers.relative_bias,
            bias_stride=arguments.relative_bias_stride,
            out=pointers.heads,
            scratch=pointers.attention,
            scratch_each=arguments.attention_each,
            thread=self.share[0],
            threads=self.share[1],
        )
        k.call(name, *of_texts)
        k.barrier(self.share[1])

    def sublayer(self, residual: Residual, emit: Callable[[Value], None]) -> None:
        """Emit a sub-layer with its residual connection and its norm.

        `residual` determines whether the norm is applied to the sub-layer's input (pre-norm) or after the addition
        (post-norm). `emit` is called with a pointer to the sub-layer's input, and emits code that adds the sub-layer's
        output to the residual stream.
        """
        source = self.pointers.x
        if not isinstance(residual.norm_before, nn.Identity):
            source = self.pointers.normed
            self.norm(residual.norm_before, self.pointers.x, source)
        emit(source)
        if not isinstance(residual.norm_after, nn.Identity):
            self.norm(residual.norm_after, self.pointers.x, self.pointers.x)

    def feed_forward(self, network: FeedForward | GatedFeedForward, source: Value) -> None:
        """Emit a feed-forward network of the rows at `source`, 128 rows at a time, so that they stay in the cache.

        The result is added to the residual stream.
        """
        k, pointers, inner, outer = self.k, self.pointers, network.inner, network.outer
        assert isinstance(inner, CompiledLinear)
        assert isinstance(outer, CompiledLinear)
        with k.loop(0, self.arguments.rows, FEED_FORWARD_ROWS) as first:
            remaining = k.build.sub(self.arguments.rows, first)
            count = k.minimum(remaining, k.int64(FEED_FORWARD_ROWS))
            inputs, out = (k.element_pointer(pointer, k.mul(first, inner.width)) for pointer in (source, pointers.x))
            hidden = self._activate(inner, self.quantize(inputs, inner, count), count, outer.width)
            quantized = self.quantize(hidden, outer, count, pointers.quantized_inner)
            self.gemm("add", outer, quantized, out, rows=count)

    def _activate(self, inner: CompiledLinear, quantized: Value, rows: Value, outer_width: int) -> Value:
        """Emit a feed-forward network's inner linear layer and activation; return a pointer to the result.

        `quantized` points to the layer's `rows` input rows, and `outer_width` is the width F of a row of the result.
        """
        k, activation, inner_out = self.k, self.config.activation, self.pointers.inner
        if activation == "relu":
            self.gemm("relu", inner, quantized, inner_out, rows=rows)
            return inner_out
        self.gemm("store", inner, quantized, inner_out, rows=rows)
        hidden = k.element_pointer(inner_out, k.mul(rows, outer_width, 2)) if activation in GATES else inner_out
        self._call(emit_activation(k, activation), inner_out, rows, k.int64(outer_width), hidden)
        return hidden

    def scale_output(self) -> None:
        """Emit the multiplication of the last layer's output by the model's output scale, if it is not 1."""
        k = self.k
        if self.config.output_scale != 1.0:
            sizes = (self.arguments.rows, k.int64(self.config.d_model))
            self._call("scale", self.pointers.x, *sizes, k.float32(self.config.output_scale))

    def project(self, output: CompiledVocabulary) -> None:
        """Emit the vocabulary projection of the last layer's output to `StepArguments.logits`.

        If the projection rounds, the logits of the likeliest tokens are computed again, unrounded.
        """
        k, pointers = self.k, self.pointers
        self.scale_output()
        self.gemm("store", output, self.quantize(pointers.x, output), pointers.logits)
        if not output.recomputes_likeliest:
            return
        weights = (*self.matrix(output.exact_weight), self.weight(output.bias))
        sizes = (self.arguments.rows, k.int64(output.width))
        self._call("refine", pointers.x, *sizes, *weights, pointers.logits, k.int64(output.padded_outputs))

    def attention_output(self, output: CompiledLinear) -> None:
        """Emit the output projection of self- or cross-attention, whose result is added to the residual stream x."""
        self.gemm("add", output, self.quantize(self.pointers.heads, output), self.pointers.x)
