"""Test that canonically equivalent texts (Unicode NFC and NFD) give the same results, at their own offsets."""

import time
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch

from transduce.data.holdout import source_keys
from transduce.errors import TransduceError
from transduce.evaluation.scores import rouge, score
from transduce.evaluation.significance import compare
from transduce.inference.placeholders import find_unknown
from transduce.inference.quality_estimation import find_quality_warnings
from transduce.inference.segmentation import Segmenter
from transduce.inference.translator import Translator
from transduce.interop.vocabulary_files import learn_words
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search.settings import SearchSettings
from transduce.text.corpus import Pair
from transduce.text.files import compose, is_composed
from transduce.text.filters import pair_digest
from transduce.text.languages import common_profiles, detect_other_language
from transduce.text.sentencepiece_model import TokenizerSettings, train_model
from transduce.text.text_settings import TextSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import Vocabulary, tag_token
from transduce.text.word_spans import Span, encode_with_spans, normalized_text, split_words

SENTENCES = (
    "Der Käufer öffnete die Tür für fünf Gäste.",
    "L'élève a mangé le gâteau à Noël.",
    "Tiếng Việt có nhiều dấu.",
    "한국어는 아름다운 언어입니다.",
    "がぎぐげご、ぱぴぷぺぽ。",
    "क़लम और ज़मीन।",
    "Ångström, Škoda, Łódź, x̣́.",
)


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def pairs(form: Literal["NFC", "NFD"] = "NFC") -> list[Pair]:
    texts = [unicodedata.normalize(form, text) for text in SENTENCES * 20]
    return [Pair(text, texts[number - 3], number) for number, text in enumerate(texts, 1)]


def learn(
    kind: Literal["bpe", "unigram", "character"], form: Literal["NFC", "NFD"] = "NFC", **settings: Any
) -> Tokenizer:
    chosen = TokenizerSettings(kind=kind, vocabulary_size=500, **settings)
    return Tokenizer.train(lambda: pairs(form), chosen, adjust=True)


@pytest.fixture(scope="module")
def translator() -> Translator:
    """Return a translator with random weights for texts in several scripts."""
    tokenizer = learn("bpe")
    torch.manual_seed(5)
    config = ModelConfig(
        source_vocabulary_size=tokenizer.source.size,
        target_vocabulary_size=tokenizer.target.size,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        pad_id=0,
        start_id=1,
        eos_id=1,
    )
    return Translator(Transformer(config).eval(), tokenizer, source_language="sr", target_language="fr")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_a_vocabulary_does_not_depend_on_the_form_of_its_text(kind: Any) -> None:
    one, other = learn(kind), learn(kind, "NFD")
    assert one.source.model_bytes == other.source.model_bytes
    assert one.source.composes
    for text in SENTENCES:
        assert one.source.encode(text) == one.source.encode(decomposed(text))
        assert one.source.decode(one.source.encode(decomposed(text))) == text


def test_words_do_not_depend_on_the_form_of_the_text() -> None:
    one, other = (
        learn_words([[each.source for each in pairs(form)]], 500, min_count=2).source for form in ("NFC", "NFD")
    )
    assert one.composes
    for text in SENTENCES:
        assert one.encode(text) == one.encode(decomposed(text)) == other.encode(decomposed(text))
        assert one.unk_id not in one.encode(decomposed(text))


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_a_vocabulary_of_decomposed_text_reads_texts_as_they_are(kind: Any) -> None:
    lines = [decomposed(text) for text in SENTENCES[:4] * 20]
    settings = TokenizerSettings(kind=kind, vocabulary_size=400)
    model = train_model(lambda: lines, settings, adjust=True)
    vocabulary = Vocabulary(model)
    assert not vocabulary.composes
    assert vocabulary.normalize(lines[0]) == lines[0]
    assert Vocabulary(model, nfc=True).normalize(lines[0]) == SENTENCES[0]


def test_every_character_of_a_normalized_text_has_its_origin() -> None:
    for text in (*SENTENCES, "".join(SENTENCES), "\u0301a", "a\u00adb\u00ad"):
        for form in ("NFC", "NFD"):
            written = unicodedata.normalize(form, text)
            found = normalized_text(written, compose)
            assert found.text == compose(text)
            assert found.original_span(Span(0, len(found.text))) == (0, len(written))
            for position, character in enumerate(found.text):
                origin = found.original_span(Span(position, position + 1))
                assert character in compose(written[slice(*origin)])
                inside = found.normalized_span(origin)
                assert inside.start <= position < inside.end


@pytest.mark.parametrize("text", ["\u11a8o\u0f73\u0308", "a\u0f75\u0f81\u0301", "\u0f40\u0f74\u0f73\u0f71"])
def test_letters_that_decompose_into_marks_are_composed_with_their_neighbors(text: str) -> None:
    assert normalized_text(text, compose).text == compose(text)


def test_words_are_disjoint_where_composition_lengthens_a_letter() -> None:
    assert split_words("\u05d0\u0b56\u1025\u0344\u0308") == [(0, 2), (2, 5)]
    assert split_words("か\u0344x が") == [(0, 2), (2, 3), (4, 5)]


def test_many_marks_in_a_row_stay_as_they_are_everywhere() -> None:
    assert compose("e" + "\u0301\u0323" * 150 + "e\u0301") == unicodedata.normalize(
        "NFC", "e" + "\u0301\u0323" * 150 + "e\u0301"
    )
    marks = "\u0301\u0323" * 50_000  # sorting them takes a minute
    for text in (f"e\u0301 a{marks} e\u0301", f"か{marks}", f"\u226a\u0338{marks}\u0344e\u0301"):
        started = time.process_time()
        composed = compose(text)
        assert marks in composed
        assert compose(composed) == composed
        assert is_composed(composed)
        assert normalized_text(text, compose).text == composed
        split_words(text)
        assert time.process_time() - started < 5.0
    assert compose(f"e\u0301 a{marks} e\u0301") == f"é a{marks} é"
    assert not is_composed(f"e\u0301 a{marks}")


def test_words_are_found_in_any_form() -> None:
    for text in SENTENCES:
        words = [compose(decomposed(text)[slice(*span)]) for span in split_words(decomposed(text))]
        assert words == [text[slice(*span)] for span in split_words(text)]


def test_tokens_are_located_in_any_form() -> None:
    vocabulary = learn("bpe").source
    for text in SENTENCES:
        ids, spans = encode_with_spans(vocabulary, decomposed(text))
        own_ids, own_spans = encode_with_spans(vocabulary, text)
        assert ids == own_ids
        assert [compose(decomposed(text)[slice(*span)]) for span in spans] == [text[slice(*span)] for span in own_spans]
    unknown = decomposed("Der Käufer ging nach Ŵŷ.")
    assert [compose(unknown[slice(*span)]) for span in find_unknown(unknown, vocabulary)] == ["Ŵŷ"]


TEXTS = (
    *SENTENCES,
    "  1. Der Käufer öffnete die Tür. Tiếng Việt có nhiều dấu!\n\n- L'élève: ★ Käse\n",
    "Der Käufer {größe} öffnete https://example.org/käse für Ŵŷ.",
)


def results(translator: Translator, text: str) -> list[Any]:
    """Return what a translator finds for a text, with spans as the composed texts that they cover."""
    terms = {"die Tür": "la porte", "gâteau": "Gäste"}
    found = translator(text, n_best=2, glossary=terms)
    marked = split_words(text)[:6]
    located = translator.locate([found], [marked], glossary=terms)[0]
    warnings = find_quality_warnings(found, source_language="de", target_language="fr")
    pairs = (*found.positions, *found.protected)
    return [
        [(compose(each.text), each.score, each.tokens, each.token_log_probabilities) for each in found.alternatives],
        [(compose(text[slice(*one)]), compose(found.text[slice(*other)])) for one, other in pairs],
        [
            (compose(text[slice(*one)]), compose(found.text[slice(*each)]))
            for one, each in zip(marked, located, strict=True)
        ],
        [(each.kind, compose(each.found)) for each in warnings],
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_a_translation_does_not_depend_on_the_form(translator: Translator, text: str) -> None:
    written = decomposed(text)
    assert results(translator, text) == results(translator, written)
    found = translator(written)
    assert found.source == written
    for source, target in found.protected:
        assert compose(written[slice(*source)]) == compose(found.text[slice(*target)])
    assert "".join(translator.stream(written)) == found.text
    scored = [translator.score([each], ["L'élève"])[0].token_log_probabilities for each in (text, written)]
    assert scored[0] == scored[1]


def test_a_protected_span_is_copied_in_its_own_form(translator: Translator) -> None:
    written = decomposed("Der Käufer {größe} öffnete die Tür.")
    assert decomposed("{größe}") in translator(written).text
    span = Span(4, 4 + len(decomposed("Käufer")))
    (found,) = translator.translate([written], SearchSettings(), protected=[[span]])
    assert decomposed("Käufer") in found.text
    assert found.protected[0][0] == span


def test_required_and_forbidden_texts_have_any_form(translator: Translator) -> None:
    for form in ("NFC", "NFD"):
        phrase = unicodedata.normalize(form, "élève")
        assert "élève" in translator(SENTENCES[0], phrases=[phrase]).text
        assert translator(SENTENCES[0], prefix=phrase).text.startswith("élève")
    texts = [
        translator(SENTENCES[0], search=SearchSettings(forbidden=(unicodedata.normalize(form, "é"),))).text
        for form in ("NFC", "NFD")
    ]
    assert texts[0] == texts[1]


def test_scores_do_not_depend_on_the_form_and_say_so() -> None:
    lines, others = list(SENTENCES), [*SENTENCES[1:], SENTENCES[0]]
    plain, mixed = (score(lines, refs, target_language="fr") for refs in (lines, list(map(decomposed, lines))))
    assert mixed.bleu == plain.bleu
    assert mixed.chrf == plain.chrf
    assert mixed.exact_match == len(lines)
    assert mixed.reference_sha256 != plain.reference_sha256
    assert plain.warnings == ()
    (warning,) = mixed.warnings
    assert warning == (
        f"Composed for scoring (Unicode NFC), which sacreBLEU does not do: {len(lines) - 1} lines of the references, "
        "whose letters and accents are separate characters."
    )
    one, other = (
        compare(lines * 9, others * 9, refs * 9, target_language="fr", resamples=100)
        for refs in (lines, list(map(decomposed, lines)))
    )
    assert (one.bleu, one.chrf) == (other.bleu, other.chrf)
    assert rouge(lines, list(map(decomposed, lines))).rouge_l == 100.0


def test_equivalent_pairs_are_one_pair() -> None:
    one, other = SENTENCES[0], decomposed(SENTENCES[0])
    assert source_keys([one]) == source_keys([other])
    assert pair_digest(one, SENTENCES[1]) == pair_digest(other, decomposed(SENTENCES[1]))


def test_a_language_is_recognized_in_any_form() -> None:
    text = "한국어는 정말로 아름다운 언어입니다. 우리는 매일 공부합니다."
    assert detect_other_language(text, "de") == detect_other_language(decomposed(text), "de") is not None
    profiles = common_profiles()
    assert profiles.probabilities(decomposed(SENTENCES[1])) == profiles.probabilities(SENTENCES[1])


PLAIN = "Der Käufer öffnete die Tür für fünf Gäste."


@pytest.mark.parametrize(
    "text",
    [
        "Der Käu\u00adfer öff\u00adnete die Tür für fünf Gäste.",
        "Der Käufer\u200b öffnete\u2060 die Tür für fünf Gäste.",
        "\ufeffDer Käufer öffnete die Tür für fünf Gäste.",
        "Der\u00a0Käufer öffnete die\u202fTür für\u2009fünf Gäste.",
        "Der Käufer \u200eöffnete die Tür für fünf Gäste.",
    ],
)
def test_invisible_characters_change_no_word(translator: Translator, text: str) -> None:
    for written in (text, decomposed(text)):
        found = translator(written)
        assert found.text == translator(PLAIN).text
        assert found.source == written
        span = Span(written.index("f"), written.index("f") + 1)  # in the second word
        assert len(translator.locate([found], [[span]])[0]) == 1
    assert translator.score([text], ["Noël"])[0].score == translator.score([PLAIN], ["Noël"])[0].score


def test_characters_are_read_as_others_only_if_they_are_not_known() -> None:
    text = "“ﬁnden” 5\u00a0km Öl\u00adtank…\u00a0"
    bare = [Pair('finden "gut" 5 km Öltank...', "Öltank", n) for n in range(60)]
    known, settings = [Pair(text, "ទឹក", n) for n in range(60)], TokenizerSettings(vocabulary_size=400)
    vocabulary = Tokenizer.train(lambda: bare, settings, adjust=True).source
    knowing = Tokenizer.train(lambda: known, settings, adjust=True).source
    assert vocabulary.readable(text) == '"finden" 5 km Öltank... '
    assert vocabulary.readable("½ ５ ２ ™") == "½ 5 ２ ™"  # there is no token for 2
    assert knowing.readable(text) == "“ﬁnden” 5 km Öltank…\u00a0"
    assert vocabulary.readable("a\u200bb") == "ab"
    assert knowing.readable("ទឹក\u200bទឹក") == "ទឹកទឹក"  # no token has the separator
    by_character = Tokenizer.train(
        lambda: [Pair(text, text, n) for n in range(60)], TokenizerSettings(kind="character", vocabulary_size=400)
    )
    assert by_character.source.readable(text) == text


@pytest.mark.parametrize(
    ("words", "text", "read"),
    [
        ("कुत्ता घर", "कुत्\u200dता घर", "कुत्ता घर"),
        ("میخواهم بروم", "می\u200cخواهم \u061cبروم\ufe0f", "میخواهم بروم"),
        ("محمد كتب", "محـــمد كَتَبَّ", "محمد كتب"),
        ("שלום עולם", "שָׁלוֹם\u034f עוֹלָם", "שלום עולם"),
        ("замок стоит", "за\u0301мок стои\u0301т\U000e0020", "замок стоит"),
        ("カタカナ ガギパ。「」", "ｶﾀｶﾅ ｶﾞｷﾞﾊﾟ｡｢｣", "カタカナ ガギパ。「」"),
        ("葛 ✈ 👨 👩", "葛\U000e0100 ✈\ufe0f 👨\u200d👩", "葛 ✈\ufe0f 👨\u200d👩"),
    ],
)
def test_signs_within_words_are_read_as_nothing_unless_the_model_knows_them(words: str, text: str, read: str) -> None:
    settings = TokenizerSettings(vocabulary_size=400)
    vocabulary = Tokenizer.train(lambda: [Pair(words, words, n) for n in range(60)], settings, adjust=True).source
    assert vocabulary.readable(compose(text)) == read
    found = normalized_text(compose(text), vocabulary.readable)
    assert found.text == read
    both = f"{words} {compose(text)}"
    knowing = Tokenizer.train(lambda: [Pair(both, both, n) for n in range(60)], settings, adjust=True).source
    assert knowing.readable(compose(text)) == compose(text).replace("\u061c", "")


def test_a_sentence_of_several_has_its_source_as_it_was_written(translator: Translator) -> None:
    for form in ("NFC", "NFD"):
        text = unicodedata.normalize(form, "Der Käu\u00adfer öffnete die Tür. L’élève {größe} a mangé.")
        found = translator(text)
        assert [each.source for each in found.sentences] == text.replace(". L", ".|L").split("|")
        assert [source for source, _ in found.joined] == [each.source for each in found.sentences]
        ((span, target),) = found.sentences[1].protected
        copied = found.sentences[1].text[slice(*target)]
        assert found.sentences[1].source[slice(*span)] == copied == unicodedata.normalize(form, "{größe}")


def test_a_segmenter_maps_its_sentences_to_the_original_text() -> None:
    def whole(sentence: str, _: Sequence[Span]) -> list[str]:
        return [sentence]

    segmenter = Segmenter(
        TextSettings(), splits=True, separator=" ", source_language="de", passes_wordless=True, composes=True, cut=whole
    )
    text = decomposed("Ä gut.  Ö {ü} schön.")
    found = segmenter(text)
    assert [each.text for each in found.sentences] == ["Ä gut.", f"Ö {decomposed('{ü}')} schön."]
    assert found.original == text
    assert found.origin is not None
    spans = [found.origin.original_span(Span(each.offsets[0], each.offsets[-1])) for each in found.sentences]
    assert [text[slice(*span)] for span in spans] == [decomposed("Ä gut."), decomposed("Ö {ü} schön.")]


def test_symbols_are_composed_and_tags_have_any_form() -> None:
    with pytest.raises(TransduceError, match=r"`tokenizer.user_symbols` must be in composed form \(Unicode NFC\)"):
        TokenizerSettings(user_symbols=(decomposed("<é>"),))
    vocabulary = learn("bpe", user_symbols=(tag_token("köln"),)).source
    assert vocabulary.composes
    assert vocabulary.for_tag("köln").before == vocabulary.for_tag(decomposed("köln")).before != ()
