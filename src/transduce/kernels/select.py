"""Select the fastest implementation that decodes or trains a model on this machine.

Legend: B sentences, W hypotheses of each, S source length, P prompt length, V vocabulary size.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import TransduceError
from transduce.kernel_interfaces import BatchSearch, BatchSearchOptions, DecoderChoice, TrainingKernels
from transduce.kernels.prepacked import (
    PREPACKABLE,
    AnyPrepacked,
    InferenceCopy,
    LinearUse,
    PackedLayers,
    PrepackableModel,
    prepack,
)
from transduce.machine import usable_memory
from transduce.model.build import EncoderDecoder
from transduce.model.config import ModelConfig
from transduce.model.embedding import VocabularyModel
from transduce.model.layer_graph import Unsupported, description_of, graph_of
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.transformer import Decoder, DecodingState, Encoder, Transformer

if TYPE_CHECKING:
    from transduce.kernels.cpu.decoding.compiled_steps import CompiledModel
    from transduce.kernels.cpu.decoding.state import CompiledState

_Model = TypeVar("_Model", bound=nn.Module)
_Quantizable = TypeVar("_Quantizable", bound=PrepackableModel)
_MIN_LLVMLITE = (0, 50)
_MIN_CAPABILITY = (8, 0)  # compute capability of NVIDIA's Ampere, the first with bfloat16
_COPY_SHARE = 4  # an inference copy takes at most 1 / 4 of the usable memory, which also holds the model


def has_kernels() -> bool:
    """Return whether compiled CPU kernels run on this machine with PyTorch's current number of threads."""
    return why_no_kernels(torch.get_num_threads()) is None


@cache
def why_no_kernels(threads: int) -> str | None:
    """Return a clause that says why compiled CPU kernels do not run with `threads` threads here; None if they do.

    Reasons are a missing or old llvmlite, an unsupported processor, or several threads without OpenMP.
    """
    try:
        version = importlib.metadata.version("llvmlite")
    except importlib.metadata.PackageNotFoundError:
        return "llvmlite is not installed (pip install 'transduce[fast]')"
    # Older versions lack names that the kernels import.
    if tuple(int(part) for part in version.split(".")[:2]) < _MIN_LLVMLITE:
        return f"llvmlite {version} is too old (pip install 'transduce[fast]')"
    try:
        from transduce.kernels.cpu.jit.compiler import find_integer_tile, find_openmp
    except (ImportError, OSError) as error:
        return f"llvmlite cannot be imported ({error})"
    if find_integer_tile() is None:
        return "transduce has no kernels for this processor"
    if threads > 1 and find_openmp() is None:
        return "the kernels run on one thread only on this system"
    return None


def why_triton_fails(device: str) -> str | None:
    """Run a small Triton kernel on a GPU; return a clause that says how it fails, or None if it works.

    A wrong result counts as a failure. The clause is part of a message to the user.
    """
    # The kernels are imported only for the trial, once everything else is present.
    from transduce.kernels.cuda.rows import add_and_norm

    x = torch.linspace(-1.0, 1.0, 96, device=device).view(2, 48)
    weight, bias = x[0] + 2.0, x[1]
    try:
        with torch.cuda.device_of(x):
            total, normed = add_and_norm(x, x * x, weight, bias, 1e-5)
    except Exception as error:  # noqa: BLE001  (its compiler, the C compiler and the driver have errors of their own)
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"triton fails on it: {reason}"
    expected = F.layer_norm(x + x * x, (48,), weight, bias, 1e-5)
    right = torch.allclose(total, x + x * x) and torch.allclose(normed, expected, rtol=1e-4, atol=1e-4)
    return None if right else "triton's kernels give wrong results on it"


@cache
def why_no_triton(device: str) -> str | None:
    """Return why Triton kernels do not work on a GPU, as a phrase for a message; None if they do.

    A small kernel is tried once per device and process.
    """
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if sys.platform == "linux":  # Triton for other systems ships a compiler
        if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
            return "there is no C compiler for triton: install gcc"
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            return "there is no Python.h for triton: install Python's headers"
    if torch.cuda.get_device_capability(device) < _MIN_CAPABILITY:
        return "the kernels need an NVIDIA GPU of the Ampere generation or later"
    return why_triton_fails(device)


def quantize(model: _Quantizable, *, after_each_layer: Callable[[], None] = lambda: None) -> _Quantizable:
    """Quantize the weights of a float32 model to 8 bits, and return the prepacked model.

    The result takes over the modules of `model`. Do not use `model` afterwards.

    Args:
        model: in float32, on a CPU. On the meta device, the result has the layers but no data.
        after_each_layer: called after each layer is quantized, for example to release the memory of its weights.

    Raises:
        TransduceError: no compiled kernels run here, or they do not support a component or a size of the model.
    """
    if (reason := why_no_kernels(torch.get_num_threads())) is not None:
        raise TransduceError(f"Precision `int8` needs compiled kernels, but {reason}: use `fp32` or `bf16`.")
    from transduce.kernels.cpu.gemm.decode import make_int8_linear

    def make(weight: Tensor, bias: Tensor | None, use: LinearUse = "layer", /) -> nn.Module:
        layer = make_int8_linear(weight, bias, use)
        after_each_layer()
        return layer

    return cast(_Quantizable, prepack(model, make))


def quantize_without_data(model: nn.Module) -> PackedLayers | None:
    """Return the layers that a model would have with 8-bit weights, without data; None if it cannot be quantized.

    The result, a `PackedLayers`, has the `layout` that a stored file of packed weights must have to be usable. `model`
    is on the meta device (without data), and must not be used afterwards.
    """
    originals = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if not isinstance(model, PrepackableModel):
        return None
    try:
        return PackedLayers(cast(AnyPrepacked, quantize(model)), originals)
    except TransduceError:
        return None


def exact_projection(model: VocabularyModel) -> Callable[[Tensor], Tensor]:
    """Return a function that computes a model's logits from its hidden states, (…, D) to (…, V).

    bfloat16 logits are rounded, so many of them are equal. For a bfloat16 model on a CPU, the function therefore
    computes the greatest logits again in float32, and returns float32 logits. The function is the model's own `project`
    in every other case, and if compiled kernels do not support the model.
    """
    weight, bias = model.output_weight, model.output_bias
    is_bfloat16_on_cpu = weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
    if not is_bfloat16_on_cpu or isinstance(graph_of(model), Unsupported) or not has_kernels():
        return model.project
    from transduce.kernels.cpu.gemm.decode import INPUT_MULTIPLE, BFloat16Vocabulary

    return model.project if weight.shape[1] % INPUT_MULTIPLE else BFloat16Vocabulary(weight, bias)


def kernels_for_training(name: Literal["native", "torch"], device: str) -> TrainingKernels | None:
    """Return this package's training kernels for a device, or None, which means plain PyTorch.

    The result is None if `name` is "torch". If `name` is "native", the kernels are compiled CPU kernels for the device
    "cpu", and Triton kernels for any other device.
    """
    if name == "torch":
        return None
    if device != "cpu":
        from transduce.kernels.cuda.backend import GpuTraining

        return GpuTraining(device)
    from transduce.kernels.cpu.training.layer import CompiledTraining

    return CompiledTraining()


def why_no_whole_layers(model: nn.Module, config: ModelConfig, dtype: torch.dtype, device: str) -> str | None:
    """Return why our kernels train a model component by component, as a clause; None if they compute whole layers.

    The model may be on the meta device, so its weights need not be read.
    """
    if device == "cpu":
        from transduce.kernels.cpu.training.layer import why_not_whole
    else:
        from transduce.kernels.cuda.backend import why_not_whole
    if config.attention_window is not None:
        return "`model.attention_window` is set"
    if device != "cpu" and not (config.kind == "transformer" and config.can_be_packed):
        return "batches of such a model are padded"
    if device != "cpu" and config.activation_dropout:
        return "`model.activation_dropout` is not 0"
    layers = [each for each in model.modules() if isinstance(each, EncoderLayer | DecoderLayer)]
    return next((reason for each in layers if (reason := why_not_whole(each, dtype)) is not None), None)


def compiled_state(state: DecodingState) -> "CompiledState | None":
    """Return a decoding state if it is a `CompiledState` (of the CPU kernels), else None, without loading kernels."""
    if "transduce.kernels.cpu.decoding.state" not in sys.modules:
        return None
    from transduce.kernels.cpu.decoding.state import CompiledState

    return state if isinstance(state, CompiledState) else None


def find_batch_search(state: DecodingState, options: BatchSearchOptions) -> BatchSearch | None:
    """Return a search (beam, greedy or sampling) in CPU or GPU kernels, which starts from a decoding state.

    The state must not have run a step. The result is None in two cases: the state belongs neither to compiled CPU
    kernels nor to CUDA graphs, or the kernels do not support the search options.
    """
    if "transduce.kernels.cpu.decoding.state" in sys.modules:
        from transduce.kernels.cpu.decoding.state import CompiledPromptState, CompiledState

        if isinstance(state, CompiledState | CompiledPromptState):
            from transduce.kernels.cpu.decoding.search import CompiledBatchSearch, supports_compiled_search

            is_supported = supports_compiled_search(state.output.outputs, options)
            return CompiledBatchSearch(state, options) if is_supported else None
    if "transduce.kernels.cuda.decode_graph" not in sys.modules:
        return None
    from transduce.kernels.cuda.search import find_search

    return find_search(state, options)


def select_decoder(model: nn.Module) -> DecoderChoice:
    """Return a `DecoderChoice`: the backend that decodes a model, and the reasons why no faster one does.

    For an encoder-only model, the backend is that which encodes. The choice may change when a hook is added to the
    model or a module is replaced.
    """
    device = next(model.parameters()).device
    if device.type == "cuda":
        return DecoderChoice.of("triton", _why_not_triton(model, str(device)))
    compiled = _find_compiled(model)
    return DecoderChoice.of("compiled", compiled if isinstance(compiled, str) else None)


def start_fast(model: EncoderDecoder, source_ids: Tensor) -> DecodingState:
    """Encode source_ids (B, S), and return the decoding state of the fastest backend that supports the model."""
    compiled = _find_compiled(model)
    if not isinstance(compiled, str):
        from transduce.kernels.cpu.decoding.state import CompiledState, count_tokens

        if (counts := count_tokens(source_ids, model.config.pad_id)) is not None:
            return CompiledState(*compiled, source_ids, counts)
    if _why_not_triton(model, str(model.source_weight.device)) is None:
        from transduce.kernels.cuda.decode_graph import GpuState

        return GpuState(cast(Transformer, model), source_ids)
    return model.start(source_ids)


def encode_fast(model: Encoder, ids: Tensor) -> Tensor:
    """Return an encoder-only model's state of each token, (B, S) to (B, S, D), by the fastest backend that supports it.

    The model is in evaluation mode, and the ids are padded at the right. States of padding are unspecified.
    """
    compiled = _find_compiled(model)
    if not isinstance(compiled, str):
        from transduce.kernels.cpu.decoding.state import encode_texts

        if (states := encode_texts(*compiled, ids)) is not None:
            return states.to(model.source_weight.dtype)  # that of the heads
    return decoding_model(model).encode(ids)[0].to(model.source_weight.dtype)


def start_prompts(model: Decoder, prompt_ids: Tensor, lengths: Tensor) -> DecodingState:
    """Run a decoder-only model on prompts, and return the decoding state after the prompts.

    Compiled kernels compute the state if they support the model. Otherwise the model's own `start` does.

    Args:
        model: a decoder-only model.
        prompt_ids: token ids, (B, P), padded.
        lengths: the number of tokens of each prompt without padding, (B,).
    """
    compiled = _find_compiled(model)
    if not isinstance(compiled, str):
        from transduce.kernels.cpu.decoding.state import CompiledPromptState

        return CompiledPromptState(*compiled, prompt_ids, lengths)
    return model.start(prompt_ids, lengths)


def _find_compiled(model: nn.Module) -> "tuple[Any, CompiledModel] | str":
    """Return a model's prepacked copy and its compiled kernels, as a pair.

    If there are none, return a clause that says why. The prepacked copy is an `AnyPrepacked`: for a `Transformer` a
    `PrepackedTransformer`, and so on.
    """
    prepacked = decoding_model(model)
    if not isinstance(prepacked, AnyPrepacked):
        return _why_not_packed(model) or "its weights were not prepacked"
    from transduce.kernels.cpu.decoding.compiled_steps import find_compiled_model

    compiled = find_compiled_model(prepacked, is_private=prepacked is not model)
    return compiled if isinstance(compiled, str) else (prepacked, compiled)


def _why_not_packed(model: nn.Module) -> str | None:
    """Return a clause that says why a model cannot have a prepacked copy for compiled kernels, or None if it can."""
    if isinstance(graph := graph_of(model), Unsupported):
        return f"{graph.reason}, which the compiled decoder does not know"
    device = next(model.parameters()).device.type
    if device != "cpu":
        return f"the model is on {device}"
    return _why_not_compilable(model)


def _why_not_compilable(model: nn.Module) -> str | None:
    """Return a clause that says why compiled kernels could not decode a model on this CPU, or None if they could."""
    if (reason := why_no_kernels(torch.get_num_threads())) is not None:
        return reason
    from transduce.kernels.cpu.decoding.compiled_steps import why_not_compilable

    return why_not_compilable(model)


def expected_decoder(model: Transformer | Decoder, device: str) -> DecoderChoice:
    """Return a `DecoderChoice`: the backend that will decode a model on a device once the weights are loaded.

    The choice includes the reason why no faster backend will. The model may be on the meta device, so its weights need
    not be read.
    """
    if device == "cpu":
        return DecoderChoice.of("compiled", _why_not_compilable(model))
    return DecoderChoice.of("triton", _why_not_triton(model, device))


def _why_not_triton(model: nn.Module, device: str) -> str | None:
    """Return a clause that says why Triton kernels do not decode a model on a device, or None if they do."""
    if not device.startswith("cuda"):
        return f"the model is on {device}"
    if (reason := why_no_triton(device)) is not None:
        return reason
    from transduce.kernels.cuda.decode_graph import why_not_triton

    return why_not_triton(model)


def _can_be_prepacked(model: nn.Module) -> TypeGuard[PrepackableModel]:
    """Return whether a model is on a CPU, in evaluation mode and of a class that prepacking supports."""
    is_kind = isinstance(model, PrepackableModel)
    return is_kind and not model.training and model.source_weight.device.type == "cpu"


_INFERENCE_COPIES: WeakKeyDictionary[nn.Module, InferenceCopy] = WeakKeyDictionary()


def make_inference_copy(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert a model to a dtype in place, and make the prepacked copy that `decoding_model` returns on a CPU.

    No copy is made if kernels do not support the model, or if the copy would be too large.

    Args:
        model: in float32; it is converted to `dtype`.
        dtype: float32 or bfloat16. With bfloat16, the copy's GEMMs round inputs and weights; all else in the copy stays
            in float32.
    """
    inference_copy = _make_copy(model, dtype)
    model.to(dtype)
    if inference_copy is not None:
        inference_copy.record_weights(model)  # which changed its dtype only, so that nothing is prepacked again
        _INFERENCE_COPIES[model] = inference_copy


@contextmanager
def temporary_inference_copy(model: nn.Module) -> Iterator[None]:
    """Make a prepacked copy of a model, with which decoding computes in the body of the `with` statement.

    The copy has the model's dtype. If kernels do not support the model, or if the copy would be too large, there is no
    copy, and decoding uses the model itself. Afterwards the model has no copy, even if it had one before.
    """
    inference_copy = _make_copy(model, next(model.parameters()).dtype)
    if inference_copy is not None:
        _INFERENCE_COPIES[model] = inference_copy
    try:
        yield
    finally:
        _INFERENCE_COPIES.pop(model, None)


def _make_copy(model: nn.Module, dtype: torch.dtype) -> InferenceCopy | None:
    """Return an `InferenceCopy` of a model in `dtype`, for decoding, or None if the model gets no copy.

    The result is None if kernels do not support the model, if the model is in training mode or not on a CPU, or if the
    copy would take more than a quarter of the usable memory.
    """
    if not _can_be_prepacked(model) or not has_kernels():
        return None
    from transduce.kernels.cpu.decoding.compiled_steps import why_not_compilable
    from transduce.kernels.cpu.gemm.decode import make_float_linear
    from transduce.kernels.cpu.jit.compiler import find_float_tile

    tile = find_float_tile("pairs" if dtype == torch.bfloat16 else "floats")
    count = sum(parameter.numel() for parameter in model.parameters())
    if tile is None or why_not_compilable(model) is not None or count * tile.weight_bytes > _max_copy_bytes():
        return None
    return InferenceCopy(model, make_float_linear(tile))


@cache
def _max_copy_bytes() -> int:
    """Return the maximum size of an inference copy in bytes, a quarter of the usable memory."""
    return usable_memory() // _COPY_SHARE


def decoding_model(model: _Model) -> _Model:
    """Return the model that decoding computes with: the up-to-date prepacked copy, or the model itself if it has none.

    The model itself is also returned in training mode, and if it has components that cannot be prepacked.
    """
    inference_copy = _INFERENCE_COPIES.get(model)
    if inference_copy is None or not _can_be_prepacked(model):
        return model
    described = description_of(model)
    if described.is_training or described.refusal(PREPACKABLE) is not None:
        return cast(_Model, model)
    # An inference copy is of a subclass of the model's class.
    return cast(_Model, inference_copy.current(model, described.graph))
