"""Compare a small model distilled from a larger one (`--distill-from`) with the same model trained on the pairs.

    python benchmarks/distillation.py            # three trainings and a translation, half an hour of two cores
    python benchmarks/distillation.py --quick    # 200 steps each, 4,000 pairs, 200 test sentences

Tatoeba de-en. The teacher is `--preset tiny` trained on the pairs, 4+4 layers × 128; the students have 2+1 × 64. All
take the same number of steps of the same size with the same seed. Figures are BLEU on test, greedily and with beam 4,
and the alternately measured time of translating test. There is no bar.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from denoising import train
from report import REPOSITORY, Row, data_folder, machine, parser, report

import transduce
from transduce.inference.translator import Translator
from transduce.text.files import read_lines

SIDES = ("de", "en")
STUDENT = {"num_encoder_layers": 2, "num_decoder_layers": 1, "d_model": 64, "d_ff": 128, "num_heads": 4}
BATCH_TOKENS = 2_048
VOCABULARY = 8_000
SEARCHES = {"greedy": 1, "beam 4": 4}
ROUNDS = 5


class Work(NamedTuple):
    """The scope of a comparison: full or quick."""

    folder: Path
    steps: int
    seed: int
    pairs: int | None
    test_lines: int | None


def write_files(work: Work) -> dict[str, dict[str, Path]]:
    """Write the corpus as plain text, and return the files by part and side."""
    folder = work.folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Path]] = {}
    for part, most in (("train", work.pairs), ("dev", None), ("test", work.test_lines)):
        found[part] = {side: folder / f"{part}.{side}" for side in SIDES}
        for side, path in found[part].items():
            lines = list(read_lines(data_folder() / "tatoeba-de-en" / f"{part}.{side}.gz"))[:most]
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return found


def run(work: Work) -> list[Row]:
    """Run the trainings, and return rows with the models' quality and speed."""
    files = write_files(work)
    options = ["--steps", str(work.steps), "--seed", str(work.seed), f"--set=training.batch_tokens={BATCH_TOKENS}"]
    if work.pairs is None:
        options.append(f"--set=tokenizer.vocabulary_size={VOCABULARY}")
    source, target = (["--source", str(files["train"]["de"])], ["--target", str(files["train"]["en"])])
    options += ["--dev-source", str(files["dev"]["de"]), "--dev-target", str(files["dev"]["en"])]
    student = [f"--set=model.{name}={value}" for name, value in STUDENT.items()]
    teacher = work.folder / "teacher"
    train(teacher, *source, *target, *options, "--preset", "tiny")
    train(work.folder / "pairs-alone", *source, *target, *options, *student)
    train(work.folder / "taught", *source, *options, *student, "--languages", *SIDES, "--distill-from", str(teacher))
    translators = {
        name: transduce.load(work.folder / name.replace(" ", "-"), task="translation", device="cpu")
        for name in ("teacher", "pairs alone", "taught")
    }
    sentences, references = (list(read_lines(files["test"][side])) for side in SIDES)
    return [row for search in SEARCHES for row in compare(translators, search, sentences, references)]


def compare(
    translators: dict[str, Translator], search: str, sentences: list[str], references: list[str]
) -> Iterator[Row]:
    """Yield the BLEU and median translation time of each model by one search."""
    times: dict[str, list[float]] = {name: [] for name in translators}
    scores = {}
    for turn in range(ROUNDS + 1):  # the first round compiles machine code
        for name, translator in translators.items():
            started_at = time.perf_counter()
            translations = translator(sentences, beam_size=SEARCHES[search])
            if turn:
                times[name].append(time.perf_counter() - started_at)
            else:
                found = transduce.score([each.text for each in translations], references, target_language=SIDES[1])
                scores[name] = found.bleu.value
    seconds = {name: statistics.median(own) for name, own in times.items()}
    for name, value in scores.items():
        yield Row(f"Tatoeba de-en, {name}, {search}", value, "BLEU")
        yield Row(f"Tatoeba de-en, {name}, {search}", seconds[name], "s", "teacher", seconds["teacher"])


def main() -> int:
    """Run the unfinished parts and report."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=4_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "distillation")
    args = options.parse_args()
    work = Work(args.out / f"{args.steps}-{args.seed}", args.steps, args.seed, None, None)
    if args.quick:
        work = Work(args.out / "quick", 200, args.seed, 4_000, 200)
    print(machine(), file=sys.stderr)
    return report(run(work), args.json)


if __name__ == "__main__":
    sys.exit(main())
