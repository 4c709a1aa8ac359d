"""Test training from a folder of `transduce prepare`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import transduce
from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.tasks.run.run_folder import read_stored
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


def test_a_prepared_corpus_may_move(toy_settings: dict[str, Any], prepared: Path, tmp_path: Path) -> None:
    shutil.copytree(prepared, tmp_path / "first")
    settings = without_files(toy_settings) | {"data.prepared": str(tmp_path / "first"), "training.steps": 1}
    train(out=tmp_path / "m", settings=settings, device="cpu", threads=1)
    (tmp_path / "first").rename(tmp_path / "second")
    with pytest.raises(TransduceError, match=r"first does not exist: name the folder .*, where it is now"):
        train(out=tmp_path / "m", settings={"training.steps": 2}, resume=True, device="cpu", threads=1)
    moved = {"data.prepared": str(tmp_path / "second")}
    train(out=tmp_path / "m", settings={"training.steps": 2} | moved, resume=True, device="cpu", threads=1)
    result = train(out=tmp_path / "m", settings={"training.steps": 3}, resume=True, device="cpu", threads=1)
    assert result is not None
    assert result.step == 3
    (tmp_path / "second" / "corpus" / "corpus.json").write_bytes(b"{}")
    with pytest.raises(TransduceError):
        train(out=tmp_path / "m", settings={"training.steps": 4}, resume=True, device="cpu", threads=1)


def test_a_corpus_prepared_for_translation_is_refused_for_other_tasks(
    toy_settings: dict[str, Any], prepared: Path, tmp_path: Path
) -> None:
    settings = without_files(toy_settings) | {"data.prepared": str(prepared), "task.kind": "denoising"}
    with pytest.raises(TransduceError, match=r"was prepared for `task\.kind` = translation, .* --task denoising"):
        train(out=tmp_path / "out", settings=settings, device="cpu", threads=1)


def test_a_folder_that_was_not_prepared_is_refused(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    settings = without_files(toy_settings) | {"data.prepared": str(tmp_path)}
    with pytest.raises(TransduceError, match=r"was not written by `transduce prepare`"):
        train(out=tmp_path / "out", settings=settings, device="cpu", threads=1)


def test_the_dev_set_of_prepared_text_has_the_filters_it_was_prepared_with(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, targets = (
        Path(toy_settings[f"data.{side}"][0]).read_text("utf-8").split("\n")[:200] for side in ("source", "target")
    )
    short = [f"{line.split()[0]} {number}" for number, line in enumerate(targets)]
    for name, lines in (("long.zh", [line * 6 for line in sources]), ("short.en", short)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    command = ["prepare", "--out", str(tmp_path / "shards"), "--source", str(tmp_path / "long.zh")]
    command += ["--target", str(tmp_path / "short.en"), "--set", "tokenizer.vocabulary_size=600"]
    assert main([*command, "--set", "data.filters.max_length_ratio=100"]) == 0
    own = ("data.", "tokenizer.")
    settings = {name: value for name, value in toy_settings.items() if not name.startswith(own)}
    settings |= {"data.prepared": str(tmp_path / "shards"), "training.steps": 1}
    train(out=tmp_path / "out", settings=settings, device="cpu", threads=1)
    train(out=tmp_path / "out", settings={"training.steps": 2}, resume=True, device="cpu", threads=1)
    assert (tmp_path / "out" / "model.safetensors").exists()

    for name, options in (
        ("whole", ["--no-hold-out"]),
        ("named", ["--dev-source", "dev.de", "--dev-target", "dev.en"]),
    ):
        assert main([*command[:2], str(tmp_path / name), *command[3:], *options]) == 0
        capsys.readouterr()
        with pytest.raises(
            TransduceError,
            match=rf"{name} holds no dev set, .* named then are not copied: set `data.dev_source` .* \(again\)",
        ):
            train(out=tmp_path / "none", settings=settings | {"data.prepared": str(tmp_path / name)}, device="cpu")


def test_a_model_takes_what_the_filters_of_its_prepared_text_kept(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    command = ["prepare", "--out", str(tmp_path / "shards"), "--set", "data.filters.max_tokens=400"]
    for side in ("source", "target", "dev_source", "dev_target"):
        command += [f"--{side.replace('_', '-')}", *toy_settings[f"data.{side}"]]
    assert main([*command, "--set", "tokenizer.vocabulary_size=400"]) == 0
    own = ("data.", "tokenizer.")
    settings = {name: value for name, value in toy_settings.items() if not name.startswith(own)}
    settings |= {"training.steps": 1, "training.translate_dev": 0, "data.prepared": str(tmp_path / "shards")}
    dev = {name: value for name, value in toy_settings.items() if name.startswith("data.dev_")}
    train(out=tmp_path / "out", settings=settings | dev, device="cpu", threads=1)
    assert open_translator(tmp_path / "out", device="cpu", threads=1).max_sentence_tokens == 400
    assert read_stored(tmp_path / "out" / "settings.toml").data.filters.max_tokens == 400
    again = ["train", str(tmp_path / "out" / "settings.toml"), "--out", str(tmp_path / "again"), "--dry-run"]
    assert main(again) == 0


def test_python_prepares_what_the_command_prepares(
    toy_settings: dict[str, Any], prepared: Path, tmp_path: Path
) -> None:
    files = {side: toy_settings[f"data.{side}"] for side in ("source", "target", "dev_source", "dev_target")}
    settings = {name: value for name, value in toy_settings.items() if name.startswith("tokenizer.")}
    report = transduce.prepare(out=tmp_path / "whole", settings=settings, **files)
    assert isinstance(report, transduce.PreparationReport)
    by_command, by_function = (
        {path.name: path.read_bytes() for path in (folder / "corpus").iterdir()}
        for folder in (prepared, tmp_path / "whole")
    )
    assert by_function == by_command
    learned = transduce.prepare(out=tmp_path / "tokenizer", settings=settings, tokenizer_only=True, **files)
    assert isinstance(learned, transduce.TokenizerReport)
    for number in (1, 2):
        part = transduce.prepare(
            out=tmp_path / f"part-{number}", tokenizer=tmp_path / "tokenizer", shard=(number, 2), **files
        )
        assert isinstance(part, transduce.ShardReport)
    merged = transduce.merge_shards([tmp_path / "part-1", tmp_path / "part-2"], tmp_path / "merged")
    assert (merged.pairs, merged.held_out) == (report.pairs, report.held_out)


def test_arguments_of_prepare_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for name, value in (("shard", (1, 2)), ("tokenizer", "t"), ("workers", 2)):
        with pytest.raises(TransduceError, match=f"`tokenizer_only` cannot be combined with `{name}`: leave one of"):
            transduce.prepare(out=tmp_path / "a", source="a", target="b", tokenizer_only=True, **{name: value})  # type: ignore[arg-type]
