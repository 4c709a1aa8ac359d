"""Run the command line with emulated bfloat16 matrix multiplications, to measure their quality without such a
processor.

    python benchmarks/emulated_bf16.py demo

Processors with bfloat16 instructions accumulate in float32 and round once; without them, PyTorch is very slow. The
emulation pretends that they exist, so that bfloat16 is chosen by default. It shows the effect on quality, not on speed.
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
# Each variant of matrix multiplication, and the variant that returns a new tensor.
_NEW = _IN_PLACE | {
    form: product.default
    for product in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm)
    for form in (product.default, product.out)
}


class Emulation(TorchDispatchMode):
    """A context in which bfloat16 matrix multiplications are computed in float32."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute bfloat16 matrix multiplications in float32, and run all other operations unchanged."""
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
