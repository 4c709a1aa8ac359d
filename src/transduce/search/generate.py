"""Beam search as Hugging Face's `generate` does it, for models whose authors tuned their settings with it.

It differs from the paper's search in four ways. Probabilities are over all tokens, including those that search never
outputs. A forced token has probability 1. A hypothesis of n tokens, including its end symbol, is ranked by its
log-probability over n^alpha. A sentence is finished once as many hypotheses have ended as the beam is wide and no live
one is better at its current length. Hypotheses cut at the maximum length compete with those that ended.
Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t tokens so far.
"""

from collections.abc import Sequence

from torch import Tensor
from typing_extensions import override

from transduce.search.beam import Beam, BeamSearch, History
from transduce.search.coverage import Coverage
from transduce.search.greedy import make_hypothesis
from transduce.search.rules import GenerateSettings, Rule
from transduce.search.scorer import Bounds, Hypothesis, Scorer, length_power
from transduce.search.selection import IMPOSSIBLE, Candidates, Selection


class LogProbabilities(Scorer):
    """A scorer that converts another scorer's logits to log-probabilities."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def step(self, tokens: Tensor) -> Tensor:
        """Return the log-probabilities of the next token, (B, W, V)."""
        return self.scorer.step(tokens).float().log_softmax(dim=-1)

    @override
    def reorder(self, parents: Tensor) -> None:
        self.scorer.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        self.scorer.keep_sentences(rows)


class GenerateSearch(BeamSearch):
    """A beam search with the ranking and stopping rules of Hugging Face's `generate`."""

    def __init__(
        self,
        scorer: Scorer,
        bounds: Bounds,
        beam: Beam,
        settings: GenerateSettings,
        *,
        rules: Sequence[Rule] = (),
        selection: Selection | None = None,
        coverage: Coverage | None = None,
    ) -> None:
        """Create a search with a scorer that returns log-probabilities; other arguments are as in `BeamSearch`."""
        super().__init__(scorer, bounds, beam, rules=rules, selection=selection, coverage=coverage)
        self.stop = settings.stop
        self._ended_now = [[0] * beam.groups for _ in self.rows]

    def _best(self, sentence: int, count: int) -> list[Hypothesis]:
        """Return the best hypotheses of all groups, whether they ended or reached the maximum length."""
        return sorted(super()._best(sentence, count), key=lambda hypothesis: -hypothesis.score)

    def _finish(self, row: int, beam: int, group: int, history: History, *, ended: bool) -> None:
        """Add a hypothesis to the finished ones of its group, which keeps only the best."""
        penalty = 0.0 if self.coverage is None else self.coverage.penalty(row, beam)
        finished = self.finished[self.sentences[row]][group]
        finished.append(
            make_hypothesis(*history, ended=ended, alpha=self.beam.alpha, penalty=penalty, divisor=length_power)
        )
        finished.sort(key=lambda hypothesis: -hypothesis.score)
        del finished[self.beam.group_size :]

    def _finish_candidates(self, ended: Candidates) -> None:
        """Add candidates that end to the finished hypotheses of their groups."""
        super()._finish_candidates(ended)
        ended_now = (ended.totals > IMPOSSIBLE).unflatten(1, (self.beam.groups, -1))  # (B, G, n / G)
        self._ended_now = ended_now.sum(dim=-1).tolist()

    def _keep_sentences(self, staying: list[int]) -> None:
        if len(staying) < len(self.rows):
            self._ended_now = [self._ended_now[row] for row in staying]
        super()._keep_sentences(staying)

    def _finish_live(self, row: int) -> None:
        """Add the live hypotheses of a sentence at its maximum length to its finished hypotheses.

        They compete with those that ended in the same step: only the W best of both count.
        """
        size = self.beam.group_size
        for beam in range(self.scores.shape[1]):
            group, rank = divmod(beam, size)
            if rank < size - self._ended_now[row][group] and float(self.scores[row, beam]) > IMPOSSIBLE:
                history = (self.tokens[row, beam].tolist(), self.log_probabilities[row, beam].tolist())
                self._finish(row, beam, group, history, ended=False)

    def _undecided(self) -> list[int]:
        """Return the rows in which a live hypothesis may still improve on the finished ones."""
        best_live = self.scores.unflatten(1, (self.beam.groups, -1)).amax(dim=-1).tolist()  # (B, G)
        undecided = []
        for row, sentence in enumerate(self.sentences):
            length = self.max_lengths[row] if self.stop == "never" and self.beam.alpha > 0.0 else self.length
            bounds = (best / length**self.beam.alpha for best in best_live[row])
            groups = zip(self.finished[sentence], bounds, strict=True)
            if any(self._may_improve(finished, bound) for finished, bound in groups):
                undecided.append(row)
        return undecided

    def _may_improve(self, finished: list[Hypothesis], bound: float) -> bool:
        """Return whether to wait for a live hypothesis whose score is at most `bound`."""
        if len(finished) < self.beam.group_size:
            return bound > IMPOSSIBLE
        return self.stop != "full" and bound > finished[-1].score
