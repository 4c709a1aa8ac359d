"""Test decoder-only models on compiled kernels: prompts of several lengths, and the steps after them."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.kernels.cpu.decoding.state import NativePromptState
from transduce.kernels.cpu.jit.compiler import find_float_tile, find_integer_tile
from transduce.kernels.prepacked import quantize
from transduce.kernels.select import decoded_model, int8_linear_maker, make_inference_copy, start_prompts
from transduce.model.config import ModelConfig
from transduce.model.decoder import Decoder, PromptState
from transduce.model.transformer import DecodingState

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("every_thread")

Walk = Callable[[DecodingState, int], list[Tensor]]  # of conftest.py
PAD, V = 0, 300
PROMPTS = torch.tensor(
    [[5, 6, 7, 8, 1], [9, 3, PAD, PAD, PAD], [4, PAD, PAD, PAD, PAD], [7, 7, PAD, 1, PAD], [8, 9, 2, 3, 1]]
)
LENGTHS = torch.tensor([5, 2, 1, 4, 5])  # the padding id inside the fourth one is an ordinary token
PRECISIONS = ["fp32", "int8", *(["bf16"] if find_float_tile("pairs") is not None else [])]
ALMOST = {"fp32": 1e-5, "bf16": 0.02, "int8": 0.02}  # of a norm: what rounding changes
VARIANTS: dict[str, dict[str, object]] = {
    "GPT-2": {"positions": "learned", "max_positions": 64, "activation": "gelu-tanh", "scale_embeddings": False},
    "Llama": {
        "positions": "rotary",
        "activation": "swiglu",
        "norm": "rms",
        "bias": False,
        "num_key_value_heads": 2,
        "tie_output": False,
    },
    "the paper's, post-norm": {"norm_order": "post"},
    "by distance": {"positions": "relative", "output_scale": 0.5, "embedding_norm": True, "output_bias": True},
    "turned in pairs, one layer used twice": {"positions": "rotary-interleaved", "share_layers": True},
}


def build(precision: str, changes: dict[str, object] | None = None) -> tuple[Decoder, Decoder]:
    """Return a model that runs on compiled kernels, and the same model in float32 that PyTorch runs."""
    torch.manual_seed(3)
    sizes = {"num_decoder_layers": 2, "d_model": 128, "d_ff": 128, "num_heads": 4}
    vocabulary = {"kind": "decoder", "source_vocabulary_size": V, "target_vocabulary_size": V}
    model = Decoder(ModelConfig(**(vocabulary | sizes | (changes or {})))).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    plain = copy.deepcopy(model)
    if precision == "int8":
        return quantize(model, make=int8_linear_maker()), plain
    make_inference_copy(model, torch.bfloat16 if precision == "bf16" else torch.float32)
    return model, plain


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@torch.inference_mode()
def test_steps_are_those_of_the_model(precision: str, changes: dict[str, object], walk: Walk) -> None:
    model, plain = build(precision, changes)
    for width in (1, 3):
        state = start_prompts(model, PROMPTS, LENGTHS)
        assert isinstance(state, NativePromptState)
        for ours, expected in zip(walk(state, width), walk(plain.start(PROMPTS, LENGTHS), width), strict=True):
            assert ours.shape == expected.shape
            assert float((ours - expected).norm() / expected.norm()) < ALMOST[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@torch.inference_mode()
def test_a_row_does_not_depend_on_batch_or_threads(precision: str) -> None:
    model, _ = build(precision, VARIANTS["Llama"])
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for prompts, lengths in ((PROMPTS, LENGTHS), (PROMPTS[:1], LENGTHS[:1])):
            state = start_prompts(model, prompts, lengths)
            assert isinstance(state, NativePromptState)
            steps = [state.step_to_logits(torch.full((len(prompts), 1), piece))[1].clone() for piece in (0, 7, 9, 4)]
            found.append(torch.stack(steps)[:, 0])
    torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("precision", PRECISIONS)
@torch.inference_mode()
def test_a_text_that_is_given_has_the_logits_of_its_steps(precision: str) -> None:
    model, _ = build(precision, VARIANTS["GPT-2"])
    text = [5, 9, 30, 4, 200]
    whole = decoded_model(model)(torch.tensor([text]))[0]  # (5, V)
    state = start_prompts(model, torch.tensor([text[:2]]), torch.tensor([2]))
    assert isinstance(state, NativePromptState)
    for place, piece in enumerate([PAD, *text[2:]], start=1):
        found = state.step_to_logits(torch.tensor([[piece]]))[1][0, 0]
        assert float((found - whole[place]).norm() / whole[place].norm()) < 2e-3  # a number may round the other way


@torch.inference_mode()
def test_bricks_without_programs_are_left_to_pytorch() -> None:
    others: list[dict[str, object]] = [{"attention_window": 3}, {"norm": "batch"}, {"d_ff": 120}]
    for changes in others:
        model, _ = build("fp32", changes)
        assert isinstance(start_prompts(model, PROMPTS, LENGTHS), PromptState)
    _, plain = build("fp32")
    assert isinstance(start_prompts(plain, PROMPTS, LENGTHS), PromptState)
