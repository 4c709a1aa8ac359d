"""Profile the GPU in a training step and in decoding a batch.

    python benchmarks/gpu_profile.py                     # base and big, and a model of 6+6 x 512 that decodes
    python benchmarks/gpu_profile.py --size base --skip decoding
    python benchmarks/gpu_profile.py --device cpu --quick --skip decoding    # CPU time of a small model

For training with the batches of training_speed.py: the time of a step, how long the CPU launches its forward pass,
backward pass and update, and the GPU's time by kernel. For decoding a batch of 256 sentences with random weights: the
encoder, the recorded steps, and reading the hypotheses. There is no peer and no bar.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from report import Row, parser, report
from torch.profiler import ProfilerActivity, profile
from training_ceiling import wait
from training_settings import RATE, Present, batch_of, config_of, optimizer_settings
from training_speed import SIZES, Size, make_work, write_batches

from transduce.kernel_interfaces import BatchSearchOptions
from transduce.kernels.select import find_batch_search, kernels_for_training, start_fast
from transduce.machine import DTYPES, detect_machine, prepare_device
from transduce.model.backend import using_backend
from transduce.model.transformer import Transformer
from transduce.tasks.kinds.translation import TranslationObjective
from transduce.training.choices import choose_kernels
from transduce.training.optimizer import FlatOptimizer
from transduce.training.prefetch import PrefetchedBatches

QUICK = Size("4+4 x 128", 4, 128, 256, 4, 0.1, 1024, 8_000)
DECODED = (256, 17)  # sentences, tokens of each
BATCHES, STEPS, SHOWN = 6, 12, 20


class Profiled(NamedTuple):
    """The GPU's work during one call, averaged over several calls."""

    gpu_ms: float
    launches: float
    kernels: list[tuple[float, float, str]]
    """Milliseconds, number of launches, and name of each kernel, the longest first."""


def profiled(call: Callable[[], object], times: int, device: str) -> Profiled:
    """Profile the GPU while the function is called several times."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        for _ in range(times):
            call()
        wait(device)
    found = [each for each in recorded.key_averages() if each.device_type.name == "CUDA"]
    rows = sorted(((e.device_time_total / times / 1e3, e.count / times, e.key) for e in found), reverse=True)
    return Profiled(sum(row[0] for row in rows), sum(row[1] for row in rows), rows)


def rows_of(what: str, found: Profiled) -> list[Row]:
    """Return rows with the total time of the GPU and its longest kernels; `what` names the call."""
    rows = [Row(f"{what}, the GPU computes", found.gpu_ms, "ms"), Row(f"{what}, kernels", found.launches, "of them")]
    return rows + [Row(f"  {count:g} x {name[:70]}", each, "ms") for each, count, name in found.kernels[:SHOWN]]


def training_rows(size: Size, device: str, path: Path, *, record: bool) -> list[Row]:
    """Measure steps with Adam over a few batches, after a warm-up, with or without recording (CUDA graphs)."""
    machine = detect_machine(device)
    prepare_device(device)
    work = make_work(size, path, size.vocabulary_size, machine)
    with np.load(path) as arrays:
        batches = Present([batch_of(arrays[f"s{n}"], arrays[f"t{n}"], work.pad_id) for n in range(BATCHES)])
    with torch.device(device):
        model = Transformer(config_of(work)).train()
    optimizer = FlatOptimizer(model, optimizer_settings(machine.precision, "adam"), DTYPES[machine.precision])
    objective, parts = TranslationObjective(model, label_smoothing=0.1, cuda_graphs=record), np.zeros(3)
    ahead = PrefetchedBatches(batches, objective)

    def step(number: int) -> None:
        times = [time.perf_counter()]
        optimizer.begin_batch(last=True)
        loss = objective.loss(ahead.batch(0, number % len(batches)))
        times.append(time.perf_counter())
        loss.total.backward()
        times.append(time.perf_counter())
        optimizer.finish_batch()
        optimizer.step(loss.tokens, RATE)
        parts[:] += np.diff([*times, time.perf_counter()])

    kernels = kernels_for_training(choose_kernels(device, machine.threads).value, device)
    with using_backend(kernels):
        for number in range(3 * len(batches)):  # launch, record, replay
            step(number)
        wait(device)
        parts[:], began = 0.0, time.perf_counter()
        for number in range(STEPS):
            step(number)
        wait(device)
        whole, launches = (time.perf_counter() - began) / STEPS * 1e3, parts / STEPS * 1e3
        found = profiled(lambda: step(0), 2, device)
    names = ("forward, launched in", "backward, launched in", "update, launched and waited for in")
    own = [("a step", whole), *zip(names, launches.tolist(), strict=True)]
    what = f"training, {size.name}{', recorded' * record}"
    return [*(Row(f"{what}, {name}", each, "ms") for name, each in own), *rows_of(what, found)]


def decoding_rows(size: Size, device: str, beam_size: int) -> list[Row]:
    """Measure a batch from encoder to hypotheses, none of which ends before its maximum length."""
    what, (count, length) = f"decoding, {size.name}, beam {beam_size}", DECODED
    machine = detect_machine(device)
    prepare_device(device)
    config = config_of(make_work(size, Path(), size.vocabulary_size, machine))
    model = Transformer(config).to(device, DTYPES[machine.precision]).eval()
    source = torch.randint(2, size.vocabulary_size, (count, length), device=device)
    longest = [8 + number * 24 // count for number in range(count)]
    options = BatchSearchOptions(
        config.start_id,
        config.eos_id,
        config.forbidden_tokens,
        longest,
        beam_size,
        1,
        torch.ones(64, dtype=torch.float64),
    )

    def batch() -> list[float]:
        times = [time.perf_counter()]
        state = start_fast(model, source)
        wait(device)
        times.append(time.perf_counter())
        search = find_batch_search(state, options)
        if search is None:
            raise SystemExit("No compiled search is available: it needs a GPU with Triton, or the extra `fast`.")
        search.advance(1 << 30)
        times.append(time.perf_counter())
        for index in range(count):
            search.finished(index, 1)
        times.append(time.perf_counter())
        return list(np.diff(times) * 1e3)

    with torch.inference_mode():
        batch()
        seen = np.median([batch() for _ in range(5)], axis=0)
        found = profiled(batch, 1, device)
    names = ("the encoder", f"{max(longest)} steps", "its hypotheses")
    own = zip(names, seen, strict=True)
    return [*(Row(f"{what}, {name}", float(each), "ms") for name, each in own), *rows_of(what, found)]


def main() -> int:
    """Run the benchmark and report."""
    options = parser(__doc__)
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--size", choices=("base", "big"), nargs="+", default=["base", "big"])
    options.add_argument("--skip", nargs="*", choices=("training", "decoding"), default=[])
    options.add_argument("--keep", type=Path, help="a folder that keeps the batches for other runs")
    args: Any = options.parse_args()
    sizes = [QUICK] if args.quick else [SIZES[name] for name in args.size]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for size in [] if "training" in args.skip else sizes:
            path = write_batches(args.keep or Path(scratch), BATCHES, size.vocabulary_size, size.batch_tokens)
            for record in (False, True) if args.device == "cuda" else (False,):
                rows += training_rows(size, args.device, path, record=record)
    if "decoding" not in args.skip:
        decoded = (QUICK if args.quick else SIZES["base"])._replace(vocabulary_size=8_000 if args.quick else 16_000)
        for beam_size in (1, 4):
            rows += decoding_rows(decoded, args.device, beam_size)
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
