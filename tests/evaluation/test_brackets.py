"""Test labeled brackets as EVALB counts them: five trees counted by hand, and refused input."""

import pytest

from transduce.errors import TransduceError
from transduce.evaluation.label_scores import BracketSettings, score_trees
from transduce.text.trees import Tree, read_tree

# The reference, the prediction, and what a person counts: matched, reference, predicted, exact, right tags, words.
COUNTED_BY_HAND = [
    pytest.param(
        # Reference: S(0,5) NP(0,2) VP(2,5) NP(3,5). Prediction: S(0,5) NP(0,2) VP(2,5) NP(3,5): the full stop is out.
        "(S (NP (DT the) (NN cat)) (VP (VBD saw) (NP (DT a) (NN bird))) (. .))",
        "(S (NP (DT the) (NN cat)) (VP (VBD saw) (NP (DT a) (NN bird)) (. .)))",
        (4, 4, 4, 1, 5, 5),
        id="the place of punctuation does not count",
    ),
    pytest.param(
        # Reference: S(0,6) NP(0,1) VP(1,6) NP(2,6) NP(2,4) PP(4,6) NP(5,6).
        # Prediction: S(0,6) NP(0,1) VP(1,6) NP(2,4) PP(4,6) NP(5,6): the bracket NP(2,6) is missed.
        "(S (NP (PRP I)) (VP (VBD saw) (NP (NP (DT the) (NN man)) (PP (IN with) (NP (NNS glasses))))))",
        "(S (NP (PRP I)) (VP (VBD saw) (NP (DT the) (NN man)) (PP (IN with) (NP (NN glasses)))))",
        (6, 7, 6, 0, 5, 6),
        id="where a phrase is attached",
    ),
    pytest.param(
        # Reference: S(0,3) NP(0,1) VP(1,3) PRT(2,3). Prediction: S(0,3) NP(0,1) VP(1,3) ADVP(2,3): equal labels.
        "( (S (NP-SBJ-1 (NNS prices)) (VP (VBD went) (PRT (RP up))) (. .)))",
        "(TOP (S (NP (NNS prices)) (VP (VBD went) (ADVP (RB up))) (. .)))",
        (4, 4, 4, 1, 2, 3),
        id="function tags, TOP and ADVP against PRT",
    ),
    pytest.param(
        # Reference: NP(0,2) NP(0,2) NP(0,1), a label twice over the same words. Prediction: NP(0,2) once, NML(0,1).
        "(NP (NP (NP (NN gene)) (NN expression)))",
        "(NP (NML (NN gene)) (NN expression))",
        (1, 3, 2, 0, 2, 2),
        id="a bracket that stands twice counts twice",
    ),
    pytest.param(
        # Reference: S(0,4) NP(0,2) VP(2,4) VP(3,4); traces are no words, and the NP over one is no bracket.
        # Prediction: S(0,4) NP(0,2) VP(2,4) NP(3,4): a wrong label.
        "(S (NP-SBJ-1 (DT the) (NN gene)) (VP (VBD was) (VP (VBN found) (NP-1 (-NONE- *)))))",
        "(S (NP (DT the) (NN gene)) (VP (VBD was) (NP (VBN found))))",
        (3, 4, 4, 0, 4, 4),
        id="traces are left out",
    ),
]


@pytest.mark.parametrize(("reference", "predicted", "by_hand"), COUNTED_BY_HAND)
def test_counts_of_brackets_equal_hand_computed_ones(reference: str, predicted: str, by_hand: tuple[int, ...]) -> None:
    counts = score_trees([read_tree(predicted)], [read_tree(reference)]).all
    found = (counts.matched, counts.reference, counts.predicted, counts.exact, counts.tagged, counts.words)
    assert found == by_hand


def test_brackets_of_a_corpus_are_added_up_before_they_are_divided() -> None:
    references, predicted = ([read_tree(str(case.values[side])) for case in COUNTED_BY_HAND] for side in (0, 1))
    report = score_trees(predicted, references)
    assert (report.all.matched, report.all.reference, report.all.predicted) == (18, 22, 20)
    assert report.all.precision == pytest.approx(100 * 18 / 20)
    assert report.all.recall == pytest.approx(100 * 18 / 22)
    assert report.all.f1 == pytest.approx(100 * 36 / 42)
    assert report.all.exact_match == pytest.approx(100 * 2 / 5)
    assert report.all.tagging_accuracy == pytest.approx(100 * 18 / 20)
    assert report.short == report.all


REFERENCE = read_tree("(S (NP (PRP we)) (VP (VBP go)))")


@pytest.mark.parametrize(
    ("predicted", "brackets"),
    [(None, 0), (read_tree("(S (NP (PRP we)) (VP (VBP went)))"), 3), (read_tree("(S (NP (PRP we)))"), 2)],
)
def test_a_tree_over_other_words_scores_zero_and_is_not_skipped(predicted: Tree | None, brackets: int) -> None:
    report = score_trees([predicted, REFERENCE], [REFERENCE, REFERENCE])
    assert (report.all.sentences, report.all.invalid) == (2, 1)
    assert (report.all.matched, report.all.reference, report.all.predicted) == (3, 6, 3 + brackets)
    assert report.all.words == 4
    assert report.all.tagged == 2


def test_short_sentences_are_counted_by_themselves() -> None:
    long = read_tree(f"(S {'(NN x) ' * 40} (. .))")
    report = score_trees([long, REFERENCE], [long, REFERENCE])
    assert (report.all.sentences, report.short.sentences) == (2, 1)
    wider = score_trees([long, REFERENCE], [long, REFERENCE], BracketSettings(short_length=41))
    assert wider.short.sentences == 2
    assert "at most 41 words: F1 100.00 %" in str(wider)


def test_a_reference_of_traces_alone_has_no_brackets() -> None:
    report = score_trees([None], [read_tree("(S (-NONE- *))")])
    assert report.all.f1 == 0.0
    assert report.all.sentences == 1


def test_unequal_numbers_of_trees_are_refused() -> None:
    with pytest.raises(TransduceError, match=r"needs a predicted one, but there are 1 and 0"):
        score_trees([], [REFERENCE])
