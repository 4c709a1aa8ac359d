"""Test that with the bracket rule any model writes trees over exactly the sentence's words."""

import pytest
import torch
from torch import Tensor

from transduce.inference.parser import BalancedBrackets, BracketToken
from transduce.search.beam import BeamOptions, BeamSearch
from transduce.search.greedy import GreedySearch, take_argmax
from transduce.search.scorer import SequenceLimits, run_search
from transduce.text.trees import build_tree, symbols_in

SPELLING = ["<pad>", "</s>", "W", "⟩S(", "⟩NP(", "⟩)", "⟩NN/", "⟩DT/", "w", "⟩S(NP(", "⟩))", "⟩)VP(DT/", "⟩NP(NN/"]
MEANINGS = {
    3: BracketToken(opened=1),
    4: BracketToken(opened=1),
    5: BracketToken(closed=1),
    6: BracketToken(words=1),
    7: BracketToken(words=1),
    9: BracketToken(opened=2),
    10: BracketToken(closed=2),
    11: BracketToken(closed=1, opened=1, words=1),
    12: BracketToken(opened=1, words=1),
}
WORD, LONG_WORD = [2], [2, 8, 8]
NOTHING: list[int] = []  # a word without tokens in the vocabulary


def rule_for(*sentences: list[list[int]]) -> BalancedBrackets:
    return BalancedBrackets(MEANINGS, sentences, vocabulary_size=len(SPELLING), eos_id=1)


class Noise:
    """A scorer with random logits that closes brackets more often than it opens them, as trained models do."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, pieces: Tensor) -> Tensor:
        noise = torch.randn(*pieces.shape, len(SPELLING), generator=self.generator)
        return noise + torch.tensor([0.0, 1.0, 0.0, -0.5, -0.5, 0.5, 0.0, 0.0, 3.0, -0.5, 0.3, 0.2, -0.3])

    def reorder(self, parents: Tensor) -> None: ...

    def keep_sentences(self, rows: Tensor) -> None: ...


def spell(ids: tuple[int, ...]) -> list[str]:
    return symbols_in("".join(SPELLING[id] for id in ids))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("beam_size", [1, 4])
def test_whatever_is_written_is_a_tree_over_all_words_without_any_repair(seed: int, beam_size: int) -> None:
    words = [1, 2, 7, 3]
    sentences = [[(WORD, LONG_WORD, NOTHING)[place % 3] for place in range(count)] for count in words]
    rule = rule_for(*sentences)
    limits = SequenceLimits(0, 1, torch.full((4,), 200))
    found = run_search(
        GreedySearch(Noise(seed), limits, take_argmax, rules=[rule])
        if beam_size == 1
        else BeamSearch(Noise(seed), limits, BeamOptions(beam_size=beam_size, n_best=2), rules=[rule])
    )
    for count, sentence, hypotheses in zip(words, sentences, found, strict=True):
        for hypothesis in hypotheses:
            assert hypothesis.ended
            symbols = spell(hypothesis.ids)
            written = [id for id in hypothesis.ids if id not in (1, *MEANINGS)]
            assert written == [id for word in sentence for id in word]
            assert sum(symbol.endswith("/") for symbol in symbols) == count
            tree = build_tree(symbols, [f"w{n}" for n in range(count)])
            assert str(tree).replace(" ", "") == rebuilt(symbols)


def rebuilt(symbols: list[str]) -> str:
    """Return the bracket symbols with words inserted at their positions."""
    text, used = "", 0
    for symbol in symbols:
        if symbol == ")":
            text += symbol
            continue
        word = symbol.endswith("/")
        text += f"({symbol[:-1]}" + (f"w{used})" if word else "")
        used += word
    return text


def allowed_after(pieces: list[str], words: int) -> set[str]:
    ids = [SPELLING.index(piece) for piece in pieces]
    rule = rule_for([WORD] * 9, [NOTHING] * words)
    logits = rule.apply(
        torch.zeros(1, 1, len(SPELLING)), torch.tensor(ids, dtype=torch.int64).view(1, 1, -1), torch.tensor([1])
    )
    return {SPELLING[id] for id in range(len(SPELLING)) if logits[0, 0, id] == 0.0}


OPENING, WORDS, FIRST = {"⟩S(", "⟩NP(", "⟩S(NP("}, {"⟩NN/", "⟩DT/"}, {"⟩NP(NN/"}


@pytest.mark.parametrize(
    ("symbols", "words", "allowed"),
    [
        ([], 2, OPENING | FIRST),
        ([], 1, OPENING | FIRST | WORDS),
        (["⟩NN/"], 1, {"</s>"}),
        (["⟩S("], 2, OPENING | FIRST | WORDS),
        (["⟩S(", "⟩NN/"], 2, OPENING | FIRST | WORDS),
        (["⟩S(NP("], 2, OPENING | FIRST | WORDS),
        (["⟩S(", "⟩NP(", "⟩NN/"], 2, OPENING | FIRST | WORDS | {"⟩)", "⟩)VP(DT/"}),
        (["⟩S(", "⟩NP(NN/"], 2, OPENING | FIRST | WORDS | {"⟩)", "⟩)VP(DT/"}),
        (["⟩NP(NN/"], 2, OPENING | FIRST | WORDS),
        (["⟩S(", "⟩NP(", "⟩NP(", "⟩NN/"], 2, OPENING | FIRST | WORDS | {"⟩)", "⟩))", "⟩)VP(DT/"}),
        (["⟩S(", "⟩NP(", "⟩NN/", "⟩)"], 2, OPENING | FIRST | WORDS),
        (["⟩S(", "⟩NP(NN/", "⟩)VP(DT/"], 2, {"⟩)", "⟩))"}),
        (["⟩S(", "⟩NN/", "⟩NN/"], 2, {"⟩)"}),
        (["⟩S(", "⟩NN/", "⟩NN/", "⟩)"], 2, {"</s>"}),
        (["⟩S(", *["⟩NP("] * 10], 2, {"⟩S(", "⟩NP("} | FIRST | WORDS),
        (["⟩S(", *["⟩NP("] * 11], 2, WORDS),
        (["⟩S(", *["⟩NP("] * 10, "⟩NN/"], 2, OPENING | FIRST | WORDS | {"⟩)", "⟩))", "⟩)VP(DT/"}),
        (["⟩S(", "⟩NN/", "⟩NN/", "⟩)", "</s>"], 2, set(SPELLING)),
    ],
)
def test_allowed_symbols_after_each_state_of_a_tree(symbols: list[str], words: int, allowed: set[str]) -> None:
    assert allowed_after(symbols, words) == allowed


def test_a_words_tokens_come_before_its_position() -> None:
    sentence = [LONG_WORD, WORD]
    rule = rule_for([WORD], sentence)
    pieces: list[int] = []
    for wanted in (2, 8, 8, None, 9, 6, 2, None, 11, None, 5, 5, 1):
        history = torch.tensor([pieces], dtype=torch.int64)
        logits = rule.apply(torch.zeros(1, 1, len(SPELLING)), history[None], torch.tensor([1]))
        allowed = set(torch.nonzero(logits[0, 0] == 0.0).flatten().tolist())
        if wanted is None:
            assert not allowed & {0, 1, 2, 8}
            continue
        assert wanted in allowed
        if wanted in (1, 2, 8):
            assert allowed == {wanted}
        pieces.append(wanted)
