"""Decode several batches in parallel, each on one thread.

Threads that share a batch synchronize several times in each layer; threads with their own batches do not
(docs/benchmarks.md). The translations are the same either way.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from transduce.model.build import EncoderDecoder
from transduce.model.fast import has_programs
from transduce.search.settings import SearchSettings

_Batch = TypeVar("_Batch")
_Result = TypeVar("_Result")


def threads_apart(models: Sequence[EncoderDecoder], search: SearchSettings) -> int:
    """Return how many batches to decode in parallel: several only for compiled steps, which release Python's GIL."""
    return 1 if search.strict or not all(map(has_programs, models)) else torch.get_num_threads()


def side_by_side(decode: Callable[[_Batch], _Result], batches: Sequence[_Batch], threads: int) -> Iterator[_Result]:
    """Yield the result of each batch, in order.

    Args:
        decode: decodes one batch.
        batches: batches of similar cost. The last ones, which would leave threads idle, are decoded one at a time, each
            with all threads.
        threads: number of batches to decode in parallel.
    """
    apart = len(batches) - len(batches) % threads if threads > 1 else 0
    if apart:
        num_threads = torch.get_num_threads()
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        try:
            yield from pool.map(decode, batches[:apart])
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(num_threads)  # other new threads start with the last number set
    yield from map(decode, batches[apart:])
