"""Test that folders of earlier versions still load, translate to the same text, and resume to the same losses."""

import hashlib
import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from transduce.inference.load import open_translator
from transduce.tasks.train import train
from transduce.training.checkpoint import checkpoints, load_checkpoint

HERE = Path(__file__).resolve().parent
SHA256_OF_0_1_0 = "9ef004624e9c6c960219a0e73ae26a0e980e8b78e40fc1cfdc9e0a9f65fcddbf"
VERSIONS = sorted(path.parent for path in HERE.glob("*/expected.json"))
MAX_BYTES = 300_000


def load_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_resumable_run", HERE / "make_resumable_run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(version: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((version / "expected.json").read_text("utf-8"))
    return content


def test_the_folder_of_version_0_1_0_is_kept() -> None:
    assert VERSIONS[0].name == "0.1.0"


def test_the_folder_of_version_0_1_0_is_unchanged() -> None:
    digest, folder = hashlib.sha256(), HERE / "0.1.0"
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and each.suffix != ".md"):
        content = path.read_bytes().replace(b"\r\n", b"\n")  # as Git may write the line ends of texts on Windows
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    assert digest.hexdigest() == SHA256_OF_0_1_0, "a file has changed: restore it, and let no test write to this folder"


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_folders_of_earlier_versions_are_small(version: Path) -> None:
    assert sum(path.stat().st_size for path in version.rglob("*") if path.is_file()) < MAX_BYTES


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_models_of_earlier_versions_translate_to_the_same_text(version: Path) -> None:
    wanted = expected(version)
    translator = open_translator(version, precision="fp32", device="cpu", threads=1)
    assert [t.text for t in translator(wanted["sentences"])] == wanted["translations"]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_checkpoints_of_earlier_versions_load(version: Path) -> None:
    (path,) = checkpoints(version / "checkpoints")
    found = load_checkpoint(path)
    assert found.state.step == expected(version)["stopped_at"]
    assert found.tensors.keys() == {"weights", "exp_avg", "exp_avg_sq", "average"}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_runs_of_earlier_versions_resume_to_the_same_losses(
    version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bit-equal on the machine that made it; elsewhere sums are taken in another order."""
    wanted = expected(version)
    run = tmp_path / "run"
    shutil.copytree(version, run)
    monkeypatch.chdir(run)
    result = train(out=run, resume=True, device="cpu", threads=1)
    assert result is not None
    assert f"Resuming after step {wanted['stopped_at']}." in capsys.readouterr().err
    found = load_maker().losses(run)
    assert result.step == max(map(int, wanted["losses"]))
    for step, loss in wanted["losses"].items():
        assert found[step] == pytest.approx(loss, rel=2e-3), step
