"""Description of a Hugging Face class: the settings under which it computes the same as this package's models."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from transduce.model.config import Kind, ModelConfig

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "silu": "silu"}
GATES = {"reglu": "relu", "geglu": "gelu", "geglu-tanh": "gelu_pytorch_tanh", "swiglu": "silu"}


class Family(NamedTuple):
    """A Hugging Face class and the settings that a model must have to be stored for it."""

    architecture: str
    model_type: str
    kind: Kind
    wanted: Mapping[str, object]
    """Settings that must have these values."""
    free: frozenset[str]
    """Settings that may have any value. All others must have their default value."""
    activations: Mapping[str, str]
    """Hugging Face's names of the activation functions that the class supports."""
    content: Callable[[ModelConfig], dict[str, Any]]
    """Returns the class-specific keys of config.json."""
    unless: Callable[[ModelConfig], list[str]] = lambda _: []
    """Returns the settings whose combination the class does not support."""
    automatic: str = "AutoModelForSeq2SeqLM"
    """The automatic class that opens the model."""
    stores_sinusoids: bool = False
    stores_output_bias: bool = True
    """The class always stores a bias on the logits, even if it is zero."""


def meant_settings(config: ModelConfig) -> dict[str, object]:
    """Return the settings by name, with unset ones replaced by their effective values."""
    return msgspec.structs.asdict(config) | {
        "num_key_value_heads": config.num_key_value_heads or config.num_heads,
        "d_k": config.key_width,
        "d_v": config.value_width,
        "final_norm": config.has_final_norm,
        "projection_bias": config.bias if config.projection_bias is None else config.projection_bias,
        "attention_output_bias": config.bias if config.attention_output_bias is None else config.attention_output_bias,
        "feed_forward_bias": config.bias if config.feed_forward_bias is None else config.feed_forward_bias,
    }
