"""A rule by which every hypothesis is a tree over its sentence's words: brackets balance, and each word is there once.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t pieces so far.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_NEVER = float("-inf")
# Constituents that begin at one word, one inside another: more than any treebank has.
_MOST_OPENED_AT_ONCE = 12


class BracketPiece(NamedTuple):
    """What a piece of a linearised tree does: it opens constituents; or stands for the next word, then closes some."""

    opened: int = 0
    words: int = 0
    closed: int = 0
    number: int = 0
    """Of the next word among those that numbers begin again after, from 1; 0: it is no number."""


class BracketPieces(NamedTuple):
    """What the pieces of linearised trees mean, by their ids."""

    meanings: Mapping[int, BracketPiece]
    silent: Sequence[int]
    """Pieces that may only come first, such as a space that a vocabulary begins every text with."""
    eos_id: int


class BalancedBrackets:
    """Forbids each piece that could not be continued to a tree over exactly the sentence's words.

    A sentence of one word may be that word alone. With the greatest length there may still be hypotheses that are cut.
    """

    def __init__(self, pieces: BracketPieces, words: Sequence[int], vocabulary_size: int) -> None:
        """
        Args:
            pieces: what they mean.
            words: how many words each sentence has, (N,).
            vocabulary_size: V.
        """
        self.words = torch.tensor(words)
        self.eos_id = pieces.eos_id
        counts = torch.zeros(4, vocabulary_size, dtype=torch.int64)
        for id, meaning in pieces.meanings.items():
            counts[:, id] = torch.tensor(meaning)
        self.counts = counts
        self.most = int(counts[3].max())
        self.silent = torch.zeros(vocabulary_size, dtype=torch.bool)
        self.silent[list(pieces.silent)] = True

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """Sets the logits of what cannot follow to minus infinity; a hypothesis that has ended is left as it is."""
        device = logits.device
        opens, says, closes, numbers = self.counts.to(device)  # (V,) each
        opened, said, closed = opens[pieces], says[pieces], closes[pieces]  # (B, W, t)
        words = self.words.to(device)[rows][:, None, None]
        depth = (opened.sum(-1) - closed.sum(-1))[..., None]  # (B, W, 1)
        left = words - said.sum(-1)[..., None]  # (B, W, 1)
        begun = ((opened + said) > 0).any(-1)[..., None]
        at_once = _opened_at_once(opened)[..., None]
        alone = (words == 1) & ~begun
        # What closes the root, or is it, must have had all words.
        stays_whole = (depth - closes > 0) | ((depth - closes == 0) & (left == says))
        may_open = (opens > 0) & (left > 0) & ((depth > 0) | ~begun) & (at_once + opens <= _MOST_OPENED_AT_ONCE)
        may_say = (says > 0) & (left > 0) & ((depth > 0) | alone) & stays_whole
        may_close = (closes > 0) & (says == 0) & (depth > 0) & (at_once == 0) & stays_whole
        allowed = may_open | may_say | may_close  # (B, W, V)
        if self.most:
            count = said.sum(-1)
            waits = ((numbers[pieces] > 0).sum(-1) == count)[..., None]  # for the next word's number, (B, W, 1)
            is_next = numbers == (count % self.most + 1)[..., None]
            may_number = is_next & (left > 0) & ((depth > 0) | ~begun)
            allowed = torch.where(waits, may_number | may_close, may_open | may_say)
        if not pieces.shape[-1]:
            allowed |= self.silent.to(device)
        allowed[..., self.eos_id] = (begun & (depth == 0) & (left == 0))[..., 0]
        ended = (pieces == self.eos_id).any(-1)
        return logits.masked_fill_(~(allowed | ended[..., None]), _NEVER)


def _opened_at_once(opened: Tensor) -> Tensor:
    """How many constituents the newest pieces open, without a word or a closing bracket after them, (B, W)."""
    is_newest = (opened > 0).flip(-1).long().cumprod(-1).flip(-1)
    return (opened * is_newest).sum(-1)
