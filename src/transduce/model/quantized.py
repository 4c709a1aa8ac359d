"""Matrix products with 8-bit weights, for decoding on a CPU: a quarter of the memory, and several times the speed.

Weights are symmetric with a scale for each output, activations symmetric with a scale for each row, found as the row
comes. Sums of products of integers are exact in any order, and a row's scale depends on nothing but the row, so a row's
result does not depend on the batch around it. `native/` has kernels of our own for this; those here are PyTorch's.
Legend: N rows, D inputs, O outputs, S source length, H heads, L keys.
"""

import warnings
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.attention import MultiHeadAttention
from transduce.model.cache import KeyValueCache
from transduce.model.feed_forward import FeedForward, GatedFeedForward
from transduce.model.layers import DecoderLayer
from transduce.model.transformer import Transformer

_LEAST = 1e-30  # a row of zeros is divided by this
_LEVELS = 127  # of a weight, and of an activation, on either side of 0
_LEVELS_WITHOUT_VNNI = 63


# What a product is for: errors of the memory's keys and values are in every step, and the vocabulary's decide.
Use = Literal["layer", "memory", "vocabulary"]


class MakeProduct(Protocol):
    """A float32 matrix (O, D) and a bias (O,) to a module that takes (…, D) to (…, O)."""

    def __call__(self, weight: Tensor, bias: Tensor | None, use: Use = "layer", /) -> nn.Module: ...


class Int8Linear(nn.Module):
    """x Wᵀ + b: (…, D) to (…, O), float32 outside and integers inside. Weights cannot be trained or read back."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, _use: Use = "layer", /, *, activation_levels: int | None = None
    ) -> None:
        """Of a float32 matrix (O, D), whatever its use; activations become integers from -activation_levels up to it.

        More than `safe_levels` of them may overflow.
        """
        super().__init__()
        activation_levels = activation_levels or safe_levels()
        self.packed = _pack(weight)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        # Activations are unsigned to the instructions, so zero stands in the middle.
        self.step = 1.0 / activation_levels
        self.zero = activation_levels + 1
        self._multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def forward(self, x: Tensor) -> Tensor:
        """Each row over its greatest magnitude, times the weights, times that magnitude."""
        scale = x.abs().amax(dim=-1, keepdim=True).clamp_min_(_LEAST)
        product: Tensor = self._multiply(x / scale, self.step, self.zero, self.packed)
        return product.mul_(scale) if self.bias is None else torch.addcmul(self.bias, product, scale, out=product)


def safe_levels() -> int:
    """How many steps of an activation FBGEMM's instructions bear on either side of 0.

    Processors without VNNI add two products in 16 bits, which 8 bits of an activation would overflow.
    """
    return _LEVELS if torch.cpu._is_vnni_supported() else _LEVELS_WITHOUT_VNNI


def _pack(weight: Tensor) -> Any:
    """A float32 matrix (O, D) as FBGEMM wants it."""
    scales = weight.abs().amax(dim=1).clamp_min(_LEAST).div(_LEVELS).double()  # (O,)
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    with warnings.catch_warnings():
        # PyTorch 2.13 deprecates tensors of quantised types, but has no other way to hand weights to FBGEMM.
        warnings.simplefilter("ignore", UserWarning)
        rows = torch.quantize_per_channel(weight, scales, zeros, axis=0, dtype=torch.qint8)
        return torch.ops.quantized.linear_prepack(rows, None)


class Int8MemoryAttention(MultiHeadAttention):
    """Attention to the memory, whose queries and whose keys and values are separate products."""

    def __init__(self, attention: MultiHeadAttention, make: MakeProduct) -> None:
        """Takes the place of this one."""
        nn.Module.__init__(self)
        self.num_heads, self.num_key_value_heads = attention.num_heads, attention.num_key_value_heads
        self.d_k, self.d_v, self.widths = attention.d_k, attention.d_v, attention.widths
        self.dropout, self.score = attention.dropout, attention.score
        projection = attention.projection
        rows = (self.widths[0], sum(self.widths[1:]))
        biases = (None, None) if projection.bias is None else projection.bias.split(rows)
        query, key_value = zip(projection.weight.split(rows), biases, strict=True)
        self.query, self.key_value = make(*query), make(*key_value, "memory")
        self.output = _quantized(attention.output, make)

    def _project_memory(self, x: Tensor, memory: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, Tensor, Tensor]:
        query = self._heads(self.query(x), self.d_k)
        if cache is not None and cache.length:
            return query, *cache.content()
        key, value = self.key_value(memory).split(self.widths[1:], dim=-1)
        key, value = self._heads(key, self.d_k), self._heads(value, self.d_v)
        return (query, *cache.hold(key, value)) if cache is not None else (query, key, value)


class Int8Transformer(Transformer):
    """A Transformer whose products are of 8-bit integers. Embeddings, norms and attention stay in float32."""

    quantized_output: nn.Module

    def project(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary: (…, D) to (…, V)."""
        return self.quantized_output(hidden)  # type: ignore[no-any-return]


def quantize(model: Transformer, *, make: MakeProduct = Int8Linear) -> Int8Transformer:
    """The model with 8-bit weights, made out of this one, which is used up.

    Args:
        model: in float32, on a CPU.
        make: makes the products.

    Raises:
        TransduceError: this build of PyTorch has no products of 8-bit integers.
    """
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        raise TransduceError(
            "Precision `int8` takes PyTorch's FBGEMM, which is there on x86 processors with AVX2 only: use `fp32`."
        )
    torch.backends.quantized.engine = "fbgemm"
    with torch.no_grad(), torch.device("meta"):
        made = Int8Transformer(model.config)
    made._modules, made._parameters = model._modules, model._parameters
    with torch.no_grad():
        made.quantized_output = make(model.output_weight, model.output_bias, "vocabulary")
        for layer in made.decoder_layers:
            assert isinstance(layer, DecoderLayer)
            layer.memory_attention = Int8MemoryAttention(layer.memory_attention, make)
        for module in list(made.modules()):
            if isinstance(module, MultiHeadAttention) and not isinstance(module, Int8MemoryAttention):
                module.projection = _quantized(module.projection, make)
                module.output = _quantized(module.output, make)
            elif isinstance(module, FeedForward | GatedFeedForward):
                module.inner = _quantized(module.inner, make)
                module.outer = _quantized(module.outer, make)
    made.own_output_weight = made.output_bias = None
    return made.eval()


def _quantized(linear: nn.Linear, make: MakeProduct) -> Any:
    """`Any`, because it stands where the brick declares an `nn.Linear`, of which only the call is used."""
    return make(linear.weight, linear.bias)
