"""Test that the compiled search gives the same results as the search that runs step by step."""

import itertools
from collections.abc import Collection, Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no kernels to test")

from transduce.inference.compiled_search import CompiledSearch, find_compiled_search
from transduce.inference.decoding import scored_for
from transduce.inference.scorers import EncoderDecoderScorer
from transduce.kernels.cpu.jit.compiler import find_integer_tile
from transduce.kernels.cpu.selection import CompiledReductions
from transduce.kernels.select import quantize
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search.beam import BeamOptions, BeamSearch, GenerateSearch
from transduce.search.greedy import Draw, GreedySearch, take_argmax
from transduce.search.rules import (
    ExtraEndTokens,
    Forbid,
    ForcedPrefix,
    ForcedToken,
    GenerateSettings,
    MinimumLength,
    NoRepeatedNgrams,
    RepetitionPenalty,
    Rule,
    generate_rules,
)
from transduce.search.scorer import Hypothesis, Search, SequenceLimits, length_power, run_search
from transduce.search.selection import use_kernels
from transduce.search.settings import SamplingSettings

if find_integer_tile() is None:
    pytest.skip("there are no kernels for this processor", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("every_thread")

PAD, END, V = 0, 1, 200
LONGEST = [40, 3, 17, 1, 25, 40, 9]


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    """Make both searches use the same kernels to normalize and select."""
    with use_kernels(CompiledReductions()):
        yield


@cache
def build(seed: int = 1, end: float = 4.0, **changes: object) -> Transformer:
    """Build a model whose sentences end after some tokens, the earlier the larger `end` is."""
    torch.manual_seed(seed)
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 2}
    vocabulary = {"source_vocabulary_size": V, "target_vocabulary_size": V, "output_bias": True}
    model = Transformer(ModelConfig(**(vocabulary | sizes | changes))).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        assert model.output_bias is not None
        model.output_bias[END] = end
    return quantize(model)


def sources(count: int = len(LONGEST)) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    lengths = [1 + number * 3 % 11 for number in range(count)]
    rows = torch.full((count, max(lengths) + 1), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.randint(2, V, (length,), generator=generator)
        row[length] = END
    return rows


def both(model: Transformer, beam: BeamOptions, longest: list[int]) -> tuple[CompiledSearch, Search]:
    """Return the compiled search, and the equivalent search that runs step by step."""
    limits = SequenceLimits(PAD, END, torch.tensor(longest))
    program = find_compiled_search(EncoderDecoderScorer(model, sources(len(longest))), limits, beam)
    assert program is not None
    scorer = EncoderDecoderScorer(model, sources(len(longest)))
    if beam.beam_size == 1:
        return program, GreedySearch(scorer, limits, take_argmax, alpha=beam.alpha)
    return program, BeamSearch(scorer, limits, beam)


@pytest.mark.usefixtures("one_or_two_threads")
@pytest.mark.parametrize(("beam_size", "n_best"), [(1, 1), (2, 1), (4, 1), (4, 3), (5, 5)])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@torch.inference_mode()
def test_beam_hypotheses_equal_those_of_the_stepwise_search(beam_size: int, n_best: int, alpha: float) -> None:
    ended = set()
    for seed in (1, 2):
        program, stepwise = both(build(seed), BeamOptions(beam_size=beam_size, n_best=n_best, alpha=alpha), LONGEST)
        found = run_search(program)
        assert found == run_search(stepwise)
        assert [len(own) for own in found] == [
            n_best if limit > 1 or beam_size == 1 else len(found[3]) for limit in LONGEST
        ]
        ended |= {hypothesis.ended for own in found for hypothesis in own}
    assert ended == {True, False}  # both kinds were there


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_order": "post"},
        {"positions": "learned", "max_positions": 40},
        {"share_layers": True},
        {"positions": "rotary", "embedding_norm": True},
        {"positions": "relative", "activation": "geglu"},
    ],
    ids=str,
)
@torch.inference_mode()
def test_hypotheses_of_other_components_equal_those_of_the_stepwise_search(changes: dict[str, object]) -> None:
    program, stepwise = both(build(**changes), BeamOptions(beam_size=4, n_best=2), LONGEST)
    assert run_search(program) == run_search(stepwise)


@torch.inference_mode()
def test_a_long_search_needs_more_capacity_than_there_was_at_first() -> None:
    model = build(end=-100.0)
    for beam_size in (1, 3):
        program, stepwise = both(model, BeamOptions(beam_size=beam_size), [150, 70])
        found = run_search(program)
        assert found == run_search(stepwise)
        assert [len(own[0].ids) for own in found] == [150, 70]


@torch.inference_mode()
def test_hypotheses_of_a_sentence_do_not_depend_on_its_batch() -> None:
    model = build()
    beam = BeamOptions(beam_size=4)
    together = run_search(both(model, beam, [30] * 5)[0])
    for number, row in enumerate(sources(5)):
        scorer = EncoderDecoderScorer(model, row[None])
        alone = find_compiled_search(scorer, SequenceLimits(PAD, END, torch.tensor([30])), beam)
        assert alone is not None
        assert run_search(alone)[0] == together[number]


class Watching:
    """An observer that records its calls, and abandons sentences at specified steps."""

    def __init__(self, giving_up: dict[int, list[int]]) -> None:
        self.giving_up = giving_up
        self.steps = itertools.count(1)
        self.seen: list[tuple[list[int], list[object]]] = []

    def after_step(self, sentence_indices: Tensor, pieces: Tensor) -> Collection[int]:
        self.seen.append((sentence_indices.tolist(), pieces.tolist()))
        return self.giving_up.get(next(self.steps), [])


@pytest.mark.parametrize("beam_size", [1, 4])
@torch.inference_mode()
def test_observers_see_the_same_steps_and_stop_the_same_sentences(beam_size: int) -> None:
    giving_up = {2: [0, 5], 4: [1, 6, 99], 6: [4, 2]}
    results: list[list[list[Hypothesis]]] = []
    watching = []
    for search in both(build(), BeamOptions(beam_size=beam_size, n_best=2 if beam_size > 1 else 1), LONGEST):
        watching.append(Watching(giving_up))
        results.append(run_search(search, watching[-1]))
    assert watching[0].seen == watching[1].seen
    assert results[0] == results[1]
    assert len(watching[0].seen) >= 6


@torch.inference_mode()
def test_unsupported_options_are_left_to_the_stepwise_search() -> None:
    model, limits = build(), SequenceLimits(PAD, END, torch.tensor(LONGEST))
    scorer = EncoderDecoderScorer(model, sources())
    assert find_compiled_search(scorer, limits, BeamOptions(beam_size=4, groups=2)) is None
    assert find_compiled_search(scorer, limits, BeamOptions(beam_size=V)) is None
    roomy = SequenceLimits(PAD, END, torch.full((len(LONGEST),), 1_000_000))
    assert find_compiled_search(scorer, roomy, BeamOptions(beam_size=4)) is None
    attentive = EncoderDecoderScorer(model, sources(), attentive=True)
    assert find_compiled_search(attentive, limits, BeamOptions(beam_size=4)) is None


# --- rules on tokens, and the search of `generate` ---


PREFIXES = [[7, 9], [], [11], [], [12, 13, 14], [], [END]]
RULES: dict[str, list[Rule]] = {
    "none": [],
    "minimum length": [MinimumLength(6, END)],
    "no repeated bigram": [NoRepeatedNgrams(2)],
    "no repeated token": [NoRepeatedNgrams(1), Forbid([5, 6])],
    "repetition penalty": [RepetitionPenalty([[PAD], [5, 6, 5], *[[]] * 5], repetition=1.7), MinimumLength(3, END)],
    "all penalties": [RepetitionPenalty([[9]] * 7, repetition=0.8, frequency=0.3, presence=0.9)],
    "penalty after prefixes": [ForcedPrefix(PREFIXES, [RepetitionPenalty([[7]] * 7, repetition=3.0, frequency=1.0)])],
    "prefixes": [ForcedPrefix(PREFIXES, [MinimumLength(4, END), Forbid([7, 8])])],
}
GENERATE = [
    GenerateSettings(),
    GenerateSettings(stop="full", forced_last_id=END),
    GenerateSettings(stop="never", forbidden_ids=(PAD, 20, 199)),
    GenerateSettings(forced_first_id=17, forced_last_id=END, forbidden_ids=(PAD,), renormalize=True),
]


def both_with_rules(
    model: Transformer, beam: BeamOptions, rules: list[Rule], generate: GenerateSettings | None
) -> tuple[CompiledSearch | None, Search]:
    """Return the compiled search with rules, and the equivalent search that runs step by step."""
    limits = SequenceLimits(PAD, END, torch.tensor(LONGEST))
    if generate is not None:
        rules = rules + generate_rules(generate, limits.max_lengths)
    scorers = [EncoderDecoderScorer(model, sources(), all_tokens=generate is not None) for _ in range(2)]
    program = find_compiled_search(scorers[0], limits, beam, rules=rules, generate=generate)
    scorer, step_rules = scored_for(scorers[1], rules, generates=generate is not None, is_beam=beam.beam_size > 1)
    if generate is None:
        if beam.beam_size == 1:
            return program, GreedySearch(scorer, limits, take_argmax, alpha=beam.alpha, rules=step_rules)
        return program, BeamSearch(scorer, limits, beam, rules=step_rules)
    if beam.beam_size == 1:
        return program, GreedySearch(
            scorer, limits, take_argmax, alpha=beam.alpha, divisor=length_power, rules=step_rules
        )
    return program, GenerateSearch(scorer, limits, beam, generate, rules=step_rules)


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    """Assert that hypotheses are the same, and scores as equal as two normalizations in float32 allow."""
    assert [[(each.ids, each.ended) for each in own] for own in found] == [
        [(each.ids, each.ended) for each in own] for own in expected
    ]
    for own, other in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert own.score == pytest.approx(other.score, abs=1e-4)
        assert own.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 4])
@torch.inference_mode()
def test_rules_give_the_hypotheses_of_the_stepwise_search(beam_size: int) -> None:
    for seed, rules in enumerate(RULES.values()):
        program, stepwise = both_with_rules(build(1 + seed % 3), BeamOptions(beam_size=beam_size), rules, None)
        assert program is not None
        assert_same(run_search(program), run_search(stepwise))


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("generate", GENERATE, ids=str)
@torch.inference_mode()
def test_generate_hypotheses_equal_those_of_the_stepwise_search(generate: GenerateSettings, beam_size: int) -> None:
    for number, (name, rules) in enumerate(RULES.items()):
        if "prefixes" in name and generate.forced_first_id is not None:
            continue  # a forced first token begins each prefix
        beam = BeamOptions(beam_size=beam_size, n_best=min(3, beam_size), alpha=(1.0, 0.0, 2.0)[number % 3])
        program, stepwise = both_with_rules(build(1 + number % 3), beam, rules, generate)
        assert program is not None
        assert_same(run_search(program), run_search(stepwise))


@torch.inference_mode()
def test_sentences_stopped_in_generate_keep_their_hypotheses() -> None:
    giving_up = {2: [0, 5], 4: [1, 6], 6: [4, 2]}
    beam = BeamOptions(beam_size=4, n_best=2, alpha=1.0)
    program, stepwise = both_with_rules(build(), beam, RULES["minimum length"], GENERATE[3])
    assert program is not None
    seen = [Watching(giving_up) for _ in range(2)]
    assert_same(run_search(program, seen[0]), run_search(stepwise, seen[1]))


SAMPLING = [
    SamplingSettings(temperature=0.7),
    SamplingSettings(top_k=5),
    SamplingSettings(temperature=2.0, top_p=0.7, top_k=50),
    SamplingSettings(temperature=1.5, min_p=0.05),
    SamplingSettings(temperature=1.5, top_k=10, top_p=0.8),
    SamplingSettings(temperature=3.0, top_k=40, top_p=0.9, min_p=0.1),
]


def both_samplers(
    sampling: SamplingSettings, samples: int, rules: list[Rule], generate: GenerateSettings | None = None
) -> tuple[CompiledSearch, Search]:
    """Return a compiled search that draws tokens, and the equivalent one that runs step by step."""
    limits, model = SequenceLimits(PAD, END, torch.tensor(LONGEST)), build(end=2.0)
    if generate is not None:
        rules = rules + generate_rules(generate, limits.max_lengths)
    scorers = [EncoderDecoderScorer(model, sources(), all_tokens=generate is not None) for _ in range(2)]
    draws = [Draw(sampling, range(len(LONGEST)), samples=samples) for _ in range(2)]
    beam = BeamOptions(beam_size=samples, n_best=samples, alpha=0.0)
    program = find_compiled_search(scorers[0], limits, beam, rules=rules, generate=generate, draw=draws[0])
    assert program is not None
    scorer, step_rules = scored_for(scorers[1], rules, generates=generate is not None, is_beam=False)
    return program, GreedySearch(scorer, limits, draws[1], width=samples, rules=step_rules)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@torch.inference_mode()
def test_sampled_tokens_equal_those_of_the_stepwise_search(sampling: SamplingSettings, samples: int) -> None:
    ended = set()
    penalized: list[Rule] = [RepetitionPenalty([[5]] * len(LONGEST), repetition=1.5, frequency=0.4, presence=-0.3)]
    for rules, generate in (
        ([], None),
        ([MinimumLength(4, END), NoRepeatedNgrams(1)], GENERATE[3]),
        (penalized, None),
        (penalized, GENERATE[3]),
    ):
        program, stepwise = both_samplers(sampling, samples, rules, generate)
        found = run_search(program)
        assert_same(found, run_search(stepwise))
        assert [len(own) for own in found] == [samples] * len(LONGEST)
        ended |= {hypothesis.ended for own in found for hypothesis in own}
    assert ended == {True, False}


@torch.inference_mode()
def test_sampled_tokens_are_equal_with_an_observer() -> None:
    giving_up = {2: [0, 5], 4: [1, 6, 99], 6: [4]}
    searches = both_samplers(SAMPLING[0], 3, [ExtraEndTokens(END, [5, 9], summed=True)])
    seen = [Watching(giving_up) for _ in range(2)]
    found = [run_search(search, observer) for search, observer in zip(searches, seen, strict=True)]
    assert_same(*found)
    assert seen[0].seen == seen[1].seen


class Unknown(MinimumLength):
    """A rule of a class that the compiled search does not know."""


@torch.inference_mode()
def test_unknown_rules_and_orders_are_left_to_the_search_step_by_step() -> None:
    beam = BeamOptions(beam_size=4)
    cases: list[tuple[list[Rule], GenerateSettings | None]] = [
        ([Unknown(3, END)], None),
        ([MinimumLength(3, 9)], None),
        ([ForcedToken(5, 1)], None),
        ([ForcedPrefix([[PAD], *PREFIXES[1:]])], None),
        ([ForcedPrefix([[20], *PREFIXES[1:]])], GENERATE[2]),
    ]
    for rules, generate in cases:
        assert both_with_rules(build(), beam, rules, generate)[0] is None, rules
