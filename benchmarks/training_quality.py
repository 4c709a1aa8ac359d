"""Compare the fast training path with plain float32: Multi30k English to German, the same steps and seeds.

    python benchmarks/training_quality.py                  # 2,000 steps, three seeds, both precisions
    python benchmarks/training_quality.py --seeds 2        # one seed; an interrupted run is resumed
    python benchmarks/training_quality.py --emulate        # emulated bfloat16, for processors without its instructions
    python benchmarks/training_quality.py --quick          # 40 steps, one seed

The fast path is the default on this machine: its precision, and transduce's kernels. The peer is float32 with PyTorch's
kernels. On machines without a faster precision there is nothing to compare, except with `emulated_bf16.py`. The loss is
of the last validation with averaged weights on all of dev; BLEU is of its translations by beam search. Bar: losses
within 1 %.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from report import REPOSITORY, Row, data_folder, machine, mean, parser, report

from transduce.machine import detect_machine
from transduce.text.files import read_lines

SEEDS = (1, 2, 3)
STEPS = 2000
BAR = 0.01
PLAIN = "fp32"


class Outcome(NamedTuple):
    """The results of a finished run on dev."""

    loss: float
    bleu: float


def train(out: Path, seed: int, precision: str, steps: int, *, emulate: bool) -> Outcome:
    """Run a training unless it is finished, resuming an interrupted run, and return its results."""
    if not (out / "dev_score.json").exists():
        tok = data_folder() / "multi30k-en-de" / "tok"
        files = {"source": "train.en", "target": "train.de", "dev-source": "val.en", "dev-target": "val.de"}
        program = [str(Path(__file__).with_name("emulated_bf16.py"))] if emulate else ["-m", "transduce"]
        command = [sys.executable, *program, "train", "--out", str(out), "--resume", "--seed", str(seed)]
        for option, name in files.items():
            command += [f"--{option}", str(tok / f"{name}.gz")]
        settings = {"preset": "tiny", "tokenizer.vocabulary_size": 10000, "training.precision": precision}
        if precision == PLAIN:
            settings["training.kernels"] = "torch"
        for name, value in (settings | {"training.best_by": "loss"}).items():
            command += ["--set", f"{name}={value}"]
        subprocess.run([*command, "--steps", str(steps)], check=True)
    events = [json.loads(line) for line in read_lines(out / "metrics.jsonl")]
    last = [event for event in events if event["event"] == "validation"][-1]
    score = json.loads((out / "dev_score.json").read_text(encoding="utf-8"))
    return Outcome(last["loss"], score["bleu"]["value"])


def main() -> int:
    """Train with both paths and compare."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options.add_argument("--steps", type=int, default=STEPS)
    options.add_argument("--emulate", action="store_true", help="emulate bfloat16 by float32, to measure its quality")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "training-quality")
    args = options.parse_args()
    print(machine(), file=sys.stderr)
    fast = "bf16" if args.emulate else detect_machine("cpu").precision
    if fast == PLAIN:
        print("Nothing is faster than fp32 on this machine: there is nothing to compare.", file=sys.stderr)
        return report([], args.json)
    seeds, steps = (args.seeds[:1], 40) if args.quick else (args.seeds, args.steps)
    out = args.out / f"{steps}-steps"
    found = {
        precision: [
            train(out / f"{precision}-{seed}", seed, precision, steps, emulate=args.emulate and precision != PLAIN)
            for seed in seeds
        ]
        for precision in (fast, PLAIN)
    }
    ours, plain = (Outcome(mean([o.loss for o in f]), mean([o.bleu for o in f])) for f in found.values())
    difference = abs(ours.loss / plain.loss - 1.0)
    judged, form = not args.quick, f"{fast}, emulated" if args.emulate else fast
    rows = [
        Row(
            f"Multi30k en-de after {steps:,} steps, dev loss",
            ours.loss,
            f"nats/token in {form}",
            peer=PLAIN,
            peer_value=plain.loss,
            ratio=ours.loss / plain.loss,
            bar=f"within {BAR:.0%}" if judged else None,
            holds=difference <= BAR if judged else None,
        ),
        Row(f"Multi30k en-de after {steps:,} steps, dev", ours.bleu, f"BLEU in {form}", PLAIN, plain.bleu),
    ]
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
