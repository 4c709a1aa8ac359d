"""Test that the training GEMM kernels give the exact results, rounded once."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

import llvmlite.binding as llvm  # type: ignore[import-not-found, import-untyped, unused-ignore]

from transduce.kernels.cpu.gemm import train_calls
from transduce.kernels.cpu.gemm.train_calls import (
    _MANY_OUTPUTS,
    GradientSums,
    PackedProjection,
    bfloat16_tile,
    gemm_emitter_of,
    gemm_tile,
    linear_backward,
    multiply,
    supports_gemm,
)
from transduce.kernels.cpu.jit import compiler
from transduce.kernels.cpu.jit.tile import AVX2_TILE, Tile
from transduce.kernels.cpu.training.layer import CompiledTraining
from transduce.model.backend import Rows, add_gradients_to, using_backend
from transduce.training.loss import projected_cross_entropy

TILE = bfloat16_tile()
TILES = {dtype: tile for dtype in (torch.bfloat16, torch.float32) if (tile := gemm_tile(dtype)) is not None}
if not TILES:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("threads")
of_pairs = pytest.mark.skipif(TILE is None, reason="this processor does not multiply pairs of bfloat16")
by_vectors = pytest.mark.skipif(TILE is None or TILE.amx, reason="this processor has AMX, or it is emulated")
of_each_kind = pytest.mark.parametrize("dtype", TILES, ids=str)

# Emulated AMX instructions take a thousand times as long, so the largest matrices are multiplied in fewer ways.
IS_EMULATED = TILE is not None and TILE.amx and not torch.cpu._is_amx_tile_supported()
LARGE = 1_000  # positions

HALF_STEP = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}  # the greatest relative error of one rounding


def sizes_of(tile: Tile) -> list[tuple[int, int, int]]:
    """Return (positions, inputs, outputs) for tests of a tile.

    They are sizes around one tile, with one to three vectors per panel, and with several panels.
    """
    if tile.amx:
        return [(16, 32, 32), (17, 64, 32), (33, 32, 64), (47, 96, 96), (70, 128, 224), (1060, 1088, 320)]
    if tile.lanes == AVX2_TILE.lanes:
        return [(4, 32, 8), (5, 64, 16), (9, 32, 24), (31, 96, 40), (70, 128, 152), (1060, 992, 136)]
    return [(8, 32, 16), (9, 64, 32), (17, 32, 48), (31, 96, 80), (70, 128, 208), (2100, 992, 272)]


SIZES = pytest.mark.parametrize(
    ("dtype", "positions", "inputs", "outputs"),
    [(dtype, *sizes) for dtype, tile in TILES.items() for sizes in sizes_of(tile)],
    ids=str,
)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape).to(dtype)


def assert_rounded_once(found: Tensor, exact: Tensor, terms: Tensor) -> None:
    """Assert that a result is exact within float32 summation errors and one rounding to its dtype."""
    error = (found.double() - exact).abs()
    assert (error <= HALF_STEP[found.dtype] * exact.abs() + 1e-5 * terms + 1e-30).all(), float(error.max())


@SIZES
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_rounded_once(
    dtype: torch.dtype, positions: int, inputs: int, outputs: int, activation: str | None, has_bias: bool
) -> None:
    if IS_EMULATED and positions > LARGE and has_bias != (activation is None):
        pytest.skip("this takes long by emulation")
    x, weight = random(positions, inputs, dtype=dtype), random(outputs, inputs, dtype=dtype)
    bias = random(outputs, dtype=dtype) if has_bias else None
    found = multiply(x, weight, bias, activation=activation)
    exact = x.double() @ weight.double().t() + (0.0 if bias is None else bias.double())
    assert_rounded_once(
        found, exact.clamp_min(0.0) if activation else exact, x.double().abs() @ weight.double().abs().t()
    )


@SIZES
@pytest.mark.parametrize("x_is_relu", [False, True])
@pytest.mark.parametrize("needs_x", [False, True])
@pytest.mark.parametrize("asked", ["both", "neither", "weight", "bias"])
def test_gradients_of_linear_layers_are_rounded_once(
    dtype: torch.dtype, positions: int, inputs: int, outputs: int, x_is_relu: bool, needs_x: bool, asked: str
) -> None:
    if (
        IS_EMULATED
        and positions > LARGE
        and (x_is_relu, needs_x, asked) not in {(True, True, "both"), (False, False, "weight")}
    ):
        pytest.skip("this takes long by emulation")
    x, weight = random(positions, inputs, dtype=dtype), random(outputs, inputs, dtype=dtype)
    gradient = random(positions, outputs, dtype=dtype)
    relu_mask = None
    if x_is_relu:
        relu_mask = torch.empty(positions * inputs // 8, dtype=torch.uint8)
        given_to_relu = random(positions, 64, dtype=dtype) / 8, random(inputs, 64, dtype=dtype)
        packed = torch.empty_like(given_to_relu[1])
        train_calls.run_forward(given_to_relu[0], given_to_relu[1], x, packed, lower_bound=0.0, relu_mask=relu_mask)
    sums = GradientSums(
        torch.full((outputs, inputs), 2.0) if asked in ("both", "weight") else None,
        torch.full((outputs,), 3.0) if asked in ("both", "bias") else None,
    )
    given = gradient.clone()
    found = torch.empty_like(x) if needs_x else None
    train_calls.run_backward(gradient, x, weight, found, sums, torch.empty_like(weight), relu_mask=relu_mask)
    assert torch.equal(gradient, given)
    counted = gradient.double()
    if found is not None:
        positive = (x > 0).double() if x_is_relu else 1.0
        assert_rounded_once(found, counted @ weight.double() * positive, counted.abs() @ weight.double().abs())
    if sums.weight is not None:
        torch.testing.assert_close((sums.weight - 2.0).double(), counted.t() @ x.double(), rtol=1e-5, atol=1e-4)
    if sums.bias is not None:
        torch.testing.assert_close((sums.bias - 3.0).double(), counted.sum(dim=0), rtol=1e-5, atol=1e-4)


@of_each_kind
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    x, weight, bias, gradient = (random(*each, dtype=dtype) for each in ((300, 64), (96, 64), (96,), (300, 96)))
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        sums = GradientSums(torch.zeros(96, 64), torch.zeros(96))
        out = multiply(x, weight, bias, activation="relu")
        grad_x = linear_backward(gradient, x, weight, sums, needs_x=True)
        assert grad_x is not None
        assert sums.weight is not None
        assert sums.bias is not None
        found.append((out, grad_x, sums.weight, sums.bias))
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@of_pairs
def test_non_temporal_stores_give_equal_results(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, gradient = random(75, 64), random(96, 64), random(96), random(75, 96)
    found = []
    for least in (train_calls._STREAMED_BYTES, 0):
        monkeypatch.setattr(train_calls, "_STREAMED_BYTES", least)
        grad_x = linear_backward(gradient, x, weight, GradientSums(None), needs_x=True)
        assert grad_x is not None
        assert train_calls._is_streamed(grad_x) is (least == 0)
        found.append((multiply(x, weight, bias, activation="relu"), grad_x))
    assert all(map(torch.equal, *found))


@of_each_kind
def test_nan_propagates_to_its_row_only(dtype: torch.dtype) -> None:
    x, weight = random(20, 32, dtype=dtype), random(32, 32, dtype=dtype)
    x[3] = float("nan")
    for activation in (None, "relu"):
        out = multiply(x, weight, None, activation=activation)
        assert out[3].isnan().all()
        assert not out[:3].isnan().any()
        assert not out[4:].isnan().any()


@of_each_kind
def test_a_projection_is_packed_once_for_all_rows(dtype: torch.dtype) -> None:
    weight, total = random(160, 64, dtype=dtype), torch.zeros(160, 64)
    projection, wanted = PackedProjection(weight, None, 160), torch.zeros(160, 64).double()
    for positions in (16, 25, 40):
        x, gradient = random(positions, 64, dtype=dtype), random(positions, 160, dtype=dtype)
        out, grad_x = x.new_empty(positions, 160), torch.empty_like(x)
        projection.logits(x, out)
        projection.backward(gradient, x, grad_x, total)
        assert_rounded_once(out, x.double() @ weight.double().t(), x.double().abs() @ weight.double().abs().t())
        exact = gradient.double() @ weight.double()
        assert_rounded_once(grad_x, exact, gradient.double().abs() @ weight.double().abs())
        wanted += gradient.double().t() @ x.double()
    torch.testing.assert_close(total.double(), wanted, rtol=1e-5, atol=1e-4)


@of_each_kind
@pytest.mark.parametrize("positions", [21, 300])
def test_a_gradient_of_many_outputs_is_summed_in_parts(positions: int, dtype: torch.dtype) -> None:
    outputs = _MANY_OUTPUTS + 96
    x, weight, gradient = (
        random(*each, dtype=dtype) for each in ((positions, 96), (outputs, 96), (positions, outputs))
    )
    found = linear_backward(gradient, x, weight, GradientSums(None), needs_x=True)
    assert found is not None
    exact = gradient.double() @ weight.double()
    assert_rounded_once(found, exact, gradient.double().abs() @ weight.double().abs())


@of_each_kind
@pytest.mark.parametrize("positions", [3, 40, 600])
@pytest.mark.parametrize("vocabulary", [64, 61, 97])
def test_the_loss_and_its_gradients_equal_pytorchs(positions: int, vocabulary: int, dtype: torch.dtype) -> None:
    """Beyond 256 positions the logits are computed in parts; an odd vocabulary is padded, and its bias too."""
    labels = torch.randint(0, vocabulary, (1, positions))
    values = []
    for kernels in (None, CompiledTraining()):
        torch.manual_seed(4)
        shapes = ((1, positions, 32), (vocabulary, 32), (vocabulary,))
        hidden, weight, bias = (random(*each, dtype=dtype).requires_grad_() for each in shapes)
        chosen = bias if vocabulary != 97 else None
        with using_backend(kernels):
            is_packed = kernels is not None and kernels.project(hidden[0], weight, chosen) is not None
            assert is_packed == (kernels is not None and positions >= 40)
            loss = projected_cross_entropy(hidden, weight, labels, pad_id=0, bias=chosen, label_smoothing=0.1)
            loss.total.backward()
        assert hidden.grad is not None
        assert weight.grad is not None
        grad_bias = torch.zeros(1) if bias.grad is None else bias.grad.float()
        values.append((loss.total.detach(), hidden.grad.float(), weight.grad.float(), grad_bias))
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for one, other in zip(*values, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@of_each_kind
def test_a_product_with_some_rows_of_a_matrix_updates_these_rows_only(dtype: torch.dtype) -> None:
    """The weight of attention holds queries, keys and values, of which a product may use some rows only."""
    kernels = CompiledTraining()
    x, weight, bias = (random(*each, dtype=dtype).requires_grad_() for each in ((20, 32), (96, 32), (96,)))
    total, bias_total = torch.ones(96, 32), torch.ones(96)
    add_gradients_to(weight, total)
    add_gradients_to(bias, bias_total)
    out = kernels.linear(x, weight, bias, Rows(32, 64))
    gradient = random(20, 32, dtype=dtype)
    out.backward(gradient)
    for each in (total, bias_total):
        assert (each[:32] == 1.0).all()
        assert (each[64:] == 1.0).all()
    exact = gradient.double().t() @ x.detach().double()
    torch.testing.assert_close((total[32:64] - 1.0).double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close((bias_total[32:64] - 1.0).double(), gradient.double().sum(dim=0), rtol=1e-5, atol=1e-4)


@of_each_kind
def test_unsupported_shapes_are_left_to_pytorch(dtype: torch.dtype) -> None:
    rows, _, outputs = sizes_of(TILES[dtype])[0]
    assert gemm_emitter_of(TILES[dtype]).layout.min_rows == rows
    x, weight = random(rows, 32, dtype=dtype), random(outputs, 32, dtype=dtype)
    assert supports_gemm(x, weight)
    assert not supports_gemm(x[:-1], weight)
    assert not supports_gemm(random(rows, 48, dtype=dtype), random(outputs, 48, dtype=dtype))
    assert not supports_gemm(x, random(outputs + outputs // 2, 32, dtype=dtype))
    assert not supports_gemm(x, weight.double())
    assert not supports_gemm(x.double(), weight.double())


def multiplies_pairs() -> bool:
    """Return whether this processor has kernels for bfloat16, without a cached answer."""
    return compiler.find_float_tile("pairs") is not None


@by_vectors
@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE", "AVX512_CORE_VNNI"])
def test_onednn_max_cpu_isa_restricts_these_kernels_too(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    for known in (compiler.find_integer_tile, compiler._has_pairs):
        monkeypatch.setattr(compiler, known.__name__, known.__wrapped__)
    assert multiplies_pairs()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert not multiplies_pairs()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert multiplies_pairs()


@by_vectors
def test_a_processor_with_amx_uses_amx_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    features = {**llvm.get_host_cpu_features(), "amx-tile": True, "amx-bf16": True}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: True, raising=False)
    for known in (compiler._has_pairs, compiler._has_amx_pairs):
        monkeypatch.setattr(compiler, known.__name__, known.__wrapped__)
    monkeypatch.setattr(train_calls, "bfloat16_tile", bfloat16_tile.__wrapped__)
    for is_right in (True, False):
        monkeypatch.setattr(train_calls, "multiplies_correctly", lambda _, is_right=is_right: is_right)
        tile = train_calls.bfloat16_tile()
        assert tile is not None
        assert tile.amx is is_right
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    tile = compiler.find_float_tile("pairs")
    assert tile is not None
    assert not tile.amx


@of_pairs
def test_the_self_test_detects_wrong_products(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TILE is not None
    assert train_calls.multiplies_correctly(TILE)
    forward = train_calls.run_forward

    def wrong(x: Tensor, weight: Tensor, out: Tensor, *rest: Any, **options: Any) -> None:
        forward(x, weight, out, *rest, **options)
        out[7, 3] += 1.0 + out[7, 3].abs() * 0.5 + out.abs().max() / 16

    monkeypatch.setattr(train_calls, "run_forward", wrong)
    assert not train_calls.multiplies_correctly(TILE)


@by_vectors
def test_products_are_left_to_pytorch_on_narrow_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "find_integer_tile", lambda: AVX2_TILE)
    monkeypatch.setattr(train_calls, "bfloat16_tile", bfloat16_tile.__wrapped__)
    assert not supports_gemm(random(8, 32), random(16, 32))
