"""A small model taught by a larger one (`--distill-from`), beside the same that learns from the pairs alone.

    python benchmarks/distillation.py            # three trainings and a translation, half an hour of two cores
    python benchmarks/distillation.py --quick    # 200 steps each, 4,000 pairs, 200 test sentences

Tatoeba de-en. The teacher is what `--preset tiny` trains on the pairs, 4+4 layers × 128, the students have 2+1 × 64;
all take as many steps of the same size from the same seed. BLEU of each on test, greedily and with beam 4, and the
seconds that all of test takes, in turns.
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
    """One size of the comparison."""

    folder: Path
    steps: int
    seed: int
    pairs: int | None
    test_lines: int | None


def write_files(work: Work) -> dict[str, dict[str, Path]]:
    """The corpus as plain files by part and side."""
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
    """The trainings, and what their models are worth."""
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
    """BLEU of each model by one search, and its time, in turns: the medians."""
    times: dict[str, list[float]] = {name: [] for name in translators}
    scores = {}
    for turn in range(ROUNDS + 1):  # the first one makes machine code
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
    """Runs what is not finished, and reports."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=4_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "distillation")
    said = options.parse_args()
    work = Work(said.out / f"{said.steps}-{said.seed}", said.steps, said.seed, None, None)
    if said.quick:
        work = Work(said.out / "quick", 200, said.seed, 4_000, 200)
    print(machine(), file=sys.stderr)
    return report(run(work), said.json)


if __name__ == "__main__":
    sys.exit(main())
