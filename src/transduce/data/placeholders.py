"""Put placeholder tokens into training pairs, so that a model learns to copy them to the right position.

Placeholders stand for text that a translation must not change. A small share of the pairs of each epoch is changed:
placeholders replace words that translate each other, or stand between words. Word pairs come from IBM Model 1 in both
directions (Brown et al. 1993, "The Mathematics of Statistical Machine Translation"), learned from a sample of the
corpus in a few seconds.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transduce.data.batches import Batch, Corpus, RandomPurpose
from transduce.text.languages import is_unspaced_character, is_word_character
from transduce.text.vocabulary import Vocabulary

# --- lexicon ---


_MAX_LINKS = 6_000_000
"""Maximum number of token pairs, of a source and a target token of one sentence pair, that the lexicon learns from."""
_RANGE_PAIRS = 256
_ITERATIONS = 4
_MIN_PROBABILITY = 0.02  # word pairs below it are noise

Lexicon = Mapping[tuple[int, int], float]
"""The type of a lexicon: a dict from a pair (source id, target id) to the product of two translation probabilities.
They are that of the target token given the source token, and the reverse."""


def learn_lexicon(corpus: Corpus, sizes: tuple[int, int]) -> Lexicon:
    """Learn from a sample of the corpus which source and target tokens translate each other.

    The result is a dict from (source id, target id) to the product of both translation probabilities: of the target
    token given the source token, and the reverse. Token pairs with a low product are left out. The sample is the same
    at every call.

    Args:
        corpus: the corpus; each of its sentences ends with the end symbol, which is ignored.
        sizes: the sizes of the source and the target vocabulary.
    """
    source, target = corpus.read_ranges(_sample_ranges(corpus))
    lengths = source.lengths.astype(np.int64) - 1, target.lengths.astype(np.int64) - 1
    products = lengths[0] * lengths[1]
    kept = np.cumsum(products) <= _MAX_LINKS
    kept[0] = True
    counts = np.where(kept, products, 0)
    pair = np.repeat(np.arange(len(counts)), counts)
    position = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    from_position = source.offsets[pair] + position // np.maximum(lengths[1], 1)[pair]
    to_position = target.offsets[pair] + position % np.maximum(lengths[1], 1)[pair]
    keys = source.ids[from_position].astype(np.int64) * sizes[1] + target.ids[to_position]
    distinct, kind = np.unique(keys, return_inverse=True)
    if not len(distinct):
        return {}
    forward = _translation_probabilities(kind, to_position, distinct // sizes[1])
    backward = _translation_probabilities(kind, from_position, distinct % sizes[1])
    both = forward * backward
    chosen = np.flatnonzero(both >= _MIN_PROBABILITY)
    ids = zip((distinct[chosen] // sizes[1]).tolist(), (distinct[chosen] % sizes[1]).tolist(), strict=True)
    return dict(zip(ids, both[chosen].tolist(), strict=True))


def _sample_ranges(corpus: Corpus) -> list[tuple[int, int]]:
    """Return a list of evenly spaced ranges (start, stop) of sentence pairs, as many as the lexicon can learn from.

    Together they have about 6 million combinations of a source and a target token.
    """
    starts = range(0, corpus.pairs, _RANGE_PAIRS)
    step = len(starts)
    first = [(start, min(start + _RANGE_PAIRS, corpus.pairs)) for start in starts[:: max(1, step // 16)]]
    lengths = corpus.read_range_lengths(first)
    links = float((lengths[0].astype(np.float64) * lengths[1]).mean())
    max_ranges = max(1, int(1.1 * _MAX_LINKS / max(links, 1.0) / _RANGE_PAIRS))
    return [(start, min(start + _RANGE_PAIRS, corpus.pairs)) for start in starts[:: -(-len(starts) // max_ranges)]]


def _translation_probabilities(
    kind: NDArray[np.int64], position: NDArray[np.int64], given: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return IBM Model 1's probability of one token given the other, for K distinct token pairs, (K,).

    A link is a token of one side together with a token of the same sentence pair on the other side; there are n links.

    Args:
        kind: the index (below K) of the token pair of each link, (n,).
        position: the position in the corpus of the predicted token of each link, (n,).
        given: the id of the conditioning token of each distinct token pair, (K,).
    """
    probabilities = np.ones(len(given))
    for _ in range(_ITERATIONS):
        expected = probabilities[kind]
        expected /= np.bincount(position, expected)[position]
        counts = np.bincount(kind, expected)
        probabilities = counts / np.bincount(given, counts)[given]
    return probabilities


# --- words ---


_MIN_SCORE = 0.08
"""Minimum score of two words to count as translations of each other. The score is the sum of the lexicon's values of
their token pairs, divided by the number of tokens of the longer word."""


class _Words:
    """A splitter of the token ids of one side (source or target) into words.

    Each token of a script without spaces is a word.
    """

    def __init__(self, vocabulary: Vocabulary, tokens: Sequence[str]) -> None:
        pieces = [vocabulary.token(id) for id in range(vocabulary.size)]
        texts = [piece.replace("▁", "") for piece in pieces]
        special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id, *map(vocabulary.id, tokens)}
        self.is_word = np.array(
            [id not in special and any(map(is_word_character, text)) for id, text in enumerate(texts)]
        )
        self.is_unspaced = np.array([bool(text) and is_unspaced_character(text[0]) for text in texts])
        self.has_space = np.array([piece.startswith("▁") for piece in pieces])
        self.bare = np.arange(vocabulary.size)
        """An array by token id: for a token of a script without spaces, the id of the same token without its leading
        space; otherwise the id itself."""
        for id in np.flatnonzero(self.has_space & self.is_unspaced).tolist():
            without = vocabulary.id(texts[id])
            self.bare[id] = id if without == vocabulary.unk_id else without

    def spans(self, ids: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return a list with the range (start, stop) of token positions of each word in a sentence's ids.

        Punctuation and special tokens belong to no word.
        """
        is_word = self.is_word[ids]
        joins = ~self.has_space[ids] & ~self.is_unspaced[ids] & is_word
        spans: list[tuple[int, int]] = []
        for position in np.flatnonzero(is_word).tolist():
            previous = spans[-1] if spans else (0, -1)
            if joins[position] and previous[1] == position and not self.is_unspaced[ids[position - 1]]:
                spans[-1] = (previous[0], position + 1)
            else:
                spans.append((position, position + 1))
        return spans


class LinkedWords(NamedTuple):
    """Two words of a sentence pair that translate each other: a range (start, stop) of token positions on each side."""

    source: tuple[int, int]
    target: tuple[int, int]


class WordAligner:
    """An aligner that finds the words of tokenized sentence pairs that clearly translate each other."""

    def __init__(self, corpus: Corpus, vocabularies: tuple[Vocabulary, Vocabulary], tokens: Sequence[str]) -> None:
        """Learn the lexicon from a corpus; the vocabularies' placeholder `tokens` are not words."""
        source, target = vocabularies
        self._lexicon = learn_lexicon(corpus, (source.size, target.size))
        self.words = _Words(source, tokens), _Words(target, tokens)

    def pairs(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> list[LinkedWords]:
        """Return a list of the word pairs in which each word is the best translation of the other, in source order.

        Words without a clear translation are left out.

        Args:
            source: the source's token ids, without the end symbol.
            target: the target's token ids, without the end symbol.
        """
        sources, targets = self.words[0].spans(source), self.words[1].spans(target)
        if not sources or not targets:
            return []
        scores = np.zeros((len(sources), len(targets)))
        source_ids, target_ids = source.tolist(), target.tolist()
        for i, (start, stop) in enumerate(sources):
            for j, (begin, end) in enumerate(targets):
                total = sum(
                    self._lexicon.get((s, t), 0.0) for s in source_ids[start:stop] for t in target_ids[begin:end]
                )
                scores[i, j] = total / max(stop - start, end - begin)
        best_target, best_source = scores.argmax(axis=1), scores.argmax(axis=0)
        return [
            LinkedWords(sources[i], targets[j])
            for i, j in enumerate(best_target.tolist())
            if best_source[j] == i and scores[i, j] >= _MIN_SCORE
        ]


# --- masking ---


# Numbers of placeholders in a changed pair, and their probabilities.
_COUNTS, _COUNT_PROBABILITIES = (1, 2, 3, 4), (0.45, 0.3, 0.15, 0.1)
# What a placeholder does, and how often: it replaces a word pair, or is put before it, after it, on both sides of it
# (two placeholders), or at the start or the end of the text.
_OPERATIONS = ("replace", "before", "after", "around", "start", "end")
_OPERATION_PROBABILITIES = (0.45, 0.15, 0.15, 0.1, 0.05, 0.1)
MAX_GROWTH = 6
"""Maximum number of tokens by which placeholders lengthen a side of a pair; a longer result is discarded."""


class _Edit(NamedTuple):
    """A replacement of the tokens from position start to stop of one side of a pair by placeholder tokens.

    If stop equals start, the placeholders are inserted.
    """

    start: int
    stop: int
    placeholders: tuple[int, ...]
    """The numbers of the placeholders that are put in, in order."""


class PlaceholderMasker:
    """A masker that puts placeholder tokens into some pairs of a batch, so that a model learns to copy them.

    The seed, the epoch and the pair's index determine where.
    """

    def __init__(
        self,
        corpus: Corpus,
        vocabularies: tuple[Vocabulary, Vocabulary],
        tokens: Sequence[str],
        *,
        rate: float,
        seed: int,
    ) -> None:
        """Learn from the corpus which words translate each other, and how long its longest sentences are.

        Args:
            corpus: the training corpus.
            vocabularies: the source and the target vocabulary.
            tokens: the placeholder tokens, which both vocabularies have.
            rate: the share of pairs that are changed in an epoch.
            seed: the seed of all choices.
        """
        source, target = vocabularies
        self._rate, self._seed = rate, seed
        self._aligner = WordAligner(corpus, vocabularies, tokens)
        self._words = self._aligner.words
        self._ids = [source.id(token) for token in tokens], [target.id(token) for token in tokens]
        self._pads = source.pad_id, target.pad_id
        self._max_lengths = self._max_lengths_of(corpus)

    @staticmethod
    def _max_lengths_of(corpus: Corpus) -> tuple[int, int]:
        """Return the numbers of tokens of the corpus's longest source and longest target, which limit changed pairs."""
        max_lengths = [0, 0]
        for start in range(0, corpus.pairs, 1 << 16):
            for side, lengths in enumerate(corpus.read_range_lengths([(start, min(start + (1 << 16), corpus.pairs))])):
                max_lengths[side] = max(max_lengths[side], int(lengths.max()))
        return max_lengths[0], max_lengths[1]

    def mask(self, batch: Batch, epoch: int) -> Batch:
        """Return the batch with placeholder tokens in place of words, or between words, in a random share of its pairs.

        If no pair is chosen, the batch itself is returned.
        """
        chosen = np.flatnonzero(_uniform(batch.indices, self._seed, epoch) < self._rate)
        if not len(chosen):
            return batch
        sources, targets = batch.rows(self._pads)
        for row in chosen.tolist():
            key = np.random.SeedSequence((self._seed, RandomPurpose.PLACEHOLDERS, epoch, int(batch.indices[row])))
            edited = self._edit(sources[row], targets[row], np.random.Generator(np.random.Philox(key)))
            sources[row], targets[row] = edited
        return batch.with_rows((sources, targets), self._pads)

    def _edit(
        self, source: NDArray[np.int64], target: NDArray[np.int64], generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a pair's source ids and target ids with placeholders at random, corresponding positions.

        The number of placeholders is drawn, usually one to four; there are fewer if too few words are aligned. The ids
        stay unchanged if a side would get too many tokens.
        """
        pairs = self._aligner.pairs(source[:-1], target[:-1])
        count = int(generator.choice(_COUNTS, p=_COUNT_PROBABILITIES))
        numbers = generator.permutation(len(self._ids[0])).tolist()
        order = generator.permutation(len(pairs)).tolist()
        edits: list[tuple[_Edit, _Edit]] = []
        while count > 0:
            operation = str(generator.choice(_OPERATIONS, p=_OPERATION_PROBABILITIES))
            count -= 2 if operation == "around" else 1
            if operation in ("start", "end"):
                positions = _edge(self._words, (source, target), operation, generator)
                number = (numbers.pop(),)
                edits.append((_Edit(positions[0], positions[0], number), _Edit(positions[1], positions[1], number)))
            elif order:
                edits += _edits_of(pairs[order.pop()], operation, numbers)
        edited = self._apply(source, [one for one, _ in edits], 0), self._apply(target, [one for _, one in edits], 1)
        fits = all(
            len(new) <= max_length and len(new) <= len(old) + MAX_GROWTH
            for new, old, max_length in zip(edited, (source, target), self._max_lengths, strict=True)
        )
        return edited if fits else (source, target)

    def _apply(self, ids: NDArray[np.int64], edits: Sequence[_Edit], side: int) -> NDArray[np.int64]:
        """Return the ids of one side of a pair (0: source, 1: target) after its edits, as an array.

        In scripts without spaces, the first token loses its space mark if a placeholder comes before it.
        """
        parts: list[NDArray[np.int64]] = []
        position = 0
        for edit in sorted(edits):
            parts += [ids[position : edit.start], np.array([self._ids[side][n] for n in edit.placeholders], np.int64)]
            position = edit.stop
        rest = ids[position:]
        if position == 0 and edits:
            rest = rest.copy()
            rest[0] = self._words[side].bare[rest[0]]
        return np.concatenate([*parts, rest])


def _edits_of(pair: LinkedWords, operation: str, numbers: list[int]) -> list[tuple[_Edit, _Edit]]:
    """Return a list of edits, each a pair for source and target, that put placeholders at an aligned word pair.

    Args:
        pair: the word pair.
        operation: `replace`, `before`, `after` or `around`: where the placeholders stand.
        numbers: the numbers of available placeholders, which are taken from the end.
    """
    (start, stop), (begin, end) = pair
    before, after = LinkedWords((start, start), (begin, begin)), LinkedWords((stop, stop), (end, end))
    ranges = {"replace": [pair], "before": [before], "after": [after], "around": [before, after]}[operation]
    edits = []
    for source, target in ranges:
        number = (numbers.pop(),)
        edits.append((_Edit(*source, number), _Edit(*target, number)))
    return edits


def _edge(
    words: tuple[_Words, _Words],
    sides: tuple[NDArray[np.int64], NDArray[np.int64]],
    operation: str,
    generator: np.random.Generator,
) -> tuple[int, int]:
    """Return a pair of positions, in source and target, to insert a placeholder at the start or end of the sentence.

    At the end, the placeholder comes before or after the final punctuation, at random; the end symbol stays last.

    Args:
        words: the splitters of source and target into words.
        sides: the ids of source and target.
        operation: `start` or `end`.
        generator: the source of random numbers.
    """
    if operation == "start":
        return 0, 0
    before_punctuation = generator.random() < 0.5
    positions = []
    for side, ids in zip(words, sides, strict=True):
        spans = side.spans(ids[:-1])
        positions.append(spans[-1][1] if before_punctuation and spans else len(ids) - 1)
    return positions[0], positions[1]


def _uniform(indices: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.float64]:
    """Return an array with a number in [0, 1) for each pair index: a hash (splitmix64) of seed, epoch and index."""
    base = np.random.SeedSequence((seed, RandomPurpose.PLACEHOLDERS, epoch)).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        state = base + (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    uniform: NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) / 2.0**53
    return uniform
