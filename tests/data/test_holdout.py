"""Test holding out a dev set in one pass over the pairs."""

import random

import numpy as np
import pytest

from transduce.data import HoldOutSettings
from transduce.data.holdout import HoldOut, choose_held_out, is_held_out, source_keys
from transduce.errors import TransduceError
from transduce.text import Pair
from transduce.text.corpus import PairBlock


def run(pairs: list[Pair], settings: HoldOutSettings) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Return the pairs to train on, the held-out pairs, and the other pairs with the sources of held-out ones."""
    hold_out = HoldOut(settings)
    keys = source_keys([pair.source for pair in pairs])
    block = PairBlock(0, "", 1, [pair.source for pair in pairs], [pair.target for pair in pairs])
    hold_out.offer(block, range(len(pairs)), keys, np.ones(len(pairs), bool))
    held = choose_held_out(hold_out.candidates(), settings, keys, len(pairs))
    held_pairs = [pairs[candidate.row] for candidate in held]
    taken = [pair for pair, has in zip(pairs, is_held_out(keys, held), strict=True) if has]
    return [p for p in pairs if p not in taken], held_pairs, [p for p in taken if p not in held_pairs]


def numbered(count: int) -> list[Pair]:
    return [Pair(f"source {number}", f"target {number}", number) for number in range(count)]


@pytest.mark.parametrize(("count", "expected"), [(2, 1), (10, 1), (100, 3), (1_000, 30), (20_000, 50)])
def test_a_share_is_held_out_up_to_a_number(count: int, expected: int) -> None:
    training, held, further = run(numbered(count), HoldOutSettings(share=0.03, max_pairs=50, enough_pairs=0))
    assert len(held) == expected
    assert sorted(training + held + further) == sorted(numbered(count))


def test_the_choice_does_not_depend_on_the_order() -> None:
    pairs = numbered(3_000)
    settings = HoldOutSettings(max_pairs=40)
    _, held, _ = run(pairs, settings)
    shuffled = random.Random(5).sample(pairs, len(pairs))
    assert run(shuffled, settings)[1] == held


@pytest.mark.parametrize(("count", "expected"), [(9, 1), (60, 6), (300, 30), (1_000, 100), (5_000, 150)])
def test_a_tenth_of_few_pairs_is_held_out(count: int, expected: int) -> None:
    assert len(run(numbered(count), HoldOutSettings())[1]) == expected


def test_no_source_is_both_held_out_and_trained_on() -> None:
    variants = ["Sentence {}!", "sentence {}.", "SENTENCE   {}", "Sentence {}"]
    pairs = [
        Pair(text.format(number), str(copy), number) for copy, text in enumerate(variants) for number in range(500)
    ]
    training, held, further = run(pairs, HoldOutSettings(share=0.01, max_pairs=1_000, enough_pairs=0))
    held_numbers = {pair.line for pair in held}
    assert len(held) == len(held_numbers) == 20
    assert not held_numbers & {pair.line for pair in training}
    assert {pair.line for pair in further} == held_numbers
    assert len(further) == 3 * 20


@pytest.mark.parametrize(("sources", "copies", "expected"), [(600, 33, 61), (300, 17, 31), (5, 200, 1), (2, 10, 1)])
def test_few_repeated_sources_are_held_out(sources: int, copies: int, expected: int) -> None:
    pairs = [Pair(f"source {number}", str(copy), number) for copy in range(copies) for number in range(sources)]
    training, held, further = run(pairs, HoldOutSettings())
    assert len(held) == expected
    assert len(further) == expected * (copies - 1)
    assert len(training) == (sources - expected) * copies


def test_sources_that_come_once_are_not_all_held_out() -> None:
    pairs = [*numbered(500), *(Pair(f"often {line % 5}", str(line), line) for line in range(19_500))]
    training, held, further = run(pairs, HoldOutSettings())
    assert (len(held), len(further)) == (101, 0)
    assert len({pair.source for pair in training}) == 505 - 101


def test_how_many_sources_there_are_is_estimated_from_the_lowest_keys() -> None:
    pairs = [*numbered(300), *(Pair(f"often {line % 5}", str(line), line) for line in range(9_700))]
    held = run(pairs, HoldOutSettings(max_pairs=100))[1]
    assert 45 <= len(held) <= 80  # about a fifth of 305, and not the 100 of 10,000 pairs


def test_a_single_source_is_trained_on() -> None:
    pairs = [Pair("Hi.", target, line) for line, target in enumerate(("Hallo.", "Grüß Gott."))]
    assert run(pairs, HoldOutSettings()) == (pairs, [], [])
    assert run([], HoldOutSettings()) == ([], [], [])


def test_sources_of_punctuation_alone_are_distinguished() -> None:
    _, held, further = run([Pair("...", "a", 1), Pair("?!", "b", 2), Pair("…", "c", 3)], HoldOutSettings())
    assert (len(held), further) == (1, [])


def test_vowel_signs_tell_sources_apart() -> None:
    sources = ["वह जाता है।", "वह जाती है।", "वह जाता है"]
    _, held, further = run([Pair(source, "he goes", line) for line, source in enumerate(sources)], HoldOutSettings())
    assert {pair.source for pair in held + further} in ({sources[1]}, {sources[0], sources[2]})


def test_hold_out_settings_out_of_range_are_refused() -> None:
    with pytest.raises(TransduceError, match=r"`hold_out\.share` must be above 0 and below 1, but is 1\.0"):
        HoldOutSettings(share=1.0)
    with pytest.raises(TransduceError, match=r"`hold_out\.max_pairs` must be at least 1, but is 0"):
        HoldOutSettings(max_pairs=0)
