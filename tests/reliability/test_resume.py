"""Test that a run stopped at any point and resumed equals an uninterrupted one in every bit."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS, EPOCH_STEPS = 16, 10


def load_points() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reliability_points", ROOT / "benchmarks" / "reliability_points.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


POINTS = load_points()
SMALL = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 16,
    "model.num_heads": 1,
    "training.batch_tokens": 640,
    "training.best_by": "loss",
    "training.translate_dev": 2,
    "training.precision": "bf16",
    "search.beam_size": 1,
    "search.max_length": 4,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, toy_settings: dict[str, Any]) -> Any:
    return POINTS.Runs(tmp_path_factory.mktemp("resume"), toy_settings | SMALL, steps=STEPS, threads=1)


@pytest.fixture(scope="module")
def whole(runs: Any) -> Path:
    run: Path = runs.run("whole")
    return run


def test_the_tested_run_includes_epoch_end_warm_up_and_validations(whole: Path) -> None:
    """An epoch ends inside of it, the warm-up too, and the validations find several best models."""
    events = POINTS.metrics(whole)
    epochs = [event["epoch"] for event in events if event["event"] == "train"]
    assert epochs[EPOCH_STEPS - 1] == 1.0
    assert len(epochs) == STEPS
    assert [event["step"] for event in events if event["event"] == "validation"] == [4, 8, 12, 16]


@pytest.mark.parametrize("point", POINTS.points(STEPS, EPOCH_STEPS), ids=lambda point: point.name)
def test_a_run_stopped_at_any_point_and_resumed_is_bit_equal(runs: Any, whole: Path, point: Any) -> None:
    assert POINTS.differences(runs.run(point.name, point), whole) == []


def test_a_stopped_and_resumed_run_with_two_threads_is_bit_equal(tmp_path: Path, toy_settings: dict[str, Any]) -> None:
    runs = POINTS.Runs(tmp_path, toy_settings | SMALL, steps=6, threads=2)
    whole = runs.run("whole")
    for point in POINTS.points(6, EPOCH_STEPS)[1:3]:
        assert POINTS.differences(runs.run(point.name, point), whole) == []


def test_the_comparison_of_runs_detects_another_seed(whole: Path, tmp_path: Path, toy_settings: dict[str, Any]) -> None:
    """The comparison can fail: another seed makes everything different."""
    other = POINTS.Runs(tmp_path, toy_settings | SMALL | {"training.seed": 2}, steps=STEPS, threads=1).run("other")
    found = POINTS.differences(other, whole)
    assert {"weights", "exp_avg", "exp_avg_sq", "average", "state.json", "metrics.jsonl", "model.safetensors"} <= {
        *found
    }
