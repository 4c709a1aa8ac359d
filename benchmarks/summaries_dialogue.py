"""Measure summaries of passages and replies to speeches, learned from books, against trivial baselines.

    python benchmarks/summaries_dialogue.py            # three trainings, about a quarter of an hour on one core
    python benchmarks/summaries_dialogue.py --quick    # the same on less work, without bars

Both corpora are made from the Gutenberg novels by `examples/summaries.py` and `examples/dialogue.py`: pairs of lines
for `transduce train`, as for translation. The test part is from segments of text that training does not see. Both
trainings start from one model (`--init-from`) that was pretrained by denoising on the training part's text. A summary
consists of words of its source, and learning to copy is many times as fast from whole texts as from headlines.

* Summaries: ROUGE-1 and ROUGE-L of headlines. The baseline is the leading words of each passage. Its leading rare words
  are shown too, but they need word frequencies, from which the references were made.
* Replies: chrF. Baselines are the most frequent reply, and the one of the 50 most frequent with the best chrF on dev. A
  reply's words are unpredictable, and chrF favors length, so the same replies to the wrong speeches are shown too.
* Recall: how often the right reply among ten (recall 1 in 10, Lowe et al. 2015) gains most probability from its speech
  compared with nine other speeches; chance is 10 %.

Bars: the model is better than each trivial baseline.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from report import REPOSITORY, Row, data_folder, machine, parser, report

sys.path.insert(0, str(REPOSITORY / "examples"))

import books
import dialogue
import summaries

import transduce
from transduce.evaluation.scores import rouge, score

MAX_FREQUENT = 50
CANDIDATES = 10
SEARCH = {
    # Larger than the default 0.6, because short replies such as “Yes.” are always more probable.
    "summaries": ("--beam-size", "4", "--no-repeated-ngrams", "1", "--length-penalty", "1.0"),
    "dialogue": ("--beam-size", "4", "--no-repeated-ngrams", "3", "--length-penalty", "1.0", "--min-length", "10"),
}


class Work(NamedTuple):
    """The scope of a comparison: full or quick."""

    folder: Path
    pretraining_minutes: float
    minutes: float
    """Training time of each task."""
    test_lines: int | None


def train(folder: Path, minutes: float, *options: str) -> Path:
    """Run `transduce train`, resuming an interrupted run, and return its folder."""
    command = [sys.executable, "-m", "transduce", "train", "--out", str(folder), "--resume", "--minutes", str(minutes)]
    subprocess.run([*command, "--device", "cpu", "--threads", "1", *options], check=True, stdout=sys.stderr)
    return folder


def pretrain(work: Work, files: dict[str, dict[str, Path]]) -> Path:
    """Train a denoising model on the passages of the training part."""
    options = ["--task", "denoising", "--source", str(files["train"]["passage"]), "--preset", "tiny"]
    options += ["--dev-source", str(files["dev"]["passage"]), "--set", "tokenizer.vocabulary_size=8000"]
    sizes = ("model.num_encoder_layers=2", "model.num_decoder_layers=2", "model.dropout=0.1")
    for assignment in (*sizes, "task.noise.share=0.15", "training.batch_tokens=1500"):
        options += ["--set", assignment]
    return train(work.folder / "pretraining", work.pretraining_minutes, *options)


def train_on_pairs(
    work: Work, name: str, pretrained: Path, files: dict[str, dict[str, Path]], sides: Sequence[str]
) -> Path:
    """Train a model on the pairs of a task."""
    options = ["--init-from", str(pretrained)]
    for option, part in (("", "train"), ("dev-", "dev")):
        options += [f"--{option}source", str(files[part][sides[0]]), f"--{option}target", str(files[part][sides[1]])]
    options += ["--set", "data.filters.max_length_ratio=100", "--set", "training.translate_dev=100"]
    # Small batches allow more steps in a few minutes.
    options += ["--set", "training.batch_tokens=800"]
    return train(work.folder / name, work.minutes, *options)


def translate(model: Path, sources: Sequence[str], search: Sequence[str]) -> list[str]:
    """Return the model's output for each source."""
    command = [sys.executable, "-m", "transduce", "translate", str(model), "--device", "cpu", "--threads", "1"]
    text = "".join(f"{source}\n" for source in sources).encode()
    found = subprocess.run([*command, *search], check=True, input=text, stdout=subprocess.PIPE).stdout
    return found.decode().removesuffix("\n").split("\n")


def summary_rows(work: Work, *, judged: bool) -> tuple[Path, list[Row]]:
    """Return the pretrained model, and rows with the ROUGE of headlines."""
    pairs, rarities = summaries.make_pairs(data_folder() / "gutenberg")
    files = books.write_pairs(pairs, work.folder / "summaries-data", summaries.SIDES)
    pretrained = pretrain(work, files)
    model = train_on_pairs(work, "summaries", pretrained, files, summaries.SIDES)
    test = pairs["test"][: work.test_lines]
    sources, references = [source for source, _ in test], [target for _, target in test]
    written = translate(model, sources, SEARCH["summaries"])
    show("headline", sources, references, written)
    ours = rouge(written, references)
    leading = rouge([summaries.leading_words(source) for source in sources], references)
    rare = rouge([summaries.leading_rare_words(source, rarities) for source in sources], references)
    rows = []
    for name, value, trivial, knowing in (
        ("ROUGE-1", ours.rouge_1, leading.rouge_1, rare.rouge_1),
        ("ROUGE-L", ours.rouge_l, leading.rouge_l, rare.rouge_l),
    ):
        rows.append(_row(f"headlines of {len(test):,} passages", value, name, "leading words", trivial, judged=judged))
        rows.append(
            Row(
                f"headlines, against a baseline with word frequencies, {name}",
                value,
                name,
                "leading rare words",
                knowing,
            )
        )
    return pretrained, rows


def dialogue_rows(work: Work, pretrained: Path, *, judged: bool) -> list[Row]:
    """Return rows with the chrF and recall of replies."""
    pairs = dialogue.make_pairs(data_folder() / "gutenberg")
    files = books.write_pairs(pairs, work.folder / "dialogue-data", dialogue.SIDES)
    model = train_on_pairs(work, "dialogue", pretrained, files, dialogue.SIDES)
    test = pairs["test"][: work.test_lines]
    sources, references = [source for source, _ in test], [target for _, target in test]
    written = translate(model, sources, SEARCH["dialogue"])
    show("reply", sources, references, written)
    frequent = dialogue.most_frequent((target for _, target in pairs["train"]), MAX_FREQUENT)
    best = max(frequent, key=lambda reply: chrf([reply] * len(pairs["dev"]), [target for _, target in pairs["dev"]]))
    ours, name = chrf(written, references), f"replies to {len(test):,} speeches"
    shifted = chrf(written, [*references[1:], references[0]])
    return [
        _row(name, ours, "chrF", f"“{frequent[0]}” always", chrf([frequent[0]] * len(test), references), judged=judged),
        _row(name, ours, "chrF", f"“{best}” always", chrf([best] * len(test), references), judged=judged),
        Row("different replies among them", 100.0 * len(set(written)) / len(test), "%"),
        Row(name, ours, "chrF", "the same replies to the wrong speeches", shifted),
        _row("the reply found among 10", recall(model, test), "%", "guessing", 100.0 / CANDIDATES, judged=False),
    ]


def recall(model: Path, test: Sequence[tuple[str, str]]) -> float:
    """Return the percentage of speeches for which the right one of ten replies gains most probability by the speech."""
    translator = transduce.load(model, task="translation", device="cpu", threads=1)
    found = tried = 0
    for first in range(0, len(test) - CANDIDATES + 1, CANDIDATES):
        group = test[first : first + CANDIDATES]
        sources = [source for source, _ in group for _ in group]
        targets = [target for _ in group for _, target in group]
        scores = np.array([each.score for each in translator.score(sources, targets)]).reshape(CANDIDATES, CANDIDATES)
        gains = scores - scores.mean(axis=0)  # (speeches, replies)
        found += int((gains.argmax(axis=1) == np.arange(CANDIDATES)).sum())
        tried += CANDIDATES
    return 100.0 * found / tried


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the chrF of English text."""
    found = score(list(hypotheses), list(references), target_language="en").chrf.value
    return float(found)


def _row(name: str, ours: float, unit: str, peer: str, theirs: float, *, judged: bool) -> Row:
    ratio = ours / theirs if theirs else None
    holds = ours > theirs if judged else None
    return Row(name, ours, unit, peer, theirs, ratio, "> the trivial answer" if judged else None, holds)


def show(what: str, sources: Sequence[str], references: Sequence[str], written: Sequence[str]) -> None:
    """Print every fiftieth example."""
    for source, reference, found in list(zip(sources, references, written, strict=True))[::50]:
        print(f"  {source}\n    {what}, reference: {reference}\n    {what}, written:   {found}", file=sys.stderr)


def main() -> int:
    """Train what is not finished, and report."""
    options = parser(__doc__)
    options.add_argument("--pretraining-minutes", type=float, default=5.0)
    options.add_argument("--minutes", type=float, default=4.0, help="time of each training on pairs")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "summaries-dialogue")
    args = options.parse_args()
    name = f"{args.pretraining_minutes:g}-{args.minutes:g}min"
    work = Work(args.out / name, args.pretraining_minutes, args.minutes, None)
    if args.quick:
        work = Work(args.out / "quick", 1.0, 0.7, 100)
    print(machine(), file=sys.stderr)
    judged = not args.quick
    pretrained, rows = summary_rows(work, judged=judged)
    return report(rows + dialogue_rows(work, pretrained, judged=judged), args.json)


if __name__ == "__main__":
    sys.exit(main())
