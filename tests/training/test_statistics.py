"""Test BatchNorm's running statistics: saved, resumed, kept with the model, and unchanged by skipped steps."""

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transduce.atomic_io import file_sha256
from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder.read import MANIFEST, WEIGHTS, read_any_model_folder
from transduce.tasks.train import train
from transduce.training.checkpoint import load_newest
from transduce.training.distributed import Processes
from transduce.training.loop import Trainer, make_optimizer
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.memory import try_batches
from transduce.training.optimizer import FlatOptimizer
from transduce.training.settings import ResolvedTraining

Make = Callable[..., ResolvedTraining]
Pair = tuple[Tensor, Tensor]
STATISTICS = 2 * (2 + 3 + 2)  # means and variances of an encoder layer, a decoder layer, and the two last norms


def tiny_model() -> Transformer:
    torch.manual_seed(7)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "d_ff": 12, "num_heads": 2}
    return Transformer(
        ModelConfig(source_vocabulary_size=13, target_vocabulary_size=13, norm="batch", dropout=0.2, **sizes)  # type: ignore[arg-type]
    )


class Pairs:
    """A plan of random pairs, some of them shorter than others."""

    def __len__(self) -> int:
        return 4

    def batch(self, epoch: int, position: int) -> Pair:
        generator = torch.Generator().manual_seed(100 * epoch + position)
        pieces = torch.randint(1, 13, (3, 10), generator=generator)
        source, target = pieces[:, :5], pieces[:, 5:].clone()
        target[0, 3:] = 0
        return source, target


def loss_of(model: Transformer, batch: Pair) -> Loss:
    source, target = batch
    inputs = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
    return projected_cross_entropy(model.hidden(source, inputs), model.output_weight, target, pad_id=0)


class Run:
    """A trainer of the tiny model; `event` is called before each loss with its number."""

    def __init__(self, folder: Path, settings: ResolvedTraining, event: Callable[[int], float] = lambda _: 1.0) -> None:
        folder.mkdir(exist_ok=True)
        self.model, self.event, self.count = tiny_model(), event, 0
        self.trainer = Trainer(model=self.model, loss=self.loss, batches=Pairs(), settings=settings, folder=folder)

    def loss(self, batch: Pair) -> Loss:
        factor = self.event(self.count)
        self.count += 1
        loss = loss_of(self.model, batch)
        return loss._replace(total=loss.total * factor)

    def state(self) -> dict[str, Tensor]:
        found = self.trainer.optimizer.state()
        return {f"{kind} {name}": tensor for kind, tensors in found.items() for name, tensor in tensors.items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16", "average_decay": 0.9, "accumulate": 2}], ids=str)
def test_a_run_stopped_in_the_middle_of_a_step_ends_as_one_that_was_not(
    tmp_path: Path, make_settings: Make, changes: dict[str, Any]
) -> None:
    def stop(number: int) -> float:
        if number == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return 1.0

    settings = make_settings(**changes)
    whole = Run(tmp_path / "whole", settings)
    whole.trainer.run()
    result = Run(tmp_path / "cut", settings, stop).trainer.run()
    assert (result.reason, result.step) == ("SIGTERM", 5 // settings.accumulate)
    resumed = Run(tmp_path / "cut", settings)
    assert resumed.trainer.resume()
    resumed.trainer.run()
    assert_same(resumed.state(), whole.state())
    assert_same(resumed.trainer.optimizer.weights_to_keep(), whole.trainer.optimizer.weights_to_keep())
    newest, _ = load_newest(tmp_path / "cut" / "checkpoints")
    assert newest is not None
    assert len(newest.tensors["statistics"]) == STATISTICS
    for name, tensor in newest.tensors["statistics"].items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, whole.model.state_dict()[name])


def test_a_skipped_step_leaves_the_running_statistics_unchanged(tmp_path: Path, make_settings: Make) -> None:
    """Also where its batch is computed once more, to find out which module is to blame."""
    seen: list[dict[str, Tensor]] = []

    def poison(number: int) -> float:
        if number == 2:
            run.model.source_weight.data[4] = math.inf  # every norm now sees what is not finite
        if number in (2, 4):  # 3 is the search for the origin
            seen.append({name: tensor.clone() for name, tensor in run.state().items() if "statistics" in name})
        if number == 4:
            run.model.source_weight.data[4] = 0.1
        return 1.0

    run = Run(tmp_path / "run", make_settings(steps=4), poison)
    run.trainer.run()
    assert run.trainer.optimizer.updates == 3
    assert_same(seen[0], seen[1])
    assert all(tensor.isfinite().all() for tensor in run.model.buffers())


def test_trying_the_largest_batch_changes_no_statistics(make_settings: Make) -> None:
    model = tiny_model()
    optimizer = FlatOptimizer(model, make_settings(), torch.float32)
    before = {name: tensor.clone() for name, tensor in optimizer.state()["statistics"].items()}
    try_batches(optimizer, lambda batch: loss_of(model, batch), [Pairs().batch(0, 0)])
    assert_same(optimizer.state()["statistics"], before)
    optimizer.begin_batch(last=True)
    assert_same({name: model.state_dict()[name] for name in before}, before)


def test_the_state_of_a_model_without_batch_norm_has_no_statistics(make_settings: Make) -> None:
    plain = Transformer(ModelConfig(source_vocabulary_size=13, target_vocabulary_size=13, d_model=8, num_heads=2))
    assert set(FlatOptimizer(plain, make_settings(average_decay=0.9), torch.float32).state()) == {
        "weights",
        "exp_avg",
        "exp_avg_sq",
        "average",
    }


@pytest.mark.parametrize("sharded", [False, True])
def test_batch_norm_is_refused_with_several_processes(make_settings: Make, *, sharded: bool) -> None:
    model = tiny_model()
    with pytest.raises(
        TransduceError, match=r"BatchNorm keeps statistics .* \(encoder_layers\..*there are 2: train with one"
    ):
        make_optimizer(model, lambda batch: loss_of(model, batch), make_settings(sharded=sharded), Processes(0, 2))
    with pytest.raises(TransduceError, match=r"BatchNorm keeps statistics .* \(0\)"):
        make_optimizer(nn.Sequential(nn.BatchNorm1d(3)), loss_of, make_settings(sharded=sharded), Processes(0, 2))  # type: ignore[arg-type]


class Scaled(nn.Linear):
    """A linear layer with a stored buffer, as a component of a user's own may have."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("scale", torch.tensor([1.0, math.nan]))


def test_a_buffer_that_training_does_not_change_is_no_reason_to_refuse_several_processes(make_settings: Make) -> None:
    model = nn.Sequential(Scaled())
    optimizer, _ = make_optimizer(model, loss_of, make_settings(), Processes(0, 2))  # type: ignore[arg-type]
    assert isinstance(optimizer, FlatOptimizer)
    optimizer.gradient.fill_(1.0)
    assert optimizer.step(1.0, 0.1) > 0.0
    model[0].scale[0] = 2.0  # type: ignore[operator]
    with pytest.raises(TransduceError, match=r"^Training changes buffers of the model \(0\.scale\)"):
        optimizer.step(1.0, 0.1)


def test_a_divided_model_with_a_buffer_is_refused(make_settings: Make) -> None:
    with pytest.raises(TransduceError, match=r"only parameters are stored, but the model has buffers \(0\.scale\)"):
        make_optimizer(nn.Sequential(Scaled()), loss_of, make_settings(sharded=True), Processes(0, 2))  # type: ignore[arg-type]


def test_a_batch_norm_run_stores_its_statistics_and_searches_with_them(
    toy_settings: dict[str, Any], tmp_path: Path
) -> None:
    """The kept folder is complete, and gives the same probabilities with and without a cache."""
    settings = toy_settings | {"model.norm": "batch", "training.steps": 40}
    train(out=tmp_path / "run", settings=settings, device="cpu", threads=1)
    stored = load_file(tmp_path / "run" / "model.safetensors")
    assert sum("running_" in name for name in stored) == 2 * (2 * 2 + 2 * 3 + 2)
    model = read_any_model_folder(tmp_path / "run").model
    assert isinstance(model, Transformer)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, stored[name])
    translator = open_translator(tmp_path / "run", precision="fp32", device="cpu", threads=1)
    source = torch.tensor([[*translator.tokenizer.source.encode("我喜欢苹果。"), model.config.eos_id]])
    target = torch.tensor([[model.config.start_id, *translator.tokenizer.target.encode("I like apples.")]])
    with torch.inference_mode():
        together = model(source, target)[0]
        state = model.start(source)
        apart = [model.project(state.step(target[:, place : place + 1]))[0, 0] for place in range(target.shape[1])]
    torch.testing.assert_close(torch.stack(apart), together, atol=1e-4, rtol=1e-4)
    with pytest.raises(TransduceError, match=r"does not hold the weights of its config\.json: missing .*running_mean"):
        _without_statistics(tmp_path / "run")


def _without_statistics(folder: Path) -> None:
    weights = {name: tensor for name, tensor in load_file(folder / WEIGHTS).items() if "running_mean" not in name}
    digest = file_sha256(folder / WEIGHTS)
    save_file(weights, folder / WEIGHTS)
    manifest = (folder / MANIFEST).read_text("utf-8").replace(digest, file_sha256(folder / WEIGHTS))
    (folder / MANIFEST).write_text(manifest, "utf-8")
    read_any_model_folder(folder)
