"""Writes what a model's programs call: its products, norms and attention, with the places of their numbers.

Legend: N rows, D model width, H heads, G heads of keys and values, K width of a head, F inner width of the feed-forward
network, S source pieces of all sentences together.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transduce.kernels.cpu.decode_rows import HeadShape, emit_activation, emit_attention
from transduce.kernels.cpu.gemm.decode import NativeLinear, NativeVocabulary, emit_gemm, emit_quantization
from transduce.kernels.cpu.jit.ir_builder import F16, I8, I32, I64, KernelBuilder, Value
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import GATES, FeedForward, GatedFeedForward
from transduce.model.layers import Residual

ROWS_AT_ONCE = 128  # in the feed-forward network, so that its inner layer stays in the processor's cache


class StepArguments(NamedTuple):
    """The numbers that both programs are given: addresses, where nothing else is said."""

    rows: Any
    """How many: N."""
    weights: Any
    """The addresses of the model's weights: `ModelPrograms.weights`."""
    x: Any
    """Room for (N, D): what becomes of the pieces ends up here."""
    normed: Any
    """Room for (N, D)."""
    rounded: Any
    """Room for N × D or N × H × K words, whichever is more, and for `amx.READABLE_EXTRA_ROWS` more rows."""
    scales: Any
    """Room for N."""
    projected: Any
    """Room for queries (N, H × K); in the encoder for keys and values too, (N, H × K + 2 × G × K)."""
    heads: Any
    """Room for (N, H × K)."""
    inner: Any
    """Room for (128, F), or with a gate for (128, 3 × F)."""
    rounded_inner: Any
    """Room for 128 × F words, and for `amx.READABLE_EXTRA_ROWS` more rows."""
    scores: Any
    """Room for `room` numbers for each thread."""
    room: Any
    """A number: how many positions any row attends to, and a few more."""
    firsts: Any
    """The row's first source piece, int64 (N,), or its prompt's."""
    counts: Any
    """How many source pieces it attends to, int64 (N,). Without a source: how many of its own."""
    memory: Any
    """Keys and values of the source, (layers, S, 2 × G × K)."""
    sources: Any
    """A number: S."""
    past: Any
    """Keys and values of the pieces so far, (layers, entries, 2 × G × K)."""
    entries: Any
    """A number: for how many entries there is room."""
    turns: Any
    """The angles that queries and keys are turned by at each position, (positions, K)."""
    relative_bias: Any
    """What is added to scores at distance 0, of (H, distances)."""
    relative_bias_stride: Any
    """A number: from one head's to the next one's."""
    added: Any
    """What is added to embeddings at each position, (positions, D)."""
    ids: Any
    """The pieces that are read, or the newest ones, int64 (N,)."""
    used: Any
    """A number: entries in use; the step's own follow. From here on the step's alone."""
    lists: Any
    """Each row's entries, its own last, int32 (N, at least `length`)."""
    list_stride: Any
    """A number: from one row's list to the next."""
    length: Any
    """A number: entries of each list."""
    logits: Any
    """Room for (N, V), V in whole blocks."""


class Weights:
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


class ModelWriter:
    """Writes the calls of a program."""

    def __init__(
        self,
        k: KernelBuilder,
        config: ModelConfig,
        numbers: StepArguments,
        share: tuple[Value, Value],
        weights: Weights,
        kept: Any,
    ) -> None:
        self.k = k
        self.config = config
        self.heads = HeadShape.of(config)
        self.numbers = numbers
        self.share = share
        self.weights = weights
        self.kept = kept
        """The type of the keys and values that steps attend to."""
        self.row_work = 0
        """Products of two numbers that a row takes, but those of attention."""

    @cached_property
    def places(self) -> StepArguments:
        """The addresses as places."""
        return StepArguments(*(self.k.pointer(number) for number in self.numbers))

    def weight(self, tensor: Tensor, first_byte: int = 0) -> Value:
        """The place of a weight, or of what begins so many bytes behind."""
        k = self.k
        address = k.load(k.element_pointer(self.places.weights, self.weights.number_of(tensor), I64), I64)
        return k.element_pointer(k.pointer(address), first_byte, I8)

    def embed(self, embedding: Embedding, weight: Tensor, *, is_ragged: bool = False) -> None:
        """The newest pieces; their entries become the last of the lists. Ragged rows have positions of their own."""
        k, numbers, places = self.k, self.numbers, self.places
        added, lists = places.added, places.lists
        if not is_ragged:
            added, lists = (
                k.element_pointer(added, k.mul(self.position, self.config.d_model)),
                k.element_pointer(lists, self.position, I32),
            )
        k.call(
            "embed",
            places.ids,
            numbers.rows,
            k.int64(self.config.d_model),
            self.weight(weight),
            k.float32(embedding.scale),
            added,
            places.x,
            lists,
            numbers.list_stride,
            numbers.used,
            places.counts,
            *self.share,
        )
        self._norm_embedded(embedding)

    def embed_runs(self, embedding: Embedding, weight: Tensor) -> None:
        """All pieces that are read, in runs."""
        k, places = self.k, self.places
        sizes = self.numbers.rows, k.int64(self.config.d_model)
        table = self.weight(weight), k.float32(embedding.scale), places.added
        k.call("embed_run", places.ids, *sizes, *table, places.x, places.firsts, *self.share)
        self._norm_embedded(embedding)

    def _norm_embedded(self, embedding: Embedding) -> None:
        """As soon as all threads have embedded theirs."""
        self.k.barrier(self.share[1])
        if embedding.norm is not None:
            self.norm(embedding.norm, self.places.x, self.places.x)

    @property
    def position(self) -> Value:
        """The step's."""
        return self.k.add(self.numbers.length, -1)

    def norm(self, norm: nn.Module, x: Value, out: Value) -> None:
        """LayerNorm or RMSNorm of all rows."""
        k = self.k
        if isinstance(norm, nn.LayerNorm):
            name, epsilon, bias = "norm_layer", norm.eps, norm.bias
        else:
            assert isinstance(norm, nn.RMSNorm)
            name, epsilon, bias = "norm_rms", norm.eps or torch.finfo(torch.float32).eps, None
        weight_place, bias_place = self.weight(norm.weight), self.weight(self.weights.zeros if bias is None else bias)
        width = k.int64(norm.normalized_shape[0])
        k.call(name, x, self.numbers.rows, width, weight_place, bias_place, k.float32(epsilon), out, *self.share)
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
            emit_quantization(k, linear.tile)
        k.call(name, x, rows, k.int64(linear.width), rounded, self.places.scales, *self.share)
        k.barrier(self.share[1])
        return rounded

    def product(
        self, ending: str, linear: Any, rounded: Value, out: Value, outputs: tuple[int, int] | None = None
    ) -> None:
        """Rounded rows times a matrix, or times the rows of it from one to another."""
        rows = (rounded, self.places.scales, self.numbers.rows, self.k.int64(linear.width))
        self._product(ending, linear, rows, out, outputs)

    def keep(self, linear: Any, rounded: Value, out: Value, outputs: tuple[int, int] | None = None) -> None:
        """Likewise, of keys and values that steps attend to."""
        self.product("half" if self.kept == F16 else "store", linear, rounded, out, outputs)

    def _product(
        self,
        ending: str,
        linear: Any,
        rows: tuple[Value, ...],
        out: Value,
        outputs: tuple[int, int] | None = None,
    ) -> None:
        k, (first, last) = self.k, outputs or (0, linear.padded_outputs)
        self.row_work += (last - first) * linear.width
        name = f"product_{linear.tile.kind}_{ending}"
        if not k.has(name):
            emit_gemm(k, linear.tile, (ending,))
        weights = self.weight(linear.weights, first * linear.width * linear.tile.weight_bytes)
        vectors = (
            self.weight(vector, first * 4) for vector in (linear.initial_sums, linear.weight_scales, linear.bias)
        )
        k.call(name, *rows, weights, *vectors, k.int64(last - first), out, *self.share)
        k.barrier(self.share[1])

    def turn(self, kind: str, x: Value, stride: int, heads: int) -> None:
        """Heads of rows by their positions, where the model does: in a run, all at the step's, or each at its own."""
        k, places = self.k, self.places
        if not self.config.positions.startswith("rotary"):
            return
        table = (
            k.element_pointer(places.turns, k.mul(self.position, self.heads.width)) if kind == "all" else places.turns
        )
        sizes = (self.numbers.rows, k.int64(stride), k.int64(heads))
        k.call(f"turn_{kind}", x, *sizes, table, places.counts if kind == "each" else places.firsts, *self.share)
        k.barrier(self.share[1])

    def attend(
        self,
        kind: str,
        query_stride: int,
        keys: tuple[Value, int],
        lists: tuple[Value, Value, Value],
        *,
        to_memory: bool = False,
        element: Any = None,
    ) -> None:
        """Of `projected` to keys, and values behind them, which have this stride, and this type or the kept one."""
        k, places = self.k, self.places
        place, stride = keys
        is_biased, element = self.config.positions == "relative" and not to_memory, element or self.kept
        k.call(
            emit_attention(k, self.heads, kind, is_biased=is_biased, element=element),
            places.projected,
            k.int64(query_stride),
            place,
            k.element_pointer(place, self.heads.keys, element),
            k.int64(stride),
            *lists,
            places.relative_bias,
            self.numbers.relative_bias_stride,
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

    def feed_forward(self, network: FeedForward | GatedFeedForward, source: Value) -> None:
        """The activation of x W1 + b1, times W2, plus b2, added to x, some rows at a time."""
        k, places, inner, outer = self.k, self.places, network.inner, network.outer
        assert isinstance(inner, NativeLinear)
        assert isinstance(outer, NativeLinear)
        width, inner_width = k.int64(inner.width), k.int64(outer.width)
        with k.loop(0, self.numbers.rows, ROWS_AT_ONCE) as first:
            left = k.build.sub(self.numbers.rows, first)
            count = k.minimum(left, k.int64(ROWS_AT_ONCE))
            some, there = (k.element_pointer(place, k.mul(first, width)) for place in (source, places.x))
            rows = (self._round(inner, some, count, places.rounded), places.scales, count, width)
            hidden = self._activate(inner, rows, k.mul(count, inner_width), inner_width)
            rounded = self._round(outer, hidden, count, places.rounded_inner)
            rows = (rounded, places.scales, count, inner_width)
            self._product("add", outer, rows, there)

    def _activate(self, inner: NativeLinear, rows: tuple[Value, ...], size: Value, inner_width: Value) -> Value:
        """The inner layer; where it is."""
        k, activation, place = self.k, self.config.activation, self.places.inner
        if activation == "relu":
            self._product("relu", inner, rows, place)
            return place
        self._product("store", inner, rows, place)
        hidden = k.element_pointer(place, k.mul(size, 2)) if activation in GATES else place
        k.call(emit_activation(k, activation), place, rows[2], inner_width, hidden, *self.share)
        k.barrier(self.share[1])
        return hidden

    def finish(self) -> None:
        """What the last layer is multiplied by."""
        k = self.k
        if self.config.output_scale != 1.0:
            sizes = (self.numbers.rows, k.int64(self.config.d_model))
            k.call("scale", self.places.x, *sizes, k.float32(self.config.output_scale), *self.share)
            k.barrier(self.share[1])

    def project(self, output: NativeVocabulary) -> None:
        """Of x to logits."""
        k, places = self.k, self.places
        self.finish()
        self.product("store", output, self.round(places.x, output), places.logits)
        if not output.recomputes_likeliest:
            return
        weights = (self.weight(output.exact_weight), self.weight(output.bias))
        sizes = (self.numbers.rows, k.int64(output.width))
        k.call("refine", places.x, *sizes, *weights, places.logits, k.int64(output.padded_outputs), *self.share)
        k.barrier(self.share[1])

    def self_attention_output(self, output: Any) -> None:
        """The heads, joined and projected, added to x."""
        self.product("add", output, self.round(self.places.heads, output), self.places.x)
