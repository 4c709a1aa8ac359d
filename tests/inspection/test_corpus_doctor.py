"""Test that the corpus doctor finds and counts inserted faults with their lines, and none in a sound corpus."""

import gzip
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.inspection.corpus_doctor import CorpusReport, Finding, examine_corpus
from transduce.inspection.corpus_doctor.alignment import Alignment, align, side_features
from transduce.inspection.corpus_doctor.findings import SIMPLIFIED, TRADITIONAL
from transduce.inspection.corpus_doctor.report import html_page
from transduce.text.languages import main_script
from transduce.text.tokenizer import Tokenizer

WriteLines = Callable[[str, Iterable[str]], Path]
Sides = tuple[list[str], list[str]]
NEAR_LINES = 50


def read(path: Path) -> list[str]:
    return gzip.open(path, "rt", encoding="utf-8", newline="\n").read().split("\n")[:-1]


@pytest.fixture(scope="module")
def zh_en(data_folder: Path) -> Sides:
    folder = data_folder / "tatoeba-zh-en"
    return read(folder / "train.zh.gz")[:6000], read(folder / "train.en.gz")[:6000]


@pytest.fixture(scope="module")
def de_en(data_folder: Path) -> Sides:
    folder = data_folder / "tatoeba-de-en"
    return read(folder / "train.de.gz")[:6000], read(folder / "train.en.gz")[:6000]


@pytest.fixture(params=["zh_en", "de_en"])
def corpus(request: pytest.FixtureRequest) -> Sides:
    """Return 6,000 real pairs of a language pair; tests run for each of two language pairs."""
    sides: Sides = request.getfixturevalue(request.param)
    return sides


def found(source: list[str], target: list[str]) -> Alignment:
    return align(side_features(source), side_features(target))


def ranges(source: list[str], target: list[str]) -> list[tuple[int, int | None]]:
    """Return the first line and the lag of each misaligned range of lines that is found."""
    return [(each.first_line, each.lag) for each in found(source, target).ranges]


# --- where the files lose step ---


def test_a_sound_corpus_keeps_step(corpus: Sides) -> None:
    alignment = found(*corpus)
    assert [(each.first_line, each.last_line, each.lag) for each in alignment.ranges] == [(1, 6000, 0)]
    assert alignment.unlikely_count < 30
    assert alignment.mean_nats > 2.0


def test_wrong_pairs_all_over_the_corpus_are_unlikely(corpus: Sides) -> None:
    """Many wrong pairs make the evidence weaker, which must not hide them."""
    source, target = corpus
    mixed = list(target)
    for first in range(0, 5_980, 20):  # one pair in ten
        mixed[first], mixed[first + 7] = target[first + 7], target[first]
    sound, wrong = found(source, target).unlikely_count, found(source, mixed).unlikely_count
    assert 150 < wrong - sound < 600


@pytest.mark.parametrize("at", [60, 3000, 5900])
def test_a_line_missing_from_the_target(corpus: Sides, at: int) -> None:
    source, target = corpus
    (first, after) = ranges(source, target[: at - 1] + target[at:])
    assert first == (1, 0)
    assert after[1] == -1
    assert abs(after[0] - at) <= NEAR_LINES


def test_lines_missing_from_the_source_and_made_up_for_later(corpus: Sides) -> None:
    source, target = corpus
    shifted = source[:1999] + source[2002:4500] + ["。", "。", "。"] + source[4500:]
    first, off, after = ranges(shifted, target)
    assert (first, off[1], after[1]) == ((1, 0), 3, 0)
    assert abs(off[0] - 2000) <= NEAR_LINES
    assert abs(after[0] - 4498) <= NEAR_LINES


def test_a_gap_of_900_lines_is_located(corpus: Sides) -> None:
    source, target = corpus
    found = ranges(source, target[:2000] + target[2900:])
    assert found[0] == (1, 0)
    assert found[-1][1] == -900
    assert abs(found[1][0] - 2001) <= NEAR_LINES
    assert abs(found[-1][0] - 2901) <= NEAR_LINES


def test_a_shuffled_part_has_no_translations(zh_en: Sides) -> None:
    source, target = zh_en
    part = target[3000:4000]
    random.Random(1).shuffle(part)
    first, off, after = ranges(source, target[:3000] + part + target[4000:])
    assert (first, off[1], after[1]) == ((1, 0), None, 0)
    assert abs(off[0] - 3001) <= NEAR_LINES
    assert abs(after[0] - 4001) <= NEAR_LINES


@pytest.mark.parametrize("lines", [200, 2000])
def test_a_target_in_another_order_is_not_in_step(write_lines: WriteLines, corpus: Sides, lines: int) -> None:
    source, target = corpus[0][:lines], corpus[1][:lines]
    mixed = random.Random(1).sample(target, lines)
    for other, severity in ((target, "fine"), (mixed, "problem"), (corpus[1][3000 : 3000 + lines], "problem")):
        report = examine_corpus([str(write_lines("a.src", source))], [str(write_lines("a.tgt", other))])
        finding = next(each for each in report.findings if each.name == "alignment")
        assert finding.severity == severity
        assert finding.message.startswith("the lines do not seem to correspond") == (severity == "problem")
        assert report.passed == (severity != "problem")


def test_products_with_the_same_codes_correspond_although_one_side_has_prices(write_lines: WriteLines) -> None:
    draw = random.Random(1)
    codes = [f"{draw.choice('ABCXYZ')}{draw.randint(1000, 99999)}-{draw.choice('abc')}" for _ in range(1000)]
    prices = [f"{draw.randint(1, 9)}.{draw.randint(100, 999)},{draw.randint(10, 99)}" for _ in codes]
    ends = [f"http://ex.com/{code} x{number}@ex.org" for number, code in enumerate(codes)]
    source = [f"Artikel {a} kostet {b} € mehr {c}" for a, b, c in zip(codes, prices, ends, strict=True)]
    target = [f"Item {a} costs more {c}" for a, c in zip(codes, ends, strict=True)]
    finding = examine(write_lines, source, target).finding("alignment")
    assert finding.message == "the files are aligned from the first line to the last"
    mixed = random.Random(2).sample(target, len(target))
    assert examine(write_lines, source, mixed).finding("alignment").message.startswith("the lines do not seem")


def test_a_corpus_that_is_sorted_by_length(zh_en: Sides) -> None:
    """Neighbours are alike there, so lengths say little."""
    pairs = sorted(zip(*zh_en, strict=True), key=lambda pair: len(pair[1]))
    source, target = ([pair[side] for pair in pairs] for side in (0, 1))
    assert ranges(source, target) == [(1, 0)]
    first, after = ranges(source, target[:3999] + target[4000:])
    assert (first, after[1]) == ((1, 0), -1)
    assert abs(after[0] - 4000) <= NEAR_LINES


def test_the_report_names_the_line_and_which_side_to_look_at(zh_en: Sides, write_lines: WriteLines) -> None:
    source, target = zh_en[0][:1500], zh_en[1][:1500]
    report = examine(write_lines, source, target[:699] + target[700:])
    alignment = report.finding("alignment")
    assert not report.passed
    assert report.finding("line counts").message.startswith("1,500 lines and 1,499, which training refuses")
    assert "their translations 1 line earlier in the target" in alignment.message
    assert alignment.severity == "problem"
    assert abs(report.line_ranges[1].first_line - 700) <= NEAR_LINES


def test_which_side_has_too_many_lines_follows_from_how_the_lag_changes(
    zh_en: Sides, write_lines: WriteLines, de_en: Sides
) -> None:
    source, target = zh_en[0][:4000], zh_en[1][:4000]
    damaged = target[:1000] + de_en[0][:5] + target[1000:2000] + target[2002:]
    for files, first, then in (
        ((source, damaged), "5 lines later", "3 lines later"),
        ((damaged, source), "5 lines earlier", "3 lines earlier"),
    ):
        message = examine(write_lines, *files).finding("alignment").message
        told = [part for part in message.split("; ") if "their translations" in part]
        assert len(told) == 2
        sides = ("target", "source") if files[0] is source else ("source", "target")
        for part, where, side in zip(told, (first, then), sides, strict=True):
            assert where in part
            assert f"(just before, the {side} has extra lines" in part


# --- lines ---


def examine(
    write_lines: WriteLines,
    source: list[str],
    target: list[str],
    test: Sides | None = None,
    tokenizer: Tokenizer | None = None,
) -> CorpusReport:
    paths = [[str(write_lines(name, lines))] for name, lines in (("a.zh", source), ("a.en", target))]
    tests = [[str(write_lines(f"test.{n}", lines))] for n, lines in enumerate(test)] if test else [[], []]
    return examine_corpus(paths[0], paths[1], test_source=tests[0], test_target=tests[1], tokenizer=tokenizer)


def places(finding: Finding) -> list[str]:
    return [example.location.rpartition("/")[2] for example in finding.examples]


SOURCE = [f"这是第{number}个句子，我们很喜欢。" for number in range(60)]
TARGET = [f"This is sentence number {number}, and we like it." for number in range(60)]


def test_a_sound_corpus_has_no_findings(write_lines: WriteLines) -> None:
    report = examine(write_lines, SOURCE, TARGET, (["别的话。"], ["Other words."]))
    assert [finding.name for finding in report.findings if finding.severity != "fine"] == []
    assert report.passed
    assert "too few to tell" in report.finding("alignment").message


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("control characters", "我\x00喜欢。", "I like\x01 it."),
        ("line separators", "我\u2028喜欢。", "I like\u0085 it."),
        ("line separators", "我\r喜欢。", "I like\r it."),
        ("tabs", "我\t喜欢。", "I like\tit."),
        ("invisible characters", "我\ufeff喜欢。", "I like\u200b it."),
        ("escapes", "我\\ud83d喜欢。", "I like \\u00e9t\\u00e9."),
        ("markup", "我&amp;喜欢。", "I <b>like</b> it."),
        ("damaged characters", "我\ufffd喜欢。", "I like cafÃ©s."),
        ("damaged characters", "æ\x88\x91喜欢。", "That isnâ\x80\x99t all."),
        ("damaged characters", "ä½\xa0å¥½", "You are ä½\xa0å¥½."),
        ("damaged characters", "æˆ‘ä»¬å–œæ¬¢", "We like æˆ‘ä»¬ here."),
        ("damaged characters", "我锟斤拷锟斤拷。", "I 锟斤拷."),
        ("damaged characters", "浣犲ソ锛屼笘鐣岋紒", "He said 鈥渄one."),
        ("no letters", "@#$%……", "*** !?"),
        ("full-width letters", "我喜欢ＡＢＣ。", "I like １２３."),
        ("mixed punctuation", "我喜欢,你也喜欢.", "I like it，you too。"),
        ("empty lines", "", ""),
        ("white space only", " ", "\u3000 "),
        ("wrong script", "I like it very much.", "我喜欢。"),
    ],
)
def test_each_kind_of_line_is_found_on_either_side(
    write_lines: WriteLines, name: str, source: str, target: str
) -> None:
    sources, targets = SOURCE.copy(), TARGET.copy()
    sources[10], sources[40], targets[20] = source, source, target
    finding = examine(write_lines, sources, targets).finding(name)
    assert finding.count == 3
    assert sorted(places(finding)) == ["a.en:21", "a.zh:11", "a.zh:41"]
    assert finding.severity != "fine"


@pytest.mark.parametrize("share", [0.04, 0.1, 0.25])
@pytest.mark.parametrize("fault", ["swapped", "copied"])
def test_lines_of_the_other_side_are_found_however_many(write_lines: WriteLines, fault: str, share: float) -> None:
    sources, targets = SOURCE * 5, TARGET * 5
    many = int(share * len(sources))
    for number in range(many):
        sources[number], other = targets[number], sources[number]
        targets[number] = other if fault == "swapped" else targets[number]
    finding = examine(write_lines, sources, targets).finding("wrong script")
    assert finding.count == many * (2 if fault == "swapped" else 1)
    assert finding.severity == "problem"


def test_a_side_may_have_two_scripts(write_lines: WriteLines) -> None:
    serbian = [f"Ово је {number}. реченица" if number % 3 else f"Ovo je {number}. rečenica" for number in range(60)]
    assert examine(write_lines, serbian, TARGET).finding("wrong script").count == 0
    latin = ["iPhone Pro Max" if number % 6 == 0 else line for number, line in enumerate(SOURCE)]
    assert examine(write_lines, latin, TARGET).finding("wrong script").count == 0


def test_a_side_whose_lines_are_all_quoted_is_found(write_lines: WriteLines) -> None:
    quoted = [f'"{line}"' for line in TARGET]
    finding = examine(write_lines, SOURCE, quoted).finding("quoted side")
    assert (finding.count, finding.severity, places(finding)[0]) == (60, "problem", "a.en:1")
    for source, target in ((SOURCE, [*quoted[:30], *TARGET[30:]]), ([f'"{line}"' for line in SOURCE], quoted)):
        assert examine(write_lines, source, target).finding("quoted side").count == 0  # speech, on one side or both


def test_lines_that_mix_simplified_and_traditional_chinese_are_found(write_lines: WriteLines) -> None:
    assert not SIMPLIFIED & TRADITIONAL
    assert len(SIMPLIFIED) > 300
    sources = SOURCE.copy()
    sources[7], sources[8] = "這是一個問題，我們很喜歡。", "我们都喜欢這個。"
    finding = examine(write_lines, sources, TARGET).finding("mixed Chinese scripts")
    assert (finding.count, places(finding)) == (2, ["a.zh:8", "a.zh:9"])


def test_japanese_is_not_taken_for_mixed_chinese_scripts(write_lines: WriteLines) -> None:
    sources = [f"{number}時に東京の学校で会いましょう。" for number in range(60)]
    assert examine(write_lines, sources, TARGET).finding("mixed Chinese scripts").count == 0


def test_a_line_of_the_other_language(de_en: Sides, write_lines: WriteLines) -> None:
    source, target = de_en[0][:3000], de_en[1][:3000]
    source[1000] = "I would like to know what you are doing here today."
    target[2000] = "Ich möchte wissen, was du heute hier machst und warum."
    finding = examine(write_lines, source, target).finding("wrong language")
    assert (finding.count, places(finding)) == (2, ["a.zh:1001", "a.en:2001"])


def test_the_main_script_of_a_line_is_detected() -> None:
    assert [
        main_script(line) for line in ("我喜欢", "Tom欠Mary三十元。", "Привет, мир", "Hello 字", "123", "한국어")
    ] == [
        "Han and kana",
        "Han and kana",
        "Cyrillic",
        "Latin",
        None,
        "Hangul",
    ]


# --- pairs ---


def test_duplicates_copies_and_many_translations(write_lines: WriteLines) -> None:
    sources, targets = SOURCE.copy(), TARGET.copy()
    sources[30], targets[30] = sources[3], targets[3]
    targets[40] = sources[40]
    sources[50] = sources[5]
    report = examine(write_lines, sources, targets)
    assert (report.finding("duplicates").count, places(report.finding("duplicates"))) == (1, ["a.zh:31"])
    assert (report.finding("copies").count, places(report.finding("copies"))) == (1, ["a.zh:41"])
    assert report.finding("several translations").count == 1


def test_overlap_with_the_test_set_under_a_thin_disguise(write_lines: WriteLines) -> None:
    test = (["这是第3个句子 我们很喜欢！", "新的。"], ["THIS is sentence number 9 and we like it", "New."])
    report = examine(write_lines, SOURCE, TARGET, test)
    assert (report.finding("test sources").count, places(report.finding("test sources"))) == (1, ["a.zh:4"])
    assert (report.finding("test targets").count, places(report.finding("test targets"))) == (1, ["a.en:10"])
    assert report.finding("test pairs").count == 0
    assert not report.passed
    both = examine(write_lines, SOURCE, TARGET, ([SOURCE[5]], [TARGET[5]]))
    assert both.finding("test pairs").count == 1


def test_lengths_and_unknown_tokens_by_a_models_vocabulary(write_lines: WriteLines, trained: Path) -> None:
    sources, targets = SOURCE.copy(), TARGET.copy()
    sources[4], targets[4] = "我" * 300, "I " * 300
    sources[5] = "我喜欢。" * 20
    report = examine(write_lines, sources, targets, tokenizer=Tokenizer.load(trained))
    assert report.finding("long lines").count == 2
    assert report.finding("unequal lengths").count >= 1
    unknown = report.finding("unknown tokens")
    assert unknown.severity == "problem"
    assert "by the model's vocabulary" in unknown.message


def test_rare_characters_are_no_fault_where_training_would_learn_the_same(write_lines: WriteLines) -> None:
    rare = [chr(0x4E00 + n) * 5 for n in range(len(SOURCE))]
    report = examine(write_lines, [line + more for line, more in zip(SOURCE, rare, strict=True)], TARGET)
    unknown = report.finding("unknown tokens")
    assert unknown.share > 0.01
    assert unknown.severity == "look"


# --- files and pages ---


def test_several_files_have_their_own_line_numbers(write_lines: WriteLines) -> None:
    source = [str(write_lines(name, lines)) for name, lines in (("1.zh", SOURCE), ("2.zh", ["我\t你", *SOURCE[1:]]))]
    target = [str(write_lines(name, TARGET)) for name in ("1.en", "2.en")]
    assert places(examine_corpus(source, target).finding("tabs")) == ["2.zh:1"]


def test_headers_and_lines_without_two_columns_of_a_table_are_on_neither_side(write_lines: WriteLines) -> None:
    lines = ["source\ttarget", *(f"Satz {n}\tsentence {n}" for n in range(30)), "one column", "a\tb", "c\tc"]
    report = examine_corpus([str(write_lines("corpus.tsv", lines))])
    assert (report.source_lines, report.target_lines) == (32, 32)
    assert report.finding("not UTF-8").count == report.finding("duplicates").count == 0
    (copy,) = report.finding("copies").examples
    assert (copy.location.rpartition(":")[2], copy.text) == ("34", "c")
    malformed = report.finding("table lines")
    assert (malformed.count, malformed.message) == (1, "1 line without two columns; training leaves them out")
    assert [example.location.rpartition(":")[2] for example in malformed.examples] == ["32"]


def test_punctuation_of_another_width_and_swapped_sides_are_described(write_lines: WriteLines) -> None:
    def examined(chinese: str, english: str) -> CorpusReport:
        sides = ([*SOURCE, chinese], [*TARGET, english])
        return examine_corpus(*([str(write_lines(name, side))] for name, side in zip("ab", sides, strict=True)))

    half = examined("我喜欢,你也喜欢.", "I like it, you too.").finding("mixed punctuation").message
    assert half == "1 line with half-width (ASCII) punctuation, while the rest of the side has full-width punctuation"
    full = examined("我喜欢，你也喜欢。", "I like it，you too。").finding("mixed punctuation").message
    assert full == "1 line with full-width punctuation, while the rest of the side has half-width (ASCII) punctuation"
    swapped = examined("I like it", "我喜欢").finding("wrong script").message
    assert swapped.endswith("; 1 pair may have the sides swapped")


def test_lines_of_a_table_with_a_header_are_those_of_the_file(write_lines: WriteLines) -> None:
    rows = ["英文,中文", *(f"sentence {number},第{number}句" for number in range(30)), 'copy,"copy"', '"a\nb",两行']
    path = str(write_lines("table.csv", rows))
    report = examine_corpus([path], languages=("zh", "en"))
    assert (report.source_lines, report.target_lines) == (32, 32)
    (copy,) = report.finding("copies").examples
    assert (copy.location, copy.text) == (f"{path}:32", "copy")
    assert examine_corpus([path], columns=("中文", "英文")).findings == report.findings


def test_tables_that_training_converts_are_examined_by_their_own_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "corpus.csv"
    rows = [f'"Satz {n}, sagte er",sentence {n}' for n in range(30)]
    table.write_text("\n".join(["source,target", *rows, "Haus,Haus", ""]), "utf-8")
    (copy,) = examine_corpus([str(table)]).finding("copies").examples
    assert (copy.location, copy.text) == (f"{table}:32", "Haus")
    assert main(["doctor", "--source", str(table)]) == 1  # a copy in so few lines is a fault
    assert "copies" in capsys.readouterr().out


def test_files_that_are_empty_or_not_utf_8_are_refused(tmp_path: Path, write_lines: WriteLines) -> None:
    (tmp_path / "gbk").write_bytes(("我喜欢你\n" * 30).encode("gbk"))
    (tmp_path / "empty").write_bytes(b"")
    good = str(write_lines("good", ["a"] * 30))
    with pytest.raises(TransduceError, match=r"gbk:20: files must be UTF-8, but 20 of the first 20 lines are not"):
        examine_corpus([str(tmp_path / "gbk")], [good])
    with pytest.raises(TransduceError, match="empty is empty"):
        examine_corpus([good], [str(tmp_path / "empty")])


def test_a_report_escapes_its_lines_and_survives_json(write_lines: WriteLines) -> None:
    sources = SOURCE.copy()
    sources[3] = "我<script>alert(1)</script>\x1b[2J。"
    report = examine(write_lines, sources, TARGET)
    text = str(report)
    assert text.startswith("The doctor on ")
    assert "a.zh:4  我<script>alert(1)</script>\\x1b[2J。" in text
    assert "\x1b" not in text
    problems = sum(finding.severity == "problem" for finding in report.findings)
    assert f"{problems} to fix" in text
    assert ("FAULT" in text) == (problems > 0)
    assert msgspec.json.decode(msgspec.json.encode(report), type=CorpusReport) == report
    page = html_page(report)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count("<tr>") == len(report.findings)
