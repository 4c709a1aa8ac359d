"""Measure how near 8-bit decoding is to the processor's limits of arithmetic and of memory.

    python benchmarks/decoding_ceiling.py

For the decoding step of some encoder-decoder shapes, greedily and with beam 4 for 32 sentences, the script prints the
rate of our matrix multiplications beside two limits: a loop of the multiplication instruction over registers, and the
time in which the step's weights can be read from memory. One thread, processor time, the median of several passes;
measure and limits alternate. Weights are random. It needs an x86 processor with `vpdpbusd` (VNNI) in vectors.

The last figure is the rate of translation that imported_speed.py would find if the encoder and all decoding steps did
nothing but these multiplications, at the instruction's rate: no program that multiplies all of them can be faster.
"""

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from llvmlite import ir  # type: ignore[import-not-found, import-untyped, unused-ignore]
from report import machine

from transduce.kernels.cpu.gemm import decode
from transduce.kernels.cpu.jit.compiler import (
    CompiledKernel,
    compile_kernels,
    kernel,
    new_builder,
    require_integer_tile,
)

SENTENCES, PASSES = 32, 7
SOURCE_TOKENS, TARGET_TOKENS = 20, 24  # of a sentence in imported_speed.py, on average
_ACCUMULATORS = 16  # more than the latency of an instruction times its rate
_READ_BYTES = 512 << 20  # more than any cache


class Shape(NamedTuple):
    """The sizes of an encoder-decoder model's decoding step."""

    layers: int
    width: int
    inner: int
    vocabulary: int
    gated: bool = False

    def products(self) -> list[tuple[int, int, int]]:
        """Return (number, inputs, outputs) of the matrix multiplications of one step."""
        attention = (4 + 2) * self.layers  # self-attention, and cross-attention without keys and values
        return [
            (attention, self.width, self.width),
            ((2 if self.gated else 1) * self.layers, self.width, self.inner),
            (self.layers, self.inner, self.width),
            (1, self.width, self.vocabulary),
        ]

    def weights(self) -> int:
        """Return the number of weights that a step reads, one byte each."""
        return sum(number * inputs * outputs for number, inputs, outputs in self.products())

    def encoder_weights(self) -> int:
        """Return the number of weights that multiply a source token, with those of cross-attention's keys."""
        attention = (4 + 2) * self.width**2
        return self.layers * (attention + (3 if self.gated else 2) * self.width * self.inner)


SHAPES = {
    "opus-mt": Shape(6, 512, 2048, 58_101),
    "t5-small": Shape(6, 512, 2048, 32_128),
    "flan-t5-base": Shape(12, 768, 2048, 32_128, gated=True),
    "bart-base": Shape(6, 768, 3072, 50_265),
    "nllb-600m": Shape(12, 1024, 4096, 256_206),
}


def seconds_of(call: Callable[[], None], repeats: int) -> float:
    """Return the processor time of a call, the mean of `repeats` calls."""
    started_at = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - started_at) / repeats


class Product:
    """A matrix multiplication with 8-bit weights whose buffers are allocated once, as in a compiled search."""

    def __init__(self, rows: int, inputs: int, outputs: int) -> None:
        self.linear = decode.CompiledLinear(torch.randn(outputs, inputs), None, require_integer_tile())
        self.x = torch.randn(rows, inputs)
        self.rounded, self.scales = torch.empty(rows, inputs, dtype=torch.int8), torch.empty(rows)
        self.out = torch.empty(rows, self.linear.padded_outputs)

    def run(self) -> None:
        """Quantize the rows and multiply them."""
        decode._linear_kernel(self.linear.tile).run(
            self.x.data_ptr(), *self.x.shape, self.rounded.data_ptr(), self.scales.data_ptr(),
            *self.linear.addresses(), self.linear.padded_outputs, self.out.data_ptr(), threads=1,
        )  # fmt: skip


def instruction_kernel() -> CompiledKernel:
    """Compile a loop of `vpdpbusd` on registers; its arguments are the number of turns and an address for the sum."""
    tile = require_integer_tile()
    if tile.kind != "bytes":
        sys.exit("This processor has no `vpdpbusd`: the script measures nothing here.")
    k = new_builder("instruction", tile)
    with kernel(k, "instruction", 2) as ((turns, out), _thread, _threads):
        sums = [k.variable(k.splat_int(0)) for _ in range(_ACCUMULATORS)]
        like, factor = ir.Constant(k.ints, ir.Undefined), k.splat(k.build.trunc(turns, ir.IntType(32)))
        with k.loop(0, turns):
            for total in sums:
                name = f"llvm.x86.avx512.vpdpbusd.{32 * k.lanes}"
                k.store(k.intrinsic(name, k.ints, k.load_variable(total, like), factor, factor), total)
        for number, total in enumerate(sums):
            k.store(k.load_variable(total, like), k.element_pointer(k.pointer(out), number * k.lanes))
    return compile_kernels(k, ("instruction",))["instruction"]


def main() -> None:
    """Print the limits, and our rate for each shape beside them."""
    torch.set_num_threads(1)
    print(machine())
    loop, lanes = instruction_kernel(), require_integer_tile().lanes
    sums = (ctypes.c_int32 * (_ACCUMULATORS * lanes))()
    memory = torch.ones(_READ_BYTES // 8, dtype=torch.int64)
    turns = 2_000_000

    def multiply_registers() -> None:
        loop.run(turns, ctypes.addressof(sums), threads=1)

    def read_memory() -> None:
        memory.sum()

    for name, shape in SHAPES.items():
        for search, rows in (("greedy", SENTENCES), ("beam 4", 4 * SENTENCES)):
            products = [(number, Product(rows, inputs, outputs)) for number, inputs, outputs in shape.products()]
            found: list[tuple[float, float, float]] = []
            for _ in range(PASSES):
                peak = turns * _ACCUMULATORS * lanes * 4 / seconds_of(multiply_registers, 1)
                reading = _READ_BYTES / seconds_of(read_memory, 1)
                step = sum(number * seconds_of(product.run, 5) for number, product in products)
                found.append((peak, reading, step))
            peak, reading, step = (statistics.median(each) for each in zip(*found, strict=True))
            work = rows * shape.weights()
            sentence = TARGET_TOKENS * work / SENTENCES + SOURCE_TOKENS * shape.encoder_weights()
            print(
                f"{name}, {search}: {work / step / 1e9:.0f} GMAC/s of {peak / 1e9:.0f} ({work / step / peak:.0%}); a "
                f"step's products take {1e3 * step:.1f} ms, at the instruction's rate {1e3 * work / peak:.1f}, and "
                f"reading the weights at {reading / 1e9:.1f} GB/s {1e3 * shape.weights() / reading:.1f}; "
                f"at most {TARGET_TOKENS * peak / sentence:,.0f} tokens/s"
            )


if __name__ == "__main__":
    main()
