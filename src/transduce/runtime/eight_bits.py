"""Precision `int8`: models whose weights become 8-bit integers as they are opened."""

import torch

from transduce.errors import TransduceError
from transduce.model.quantized import quantize
from transduce.model.transformer import Transformer

_LEVELS = 127
_LEVELS_WITHOUT_VNNI = 63


def to_eight_bits(model: object, device: str) -> Transformer:
    """The model with 8-bit weights; it is used up.

    Processors without VNNI instructions add two products in 16 bits, which more than 7 bits of an activation would
    overflow.

    Args:
        model: as it was read, in float32.
        device: where it is to run.

    Raises:
        TransduceError: the device is a GPU, the model is no Transformer, or PyTorch has no such products here.
    """
    if device != "cpu":
        raise TransduceError(f"Precision `int8` is for CPUs, but the device is `{device}`: use `bf16`, or device `cpu`.")
    if not isinstance(model, Transformer):
        raise TransduceError("Precision `int8` is for Transformers, but this model is of another kind: use `fp32`.")
    return quantize(model, activation_levels=_LEVELS if torch.cpu._is_vnni_supported() else _LEVELS_WITHOUT_VNNI)
