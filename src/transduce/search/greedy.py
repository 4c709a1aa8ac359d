"""Search without comparison: every hypothesis takes its next piece and never looks back.

Greedy search takes the best piece. Beam search with one hypothesis and no length penalty finds the same, more slowly;
with a length penalty it goes on while a longer hypothesis could still score better. Sampling draws the piece
(`sampling.py`).
Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t pieces so far.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from transduce.search.penalty import length_penalty
from transduce.search.rules import Rule
from transduce.search.scorer import Hypothesis, Scorer

# Logits (B, W, V), float32, and the sentences' places in the input (B,), to the next pieces (B, W).
Choose = Callable[[Tensor, Tensor], Tensor]


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
    walk = Walk(longest=longest, width=1, start_id=start_id, eos_id=eos_id, alpha=alpha)
    return walk.run(scorer, lambda logits, rows: logits.argmax(dim=-1), rules)  # noqa: ARG005


class Walk:
    """Hypotheses that grow side by side until each has ended or is as long as it may be."""

    def __init__(self, *, longest: Tensor, width: int, start_id: int, eos_id: int, alpha: float) -> None:
        sentences, device = len(longest), longest.device
        self.width = width
        self.eos_id = eos_id
        self.alpha = alpha
        self.longest = longest  # (B,)
        self.rows = torch.arange(sentences, device=device)  # (B,), the sentence's place in the input
        self.newest = torch.full((sentences, 1), start_id, dtype=torch.int64, device=device)
        self.pieces = torch.empty(sentences, width, 0, dtype=torch.int64, device=device)  # (B, W, t)
        self.log_probabilities = torch.empty(sentences, width, 0, device=device)  # (B, W, t)
        self.found: list[list[Hypothesis]] = [[] for _ in range(sentences)]

    def run(self, scorer: Scorer, choose: Choose, rules: Sequence[Rule]) -> list[list[Hypothesis]]:
        """All hypotheses of each sentence."""
        while len(self.rows):
            logits = scorer.step(self.newest).float()  # (B, 1, V) at the first step, then (B, W, V)
            if logits.shape[1] != self.width:
                logits = logits.repeat(1, self.width, 1)
                scorer.reorder(self.newest.new_zeros(len(self.rows), self.width))
            for rule in rules:
                logits = rule.apply(logits, self.pieces, self.rows)
            self._extend(logits, choose(logits, self.rows))
            self._drop_finished_sentences(scorer)
        return self.found

    def _extend(self, logits: Tensor, newest: Tensor) -> None:
        chosen = logits.gather(-1, newest[..., None])[..., 0] - logits.logsumexp(dim=-1)
        self.newest = newest
        self.pieces = torch.cat([self.pieces, newest[..., None]], dim=-1)
        self.log_probabilities = torch.cat([self.log_probabilities, chosen[..., None]], dim=-1)

    def _drop_finished_sentences(self, scorer: Scorer) -> None:
        """Sentences whose hypotheses have all ended leave the batch; one that ended waits for its fellows."""
        ended = (self.pieces == self.eos_id).any(dim=-1).all(dim=-1)
        leaving = ended | (self.longest <= self.pieces.shape[-1])
        if not bool(leaving.any()):
            return
        for row in leaving.nonzero().flatten().tolist():
            hypotheses = zip(self.pieces[row], self.log_probabilities[row], strict=True)
            self.found[int(self.rows[row])] = [self._hypothesis(*hypothesis) for hypothesis in hypotheses]
        staying = (~leaving).nonzero().flatten()
        scorer.keep_sentences(staying)
        self.rows, self.longest, self.newest = self.rows[staying], self.longest[staying], self.newest[staying]
        self.pieces, self.log_probabilities = self.pieces[staying], self.log_probabilities[staying]

    def _hypothesis(self, pieces: Tensor, log_probabilities: Tensor) -> Hypothesis:
        """What stands before the first end symbol, and with it."""
        ends = (pieces == self.eos_id).nonzero().flatten()
        length = int(ends[0]) + 1 if len(ends) else len(pieces)
        return make_hypothesis(pieces[:length], log_probabilities[:length], bool(len(ends)), self.alpha)


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
