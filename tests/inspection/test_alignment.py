"""Test word alignment: heads are chosen by known alignments, and their alignments are right."""

import unicodedata
from pathlib import Path

import msgspec
import numpy as np
import pytest

from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.inspection.alignment import (
    HeadWeights,
    LinkCounts,
    ReferenceAlignment,
    SplitSentencePair,
    WordMaps,
    _expectation_maximization,
    _link_probabilities,
    align,
    align_pairs,
    alignment_error,
    choose_heads,
    fit_logistic,
    head_errors,
    head_features,
    learn_word_statistics,
    lexical_features,
    neighbor_features,
    probability,
    read_heads,
    word_maps,
    word_pair,
)

SUBJECTS = {"我": "I", "你": "you", "他": "he", "她": "she", "老师": "the teacher", "学生": "the student"}
VERBS = {"喜欢": "like", "看见": "see", "买": "buy", "吃": "eat", "卖": "sell"}
OBJECTS = {"苹果": "apples", "书": "books", "茶": "tea", "鱼": "fish"}


@pytest.fixture(scope="module")
def known() -> list[ReferenceAlignment]:
    """Return sentences of the toy corpus with 今天 and their reference alignments, in which articles have no links."""
    found = []
    for subject, subject_english in SUBJECTS.items():
        for verb, verb_english in VERBS.items():
            for thing, thing_english in OBJECTS.items():
                words = [*subject_english.split(), verb_english, thing_english, "today"]
                links = [(1, len(words) - 4), (2, len(words) - 3), (3, len(words) - 2), (0, len(words) - 1)]
                pair = word_pair(
                    f"今天{subject}{verb}{thing}。",
                    f"{' '.join(words)}.",
                    ["今天", subject, verb, thing],
                    words,
                )
                found.append(ReferenceAlignment(pair, frozenset(links)))
    return found


def test_word_statistics_align_better_than_attention_without_any_known_alignment(
    translator: Translator, known: list[ReferenceAlignment], tmp_path: Path
) -> None:
    pairs, expected = [each.pair for each in known], [each.links for each in known]
    statistics = learn_word_statistics(translator, pairs)
    found = list(align_pairs(translator, pairs, statistics))
    assert alignment_error(found, expected) < 0.5 * alignment_error(align_pairs(translator, pairs), expected)
    best = {given: max(words, key=lambda word: words[word]) for given, words in statistics.targets.items()}
    assert [best[word] for word in OBJECTS] == list(OBJECTS.values())
    assert all(sum(words.values()) == pytest.approx(1.0, abs=1e-2) for words in statistics.sources.values())
    assert len({layer for layer, _ in statistics.chosen}) == 1
    path = tmp_path / "statistics.json"
    path.write_bytes(msgspec.json.encode(statistics))
    assert read_heads(path) == statistics
    # A pair of words that were never seen is aligned by attention; an empty side has no links.
    assert list(align_pairs(translator, [word_pair("今天", "x y"), word_pair("", "x")], statistics))[1] == frozenset()
    with pytest.raises(TransduceError, match="at least 10 sentence pairs, but there are 3"):
        learn_word_statistics(translator, pairs[:3])


def test_expectation_maximization_of_two_pairs_by_hand() -> None:
    """The book and the house: "das" occurs with "the" twice, so it takes "the", and leaves the other words apart."""
    sources, targets = [["das", "haus"], ["das", "buch"]], [["the", "house"], ["the", "book"]]
    uniform = [np.full((2, 3), 1 / 3)] * 2
    table, posteriors = _expectation_maximization(sources, targets, uniform)
    assert max(table["das"], key=lambda word: table["das"][word]) == "the"
    assert table["haus"]["house"] > table["haus"]["the"]
    assert table["buch"]["book"] > table["buch"]["the"]
    assert posteriors[0].sum(axis=1) == pytest.approx([1.0, 1.0])
    sure = [np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])] * 2  # attention that is certain decides alone
    table, posteriors = _expectation_maximization(sources, targets, sure)
    assert table["haus"] == {"the": 1.0}
    assert np.array_equal(posteriors[1], sure[1])


def test_chosen_heads_align_better_than_all_heads_and_than_any_one(
    translator: Translator, known: list[ReferenceAlignment]
) -> None:
    learnt, rest = known[::2], known[1::2]
    pairs, expected = [each.pair for each in rest], [each.links for each in rest]
    plain = alignment_error(align_pairs(translator, pairs), expected)
    chosen = alignment_error(align_pairs(translator, pairs, choose_heads(translator, learnt)), expected)
    assert chosen < 0.2
    assert chosen < plain
    assert chosen < head_errors(word_maps(translator, pairs), rest).min()


def test_counts_of_links_equal_hand_computed_ones() -> None:
    counts = LinkCounts({}, {}, {})
    counts.add(["我", "茶"], ["I", "drink", "tea"], np.array([[1, 0], [0, 0], [0, 1]]))
    alone = counts.table(["我", "茶"], ["I", "drink", "tea"])
    counts.add(["茶"], ["tea"], np.array([[0]]))
    linked, total = counts.table(["茶", "我"], ["tea", "coffee"])
    assert linked.tolist() == [[1, 0, 1], [0, 0, 0], [1, 1, 0]]  # the last row and column: words with any link
    assert total.tolist() == [[2, 1, 2], [0, 0, 0], [2, 1, 0]]
    # Without its own links, a sentence pair has only what the other says.
    others = counts.table(["我", "茶"], ["I", "drink", "tea"]) - alone
    assert (
        others.tolist()
        == LinkCounts({"茶": (0, 1)}, {"tea": (0, 1)}, {"茶": {"tea": (0, 1)}})
        .table(["我", "茶"], ["I", "drink", "tea"])
        .tolist()
    )
    rate = lexical_features(np.stack([linked, total]))[0]
    assert rate[0, 0] > rate[1, 0] > rate[0, 1]  # linked in one of two; unknown; never linked


def test_words_that_known_alignments_link_are_linked(translator: Translator, known: list[ReferenceAlignment]) -> None:
    rest = known[1::2]
    heads = choose_heads(translator, known[::2])
    found = align_pairs(translator, [each.pair for each in rest], heads)
    assert alignment_error(found, [each.links for each in rest]) < 0.02


def test_files_of_heads_without_counts_still_align(translator: Translator, known: list[ReferenceAlignment]) -> None:
    """A file of an older version aligns as one whose lexical features have no weight."""
    heads = choose_heads(translator, known[:40])
    (maps,) = word_maps(translator, [known[0].pair])
    by_attention = len(head_features(maps.only(np.arange(len(heads.chosen)))))
    rest = len(heads.first)
    unweighted = msgspec.structs.replace(
        heads,
        first=heads.first[:by_attention] + (0.0,) * (rest - by_attention),
        second=heads.second[:by_attention] + (0.0,) * (rest - by_attention) + heads.second[rest:],
    )
    old = msgspec.structs.replace(
        heads,
        words=None,
        first=heads.first[:by_attention],
        second=heads.second[:by_attention] + heads.second[rest:],
    )
    encoded = msgspec.json.encode(old).replace(b',"words":null', b"")
    assert b"words" not in encoded
    opened = msgspec.json.decode(encoded, type=HeadWeights)
    found, expected = (_link_probabilities(maps, known[0].pair, each) for each in (opened, unweighted))
    assert np.array_equal(found, expected)
    assert np.ptp(found) > 0.0
    assert list(align_pairs(translator, [known[0].pair], opened))


def test_the_same_examples_choose_the_same_heads(translator: Translator, known: list[ReferenceAlignment]) -> None:
    heads = choose_heads(translator, known[:12])
    assert heads == choose_heads(translator, known[:12])
    assert msgspec.json.decode(msgspec.json.encode(heads), type=HeadWeights) == heads
    config = translator.model.config
    assert sorted(heads.chosen) == [
        (layer, head) for layer in range(config.num_decoder_layers) for head in range(config.num_heads)
    ]


def test_attention_of_pairs_in_a_batch_equals_each_alone(
    translator: Translator, known: list[ReferenceAlignment]
) -> None:
    pairs = [known[0].pair, word_pair("我吃鱼。", "I eat fish."), known[90].pair]
    together = word_maps(translator, pairs)
    for one, maps in zip(pairs, together, strict=True):
        (alone,) = word_maps(translator, [one])
        assert np.allclose(maps.heads, alone.heads, atol=1e-5)
        assert np.allclose(maps.nowhere, alone.nowhere, atol=1e-5)


def test_a_batch_is_no_larger_than_memory_allows(
    translator: Translator, known: list[ReferenceAlignment], monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [each.pair for each in known[:5]]
    wanted = [maps.heads for maps in word_maps(translator, pairs)]
    monkeypatch.setattr("transduce.inspection.alignment._MAX_WEIGHTS", 1)
    found = [maps.heads for maps in word_maps(translator, pairs)]
    assert all(np.allclose(one, other, atol=1e-5) for one, other in zip(found, wanted, strict=True))
    monkeypatch.setattr("transduce.inspection.alignment.MAX_TOKENS", 8)
    with pytest.raises(TransduceError, match=r"at most 8 tokens for its words to be aligned, but “今天"):
        list(word_maps(translator, [word_pair("今天老师喜欢苹果。" * 3, "x")]))


def test_attention_of_a_target_word_adds_up(translator: Translator) -> None:
    words = ["今天", "老师", "喜欢", "苹果", "。"]
    (maps,) = word_maps(translator, [word_pair("".join(words), "the teacher like apples today.", words)])
    assert np.allclose(maps.heads.sum(axis=-1) + maps.nowhere[..., 0], 1.0, atol=1e-5)


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize(("source", "target"), [("", "fish"), ("鱼", ""), ("", ""), (" ", "a b")])
def test_pairs_with_an_empty_side_have_no_links(
    translator: Translator, known: list[ReferenceAlignment], source: str, target: str, *, heads: bool
) -> None:
    chosen = choose_heads(translator, known[:12]) if heads else None
    assert list(align_pairs(translator, [word_pair(source, target)], chosen)) == [frozenset()]


def test_decomposed_text_is_aligned_as_the_vocabulary_sees_it(translator: Translator) -> None:
    composed, decomposed = (
        word_pair(*(unicodedata.normalize(form, text) for text in ("é élève 苹果 がぎ 가각", "the é tea")))
        for form in ("NFC", "NFD")
    )
    assert composed.source != decomposed.source
    for one, other in zip(*(next(word_maps(translator, [pair])) for pair in (composed, decomposed)), strict=True):
        assert np.array_equal(one, other)


def test_too_few_examples_are_refused(translator: Translator, known: list[ReferenceAlignment]) -> None:
    with pytest.raises(TransduceError, match="at least 10 known alignments, but there are 9"):
        choose_heads(translator, known[:9])


def test_a_link_to_a_word_that_is_not_there_is_refused(translator: Translator, known: list[ReferenceAlignment]) -> None:
    wrong = ReferenceAlignment(known[0].pair, frozenset([(0, 9)]))
    with pytest.raises(TransduceError, match="The known link 0-9 has a word that does not exist"):
        choose_heads(translator, [*known[:10], wrong])


def test_another_models_heads_are_refused(translator: Translator, known: list[ReferenceAlignment]) -> None:
    heads = msgspec.structs.replace(choose_heads(translator, known[:12]), num_layers=6)
    with pytest.raises(TransduceError, match="chosen for a model with 6 decoder layers"):
        list(align_pairs(translator, [known[0].pair], heads))


def test_the_alignment_error_rate_equals_the_hand_computed_value() -> None:
    found = [frozenset([(0, 0), (1, 1)]), frozenset([(0, 1)])]
    expected = [frozenset([(0, 0), (1, 2), (2, 2)]), frozenset([(0, 1)])]
    # Two of three found links are right, of four known ones.
    assert alignment_error(found, expected) == pytest.approx(1 - 2 * 2 / (3 + 4))
    assert alignment_error([], []) == 0.0


def test_tokens_are_split_only_at_words_that_are_passed() -> None:
    text, target = "今天老师喜欢苹果。", "the teacher like apples today."
    given = word_pair(text, target, list(text), target.split())
    plain = word_pair(text, target)
    assert isinstance(plain, SplitSentencePair)
    assert plain.source_words == given.source_words
    assert not plain.cut_source
    assert given.cut_source


def test_logistic_regression_recovers_the_true_coefficients() -> None:
    generator = np.random.default_rng(1)
    features = [generator.normal(size=(3, 6, 5)) for _ in range(40)]
    for each in features:
        each[2] = 1.0
    true = np.array([2.0, -1.0, -0.5])
    links = [(generator.random((6, 5)) < probability(each, true)).astype(float) for each in features]
    assert np.allclose(fit_logistic(features, links), true, atol=0.35)


def test_neighbor_features_beyond_the_sentence_are_zero() -> None:
    answer = np.array([[0.9]])
    features = neighbor_features(answer)
    assert np.isfinite(features).all()
    assert features[4, 0, 0] == 0.9  # the pair itself, in the middle of the nine around it
    assert features[[0, 1, 2, 3, 5, 6, 7, 8], 0, 0].max() == 0.0


def test_head_features_include_the_values_of_neighboring_words() -> None:
    heads = np.arange(6.0).reshape(1, 3, 2) / 10
    features = head_features(WordMaps(heads, np.zeros((1, 3, 1))))
    # One head and the mean, each by row and by column: four of the pair itself, then four of the next target word.
    assert np.allclose(features[0], heads[0])
    assert np.allclose(features[4][:2], heads[0][1:])
    assert np.allclose(features[4][2], 0.0)


def test_sentences_are_aligned_by_their_words(
    translator: Translator, known: list[ReferenceAlignment], tmp_path: Path
) -> None:
    sources, targets = ([getattr(each.pair, side) for each in known[:6]] for side in ("source", "target"))
    pairs = [word_pair(*pair) for pair in zip(sources, targets, strict=True)]
    assert align(translator, sources, targets) == list(align_pairs(translator, pairs))
    heads = choose_heads(translator, known)
    (tmp_path / "heads.json").write_bytes(msgspec.json.encode(heads))
    expected = list(align_pairs(translator, pairs, heads))
    assert align(translator, sources, targets, heads=heads) == expected
    assert align(translator, sources, targets, heads=tmp_path / "heads.json") == expected
    with pytest.raises(TransduceError, match="6"):
        align(translator, sources, targets[:5])
