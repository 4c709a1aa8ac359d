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
from transduce.model.layer_graph import Table, refusal
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual, each_layer
from transduce.model.positions import LearnedPositions, RelativePositions, SinusoidalPositions, sinusoids
from transduce.model.transformer import Transformer

# --- exported ---
# Interfaces of exported models, by which each is compared with the model that it was exported from.


# Maximum sequence length of an exported model, in tokens: the rows of its table of positions.
MAXIMUM_POSITIONS = 1024

Ids = Sequence[Sequence[int]]


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
            For each target a list with one number more than the target has tokens.
        """

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """Return a list of the ids that greedy search generates for each source or prompt, without the end symbol.

        The search never selects padding or the start symbol.

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
    "attention_window": "none some",
    "attention_score": "scaled dot general additive",
    "attention_kind": "soft hard",
    "attention_scale": "default other",
    "key_value_heads": "equal shared",
    "value_width": "equal other",
    "token_types": "none some",
}


def check_components(table: Table, model: nn.Module) -> None:
    """Raise an error if a model has a component that the format to which it is exported cannot represent.

    Args:
        table: the components that the format supports.
        model: the model to be exported.

    Raises:
        TransduceError: a component of the model is not in the format's table.
    """
    if (reason := refusal(table, model)) is not None:
        raise TransduceError(f"The model cannot be exported, because {reason}.")


class Linear(NamedTuple):
    """A linear layer's weight (outputs, inputs), and its bias (outputs,) or None."""

    weight: Tensor
    bias: Tensor | None


def linear_weights(module: nn.Linear) -> Linear:
    """Return a PyTorch linear layer's detached weight and bias (None without one) as `Linear`, sharing its memory."""
    return Linear(module.weight.detach(), None if module.bias is None else module.bias.detach())


def join(layers: list[Linear]) -> Linear:
    """Return one `Linear` whose outputs are the concatenated outputs of several layers with the same input.

    Either all layers have a bias, or none has.
    """
    biases = [part.bias for part in layers if part.bias is not None]
    return Linear(torch.cat([part.weight for part in layers]), torch.cat(biases) if biases else None)


class Projections(NamedTuple):
    """The query, key, value and output projections of a multi-head attention, as four linear layers."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear


def attention_projections(attention: MultiHeadAttention) -> Projections:
    """Return an attention's `Projections` (query, key, value, output), split from its joint input projection.

    They share the memory of the module's parameters.
    """
    joint = linear_weights(attention.projection)
    weights = joint.weight.split(attention.widths)
    biases = (None, None, None) if joint.bias is None else joint.bias.split(attention.widths)
    query, key, value = (Linear(weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return Projections(query, key, value, linear_weights(attention.output))


def scaled_attention_projections(attention: MultiHeadAttention) -> Projections:
    """Return the `Projections` of an equivalent attention with the score q · k / √width (Vaswani et al. 2017).

    Formats that know only this score need them. Another scaling factor is multiplied into the query projection, and so
    is the matrix W of the general score, (W q) · k.

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
        query = Linear(
            _times_matrix(query.weight, matrix), None if query.bias is None else _times_matrix(query.bias, matrix)
        )
    scaled = Linear(query.weight * score.factor, None if query.bias is None else query.bias * score.factor)
    return projections._replace(query=scaled)


def _times_matrix(rows: Tensor, matrix: Tensor) -> Tensor:
    """Return a query projection with each head's rows multiplied by the head's matrix of the general attention score.

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
    """Return the tensor of vectors added to the embeddings of positions 0, 1, …, (positions, model width), for export.

    Learned positions have as many rows as the model, sinusoids 1,024 (`MAXIMUM_POSITIONS`). The result is None if the
    model adds no vectors, as with rotary or relative positions.
    """
    if isinstance(embedding.positions, LearnedPositions):
        return embedding.positions.weight.detach()[embedding.positions.offset :]
    if not isinstance(embedding.positions, SinusoidalPositions):
        return None
    rows = config.position_offset + MAXIMUM_POSITIONS
    return sinusoids(rows, config.d_model, to_end=config.sinusoids_to_end)[config.position_offset :]


def relative_bias_table(relative: RelativePositions) -> Tensor:
    """Return T5's relative attention bias, a tensor (2m + 1, heads) for each distance from query to key and each head.

    Row m + d is for the distance d = key position - query position, clipped to -m … m with m = `max_distance`.
    """
    distances = torch.arange(-relative.max_distance, relative.max_distance + 1)
    bias: Tensor = relative(torch.zeros(1, dtype=torch.int64), distances)  # (1, H, 1, 2m + 1)
    return bias[0, :, 0].T.detach().contiguous()


def embedding_scale(config: ModelConfig) -> float:
    """Return the factor by which embeddings are multiplied: √d_model, or 1 if the model does not scale them."""
    return math.sqrt(config.d_model) if config.scale_embeddings else 1.0
