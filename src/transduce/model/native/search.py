"""A search for a batch that runs in machine code from its first step to its last, or some steps at a time.

Legend: N sentences at first, B of them still decoded, W hypotheses of each, T pieces there is room for, t pieces so
far.
"""

import ctypes
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.model.native.engine import Program
from transduce.model.native.model_programs import Places
from transduce.model.native.products import MOST_LANES
from transduce.model.native.reductions import SelectPlaces, room_to_select
from transduce.model.native.search_program import SearchPlaces, search_program
from transduce.model.native.state import NativeState, Scratch

_LEAST_PIECES = 64  # a block of them


class NativeBounds(NamedTuple):
    """How a search begins and ends."""

    start_id: int
    """What the decoder is given first."""
    eos_id: int
    """The end symbol."""
    never_written: Sequence[int]
    """Pieces that no hypothesis holds."""
    longest: Sequence[int]
    """The greatest number of pieces of each sentence, end symbol included."""
    beam_size: int
    """W; 1 is greedy search."""
    n_best: int
    """How many hypotheses must be certain before a sentence is done."""
    penalties: Tensor
    """The length penalty of 0, 1, … pieces, up to one more than the greatest of `longest` at least, float64."""


class FoundHypothesis(NamedTuple):
    """What was found."""

    pieces: Tensor
    """With the end symbol, where it ended, (t,)."""
    log_probabilities: Tensor
    """Of each piece, (t,)."""
    ended: bool
    """Whether it ended, or was cut."""


def supports_search(vocabulary_size: int, beam_size: int) -> bool:
    """Whether there are pieces enough to choose from."""
    return vocabulary_size >= max(_LEAST_PIECES, 2 * beam_size)


class NativeSearch:
    """The best hypotheses of every sentence, and the live ones of those that are still decoded."""

    def __init__(self, state: NativeState, bounds: NativeBounds) -> None:
        """Begins with the start symbol; the state has encoded its sentences and done no step."""
        self.state = state
        self.bounds = bounds
        self.threads = torch.get_num_threads()  # for so many there is room
        sentences, beam_size = len(bounds.longest), bounds.beam_size
        self.rows = sentences * beam_size  # at most
        self.room = max(bounds.longest, default=0)  # T
        self._arrays: list[Tensor] = []
        self.sources = self._keep(state.sources.clone())
        self.row_sources = self._keep(torch.zeros(2, self.rows, dtype=torch.int64))
        self.row_sources[:, :sentences] = state.sources
        self.newest = self._keep(torch.full((self.rows,), bounds.start_id, dtype=torch.int64))
        self.scores = self._keep(torch.zeros(self.rows))
        self.places = self._keep(torch.arange(sentences))
        self.longest = self._keep(torch.tensor(bounds.longest, dtype=torch.int64))
        self.greatest_penalties = self._keep(bounds.penalties[self.longest].float())
        self.pieces = [self._keep(torch.empty(self.rows, self.room, dtype=torch.int32)) for _ in range(2)]
        self.values = [self._keep(torch.empty(self.rows, self.room)) for _ in range(2)]
        self.lists = [self._keep(torch.zeros(self.rows, self.room + 1, dtype=torch.int32)) for _ in range(2)]
        self.count = self._keep(torch.zeros(sentences, dtype=torch.int64))
        slots = beam_size + 1
        self.order = self._keep(torch.arange(slots).repeat(sentences, 1))
        self.found_numbers = self._keep(torch.zeros(2, sentences, slots, dtype=torch.int64))  # lengths, and who ended
        self.found_pieces = self._keep(torch.empty(sentences, slots, self.room, dtype=torch.int32))
        self.found_values = self._keep(torch.empty(sentences, slots, self.room))
        self.added = state.programs.added_until(0)
        self.positions = max(state.longest_source, self.room + 1) + MOST_LANES  # that a hypothesis may attend to
        self.scratch = Scratch(state.programs, self.rows, self.positions * self.threads)
        self.x = self._keep(torch.empty(self.rows, state.programs.d_model))
        self.logits = self._keep(torch.empty(self.rows, state.output.padded_outputs))
        self._step = _Numbers(Places, **self._step_places())
        self._select = _Numbers(SelectPlaces, **self._select_places())
        self._numbers = _Numbers(SearchPlaces, **self._search_places())

    # --- going on --------------------------------------------------------------------------------------------------

    @property
    def active(self) -> Tensor:
        """The places in the batch of the sentences that are still decoded, (B,)."""
        return self.places[: self._numbers["sentences"]].clone()

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
            program.run_with(self._numbers.array, self.threads)

    def give_up(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """The sentences at these rows leave; their live hypotheses, as they are."""
        batch, width, length = self._numbers["sentences"], self._numbers["width"], self.length
        pieces, values = self._histories()
        live: list[list[FoundHypothesis]] = []
        for row in rows:
            own = [each for each in range(row * width, (row + 1) * width) if float(self.scores[each]) > float("-inf")]
            histories = [(pieces[each, :length].clone(), values[each, :length].clone()) for each in own]
            live.append([FoundHypothesis(*history, ended=False) for history in histories])
        self._keep_sentences([row for row in range(batch) if row not in rows])
        return live

    def live(self) -> tuple[Tensor, Tensor]:
        """What live hypotheses hold, int64 (B, W, t), and their log-probabilities, (B, W)."""
        batch, width = self._numbers["sentences"], self._numbers["width"]
        pieces = self._histories()[0][: batch * width, : self.length]
        return pieces.long().view(batch, width, -1), self.scores[: batch * width].view(batch, width)

    def found(self, place: int, count: int) -> list[FoundHypothesis]:
        """At most so many hypotheses of the sentence at this place, best first."""
        found = []
        for slot in self.order[place, : min(count, int(self.count[place]))].tolist():
            length, ended = self.found_numbers[:, place, slot].tolist()
            pieces, values = self.found_pieces[place, slot, :length], self.found_values[place, slot, :length]
            found.append(FoundHypothesis(pieces, values, ended=bool(ended)))
        return found

    # --- room ------------------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """For a step at least: of keys and values, and of positions."""
        position, rows = self.length, self._step["rows"]
        pool = self.state.pool
        pool.used = self._step["used"]
        if not pool.has_room(rows):
            lists = self.lists[self._side()][:rows, :position]
            lists.copy_(pool.compact(lists, rows))
            self._step["used"] = pool.used
            self._step["past"] = pool.entries.data_ptr()
            self._step["entries"] = pool.entries.shape[1]
        if position >= self._numbers["positions"]:
            self.added = self.state.programs.added_until(position)
            self._numbers["added"], self._numbers["positions"] = self.added.data_ptr(), len(self.added)
            self._step["added"] = self.added[position].data_ptr()

    def _side(self) -> int:
        """Which of two buffers holds what is."""
        return int(self._numbers["lists"] != self.lists[0].data_ptr())

    def _histories(self) -> tuple[Tensor, Tensor]:
        side = self._side()
        return self.pieces[side], self.values[side]

    def _keep_sentences(self, staying: list[int]) -> None:
        """The others leave; between two steps."""
        batch, width = len(staying), self._numbers["width"]
        sentences = torch.tensor(staying, dtype=torch.int64)
        rows = (sentences[:, None] * width + torch.arange(width)).flatten()
        side, count = self._side(), batch * width
        for of_sentences in (self.places, self.longest, self.greatest_penalties):
            of_sentences[:batch] = of_sentences[sentences]
        self.sources[:, :batch] = self.sources[:, sentences]
        self.row_sources[:, :count] = self.row_sources[:, rows]
        for of_rows in (self.newest, self.scores, self.pieces[side], self.values[side], self.lists[side]):
            of_rows[:count] = of_rows[rows]
        self._numbers["sentences"], self._step["rows"], self._select["rows"] = batch, count, count

    def _keep(self, array: Tensor) -> Tensor:
        """The machine code knows where it stands."""
        self._arrays.append(array)
        return array

    # --- numbers ---------------------------------------------------------------------------------------------------

    def _step_places(self) -> dict[str, int]:
        state = self.state
        return {
            "rows": len(self.bounds.longest),
            "x": self.x.data_ptr(),
            **self.scratch.addresses,
            "room": self.positions,
            "firsts": self.row_sources[0].data_ptr(),
            "counts": self.row_sources[1].data_ptr(),
            "memory": state.memory.data_ptr(),
            "sources": state.memory.shape[1],
            "past": state.pool.entries.data_ptr(),
            "entries": state.pool.entries.shape[1],
            "used": 0,
            "lists": self.lists[0].data_ptr(),
            "list_stride": self.room + 1,
            "length": 1,
            "ids": self.newest.data_ptr(),
            "added": self.added.data_ptr(),
            "logits": self.logits.data_ptr(),
        }

    def _select_places(self) -> dict[str, int]:
        sentences, beam_size = len(self.bounds.longest), self.bounds.beam_size
        outputs = self.state.output.outputs
        places = {}
        for kind, count in (("live", beam_size), ("ended", 2 * beam_size)):
            ids = self._keep(torch.empty(2, sentences, count, dtype=torch.int64))
            numbers = self._keep(torch.empty(2, sentences, count))
            for name, array in zip(("parents", "pieces", "scores", "totals"), (*ids, *numbers), strict=True):
                places[f"{kind}_{name}"] = array.data_ptr()
        room = self._keep(torch.empty(self.threads, room_to_select(outputs, beam_size, beam_size)))
        return {
            "logits": self.logits.data_ptr(),
            "rows": sentences,
            "vocabulary_size": outputs,
            "stride": self.state.output.padded_outputs,
            "beams": 1,
            "normalizer": 0,
            "scores": self.scores.data_ptr(),
            "eos_id": self.bounds.eos_id,
            "beam_size": beam_size,
            **places,
            "room": room.data_ptr(),
            "own_room": room.shape[1],
        }

    def _search_places(self) -> dict[str, int]:
        bounds, sentences = self.bounds, len(self.bounds.longest)
        never = self._keep(torch.tensor(bounds.never_written, dtype=torch.int64))
        penalties = self._keep(bounds.penalties)
        found_scores = self._keep(torch.zeros(sentences, bounds.beam_size + 1, dtype=torch.float64))
        arrays = {
            "pieces": self.pieces[0],
            "values": self.values[0],
            "lists": self.lists[0],
            "next_pieces": self.pieces[1],
            "next_values": self.values[1],
            "next_lists": self.lists[1],
            "added": self.added,
            "never": never,
            "newest": self.newest,
            "row_sources": self.row_sources,
            "sources": self.sources,
            "places": self.places,
            "longest": self.longest,
            "greatest_penalties": self.greatest_penalties,
            "penalties": penalties,
            "found": self.count,
            "order": self.order,
            "found_scores": found_scores,
            "found_lengths": self.found_numbers[0],
            "found_ended": self.found_numbers[1],
            "found_pieces": self.found_pieces,
            "found_values": self.found_values,
        }
        return {name: array.data_ptr() for name, array in arrays.items()} | {
            "steps": 0,
            "stop": 0,
            "sentences": sentences,
            "width": 1,
            "length": 0,
            "step": self.state.programs.step.address,
            "step_places": ctypes.addressof(self._step.array),
            "select_places": ctypes.addressof(self._select.array),
            "beam_size": bounds.beam_size,
            "certain": bounds.n_best if bounds.beam_size > 1 else 0,
            "room": self.room,
            "positions": len(self.added),
            "d_model": self.state.programs.d_model,
            "nevers": len(bounds.never_written),
            "most_rows": self.rows,
            "all_sentences": sentences,
        }


class _Numbers:
    """Numbers in memory that a program reads and changes, by name."""

    def __init__(self, kind: type[Places | SelectPlaces | SearchPlaces], **values: int) -> None:
        self._places = {name: place for place, name in enumerate(kind._fields)}
        self.array = (ctypes.c_int64 * len(self._places))(*kind(**values))

    def __getitem__(self, name: str) -> int:
        return self.array[self._places[name]]

    def __setitem__(self, name: str, value: int) -> None:
        self.array[self._places[name]] = value
