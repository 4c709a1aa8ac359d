"""A search for a batch that runs in machine code from its first step to its last, or some steps at a time.

Legend: N sentences at first, B of them still decoded, W hypotheses of each, T pieces there is room for, t pieces so
far.
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

_LEAST_PIECES = 64  # a block of them
_MOST_ROOM = 1 << 22  # pieces of all hypotheses: there is room for the greatest length from the beginning


def supports_search(vocabulary_size: int, bounds: SearchBounds) -> bool:
    """Whether there are pieces enough to choose from, and room."""
    rows = len(bounds.longest) * bounds.beam_size
    return vocabulary_size >= max(_LEAST_PIECES, 2 * bounds.beam_size) and max(bounds.longest) * rows <= _MOST_ROOM


class NativeSearch:
    """The best hypotheses of every sentence, and the live ones of those that are still decoded."""

    def __init__(self, state: NativeState, bounds: SearchBounds) -> None:
        """Begins with the start symbol; the state has encoded its sentences and done no step."""
        self.state = state
        self.bounds = bounds
        self.threads = torch.get_num_threads()  # for so many there is room
        self.sentences = len(bounds.longest)  # N
        self.rows = self.sentences * bounds.beam_size  # at most
        self.slots = bounds.beam_size + 1  # of each sentence, for hypotheses that were found
        self.room = max(bounds.longest, default=0)  # T
        self._zeroed = Arena(self._zeroed_arrays(), zeroed=True)
        self._rough = Arena(self._rough_arrays())
        self._addresses = self._zeroed.addresses | self._rough.addresses
        # As views of NumPy, of which parts are taken in a fifth of the time.
        self._found = tuple(self._rough.tensor(f"found_{name}").numpy() for name in ("pieces", "values"))
        # Of a beam most entries are dropped again; greedily all are kept, and a target is about as long as its source.
        steps = ROOM if bounds.beam_size > 1 else min(self.room, state.longest_source + ROOM)
        state.pool.expect(self.rows * steps)
        self.tables = state.programs.step_positions.until(0)
        self.positions = max(state.longest_source, self.room + 1) + MOST_LANES  # that a hypothesis may attend to
        self.scratch = Scratch(state.programs, self.rows, self.positions * self.threads)
        self._begin()
        self._step = _Numbers(Places, **self._step_places())
        self._select = _Numbers(SelectPlaces, **self._select_places())
        self._numbers = _Numbers(SearchPlaces, **self._search_places())

    def _zeroed_arrays(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
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

    def _rough_arrays(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        output, beam_size = self.state.output, self.bounds.beam_size
        history, found = (self.rows, self.room), (self.sentences, self.slots, self.room)
        arrays: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "pieces": (torch.int32, history),
            "values": (torch.float32, history),
            "next_pieces": (torch.int32, history),
            "next_values": (torch.float32, history),
            "found_pieces": (torch.int32, found),
            "found_values": (torch.float32, found),
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
        """What the arrays hold before the first step."""
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

    # --- going on --------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Tensor:
        """The places in the batch of the sentences that are still decoded, (B,)."""
        return self._zeroed.tensor("places")[: self._numbers["sentences"]].clone()

    @property
    def length(self) -> int:
        """Pieces of every live hypothesis: t."""
        return self._numbers["length"]

    def advance(self, steps: int) -> None:
        """At most so many steps; none after all sentences are done."""
        program: Program = search_program()
        self._numbers["steps"] = steps
        while self._numbers["sentences"] and self._numbers["steps"] > 0:
            self._make_room()
            work = self._numbers["sentences"] * self.bounds.beam_size * self.state.programs.step_work
            run_watched(program, self._numbers.array, work, self.threads)

    def give_up(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """The sentences at these rows leave; their live hypotheses, as they are."""
        batch, width, length = self._numbers["sentences"], self._numbers["width"], self.length
        pieces, values = self._histories()
        scores = self._zeroed.numbers("scores")
        live: list[list[FoundHypothesis]] = []
        for row in rows:
            own = [each for each in range(row * width, (row + 1) * width) if scores[each] > float("-inf")]
            histories = [(pieces[each, :length].clone(), values[each, :length].clone()) for each in own]
            live.append([FoundHypothesis(*history, ended=False) for history in histories])
        self._keep_sentences([row for row in range(batch) if row not in rows])
        return live

    def live(self) -> tuple[Tensor, Tensor]:
        """What live hypotheses hold, int64 (B, W, t), and their log-probabilities, (B, W)."""
        batch, width = self._numbers["sentences"], self._numbers["width"]
        pieces = self._histories()[0][: batch * width, : self.length]
        return pieces.long().view(batch, width, -1), self._zeroed.tensor("scores")[: batch * width].view(batch, width)

    def found(self, place: int, count: int) -> list[FoundHypothesis]:
        """At most so many hypotheses of the sentence at this place, best first."""
        numbers, first, found = self._zeroed.numbers, place * self.slots, []
        for slot in numbers("order")[first : first + min(count, numbers("found")[place])]:
            length, ended = numbers("found_lengths")[first + slot], numbers("found_ended")[first + slot]
            pieces, values = (array[place, slot, :length] for array in self._found)
            found.append(FoundHypothesis(pieces, values, ended=bool(ended)))
        return found

    # --- room ------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """For a step at least: of keys and values, and of positions."""
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
        """Which of two buffers holds what is: they change places at each step."""
        return self._numbers["lists"] != self._addresses["lists"]

    def _lists(self) -> Tensor:
        return self._zeroed.tensor("next_lists" if self._is_swapped() else "lists")

    def _histories(self) -> tuple[Tensor, Tensor]:
        next_ = "next_" if self._is_swapped() else ""
        return self._rough.tensor(f"{next_}pieces"), self._rough.tensor(f"{next_}values")

    def _keep_sentences(self, staying: list[int]) -> None:
        """The others leave; between two steps."""
        batch, width = len(staying), self._numbers["width"]
        sentences = torch.tensor(staying, dtype=torch.int64)
        rows = (sentences[:, None] * width + torch.arange(width)).flatten()
        count, tensor = batch * width, self._zeroed.tensor
        for name in ("places", "longest", "greatest_penalties"):
            tensor(name)[:batch] = tensor(name)[sentences]
        tensor("sources")[:, :batch] = tensor("sources")[:, sentences]
        tensor("row_sources")[:, :count] = tensor("row_sources")[:, rows]
        for of_rows in (tensor("newest"), tensor("scores"), *self._histories(), self._lists()):
            of_rows[:count] = of_rows[rows]
        self._numbers["sentences"], self._step["rows"], self._select["rows"] = batch, count, count

    # --- numbers ---------------------------------------------------------------------------------------------------

    def _step_places(self) -> dict[str, int]:
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

    def _select_places(self) -> dict[str, int]:
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

    def _search_places(self) -> dict[str, int]:
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


_PLACES = {
    kind: {name: place for place, name in enumerate(kind._fields)} for kind in (Places, SelectPlaces, SearchPlaces)
}


class _Numbers:
    """Numbers in memory that a program reads and changes, by name."""

    def __init__(self, kind: type[Places | SelectPlaces | SearchPlaces], **values: int) -> None:
        self._places = _PLACES[kind]
        self.array = (ctypes.c_int64 * len(self._places))(*kind(**values))

    def __getitem__(self, name: str) -> int:
        return self.array[self._places[name]]

    def __setitem__(self, name: str, value: int) -> None:
        self.array[self._places[name]] = value
