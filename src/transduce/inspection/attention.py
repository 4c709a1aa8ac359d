"""Attention weights of a model during translation, by token and by word.

Shapes: N layers, H heads, S source tokens and T target tokens, both with the end symbol.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from transduce.errors import TransduceError
from transduce.given import as_text
from transduce.inspection.notebook import shaded_table, small_heat_maps
from transduce.model.attention import AttentionTrace
from transduce.runtime.like_lengths import pad
from transduce.runtime.translator import Translator
from transduce.text.languages import unspaced_characters
from transduce.text.vocabulary import byte_of

Weights = npt.NDArray[np.float32]


class AttentionMaps(msgspec.Struct, frozen=True):
    """Attention weights of every layer and head for one sentence pair. Each row sums to 1."""

    source_pieces: tuple[str, ...]
    """Source tokens with the end symbol."""
    target_pieces: tuple[str, ...]
    """Target tokens, with the end symbol unless `ended` is False."""
    encoder: Weights
    """(N, H, S, S): row s is the attention from source token s to all source tokens."""
    decoder: Weights
    """(N, H, T, T): row t is the attention to the start symbol and earlier target tokens when token t is predicted."""
    memory: Weights
    """(N, H, T, S): row t is the attention to the source tokens when target token t is predicted."""
    ended: bool = True
    """True if the last target token is the end symbol, which is missing if the search reached its length limit."""

    def _repr_html_(self) -> str:
        return small_heat_maps(self.memory)


def attention_maps(translator: Translator, source: str, target: str | None = None) -> AttentionMaps:
    """Return the attention weights of a model for a sentence and its translation.

    Args:
        translator: a translator with one Transformer.
        source: a sentence.
        target: a translation of it; None: the model's own.

    Raises:
        TransduceError: the object is not a translator with exactly one Transformer.
    """
    if not isinstance(translator, Translator):
        raise TransduceError(
            f"Attention maps need a translator, but this is a {type(translator).__name__}: load a "
            "model that translates."
        )
    refuse_ensembles(translator)
    source, model = as_text(source), translator.transformer
    vocabulary, config = translator.tokenizer, model.config
    if target is None:
        target = translator(source).text
    source_ids = vocabulary.source.closed(vocabulary.source.encode(source))
    target_ids = vocabulary.target.closed(vocabulary.target.encode(target))
    trace = AttentionTrace()
    with torch.inference_mode():
        memory, mask = model.encode(pad([source_ids], config.pad_id, translator.device), trace=trace)
        inputs = pad([[config.start_id, *target_ids[:-1]]], config.pad_id, translator.device)
        model.decode(inputs, memory, mask, trace=trace)
    return AttentionMaps(
        source_pieces=tuple(vocabulary.source.pieces(source_ids)),
        target_pieces=tuple(vocabulary.target.pieces(target_ids)),
        encoder=stack_layers(trace.encoder),
        decoder=stack_layers(trace.decoder),
        memory=stack_layers(trace.memory),
    )


def refuse_ensembles(translator: Translator) -> None:
    """Refuse an ensemble of several models.

    Raises:
        TransduceError: the translator has several models.
    """
    if len(translator.models) > 1:
        raise TransduceError(
            f"Only a single model can be inspected, but this translator is an ensemble of {len(translator.models)}: "
            "load one of them."
        )


def stack_layers(layers: list[torch.Tensor]) -> Weights:
    """Return a trace's layers, (1, H, Q, L) each, as one array (N, H, Q, L)."""
    stacked = torch.stack([layer[0].float() for layer in layers])  # (N, H, Q, L)
    return np.asarray(stacked.cpu().numpy(), dtype=np.float32)


class WordAttention(msgspec.Struct, frozen=True):
    """Attention of each target word to each source word."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: Weights
    """Attention weights, (target words, source words)."""

    def _repr_html_(self) -> str:
        return shaded_table(self.target_words, self.source_words, self.weights)


def word_attention(maps: AttentionMaps) -> WordAttention:
    """Return word-level cross-attention: summed over a word's source tokens, averaged over its target tokens.

    Layers and heads are averaged with weights: heads with sharper attention count more.
    """
    source_words, source_groups = group_words(maps.source_pieces[:-1])
    num_tokens = len(maps.target_pieces) - maps.ended
    target_words, target_groups = group_words(maps.target_pieces[:num_tokens])
    weights = np.zeros((len(target_words), len(source_words)), dtype=np.float32)
    if weights.size == 0:
        return WordAttention(source_words, target_words, weights)
    mean_attention = _average_heads(
        maps.memory[:, :, :num_tokens, :-1]
    )  # (T - 1, S - 1), or (T, S - 1) without an end symbol
    for row, target_group in enumerate(target_groups):
        for column, source_group in enumerate(source_groups):
            weights[row, column] = mean_attention[np.ix_(target_group, source_group)].sum(axis=1).mean()
    return WordAttention(source_words, target_words, weights)


def _average_heads(memory: Weights) -> Weights:
    """Average (N, H, T, S) over layers and heads to (T, S), weighting each head by its squared mean maximum."""
    sharpness = memory.max(axis=-1).mean(axis=-1) ** 2  # (N, H)
    mixed = np.einsum("nh,nhts->ts", sharpness, memory) / sharpness.sum()
    return np.asarray(mixed, dtype=np.float32)


def group_words(pieces: Sequence[str]) -> tuple[tuple[str, ...], list[list[int]]]:
    """Return the words that tokens spell, and the indices of each word's tokens.

    A word starts at a token with ▁. In scripts without spaces every token is a word, and so is a character that is
    spelled
    in byte tokens. A ▁ without a word after it is left out.
    """
    groups: list[list[int]] = []
    for index, token in enumerate(pieces):
        is_start = index == 0 or _begins_word(pieces[index - 1], token)
        if is_start:
            groups.append([index])
        else:
            groups[-1].append(index)
    words = [(_join_tokens([pieces[index] for index in group]), group) for group in groups]
    return tuple(word for word, _ in words if word), [group for word, group in words if word]


def _begins_word(before: str, token: str) -> bool:
    byte = byte_of(token)
    if byte is not None:
        return byte >= 0xC0  # bytes from 0x80 to 0xBF continue a character; smaller ones are ASCII
    return token.startswith("▁") or bool(unspaced_characters(before + token)) or byte_of(before) is not None


def _join_tokens(tokens: Sequence[str]) -> str:
    """Return the text that a word's tokens spell."""
    content = b""
    for token in tokens:
        byte = byte_of(token)
        content += token.encode() if byte is None else bytes([byte])
    return content.decode("utf-8", "replace").removeprefix("▁")
