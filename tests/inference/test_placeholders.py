"""Test that protected spans occur exactly once in the translation, with and without placeholder tokens."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch

from transduce.commands.evaluation import _with_scores
from transduce.errors import TransduceError
from transduce.inference.batching import TextPart
from transduce.inference.placeholders import (
    Placeholders,
    ProtectedRun,
    _at_edge,
    _InsertedRun,
    _Request,
    _with_brackets,
    find_unknown,
    mask_pair,
    mask_part,
    remove_placeholders,
)
from transduce.inference.quality_estimation import find_quality_warnings, nats_per_token
from transduce.inference.translation import Translation
from transduce.inference.translator import Translator
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.text.corpus import Pair
from transduce.text.protected import PLACEHOLDER_TOKENS, find_protected
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.text_settings import TextSettings
from transduce.text.tokenizer import Tokenizer, placeholder_tokens
from transduce.text.word_spans import Span

SOURCES = [
    "我喜欢 {name} 和 %s。",
    "{name}喜欢苹果。",
    "我买书<0>今天。",
    "老师看见https://example.org/a_b?c=1。",
    "<b>我</b>吃鱼😆",
    "{a}{b} {c}我喜欢茶。",
    "“{name}”买书。",
    "我卖 {1} {2}。我买 {3}，他吃{4}，{5}鱼{6}，{7}茶{8}，{9}书{10}，水{11}",
]
SEARCHES = [
    SearchSettings(beam_size=1),
    SearchSettings(beam_size=3),
    SearchSettings(beam_size=4, n_best=3),
    SearchSettings(sampling=SamplingSettings(seed=1), n_best=2),
]


@pytest.fixture(scope="module")
def translator_with_placeholders() -> Translator:
    """Return a translator with placeholder tokens and random weights, which may write placeholders anywhere."""
    pairs = [Pair("我喜欢苹果。", "I like apples.", n, "") for n in range(40)]
    pairs += [Pair("老师今天买书，他吃鱼。", "the teacher buys books today, he eats fish.", n, "") for n in range(40)]
    settings = TokenizerSettings(vocabulary_size=120, byte_fallback=False, user_symbols=PLACEHOLDER_TOKENS)
    tokenizer = Tokenizer.train(lambda: pairs, settings, adjust=True)
    torch.manual_seed(3)
    size = tokenizer.source.size
    config = ModelConfig(
        source_vocabulary_size=size,
        target_vocabulary_size=size,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        pad_id=0,
        start_id=1,
        eos_id=1,
    )
    model = Transformer(config).eval()
    return Translator(model, tokenizer, source_language="zh", target_language="en")


@pytest.fixture(params=["without tokens", "with tokens"])
def each_translator(request: Any, translator: Translator, translator_with_placeholders: Translator) -> Translator:
    return translator if request.param == "without tokens" else translator_with_placeholders


@pytest.mark.parametrize("search", SEARCHES)
def test_every_span_is_kept_exactly_once(each_translator: Translator, search: SearchSettings) -> None:
    never = TextSettings(split_sentences="never")
    for settings in (TextSettings(), never):
        for translation in each_translator.translate(SOURCES, search, text_settings=settings):
            source, spans = translation.source, find_protected(translation.source)
            for alternative in translation.alternatives:
                assert "placeholder" not in alternative.text
                for start, end in spans:
                    assert alternative.text.count(source[start:end]) == source.count(source[start:end])
            pairs = translation.protected
            assert [one for one, _ in pairs] == sorted(one for one, _ in pairs)
            assert {*spans} <= {one for one, _ in pairs}
            assert all(source[slice(*one)] == translation.text[slice(*other)] for one, other in pairs)


TAGGED = [
    "<0>我</0>喜欢<1>苹果</1>。",
    "<b>我<i>喜欢</i>苹果</b>。",
    "<a href='x'>{name}喜欢</a> <b>{other}</b>茶<br>，<i>他</i>吃<sup>1</sup>鱼。",
    "<b>我买书。他</b>吃<i>鱼。老师</i>看见<u>他。我</u>喜欢茶。",
    "我<b>喜欢<i>苹果</b>和</i>茶。",
    "</b>我<i>买</i>书<b>今天",
    "<li>我</li><li>他</li>",
    "<0></0>我<1>喜欢%s</1>{a}<2>书{b}</2>。",
]
_TAG = re.compile(r"<(/?)(\w+)[^>]*>")


def _elements(text: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the elements of a text, each with the one around it, and the start and end tags without a partner."""
    opened: list[str] = []
    elements: list[tuple[str, str]] = []
    single: list[str] = []
    for match in _TAG.finditer(text):
        if match[1] and match[2] in opened:
            while (name := opened.pop()) != match[2]:
                single.append(name)
            elements.append((name, opened[-1] if opened else ""))
        elif match[1]:
            single.append(match[0])
        elif match[2] != "br":
            opened.append(match[2])
    return sorted(elements), single + opened


@pytest.mark.parametrize("search", SEARCHES)
def test_pairs_of_tags_stay_nested(each_translator: Translator, search: SearchSettings) -> None:
    for translation in each_translator.translate(TAGGED, search):
        source, spans = translation.source, find_protected(translation.source)
        for alternative in translation.alternatives:
            text = alternative.text
            assert sorted(m[0] for m in _TAG.finditer(text)) == sorted(m[0] for m in _TAG.finditer(source))
            for name in ("0", "1", "2", "b", "i", "a", "u", "li"):
                own = [m[0] for m in _TAG.finditer(text) if m[2] == name]
                assert own == [m[0] for m in _TAG.finditer(source) if m[2] == name]
            if source != TAGGED[4]:
                assert _elements(text) == _elements(source)
        assert {*spans} <= {one for one, _ in translation.protected}
        assert all(source[slice(*one)] == translation.text[slice(*other)] for one, other in translation.protected)
        assert "<b>{other}</b>" in translation.text or "{other}" not in source
        assert "<sup>1</sup>" in translation.text or "<sup>" not in source


def test_tags_go_around_the_translation_of_their_words(translator: Translator) -> None:
    text = "I <0>like</0> red <1>tea {x}</1>"
    part = TextPart(text, 0, 0, [1, 2], protected=tuple(find_protected(text)))

    def translate(parts: Sequence[TextPart]) -> dict[tuple[int, int], Translation]:
        assert [each.text for each in parts] == ["I like red tea {x}"]
        texts = ("{x} tea red like I", "tea {x} red like I")
        alternatives = tuple(Translation.of(parts[0].text, each).alternatives[0] for each in texts)
        copies = ((Span(15, 18), Span(0, 3)),)
        return {(0, 0): Translation(parts[0].text, alternatives, protected=copies)}

    def locate(translations: Sequence[Translation], spans: Sequence[Sequence[Span]]) -> list[list[Span]]:
        words = [[each.source[slice(*span)] for span in own] for each, own in zip(translations, spans, strict=True)]
        assert words == [["like", "tea {x}"]] * 2
        assert [each.protected[0][1] for each in translations] == [Span(0, 3), Span(4, 7)]
        return [[Span(12, 16), Span(0, 7)]] * 2

    found = Placeholders(translator.tokenizer, "en").with_tag_pairs([part], translate, locate)[0, 0]
    texts = [each.text for each in found.alternatives]
    assert texts == ["<1>{x} tea</1> red <0>like</0> I", "<1>tea {x}</1> red <0>like</0> I"]
    assert all(text[slice(*own)] == found.text[slice(*copy)] for own, copy in found.protected)
    assert len(found.protected) == 5


def test_streams_and_prefixes_keep_pairs_of_tags(each_translator: Translator) -> None:
    search = SearchSettings(beam_size=2)
    (found,) = each_translator.translate(["<b>我</b>喜欢<i>苹果</i>。"], search, prefix="I like")
    assert _TAG.sub("", found.text).startswith("I like")
    for source in TAGGED:
        assert "".join(each_translator.stream(source, search)) == each_translator.translate([source], search)[0].text


@pytest.mark.parametrize(
    "text", [*SOURCES, "我喜欢茶。", "我喜欢茶。https://example.org/a", "https://example.org/a", ""]
)
def test_as_many_samples_are_returned_as_are_drawn(each_translator: Translator, text: str) -> None:
    """Equal samples stay, also after placeholder tokens have been replaced or removed, and if sentences are copied."""
    search = SearchSettings(sampling=SamplingSettings(seed=1, temperature=0.1), n_best=30, max_length=4)
    (result,) = each_translator.translate([text], search)
    assert len(result.alternatives) == 30
    assert len({each.text for each in result.alternatives}) < 30
    for literal in (text[slice(*span)] for span in find_protected(text)):
        assert all(literal in each.text for each in result.alternatives)


def test_sentences_without_spans_are_translated_as_without_placeholders(each_translator: Translator) -> None:
    alone = each_translator.translate(["我喜欢苹果。"], SearchSettings(beam_size=2))
    beside = each_translator.translate(["我喜欢苹果。", SOURCES[0]], SearchSettings(beam_size=2))
    assert beside[0] == alone[0]
    assert alone[0].protected == ()


def test_streams_prefixes_and_glossaries_keep_spans(each_translator: Translator) -> None:
    search = SearchSettings(beam_size=2)
    for source in SOURCES:
        assert "".join(each_translator.stream(source, search)) == each_translator.translate([source], search)[0].text
    (again,) = each_translator.translate(["我喜欢 %s。"], search, prefix="I like")
    assert again.text.startswith("I like")
    assert again.text.count("%s") == 1
    (termed,) = each_translator.translate(["我喜欢 %s 苹果。"], search, glossary={"苹果": "apples"})
    assert termed.text.count("%s") == 1


def test_a_required_phrase_that_is_a_span_is_written_once(each_translator: Translator) -> None:
    span = [Span(3, 8)]
    search = SearchSettings(beam_size=2)
    (found,) = each_translator.translate(["我喜欢today。"], search, phrases=[["today"]], protected=[span])
    assert found.text.count("today") == 1


def test_explicit_spans_replace_those_that_are_found(translator: Translator) -> None:
    source = "我喜欢苹果 {name}。"
    (translation,) = translator.translate([source], SearchSettings(), protected=[[Span(3, 5)]])
    assert translation.text.count("苹果") == 1
    assert next(source[slice(*one)] for one, _ in translation.protected) == "苹果"


def test_a_users_expression_protects_what_it_matches(translator: Translator) -> None:
    (translation,) = translator.translate(["我买书。"], SearchSettings(), text_settings=TextSettings(protect=("书",)))
    assert translation.text.count("书") == 1


@pytest.mark.parametrize("text", ["{name} %s", "😆", "{name}: 5", "<b>1</b>"])
def test_a_text_without_a_letter_outside_its_spans_is_copied(each_translator: Translator, text: str) -> None:
    (translation,) = each_translator.translate([text], SearchSettings())
    assert translation.text == text


def test_unknown_characters_are_copied_and_words_stay_whole(translator: Translator) -> None:
    text = "我喜欢 Čapek 和龘龘。"
    assert [text[slice(*span)] for span in find_unknown(text, translator.tokenizer.source)][-1].endswith("龘龘")
    (translation,) = translator.translate(["我喜欢龘龘。"], SearchSettings())
    assert translation.text.count("龘龘") == 1


def test_unknown_characters_beside_protected_spans_are_copied(translator: Translator) -> None:
    (translation,) = translator.translate(["我喜欢{name}龘龘😀。"], SearchSettings())
    assert all(translation.text.count(each) == 1 for each in ("{name}", "龘龘", "😀"))
    source = translation.source
    assert [source[slice(*one)] for one, _ in translation.protected] == ["{name}", "龘龘", "😀"]


def test_the_words_of_the_source_keep_their_tokens(translator_with_placeholders: Translator) -> None:
    """Training has no token of a lone space before a placeholder."""
    tokenizer = translator_with_placeholders.tokenizer
    tokens = placeholder_tokens(tokenizer)
    assert tokens == PLACEHOLDER_TOKENS
    for text, masked in (
        ("我喜欢 {name} 他书", "我喜欢<placeholder-1>他书"),
        ("I like {name} apples", "I like<placeholder-1> apples"),
        ("{name} eats fish", "<placeholder-1> eats fish"),
    ):
        ids = tokenizer.source.with_special_tokens(tokenizer.source.encode(text))
        part = TextPart(text, 0, 0, ids, protected=tuple(find_protected(text)))
        found = mask_part(part, tokenizer, tokens)
        assert found is not None
        assert found.masked.text == masked
        pieces = tokenizer.source.tokens(found.masked.ids)
        assert pieces[pieces.index("<placeholder-1>") - 1] != "▁"
        left_out = mask_part(part, tokenizer, ())
        assert left_out is not None
        assert "placeholder" not in left_out.masked.text


@pytest.mark.parametrize(
    ("source", "text", "offset", "written"),
    [
        ("玛丽画 {name} 和 %s", "Mary draws and", 10, "Mary draws {name} and"),
        ("你好，{name}！", "Hello!", 5, "Hello {name}!"),
        ("Click {name}.", "点击。", 2, "点击{name}。"),
        ("Open ({name}) now", "Öffne jetzt", 5, "Öffne ({name}) jetzt"),
        ("{name}'s house", "Haus", 0, "{name} Haus"),
        ("A hat -{name}!", "Ein Hut.", 8, "Ein Hut. {name}"),
        ("会<0>骑自行车", "can ride a bicycle", 4, "can <0>ride a bicycle"),
        ("住在</b>北京", "lives in Beijing", 8, "lives in</b> Beijing"),
        ("设\\begin{math}x\\end{math}为", "Let be", 3, "Let \\begin{math}x\\end{math} be"),
        ("Hello\\nWorld", "Hallo Welt", 5, "Hallo\\nWelt"),
        ("（{name}）好", "good", 0, "({name}) good"),
        # Inside a word of the translation: behind the word, unless the source has the span inside a word too.
        ("Ich %s bin da", "I'm here", 1, "I'm %s here"),
        ("Es geht {name} nicht", "It doesn't work", 9, "It doesn't {name} work"),
        ("我 %s 在", "I’m here", 1, "I’m %s here"),
        ("Open x{name}y", "Öffne xy", 7, "Öffne x{name}y"),
    ],
)
def test_spans_get_the_spaces_of_the_target_language(
    translator: Translator, source: str, text: str, offset: int, written: str
) -> None:
    placeholders = Placeholders(translator.tokenizer, "zh" if text == "点击。" else "en")
    span = find_protected(source)[0]
    run = ProtectedRun(_with_brackets(span, source), (span,), "")
    result, pairs = placeholders._write(source, text, [_InsertedRun(offset, run)])
    assert result == written
    assert [(source[slice(*one)], result[slice(*other)]) for one, other in pairs] == [(source[slice(*span)],) * 2]


@pytest.mark.parametrize(("before", "offset"), [("A hat", 7), ("A hat -", 7), ("A hat (", 7), ("A hat!", 8)])
def test_a_span_at_the_end_stays_within_the_sentence_unless_it_follows_its_end(before: str, offset: int) -> None:
    assert _at_edge(_Request(f"{before}.", len(before), "Ein Hut.")) == offset


def test_streamed_text_has_no_placeholder_token() -> None:
    assert remove_placeholders("a <placeholder-3>b") == "a b"


@pytest.mark.parametrize("spans", [[Span(0, 9)], [Span(1, 1)], [Span(2, 3), Span(1, 2)], [Span(0, 2), Span(1, 3)]])
def test_overlapping_or_out_of_range_spans_are_refused(translator: Translator, spans: list[Span]) -> None:
    with pytest.raises(TransduceError, match="in order and disjoint, from 0 to 4 in this text"):
        translator.translate(["我买书。"], SearchSettings(), protected=[spans])


def test_a_rare_character_that_is_encoded_as_bytes_is_an_ordinary_word() -> None:
    lines = ["玛丽画鸟", "汤姆画牛", "玛丽画牛", "汤姆画鸟"] * 20 + ["玛丽画鱼"]
    settings = TokenizerSettings(vocabulary_size=300, byte_fallback=True, character_coverage=0.99)
    tokenizer = Tokenizer.train(lambda: [Pair(line, line, 1) for line in lines], settings, adjust=True)
    vocabulary = tokenizer.source
    assert len(vocabulary.encode("鱼")) > 2  # bytes
    assert find_unknown("玛丽画鱼", vocabulary) == []
    assert find_unknown("玛丽画😆", vocabulary) == [(3, 4)]
    assert find_unknown("玛丽画ปลา", vocabulary) == [(3, 6)]


def test_unknown_punctuation_is_no_span(translator: Translator) -> None:
    assert find_unknown("我买书〽", translator.tokenizer.source) == []
    assert find_unknown("我买书⸮", translator.tokenizer.source) == []


def test_copied_spans_give_no_quality_warnings() -> None:
    both = msgspec.structs.replace(
        Translation.of("他卖龘龘和{name}。", "he sells 龘龘 and {name}."),
        protected=((Span(2, 4), Span(9, 11)), (Span(5, 11), Span(16, 22))),
    )
    copied = msgspec.structs.replace(Translation.of("{name}: 5", "{name}: 5"), protected=((Span(0, 6), Span(0, 6)),))
    known: Any = {"source_language": "zh", "target_language": "en", "unknown_characters": "龘"}
    assert {each.kind for each in find_quality_warnings(both, **known)} <= {"unlikely"}
    assert find_quality_warnings(copied, **known) == ()


# --- given translations ---


def _latin_tokenizer() -> Tokenizer:
    """Return a tokenizer for German and English whose vocabulary has all letters and punctuation of the tests."""
    pairs = [Pair("„Er“ (mag) kommt. Ich habe und wohnt in:", 'He "lives" (comes) in.', n, "") for n in range(40)]
    return Tokenizer.train(lambda: pairs, TokenizerSettings(vocabulary_size=80), adjust=True)


@pytest.mark.parametrize(
    ("source", "target", "masked_source", "masked_target"),
    [
        ("{name} wohnt in {city}.", "{name} lives in {city}.", "wohnt in .", "lives in."),
        ("Er („%s“) kommt.", 'He ("%s") comes.', "Er () kommt.", "He () comes."),
        ("Ich <b>habe</b> {a} und {b}.", "I have <b>{a}</b> and.", "Ich habe und {b}.", "I have and."),
        ("{a} mag {a}.", "{a} likes {a} and {a}.", "mag .", "likes and {a}."),
        ("Er kommt.", "He comes.", None, None),
        ("{name} kommt.", "He comes.", None, None),
    ],
)
def test_copied_spans_are_left_out_of_a_given_translation(
    source: str, target: str, masked_source: str | None, masked_target: str | None
) -> None:
    pair = mask_pair(source, target, _latin_tokenizer(), ())
    assert (pair and pair.source, pair and pair.target) == (masked_source, masked_target)
    for span, copy in pair.protected if pair else ():
        assert source[slice(*span)] == target[slice(*copy)]


def test_placeholder_tokens_replace_copied_spans_on_both_sides(translator_with_placeholders: Translator) -> None:
    tokenizer = translator_with_placeholders.tokenizer
    pair = mask_pair("{a}{b} 喜欢 {c}。", "{c} likes {a}{b}.", tokenizer, placeholder_tokens(tokenizer))
    assert pair is not None
    assert pair.source == "<placeholder-1>喜欢<placeholder-2>。"
    assert pair.target == "<placeholder-2> likes<placeholder-1>."
    score = translator_with_placeholders.score([pair.source], [pair.target])[0]
    assert score.tokens[0] == "<placeholder-2>"


def test_given_translations_are_scored_like_those_of_a_search(translator: Translator) -> None:
    sources = ["{name}喜欢苹果。", "我喜欢 %s。", "老师看见https://example.org/a_b?c=1。", "我吃鱼😆", "我吃鱼"]
    own = translator.translate(sources, SearchSettings(beam_size=1))
    given = _with_scores(translator, sources, [each.text for each in own])
    for one, other in zip(own, given, strict=True):
        assert nats_per_token(other) == pytest.approx(nats_per_token(one), abs=1e-3)
        assert other.protected == one.protected


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (" 's there.", "{name}'s there."),
        ("'ll come.", "{name}'ll come."),
        ("’re here.", "{name}’re here."),
        ("is here.", "{name} is here."),
        ("'s' is a letter.", "{name} 's' is a letter."),
        ("'salt' is here.", "{name} 'salt' is here."),
    ],
)
def test_no_space_separates_an_english_clitic_from_a_span(translator: Translator, text: str, written: str) -> None:
    run = ProtectedRun(Span(0, 6), (Span(0, 6),), "")
    found, pairs = Placeholders(translator.tokenizer, "en")._write("{name} ist da.", text, [_InsertedRun(0, run)])
    assert found == written
    assert pairs == ((Span(0, 6), Span(0, 6)),)
