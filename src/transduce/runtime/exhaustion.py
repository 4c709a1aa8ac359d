"""Explain out-of-memory errors during search."""

from contextlib import AbstractContextManager

from transduce.search.settings import SearchSettings
from transduce.training.exhaustion import telling_exhaustion


def explaining_exhaustion(search: SearchSettings) -> AbstractContextManager[None]:
    """Turn an out-of-memory error into an error message that names the search settings to lower."""
    return telling_exhaustion(
        f"Memory ran out with `beam_size` {search.beam_size:,} and `n_best` {search.n_best:,}: lower them, or the "
        "length."
    )
