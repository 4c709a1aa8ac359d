"""Run beam or greedy search for a batch in machine code, to its end or some steps at a time.

Legend: N sentences at first, B of them still decoded, W hypotheses of each, T capacity in tokens per hypothesis, t
tokens so far.
"""

import ctypes
from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from transduce.kernels.cpu.decoding.state import RESERVED_STEPS, NativePromptState, NativeState, Scratch
from transduce.kernels.cpu.decoding.writer import StepArguments
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    compile_kernels,
    find_integer_tile,
    float_bits,
    new_builder,
    raw_kernel,
)
from transduce.kernels.cpu.jit.ir_builder import F32, F64, I32, I64, POINTER, Fields, KernelBuilder, Value
from transduce.kernels.cpu.jit.memory import Arena, KernelArguments
from transduce.kernels.cpu.jit.threads import run_timed
from transduce.kernels.cpu.jit.tile import MAX_LANES
from transduce.kernels.cpu.sampling import DrawArguments, emit_draw
from transduce.kernels.cpu.selection import RuleArguments, SelectArguments, emit_select, select_scratch_size
from transduce.model.backend import FoundHypothesis, SearchBounds, SearchRules

# --- search kernel ---
# The whole search is one kernel: decoder steps, selection of tokens, and bookkeeping of hypotheses. It finds what
# `search.beam.BeamSearch` or `search.beam.GenerateSearch` finds, and with one hypothesis what greedy search finds.


_MINUS_INFINITY = float("-inf")
RANKINGS = ("paper", "full", "likely", "never", "sample")
"""The values of `SearchRules.ranking` and `sample`, as the kernel numbers them."""


class SearchArguments(NamedTuple):
    """Arguments of the search kernel: addresses, unless stated otherwise.

    The fields before `step` change during the search.
    """

    steps: Any
    """The number of steps left in this call."""
    stop: Any
    """Not 0 once the call ends: nothing is left to do, or a buffer is full."""
    sentences: Any
    """The number of sentences B."""
    width: Any
    """The number of hypotheses of each sentence: 1 at first, then W."""
    length: Any
    """The number of tokens so far t."""
    tokens: Any
    """The hypotheses' tokens, int32 (B × W, T)."""
    values: Any
    """The tokens' log-probabilities, float32 (B × W, T)."""
    next_tokens: Any
    """A second buffer for `tokens`, swapped at each step."""
    next_values: Any
    """A second buffer for `values`, swapped at each step."""
    lists: Any
    """The hypotheses' cache entries: `StepArguments.lists` of the step, int32 (B × W, `list_stride`)."""
    next_lists: Any
    """A second buffer for `lists`, swapped at each step."""
    step: Any
    """The address of the decoder step's kernel."""
    step_arguments: Any
    """The decoder step's arguments, `writer.StepArguments`."""
    select_arguments: Any
    """The selection's arguments, `logits.SelectArguments`."""
    rule_arguments: Any
    """The arguments of the rules on tokens, `logits.RuleArguments`."""
    is_read: Any
    """1 until the first selection in decoder-only models, whose prompts have given the first logits; else 0."""
    is_ragged: Any
    """1 in decoder-only models, whose hypotheses have lists of different lengths: `sources` counts them; else 0."""
    list_stride: Any
    """The number of elements between two hypotheses' lists."""
    longest_prompt: Any
    """The number of tokens of the longest prompt; 0 in encoder-decoder models."""
    draw_arguments: Any
    """The arguments of sampling, `sampling.DrawArguments`."""
    ranking: Any
    """The index in `RANKINGS` of the rule that ranks hypotheses and ends a sentence; greedy search has the first."""
    beam_size: Any
    """The beam size W."""
    certain_count: Any
    """The number of hypotheses that must be certain before a sentence is done; 0: one finished hypothesis ends it."""
    capacity: Any
    """The capacity in tokens T."""
    positions: Any
    """The number of positions in the step's tables."""
    newest: Any
    """The last token of each hypothesis, int64 (B × W,)."""
    row_sources: Any
    """The offset of each hypothesis' source, int64 (B × W,), and, `max_rows` elements later, its number of tokens."""
    max_rows: Any
    """The number of elements between the two arrays in `row_sources`."""
    sources: Any
    """The offset of each sentence's source, and its number of tokens, int64 (2, N).

    In decoder-only models, the number counts the prompt and the tokens so far, with the one that the next step reads.
    """
    all_sentences: Any
    """The number of sentences at first N."""
    indices: Any
    """Each sentence's index in the input batch, int64 (B,)."""
    longest: Any
    """Each sentence's greatest number of tokens, int64 (B,)."""
    greatest_penalties: Any
    """The length penalty at each sentence's greatest length, float32 (B,)."""
    penalties: Any
    """The length penalty of n tokens, float64 (T + 2,)."""
    finished_counts: Any
    """The number of finished hypotheses by index in the input batch, int64 (N,)."""
    order: Any
    """The slots of a sentence's finished hypotheses, best first, then the free slot, int64 (N, W + 1)."""
    finished_scores: Any
    """Scores of finished hypotheses by slot, float64 (N, W + 1)."""
    finished_lengths: Any
    """Lengths of finished hypotheses by slot, int64 (N, W + 1)."""
    finished_ended: Any
    """1 for finished hypotheses that end with the end symbol, 0 for those cut off, by slot, int64 (N, W + 1)."""
    finished_tokens: Any
    """Tokens of finished hypotheses by slot, int32 (N, W + 1, T)."""
    finished_values: Any
    """Log-probabilities of these tokens, float32 (N, W + 1, T)."""


@cache
def search_kernel() -> CompiledKernel:
    """Compile the kernel that runs decoding steps and beam selection in a loop."""
    tile = find_integer_tile()
    assert tile is not None
    k = new_builder("search", tile)
    emit_select(k)
    emit_draw(k)
    _write_record(k)
    _write_update(k)
    with raw_kernel(k, "search") as (numbers, thread, threads):
        fields = Fields(k, numbers, SearchArguments._fields)
        with k.do_while() as done:
            with k.when(k.build.not_(k.is_nonzero(fields.get("is_read")))):
                k.call_address(fields.get("step"), k.pointer(fields.get("step_arguments")), thread, threads)
            with k.build.if_else(_is_sampling(fields)) as (samples, selects):
                with samples:
                    arguments = (k.pointer(fields.get(f"{name}_arguments")) for name in ("select", "draw"))
                    k.call("draw", *arguments, thread, threads)
                with selects:
                    k.call("select", k.pointer(fields.get("select_arguments")), thread, threads)
            k.barrier(threads)
            with k.when(k.build.icmp_signed("==", thread, k.int64(0))):
                k.call("go_on", numbers)
            k.barrier(threads)
            done(k.build.icmp_signed("!=", fields.get("stop"), k.int64(0)))
    return compile_kernels(k, ("search",))["search"]


def _write_record(k: KernelBuilder) -> None:
    """Emit `record(numbers, place, row, token, value, ended, sample)`: store a finished hypothesis if it ranks high.

    The hypothesis is `row` extended by a token with log-probability `value`; `place` is its sentence's index in the
    input batch. Samples are ranked by their numbers.
    """
    with k.function("record", POINTER, I64, I64, I64, F32, I64, I64) as (numbers, index, row, token, value, ended, own):
        fields = Fields(k, numbers, SearchArguments._fields)
        length, capacity = fields.get("length"), fields.get("capacity")
        history = k.mul(row, capacity)
        # Summed in order and in float64, as the search in Python does.
        total = k.variable(ir.Constant(F64, 0.0))
        with k.loop(0, length) as number:
            token_value = k.build.fpext(fields.element("values", k.add(history, number)), F64)
            k.store(k.build.fadd(k.build.load(total, typ=F64), token_value), total)
        full_total = k.build.fadd(k.build.load(total, typ=F64), k.build.fpext(value, F64))
        new_length = k.add(length, 1)
        score = k.build.fdiv(full_total, fields.element("penalties", new_length, F64))
        score = k.build.select(_is_sampling(fields), k.build.fneg(k.build.sitofp(own, F64)), score)
        slots = k.add(fields.get("beam_size"), 1)
        base, count = k.mul(index, slots), fields.element("finished_counts", index, I64)
        rank = _rank(fields, (base, count), (score, ended))
        with k.when(k.build.icmp_signed("<", rank, fields.get("beam_size"))):
            slot = fields.element("order", k.add(base, count), I64)
            slot_index = k.add(base, slot)
            k.store(score, fields.at("finished_scores", slot_index, F64))
            k.store(new_length, fields.at("finished_lengths", slot_index, I64))
            k.store(ended, fields.at("finished_ended", slot_index, I64))
            target = k.mul(slot_index, capacity)
            k.copy(fields.at("tokens", history, I32), fields.at("finished_tokens", target, I32), length)
            k.copy(fields.at("values", history), fields.at("finished_values", target), length)
            k.store(k.build.trunc(token, I32), fields.at("finished_tokens", k.add(target, length), I32))
            k.store(value, fields.at("finished_values", k.add(target, length)))
            # Move the slots of worse hypotheses back; the last of W + 1 slots is the free one.
            with k.loop(0, k.build.sub(count, rank)) as number:
                to = k.add(base, k.build.sub(count, number))
                k.store(fields.element("order", k.add(to, -1), I64), fields.at("order", to, I64))
            k.store(slot, fields.at("order", k.add(base, rank), I64))
            has_free_slot = k.build.icmp_signed("<", count, fields.get("beam_size"))
            k.store(k.add(count, k.build.zext(has_free_slot, I64)), fields.at("finished_counts", index, I64))


def _rank(fields: Fields, ranking: tuple[Value, Value], new: tuple[Value, Value]) -> Value:
    """Return how many finished hypotheses rank before a new one.

    In the paper's search, hypotheses that ended rank before those cut off; in that of `generate`, only scores count.
    """
    k, (base, count), (score, ended) = fields.k, ranking, new
    rank = k.variable(k.int64(0))
    by_score = _has_generate_ranking(fields)
    with k.loop(0, count) as number:
        slot_index = k.add(base, fields.element("order", k.add(base, number), I64))
        other_ended = fields.element("finished_ended", slot_index, I64)
        worse = k.build.fcmp_ordered("<", fields.element("finished_scores", slot_index, F64), score)
        same_kind = k.build.or_(by_score, k.build.icmp_signed("==", other_ended, ended))
        is_cut = k.build.and_(k.build.not_(by_score), k.build.icmp_signed(">", other_ended, ended))
        stays = k.build.or_(is_cut, k.build.and_(same_kind, k.build.not_(worse)))
        k.store(k.add(k.load_variable(rank, count), k.build.zext(stays, I64)), rank)
    return k.load_variable(rank, count)


def _has_generate_ranking(fields: Fields) -> Value:
    """Return the condition, an LLVM value, that hypotheses are ranked as Hugging Face's `generate` ranks them."""
    return fields.k.build.icmp_signed("!=", fields.get("ranking"), fields.k.int64(RANKINGS.index("paper")))


def _is_sampling(fields: Fields) -> Value:
    """Return the condition, an LLVM value, that the search draws tokens at random instead of ranking them."""
    return fields.k.build.icmp_signed("==", fields.get("ranking"), fields.k.int64(RANKINGS.index("sample")))


def _write_update(k: KernelBuilder) -> None:
    """Emit `go_on(numbers)`, which updates the hypotheses after a selection and sets the next step's arguments.

    It records hypotheses that end, removes sentences that are done, and appends the selected tokens to the others.
    """
    with k.function("go_on", POINTER) as (numbers,):
        fields = Fields(k, numbers, SearchArguments._fields)
        select = Fields(k, k.pointer(fields.get("select_arguments")), SelectArguments._fields)
        beam_size, new_length = fields.get("beam_size"), k.add(fields.get("length"), 1)
        rows = k.mul(fields.get("sentences"), fields.get("width"))
        kept_count = k.variable(k.int64(0))
        with k.loop(0, fields.get("sentences")) as sentence:
            index = fields.element("indices", sentence, I64)
            ended_count = k.variable(k.int64(0))
            with k.when(k.build.not_(_is_sampling(fields))):
                k.store(_record_ended(fields, select, sentence, index), ended_count)
            first = k.mul(sentence, beam_size)
            may_improve = _may_improve(fields, select, sentence, index)
            with k.when(k.build.or_(may_improve, _is_sampling(fields))):
                full = k.build.icmp_signed("<=", fields.element("longest", sentence, I64), new_length)
                with k.build.if_else(k.build.or_(full, k.build.not_(may_improve))) as (then, otherwise):
                    with then:
                        # In `generate`, the hypotheses that end and those that are cut share W slots.
                        number_ended = k.load_variable(ended_count, index)
                        taken = k.build.select(_has_generate_ranking(fields), number_ended, k.int64(0))
                        with k.loop(first, k.build.sub(k.add(first, beam_size), taken)) as chosen:
                            _record(fields, select, "live", (sentence, index, chosen), ended=False)
                    with otherwise:
                        to = k.load_variable(kept_count, sentence)
                        _keep_sentence(fields, sentence, to)
                        with k.loop(0, beam_size) as number:
                            new_row = k.add(k.mul(to, beam_size), number)
                            _extend(fields, select, (sentence, to), k.add(first, number), new_row)
                        k.store(k.add(to, 1), kept_count)
        for name in ("tokens", "values", "lists"):
            fields.swap(name, f"next_{name}")
        _set_next(fields, select, k.load_variable(kept_count, rows), rows)


def _record_ended(fields: Fields, select: Fields, sentence: Value, index: Value) -> Value:
    """Record a sentence's candidates that end with the end symbol as finished hypotheses; return how many there are."""
    k = fields.k
    candidates = k.mul(fields.get("beam_size"), 2)
    first, ended = k.mul(sentence, candidates), k.variable(k.int64(0))
    with k.loop(first, k.add(first, candidates)) as candidate:
        exists = k.build.fcmp_ordered(">", select.element("ended_totals", candidate), k.float32(_MINUS_INFINITY))
        k.store(k.add(k.load_variable(ended, candidate), k.build.zext(exists, I64)), ended)
        _record(fields, select, "ended", (sentence, index, candidate), ended=True)
    return k.load_variable(ended, first)


def _record(fields: Fields, select: Fields, kind: str, numbers: tuple[Value, ...], *, ended: bool) -> None:
    """Record a selected candidate as a finished hypothesis unless its total is minus infinity (an empty slot).

    Samples are all recorded: minus infinity marks those that have ended.
    """
    k, (sentence, index, candidate) = fields.k, numbers
    total = select.element(f"{kind}_totals", candidate)
    exists = k.build.fcmp_ordered(">", total, k.float32(_MINUS_INFINITY))
    with k.when(k.build.or_(exists, _is_sampling(fields))):
        parent = select.element(f"{kind}_parents", candidate, I64)
        row = k.add(k.mul(sentence, fields.get("width")), parent)
        token = select.element(f"{kind}_tokens", candidate, I64)
        value = select.element(f"{kind}_scores", candidate)
        own = k.build.sub(candidate, k.mul(sentence, fields.get("beam_size")))
        k.call("record", fields.pointer, index, row, token, value, k.int64(int(ended)), own)


def _may_improve(fields: Fields, select: Fields, sentence: Value, index: Value) -> Value:
    """Return whether to continue a sentence: whether a live hypothesis can still improve on the finished ones.

    In greedy search: whether none has ended.
    """
    k, beam_size, certain_count = fields.k, fields.get("beam_size"), fields.get("certain_count")
    best, first = k.variable(k.float32(_MINUS_INFINITY)), k.mul(sentence, beam_size)
    with k.loop(first, k.add(first, beam_size)) as number:
        total, best_so_far = select.element("live_totals", number), k.load_variable(best, k.float32(0.0))
        k.store(k.maximum(total, best_so_far), best)
    threshold, count = k.variable(k.float32(_MINUS_INFINITY)), fields.element("finished_counts", index, I64)
    has_enough = k.build.and_(
        k.build.icmp_signed(">=", count, certain_count), k.build.icmp_signed(">", certain_count, k.int64(0))
    )
    with k.when(has_enough):
        base = k.mul(index, k.add(beam_size, 1))
        slot = fields.element("order", k.add(base, certain_count, -1), I64)
        score = fields.element("finished_scores", k.add(base, slot), F64)
        k.store(k.build.fptrunc(score, F32), threshold)
    live = k.load_variable(best, k.float32(0.0))
    bound = k.build.fdiv(live, fields.element("greatest_penalties", sentence))
    better = k.build.and_(
        k.build.fcmp_ordered(">", live, k.float32(_MINUS_INFINITY)),
        k.build.fcmp_ordered(">", bound, k.load_variable(threshold, live)),
    )
    better = k.build.select(
        _has_generate_ranking(fields), _may_improve_as_in_generate(fields, sentence, index, live), better
    )
    none_ended = k.build.icmp_signed("==", count, k.int64(0))
    return k.build.select(k.build.icmp_signed("==", certain_count, k.int64(0)), none_ended, better)


def _may_improve_as_in_generate(fields: Fields, sentence: Value, index: Value, best: Value) -> Value:
    """Return whether `search.beam.GenerateSearch` waits for the best live hypothesis, whose total is `best`."""
    k, beam_size, ranking = fields.k, fields.get("beam_size"), fields.get("ranking")
    is_never = k.build.icmp_signed("==", ranking, k.int64(RANKINGS.index("never")))
    length = k.build.select(is_never, fields.element("longest", sentence, I64), k.add(fields.get("length"), 1))
    bound = k.build.fdiv(k.build.fpext(best, F64), fields.element("penalties", length, F64))
    count, base = fields.element("finished_counts", index, I64), k.mul(index, k.add(beam_size, 1))
    slot = fields.element("order", k.add(base, beam_size, -1), I64)  # of the worst of W finished hypotheses
    beats_worst = k.build.fcmp_ordered(">", bound, fields.element("finished_scores", k.add(base, slot), F64))
    is_full = k.build.icmp_signed("==", ranking, k.int64(RANKINGS.index("full")))
    exists = k.build.fcmp_ordered(">", best, k.float32(_MINUS_INFINITY))
    beats_worst = k.build.and_(beats_worst, k.build.not_(is_full))
    return k.build.select(k.build.icmp_signed("<", count, beam_size), exists, beats_worst)


def _keep_sentence(fields: Fields, sentence: Value, to: Value) -> None:
    """Move the data of an unfinished sentence to its new index in the batch, which is not greater."""
    k = fields.k
    for name, kind in (("indices", I64), ("longest", I64), ("greatest_penalties", F32)):
        k.store(fields.element(name, sentence, kind), fields.at(name, to, kind))
    for part, more in ((k.int64(0), k.int64(0)), (fields.get("all_sentences"), fields.get("is_ragged"))):
        source = fields.element("sources", k.add(part, sentence), I64)
        k.store(k.add(source, more), fields.at("sources", k.add(part, to), I64))


def _extend(fields: Fields, select: Fields, sentences: tuple[Value, Value], chosen: Value, new_row: Value) -> None:
    """Copy the tokens of a live hypothesis' parent, and append the selected token."""
    k, (sentence, to) = fields.k, sentences
    length, capacity = fields.get("length"), fields.get("capacity")
    row = k.add(k.mul(sentence, fields.get("width")), select.element("live_parents", chosen, I64))
    old, new = k.mul(row, capacity), k.mul(new_row, capacity)
    k.copy(fields.at("tokens", old, I32), fields.at("next_tokens", new, I32), length)
    k.copy(fields.at("values", old), fields.at("next_values", new), length)
    token, end = select.element("live_tokens", chosen, I64), k.add(new, length)
    k.store(k.build.trunc(token, I32), fields.at("next_tokens", end, I32))
    k.store(select.element("live_scores", chosen), fields.at("next_values", end))
    stride = fields.get("list_stride")
    entries, new_entries = k.mul(row, stride), k.mul(new_row, stride)
    own_count = k.add(fields.element("sources", k.add(fields.get("all_sentences"), to), I64), -1)
    count = k.build.select(k.is_nonzero(fields.get("is_ragged")), own_count, k.add(length, 1))
    k.copy(fields.at("lists", entries, I32), fields.at("next_lists", new_entries, I32), count)
    k.store(token, fields.at("newest", new_row, I64))
    k.store(select.element("live_totals", chosen), select.at("scores", new_row))
    for start, of_row in ((k.int64(0), k.int64(0)), (fields.get("all_sentences"), fields.get("max_rows"))):
        source = fields.element("sources", k.add(start, to), I64)
        k.store(source, fields.at("row_sources", k.add(of_row, new_row), I64))


def _set_next(fields: Fields, select: Fields, sentences: Value, old_rows: Value) -> None:
    """Set the arguments of the next decoding step, and the flag that stops the search."""
    k = fields.k
    step = Fields(k, k.pointer(fields.get("step_arguments")), StepArguments._fields)
    beam_size, length = fields.get("beam_size"), k.add(fields.get("length"), 1)
    appended = k.build.select(k.is_nonzero(fields.get("is_read")), k.int64(0), old_rows)
    rows, used = k.mul(sentences, beam_size), k.add(step.get("used"), appended)
    fields.set("is_read", k.int64(0))
    steps = k.add(fields.get("steps"), -1)
    for name, value in (("sentences", sentences), ("width", beam_size), ("length", length), ("steps", steps)):
        fields.set(name, value)
    select.set("rows", rows)
    select.set("beams", beam_size)
    rules = Fields(k, k.pointer(fields.get("rule_arguments")), RuleArguments._fields)
    rules.set("length", length)
    rules.set("tokens", fields.get("tokens"))
    with k.when(_is_sampling(fields)):
        Fields(k, k.pointer(fields.get("draw_arguments")), DrawArguments._fields).set("length", length)
    for name, value in (
        ("rows", rows),
        ("used", used),
        ("length", k.add(length, 1)),
        ("lists", fields.get("lists")),
    ):
        step.set(name, value)
    ends = (
        k.build.icmp_signed("==", sentences, k.int64(0)),
        k.build.icmp_signed("<=", steps, k.int64(0)),
        k.build.icmp_signed(">", k.add(used, rows), step.get("entries")),
        k.build.icmp_signed(">=", k.add(length, fields.get("longest_prompt")), fields.get("positions")),
    )
    stop = ends[0]
    for end in ends[1:]:
        stop = k.build.or_(stop, end)
    fields.set("stop", k.build.zext(stop, I64))


# --- search of a batch ---


_FREE = -1  # where no token is forced
_MIN_VOCABULARY = 64  # minimum vocabulary size: one block of the top-k search
_MAX_TOKENS = 1 << 22  # tokens of all hypotheses: buffers are allocated for the greatest length up front


def supports_compiled_search(vocabulary_size: int, bounds: SearchBounds) -> bool:
    """Return whether the compiled search supports a batch with these sizes.

    The vocabulary must be large enough, and the buffers must not become too large.
    """
    rows, longest, rules = len(bounds.max_lengths) * bounds.beam_size, max(bounds.max_lengths), bounds.rules
    candidates = 2 * bounds.beam_size
    if rules != SearchRules():  # so many tokens may be forbidden in one step
        candidates += longest + len((*rules.forbidden, *bounds.forbidden_tokens, *rules.more_ends)) + 1
    return vocabulary_size >= max(_MIN_VOCABULARY, candidates) and longest * rows <= _MAX_TOKENS


class NativeSearch:
    """A compiled search for a batch (implements `model.backend.BatchSearch`)."""

    def __init__(self, state: NativeState | NativePromptState, bounds: SearchBounds) -> None:
        """Create a search from `state`, which has read its sources or prompts and run no step."""
        self.state = state
        self.longest_prompt = state.longest_source if isinstance(state, NativePromptState) else 0
        self.bounds = bounds
        self.threads = torch.get_num_threads()  # the number that scratch space is allocated for
        self.sentences = len(bounds.max_lengths)  # N
        self.rows = self.sentences * bounds.beam_size  # greatest number of hypotheses
        self.slots = bounds.beam_size + 1  # finished hypotheses per sentence, and a free slot
        self.capacity = max(bounds.max_lengths, default=0)  # T
        self.list_stride = self.longest_prompt + self.capacity + 1
        self.forced_count = max(map(len, bounds.rules.forced), default=0)
        penalties = bounds.rules.penalties
        self.before = [] if penalties is None else penalties.before
        self.before_stride = max(map(len, self.before), default=0)
        self._zeroed = Arena(self._zeroed_arrays(), zeroed=True)
        self._uninitialized = Arena(self._uninitialized_arrays())
        self._addresses = self._zeroed.addresses | self._uninitialized.addresses
        # NumPy views, whose slicing takes a fifth of the time of tensors'.
        self._found = tuple(self._uninitialized.tensor(f"finished_{name}").numpy() for name in ("tokens", "values"))
        # With a beam most cache entries are soon dropped; in greedy search all stay, and a target is about as long as
        # its source.
        steps = RESERVED_STEPS if bounds.beam_size > 1 else min(self.capacity, state.longest_source + RESERVED_STEPS)
        state.pool.reserve(self.rows * steps)
        self.tables = state.compiled.step_positions.until(self.longest_prompt)
        # The greatest number that a hypothesis attends to.
        self.positions = max(state.longest_source, self.longest_prompt + self.capacity + 1) + MAX_LANES
        self.scratch = Scratch(state.compiled, self.rows, self.positions * self.threads)
        self._begin()
        self._step = KernelArguments(StepArguments, **self._step_arguments())
        self._select = KernelArguments(SelectArguments, **self._select_arguments())
        self._draw = KernelArguments(DrawArguments, **self._draw_arguments())
        self._rules = KernelArguments(RuleArguments, **self._rule_arguments())
        self._select["rules"] = ctypes.addressof(self._rules.array)
        self._numbers = KernelArguments(SearchArguments, **self._search_arguments())

    def _zeroed_arrays(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return the dtype and shape of each of the search's arrays that starts with zeros."""
        by_sentence, by_row, by_slot = (self.sentences,), (self.rows,), (self.sentences, self.slots)
        lists = (torch.int32, (self.rows, self.list_stride))
        return {
            "sources": (torch.int64, (2, *by_sentence)),
            "row_sources": (torch.int64, (2, *by_row)),
            "newest": (torch.int64, by_row),
            "scores": (torch.float32, by_row),
            "indices": (torch.int64, by_sentence),
            "longest": (torch.int64, by_sentence),
            "greatest_penalties": (torch.float32, by_sentence),
            "never": (torch.int64, (len(self.bounds.forbidden_tokens),)),
            "forbidden": (torch.int64, (len(self.bounds.rules.forbidden),)),
            "more_ends": (torch.int64, (len(self.bounds.rules.more_ends),)),
            "forced": (torch.int64, (self.sentences, self.forced_count)),
            "before": (torch.int64, (self.sentences, self.before_stride)),
            "before_counts": (torch.int64, by_sentence),
            "lists": lists,
            "next_lists": lists,
            "finished_counts": (torch.int64, by_sentence),
            "order": (torch.int64, by_slot),
            "finished_scores": (torch.float64, by_slot),
            "finished_lengths": (torch.int64, by_slot),
            "finished_ended": (torch.int64, by_slot),
        }

    def _uninitialized_arrays(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return the dtype and shape of each of the search's arrays that may start uninitialized."""
        output, beam_size = self.state.output, self.bounds.beam_size
        history, finished = (self.rows, self.capacity), (self.sentences, self.slots, self.capacity)
        arrays: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "tokens": (torch.int32, history),
            "values": (torch.float32, history),
            "next_tokens": (torch.int32, history),
            "next_values": (torch.float32, history),
            "finished_tokens": (torch.int32, finished),
            "finished_values": (torch.float32, finished),
            "x": (torch.float32, (self.rows, self.state.compiled.d_model)),
            "logits": (torch.float32, (self.rows, output.padded_outputs)),
            "select_scratch": (torch.float32, (self.threads, self._scratch_per_thread())),
        }
        if self.bounds.sampling is not None:
            by_thread = (self.threads, output.outputs)
            arrays["probabilities"] = arrays["drawn_logits"] = (torch.float32, by_thread)
            arrays["drawn_tokens"] = (torch.int64, by_thread)
        for kind, count in (("live", beam_size), ("ended", 2 * beam_size)):
            for name in ("parents", "tokens"):
                arrays[f"{kind}_{name}"] = (torch.int64, (self.sentences, count))
            for name in ("scores", "totals"):
                arrays[f"{kind}_{name}"] = (torch.float32, (self.sentences, count))
        return arrays

    def _scratch_per_thread(self) -> int:
        """Return the number of float32 of scratch space that selection and its rules need per thread."""
        beam_size = self.bounds.beam_size
        penalized = 0 if self.bounds.rules.penalties is None else self.before_stride + self.capacity
        return select_scratch_size(self.state.output.outputs, beam_size, beam_size) + penalized

    def _begin(self) -> None:
        """Fill the search kernel's arrays with their values before the first step."""
        numbers, count = self._zeroed.ctypes_array, self.sentences
        starts, lengths = (
            self._begin_prompts() if isinstance(self.state, NativePromptState) else self.state.sources.tolist()
        )
        numbers("sources")[:] = starts + lengths
        numbers("row_sources")[:count] = starts
        numbers("row_sources")[self.rows : self.rows + count] = lengths
        numbers("newest")[:] = [self.bounds.start_id] * self.rows
        numbers("indices")[:] = range(count)
        numbers("longest")[:] = self.bounds.max_lengths
        numbers("greatest_penalties")[:] = self.bounds.penalties[self.bounds.max_lengths].tolist()
        numbers("never")[:] = self.bounds.forbidden_tokens
        numbers("forbidden")[:] = self.bounds.rules.forbidden
        numbers("more_ends")[:] = self.bounds.rules.more_ends
        numbers("forced")[:] = [
            id for row in self.bounds.rules.forced for id in (*row, *[_FREE] * (self.forced_count - len(row)))
        ]
        for number, tokens in enumerate(self.before):
            first = number * self.before_stride
            numbers("before")[first : first + len(tokens)] = tokens
            numbers("before_counts")[number] = len(tokens)
        numbers("order")[:] = [*range(self.slots)] * count

    def _begin_prompts(self) -> tuple[list[int], list[int]]:
        """Take over the prompts' cache entries and logits; return the offset and the length of each prompt."""
        assert isinstance(self.state, NativePromptState)
        counts: list[int] = self.state.counts.tolist()
        self._zeroed.tensor("lists")[: self.sentences, : self.longest_prompt] = self.state.lists[
            :, : self.longest_prompt
        ]
        logits = self.state.logits_after_prompts()
        self._uninitialized.tensor("logits")[: self.sentences, : logits.shape[1]] = logits
        return [0] * self.sentences, counts

    # --- running ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Tensor:
        """The indices in the batch of the sentences that are still decoded, (B,)."""
        return self._zeroed.tensor("indices")[: self._numbers["sentences"]].clone()

    @property
    def length(self) -> int:
        """The number of tokens of every live hypothesis, t."""
        return self._numbers["length"]

    def advance(self, steps: int) -> None:
        """Run at most `steps` search steps; return early once all sentences are done."""
        search: CompiledKernel = search_kernel()
        self._numbers["steps"] = steps
        while self._numbers["sentences"] and self._numbers["steps"] > 0:
            self._ensure_capacity()
            work = self._numbers["sentences"] * self.bounds.beam_size * self.state.compiled.step_multiplications
            run_timed(search, self._numbers.array, work, self.threads)

    def abandon(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """Remove the sentences at these rows from the batch, and return their live hypotheses."""
        batch, width, length = self._numbers["sentences"], self._numbers["width"], self.length
        tokens, values = self._histories()
        scores = self._zeroed.ctypes_array("scores")
        live: list[list[FoundHypothesis]] = []
        for row in rows:
            is_sampling = self.bounds.sampling is not None  # ended samples are still there
            rows_of_sentence = range(row * width, (row + 1) * width)
            live_rows = [each for each in rows_of_sentence if is_sampling or scores[each] > float("-inf")]
            histories = [(tokens[each, :length].clone(), values[each, :length].clone()) for each in live_rows]
            live.append([FoundHypothesis(*history, ended=False) for history in histories])
        self._keep_sentences([row for row in range(batch) if row not in rows])
        return live

    def live(self) -> tuple[Tensor, Tensor]:
        """Return the live hypotheses' tokens, int64 (B, W, t), and total log-probabilities, (B, W)."""
        batch, width = self._numbers["sentences"], self._numbers["width"]
        tokens = self._histories()[0][: batch * width, : self.length]
        return tokens.long().view(batch, width, -1), self._zeroed.tensor("scores")[: batch * width].view(batch, width)

    def finished(self, index: int, count: int) -> list[FoundHypothesis]:
        """Return at most `count` finished hypotheses of the sentence at an index of the batch, best first."""
        numbers, first, hypotheses = self._zeroed.ctypes_array, index * self.slots, []
        for slot in numbers("order")[first : first + min(count, numbers("finished_counts")[index])]:
            length, ended = numbers("finished_lengths")[first + slot], numbers("finished_ended")[first + slot]
            tokens, values = (array[index, slot, :length] for array in self._found)
            hypotheses.append(FoundHypothesis(tokens, values, ended=bool(ended)))
        return hypotheses

    # --- buffers ---------------------------------------------------------------------------------------------------

    def _ensure_capacity(self) -> None:
        """Make sure that the KV cache and the position tables suffice for another step."""
        position, rows = self.longest_prompt + self.length, self._step["rows"]
        pool = self.state.pool
        pool.used = self._step["used"]
        if not self._numbers["is_read"] and not pool.has_capacity(rows):
            lists = self._lists()[:rows, :position]
            if self.longest_prompt:  # elements behind the end of a list are undefined
                counts = self._zeroed.tensor("row_sources")[1, :rows, None] - 1
                lists = torch.where(torch.arange(position) < counts, lists, lists[:, :1])
            self._lists()[:rows, :position] = pool.compact(lists, rows)
            self._step["used"] = pool.used
            self._step["past"] = pool.entries.data_ptr()
            self._step["entries"] = pool.entries.shape[1]
        if position >= self._numbers["positions"]:
            self.tables = self.state.compiled.step_positions.until(position)
            self._numbers["positions"] = self.tables.length
            for name, address in self.tables.addresses().items():
                self._step[name] = address

    def _is_swapped(self) -> bool:
        """Return whether the `next_…` buffers hold the current hypotheses; each step swaps both sets of buffers."""
        return self._numbers["lists"] != self._addresses["lists"]

    def _lists(self) -> Tensor:
        """Return the list of KV cache entries of each hypothesis."""
        return self._zeroed.tensor("next_lists" if self._is_swapped() else "lists")

    def _histories(self) -> tuple[Tensor, Tensor]:
        """Return the hypotheses' tokens and the tokens' log-probabilities."""
        next_ = "next_" if self._is_swapped() else ""
        return self._uninitialized.tensor(f"{next_}tokens"), self._uninitialized.tensor(f"{next_}values")

    def _keep_sentences(self, staying: list[int]) -> None:
        """Remove all sentences but these from the batch, between two search steps."""
        batch, width = len(staying), self._numbers["width"]
        sentences = torch.tensor(staying, dtype=torch.int64)
        rows = (sentences[:, None] * width + torch.arange(width)).flatten()
        count, tensor = batch * width, self._zeroed.tensor
        for name in ("indices", "longest", "greatest_penalties"):
            tensor(name)[:batch] = tensor(name)[sentences]
        tensor("sources")[:, :batch] = tensor("sources")[:, sentences]
        tensor("row_sources")[:, :count] = tensor("row_sources")[:, rows]
        for array in (tensor("newest"), tensor("scores"), *self._histories(), self._lists()):
            array[:count] = array[rows]
        self._numbers["sentences"], self._step["rows"], self._select["rows"] = batch, count, count

    # --- kernel arguments ------------------------------------------------------------------------------------------

    def _step_arguments(self) -> dict[str, int]:
        """Return the initial arguments of the decoder step that the search kernel calls."""
        state, addresses = self.state, self._addresses
        memory = None if isinstance(state, NativePromptState) else state.memory
        return {
            "rows": self.sentences,
            "weights": state.compiled.weights.data_ptr(),
            "x": addresses["x"],
            **self.scratch.addresses,
            "score_capacity": self.positions,
            "firsts": addresses["row_sources"],
            "counts": addresses["row_sources"] + 8 * self.rows,  # bytes of an int64
            "memory": 0 if memory is None else memory.data_ptr(),
            "sources": 0 if memory is None else memory.shape[1],
            "past": state.pool.entries.data_ptr(),
            "entries": state.pool.entries.shape[1],
            "used": state.pool.used,
            "lists": addresses["lists"],
            "list_stride": self.list_stride,
            "length": 1,
            "ids": addresses["newest"],
            **self.tables.addresses(),
            "logits": addresses["logits"],
        }

    def _select_arguments(self) -> dict[str, int]:
        """Return the initial arguments of the kernel function that selects each sentence's best continuations."""
        beam_size, output = self.bounds.beam_size, self.state.output
        return {name: self._addresses[name] for name in SelectArguments._fields if name in self._addresses} | {
            "rows": self.sentences,
            "vocabulary_size": output.outputs,
            "stride": output.padded_outputs,
            "beams": 1,
            "normalizer": 0,
            "eos_id": self.bounds.eos_id,
            "beam_size": beam_size,
            "scratch": self._addresses["select_scratch"],
            "scratch_per_thread": self._scratch_per_thread(),
            "rules": 0,
        }

    def _rule_arguments(self) -> dict[str, int]:
        """Return the initial arguments of the rules that the selection applies."""
        rules, penalties = self.bounds.rules, self.bounds.rules.penalties
        return {name: self._addresses[name] for name in RuleArguments._fields if name in self._addresses} | {
            "never_count": len(self.bounds.forbidden_tokens),
            "forbidden_count": len(rules.forbidden),
            "more_ends_count": len(rules.more_ends),
            "sums_ends": int(self.bounds.sampling is not None),
            "renormalizes": int(rules.renormalizes),
            "min_length": rules.min_length,
            "ngram": rules.no_repeated_ngrams,
            "penalizes": int(penalties is not None),
            "repetition": float_bits(1.0 if penalties is None else penalties.repetition),
            "frequency": float_bits(0.0 if penalties is None else penalties.frequency),
            "presence": float_bits(0.0 if penalties is None else penalties.presence),
            "penalizes_log_probabilities": int(self.bounds.beam_size > 1 and self.bounds.sampling is None),
            "before_stride": self.before_stride,
            "forced_count": self.forced_count,
            "certain_count": rules.certain_count,
            "forced_last": _FREE if rules.forced_last is None else rules.forced_last,
            "capacity": self.capacity,
            "length": 0,
        }

    def _ranking(self) -> str:
        """Return the rule that ranks hypotheses, one of `RANKINGS`."""
        if self.bounds.sampling is not None:
            return "sample"
        return self.bounds.rules.ranking if self.bounds.beam_size > 1 else "paper"

    def _draw_arguments(self) -> dict[str, int]:
        """Return the initial arguments of sampling; they are unused if nothing is drawn."""
        sampling, vocabulary_size = self.bounds.sampling, self.state.output.outputs
        if sampling is None:
            return dict.fromkeys(DrawArguments._fields, 0)
        return {name: self._addresses[name] for name in DrawArguments._fields if name in self._addresses} | {
            "uniform": sampling.uniform.data_ptr(),
            "steps": sampling.uniform.shape[1],
            "length": 0,
            "inverse_temperature": float_bits(1.0 / sampling.temperature),
            "top_k": min(sampling.top_k or vocabulary_size, vocabulary_size),
            "top_p": float_bits(sampling.top_p),
            "min_p": float_bits(sampling.min_p),
            "is_truncated": int(sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0),
            "tokens": self._addresses["drawn_tokens"],
            "logits": self._addresses["drawn_logits"],
        }

    def _search_arguments(self) -> dict[str, int]:
        """Return the initial arguments of the search kernel."""
        bounds = self.bounds
        return {name: self._addresses[name] for name in SearchArguments._fields if name in self._addresses} | {
            "steps": 0,
            "stop": 0,
            "sentences": self.sentences,
            "width": 1,
            "length": 0,
            "step": self.state.compiled.step.address,
            "step_arguments": ctypes.addressof(self._step.array),
            "select_arguments": ctypes.addressof(self._select.array),
            "rule_arguments": ctypes.addressof(self._rules.array),
            "is_read": int(isinstance(self.state, NativePromptState)),
            "is_ragged": int(isinstance(self.state, NativePromptState)),
            "list_stride": self.list_stride,
            "longest_prompt": self.longest_prompt,
            "draw_arguments": ctypes.addressof(self._draw.array),
            "ranking": RANKINGS.index(self._ranking()),
            "beam_size": bounds.beam_size,
            "certain_count": 0 if bounds.beam_size == 1 and bounds.sampling is None else bounds.n_best,
            "capacity": self.capacity,
            "positions": self.tables.length,
            "penalties": bounds.penalties.data_ptr(),
            "max_rows": self.rows,
            "all_sentences": self.sentences,
        }
