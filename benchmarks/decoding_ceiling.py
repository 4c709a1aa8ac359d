"""Measure how near 8-bit decoding is to the processor's limits of arithmetic and of memory.

    python benchmarks/decoding_ceiling.py
    ATEN_CPU_CAPABILITY=avx2 python benchmarks/decoding_ceiling.py    # without AVX-512 and VNNI

For the decoding step of some encoder-decoder shapes, greedily and with beam 4 for 32 sentences, the script prints the
rate of our matrix multiplications beside two limits: a loop of the multiplication instructions over registers, and the
time in which the step's weights can be read from memory. One thread, processor time, the median of several passes;
measure and limits alternate. Weights are random. It needs an x86 processor with AVX2.

With VNNI, the instruction is `vpdpbusd`, which multiplies 8-bit numbers. Without it, the layers multiply 12-bit
activations by `vpmaddwd` and the vocabulary 6-bit ones by `vpmaddubsw`, each with the additions that it needs.

The last figure is the rate of translation that imported_speed.py would find if the encoder and all decoding steps did
nothing but these multiplications, at the instructions' rate: no program that multiplies all of them in these formats
can be faster.
"""

import ctypes
import statistics
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
    require_integer_tile,
)
from transduce.kernels.cpu.jit.ir_builder import I8, I16, KernelBuilder
from transduce.kernels.cpu.jit.tile import Tile

SENTENCES, PASSES = 32, 7
SOURCE_TOKENS, TARGET_TOKENS = 20, 24  # of a sentence in imported_speed.py, on average
_ACCUMULATORS = 12  # at least the latency of an instruction times its rate
_TURNS = 2_000_000
_READ_BYTES = 512 << 20  # more than any cache


class Shape(NamedTuple):
    """The sizes of an encoder-decoder model's decoding step."""

    layers: int
    width: int
    inner: int
    vocabulary: int
    gated: bool = False

    def products(self) -> list[tuple[int, int, int]]:
        """Return (number, inputs, outputs) of the layers' matrix multiplications of one step."""
        attention = (4 + 2) * self.layers  # self-attention, and cross-attention without keys and values
        return [
            (attention, self.width, self.width),
            ((2 if self.gated else 1) * self.layers, self.width, self.inner),
            (self.layers, self.inner, self.width),
        ]

    def layer_weights(self) -> int:
        """Return the number of weights of the layers that a step reads, one byte each."""
        return sum(number * inputs * outputs for number, inputs, outputs in self.products())

    def vocabulary_weights(self) -> int:
        """Return the number of weights of the vocabulary's projection."""
        return self.width * self.vocabulary

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

    def __init__(self, tile: Tile, rows: int, inputs: int, outputs: int) -> None:
        self.linear = decode.CompiledLinear(torch.randn(outputs, inputs), None, tile)
        self.x = torch.randn(rows, inputs)
        rounded = torch.int16 if tile.format == "words" else torch.int8
        self.rounded, self.scales = torch.empty(rows, inputs, dtype=rounded), torch.empty(rows)
        self.out = torch.empty(rows, self.linear.padded_outputs)

    def run(self) -> None:
        """Quantize the rows and multiply them."""
        linear = self.linear
        parameters = linear.weights, linear.initial_sums, linear.weight_scales, linear.bias
        inputs, outputs = (self.x, *self.x.shape, self.rounded, self.scales), (linear.padded_outputs, self.out)
        decode._linear_kernel(linear.tile).run(*inputs, *parameters, *outputs, threads=1)


def instruction_kernel(tile: Tile) -> CompiledKernel:
    """Compile a loop of a tile's multiplications on registers.

    The kernel's arguments are the number of turns and an address for the sums. Each turn multiplies every sum by
    itself, and its neighbor by it where a tile multiplies two groups of inputs, so that no multiplication is left out.
    """

    def emit(k: KernelBuilder) -> None:
        with kernel(k, "instruction", 2) as ((turns, out), _thread, _threads):
            sums = [k.variable(k.splat_int(number)) for number in range(_ACCUMULATORS)]
            weights = ir.VectorType(I16 if tile.format == "words" else I8, tile.group * k.lanes)
            with k.loop(0, turns):
                for number, each in enumerate(sums):
                    values = [k.load_variable(sums[(number + g) % _ACCUMULATORS]) for g in range(tile.groups)]
                    factors = [k.build.bitcast(value, weights) for value in values]
                    k.store(decode._multiply(k, tile, values[0], factors, factors[:1] * tile.groups), each)
            for number, each in enumerate(sums):
                k.store(k.load_variable(each), k.element_pointer(k.pointer(out), number * k.lanes))

    return compile_kernels("instruction", tile, ("instruction",), emit)["instruction"]


class Instruction:
    """The multiplications of a tile on registers, and the rate that was measured last."""

    def __init__(self, tile: Tile) -> None:
        self.tile, self.rate = tile, 0.0
        self._loop = instruction_kernel(tile)
        self._sums = (ctypes.c_int32 * (_ACCUMULATORS * tile.lanes))()

    def measure(self) -> None:
        """Set `rate` to the number of weights that are multiplied by an activation in a second."""
        weights = _TURNS * _ACCUMULATORS * self.tile.lanes * self.tile.group * self.tile.groups
        self.rate = weights / seconds_of(self._run, 1)

    def _run(self) -> None:
        self._loop.run(_TURNS, ctypes.addressof(self._sums), threads=1)


def main() -> None:
    """Print the limits, and our rate for each shape beside them."""
    torch.set_num_threads(1)
    print(machine())
    vocabulary_tile = require_integer_tile()
    layer_tile = vocabulary_tile if vocabulary_tile.format == "bytes" else vocabulary_tile.with_12_bits
    layers, vocabulary = Instruction(layer_tile), Instruction(vocabulary_tile)
    memory = torch.ones(_READ_BYTES // 8, dtype=torch.int64)

    def read_memory() -> None:
        memory.sum()

    for name, shape in SHAPES.items():
        for search, rows in (("greedy", SENTENCES), ("beam 4", 4 * SENTENCES)):
            products = [(number, Product(layer_tile, rows, *sizes)) for number, *sizes in shape.products()]
            products.append((1, Product(vocabulary_tile, rows, shape.width, shape.vocabulary)))
            found: list[tuple[float, ...]] = []
            for _ in range(PASSES):
                layers.measure()
                vocabulary.measure()
                reading = _READ_BYTES / seconds_of(read_memory, 1)
                step = sum(number * seconds_of(product.run, 5) for number, product in products)
                found.append((layers.rate, vocabulary.rate, reading, step))
            layer_rate, vocabulary_rate, reading, step = map(statistics.median, zip(*found, strict=True))
            weights = shape.layer_weights() + shape.vocabulary_weights()
            least = rows * (shape.layer_weights() / layer_rate + shape.vocabulary_weights() / vocabulary_rate)
            sentence = TARGET_TOKENS * least / SENTENCES + SOURCE_TOKENS * shape.encoder_weights() / layer_rate
            print(
                f"{name}, {search}: {rows * weights / step / 1e9:.0f} GMAC/s, {least / step:.0%} of the instructions' "
                f"rate ({layer_rate / 1e9:.0f} in layers, {vocabulary_rate / 1e9:.0f} in the vocabulary); a step's "
                f"products take {1e3 * step:.1f} ms, at that rate {1e3 * least:.1f}, and reading the weights at "
                f"{reading / 1e9:.1f} GB/s {1e3 * weights / reading:.1f}; at most {TARGET_TOKENS / sentence:,.0f} "
                "tokens/s"
            )


if __name__ == "__main__":
    main()
