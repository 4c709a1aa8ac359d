"""Test text prepared ahead of training for language models, denoising and masked language models."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.tasks.train import train
from transduce.text.files import read_lines

WriteLines = Callable[[str, Iterable[str]], Path]
# A book, hard-wrapped, whose sentences are other lines than the file's.
PARAGRAPH = [
    "The old man sat on the bank of the river and looked at the water, which",
    "was brown. It had rained. He said nothing for a long time, and then he",
    "said that the fish would come. They did not come. The boy laughed at him.",
    "",
]
KINDS = ("language-model", "denoising", "masked-language-model")
SETTINGS: dict[str, Any] = {
    "tokenizer.vocabulary_size": 120,
    "tokenizer.byte_fallback": False,
    "model.d_model": 32,
    "model.d_ff": 64,
    "training.batch_tokens": 256,
    "training.steps": 4,
    "training.report_every": 1,
    "training.precision": "fp32",
    "training.learning_rate": 0.002,
}
OF_KIND: dict[str, dict[str, Any]] = {
    "language-model": {"task.context": 16, "model.num_decoder_layers": 1},
    "denoising": {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1},
    "masked-language-model": {"task.context": 32, "model.num_encoder_layers": 1},
}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a text of some thousand different paragraphs, more than one block of them."""
    path = tmp_path_factory.mktemp("text") / "book.txt"
    lines = [
        line.replace("fish", f"fish number {number}").replace("boy", f"boy of {number % 17}")
        for number in range(3_000)
        for line in PARAGRAPH
    ]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    return path


def prepare(book: Path, out: Path, kind: str, *options: str) -> int:
    chosen = [option for name in ("vocabulary_size=120", "byte_fallback=false") for option in _set(f"tokenizer.{name}")]
    return main(["prepare", "--task", kind, "--source", str(book), "--out", str(out), *chosen, *options])


def _set(assignment: str) -> list[str]:
    return ["--set", assignment]


def losses(out: Path) -> list[float]:
    events = [json.loads(line) for line in read_lines(out / "metrics.jsonl")]
    return [event["loss"] for event in events]


@pytest.mark.parametrize("kind", KINDS)
def test_training_from_prepared_text_gives_the_losses_of_its_files(kind: str, book: Path, tmp_path: Path) -> None:
    assert prepare(book, tmp_path / "prepared", kind) == 0
    settings = SETTINGS | OF_KIND[kind] | {"task.kind": kind}
    train(out=tmp_path / "files", source=book, settings=settings, device="cpu", threads=1)
    ahead = settings | {"data.prepared": str(tmp_path / "prepared")}
    train(out=tmp_path / "ahead", settings=ahead, device="cpu", threads=1)
    assert losses(tmp_path / "ahead") == losses(tmp_path / "files")
    assert not (tmp_path / "ahead" / "corpus").exists()
    assert not list((tmp_path / "prepared").glob(".text-*"))


@pytest.mark.parametrize("kind", KINDS)
def test_shards_and_workers_make_the_same_files(kind: str, book: Path, tmp_path: Path) -> None:
    assert prepare(book, tmp_path / "whole", kind, "--workers", "1") == 0
    assert prepare(book, tmp_path / "tokenizer", kind, "--tokenizer-only") == 0
    for number in (1, 2):
        shard = ["--tokenizer", str(tmp_path / "tokenizer"), "--shard", f"{number}/2"]
        assert prepare(book, tmp_path / f"shard-{number}", kind, *shard) == 0
    shards = [str(tmp_path / f"shard-{number}") for number in (2, 1)]
    assert main(["prepare", "--merge", *shards, "--out", str(tmp_path / "merged")]) == 0
    for path in sorted((tmp_path / "whole").rglob("*")):
        if path.is_file() and path.name != "corpus.json":  # whose report has the names of temporary files
            assert path.read_bytes() == (tmp_path / "merged" / path.relative_to(tmp_path / "whole")).read_bytes(), path


def test_a_run_on_prepared_text_resumes(book: Path, write_lines: WriteLines, tmp_path: Path) -> None:
    assert prepare(book, tmp_path / "prepared", "masked-language-model") == 0
    settings = SETTINGS | OF_KIND["masked-language-model"] | {"task.kind": "masked-language-model"}
    settings |= {"data.prepared": str(tmp_path / "prepared"), "training.warmup_steps": 0}
    dev = write_lines("dev.txt", PARAGRAPH * 5)
    settings |= {"training.schedule": "constant", "data.dev_source": [str(dev)]}
    train(out=tmp_path / "whole", settings=settings, device="cpu", threads=1)
    train(out=tmp_path / "cut", settings=settings | {"training.steps": 2}, device="cpu", threads=1)
    train(out=tmp_path / "cut", settings={"training.steps": 4}, resume=True, device="cpu", threads=1)
    assert losses(tmp_path / "whole")[-2:] == losses(tmp_path / "cut")[-2:]


def test_text_prepared_for_another_task_is_refused(book: Path, tmp_path: Path) -> None:
    assert prepare(book, tmp_path / "prepared", "language-model") == 0
    settings = {"task.kind": "denoising", "data.prepared": str(tmp_path / "prepared")}
    with pytest.raises(TransduceError, match=r"was prepared for `task\.kind` = language-model, .* --task denoising"):
        train(out=tmp_path / "out", settings=settings, device="cpu", threads=1)


def test_a_vocabulary_without_the_tasks_marks_is_refused(book: Path, tmp_path: Path) -> None:
    assert prepare(book, tmp_path / "prepared", "denoising") == 0
    settings = {"task.kind": "denoising", "task.noise.kind": "spans", "data.prepared": str(tmp_path / "prepared")}
    with pytest.raises(TransduceError, match=r"The vocabulary in .* lacks the token .*, which the task's settings"):
        train(out=tmp_path / "out", settings=settings, device="cpu", threads=1)


def test_shards_of_different_tasks_are_not_merged(book: Path, tmp_path: Path, capsys: Any) -> None:
    assert prepare(book, tmp_path / "tokenizer", "denoising", "--tokenizer-only") == 0
    for number, kind in ((1, "denoising"), (2, "language-model")):
        shard = ["--tokenizer", str(tmp_path / "tokenizer"), "--shard", f"{number}/2"]
        assert prepare(book, tmp_path / f"shard-{number}", kind, *shard) == 0
    shards = [str(tmp_path / f"shard-{number}") for number in (1, 2)]
    assert main(["prepare", "--merge", *shards, "--out", str(tmp_path / "merged")]) == 2
    assert "have different tasks" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["parsing", "classification", "time-series"])
def test_preparing_text_for_other_tasks_is_refused(kind: str, book: Path, tmp_path: Path, capsys: Any) -> None:
    assert prepare(book, tmp_path / "prepared", kind) == 2
    assert f"`--task` is {kind}, whose corpus is prepared when training starts" in capsys.readouterr().err
    assert not (tmp_path / "prepared").exists()
