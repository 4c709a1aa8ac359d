"""Define rules of decoding, which change logits in turn before a token is chosen.

Legend: B sentences still in the batch, W hypotheses of each, V vocabulary, t tokens so far.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, Literal, Protocol

import msgspec
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.search.scorer import GENERATE_RANKING, PAPER_RANKING, Ranking
from transduce.search.selection import IMPOSSIBLE, log_sum_exp


class Rule(Protocol):
    """An interface of rules that change the logits of a decoding step, such as forbidding tokens, before the choice.

    A rule that applies other rules holds them in an attribute `rules`, by which search finds them.
    """

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:
        """Return the logits of the next tokens as this rule changes them.

        Args:
            logits: (B, W, V), float32; may be changed in place.
            tokens: the tokens of each hypothesis so far, (B, W, t).
            sentence_indices: each sentence's index in the input, (B,).
        """


def apply_rules(rules: Iterable[Rule], logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:
    """Return logits, (B, W, V), as rules change them in turn; the arguments are those of `Rule.apply`."""
    for rule in rules:
        logits = rule.apply(logits, tokens, sentence_indices)
    return logits


class Forbid(Rule):
    """A rule that forbids certain token ids at every step."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:  # noqa: ARG002
        """Set the logits (B, W, V) of the forbidden tokens to minus infinity, in place, and return the logits."""
        logits[..., self.ids] = IMPOSSIBLE
        return logits


class MinimumLength(Rule):
    """A rule that forbids the end symbol before a minimum number of tokens."""

    def __init__(self, length: int, eos_id: int) -> None:
        self.length = length
        self.eos_id = eos_id

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:  # noqa: ARG002
        """Set the end symbol's logit to minus infinity, in place, while hypotheses are shorter than the minimum."""
        if tokens.shape[-1] < self.length:
            logits[..., self.eos_id] = IMPOSSIBLE
        return logits


class ExtraEndTokens(Rule):
    """A rule that treats further tokens as the end symbol, for models with several end symbols."""

    def __init__(self, eos_id: int, more_ids: Sequence[int], *, summed: bool) -> None:
        """Treat `more_ids` as end symbols.

        Args:
            eos_id: the end symbol.
            more_ids: further tokens that end a hypothesis.
            summed: the end symbol gets the sum of all their probabilities, which suits sampling; otherwise the
                greatest, which suits search.
        """
        self.eos_id = eos_id
        self.more_ids = list(more_ids)
        self.summed = summed

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:  # noqa: ARG002
        """Give the end symbol the combined logit of all tokens that end a hypothesis, and forbid the other ones.

        The logits (B, W, V) are changed in place, and returned.
        """
        ends = logits[..., [self.eos_id, *self.more_ids]]  # (B, W, ends)
        logits[..., self.more_ids] = IMPOSSIBLE
        logits[..., self.eos_id] = ends.logsumexp(dim=-1) if self.summed else ends.amax(dim=-1)
        return logits


class NoRepeatedNgrams(Rule):
    """A rule that lets no n-gram of `length` tokens occur twice in a hypothesis (Paulus et al. 2018)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:  # noqa: ARG002
        """Return the logits (B, W, V), with minus infinity for tokens that would complete an n-gram a second time."""
        if tokens.shape[-1] < self.length:
            return logits
        runs = tokens.unfold(-1, self.length, 1)  # (B, W, t - length + 1, length)
        prefix = tokens[..., tokens.shape[-1] - self.length + 1 :]  # (B, W, length - 1)
        repeats = (runs[..., :-1] == prefix[..., None, :]).all(dim=-1)  # (B, W, t - length + 1)
        limits = torch.full_like(repeats, torch.inf, dtype=logits.dtype).masked_fill_(repeats, IMPOSSIBLE)
        return logits.scatter_reduce_(-1, runs[..., -1], limits, "amin", include_self=True)


class RepetitionPenalty(Rule):
    """A rule that makes tokens less likely that occur in the prompt or in the output so far.

    Like the transformers library, it changes log-probabilities in beam search, and logits in greedy search and
    sampling.
    """

    def __init__(
        self,
        before: Sequence[Sequence[int]],
        *,
        repetition: float = 1.0,
        frequency: float = 0.0,
        presence: float = 0.0,
        normalizer: Callable[[], Tensor | None] | None = None,
    ) -> None:
        """Create the rule from the tokens before the output and the strengths of its three penalties.

        Args:
            before: the tokens before each input sentence's output: those of the prompt, or the decoder's start symbol.
                Only `repetition` applies to them.
            repetition: multiplies negative scores and divides others (Keskar et al. 2019).
            frequency: subtracted for each occurrence of a token in the output.
            presence: subtracted once for each token in the output.
            normalizer: a function for a search in which `apply` gets log-probabilities, but the penalty is for logits.
                It returns the log-sum-exp of the logits, (B, 1 or W, 1), which `apply` adds to recover the logits. If
                the function returns None, or if there is no function, `apply` penalizes its argument as it is.
        """
        self.before = [list(each) for each in before]
        self.repetition = repetition
        self.frequency = frequency
        self.presence = presence
        self.normalizer = normalizer

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:
        """Multiply or divide the scores of tokens that occurred by `repetition`, then subtract the other penalties.

        The result is logits (B, W, V), which may be changed in place.
        """
        offset = None if self.normalizer is None else self.normalizer()
        logits = logits if offset is None else logits + offset
        if self.repetition != 1.0:
            before = [self.before[index] for index in sentence_indices.tolist()]
            max_length = max([1, *map(len, before)])
            padded = [[*ids, *[-1] * (max_length - len(ids))] for ids in before]
            ids = torch.tensor(padded, device=tokens.device, dtype=torch.int64).view(len(before), 1, max_length)
            seen = torch.cat([ids.expand(-1, tokens.shape[1], -1), tokens], dim=-1)  # (B, W, max_length + t)
            # Padding repeats one of the hypothesis's tokens, which the assignment below changes only once; -1: none.
            repeated = seen.amax(dim=-1, keepdim=True)
            seen = torch.where(seen < 0, repeated, seen).clamp(min=0)
            values = logits.gather(-1, seen)
            penalized = torch.where(values < 0.0, values * self.repetition, values / self.repetition)
            logits.scatter_(-1, seen, torch.where(repeated < 0, values, penalized))
        if self.presence:
            logits.scatter_(-1, tokens, logits.gather(-1, tokens) - self.presence)
        if self.frequency:
            logits.scatter_add_(-1, tokens, torch.full_like(tokens, -self.frequency, dtype=logits.dtype))
        return logits if offset is None else logits - offset


class ForcedPrefix(Rule):
    """A rule that starts each hypothesis with its sentence's prefix; the wrapped rules take effect after it."""

    def __init__(self, prefixes: Sequence[Sequence[int]], rules: Sequence[Rule] = ()) -> None:
        self.prefixes = [list(prefix) for prefix in prefixes]
        self.max_length = max(map(len, self.prefixes), default=0)
        self.rules = rules

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:
        """Apply the wrapped rules, but within a prefix forbid every token except the prefix's next token.

        That next token keeps the logit that it had before the wrapped rules.
        """
        position = tokens.shape[-1]
        forced = {}
        for row, sentence in enumerate(sentence_indices.tolist() if position < self.max_length else ()):
            if position < len(self.prefixes[sentence]):
                token = self.prefixes[sentence][position]
                forced[row] = (token, logits[row, :, token].clone())
        logits = apply_rules(self.rules, logits, tokens, sentence_indices)
        for row, (token, score) in forced.items():
            logits[row] = IMPOSSIBLE
            logits[row, :, token] = score
        return logits


class ForcedContext(Rule):
    """A rule that starts each hypothesis with its sentence's document context.

    The context is the translations of earlier sentences of a document. Each of its tokens gets the probability 1. The
    wrapped rules apply after the context, and do not see its tokens.
    """

    def __init__(self, contexts: Sequence[Sequence[int]], rules: Sequence[Rule] = ()) -> None:
        self.contexts = [list(context) for context in contexts]
        self.rules = rules

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:
        """Return logits that force the next token of each sentence whose context is not complete.

        The logits of the other sentences are those that the wrapped rules return.
        """
        position, by_start = tokens.shape[-1], dict[int, list[int]]()
        for row, sentence in enumerate(sentence_indices.tolist()):
            context = self.contexts[sentence]
            if position < len(context):
                certain = log_sum_exp(logits[row : row + 1])[0, :, 0]  # the log-probability is then 0
                logits[row] = IMPOSSIBLE
                logits[row, :, context[position]] = certain
            else:
                by_start.setdefault(len(context), []).append(row)
        for start, some in by_start.items():
            own, chosen = tokens[..., start:], torch.tensor(some, device=sentence_indices.device)
            if len(some) == len(sentence_indices):
                return apply_rules(self.rules, logits, own, sentence_indices)
            logits[chosen] = apply_rules(self.rules, logits[chosen], own[chosen], sentence_indices[chosen])
        return logits


def all_rules(rules: Iterable[Rule]) -> Iterator[Rule]:
    """Yield rules, and those that they wrap: a rule that applies others holds them in an attribute `rules`."""
    for rule in rules:
        yield rule
        yield from all_rules(getattr(rule, "rules", ()))


def rules_for_log_probabilities(rules: Iterable[Rule], normalizer: Callable[[], Tensor | None]) -> list[Rule]:
    """Return a list of rules that are equivalent to `rules`, but get log-probabilities instead of logits.

    Each `RepetitionPenalty` gets the function `normalizer`, by which it recovers the logits. Penalties, and rules that
    wrap other rules (see `all_rules`), are copied. The remaining rules are the same objects.
    """
    replaced: list[Rule] = []
    for rule in rules:
        changes: dict[str, Any] = {}
        if hasattr(rule, "rules"):
            changes["rules"] = rules_for_log_probabilities(rule.rules, normalizer)
        if isinstance(rule, RepetitionPenalty):
            changes["normalizer"] = normalizer
        if changes:
            rule = copy(rule)
            vars(rule).update(changes)
        replaced.append(rule)
    return replaced


# --- rules of Hugging Face's `generation_config.json` ---


class GenerateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of Hugging Face's `generate`, in `generation_config.json`, without an equivalent in `SearchSettings`."""

    forced_first_id: int | None = None
    """The id of the first token of every translation, such as the tag of its language; None: any token."""
    forced_last_id: int | None = None
    """The id of the token at the maximum length of a translation, mostly the end symbol; None: any token."""
    forbidden_ids: tuple[int, ...] = ()
    """The ids of tokens that are never written in a translation."""
    stop: Literal["full", "likely", "never"] = "likely"
    """Condition for stopping the search for a sentence. `full`: `beam_size` hypotheses have ended. `likely`: in
    addition, no live hypothesis scores better than the worst of these at its current length. `never`: in addition, no
    live hypothesis could score better at the maximum length.
    """
    renormalize: bool = False
    """True if probabilities are renormalized over the tokens that rules permit: `renormalize_logits`, which OPUS models
    set.
    """

    def __post_init__(self) -> None:
        for name, id in _ids_of(self):
            if isinstance(id, bool) or not isinstance(id, int) or id < 0:
                raise TransduceError(f"`search.generate.{name}` must be a token id, at least 0, but is {id!r}.")


def ranking_of(generate: GenerateSettings | None) -> Ranking:
    """Return the `Ranking` of hypotheses: that of Hugging Face's `generate`, or the paper's if `generate` is None."""
    return PAPER_RANKING if generate is None else GENERATE_RANKING


def _ids_of(settings: GenerateSettings) -> Iterator[tuple[str, int]]:
    for name in ("forced_first_id", "forced_last_id"):
        if (id := getattr(settings, name)) is not None:
            yield name, id
    yield from (("forbidden_ids", id) for id in settings.forbidden_ids)


def check_generate_ids(settings: GenerateSettings, size: int) -> None:
    """Raise an error if an id in the settings of `generate` does not belong to a vocabulary of `size` tokens.

    Raises:
        TransduceError: an id is too large.
    """
    for name, id in _ids_of(settings):
        if id >= size:
            raise TransduceError(
                f"`search.generate.{name}` must be a token id of the vocabulary, 0 to {size - 1:,}, but is {id:,}."
            )


class ForcedToken(Rule):
    """A rule that forces one token at one position, with probability 1."""

    def __init__(self, id: int, position: int | Tensor) -> None:
        """Create a rule that forces the token `id` at a position.

        The position, counted from 0, is a number, or a tensor (N,) with the position of each input sentence.
        """
        self.id = id
        self.position = position

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:
        """Return logits that permit only the forced token, in sentences that have reached its position.

        The token's log-probability is then 0. In other sentences the logits stay unchanged.
        """
        position = (
            self.position[sentence_indices]
            if isinstance(self.position, Tensor)
            else torch.full_like(sentence_indices, self.position)
        )
        is_here = position == tokens.shape[-1]  # (B,)
        if bool(is_here.any()):
            forced = torch.full_like(logits, IMPOSSIBLE)
            forced[..., self.id] = 0.0
            logits = torch.where(is_here[:, None, None], forced, logits)
        return logits


class Renormalize(Rule):
    """A rule that renormalizes probabilities, so that those of the tokens that earlier rules permit sum to 1."""

    def apply(self, logits: Tensor, tokens: Tensor, sentence_indices: Tensor) -> Tensor:  # noqa: ARG002
        """Return the log-probabilities, (B, W, V), of the permitted tokens alone; their probabilities sum to 1."""
        return logits.log_softmax(dim=-1)


def generate_rules(settings: GenerateSettings, max_lengths: Tensor, tags: Sequence[int] = ()) -> list[Rule]:
    """Return a list of the rules of Hugging Face's `generate` that apply after all other rules, in their order.

    Args:
        settings: forced and forbidden tokens.
        max_lengths: the maximum length of each sentence in tokens, (N,).
        tags: tokens that start every translation, such as the tag of its language; they replace a forced first token.
    """
    rules: list[Rule] = [Forbid(settings.forbidden_ids)] if settings.forbidden_ids else []
    rules += [ForcedToken(tag, position) for position, tag in enumerate(tags)]
    if settings.forced_first_id is not None and not tags:
        rules.append(ForcedToken(settings.forced_first_id, 0))
    if settings.forced_last_id is not None:
        rules.append(ForcedToken(settings.forced_last_id, max_lengths - 1))
    if settings.renormalize:
        rules.append(Renormalize())
    return rules
