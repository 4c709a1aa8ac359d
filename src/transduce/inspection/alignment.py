"""Align words that translate each other, by cross-attention.

The mean of all heads aligns poorly: heads have different functions, a word's neighbors share its attention, and some
words (articles) have no counterpart. So heads are *chosen* with sentences whose alignment is known. A first logistic
regression learns weights for two kinds of features: the heads' attention at and next to a pair of words, and how often
these words are linked in other known alignments. A second regression adds the first one's probabilities for the pairs
around a pair. A hundred known alignments are enough.

Without known alignments, word statistics of sentence pairs help: how often words translate each other, by IBM's model 1
(Brown et al. 1993) in both directions. IBM's model takes all alignments as equally likely at first; here, attention
says how likely each is.

Without either, all heads are averaged. Two words are then linked if each has the other's greatest attention, or if one
has more than half of the other's.
Shapes: N layers, H heads, T target words, S source words, F features.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import tee
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from transduce.argument_checks import as_path
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import Documents, check_evaluation_mode, cut_batches, pad, pair_histories
from transduce.inference.scoring import MAX_TOKENS, as_pairs
from transduce.inference.translator import Translator
from transduce.inspection.attention import attention_between_words
from transduce.model.attention import AttentionTrace
from transduce.text.files import compose
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span, encode_within_words, locate_words, overlap, split_words, token_spans

# --- features and regression ---
# Features of word pairs from attention, and the logistic regression that turns them into link probabilities.
# Shapes: C heads of all layers, T target words, S source words, F features.


Matrix = npt.NDArray[Any]
_EPSILON = 1e-3  # added in logarithms and divisors
_NEVER = (0, 0)
_PENALTY = 3.0  # L2 regularization of the weights of standardized features
_MAX_ITERATIONS = 25
_BESIDE = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
_AROUND = tuple((target, source) for target in (-1, 0, 1) for source in (-1, 0, 1))


class WordMaps(NamedTuple):
    """Cross-attention between the words of one sentence pair, with a matrix for each head of the decoder's layers."""

    heads: Matrix
    """Attention of each target word to each source word, (layers × heads, target words, source words)."""
    nowhere: Matrix
    """Attention of target words to the end symbol, (layers × heads, target words, 1); high if a word has no
    counterpart.
    """

    def only(self, heads: Matrix) -> "WordMaps":
        """Return a `WordMaps` of the heads with these indices; head h of layer n has index n × heads per layer + h."""
        return WordMaps(self.heads[heads], self.nowhere[heads])


def head_features(maps: WordMaps) -> Matrix:
    """Return features of each word pair from the attention of every head, (features, target words, source words).

    The attention of adjacent word pairs is included. Each head contributes the attention that a target word pays, and
    its share of the attention that a source word receives. Further features are the mean of all heads, the attention to
    the end symbol, and the distance of the words' relative positions.
    """
    heads = np.concatenate([maps.heads, maps.heads.mean(axis=0, keepdims=True)])
    attention = np.concatenate([heads, heads / (heads.sum(axis=1, keepdims=True) + _EPSILON)])
    adjacent = _shifted(attention, _BESIDE)
    targets, sources = maps.heads.shape[1:]
    positions = [(np.arange(count) + 0.5) / max(count, 1) for count in (targets, sources)]
    distance = np.abs(np.subtract.outer(*positions))
    nowhere = np.broadcast_to(maps.nowhere, maps.heads.shape)
    return np.concatenate(
        [adjacent, np.log(adjacent + _EPSILON), nowhere, distance[None], np.ones((1, targets, sources))]
    )


def neighbor_features(answer: Matrix) -> Matrix:
    """Return features of each word pair from the link probabilities of all word pairs, (features, T, S).

    `answer`, (T, S), has the probabilities that a first regression computed. The features describe the pairs around a
    pair, and those that share one of its words, so that a second regression can correct the first.
    """
    row_normalized = answer / (answer.sum(axis=1, keepdims=True) + _EPSILON)
    column_normalized = answer / (answer.sum(axis=0) + _EPSILON)
    around = [_shifted(matrix[None], _AROUND) for matrix in (answer, row_normalized, column_normalized)]
    strongest_others = np.stack([_strongest_other(answer, 0), _strongest_other(answer, 1)])
    logarithms = [np.log(each + _EPSILON) for each in (around[0], strongest_others)]
    return np.concatenate([*around, logarithms[0], strongest_others, logarithms[1]])


_Counts = dict[str, tuple[int, int]]
"""Dict: word → (number of its occurrences that are linked to another word, number of all its occurrences)."""


class LinkCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of how often words are linked in known alignments, which give features to predict links of other pairs."""

    sources: _Counts
    """Dict: source word → (number of its linked occurrences, number of all its occurrences)."""
    targets: _Counts
    """Dict: target word → (number of its linked occurrences, number of all its occurrences)."""
    pairs: dict[str, _Counts]
    """Dict: source word → target word → (times linked to each other, times in one sentence pair)."""

    def add(self, sources: Sequence[str], targets: Sequence[str], links: Matrix) -> None:
        """Add the words of one sentence pair to the counts, with its links as a matrix of 1 and 0, (T, S)."""
        cells = [(self.sources, word, each.any()) for word, each in zip(sources, links.T, strict=True)]
        cells += [(self.targets, word, each.any()) for word, each in zip(targets, links, strict=True)]
        for source, column in zip(sources, links.T, strict=True):
            table = self.pairs.setdefault(source, {})
            cells += [(table, target, link) for target, link in zip(targets, column, strict=True)]
        for table, word, is_linked in cells:
            linked, total = table.get(word, (0, 0))
            table[word] = linked + bool(is_linked), total + 1

    def table(self, sources: Sequence[str], targets: Sequence[str]) -> Matrix:
        """Return two matrices of counts for the words of a sentence pair, (2, target words + 1, source words + 1).

        The first matrix counts links, and the second counts occurrences:

        * Entry (t, s) counts how often target word t and source word s were linked, and how often they occurred in one
          sentence pair.
        * The last column counts the occurrences of each target word with any link, and all its occurrences.
        * The last row counts the occurrences of each source word with any link, and all its occurrences.
        * The last entry of the last row is 0, and so are the counts of words that were never counted.
        """
        pairs = [self.pairs.get(source, {}) for source in sources]
        rows = [[pair.get(word, _NEVER) for pair in pairs] + [self.targets.get(word, _NEVER)] for word in targets]
        last = [*(self.sources.get(word, _NEVER) for word in sources), _NEVER]
        return np.array([*rows, last], dtype=np.float64).transpose(2, 0, 1)


def lexical_features(counts: Matrix) -> Matrix:
    """Return features of each word pair from how often its words are linked in other sentence pairs.

    The shape is (features, target words, source words).

    Args:
        counts: the result of `LinkCounts.table`, without the links of the sentence pair itself.
    """
    linked, total = counts[:, :-1, :-1]
    rate = (linked + 0.3) / (total + 2.0)
    partners = (counts[0] + 0.8) / (counts[1] + 1.0)  # the share of a word's occurrences that have a partner
    normalized = [rate / (rate.sum(axis=axis, keepdims=True) + _EPSILON) for axis in (1, 0)]
    plain = np.stack([rate, *normalized, *np.broadcast_arrays(partners[:-1, -1:], partners[-1:, :-1])])
    evidence = np.stack([np.log(linked + 0.5), np.log(total - linked + 0.5), total == 0])
    return np.concatenate([plain, np.log(plain + _EPSILON), evidence])


def _shifted(maps: Matrix, offsets: Iterable[tuple[int, int]]) -> Matrix:
    """Return copies of matrices, shifted by each of the offsets, (offsets × features, T, S).

    For the offset (i, j), with i and j from -1 to 1, entry (t, s) of a copy is entry (t + i, s + j) of the matrix, or 0
    outside of it.

    Args:
        maps: the matrices, (features, T, S).
        offsets: pairs of a target offset and a source offset.
    """
    targets, sources = maps.shape[1:]
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1)))
    return np.concatenate([padded[:, 1 + t : 1 + t + targets, 1 + s : 1 + s + sources] for t, s in offsets])


def _strongest_other(answer: Matrix, axis: int) -> Matrix:
    """Return, for each entry of a matrix, the greatest of the other entries along an axis; 0 without others."""
    if answer.shape[axis] < 2:
        return np.zeros_like(answer)
    ordered = np.sort(answer, axis=axis)
    best, second = np.take(ordered, [-1], axis=axis), np.take(ordered, [-2], axis=axis)
    return np.where(answer == best, second, best)


def probability(features: Matrix, weights: Matrix) -> Matrix:
    """Return the link probability of each word pair: the logistic function of the weighted sum of its features.

    The features are (features, target words, source words), and the weights (features,).
    """
    return _logistic(np.einsum("fts,f->ts", features, weights))


def _logistic(values: Matrix) -> Matrix:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -30.0, 30.0))))


def fit_logistic(features: Sequence[Matrix], links: Sequence[Matrix]) -> Matrix:
    """Fit a logistic regression by Newton's method.

    Args:
        features: features of the word pairs of each sentence pair, (features, target words, source words).
        links: 1 if two words translate each other, else 0, (target words, source words), for each sentence pair.

    Returns:
        The weights, (features,).
    """
    x = np.concatenate([matrix.reshape(len(matrix), -1) for matrix in features], axis=1).T  # (words² of all, F)
    y = np.concatenate([matrix.ravel() for matrix in links])
    scale = x.std(axis=0) + 1e-6
    x = x / scale
    weights = np.zeros(x.shape[1])
    for _ in range(_MAX_ITERATIONS):
        predicted = _logistic(x @ weights)
        gradient = x.T @ (y - predicted) - _PENALTY * weights
        curvature = (x * (predicted * (1.0 - predicted))[:, None]).T @ x + _PENALTY * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-6:
            break
    return np.asarray(weights / scale)


# --- attention between words ---
# Compute attention between the words of sentence pairs, head by head.
# Shapes: B sentences, C = N layers × H heads; S source and T target are *words* in maps and tokens in model inputs.


# Limits of one forward pass, which keeps all attention weights as float32.
_MAX_PAIRS, _MAX_WEIGHTS = 32, 2**25
_SHOWN = 40


class SplitSentencePair(msgspec.Struct, frozen=True):
    """A sentence and its translation, with the character spans of the words to align in both."""

    source: str
    target: str
    source_words: tuple[Span, ...]
    target_words: tuple[Span, ...]
    cut_source: bool = False
    """True to split source tokens that span several words at the word boundaries, which suits words marked by hand.

    If False, each word of a token that spans several gets the token's whole attention.
    """
    cut_target: bool = False
    """True to split target tokens that span several words at the word boundaries."""
    continues: bool = False
    """True if the pair continues the document of the pair before, so that a model can read that as context."""


def word_pair(
    source: str, target: str, source_words: Sequence[str] | None = None, target_words: Sequence[str] | None = None
) -> SplitSentencePair:
    """Return a `SplitSentencePair` of a sentence and its translation, to align its words.

    If no words are passed, `split_words` finds the words: it splits at spaces, and into characters in scripts without
    spaces.

    Raises:
        TransduceError: a passed word does not occur in its sentence.
    """
    return SplitSentencePair(
        source,
        target,
        tuple(split_words(source) if source_words is None else locate_words(source_words, source)),
        tuple(split_words(target) if target_words is None else locate_words(target_words, target)),
        cut_source=source_words is not None,
        cut_target=target_words is not None,
    )


class _AlignmentSide(NamedTuple):
    """One side (source or target) of a sentence pair to align: its token ids, and which tokens belong to each word."""

    ids: list[int]
    """Token ids of the text with the end symbol and other special tokens, after those of the document context."""
    spelling: Matrix
    """Matrix of 1 where a token spells (part of) a word, and 0 elsewhere, (words, tokens)."""


def word_maps(translator: Translator, pairs: Iterable[SplitSentencePair]) -> Iterator[WordMaps]:
    """Yield the cross-attention between words, as a `WordMaps`, for each sentence pair, in order.

    Raises:
        TransduceError: a text has too many tokens for the memory that attention needs, or the model is in training
            mode.
    """
    heads = translator.model.config.num_decoder_layers * translator.model.config.num_heads
    sides, limits = _tokenized(translator, pairs), (_MAX_WEIGHTS // heads, _MAX_PAIRS)
    for batch in cut_batches(sides, lambda pair: (len(pair[0].ids), len(pair[1].ids)), *limits, size=prod):
        yield from _maps_of(translator, batch)


def _tokenized(
    translator: Translator, pairs: Iterable[SplitSentencePair]
) -> Iterator[tuple[_AlignmentSide, _AlignmentSide]]:
    """Yield the source and the target of each pair in token ids, with the document context that the model reads."""
    tokenizer = translator.tokenizer
    pairs, same = tee(pairs)
    texts = ((pair.source, pair.target, pair.continues) for pair in same)
    for pair, history in zip(pairs, pair_histories(translator.document_memory(), tokenizer, texts), strict=True):
        source = _tokenize(tokenizer.source, pair.source, pair.source_words, history.source, cut=pair.cut_source)
        target = _tokenize(tokenizer.target, pair.target, pair.target_words, history.target, cut=pair.cut_target)
        for side, text in ((source, pair.source), (target, pair.target)):
            if len(side.ids) > MAX_TOKENS:
                raise TransduceError(
                    f"A text must have at most {MAX_TOKENS:,} tokens for its words to be aligned, but "
                    f"“{text[:_SHOWN]}…” has {len(side.ids):,}: split it into sentences."
                )
        yield source, target


def _maps_of(translator: Translator, sides: Sequence[tuple[_AlignmentSide, _AlignmentSide]]) -> list[WordMaps]:
    """Return a list with the cross-attention between words of each sentence pair of a batch, from one forward pass."""
    check_evaluation_mode(translator.model)
    config = translator.model.config
    sources, targets = zip(*sides, strict=True)
    trace = AttentionTrace()
    with torch.inference_mode():
        source_ids = pad([side.ids for side in sources], config.pad_id, translator.device)
        memory, mask = translator.model.encode(source_ids)
        inputs = [[config.start_id, *side.ids[:-1]] for side in targets]
        translator.model.decode(pad(inputs, config.pad_id, translator.device), memory, mask, trace=trace)
    weights = torch.stack(trace.of_memory(), dim=1).flatten(1, 2).float().cpu().numpy()  # (B, C, T, S)
    maps = []
    for example, source, target in zip(weights, sources, targets, strict=True):
        own = example[:, : len(target.ids), : len(source.ids)]
        heads = attention_between_words(own, target.spelling, source.spelling)
        maps.append(WordMaps(heads, attention_between_words(own[:, :, -1:], target.spelling, np.ones((1, 1)))))
    return maps


def _tokenize(
    vocabulary: Vocabulary, text: str, words: Sequence[Span], history: Sequence[int], *, cut: bool
) -> _AlignmentSide:
    normalized = vocabulary.normalize(text)
    if normalized != text:
        words = [Span(*(len(vocabulary.normalize(text[:offset])) for offset in word)) for word in words]
    ids = encode_within_words(vocabulary, normalized, words) if cut else vocabulary.encode(normalized)
    spells = (overlap(words, token_spans(vocabulary.token_texts(ids), normalized)) > 0).astype(np.float64)
    # The document context and special tokens around the text, such as the end symbol, belong to no word.
    around = (len(history) + len(vocabulary.before), len(vocabulary.after))
    return _AlignmentSide([*history, *vocabulary.with_special_tokens(ids)], np.pad(spells, ((0, 0), around)))


# --- choosing heads and aligning ---

Links = frozenset[tuple[int, int]]
THRESHOLD = 0.45
_MIN_KNOWN = 10
_MAX_HEADS = 16  # further heads cost time and hardly help

# Constants of word statistics, chosen on the dev part of the demonstration's grammar.
_PAIRS_FOR_HEADS = 1000
_ROUNDS = 4
"""Rounds of expectation maximization; with more, rare words become translations of all words near them."""
_NOTHING = (0.05, 0.005)
"""Prior weights, relative to attention, that a target word has no counterpart, and that a source word has none."""
_SMOOTHING = 0.2
_LINKED = (0.6, 0.4)
"""Two thresholds: words are linked if the target word comes from the source word with a probability above the first, or
the source word from the target word with one above the second.
"""
_MIN_CHANCE = 1e-5


class ReferenceAlignment(msgspec.Struct, frozen=True):
    """A sentence pair whose word alignment is known, such as one made by hand."""

    pair: SplitSentencePair
    links: Links
    """Pairs (source word, target word) of the indices of aligned words, both from 0."""


class _ChosenHeads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Cross-attention heads that were chosen for one model, to align words."""

    num_layers: int
    """Number of decoder layers of the model, to check that the heads fit it."""
    num_heads: int
    """Number of attention heads per layer of the model."""
    chosen: tuple[tuple[int, int], ...]
    """Pairs (layer, head), from 0, of the cross-attention heads that are used; in `HeadWeights`, best aligner first."""


class WordStatistics(_ChosenHeads, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Heads and word translation probabilities that `learn_word_statistics` chose for one model, to align words.

    The mean attention of the heads is used.
    """

    targets: dict[str, dict[str, float]]
    """Dict: source word → target word → probability given the source word; "" stands for no source word."""
    sources: dict[str, dict[str, float]]
    """Dict: target word → source word → probability given the target word; "" stands for no target word."""


class HeadWeights(_ChosenHeads, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The heads and regression weights that `choose_heads` learned for one model, to align words."""

    first: tuple[float, ...]
    """Weights of the logistic regression that first predicts links, one for each feature of a word pair."""
    second: tuple[float, ...]
    """Weights of the logistic regression that then corrects the predicted links, by those of neighboring word pairs."""
    words: LinkCounts | None = None
    """Counts of linked words in the known alignments; None in files of older versions, which lack them."""


def choose_heads(translator: Translator, known: Sequence[ReferenceAlignment]) -> HeadWeights:
    """Learn `HeadWeights` from known alignments: weights of cross-attention heads, and which words are linked.

    Args:
        translator: a translator with any Transformer that has a decoder.
        known: at least ten known alignments; a hundred work well, and five hundred still better.

    Raises:
        TransduceError: there are too few alignments, a link has a word that does not exist, or a text is too long.
    """
    if len(known) < _MIN_KNOWN:
        raise TransduceError(
            f"Choosing heads needs at least {_MIN_KNOWN} known alignments, but there are {len(known)}: pass more."
        )
    config = translator.model.config
    links = [_link_matrix(item) for item in known]
    maps = list(word_maps(translator, [item.pair for item in known]))
    chosen = np.argsort(head_errors(maps, known), kind="stable")[:_MAX_HEADS]
    words = [(_texts(item.pair, "source"), _texts(item.pair, "target")) for item in known]
    counts, features = LinkCounts({}, {}, {}), list[Matrix]()
    for sides, link in zip(words, links, strict=True):
        counts.add(*sides, link)
    for item, sides, link in zip(maps, words, links, strict=True):
        own = LinkCounts({}, {}, {})
        own.add(*sides, link)
        of_others = lexical_features(counts.table(*sides) - own.table(*sides))
        features.append(np.concatenate([head_features(item.only(chosen)), of_others]))
    first = fit_logistic(features, links)
    # Cross-validate the inputs of the second regression: each half gets probabilities learned from the other half.
    half = len(known) // 2
    half_weights = (fit_logistic(features[half:], links[half:]), fit_logistic(features[:half], links[:half]))
    probabilities = [probability(item, half_weights[number >= half]) for number, item in enumerate(features)]
    second = fit_logistic(list(map(_second_features, features, probabilities)), links)
    return HeadWeights(
        num_layers=config.num_decoder_layers,
        num_heads=config.num_heads,
        chosen=_by_layer(chosen, config.num_heads),
        first=tuple(first.tolist()),
        second=tuple(second.tolist()),
        words=counts,
    )


def learn_word_statistics(translator: Translator, pairs: Sequence[SplitSentencePair]) -> WordStatistics:
    """Learn `WordStatistics` (heads that align, and translations of words) from pairs without known alignments.

    Each word of one side is generated by a word of the other side, or by none. Its probability is the product of the
    attention between the two words and their translation probability. Expectation maximization finds the translation
    probabilities in both directions. The layer is chosen whose heads agree most with the links of a first round, for
    which the heads of all layers are averaged.

    Args:
        translator: a translator with cross-attention.
        pairs: sentence pairs, such as the training text; a thousand help, and 5,000 are hardly better than 3,000.

    Raises:
        TransduceError: there are too few pairs, or a text is too long.
    """
    if len(pairs) < _MIN_KNOWN:
        raise TransduceError(
            f"Word statistics need at least {_MIN_KNOWN} sentence pairs, but there are {len(pairs)}: pass more."
        )
    few = list(pairs[:_PAIRS_FOR_HEADS])
    maps = list(word_maps(translator, few))
    sharpness = np.mean([each.heads.max(axis=-1, initial=0.0).mean(axis=-1) ** 2 for each in maps], axis=0)  # (C,)
    means = [np.tensordot(sharpness / sharpness.sum(), each.heads, 1) for each in maps]
    links = [_link_sides(*sides) for sides in _fit_statistics(few, means)[2]]
    agreement = np.sum([_agreement(link, each.heads) for link, each in zip(links, maps, strict=True)], axis=0)  # (C,)
    config = translator.model.config
    heads_per_layer = config.num_heads if config.kind == "transformer" else 1
    layer = int(agreement.reshape(-1, heads_per_layer).mean(axis=1).argmax())
    chosen = np.arange(layer * heads_per_layer, (layer + 1) * heads_per_layer)
    attention = [each.heads[chosen].mean(axis=0) for each in word_maps(translator, pairs)]
    targets, sources, _ = _fit_statistics(pairs, attention)
    return WordStatistics(
        num_layers=config.num_decoder_layers,
        num_heads=config.num_heads,
        chosen=_by_layer(chosen, heads_per_layer),
        targets=targets,
        sources=sources,
    )


def _by_layer(heads: Matrix, heads_per_layer: int) -> tuple[tuple[int, int], ...]:
    return tuple(divmod(head, heads_per_layer) for head in heads.tolist())


_Table = dict[str, dict[str, float]]


def _agreement(links: Matrix, heads: Matrix) -> Matrix:
    """Return, (heads,), how many of the links (1 or 0) of a sentence pair each head finds.

    A head links each source word to the target word that attends to it most. `links` is (target words, source words),
    and `heads` is (heads, target words, source words).
    """
    best = heads.argmax(axis=1)  # (C, S)
    return np.asarray(links[best, np.arange(links.shape[1])].sum(axis=1))


def _fit_statistics(
    pairs: Sequence[SplitSentencePair], attention: Sequence[Matrix]
) -> tuple[_Table, _Table, list[tuple[Matrix, Matrix]]]:
    """Learn dicts source word → target word → probability and vice versa, and return these and the posteriors of links.

    The posteriors are, for each pair, (T, 1 + S) and (S, 1 + T), with column 0 for no counterpart.

    Args:
        pairs: sentence pairs.
        attention: the attention of each target word to each source word, (T, S) for each pair.
    """
    sources, targets = ([_texts(pair, side) for pair in pairs] for side in ("source", "target"))
    priors = [_priors(each) for each in attention]
    to_targets, by_target = _expectation_maximization(sources, targets, [prior for prior, _ in priors])
    to_sources, by_source = _expectation_maximization(targets, sources, [prior for _, prior in priors])
    return to_targets, to_sources, list(zip(by_target, by_source, strict=True))


def _texts(pair: SplitSentencePair, side: Literal["source", "target"]) -> list[str]:
    """Return the words of the source or target of a sentence pair as a list of texts in canonical composition (NFC)."""
    text, spans = (pair.source, pair.source_words) if side == "source" else (pair.target, pair.target_words)
    return [compose(text[slice(*span)]) for span in spans]


def _priors(attention: Matrix) -> tuple[Matrix, Matrix]:
    """Return two matrices of prior probabilities, that a word was generated by a word of the other side.

    The matrices are for target words, (target words, 1 + source words), and for source words, (source words, 1 + target
    words). Column 0 is the probability that no word generated the word. The others are proportional to the `attention`,
    (T, S), of target words, and to the attention that source words receive.
    """
    received = (attention / (attention.sum(axis=0) + 1e-9)).T
    priors = []
    for weights, nothing in ((attention, _NOTHING[0]), (received, _NOTHING[1])):
        prior = np.concatenate([np.full((len(weights), 1), nothing), weights + _SMOOTHING], axis=1)
        priors.append(prior / prior.sum(axis=1, keepdims=True))
    return priors[0], priors[1]


def _expectation_maximization(
    givens: Sequence[Sequence[str]], words: Sequence[Sequence[str]], priors: Sequence[Matrix]
) -> tuple[_Table, list[Matrix]]:
    """Learn which words generate which, and return probabilities as a dict and as a matrix for each sentence pair.

    The dict maps a given word, and then a generated word, to the probability of the second given the first. The given
    word "" stands for no word. The matrices, (words, 1 + givens), have the posterior that each given word generated
    each word; column 0 is for no word.

    Args:
        givens: for each sentence pair, the words that generate.
        words: for each sentence pair, the words that are generated.
        priors: for each pair, the prior probability that each given word generated each word, (words, 1 + givens).
    """
    numbers: dict[tuple[str, str], int] = {}
    cells = [
        numbers.setdefault((given, word), len(numbers))
        for of_givens, of_words in zip(givens, words, strict=True)
        for word in of_words
        for given in ("", *of_givens)
    ]
    names: dict[str, int] = {}
    owners = np.array([names.setdefault(given, len(names)) for given, _ in numbers], dtype=np.int64)
    counts = [1 + len(of_givens) for of_givens, of_words in zip(givens, words, strict=True) for _ in of_words]
    rows, index = np.repeat(np.arange(len(counts)), counts), np.array(cells, dtype=np.int64)
    prior = np.concatenate([each.ravel() for each in priors])
    chances, posterior = np.ones(len(numbers)), prior
    for _ in range(_ROUNDS):
        posterior = chances[index] * prior
        posterior /= np.bincount(rows, posterior, minlength=len(counts))[rows]
        expected = np.bincount(index, posterior, minlength=len(numbers))
        chances = expected / np.maximum(np.bincount(owners, expected, minlength=len(names))[owners], 1e-12)
    table: _Table = {}
    for (given, word), chance in zip(numbers, chances.tolist(), strict=True):
        if chance >= _MIN_CHANCE:
            table.setdefault(given, {})[word] = round(chance, 6)
    ends = np.cumsum([each.size for each in priors])[:-1]
    shapes = [each.shape for each in priors]
    return table, [part.reshape(shape) for part, shape in zip(np.split(posterior, ends), shapes, strict=True)]


def _posterior(table: _Table, givens: Sequence[str], words: Sequence[str], prior: Matrix) -> Matrix:
    """Return the probability that each given word generated each word of a sentence, (words, 1 + givens).

    Column 0 is the probability that no given word generated the word. `table` is the dict of
    `_expectation_maximization`, and `prior` has the prior probabilities of the same shape.
    """
    chances = np.array([[table.get(given, {}).get(word, 0.0) for given in ("", *givens)] for word in words])
    posterior = (chances.reshape(prior.shape) + _MIN_CHANCE) * prior
    return np.asarray(posterior / posterior.sum(axis=1, keepdims=True))


def _link_sides(by_target: Matrix, by_source: Matrix) -> Matrix:
    """Return the links of a sentence pair, bool, (T, S): True if one word comes from the other with a high probability.

    `by_target`, (T, 1 + S), has the probabilities that a target word comes from no source word (column 0), or from
    each. `by_source`, (S, 1 + T), has the same for source words.
    """
    return np.asarray((by_target[:, 1:] > _LINKED[0]) | (_LINKED[1] < by_source[:, 1:].T))


def _link_statistics(maps: WordMaps, pair: SplitSentencePair, statistics: WordStatistics) -> Matrix:
    """Return the links of a sentence pair by word statistics and attention, bool, (target words, source words)."""
    if not maps.heads.size:
        return np.zeros(maps.heads.shape[1:], dtype=bool)
    per_layer = len(maps.heads) // statistics.num_layers if len(maps.heads) > 1 else 1
    chosen = [layer * per_layer + head for layer, head in statistics.chosen]
    sources, targets = _texts(pair, "source"), _texts(pair, "target")
    by_target, by_source = _priors(maps.heads[chosen].mean(axis=0))
    return _link_sides(
        _posterior(statistics.targets, sources, targets, by_target),
        _posterior(statistics.sources, targets, sources, by_source),
    )


@explain_wrong_types
def align(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    heads: HeadWeights | WordStatistics | str | Path | None = None,
    document: bool = False,
) -> list[Links]:
    """Align the words of sentences with those of their translations, by the attention of a translator.

    Words are split at spaces, and into characters in scripts without spaces.

    Args:
        translator: a translator of a Transformer or a recurrent model with attention.
        sources: source sentences.
        targets: the translation of each source.
        heads: the heads to use and their weights, or word statistics, from `transduce align --learn`: a file, or its
            content; None: the mean of all heads.
        document: whether the sources are consecutive sentences of one document, which a model with
            `data.context_before` reads as context; an empty source ends a document.

    Returns:
        A list with a set of links for each sentence pair; a link is (source word, target word), both counted from 0.

    Raises:
        TransduceError: the numbers of sources and targets differ, or the heads belong to another model.
    """
    sources, targets = as_pairs(sources, targets)
    weights = read_heads(as_path(heads, "`heads`")) if isinstance(heads, str | Path) else heads
    continues = Documents.of_lines(sources).continues if document else [False] * len(sources)
    pairs = [
        msgspec.structs.replace(word_pair(source, target), continues=follows)
        for source, target, follows in zip(sources, targets, continues, strict=True)
    ]
    return list(align_pairs(translator, pairs, weights))


def read_heads(path: Path) -> HeadWeights | WordStatistics:
    """Return the content of a file of `transduce align --learn`: either `HeadWeights` or `WordStatistics`.

    Raises:
        TransduceError: the file contains neither heads nor word statistics.
        OSError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
        if "targets" in msgspec.json.decode(content, type=dict[str, msgspec.Raw]):
            return msgspec.json.decode(content, type=WordStatistics)
        return msgspec.json.decode(content, type=HeadWeights)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TransduceError(f"{path} does not hold chosen heads ({error}): write it with --learn.") from None


def align_pairs(
    translator: Translator, pairs: Iterable[SplitSentencePair], heads: HeadWeights | WordStatistics | None = None
) -> Iterable[Links]:
    """Yield a set of links for each sentence pair; a link is a pair (source word, target word), both counted from 0.

    Args:
        translator: the translator whose attention is used.
        pairs: sentences with their translations; they are read in batches.
        heads: what `choose_heads` or `learn_word_statistics` learned for this model; None: all heads equally.

    Raises:
        TransduceError: the heads belong to another model.
    """
    if heads is not None:
        _check_heads(translator, heads)
    one_by_one, same = tee(pairs)
    for maps, pair in zip(word_maps(translator, one_by_one), same, strict=False):
        if isinstance(heads, WordStatistics):
            linked = _link_statistics(maps, pair, heads)
        else:
            linked = _link_mutual(maps) if heads is None else _link_probabilities(maps, pair, heads) > THRESHOLD
        yield frozenset((int(source), int(target)) for target, source in zip(*linked.nonzero(), strict=True))


def alignment_error(found: Iterable[Links], known: Iterable[Links]) -> float:
    """Return the alignment error rate (Och and Ney 2003) if all known links are sure: 1 - 2 |A ∩ K| / (|A| + |K|).

    A are the links found, and K the known links, in all sentence pairs together; 0 without any link.
    """
    num_correct = total = 0
    for links, expected in zip(found, known, strict=True):
        num_correct += len(links & expected)
        total += len(links) + len(expected)
    return 1.0 - 2.0 * num_correct / total if total else 0.0


def head_errors(maps: Iterable[WordMaps], known: Sequence[ReferenceAlignment]) -> Matrix:
    """Return the alignment error rate of each single head, (layers × heads,), from the attention between words.

    Each source word is linked to the target word that pays most attention to it.
    """
    links_by_head = [[_link_sources(head) for head in item.heads] for item in maps]
    expected = [item.links for item in known]
    return np.array([alignment_error(links, expected) for links in zip(*links_by_head, strict=True)])


# --- one sentence ---


def _link_sources(head: Matrix) -> Links:
    """Return a set of links (source word, target word): each source word with the target word that attends to it most.

    `head`, (target words, source words), is a head's attention; the set is empty if a sentence has no words.
    """
    if not head.size:
        return frozenset()
    return frozenset((source, int(target)) for source, target in enumerate(head.argmax(axis=0)))


def _link_matrix(known: ReferenceAlignment) -> Matrix:
    """Return the links of a sentence pair with known alignment as a matrix of 1 and 0, (target words, source words).

    Raises:
        TransduceError: a link has a word that does not exist.
    """
    shape = len(known.pair.target_words), len(known.pair.source_words)
    links = np.zeros(shape)
    for source, target in known.links:
        if not (0 <= source < shape[1] and 0 <= target < shape[0]):
            raise TransduceError(
                f"The known link {source}-{target} has a word that does not exist: `{known.pair.source}` has "
                f"{shape[1]} words and `{known.pair.target}` has {shape[0]}, counted from 0."
            )
        links[target, source] = 1.0
    return links


def _second_features(features: Matrix, answer: Matrix) -> Matrix:
    return np.concatenate([features, neighbor_features(answer)])


def _link_probabilities(maps: WordMaps, pair: SplitSentencePair, heads: HeadWeights) -> Matrix:
    """Return the probability of a link for each word pair of a sentence pair, (target words, source words).

    Two regressions with the weights of `heads` compute it from attention, and from the counts of linked words, if any.
    """
    if not maps.heads.size:
        return np.zeros(maps.heads.shape[1:])
    chosen = np.array([layer * heads.num_heads + head for layer, head in heads.chosen])
    features = head_features(maps.only(chosen))
    if heads.words is not None:
        counts = heads.words.table(_texts(pair, "source"), _texts(pair, "target"))
        features = np.concatenate([features, lexical_features(counts)])
    answer = probability(features, np.array(heads.first))
    return probability(_second_features(features, answer), np.array(heads.second))


def _link_mutual(maps: WordMaps) -> Matrix:
    """Return the links of a sentence pair by the mean attention of all heads, bool, (target words, source words).

    Two words are linked if each is the other's strongest partner, or if the link has over half of one word's attention.
    """
    mean = maps.heads.mean(axis=0)
    if not mean.size:
        return np.zeros(mean.shape, dtype=bool)
    received = mean / (mean.sum(axis=0) + 1e-9)
    mutual = (mean == mean.max(axis=1, keepdims=True)) & (mean == mean.max(axis=0))
    return np.asarray(mutual | (mean > 0.5) | (received > 0.5))


def _check_heads(translator: Translator, heads: _ChosenHeads) -> None:
    config = translator.model.config
    sizes = config.num_decoder_layers, config.num_heads
    if (heads.num_layers, heads.num_heads) != sizes:
        raise TransduceError(
            f"The heads were chosen for a model with {heads.num_layers} decoder layers of {heads.num_heads} heads, but "
            f"this one has {sizes[0]} of {sizes[1]}: choose them again for this model."
        )
