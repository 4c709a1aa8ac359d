"""Provide kernels over a vocabulary: top-k, log-sum-exp, and the selection of a beam's next hypotheses.

Legend: B sentences, W hypotheses of each, N hypotheses (B × W), V vocabulary size, k top tokens per row, n candidates.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduce.model.native.crew import useful_threads
from transduce.model.native.emit import I64, Emitter, Value
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, program
from transduce.model.native.lines import Line, block_size, find_greatest

_ELEMENT_WORK = 16  # cost of a logit's exponential in multiply-adds
_NEVER = float("-inf")
_Quadruple = tuple[Tensor, Tensor, Tensor, Tensor]


class SelectPlaces(NamedTuple):
    """Arguments of the kernel `select`: addresses, unless stated otherwise."""

    logits: Any
    """float32, (N, V)."""
    rows: Any
    """The number of hypotheses N."""
    vocabulary_size: Any
    """The vocabulary size V."""
    stride: Any
    """Elements from one row of logits to the next."""
    beams: Any
    """The number of hypotheses of each sentence W."""
    normalizer: Any
    """The log-sum-exp of each row, float32 (N,); 0: it is computed from the logits."""
    scores: Any
    """The total log-probability of each hypothesis, float32 (N,)."""
    eos_id: Any
    """The id of the end symbol."""
    beam_size: Any
    """The number of continuations to select."""
    live_parents: Any
    """Output: parents of the best continuations that do not end, int64 (B, beam size)."""
    live_pieces: Any
    """Output: their tokens, int64 (B, beam size)."""
    live_scores: Any
    """Output: the log-probabilities of these tokens, float32 (B, beam size)."""
    live_totals: Any
    """Output: total log-probabilities of these continuations, float32 (B, beam size)."""
    ended_parents: Any
    """Output: parents of the 2 × beam size best continuations of any kind, int64 (B, 2 × beam size)."""
    ended_pieces: Any
    """Output: the tokens of all these candidates, int64 (B, 2 × beam size)."""
    ended_scores: Any
    """Output: the log-probabilities of these tokens, float32 (B, 2 × beam size)."""
    ended_totals: Any
    """Output: totals of candidates that end and are among the beam size best, else -inf, float32 (B, 2 × beam size)."""
    room: Any
    """Scratch space of `own_room` float32 for each thread."""
    own_room: Any
    """The number of float32 of scratch space per thread, as `room_to_select` returns it."""


class NativeReductions:
    """Implements `search.vocabulary.Reductions` with compiled kernels."""

    def suits(self, logits: Tensor) -> bool:
        """Return whether the kernels take these logits.

        They take float32 on a CPU, (B, W, V), in contiguous and evenly spaced rows.
        """
        fits = logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.dim() == 3
        return fits and logits.stride(2) == 1 and _row_stride(logits) > 0

    def best_pieces(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` greatest logits of each row and their indices, best first: two tensors (B, W, k)."""
        return self._reduce(logits, count, normalize=False)[:2]

    def log_normalizer(self, logits: Tensor) -> Tensor:
        """Return the log-sum-exp of each row: (B, W, V) to (B, W, 1)."""
        return self._reduce(logits, 0, normalize=True)[2]

    def best_normalized(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the `count` greatest logits, their indices, both (B, W, k), and the log-sum-exp (B, W, 1)."""
        return self._reduce(logits, count, normalize=True)

    def _reduce(self, logits: Tensor, count: int, *, normalize: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Run the kernel `reduce`; the log-sum-exp is uninitialized unless `normalize`."""
        batch, beams, width = logits.shape
        values, indices = logits.new_empty(batch, beams, count), torch.empty(batch, beams, count, dtype=torch.int64)
        normalizer = logits.new_empty(batch, beams, 1)
        programs, block = _kernels()
        scratch = torch.empty(torch.get_num_threads(), width // block + 2 * block)
        programs["reduce"].run(
            *_rows(logits),
            count,
            values.data_ptr(),
            indices.data_ptr(),
            normalizer.data_ptr() if normalize else 0,
            scratch.data_ptr(),
            scratch.shape[1],
            threads=useful_threads(_ELEMENT_WORK * logits.numel()),
        )
        return values, indices, normalizer

    def select(
        self, logits: Tensor, normalizer: Tensor | None, scores: Tensor, *, eos_id: int, beam_size: int
    ) -> tuple[_Quadruple, _Quadruple]:
        """Return the best continuations that do not end, (B, beam_size), and the 2 × beam_size best of all, (B, n).

        Each is a tuple of parents, tokens, the tokens' log-probabilities, and totals. In the second, only candidates
        that end and are among the `beam_size` best have a total; the others' is -inf.

        Args:
            logits: (B, W, V), V at least 2 × beam_size.
            normalizer: the log-sum-exp, (B, W, 1); computed from the logits if None.
            scores: the hypotheses' total log-probabilities, (B, W).
            eos_id: the end symbol.
            beam_size: the number of continuations to select.
        """
        batch, beams, width = logits.shape
        count = 2 * beam_size
        live = _allocate_candidates(logits, batch, beam_size)
        ended = _allocate_candidates(logits, batch, count)
        programs, _ = _kernels()
        scratch = torch.empty(torch.get_num_threads(), room_to_select(width, beams, beam_size))
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
            scratch.data_ptr(),
            scratch.shape[1],
            threads=useful_threads(_ELEMENT_WORK * logits.numel()),
        )
        return live, ended


def room_to_select(width: int, beams: int, beam_size: int) -> int:
    """Return the number of float32 of scratch space that `select` needs per thread, for V tokens and W hypotheses."""
    block = _kernels()[1]
    return width // block + 2 * block + 4 * (beams * 2 * beam_size + block)


def _rows(logits: Tensor) -> tuple[int, int, int, int]:
    """Return the logits' address, N, V, and the stride of rows in elements."""
    return logits.data_ptr(), logits.shape[0] * logits.shape[1], logits.shape[2], _row_stride(logits)


def _row_stride(logits: Tensor) -> int:
    """Return the stride of rows in elements; 0 if they are not evenly spaced."""
    batch, beams, _ = logits.shape
    if beams == 1:
        return logits.stride(0)
    return logits.stride(1) if batch == 1 or logits.stride(0) == beams * logits.stride(1) else 0


def _allocate_candidates(logits: Tensor, batch: int, count: int) -> _Quadruple:
    """Allocate parents and tokens (int64), log-probabilities and totals (float32), each (batch, count)."""
    parents, pieces = torch.empty(2, batch, count, dtype=torch.int64).unbind(0)
    piece_scores, totals = logits.new_empty(2, batch, count).unbind(0)
    return parents, pieces, piece_scores, totals


@cache
def _kernels() -> tuple[dict[str, Program], int]:
    """Compile the kernels `reduce` and `select`; also return the number of logits per block."""
    tile = find_tile()
    assert tile is not None
    k = new_emitter("reductions", tile)
    _write_reduce(k)
    write_select(k)
    return compile_programs(k, ("reduce", "select")), block_size(k)


def _write_reduce(k: Emitter) -> None:
    """Emit the kernel `reduce(logits, N, V, stride, k, values, indices, normalizer, scratch, scratch per thread)`.

    If the address of the normalizer is 0, the log-sum-exp is not computed.
    """
    with program(k, "reduce", 10) as (numbers, thread, threads):
        logits, rows, width, stride, count, values, indices, normalizer, scratch, scratch_per_thread = numbers
        maxima = k.at(k.place(scratch), k.times(thread, scratch_per_thread))
        first, last = k.share(rows, thread, threads)
        with k.loop(first, last) as row:
            line = Line(k, k.at(k.place(logits), k.times(row, stride)), width, maxima)
            line.find_maxima()
            with k.where(k.build.icmp_signed("!=", normalizer, k.number(0))):
                k.store(line.log_normalizer(), k.at(k.place(normalizer), row))
            first_output = k.times(row, count)
            line.take_greatest_of(count, k.at(k.place(values), first_output), k.at(k.place(indices), first_output, I64))


def write_select(k: Emitter) -> None:
    """Emit the kernel `select`, whose arguments are `SelectPlaces`."""
    with program(k, "select", len(SelectPlaces._fields)) as (numbers, thread, threads):
        args = SelectPlaces(*numbers)
        width, beams, normalizer, beam_size = args.vocabulary_size, args.beams, args.normalizer, args.beam_size
        scratch = k.at(k.place(args.room), k.times(thread, args.own_room))
        count = k.times(beam_size, 2)
        all_candidates = k.times(beams, count)
        maxima = k.at(scratch, k.times(k.sum_of(all_candidates, block_size(k)), 4))
        candidates = _Candidates(k, scratch, all_candidates)
        first, last = k.share(k.build.sdiv(args.rows, beams), thread, threads)
        with k.loop(first, last) as sentence:
            with k.loop(0, beams) as beam:
                row = k.sum_of(k.times(sentence, beams), beam)
                line = Line(k, k.at(k.place(args.logits), k.times(row, args.stride)), width, maxima)
                line.find_maxima()
                row_normalizer = k.variable(k.real(0.0))
                with k.build.if_else(k.build.icmp_signed("==", normalizer, k.number(0))) as (then, otherwise):
                    with then:
                        k.store(line.log_normalizer(), row_normalizer)
                    with otherwise:
                        k.store(k.load(k.at(k.place(normalizer), row)), row_normalizer)
                start = k.times(beam, count)
                line.take_greatest_of(count, k.at(candidates.scores, start), k.at(candidates.pieces, start, I64))
                score = k.load(k.at(k.place(args.scores), row))
                candidates.add_up(start, count, k.get(row_normalizer, score), score)
            candidates.close()
            live, ended = (
                _Selected(k, [k.place(each) for each in outputs], k.times(sentence, capacity))
                for outputs, capacity in (
                    ((args.live_parents, args.live_pieces, args.live_scores, args.live_totals), beam_size),
                    ((args.ended_parents, args.ended_pieces, args.ended_scores, args.ended_totals), count),
                )
            )
            _choose(k, candidates, (count, beam_size, args.eos_id), live, ended)


class _Candidates:
    """The `count` best continuations of each of a sentence's hypotheses, in a thread's scratch space."""

    def __init__(self, k: Emitter, scratch: Value, total_count: Value) -> None:
        self.k = k
        self.whole = total_count
        part = k.sum_of(total_count, block_size(k))
        self.totals = scratch
        self.scores = k.at(scratch, part)
        self.pieces = k.at(scratch, k.times(part, 2))  # int64, hence twice the size

    def add_up(self, start: Value, count: Value, normalizer: Value, score: Value) -> None:
        """Convert the logits of one hypothesis' candidates to log-probabilities, and compute their totals."""
        k = self.k
        with k.loop(0, count) as number:
            index = k.sum_of(start, number)
            score_of_token = k.build.fsub(k.load(k.at(self.scores, index)), normalizer)
            k.store(score_of_token, k.at(self.scores, index))
            k.store(k.build.fadd(score, score_of_token), k.at(self.totals, index))

    def close(self) -> None:
        """Append a vector of -inf, which reads behind the last candidate may meet."""
        self.k.store(self.k.splat(_NEVER), self.k.at(self.totals, self.whole))


class _Selected:
    """The output arrays of one sentence's selected candidates."""

    def __init__(self, k: Emitter, arrays: list[Value], start: Value) -> None:
        self.k = k
        self.parents, self.pieces = (k.at(array, start, I64) for array in arrays[:2])
        self.scores, self.totals = (k.at(array, start) for array in arrays[2:])

    def put(self, number: Value, parent: Value, piece: Value, score: Value, total: Value) -> None:
        """Store a candidate at an index."""
        k = self.k
        k.store(parent, k.at(self.parents, number, I64))
        k.store(piece, k.at(self.pieces, number, I64))
        k.store(score, k.at(self.scores, number))
        k.store(total, k.at(self.totals, number))


def _choose(k: Emitter, candidates: _Candidates, sizes: tuple[Value, ...], live: _Selected, ended: _Selected) -> None:
    """Emit the selection of a sentence's best candidates, best first; of equal ones the first hypothesis' wins."""
    count, beam_size, end = sizes
    live_counter = k.variable(k.number(0))  # selected candidates that do not end
    with k.loop(0, count) as number:
        total, index = find_greatest(k, candidates.totals, candidates.whole)
        k.store(k.real(_NEVER), k.at(candidates.totals, index))
        parent = k.build.sdiv(index, count)
        piece = k.load(k.at(candidates.pieces, index, I64), I64)
        score = k.load(k.at(candidates.scores, index))
        ends = k.build.icmp_signed("==", piece, end)
        counts = k.build.and_(ends, k.build.icmp_signed("<", number, beam_size))
        ended.put(number, parent, piece, score, k.build.select(counts, total, k.real(_NEVER)))
        live_count = k.get(live_counter, number)
        fits = k.build.icmp_signed("<", live_count, beam_size)
        with k.where(k.build.and_(k.build.not_(ends), fits)):
            live.put(live_count, parent, piece, score, total)
            k.store(k.sum_of(live_count, 1), live_counter)
    # If rules leave too few candidates, the others are hypotheses with a probability of zero.
    nobody, never = k.number(0), k.real(_NEVER)
    with k.loop(k.get(live_counter, nobody), beam_size) as number:
        live.put(number, nobody, nobody, never, never)
