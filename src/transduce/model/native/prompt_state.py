"""Prompts that were read, of whatever lengths, and what continues them step by step, by machine code.

Legend: B prompts, W hypotheses of each, P pieces of the longest prompt, N rows (B × W, or pieces of prompts), D model
width, V vocabulary.
"""

import torch
from torch import Tensor

from transduce.model.native.model_programs import ModelPrograms
from transduce.model.native.pool import ROOM
from transduce.model.native.steps import NativeSteps, starts_of
from transduce.model.packed import PackedDecoder


class NativePromptState(NativeSteps):
    """Implements `DecodingState`; the first step's result is the one after the prompt, as of `PromptState`."""

    def __init__(self, model: PackedDecoder, programs: ModelPrograms, prompt_ids: Tensor, lengths: Tensor) -> None:
        """Reads prompt_ids (B, P) of these lengths (B,), at least 1."""
        counts: list[int] = lengths.tolist()
        starts, pieces = starts_of(counts), sum(counts)
        super().__init__(model, programs, len(counts), more=pieces)
        self.longest_source = max(counts)
        places = torch.arange(prompt_ids.shape[1]).expand(len(counts), -1)
        present = places < lengths[:, None]
        self.counts = 1 + places[present]  # (N,)
        self.firsts = torch.tensor(starts).repeat_interleave(lengths)  # (N,)
        x = self.read(prompt_ids[present])  # (N, D)
        self.pool.used, self.position = pieces, self.longest_source
        self.counts = lengths.clone()  # (B × W,), of the pieces until now
        # Each row's entries, and what has no meaning behind.
        self.lists = (torch.tensor(starts)[:, None] + places[:, : self.longest_source]).clamp_(max=pieces - 1).int()
        self.lists = torch.cat([self.lists, self.lists.new_zeros(len(counts), ROOM)], dim=1)
        self._after_prompt: Tensor | None = x.index_select(0, lengths.cumsum(0) - 1)  # (B, D)

    def advance(self, pieces: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer, (B × W, D), and the logits, (B × W, V)."""
        if self._after_prompt is not None:
            hidden, self._after_prompt = self._after_prompt, None
            return hidden, self.model.project(hidden)
        self.counts += 1
        return super().advance(pieces)

    def select_rows(self, rows: Tensor, width: int) -> None:
        """Row n now continues what was row rows[n]; W may change."""
        super().select_rows(rows, width)
        self.counts = self.counts.index_select(0, rows)
        if self._after_prompt is not None:
            self._after_prompt = self._after_prompt.index_select(0, rows)

    def row_places(self) -> dict[str, int]:
        """`firsts`, `counts`, `memory` and `sources` of `Places`."""
        return {"firsts": self.firsts.data_ptr(), "counts": self.counts.data_ptr(), "memory": 0, "sources": 0}
