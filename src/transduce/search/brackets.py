"""A rule that makes every hypothesis a tree over its sentence's words: brackets balance, and each word occurs once.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, K kinds of tokens, t tokens so far.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_NEVER = float("-inf")
# Limit on nested constituents that begin at one word; no treebank has more.
_MAX_OPENED = 12


class BracketPiece(NamedTuple):
    """A token of a linearized tree by its effects, in this order: closes constituents, opens some, writes a word."""

    closed: int = 0
    opened: int = 0
    words: int = 0


class BalancedBrackets:
    """A rule that forbids each token after which no tree over exactly the sentence's words could follow.

    A word's own tokens come before the constituents that follow it. A sentence of one word may be that word alone. At
    the greatest length hypotheses can still be cut off.
    """

    def __init__(
        self,
        meanings: Mapping[int, BracketPiece],
        sentences: Sequence[Sequence[Sequence[int]]],
        *,
        vocabulary_size: int,
        eos_id: int,
    ) -> None:
        """Prepare the rule for a batch of sentences.

        Args:
            meanings: the effects of the tokens of linearized trees, by id.
            sentences: the tokens of each word of each sentence.
            vocabulary_size: V.
            eos_id: the id of the end symbol.
        """
        self.eos_id = eos_id
        # Tokens with the same effect are allowed at the same positions, whatever label they write; there are few kinds.
        kinds = list(dict.fromkeys([BracketPiece(), *meanings.values()]))
        self.kinds = torch.tensor(kinds).T  # (3, K)
        self.kind_of = torch.zeros(vocabulary_size, dtype=torch.int64)
        self.kind_of[list(meanings)] = torch.tensor([kinds.index(meaning) for meaning in meanings.values()])
        self.words = torch.tensor([len(words) for words in sentences])
        # An empty word follows the last one.
        longest = max(len(word) for words in sentences for word in words)
        shape = (len(sentences), int(self.words.max()) + 1, max(1, longest))
        self.spelling, self.spelling_lengths = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape[:2]).long()
        for row, words in enumerate(sentences):
            for word_index, word in enumerate(words):
                self.spelling[row, word_index, : len(word)] = torch.tensor(word)
                self.spelling_lengths[row, word_index] = len(word)

    def apply(self, logits: Tensor, pieces: Tensor, rows: Tensor) -> Tensor:
        """Set the logits of tokens that cannot follow to minus infinity; hypotheses that have ended stay unchanged."""
        device = logits.device
        closes, opens, writes = self.kinds.to(device)  # (K,) each
        kind_of = self.kind_of.to(device)
        closed, opened, written = (each[kind_of[pieces]] for each in (closes, opens, writes))  # (B, W, t)
        words = self.words.to(device)[rows][:, None, None]
        depth = (opened - closed).sum(-1)[..., None]  # (B, W, 1)
        words_left = words - written.sum(-1)[..., None]  # (B, W, 1)
        started = ((opened + written) > 0).any(-1)[..., None]
        just_opened = _opened_at_once(opened, written)[..., None]
        closes_rightly = (closes == 0) | ((just_opened == 0) & (depth >= closes))
        # The root may close only after the last word, and nothing follows it.
        depth_left = depth - closes
        inside = (depth_left > 0) | ~started
        opens_rightly = (opens == 0) | (
            (words_left > 0) & inside & (torch.where(closes > 0, 0, just_opened) + opens <= _MAX_OPENED)
        )
        alone = (words == 1) & ~started
        writes_rightly = (writes == 0) | ((words_left > 0) & ((depth_left + opens > 0) | alone))
        last = (opens == 0) & (writes == 0)
        ends_rightly = ~last | (depth_left > 0) | (words_left == 0)
        follows = closes_rightly & opens_rightly & writes_rightly & ends_rightly & (closes + opens + writes > 0)
        allowed = follows.index_select(-1, kind_of)  # (B, W, V)
        self._spell(allowed, written, rows)
        allowed[..., self.eos_id] = (started & (depth == 0) & (words_left == 0))[..., 0]
        ended = (pieces == self.eos_id).any(-1)
        return logits.masked_fill_(~(allowed | ended[..., None]), _NEVER)

    def _spell(self, allowed: Tensor, words_written: Tensor, rows: Tensor) -> None:
        """Allow only the next token of a word that is not complete yet, in `allowed` (B, W, V)."""
        device = allowed.device
        # Index of the current word, (B, W); impossible hypotheses that fill up a beam may exceed the last word.
        word_index = words_written.sum(-1).clamp(max=self.spelling.shape[1] - 1)
        written = (words_written.flip(-1).cumsum(-1) == 0).sum(-1)  # tokens after the previous word, (B, W)
        of = (rows[:, None], word_index)
        lacks = (written < self.spelling_lengths.to(device)[of])[..., None]
        following = self.spelling.to(device)[(*of, written.clamp(max=self.spelling.shape[-1] - 1))][..., None]
        allowed.logical_and_(~lacks).scatter_(-1, following, allowed.gather(-1, following) | lacks)


def _opened_at_once(opened: Tensor, written: Tensor) -> Tensor:
    """Return how many constituents the newest tokens open without a word after them, (B, W)."""
    is_newest = ((opened > 0) & (written == 0)).flip(-1).long().cumprod(-1).flip(-1)
    return (opened * is_newest).sum(-1)
