"""The command line of transduce, with products in bfloat16 as a processor with instructions for them computes them.

    python benchmarks/emulated_bf16.py demo

Products of bfloat16 are summed in float32 and rounded once; PyTorch does them an element at a time where there are no
such instructions. They are taken to be there, so bfloat16 is what is chosen. This says what it does to quality, and
nothing about its speed.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.commands.main import main

_aten = torch.ops.aten
_IN_PLACE = {_aten.addmm_.default: _aten.addmm.default, _aten.baddbmm_.default: _aten.baddbmm.default}
# Each form of a product, and the one that makes a new tensor.
_NEW = _IN_PLACE | {
    form: product.default
    for product in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm)
    for form in (product.default, product.out)
}


class Emulation(TorchDispatchMode):
    """While it is entered, products in bfloat16 go by float32."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Every operation of PyTorch's comes here."""
        kwargs = kwargs or {}
        if func not in _NEW or not any(_is_rounded(value) for value in args):
            return func(*args, **kwargs)
        target = args[0] if func in _IN_PLACE else kwargs.pop("out", None)
        found = _NEW[func](*(value.float() if _is_rounded(value) else value for value in args), **kwargs)
        return found.bfloat16() if target is None else target.copy_(found)


def _is_rounded(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16


if __name__ == "__main__":
    torch.cpu._is_amx_tile_supported = lambda: True
    with Emulation():  # type: ignore[no-untyped-call]
        sys.exit(main())
