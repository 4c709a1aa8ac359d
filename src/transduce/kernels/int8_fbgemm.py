"""Linear layers with 8-bit weights for decoding on a CPU by PyTorch's FBGEMM, and the quantization of models.

Weights have a scale for each output, activations a scale for each row, computed at run time; both are symmetric.
Integer sums are exact in any order, and a row's scale depends on that row only. So a row's result does not depend on
the batch. `kernels/cpu/gemm` has compiled kernels for the same purpose.

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

_MIN_SCALE = 1e-30  # lower bound on a row's magnitude, against division by zero
_MAX_LEVEL = 127  # greatest quantized magnitude of a weight or activation
_MAX_LEVEL_WITHOUT_VNNI = 63


class Int8Linear(nn.Module):
    """A linear layer x Wᵀ + b, (…, D) to (…, O), with 8-bit weights, which can be neither trained nor read back."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, _use: LinearUse = "layer", /, *, activation_levels: int | None = None
    ) -> None:
        """Quantize a float32 matrix (O, D).

        Activations are quantized to integers between -activation_levels and activation_levels; more than `safe_levels`
        of them may overflow.
        """
        super().__init__()
        activation_levels = activation_levels or safe_levels()
        self.packed = _pack(weight)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        # FBGEMM takes unsigned activations, so zero is in the middle of their range.
        self.activation_scale = 1.0 / activation_levels
        self.zero_point = activation_levels + 1
        self._multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def forward(self, x: Tensor) -> Tensor:
        """Scale each row to magnitude 1, quantize it, multiply by the weights, and scale the result back."""
        scale = x.abs().amax(dim=-1, keepdim=True).clamp_min_(_MIN_SCALE)
        product: Tensor = self._multiply(x / scale, self.activation_scale, self.zero_point, self.packed)
        return product.mul_(scale) if self.bias is None else torch.addcmul(self.bias, product, scale, out=product)


register_class(Int8Linear, computes=Linear, tensors=("bias",))


def safe_levels() -> int:
    """Return the greatest activation level with which FBGEMM cannot overflow.

    Processors without VNNI add two products in 16 bits, which 8-bit activations would overflow.
    """
    return _MAX_LEVEL if torch.cpu._is_vnni_supported() else _MAX_LEVEL_WITHOUT_VNNI


def _pack(weight: Tensor) -> Any:
    """Return a float32 matrix (O, D) in FBGEMM's format."""
    scales = weight.abs().amax(dim=1).clamp_min(_MIN_SCALE).div(_MAX_LEVEL).double()  # (O,)
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    with warnings.catch_warnings():
        # PyTorch 2.13 deprecates quantized tensors, but FBGEMM takes no other weights.
        warnings.simplefilter("ignore", UserWarning)
        rows = torch.quantize_per_channel(weight, scales, zeros, axis=0, dtype=torch.qint8)
        return torch.ops.quantized.linear_prepack(rows, None)


@overload
def quantize(model: Transformer, *, make: MakeLinear = ...) -> PrepackedTransformer: ...
@overload
def quantize(model: Decoder, *, make: MakeLinear = ...) -> PrepackedDecoder: ...
def quantize(model: Transformer | Decoder, *, make: MakeLinear = Int8Linear) -> PrepackedTransformer | PrepackedDecoder:
    """Return a model with 8-bit weights, made from a float32 model, which must not be used afterwards.

    Args:
        model: in float32, on a CPU.
        make: makes the linear layers.

    Raises:
        TransduceError: this build of PyTorch has no FBGEMM.
    """
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        raise TransduceError(
            "Precision `int8` takes PyTorch's FBGEMM, which is there on x86 processors with AVX2 only: use `fp32`."
        )
    torch.backends.quantized.engine = "fbgemm"
    return prepack(model, make)
