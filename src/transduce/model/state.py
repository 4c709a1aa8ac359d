"""Decoding step by step: what search drives, whatever the model.

A model's `start` makes one for a batch of inputs. Attention's hypotheses are decoded side by side, as if they were
further positions of one row: they share the cache and the projected memory, and a mask tells each which cached
positions are its own past. Reordering hypotheses therefore moves a small boolean array and no keys or values.
Legend: B sentences, W hypotheses of each, L cached positions, D model width.
"""

from typing import Protocol

import torch
from torch import Tensor

from transduce.model.attention import AttentionTrace
from transduce.model.cache import DecoderCache
from transduce.model.masks import AttentionMask, ancestry_mask


class DecodingState(Protocol):
    """A batch of sentences in the middle of decoding."""

    def step(self, pieces: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """The last layer after each hypothesis' newest piece, (B, W) to (B, W, D); `project` makes logits of it.

        At the first step there is one hypothesis a sentence, and its piece is the start symbol.
        """

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]; (B, W)."""

    def keep_sentences(self, rows: Tensor) -> None:
        """Keeps these sentences, in this order; the others leave the batch."""


class Ancestry:
    """Which cached positions each hypothesis descends from."""

    def __init__(self, present: Tensor) -> None:
        """Of sentences with one hypothesis each, of which these cached positions exist, (B, L)."""
        self.of = present[:, None]  # (B, W, L)
        self.is_whole = present.shape[1] == 0  # every hypothesis descends from all that is cached

    def extend(self, width: int) -> AttentionMask | None:
        """Each of W hypotheses gets a position of its own; the mask of all (None: all may be seen)."""
        batch = len(self.of)
        self.is_whole = self.is_whole and width == 1
        itself = torch.eye(width, dtype=torch.bool, device=self.of.device).expand(batch, width, width)
        self.of = torch.cat([self.of, itself], dim=2)
        return None if self.is_whole else ancestry_mask(self.of)

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        self.of = self.of.gather(1, parents[..., None].expand(-1, -1, self.of.shape[2]))

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self.of = self.of.index_select(0, rows)


class MemoryDecoder(Protocol):
    """The part of `Transformer` that is needed here."""

    def encode(self, source_ids: Tensor) -> tuple[Tensor, AttentionMask]:
        """The memory (B, S, D) and the mask that hides its padding."""

    def decode(
        self,
        target_input_ids: Tensor,
        memory: Tensor,
        memory_mask: AttentionMask,
        *,
        mask: AttentionMask | None = None,
        positions: Tensor | None = None,
        end: int | None = None,
        cache: DecoderCache | None = None,
        trace: AttentionTrace | None = None,
    ) -> Tensor:
        """The decoder's last layer, (B, T, D)."""

    def new_cache(self) -> DecoderCache:
        """An empty cache."""


class MemoryState:
    """Of an encoder and decoder with attention."""

    def __init__(self, model: MemoryDecoder, source_ids: Tensor) -> None:
        """Encodes source_ids (B, S)."""
        self.model = model
        self.memory, self.memory_mask = model.encode(source_ids)
        self.cache = model.new_cache()
        self.position = 0
        self.ancestry = Ancestry(torch.zeros(len(source_ids), 0, dtype=torch.bool, device=source_ids.device))

    def step(self, pieces: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """The last layer after each hypothesis' newest piece, (B, W) to (B, W, D)."""
        width = pieces.shape[1]
        hidden = self.model.decode(
            pieces,
            self.memory,
            self.memory_mask,
            mask=self.ancestry.extend(width),
            positions=torch.full((width,), self.position, device=pieces.device),
            end=self.position + 1,
            cache=self.cache,
            trace=trace,
        )
        self.position += 1
        return hidden

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        self.ancestry.reorder(parents)

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self.memory = self.memory.index_select(0, rows)
        self.memory_mask = AttentionMask(self.memory_mask.allowed.index_select(0, rows))
        self.ancestry.keep_sentences(rows)
        self.cache.keep_sentences(rows)
