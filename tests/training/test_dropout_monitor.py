"""Test that dropout is turned off if the loss is higher with it, and stays off."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from transduce.model.feed_forward import Dropout
from transduce.training.display import ProgressDisplay
from transduce.training.loop import Trainer, TrainResult
from transduce.training.loss import Loss, StepTotals
from transduce.training.loss_spikes import DropoutMonitor
from transduce.training.settings import ResolvedTraining

Make = Callable[..., ResolvedTraining]


class Noisy(nn.Module):
    """A model of a weight of ones with dropout."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.dropout, self.nothing = Dropout(p), Dropout(0.0)

    def forward(self) -> Tensor:
        return self.nothing(self.dropout(self.weight))  # type: ignore[no-any-return]


class Steps:
    """A plan whose batches are their numbers."""

    def __len__(self) -> int:
        return 100

    def batch(self, epoch: int, position: int) -> int:
        return epoch * len(self) + position


class Setup:
    """A trainer with a fixed loss: `without` nats per token without dropout, and 1 with it."""

    def __init__(self, folder: Path, settings: ResolvedTraining, without: float) -> None:
        self.model, self.output, self.without = Noisy(), io.StringIO(), without
        self.noisy: list[tuple[int, bool]] = []
        display = ProgressDisplay(Console(file=self.output, width=300))
        self.trainer = Trainer(
            model=self.model, loss=self.loss, batches=Steps(), settings=settings, folder=folder, display=display
        )

    def loss(self, batch: int) -> Loss:
        total = self.model().sum()
        drops = self.model.dropout.training and self.model.dropout.p > 0
        self.noisy.append((batch, drops))
        return Loss(total, torch.tensor(1.0 if drops else self.without) * 10, 10)

    def run(self) -> TrainResult:
        return self.trainer.run()


def test_dropout_that_does_harm_is_turned_off_and_why_is_reported(tmp_path: Path, make_settings: Make) -> None:
    setup = Setup(tmp_path, make_settings(steps=6, validate_every=2, adapt_dropout=True), without=1.25)
    setup.run()
    assert setup.noisy == [(0, True), (1, True), (1, False), (2, False), (3, False), (4, False), (5, False)]
    assert "Dropout is off from step 3 on" in setup.output.getvalue()
    assert "a loss of 1.000 with dropout and 1.250 without" in setup.output.getvalue()


@pytest.mark.parametrize("without", [0.5, 1.04, float("nan"), float("inf")])
def test_dropout_without_which_the_loss_is_not_clearly_lower_stays_on(
    tmp_path: Path, make_settings: Make, without: float
) -> None:
    setup = Setup(tmp_path, make_settings(steps=6, validate_every=2, adapt_dropout=True), without=without)
    setup.run()
    # Each validation but the last looks at the step before it once more.
    assert setup.noisy == [(0, True), (1, True), (1, False), (2, True), (3, True), (3, False), (4, True), (5, True)]
    assert "Dropout" not in setup.output.getvalue()


def test_dropout_that_was_set_is_never_turned_off(tmp_path: Path, make_settings: Make) -> None:
    setup = Setup(tmp_path, make_settings(steps=6, validate_every=2), without=9.0)
    setup.run()
    assert all(noisy for _, noisy in setup.noisy)


def test_dropout_that_was_turned_off_stays_off_after_resuming(tmp_path: Path, make_settings: Make) -> None:
    Setup(tmp_path, make_settings(steps=4, validate_every=2, adapt_dropout=True), without=2.0).run()
    resumed = Setup(tmp_path, make_settings(steps=6, validate_every=2, adapt_dropout=True), without=2.0)
    assert resumed.trainer.resume()
    resumed.run()
    assert resumed.noisy == [(4, False), (5, False)]


def test_monitoring_dropout_does_not_change_the_trained_weights(tmp_path: Path, make_settings: Make) -> None:
    found = []
    for adapts in (True, False):
        folder = tmp_path / str(adapts)
        folder.mkdir()
        setup = Setup(folder, make_settings(steps=7, validate_every=2, adapt_dropout=adapts), without=0.5)
        setup.run()
        found.append(setup.model.weight.detach())
    assert torch.equal(*found)


def test_the_monitor_disables_dropout_but_keeps_batch_norm_in_training_mode() -> None:
    noisy, norm = Noisy(), nn.BatchNorm1d(3)
    model = nn.Sequential(noisy, norm)
    watch = DropoutMonitor(model)
    states: list[tuple[bool, bool]] = []

    def loss() -> Iterator[Loss]:
        states.append((noisy.dropout.training, norm.training))
        yield Loss(torch.tensor(1.0), torch.tensor(2.5), 1)

    assert watch.negative_log_likelihood_without_dropout(loss()) == 2.5
    assert states == [(False, True)]
    assert all(module.training for module in model.modules())


def test_the_monitor_is_inactive_without_dropout_and_after_turning_it_off() -> None:
    assert not DropoutMonitor(Noisy(p=0.0)).is_active
    model = Noisy()
    watch = DropoutMonitor(model)
    assert watch.judge(1, StepTotals(10, 10.0, 1.0, 10.0), 10.0) is None
    assert watch.is_active
    assert watch.judge(1, StepTotals(10, 10.0, 1.0, 10.0), 11.0) is not None
    assert not watch.is_active
    assert torch.equal(model(), torch.ones(8))
    assert "p=0.0" in repr(model)
