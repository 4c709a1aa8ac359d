"""Emit the encoder of a compiled model: its layers over whole texts without padding, a chunk of texts at a time.

A chunk's intermediate results and a layer's weights then stay in the processor's cache.

Legend: N rows (tokens of all texts), D model width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce.kernels.cpu.decoding.writer import ModelEmitter
from transduce.kernels.cpu.gemm.decode import NativeLinear
from transduce.kernels.cpu.jit.ir_builder import I64, POINTER, KernelBuilder, Value
from transduce.model.embedding import Embedding
from transduce.model.layers import EncoderLayer, each_layer

CHUNK_ROWS = 256
"""The maximum number of rows of a chunk, unless a single text has more."""


class Chunk(NamedTuple):
    """Consecutive texts that are computed together."""

    first_row: int
    """The index of the first row (token) among those of all texts."""
    rows: int
    """The number of rows (tokens)."""
    first_text: int
    """The index of the first text."""
    texts: int
    """The number of texts."""


class TextLayout(NamedTuple):
    """Tables that describe to the encoder's kernel where texts and chunks of texts begin and end."""

    firsts: Tensor
    """The index of the first token of each row's text, counted from the start of the chunk, int64, one for each row."""
    starts: Tensor
    """The index of the first token of each text, counted from the start of its chunk, int64, one for each text."""
    lengths: Tensor
    """The number of tokens of each text, int64."""
    chunks: Tensor
    """The fields of each `Chunk`, int64 (chunks, 4)."""
    chunk_rows: int
    """The rows of the largest chunk."""

    @staticmethod
    def of(counts: Sequence[int]) -> "TextLayout":
        """Return the tables of texts with these numbers of tokens, each at least 1."""
        chunks = _chunks_of(counts)
        lengths = torch.tensor(counts)
        chunk_starts = torch.tensor([chunk.first_row for chunk in chunks for _ in range(chunk.texts)])
        starts = lengths.cumsum(0) - lengths - chunk_starts
        most = max(chunk.rows for chunk in chunks)
        return TextLayout(starts.repeat_interleave(lengths), starts, lengths, torch.tensor(chunks), most)

    def addresses(self) -> dict[str, int]:
        """Return the tables as arguments of `writer.StepArguments`, valid while the tables live."""
        return {
            "firsts": self.firsts.data_ptr(),
            "starts": self.starts.data_ptr(),
            "lengths": self.lengths.data_ptr(),
            "texts": len(self.lengths),
            "chunks": self.chunks.data_ptr(),
            "num_chunks": len(self.chunks),
        }


def _chunks_of(counts: Sequence[int]) -> list[Chunk]:
    """Divide texts with these numbers of tokens into chunks of consecutive texts with at most `CHUNK_ROWS` tokens."""
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
    """Emit a loop over the chunks; yields an emitter of one chunk, and the index of the chunk's first row."""
    k, size, chunks = w.k, len(Chunk._fields), w.pointers.chunks
    with k.loop(0, w.arguments.num_chunks) as number:
        entry = k.element_pointer(chunks, k.mul(number, size), I64)
        fields = [k.load(k.element_pointer(entry, field, I64), I64) for field in range(size)]
        made = w.part(fields)
        yield made, fields[0]
        w.multiplications_per_row += made.multiplications_per_row


def emit_encoder_stack(
    w: ModelEmitter, embedding: Embedding, weight: Tensor, layers: nn.ModuleList, norm: nn.Module
) -> None:
    """Emit an encoder: embeddings, layers and the final norm, if there is one, of all chunks of texts."""
    with each_chunk(w) as (of_chunk, _):
        of_chunk.embed_runs(embedding, weight)
    for layer in each_layer(layers, w.config.num_encoder_layers):
        with each_chunk(w) as (of_chunk, _):
            _emit_layer(of_chunk, layer)
    if not isinstance(norm, nn.Identity):
        with each_chunk(w) as (of_chunk, _):
            of_chunk.norm(norm, of_chunk.pointers.x, of_chunk.pointers.x)


def _emit_layer(w: ModelEmitter, layer: nn.Module) -> None:
    """Emit an encoder layer for the rows of the emitter `w`, such as those of a chunk."""
    assert isinstance(layer, EncoderLayer)
    projection, output = layer.self_attention.projection, layer.self_attention.output
    assert isinstance(projection, NativeLinear)
    assert isinstance(output, NativeLinear)

    def attend(source: Value) -> None:
        heads = w.heads
        w.gemm("store", projection, w.quantize(source, projection), w.pointers.projected)
        w.rotate("run", w.pointers.projected, heads.queries + 2 * heads.keys, heads.number + heads.shared)
        w.attend_texts()
        w.self_attention_output(output)

    w.sublayer(layer.self_attention_residual, attend)
    w.sublayer(layer.feed_forward_residual, lambda source: w.feed_forward(layer.feed_forward, source))


def emit_row_addition(k: KernelBuilder) -> None:
    """Emit `add_rows(x, N, D, table, numbers, thread, threads)`: add the table's row `numbers[n]` to row n of x."""
    with k.function("add_rows", POINTER, I64, I64, POINTER, POINTER, I64, I64) as (x, rows, width, *more):
        table, numbers, *share = more
        first, last = k.thread_range(rows, *share)
        with k.loop(first, last) as row:
            number = k.load(k.element_pointer(numbers, row, I64), I64)
            source = k.element_pointer(table, k.mul(number, width))
            target = k.element_pointer(x, k.mul(row, width))
            with k.loop(0, width, k.lanes) as column:
                value = k.build.fadd(k.load_floats(target, column), k.load_floats(source, column))
                k.store(value, k.element_pointer(target, column))
