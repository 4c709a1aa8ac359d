"""Test `torchrun … -m transduce train`: several processes train the same run as one, and resume each other's runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transduce.tasks.train import train
from transduce.text.files import read_lines


def train_together(count: int, settings: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m"]
    if count > 1:
        command += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m"]
    command += ["transduce", "train", str(settings), "--out", str(out), "--device", "cpu", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def losses(out: Path) -> dict[int, float]:
    """Return the mean loss of every report by step; with `report_every` = 1, of every step."""
    events = [json.loads(line) for line in read_lines(out / "metrics.jsonl")]
    return {event["step"]: event["loss"] for event in events if event["event"] == "train"}


@pytest.fixture
def settings_file(toy_settings: dict[str, Any], tmp_path: Path) -> Path:
    """Write settings without dropout, which would differ between processes, that report every step; return the file."""
    changes = {
        "model.dropout": 0.0,
        "model.num_heads": 2,  # wide enough for our own kernels
        "training.steps": 12,
        "training.schedule": "constant",
        "training.warmup_steps": 0,
        "training.learning_rate": 0.002,  # the greater, the faster do roundings grow
        "training.accumulate": 2,
        "training.report_every": 1,
        "training.validate_every": 6,
        "training.save_every": 6,
        "training.precision": "fp32",
    }
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in (toy_settings | changes).items()]
    path = tmp_path / "settings.toml"
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.slow
def test_two_processes_train_the_run_of_one(settings_file: Path, tmp_path: Path) -> None:
    outs = {}
    for name, count, options in (
        ("alone", 1, ()),
        ("replicated", 2, ()),
        ("sharded", 2, ("--set", "training.sharded=true")),
    ):
        outs[name] = tmp_path / name
        done = train_together(count, settings_file, outs[name], *options)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr.count("Training ") == 1  # one process speaks
        assert (outs[name] / "model.safetensors").exists()
    alone = losses(outs["alone"])
    assert list(alone) == list(range(1, 13))
    assert alone[12] < alone[1] - 0.1
    for name in ("replicated", "sharded"):
        assert losses(outs[name]) == pytest.approx(alone, abs=1e-5)
    files = sorted(path.name for path in (outs["sharded"] / "checkpoints" / "step-000000012").glob("weights*"))
    assert files == [f"weights.0000{rank}-of-00002.safetensors" for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_adapt_a_model_by_lora_as_one_does(settings_file: Path, trained: Path, tmp_path: Path) -> None:
    text = settings_file.read_text("utf-8").replace('preset = "tiny"\n', "")
    kept = [line for line in text.split("\n") if not line.startswith(("tokenizer.", "model.d", "model.num"))]
    settings_file.write_text("\n".join([f'init_from = "{trained.as_posix()}"', *kept]), encoding="utf-8")
    said = {"training.lora_rank": 4, "model.dropout": 0.0, "training.translate_dev": 0, "training.steps": 3}
    train(settings_file, out=tmp_path / "alone", settings=said, device="cpu", threads=1)
    options = [f"--set={name}={value}" for name, value in said.items()]
    done = train_together(2, settings_file, tmp_path / "together", *options)
    assert done.returncode == 0, done.stderr[-3000:]
    alone = losses(tmp_path / "alone")
    assert losses(tmp_path / "together") == pytest.approx(alone, abs=1e-5)
    assert len(set(alone.values())) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "sharded"), [(2, 1, False), (2, 1, True), (1, 2, True)])
def test_a_run_goes_on_with_another_number_of_processes(
    settings_file: Path, tmp_path: Path, before: int, after: int, sharded: bool
) -> None:
    shard = ("--set", "training.sharded=true") if sharded else ()
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train_together(1, settings_file, whole).returncode == 0
    first = train_together(before, settings_file, broken, "--set", "training.steps=6", *shard)
    assert first.returncode == 0, first.stderr[-3000:]
    second = train_together(after, settings_file, broken, "--resume", "--set", "training.steps=12", *shard)
    assert second.returncode == 0, second.stderr[-3000:]
    assert "Resuming after step 6." in second.stderr
    assert losses(broken) == pytest.approx(losses(whole), abs=1e-5)


@pytest.mark.slow
def test_a_mistake_ends_all_processes_with_one_sentence(settings_file: Path, tmp_path: Path) -> None:
    done = train_together(2, settings_file, tmp_path / "out", "--set", "data.source=['nowhere.zh']")
    assert done.returncode != 0
    assert done.stderr.count("nowhere.zh does not exist") == 1
    assert "tasks/run/run.py" not in done.stderr  # the traceback is torchrun's own
