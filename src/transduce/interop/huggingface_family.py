"""What a class of Hugging Face is to us: the settings under which it computes what our models compute."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from transduce.model.config import Kind, ModelConfig

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "silu": "silu"}
GATES = {"reglu": "relu", "geglu": "gelu", "geglu-tanh": "gelu_pytorch_tanh", "swiglu": "silu"}


class Family(NamedTuple):
    """A class, and the settings without which it is another one's."""

    architecture: str
    model_type: str
    kind: Kind
    wanted: Mapping[str, object]
    """Settings that must have these values."""
    free: frozenset[str]
    """Settings that may have any value. All others must have the default one."""
    activations: Mapping[str, str]
    """Their names of the functions that the class has."""
    content: Callable[[ModelConfig], dict[str, Any]]
    """The class's own keys of config.json."""
    unless: Callable[[ModelConfig], list[str]] = lambda _: []
    """Settings that do not go together there."""
    automatic: str = "AutoModelForSeq2SeqLM"
    """What opens it."""
    stores_sinusoids: bool = False
    stores_output_bias: bool = True
    """A bias on the logits is stored, zero or not."""


def meant_settings(config: ModelConfig) -> dict[str, object]:
    """The settings by name; where nothing was said, what that means."""
    return msgspec.structs.asdict(config) | {
        "num_key_value_heads": config.num_key_value_heads or config.num_heads,
        "d_k": config.key_width,
        "d_v": config.value_width,
        "final_norm": config.has_final_norm,
        "projection_bias": config.bias if config.projection_bias is None else config.projection_bias,
        "attention_output_bias": config.bias if config.attention_output_bias is None else config.attention_output_bias,
        "feed_forward_bias": config.bias if config.feed_forward_bias is None else config.feed_forward_bias,
    }
