"""Whose kernels a run trains with: chosen, said, and refused where there are none."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from transduce.errors import TransduceError
from transduce.model.fast import kernels_of_training
from transduce.model.fused import training_kernels
from transduce.tasks.resume import read_stored
from transduce.tasks.run import SETTINGS_FILE
from transduce.tasks.train import train
from transduce.training.choices import choose_kernels


def test_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    choice = choose_kernels("cpu", 1)
    assert choice.value == "torch"
    assert "llvmlite is not installed" in choice.reason


def test_for_an_unknown_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.training.choices.has_kernels", lambda _: False)
    assert choose_kernels("cpu", 1).value == "torch"


def test_on_a_gpu() -> None:
    assert choose_kernels("cuda", 1).value == "torch"
    assert kernels_of_training("torch") is None


def test_said_where_there_are_none(
    toy_settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.training.choices.has_kernels", lambda _: False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: object())
    settings = toy_settings | {"training.kernels": "native"}
    wanted = r"`training.kernels` is native, but there are none of our own for this processor, or .*: set it to torch\."
    with pytest.raises(TransduceError, match=wanted):
        train(out=tmp_path / "m", settings=settings, device="cpu", threads=1)


@pytest.mark.skipif(choose_kernels("cpu", 1).value == "torch", reason="there are no kernels of our own here")
def test_a_run_with_ours_learns_as_with_pytorchs(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    losses = {}
    for kernels in ("native", "torch"):
        own = {"training.kernels": kernels, "training.steps": 6, "training.report_every": 1}
        settings = toy_settings | own | {"model.dropout": 0.0, "model.num_heads": 2}
        train(out=tmp_path / kernels, settings=settings, device="cpu", threads=1)
        events = map(json.loads, (tmp_path / kernels / "metrics.jsonl").read_text("utf-8").split("\n")[:-1])
        losses[kernels] = [event["loss"] for event in events if event["event"] == "train"]
        assert read_stored(tmp_path / kernels / SETTINGS_FILE).training.kernels == kernels
    assert len(losses["torch"]) == 6
    assert losses["native"] == pytest.approx(losses["torch"], rel=1e-4)
    assert training_kernels() is None  # a run leaves none behind
