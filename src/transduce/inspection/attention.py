"""Attention weights of a model of any kind for one text, by token and by word, also as HTML for notebooks.

Shapes: N layers, H heads, S source tokens and T target tokens, both with the end symbol.
"""

import html
from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike

from transduce.deprecation import renamed_attribute
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.parser import Parser
from transduce.inspection.reading import Reader, Reading, read
from transduce.inspection.recorder import hook_points, record_activations
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
    """Return an HTML table of weights from 0 to 1 with named rows and columns; each cell has a shade and the number."""
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
    """Return HTML (a table of SVG pictures) with a small heat map of each attention head: a row per layer.

    `weights` is (layers, heads, queries, keys).
    """
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


def page_in_iframe(page: str) -> str:
    """Return HTML that shows a page in an iframe of a notebook, so that its style does not affect the notebook."""
    style, content = "width: 100%; height: 720px; border: 1px solid #ccc", html.escape(page, quote=True)
    return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{content}"></iframe>'


# --- attention weights ---

Weights = npt.NDArray[np.float32]


AttentionKind = Literal["memory", "encoder", "decoder"]
"""The name of a kind of attention: `memory` (cross-attention), or the self-attention of the `encoder` or `decoder`."""


class AttentionMaps(msgspec.Struct, frozen=True):
    """Attention weights of every layer and head for one text, or one sentence pair; each row of weights sums to 1.

    A kind of attention that the model lacks has an array without layers, (0, 0, 0, 0).
    """

    source_tokens: tuple[str, ...]
    """Tokens that the encoder reads, with the end symbol; empty without an encoder."""
    target_tokens: tuple[str, ...]
    """The tokens that the decoder predicts: a translation with the end symbol unless `ended` is False, or in a language
    model each next token. Empty without a decoder.
    """
    encoder: Weights
    """Weights (layers, heads, S, S): row s is the attention from source token s to all source tokens."""
    decoder: Weights
    """Weights (layers, heads, T, T): row t is the attention to the start symbol and tokens before t, to predict t."""
    memory: Weights
    """Weights (layers, heads, T, S): row t is the attention to the source tokens when target token t is predicted."""
    ended: bool = True
    """False if the target tokens lack the end symbol: in a forecaster, or if the search reached its length limit. The
    field has no meaning in a model of one text.
    """
    decoder_tokens: tuple[str, ...] = ()
    """Tokens that the decoder reads, (T,), in a model without an encoder; empty in an encoder-decoder model, whose
    decoder reads the start symbol and the target tokens before the last.
    """
    source_ended: bool = True
    """False if the source tokens lack the end symbol, such as the points in time that a forecaster reads."""
    target_of_tokens: bool = False
    """True if each target token counts as a word, such as a parser's tree symbols; False if tokens are joined to words.
    """
    special_tokens: tuple[str, ...] = ()
    """Special tokens, which belong to no word, in a model that reads one text, sorted; empty for a sentence pair."""

    source_pieces = renamed_attribute("source_pieces", "source_tokens")
    target_pieces = renamed_attribute("target_pieces", "target_tokens")
    decoder_pieces = renamed_attribute("decoder_pieces", "decoder_tokens")
    marks = renamed_attribute("marks", "special_tokens")

    @property
    def kinds(self) -> tuple[AttentionKind, ...]:
        """Names of the kinds of attention that the model has, a tuple with cross-attention (`memory`) first."""
        kinds: tuple[AttentionKind, ...] = get_args(AttentionKind)
        return tuple(kind for kind in kinds if self.of(kind)[0].shape[0])

    def of(self, kind: AttentionKind) -> tuple[Weights, tuple[str, ...], tuple[str, ...]]:
        """Return the weights of a kind of attention, and the query and key tokens that name its rows and columns.

        The weights are (layers, heads, Q, L), and the result is the tuple (weights, Q query tokens, L key tokens).
        """
        source, target = self.source_tokens, self.target_tokens
        if kind == "encoder":
            return self.encoder, source, source
        if kind == "memory":
            return self.memory, target, source
        if self.decoder_tokens:  # a language model's rows are named by what they read
            return self.decoder, self.decoder_tokens, self.decoder_tokens
        return self.decoder, target, ("<start>", *target[:-1])

    def _repr_html_(self) -> str:
        return small_heat_maps(self.of(self.kinds[0])[0])


@explain_wrong_types
def attention_maps(reader: Reader, source: str | ArrayLike, target: str | None = None) -> AttentionMaps:
    """Return the attention weights of a model for a text, or a sentence and its translation, as `AttentionMaps`.

    Args:
        reader: a loaded model of any kind that has attention, as `transduce.load` returns it.
        source: a text; for a forecaster, the history (S, C).
        target: for a translator, a translation of the text; None: the model's own.

    Raises:
        TransduceError: the object is no loaded model or is an ensemble, or the model has no attention.
    """
    return maps_of(read(reader, source, target))


def maps_of(reading: Reading) -> AttentionMaps:
    """Return, as `AttentionMaps`, a model's attention weights for the text of a `Reading`, the result of `read`.

    Raises:
        TransduceError: the model has no attention.
    """
    if not any(point.name.endswith(".weights") for point in hook_points(reading.model)):
        raise TransduceError(
            "This model has no attention to look at, because `model.recurrent_attention` is none: train it with luong "
            "or bahdanau."
        )
    with torch.inference_mode(), record_activations(reading.model, "*.weights") as recording:
        reading.forward()
    past = [recording.layers("decoder", f"{name}_attention.weights") for name in ("self", "past")]
    is_pair = bool(reading.source_tokens and reading.decoder_tokens)
    return AttentionMaps(
        source_tokens=reading.source_tokens,
        target_tokens=reading.outputs if reading.decoder_tokens else (),
        encoder=stack_layers(recording.layers("encoder", "self_attention.weights")),
        decoder=stack_layers(past[0] or past[1]),
        memory=stack_layers(recording.layers("decoder", "memory_attention.weights")),
        ended=bool(reading.labels),
        source_ended=bool(reading.labels),
        target_of_tokens=isinstance(reading.reader, Parser),
        decoder_tokens=() if is_pair else reading.decoder_tokens,
        special_tokens=tuple(sorted(reading.special_tokens)),
    )


def stack_layers(layers: list[torch.Tensor]) -> Weights:
    """Return the attention weights of layers, a list of tensors (1, heads, queries, keys), as one array.

    The array's shape is (layers, heads, queries, keys), and (0, 0, 0, 0) without layers.
    """
    if not layers:
        return np.zeros((0, 0, 0, 0), dtype=np.float32)
    stacked = torch.stack([layer[0].float() for layer in layers])  # (N, H, Q, L)
    return np.asarray(stacked.cpu().numpy(), dtype=np.float32)


class WordAttention(msgspec.Struct, frozen=True):
    """Attention of each target word to each source word; in a model of one text, of each word to each word."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: Weights
    """Attention weights from 0 to 1, (target words, source words)."""

    def _repr_html_(self) -> str:
        return shaded_table(self.target_words, self.source_words, self.weights)


@explain_wrong_types
def word_attention(maps: AttentionMaps) -> WordAttention:
    """Return a `WordAttention`: attention between words, computed from attention between tokens.

    Attention is averaged over the attending word's tokens, and summed over the attended word's. Cross-attention is used
    if the model has it, and otherwise self-attention. Layers and heads are averaged, and heads with sharper attention
    count more.
    """
    if maps.memory.shape[0] or not maps.kinds:
        num_tokens = len(maps.target_tokens) - maps.ended
        num_source = len(maps.source_tokens) - maps.source_ended
        columns, targets = group_words(maps.source_tokens[:num_source]), maps.target_tokens[:num_tokens]
        rows = (targets, [[n] for n in range(num_tokens)]) if maps.target_of_tokens else group_words(targets)
        weights = maps.memory[:, :, :num_tokens, :num_source]
    else:
        weights, tokens, _ = maps.of(maps.kinds[0])
        rows = columns = _words_without_special_tokens(tokens, maps.special_tokens)
    if not (rows[0] and columns[0]):
        return WordAttention(columns[0], rows[0], np.zeros((len(rows[0]), len(columns[0])), dtype=np.float32))
    mean = _average_heads(weights)  # (Q, L)
    result = attention_between_words(mean, _spelling(rows[1], mean.shape[0]), _spelling(columns[1], mean.shape[1]))
    return WordAttention(columns[0], rows[0], result.astype(np.float32))


def attention_between_words(
    weights: Weights, queries: npt.NDArray[Any], keys: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return attention between words: averaged over the attending word's tokens, summed over the attended word's.

    Args:
        weights: attention between tokens, (…, Q, L).
        queries: how much of each token belongs to each attending word, (words, Q).
        keys: how much of each token belongs to each attended word, (words, L).

    Returns:
        The attention between words, (…, attending words, attended words), float64.
    """
    means = queries / np.maximum(queries.sum(axis=1, keepdims=True), 1.0)
    return np.asarray(means.astype(np.float64) @ weights.astype(np.float64) @ keys.T)


def _spelling(groups: Sequence[Sequence[int]], num_tokens: int) -> Weights:
    """Return a matrix of 1 where a token spells a word and 0 elsewhere, (words, tokens).

    `groups` has, for each word, the indices of its tokens.
    """
    matrix = np.zeros((len(groups), num_tokens), dtype=np.float32)
    for row, group in zip(matrix, groups, strict=True):
        row[group] = 1.0
    return matrix


def _words_without_special_tokens(
    tokens: Sequence[str], special_tokens: Sequence[str]
) -> tuple[tuple[str, ...], list[list[int]]]:
    is_text = [token not in special_tokens for token in tokens]
    words, groups = group_words([token for token, keep in zip(tokens, is_text, strict=True) if keep])
    positions = np.flatnonzero(is_text)
    return words, [positions[group].tolist() for group in groups]


def word_self_attention(maps: AttentionMaps) -> tuple[tuple[str, ...], Weights]:
    """Return a text's words, and the self-attention between the words, (layers, heads, words, words), as a pair.

    The self-attention is the encoder's, or the decoder's in a model without an encoder. Attention is averaged over the
    tokens of the attending word, and summed over those of the attended word. Attention to special tokens is left out,
    so that rows may sum to less than 1.

    Raises:
        TransduceError: the model has no self-attention.
    """
    kind = next((kind for kind in ("encoder", "decoder") if kind in maps.kinds), None)
    if kind is None:
        raise TransduceError("The figure shows self-attention, but this model has none: name a Transformer.")
    weights, tokens, _ = maps.of(kind)
    ends = kind == "encoder" and maps.source_ended and not maps.special_tokens
    words, groups = _words_without_special_tokens(tokens[: len(tokens) - ends], maps.special_tokens)
    spelling = _spelling(groups, weights.shape[-1])
    return words, attention_between_words(weights, spelling, spelling).astype(np.float32)


def _average_heads(memory: Weights) -> Weights:
    """Return attention averaged over layers and heads, (T, S), from (layers, heads, T, S).

    A head's weight is the squared mean of its rows' maxima, so that heads with sharp attention count more.
    """
    sharpness = memory.max(axis=-1).mean(axis=-1) ** 2  # (N, H)
    mixed = np.einsum("nh,nhts->ts", sharpness, memory) / sharpness.sum()
    return np.asarray(mixed, dtype=np.float32)


def group_words(tokens: Sequence[str]) -> tuple[tuple[str, ...], list[list[int]]]:
    """Return the words that tokens spell, a tuple, and a list with the indices of each word's tokens."""
    has_spaces = any("▁" in token for token in tokens)
    groups: list[list[int]] = []
    for index, token in enumerate(tokens):
        is_byte = byte_of(token) is not None
        is_start = index == 0 or (not has_spaces and not is_byte) or _begins_word(tokens[index - 1], token)
        is_start = is_start and (index == 0 or tokens[index - 1] != "▁" or token.startswith("▁"))
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
    """Return the text of one word from its tokens, with byte tokens decoded and without a leading ▁."""
    content = b""
    for token in tokens:
        byte = byte_of(token)
        content += token.encode() if byte is None else bytes([byte])
    return content.decode("utf-8", "replace").removeprefix("▁")
