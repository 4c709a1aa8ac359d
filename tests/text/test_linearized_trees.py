"""Trees as symbols, and back: any symbols at all give a valid tree over exactly the sentence's words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.errors import TransduceError
from transduce.text.linearized_trees import (
    NUMBERS,
    build_tree,
    frequent_runs,
    is_number,
    linearize,
    number_of,
    number_symbols,
    number_words,
    plain_words,
    split_symbols,
    symbols_of,
)
from transduce.text.trees import MOST_DEPTH, Tree, read_tree

TREE = read_tree("(S (NP (PRP we)) (VP (VBP go) (, ,) (ADVP (RB home))))")
LABELS = st.sampled_from(["S", "NP", "VP", "-LRB-", ",", "PRP$"])
WORDS = st.text("abc(),/é", min_size=1, max_size=4)
LEAVES = st.builds(lambda label, word: Tree(label, (), word), LABELS, WORDS)
TREES = st.recursive(
    LEAVES, lambda below: st.builds(lambda label, c: Tree(label, tuple(c)), LABELS, st.lists(below, min_size=1))
)


def test_words_are_replaced_by_their_tags_or_by_a_placeholder() -> None:
    assert linearize(TREE) == "(S(NP/PRP)(VP/VBP/-COMMA-(ADVP/RB)))"
    assert linearize(TREE, tags=False) == "(S(NP/XX)(VP/XX/XX(ADVP/XX)))"


@given(TREES)
def test_a_tree_comes_back_from_its_symbols(tree: Tree) -> None:
    if not tree.children and tree.word is None:
        return
    text = linearize(tree)
    assert build_tree(split_symbols(text), tree.words()) == tree
    assert set(split_symbols(text)) <= set(symbols_of([text]))


@given(
    symbols=st.lists(st.sampled_from(["(S", "(NP", ")", "/NN", "/DT", "nonsense", ""]), max_size=60),
    words=st.lists(WORDS, min_size=1, max_size=8),
)
@settings(max_examples=300)
def test_any_symbols_give_a_valid_tree_over_exactly_the_words(symbols: list[str], words: list[str]) -> None:
    tree = build_tree(symbols, words)
    assert tree.words() == words
    assert read_tree(str(tree)) == tree or any(set("()") & set(word) for word in words)
    assert all(constituent.children for constituent in constituents(tree))


def constituents(tree: Tree) -> list[Tree]:
    own = [] if tree.word is not None else [tree]
    return own + [found for child in tree.children for found in constituents(child)]


@pytest.mark.parametrize(
    ("symbols", "repaired"),
    [
        ("(S(NP/DT/NN", "(S (NP (DT the) (NN cat)) (XX sleeps))"),
        ("(S(NP/DT/NN)(VP/VBZ/RB)/.)", "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))"),
        ("(NP/DT/NN)(VP/VBZ)", "(NP (DT the) (NN cat) (VP (VBZ sleeps)))"),
        ("(S()(NP)(NP/DT/NN))))(VP/VBZ)", "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))"),
        ("/DT/NN/VBZ", "(S (DT the) (NN cat) (VBZ sleeps))"),
        ("", "(S (XX the) (XX cat) (XX sleeps))"),
    ],
)
def test_repairs_change_as_little_as_possible(symbols: str, repaired: str) -> None:
    assert str(build_tree(split_symbols(symbols), ["the", "cat", "sleeps"])) == repaired


def test_a_sentence_of_one_word_may_be_a_tag_alone() -> None:
    assert build_tree(["/NN"], ["cat"]) == Tree("NN", (), "cat")


def test_endless_opening_brackets_are_bounded() -> None:
    tree = build_tree(["(NP"] * 10_000 + ["/NN"], ["a", "b"])
    assert str(tree).count("(NP") < MOST_DEPTH
    assert read_tree(str(tree)) == tree


def test_runs_that_save_most_symbols_come_first() -> None:
    texts = ["(S(NP/DT/NN)(VP/VBZ))"] * 3 + ["(S(NP/NN)(VP/VBZ(NP/NN)))"]
    # Once `/NN)))` saves three symbols, but `/VBZ))` thrice saves two each.
    assert frequent_runs(texts, 4) == ("/VBZ))", "/NN)", "(S(NP", "/NN)))")
    assert frequent_runs(texts, 0) == ()
    assert frequent_runs(["(S/NN/NN"], 5) == ()


def test_errors() -> None:
    with pytest.raises(TransduceError, match=r"the sentence has none"):
        build_tree(["(S"], [])
    with pytest.raises(TransduceError, match=r'no space, bracket or / in it, but one is "N/P"'):
        linearize(Tree("N/P", (), "x"))


def test_numbers_stand_behind_words_and_before_what_opens_at_them() -> None:
    first, second, third, fourth = (number_of(place) for place in range(4))
    assert number_words(TREE.words()) == f"we{first} go{second} ,{third} home{fourth}"
    symbols = number_symbols(linearize(TREE))
    assert symbols == f"{first}(S(NP/PRP){second}(VP/VBP{third}/-COMMA-{fourth}(ADVP/RB)))"
    assert frequent_runs([symbols], 10) == frequent_runs([linearize(TREE)], 10)


def test_numbers_begin_again() -> None:
    assert number_of(NUMBERS + 3) == number_of(3)
    assert len({number_of(place) for place in range(2 * NUMBERS)}) == NUMBERS
    assert all(is_number(number_of(place)) for place in range(NUMBERS))
    assert not is_number("(S")


@given(TREES)
def test_numbers_change_neither_words_nor_tree(tree: Tree) -> None:
    if not tree.children and tree.word is None:
        return
    assert plain_words(number_words(tree.words())) == tree.words()
    numbered = split_symbols(number_symbols(linearize(tree)))
    assert build_tree(numbered, tree.words()) == tree
    assert [symbol for symbol in numbered if is_number(symbol)] == [number_of(n) for n in range(len(tree.words()))]
