"""Compute attention between the words of sentence pairs, head by head.

Shapes: B sentences, C = N layers × H heads; S source and T target are *words* in maps and tokens in model inputs.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from transduce.errors import TransduceError
from transduce.inspection.alignment_features import Matrix, WordMaps
from transduce.model.attention import AttentionTrace
from transduce.runtime.like_lengths import pad
from transduce.runtime.scoring import MOST_PIECES
from transduce.runtime.translator import Translator
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span, cut_at_words, locate_words, overlap, piece_spans, split_words

# Limits of one forward pass, which keeps all attention weights as float32.
_MAX_PAIRS, _MAX_WEIGHTS = 32, 2**25
_SHOWN = 40


class WordPair(msgspec.Struct, frozen=True):
    """A sentence and its translation, with the spans of the words of both."""

    source: str
    target: str
    source_words: tuple[Span, ...]
    target_words: tuple[Span, ...]
    cut_source: bool = False
    """True to split tokens that span several words at the word boundaries, which suits words marked by hand.

    If False, each word of a token that spans several gets the token's whole attention.
    """
    cut_target: bool = False
    """Same meaning as `cut_source`, for the target."""


def word_pair(
    source: str,
    target: str,
    source_words: Sequence[str] | None = None,
    target_words: Sequence[str] | None = None,
) -> WordPair:
    """Return a sentence pair with the words passed, or else with those that spaces separate (`split_words`).

    Raises:
        TransduceError: a word does not occur in its sentence.
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
    """A tokenized sentence, with the tokens of each word."""

    ids: list[int]
    """Token ids with the end symbol and other special tokens."""
    shares: Matrix
    """Which tokens spell which word, 0 or 1, (words, tokens)."""


def word_maps(translator: Translator, pairs: Iterable[WordPair]) -> Iterator[WordMaps]:
    """Yield the attention between the words of each pair, computed in batches.

    Raises:
        TransduceError: a text has too many tokens for the memory that attention needs.
    """
    tokenizer, config = translator.tokenizer, translator.model.config
    heads = config.num_decoder_layers * config.num_heads
    batch: list[tuple[_Side, _Side]] = []
    longest_source = longest_target = 0
    for pair in pairs:
        source = _tokenize(tokenizer.source, pair.source, pair.source_words, cut=pair.cut_source)
        target = _tokenize(tokenizer.target, pair.target, pair.target_words, cut=pair.cut_target)
        for side, text in ((source, pair.source), (target, pair.target)):
            if len(side.ids) > MOST_PIECES:
                raise TransduceError(
                    f"A text must have at most {MOST_PIECES:,} tokens for its words to be aligned, but "
                    f"“{text[:_SHOWN]}…” has {len(side.ids):,}: split it into sentences."
                )
        longest_source, longest_target = max(longest_source, len(source.ids)), max(longest_target, len(target.ids))
        weights = heads * (len(batch) + 1) * longest_source * longest_target
        if batch and (len(batch) == _MAX_PAIRS or weights > _MAX_WEIGHTS):
            yield from _maps_of(translator, batch)
            batch, longest_source, longest_target = [], len(source.ids), len(target.ids)
        batch.append((source, target))
    if batch:
        yield from _maps_of(translator, batch)


def _maps_of(translator: Translator, sides: Sequence[tuple[_Side, _Side]]) -> list[WordMaps]:
    """Return the attention between the words of a batch of pairs, from one forward pass."""
    config = translator.model.config
    sources, targets = zip(*sides, strict=True)
    trace = AttentionTrace()
    with torch.inference_mode():
        source_ids = pad([side.ids for side in sources], config.pad_id, translator.device)
        memory, mask = translator.model.encode(source_ids)
        inputs = [[config.start_id, *side.ids[:-1]] for side in targets]
        translator.model.decode(pad(inputs, config.pad_id, translator.device), memory, mask, trace=trace)
    weights = torch.stack(trace.memory, dim=1).flatten(1, 2).float().cpu().numpy()  # (B, C, T, S)
    return [_between_words(*example) for example in zip(weights, sources, targets, strict=True)]


def _tokenize(vocabulary: Vocabulary, text: str, words: Sequence[Span], *, cut: bool) -> _Side:
    normalized = vocabulary.as_seen(text)
    if normalized != text:
        words = [Span(*(len(vocabulary.as_seen(text[:offset])) for offset in word)) for word in words]
    ids = cut_at_words(vocabulary, normalized, words) if cut else vocabulary.encode(normalized)
    spells = (overlap(words, piece_spans(vocabulary.spellings(ids), normalized)) > 0).astype(np.float64)
    # Special tokens around the text, such as the end symbol, belong to no word.
    return _Side(vocabulary.closed(ids), np.pad(spells, ((0, 0), (len(vocabulary.before), len(vocabulary.after)))))


def _between_words(weights: Matrix, source: _Side, target: _Side) -> WordMaps:
    """Return the attention summed over a word's source tokens and averaged over its target tokens."""
    unpadded = weights[:, : len(target.ids), : len(source.ids)].astype(np.float64)
    means = target.shares / np.maximum(target.shares.sum(axis=1, keepdims=True), 1.0)  # (T, tokens)
    return WordMaps(heads=means @ unpadded @ source.shares.T, nowhere=means @ unpadded[:, :, -1:])
