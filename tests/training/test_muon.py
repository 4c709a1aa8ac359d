"""Test Muon: singular values near one, Muon for layers' matrices and Adam for the rest, and all that holds for Adam."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.initialization import layer_matrices
from transduce.training.distributed import Processes
from transduce.training.muon import MatrixShapes, Muon, orthogonalize
from transduce.training.optimizer import FlatOptimizer
from transduce.training.settings import ResolvedTraining, TrainingSettings

Make = Callable[..., ResolvedTraining]
RATE = 0.01


def make_model(**changes: object) -> nn.Module:
    settings = {
        "source_vocabulary_size": 11,
        "target_vocabulary_size": 11,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 8,
        "d_ff": 12,
        "num_heads": 2,
        "dropout": 0.0,
    }
    torch.manual_seed(3)
    return build_model(ModelConfig(**(settings | changes)))  # type: ignore[arg-type]


def fill_gradients(model: nn.Module, seed: int = 5) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        (parameter * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)).sum().backward()


def take_step(model: nn.Module, optimizer: FlatOptimizer, seed: int = 5, weight_decay: float = 0.0) -> None:
    fill_gradients(model, seed)
    optimizer.finish_batch()
    optimizer.step(tokens=10, rate=RATE, weight_decay=weight_decay)


def matrix_with(values: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix with these singular values, and its left and right singular vectors."""
    generator = torch.Generator().manual_seed(7)
    left, right = (torch.linalg.qr(torch.randn(size, size, generator=generator))[0] for size in (rows, columns))
    left, right = left[:, : len(values)], right[:, : len(values)]
    return left * values @ right.T, left, right


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (12, 40), (40, 12)])
def test_singular_values_become_nearly_one_and_the_vectors_stay(rows: int, columns: int) -> None:
    values = torch.logspace(0, -1.9, min(rows, columns)) * 37.0
    matrix, left, right = matrix_with(values, rows, columns)
    found = left.T @ orthogonalize(matrix[None])[0] @ right
    assert found.diagonal().min() > 0.7
    assert found.diagonal().max() < 1.3
    torch.testing.assert_close(found, torch.diag(found.diagonal()), atol=1e-4, rtol=0)


def test_orthogonalizing_a_rank_one_matrix_keeps_its_direction() -> None:
    matrix, left, right = matrix_with(torch.tensor([1e-6]), 9, 6)
    expected = left @ right.T
    found = orthogonalize(matrix[None])[0]
    scale = float((found * expected).sum())
    assert 0.7 < scale < 1.3
    torch.testing.assert_close(found, scale * expected, atol=1e-4, rtol=0)


def test_orthogonalizing_a_zero_matrix_gives_zero() -> None:
    assert not orthogonalize(torch.zeros(2, 4, 6)).any()


def test_orthogonalization_ignores_scale_and_other_matrices_of_the_batch() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(3, 6, 10)
    together = orthogonalize(matrices)
    for one, expected in zip(matrices, together, strict=True):
        torch.testing.assert_close(orthogonalize(1e-9 * one[None])[0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("columns", [128, 256])
def test_bfloat16_is_near_float32(columns: int) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(2, 64, columns)
    found, expected = orthogonalize(matrices.bfloat16()).float(), orthogonalize(matrices)
    assert (found - expected).norm() < 0.15 * expected.norm()
    assert torch.linalg.matrix_norm(found, 2).max() < 1.4


def test_zero_columns_do_not_change_the_orthogonalized_matrix() -> None:
    # Two matrices of 8 by 16 padded with zeros: with and without the Gram matrix.
    torch.manual_seed(0)
    narrow = torch.randn(2, 8, 16) * torch.logspace(0, -3, 8)[:, None]
    wide = torch.cat((narrow, torch.zeros(2, 8, 24)), 2)
    expected = orthogonalize(narrow)
    torch.testing.assert_close(orthogonalize(wide)[..., :16], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(orthogonalize(wide.mT).mT[..., :16], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["transformer", "encoder", "decoder"])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_layers_matrices_are_those_of_attention_and_feed_forward(kind: str, activation: str) -> None:
    model = make_model(kind=kind, activation=activation)
    matrices = layer_matrices(model)
    parameters = dict(model.named_parameters())
    in_layers = {name for name, parameter in parameters.items() if "layers." in name and parameter.dim() == 2}
    assert in_layers == matrices.keys()
    for name, rows in matrices.items():
        assert sum(rows) == parameters[name].shape[0]
        assert len(rows) == (3 if "projection" in name else 2 if "inner" in name and activation == "swiglu" else 1)


def test_queries_keys_and_values_are_cut_by_their_widths() -> None:
    model = make_model(num_heads=4, num_key_value_heads=2, d_k=3, d_v=5)
    name = "encoder_layers.0.self_attention.projection.weight"
    assert layer_matrices(model)[name] == (12, 6, 10)


class OneOfTwo(Processes):
    """A simulated process group of two, which records own tensors and takes the other process's from a list."""

    def __init__(self, rank: int, of_the_other: list[Tensor]) -> None:
        super().__init__(rank, 2)
        self.own: list[Tensor] = []
        self._of_the_other = of_the_other

    def start_broadcast(self, tensor: Tensor, source: int) -> None:
        self.own.append(tensor.clone())
        if source != self.rank and self._of_the_other:
            tensor.copy_(self._of_the_other[len(self.own) - 1])


def test_two_processes_share_the_matrices_and_get_equal_updates(make_settings: Make) -> None:
    weights = {name: MatrixShapes(torch.Size((6, 8)), (6,)) for name in "abcd"}
    settings = make_settings(optimizer="muon")
    gradient = torch.randn(4 * 48, generator=torch.Generator().manual_seed(1))

    def move(processes: Processes) -> Tensor:
        muon = Muon(torch.zeros(4 * 48), gradient.clone(), weights, settings, processes=processes)
        muon.step(RATE)
        return muon.master

    first = OneOfTwo(0, [])
    second = OneOfTwo(1, first.own)
    move(first)
    torch.testing.assert_close(move(second), move(Processes()))
    untouched = gradient.lerp(gradient * (1.0 - settings.momentum), settings.momentum).split(96)
    assert len(first.own) == 2
    torch.testing.assert_close(first.own[1], untouched[1])
    assert not torch.allclose(first.own[0], untouched[0])
    torch.testing.assert_close(second.own[0], untouched[0])


def test_recurrent_models_have_no_matrices_for_muon() -> None:
    assert layer_matrices(make_model(kind="recurrent")) == {}


def test_shared_layers_are_stored_once_in_the_parameter_vector(make_settings: Make) -> None:
    model = make_model(num_encoder_layers=3, share_layers=True)
    optimizer = FlatOptimizer(model, make_settings(optimizer="muon"), torch.float32)
    assert optimizer.master.numel() == sum(parameter.numel() for parameter in model.parameters())
    take_step(model, optimizer)


def test_each_matrix_is_updated_by_its_own_orthogonalized_momentum(make_settings: Make) -> None:
    """The first step, where the momentum is the gradient: each of queries, keys and values by itself."""
    model = make_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = FlatOptimizer(model, make_settings(optimizer="muon"), torch.float32)
    take_step(model, optimizer)
    reference = make_model()
    for parameter in reference.parameters():
        parameter.grad = torch.zeros_like(parameter)
    # The order of the gradients is that of the parameters, as `fill_gradients` draws them.
    fill_gradients(reference)
    gradients = {name: parameter.grad for name, parameter in reference.named_parameters()}
    for name, rows in layer_matrices(model).items():
        moved = (before[name] - dict(model.named_parameters())[name].detach()).split(rows)
        gradient = gradients[name]
        assert gradient is not None
        for found, part in zip(moved, gradient.split(rows), strict=True):
            size = RATE * 0.2 * math.sqrt(max(part.shape))
            torch.testing.assert_close(found, size * orthogonalize(part[None])[0], atol=1e-6, rtol=1e-3)


def test_parameters_other_than_layer_matrices_are_updated_by_adam(make_settings: Make) -> None:
    models = {}
    for name in ("adam", "muon"):
        model = models[name] = make_model()
        optimizer = FlatOptimizer(model, make_settings(optimizer=name), torch.float32)
        for seed in range(3):
            take_step(model, optimizer, seed)
    ours, theirs = (dict(models[name].named_parameters()) for name in ("muon", "adam"))
    matrices = layer_matrices(models["muon"])
    for name, parameter in ours.items():
        assert torch.equal(parameter, theirs[name]) == (name not in matrices), name


def test_momentum_continues_with_nesterovs_look_ahead(make_settings: Make) -> None:
    model = make_model()
    optimizer = FlatOptimizer(model, make_settings(optimizer="muon", momentum=0.5), torch.float32)
    name = "encoder_layers.0.feed_forward.outer.weight"
    momentum = torch.zeros(8, 12)
    for seed in range(3):
        before = dict(model.named_parameters())[name].detach().clone()
        fill_gradients(model, seed)
        gradient = dict(model.named_parameters())[name].grad.clone() / 10  # type: ignore[union-attr]
        optimizer.step(tokens=10, rate=RATE)
        momentum = 0.5 * momentum + 0.5 * gradient
        update = orthogonalize((0.5 * momentum + 0.5 * gradient)[None])[0]
        expected = before - RATE * 0.2 * math.sqrt(12) * update
        torch.testing.assert_close(dict(model.named_parameters())[name].detach(), expected, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(optimizer.state()["momentum"][name], momentum, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_restored_muon_state_continues_bit_by_bit(make_settings: Make, precision: str) -> None:
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    settings = make_settings(optimizer="muon", average_decay=0.9, clip_norm=0.1, precision=precision)
    first, second = make_model(), make_model()
    optimizer = FlatOptimizer(first, settings, dtype)
    for seed in range(3):
        take_step(first, optimizer, seed)
    state = copy.deepcopy(optimizer.state())
    matrices = layer_matrices(first).keys()
    assert state["momentum"].keys() == matrices
    assert state["exp_avg"].keys() == state["exp_avg_sq"].keys() == state["weights"].keys() - matrices
    resumed = FlatOptimizer(second, settings, dtype)
    resumed.load_state(state, optimizer.updates)
    for model, one in ((first, optimizer), (second, resumed)):
        take_step(model, one, 9)
    assert resumed.updates == 4
    for kind, tensors in optimizer.state().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, resumed.state()[kind][name]), (kind, name)


def test_a_gradient_that_is_not_finite_changes_nothing(make_settings: Make) -> None:
    model = make_model()
    optimizer = FlatOptimizer(model, make_settings(optimizer="muon"), torch.float32)
    take_step(model, optimizer)
    before = copy.deepcopy(optimizer.state())
    fill_gradients(model)
    optimizer.gradient[-1] = math.nan  # of a matrix
    optimizer.step(tokens=10, rate=RATE)
    for kind, tensors in optimizer.state().items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, before[kind][name]), (kind, name)


def test_weights_decay_by_the_learning_rate(make_settings: Make) -> None:
    moved = []
    for decay in (0.0, 0.5):
        model = make_model()
        optimizer = FlatOptimizer(model, make_settings(optimizer="muon"), torch.float32)
        take_step(model, optimizer, weight_decay=decay)
        moved.append(optimizer.state()["weights"])
    start = dict(make_model().named_parameters())
    for name, plain in moved[0].items():
        decayed = RATE * 0.5 * start[name].detach() if plain.dim() > 1 else torch.zeros_like(plain)
        torch.testing.assert_close(moved[1][name], plain - decayed, atol=1e-6, rtol=1e-5)


def test_updates_of_low_rank_are_refused() -> None:
    with pytest.raises(
        TransduceError, match=r"is muon, which updates full matrices, but .* \(4\) only narrow matrices"
    ):
        TrainingSettings(optimizer="muon", lora_rank=4)


def test_orthogonalizing_in_portions_gives_the_same_updates(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    for most in (1 << 22, 100):
        monkeypatch.setattr("transduce.training.muon._MAX_ELEMENTS", most)
        model = make_model()
        take_step(model, FlatOptimizer(model, make_settings(optimizer="muon"), torch.float32))
        moved.append(dict(model.named_parameters()))
    for name, parameter in moved[0].items():
        torch.testing.assert_close(parameter, moved[1][name], atol=1e-6, rtol=1e-5)
