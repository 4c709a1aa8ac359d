"""Test that every frozen set opens, computes its recorded results and resumes, and that old settings and names work."""

import importlib.util
import json
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import transduce

HERE = Path(__file__).resolve().parent
SETS = sorted(path.parent for path in HERE.glob("sets/*/expected_outputs.json"))
SIDES = (("source", "zh"), ("target", "en"))
MAX_BYTES = 3_000_000
WARNS_OF_OLD_NAMES = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def load_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_all_kinds", HERE / "make_all_kinds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = load_maker()


@cache
def expected(frozen: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((frozen / "expected_outputs.json").read_text("utf-8"))
    return content


def folders(kind: str) -> list[Any]:
    """Return a test parameter for every folder of a kind in every set."""
    found = [path for frozen in SETS for path in sorted((frozen / kind).iterdir())]
    return [pytest.param(path, id=f"{path.parent.parent.name} {path.name}") for path in found]


def each_set() -> list[Any]:
    return [pytest.param(frozen, id=frozen.name) for frozen in SETS]


def test_the_frozen_set_of_version_0_1_0_is_kept() -> None:
    assert SETS[0].name == "0.1.0"


@pytest.mark.parametrize("frozen", each_set())
def test_each_frozen_set_is_small(frozen: Path) -> None:
    assert sum(path.stat().st_size for path in frozen.rglob("*") if path.is_file()) < MAX_BYTES


@pytest.mark.parametrize("folder", folders("models"))
def test_frozen_models_give_their_recorded_results(folder: Path) -> None:
    frozen = folder.parent.parent
    texts, numbers = MAKER.outputs(MAKER.open_model(folder), folder.name)
    assert texts == expected(frozen)["texts"][folder.name]
    with np.load(frozen / "expected_numbers.npz") as stored:
        names = [name for name in stored.files if name.startswith(f"{folder.name}.")]
        assert sorted(names) == sorted(numbers)
        for name in names:
            np.testing.assert_allclose(numbers[name], stored[name], rtol=1e-5, atol=1e-5, err_msg=name)


def resumed(folder: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy an interrupted run, train it to its end, and return the copy."""
    shutil.copytree(folder.parent.parent / "corpora", run.parent, dirs_exist_ok=True)
    shutil.copytree(folder, run)
    monkeypatch.chdir(run.parent)
    transduce.train(out=run, resume=True, device="cpu", threads=1)
    return run


@pytest.mark.parametrize("folder", folders("runs"))
def test_frozen_runs_resume_bit_by_bit(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are bit-equal on the machine that made the set; elsewhere sums are taken in another order."""
    frozen = folder.parent.parent
    wanted = expected(frozen)["runs"][folder.name]
    first = resumed(folder, tmp_path / "first" / "run", monkeypatch)
    losses = MAKER.losses(first)
    for step, loss in wanted["losses"].items():
        assert losses[step] == pytest.approx(loss, rel=2e-3), step
    if expected(frozen)["machine"] == MAKER.machine():
        # The set's file has the tensors in the order of the safetensors library.
        save_file(load_file(first / "model.safetensors"), tmp_path / "ordered.safetensors", metadata={"format": "pt"})
        assert MAKER.file_hash(tmp_path / "ordered.safetensors") == wanted["weights"]
    second = resumed(folder, tmp_path / "second" / "run", monkeypatch)
    assert (second / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()


@WARNS_OF_OLD_NAMES
@pytest.mark.parametrize("folder", folders("models"))
def test_stored_settings_files_of_earlier_versions_are_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every name of the file is read, and the model that results has the same sizes."""
    shutil.copytree(folder.parent.parent / "corpora", tmp_path, dirs_exist_ok=True)
    shutil.copytree(folder.parent, tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transduce.tasks.run.run._estimate", lambda *_: None)  # the next test has estimates
    transduce.train(folder / "settings.toml", out=tmp_path / "run", dry_run=True, device="cpu", threads=1)
    config = json.loads((folder / "config.json").read_text("utf-8"))["transduce"]
    shown = " ".join(capsys.readouterr().err.split())
    assert f"model.d_model {config['d_model']} " in shown


@WARNS_OF_OLD_NAMES
@pytest.mark.parametrize("file", folders("settings"))
def test_handwritten_settings_files_of_earlier_versions_are_read(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(file.parent.parent / "corpora", tmp_path, dirs_exist_ok=True)
    shutil.copytree(file.parent.parent / "models", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transduce.tasks.run.run.PROBE_SECONDS", 0.0)  # a few steps are enough
    transduce.train(file, out=tmp_path / "run", dry_run=True, device="cpu", threads=1)


@WARNS_OF_OLD_NAMES
@pytest.mark.parametrize("frozen", each_set())
def test_datastores_glossaries_and_prepared_folders_of_earlier_versions_open(
    frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = frozen / "models" / "translation-joint"
    translator = transduce.load(
        model,
        task="translation",
        precision="fp32",
        device="cpu",
        threads=1,
        datastore=frozen / "datastore.safetensors",
    )
    texts = [found.text for found in translator(MAKER.SENTENCES)]
    assert texts == expected(frozen)["others"]["datastore"]
    lines = tmp_path / "lines.zh"
    lines.write_text("".join(f"{line}\n" for line in MAKER.SENTENCES), "utf-8")
    out = tmp_path / "lines.en"
    options = ["--glossary", str(frozen / "glossary.tsv"), "--device", "cpu", "--threads", "1", "--output", str(out)]
    assert MAKER.command("translate", str(model), str(lines), *options) == 0
    assert "pears" in out.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    settings = {
        name: value for name, value in MAKER.TRANSLATION.items() if not name.startswith(("data.", "tokenizer."))
    }
    settings |= {f"data.dev_{side}": [str(frozen / "corpora" / f"dev.{language}")] for side, language in SIDES}
    settings |= {"data.prepared": str(frozen / "prepared"), "training.steps": 2}
    result = transduce.train(out="run", settings=settings, device="cpu", threads=1)
    assert result is not None
    assert result.step == 2


@WARNS_OF_OLD_NAMES
@pytest.mark.parametrize("frozen", each_set())
def test_public_names_of_earlier_versions_exist(frozen: Path) -> None:
    for name in expected(frozen)["public_names"]:
        assert hasattr(transduce, name), name


@WARNS_OF_OLD_NAMES
@pytest.mark.parametrize("frozen", each_set())
def test_commands_and_options_of_earlier_versions_are_accepted(
    frozen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every option of every verb is known: an unknown one is refused before `--help` is looked at."""
    for verb, options in expected(frozen)["options"].items():
        assert MAKER.accepts(verb, options), f"{verb}: {capsys.readouterr().err}"
