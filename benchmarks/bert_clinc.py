"""Measure a small BERT: pretrained on novels and fine-tuned on few intent examples (CLINC150), against no pretraining.

    python benchmarks/bert_clinc.py            # 58 minutes of pretraining, then as long; finished parts are kept
    python benchmarks/bert_clinc.py --quick    # a minute of pretraining on one novel, fewer steps, one seed

Pretraining reads the novels of `gutenberg`, in lower case and with ASCII apostrophes, as in the utterances (BERT's
usual English model is uncased, too). The peer is a model with random weights and the same vocabulary, sizes and steps.
Each model is fine-tuned on 10 examples of each of the 150 intents, drawn by three seeds. The validation set selects one
of three learning rates per model, on the first seed's examples. The comparison is repeated after both models continued
masked language modeling on the 15,000 training utterances. Finally, the pretrained model is fine-tuned on all 15,000
examples. Figures are accuracies on the 4,500 test utterances of the intents. Bars: 5 points over the model with random
weights, and 90 % with all examples.
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
# Learning rates with all examples, selected on the validation set.
FULL_RATES = (5e-4, 1e-3)
# Utterances have 8 words on average, 28 at most.
MODEL: dict[str, float | str] = {
    "task.context": 64,
    "tokenizer.vocabulary_size": 8000,
    "model.num_encoder_layers": 4,
    "model.d_model": 192,
    "model.d_ff": 768,
    "model.num_heads": 6,
    # BERT has post-norm; in short training, pre-norm allows a higher rate (Geiping and Goldstein 2023).
    "model.norm_order": "pre",
    # docs/log/families.md reports the effect of these four settings.
    "model.positions": "rotary",
    "task.next_sentence": "false",
    "model.dropout": 0.0,
    # A slow core processes 14 million tokens in an hour, which small batches divide into seven thousand steps.
    "training.batch_tokens": 2048,
    "training.optimizer": "adam",
    "training.learning_rate": 0.004,
}
# Continued pretraining on the utterances without their intents, about twenty epochs.
ADAPTING: dict[str, float | str] = {
    "task.context": 64,
    "task.next_sentence": "false",
    "model.dropout": 0.1,
    "training.batch_tokens": 2048,
    "training.learning_rate": 0.002,
    "training.patience": 0,
}
# Fine-tuning repeats few examples often.
DROPOUT = 0.1
PRETRAINED, SCRATCH = "pretrained", "random"
# Underscores mark italics in the novels.
TYPEWRITTEN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "_": None})


class Work(NamedTuple):
    """The scope of a comparison: full or quick."""

    folder: Path
    novels: list[Path]
    minutes: float
    seeds: list[int]
    rates: list[float]
    adapting_steps: int
    few_steps: int
    full_steps: int


def full_work(folder: Path, novels: list[Path], minutes: float) -> Work:
    """Return the full scope, for which the bars are defined."""
    return Work(folder, novels, minutes, [1, 2, 3], [5e-4, 1e-3, 2e-3], 1_500, 1_500, 7_000)


def quick_work(folder: Path, novels: list[Path]) -> Work:
    """Return a reduced scope without bars."""
    return Work(folder, novels[4:5], 1.0, [1], [2e-4], 100, 300, 300)


def train(out: Path, *options: str, settings: Mapping[str, float | str] | None = None) -> None:
    """Run `transduce train` unless it has finished; an interrupted run is resumed."""
    if (out / "dev_score.json").exists():
        return
    command = [sys.executable, "-m", "transduce", "train", "--out", str(out), "--resume", *options]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    subprocess.run(command, check=True)


def uncased(novel: Path, folder: Path) -> Path:
    """Write a novel in lower case and ASCII punctuation, one sentence per line, and return the file.

    Sentences are split before lowercasing, because splitting needs capital letters.
    """
    path = folder / novel.name.removesuffix(".gz")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        lines = (sentence for document in read_documents(novel) for sentence in [*document, ""])
        write_file(path, "".join(f"{line}\n" for line in lines).lower().translate(TYPEWRITTEN).encode())
    return path


def pretrain(work: Work) -> None:
    """Pretrain a model, and create one of the same shape and vocabulary with random weights."""
    novels = [uncased(novel, work.folder / "novels") for novel in work.novels]
    files = ["--task", "masked-language-model", "--source", *map(str, novels)]
    train(work.folder / PRETRAINED, *files, "--minutes", f"{work.minutes:g}", settings=MODEL)
    untaught = MODEL | {"training.learning_rate": 1e-12, "training.average_decay": 0.0}
    train(work.folder / SCRATCH, *files, "--steps", "1", settings=untaught)


def adapt(work: Work, begin: str, texts: list[str]) -> str:
    """Continue masked language modeling of the model named `begin` on texts, and return the new model's name."""
    name, path = f"adapted-{begin}", work.folder / "data" / "utterances.txt"
    path.write_text("".join(f"{text}\n\n" for text in texts), encoding="utf-8", newline="\n")
    files = ["--task", "masked-language-model", "--source", str(path), "--init-from", str(work.folder / begin)]
    train(work.folder / name, *files, "--steps", str(work.adapting_steps), settings=ADAPTING)
    return name


Utterances = list[tuple[str, str]]


def few_of_each(pairs: Utterances, seed: int) -> Utterances:
    """Return ten of the utterances of each intent, drawn at random by a seed."""
    chooser = random.Random(seed)
    by_intent: dict[str, list[str]] = {}
    for text, intent in pairs:
        by_intent.setdefault(intent, []).append(text)
    return [(text, intent) for intent in sorted(by_intent) for text in chooser.sample(by_intent[intent], EXAMPLES)]


def write_pairs(pairs: Utterances, prefix: Path) -> list[str]:
    """Write texts and labels to two files, one per line, and return the files."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    paths = [prefix.with_suffix(f".{side}") for side in ("text", "label")]
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8", newline="\n")
    return [str(path) for path in paths]


def teach(work: Work, begin: str, name: str, pairs: Utterances, steps: int, rate: float) -> Path:
    """Fine-tune a classifier from the model named `begin` on pairs of text and intent, and return its folder."""
    out = work.folder / f"{begin}-{name}-{rate:g}"
    text, label = write_pairs(pairs, work.folder / "data" / name)
    dev = [str(work.folder / "data" / f"val.{side}") for side in ("text", "label")]
    options = ["--task", "classification", "--init-from", str(work.folder / begin), "--steps", str(steps)]
    options += ["--source", text, "--target", label, "--dev-source", dev[0], "--dev-target", dev[1]]
    settings: dict[str, float | str] = {"model.dropout": DROPOUT, "training.patience": 0}
    # The rates are Adam's; Muon, the default for such a base model, has others.
    settings |= {"training.optimizer": "adam", "training.learning_rate": rate}
    settings["training.validate_every"] = max(1, steps // 5)  # 3,000 texts each time
    train(out, *options, settings=settings)
    return out


def dev_accuracy(model: Path) -> float:
    """Return a model's accuracy on the validation set, in percent."""
    score: float = json.loads((model / "dev_score.json").read_text(encoding="utf-8"))["scores"]["accuracy"]
    return score


def test_accuracy(work: Work, model: Path) -> float:
    """Return a model's accuracy on the test set, in percent."""
    result = model / "test_score.json"
    if not result.exists():
        text, label = (str(work.folder / "data" / f"test.{side}") for side in ("text", "label"))
        command = [sys.executable, "-m", "transduce", "classify", str(model), text, "--labels", label]
        subprocess.run([*command, "--json", str(result)], check=True)
    score: float = json.loads(result.read_text(encoding="utf-8"))["accuracy"]
    return score


def read_intents() -> dict[str, Utterances]:
    """Read CLINC150's parts: train, val and test."""
    with gzip.open(data_folder() / "clinc150" / "data_full.json.gz", "rt", encoding="utf-8") as file:
        return {name: [(text, intent) for text, intent in pairs] for name, pairs in json.load(file).items()}


def read_options(about: str | None) -> tuple[argparse.Namespace, Path]:
    """Return the command line's options and the work folder."""
    options = parser(about)
    options.add_argument("--minutes", type=float, default=58.0, help="minutes of pretraining")
    options.add_argument(
        "--out", type=Path, default=REPOSITORY / "build" / "bert_clinc", help="the folder of the models"
    )
    args = options.parse_args()
    return args, args.out / ("quick" if args.quick else f"{args.minutes:g}min")


def with_few(work: Work, begin: str, pairs: Utterances) -> float:
    """Return the mean test accuracy over the seeds with ten examples of each intent, at the best learning rate
    on dev.
    """

    def taught(seed: int, rate: float) -> Path:
        return teach(work, begin, f"few-{seed}", few_of_each(pairs, seed), work.few_steps, rate)

    best = max(work.rates, key=lambda rate: dev_accuracy(taught(work.seeds[0], rate)))
    return mean([test_accuracy(work, taught(seed, best)) for seed in work.seeds])


def main() -> int:
    """Run unfinished parts and report."""
    args, folder = read_options(__doc__)
    novels = sorted((data_folder() / "gutenberg").glob("*.gz"))
    work = quick_work(folder, novels) if args.quick else full_work(folder, novels, args.minutes)
    sys.stderr.write(f"{machine()}\n")
    parts = read_intents()
    for name in ("val", "test"):
        write_pairs(parts[name], work.folder / "data" / name)
    pretrain(work)
    ours, scratch = (with_few(work, begin, parts["train"]) for begin in (PRETRAINED, SCRATCH))
    texts = [text for text, _ in parts["train"]]
    adapted = {begin: with_few(work, adapt(work, begin, texts), parts["train"]) for begin in (PRETRAINED, SCRATCH)}
    rates = FULL_RATES[:1] if args.quick else FULL_RATES
    taught = [teach(work, PRETRAINED, "all", parts["train"], work.full_steps, rate) for rate in rates]
    full = test_accuracy(work, max(taught, key=dev_accuracy))
    bars = None if args.quick else (ours - scratch >= BAR_POINTS, full >= BAR_FULL)
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
    return report(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
