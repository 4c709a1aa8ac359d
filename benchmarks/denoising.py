"""Measure the gain by denoising pretraining before fine-tuning on 2,000 pairs of Tatoeba Chinese to English, in BLEU.

    python benchmarks/denoising.py            # three trainings, about an hour on two cores
    python benchmarks/denoising.py --quick    # a minute each, 200 test sentences, without a bar

1. Pretraining: `transduce train --task denoising` on the English side of the whole training set; the vocabulary is
   learned from the Chinese side too, as text.
2. Fine-tuning: `transduce train --init-from` that folder on the first 2,000 pairs.
3. No pretraining, the better of two: the same pairs with all default settings, and with the vocabulary and model of
   the pretraining (except for its noise symbols, only the initial weights differ).

All are scored on the same test set with the default search. Bar: +2 BLEU.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from report import REPOSITORY, Row, machine, parser, report
from tatoeba_zh_en import SOURCE, TARGET, original_file, write_corpus

BAR_BLEU = 2.0
PAIRS = 2_000
RESULT = "evaluation.json"


class Work(NamedTuple):
    """The scope of a comparison: full or quick."""

    folder: Path
    pretraining_minutes: float
    minutes: float
    test_lines: int | None
    noise: str


def train(folder: Path, *options: str) -> None:
    """Run `transduce train`, resuming an interrupted run."""
    command = [sys.executable, "-m", "transduce", "train", "--out", str(folder), "--resume", "--device", "cpu"]
    subprocess.run([*command, *options], check=True, stdout=sys.stderr)


def evaluate(folder: Path, files: dict[str, Path]) -> dict[str, Any]:
    """Return BLEU and chrF of a folder's model on test; existing results are reused."""
    path = folder / RESULT
    if not path.exists():
        command = [sys.executable, "-m", "transduce", "evaluate", str(folder), "--device", "cpu", "--json", str(path)]
        files_of_test = ["--source", str(files[SOURCE]), "--reference", str(files[TARGET])]
        subprocess.run([*command, *files_of_test], check=True, stdout=sys.stderr)
    scores: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return scores


def run(work: Work) -> dict[str, dict[str, Any]]:
    """Run pretraining, fine-tuning, and both trainings without pretraining; return scores by name."""
    limits = {"train": None, "dev": None, "test": work.test_lines}
    files = write_corpus(original_file, work.folder / "data", limits)
    few = write_corpus(original_file, work.folder / "few", {"train": PAIRS})["train"]
    pairs = ["--source", str(few[SOURCE]), "--target", str(few[TARGET])]
    pairs += ["--dev-source", str(files["dev"][SOURCE]), "--dev-target", str(files["dev"][TARGET])]
    pairs += ["--minutes", str(work.minutes), "--preset", "tiny"]
    english, chinese = files["train"][TARGET], files["train"][SOURCE]
    vocabulary = f'--set=tokenizer.text=["{chinese}"]'
    pretrained = work.folder / "pretraining"
    train(
        pretrained,
        *("--task", "denoising", "--source", str(english), "--dev-source", str(files["dev"][TARGET]), vocabulary),
        *("--minutes", str(work.pretraining_minutes), "--preset", "tiny", f"--set=task.noise.kind={work.noise}"),
    )
    more = f'--set=tokenizer.text=["{english}", "{chinese}"]'
    trainings = {
        "pretrained": ["--init-from", str(pretrained)],
        "not pretrained, everything chosen": [],
        "not pretrained, the same vocabulary": [more, f"--set=tokenizer.vocabulary_size={_size(pretrained)}"],
    }
    results = {}
    for name, options in trainings.items():
        folder = work.folder / name.replace(",", "").replace(" ", "-")
        train(folder, *pairs, *options)
        results[name] = evaluate(folder, files["test"])
    return results


def _size(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return int(config["transduce"]["target_vocabulary_size"])


def make_rows(results: dict[str, dict[str, Any]], *, judged: bool) -> list[Row]:
    """Return rows with each score, and the gain over the better training without pretraining."""
    values = {name: result["bleu"]["value"] for name, result in results.items()}
    rows = [Row(f"Tatoeba zh-en, {PAIRS:,} pairs, {name}", value, "BLEU") for name, value in values.items()]
    ours = values.pop("pretrained")
    peer = max(values, key=values.__getitem__)
    gain = ours - values[peer]
    rows.append(
        Row(
            f"Tatoeba zh-en, {PAIRS:,} pairs, gain by denoising",
            gain,
            "BLEU",
            peer=peer,
            peer_value=values[peer],
            bar=f">= +{BAR_BLEU:g}" if judged else None,
            holds=gain >= BAR_BLEU if judged else None,
        )
    )
    return rows


def main() -> int:
    """Run the unfinished parts and report."""
    options = parser(__doc__)
    options.add_argument("--pretraining-minutes", type=float, default=20.0)
    options.add_argument("--minutes", type=float, default=10.0, help="time of each training on the pairs")
    options.add_argument("--noise", default="infilling", choices=("infilling", "spans", "masking", "deletion"))
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "denoising")
    args = options.parse_args()
    name = f"{args.noise}-{args.pretraining_minutes:g}-{args.minutes:g}min"
    work = Work(args.out / name, args.pretraining_minutes, args.minutes, None, args.noise)
    if args.quick:
        work = Work(args.out / "quick", 0.8, 0.5, 200, args.noise)
    print(machine(), file=sys.stderr)
    return report(make_rows(run(work), judged=not args.quick), args.json)


if __name__ == "__main__":
    sys.exit(main())
