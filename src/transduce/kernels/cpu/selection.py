"""Select next tokens from logits with compiled CPU kernels: search rules, top-k, log-sum-exp, beams and sampling.

Legend: B sentences, W hypotheses of each, N hypotheses (B × W), V vocabulary size, k top tokens per row.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from transduce.kernels.cpu.decode_rows import exponential
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    compile_kernels,
    kernel,
    require_integer_tile,
    useful_threads,
)
from transduce.kernels.cpu.jit.ir_builder import F32, F64, I32, I64, POINTER, Fields, KernelBuilder, Value, outlined
from transduce.kernels.cpu.logits import LogitsRow, block_size, emit_argmax

_ELEMENT_WORK = 16  # cost of a logit's exponential in multiply-adds
_NEVER = float("-inf")
_Quadruple = tuple[Tensor, Tensor, Tensor, Tensor]


class SelectArguments(NamedTuple):
    """Arguments of the kernel `select`, which selects each sentence's best continuations in a step of beam search."""

    logits: Any
    """Address of the logits, float32 (N, V), a row for each hypothesis."""
    rows: Any
    """The number N of hypotheses, which are rows of logits."""
    vocabulary_size: Any
    """The number of tokens V in the vocabulary, which is the width of a row of logits."""
    stride: Any
    """The number of elements from one row of logits to the next."""
    beams: Any
    """The number W of hypotheses of each sentence; 1 at the first step."""
    normalizer: Any
    """Address of the log-sum-exp of each row, float32 (N,); 0: it is computed from the logits."""
    scores: Any
    """Address of the total log-probability of each hypothesis, float32 (N,)."""
    eos_id: Any
    """The id of the end symbol, with which a continuation ends."""
    beam_size: Any
    """The number of continuations to select for each sentence."""
    live_parents: Any
    """Address of the output: parents of the best continuations that do not end, int64 (B, beam size).

    A parent is the index of the hypothesis that is continued, among the hypotheses of its sentence.
    """
    live_tokens: Any
    """Address of the output: last tokens of the best continuations that do not end, int64 (B, beam size)."""
    live_scores: Any
    """Address of the output: log-probabilities of the tokens in `live_tokens`, float32 (B, beam size)."""
    live_totals: Any
    """Address of the output: total log-probabilities of the continuations in `live_tokens`, float32 (B, beam size)."""
    ended_parents: Any
    """Address of the output: parents of the 2 × beam size best continuations of any kind, int64 (B, 2 × beam size)."""
    ended_tokens: Any
    """Address of the output: tokens of the 2 × beam size best continuations of any kind, int64 (B, 2 × beam size)."""
    ended_scores: Any
    """Address of the output: log-probabilities of the tokens in `ended_tokens`, float32 (B, 2 × beam size)."""
    ended_totals: Any
    """Address of the output, float32 (B, 2 × beam size): totals of the continuations in `ended_tokens`.

    A continuation that does not end, or is not among the beam size best, has the total -inf.
    """
    scratch: Any
    """Address of scratch space of `scratch_per_thread` float32 numbers for each thread."""
    scratch_per_thread: Any
    """The number of float32 numbers of scratch space per thread, as `select_scratch_size` returns it."""
    rules: Any
    """The address of the `RuleArguments` of the rules that the kernel applies; 0: none."""

    @property
    def live(self) -> tuple[Any, ...]:
        """The addresses of `live_parents`, `live_tokens`, `live_scores` and `live_totals`, a tuple."""
        return self.live_parents, self.live_tokens, self.live_scores, self.live_totals

    @property
    def ended(self) -> tuple[Any, ...]:
        """The addresses of `ended_parents`, `ended_tokens`, `ended_scores` and `ended_totals`, a tuple."""
        return self.ended_parents, self.ended_tokens, self.ended_scores, self.ended_totals


class RuleArguments(NamedTuple):
    """Arguments of the search rules that the kernel `select` applies to logits: addresses, unless stated otherwise."""

    never: Any
    """Address of ids, int64, of tokens that may not occur, and whose probability is set to 0 in the log-sum-exp too."""
    never_count: Any
    """The number of token ids in `never`."""
    forbidden: Any
    """Address of ids, int64, of tokens that may not occur; the log-sum-exp counts them unless `renormalizes` is 1."""
    forbidden_count: Any
    """The number of token ids in `forbidden`."""
    renormalizes: Any
    """1: the log-sum-exp is over the tokens that rules permit; 0: over all tokens."""
    more_ends: Any
    """Address of token ids, int64, that end a hypothesis as the end symbol does, and are replaced by the end symbol."""
    more_ends_count: Any
    """The number of token ids in `more_ends`."""
    sums_ends: Any
    """1: the end symbol gets the sum of all end tokens' probabilities, for sampling; 0: their greatest logit."""
    min_length: Any
    """The number of tokens before which a hypothesis may not end; 0: no restriction."""
    ngram: Any
    """The length of the n-grams that may not occur twice; 0: no restriction."""
    penalizes: Any
    """1: tokens that occurred are penalized; the scratch space then has `before_stride` + `capacity` more float32."""
    repetition: Any
    """The bits of a float32 by which scores of tokens that occurred are multiplied if negative, else divided."""
    frequency: Any
    """The bits of a float32 that is subtracted from a token's score for each occurrence of the token in the output."""
    presence: Any
    """The bits of a float32 that is subtracted once from the score of each token that is in the output."""
    penalizes_log_probabilities: Any
    """1: penalties of repeated tokens change log-probabilities, as in beam search; 0: they change logits."""
    before: Any
    """Address of the tokens before each sentence's output, such as its prompt, int64 (N, `before_stride`).

    The first index is that of the sentence in the input batch.
    """
    before_stride: Any
    """The greatest number of tokens before a sentence's output, which is the width of `before`."""
    before_counts: Any
    """Address of the number of tokens in each row of `before`, int64 (N,)."""
    forced: Any
    """Address of tokens with which hypotheses must begin, int64 (N, F), by index in the input batch; -1: no token."""
    forced_count: Any
    """The number F of first positions for which `forced` has tokens."""
    certain_count: Any
    """The number of first positions at which a forced token has probability 1 instead of the model's."""
    starts: Any
    """Address of how many first tokens of each hypothesis are context, int64 (N,), by index in the input batch."""
    forced_last: Any
    """The token that a hypothesis gets, with probability 1, at its greatest length; -1: none."""
    indices: Any
    """Address of each sentence's index in the input batch, int64 (B,), by which arguments such as `forced` are read."""
    max_lengths: Any
    """Address of the greatest number of tokens that each sentence may get, int64 (B,)."""
    tokens: Any
    """Address of the hypotheses' tokens so far, int32 (B × W, `capacity`)."""
    capacity: Any
    """The number of elements from one hypothesis' tokens to those of the next hypothesis."""
    length: Any
    """The number of search steps that the batch has taken so far."""
    joined: Any
    """Address of how many steps the batch had taken before each sentence joined it, int64 (B,).

    A hypothesis has `length` minus this number of tokens.
    """


class CompiledReductions:
    """Top-k, log-sum-exp and beam selection over a vocabulary with compiled CPU kernels.

    The class implements `selection.Reductions`.
    """

    def supports(self, logits: Tensor) -> bool:
        """Return whether the kernels support a tensor of logits.

        The tensor must be (B, W, V), float32, and on a CPU. Each row must be contiguous, and all rows evenly spaced.
        """
        fits = logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.dim() == 3
        return fits and logits.stride(2) == 1 and _row_stride(logits) > 0

    def top_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return two tensors (B, W, k): the `count` = k greatest logits of each row, best first, and their indices."""
        return self._reduce(logits, count, normalize=False)[:2]

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        """Return the log-sum-exp of each row of logits, (B, W, V) to (B, W, 1)."""
        return self._reduce(logits, 0, normalize=True)[2]

    def top_tokens_and_log_sum_exp(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the `count` = k greatest logits and their indices, both (B, W, k), and the log-sum-exp (B, W, 1)."""
        return self._reduce(logits, count, normalize=True)

    def _reduce(self, logits: Tensor, count: int, *, normalize: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the `count` = k greatest logits and their indices, both (B, W, k), and the log-sum-exp (B, W, 1).

        If `normalize` is False, the tensor for the log-sum-exp is uninitialized.
        """
        batch, beams, width = logits.shape
        values, indices = logits.new_empty(batch, beams, count), torch.empty(batch, beams, count, dtype=torch.int64)
        normalizer = logits.new_empty(batch, beams, 1)
        kernels, block = _kernels()
        scratch = torch.empty(torch.get_num_threads(), width // block + 2 * block)
        threads, outputs = (
            useful_threads(_ELEMENT_WORK * logits.numel()),
            (values, indices, normalizer if normalize else 0),
        )
        kernels["reduce"].run(*_rows(logits), count, *outputs, scratch, scratch.shape[1], threads=threads)
        return values, indices, normalizer

    def select(
        self, logits: Tensor, normalizer: Tensor | None, scores: Tensor, *, eos_id: int, beam_size: int
    ) -> tuple[_Quadruple, _Quadruple]:
        """Return the best continuations of hypotheses: first those that do not end, then those of any kind.

        Each of the two is a tuple of four tensors: parents (indices of the continued hypotheses), tokens, the tokens'
        log-probabilities, and total log-probabilities. The tensors of the first tuple are (B, beam_size), those of the
        second (B, 2 × beam_size). In the second tuple, the total is -inf for a continuation that does not end, or is
        not among the `beam_size` best.

        Args:
            logits: (B, W, V), V at least 2 × beam_size.
            normalizer: the log-sum-exp, (B, W, 1); computed from the logits if None.
            scores: the hypotheses' total log-probabilities, (B, W).
            eos_id: the end symbol.
            beam_size: the number of continuations to select.
        """
        batch, beams, width = logits.shape
        live, ended = (_allocate_candidates(logits, batch, count) for count in (beam_size, 2 * beam_size))
        scratch = torch.empty(torch.get_num_threads(), select_scratch_size(width, beams, beam_size))
        scores, normalizer = scores.contiguous(), None if normalizer is None else normalizer.contiguous()
        inputs, outputs = (beams, normalizer, scores, eos_id, beam_size), (*live, *ended)
        threads = useful_threads(_ELEMENT_WORK * logits.numel())
        _kernels()[0]["select"].run(*_rows(logits), *inputs, *outputs, scratch, scratch.shape[1], 0, threads=threads)
        return live, ended


def select_scratch_size(width: int, beams: int, beam_size: int) -> int:
    """Return the number of float32 numbers of scratch space that the kernel `select` needs per thread.

    `width` is the vocabulary size V, and `beams` the number of hypotheses per sentence.
    """
    block = _kernels()[1]
    return width // block + 2 * block + 4 * (beams * 2 * beam_size + block)


def _rows(logits: Tensor) -> tuple[Tensor, int, int, int]:
    """Return four arguments for kernels: the logits (B, W, V), then B × W, V, and the row stride in elements."""
    return logits, logits.shape[0] * logits.shape[1], logits.shape[2], _row_stride(logits)


def _row_stride(logits: Tensor) -> int:
    """Return the number of elements from one row of logits (B, W, V) to the next; 0 if rows are not evenly spaced."""
    batch, beams, _ = logits.shape
    if beams == 1:
        return logits.stride(0)
    return logits.stride(1) if batch == 1 or logits.stride(0) == beams * logits.stride(1) else 0


def _allocate_candidates(logits: Tensor, batch: int, count: int) -> _Quadruple:
    """Return four uninitialized tensors for selected continuations, each (batch, count).

    The tensors are parents and tokens, int64, and the tokens' log-probabilities and totals, float32.
    """
    parents, tokens = torch.empty(2, batch, count, dtype=torch.int64).unbind(0)
    token_scores, totals = logits.new_empty(2, batch, count).unbind(0)
    return parents, tokens, token_scores, totals


@cache
def _kernels() -> tuple[dict[str, CompiledKernel], int]:
    """Return a dict of the kernels `reduce` (top-k, log-sum-exp) and `select` (beam selection), and the block size.

    The block size is the number of logits whose maximum the top-k search keeps.
    """
    block = 0

    def emit(k: KernelBuilder) -> None:
        nonlocal block
        block = block_size(k)
        _write_reduce(k)
        emit_select(k)

    return compile_kernels("reductions", require_integer_tile(), ("reduce", "select"), emit), block


@outlined
def _write_reduce(k: KernelBuilder) -> None:
    """Emit the kernel `reduce(logits, N, V, stride, k, values, indices, normalizer, scratch, scratch per thread)`.

    The kernel writes the k greatest logits of each row to `values`, and their indices to `indices`. If the address
    `normalizer` is not 0, the kernel also writes each row's log-sum-exp to it.
    """
    with kernel(k, "reduce", 10) as (numbers, thread, threads):
        logits, rows, width, stride, count, values, indices, normalizer, scratch, scratch_per_thread = numbers
        maxima = k.element_pointer(k.pointer(scratch), k.mul(thread, scratch_per_thread))
        with k.thread_loop(rows, (thread, threads)) as row:
            line = LogitsRow(k, k.element_pointer(k.pointer(logits), k.mul(row, stride)), width, maxima)
            line.find_maxima()
            with k.when(k.build.icmp_signed("!=", normalizer, k.int64(0))):
                k.store(line.log_sum_exp(), k.element_pointer(k.pointer(normalizer), row))
            start = k.mul(row, count)
            outputs = (
                k.element_pointer(k.pointer(each), start, kind) for each, kind in ((values, F32), (indices, I64))
            )
            line.store_top_k(count, *outputs)


@outlined
def emit_select(k: KernelBuilder) -> None:
    """Emit the kernel `select`, which selects the best continuations of each sentence's beam.

    The kernel's arguments are the fields of `SelectArguments`.
    """
    with kernel(k, "select", len(SelectArguments._fields)) as (numbers, thread, threads):
        args = SelectArguments(*numbers)
        width, beams, normalizer, beam_size = args.vocabulary_size, args.beams, args.normalizer, args.beam_size
        scratch = k.element_pointer(k.pointer(args.scratch), k.mul(thread, args.scratch_per_thread))
        count = k.mul(beam_size, 2)
        all_candidates = k.mul(beams, count)
        maxima = k.element_pointer(scratch, k.mul(k.add(all_candidates, block_size(k)), 4))
        candidates = _Candidates(k, scratch, all_candidates)
        with k.thread_loop(k.build.sdiv(args.rows, beams), (thread, threads)) as sentence:
            with k.loop(0, beams) as beam:
                row = k.add(k.mul(sentence, beams), beam)
                line = LogitsRow(k, k.element_pointer(k.pointer(args.logits), k.mul(row, args.stride)), width, maxima)
                row_normalizer, start = k.variable(k.float32(0.0)), k.mul(beam, count)
                best = k.element_pointer(candidates.scores, start), k.element_pointer(candidates.tokens, start, I64)
                with k.build.if_else(k.is_nonzero(args.rules)) as (with_rules, without):
                    with with_rules:
                        rules = Rules(k, args, sentence, row)
                        k.store(rules.store_top_k(line, count, *best), row_normalizer)
                    with without:
                        line.find_maxima()
                        with k.build.if_else(k.is_nonzero(normalizer)) as (is_known, is_open):
                            with is_known:
                                k.store(k.load(k.element_pointer(k.pointer(normalizer), row)), row_normalizer)
                            with is_open:
                                k.store(line.log_sum_exp(), row_normalizer)
                        line.store_top_k(count, *best)
                score = k.load(k.element_pointer(k.pointer(args.scores), row))
                candidates.add_up(start, count, k.load_variable(row_normalizer), score)
            candidates.close()
            live = _Selected(k, args.live, k.mul(sentence, beam_size))
            ended = _Selected(k, args.ended, k.mul(sentence, count))
            _select_best(k, candidates, (count, beam_size, args.eos_id), live, ended)


class RuleResult(NamedTuple):
    """The outcome of the search rules for the next token of a hypothesis, as IR values."""

    normalizer: Any
    """The log-sum-exp to subtract from a logit to get its log-probability."""
    forced: Any
    """The token id that must come next; -1: none."""
    forced_value: Any
    """The log-probability of the forced token; 0 if its probability is 1, or if no token is forced."""


class Rules:
    """An emitter of the search rules (forced, forbidden, penalized tokens) for the next token of one hypothesis."""

    def __init__(self, k: KernelBuilder, args: SelectArguments, sentence: Value, row: Value) -> None:
        """Create the emitter for one hypothesis, from its index `row` in the batch and the index of its sentence."""
        self.k = k
        self.fields = Fields(k, k.pointer(args.rules), RuleArguments._fields)
        self.eos_id = args.eos_id
        self.sentence = sentence
        self.index = self.fields.element("indices", sentence, I64)
        self.position = k.build.sub(self.fields.get("length"), self.fields.element("joined", sentence, I64))
        self.start = self.fields.element("starts", self.index, I64)
        self.length = k.build.sub(self.position, self.start)
        """The number of tokens of the hypothesis so far (an IR value), without context, which rules ignore."""
        self.history = self.fields.at("tokens", k.add(k.mul(row, self.fields.get("capacity")), self.start), I32)

    def apply(self, line: LogitsRow) -> "RuleResult":
        """Emit the search rules for a row of logits, which change the row in place; return a `RuleResult`.

        The tokens in `RuleArguments.never` get -inf. Unless a token is forced, forbidden tokens also get -inf, and
        penalties change the logits of tokens that occurred. The maxima of the row's blocks are stored for a top-k
        search.
        """
        k, fields = self.k, self.fields
        normalizer = k.variable(k.float32(0.0))
        renormalizes = k.is_nonzero(fields.get("renormalizes"))
        with k.loop(0, fields.get("never_count")) as number:
            id = fields.element("never", number, I64)
            k.store(k.float32(_NEVER), k.element_pointer(line.pointer, id))
        line.find_maxima()
        forced, is_certain = self._forced_token()
        with k.when(k.build.or_(k.build.not_(renormalizes), k.is_nonzero(fields.get("penalizes")))):
            k.store(line.log_sum_exp(), normalizer)
        is_forced, forced_value = k.build.icmp_signed(">=", forced, k.int64(0)), k.variable(k.float32(0.0))
        with k.build.if_else(is_forced) as (then, otherwise):
            with then, k.when(k.build.not_(k.build.or_(is_certain, renormalizes))):
                logit = k.load(k.element_pointer(line.pointer, forced))
                k.store(k.build.fsub(logit, k.load_variable(normalizer)), forced_value)
            with otherwise:
                with k.when(k.is_nonzero(fields.get("penalizes"))):
                    self._penalize(line, k.load_variable(normalizer))
                self._forbid(line)
                with k.when(renormalizes):
                    k.store(line.log_sum_exp(), normalizer)
        return RuleResult(k.load_variable(normalizer), forced, k.load_variable(forced_value))

    def store_top_k(self, line: LogitsRow, count: Value, values: Value, indices: Value) -> Value:
        """Emit the rules, and a store of the `count` greatest permitted logits and their indices.

        Return (an IR value) the log-sum-exp to subtract from the logits. If a token is forced, it takes all `count`
        entries, and all but the first have the logit -inf.
        """
        k, result = self.k, self.apply(line)
        with k.build.if_else(k.build.icmp_signed(">=", result.forced, k.int64(0))) as (then, otherwise):
            with then:
                with k.loop(0, count) as number:
                    k.store(k.float32(_NEVER), k.element_pointer(values, number))
                    k.store(result.forced, k.element_pointer(indices, number, I64))
                k.store(k.build.fadd(result.forced_value, result.normalizer), values)
            with otherwise:
                line.store_top_k(count, values, indices)
        return result.normalizer

    def _forced_token(self) -> tuple[Value, Value]:
        """Return (IR values) the token that must come next (-1: none), and whether its probability counts as 1."""
        k, fields = self.k, self.fields
        position, count = self.position, fields.get("forced_count")
        token = k.variable(k.int64(-1))
        with k.when(k.build.icmp_signed("<", position, count)):
            k.store(fields.element("forced", k.add(k.mul(self.index, count), position), I64), token)
        forced_last, first = fields.get("forced_last"), k.load_variable(token)
        is_last = k.build.and_(
            k.build.icmp_signed(">=", forced_last, k.int64(0)),
            k.build.icmp_signed("==", k.add(position, 1), fields.element("max_lengths", self.sentence, I64)),
        )
        is_early = k.build.icmp_signed("<", self.length, fields.get("certain_count"))
        return k.build.select(is_last, forced_last, first), k.build.or_(is_last, is_early)

    def _forbid(self, line: LogitsRow) -> None:
        """Emit the rules that set logits to -inf.

        The rules are for forbidden tokens, for the end symbol before the minimum length, and for tokens that would
        repeat an n-gram. Each further end token also gets -inf, after its logit is joined with that of the end symbol.
        """
        k, fields = self.k, self.fields
        with k.loop(0, fields.get("more_ends_count")) as number:
            id = fields.element("more_ends", number, I64)
            other, end = (k.load(k.element_pointer(line.pointer, each)) for each in (id, self.eos_id))
            line.replace(self.eos_id, self._joined(other, end))
            line.replace(id, k.float32(_NEVER))
        with k.loop(0, fields.get("forbidden_count")) as number:
            line.replace(fields.element("forbidden", number, I64), k.float32(_NEVER))
        with k.when(k.build.icmp_signed("<", self.length, fields.get("min_length"))):
            line.replace(self.eos_id, k.float32(_NEVER))
        with k.when(k.is_nonzero(fields.get("ngram"))):
            self._forbid_repetitions(line)

    def _penalize(self, line: LogitsRow, normalizer: Value) -> None:
        """Emit the penalties of tokens that occurred, as `search.rules.RepetitionPenalty` computes them.

        `normalizer` is the row's log-sum-exp. It matters only if penalties change log-probabilities instead of logits.
        """
        k, fields = self.k, self.fields
        repetition, frequency, presence = (
            k.float_from_bits(fields.get(name)) for name in ("repetition", "frequency", "presence")
        )
        of_log_probabilities = k.is_nonzero(fields.get("penalizes_log_probabilities"))
        offset = k.build.select(of_log_probabilities, normalizer, k.float32(0.0))
        index, length, history = self.index, self.length, self.history
        before = fields.at("before", k.mul(index, fields.get("before_stride")), I64)
        count = fields.element("before_counts", index, I64)
        values = k.element_pointer(line.maxima, k.add(line.blocks, 2 * line.block))  # scratch space behind the maxima

        def each_token(*, of_output: bool) -> Iterator[tuple[Value, Value]]:
            """Emit loops over the input tokens and the output tokens; yield each token's id and index.

            If `of_output`, the input tokens are left out.
            """
            if not of_output:
                with k.loop(0, count) as number:
                    yield k.load(k.element_pointer(before, number, I64), I64), number
            with k.loop(0, length) as number:
                token = k.load(k.element_pointer(history, number, I32), I32)
                yield k.build.zext(token, I64), k.add(count, number)

        # All values are read before the first one changes, so that a token that occurs twice changes once.
        for of_output in (False, True):
            for token, number in each_token(of_output=of_output):
                k.store(k.load(k.element_pointer(line.pointer, token)), k.element_pointer(values, number))
            for token, number in each_token(of_output=of_output):
                value = k.load(k.element_pointer(values, number))
                scaled = self._scaled(k.build.fsub(value, offset), repetition, offset)
                line.replace(token, k.build.fsub(value, presence) if of_output else scaled)
        for token, _ in each_token(of_output=True):
            line.replace(token, k.build.fsub(k.load(k.element_pointer(line.pointer, token)), frequency))

    def _scaled(self, score: Value, factor: Value, offset: Value) -> Value:
        """Return (an IR value) a score times or divided by a factor, plus `offset`.

        A negative score is multiplied, another one divided. So a factor above 1 makes the token less likely.
        """
        k = self.k
        is_negative = k.build.fcmp_ordered("<", score, k.float32(0.0))
        scaled = k.build.select(is_negative, k.build.fmul(score, factor), k.build.fdiv(score, factor))
        return k.build.fadd(scaled, offset)

    def _joined(self, one: Value, other: Value) -> Value:
        """Return (an IR value) one logit for two end tokens.

        If `RuleArguments.sums_ends` is 1, as in sampling, it is the logit of the sum of both probabilities. Otherwise
        it is the greater logit.
        """
        k, joined = self.k, self.k.variable(self.k.maximum(one, other))
        greater = k.load_variable(joined)
        is_possible = k.build.fcmp_ordered(">", greater, k.float32(_NEVER))
        with k.when(k.build.and_(k.is_nonzero(self.fields.get("sums_ends")), is_possible)):
            powers = (exponential(k, k.splat(k.build.fsub(each, greater))) for each in (one, other))
            parts = (k.build.extract_element(power, ir.Constant(I32, 0)) for power in powers)
            k.store(k.build.fadd(greater, k.intrinsic("llvm.log.f32", F32, k.build.fadd(*parts))), joined)
        return k.load_variable(joined)

    def _forbid_repetitions(self, line: LogitsRow) -> None:
        """Emit the rule that forbids every token that would complete an n-gram of the hypothesis a second time."""
        k, fields = self.k, self.fields
        before = k.add(fields.get("ngram"), -1)  # tokens of an n-gram before its last one
        length, history = self.length, self.history
        end = k.build.sub(length, before)  # the newest tokens start here
        with k.loop(0, end) as first:
            differences = k.variable(k.int64(0))
            with k.loop(0, before) as number:
                positions = (k.add(start, number) for start in (first, end))
                one, other = (k.load(k.element_pointer(history, each, I32), I32) for each in positions)
                k.accumulate(differences, k.build.zext(k.build.icmp_signed("!=", one, other), I64), k.add)
            with k.when(k.build.icmp_signed("==", k.load_variable(differences), k.int64(0))):
                token = k.load(k.element_pointer(history, k.add(first, before), I32), I32)
                line.replace(k.build.zext(token, I64), k.float32(_NEVER))


class _Candidates:
    """Pointers to scratch arrays with the best continuations of all hypotheses of one sentence."""

    def __init__(self, k: KernelBuilder, scratch: Value, total_count: Value) -> None:
        self.k = k
        self.whole = total_count
        part = k.add(total_count, block_size(k))
        self.totals = scratch
        self.scores = k.element_pointer(scratch, part)
        self.tokens = k.element_pointer(scratch, k.mul(part, 2))  # int64, hence twice the size

    def add_up(self, start: Value, count: Value, normalizer: Value, score: Value) -> None:
        """Emit the conversion of a hypothesis' candidates from logits to log-probabilities and totals.

        Args:
            start: the index of the hypothesis' first candidate.
            count: the number of the hypothesis' candidates.
            normalizer: the log-sum-exp of the hypothesis' logits.
            score: the total log-probability of the hypothesis.
        """
        k = self.k
        with k.loop(0, count) as number:
            index = k.add(start, number)
            score_of_token = k.build.fsub(k.load(k.element_pointer(self.scores, index)), normalizer)
            k.store(score_of_token, k.element_pointer(self.scores, index))
            k.store(k.build.fadd(score, score_of_token), k.element_pointer(self.totals, index))

    def close(self) -> None:
        """Emit a store of -inf after the candidates' totals, so that vector loads may read past the last one."""
        self.k.store(self.k.splat(_NEVER), self.k.element_pointer(self.totals, self.whole))


class _Selected:
    """Pointers into the output arrays of selected continuations: parents, tokens, log-probabilities and totals.

    `addresses` is `SelectArguments.live` or `SelectArguments.ended`. The pointers are to element `start` of each array.
    """

    def __init__(self, k: KernelBuilder, addresses: tuple[Value, ...], start: Value) -> None:
        pairs = zip(addresses, (I64, I64, F32, F32), strict=True)
        self.k, self.arrays = k, [(k.element_pointer(k.pointer(each), start, kind), kind) for each, kind in pairs]

    def store(self, number: Value, *values: Value) -> None:
        """Emit the store of a continuation (parent, token, token's score, total) at index `number` of the arrays."""
        for (array, kind), value in zip(self.arrays, values, strict=True):
            self.k.store(value, self.k.element_pointer(array, number, kind))


def _select_best(
    k: KernelBuilder, candidates: _Candidates, sizes: tuple[Value, ...], live: _Selected, ended: _Selected
) -> None:
    """Emit the selection of a sentence's best candidates, best first.

    Among equal candidates, that of the first hypothesis wins. `sizes` has the number of candidates to select, the beam
    size and the end symbol. `live` receives the best candidates that do not end, padded with totals of -inf to the beam
    size. `ended` receives all selected candidates. Their totals are -inf, except for candidates that end and are among
    the beam size best.
    """
    count, beam_size, end = sizes
    live_counter = k.variable(k.int64(0))  # selected candidates that do not end
    with k.loop(0, count) as number:
        total, index = emit_argmax(k, candidates.totals, candidates.whole)
        k.store(k.float32(_NEVER), k.element_pointer(candidates.totals, index))
        parent = k.build.sdiv(index, count)
        token = k.load(k.element_pointer(candidates.tokens, index, I64), I64)
        score = k.load(k.element_pointer(candidates.scores, index))
        ends = k.build.icmp_signed("==", token, end)
        counts = k.build.and_(ends, k.build.icmp_signed("<", number, beam_size))
        ended.store(number, parent, token, score, k.build.select(counts, total, k.float32(_NEVER)))
        live_count = k.load_variable(live_counter)
        fits = k.build.icmp_signed("<", live_count, beam_size)
        with k.when(k.build.and_(k.build.not_(ends), fits)):
            live.store(live_count, parent, token, score, total)
            k.store(k.add(live_count, 1), live_counter)
    # If rules leave too few candidates, the others are hypotheses with a probability of zero.
    nobody, never = k.int64(0), k.float32(_NEVER)
    with k.loop(k.load_variable(live_counter), beam_size) as number:
        live.store(number, nobody, nobody, never, never)


# --- sampling: temperature, top-k, top-p and min-p, as search.greedy.draw does ---
# Legend: N sentences at first, B of them still decoded, W samples of each, V vocabulary size, T greatest number of
# steps.


class DrawArguments(NamedTuple):
    """Arguments of the emitted function `draw`, which draws samples of tokens: addresses, unless stated otherwise."""

    uniform: Any
    """Address of random numbers in [0, 1) by index in the input batch, step and sample, float32 (N, T, W)."""
    steps: Any
    """The number of steps T for which `uniform` has random numbers."""
    indices: Any
    """Address of each sentence's index in the input batch, int64 (B,), by which `uniform` is read."""
    inverse_temperature: Any
    """The bits of a float32: 1 / temperature."""
    top_k: Any
    """The number of likeliest tokens among which a token is drawn; V: all tokens."""
    top_p: Any
    """The bits of a float32: the likeliest tokens with this fraction of `top_k` tokens' probability may be drawn."""
    min_p: Any
    """The bits of a float32: tokens with less than this fraction of the greatest probability are not drawn."""
    is_truncated: Any
    """1 if top_k, top_p or min_p excludes tokens, else 0."""
    probabilities: Any
    """Address of scratch space for the probabilities of a row's likeliest tokens, float32 (threads, V)."""
    logits: Any
    """Address of scratch space for the logits of a row's likeliest tokens, float32 (threads, V)."""
    tokens: Any
    """Address of scratch space for the ids of a row's likeliest tokens, int64 (threads, V)."""


@outlined
def emit_draw(k: KernelBuilder) -> None:
    """Emit `draw(select, draw, thread, threads)`, which draws the next token of each sample of each sentence.

    `select` points to the values of `SelectArguments`, and `draw` to those of `DrawArguments`. The results are written
    to the arrays `live_…` of `SelectArguments`, W for each sentence. Once a sample has ended, its total is -inf, and
    all its further tokens are end symbols.
    """
    with k.function("draw", POINTER, POINTER, I64, I64) as (select_pointer, draw_pointer, thread, threads):
        select = Fields(k, select_pointer, SelectArguments._fields)
        args = SelectArguments(*(select.get(name) for name in SelectArguments._fields))
        live = _Selected(k, args.live, k.int64(0))
        draw = Fields(k, draw_pointer, DrawArguments._fields)
        sentences = k.thread_loop(k.build.sdiv(args.rows, args.beams), (thread, threads))
        with sentences as sentence, k.loop(0, args.beams) as beam:
            row = k.add(k.mul(sentence, args.beams), beam)
            # At the first step all samples of a sentence draw from the only row.
            is_first = k.build.icmp_signed("<", args.beams, args.beam_size)
            count = k.build.select(is_first, args.beam_size, k.int64(1))
            score = k.load(k.element_pointer(k.pointer(args.scores), row))
            is_over = k.build.fcmp_ordered("==", score, k.float32(_NEVER))
            with k.build.if_else(is_over) as (then, otherwise):
                with then:
                    index = k.add(k.mul(sentence, args.beam_size), beam)
                    live.store(index, beam, args.eos_id, k.float32(0.0), k.float32(_NEVER))
                with otherwise:
                    _Draw(k, args, draw, (sentence, row), thread).store_samples(beam, count, live)


class _Draw:
    """An emitter of draws of next tokens from one row of logits, to which the search rules are applied.

    The row's likeliest tokens are moved to a thread's scratch space in order of probability, as many as a draw needs.
    """

    def __init__(
        self, k: KernelBuilder, args: SelectArguments, draw: Fields, numbers: tuple[Value, Value], thread: Value
    ) -> None:
        """Emit the search rules for a row of logits, and the row's softmax denominator (with temperature).

        `numbers` are the index of the sentence and the index of the row.
        """
        self.k, self.args, self.draw, (self.sentence, self.row) = k, args, draw, numbers
        start = k.mul(thread, args.vocabulary_size)
        self.probabilities, self.logits = (draw.at(name, start) for name in ("probabilities", "logits"))
        self.tokens = draw.at("tokens", start, I64)
        maxima = k.element_pointer(k.pointer(args.scratch), k.mul(thread, args.scratch_per_thread))
        pointer = k.element_pointer(k.pointer(args.logits), k.mul(self.row, args.stride))
        self.line = LogitsRow(k, pointer, args.vocabulary_size, maxima)
        self.rules = Rules(k, args, self.sentence, self.row)
        self.choice = self.rules.apply(self.line)
        self.factor = k.float_from_bits(draw.get("inverse_temperature"))
        self.greatest = self.line.greatest()[0]
        self.denominator = self.line.sum_of_exponentials(self.greatest, self.factor)
        self.taken = k.variable(k.int64(0))

    def store_samples(self, beam: Value, count: Value, live: _Selected) -> None:
        """Emit the draw of one token for each of `count` samples, and the store of the tokens in `live`.

        `beam` is the index of the first sample among the samples of the sentence.
        """
        k, args, draw, choice = self.k, self.args, self.draw, self.choice
        total = k.variable(ir.Constant(F64, 1.0))
        is_forced = k.build.icmp_signed(">=", choice.forced, k.int64(0))
        with k.when(k.build.and_(k.is_nonzero(draw.get("is_truncated")), k.build.not_(is_forced))):
            k.store(self._take_permitted(), total)
        score = k.load(k.element_pointer(k.pointer(args.scores), self.row))
        with k.loop(0, count) as number:
            sample = k.add(beam, number)
            token, value = k.variable(choice.forced), k.variable(choice.forced_value)
            with k.when(k.build.not_(is_forced)):
                step = k.add(k.mul(draw.element("indices", self.sentence, I64), draw.get("steps")), self.rules.position)
                uniform = draw.element("uniform", k.add(k.mul(step, args.beam_size), sample))
                index = self._find(k.build.fmul(k.build.fpext(uniform, F64), k.build.load(total, typ=F64)))
                k.store(k.load(k.element_pointer(self.tokens, index, I64), I64), token)
                k.store(k.build.fsub(k.load(k.element_pointer(self.logits, index)), choice.normalizer), value)
            drawn, log_probability = k.load_variable(token), k.load_variable(value)
            ends = k.build.icmp_signed("==", drawn, args.eos_id)
            new_total = k.build.select(ends, k.float32(_NEVER), k.build.fadd(score, log_probability))
            parent = k.build.select(k.build.icmp_signed("<", args.beams, args.beam_size), k.int64(0), sample)
            live.store(k.add(k.mul(self.sentence, args.beam_size), sample), parent, drawn, log_probability, new_total)

    def _take(self) -> Value:
        """Emit the move of the row's likeliest token to the end of the scratch space; return its probability."""
        k = self.k
        value, index = self.line.take_greatest()
        scaled = k.splat(k.build.fmul(k.build.fsub(value, self.greatest), self.factor))
        power = k.build.extract_element(exponential(k, scaled), ir.Constant(I32, 0))
        probability = k.build.fdiv(power, self.denominator)
        taken = k.load_variable(self.taken)
        k.store(probability, k.element_pointer(self.probabilities, taken))
        k.store(value, k.element_pointer(self.logits, taken))
        k.store(index, k.element_pointer(self.tokens, taken, I64))
        k.store(k.add(taken, 1), self.taken)
        return probability

    def _take_permitted(self) -> Value:
        """Emit the move of the tokens that top-k, top-p and min-p permit; return their total probability, float64."""
        k, draw, top_k = self.k, self.draw, self.draw.get("top_k")
        top_p, min_p = (k.float_from_bits(draw.get(name)) for name in ("top_p", "min_p"))
        first = self._take()  # always permitted
        total, of_top_k = (k.variable(k.build.fpext(first, F64)) for _ in range(2))
        is_limited = k.build.icmp_signed("<", top_k, self.args.vocabulary_size)
        has_both = k.build.and_(is_limited, k.build.fcmp_ordered("<", top_p, k.float32(1.0)))
        with k.loop(1, k.build.select(has_both, top_k, k.int64(1))):
            k.store(k.build.fadd(k.build.load(of_top_k, typ=F64), k.build.fpext(self._take(), F64)), of_top_k)
        whole = k.build.select(has_both, k.build.fptrunc(k.build.load(of_top_k, typ=F64), F32), k.float32(1.0))
        limit, least = k.build.fmul(top_p, whole), k.build.fmul(min_p, first)
        permitted = k.variable(k.int64(1))
        with k.do_while() as done:
            sum_so_far, current = k.build.load(total, typ=F64), k.load_variable(permitted)
            is_full = k.build.fcmp_ordered(">=", k.build.fptrunc(sum_so_far, F32), limit)
            stops = k.variable(k.build.or_(is_full, k.build.icmp_signed(">=", current, top_k)))
            with k.when(k.build.not_(k.load_variable(stops))):
                probability = self._probability(current)
                is_possible = k.build.fcmp_ordered(">", probability, k.float32(0.0))
                is_likely = k.build.and_(is_possible, k.build.fcmp_ordered(">=", probability, least))
                k.store(k.build.not_(is_likely), stops)
                with k.when(is_likely):
                    k.store(k.build.fadd(sum_so_far, k.build.fpext(probability, F64)), total)
                    k.store(k.add(current, 1), permitted)
            done(k.load_variable(stops))
        k.store(k.load_variable(permitted), self.taken)
        return k.build.load(total, typ=F64)

    def _probability(self, index: Value) -> Value:
        """Return (an IR value) the probability, float32, of the token with rank `index` (0: the likeliest).

        If the token is not in the scratch space yet, it is moved there. So no rank may be skipped.
        """
        k = self.k
        with k.when(k.build.icmp_signed(">=", index, k.load_variable(self.taken))):
            self._take()
        return k.load(k.element_pointer(self.probabilities, index))

    def _find(self, bound: Value) -> Value:
        """Return (an IR value) the rank of the first token with which the cumulative probability exceeds a bound.

        The bound is float64. Tokens are moved to scratch space as needed. If rounding keeps the sum below the bound,
        the result is the rank of the last token with a probability above 0.
        """
        k, draw = self.k, self.draw
        taken, is_truncated = k.load_variable(self.taken), k.is_nonzero(draw.get("is_truncated"))
        limit = k.build.select(is_truncated, taken, self.args.vocabulary_size)
        total, index = k.variable(ir.Constant(F64, 0.0)), k.variable(k.int64(0))
        found = k.variable(k.int64(0))
        with k.do_while() as done:
            current = k.load_variable(index)
            probability = self._probability(current)
            new_total = k.build.fadd(k.build.load(total, typ=F64), k.build.fpext(probability, F64))
            k.store(new_total, total)
            k.store(k.add(current, 1), index)
            # Rounding may keep the sum of all probabilities below the bound: the last possible token is drawn then.
            is_possible = k.build.fcmp_ordered(">", probability, k.float32(0.0))
            k.store(k.build.select(is_possible, current, k.load_variable(found)), found)
            stops = k.build.or_(k.build.fcmp_ordered(">", new_total, bound), k.build.not_(is_possible))
            done(k.build.or_(stops, k.build.icmp_signed(">=", k.add(current, 1), limit)))
        return k.load_variable(found)
