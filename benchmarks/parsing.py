"""Measure constituency parsing as sequence to sequence (section 6.3) on the CRAFT treebank with its given split.

    python benchmarks/parsing.py               # an hour of training, then dev and test are parsed
    python benchmarks/parsing.py --no-tags     # a placeholder for each word instead of its tag
    python benchmarks/parsing.py --merges 0    # every symbol separately: no merged tokens between two words
    python benchmarks/parsing.py --quick       # two minutes on a part of the treebank, 200 test trees

Labelled bracket F1 by EVALB's rules, on all of test and on sentences of at most 40 words: function tags are stripped,
no sentence is skipped, and a tree over other words than the reference's scores zero. Bars: 100 % valid trees, and F1 of
at least 75 on both.
"""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from report import REPOSITORY, Row, data_folder, machine, parser, report

from transduce.text.files import read_lines

BAR_F1, BAR_VALID = 75.0, 100.0
SETTINGS = {
    "tokenizer.vocabulary_size": 6000,
    "model.num_encoder_layers": 4,
    "model.num_decoder_layers": 3,
    "model.d_model": 128,
    "model.d_ff": 512,
    "model.num_heads": 4,
    # An hour on a slow machine is about ten epochs.
    "model.dropout": 0.1,
    "training.batch_tokens": 1024,
    "training.learning_rate": 0.002,
    # Use the whole hour, without early stopping.
    "training.patience": 0,
    "training.translate_dev": 200,
}


class Work(NamedTuple):
    """The scope of a measurement: full or quick."""

    folder: Path
    minutes: float
    train_trees: int | None
    """Maximum number of training trees; None: all."""
    test_trees: int | None
    """Maximum number of trees of dev and of test; None: all."""
    beam_size: int


def write_part(name: str, most: int | None, folder: Path) -> Path:
    """Write a part of the treebank, or its first trees, as plain text."""
    path = folder / f"{name}.trees"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        lines = itertools.islice(read_lines(data_folder() / "craft-treebank" / f"{name}.trees.gz"), most)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def train(work: Work, *, tags: bool, merges: int | None) -> Path:
    """Train a parser, resuming an interrupted run."""
    model = work.folder / f"parser{'' if tags else '-no-tags'}{'' if merges is None else f'-{merges}-merges'}"
    if not (model / "dev_score.json").exists():
        command = [sys.executable, "-m", "transduce", "train", "--task", "parsing", "--out", str(model), "--resume"]
        command += ["--source", str(write_part("train", work.train_trees, work.folder))]
        command += ["--dev-source", str(write_part("dev", work.test_trees, work.folder))]
        command += ["--minutes", f"{work.minutes:g}", "--set", f"task.tags={str(tags).lower()}"]
        for name, value in (SETTINGS | ({} if merges is None else {"task.merges": merges})).items():
            command += ["--set", f"{name}={value}"]
        subprocess.run(command, check=True)
    return model


def parse(work: Work, model: Path) -> dict[str, Any]:
    """Parse the test set, and return the bracket counts."""
    result = model / f"test_score_beam_{work.beam_size}.json"
    if not result.exists():
        command = [sys.executable, "-m", "transduce", "parse", str(model), "--beam-size", str(work.beam_size)]
        command += ["--reference", str(write_part("test", work.test_trees, work.folder)), "--json", str(result)]
        subprocess.run([*command, "--output", str(model / "test.parsed")], check=True)
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def rows(found: dict[str, Any], *, quick: bool) -> list[Row]:
    """Return rows with the F1 of both sets, and the share of valid trees."""

    def row(name: str, value: float, unit: str, least: float) -> Row:
        bar = None if quick else f">= {least:g}"
        return Row(name, value, unit, bar=bar, holds=None if quick else value >= least)

    whole, short = (found["brackets"][part] for part in ("all", "short"))
    return [
        row("valid trees", found["valid"], f"% of {whole['sentences']:,} sentences", BAR_VALID),
        row("F1, all lengths", found["f1"], "labelled brackets, %", BAR_F1),
        row(
            "F1, at most 40 words",
            found["f1_of_short"],
            f"labelled brackets, {short['sentences']:,} sentences, %",
            BAR_F1,
        ),
    ]


def main() -> int:
    """Train, parse and report."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=60.0, help="minutes of training")
    options.add_argument("--beam-size", type=int, default=4)
    options.add_argument("--merges", type=int, help="value of `task.merges`: runs of symbols merged into one token")
    options.add_argument("--no-tags", action="store_true", help="words are placeholders without tags")
    options.add_argument("--out", type=Path, default=REPOSITORY / "build" / "parsing", help="the folder of the model")
    args = options.parse_args()
    work = Work(args.out / f"{args.minutes:g}min", args.minutes, None, None, args.beam_size)
    if args.quick:
        work = Work(args.out / "quick", 2.0, 4_000, 200, 1)
    sys.stderr.write(f"{machine()}\n")
    model = train(work, tags=not args.no_tags, merges=args.merges)
    return report(rows(parse(work, model), quick=args.quick), args.json)


if __name__ == "__main__":
    sys.exit(main())
