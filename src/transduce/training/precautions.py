"""Safeguards of a training run; none of them changes what is learned."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from transduce.training.surroundings import Surroundings


class Precautions(msgspec.Struct, frozen=True, kw_only=True):
    """Safeguards from the caller of the training loop, who knows the corpus and the machine."""

    largest: Sequence[Any] = ()
    """Batches of the sizes that need most memory, tried before the first step."""
    describe: Callable[[Any], dict[str, Any]] | None = None
    """A function that describes a batch as readable JSON, for the record of a skipped step."""
    surroundings: Surroundings | None = None
    """The run's environment, which is stored and compared on resume."""
