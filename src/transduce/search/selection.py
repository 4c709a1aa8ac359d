"""Select the continuations that a beam keeps: the best ones, or the best of each of several beam groups.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, n candidates, G groups, t tokens so far.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

# --- top-k and log-sum-exp over the vocabulary ---
# On a CPU these functions are faster than PyTorch's, because they work in blocks or with kernels.
# Legend: N hypotheses, G blocks of the vocabulary, k requested tokens.


_BLOCK = 64  # tokens
_MIN_TOKENS = 1024  # smaller vocabularies gain nothing from blocks


Quadruple = tuple[Tensor, Tensor, Tensor, Tensor]


class Reductions(Protocol):
    """An interface of compiled kernels that find the greatest logits and the log-sum-exp of logits (B, W, V)."""

    def supports(self, logits: Tensor) -> bool:
        """Return whether the compiled kernels support logits of this type, device and memory layout."""

    def top_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return each hypothesis's `count` greatest logits, best first, and their token ids, (B, W, count) each."""

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        """Return the log-sum-exp of each hypothesis's logits, (B, W, 1)."""

    def top_tokens_and_log_sum_exp(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return each hypothesis's `count` greatest logits, the ids of their tokens, and the log-sum-exp of all logits.

        The shapes are (B, W, count) twice and (B, W, 1).
        """

    def select(
        self, logits: Tensor, normalizer: Tensor | None, scores: Tensor, *, eos_id: int, beam_size: int
    ) -> tuple[Quadruple, Quadruple]:
        """Return the live and the ended candidates of a beam, chosen as by `BestSelection`.

        Args:
            logits: (B, W, V), where V is at least 2 × beam_size.
            normalizer: the log-sum-exp of the logits before the rules, (B, W, 1); None: it is computed from `logits`.
            scores: each hypothesis's log-probability so far, (B, W).
            eos_id: the end symbol.
            beam_size: the number of live candidates of each sentence.

        Returns:
            The live and the ended candidates. Each are four tensors: parents, tokens, token log-probabilities and
            totals.
        """


_reductions: ContextVar[Reductions | None] = ContextVar("reductions", default=None)


@contextmanager
def use_kernels(reductions: Reductions | None) -> Iterator[None]:
    """Use compiled reductions in the body of the `with` statement, for all logits that they support.

    If `reductions` is None, PyTorch computes them. Searches in other threads are not affected.
    """
    token = _reductions.set(reductions)
    try:
        yield
    finally:
        _reductions.reset(token)


def kernels_for(logits: Tensor, count: int) -> Reductions | None:
    """Return the compiled reductions that can find the `count` greatest of these logits.

    The result is None if PyTorch must find the logits.
    """
    kernels = _reductions.get()
    if kernels is None or logits.shape[-1] < max(_BLOCK, count):
        return None
    return kernels if kernels.supports(logits) else None


def top_tokens_and_log_sum_exp(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` greatest logits of each row, their indices, and the row's log-sum-exp.

    The logits are (…, V), and the results (…, count) twice and (…, 1).
    """
    if (kernels := kernels_for(logits, count)) is not None:
        return kernels.top_tokens_and_log_sum_exp(logits, count)
    values, indices = top_tokens(logits, count)
    return values, indices, log_sum_exp(logits, indices[..., :1])


def argmax_token(logits: Tensor) -> Tensor:
    """Return the index of the greatest logit of each row, (…, V) to (…); ties are broken arbitrarily."""
    if not _has_blocks(logits, 1) and kernels_for(logits, 1) is None:
        return logits.argmax(dim=-1)
    return top_tokens(logits, 1)[1][..., 0]


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` greatest logits of each row, best first, and their indices: (…, V) to two tensors (…, count).

    Without kernels, long rows are divided into blocks of 64 logits. Then only the `count` blocks with the greatest
    maxima are searched, and the logits after the last complete block.
    """
    if (kernels := kernels_for(logits, count)) is not None:
        return kernels.top_tokens(logits, count)
    if not _has_blocks(logits, count):
        values, indices = logits.topk(count, dim=-1)
        return values, indices
    rows = logits.reshape(-1, logits.shape[-1])  # (N, V)
    aligned = rows.shape[1] // _BLOCK * _BLOCK
    blocks = rows[:, :aligned].unflatten(1, (-1, _BLOCK))  # (N, G, 64)
    chosen = blocks.amax(dim=-1).topk(count, dim=-1, sorted=False).indices  # (N, k)
    block_rows = chosen + torch.arange(len(rows))[:, None] * blocks.shape[1]
    block_values = blocks.reshape(-1, _BLOCK).index_select(0, block_rows.flatten()).view(len(rows), -1)  # (N, k × 64)
    values, positions = torch.cat([block_values, rows[:, aligned:]], dim=1).topk(count, dim=-1)
    # Logits after the last complete block are treated as one more chosen block.
    starts = F.pad(chosen * _BLOCK, (0, 1), value=aligned)
    indices = starts.gather(1, positions // _BLOCK) + positions % _BLOCK
    return values.view(*logits.shape[:-1], count), indices.view(*logits.shape[:-1], count)


def _has_blocks(logits: Tensor, count: int) -> bool:
    """Return whether finding the `count` greatest logits block by block is faster than over the whole vocabulary."""
    return logits.device.type == "cpu" and logits.shape[-1] >= max(_MIN_TOKENS, 4 * count * _BLOCK)


def log_sum_exp(logits: Tensor, best: Tensor | None = None) -> Tensor:
    """Return the log-sum-exp of each row of logits, (…, V) to (…, 1).

    `best`, (…, 1), are the indices of the rows' greatest logits, if known, which saves finding them; None: unknown.
    """
    if (kernels := kernels_for(logits, 1)) is not None:
        return kernels.log_sum_exp(logits)
    if logits.device.type != "cpu":
        return logits.logsumexp(dim=-1, keepdim=True)
    # The softmax of the greatest logit is 1 over the sum of exp(logit - greatest).
    best = argmax_token(logits)[..., None] if best is None else best
    return logits.gather(-1, best) - logits.softmax(dim=-1).gather(-1, best).log()


# --- selection ---


IMPOSSIBLE = float("-inf")
"""The score of a candidate that does not exist, and the logit of a token that may not follow."""


@dataclass(eq=False)
class SelectionStep:
    """The data of a decoding step from which a selection chooses: hypotheses, and the logits of their next tokens."""

    logits: Tensor
    """The logits after the rules, float32, (B, W, V)."""
    scores: Tensor
    """Each hypothesis's log-probability so far, (B, W)."""
    tokens: Tensor
    """The tokens of each hypothesis so far, (B, W, t)."""
    sentence_indices: Tensor
    """Each sentence's index in the input, (B,)."""
    cached_log_sum_exp: Tensor | None = None
    """The log-sum-exp of the logits before the rules, (B, W, 1); None: without rules, `normalizer` computes it.
    """

    @property
    def normalizer(self) -> Tensor:
        """The log-sum-exp of each hypothesis's logits before the rules, (B, W, 1).

        Logits minus this number are the model's log-probabilities.
        """
        if self.cached_log_sum_exp is None:
            self.cached_log_sum_exp = log_sum_exp(self.logits)
        return self.cached_log_sum_exp

    def of_sentence(self, row: int) -> "SelectionStep":
        """Return the data of this step for the sentence at batch index `row` alone, with B = 1."""
        parts = (self.logits, self.scores, self.tokens, self.sentence_indices, self.normalizer)
        return SelectionStep(*(values[row : row + 1] for values in parts))

    def of_hypotheses(self, hypotheses: slice) -> "SelectionStep":
        """Return the data of this step for a slice of each sentence's hypotheses, such as one beam group.

        Logits, scores and normalizer are those of the slice. The tokens stay those of all hypotheses.
        """
        return SelectionStep(
            self.logits[:, hypotheses],
            self.scores[:, hypotheses],
            self.tokens,
            self.sentence_indices,
            self.normalizer[:, hypotheses],
        )


class Candidates(NamedTuple):
    """Candidate continuations of hypotheses, n candidates for each of B sentences: four tensors (B, n)."""

    parents: Tensor
    """The index, in its sentence, of the hypothesis that each candidate continues, (B, n)."""
    tokens: Tensor
    """The id of the token that each candidate appends, (B, n)."""
    token_scores: Tensor
    """The log-probability of each candidate's token, in nats, (B, n)."""
    totals: Tensor
    """The log-probability of each candidate's hypothesis including the token, in nats, (B, n); minus infinity for a
    missing candidate.
    """

    def take(self, order: Tensor) -> "Candidates":
        """Return the candidates of each sentence at the indices `order`, (B, m), in that order."""
        return Candidates(*(values.gather(1, order) for values in self))


class SelectedCandidates(NamedTuple):
    """The candidates selected at a step: those that continue as live hypotheses, and those that end."""

    live: Candidates
    """Candidates that stay in the beam, (B, W)."""
    ended: Candidates
    """Candidates that end with the end symbol, (B, n), the same number for each group of the beam; those with a total
    of minus infinity do not count.
    """


class Selection(Protocol):
    """An interface of objects that choose, at each decoding step, which continuations a beam keeps."""

    def select(self, step: SelectionStep) -> SelectedCandidates:
        """Return the candidates that become live hypotheses of the next step, and those that end in this step."""


class BestSelection(Selection):
    """A selection of the W best continuations over all hypotheses of each sentence, as in plain beam search."""

    def __init__(self, *, beam_size: int, eos_id: int) -> None:
        self.beam_size = beam_size
        self.eos_id = eos_id

    def select(self, step: SelectionStep) -> SelectedCandidates:
        """Return for each sentence its W best candidates that continue, over all hypotheses, and those that end."""
        # At most W of 2 W candidates end, so at least W others remain.
        kernels = kernels_for(step.logits, 2 * self.beam_size)
        if kernels is not None:
            live, ended = kernels.select(
                step.logits, step.cached_log_sum_exp, step.scores, eos_id=self.eos_id, beam_size=self.beam_size
            )
            return SelectedCandidates(Candidates(*live), Candidates(*ended))
        return split(best_candidates(step, 2 * self.beam_size), self.eos_id, self.beam_size)


class DiverseSelection(Selection):
    """A selection from beam groups that search separately and avoid each other's choices (Vijayakumar et al. 2016).

    A token costs `penalty` nats for each time that earlier groups chose it at the same position (Hamming diversity).
    The penalty affects only the selection; scores remain log-probabilities.
    """

    def __init__(self, *, beam_size: int, groups: int, penalty: float, eos_id: int) -> None:
        self.groups = groups
        self.group_size = beam_size // groups
        self.penalty = penalty
        self.eos_id = eos_id

    def select(self, step: SelectionStep) -> SelectedCandidates:
        """Return the best continuations of each group of the beam, and those that end, one group after another.

        A token that earlier groups chose in this step gets a lower score in later groups.
        """
        taken = torch.zeros_like(step.logits[:, 0])  # (B, V), how often each token was chosen
        selected_by_group = []
        for group in range(self.groups):
            hypotheses = slice(0, 1)  # the first step has a single hypothesis, which all groups share
            if step.logits.shape[1] > 1:
                hypotheses = slice(group * self.group_size, (group + 1) * self.group_size)
            candidates = best_candidates(
                step.of_hypotheses(hypotheses), 2 * self.group_size, taken[:, None] * self.penalty
            )
            selected = split(_fill(candidates, 2 * self.group_size), self.eos_id, self.group_size)
            exist = selected.live.totals > IMPOSSIBLE  # a group that has finished takes no tokens
            taken.scatter_add_(1, selected.live.tokens, exist.to(taken.dtype))
            selected_by_group.append(
                SelectedCandidates(*(each._replace(parents=each.parents + hypotheses.start) for each in selected))
            )
        live, ended = (_concatenate(list(parts)) for parts in zip(*selected_by_group, strict=True))
        return SelectedCandidates(live, ended)


def best_candidates(step: SelectionStep, count: int, costs: Tensor | None = None) -> Candidates:
    """Return the best continuations of each sentence's hypotheses, as `Candidates` sorted best first.

    Args:
        step: the hypotheses and the logits of their next tokens.
        count: the maximum number of continuations; there are fewer if not as many exist.
        costs: subtracted from each token's score for the selection only, broadcastable to (B, W, V); None: no costs.
    """
    adjusted = step.logits if costs is None else step.logits - costs
    width = min(count, adjusted.shape[-1])  # more continuations of one hypothesis are never needed
    if costs is None and step.cached_log_sum_exp is None:
        best, tokens, step.cached_log_sum_exp = top_tokens_and_log_sum_exp(adjusted, width)  # (B, W, width or 1)
    else:
        best, tokens = top_tokens(adjusted, width)
    totals = (step.scores[..., None] + (best - step.normalizer)).flatten(1)  # (B, W × width)
    order = totals.topk(min(count, totals.shape[1]), dim=-1).indices  # (B, n), best first
    parents = order // width
    tokens = tokens.flatten(1).gather(1, order)
    if costs is None:
        token_scores = (best - step.normalizer).flatten(1).gather(1, order)
        return Candidates(parents, tokens, token_scores, totals.gather(1, order))
    return score_candidates(step, parents, tokens)


def score_candidates(step: SelectionStep, parents: Tensor, tokens: Tensor) -> Candidates:
    """Return `Candidates` with log-probabilities, for the given parent hypotheses and appended tokens, (B, n) each."""
    flat = parents * step.logits.shape[-1] + tokens
    logits = step.logits.flatten(1).gather(1, flat)
    token_scores = logits - step.normalizer[..., 0].gather(1, parents)
    return Candidates(parents, tokens, token_scores, step.scores.gather(1, parents) + token_scores)


def split(candidates: Candidates, eos_id: int, beam_size: int) -> SelectedCandidates:
    """Split candidates into the best `beam_size` that continue and those that end with the end symbol.

    The candidates must be sorted, best first. An ended candidate counts only if it is among the `beam_size` best
    candidates of its sentence. Unused entries of both results get a total of minus infinity.
    """
    ends = candidates.tokens == eos_id
    counts = ends & (torch.arange(ends.shape[1], device=ends.device) < beam_size)
    ended = candidates._replace(totals=candidates.totals.masked_fill(~counts, IMPOSSIBLE))
    # A stable sort puts the candidates that do not end first, best first.
    order = ends.to(torch.int8).sort(dim=1, stable=True).indices[:, :beam_size]
    live = candidates._replace(totals=candidates.totals.masked_fill(ends, IMPOSSIBLE)).take(order)
    return SelectedCandidates(live, ended)


def _fill(candidates: Candidates, count: int) -> Candidates:
    """Return candidates padded to `count` for each sentence; added ones have a total of minus infinity."""
    missing = count - candidates.totals.shape[1]
    if missing <= 0:
        return candidates
    parents, tokens, scores, totals = (torch.nn.functional.pad(values, (0, missing)) for values in candidates)
    totals[:, -missing:] = IMPOSSIBLE
    return Candidates(parents, tokens, scores, totals)


def _concatenate(parts: list[Candidates]) -> Candidates:
    return Candidates(*(torch.cat(values, dim=1) for values in zip(*parts, strict=True)))
