"""Define the interface of a batch search: kernels that search for a batch of sentences, from first to last step.

Legend: B sentences that are still decoded, W hypotheses of each, t tokens so far.
"""

from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from numpy.typing import NDArray
from torch import Tensor


class RepetitionPenalties(NamedTuple):
    """Penalties of a batch search for tokens that occurred before, which make their repetition less likely.

    In a beam search the penalties change log-probabilities; in greedy search and sampling they change logits.
    """

    before: Sequence[Sequence[int]]
    """For each sentence, the token ids before its output, such as its prompt; only `repetition` applies to them."""
    repetition: float
    """Greater than 0. A token that occurred has its score divided by this, or multiplied if the score is negative."""
    frequency: float
    """The number that is subtracted from a token's score for each time that it occurs in the output."""
    presence: float
    """The number that is subtracted once from the score of each token that occurs in the output."""


class SearchRules(NamedTuple):
    """The rules of a batch search: permitted, forced and penalized tokens, and the ranking of hypotheses.

    The default is the paper's search without rules.
    """

    forced: Sequence[Sequence[int]] = ()
    """For each sentence, the token ids with which its hypotheses must begin; empty: none. The first of them may count
    as certain (`context_lengths`, `certain_count`); the others keep the model's probability."""
    certain_count: int = 0
    """The number of first tokens after a sentence's context that, if they are forced, count with probability 1 instead
    of the model's."""
    context_lengths: Sequence[int] = ()
    """The number of each sentence's forced tokens that are context: they have probability 1, and rules, penalties and
    scores begin after them; empty: no context.
    """
    forced_last: int | None = None
    """The token id that every hypothesis gets at its sentence's maximum length, with probability 1; None: any token."""
    forbidden: Sequence[int] = ()
    """Token ids that no hypothesis may contain; their probability stays unused, unless `renormalizes`."""
    more_ends: Sequence[int] = ()
    """Token ids that end a hypothesis, besides the end symbol. Search gives the end symbol the greatest of all their
    probabilities, and sampling gives it their sum.
    """
    min_length: int = 0
    """The number of tokens before which no hypothesis may end."""
    no_repeated_ngrams: int = 0
    """The length of n-grams that may not occur twice in a hypothesis; 0: no restriction."""
    penalties: RepetitionPenalties | None = None
    """Penalties of tokens that occurred before, which make their repetition less likely; None: no penalties."""
    renormalizes: bool = False
    """True if probabilities are normalized over the permitted tokens only."""
    ranking: Literal["paper", "full", "likely", "never"] = "paper"
    """`paper`: ended hypotheses rank first, and a sentence is finished once no other hypothesis can enter its n best.
    Other values select the search of Hugging Face's `generate`, with this value of `GenerateSettings.stop`."""


class SamplingNumbers(NamedTuple):
    """The options of a batch search that draws tokens, and its random numbers."""

    uniform: Tensor
    """Random numbers in [0, 1), one for each draw of a token: float32, (sentences, steps, samples), for at least
    max(max_lengths) steps."""
    temperature: float
    """The number by which logits are divided; below 1, likely tokens become more likely."""
    top_k: int
    """The number of most likely tokens that may be drawn; 0: all."""
    top_p: float
    """Nucleus sampling: draw from the smallest set of most likely tokens with at least this share of the probability,
    after `top_k`.
    """
    min_p: float
    """Only tokens with at least this share of the greatest probability may be drawn."""


class ReservedCapacity(NamedTuple):
    """The capacity that a batch search reserves for sentences that join the batch later."""

    sentences: int
    """The maximum number of sentences that are decoded at once."""
    tokens: int
    """The maximum number of new tokens of a hypothesis."""
    positions: int
    """The maximum number of tokens of a prompt and its continuation."""


class BatchSearchOptions(NamedTuple):
    """The options of a batch search: start and end symbols, maximum lengths, rules, and ranking of hypotheses."""

    start_id: int
    """The id of the start symbol, the decoder's first input."""
    eos_id: int
    """The id of the end symbol, which ends a hypothesis."""
    forbidden_tokens: Sequence[int]
    """Ids of tokens that are never output: their logits are set to -inf before the softmax."""
    max_lengths: Sequence[int]
    """The maximum number of tokens of each sentence's hypotheses, end symbol included."""
    beam_size: int
    """W, the number of hypotheses of each sentence; 1 is greedy search."""
    n_best: int
    """The number of results of each sentence, whose search ends once no other hypothesis can be among these results."""
    penalties: Tensor
    """The length penalties, divisors of a hypothesis's score, of 0, 1, … tokens after the context: a float64 vector of
    at least max(max_lengths) + 2 entries."""
    rules: SearchRules = SearchRules()
    """The rules on tokens, and the ranking of hypotheses."""
    sampling: SamplingNumbers | None = None
    """Options for drawing `beam_size` samples of each sentence; None: the best hypotheses are searched."""
    reserved: ReservedCapacity | None = None
    """Capacity for prompts that join later; None: only for the prompts at the start."""


class FoundHypothesis(NamedTuple):
    """A result of a batch search: the tokens of a hypothesis, their log-probabilities, and whether it ended."""

    tokens: Tensor | NDArray[Any]
    """Token ids, (t,), with the end symbol if the hypothesis ended."""
    log_probabilities: Tensor | NDArray[Any]
    """The log-probability of each token, (t,)."""
    ended: bool
    """True if the hypothesis ended with the end symbol; otherwise it was cut, such as at the maximum length."""


class BatchSearch(Protocol):
    """A search in progress: the live hypotheses of a batch, and the best finished ones of every sentence."""

    @property
    def active(self) -> Tensor:
        """The batch indices of the sentences that are still decoded, (B,)."""

    def advance(self, steps: int) -> None:
        """Run at most `steps` decoding steps of all sentences; stop earlier when all sentences are finished."""

    def live(self) -> tuple[Tensor, Tensor]:
        """Return the W live hypotheses of each sentence: tokens, int64 (B, W, t), and log-probabilities, (B, W)."""

    def finished(self, index: int, count: int) -> list[FoundHypothesis]:
        """Return a list of at most `count` finished hypotheses of the sentence with this index in the original batch.

        The best comes first. In sampling, the samples are in the order of their random numbers (the last axis of
        `SamplingNumbers.uniform`), and a sample is padded after its end symbol with further end symbols.
        """

    def abandon(self, rows: Collection[int]) -> list[list[FoundHypothesis]]:
        """Stop decoding sentences, and return for each, in the order of `rows`, a list of its unfinished hypotheses.

        `rows` are indices into `active`, the batch indices of the sentences that are still decoded.
        """


@runtime_checkable
class JoinableSearch(BatchSearch, Protocol):
    """A batch search that other sentences may join while it runs, when some of its sentences are finished."""

    def advance(self, steps: int, *, max_unfinished: int = 0) -> None:
        """Run at most `steps` decoding steps; stop earlier when at most `max_unfinished` sentences are unfinished."""

    @property
    def own_lengths(self) -> list[int]:
        """A list with the number of tokens generated so far for each unfinished sentence, in the order of the batch."""

    @property
    def gains_by_joining(self) -> bool:
        """True if one step for many hypotheses takes much less time than several steps for few.

        If not, it is better to search for other sentences separately.
        """

    def can_absorb(self, other: Any) -> bool:
        """Return whether the sentences of another search, which has taken one step, may join this search."""

    def absorb(self, other: Any, indices: Sequence[int]) -> None:
        """Move the unfinished sentences of another search, which has taken one step, into this search.

        Args:
            other: a search for which `can_absorb` holds. It must not be used afterwards.
            indices: the index in this batch that each of these sentences gets; none of them may be in use.
        """
