"""Test that a component with ordinary buffers trains, resumes and loads with the buffers' real values."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transduce
from transduce.model.feed_forward import FeedForward

COMPUTE: dict[str, Any] = {"precision": "fp32", "device": "cpu", "threads": 1}
SHORT = {"training.steps": 4, "training.validate_every": 4, "training.save_every": 2, "training.kernels": "torch"}


@pytest.fixture
def with_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every feed-forward layer buffers of several kinds, on each of which its output depends."""
    build: Callable[..., None] = FeedForward.__init__
    plain: Callable[..., Tensor] = FeedForward.forward

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        build(self, *arguments, **options)
        width = self.outer.out_features
        self.register_buffer("slopes", 1.0 + torch.arange(width) / width, persistent=False)
        self.register_buffer("order", torch.arange(width - 1, -1, -1), persistent=False)
        self.register_buffer("shift", torch.linspace(-0.5, 0.5, width))
        self.register_buffer("stored_order", torch.arange(width).roll(1))
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self: Any, x: Tensor, *arguments: Any) -> Tensor:
        out: Tensor = plain(self, x, *arguments) * self.slopes + self.shift * self.factor
        return out[..., self.order][..., self.stored_order]

    monkeypatch.setattr(FeedForward, "__init__", init)
    monkeypatch.setattr(FeedForward, "forward", forward)


def logits(model: Any) -> Tensor:
    ids = torch.tensor([[5, 6, 7, 1]])
    with torch.inference_mode():
        found: Tensor = model(ids, ids)
    return found


@pytest.mark.usefixtures("with_buffers")
def test_buffers_of_a_component_have_their_values_after_loading(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    transduce.train(out=tmp_path / "run", settings=toy_settings | SHORT, device="cpu", threads=1)
    state = torch.get_rng_state()
    model = transduce.load(tmp_path / "run", task="translation", **COMPUTE).transformer
    assert torch.equal(torch.get_rng_state(), state)  # building the buffers draws nothing
    layer: Any = model.encoder_layers[0].feed_forward
    width = model.config.d_model
    assert torch.equal(layer.slopes, 1.0 + torch.arange(width) / width)
    assert torch.equal(layer.order, torch.arange(width - 1, -1, -1))
    assert torch.equal(layer.stored_order, torch.arange(width).roll(1))
    assert layer.factor.item() == 0.5
    built = transduce.Transformer(model.config)
    built.load_state_dict(model.state_dict())
    assert torch.equal(logits(built.eval()), logits(model))
    config = (tmp_path / "run" / "config.json").read_text("utf-8")
    assert '"architectures"' not in config  # no class of Hugging Face's has such a layer


@pytest.mark.usefixtures("with_buffers")
def test_a_run_with_buffers_resumes_bit_by_bit(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    transduce.train(out=tmp_path / "run", settings=toy_settings | SHORT, device="cpu", threads=1)
    shutil.copytree(tmp_path / "run", tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "step-000000004")
    transduce.train(out=tmp_path / "stopped", resume=True, device="cpu", threads=1)
    first, second = (tmp_path / name / "model.safetensors" for name in ("run", "stopped"))
    assert first.read_bytes() == second.read_bytes()
