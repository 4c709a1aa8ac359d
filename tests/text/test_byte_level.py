"""Merging neighbours as GPT-2's published program does it, and in less than quadratic time."""

import random
from itertools import pairwise

import pytest

from transduce.text.byte_level import merge


def merged_one_pair_at_a_time(parts: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """The definition: all occurrences of the pair with the lowest rank become one, from left to right."""
    while known := [pair for pair in pairwise(parts) if pair in ranks]:
        best = min(known, key=lambda pair: ranks[pair])
        joined: list[str] = []
        for part in parts:
            if joined and (joined[-1], part) == best and not joined[-1].endswith("\0"):
                joined[-1] += part + "\0"  # not to be taken for the first of another pair in this round
            else:
                joined.append(part)
        parts = [part.rstrip("\0") for part in joined]
    return parts


@pytest.mark.parametrize("seed", range(20))
def test_merges_are_those_of_the_definition(seed: int) -> None:
    chooser = random.Random(seed)
    pieces, ranks = list("abc"), {}
    for rank in range(12):
        pair = (chooser.choice(pieces), chooser.choice(pieces))
        if pair not in ranks:
            ranks[pair] = rank
            pieces.append("".join(pair))
    for length in (0, 1, 2, 5, 40):
        parts = chooser.choices("abcd", k=length)
        assert merge(parts, ranks) == merged_one_pair_at_a_time(parts, ranks)


def test_runs_of_one_letter_are_paired_from_the_left() -> None:
    assert merge(list("aaaaa"), {("a", "a"): 0, ("aa", "aa"): 1}) == ["aaaa", "a"]
