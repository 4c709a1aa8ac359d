"""Test training of one model in several processes, replicated and sharded: the same losses as in one."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from transduce.errors import TransduceError
from transduce.kernels.select import kernels_for_training
from transduce.model.backend import using_backend
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.process_environment import Ranks, launched_ranks
from transduce.training import distributed
from transduce.training.choices import choose_kernels
from transduce.training.distributed import Processes, explain_lost_processes, join_processes
from transduce.training.loss import projected_cross_entropy
from transduce.training.optimizer import GradientReduction, collect_gradients
from transduce.training.settings import ResolvedTraining

Make = Callable[..., ResolvedTraining]


def run_together(count: int, script: Path, *arguments: str) -> None:
    command = [sys.executable, str(script), str(count), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


OPTIMIZERS = {2: ("adam",), 3: ("adam", "muon")}


@pytest.fixture(scope="module")
def train_together(make_settings: Make, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """Return a function that trains with so many processes, once, and returns the results of each optimizer."""

    @cache
    def train(count: int) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("together")
        changes = {"clip_norm": 1.0, "average_decay": 0.9, "weight_decay": 0.1}
        settings = {name: make_settings(**changes, optimizer=name) for name in OPTIMIZERS[count]}
        (folder / "settings.json").write_bytes(msgspec.json.encode(settings))
        script = Path(__file__).with_name("train_in_processes.py")
        run_together(count, script, str(folder / "out.json"), str(folder / "settings.json"))
        found: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
        assert found["shared"] == {"rank": 0}
        return found

    return train


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.parametrize(
    ("count", "optimizer"), [(count, name) for count, names in OPTIMIZERS.items() for name in names]
)
def test_processes_train_as_one_does(
    count: int, optimizer: str, train_together: Callable[[int], dict[str, Any]]
) -> None:
    results = train_together(count)[optimizer]
    for precision, tolerance in (("fp32", 1e-5), ("bf16", 5e-3)):
        alone = results[f"alone {precision}"]
        assert alone["losses"][-1] < alone["losses"][0] - 0.05
        for kind in ("replicated", "sharded"):
            together = results[f"{kind} {precision}"]
            assert together["losses"] == pytest.approx(alone["losses"], abs=tolerance)
            assert together["norms"] == pytest.approx(alone["norms"], abs=10 * tolerance)
            assert together["updates"] == alone["updates"] == 5
            assert together["shapes"] == alone["shapes"]


def test_one_process_sums_and_broadcasts_its_own_values() -> None:
    alone = Processes()
    assert alone.is_first
    assert alone.sum([1.5, 2.0]) == [1.5, 2.0]
    assert alone.broadcast("anything", str) == "anything"


def test_without_torchrun_a_run_has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_processes("cpu").count == 1
    monkeypatch.setenv("RANK", "1")  # which other programs set, too
    assert launched_ranks() == Ranks()


@pytest.mark.parametrize("count", ["2", "two"])
def test_an_incomplete_environment_is_an_error(count: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", count)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(TransduceError, match=rf"WORLD_SIZE is {count}, but RANK, .* are not all numbers"):
        join_processes("cpu")


def test_gradient_chunks_never_split_a_parameter() -> None:
    parameters = [nn.Parameter(torch.zeros(size)) for size in (3, 5, 2, 7, 1)]
    vector = torch.zeros(18)
    assert GradientReduction(parameters, vector, chunk_elements=6).bounds == [(0, 8), (8, 17), (17, 18)]
    assert GradientReduction(parameters, vector, chunk_elements=18).bounds == [(0, 18)]


def lose(rank: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "current_processes", lambda: Processes(rank, 4))
    with explain_lost_processes():
        raise RuntimeError(message)


def test_the_first_process_reports_a_lost_connection_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransduceError, match=r"One of the 4 processes has ended, .* then continue with --resume\."):
        lose(0, "Connection closed by peer", monkeypatch)


def test_the_other_processes_exit_silently_after_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as left:
        lose(2, "Connection closed by peer", monkeypatch)
    assert left.value.code == 1


@pytest.mark.parametrize(
    "message", ["shapes cannot be multiplied", "my ResidualConnection got a tensor of the wrong shape", "gloo_table: 3"]
)
def test_errors_other_than_a_lost_connection_are_raised_unchanged(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 2):
        with pytest.raises(RuntimeError, match=message):
            lose(rank, message, monkeypatch)


def test_a_process_that_waited_in_vain_says_so_whatever_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "[/build/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation"
    with pytest.raises(TransduceError, match=r"Process 2 of 4 .* waited in vain for another one"):
        lose(2, error, monkeypatch)


ONE_HANGS = """
import datetime, sys, time
from transduce.training import distributed

distributed._MAX_WAIT_IN_STEP = datetime.timedelta(seconds=2)
processes = distributed.join_processes("cpu")
if processes.is_first:
    time.sleep(4)  # longer than a step may wait, as when it prepares a corpus
processes.wait()
assert processes.broadcast("prepared" if processes.is_first else "", str) == "prepared"
print(processes.sum([1.0]), flush=True)
with distributed.explain_lost_processes():
    if not processes.is_first:
        time.sleep(60)
    processes.sum([1.0])
"""


def test_a_process_that_hangs_within_a_step_is_noticed_and_one_that_prepares_is_waited_for() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_HANGS],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        output, errors = started[0].communicate(timeout=50)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert output == "[2.0]\n"
    assert "Process 0 of 2 (counted from 0) waited in vain for another one" in errors


class Begun:
    """A stand-in for a process group whose asynchronous sums are complete at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def all_reduce(self, part: torch.Tensor, *, async_op: bool) -> "Begun":
        assert async_op
        self.sizes.append(part.numel())
        return self

    def wait(self) -> None:
        """Return at once, because the work is finished already."""


def test_gradient_all_reduces_start_in_the_same_order_for_any_order_of_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes, seen = [3, 5, 2, 4], []
    for way in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 0]):
        begun, before = Begun(), []
        monkeypatch.setattr("transduce.training.optimizer.dist.all_reduce", begun.all_reduce)
        parameters = [nn.Parameter(torch.ones(size)) for size in sizes]
        vector = torch.zeros(sum(sizes))
        collect_gradients(parameters, vector)
        reduction = GradientReduction(parameters, vector, chunk_elements=1)
        reduction.begin(last=True)
        for place in way:
            parameters[place].sum().backward()
            before.append(len(begun.sizes))
        reduction.finish()
        assert begun.sizes == sizes[::-1]
        seen.append(before)
    assert seen == [[0, 0, 0, 4], [1, 1, 1, 4], [0, 0]]


def test_gradient_all_reduces_of_a_recorded_pass_start_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, parameter = Begun(), nn.Parameter(torch.ones(3))
    monkeypatch.setattr("transduce.training.optimizer.dist.all_reduce", begun.all_reduce)
    vector = torch.zeros(3)
    collect_gradients([parameter], vector)
    reduction = GradientReduction([parameter], vector, chunk_elements=1)
    reduction.begin(last=True)
    monkeypatch.setattr("transduce.training.optimizer.is_recording", lambda _: True)
    parameter.sum().backward()
    assert begun.sizes == []
    reduction.finish()
    assert begun.sizes == [3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_all_reduces_start_during_the_backward_pass_of_kernels(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = kernels_for_training(choose_kernels("cpu", 1).value, "cpu")
    if kernels is None:
        pytest.skip("there are no kernels of our own here")
    begun = Begun()
    monkeypatch.setattr("transduce.training.optimizer.dist.all_reduce", begun.all_reduce)
    sizes: dict[str, Any] = {"d_model": 64, "d_ff": 64, "num_heads": 2, "share_layers": True, "dropout": 0.0}
    vocabularies: dict[str, Any] = {
        "source_vocabulary_size": 64,
        "target_vocabulary_size": 64,
        "pad_id": 0,
        "eos_id": 1,
    }
    gradients, ids = [], torch.randint(2, 64, (3, 9))
    for several in (False, True):
        torch.manual_seed(1)
        model = Transformer(ModelConfig(**sizes, **vocabularies)).to(dtype).train()
        parameters = list(model.parameters())
        vector = torch.zeros(sum(parameter.numel() for parameter in parameters))
        collect_gradients(parameters, vector)
        reduction = GradientReduction(parameters, vector, chunk_elements=1) if several else None
        with using_backend(kernels):
            for last in (False, True):  # the second of two micro-batches is the last of its step
                if reduction is not None:
                    reduction.begin(last=last)
                hidden, weight = model.hidden(ids, ids), model.output_weight
                projected_cross_entropy(hidden, weight, ids, pad_id=0, label_smoothing=0.1).total.backward()
                if reduction is not None:
                    assert sorted(begun.sizes) == sorted(p.numel() for p in parameters) * last  # before it is over
                    reduction.finish()
        gradients.append(vector)
    assert gradients[0].count_nonzero() > len(gradients[0]) // 2
    torch.testing.assert_close(gradients[0], gradients[1])
