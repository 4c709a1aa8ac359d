"""Reproduce the paper's Table 3, scaled down for a laptop: the effect of each change of the base model.

    python benchmarks/table3.py                   # 20 models, about two hours of two cores
    python benchmarks/table3.py --rows base big
    python benchmarks/table3.py --quick

Multi30k, English to German as in the paper. All widths are a quarter of the paper's, with half as many layers (base:
3+3 × 128, feed-forward 512, 8 heads of 16). Training: post-norm, Adam, the paper's schedule with 400 warm-up steps, no
averaging, 8,000 tokens, 1,500 steps of 2,048 target tokens (`big`: three times as many, as in the paper). Figures are
on dev, as the paper's: perplexity per token, and BLEU (beam 4). The peer is the paper. Complete runs are not repeated.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from report import REPOSITORY, Row, data_folder, machine, parser, report

BASE: dict[str, str | float] = {
    "model.num_encoder_layers": 3,
    "model.num_decoder_layers": 3,
    "model.d_model": 128,
    "model.d_ff": 512,
    "model.num_heads": 8,
    "model.dropout": 0.1,
    "tokenizer.vocabulary_size": 8000,
    "training.batch_tokens": 2048,
    "training.optimizer": "adam",
    "training.schedule": "inverse-sqrt",
    "training.warmup_steps": 400,
    "training.label_smoothing": 0.1,
    "training.average_checkpoints": 0,
    "training.save_every": 500,
    "training.average_decay": 0,
    "training.best_by": "loss",
    "training.patience": 0,
}
BIG: dict[str, str | float] = {"model.d_model": 256, "model.d_ff": 1024, "model.num_heads": 16, "model.dropout": 0.3}


class Change(NamedTuple):
    """A row of the table: the changed settings, and the paper's figures."""

    settings: dict[str, str | float]
    perplexity: float
    bleu: float


ROWS = {
    "base": Change({}, 4.92, 25.8),
    "A: 1 head": Change({"model.num_heads": 1}, 5.29, 24.9),
    "A: 4 heads": Change({"model.num_heads": 4}, 5.00, 25.5),
    "A: 16 heads": Change({"model.num_heads": 16}, 4.91, 25.8),
    "A: 32 heads": Change({"model.num_heads": 32}, 5.01, 25.4),
    "B: keys a quarter as wide": Change({"model.d_k": 4}, 5.16, 25.1),
    "B: keys half as wide": Change({"model.d_k": 8}, 5.01, 25.4),
    "C: a third of the layers": Change({"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}, 6.11, 23.7),
    "C: two thirds of the layers": Change({"model.num_encoder_layers": 2, "model.num_decoder_layers": 2}, 5.19, 25.3),
    "C: four thirds of the layers": Change({"model.num_encoder_layers": 4, "model.num_decoder_layers": 4}, 4.88, 25.5),
    "C: half of d_model": Change({"model.d_model": 64, "model.d_k": 8, "model.d_v": 8}, 5.75, 24.5),
    "C: twice d_model": Change({"model.d_model": 256, "model.d_k": 32, "model.d_v": 32}, 4.66, 26.0),
    "C: half of d_ff": Change({"model.d_ff": 256}, 5.12, 25.4),
    "C: twice d_ff": Change({"model.d_ff": 1024}, 4.75, 26.2),
    "D: dropout 0": Change({"model.dropout": 0.0}, 5.77, 24.6),
    "D: dropout 0.2": Change({"model.dropout": 0.2}, 4.95, 25.5),
    "D: no label smoothing": Change({"training.label_smoothing": 0.0}, 4.67, 25.3),
    "D: label smoothing 0.2": Change({"training.label_smoothing": 0.2}, 5.47, 25.7),
    "E: learned positions": Change({"model.positions": "learned", "model.max_positions": 256}, 4.92, 25.7),
    "big": Change(BIG, 4.33, 26.4),
}
QUICK = ("base", "C: a third of the layers")
_STEPS_OF_BIG = 3  # multiple of the other rows' steps


def train(name: str, out: Path, steps: int) -> tuple[float, float]:
    """Train the model of a row, and return its perplexity and BLEU on dev."""
    folder = out / name.replace(" ", "-").replace(":", "")
    settings = BASE | ROWS[name].settings
    # Equation (3): width and warm-up determine the peak learning rate.
    rate = (float(settings["model.d_model"]) * float(settings["training.warmup_steps"])) ** -0.5
    command = [sys.executable, "-m", "transduce", "train", "--preset", "paper-base", "--out", str(folder), "--resume"]
    for option, part in (
        ("source", "train.en"),
        ("target", "train.de"),
        ("dev-source", "val.en"),
        ("dev-target", "val.de"),
    ):
        command += [f"--{option}", str(data_folder() / "multi30k-en-de" / "raw" / f"{part}.gz")]
    command += ["--steps", str(steps * (_STEPS_OF_BIG if name == "big" else 1)), "--threads", "1"]
    for key, value in (settings | {"training.learning_rate": rate}).items():
        command += ["--set", f"{key}={value}"]
    if not (folder / "dev_score.json").exists():
        out.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".log").open("w", encoding="utf-8") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)
    score = json.loads((folder / "dev_score.json").read_text(encoding="utf-8"))
    return min(_perplexities(folder)), float(score["bleu"]["value"])


def _perplexities(folder: Path) -> Iterator[float]:
    """Yield the perplexity of each validation; the best model has the lowest."""
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "validation":
            yield float(event["perplexity"])


def main() -> int:
    """Train all rows, and report their figures next to the paper's."""
    options = parser(__doc__)
    options.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    options.add_argument("--steps", type=int, default=1500)
    options.add_argument("--jobs", type=int, default=2, help="number of models trained concurrently, one thread each")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "table3")
    args = options.parse_args()
    print(machine())
    names, steps = (QUICK, 150) if args.quick else (args.rows, args.steps)
    with ThreadPoolExecutor(args.jobs) as pool:
        found = dict(zip(names, pool.map(lambda name: train(name, args.out / str(steps), steps), names), strict=True))
    rows = []
    for name, (perplexity, bleu) in found.items():
        rows.append(Row(f"{name}, perplexity", perplexity, "", peer="the paper's", peer_value=ROWS[name].perplexity))
        rows.append(Row(f"{name}, BLEU", bleu, "on dev", peer="the paper's", peer_value=ROWS[name].bleu))
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
