"""Which words translate each other, read off the attention to the memory.

Averaging all heads is a poor aligner: heads have their own trades, a word's neighbours share its attention, and some
words (articles) have no counterpart. So heads are *chosen*: from sentences whose alignment is known, a logistic
regression learns how much each head says, at a pair of words and beside it. A second one looks at the first one's
answers all around a pair, as a person would who fits a whole sentence together. A hundred known sentences are enough.

Without known alignments, all heads are averaged and words are linked that look at each other most, or mostly.
Legend: N layers, H heads, T target words, S source words, F features.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from transduce.argument_checks import as_path
from transduce.errors import TransduceError
from transduce.inference.batching import pad
from transduce.inference.scoring import MAX_TOKENS, as_pairs
from transduce.inference.translator import Translator
from transduce.model.attention import AttentionTrace
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span, encode_within_words, locate_words, overlap, split_words, token_spans

# --- alignment features ---
# From attention between words to links: what a pair of words is judged by, and the regression that judges.
# Legend: C heads of all layers, T target words, S source words, F features.


Matrix = npt.NDArray[Any]
_LEAST = 1e-3  # in logarithms and quotients, so that nothing is infinite
_PENALTY = 3.0  # on squared weights of standardised features: the prior that keeps few examples from saying too much
_MOST_ITERATIONS = 25
_BESIDE = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
_AROUND = tuple((target, source) for target in (-1, 0, 1) for source in (-1, 0, 1))


class WordMaps(NamedTuple):
    """Attention to the memory between words."""

    heads: Matrix
    """How much each target word looks at each source word, (C, T, S)."""
    nowhere: Matrix
    """How much it looks at the end symbol instead: the sign of a word without a counterpart, (C, T, 1)."""

    def only(self, heads: Matrix) -> "WordMaps":
        """These heads alone, by number."""
        return WordMaps(self.heads[heads], self.nowhere[heads])


def head_features(maps: WordMaps) -> Matrix:
    """What every head says of a pair of words and of the pairs beside it, (F, T, S).

    Each head speaks twice: of the attention that a target word gives, and of its share in what a source word receives.
    The mean of all heads stands beside them, and how far the words' places in their sentences are apart.
    """
    heads = np.concatenate([maps.heads, maps.heads.mean(axis=0, keepdims=True)])
    said = np.concatenate([heads, heads / (heads.sum(axis=1, keepdims=True) + _LEAST)])
    beside = np.concatenate([_shift(said, *place) for place in _BESIDE])
    targets, sources = maps.heads.shape[1:]
    places = (np.arange(targets) + 0.5)[:, None] / max(targets, 1), (np.arange(sources) + 0.5) / max(sources, 1)
    distance = np.abs(places[0] - places[1])
    nowhere = np.broadcast_to(maps.nowhere, maps.heads.shape)
    return np.concatenate([beside, np.log(beside + _LEAST), nowhere, distance[None], np.ones((1, targets, sources))])


def neighbour_features(answer: Matrix) -> Matrix:
    """The probabilities (T, S) of the pairs around each pair, and the strongest rivals in its row and column."""
    given = answer / (answer.sum(axis=1, keepdims=True) + _LEAST)
    received = answer / (answer.sum(axis=0) + _LEAST)
    around = [_shift(each[None], *place) for each in (answer, given, received) for place in _AROUND]
    logarithms = [np.log(_shift(answer[None], *place) + _LEAST) for place in _AROUND]
    rivals = np.stack([_rival(answer, 0), _rival(answer, 1)])
    return np.concatenate([*around, *logarithms, rivals, np.log(rivals + _LEAST)])


def _shift(maps: Matrix, target: int, source: int) -> Matrix:
    """Each pair's neighbour, so many words on; 0 where there is none."""
    shifted = np.zeros_like(maps)
    rows, columns = maps.shape[1:]
    if abs(target) < rows and abs(source) < columns:
        to_rows, from_rows = _overlap(target, rows)
        to_columns, from_columns = _overlap(source, columns)
        shifted[:, to_rows, to_columns] = maps[:, from_rows, from_columns]
    return shifted


def _overlap(step: int, length: int) -> tuple[slice, slice]:
    return slice(max(0, -step), length - max(0, step)), slice(max(0, step), length + min(0, step))


def _rival(answer: Matrix, axis: int) -> Matrix:
    """The greatest of the others in the same row or column."""
    if answer.shape[axis] < 2:
        return np.zeros_like(answer)
    ordered = np.sort(answer, axis=axis)
    best, second = np.take(ordered, [-1], axis=axis), np.take(ordered, [-2], axis=axis)
    return np.where(answer == best, second, best)


def probability(features: Matrix, weights: Matrix) -> Matrix:
    """The logistic function of the weighted sum of features (F, T, S), (T, S)."""
    total = np.einsum("fts,f->ts", features, weights)
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(total, -30.0, 30.0))))


def fit_logistic(features: Sequence[Matrix], links: Sequence[Matrix]) -> Matrix:
    """Logistic regression by Newton's method.

    Args:
        features: of each sentence, (F, T, S).
        links: 1 where two words translate each other and 0 elsewhere, (T, S).

    Returns:
        The weights, (F,).
    """
    x = np.concatenate([each.reshape(len(each), -1) for each in features], axis=1).T  # (words² of all, F)
    y = np.concatenate([each.ravel() for each in links])
    scale = x.std(axis=0) + 1e-6
    x = x / scale
    weights = np.zeros(x.shape[1])
    for _ in range(_MOST_ITERATIONS):
        guess = 1.0 / (1.0 + np.exp(-np.clip(x @ weights, -30.0, 30.0)))
        gradient = x.T @ (y - guess) - _PENALTY * weights
        curvature = (x * (guess * (1.0 - guess))[:, None]).T @ x + _PENALTY * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max() < 1e-6:
            break
    return np.asarray(weights / scale)


# --- word maps ---
# Attention between the words of many sentence pairs, head by head.
# Legend: B sentences, C = N layers × H heads, S source and T target *words* in maps, pieces in what the model sees.


# In a pass; weights of attention are kept, 4 bytes each.
_MOST_PAIRS, _MOST_WEIGHTS = 32, 2**25
_SHOWN = 40


class WordPair(msgspec.Struct, frozen=True):
    """A sentence and its translation, and the words of both."""

    source: str
    target: str
    source_words: tuple[Span, ...]
    target_words: tuple[Span, ...]
    cut_source: bool = False
    """Whether pieces of several words are cut where words end: right for words that somebody marked by hand. Without
    it, each word of such a piece has the piece's whole attention."""
    cut_target: bool = False


def word_pair(
    source: str,
    target: str,
    source_words: Sequence[str] | None = None,
    target_words: Sequence[str] | None = None,
) -> WordPair:
    """A pair with the words that are given, or else with those that spaces separate (`split_words`).

    Raises:
        TransduceError: a word does not stand in its sentence.
    """
    return WordPair(
        source,
        target,
        tuple(split_words(source) if source_words is None else locate_words(source_words, source)),
        tuple(split_words(target) if target_words is None else locate_words(target_words, target)),
        cut_source=source_words is not None,
        cut_target=target_words is not None,
    )


class _Side(NamedTuple):
    """A sentence as the model sees it."""

    ids: list[int]
    """With the end symbol, and what else stands around a text."""
    shares: Matrix
    """Which pieces spell which word, 0 or 1, (words, pieces)."""


def word_maps(translator: Translator, pairs: Iterable[WordPair]) -> Iterator[WordMaps]:
    """The attention between the words of each pair, by passes over some pairs side by side.

    Raises:
        TransduceError: a text has more pieces than attention has memory for.
    """
    tokenizer, config = translator.tokenizer, translator.model.config
    heads = config.num_decoder_layers * config.num_heads
    batch: list[tuple[_Side, _Side]] = []
    longest_source = longest_target = 0
    for pair in pairs:
        source = _side(tokenizer.source, pair.source, pair.source_words, cut=pair.cut_source)
        target = _side(tokenizer.target, pair.target, pair.target_words, cut=pair.cut_target)
        for side, text in ((source, pair.source), (target, pair.target)):
            if len(side.ids) > MAX_TOKENS:
                raise TransduceError(
                    f"A text must have at most {MAX_TOKENS:,} pieces for its words to be linked, but "
                    f"“{text[:_SHOWN]}…” has {len(side.ids):,}: cut it into sentences."
                )
        longest_source, longest_target = max(longest_source, len(source.ids)), max(longest_target, len(target.ids))
        weights = heads * (len(batch) + 1) * longest_source * longest_target
        if batch and (len(batch) == _MOST_PAIRS or weights > _MOST_WEIGHTS):
            yield from _maps_of(translator, batch)
            batch, longest_source, longest_target = [], len(source.ids), len(target.ids)
        batch.append((source, target))
    if batch:
        yield from _maps_of(translator, batch)


def _maps_of(translator: Translator, sides: Sequence[tuple[_Side, _Side]]) -> list[WordMaps]:
    """By one pass."""
    config = translator.model.config
    sources, targets = zip(*sides, strict=True)
    trace = AttentionTrace()
    with torch.inference_mode():
        source_ids = pad([side.ids for side in sources], config.pad_id, translator.device)
        memory, mask = translator.model.encode(source_ids)
        inputs = [[config.start_id, *side.ids[:-1]] for side in targets]
        translator.model.decode(pad(inputs, config.pad_id, translator.device), memory, mask, trace=trace)
    weights = torch.stack(trace.memory, dim=1).flatten(1, 2).float().cpu().numpy()  # (B, C, T, S)
    return [_between_words(*each) for each in zip(weights, sources, targets, strict=True)]


def _side(vocabulary: Vocabulary, text: str, words: Sequence[Span], *, cut: bool) -> _Side:
    seen = vocabulary.normalize(text)
    if seen != text:
        words = [Span(*(len(vocabulary.normalize(text[:place])) for place in word)) for word in words]
    ids = encode_within_words(vocabulary, seen, words) if cut else vocabulary.encode(seen)
    spelt = (overlap(words, token_spans(vocabulary.token_texts(ids), seen)) > 0).astype(np.float64)
    # What stands around a text, such as the end symbol, spells none of its words.
    return _Side(
        vocabulary.with_special_tokens(ids), np.pad(spelt, ((0, 0), (len(vocabulary.before), len(vocabulary.after))))
    )


def _between_words(weights: Matrix, source: _Side, target: _Side) -> WordMaps:
    """Over a word's source pieces the sum, over its target pieces the mean."""
    own = weights[:, : len(target.ids), : len(source.ids)].astype(np.float64)
    means = target.shares / np.maximum(target.shares.sum(axis=1, keepdims=True), 1.0)  # (T, pieces)
    return WordMaps(heads=means @ own @ source.shares.T, nowhere=means @ own[:, :, -1:])


# --- alignment ---


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


def align(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    heads: HeadWeights | str | Path | None = None,
) -> list[Links]:
    """Align the words of sentences with those of their translations, by the attention of a translator.

    Words are split at spaces, and into characters in scripts without spaces.

    Args:
        translator: a translator of a Transformer or a recurrent model with attention.
        sources: source sentences.
        targets: the translation of each source.
        heads: the heads to use and their weights, from `transduce align --learn`: a file, or its content; None: the
            mean of all heads.

    Returns:
        The links of each pair: (source word, target word), both counted from 0.

    Raises:
        TransduceError: the numbers of sources and targets differ, or the heads belong to another model.
    """
    sources, targets = as_pairs(sources, targets)
    weights = read_heads(as_path(heads, "`heads`")) if isinstance(heads, str | Path) else heads
    pairs = [word_pair(*pair) for pair in zip(sources, targets, strict=True)]
    return list(align_pairs(translator, pairs, weights))


def read_heads(path: Path) -> HeadWeights:
    """Read the heads that `transduce align --learn` wrote.

    Raises:
        TransduceError: the file contains something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=HeadWeights)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TransduceError(f"{path} does not hold chosen heads ({error}): write it with --learn.") from None


def align_pairs(translator: Translator, pairs: Iterable[WordPair], heads: HeadWeights | None = None) -> Iterable[Links]:
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
