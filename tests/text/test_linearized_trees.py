"""Test linearized trees: any symbols give a valid tree over exactly the sentence's words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.errors import TransduceError
from transduce.text.trees import (
    MARK,
    MAX_DEPTH,
    Tree,
    build_tree,
    frequent_runs,
    linearize,
    marked_tokens,
    plain,
    read_tree,
    split_symbols,
    symbols_in,
    write_line,
)

TREE = read_tree("(S (NP (PRP we)) (VP (VBP go) (, ,) (ADVP (RB home))))")
LABELS = st.sampled_from(["S", "NP", "VP", "-LRB-", ",", "PRP$", "NN", "NNS"])
WORDS = st.text("abc(),/é", min_size=1, max_size=4)
LEAVES = st.builds(lambda label, word: Tree(label, (), word), LABELS, WORDS)
TREES = st.recursive(
    LEAVES, lambda below: st.builds(lambda label, c: Tree(label, tuple(c)), LABELS, st.lists(below, min_size=1))
)


def test_words_are_replaced_by_their_tags_or_by_a_placeholder() -> None:
    assert linearize(TREE) == "S(NP(PRP/)VP(VBP/-COMMA-/ADVP(RB/)))"
    assert linearize(TREE, tags=False) == "S(NP(XX/)VP(XX/XX/ADVP(XX/)))"


@given(TREES)
def test_a_tree_comes_back_from_its_symbols(tree: Tree) -> None:
    if not tree.children and tree.word is None:
        return
    text = linearize(tree)
    assert build_tree(split_symbols(text), tree.words()) == tree


@given(
    symbols=st.lists(st.sampled_from(["S(", "NP(", ")", "NN/", "DT/", "nonsense", ""]), max_size=60),
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
        ("S(NP(DT/NN/", "(S (NP (DT the) (NN cat)) (XX sleeps))"),
        ("S(NP(DT/NN/)VP(VBZ/RB/)./)", "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))"),
        ("NP(DT/NN/)VP(VBZ/)", "(NP (DT the) (NN cat) (VP (VBZ sleeps)))"),
        ("S()NP()NP(DT/NN/))))VP(VBZ/)", "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))"),
        ("DT/NN/VBZ/", "(S (DT the) (NN cat) (VBZ sleeps))"),
        ("", "(S (XX the) (XX cat) (XX sleeps))"),
    ],
)
def test_repairs_change_as_little_as_possible(symbols: str, repaired: str) -> None:
    assert str(build_tree(split_symbols(symbols), ["the", "cat", "sleeps"])) == repaired


def test_a_sentence_of_one_word_may_be_a_tag_alone() -> None:
    assert build_tree(["NN/"], ["cat"]) == Tree("NN", (), "cat")


def test_endless_opening_brackets_are_bounded() -> None:
    tree = build_tree(["NP("] * 10_000 + ["NN/"], ["a", "b"])
    assert str(tree).count("(NP") < MAX_DEPTH
    assert read_tree(str(tree)) == tree


def test_symbols_between_two_words_are_one_run() -> None:
    rows = ["S(NP(DT/NN/)VP(VBZ/))"] * 3 + ["S(NP(NN/)VP(VBZ/NP(NN/)))"]
    assert frequent_runs(rows, 3) == {")VP(VBZ/", "))", "S(NP(DT/"}
    assert frequent_runs(rows, 100) == {")VP(VBZ/", "))", "S(NP(DT/", ")))", "NP(NN/", "S(NP(NN/"}
    assert frequent_runs(rows, 0) == frozenset()


def test_a_line_holds_each_word_followed_by_its_symbols() -> None:
    row = linearize(TREE)
    line = write_line(TREE.words(), row, frequent_runs([row], 100))
    assert line == "we⟩S(NP(PRP/ go⟩)VP(VBP/ ,⟩-COMMA-/ home⟩ADVP(RB/⟩)))"
    by_symbols = write_line(TREE.words(), row, {")))"})
    assert by_symbols == "we⟩S(⟩NP(⟩PRP/ go⟩)⟩VP(⟩VBP/ ,⟩-COMMA-/ home⟩ADVP(⟩RB/⟩)))"
    assert symbols_in(line) == symbols_in(by_symbols) == split_symbols(row)


@given(TREES, TREES)
def test_a_tree_comes_back_from_its_line(tree: Tree, other: Tree) -> None:
    """Trees are restored for any merged symbols and for words that look like symbols; tokens match symbol
    boundaries.
    """
    if not tree.children and tree.word is None:
        return
    row = linearize(tree)
    runs = frequent_runs([linearize(other)], 1_000)
    line = write_line(tree.words(), row, runs)
    assert build_tree(symbols_in(line), tree.words()) == tree
    known = marked_tokens([row], runs)
    for part in line.split():
        rest = part[part.index(MARK) :]
        while rest:
            rest = rest.removeprefix(max(filter(rest.startswith, known), key=len))


def test_the_separator_and_brackets_in_words_are_escaped() -> None:
    tree = Tree("S", (Tree("NN", (), "a⟩S("), Tree("NN", (), "⟩")))
    line = write_line(tree.words(), linearize(tree), frozenset())
    assert line == f"{plain('a⟩S(')}⟩S(⟩NN/ {plain('⟩')}⟩NN/⟩)"
    assert build_tree(symbols_in(line), tree.words()) == tree
    assert plain("go") == "go"


def test_empty_sentences_and_labels_with_brackets_are_refused() -> None:
    with pytest.raises(TransduceError, match=r"the sentence has none"):
        build_tree(["S("], [])
    with pytest.raises(TransduceError, match=r'or have a space, bracket, /, ▁ or ⟩, but one is "N/P" in \(N/P x\)'):
        linearize(Tree("N/P", (), "x"))
