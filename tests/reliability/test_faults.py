"""Test faulty losses and batches: each costs one step and nothing else, and a hopeless run stops."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.training.checkpoint import load_newest
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.loss_spikes import LossWindow, find_origin

BAD_STEP = 20
Change = Callable[[Loss], Loss]


class _PoisonGradient(torch.autograd.Function):
    """The identity function with a gradient of NaN, so that the loss looks right."""

    @staticmethod
    def forward(ctx: Any, total: Tensor) -> Tensor:  # noqa: ARG004
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0] * math.nan


def times(factor: float) -> Change:
    return lambda loss: loss._replace(total=loss.total * factor)


def plus(term: float) -> Change:
    return lambda loss: loss._replace(total=loss.total + term)


def gradient_only(loss: Loss) -> Loss:
    return loss._replace(total=_PoisonGradient.apply(loss.total))  # type: ignore[no-untyped-call]


FAULTS = {
    "NaN": plus(math.nan),
    "inf": plus(math.inf),
    "-inf": plus(-math.inf),
    "gradient only": gradient_only,
    "loss x 100": times(100.0),
}


def at_steps(*steps: int, change: Change) -> Callable[[int, Loss], Loss]:
    """Return a function that changes the loss of the micro-batches with these numbers, from 1."""
    return lambda position, loss: change(loss) if position + 1 in steps else loss


def skipped_steps(folder: Path) -> list[int]:
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").split("\n") if line]
    return [event["step"] for event in events if event.get("skipped")]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_skips_one_step_and_contaminates_nothing(
    tmp_path: Path, tiny_run: Any, fault: str, precision: str
) -> None:
    run = tiny_run(tmp_path, corrupt=at_steps(BAD_STEP, change=FAULTS[fault]), precision=precision)
    assert run.trainer.run().step == 40
    assert skipped_steps(tmp_path) == [BAD_STEP]
    assert run.trainer.optimizer.updates == 39
    newest, _ = load_newest(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.tensors.keys() == {"weights", "exp_avg", "exp_avg_sq", "average"}
    assert all(bool(tensor.isfinite().all()) for kind in newest.tensors.values() for tensor in kind.values())
    assert f"Step {BAD_STEP} changed nothing: " in run.output.getvalue()


def test_the_weights_of_a_skipped_step_are_those_before_it(tmp_path: Path, tiny_run: Any) -> None:
    weights: dict[int, Tensor] = {}

    def corrupt(position: int, loss: Loss) -> Loss:
        weights.setdefault(position, run.weights())
        return FAULTS["loss x 100"](loss) if position + 1 == BAD_STEP else loss

    run = tiny_run(tmp_path, corrupt=corrupt)
    run.trainer.run()
    assert torch.equal(weights[BAD_STEP - 1], weights[BAD_STEP])
    assert not torch.equal(weights[BAD_STEP], weights[BAD_STEP + 1])


def test_a_bad_micro_batch_corrupts_its_step_only(tmp_path: Path, tiny_run: Any) -> None:
    """With several micro-batches a step, the whole step is left out, and the file names the one at fault."""
    calls = [0]

    def corrupt(_: int, loss: Loss) -> Loss:
        calls[0] += 1
        return FAULTS["loss x 100"](loss) if calls[0] == 2 * BAD_STEP else loss

    run = tiny_run(tmp_path, corrupt=corrupt, accumulate=2)
    run.trainer.run()
    assert skipped_steps(tmp_path) == [BAD_STEP]
    content = json.loads((tmp_path / "faults" / f"step-{BAD_STEP:09d}.json").read_bytes())
    assert [part["position"] for part in content["micro_batches"]] == [2 * BAD_STEP - 1]


def test_one_high_loss_among_the_micro_batches_of_a_step_skips_nothing(tmp_path: Path, tiny_run: Any) -> None:
    """Cut into parts a step learns what it learns at once: its own mean counts, not that of a part."""
    calls = [0]

    def corrupt(_: int, loss: Loss) -> Loss:
        calls[0] += 1
        return times(4.0)(loss) if calls[0] == 8 * BAD_STEP else loss

    run = tiny_run(tmp_path, corrupt=corrupt, accumulate=8)
    run.trainer.run()
    assert skipped_steps(tmp_path) == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_batch_is_dumped_with_the_location_where_it_went_wrong(
    tmp_path: Path, tiny_run: Any, precision: str
) -> None:
    run = tiny_run(tmp_path, steps=BAD_STEP, precision=precision)
    modules = dict(run.model.named_modules())
    place = [name for name in modules if name.endswith("feed_forward")][-1]

    def corrupt(_: Any, __: Any, output: Tensor) -> Tensor:
        return output * math.nan if run.trainer.step == BAD_STEP - 1 else output

    modules[place].register_forward_hook(corrupt)
    run.trainer.run()
    (path,) = (tmp_path / "faults").iterdir()
    content = json.loads(path.read_bytes())
    assert str(path) in run.output.getvalue()
    assert (content["step"], content["reason"]) == (BAD_STEP, "its loss is nan")
    assert content["first_module_not_finite"] == place
    # The loss is NaN too, so the backward pass meets it at the end of the decoder first.
    assert content["first_gradients_not_finite"][0].startswith("decoder_")
    (part,) = content["micro_batches"]
    batch = run.trainer.batches.batch(*divmod(BAD_STEP - 1, 5))
    assert (part["source"], part["target"]) == (batch[0].tolist(), batch[1].tolist())
    assert not run.trainer.optimizer.gradient.any()
    assert all(p.grad is None or not p.grad.any() for p in run.model.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_non_finite_gradient_is_dumped_with_the_names_of_its_parameters(
    tmp_path: Path, tiny_run: Any, precision: str
) -> None:
    run = tiny_run(tmp_path, corrupt=at_steps(BAD_STEP, change=gradient_only), steps=BAD_STEP, precision=precision)
    run.trainer.run()
    content = json.loads((tmp_path / "faults" / f"step-{BAD_STEP:09d}.json").read_bytes())
    assert content["reason"] == "the norm of its gradient is nan"
    assert content["first_module_not_finite"] is None
    assert content["first_gradients_not_finite"][0].startswith("decoder_")


def test_the_gradients_nearest_to_the_fault_are_named_first() -> None:
    """Only the backward pass of layer 3 is faulty: its gradients are invalid, and those of all layers before it."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "source_vocabulary_size": 13,
        "target_vocabulary_size": 13,
        "d_model": 8,
        "d_ff": 12,
        "num_heads": 2,
    }
    model = Transformer(ModelConfig(**sizes, num_encoder_layers=6, num_decoder_layers=1))
    layer = model.get_submodule("encoder_layers.3")
    layer.register_forward_hook(lambda _, __, output: _PoisonGradient.apply(output))  # type: ignore[no-untyped-call]
    ids = torch.tensor([[3, 4, 5]])

    def compute() -> Loss:
        return projected_cross_entropy(model.hidden(ids, ids), model.output_weight, ids, pad_id=0)

    origin = find_origin(model, compute)
    assert origin.module is None
    assert origin.parameters
    assert all(name.startswith("encoder_layers.3.") for name in origin.parameters)


def test_the_window_of_recent_losses_is_restored_on_resume(tmp_path: Path, tiny_run: Any) -> None:
    """Resumed two steps before the fault, a run knows what is usual; one that forgot would have to learn from it."""
    corrupt = at_steps(BAD_STEP, change=FAULTS["loss x 100"])
    whole = tiny_run(tmp_path / "whole", corrupt=corrupt, steps=30)
    whole.trainer.run()
    tiny_run(tmp_path / "cut", steps=BAD_STEP - 2).trainer.run()
    resumed = tiny_run(tmp_path / "cut", corrupt=corrupt, steps=30)
    assert resumed.trainer.resume()
    resumed.trainer.run()
    assert skipped_steps(tmp_path / "cut") == [BAD_STEP]
    assert torch.equal(resumed.weights(), whole.weights())


def test_ten_faults_skip_ten_steps(tmp_path: Path, tiny_run: Any) -> None:
    steps = tuple(range(12, 42, 3))
    kinds = list(FAULTS.values())

    def corrupt(position: int, loss: Loss) -> Loss:
        step = position + 1
        return kinds[steps.index(step) % len(kinds)](loss) if step in steps else loss

    run = tiny_run(tmp_path, corrupt=corrupt, steps=50)
    run.trainer.run()
    assert skipped_steps(tmp_path) == list(steps)


def test_a_persistently_higher_loss_is_accepted_after_four_skipped_steps(tmp_path: Path, tiny_run: Any) -> None:
    """If the loss of every batch is high, the weights or the corpus have changed: rejecting would never end."""
    run = tiny_run(tmp_path, corrupt=lambda position, loss: times(5.0)(loss) if position >= 19 else loss)
    run.trainer.run()
    assert skipped_steps(tmp_path) == [20, 21, 22, 23]


def test_a_run_that_diverged_stops_with_advice(tmp_path: Path, tiny_run: Any) -> None:
    """The loss jumps to five times its value and stays there: after the 4 refusals, 64 steps make it sure."""
    run = tiny_run(tmp_path, steps=400, corrupt=lambda position, loss: times(5.0)(loss) if position >= 80 else loss)
    message = (
        r"Training has diverged: the mean loss of the last 64 steps \(until step 148\) is 1\d\.\d\d nats per token, "
        r"and was 2\.\d\d until step \d+: lower `training\.learning_rate` \(0\.003\) or raise `training\.warmup_steps` "
    )
    with pytest.raises(TransduceError, match=message):
        run.trainer.run()


def test_twenty_non_finite_steps_stop_the_run_with_advice(tmp_path: Path, tiny_run: Any) -> None:
    run = tiny_run(tmp_path, steps=60, corrupt=lambda position, loss: plus(math.nan)(loss) if position >= 10 else loss)
    with pytest.raises(TransduceError, match=r"No gradient was finite over the last 20 steps \(until step 30\): lower"):
        run.trainer.run()
    assert run.trainer.optimizer.updates == 10


# --- the rule itself ---


def watched(*losses: float) -> LossWindow:
    watch = LossWindow()
    for step, loss in enumerate(losses):
        watch.record_accepted(step, loss)
    return watch


def test_nothing_is_refused_before_eight_steps_are_known() -> None:
    assert watched(*[3.0] * 7).limit() == math.inf
    assert watched(*[3.0] * 8).limit() == 9.0


def test_the_loss_limit_is_the_highest_of_its_three_rules() -> None:
    assert watched(*[3.0] * 20).limit() == pytest.approx(9.0)  # three times the mean
    assert watched(*[0.1] * 20).limit() == pytest.approx(3.1)  # three nats above it
    assert watched(*[1.0, 5.0] * 10).limit() == pytest.approx(15.0)  # six deviations of 2 above 3


def test_batches_of_the_longest_sentences_are_learnt_from() -> None:
    """Their loss is more than twice the mean of a model that has learned the short ones: in one run, 4.63
    against 2.22.
    """
    watch = watched(*[2.2] * 128)
    assert watch.limit() > 4.7


def test_the_loss_of_a_skipped_step_does_not_enter_the_window() -> None:
    """OLMo-core's window takes it in, and skips 129 steps for it."""
    watch = watched(*[3.0] * 20)
    watch.skipped(high=False)
    assert watch.limit() == 9.0
    watch.record_accepted(21, 3.0)
    assert watch.skipped_in_a_row == 0


def test_a_loss_that_falls_and_wavers_is_no_divergence() -> None:
    watch = LossWindow()
    for step in range(2000):
        loss = 2.0 + 7.0 * math.exp(-step / 200) + math.sin(step)
        assert loss <= watch.limit()
        watch.record_accepted(step, loss)
        assert watch.verdict(step) is None
