"""Run a beam or greedy search for a batch on a GPU by replaying a recorded step that also selects tokens.

The CPU reads the number of unfinished sentences one step late, while the GPU computes the next step, so neither waits.
Hypotheses are copied to the CPU only when sentences leave the batch.

Legend: N sentences at first, B of them still decoded, W hypotheses of each, t tokens so far.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.kernel_interfaces import BatchSearchOptions, FoundHypothesis, SearchRules
from transduce.kernels.cuda import ceil_div, power_of_2
from transduce.kernels.cuda.attention import AttendedPositions
from transduce.kernels.cuda.decode_graph import (
    GpuState,
    RecordedStep,
    StepLayer,
    StepSize,
    acquire_step,
    initial_capacity,
    release_after,
    release_step,
    round_up_size,
    round_up_source,
)
from transduce.kernels.cuda.triton import search as triton_kernels
from transduce.model.positions import LearnedPositions
from transduce.model.transformer import DecodingState, Transformer

# --- recorded step with selection ---
# The step also selects the next tokens, so that search runs without the CPU.
# Legend: B sentences, W hypotheses of each, D model width, V vocabulary size, T capacity in steps, K candidates per
# hypothesis, N finished hypotheses that are kept of each sentence.


_BLOCK, _CHUNK = 4096, 64  # logits per iteration, and per chunk, whose maxima are compared first
_COLUMNS = 128  # listed positions per iteration
_SENTENCES = 32  # sentences per program in greedy search

RECORD_HEADER = 2
"""The number of int32 elements at the start of a sentence's record in `SearchStep.records`.

The elements are the length in tokens, and whether the sentence was cut off at its limit.
"""
RECORD_ENTRY = 3
"""The number of int32 elements for each finished hypothesis in a sentence's record in `SearchStep.records`.

The elements are the step at which the hypothesis ended, the index of the hypothesis that it extends, and the bits of
the end symbol's log-probability.
"""


class SearchStep(RecordedStep):
    """A recorded decoding step (CUDA graph) that also selects the next tokens, greedily or by beam search.

    So the GPU searches without waiting for the CPU.
    """

    def __init__(self, model: Transformer, layers: Sequence[StepLayer], size: StepSize) -> None:
        """Allocate the buffers of a search step; all sentences in them count as finished until a batch is loaded."""
        super().__init__(model, layers, size)
        device, sentences, width, kept = self.past.device, size.sentences, size.hypotheses, size.finished
        steps, rows = size.capacity // width, sentences * width
        self.count = 1 if width == 1 else 2 * width  # K: at most W candidates end, so W others remain
        config = model.config
        self._never = (*config.forbidden_tokens, -1, -1)[:2]
        self.eos_id, self._vocabulary = config.eos_id, config.target_vocabulary_size

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        # Positions that each sentence's hypotheses descend from, as in `AttendedPositions`; in greedy search all.
        self.counts, self.listed = zeros(sentences), zeros(sentences, size.capacity) if width > 1 else None
        self.done, self.remaining, self.limits = zeros(sentences) + 1, zeros(1), zeros(sentences)
        self.scores, self.sums = zeros(sentences, width, dtype=torch.float32), zeros(sentences, width).double()
        self.reaches, self.penalties = zeros(sentences, dtype=torch.float32) + 1, zeros(steps + 1).double() + 1
        # Of every step: each hypothesis' parent, its token, and the bits of the token's log-probability.
        self.history = zeros(steps, sentences, width, 3)
        self.records = zeros(sentences, RECORD_HEADER + RECORD_ENTRY * kept)
        self.finished = zeros(sentences, kept).double()  # scores
        self._values, self._best = zeros(rows, self.count, dtype=torch.float32), zeros(rows, self.count)
        self._normalizers = zeros(rows, dtype=torch.float32)
        self._block = min(_BLOCK, max(_CHUNK, power_of_2(self._vocabulary)))
        chunks = ceil_div(self._vocabulary, self._block) * self._block // _CHUNK
        self._maxima = zeros(rows, power_of_2(chunks), dtype=torch.float32)

    @property
    def attended_past(self) -> AttendedPositions:
        """The cached target positions to which hypotheses attend, an `AttendedPositions`.

        Hypotheses of a sentence whose search is finished attend to no positions.
        """
        return AttendedPositions(counts=self.counts, position_list=self.listed)

    @property
    def bytes(self) -> int:
        """The size in bytes of the search step's key/value caches and logits."""
        return super().bytes + 4 * len(self._normalizers) * self._vocabulary

    def _compute(self) -> None:
        """Run the operations of a decoding step and its token selection, eagerly or while a graph is recorded."""
        model = self._model()
        assert model is not None
        self._out = self.decode(model)
        logits = _logits(self._out.flatten(0, 1), model.output_weight)
        self._find_best(logits, model.output_bias)
        size = self.size
        if size.hypotheses == 1:
            triton_kernels.extend_greedy[(ceil_div(size.sentences, _SENTENCES),)](
                self._values, self._best, self._normalizers, self.done, self.limits, self.tokens, self.history,
                self.records, self.counts, self.sources, self.remaining, self.position, size.sentences, self.eos_id,
                _SENTENCES, num_warps=1,
            )  # fmt: skip
            return
        width, kept = size.hypotheses, size.finished
        triton_kernels.extend_beam[(size.sentences,)](
            self._values, self._best, self._normalizers, self.done, self.limits, self.reaches, self.penalties,
            self.scores, self.sums, self.tokens, self.history, self.records, self.finished, self.listed, self.counts,
            self.sources, self.remaining, self.length, self.position, size.sentences, size.capacity, self.eos_id,
            width, self.count, kept, power_of_2(width), power_of_2(width * self.count), power_of_2(kept + width),
            _COLUMNS, num_warps=1,
        )  # fmt: skip

    def _find_best(self, logits: Tensor, bias: Tensor | None) -> None:
        """Find the best next tokens of each hypothesis, and the log-sum-exp of each row of logits, (rows, V).

        `bias` is that of the output projection, or None. The results go to buffers of the step.
        """
        block = self._block
        triton_kernels.find_top_tokens[(len(logits),)](
            logits, logits if bias is None else bias, self.done, self._values, self._best, self._normalizers,
            self._maxima, self.length, self.position, self._vocabulary, self.size.hypotheses, *self._never,
            bias is not None, self.count, power_of_2(self.count), block // _CHUNK, self._maxima.shape[1], block,
            num_warps=4,
        )  # fmt: skip


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return float32 logits, (rows, V), of states (rows, D) and a matrix (V, D).

    On a GPU the logits are not rounded to bfloat16, in which many of them would be equal.
    """
    if hidden.dtype == torch.bfloat16 and hidden.device.type == "cuda":
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return hidden @ weight.t()


# --- search of a batch ---


_MAX_HYPOTHESES = 8
_FEW_ROWS = 64  # with fewer rows a step takes the same time
_SHRINK = 4  # sentences are moved to a smaller step once this factor smaller suffices


def find_search(state: DecodingState, options: BatchSearchOptions) -> "GpuSearch | None":
    """Return a GPU search for a state before its first step; None if the state or the options are not supported.

    The state must be a `GpuState`. Up to eight hypotheses are supported, and at most half as many as the vocabulary has
    tokens. The end symbol and the forbidden tokens must be the model's own. Search rules and sampling are not
    supported.
    """
    if not isinstance(state, GpuState):
        return None
    config, width = state.model.config, options.beam_size
    is_supported = (
        width <= _MAX_HYPOTHESES
        and config.target_vocabulary_size >= 2 * width
        and options.eos_id == config.eos_id
        and list(options.forbidden_tokens) == config.forbidden_tokens
        and options.rules == SearchRules()
        and options.sampling is None
    )
    return GpuSearch(state, options) if is_supported else None


class GpuSearch:
    """A beam or greedy search for a batch on a GPU, which implements `kernel_interfaces.BatchSearch`."""

    def __init__(self, state: GpuState, options: BatchSearchOptions) -> None:
        """Create a search from a decoding state that has encoded its sentences and has run no step."""
        assert state.encoded is not None
        self.state, self.options = state, options
        self.length = 0  # t
        self._indices = list(range(len(options.max_lengths)))  # in the input batch, of the sentences still decoded
        self._slots = list(self._indices)  # their slots in the step's buffers
        self._left: dict[int, tuple[_Snapshot, int]] = {}  # snapshot and slot of sentences that left, by index
        self._held: list[SearchStep] = []
        release_after(self, state.model, self._held)
        self._penalties = options.penalties.to(state.encoded[0].device)
        self._step = self._acquire_step(initial_capacity(options.beam_size))
        self._step.start_batch(*state.encoded)
        state.encoded = None
        self._begin()
        self._latest_snapshot: tuple[int, _Snapshot] | None = None  # number of steps, and the snapshot

    def _begin(self) -> None:
        """Reset the buffers of the search step (a recorded CUDA graph) for the sentences of a new batch."""
        options, step, count = self.options, self._step, len(self._indices)
        step.done.fill_(1)[:count] = 0
        step.remaining.fill_(count)
        step.tokens.fill_(options.start_id)
        step.scores.fill_(0.0)[:, 1:] = float("-inf")  # only the first hypothesis starts
        step.sums.zero_()
        step.records.zero_()
        step.counts.zero_()
        step.finished.fill_(float("-inf"))
        max_lengths = torch.tensor(options.max_lengths)
        step.limits[:count] = max_lengths.to(step.limits)
        step.reaches[:count] = options.penalties[max_lengths].to(step.reaches)
        self._copy_penalties()

    def _copy_penalties(self) -> None:
        """Copy the length penalties of 0, 1, … tokens to the buffer of the current search step."""
        count = min(len(self._penalties), len(self._step.penalties))
        self._step.penalties[:count] = self._penalties[:count]

    # --- running ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Tensor:
        """The indices, in the input batch, of the sentences that are still decoded, int64 (B,)."""
        return torch.tensor(self._indices, dtype=torch.int64)

    def advance(self, steps: int) -> None:
        """Run at most `steps` search steps; return early once all sentences are finished.

        Finished sentences leave the batch, and the others move to smaller buffers if that is worthwhile.
        """
        max_length = max((self.options.max_lengths[index] for index in self._indices), default=0)
        current: _RemainingCount | None = None
        for _ in range(min(steps, max_length - self.length)):
            self._ensure_capacity()
            if not self._indices:
                break
            with self.state.device_guard:
                self._step.run()
            self.length += 1
            previous, current = current, _RemainingCount(self._step.remaining)
            if previous is None:
                continue
            remaining = previous.read()
            if not remaining:
                break
            if _is_worth_moving(remaining, self._step.size):
                self._remove_finished()
                current = None
        self._remove_finished()

    def abandon(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """Remove sentences from the batch before they are finished; return the live hypotheses of each.

        `rows` are indices into `active`. The result has a list for each row, without hypotheses of probability zero.
        """
        snapshot = self._take_snapshot()
        live = [list(filter(None, snapshot.live(self._slots[row]))) for row in rows]
        for row in rows:
            self._left[self._indices[row]] = snapshot, self._slots[row]
        leaving = [self._slots[row] for row in rows]
        self._step.done[torch.tensor(leaving, device=self._step.done.device)] = 1
        self._step.remaining -= len(leaving)
        self._keep([row for row in range(len(self._indices)) if row not in rows])
        return live

    def live(self) -> tuple[Tensor, Tensor]:
        """Return the live hypotheses' tokens, int64 (B, W, t), and total log-probabilities, (B, W), on the CPU.

        Hypotheses with probability zero have zeros as tokens.
        """
        width, count = self.options.beam_size, len(self._slots)
        tokens = torch.zeros(count, width, self.length, dtype=torch.int64)
        slots = torch.tensor(self._slots, device=self._step.done.device)
        scores = self._step.scores.index_select(0, slots).cpu()
        snapshot = self._take_snapshot()
        for row, slot in enumerate(self._slots):
            for beam, hypothesis in enumerate(snapshot.live(slot)):
                if hypothesis is not None:
                    tokens[row, beam] = torch.as_tensor(hypothesis.tokens)
        return tokens, scores

    def finished(self, index: int, count: int) -> list[FoundHypothesis]:
        """Return a list of at most `count` hypotheses of the sentence at `index` in the input batch, best first.

        Hypotheses that ended come first; live ones follow if the sentence was cut off at its maximum length.
        """
        if index in self._left:
            snapshot, slot = self._left[index]
            return snapshot.found(slot, count)
        return self._take_snapshot().found(self._slots[self._indices.index(index)], count)

    # --- buffers ---------------------------------------------------------------------------------------------------

    def _acquire_step(self, capacity: int) -> SearchStep:
        """Return a recorded search step for the current number of sentences, with `capacity` cached positions each.

        An unused step of the model is taken if one has the right size, else a new step is made.
        """
        state, options = self.state, self.options
        source = round_up_source(state.source_shape[1])
        size = StepSize(round_up_size(len(self._indices)), options.beam_size, source, capacity, options.n_best)
        step = acquire_step(SearchStep, state.model, state.layers, size)
        self._held[:] = [step]
        return step

    def _ensure_capacity(self) -> None:
        """Move the search to larger buffers if another decoding step does not fit into the current ones.

        Raises TransduceError if learned position embeddings do not reach the next position.
        """
        positions = self.state.model.target_embedding.positions
        if isinstance(positions, LearnedPositions):
            positions.check(self.length + 1)
        capacity = self._step.size.capacity
        if (self.length + 1) * self.options.beam_size > capacity:
            self._move(2 * capacity)

    def _move(self, capacity: int) -> None:
        """Move the sentences that are still decoded to another recorded step, with `capacity` cached positions."""
        self._remove_finished(moving=False)
        if not self._indices:
            return
        old = self._step
        slots = torch.tensor(self._slots, device=old.done.device)
        new, count, cached = self._acquire_step(capacity), len(slots), self.length * self.options.beam_size
        new.copy_sentences_from(old, slots, cached)
        new.done.fill_(1)[:count] = 0
        new.counts.zero_()
        new.remaining.fill_(count)
        for name in ("tokens", "scores", "sums", "limits", "reaches", "records", "finished", "counts"):
            getattr(new, name)[:count] = getattr(old, name).index_select(0, slots)
        new.history[: self.length, :count] = old.history[: self.length].index_select(1, slots)
        if new.listed is not None and old.listed is not None:
            new.listed[:count, :cached] = old.listed[:, :cached].index_select(0, slots)
        self._step, self._slots = new, list(range(count))
        self._copy_penalties()
        self._latest_snapshot = None
        release_step(self.state.model, old)

    def _remove_finished(self, *, moving: bool = True) -> None:
        """Take finished sentences off the list of active sentences, and keep a snapshot of their hypotheses.

        If `moving`, the other sentences move to a step with smaller buffers if that is worthwhile.
        """
        if not self._indices:
            return
        done = self._step.done.tolist()
        leaving = [row for row, slot in enumerate(self._slots) if done[slot]]
        if leaving:
            snapshot = self._take_snapshot()
            for row in leaving:
                self._left[self._indices[row]] = snapshot, self._slots[row]
            self._keep([row for row, slot in enumerate(self._slots) if not done[slot]])
        if moving and self._indices and _is_worth_moving(len(self._indices), self._step.size):
            self._move(self._step.size.capacity)

    def _keep(self, rows: list[int]) -> None:
        """Keep only the active sentences with indices `rows`; drop the others from the search's lists.

        The lists are those of indices in the input batch and of rows of the buffers.
        """
        self._indices, self._slots = ([each[row] for row in rows] for each in (self._indices, self._slots))

    def _take_snapshot(self) -> "_Snapshot":
        """Return a copy of the current hypotheses in CPU memory, made once per search step."""
        if self._latest_snapshot is None or self._latest_snapshot[0] != self.length:
            self._latest_snapshot = self.length, _Snapshot(self._step, self.length)
        return self._latest_snapshot[1]


def _is_worth_moving(sentences: int, size: StepSize) -> bool:
    """Return whether so few sentences are left that they should move to a search step with smaller buffers.

    A quarter of the buffers must be enough, and the step must have more than 64 hypotheses.
    """
    return _SHRINK * round_up_size(sentences) <= size.sentences and size.sentences * size.hypotheses > _FEW_ROWS


class _RemainingCount:
    """An asynchronous copy, from GPU to CPU, of the number of unfinished sentences after a search step."""

    def __init__(self, remaining: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if remaining.device.type == "cuda":
            self._number = torch.empty(1, dtype=remaining.dtype, pin_memory=True)
            self._number.copy_(remaining, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._number = remaining.clone()

    def read(self) -> int:
        """Wait for the asynchronous copy to arrive, and return the number of unfinished sentences."""
        if self._event is not None:
            self._event.synchronize()
        return int(self._number)


class _Snapshot:
    """A copy, in CPU memory, of all hypotheses in a search step's buffers, from which their tokens are read."""

    def __init__(self, step: SearchStep, length: int) -> None:
        """Copy all hypotheses of up to `length` tokens from a search step's buffers on the GPU to the CPU."""
        history = step.history[:length].cpu().numpy()  # (t, B, W, 3)
        self._parents, self._tokens = history[..., 0], history[..., 1]
        self._values = history[..., 2].view(np.float32)
        self._records = step.records.cpu().numpy()  # (B, 2 + 3 N)
        self._eos_id = step.eos_id

    def found(self, slot: int, count: int) -> list[FoundHypothesis]:
        """Return a list of at most `count` hypotheses of the sentence in buffer row `slot`, best first.

        Finished hypotheses come first, then live ones if the sentence was cut off. In greedy search there is one at
        most.
        """
        length, broken = self._records[slot, :RECORD_HEADER].tolist()
        if self._tokens.shape[2] == 1:  # greedy
            tokens_and_values = self._tokens[:length, slot, 0], self._values[:length, slot, 0]
            return [FoundHypothesis(*tokens_and_values, ended=not broken)] if length else []
        lengths, tokens, values = self._ended
        found = [
            FoundHypothesis(tokens[slot, number, :end], values[slot, number, :end], ended=True)
            for number, end in enumerate(lengths[slot, :count].tolist())
            if end
        ]
        return [*found, *filter(None, self.live(slot))][:count] if broken else found

    def live(self, slot: int) -> list[FoundHypothesis | None]:
        """Return a list of the live hypotheses of the sentence in buffer row `slot`.

        The list has None for a hypothesis with probability zero, and is empty before the first step.
        """
        lengths, all_tokens, values = self._live
        length = int(lengths[slot])
        if not length:
            return []
        return [
            None if token_values[-1] == -np.inf else FoundHypothesis(tokens, token_values, ended=False)
            for tokens, token_values in zip(all_tokens[slot, :, :length], values[slot, :, :length], strict=True)
        ]

    @cached_property
    def _live(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """The live hypotheses of all sentences: lengths (B,), tokens and log-probabilities, both (B, W, t)."""
        lengths = np.where(self._records[:, 0] > 0, self._records[:, 0], len(self._tokens))
        width = self._tokens.shape[2]
        beams = np.broadcast_to(np.arange(width), (len(lengths), width))
        return lengths, *self._trace(np.broadcast_to(lengths[:, None], beams.shape), beams)

    @cached_property
    def _ended(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """The finished hypotheses of all sentences: lengths (B, N), tokens and log-probabilities, both (B, N, t)."""
        lengths, beams, bits = np.moveaxis(
            self._records[:, RECORD_HEADER:].reshape(len(self._records), -1, RECORD_ENTRY), -1, 0
        )
        tokens, values = self._trace(lengths - 1, beams)
        last = np.maximum(lengths - 1, 0)[..., None]
        np.put_along_axis(tokens, last, self._eos_id, axis=-1)
        np.put_along_axis(values, last, np.ascontiguousarray(bits).view(np.float32)[..., None], axis=-1)
        return lengths, tokens, values

    def _trace(self, lengths: NDArray[Any], beams: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Follow hypotheses from their last tokens to their first; return tokens and log-probabilities, (B, M, t) each.

        Args:
            lengths: the lengths of M hypotheses of each sentence, (B, M).
            beams: the index of each hypothesis among its sentence's hypotheses at its last step, (B, M).
        """
        shape = (*beams.shape, len(self._tokens))
        tokens, values = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for step in reversed(range(int(lengths.max(initial=0)))):
            tokens[..., step] = np.take_along_axis(self._tokens[step], beams, axis=1)
            values[..., step] = np.take_along_axis(self._values[step], beams, axis=1)
            parents = np.take_along_axis(self._parents[step], beams, axis=1)
            beams = np.where(step < lengths, parents, beams)
        return tokens, values
