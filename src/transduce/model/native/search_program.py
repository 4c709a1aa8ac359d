"""A whole search in machine code: steps of a model, choices, and what becomes of the hypotheses, until all is found.

What it finds is what `search.beam.BeamSearch` finds without rules, and with one hypothesis, what greedy search finds.
Legend: N sentences at first, B of them still decoded, W hypotheses of each, T pieces there is room for, t pieces so
far, D model width.
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
    """The numbers of a search: addresses, where nothing else is said. Those of the first group change as it goes on."""

    steps: Any
    """A number: how many more may be done in this call."""
    stop: Any
    """A number: not 0 once the call ends. There is nothing left to do, or no more room."""
    sentences: Any
    """A number: B."""
    width: Any
    """A number: hypotheses of each sentence, 1 at first and then W."""
    length: Any
    """A number: t."""
    pieces: Any
    """What hypotheses hold, int32 (B × W, T)."""
    values: Any
    """Log-probabilities of that, (B × W, T)."""
    next_pieces: Any
    """Room for the same after the step, as the next two."""
    next_values: Any
    lists: Any
    """`Places.lists` of the step, int32 (B × W, T + 1)."""
    next_lists: Any
    step: Any
    """The program of a step. From here on nothing changes."""
    step_places: Any
    """Its numbers, `Places`."""
    select_places: Any
    """Those of the choice, `SelectPlaces`."""
    beam_size: Any
    """A number: W."""
    certain: Any
    """A number: how many hypotheses must be certain before a sentence is done; 0: it is done once one has ended."""
    room: Any
    """A number: T."""
    positions: Any
    """A number: how many the step knows, in its tables."""
    never: Any
    """Pieces that are never written, int64."""
    nevers: Any
    """A number: how many."""
    newest: Any
    """The newest piece of each hypothesis, int64 (B × W,)."""
    row_sources: Any
    """Where each hypothesis' source begins, int64 (B × W,), and how many pieces it has, int64 (B × W,)."""
    most_rows: Any
    """A number: from the one to the other."""
    sources: Any
    """The same of each sentence, int64 (2, N)."""
    all_sentences: Any
    """A number: N."""
    places: Any
    """Each sentence's place in the input, int64 (B,)."""
    longest: Any
    """The greatest number of pieces of each, int64 (B,)."""
    greatest_penalties: Any
    """The length penalty of that, (B,)."""
    penalties: Any
    """The length penalty of n pieces, float64 (T + 2,)."""
    found: Any
    """Hypotheses found for each place of the input, int64 (N,)."""
    order: Any
    """Where they stand, best first, int64 (N, W + 1); then where the next one would stand."""
    found_scores: Any
    """By where they stand, float64 (N, W + 1), as the rest."""
    found_lengths: Any
    """int64."""
    found_ended: Any
    """int64: 1 where a hypothesis ended, 0 where it was cut."""
    found_pieces: Any
    """int32, each (T,)."""
    found_values: Any
    """Each (T,)."""


@cache
def search_program() -> Program:
    """The program."""
    tile = find_tile()
    assert tile is not None
    k = new_emitter("search", tile)
    write_select(k)
    _write_record(k)
    _write_go_on(k)
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
    """Numbers in memory, by name."""

    def __init__(self, k: Emitter, place: Value, names: tuple[str, ...] = SearchPlaces._fields) -> None:
        self.k = k
        self.place = place
        self.names = names

    def get(self, name: str) -> Value:
        """A number."""
        return self.k.load(self._at(name), I64)

    def set(self, name: str, value: Value) -> None:
        """Makes it another one."""
        self.k.store(self.k.number(value), self._at(name))

    def at(self, name: str, index: Value, kind: Any = F32) -> Value:
        """The place of an element of the array that begins there."""
        return self.k.at(self.k.place(self.get(name)), index, kind)

    def element(self, name: str, index: Value, kind: Any = F32) -> Value:
        """An element of the array that begins there."""
        return self.k.load(self.at(name, index, kind), kind)

    def swap(self, one: str, other: str) -> None:
        """Each becomes the other."""
        first, second = self.get(one), self.get(other)
        self.set(one, second)
        self.set(other, first)

    def _at(self, name: str) -> Value:
        return self.k.at(self.place, self.names.index(name), I64)


def _forbid(fields: Fields, thread: Value, threads: Value) -> None:
    """Pieces that are never written; of the sentences that this thread chooses for, whose logits it reads next."""
    k = fields.k
    select = Fields(k, k.place(fields.get("select_places")), SelectPlaces._fields)
    first, last = k.share(fields.get("sentences"), thread, threads)
    width = fields.get("width")
    with k.loop(k.times(first, width), k.times(last, width)) as row:
        logits = select.at("logits", k.times(row, select.get("stride")))
        with k.loop(0, fields.get("nevers")) as number:
            k.store(k.real(_NEVER), k.at(logits, fields.element("never", number, I64)))


def _write_record(k: Emitter) -> None:
    """`record(numbers, place, row, piece, value, ended)`: hypothesis `row` and its last piece are found, if they are
    good enough.
    """
    with k.function("record", POINTER, I64, I64, I64, F32, I64) as (numbers, place, row, piece, value, ended):
        fields = Fields(k, numbers)
        length, room = fields.get("length"), fields.get("room")
        history = k.times(row, room)
        # As Python adds: one after another, in 64 bits.
        total = k.variable(ir.Constant(F64, 0.0))
        with k.loop(0, length) as number:
            own = k.build.fpext(fields.element("values", k.sum_of(history, number)), F64)
            k.store(k.build.fadd(k.build.load(total, typ=F64), own), total)
        whole = k.build.fadd(k.build.load(total, typ=F64), k.build.fpext(value, F64))
        new_length = k.sum_of(length, 1)
        score = k.build.fdiv(whole, fields.element("penalties", new_length, F64))
        slots = k.sum_of(fields.get("beam_size"), 1)
        base, count = k.times(place, slots), fields.element("found", place, I64)
        rank = _rank(fields, (base, count), (score, ended))
        with k.where(k.build.icmp_signed("<", rank, fields.get("beam_size"))):
            slot = fields.element("order", k.sum_of(base, count), I64)
            here = k.sum_of(base, slot)
            k.store(score, fields.at("found_scores", here, F64))
            k.store(new_length, fields.at("found_lengths", here, I64))
            k.store(ended, fields.at("found_ended", here, I64))
            there = k.times(here, room)
            k.copy(fields.at("pieces", history, I32), fields.at("found_pieces", there, I32), length)
            k.copy(fields.at("values", history), fields.at("found_values", there), length)
            k.store(k.build.trunc(piece, I32), fields.at("found_pieces", k.sum_of(there, length), I32))
            k.store(value, fields.at("found_values", k.sum_of(there, length)))
            # Those behind it move on; the last of W + 1 places is the next one's.
            with k.loop(0, k.build.sub(count, rank)) as number:
                to = k.sum_of(base, k.build.sub(count, number))
                k.store(fields.element("order", k.sum_of(to, -1), I64), fields.at("order", to, I64))
            k.store(slot, fields.at("order", k.sum_of(base, rank), I64))
            more = k.build.icmp_signed("<", count, fields.get("beam_size"))
            k.store(k.sum_of(count, k.build.zext(more, I64)), fields.at("found", place, I64))


def _rank(fields: Fields, found: tuple[Value, Value], new: tuple[Value, Value]) -> Value:
    """How many of the found are not worse: those that ended stand before those that were cut."""
    k, (base, count), (score, ended) = fields.k, found, new
    rank = k.variable(k.number(0))
    with k.loop(0, count) as number:
        here = k.sum_of(base, fields.element("order", k.sum_of(base, number), I64))
        its_ended = fields.element("found_ended", here, I64)
        worse = k.build.fcmp_ordered("<", fields.element("found_scores", here, F64), score)
        alike = k.build.icmp_signed("==", its_ended, ended)
        stays = k.build.or_(k.build.icmp_signed(">", its_ended, ended), k.build.and_(alike, k.build.not_(worse)))
        k.store(k.sum_of(k.get(rank, count), k.build.zext(stays, I64)), rank)
    return k.get(rank, count)


def _write_go_on(k: Emitter) -> None:
    """`go_on(numbers)`: after a choice, what ends is recorded, sentences that are done leave, the others' live
    hypotheses take their pieces; and the numbers of the next step are set.
    """
    with k.function("go_on", POINTER) as (numbers,):
        fields = Fields(k, numbers)
        select = Fields(k, k.place(fields.get("select_places")), SelectPlaces._fields)
        beam_size, new_length = fields.get("beam_size"), k.sum_of(fields.get("length"), 1)
        rows = k.times(fields.get("sentences"), fields.get("width"))
        kept = k.variable(k.number(0))
        with k.loop(0, fields.get("sentences")) as sentence:
            place = fields.element("places", sentence, I64)
            _record_ended(fields, select, sentence, place)
            first = k.times(sentence, beam_size)
            with k.where(_may_improve(fields, select, sentence, place)):
                full = k.build.icmp_signed("<=", fields.element("longest", sentence, I64), new_length)
                with k.build.if_else(full) as (then, otherwise):
                    with then, k.loop(first, k.sum_of(first, beam_size)) as chosen:
                        _record(fields, select, "live", (sentence, place, chosen), ended=False)
                    with otherwise:
                        to = k.get(kept, sentence)
                        _keep_sentence(fields, sentence, to)
                        with k.loop(0, beam_size) as number:
                            new_row = k.sum_of(k.times(to, beam_size), number)
                            _extend(fields, select, (sentence, to), k.sum_of(first, number), new_row)
                        k.store(k.sum_of(to, 1), kept)
        for name in ("pieces", "values", "lists"):
            fields.swap(name, f"next_{name}")
        _set_next(fields, select, k.get(kept, rows), rows)


def _record_ended(fields: Fields, select: Fields, sentence: Value, place: Value) -> None:
    """Those candidates that end."""
    k = fields.k
    candidates = k.times(fields.get("beam_size"), 2)
    first = k.times(sentence, candidates)
    with k.loop(first, k.sum_of(first, candidates)) as candidate:
        _record(fields, select, "ended", (sentence, place, candidate), ended=True)


def _record(fields: Fields, select: Fields, kind: str, numbers: tuple[Value, ...], *, ended: bool) -> None:
    """A candidate, if there is one."""
    k, (sentence, place, candidate) = fields.k, numbers
    total = select.element(f"{kind}_totals", candidate)
    with k.where(k.build.fcmp_ordered(">", total, k.real(_NEVER))):
        parent = select.element(f"{kind}_parents", candidate, I64)
        row = k.sum_of(k.times(sentence, fields.get("width")), parent)
        piece = select.element(f"{kind}_pieces", candidate, I64)
        value = select.element(f"{kind}_scores", candidate)
        k.call("record", fields.place, place, row, piece, value, k.number(int(ended)))


def _may_improve(fields: Fields, select: Fields, sentence: Value, place: Value) -> Value:
    """Whether a live hypothesis can still enter the certain ones; in greedy search, whether it has not ended."""
    k, beam_size, certain = fields.k, fields.get("beam_size"), fields.get("certain")
    best, first = k.variable(k.real(_NEVER)), k.times(sentence, beam_size)
    with k.loop(first, k.sum_of(first, beam_size)) as number:
        total, known = select.element("live_totals", number), k.get(best, k.real(0.0))
        k.store(k.greater(total, known), best)
    bar, count = k.variable(k.real(_NEVER)), fields.element("found", place, I64)
    enough = k.build.and_(k.build.icmp_signed(">=", count, certain), k.build.icmp_signed(">", certain, k.number(0)))
    with k.where(enough):
        base = k.times(place, k.sum_of(beam_size, 1))
        slot = fields.element("order", k.sum_of(base, certain, -1), I64)
        score = fields.element("found_scores", k.sum_of(base, slot), F64)
        k.store(k.build.fptrunc(score, F32), bar)
    live = k.get(best, k.real(0.0))
    bound = k.build.fdiv(live, fields.element("greatest_penalties", sentence))
    better = k.build.and_(
        k.build.fcmp_ordered(">", live, k.real(_NEVER)), k.build.fcmp_ordered(">", bound, k.get(bar, live))
    )
    none_ended = k.build.icmp_signed("==", count, k.number(0))
    return k.build.select(k.build.icmp_signed("==", certain, k.number(0)), none_ended, better)


def _keep_sentence(fields: Fields, sentence: Value, to: Value) -> None:
    """What is known of a sentence, at its new number, which is not greater."""
    k = fields.k
    for name, kind in (("places", I64), ("longest", I64), ("greatest_penalties", F32)):
        k.store(fields.element(name, sentence, kind), fields.at(name, to, kind))
    for part in (k.number(0), fields.get("all_sentences")):
        k.store(fields.element("sources", k.sum_of(part, sentence), I64), fields.at("sources", k.sum_of(part, to), I64))


def _extend(fields: Fields, select: Fields, sentences: tuple[Value, Value], chosen: Value, new_row: Value) -> None:
    """A live hypothesis: what its parent holds, and a piece more."""
    k, (sentence, to) = fields.k, sentences
    length, room = fields.get("length"), fields.get("room")
    row = k.sum_of(k.times(sentence, fields.get("width")), select.element("live_parents", chosen, I64))
    old, new = k.times(row, room), k.times(new_row, room)
    k.copy(fields.at("pieces", old, I32), fields.at("next_pieces", new, I32), length)
    k.copy(fields.at("values", old), fields.at("next_values", new), length)
    piece, end = select.element("live_pieces", chosen, I64), k.sum_of(new, length)
    k.store(k.build.trunc(piece, I32), fields.at("next_pieces", end, I32))
    k.store(select.element("live_scores", chosen), fields.at("next_values", end))
    stride = k.sum_of(room, 1)
    entries, new_entries = k.times(row, stride), k.times(new_row, stride)
    k.copy(fields.at("lists", entries, I32), fields.at("next_lists", new_entries, I32), k.sum_of(length, 1))
    k.store(piece, fields.at("newest", new_row, I64))
    k.store(select.element("live_totals", chosen), select.at("scores", new_row))
    for start, of_row in ((k.number(0), k.number(0)), (fields.get("all_sentences"), fields.get("most_rows"))):
        own = fields.element("sources", k.sum_of(start, to), I64)
        k.store(own, fields.at("row_sources", k.sum_of(of_row, new_row), I64))


def _set_next(fields: Fields, select: Fields, kept: Value, old_rows: Value) -> None:
    """The numbers of the next step, and whether there is one."""
    k = fields.k
    step = Fields(k, k.place(fields.get("step_places")), Places._fields)
    beam_size, length = fields.get("beam_size"), k.sum_of(fields.get("length"), 1)
    rows, used = k.times(kept, beam_size), k.sum_of(step.get("used"), old_rows)
    steps = k.sum_of(fields.get("steps"), -1)
    for name, value in (("sentences", kept), ("width", beam_size), ("length", length), ("steps", steps)):
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
        k.build.icmp_signed("==", kept, k.number(0)),
        k.build.icmp_signed("<=", steps, k.number(0)),
        k.build.icmp_signed(">", k.sum_of(used, rows), step.get("entries")),
        k.build.icmp_signed(">=", length, fields.get("positions")),
    )
    stop = ends[0]
    for end in ends[1:]:
        stop = k.build.or_(stop, end)
    fields.set("stop", k.build.zext(stop, I64))
