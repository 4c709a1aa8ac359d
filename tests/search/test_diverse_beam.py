"""Test diverse beam search, whose groups avoid each other's tokens, on steps computed by hand."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from transduce.search.beam import BeamOptions, BeamSearch, GenerateSearch
from transduce.search.rules import GenerateSettings
from transduce.search.scorer import GENERATE_RANKING, PAPER_RANKING, Hypothesis, SequenceLimits, run_search
from transduce.search.selection import BestSelection, DiverseSelection, SelectionStep

START, END, A, B, C = 0, 1, 2, 3, 4
FIRST = {END: 0.05, A: 0.5, B: 0.3, C: 0.15}


class TwoStepScorer:
    """A scorer that gives a, b and c the logits FIRST, without normalization, and then the end symbol."""

    def __init__(self) -> None:
        self.position = 0

    def step(self, pieces: Tensor) -> Tensor:
        row = torch.full((5,), -math.inf)
        follows = FIRST if self.position == 0 else {END: 1.0}
        for piece, probability in follows.items():
            row[piece] = math.log(probability) + 3.0
        self.position += 1
        return row.repeat(*pieces.shape, 1)

    def reorder(self, parents: Tensor) -> None:
        pass

    def keep_sentences(self, rows: Tensor) -> None:
        pass


def search(beam_size: int, n_best: int, groups: int, penalty: float) -> list[Hypothesis]:
    selection = DiverseSelection(beam_size=beam_size, groups=groups, penalty=penalty, eos_id=END)
    beam = BeamOptions(beam_size=beam_size, n_best=n_best, alpha=0.0, groups=groups)
    limits = SequenceLimits(START, END, torch.tensor([5]))
    (found,) = run_search(BeamSearch(TwoStepScorer(), limits, beam, selection=selection))
    return found


def test_groups_take_different_tokens_if_the_penalty_is_high() -> None:
    found = search(beam_size=3, n_best=3, groups=3, penalty=10.0)
    assert [hypothesis.ids for hypothesis in found] == [(A,), (B,), (C,)]


def test_without_a_penalty_equal_results_of_groups_are_merged() -> None:
    assert [hypothesis.ids for hypothesis in search(beam_size=3, n_best=3, groups=3, penalty=0.0)] == [(A,)]


def test_the_penalty_counts_how_often_a_token_was_taken() -> None:
    """ln(0.5 / 0.3) is 0.51: with 0.4 the second group still takes a, and the third, after two of them, takes b."""
    assert [hypothesis.ids for hypothesis in search(3, 3, 3, 0.4)] == [(A,), (B,)]
    assert [hypothesis.ids for hypothesis in search(3, 3, 3, 0.6)] == [(A,), (B,)]
    assert [hypothesis.ids for hypothesis in search(2, 2, 2, 0.4)] == [(A,)]
    assert [hypothesis.ids for hypothesis in search(2, 2, 2, 0.6)] == [(A,), (B,)]


def test_scores_are_the_models_whatever_the_penalty() -> None:
    found = search(beam_size=3, n_best=3, groups=3, penalty=10.0)
    assert [hypothesis.score for hypothesis in found] == pytest.approx([math.log(FIRST[piece]) for piece in (A, B, C)])


def test_the_n_best_alternate_between_groups() -> None:
    """Groups of two: the first has a and b, the second, for which both cost much, c and the empty sentence."""
    found = search(beam_size=4, n_best=2, groups=2, penalty=10.0)
    assert [hypothesis.ids for hypothesis in found] == [(A,), (C,)]
    assert [h.ids for h in search(4, 4, 2, 10.0)][:3] == [(A,), (B,), (C,)]


def test_rounding_of_equal_hypotheses_does_not_reorder_groups() -> None:
    limits, beam = SequenceLimits(START, END, torch.tensor([5])), BeamOptions(beam_size=4, n_best=2, groups=2)
    unfinished, taken = BeamSearch(TwoStepScorer(), limits, beam), []
    for rounding in (-1e-6, 1e-6):
        shared = [Hypothesis((A,), (), score, ended=True) for score in (-1.0, -1.0 + rounding)]
        others = [Hypothesis((token,), (), -2.0, ended=True) for token in (B, C)]
        unfinished.finished = [[list(group) for group in zip(shared, others, strict=True)]]
        taken.append([hypothesis.ids for hypothesis in unfinished._best(0, 2)])
    assert taken[0] == taken[1]


def test_diverse_selection_with_one_group_equals_beam_selection() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(3, 4, 9, generator=generator)
    scores = torch.randn(3, 4, generator=generator)
    pieces = torch.zeros(3, 4, 2, dtype=torch.int64)
    step = SelectionStep(logits, scores, pieces, torch.arange(3))
    plain = BestSelection(beam_size=4, eos_id=END).select(step)
    grouped = DiverseSelection(beam_size=4, groups=1, penalty=5.0, eos_id=END).select(step)
    for expected, values in zip((*plain.live, *plain.ended), (*grouped.live, *grouped.ended), strict=True):
        assert torch.allclose(expected.float(), values.float(), atol=1e-6)


def test_each_group_continues_its_own_hypotheses() -> None:
    logits = torch.zeros(1, 4, 6)
    logits[0, :2, 2] = 5.0  # whatever the first group likes is nothing to the second
    logits[0, 2:, 3] = 1.0
    scores = torch.tensor([[0.0, -0.1, -50.0, -50.1]])
    pieces = torch.zeros(1, 4, 1, dtype=torch.int64)
    step = SelectionStep(logits, scores, pieces, torch.arange(1))
    live = DiverseSelection(beam_size=4, groups=2, penalty=0.0, eos_id=END).select(step).live
    assert live.parents.tolist() == [[0, 1, 2, 3]]
    assert live.tokens.tolist() == [[2, 2, 3, 3]]


# --- groups against a reference, in which each group is a beam search of its own after those of the earlier groups ---


LONGEST, SIZE = 9, 7


class TableScorer:
    """A scorer of several sentences with random log-probabilities by sentence, position and last token."""

    def __init__(self, tables: Tensor) -> None:
        self.tables, self.position = tables, 0

    def step(self, pieces: Tensor) -> Tensor:
        self.position += 1
        return self.tables[:, self.position - 1].gather(1, pieces[..., None].expand(-1, -1, SIZE))

    def reorder(self, parents: Tensor) -> None:
        pass

    def keep_sentences(self, rows: Tensor) -> None:
        self.tables = self.tables[rows]


def random_tables(sentences: int) -> Tensor:
    """Return log-probabilities, (sentences, LONGEST, SIZE, SIZE), in which the last position always ends."""
    logits = 2.0 * torch.randn(sentences, LONGEST, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    logits[..., START] = -math.inf
    logits[..., END] += 1.5
    logits[:, -1] = -math.inf
    logits[:, -1, :, END] = 0.0
    return logits.log_softmax(dim=-1)


Found = tuple[float, tuple[int, ...]]


def search_in_groups(table: Tensor, *, groups: int, size: int, penalty: float, stop: str | None) -> list[list[Found]]:
    """Return the scores and tokens that each group finds; `stop` = None is the paper's search, with alpha 0.6."""
    divisor = (PAPER_RANKING if stop is None else GENERATE_RANKING).length_penalty
    taken = [Counter[int]() for _ in range(LONGEST)]
    results = []
    for _ in range(groups):
        live: list[Found] = [(0.0, ())]
        finished: list[Found] = []
        for position in range(LONGEST):
            options = [
                (total + value - penalty * taken[position][token], total + value, (*ids, token))
                for total, ids in live
                for token, value in enumerate(table[position, ids[-1] if ids else START].tolist())
                if value > -math.inf
            ]
            ranked = [option[1:] for option in sorted(options, reverse=True)]
            ended = [option for option in ranked[:size] if option[1][-1] == END]
            finished += [(total / divisor(position + 1, 0.6), ids[:-1]) for total, ids in ended]
            finished = sorted(finished, reverse=True)[:size]
            live = [option for option in ranked if option[1][-1] != END][:size]
            taken[position].update(ids[-1] for _, ids in live)
            length = LONGEST if stop in (None, "never") else position + 1
            bound = max((total for total, _ in live), default=-math.inf) / divisor(length, 0.6)
            if len(finished) == size and (stop == "full" or bound <= finished[-1][0]):
                break
        results.append(finished)
    return results


@pytest.mark.parametrize("stop", [None, "full", "likely", "never"])
@pytest.mark.parametrize(("groups", "size", "penalty"), [(4, 1, 0.5), (2, 2, 0.5), (3, 2, 2.0), (2, 3, 0.0)])
def test_each_group_is_a_beam_search_that_avoids_the_tokens_of_earlier_groups(
    groups: int, size: int, penalty: float, stop: str | None
) -> None:
    """A group that has finished takes no more tokens, and gets no more results because other groups go on."""
    tables = random_tables(40)
    beam = BeamOptions(beam_size=groups * size, n_best=2, alpha=0.6, groups=groups)
    selection = DiverseSelection(beam_size=groups * size, groups=groups, penalty=penalty, eos_id=END)
    limits = SequenceLimits(START, END, torch.full((len(tables),), LONGEST))
    scorer = TableScorer(tables)
    search = (
        BeamSearch(scorer, limits, beam, selection=selection)
        if stop is None
        else GenerateSearch(scorer, limits, beam, GenerateSettings(stop=stop), selection=selection)  # type: ignore[arg-type]
    )
    run_search(search)
    for table, by_group in zip(tables, search.finished, strict=True):
        expected = search_in_groups(table, groups=groups, size=size, penalty=penalty, stop=stop)
        assert [[each.ids for each in group] for group in by_group] == [[ids for _, ids in group] for group in expected]
        scores = [score for group in expected for score, _ in group]
        assert [each.score for group in by_group for each in group] == pytest.approx(scores, abs=1e-5)


def test_a_group_of_one_hypothesis_has_one_result() -> None:
    """The likeliest text of all groups is the same here, so nothing longer is returned in its place."""
    table = torch.full((1, LONGEST, SIZE, SIZE), -math.inf)
    table[0, 0, START, A] = 0.0
    table[0, 1:, :, END], table[0, 1:, :, B] = math.log(0.9), math.log(0.1)
    beam = BeamOptions(beam_size=4, n_best=4, alpha=0.6, groups=4)
    selection = DiverseSelection(beam_size=4, groups=4, penalty=0.5, eos_id=END)
    search = BeamSearch(
        TableScorer(table), SequenceLimits(START, END, torch.tensor([LONGEST])), beam, selection=selection
    )
    assert [each.ids for each in run_search(search)[0]] == [(A,)]
