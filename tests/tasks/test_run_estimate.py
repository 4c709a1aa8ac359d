"""Test that an estimate adds up the durations of a run's parts, which a dry run measures without leaving files."""

import json
import math
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from typing_extensions import override

from transduce.commands.main import main
from transduce.machine import format_bytes
from transduce.model.build import build_any_model
from transduce.model.config import ModelConfig
from transduce.tasks.train import train
from transduce.training.callbacks import Callback
from transduce.training.events import Durations, ValidationEvent
from transduce.training.loop import StepTimer
from transduce.training.memory import count_unbuilt
from transduce.training.run_estimate import (
    NO_SCORE,
    CurvePoint,
    LearningCurves,
    RecordedRun,
    RunEstimate,
    estimate_run,
    read_records,
    with_score,
)


@pytest.fixture
def training(toy_settings: dict[str, Any], tmp_path: Path) -> Any:
    """Return settings of a run of 80 steps, with a validation every 20 and a checkpoint every 10 steps."""
    from transduce.tasks.run.run import RunRequest, prepare_run
    from transduce.tasks.settings.reading import put_setting

    content: dict[str, Any] = {}
    for name, value in toy_settings.items():
        put_setting(content, name, value)
    return prepare_run(RunRequest(settings=content, out=tmp_path / "prepared", device="cpu", threads=1)).training


class Keeper(Callback):
    """A callback that collects estimates."""

    def __init__(self) -> None:
        self.estimates: list[RunEstimate] = []

    @override
    def on_estimate(self, event: RunEstimate) -> None:
        self.estimates.append(event)


def test_the_forecast_time_is_the_sum_of_steps_validations_and_saves(training: Any) -> None:
    durations = Durations(first_step=9.0, step=0.5, validation=3.0, keep=0.25, save=0.125)
    options: dict[str, Any] = {"parameters": 1000, "validated": True, "end_validations": 2.0}
    estimate = estimate_run(durations, training, elapsed_seconds=10.0, step=1, new_steps=1, **options)
    assert (estimate.steps, estimate.validations) == (80, 4)
    assert estimate.seconds == 10.0 + 79 * 0.5 + 4 * 3.25 + 8 * 0.125 + 2 * 3.0
    assert str(estimate).startswith(
        "about 1 min 10 s: 9.50 s of preparation, 80 steps of 0.50 s, 4 validations of 3.00 s, and 8.00 s for saving "
        "and the last evaluation"
    )
    assert estimate.seconds == _sum_of_parts(estimate)
    # At step 20 of a resumed run, one validation and two checkpoints are done.
    options |= {"validated": False, "end_validations": 0.0}
    later = estimate_run(durations, training, elapsed_seconds=0.0, step=20, new_steps=0, **options)
    assert later.seconds == 60 * 0.5 + 3 * 3.25 + 6 * 0.125
    assert (later.steps, later.new_steps) == (80, 60)
    resumed = estimate_run(durations, training, elapsed_seconds=7.0, step=30, new_steps=10, **options)
    assert "2.00 s of preparation, 60 steps of 0.50 s, 3 validations of 3.00 s" in str(resumed)
    assert resumed.seconds == _sum_of_parts(resumed)
    timed = msgspec.structs.replace(training, minutes=2.0, steps=None)
    budget = estimate_run(durations, timed, elapsed_seconds=10.0, step=1, new_steps=1, **options)
    assert str(budget).startswith("2 min 00 s, as set, for about 184 steps of 0.50 s and 10 validations of 3.00 s")
    if estimate.peak_memory is not None and later.peak_memory is not None:
        assert later.peak_memory - estimate.peak_memory >= 6 * 1000  # the inference copy of a first validation


def _sum_of_parts(estimate: RunEstimate) -> float:
    steps, validations = (
        estimate.new_steps * estimate.step_seconds,
        estimate.validations * estimate.validation_seconds,
    )
    rest = estimate.saving_seconds + estimate.evaluation_seconds
    return estimate.preparation_seconds + steps + validations + rest


def test_step_times_exclude_the_first_step() -> None:
    timer = StepTimer()
    assert [timer.add(seconds) for seconds in [9.0, *[0.5] * 9]] == [None] * 10
    assert timer.add(0.5) == 0.5
    assert timer.add(0.5) is None  # once
    slow = StepTimer()
    assert [slow.add(seconds) for seconds in (60.0, 3.0, 4.0, 5.0)] == [None, None, 3.5, None]


def test_a_dry_run_forecasts_and_leaves_nothing(
    toy_settings: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    settings = toy_settings | {"training.kernels": "torch"}
    before = torch.get_num_threads()
    keeper = Keeper()
    options: dict[str, Any] = {"settings": settings, "callbacks": [keeper], "device": "cpu", "threads": 1}
    assert train(out=tmp_path / "m", estimate_score=True, **options) is None
    (estimate,) = keeper.estimates
    assert torch.get_num_threads() == before
    assert not (tmp_path / "m").exists()
    assert list(temporary.iterdir()) == []
    assert estimate.steps == 80
    assert estimate.validations == 4
    assert estimate.seconds == pytest.approx(_sum_of_parts(estimate))
    assert min(estimate.preparation_seconds, estimate.saving_seconds, estimate.evaluation_seconds) > 0.0
    assert estimate.score is None  # the run has too few steps
    said = capfd.readouterr().err
    assert f"{estimate}." in said
    assert NO_SCORE in said
    # The run itself says so too, after its first steps, and has as many parameters.
    assert main(["train", "--out", str(tmp_path / "m"), *_options(settings), "--device", "cpu", "--threads", "1"]) == 0
    said = capfd.readouterr().err
    assert f"Training {estimate.parameters:,} parameters" in said
    assert said.index("Estimate: about ") < said.index("step 15/80")


def test_a_score_is_forecast_from_the_rise_of_a_probe() -> None:
    events = [
        ValidationEvent(step, loss, math.exp(loss), bleu=bleu, chrf=chrf, signature="tok:13a")
        for step, loss, bleu, chrf in ((100, 4.2, 6.4, 26.4), (200, 3.2, 17.0, 38.0))
    ]
    estimate = RunEstimate(
        parameters=1,
        steps=800,
        seconds=1.0,
        preparation_seconds=1.0,
        new_steps=800,
        step_seconds=1.0,
        validations=1,
        validation_seconds=1.0,
        saving_seconds=1.0,
        evaluation_seconds=1.0,
        peak_memory=None,
    )
    found = with_score(estimate, events).score
    assert found is not None
    assert 17.0 < found.bleu < 60.0
    assert 0.0 <= found.low < found.bleu < found.high <= 100.0
    assert with_score(estimate, events[:1]).score is None
    chinese = [msgspec.structs.replace(event, signature="tok:zh") for event in events]
    assert with_score(estimate, chinese).score is None


def test_slow_steps_are_forecast_from_micro_batches(
    toy_settings: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.tasks.run.run.PROBE_LIMIT", 0.0)
    keeper, settings = Keeper(), toy_settings | {"training.kernels": "torch", "training.accumulate": 3}
    options: dict[str, Any] = {"settings": settings, "callbacks": [keeper], "device": "cpu", "threads": 1}
    started_at = time.monotonic()
    train(out=tmp_path / "m", dry_run=True, **options)
    (estimate,) = keeper.estimates
    assert 0.0 < estimate.step_seconds < 3 * (time.monotonic() - started_at)
    assert math.isfinite(estimate.validation_seconds)
    assert estimate.seconds > 79 * estimate.step_seconds
    assert "single micro-batches (3 to a step)" in capfd.readouterr().err


def test_dry_run_prints_its_forecast_as_json(
    toy_settings: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = toy_settings | {"training.kernels": "torch", "training.steps": 30}
    options = ["train", "--out", str(tmp_path / "m"), *_options(settings), "--device", "cpu", "--threads", "1"]
    assert main([*options, "--dry-run", "--json", "-"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["steps"] == 30
    assert found["score"] is None


def _options(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]


def test_format_bytes_uses_mib_and_gib() -> None:
    assert [format_bytes(870 * 2**20), format_bytes(5 * 2**29)] == ["870 MiB", "2.5 GiB"]


# --- scores ---


def curve(corpus: str, limit: float, delay: float, steps: int) -> RecordedRun:
    """Return a recorded run whose BLEU and chrF rise to a limit and reach half of it after `delay` steps."""
    points = []
    for step in range(50, steps + 1, 50):
        score = limit * step / (delay + step)
        points.append(CurvePoint(step, 2.0, score, score))
    return RecordedRun(
        corpus=corpus, steps=steps, pairs=1, epochs=1.0, parameters=1, points=tuple(points), bleu=points[-1].bleu
    )


def test_the_ends_of_curves_like_the_recorded_ones_are_estimated() -> None:
    """A run that rises steeply before the validation rises further than one that has become flat."""
    records = [
        curve(f"{limit} {delay}", limit, delay, steps)
        for limit in (20.0, 30.0, 40.0)
        for delay in (50.0, 100.0, 200.0)
        for steps in (800, 1600)
    ]
    early, late = (curve("unseen", 35.0, delay, 800) for delay in (70.0, 150.0))
    for run in (early, late):
        found = LearningCurves(records).estimate(run.points[1], run.points[3], 800)
        assert abs(found.bleu - run.bleu) < 2.0
        assert found.high - found.low < 7.0
    noisy = [
        msgspec.structs.replace(run, bleu=run.bleu * factor)
        for run, factor in zip(records, [0.7, 1.3, 1.0] * 6, strict=True)
    ]
    narrow, wide = (LearningCurves(each).estimate(late.points[1], late.points[3], 800) for each in (records, noisy))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_recorded_training_curves_are_well_formed() -> None:
    for run in read_records():
        steps = [point.step for point in run.points]
        assert steps == sorted(set(steps))
        assert steps[-1] == run.steps
        assert 0.0 <= run.bleu <= 100.0
        assert all(math.isfinite(value) for point in run.points for value in point)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_encoder_layers": 3, "num_decoder_layers": 9},
        {"num_encoder_layers": 10, "share_layers": True},
        {"kind": "decoder", "num_decoder_layers": 11, "positions": "relative"},
        {"kind": "recurrent", "num_encoder_layers": 9, "num_decoder_layers": 9},
    ],
)
def test_parameters_are_counted_without_building_the_model(settings: dict[str, Any]) -> None:
    config = ModelConfig(
        **{"source_vocabulary_size": 20, "target_vocabulary_size": 20, "d_model": 8, "d_ff": 16, "num_heads": 2}
        | settings
    )
    model = build_any_model(config)
    assert count_unbuilt(config) == sum(parameter.numel() for parameter in model.parameters())
    assert count_unbuilt(config, with_embeddings=False) < count_unbuilt(config)


def test_a_component_that_reads_values_is_not_taken_for_a_model_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(source_vocabulary_size=20, target_vocabulary_size=20, d_model=8, d_ff=16, num_heads=2)
    monkeypatch.setattr("transduce.training.memory.build_any_model", lambda _: torch.zeros(1).item())
    assert count_unbuilt(config) == 0
    monkeypatch.setattr("transduce.training.memory.build_any_model", lambda _: torch.empty(1 << 40, 1 << 40))
    assert count_unbuilt(config) == 1 << 50
