"""Decoding step by step: the interface between search and any model.

A model's `start` returns a state for a batch of inputs. In models with attention, the hypotheses of a sentence are
decoded as further positions of one row. They share the cache and the projected memory, and a mask shows each hypothesis
the cached positions of its own past. Reordering hypotheses moves a small boolean array and no keys or values.
Legend: B sentences, W hypotheses of each, L cached positions, D model width.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.model.attention import AttentionTrace, DecoderCache
from transduce.model.masks import AttentionMask, ancestry_mask


class DecodingState(Protocol):
    """A batch of sentences in the middle of decoding."""

    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
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

    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """Return the last layer after each hypothesis' newest token, (B, W) to (B, W, D)."""
        width = tokens.shape[1]
        hidden = self.model.decode(
            tokens,
            self.memory,
            self.memory_mask,
            mask=self.ancestry.extend(width),
            positions=torch.full((width,), self.position, device=tokens.device),
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


# --- searching ---
# A search for a batch that runs where the model does, from its first step to its last: what it is asked, and finds.
# Legend: B sentences still in the batch, W hypotheses of each, t pieces so far.


class SearchBounds(NamedTuple):
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

    tokens: Tensor | NDArray[Any]
    """With the end symbol, where it ended, (t,)."""
    log_probabilities: Tensor | NDArray[Any]
    """Of each piece, (t,)."""
    ended: bool
    """Whether it ended, or was cut."""


class BatchSearch(Protocol):
    """Hypotheses of a batch: the best of every sentence, and the live ones of those that are still decoded."""

    @property
    def active(self) -> Tensor:
        """The places in the batch of the sentences that are still decoded, (B,)."""

    def advance(self, steps: int) -> None:
        """At most so many steps; none after all sentences are done."""

    def live(self) -> tuple[Tensor, Tensor]:
        """What live hypotheses hold, int64 (B, W, t), and their log-probabilities, (B, W)."""

    def found(self, place: int, count: int) -> list[FoundHypothesis]:
        """At most so many hypotheses of the sentence at this place, best first."""

    def abandon(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """The sentences at these rows leave; their live hypotheses, as they are."""
