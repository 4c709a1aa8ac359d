"""Score given translations: compute the log-probability that a model assigns to each.

Legend: B sentences of a batch, T target length with padding, N target tokens of all sentences, V vocabulary.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import torch
from torch import Tensor

from transduce.acceleration import decoding_model, exact_projection
from transduce.argument_checks import as_texts
from transduce.deprecation import renamed_attribute
from transduce.errors import TransduceError
from transduce.inference.batching import History, check_evaluation_mode, cut_batches, pad
from transduce.inference.translation import Alternative, Translation
from transduce.model.build import EncoderDecoder
from transduce.model.config import ModelConfig
from transduce.search.rules import GenerateSettings, ranking_of
from transduce.text.tokenizer import Tokenizer, without_bare_spaces
from transduce.text.vocabulary import Vocabulary

MAX_TOKENS = 1024  # maximum tokens of a side; attention over more would take too much memory
_BATCH_TOKENS = 4096
# Logits computed at a time: few enough for a CPU's cache, but with enough rows for each pass over the weights.
_CHUNK_ELEMENTS, _MIN_ROWS, _CHUNK_ELEMENTS_OF_GPU = 1 << 19, 32, 1 << 24


class TooLongError(TransduceError):
    """An error about a source or target that has too many tokens to be scored.

    `side` is "source" or "target", and `number` is the number of the text on this side, from 1.
    """

    def __init__(self, rule: str, side: Literal["source", "target"], number: int) -> None:
        """Create the error for text `number`, counted from 1, of the sources or the targets."""
        super().__init__(rule)
        self.side, self.number = side, number


class Score(msgspec.Struct, frozen=True):
    """The log-probability that a model, or an ensemble, assigns to a given translation."""

    source: str
    """The source text."""
    target: str
    """The scored translation."""
    tokens: tuple[str, ...]
    """The target's tokens as the vocabulary spells them, without the end symbol."""
    token_log_probabilities: tuple[float, ...]
    """Log-probability of each token and of the end symbol, in nats."""
    score: float
    """The log-probability in nats divided by the length penalty, as search ranks hypotheses."""

    piece_log_probabilities = renamed_attribute("piece_log_probabilities", "token_log_probabilities")

    @property
    def log_probability(self) -> float:
        """The log-probability ln P(target | source): the sum over the tokens and the end symbol."""
        return sum(self.token_log_probabilities)


def as_translation(score: Score) -> Translation:
    """Return the score of a given translation as a `Translation` with one alternative, like a result of a search."""
    alternative = Alternative(score.target, score.tokens, score.token_log_probabilities, score.score, ended=True)
    return Translation(score.source, (alternative,))


def score_translations(
    models: Sequence[EncoderDecoder],
    tokenizer: Tokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    alpha: float = 0.0,
    generate: GenerateSettings | None = None,
    max_tokens: int | None = None,
    histories: Sequence[History] | None = None,
) -> list[Score]:
    """Compute the log-probability of each target given its source.

    Args:
        models: one model, or several whose probabilities are averaged.
        tokenizer: the models' tokenizer.
        sources: source sentences.
        targets: the translation of each source.
        alpha: exponent of the length penalty; 0: no penalty.
        generate: score as transformers' `generate` with these settings. Forced tokens then have log-probability 0, and
            the penalty is length^alpha. Probabilities are normalized over all tokens; with `renormalize`, forbidden
            tokens are left out. None: score as the paper's search.
        max_tokens: maximum source length in tokens; None: no limit but that of scoring. Search would split a longer
            source, so it is refused.
        histories: document context of each pair, which the models read and which is not scored; None: no context.

    Returns:
        A list with a `Score` for each pair.

    Raises:
        TransduceError: the numbers of sources and targets differ, an item is not a text, or a model is in training
            mode.
        TooLongError: a text is too long.
    """
    sources, targets = as_pairs(sources, targets)
    check_evaluation_mode(*models)
    open_ids = tokenizer.source.encode_batch(list(map(tokenizer.source.readable, sources)))
    _check_uncut(open_ids, max_tokens)
    source_ids = [tokenizer.source.with_special_tokens(without_bare_spaces(ids, tokenizer.source)) for ids in open_ids]
    forced = _forced_tokens(tokenizer.target, generate)
    target_ids = [
        _with_forced(forced, tokenizer.target.with_special_tokens(without_bare_spaces(ids, tokenizer.target)))
        for ids in tokenizer.target.encode_batch(targets)
    ]
    _check_lengths("source", source_ids)
    _check_lengths("target", target_ids)
    contexts = histories or [History()] * len(sources)
    rows_of_sources = [[*context.source, *ids] for context, ids in zip(contexts, source_ids, strict=True)]
    rows_of_targets = [[*context.target, *ids] for context, ids in zip(contexts, target_ids, strict=True)]
    values: dict[int, tuple[float, ...]] = {}
    with torch.inference_mode():
        for numbers in _batches(rows_of_sources, rows_of_targets):
            batch = [rows_of_sources[n] for n in numbers], [rows_of_targets[n] for n in numbers]
            for number, log_probabilities in zip(numbers, _score_batch(models, *batch, generate), strict=True):
                own = log_probabilities[len(contexts[number].target) :]
                values[number] = (*(0.0 for _ in forced), *own[len(forced) :])
    divisor = ranking_of(generate).length_penalty
    return [
        Score(
            source=source,
            target=target,
            tokens=tuple(tokenizer.target.tokens(ids[:-1])),
            token_log_probabilities=values[number],
            score=sum(values[number]) / divisor(len(ids), alpha),
        )
        for number, (source, target, ids) in enumerate(zip(sources, targets, target_ids, strict=True))
    ]


def as_pairs(sources: Iterable[str], targets: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return sources and targets as a pair of lists, which have the same length.

    Raises:
        TransduceError: the numbers differ, or an item is not a text.
    """
    sources, targets = as_texts(sources), as_texts(targets)
    if len(sources) != len(targets):
        raise TransduceError(
            f"Each source has one target, but there are {len(sources):,} sources and {len(targets):,} targets."
        )
    return sources, targets


def _forced_tokens(target: Vocabulary, generate: GenerateSettings | None) -> tuple[int, ...]:
    """Return a tuple of the token ids that transformers' `generate` forces at the start of every translation.

    Without `generate`, the tuple is empty.
    """
    if generate is None:
        return ()
    first = () if generate.forced_first_id is None else (generate.forced_first_id,)
    return target.forced or first


def _with_forced(forced: tuple[int, ...], ids: list[int]) -> list[int]:
    """Return a target's token ids with the forced tokens at the start, unless it already starts with them."""
    return ids if tuple(ids[: len(forced)]) == forced else [*forced, *ids]


def _check_uncut(rows: Sequence[Sequence[int]], max_tokens: int | None) -> None:
    for number, ids in enumerate(rows, 1):
        if max_tokens is not None and len(ids) > max_tokens:
            raise TooLongError(
                f"A source must have at most {max_tokens:,} tokens to be scored, because search splits longer ones, "
                f"but number {number} has {len(ids):,}: split it into sentences, each with its translation.",
                "source",
                number,
            )


def _check_lengths(side: Literal["source", "target"], rows: Sequence[Sequence[int]]) -> None:
    for number, ids in enumerate(rows, 1):
        if len(ids) > MAX_TOKENS:
            raise TooLongError(
                f"A {side} must have at most {MAX_TOKENS} tokens to be scored, but number {number} has {len(ids):,}: "
                "split it into sentences.",
                side,
                number,
            )


def _batches(source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield batches of pairs, as lists of indices, with similar lengths and at most 4,096 tokens including padding.

    A longer pair is a batch of its own.
    """
    lengths = [(len(source), len(target)) for source, target in zip(source_ids, target_ids, strict=True)]
    order = sorted(range(len(lengths)), key=lambda number: (-lengths[number][0], -lengths[number][1]))
    return cut_batches(order, lengths.__getitem__, _BATCH_TOKENS)


def _score_batch(
    models: Sequence[EncoderDecoder],
    source_ids: list[list[int]],
    target_ids: list[list[int]],
    generate: GenerateSettings | None,
) -> list[tuple[float, ...]]:
    """Return the log-probabilities of each target's tokens, in nats, as one tuple for each target.

    The probabilities of several models are averaged. `generate` decides which tokens have probability zero, as in
    `excluded_tokens`.
    """
    tokens = torch.tensor([token for ids in target_ids for token in ids], device=models[0].source_weight.device)  # (N,)
    excluded = excluded_tokens(models[0].config, generate)
    hidden = ((model, target_states(model, source_ids, target_ids)) for model in map(decoding_model, models))
    log_probabilities = torch.stack(
        [token_log_probabilities(model, states, tokens, excluded) for model, states in hidden]
    )
    values = (log_probabilities.logsumexp(dim=0) - math.log(len(models))).tolist()
    ends = itertools.accumulate(map(len, target_ids))
    return [tuple(values[end - len(ids) : end]) for end, ids in zip(ends, target_ids, strict=True)]


def excluded_tokens(config: ModelConfig, generate: GenerateSettings | None) -> list[int]:
    """Return a list of the token ids to which search gives the probability zero.

    Probabilities of the remaining tokens sum to 1. Without `generate` (None), padding and the start symbol are
    excluded. With `generate`, its forbidden tokens are excluded if it sets `renormalize`, and otherwise no token.
    """
    if generate is None:
        return config.forbidden_tokens
    return list(generate.forbidden_ids) if generate.renormalize else []


def target_states(
    model: EncoderDecoder, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]
) -> Tensor:
    """Return the last decoder layer's output before each of the N target tokens of all pairs in turn, (N, D)."""
    config, device = model.config, model.source_weight.device
    source = pad(source_ids, config.pad_id, device)
    inputs = pad([[config.start_id, *ids[:-1]] for ids in target_ids], config.pad_id, device)  # (B, T)
    lengths = torch.tensor([len(ids) for ids in target_ids], device=device)
    present = torch.arange(inputs.shape[1], device=device) < lengths[:, None]  # (B, T)
    return model.hidden(source, inputs)[present]


def token_log_probabilities(model: EncoderDecoder, hidden: Tensor, chosen: Tensor, excluded: Sequence[int]) -> Tensor:
    """Return the log-probabilities of target tokens in nats, (N,), float32.

    Args:
        model: the model.
        hidden: the last decoder layer's output before each target token, (N, D).
        chosen: the target tokens, (N,).
        excluded: tokens with probability zero; the probabilities of all other tokens sum to 1.
    """
    forbidden_tokens = torch.tensor(excluded, dtype=torch.int64, device=hidden.device)
    elements = _CHUNK_ELEMENTS_OF_GPU if hidden.is_cuda else _CHUNK_ELEMENTS
    rows = max(_MIN_ROWS, elements // model.config.target_vocabulary_size)
    parts, project = [], exact_projection(model)
    for states, tokens in zip(hidden.split(rows), chosen.split(rows), strict=True):
        logits = project(states).float().index_fill_(-1, forbidden_tokens, float("-inf"))
        parts.append(logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1))
    return torch.cat(parts)


class TextScore(msgspec.Struct, frozen=True, kw_only=True):
    """The probability that a language model assigns to a text, from which perplexity is computed."""

    tokens: int
    """Number of tokens scored: all but the first start token."""
    characters: int
    """Number of characters of the text."""
    nats: float
    """Sum of the negative log-probabilities of all scored tokens, in nats."""

    pieces = renamed_attribute("pieces", "tokens")

    @property
    def perplexity(self) -> float:
        """The perplexity of the text per token, at most e^100: the exponential of the mean negative log-probability."""
        return math.exp(min(100.0, self.nats / max(1, self.tokens)))

    @property
    def bits_per_character(self) -> float:
        """The negative log-probability in bits per character, which is comparable between tokenizers."""
        return self.nats / math.log(2.0) / max(1, self.characters)
