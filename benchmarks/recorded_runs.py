"""Record training runs from which `transduce train --estimate-score` predicts final scores.

    python benchmarks/recorded_runs.py --runs DIR               # trains what is missing in DIR: hours on one core
    python benchmarks/recorded_runs.py --runs DIR --collect     # writes the table that comes with the package
    python benchmarks/recorded_runs.py --test                   # estimates of the held-out runs of the table

Corpora are read from $TRANSDUCE_DATA. Runs of a held-out corpus only test the estimate.
"""

import argparse
import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from safetensors import safe_open

import transduce
from transduce.data.prepared import PreparedCorpus
from transduce.training.run_estimate import (
    RECORDS,
    CurvePoint,
    RecordedRun,
    earlier_point,
    estimate_score,
    read_records,
)

# By the name of the corpus: the folder in $TRANSDUCE_DATA, n if only every n-th line of the training text is used, and
# the steps of each run.
M30, TATOEBA, AMERICAS = "multi30k-en-de/raw", "tatoeba-de-en", "americasnlp-es"
FITTED = {
    "m30-en-de": (M30, 1, (200, 1000, 1600)),
    "m30-de-en": (M30, 1, (400,)),
    "m30-en-de-3": (M30, 3, (400,)),
    "tat-de-en": (TATOEBA, 1, (2535,)),
    "tat-en-de-8": (TATOEBA, 8, (400,)),
    "tat-zh-en": ("tatoeba-zh-en", 1, (2400,)),
    **{f"es-{code}": (f"{AMERICAS}/es-{code}", 1, steps) for code, steps in (("tar", (200, 400)), ("bzd", (300,)))},
}
HELD_OUT = {
    "m30-en-cs": ("multi30k-en-cs/raw", 1, (400, 1600)),
    "m30-cs-en": ("multi30k-en-cs/raw", 1, (400,)),
    **{f"es-{code}": (f"{AMERICAS}/es-{code}", 1, (400,)) for code in ("aym", "hch", "shp")},
    "es-cni": (f"{AMERICAS}/es-cni", 1, (300,)),
}


def read(folder: Path, name: str) -> list[str]:
    """Return the lines of a corpus file; the English of Multi30k's English-Czech is in the folder of English-German."""
    path = folder / f"{name}.gz"
    if not path.exists():
        path = Path(str(path).replace("multi30k-en-cs", "multi30k-en-de"))
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


def write_side(text: Path, folder: Path, names: tuple[str, str], every: int) -> str:
    """Write every n-th line of a file as plain text; return its path."""
    source, target = names
    path = text / target
    path.write_text("\n".join(read(folder, source)[::every]) + "\n", encoding="utf-8", newline="\n")
    return str(path)


def train(data: Path, name: str, steps: int, out: Path) -> None:
    """Train one run on one thread unless it is finished; an interrupted run is resumed."""
    if (out / "dev_score.json").exists():
        return
    folder, every, _ = (FITTED | HELD_OUT)[name]
    parts = name.split("-")
    languages = (parts[0], parts[1]) if AMERICAS in folder else (parts[1], parts[2])
    with tempfile.TemporaryDirectory() as scratch:
        sides: dict[str, Any] = {}
        for side, code in zip(("source", "target"), languages, strict=True):
            sides[side] = write_side(Path(scratch), data / folder, (f"train.{code}",) * 2, every)
            dev = "val" if "m30" in name else "dev"
            if AMERICAS not in folder:  # its dev sets have other sources, so a part of the pairs is held out
                sides[f"dev_{side}"] = write_side(Path(scratch), data / folder, (f"{dev}.{code}", f"dev.{code}"), 1)
        transduce.train(
            **sides, languages=languages, out=out, steps=steps, preset="tiny", threads=1, resume=out.exists()
        )


def record_of(folder: Path, corpus: str, *, held_out: bool) -> RecordedRun:
    """Return the record of a finished run."""
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    validations = [event for event in events if event["event"] == "validation"]
    last = next(event for event in reversed(events) if event["event"] == "train")
    with safe_open(folder / "model.safetensors", "pt") as weights:
        parameters = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    return RecordedRun(
        corpus=corpus,
        steps=validations[-1]["step"],
        pairs=PreparedCorpus.open(folder / "corpus").pairs,
        epochs=round(last["epoch"] * validations[-1]["step"] / last["step"], 3),
        parameters=parameters,
        points=tuple(
            CurvePoint(each["step"], round(each["loss"], 4), round(each["bleu"], 2), round(each["chrf"], 2))
            for each in validations
        ),
        bleu=round(json.loads((folder / "dev_score.json").read_bytes())["bleu"]["value"], 2),
        held_out=held_out,
    )


def test_estimates(share: float) -> int:
    """Print an estimate for each held-out run, from the validation nearest to a share of its steps; return the hits."""
    hits = 0
    for run in read_records():
        if not run.held_out:
            continue
        point = min(run.points[1:], key=lambda each: abs(each.step - share * run.steps))
        earlier = earlier_point(run.points, point.step)
        assert earlier is not None
        found = estimate_score(earlier, point, run.steps)
        hit = found.low <= run.bleu <= found.high
        hits += hit
        result = "" if hit else ", missed"
        print(
            f"{run.corpus:12} step {point.step:5,} of {run.steps:5,}: BLEU {point.bleu:5.2f} so far, "
            f"estimate {found.bleu:5.1f} ({found.low:.1f} to {found.high:.1f}), reached {run.bleu:.1f}{result}"
        )
    return hits


def main() -> int:
    """Train, collect or test, as the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the runs, named CORPUS.STEPS")
    parser.add_argument("--collect", action="store_true", help="write the table from finished runs")
    parser.add_argument("--test", action="store_true", help="estimate the held-out runs of the table")
    parser.add_argument("--share", type=float, default=0.25, help="the share of a run that is probed (--test)")
    options = parser.parse_args()
    if options.test:
        test_estimates(options.share)
        return 0
    wanted = [(name, steps, name in HELD_OUT) for name, (_, _, each) in (FITTED | HELD_OUT).items() for steps in each]
    if not options.collect:
        data = Path(os.environ.get("TRANSDUCE_DATA", Path(__file__).parents[2] / "shared" / "data"))
        for name, steps, _ in wanted:
            train(data, name, steps, options.runs / f"{name}.{steps}")
    folders = [(options.runs / f"{name}.{steps}", name, held_out) for name, steps, held_out in wanted]
    records = [record_of(*each[:2], held_out=each[2]) for each in folders if (each[0] / "dev_score.json").exists()]
    RECORDS.write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, records)) + b"\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
