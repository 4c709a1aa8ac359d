"""Attention weights of a model during translation, by token and by word, also as HTML for notebooks.

Shapes: N layers, H heads, S source tokens and T target tokens, both with the end symbol.
"""

import html
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from transduce.argument_checks import as_text
from transduce.errors import TransduceError
from transduce.inference.batching import pad
from transduce.inference.translator import Translator
from transduce.model.attention import AttentionTrace
from transduce.text.languages import unspaced_characters
from transduce.text.vocabulary import byte_of

# --- HTML without scripts for notebooks: shaded tables and small heat maps ---
# Shapes: N layers, H heads, Q queries, L keys.


_RGB = "11, 110, 153"
_CELL_PIXELS = 6
_MIN_SHOWN = 0.004


def shaded_table(
    rows: Sequence[str], columns: Sequence[str], weights: Sequence[Sequence[float]] | npt.NDArray[np.float32]
) -> str:
    """Return an HTML table with a shade and a number for each weight (0 to 1), and with row and column names."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr><th style='text-align: right'>{html.escape(name)}</th>{''.join(map(_shaded_cell, row))}</tr>"
        for name, row in zip(rows, weights, strict=True)
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shaded_cell(weight: float) -> str:
    shade = f"background: rgba({_RGB}, {min(1.0, float(weight)) * 0.85:.2f})"
    return f"<td style='{shade}; text-align: center'>{float(weight):.2f}</td>"


def small_heat_maps(weights: npt.NDArray[np.float32]) -> str:
    """Return an HTML table with a small picture of each head (N, H, Q, L): a row per layer, a column per head."""
    heads = "".join(f"<th>head {number}</th>" for number in range(1, weights.shape[1] + 1))
    rows = "".join(
        f"<tr><th>layer {number}</th>{''.join(f'<td>{_small_heat_map(head)}</td>' for head in layer)}</tr>"
        for number, layer in enumerate(weights, 1)
    )
    return f"<table><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _small_heat_map(weights: npt.NDArray[np.float32]) -> str:
    queries, keys = weights.shape
    cells = "".join(
        f"<rect x='{key}' y='{query}' width='1' height='1' fill-opacity='{weights[query, key]:.2f}'/>"
        for query, key in np.argwhere(weights >= _MIN_SHOWN).tolist()
    )
    size = f"width='{keys * _CELL_PIXELS}' height='{queries * _CELL_PIXELS}' viewBox='0 0 {keys} {queries}'"
    return f"<svg {size} style='border: 1px solid #ccc' fill='rgb({_RGB})'>{cells}</svg>"


def page_in_iframe(page: str, *, height_pixels: int = 720) -> str:
    """Return HTML that shows a page in an iframe of a notebook, so that its style does not affect the notebook."""
    style = f"width: 100%; height: {height_pixels}px; border: 1px solid #ccc"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page, quote=True)}"></iframe>'


# --- attention weights ---

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
    check_single_model(translator)
    source, model = as_text(source), translator.transformer
    vocabulary, config = translator.tokenizer, model.config
    if target is None:
        target = translator(source).text
    source_ids = vocabulary.source.with_special_tokens(vocabulary.source.encode(source))
    target_ids = vocabulary.target.with_special_tokens(vocabulary.target.encode(target))
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


def check_single_model(translator: Translator) -> None:
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


def source_word_attention(maps: AttentionMaps) -> tuple[tuple[str, ...], Weights]:
    """Return the source words, and the encoder's attention between them by layer and head, (N, H, words, words).

    Attention is averaged over the tokens of the attending word and summed over those of the other. Rows sum to less
    than 1 by what goes to the end symbol.
    """
    words, groups = group_words(maps.source_pieces[:-1])
    columns = np.stack([maps.encoder[..., group].sum(axis=-1) for group in groups], axis=-1)  # (N, H, S, words)
    return words, np.stack([columns[..., group, :].mean(axis=-2) for group in groups], axis=-2)


def _average_heads(memory: Weights) -> Weights:
    """Average (N, H, T, S) over layers and heads to (T, S), weighting each head by its squared mean maximum."""
    sharpness = memory.max(axis=-1).mean(axis=-1) ** 2  # (N, H)
    mixed = np.einsum("nh,nhts->ts", sharpness, memory) / sharpness.sum()
    return np.asarray(mixed, dtype=np.float32)


def group_words(tokens: Sequence[str]) -> tuple[tuple[str, ...], list[list[int]]]:
    """Return the words that tokens spell, and the indices of each word's tokens.

    A word starts at a token with ▁. In scripts without spaces every token is a word, and so is a character that is
    spelled in byte tokens. A ▁ without a word after it is left out. Without any ▁, as in word
    lists, every token is a word.
    """
    has_spaces = any("▁" in token for token in tokens)
    groups: list[list[int]] = []
    for index, token in enumerate(tokens):
        is_byte = byte_of(token) is not None
        is_start = index == 0 or (not has_spaces and not is_byte) or _begins_word(tokens[index - 1], token)
        if is_start:
            groups.append([index])
        else:
            groups[-1].append(index)
    words = [(_join_tokens([tokens[index] for index in group]), group) for group in groups]
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
