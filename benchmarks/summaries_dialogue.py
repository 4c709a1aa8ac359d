"""Summaries of passages and replies to speeches, learnt from books: on held-out text, beside the trivial answers.

    python benchmarks/summaries_dialogue.py            # three trainings, about a quarter of an hour on one core
    python benchmarks/summaries_dialogue.py --quick    # the same on less work, without bars

Both corpora are what the examples make of the Gutenberg novels (`examples/summaries.py`, `examples/dialogue.py`): pairs
of lines, on which `transduce train` learns as it learns to translate. The test part is of stretches that training does
not see. Both trainings begin with one model (`--init-from`) that was pretrained by denoising on the training text
alone: a summary consists of words of its source, and what an encoder and a decoder need in order to copy words they
learn from whole texts many times as fast as from headlines.

* Summaries: ROUGE-1 and ROUGE-L of the headlines, beside the leading words of each passage. The leading rare words
  stand beside them too: they need the frequencies of words, from which the references were made.
* Replies: chrF, beside the most frequent reply, and of the 50 most frequent ones the one that has the best chrF on
  dev. Nobody can foresee a reply's words, and chrF likes length: the same replies to the wrong speeches stand beside
  them. What a model has learnt of conversation shows where it has to find the reply among ten (recall 1 in 10, Lowe et
  al. 2015), by how much more probable the speech makes it than the nine other speeches do; who guesses finds 10 %.
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
from transduce.evaluation.rouge import rouge
from transduce.evaluation.scores import score

MOST_FREQUENT = 50
CANDIDATES = 10
SEARCH = {
    # Greater than the usual 0.6: what is short is always the likelier, “Yes.” above all.
    "summaries": ("--beam-size", "4", "--no-repeated-ngrams", "1", "--length-penalty", "1.0"),
    "dialogue": ("--beam-size", "4", "--no-repeated-ngrams", "3", "--length-penalty", "1.0", "--min-length", "10"),
}


class Work(NamedTuple):
    """One size of the comparison."""

    folder: Path
    pretraining_minutes: float
    minutes: float
    """Of each task."""
    test_lines: int | None


def train(folder: Path, minutes: float, *options: str) -> Path:
    """A run by the command, gone on with where it was cut."""
    command = [sys.executable, "-m", "transduce", "train", "--out", str(folder), "--resume", "--minutes", str(minutes)]
    subprocess.run([*command, "--device", "cpu", "--threads", "1", *options], check=True, stdout=sys.stderr)
    return folder


def pretrain(work: Work, files: dict[str, dict[str, Path]]) -> Path:
    """A model that mends the passages of the training part."""
    options = ["--task", "denoising", "--source", str(files["train"]["passage"]), "--preset", "tiny"]
    options += ["--dev-source", str(files["dev"]["passage"]), "--set", "tokenizer.vocabulary_size=8000"]
    sizes = ("model.num_encoder_layers=2", "model.num_decoder_layers=2", "model.dropout=0.1")
    for assignment in (*sizes, "task.noise.share=0.15", "training.batch_tokens=1500"):
        options += ["--set", assignment]
    return train(work.folder / "pretraining", work.pretraining_minutes, *options)


def train_on_pairs(
    work: Work, name: str, pretrained: Path, files: dict[str, dict[str, Path]], sides: Sequence[str]
) -> Path:
    """A model of a task."""
    options = ["--init-from", str(pretrained)]
    for option, part in (("", "train"), ("dev-", "dev")):
        options += [f"--{option}source", str(files[part][sides[0]]), f"--{option}target", str(files[part][sides[1]])]
    options += ["--set", "data.filters.max_length_ratio=100", "--set", "training.translate_dev=100"]
    # Small steps: in minutes, their number counts.
    options += ["--set", "training.batch_tokens=800"]
    return train(work.folder / name, work.minutes, *options)


def translate(model: Path, sources: Sequence[str], search: Sequence[str]) -> list[str]:
    """What the model makes of each source."""
    command = [sys.executable, "-m", "transduce", "translate", str(model), "--device", "cpu", "--threads", "1"]
    text = "".join(f"{source}\n" for source in sources).encode()
    found = subprocess.run([*command, *search], check=True, input=text, stdout=subprocess.PIPE).stdout
    return found.decode().removesuffix("\n").split("\n")


def summary_rows(work: Work, *, judged: bool) -> tuple[Path, list[Row]]:
    """ROUGE of headlines; and the pretrained model."""
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
        rows.append(Row(f"the same, beside frequencies of words, {name}", value, name, "leading rare words", knowing))
    return pretrained, rows


def dialogue_rows(work: Work, pretrained: Path, *, judged: bool) -> list[Row]:
    """chrF of replies."""
    pairs = dialogue.make_pairs(data_folder() / "gutenberg")
    files = books.write_pairs(pairs, work.folder / "dialogue-data", dialogue.SIDES)
    model = train_on_pairs(work, "dialogue", pretrained, files, dialogue.SIDES)
    test = pairs["test"][: work.test_lines]
    sources, references = [source for source, _ in test], [target for _, target in test]
    written = translate(model, sources, SEARCH["dialogue"])
    show("reply", sources, references, written)
    frequent = dialogue.most_frequent((target for _, target in pairs["train"]), MOST_FREQUENT)
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
    """In how many percent of the speeches the right one of ten replies gains most by the speech."""
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
    """Of English text."""
    found = score(list(hypotheses), list(references), target_language="en").chrf.value
    return float(found)


def _row(name: str, ours: float, unit: str, peer: str, theirs: float, *, judged: bool) -> Row:
    ratio = ours / theirs if theirs else None
    holds = ours > theirs if judged else None
    return Row(name, ours, unit, peer, theirs, ratio, "> the trivial answer" if judged else None, holds)


def show(what: str, sources: Sequence[str], references: Sequence[str], written: Sequence[str]) -> None:
    """Every fiftieth example, for the eye."""
    for source, reference, found in list(zip(sources, references, written, strict=True))[::50]:
        print(f"  {source}\n    {what}, reference: {reference}\n    {what}, written:   {found}", file=sys.stderr)


def main() -> int:
    """Trains what is not finished, and reports."""
    options = parser(__doc__)
    options.add_argument("--pretraining-minutes", type=float, default=5.0)
    options.add_argument("--minutes", type=float, default=4.0, help="of each training on pairs")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "summaries-dialogue")
    said = options.parse_args()
    name = f"{said.pretraining_minutes:g}-{said.minutes:g}min"
    work = Work(said.out / name, said.pretraining_minutes, said.minutes, None)
    if said.quick:
        work = Work(said.out / "quick", 1.0, 0.7, 100)
    print(machine(), file=sys.stderr)
    judged = not said.quick
    pretrained, rows = summary_rows(work, judged=judged)
    return report(rows + dialogue_rows(work, pretrained, judged=judged), said.json)


if __name__ == "__main__":
    sys.exit(main())
