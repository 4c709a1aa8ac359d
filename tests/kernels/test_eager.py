"""Test that the flat decoder computes the same as the modules that it replaces, in float32 and in 8 bits."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transduce.kernels.eager import EagerState, encode_without_padding, supports
from transduce.kernels.prepacked import Int8Linear, PrepackedTransformer, quantize, safe_levels
from transduce.model.config import ModelConfig
from transduce.model.transformer import DecodingState, Transformer

Walk = Callable[[DecodingState, int], list[Tensor]]  # of conftest.py
PAD, V = 0, 50
SOURCES = torch.tensor(
    [[5, 6, 7, 8, 1], [9, 3, 1, PAD, PAD], [4, 1, PAD, PAD, PAD], [7, 7, 7, 1, PAD], [8, 9, 2, 3, 1]]
)
VARIANTS: dict[str, dict[str, object]] = {
    "pre": {},
    "post": {"norm_order": "post"},
    "gated, RMSNorm, no bias": {"activation": "swiglu", "norm": "rms", "bias": False},
    "learned positions, untied": {"positions": "learned", "max_positions": 64, "tie_output": False},
    "one layer used twice, output bias": {"share_layers": True, "output_bias": True},
}
OTHERS: list[dict[str, object]] = [
    {"positions": "rotary"},
    {"positions": "relative"},
    {"attention_window": 4},
    {"attention_score": "general"},
    {"norm_order": "sandwich"},
    {"norm": "batch"},
    {"num_key_value_heads": 2},
    {"d_k": 6, "d_v": 10},
]


def build(changes: dict[str, object]) -> Transformer:
    torch.manual_seed(3)
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 32, "d_ff": 64, "num_heads": 4}
    vocabulary = {"source_vocabulary_size": V, "target_vocabulary_size": V}
    model = Transformer(ModelConfig(**(vocabulary | sizes | changes))).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_steps_equal_the_modules(changes: dict[str, object], width: int, walk: Walk) -> None:
    model = build(changes)
    assert supports(model)
    for ours, expected in zip(walk(EagerState(model, SOURCES), width), walk(model.start(SOURCES), width), strict=True):
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_the_memory_equals_the_encoders(changes: dict[str, object]) -> None:
    model = build(changes)
    for sources in (SOURCES, SOURCES[:1], SOURCES[2:3], SOURCES.repeat(60, 1)):
        memory, mask = encode_without_padding(model, sources)
        expected, expected_mask = model.encode(sources)
        present = sources != PAD
        torch.testing.assert_close(memory[present], expected[present], atol=1e-5, rtol=1e-5)
        assert torch.equal(mask.allowed, expected_mask.allowed)
        assert not memory[~present].any()


@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_other_components_are_left_to_the_modules(changes: dict[str, object]) -> None:
    assert not supports(build(changes))
    assert not supports(build({}).train())


@torch.inference_mode()
def test_copies_of_a_sentence_may_replace_others() -> None:
    model = build({})
    flat, expected = EagerState(model, SOURCES), model.start(SOURCES)
    for rows in (torch.tensor([1, 3, 4]), torch.tensor([2, 0, 0, 2])):
        for state in (flat, expected):
            state.step(torch.full((len(state.step.__self__.ancestry.ancestors), 1), 7))  # type: ignore[attr-defined]
            state.keep_sentences(rows)
    pieces = torch.tensor([[4], [5], [6], [7]])
    torch.testing.assert_close(flat.step(pieces), expected.step(pieces), atol=2e-5, rtol=1e-5)


def test_traces_are_refused() -> None:
    from transduce.model.attention import AttentionTrace

    with torch.inference_mode(), pytest.raises(ValueError, match="attention weights are not kept here"):
        EagerState(build({}), SOURCES).step(torch.zeros(5, 1, dtype=torch.int64), trace=AttentionTrace())


# --- 8 bits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [127, 63])
@torch.inference_mode()
def test_products_are_those_of_the_rounded_numbers(levels: int) -> None:
    if levels > safe_levels():
        pytest.skip("without VNNI instructions so many levels overflow")
    torch.manual_seed(1)
    weight, bias, x = torch.randn(24, 40), torch.randn(24), torch.randn(9, 40) * 10.0
    x[4] = 0.0
    found = Int8Linear(weight, bias, activation_levels=levels)(x)
    step = (x.abs().amax(dim=1, keepdim=True) / levels).clamp_min(1e-30).double()
    weight_step = (weight.abs().amax(dim=1, keepdim=True) / 127).double()
    rounded = (x / step).round() * step @ ((weight / weight_step).round() * weight_step).T + bias
    # A number halfway between two steps may be rounded to either.
    assert (found - rounded).abs().max() < 1.01 * step.max() * weight.abs().max()
    assert torch.equal(found[4], bias)


@torch.inference_mode()
def test_a_rows_product_does_not_depend_on_the_others() -> None:
    torch.manual_seed(1)
    product = Int8Linear(torch.randn(70, 50), torch.randn(70))
    x = torch.randn(100, 50) * torch.rand(100, 1) * 100.0
    whole = product(x)
    for rows in (slice(0, 1), slice(0, 2), slice(3, 8), slice(17, 50), slice(99, 100)):
        assert torch.equal(product(x[rows]), whole[rows])
    assert torch.equal(product(x.view(4, 25, 50)), whole.view(4, 25, 70))


# Untrained BatchNorm normalises nothing, and errors grow from layer to layer.
@pytest.mark.parametrize("changes", [*VARIANTS.values(), *(o for o in OTHERS if o != {"norm": "batch"})], ids=str)
@torch.inference_mode()
def test_a_model_in_8_bits_is_close_to_the_model(changes: dict[str, object]) -> None:
    model = build(changes)
    targets = torch.randint(3, V, (5, 7), generator=torch.Generator().manual_seed(1))
    expected = model(SOURCES, targets)
    made = quantize(copy.deepcopy(model))
    assert isinstance(made, PrepackedTransformer)
    found = made(SOURCES, targets)
    assert 1e-4 < float((found - expected).norm() / expected.norm()) < 0.06
    assert made.own_output_weight is None
    products = ("projection.weight", "output.weight", "inner.weight", "outer.weight")
    assert not [name for name, _ in made.named_parameters() if name.endswith(products)]


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_steps_in_8_bits_equal_the_modules_in_8_bits(changes: dict[str, object], walk: Walk) -> None:
    made = quantize(build(changes))
    for ours, expected in zip(walk(EagerState(made, SOURCES), 3), walk(made.start(SOURCES), 3), strict=True):
        assert float((ours - expected).norm() / expected.norm()) < 0.01  # attention differs in the last bits
