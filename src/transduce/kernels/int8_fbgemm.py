"""Matrix products with 8-bit weights, for decoding on a CPU: a quarter of the memory, and several times the speed.

Weights are symmetric with a scale for each output, activations symmetric with a scale for each row, found as the row
comes. Sums of products of integers are exact in any order, and a row's scale depends on nothing but the row, so a row's
result does not depend on the batch around it. `native/` has kernels of our own for this; those here are PyTorch's.
Legend: D inputs, O outputs.
"""

import warnings
from typing import Any, overload

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.kernels.prepacked import LinearUse, MakeLinear, PrepackedDecoder, PrepackedTransformer, prepack
from transduce.model.decoder import Decoder
from transduce.model.feed_forward import Linear
from transduce.model.known_classes import register_class
from transduce.model.transformer import Transformer

_LEAST = 1e-30  # a row of zeros is divided by this
_LEVELS = 127  # of a weight, and of an activation, on either side of 0
_LEVELS_WITHOUT_VNNI = 63


class Int8Linear(nn.Module):
    """x Wᵀ + b: (…, D) to (…, O), float32 outside and integers inside. Weights cannot be trained or read back."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, _use: LinearUse = "layer", /, *, activation_levels: int | None = None
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


register_class(Int8Linear, computes=Linear, tensors=("bias",))


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


@overload
def quantize(model: Transformer, *, make: MakeLinear = ...) -> PrepackedTransformer: ...
@overload
def quantize(model: Decoder, *, make: MakeLinear = ...) -> PrepackedDecoder: ...
def quantize(model: Transformer | Decoder, *, make: MakeLinear = Int8Linear) -> PrepackedTransformer | PrepackedDecoder:
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
    return prepack(model, make)
