"""A batch in the middle of decoding, each step of it one call of machine code.

Keys and values of a piece are an entry of a pool, and each hypothesis has a list of its pieces' entries. So reordering
hypotheses copies lists of small numbers, sentences leave without a copy of anything, and entries that nobody's list
names any more are dropped when the pool is full.
Legend: B sentences, W hypotheses of each, N rows (B × W, or pieces that are read), t pieces so far, D model width,
V vocabulary.
"""

from itertools import accumulate

import torch
from torch import Tensor

from transduce.model.attention import AttentionTrace
from transduce.model.native.amx import MORE_ROWS
from transduce.model.native.arena import Arena
from transduce.model.native.crew import run_watched
from transduce.model.native.model_programs import ModelPrograms, output_of
from transduce.model.native.model_writer import ROWS_AT_ONCE, Places
from transduce.model.native.pool import ROOM, Pool
from transduce.model.native.position_tables import PositionTables
from transduce.model.native.tile import MOST_LANES
from transduce.model.packed import PackedDecoder, PackedTransformer


class NativeSteps:
    """What states of machine code have in common. Implements `DecodingState`; attention weights cannot be traced."""

    def __init__(
        self, model: PackedTransformer | PackedDecoder, programs: ModelPrograms, sentences: int, *, more: int = 0
    ) -> None:
        """For so many sentences, and more entries of the pool than their first steps take."""
        self.model = model
        self.programs = programs
        self.width = 1
        self.position = 0  # of the newest piece; the last one, where rows differ
        self.longest_source = 0
        layers, width = model.config.num_decoder_layers, 2 * programs.heads.keys
        self.pool = Pool(layers, sentences, width, programs.kept_dtype, more=more)
        self.lists = torch.zeros(sentences, 0, dtype=torch.int32)  # (B × W, at least t)
        self.scratch: Scratch | None = None
        self.output = output_of(model)
        self.logits_room = torch.empty(0, self.output.padded_outputs)

    def row_places(self) -> dict[str, int]:
        """`firsts`, `counts`, `memory` and `sources` of `Places`."""
        raise NotImplementedError

    def select_rows(self, rows: Tensor, width: int) -> None:
        """Row n now continues what was row rows[n]; W may change."""
        self.lists = self.lists.index_select(0, rows)
        self.width = width

    def step(self, pieces: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """The last layer after each hypothesis' newest piece, (B, W) to (B, W, D)."""
        if trace is not None:
            raise ValueError("attention weights are not kept here: use the model's own state")
        return self.advance(pieces)[0].view(*pieces.shape, -1)

    def step_to_logits(self, pieces: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer and the logits after each hypothesis' newest piece, (B, W) to (B, W, D) and (B, W, V).

        The logits hold until the next step.
        """
        states, logits = (found.unflatten(0, pieces.shape) for found in self.advance(pieces))
        return states, logits

    def advance(self, pieces: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer, (B × W, D), and the logits, (B × W, V)."""
        rows = pieces.numel()
        self._make_room(rows)
        if rows > self.logits_room.shape[0]:
            self.logits_room = torch.empty(rows, self.output.padded_outputs)
        x = torch.empty(rows, self.programs.d_model)
        tables = self.programs.step_positions.until(self.position)
        self._run(x, tables, pieces.contiguous(), is_step=True)
        self.position += 1
        self.pool.used += rows
        return x, self.logits_room[:rows, : self.output.outputs]

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        batch, width = parents.shape
        if width == self.width == 1:
            return
        rows = parents + torch.arange(0, batch * self.width, self.width)[:, None]
        self.select_rows(rows.flatten(), width)

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        own = rows[:, None] * self.width + torch.arange(self.width)
        self.select_rows(own.flatten(), self.width)

    def read(self, ids: Tensor) -> Tensor:
        """What is given, (N,): what becomes of it, (N, D).

        Raises:
            IndexError: a piece that the vocabulary has not; machine code would read past it.
        """
        least, greatest = (int(each) for each in ids.aminmax())
        size = len(self.model.source_weight)
        if least < 0 or greatest >= size:
            found = least if least < 0 else greatest
            told = f"pieces are numbered from 0 to {size - 1}, but one is {found}"
            raise IndexError(f"{told}: encode the text with the tokenizer of this model")
        x = torch.empty(len(ids), self.programs.d_model)
        tables = self.programs.read_positions.until(self.longest_source - 1)
        self._run(x, tables, ids, is_step=False)
        self.scratch = None  # a step needs less
        return x

    def _make_room(self, rows: int) -> None:
        """For one more step of so many rows."""
        if self.position >= self.lists.shape[1]:
            more = torch.zeros(self.lists.shape[0], ROOM + self.position, dtype=torch.int32)
            self.lists = torch.cat([self.lists, more], dim=1)
        if not self.pool.has_room(rows):
            self.lists[:, : self.position] = self.pool.compact(self.lists[:, : self.position], rows)

    def _scores(self) -> int:
        """How many of them attention has room for: those of each thread, and a vector more."""
        return torch.get_num_threads() * (max(self.longest_source, self.position + 1) + MOST_LANES)

    def _run(self, x: Tensor, tables: PositionTables, ids: Tensor, *, is_step: bool) -> None:
        """A step with these newest pieces, or what is read; x (N, D) changes."""
        programs, rows, scores = self.programs, x.shape[0], self._scores()
        if self.scratch is None or not self.scratch.suffices(rows, scores):
            self.scratch = Scratch(programs, rows, 2 * scores if is_step else scores)
        places = Places(
            rows=rows,
            weights=programs.weights.data_ptr(),
            x=x.data_ptr(),
            **self.scratch.addresses,
            room=scores // torch.get_num_threads(),
            **self.row_places(),
            past=self.pool.entries.data_ptr(),
            entries=self.pool.entries.shape[1],
            used=self.pool.used,
            lists=self.lists.data_ptr(),
            list_stride=self.lists.shape[1],
            length=self.position + 1,
            ids=ids.data_ptr(),
            **tables.addresses(),
            logits=self.logits_room.data_ptr() if is_step else 0,
        )
        program, work = (programs.step, programs.step_work) if is_step else (programs.read, programs.read_work)
        run_watched(program, places, rows * work)


def starts_of(counts: list[int]) -> list[int]:
    """Where each of some rows of so many pieces begins, when they stand one after the other."""
    return [end - count for end, count in zip(accumulate(counts), counts, strict=True)]


class Scratch:
    """What a program writes on the way."""

    def __init__(self, programs: ModelPrograms, rows: int, scores: int) -> None:
        """For so many rows, and scores of attention."""
        heads, d_ff, d_model = programs.heads, programs.d_ff, programs.d_model
        self.rows, self.scores = rows, scores
        chunk = min(rows, ROWS_AT_ONCE)
        sizes = {
            "normed": rows * d_model,
            "rounded": (rows + MORE_ROWS) * max(d_model, heads.queries) // 2,
            "scales": rows,
            "projected": rows * (heads.queries + 2 * heads.keys),
            "heads": rows * heads.queries,
            "inner": chunk * d_ff * (3 if programs.is_gated else 1),
            "rounded_inner": (chunk + MORE_ROWS) * d_ff // 2,
            "scores": scores,
        }
        self._arena = Arena({name: (torch.float32, (size,)) for name, size in sizes.items()})
        self.addresses = self._arena.addresses

    def suffices(self, rows: int, scores: int) -> bool:
        """Whether there is room for so much."""
        return rows <= self.rows and scores <= self.scores
