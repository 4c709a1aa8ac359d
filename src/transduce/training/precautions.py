"""What a run can use against trouble. None of it changes a bit of what is learnt."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from transduce.training.surroundings import Surroundings


class Precautions(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever starts a run knows its corpus and its machine; the loop does not."""

    largest: Sequence[Any] = ()
    """Batches of the sizes that need most memory, tried before the first step."""
    describe: Callable[[Any], dict[str, Any]] | None = None
    """A batch as JSON that a person can read, for the file of a fault."""
    surroundings: Surroundings | None = None
    """What the run is computed with; stored, and compared on resume."""
