"""Which state decodes a model fastest on this machine.

Legend: B sentences, W hypotheses of each, S source length, V vocabulary.
"""

import importlib.util
import sys
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from torch import Tensor, nn

from transduce.model.flat import FlatState, supports
from transduce.model.fused import TrainingKernels
from transduce.model.quantized import Int8Linear, Int8Transformer, MakeProduct
from transduce.model.state import DecodingState
from transduce.model.transformer import Transformer

if TYPE_CHECKING:
    from transduce.model.native.state import NativeState

__all__ = [
    "LogitState",
    "has_kernels",
    "kernels_of_training",
    "native_state",
    "product_maker",
    "start_fast",
    "supports",
]


@runtime_checkable
class LogitState(DecodingState, Protocol):
    """A state that projects to the vocabulary as well."""

    def logits(self, pieces: Tensor) -> Tensor:
        """Logits after each hypothesis' newest piece, (B, W) to (B, W, V). They hold until the next step."""


def has_kernels(threads: int = 1) -> bool:
    """Whether llvmlite is installed, which writes our own kernels in machine code, knows this processor, and can run
    them on so many threads together.
    """
    if importlib.util.find_spec("llvmlite") is None:
        return False
    from transduce.model.native.engine import find_threading, find_tile

    return find_tile() is not None and (threads == 1 or find_threading() is not None)


def product_maker(activation_levels: int) -> MakeProduct:
    """Products of 8-bit integers by our kernels, and by FBGEMM with so many levels where they do not fit."""
    if not has_kernels():
        return partial(Int8Linear, activation_levels=activation_levels)
    from transduce.model.native.linear import NativeLinear, find_fitting_tile

    def make(weight: Tensor, bias: Tensor | None) -> nn.Module:
        tile = find_fitting_tile(weight)
        if tile is None:
            return Int8Linear(weight, bias, activation_levels=activation_levels)
        return NativeLinear(weight, bias, tile)

    return make


def kernels_of_training(name: Literal["native", "torch"]) -> TrainingKernels | None:
    """Those of this name; None where PyTorch's operations are enough."""
    if name == "torch":
        return None
    from transduce.model.native.training import NativeTraining

    return NativeTraining()


def native_state(state: DecodingState) -> "NativeState | None":
    """The state, if it is one of machine code."""
    if "transduce.model.native.state" not in sys.modules:
        return None
    from transduce.model.native.state import NativeState

    return state if isinstance(state, NativeState) else None


def start_fast(model: Transformer, source_ids: Tensor) -> DecodingState:
    """Encodes source_ids (B, S), for a model of which `supports` holds."""
    if isinstance(model, Int8Transformer) and not isinstance(model.quantized_output, Int8Linear):
        from transduce.model.native.model_programs import find_programs
        from transduce.model.native.state import NativeState

        programs = find_programs(model)
        if programs is not None:
            return NativeState(model, programs, source_ids)
    return FlatState(model, source_ids)
