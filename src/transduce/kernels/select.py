"""Which state decodes a model fastest on this machine.

Legend: B sentences, W hypotheses of each, S source length, V vocabulary.
"""

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeGuard, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from transduce.kernels.cuda.available import why_no_triton
from transduce.kernels.eager import EAGER, FlatState, why_not_eager
from transduce.kernels.int8_fbgemm import Int8Linear
from transduce.kernels.prepacked import PACKABLE, MakeProduct, PackedDecoder, PackedTransformer, Twin
from transduce.model.backend import TrainingKernels
from transduce.model.batch_search import BatchSearch, SearchBounds
from transduce.model.build import EncoderDecoder
from transduce.model.decoder import Decoder
from transduce.model.embedding import VocabularyModel
from transduce.model.layer_graph import Unsupported, description_of, graph_of, refusal
from transduce.model.transformer import DecodingState, Transformer

if TYPE_CHECKING:
    from transduce.kernels.cpu.decoding.compiled_steps import ModelPrograms
    from transduce.kernels.cpu.decoding.state import NativeState

_Model = TypeVar("_Model", bound=nn.Module)
_LEAST_LLVMLITE = (0, 50)
_MOST_TWIN_BYTES = 2**30  # a larger model has no twin: it would take as much memory again

__all__ = [
    "Selection",
    "decoded_model",
    "exact_projection",
    "find_batch_search",
    "forecast_decoder",
    "has_kernels",
    "has_programs",
    "kernels_of_training",
    "make_twin",
    "native_state",
    "product_maker",
    "select_decoder",
    "start_fast",
    "start_prompts",
    "temporary_twin",
    "why_no_kernels",
]


def has_kernels() -> bool:
    """Whether there are kernels of our own, in machine code, for this processor and PyTorch's number of threads."""
    return why_no_kernels(torch.get_num_threads()) is None


def why_no_kernels(threads: int) -> str | None:
    """What keeps our own kernels from running on so many threads; None where nothing does."""
    try:
        version = importlib.metadata.version("llvmlite")
    except importlib.metadata.PackageNotFoundError:
        return "llvmlite is not installed (pip install 'transduce[fast]')"
    if tuple(int(part) for part in version.split(".")[:2]) < _LEAST_LLVMLITE:  # it knows other names than we import
        return f"llvmlite {version} is too old (pip install 'transduce[fast]')"
    from transduce.kernels.cpu.jit.compiler import find_integer_tile, find_openmp

    if find_integer_tile() is None:
        return "there are none of our own for this processor"
    if threads > 1 and find_openmp() is None:
        return "on this system our own run on one thread alone"
    return None


def product_maker() -> MakeProduct:
    """Products with 8-bit weights by our kernels, and by FBGEMM where they do not fit."""
    if not has_kernels():
        return Int8Linear
    from transduce.kernels.cpu.gemm.decode import make_int8_linear

    return make_int8_linear


def exact_projection(model: VocabularyModel) -> Callable[[Tensor], Tensor]:
    """From (…, D) to logits (…, V), of which the likeliest are exact.

    In bfloat16 a product is rounded, so that many logits are equal; on a CPU with kernels, the likeliest are computed
    once more, and all are float32. Elsewhere, it is the model's own projection.
    """
    weight, bias = model.output_weight, model.output_bias
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu" or isinstance(graph_of(model), Unsupported):
        return model.project
    if _why_no_kernels(torch.get_num_threads()) is not None:
        return model.project
    from transduce.kernels.cpu.gemm.decode import INPUT_MULTIPLE, BFloat16Vocabulary

    return model.project if weight.shape[1] % INPUT_MULTIPLE else BFloat16Vocabulary(weight, bias)


@cache
def _why_no_kernels(threads: int) -> str | None:
    """Remember `why_no_kernels`, which reads what is installed and is too slow for every batch."""
    return why_no_kernels(threads)


def kernels_of_training(name: Literal["native", "torch"], device: str) -> TrainingKernels | None:
    """Those of this name for a device; None where PyTorch's operations are enough."""
    if name == "torch":
        return None
    if device != "cpu":
        from transduce.kernels.cuda.backend import GpuTraining

        return GpuTraining(device)
    from transduce.kernels.cpu.training.layer import NativeTraining

    return NativeTraining()


def native_state(state: DecodingState) -> "NativeState | None":
    """The state, if it is one of machine code."""
    if "transduce.kernels.cpu.decoding.state" not in sys.modules:
        return None
    from transduce.kernels.cpu.decoding.state import NativeState

    return state if isinstance(state, NativeState) else None


def find_batch_search(state: DecodingState, bounds: SearchBounds) -> BatchSearch | None:
    """The search of a state that has done no step, where there is a program for it."""
    native = native_state(state)
    if native is not None:
        from transduce.kernels.cpu.decoding.search import NativeSearch, supports_compiled_search

        return NativeSearch(native, bounds) if supports_compiled_search(native.output.outputs, bounds) else None
    if "transduce.kernels.cuda.decode_graph" not in sys.modules:
        return None
    from transduce.kernels.cuda.search import find_search

    return find_search(state, bounds)


class Selection(NamedTuple):
    """Which implementation decodes a model, and why faster ones do not."""

    backend: str
    """`compiled`, `triton`, `eager` or `reference`."""
    refused: dict[str, str]
    """By backend that was asked first: a clause with the reason."""


def select_decoder(model: nn.Module) -> Selection:
    """Return what decodes a model as it is now; hooks and replaced modules count from the next call on."""
    refused: dict[str, str] = {}
    for backend, why in _DECODERS.items():
        if (reason := why(model)) is None:
            return Selection(backend, refused)
        refused[backend] = reason
    return Selection("reference", refused)


def start_fast(model: EncoderDecoder, source_ids: Tensor) -> DecodingState:
    """Encodes source_ids (B, S): by machine code, by the usual components written out, or by the model's own."""
    found = _find_compiled(model)
    if not isinstance(found, str):
        from transduce.kernels.cpu.decoding.state import NativeState

        packed, programs = found
        assert isinstance(packed, PackedTransformer)
        return NativeState(packed, programs, source_ids)
    if why_not_eager(model) is None:
        return FlatState(cast(Transformer, model), source_ids)
    if _why_not_triton(model) is None:
        from transduce.kernels.cuda.decode_graph import GpuState

        return GpuState(cast(Transformer, model), source_ids)
    return model.start(source_ids)


def has_programs(model: EncoderDecoder) -> bool:
    """Whether machine code of our own decodes it, encoder and all, so that threads may decode a batch each."""
    return not isinstance(_find_compiled(model), str)


def start_prompts(model: Decoder, prompt_ids: Tensor, lengths: Tensor) -> DecodingState:
    """Reads prompt_ids (B, P) of these lengths (B,): by machine code, or by the model's own."""
    found = _find_compiled(model)
    if not isinstance(found, str):
        from transduce.kernels.cpu.decoding.state import NativePromptState

        packed, programs = found
        assert isinstance(packed, PackedDecoder)
        return NativePromptState(packed, programs, prompt_ids, lengths)
    return model.start(prompt_ids, lengths)


def _find_compiled(model: nn.Module) -> "tuple[PackedTransformer | PackedDecoder, ModelPrograms] | str":
    """Return a model's prepacked form and its compiled steps, or why there are none."""
    packed = decoded_model(model)
    if not isinstance(packed, PackedTransformer | PackedDecoder) or isinstance(packed.packed_output, Int8Linear):
        return _why_not_packed(model) or "its weights were not prepacked"
    from transduce.kernels.cpu.decoding.compiled_steps import find_programs

    programs = find_programs(packed, is_private=packed is not model)
    return programs if isinstance(programs, str) else (packed, programs)


def _why_not_compiled(model: nn.Module) -> str | None:
    found = _find_compiled(model)
    return found if isinstance(found, str) else None


def _why_not_packed(model: nn.Module) -> str | None:
    """Return why a model's weights could not be prepacked for compiled decoding; None: they could."""
    if isinstance(graph := graph_of(model), Unsupported):
        return f"{graph.reason}, which the compiled decoder does not know"
    device = next(model.parameters()).device.type
    if device != "cpu":
        return f"the model is on {device}"
    return _why_not_compilable(model)


def _why_not_compilable(model: nn.Module) -> str | None:
    if (reason := _why_no_kernels(torch.get_num_threads())) is not None:
        return reason
    from transduce.kernels.cpu.decoding.compiled_steps import why_not_compilable

    return why_not_compilable(model)


def forecast_decoder(model: Transformer | Decoder, device: str) -> Selection:
    """Return what will decode a model such as this one, be it on the meta device, once it is loaded on a device."""
    refused: dict[str, str] = {}
    if device == "cpu":
        if (reason := _why_not_compilable(model)) is None:
            return Selection("compiled", refused)
        refused["compiled"] = reason
        if (reason := refusal(EAGER, model)) is None:
            return Selection("eager", refused)
        return Selection("reference", refused | {"eager": reason})
    if (reason := why_no_triton(device)) is None:
        from transduce.kernels.cuda.decode_graph import why_not_triton

        reason = why_not_triton(model)
    return Selection("triton", refused) if reason is None else Selection("reference", {"triton": reason})


def _why_not_triton(model: nn.Module) -> str | None:
    """Return why a model is not decoded by steps of few operations on a GPU."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return f"the model is on {device.type}"
    if (reason := why_no_triton(str(device))) is not None:
        return reason
    from transduce.kernels.cuda.decode_graph import why_not_triton

    return why_not_triton(model)


_DECODERS: dict[str, Callable[[nn.Module], str | None]] = {
    "compiled": _why_not_compiled,
    "eager": why_not_eager,
    "triton": _why_not_triton,
}


def _is_for_kernels(model: nn.Module) -> TypeGuard[Transformer | Decoder]:
    is_kind = isinstance(model, Transformer | Decoder)
    return is_kind and not model.training and model.source_weight.device.type == "cpu"


_TWINS: WeakKeyDictionary[nn.Module, Twin] = WeakKeyDictionary()


def make_twin(model: nn.Module, dtype: torch.dtype) -> None:
    """From here on decoding on a CPU takes the kernels' products of this type, where there are any for the model.

    Args:
        model: in float32. It gets this type.
        dtype: float32, or bfloat16, whose products then take rounded rows and matrices; the rest stays in float32.
    """
    twin = _twin_of(model, dtype)
    model.to(dtype)
    if twin is not None:
        twin.follow(model)
        _TWINS[model] = twin


@contextmanager
def temporary_twin(model: nn.Module) -> Iterator[None]:
    """The same for a model that has its type already, for as long as the block takes."""
    twin = _twin_of(model, next(model.parameters()).dtype)
    if twin is not None:
        _TWINS[model] = twin
    try:
        yield
    finally:
        _TWINS.pop(model, None)


def _twin_of(model: nn.Module, dtype: torch.dtype) -> Twin | None:
    if not _is_for_kernels(model) or not has_kernels():
        return None
    make = _make_floats(model, dtype)
    return None if make is None else Twin(model, make)


def _make_floats(model: Transformer | Decoder, dtype: torch.dtype) -> MakeProduct | None:
    from transduce.kernels.cpu.decoding.compiled_steps import why_not_compilable
    from transduce.kernels.cpu.gemm.decode import make_float_linear
    from transduce.kernels.cpu.jit.compiler import find_float_tile

    tile = find_float_tile("pairs" if dtype == torch.bfloat16 else "floats")
    count = sum(parameter.numel() for parameter in model.parameters())
    if tile is None or why_not_compilable(model) is not None or count * tile.weight_bytes > _MOST_TWIN_BYTES:
        return None
    return make_float_linear(tile)


def decoded_model(model: _Model) -> _Model:
    """What decoding computes with, to the last bit: the model's twin, or the model where it has none."""
    twin = _TWINS.get(model)
    if twin is None or not _is_for_kernels(model):
        return model
    described = description_of(model)
    if described.is_training or described.refusal(PACKABLE) is not None:
        return cast(_Model, model)
    return cast(_Model, twin.of(model, described.graph))  # an inference copy is of a class of the model's own
