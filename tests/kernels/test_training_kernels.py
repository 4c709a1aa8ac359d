"""Test that training kernels have the results and gradients of PyTorch's operations."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.errors import TransduceError
from transduce.kernel_interfaces import AttentionOptions
from transduce.kernels.cpu import train_rows
from transduce.kernels.cpu.jit import compiler
from transduce.kernels.cpu.jit.compiler import find_integer_tile
from transduce.kernels.cpu.jit.tile import AVX2_TILE, AVX512_TILE
from transduce.kernels.cpu.train_rows import DropoutArguments
from transduce.kernels.cpu.training import autograd
from transduce.kernels.cpu.training.layer import CompiledTraining
from transduce.kernels.training_executor import execute
from transduce.model.attention import MultiHeadAttention
from transduce.model.backend import Rows, add_gradients_to, backend_in_use, using_backend
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import ACTIVATIONS, GATES
from transduce.model.masks import AttentionMask, BiasedMask, look_ahead_mask, padding_mask
from transduce.model.positions import RotaryPositions
from transduce.model.transformer import Transformer
from transduce.training.loss import projected_cross_entropy

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)
TILES = [AVX2_TILE, AVX512_TILE]  # on processors with narrow vectors, LLVM splits a wide one in two

pytestmark = pytest.mark.usefixtures("one_or_two_threads")
KERNELS = CompiledTraining()
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
PAD = 0


@pytest.fixture(autouse=True, scope="module", params=TILES, ids=lambda tile: f"{tile.lanes} lanes")
def _tile(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile all kernels for one of the tiles; compiled kernels are cached for the tile of the processor."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (compiler, autograd, train_rows):
            patch.setattr(module, "find_integer_tile", lambda: request.param)
        _forget_kernels()
        yield
    _forget_kernels()


def _forget_kernels() -> None:
    for function in (*vars(autograd).values(), *vars(train_rows).values()):
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def assert_near(found: Tensor, wanted: Tensor) -> None:
    """Assert equality within the rounding of the result's dtype, relative to the greatest expected element."""
    error = (found.double() - wanted.double()).abs().max()
    assert error <= TOLERANCE[found.dtype] * wanted.abs().max().clamp_min(1.0), float(error)


def attend_plainly(projected: Tensor, memory: Tensor | None, allowed: Tensor, heads: int) -> Tensor:
    """Compute equation (1), one operation at a time."""
    given = projected.chunk(3, -1) if memory is None else (projected, *memory.chunk(2, -1))
    query, key, value = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in given)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
    context: Tensor = (weights @ value).transpose(1, 2).flatten(2)
    return context


@DTYPES
@pytest.mark.parametrize(
    ("batch", "queries", "keys", "heads", "width"),
    [
        (3, 7, 7, 4, 32),
        (2, 1, 1, 2, 16),
        (5, 33, 33, 3, 64),
        (1, 18, 18, 1, 128),
        (4, 9, 40, 2, 32),
        (2, 3, 1, 1, 48),
        (2, 70, 70, 2, 96),
        (3, 40, 256, 1, 32),
    ],
)
@pytest.mark.parametrize("is_causal", [False, True], ids=["lengths", "look-ahead"])
def test_attention_and_its_gradients_equal_pytorchs(
    dtype: torch.dtype, batch: int, queries: int, keys: int, heads: int, width: int, is_causal: bool
) -> None:
    torch.manual_seed(3)
    own = queries == keys
    if is_causal and not own:
        pytest.skip("only a sentence looks ahead into itself")
    inner = heads * width
    projected = torch.randn(batch, queries, 3 * inner if own else inner).to(dtype).requires_grad_()
    memory = None if own else torch.randn(batch, keys, 2 * inner).to(dtype).requires_grad_()
    lengths = None if is_causal else torch.randint(1, keys + 1, (batch,))
    if lengths is None:
        allowed = torch.ones(keys, keys, dtype=torch.bool).tril()
    else:
        allowed = (torch.arange(keys) < lengths[:, None])[:, None, None]
    assert KERNELS.supports_attention(projected, keys, width)
    found = KERNELS.attend(projected, memory, lengths, heads)
    slope = torch.randn_like(found)
    learning = [x for x in (projected, memory) if x is not None]
    gradients = torch.autograd.grad(found, learning, slope)
    wide = [x.detach().double().requires_grad_() for x in learning]
    wanted = attend_plainly(wide[0], wide[1] if memory is not None else None, allowed, heads)
    assert_near(found, wanted)
    for gradient, known in zip(gradients, torch.autograd.grad(wanted, wide, slope.double()), strict=True):
        assert_near(gradient, known)


@pytest.mark.parametrize("is_causal", [False, True], ids=["lengths", "look-ahead"])
def test_attention_drops_weights_and_shares_keys(is_causal: bool) -> None:
    """Values that are unit vectors show the weights that remain after dropout, and thereby the mask."""
    batch, length, heads, shared, width = 3, 30, 4, 2, 32
    options = AttentionOptions(shared=shared, scale=0.3, drop_256ths=64)
    queries, keys, values = (torch.randn(batch, length, each * width) for each in (4, 2, 2))
    lengths = None if is_causal else torch.tensor([30, 12, 1])
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    if lengths is not None:
        allowed = (torch.arange(length) < lengths[:, None])[:, None, None].expand(batch, 1, length, length)

    def attend(values: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(5)
        projected = torch.cat([queries, keys, values], dim=-1).requires_grad_()
        return projected, KERNELS.attend(projected, None, lengths, heads, options)

    def by_head(x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, width))
        return heads.transpose(1, 2)

    units = torch.eye(length, width).expand(batch, length, width).repeat(1, 1, heads // shared)
    is_kept = by_head(attend(units)[1].detach())[..., :length] > 0
    projected, found = attend(values)
    wide = projected.detach().double().requires_grad_()
    query, key, value = (by_head(x) for x in wide.split([heads * width, 64, 64], dim=-1))
    key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
    weights = (query @ key.transpose(-1, -2) * 0.3).masked_fill(~allowed, -math.inf).softmax(-1)
    wanted = ((weights * is_kept * (256 / 192)) @ value).transpose(1, 2).flatten(2)
    assert_near(found, wanted)
    slope = torch.randn_like(found)
    gradients = [torch.autograd.grad(out, x, slope.to(x.dtype))[0] for out, x in ((found, projected), (wanted, wide))]
    assert_near(*gradients)
    visible = allowed.expand_as(is_kept)
    assert abs(float(is_kept[visible].double().mean()) - 0.75) < 0.03


@DTYPES
@pytest.mark.parametrize("name", [*ACTIVATIONS, *GATES])
def test_activations_and_their_gradients_equal_pytorchs(name: str, dtype: torch.dtype) -> None:
    is_gated = name in GATES
    x = (torch.randn(5, 96) * torch.tensor([0.01, 1.0, 3.0, 9.0, 60.0])[:, None]).to(dtype).requires_grad_()
    assert KERNELS.supports_activation(name, x, 48 if is_gated else 96)
    assert not KERNELS.supports_activation(name, x, 49)
    assert not KERNELS.supports_activation("tanh", x, 48)
    found = KERNELS.activate(x, name)
    wide = x.detach().double().requires_grad_()
    gate, *linear = wide.chunk(2, dim=-1) if is_gated else (wide,)
    wanted = GATES[name](gate) * linear[0] if is_gated else ACTIVATIONS[name](gate)
    slope = torch.randn_like(found)
    gradients = [torch.autograd.grad(out, at, slope.to(at.dtype))[0] for out, at in ((found, x), (wanted, wide))]
    for row in range(len(x)):
        assert_near(found[row], wanted[row])
        assert_near(gradients[0][row], gradients[1][row])


@pytest.mark.parametrize("is_causal", [False, True], ids=["lengths", "look-ahead"])
def test_attention_with_a_bias_on_the_scores(is_causal: bool) -> None:
    batch, length, heads, width = 3, 37, 3, 32
    projected = torch.randn(batch, length, 3 * heads * width).requires_grad_()
    bias = torch.randn(heads, length, length).requires_grad_()
    lengths = None if is_causal else torch.tensor([37, 12, 1])
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    if lengths is not None:
        allowed = (torch.arange(length) < lengths[:, None])[:, None, None]
    found = KERNELS.attend(projected, None, lengths, heads, AttentionOptions(scale=1.0), bias)
    wide, wide_bias = (x.detach().double().requires_grad_() for x in (projected, bias))
    query, key, value = (x.unflatten(-1, (heads, width)).transpose(1, 2) for x in wide.chunk(3, -1))
    weights = (query @ key.transpose(-1, -2) + wide_bias).masked_fill(~allowed, -math.inf).softmax(-1)
    wanted = (weights @ value).transpose(1, 2).flatten(2)
    assert_near(found, wanted)
    slope = torch.randn_like(found)
    gradients = torch.autograd.grad(found, [projected, bias], slope)
    for gradient, known in zip(gradients, torch.autograd.grad(wanted, [wide, wide_bias], slope.double()), strict=True):
        assert_near(gradient, known)
    with pytest.raises(ValueError, match=r"a bias of \(3, 37, 36\) for 3 heads and 37 positions"):
        KERNELS.attend(projected, None, lengths, heads, AttentionOptions(), bias[:, :, :36])


def test_attention_of_large_scores_is_finite() -> None:
    projected = torch.randn(2, 20, 3 * 32) * 100
    found = KERNELS.attend(projected, None, torch.tensor([20, 3]), 1)
    assert found.isfinite().all()


@pytest.mark.parametrize(("width", "keys"), [(20, 10), (144, 10), (32, 257)])
def test_attention_of_unsupported_widths_lengths_and_types_is_left_to_pytorch(width: int, keys: int) -> None:
    assert not KERNELS.supports_attention(torch.zeros(1, keys, width), keys, width)
    assert not KERNELS.supports_attention(torch.zeros(1, 5, 32, dtype=torch.float64), 5, 32)


def test_padding_masks_at_the_right_have_lengths() -> None:
    ids = torch.tensor([[5, 6, 7], [5, 6, PAD], [5, PAD, PAD]])
    lengths = padding_mask(ids, PAD).lengths
    assert lengths is not None
    assert lengths.tolist() == [3, 2, 1]
    assert padding_mask(torch.tensor([[PAD, 5]]), PAD).lengths is None  # padded at the left
    assert padding_mask(torch.tensor([[5, 5], [PAD, PAD]]), PAD).lengths is None  # a sentence without any key
    assert look_ahead_mask(3).lengths is None
    assert AttentionMask(torch.ones(2, 1, 3, 3, dtype=torch.bool)).lengths is None
    assert BiasedMask(torch.ones(2, 1, 1, 3, dtype=torch.bool), torch.zeros(2, 1, 3, 3)).lengths is None


def test_attention_dropout_and_norm_of_mismatched_shapes_are_refused() -> None:
    queries, lengths = torch.zeros(2, 5, 32), torch.tensor([5, 5])
    with pytest.raises(ValueError, match=r"a memory of \(2, 3, 32\)"):
        KERNELS.attend(queries, torch.zeros(2, 3, 32), lengths, 1)
    with pytest.raises(ValueError, match=r"lengths must be int64 of shape \(2,\)"):
        KERNELS.attend(queries, torch.zeros(2, 3, 64), lengths[:1], 1)
    with pytest.raises(ValueError, match=r"a residual of torch.float32 \(2, 5, 16\) cannot be added"):
        KERNELS.dropout_add(torch.zeros(2, 5, 16), queries, 10)
    with pytest.raises(ValueError, match=r"torch.bfloat16 \(32,\) cannot be the weight or bias"):
        KERNELS.residual_norm(queries, torch.ones(32, dtype=torch.bfloat16), torch.zeros(32), 1e-5)


@DTYPES
@pytest.mark.parametrize("width", [16, 48, 128])
def test_layer_norm_and_its_gradients_equal_pytorchs(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(4)
    given = [(torch.randn(shape) + 0.5).to(dtype).requires_grad_() for shape in ((37, 5, width), (width,), (width,))]
    x, weight, bias = given
    assert KERNELS.supports_rows(x)
    found = KERNELS.residual_norm(x, weight, bias, 1e-5)[1]
    slope = torch.randn_like(found)
    gradients = torch.autograd.grad(found, given, slope)
    wide = [x.detach().double().requires_grad_() for x in given]
    wanted = F.layer_norm(wide[0], (width,), wide[1], wide[2], 1e-5)
    assert_near(found, wanted)
    for gradient, known in zip(gradients, torch.autograd.grad(wanted, wide, slope.double()), strict=True):
        assert_near(gradient, known)


@DTYPES
@pytest.mark.parametrize("width", [16, 48, 128])
def test_rms_norm_and_its_gradients_equal_pytorchs(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(4)
    x, weight = given = [(torch.randn(shape) + 0.5).to(dtype).requires_grad_() for shape in ((37, 5, width), (width,))]
    assert KERNELS.supports_rows(x)
    found = KERNELS.residual_norm(x, weight, None, 1e-5)[1]
    slope = torch.randn_like(found)
    gradients = torch.autograd.grad(found, given, slope)
    wide = [x.detach().double().requires_grad_() for x in given]
    wanted = F.rms_norm(wide[0], (width,), wide[1], 1e-5)
    assert_near(found, wanted)
    for gradient, known in zip(gradients, torch.autograd.grad(wanted, wide, slope.double()), strict=True):
        assert_near(gradient, known)


@DTYPES
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize(("heads", "width", "columns"), [(4, 32, 192), (3, 64, 192), (1, 96, 112)])
def test_rotary_embeddings_and_their_gradients_equal_pytorchs(
    dtype: torch.dtype, interleaved: bool, heads: int, width: int, columns: int
) -> None:
    torch.manual_seed(4)
    x = torch.randn(3, 7, columns).to(dtype).requires_grad_()
    rotation = RotaryPositions(width, interleaved=interleaved)(torch.arange(7), torch.float32, 7)
    assert KERNELS.supports_rotary(x, width)
    found = KERNELS.apply_rotary(x, rotation, heads)
    slope = torch.randn_like(found)
    (gradient,) = torch.autograd.grad(found, x, slope)
    wide = x.detach().float().requires_grad_()
    by_head = wide[..., : heads * width].unflatten(-1, (heads, width)).transpose(1, 2)  # (B, H, T, K)
    turned = rotation.apply(by_head).transpose(1, 2).flatten(2)
    wanted = torch.cat([turned, wide[..., heads * width :]], dim=-1)
    assert_near(found, wanted)
    assert_near(gradient, torch.autograd.grad(wanted, wide, slope.float())[0])
    with pytest.raises(ValueError, match="are not in"):
        KERNELS.apply_rotary(x, rotation, columns // width + 1)


@DTYPES
@pytest.mark.parametrize("width", [1, 7, 64, 596, 8000, 8005])
def test_softmax_and_its_normalizers_equal_pytorchs(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(5)
    logits = (torch.randn(9, width) * 4).to(dtype)
    logits[0] += 1000
    wide = logits.double()
    assert KERNELS.supports_logits(logits)
    normalizers = KERNELS.softmax_(logits)
    assert_near(normalizers, wide.logsumexp(-1))
    assert_near(logits, wide.softmax(-1))


@DTYPES
def test_dropout_drops_the_same_elements_forward_and_backward(dtype: torch.dtype) -> None:
    residual = torch.randn(1000, 160).to(dtype).requires_grad_()
    x = torch.ones(1000, 160).to(dtype).requires_grad_()
    torch.manual_seed(6)
    found = KERNELS.dropout_add(residual, x, 77)
    grad_residual, grad_x = torch.autograd.grad(found, (residual, x), torch.ones_like(found))
    kept = grad_x != 0
    scale = 256 / (256 - 77)
    assert_near(found, residual.double() + torch.where(kept, scale, 0.0))  # the same elements, forward and back
    assert_near(grad_x[kept], torch.full_like(grad_x[kept], scale))
    assert (grad_residual == 1).all()
    share = 1 - kept.double().mean()
    assert abs(share - 77 / 256) < 4 * math.sqrt(0.3 * 0.7 / kept.numel())
    for dim, count in ((0, 1000), (1, 160)):  # no column and no row is favoured
        assert kept.double().mean(dim).std() < 1.3 * math.sqrt(0.3 * 0.7 / count)
    torch.manual_seed(6)
    assert torch.equal(KERNELS.dropout_add(residual, x, 77), found)
    assert not torch.equal(KERNELS.dropout_add(residual, x, 77), found)


def test_dropout_without_a_residual() -> None:
    found = KERNELS.dropout_add(None, torch.ones(64, 32), 128)
    assert set(found.unique().tolist()) == {0.0, 2.0}


@DTYPES
def test_avx2_and_avx512_drop_the_same_elements(dtype: torch.dtype) -> None:
    x, found = torch.ones(3, 112).to(dtype), []
    for tile in TILES:
        out = torch.empty_like(x)
        places = DropoutArguments(x.data_ptr(), 0, out.data_ptr(), x.numel(), 1 << 40 | 12345, 77)
        train_rows.row_kernels(dtype, tile)["drop"].run(*places)
        found.append(out)
    assert torch.equal(*found)


@DTYPES
@pytest.mark.parametrize("has_bias", [True, False], ids=["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("is_summed", [False, True], ids=["given", "summed"])
@pytest.mark.parametrize("width", [16, 64, 176])
def test_residual_norm_equals_its_modules_and_returns_the_residual(
    dtype: torch.dtype, has_bias: bool, is_summed: bool, width: int
) -> None:
    torch.manual_seed(9)
    x, weight, bias = (torch.randn(*size, width).to(dtype).requires_grad_() for size in ((3, 7), (), ()))
    totals = [torch.full((width,), 5.0), torch.full((width,), 7.0)]
    if is_summed:
        for parameter, total in zip((weight, bias), totals, strict=True):
            add_gradients_to(parameter, total)
    kept, found = KERNELS.residual_norm(x, weight, bias if has_bias else None, 1e-5)
    assert torch.equal(kept, x)
    slopes = torch.randn_like(found), torch.randn_like(found)
    torch.autograd.backward((kept, found), slopes)
    wide = [each.detach().double().requires_grad_() for each in (x, weight, bias)]
    wanted = F.layer_norm(wide[0], [width], wide[1], wide[2], 1e-5)
    wanted = wanted if has_bias else F.rms_norm(wide[0], [width], wide[1], 1e-5)
    assert_near(found, wanted)
    torch.autograd.backward((wide[0], wanted), [each.double() for each in slopes])
    assert x.grad is not None
    assert wide[0].grad is not None
    assert_near(x.grad, wide[0].grad)
    for parameter, total, own in list(zip((weight, bias), totals, wide[1:], strict=True))[: 1 + has_bias]:
        assert own.grad is not None
        if is_summed:
            assert parameter.grad is None
            assert_near((total - (5.0 if parameter is weight else 7.0)).to(dtype), own.grad)
        else:
            assert parameter.grad is not None
            assert_near(parameter.grad, own.grad)
    assert KERNELS.residual_norm(x, weight, bias, 1e-5)[0].requires_grad
    (alone,) = torch.autograd.grad(KERNELS.residual_norm(x, weight, bias, 1e-5)[0], x, slopes[0])
    assert torch.equal(alone, slopes[0])


@DTYPES
@pytest.mark.parametrize("rows", [None, Rows(32, 96)], ids=str)
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("is_summed", [False, True], ids=["given", "summed"])
@pytest.mark.parametrize("positions", [1, 8, 37])
def test_linear_layers_and_their_gradients_equal_pytorchs(
    dtype: torch.dtype, rows: Rows | None, activation: str | None, is_summed: bool, positions: int
) -> None:
    torch.manual_seed(9)
    given = [torch.randn(2, positions, 48), torch.randn(112, 48), torch.randn(112)]
    x, weight, bias = (each.to(dtype).requires_grad_() for each in given)
    totals = torch.full_like(weight, 5.0, dtype=torch.float32), torch.full_like(bias, 7.0, dtype=torch.float32)
    if is_summed:
        for parameter, total in zip((weight, bias), totals, strict=True):
            add_gradients_to(parameter, total)
    assert KERNELS.supports_linear(x, weight, rows)
    found = KERNELS.linear(x, weight, bias, rows, activation=activation)
    slope = torch.randn_like(found)
    found.backward(slope)
    wide = [each.detach().double().requires_grad_() for each in (x, weight, bias)]
    chosen = slice(None) if rows is None else slice(*rows)
    wanted = F.linear(wide[0], wide[1][chosen], wide[2][chosen])
    wanted = wanted * (found > 0) if activation else wanted  # by what it was rounded to
    assert_near(found, wanted)
    known = torch.autograd.grad(wanted, wide, slope.double())
    assert x.grad is not None
    assert_near(x.grad, known[0])
    if is_summed:
        assert weight.grad is bias.grad is None
        grad_weight, grad_bias = totals[0] - 5.0, totals[1] - 7.0
    else:
        assert weight.grad is not None
        assert bias.grad is not None
        grad_weight, grad_bias = weight.grad, bias.grad
    assert_near(grad_weight.to(dtype), known[1])
    assert_near(grad_bias.to(dtype), known[2])


def test_linear_without_bias_of_frozen_weights() -> None:
    x, weight = torch.randn(3, 32, requires_grad=True), torch.randn(16, 32)
    KERNELS.linear(x, weight, None, None).sum().backward()
    assert x.grad is not None
    assert_near(x.grad, weight.sum(dim=0).expand(3, 32))


def test_linear_layers_of_unsupported_shapes_are_left_to_pytorch() -> None:
    x, weight = torch.zeros(2, 32), torch.zeros(64, 32)
    assert KERNELS.supports_linear(x, weight, Rows(16, 64))
    assert not KERNELS.supports_linear(x, weight, Rows(0, 20))
    assert not KERNELS.supports_linear(x, torch.zeros(60, 32), None)
    assert not KERNELS.supports_linear(x.double(), weight.double(), None)
    assert not KERNELS.supports_linear(x, weight.to(torch.bfloat16), None)
    assert not KERNELS.supports_linear(x[:0], weight, None)
    with pytest.raises(ValueError, match="of a matrix of 64 rows"):
        KERNELS.linear(x, weight, None, Rows(32, 96))


def test_adding_tensors_of_mismatched_shapes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.bfloat16 \(2, 32\) cannot be added to torch.float32 \(3, 32\)"):
        KERNELS.add_in_place(torch.zeros(3, 32), torch.zeros(2, 32, dtype=torch.bfloat16))


class Counting:
    """Training kernels that count their calls by name."""

    linear_activations = KERNELS.linear_activations

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()

    def execute(self, *given: Any, **named: Any) -> Any:
        return execute(self, *given, **named)

    def __getattr__(self, name: str) -> Any:
        def use(*given: Any, **named: Any) -> Any:
            self.used[name] += 1
            return getattr(KERNELS, name)(*given, **named)

        return use


# The settings, and how often attention, norms, dropout and linear layers run on kernels in a pass through two encoder
# and two decoder layers.
DISPATCHED: list[tuple[dict[str, object], tuple[int, int, int, int]]] = [
    ({}, (6, 12, 12, 22)),
    ({"norm_order": "post"}, (6, 10, 12, 22)),
    ({"norm": "rms"}, (6, 12, 12, 22)),
    ({"positions": "rotary"}, (6, 12, 12, 22)),
    ({"positions": "relative"}, (6, 12, 12, 22)),
    ({"num_key_value_heads": 1}, (6, 12, 12, 22)),
    ({"attention_dropout": 0.1}, (6, 12, 12, 22)),
    ({"activation": "gelu"}, (6, 12, 12, 22)),
    ({"activation": "swiglu"}, (6, 12, 12, 22)),
    ({"d_model": 60, "num_heads": 2}, (0, 0, 0, 0)),
]


@pytest.mark.parametrize(("settings", "wanted"), DISPATCHED, ids=str)
def test_components_call_the_kernels_that_support_them(
    settings: dict[str, object], wanted: tuple[int, int, int, int]
) -> None:
    torch.manual_seed(7)
    model = small_model(settings | {"dropout": 0.1}).train()
    counting = Counting()
    with using_backend(counting):
        learn(model, *batch(model.config.pad_id), 0.1)
    assert tuple(counting.used[name] for name in ("attend", "residual_norm", "dropout_add", "linear")) == wanted
    assert counting.used["apply_rotary"] == (4 if settings.get("positions") == "rotary" else 0)
    assert counting.used["softmax_"] == 1
    # The gradients of two embeddings, and that of the output projection at the labels.
    assert counting.used["add_rows_in_place"] == (3 if wanted[1:] != (0, 0, 0) else 0)


def small_model(settings: dict[str, object]) -> Transformer:
    """Return a model with two encoder and two decoder layers, without dropout by default."""
    sizes: dict[str, object] = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 96}
    given = sizes | {"num_heads": 2, "dropout": 0.0} | settings
    return Transformer(ModelConfig(source_vocabulary_size=50, target_vocabulary_size=50, **given))  # type: ignore[arg-type]


def batch(pad_id: int) -> tuple[Tensor, Tensor]:
    """Return a batch with padding in source and target."""
    source, target = torch.randint(3, 50, (5, 9)), torch.randint(3, 50, (5, 7))
    source[1, 4:] = target[2, 2:] = pad_id
    return source, target


def learn(model: Transformer, source: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss, and every parameter's gradient."""
    model.zero_grad()
    hidden = model.hidden(source, target)
    pad_id = model.config.pad_id
    loss = projected_cross_entropy(hidden, model.target_weight, target, pad_id=pad_id, label_smoothing=smoothing).total
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


ALIKE: list[dict[str, object]] = [
    {},
    {"norm_order": "post"},
    {"norm": "rms"},
    {"positions": "rotary"},
    {"positions": "rotary-interleaved", "norm": "rms", "d_k": 64, "d_v": 64},
    {"activation": "gelu"},
    {"bias": False},
]


@pytest.mark.parametrize("settings", ALIKE, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_model_has_equal_loss_and_gradients_with_kernels(settings: dict[str, object], smoothing: float) -> None:
    torch.manual_seed(7)
    model = small_model(settings).train()
    given = batch(model.config.pad_id)
    plain, gradients = learn(model, *given, smoothing)
    with using_backend(KERNELS):
        fused, others = learn(model, *given, smoothing)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    assert gradients.keys() == others.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()), msg=name)


def test_nan_propagates_through_attention_and_softmax() -> None:
    """NaN must propagate, so that it is seen where it arises."""
    projected = torch.randn(2, 20, 3 * 32)
    projected[0, 3, 5] = math.nan  # one query
    found = KERNELS.attend(projected, None, torch.tensor([20, 20]), 1)
    assert found[0, 3].isnan().all()
    assert found[0, :3].isfinite().all()
    assert found[1].isfinite().all()
    logits = torch.randn(3, 50)
    logits[1, 7] = math.nan
    normalizers = KERNELS.softmax_(logits)
    assert logits[1].isnan().all()
    assert normalizers.isnan().tolist() == [False, True, False]


def test_other_default_dtypes_change_nothing() -> None:
    x, ones = torch.randn(3, 32, requires_grad=True), torch.ones(32, requires_grad=True)
    projected = torch.randn(2, 4, 3 * 32)
    plain = KERNELS.attend(projected, None, None, 2)
    torch.set_default_dtype(torch.float64)
    try:
        KERNELS.residual_norm(x, torch.ones_like(ones), ones, 1e-5)[1].sum().backward()
        attended = KERNELS.attend(projected, None, None, 2)
    finally:
        torch.set_default_dtype(torch.float32)
    assert ones.grad is not None
    assert ones.grad.tolist() == [3.0] * 32
    assert torch.equal(attended, plain)


def test_broadcast_shapes_are_left_to_pytorch() -> None:
    torch.manual_seed(8)
    attention = MultiHeadAttention(d_model=32, num_heads=2, d_k=16, d_v=16)
    x, memory = torch.randn(4, 3, 32), torch.randn(1, 5, 32)
    mask = padding_mask(torch.tensor([[5, 6, 7, PAD, PAD]]), PAD)
    others = padding_mask(torch.tensor([[5, 6, 7], [5, 6, PAD], [5, PAD, PAD], [5, 6, 7]]), PAD)
    plain = attention(x, memory, mask=mask), attention(x, mask=mask_of_one(others))
    with using_backend(KERNELS):
        fused = attention(x, memory, mask=mask), attention(x, mask=mask_of_one(others))
        with pytest.raises(TransduceError, match="must have the size 1 or that of"):
            attention(x[:1], mask=others)  # the output would have more rows than x
    for found, wanted in zip(fused, plain, strict=True):
        torch.testing.assert_close(found, wanted)


def mask_of_one(mask: AttentionMask) -> AttentionMask:
    """Return the second sentence's mask, to be used for all sentences."""
    return AttentionMask(mask.allowed[1:2])


def test_using_backend_restores_the_previous_backend() -> None:
    before = backend_in_use()
    with using_backend(KERNELS):
        assert backend_in_use() is KERNELS
        with using_backend(None):
            assert backend_in_use() is None
        assert backend_in_use() is KERNELS
    assert backend_in_use() is before
