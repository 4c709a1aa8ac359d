"""Test which pairs are dropped, and the counts that are reported."""

import pytest

from transduce.errors import TransduceError
from transduce.text import FilterReport, FilterSettings
from transduce.text.filters import HELD_OUT, REASONS, PairFilter, are_exchanged, pair_digest


def reason(source: str, target: str, settings: FilterSettings | None = None) -> str | None:
    return PairFilter(settings or FilterSettings()).text_reason(source, target)


def test_an_empty_side_is_dropped() -> None:
    assert reason("", "a") == reason("a", " \t\u3000") == "empty side"
    assert reason("", "a", FilterSettings(drop_empty=False)) is None


@pytest.mark.parametrize("character", ["\x00", "\x07", "\x0b", "\x1b", "\x7f", "\x9f", "\n"])
def test_control_characters_are_dropped(character: str) -> None:
    assert reason("a", f"b{character}c") == reason(f"a{character}", "b") == "control characters"


@pytest.mark.parametrize("character", ["\t", "\r", "\u0085", "\u2028", "\u200d", "\ufeff"])
def test_tabs_separators_and_joiners_are_kept(character: str) -> None:
    assert reason(f"a{character}b", "c") is None


def test_identical_sides_are_dropped_unless_drop_identical_is_off() -> None:
    assert reason("Tom", "Tom ") == "source and target identical"
    assert reason("Tom", "tom") is None
    assert reason("Tom", "Tom", FilterSettings(drop_identical=False)) is None


@pytest.mark.parametrize(
    ("languages", "source", "target", "exchanged"),
    [
        (("zh", "en"), "I like tea.", "我喜欢茶。", True),
        (("zho_Hans", "eng_Latn"), "I like tea.", "我喜欢茶。", True),
        (("en", "zh"), "我喜欢茶。", "I like tea.", True),
        (("zh", "en"), "我喜欢茶。", "I like tea.", False),
        (("zh", "en"), "iPhone", "iPhone", False),
        (("zh", "en"), "I like tea.", "I like tea.", False),
        (("zh", "en"), "我喜欢茶。", "我喜欢茶。", False),
        (("en", "ru"), "Где же ты был вчера?", "Where have you been?", True),
        (("en", "ru"), "Москва", "Moscow", False),  # a name may stay as it is
        (("en", "sr"), "Београд је главни град", "Belgrade is the capital", False),  # Serbian has both scripts
        (("de", "en"), "It was not the first time.", "Es war nicht das erste Mal.", True),
        (("de", "en"), "Es war nicht das erste Mal.", "It was not the first time.", False),
        (("de", "en"), "Tom.", "Tom!", False),
        (("de", "en"), "Internet Explorer 11", "Das ist der Browser von Microsoft", False),
        (("en", "cs"), "Dva muži stojí u kamen a dívají se na něj.", "Two men stand at a stove and look at it.", True),
        (("en", "en"), "It was not the first time.", "I know.", False),
        (("cs", "pl"), "Dwóch mężczyzn stoi przy kuchence.", "Dva muži stojí u kamen.", False),  # not sure enough
    ],
)
def test_sides_seem_exchanged_only_if_both_are_in_the_language_of_the_other(
    languages: tuple[str, str], source: str, target: str, exchanged: bool
) -> None:
    assert are_exchanged(source, target, languages) == exchanged


def test_the_digest_distinguishes_pairs_by_both_sides() -> None:
    digests = [pair_digest(*sides) for sides in [("a", "b"), ("a", "c"), ("b", "a"), ("ab", ""), ("a", "b")]]
    assert len(set(digests)) == 4
    assert digests[0] == digests[4]
    assert all(len(digest) == 8 for digest in digests)


def test_long_sides_are_dropped() -> None:
    pairs = PairFilter(FilterSettings(max_tokens=10))
    assert pairs.length_reason(10, 10) is None
    assert pairs.length_reason(11, 10) == pairs.length_reason(10, 11) == "too many tokens"


def test_unequal_lengths_are_dropped_but_short_sentences_never_clash() -> None:
    pairs = PairFilter(FilterSettings())
    assert all(pairs.length_reason(a, b) is None for a in range(1, 6) for b in range(1, 6))
    assert pairs.length_reason(10, 45) is pairs.length_reason(45, 10) is None
    assert pairs.length_reason(10, 46) == pairs.length_reason(46, 10) == "lengths too unequal"
    assert pairs.length_reason(1, 10) == "lengths too unequal"


def test_the_report_counts_and_shows_the_first_of_each() -> None:
    report = FilterReport(read=2_000, kept=1_990, held_out=7, carriage_returns=3, byte_order_marks=1)
    report.dropped |= {"too many tokens": 2, "empty side": 1}
    report.examples |= {"too many tokens": "train.zh:9", "empty side": "train.zh:40"}
    assert report.lines() == [
        "2,000 pairs read, 1,990 kept, 7 held out",
        "1 dropped: empty side (first: train.zh:40)",
        "2 dropped: too many tokens (first: train.zh:9)",
        "3 carriage returns removed at line ends",
        "1 byte order mark removed at file starts",
    ]


def test_reports_use_singular_and_plural() -> None:
    assert FilterReport(read=1, kept=1).lines() == ["1 pair read, 1 kept"]
    assert FilterReport(read=2, kept=2).lines("line") == ["2 lines read, 2 kept"]


def test_the_report_uses_the_words_of_what_was_read() -> None:
    report = FilterReport(read=3, kept=1)
    report.dropped |= {"same source as a held-out pair": 1, "empty side": 1}
    report.examples |= {"same source as a held-out pair": "a.trees:9", "empty side": "a.trees:4"}
    held_out = "name a dev set (--dev-source) to train on them"
    assert report.lines("tree") == [
        "3 trees read, 1 kept",
        "1 dropped: empty side (first: a.trees:4)",
        "1 dropped: same source as a held-out tree (first: a.trees:9)",
        f"many trees have the source of a held-out one: {held_out}",
    ]
    assert "1 dropped: empty (first: a.trees:4)" in report.lines("line")


def test_settings_out_of_range() -> None:
    with pytest.raises(TransduceError, match=r"`data\.filters\.max_tokens` must be at least 1, but is 0"):
        FilterSettings(max_tokens=0)
    with pytest.raises(TransduceError, match=r"`data\.filters\.max_length_ratio` must be at least 1, but is 0\.5"):
        FilterSettings(max_length_ratio=0.5)
    with pytest.raises(TransduceError, match=r"`data\.filters\.max_length_ratio` must be at least 1, but is nan"):
        FilterSettings(max_length_ratio=float("nan"))


@pytest.mark.parametrize(("read", "told"), [(2_000, False), (1_000, True)])
def test_losing_many_pairs_to_held_out_sources_is_reported_with_a_remedy(read: int, told: bool) -> None:
    dropped = dict.fromkeys(REASONS, 0) | {HELD_OUT: 60}
    report = FilterReport(read=read, kept=read - 70, held_out=10, dropped=dropped, examples={HELD_OUT: "a:1"})
    assert any("name a dev set (--dev-source)" in line for line in report.lines()) == told
