"""Kernels over a vocabulary: the greatest pieces of each row, its normaliser, and a beam's next hypotheses.

Legend: B sentences, W hypotheses of each, N hypotheses (B × W), V vocabulary, k pieces asked for, n candidates.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduce.model.native.crew import useful_threads
from transduce.model.native.emit import I64, Emitter, Value
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, program
from transduce.model.native.lines import Line, block_size, find_greatest

_ELEMENT_WORK = 16  # products that a logit's exponential takes as long as
_NEVER = float("-inf")
_Quadruple = tuple[Tensor, Tensor, Tensor, Tensor]


class SelectPlaces(NamedTuple):
    """The numbers that the program `select` is given: addresses, where nothing else is said."""

    logits: Any
    """(N, V)."""
    rows: Any
    """A number: N."""
    vocabulary_size: Any
    """A number: V."""
    stride: Any
    """A number: from one row of logits to the next."""
    beams: Any
    """A number: hypotheses of each sentence."""
    normalizer: Any
    """Of each row, (N,); without one it is the logits' own."""
    scores: Any
    """Of each hypothesis, (N,)."""
    eos_id: Any
    """A number: the end symbol."""
    beam_size: Any
    """A number: how many are wanted."""
    live_parents: Any
    """Room for those that do not end, (B, beam size): int64, as the next ones."""
    live_pieces: Any
    live_scores: Any
    """float32, as the next ones."""
    live_totals: Any
    ended_parents: Any
    """Room for all candidates, of which those have a total that end and are good enough, (B, 2 × beam size)."""
    ended_pieces: Any
    ended_scores: Any
    ended_totals: Any
    room: Any
    """Room for the next number, for each thread."""
    own_room: Any
    """A number: see `room_to_select`."""


class NativeReductions:
    """Implements `search.vocabulary.Reductions`."""

    def suits(self, logits: Tensor) -> bool:
        """Whether the kernels take them: float32 on a CPU, rows with no gaps in them, evenly spaced."""
        fits = logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.dim() == 3
        return fits and logits.stride(2) == 1 and _row_stride(logits) > 0

    def best_pieces(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The greatest `count` of each row and their places, best first: (B, W, V) to twice (B, W, k)."""
        return self._reduce(logits, count, normalize=False)[:2]

    def log_normalizer(self, logits: Tensor) -> Tensor:
        """The logarithm of the sum of the exponentials of each row: (B, W, V) to (B, W, 1)."""
        return self._reduce(logits, 0, normalize=True)[2]

    def best_normalized(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Both in one go."""
        return self._reduce(logits, count, normalize=True)

    def _reduce(self, logits: Tensor, count: int, *, normalize: bool) -> tuple[Tensor, Tensor, Tensor]:
        batch, beams, width = logits.shape
        values, places = logits.new_empty(batch, beams, count), torch.empty(batch, beams, count, dtype=torch.int64)
        normalizer = logits.new_empty(batch, beams, 1)
        programs, block = _programs()
        room = torch.empty(torch.get_num_threads(), width // block + 2 * block)
        programs["reduce"].run(
            *_rows(logits),
            count,
            values.data_ptr(),
            places.data_ptr(),
            normalizer.data_ptr() if normalize else 0,
            room.data_ptr(),
            room.shape[1],
            threads=useful_threads(_ELEMENT_WORK * logits.numel()),
        )
        return values, places, normalizer

    def select(
        self, logits: Tensor, normalizer: Tensor | None, scores: Tensor, *, eos_id: int, beam_size: int
    ) -> tuple[_Quadruple, _Quadruple]:
        """The best continuations that do not end, (B, beam_size), and the 2 × beam_size best of all, (B, n).

        Each as parents, pieces, the pieces' log-probabilities, and totals. Of the second, only those have a total that
        end and are among the `beam_size` best.

        Args:
            logits: (B, W, V), V at least 2 × beam_size.
            normalizer: (B, W, 1); the logits' own where nothing is said.
            scores: of the hypotheses, (B, W).
            eos_id: the end symbol.
            beam_size: how many are wanted.
        """
        batch, beams, width = logits.shape
        count = 2 * beam_size
        live = _room_for_candidates(logits, batch, beam_size)
        ended = _room_for_candidates(logits, batch, count)
        programs, _ = _programs()
        room = torch.empty(torch.get_num_threads(), room_to_select(width, beams, beam_size))
        scores = scores.contiguous()
        normalizer = None if normalizer is None else normalizer.contiguous()
        programs["select"].run(
            *_rows(logits),
            beams,
            0 if normalizer is None else normalizer.data_ptr(),
            scores.data_ptr(),
            eos_id,
            beam_size,
            *(each.data_ptr() for each in (*live, *ended)),
            room.data_ptr(),
            room.shape[1],
            threads=useful_threads(_ELEMENT_WORK * logits.numel()),
        )
        return live, ended


def room_to_select(width: int, beams: int, beam_size: int) -> int:
    """How many numbers of room each thread needs to select among V pieces of so many hypotheses."""
    block = _programs()[1]
    return width // block + 2 * block + 4 * (beams * 2 * beam_size + block)


def _rows(logits: Tensor) -> tuple[int, int, int, int]:
    """Where they begin, N, V, and from one to the next."""
    return logits.data_ptr(), logits.shape[0] * logits.shape[1], logits.shape[2], _row_stride(logits)


def _row_stride(logits: Tensor) -> int:
    """From one row to the next; 0 where they are not evenly spaced."""
    batch, beams, _ = logits.shape
    if beams == 1:
        return logits.stride(0)
    return logits.stride(1) if batch == 1 or logits.stride(0) == beams * logits.stride(1) else 0


def _room_for_candidates(logits: Tensor, batch: int, count: int) -> _Quadruple:
    parents, pieces = torch.empty(2, batch, count, dtype=torch.int64).unbind(0)
    piece_scores, totals = logits.new_empty(2, batch, count).unbind(0)
    return parents, pieces, piece_scores, totals


@cache
def _programs() -> tuple[dict[str, Program], int]:
    """Both programs, and the size of a block."""
    tile = find_tile()
    assert tile is not None
    k = new_emitter("reductions", tile)
    _write_reduce(k)
    write_select(k)
    return compile_programs(k, ("reduce", "select")), block_size(k)


def _write_reduce(k: Emitter) -> None:
    """`reduce(logits, N, V, stride, k, values, places, normalizer, room, room a thread)`.

    Without a place for the normaliser, it is left out.
    """
    with program(k, "reduce", 10) as (numbers, thread, threads):
        logits, rows, width, stride, count, values, places, normalizer, room, own_room = numbers
        maxima = k.at(k.place(room), k.times(thread, own_room))
        first, last = k.share(rows, thread, threads)
        with k.loop(first, last) as row:
            line = Line(k, k.at(k.place(logits), k.times(row, stride)), width, maxima)
            line.find_maxima()
            with k.where(k.build.icmp_signed("!=", normalizer, k.number(0))):
                k.store(line.log_normalizer(), k.at(k.place(normalizer), row))
            found = k.times(row, count)
            line.take_greatest_of(count, k.at(k.place(values), found), k.at(k.place(places), found, I64))


def write_select(k: Emitter) -> None:
    """`select` of `SelectPlaces`."""
    with program(k, "select", len(SelectPlaces._fields)) as (numbers, thread, threads):
        given = SelectPlaces(*numbers)
        width, beams, normalizer, beam_size = given.vocabulary_size, given.beams, given.normalizer, given.beam_size
        room = k.at(k.place(given.room), k.times(thread, given.own_room))
        count = k.times(beam_size, 2)
        all_candidates = k.times(beams, count)
        maxima = k.at(room, k.times(k.sum_of(all_candidates, block_size(k)), 4))
        candidates = _Candidates(k, room, all_candidates)
        first, last = k.share(k.build.sdiv(given.rows, beams), thread, threads)
        with k.loop(first, last) as sentence:
            with k.loop(0, beams) as beam:
                row = k.sum_of(k.times(sentence, beams), beam)
                line = Line(k, k.at(k.place(given.logits), k.times(row, given.stride)), width, maxima)
                line.find_maxima()
                own_normalizer = k.variable(k.real(0.0))
                with k.build.if_else(k.build.icmp_signed("==", normalizer, k.number(0))) as (then, otherwise):
                    with then:
                        k.store(line.log_normalizer(), own_normalizer)
                    with otherwise:
                        k.store(k.load(k.at(k.place(normalizer), row)), own_normalizer)
                start = k.times(beam, count)
                line.take_greatest_of(count, k.at(candidates.scores, start), k.at(candidates.pieces, start, I64))
                score = k.load(k.at(k.place(given.scores), row))
                candidates.add_up(start, count, k.get(own_normalizer, score), score)
            candidates.close()
            live, ended = (
                _Places(k, [k.place(each) for each in places], k.times(sentence, room_for))
                for places, room_for in (
                    ((given.live_parents, given.live_pieces, given.live_scores, given.live_totals), beam_size),
                    ((given.ended_parents, given.ended_pieces, given.ended_scores, given.ended_totals), count),
                )
            )
            _choose(k, candidates, (count, beam_size, given.eos_id), live, ended)


class _Candidates:
    """The continuations of a sentence's hypotheses, `count` of each, which no longer need the logits."""

    def __init__(self, k: Emitter, room: Value, whole: Value) -> None:
        self.k = k
        self.whole = whole
        part = k.sum_of(whole, block_size(k))
        self.totals = room
        self.scores = k.at(room, part)
        self.pieces = k.at(room, k.times(part, 2))  # 64 bits each

    def add_up(self, start: Value, count: Value, normalizer: Value, score: Value) -> None:
        """Logits become log-probabilities, and with the hypothesis' own, totals."""
        k = self.k
        with k.loop(0, count) as number:
            place = k.sum_of(start, number)
            own = k.build.fsub(k.load(k.at(self.scores, place)), normalizer)
            k.store(own, k.at(self.scores, place))
            k.store(k.build.fadd(score, own), k.at(self.totals, place))

    def close(self) -> None:
        """What is read behind the last one is never chosen."""
        self.k.store(self.k.splat(_NEVER), self.k.at(self.totals, self.whole))


class _Places:
    """Where chosen candidates of a sentence go."""

    def __init__(self, k: Emitter, places: list[Value], start: Value) -> None:
        self.k = k
        self.parents, self.pieces = (k.at(place, start, I64) for place in places[:2])
        self.scores, self.totals = (k.at(place, start) for place in places[2:])

    def put(self, number: Value, parent: Value, piece: Value, score: Value, total: Value) -> None:
        """One more."""
        k = self.k
        k.store(parent, k.at(self.parents, number, I64))
        k.store(piece, k.at(self.pieces, number, I64))
        k.store(score, k.at(self.scores, number))
        k.store(total, k.at(self.totals, number))


def _choose(k: Emitter, candidates: _Candidates, sizes: tuple[Value, ...], live: _Places, ended: _Places) -> None:
    """The best, one after another: each goes where it belongs. Of equal ones the first hypothesis' is first."""
    count, beam_size, end = sizes
    found = k.variable(k.number(0))  # of those that do not end
    with k.loop(0, count) as number:
        total, place = find_greatest(k, candidates.totals, candidates.whole)
        k.store(k.real(_NEVER), k.at(candidates.totals, place))
        parent = k.build.sdiv(place, count)
        piece = k.load(k.at(candidates.pieces, place, I64), I64)
        score = k.load(k.at(candidates.scores, place))
        ends = k.build.icmp_signed("==", piece, end)
        counts = k.build.and_(ends, k.build.icmp_signed("<", number, beam_size))
        ended.put(number, parent, piece, score, k.build.select(counts, total, k.real(_NEVER)))
        known = k.get(found, number)
        fits = k.build.icmp_signed("<", known, beam_size)
        with k.where(k.build.and_(k.build.not_(ends), fits)):
            live.put(known, parent, piece, score, total)
            k.store(k.sum_of(known, 1), found)
    # Where rules leave less than is asked for, the rest are hypotheses that nothing continues.
    nobody, never = k.number(0), k.real(_NEVER)
    with k.loop(k.get(found, nobody), beam_size) as number:
        live.put(number, nobody, nobody, never, never)
