"""Measure the gain by back-translation: BLEU with `--monolingual` against training on the parallel pairs only.

    python benchmarks/back_translation.py            # three trainings and a translation, some two hours on two cores
    python benchmarks/back_translation.py --quick    # 300 steps each, 5,000 lines, 200 test sentences

The pairs are Tatoeba zh-en. The monolingual text is the English side of Tatoeba de-en without duplicates and without
sentences whose letters and digits occur in any part of zh-en. Both trainings take the same number of steps of the same
size with the same model (`--preset tiny`) and seed; back-translation also trains the reverse model for half as many
steps. BLEU is on the test set with the default search. There is no bar.
"""

import sys
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from denoising import evaluate, train
from report import REPOSITORY, Row, data_folder, machine, parser, report
from tatoeba_zh_en import SOURCE, TARGET, original_file, write_corpus

from transduce.text.files import read_lines


class Work(NamedTuple):
    """The scope of a comparison: full or quick."""

    folder: Path
    steps: int
    seed: int
    lines: int | None
    """Maximum number of monolingual lines."""
    test_lines: int | None


def _key(sentence: str) -> str:
    """Return a sentence's letters and digits in lower case, for detecting duplicates."""
    return "".join(filter(str.isalnum, sentence.casefold()))


def write_text(path: Path, most: int | None) -> None:
    """Write at most `most` different sentences that no part of zh-en contains, one per line."""
    known = {_key(line) for part in ("train", "dev", "test") for line in read_lines(original_file(part, TARGET))}
    fresh: dict[str, str] = {}
    for line in read_lines(data_folder() / "tatoeba-de-en" / "train.en.gz"):
        if (key := _key(line)) and key not in known:
            fresh.setdefault(key, line)
    path.write_text("".join(f"{line}\n" for line in islice(fresh.values(), most)), encoding="utf-8", newline="\n")


def run(work: Work) -> dict[str, float]:
    """Run both trainings and return the test BLEU of each by name."""
    files = write_corpus(original_file, work.folder / "data", {"train": None, "dev": None, "test": work.test_lines})
    text = work.folder / "data" / f"alone.{TARGET}"
    if not text.exists():
        write_text(text, work.lines)
    options = ["--preset", "tiny", "--steps", str(work.steps), "--seed", str(work.seed)]
    for part, option in (("train", ""), ("dev", "dev-")):
        options += [f"--{option}source", str(files[part][SOURCE]), f"--{option}target", str(files[part][TARGET])]
    found = {}
    for name, more in (("pairs alone", []), ("with text", ["--monolingual", str(text)])):
        folder = work.folder / name.replace(" ", "-")
        train(folder, *options, *more)
        found[name] = float(evaluate(folder, files["test"])["bleu"]["value"])
    return found


def make_rows(found: dict[str, float]) -> list[Row]:
    """Return rows with the score of each training and the gain."""
    rows = [Row(f"Tatoeba zh-en, {name}", value, "BLEU") for name, value in found.items()]
    gain = found["with text"] - found["pairs alone"]
    rows.append(Row("Tatoeba zh-en, gain by text", gain, "BLEU", "pairs alone", found["pairs alone"]))
    return rows


def main() -> int:
    """Run the unfinished parts and report."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=11_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "back-translation")
    args = options.parse_args()
    work = Work(args.out / f"{args.steps}-{args.seed}", args.steps, args.seed, None, None)
    if args.quick:
        work = Work(args.out / "quick", 300, args.seed, 5_000, 200)
    print(machine(), file=sys.stderr)
    return report(make_rows(run(work)), args.json)


if __name__ == "__main__":
    sys.exit(main())
