"""Sample the tokens of training sentences anew in each epoch: BPE-dropout, and sampling by a unigram model.

A model that sees a word in several divisions learns how its parts relate, and copes better with rare words and typos.
BPE-dropout (Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword Regularization") leaves out each merge
with some probability. A unigram model draws divisions by their probabilities (Kudo 2018, "Subword Regularization").
The draws are a pure function of (seed, epoch, pair), so they depend neither on the batch nor on the process.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Batch, ChangedPlan, Plan, RandomPurpose
from transduce.errors import TransduceError
from transduce.text.sentencepiece_model import PieceType, is_bpe, is_by_character, read_pieces
from transduce.text.vocabulary import Vocabulary

_SPACE = "▁"
_MIN_GROWTH_TOKENS = 4


def growth_limit(length: int, rate: float) -> int:
    """Return the maximum number of tokens of a sentence of `length` tokens after sampling at a BPE-dropout `rate`.

    A sentence that would exceed the limit keeps its usual tokens.
    """
    return length + _MIN_GROWTH_TOKENS + int(4.0 * rate * length)


class WordSampler(Protocol):
    """An interface of samplers that draw how a word is divided into tokens."""

    def sample(self, word: tuple[int, ...], random: Random) -> Sequence[int]:
        """Return a sequence of token ids that spell the same text as `word`, which is given by its usual token ids."""


class BpeDropout(WordSampler):
    """A sampler that repeats the merges of BPE and drops each of them with some probability.

    This is algorithm 1 of Provilkov et al. (2020).
    """

    def __init__(self, vocabulary: Vocabulary, rate: float) -> None:
        self._texts, self._ids = _tokens_of_text(vocabulary)
        pieces = read_pieces(vocabulary.model_bytes)
        self._scores = {text: pieces[id].score for text, id in self._ids.items()}
        self._rate, self._log_kept = rate, math.log1p(-rate)
        self._characters: dict[tuple[int, ...], str] = {}

    def sample(self, word: tuple[int, ...], random: Random) -> Sequence[int]:
        """Return token ids that spell the same text as `word`, a word's usual token ids.

        The result is `word` itself if no merge was dropped, or if a part of the text has no token.
        """
        characters = self._characters.get(word)
        if characters is None:
            characters = self._characters[word] = "".join(self._texts[id] for id in word)
        before = int(math.log(1.0 - random.random()) / self._log_kept)
        if before >= len(characters) - len(word):  # the number of merges from characters to the usual tokens
            return word
        tokens = [self._ids.get(text) for text in self._merge(list(characters), before, random)]
        return word if None in tokens else [id for id in tokens if id is not None]

    def _merge(self, parts: list[str], before: int, random: Random) -> list[str]:
        """Return a list of the texts of a word's tokens after BPE merges, some of which are dropped.

        Args:
            parts: the word's characters.
            before: the number of merges that are kept before the first dropped one; later ones drop at random.
            random: the source of random numbers.
        """
        while True:
            candidates = [
                (-score, position)
                for position in range(len(parts) - 1)
                if (score := self._scores.get(parts[position] + parts[position + 1])) is not None
            ]
            for _, position in sorted(candidates):
                before -= 1
                is_kept = before >= 0 or (before < -1 and random.random() >= self._rate)
                if is_kept:
                    parts[position : position + 2] = [parts[position] + parts[position + 1]]
                    break
            else:
                return parts


class UnigramSampler(WordSampler):
    """A sampler that draws a word's division by the probabilities of a unigram model to the power of `alpha`."""

    def __init__(self, vocabulary: Vocabulary, alpha: float) -> None:
        self._texts, self._ids = _tokens_of_text(vocabulary)
        pieces = read_pieces(vocabulary.model_bytes)
        self._weights = {text: alpha * pieces[id].score for text, id in self._ids.items()}
        self._max_characters = max(map(len, self._ids), default=1)
        self._lattices: dict[tuple[int, ...], tuple[str, list[list[float]], list[list[int]]]] = {}

    def sample(self, word: tuple[int, ...], random: Random) -> Sequence[int]:
        """Return a list of token ids that spell the same text as `word`, which is given by its usual token ids.

        The tokens are drawn by their probabilities, from the end of the word to its start.
        """
        lattice = self._lattices.get(word)
        if lattice is None:
            lattice = self._lattices[word] = self._build(word)
        text, cumulated, starts = lattice
        end, tokens = len(text), list[int]()
        while end > 0:
            drawn = random.random() * cumulated[end][-1]
            start = next(start for limit, start in zip(cumulated[end], starts[end], strict=True) if drawn < limit)
            tokens.append(self._ids[text[start:end]])
            end = start
        return tokens[::-1]

    def _build(self, word: tuple[int, ...]) -> tuple[str, list[list[float]], list[list[int]]]:
        """Compute what `sample` needs of a word, from its usual token ids.

        Returns:
            The text, and two lists with an entry for each position in the text where a token may end, from 0. An entry
            of the second list has the possible starts of a token that ends there. An entry of the first list has the
            cumulative sums of the relative probabilities of these starts.
        """
        text = "".join(self._texts[id] for id in word)
        forward = [0.0] + [-math.inf] * len(text)
        cumulated, starts = [list[float]()], [list[int]()]
        for end in range(1, len(text) + 1):
            first = max(0, end - self._max_characters)
            found = [start for start in range(first, end) if text[start:end] in self._weights]
            values = [forward[start] + self._weights[text[start:end]] for start in found]
            greatest = max(values, default=-math.inf)
            shares = [math.exp(value - greatest) if value > -math.inf else 0.0 for value in values]
            if sum(shares) > 0.0:
                forward[end] = greatest + math.log(sum(shares))
            cumulated.append(list(accumulate(shares)))
            starts.append(found)
        return text, cumulated, starts


def _tokens_of_text(vocabulary: Vocabulary) -> tuple[dict[int, str], dict[str, int]]:
    """Return two dicts of a vocabulary's ordinary tokens: from id to text, and from text to id.

    Symbols, byte tokens and special tokens are left out.
    """
    pieces = read_pieces(vocabulary.model_bytes)
    texts = {id: piece.text for id, piece in enumerate(pieces) if piece.type is PieceType.NORMAL}
    return texts, {text: id for id, text in texts.items()}


def word_sampler(vocabulary: Vocabulary, *, bpe_dropout: float, unigram_alpha: float | None) -> WordSampler:
    """Return a sampler of tokens for the words of a vocabulary: unigram sampling or BPE-dropout.

    Unigram sampling is used if `unigram_alpha` is set.

    Raises:
        TransduceError: the vocabulary is of another kind than the sampling needs, or has tokens of several words.
    """
    model = vocabulary.model_bytes
    divides_words = not any(_SPACE in piece.text[1:] for piece in read_pieces(model) if piece.text.strip(_SPACE))
    is_unigram = bool(model) and not is_bpe(model) and not is_by_character(model)
    if bpe_dropout and not (is_bpe(model) and divides_words):
        raise TransduceError(
            f"`training.bpe_dropout` is {bpe_dropout:g}, but the vocabulary is no BPE whose tokens start at spaces: "
            "leave it out, or use `tokenizer.kind` = bpe."
        )
    if unigram_alpha is not None and not (is_unigram and divides_words):
        raise TransduceError(
            f"`training.unigram_alpha` is {unigram_alpha:g}, but the vocabulary is no unigram model whose tokens start "
            "at spaces: leave it out, or use `tokenizer.kind` = unigram."
        )
    return BpeDropout(vocabulary, bpe_dropout) if unigram_alpha is None else UnigramSampler(vocabulary, unigram_alpha)


class SentenceSampler:
    """A sampler that draws the tokens of each word of a sentence anew, so that a word is seen in several divisions."""

    def __init__(self, vocabulary: Vocabulary, sampler: WordSampler) -> None:
        texts, _ = _tokens_of_text(vocabulary)
        pieces = [vocabulary.token(id) for id in range(vocabulary.size)]
        self._is_text = np.array([id in texts for id in range(vocabulary.size)])
        self._starts_word = np.array([piece.startswith(_SPACE) for piece in pieces])
        self._sampler = sampler

    def sample(self, ids: NDArray[np.int64], random: Random) -> list[int]:
        """Return a list of a sentence's ids after drawing the tokens of each word anew.

        Symbols and special tokens stay.
        """
        tokens = list[int]()
        for word, is_text in self._words(ids):
            tokens += self._sampler.sample(word, random) if is_text else word
        return tokens

    def _words(self, ids: NDArray[np.int64]) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Yield the parts of a sentence's ids as pairs: a tuple of ids, and True if the ids are a word to draw anew.

        Other parts are symbols, bytes or special tokens.
        """
        is_text = self._is_text[ids]
        begins = self._starts_word[ids]
        begins[1:] |= is_text[1:] != is_text[:-1]
        if len(begins):
            begins[0] = True
        starts = np.flatnonzero(begins).tolist()
        row = ids.tolist()
        for start, stop in zip(starts, [*starts[1:], len(row)], strict=True):
            yield tuple(row[start:stop]), bool(is_text[start])


def sentence_samplers(
    vocabularies: tuple[Vocabulary, Vocabulary], *, bpe_dropout: float, unigram_alpha: float | None
) -> tuple[SentenceSampler, SentenceSampler]:
    """Return a pair of samplers, for source and target; one object for both if the vocabulary is shared.

    With `unigram_alpha`, they sample by a unigram model; None: by BPE-dropout at the rate `bpe_dropout`.

    Raises:
        TransduceError: a vocabulary is of another kind than the requested sampling needs.
    """
    samplers = {
        id(each): SentenceSampler(each, word_sampler(each, bpe_dropout=bpe_dropout, unigram_alpha=unigram_alpha))
        for each in vocabularies
    }
    return samplers[id(vocabularies[0])], samplers[id(vocabularies[1])]


class SampledPlan(ChangedPlan):
    """A plan of batches whose sentences get other tokens in each epoch.

    A sentence that would become too long keeps its usual tokens.
    """

    def __init__(
        self,
        plan: Plan[Batch],
        vocabularies: tuple[Vocabulary, Vocabulary],
        samplers: tuple[SentenceSampler, SentenceSampler],
        *,
        seed: int,
        growth_rate: float,
        max_tokens: int | None = None,
    ) -> None:
        """Create a plan.

        Args:
            plan: the plan of batches with the usual tokens.
            vocabularies: the source and the target vocabulary.
            samplers: the samplers of both sides.
            seed: the seed of all draws.
            growth_rate: the BPE-dropout rate from which `growth_limit` computes a sentence's maximum length; a longer
                result is discarded, and the sentence keeps its usual tokens.
            max_tokens: the largest number of tokens of a sentence with its end symbol; None: not bounded.
        """
        super().__init__(plan, self._sample_batch)
        self._samplers, self._seed = samplers, seed
        self._pads = vocabularies[0].pad_id, vocabularies[1].pad_id
        self._growth_rate, self._max_tokens = growth_rate, max_tokens

    def _sample_batch(self, batch: Batch, epoch: int) -> Batch:
        if not len(batch.indices):  # the batch has no row for this process
            return batch
        key = np.random.SeedSequence((self._seed, RandomPurpose.SUBWORD_SAMPLING, epoch))
        (base,) = key.generate_state(1, np.uint64).tolist()
        sides = []
        for side, rows in enumerate(batch.rows(self._pads)):
            randoms = (Random(base + 2 * index + side) for index in batch.indices.tolist())
            sides.append([self._sample(row, random, side) for row, random in zip(rows, randoms, strict=True)])
        return batch.with_rows(sides, self._pads)

    def _sample(self, row: NDArray[np.int64], random: Random, side: int) -> NDArray[np.int64]:
        tokens = self._samplers[side].sample(row, random)
        max_length = growth_limit(len(row), self._growth_rate)
        if len(tokens) > max_length or (self._max_tokens is not None and len(tokens) > self._max_tokens):
            return row
        return np.array(tokens, np.int64)


def grown_batch(batch: Batch, pad_ids: tuple[int, int], growth_rate: float, max_tokens: int | None = None) -> Batch:
    """Return an artificial batch whose sentences are as long as sampling can make them, to test the memory needed.

    The ids of each sentence are repeated up to that length.

    Args:
        batch: a batch with the usual tokens.
        pad_ids: the padding ids of source and target.
        growth_rate: the BPE-dropout rate from which `growth_limit` computes the length.
        max_tokens: the maximum length, except for sentences that are longer already; None: not bounded.
    """

    def grown_length(length: int) -> int:
        limit = growth_limit(length, growth_rate)
        return max(length, limit if max_tokens is None else min(limit, max_tokens))

    sides = [[np.resize(row, grown_length(len(row))) for row in rows] for rows in batch.rows(pad_ids)]
    return batch.with_rows(sides, pad_ids)
