"""Test quality warnings, that good translations have none, and that re-decoding selects results with fewer warnings."""

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from transduce.inference.quality_estimation import (
    UNLIKELY_NATS,
    QualityWarning,
    count_warnings,
    find_quality_warnings,
)
from transduce.inference.redecoding import estimate_quality, redecode
from transduce.inference.scoring import as_translation
from transduce.inference.translation import Alternative, Translation
from transduce.inference.translator import Translator
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.text.glossary import Glossary
from transduce.text.numbers import missing_numbers
from transduce.text.text_settings import TextSettings
from transduce.text.word_spans import Span


def translation(source: str, *texts: str, nats: float = 0.1, ended: bool = True) -> Translation:
    return Translation(source, tuple(Alternative(text, (), (-nats,) * 3, -3 * nats, ended) for text in texts))


def warnings_of(source: str, text: str, languages: str = "zh-en", **options: Any) -> list[str]:
    one, other = languages.split("-")
    found = find_quality_warnings(translation(source, text, **options), source_language=one, target_language=other)
    return [str(doubt) for doubt in found]


@pytest.mark.parametrize(
    ("source", "text", "doubts"),
    [
        ("我来自中国。", "I am from from from China.", ["repeated (3 × from)"]),
        ("I am from China.", "我来自来自来自来自中国。", ["repeated (4 × 来自)"]),
        ("Whether he comes?", "ich weiß nicht, ob er, ich weiß nicht, ob er", ["repeated (2 × ich weiß nicht ob er)"]),
        ("我爱你。", "我爱你", ["copied (我爱你)"]),
        ("Ich sehe sie.", "ich sehe sie!", ["copied (ich sehe sie!)"]),
        ("我喜欢苹果。", "I like 苹果.", ["untranslated (苹果)"]),
        ("Он живёт в Москве.", "He lives in Москве.", ["untranslated (Москве)"]),
        ("他生于1990年。", "He was born in 1980.", ["numbers (1990)"]),
        ("Es kostet 1.234,50 Euro und 77 Cent.", "It costs 1,243.50 euros and 77 cents.", ["numbers (1.234,50)"]),
        ("Das ist ein Tapir.", "This is a <unk>.", ["unknown (<unk>)"]),
        ("我喜欢。", "", ["empty"]),
        ("Oh.", "  ", ["empty"]),
    ],
)
def test_faulty_translations_have_quality_warnings(source: str, text: str, doubts: list[str]) -> None:
    assert warnings_of(source, text, "xx-en") == doubts  # sources of several languages


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("我爱你。", "I love you."),
        ("不，不，不！", "No, no, no!"),  # so often it stands in the source
        ("Very, very, very good.", "非常非常非常好。"),
        ("Ha ha ha!", "哈哈哈！"),
        ("He laughed.", "他哈哈哈大笑。"),
        ("Das ist das, was das Kind will.", "That is that which that child wants."),
        ("Tom!", "Tom!"),  # names stay
        ("汤姆用iPhone。", "Tom uses an iPhone."),
        ("Tom benutzt Linux.", "汤姆用Linux。"),
        ("Es kostet 1.234,50 Euro.", "It costs 1,234.50 euros."),
        ("Um 10:45 Uhr.", "At 10.45."),
        ("３０％の人", "30% of the people"),
        ("٤٥ شخصا", "45 people"),
        ("他有3万元。", "He has 30,000 yuan."),  # another way of counting
        ("90年代", "the 1990s"),
        ("（一）目的", "（一）The purpose"),  # list marks are copied
        ("  二、范围", "  二、Scope"),
        (
            "他十二岁，有 2 只狗和 12 条鱼。",
            "He is twelve and has two dogs and twelve fish.",
        ),  # small numbers are words
        ("What is <unk>?", "Was ist <unk>?"),
        ("", ""),
        ("…", ""),
    ],
)
def test_good_translations_have_no_quality_warnings(source: str, text: str) -> None:
    assert warnings_of(source, text, "xx-en") == []


def test_cut_and_unlikely_translations_have_warnings() -> None:
    assert warnings_of("我爱你。", "I love", ended=False) == ["cut"]
    assert warnings_of("我爱你。", "I love you.", nats=UNLIKELY_NATS + 0.01) == [
        f"unlikely ({UNLIKELY_NATS + 0.01:.2f} nats a token)"
    ]
    assert warnings_of("我爱你。", "I love you.", nats=UNLIKELY_NATS) == []
    stopped = Translation("我爱你。", (Alternative("I", (), (-0.1,), -0.1, ended=False),), stopped=True)
    assert find_quality_warnings(stopped) == ()


def test_within_one_language_words_and_numbers_may_stay_or_go() -> None:
    for source, text in (("a b c", "a b c"), ("In 1990 there were 45 people.", "People.")):
        assert warnings_of(source, text, "en-en") == []
        assert find_quality_warnings(translation(source, text), target_language="en") == ()
    assert warnings_of("a b c", "x x x x", "en-en") == ["repeated (4 × x)"]


def test_untranslated_letters_depend_on_the_script_of_the_target() -> None:
    assert warnings_of("一、一个苹果", "一、一 apple", "zh-en") == ["untranslated (一)"]
    assert warnings_of("我喜欢苹果。", "私はリンゴと苹果。", "zh-ja") == []
    assert warnings_of("我喜欢苹果。", "私はリンゴと苹果。", "zho_Hans-jpn_Jpan") == []
    assert warnings_of("Привіт, світе", "Привет, мир", "uk-ru") == []
    assert warnings_of("Привіт, світе", "Привет, мир", "ukr_Cyrl-rus") == []
    assert warnings_of("Привет, мир", "Привет, свят, hello", "ru-en") == ["untranslated (Приветсвят)"]
    assert warnings_of("你好，世界", "世界, Привет", "zh_Hant-ru") == ["untranslated (世界)"]


def test_missing_numbers_are_reported_as_written_in_the_source() -> None:
    assert missing_numbers("Von 1.990 bis 2.050, 15 und 45", "from 1990 to") == ["2.050", "45"]
    assert missing_numbers("十、1990", "") == ["1990"]


@pytest.mark.parametrize(
    ("source", "target", "missing"),
    [
        ("1 234 lidí", "1,234 people", []),
        ("12 345,50 Kč", "12,345.50 crowns", []),
        ("10 000 ludzi", "10 000 personnes", []),
        ("1,234 people", "1 234 lidí", []),
        ("In 2023 100 people", "2023 100 lidí", []),
        ("room 45 300 times", "300 times in room 45", []),  # or two numbers
        ("1 234 lidí", "1,243 people", ["1 234"]),
        ("A dog runs 1 000 m.", "Ein Hund rennt 000 m.", ["1 000"]),
        ("It weighs 3 500 kg.", "Es wiegt 500 kg.", ["3 500"]),
        ("It costs 1 000 000 €.", "Es kostet 000 €.", ["1 000 000"]),
        ("1\u202f234,50 €", "234,50 €", ["1\u202f234,50"]),
        ("1.000.000,00 EUR", "1.000.000", []),
        ("1.000.000,00 EUR", "100.000.000", ["1.000.000,00"]),
        ("at -12.5 °C", "bei 12,5 °C", ["-12.5"]),
        ("at −5 °C", "bei 5 °C", ["−5"]),
        ("on 2 dogs -$20", "auf 20 $", ["-$20"]),
        ("温度-5°C", "5°C", ["-5"]),
        ("at -5 °C", "bei –5 °C", []),
        ("at -5 °C", "bei 5 Grad unter null", []),
        ("零下5度，-30度", "minus 5 and minus 30", []),
        ("COVID-19, 5-10 kg, 2023-12-24", "COVID 19, 5 bis 10 kg, 24.12.2023", []),
        ("room 45 300 times", "30 times in room 45", ["300"]),
        ("am 24.12.2023", "on 12/24/2023", []),
        ("am 24.12.2023", "on 24 December 2023", []),
        ("am 24.12.23", "2023-12-24", []),
        ("2023年12月24日", "24.12.2023", []),
        ("am 24.12.2023", "on 12/25/2023", ["24.12.2023"]),
        ("am 24.12.2023", "on 12/24/1923", ["24.12.2023"]),
        ("am 24.12.2023", "on December 25, 2023", ["24.12.2023"]),
        ("um 14:30 Uhr", "at 2:30 pm", []),
        ("at 2:30 pm", "14.30 Uhr", []),
        ("14.30 Uhr", "2:30 pm", []),
        ("um 14:30 Uhr", "à 14 h 30", []),
        ("um 0:45 Uhr", "at 12:45 am", []),
        ("um 21:00 Uhr", "at nine", []),
        ("um 14:30 Uhr", "at 3:30 pm", ["14:30"]),
        ("um 14:30 Uhr", "at 2 pm", ["14:30"]),
        ("es kostet 14.30", "it costs 2.30", ["14.30"]),  # which is no time of day
        ("0" * 5_000 + "12", "twelve", []),
    ],
)
def test_numbers_written_in_different_locales_are_equal(source: str, target: str, missing: list[str]) -> None:
    assert missing_numbers(source, target) == missing


def test_counts_go_by_kind() -> None:
    doubts = [(QualityWarning("cut", ""), QualityWarning("unlikely", "2")), (), (QualityWarning("cut", ""),)]
    assert count_warnings(doubts) == {"cut": 2, "unlikely": 1}


class ScriptedTranslator:
    """A stand-in for a translator, which records requests and returns scripted alternatives by source."""

    source_language: str | None = "zh"
    target_language: str | None = "en"
    search = SearchSettings(beam_size=2, length_penalty=0.5)
    text = TextSettings()
    document_context = None
    tokenizer = SimpleNamespace(
        source=SimpleNamespace(unknown_characters=lambda _: "", readable=str),
        target=SimpleNamespace(unk_id=2, encode=lambda text: [2 if "9999" in text else 5]),
    )

    def __init__(self, answers: dict[str, list[list[str]]]) -> None:
        self.answers = answers
        self.asked: list[tuple[list[str], SearchSettings, str, list[list[str]], list[str]]] = []

    def translate(
        self,
        sentences: list[str],
        search: SearchSettings,
        *,
        prefix: str,
        phrases: list[list[str]],
        glossary: Glossary | None,
        **texts: object,
    ) -> list[Translation]:
        assert texts == {"text_settings": self.text, "protected": [None] * len(sentences)}
        terms = [] if glossary is None else [str(term) for term in glossary.terms]
        self.asked.append((sentences, search, prefix, phrases, terms))
        return [translation(sentence, *self.answers[sentence].pop(0)) for sentence in sentences]


def redecoded(scripted: ScriptedTranslator, found: Sequence[Translation], **options: Any) -> list[Translation]:
    return redecode(scripted, found, **options)  # type: ignore[arg-type]


def test_redecode_translates_only_flagged_lines_with_missing_numbers_required() -> None:
    scripted = ScriptedTranslator({"他生于1990年。": [["He was born in 1890.", "He was born in 1990."]]})
    found = [translation("我爱你。", "I love you."), translation("他生于1990年。", "He was born in 1980.")]
    better = redecoded(scripted, found, prefix="He", phrases=[[], ["born"]])
    assert [each.text for each in better] == ["I love you.", "He was born in 1990."]
    assert better[0] is found[0]
    ((sentences, search, prefix, phrases, terms),) = scripted.asked
    assert (sentences, prefix, phrases, terms) == (["他生于1990年。"], "He", [["born"]], ["`1990` as `1990`"])
    assert (search.beam_size, search.n_best, search.length_penalty, search.no_repeated_ngrams) == (8, 8, 0.5, 0)


@pytest.mark.parametrize(
    ("number", "options"),
    [
        ("9999", {}),  # the model has no tokens for this number
        ("1990", {"forbidden": ("1990",)}),
        ("1990", {"max_length": 3}),  # the number may not fit into the length
    ],
)
def test_redecode_does_not_require_numbers_that_cannot_be_written(number: str, options: dict[str, Any]) -> None:
    source = f"{number}年"
    scripted = ScriptedTranslator({source: [["In that year"]]})
    redecoded(scripted, [translation(source, "A year")], search=SearchSettings(**options))
    assert scripted.asked[0][3:] == ([[]], [])


def test_no_form_of_a_date_or_time_is_forced() -> None:
    source = "Am 24.12.2023 um 14:30 kamen 1 234 Leute."
    scripted = ScriptedTranslator({source: [["People came."]]})
    redecoded(scripted, [translation(source, "A man came.")])
    assert scripted.asked[0][4] == ["`1 234` as `1 234`"]


@pytest.mark.parametrize(
    "first",
    [
        SearchSettings(diverse_groups=2, diversity_penalty=1.0),
        SearchSettings(sampling=SamplingSettings(), presence_penalty=-0.5),
        SearchSettings(coverage_penalty=0.2, n_best=2),
    ],
)
def test_redecode_has_one_beam_whatever_the_first_search_was(first: SearchSettings) -> None:
    scripted = ScriptedTranslator({"他生于1990年。": [["He was born in 1990."]]})
    (better,) = redecoded(scripted, [translation("他生于1990年。", "He was born in 1980.")], search=first)
    assert better.text == "He was born in 1990."
    search = scripted.asked[0][1]
    assert (search.beam_size, search.n_best, search.diverse_groups, search.sampling) == (8, 8, 1, None)
    assert search.coverage_penalty == first.coverage_penalty


def test_redecode_does_not_require_small_numbers() -> None:
    source = "第1章"
    scripted = ScriptedTranslator({source: [["Chapter 11", "Chapter one"]]})
    (better,) = redecoded(scripted, [translation(source, "Chapter 11")])
    assert (better.text, scripted.asked[0][4]) == ("Chapter one", [])


def test_redecode_forbids_ever_shorter_repetitions() -> None:
    scripted = ScriptedTranslator({"来自": [["from from from us"], ["from there"]]})
    (better,) = redecoded(scripted, [translation("来自", "from from from from")])
    assert better.text == "from there"
    assert [search.no_repeated_ngrams for _, search, *_ in scripted.asked] == [3, 2]


def test_redecode_searches_without_groups() -> None:
    scripted = ScriptedTranslator({"来自": [["from us"]]})
    search = SearchSettings(diverse_groups=2, diversity_penalty=2.0)
    redecoded(scripted, [translation("来自", "from from from from")], search=search)
    ((_, again, *_),) = scripted.asked
    assert (again.diverse_groups, again.beam_size) == (1, 8)


def test_redecode_keeps_the_translation_if_no_other_has_fewer_warnings() -> None:
    scripted = ScriptedTranslator({"我爱你。": [["爱我你", "我爱你"]]})
    (same,) = redecoded(scripted, [translation("我爱你。", "我爱你", "me")])
    assert [each.text for each in same.alternatives] == ["我爱你", "me"]


def test_redecode_returns_the_number_of_alternatives_that_it_got() -> None:
    scripted = ScriptedTranslator({"我爱你。": [["I love you", "I like you"]]})
    (better,) = redecoded(scripted, [translation("我爱你。", "我爱你", "I love you")])
    assert [each.text for each in better.alternatives] == ["I love you", "我爱你"]


def test_copied_text_causes_no_warning_if_languages_are_unknown() -> None:
    scripted = ScriptedTranslator({})
    scripted.source_language = None
    assert estimate_quality(scripted, [translation("a b c", "a b c")]) == [()]  # type: ignore[arg-type]


def test_a_number_that_the_vocabulary_cannot_write_ends_nothing(translator: Translator) -> None:
    translator = Translator(
        translator.model, translator.tokenizer, source_language="zh", target_language="en", search=translator.search
    )
    assert translator.tokenizer.target.unk_id in translator.tokenizer.target.encode("1990")
    found = [translation("他生于1990年", "he is easy")]
    doubts = {doubt.kind: doubt.found for doubt in estimate_quality(translator, found)[0]}
    assert list(doubts) == ["unread", "numbers"]
    assert "1990" in doubts["unread"]
    assert len(redecode(translator, found)) == 1


def test_unknown_characters_alone_cause_no_re_decoding(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [translation("我吃☃☃鱼", "I eat fish")]
    assert estimate_quality(translator, found) == [(QualityWarning("unread", "☃☃"),)]
    monkeypatch.setattr(Translator, "translate", None)
    assert redecode(translator, found) == found


def test_a_trained_model_reviews_its_own_and_given_translations(translator: Translator) -> None:
    found = translator(["我爱你", "我们学习中文"], beam_size=1)
    assert len(estimate_quality(translator, found)) == 2
    (score,) = translator.score(["我爱你"], ["the the the the"])
    kinds = {doubt.kind for doubt in estimate_quality(translator, [as_translation(score)])[0]}
    assert {"repeated", "unlikely"} <= kinds
    longer = redecode(translator, [as_translation(score)])
    assert longer[0].source == "我爱你"
    assert len(estimate_quality(translator, longer)[0]) < len(kinds)


def test_unknown_characters_in_protected_spans_cause_no_warning() -> None:
    """Characters that were copied unchanged need no place in the vocabulary."""
    found = Translation("☃☃ 很 ☂", translation("", "☃☃ is ☂").alternatives, protected=((Span(0, 2), Span(0, 2)),))
    assert find_quality_warnings(found, unknown_characters="☃☂") == (QualityWarning("unread", "☂"),)


@pytest.mark.parametrize(
    ("source", "target", "missing"),
    [
        ("{a} mag {a} und :bo.", "{a} likes :co.", "{a}, :bo"),
        ("Er mag %%name.", "He likes % name.", "%%name"),
        ("Er mag <b>Tee</b>.", "He likes <b>tea</b>.", None),
        ("Er hat 5 km.", "He has five kilometers.", None),
        ("Er mag %%name喜欢.", "He likes it.", "%%name"),
        ("%user_name mag ~userName.", "He likes her.", "%user_name, ~userName"),
        ("@user_name und @name@", "He and she", "@user_name, @name@"),
        ("$name mag ${n} %s", "He likes it.", "$name, ${n}, %s"),
        ("<0>5</0> {n, number}", "5", "<0>, </0>, {n, number}"),
        ("Das kostet $US 5.", "It costs US$ 5.", None),
        ("Das kostet $CAD 5.", "It costs CAD 5.", None),
        ("Das kostet $5.50.", "It costs 5.50 $.", None),
        ("Eine 50 %ige Lösung.", "A 50% solution.", None),
        ("~Ungefähr 5", "About 5", None),
        ("~50 kg, <5 kg", "About 50 kg, less than 5 kg", None),
        ("@Anna ist da.", "@ Anna is here.", None),
        ("%%größer", "greater", None),
        (
            "{count, plural, one {Datei} other {# Dateien}} in {g, select, other {Ordnern}}",
            "{count, plural, one {file} other {# files}} in {g, select, other {folders}}",
            None,
        ),
    ],
)
def test_missing_placeholders_get_a_warning(source: str, target: str, missing: str | None) -> None:
    found = {each.kind: each.found for each in find_quality_warnings(Translation.of(source, target))}
    assert found.get("placeholders") == missing


@pytest.mark.parametrize(
    ("source", "target", "missing"),
    [
        ("3,5 Liter", "35 liters", "3,5"),
        ("1,5 Liter", "15 liters", "1,5"),
        ("12,5 %", "125%", "12,5"),
        ("99,95 Euro", "9,995 euros", "99,95"),
        ("1.234,56", "123,456", "1.234,56"),
        ("٢٥٫٥ كيلو", "255 kg", "٢٥٫٥"),
        ("am 13.5.2024", "on May 14, 2024", "13.5.2024"),
        ("am 25.12.2024", "on 25 November 2024", "25.12.2024"),
        ("2024年5月13日", "May 14, 2024", "2024年5月13"),
        ("on 25 November 2024", "am 25.12.2024", "November"),
        ("27.2. war ich da", "I was there on February 26th", "27.2."),
        ("3万", "3,000", "3万"),
        ("３．５亿", "3.5 million", "３．５亿"),
        ("150 million", "一点五万", "150 million"),
        ("132 yuan", "壹佰贰拾叁元", "132"),
        ("2,050", "两千五", "2,050"),
        ("40 % off", "打七折", "40"),
        ("1988年", "昭和62年", "1988"),
        ("昭和63年", "1987年", "63"),
        ("1.8米", "160センチ", "1.8"),
        ("25 o'clock", "二点五十分", "25"),
        ("3 Millionen", "3 thousand", "3 Millionen"),
        ("25 mil personas", "25 million people", "25 mil"),
        ("22 Hunde", "10 dogs", "22"),
        ("Kapitel 15", "Chapter 1.5", "15"),
        ("40 Leute", "fourteen people", "40"),
    ],
)
def test_wrong_values_are_missing_even_with_the_same_digits(source: str, target: str, missing: str) -> None:
    assert missing_numbers(source, target) == [missing]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("30 Leute", "thirty people"),
        ("10.000 Dollar", "ten thousand dollars"),
        ("Kanal 79", "neunundsiebzig"),
        ("am 88. Geburtstag", "zum achtundachtzigsten Geburtstag"),
        ("80 years", "quatre-vingts ans"),
        ("800,000 people", "八十万人"),
        ("３．５亿", "350 million"),
        ("１，２３４人", "1,234 people"),
        ("150 million", "一点五亿"),
        ("3.14", "三点一四"),
        ("0.5%", "百分之零点五"),
        ("0.3%", "千分之三"),
        ("123 yuan", "壹佰贰拾叁元"),
        ("25 yuan", "廿五元"),
        ("120, 2,500 and 32,000", "一百二、两千五和三万二"),
        ("a discount of 30 percent", "打七折"),
        ("75折", "25% off"),
        ("30%", "三割"),
        ("3.14", "三・一四"),
        ("1989年", "平成元年"),
        ("昭和63年", "1988年"),
        ("2024年5月23日", "令和6年5月23日"),
        ("2024", "民國一百一十三年"),
        ("1.8米", "180センチ"),
        ("500公克", "0.5 kg"),
        ("250ミリリットル", "0.25리터"),
        ("25% off", "打7.5折"),
        ("200 people", "이백 명"),
        ("40,000", "4万"),
        ("2만 5천 원", "25,000 won"),
        ("인구 5만 2024년", "50,000 inhabitants in 2024"),
        ("120 million", "1억 2천만"),
        ("3만 5만 명", "30,000 or 50,000 people"),
        ("22 Uhr", "10:00 p.m."),
        ("21 Uhr", "9 p.m."),
        ("at 2:30", "um halb drei"),
        ("1,50 Euro", "1.5 euros"),
        ("200 $", "$200.00"),
        ("1 Million Dollar", "$1,000,000"),
        ("$1.5M", "1,5 Millionen"),
        ("am 27.2. war", "on February 27th"),
        ("am 25.12.2024", "2024年12月25日"),
        ("٢٥٬٠٠٠", "25,000"),
        ("٢٥٫٥٪", "25.5%"),
        ("١٤:٣٠", "2:30 p.m."),
        ("25 mil personas", "25,000 people"),
        ("25 bin kişi", "25,000 people"),
        ("Mit 25 bin ich alt", "At 25 I am old"),
        ("25 тыс. человек", "25,000 people"),
        ("25 tisíc lidí", "25,000 people"),
        ("25 χιλιάδες", "25,000"),
        ("25 Tausend", "25,000"),
        ("25 लाख", "2,500,000"),
        ("2 करोड़", "20,000,000"),
        ("3 หมื่น", "30,000"),
        ("1億2000万円", "120 million yen"),
        ("25千克", "25 kg"),
        ("12,34,567 रुपये", "1,234,567 rupees"),
        ("in the 1960s", "in den Sechzigern"),
        ("25:21", "25-21"),
        ("Er ist 1,80 m groß.", "He is 180 cm tall."),
        ("He is 180 centimeters tall.", "Er ist 1,80m groß."),
        ("1,5 kg Mehl", "1500 g of flour"),
        ("身高1.80米", "180 cm tall"),
        ("2 km", "2000 m"),
        ("250 ml", "0,25 l"),
        ("1500 г", "1.5 кг"),
    ],
)
def test_equal_values_are_found_in_other_notations_and_words(source: str, target: str) -> None:
    assert missing_numbers(source, target) == []


@pytest.mark.parametrize(
    ("source", "target", "missing"),
    [
        ("Am 27.2. kam er.", "On March 27 he came.", ["27.2."]),
        ("Am 27.2. kam er.", "On February 27 he came.", []),
        ("Am 27.2. kam er.", "He may have come on 2/27.", []),
        ("Am 5.3. kam er.", "On May 5 he came.", ["5.3."]),
        ("Am 5.3. kam er.", "On March 6 he came.", ["5.3."]),
        ("Am 5.3. kam er.", "On the fifth of March he came.", []),
        ("5 apples", f"{'1' * 5000} apples", ["5"]),
    ],
)
def test_a_day_needs_its_month_and_long_numbers_are_compared(source: str, target: str, missing: list[str]) -> None:
    assert missing_numbers(source, target) == missing


@pytest.mark.parametrize(
    ("source", "target", "missing"),
    [
        ("Kapitel 1", "Chapter 11.", ["1"]),
        ("1,80 m", "175 cm", ["1,80"]),
        ("2 km", "200 m", ["2"]),
        ("2 kg", "2000 m", ["2"]),
        ("3 m²", "300 cm²", ["3"]),
        ("1500 m/s", "1.5 km/h", ["1500"]),
        ("1500 mal", "1.5 kal", ["1500"]),
        ("Kapitel 1", "Chapter 1.", []),
        ("Kapitel 1", "Chapter one.", []),
        ("3 von 5", "3 of 7", ["5"]),
        ("Um 3 Uhr", "At 15:00", []),
        ("2 Dutzend", "Two dozen, which is 24 or 25", []),
        ("um 19 Uhr", "at 7 p.m.", []),
        ("um 14 Uhr", "at 2", []),
        ("um 0 Uhr", "at 12 a.m.", []),
        ("von 9 bis 17 Uhr", "from 9 to 5", []),
        ("von 14 bis 16 Uhr", "from 2 to 5", ["16"]),
        ("15点开会", "The meeting is at 3 p.m.", []),
        ("It starts at 3 p.m.", "Es beginnt um 15 Uhr", []),
        ("um halb 3", "at half past 2", []),
        ("at half past 2", "um halb 3", []),
        ("deshalb 3", "therefore 2", ["3"]),
        ("2½ Stunden", "2.5 hours", []),
        ("1,5 Stunden", "1½ hours", []),
        ("Version 2", "Version 2.0", []),
        ("Version 2.0", "Version 2", []),
        ("1 Dollar", "1,000 dollars", ["1"]),
        ("20 °C", "68 °F", []),
        ("Kapitel " + "0" * 5_000 + "1", "Chapter 2", ["0" * 5_000 + "1"]),
    ],
)
def test_a_small_number_that_became_another_is_missing(source: str, target: str, missing: list[str]) -> None:
    assert missing_numbers(source, target) == missing


@pytest.mark.parametrize(
    "unit",
    [
        *("77 a ", "-77 b ", "12 345 ", "万", "hundred ", "24.12.2023 ", "12:30 ", "1 million ", "7 km "),
        *("７．７", "一点五", "千分之三", "令和六", "77折", "a? " * 20),
    ],
)
def test_time_is_linear_in_the_numbers_of_a_text(unit: str) -> None:
    times = []
    for count in (250, 4_000):
        text = "".join(f"{unit}{'x' * (number % 7)} " for number in range(count))
        start = time.process_time()
        missing_numbers(f"78 {text}", text)
        times.append(time.process_time() - start)
    assert times[1] < 80 * max(times[0], 0.002)
