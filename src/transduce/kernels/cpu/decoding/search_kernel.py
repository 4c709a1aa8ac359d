"""Emit the kernel that runs a whole search: decoder steps, selection of tokens, and bookkeeping of hypotheses.

The kernel implements the algorithms of `search.beam.BeamSearch` and `search.beam.GenerateSearch`, greedy search, and
sampling.

Legend: N sentences at first, B of them still decoded, W hypotheses of each, T capacity in tokens per hypothesis, t
tokens so far.
"""

from functools import cache, reduce
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.decoding.writer import StepArguments
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    compile_kernels,
    raw_kernel,
    require_integer_tile,
)
from transduce.kernels.cpu.jit.ir_builder import F32, F64, I32, I64, POINTER, Fields, KernelBuilder, Value, outlined
from transduce.kernels.cpu.selection import RuleArguments, SelectArguments, emit_draw, emit_select

_MINUS_INFINITY = float("-inf")
RANKINGS = ("paper", "full", "likely", "never", "sample")
"""The names of the rules that rank hypotheses: those of `SearchRules.ranking`, and `sample`.

The kernel uses their indices in this tuple.
"""


class SearchArguments(NamedTuple):
    """Arguments of the kernel that runs a whole search: addresses, unless stated otherwise.

    The fields before `step` change during the search.
    """

    steps: Any
    """The number of search steps left in this call of the kernel."""
    max_unfinished: Any
    """The number of unfinished sentences at which the call ends: 0, unless other sentences are to join the batch."""
    stop: Any
    """Not 0 once the call ends: enough sentences are finished, no steps are left, or a buffer is full."""
    sentences: Any
    """The number of sentences B that are still decoded."""
    width: Any
    """The number of hypotheses of each sentence: 1 at first, then W."""
    length: Any
    """The number of search steps so far; hypotheses have as many tokens unless their sentence joined later."""
    tokens: Any
    """Address of the hypotheses' tokens, int32 (B × W, T)."""
    values: Any
    """Address of the log-probabilities of the hypotheses' tokens, float32 (B × W, T)."""
    next_tokens: Any
    """Address of the buffer to which a step writes the hypotheses' new tokens, then swapped with `tokens`."""
    next_values: Any
    """Address of the buffer to which a step writes the tokens' log-probabilities, then swapped with `values`."""
    lists: Any
    """Address of the hypotheses' lists of key/value cache entries, int32 (B × W, `list_stride`)."""
    next_lists: Any
    """Address of the buffer to which a step writes the hypotheses' new lists of entries, then swapped with `lists`."""
    step: Any
    """The address of the machine code of the decoder step, which the search kernel calls."""
    step_arguments: Any
    """Address of the decoder step's arguments, `writer.StepArguments`."""
    select_arguments: Any
    """Address of the selection's arguments, `selection.SelectArguments`."""
    rule_arguments: Any
    """Address of the arguments of the rules on tokens, `selection.RuleArguments`."""
    is_read: Any
    """1 before the first selection of a decoder-only model, for which the prompts' logits are there already; else 0."""
    is_ragged: Any
    """1 in decoder-only models, whose hypotheses have lists of different lengths, counted in `sources`; else 0."""
    list_stride: Any
    """The number of elements from one hypothesis' list of cache entries to the next hypothesis' list."""
    first_position: Any
    """The last position of the longest prompt, to which each step adds one; 0 in encoder-decoder models."""
    draw_arguments: Any
    """Address of the arguments of sampling, `selection.DrawArguments`."""
    ranking: Any
    """The index in `RANKINGS` of the rule that ranks hypotheses and ends a sentence; greedy search has the first."""
    beam_size: Any
    """The number of hypotheses W that the search keeps of each sentence."""
    certain_count: Any
    """The number of best finished hypotheses that must be final: no live hypothesis can still displace them.

    Then the sentence is done. 0: a sentence is done once it has a finished hypothesis, as in greedy search.
    """
    capacity: Any
    """The capacity T of a hypothesis in tokens."""
    positions: Any
    """The number of positions in the decoder step's position tables; the call ends before a step exceeds them."""
    newest: Any
    """Address of the last token of each hypothesis, int64 (B × W,), which the next decoder step reads."""
    row_sources: Any
    """Address of the offset of each hypothesis' source, int64 (B × W,).

    The numbers of source tokens follow `max_rows` elements later.
    """
    max_rows: Any
    """The number of elements in `row_sources` from the array of offsets to the array of numbers of tokens."""
    sources: Any
    """Address of int64 (2, N): each sentence's source offset, and its number of source tokens.

    In decoder-only models, the number is that of the prompt and the tokens so far, with the one that the next step
    reads.
    """
    all_sentences: Any
    """The number of sentences N that the arrays have space for."""
    indices: Any
    """Address of the index, in the input batch, of each sentence that is still decoded, int64 (B,)."""
    joined: Any
    """Address of the number of steps before each sentence joined the batch, int64 (B,)."""
    max_lengths: Any
    """Address of the greatest number of tokens that each sentence may get, int64 (B,)."""
    starts: Any
    """Address of how many first tokens of each hypothesis are context, int64 (N,), by index in the input batch."""
    greatest_penalties: Any
    """Address of the length penalty at each sentence's greatest length, float32 (B,)."""
    penalties: Any
    """Address of the length penalty of n tokens, without context, at index n, float64 (T + 2,)."""
    finished_counts: Any
    """Address of the number of finished hypotheses of each sentence, int64 (N,), by index in the input batch."""
    order: Any
    """Address of the slots of a sentence's finished hypotheses, best first, then the free slot, int64 (N, W + 1).

    A slot is an index into the `finished_…` arrays, which keep the W best hypotheses, and one that is being written.
    """
    finished_scores: Any
    """Address of the scores of finished hypotheses by slot, float64 (N, W + 1)."""
    finished_lengths: Any
    """Address of the lengths, in tokens, of finished hypotheses by slot, int64 (N, W + 1)."""
    finished_ended: Any
    """Address of flags by slot, int64 (N, W + 1): 1 for hypotheses that end with the end symbol, 0 if cut off."""
    finished_tokens: Any
    """Address of the tokens of finished hypotheses by slot, int32 (N, W + 1, T)."""
    finished_values: Any
    """Address of the log-probabilities of finished hypotheses' tokens by slot, float32 (N, W + 1, T)."""


@cache
def search_kernel() -> CompiledKernel:
    """Return the compiled kernel that runs decoder steps and token selection in a loop; it serves all models."""
    return compile_kernels("search", require_integer_tile(), ("search",), _emit_search)["search"]


@outlined
def _emit_search(k: KernelBuilder) -> None:
    """Emit the kernel `search`, and the functions that it calls."""
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
                k.call("update", numbers)
            k.barrier(threads)
            done(k.build.icmp_signed("!=", fields.get("stop"), k.int64(0)))


def _write_record(k: KernelBuilder) -> None:
    """Emit `record(numbers, index, row, token, value, ended, own)`: store a finished hypothesis if it is good enough.

    `numbers` points to the `SearchArguments`. The hypothesis is `row` extended by a token with log-probability `value`;
    `index` is its sentence's index in the input batch, and `ended` is 1 if the token is the end symbol, else 0. Each
    sentence keeps its W best hypotheses. In sampling, hypotheses are not ranked by score: the rank is `own`, the index
    of the sample among the sentence's samples.
    """
    with k.function("record", POINTER, I64, I64, I64, F32, I64, I64) as (numbers, index, row, token, value, ended, own):
        fields = Fields(k, numbers, SearchArguments._fields)
        length = _length_of(fields, k.build.sdiv(row, fields.get("width")))
        capacity = fields.get("capacity")
        history = k.mul(row, capacity)
        # Summed in order and in float64, as the search in Python does.
        total = k.variable(ir.Constant(F64, 0.0))
        with k.loop(0, length) as number:
            k.accumulate(total, k.build.fpext(fields.element("values", k.add(history, number)), F64), k.build.fadd)
        full_total = k.build.fadd(k.build.load(total, typ=F64), k.build.fpext(value, F64))
        new_length = k.add(length, 1)
        score = k.build.fdiv(full_total, _penalty_of(fields, index, new_length))
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


def _length_of(fields: Fields, sentence: Value) -> Value:
    """Return (an IR value) the number of tokens so far of each hypothesis of a sentence."""
    return fields.k.build.sub(fields.get("length"), fields.element("joined", sentence, I64))


def _penalty_of(fields: Fields, index: Value, length: Value) -> Value:
    """Return (an IR value) the length penalty of a hypothesis of `length` tokens, a float64.

    `index` is its sentence's index in the input batch. Context tokens do not count.
    """
    own_length = fields.k.build.sub(length, fields.element("starts", index, I64))
    return fields.element("penalties", own_length, F64)


def _rank(fields: Fields, ranking: tuple[Value, Value], new: tuple[Value, Value]) -> Value:
    """Return (an IR value) how many finished hypotheses of a sentence rank before a new hypothesis.

    With the ranking of Hugging Face's `generate`, and in sampling, only scores count. Otherwise all hypotheses with the
    end symbol rank before those that were cut off, and scores decide among hypotheses of the same kind.

    `ranking` has the index of the sentence's first slot, and the number of its finished hypotheses. `new` has the new
    hypothesis' score, and 1 if it has the end symbol, else 0.
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
        k.accumulate(rank, k.build.zext(stays, I64), k.add)
    return k.load_variable(rank)


def _has_generate_ranking(fields: Fields) -> Value:
    """Return the condition (an IR value) that finished hypotheses rank by score alone.

    The condition holds with the ranking of Hugging Face's `generate`, and in sampling.
    """
    return fields.k.build.icmp_signed("!=", fields.get("ranking"), fields.k.int64(RANKINGS.index("paper")))


def _is_sampling(fields: Fields) -> Value:
    """Return the condition (an IR value) that the search draws tokens at random instead of ranking them."""
    return fields.k.build.icmp_signed("==", fields.get("ranking"), fields.k.int64(RANKINGS.index("sample")))


def _write_update(k: KernelBuilder) -> None:
    """Emit `update(numbers)`, which updates the hypotheses after a selection and sets the next step's arguments.

    The function records hypotheses that end, removes sentences that are done, and appends the selected tokens to the
    others.
    """
    with k.function("update", POINTER) as (numbers,):
        fields = Fields(k, numbers, SearchArguments._fields)
        select = Fields(k, k.pointer(fields.get("select_arguments")), SelectArguments._fields)
        beam_size = fields.get("beam_size")
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
                new_length = k.add(_length_of(fields, sentence), 1)
                full = k.build.icmp_signed("<=", fields.element("max_lengths", sentence, I64), new_length)
                with k.build.if_else(k.build.or_(full, k.build.not_(may_improve))) as (then, otherwise):
                    with then:
                        # In `generate`, the hypotheses that end and those that are cut share W slots.
                        number_ended = k.load_variable(ended_count)
                        taken = k.build.select(_has_generate_ranking(fields), number_ended, k.int64(0))
                        with k.loop(first, k.build.sub(k.add(first, beam_size), taken)) as chosen:
                            _record(fields, select, "live", (sentence, index, chosen), ended=False)
                    with otherwise:
                        to = k.load_variable(kept_count)
                        _keep_sentence(fields, sentence, to)
                        with k.loop(0, beam_size) as number:
                            new_row = k.add(k.mul(to, beam_size), number)
                            _extend(fields, select, (sentence, to), k.add(first, number), new_row)
                        k.store(k.add(to, 1), kept_count)
        for name in ("tokens", "values", "lists"):
            fields.swap(name, f"next_{name}")
        _set_next(fields, select, k.load_variable(kept_count), rows)


def _record_ended(fields: Fields, select: Fields, sentence: Value, index: Value) -> Value:
    """Emit the recording of a sentence's candidates that end with the end symbol; return their number.

    `index` is the sentence's index in the input batch.
    """
    k = fields.k
    candidates = k.mul(fields.get("beam_size"), 2)
    first, ended = k.mul(sentence, candidates), k.variable(k.int64(0))
    with k.loop(first, k.add(first, candidates)) as candidate:
        exists = k.build.fcmp_ordered(">", select.element("ended_totals", candidate), k.float32(_MINUS_INFINITY))
        k.accumulate(ended, k.build.zext(exists, I64), k.add)
        _record(fields, select, "ended", (sentence, index, candidate), ended=True)
    return k.load_variable(ended)


def _record(fields: Fields, select: Fields, prefix: str, numbers: tuple[Value, ...], *, ended: bool) -> None:
    """Emit the recording of a selected candidate as a finished hypothesis.

    A candidate whose total log-probability is -inf is an empty slot, and is not recorded. In sampling every candidate
    is recorded, as -inf marks samples that have ended.

    The candidates are in the arrays of `select` whose names begin with `prefix`, "live" or "ended". `numbers` has the
    sentence's index in the batch, its index in the input batch, and the candidate's index. `ended` says whether the
    candidate ends with the end symbol.
    """
    k, (sentence, index, candidate) = fields.k, numbers
    total = select.element(f"{prefix}_totals", candidate)
    exists = k.build.fcmp_ordered(">", total, k.float32(_MINUS_INFINITY))
    with k.when(k.build.or_(exists, _is_sampling(fields))):
        parent = select.element(f"{prefix}_parents", candidate, I64)
        row = k.add(k.mul(sentence, fields.get("width")), parent)
        token = select.element(f"{prefix}_tokens", candidate, I64)
        value = select.element(f"{prefix}_scores", candidate)
        own = k.build.sub(candidate, k.mul(sentence, fields.get("beam_size")))
        k.call("record", fields.pointer, index, row, token, value, k.int64(int(ended)), own)


def _may_improve(fields: Fields, select: Fields, sentence: Value, index: Value) -> Value:
    """Return the condition (an IR value) under which the search of a sentence continues.

    In greedy search no hypothesis may have ended. In sampling, and with the ranking of `generate`, the condition is
    that of `_may_improve_as_in_generate`. Otherwise a live hypothesis must still be able to enter the best
    `certain_count` finished hypotheses.

    `index` is the sentence's index in the input batch.
    """
    k, beam_size, certain_count = fields.k, fields.get("beam_size"), fields.get("certain_count")
    best, first = k.variable(k.float32(_MINUS_INFINITY)), k.mul(sentence, beam_size)
    with k.loop(first, k.add(first, beam_size)) as number:
        k.accumulate(best, select.element("live_totals", number), k.maximum)
    threshold, count = k.variable(k.float32(_MINUS_INFINITY)), fields.element("finished_counts", index, I64)
    has_enough = k.build.and_(
        k.build.icmp_signed(">=", count, certain_count), k.build.icmp_signed(">", certain_count, k.int64(0))
    )
    with k.when(has_enough):
        base = k.mul(index, k.add(beam_size, 1))
        slot = fields.element("order", k.add(base, certain_count, -1), I64)
        score = fields.element("finished_scores", k.add(base, slot), F64)
        k.store(k.build.fptrunc(score, F32), threshold)
    live = k.load_variable(best)
    bound = k.build.fdiv(live, fields.element("greatest_penalties", sentence))
    better = k.build.and_(
        k.build.fcmp_ordered(">", live, k.float32(_MINUS_INFINITY)),
        k.build.fcmp_ordered(">", bound, k.load_variable(threshold)),
    )
    better = k.build.select(
        _has_generate_ranking(fields), _may_improve_as_in_generate(fields, sentence, index, live), better
    )
    none_ended = k.build.icmp_signed("==", count, k.int64(0))
    return k.build.select(k.build.icmp_signed("==", certain_count, k.int64(0)), none_ended, better)


def _may_improve_as_in_generate(fields: Fields, sentence: Value, index: Value, best: Value) -> Value:
    """Return the condition (an IR value) to continue a sentence, as in Hugging Face's `generate`.

    The condition is that of `search.beam.GenerateSearch`. `best` is the total log-probability of the best live
    hypothesis.
    """
    k, beam_size, ranking = fields.k, fields.get("beam_size"), fields.get("ranking")
    is_never = k.build.icmp_signed("==", ranking, k.int64(RANKINGS.index("never")))
    length = k.build.select(
        is_never, fields.element("max_lengths", sentence, I64), k.add(_length_of(fields, sentence), 1)
    )
    bound = k.build.fdiv(k.build.fpext(best, F64), _penalty_of(fields, index, length))
    count, base = fields.element("finished_counts", index, I64), k.mul(index, k.add(beam_size, 1))
    slot = fields.element("order", k.add(base, beam_size, -1), I64)  # of the worst of W finished hypotheses
    beats_worst = k.build.fcmp_ordered(">", bound, fields.element("finished_scores", k.add(base, slot), F64))
    is_full = k.build.icmp_signed("==", ranking, k.int64(RANKINGS.index("full")))
    exists = k.build.fcmp_ordered(">", best, k.float32(_MINUS_INFINITY))
    beats_worst = k.build.and_(beats_worst, k.build.not_(is_full))
    return k.build.select(k.build.icmp_signed("<", count, beam_size), exists, beats_worst)


def _keep_sentence(fields: Fields, sentence: Value, to: Value) -> None:
    """Emit the move of an unfinished sentence's data to index `to` of the batch.

    `to` is at most the sentence's current index, so that finished sentences leave no gap.
    """
    k = fields.k
    for name, kind in (("indices", I64), ("joined", I64), ("max_lengths", I64), ("greatest_penalties", F32)):
        k.store(fields.element(name, sentence, kind), fields.at(name, to, kind))
    for part, more in ((k.int64(0), k.int64(0)), (fields.get("all_sentences"), fields.get("is_ragged"))):
        source = fields.element("sources", k.add(part, sentence), I64)
        k.store(k.add(source, more), fields.at("sources", k.add(part, to), I64))


def _extend(fields: Fields, select: Fields, sentences: tuple[Value, Value], chosen: Value, new_row: Value) -> None:
    """Emit a live hypothesis' new row: a copy of its parent's tokens and cache entries, and the selected token.

    `sentences` are the sentence's old and new index in the batch, and `chosen` is the index of the selected candidate.
    """
    k, (sentence, to) = fields.k, sentences
    length, capacity = _length_of(fields, to), fields.get("capacity")
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
    """Emit the arguments of the next decoder step, and the flag that ends the kernel's call.

    `sentences` is the number of sentences that go on, and `old_rows` the number of hypotheses before the step.
    """
    k = fields.k
    step = Fields(k, k.pointer(fields.get("step_arguments")), StepArguments._fields)
    beam_size, length = fields.get("beam_size"), k.add(fields.get("length"), 1)
    appended = k.build.select(k.is_nonzero(fields.get("is_read")), k.int64(0), old_rows)
    rows, used = k.mul(sentences, beam_size), k.add(step.get("used"), appended)
    steps = k.add(fields.get("steps"), -1)
    fields.set(is_read=0, sentences=sentences, width=beam_size, length=length, steps=steps)
    select.set(rows=rows, beams=beam_size)
    rules = Fields(k, k.pointer(fields.get("rule_arguments")), RuleArguments._fields)
    rules.set(length=length, tokens=fields.get("tokens"))
    step.set(rows=rows, used=used, length=k.add(length, 1), lists=fields.get("lists"))
    ends = (
        k.build.icmp_signed("<=", sentences, fields.get("max_unfinished")),
        k.build.icmp_signed("<=", steps, k.int64(0)),
        k.build.icmp_signed(">", k.add(used, rows), step.get("entries")),
        k.build.icmp_signed(">=", k.add(length, fields.get("first_position")), fields.get("positions")),
    )
    fields.set(stop=k.build.zext(reduce(k.build.or_, ends), I64))
