"""A search for a batch that a GPU does by itself: it plays a recorded step again and again, and tells what is left.

The processor reads how many sentences are left a step late, while the next one is computed: neither waits for the
other. What it needs of the hypotheses is read when sentences leave.
Legend: N sentences at first, B of them still decoded, W hypotheses of each, t pieces so far.
"""

from collections.abc import Collection
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.model.gpu.recorded import Size, as_many, as_many_source, give_back, give_back_after, take_step
from transduce.model.gpu.search_step import EMPTY, OF_EACH, SearchStep
from transduce.model.gpu.state import GpuState, first_room
from transduce.model.positions import LearnedPositions
from transduce.model.searching import FoundHypothesis, SearchBounds
from transduce.model.state import DecodingState

_MOST_HYPOTHESES = 8
_FEW_ROWS = 64  # with fewer, a step takes as long
_SHRINK = 4  # times as many rooms as are needed: then moving pays


def find_search(state: DecodingState, bounds: SearchBounds) -> "GpuSearch | None":
    """The search of a state at its first step; None where it is another's, or the programs do not take it."""
    if not isinstance(state, GpuState):
        return None
    config, width = state.model.config, bounds.beam_size
    takes = (
        width <= _MOST_HYPOTHESES
        and config.target_vocabulary_size >= 2 * width
        and bounds.eos_id == config.eos_id
        and list(bounds.never_written) == config.never_written
    )
    return GpuSearch(state, bounds) if takes else None


class GpuSearch:
    """Implements `searching.BatchSearch`."""

    def __init__(self, state: GpuState, bounds: SearchBounds) -> None:
        """Begins with the start symbol; the state has encoded its sentences and done no step."""
        assert state.encoded is not None
        self.state, self.bounds = state, bounds
        self.length = 0  # t
        self._places = list(range(len(bounds.longest)))  # of those that are in the rooms
        self._slots = list(self._places)  # their rooms
        self._left: dict[int, tuple[_Account, int]] = {}  # by place, of those that have left: what their room held
        self._held: list[SearchStep] = []
        give_back_after(self, state.model, self._held)
        self._penalties = bounds.penalties.to(state.encoded[0].device)
        self._step = self._find_rooms(first_room(bounds.beam_size))
        self._step.settle(*state.encoded)
        state.encoded = None
        self._begin()
        self._known: tuple[int, _Account] | None = None  # what the rooms hold after so many steps

    def _begin(self) -> None:
        bounds, step, count = self.bounds, self._step, len(self._places)
        step.done.fill_(1)[:count] = 0
        step.remaining.fill_(count)
        step.pieces.fill_(bounds.start_id)
        step.scores.fill_(0.0)[:, 1:] = float("-inf")  # all begin with the first
        step.sums.zero_()
        step.records.zero_()
        step.counts.zero_()
        step.finished.fill_(float("-inf"))
        longest = torch.tensor(bounds.longest)
        step.limits[:count] = longest.to(step.limits)
        step.reaches[:count] = bounds.penalties[longest].to(step.reaches)
        self._copy_penalties()

    def _copy_penalties(self) -> None:
        count = min(len(self._penalties), len(self._step.penalties))
        self._step.penalties[:count] = self._penalties[:count]

    # --- going on --------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Tensor:
        """The places in the batch of the sentences that are still decoded, (B,)."""
        return torch.tensor(self._places, dtype=torch.int64)

    def advance(self, steps: int) -> None:
        """At most so many steps; none after all sentences are done."""
        most = max((self.bounds.longest[place] for place in self._places), default=0)
        told: _Told | None = None
        for _ in range(min(steps, most - self.length)):
            self._make_room()
            if not self._places:
                break
            with self.state.place:
                self._step.run()
            self.length += 1
            before, told = told, _Told(self._step.remaining)
            if before is None:
                continue
            left = before.read()
            if not left:
                break
            if _is_worth_moving(left, self._step.size):
                self._let_go()
                told = None
        self._let_go()

    def give_up(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """The sentences at these rows leave; their live hypotheses, as they are."""
        account = self._account()
        live = [[own for own in account.live(self._slots[row]) if own is not None] for row in rows]
        for row in rows:
            self._left[self._places[row]] = account, self._slots[row]
        leaving = [self._slots[row] for row in rows]
        self._step.done[torch.tensor(leaving, device=self._step.done.device)] = 1
        self._step.remaining -= len(leaving)
        self._keep([row for row in range(len(self._places)) if row not in rows])
        return live

    def live(self) -> tuple[Tensor, Tensor]:
        """What live hypotheses hold, int64 (B, W, t), and their log-probabilities, (B, W)."""
        width, count = self.bounds.beam_size, len(self._slots)
        pieces = torch.zeros(count, width, self.length, dtype=torch.int64)
        slots = torch.tensor(self._slots, device=self._step.done.device)
        scores = self._step.scores.index_select(0, slots).cpu()
        account = self._account()
        for row, slot in enumerate(self._slots):
            for beam, hypothesis in enumerate(account.live(slot)):
                if hypothesis is not None:
                    pieces[row, beam] = torch.as_tensor(hypothesis.pieces)
        return pieces, scores

    def found(self, place: int, count: int) -> list[FoundHypothesis]:
        """At most so many hypotheses of the sentence at this place, best first."""
        if place in self._left:
            account, slot = self._left[place]
            return account.found(slot, count)
        return self._account().found(self._slots[self._places.index(place)], count)

    # --- rooms -----------------------------------------------------------------------------------------------------

    def _find_rooms(self, room: int) -> SearchStep:
        """With so many cached positions, for as many sentences as there are."""
        state, bounds = self.state, self.bounds
        source = as_many_source(state.source_shape[1])
        size = Size(as_many(len(self._places)), bounds.beam_size, source, room, bounds.n_best)
        step = take_step(SearchStep, state.model, state.layers, size)
        self._held[:] = [step]
        return step

    def _make_room(self) -> None:
        """For one more step."""
        positions = self.state.model.target_embedding.positions
        if isinstance(positions, LearnedPositions):
            positions.check(self.length + 1)
        room = self._step.size.room
        if (self.length + 1) * self.bounds.beam_size > room:
            self._move(2 * room)

    def _move(self, room: int) -> None:
        """Those that are still decoded move into other rooms, with so many cached positions."""
        self._let_go(moving=False)
        if not self._places:
            return
        old = self._step
        slots = torch.tensor(self._slots, device=old.done.device)
        new, count, cached = self._find_rooms(room), len(slots), self.length * self.bounds.beam_size
        new.take_over(old, slots, cached)
        new.done.fill_(1)[:count] = 0
        new.counts.zero_()
        new.remaining.fill_(count)
        for own, theirs in (
            (new.pieces, old.pieces), (new.scores, old.scores), (new.sums, old.sums), (new.limits, old.limits),
            (new.reaches, old.reaches), (new.records, old.records), (new.finished, old.finished),
            (new.counts, old.counts),
        ):  # fmt: skip
            own[:count] = theirs.index_select(0, slots)
        new.history[: self.length, :count] = old.history[: self.length].index_select(1, slots)
        if new.listed is not None and old.listed is not None:
            new.listed[:count, :cached] = old.listed[:, :cached].index_select(0, slots)
        self._step, self._slots = new, list(range(count))
        self._copy_penalties()
        self._known = None
        give_back(self.state.model, old)

    def _let_go(self, *, moving: bool = True) -> None:
        """Sentences that are done leave; with `moving`, the others move where that is worth it."""
        if not self._places:
            return
        done = self._step.done.tolist()
        leaving = [row for row, slot in enumerate(self._slots) if done[slot]]
        if leaving:
            account = self._account()
            for row in leaving:
                self._left[self._places[row]] = account, self._slots[row]
            self._keep([row for row, slot in enumerate(self._slots) if not done[slot]])
        if moving and self._places and _is_worth_moving(len(self._places), self._step.size):
            self._move(self._step.size.room)

    def _keep(self, rows: list[int]) -> None:
        self._places, self._slots = ([each[row] for row in rows] for each in (self._places, self._slots))

    def _account(self) -> "_Account":
        """Of all rooms, as they are now."""
        if self._known is None or self._known[0] != self.length:
            self._known = self.length, _Account(self._step, self.length)
        return self._known[1]


def _is_worth_moving(sentences: int, size: Size) -> bool:
    """Whether so many are better off in rooms of their own number."""
    return _SHRINK * as_many(sentences) <= size.sentences and size.sentences * size.hypotheses > _FEW_ROWS


class _Told:
    """How many sentences are left after a step, which can be read when it is over."""

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
        if self._event is not None:
            self._event.synchronize()
        return int(self._number)


class _Account:
    """What rooms held when it was written down."""

    def __init__(self, step: SearchStep, length: int) -> None:
        """After so many steps, t."""
        history = step.history[:length].cpu().numpy()  # (t, B, W, 3)
        self._parents, self._pieces = history[..., 0], history[..., 1]
        self._values = history[..., 2].view(np.float32)
        self._records = step.records.cpu().numpy()  # (B, 2 + 3 N)
        self._eos_id = step.eos_id

    def found(self, slot: int, count: int) -> list[FoundHypothesis]:
        """The best that have ended, and behind them live ones, where the sentence was broken off."""
        length, broken = self._records[slot, :EMPTY].tolist()
        if self._pieces.shape[2] == 1:  # greedy
            own = self._pieces[:length, slot, 0], self._values[:length, slot, 0]
            return [FoundHypothesis(*own, ended=not broken)] if length else []
        lengths, pieces, values = self._ended
        found = [
            FoundHypothesis(pieces[slot, number, :end], values[slot, number, :end], ended=True)
            for number, end in enumerate(lengths[slot, :count].tolist())
            if end
        ]
        return [*found, *(own for own in self.live(slot) if own is not None)][:count] if broken else found

    def live(self, slot: int) -> list[FoundHypothesis | None]:
        """What each live hypothesis was when the sentence left, or is now."""
        lengths, pieces, values = self._live
        length = int(lengths[slot])
        if not length:
            return []
        return [
            None if own_values[-1] == -np.inf else FoundHypothesis(own, own_values, ended=False)
            for own, own_values in zip(pieces[slot, :, :length], values[slot, :, :length], strict=True)
        ]

    @cached_property
    def _live(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """Lengths of all sentences, (B,), and their live hypotheses' pieces and log-probabilities, (B, W, t)."""
        lengths = np.where(self._records[:, 0] > 0, self._records[:, 0], len(self._pieces))
        width = self._pieces.shape[2]
        beams = np.broadcast_to(np.arange(width), (len(lengths), width))
        return lengths, *self._trace(np.broadcast_to(lengths[:, None], beams.shape), beams)

    @cached_property
    def _ended(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """Lengths of those that have ended, 0 where there is none, (B, N); their pieces, and log-probabilities."""
        lengths, beams, bits = np.moveaxis(self._records[:, EMPTY:].reshape(len(self._records), -1, OF_EACH), -1, 0)
        pieces, values = self._trace(lengths - 1, beams)
        last = np.maximum(lengths - 1, 0)[..., None]
        np.put_along_axis(pieces, last, self._eos_id, axis=-1)
        np.put_along_axis(values, last, np.ascontiguousarray(bits).view(np.float32)[..., None], axis=-1)
        return lengths, pieces, values

    def _trace(self, lengths: NDArray[Any], beams: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Hypotheses (B, M) from their last pieces back to the first, (B, M, t)."""
        shape = (*beams.shape, len(self._pieces))
        pieces, values = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        for step in reversed(range(int(lengths.max(initial=0)))):
            pieces[..., step] = np.take_along_axis(self._pieces[step], beams, axis=1)
            values[..., step] = np.take_along_axis(self._values[step], beams, axis=1)
            parents = np.take_along_axis(self._parents[step], beams, axis=1)
            beams = np.where(step < lengths, parents, beams)
        return pieces, values
