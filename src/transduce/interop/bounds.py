"""Upper bounds on the sizes in an imported configuration, checked before a model is built from it."""

from pathlib import Path

import msgspec

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig

# Larger than in any real model, yet small enough to build on the meta device in a moment.
_MAX_SIZE = 1 << 24
_MAX_LAYERS = 1_000
_MAX_POSITION_OFFSET = 1 << 16  # limits the size of the table of sinusoids


def check_sizes(place: str | Path, config: ModelConfig) -> None:
    """Reject a configuration with sizes that no model could have, before memory or time is spent on building it.

    Args:
        place: the file that the configuration comes from, for the message.
        config: the configuration; all of its integer settings are checked.

    Raises:
        TransduceError: a setting is negative or exceeds its limit.
    """
    for name, value in msgspec.to_builtins(config).items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        limit = _MAX_LAYERS if name.endswith("_layers") else _MAX_SIZE
        if name == "position_offset":
            limit = _MAX_POSITION_OFFSET
        if not 0 <= value <= limit:
            raise TransduceError(f"{place}: `{name}` must be from 0 to {limit:,}, but is {value:,}.")
