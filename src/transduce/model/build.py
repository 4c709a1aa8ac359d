"""Build the model that a configuration describes, also with components that users register."""

import difflib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from transduce.errors import TransduceError
from transduce.model.attention import ATTENTIONS, SCORES, MultiHeadAttention, ScoredAttention
from transduce.model.config import OWN_NAMES, ModelConfig
from transduce.model.feed_forward import ACTIVATIONS
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.norms import NORMS
from transduce.model.positions import BIASES
from transduce.model.recurrent import Recurrent
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Decoder, Encoder, Transformer

Model = Transformer | Encoder | Decoder | Recurrent
"""A model that reads tokens: an encoder, a decoder, both, or a recurrent model."""
AnyModel = Model | SeriesTransformer
"""A model that reads tokens or numbers (time series)."""
EncoderDecoder = Transformer | Recurrent
"""A model that reads one text and writes another, a Transformer or a recurrent one."""
Built = TypeVar("Built", bound=AnyModel)
_KINDS: dict[str, type[Transformer] | type[Encoder] | type[Decoder] | type[Recurrent]] = {
    "transformer": Transformer,
    "encoder": Encoder,
    "decoder": Decoder,
    "recurrent": Recurrent,
}


def build_any_model(config: ModelConfig) -> AnyModel:
    """Build a model of any kind, of tokens or numbers, with initial weights.

    Under `torch.device("meta")` the weights have no data.
    """
    return SeriesTransformer(config) if config.kind == "series" else _KINDS[config.kind](config)


def build_model(config: ModelConfig) -> Model:
    """Build the model of a configuration for a task that reads tokens, not numbers (time series).

    Raises:
        TransduceError: the configuration describes a model of numbers.
    """
    model = build_any_model(config)
    if isinstance(model, SeriesTransformer):
        raise TransduceError(f"A model of text is needed, but `model.kind` is {config.kind}: use another model.")
    return model


def build_encoder_decoder(config: ModelConfig) -> EncoderDecoder:
    """Build the model of a configuration for a task that needs an encoder and a decoder.

    Raises:
        TransduceError: the configuration describes another kind of model.
    """
    model = build_model(config)
    if isinstance(model, Transformer | Recurrent):
        return model
    raise TransduceError(f"An encoder and a decoder are needed, but `model.kind` is {config.kind}: use another model.")


def build_decoder(config: ModelConfig) -> Decoder:
    """Build the model of a configuration for a task that needs a decoder-only model.

    Raises:
        TransduceError: the configuration describes another kind of model.
    """
    model = build_model(config)
    if isinstance(model, Decoder):
        return model
    raise TransduceError(f"A decoder alone is needed, but `model.kind` is {config.kind}: use another model.")


def compute_unstored_buffers(model: Built, build: Callable[[ModelConfig], Built]) -> None:
    """Compute a loaded model's buffers that weights files do not store (`persistent=False`), as `build` computes them.

    A model folder is read into a model that was built on the meta device, where such a buffer has no values. They come
    from a second model, built on the CPU; a model without such buffers costs nothing. PyTorch's random numbers stay as
    they are.
    """
    missing = [name for name, buffer in model.named_buffers(remove_duplicate=False) if buffer.is_meta]
    if not missing:
        return
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        computed = dict(build(model.config).named_buffers(remove_duplicate=False))
    for name in missing:
        holder, _, last = name.rpartition(".")
        setattr(model.get_submodule(holder), last, computed[name])


# --- registered components ---


_REGISTRIES: dict[str, tuple[dict[str, Any], type | None]] = {
    "activation": (ACTIVATIONS, None),
    "norm": (NORMS, None),
    "attention": (ATTENTIONS, MultiHeadAttention),
    "attention_score": (SCORES, ScoredAttention),
    "positions": (BIASES, None),
}
C = TypeVar("C", bound=Callable[..., Any])


def register(setting: str, name: str) -> Callable[[C], C]:
    """Return a decorator that registers a component of your own, so that a setting of the model can name it.

    A model with such a component trains, translates and is stored like others, computed by PyTorch. Programs that open
    its folder must register the component before (`--plugin FILE.py`, or an import). PyTorch's layers in it keep the
    weights that its constructor gave them; a method `reset_parameters` is called last, after all weights are drawn.

    Args:
        setting: "activation" (a function of a tensor), "norm" (called with width and ε), "attention" (a subclass of
            `MultiHeadAttention`), "attention_score" (of `ScoredAttention`) or "positions" (called with the model's
            configuration and whether the stack is causal; a bias on the scores, not positions added to embeddings).
        name: the value of `model.SETTING` that chooses the component.

    Raises:
        TransduceError: there is no such setting, the name is taken, or the component is of another kind.
    """
    if setting not in _REGISTRIES:
        raise TransduceError(f"Components can be registered for {', '.join(_REGISTRIES)}, but not for `{setting}`.")
    registry, base = _REGISTRIES[setting]
    if not isinstance(name, str) or not name or (name in registry and name not in OWN_NAMES[setting]):
        raise TransduceError(f"`model.{setting}` = {name!r} is no new name: choose another for your component.")

    def add(component: C) -> C:
        if not callable(component) or (
            base is not None and not (isinstance(component, type) and issubclass(component, base))
        ):
            expected = f"a subclass of {base.__name__}" if base is not None else "callable"
            raise TransduceError(f"A component for `model.{setting}` must be {expected}, but is {component!r}.")
        registry[name] = component
        OWN_NAMES[setting].add(name)
        return component

    return add


def load_plugin(path: str | Path) -> None:
    """Run a Python file that registers components; only a file that the user names is ever run.

    Raises:
        TransduceError: the file is missing or no Python file, or running it fails.
    """
    path = Path(path)
    name = f"transduce_plugin_{path.stem}"
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [each.name for each in path.absolute().parent.glob("*.py")], 1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "name the Python file that registers components."
        raise TransduceError(f"The plugin {path} is no file: {hint}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TransduceError(f"A plugin is a Python file that registers components, but {path} is none: name another.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except TransduceError:
        raise
    except Exception as error:
        del sys.modules[name]
        raise TransduceError(f"The plugin {path} fails: {type(error).__name__}: {error}.") from error


# --- compilation by torch.compile ---
# Compilation takes about a minute at the start. It pays off on a GPU, where a step otherwise waits for the many small
# operations between matrix multiplications.


_MAX_RECOMPILATIONS = 64


def compile_layers(model: nn.Module, device: str, *, backend: str = "inductor") -> int:
    """Compile each encoder and decoder layer in place, for batches of any shape; parameters and their names stay.

    Layers share compiled code, so six layers take as long as one.

    Returns:
        The number of compiled layers; 0 for a model without such layers, such as a recurrent one.

    Raises:
        TransduceError: the device is a CPU, which would need a C++ compiler and gain nothing.
    """
    if backend == "inductor" and not device.startswith("cuda"):
        raise TransduceError(
            f"`training.compile` is true, but the device is {device}: it is for GPUs only. Leave it out."
        )
    # Inputs of one row, inputs of equal lengths and disabled dropout are compiled separately. PyTorch's default limit
    # of 8 would end the run.
    from torch._dynamo import config  # takes seconds to import

    config.recompile_limit = max(config.recompile_limit, _MAX_RECOMPILATIONS)
    layers = [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    for layer in layers:
        layer.compile(dynamic=True, fullgraph=True, backend=backend)
    return len(layers)
