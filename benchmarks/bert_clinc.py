"""BERT in small: pretrained on novels, then taught intents (CLINC150) from few examples, against no pretraining.

    python benchmarks/bert_clinc.py            # 58 minutes of pretraining, then as long; finished parts are kept
    python benchmarks/bert_clinc.py --quick    # a minute of pretraining on one novel, fewer steps, one seed

Pretraining reads the novels of `gutenberg`, in lower case and with typewriter apostrophes: the utterances know no
others, so that "i" and "what's" would be strange to a model of the novels as they are printed (BERT's usual English
model is uncased, too). The model from scratch has the same vocabulary, sizes and steps, and random weights. Each is
taught 10 examples of each of the 150 intents, drawn by three seeds; of three learning rates the validation set chooses
one for each model, on the first seed's examples. The same is done with both models once they have found hidden pieces
of the 15,000 training utterances, without their intents. Then the pretrained model is taught all 15,000 examples.
Figures are accuracies on the 4,500 test utterances of the intents. The bars are 5 points over the model from scratch,
and 90 % with all examples.
"""

import argparse
import gzip
import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from report import REPOSITORY, Row, data_folder, machine, mean, parser, report

from transduce.atomic_io import write_file
from transduce.text.sentences import read_documents

EXAMPLES = 10
BAR_POINTS, BAR_FULL = 5.0, 90.0
# With all examples; the validation set chooses.
FULL_RATES = (5e-4, 1e-3)
# Utterances have 8 words on average, 28 at most.
MODEL: dict[str, float | str] = {
    "task.context": 64,
    "tokenizer.vocabulary_size": 8000,
    "model.num_encoder_layers": 4,
    "model.d_model": 192,
    "model.d_ff": 768,
    "model.num_heads": 6,
    # BERT's own is post-norm; in so short a training pre-norm bears a higher rate (Geiping and Goldstein 2023).
    "model.norm_order": "pre",
    # What these four settings are worth at the first steps: docs/log/families.md.
    "model.positions": "rotary",
    "task.next_sentence": "false",
    "model.dropout": 0.0,
    # A slow core reads 14 million pieces in an hour: in small steps there are seven thousand of them to learn in.
    "training.batch_tokens": 2048,
    "training.learning_rate": 0.004,
}
# Utterances whose intents nobody told, read some twenty times.
ADAPTING: dict[str, float | str] = {
    "task.context": 64,
    "task.next_sentence": "false",
    "model.dropout": 0.1,
    "training.batch_tokens": 2048,
    "training.learning_rate": 0.002,
    "training.patience": 0,
}
# Few examples are seen often.
DROPOUT = 0.1
PRETRAINED, SCRATCH = "pretrained", "random"
# Underscores mark italics.
TYPEWRITTEN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "_": None})


class Work(NamedTuple):
    """One size of the comparison."""

    folder: Path
    novels: list[Path]
    minutes: float
    seeds: list[int]
    rates: list[float]
    adapting_steps: int
    few_steps: int
    full_steps: int


def full_work(folder: Path, novels: list[Path], minutes: float) -> Work:
    """The comparison that the bars are for."""
    return Work(folder, novels, minutes, [1, 2, 3], [5e-4, 1e-3, 2e-3], 1_500, 1_500, 7_000)


def quick_work(folder: Path, novels: list[Path]) -> Work:
    """The same on less work: it says nothing of the bars."""
    return Work(folder, novels[4:5], 1.0, [1], [2e-4], 100, 300, 300)


def train(out: Path, *options: str, settings: Mapping[str, float | str] | None = None) -> None:
    """Trains unless that is finished; a part that was cut goes on."""
    if (out / "dev_score.json").exists():
        return
    command = [sys.executable, "-m", "transduce", "train", "--out", str(out), "--resume", *options]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    subprocess.run(command, check=True)


def uncased(novel: Path, folder: Path) -> Path:
    """The novel in the letters of the utterances, a sentence a line: capitals told where one begins."""
    path = folder / novel.name.removesuffix(".gz")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        lines = (sentence for document in read_documents(novel) for sentence in [*document, ""])
        write_file(path, "".join(f"{line}\n" for line in lines).lower().translate(TYPEWRITTEN).encode())
    return path


def pretrain(work: Work) -> None:
    """The pretrained model, and one of the same shape and vocabulary whose weights are random."""
    novels = [uncased(novel, work.folder / "novels") for novel in work.novels]
    files = ["--task", "masked-language-model", "--source", *map(str, novels)]
    train(work.folder / PRETRAINED, *files, "--minutes", f"{work.minutes:g}", settings=MODEL)
    untaught = MODEL | {"training.learning_rate": 1e-12, "training.average_decay": 0.0}
    train(work.folder / SCRATCH, *files, "--steps", "1", settings=untaught)


def adapt(work: Work, begin: str, texts: list[str]) -> str:
    """A model that went on with finding hidden pieces, of these texts: its name."""
    name, path = f"adapted-{begin}", work.folder / "data" / "utterances.txt"
    path.write_text("".join(f"{text}\n\n" for text in texts), encoding="utf-8", newline="\n")
    files = ["--task", "masked-language-model", "--source", str(path), "--init-from", str(work.folder / begin)]
    train(work.folder / name, *files, "--steps", str(work.adapting_steps), settings=ADAPTING)
    return name


Utterances = list[tuple[str, str]]


def few_of_each(pairs: Utterances, seed: int) -> Utterances:
    """Ten examples of each intent."""
    chooser = random.Random(seed)
    by_intent: dict[str, list[str]] = {}
    for text, intent in pairs:
        by_intent.setdefault(intent, []).append(text)
    return [(text, intent) for intent in sorted(by_intent) for text in chooser.sample(by_intent[intent], EXAMPLES)]


def write_pairs(pairs: Utterances, prefix: Path) -> list[str]:
    """Texts and labels as two files, a line each."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    paths = [prefix.with_suffix(f".{side}") for side in ("text", "label")]
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8", newline="\n")
    return [str(path) for path in paths]


def teach(work: Work, begin: str, name: str, pairs: Utterances, steps: int, rate: float) -> Path:
    """A classifier that begins with one of the two models."""
    out = work.folder / f"{begin}-{name}-{rate:g}"
    text, label = write_pairs(pairs, work.folder / "data" / name)
    dev = [str(work.folder / "data" / f"val.{side}") for side in ("text", "label")]
    options = ["--task", "classification", "--init-from", str(work.folder / begin), "--steps", str(steps)]
    options += ["--source", text, "--target", label, "--dev-source", dev[0], "--dev-target", dev[1]]
    settings = {"model.dropout": DROPOUT, "training.learning_rate": rate, "training.patience": 0}
    settings["training.validate_every"] = max(1, steps // 5)  # 3,000 texts each time
    train(out, *options, settings=settings)
    return out


def dev_accuracy(model: Path) -> float:
    """On the validation set."""
    score: float = json.loads((model / "dev_score.json").read_text(encoding="utf-8"))["scores"]["accuracy"]
    return score


def test_accuracy(work: Work, model: Path) -> float:
    """On the test set."""
    result = model / "test_score.json"
    if not result.exists():
        text, label = (str(work.folder / "data" / f"test.{side}") for side in ("text", "label"))
        command = [sys.executable, "-m", "transduce", "classify", str(model), text, "--labels", label]
        subprocess.run([*command, "--json", str(result)], check=True)
    score: float = json.loads(result.read_text(encoding="utf-8"))["accuracy"]
    return score


def read_intents() -> dict[str, Utterances]:
    """CLINC150's parts: train, val and test."""
    with gzip.open(data_folder() / "clinc150" / "data_full.json.gz", "rt", encoding="utf-8") as file:
        return {name: [(text, intent) for text, intent in pairs] for name, pairs in json.load(file).items()}


def read_options(about: str | None) -> tuple[argparse.Namespace, Path]:
    """What was said, and the folder of the work that it is about."""
    options = parser(about)
    options.add_argument("--minutes", type=float, default=58.0, help="of pretraining")
    options.add_argument("--out", type=Path, default=REPOSITORY / "build" / "bert_clinc", help="what is kept")
    asked = options.parse_args()
    return asked, asked.out / ("quick" if asked.quick else f"{asked.minutes:g}min")


def with_few(work: Work, begin: str, pairs: Utterances) -> float:
    """Test accuracy with ten examples of each intent: the mean over the seeds, at the rate that is best on dev."""

    def taught(seed: int, rate: float) -> Path:
        return teach(work, begin, f"few-{seed}", few_of_each(pairs, seed), work.few_steps, rate)

    best = max(work.rates, key=lambda rate: dev_accuracy(taught(work.seeds[0], rate)))
    return mean([test_accuracy(work, taught(seed, best)) for seed in work.seeds])


def main() -> int:
    """Runs what is not finished and reports."""
    asked, folder = read_options(__doc__)
    novels = sorted((data_folder() / "gutenberg").glob("*.gz"))
    work = quick_work(folder, novels) if asked.quick else full_work(folder, novels, asked.minutes)
    sys.stderr.write(f"{machine()}\n")
    parts = read_intents()
    for name in ("val", "test"):
        write_pairs(parts[name], work.folder / "data" / name)
    pretrain(work)
    ours, scratch = (with_few(work, begin, parts["train"]) for begin in (PRETRAINED, SCRATCH))
    texts = [text for text, _ in parts["train"]]
    adapted = {begin: with_few(work, adapt(work, begin, texts), parts["train"]) for begin in (PRETRAINED, SCRATCH)}
    rates = FULL_RATES[:1] if asked.quick else FULL_RATES
    taught = [teach(work, PRETRAINED, "all", parts["train"], work.full_steps, rate) for rate in rates]
    full = test_accuracy(work, max(taught, key=dev_accuracy))
    bars = None if asked.quick else (ours - scratch >= BAR_POINTS, full >= BAR_FULL)
    rows = [
        Row(
            f"CLINC150, {EXAMPLES} examples an intent",
            ours,
            "% of 4,500 test utterances",
            peer="the same model from scratch",
            peer_value=scratch,
            ratio=ours / scratch,
            bar=None if bars is None else f">= {BAR_POINTS:g} points over it",
            holds=None if bars is None else bars[0],
        ),
        *(
            Row(f"CLINC150, {EXAMPLES} examples an intent, {begin} and adapted", value, "% of 4,500 test utterances")
            for begin, value in adapted.items()
        ),
        Row(
            "CLINC150, all examples",
            full,
            "% of 4,500 test utterances",
            bar=None if bars is None else f">= {BAR_FULL:g}",
            holds=None if bars is None else bars[1],
        ),
    ]
    return report(rows, asked.json)


if __name__ == "__main__":
    sys.exit(main())
