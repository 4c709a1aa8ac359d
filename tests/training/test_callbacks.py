"""Test that callbacks see every event of a run and may stop it, and that trackers log it offline."""

import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import transduce
from transduce.errors import TransduceError
from transduce.tasks.train import train
from transduce.training.callbacks import (
    Callback,
    CheckpointEvent,
    MlflowTracker,
    RunEnd,
    RunStart,
    TensorBoardTracker,
    Tracker,
    WandbTracker,
)
from transduce.training.events import TrainEvent, ValidationEvent


@pytest.fixture
def settings(toy_settings: dict[str, Any]) -> dict[str, Any]:
    return toy_settings | {"training.steps": 12, "training.validate_every": 6, "training.save_every": 6}


def run(out: Path, settings: dict[str, Any], *callbacks: Callback) -> Any:
    return train(out=out, settings=settings, callbacks=callbacks, device="cpu", threads=1)


class Recorder(Callback):
    def __init__(self, stop_at: int | None = None) -> None:
        self.seen: list[tuple[str, int]] = []
        self.stop_at = stop_at

    def on_start(self, event: RunStart) -> None:
        assert event.settings["seed"] == 1
        self.seen.append(("start", event.step))

    def on_report(self, event: TrainEvent) -> bool:
        self.seen.append(("report", event.step))
        return event.step == self.stop_at

    def on_validation(self, event: ValidationEvent) -> None:
        assert event.bleu is not None
        self.seen.append(("validation", event.step))

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        assert (event.folder / "state.json").is_file()
        self.seen.append(("checkpoint", event.step))

    def on_end(self, event: RunEnd) -> None:
        self.seen.append((event.reason, event.step))


def test_a_callback_sees_every_event(settings: dict[str, Any], tmp_path: Path) -> None:
    recorder = Recorder()
    run(tmp_path / "m", settings | {"training.report_every": 5}, recorder)
    assert recorder.seen == [
        ("start", 0),
        ("report", 5),
        ("validation", 6),
        ("checkpoint", 6),
        ("report", 10),
        ("report", 12),
        ("validation", 12),
        ("checkpoint", 12),
        ("finished", 12),
    ]


def test_a_callback_stops_the_run_which_resumes_as_if_it_had_not(settings: dict[str, Any], tmp_path: Path) -> None:
    settings = settings | {"training.report_every": 5}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, settings)
    result = run(parts, settings, Recorder(stop_at=10))
    assert (result.reason, result.step, result.best_step) == ("stopped by Recorder", 10, 6)
    assert (parts / "dev_score.json").is_file()
    train(out=parts, resume=True, device="cpu", threads=1)
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()


class Stopper(Callback):
    """A callback that returns a value in one method, and records the steps at which it saw checkpoints."""

    def __init__(self, method: str, value: object) -> None:
        self.checkpoints: list[int] = []
        setattr(self, method, lambda _: value)

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        self.checkpoints.append(event.step)


@pytest.mark.parametrize(
    ("method", "value", "step"),
    [
        ("on_start", True, 1),
        ("on_report", True, 3),
        ("on_report", np.float64(2.0) > 1.0, 3),
        ("on_report", torch.tensor(2.0) > 1.0, 3),
        ("on_checkpoint", True, 4),
    ],
)
def test_a_run_that_stops_before_its_first_validation_has_a_model(
    method: str, value: object, step: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    settings = settings | {"training.report_every": 3, "training.save_every": 4, "training.validate_every": 6}
    result = run(tmp_path / "m", settings, Stopper(method, value))
    assert (result.reason, result.step, result.best_step) == ("stopped by Stopper", step, step)
    assert (tmp_path / "m" / "dev_score.json").is_file()
    transduce.load(tmp_path / "m")
    if method != "on_report":
        assert train(out=tmp_path / "m", resume=True, device="cpu", threads=1).step == 12  # type: ignore[union-attr]


def test_other_results_than_true_do_not_stop_a_run(settings: dict[str, Any], tmp_path: Path) -> None:
    callbacks = [Stopper("on_validation", value) for value in (1, "yes", 0.5, False, np.False_, [True])]
    assert run(tmp_path / "m", settings, *callbacks).reason == "finished"


def test_a_dry_run_calls_no_method_but_the_one_for_estimates(settings: dict[str, Any], tmp_path: Path) -> None:
    stopper = Stopper("on_start", True)
    train(out=tmp_path / "m", settings=settings, callbacks=[stopper], dry_run=True, device="cpu", threads=1)
    assert not stopper.checkpoints


def test_callbacks_are_a_list_or_another_iterable(settings: dict[str, Any], tmp_path: Path) -> None:
    anything: Any = Recorder()
    with pytest.raises(TransduceError, match=r"`callbacks` must be a list, but is <.*Recorder object"):
        train(out=tmp_path / "m", settings=settings, callbacks=anything, device="cpu", threads=1)
    anything = (each for each in [Recorder(stop_at=2)])
    settings = settings | {"training.report_every": 1}
    result = train(out=tmp_path / "m", settings=settings, callbacks=anything, device="cpu", threads=1)
    assert result is not None
    assert result.reason == "stopped by Recorder"


def test_objects_that_are_no_callbacks_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        TransduceError, match=r"`callbacks` must be a list of objects of classes derived from transduce"
    ):
        run(tmp_path / "m", settings, WandbTracker)  # type: ignore[arg-type]


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def log(_: dict[str, float], step: int) -> None:
        calls.append(step)
        raise OSError("no route to host")

    module = SimpleNamespace(init=lambda **_: SimpleNamespace(log=log, finish=lambda: calls.append(-1)))
    monkeypatch.setitem(sys.modules, "wandb", module)
    said: list[str] = []
    assert run(tmp_path / "m", settings, WandbTracker(say=said.append)).reason == "finished"
    assert len(calls) == 1
    assert said == ["WandbTracker failed and is left out from here on: no route to host."]


def test_a_tracker_without_its_package_is_refused_up_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(TransduceError, match=r"WandbTracker needs the package wandb, .* 'transduce\[track\]'"):
        WandbTracker()


def test_a_tracker_of_ones_own_needs_no_package(settings: dict[str, Any], tmp_path: Path) -> None:
    logged: list[dict[str, float] | RunEnd] = []

    class Mine(Tracker):
        def begin(self, module: Any, event: RunStart) -> None:
            pass

        def log(self, numbers: dict[str, float], step: int) -> None:
            logged.append(numbers | {"step": step})

        def finish(self, event: RunEnd) -> None:
            logged.append(event)

    run(tmp_path / "m", settings, Mine())
    *numbers, end = logged
    assert isinstance(end, RunEnd)
    assert {each["step"] for each in numbers if isinstance(each, dict)} == {5, 6, 10, 12}  # reports and validations


def test_wandb_tracker_logs_validations_offline(settings: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run(tmp_path / "m", settings, WandbTracker(mode="offline", dir=str(tmp_path)))
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (log,) = folder.glob("*.wandb")
    assert b"dev/bleu" in log.read_bytes()


def test_mlflow_tracker_logs_each_validation_to_a_folder(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "m", settings, MlflowTracker(tracking_uri=(tmp_path / "runs").as_uri()))
    (metric,) = (tmp_path / "runs").glob("*/*/metrics/dev/bleu")
    events = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text("utf-8").splitlines()]
    expected = [(event["step"], event["bleu"]) for event in events if event["event"] == "validation"]
    rows = [line.split() for line in metric.read_text("utf-8").splitlines()]
    assert [(int(row[2]), pytest.approx(float(row[1]))) for row in rows] == expected


def test_trackio_tracker_logs_to_a_local_folder(settings: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    code = (
        "import json, sys, transduce\n"
        "settings, out = json.loads(sys.argv[1]), sys.argv[2]\n"
        "transduce.train(out=out, settings=settings, callbacks=[transduce.TrackioTracker()], device='cpu', threads=1)\n"
    )
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "t"), "HF_HUB_OFFLINE": "1"}
    subprocess: Any = importlib.import_module("subprocess")
    command = [sys.executable, "-c", code, json.dumps(settings), str(tmp_path / "m")]
    sources = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        command, env=environment | {"PYTHONPATH": sources}, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "TrackioTracker failed" not in done.stderr
    assert any(b"dev/bleu" in path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file())


def test_a_folder_of_tensorboard_has_the_run_under_its_name(settings: dict[str, Any], tmp_path: Path) -> None:
    run(tmp_path / "m", settings, TensorBoardTracker(tmp_path / "all"))
    assert list((tmp_path / "all" / "m").glob("events.out.tfevents.*"))
