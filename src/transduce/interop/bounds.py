"""Numbers that no model has: refused before anything is built by them."""

from pathlib import Path

import msgspec

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig

# Far beyond any model, and still built in a moment on the meta device.
_LARGEST_SIZE = 1 << 24
_MOST_LAYERS = 1_000
_FURTHEST_OFFSET = 1 << 16  # sinusoids are computed up to there


def check_sizes(place: str | Path, config: ModelConfig) -> None:
    """Refuses a configuration that would take all memory, or all time, to build.

    Args:
        place: the file that it comes from, for the message.
        config: its whole numbers are looked at.

    Raises:
        TransduceError: one of them is out of all proportion.
    """
    for name, value in msgspec.to_builtins(config).items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        allowed = _MOST_LAYERS if name.endswith("_layers") else _LARGEST_SIZE
        if name == "position_offset":
            allowed = _FURTHEST_OFFSET
        if not 0 <= value <= allowed:
            raise TransduceError(f"{place}: `{name}` must be from 0 to {allowed:,}, but is {value:,}.")
