"""Training from what `transduce prepare` wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.tasks.train import train
from transduce.text.files import read_lines


@pytest.fixture
def prepared(toy_settings: dict[str, Any], tmp_path: Path) -> Path:
    files = {side: toy_settings[f"data.{side}"] for side in ("source", "target", "dev_source", "dev_target")}
    command = ["prepare", "--out", str(tmp_path / "shards")]
    for side, names in files.items():
        command += [f"--{side.replace('_', '-')}", *names]
    for name, value in toy_settings.items():
        if name.startswith("tokenizer."):
            command += ["--set", f"{name}={json.dumps(value)}"]
    assert main(command) == 0
    return tmp_path / "shards"


def without_files(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("data.source", "data.target")}


def losses(out: Path) -> list[float]:
    events = [json.loads(line) for line in read_lines(out / "metrics.jsonl")]
    return [event["loss"] for event in events if event["event"] == "train"]


def test_a_prepared_corpus_trains_as_its_files_do(toy_settings: dict[str, Any], prepared: Path, tmp_path: Path) -> None:
    short: dict[str, Any] = {"training.steps": 6, "training.report_every": 1}
    short |= {"training.schedule": "constant", "training.warmup_steps": 0}  # the same rates, however many steps
    train(out=tmp_path / "files", settings=toy_settings | short, device="cpu", threads=1)
    settings = without_files(toy_settings) | short | {"data.prepared": str(prepared)}
    train(out=tmp_path / "ahead", settings=settings | {"training.steps": 3}, device="cpu", threads=1)
    assert not (tmp_path / "ahead" / "corpus").exists()
    train(out=tmp_path / "ahead", settings={"training.steps": 6}, resume=True, device="cpu", threads=1)
    assert len(losses(tmp_path / "files")) == 6
    assert losses(tmp_path / "ahead") == losses(tmp_path / "files")


def test_other_kinds_of_task_cannot_use_it(toy_settings: dict[str, Any], prepared: Path, tmp_path: Path) -> None:
    settings = without_files(toy_settings) | {"data.prepared": str(prepared), "task.kind": "denoising"}
    with pytest.raises(TransduceError, match=r"was prepared for `task\.kind` = translation, .* --task denoising"):
        train(out=tmp_path / "out", settings=settings, device="cpu", threads=1)


def test_a_folder_that_was_not_prepared_is_refused(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    settings = without_files(toy_settings) | {"data.prepared": str(tmp_path)}
    with pytest.raises(TransduceError, match=r"was not written by `transduce prepare`"):
        train(out=tmp_path / "out", settings=settings, device="cpu", threads=1)
