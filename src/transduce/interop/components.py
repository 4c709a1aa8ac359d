"""A model's bricks as other programs want them: projections one by one, positions as one table.

Legend: D model width, H heads, G heads of keys and values, K width of a head's queries and keys, P positions.
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
# What every exported model can do here, so that it can be compared with the model that it came from.


# The longest sequence of an exported model, in pieces: rows of its table of positions.
MAXIMUM_POSITIONS = 1024

Ids = Sequence[Sequence[int]]


@runtime_checkable
class ExportedModel(Protocol):
    """A model that writes, wherever it runs.

    A translation model's source is what it reads, with all that stands around it: the end symbol, a language's tag. A
    language model's source is the prompt that it continues, without what begins it. Targets are pieces without start
    and end symbols; a tag that every translation begins with is one of them.
    """

    def log_probabilities(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """What the model gives each target's pieces and, after them, the end symbol, in nats."""

    def translate(self, sources: Ids, max_tokens: int) -> list[list[int]]:
        """The pieces that greedy search finds, at most so many; padding and the start symbol are never chosen."""


@runtime_checkable
class ExportedEncoder(Protocol):
    """A model that reads, wherever it runs."""

    def outputs(self, rows: Ids, token_types: Ids) -> Mapping[str, list[NDArray[Any]]]:
        """What the model computes of each row, by name.

        Args:
            rows: pieces, marks included.
            token_types: the segment of each; all 0 where the model has none.

        Returns:
            `states` (pieces, D), `logits` (pieces, V), `pooled` (D,) and `classes` (C,) of each row, as far as the
            model has them.
        """


# --- components ---


# What all converters of this package can read from a model; each lists what its format can compute.
READABLE = {
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
    """Refuse a model that a format cannot represent.

    Raises:
        TransduceError: a component of the model is not in the format's table.
    """
    if (reason := refusal(table, model)) is not None:
        raise TransduceError(f"The model cannot be exported, because {reason}.")


class Linear(NamedTuple):
    """A weight (outputs, inputs), and a bias (outputs,) where there is one."""

    weight: Tensor
    bias: Tensor | None


def linear_of(module: nn.Linear) -> Linear:
    """The weight and the bias of a layer."""
    return Linear(module.weight.detach(), None if module.bias is None else module.bias.detach())


def join(parts: list[Linear]) -> Linear:
    """Layers over the same inputs as one layer."""
    biases = [part.bias for part in parts if part.bias is not None]
    return Linear(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)


class Projections(NamedTuple):
    """The four layers of an attention."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear


def projections_of(attention: MultiHeadAttention) -> Projections:
    """The four layers, as they are."""
    joint = linear_of(attention.projection)
    weights = joint.weight.split(attention.widths)
    biases = (None, None, None) if joint.bias is None else joint.bias.split(attention.widths)
    query, key, value = (Linear(weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return Projections(query, key, value, linear_of(attention.output))


def scaled_projections_of(attention: MultiHeadAttention) -> Projections:
    """The four layers of an attention whose score is a dot product over √d_k, equation (1), whatever it is in ours.

    Another factor is multiplied into the queries' layer, and so is the matrix of the general score: (W q) · k.

    Raises:
        ValueError: the score is additive, or the attention is hard.
    """
    parts = projections_of(attention)
    score = attention.score
    if score is None:
        return parts
    if score.vector is not None or score.hard:
        raise ValueError("an additive score or a hard attention is no scaled dot product")
    query = parts.query
    if score.matrix is not None:
        matrix = score.matrix.detach()
        query = Linear(
            _times_matrix(query.weight, matrix), None if query.bias is None else _times_matrix(query.bias, matrix)
        )
    scaled = Linear(query.weight * score.factor, None if query.bias is None else query.bias * score.factor)
    return parts._replace(query=scaled)


def _times_matrix(rows: Tensor, matrix: Tensor) -> Tensor:
    """What makes q W of q, for each head: rows (H × K, …) with a matrix (H, K, K)."""
    heads = rows.reshape(matrix.shape[0], matrix.shape[1], -1)  # (H, K, D), or (H, K, 1) of a bias
    return (matrix.transpose(1, 2) @ heads).reshape(rows.shape)


def has_two_norms(residual: Residual) -> bool:
    """Whether a sub-layer stands between two norms, a sandwich."""
    return not isinstance(residual.norm_before, nn.Identity) and not isinstance(residual.norm_after, nn.Identity)


def encoder_layers_of(model: Transformer) -> list[EncoderLayer]:
    """In the order of their use; one stands there several times where all are one."""
    return [cast(EncoderLayer, layer) for layer in each_layer(model.encoder_layers, model.config.num_encoder_layers)]


def decoder_layers_of(model: Transformer) -> list[DecoderLayer]:
    """The same of the decoder."""
    return [cast(DecoderLayer, layer) for layer in each_layer(model.decoder_layers, model.config.num_decoder_layers)]


def added_positions(embedding: Embedding, config: ModelConfig) -> Tensor | None:
    """What is added to the embeddings of positions 0 … P-1, (P, D); None where nothing is."""
    if isinstance(embedding.positions, LearnedPositions):
        return embedding.positions.weight.detach()[embedding.positions.offset :]
    if not isinstance(embedding.positions, SinusoidalPositions):
        return None
    rows = config.position_offset + MAXIMUM_POSITIONS
    return sinusoids(rows, config.d_model, to_end=config.sinusoids_to_end)[config.position_offset :]


def bias_by_distance(relative: RelativePositions) -> Tensor:
    """T5's bias for the distances -m … m (key minus query, m the greatest that is told apart), (2m + 1, H)."""
    reach = torch.arange(-relative.max_distance, relative.max_distance + 1)
    bias: Tensor = relative(torch.zeros(1, dtype=torch.int64), reach)  # (1, H, 1, 2m + 1)
    return bias[0, :, 0].T.detach().contiguous()


def embedding_scale(config: ModelConfig) -> float:
    """What embeddings are multiplied by."""
    return math.sqrt(config.d_model) if config.scale_embeddings else 1.0
