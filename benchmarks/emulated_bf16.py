"""The command line of transduce, with products in bfloat16 as a processor with instructions for them computes them.

    python benchmarks/emulated_bf16.py train ... --set training.precision=bf16

Products of bfloat16 are summed in float32 and rounded once; PyTorch does them an element at a time where there are no
such instructions. This says what bfloat16 does to quality, and nothing about its speed.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.commands.main import main

_aten = torch.ops.aten
PRODUCTS = {
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default),
    *(_aten.mm.out, _aten.addmm.out, _aten.bmm.out, _aten.baddbmm.out, _aten.addmm_.default, _aten.baddbmm_.default),
}


class Emulation(TorchDispatchMode):
    """While it is entered, products in bfloat16 go by float32."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Every operation of PyTorch's comes here."""
        kwargs = kwargs or {}
        if func not in PRODUCTS or not any(_is_rounded(value) for value in args):
            return func(*args, **kwargs)
        target = kwargs.get("out", args[0] if func in (_aten.addmm_.default, _aten.baddbmm_.default) else None)
        plain = getattr(_aten, func._schema.name.removeprefix("aten::").rstrip("_")).default
        scalars = {name: value for name, value in kwargs.items() if name != "out"}
        found = plain(*(value.float() if _is_rounded(value) else value for value in args), **scalars)
        return found.bfloat16() if target is None else target.copy_(found)


def _is_rounded(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16


if __name__ == "__main__":
    with Emulation():  # type: ignore[no-untyped-call]
        sys.exit(main())
