"""What a model attends to while it translates.

Legend: N layers, H heads, S source pieces with the end symbol, T target pieces with the end symbol.
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

# --- notebook ---
# What shows itself in a notebook, as HTML without scripts: tables of shades and small heat maps.
# Legend: N layers, H heads, Q queries, L keys.


_RGB = "11, 110, 153"
_CELL_PIXELS = 6
_LEAST_SHOWN = 0.004


def shaded_table(
    rows: Sequence[str], columns: Sequence[str], weights: Sequence[Sequence[float]] | npt.NDArray[np.float32]
) -> str:
    """A table with a shade and a figure for each weight from 0 to 1; columns are headed, rows begin with their name."""
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
    """Every head of every layer (N, H, Q, L) as a small picture: a row a layer, a column a head."""
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
        for query, key in np.argwhere(weights >= _LEAST_SHOWN).tolist()
    )
    size = f"width='{keys * _CELL_PIXELS}' height='{queries * _CELL_PIXELS}' viewBox='0 0 {keys} {queries}'"
    return f"<svg {size} style='border: 1px solid #ccc' fill='rgb({_RGB})'>{cells}</svg>"


def framed(page: str, *, height_pixels: int = 720) -> str:
    """A whole page inside a notebook, on its own so that its style touches nothing else."""
    style = f"width: 100%; height: {height_pixels}px; border: 1px solid #ccc"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page, quote=True)}"></iframe>'


# --- attention ---


Weights = npt.NDArray[np.float32]


class AttentionMaps(msgspec.Struct, frozen=True):
    """Attention weights of every layer and head, for one sentence pair. Each row sums to 1."""

    source_pieces: tuple[str, ...]
    target_pieces: tuple[str, ...]
    encoder: Weights
    """(N, H, S, S): row s is what source piece s attends to."""
    decoder: Weights
    """(N, H, T, T): row t is what target pieces before t the model attends to while it predicts piece t."""
    memory: Weights
    """(N, H, T, S): row t is what source pieces it attends to while it predicts piece t."""
    ended: bool = True
    """Whether the last target piece is the end symbol: not so where a search was cut."""

    def _repr_html_(self) -> str:
        return small_heat_maps(self.memory)


def attention_maps(translator: Translator, source: str, target: str | None = None) -> AttentionMaps:
    """The attention of a model for a sentence and its translation.

    Args:
        translator: the model, a Transformer, and its tokenizer.
        source: a sentence.
        target: a translation of it; the model's own where nothing is said.

    Raises:
        TransduceError: it is no Transformer that translates, or several.
    """
    if not isinstance(translator, Translator):
        raise TransduceError(
            f"Attention maps are those of a translator, but this is a {type(translator).__name__}: load a "
            "model that translates."
        )
    refuse_ensembles(translator)
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


def refuse_ensembles(translator: Translator) -> None:
    """Refuses several models that translate together.

    Raises:
        TransduceError: they are several.
    """
    if len(translator.models) > 1:
        raise TransduceError(
            f"How a translation came about is shown of one model, but here {len(translator.models)} translate "
            "together: load one of them."
        )


def stack_layers(layers: list[torch.Tensor]) -> Weights:
    """A trace's layers, (1, H, Q, L) each, as one array (N, H, Q, L)."""
    stacked = torch.stack([layer[0].float() for layer in layers])  # (N, H, Q, L)
    return np.asarray(stacked.cpu().numpy(), dtype=np.float32)


class WordAttention(msgspec.Struct, frozen=True):
    """Attention between words: how much each target word looks at each source word."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: Weights
    """(target words, source words)."""

    def _repr_html_(self) -> str:
        return shaded_table(self.target_words, self.source_words, self.weights)


def word_attention(maps: AttentionMaps) -> WordAttention:
    """Attention to the memory from word to word: over a word's source pieces the sum, over its target pieces the mean.

    Layers and heads are averaged by how decided they are: a head that looks everywhere says little.
    """
    source_words, source_groups = group_words(maps.source_pieces[:-1])
    written = len(maps.target_pieces) - maps.ended
    target_words, target_groups = group_words(maps.target_pieces[:written])
    weights = np.zeros((len(target_words), len(source_words)), dtype=np.float32)
    if weights.size == 0:
        return WordAttention(source_words, target_words, weights)
    mixed = _mix_heads(maps.memory[:, :, :written, :-1])  # (T - 1, S - 1), or (T, S - 1) without an end symbol
    for row, target_group in enumerate(target_groups):
        for column, source_group in enumerate(source_groups):
            weights[row, column] = mixed[np.ix_(target_group, source_group)].sum(axis=1).mean()
    return WordAttention(source_words, target_words, weights)


def _mix_heads(memory: Weights) -> Weights:
    """(N, H, T, S) to (T, S), each head by the square of its mean greatest weight."""
    decided = memory.max(axis=-1).mean(axis=-1) ** 2  # (N, H)
    mixed = np.einsum("nh,nhts->ts", decided, memory) / decided.sum()
    return np.asarray(mixed, dtype=np.float32)


def group_words(tokens: Sequence[str]) -> tuple[tuple[str, ...], list[list[int]]]:
    """Words, and the numbers of the pieces of each.

    A word begins at a piece with ▁. In a script without spaces every piece is a word, and so is a character that is
    spelt in bytes. A ▁ with no word after it is left out.
    """
    groups: list[list[int]] = []
    for number, piece in enumerate(tokens):
        begins = number == 0 or _begins_word(tokens[number - 1], piece)
        if begins:
            groups.append([number])
        else:
            groups[-1].append(number)
    spelt = [(_spell([tokens[number] for number in group]), group) for group in groups]
    return tuple(word for word, _ in spelt if word), [group for word, group in spelt if word]


def _begins_word(before: str, token: str) -> bool:
    byte = byte_of(token)
    if byte is not None:
        return byte >= 0xC0  # a byte from 0x80 to 0xBF goes on with a character, one below is of an alphabet
    return token.startswith("▁") or bool(unspaced_characters(before + token)) or byte_of(before) is not None


def _spell(tokens: Sequence[str]) -> str:
    """The text of a word's pieces."""
    content = b""
    for piece in tokens:
        byte = byte_of(piece)
        content += piece.encode() if byte is None else bytes([byte])
    return content.decode("utf-8", "replace").removeprefix("▁")
