"""Import the optional package `transduce.kernels`; without it, everything runs as plain PyTorch.

This is the only module that imports `transduce.kernels`. If that folder is missing, each function here has a
replacement that takes the reference path: the model's own `forward`, `start` and `project`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.kernel_interfaces import BatchSearch, BatchSearchOptions, DecoderChoice, TrainingKernels
from transduce.model.build import EncoderDecoder
from transduce.model.config import ModelConfig
from transduce.model.embedding import VocabularyModel
from transduce.model.transformer import Decoder, DecodingState, Encoder, Transformer

if TYPE_CHECKING:
    from transduce.kernels.cpu.decoding.state import CompiledState
    from transduce.kernels.cpu.selection import CompiledReductions

__all__ = [
    "PackedLayers",
    "PrepackedModel",
    "compiled_state",
    "decoding_model",
    "encode_fast",
    "exact_projection",
    "expected_decoder",
    "find_batch_search",
    "has_kernels",
    "kernels_for_training",
    "make_inference_copy",
    "packed_layers",
    "quantize",
    "quantize_without_data",
    "search_reductions",
    "select_decoder",
    "start_fast",
    "start_prompts",
    "temporary_inference_copy",
    "why_no_kernels",
    "why_no_triton",
    "why_no_whole_layers",
]

NO_KERNELS = "this installation has no kernels of our own (the folder `transduce/kernels` is missing)"

try:
    from transduce.kernels.prepacked import PackedLayers, PrepackedModel, packed_layers
    from transduce.kernels.select import (
        compiled_state,
        decoding_model,
        encode_fast,
        exact_projection,
        expected_decoder,
        find_batch_search,
        has_kernels,
        kernels_for_training,
        make_inference_copy,
        quantize,
        quantize_without_data,
        select_decoder,
        start_fast,
        start_prompts,
        temporary_inference_copy,
        why_no_kernels,
        why_no_triton,
        why_no_whole_layers,
    )
except ModuleNotFoundError as missing:
    if missing.name != "transduce.kernels":
        raise

    _Model = TypeVar("_Model", bound=nn.Module)
    _Quantizable = TypeVar("_Quantizable", bound=Transformer | Decoder | Encoder)

    class PrepackedModel:  # type: ignore[no-redef]
        """A placeholder for the type of models with prepacked weights, which only the kernels package makes."""

    class PackedLayers:  # type: ignore[no-redef]
        """A placeholder for the type of a model's prepacked layers, which only the kernels package makes."""

        layout: str
        needed: tuple[str, ...]

        def tensors(self) -> dict[str, Tensor]:
            """Raise an error, since no model has prepacked layers without the kernels package."""
            raise AssertionError

        def fill(self, packed: Mapping[str, Tensor], originals: Mapping[str, Tensor]) -> nn.Module:  # noqa: ARG002
            """Raise an error, since no model has prepacked layers without the kernels package."""
            raise AssertionError

    def packed_layers(model: nn.Module) -> PackedLayers | None:  # noqa: ARG001
        """Return None, since no model has prepacked layers without the kernels package."""
        return None

    def quantize_without_data(model: nn.Module) -> PackedLayers | None:  # noqa: ARG001
        """Return None, since no model has prepacked layers without the kernels package."""
        return None

    def has_kernels() -> bool:
        """Return False, as the optional kernels package is missing."""
        return False

    def why_no_kernels(threads: int) -> str | None:  # type: ignore[misc]  # noqa: ARG001
        """Return why no compiled kernels compute on this CPU: the kernels package is missing."""
        return NO_KERNELS

    def why_no_triton(device: str) -> str | None:  # type: ignore[misc]  # noqa: ARG001
        """Return why no Triton kernels compute on this GPU: the kernels package is missing."""
        return NO_KERNELS

    def why_no_whole_layers(model: nn.Module, config: ModelConfig, dtype: torch.dtype, device: str) -> str | None:  # noqa: ARG001
        """Return that this installation has no kernels."""
        return NO_KERNELS

    def kernels_for_training(name: Literal["native", "torch"], device: str) -> TrainingKernels | None:  # noqa: ARG001
        """Return None, since there are no training kernels; refuse a setting that requires them.

        Raises:
            TransduceError: the setting asks for kernels.
        """
        if name == "torch":
            return None
        raise TransduceError(f"`training.kernels` is native, but {NO_KERNELS}: set it to torch.")

    def quantize(model: _Quantizable, *, after_each_layer: Callable[[], None] = lambda: None) -> _Quantizable:  # noqa: ARG001
        """Refuse to make 8-bit weights, which need the kernels package.

        Raises:
            TransduceError: always.
        """
        raise TransduceError(f"Precision `int8` needs compiled kernels, but {NO_KERNELS}: use `fp32` or `bf16`.")

    def make_inference_copy(model: nn.Module, dtype: torch.dtype) -> None:
        """Convert a model to a dtype in place; nothing is prepacked, since that needs the kernels package."""
        model.to(dtype)

    @contextmanager
    def temporary_inference_copy(model: nn.Module) -> Iterator[None]:  # noqa: ARG001
        """Run the body of the `with` statement without prepacked weights."""
        yield

    def decoding_model(model: _Model) -> _Model:
        """Return the model itself, since there is no inference copy without the kernels package."""
        return model

    def expected_decoder(model: Transformer | Decoder, device: str) -> DecoderChoice:  # noqa: ARG001
        """Return the choice of the reference backend (PyTorch's modules) for decoding, since there are no kernels."""
        return DecoderChoice.of("compiled" if device == "cpu" else "triton", NO_KERNELS)

    def select_decoder(model: nn.Module) -> DecoderChoice:
        """Return the choice of the reference backend (the model's own modules), since there are no kernels."""
        on_cpu = next(model.parameters()).device.type == "cpu"
        return DecoderChoice.of("compiled" if on_cpu else "triton", NO_KERNELS)

    def start_fast(model: EncoderDecoder, source_ids: Tensor) -> DecodingState:
        """Encode source ids (B, S) by the model's PyTorch modules, and return the decoding state.

        The search for a translation continues from this state.
        """
        return model.start(source_ids)

    def start_prompts(model: Decoder, prompt_ids: Tensor, lengths: Tensor) -> DecodingState:
        """Process prompts (B, P) of lengths (B,) by the model's PyTorch modules, and return the decoding state.

        The search for a continuation starts from this state.
        """
        return model.start(prompt_ids, lengths)

    def encode_fast(model: Encoder, ids: Tensor) -> Tensor:
        """Return the state of each token, (B, S) to (B, S, D), by the model's PyTorch modules."""
        return model.encode(ids)[0]

    def compiled_state(state: DecodingState) -> "CompiledState | None":  # noqa: ARG001
        """Return None in place of the compiled kernels' decoding state, which only the kernels package makes."""
        return None

    def find_batch_search(state: DecodingState, options: BatchSearchOptions) -> BatchSearch | None:  # noqa: ARG001
        """Return None: no kernel can run the whole search of a batch, since the kernels package is missing."""
        return None

    def exact_projection(model: VocabularyModel) -> Callable[[Tensor], Tensor]:
        """Return the model's own projection of hidden states (…, D) to logits (…, V)."""
        return model.project


def search_reductions() -> "CompiledReductions | None":
    """Return the compiled top-k and log-sum-exp over logits that search uses; None if kernels are not available."""
    if not has_kernels():
        return None
    from transduce.kernels.cpu.selection import CompiledReductions

    return CompiledReductions()
