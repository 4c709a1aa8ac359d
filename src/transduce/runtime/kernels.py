"""Handing kernels in machine code to search, which does not know how they are made."""

from functools import cache

from transduce.model.fast import has_kernels
from transduce.search.vocabulary import use_kernels


@cache
def install_kernels() -> None:
    """Once a process: where there are kernels for this processor, reductions over the vocabulary use them."""
    if has_kernels():
        from transduce.model.native.reductions import NativeReductions

        use_kernels(NativeReductions())
