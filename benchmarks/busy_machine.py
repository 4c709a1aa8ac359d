"""Measure decoding next to busy processes: with all threads, with one, and with the number that the kernels choose.

    python benchmarks/busy_machine.py --busy 0 1

Models have random int8 weights, from 4+4 layers with d_model 128 to 6+6 with 512; sources and translations have 12
tokens. The three variants alternate; figures are medians over the rounds, in ms per batch. There is no peer and no bar.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from transduce.kernel_interfaces import BatchSearchOptions
from transduce.kernels.cpu.decoding.search import CompiledBatchSearch
from transduce.kernels.cpu.jit import compiler as threads_module
from transduce.kernels.select import quantize, start_fast
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.process_environment import set_library_defaults

SIZES = ((4, 128, 4), (6, 256, 4), (6, 512, 8))  # layers, columns, heads
BATCHES = ((1, 1), (1, 4), (4, 4), (32, 4))  # sentences, hypotheses of each
WAYS = ("all threads", "one thread", "default")
PIECES, VOCABULARY = 12, 8000


def build(layers: int, width: int, heads: int) -> Transformer:
    """Return an int8 model with random weights."""
    config = ModelConfig(
        source_vocabulary_size=VOCABULARY,
        target_vocabulary_size=VOCABULARY,
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        d_model=width,
        d_ff=4 * width,
        num_heads=heads,
    )
    return quantize(Transformer(config).eval())


@torch.inference_mode()
def decode(model: Transformer, sources: torch.Tensor, beam_size: int) -> None:
    """Run a complete beam search."""
    count = len(sources)
    state = start_fast(model, sources)
    options = BatchSearchOptions(2, 3, [3], [PIECES] * count, beam_size, beam_size, torch.ones(64, dtype=torch.float64))
    CompiledBatchSearch(state, options).advance(PIECES)  # type: ignore[arg-type]


@contextmanager
def choosing(way: str, threads: int) -> Iterator[None]:
    """Set how many threads a decoding step uses, within the context: all, one or as many as the kernels choose."""
    kept = threads_module._THREAD_WORK, threads_module._MIN_SHARE, threads_module._LIMITER
    if way != "default":
        threads_module._THREAD_WORK, threads_module._MIN_SHARE, threads_module._LIMITER = (
            1,
            0.0,
            threads_module.ThreadLimiter(),
        )
    torch.set_num_threads(1 if way == "one thread" else threads)
    try:
        yield
    finally:
        threads_module._THREAD_WORK, threads_module._MIN_SHARE, threads_module._LIMITER = kept


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` processes that use a core each, within the context."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(
    model: Transformer, sentences: int, beam_size: int, threads: int, rounds: int, seconds: float
) -> dict[str, float]:
    """Return the median milliseconds per batch of each variant."""
    sources = torch.randint(4, VOCABULARY, (sentences, PIECES))
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS:
            with choosing(way, threads):
                calls = 0
                began = time.perf_counter()
                while time.perf_counter() - began < seconds:
                    decode(model, sources, beam_size)
                    calls += 1
                if number:  # the first one warms up
                    found[way].append(1000 * (time.perf_counter() - began) / calls)
    return {way: statistics.median(times) for way, times in found.items()}


def main() -> None:
    """Print a table of the times."""
    before = dict(os.environ)
    set_library_defaults()
    if os.environ != before:  # set as by the command; libraries read it when loaded
        os.execv(sys.executable, [sys.executable, *sys.argv])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="numbers of other busy processes")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of each variant in a round")
    options = parser.parse_args()
    torch.manual_seed(1)
    print("| busy | model | sentences × beam |", " | ".join(f"{way}, ms" for way in WAYS), "|")
    print("|---" * (3 + len(WAYS)) + "|")
    for layers, width, heads in SIZES:
        model = build(layers, width, heads)
        for count in options.busy:
            for sentences, beam_size in BATCHES:
                with busy(count):
                    times = measure(model, sentences, beam_size, options.threads, options.rounds, options.seconds)
                cells = " | ".join(f"{times[way]:.2f}" for way in WAYS)
                print(f"| {count} | {layers}+{layers} × {width} | {sentences} × {beam_size} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
