"""Decode on a CPU with compiled steps: a KV cache pool, and the states of encoder-decoder and decoder-only models.

Legend: B sentences, W hypotheses of each, N rows (B × W, or source tokens), S source length, D model width.
"""

from functools import cache
from itertools import accumulate

import torch
from torch import Tensor
from typing_extensions import override

from transduce.kernels.cpu.decode_rows import PositionTables
from transduce.kernels.cpu.decoding.compiled_steps import CompiledModel, TextLayout, output_projection_of
from transduce.kernels.cpu.decoding.writer import FEED_FORWARD_ROWS, StepArguments
from transduce.kernels.cpu.gemm.amx import READABLE_EXTRA_ROWS
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    address_of,
    compile_kernels,
    kernel,
    require_integer_tile,
    run_timed,
)
from transduce.kernels.cpu.jit.ir_builder import I64, KernelBuilder, outlined
from transduce.kernels.cpu.jit.memory import Arena, KernelArguments
from transduce.kernels.cpu.jit.tile import MAX_LANES
from transduce.kernels.cpu.sequence_attention import sequence_scratch_size
from transduce.kernels.prepacked import PrepackedDecoder, PrepackedEncoder, PrepackedTransformer
from transduce.model.attention import AttentionTrace
from transduce.model.transformer import LogitsState

# --- KV cache pool ---
# Beam hypotheses share the entries of the pool, which is compacted when it is full.
# Legend: N hypotheses, t tokens of each, G key/value heads, K width of a head's keys and of its values.


RESERVED_STEPS = 8
"""The number of decoding steps for which a key/value cache has space at first, and again after it is enlarged."""
_MIN_ENTRIES = 256  # minimum number of entries to allocate


class KVCachePool:
    """A key/value cache that hypotheses share; an entry has one token's keys and values in all layers.

    Each hypothesis lists the entries of its tokens, so that reordering hypotheses copies no keys and values.
    """

    def __init__(self, layers: int, rows: int, width: int, dtype: torch.dtype, *, extra_entries: int = 0) -> None:
        """Allocate cache entries for `RESERVED_STEPS` steps of `rows` hypotheses, and `extra_entries` entries besides.

        `width` is the number of elements of an entry in each layer: the keys and values of all heads.
        """
        self.entries = torch.empty(layers, extra_entries + _capacity_for(rows), width, dtype=dtype)
        self.used = 0

    def reserve(self, count: int) -> None:
        """Enlarge the cache, if necessary, so that `count` more entries (tokens) fit.

        The system allocates memory pages only as they are written.
        """
        if not self.has_capacity(count):
            old, (layers, _, width) = self.entries, self.entries.shape
            self.entries = old.new_empty(layers, self.used + count, width)
            self.entries[:, : self.used] = old[:, : self.used]

    def has_capacity(self, count: int) -> bool:
        """Return whether the cache has space for the keys and values of `count` more tokens."""
        return self.used + count <= self.entries.shape[1]

    def compact(self, lists: Tensor, rows: int) -> Tensor:
        """Remove the cache entries that no hypothesis lists; return the lists with the entries' new indices.

        `lists`, (N, t), has the indices of the entries of each hypothesis. The result is int32, (N, t). Afterwards
        there is space for at least `RESERVED_STEPS` / 2 more steps of `rows` hypotheses.
        """
        live, renamed = lists.unique(return_inverse=True)  # ascending
        live, self.used = live.long(), len(live)
        layers, capacity, width = self.entries.shape
        if self.used + rows * RESERVED_STEPS // 2 > capacity:
            # A share of the used entries, so that a pool whose entries all stay is not copied every few steps.
            free = max(_capacity_for(rows), self.used // 2)
            old, self.entries = self.entries, self.entries.new_empty(layers, self.used + free, width)
            for layer, layer_entries in enumerate(old):
                torch.index_select(layer_entries, 0, live, out=self.entries[layer, : self.used])
        else:
            floats = width * self.entries.itemsize // torch.float32.itemsize
            _compaction_kernel().run(self.entries, layers, capacity, floats, live, self.used)
        new_lists: Tensor = renamed.to(torch.int32)
        return new_lists


def _capacity_for(rows: int) -> int:
    """Return the number of entries (tokens of all hypotheses) to reserve in a key/value cache, at least 256.

    Space is reserved for `RESERVED_STEPS` steps of `rows` hypotheses.
    """
    return max(_MIN_ENTRIES, RESERVED_STEPS * rows)


@cache
def _compaction_kernel() -> CompiledKernel:
    """Return the compiled kernel `move(entries, layers, capacity, width, live, count)`, which compacts a cache.

    The kernel copies entry live[n] of each layer to index n. `live` is ascending, so the move works in place; a PyTorch
    operation would copy everything twice. `width` is the size of an entry in a layer, in float32 numbers.
    """
    return compile_kernels("pool", require_integer_tile(), ("move",), _emit_compaction)["move"]


@outlined
def _emit_compaction(k: KernelBuilder) -> None:
    """Emit the kernel `move`, which compacts a cache."""
    with kernel(k, "move", 6) as (numbers, thread, threads):
        entries, layers, capacity, width, live, count = numbers
        with k.thread_loop(layers, (thread, threads)) as layer:
            start = k.element_pointer(k.pointer(entries), k.mul(layer, capacity, width))
            with k.loop(0, count) as index:
                entry = k.load(k.element_pointer(k.pointer(live), index, I64), I64)
                with k.when(k.build.icmp_signed("!=", entry, index)):
                    source, target = (k.element_pointer(start, k.mul(each, width)) for each in (entry, index))
                    k.copy(source, target, width)


# --- base class of the states ---
# Each step of a batch is one kernel call. The keys and values of a token are an entry of a pool, and each hypothesis
# has a list of its tokens' entries. So reordering hypotheses copies only these lists, removing sentences copies
# nothing, and unused entries are dropped when the pool is full.
# Legend: B sentences, W hypotheses of each, N rows (B × W, or tokens that are read), t tokens so far, D model
# width, V vocabulary size.


class DecodingSteps(LogitsState):
    """The base class of decoding states on compiled CPU kernels, for encoder-decoder and for decoder-only models.

    Attention weights cannot be traced.
    """

    def __init__(
        self,
        model: PrepackedTransformer | PrepackedDecoder,
        compiled: CompiledModel,
        sentences: int,
        *,
        extra_entries: int = 0,
    ) -> None:
        """Create a state with a key/value cache that suffices for the first steps of `sentences` sentences.

        The cache has `extra_entries` entries besides, such as for the tokens of prompts.
        """
        self.model = model
        self.compiled = compiled
        self.width = 1
        self.position = 0  # of the newest token; the greatest one if rows differ
        self.longest_source = 0
        layers, width = model.config.num_decoder_layers, 2 * compiled.heads.keys
        self.pool = KVCachePool(layers, sentences, width, compiled.cache_dtype, extra_entries=extra_entries)
        self.lists = torch.zeros(sentences, 0, dtype=torch.int32)  # (B × W, at least t)
        self.scratch: Scratch | None = None
        self.output = output_projection_of(model)
        self.logits_buffer = torch.empty(0, self.output.padded_outputs)

    def row_arguments(self) -> dict[str, int]:
        """Return a dict of the kernel arguments that depend on the kind of model, such as addresses of source offsets.

        The keys are names of fields of `StepArguments`; a field that the dict lacks is 0.
        """
        raise NotImplementedError

    def select_rows(self, rows: Tensor, width: int) -> None:
        """Replace hypothesis n by a copy of hypothesis rows[n]; from now on sentences have `width` hypotheses each."""
        self.lists = self.lists.index_select(0, rows)
        self.width = width

    @override
    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        if trace is not None:
            raise ValueError("attention weights are not kept here: use the model's own state")
        return self.advance(tokens)[0].view(*tokens.shape, -1)

    @override
    def step_to_logits(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        states, logits = (tensor.unflatten(0, tokens.shape) for tensor in self.advance(tokens))
        return states, logits

    def advance(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run a decoding step on the newest tokens, (B, W), of all hypotheses; return two float32 tensors.

        The tensors are the last layer's output, (B × W, D), and the logits, (B × W, V), a buffer that the next step
        overwrites.
        """
        rows = tokens.numel()
        self._ensure_capacity(rows)
        if rows > self.logits_buffer.shape[0]:
            self.logits_buffer = torch.empty(rows, self.output.padded_outputs)
        x = torch.empty(rows, self.compiled.d_model)
        tables = self.compiled.step_positions.until(self.position)
        self._run(self.compiled.step, self.compiled.step_multiplications, x, tables, tokens.contiguous())
        self.position += 1
        self.pool.used += rows
        return x, self.logits_buffer[:rows, : self.output.outputs]

    @override
    def reorder(self, parents: Tensor) -> None:
        batch, width = parents.shape
        if width == self.width == 1:
            return
        rows = parents + torch.arange(0, batch * self.width, self.width)[:, None]
        self.select_rows(rows.flatten(), width)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        own_rows = rows[:, None] * self.width + torch.arange(self.width)
        self.select_rows(own_rows.flatten(), self.width)

    def _ensure_capacity(self, rows: int) -> None:
        """Make space for another step of `rows` hypotheses in the key/value cache and in the lists of its entries.

        Tokens that no hypothesis contains are removed from the cache, and the cache is enlarged if that is not enough.
        """
        if self.position >= self.lists.shape[1]:
            more = torch.zeros(self.lists.shape[0], RESERVED_STEPS + self.position, dtype=torch.int32)
            self.lists = torch.cat([self.lists, more], dim=1)
        if not self.pool.has_capacity(rows):
            self.lists[:, : self.position] = self.pool.compact(self.lists[:, : self.position], rows)

    def _run(self, kernel: CompiledKernel, work: int, x: Tensor, tables: PositionTables, ids: Tensor) -> None:
        """Run the kernel `read` or `step` on N tokens.

        Args:
            kernel: the kernel. `step` also writes logits to `logits_buffer`.
            work: the number of multiplications that the kernel does per token.
            x: receives the last layer's output, (N, D).
            tables: position encodings that cover the tokens' positions.
            ids: the tokens, (N,): all tokens of the prompts for `read`, the newest token of each hypothesis for `step`.
        """
        rows, capacity = len(x), max(self.longest_source, self.position + 1) + MAX_LANES
        scores = capacity * torch.get_num_threads()
        if self.scratch is None or rows > self.scratch.rows or scores > self.scratch.scores:
            self.scratch = Scratch(self.compiled, rows, 2 * scores)
        arguments = KernelArguments(
            StepArguments,
            rows=rows,
            weights=self.compiled.weights.data_ptr(),
            x=x.data_ptr(),
            **self.scratch.addresses,
            score_capacity=capacity,
            **self.row_arguments(),
            past=self.pool.entries.data_ptr(),
            entries=self.pool.entries.shape[1],
            used=self.pool.used,
            lists=self.lists.data_ptr(),
            list_stride=self.lists.shape[1],
            length=self.position + 1,
            ids=ids.data_ptr(),
            **tables.addresses(),
            logits=self.logits_buffer.data_ptr(),
        )
        run_timed(kernel, arguments.array, rows * work)


def offsets_of(counts: list[int]) -> list[int]:
    """Return a list of each text's first index in a concatenation of texts that have `counts` tokens."""
    return [end - count for end, count in zip(accumulate(counts), counts, strict=True)]


class Scratch:
    """The scratch memory to which the kernels `read` and `step` of a compiled model write intermediate results."""

    def __init__(self, compiled: CompiledModel, rows: int, scores: int) -> None:
        """Allocate scratch memory for `rows` rows, and `scores` float32 numbers for attention scores of all threads."""
        heads, d_ff, width = compiled.heads, compiled.d_ff, compiled.widest
        self.rows, self.scores = rows, scores
        chunk = min(rows, FEED_FORWARD_ROWS)
        sizes = {
            "normed": rows * width,
            "quantized": (rows + READABLE_EXTRA_ROWS) * max(width, heads.queries) // 2,
            "scales": rows,
            "projected": rows * (heads.queries + 2 * heads.keys),
            "heads": rows * heads.queries,
            "inner": chunk * d_ff * (3 if compiled.is_gated else 1),
            "quantized_inner": (chunk + READABLE_EXTRA_ROWS) * d_ff // 2,
            "scores": scores,
        }
        self._arena = Arena({name: (torch.float32, (size,)) for name, size in sizes.items()})
        self.addresses = self._arena.addresses


# --- encoders ---


def count_tokens(ids: Tensor, pad_id: int) -> list[int] | None:
    """Return a list with the number of tokens of each text of a batch.

    `ids` are token ids, (B, S), padded at the right. The result is None if padding precedes a token, if a text has no
    token, or if the batch is empty. Then kernels that read texts without padding must not be used.
    """
    rows: list[list[int]] = ids.tolist()
    counts = [len(row) - row.count(pad_id) for row in rows]
    is_at_right = all(pad_id not in row[:count] for row, count in zip(rows, counts, strict=True))
    return counts if is_at_right and min(counts, default=0) > 0 else None


def _read_texts(
    model: PrepackedTransformer | PrepackedEncoder,
    compiled: CompiledModel,
    tokens: Tensor,
    counts: list[int],
    memory: Tensor | None = None,
) -> Tensor:
    """Run a model's encoder on texts without padding; return the last layer's output, float32 (N, D).

    Args:
        model: the model with prepacked weights.
        compiled: its compiled kernels.
        tokens: the token ids of all texts, one text after another, (N,); all are of the first token type.
        counts: the number of tokens of each text, at least 1.
        memory: receives the keys and values of cross-attention, (decoder layers, N, keys and values of all heads); None
            for an encoder-only model.

    Raises:
        IndexError: an id is not in the vocabulary, so that machine code would read out of bounds.
    """
    _check_ids(tokens, len(model.source_weight))
    layout, longest = TextLayout.of(counts), max(counts)
    x, types = torch.empty(len(tokens), compiled.d_model), torch.zeros_like(tokens)
    scratch_each = sequence_scratch_size(compiled.heads.width, longest)
    scratch = Scratch(compiled, layout.chunk_rows, scratch_each * torch.get_num_threads())
    tables = compiled.read_positions.until(longest - 1)
    arguments = KernelArguments(
        StepArguments,
        rows=len(tokens),
        weights=compiled.weights.data_ptr(),
        x=x.data_ptr(),
        ids=tokens.data_ptr(),
        token_types=types.data_ptr(),
        memory=address_of(memory),
        sources=len(tokens),
        **scratch.addresses,
        attention=scratch.addresses["scores"],
        attention_each=scratch_each,
        **layout.addresses(),
        **tables.addresses(),
    )
    run_timed(compiled.read, arguments.array, layout.chunk_rows * compiled.read_multiplications)
    return x


def encode_texts(model: PrepackedEncoder, compiled: CompiledModel, ids: Tensor) -> Tensor | None:
    """Return an encoder-only model's state of each token, computed by compiled kernels.

    Args:
        model: the model with prepacked weights.
        compiled: its compiled kernels.
        ids: token ids, padded at the right, (B, S); all are of the first token type.

    Returns:
        Float32, (B, S, D), with zeros for padding. None if padding precedes a token, or if a text or the batch is
        empty.

    Raises:
        IndexError: an id is out of range, so that machine code would read out of bounds.
    """
    if (counts := count_tokens(ids, model.config.pad_id)) is None:
        return None
    present = ids != model.config.pad_id
    x = _read_texts(model, compiled, ids[present], counts)
    if len(x) == ids.numel():
        return x.view(*ids.shape, -1)
    return x.new_zeros(*ids.shape, x.shape[-1]).masked_scatter_(present[..., None], x)


def _check_ids(ids: Tensor, size: int) -> None:
    """Raise IndexError if a token id is negative or not below `size`, as machine code does not check bounds."""
    least, greatest = (int(each) for each in ids.aminmax())
    if least < 0 or greatest >= size:
        bad = least if least < 0 else greatest
        reason = f"token ids range from 0 to {size - 1}, but one is {bad}"
        raise IndexError(f"{reason}: encode the text with the tokenizer of this model")


# --- encoder-decoder models ---


class CompiledState(DecodingSteps):
    """A decoding state of an encoder-decoder model on compiled CPU kernels."""

    def __init__(
        self, model: PrepackedTransformer, compiled: CompiledModel, source_ids: Tensor, counts: list[int]
    ) -> None:
        """Create a decoding state by encoding source ids (B, S), whose padding follows the tokens.

        `counts` is the result of `count_tokens`, the number of tokens of each sentence.
        """
        super().__init__(model, compiled, len(source_ids))
        self.longest_source = max(counts)
        self.sources = torch.tensor([offsets_of(counts), counts])  # (2, B): offsets and numbers of tokens
        self.row_sources = self.sources  # (2, B × W)
        layers, _, width = self.pool.entries.shape
        self.memory = torch.empty(layers, sum(counts), width, dtype=compiled.cache_dtype)
        _read_texts(model, compiled, source_ids[source_ids != model.config.pad_id], counts, self.memory)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        super().keep_sentences(rows)
        self.sources = self.sources.index_select(1, rows)
        self._spread_sources()

    @override
    def select_rows(self, rows: Tensor, width: int) -> None:
        changes = width != self.width
        super().select_rows(rows, width)
        if changes:
            self._spread_sources()

    def _spread_sources(self) -> None:
        """Set the source offset and length of each hypothesis, which are those of its sentence."""
        self.row_sources = self.sources if self.width == 1 else self.sources.repeat_interleave(self.width, dim=1)

    @override
    def row_arguments(self) -> dict[str, int]:
        firsts, counts = self.row_sources
        return {
            "memory": self.memory.data_ptr(),
            "sources": self.memory.shape[1],
            "firsts": firsts.data_ptr(),
            "counts": counts.data_ptr(),
        }


# --- decoder-only models ---
# Legend: B prompts, W hypotheses of each, P tokens of the longest prompt, N rows (B × W, or prompt tokens), D model
# width, V vocabulary size.


class CompiledPromptState(DecodingSteps):
    """A decoding state of a decoder-only model on compiled CPU kernels.

    As in `PromptState`, the first step returns the prediction after the prompt and processes no token.
    """

    def __init__(self, model: PrepackedDecoder, compiled: CompiledModel, prompt_ids: Tensor, lengths: Tensor) -> None:
        """Create a decoding state by processing prompts (B, P), whose `lengths` (B,) are at least 1."""
        counts: list[int] = lengths.tolist()
        starts, tokens = offsets_of(counts), sum(counts)
        super().__init__(model, compiled, len(counts), extra_entries=tokens)
        self.longest_source = max(counts)
        positions = torch.arange(prompt_ids.shape[1]).expand(len(counts), -1)
        present = positions < lengths[:, None]
        self.counts = 1 + positions[present]  # (N,)
        self.firsts = torch.tensor(starts).repeat_interleave(lengths)  # (N,)
        ids = prompt_ids[present]
        _check_ids(ids, len(model.source_weight))
        x, tables = torch.empty(tokens, compiled.d_model), compiled.read_positions.until(self.longest_source - 1)
        self._run(compiled.read, compiled.read_multiplications, x, tables, ids)
        self.scratch = None  # steps need less scratch space
        self.pool.used, self.position = tokens, self.longest_source
        self.counts = lengths.clone()  # (B × W,), tokens so far
        # Each row's list of cache entries; elements behind its length are undefined.
        self.lists = (torch.tensor(starts)[:, None] + positions[:, : self.longest_source]).clamp_(max=tokens - 1).int()
        self.lists = torch.cat([self.lists, self.lists.new_zeros(len(counts), RESERVED_STEPS)], dim=1)
        self._after_prompt: Tensor | None = x.index_select(0, lengths.cumsum(0) - 1)  # (B, D)

    @override
    def advance(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if self._after_prompt is not None:
            hidden, self._after_prompt = self._after_prompt, None
            return hidden, self.model.project(hidden)
        self.counts += 1
        return super().advance(tokens)

    def logits_after_prompts(self) -> Tensor:
        """Return the logits of the first new token of each prompt, (B, V); the first step must not have run."""
        assert self._after_prompt is not None
        return self.model.project(self._after_prompt)

    @override
    def select_rows(self, rows: Tensor, width: int) -> None:
        super().select_rows(rows, width)
        self.counts = self.counts.index_select(0, rows)
        if self._after_prompt is not None:
            self._after_prompt = self._after_prompt.index_select(0, rows)

    @override
    def row_arguments(self) -> dict[str, int]:
        return {"firsts": self.firsts.data_ptr(), "counts": self.counts.data_ptr()}
