"""Memory runs out while a model is searched."""

from contextlib import AbstractContextManager

from transduce.search.settings import SearchSettings
from transduce.training.exhaustion import telling_exhaustion


def explaining_exhaustion(search: SearchSettings) -> AbstractContextManager[None]:
    """Turns running out of memory into a sentence that names the settings."""
    return telling_exhaustion(
        f"Memory ran out with `beam_size` {search.beam_size:,} and `n_best` {search.n_best:,}: lower them, or the "
        "length."
    )
