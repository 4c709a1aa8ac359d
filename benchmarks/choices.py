"""Check the settings that `transduce train` chooses by default, with a small sweep around them, on dev.

    python benchmarks/choices.py --corpus zh-en            # 24,492 pairs
    python benchmarks/choices.py --corpus de-en --minutes 45
    python benchmarks/choices.py --corpus 300              # 300 evenly spaced pairs of zh-en
    python benchmarks/choices.py --quick

Each variant changes one setting (with the batch size, also the learning rate by about its square root). Its number of
steps gives the same number of operations as the default run, so results do not depend on the machine's load. Some
defaults depend on the time limit, which `--minutes` sets. Bar: the default settings are within 0.5 BLEU of the best
variant on dev (beam 4). Complete runs are not repeated.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

from report import REPOSITORY, Row, data_folder, machine, parser, report

from transduce.training.choices import PRESETS, count_multiplied_weights

VARIANTS: dict[str, dict[str, str]] = {
    "chosen": {},
    "adam": {"training.optimizer": "=adam"},
    "half the learning rate": {"training.learning_rate": "0.5"},
    "twice the learning rate": {"training.learning_rate": "2"},
    "half the batch": {"training.batch_tokens": "0.5", "training.learning_rate": "0.7"},
    "twice the batch": {"training.batch_tokens": "2", "training.learning_rate": "1.4"},
    "four times the batch": {"training.batch_tokens": "4", "training.learning_rate": "2"},
    "no dropout": {"model.dropout": "=0.0"},
    "dropout 0.05": {"model.dropout": "=0.05"},
    "dropout 0.1": {"model.dropout": "=0.1"},
    "dropout 0.2": {"model.dropout": "=0.2"},
    "dropout 0.3": {"model.dropout": "=0.3"},
    "dropout 0.4": {"model.dropout": "=0.4"},
    "no weight decay": {"training.weight_decay": "=0.0"},
    "weight decay 0.1": {"training.weight_decay": "=0.1"},
    "weight decay 0.3": {"training.weight_decay": "=0.3"},
    "weight decay 1": {"training.weight_decay": "=1.0"},
    "half the vocabulary": {"tokenizer.vocabulary_size": "0.5"},
    "twice the vocabulary": {"tokenizer.vocabulary_size": "2"},
    "preset tiny": {"preset": "=tiny"},
    "preset small": {"preset": "=small"},
}
_REFUSED = 2  # the exit code of a mistake in the settings
QUICK = ("chosen", "half the learning rate")


def corpus_files(name: str, work: Path) -> dict[str, str]:
    """Return the options that name the corpus's files."""
    if name != "300":
        folder = data_folder() / f"tatoeba-{name}"
        source, target = name.split("-")
        parts = {"source": ("train", source), "target": ("train", target)}
        parts |= {"dev-source": ("dev", source), "dev-target": ("dev", target)}
        return {option: str(folder / f"{part}.{side}.gz") for option, (part, side) in parts.items()}
    files = corpus_files("zh-en", work)
    work.mkdir(parents=True, exist_ok=True)
    for option, side in (("source", "zh"), ("target", "en")):
        with gzip.open(files[option], "rt", encoding="utf-8", newline="\n") as file:
            lines = file.readlines()
        few = work / f"few.{side}"
        few.write_text("".join(lines[:: len(lines) // 300][:300]), encoding="utf-8", newline="\n")
        files[option] = str(few)
    return files


def chosen_values(files: dict[str, str], work: Path, minutes: float | None) -> tuple[str, dict[str, float]]:
    """Return the preset and numbers chosen for this corpus, from the choice log of a dry run."""
    limit = ["--minutes", str(minutes)] if minutes else []
    command = [*train_command(files, work / "dry"), "--dry-run", *limit]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    preset, values = "", {}
    for line in log.splitlines():
        words = line.split()
        if words[:1] == ["preset"]:
            preset = words[1]
        elif len(words) >= 2 and "." in words[0]:
            try:
                values[words[0]] = float(words[1].replace(",", ""))
            except ValueError:
                continue
    return preset, values


def arithmetic(values: dict[str, float], preset: str, optimizer: str) -> float:
    """Return the number of multiplications of a step, assuming as many source as target tokens.

    The backward pass costs twice the forward pass. Muon's orthogonalization adds three polynomials per matrix
    (`training/muon.py`).
    """
    sizes = PRESETS[preset]
    weights = count_multiplied_weights(sizes, int(values["tokenizer.vocabulary_size"]))
    passes = 3 * weights * values["training.batch_tokens"]
    if optimizer != "muon":
        return passes

    def orthogonalize(columns: int) -> int:
        rows = sizes.d_model
        if columns > 2 * rows:  # by the Gram matrix
            return 2 * rows**2 * columns + 9 * rows**3
        return 3 * (2 * rows**2 * columns + rows**3)

    layers = sizes.num_encoder_layers + sizes.num_decoder_layers
    attention = 4 * (layers + sizes.num_decoder_layers) * orthogonalize(sizes.d_model)
    return passes + attention + 2 * layers * orthogonalize(sizes.d_ff)


def train_command(files: dict[str, str], out: Path) -> list[str]:
    """Return the command `transduce train` with the corpus."""
    command = [sys.executable, "-m", "transduce", "train", "--out", str(out)]
    for option, path in files.items():
        command += [f"--{option}", path]
    return command


def run_variant(
    changes: dict[str, str], chosen: tuple[str, dict[str, float]], files: dict[str, str], out: Path, steps: int
) -> tuple[float, int] | None:
    """Return a variant's dev BLEU and number of steps, or None if the command rejects its settings.

    "=x" in `changes` sets a value, "0.5" multiplies the default.
    """
    usual_preset, usual = chosen
    values, preset, options = dict(usual), changes.get("preset", f"={usual_preset}")[1:], []
    for name, change in changes.items():
        if name == "preset":
            continue
        if name not in usual:  # a word
            options += ["--set", f"{name}{change}"]
            continue
        values[name] = float(change[1:]) if change.startswith("=") else usual[name] * float(change)
        whole = name in ("tokenizer.vocabulary_size", "training.batch_tokens")
        options += ["--set", f"{name}={int(values[name]) if whole else values[name]}"]
    optimizer = changes.get("training.optimizer", "=muon")[1:]
    own_steps = round(steps * arithmetic(usual, usual_preset, "muon") / arithmetic(values, preset, optimizer))
    if not (out / "dev_score.json").exists():
        command = [*train_command(files, out), "--resume", "--preset", preset, "--steps", str(own_steps), *options]
        done = subprocess.run(command, check=False)
        if done.returncode == _REFUSED:  # for example, a vocabulary too small for the characters
            return None
        done.check_returncode()
    return float(json.loads((out / "dev_score.json").read_text(encoding="utf-8"))["bleu"]["value"]), own_steps


def main() -> int:
    """Run the variants, and report how far the default is from the best."""
    options = parser(__doc__)
    options.add_argument("--corpus", choices=("300", "zh-en", "de-en"), default="zh-en")
    options.add_argument("--steps", type=int, default=3200, help="training steps with the default settings")
    options.add_argument(
        "--minutes", type=float, help="the time limit for `transduce train`, which affects its choices"
    )
    options.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "choices")
    args = options.parse_args()
    print(machine())
    steps = 100 if args.quick else args.steps
    work = args.out / f"{args.corpus}-{steps}{f'-{args.minutes:g}min' if args.minutes else ''}"
    files = corpus_files(args.corpus, work)
    chosen = chosen_values(files, work, args.minutes)
    rows, scores = [], {}
    for name in QUICK if args.quick else args.variants:
        if VARIANTS[name] == {"preset": f"={chosen[0]}"}:
            continue
        out = work / name.replace(" ", "-")
        if (result := run_variant(VARIANTS[name], chosen, files, out, steps)) is None:
            continue
        scores[name], own_steps = result
        rows.append(Row(f"{args.corpus}, {name}, {own_steps:,} steps", scores[name], "BLEU on dev"))
    best = max(scores.values())
    lost = best - scores["chosen"]
    bar = None if args.quick else "<= 0.5"
    rows.append(
        Row(f"{args.corpus}, chosen below best", lost, "BLEU", bar=bar, holds=None if args.quick else lost <= 0.5)
    )
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
