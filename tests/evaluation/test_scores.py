"""Test that scores and signatures equal the sacrebleu command's, and that misleading scores cause warnings."""

import gzip
import hashlib
import json
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sacrebleu import __version__ as sacrebleu_version

from transduce.errors import TransduceError
from transduce.evaluation import MetricScore, ScoreReport, score
from transduce.evaluation.scores import mean_words_per_line
from transduce.ui_language import localized
from transduce.ui_language_choice import use_ui_language

ENGLISH = [
    "I really care about your future.",
    "You have entered a danger zone.",
    "The one with the long beard is Tom.",
    "It's raining, isn't it?",
]
ENGLISH_OUTPUT = [
    "I really care for your future.",
    "You entered the danger zone.",
    "The one with the long beard is Tom.",
    "It's raining isn't it?",
]
CHINESE = ["我真的很关心你的未来。", "你进入了危险区。", "长胡子的是汤姆。", "他们昨天去了北京。"]
CHINESE_OUTPUT = ["我真的关心你的未来。", "你进入了危险区域。", "长胡子的是汤姆。", "他们昨天去北京了。"]


def shorten(lines: list[str], separator: str) -> list[str]:
    """Return lines as a bad system would translate them: every third word (or character) is missing."""
    words = (line.split(separator) if separator else list(line) for line in lines)
    return [separator.join(word for index, word in enumerate(group) if index % 3 != 1) for group in words]


def read_corpus(path: Path) -> list[str]:
    if not path.exists():
        pytest.skip(f"{path} is missing: set TRANSDUCE_DATA to the folder of the corpora")
    return gzip.decompress(path.read_bytes()).decode("utf-8").removesuffix("\n").split("\n")


def run_sacrebleu(folder: Path, hypotheses: list[str], references: list[str], *options: str) -> list[dict[str, object]]:
    """Return the scores that the sacrebleu command reports for these lines, [BLEU, chrF]."""
    for name, lines in {"hypotheses": hypotheses, "references": references}.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8"))
    command = [
        sys.executable,
        "-m",
        "sacrebleu",
        "references",
        "-i",
        "hypotheses",
        "-m",
        "bleu",
        "chrf",
        "-w",
        "8",
    ]
    done = subprocess.run([*command, *options], cwd=folder, capture_output=True, check=True, timeout=60)
    results: list[dict[str, object]] = json.loads(done.stdout)
    return results


def assert_same(report: ScoreReport, results: list[dict[str, object]]) -> None:
    for ours, theirs in zip((report.bleu, report.chrf), results, strict=True):
        assert ours.value == pytest.approx(theirs["score"], abs=1e-7)
        assert ours.signature == theirs["signature"]
    assert 1 < report.bleu.value < 99


def test_english_scores_equal_the_sacrebleu_commands(tmp_path: Path) -> None:
    results = run_sacrebleu(tmp_path, ENGLISH_OUTPUT, ENGLISH)
    assert_same(score(ENGLISH_OUTPUT, ENGLISH, target_language="en"), results)


def test_lowercase_scores_without_tokenizer_equal_the_sacrebleu_commands(tmp_path: Path) -> None:
    output = [line.upper() for line in ENGLISH_OUTPUT]
    options = ["--tokenize", "none", "--lowercase", "--chrf-lowercase"]
    report = score(output, ENGLISH, target_language="en", tokenize="none", lowercase=True)
    assert_same(report, run_sacrebleu(tmp_path, output, ENGLISH, *options))
    assert report.exact_match == 1


def test_scores_of_a_chinese_test_set_equal_the_sacrebleu_commands(tmp_path: Path, data_folder: Path) -> None:
    references = read_corpus(data_folder / "tatoeba-zh-en" / "test.zh.gz")
    output = shorten(references, "")
    results = run_sacrebleu(tmp_path, output, references, "--tokenize", "zh")
    assert_same(score(output, references, target_language="zh"), results)


def test_chinese_is_not_scored_as_if_it_had_spaces() -> None:
    right = score(CHINESE_OUTPUT, CHINESE, target_language="zh")
    wrong = score(CHINESE_OUTPUT, CHINESE, target_language="zh", tokenize="13a")
    assert "tok:zh" in right.bleu.signature
    assert right.bleu.value > 50
    assert wrong.bleu.value < 10
    assert right.warnings == ()
    assert wrong.warnings == ("BLEU was counted with the tokenizer '13a', but 'zh' fits the target language 'zh'.",)


@pytest.mark.parametrize(("language", "said"), [(None, "not set"), ("en", "en")])
def test_unspaced_references_without_their_language_are_noticed(language: str | None, said: str) -> None:
    (warning,) = score(CHINESE_OUTPUT, CHINESE, target_language=language).warnings
    assert warning.endswith(f"specify their language (for example zh), which is {said}.")


@pytest.mark.parametrize("code", ["en", "EN", "en_US", "eng_Latn", "tlh", "gsw-CH", None])
def test_language_codes_of_every_form_are_accepted(code: str | None) -> None:
    assert score(ENGLISH_OUTPUT, ENGLISH, target_language=code).warnings == ()


@pytest.mark.parametrize("language", ["klingon", "english", ""])
def test_malformed_language_codes_cause_a_warning(language: str) -> None:
    (warning,) = score(ENGLISH_OUTPUT, ENGLISH, target_language=language).warnings
    assert warning == (
        f"BLEU was counted with the tokenizer '13a', as {language!r} is not a language code such as zh or en: "
        "specify the code."
    )


def test_signatures_are_those_of_sacrebleu() -> None:
    report = score(ENGLISH_OUTPUT, ENGLISH, target_language="en")
    version = f"version:{sacrebleu_version}"
    assert report.bleu.signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    assert report.chrf.signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}"


def test_bleu_of_a_sentence_equals_the_hand_computed_value() -> None:
    # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 quadruples match, and the lengths are equal.
    report = score(["the cat sat on a mat"], ["the cat sat on the mat"], target_language="en")
    assert report.bleu.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert (report.hypothesis_tokens, report.reference_tokens, report.brevity_penalty) == (6, 6, 1.0)


def test_output_equal_to_the_references_scores_100() -> None:
    report = score(ENGLISH, ENGLISH, target_language="en")
    assert report.bleu.value == pytest.approx(100)
    assert report.chrf.value == pytest.approx(100)
    assert (report.sentences, report.exact_match) == (4, 4)


def test_output_shorter_than_the_references_has_a_brevity_penalty() -> None:
    report = score(shorten(ENGLISH, " "), ENGLISH, target_language="en")
    assert report.brevity_penalty < 1
    assert report.hypothesis_tokens < report.reference_tokens


def test_a_line_feed_inside_a_line_counts_as_the_space_it_is_printed_as() -> None:
    report = score(["the semi-\nfinal is on Monday"], ["the semi- final is on Monday"], target_language="en")
    assert report.bleu.value == pytest.approx(100)
    assert report.exact_match == 1
    assert report.hypothesis_sha256 == report.reference_sha256


def test_report_survives_json_and_keeps_the_decoding_settings() -> None:
    decoding: dict[str, str | int | float | bool] = {
        "beam_size": 4,
        "length_penalty": 0.6,
        "precision": "fp32",
        "cache": True,
    }
    report = score(ENGLISH_OUTPUT, ENGLISH, target_language="en", decoding=decoding)
    again = msgspec.json.decode(msgspec.json.encode(report), type=ScoreReport)
    assert again == report
    assert again.decoding == decoding
    assert "decoding: beam_size=4, length_penalty=0.6, precision=fp32, cache=True" in str(report)


def test_references_are_identified_by_the_hash_of_their_file() -> None:
    report = score(CHINESE_OUTPUT, CHINESE, target_language="zh")
    file_content = "".join(f"{line}\n" for line in CHINESE).encode("utf-8")
    assert report.reference_sha256 == hashlib.sha256(file_content).hexdigest()
    assert report.hypothesis_sha256 != report.reference_sha256


def test_scores_print_as_text_and_escape_html_in_notebooks() -> None:
    assert str(MetricScore("BLEU", 38.327, "nrefs:1|tok:13a")) == "BLEU 38.33  nrefs:1|tok:13a"
    assert MetricScore("chrF", 5, "a<b")._repr_html_() == "<b>chrF 5.00</b> <code>a&lt;b</code>"
    report = score(["it is a cat ."] * 4, ["it is a cat."] * 4, target_language="en", decoding={"name": "<x>"})
    lines = str(report).split("\n")
    assert lines[:2] == [str(report.bleu), str(report.chrf)]
    assert lines[2].startswith("4 sentences, 0 equal to the reference; 20 tokens against 20, brevity penalty 1.000")
    assert lines[-1] == f"warning: {report.warnings[0]}"
    assert "decoding: name=&lt;x&gt;<br>warning: 4 of 4 lines of the hypotheses end" in report._repr_html_()


def test_tokenized_text_is_noticed_in_the_report_and_not_in_a_log(caplog: pytest.LogCaptureFixture) -> None:
    output = [f"this is line {number} ." for number in range(150)]
    references = [f"This is line {number}." for number in range(150)]
    with caplog.at_level(logging.DEBUG):
        (warning,) = score(output, references, target_language="en").warnings
    assert warning.startswith("150 of 150 lines of the hypotheses end in a space")
    assert caplog.records == []
    assert score(output, references, target_language="en", tokenize="none").warnings == ()


def test_few_detached_full_stops_cause_no_tokenization_warning() -> None:
    output = ["He has left ."] * 99 + ["He has left."] * 101
    assert score(output, ["He has left."] * 200, target_language="en").warnings == ()


def test_empty_lines_are_noticed() -> None:
    report = score(["", "He has left."], ["She is here.", "He has left."], target_language="en")
    assert report.warnings == ("Empty lines among the hypotheses: 1 of 2.",)
    with use_ui_language("zh"):
        assert localized(report.warnings[0]) == "译文里有空行：2 行中有 1 行。"
    assert score(["", " "], ["a", "b"], target_language="en").bleu.value == 0


def test_references_that_are_too_short_for_bleu_are_noticed() -> None:
    """One word has no run of four: BLEU is 0 however good the words are."""
    report = score(["apple", "pear", ""], ["apple", "pear", ""], target_language="en")
    assert report.bleu.value == 0
    assert report.chrf.value == pytest.approx(100)
    assert report.warnings[0] == (
        "The references have 1.0 words on average, and BLEU counts 4-grams: "
        "chrF and the number of lines equal to the reference are more meaningful."
    )
    assert score(["an apple is"], ["an apple is"], target_language="en", tokenize="char").warnings == ()


def test_words_are_counted_as_bleu_counts_them() -> None:
    assert mean_words_per_line(["a cat.", "", "2007-10-25"], "en") == (3 + 5) / 2
    assert mean_words_per_line(["我爱你。"], "zh") == 4
    assert mean_words_per_line(["", " "], "en") == math.inf


def test_characters_instead_of_words_are_reported_with_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.evaluation.scores.missing_packages", lambda _: ["MeCab"])
    report = score(["猫がいる。"], ["犬がいる。"], target_language="ja")
    assert report.tokenize == "char"
    assert report.warnings[0].startswith("Japanese was scored by characters")


def test_unequal_numbers_of_hypotheses_and_references_are_refused() -> None:
    with pytest.raises(TransduceError, match="there are 3 hypotheses and 4 references: use files with the same"):
        score(ENGLISH_OUTPUT[:3], ENGLISH, target_language="en")


def test_scoring_no_lines_is_refused() -> None:
    with pytest.raises(TransduceError, match="at least one line, but there are 0 hypotheses and 0 ref"):
        score([], [], target_language="en")


def test_an_unknown_tokenizer_is_refused_with_a_suggestion() -> None:
    with pytest.raises(TransduceError, match=r"did you mean '13a'\?$"):
        score(ENGLISH_OUTPUT, ENGLISH, target_language="en", tokenize="13")


def test_a_string_in_place_of_a_list_of_lines_is_refused() -> None:
    with pytest.raises(TransduceError, match=r"The hypotheses must be a list of lines, but are one text"):
        score("I love you", ["I love you"], target_language="en")


def test_iterators_of_lines_are_accepted() -> None:
    lines = ["The cat sat on the mat.", "It rains."]
    assert score(iter(lines), iter(lines), target_language="en") == score(lines, lines, target_language="en")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["target_language", "tokenize"])
def test_languages_and_tokenizers_of_wrong_type_are_refused(name: str) -> None:
    options: dict[str, Any] = {"target_language": "en"} | {name: 3}
    with pytest.raises(TransduceError, match=f"`{name}` must be a text or None, but is 3"):
        score(["a"], ["a"], **options)
