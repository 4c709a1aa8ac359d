"""Test decoder-only models on compiled kernels: prompts of several lengths, and the steps after them."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.inference.compiled_search import CompiledSearch, find_compiled_search, run_joining
from transduce.inference.scorers import DecoderOnlyScorer
from transduce.kernel_interfaces import JoinableSearch, ReservedCapacity
from transduce.kernels.cpu.decoding.state import CompiledPromptState
from transduce.kernels.cpu.jit.compiler import find_float_tile, find_integer_tile
from transduce.kernels.select import decoding_model, make_inference_copy, quantize, start_prompts
from transduce.model.config import ModelConfig
from transduce.model.transformer import Decoder, DecodingState, PromptState
from transduce.search.beam import BeamOptions, BeamSearch
from transduce.search.greedy import Draw, GreedySearch, take_argmax
from transduce.search.rules import ExtraEndTokens, MinimumLength, NoRepeatedNgrams, RepetitionPenalty, Rule
from transduce.search.scorer import Hypothesis, Search, SequenceLimits, run_search
from transduce.search.settings import SamplingSettings

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
    "Mistral": {
        "positions": "rotary",
        "activation": "swiglu",
        "norm": "rms",
        "bias": False,
        "num_key_value_heads": 1,
        "attention_window": 3,
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
        return quantize(model), plain
    make_inference_copy(model, torch.bfloat16 if precision == "bf16" else torch.float32)
    return model, plain


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("precision", PRECISIONS)
@torch.inference_mode()
def test_decoding_steps_equal_those_of_the_model(precision: str, changes: dict[str, object], walk: Walk) -> None:
    model, plain = build(precision, changes)
    for width in (1, 3):
        state = start_prompts(model, PROMPTS, LENGTHS)
        assert isinstance(state, CompiledPromptState)
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
            assert isinstance(state, CompiledPromptState)
            steps = [state.step_to_logits(torch.full((len(prompts), 1), piece))[1].clone() for piece in (0, 7, 9, 4)]
            found.append(torch.stack(steps)[:, 0])
    torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("precision", PRECISIONS)
@torch.inference_mode()
def test_logits_of_a_whole_text_equal_those_of_its_steps(precision: str) -> None:
    model, _ = build(precision, VARIANTS["GPT-2"])
    text = [5, 9, 30, 4, 200]
    whole = decoding_model(model)(torch.tensor([text]))[0]  # (5, V)
    state = start_prompts(model, torch.tensor([text[:2]]), torch.tensor([2]))
    assert isinstance(state, CompiledPromptState)
    for place, piece in enumerate([PAD, *text[2:]], start=1):
        found = state.step_to_logits(torch.tensor([[piece]]))[1][0, 0]
        assert float((found - whole[place]).norm() / whole[place].norm()) < 2e-3  # a number may round the other way


@torch.inference_mode()
def test_components_without_kernels_are_left_to_pytorch() -> None:
    others: list[dict[str, object]] = [{"norm": "batch"}, {"d_ff": 120}]
    for changes in others:
        model, _ = build("fp32", changes)
        assert isinstance(start_prompts(model, PROMPTS, LENGTHS), PromptState)
    _, plain = build("fp32")
    assert isinstance(start_prompts(plain, PROMPTS, LENGTHS), PromptState)


END = 2
RULES: list[list[Rule]] = [
    [],
    [ExtraEndTokens(END, [30, 31, 32], summed=False), MinimumLength(3, END), NoRepeatedNgrams(2)],
]


def continuing(model: Decoder, prompts: list[list[int]], context: int = 500) -> DecoderOnlyScorer:
    return DecoderOnlyScorer(model, prompts, max_context=context, excluded_ids=[PAD, 7])


@pytest.mark.parametrize("rules", RULES, ids=["no rules", "rules"])
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize(
    "changes", [VARIANTS["Llama"], VARIANTS["GPT-2"] | {"max_positions": 500}, VARIANTS["Mistral"]], ids=str
)
@torch.inference_mode()
def test_the_compiled_search_continues_prompts_as_step_by_step(
    changes: dict[str, object], beam_size: int, rules: list[Rule]
) -> None:
    model, _ = build("int8", changes)
    prompts = [row[:length] for row, length in zip(PROMPTS.tolist(), LENGTHS.tolist(), strict=True)]
    longest = [70, 3, 150, 1, 40]  # more than the first buffers hold
    limits, beam = (
        SequenceLimits(0, END, torch.tensor(longest)),
        BeamOptions(beam_size=beam_size, n_best=min(2, beam_size)),
    )
    program = find_compiled_search(continuing(model, prompts), limits, beam, rules=rules)
    assert program is not None
    stepwise: Search = BeamSearch(continuing(model, prompts), limits, beam, rules=rules)
    if beam_size == 1:
        stepwise = GreedySearch(continuing(model, prompts), limits, take_argmax, alpha=beam.alpha, rules=rules)
    found, expected = run_search(program), run_search(stepwise)
    assert [[each.ids for each in own] for own in found] == [[each.ids for each in own] for own in expected]
    for number, prompt in enumerate(prompts):
        alone = find_compiled_search(
            continuing(model, [prompt]), limits._replace(max_lengths=torch.tensor([longest[number]])), beam, rules=rules
        )
        assert alone is not None
        assert run_search(alone)[0] == found[number]


@torch.inference_mode()
def test_texts_that_fill_the_context_are_continued_step_by_step() -> None:
    model, _ = build("int8", VARIANTS["GPT-2"])
    for context, is_compiled in ((13, True), (12, False)):
        limits = SequenceLimits(0, END, torch.tensor([9]))
        program = find_compiled_search(continuing(model, [[4, 5, 6, 8, 9]], context), limits, BeamOptions(beam_size=1))
        assert (program is not None) is is_compiled


@pytest.mark.parametrize("kind", ["greedy", "beam", "samples"])
@pytest.mark.parametrize(
    "changes", [VARIANTS["Llama"], VARIANTS["GPT-2"] | {"max_positions": 500}, VARIANTS["Mistral"]], ids=str
)
@torch.inference_mode()
def test_prompts_that_join_a_batch_are_continued_as_alone(
    changes: dict[str, object], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.kernels.cpu.decoding.search._LARGE_STEP", 0)
    model, _ = build("int8", changes)
    prompts = [[number * 7 % V for number in range(3, 3 + length)] for length in (9, 8, 8, 6, 5, 5, 4, 3, 2, 1, 1)]
    longest = [40, 5, 90, 1, 17, 40, 3, 60, 90, 2, 33]
    beam = BeamOptions(beam_size=1) if kind == "greedy" else BeamOptions(beam_size=3, n_best=3)
    begun: list[list[int]] = []

    def begin(numbers: Sequence[int], reserved: ReservedCapacity | None = None) -> CompiledSearch:
        begun.append(list(numbers))
        chosen = [prompts[number] for number in numbers]
        rules: list[Rule] = [
            RepetitionPenalty(chosen, repetition=1.2, frequency=0.1),
            ExtraEndTokens(END, range(20, 50), summed=kind == "samples"),
            *(MinimumLength(2, END), NoRepeatedNgrams(2)),
        ]
        draw = None
        if kind == "samples":
            draw = Draw(SamplingSettings(top_k=40), [0] * len(numbers), samples=3, seeds=list(numbers))
        limits = SequenceLimits(0, END, torch.tensor([longest[number] for number in numbers]))
        scorer = continuing(model, chosen)
        search = find_compiled_search(scorer, limits, beam, rules=rules, draw=draw, reserved=reserved)
        assert search is not None
        return search

    found = run_joining(begin, len(prompts), 4)
    assert [number for batch in begun for number in batch] == list(range(len(prompts)))
    assert len(begun) > 4
    alone = [run_search(begin([number]))[0] for number in range(len(prompts))]
    assert found == alone
    assert {hypothesis.ended for own in found or [] for hypothesis in own} == {True, False}
    chosen = max(range(1, len(alone)), key=lambda number: min(len(each.ids) for each in alone[number]))
    later, given_up = join_over_time(begin, alone, chosen)
    assert later == {number: own for number, own in enumerate(alone) if number != chosen}
    assert kind == "beam" or [each.ids for each in given_up] == [each.ids[:2] for each in alone[chosen]]


def join_over_time(
    begin: Callable[..., CompiledSearch], alone: Sequence[Sequence[Hypothesis]], chosen: int
) -> tuple[dict[int, list[Hypothesis]], list[Hypothesis]]:
    """Continue prompts of which one joins the batch after each step; a chosen one is given up after two tokens.

    Returns:
        The hypotheses of the others by number, and those of the chosen one.
    """
    main = begin([0], ReservedCapacity(3, 90, 110))
    assert isinstance(main.search, JoinableSearch)
    main.advance()
    numbers, waiting, found = {0: 0}, [*range(1, len(alone))], dict[int, list[Hypothesis]]()
    given_up: list[Hypothesis] = []
    while numbers or waiting:
        main.advance()
        active = main.sentence_indices.tolist()
        found |= {numbers.pop(index): main.take(index) for index in list(numbers) if index not in active}
        for index, length in zip(active, main.own_lengths(), strict=True):
            if (numbers[index], length) == (chosen, 2):
                main.abandon([index])
                given_up = main.take(index)
                del numbers[index]
        if waiting and len(numbers) < 3:
            number = waiting.pop(0)
            new = begin([number])
            new.advance()
            if not len(new.sentence_indices):
                found[number] = new.take(0)
                continue
            index = min({0, 1, 2} - numbers.keys())
            assert main.search.can_absorb(new.search)
            main.search.absorb(new.search, [index])
            numbers[index] = number
    return found, given_up
