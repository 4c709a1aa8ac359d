"""A changed component gives the same loss and gradients with training kernels as without them.

The first tests read the table of the kernels of whole layers: each row, and seeded pairs of two, equal the model
without kernels. Each other test changes one component of a model: by a subclass, an overridden `forward` or method, a
hook, a parametrization or another submodule. Kernels must notice the change, also if the model was trained with kernels
before.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrize

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernels.cpu.jit.compiler import find_integer_tile
from transduce.kernels.cpu.training.layer import _WHOLE_LAYERS, CompiledTraining
from transduce.model import attention
from transduce.model.attention import MultiHeadAttention
from transduce.model.backend import add_gradients_to, using_backend
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import Dropout, FeedForward, Linear
from transduce.model.known_classes import only_observes
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual
from transduce.model.norms import LayerNorm, RMSNorm
from transduce.model.positions import Rotation
from transduce.model.transformer import Transformer
from transduce.training.lora import LowRankSettings, adapt
from transduce.training.loss import projected_cross_entropy

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)

COMPONENTS = (
    MultiHeadAttention,
    FeedForward,
    Linear,
    LayerNorm,
    RMSNorm,
    Dropout,
    Residual,
    Embedding,
    EncoderLayer,
    DecoderLayer,
)
Change = Callable[[nn.Module], object]


class Counting(CompiledTraining):
    """Kernels that count how many whole layers and how many linear layers they compute."""

    def __init__(self) -> None:
        self.layers = self.linears = 0

    def linear(self, *args: Any, **kwargs: Any) -> Tensor:
        self.linears += 1
        return CompiledTraining.linear(*args, **kwargs)

    def run_layer(self, *args: Any) -> Tensor | None:
        found = CompiledTraining.run_layer(*args)
        self.layers += found is not None
        return found


def make_model(kind: type[nn.Module] = LayerNorm, **changes: Any) -> Transformer:
    """Return a model in training without dropout, whose norms are RMSNorms if a test changes one of those."""
    torch.manual_seed(5)
    sizes: dict[str, Any] = {
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 64,
        "d_ff": 96,
        "num_heads": 2,
    }
    settings: dict[str, Any] = {"dropout": 0.0, "norm": "rms" if kind is RMSNorm else "layer"} | changes
    config = ModelConfig(source_vocabulary_size=50, target_vocabulary_size=50, **sizes, **settings)
    model = Transformer(config).train()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            nn.init.normal_(parameter, mean=0.5)
    return model


def learn(model: Transformer, kernels: CompiledTraining | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch and the gradient of each parameter."""
    sums = {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.grad = None
        add_gradients_to(parameter, sums[name])
    torch.manual_seed(6)
    source, target = torch.randint(3, 50, (5, 9)), torch.randint(3, 50, (5, 7))
    source[1, 4:] = target[2, 2:] = model.config.pad_id
    with using_backend(kernels):
        hidden = model.hidden(source, target)
        loss = projected_cross_entropy(hidden, model.target_weight, target, pad_id=model.config.pad_id).total
        loss.backward()
    gradients = {name: sums[name] + (0 if each.grad is None else each.grad) for name, each in model.named_parameters()}
    return loss.detach(), gradients


def assert_kernels_notice(model: Transformer, before: Tensor, whole_layers: int = 3) -> None:
    """Compare loss and gradients with and without kernels, and the loss with the unchanged model's.

    At most `whole_layers` of the four layers may be computed as a whole.
    """
    kernels = Counting()
    (loss, gradients), (wanted, others) = learn(model, kernels), learn(model, None)
    assert (wanted - before).abs() > 1e-3
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
    for name, gradient in others.items():
        limit = 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=limit, msg=name)
    assert kernels.layers <= whole_layers


# The settings that give a component each value of the table of whole layers.
LISTED: dict[tuple[str, str], dict[str, Any]] = {
    **{("norm order", name): {"norm_order": name} for name in ("pre", "post")},
    **{("norm", name): {"norm": name} for name in ("layer", "rms")},
    **{
        ("activation", name): {"activation": name}
        for name in ("relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh", "reglu")
    },
    **{("attention score", name): {"attention_score": name} for name in ("scaled", "dot")},
    ("attention kind", "soft"): {"bias": False},
    ("attention scale", "default"): {"projection_bias": False},
    ("attention scale", "other"): {"attention_scale": 0.3},
    ("key value heads", "equal"): {"feed_forward_bias": False},
    ("key value heads", "shared"): {"num_key_value_heads": 1},
    ("value width", "equal"): {"d_k": 16, "d_v": 16},
}
POSITIONS: list[dict[str, Any]] = [
    {"positions": "rotary"},
    {"positions": "rotary-interleaved", "num_key_value_heads": 1, "norm": "rms", "activation": "swiglu"},
    {"positions": "relative", "attention_scale": 1.0, "norm": "rms"},
    {"positions": "relative", "norm_order": "post", "activation": "geglu-tanh"},
]
PAIRS = [{**one, **other} for one, other in random.Random(1).sample([*combinations(LISTED.values(), 2)], 16)]


@pytest.mark.parametrize("settings", [*LISTED.values(), *POSITIONS, *PAIRS], ids=str)
def test_layer_kernels_give_the_loss_and_gradients_of_the_model(settings: dict[str, Any]) -> None:
    model, kernels = make_model(**settings), Counting()
    (loss, gradients), (wanted, others) = learn(model, kernels), learn(model, None)
    assert kernels.layers == 4
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
    for name, gradient in others.items():
        limit = 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=limit, msg=name)


@pytest.mark.parametrize("settings", [{}, {"positions": "rotary", "norm": "rms"}, {"num_key_value_heads": 1}], ids=str)
def test_norms_of_queries_and_keys_are_trained_outside_of_layer_kernels(settings: dict[str, Any]) -> None:
    model, kernels = make_model(attention="query-key-norm", **settings), Counting()
    (loss, gradients), (wanted, others) = learn(model, kernels), learn(model, None)
    assert (kernels.layers, kernels.linears > 0) == (0, True)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
    for name, gradient in others.items():
        limit = 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=limit, msg=name)


def test_every_row_of_the_table_of_whole_layers_has_a_case() -> None:
    rows = {(aspect, value) for aspect, values in _WHOLE_LAYERS.values.items() for value in values}
    assert rows == LISTED.keys() | {("linear layers", "Linear")}


def first_of(model: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """Return the first component that is exactly of this class, inside a layer unless it is an embedding."""
    inside = [*model.encoder_layers.modules(), *model.decoder_layers.modules()]  # type: ignore[union-attr]
    return next(module for module in (model.modules() if kind is Embedding else inside) if type(module) is kind)


def half(output: Tensor) -> Tensor:
    """Return half of a component's output: what each change of these tests does."""
    return 0.5 * output


def by_subclass(module: nn.Module) -> None:
    class Gated(type(module)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return half(super().forward(*args, **kwargs))

    module.__class__ = Gated


def by_forward(module: nn.Module) -> None:
    forward = module.forward
    module.forward = lambda *args, **kwargs: half(forward(*args, **kwargs))


def by_hook(module: nn.Module) -> None:
    module.register_forward_hook(lambda _, args, output: half(output))  # noqa: ARG005


def by_pre_hook(module: nn.Module) -> None:
    module.register_forward_pre_hook(
        lambda _, args: (args[0] if args[0].dtype == torch.int64 else half(args[0]), *_halved_weight(args))
    )


def _halved_weight(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the other arguments, where the matrix of an embedding is halved."""
    is_embedding = args[0].dtype == torch.int64
    return (half(args[1]), *args[2:]) if is_embedding else args[1:]


def by_full_backward_hook(module: nn.Module) -> None:
    by_hook(module)
    module.register_full_backward_hook(lambda _, by_input, by_output: None)  # noqa: ARG005


@pytest.mark.parametrize("kind", COMPONENTS)
@pytest.mark.parametrize("change", [by_subclass, by_forward, by_hook, by_pre_hook, by_full_backward_hook])
def test_a_changed_component_takes_the_reference_path(kind: type[nn.Module], change: Change) -> None:
    if kind is LayerNorm and change is by_pre_hook:
        pytest.skip("a norm of halved inputs is nearly the norm of the inputs")
    model = make_model(kind)
    kernels = Counting()
    before, _ = learn(model, kernels)
    assert kernels.layers == 4
    module = first_of(model, kind)
    if kind is RMSNorm and change is by_pre_hook:
        pytest.skip("a norm of halved inputs is nearly the norm of the inputs")
    change(module)
    assert_kernels_notice(model, before, 4 if kind is Embedding else 3)


@pytest.mark.parametrize("kind", COMPONENTS)
def test_a_global_forward_hook_takes_effect_with_kernels(kind: type[nn.Module]) -> None:
    model = make_model(kind)
    before, _ = learn(model, CompiledTraining())
    chosen = first_of(model, kind)
    hook = register_module_forward_hook(
        lambda module, _, output: half(output) if module is chosen else None  # type: ignore[arg-type]
    )
    try:
        assert_kernels_notice(model, before)
    finally:
        hook.remove()


def test_a_global_forward_pre_hook_takes_effect_with_kernels() -> None:
    model = make_model()
    before, _ = learn(model, CompiledTraining())
    chosen = first_of(model, Linear)
    hook = register_module_forward_pre_hook(
        lambda module, args: (half(args[0]), *args[1:]) if module is chosen else None  # type: ignore[arg-type]
    )
    try:
        assert_kernels_notice(model, before)
    finally:
        hook.remove()


class Half(nn.Module):
    """A parametrization that halves a weight."""

    def forward(self, weight: Tensor) -> Tensor:
        return half(weight)


@pytest.mark.parametrize("name", ["projection", "output", "inner", "outer", "norm_before"])
def test_a_parametrized_weight_takes_effect_with_kernels(name: str) -> None:
    model = make_model()
    before, _ = learn(model, CompiledTraining())
    module = next(module for path, module in model.decoder_layers.named_modules() if path.endswith(name))
    parametrize.register_parametrization(module, "weight", Half())
    assert_kernels_notice(model, before)


class ToyNorm(nn.Module):
    """A norm that no kernel supports: x / max |x|."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((64,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().amax(dim=-1, keepdim=True) * self.weight


class Bypass(nn.Module):
    """A feed-forward network that no kernel supports."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()  # type: ignore[no-any-return]


def replace_norm(layer: Any) -> None:
    layer.self_attention_residual.norm_before = ToyNorm()


def replace_feed_forward(layer: Any) -> None:
    layer.feed_forward = Bypass()


def replace_dropout(layer: Any) -> None:
    layer.feed_forward.dropout = Half()


def replace_activation(layer: Any) -> None:
    layer.feed_forward.activation = lambda x: x.relu().square()


def replace_method(layer: Any) -> None:
    attend = layer.self_attention._attend
    layer.self_attention._attend = lambda *args: half(attend(*args))


@contextmanager
def replaced_on_the_class(_: Any) -> Iterator[None]:
    """Replace `FeedForward.forward` on the class within the context."""
    forward = FeedForward.forward
    FeedForward.forward = lambda self, x: half(forward(self, x))  # type: ignore[method-assign]
    try:
        yield
    finally:
        FeedForward.forward = forward  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change", [replace_norm, replace_feed_forward, replace_dropout, replace_activation, replace_method]
)
@pytest.mark.parametrize("stack", ["encoder_layers", "decoder_layers"])
def test_a_replaced_submodule_takes_effect_with_kernels(change: Change, stack: str) -> None:
    model = make_model()
    before, _ = learn(model, CompiledTraining())
    change(getattr(model, stack)[1])
    assert_kernels_notice(model, before)


def test_a_forward_replaced_on_the_class_takes_effect_with_kernels() -> None:
    model = make_model()
    before, _ = learn(model, CompiledTraining())
    with replaced_on_the_class(model):
        assert_kernels_notice(model, before)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (MultiHeadAttention, "_attend"),
        (MultiHeadAttention, "_heads"),
        (Residual, "complete"),
        (attention, "attend"),
        (Rotation, "apply"),
    ],
)
def test_a_replaced_function_takes_effect_with_kernels(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(positions="rotary" if owner is Rotation else "sinusoidal")
    before, _ = learn(model, CompiledTraining())
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **options: half(original(*args, **options)))
    assert_kernels_notice(model, before, 0)
    monkeypatch.undo()
    kernels = Counting()
    torch.testing.assert_close(learn(model, kernels)[0], before)
    assert kernels.layers == 4


def test_observing_hooks_see_what_kernels_compute() -> None:
    model, seen, kernels = make_model(), list[str](), Counting()
    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(only_observes(lambda _, args, output, name=name: seen.append(name)))  # noqa: ARG005
    (loss, _), (wanted, _) = learn(model, kernels), learn(model, None)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
    assert kernels.linears == 22  # two of four layers have four, the others seven: cross-attention has two projections
    assert "encoder_layers.0.self_attention.projection" in seen
    assert "decoder_layers.1.feed_forward_residual.norm_before" in seen


def test_lora_layers_are_computed_by_kernels_equally() -> None:
    model, kernels = make_model(), Counting()
    adapt(model, LowRankSettings(rank=4))
    (loss, _), (wanted, _) = learn(model, kernels), learn(model, None)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
    assert kernels.linears == 22
