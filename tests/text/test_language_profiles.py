"""Test language identification with profiles learned from text."""

import gzip
from pathlib import Path

import pytest

from transduce.errors import TransduceError
from transduce.text.languages import FILE_NAME, LanguageProfiles, learn_profiles, merge_profiles

ENGLISH = ["The weather is nice today.", "I have three brothers and two sisters.", "Where is the station?"] * 3
GERMAN = ["Das Wetter ist heute schön.", "Ich habe drei Brüder und zwei Schwestern.", "Wo ist der Bahnhof?"] * 3
CHINESE = ["今天天气很好。", "我有三个兄弟和两个姐妹。", "车站在哪里？"] * 3


@pytest.fixture(scope="module")
def profiles() -> LanguageProfiles:
    return learn_profiles({"en": ENGLISH, "de": GERMAN, "zh": CHINESE})


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("the sisters", "en"),
        ("DIE SCHWESTERN", "de"),
        ("今天", "zh"),
        ("schön, 3 Brüder!", "de"),
    ],
)
def test_a_language_is_detected_by_runs_of_letters(profiles: LanguageProfiles, text: str, language: str) -> None:
    found = profiles.probabilities(text)
    assert next(iter(found)) == language
    assert sum(found.values()) == pytest.approx(1.0)


def test_a_text_without_letters_has_no_language(profiles: LanguageProfiles) -> None:
    assert set(profiles.probabilities("12 + 3 = 15!").values()) == {1 / 3}
    assert set(profiles.probabilities("").values()) == {1 / 3}


def test_detection_may_be_restricted_to_some_languages(profiles: LanguageProfiles) -> None:
    assert set(profiles.probabilities("今天", ["en", "de"])) == {"en", "de"}


def test_saved_profiles_read_back_equal(profiles: LanguageProfiles, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(profiles.content())
    assert LanguageProfiles.load(tmp_path) == profiles
    assert learn_profiles({"en": ENGLISH, "de": GERMAN, "zh": CHINESE}).content() == profiles.content()


def test_a_folder_without_profiles_has_none(tmp_path: Path) -> None:
    assert LanguageProfiles.load(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "cannot be read as language profiles"),
        (b'{"format_version":1,"runs":{},"totals":{},"x":1}', "cannot be read as language profiles"),
        (b'{"format_version":2,"runs":{},"totals":{}}', "is not of format 1"),
        (b'{"format_version":1,"runs":{"en":{}},"totals":{}}', "is not of format 1"),
    ],
)
def test_a_broken_file_is_reported(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(TransduceError, match=sentence):
        LanguageProfiles.load(tmp_path)


def test_profiles_of_several_models_are_merged(profiles: LanguageProfiles) -> None:
    other = learn_profiles({"en": ["something else"], "fr": ["Il fait beau aujourd'hui."]})
    merged = merge_profiles([profiles, other])
    assert list(merged.runs) == list(merged.totals) == ["en", "de", "zh", "fr"]  # in the order of the profiles
    assert merged.runs["en"] == profiles.runs["en"]
    assert merge_profiles([]).runs == {}


@pytest.mark.slow
def test_languages_of_held_out_sentences_are_detected_at_98_percent(data_folder: Path) -> None:
    """98 % is the bar; chance alone would tell a third."""

    def lines(name: str, most: int) -> list[str]:
        with gzip.open(data_folder / name, "rt", encoding="utf-8", newline="\n") as file:
            return file.read().split("\n")[:-1][:most]

    train = {"zh": "tatoeba-zh-en/train.zh.gz", "en": "tatoeba-zh-en/train.en.gz", "de": "tatoeba-de-en/train.de.gz"}
    learnt = learn_profiles({language: lines(name, 8000) for language, name in train.items()})
    for language, name in train.items():
        held_out = lines(name.replace("train", "test"), 1400)
        right = sum(next(iter(learnt.probabilities(line))) == language for line in held_out)
        assert right / len(held_out) >= 0.98, language
