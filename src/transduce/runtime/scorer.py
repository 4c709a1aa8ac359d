"""The Transformer as search sees it: one step for all hypotheses of a batch.

The hypotheses of a sentence are decoded side by side, as if they were further positions of one row. They share the
cache and the projected memory; a mask tells each which cached positions are its own past. Reordering hypotheses
therefore moves a small boolean array and no keys or values.
Legend: B sentences, W hypotheses of each, L cached positions, V vocabulary.
"""

import torch
from torch import Tensor

from transduce.model.masks import AttentionMask, ancestry_mask
from transduce.model.transformer import Transformer


class TransformerScorer:
    """Implements `search.scorer.Scorer` for a batch of encoded sentences."""

    def __init__(self, model: Transformer, source_ids: Tensor) -> None:
        """Encodes source_ids (B, S)."""
        self.model = model
        self.memory, self.memory_mask = model.encode(source_ids)
        self.cache = model.new_cache()
        self.position = 0
        # Which cached positions each hypothesis descends from, (B, W, L).
        self.ancestors = torch.zeros(len(source_ids), 1, 0, dtype=torch.bool, device=source_ids.device)

    def step(self, pieces: Tensor) -> Tensor:
        """Logits of the next piece (B, W, V) after each hypothesis' newest piece (B, W)."""
        batch, width = pieces.shape
        itself = torch.eye(width, dtype=torch.bool, device=pieces.device).expand(batch, width, width)
        self.ancestors = torch.cat([self.ancestors, itself], dim=2)
        hidden = self.model.decode(
            pieces,
            self.memory,
            self.memory_mask,
            mask=None if width == 1 and self.cache.length == self.position else ancestry_mask(self.ancestors),
            positions=torch.full((width,), self.position, device=pieces.device),
            cache=self.cache,
        )
        self.position += 1
        return self.model.project(hidden)

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        index = parents[..., None].expand(-1, -1, self.ancestors.shape[2])
        self.ancestors = self.ancestors.gather(1, index)

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self.memory = self.memory.index_select(0, rows)
        self.memory_mask = AttentionMask(self.memory_mask.allowed.index_select(0, rows))
        self.ancestors = self.ancestors.index_select(0, rows)
        self.cache.keep_sentences(rows)
