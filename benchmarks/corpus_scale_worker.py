"""One process of corpus_scale.py: the first batch, seeks and the memory of training on a prepared corpus, as JSON."""

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console

from transduce.data.batches import BatchPlan
from transduce.model.transformer import Transformer
from transduce.runtime.machine import detect_machine
from transduce.tasks.corpus import use_prepared
from transduce.tasks.precautions import micro_batch_tokens, take_precautions
from transduce.tasks.resolve import Account, resolve_model, resolve_training
from transduce.tasks.settings import make_settings
from transduce.tasks.translation import TranslationTask
from transduce.training.events import ProgressDisplay
from transduce.training.loop import Trainer


def main(folder: str, steps: int, seeks: int) -> None:
    """Measures, and prints one line."""
    torch.set_num_threads(1)
    settings = make_settings(
        {"preset": "tiny", "training": {"steps": steps, "validate_every": steps, "save_every": steps}}
    )
    machine, display = detect_machine("cpu", 1), ProgressDisplay(Console(stderr=True, quiet=True))
    run = tempfile.TemporaryDirectory()
    started_at = time.monotonic()
    corpus = use_prepared(settings, Path(folder), Path(run.name), display)
    config = resolve_model(settings, "tiny", corpus.tokenizer, Account())
    training = resolve_training(
        settings,
        config,
        machine,
        pairs=corpus.pairs,
        epoch_tokens=corpus.target_tokens,
        account=Account(),
    )
    plan = BatchPlan(corpus.prepared, batch_tokens=micro_batch_tokens(training), seed=training.seed)
    plan.batch(0, 0)
    first_batch_seconds = time.monotonic() - started_at
    places = random.Random(1)
    durations = []
    for _ in range(seeks):
        epoch, position = places.randrange(5), places.randrange(len(plan))
        sought_at = time.monotonic()
        plan.batch(epoch, position)
        durations.append(time.monotonic() - sought_at)
    model = Transformer(config)
    task = TranslationTask(model, label_smoothing=training.label_smoothing)
    with run:
        Trainer(
            model=model,
            loss=task.loss,
            batches=plan,
            settings=training,
            folder=Path(run.name),
            display=display,
            precautions=take_precautions(machine, corpus, training),
        ).run()
    found = {
        "first_batch_seconds": first_batch_seconds,
        "median_seek_seconds": statistics.median(durations),
        "slowest_seek_seconds": max(durations),
        "memory_mebibytes": resident_mebibytes(),
    }
    print(json.dumps(found))


def resident_mebibytes() -> float:
    """This process' memory as it is now."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").split("\n")
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
