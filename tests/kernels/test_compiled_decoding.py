"""Test that compiled kernels compute the same as what they replace: linear layers, decoder steps, reductions."""

import copy
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.errors import TransduceError
from transduce.kernels.cpu.decoding.state import CompiledState
from transduce.kernels.cpu.gemm.decode import BFloat16Vocabulary, CompiledLinear, CompiledVocabulary, make_int8_linear
from transduce.kernels.cpu.jit.compiler import find_integer_tile
from transduce.kernels.cpu.jit.tile import AVX2_TILE, AVX512_TILE, Tile
from transduce.kernels.cpu.selection import CompiledReductions
from transduce.kernels.prepacked import LinearUse, PrepackedCrossAttention, PrepackedTransformer
from transduce.kernels.select import quantize, start_fast
from transduce.model.config import ModelConfig
from transduce.model.layers import DecoderLayer
from transduce.model.transformer import DecodingState, MemoryState, Transformer
from transduce.search.selection import BestSelection, SelectedCandidates, SelectionStep, use_kernels

BEST = find_integer_tile()
if BEST is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)
TILES = [
    *dict.fromkeys([BEST, BEST.with_12_bits]),
    AVX2_TILE._replace(format="six_bits"),
    AVX2_TILE._replace(format="words"),
]
if BEST.lanes == AVX512_TILE.lanes:
    TILES += [AVX512_TILE._replace(format="six_bits"), AVX512_TILE._replace(format="words")]
    if BEST.format == "bytes":  # such a processor has the instruction for 256-bit registers too
        TILES += [AVX2_TILE, AVX2_TILE.with_12_bits]
pytestmark = pytest.mark.usefixtures("every_thread")

Walk = Callable[[DecodingState, int], list[Tensor]]  # of conftest.py
Everywhere = Callable[[Callable[[Tensor], DecodingState], Tensor], list[Tensor]]  # of conftest.py
PAD, V = 0, 300
SOURCES = torch.tensor(
    [[5, 6, 7, 8, 1], [9, 3, 1, PAD, PAD], [4, 1, PAD, PAD, PAD], [7, 7, 7, 1, PAD], [8, 9, 2, 3, 1]]
)
VARIANTS: dict[str, dict[str, object]] = {
    "pre": {},
    "post": {"norm_order": "post"},
    "RMSNorm, no bias": {"norm": "rms", "bias": False},
    "learned positions, untied": {"positions": "learned", "max_positions": 64, "tie_output": False},
    "one layer used twice, output bias": {"share_layers": True, "output_bias": True},
    "narrower attention": {"d_k": 64, "d_v": 64, "num_heads": 1},
    "a gate, rotary, shared keys, norms of embeddings": {
        "activation": "swiglu",
        "positions": "rotary",
        "num_key_value_heads": 1,
        "embedding_norm": True,
    },
    "T5": {"positions": "relative", "attention_scale": 0.1, "activation": "gelu", "output_scale": 0.5},
}
WIDTHS: list[dict[str, object]] = [{"d_model": 96}, {"d_ff": 160}] if BEST.columns == 64 else []
LEFT_TO_OTHERS: list[dict[str, object]] = [
    *WIDTHS,
    {"num_heads": 2 * 64 // BEST.lanes},  # heads of half a vector
]


def build(changes: dict[str, object]) -> PrepackedTransformer:
    torch.manual_seed(3)
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 2}
    vocabulary = {"source_vocabulary_size": V, "target_vocabulary_size": V}
    model = Transformer(ModelConfig(**(vocabulary | sizes | changes))).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    quantized = quantize(model)
    assert isinstance(quantized, PrepackedTransformer)
    return quantized


# --- products ---


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.usefixtures("one_or_two_threads")
@torch.inference_mode()
def test_int8_products_equal_exact_products_of_the_quantized_numbers(tile: Tile) -> None:
    torch.manual_seed(1)
    weight, bias = torch.randn(150, 48), torch.randn(150)
    product = CompiledLinear(weight, bias, tile)
    for rows in (1, 2, 5, 6, 7, 13, 40):
        x = torch.randn(rows, 48) * 10.0
        x[rows // 2] = 0.0
        step = (x.abs().amax(dim=1, keepdim=True) / tile.max_quantized).clamp_min(1e-30).double()
        weight_step = (weight.abs().amax(dim=1, keepdim=True) / 127).double()
        rounded = (x / step).round() * step @ ((weight / weight_step).round() * weight_step).T + bias
        found = product(x)
        assert found.shape == (rows, 150)
        # A number halfway between two steps may be rounded to either.
        assert (found - rounded).abs().max() < 1.01 * step.max() * weight.abs().max()
        assert (found - rounded).abs().median() < 1e-5
        torch.testing.assert_close(found[rows // 2], bias)


def test_stored_weights_of_six_bits_have_the_name_that_earlier_versions_wrote() -> None:
    linear = CompiledLinear(torch.ones(16, 16), None, AVX2_TILE._replace(format="six_bits"))
    assert linear.layout == f"1 sextets {AVX2_TILE.lanes}x{AVX2_TILE.vectors}"


@torch.inference_mode()
def test_the_greatest_numbers_do_not_overflow() -> None:
    for tile in TILES:
        width = tile.max_inputs
        product = CompiledLinear(torch.full((tile.columns, width), -1.0), None, tile)
        for sign in (1.0, -1.0):
            x = torch.full((3, width), sign)
            torch.testing.assert_close(product(x), torch.full((3, tile.columns), -sign * width))


@pytest.mark.usefixtures("one_or_two_threads")
@torch.inference_mode()
def test_a_rows_product_does_not_depend_on_the_others() -> None:
    torch.manual_seed(1)
    assert BEST is not None
    product = CompiledLinear(torch.randn(70, 48), torch.randn(70), BEST)
    x = torch.randn(100, 48) * torch.rand(100, 1) * 100.0
    whole = product(x)
    for rows in (slice(0, 1), slice(0, 2), slice(3, 8), slice(17, 50), slice(99, 100)):
        assert torch.equal(product(x[rows]), whole[rows])
    assert torch.equal(product(x.view(4, 25, 48)), whole.view(4, 25, 70))
    assert product(x[:0]).shape == (0, 70)


@pytest.mark.usefixtures("one_or_two_threads")
@pytest.mark.parametrize("tile", TILES, ids=str)
@torch.inference_mode()
def test_likely_tokens_have_exact_logits_and_others_rounded_ones(tile: Tile) -> None:
    torch.manual_seed(1)
    weight, bias = torch.randn(300, 64), torch.randn(300)
    product, rounded = CompiledVocabulary(weight, bias, tile), CompiledLinear(weight, bias, tile)
    for rows in (1, 7, 40):
        x = torch.randn(rows, 64)
        found, coarse, exact = product(x), rounded(x), x @ weight.T + bias
        likely = coarse > coarse.amax(dim=-1, keepdim=True) - 2.0
        assert likely.any(dim=-1).all()
        assert not likely.all(dim=-1).any()
        torch.testing.assert_close(found[likely], exact[likely])
        assert torch.equal(found[~likely], coarse[~likely])
        assert torch.equal(product(x[:1]), found[:1])


@pytest.mark.usefixtures("one_or_two_threads")
@pytest.mark.parametrize("with_bias", [True, False])
@torch.inference_mode()
def test_likely_tokens_have_logits_in_bfloat16_that_are_not_rounded(with_bias: bool) -> None:
    torch.manual_seed(1)
    weight, bias = torch.randn(300, 64).bfloat16(), torch.randn(300).bfloat16() if with_bias else None
    product = BFloat16Vocabulary(weight, bias)
    for shape in ((7, 1), (10, 4)):
        x = torch.randn(*shape, 64).bfloat16()
        found, coarse = product(x), torch.nn.functional.linear(x, weight, bias).float()
        exact = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
        likely = coarse > coarse.amax(dim=-1, keepdim=True) - 2.0
        assert likely.any(dim=-1).all()
        assert not likely.all(dim=-1).any()
        torch.testing.assert_close(found[likely], exact[likely].float())
        assert torch.equal(found[~likely], coarse[~likely])


@torch.inference_mode()
def test_rows_of_nan_give_nan() -> None:
    assert BEST is not None
    product = CompiledVocabulary(torch.randn(300, 64), None, BEST)
    assert bool(product(torch.full((2, 64), float("nan"))).isnan().all())
    in_bfloat16 = BFloat16Vocabulary(torch.randn(300, 64).bfloat16(), None)
    assert bool(in_bfloat16(torch.full((2, 1, 64), float("nan")).bfloat16()).isnan().all())


@torch.inference_mode()
def test_activations_have_few_bits_for_the_vocabulary_and_for_long_sums_alone() -> None:
    assert BEST is not None
    for width, layer in ((64, BEST.with_12_bits), (512, BEST if BEST.format == "bytes" else BEST.with_12_bits)):
        found = {use: make_int8_linear(torch.randn(64, width), None, use) for use in get_args(LinearUse)}
        tiles = {use: product.tile for use, product in found.items() if isinstance(product, CompiledLinear)}
        assert tiles == {"layer": layer, "memory": BEST.with_12_bits, "vocabulary": BEST}
        assert isinstance(found["vocabulary"], CompiledVocabulary)


@torch.inference_mode()
def test_layers_that_kernels_cannot_multiply_are_refused() -> None:
    """Weights that differ are far from the sums that 8,272 equal ones could have."""
    wide, x = torch.randn(16, 8272), torch.randn(3, 8272)
    expected = x @ wide.T
    error = make_int8_linear(wide, None, "memory")(x) - expected
    assert float(error.norm() / expected.norm()) < 0.02
    with pytest.raises(TransduceError, match="whose weights are almost equal, because sums would exceed 32 bits"):
        make_int8_linear(torch.ones(16, 8272), None, "memory")
    with pytest.raises(TransduceError, match="must be a multiple of 16, but one has 120: use `fp32` or `bf16`"):
        make_int8_linear(torch.ones(16, 120), None)


def test_instruction_limits_set_for_pytorch_and_onednn_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert find_integer_tile.__wrapped__() == AVX2_TILE._replace(format="six_bits")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    for name, value in (
        ("ATEN_CPU_CAPABILITY", "default"),
        ("ONEDNN_MAX_CPU_ISA", "SSE41"),
        ("ONEDNN_MAX_CPU_ISA", "AVX"),
    ):
        monkeypatch.setenv(name, value)
        assert find_integer_tile.__wrapped__() is None
        monkeypatch.delenv(name)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert find_integer_tile.__wrapped__() is None


# --- steps ---


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_steps_equal_pytorchs(changes: dict[str, object], walk: Walk) -> None:
    model = build(changes)
    for width in (1, 3):
        state = start_fast(model, SOURCES)
        assert isinstance(state, CompiledState)
        for ours, expected in zip(walk(state, width), walk(model.start(SOURCES), width), strict=True):
            # If a sum differs in its last bit, a value may be rounded to the next quantization step.
            assert float((ours - expected).norm() / expected.norm()) < 0.01


@torch.inference_mode()
def test_a_row_does_not_depend_on_batch_or_threads(first_sentence_everywhere: Everywhere) -> None:
    model = build({})
    found = first_sentence_everywhere(lambda sources: start_fast(model, sources), SOURCES)
    assert all(torch.equal(found[0], other) for other in found)


@torch.inference_mode()
def test_keys_and_values_that_are_kept_are_float16_and_stay_within_its_range() -> None:
    model = build({})
    state = start_fast(model, SOURCES)
    assert isinstance(state, CompiledState)
    assert state.pool.entries.dtype == state.memory.dtype == torch.float16
    layer = model.decoder_layers[0]
    assert isinstance(layer, DecoderLayer)
    assert isinstance(layer.memory_attention, PrepackedCrossAttention)
    bias = layer.memory_attention.key_value.bias
    assert isinstance(bias, Tensor)
    bias.add_(torch.where(torch.arange(len(bias)) % 2 == 0, 1e6, -1e6))
    state = start_fast(model, SOURCES)
    assert isinstance(state, CompiledState)
    assert state.memory[0].abs().eq(torch.finfo(torch.float16).max).all()
    assert state.step(torch.zeros(5, 1, dtype=torch.int64)).isfinite().all()


@torch.inference_mode()
def test_rotated_keys_are_cached_in_float32() -> None:
    state = start_fast(build({"positions": "rotary"}), SOURCES)
    assert isinstance(state, CompiledState)
    assert state.pool.entries.dtype == state.memory.dtype == torch.float32


@torch.inference_mode()
def test_logits_are_the_projected_last_layer() -> None:
    model = build({"output_bias": True})
    one, other = start_fast(model, SOURCES), start_fast(model, SOURCES)
    assert isinstance(one, CompiledState)
    for piece in (0, 9):
        pieces = torch.full((5, 1), piece)
        assert torch.equal(one.step_to_logits(pieces)[1], model.project(other.step(pieces)))


@pytest.mark.parametrize("changes", LEFT_TO_OTHERS, ids=str)
@torch.inference_mode()
def test_models_with_unsupported_components_are_decoded_by_their_modules(changes: dict[str, object]) -> None:
    assert isinstance(start_fast(build(changes), SOURCES), MemoryState)


@torch.inference_mode()
def test_a_replaced_linear_forward_takes_the_reference_path() -> None:
    model = build({})
    layer = model.decoder_layers[0]
    assert isinstance(layer, DecoderLayer)
    output = vars(layer.self_attention.output)
    assert isinstance(start_fast(model, SOURCES), CompiledState)
    output["forward"] = torch.zeros_like
    assert isinstance(start_fast(model, SOURCES), MemoryState)
    del output["forward"]
    assert isinstance(start_fast(model, SOURCES), CompiledState)


@torch.inference_mode()
@pytest.mark.parametrize("piece", [V, -1])
def test_tokens_that_the_vocabulary_has_not_are_refused(piece: int) -> None:
    message = f"token ids range from 0 to {V - 1}, but one is {piece}: encode the text with the tokenizer of this model"
    with pytest.raises(IndexError, match=message):
        start_fast(build({}), torch.tensor([[5, 6, piece, 1]]))


@torch.inference_mode()
def test_compiled_steps_refuse_attention_traces() -> None:
    from transduce.model.attention import AttentionTrace

    with pytest.raises(ValueError, match="attention weights are not kept here"):
        start_fast(build({}), SOURCES).step(torch.zeros(5, 1, dtype=torch.int64), trace=AttentionTrace())


@torch.inference_mode()
def test_a_copied_model_decodes_after_the_original_is_deleted() -> None:
    model = build({})
    expected = start_fast(model, SOURCES).step(torch.zeros(5, 1, dtype=torch.int64))
    other = copy.deepcopy(model)
    del model
    found = start_fast(other, SOURCES).step(torch.zeros(5, 1, dtype=torch.int64))
    assert torch.equal(found, expected)


# --- reductions ---


@pytest.mark.usefixtures("one_or_two_threads")
@pytest.mark.parametrize("size", [64, 70, 300, 8001])
def test_reductions_equal_those_of_pytorch(size: int) -> None:
    torch.manual_seed(2)
    kernels = CompiledReductions()
    for batch, beams in ((1, 1), (3, 1), (1, 4), (7, 4)):
        logits = torch.randn(batch, beams, size) * 5.0
        logits[..., 0] = float("-inf")
        kept = logits.clone()
        values, places, normalizer = kernels.top_tokens_and_log_sum_exp(logits, 9)
        expected = logits.topk(9, dim=-1)
        assert torch.equal(values, expected.values)
        assert torch.equal(places, expected.indices)
        torch.testing.assert_close(normalizer, logits.logsumexp(dim=-1, keepdim=True), atol=2e-6, rtol=2e-6)
        assert torch.equal(kernels.log_sum_exp(logits), normalizer)
        assert torch.equal(kernels.top_tokens(logits, 1)[1], places[..., :1])
        assert torch.equal(logits, kept)


def test_reductions_of_minus_infinity_and_nan_rows_stay_in_range() -> None:
    kernels = CompiledReductions()
    logits = torch.full((2, 1, 100), float("-inf"))
    logits[0, 0, 0] = 3.0
    kept = logits.clone()
    values, places = kernels.top_tokens(logits, 3)
    assert values[0, 0].tolist() == [3.0, float("-inf"), float("-inf")]
    assert places[0, 0, 0] == 0
    assert torch.equal(logits, kept)
    for size in (100, 256):  # with a block that is not whole, and without
        wrong = torch.cat([torch.full((2, 1, size), float("nan")), torch.ones(1, 1, size)])
        _, places = kernels.top_tokens(wrong, 3)
        assert bool(((places >= 0) & (places < size)).all())
        assert bool((wrong[2] == 1.0).all())


def test_strided_rows_are_supported_and_other_layouts_refused() -> None:
    kernels, wide = CompiledReductions(), torch.randn(6, 128)
    rows = wide[:, :100].unflatten(0, (2, 3))
    assert kernels.supports(rows)
    assert torch.equal(kernels.top_tokens(rows, 4)[0], rows.topk(4).values)
    assert not kernels.supports(wide.T[None])
    assert not kernels.supports(rows.double())
    assert not kernels.supports(torch.randn(3, 2, 100)[:, :, ::2])
    assert not kernels.supports(torch.randn(3, 4, 100)[:, :2])


@pytest.mark.usefixtures("one_or_two_threads")
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("size", [64, 300])
def test_a_beam_is_selected_as_by_pytorch(size: int, beams: int) -> None:
    torch.manual_seed(4)
    for batch in (1, 9):
        logits = torch.randn(batch, beams, size) * 3.0
        logits[..., 1] += 5.0  # many hypotheses end
        scores = -torch.rand(batch, beams) * 5.0
        scores[:, 2:3] = float("-inf")
        normalizer = logits.logsumexp(dim=-1, keepdim=True)
        step = SelectionStep(logits, scores, logits[..., :0], torch.arange(batch), normalizer)
        selection = BestSelection(beam_size=4, eos_id=1)
        with use_kernels(None):
            expected = selection.select(step)
        with use_kernels(CompiledReductions()):
            found = selection.select(step)
        for ours, theirs in zip(_real(found), _real(expected), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("one_or_two_threads")
def test_selection_without_a_normalizer_computes_it_from_the_logits() -> None:
    torch.manual_seed(5)
    kernels, logits, scores = CompiledReductions(), torch.randn(3, 4, 300), -torch.rand(3, 4)
    without = kernels.select(logits, None, scores, eos_id=1, beam_size=4)
    given = kernels.select(logits, kernels.log_sum_exp(logits), scores, eos_id=1, beam_size=4)
    for ours, theirs in zip((*without[0], *without[1]), (*given[0], *given[1]), strict=True):
        assert torch.equal(ours, theirs)


def _real(selected: SelectedCandidates) -> list[Tensor]:
    """Return a selection without impossible candidates, which may be arbitrary."""
    return [
        torch.where(candidates.totals > float("-inf"), values, torch.zeros_like(values))
        for candidates in selected
        for values in candidates[:3]
    ] + [candidates.totals for candidates in selected]


def test_selection_with_few_allowed_continuations_gives_valid_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(logits: Tensor, batch: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        parents, pieces = torch.full((2, batch, count), 10**12).unbind(0)
        piece_scores, totals = logits.new_full((2, batch, count), 99.0).unbind(0)
        return parents, pieces, piece_scores, totals

    monkeypatch.setattr("transduce.kernels.cpu.selection._allocate_candidates", filled)
    logits = torch.full((2, 4, 100), float("-inf"))
    logits[:, 1, 1] = 2.0  # ends
    logits[:, 2, 30] = 1.0
    live, ended = CompiledReductions().select(logits, torch.zeros(2, 4, 1), torch.zeros(2, 4), eos_id=1, beam_size=4)
    for parents, pieces, _, totals in (live, ended):
        assert int(parents.min()) >= 0
        assert int(parents.max()) < 4
        assert int(pieces.min()) >= 0
        assert int(pieces.max()) < 100
        assert totals.sort(descending=True).values[0, 1:].tolist() == [float("-inf")] * (totals.shape[1] - 1)
    assert [float(live[part][0, 0]) for part in (0, 1, 3)] == [2, 30, 1.0]
    assert [float(ended[part][0, 0]) for part in (0, 1, 3)] == [1, 1, 2.0]
