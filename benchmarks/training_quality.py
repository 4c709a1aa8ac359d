"""Is the fast path as good as plain float32? Multi30k English to German, the same steps and seeds in both.

    python benchmarks/training_quality.py                  # 2,000 steps, three seeds, both precisions
    python benchmarks/training_quality.py --seeds 2        # one of them; a run that was cut is resumed
    python benchmarks/training_quality.py --emulate        # bfloat16 on a processor without instructions for it
    python benchmarks/training_quality.py --quick          # 40 steps, one seed

The fast path is what `transduce train` chooses on this machine: its precision, and kernels of our own. The plain one
has PyTorch's kernels. Where the machine has nothing faster than float32 there is nothing to compare, but
`emulated_bf16.py` can tell what bfloat16 would do. The loss is that of the last validation, of the averaged weights, on
all of dev; BLEU is that of its translations by beam search.
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
    """A finished run, on dev."""

    loss: float
    bleu: float


def train(out: Path, seed: int, precision: str, steps: int, *, emulate: bool) -> Outcome:
    """One run, unless it is finished; resumed where it was cut."""
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
    """Trains both ways, and compares."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options.add_argument("--steps", type=int, default=STEPS)
    options.add_argument("--emulate", action="store_true", help="bfloat16 by float32, for its quality")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "training-quality")
    said = options.parse_args()
    print(machine(), file=sys.stderr)
    fast = "bf16" if said.emulate else detect_machine("cpu").precision
    if fast == PLAIN:
        print("Nothing is faster than fp32 on this machine: there is nothing to compare.", file=sys.stderr)
        return report([], said.json)
    seeds, steps = (said.seeds[:1], 40) if said.quick else (said.seeds, said.steps)
    out = said.out / f"{steps}-steps"
    found = {
        precision: [
            train(out / f"{precision}-{seed}", seed, precision, steps, emulate=said.emulate and precision != PLAIN)
            for seed in seeds
        ]
        for precision in (fast, PLAIN)
    }
    ours, plain = (Outcome(mean([o.loss for o in f]), mean([o.bleu for o in f])) for f in found.values())
    difference = abs(ours.loss / plain.loss - 1.0)
    judged, form = not said.quick, f"{fast}, emulated" if said.emulate else fast
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
    return report(rows, said.json)


if __name__ == "__main__":
    raise SystemExit(main())
