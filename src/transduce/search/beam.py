"""Search with a beam, which keeps the W best continuations at each step, until none can beat finished hypotheses.

A live hypothesis is still growing; a finished one has ended with the end symbol or was cut at its maximum length.
Hypotheses that ended rank before all that were cut, whatever their scores.
Legend: B sentences still in the batch, W hypotheses of each in G groups, V vocabulary, t tokens so far.
"""

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import torch
from torch import Tensor
from typing_extensions import override

from transduce.search.greedy import make_hypothesis
from transduce.search.rules import GenerateSettings, Rule, apply_rules
from transduce.search.scorer import (
    GENERATE_RANKING,
    PAPER_RANKING,
    AttentiveScorer,
    Hypothesis,
    Ranking,
    Scorer,
    SequenceLimits,
    WrappedScorer,
    run_search,
)
from transduce.search.selection import (
    IMPOSSIBLE,
    BestSelection,
    Candidates,
    Reductions,
    Selection,
    SelectionStep,
    log_sum_exp,
    use_kernels,
)

# --- coverage penalty for source tokens that received little attention (Wu et al. 2016, equation 14) ---
# cp = β Σ over source tokens i of log(min(Σ over target tokens j of p(i, j), 1)), where p(i, j) is the attention from
# target token j to source token i, here the mean over the heads of all layers.
# Legend: S source length.


_MIN_ATTENTION = 1e-6  # minimum attention, so that no hypothesis gets an infinite penalty


class AttentionCoverage:
    """The sums of the attention that each hypothesis has paid to each source token, for the coverage penalty."""

    def __init__(
        self, scorer: AttentiveScorer, beta: float, contexts: Sequence[tuple[int, int]] = (), device: Any = None
    ) -> None:
        """Start the sums of a batch's hypotheses with no attention.

        Args:
            scorer: the model, which reports its attention.
            beta: the factor of the penalty.
            contexts: for each sentence, the number of source tokens and the number of target tokens of document context
                before it. Source tokens of context count as covered. Attention is summed only after the target tokens
                of context. Empty: no context.
            device: the device of the attention weights.
        """
        self.scorer = scorer
        self.beta = beta
        self.sums: Tensor | None = None  # (B, W, S)
        self._contexts = torch.tensor(contexts, device=device)[:, None, None] if any(map(any, contexts)) else None
        self._step = 0
        self._penalties: list[list[float]] | None = None  # computed from `sums` on demand

    def add_step(self) -> None:
        """Add the attention weights of the newest decoding step, from the scorer, to the sums of each hypothesis."""
        newest = self.scorer.attention()
        if self._contexts is not None:
            source, target = self._contexts.unbind(-1)  # (B, 1, 1) each
            newest = newest.masked_fill(torch.arange(newest.shape[-1], device=newest.device) < source, 1.0)
            newest = newest * (target <= self._step)
            self._step += 1
        self.sums = newest if self.sums is None else self.sums + newest
        self._penalties = None

    def reorder(self, parents: Tensor) -> None:
        """Copy each hypothesis's sums from its parent: hypothesis w of sentence b continues parents[b, w], (B, W)."""
        if self.sums is not None:
            self.sums = self.sums.gather(1, parents[..., None].expand(-1, -1, self.sums.shape[-1]))
            self._penalties = None

    def keep_sentences(self, rows: Tensor) -> None:
        """Keep only the attention sums of the sentences at these batch indices; the others have left the batch."""
        if self._contexts is not None:
            self._contexts = self._contexts.index_select(0, rows)
        if self.sums is not None:
            self.sums = self.sums.index_select(0, rows)
            self._penalties = None

    def penalty(self, row: int, hypothesis: int) -> float:
        """Return the coverage penalty in nats, at most 0, of one hypothesis of the sentence at batch index `row`.

        `hypothesis` is its index in the beam. Before the first step the penalty is 0.
        """
        if self.sums is None:
            return 0.0
        if self._penalties is None:  # one transfer for all, since each one stalls a GPU
            self._penalties = (self.beta * torch.log(self.sums.clamp(_MIN_ATTENTION, 1.0)).sum(dim=-1)).tolist()
        return self._penalties[row][hypothesis]


_ROUNDING = 1e-3  # nats

ScoredTokens = tuple[list[int], list[float]]
"""The history of a hypothesis, a pair: the list of its token ids, and the list of their log-probabilities in nats."""


def beam_search(
    scorer: Scorer,
    *,
    start_id: int,
    eos_id: int,
    max_lengths: Tensor,
    beam_size: int,
    n_best: int = 1,
    alpha: float = 0.6,
) -> list[list[Hypothesis]]:
    """Return the `n_best` best hypotheses of each sentence, best first, found by the paper's beam search.

    Args:
        scorer: the model, at the start of a batch of N sentences.
        start_id: the first input of the decoder.
        eos_id: the end symbol.
        max_lengths: the maximum length of each hypothesis in tokens, including the end symbol, int64 (N,).
        beam_size: W, the number of hypotheses kept at each step.
        n_best: hypotheses returned for each sentence, at most W.
        alpha: exponent of the length penalty.

    Returns:
        N lists of at most `n_best` hypotheses.
    """
    beam = BeamOptions(beam_size=beam_size, n_best=n_best, alpha=alpha)
    return run_search(BeamSearch(scorer, SequenceLimits(start_id, eos_id, max_lengths), beam))


class BeamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a beam: hypotheses kept, groups that search separately, results returned, and length penalty."""

    beam_size: int
    """W, the number of hypotheses of each sentence that are kept at each step, over all groups."""
    n_best: int = 1
    """The number of hypotheses of each sentence that are returned."""
    alpha: float = 0.6
    """The exponent of the length penalty; 0: no penalty."""
    groups: int = 1
    """G, the number of groups of equal size into which the beam is divided, a divisor of `beam_size`."""

    @property
    def group_size(self) -> int:
        """The number of hypotheses in each group of the beam."""
        return self.beam_size // self.groups


class BeamSearch:
    """A beam search in progress: the live hypotheses of a batch, and the best finished ones of each sentence."""

    ranking: Ranking = PAPER_RANKING
    """The order of finished hypotheses, and the length penalty that divides their scores."""

    def __init__(
        self,
        scorer: Scorer,
        limits: SequenceLimits,
        beam: BeamOptions,
        *,
        rules: Sequence[Rule] = (),
        selection: Selection | None = None,
        coverage: AttentionCoverage | None = None,
        reductions: Reductions | None = None,
    ) -> None:
        """Create a search with one hypothesis per sentence, which contains only the start symbol.

        Args:
            scorer: the model, at the start of a batch of N sentences.
            limits: start and end symbol, and the maximum lengths.
            beam: the options of the beam.
            rules: rules applied to the logits in turn.
            selection: chooses the continuations to keep at each step; None for the best ones.
            coverage: a penalty on hypotheses that leave source tokens untranslated; None: no penalty.
            reductions: compiled top-k, log-sum-exp and selection; None: PyTorch's.
        """
        sentences, device = len(limits.max_lengths), limits.max_lengths.device
        self.scorer = scorer
        self.beam = beam
        self.rules = rules
        self.reductions = reductions
        self.selection = selection or BestSelection(beam_size=beam.beam_size, eos_id=limits.eos_id)
        self.coverage = coverage
        self.eos_id = limits.eos_id
        # Python lists, one entry per sentence, since reading tensors back stalls a GPU.
        self.max_lengths: list[int] = limits.max_lengths.tolist()
        self.starts = limits.starts()
        # Indices in the input of the sentences that are still decoded: as a list, and as a tensor (B,) on the device.
        self.sentences = list(range(sentences))
        self.newest = torch.full((sentences, 1), limits.start_id, dtype=torch.int64, device=device)  # (B, W)
        self.sentence_indices = torch.arange(sentences, device=device)
        self.tokens = torch.empty(sentences, 1, 0, dtype=torch.int64, device=device)  # (B, W, t)
        self.log_probabilities = torch.empty(sentences, 1, 0, device=device)  # (B, W, t)
        self.scores = torch.zeros(sentences, 1, device=device)  # (B, W), sums of log-probabilities
        # The length penalty at each sentence's maximum length (B, 1), and the score of each group's n-th best finished
        # hypothesis, or minus infinity if it has fewer, (B, G).
        divisors = [[self._divisor(row, max_length)] for row, max_length in enumerate(self.max_lengths)]
        self.max_penalty = torch.tensor(divisors, device=device)
        self.thresholds = torch.full((sentences, beam.groups), IMPOSSIBLE, device=device)
        # The best finished hypotheses of each sentence's groups, at most `group_size` of each.
        self.finished: list[list[list[Hypothesis]]] = [[[] for _ in range(beam.groups)] for _ in range(sentences)]

    def advance(self, steps: int = 1) -> None:  # noqa: ARG002
        """Run one decoding step of all sentences in the batch; `steps` is ignored.

        Every live hypothesis is extended by every token. Continuations that end become finished hypotheses, and the W
        best others stay live.
        """
        with nullcontext() if self.reductions is None else use_kernels(self.reductions):
            self._extend_all()

    def _extend_all(self) -> None:
        logits = self.scorer.step(self.newest).float()
        normalizer = log_sum_exp(logits) if self.rules else None
        logits = apply_rules(self.rules, logits, self.tokens, self.sentence_indices)
        live, ended = self.selection.select(
            SelectionStep(logits, self.scores, self.tokens, self.sentence_indices, normalizer)
        )
        if self.coverage is not None:
            self.coverage.add_step()
        self._finish_candidates(ended)
        self._continue_with(live)
        self._drop_finished_sentences()

    def hypotheses(self) -> Tensor:
        """Return the tokens of the W live hypotheses, best first, and then of the best finished one, (B, W + 1, t).

        For a sentence without a finished hypothesis, the best live one comes last again. A shorter finished one is
        padded with end symbols.
        """
        order = self.scores.argsort(dim=1, descending=True, stable=True)[..., None].expand(-1, -1, self.length)
        live = self.tokens.gather(1, order)
        last = live[:, 0].clone()
        for row, sentence in enumerate(self.sentences):
            if best := self._best(sentence, 1):
                ids = [*best[0].ids[: self.length], *[self.eos_id] * (self.length - len(best[0].ids))]
                last[row] = torch.tensor(ids, device=last.device)
        return torch.cat([live, last[:, None]], dim=1)

    @property
    def length(self) -> int:
        """The number t of tokens of every live hypothesis."""
        return self.tokens.shape[-1]

    def _divisor(self, row: int, length: int) -> float:
        """Return the length penalty for a hypothesis with `length` tokens, in the sentence at batch index `row`.

        The penalty divides log-probabilities. `length` includes document context, which the penalty leaves out.
        """
        return self.ranking.length_penalty(max(0, length - self.starts[row]), self.beam.alpha)

    def abandon(self, sentences: Collection[int]) -> None:
        """Stop decoding sentences, given by index in the input; their live hypotheses become results, as not ended."""
        staying = []
        for row, sentence in enumerate(self.sentences):
            if sentence in sentences:
                self._finish_live(row)
            else:
                staying.append(row)
        self._keep_sentences(staying)

    def results(self) -> list[list[Hypothesis]]:
        """Return a list of the n best hypotheses of each sentence, best first; empty for one that is still decoded."""
        decoding = set(self.sentences)
        return [
            [] if sentence in decoding else self._best(sentence, self.beam.n_best)
            for sentence in range(len(self.finished))
        ]

    def _best(self, sentence: int, count: int) -> list[Hypothesis]:
        """Return a list of the `count` best finished hypotheses of a sentence, without duplicates, best first.

        Hypotheses are taken from the sentence's beam groups in turn, first from the group with the best hypothesis.
        """
        # Groups with the same best hypothesis keep their order, since its score differs by rounding between them.
        bests = dict[tuple[tuple[int, ...], bool], Hypothesis]()
        groups = sorted(
            filter(None, self.finished[sentence]),
            key=lambda group: self.ranking.key(bests.setdefault((group[0].ids, group[0].ended), group[0])),
        )
        waiting = [iter(group) for group in groups]
        taken: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
        while waiting and len(taken) < count:
            for group in list(waiting):
                new = next((each for each in group if (each.ids, each.ended) not in taken), None)
                if new is None:
                    waiting.remove(group)
                elif len(taken) < count:
                    taken[new.ids, new.ended] = new
        return sorted(taken.values(), key=self.ranking.key)

    def _continue_with(self, live: Candidates) -> None:
        """Replace the live hypotheses by the selected candidates, in the search's tensors and the scorer's caches."""
        self.newest, self.scores = live.tokens, live.totals
        self.tokens = _extend(self.tokens, live.parents, live.tokens)
        self.log_probabilities = _extend(self.log_probabilities, live.parents, live.token_scores)
        self.scorer.reorder(live.parents)
        if self.coverage is not None:
            self.coverage.reorder(live.parents)

    def _finish_candidates(self, ended: Candidates) -> None:
        """Add the ended candidates that may be among the results to the finished hypotheses of their beam groups."""
        rows, numbers = self._may_be_returned(ended).nonzero().unbind(1)
        if not len(rows):
            return
        parents = ended.parents[rows, numbers]
        tokens = torch.cat([self.tokens[rows, parents], ended.tokens[rows, numbers, None]], dim=1)
        values = torch.cat([self.log_probabilities[rows, parents], ended.token_scores[rows, numbers, None]], dim=1)
        indices = torch.stack([rows, numbers, parents], dim=1)
        # One transfer for all values if they are on a GPU.
        candidates = zip(indices.tolist(), tokens.tolist(), values.tolist(), strict=True)
        for (row, number, parent), *history in candidates:
            group = number * self.beam.groups // ended.totals.shape[1]
            self._finish(row, parent, group, (history[0], history[1]), ended=True)
        thresholds = [[self._threshold(group) for group in self.finished[sentence]] for sentence in self.sentences]
        self.thresholds = torch.tensor(thresholds, device=self.sentence_indices.device)

    def _threshold(self, finished: list[Hypothesis]) -> float:
        """Return the score that a hypothesis must exceed to become a result of its beam group.

        The score is minus infinity while the group has fewer finished hypotheses than results. A single group has
        `n_best` results. With several groups, each group has `group_size` results.

        Args:
            finished: the group's finished hypotheses, best first.
        """
        needed = self.beam.n_best if self.beam.groups == 1 else self.beam.group_size
        return finished[needed - 1].score if len(finished) >= needed else IMPOSSIBLE

    def _may_be_returned(self, ended: Candidates) -> Tensor:
        """Return a mask (B, n) of the ended candidates that may be among their sentence's best results.

        The mask is False for candidates whose scores are clearly too low. With a coverage penalty or several groups, it
        is True for all candidates that exist.
        """
        exist = ended.totals > IMPOSSIBLE
        if self.coverage is not None or self.beam.groups > 1:
            return exist
        divisors = [self._divisor(row, self.length + 1) for row in range(len(self.starts))]
        if len(set(divisors)) == 1:
            scores = ended.totals / divisors[0]
        else:
            scores = ended.totals / torch.tensor(divisors, device=self.sentence_indices.device)[:, None]
        return exist & (scores > self.thresholds - _ROUNDING)  # rounding here differs from that of the score

    def _finish_live(self, row: int) -> None:
        """Add the live hypotheses of the sentence at batch index `row` to its finished ones, marked as not ended."""
        for hypothesis in range(self.scores.shape[1]):
            group, rank = divmod(hypothesis, self.beam.group_size)
            if rank < self._max_cut(row, group) and float(self.scores[row, hypothesis]) > IMPOSSIBLE:
                history = (self.tokens[row, hypothesis].tolist(), self.log_probabilities[row, hypothesis].tolist())
                self._finish(row, hypothesis, group, history, ended=False)

    def _max_cut(self, row: int, group: int) -> int:  # noqa: ARG002
        """Return how many live hypotheses of a beam group become results when their sentence is cut.

        A sentence is cut at its maximum length, or when it is abandoned. The best hypotheses of the group are taken.
        Here these are all; subclasses may allow fewer.
        """
        return self.beam.group_size

    def _finish(self, row: int, hypothesis: int, group: int, history: ScoredTokens, *, ended: bool) -> None:
        """Add a hypothesis to the finished hypotheses of its beam group.

        The group keeps only its `group_size` best finished hypotheses.
        """
        penalty = 0.0 if self.coverage is None else self.coverage.penalty(row, hypothesis)
        finished = self.finished[self.sentences[row]][group]
        finished.append(
            make_hypothesis(
                *history,
                ended=ended,
                alpha=self.beam.alpha,
                penalty=penalty,
                divisor=self.ranking.length_penalty,
                start=self.starts[row],
            )
        )
        finished.sort(key=self.ranking.key)
        del finished[self.beam.group_size :]

    def _undecided(self) -> list[list[bool]]:
        """Return whether a live hypothesis of each beam group can still become a result: B lists of G booleans.

        The best score that a live hypothesis can reach is its current log-probability divided by the largest length
        penalty. This holds because log-probabilities only fall, and coverage penalties are never positive.
        """
        best_live = self.scores.unflatten(1, (self.beam.groups, -1)).amax(dim=-1)  # (B, G)
        may_improve = (best_live > IMPOSSIBLE) & (best_live / self.max_penalty > self.thresholds)
        return may_improve.tolist()  # type: ignore[no-any-return]

    def _drop_finished_sentences(self) -> None:
        """Remove sentences from the batch whose n best results are certain, or that have reached their maximum length.

        In the other sentences, beam groups whose results are certain lose their live hypotheses.
        """
        by_group, full = self._undecided(), [limit <= self.length for limit in self.max_lengths]
        if self.beam.groups > 1:
            is_certain = ~torch.tensor(by_group, device=self.scores.device)  # (B, G)
            is_certain = is_certain.repeat_interleave(self.beam.group_size, dim=1)  # (B, W)
            self.scores = self.scores.masked_fill(is_certain, IMPOSSIBLE)
        undecided = [row for row, groups in enumerate(by_group) if any(groups)]
        for row in undecided:
            if full[row]:
                self._finish_live(row)
        self._keep_sentences([row for row in undecided if not full[row]])

    def _keep_sentences(self, staying: list[int]) -> None:
        """Remove all sentences from the batch except those at these batch indices, in all tensors and caches."""
        if len(staying) == len(self.sentence_indices):
            return
        rows = torch.tensor(staying, dtype=torch.int64, device=self.sentence_indices.device)
        self.max_lengths, self.sentences, self.starts = (
            [values[row] for row in staying] for values in (self.max_lengths, self.sentences, self.starts)
        )
        self.sentence_indices, self.scores = self.sentence_indices[rows], self.scores[rows]
        self.max_penalty, self.thresholds = self.max_penalty[rows], self.thresholds[rows]
        self.tokens, self.log_probabilities = self.tokens[rows], self.log_probabilities[rows]
        self.newest = self.newest[rows]
        self.scorer.keep_sentences(rows)
        if self.coverage is not None:
            self.coverage.keep_sentences(rows)


def _extend(history: Tensor, parents: Tensor, newest: Tensor) -> Tensor:
    """Return each hypothesis's tokens (or log-probabilities) so far: those of its parent, extended by its newest one.

    Args:
        history: the values of the hypotheses one step earlier, (B, W, t).
        parents: the index in `history` of the hypothesis that each one continues, (B, W).
        newest: the newest value of each hypothesis, (B, W).

    Returns:
        The values of the hypotheses, (B, W, t + 1).
    """
    past = history.gather(1, parents[..., None].expand(-1, -1, history.shape[-1]))
    return torch.cat([past, newest[..., None]], dim=-1)


# --- search as Hugging Face's `generate`, for models whose authors tuned their settings with it ---
# It differs from the paper's search in four ways. Probabilities are over all tokens, including those that search never
# outputs. A forced token has probability 1. A hypothesis of n tokens, including its end symbol, is ranked by its
# log-probability over n^alpha. A sentence is finished once as many hypotheses have ended as the beam is wide and no
# live one is better at its current length. Hypotheses cut at the maximum length compete with those that ended.


class LogProbabilities(WrappedScorer):
    """A scorer that converts another scorer's logits to log-probabilities.

    `GenerateSearch` needs log-probabilities. In a beam search, penalties of repeated tokens need them, too.
    """

    def __init__(self, scorer: Scorer, *, with_normalizer: bool = False) -> None:
        """Wrap a scorer.

        With `with_normalizer`, the attribute `normalizer` holds the log-sum-exp of the newest logits, (B, W, 1).
        """
        super().__init__(scorer)
        self.normalizer: Tensor | None = torch.empty(0) if with_normalizer else None

    def step(self, tokens: Tensor) -> Tensor:
        """Return the log-probabilities of the next token, (B, W, V), float32, in nats."""
        logits = self.scorer.step(tokens).float()
        if self.normalizer is not None:
            self.normalizer = logits.logsumexp(dim=-1, keepdim=True)
        return logits.log_softmax(dim=-1)


class GenerateSearch(BeamSearch):
    """A beam search with the ranking and stopping rules of Hugging Face's `generate`, for models tuned with it."""

    ranking = GENERATE_RANKING

    def __init__(
        self,
        scorer: Scorer,
        limits: SequenceLimits,
        beam: BeamOptions,
        settings: GenerateSettings,
        **options: Any,
    ) -> None:
        """Create a search like a `BeamSearch`, from a scorer whose `step` returns log-probabilities, not logits.

        `settings.stop` decides when a sentence is finished. The `options` are the keyword arguments of `BeamSearch`.
        """
        super().__init__(scorer, limits, beam, **options)
        self.stop = settings.stop
        self._ended_now = [[0] * beam.groups for _ in self.sentence_indices]

    @override
    def abandon(self, sentences: Collection[int]) -> None:
        self._ended_now = [[0] * self.beam.groups for _ in self.sentence_indices]
        super().abandon(sentences)

    def _finish_candidates(self, ended: Candidates) -> None:
        """Add the ended candidates to the finished hypotheses of their beam groups.

        The number of candidates of each group that ended in this step is stored for `_max_cut`.
        """
        super()._finish_candidates(ended)
        ended_now = (ended.totals > IMPOSSIBLE).unflatten(1, (self.beam.groups, -1))  # (B, G, n / G)
        self._ended_now = ended_now.sum(dim=-1).tolist()

    def _keep_sentences(self, staying: list[int]) -> None:
        if len(staying) < len(self.sentence_indices):
            self._ended_now = [self._ended_now[row] for row in staying]
        super()._keep_sentences(staying)

    @override
    def _may_be_returned(self, ended: Candidates) -> Tensor:
        return ended.totals > IMPOSSIBLE  # even one that is none of the n best decides when a group is full

    def _max_cut(self, row: int, group: int) -> int:
        """Return how many live hypotheses of a beam group become results when their sentence is cut.

        The number is `group_size` minus the number of the group's hypotheses that ended in the same step, as in
        `generate`.
        """
        return self.beam.group_size - self._ended_now[row][group]

    def _undecided(self) -> list[list[bool]]:
        """Return whether the search of each beam group goes on: B lists of G booleans.

        It goes on while the group has live hypotheses and fewer than `group_size` finished ones. After that, with
        `stop` = full, it ends. Otherwise, it goes on while the best live hypothesis has a better score than the worst
        finished one. The live hypothesis is scored as if it ended at its current length or, with `stop` = never, at the
        maximum length.
        """
        best_live = self.scores.unflatten(1, (self.beam.groups, -1)).amax(dim=-1).tolist()  # (B, G)
        undecided = list[list[bool]]()
        for row, sentence in enumerate(self.sentences):
            length = self.max_lengths[row] if self.stop == "never" and self.beam.alpha > 0.0 else self.length
            penalty = self._divisor(row, length)
            bounds = (best / penalty for best in best_live[row])
            groups = zip(self.finished[sentence], bounds, strict=True)
            undecided.append([self._may_improve(finished, bound) for finished, bound in groups])
        return undecided

    def _may_improve(self, finished: list[Hypothesis], bound: float) -> bool:
        """Return whether a live hypothesis could become a result of its beam group.

        It could while the group has fewer than `group_size` finished hypotheses. After that, it must have a better
        score than the worst of these, and `stop` must not be full.

        Args:
            finished: the group's finished hypotheses, best first.
            bound: the score of the group's best live hypothesis; minus infinity if there is none.
        """
        if len(finished) < self.beam.group_size:
            return bound > IMPOSSIBLE
        return self.stop != "full" and bound > finished[-1].score
