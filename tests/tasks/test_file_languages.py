"""Test that training files in other languages than the settings or their suffixes name are reported."""

from pathlib import Path

import pytest

from transduce.tasks.corpus import language_notice
from transduce.text.corpus import CorpusFiles

GERMAN = "Ich weiß nicht, wo der Hund ist, und ich habe ihn heute nicht gesehen."
ENGLISH = "I do not know where the dog is, and I have not seen it today."
CHINESE = "我不知道狗在哪里，今天没有见过它。"


@pytest.mark.parametrize(
    ("source", "target", "languages", "notice"),
    [
        (ENGLISH, CHINESE, ("en", "zh"), None),
        (ENGLISH, GERMAN, ("en", "de"), None),
        (ENGLISH, GERMAN, (None, None), None),
        (
            ENGLISH,
            CHINESE,
            ("zh-Hans", "en"),
            (
                "the source looks English instead of Chinese and the target looks Chinese instead of English: "
                "the files seem to be swapped."
            ),
        ),
        (
            ENGLISH,
            GERMAN,
            ("de", "en"),
            (
                "the source looks English instead of German and the target looks German instead of English: "
                "the files seem to be swapped."
            ),
        ),
        (
            ENGLISH,
            CHINESE,
            ("de", "zh"),
            "the source looks English instead of German: check the files and `--languages`.",
        ),
        (
            ENGLISH,
            ENGLISH,
            ("en", "zh"),
            "the target looks English instead of Chinese: check the files and `--languages`.",
        ),
    ],
)
def test_files_in_other_languages_are_reported(
    source: str, target: str, languages: tuple[str | None, str | None], notice: str | None, tmp_path: Path
) -> None:
    for name, text in (("a", source), ("b", target)):
        (tmp_path / name).write_text(f"{text}\n" * 30)
    files = CorpusFiles(source=(str(tmp_path / "a"),), target=(str(tmp_path / "b"),))
    expected = None if notice is None else f"warning: In the first 30 pairs {notice}"
    assert language_notice(files, languages) == expected


def test_a_few_lines_in_another_language_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f"{ENGLISH}\n" * 30 + f"{GERMAN}\n" * 70)
    (tmp_path / "b").write_text(f"{CHINESE}\n" * 100)
    files = CorpusFiles(source=(str(tmp_path / "a"),), target=(str(tmp_path / "b"),))
    assert language_notice(files, ("de", "zh")) is None


@pytest.mark.parametrize("wrong_lines", [49, 50])
def test_half_of_the_lines_decide_wherever_they_are(wrong_lines: int, tmp_path: Path) -> None:
    right, wrong = f"{GERMAN}\n" * (100 - wrong_lines), f"{ENGLISH}\n" * wrong_lines
    for number, text in enumerate((right + wrong, wrong + right)):
        for name, content in (("a", text), ("b", f"{CHINESE}\n" * 100)):
            (tmp_path / f"{name}{number}").write_text(content)
        files = CorpusFiles(source=(str(tmp_path / f"a{number}"),), target=(str(tmp_path / f"b{number}"),))
        assert (language_notice(files, ("de", "zh")) is not None) == (wrong_lines == 50)
