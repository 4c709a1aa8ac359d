"""Run beam or greedy search for a batch in machine code, to its end or some steps at a time.

Legend: N sentences at first, B sentences that are still decoded, W hypotheses per sentence, T capacity in tokens per
hypothesis, t tokens so far. If sentences may join later, N is the number of sentences for which the buffers suffice.
"""

import ctypes
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from transduce.kernel_interfaces import (
    BatchSearchOptions,
    FoundHypothesis,
    RepetitionPenalties,
    ReservedCapacity,
    SearchRules,
)
from transduce.kernels.cpu.decoding.search_kernel import RANKINGS, SearchArguments, search_kernel
from transduce.kernels.cpu.decoding.state import RESERVED_STEPS, CompiledPromptState, CompiledState, Scratch
from transduce.kernels.cpu.decoding.writer import StepArguments
from transduce.kernels.cpu.jit.compiler import address_of, float_bits, run_timed
from transduce.kernels.cpu.jit.memory import Arena, KernelArguments
from transduce.kernels.cpu.jit.tile import MAX_LANES
from transduce.kernels.cpu.selection import DrawArguments, RuleArguments, SelectArguments, select_scratch_size

_FREE = -1  # where no token is forced
_MIN_VOCABULARY = 64  # minimum vocabulary size: one block of the top-k search
_LARGE_STEP = 25_000_000  # multiplications of a row, as many as there are weights
_MAX_TOKENS = 1 << 22  # tokens of all hypotheses: buffers are allocated for the greatest length up front


def supports_compiled_search(vocabulary_size: int, options: BatchSearchOptions) -> bool:
    """Return whether the compiled search supports a batch with a vocabulary of this size and the given options.

    The vocabulary must be large enough for the candidates, and the buffers must not become too large.
    """
    sentences, max_length, rules = len(options.max_lengths), max(options.max_lengths), options.rules
    if options.reserved is not None:
        sentences, max_length = max(sentences, options.reserved.sentences), max(max_length, options.reserved.tokens)
    rows = sentences * options.beam_size
    candidates = 2 * options.beam_size
    if rules != SearchRules():  # so many tokens may be forbidden in one step
        candidates += max_length + len((*rules.forbidden, *options.forbidden_tokens, *rules.more_ends)) + 1
    return vocabulary_size >= max(_MIN_VOCABULARY, candidates) and max_length * rows <= _MAX_TOKENS


class CompiledBatchSearch:
    """A beam search, greedy search or sampling of a batch in machine code, on compiled CPU kernels.

    The class implements `kernel_interfaces.BatchSearch`.
    """

    def __init__(self, state: CompiledState | CompiledPromptState, options: BatchSearchOptions) -> None:
        """Create a search from a decoding state that has read its sources or prompts and has run no step."""
        self.state = state
        self.longest_prompt = state.longest_source if isinstance(state, CompiledPromptState) else 0
        # Prompts have given the logits of the first step already; the second reads the first new token.
        self.first_position = max(0, self.longest_prompt - 1)
        self.options = options
        self.threads = torch.get_num_threads()  # the number that scratch space is allocated for
        reserved = options.reserved or ReservedCapacity(0, 0, 0)
        self.count = len(options.max_lengths)  # of sentences at first
        self.sentences = max(self.count, reserved.sentences)  # N
        self.rows = self.sentences * options.beam_size  # greatest number of hypotheses
        self.slots = options.beam_size + 1  # finished hypotheses per sentence, and a free slot
        self.capacity = max(max(options.max_lengths, default=0), reserved.tokens)  # T
        own_positions = self.longest_prompt + max(options.max_lengths, default=0)
        self.list_stride = max(own_positions, reserved.positions) + 1
        self.forced_count = max(map(len, options.rules.forced), default=0)
        penalties = options.rules.penalties
        self.before = [] if penalties is None else penalties.before
        self.before_stride = 0 if penalties is None else max([reserved.positions, *map(len, self.before)])
        self.uniform = None if options.sampling is None else self._with_capacity(options.sampling.uniform)
        self._zeroed = Arena(self._zeroed_arrays(), zeroed=True)
        self._uninitialized = Arena(self._uninitialized_arrays())
        self._addresses = self._zeroed.addresses | self._uninitialized.addresses
        # NumPy views, whose slicing takes a fifth of the time of tensors'.
        self._found = tuple(self._uninitialized.tensor(f"finished_{name}").numpy() for name in ("tokens", "values"))
        # With a beam most cache entries are soon dropped; in greedy search all stay, and a target is about as long as
        # its source.
        steps = RESERVED_STEPS if options.beam_size > 1 else min(self.capacity, state.longest_source + RESERVED_STEPS)
        state.pool.reserve(self.count * options.beam_size * steps)
        self.tables = state.compiled.step_positions.until(self.first_position)
        # The greatest number that a hypothesis attends to.
        self.positions = max(state.longest_source, self.list_stride) + MAX_LANES
        self.scratch = Scratch(state.compiled, self.rows, self.positions * self.threads)
        self._begin()
        self._step = self._step_arguments()
        self._rules = self._rule_arguments()
        self._select = self._select_arguments()
        self._draw = self._draw_arguments()
        self._numbers = self._search_arguments()

    def _with_capacity(self, uniform: Tensor) -> Tensor:
        """Return sampling's random numbers (sentences, steps, W) in a tensor with space for sentences that join later.

        The tensor itself is returned if it is large enough.
        """
        count, steps, width = uniform.shape
        if count == self.sentences and steps >= self.capacity:
            return uniform
        whole = uniform.new_zeros(self.sentences, max(steps, self.capacity), width)
        whole[:count, :steps] = uniform
        return whole

    def _zeroed_arrays(self) -> Mapping[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return a dict from names to the dtype and shape of each array of the search that starts with zeros."""
        by_sentence, by_row, by_slot = (self.sentences,), (self.rows,), (self.sentences, self.slots)
        options, rules = self.options, self.options.rules
        kinds_and_names = (
            (torch.int64, by_sentence, "indices joined starts max_lengths before_counts finished_counts"),
            (torch.int64, by_row, "newest"),
            (torch.int64, by_slot, "order finished_lengths finished_ended"),
            (torch.float32, by_sentence, "greatest_penalties"),
            (torch.float32, by_row, "scores"),
            (torch.float64, by_slot, "finished_scores"),
            (torch.int64, (2, self.sentences), "sources"),
            (torch.int64, (2, self.rows), "row_sources"),
            (torch.int32, (self.rows, self.list_stride), "lists next_lists"),
        )
        return {name: (dtype, shape) for dtype, shape, names in kinds_and_names for name in names.split()} | {
            "forced": (torch.int64, (self.sentences, self.forced_count)),
            "before": (torch.int64, (self.sentences, self.before_stride)),
            "never": (torch.int64, (len(options.forbidden_tokens),)),
            "forbidden": (torch.int64, (len(rules.forbidden),)),
            "more_ends": (torch.int64, (len(rules.more_ends),)),
        }

    def _uninitialized_arrays(self) -> Mapping[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return a dict from names to the dtype and shape of each array of the search that may start uninitialized."""
        output, beam_size = self.state.output, self.options.beam_size
        history, finished = (self.rows, self.capacity), (self.sentences, self.slots, self.capacity)
        arrays: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            **dict.fromkeys(("tokens", "next_tokens"), (torch.int32, history)),
            **dict.fromkeys(("values", "next_values"), (torch.float32, history)),
            "finished_tokens": (torch.int32, finished),
            "finished_values": (torch.float32, finished),
            "x": (torch.float32, (self.rows, self.state.compiled.d_model)),
            "logits": (torch.float32, (self.rows, output.padded_outputs)),
            "select_scratch": (torch.float32, (self.threads, self._scratch_per_thread())),
        }
        if self.options.sampling is not None:
            by_thread = (self.threads, output.outputs)
            arrays["probabilities"] = arrays["drawn_logits"] = (torch.float32, by_thread)
            arrays["drawn_tokens"] = (torch.int64, by_thread)
        for kind, count in (("live", beam_size), ("ended", 2 * beam_size)):
            for names, dtype in ((("parents", "tokens"), torch.int64), (("scores", "totals"), torch.float32)):
                arrays |= {f"{kind}_{name}": (dtype, (self.sentences, count)) for name in names}
        return arrays

    def _scratch_per_thread(self) -> int:
        """Return the number of float32 numbers of scratch space per thread for token selection and search rules."""
        beam_size = self.options.beam_size
        penalized = 0 if self.options.rules.penalties is None else self.before_stride + self.capacity
        return select_scratch_size(self.state.output.outputs, beam_size, beam_size) + penalized

    def _begin(self) -> None:
        """Fill the search kernel's arrays with the values that they have before the first step."""
        numbers, count = self._zeroed.ctypes_array, self.count
        if isinstance(self.state, CompiledPromptState):
            starts, lengths = [0] * count, self.state.counts.tolist()
            self._zeroed.tensor("lists")[:count, : self.longest_prompt] = self.state.lists[:, : self.longest_prompt]
            logits = self.state.logits_after_prompts()
            self._uninitialized.tensor("logits")[:count, : logits.shape[1]] = logits
        else:
            starts, lengths = self.state.sources.tolist()
        numbers("sources")[:count] = starts
        numbers("sources")[self.sentences : self.sentences + count] = lengths
        numbers("row_sources")[:count] = starts
        numbers("row_sources")[self.rows : self.rows + count] = lengths
        numbers("newest")[:] = [self.options.start_id] * self.rows
        numbers("indices")[:count] = range(count)
        numbers("max_lengths")[:count] = self.options.max_lengths
        contexts = torch.tensor(self.options.rules.context_lengths or [0] * count)
        numbers("starts")[:count] = contexts.tolist()
        own_lengths = torch.tensor(self.options.max_lengths) - contexts
        numbers("greatest_penalties")[:count] = self.options.penalties[own_lengths].tolist()
        numbers("never")[:] = self.options.forbidden_tokens
        numbers("forbidden")[:] = self.options.rules.forbidden
        numbers("more_ends")[:] = self.options.rules.more_ends
        numbers("forced")[: count * self.forced_count] = [
            id for row in self.options.rules.forced for id in (*row, *[_FREE] * (self.forced_count - len(row)))
        ]
        for number, tokens in enumerate(self.before):
            first = number * self.before_stride
            numbers("before")[first : first + len(tokens)] = tokens
            numbers("before_counts")[number] = len(tokens)
        numbers("order")[:] = [*range(self.slots)] * self.sentences

    # --- running ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Tensor:
        """The indices, in the input batch, of the sentences that are still decoded, int64 (B,), a copy."""
        return self._zeroed.tensor("indices")[: self._numbers["sentences"]].clone()

    @property
    def length(self) -> int:
        """The number t of search steps so far.

        A hypothesis has t tokens, or fewer if its sentence joined the search later.
        """
        return self._numbers["length"]

    def advance(self, steps: int, *, max_unfinished: int = 0) -> None:
        """Run at most `steps` search steps; return early once at most `max_unfinished` sentences are unfinished."""
        self._numbers["steps"], self._numbers["max_unfinished"] = steps, max_unfinished
        while self._numbers["sentences"] > max_unfinished and self._numbers["steps"] > 0:
            self._ensure_capacity()
            work = self._numbers["sentences"] * self.options.beam_size * self.state.compiled.step_multiplications
            run_timed(search_kernel(), self._numbers.array, work, self.threads)

    def abandon(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """Remove sentences from the batch before they are finished; return a list of live hypotheses for each.

        `rows` are indices into `active`. Samples that have ended count as live.
        """
        batch, width, lengths = self._numbers["sentences"], self._numbers["width"], self.own_lengths
        tokens, values = self._histories()
        scores = self._zeroed.ctypes_array("scores")
        is_sampling = self.options.sampling is not None  # ended samples are still there
        live: list[list[FoundHypothesis]] = []
        for row in rows:
            rows_of_sentence, length = range(row * width, (row + 1) * width), lengths[row]
            live_rows = [each for each in rows_of_sentence if is_sampling or scores[each] > float("-inf")]
            histories = [(tokens[each, :length].clone(), values[each, :length].clone()) for each in live_rows]
            live.append([FoundHypothesis(*history, ended=False) for history in histories])
        self._keep_sentences([row for row in range(batch) if row not in rows])
        return live

    def live(self) -> tuple[Tensor, Tensor]:
        """Return the live hypotheses' tokens, int64 (B, W, t), and total log-probabilities, float32 (B, W).

        For a sentence that joined later, tokens beyond its own length are undefined.
        """
        batch, width = self._numbers["sentences"], self._numbers["width"]
        tokens = self._histories()[0][: batch * width, : self.length]
        return tokens.long().view(batch, width, -1), self._zeroed.tensor("scores")[: batch * width].view(batch, width)

    def finished(self, index: int, count: int) -> list[FoundHypothesis]:
        """Return a list of at most `count` finished hypotheses of one sentence, best first.

        `index` is the sentence's index in the input batch.
        """
        numbers, first, hypotheses = self._zeroed.ctypes_array, index * self.slots, []
        for slot in numbers("order")[first : first + min(count, numbers("finished_counts")[index])]:
            length, ended = numbers("finished_lengths")[first + slot], numbers("finished_ended")[first + slot]
            tokens, values = (array[index, slot, :length] for array in self._found)
            hypotheses.append(FoundHypothesis(tokens, values, ended=bool(ended)))
        return hypotheses

    # --- sentences that join the batch ----------------------------------------------------------------------------

    @property
    def own_lengths(self) -> list[int]:
        """A list with the number of tokens so far of each unfinished sentence's hypotheses, ordered as `active`."""
        length = self.length
        return [length - joined for joined in self._zeroed.ctypes_array("joined")[: self._numbers["sentences"]]]

    @property
    def gains_by_joining(self) -> bool:
        """True if the model is so large that new sentences should join a running search.

        If the weights exceed the processor's cache, each step reads them from memory. Then one step for many hypotheses
        is much faster than several steps for a few hypotheses each.
        """
        return self.state.compiled.step_multiplications >= _LARGE_STEP

    def can_absorb(self, other: "CompiledBatchSearch") -> bool:
        """Return whether the sentences of another search may join this search.

        The other search must have the same decoder-only model, the same beam size, and sizes that fit this search's
        buffers; this search must have no forced tokens.
        """
        if not isinstance(self.state, CompiledPromptState) or self.state.compiled is not other.state.compiled:
            return False
        sizes = ((each.list_stride, each.capacity, each.before_stride) for each in (other, self))
        fits = all(its <= own for its, own in zip(*sizes, strict=True))
        return fits and other.options.beam_size == self.options.beam_size and not self.forced_count

    def absorb(self, other: "CompiledBatchSearch", indices: Sequence[int]) -> None:
        """Let the live sentences of another search join the batch of this search.

        Args:
            other: a search that has run its first step, and for which `can_absorb` holds. The caller must not use it
                afterwards.
            indices: for each live sentence of `other`, the index that the sentence gets in this search's batch. No
                other sentence may have this index.
        """
        count, width = other._numbers["sentences"], self.options.beam_size
        old, new = self._numbers["sentences"], self._numbers["sentences"] + count
        mine, its = self._zeroed.tensor, other._zeroed.tensor
        self._copy_entries(other, old * width, count * width)
        numbers = its("indices")[:count]
        slots = torch.tensor(indices, dtype=torch.int64)
        for name in ("max_lengths", "greatest_penalties"):
            mine(name)[old:new] = its(name)[:count]
        mine("indices")[old:new] = slots
        mine("joined")[old:new] = self.length - other.length
        mine("sources")[:, old:new] = its("sources")[:, :count]
        rows = slice(old * width, new * width)
        for name in ("newest", "scores"):
            mine(name)[rows] = its(name)[: count * width]
        mine("row_sources")[:, rows] = its("row_sources")[:, : count * width]
        for history, its_history in zip(self._histories(), other._histories(), strict=True):
            history[rows, : other.length] = its_history[: count * width, : other.length]
        for name in ("finished_counts", "order", "finished_scores", "finished_lengths", "finished_ended"):
            mine(name)[slots] = its(name)[numbers]
        for name in ("finished_tokens", "finished_values"):
            found = other._uninitialized.tensor(name)[numbers]
            self._uninitialized.tensor(name)[slots, :, : other.capacity] = found
        if self.before_stride:
            mine("before_counts")[slots] = its("before_counts")[numbers]
            mine("before")[slots, : other.before_stride] = its("before")[numbers]
        if self.uniform is not None and other.uniform is not None:
            steps = min(self.uniform.shape[1], other.uniform.shape[1])
            self.uniform[slots, :steps] = other.uniform[numbers, :steps]
        self._numbers["sentences"], self._numbers["width"] = new, width
        self._step["rows"] = self._select["rows"] = new * width
        self._select["beams"] = width

    def _copy_entries(self, other: "CompiledBatchSearch", first_row: int, rows: int) -> None:
        """Append another search's key/value cache to this search's cache, and copy its lists of cache entries.

        The lists are copied to `rows` hypotheses from `first_row` on. In the copies, the indices of the entries are
        those in this search's cache.
        """
        pool, count = self.state.pool, other._step["used"]
        pool.used = self._step["used"] if first_row else 0
        if not pool.has_capacity(count) and first_row:
            self._compact(first_row)
        if not pool.has_capacity(count):
            pool.reserve(max(count, pool.used // 2))  # a share, so that frequent joining seldom copies the pool
        pool.entries[:, pool.used : pool.used + count] = other.state.pool.entries[:, :count]
        listed = other._lists()[:rows]
        self._lists()[first_row : first_row + rows, : listed.shape[1]] = listed + pool.used
        pool.used += count
        self._use_pool()
        # Own lengths never exceed the capacity, so tables of this size suffice for any number of steps; the last token
        # of a hypothesis is not read.
        self._use_tables(self.list_stride - 2)
        self._numbers["positions"] = 1 << 62

    # --- buffers ---------------------------------------------------------------------------------------------------

    def _ensure_capacity(self) -> None:
        """Make sure that the key/value cache and the position tables suffice for another search step."""
        position, rows = self.first_position + self.length, self._step["rows"]
        pool = self.state.pool
        pool.used = self._step["used"]
        if not self._numbers["is_read"] and not pool.has_capacity(rows):
            self._compact(rows)
        if position >= self._numbers["positions"]:
            self._use_tables(position)

    def _compact(self, rows: int) -> None:
        """Make space in the key/value cache: remove the tokens that none of the first `rows` hypotheses contains."""
        pool, position, lists = self.state.pool, min(self.length, self.list_stride), self._lists()[:rows]
        if self.longest_prompt:
            counts = self._zeroed.tensor("row_sources")[1, :rows, None] - 1
            position = int(counts.max())
            # Elements behind the end of a list are undefined.
            lists = torch.where(torch.arange(position) < counts, lists[:, :position], lists[:, :1])
        self._lists()[:rows, :position] = pool.compact(lists[:, :position], rows)
        self._use_pool()

    def _use_pool(self) -> None:
        """Write the address and the sizes of the key/value cache to the arguments of the decoder step."""
        pool = self.state.pool
        self._step["used"] = pool.used
        self._step["past"] = pool.entries.data_ptr()
        self._step["entries"] = pool.entries.shape[1]

    def _use_tables(self, position: int) -> None:
        """Write the addresses of position tables that include `position` to the arguments of the decoder step."""
        self.tables = self.state.compiled.step_positions.until(position)
        self._numbers["positions"] = self.tables.length
        for name, address in self.tables.addresses().items():
            self._step[name] = address

    def _is_swapped(self) -> bool:
        """Return whether the `next_…` buffers hold the current hypotheses; each step swaps the two sets of buffers."""
        return self._numbers["lists"] != self._addresses["lists"]

    def _lists(self) -> Tensor:
        """Return an int32 tensor (rows, list stride): the key/value cache entries of each hypothesis' tokens."""
        return self._zeroed.tensor("next_lists" if self._is_swapped() else "lists")

    def _histories(self) -> tuple[Tensor, Tensor]:
        """Return the tokens of the current hypotheses, int32, and their log-probabilities: two tensors (rows, T)."""
        next_ = "next_" if self._is_swapped() else ""
        return self._uninitialized.tensor(f"{next_}tokens"), self._uninitialized.tensor(f"{next_}values")

    def _keep_sentences(self, staying: list[int]) -> None:
        """Remove all sentences from the batch but those in `staying`, between two search steps.

        `staying` has indices into `active`.
        """
        batch, width = len(staying), self._numbers["width"]
        sentences = torch.tensor(staying, dtype=torch.int64)
        rows = (sentences[:, None] * width + torch.arange(width)).flatten()
        count, tensor = batch * width, self._zeroed.tensor
        for name in ("indices", "joined", "max_lengths", "greatest_penalties"):
            tensor(name)[:batch] = tensor(name)[sentences]
        tensor("sources")[:, :batch] = tensor("sources")[:, sentences]
        tensor("row_sources")[:, :count] = tensor("row_sources")[:, rows]
        for array in (tensor("newest"), tensor("scores"), *self._histories(), self._lists()):
            array[:count] = array[rows]
        self._numbers["sentences"], self._step["rows"], self._select["rows"] = batch, count, count

    # --- kernel arguments ------------------------------------------------------------------------------------------

    def _step_arguments(self) -> KernelArguments:
        """Return the initial `StepArguments` of the decoder step that the search kernel calls."""
        state, addresses = self.state, self._addresses
        memory = None if isinstance(state, CompiledPromptState) else state.memory
        return KernelArguments(
            StepArguments,
            rows=self.count,
            weights=state.compiled.weights.data_ptr(),
            x=addresses["x"],
            **self.scratch.addresses,
            score_capacity=self.positions,
            firsts=addresses["row_sources"],
            counts=addresses["row_sources"] + 8 * self.rows,  # bytes of an int64
            memory=address_of(memory),
            sources=0 if memory is None else memory.shape[1],
            past=state.pool.entries.data_ptr(),
            entries=state.pool.entries.shape[1],
            used=state.pool.used,
            lists=addresses["lists"],
            list_stride=self.list_stride,
            length=1,
            ids=addresses["newest"],
            **self.tables.addresses(),
            logits=addresses["logits"],
        )

    def _arguments(self, kind: type[Any], **values: int) -> KernelArguments:
        """Return arguments of the class `kind`: `values`, and the address of each array that has another field's name.

        Fields that are neither are 0.
        """
        addresses = {name: self._addresses[name] for name in kind._fields if name in self._addresses}
        return KernelArguments(kind, **(addresses | values))

    def _select_arguments(self) -> KernelArguments:
        """Return the initial `SelectArguments` of the kernel that selects each sentence's continuations."""
        return self._arguments(
            SelectArguments,
            rows=self.count,
            vocabulary_size=self.state.output.outputs,
            stride=self.state.output.padded_outputs,
            beams=1,
            eos_id=self.options.eos_id,
            beam_size=self.options.beam_size,
            scratch=self._addresses["select_scratch"],
            scratch_per_thread=self._scratch_per_thread(),
            rules=ctypes.addressof(self._rules.array),
        )

    def _rule_arguments(self) -> KernelArguments:
        """Return the initial `RuleArguments` of the rules that the token selection applies."""
        rules = self.options.rules
        penalties = rules.penalties or RepetitionPenalties((), 1.0, 0.0, 0.0)
        return self._arguments(
            RuleArguments,
            never_count=len(self.options.forbidden_tokens),
            forbidden_count=len(rules.forbidden),
            more_ends_count=len(rules.more_ends),
            sums_ends=int(self.options.sampling is not None),
            renormalizes=int(rules.renormalizes),
            min_length=rules.min_length,
            ngram=rules.no_repeated_ngrams,
            penalizes=int(rules.penalties is not None),
            repetition=float_bits(penalties.repetition),
            frequency=float_bits(penalties.frequency),
            presence=float_bits(penalties.presence),
            penalizes_log_probabilities=int(self.options.beam_size > 1 and self.options.sampling is None),
            before_stride=self.before_stride,
            forced_count=self.forced_count,
            certain_count=rules.certain_count,
            forced_last=_FREE if rules.forced_last is None else rules.forced_last,
            capacity=self.capacity,
        )

    def _draw_arguments(self) -> KernelArguments:
        """Return the initial `DrawArguments` of the kernel that draws samples.

        If the search does not sample, all fields are 0.
        """
        sampling, vocabulary_size = self.options.sampling, self.state.output.outputs
        if sampling is None or self.uniform is None:
            return KernelArguments(DrawArguments)
        return self._arguments(
            DrawArguments,
            uniform=self.uniform.data_ptr(),
            steps=self.uniform.shape[1],
            inverse_temperature=float_bits(1.0 / sampling.temperature),
            top_k=min(sampling.top_k or vocabulary_size, vocabulary_size),
            top_p=float_bits(sampling.top_p),
            min_p=float_bits(sampling.min_p),
            is_truncated=int(sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0),
            tokens=self._addresses["drawn_tokens"],
            logits=self._addresses["drawn_logits"],
        )

    def _search_arguments(self) -> KernelArguments:
        """Return the initial `SearchArguments` of the search kernel."""
        options, is_sampling = self.options, self.options.sampling is not None
        ranking = "sample" if is_sampling else options.rules.ranking if options.beam_size > 1 else "paper"
        has_prompts = int(isinstance(self.state, CompiledPromptState))
        return self._arguments(
            SearchArguments,
            sentences=self.count,
            width=1,
            step=self.state.compiled.step.address,
            step_arguments=ctypes.addressof(self._step.array),
            select_arguments=ctypes.addressof(self._select.array),
            rule_arguments=ctypes.addressof(self._rules.array),
            draw_arguments=ctypes.addressof(self._draw.array),
            is_read=has_prompts,
            is_ragged=has_prompts,
            list_stride=self.list_stride,
            first_position=self.first_position,
            ranking=RANKINGS.index(ranking),
            beam_size=options.beam_size,
            certain_count=0 if options.beam_size == 1 and not is_sampling else options.n_best,
            capacity=self.capacity,
            positions=self.tables.length,
            penalties=options.penalties.data_ptr(),
            max_rows=self.rows,
            all_sentences=self.sentences,
        )
