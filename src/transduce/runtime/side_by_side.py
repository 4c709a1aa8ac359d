"""Batches that are decoded side by side, each on a thread of its own.

Threads that share a batch wait for one another several times a layer; threads with a batch each do not
(docs/benchmarks.md). No translation depends on it.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from transduce.model.build import EncoderDecoder
from transduce.model.fast import has_programs
from transduce.search.settings import SearchSettings

_Batch = TypeVar("_Batch")
_Found = TypeVar("_Found")


def threads_apart(models: Sequence[EncoderDecoder], search: SearchSettings) -> int:
    """How many batches to decode at once: more than one where machine code does it, outside of Python's lock."""
    return 1 if search.strict or not all(map(has_programs, models)) else torch.get_num_threads()


def side_by_side(decode: Callable[[_Batch], _Found], batches: Sequence[_Batch], threads: int) -> Iterator[_Found]:
    """What is found for each batch, in order.

    Args:
        decode: finds it.
        batches: of much the same work. Those at the end that would leave threads idle are decoded one by one, by all.
        threads: so many batches at once.
    """
    apart = len(batches) - len(batches) % threads if threads > 1 else 0
    if apart:
        before = torch.get_num_threads()
        pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        try:
            yield from pool.map(decode, batches[:apart])
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(before)  # other new threads begin with what was said last
    yield from map(decode, batches[apart:])
