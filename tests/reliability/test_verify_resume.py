"""Test `transduce verify-resume` with a user's own settings, and its report of differences."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.tasks.run import verification
from transduce.tasks.run.run import RunRequest
from transduce.tasks.run.verification import ResumeReport, verify_resume
from transduce.training.checkpoint import Environment


@pytest.fixture
def empty_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("empty_temporary")
def test_a_killed_and_resumed_run_of_the_settings_is_equal(
    tmp_path: Path, toy_settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    content = "\n".join(f"{name} = {json.dumps(value)}" for name, value in toy_settings.items())
    settings = tmp_path / "settings.toml"
    settings.write_text(content, "utf-8")
    path = tmp_path / "report.json"
    sets = ["--set", "training.accumulate=2", "--set", "training.warmup_steps=5", "--set", "training.save_every=30"]
    assert main(["verify-resume", str(settings), "--threads", "1", "--device", "cpu", *sets, "--json", str(path)]) == 0
    message = "Equal: weights, optimizer moments, weight average and the metrics of every step agree in every bit."
    assert message in capsys.readouterr().out
    report = msgspec.json.decode(path.read_bytes(), type=ResumeReport)
    assert report.equal
    assert report.differences == []
    assert 0 < report.resumed_from_step <= report.killed_after_step
    assert report.compared_at_step == report.resumed_from_step + 8


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM that a process can take")
@pytest.mark.usefixtures("empty_temporary")
def test_sigterm_ends_the_child_and_removes_the_folder(
    tmp_path: Path, toy_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in toy_settings.items()), "utf-8")
    children: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            children.append(self)

    def terminate(_: Path) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(verification, "_last_step", terminate)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("SIGTERM was not handled"))
    try:
        with pytest.raises(SystemExit) as left:
            main(["verify-resume", str(settings), "--threads", "1", "--device", "cpu"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 143
    assert children
    assert all(child.poll() is not None for child in children)


@pytest.mark.usefixtures("empty_temporary")
def test_a_failed_verification_run_reports_its_error(
    toy_settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transduce.tasks.settings.reading import put_setting

    content: dict[str, Any] = {}
    for name, value in toy_settings.items():
        put_setting(content, name, value)
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(TransduceError, match="Training ended before the comparison, with the words:"):
        verify_resume(RunRequest(settings=content, out=Path(), device="cpu", threads=1))


@pytest.mark.parametrize(("steps", "message"), [(5, r"`training\.steps` must be at least 6 for this test, but is 5")])
def test_too_short_a_run_is_refused(steps: int, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        verify_resume(RunRequest(settings={"training": {"steps": steps}}, out=Path()))


def test_a_time_budget_is_replaced_by_steps_with_a_note() -> None:
    content, notes = verification._shortened({"training": {"minutes": 3.0, "translate_dev": 2}})
    assert content["training"]["steps"] == 1000
    assert "minutes" not in content["training"]
    assert content["training"]["translate_dev"] == 2
    assert notes[0].startswith("`training.minutes` (3) was replaced by 1000 steps")


def test_shortening_a_run_changes_only_settings_without_effect_on_the_weights() -> None:
    specified = {"training": {"steps": 9, "batch_tokens": 77, "seed": 4}, "model": {"d_model": 8}}
    content, _ = verification._shortened(specified)
    changed = {name for name, value in content["training"].items() if specified["training"].get(name) != value}
    assert changed == {
        *("save_every", "validate_every", "report_every", "keep_checkpoints", "patience", "translate_dev")
    }
    assert content["training"]["save_every"] == 3
    assert content["model"] == specified["model"]


def test_runs_that_differ_are_found_to_differ(tmp_path: Path, tiny_run: Any) -> None:
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        tiny_run(tmp_path / name, steps=4, seed=seed).trainer.run()
    assert verification._differences(tmp_path / "one", tmp_path / "same", 4) == []
    found = verification._differences(tmp_path / "one", tmp_path / "other", 4)
    assert found == ["average", "exp_avg", "exp_avg_sq", "weights", "the metrics from step 1 on"]


def report(**changes: object) -> ResumeReport:
    made = ResumeReport(
        equal=True,
        killed_after_step=5,
        resumed_from_step=4,
        compared_at_step=12,
        differences=[],
        repeatable=None,
        environment=Environment(device="a GPU", instructions="x86_64 AVX2", threads=2, torch="2.13"),
        notes=["A note."],
    )
    return msgspec.structs.replace(made, **changes)


def test_the_report_tells_machine_differences_from_resume_faults() -> None:
    assert str(report()).split("\n")[0] == (
        "A run of these settings (a GPU, x86_64 AVX2, 2 threads, torch 2.13) was killed after step 5, resumed from the "
        "checkpoint of step 4, and compared at step 12 with one that was never stopped."
    )
    assert str(report()).endswith("agree in every bit.\nA note.")
    machine = str(report(equal=False, differences=["weights"], repeatable=False))
    assert "Not equal: weights. Two uninterrupted runs differ as well" in machine
    assert "`--device cpu` is exact." in machine
    ours = str(report(equal=False, differences=["weights"], repeatable=True))
    assert "so resuming is at fault: please report this." in ours
