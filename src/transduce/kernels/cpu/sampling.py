"""Draw the next tokens of a batch in machine code: temperature, top-k, top-p and min-p, as `search.greedy.draw` does.

Legend: N sentences at first, B of them still decoded, W samples of each, V vocabulary size, T greatest number of steps.
"""

from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.decode_rows import exponential
from transduce.kernels.cpu.jit.ir_builder import F32, F64, I32, I64, POINTER, Fields, KernelBuilder, Value
from transduce.kernels.cpu.logits import LogitsRow
from transduce.kernels.cpu.selection import Rules, SelectArguments

_NEVER = float("-inf")


class DrawArguments(NamedTuple):
    """Arguments of the kernel function `draw`: addresses, unless stated otherwise."""

    uniform: Any
    """Random numbers in [0, 1) by index in the input batch, step and sample, float32 (N, T, W)."""
    steps: Any
    """The number of steps T in `uniform`."""
    indices: Any
    """Each sentence's index in the input batch, int64 (B,)."""
    inverse_temperature: Any
    """The bits of a float32: 1 / temperature."""
    top_k: Any
    """The number of most likely tokens that may be drawn; V: all."""
    top_p: Any
    """The bits of a float32: only the likeliest tokens that together have this probability are drawn."""
    min_p: Any
    """The bits of a float32: tokens with less than this share of the greatest probability are not drawn."""
    is_truncated: Any
    """1 if top_k, top_p or min_p excludes tokens, else 0."""
    probabilities: Any
    """Scratch space for the probabilities of a row's likeliest tokens, float32 (threads, V)."""
    logits: Any
    """Scratch space for the logits of a row's likeliest tokens, float32 (threads, V)."""
    tokens: Any
    """Scratch space for the ids of a row's likeliest tokens, int64 (threads, V)."""


def emit_draw(k: KernelBuilder) -> None:
    """Emit `draw(select, draw, thread, threads)`, which draws a token for each sample of each sentence.

    The arguments are pointers to `selection.SelectArguments` and `DrawArguments`. The results are the live candidates
    of `select`, W for each sentence. A sample that has ended has the total -inf, and its next tokens are end symbols.
    """
    with k.function("draw", POINTER, POINTER, I64, I64) as (select_pointer, draw_pointer, thread, threads):
        select = Fields(k, select_pointer, SelectArguments._fields)
        args = SelectArguments(*(select.get(name) for name in SelectArguments._fields))
        draw = Fields(k, draw_pointer, DrawArguments._fields)
        first, last = k.thread_range(k.build.sdiv(args.rows, args.beams), thread, threads)
        with k.loop(first, last) as sentence, k.loop(0, args.beams) as beam:
            row = k.add(k.mul(sentence, args.beams), beam)
            # At the first step all samples of a sentence draw from the only row.
            is_first = k.build.icmp_signed("<", args.beams, args.beam_size)
            count = k.build.select(is_first, args.beam_size, k.int64(1))
            is_over = k.build.fcmp_ordered("==", select.element("scores", row), k.float32(_NEVER))
            with k.build.if_else(is_over) as (then, otherwise):
                with then:
                    index = k.add(k.mul(sentence, args.beam_size), beam)
                    _store_candidate(select, index, (beam, args.eos_id, k.float32(0.0), k.float32(_NEVER)))
                with otherwise:
                    _draw_from_row(_Row(k, args, select, draw, thread), sentence, (row, beam), count)


class _Row:
    """Arguments of the kernel and pointers to a thread's scratch space, for drawing tokens from rows of logits."""

    def __init__(self, k: KernelBuilder, args: SelectArguments, select: Fields, draw: Fields, thread: Value) -> None:
        self.k = k
        self.args = args
        self.select = select
        self.draw = draw
        start = k.mul(thread, args.vocabulary_size)
        self.probabilities, self.logits = (draw.at(name, start) for name in ("probabilities", "logits"))
        self.tokens = draw.at("tokens", start, I64)
        scratch = k.element_pointer(k.pointer(args.scratch), k.mul(thread, args.scratch_per_thread))
        self.maxima = scratch


def _draw_from_row(context: _Row, sentence: Value, numbers: tuple[Value, Value], count: Value) -> None:
    """Emit the drawing of `count` samples of a sentence from one row of logits.

    `numbers` is the index of the row, and that of the first sample among the sentence's samples.
    """
    k, args, draw, (row, beam) = context.k, context.args, context.draw, numbers
    pointer = k.element_pointer(k.pointer(args.logits), k.mul(row, args.stride))
    line = LogitsRow(k, pointer, args.vocabulary_size, context.maxima)
    rules = Rules(k, args, sentence, row)
    choice = rules.apply(line)
    sorted_row = _SortedRow(context, line)
    total = k.variable(ir.Constant(F64, 1.0))
    is_forced = k.build.icmp_signed(">=", choice.forced, k.int64(0))
    with k.when(k.build.and_(k.is_nonzero(draw.get("is_truncated")), k.build.not_(is_forced))):
        k.store(sorted_row.take_permitted(), total)
    score = context.select.element("scores", row)
    with k.loop(0, count) as number:
        sample = k.add(beam, number)
        token, value = k.variable(choice.forced), k.variable(choice.forced_value)
        with k.when(k.build.not_(is_forced)):
            step = k.add(k.mul(draw.element("indices", sentence, I64), draw.get("steps")), rules.length)
            uniform = draw.element("uniform", k.add(k.mul(step, args.beam_size), sample))
            index = sorted_row.find(k.build.fmul(k.build.fpext(uniform, F64), k.build.load(total, typ=F64)))
            k.store(k.load(k.element_pointer(context.tokens, index, I64), I64), token)
            k.store(k.build.fsub(k.load(k.element_pointer(context.logits, index)), choice.normalizer), value)
        drawn, log_probability = k.load_variable(token, sample), k.load_variable(value, score)
        ends = k.build.icmp_signed("==", drawn, args.eos_id)
        new_total = k.build.select(ends, k.float32(_NEVER), k.build.fadd(score, log_probability))
        parent = k.build.select(k.build.icmp_signed("<", args.beams, args.beam_size), k.int64(0), sample)
        _store_candidate(
            context.select,
            k.add(k.mul(sentence, args.beam_size), sample),
            (parent, drawn, log_probability, new_total),
        )


def _store_candidate(select: Fields, index: Value, values: tuple[Value, Value, Value, Value]) -> None:
    """Store a sample's parent, token, log-probability and total at an index of the arrays of live candidates."""
    for name, value in zip(("parents", "tokens", "scores", "totals"), values, strict=True):
        kind = I64 if name in ("parents", "tokens") else F32
        select.k.store(value, select.at(f"live_{name}", index, kind))


class _SortedRow:
    """The tokens of a row of logits, sorted by probability as far as a draw needs them."""

    def __init__(self, context: _Row, line: LogitsRow) -> None:
        """Emit the computation of the softmax's denominator for a row of logits, whose blocks' maxima are known."""
        k = context.k
        self.k, self.context, self.line = k, context, line
        self.factor = k.float_from_bits(context.draw.get("inverse_temperature"))
        self.greatest = line.greatest()[0]
        self.denominator = line.sum_of_exponentials(self.greatest, self.factor)
        self.taken = k.variable(k.int64(0))

    def _take(self) -> Value:
        """Emit the move of the likeliest token from the row to the scratch space; return its probability."""
        k, context = self.k, self.context
        value, index = self.line.take_greatest()
        scaled = k.splat(k.build.fmul(k.build.fsub(value, self.greatest), self.factor))
        power = k.build.extract_element(exponential(k, scaled), ir.Constant(I32, 0))
        probability = k.build.fdiv(power, self.denominator)
        taken = k.load_variable(self.taken, index)
        k.store(probability, k.element_pointer(context.probabilities, taken))
        k.store(value, k.element_pointer(context.logits, taken))
        k.store(index, k.element_pointer(context.tokens, taken, I64))
        k.store(k.add(taken, 1), self.taken)
        return probability

    def take_permitted(self) -> Value:
        """Take the tokens that top-k, top-p and min-p permit, and return the sum of their probabilities (float64)."""
        k, draw = self.k, self.context.draw
        top_p, min_p = (k.float_from_bits(draw.get(name)) for name in ("top_p", "min_p"))
        total = k.variable(k.build.fpext(self._take(), F64))  # the first token is always permitted
        least = k.build.fmul(min_p, k.load(self.context.probabilities))
        with k.do_while() as done:
            sum_so_far = k.build.load(total, typ=F64)
            is_full = k.build.fcmp_ordered(">=", k.build.fptrunc(sum_so_far, F32), top_p)
            is_enough = k.build.icmp_signed(">=", k.load_variable(self.taken, k.int64(0)), draw.get("top_k"))
            stops = k.variable(k.build.or_(is_full, is_enough))
            with k.when(k.build.not_(k.load_variable(stops, is_full))):
                probability = self._take()
                is_likely = k.build.and_(
                    k.build.fcmp_ordered(">=", probability, least),
                    k.build.fcmp_ordered(">", probability, k.float32(0.0)),
                )
                k.store(k.build.not_(is_likely), stops)
                with k.build.if_else(is_likely) as (then, otherwise):
                    with then:
                        k.store(k.build.fadd(sum_so_far, k.build.fpext(probability, F64)), total)
                    with otherwise:
                        k.store(k.add(k.load_variable(self.taken, k.int64(0)), -1), self.taken)
            done(k.load_variable(stops, is_full))
        return k.build.load(total, typ=F64)

    def find(self, bound: Value) -> Value:
        """Return the index of the first token with which the cumulative probability exceeds a bound (float64)."""
        k, draw = self.k, self.context.draw
        limit = k.build.select(
            k.is_nonzero(draw.get("is_truncated")),
            k.load_variable(self.taken, k.int64(0)),
            self.context.args.vocabulary_size,
        )
        total, index = k.variable(ir.Constant(F64, 0.0)), k.variable(k.int64(0))
        found = k.variable(k.int64(0))
        with k.do_while() as done:
            current = k.load_variable(index, limit)
            with k.when(k.build.icmp_signed(">=", current, k.load_variable(self.taken, limit))):
                self._take()
            probability = k.load(k.element_pointer(self.context.probabilities, current))
            new_total = k.build.fadd(k.build.load(total, typ=F64), k.build.fpext(probability, F64))
            k.store(new_total, total)
            k.store(k.add(current, 1), index)
            # Rounding may keep the sum of all probabilities below the bound: the last possible token is drawn then.
            is_possible = k.build.fcmp_ordered(">", probability, k.float32(0.0))
            k.store(k.build.select(is_possible, current, k.load_variable(found, current)), found)
            stops = k.build.or_(k.build.fcmp_ordered(">", new_total, bound), k.build.not_(is_possible))
            done(k.build.or_(stops, k.build.icmp_signed(">=", k.add(current, 1), limit)))
        return k.load_variable(found, limit)
