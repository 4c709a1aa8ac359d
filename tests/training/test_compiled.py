"""Test that compiled layers compute the same, and that prefetched batches are the same ones."""

import threading
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.model import attention
from transduce.model.build import compile_layers
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import Dropout
from transduce.model.transformer import Transformer
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.loss_spikes import find_origin
from transduce.training.prefetch import PrefetchedBatches, to_device
from transduce.training.settings import TrainingSettings


def small_model(**changes: int) -> Transformer:
    torch.manual_seed(5)
    config = ModelConfig(
        source_vocabulary_size=20,
        target_vocabulary_size=20,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_model=16,
        d_ff=32,
        num_heads=2,
        dropout=0.2,
    )
    return Transformer(msgspec.structs.replace(config, **changes)).train()


def passes(model: Transformer) -> list[dict[str, Tensor]]:
    """Return the gradients of two batches of different shapes."""
    found = []
    for shape in ((3, 5), (2, 9)):
        torch.manual_seed(7)
        ids = torch.randint(2, 20, shape)
        ids[0, -2:] = 0
        model.zero_grad()
        model.hidden(ids, ids.flip(0)).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    return found


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of PyTorch, while it traces
def test_compiled_layers_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers are compiled as on a GPU: with PyTorch's dropout and attention kernels, without graph breaks."""
    monkeypatch.setattr(Dropout, "_draws_bytes", lambda *_: False)
    monkeypatch.setattr("transduce.model.attention._library_kernel_is_better", lambda *_: True)
    model = small_model()
    names = list(model.state_dict())
    plain = passes(model)
    assert compile_layers(model, "cpu", backend="eager") == 4
    assert list(model.state_dict()) == names
    for before, after in zip(plain, passes(model), strict=True):
        torch.testing.assert_close(after, before)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_windows_of_any_number_of_blocks_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = attention._block_ranges
    monkeypatch.setattr(
        attention, "_block_ranges", lambda blocks, scores, _: ranges(blocks, scores, torch.device("cuda"))
    )
    monkeypatch.setattr(Dropout, "_draws_bytes", lambda *_: False)
    monkeypatch.setattr("transduce.model.attention._library_kernel_is_better", lambda *_: True)
    model = small_model(attention_window=4, num_encoder_layers=1, num_decoder_layers=1)
    compile_layers(model, "cpu", backend="eager")
    for length in range(20, 500, 40):  # PyTorch stops recompiling after eight
        ids = torch.randint(2, 20, (2, length))
        model.hidden(ids, ids).sum().backward()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_the_module_of_a_non_finite_value_is_found_in_compiled_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dropout, "_draws_bytes", lambda *_: False)
    monkeypatch.setattr("transduce.model.attention._library_kernel_is_better", lambda *_: True)
    model = small_model(num_encoder_layers=1, num_decoder_layers=1)
    compile_layers(model, "cpu", backend="eager")
    ids = torch.randint(2, 20, (2, 6))

    def loss() -> Loss:
        return projected_cross_entropy(model.hidden(ids, ids), model.output_weight, ids, pad_id=0)

    loss().total.backward()
    with torch.no_grad():
        model.get_parameter("encoder_layers.0.feed_forward.inner.weight").fill_(float("nan"))
    assert find_origin(model, loss).module == "encoder_layers.0.feed_forward.inner"
    loss().total.backward()


def test_compile_and_sharded_together_are_refused() -> None:
    with pytest.raises(TransduceError, match=r"`training.compile` and `training.sharded` do not go together"):
        TrainingSettings(compile=True, sharded=True)


def test_compiling_layers_on_the_cpu_is_refused() -> None:
    with pytest.raises(TransduceError, match=r"`training.compile` is true, but the device is cpu: it is for GPUs"):
        compile_layers(small_model(), "cpu")


class Pair(NamedTuple):
    epoch: int
    position: int


class Counted:
    """A plan of three batches an epoch, which records the batches that were made."""

    def __init__(self) -> None:
        self.made: list[Pair] = []

    def __len__(self) -> int:
        return 3

    def batch(self, epoch: int, position: int) -> Pair:
        if position == 3:
            raise IndexError("there is no such batch")
        self.made.append(Pair(epoch, position))
        return Pair(epoch, position)


def test_prefetched_batches_are_the_batches_that_are_requested() -> None:
    counted = Counted()
    ahead = PrefetchedBatches(counted)
    wanted = [divmod(number, 3) for number in range(7)]
    assert [ahead.batch(*place) for place in wanted] == wanted
    ahead.batch(5, 1)  # a run that is resumed on another machine
    assert ahead.batch(5, 2) == Pair(5, 2)
    assert ahead.batch(6, 0) == Pair(6, 0)
    assert counted.made[:7] == wanted
    assert len(ahead) == 3


def test_the_loss_prefetches_each_batch_in_another_thread() -> None:
    seen: list[tuple[Pair, bool]] = []
    own = threading.current_thread()

    class Loss:
        def prefetch(self, batch: Pair) -> None:
            seen.append((batch, threading.current_thread() is not own))

    ahead = PrefetchedBatches(Counted(), Loss())
    for number in range(3):
        assert ahead.batch(0, number) in [batch for batch, _ in seen]
    assert all(elsewhere for _, elsewhere in seen)


def test_an_error_in_a_prefetched_batch_is_raised_when_it_is_requested() -> None:
    with pytest.raises(IndexError, match="there is no such batch"):
        PrefetchedBatches(Counted()).batch(0, 3)


def test_to_device_converts_arrays_to_tensors() -> None:
    array = np.array([[1, 2], [3, 0]])
    assert torch.equal(to_device(array, torch.device("cpu")), torch.tensor([[1, 2], [3, 0]]))
