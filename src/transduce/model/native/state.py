"""Implement the decoding state of encoder-decoder models on compiled kernels.

Legend: B sentences, W hypotheses of each, N rows (B × W, or source tokens), S source length, D model width.
"""

import torch
from torch import Tensor

from transduce.model.native.model_programs import ModelPrograms
from transduce.model.native.steps import NativeSteps, starts_of
from transduce.model.packed import PackedTransformer


class NativeState(NativeSteps):
    """A decoding state of an encoder-decoder model on compiled kernels (implements `DecodingState`).

    Attention weights cannot be traced.
    """

    def __init__(self, model: PackedTransformer, programs: ModelPrograms, source_ids: Tensor) -> None:
        """Encode source_ids (B, S)."""
        super().__init__(model, programs, len(source_ids))
        pad_id = model.config.pad_id
        ids: list[list[int]] = source_ids.tolist()
        counts = [len(row) - row.count(pad_id) for row in ids]
        starts = starts_of(counts)
        self.longest_source, tokens = max(counts), sum(counts)
        self.sources = _pairs(starts, counts)  # (2, B): offsets and numbers of tokens
        self.row_sources = _pairs(*(_repeat(numbers, counts) for numbers in (starts, counts)))  # (2, N)
        layers, _, width = self.pool.entries.shape
        self.memory = torch.empty(layers, tokens, width, dtype=programs.kept_dtype)
        self.read(source_ids[source_ids != pad_id])
        self.row_sources = self.sources  # (2, B × W)

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the sentences at these rows."""
        super().keep_sentences(rows)
        self.sources = self.sources.index_select(1, rows)
        self._spread_sources()

    def select_rows(self, rows: Tensor, width: int) -> None:
        """Make row n continue what was row rows[n]; the number of hypotheses W may change."""
        changes = width != self.width
        super().select_rows(rows, width)
        if changes:
            self._spread_sources()

    def _spread_sources(self) -> None:
        """Repeat each sentence's source offset and length for all of its hypotheses."""
        self.row_sources = self.sources if self.width == 1 else self.sources.repeat_interleave(self.width, dim=1)

    def row_places(self) -> dict[str, int]:
        """Return the kernel arguments `firsts`, `counts`, `memory` and `sources` of `model_writer.Places`."""
        firsts = self.row_sources.data_ptr()
        return {
            "firsts": firsts,
            "counts": firsts + self.row_sources.shape[1] * self.row_sources.element_size(),
            "memory": self.memory.data_ptr(),
            "sources": self.memory.shape[1],
        }


def _pairs(firsts: list[int], counts: list[int]) -> Tensor:
    """Return offsets and counts as a tensor (2, N)."""
    return torch.tensor(firsts + counts).view(2, -1)


def _repeat(numbers: list[int], counts: list[int]) -> list[int]:
    """Repeat each number as often as its count says."""
    return [number for number, count in zip(numbers, counts, strict=True) for _ in range(count)]
