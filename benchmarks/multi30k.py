"""Measure BLEU on Multi30k English to German, test 2016, after at most 60 minutes of training, over three seeds.

    python benchmarks/multi30k.py                 # three seeds, an hour each
    python benchmarks/multi30k.py --seeds 1       # one seed; an interrupted run is resumed
    python benchmarks/multi30k.py --quick         # two minutes of training, as a smoke test

The `tok` files, lower-cased and tokenized; 4+4 layers x 128 with one joint vocabulary, as in the peer Wu et al. 2021
("Good for Misconceived Reasons"), who publish 41.02. Scored as they do: tokenized, lower-cased, beam 5. Bar: a mean of
at least 40.7.
"""

import subprocess
import sys
from pathlib import Path

from report import REPOSITORY, Row, data_folder, machine, mean, parser, report

from transduce import load, score
from transduce.text.files import read_lines

SEEDS = (1, 2, 3)
BAR = 40.7
SETTINGS = {
    "preset": "tiny",
    "tokenizer.vocabulary_size": "10000",
}


def train(seed: int, minutes: float, steps: int | None, out: Path) -> None:
    """Train one seed, resuming an interrupted run."""
    tok = data_folder() / "multi30k-en-de" / "tok"
    files = {"source": "train.en", "target": "train.de", "dev-source": "val.en", "dev-target": "val.de"}
    command = [sys.executable, "-m", "transduce", "train", "--out", str(out), "--resume", "--seed", str(seed)]
    for option, name in files.items():
        command += [f"--{option}", str(tok / f"{name}.gz")]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    command += ["--steps", str(steps)] if steps else ["--minutes", str(minutes)]
    subprocess.run(command, check=True)


def evaluate(out: Path) -> float:
    """Return BLEU on test 2016 with beam 5."""
    tok = data_folder() / "multi30k-en-de" / "tok"
    sources, references = (list(read_lines(tok / f"test_2016_flickr.{side}.gz")) for side in ("en", "de"))
    translator = load(out, task="translation")
    hypotheses = [translation.text for translation in translator(sources, beam_size=5)]
    scored = score(hypotheses, references, target_language="de", tokenize="none", lowercase=True)
    print(f"{out}: {scored}")
    return scored.bleu.value


def main() -> int:
    """Train, score and report all seeds."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options.add_argument("--minutes", type=float, default=58.0, help="training minutes of each seed")
    options.add_argument("--steps", type=int, help="training steps, instead of minutes")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "multi30k")
    args = options.parse_args()
    print(machine())
    values = []
    seeds = args.seeds[:1] if args.quick else args.seeds
    for seed in seeds:
        out = args.out / ("quick" if args.quick else f"seed-{seed}")
        train(seed, 2.0 if args.quick else args.minutes, args.steps, out)
        values.append(evaluate(out))
    rows = [Row(f"Multi30k en-de BLEU, seed {seed}", value, "BLEU") for seed, value in zip(seeds, values, strict=True)]
    if not args.quick:
        rows.append(
            Row(
                "Multi30k en-de BLEU, mean",
                mean(values),
                "BLEU",
                peer="Wu et al. 2021",
                peer_value=41.02,
                ratio=mean(values) / 41.02,
                bar=f">= {BAR}",
                holds=mean(values) >= BAR,
            )
        )
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
