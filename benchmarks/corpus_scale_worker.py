"""Measure the first batch, seeks and memory of training on a prepared corpus, in one process of corpus_scale.py.

Prints the figures as JSON.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from transduce.kernels.select import kernels_for_training
from transduce.model.backend import using_backend
from transduce.model.build import build_model
from transduce.tasks.run.run import Run, RunRequest, make_safeguards
from transduce.training.loop import Trainer


def main(folder: str, steps: int, seeks: int) -> None:
    """Train, measure, and print one line."""
    training = {"steps": steps, "validate_every": steps, "save_every": steps}
    settings = {"preset": "tiny", "data": {"prepared": folder}, "training": training}
    out = tempfile.TemporaryDirectory()
    run = Run(RunRequest(settings=settings, out=Path(out.name), device="cpu", threads=1))
    started_at = time.monotonic()
    resolved, corpus = run.start(Path(out.name))
    plan = run.kind.plan(corpus, resolved)
    plan.batch(0, 0)
    first_batch_seconds = time.monotonic() - started_at
    generator = random.Random(1)
    durations = []
    for _ in range(seeks):
        epoch, position = generator.randrange(5), generator.randrange(len(plan))
        sought_at = time.monotonic()
        plan.batch(epoch, position)
        durations.append(time.monotonic() - sought_at)
    model = build_model(resolved.model)
    with out, using_backend(kernels_for_training(resolved.training.kernels, "cpu")):
        Trainer(
            model=model,
            loss=run.kind.loss(model, resolved),
            batches=plan,
            settings=resolved.training,
            folder=Path(out.name),
            display=run.display,
            safeguards=make_safeguards(run.machine, run.kind.largest_batches(corpus, resolved), corpus.describe),
        ).run()
    found = {
        "first_batch_seconds": first_batch_seconds,
        "median_seek_seconds": statistics.median(durations),
        "slowest_seek_seconds": max(durations),
        "memory_mebibytes": resident_mebibytes(),
    }
    print(json.dumps(found))


def resident_mebibytes() -> float:
    """Return the current resident memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").split("\n")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
