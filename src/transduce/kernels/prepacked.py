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
from transduce.model.layer_graph import Graph, graph_of, refusal, table
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.transformer import Transformer

# --- packed ---
# A Transformer, or a decoder alone, whose matrices are laid out for the products of decoding, whatever those
# multiply.
# Such a model has float32 outside of its products: embeddings, norms, softmax and attention.


# What a product is for: errors of the memory's keys and values are in every step, and the vocabulary's decide.
Use = Literal["layer", "memory", "vocabulary"]


class MakeProduct(Protocol):
    """A float32 matrix (O, D) and a bias (O,) to a module that takes (…, D) to (…, O)."""

    def __call__(self, weight: Tensor, bias: Tensor | None, use: Use = "layer", /) -> nn.Module: ...


class KeepingAttention(MultiHeadAttention):
    """Attention of a decoder, whose keys and values are kept from step to step.

    They are kept in float16 where the products round more than that, so that a step has half as much to read.
    """

    def __init__(self, attention: MultiHeadAttention, make: MakeProduct) -> None:
        """Takes the place of this one."""
        nn.Module.__init__(self)
        self.num_heads, self.num_key_value_heads = attention.num_heads, attention.num_key_value_heads
        self.d_k, self.d_v, self.widths = attention.d_k, attention.d_v, attention.widths
        self.dropout, self.score = attention.dropout, attention.score
        self.output = _packed(attention.output, make)
        self.kept_dtype = torch.float32

    def _keep_by(self, product: nn.Module, *, turns: bool) -> None:
        """Of this product; in float32 where it is exact, or where its result is turned by positions."""
        self.kept_dtype = torch.float16 if getattr(product, "rounds", False) and not turns else torch.float32

    def keep(self, projected: Tensor) -> Tensor:
        """Keys and values as they are kept; what is beyond float16's range becomes its greatest number."""
        if self.kept_dtype == torch.float32:
            return projected
        most = torch.finfo(self.kept_dtype).max
        return projected.clamp(-most, most).to(self.kept_dtype).to(projected.dtype)


class PackedSelfAttention(KeepingAttention):
    """Attention of a decoder to itself."""

    def __init__(self, attention: MultiHeadAttention, make: MakeProduct, *, turns: bool) -> None:
        """Takes the place of this one; whether positions turn its keys."""
        super().__init__(attention, make)
        self.projection = _packed(attention.projection, make)
        self._keep_by(self.projection, turns=turns)

    def _project_self(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key_value = self.projection(x).split((self.widths[0], sum(self.widths[1:])), dim=-1)
        key, value = self.keep(key_value).split(self.widths[1:], dim=-1)
        return self._heads(query, self.d_k), self._heads(key, self.d_k), self._heads(value, self.d_v)


class PackedMemoryAttention(KeepingAttention):
    """Attention to the memory, whose queries and whose keys and values are separate products."""

    def __init__(self, attention: MultiHeadAttention, make: MakeProduct, *, turns: bool) -> None:
        """Takes the place of this one; whether positions turn keys, be it those of others."""
        super().__init__(attention, make)
        projection = attention.projection
        rows = (self.widths[0], sum(self.widths[1:]))
        biases = (None, None) if projection.bias is None else projection.bias.split(rows)
        query, key_value = zip(projection.weight.split(rows), biases, strict=True)
        self.query, self.key_value = make(*query), make(*key_value, "memory")
        self._keep_by(self.key_value, turns=turns)

    def _queries(self, x: Tensor) -> Tensor:
        return self.query(x)  # type: ignore[no-any-return]

    def _keys_and_values(self, memory: Tensor) -> Tensor:
        return self.keep(self.key_value(memory))


class Packed(VocabularyModel):
    """A model of such products."""

    packed_output: nn.Module

    def project(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary: (…, D) to (…, V)."""
        return self.packed_output(hidden)  # type: ignore[no-any-return]


class PackedTransformer(Packed, Transformer):
    """An encoder and decoder of such products."""


class PackedDecoder(Packed, Decoder):
    """A decoder alone of such products."""


register_class(PackedSelfAttention, computes=MultiHeadAttention, children=("projection", "output", "dropout", "score"))
register_class(
    PackedMemoryAttention, computes=MultiHeadAttention, children=("query", "key_value", "output", "dropout", "score")
)
register_class(
    PackedTransformer,
    computes=Transformer,
    children=(*TRANSFORMER_PARTS, "packed_output"),
    tensors=VOCABULARY_WEIGHTS,
)
register_class(PackedDecoder, computes=Decoder, children=(*DECODER_PARTS, "packed_output"), tensors=VOCABULARY_WEIGHTS)

PACKABLE = table(
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
"""The models that `pack` takes."""


@overload
def pack(model: Transformer, make: MakeProduct) -> PackedTransformer: ...
@overload
def pack(model: Decoder, make: MakeProduct) -> PackedDecoder: ...
def pack(model: Transformer | Decoder, make: MakeProduct) -> PackedTransformer | PackedDecoder:
    """The model with other products, made out of this one in float32, which is used up.

    Raises:
        TransduceError: the model has a component that is not in `PACKABLE`.
    """
    if (reason := refusal(PACKABLE, model)) is not None:
        raise TransduceError(f"The weights cannot be prepacked, because {reason}: use `fp32` or `bf16`.")
    with torch.no_grad(), torch.device("meta"):
        made = (PackedDecoder if isinstance(model, Decoder) else PackedTransformer)(model.config)
    made._modules, made._parameters, made._buffers = model._modules, model._parameters, model._buffers
    made._non_persistent_buffers_set = model._non_persistent_buffers_set
    turns = model.config.positions.startswith("rotary")
    with torch.no_grad():
        made.packed_output = make(model.output_weight, model.output_bias, "vocabulary")
        for module in list(made.modules()):
            if isinstance(module, DecoderLayer) or (isinstance(module, EncoderLayer) and isinstance(made, Decoder)):
                module.self_attention = PackedSelfAttention(module.self_attention, make, turns=turns)
            if isinstance(module, DecoderLayer):
                module.memory_attention = PackedMemoryAttention(module.memory_attention, make, turns=turns)
        for module in list(made.modules()):
            if isinstance(module, MultiHeadAttention) and not isinstance(module, KeepingAttention):
                module.projection = _packed(module.projection, make)
                module.output = _packed(module.output, make)
            elif isinstance(module, FeedForward | GatedFeedForward):
                module.inner = _packed(module.inner, make)
                module.outer = _packed(module.outer, make)
    made.own_output_weight = made.output_bias = None
    return made.eval()


def _packed(linear: nn.Linear, make: MakeProduct) -> Any:
    """`Any`, because it stands where the brick declares an `nn.Linear`, of which only the call is used."""
    return make(linear.weight, linear.bias)


# --- prepacked ---


class Twin:
    """Of a model that somebody may still change."""

    def __init__(self, model: Transformer | Decoder, make: MakeProduct) -> None:
        """Lays out its matrices by these products, as float32 has them."""
        self._make = make
        self._packed = pack(_in_float32(model), make)
        self._watch(model)

    def of(self, model: Transformer | Decoder, graph: Graph) -> PackedTransformer | PackedDecoder:
        """The twin as the model is now, of which this is the graph; it must be in `PACKABLE`."""
        weights = self._weights
        if graph != self._graph or any(
            holder.get(name) is not own or _version(own) != version for holder, name, own, version in weights
        ):
            self._packed = pack(_in_float32(model), self._make)
            self._watch(model)
        return self._packed

    def follow(self, model: nn.Module) -> None:
        """The model now has its weights in another precision, and is still the same."""
        self._watch(model)

    def _watch(self, model: nn.Module) -> None:
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
