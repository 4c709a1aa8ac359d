"""Check the reliability of training: resuming from any point, random interruptions, faulty batches, and memory growth.

    python benchmarks/reliability.py                   # about half an hour on two cores
    python benchmarks/reliability.py --quick           # the same on less
    python benchmarks/reliability.py --json rows.json  # the figures as a list of rows; `-` for standard output

* resume: twelve kinds of points (`reliability_points.py`), with 1 and 2 threads; all results must be bit-identical.
* seek: the time to the first batch of a run that is resumed in the middle of a corpus.
* preemption: SIGTERM at random moments after the first step of the command, preset `tiny`.
* faults: NaN, infinite and exploding losses in a real run; each must only cost its step.
* memory: the growth of the process over many steps.

`reliability_crash.py` kills a run during a save; tests cover damaged checkpoints and full disks.
"""

import gc
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from reliability_points import Point, Runs, differences, metrics, points
from report import Row, machine, parser, report

from transduce.data.batches import BatchPlan
from transduce.data.id_files import EncodedSentences
from transduce.demonstration.grammar import generate
from transduce.tasks.kinds.translation import TranslationObjective
from transduce.tasks.train import train
from transduce.training.checkpoint import load_newest
from transduce.training.loss import Loss

SEEK_SECONDS, GONE_SECONDS, GROWTH_MIB = 0.1, 5.0, 20.0
SEEK_PAIRS = 1_000_000


class Corpus:
    """A synthetic corpus in memory, for measuring the time of a seek."""

    source_pad_id = target_pad_id = 0

    def __init__(self, pairs: int) -> None:
        self.pairs = pairs
        lengths = np.random.default_rng(1).integers(3, 40, (2, pairs), dtype=np.int32)
        self._lengths = lengths
        self._offsets = [np.concatenate(([0], np.cumsum(side, dtype=np.int64))) for side in lengths]
        self._ids = [np.full(int(offsets[-1]), 5, np.uint16) for offsets in self._offsets]

    def read_range_lengths(self, ranges: Any) -> Any:
        """Return the lengths of the pairs of several ranges."""
        return tuple(np.concatenate([side[start:stop] for start, stop in ranges]) for side in self._lengths)

    def read_range_weights(self, ranges: Any) -> None:
        """Return None, because no pair has a weight."""

    def read_ranges(self, ranges: Any) -> Any:
        """Return the token ids of the pairs of several ranges."""
        return tuple(self._side(side, ranges) for side in (0, 1))

    def _side(self, side: int, ranges: Any) -> EncodedSentences:
        offsets, ids = self._offsets[side], self._ids[side]
        lengths = self.read_range_lengths(ranges)[side]
        joined = np.concatenate([ids[offsets[start] : offsets[stop]] for start, stop in ranges])
        return EncodedSentences(joined, np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))


def demo_settings(folder: Path, pairs: int) -> dict[str, Any]:
    """Write files of the demonstration's grammar, and return settings of a model that trains in seconds."""
    corpus = generate()
    for name, part in (("train", corpus.train[:pairs]), ("dev", corpus.test[:40])):
        for side, language in (("source", "zh"), ("target", "en")):
            text = "".join(f"{getattr(pair, side)}\n" for pair in part)
            (folder / f"{name}.{language}").write_text(text, "utf-8", newline="\n")
    return {
        "preset": "tiny",
        "data.source": [str(folder / "train.zh")],
        "data.target": [str(folder / "train.en")],
        "data.dev_source": [str(folder / "dev.zh")],
        "data.dev_target": [str(folder / "dev.en")],
        "training.translate_dev": 4,
    }


# --- resume ---


def measure_resume(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Count the points at which a resumed run equals an uninterrupted one, by number of threads."""
    pairs, tokens, steps = (1_000, 640, 16) if quick else (3_000, 2_048, 40)
    folder.mkdir()
    settings = demo_settings(folder, pairs) | {"training.batch_tokens": tokens, "training.best_by": "loss"}
    if quick:
        settings |= {"model.d_model": 32, "model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    for threads in (1, 2):
        runs_folder = folder / str(threads)
        runs_folder.mkdir()
        runs = Runs(runs_folder, settings, steps=steps, threads=threads)
        whole = runs.run("whole")
        epochs = [event["epoch"] for event in metrics(whole) if event["event"] == "train"]
        epoch_steps = next((n for n, epoch in enumerate(epochs, 1) if epoch >= 1.0), steps // 2)
        chosen = points(steps, min(epoch_steps, steps - 4))
        equal = sum(_equal_at(runs, whole, point) for point in chosen)
        bar = f"{len(chosen)} of {len(chosen)}"
        yield Row(
            f"resume, {threads} threads: points with all bits equal",
            equal,
            "points",
            bar=bar,
            holds=equal == len(chosen),
        )


def _equal_at(runs: Runs, whole: Path, point: Point) -> bool:
    found = differences(runs.run(point.name, point), whole)
    if found:
        sys.stderr.write(f"stopped {point.name}: {', '.join(found)} differ\n")
    return not found


def measure_seek() -> Iterator[Row]:
    """Measure the time to the first batch of a run that resumes in the middle of an epoch."""
    plan = BatchPlan(Corpus(SEEK_PAIRS), batch_tokens=4_096, seed=1)
    started_at = time.monotonic()
    plan.batch(3, len(plan) // 2)
    seconds = time.monotonic() - started_at
    name = f"seek into {SEEK_PAIRS:,} pairs"
    yield Row(name, seconds, "s", bar=f"<= {SEEK_SECONDS} s", holds=seconds <= SEEK_SECONDS)


# --- preemption ---


def measure_preemption(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Send SIGTERM at random moments, and measure the time until the process ends and the number of lost steps."""
    folder.mkdir()
    settings = demo_settings(folder, 5_000)
    settings |= {"training.report_every": 1, "training.validate_every": 7, "training.patience": 0}
    run, chance = folder / "run", random.SystemRandom()
    slowest, lost, right = 0.0, 0, 0
    times = 4 if quick else 20
    for number in range(times):
        process = _start(run, settings, resume=number > 0)
        before = _last_step(run)
        while _last_step(run) <= before and process.poll() is None:
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 3.0))
        seen, sent_at = _last_step(run), time.monotonic()
        process.send_signal(signal.SIGTERM)
        status = process.wait()
        slowest = max(slowest, time.monotonic() - sent_at)
        newest, _ = load_newest(run / "checkpoints")
        lost += max(0, seen - (newest.state.step if newest else 0))
        right += status == 143
    yield Row("SIGTERM: slowest to be gone", slowest, "s", bar=f"<= {GONE_SECONDS} s", holds=slowest <= GONE_SECONDS)
    yield Row("SIGTERM: finished steps lost", lost, "steps", bar="0", holds=lost == 0)
    yield Row("SIGTERM: exit status 143", right, "runs", bar=f"{times} of {times}", holds=right == times)


def _start(run: Path, settings: dict[str, Any], *, resume: bool) -> "subprocess.Popen[bytes]":
    sets = [] if resume else [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    command = [sys.executable, "-m", "transduce", "train", "--out", str(run), *sets, *(["--resume"] if resume else [])]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def _last_step(run: Path) -> int:
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


# --- faults ---

Change = Callable[[Loss], Loss]


def _poison(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * math.nan


def _gradient_only(loss: Loss) -> Loss:
    total = loss.total * 1.0
    total.register_hook(_poison)
    return loss._replace(total=total)


FAULTS: dict[str, Change] = {
    "NaN": lambda loss: loss._replace(total=loss.total + math.nan),
    "+inf": lambda loss: loss._replace(total=loss.total + math.inf),
    "-inf": lambda loss: loss._replace(total=loss.total - math.inf),
    "gradient only": _gradient_only,
    "loss x 100": lambda loss: loss._replace(total=loss.total * 100.0),
}


def measure_faults(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Inject ten faults into a real run, in both precisions."""
    folder.mkdir()
    small = {"model.d_model": 32, "model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    settings = demo_settings(folder, 1_000) | small | {"training.report_every": 1, "training.batch_tokens": 400}
    for precision in ("fp32",) if quick else ("fp32", "bf16"):
        run = folder / precision
        steps = _train_with_faults(run, settings | {"training.steps": 60, "training.precision": precision})
        skipped = [event["step"] for event in metrics(run) if event.get("skipped")]
        newest, _ = load_newest(run / "checkpoints")
        assert newest is not None
        tensors = [tensor for kind in newest.tensors.values() for tensor in kind.values()]
        bad = sum(int((~tensor.isfinite()).sum()) for tensor in tensors)
        texts = [json.loads(path.read_bytes())["micro_batches"] for path in sorted((run / "faults").iterdir())]
        yield Row(f"faults, {precision}: numbers contaminated", bad, "numbers", bar="0", holds=bad == 0)
        yield Row(
            f"faults, {precision}: steps skipped", len(skipped), "steps", bar=f"{len(steps)}", holds=skipped == steps
        )
        with_text = sum(bool(parts and parts[0]["source"]) for parts in texts)
        yield Row(
            f"faults, {precision}: batches with text",
            with_text,
            "files",
            bar=f"{len(steps)}",
            holds=with_text == len(steps),
        )


def _train_with_faults(run: Path, settings: dict[str, Any]) -> list[int]:
    """Train with a fault in the loss of every fifth step from the tenth on, and return the numbers of these steps."""
    steps = list(range(10, 60, 5))
    original, calls, faulty = TranslationObjective.loss, 0, set[bytes]()

    def loss(objective: TranslationObjective, batch: Any) -> Loss:
        nonlocal calls
        found = original(objective, batch)
        if not torch.is_grad_enabled() or batch.indices[0] < 0:
            return found
        is_repeated = batch.indices.tobytes() in faulty
        calls += not is_repeated
        if calls in steps:
            faulty.clear()
            faulty.add(batch.indices.tobytes())
            return list(FAULTS.values())[steps.index(calls) % len(FAULTS)](found)
        return found

    with mock.patch.object(TranslationObjective, "loss", loss):
        train(out=run, settings=settings, device="cpu", threads=1)
    return steps


# --- memory ---


def measure_memory(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Compare the process's resident memory after a fifth of the steps and after all of them."""
    folder.mkdir()
    steps = 1_000 if quick else 10_000
    small = {"model.d_model": 16, "model.d_ff": 16, "model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    intervals = {"training.validate_every": steps // 20, "training.save_every": steps // 20, "training.patience": 0}
    settings = (
        demo_settings(folder, 1_000) | small | intervals | {"training.steps": steps, "training.batch_tokens": 100}
    )
    found: list[float] = []
    original, calls = TranslationObjective.loss, 0

    def loss(objective: TranslationObjective, batch: Any) -> Loss:
        nonlocal calls
        if torch.is_grad_enabled() and batch.indices[0] >= 0:
            calls += 1
            if calls in (steps // 5, steps):
                found.append(_resident_mib())
        return original(objective, batch)

    with mock.patch.object(TranslationObjective, "loss", loss):
        train(out=folder / "run", settings=settings, device="cpu", threads=1)
    growth = found[1] - found[0]
    name = f"memory: growth from step {steps // 5:,} to {steps:,}"
    yield Row(name, growth, "MiB", bar=f"<= {GROWTH_MIB:g} MiB", holds=growth <= GROWTH_MIB)


def _resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=("resume", "seek", "preemption", "faults", "memory"))
    args = options.parse_args()
    sys.stderr.write(f"{machine()}\n")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], Iterator[Row]]] = {
            "resume": lambda: measure_resume(folder / "resume", quick=args.quick),
            "seek": measure_seek,
            "preemption": lambda: measure_preemption(folder / "preemption", quick=args.quick),
            "faults": lambda: measure_faults(folder / "faults", quick=args.quick),
            "memory": lambda: measure_memory(folder / "memory", quick=args.quick),
        }
        for part in args.only or parts:
            rows += parts[part]()
    return report(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
