"""Test that treebanks are read unchanged, cleaned for parsing, and written so that they read back the same."""

import gzip
from pathlib import Path

import pytest

from transduce.errors import TransduceError
from transduce.text.trees import MAX_DEPTH, Tree, clean, draw, plain_label, read_tree, read_trees

CAT = "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))"


def test_a_tree_has_its_words_and_prints_as_it_was_read() -> None:
    tree = read_tree(CAT)
    assert tree.words() == ["the", "cat", "sleeps"]
    assert [leaf.label for leaf in tree.leaves()] == ["DT", "NN", "VBZ"]
    assert str(tree) == CAT


def test_brackets_among_the_words_are_escaped_in_treebanks_alone() -> None:
    tree = read_tree("(NP (NN gene) (-LRB- -LRB-) (NN Bmp2) (-RRB- -RRB-))")
    assert tree.words() == ["gene", "(", "Bmp2", ")"]
    assert read_tree(str(tree)) == tree
    smiley = Tree("NN", (), ":-)")
    assert str(smiley) == "(NN :--RRB-)"


def test_trees_stand_one_a_line_or_over_several(tmp_path: Path) -> None:
    path = tmp_path / "trees.gz"
    path.write_bytes(gzip.compress(f"{CAT}\n\n( (S\n  (NP (PRP we))\n (VP (VBP go))) )\n{CAT} {CAT}\n".encode()))
    trees = list(read_trees(path))
    assert [len(tree.words()) for tree in trees] == [3, 2, 3, 3]
    assert trees[1].label == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("(NP (NN a))\n(NP (NN b)\n", r"trees:2: this tree is never closed"),
        ("(NP (NN a)) b\n", r'trees:1: a tree begins with an opening bracket, but here is "b"'),
        ("(NP (NN a)))\n", r'trees:1: a tree begins with an opening bracket, but here is "\)"'),
        (
            "(S (DT the)\n(NN a b))\n",
            r'trees:2: a bracket holds a tag and one word, but "NN" has 2 words, fix the tree',
        ),
        ("(NP (NN a) b)\n", r'trees:1: a bracket holds a tag and a word, .* but here follows "b"'),
        ("(NP a (NN b))\n", r"trees:1: .* holds neither or both"),
        ("(NP ())\n", r"trees:1: .* holds neither or both"),
        ("(NP " * (MAX_DEPTH + 1), r"trees:1: brackets must be nested at most 200 deep"),
    ],
)
def test_malformed_trees_are_refused_with_their_location(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "trees"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TransduceError, match=message):
        list(read_trees(path))


@pytest.mark.parametrize("text", ["", "cat", "(NP", f"{CAT} {CAT}"])
def test_a_text_that_is_not_exactly_one_tree_is_refused(text: str) -> None:
    with pytest.raises(TransduceError, match=r"must be one tree|a tree begins"):
        read_tree(text)


def test_other_spaces_divide_a_word_into_leaves_of_the_same_tag() -> None:
    assert str(read_tree("(NML (NN Xpd\u200aTTD) (HYPH /))")) == "(NML (NN Xpd) (NN TTD) (HYPH /))"
    assert str(read_tree("(NN Xpd\u200aTTD)")) == "( (NN Xpd) (NN TTD))"


def test_cleaning_takes_traces_function_tags_and_the_outer_bracket() -> None:
    tree = read_tree("( (S (NP-SBJ-1 (NNS BMPs)) (VP=2 (VBP are) (NP-1 (-NONE- *)) (-LRB- -LRB-))) )")
    assert str(clean(tree)) == "(S (NP (NNS BMPs)) (VP (VBP are) (-LRB- -LRB-)))"
    assert clean(read_tree("(S (NP (-NONE- *)))")) is None
    assert str(clean(read_tree("( (NP (NN a)) (. .))"))) == "(TOP (NP (NN a)) (. .))"


@pytest.mark.parametrize(
    ("label", "plain"),
    [("NP-SBJ-1", "NP"), ("NP=2", "NP"), ("-LRB-", "-LRB-"), ("PRP$", "PRP$"), ("NP|<x>", "NP|<x>"), ("S", "S")],
)
def test_plain_label_removes_function_tags_and_indices(label: str, plain: str) -> None:
    assert plain_label(label) == plain


def test_a_tree_is_drawn_with_indents() -> None:
    assert draw(read_tree(CAT)) == "S\n  NP  the/DT  cat/NN\n  VP  sleeps/VBZ"
    assert draw(read_tree("(S (NP (NN a)) (. .))")) == "S\n  NP  a/NN\n  ./."


def test_the_treebank_is_read_whole(data_folder: Path) -> None:
    trees = [clean(tree) for tree in read_trees(data_folder / "craft-treebank" / "dev.trees.gz")]
    assert len(trees) == 2_780
    assert sum(len(tree.words()) for tree in trees if tree is not None) == 67_652


def test_words_that_treebanks_escape_are_unescaped() -> None:
    tree = clean(read_tree(r"( (NP (CD 3) (CD 1\/2) (NN \*) (-LRB- -LRB-) (NN a\b)) )"))
    assert tree is not None
    assert tree.words() == ["3", "1/2", "*", "(", r"a\b"]
