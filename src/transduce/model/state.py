"""Decoding step by step: the interface between search and any model.

A model's `start` returns a state for a batch of inputs. In models with attention, the hypotheses of a sentence are
decoded as further positions of one row. They share the cache and the projected memory, and a mask shows each hypothesis
the cached positions of its own past. Reordering hypotheses moves a small boolean array and no keys or values.
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
        """Return the last layer after each hypothesis' newest token, (B, W) to (B, W, D), for `project`.

        At the first step there is one hypothesis for each sentence, and its token is the start symbol.
        """

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis w of sentence b by hypothesis parents[b, w]; (B, W)."""

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep these sentences, in this order; the others leave the batch."""


class Ancestry:
    """A record of the cached positions that each hypothesis descends from."""

    def __init__(self, present: Tensor) -> None:
        """Start with one hypothesis for each sentence, and with the cached positions that exist, (B, L)."""
        self.of = present[:, None]  # (B, W, L)
        self.is_whole = present.shape[1] == 0  # True while every hypothesis descends from all cached positions

    def extend(self, width: int) -> AttentionMask | None:
        """Add one position for each of W hypotheses, and return the mask of all positions (None: nothing is hidden)."""
        batch = len(self.of)
        self.is_whole = self.is_whole and width == 1
        itself = torch.eye(width, dtype=torch.bool, device=self.of.device).expand(batch, width, width)
        self.of = torch.cat([self.of, itself], dim=2)
        return None if self.is_whole else ancestry_mask(self.of)

    def reorder(self, parents: Tensor) -> None:
        """Replace hypothesis w of sentence b by hypothesis parents[b, w]; (B, W)."""
        self.of = self.of.gather(1, parents[..., None].expand(-1, -1, self.of.shape[2]))

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep these sentences, in this order."""
        self.of = self.of.index_select(0, rows)


class MemoryDecoder(Protocol):
    """The methods of `Transformer` that `MemoryState` uses."""

    def encode(self, source_ids: Tensor) -> tuple[Tensor, AttentionMask]:
        """Return the memory (B, S, D) and the mask that hides its padding."""

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
        """Return the decoder's last layer, (B, T, D)."""

    def new_cache(self) -> DecoderCache:
        """Return an empty cache."""


class MemoryState:
    """The decoding state of an encoder and decoder with attention."""

    def __init__(self, model: MemoryDecoder, source_ids: Tensor) -> None:
        """Encode source_ids (B, S)."""
        self.model = model
        self.memory, self.memory_mask = model.encode(source_ids)
        self.cache = model.new_cache()
        self.position = 0
        self.ancestry = Ancestry(torch.zeros(len(source_ids), 0, dtype=torch.bool, device=source_ids.device))

    def step(self, pieces: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the last layer after each hypothesis' newest token, (B, W) to (B, W, D)."""
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
        """Replace hypothesis w of sentence b by hypothesis parents[b, w]; (B, W)."""
        self.ancestry.reorder(parents)

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep these sentences, in this order; the others leave the batch."""
        self.memory = self.memory.index_select(0, rows)
        self.memory_mask = AttentionMask(self.memory_mask.allowed.index_select(0, rows))
        self.ancestry.keep_sentences(rows)
        self.cache.keep_sentences(rows)
