"""A model's twin: the same function for decoding, its matrices laid out for the kernels. The model stays as it is.

A twin takes as much memory again as the products' matrices, and shares what else is in float32.
"""

import copy
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.attention import MultiHeadAttention
from transduce.model.decoder import Decoder
from transduce.model.embedding import VocabularyModel
from transduce.model.feed_forward import FeedForward, GatedFeedForward
from transduce.model.known_classes import DECODER_PARTS, TRANSFORMER_PARTS, VOCABULARY_WEIGHTS, register_class
from transduce.model.layer_graph import Graph, graph_of, table, why_not
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.transformer import Transformer

# --- packed ---
# A Transformer, or a decoder alone, whose matrices are laid out for the products of decoding, whatever those
# multiply.
# Such a model has float32 outside of its products: embeddings, norms, softmax and attention.


# What a product is for: errors of the memory's keys and values are in every step, and the vocabulary's decide.
LinearUse = Literal["layer", "memory", "vocabulary"]


class MakeLinear(Protocol):
    """A float32 matrix (O, D) and a bias (O,) to a module that takes (…, D) to (…, O)."""

    def __call__(self, weight: Tensor, bias: Tensor | None, use: LinearUse = "layer", /) -> nn.Module: ...


class CachedAttention(MultiHeadAttention):
    """Attention of a decoder, whose keys and values are kept from step to step.

    They are kept in float16 where the products round more than that, so that a step has half as much to read.
    """

    def __init__(self, attention: MultiHeadAttention, make: MakeLinear) -> None:
        """Takes the place of this one."""
        nn.Module.__init__(self)
        self.num_heads, self.num_key_value_heads = attention.num_heads, attention.num_key_value_heads
        self.d_k, self.d_v, self.widths = attention.d_k, attention.d_v, attention.widths
        self.dropout, self.score = attention.dropout, attention.score
        self.output = _prepack_linear(attention.output, make)
        self.cache_dtype = torch.float32

    def _choose_cache_dtype(self, product: nn.Module, *, has_rotary: bool) -> None:
        """Of this product; in float32 where it is exact, or where its result is turned by positions."""
        self.cache_dtype = torch.float16 if getattr(product, "rounds", False) and not has_rotary else torch.float32

    def round_to_cache_dtype(self, projected: Tensor) -> Tensor:
        """Keys and values as they are kept; what is beyond float16's range becomes its greatest number."""
        if self.cache_dtype == torch.float32:
            return projected
        most = torch.finfo(self.cache_dtype).max
        return projected.clamp(-most, most).to(self.cache_dtype).to(projected.dtype)


class PrepackedSelfAttention(CachedAttention):
    """Attention of a decoder to itself."""

    def __init__(self, attention: MultiHeadAttention, make: MakeLinear, *, has_rotary: bool) -> None:
        """Takes the place of this one; whether positions turn its keys."""
        super().__init__(attention, make)
        self.projection = _prepack_linear(attention.projection, make)
        self._choose_cache_dtype(self.projection, has_rotary=has_rotary)

    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key_value = self.projection(x).split((self.widths[0], sum(self.widths[1:])), dim=-1)
        key, value = self.round_to_cache_dtype(key_value).split(self.widths[1:], dim=-1)
        return self._heads(query, self.d_k), self._heads(key, self.d_k), self._heads(value, self.d_v)


class PrepackedCrossAttention(CachedAttention):
    """Attention to the memory, whose queries and whose keys and values are separate products."""

    def __init__(self, attention: MultiHeadAttention, make: MakeLinear, *, has_rotary: bool) -> None:
        """Takes the place of this one; whether positions turn keys, be it those of others."""
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


class PrepackedModel(VocabularyModel):
    """A model of such products."""

    prepacked_output: nn.Module

    def project(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary: (…, D) to (…, V)."""
        return self.prepacked_output(hidden)  # type: ignore[no-any-return]


class PrepackedTransformer(PrepackedModel, Transformer):
    """An encoder and decoder of such products."""


class PrepackedDecoder(PrepackedModel, Decoder):
    """A decoder alone of such products."""


register_class(
    PrepackedSelfAttention, computes=MultiHeadAttention, children=("projection", "output", "dropout", "score")
)
register_class(
    PrepackedCrossAttention, computes=MultiHeadAttention, children=("query", "key_value", "output", "dropout", "score")
)
register_class(
    PrepackedTransformer,
    computes=Transformer,
    children=(*TRANSFORMER_PARTS, "prepacked_output"),
    tensors=VOCABULARY_WEIGHTS,
)
register_class(
    PrepackedDecoder, computes=Decoder, children=(*DECODER_PARTS, "prepacked_output"), tensors=VOCABULARY_WEIGHTS
)

PREPACKABLE = table(
    "a prepacked model",
    class_="Transformer Decoder",
    linear_layers="Linear",
    output_projection="Linear",
    positions="sinusoidal learned rotary rotary-interleaved relative none",
    attention_window="none some",
    token_types="none",
    norm="layer rms batch",
    norm_order="pre post sandwich",
    activation="relu gelu gelu-tanh silu swiglu geglu geglu-tanh reglu",
    attention_score="scaled dot general additive",
    attention_kind="soft hard",
    attention_scale="default other",
    key_value_heads="equal shared",
    value_width="equal other",
)
"""The models that `prepack` takes."""


@overload
def prepack(model: Transformer, make: MakeLinear) -> PrepackedTransformer: ...
@overload
def prepack(model: Decoder, make: MakeLinear) -> PrepackedDecoder: ...
def prepack(model: Transformer | Decoder, make: MakeLinear) -> PrepackedTransformer | PrepackedDecoder:
    """The model with other products, made out of this one in float32, which is used up.

    Raises:
        TransduceError: the model has a component that is not in `PREPACKABLE`.
    """
    if (reason := why_not(PREPACKABLE, model)) is not None:
        raise TransduceError(f"The weights cannot be prepacked, because {reason}: use `fp32` or `bf16`.")
    with torch.no_grad(), torch.device("meta"):
        made = (PrepackedDecoder if isinstance(model, Decoder) else PrepackedTransformer)(model.config)
    made._modules, made._parameters, made._buffers = model._modules, model._parameters, model._buffers
    made._non_persistent_buffers_set = model._non_persistent_buffers_set
    turns = model.config.positions.startswith("rotary")
    with torch.no_grad():
        made.prepacked_output = make(model.output_weight, model.output_bias, "vocabulary")
        for module in list(made.modules()):
            if isinstance(module, DecoderLayer) or (isinstance(module, EncoderLayer) and isinstance(made, Decoder)):
                module.self_attention = PrepackedSelfAttention(module.self_attention, make, has_rotary=turns)
            if isinstance(module, DecoderLayer):
                module.memory_attention = PrepackedCrossAttention(module.memory_attention, make, has_rotary=turns)
        for module in list(made.modules()):
            if isinstance(module, MultiHeadAttention) and not isinstance(module, CachedAttention):
                module.projection = _prepack_linear(module.projection, make)
                module.output = _prepack_linear(module.output, make)
            elif isinstance(module, FeedForward | GatedFeedForward):
                module.inner = _prepack_linear(module.inner, make)
                module.outer = _prepack_linear(module.outer, make)
    made.own_output_weight = made.output_bias = None
    return made.eval()


def _prepack_linear(linear: nn.Linear, make: MakeLinear) -> Any:
    """`Any`, because it stands where the brick declares an `nn.Linear`, of which only the call is used."""
    return make(linear.weight, linear.bias)


# --- prepacked ---


class InferenceCopy:
    """Of a model that somebody may still change."""

    def __init__(self, model: Transformer | Decoder, make: MakeLinear) -> None:
        """Lays out its matrices by these products, as float32 has them."""
        self._make = make
        self._prepacked = prepack(_in_float32(model), make)
        self._record_weights(model)

    def current(self, model: Transformer | Decoder, graph: Graph) -> PrepackedTransformer | PrepackedDecoder:
        """The twin as the model is now, of which this is the graph; it must be in `PREPACKABLE`."""
        weights = self._weights
        if graph != self._graph or any(
            holder.get(name) is not own or _version(own) != version for holder, name, own, version in weights
        ):
            self._prepacked = prepack(_in_float32(model), self._make)
            self._record_weights(model)
        return self._prepacked

    def accept_new_precision(self, model: nn.Module) -> None:
        """The model now has its weights in another precision, and is still the same."""
        self._record_weights(model)

    def _record_weights(self, model: nn.Module) -> None:
        # The model is not kept alive by its twin.
        self._graph = graph_of(model)
        self._weights = [
            (holder._parameters, name, own, _version(own))
            for holder in model.modules()
            for name, own in holder._parameters.items()
            if own is not None
        ]


def _version(tensor: Tensor) -> int:
    """How often PyTorch has changed it; what was made in inference mode is not counted."""
    return 0 if tensor.is_inference() else tensor._version


def _in_float32(model: Transformer | Decoder) -> Transformer | Decoder:
    """A model of modules and parameters of its own, with the same numbers; those in float32 stand where they stood."""
    known: dict[int, nn.Parameter] = {}

    def parameter(own: nn.Parameter) -> nn.Parameter:
        return known.setdefault(id(own), nn.Parameter(own.detach().float(), requires_grad=False))

    def same(module: nn.Module) -> nn.Module:
        made = copy.copy(module)
        made._parameters = {name: own if own is None else parameter(own) for name, own in module._parameters.items()}
        made._buffers = {
            name: own.float() if own is not None and own.is_floating_point() else own
            for name, own in module._buffers.items()
        }
        made._modules = {name: part if part is None else same(part) for name, part in module._modules.items()}
        return made

    made = same(model)
    assert isinstance(made, Transformer | Decoder)
    return made
