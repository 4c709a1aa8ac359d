"""Test the division of texts into sentences and layout, and that translations keep the source's layout."""

import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transduce.errors import TransduceError
from transduce.inference.redecoding import estimate_quality, redecode
from transduce.inference.segmentation import LayoutWriter, SegmentedText, Segmenter, join_wrapped_lines
from transduce.inference.translation import Alternative, Translation, join_parts, with_sentences
from transduce.inference.translator import Translator
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.text import Tokenizer
from transduce.text.corpus import Pair
from transduce.text.languages import sentence_separator
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.text_settings import TextSettings
from transduce.text.word_spans import Span

GREEDY = SearchSettings(beam_size=1, max_length=8)


def segment(text: str, separator: str = " ", language: str | None = "zh", **settings: Any) -> SegmentedText:
    splits = settings.get("split_sentences") != "never"
    segmenter = Segmenter(
        TextSettings(**settings),
        splits=splits,
        separator=separator,
        source_language=language,
        passes_wordless=True,
        cut=lambda sentence, _: [sentence],
    )
    return segmenter(text)


def written(segmented: SegmentedText, translate: Any = str) -> str:
    """Return a segmented text with each sentence translated by a function."""
    writer, text = LayoutWriter(segmented), ""
    for sentence in segmented.sentences:
        text += writer.next_gap() + writer.write(translate(sentence.text))
    return text + writer.next_gap()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Layout: spaces, indentation, tabs, line ends, list marks.
        ("  - 玛丽在家画鸟  ", "  - <玛丽在家画鸟>  "),
        ("我\n\n\t你\r\n他\r", "<我>\n\n\t<你>\r\n<他>\r"),
        ("　　你好。　再见。", "　　<你好。>　<再见。>"),
        ("一\t二 \t 三", "<一>\t<二> \t <三>"),
        ("1. 第一。第二。\n2、第三\n(3) 四\n① 五\na) 六", "1. <第一。> <第二。>\n2、<第三>\n(3) <四>\n① <五>\na) <六>"),
        ("* 你\n• 我\n– 他\n1.2. 她\n（一）它", "* <你>\n• <我>\n– <他>\n1.2. <她>\n（一）<它>"),
        ("## 标题\n> 引用。真的？", "## <标题>\n> <引用。> <真的？>"),
        ("\t- 你。我。\n\t1. 他\n\t• 她", "\t- <你。> <我。>\n\t1. <他>\n\t• <她>"),
        ("- [ ] 做\n- [x] 完", "- [ ] <做>\n- [x] <完>"),
        ("1.我爱你。2.他走了。3) 再见。", "1. <我爱你。> 2. <他走了。> 3) <再见。>"),
        ("(3)四\n一、开始", "(3) <四>\n一、<开始>"),
        ("1.1 我爱你\n2.3.1 他走了\n2.3.1 Einleitung", "1.1 <我爱你>\n2.3.1 <他走了>\n2.3.1 <Einleitung>"),
        ("a) 我爱你。b) 你爱我吗？", "a) <我爱你。> b) <你爱我吗？>"),
        ("(a) 我爱你。(b) 你爱我吗？", "(a) <我爱你。> (b) <你爱我吗？>"),
        ("1、我爱你。2、你爱我吗？", "1、<我爱你。> 2、<你爱我吗？>"),
        ("①我爱你。②你爱我吗？", "①<我爱你。> ②<你爱我吗？>"),
        ("a) Er ging. b) Komm. c) Nein!", "a) <Er ging.> b) <Komm.> c) <Nein!>"),
        # Numbers that are no list marks.
        ("1.2.3.4 是我的IP", "<1.2.3.4 是我的IP>"),
        ("1.2.3 ist da.", "<1.2.3 ist da.>"),
        ("3.5 Äpfel", "<3.5 Äpfel>"),
        ("Nach Buchst. b) gilt das.", "<Nach Buchst. b) gilt das.>"),
        ("一、二、三，开始！", "<一、二、三，开始！>"),
        ("3.5 公斤", "<3.5 公斤>"),
        ("5. Mai ist schön.", "<5. Mai ist schön.>"),
        ("A. Smith 来了", "<A. Smith 来了>"),
        # Texts without a letter pass through.
        ("", ""),
        (" \t ", " \t "),
        ("1", "1"),
        ("!!!", "!!!"),
        ("😆", "😆"),
        ("-----\n你好\n3.14", "-----\n<你好>\n3.14"),
        ("{name}", "{name}"),
        ("我有三个。5。他走了。", "<我有三个。> 5. <他走了。>"),
        ("我爱你。{a}。好。", "<我爱你。> {a}. <好。>"),
        # Emoji at the ends of sentences.
        ("★ 你好", "★ <你好>"),
        ("我爱你。😆 他走了。😀", "<我爱你。> 😆 <他走了。> 😀"),
        # Several sentences.
        ("玛丽看了他的书吗？谁需要你的同学？", "<玛丽看了他的书吗？> <谁需要你的同学？>"),
        ("Hello.  How are you? Fine.", "<Hello.>  <How are you?> <Fine.>"),
    ],
)
def test_segmentation_separates_sentences_from_layout(text: str, expected: str) -> None:
    assert written(segment(text), lambda sentence: f"<{sentence}>") == expected


def test_a_line_that_is_never_split_has_its_tabs_in_a_sentence() -> None:
    (sentence,) = segment("一\t二", split_sentences="never").sentences
    assert sentence.text == "一\t二"


def test_sentences_are_joined_as_the_target_language_is_written() -> None:
    assert written(segment("How are you? Fine.  Good.", separator="", language="en")) == "How are you?Fine.  Good."
    assert written(segment("你好。再见。")) == "你好。 再见。"
    for language in ("th", "lo", "my", "khm_Khmr"):
        translated = segment("你好。再见。", separator=sentence_separator(language))
        assert written(translated) == "你好。 再见。"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("玛丽今天晚上会\n骑自行车去图书馆", ["玛丽今天晚上会骑自行车去图书馆"]),
        ("Hello my\n  dear friend. How\r\nare you?", ["Hello my dear friend.", "How are you?"]),
        ("one-\ntwo", ["one-two"]),
        ("Ich kam -\nund ging.", ["Ich kam - und ging."]),
        ("Donau\u00ad\ndampfer", ["Donaudampfer"]),
        ("・項目\n※注\n意", ["項目", "注意"]),
        ("а) один\nα) ένα\nأ) واحد\nक) एक\n(б) два", ["один", "ένα", "واحد", "एक", "два"]),
        ("나는 사과를\n좋아한다.", ["나는 사과를 좋아한다."]),
        ("她说\n“好”\n的样子", ["她说“好”的样子"]),
        ("第一\n段\n\n第二\n段", ["第一段", "第二段"]),
        ("- 你\n好\n- 再\n见", ["你好", "再见"]),
    ],
)
def test_wrapped_lines_are_joined_if_requested(text: str, sentences: list[str]) -> None:
    assert [each.text for each in segment(text, lines="join").sentences] == sentences
    assert len(segment(text).sentences) >= 2


def test_joined_lines_know_where_their_characters_are_from() -> None:
    text = "See\n  {a\n b} my\n{c}"
    joined = segment(text, lines="join", language="en")
    (sentence,) = joined.sentences
    assert [sentence.text[slice(*span)] for span in sentence.protected] == ["{c}"]
    for span in sentence.protected:
        assert text[slice(*sentence.source_span(span))] == sentence.text[slice(*span)]
    assert sentence.offsets[-1] == len(text)


def test_lines_of_a_file_are_joined_to_paragraphs() -> None:
    lines = ["Hello my", "  dear friend. How", "are you?", "", "- a", "- b", "c", " "]
    assert list(join_wrapped_lines(lines)) == ["Hello my dear friend. How are you?", "", "- a", "- b c", " "]


@given(st.text(alphabet="a我。. ?\n\t-1)😆{}　\r", max_size=40), st.booleans())
def test_writing_segmented_text_back_changes_only_spaces(text: str, splits: bool) -> None:
    segmented = segment(text, split_sentences="always" if splits else "never")
    assert "".join(written(segmented).split()).replace("。", ".") == "".join(text.split()).replace("。", ".")
    for sentence in segmented.sentences:
        assert sentence.text == text[sentence.offsets[0] : sentence.offsets[-1]]


@pytest.mark.parametrize(
    "text", [" " * 500_000, "a" + " " * 500_000 + "b", "😆" * 200_000, "\t" * 50_000, "- " * 100_000]
)
def test_long_layout_takes_linear_time(text: str) -> None:
    started_at = time.monotonic()
    assert written(segment(text)) == text
    assert time.monotonic() - started_at < 20


def test_invalid_text_settings_are_refused() -> None:
    with pytest.raises(TransduceError, match="`split_sentences` must be one of auto, always, never, but is 'some'"):
        TextSettings(split_sentences="some")  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match="`lines` must be one of separate, join, but is 'both'"):
        TextSettings(lines="both")  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match="is one text"):
        TextSettings(protect=r"\d+")  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match=r"regular expressions, but `\[` is none"):
        TextSettings(protect=("[",))


# --- translations of several sentences ---


def translation(source: str, *alternatives: tuple[str, float]) -> Translation:
    return Translation(
        source, tuple(Alternative(text, (text,), (-1.0,), value, ended=True) for text, value in alternatives)
    )


def test_alternatives_of_a_text_are_the_best_combinations() -> None:
    segmented = segment("甲。乙。")
    parts = [
        translation("甲。", ("A.", -1.0), ("a.", -1.5)),
        translation("乙。", ("B.", -2.0), ("b.", -2.2), ("β", -9.0)),
    ]
    joined = join_parts(segmented, parts, n_best=3, sampled=False)
    assert [(each.text, round(each.score, 6)) for each in joined.alternatives] == [
        ("A. B.", -3.0),
        ("A. b.", -3.2),
        ("a. B.", -3.5),
    ]
    assert joined.alternatives[1].tokens == ("A.", "b.")
    assert (joined.parts, joined.joined) == (2, (("甲。", "A."), ("乙。", "B.")))
    assert joined.positions == ((Span(0, 2), Span(0, 2)), (Span(2, 4), Span(3, 5)))
    samples = join_parts(segmented, parts, n_best=3, sampled=True)
    assert [each.text for each in samples.alternatives] == ["A. B.", "a. b.", "a. β"]


def test_a_better_sentence_replaces_the_first_sample_and_no_other() -> None:
    same = ("A.", -1.0)
    parts = [translation("甲。", same, same, ("a.", -1.5)), translation("乙。", ("B.", -2.0))]
    joined = join_parts(segment("甲。乙。"), parts, n_best=3, sampled=True)
    changed = with_sentences(joined, [translation("甲。", ("Better.", -0.5)), parts[1]], sampled=True)
    assert [each.text for each in changed.alternatives] == ["Better. B.", "A. B.", "a. B."]


def test_copied_spans_of_the_layout_are_reported() -> None:
    segmented = segment("你好。https://a.b/c 再见。")
    assert segmented.sentences[0].text == "你好。"
    whole = segment("{a}\n你好。")
    joined = join_parts(whole, [translation("你好。", ("Hello.", -1.0))], n_best=1, sampled=False)
    assert joined.text == "{a}\nHello."
    assert joined.protected == ((Span(0, 3), Span(0, 3)),)


def test_replacing_a_sentence_translation_shifts_the_offsets_after_it() -> None:
    segmented = segment("- 甲。{x}\n乙。")
    parts = [translation(each.text, ("A.", -1.0)) for each in segmented.sentences]
    joined = join_parts(segmented, parts, n_best=1, sampled=False)
    changed = with_sentences(joined, [translation(parts[0].source, ("longer.", -0.5)), parts[1]])
    assert with_sentences(joined, joined.sentences) is joined
    assert changed.text == joined.text.replace("A.", "longer.", 1)
    assert [changed.text[slice(*target)] for _, target in changed.positions] == ["longer.", "A."]
    assert changed.alternatives[0].score == -1.5
    for source, target in changed.protected:
        assert segmented.source[slice(*source)] == changed.text[slice(*target)]


# --- with a model ---

TEXT = "我吃鱼。老师卖牛奶。她买苹果。"


def test_each_sentence_is_translated_as_alone(translator: Translator) -> None:
    alone = translator(["我吃鱼。", "老师卖牛奶。", "她买苹果。"], search=GREEDY)
    found = translator(TEXT, search=GREEDY)
    assert found.text == " ".join(each.text for each in alone)
    assert [each.alternatives for each in found.sentences] == [each.alternatives for each in alone]
    assert found.score == pytest.approx(sum(each.score for each in alone))
    (single,) = translator(["我吃鱼。"], search=GREEDY)
    assert (single.parts, single.joined, single.sentences, single.positions) == (1, (), (), ())


def test_a_text_that_is_not_split_is_translated_whole(translator: Translator) -> None:
    never = translator(TEXT, search=GREEDY, text_settings=TextSettings(split_sentences="never"))
    assert (never.parts, translator(TEXT, search=GREEDY).parts) == (1, 3)
    own = Translator(
        translator.model, translator.tokenizer, text=TextSettings(split_sentences="never"), search=translator.search
    )
    assert own(TEXT, search=GREEDY).text == never.text


@pytest.mark.parametrize("search", [GREEDY, SearchSettings(beam_size=3, max_length=8)])
@pytest.mark.parametrize("text", [TEXT, "  - 我吃鱼。\n\n1\n\t她买苹果。老师卖牛奶。 ", "!!!", "我吃鱼。😆"])
def test_a_streamed_text_equals_its_translation(translator: Translator, text: str, search: SearchSettings) -> None:
    assert "".join(translator.stream(text, search)) == translator(text, search=search).text


def test_a_translation_keeps_the_layout_of_its_source(translator: Translator) -> None:
    fish, apples = (each.text for each in translator(["我吃鱼。", "她买苹果。"], search=GREEDY))
    found = translator(["  - 我吃鱼。 \n\n1\n\t她买苹果。", "1", "!!!😆"], search=GREEDY)
    assert [each.text for each in found] == [f"  - {fish} \n\n1\n\t{apples}", "1", "!!!😆"]
    assert found[1].alternatives == (Alternative("1", (), (), 0.0, ended=True),)


def test_the_prefix_begins_the_first_sentence_only(translator: Translator) -> None:
    found = translator(TEXT, search=GREEDY, prefix="she likes")
    assert found.text.startswith("she likes")
    plain = translator(TEXT, search=GREEDY)
    assert [each.text for each in found.sentences[1:]] == [each.text for each in plain.sentences[1:]]


def test_samples_of_sentences_have_their_own_seeds(translator: Translator) -> None:
    search = SearchSettings(n_best=3, max_length=8, sampling=SamplingSettings(seed=3))
    found = translator("我吃鱼。我吃鱼。", search=search)
    first, second = ([each.text for each in part.alternatives] for part in found.sentences)
    assert len(found.alternatives) == 3
    assert first != second
    assert first == [each.text for each in translator("我吃鱼。", search=search).alternatives]


def test_marked_spans_are_found_in_their_sentences(translator: Translator) -> None:
    found = translator(f"- {TEXT}", search=GREEDY)
    spans = [(2 + TEXT.index("鱼"), 3 + TEXT.index("鱼")), (2 + TEXT.index("苹果"), 4 + TEXT.index("苹果"))]
    for place, sentence in zip(translator.locate([found], [spans])[0], (0, 2), strict=True):
        _, target = found.positions[sentence]
        assert target.start <= place.start <= place.end <= target.end


def test_only_sentences_with_warnings_are_decoded_again(translator: Translator) -> None:
    found = translator(TEXT, search=GREEDY)
    doubtful = translation(found.sentences[1].source, ("the the the the the the", -9.0))
    found = with_sentences(found, [found.sentences[0], doubtful, found.sentences[2]])
    assert "repeated" in {warning.kind for warning in estimate_quality(translator, [found])[0]}
    (better,) = redecode(translator, [found], GREEDY)
    assert "the the the" not in better.text
    assert better.text.startswith(found.sentences[0].text)
    assert better.text.endswith(found.sentences[2].text)
    assert better.sentences[1].source == doubtful.source


def test_ten_thousand_sentences_in_a_line(translator: Translator) -> None:
    found = translator("鱼。" * 10_000, search=SearchSettings(beam_size=1, max_length=3))
    assert found.parts == 10_000
    assert found.text == " ".join([found.sentences[0].text] * 10_000)


class Reader:
    """An observer that follows partial translations, and checks that their final parts never change."""

    def __init__(self) -> None:
        self.final: dict[int, str] = {}
        self.reports = 0

    def after_step(self, sentence_indices: Any, tokens: Any) -> list[int]:  # noqa: ARG002
        return []

    def after_text(self, text: int, final: str, draft: str) -> None:
        assert final.startswith(self.final.get(text, ""))
        assert draft.startswith(final)
        self.final[text] = final
        self.reports += 1


@pytest.mark.parametrize("beam_size", [1, 3])
def test_an_observer_follows_texts_sentence_by_sentence(translator: Translator, beam_size: int) -> None:
    reader, search = Reader(), SearchSettings(beam_size=beam_size, max_length=8)
    texts = [TEXT, "我吃鱼。", "  - 她买苹果。", "我吃鱼。{a} 我卖书。她买苹果。"]
    found = translator.translate(texts, search, observer=reader)
    assert found == translator.translate(texts, search)
    assert set(reader.final) == {0, 2, 3}  # a plain sentence is followed by its tokens
    assert all(found[text].text.startswith(final) for text, final in reader.final.items())
    assert reader.reports > 10
    if beam_size == 1:
        assert reader.final[2] == found[2].text
    assert "{a}" not in reader.final[3]  # what follows a protected span is known at the end


@pytest.mark.parametrize("beam_size", [1, 2])
def test_final_starts_and_streams_begin_the_translation_of_a_model_that_writes_line_feeds(beam_size: int) -> None:
    pairs = [Pair("a b c d.", "a\nb c d.", 1)]
    settings = TokenizerSettings(kind="character", byte_fallback=False, line_feeds=True)
    tokenizer = Tokenizer.train(lambda: pairs, settings)
    config = ModelConfig(
        source_vocabulary_size=tokenizer.source.size,
        target_vocabulary_size=tokenizer.target.size,
        d_model=16,
        num_heads=2,
        d_ff=16,
        num_encoder_layers=1,
        num_decoder_layers=1,
        pad_id=tokenizer.target.pad_id,
        eos_id=tokenizer.target.eos_id,
    )
    torch.manual_seed(3)
    translator = Translator(Transformer(config).eval(), tokenizer, source_language="en", target_language="de")
    sampled = SearchSettings(min_length=20, max_length=21, sampling=SamplingSettings(temperature=50.0, seed=5))
    search = sampled if beam_size == 1 else SearchSettings(beam_size=beam_size, min_length=20, max_length=21)
    texts = ["  - a b c", "  - b d", " d\nc", "a\n", " c b"]
    reader = Reader()
    found = translator.translate(texts, search, observer=reader)
    assert len(reader.final) == len(texts)
    for text, (source, translation) in enumerate(zip(texts, found, strict=True)):
        assert translation.text.startswith(reader.final[text])
        assert "\n" in source or "\n" not in reader.final[text]
    if beam_size == 1:
        assert "\n" in reader.final[2].strip()
    for source in texts:
        (best,) = translator.translate([source], search)
        assert "".join(translator.stream(source, search)) == best.text
