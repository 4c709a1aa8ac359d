"""Set a model's precision: float32, bfloat16, or 8-bit integer weights that are quantized on loading."""

from typing import TypeVar, cast

import torch

from transduce.errors import TransduceError
from transduce.libraries import return_memory
from transduce.model.build import Model
from transduce.model.decoder import Decoder
from transduce.model.fast import make_twin, product_maker
from transduce.model.packed import Packed
from transduce.model.precision import DTYPES
from transduce.model.quantized import quantize
from transduce.model.transformer import Transformer
from transduce.runtime.machine import Machine

_Model = TypeVar("_Model", bound=Model)


def check_precision(asked: str) -> None:
    """Refuse an unknown precision.

    Raises:
        TransduceError: the precision is not "auto", "fp32", "bf16" or "int8".
    """
    if asked not in ("auto", "int8", *DTYPES):
        raise TransduceError(f"`precision` must be `auto`, `fp32`, `bf16` or `int8`, but is `{asked}`.")


def precision_of(model: Model) -> str:
    """Return a model's precision: "fp32", "bf16" or "int8"; for models converted by hand, the dtype's name."""
    if isinstance(model, Packed):
        return "int8"
    dtype = model.source_weight.dtype
    return {torch.bfloat16: "bf16", torch.float32: "fp32"}.get(dtype, str(dtype).removeprefix("torch."))


def at_precision(model: _Model, asked: str, machine: Machine) -> _Model:
    """Return the model at a precision, on the machine's device; "auto" is bf16 or fp32, whichever is faster.

    The model is converted in place, except for "int8".

    Raises:
        TransduceError: `precision` is "int8" and the model or the device does not support it.
    """
    if asked == "int8":
        return cast(_Model, to_eight_bits(model, machine.device))  # quantize returns an instance of the model's class
    dtype = DTYPES[machine.precision if asked == "auto" else asked]
    if machine.device == "cpu":
        make_twin(model, dtype)
    model.to(device=machine.device, dtype=dtype)
    return model


def to_eight_bits(model: Model, device: str) -> Transformer | Decoder:
    """Return the model with 8-bit weights; the original model must not be used afterwards.

    Args:
        model: the model in float32.
        device: the device that the model will run on.

    Raises:
        TransduceError: the device is a GPU, the model is not a Transformer that generates text, or PyTorch has no 8-bit
            matrix multiplication here.
    """
    if device != "cpu":
        raise TransduceError(f"Precision `int8` is for CPUs, but the device is `{device}`: use `bf16` there.")
    if not isinstance(model, Transformer | Decoder):
        raise TransduceError(
            "Precision `int8` is for Transformers that generate text, but this model is of the kind "
            f"`{model.config.kind}`: use `fp32`."
        )
    quantized = quantize(model, make=product_maker())
    return_memory()  # the float32 weights take several times the memory of the quantized ones
    return quantized
