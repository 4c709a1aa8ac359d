"""Run beam or greedy search for a batch in machine code, to its end or some steps at a time.

Legend: N sentences at first, B of them still decoded, W hypotheses of each, T capacity in tokens per hypothesis, t
tokens so far.
"""

import ctypes
from collections.abc import Collection

import torch
from torch import Tensor

from transduce.model.native.arena import Arena
from transduce.model.native.crew import run_watched
from transduce.model.native.engine import Program
from transduce.model.native.model_writer import Places
from transduce.model.native.pool import ROOM
from transduce.model.native.reductions import SelectPlaces, room_to_select
from transduce.model.native.search_program import SearchPlaces, search_program
from transduce.model.native.state import NativeState
from transduce.model.native.steps import Scratch
from transduce.model.native.tile import MOST_LANES
from transduce.model.searching import FoundHypothesis, SearchBounds

_LEAST_VOCABULARY = 64  # minimum vocabulary size: one block of the top-k search
_MOST_TOKENS = 1 << 22  # tokens of all hypotheses: buffers are allocated for the greatest length up front


def supports_search(vocabulary_size: int, bounds: SearchBounds) -> bool:
    """Return whether compiled search takes a batch.

    The vocabulary must be large enough, and the buffers must not become too large.
    """
    rows = len(bounds.longest) * bounds.beam_size
    return (
        vocabulary_size >= max(_LEAST_VOCABULARY, 2 * bounds.beam_size) and max(bounds.longest) * rows <= _MOST_TOKENS
    )


class NativeSearch:
    """A compiled search for a batch (implements `searching.BatchSearch`)."""

    def __init__(self, state: NativeState, bounds: SearchBounds) -> None:
        """Start the search; `state` has encoded its sentences and run no step."""
        self.state = state
        self.bounds = bounds
        self.threads = torch.get_num_threads()  # the number that scratch space is allocated for
        self.sentences = len(bounds.longest)  # N
        self.rows = self.sentences * bounds.beam_size  # greatest number of hypotheses
        self.slots = bounds.beam_size + 1  # finished hypotheses per sentence, and a free slot
        self.room = max(bounds.longest, default=0)  # T
        self._zeroed = Arena(self._zeroed_arrays(), zeroed=True)
        self._uninitialized = Arena(self._uninitialized_arrays())
        self._addresses = self._zeroed.addresses | self._uninitialized.addresses
        # NumPy views, whose slicing takes a fifth of the time of tensors'.
        self._found = tuple(self._uninitialized.tensor(f"found_{name}").numpy() for name in ("pieces", "values"))
        # With a beam most cache entries are soon dropped; in greedy search all stay, and a target is about as long as
        # its source.
        steps = ROOM if bounds.beam_size > 1 else min(self.room, state.longest_source + ROOM)
        state.pool.expect(self.rows * steps)
        self.tables = state.programs.step_positions.until(0)
        self.positions = (
            max(state.longest_source, self.room + 1) + MOST_LANES
        )  # greatest number that a hypothesis attends to
        self.scratch = Scratch(state.programs, self.rows, self.positions * self.threads)
        self._begin()
        self._step = _Arguments(Places, **self._step_arguments())
        self._select = _Arguments(SelectPlaces, **self._select_arguments())
        self._numbers = _Arguments(SearchPlaces, **self._search_arguments())

    def _zeroed_arrays(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return the dtype and shape of each array that starts with zeros."""
        by_sentence, by_row, by_slot = (self.sentences,), (self.rows,), (self.sentences, self.slots)
        lists = (torch.int32, (self.rows, self.room + 1))
        return {
            "sources": (torch.int64, (2, *by_sentence)),
            "row_sources": (torch.int64, (2, *by_row)),
            "newest": (torch.int64, by_row),
            "scores": (torch.float32, by_row),
            "places": (torch.int64, by_sentence),
            "longest": (torch.int64, by_sentence),
            "greatest_penalties": (torch.float32, by_sentence),
            "never": (torch.int64, (len(self.bounds.never_written),)),
            "lists": lists,
            "next_lists": lists,
            "found": (torch.int64, by_sentence),
            "order": (torch.int64, by_slot),
            "found_scores": (torch.float64, by_slot),
            "found_lengths": (torch.int64, by_slot),
            "found_ended": (torch.int64, by_slot),
        }

    def _uninitialized_arrays(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return the dtype and shape of each array that may start uninitialized."""
        output, beam_size = self.state.output, self.bounds.beam_size
        history, finished = (self.rows, self.room), (self.sentences, self.slots, self.room)
        arrays: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "pieces": (torch.int32, history),
            "values": (torch.float32, history),
            "next_pieces": (torch.int32, history),
            "next_values": (torch.float32, history),
            "found_pieces": (torch.int32, finished),
            "found_values": (torch.float32, finished),
            "x": (torch.float32, (self.rows, self.state.programs.d_model)),
            "logits": (torch.float32, (self.rows, output.padded_outputs)),
            "select_room": (torch.float32, (self.threads, room_to_select(output.outputs, beam_size, beam_size))),
        }
        for kind, count in (("live", beam_size), ("ended", 2 * beam_size)):
            for name in ("parents", "pieces"):
                arrays[f"{kind}_{name}"] = (torch.int64, (self.sentences, count))
            for name in ("scores", "totals"):
                arrays[f"{kind}_{name}"] = (torch.float32, (self.sentences, count))
        return arrays

    def _begin(self) -> None:
        """Initialize the arrays before the first step."""
        numbers, count = self._zeroed.numbers, self.sentences
        starts, lengths = self.state.sources.tolist()
        numbers("sources")[:] = starts + lengths
        numbers("row_sources")[:count] = starts
        numbers("row_sources")[self.rows : self.rows + count] = lengths
        numbers("newest")[:] = [self.bounds.start_id] * self.rows
        numbers("places")[:] = range(count)
        numbers("longest")[:] = self.bounds.longest
        numbers("greatest_penalties")[:] = self.bounds.penalties[self.bounds.longest].tolist()
        numbers("never")[:] = self.bounds.never_written
        numbers("order")[:] = [*range(self.slots)] * count

    # --- running ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Tensor:
        """The indices in the batch of the sentences that are still decoded, (B,)."""
        return self._zeroed.tensor("places")[: self._numbers["sentences"]].clone()

    @property
    def length(self) -> int:
        """The number of tokens of every live hypothesis, t."""
        return self._numbers["length"]

    def advance(self, steps: int) -> None:
        """Run at most `steps` steps; returns early once all sentences are done."""
        program: Program = search_program()
        self._numbers["steps"] = steps
        while self._numbers["sentences"] and self._numbers["steps"] > 0:
            self._ensure_capacity()
            work = self._numbers["sentences"] * self.bounds.beam_size * self.state.programs.step_work
            run_watched(program, self._numbers.array, work, self.threads)

    def give_up(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """Remove the sentences at these rows from the batch, and return their live hypotheses."""
        batch, width, length = self._numbers["sentences"], self._numbers["width"], self.length
        pieces, values = self._histories()
        scores = self._zeroed.numbers("scores")
        live: list[list[FoundHypothesis]] = []
        for row in rows:
            live_rows = [each for each in range(row * width, (row + 1) * width) if scores[each] > float("-inf")]
            histories = [(pieces[each, :length].clone(), values[each, :length].clone()) for each in live_rows]
            live.append([FoundHypothesis(*history, ended=False) for history in histories])
        self._keep_sentences([row for row in range(batch) if row not in rows])
        return live

    def live(self) -> tuple[Tensor, Tensor]:
        """Return the live hypotheses' tokens, int64 (B, W, t), and total log-probabilities, (B, W)."""
        batch, width = self._numbers["sentences"], self._numbers["width"]
        pieces = self._histories()[0][: batch * width, : self.length]
        return pieces.long().view(batch, width, -1), self._zeroed.tensor("scores")[: batch * width].view(batch, width)

    def found(self, place: int, count: int) -> list[FoundHypothesis]:
        """Return at most `count` finished hypotheses of the sentence at an index of the batch, best first."""
        numbers, first, hypotheses = self._zeroed.numbers, place * self.slots, []
        for slot in numbers("order")[first : first + min(count, numbers("found")[place])]:
            length, ended = numbers("found_lengths")[first + slot], numbers("found_ended")[first + slot]
            pieces, values = (array[place, slot, :length] for array in self._found)
            hypotheses.append(FoundHypothesis(pieces, values, ended=bool(ended)))
        return hypotheses

    # --- buffers ---------------------------------------------------------------------------------------------------

    def _ensure_capacity(self) -> None:
        """Make sure that the KV cache and the position tables suffice for another step."""
        position, rows = self.length, self._step["rows"]
        pool = self.state.pool
        pool.used = self._step["used"]
        if not pool.has_room(rows):
            lists = self._lists()[:rows, :position]
            lists.copy_(pool.compact(lists, rows))
            self._step["used"] = pool.used
            self._step["past"] = pool.entries.data_ptr()
            self._step["entries"] = pool.entries.shape[1]
        if position >= self._numbers["positions"]:
            self.tables = self.state.programs.step_positions.until(position)
            self._numbers["positions"] = self.tables.length
            for name, address in self.tables.addresses().items():
                self._step[name] = address

    def _is_swapped(self) -> bool:
        """Return whether the `next_…` buffers hold the current data; the two buffers are swapped at each step."""
        return self._numbers["lists"] != self._addresses["lists"]

    def _lists(self) -> Tensor:
        """Return each hypothesis' list of cache entries."""
        return self._zeroed.tensor("next_lists" if self._is_swapped() else "lists")

    def _histories(self) -> tuple[Tensor, Tensor]:
        """Return the hypotheses' tokens and the tokens' log-probabilities."""
        next_ = "next_" if self._is_swapped() else ""
        return self._uninitialized.tensor(f"{next_}pieces"), self._uninitialized.tensor(f"{next_}values")

    def _keep_sentences(self, staying: list[int]) -> None:
        """Remove all other sentences from the batch, between two steps."""
        batch, width = len(staying), self._numbers["width"]
        sentences = torch.tensor(staying, dtype=torch.int64)
        rows = (sentences[:, None] * width + torch.arange(width)).flatten()
        count, tensor = batch * width, self._zeroed.tensor
        for name in ("places", "longest", "greatest_penalties"):
            tensor(name)[:batch] = tensor(name)[sentences]
        tensor("sources")[:, :batch] = tensor("sources")[:, sentences]
        tensor("row_sources")[:, :count] = tensor("row_sources")[:, rows]
        for array in (tensor("newest"), tensor("scores"), *self._histories(), self._lists()):
            array[:count] = array[rows]
        self._numbers["sentences"], self._step["rows"], self._select["rows"] = batch, count, count

    # --- kernel arguments ------------------------------------------------------------------------------------------

    def _step_arguments(self) -> dict[str, int]:
        """Return the initial arguments of the decoder step."""
        state, addresses = self.state, self._addresses
        return {
            "rows": self.sentences,
            "weights": state.programs.weights.data_ptr(),
            "x": addresses["x"],
            **self.scratch.addresses,
            "room": self.positions,
            "firsts": addresses["row_sources"],
            "counts": addresses["row_sources"] + 8 * self.rows,  # bytes of an int64
            "memory": state.memory.data_ptr(),
            "sources": state.memory.shape[1],
            "past": state.pool.entries.data_ptr(),
            "entries": state.pool.entries.shape[1],
            "used": 0,
            "lists": addresses["lists"],
            "list_stride": self.room + 1,
            "length": 1,
            "ids": addresses["newest"],
            **self.tables.addresses(),
            "logits": addresses["logits"],
        }

    def _select_arguments(self) -> dict[str, int]:
        """Return the initial arguments of the selection."""
        beam_size, output = self.bounds.beam_size, self.state.output
        return {name: self._addresses[name] for name in SelectPlaces._fields if name in self._addresses} | {
            "rows": self.sentences,
            "vocabulary_size": output.outputs,
            "stride": output.padded_outputs,
            "beams": 1,
            "normalizer": 0,
            "eos_id": self.bounds.eos_id,
            "beam_size": beam_size,
            "room": self._addresses["select_room"],
            "own_room": room_to_select(output.outputs, beam_size, beam_size),
        }

    def _search_arguments(self) -> dict[str, int]:
        """Return the initial arguments of the search kernel."""
        bounds = self.bounds
        return {name: self._addresses[name] for name in SearchPlaces._fields if name in self._addresses} | {
            "steps": 0,
            "stop": 0,
            "sentences": self.sentences,
            "width": 1,
            "length": 0,
            "step": self.state.programs.step.address,
            "step_places": ctypes.addressof(self._step.array),
            "select_places": ctypes.addressof(self._select.array),
            "beam_size": bounds.beam_size,
            "certain": bounds.n_best if bounds.beam_size > 1 else 0,
            "room": self.room,
            "positions": self.tables.length,
            "nevers": len(bounds.never_written),
            "penalties": bounds.penalties.data_ptr(),
            "most_rows": self.rows,
            "all_sentences": self.sentences,
        }


_INDICES = {
    kind: {name: index for index, name in enumerate(kind._fields)} for kind in (Places, SelectPlaces, SearchPlaces)
}


class _Arguments:
    """A ctypes array of kernel arguments, accessed by name, which the kernel reads and changes."""

    def __init__(self, kind: type[Places | SelectPlaces | SearchPlaces], **values: int) -> None:
        self._indices = _INDICES[kind]
        self.array = (ctypes.c_int64 * len(self._indices))(*kind(**values))

    def __getitem__(self, name: str) -> int:
        return self.array[self._indices[name]]

    def __setitem__(self, name: str, value: int) -> None:
        self.array[self._indices[name]] = value
