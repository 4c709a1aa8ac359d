"""Build a model's components and layers as ONNX operators, with masks, caches and the output projection.

Each function adds operators to a graph, whose values are represented by their names (strings).

Legend: B batch, T positions of this call, L positions that are attended to, S source length, D model width, H heads, G
key/value heads, K width of a head's queries and keys, V width of its values; in logits, V is the vocabulary size.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.errors import import_extra
from transduce.interop.components import (
    MAXIMUM_POSITIONS,
    LinearWeights,
    attention_projections,
    embedding_scale,
    has_sandwich_norm,
    linear_weights,
    position_encoding_table,
    relative_bias_table,
)
from transduce.model.attention import MultiHeadAttention, QueryKeyNormAttention, ScoredAttention
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding, VocabularyModel
from transduce.model.feed_forward import FeedForward, GatedFeedForward
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual, StackPositions
from transduce.model.norms import BatchNorm
from transduce.model.positions import RelativePositions

# --- graph builder ---


# The oldest operator set with all needed operators: LayerNormalization needs 17, Gelu 20.
OPSET = 20
IR_VERSION = 10
# An ONNX file is limited to 2 GiB; larger weights are stored in a second file.
MAX_FILE_BYTES = 2_000_000_000

Shape = Sequence[int | str]


class Graph:
    """An ONNX graph under construction: nodes, weights, inputs and outputs. A value in it is its name, a string."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._onnx = import_extra("onnx", "export")
        self._nodes: list[Any] = []
        self._weights: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        # Keeping a reference to the tensor prevents reuse of its address, which is the key.
        self._names_by_tensor: dict[tuple[Any, ...], tuple[str, Tensor]] = {}

    # --- inputs and outputs ---

    def add_input(self, name: str, dtype: type, shape: Shape) -> str:
        """Add an input to the ONNX graph and return its name.

        Args:
            name: the name.
            dtype: NumPy's type of its elements.
            shape: its sizes; a string names an axis of any size.
        """
        self._inputs.append(self._describe(name, dtype, shape))
        return name

    def add_output(self, value: str, name: str, dtype: type, shape: Shape) -> None:
        """Make a value of the ONNX graph one of its outputs.

        Args:
            value: the value's name in the graph.
            name: the name of the output.
            dtype: NumPy's type of its elements.
            shape: its sizes; a string names an axis of any size.
        """
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._describe(name, dtype, shape))

    def _describe(self, name: str, dtype: type, shape: Shape) -> Any:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._onnx.helper.make_tensor_value_info(name, kind, list(shape))

    # --- constants ---

    def weight(self, tensor: Tensor) -> str:
        """Add a tensor as a constant of the ONNX graph and return its name; a tensor used repeatedly is stored once."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if key not in self._names_by_tensor:
            name = self._store(tensor.detach().contiguous().numpy())
            self._names_by_tensor[key] = (name, tensor)
        return self._names_by_tensor[key][0]

    def matrix(self, weight: Tensor) -> str:
        """Add a linear layer's weight (outputs, inputs) as a constant (inputs, outputs), as ONNX's MatMul needs it.

        The constant's name is returned.
        """
        return self.weight(weight.T)

    def integers(self, *values: int) -> str:
        """Add a constant int64 vector of these values to the ONNX graph, and return its name."""
        return self._store(np.array(values, dtype=np.int64))

    def integer(self, value: int) -> str:
        """Add a constant int64 scalar to the ONNX graph, and return its name."""
        return self._store(np.array(value, dtype=np.int64))

    def number(self, value: float) -> str:
        """Add a constant float32 scalar to the ONNX graph, and return its name."""
        return self._store(np.array(value, dtype=np.float32))

    def _store(self, array: NDArray[Any]) -> str:
        small = array.size <= 8
        name = (
            f"constant_{array.dtype.name}_{array.shape}_{array.tolist()}" if small else f"weight_{len(self._weights)}"
        )
        if name not in self._weights:
            self._weights[name] = self._onnx.numpy_helper.from_array(array, name)
        return name

    # --- nodes ---

    def apply(self, operator: str, *values: str, attributes: Mapping[str, Any] | None = None) -> str:
        """Add an ONNX operator with one result to the graph, and return the result's name.

        Args:
            operator: the operator, such as `MatMul`.
            *values: names of its inputs.
            attributes: its attributes by name; None: none.
        """
        return self.results(operator, values, 1, attributes or {})[0]

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        """Add an ONNX operator that splits a value along its last axis, and return a list of the names of the parts.

        Args:
            value: name of the value.
            sizes: the sizes of the parts along the axis.
        """
        return self.results("Split", (value, self.integers(*sizes)), len(sizes), {"axis": -1})

    def results(self, operator: str, values: Sequence[str], count: int, attributes: Mapping[str, Any]) -> list[str]:
        """Add an ONNX operator to the graph, and return a list of the names of its first `count` results.

        Args:
            operator: the operator, such as `LSTM`.
            values: names of its inputs; an empty string omits an input.
            count: number of results.
            attributes: its attributes by name.
        """
        names = [f"{operator}_{len(self._nodes)}_{number}" for number in range(count)]
        node = self._onnx.helper.make_node(operator, list(values), names, name=f"{operator}_{len(self._nodes)}")
        node.attribute.extend(self._onnx.helper.make_attribute(name, value) for name, value in attributes.items())
        self._nodes.append(node)
        return names

    def cast(self, value: str, dtype: type) -> str:
        """Add an ONNX operator that converts a value to another NumPy dtype, and return the result's name."""
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.apply("Cast", value, attributes={"to": kind})

    def size(self, value: str, axis: int) -> str:
        """Add an ONNX operator that computes a value's size along an axis, and return the name of its result.

        The result is an int64 vector of one number.
        """
        return self.apply("Shape", value, attributes={"start": axis, "end": axis + 1})

    def reshape(self, value: str, *sizes: int) -> str:
        """Add an ONNX operator that reshapes a value, and return the result's name.

        A size of 0 keeps the size of the axis, and -1 infers it.
        """
        return self.apply("Reshape", value, self.integers(*sizes))

    def transpose(self, value: str, *axes: int) -> str:
        """Add an ONNX operator that permutes a value's axes, and return the result's name."""
        return self.apply("Transpose", value, attributes={"perm": list(axes)})

    def unsqueeze(self, value: str, *axes: int) -> str:
        """Add an ONNX operator that inserts axes of size 1 at these indices of the result's shape; return its name."""
        return self.apply("Unsqueeze", value, self.integers(*axes))

    def count(self, first: str, end: str) -> str:
        """Add ONNX operators that list the integers from `first` to `end` (exclusive), and return the vector's name.

        The arguments `first` and `end` are names of int64 vectors of one number.
        """
        first, end = (self.apply("Squeeze", value, self.integers(0)) for value in (first, end))
        return self.apply("Range", first, end, self.integer(1))

    # --- the file ---

    def save(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write the graph to an ONNX file, and check the file with full shape inference.

        Args:
            path: the file; weights over 2 GB go into a second file with `.data` appended to its name.
            metadata: string properties that are stored in the model.
        """
        weights = list(self._weights.values())
        graph = self._onnx.helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, weights)
        model = self._onnx.helper.make_model(
            graph,
            opset_imports=[self._onnx.helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="transduce",
        )
        self._onnx.helper.set_model_props(model, dict(metadata))
        external = sum(len(weight.raw_data) for weight in weights) > MAX_FILE_BYTES
        self._onnx.save_model(
            model, str(path), save_as_external_data=external, location=f"{path.name}.data" if external else None
        )
        self._onnx.checker.check_model(str(path), full_check=True)


# --- components ---


class Context(NamedTuple):
    """The values of an ONNX graph that the self-attentions of all layers share: a bias and rotary positions."""

    bias: str
    """A bias on the attention scores, which also masks keys, broadcastable to (batch, heads, queries, keys)."""
    rotation: tuple[str, str] | None
    """The names of the cosines and sines of rotary positions, (batch or 1, 1, positions, head width / 2) each; None
    without them.
    """
    interleaved: bool
    """True if rotary positions rotate the pairs of dimensions (2i, 2i + 1) instead of (i, i + head width / 2)."""


class KeysAndValues(NamedTuple):
    """The names of an attention's keys and values in an ONNX graph, (B, key/value heads, positions, width) each."""

    keys: str
    values: str


class Memory(NamedTuple):
    """The encoder output that a decoder layer attends to, as names of values in an ONNX graph."""

    known: KeysAndValues
    """The keys and values of the encoder output that the layer's cross-attention projected."""
    bias: str
    """A bias on the attention scores that masks the source's padding."""


def build_linear(graph: Graph, x: str, layer: LinearWeights) -> str:
    """Add a linear layer to an ONNX graph, from x (…, inputs) to the result (…, outputs), whose name is returned."""
    y = graph.apply("MatMul", x, graph.matrix(layer.weight))
    return y if layer.bias is None else graph.apply("Add", y, graph.weight(layer.bias))


def build_norm(graph: Graph, x: str, norm: nn.Module | None) -> str:
    """Add a LayerNorm, RMSNorm or BatchNorm (with its running statistics) to an ONNX graph, applied to the value x.

    Returns:
        The name of the result, of x's shape; x itself if the norm is None or nn.Identity.

    Raises:
        ValueError: the norm is of another class.
    """
    if isinstance(norm, nn.LayerNorm):
        attributes = {"axis": -1, "epsilon": norm.eps}
        weights = (graph.weight(norm.weight), graph.weight(norm.bias))
        return graph.apply("LayerNormalization", x, *weights, attributes=attributes)
    if isinstance(norm, nn.RMSNorm):
        squares = graph.apply("ReduceMean", graph.apply("Mul", x, x), graph.integers(-1))
        root = graph.apply("Sqrt", graph.apply("Add", squares, graph.number(norm.eps or 0.0)))
        return graph.apply("Mul", graph.apply("Div", x, root), graph.weight(norm.weight))
    if isinstance(norm, BatchNorm):
        scale = (norm.running_variance + norm.epsilon).rsqrt() * norm.weight
        shift = norm.bias - norm.running_mean * scale
        return graph.apply("Add", graph.apply("Mul", x, graph.weight(scale)), graph.weight(shift))
    if norm is not None and not isinstance(norm, nn.Identity):
        raise ValueError(f"there is no graph of {type(norm).__name__}")
    return x


def build_activation(graph: Graph, x: str, name: str) -> str:
    """Add an activation function to an ONNX graph, applied to the value x, and return the result's name.

    Args:
        graph: the graph to extend.
        x: the value.
        name: the value of the model's setting `activation`; for a gated layer such as `swiglu`, the function is the
            gate's.
    """
    if name in ("relu", "reglu"):
        return graph.apply("Relu", x)
    if name in ("silu", "swiglu"):
        return graph.apply("Mul", x, graph.apply("Sigmoid", x))
    return graph.apply("Gelu", x, attributes={"approximate": "tanh" if name.endswith("-tanh") else "none"})


def build_feed_forward(graph: Graph, x: str, layer: FeedForward | GatedFeedForward, config: ModelConfig) -> str:
    """Add a plain or gated feed-forward network to an ONNX graph, from x (B, T, D) to a result of the same shape.

    The name of the result is returned.
    """
    inner = build_linear(graph, x, linear_weights(layer.inner))
    if isinstance(layer, GatedFeedForward):
        gate, linear = graph.split(inner, [config.d_ff, config.d_ff])
        inner = graph.apply("Mul", build_activation(graph, gate, config.activation), linear)
    else:
        inner = build_activation(graph, inner, config.activation)
    return build_linear(graph, inner, linear_weights(layer.outer))


def build_embedding(
    graph: Graph,
    ids: str,
    positions: str,
    embedding: Embedding,
    weight: Tensor,
    config: ModelConfig,
    *,
    token_types: str | None = None,
) -> str:
    """Add an embedding with its scale, positions, token types and norm to an ONNX graph: ids (B, T) to (B, T, D).

    The name of the result is returned.

    Args:
        graph: the graph to extend.
        ids: token ids, (B, T).
        positions: the position of each token, (B or 1, T).
        embedding: the module to convert.
        weight: the embedding matrix.
        config: the model's configuration.
        token_types: the segment of each token, (B, T); None: no embeddings of segments are added.
    """
    x = graph.apply("Gather", graph.weight(weight.detach()), ids)
    scale = embedding_scale(config)
    if scale != 1.0:
        x = graph.apply("Mul", x, graph.number(scale))
    encodings = position_encoding_table(embedding, config)
    if encodings is not None:
        x = graph.apply("Add", x, graph.apply("Gather", graph.weight(encodings), positions))
    if embedding.token_types is not None and token_types is not None:
        x = graph.apply("Add", x, graph.apply("Gather", graph.weight(embedding.token_types.detach()), token_types))
    x = build_norm(graph, x, embedding.norm)
    return x if embedding.projection is None else build_linear(graph, x, linear_weights(embedding.projection))


def after_sublayer(graph: Graph, x: str, y: str, residual: Residual) -> str:
    """Add a sub-layer's residual connection and the norm after it, if it has one, to an ONNX graph.

    Args:
        graph: the graph to extend.
        x: the sub-layer's input before its norm, (B, T, D).
        y: the sub-layer's output, (B, T, D).
        residual: the norms around the sub-layer.

    Returns:
        The name of norm(x + y), or of x + y if no norm follows. A sub-layer with norms before and after it (sandwich
        norm) returns x + norm(y).
    """
    if has_sandwich_norm(residual):
        return graph.apply("Add", x, build_norm(graph, y, residual.norm_after))
    return build_norm(graph, graph.apply("Add", x, y), residual.norm_after)


# --- attention ---


def build_self_attention(
    graph: Graph, x: str, attention: MultiHeadAttention, context: Context, past: KeysAndValues | None = None
) -> tuple[str, KeysAndValues]:
    """Add a self-attention over the cached and current positions to an ONNX graph.

    Args:
        graph: the graph to extend.
        x: the input of the current positions, (B, T, D).
        attention: the module to convert.
        context: bias and rotary positions of all layers.
        past: cached keys and values of earlier positions; None: there is no cache.

    Returns:
        The names of the output, (B, T, D), and of the keys and values of all positions.
    """
    query, key, value = graph.split(build_linear(graph, x, linear_weights(attention.projection)), attention.widths)
    query, key = _heads(graph, query, attention.d_k), _heads(graph, key, attention.d_k)
    value = _heads(graph, value, attention.d_v)
    if isinstance(attention, QueryKeyNormAttention):
        query, key = build_norm(graph, query, attention.query_norm), build_norm(graph, key, attention.key_norm)
    query, key = (_rotate(graph, each, context, attention.d_k) for each in (query, key))
    if past is not None:
        key = graph.apply("Concat", past.keys, key, attributes={"axis": 2})
        value = graph.apply("Concat", past.values, value, attributes={"axis": 2})
    cache = KeysAndValues(key, value)
    return _attend(graph, query, cache, attention, context.bias), cache


def build_memory_keys_and_values(graph: Graph, memory: str, attention: MultiHeadAttention) -> KeysAndValues:
    """Add the projections of the encoder output for a cross-attention to an ONNX graph.

    Args:
        graph: the graph to extend.
        memory: the encoder output, (B, S, D).
        attention: the module to convert.

    Returns:
        The names of its keys and values, as `KeysAndValues`, which do not change during decoding.
    """
    projections = attention_projections(attention)
    keys, values = (build_linear(graph, memory, part) for part in (projections.key, projections.value))
    keys = _heads(graph, keys, attention.d_k)
    if isinstance(attention, QueryKeyNormAttention):
        keys = build_norm(graph, keys, attention.key_norm)
    return KeysAndValues(keys, _heads(graph, values, attention.d_v))


def build_cross_attention(graph: Graph, x: str, attention: MultiHeadAttention, memory: Memory) -> str:
    """Add a cross-attention to an ONNX graph, from x (B, T, D) to an output of the same shape, whose name is returned.

    Args:
        graph: the graph to extend.
        x: the decoder's states.
        attention: the module to convert.
        memory: keys and values of the encoder output, and the bias that masks padding.
    """
    query = _heads(graph, build_linear(graph, x, attention_projections(attention).query), attention.d_k)
    if isinstance(attention, QueryKeyNormAttention):
        query = build_norm(graph, query, attention.query_norm)
    return _attend(graph, query, memory.known, attention, memory.bias)


def _heads(graph: Graph, x: str, width: int) -> str:
    return graph.transpose(graph.reshape(x, 0, 0, -1, width), 0, 2, 1, 3)  # (B, T, H × K) -> (B, H, T, K)


def _rotate(graph: Graph, x: str, context: Context, width: int) -> str:
    """Add the rotation of queries or keys, (B, heads, T, width), by their positions (RoPE) to an ONNX graph.

    Returns:
        The name of the result, of the same shape; x itself if the model has no rotary positions.
    """
    if context.rotation is None:
        return x
    cosine, sine = context.rotation
    if context.interleaved:
        pairs = graph.apply("Reshape", x, graph.integers(0, 0, 0, -1, 2))  # (B, H, T, K / 2, 2)
        first, second = (graph.apply("Gather", pairs, graph.integer(side), attributes={"axis": 4}) for side in (0, 1))
    else:
        first, second = graph.split(x, [width // 2, width // 2])
    rotated = (
        graph.apply("Sub", graph.apply("Mul", first, cosine), graph.apply("Mul", second, sine)),
        graph.apply("Add", graph.apply("Mul", second, cosine), graph.apply("Mul", first, sine)),
    )
    if not context.interleaved:
        return graph.apply("Concat", *rotated, attributes={"axis": -1})
    joined = graph.apply("Concat", *(graph.unsqueeze(half, 4) for half in rotated), attributes={"axis": 4})
    return graph.reshape(joined, 0, 0, 0, -1)  # (B, H, T, K / 2, 2) -> (B, H, T, K)


def _attend(graph: Graph, query: str, cache: KeysAndValues, attention: MultiHeadAttention, bias: str) -> str:
    """Add an attention and its output projection to an ONNX graph: queries (B, H, T, K) to an output (B, T, D).

    The name of the output is returned.
    """
    shared = KeysAndValues(*(_share(graph, each, attention) for each in cache))
    heads = build_attention(graph, query, shared, attention.score, attention.d_k, bias)
    joined = graph.reshape(graph.transpose(heads, 0, 2, 1, 3), 0, 0, -1)  # (B, H, T, V) -> (B, T, H × V)
    return build_linear(graph, joined, linear_weights(attention.output))


def build_attention(
    graph: Graph, query: str, known: KeysAndValues, score: ScoredAttention | None, width: int, bias: str | None
) -> str:
    """Add softmax(scores + bias) × values to an ONNX graph, and return the name of the result, (B, H, T, value width).

    A hard attention takes the value with the highest score instead.

    Args:
        graph: the graph to extend.
        query: the queries of H heads at T positions, (B, H, T, width).
        known: keys and values with as many heads as the queries.
        score: the score function; None: the scaled dot product.
        width: the number of dimensions of a query or key.
        bias: masks keys, broadcastable to (B, H, T, number of keys); None: no key is masked.
    """
    scores = _scores(graph, query, known.keys, score, width)
    if bias is not None:
        scores = graph.apply("Add", scores, bias)
    weights = graph.apply("Softmax", scores, attributes={"axis": -1})  # (B, H, T, L)
    if score is not None and score.hard:
        best = graph.apply("ArgMax", weights, attributes={"axis": -1, "keepdims": 0})
        length = graph.apply("Squeeze", graph.size(weights, 3), graph.integers(0))
        weights = graph.apply("OneHot", best, length, graph.weight(torch.tensor([0.0, 1.0])))
    return graph.apply("MatMul", weights, known.values)


def _share(graph: Graph, x: str, attention: MultiHeadAttention) -> str:
    """Add the repetition of keys or values for grouped-query attention to an ONNX graph.

    Args:
        graph: the graph to extend.
        x: the keys or values of the G key/value heads, (B, G, L, width).
        attention: the module to convert, with H query heads.

    Returns:
        The name of the keys or values of each query head, (B, H, L, width); `x` itself if G is H.
    """
    if attention.num_key_value_heads == attention.num_heads:
        return x
    share = attention.num_heads // attention.num_key_value_heads
    head = graph.integers(*(number // share for number in range(attention.num_heads)))
    return graph.apply("Gather", x, head, attributes={"axis": 1})


def _scores(graph: Graph, query: str, keys: str, score: ScoredAttention | None, width: int) -> str:
    """Add the scores of an attention to an ONNX graph, (B, H, T, L), before any bias, and return their name.

    Args:
        graph: the graph to extend.
        query: the queries, (B, H, T, K).
        keys: the keys, (B, H, L, K).
        score: the score function, such as additive; None: the scaled dot product.
        width: K, by whose square root dot products are divided.
    """
    scale = width**-0.5
    if score is not None and score.vector is not None:
        pairs = graph.apply("Add", graph.unsqueeze(query, 3), graph.unsqueeze(keys, 2))  # (B, H, T, L, K)
        vector = graph.weight(score.vector.detach()[:, None, None])
        return graph.apply(
            "ReduceSum",
            graph.apply("Mul", graph.apply("Tanh", pairs), vector),
            graph.integers(-1),
            attributes={"keepdims": 0},
        )
    if score is not None:
        scale *= score.factor
        if score.matrix is not None:
            query = graph.apply("MatMul", query, graph.weight(score.matrix.detach()))
    scores = graph.apply("MatMul", query, graph.transpose(keys, 0, 1, 3, 2))
    return graph.apply("Mul", scores, graph.number(scale))


# --- layers ---


def build_layer(
    graph: Graph,
    x: str,
    layer: EncoderLayer | DecoderLayer,
    context: Context,
    config: ModelConfig,
    *,
    past: KeysAndValues | None = None,
    memory: Memory | None = None,
) -> tuple[str, KeysAndValues]:
    """Add a layer of an encoder or decoder to an ONNX graph.

    Args:
        graph: the graph to extend.
        x: the layer's input, (B, T, D).
        layer: the layer to convert.
        context: bias and rotary positions of all layers.
        config: the model's configuration.
        past: cached keys and values of earlier positions; None: there is no cache.
        memory: the encoder output that a decoder layer with cross-attention attends to; None for other layers.

    Returns:
        The names of the layer's output, (B, T, D), and of its keys and values of all positions, cached ones included.
    """
    y = build_norm(graph, x, layer.self_attention_residual.norm_before)
    y, keys_and_values = build_self_attention(graph, y, layer.self_attention, context, past)
    x = after_sublayer(graph, x, y, layer.self_attention_residual)
    if memory is not None:
        assert isinstance(layer, DecoderLayer)
        y = build_norm(graph, x, layer.memory_attention_residual.norm_before)
        y = build_cross_attention(graph, y, layer.memory_attention, memory)
        x = after_sublayer(graph, x, y, layer.memory_attention_residual)
    y = build_norm(graph, x, layer.feed_forward_residual.norm_before)
    y = build_feed_forward(graph, y, layer.feed_forward, config)
    return after_sublayer(graph, x, y, layer.feed_forward_residual), keys_and_values


def build_output_scale(graph: Graph, x: str, config: ModelConfig) -> str:
    """Add the factor by which T5 scales the last states to an ONNX graph, and return the result's name.

    The result is x itself if the factor (`output_scale`) is 1.
    """
    return x if config.output_scale == 1.0 else graph.apply("Mul", x, graph.number(config.output_scale))


def build_output(graph: Graph, x: str, model: VocabularyModel) -> str:
    """Add the output projection to an ONNX graph: states x (B, T, D) to logits (B, T, V), whose name is returned.

    A tied matrix is the embeddings' constant, transposed in the graph.
    """
    if model.output_weight is model.target_weight:
        matrix = graph.transpose(graph.weight(model.output_weight.detach()), 1, 0)
    else:
        matrix = graph.matrix(model.output_weight.detach())
    logits = graph.apply("MatMul", x, matrix)
    return logits if model.output_bias is None else graph.apply("Add", logits, graph.weight(model.output_bias))


# --- inputs and outputs ---


def _key_value_shapes(config: ModelConfig, prefix: str, number: int, length: str) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of a layer's keys and values as inputs or outputs of an ONNX graph, a dict by name.

    Args:
        config: the model's configuration.
        prefix: what the names begin with, such as `past_`.
        number: number of the layer, with which the names end.
        length: name of the axis of positions, whose size is dynamic.
    """
    widths = {"key": config.key_width, "value": config.value_width}
    return {
        f"{prefix}{name}.{number}": ("batch", config.key_value_heads, length, width) for name, width in widths.items()
    }


def add_inputs(graph: Graph, config: ModelConfig, prefix: str, number: int, length: str) -> KeysAndValues:
    """Add a layer's keys and values to the inputs of an ONNX graph, and return their names as `KeysAndValues`.

    Args:
        graph: the graph to extend.
        config: the model's configuration.
        prefix: what the names of the two inputs begin with, such as `past_`.
        number: number of the layer.
        length: name of the axis of positions, whose size is dynamic.
    """
    shapes = _key_value_shapes(config, prefix, number, length)
    return KeysAndValues(*(graph.add_input(name, np.float32, shape) for name, shape in shapes.items()))


def add_outputs(
    graph: Graph, values: KeysAndValues, config: ModelConfig, prefix: str, number: int, length: str
) -> None:
    """Add a layer's keys and values to the outputs of an ONNX graph.

    Args:
        graph: the graph to extend.
        values: the keys and values.
        config: the model's configuration.
        prefix: what the names of the two outputs begin with; empty: they are `key` and `value` with the layer's number.
        number: number of the layer.
        length: name of the axis of positions, whose size is dynamic.
    """
    shapes = _key_value_shapes(config, prefix, number, length)
    for value, (name, shape) in zip(values, shapes.items(), strict=True):
        graph.add_output(value, name, np.float32, shape)


# --- attention masks ---


def build_bias(graph: Graph, allowed: str) -> str:
    """Convert a boolean mask to a bias on attention scores in an ONNX graph, and return the bias's name.

    The bias has the mask's shape: 0 where attending is allowed, and elsewhere the lowest finite float32.
    """
    return graph.apply("Where", allowed, graph.number(0.0), graph.number(torch.finfo(torch.float32).min))


def key_mask(graph: Graph, present: str) -> str:
    """Reshape a mask of keys in an ONNX graph from (B, keys) to (B, 1, 1, keys), and return the result's name.

    The result broadcasts over all heads and queries.
    """
    return graph.unsqueeze(present, 1, 2)


def build_context(
    graph: Graph, stack: StackPositions, config: ModelConfig, queries: str, keys: str, present: str | None = None
) -> Context:
    """Add the attention bias and rotary positions that all self-attentions share to an ONNX graph.

    The bias combines the padding mask, the causal mask, the attention window and T5's relative bias. The model must
    have at least one of the masks or the window.

    Args:
        graph: the graph to extend.
        stack: the position modules of the encoder or decoder.
        config: the model's configuration.
        queries: positions of the queries, (batch or 1, queries).
        keys: positions of the keys, (batch or 1, keys).
        present: a boolean mask of the keys that are not padding, (batch, keys); None: no key is padding.

    Returns:
        The names of the values, as `Context`.
    """
    distance = graph.apply("Sub", graph.unsqueeze(keys, 1, 2), graph.unsqueeze(queries, 1, 3))  # (B or 1, 1, T, L)
    masks = [] if present is None else [key_mask(graph, present)]
    if stack.causal:
        masks.append(graph.apply("LessOrEqual", distance, graph.integer(0)))
    if config.attention_window is not None:
        masks.append(graph.apply("LessOrEqual", graph.apply("Abs", distance), graph.integer(config.attention_window)))
    bias = build_bias(graph, reduce(lambda left, right: graph.apply("And", left, right), masks))
    if stack.bias is not None:
        assert isinstance(stack.bias, RelativePositions)
        bias = graph.apply("Add", bias, _relative_bias(graph, stack.bias, distance))
    rotation = None
    if stack.rotary is not None:
        rows = stack.rotary(torch.arange(MAXIMUM_POSITIONS), torch.float32)
        tables = (graph.weight(table) for table in (rows.cosine, rows.sine))
        cosine, sine = (graph.unsqueeze(graph.apply("Gather", table, queries), 1) for table in tables)
        rotation = (cosine, sine)
    return Context(bias, rotation, config.positions == "rotary-interleaved")


def _relative_bias(graph: Graph, relative: RelativePositions, distance: str) -> str:
    """Add the lookup of T5's relative bias to an ONNX graph, and return the name of the bias, (B or 1, H, T, L).

    Args:
        graph: the graph to extend.
        relative: the module with the bias of each head and distance.
        distance: position of the key minus that of the query, (B or 1, 1, T, L).
    """
    max_distance = relative.max_distance
    clipped = graph.apply("Clip", distance, graph.integer(-max_distance), graph.integer(max_distance))
    row = graph.apply("Add", clipped, graph.integer(max_distance))
    bias = graph.apply("Gather", graph.weight(relative_bias_table(relative)), row)  # (B or 1, 1, T, L, H)
    return graph.apply("Squeeze", graph.transpose(bias, 0, 4, 2, 3, 1), graph.integers(4))
