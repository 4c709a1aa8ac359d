"""A rule by which every hypothesis is a tree over its sentence's words: brackets balance, and each word is there once.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t pieces so far.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_NEVER = float("-inf")
# Constituents that begin at one word, one inside another: more than any treebank has.
_MOST_OPENED_AT_ONCE = 12


class BracketPieces(NamedTuple):
    """What the pieces of linearised trees mean, by their ids."""

    opening: Sequence[int]
    closing: int
    words: Sequence[int]
    """Each stands for the next word."""
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
        self.eos_id, self.closing = pieces.eos_id, pieces.closing
        kinds = torch.zeros(4, vocabulary_size, dtype=torch.bool)
        for kind, ids in enumerate((pieces.opening, [pieces.closing], pieces.words, pieces.silent)):
            kinds[kind, list(ids)] = True
        self.opening, self.closes, self.is_word, self.silent = kinds

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """Sets the logits of what cannot follow to minus infinity; a hypothesis that has ended is left as it is."""
        device = logits.device
        opening, closes, is_word = (kind.to(device)[pieces] for kind in (self.opening, self.closes, self.is_word))
        depth = opening.sum(-1) - closes.sum(-1)  # (B, W)
        left = self.words.to(device)[rows][:, None] - is_word.sum(-1)  # (B, W)
        alone = self.words.to(device)[rows][:, None] == 1
        begun = (opening | is_word).any(-1)
        just_opened = opening[..., -1] if pieces.shape[-1] else torch.zeros_like(begun)
        may_open = (left > 0) & ((depth > 0) | ~begun) & (self._opened_at_once(opening) < _MOST_OPENED_AT_ONCE)
        may_say = (left > 0) & ((depth > 0) | (alone & ~begun))
        may_close = (depth > 0) & ~just_opened & ((depth > 1) | (left == 0))
        may_end = begun & (depth == 0) & (left == 0)
        allowed = (
            (may_open[..., None] & self.opening.to(device))
            | (may_say[..., None] & self.is_word.to(device))
            | (may_close[..., None] & self.closes.to(device))
        )
        allowed |= self.silent.to(device) & torch.tensor(pieces.shape[-1] == 0, device=device)
        allowed[..., self.eos_id] = may_end
        ended = (pieces == self.eos_id).any(-1)
        return logits.masked_fill_(~(allowed | ended[..., None]), _NEVER)

    @staticmethod
    def _opened_at_once(opening: Tensor) -> Tensor:
        """How many of the newest pieces are opening brackets, without another between them, (B, W)."""
        return opening.flip(-1).long().cumprod(-1).sum(-1)
