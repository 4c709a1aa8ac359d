"""Greedy search: the best piece at each step, until it is the end symbol.

Beam search with one hypothesis and no length penalty finds the same, more slowly; with a length penalty it goes on
while a longer hypothesis could still score better.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.search.penalty import length_penalty
from transduce.search.rules import Rule
from transduce.search.scorer import Hypothesis, Scorer


def greedy_search(
    scorer: Scorer,
    *,
    start_id: int,
    eos_id: int,
    longest: Tensor,
    alpha: float = 0.0,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """One hypothesis for each sentence.

    Args:
        scorer: the model, at the start of a batch of N sentences.
        start_id: what the decoder is given first.
        eos_id: the end symbol.
        longest: the greatest number of pieces of each sentence, end symbol included, int64 (N,).
        alpha: of the length penalty, for the reported score alone.
        rules: applied to the logits in turn.

    Returns:
        N lists of one hypothesis.
    """
    found: list[list[Hypothesis]] = [[] for _ in range(len(longest))]
    rows = torch.arange(len(longest), device=longest.device)
    pieces = torch.empty(len(longest), 1, 0, dtype=torch.int64, device=longest.device)
    log_probabilities = torch.empty(len(longest), 1, 0, device=longest.device)
    newest = torch.full((len(longest), 1), start_id, dtype=torch.int64, device=longest.device)
    while len(rows):
        logits = scorer.step(newest).float()
        for rule in rules:
            logits = rule.apply(logits, pieces)
        best, newest = logits.max(dim=-1)  # (B, 1)
        chosen = best - logits.logsumexp(dim=-1)
        pieces = torch.cat([pieces, newest[..., None]], dim=-1)
        log_probabilities = torch.cat([log_probabilities, chosen[..., None]], dim=-1)
        ended = newest[:, 0] == eos_id
        leaving = ended | (longest[rows] <= pieces.shape[-1])
        for row in leaving.nonzero().flatten().tolist():
            found[int(rows[row])] = [
                make_hypothesis(pieces[row, 0], log_probabilities[row, 0], bool(ended[row]), alpha)
            ]
        if bool(leaving.any()):
            staying = (~leaving).nonzero().flatten()
            scorer.keep_sentences(staying)
            rows, pieces, newest = rows[staying], pieces[staying], newest[staying]
            log_probabilities = log_probabilities[staying]
    return found


def make_hypothesis(pieces: Tensor, log_probabilities: Tensor, ended: bool, alpha: float) -> Hypothesis:
    """A hypothesis from its pieces (t,), the end symbol last where it ended, and their log-probabilities (t,)."""
    ids = pieces.tolist()
    values = log_probabilities.tolist()
    return Hypothesis(
        ids=tuple(ids[:-1] if ended else ids),
        piece_log_probabilities=tuple(values),
        score=sum(values) / length_penalty(len(ids), alpha),
        ended=ended,
    )
