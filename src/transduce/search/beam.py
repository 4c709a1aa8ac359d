"""Beam search: the W best continuations at each step, until no continuation can beat what is finished.

A live hypothesis is still growing; a finished one ended with the end symbol, or was cut at its greatest length.
Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t pieces so far.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from transduce.search.greedy import make_hypothesis
from transduce.search.penalty import length_penalty
from transduce.search.rules import Rule
from transduce.search.scorer import Hypothesis, Scorer


class BeamState:
    """The live hypotheses of a batch, and the best finished ones of every sentence."""

    def __init__(self, *, longest: Tensor, beam_size: int, n_best: int, alpha: float) -> None:
        sentences, device = len(longest), longest.device
        self.beam_size = beam_size
        self.n_best = n_best
        self.alpha = alpha
        self.longest = longest  # (B,)
        self.rows = torch.arange(sentences, device=device)  # (B,), the sentence's place in the input
        self.pieces = torch.empty(sentences, 1, 0, dtype=torch.int64, device=device)  # (B, W, t)
        self.log_probabilities = torch.empty(sentences, 1, 0, device=device)  # (B, W, t)
        self.scores = torch.zeros(sentences, 1, device=device)  # (B, W), sums of log-probabilities
        self.finished: list[list[Hypothesis]] = [[] for _ in range(sentences)]

    def finish(self, row: int, pieces: Tensor, log_probabilities: Tensor, *, ended: bool) -> None:
        """Enters a hypothesis among the finished ones of its sentence, of which the W best stay."""
        finished = self.finished[int(self.rows[row])]
        finished.append(make_hypothesis(pieces, log_probabilities, ended, self.alpha))
        finished.sort(key=lambda hypothesis: -hypothesis.score)
        del finished[self.beam_size :]

    def is_done(self, row: int) -> bool:
        """Whether no live hypothesis can still enter the n best.

        Log-probabilities only fall, so a live hypothesis ends with at most its present sum, divided by the greatest
        penalty it could reach.
        """
        finished = self.finished[int(self.rows[row])]
        if len(finished) < self.n_best:
            return False
        greatest = length_penalty(int(self.longest[row]), self.alpha)
        return finished[self.n_best - 1].score >= float(self.scores[row].max()) / greatest

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self.longest, self.rows, self.scores = self.longest[rows], self.rows[rows], self.scores[rows]
        self.pieces, self.log_probabilities = self.pieces[rows], self.log_probabilities[rows]


def beam_search(
    scorer: Scorer,
    *,
    start_id: int,
    eos_id: int,
    longest: Tensor,
    beam_size: int,
    n_best: int = 1,
    alpha: float = 0.6,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """The n best hypotheses for each sentence, best first.

    Args:
        scorer: the model, at the start of a batch of N sentences.
        start_id: what the decoder is given first.
        eos_id: the end symbol.
        longest: the greatest number of pieces of each sentence, end symbol included, int64 (N,).
        beam_size: W, hypotheses kept at each step.
        n_best: hypotheses returned for each sentence, at most W.
        alpha: of the length penalty.
        rules: applied to the logits in turn.

    Returns:
        N lists of at most `n_best` hypotheses.
    """
    state = BeamState(longest=longest, beam_size=beam_size, n_best=n_best, alpha=alpha)
    newest = torch.full((len(longest), 1), start_id, dtype=torch.int64, device=longest.device)
    while len(state.rows):
        logits = scorer.step(newest).float()
        for rule in rules:
            logits = rule.apply(logits, state.pieces, state.rows)
        parents = advance(state, logits, eos_id)
        scorer.reorder(parents)
        drop_finished_sentences(state, scorer)
        newest = state.pieces[..., -1]
    return [finished[:n_best] for finished in state.finished]


def advance(state: BeamState, logits: Tensor, eos_id: int) -> Tensor:
    """One step: extends every live hypothesis by every piece, finishes those that end, keeps the W best others.

    Args:
        state: changed in place.
        logits: (B, W, V), float32.
        eos_id: the end symbol.

    Returns:
        The live hypothesis that each new one continues, (B, W).
    """
    beam_size = state.beam_size
    # Of 2 W candidates at most W end, so W others remain; more than 2 W from one hypothesis are never needed.
    width = min(2 * beam_size, logits.shape[-1])
    best, best_pieces = logits.topk(width, dim=-1)  # (B, W, 2W)
    piece_scores = best - logits.logsumexp(dim=-1, keepdim=True)
    totals = (state.scores[..., None] + piece_scores).flatten(1)  # (B, W × 2W)
    totals, candidates = totals.topk(min(2 * beam_size, totals.shape[1]), dim=-1)  # (B, 2W), best first
    parents = candidates // width
    pieces = best_pieces.flatten(1).gather(1, candidates)
    piece_scores = piece_scores.flatten(1).gather(1, candidates)
    ends = pieces == eos_id
    _finish_candidates(state, parents, pieces, piece_scores, ends & (totals > float("-inf")))
    # A stable sort puts the candidates that do not end first, best first.
    live = ends.to(torch.int8).sort(dim=1, stable=True).indices[:, :beam_size]
    totals = totals.masked_fill(ends, float("-inf"))
    parents = parents.gather(1, live)
    state.scores = totals.gather(1, live)
    state.pieces = _extend(state.pieces, parents, pieces.gather(1, live))
    state.log_probabilities = _extend(state.log_probabilities, parents, piece_scores.gather(1, live))
    return parents


def _extend(history: Tensor, parents: Tensor, newest: Tensor) -> Tensor:
    """Each new hypothesis' past (B, W, t) and its newest entry (B, W), as (B, W, t + 1)."""
    past = history.gather(1, parents[..., None].expand(-1, -1, history.shape[-1]))
    return torch.cat([past, newest[..., None]], dim=-1)


def _finish_candidates(state: BeamState, parents: Tensor, pieces: Tensor, piece_scores: Tensor, ends: Tensor) -> None:
    """Enters the candidates that end among the finished ones; only those that W others do not precede."""
    ends = ends & (torch.arange(ends.shape[1], device=ends.device) < state.beam_size)
    for row, candidate in ends.nonzero().tolist():
        parent = parents[row, candidate]
        state.finish(
            row,
            torch.cat([state.pieces[row, parent], pieces[row, candidate, None]]),
            torch.cat([state.log_probabilities[row, parent], piece_scores[row, candidate, None]]),
            ended=True,
        )


def drop_finished_sentences(state: BeamState, scorer: Scorer) -> None:
    """Sentences whose n best are certain, or that reached their greatest length, leave the batch."""
    full = (state.longest <= state.pieces.shape[-1]).tolist()
    staying = []
    for row, is_full in enumerate(full):
        if is_full:
            _finish_live(state, row)
        elif not state.is_done(row):
            staying.append(row)
    if len(staying) < len(full):
        rows = torch.tensor(staying, dtype=torch.int64, device=state.rows.device)
        state.keep_sentences(rows)
        scorer.keep_sentences(rows)


def _finish_live(state: BeamState, row: int) -> None:
    """At the greatest length the live hypotheses count as they are."""
    for beam in range(state.scores.shape[1]):
        if float(state.scores[row, beam]) > float("-inf"):
            state.finish(row, state.pieces[row, beam], state.log_probabilities[row, beam], ended=False)
