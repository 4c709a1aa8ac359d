"""Implement the decoding state of decoder-only models: prompts of any lengths, continued by compiled steps.

Legend: B prompts, W hypotheses of each, P tokens of the longest prompt, N rows (B × W, or prompt tokens), D model
width, V vocabulary size.
"""

import torch
from torch import Tensor

from transduce.model.native.model_programs import ModelPrograms
from transduce.model.native.pool import ROOM
from transduce.model.native.steps import NativeSteps, starts_of
from transduce.model.packed import PackedDecoder


class NativePromptState(NativeSteps):
    """A decoding state of a decoder-only model that runs on compiled kernels (implements `DecodingState`).

    Its first step returns the prediction after the prompt and processes no token, as in `PromptState`.
    """

    def __init__(self, model: PackedDecoder, programs: ModelPrograms, prompt_ids: Tensor, lengths: Tensor) -> None:
        """Process the prompts prompt_ids (B, P) of these lengths (B,), at least 1."""
        counts: list[int] = lengths.tolist()
        starts, tokens = starts_of(counts), sum(counts)
        super().__init__(model, programs, len(counts), more=tokens)
        self.longest_source = max(counts)
        positions = torch.arange(prompt_ids.shape[1]).expand(len(counts), -1)
        present = positions < lengths[:, None]
        self.counts = 1 + positions[present]  # (N,)
        self.firsts = torch.tensor(starts).repeat_interleave(lengths)  # (N,)
        x = self.read(prompt_ids[present])  # (N, D)
        self.pool.used, self.position = tokens, self.longest_source
        self.counts = lengths.clone()  # (B × W,), tokens so far
        # Each row's list of cache entries; elements behind its length are undefined.
        self.lists = (torch.tensor(starts)[:, None] + positions[:, : self.longest_source]).clamp_(max=tokens - 1).int()
        self.lists = torch.cat([self.lists, self.lists.new_zeros(len(counts), ROOM)], dim=1)
        self._after_prompt: Tensor | None = x.index_select(0, lengths.cumsum(0) - 1)  # (B, D)

    def advance(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run a step; returns the last layer's output, (B × W, D), and the logits, (B × W, V)."""
        if self._after_prompt is not None:
            hidden, self._after_prompt = self._after_prompt, None
            return hidden, self.model.project(hidden)
        self.counts += 1
        return super().advance(tokens)

    def select_rows(self, rows: Tensor, width: int) -> None:
        """Make row n continue what was row rows[n]; the number of hypotheses W may change."""
        super().select_rows(rows, width)
        self.counts = self.counts.index_select(0, rows)
        if self._after_prompt is not None:
            self._after_prompt = self._after_prompt.index_select(0, rows)

    def row_places(self) -> dict[str, int]:
        """Return the kernel arguments `firsts`, `counts`, `memory` and `sources` of `model_writer.Places`."""
        return {"firsts": self.firsts.data_ptr(), "counts": self.counts.data_ptr(), "memory": 0, "sources": 0}
