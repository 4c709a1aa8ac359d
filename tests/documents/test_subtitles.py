"""Test subtitles: sentences across cues, dialogues, tags and line lengths."""

from collections.abc import Sequence

import pytest

from transduce.documents.translate import translate_upload
from transduce.documents.units import DocumentSettings, UnitKind

SRT = """1
00:00:01,000 --> 00:00:02,000
{first}

2
00:00:02,500 --> 00:00:04,000
{second}
"""


class Fake:
    """A translator that returns given translations in order, and records the texts that it gets."""

    def __init__(self, *translations: str) -> None:
        self.translations = list(translations)
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str], kind: UnitKind) -> list[str]:
        assert kind in ("text", "xml")
        self.texts += texts
        return [self.translations.pop(0) if self.translations else text.upper() for text in texts]


def srt(fake: Fake, first: str, second: str, **settings: bool) -> str:
    content = SRT.format(first=first, second=second).encode()
    return translate_upload(content, "a.srt", fake, DocumentSettings(**settings)).decode()  # type: ignore[arg-type]


def test_a_sentence_across_cues_is_translated_as_one() -> None:
    fake = Fake("Mary goes to the library by bicycle tonight.")
    assert srt(fake, "玛丽今天晚上会", "骑自行车去图书馆。") == SRT.format(
        first="Mary goes to the", second="library by bicycle tonight."
    )
    assert fake.texts == ["玛丽今天晚上会骑自行车去图书馆。"]


def test_sounds_and_names_of_speakers_begin_a_text() -> None:
    fake = Fake()
    first, second = "<i>[door slams]</i>\nJOHN: Stay", "MARY: I want to go\nwith you\nTom: And I\n(sighs)"
    translated = SRT.format(first=first.upper(), second=second.upper().replace("GO\nWITH", "GO WITH"))
    assert srt(fake, first, second) == translated.replace("<I>", "<i>").replace("</I>", "</i>")
    assert fake.texts == ["[door slams]", "JOHN: Stay", "MARY: I want to go with you", "Tom: And I", "(sighs)"]
    fake = Fake()
    srt(fake, "Ich habe einen\nWunsch: geh", "Nun: jetzt")
    assert fake.texts == ["Ich habe einen Wunsch: geh", "Nun: jetzt"]
    fake = Fake()
    srt(fake, "at [sic] the hour\n12:30 we go", "1")
    assert fake.texts == ["at [sic] the hour 12:30 we go"]


def test_sentences_that_end_with_their_cue_stay_apart() -> None:
    fake = Fake()
    srt(fake, "I go.", "You stay.")
    assert fake.texts == ["I go.", "You stay."]


@pytest.mark.parametrize("sentences", [("وہ آیا۔", "وہ گیا۔"), ("Նա եկավ։", "Նա գնաց։"), ("သူလာသည်။", "သူသွားသည်။")])
def test_marks_of_every_script_end_a_line(sentences: tuple[str, str]) -> None:
    fake = Fake()
    srt(fake, "\n".join(sentences), "Good.")
    assert fake.texts == [*sentences, "Good."]


def test_speakers_stay_apart_and_lines_of_one_are_joined() -> None:
    fake = Fake()
    assert srt(fake, "- What do\nyou say?\n- Nothing.", "Good.") == SRT.format(
        first="- WHAT DO YOU SAY?\n- NOTHING.", second="GOOD."
    )
    assert fake.texts == ["What do you say?", "Nothing.", "Good."]


@pytest.mark.parametrize(("line", "text"), [("我不\n知道。", "我不知道。"), ("나는\n모른다.", "나는 모른다.")])
def test_lines_are_joined_as_their_script_joins_words(line: str, text: str) -> None:
    fake = Fake()
    srt(fake, line, "Good.")
    assert fake.texts[0] == text


def test_lines_that_are_sentences_stay_lines() -> None:
    fake = Fake()
    assert srt(fake, "I do not\nknow.\nAsk Maria!", "Good.") == SRT.format(
        first="I DO NOT KNOW.\nASK MARIA!", second="GOOD."
    )
    assert fake.texts == ["I do not know.", "Ask Maria!", "Good."]


def test_tags_follow_their_words_and_outer_tags_stay() -> None:
    fake = Fake('nicht <g id="2">jetzt</g> gehen!')
    result = srt(fake, "{\\an8}<i>go not <b>now</b>!</i>", "1, 2.")
    assert fake.texts == ['go not <g id="2">now</g>!']
    assert "{\\an8}<i>nicht <b>jetzt</b> gehen!</i>" in result


def test_long_translations_are_wrapped() -> None:
    text = "a translation that is so long that it needs two lines of a screen"
    result = srt(Fake(text), "Short.", "Yes.").split("\n")
    assert result[2:4] == ["a translation that is so long that", "it needs two lines of a screen"]


@pytest.mark.parametrize("lines", [["a" * 60, "b" * 40], ["ก" * 130], ["a" * 60, "b" * 50, "c" * 10]])
def test_words_longer_than_a_line_are_lines_of_their_own(lines: list[str]) -> None:
    result = srt(Fake(" ".join(lines)), "Short.", "Yes.").split("\n\n")[0].split("\n")
    assert result[2:] == lines


def test_a_translation_with_fewer_words_than_cues_is_in_each() -> None:
    assert srt(Fake("Yes!"), "I would say", "that it is so.") == SRT.format(first="Yes!", second="Yes!")


def test_keep_source_writes_source_and_translation() -> None:
    result = srt(Fake(), "I go.", "- You?\n- Me.", keep_source=True)
    assert result == SRT.format(first="I go.\nI GO.", second="- You?\n- YOU?\n- Me.\n- ME.")


def test_vtt_notes_styles_settings_and_entities_stay() -> None:
    source = """WEBVTT some text

NOTE a note
of two lines

STYLE
::cue { color: red }

intro
00:01.000 --> 00:02.000 align:start
<v Anna>you &amp; <c.big>me</c>
"""
    expected = source.replace("you &amp; <c.big>me</c>", "YOU &amp; <c.big>ME</c>")

    def upper(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        assert list(texts) == ['you &amp; <g id="1">me</g>']
        return ['YOU &amp; <g id="1">ME</g>']

    assert translate_upload(source.encode(), "a.vtt", upper).decode() == expected


def test_vtt_voices_stay_apart_and_cues_may_begin_like_notes() -> None:
    cues = (
        "00:01.000 --> 00:02.000\nNOTES are in the book\n\n00:02.000 --> 00:03.000\n<v Bob>you go</v>\n<v Ann>I stay\n"
    )
    fake = Fake()
    translated = translate_upload(f"WEBVTT\n\nNOTE a\n\n{cues}".encode(), "a.vtt", fake).decode()
    assert fake.texts == ["NOTES are in the book", "you go", "I stay"]
    assert translated.endswith("NOTES ARE IN THE BOOK\n\n00:02.000 --> 00:03.000\n<v Bob>YOU GO</v>\n<v Ann>I STAY\n")


def test_pronunciations_in_vtt_are_no_part_of_the_sentence() -> None:
    ruby = "<ruby>漢<rt>かん</rt>字<rt>じ</ruby>は難しい。"

    def translate(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        assert list(texts) == ['<g id="0">漢<it id="1"/>字<it id="2"/></g>は難しい。']
        return ['<g id="0">Kan<it id="1"/>ji<it id="2"/></g> is hard.']

    cue = "WEBVTT\n\n00:01.000 --> 00:02.000\n"
    translated = translate_upload(f"{cue}{ruby}\n".encode(), "a.vtt", translate).decode()
    assert translated == f"{cue}<ruby>Kan<rt>かん</rt>ji<rt>じ</ruby> is hard.\n"


def test_substation_alpha_dialogues_are_translated_and_drawings_stay() -> None:
    head = "[Script Info]\nTitle: t\n\n[Events]\nFormat: Layer, Start, End, Style, Text\n"
    lines = "Dialogue: 0,0:00:01.00,0:00:02.00,A,{\\i1}one, two{\\i0}\nComment: 0,0:00:01.00,0:00:02.00,A,no\n"
    drawing = "Dialogue: 0,0:00:01.00,0:00:02.00,A,{\\p1}m 0 0 l 1 0{\\p0}\n"
    result = translate_upload((head + lines + drawing).encode(), "a.ass", Fake()).decode()
    assert result == head + lines.replace("one, two", "ONE, TWO") + drawing
