"""What a model computes in: float32, bfloat16, or weights that become 8-bit integers as the model is opened."""

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
    """Refuses what is no precision.

    Raises:
        TransduceError: it is none of auto, fp32, bf16 and int8.
    """
    if asked not in ("auto", "int8", *DTYPES):
        raise TransduceError(f"`precision` must be `auto`, `fp32`, `bf16` or `int8`, but is `{asked}`.")


def precision_of(model: Model) -> str:
    """fp32, bf16 or int8; of a model that somebody converted, what its numbers are."""
    if isinstance(model, Packed):
        return "int8"
    dtype = model.source_weight.dtype
    return {torch.bfloat16: "bf16", torch.float32: "fp32"}.get(dtype, str(dtype).removeprefix("torch."))


def at_precision(model: _Model, asked: str, machine: Machine) -> _Model:
    """The model where and in what it computes; `auto` is what the machine multiplies fastest without integers.

    Raises:
        TransduceError: as `to_eight_bits`.
    """
    if asked == "int8":
        return cast(_Model, to_eight_bits(model, machine.device))  # of a class of the model's own
    dtype = DTYPES[machine.precision if asked == "auto" else asked]
    if machine.device == "cpu":
        make_twin(model, dtype)
    model.to(device=machine.device, dtype=dtype)  # in place
    return model


def to_eight_bits(model: Model, device: str) -> Transformer | Decoder:
    """The model with 8-bit weights; it is used up.

    Args:
        model: as it was read, in float32.
        device: where it is to run.

    Raises:
        TransduceError: the device is a GPU, the model does not decode, or PyTorch has no such products here.
    """
    if device != "cpu":
        raise TransduceError(f"Precision `int8` is for CPUs, but the device is `{device}`: use `bf16` there.")
    if not isinstance(model, Transformer | Decoder):
        raise TransduceError(
            "Precision `int8` is for Transformers that write, but this model is of the kind "
            f"`{model.config.kind}`: use `fp32`."
        )
    made = quantize(model, make=product_maker())
    return_memory()  # of the weights in float32, several times what is left
    return made
