"""A batch in the middle of decoding, each step of it one call of machine code.

Keys and values of a piece are an entry of a pool, and each hypothesis has a list of its pieces' entries. So reordering
hypotheses copies lists of small numbers, sentences leave without a copy of anything, and entries that nobody's list
names any more are dropped when the pool is full.
Legend: B sentences, W hypotheses of each, N rows (B × W, or source pieces), S source length, t pieces so far, D model
width, H heads, K width of a head's keys and of its values.
"""

from itertools import accumulate

import torch
from torch import Tensor

from transduce.model.attention import AttentionTrace
from transduce.model.native.amx import MORE_ROWS
from transduce.model.native.arena import Arena
from transduce.model.native.engine import Program
from transduce.model.native.model_programs import ModelPrograms, output_of
from transduce.model.native.model_writer import ROWS_AT_ONCE, Places
from transduce.model.native.pool import ROOM, Pool
from transduce.model.native.tile import MOST_LANES
from transduce.model.transformer import Transformer


class NativeState:
    """Implements `DecodingState`; attention weights cannot be traced."""

    def __init__(self, model: Transformer, programs: ModelPrograms, source_ids: Tensor) -> None:
        """Encodes source_ids (B, S)."""
        self.model = model
        self.programs = programs
        pad_id = model.config.pad_id
        ids: list[list[int]] = source_ids.tolist()
        counts = [len(row) - row.count(pad_id) for row in ids]
        starts = [end - count for end, count in zip(accumulate(counts), counts, strict=True)]
        self.longest_source, pieces = max(counts), sum(counts)
        self.sources = _pairs(starts, counts)  # (2, B): where each one begins, how many
        self.row_sources = _pairs(*(_repeat(numbers, counts) for numbers in (starts, counts)))  # (2, N)
        self.width = 1
        self.position = 0
        entry = (model.config.num_decoder_layers, 2 * self.programs.heads.keys)
        self.memory = model.source_weight.new_empty(entry[0], pieces, entry[1])
        self.pool = Pool(entry[0], len(source_ids), entry[1])
        self.lists = torch.zeros(len(source_ids), 0, dtype=torch.int32)  # (B × W, at least t)
        embedded = model.source_embedding(source_ids, model.source_weight)  # (B, S, D)
        x = embedded.flatten(0, 1) if pieces == source_ids.numel() else embedded[source_ids != pad_id]
        self.scratch: Scratch | None = None
        self._run(self.programs.encode, x)
        self.row_sources = self.sources  # (2, B × W)
        self.scratch = None  # a step needs less
        self.output = output_of(model)
        self.logits_room = torch.empty(0, self.output.padded_outputs)

    def step(self, pieces: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """The last layer after each hypothesis' newest piece, (B, W) to (B, W, D)."""
        if trace is not None:
            raise ValueError("attention weights are not kept here: use the model's own state")
        return self._advance(pieces)[0].view(*pieces.shape, -1)

    def logits(self, pieces: Tensor) -> Tensor:
        """Logits after each hypothesis' newest piece, (B, W) to (B, W, V). They hold until the next step."""
        logits: Tensor = self._advance(pieces)[1].unflatten(0, pieces.shape)
        return logits

    def _advance(self, pieces: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer, (B × W, D), and the logits, (B × W, V)."""
        rows = pieces.numel()
        self._make_room(rows)
        if rows > self.logits_room.shape[0]:
            self.logits_room = torch.empty(rows, self.output.padded_outputs)
        x = torch.empty(rows, self.programs.d_model)
        self._run(self.programs.step, x, pieces.contiguous())
        self.position += 1
        self.pool.used += rows
        return x, self.logits_room[:rows, : self.output.outputs]

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        batch, width = parents.shape
        if width == self.width == 1:
            return
        rows = parents + torch.arange(0, batch * self.width, self.width)[:, None]
        self.lists = self.lists.index_select(0, rows.flatten())
        if width != self.width:
            self._set_width(width)

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self.sources = self.sources.index_select(1, rows)
        self.lists = self.lists.unflatten(0, (-1, self.width)).index_select(0, rows).flatten(0, 1)
        self._set_width(self.width)

    def _set_width(self, width: int) -> None:
        self.width = width
        self.row_sources = self.sources if width == 1 else self.sources.repeat_interleave(width, dim=1)

    def _make_room(self, rows: int) -> None:
        """For one more step of so many rows."""
        if self.position == self.lists.shape[1]:
            more = torch.zeros(self.lists.shape[0], ROOM + self.position, dtype=torch.int32)
            self.lists = torch.cat([self.lists, more], dim=1)
        if not self.pool.has_room(rows):
            self.lists[:, : self.position] = self.pool.compact(self.lists[:, : self.position], rows)

    def _scores(self) -> int:
        """How many of them attention has room for: those of each thread, and a vector more."""
        return torch.get_num_threads() * (max(self.longest_source, self.position + 1) + MOST_LANES)

    def _run(self, program: Program, x: Tensor, ids: Tensor | None = None) -> None:
        """A step, or the encoder; x (N, D) changes."""
        rows, scores = x.shape[0], self._scores()
        if self.scratch is None or not self.scratch.suffices(rows, scores):
            self.scratch = Scratch(self.programs, rows, 2 * scores if ids is not None else scores)
        sources, targets = self.programs.source_positions, self.programs.target_positions
        _, tables = sources.until(self.longest_source - 1) if ids is None else targets.until(self.position)
        places = Places(
            rows=rows,
            weights=self.programs.weights.data_ptr(),
            x=x.data_ptr(),
            **self.scratch.addresses,
            room=scores // torch.get_num_threads(),
            firsts=self.row_sources.data_ptr(),
            counts=self.row_sources.data_ptr() + self.row_sources.shape[1] * self.row_sources.element_size(),
            memory=self.memory.data_ptr(),
            sources=self.memory.shape[1],
            past=self.pool.entries.data_ptr(),
            entries=self.pool.entries.shape[1],
            used=self.pool.used,
            lists=self.lists.data_ptr(),
            list_stride=self.lists.shape[1],
            length=self.position + 1,
            ids=0 if ids is None else ids.data_ptr(),
            **tables.addresses(),
            logits=0 if ids is None else self.logits_room.data_ptr(),
        )
        program.run(*places)


def _pairs(firsts: list[int], counts: list[int]) -> Tensor:
    """(2, N)."""
    return torch.tensor(firsts + counts).view(2, -1)


def _repeat(numbers: list[int], counts: list[int]) -> list[int]:
    return [number for number, count in zip(numbers, counts, strict=True) for _ in range(count)]


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
