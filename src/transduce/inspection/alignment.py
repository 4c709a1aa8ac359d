"""Align words that translate each other, from cross-attention.

The mean of all heads aligns poorly: heads have different functions, a word's neighbors share its attention, and some
words (articles) have no counterpart. So heads are *chosen* with sentences whose alignment is known. A first logistic
regression learns weights for the heads' attention at and next to a pair of words. A second one adds the first one's
probabilities for all pairs around it. A hundred known alignments are enough.

Without known alignments, all heads are averaged. Two words are then linked if each has the other's greatest attention,
or if one has more than half of the other's.
Shapes: N layers, H heads, T target words, S source words, F features.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from transduce.errors import TransduceError
from transduce.inspection.alignment_features import (
    Matrix,
    WordMaps,
    fit_logistic,
    head_features,
    neighbour_features,
    probability,
)
from transduce.inspection.word_maps import WordPair, word_maps
from transduce.runtime.translator import Translator

Links = frozenset[tuple[int, int]]
THRESHOLD = 0.45
_MIN_KNOWN = 10
_MAX_HEADS = 16  # further heads cost time and hardly help


class KnownAlignment(msgspec.Struct, frozen=True):
    """A sentence pair whose word alignment is known."""

    pair: WordPair
    links: Links
    """(source word, target word), both from 0."""


class HeadWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The weights that `choose_heads` learned for a model's heads. They are valid for that model only."""

    num_layers: int
    """Decoder layers of that model."""
    num_heads: int
    """Heads per layer."""
    chosen: tuple[tuple[int, int], ...]
    """(layer, head) of the heads used, best aligner first."""
    first: tuple[float, ...]
    """Weights of the first regression, for the features at each pair of words."""
    second: tuple[float, ...]
    """Weights of the second regression, which adds the first one's probabilities around each pair."""


def choose_heads(translator: Translator, known: Sequence[KnownAlignment]) -> HeadWeights:
    """Learn from known alignments how to weight the cross-attention heads of a model.

    Args:
        translator: a translator with any Transformer that has a decoder.
        known: at least ten known alignments; a hundred work well.

    Raises:
        TransduceError: there are too few alignments, or a link has a word that does not exist.
    """
    if len(known) < _MIN_KNOWN:
        raise TransduceError(
            f"Choosing heads needs at least {_MIN_KNOWN} known alignments, but there are {len(known)}: pass more."
        )
    config = translator.model.config
    links = [_link_matrix(item) for item in known]
    maps = list(word_maps(translator, [item.pair for item in known]))
    chosen = np.argsort(_errors(maps, known), kind="stable")[:_MAX_HEADS]
    features = [head_features(item.only(chosen)) for item in maps]
    first = fit_logistic(features, links)
    # Cross-validate the inputs of the second regression: each half gets probabilities learned from the other half.
    half = len(known) // 2
    half_weights = (fit_logistic(features[half:], links[half:]), fit_logistic(features[:half], links[:half]))
    probabilities = [probability(item, half_weights[number >= half]) for number, item in enumerate(features)]
    second = fit_logistic(
        [
            _second_features(item, probabilities_of_pair)
            for item, probabilities_of_pair in zip(features, probabilities, strict=True)
        ],
        links,
    )
    return HeadWeights(
        num_layers=config.num_decoder_layers,
        num_heads=config.num_heads,
        chosen=tuple((int(head) // config.num_heads, int(head) % config.num_heads) for head in chosen),
        first=tuple(first.tolist()),
        second=tuple(second.tolist()),
    )


def align(translator: Translator, pairs: Iterable[WordPair], heads: HeadWeights | None = None) -> Iterable[Links]:
    """Yield the links of each pair: (source word, target word), both from 0.

    Args:
        translator: the translator whose attention is used.
        pairs: sentences with their translations; they are read in batches.
        heads: what `choose_heads` learned for this model; None: all heads equally.

    Raises:
        TransduceError: the heads belong to another model.
    """
    if heads is not None:
        _check_heads(translator, heads)
    for maps in word_maps(translator, pairs):
        linked = _link_mutual(maps) if heads is None else _link_probabilities(maps, heads) > THRESHOLD
        yield frozenset((int(source), int(target)) for target, source in zip(*linked.nonzero(), strict=True))


def alignment_error(found: Iterable[Links], known: Iterable[Links]) -> float:
    """Return the alignment error rate (Och and Ney 2003) if all known links are sure: 1 - 2 |A ∩ K| / (|A| + |K|)."""
    num_correct = total = 0
    for links, expected in zip(found, known, strict=True):
        num_correct += len(links & expected)
        total += len(links) + len(expected)
    return 1.0 - 2.0 * num_correct / total if total else 0.0


def head_errors(translator: Translator, known: Sequence[KnownAlignment]) -> Matrix:
    """Return the alignment error of each head alone, (N, H), linking each source word as `_link_sources` does."""
    config = translator.model.config
    errors = _errors(word_maps(translator, [item.pair for item in known]), known)
    return errors.reshape(config.num_decoder_layers, config.num_heads)


# --- one sentence ------------------------------------------------------------------------------------------------


def _errors(maps: Iterable[WordMaps], known: Sequence[KnownAlignment]) -> Matrix:
    """Return the alignment error of each head alone, (N × H,)."""
    links_by_head = [[_link_sources(head) for head in item.heads] for item in maps]
    expected = [item.links for item in known]
    return np.array([alignment_error(links, expected) for links in zip(*links_by_head, strict=True)])


def _link_sources(head: Matrix) -> Links:
    """Link each source word to the target word that pays most attention to it."""
    if not head.size:
        return frozenset()
    return frozenset((source, int(target)) for source, target in enumerate(head.argmax(axis=0)))


def _link_matrix(known: KnownAlignment) -> Matrix:
    """Return the known links as a matrix of 1 and 0, (T, S)."""
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
    return np.concatenate([features, neighbour_features(answer)])


def _link_probabilities(maps: WordMaps, heads: HeadWeights) -> Matrix:
    """Return the probability of a link for each pair of words, (T, S)."""
    if not maps.heads.size:
        return np.zeros(maps.heads.shape[1:])
    chosen = np.array([layer * heads.num_heads + head for layer, head in heads.chosen])
    features = head_features(maps.only(chosen))
    answer = probability(features, np.array(heads.first))
    return probability(_second_features(features, answer), np.array(heads.second))


def _link_mutual(maps: WordMaps) -> Matrix:
    """Return which words have each other's greatest attention or more than half of it, boolean (T, S)."""
    mean = maps.heads.mean(axis=0)
    if not mean.size:
        return np.zeros(mean.shape, dtype=bool)
    received = mean / (mean.sum(axis=0) + 1e-9)
    mutual = (mean == mean.max(axis=1, keepdims=True)) & (mean == mean.max(axis=0))
    return np.asarray(mutual | (mean > 0.5) | (received > 0.5))


def _check_heads(translator: Translator, heads: HeadWeights) -> None:
    config = translator.model.config
    sizes = config.num_decoder_layers, config.num_heads
    if (heads.num_layers, heads.num_heads) != sizes:
        raise TransduceError(
            f"The heads were chosen for a model with {heads.num_layers} decoder layers of {heads.num_heads} heads, but "
            f"this one has {sizes[0]} of {sizes[1]}: choose them again for this model."
        )
