"""Give exporters a model's weights in the layout that they need, such as separate query, key and value projections.

Legend: D model width, H heads, G key/value heads, K width of a head's queries and keys, P positions.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.attention import MultiHeadAttention
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.layer_graph import SupportTable, refusal
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual, each_layer
from transduce.model.positions import LearnedPositions, RelativePositions, SinusoidalPositions, sinusoids
from transduce.model.transformer import Transformer

# --- exported models ---
# Interfaces of exported models, by which each is compared with the model that it was exported from, and what their
# implementations share. Legend: B texts, T positions, L tokens of a row, V vocabulary.


# Maximum sequence length of an exported model, in tokens: the rows of its table of positions.
MAXIMUM_POSITIONS = 1024

Ids = Sequence[Sequence[int]]


def max_sequence_length(config: ModelConfig) -> int:
    """Return the maximum number of tokens of a source or target in the exported model.

    The result is the number of learned positions, or 1,024 for other kinds of positions.
    """
    return config.max_positions if config.positions == "learned" else MAXIMUM_POSITIONS


@runtime_checkable
class ExportedModel(Protocol):
    """A protocol of exported models that generate text in any runtime, to compare them with their original.

    A translation model's source includes the special tokens that the encoder expects: the end symbol, a language tag. A
    language model's source is the prompt without its start symbol. Targets have neither a start nor an end symbol, but
    include the tag that begins every translation of some models.
    """

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probability, in nats, of each token of each target and of the end symbol behind it.

        Args:
            sources: token ids of each source or prompt.
            targets: token ids of the target or continuation for each source or prompt, without the end symbol.

        Returns:
            A list for each target, of one number more than the target has tokens.
        """

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """Return a list of generated token ids for each source or prompt, without the end symbol.

        The search is greedy and never selects padding. A translation model's search never selects the start symbol, and
        a language model's never the unknown token. Such a token may be selected, however, if it is also the end symbol.

        Args:
            sources: token ids of each source or prompt.
            max_tokens: the maximum number of tokens to generate per source; a result without an end has as many.
        """


@runtime_checkable
class ExportedEncoder(Protocol):
    """A protocol of exported encoder-only models, whatever runtime executes them, to compare them with the original."""

    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        """Compute an encoder's outputs; return a dict from an output's name to a list with one array for each text.

        Args:
            rows: token ids of each text, including special tokens such as [CLS] and [SEP].
            token_types: the segment (0 or 1) of each token of each text; all 0 if the model has no segments.

        Returns:
            `states` (tokens, width), `logits` (tokens, vocabulary size), `pooled` (width,) and `classes` of each text,
            as far as the model has them. The shape of `classes` is (classes,), or (tokens, classes) for a tagger.
        """


def padded(rows: Ids, filler: int, *, left: bool = False) -> Tensor:
    """Return the numbers of several rows as one int64 tensor, (rows, longest row), padded at the right with `filler`.

    There must be at least one row. With `left`, the padding is before the numbers, as continuing prompts needs.
    """
    width = max(map(len, rows))
    fillers = ([filler] * (width - len(row)) for row in rows)
    return torch.tensor(
        [[*fill, *row] if left else [*row, *fill] for row, fill in zip(rows, fillers, strict=True)], dtype=torch.int64
    )


def target_log_probabilities(logits: Tensor, targets: Ids, first: Sequence[int], eos_id: int) -> list[list[float]]:
    """Return a list for each target of the log-probabilities, in nats, of its tokens and of the end symbol behind it.

    Args:
        logits: the logits of a batch, (B, T, V).
        targets: token ids of each target.
        first: for each target, the index of the position whose logits predict the target's first token.
        eos_id: id of the end symbol.
    """
    log_probabilities = logits.log_softmax(dim=-1)
    return [
        rows[start : start + len(target) + 1].gather(-1, torch.tensor([[*target, eos_id]]).T)[:, 0].tolist()
        for rows, target, start in zip(log_probabilities, targets, first, strict=True)
    ]


def until_end(rows: list[list[int]], eos_id: int) -> list[list[int]]:
    """Return a list of each row's token ids before its first end symbol; a row without one keeps all ids."""
    return [row[: row.index(eos_id)] if eos_id in row else row for row in rows]


def split_outputs(outputs: NDArray[Any], rows: Ids) -> list[NDArray[Any]]:
    """Split a batch of an encoder's outputs into a list of one array for each text.

    Args:
        outputs: (B, L, C), of which each text gets (tokens, C) without padding, or (B, C), of which each gets (C,).
        rows: the token ids of each text, which show its length.
    """
    if outputs.ndim == 2:
        return list(outputs)
    return [each[: len(row)] for each, row in zip(outputs, rows, strict=True)]


# --- components ---


# Components that the exporters can read from a model. Each exporter narrows this to what its format can compute.
EXPORTABLE = {
    "class_": "Transformer Encoder Decoder Recurrent",
    "parametrization": "LowRankUpdate",
    "linear_layers": "Linear",
    "output_projection": "Linear",
    "norm": "layer rms batch",
    "norm_order": "pre post sandwich",
    "activation": "relu gelu gelu-tanh silu swiglu geglu geglu-tanh reglu",
    "positions": "sinusoidal learned rotary rotary-interleaved relative none",
    "position_bias": "relative",
    "embedding_projection": "some",
    "attention_window": "none past some",
    "attention": "query-key-norm",
    "attention_score": "scaled dot general additive",
    "attention_kind": "soft hard",
    "attention_scale": "default other",
    "key_value_heads": "equal shared",
    "value_width": "equal other",
    "token_types": "none some",
}


def check_components(table: SupportTable, model: nn.Module) -> None:
    """Raise an error if a model has a component that the format to which it is exported cannot represent.

    Args:
        table: the components that the format supports.
        model: the model to be exported.

    Raises:
        TransduceError: a component of the model is not in the format's table.
    """
    if (reason := refusal(table, model)) is not None:
        raise TransduceError(f"The model cannot be exported, because {reason}.")


class LinearWeights(NamedTuple):
    """A linear layer's weight (outputs, inputs), and its bias (outputs,) or None."""

    weight: Tensor
    bias: Tensor | None


def linear_weights(module: nn.Linear) -> LinearWeights:
    """Return a linear layer's detached weight and bias (None without one) as `LinearWeights`, sharing its memory."""
    return LinearWeights(module.weight.detach(), None if module.bias is None else module.bias.detach())


def join(layers: list[LinearWeights]) -> LinearWeights:
    """Return one `LinearWeights` whose outputs are the concatenated outputs of several layers with the same input.

    Either all layers have a bias, or none has.
    """
    biases = [part.bias for part in layers if part.bias is not None]
    return LinearWeights(torch.cat([part.weight for part in layers]), torch.cat(biases) if biases else None)


class Projections(NamedTuple):
    """The query, key, value and output projections of a multi-head attention, as four linear layers."""

    query: LinearWeights
    key: LinearWeights
    value: LinearWeights
    output: LinearWeights


def attention_projections(attention: MultiHeadAttention) -> Projections:
    """Return an attention's `Projections` (query, key, value, output), split from its joint input projection.

    The projections share the memory of the module's parameters.
    """
    joint = linear_weights(attention.projection)
    weights = joint.weight.split(attention.widths)
    biases = (None, None, None) if joint.bias is None else joint.bias.split(attention.widths)
    query, key, value = (LinearWeights(weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return Projections(query, key, value, linear_weights(attention.output))


def scaled_attention_projections(attention: MultiHeadAttention) -> Projections:
    """Return the `Projections` of an equivalent attention that uses the scaled dot product.

    Its score is q · k / √width (Vaswani et al. 2017), the only one that some export formats know. Another scaling
    factor is multiplied into the query projection. So is the matrix W of the general score, (W q) · k.

    Raises:
        ValueError: the score is additive, or the attention is hard.
    """
    projections = attention_projections(attention)
    score = attention.score
    if score is None:
        return projections
    if score.vector is not None or score.hard:
        raise ValueError("an additive score or a hard attention is no scaled dot product")
    query = projections.query
    if score.matrix is not None:
        matrix = score.matrix.detach()
        query = LinearWeights(
            _times_matrix(query.weight, matrix), None if query.bias is None else _times_matrix(query.bias, matrix)
        )
    scaled = LinearWeights(query.weight * score.factor, None if query.bias is None else query.bias * score.factor)
    return projections._replace(query=scaled)


def _times_matrix(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply each head's rows of a query projection by the head's matrix, and return the product.

    The matrices are those of the general attention score.

    Args:
        rows: the projection's weight, (H K, D), or bias, (H K,), for H heads of width K; the result has this shape.
        matrix: the matrices, (H, K, K), which are transposed before the product.
    """
    heads = rows.reshape(matrix.shape[0], matrix.shape[1], -1)  # (H, K, D), or (H, K, 1) for a bias
    return (matrix.transpose(1, 2) @ heads).reshape(rows.shape)


def has_sandwich_norm(residual: Residual) -> bool:
    """Return whether a sub-layer has a norm both before and after its function (sandwich norm)."""
    return not isinstance(residual.norm_before, nn.Identity) and not isinstance(residual.norm_after, nn.Identity)


def encoder_layers_of(model: Transformer) -> list[EncoderLayer]:
    """Return a list of a model's encoder layers in the order of use.

    A layer that is used repeatedly occurs as often.
    """
    return [cast(EncoderLayer, layer) for layer in each_layer(model.encoder_layers, model.config.num_encoder_layers)]


def decoder_layers_of(model: Transformer) -> list[DecoderLayer]:
    """Return a list of a model's decoder layers in the order of use.

    A layer that is used repeatedly occurs as often.
    """
    return [cast(DecoderLayer, layer) for layer in each_layer(model.decoder_layers, model.config.num_decoder_layers)]


def position_encoding_table(embedding: Embedding, config: ModelConfig) -> Tensor | None:
    """Return the vectors that a model adds to embeddings, (positions, width), one for each position from 0.

    The table has as many rows as the model has learned positions, or 1,024 rows (`MAXIMUM_POSITIONS`) of sinusoids. The
    result is None if the model adds no vectors, as with rotary or relative positions.
    """
    if isinstance(embedding.positions, LearnedPositions):
        return embedding.positions.weight.detach()[embedding.positions.offset :]
    if not isinstance(embedding.positions, SinusoidalPositions):
        return None
    rows = config.position_offset + MAXIMUM_POSITIONS
    return sinusoids(rows, config.embedding_width, to_end=config.sinusoids_to_end)[config.position_offset :]


def relative_bias_table(relative: RelativePositions) -> Tensor:
    """Return T5's relative attention bias as a table, (2m + 1, heads), with a row for each distance.

    A distance d is key position - query position, clipped to -m … m with m = `max_distance`. Row m + d has its bias.
    """
    distances = torch.arange(-relative.max_distance, relative.max_distance + 1)
    bias: Tensor = relative(torch.zeros(1, dtype=torch.int64), distances)  # (1, H, 1, 2m + 1)
    return bias[0, :, 0].T.detach().contiguous()


def embedding_scale(config: ModelConfig) -> float:
    """Return the factor by which embeddings are multiplied: √ of their width, or 1 if the model does not scale them."""
    return math.sqrt(config.embedding_width) if config.scale_embeddings else 1.0
