"""Test sampling: token frequencies, and that a sentence's draws are independent of its batch."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from transduce.search.greedy import Draw, GreedySearch, draw
from transduce.search.scorer import Hypothesis, SequenceLimits, run_search
from transduce.search.settings import SamplingSettings

START, END, A, B = 0, 1, 2, 3
PROBABILITIES = {END: 0.5, A: 0.3, B: 0.2}


class ConstantScorer:
    """A scorer with the same probabilities at every step, which records the number of sentences in each step."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def step(self, pieces: Tensor) -> Tensor:
        self.batches.append(len(pieces))
        row = torch.tensor([0.0, *PROBABILITIES.values()]).log()
        return row.repeat(*pieces.shape, 1)

    def reorder(self, parents: Tensor) -> None:
        assert not parents.any()

    def keep_sentences(self, rows: Tensor) -> None:
        pass


def sample(
    scorer: ConstantScorer, *, longest: Tensor, samples: int, sampling: SamplingSettings, places: list[int]
) -> list[list[Hypothesis]]:
    walk = GreedySearch(
        scorer, SequenceLimits(START, END, longest), Draw(sampling, places, samples=samples), width=samples
    )
    return run_search(walk)


def first_pieces(**cuts: float) -> Tensor:
    logits = torch.tensor([0.0, *PROBABILITIES.values()]).log().repeat(1, 10_000, 1)
    uniform = torch.rand(1, 10_000, generator=torch.Generator().manual_seed(3))
    return draw(logits, uniform, **cuts)[0]  # type: ignore[arg-type]


def shares(pieces: Tensor) -> list[float]:
    return (torch.bincount(pieces, minlength=4) / len(pieces)).tolist()


def test_tokens_come_as_often_as_their_probability_says() -> None:
    assert shares(first_pieces()) == pytest.approx([0.0, 0.5, 0.3, 0.2], abs=0.02)


def test_the_likeliest_k_share_the_probability() -> None:
    assert shares(first_pieces(top_k=2)) == pytest.approx([0.0, 0.5 / 0.8, 0.3 / 0.8, 0.0], abs=0.02)
    assert shares(first_pieces(top_k=1)) == [0.0, 1.0, 0.0, 0.0]


def test_tokens_far_below_the_likeliest_are_not_drawn() -> None:
    assert shares(first_pieces(min_p=0.61)) == [0.0, 1.0, 0.0, 0.0]
    assert shares(first_pieces(min_p=0.59)) == pytest.approx([0.0, 0.5 / 0.8, 0.3 / 0.8, 0.0], abs=0.02)


def test_the_nucleus_is_the_least_set_that_reaches_p() -> None:
    assert shares(first_pieces(top_p=0.5)) == [0.0, 1.0, 0.0, 0.0]
    assert shares(first_pieces(top_p=0.51)) == pytest.approx([0.0, 0.5 / 0.8, 0.3 / 0.8, 0.0], abs=0.02)


CUTS = [
    {},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"top_k": 40},
    {"top_k": 40, "top_p": 0.5},
    {"min_p": 0.2},
    {"min_p": 1e-4},
]


@pytest.mark.parametrize("cuts", CUTS)
def test_draws_equal_those_from_sorted_cumulative_probabilities(cuts: dict[str, Any]) -> None:
    """Draws equal those from sorted cumulative sums, for flat and sharp distributions, alone and in a batch."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 50, 3000, generator=generator) * torch.tensor([0.1, 0.5, 1.0, 2.0, 4.0, 9.0])[:, None, None]
    uniform = torch.rand(6, 50, generator=generator)
    found = draw(logits, uniform, **cuts)
    for row in range(6):
        assert torch.equal(draw(logits[row : row + 1, :9], uniform[row : row + 1, :9], **cuts)[0], found[row, :9])
    probabilities, order = logits.double().softmax(dim=-1).sort(dim=-1, descending=True)
    probabilities[..., cuts.get("top_k", 3000) :] = 0.0
    probabilities /= probabilities.sum(dim=-1, keepdim=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    probabilities[before >= cuts.get("top_p", 1.0)] = 0.0
    probabilities[probabilities < cuts.get("min_p", 0.0) * probabilities[..., :1]] = 0.0
    cumulated = probabilities.cumsum(dim=-1)
    passed = cumulated > (uniform * cumulated[..., -1])[..., None]
    expected = order.gather(-1, passed.int().argmax(dim=-1, keepdim=True))[..., 0]
    assert (found == expected).float().mean() > 0.99  # float32 may exceed a number one token later


def expected_shares(logits: Tensor, cuts: dict[str, float]) -> Tensor:
    """Return the probabilities, (V,), of tokens drawn by transformers' warpers, in the order of its `generate`."""
    warpers = pytest.importorskip("transformers", reason="needs transformers: pip install 'transduce[hf]'")
    ids, scores = torch.zeros(1, 1, dtype=torch.int64), logits[None] / cuts["temperature"]
    if cuts["top_k"]:
        scores = warpers.TopKLogitsWarper(int(cuts["top_k"]))(ids, scores)
    if cuts["top_p"] < 1.0:
        scores = warpers.TopPLogitsWarper(cuts["top_p"])(ids, scores)
    if cuts["min_p"] > 0.0:
        scores = warpers.MinPLogitsWarper(cuts["min_p"])(ids, scores)
    return scores.double().softmax(dim=-1)[0]


@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([4, 30, 200]),
    scale=st.sampled_from([0.3, 1.0, 3.0]),
    temperature=st.sampled_from([0.5, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 3, 10, 50]),
    top_p=st.sampled_from([0.1, 0.5, 0.8, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3]),
)
def test_temperature_top_k_top_p_and_min_p_cut_as_in_transformers(
    seed: int, size: int, scale: float, **cuts: float
) -> None:
    logits = scale * torch.randn(size, generator=torch.Generator().manual_seed(seed))
    expected, order = expected_shares(logits, cuts).sort(descending=True)
    ends = expected.cumsum(dim=-1)
    # One random number in the middle of each token's interval draws exactly this token.
    likely = expected > 1e-4
    uniform = (ends - expected / 2)[likely].float()
    found = draw((logits / cuts.pop("temperature")).expand(1, len(uniform), size), uniform[None], **cuts)  # type: ignore[arg-type]
    assert found[0].tolist() == order[likely].tolist()


def test_the_likeliest_stays_however_small_the_nucleus() -> None:
    logits = torch.arange(8.0).flip(0)[None, None]
    assert draw(logits, torch.tensor([[0.3]]), top_p=1e-46).tolist() == [[0]]


def test_a_low_temperature_sharpens_and_the_log_probabilities_stay_the_models() -> None:
    cold = sample(
        ConstantScorer(),
        longest=torch.tensor([5]),
        samples=50,
        sampling=SamplingSettings(temperature=0.01),
        places=[1],
    )
    assert {hypothesis.ids for hypothesis in cold[0]} == {()}
    assert cold[0][0].token_log_probabilities == pytest.approx([math.log(0.5)])


def draw_sentences(places: list[int]) -> list[list[tuple[int, ...]]]:
    found = sample(
        ConstantScorer(),
        longest=torch.full((len(places),), 30),
        samples=4,
        sampling=SamplingSettings(seed=5),
        places=places,
    )
    return [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in found]


def test_a_sentences_draws_depend_on_seed_and_position_alone() -> None:
    together = draw_sentences([1, 2, 3])
    assert together == [draw_sentences([place])[0] for place in (1, 2, 3)]
    assert len({tuple(hypotheses) for hypotheses in together}) == 3


def test_sentences_whose_samples_have_ended_leave_the_batch() -> None:
    scorer = ConstantScorer()
    found = sample(
        scorer,
        longest=torch.full((8,), 30),
        samples=2,
        sampling=SamplingSettings(),
        places=list(range(8)),
    )
    assert scorer.batches[0] == 8
    assert scorer.batches == sorted(scorer.batches, reverse=True)
    assert scorer.batches[-1] < 8
    for hypothesis in (hypothesis for hypotheses in found for hypothesis in hypotheses):
        assert hypothesis.ended
        expected = [math.log(PROBABILITIES[piece]) for piece in (*hypothesis.ids, END)]
        assert hypothesis.token_log_probabilities == pytest.approx(expected)
