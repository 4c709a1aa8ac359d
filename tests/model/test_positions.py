"""Test sinusoidal positions against values computed by hand, and against a formula that is often taught wrongly."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transduce
from transduce.errors import TransduceError
from transduce.model.build import build_model
from transduce.model.config import REGISTERED_NAMES
from transduce.model.positions import BIASES, NoPositions, SinusoidalPositions, interleaving, sinusoids


def formula_over_all_dimensions(length: int, d_model: int) -> Tensor:
    """Return positions by a common mistake: i counts dimensions instead of pairs.

    A sine and its cosine then differ in frequency.
    """
    table = torch.empty(length, d_model)
    for position in range(length):
        for i in range(d_model):
            angle = position / 10000 ** (2 * i / d_model)
            table[position, i] = math.cos(angle) if i % 2 else math.sin(angle)
    return table


def agrees_with_hand_values(table: Tensor) -> bool:
    """Return whether a table has the values of section 3.5 for d_model = 4.

    The frequencies are 1 and 10000^(-2/4) = 1/100.
    """
    by_hand = torch.tensor(
        [
            [0.0, 1.0, 0.0, 1.0],
            [0.8414710, 0.5403023, 0.0099998, 0.9999500],  # sin 1, cos 1, sin 0.01, cos 0.01
            [0.9092974, -0.4161468, 0.0199987, 0.9998000],  # sin 2, cos 2, sin 0.02, cos 0.02
            [0.1411200, -0.9899925, 0.0299955, 0.9995500],  # sin 3, cos 3, sin 0.03, cos 0.03
        ]
    )
    return torch.allclose(table, by_hand, atol=1e-6, rtol=0)


def test_the_paper_layout_has_the_values_worked_out_by_hand() -> None:
    assert agrees_with_hand_values(sinusoids(4, 4, interleaved=True))


def test_the_formula_with_2i_over_all_dimensions_differs_from_the_hand_values() -> None:
    wrong = formula_over_all_dimensions(4, 4)
    # Position 1, dimension 1: the paper has cos(1); the mistake has cos(1 / 10000^(2/4)).
    assert wrong[1, 1] == pytest.approx(math.cos(0.01))
    assert not agrees_with_hand_values(wrong)


def test_the_model_holds_all_sines_then_all_cosines() -> None:
    table = sinusoids(4, 4)
    assert table[3].tolist() == pytest.approx([math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)], abs=1e-6)
    assert torch.equal(table[:, interleaving(4)], sinusoids(4, 4, interleaved=True))


def test_interleaving_is_a_permutation() -> None:
    assert interleaving(6).tolist() == [0, 3, 1, 4, 2, 5]


def test_wavelengths_run_from_2_pi_to_10000_times_2_pi() -> None:
    """Section 3.5. The last frequency of d_model = 512 is 10000^(-510/512)."""
    table = sinusoids(2, 512)
    assert table[1, 0].item() == pytest.approx(math.sin(1.0))
    assert table[1, 255].item() == pytest.approx(math.sin(10000 ** (-510 / 512)), rel=1e-6)


@pytest.mark.parametrize("offset", [1, 5, 40])
def test_a_shifted_position_is_a_rotation_of_the_position(offset: int) -> None:
    """PE(pos + k) is a linear function of PE(pos), as the paper says: each pair turns by k times its frequency."""
    d_model = 8
    table = sinusoids(64, d_model, interleaved=True).double()
    rotation = torch.zeros(d_model, d_model, dtype=torch.float64)
    for pair in range(d_model // 2):
        angle = offset / 10000 ** (2 * pair / d_model)
        sine, cosine = math.sin(angle), math.cos(angle)
        rotation[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor([[cosine, sine], [-sine, cosine]])
    torch.testing.assert_close(table[:-offset] @ rotation.T, table[offset:], atol=1e-6, rtol=0)


def test_the_table_grows_and_keeps_its_values() -> None:
    positions = SinusoidalPositions(8)
    short = positions(torch.zeros(1, 3, 8))
    assert torch.equal(positions(torch.zeros(1, 700, 8))[:, :3], short)
    assert torch.equal(positions(torch.zeros(1, 700, 8))[0], sinusoids(700, 8))


def test_explicit_positions_select_rows_of_the_table() -> None:
    positions = SinusoidalPositions(8)
    at = positions(torch.zeros(2, 3, 8), torch.tensor([5, 5, 900]))
    table = sinusoids(901, 8)
    assert torch.equal(at, torch.stack([table[5], table[5], table[900]]).expand(2, 3, 8))


def test_the_table_follows_the_dtype() -> None:
    positions = SinusoidalPositions(8)
    wide = positions(torch.zeros(1, 4, 8))
    narrow = positions(torch.zeros(1, 4, 8, dtype=torch.bfloat16))
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, wide.bfloat16())


def test_the_table_is_not_a_weight() -> None:
    positions = SinusoidalPositions(8)
    positions(torch.zeros(1, 4, 8))
    assert positions.state_dict() == {}


def test_a_table_computed_in_inference_mode_can_be_trained_through() -> None:
    positions = SinusoidalPositions(8)
    with torch.inference_mode():
        positions(torch.zeros(1, 4, 8))
    x = torch.zeros(1, 4, 8, requires_grad=True)
    copy.deepcopy(positions)(x).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(1, 4, 8))


def test_without_positions_embeddings_stay_as_they_are() -> None:
    x = torch.randn(1, 4, 8)
    assert torch.equal(NoPositions()(x, torch.tensor([1, 2, 3, 4])), x)


def test_sinusoids_of_an_odd_width_are_refused() -> None:
    with pytest.raises(TransduceError, match=r"must be even, but it is 15\.$"):
        sinusoids(30, 15)


@pytest.mark.parametrize(
    ("forward", "problem"),
    [
        (lambda self, x, *_: x + self.table[: len(x), :5], "fails with RuntimeError: "),
        (lambda *_: torch.zeros(2, 3), r"result has the shape \(2, 3\)"),
        (lambda _, x: x, "fails with TypeError: "),
        (lambda *_: torch.rand(1, 2, 2, 3), None),
    ],
)
def test_a_registered_position_scheme_that_is_no_bias_is_refused(
    forward: Callable[..., Any], problem: str | None
) -> None:
    scheme = type("Scheme", (nn.Module,), {"forward": forward, "table": torch.zeros(9, 16)})
    transduce.register("positions", "own-scheme")(lambda *_: scheme())
    try:
        sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 9, "d_model": 16, "d_ff": 16, "num_heads": 2}
        settings: dict[str, Any] = sizes | {"positions": "own-scheme"}
        config = transduce.ModelConfig(**settings)
        with torch.device("meta"):
            build_model(config)
        if problem is None:
            build_model(config)
            return
        with pytest.raises(TransduceError, match=rf"`model\.positions` = own-scheme must be a bias.*{problem}"):
            build_model(config)
    finally:
        REGISTERED_NAMES["positions"].discard("own-scheme")
        BIASES.pop("own-scheme")
