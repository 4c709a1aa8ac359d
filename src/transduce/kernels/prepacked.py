"""Lay out a model's weights for inference kernels: prepacked models, and inference copies that follow their model.

An inference copy computes the same function as its model, which stays unchanged. The copy takes as much additional
memory as the prepacked matrices, and shares all other float32 tensors.
"""

import copy
import hashlib
import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.attention import MultiHeadAttention, QueryKeyNormAttention
from transduce.model.embedding import Embedding, VocabularyModel
from transduce.model.feed_forward import FeedForward, GatedFeedForward
from transduce.model.known_classes import (
    DECODER_PARTS,
    ENCODER_PARTS,
    QUERY_KEY_NORMS,
    TRANSFORMER_PARTS,
    VOCABULARY_WEIGHTS,
    register_class,
)
from transduce.model.layer_graph import Graph, graph_of, refusal, table
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.transformer import Decoder, Encoder, Transformer

# --- prepacked models ---
# Only the linear layers are prepacked; embeddings, norms, softmax and attention stay in float32.


LinearUse = Literal["layer", "memory", "vocabulary"]
"""A string that says what a linear layer is used for, by which its precision is chosen.

`memory` computes the keys and values of cross-attention, whose errors affect every step. `vocabulary` is the output
projection, whose errors change the chosen token. `layer` is any other linear layer.
"""


class MakeLinear(Protocol):
    """A function that makes a linear module, (…, D) to (…, O), from a float32 matrix (O, D) and a bias (O,) or None.

    The third argument says what the layer is used for (a `LinearUse`).
    """

    def __call__(self, weight: Tensor, bias: Tensor | None, use: LinearUse = "layer", /) -> nn.Module: ...


class CachedAttention(MultiHeadAttention):
    """Decoder attention with prepacked weights, whose keys and values are cached between decoding steps.

    The cache is in float16, which halves the bytes that a step reads, under two conditions. The projection layer rounds
    its inputs or weights more than float16 does, and no rotary embedding or norm changes the keys after the projection.
    Otherwise the cache is in float32.
    """

    def __init__(self, attention: MultiHeadAttention, make: MakeLinear) -> None:
        """Copy an attention module's sizes, dropout and score function; prepack its output projection with `make`."""
        nn.Module.__init__(self)
        self.num_heads, self.num_key_value_heads = attention.num_heads, attention.num_key_value_heads
        self.d_k, self.d_v, self.widths = attention.d_k, attention.d_v, attention.widths
        self.dropout, self.score = attention.dropout, attention.score
        self.output = _prepack_linear(attention.output, make)
        if isinstance(attention, QueryKeyNormAttention):
            self.query_norm, self.key_norm = attention.query_norm, attention.key_norm
        self.cache_dtype = torch.float32

    def _choose_cache_dtype(self, projection: nn.Module, *, has_rotary: bool) -> None:
        """Set the cache dtype to float16 or float32.

        The dtype is float16 if `projection`, which computes keys and values, rounds more than float16 does and nothing
        changes the keys afterwards. Rotary embeddings and norms do change the keys.
        """
        is_changed = has_rotary or isinstance(self, QueryKeyNormAttention)
        is_rounded = getattr(projection, "is_rounded", False) and not is_changed
        self.cache_dtype = torch.float16 if is_rounded else torch.float32

    def round_to_cache_dtype(self, projected: Tensor) -> Tensor:
        """Round keys and values to the precision and range of the cache's dtype; return them in their own dtype.

        If the cache is in float32, keys and values are returned unchanged.
        """
        if self.cache_dtype == torch.float32:
            return projected
        greatest = torch.finfo(self.cache_dtype).max
        return projected.clamp(-greatest, greatest).to(self.cache_dtype).to(projected.dtype)


class PrepackedSelfAttention(CachedAttention):
    """Decoder self-attention whose projections have prepacked weights."""

    def __init__(self, attention: MultiHeadAttention, make: MakeLinear, *, has_rotary: bool) -> None:
        """Prepack the projections of an attention module; `has_rotary` is True if the model has rotary embeddings."""
        super().__init__(attention, make)
        self.projection = _prepack_linear(attention.projection, make)
        self._choose_cache_dtype(self.projection, has_rotary=has_rotary)

    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key_value = self.projection(x).split((self.widths[0], sum(self.widths[1:])), dim=-1)
        key, value = self.round_to_cache_dtype(key_value).split(self.widths[1:], dim=-1)
        return self._heads(query, self.d_k), self._heads(key, self.d_k), self._heads(value, self.d_v)


class PrepackedCrossAttention(CachedAttention):
    """Cross-attention with prepacked weights, in which queries and keys/values have separate linear layers."""

    def __init__(self, attention: MultiHeadAttention, make: MakeLinear, *, has_rotary: bool) -> None:
        """Prepack the projections of an attention module; `has_rotary` is True if the model has rotary embeddings."""
        super().__init__(attention, make)
        projection = attention.projection
        rows = (self.widths[0], sum(self.widths[1:]))
        biases = (None, None) if projection.bias is None else projection.bias.split(rows)
        query, key_value = zip(projection.weight.split(rows), biases, strict=True)
        self.query, self.key_value = make(*query), make(*key_value, "memory")
        self._choose_cache_dtype(self.key_value, has_rotary=has_rotary)

    def _queries(self, x: Tensor) -> Tensor:
        return self.query(x)  # type: ignore[no-any-return]

    def _keys_and_values(self, memory: Tensor) -> Tensor:
        return self.round_to_cache_dtype(self.key_value(memory))


class PrepackedNormedSelfAttention(QueryKeyNormAttention, PrepackedSelfAttention):
    """Decoder self-attention with prepacked weights, and with norms of queries and keys."""

    __init__ = PrepackedSelfAttention.__init__


class PrepackedNormedCrossAttention(QueryKeyNormAttention, PrepackedCrossAttention):
    """Cross-attention with prepacked weights, and with norms of queries and keys."""

    __init__ = PrepackedCrossAttention.__init__


class PrepackedModel(VocabularyModel):
    """A model whose linear layers have prepacked weights, in the order in which the inference kernels read them."""

    prepacked_output: nn.Module

    def project(self, hidden: Tensor) -> Tensor:
        """Return the logits over the vocabulary for decoder states, (…, D) to (…, V)."""
        return self.prepacked_output(hidden)  # type: ignore[no-any-return]


class PrepackedTransformer(PrepackedModel, Transformer):
    """An encoder-decoder Transformer whose linear layers have prepacked weights, for inference only."""


class PrepackedDecoder(PrepackedModel, Decoder):
    """A decoder-only Transformer whose linear layers have prepacked weights, for inference only."""


class PrepackedEncoder(PrepackedModel, Encoder):
    """An encoder-only model whose encoder layers have prepacked weights.

    The output projection, masked language head, pooler and classifier stay in float32.
    """

    project = Encoder.project


_ATTENTION_PARTS = ("output", "dropout", "score")
_CLASSES: tuple[tuple[type[nn.Module], type[nn.Module], tuple[str, ...]], ...] = (
    (PrepackedSelfAttention, MultiHeadAttention, ("projection", *_ATTENTION_PARTS)),
    (PrepackedCrossAttention, MultiHeadAttention, ("query", "key_value", *_ATTENTION_PARTS)),
    (PrepackedNormedSelfAttention, QueryKeyNormAttention, ("projection", *_ATTENTION_PARTS, *QUERY_KEY_NORMS)),
    (PrepackedNormedCrossAttention, QueryKeyNormAttention, ("query", "key_value", *_ATTENTION_PARTS, *QUERY_KEY_NORMS)),
    (PrepackedTransformer, Transformer, (*TRANSFORMER_PARTS, "prepacked_output")),
    (PrepackedDecoder, Decoder, (*DECODER_PARTS, "prepacked_output")),
    (PrepackedEncoder, Encoder, ENCODER_PARTS),
)
for _kind, _computed, _parts in _CLASSES:
    _tensors = VOCABULARY_WEIGHTS if issubclass(_kind, VocabularyModel) else ()
    register_class(_kind, computes=_computed, children=_parts, tensors=_tensors)

PREPACKABLE = table(
    "a prepacked model",
    class_="Transformer Decoder Encoder",
    linear_layers="Linear",
    output_projection="Linear",
    positions="sinusoidal learned rotary rotary-interleaved relative none",
    position_bias="relative",
    embedding_projection="some",
    attention_window="none past some",
    token_types="none some",
    norm="layer rms batch",
    norm_order="pre post sandwich",
    activation="relu gelu gelu-tanh silu swiglu geglu geglu-tanh reglu",
    attention="query-key-norm",
    attention_score="scaled dot general additive",
    attention_kind="soft hard",
    attention_scale="default other",
    key_value_heads="equal shared",
    value_width="equal other",
)
"""The `Table` of components and options that a model may have if `prepack` is to lay out its weights."""


PrepackableModel = Transformer | Decoder | Encoder
"""The union of the model classes whose weights can be prepacked: `Transformer`, `Decoder` and `Encoder`."""
AnyPrepacked = PrepackedTransformer | PrepackedDecoder | PrepackedEncoder
"""The union of the model classes with prepacked weights, those with names that begin with `Prepacked`."""
_PREPACKED_CLASSES = ((Transformer, PrepackedTransformer), (Decoder, PrepackedDecoder), (Encoder, PrepackedEncoder))


def prepack(model: PrepackableModel, make: MakeLinear) -> AnyPrepacked:
    """Prepack the weights of a float32 model, and return the prepacked model.

    The result takes over the modules of `model`. Do not use `model` afterwards.

    Args:
        model: in float32.
        make: the function that makes each prepacked linear layer.

    Raises:
        TransduceError: the model has a component that is not in `PREPACKABLE`.
    """
    if (reason := refusal(PREPACKABLE, model)) is not None:
        raise TransduceError(f"The weights cannot be prepacked, because {reason}: use `fp32` or `bf16`.")
    prepacked_class = next(prepacked for kind, prepacked in _PREPACKED_CLASSES if isinstance(model, kind))
    with torch.no_grad(), torch.device("meta"):
        made = prepacked_class(model.config)
    made._modules, made._parameters, made._buffers = model._modules, model._parameters, model._buffers
    made._non_persistent_buffers_set = model._non_persistent_buffers_set
    has_rotary, is_normed = model.config.positions.startswith("rotary"), model.config.attention == "query-key-norm"
    self_attention = PrepackedNormedSelfAttention if is_normed else PrepackedSelfAttention
    cross_attention = PrepackedNormedCrossAttention if is_normed else PrepackedCrossAttention
    with torch.no_grad():
        if not isinstance(made, PrepackedEncoder):
            made.prepacked_output = make(model.output_weight, model.output_bias, "vocabulary")
        for module in list(made.modules()):
            if isinstance(module, DecoderLayer) or (isinstance(module, EncoderLayer) and isinstance(made, Decoder)):
                module.self_attention = self_attention(module.self_attention, make, has_rotary=has_rotary)
            if isinstance(module, DecoderLayer):
                module.memory_attention = cross_attention(module.memory_attention, make, has_rotary=has_rotary)
        for module in list(made.modules()):
            if isinstance(module, MultiHeadAttention) and not isinstance(module, CachedAttention):
                module.projection = _prepack_linear(module.projection, make)
                module.output = _prepack_linear(module.output, make)
            elif isinstance(module, Embedding) and module.projection is not None:
                module.projection = _prepack_linear(module.projection, make)
            elif isinstance(module, FeedForward | GatedFeedForward):
                module.inner = _prepack_linear(module.inner, make)
                module.outer = _prepack_linear(module.outer, make)
    if not isinstance(made, PrepackedEncoder):
        made.own_output_weight = made.output_bias = None
    return made.eval()


def _prepack_linear(linear: nn.Linear, make: MakeLinear) -> Any:
    """Return the prepacked layer that `make` makes of an `nn.Linear`.

    The result is typed as `Any`, because it replaces an `nn.Linear` of which only the call is used.
    """
    return make(linear.weight, linear.bias)


# --- prepacked weights in files ---
# The prepacked layers of a model depend on its original weights, the processor and the code that packs them. They can
# be stored, and put into a model that was prepacked on the meta device, without memory.


_PACKED = ("weights", "initial_sums", "weight_scales", "bias")  # the tensors of a layer that has a `layout`


class PackedLayers:
    """The prepacked layers of a model, whose tensors can be stored in a file and later mapped from it."""

    def __init__(self, model: AnyPrepacked, originals: Mapping[str, Tensor]) -> None:
        """Find the prepacked layers of a model.

        Args:
            model: the prepacked model. Its weights may be on the meta device, to be filled in by `fill`.
            originals: the parameters and buffers of the original model, by name.
        """
        self.model = model
        self._layers: dict[str, Any] = {name: part for name, part in model.named_modules() if hasattr(part, "layout")}
        used = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.needed = [name for name, tensor in originals.items() if id(tensor) in used]
        """A list of names: the original parameters and buffers that the prepacked model still uses."""
        self._originals = originals

    @property
    def layout(self) -> str:
        """A hash, 16 hexadecimal digits, of the weight formats and orders of all prepacked layers.

        A stored file of packed weights can be used only if it was written for the same hash.
        """
        layouts = "\n".join(f"{name} {layer.layout}" for name, layer in self._layers.items())
        return hashlib.sha256(layouts.encode()).hexdigest()[:16]

    def tensors(self) -> dict[str, Tensor]:
        """Return a dict from names such as `LAYER.weights` to the tensors of the prepacked layers, for a file."""
        return {
            f"{name}.{each}": getattr(layer, each).detach() for name, layer in self._layers.items() for each in _PACKED
        }

    def fill(self, packed: Mapping[str, Tensor], originals: Mapping[str, Tensor]) -> nn.Module:
        """Put tensors into the prepacked model, and return the model.

        The model was made on the meta device, so its tensors have no data.

        Args:
            packed: the tensors of the prepacked layers, under the names that `tensors` returns.
            originals: the original parameters and buffers whose names are in `needed`. Buffers that no file stores may
                be missing.
        """
        new = {id(self._originals[name]): tensor for name, tensor in originals.items()}
        parameters = {key: nn.Parameter(tensor, requires_grad=False) for key, tensor in new.items()}
        for module in self.model.modules():
            # A parameter may be in several modules, such as the embeddings in the output projection.
            module._parameters |= {
                name: parameters[id(old)] for name, old in module._parameters.items() if id(old) in parameters
            }
            module._buffers |= {name: new[id(old)] for name, old in module._buffers.items() if id(old) in new}
        for name, layer in self._layers.items():
            for each in _PACKED:
                setattr(layer, each, nn.Parameter(packed[f"{name}.{each}"], requires_grad=False))
        return self.model


def packed_layers(model: nn.Module) -> PackedLayers | None:
    """Return the `PackedLayers` of a model, to be stored in a file; None if the model has no prepacked weights."""
    return PackedLayers(model, {}) if isinstance(model, AnyPrepacked) else None


# --- inference copies ---


class InferenceCopy:
    """A holder of a model's prepacked copy, which it makes again when the model's weights or modules have changed."""

    def __init__(self, model: PrepackableModel, make: MakeLinear) -> None:
        """Make the inference copy of a model: prepack the weights, converted to float32."""
        self._make = make
        self._prepacked = prepack(_in_float32(model), make)
        self.record_weights(model)

    def current(self, model: PrepackableModel, graph: Graph) -> AnyPrepacked:
        """Return the prepacked copy of a model.

        The copy is made again if the model's weights or modules have changed.

        Args:
            model: the model. All its components must be in `PREPACKABLE`.
            graph: the model's current layer graph (a description of its operations), which shows replaced modules.
        """
        if graph != self._graph or self._weights.have_changed():
            self._prepacked = prepack(_in_float32(model, counts_apart=True), self._make)
            _mark_as_changed(self._prepacked)
            self.record_weights(model)
        return self._prepacked

    def record_weights(self, model: nn.Module) -> None:
        """Record the layer graph and the state of the parameters, to detect later changes."""
        self._graph = graph_of(model)
        self._weights = _RecordedWeights(model)


_MAX_SAMPLE = 256
_LARGE_BYTES, _LARGE_SAMPLE = 32 << 20, 64  # a large matrix may be mapped from a file, of which little should be read
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _RecordedWeights:
    """The state of a model's parameters at one time, by which later changes of their numbers are detected.

    PyTorch counts changes in place, but not all: fused optimizers, `.data` and NumPy's views change numbers without a
    count. So a sample of the numbers is compared, too, which takes a small part of the time of a decoding step.
    """

    def __init__(self, model: nn.Module) -> None:
        """Record the parameters of a model, and a sample of their numbers."""
        self._parameters = [  # without the modules, so that the model is not kept alive
            (holder._parameters, name, parameter, version_of(parameter), parameter.data_ptr())
            for holder in model.modules()
            for name, parameter in holder._parameters.items()
            if parameter is not None
        ]
        self._numbers: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        self._gathered: list[tuple[Tensor, Tensor]] = []
        """For each parameter whose memory has gaps: a flat view of the memory, and the sample's positions in it."""
        for parameter in {id(parameter): parameter for _, _, parameter, _, _ in self._parameters}.values():
            if parameter.is_meta:  # has no numbers
                continue
            dtype = _INTEGERS[parameter.itemsize]  # as integers, because NaN differs from NaN
            numbers = _in_order_of_memory(parameter.detach().view(dtype))
            step = _sampling_step(numbers)
            if numbers.is_contiguous():
                self._numbers.setdefault((dtype, parameter.device), []).append(numbers.view(-1)[::step])
            else:
                self._gathered.append(_memory_and_positions(numbers, step))
        self._sample = self._read_sample()

    def _read_sample(self) -> list[Tensor]:
        joined = [torch.cat(numbers) for numbers in self._numbers.values()]
        return joined + [memory[positions] for memory, positions in self._gathered]

    def have_changed(self) -> bool:
        """Return whether the parameters have changed since they were recorded.

        A change is another parameter under the same name of a module, another address of a parameter's numbers, a
        change in place that PyTorch counted, or a difference in the sample of numbers. A parameter that a module
        received under a new name is not noticed.
        """
        return any(
            holder.get(name) is not parameter or version_of(parameter) != version or parameter.data_ptr() != address
            for holder, name, parameter, version, address in self._parameters
        ) or not all(map(torch.equal, self._read_sample(), self._sample))


def _in_order_of_memory(weight: Tensor) -> Tensor:
    """Return a view of a weight with its dimensions sorted by stride, the largest stride first.

    For example, the view of a transposed matrix is the matrix itself, which is contiguous.
    """
    strides = weight.stride()
    return weight.permute(sorted(range(weight.dim()), key=lambda dim: -strides[dim]))


def _memory_and_positions(weight: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Return a flat view of a weight's memory, and the indices of every `step`-th element in this view.

    The view shares the weight's memory, so it shows later changes.
    """
    remaining = torch.arange(0, weight.numel(), step, device=weight.device)
    positions = torch.zeros_like(remaining)
    for size, stride in zip(reversed(weight.shape), reversed(weight.stride()), strict=True):
        positions += remaining % size * stride
        remaining //= size
    length = 1 + sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    return weight.as_strided((length,), (1,)), positions


def _sampling_step(weight: Tensor) -> int:
    """Return the distance between two sampled numbers of a weight.

    Small weights have step 1, so all their numbers are sampled. The step and the number of columns have no common
    divisor, because the samples would otherwise lie in a few columns only.
    """
    count, columns = weight.numel(), weight.shape[-1] if weight.dim() else 1
    max_sample = _LARGE_SAMPLE if count * weight.itemsize >= _LARGE_BYTES else _MAX_SAMPLE
    step = max(1, count // max_sample)
    while math.gcd(step, columns) > 1:
        step -= 1
    return step


def _mark_as_changed(model: nn.Module) -> None:
    """Increase the versions of a model's parameters, so that no kernel reads them from the file they were mapped from.

    Kernels read a mapped parameter from its file while its version is 0. That would be wrong after changes that PyTorch
    does not count, as these leave the version at 0.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_inference():
                parameter.detach().as_strided((0,), (1,)).zero_()


def version_of(tensor: Tensor) -> int:
    """Return a tensor's version, the number of in-place changes that PyTorch counts; 0 for inference tensors.

    Inference tensors (made in `torch.inference_mode`) have no version.
    """
    return 0 if tensor.is_inference() else tensor._version


def _in_float32(model: PrepackableModel, *, counts_apart: bool = False) -> PrepackableModel:
    """Return a copy of a model in float32.

    Parameters that are already in float32 share the model's memory. Parameters that several modules share stay shared.

    If `counts_apart` is true, the copy's parameters get their own versions (PyTorch's counts of in-place changes).
    Otherwise, raising a version in the copy raises it in the model too, and a later `backward` of the model fails.
    """
    copies: dict[int, nn.Parameter] = {}

    def parameter(original: nn.Parameter) -> nn.Parameter:
        source = original.data if counts_apart else original.detach()
        return copies.setdefault(id(original), nn.Parameter(source.float(), requires_grad=False))

    def copy_module(module: nn.Module) -> nn.Module:
        made = copy.copy(module)
        made._parameters = {
            name: original if original is None else parameter(original) for name, original in module._parameters.items()
        }
        made._buffers = {
            name: original.float() if original is not None and original.is_floating_point() else original
            for name, original in module._buffers.items()
        }
        made._modules = {name: part if part is None else copy_module(part) for name, part in module._modules.items()}
        return made

    made = copy_module(model)
    assert isinstance(made, PrepackableModel)
    return made
