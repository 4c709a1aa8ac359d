"""Test phrases that a translation must contain: their state, the division of the beam, and the guarantee."""

import itertools
import math
import random
import time

import pytest
import torch
from torch import Tensor

from transduce.search.beam import BeamOptions, BeamSearch
from transduce.search.constraints import (
    ConstrainedSelection,
    Phrase,
    PhraseMatcher,
    PhraseProgress,
    WordContinuations,
    allocate,
)
from transduce.search.scorer import Hypothesis, SequenceLimits, run_search

START, END = 0, 1


def follow(matcher: PhraseMatcher, pieces: list[int]) -> PhraseProgress:
    progress = matcher.start
    for piece in pieces:
        progress = matcher.next(progress, piece)
    return progress


def phrases(*spellings: tuple[int, ...]) -> list[Phrase]:
    return [(spelling,) for spelling in spellings]


def contains(pieces: tuple[int, ...], spelling: tuple[int, ...]) -> bool:
    return any(pieces[start : start + len(spelling)] == spelling for start in range(len(pieces)))


# --- following ---


def test_a_phrase_is_met_when_its_last_token_is_written() -> None:
    matcher = PhraseMatcher(phrases((5, 6, 7)))
    assert [matcher.missing(follow(matcher, written)) for written in ([], [5], [5, 6], [5, 6, 7])] == [3, 2, 1, 0]
    assert follow(matcher, [5, 6, 7]).unmet == frozenset()


def test_an_interrupted_phrase_starts_over() -> None:
    matcher = PhraseMatcher(phrases((5, 6, 7)))
    assert matcher.missing(follow(matcher, [5, 6, 8])) == 3
    assert matcher.missing(follow(matcher, [5, 6, 5])) == 2  # what broke it off begins it


def test_a_phrase_that_overlaps_with_itself_is_found() -> None:
    """In 5 5 5 6, the phrase 5 5 6 still has two matched tokens at the third token."""
    matcher = PhraseMatcher(phrases((5, 5, 6)))
    assert matcher.missing(follow(matcher, [5, 5, 5])) == 1
    assert matcher.missing(follow(matcher, [5, 5, 5, 6])) == 0


def test_tokens_may_belong_to_several_phrases() -> None:
    matcher = PhraseMatcher(phrases((5, 6), (6, 7), (6,)))
    assert follow(matcher, [5, 6]).unmet == {1}
    assert follow(matcher, [5, 6, 7]).unmet == frozenset()


def test_a_phrase_is_met_by_any_of_its_spellings() -> None:
    matcher = PhraseMatcher([((5, 6), (7,))])
    assert matcher.missing(matcher.start) == 1
    assert follow(matcher, [5, 6]).unmet == follow(matcher, [7]).unmet == frozenset()
    assert matcher.missing(follow(matcher, [5])) == 1
    assert matcher.next_tokens(follow(matcher, [5])) == {5, 6, 7}


def test_a_phrase_whose_last_word_continues_is_not_met() -> None:
    """5 is `tea`, 6 `cher`, 7 `s`, 8 another word."""
    matcher = PhraseMatcher(
        [((5,), (5, 7))], WordContinuations(continuing=frozenset((6, 7)), within=frozenset((5, 6, 7)))
    )
    unmet = {written: follow(matcher, list(written)).unmet for written in ((5,), (5, 8), (5, 6), (5, 7), (5, 7, 8))}
    assert unmet == {(5,): set(), (5, 8): set(), (5, 6): {0}, (5, 7): set(), (5, 7, 8): set()}
    assert follow(matcher, [5, 7, 6]).unmet == {0}
    assert follow(matcher, [5, 8, 6]).unmet == set()  # the other word continues
    assert follow(PhraseMatcher([((5,),)]), [5, 6]).unmet == set()  # nobody said what words are


def test_a_phrase_that_is_named_twice_is_written_once() -> None:
    matcher = PhraseMatcher(phrases((5, 6), (5, 6)))
    assert matcher.missing(matcher.start) == 2


def test_a_long_repetitive_phrase_is_followed_in_linear_time_per_token() -> None:
    spelling = (5,) * 3000
    matcher = PhraseMatcher(phrases((*spelling, 6)))
    progress = follow(matcher, list(spelling))
    started = time.process_time()
    for _ in range(50):
        assert matcher._follow(progress, 7).tail == ()
        progress = matcher._follow(progress, 5)
        assert len(progress.tail) == 3000
    assert time.process_time() - started < 1.0
    assert matcher.missing(matcher.next(progress, 6)) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_phrase_state_agrees_with_searching_the_written_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = [tuple(torch.randint(2, 4, (n,), generator=generator).tolist()) for n in (1, 2, 3, 3)]
    matcher = PhraseMatcher(phrases(*drawn))
    written = torch.randint(2, 4, (12,), generator=generator).tolist()
    for length in range(len(written) + 1):
        unmet = {n for n, (phrase,) in enumerate(matcher.phrases) if not contains(tuple(written[:length]), phrase)}
        assert follow(matcher, written[:length]).unmet == unmet


@pytest.mark.parametrize(
    ("spellings", "needed"),
    [
        ([(2, 3), (3,)], 2),
        ([(2, 3), (3, 4)], 3),
        ([(2, 3, 2), (2, 4), (4, 2, 3)], 5),
        ([(2, 3), (4,)], 3),
        ([(2, 2), (2, 2, 2), (5, 2)], 4),
    ],
)
def test_phrases_that_share_tokens_need_no_more_than_the_shortest_sequence(
    spellings: list[tuple[int, ...]], needed: int
) -> None:
    matcher = PhraseMatcher(phrases(*spellings))
    assert matcher.tokens_needed(matcher.start) == needed


TOKENS, OTHER = range(2, 7), 9


def draw_matcher(generator: random.Random, *, whole_words: bool) -> PhraseMatcher:
    """Draw phrases, and tokens that continue words; with `whole_words`, no phrase begins with one of these."""
    tokens = generator.sample(TOKENS, generator.randint(3, 5))
    continuing = frozenset(token for token in tokens[:-1] if generator.random() < generator.choice((0.0, 0.4)))
    firsts = [token for token in tokens if not whole_words or token not in continuing]
    spellings = [
        (generator.choice(firsts), *generator.choices(tokens, k=generator.randint(0, 3)))
        for _ in range(generator.randint(1, 9))
    ]
    drawn = [tuple(spellings[start : start + 2]) for start in range(0, len(spellings), generator.choice((1, 2)))]
    within = frozenset(token for token in tokens if generator.random() < 0.7)
    return PhraseMatcher(drawn[:5], WordContinuations(continuing, within))


@pytest.mark.parametrize("whole_words", [True, False])
@pytest.mark.parametrize("seed", range(80))
def test_the_tokens_needed_are_those_of_the_shortest_continuation(seed: int, *, whole_words: bool) -> None:
    """If phrases are whole words, a token that search tries brings a hypothesis nearer to all phrases."""
    generator = random.Random(seed)
    matcher = draw_matcher(generator, whole_words=whole_words)
    progress = matcher.start
    for _ in range(6):
        needed = matcher.tokens_needed(progress)
        assert needed == shortest_continuation(matcher, progress)
        following = [matcher.next(progress, each) for each in matcher.next_tokens(progress)]
        assert not whole_words or not needed or min(map(matcher.tokens_needed, following)) == needed - 1
        progress = matcher.next(progress, generator.choice(TOKENS))


def shortest_continuation(matcher: PhraseMatcher, progress: PhraseProgress) -> int:
    """Return the number of tokens after which a breadth-first search first contains all phrases."""
    seen, newest, length = {progress}, {progress}, 0
    while all(each.unmet for each in newest):
        newest = {matcher.next(each, token) for each in newest for token in (*TOKENS, OTHER)} - seen
        seen |= newest
        length += 1
    return length


@pytest.mark.parametrize("seed", range(3))
def test_too_many_phrases_for_an_exact_search_are_written_in_no_more_tokens_than_counted(seed: int) -> None:
    generator = random.Random(seed)
    matcher = PhraseMatcher(phrases(*(tuple(generator.choices(range(2, 8), k=3)) for _ in range(20))))
    progress = matcher.start
    needed = matcher.tokens_needed(progress)
    assert needed < matcher.missing(progress)
    while progress.unmet:
        if generator.random() < 0.2:
            progress = matcher.next(progress, generator.choice(TOKENS))
            needed = matcher.tokens_needed(progress)
            continue
        following = [matcher.next(progress, each) for each in matcher.next_tokens(progress)]
        progress = min(following, key=matcher.tokens_needed)
        assert matcher.tokens_needed(progress) < needed
        needed = matcher.tokens_needed(progress)


def test_tokens_are_shared_only_where_words_end() -> None:
    """After 2, the token 3 continues the word, so that the phrase 2 is not contained in 2 3."""
    words = WordContinuations(continuing=frozenset({3}), within=frozenset({2, 3}))
    for continuations, needed in ((None, 2), (words, 3)):
        matcher = PhraseMatcher(phrases((2,), (2, 3)), continuations)
        assert matcher.tokens_needed(matcher.start) == needed


def test_many_phrases_that_share_tokens_are_counted_in_little_time() -> None:
    spellings = [(number, number + 1) for number in range(2, 32)]
    started = time.perf_counter()
    matcher = PhraseMatcher(phrases(*spellings))
    assert matcher.tokens_needed(matcher.start) == 31
    assert time.perf_counter() - started < 5.0


def test_alternatives_of_many_tokens_are_counted_in_little_time() -> None:
    generator = random.Random(0)
    longer = [tuple(generator.choices(range(2, 22), k=30)) for _ in range(150)]
    matcher = PhraseMatcher([((number + 2,), *longer[3 * number : 3 * number + 3]) for number in range(50)])
    started = time.perf_counter()
    assert 30 <= matcher.tokens_needed(matcher.start) <= matcher.missing(matcher.start) == 50
    assert time.perf_counter() - started < 10.0


@pytest.mark.parametrize("seed", range(10))
def test_phrases_fit_into_the_tokens_that_they_need(seed: int) -> None:
    generator = random.Random(seed)
    matcher = draw_matcher(generator, whole_words=False)
    fresh = PhraseMatcher(matcher.phrases, matcher.continuations)
    progress = matcher.start
    for _ in range(6):
        needed = matcher.tokens_needed(progress)
        assert [fresh.fits(progress, count) for count in range(-1, needed + 3)] == [False] * (needed + 1) + [True] * 3
        progress = matcher.next(progress, generator.choice(TOKENS))


def test_the_shortest_sequence_is_not_searched_if_longer_ones_fit() -> None:
    matcher = PhraseMatcher(phrases(*((number, number + 1) for number in range(2, 32))))
    matcher._search_shortest = None  # type: ignore[assignment,method-assign]
    assert matcher.fits(matcher.start, 60)
    assert not matcher.fits(matcher.start, 29)


# --- sharing out ---


@pytest.mark.parametrize(
    ("sizes", "places", "stages", "expected"),
    [
        ({0: 9, 1: 9, 2: 9}, 6, 3, {0: 2, 1: 2, 2: 2}),
        ({0: 9, 1: 9, 2: 9}, 8, 3, {0: 4, 1: 2, 2: 2}),  # what remains goes to those that miss nothing
        ({0: 1, 1: 9, 2: 9}, 6, 3, {0: 1, 1: 3, 2: 2}),  # a free slot goes to hypotheses that lack fewest phrases
        ({2: 9}, 6, 3, {2: 6}),
        ({1: 1, 2: 1}, 6, 3, {1: 1, 2: 1}),
        ({}, 6, 3, {}),
    ],
)
def test_beam_slots_are_divided_among_stages_of_met_phrases(
    sizes: dict[int, int], places: int, stages: int, expected: dict[int, int]
) -> None:
    assert allocate(sizes, slots=places, stages=stages) == expected


# --- searching ---


class BigramScorer:
    """A scorer whose probabilities depend on the previous token and on the sentence."""

    def __init__(self, tables: list[Tensor]) -> None:
        self.tables = tables

    def step(self, pieces: Tensor) -> Tensor:
        return torch.stack([table[row] for table, row in zip(self.tables, pieces, strict=True)])

    def reorder(self, parents: Tensor) -> None:
        pass

    def keep_sentences(self, rows: Tensor) -> None:
        self.tables = [self.tables[row] for row in rows.tolist()]


def random_table(seed: int, size: int = 6) -> Tensor:
    table = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) * 2.0
    table[:, START] = -math.inf
    return table


def search(
    tables: list[Tensor], wanted: list[list[Phrase]], *, beam_size: int, longest: int, n_best: int = 1
) -> list[list[Hypothesis]]:
    limits = SequenceLimits(START, END, torch.full((len(tables),), longest))
    selection = ConstrainedSelection(wanted, max_lengths=[longest] * len(tables), beam_size=beam_size, eos_id=END)
    beam = BeamOptions(beam_size=beam_size, n_best=n_best, alpha=0.0)
    return run_search(BeamSearch(BigramScorer(tables), limits, beam, selection=selection))


def best_by_enumeration(table: Tensor, spellings: list[tuple[int, ...]], longest: int) -> float:
    """Return the best score among all sequences up to a length that contain the phrases."""
    scores = table.log_softmax(-1).tolist()
    best = -math.inf
    for length in range(longest):
        for pieces in itertools.product(range(2, len(table)), repeat=length):
            if all(contains(pieces, spelling) for spelling in spellings):
                steps = zip((START, *pieces), (*pieces, END), strict=True)
                best = max(best, sum(scores[before][after] for before, after in steps))
    return best


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_wide_beam_finds_the_best_sequence_with_the_phrases(seed: int) -> None:
    spellings = [(2, 3), (4,)]
    ((found,),) = search([random_table(seed)], [phrases(*spellings)], beam_size=300, longest=6)
    assert found.ended
    assert found.score == pytest.approx(best_by_enumeration(random_table(seed), spellings, 6), abs=1e-4)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("longest", [4, 5])
def test_a_wide_beam_finds_the_best_sequence_with_phrases_that_share_tokens(longest: int, seed: int) -> None:
    spellings = [(2, 3), (3, 4), (4,)]
    ((found,),) = search([random_table(seed)], [phrases(*spellings)], beam_size=1000, longest=longest)
    assert found.ended
    assert found.score == pytest.approx(best_by_enumeration(random_table(seed), spellings, longest), abs=1e-4)


@pytest.mark.parametrize("longest", [5, 6, 9])
@pytest.mark.parametrize("beam_size", [5, 8])
def test_all_phrases_are_written_even_if_the_length_limit_barely_allows(beam_size: int, longest: int) -> None:
    """Four tokens and the end symbol just fit into five."""
    spellings = [(5, 4, 5), (3,)]
    tables = [random_table(seed) for seed in range(12)]
    for (found,) in search(tables, [phrases(*spellings)] * 12, beam_size=beam_size, longest=longest):
        assert found.ended
        assert all(contains(found.ids, spelling) for spelling in spellings)


def test_every_alternative_has_the_phrases() -> None:
    (found,) = search([random_table(1)], [phrases((5, 5))], beam_size=6, longest=8, n_best=5)
    assert len(found) == 5
    assert all(contains(hypothesis.ids, (5, 5)) for hypothesis in found)


def test_sentences_without_phrases_are_searched_as_without_constraints() -> None:
    tables = [random_table(seed) for seed in (1, 2, 3)]
    mixed = search(tables, [[], phrases((5, 5)), []], beam_size=4, longest=8)
    limits = SequenceLimits(START, END, torch.full((3,), 8))
    plain = run_search(BeamSearch(BigramScorer(tables), limits, BeamOptions(beam_size=4, alpha=0.0)))
    assert (mixed[0], mixed[2]) == (plain[0], plain[2])
    assert mixed[1] == search([tables[1]], [phrases((5, 5))], beam_size=4, longest=8)[0]


def test_a_phrase_that_is_written_anyway_costs_nothing() -> None:
    table = random_table(7)
    ((plain,),) = search([table], [[]], beam_size=6, longest=8)
    assert plain.ids
    ((found,),) = search([table], [phrases(plain.ids[:1])], beam_size=6, longest=8)
    assert found == plain
