"""Build the model that a configuration describes."""

from collections.abc import Callable
from typing import TypeVar

import torch

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder
from transduce.model.encoder import Encoder
from transduce.model.recurrent import Recurrent
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Transformer

Model = Transformer | Encoder | Decoder | Recurrent
"""A model of tokens."""
AnyModel = Model | SeriesTransformer
"""A model of tokens or numbers."""
EncoderDecoder = Transformer | Recurrent
"""A model that reads one text and writes another."""
Built = TypeVar("Built", bound=AnyModel)
_KINDS: dict[str, type[Transformer] | type[Encoder] | type[Decoder] | type[Recurrent]] = {
    "transformer": Transformer,
    "encoder": Encoder,
    "decoder": Decoder,
    "recurrent": Recurrent,
}


def build_any_model(config: ModelConfig) -> AnyModel:
    """Build a model of any kind with initial weights, or without data under `torch.device("meta")`."""
    return SeriesTransformer(config) if config.kind == "series" else _KINDS[config.kind](config)


def build_model(config: ModelConfig) -> Model:
    """Build the model of a task on tokens, not on numbers (time series).

    Raises:
        TransduceError: the configuration describes a model of numbers.
    """
    model = build_any_model(config)
    if isinstance(model, SeriesTransformer):
        raise TransduceError(f"A model of text is needed, but `model.kind` is {config.kind}: use another model.")
    return model


def build_encoder_decoder(config: ModelConfig) -> EncoderDecoder:
    """Build a model for a task that needs an encoder and a decoder.

    Raises:
        TransduceError: the configuration describes another kind of model.
    """
    model = build_model(config)
    if isinstance(model, Transformer | Recurrent):
        return model
    raise TransduceError(f"An encoder and a decoder are needed, but `model.kind` is {config.kind}: use another model.")


def build_decoder(config: ModelConfig) -> Decoder:
    """Build the model of a task that needs a decoder-only model.

    Raises:
        TransduceError: the configuration describes another kind of model.
    """
    model = build_model(config)
    if isinstance(model, Decoder):
        return model
    raise TransduceError(f"A decoder alone is needed, but `model.kind` is {config.kind}: use another model.")


def compute_unstored_buffers(model: Built, build: Callable[[ModelConfig], Built]) -> None:
    """Compute the buffers of a loaded model that are in no weights file (`persistent=False`), as its constructor does.

    A model folder is read into a model that was built on the meta device, where such a buffer has no values. They come
    from a second model, built on the CPU; a model without such buffers costs nothing. PyTorch's random numbers stay
    as they are.
    """
    missing = [name for name, buffer in model.named_buffers(remove_duplicate=False) if buffer.is_meta]
    if not missing:
        return
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        computed = dict(build(model.config).named_buffers(remove_duplicate=False))
    for name in missing:
        holder, _, last = name.rpartition(".")
        setattr(model.get_submodule(holder), last, computed[name])
