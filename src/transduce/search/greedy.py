"""Search greedily or by sampling: every hypothesis takes its next token without comparing hypotheses.

Greedy search takes the best token. Beam search with one hypothesis and no length penalty finds the same, more slowly;
with a length penalty it continues while a longer hypothesis could still score better. Sampling draws the token.
Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t tokens so far.
"""

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from transduce.search.rules import Rule, apply_rules
from transduce.search.scorer import Hypothesis, LengthPenalty, Scorer, SequenceLimits, length_penalty, run_search
from transduce.search.selection import Reductions, argmax_token, log_sum_exp, top_tokens_and_log_sum_exp, use_kernels
from transduce.search.settings import SamplingSettings

# Maps float32 logits (B, W, V) and each sentence's index in the input (B,) to the next tokens (B, W).
Choose = Callable[[Tensor, Tensor], Tensor]


def greedy_search(scorer: Scorer, *, start_id: int, eos_id: int, max_lengths: Tensor) -> list[list[Hypothesis]]:
    """Return one hypothesis for each sentence, which takes the most probable token at every step.

    Args:
        scorer: the model, at the start of a batch of N sentences.
        start_id: the first input of the decoder.
        eos_id: the end symbol.
        max_lengths: the maximum length of each hypothesis in tokens, including the end symbol, int64 (N,).

    Returns:
        N lists of one hypothesis, whose score is its log-probability.
    """
    return run_search(GreedySearch(scorer, SequenceLimits(start_id, eos_id, max_lengths), take_argmax))


def take_argmax(logits: Tensor, sentence_indices: Tensor) -> Tensor:  # noqa: ARG001
    """Return the id of the most probable token of each hypothesis, (B, W), from logits (B, W, V)."""
    return argmax_token(logits)


class GreedySearch:
    """A search that extends a fixed number of hypotheses, greedily or by sampling, until all have ended."""

    def __init__(
        self,
        scorer: Scorer,
        limits: SequenceLimits,
        choose: Choose,
        *,
        width: int = 1,
        alpha: float = 0.0,
        divisor: LengthPenalty = length_penalty,
        rules: Sequence[Rule] = (),
        reductions: Reductions | None = None,
    ) -> None:
        """Create a search whose hypotheses contain only the start symbol.

        Args:
            scorer: the model, at the start of a batch of N sentences.
            limits: start and end symbol, and the maximum lengths.
            choose: returns the next token ids, (B, W), for logits, (B, W, V), and the sentences' indices in the input,
                (B,).
            width: W, the number of hypotheses for each sentence.
            alpha: the exponent of the length penalty, which affects only the reported scores.
            divisor: the formula of the length penalty.
            rules: rules applied to the logits in turn.
            reductions: compiled top-k and log-sum-exp; None: PyTorch's.
        """
        sentences, device = len(limits.max_lengths), limits.max_lengths.device
        self.scorer = scorer
        self.choose = choose
        self.rules = rules
        self.reductions = reductions
        self.width = width
        self.eos_id = limits.eos_id
        self.alpha = alpha
        self.divisor = divisor
        self.max_lengths = limits.max_lengths  # (B,)
        self.min_max_length = min(limits.max_lengths.tolist(), default=0)
        self.starts = limits.starts()  # by index in the input
        self.ended = torch.zeros(sentences, width, dtype=torch.bool, device=device)  # (B, W)
        self.sentence_indices = torch.arange(sentences, device=device)  # (B,), the sentence's index in the input
        self.newest = torch.full((sentences, 1), limits.start_id, dtype=torch.int64, device=device)
        self.tokens = torch.empty(sentences, width, 0, dtype=torch.int64, device=device)  # (B, W, t)
        self.log_probabilities = torch.empty(sentences, width, 0, device=device)  # (B, W, t)
        self._results: list[list[Hypothesis]] = [[] for _ in range(sentences)]

    def advance(self, steps: int = 1) -> None:  # noqa: ARG002
        """Extend every hypothesis by its next token, and remove sentences that are finished; `steps` is ignored."""
        with nullcontext() if self.reductions is None else use_kernels(self.reductions):
            self._extend_all()

    def _extend_all(self) -> None:
        logits = self.scorer.step(self.newest).float()  # (B, 1, V) at the first step, then (B, W, V)
        if logits.shape[1] != self.width:
            logits = logits.repeat(1, self.width, 1)
            self.scorer.reorder(self.newest.new_zeros(len(self.sentence_indices), self.width))
        newest, log_probabilities = self._next(logits)
        self._extend(newest, log_probabilities)
        self.ended = self.ended | (newest == self.eos_id)
        if self.rules:  # rules may leave no token at all
            self.ended = self.ended | log_probabilities.isneginf()
        if self.tokens.shape[-1] < self.min_max_length and not self.ended.any():
            return
        self._leave(self.ended.all(dim=-1) | (self.max_lengths <= self.tokens.shape[-1]))

    def _next(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids of the next tokens, chosen under the rules, and their log-probabilities, both (B, W).

        The log-probabilities are normalized before the rules; a forbidden token has minus infinity.
        """
        if not self.rules and self.choose is take_argmax:
            values, tokens, normalizer = top_tokens_and_log_sum_exp(logits, 1)  # (B, W, 1) each
            return tokens[..., 0], (values - normalizer)[..., 0]
        normalizer = log_sum_exp(logits)
        logits = apply_rules(self.rules, logits, self.tokens, self.sentence_indices)
        newest = self.choose(logits, self.sentence_indices)
        return newest, (logits.gather(-1, newest[..., None]) - normalizer)[..., 0]

    def hypotheses(self) -> Tensor:
        """Return the tokens of all hypotheses so far, padded with end symbols after their end, (B, W, t)."""
        ended = (self.tokens == self.eos_id).cummax(dim=-1).values
        return self.tokens.masked_fill(ended, self.eos_id)

    def abandon(self, sentences: Collection[int]) -> None:
        """Stop decoding sentences, given by index in the input; their unfinished hypotheses become results."""
        if sentences:
            self._leave(
                torch.isin(self.sentence_indices, torch.tensor(list(sentences), device=self.sentence_indices.device))
            )

    def results(self) -> list[list[Hypothesis]]:
        """Return a list of the hypotheses of each sentence, in the order in which they were started.

        The list is empty for an unfinished sentence.
        """
        return self._results

    def _extend(self, newest: Tensor, log_probabilities: Tensor) -> None:
        self.newest = newest
        self.tokens = torch.cat([self.tokens, newest[..., None]], dim=-1)
        self.log_probabilities = torch.cat([self.log_probabilities, log_probabilities[..., None]], dim=-1)

    def _leave(self, leaving: Tensor) -> None:
        """Store the results of the sentences where the mask `leaving` (B,) is True, and drop them from the batch."""
        if not bool(leaving.any()):
            return
        rows = leaving.nonzero().flatten()
        # One transfer for all, since each one stalls a GPU.
        histories = zip(self.tokens[rows].tolist(), self.log_probabilities[rows].tolist(), strict=True)
        for sentence, history in zip(self.sentence_indices[rows].tolist(), histories, strict=True):
            start = self.starts[sentence]
            self._results[sentence] = [self._hypothesis(*each, start) for each in zip(*history, strict=True)]
        staying = (~leaving).nonzero().flatten()
        self.scorer.keep_sentences(staying)
        for name in ("sentence_indices", "max_lengths", "newest", "tokens", "log_probabilities", "ended"):
            setattr(self, name, getattr(self, name)[staying])

    def _hypothesis(self, tokens: list[int], log_probabilities: list[float], start: int) -> Hypothesis:
        """Return a `Hypothesis` of a sentence's decoded tokens, cut after the first end symbol.

        The first `start` tokens, its document context, are left out. If the rules forbade all tokens at a step, the
        tokens are cut before that step, and the hypothesis is not marked as ended.
        """
        steps = enumerate(zip(tokens, log_probabilities, strict=True))
        last = next((n for n, (token, value) in steps if token == self.eos_id or value == -math.inf), None)
        ended = last is not None and log_probabilities[last] != -math.inf
        length = len(tokens) if last is None else last + ended
        trimmed = tokens[:length], log_probabilities[:length]
        return make_hypothesis(*trimmed, ended=ended, alpha=self.alpha, divisor=self.divisor, start=start)


def make_hypothesis(
    tokens: Sequence[int],
    log_probabilities: Sequence[float],
    *,
    ended: bool,
    alpha: float,
    penalty: float = 0.0,
    divisor: LengthPenalty = length_penalty,
    start: int = 0,
) -> Hypothesis:
    """Create a hypothesis from its tokens and their log-probabilities.

    If the hypothesis `ended`, its last token is the end symbol. The first `start` tokens, its document context, are
    left out. The score is the sum of the other log-probabilities, divided by the length penalty. The coverage penalty,
    `penalty` in nats, is then added.
    """
    tokens, log_probabilities = tokens[start:], log_probabilities[start:]
    return Hypothesis(
        ids=tuple(tokens[:-1] if ended else tokens),
        token_log_probabilities=tuple(log_probabilities),
        score=sum(log_probabilities) / divisor(len(tokens), alpha) + penalty,
        ended=ended,
    )


# --- sampling from the model's distribution, with temperature, top-k and top-p ---
# Each sentence has a random generator of its own, so its samples depend only on the seed and its index in the input,
# not on the rest of the batch.
# Legend: N sentences, B of them still in the batch.


_INITIAL_COUNT = 32  # tokens that are sorted at first; few draws need more
_GROWTH = 16  # factor by which their number grows, up to all


class Draw:
    """A sampler that draws each hypothesis's next token with the temperature, top-k, top-p and min-p of settings."""

    def __init__(
        self,
        sampling: SamplingSettings,
        indices: Sequence[int],
        *,
        samples: int,
        seeds: Sequence[int] | None = None,
    ) -> None:
        """Create a sampler with a random generator for each sentence.

        Args:
            sampling: the sampling options with the seed.
            indices: each sentence's index in the whole input, which determines its random numbers, (N,).
            samples: hypotheses drawn for each sentence.
            seeds: each sentence's random seed, (N,); None: that of `sampling`.
        """
        seeds = [sampling.seed] * len(indices) if seeds is None else seeds
        self.sampling = sampling
        self.samples = samples
        numbers = (_seed(*each) for each in zip(seeds, indices, strict=True))
        self.generators = [torch.Generator().manual_seed(number) for number in numbers]

    def __call__(self, logits: Tensor, sentence_indices: Tensor) -> Tensor:
        """Draw the next token ids, (B, W), from logits (B, W, V); `sentence_indices` (B,) index the input."""
        drawn = [torch.rand(self.samples, generator=self.generators[index]) for index in sentence_indices.tolist()]
        uniform = torch.stack(drawn).to(logits.device)
        sampling = self.sampling
        scaled = logits / sampling.temperature
        return draw(scaled, uniform, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p)

    def random_numbers(self, steps: int) -> Tensor:
        """Return the random numbers of the next steps, float32 (N, steps, W), for N sentences and W samples of each.

        The generators' states stay unchanged, so that compiled kernels can search first and PyTorch can still take
        over.
        """
        generators = [generator.clone_state() for generator in self.generators]
        drawn = [torch.rand(steps * self.samples, generator=generator) for generator in generators]
        return torch.stack(drawn).view(len(drawn), steps, self.samples)


def _seed(seed: int, index: int) -> int:
    """Return a random seed below 2^32 for the sentence at an index of the input, from the seed of the settings."""
    return (seed * 0x9E3779B1 + index * 0x85EBCA6B) % 2**32


def draw(logits: Tensor, uniform: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """Draw the next token of each hypothesis, for given random numbers.

    The probabilities of the tokens that may be drawn are scaled to a sum of 1, and are added in descending order. The
    result is the first token at which their sum exceeds the random number.

    Args:
        logits: (B, W, V), divided by the temperature.
        uniform: random numbers in [0, 1), (B, W).
        top_k: the number of most likely tokens that may be drawn; 0: all.
        top_p: only the fewest most likely tokens whose probabilities sum to at least this number may be drawn. With
            `top_k`, the probabilities are first scaled so that those of the `top_k` tokens sum to 1.
        min_p: only tokens with at least this share of the greatest probability may be drawn.

    Returns:
        Tokens, (B, W).
    """
    probabilities = logits.softmax(dim=-1).flatten(0, 1)  # (B × W, V)
    numbers, size = uniform.flatten(), probabilities.shape[1]
    count, cuts = min(top_k or _INITIAL_COUNT, size), (top_p, min_p)
    tokens, is_certain = _draw_among(probabilities, numbers, count, cuts, is_all=count in (top_k, size))
    while not bool(is_certain.all()):  # a row's draw must not depend on other rows
        left, count = (~is_certain).nonzero().flatten(), min(_GROWTH * count, size)
        tokens[left], is_certain[left] = _draw_among(
            probabilities[left], numbers[left], count, cuts, is_all=count == size
        )
    return tokens.view(uniform.shape)


def _draw_among(
    probabilities: Tensor, uniform: Tensor, count: int, cuts: tuple[float, float], *, is_all: bool
) -> tuple[Tensor, Tensor]:
    """Draw a token for each row of `probabilities`, (N, V), from its `count` most likely tokens.

    Args:
        probabilities: (N, V).
        uniform: random numbers in [0, 1), (N,).
        count: the number of most likely tokens to draw from.
        cuts: a pair of the limits top_p and min_p.
        is_all: True if no other token may be drawn.

    Returns:
        A pair of tensors, (N,): the tokens, and booleans. A boolean is True if a greater `count` would give the same
        token.
    """
    values, tokens = probabilities.topk(count, dim=-1)  # sorted
    cumulated = values.cumsum(dim=-1)
    is_certain = torch.ones_like(uniform, dtype=torch.bool)
    top_p, min_p = cuts
    if top_p < 1.0 or min_p > 0.0:
        least = min_p * values[:, :1]
        if not is_all:
            is_certain = (cumulated[:, -1] >= top_p) | (values[:, -1] < least[:, 0])
        # A token stays if those before it have not reached top_p of what top_k left; the first always stays.
        limit = top_p * cumulated[:, -1:] if is_all and count < probabilities.shape[1] else top_p
        stays = (cumulated - values < limit) & (values >= least)
        stays[:, 0] = True  # a tiny top_p is 0 in float32
        cumulated = (values * stays).cumsum(dim=-1)
        total = cumulated[:, -1]
    elif is_all:
        total = cumulated[:, -1]
    else:
        total = probabilities.sum(dim=-1)
        is_certain = uniform * total < cumulated[:, -1]
    index = torch.searchsorted(cumulated, (uniform * total)[:, None], right=True).clamp_max(count - 1)
    return tokens.gather(1, index)[:, 0], is_certain
