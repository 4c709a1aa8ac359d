"""Test LoRA: the model starts unchanged, only the updates are trained, and they merge into an ordinary model."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.errors import TransduceError
from transduce.model.config import ModelConfig
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.training.lora import LowRankSettings, adapt, load_updates, low_rank_weights, merge, merged_weights

CONFIG = ModelConfig(
    source_vocabulary_size=20,
    target_vocabulary_size=20,
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=32,
    d_ff=64,
    num_heads=2,
    dropout=0.0,
)
NO_POSITION_EFFECT = ("queries-keys-values", "attention-output", "feed-forward-inner", "feed-forward-outer")


def pairs(count: int, shift: int) -> tuple[Tensor, Tensor]:
    """Return source and target tokens of the task, in which each target token is the source token plus a shift."""
    source = torch.randint(3, 20, (count, 6))
    return source, (source - 3 + shift) % 17 + 3


def loss(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
    inputs = torch.cat([torch.zeros(len(target), 1, dtype=torch.int64), target[:, :-1]], dim=1)
    logits: Tensor = model(source, inputs)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def learn(model: nn.Module, parameters: list[nn.Parameter], *, shift: int, steps: int) -> None:
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, *pairs(64, shift)).backward()
        optimizer.step()


@pytest.fixture(scope="module")
def pretrained() -> Transformer:
    torch.manual_seed(1)
    model = Transformer(CONFIG)
    learn(model, list(model.parameters()), shift=0, steps=150)
    return model


def test_adapting_a_model_leaves_its_outputs_unchanged(pretrained: Transformer) -> None:
    model = copy.deepcopy(pretrained)
    source, target = pairs(4, 0)
    expected = model(source, target)
    learning = adapt(model, LowRankSettings(rank=4))
    assert torch.equal(model(source, target), expected)
    assert all(parameter.requires_grad for parameter in learning)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == sum(p.numel() for p in learning)


def test_a_new_task_is_learnt_and_merged(pretrained: Transformer) -> None:
    model = copy.deepcopy(pretrained)
    held_out = pairs(200, 5)
    with torch.no_grad():
        before = float(loss(model, *held_out))
    learning = adapt(model, LowRankSettings(rank=8, projections=NO_POSITION_EFFECT))
    learn(model, learning, shift=5, steps=120)
    with torch.no_grad():
        after = float(loss(model, *held_out))
        logits = model(*held_out)
    assert after < 0.6 * before
    fresh = Transformer(CONFIG)
    fresh.load_state_dict(merged_weights(model))
    merge(model)
    assert dict(model.named_parameters()).keys() == dict(fresh.named_parameters()).keys()
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        assert torch.allclose(model(*held_out), logits, atol=1e-5)
        assert torch.equal(fresh(*held_out), model(*held_out))
    assert torch.equal(model.source_weight, pretrained.source_weight)


def test_low_rank_updates_are_stored_and_loaded_separately(pretrained: Transformer) -> None:
    settings = LowRankSettings(rank=2)
    first, second = copy.deepcopy(pretrained), copy.deepcopy(pretrained)
    learn(first, adapt(first, settings), shift=3, steps=3)
    adapt(second, settings)
    kept = low_rank_weights(first)
    assert sum(tensor.numel() for tensor in kept.values()) < 0.2 * sum(p.numel() for p in pretrained.parameters())
    load_updates(second, kept)
    source, target = pairs(4, 3)
    assert torch.equal(first(source, target), second(source, target))
    with pytest.raises(TransduceError, match=r"must be of this model and these settings, but \d+ tensors differ"):
        load_updates(second, {"encoder_layers.0.feed_forward.inner.up": torch.zeros(2)})
    with pytest.raises(TransduceError, match="has no updates yet: call `adapt`"):
        load_updates(copy.deepcopy(pretrained), kept)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "`training.lora_rank` must be at least 1"),
        ({"alpha": 0.0}, "`training.lora_alpha` must be greater than 0"),
        ({"projections": ("gate",)}, "must name some of queries-keys-values, .* but names gate"),
    ],
)
def test_lora_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        LowRankSettings(**settings)  # type: ignore[arg-type]


def test_a_rank_beyond_the_narrowest_projection_is_refused(pretrained: Transformer) -> None:
    width = pretrained.config.d_model
    adapt(copy.deepcopy(pretrained), LowRankSettings(rank=width))
    with pytest.raises(TransduceError, match=rf"must not exceed the width of the narrowest projection, {width}"):
        adapt(copy.deepcopy(pretrained), LowRankSettings(rank=width + 1))


def test_adapting_a_model_twice_is_refused(pretrained: Transformer) -> None:
    model = copy.deepcopy(pretrained)
    adapt(model, LowRankSettings())
    with pytest.raises(TransduceError, match="adapted already"):
        adapt(model, LowRankSettings())
    with pytest.raises(TransduceError, match="has no feed-forward-inner to adapt"):
        adapt(nn.Linear(2, 2), LowRankSettings(projections=("feed-forward-inner",)))


def test_a_model_without_projections_for_lora_is_refused(pretrained: Transformer) -> None:
    recurrent = Recurrent(ModelConfig(kind="recurrent", source_vocabulary_size=9, target_vocabulary_size=9, d_model=8))
    with pytest.raises(TransduceError, match=r"no projections that LoRA adapts: leave `training\.lora_rank` out"):
        adapt(recurrent, LowRankSettings(rank=2))
    assert adapt(copy.deepcopy(pretrained), LowRankSettings(rank=2))
