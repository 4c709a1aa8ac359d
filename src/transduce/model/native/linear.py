"""Products by the kernels, as modules and as what a program is written from; and the projection to the vocabulary in
PyTorch's bfloat16.

Legend: N rows, D inputs, O outputs, P outputs in whole blocks of weights, C outputs of a block, V vocabulary.
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

_LEAST = 1e-30  # a row of zeros is divided by this
_SLIGHT = 1e-4  # by what sums of the same products differ in another order, over the greatest
_LEVELS = 127  # of a weight, on either side of 0
MULTIPLE = 16  # of D: the widest vectors' elements
MANY_INPUTS = 512  # D from which on a sum's roundings cancel out enough for 8 bits an activation


class NativeLinear(nn.Module):
    """x Wᵀ + b: (…, D) to (…, O), float32 outside and what the tile says inside. Weights cannot be trained."""

    def __init__(self, weight: Tensor, bias: Tensor | None, tile: Tile) -> None:
        """Of a float32 matrix (O, D), D a multiple of 16."""
        super().__init__()
        outputs, width = weight.shape
        missing = -outputs % tile.columns
        rounded, start, steps = _round(weight.detach(), tile)
        grouped = F.pad(rounded, (0, 0, 0, missing)).view(-1, tile.columns, width // tile.group, tile.group)
        blocks = grouped.permute(0, 2, 1, 3)  # (P / C, D / group, C, group)
        self.tile = tile
        self.rounds = tile.kind != "floats"
        """Whether what is multiplied has been rounded, so that its products are not those of float32."""
        self.outputs, self.width = outputs, width
        self.padded_outputs = outputs + missing
        whole = torch.zeros(outputs) if bias is None else bias.detach().float()
        self.weights = nn.Parameter(blocks.contiguous(), requires_grad=False)
        self.start = nn.Parameter(F.pad(start, (0, missing)), requires_grad=False)  # (P,), what each sum begins with
        self.steps = nn.Parameter(F.pad(steps, (0, missing)), requires_grad=False)  # (P,)
        self.bias = nn.Parameter(F.pad(whole, (0, missing)), requires_grad=False)  # (P,)

    def forward(self, x: Tensor) -> Tensor:
        """Each row by itself: what stands beside it makes no difference to its result."""
        rows = x.reshape(-1, self.width).contiguous()
        out = rows.new_empty(len(rows), self.padded_outputs)
        rounded = rows.new_empty(len(rows) + MORE_ROWS, self.width, dtype=torch.int16)
        scales = rows.new_empty(len(rows))
        _linear_program(self.tile).run(
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
        found: Tensor = out[:, : self.outputs].unflatten(0, x.shape[:-1])
        return found

    def _work(self, rows: Tensor) -> int:
        return len(rows) * self.width * self.padded_outputs

    def extra_repr(self) -> str:
        """Sizes, and what is multiplied."""
        return f"{self.width}, {self.outputs}, {self.tile.kind}"

    def addresses(self) -> tuple[int, int, int, int]:
        """Of the weights, the starts, the steps and the bias."""
        return self.weights.data_ptr(), self.start.data_ptr(), self.steps.data_ptr(), self.bias.data_ptr()


def _round(weight: Tensor, tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix (O, D) as it is multiplied; what each sum begins with, and what a step of it is worth, of integers."""
    if tile.is_float:
        dtype = torch.bfloat16 if tile.kind == "pairs" else torch.float32
        return weight.to(dtype), torch.empty(0, dtype=torch.int32), torch.empty(0)
    steps = weight.abs().amax(dim=1).clamp_min(_LEAST).div(_LEVELS)  # (O,)
    rounded = (weight / steps[:, None]).round().to(torch.int8)
    return rounded, rounded.sum(dim=1, dtype=torch.int32) * -tile.zero, steps


class NativeVocabulary(NativeLinear):
    """To the vocabulary: the likeliest pieces' logits are computed once more, with the weights as they are.

    Decoding asks which is the greatest, and rounding would change that among those that are nearly as likely.
    Where nothing is rounded, nothing is computed twice.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tile: Tile) -> None:
        """Keeps the matrix (V, D), which a model that shares it with its embeddings has anyway."""
        super().__init__(weight, bias, tile)
        self.exact = weight
        self.is_refined = self.rounds
        with torch.no_grad():
            self.bias[self.outputs :] = float("-inf")  # what only fills up a block is never likely

    def forward(self, x: Tensor) -> Tensor:
        """Each row by itself."""
        found = super().forward(x)
        if not self.is_refined:
            return found
        rows = x.reshape(-1, self.width).contiguous()
        _refining_program(self.tile).run(
            rows.data_ptr(),
            len(rows),
            self.width,
            self.exact.data_ptr(),
            self.bias.data_ptr(),
            found.data_ptr(),
            self.padded_outputs,
            threads=useful_threads(self._work(rows)),
        )
        return found


class BFloat16Vocabulary:
    """To the vocabulary in bfloat16, whose products come rounded to 8 bits: the likeliest are computed once more.

    Rounded, many are equal, and which of them is the greatest is what decoding asks.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keeps the matrix (V, D), D a multiple of `MULTIPLE`, and the bias (V,), both in bfloat16."""
        self._weight, self._bias = weight, bias
        self._exact_bias = weight.new_zeros(len(weight), dtype=torch.float32) if bias is None else bias.float()
        self._tile = own_tile()
        self._padded = -(-len(weight) // self._tile.columns) * self._tile.columns  # P

    def __call__(self, x: Tensor) -> Tensor:
        """(…, D) in bfloat16 to float32 (…, V)."""
        outputs, width = self._weight.shape
        rows = x.reshape(-1, width).contiguous()
        rounded = F.linear(rows, self._weight, self._bias)
        found = rows.new_empty(len(rows), self._padded, dtype=torch.float32)
        _widening_program(self._tile).run(
            rows.data_ptr(),
            len(rows),
            width,
            self._weight.data_ptr(),
            self._exact_bias.data_ptr(),
            rounded.data_ptr(),
            outputs,
            found.data_ptr(),
            self._padded,
            threads=useful_threads(len(rows) * width * outputs),
        )
        logits: Tensor = found[:, :outputs].unflatten(0, x.shape[:-1])
        return logits


for _kind, _more in ((NativeLinear, ()), (NativeVocabulary, ("exact",))):
    _tensors = ("weights", "start", "steps", "bias", *_more)
    register_class(_kind, computes=Linear, tensors=_tensors, sizes=("width", "outputs"))


def make_product(weight: Tensor, bias: Tensor | None, use: Use = "layer", /) -> nn.Module:
    """Implements `quantized.MakeProduct`: by our kernels, and by FBGEMM where they do not fit.

    Six bits of an activation are too few for all but the vocabulary, whose likeliest pieces are computed once more;
    eight for the memory's keys and values, and for sums of few inputs (docs/decoding.md).
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
    """Products of floats by our kernels, of bfloat16 or of float32 as the tile says; D a multiple of `MULTIPLE`."""
    if tile.amx and not agrees_with_vectors(tile):
        tile = tile._replace(amx=False)

    def make(weight: Tensor, bias: Tensor | None, use: Use = "layer", /) -> nn.Module:
        return (NativeVocabulary if use == "vocabulary" else NativeLinear)(weight, bias, tile)

    return make


@cache
def agrees_with_vectors(tile: Tile) -> bool:
    """Whether AMX gives on this machine what vectors give: seen on a small product, once; of integers, all bits."""
    numbers = torch.Generator().manual_seed(1)
    weight, x = torch.randn(100, 192, generator=numbers), torch.randn(53, 192, generator=numbers)
    if tile.is_float:  # whose sums have another order
        found, expected = (NativeLinear(weight, None, each)(x) for each in (tile, tile._replace(amx=False)))
        return bool((found - expected).abs().max() < _SLIGHT * expected.abs().max())
    lines = [own._replace(rows=1) for own in (tile, tile.finer)]  # vectors have little machine code then
    return all(
        torch.equal(NativeLinear(weight, None, own)(x), NativeLinear(weight, None, own._replace(amx=False))(x))
        for own in lines
    )


@cache
def _linear_program(tile: Tile) -> Program:
    """`linear(x, N, D, rounded, scales, weights, start, steps, bias, P, out)`."""
    k = new_emitter("linear", tile)
    write_products(k, tile, ("store",))
    with program(k, "linear", 11) as (numbers, thread, threads):
        x, rows, width, rounded, scales, weights, start, steps, bias, outputs, out = numbers
        places: list[Value] = [k.place(each) for each in (rounded, scales)]
        if tile.kind == "floats":
            places[0] = k.place(x)
        else:
            write_rounding(k, tile)
            k.call(f"round_{tile.kind}", k.place(x), rows, width, *places, thread, threads)
            k.barrier(threads)
        own = [k.place(each) for each in (weights, start, steps, bias)]
        k.call(f"product_{tile.kind}_store", *places, rows, width, *own, outputs, k.place(out), thread, threads)
    return compile_programs(k, ("linear",))["linear"]


@cache
def _refining_program(tile: Tile) -> Program:
    """`refine_rows(x, N, D, weights, bias, logits, P)`."""
    k = new_emitter("refining", tile)
    write_refining(k, tile.vectors)
    with program(k, "refine_rows", 7) as (numbers, thread, threads):
        x, rows, width, weights, bias, logits, stride = numbers
        own = [k.place(each) for each in (weights, bias, logits)]
        k.call("refine", k.place(x), rows, width, *own, stride, thread, threads)
    return compile_programs(k, ("refine_rows",))["refine_rows"]


@cache
def _widening_program(tile: Tile) -> Program:
    """`widen_rows(x, N, D, weights, bias, rounded, V, logits, P)`."""
    k = new_emitter("widening", tile)
    write_widening(k, tile.vectors)
    with program(k, "widen_rows", 9) as (numbers, thread, threads):
        x, rows, width, weights, bias, rounded, outputs, logits, stride = numbers
        own = [k.place(each) for each in (weights, bias, rounded)]
        k.call("widen", k.place(x), rows, width, *own, outputs, k.place(logits), stride, thread, threads)
    return compile_programs(k, ("widen_rows",))["widen_rows"]
