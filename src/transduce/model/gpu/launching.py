"""Launches Triton's programs without looking for them each time.

Triton finds the machine code for a launch by all arguments, which takes longer than many of our programs run. What it
finds depends on little of them: their kinds, which pointers and numbers are multiples of 16, which numbers are 1, and
the constants. By these it is kept here, and launched as Triton's own tutorials do.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 16
_LEAST_WIDE = 2**31


class Program:
    """A program of Triton's, which is launched as Triton's is: `program[grid](*arguments, num_warps=…)`."""

    def __init__(self, function: Any) -> None:
        """Of what `triton.jit` made; where it is interpreted, nothing is kept."""
        self.function = function
        self._constant = [parameter.is_constexpr for parameter in getattr(function, "params", ())]
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """What launches so many programs."""

        def launch(*arguments: Any, num_warps: int = 4) -> None:
            kind = _kind(arguments, self._constant, num_warps)
            compiled = self._compiled.get(kind)
            if compiled is not None:
                compiled[(*grid, 1, 1)[:3]](*arguments)
                return
            made = self.function[grid](*arguments, num_warps=num_warps)
            if made is not None and self._constant:
                self._compiled[kind] = made

        return launch


def _kind(arguments: tuple[Any, ...], constant: list[bool], num_warps: int) -> tuple[Any, ...]:
    """What the machine code depends on."""
    kind: list[Any] = [num_warps]
    for argument, is_constant in zip(arguments, constant, strict=False):
        if is_constant or argument is None or isinstance(argument, bool):
            kind.append(argument)
        elif isinstance(argument, Tensor):
            kind += (argument.dtype, argument.data_ptr() % _ALIGNMENT == 0)
        elif isinstance(argument, int):
            kind.append((argument % _ALIGNMENT == 0) + 2 * (argument == 1) + 4 * (abs(argument) >= _LEAST_WIDE))
    if isinstance(arguments[0], Tensor) and arguments[0].is_cuda:
        kind.append(torch.cuda.current_device())  # each has a copy of its own
    return tuple(kind)
