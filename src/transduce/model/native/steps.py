"""Implement what the compiled decoding states share: a batch during decoding, each step of which is one kernel call.

The keys and values of a token are an entry of a pool, and each hypothesis has a list of its tokens' entries. So
reordering hypotheses copies only these lists, removing sentences copies nothing, and unused entries are dropped when
the pool is full.

Legend: B sentences, W hypotheses of each, N rows (B × W, or tokens that are read), t tokens so far, D model width, V
vocabulary size.
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
    """The base class of decoding states on compiled kernels (implements `DecodingState`).

    Attention weights cannot be traced.
    """

    def __init__(
        self, model: PackedTransformer | PackedDecoder, programs: ModelPrograms, sentences: int, *, more: int = 0
    ) -> None:
        """Prepare for `sentences` sentences, with `more` entries in the pool beyond those of the first steps."""
        self.model = model
        self.programs = programs
        self.width = 1
        self.position = 0  # of the newest token; the greatest one if rows differ
        self.longest_source = 0
        layers, width = model.config.num_decoder_layers, 2 * programs.heads.keys
        self.pool = Pool(layers, sentences, width, programs.kept_dtype, more=more)
        self.lists = torch.zeros(sentences, 0, dtype=torch.int32)  # (B × W, at least t)
        self.scratch: Scratch | None = None
        self.output = output_of(model)
        self.logits_room = torch.empty(0, self.output.padded_outputs)

    def row_places(self) -> dict[str, int]:
        """Return the kernel arguments `firsts`, `counts`, `memory` and `sources` of `model_writer.Places`."""
        raise NotImplementedError

    def select_rows(self, rows: Tensor, width: int) -> None:
        """Make row n continue what was row rows[n]; the number of hypotheses W may change."""
        self.lists = self.lists.index_select(0, rows)
        self.width = width

    def step(self, pieces: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the last layer's output after each hypothesis' newest token, (B, W) to (B, W, D)."""
        if trace is not None:
            raise ValueError("attention weights are not kept here: use the model's own state")
        return self.advance(pieces)[0].view(*pieces.shape, -1)

    def step_to_logits(self, pieces: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last layer's output, (B, W, D), and the logits, (B, W, V), after each newest token (B, W).

        The logits are overwritten by the next step.
        """
        states, logits = (tensor.unflatten(0, pieces.shape) for tensor in self.advance(pieces))
        return states, logits

    def advance(self, pieces: Tensor) -> tuple[Tensor, Tensor]:
        """Run a step; returns the last layer's output, (B × W, D), and the logits, (B × W, V)."""
        rows = pieces.numel()
        self._ensure_capacity(rows)
        if rows > self.logits_room.shape[0]:
            self.logits_room = torch.empty(rows, self.output.padded_outputs)
        x = torch.empty(rows, self.programs.d_model)
        tables = self.programs.step_positions.until(self.position)
        self._run(x, tables, pieces.contiguous(), is_step=True)
        self.position += 1
        self.pool.used += rows
        return x, self.logits_room[:rows, : self.output.outputs]

    def reorder(self, parents: Tensor) -> None:
        """Make hypothesis w of sentence b continue what was hypothesis parents[b, w]."""
        batch, width = parents.shape
        if width == self.width == 1:
            return
        rows = parents + torch.arange(0, batch * self.width, self.width)[:, None]
        self.select_rows(rows.flatten(), width)

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the sentences at these rows."""
        own_rows = rows[:, None] * self.width + torch.arange(self.width)
        self.select_rows(own_rows.flatten(), self.width)

    def read(self, ids: Tensor) -> Tensor:
        """Run the encoder, or process prompts: token ids (N,) to the last layer's output (N, D).

        Raises:
            IndexError: an id is not in the vocabulary, so that machine code would read out of bounds.
        """
        least, greatest = (int(each) for each in ids.aminmax())
        size = len(self.model.source_weight)
        if least < 0 or greatest >= size:
            bad_id = least if least < 0 else greatest
            reason = f"token ids range from 0 to {size - 1}, but one is {bad_id}"
            raise IndexError(f"{reason}: encode the text with the tokenizer of this model")
        x = torch.empty(len(ids), self.programs.d_model)
        tables = self.programs.read_positions.until(self.longest_source - 1)
        self._run(x, tables, ids, is_step=False)
        self.scratch = None  # steps need less scratch space
        return x

    def _ensure_capacity(self, rows: int) -> None:
        """Make sure that the lists and the pool suffice for another step of `rows` rows."""
        if self.position >= self.lists.shape[1]:
            more = torch.zeros(self.lists.shape[0], ROOM + self.position, dtype=torch.int32)
            self.lists = torch.cat([self.lists, more], dim=1)
        if not self.pool.has_room(rows):
            self.lists[:, : self.position] = self.pool.compact(self.lists[:, : self.position], rows)

    def _score_count(self) -> int:
        """Return the number of attention scores to allocate: those of each thread, plus a vector."""
        return torch.get_num_threads() * (max(self.longest_source, self.position + 1) + MOST_LANES)

    def _run(self, x: Tensor, tables: PositionTables, ids: Tensor, *, is_step: bool) -> None:
        """Run a step with the newest tokens, or the read kernel; writes x (N, D)."""
        programs, rows, scores = self.programs, x.shape[0], self._score_count()
        if self.scratch is None or not self.scratch.suffices(rows, scores):
            self.scratch = Scratch(programs, rows, 2 * scores if is_step else scores)
        arguments = Places(
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
        kernel, work = (programs.step, programs.step_work) if is_step else (programs.read, programs.read_work)
        run_watched(kernel, arguments, rows * work)


def starts_of(counts: list[int]) -> list[int]:
    """Return the offset of each row in a concatenation of rows with these numbers of tokens."""
    return [end - count for end, count in zip(accumulate(counts), counts, strict=True)]


class Scratch:
    """Scratch space of the read and step kernels."""

    def __init__(self, programs: ModelPrograms, rows: int, scores: int) -> None:
        """Allocate scratch space for `rows` rows and `scores` attention scores."""
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
        """Return whether the scratch space suffices for so many rows and scores."""
        return rows <= self.rows and scores <= self.scores
