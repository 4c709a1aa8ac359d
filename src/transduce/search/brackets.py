"""A rule by which every hypothesis is a tree over its sentence's words: brackets balance, and each word is there once.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, K kinds of pieces, t pieces so far.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_NEVER = float("-inf")
# Constituents that begin at one word, one inside another: more than any treebank has.
_MOST = 12


class BracketPiece(NamedTuple):
    """What a piece of a linearised tree does, in this order: closes constituents, opens some, places a word."""

    closed: int = 0
    opened: int = 0
    words: int = 0


class BalancedBrackets:
    """Forbids each piece that could not be continued to a tree over exactly the sentence's words.

    A word's own pieces come first, then what leads up to it. A sentence of one word may be that word alone. With the
    greatest length there may still be hypotheses that are cut.
    """

    def __init__(
        self,
        meanings: Mapping[int, BracketPiece],
        sentences: Sequence[Sequence[Sequence[int]]],
        *,
        vocabulary_size: int,
        eos_id: int,
    ) -> None:
        """
        Args:
            meanings: of the pieces of linearised trees, by their ids.
            sentences: the pieces of each word of each sentence.
            vocabulary_size: V.
            eos_id: of the piece that ends a tree.
        """
        self.eos_id = eos_id
        # Whatever names they write, pieces that do the same may follow at the same places: there are few kinds.
        kinds = list(dict.fromkeys([BracketPiece(), *meanings.values()]))
        self.kinds = torch.tensor(kinds).T  # (3, K)
        self.kind_of = torch.zeros(vocabulary_size, dtype=torch.int64)
        self.kind_of[list(meanings)] = torch.tensor([kinds.index(meaning) for meaning in meanings.values()])
        self.words = torch.tensor([len(words) for words in sentences])
        # After the last word there is one of no pieces.
        longest = max(len(word) for words in sentences for word in words)
        shape = (len(sentences), int(self.words.max()) + 1, max(1, longest))
        self.spelling, self.spelling_lengths = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape[:2]).long()
        for row, words in enumerate(sentences):
            for place, word in enumerate(words):
                self.spelling[row, place, : len(word)] = torch.tensor(word)
                self.spelling_lengths[row, place] = len(word)

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """Sets the logits of what cannot follow to minus infinity; a hypothesis that has ended is left as it is."""
        device = logits.device
        closes, opens, says = self.kinds.to(device)  # (K,) each
        kind_of = self.kind_of.to(device)
        closed, opened, said = (each[kind_of[pieces]] for each in (closes, opens, says))  # (B, W, t)
        words = self.words.to(device)[rows][:, None, None]
        depth = (opened - closed).sum(-1)[..., None]  # (B, W, 1)
        left = words - said.sum(-1)[..., None]  # (B, W, 1)
        begun = ((opened + said) > 0).any(-1)[..., None]
        at_once = _opened_at_once(opened, said)[..., None]
        closes_rightly = (closes == 0) | ((at_once == 0) & (depth >= closes))
        # What closes the root must have had all words; no constituent stands beside it.
        kept = depth - closes
        inside = (kept > 0) | ~begun
        opens_rightly = (opens == 0) | ((left > 0) & inside & (torch.where(closes > 0, 0, at_once) + opens <= _MOST))
        alone = (words == 1) & ~begun
        says_rightly = (says == 0) | ((left > 0) & ((kept + opens > 0) | alone))
        last = (opens == 0) & (says == 0)
        ends_rightly = ~last | (kept > 0) | (left == 0)
        follows = closes_rightly & opens_rightly & says_rightly & ends_rightly & (closes + opens + says > 0)
        allowed = follows.index_select(-1, kind_of)  # (B, W, V)
        self._spell(allowed, said, rows)
        allowed[..., self.eos_id] = (begun & (depth == 0) & (left == 0))[..., 0]
        ended = (pieces == self.eos_id).any(-1)
        return logits.masked_fill_(~(allowed | ended[..., None]), _NEVER)

    def _spell(self, allowed: Tensor, said: Tensor, rows: Tensor) -> None:
        """Where a word's own pieces are not all there, the next one is all that is allowed (B, W, V)."""
        device = allowed.device
        # Of the word, (B, W); hypotheses that cannot be, which fill up a beam, may go on behind the last one.
        place = said.sum(-1).clamp(max=self.spelling.shape[1] - 1)
        written = (said.flip(-1).cumsum(-1) == 0).sum(-1)  # pieces after the word before, (B, W)
        of = (rows[:, None], place)
        lacks = (written < self.spelling_lengths.to(device)[of])[..., None]
        following = self.spelling.to(device)[(*of, written.clamp(max=self.spelling.shape[-1] - 1))][..., None]
        allowed.logical_and_(~lacks).scatter_(-1, following, allowed.gather(-1, following) | lacks)


def _opened_at_once(opened: Tensor, said: Tensor) -> Tensor:
    """How many constituents the newest pieces open, without a word after them, (B, W)."""
    is_newest = ((opened > 0) & (said == 0)).flip(-1).long().cumprod(-1).flip(-1)
    return (opened * is_newest).sum(-1)
