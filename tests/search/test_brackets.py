"""With the rule, any model at all writes trees over exactly the sentence's words."""

import itertools

import pytest
import torch
from torch import Tensor

from transduce.search.beam import beam_search
from transduce.search.brackets import BalancedBrackets, BracketPiece, BracketPieces
from transduce.search.greedy import greedy_search
from transduce.text.linearized_trees import build_tree, split_symbols

SPELLING = ["<pad>", "</s>", "▁", "(S", "(NP", ")", "/NN", "/DT", "other", "(S(NP", "/NN))"]
PIECES = BracketPieces(
    meanings={
        3: BracketPiece(opened=1),
        4: BracketPiece(opened=1),
        5: BracketPiece(closed=1),
        6: BracketPiece(words=1),
        7: BracketPiece(words=1),
        9: BracketPiece(opened=2),
        10: BracketPiece(words=1, closed=2),
    },
    silent=[2],
    eos_id=1,
)


class Noise:
    """A model that writes at random, and closes brackets more often than it opens them, as trained ones do."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, pieces: Tensor) -> Tensor:
        noise = torch.randn(*pieces.shape, len(SPELLING), generator=self.generator)
        return noise + torch.tensor([0.0, 1.0, 0.0, -0.5, -0.5, 0.5, 0.0, 0.0, 3.0, -0.5, 0.3])

    def reorder(self, parents: Tensor) -> None: ...

    def keep_sentences(self, rows: Tensor) -> None: ...


def spell(ids: tuple[int, ...]) -> list[str]:
    return split_symbols("".join(SPELLING[id] for id in ids))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("beam_size", [1, 4])
def test_whatever_is_written_is_a_tree_over_all_words_without_any_repair(seed: int, beam_size: int) -> None:
    words = [1, 2, 7, 3]
    rule = BalancedBrackets(PIECES, words, len(SPELLING))
    longest = torch.full((4,), 200)
    if beam_size == 1:
        found = greedy_search(Noise(seed), start_id=0, eos_id=1, longest=longest, rules=[rule])
    else:
        found = beam_search(
            Noise(seed), start_id=0, eos_id=1, longest=longest, beam_size=beam_size, n_best=2, rules=[rule]
        )
    for count, hypotheses in zip(words, found, strict=True):
        for hypothesis in hypotheses:
            assert hypothesis.ended
            symbols = spell(hypothesis.ids)
            assert SPELLING.index("other") not in hypothesis.ids
            assert sum(symbol.startswith("/") for symbol in symbols) == count
            tree = build_tree(symbols, [f"w{n}" for n in range(count)])
            assert str(tree).replace(" ", "") == rebuilt(symbols)


def rebuilt(symbols: list[str]) -> str:
    """The symbols with words in their places."""
    text, used = "", 0
    for symbol in symbols:
        text += f"({symbol[1:]}w{used})" if symbol.startswith("/") else symbol
        used += symbol.startswith("/")
    return text


def allowed_after(symbols: list[str], words: int) -> set[str]:
    ids = [SPELLING.index(symbol) for symbol in symbols]
    rule = BalancedBrackets(PIECES, [9, words], len(SPELLING))
    pieces = torch.tensor(ids, dtype=torch.int64).view(1, 1, -1)
    logits = rule.apply(torch.zeros(1, 1, len(SPELLING)), pieces, torch.tensor([1]))
    return {SPELLING[id] for id in range(len(SPELLING)) if logits[0, 0, id] == 0.0}


OPENING, WORDS = {"(S", "(NP", "(S(NP"}, {"/NN", "/DT"}


@pytest.mark.parametrize(
    ("symbols", "words", "allowed"),
    [
        ([], 2, OPENING | {"▁"}),
        ([], 1, OPENING | WORDS | {"▁"}),
        (["▁"], 2, OPENING),
        (["/NN"], 1, {"</s>"}),
        (["(S"], 2, OPENING | WORDS),
        (["(S", "/NN"], 2, OPENING | WORDS),
        (["(S(NP"], 2, OPENING | WORDS),
        (["(S(NP"], 1, OPENING | WORDS | {"/NN))"}),
        (["(S", "(NP", "/NN"], 2, OPENING | WORDS | {")", "/NN))"}),
        (["(S", "(NP", "(NP"], 2, OPENING | WORDS | {"/NN))"}),
        (["(S", "/NN", "(NP"], 2, OPENING | WORDS | {"/NN))"}),
        (["(S", "/NN", "/NN"], 2, {")"}),
        (["(S", "/NN", "/NN", ")"], 2, {"</s>"}),
        (["(S", *["(NP"] * 10], 2, {"(S", "(NP", "/NN))"} | WORDS),
        (["(S", *["(NP"] * 11], 2, {"/NN))"} | WORDS),
        (["(S", "/NN", "/NN", ")", "</s>"], 2, set(SPELLING)),
    ],
)
def test_what_may_follow(symbols: list[str], words: int, allowed: set[str]) -> None:
    assert allowed_after(symbols, words) == allowed


def test_words_have_their_numbers_where_there_are_some() -> None:
    """Three numbers, which begin again; each stands before what opens at its word."""
    numbers = {id: BracketPiece(number=id - 10) for id in (11, 12, 13)}
    pieces = PIECES._replace(meanings={**PIECES.meanings, **numbers})
    words = [1, 2, 7, 3]
    rule = BalancedBrackets(pieces, words, 14)

    class Longer(Noise):
        def step(self, pieces: Tensor) -> Tensor:
            return torch.cat([super().step(pieces), torch.randn(*pieces.shape, 3, generator=self.generator)], dim=-1)

    found = beam_search(Longer(3), start_id=0, eos_id=1, longest=torch.full((4,), 200), beam_size=3, rules=[rule])
    for count, (best, *_) in zip(words, found, strict=True):
        assert best.ended
        said = [id for id in best.ids if id >= 11]
        assert said == [11 + place % 3 for place in range(count)]
        for before, after in itertools.pairwise(best.ids):
            if before >= 11:
                assert after in (3, 4, 6, 7, 9, 10)  # opens, or is the word
            elif after in (3, 4, 9):
                assert before in (3, 4, 9)
