"""Define interfaces between search and its surroundings: the model, observers, and the hypotheses found.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t tokens so far.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec
import torch
from torch import Tensor
from typing_extensions import override


class Scorer(Protocol):
    """An interface of a model that scores next tokens during the decoding of a batch, with its own key/value cache."""

    def step(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token of each hypothesis.

        Args:
            tokens: the newest token of each hypothesis, (B, W); at the first step the start symbol, (B, 1).

        Returns:
            Logits, (B, W, V), of any floating dtype, minus infinity for tokens that search never outputs (padding, the
            start symbol). Search normalizes them, and rules may overwrite them.
        """

    def reorder(self, parents: Tensor) -> None:
        """Reorder the cached states, so that hypothesis w of sentence b continues hypothesis parents[b, w], (B, W)."""

    def keep_sentences(self, rows: Tensor) -> None:
        """Remove all sentences from the batch except those at these ascending batch indices, (B',)."""


class WrappedScorer(Scorer):
    """A base class of scorers that change the scores of another scorer, `scorer`, which keeps the cached states."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    @override
    def reorder(self, parents: Tensor) -> None:
        self.scorer.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        self.scorer.keep_sentences(rows)


class AttentiveScorer(Protocol):
    """An interface of scorers that report attention to the source, from which a coverage penalty is computed."""

    def attention(self) -> Tensor:
        """Return the newest step's attention to each of S source tokens, float32 (B, W, S), for coverage penalties.

        The attention is 1 at padding and the end symbol, so that these count as covered: there is nothing to translate.
        """


class Observer(Protocol):
    """An object that is called after each step of a search, and can abandon sentences, for example at a timeout."""

    def after_step(self, sentence_indices: Tensor, tokens: Tensor) -> Collection[int]:
        """Observe the hypotheses after a step of the search, and return the sentences to abandon.

        Args:
            sentence_indices: the indices in the input of the sentences that are still decoded, (B,).
            tokens: the hypotheses of these sentences so far, the best live one first, (B, W, t). In a beam search, the
                last hypothesis is the best finished one, if there is one, padded with end symbols. So the common prefix
                of all hypotheses is a prefix of the result.

        Returns:
            The indices in the input of sentences to abandon, which then leave the batch at once with the hypotheses
            that they have.
        """


@runtime_checkable
class TextObserver(Observer, Protocol):
    """An interface of observers that also receive the partial translations of texts with several sentences."""

    def after_text(self, text: int, final: str, draft: str) -> None:
        """Receive the partial translation of a text after a step of the search.

        The method is not called for a text that is a single sentence without spaces around it.

        Args:
            text: the index of the text.
            final: the start of the translation that will not change.
            draft: `final`, followed by the best hypothesis so far for the next sentence.
        """


class SequenceLimits(NamedTuple):
    """The start and end symbol of a batch's hypotheses, and each sentence's maximum length and context."""

    start_id: int
    """The id of the start symbol, the first input of the decoder."""
    eos_id: int
    """The id of the end symbol."""
    max_lengths: Tensor
    """The maximum length of each hypothesis in tokens, including its context and the end symbol, int64 (N,)."""
    context_lengths: Sequence[int] = ()
    """The number of tokens of context that each hypothesis starts with, (N,), which results and scores leave out;
    empty: no context.
    """

    def starts(self) -> list[int]:
        """Return a list of the number of context tokens before each sentence's own tokens; zeros without context."""
        return list(self.context_lengths) or [0] * len(self.max_lengths)


class Hypothesis(msgspec.Struct, frozen=True):
    """A target sequence that search found, with its log-probability and score."""

    ids: tuple[int, ...]
    """The token ids, without start and end symbols."""
    token_log_probabilities: tuple[float, ...]
    """The log-probability of each token and, if `ended`, of the end symbol, in nats. It is the token's logit after the
    rules, minus the log-sum-exp of all logits before them, so rules that only forbid other tokens do not change it.
    """
    score: float
    """The ranking score, in nats: log-probability divided by the length penalty, plus the coverage penalty."""
    ended: bool
    """False if the hypothesis was cut at the maximum length or its sentence was abandoned."""

    @property
    def log_probability(self) -> float:
        """The log-probability of the hypothesis with its end symbol, in nats."""
        return sum(self.token_log_probabilities)


# --- ranking of hypotheses: the paper's, and that of Hugging Face's `generate` ---


LengthPenalty = Callable[[int, float], float]
"""A function from a number of tokens and the exponent alpha to the divisor of a hypothesis's log-probability."""


def length_penalty(length: int, alpha: float) -> float:
    """Return the length penalty ((5 + |Y|) / 6)^alpha (section 6.1; Wu et al. 2016, equation 14).

    Search divides log-probabilities by the penalty; |Y|, the number of tokens, counts the end symbol.
    """
    return float(((5.0 + length) / 6.0) ** alpha)


def length_power(length: int, alpha: float) -> float:
    """Return |Y|^alpha, the length penalty of Hugging Face's `generate`; |Y|, at least 1, counts the end symbol."""
    return float(max(1, length) ** alpha)


class Ranking(NamedTuple):
    """A ranking of hypotheses by their log-probabilities divided by a length penalty."""

    length_penalty: LengthPenalty
    """The function of a length by which log-probabilities are divided."""
    ended_first: bool
    """True if hypotheses that ended rank before all that were cut, whatever their scores."""

    def key(self, hypothesis: Hypothesis) -> tuple[bool, float]:
        """Return a sort key of a hypothesis, a tuple that sorts the best hypothesis first."""
        return self.ended_first and not hypothesis.ended, -hypothesis.score


PAPER_RANKING = Ranking(length_penalty, ended_first=True)
GENERATE_RANKING = Ranking(length_power, ended_first=False)


# --- search loop ---


_UNLIMITED_STEPS = 2**31  # steps: no limit before all sentences are finished


class Search(Protocol):
    """An interface of searches in progress, which find target sequences for the sentences of a batch step by step."""

    @property
    def sentence_indices(self) -> Tensor:
        """The indices in the input of the sentences that are still being decoded, int64 (B,)."""

    def advance(self, steps: int = 1) -> None:
        """Run one decoding step, or up to `steps` steps if that is faster.

        In a step every hypothesis grows by one token, and finished sentences leave the batch.
        """

    def hypotheses(self) -> Tensor:
        """Return the token ids of the current hypotheses of each sentence still being decoded, best first, (B, W, t).

        In a beam search, the last hypothesis is the best finished one, if there is one, padded with end symbols.
        """

    def abandon(self, sentences: Collection[int]) -> None:
        """Stop decoding sentences, given by index in the input; their current hypotheses become their results.

        Indices of finished sentences are ignored.
        """

    def results(self) -> list[list[Hypothesis]]:
        """Return a list with the hypotheses of each sentence of the input, best first.

        The hypotheses of a sentence that is still being decoded are an empty list.
        """


def run_search(search: Search, observer: Observer | None = None) -> list[list[Hypothesis]]:
    """Run a search until all sentences are finished or abandoned, and return a list of the hypotheses of each.

    Args:
        search: a search at its first step or later.
        observer: is called after every step, and may abandon sentences; None: nothing is called.

    Returns:
        The hypotheses of each sentence. An abandoned sentence may have none.
    """
    while len(search.sentence_indices):
        search.advance(_UNLIMITED_STEPS if observer is None else 1)
        if observer is not None and len(search.sentence_indices):
            search.abandon(observer.after_step(search.sentence_indices, search.hypotheses()))
    return search.results()


# --- ensembles ---


class Ensemble(Scorer):
    """A scorer that averages the next-token probabilities of models with one vocabulary that decode the same batch."""

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        self.scorers = scorers

    def step(self, tokens: Tensor) -> Tensor:
        """Return the logarithm of the mean probability of each next token, float32 (B, W, V)."""
        each = torch.stack([scorer.step(tokens).float().log_softmax(dim=-1) for scorer in self.scorers])
        return each.logsumexp(dim=0) - math.log(len(self.scorers))

    @override
    def reorder(self, parents: Tensor) -> None:
        for scorer in self.scorers:
            scorer.reorder(parents)

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        for scorer in self.scorers:
            scorer.keep_sentences(rows)


class MeanAttention(AttentiveScorer):
    """An attentive scorer of an ensemble, which averages the attention of its models for the coverage penalty."""

    def __init__(self, scorers: Sequence[AttentiveScorer]) -> None:
        self.scorers = scorers

    def attention(self) -> Tensor:
        """Return the mean over all models of the newest step's attention to the source, (B, W, S)."""
        return torch.stack([scorer.attention() for scorer in self.scorers]).mean(dim=0)
