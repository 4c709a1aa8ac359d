"""Register compiled kernels with the search package, which does not depend on how kernels are made."""

from functools import cache

from transduce.model.fast import has_kernels
from transduce.search.vocabulary import use_kernels


@cache
def install_kernels() -> None:
    """Make search use compiled vocabulary reductions if this processor has them; later calls do nothing."""
    if has_kernels():
        from transduce.model.native.reductions import NativeReductions

        use_kernels(NativeReductions())
