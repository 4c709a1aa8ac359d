"""Test learned positions, rotary embeddings and relative position biases, by their formulas and properties."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from transduce.errors import TransduceError
from transduce.model.build import build_model, difference_from_config
from transduce.model.config import ModelConfig, RotaryScaling
from transduce.model.positions import (
    LearnedPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
    sinusoids,
)


def rotated_product(rotary: RotaryPositions, query: Tensor, key: Tensor, at: int, other: int) -> float:
    """Return the score of a query at one position and a key at another."""
    query = rotary(torch.tensor([at]), query.dtype).apply(query.view(1, 1, 1, -1))
    key = rotary(torch.tensor([other]), key.dtype).apply(key.view(1, 1, 1, -1))
    return float((query * key).sum())


@given(
    at=st.integers(0, 300),
    other=st.integers(0, 300),
    shift=st.integers(0, 700),
    interleaved=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_scores_of_rotated_queries_and_keys_depend_on_the_distance_alone(
    at: int, other: int, shift: int, interleaved: bool, seed: int
) -> None:
    rotary = RotaryPositions(8, interleaved=interleaved)
    query, key = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    here = rotated_product(rotary, query, key, at, other)
    assert rotated_product(rotary, query, key, at + shift, other + shift) == pytest.approx(here, abs=1e-9)


def test_rotated_scores_differ_between_distances() -> None:
    rotary, (query, key) = RotaryPositions(8), torch.randn(2, 8)
    assert len({round(rotated_product(rotary, query, key, 0, other), 4) for other in range(10)}) == 10


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_by_hand(interleaved: bool) -> None:
    rotation = RotaryPositions(4, base=100.0, interleaved=interleaved)(torch.tensor([3]), torch.float32)
    turned = rotation.apply(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)).flatten().tolist()
    pairs = [(1.0, 2.0), (3.0, 4.0)] if interleaved else [(1.0, 3.0), (2.0, 4.0)]
    by_hand = []
    for (first, second), angle in zip(pairs, (3.0, 0.3), strict=True):
        sine, cosine = math.sin(angle), math.cos(angle)
        by_hand.append((first * cosine - second * sine, second * cosine + first * sine))
    expected = [*by_hand[0], *by_hand[1]] if interleaved else [n for pair in zip(*by_hand, strict=True) for n in pair]
    assert turned == pytest.approx(expected, abs=1e-6)


def test_a_rotation_keeps_lengths_and_position_0_as_it_is() -> None:
    x = torch.randn(2, 3, 5, 8)
    turned = RotaryPositions(8)(torch.arange(5), torch.float32).apply(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])


def test_each_sentence_of_a_batch_may_have_its_own_rotary_positions() -> None:
    rotary, x = RotaryPositions(8), torch.randn(2, 3, 2, 8)
    together = rotary(torch.tensor([[4, 9], [0, 600]]), torch.float32).apply(x)
    assert torch.equal(together[:1], rotary(torch.tensor([4, 9]), torch.float32).apply(x[:1]))
    assert torch.equal(together[1:], rotary(torch.tensor([0, 600]), torch.float32).apply(x[1:]))


def test_rotary_scaling_stretches_long_wavelengths_and_keeps_short_ones() -> None:
    scaling = RotaryScaling(factor=8.0, original_length=1000)
    plain, stretched = RotaryPositions(64), RotaryPositions(64, scaling=scaling)
    at = torch.tensor([1])

    def angles(rotary: RotaryPositions) -> Tensor:
        rotation = rotary(at, torch.float64)
        return torch.atan2(rotation.sine, rotation.cosine)[0]

    ratio = angles(plain) / angles(stretched)
    wavelength = 2 * math.pi / angles(plain)
    torch.testing.assert_close(ratio[wavelength < 250], torch.ones_like(ratio[wavelength < 250]))
    torch.testing.assert_close(ratio[wavelength > 1000], torch.full_like(ratio[wavelength > 1000], 8.0))
    between = ratio[(wavelength > 250) & (wavelength < 1000)]
    assert len(between) > 1
    assert ((between > 1) & (between < 8)).all()


def test_a_rotation_made_while_translating_serves_training() -> None:
    rotary = RotaryPositions(4)
    with torch.inference_mode():
        rotary(torch.arange(3), torch.float32)
    x = torch.randn(1, 1, 3, 4, requires_grad=True)
    rotary(torch.arange(3), torch.float32).apply(x).sum().backward()
    assert x.grad is not None
    assert rotary.state_dict() == {}


def test_learned_positions_are_rows_of_their_table() -> None:
    positions = LearnedPositions(6, 4, offset=2)
    with torch.no_grad():
        positions.weight.copy_(torch.arange(32.0).view(8, 4))
    x = torch.zeros(1, 3, 4)
    assert torch.equal(positions(x)[0], positions.weight[2:5])
    assert torch.equal(positions(x, torch.tensor([5, 0, 0]))[0], positions.weight[[7, 2, 2]])
    assert torch.equal(positions(x, torch.tensor([[5, 0, 1]]))[0], positions.weight[[7, 2, 3]])


@pytest.mark.parametrize("positions", [None, torch.tensor([6])])
def test_positions_beyond_the_learned_ones_are_refused(positions: Tensor | None) -> None:
    x = torch.zeros(1, 7 if positions is None else 1, 4)
    message = r"positions end at 6 tokens \(`model\.max_positions`\), but a sequence has 7: shorten the input"
    with pytest.raises(TransduceError, match=message):
        LearnedPositions(6, 4)(x, positions)


def test_sinusoids_to_the_end_have_a_last_wavelength_of_exactly_10000_times_2_pi() -> None:
    table = sinusoids(2, 8, to_end=True)
    assert table[1, 3].item() == pytest.approx(math.sin(1e-4), rel=1e-6)
    at = SinusoidalPositions(8, offset=2, to_end=True)(torch.zeros(1, 3, 8))
    assert torch.equal(at[0], sinusoids(5, 8, to_end=True)[2:])


# --- the bias by distance ---


def by_distance(*, bidirectional: bool) -> RelativePositions:
    relative = RelativePositions(num_buckets=8, max_distance=16, num_heads=3, bidirectional=bidirectional)
    with torch.no_grad():
        relative.weight.copy_(torch.arange(24.0).view(8, 3))
    return relative


def test_unidirectional_relative_buckets_equal_hand_computed_ones() -> None:
    """There are 4 buckets for the distances 0 to 3, then 4 that grow by the factor (16 / 4)^(1/4) = 1.41."""
    distances = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16, 1000]
    buckets = by_distance(bidirectional=False).buckets(-torch.tensor(distances))
    assert buckets.tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7, 7]
    assert by_distance(bidirectional=False).buckets(torch.tensor([1, 9])).tolist() == [0, 0]


def test_bidirectional_relative_buckets_equal_hand_computed_ones() -> None:
    """The first half of the buckets is for the past and the position itself, the second half for the future."""
    buckets = by_distance(bidirectional=True).buckets(torch.tensor([-40, -6, -2, -1, 0, 1, 2, 6, 40]))
    assert buckets.tolist() == [3, 3, 2, 1, 0, 5, 6, 7, 7]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_bias_depends_on_the_distance_alone(bidirectional: bool) -> None:
    relative = by_distance(bidirectional=bidirectional)
    bias = relative(torch.arange(9), torch.arange(9))
    assert bias.shape == (1, 3, 9, 9)
    assert torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1])
    shifted = relative(torch.arange(9) + 50, torch.arange(9) + 50)
    assert torch.equal(bias, shifted)
    assert bias[0, 2, 3, 1] == relative.weight[2, 2]


def test_each_sentence_of_a_batch_may_have_its_own_relative_positions() -> None:
    relative = by_distance(bidirectional=False)
    queries, keys = torch.tensor([[4, 9], [0, 3]]), torch.tensor([[0, 4, 9], [0, 1, 3]])
    together = relative(queries, keys)
    assert together.shape == (2, 3, 2, 3)
    for row in range(2):
        assert torch.equal(together[row : row + 1], relative(queries[row], keys[row]))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_pytorchs_average_of_weights_follows_a_model_whose_table_of_positions_grew(positions: str) -> None:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"source_vocabulary_size": 20, "target_vocabulary_size": 20, "d_model": 16}
    model = build_model(ModelConfig(**(sizes | {"d_ff": 16, "num_encoder_layers": 1, "positions": positions}))).eval()
    average = AveragedModel(model)
    ids = torch.randint(3, 20, (1, 300))
    with torch.no_grad():
        expected = model(ids, ids[:, :5])
        average.update_parameters(model)
        torch.testing.assert_close(average(ids, ids[:, :5]), expected)
        assert not list(model.buffers())  # PyTorch's DDP sends buffers, whose shapes would differ among processes
        moved = copy.deepcopy(model).double()
        torch.testing.assert_close(moved(ids, ids[:, :5]).float(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_model_that_moves_leaves_no_table_of_positions_behind(positions: str) -> None:
    sizes: dict[str, Any] = {"source_vocabulary_size": 20, "target_vocabulary_size": 20, "d_model": 16, "d_ff": 16}
    sizes["positions"] = positions
    ids = torch.zeros(1, 4, dtype=torch.int64, device="meta")
    model = build_model(ModelConfig(**sizes)).to("meta")
    model(ids, ids)
    tables = [each.table for each in model.to_empty(device="cpu").modules() if hasattr(each, "table")]
    assert {str(table.device) for table in tables} == {"cpu"}


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_model_that_version_0_1_pickled_is_the_one_of_its_configuration(positions: str) -> None:
    sizes: dict[str, Any] = {"source_vocabulary_size": 20, "target_vocabulary_size": 20, "d_model": 16, "d_ff": 16}
    model = build_model(ModelConfig(**(sizes | {"positions": positions}))).eval()
    ids = torch.randint(3, 20, (1, 9))
    expected = model(ids, ids)
    for module in model.modules():
        if (table := vars(module).pop("table", None)) is not None:
            module.register_buffer("table", table, persistent=False)
        vars(module).pop("projection", None)  # of embeddings
    read = pickle.loads(pickle.dumps(model))
    assert not list(read.buffers())
    assert torch.equal(read(ids, ids), expected)
    assert difference_from_config(read) is None


def test_torch_compile_traces_rotary_positions_as_one_graph() -> None:
    rotary, positions = RotaryPositions(4), torch.arange(3)
    compiled = torch.compile(copy.deepcopy(rotary), backend="eager", fullgraph=True)
    assert torch.equal(compiled(positions, torch.float32, 3).sine, rotary(positions, torch.float32, 3).sine)
