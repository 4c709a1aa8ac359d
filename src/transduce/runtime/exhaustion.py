"""Memory runs out while a model is searched."""

from collections.abc import Iterator
from contextlib import contextmanager

from transduce.errors import TransduceError
from transduce.search.settings import SearchSettings
from transduce.training.exhaustion import is_exhaustion


@contextmanager
def explaining_exhaustion(search: SearchSettings) -> Iterator[None]:
    """Turns running out of memory into a sentence that names the settings.

    Raises:
        TransduceError: memory ran out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_exhaustion(error):
            raise
        raise TransduceError(
            f"Memory ran out with `beam_size` {search.beam_size:,} and `n_best` {search.n_best:,}: lower them, or the "
            "length."
        ) from error
