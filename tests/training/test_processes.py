"""Several processes that train one model: the same losses as one, replicated and sharded."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from transduce.errors import TransduceError
from transduce.training import processes
from transduce.training.processes import Processes, explaining_lost_processes, join_processes
from transduce.training.reduction import GradientReduction
from transduce.training.settings import ResolvedTraining

Make = Callable[..., ResolvedTraining]


def run_together(count: int, script: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run([*command, str(script), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(("count", "optimizer"), [(2, "adam"), (3, "adam"), (3, "muon")])
def test_processes_train_as_one_does(count: int, optimizer: str, tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(clip_norm=1.0, average_decay=0.9, weight_decay=0.1, optimizer=optimizer)
    (tmp_path / "settings.json").write_bytes(msgspec.json.encode(settings))
    script = Path(__file__).with_name("together.py")
    run_together(count, script, str(tmp_path / "out.json"), str(tmp_path / "settings.json"))
    results: dict[str, Any] = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert results["shared"] == {"rank": 0}
    for precision, tolerance in (("fp32", 1e-5), ("bf16", 5e-3)):
        alone = results[f"alone {precision}"]
        assert alone["losses"][-1] < alone["losses"][0] - 0.05
        for kind in ("replicated", "sharded"):
            together = results[f"{kind} {precision}"]
            assert together["losses"] == pytest.approx(alone["losses"], abs=tolerance)
            assert together["norms"] == pytest.approx(alone["norms"], abs=10 * tolerance)
            assert together["updates"] == alone["updates"] == 5
            assert together["shapes"] == alone["shapes"]


def test_one_process_needs_no_others() -> None:
    alone = Processes()
    assert alone.is_first
    assert alone.sum([1.5, 2.0]) == [1.5, 2.0]
    assert alone.share("anything", str) == "anything"


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_processes("cpu").count == 1


def test_an_incomplete_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(TransduceError, match=r"WORLD_SIZE is 2, but RANK, .* are not all numbers"):
        join_processes("cpu")


def test_chunks_hold_whole_parameters() -> None:
    parameters = [nn.Parameter(torch.zeros(size)) for size in (3, 5, 2, 7, 1)]
    vector = torch.zeros(18)
    assert GradientReduction(parameters, vector, chunk_elements=6).bounds == [(0, 8), (8, 17), (17, 18)]
    assert GradientReduction(parameters, vector, chunk_elements=18).bounds == [(0, 18)]


def lose(rank: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "joined_processes", lambda: Processes(rank, 4))
    with explaining_lost_processes():
        raise RuntimeError(message)


def test_the_first_process_says_that_another_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransduceError, match=r"One of the 4 processes has ended, .* then go on with --resume\."):
        lose(0, "Connection closed by peer", monkeypatch)


def test_the_others_leave_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as left:
        lose(2, "Connection closed by peer", monkeypatch)
    assert left.value.code == 1


def test_another_error_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        lose(0, "shapes cannot be multiplied", monkeypatch)
