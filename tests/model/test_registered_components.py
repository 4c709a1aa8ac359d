"""Test that components of the user's which decode or are stored otherwise than they train are refused up front."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import transduce
from transduce.errors import TransduceError
from transduce.model.build import _REGISTRIES, build_any_model, build_model, check_registered
from transduce.model.config import REGISTERED_NAMES, ModelConfig
from transduce.model.masks import BiasedMask
from transduce.model.transformer import Transformer

SIZES: dict[str, Any] = {
    "source_vocabulary_size": 90,
    "target_vocabulary_size": 90,
    "d_model": 32,
    "d_ff": 64,
    "num_heads": 4,
}
KINDS: dict[str, dict[str, Any]] = {
    "transformer": SIZES,
    "decoder": SIZES | {"kind": "decoder"},
    "encoder": SIZES | {"kind": "encoder", "masked_language_head": True},
    "series": SIZES | {"kind": "series", "source_vocabulary_size": 0, "target_vocabulary_size": 0, "num_series": 2},
}


class Gated(transduce.MultiHeadAttention):
    def __init__(self, *, d_model: int, **options: Any) -> None:
        super().__init__(d_model=d_model, **options)
        self.gate = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        return torch.sigmoid(self.gate(x)) * super().forward(x, *args, **options)


class Shifted(transduce.MultiHeadAttention):
    """Attention whose input is mixed with that of the position before, by a factor that is 0 at first."""

    def __init__(self, *, d_model: int, **options: Any) -> None:
        super().__init__(d_model=d_model, **options)
        self.factor = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        return super().forward(x + self.factor * F.pad(x[:, :-1], (0, 0, 1, 0)), *args, **options)


class Convolved(transduce.MultiHeadAttention):
    """Attention over a convolution of its input, which also reads the position behind."""

    def __init__(self, *, d_model: int, **options: Any) -> None:
        super().__init__(d_model=d_model, **options)
        self.convolution = nn.Conv1d(d_model, d_model, 3, padding=1)

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        return super().forward(self.convolution(x.transpose(1, 2)).transpose(1, 2), *args, **options)


class Failing(transduce.MultiHeadAttention):
    """Attention that needs more than one position."""

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        return super().forward(x - x[:, 2:3], *args, **options)


class Unrotated(transduce.MultiHeadAttention):
    """Attention that does not pass on all arguments."""

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, mask: Any = None, cache: Any = None, **_: Any
    ) -> Tensor:
        return super().forward(x, memory, mask=mask, cache=cache)


class PlainScore(transduce.ScoredAttention):
    """A score that reads only which keys are allowed, without bias, dropout or a hard choice."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **_: Any) -> Tensor:
        scores = query @ key.mT / 8
        return (scores if mask is None else scores.masked_fill(~mask.allowed, -1e9)).softmax(dim=-1) @ value


class Distance(nn.Module):
    """A penalty by distance, of the positions or, wrongly, of their indices."""

    def __init__(self, *, by_index: bool, slope: float = 0.5) -> None:
        super().__init__()
        self.by_index, self.slope = by_index, slope

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        if self.by_index:
            query_positions, key_positions = (torch.arange(each.shape[-1]) for each in (query_positions, key_positions))
        bias = -self.slope * (key_positions[..., None, :] - query_positions[..., :, None]).abs().unsqueeze(-3)
        return bias if bias.dim() == 4 else bias[None]


class KeyPosition(nn.Module):
    """A bias by the position of the key itself, from a table of 128 positions."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(128, num_heads))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        bias = self.weight[key_positions].mT.unsqueeze(-2)  # (H, 1, L) or (B, H, 1, L)
        bias = bias.expand(*bias.shape[:-2], query_positions.shape[-1], -1)
        return bias if bias.dim() == 4 else bias[None]


class RandomNorm(nn.Module):
    """A norm that draws numbers which a model folder holds if they are in a stored buffer."""

    def __init__(self, width: int, *, persistent: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("drawn", torch.randn(width), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.drawn  # type: ignore[operator]


class Valued(nn.Module):
    """A norm that reads the values of a tensor while it is built."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = torch.linspace(0.9, 1.1, width).mean().item()

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.scale


COMPONENTS: dict[str, dict[str, Callable[..., Any]]] = {
    "attention": {
        "own-gate": Gated,
        "own-shift": Shifted,
        "own-convolution": Convolved,
        "own-failing": Failing,
        "own-unrotated": Unrotated,
    },
    "attention_score": {"own-plain": PlainScore},
    "activation": {"own-cube": lambda x: x.relu() ** 3, "own-sum": lambda x: x.cumsum(dim=1)},
    "positions": {
        "own-distance": lambda _config, _causal: Distance(by_index=False),
        "own-index": lambda _config, _causal: Distance(by_index=True),
        "own-zero": lambda _config, _causal: Distance(by_index=False, slope=0.0),
        "own-key": lambda config, _causal: KeyPosition(config.num_heads),
    },
    "norm": {
        "own-values": lambda width, _epsilon: Valued(width),
        "own-stored": lambda width, _epsilon: RandomNorm(width, persistent=True),
        "own-drawn": lambda width, _epsilon: RandomNorm(width, persistent=False),
    },
}
RIGHT = [
    *(("attention", "own-gate"), ("activation", "own-cube"), ("norm", "own-stored")),
    *(("positions", "own-distance"), ("positions", "own-key")),
]
DECODES = "decodes something else than it trains"
# What is wrong, by setting, name and kind of model.
WRONG = [
    *(("attention", "own-shift", kind, DECODES) for kind in ("transformer", "decoder", "series")),
    *(("attention", "own-convolution", kind, DECODES) for kind in ("transformer", "decoder", "series")),
    ("attention", "own-convolution", "encoder", "depends on the padding of its batch"),
    ("attention", "own-failing", "transformer", "fails in decoding: IndexError"),
    ("norm", "own-values", "transformer", "cannot be built without memory for its weights"),
    *(("activation", "own-sum", kind, DECODES) for kind in ("transformer", "decoder", "series")),
    *(("positions", "own-index", kind, DECODES) for kind in ("transformer", "decoder", "series")),
    *(("norm", "own-drawn", kind, "cannot be stored, because .* other values in `drawn`") for kind in KINDS),
]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    for setting, components in COMPONENTS.items():
        for name, component in components.items():
            transduce.register(setting, name)(component)
    yield
    for setting, components in COMPONENTS.items():
        for name in components:
            _REGISTRIES[setting][0].pop(name)
            REGISTERED_NAMES[setting].discard(name)


@pytest.mark.parametrize(("setting", "name", "packed"), [(*each, each[0] in ("activation", "norm")) for each in RIGHT])
def test_sentences_are_not_joined_without_padding_if_attention_is_the_users(
    setting: str, name: str, packed: bool
) -> None:
    config: dict[str, Any] = SIZES | {setting: name}
    assert ModelConfig(**SIZES).can_be_packed
    assert ModelConfig(**config).can_be_packed is packed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("setting", "name"), RIGHT)
def test_a_component_that_decodes_as_it_trains_is_accepted(setting: str, name: str, kind: str) -> None:
    state = torch.get_rng_state()
    check_registered(ModelConfig(**(KINDS[kind] | {setting: name})))
    assert torch.equal(torch.get_rng_state(), state)  # the run draws its weights afterwards


@pytest.mark.parametrize(("setting", "name", "kind", "reason"), WRONG)
def test_a_component_that_decodes_otherwise_is_refused(setting: str, name: str, kind: str, reason: str) -> None:
    with pytest.raises(TransduceError, match=f"A model with `model.{setting}` = {name} (?:{reason})"):
        check_registered(ModelConfig(**(KINDS[kind] | {setting: name})))


IGNORED: list[tuple[dict[str, Any], str]] = [
    ({"attention": "own-unrotated", "positions": "rotary", "rotary_base": 500.0}, "positions"),
    ({"attention": "own-unrotated", "positions": "rotary-interleaved", "kind": "encoder"}, "positions"),
    *(({"attention_score": "own-plain", "positions": each}, "positions") for each in ("relative", "own-distance")),
    ({"attention_score": "own-plain", "positions": "relative", "kind": "decoder"}, "positions"),
    ({"attention_score": "own-plain", "attention_kind": "hard"}, "attention_kind"),
    ({"attention_score": "own-plain", "attention_dropout": 0.2}, "attention_dropout"),
    ({"attention_score": "own-plain", "attention_dropout": 0.2, "kind": "recurrent"}, "attention_dropout"),
]


@pytest.mark.parametrize(("settings", "ignored"), IGNORED)
def test_a_component_that_ignores_another_setting_is_refused(settings: dict[str, Any], ignored: str) -> None:
    with pytest.raises(TransduceError, match=rf"ignores `model.{ignored}` = {settings[ignored]}: pass on"):
        check_registered(ModelConfig(**(SIZES | settings)))
    others = {name: value for name, value in settings.items() if name not in (ignored, "rotary_base")}
    check_registered(ModelConfig(**(SIZES | others)))
    with_gate = {"attention": "own-gate"} if "attention" in settings else {"attention_score": "scaled"}
    check_registered(ModelConfig(**(SIZES | settings | with_gate)))


def test_positions_without_effect_by_themselves_are_accepted() -> None:
    check_registered(ModelConfig(**(SIZES | {"attention": "own-gate", "positions": "own-zero"})))


def test_a_model_of_known_components_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.model.build.build_any_model", lambda _config: pytest.fail("a model was built"))
    check_registered(ModelConfig(**SIZES))


@pytest.mark.parametrize("length", [40, 128])  # long sequences are computed in blocks
@pytest.mark.parametrize("name", ["own-distance", "own-key"])
def test_positions_in_a_window_are_those_of_the_sequence(name: str, length: int) -> None:
    config = ModelConfig(**(SIZES | {"positions": name, "attention_window": 20, "dropout": 0.0}))
    model = build_model(config).eval()
    assert isinstance(model, Transformer)
    ids = torch.randint(3, 90, (2, length))
    near = (torch.arange(length)[:, None] - torch.arange(length)).abs() <= 20
    with torch.no_grad():
        x = torch.randn(2, length, config.d_model)
        mask, effect = model.encoder_positions(x, None)
        layer = model.encoder_layers[0]
        found = layer(x, mask, position_effect=effect)
        positions = model.encoder_positions.bias
        assert positions is not None
        bias = positions(torch.arange(length), torch.arange(length))
        torch.testing.assert_close(found, layer(x, BiasedMask(near[None, None], bias)), atol=1e-5, rtol=1e-4)
        state = model.start(ids[:, :9])
        steps = torch.cat([state.step(token) for token in ids.split(1, dim=1)], dim=1)
        torch.testing.assert_close(model.project(steps), model(ids[:, :9], ids), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("positions", "further_models"), [("sinusoidal", 0), ("rotary", 2)])
def test_settings_that_have_an_effect_take_few_models_to_check(
    positions: str, further_models: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Mock(wraps=build_any_model)
    monkeypatch.setattr("transduce.model.build.build_any_model", build)
    counts = []
    for own in ({"activation": "own-cube"}, {"attention": "own-gate"}):
        build.reset_mock()
        check_registered(ModelConfig(**(SIZES | own | {"positions": positions})))
        counts.append(build.call_count)
    assert counts[1] - counts[0] == further_models
