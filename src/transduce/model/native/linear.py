"""8-bit products by the kernels, as a module and as what a program is written from.

Legend: N rows, D inputs, O outputs, P outputs in whole blocks of weights, C outputs of a block.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.native.emit import Value
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, program
from transduce.model.native.products import Tile, write_products, write_rounding

_LEAST = 1e-30  # a row of zeros is divided by this
_LEVELS = 127  # of a weight, on either side of 0
_MULTIPLE = 16  # of D: the widest vectors' elements


class NativeLinear(nn.Module):
    """x Wᵀ + b: (…, D) to (…, O), float32 outside and integers inside. Weights cannot be trained or read back."""

    def __init__(self, weight: Tensor, bias: Tensor | None, tile: Tile) -> None:
        """Of a float32 matrix (O, D), D a multiple of 16."""
        super().__init__()
        outputs, width = weight.shape
        missing = -outputs % tile.columns
        steps = weight.abs().amax(dim=1).clamp_min(_LEAST).div(_LEVELS)  # (O,)
        rounded = F.pad((weight / steps[:, None]).round().to(torch.int8), (0, 0, 0, missing))  # (P, D)
        blocks = rounded.view(-1, tile.columns, width // 4, 4).permute(0, 2, 1, 3)  # (P / C, D / 4, C, 4)
        start = rounded.sum(dim=1, dtype=torch.int32) * -tile.zero
        self.tile = tile
        self.outputs, self.width = outputs, width
        self.padded_outputs = outputs + missing
        whole = torch.zeros(outputs) if bias is None else bias.detach().float()
        self.weights = nn.Parameter(blocks.contiguous(), requires_grad=False)
        self.start = nn.Parameter(start, requires_grad=False)  # (P,), what each sum begins with
        self.steps = nn.Parameter(F.pad(steps, (0, missing)), requires_grad=False)  # (P,)
        self.bias = nn.Parameter(F.pad(whole, (0, missing)), requires_grad=False)  # (P,)

    def forward(self, x: Tensor) -> Tensor:
        """Each row by itself: what stands beside it makes no difference to its result."""
        rows = x.reshape(-1, self.width).contiguous()
        out = rows.new_empty(len(rows), self.padded_outputs)
        rounded, scales = rows.new_empty(len(rows), self.width, dtype=torch.uint8), rows.new_empty(len(rows))
        _linear_program(self.tile).run(
            rows.data_ptr(),
            len(rows),
            self.width,
            rounded.data_ptr(),
            scales.data_ptr(),
            *self.addresses(),
            self.padded_outputs,
            out.data_ptr(),
        )
        found: Tensor = out[:, : self.outputs].unflatten(0, x.shape[:-1])
        return found

    def addresses(self) -> tuple[int, int, int, int]:
        """Of the weights, the starts, the steps and the bias."""
        return self.weights.data_ptr(), self.start.data_ptr(), self.steps.data_ptr(), self.bias.data_ptr()


def find_fitting_tile(weight: Tensor) -> Tile | None:
    """For products with this matrix (O, D) on this processor; None where there are no kernels for it."""
    return find_tile() if weight.shape[1] % _MULTIPLE == 0 else None


@cache
def _linear_program(tile: Tile) -> Program:
    """`linear(x, N, D, rounded, scales, weights, start, steps, bias, P, out)`."""
    k = new_emitter("linear", tile)
    write_rounding(k, tile)
    write_products(k, tile, ("store",))
    with program(k, "linear", 11) as (numbers, thread, threads):
        x, rows, width, rounded, scales, weights, start, steps, bias, outputs, out = numbers
        places: list[Value] = [k.place(each) for each in (rounded, scales)]
        k.call("round", k.place(x), rows, width, *places, thread, threads)
        k.barrier(threads)
        own = [k.place(each) for each in (weights, start, steps, bias)]
        k.call("product_store", *places, rows, width, *own, outputs, k.place(out), thread, threads)
    return compile_programs(k, ("linear",))["linear"]
