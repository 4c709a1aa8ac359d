"""Which words translate each other, read off the attention to the memory.

Averaging all heads is a poor aligner: heads have their own trades, a word's neighbours share its attention, and some
words (articles) have no counterpart. So heads are *chosen*: from sentences whose alignment is known, a logistic
regression learns how much each head says, at a pair of words and beside it. A second one looks at the first one's
answers all around a pair, as a person would who fits a whole sentence together. A hundred known sentences are enough.

Without known alignments, all heads are averaged and words are linked that look at each other most, or mostly.
Legend: N layers, H heads, T target words, S source words, F features.
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
_FEWEST_KNOWN = 10
_MOST_HEADS = 16  # more would take long to weigh, and the rest hardly align


class KnownAlignment(msgspec.Struct, frozen=True):
    """A sentence pair whose alignment is known."""

    pair: WordPair
    links: Links
    """(source word, target word), both counted from 0."""


class HeadWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `choose_heads` learnt: how much every head says. It fits the model that it was learnt from, and no other."""

    num_layers: int
    """Decoder layers of that model."""
    num_heads: int
    """Heads of each."""
    chosen: tuple[tuple[int, int], ...]
    """(layer, head) of those that are listened to, the best aligner first."""
    first: tuple[float, ...]
    """Of the features at each pair of words."""
    second: tuple[float, ...]
    """Of the first one's answers around each pair of words."""


def choose_heads(translator: Translator, known: Sequence[KnownAlignment]) -> HeadWeights:
    """Learns from known alignments how much each head of the attention to the memory says.

    Args:
        translator: of any Transformer with a decoder.
        known: some ten at least; a hundred are good, more are better.

    Raises:
        TransduceError: there are too few, or a link names a word that is not there.
    """
    if len(known) < _FEWEST_KNOWN:
        raise TransduceError(
            f"Heads are chosen from at least {_FEWEST_KNOWN} known alignments, but there are {len(known)}: give more."
        )
    config = translator.model.config
    links = [_link_matrix(each) for each in known]
    maps = list(word_maps(translator, [each.pair for each in known]))
    chosen = np.argsort(_errors(maps, known), kind="stable")[:_MOST_HEADS]
    features = [head_features(each.only(chosen)) for each in maps]
    first = fit_logistic(features, links)
    # The second one must see answers as they will be on new sentences: each half's by what the other half teaches.
    half = len(known) // 2
    teachers = (fit_logistic(features[half:], links[half:]), fit_logistic(features[:half], links[:half]))
    answers = [probability(each, teachers[number >= half]) for number, each in enumerate(features)]
    second = fit_logistic([_second_look(each, answer) for each, answer in zip(features, answers, strict=True)], links)
    return HeadWeights(
        num_layers=config.num_decoder_layers,
        num_heads=config.num_heads,
        chosen=tuple((int(head) // config.num_heads, int(head) % config.num_heads) for head in chosen),
        first=tuple(first.tolist()),
        second=tuple(second.tolist()),
    )


def align(translator: Translator, pairs: Iterable[WordPair], heads: HeadWeights | None = None) -> Iterable[Links]:
    """The links of each pair: (source word, target word), both counted from 0.

    Args:
        translator: its attention is what is read.
        pairs: sentences with their translations; a few dozen are held at a time.
        heads: what `choose_heads` learnt from this model; None: all heads alike.

    Raises:
        TransduceError: the heads are another model's.
    """
    if heads is not None:
        _check_heads(translator, heads)
    for maps in word_maps(translator, pairs):
        linked = _link_mutual(maps) if heads is None else _link_probabilities(maps, heads) > THRESHOLD
        yield frozenset((int(source), int(target)) for target, source in zip(*linked.nonzero(), strict=True))


def alignment_error(found: Iterable[Links], known: Iterable[Links]) -> float:
    """The alignment error rate (Och and Ney 2003) where all known links are sure: 1 - 2 |A ∩ K| / (|A| + |K|)."""
    right = total = 0
    for links, expected in zip(found, known, strict=True):
        right += len(links & expected)
        total += len(links) + len(expected)
    return 1.0 - 2.0 * right / total if total else 0.0


def head_errors(translator: Translator, known: Sequence[KnownAlignment]) -> Matrix:
    """The alignment error of each head by itself, (N, H): each source word to the target word that looks at it most."""
    config = translator.model.config
    errors = _errors(word_maps(translator, [each.pair for each in known]), known)
    return errors.reshape(config.num_decoder_layers, config.num_heads)


# --- one sentence ------------------------------------------------------------------------------------------------


def _errors(maps: Iterable[WordMaps], known: Sequence[KnownAlignment]) -> Matrix:
    """The alignment error of each head by itself, (N × H,)."""
    found = [[_link_sources(head) for head in each.heads] for each in maps]
    expected = [each.links for each in known]
    return np.array([alignment_error(links, expected) for links in zip(*found, strict=True)])


def _link_sources(head: Matrix) -> Links:
    """Each source word with the target word that looks at it most."""
    if not head.size:
        return frozenset()
    return frozenset((source, int(target)) for source, target in enumerate(head.argmax(axis=0)))


def _link_matrix(known: KnownAlignment) -> Matrix:
    """The known links, 1 or 0, (T, S)."""
    shape = len(known.pair.target_words), len(known.pair.source_words)
    links = np.zeros(shape)
    for source, target in known.links:
        if not (0 <= source < shape[1] and 0 <= target < shape[0]):
            raise TransduceError(
                f"The known link {source}-{target} names a word that is not there: `{known.pair.source}` has "
                f"{shape[1]} words and `{known.pair.target}` has {shape[0]}, counted from 0."
            )
        links[target, source] = 1.0
    return links


def _second_look(features: Matrix, answer: Matrix) -> Matrix:
    return np.concatenate([features, neighbour_features(answer)])


def _link_probabilities(maps: WordMaps, heads: HeadWeights) -> Matrix:
    """How likely each pair of words is a link, (T, S)."""
    if not maps.heads.size:
        return np.zeros(maps.heads.shape[1:])
    chosen = np.array([layer * heads.num_heads + head for layer, head in heads.chosen])
    features = head_features(maps.only(chosen))
    answer = probability(features, np.array(heads.first))
    return probability(_second_look(features, answer), np.array(heads.second))


def _link_mutual(maps: WordMaps) -> Matrix:
    """Words that look at each other most, or that have more than half of one another's attention, boolean (T, S)."""
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
