"""Emit a whole search as one kernel: decoder steps, selection of tokens, and bookkeeping of hypotheses.

It finds what `search.beam.BeamSearch` finds without rules, and with one hypothesis what greedy search finds.

Legend: N sentences at first, B of them still decoded, W hypotheses of each, T capacity in tokens per hypothesis, t
tokens so far, D model width.
"""

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.model.native.emit import F32, F64, I32, I64, POINTER, Emitter, Value
from transduce.model.native.engine import Program, compile_programs, entry, find_tile, new_emitter
from transduce.model.native.model_writer import Places
from transduce.model.native.reductions import SelectPlaces, write_select

_NEVER = float("-inf")


class SearchPlaces(NamedTuple):
    """Arguments of the search kernel: addresses, unless stated otherwise.

    Those before `step` change during the search.
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
    pieces: Any
    """The hypotheses' tokens, int32 (B × W, T)."""
    values: Any
    """The tokens' log-probabilities, float32 (B × W, T)."""
    next_pieces: Any
    """A second buffer for `pieces`, swapped at each step."""
    next_values: Any
    """A second buffer for `values`, swapped at each step."""
    lists: Any
    """The hypotheses' cache entries: `Places.lists` of the step, int32 (B × W, T + 1)."""
    next_lists: Any
    """A second buffer for `lists`, swapped at each step."""
    step: Any
    """The address of the decoder step's kernel."""
    step_places: Any
    """The decoder step's arguments, `model_writer.Places`."""
    select_places: Any
    """The selection's arguments, `reductions.SelectPlaces`."""
    beam_size: Any
    """The beam size W."""
    certain: Any
    """The number of hypotheses that must be certain before a sentence is done; 0: one finished hypothesis ends it."""
    room: Any
    """The capacity in tokens T."""
    positions: Any
    """The number of positions in the step's tables."""
    never: Any
    """Token ids that are never generated, int64."""
    nevers: Any
    """The number of token ids in `never`."""
    newest: Any
    """The last token of each hypothesis, int64 (B × W,)."""
    row_sources: Any
    """The offset of each hypothesis' source, int64 (B × W,), and, `most_rows` elements later, its number of tokens."""
    most_rows: Any
    """The number of elements between the two arrays in `row_sources`."""
    sources: Any
    """The offset of each sentence's source, and its number of tokens, int64 (2, N)."""
    all_sentences: Any
    """The number of sentences at first N."""
    places: Any
    """Each sentence's index in the input batch, int64 (B,)."""
    longest: Any
    """Each sentence's greatest number of tokens, int64 (B,)."""
    greatest_penalties: Any
    """The length penalty at each sentence's greatest length, float32 (B,)."""
    penalties: Any
    """The length penalty of n tokens, float64 (T + 2,)."""
    found: Any
    """The number of finished hypotheses by index in the input batch, int64 (N,)."""
    order: Any
    """The slots of a sentence's finished hypotheses, best first, then the free slot, int64 (N, W + 1)."""
    found_scores: Any
    """Scores of finished hypotheses by slot, float64 (N, W + 1)."""
    found_lengths: Any
    """Lengths of finished hypotheses by slot, int64 (N, W + 1)."""
    found_ended: Any
    """Whether finished hypotheses end with the end symbol (1) or were cut off (0), by slot, int64 (N, W + 1)."""
    found_pieces: Any
    """Tokens of finished hypotheses by slot, int32 (N, W + 1, T)."""
    found_values: Any
    """Log-probabilities of these tokens, float32 (N, W + 1, T)."""


@cache
def search_program() -> Program:
    """Compile the search kernel."""
    tile = find_tile()
    assert tile is not None
    k = new_emitter("search", tile)
    write_select(k)
    _write_record(k)
    _write_update(k)
    with entry(k, "search") as (numbers, thread, threads):
        fields = Fields(k, numbers)
        with k.until() as done:
            k.call_at(fields.get("step"), k.place(fields.get("step_places")), thread, threads)
            _forbid(fields, thread, threads)
            k.call("select", k.place(fields.get("select_places")), thread, threads)
            k.barrier(threads)
            with k.where(k.build.icmp_signed("==", thread, k.number(0))):
                k.call("go_on", numbers)
            k.barrier(threads)
            done(k.build.icmp_signed("!=", fields.get("stop"), k.number(0)))
    return compile_programs(k, ("search",))["search"]


class Fields:
    """Named access to kernel arguments in memory, for emitted code."""

    def __init__(self, k: Emitter, place: Value, names: tuple[str, ...] = SearchPlaces._fields) -> None:
        self.k = k
        self.place = place
        self.names = names

    def get(self, name: str) -> Value:
        """Load an argument."""
        return self.k.load(self._at(name), I64)

    def set(self, name: str, value: Value) -> None:
        """Store an argument."""
        self.k.store(self.k.number(value), self._at(name))

    def at(self, name: str, index: Value, kind: Any = F32) -> Value:
        """Return a pointer to an element of the array whose address is an argument."""
        return self.k.at(self.k.place(self.get(name)), index, kind)

    def element(self, name: str, index: Value, kind: Any = F32) -> Value:
        """Load an element of the array whose address is an argument."""
        return self.k.load(self.at(name, index, kind), kind)

    def swap(self, one: str, other: str) -> None:
        """Exchange two arguments."""
        first, second = self.get(one), self.get(other)
        self.set(one, second)
        self.set(other, first)

    def _at(self, name: str) -> Value:
        """Return a pointer to an argument."""
        return self.k.at(self.place, self.names.index(name), I64)


def _forbid(fields: Fields, thread: Value, threads: Value) -> None:
    """Set the logits of tokens that are never generated to -inf.

    Each thread does so for the sentences that it selects tokens for next.
    """
    k = fields.k
    select = Fields(k, k.place(fields.get("select_places")), SelectPlaces._fields)
    first, last = k.share(fields.get("sentences"), thread, threads)
    width = fields.get("width")
    with k.loop(k.times(first, width), k.times(last, width)) as row:
        logits = select.at("logits", k.times(row, select.get("stride")))
        with k.loop(0, fields.get("nevers")) as number:
            k.store(k.real(_NEVER), k.at(logits, fields.element("never", number, I64)))


def _write_record(k: Emitter) -> None:
    """Emit `record(numbers, place, row, token, value, ended)`, which stores a finished hypothesis if it is good enough.

    The hypothesis is `row` extended by a token with log-probability `value`; `place` is its sentence's index in the
    input batch.
    """
    with k.function("record", POINTER, I64, I64, I64, F32, I64) as (numbers, index, row, token, value, ended):
        fields = Fields(k, numbers)
        length, capacity = fields.get("length"), fields.get("room")
        history = k.times(row, capacity)
        # Summed in order and in float64, as the search in Python does.
        total = k.variable(ir.Constant(F64, 0.0))
        with k.loop(0, length) as number:
            token_value = k.build.fpext(fields.element("values", k.sum_of(history, number)), F64)
            k.store(k.build.fadd(k.build.load(total, typ=F64), token_value), total)
        full_total = k.build.fadd(k.build.load(total, typ=F64), k.build.fpext(value, F64))
        new_length = k.sum_of(length, 1)
        score = k.build.fdiv(full_total, fields.element("penalties", new_length, F64))
        slots = k.sum_of(fields.get("beam_size"), 1)
        base, count = k.times(index, slots), fields.element("found", index, I64)
        rank = _rank(fields, (base, count), (score, ended))
        with k.where(k.build.icmp_signed("<", rank, fields.get("beam_size"))):
            slot = fields.element("order", k.sum_of(base, count), I64)
            slot_index = k.sum_of(base, slot)
            k.store(score, fields.at("found_scores", slot_index, F64))
            k.store(new_length, fields.at("found_lengths", slot_index, I64))
            k.store(ended, fields.at("found_ended", slot_index, I64))
            target = k.times(slot_index, capacity)
            k.copy(fields.at("pieces", history, I32), fields.at("found_pieces", target, I32), length)
            k.copy(fields.at("values", history), fields.at("found_values", target), length)
            k.store(k.build.trunc(token, I32), fields.at("found_pieces", k.sum_of(target, length), I32))
            k.store(value, fields.at("found_values", k.sum_of(target, length)))
            # Move the slots of worse hypotheses back; the last of W + 1 slots is the free one.
            with k.loop(0, k.build.sub(count, rank)) as number:
                to = k.sum_of(base, k.build.sub(count, number))
                k.store(fields.element("order", k.sum_of(to, -1), I64), fields.at("order", to, I64))
            k.store(slot, fields.at("order", k.sum_of(base, rank), I64))
            has_free_slot = k.build.icmp_signed("<", count, fields.get("beam_size"))
            k.store(k.sum_of(count, k.build.zext(has_free_slot, I64)), fields.at("found", index, I64))


def _rank(fields: Fields, ranking: tuple[Value, Value], new: tuple[Value, Value]) -> Value:
    """Return how many finished hypotheses are not worse than a new one; those that ended rank before those cut off."""
    k, (base, count), (score, ended) = fields.k, ranking, new
    rank = k.variable(k.number(0))
    with k.loop(0, count) as number:
        slot_index = k.sum_of(base, fields.element("order", k.sum_of(base, number), I64))
        other_ended = fields.element("found_ended", slot_index, I64)
        worse = k.build.fcmp_ordered("<", fields.element("found_scores", slot_index, F64), score)
        same_kind = k.build.icmp_signed("==", other_ended, ended)
        stays = k.build.or_(k.build.icmp_signed(">", other_ended, ended), k.build.and_(same_kind, k.build.not_(worse)))
        k.store(k.sum_of(k.get(rank, count), k.build.zext(stays, I64)), rank)
    return k.get(rank, count)


def _write_update(k: Emitter) -> None:
    """Emit `go_on(numbers)`, which updates the hypotheses after a selection and sets the next step's arguments.

    It records hypotheses that end, removes sentences that are done, and appends the selected tokens to the others.
    """
    with k.function("go_on", POINTER) as (numbers,):
        fields = Fields(k, numbers)
        select = Fields(k, k.place(fields.get("select_places")), SelectPlaces._fields)
        beam_size, new_length = fields.get("beam_size"), k.sum_of(fields.get("length"), 1)
        rows = k.times(fields.get("sentences"), fields.get("width"))
        kept_count = k.variable(k.number(0))
        with k.loop(0, fields.get("sentences")) as sentence:
            index = fields.element("places", sentence, I64)
            _record_ended(fields, select, sentence, index)
            first = k.times(sentence, beam_size)
            with k.where(_may_improve(fields, select, sentence, index)):
                full = k.build.icmp_signed("<=", fields.element("longest", sentence, I64), new_length)
                with k.build.if_else(full) as (then, otherwise):
                    with then, k.loop(first, k.sum_of(first, beam_size)) as chosen:
                        _record(fields, select, "live", (sentence, index, chosen), ended=False)
                    with otherwise:
                        to = k.get(kept_count, sentence)
                        _keep_sentence(fields, sentence, to)
                        with k.loop(0, beam_size) as number:
                            new_row = k.sum_of(k.times(to, beam_size), number)
                            _extend(fields, select, (sentence, to), k.sum_of(first, number), new_row)
                        k.store(k.sum_of(to, 1), kept_count)
        for name in ("pieces", "values", "lists"):
            fields.swap(name, f"next_{name}")
        _set_next(fields, select, k.get(kept_count, rows), rows)


def _record_ended(fields: Fields, select: Fields, sentence: Value, index: Value) -> None:
    """Record the candidates that end."""
    k = fields.k
    candidates = k.times(fields.get("beam_size"), 2)
    first = k.times(sentence, candidates)
    with k.loop(first, k.sum_of(first, candidates)) as candidate:
        _record(fields, select, "ended", (sentence, index, candidate), ended=True)


def _record(fields: Fields, select: Fields, kind: str, numbers: tuple[Value, ...], *, ended: bool) -> None:
    """Record a candidate if there is one at this index."""
    k, (sentence, index, candidate) = fields.k, numbers
    total = select.element(f"{kind}_totals", candidate)
    with k.where(k.build.fcmp_ordered(">", total, k.real(_NEVER))):
        parent = select.element(f"{kind}_parents", candidate, I64)
        row = k.sum_of(k.times(sentence, fields.get("width")), parent)
        token = select.element(f"{kind}_pieces", candidate, I64)
        value = select.element(f"{kind}_scores", candidate)
        k.call("record", fields.place, index, row, token, value, k.number(int(ended)))


def _may_improve(fields: Fields, select: Fields, sentence: Value, index: Value) -> Value:
    """Return whether a live hypothesis can still enter the certain ones; in greedy search, whether none has ended."""
    k, beam_size, certain = fields.k, fields.get("beam_size"), fields.get("certain")
    best, first = k.variable(k.real(_NEVER)), k.times(sentence, beam_size)
    with k.loop(first, k.sum_of(first, beam_size)) as number:
        total, best_so_far = select.element("live_totals", number), k.get(best, k.real(0.0))
        k.store(k.greater(total, best_so_far), best)
    threshold, count = k.variable(k.real(_NEVER)), fields.element("found", index, I64)
    has_enough = k.build.and_(k.build.icmp_signed(">=", count, certain), k.build.icmp_signed(">", certain, k.number(0)))
    with k.where(has_enough):
        base = k.times(index, k.sum_of(beam_size, 1))
        slot = fields.element("order", k.sum_of(base, certain, -1), I64)
        score = fields.element("found_scores", k.sum_of(base, slot), F64)
        k.store(k.build.fptrunc(score, F32), threshold)
    live = k.get(best, k.real(0.0))
    bound = k.build.fdiv(live, fields.element("greatest_penalties", sentence))
    better = k.build.and_(
        k.build.fcmp_ordered(">", live, k.real(_NEVER)), k.build.fcmp_ordered(">", bound, k.get(threshold, live))
    )
    none_ended = k.build.icmp_signed("==", count, k.number(0))
    return k.build.select(k.build.icmp_signed("==", certain, k.number(0)), none_ended, better)


def _keep_sentence(fields: Fields, sentence: Value, to: Value) -> None:
    """Move a sentence's data to its new index, which is not greater."""
    k = fields.k
    for name, kind in (("places", I64), ("longest", I64), ("greatest_penalties", F32)):
        k.store(fields.element(name, sentence, kind), fields.at(name, to, kind))
    for part in (k.number(0), fields.get("all_sentences")):
        k.store(fields.element("sources", k.sum_of(part, sentence), I64), fields.at("sources", k.sum_of(part, to), I64))


def _extend(fields: Fields, select: Fields, sentences: tuple[Value, Value], chosen: Value, new_row: Value) -> None:
    """Copy a live hypothesis' parent and append the selected token."""
    k, (sentence, to) = fields.k, sentences
    length, capacity = fields.get("length"), fields.get("room")
    row = k.sum_of(k.times(sentence, fields.get("width")), select.element("live_parents", chosen, I64))
    old, new = k.times(row, capacity), k.times(new_row, capacity)
    k.copy(fields.at("pieces", old, I32), fields.at("next_pieces", new, I32), length)
    k.copy(fields.at("values", old), fields.at("next_values", new), length)
    token, end = select.element("live_pieces", chosen, I64), k.sum_of(new, length)
    k.store(k.build.trunc(token, I32), fields.at("next_pieces", end, I32))
    k.store(select.element("live_scores", chosen), fields.at("next_values", end))
    stride = k.sum_of(capacity, 1)
    entries, new_entries = k.times(row, stride), k.times(new_row, stride)
    k.copy(fields.at("lists", entries, I32), fields.at("next_lists", new_entries, I32), k.sum_of(length, 1))
    k.store(token, fields.at("newest", new_row, I64))
    k.store(select.element("live_totals", chosen), select.at("scores", new_row))
    for start, of_row in ((k.number(0), k.number(0)), (fields.get("all_sentences"), fields.get("most_rows"))):
        source = fields.element("sources", k.sum_of(start, to), I64)
        k.store(source, fields.at("row_sources", k.sum_of(of_row, new_row), I64))


def _set_next(fields: Fields, select: Fields, sentences: Value, old_rows: Value) -> None:
    """Set the arguments of the next step, and whether to stop."""
    k = fields.k
    step = Fields(k, k.place(fields.get("step_places")), Places._fields)
    beam_size, length = fields.get("beam_size"), k.sum_of(fields.get("length"), 1)
    rows, used = k.times(sentences, beam_size), k.sum_of(step.get("used"), old_rows)
    steps = k.sum_of(fields.get("steps"), -1)
    for name, value in (("sentences", sentences), ("width", beam_size), ("length", length), ("steps", steps)):
        fields.set(name, value)
    select.set("rows", rows)
    select.set("beams", beam_size)
    for name, value in (
        ("rows", rows),
        ("used", used),
        ("length", k.sum_of(length, 1)),
        ("lists", fields.get("lists")),
    ):
        step.set(name, value)
    ends = (
        k.build.icmp_signed("==", sentences, k.number(0)),
        k.build.icmp_signed("<=", steps, k.number(0)),
        k.build.icmp_signed(">", k.sum_of(used, rows), step.get("entries")),
        k.build.icmp_signed(">=", length, fields.get("positions")),
    )
    stop = ends[0]
    for end in ends[1:]:
        stop = k.build.or_(stop, end)
    fields.set("stop", k.build.zext(stop, I64))
