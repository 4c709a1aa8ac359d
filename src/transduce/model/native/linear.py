"""Provide linear layers on the compiled GEMM kernels, and a vocabulary projection for models in PyTorch's bfloat16.

Legend: N rows, D inputs, O outputs, P outputs padded to whole blocks of weights, C outputs per block, V vocabulary
size.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.known_classes import register_class
from transduce.model.linear import Linear
from transduce.model.native.amx import MORE_ROWS
from transduce.model.native.crew import useful_threads
from transduce.model.native.emit import Value
from transduce.model.native.engine import Program, compile_programs, find_tile, new_emitter, own_tile, program
from transduce.model.native.lines import write_refining, write_widening
from transduce.model.native.products import write_products, write_rounding
from transduce.model.native.tile import Tile
from transduce.model.packed import MakeProduct, Use
from transduce.model.quantized import Int8Linear

_LEAST = 1e-30  # lower bound on an output's greatest weight, against division by zero
_SLIGHT = 1e-4  # tolerance for float sums in another order, relative to the greatest one
_LEVELS = 127  # the greatest quantized magnitude of a weight
MULTIPLE = 16
"""The number of inputs D must be a multiple of this."""
MANY_INPUTS = 512
"""Layers with at least so many inputs D use 8-bit activations: rounding errors of longer sums cancel out."""


class NativeLinear(nn.Module):
    """A linear layer x Wᵀ + b, (…, D) to (…, O), with prepacked weights; inference only.

    Inputs and outputs are float32; the tile determines the format that is multiplied.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tile: Tile) -> None:
        """Quantize and pack a float32 matrix (O, D), D a multiple of `MULTIPLE`."""
        super().__init__()
        outputs, width = weight.shape
        padding = -outputs % tile.columns
        rounded, start, steps = _round(weight.detach(), tile)
        grouped = F.pad(rounded, (0, 0, 0, padding)).view(-1, tile.columns, width // tile.group, tile.group)
        blocks = grouped.permute(0, 2, 1, 3)  # (P / C, D / group, C, group)
        self.tile = tile
        self.rounds = tile.kind != "floats"
        """True if inputs and weights are rounded before the multiplication, so that results differ from float32's."""
        self.outputs, self.width = outputs, width
        self.padded_outputs = outputs + padding
        full_bias = torch.zeros(outputs) if bias is None else bias.detach().float()
        self.weights = nn.Parameter(blocks.contiguous(), requires_grad=False)
        self.start = nn.Parameter(F.pad(start, (0, padding)), requires_grad=False)  # (P,), initial sums
        self.steps = nn.Parameter(F.pad(steps, (0, padding)), requires_grad=False)  # (P,), scales of the weights
        self.bias = nn.Parameter(F.pad(full_bias, (0, padding)), requires_grad=False)  # (P,)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer; each row's result is independent of the other rows of the batch."""
        rows = x.reshape(-1, self.width).contiguous()
        out = rows.new_empty(len(rows), self.padded_outputs)
        rounded = rows.new_empty(len(rows) + MORE_ROWS, self.width, dtype=torch.int16)
        scales = rows.new_empty(len(rows))
        _linear_kernel(self.tile).run(
            rows.data_ptr(),
            len(rows),
            self.width,
            rounded.data_ptr(),
            scales.data_ptr(),
            *self.addresses(),
            self.padded_outputs,
            out.data_ptr(),
            threads=useful_threads(self._work(rows)),
        )
        result: Tensor = out[:, : self.outputs].unflatten(0, x.shape[:-1])
        return result

    def _work(self, rows: Tensor) -> int:
        """Return the number of multiply-adds for these rows."""
        return len(rows) * self.width * self.padded_outputs

    def extra_repr(self) -> str:
        """Return the sizes and the format that is multiplied."""
        return f"{self.width}, {self.outputs}, {self.tile.kind}"

    def addresses(self) -> tuple[int, int, int, int]:
        """Return the addresses of the weights, the initial sums, the weight scales and the bias."""
        return self.weights.data_ptr(), self.start.data_ptr(), self.steps.data_ptr(), self.bias.data_ptr()


def _round(weight: Tensor, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize a matrix (O, D) for a tile; returns the matrix, the initial sums (O,) and the weight scales (O,).

    For floating-point tiles the last two are empty.
    """
    if tile.is_float:
        dtype = torch.bfloat16 if tile.kind == "pairs" else torch.float32
        return weight.to(dtype), torch.empty(0, dtype=torch.int32), torch.empty(0)
    steps = weight.abs().amax(dim=1).clamp_min(_LEAST).div(_LEVELS)  # (O,)
    rounded = (weight / steps[:, None]).round().to(torch.int8)
    return rounded, rounded.sum(dim=1, dtype=torch.int32) * -tile.zero, steps


class NativeVocabulary(NativeLinear):
    """A vocabulary projection that recomputes the logits of the likeliest tokens with unrounded weights.

    Decoding needs the greatest logits, whose order rounding would change. With float32 nothing is recomputed.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tile: Tile) -> None:
        """Pack the matrix (V, D) and keep a reference to it; models that tie their embeddings hold it anyway."""
        super().__init__(weight, bias, tile)
        self.exact = weight
        self.is_refined = self.rounds
        with torch.no_grad():
            self.bias[self.outputs :] = float("-inf")  # padding outputs are never selected

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (…, D) to (…, V); each row's result is independent of the other rows."""
        logits = super().forward(x)
        if not self.is_refined:
            return logits
        rows = x.reshape(-1, self.width).contiguous()
        _refining_kernel(self.tile).run(
            rows.data_ptr(),
            len(rows),
            self.width,
            self.exact.data_ptr(),
            self.bias.data_ptr(),
            logits.data_ptr(),
            self.padded_outputs,
            threads=useful_threads(self._work(rows)),
        )
        return logits


class BFloat16Vocabulary:
    """A vocabulary projection in bfloat16 that recomputes the likeliest tokens' logits in float32.

    PyTorch rounds the logits to 8 bits of precision, so many would be equal.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep the matrix (V, D), D a multiple of `MULTIPLE`, and the bias (V,), both in bfloat16."""
        self._weight, self._bias = weight, bias
        self._exact_bias = weight.new_zeros(len(weight), dtype=torch.float32) if bias is None else bias.float()
        self._tile = own_tile()
        self._padded = -(-len(weight) // self._tile.columns) * self._tile.columns  # P

    def __call__(self, x: Tensor) -> Tensor:
        """Return float32 logits (…, V) of bfloat16 states (…, D)."""
        outputs, width = self._weight.shape
        rows = x.reshape(-1, width).contiguous()
        rounded = F.linear(rows, self._weight, self._bias)
        padded_logits = rows.new_empty(len(rows), self._padded, dtype=torch.float32)
        _widening_kernel(self._tile).run(
            rows.data_ptr(),
            len(rows),
            width,
            self._weight.data_ptr(),
            self._exact_bias.data_ptr(),
            rounded.data_ptr(),
            outputs,
            padded_logits.data_ptr(),
            self._padded,
            threads=useful_threads(len(rows) * width * outputs),
        )
        logits: Tensor = padded_logits[:, :outputs].unflatten(0, x.shape[:-1])
        return logits


for _kind, _more in ((NativeLinear, ()), (NativeVocabulary, ("exact",))):
    _tensors = ("weights", "start", "steps", "bias", *_more)
    register_class(_kind, computes=Linear, tensors=_tensors, sizes=("width", "outputs"))


def make_product(weight: Tensor, bias: Tensor | None, use: Use = "layer", /) -> nn.Module:
    """Create a linear layer on 8-bit weights (implements `quantized.MakeProduct`).

    It runs on the compiled kernels, or on FBGEMM where these do not fit. Six bits per activation suffice only for the
    vocabulary projection, whose likeliest logits are recomputed; eight bits are too few for the keys and values of the
    encoder output, and for layers with few inputs (docs/decoding.md).
    """
    tile = find_tile()
    if tile is not None and tile.amx and not agrees_with_vectors(tile):
        tile = tile._replace(amx=False)
    if tile is not None and use != "vocabulary":
        is_enough = use == "layer" and tile.kind == "bytes" and weight.shape[1] >= MANY_INPUTS
        tile = tile if is_enough else tile.finer
    if tile is None or weight.shape[1] % MULTIPLE or weight.shape[1] > tile.most_inputs:
        return Int8Linear(weight, bias)
    return (NativeVocabulary if use == "vocabulary" else NativeLinear)(weight, bias, tile)


def make_float_product(tile: Tile) -> MakeProduct:
    """Return a factory of floating-point linear layers for a tile (bfloat16 or float32); D a multiple of `MULTIPLE`."""
    if tile.amx and not agrees_with_vectors(tile):
        tile = tile._replace(amx=False)

    def make(weight: Tensor, bias: Tensor | None, use: Use = "layer", /) -> nn.Module:
        """Create a linear layer of the tile's format (implements `quantized.MakeProduct`)."""
        return (NativeVocabulary if use == "vocabulary" else NativeLinear)(weight, bias, tile)

    return make


@cache
def agrees_with_vectors(tile: Tile) -> bool:
    """Return whether AMX gives the results of vector instructions on this machine, tested once on a small product.

    Integer results must be equal, floats within a tolerance.
    """
    numbers = torch.Generator().manual_seed(1)
    weight, x = torch.randn(100, 192, generator=numbers), torch.randn(53, 192, generator=numbers)
    if tile.is_float:  # AMX adds in another order
        actual, expected = (NativeLinear(weight, None, each)(x) for each in (tile, tile._replace(amx=False)))
        return bool((actual - expected).abs().max() < _SLIGHT * expected.abs().max())
    tiles = [each_tile._replace(rows=1) for each_tile in (tile, tile.finer)]  # less code to compile
    return all(
        torch.equal(
            NativeLinear(weight, None, each_tile)(x), NativeLinear(weight, None, each_tile._replace(amx=False))(x)
        )
        for each_tile in tiles
    )


@cache
def _linear_kernel(tile: Tile) -> Program:
    """Compile `linear(x, N, D, rounded, scales, weights, start, steps, bias, P, out)`, a whole linear layer."""
    k = new_emitter("linear", tile)
    write_products(k, tile, ("store",))
    with program(k, "linear", 11) as (numbers, thread, threads):
        x, rows, width, rounded, scales, weights, start, steps, bias, outputs, out = numbers
        pointers: list[Value] = [k.place(each) for each in (rounded, scales)]
        if tile.kind == "floats":
            pointers[0] = k.place(x)
        else:
            write_rounding(k, tile)
            k.call(f"round_{tile.kind}", k.place(x), rows, width, *pointers, thread, threads)
            k.barrier(threads)
        parameters = [k.place(each) for each in (weights, start, steps, bias)]
        k.call(
            f"product_{tile.kind}_store", *pointers, rows, width, *parameters, outputs, k.place(out), thread, threads
        )
    return compile_programs(k, ("linear",))["linear"]


@cache
def _refining_kernel(tile: Tile) -> Program:
    """Compile `refine_rows(x, N, D, weights, bias, logits, P)`, which runs `lines.write_refining`."""
    k = new_emitter("refining", tile)
    write_refining(k, tile.vectors)
    with program(k, "refine_rows", 7) as (numbers, thread, threads):
        x, rows, width, weights, bias, logits, stride = numbers
        parameters = [k.place(each) for each in (weights, bias, logits)]
        k.call("refine", k.place(x), rows, width, *parameters, stride, thread, threads)
    return compile_programs(k, ("refine_rows",))["refine_rows"]


@cache
def _widening_kernel(tile: Tile) -> Program:
    """Compile `widen_rows(x, N, D, weights, bias, rounded, V, logits, P)`, which runs `lines.write_widening`."""
    k = new_emitter("widening", tile)
    write_widening(k, tile.vectors)
    with program(k, "widen_rows", 9) as (numbers, thread, threads):
        x, rows, width, weights, bias, rounded, outputs, logits, stride = numbers
        parameters = [k.place(each) for each in (weights, bias, rounded)]
        k.call("widen", k.place(x), rows, width, *parameters, outputs, k.place(logits), stride, thread, threads)
    return compile_programs(k, ("widen_rows",))["widen_rows"]
