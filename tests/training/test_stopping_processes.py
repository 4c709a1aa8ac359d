"""Test that several processes stop together if one is asked to stop or cannot write."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.training import distributed, loop
from transduce.training.checkpoint import Checkpoint, RowRange, RunState, save_checkpoint
from transduce.training.distributed import Processes, join_processes
from transduce.training.events import ValidationEvent
from transduce.training.loop import Trainer
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.settings import ResolvedTraining

Make = Callable[..., ResolvedTraining]


@pytest.fixture
def first_of_two_processes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make this process, alone in its group, act as the first of two that waits for no other."""
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=0, world_size=1)
    together = Processes(0, 2)
    monkeypatch.setattr(loop, "current_processes", lambda: together)
    yield
    together.leave()


class Vectors:
    """A plan of batches that are four unit vectors plus the epoch."""

    def __len__(self) -> int:
        return 4

    def batch(self, epoch: int, position: int) -> Tensor:
        return torch.eye(4)[position] + epoch


class Watched:
    """A trainer of one matrix that is asked to stop in a step, and that records the validated steps."""

    def __init__(
        self, folder: Path, settings: ResolvedTraining, stop_in_step: int = 0, *, stop_in_validation: int = 0
    ) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(4, 5, bias=False)
        self.validated: list[int] = []
        self.stop_in_step, self.stop_in_validation = stop_in_step, stop_in_validation
        self.trainer = Trainer(
            model=self.model,
            loss=self.loss,
            batches=Vectors(),
            settings=settings,
            folder=folder,
            validate=self.validate,
        )

    def loss(self, batch: Tensor) -> Loss:
        if self.trainer.step + 1 == self.stop_in_step:
            os.kill(os.getpid(), signal.SIGTERM)
        return projected_cross_entropy(batch[None, None], self.model.weight, torch.tensor([[3]]), pad_id=0)

    def validate(self, weights: Mapping[str, Tensor], step: int) -> ValidationEvent:
        assert "weight" in weights
        if step == self.stop_in_validation:
            os.kill(os.getpid(), signal.SIGTERM)
        self.validated.append(step)
        return ValidationEvent(step=step, loss=1.0, perplexity=2.7)


@pytest.mark.usefixtures("first_of_two_processes")
@pytest.mark.parametrize(("stop_in_step", "before"), [(4, [2]), (2, []), (3, [2])])
def test_a_validation_that_a_stop_left_out_comes_first_on_resume(
    tmp_path: Path, make_settings: Make, stop_in_step: int, before: list[int]
) -> None:
    settings = make_settings(steps=4, validate_every=2)
    stopped = Watched(tmp_path, settings, stop_in_step)
    result = stopped.trainer.run()
    assert (result.reason, result.step, stopped.validated) == ("SIGTERM", stop_in_step, before)
    resumed = Watched(tmp_path, settings)
    assert resumed.trainer.resume()
    assert resumed.trainer.run().reason == "finished"
    assert stopped.validated + resumed.validated == [2, 4]


@pytest.mark.usefixtures("first_of_two_processes")
def test_a_validation_is_stopped_for_a_stop_and_comes_first_on_resume(
    tmp_path: Path, make_settings: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """`torchrun` kills what has not ended 30 seconds after the signal, and with it the steps that nobody has saved."""
    settings = make_settings(steps=4, validate_every=2)
    stopped = Watched(tmp_path, settings, stop_in_validation=2)
    result = stopped.trainer.run()
    assert (result.reason, result.step, stopped.validated) == ("SIGTERM", 2, [])
    said = capsys.readouterr().err
    assert "SIGTERM: saving the run at step 2." in said
    assert "Ctrl-C" not in said  # torchrun passes on a second one that the terminal has sent already: it ends nothing
    resumed = Watched(tmp_path, settings)
    assert resumed.trainer.resume()
    assert resumed.trainer.run().reason == "finished"
    assert resumed.validated == [2, 4]


class Counting(Processes):
    """The first of two processes; the other one reports a number of failures."""

    def __init__(self, failures: float = 0.0) -> None:
        super().__init__(0, 2)
        self.failures = failures
        self.waited = 0

    def wait(self) -> None:
        self.waited += 1

    def sum(self, values: Sequence[float]) -> list[float]:
        return [value + self.failures for value in values]

    def broadcast(self, value: bool, kind: type[bool]) -> bool:  # type: ignore[override]
        assert kind is bool
        return value


def checkpoint(rows: dict[str, RowRange] | None) -> Checkpoint:
    state = RunState(
        step=1,
        updates=1,
        steps=2,
        elapsed_seconds=1.0,
    )
    return Checkpoint(state, {"weights": {"w": torch.ones(2, 3)}}, rows)


def test_other_processes_are_notified_if_the_first_cannot_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise TransduceError("The disk is full.")

    monkeypatch.setattr("transduce.training.checkpoint.save_checkpoint", full)
    together = Counting()
    with pytest.raises(TransduceError, match="The disk is full"):
        save_checkpoint(tmp_path, checkpoint(None), keep=1, processes=together)
    assert together.waited == 1


def test_a_checkpoint_part_that_another_process_cannot_write_fails_in_all(tmp_path: Path) -> None:
    whole = checkpoint({"w": RowRange(0, [4, 3])})
    message = r"step-000000001 could not be written \(another process could not write its part\)"
    with pytest.raises(TransduceError, match=message) as raised:
        save_checkpoint(tmp_path, whole, keep=1, processes=Counting(failures=1.0))
    assert isinstance(raised.value.__cause__, OSError)  # so that the run continues, as with a full local disk
    assert list(tmp_path.iterdir()) == []
    save_checkpoint(tmp_path, whole, keep=1, processes=Counting())
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


@pytest.mark.usefixtures("second_of_two_processes")
def test_gpu_processes_reduce_cpu_tensors_by_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL alone takes nothing but the GPU's tensors, and the numbers of a step are the processor's."""
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: asked.append(backend))
    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    distributed._group_with_long_timeout.cache_clear()
    assert join_processes("cuda").rank == 1
    (backend,) = asked
    assert dist.distributed_c10d.BackendConfig(dist.Backend(backend)).get_device_backend_map() == {
        "cpu": "gloo",
        "cuda": "nccl",
    }
    distributed._group_with_long_timeout.cache_clear()
