"""Test the training loop on tiny models and random batches: resuming, skipping, stopping and reporting."""

import io
import json
import math
import os
import signal
import types
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from rich.console import Console
from torch import Tensor

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training import loop, schedule
from transduce.training.checkpoint import FORMAT_VERSION, Environment, average_weights, load_checkpoint, load_newest
from transduce.training.display import ProgressDisplay
from transduce.training.events import ValidationEvent
from transduce.training.loop import Safeguards, Trainer, TrainResult
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.schedule import constant_weight_decay
from transduce.training.settings import ResolvedTraining
from transduce.training.stopping import Interruption

Make = Callable[..., ResolvedTraining]
Pair = tuple[Tensor, Tensor]


class RandomBatches:
    """A plan of random pairs, a pure function of epoch and position, which records the requests."""

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.asked: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self.length

    def batch(self, epoch: int, position: int) -> Pair:
        self.asked.append((epoch, position))
        generator = torch.Generator().manual_seed(1000 * epoch + position)
        width = 3 + position % 3
        return (
            torch.randint(1, 13, (2 + position % 2, 4), generator=generator),
            torch.randint(1, 13, (2 + position % 2, width), generator=generator),
        )


class Setup:
    """A trainer of a tiny Transformer with dropout, and its console output."""

    def __init__(
        self,
        folder: Path,
        settings: ResolvedTraining,
        *,
        before_loss: Callable[[int], None] = lambda _: None,
        factor: Callable[[int], float] = lambda _: 1.0,
        **options: Any,
    ) -> None:
        torch.manual_seed(7)
        self.model = Transformer(
            ModelConfig(
                source_vocabulary_size=13,
                target_vocabulary_size=13,
                num_encoder_layers=1,
                num_decoder_layers=1,
                d_model=8,
                d_ff=12,
                num_heads=2,
                dropout=0.3,
                attention_dropout=0.2,
            )
        )
        self.before_loss = before_loss
        self.factor = factor
        self.losses: list[float] = []
        self.output = io.StringIO()
        self.batches = RandomBatches()
        self.trainer = Trainer(
            model=self.model,
            loss=self.loss,
            batches=self.batches,
            settings=settings,
            folder=folder,
            display=ProgressDisplay(Console(file=self.output, width=300)),
            **options,
        )

    def loss(self, batch: Pair) -> Loss:
        number = len(self.losses)
        self.before_loss(number)
        source, target = batch[:2]
        inputs = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
        hidden = self.model.hidden(source, inputs)
        loss = projected_cross_entropy(hidden, self.model.output_weight, target, pad_id=0)
        self.losses.append(loss.total.item())
        return loss._replace(total=loss.total * self.factor(number))

    def weights(self) -> Tensor:
        return torch.cat([parameter.detach().float().flatten() for parameter in self.model.parameters()])


def events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


class PowerCutError(Exception):
    """An exception that simulates a power cut."""


def crash_at(number: int) -> Callable[[int], None]:
    def crash(now: int) -> None:
        if now == number:
            raise PowerCutError

    return crash


# --- batches of processes without rows ---


class StandIn(NamedTuple):
    """A pair that counts nothing, as in a process without rows."""

    source: Tensor
    target: Tensor
    is_stand_in: bool = True


class HalfIdleBatches(RandomBatches):
    """A plan whose every second batch is a stand-in with pairs of its own."""

    def __init__(self, offset: int) -> None:
        super().__init__(6)
        self.offset = offset

    def batch(self, epoch: int, position: int) -> Any:
        real = super().batch(epoch, position)
        return StandIn(*super().batch(epoch + self.offset, position)) if position % 2 else real


def test_the_loss_of_a_stand_in_counts_nothing(tmp_path: Path, make_settings: Make) -> None:
    found = []
    for offset in (50, 90):
        folder = tmp_path / str(offset)
        folder.mkdir()
        setup = Setup(folder, make_settings(steps=4, accumulate=2, report_every=1))
        before = setup.weights()
        setup.trainer.batches = HalfIdleBatches(offset)
        setup.trainer.run()
        reports = [event for event in events(folder) if event["event"] == "train"]
        real = [math.prod(RandomBatches().batch(*divmod(2 * step, 6))[1].shape) for step in range(4)]
        means = [loss / tokens for loss, tokens in zip(setup.losses[::2], real, strict=True)]
        assert [event["loss"] for event in reports] == pytest.approx(means, rel=1e-5)
        assert not torch.equal(setup.weights(), before)
        found.append((setup.weights(), setup.losses[1::2]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] != found[1][1]


# --- resuming ---


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16", "average_decay": 0.9, "clip_norm": 0.5},
        {"accumulate": 2, "schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.1},
        {"optimizer": "muon", "schedule": "linear", "weight_decay": None},
    ],
    ids=str,
)
def test_a_resumed_run_equals_one_that_was_not_interrupted_bit_by_bit(
    tmp_path: Path, make_settings: Make, changes: dict[str, Any]
) -> None:
    settings = make_settings(save_every=3, **changes)
    whole = Setup(tmp_path / "whole", settings)
    (tmp_path / "whole").mkdir()
    whole.trainer.run()

    folder = tmp_path / "cut"
    folder.mkdir()
    with pytest.raises(PowerCutError):  # in step 6, two steps after the checkpoint of step 3
        Setup(folder, settings, before_loss=crash_at(5 * settings.accumulate)).trainer.run()
    resumed = Setup(folder, settings)
    torch.randn(100)  # whatever happened to the generator meanwhile
    assert resumed.trainer.resume()
    assert resumed.trainer.step == 3
    resumed.trainer.run()

    assert resumed.losses == whole.losses[3 * settings.accumulate :]
    assert torch.equal(resumed.weights(), whole.weights())
    for name, kept in whole.trainer.optimizer.weights_to_keep().items():
        assert torch.equal(resumed.trainer.optimizer.weights_to_keep()[name], kept)
    ours, theirs = (load_newest(one / "checkpoints")[0] for one in (folder, tmp_path / "whole"))
    assert ours is not None
    assert theirs is not None
    assert (ours.state.step, ours.state.updates) == (theirs.state.step, theirs.state.updates) == (8, 8)
    for kind, tensors in theirs.tensors.items():
        for name, tensor in tensors.items():
            assert torch.equal(ours.tensors[kind][name], tensor), (kind, name)
    assert [event["step"] for event in events(folder)] == [2, 4, 6, 8]
    timeless = ("step", "epoch", "learning_rate")
    assert [[e[k] for k in timeless] for e in events(folder)] == [
        [e[k] for k in timeless] for e in events(whole.trainer.folder)
    ]


def test_a_run_stopped_by_a_signal_saves_and_can_be_resumed(tmp_path: Path, make_settings: Make) -> None:
    def stop(number: int) -> None:
        if number == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    (tmp_path / "whole").mkdir()
    whole = Setup(tmp_path / "whole", make_settings())
    whole.trainer.run()
    (tmp_path / "cut").mkdir()
    stopped = Setup(tmp_path / "cut", make_settings(), before_loss=stop)
    result = stopped.trainer.run()
    assert (result.reason, result.step) == ("SIGTERM", 4)  # the fifth was given up at once
    resumed = Setup(tmp_path / "cut", make_settings())
    assert resumed.trainer.resume()
    assert resumed.trainer.run().reason == "finished"
    assert resumed.batches.asked[0] == (0, 4)
    assert torch.equal(resumed.weights(), whole.weights())


def test_a_signal_between_micro_batches_gives_up_the_step(tmp_path: Path, make_settings: Make) -> None:
    def stop(number: int) -> None:
        if number == 4:  # the first of the two micro-batches of step 3
            os.kill(os.getpid(), signal.SIGTERM)

    result = Setup(tmp_path, make_settings(accumulate=2), before_loss=stop).trainer.run()
    assert (result.reason, result.step) == ("SIGTERM", 2)
    newest, _ = load_newest(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.state.step == 2


def test_the_mean_of_the_last_checkpoints_is_kept_and_a_signal_does_not_change_it(
    tmp_path: Path, make_settings: Make
) -> None:
    """The mean is that of steps 2, 4, 6 and 8; a signal writes one more checkpoint at step 5, which does not count."""

    def stop(number: int) -> None:
        if number == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = make_settings(save_every=2, average_checkpoints=4)
    kept: list[dict[str, Tensor]] = []
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = Setup(tmp_path / "whole", settings, keep_model=lambda weights, _: kept.append(dict(weights)))
    whole.trainer.run()
    assert Setup(tmp_path / "cut", settings, before_loss=stop).trainer.run().step == 5
    resumed = Setup(tmp_path / "cut", settings, keep_model=lambda weights, _: kept.append(dict(weights)))
    assert resumed.trainer.resume()
    resumed.trainer.run()

    one, other = kept
    assert all(torch.equal(other[name], tensor) for name, tensor in one.items())
    folder = tmp_path / "whole" / "checkpoints"
    assert [path.name[-1] for path in sorted(folder.iterdir())] == ["2", "4", "6", "8"]
    stored = [load_checkpoint(path).tensors["weights"] for path in folder.iterdir()]
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, sum(each[name] for each in stored) / 4)

    # A damaged checkpoint is reported and left out.
    (folder / "step-000000004" / "weights.safetensors").write_bytes(b"rubbish")
    mean, refused = average_weights(stored[0], folder, [2, 4, 6])
    assert refused == [
        f"The checkpoint {folder / 'step-000000004'} is damaged: weights.safetensors is not what was written."
    ]
    assert mean.keys() == one.keys()


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_taken(tmp_path: Path, make_settings: Make) -> None:
    Setup(tmp_path, make_settings(save_every=4)).trainer.run()
    (tmp_path / "checkpoints" / "step-000000008" / "weights.safetensors").write_bytes(b"rubbish")
    resumed = Setup(tmp_path, make_settings(save_every=4))
    assert resumed.trainer.resume()
    assert resumed.trainer.step == 4
    assert "step-000000008 is damaged: weights.safetensors is not what was written" in resumed.output.getvalue()


def test_another_machine_is_reported_in_one_line(tmp_path: Path, make_settings: Make) -> None:
    first = Environment(device="cpu", instructions="x86_64 AVX512 AMX", threads=2, torch="2.13.0")
    second = msgspec.structs.replace(first, threads=1, instructions="x86_64 AVX2")
    Setup(tmp_path, make_settings(), safeguards=Safeguards(environment=first)).trainer.run()
    same = Setup(tmp_path, make_settings(), safeguards=Safeguards(environment=first))
    same.trainer.resume()
    assert same.output.getvalue() == ""
    other = Setup(tmp_path, make_settings(), safeguards=Safeguards(environment=second))
    other.trainer.resume()
    assert other.output.getvalue() == (
        "The run continues, but not bit for bit as without the interruption: instructions x86_64 AVX512 AMX then, "
        "x86_64 AVX2 now, threads 2 then, 1 now.\n"
    )


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path, make_settings: Make) -> None:
    setup = Setup(tmp_path, make_settings())
    assert not setup.trainer.resume()
    assert setup.trainer.step == 0


def test_a_finished_run_resumes_only_if_more_steps_are_set(tmp_path: Path, make_settings: Make) -> None:
    Setup(tmp_path, make_settings()).trainer.run()
    again = Setup(tmp_path, make_settings())
    again.trainer.resume()
    assert again.trainer.run().step == 8
    assert again.losses == []
    longer = Setup(tmp_path, make_settings(steps=10))
    longer.trainer.resume()
    assert longer.trainer.run().step == 10
    assert len(longer.losses) == 2


def test_a_line_that_a_killed_run_left_unfinished_is_removed(tmp_path: Path, make_settings: Make) -> None:
    Setup(tmp_path, make_settings()).trainer.run()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event":"train","st')
    resumed = Setup(tmp_path, make_settings(steps=10))
    resumed.trainer.resume()
    resumed.trainer.run()
    assert [event["step"] for event in events(tmp_path)] == [2, 4, 6, 8, 10]


# --- steps ---


def test_batches_come_in_order_epoch_by_epoch(tmp_path: Path, make_settings: Make) -> None:
    setup = Setup(tmp_path, make_settings(steps=4, accumulate=2))
    setup.trainer.run()
    assert setup.batches.asked == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2)]


def test_each_micro_batch_has_random_numbers_of_its_own() -> None:
    seeds = {loop._seed(seed, position, rank) for seed in range(25) for position in range(1000) for rank in range(4)}
    assert len(seeds) == 50 * 2000
    for seed in (0, 1, 2**31, 2**62):
        torch.manual_seed(loop._seed(seed, 10**9, 7))  # within what PyTorch takes


def test_a_gradient_that_is_not_finite_skips_exactly_one_step(tmp_path: Path, make_settings: Make) -> None:
    weights: list[Tensor] = []
    bad = 3

    def remember(_: int) -> None:
        weights.append(setup.weights())

    setup = Setup(
        tmp_path, make_settings(), before_loss=remember, factor=lambda number: math.nan if number == bad else 1.0
    )
    result = setup.trainer.run()
    weights.append(setup.weights())
    assert result.step == 8
    unchanged = [torch.equal(before, after) for before, after in pairwise(weights)]
    # The fourth batch is computed twice, the second time to find where the first bad number arose.
    assert unchanged == [number in (bad, bad + 1) for number in range(9)]
    assert setup.trainer.optimizer.updates == 7
    assert [event["skipped"] for event in events(tmp_path)] == [0, 1, 0, 0]
    assert all(bool(w.isfinite().all()) for w in weights)


class SetupWithoutTargets(Setup):
    """A trainer whose loss counts no target in the calls with these numbers, or in no call (None)."""

    empty: tuple[int, ...] | None = None

    def loss(self, batch: Pair) -> Loss:
        number = len(self.losses)
        loss = super().loss(batch)
        if self.empty is None or number in self.empty:
            return loss._replace(total=loss.total * 0.0, negative_log_likelihood=torch.zeros(()), weight=0.0)
        return loss


def test_a_step_without_targets_changes_nothing(tmp_path: Path, make_settings: Make) -> None:
    weights: list[Tensor] = []
    setup = SetupWithoutTargets(tmp_path, make_settings(), before_loss=lambda _: weights.append(setup.weights()))
    setup.empty = (3,)
    assert setup.trainer.run().step == 8
    weights.append(setup.weights())
    assert [torch.equal(before, after) for before, after in pairwise(weights)] == [number == 3 for number in range(8)]
    assert setup.trainer.optimizer.updates == 7
    assert (
        "Step 4 changed nothing: no target of its batches has a weight above 0 in the loss." in setup.output.getvalue()
    )
    (record,) = (tmp_path / "faults").iterdir()
    assert json.loads(record.read_text())["micro_batches"] == [{"position": 3, "loss": 0.0}]


def test_a_run_without_targets_stops_with_advice(tmp_path: Path, make_settings: Make) -> None:
    setup = SetupWithoutTargets(tmp_path, make_settings(steps=40))
    with pytest.raises(TransduceError, match=r"^No target of the last steps \(until step 20\) has a weight above 0"):
        setup.trainer.run()
    assert setup.trainer.optimizer.updates == 0


def test_a_run_without_any_finite_gradient_stops_with_advice(tmp_path: Path, make_settings: Make) -> None:
    setup = Setup(tmp_path, make_settings(steps=30), factor=lambda _: math.inf)
    message = (
        r"No gradient was finite over the last 20 steps \(until step 20\): lower `training\.learning_rate` \(0\.01\) "
        r"or raise `training\.warmup_steps` \(0\)\."
    )
    with pytest.raises(TransduceError, match=message):
        setup.trainer.run()


def test_reported_losses_are_means_per_token(tmp_path: Path, make_settings: Make) -> None:
    setup = Setup(tmp_path, make_settings(steps=4, schedule="linear", warmup_steps=2))
    setup.trainer.run()
    tokens = [pair[1].numel() for pair in (RandomBatches().batch(0, position) for position in range(4))]
    first, second = events(tmp_path)
    assert first["loss"] == pytest.approx(sum(setup.losses[:2]) / sum(tokens[:2]))
    assert second["loss"] == pytest.approx(sum(setup.losses[2:]) / sum(tokens[2:]))
    assert second["perplexity"] == pytest.approx(math.exp(second["loss"]))  # nothing is smoothed here
    assert [first["step"], first["epoch"], first["learning_rate"]] == [2, 0.4, pytest.approx(0.01)]
    assert [second["step"], second["epoch"], second["learning_rate"]] == [4, 0.8, 0.0]
    assert "step 2/4 · loss " in setup.output.getvalue()


# --- minutes ---


def test_minutes_become_steps_once_and_the_number_is_kept(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes half a second by this clock. After 10 steps, 5 seconds of 30, the minutes are 60 steps."""
    now = [0.0]
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def tick(_: int) -> None:
        now[0] += 0.5

    settings = make_settings(steps=None, minutes=0.5, schedule="linear", save_every=20)
    setup = Setup(tmp_path, settings, before_loss=tick)
    result = setup.trainer.run()
    assert (result.step, result.steps, result.reason) == (60, 60, "finished")
    assert "0.5 min are about 60 steps at the current speed." in setup.output.getvalue()
    resumed = Setup(tmp_path, settings)
    resumed.trainer.resume()
    assert resumed.trainer.steps == 60
    assert resumed.trainer.elapsed_seconds == pytest.approx(30.0)


def test_a_run_with_minutes_is_repeated_exactly_by_its_plan(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps get slower after a third of the time; the replay, on a clock that stands still, takes the same ones."""
    now = [0.0]
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def tick(_: int) -> None:
        now[0] += 0.5 if now[0] < 20.0 else 1.5

    def run(name: str, settings: ResolvedTraining, before_loss: Callable[[int], None]) -> tuple[Any, Tensor]:
        folder = tmp_path / name
        folder.mkdir()
        setup = Setup(folder, settings, before_loss=before_loss)
        setup.trainer.resume()
        return setup.trainer.run(), setup.weights()

    settings = make_settings(steps=None, minutes=1.0, schedule="linear", warmup_steps=20, weight_decay=None)
    result, weights = run("first", settings, tick)
    assert now[0] == pytest.approx(60.0, abs=1.5)
    assert len(result.time_plan) > 1
    assert result.step == result.steps < 120
    planned = msgspec.structs.replace(settings, time_plan=result.time_plan)
    again, same = run("again", planned, lambda _: None)
    assert again.step == result.step
    assert torch.equal(weights, same)


def test_weights_decay_from_when_minutes_became_steps_on_and_after_a_stop_by_as_much(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    decays: dict[str, list[float]] = {"first": [], "again": []}

    def run(name: str, steps: int) -> None:
        def tick(position: int) -> None:
            now[0] += 0.5
            if position == steps:
                raise PowerCutError

        trainer = Setup(tmp_path, settings, before_loss=tick).trainer
        take = trainer.optimizer.step

        def step(tokens: int, rate: float, weight_decay: float = 0.0) -> float:
            decays[name].append(weight_decay)
            return take(tokens, rate, weight_decay)

        monkeypatch.setattr(trainer.optimizer, "step", step)
        trainer.resume()
        trainer.run()

    settings = make_settings(steps=None, minutes=0.5, schedule="linear", save_every=20, weight_decay=None)
    with pytest.raises(PowerCutError):
        run("first", 25)
    run("again", 100)
    known = constant_weight_decay(
        60, schedule="linear", peak=settings.learning_rate, warmup_steps=settings.warmup_steps
    )
    assert known > 0.0
    assert decays == {"first": [0.0] * 10 + [known] * 15, "again": [known] * 40}


# --- validation ---


class Script:
    """A validator that reads losses from a list, and records which weights were kept."""

    def __init__(
        self,
        losses: list[float],
        bleu: list[float] | None = None,
        perfect: tuple[int, ...] = (),
        sentences: list[list[float]] | None = None,
    ) -> None:
        self.losses = losses
        self.bleu = [sum(each) / len(each) for each in sentences] if sentences else bleu
        self.sentences = sentences
        self.perfect = perfect
        self.steps: list[int] = []
        self.kept: list[int | None] = []

    def validate(self, weights: Mapping[str, Tensor], step: int) -> ValidationEvent:
        assert "source_weight" in weights
        number = len(self.steps)
        self.steps.append(step)
        loss = self.losses[number]
        return ValidationEvent(
            step=step,
            loss=loss,
            perplexity=math.exp(loss),
            bleu=None if self.bleu is None else self.bleu[number],
            perfect=step in self.perfect,
            contributions=self.sentences[number] if self.sentences else [],
        )

    def keep(self, weights: Mapping[str, Tensor], event: ValidationEvent | None) -> None:
        assert "source_weight" in weights
        self.kept.append(None if event is None else event.step)


def run_validated(folder: Path, settings: ResolvedTraining, script: Script) -> TrainResult:
    return Setup(folder, settings, validate=script.validate, keep_model=script.keep).trainer.run()


def test_the_best_model_by_dev_loss_is_kept(tmp_path: Path, make_settings: Make) -> None:
    script = Script([3.0, 2.0, 2.5, 1.0])
    result = run_validated(tmp_path, make_settings(validate_every=2), script)
    assert script.steps == [2, 4, 6, 8]
    assert script.kept == [2, 4, 8]
    assert (result.best_step, result.best_value) == (8, -1.0)


def test_the_best_model_by_bleu_is_kept(tmp_path: Path, make_settings: Make) -> None:
    script = Script([1.0, 2.0, 3.0, 4.0], bleu=[10.0, 12.0, 12.0, 11.0])
    result = run_validated(tmp_path, make_settings(validate_every=2, best_by="bleu"), script)
    assert script.kept == [2, 4]
    assert (result.best_step, result.best_value) == (4, 12.0)


def test_the_loss_decides_between_equal_scores(tmp_path: Path, make_settings: Make) -> None:
    script = Script([7.0, 6.0, 5.0, 5.5], bleu=[0.0, 0.0, 0.0, 0.0])
    settings = make_settings(validate_every=2, best_by="bleu", patience=2)
    assert run_validated(tmp_path, settings, script).best_step == 6
    assert script.kept == [2, 4, 6]


def test_the_loss_decides_between_scores_that_differ_by_less_than_noise(tmp_path: Path, make_settings: Make) -> None:
    """On four sentences, the third score is higher by 0.25 with a standard error of 0.63; the last, by 2 with none."""
    first, noisy, better = [1.0, 2.0, 3.0, 4.0], [3.0, 1.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]
    script = Script([7.0, 6.0, 6.5, 6.6], sentences=[noisy, first, noisy, better])
    run_validated(tmp_path, make_settings(validate_every=2, best_by="bleu"), script)
    assert script.kept == [2, 4, 8]
    assert b"contributions" not in (tmp_path / "metrics.jsonl").read_bytes()


def test_scores_within_noise_are_compared_with_the_highest_score(tmp_path: Path, make_settings: Make) -> None:
    """Each score is within the noise of the one before, but the last is not within the noise of the highest."""
    script = Script([7.0, 6.0, 5.0, 4.0], sentences=[[10.0, 10.0], [8.0, 11.0], [9.0, 9.0], [7.4, 9.4]])
    run_validated(tmp_path, make_settings(validate_every=2, best_by="bleu"), script)
    assert script.kept == [2, 4, 6]


def test_patience_waits_for_the_warm_up_and_while_the_loss_falls(tmp_path: Path, make_settings: Make) -> None:
    """BLEU near 0 wanders, and says nothing; the loss falls at every validation until step 12."""
    losses = [7.0, 7.5, 7.6, 6.0, 5.0, 4.0, 4.1, 4.2, 4.3]
    script = Script(losses, bleu=[0.1, 0.0, 0.0, 0.0, 0.1, 0.05, 0.0, 0.0, 0.0])
    settings = make_settings(steps=20, validate_every=2, best_by="bleu", patience=2, warmup_steps=6)
    result = run_validated(tmp_path, settings, script)
    assert (result.reason, result.step) == ("no improvement", 16)


def test_a_resumed_run_judges_noise_as_before(tmp_path: Path, make_settings: Make) -> None:
    first, noisy = [1.0, 2.0, 3.0, 4.0], [3.0, 1.0, 3.0, 4.0]
    settings = make_settings(steps=2, validate_every=2, best_by="bleu")
    run_validated(tmp_path, settings, Script([6.0], sentences=[first]))
    script = Script([7.0], sentences=[noisy])
    longer = Setup(
        tmp_path,
        make_settings(steps=4, validate_every=4, best_by="bleu"),
        validate=script.validate,
        keep_model=script.keep,
    )
    assert longer.trainer.resume()
    assert longer.trainer.run().best_step == 2
    assert script.kept == []


def test_patience_stops_a_run_that_no_longer_improves(tmp_path: Path, make_settings: Make) -> None:
    script = Script([1.0, 2.0, 0.5, 2.0, 2.0, 0.1])
    result = run_validated(tmp_path, make_settings(steps=20, validate_every=2, patience=2), script)
    assert (result.reason, result.step, result.best_step) == ("no improvement", 10, 6)
    newest, _ = load_newest(tmp_path / "checkpoints")
    assert newest is not None
    assert (newest.state.step, newest.state.best.value) == (10, -0.5)


def test_a_run_ends_once_all_of_the_dev_set_was_right_twice_in_a_row(tmp_path: Path, make_settings: Make) -> None:
    """Once may be luck; the model of the two with the lower loss is kept."""
    script = Script([1.0] * 10, bleu=[100.0, 99.0, 100.0, 100.0, 100.0], perfect=(2, 6, 8, 10))
    result = run_validated(tmp_path, make_settings(steps=20, validate_every=2, best_by="bleu", patience=6), script)
    assert (result.reason, result.step) == ("the whole dev set was right 2 times in a row", 8)
    assert result.best_step == 2


def test_a_perfect_validation_is_kept_across_a_resume(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(steps=20, validate_every=2, patience=6)
    run_validated(tmp_path, make_settings(steps=2, validate_every=2, patience=6), Script([1.0], perfect=(2,)))
    resumed = Setup(tmp_path, settings, validate=Script([1.0], perfect=(4,)).validate)
    assert resumed.trainer.resume()
    assert resumed.trainer.run().step == 4
    again = Setup(tmp_path, settings, validate=Script([]).validate)
    assert again.trainer.resume()
    assert again.trainer.run().reason == "the whole dev set was right 2 times in a row"


def test_without_patience_a_run_with_perfect_scores_continues(tmp_path: Path, make_settings: Make) -> None:
    script = Script([1.0] * 4, perfect=(2, 4, 6, 8))
    assert run_validated(tmp_path, make_settings(validate_every=2, patience=0), script).reason == "finished"


def test_patience_is_counted_across_a_resume(tmp_path: Path, make_settings: Make) -> None:
    run_validated(tmp_path, make_settings(steps=4, validate_every=2, patience=3), Script([1.0, 2.0]))
    script = Script([2.0, 2.0, 2.0])
    settings = make_settings(steps=20, validate_every=2, patience=3)
    resumed = Setup(tmp_path, settings, validate=script.validate, keep_model=script.keep)
    resumed.trainer.resume()
    result = resumed.trainer.run()
    assert (result.reason, result.step, result.best_step) == ("no improvement", 8, 2)
    assert script.kept == []


def test_a_value_of_another_measure_is_not_compared_on_resume(tmp_path: Path, make_settings: Make) -> None:
    """A BLEU of 30 is no loss: by losses, which are judged as -loss, nothing would ever be better."""
    first = Script([2.0, 2.0], bleu=[30.0, 20.0])
    run_validated(tmp_path, make_settings(steps=4, validate_every=2, best_by="bleu"), first)
    assert first.kept == [2]
    script = Script([1.5, 1.7])
    settings = make_settings(validate_every=2, best_by="loss")
    resumed = Setup(tmp_path, settings, validate=script.validate, keep_model=script.keep)
    resumed.trainer.resume()
    result = resumed.trainer.run()
    assert script.kept == [6]
    assert (result.best_step, result.best_value) == (6, -1.5)


@pytest.mark.parametrize(("version", "best_step"), [(3, 8), (FORMAT_VERSION, 2)])
def test_a_skill_against_another_baseline_is_not_compared_on_resume(
    tmp_path: Path, make_settings: Make, version: int, best_step: int
) -> None:
    shorter, settings = (make_settings(steps=steps, validate_every=2, best_by="skill", patience=3) for steps in (4, 8))
    Setup(tmp_path, shorter, validate=skills([0.9, 0.8])).trainer.run()
    checkpoint, _ = load_newest(tmp_path / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.state.best.validations_since == 1
    resumed = Setup(tmp_path, settings, validate=skills([0.3, 0.4]))
    resumed.trainer.resume_from(
        msgspec.structs.replace(checkpoint, state=msgspec.structs.replace(checkpoint.state, format_version=version))
    )
    result = resumed.trainer.run()
    assert (result.reason, result.best_step) == ("finished" if version == 3 else "no improvement", best_step)


def skills(values: list[float]) -> Callable[[Mapping[str, Tensor], int], ValidationEvent]:
    """Return a validator that reads skills from a list; the loss falls with the skill."""
    left = iter(values)

    def validate(_: Mapping[str, Tensor], step: int) -> ValidationEvent:
        skill = next(left)
        return ValidationEvent(step=step, loss=1 - skill, perplexity=math.exp(1 - skill), scores={"skill": skill})

    return validate


def test_a_run_that_ended_for_want_of_improvement_does_no_step_more(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(steps=20, validate_every=2, patience=2)
    run_validated(tmp_path, settings, Script([1.0, 2.0, 2.0]))
    script = Script([0.9 - 0.05 * number for number in range(10)])
    resumed = Setup(tmp_path, settings, validate=script.validate, keep_model=script.keep)
    assert resumed.trainer.resume()
    result = resumed.trainer.run()
    assert (result.reason, result.step) == ("no improvement", 6)
    assert script.steps == resumed.losses == []
    patient = Setup(tmp_path, make_settings(steps=20, validate_every=2, patience=5), validate=script.validate)
    assert patient.trainer.resume()
    assert patient.trainer.run().reason == "finished"


def test_a_validation_that_is_not_a_number_is_never_the_best(tmp_path: Path, make_settings: Make) -> None:
    script = Script([math.nan, 3.0, math.inf, math.nan])
    result = run_validated(tmp_path, make_settings(validate_every=2), script)
    assert script.kept == [4]
    assert (result.best_step, result.best_value) == (4, -3.0)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_run_resumes_after_a_validation_that_was_not_a_number(
    tmp_path: Path, make_settings: Make, number: float
) -> None:
    with pytest.raises(TransduceError, match=r"^No model was kept, as the dev loss was not finite at any validation"):
        run_validated(tmp_path, make_settings(steps=4, validate_every=2), Script([number, number]))
    script = Script([3.0, 2.5])
    again = Setup(
        tmp_path, make_settings(steps=8, validate_every=2), validate=script.validate, keep_model=script.keep
    ).trainer
    assert again.resume()
    assert again.run().best_value == -2.5
    assert script.kept == [6, 8]


def test_validation_happens_twelve_times_when_not_set_but_not_every_few_steps(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fewest, steps in ((1, list(range(2, 25, 2))), (10, [10, 20, 24])):
        monkeypatch.setattr(schedule, "_MIN_STEPS", fewest)
        script = Script([1.0] * 12)
        (tmp_path / str(fewest)).mkdir()
        run_validated(tmp_path / str(fewest), make_settings(steps=24, validate_every=None, save_every=None), script)
        assert script.steps == steps


def test_the_last_step_is_validated_in_any_case(tmp_path: Path, make_settings: Make) -> None:
    script = Script([1.0, 1.0, 1.0])
    run_validated(tmp_path, make_settings(validate_every=3), script)
    assert script.steps == [3, 6, 8]


def test_without_a_dev_set_every_due_model_is_kept(tmp_path: Path, make_settings: Make) -> None:
    script = Script([])
    Setup(tmp_path, make_settings(validate_every=4), keep_model=script.keep).trainer.run()
    assert script.kept == [None, None]


def test_the_model_trains_on_after_validation(tmp_path: Path, make_settings: Make) -> None:
    """A validator that puts the model into evaluation must not switch dropout off for the rest of the run."""
    modes: list[bool] = []

    def validate(_: Mapping[str, Tensor], step: int) -> ValidationEvent:
        setup.model.eval()
        return ValidationEvent(step=step, loss=1.0, perplexity=math.e)

    setup = Setup(
        tmp_path,
        make_settings(validate_every=2),
        before_loss=lambda _: modes.append(setup.model.training),
        validate=validate,
    )
    setup.trainer.run()
    assert modes == [True] * 8


def test_validation_changes_no_weight(tmp_path: Path, make_settings: Make) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "validated").mkdir()
    plain = Setup(tmp_path / "plain", make_settings())
    plain.trainer.run()
    script = Script([1.0] * 8)
    validated = Setup(tmp_path / "validated", make_settings(validate_every=1), validate=script.validate)
    validated.trainer.run()
    assert torch.equal(plain.weights(), validated.weights())


def test_the_second_ctrl_c_stops_at_once_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
