"""Compare character language models of Tiny Shakespeare with `transformers`' GPT2LMHeadModel: loss and training time.

    python benchmarks/character_lm.py            # 2,000 steps of both, minutes
    python benchmarks/character_lm.py --quick    # 200 steps of both, without bars

The setting is nanoGPT's for a CPU: 4 layers x 128, 4 heads, 12 windows of 64 characters per step, no dropout. The last
tenth of the text is the validation set. Ours is `transduce train --task language-model` with default settings
otherwise. The peer has the same shape and a plain loop with AdamW at a learning rate of 1e-3, in a separate
environment. Times exclude validation. Both use the same number of threads. Bars: a validation loss of at most 1.88, in
less time.
"""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from environments import peer_python
from report import Row, data_folder, machine, parser, report
from training_speed import MARIAN

from transduce.machine import detect_machine

BAR_LOSS = 1.88
CONTEXT, WINDOWS = 64, 12


def run_ours(text: Path, folder: Path, *, steps: int, threads: int, seed: int) -> dict[str, float]:
    """Train with `transduce train`, and return the loss and time that the run reports."""
    settings = {
        "tokenizer.kind": "character",
        "task.context": CONTEXT,
        "training.batch_tokens": CONTEXT * WINDOWS,
        "training.validate_every": steps,
        "training.save_every": steps,
        "model.num_decoder_layers": 4,
        "model.d_model": 128,
        "model.num_heads": 4,
        "model.dropout": 0.0,
    }
    command = [sys.executable, "-m", "transduce", "train", "--task", "language-model", "--source", str(text)]
    command += ["--out", str(folder), "--steps", str(steps), "--threads", str(threads), "--seed", str(seed)]
    command += ["--device", "cpu", *(f"--set={name}={value}" for name, value in settings.items())]
    subprocess.run(command, check=True, stdout=sys.stderr)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    trained = [event for event in events if event["event"] == "train"][-1]
    validated = [event for event in events if event["event"] == "validation"][-1]
    return {
        "loss": validated["loss"],
        "seconds": trained["elapsed_seconds"],
        "bits_per_character": validated["scores"]["bits_per_character"],
    }


def run_peer(text: Path, *, steps: int, threads: int, seed: int) -> dict[str, float]:
    """Train GPT2LMHeadModel in its environment, and return its loss and time."""
    plan = {"text": str(text), "context": CONTEXT, "windows": WINDOWS, "steps": steps, "threads": threads, "seed": seed}
    python = str(peer_python("marian", MARIAN))
    script = Path(__file__).with_name("character_lm_peer.py")
    done = subprocess.run([python, str(script), json.dumps(plan)], check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.strip().split("\n")[-1])
    return result


def make_rows(ours: dict[str, float], peer: dict[str, float], *, steps: int, judged: bool) -> list[Row]:
    """Return rows with both figures next to the peer's; bars only for a full run."""
    name, other = f"tiny Shakespeare by character, {steps:,} steps", "transformers GPT2LMHeadModel"
    return [
        Row(
            f"{name}: validation loss",
            ours["loss"],
            "nats per character",
            peer=other,
            peer_value=peer["loss"],
            ratio=ours["loss"] / peer["loss"],
            bar=f"at most {BAR_LOSS}" if judged else None,
            holds=ours["loss"] <= BAR_LOSS if judged else None,
        ),
        Row(f"{name}: bits a character", ours["bits_per_character"], "bits"),
        Row(
            f"{name}: training",
            ours["seconds"],
            "s",
            peer=other,
            peer_value=peer["seconds"],
            ratio=ours["seconds"] / peer["seconds"],
            bar="less time than the peer" if judged else None,
            holds=ours["seconds"] < peer["seconds"] if judged else None,
        ),
    ]


def main() -> int:
    """Train both and report."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--threads", type=int, help="threads of both (default: all cores)")
    args = options.parse_args()
    steps = 200 if args.quick else args.steps
    threads = detect_machine("cpu", args.threads).threads
    print(f"{machine()}; {threads} threads", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "input.txt"
        text.write_bytes(gzip.decompress((data_folder() / "tinyshakespeare" / "input.txt.gz").read_bytes()))
        peer = run_peer(text, steps=steps, threads=threads, seed=args.seed)
        ours = run_ours(text, Path(name) / "model", steps=steps, threads=threads, seed=args.seed)
    return report(make_rows(ours, peer, steps=steps, judged=not args.quick), args.json)


if __name__ == "__main__":
    sys.exit(main())
