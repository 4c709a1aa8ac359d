"""Test locating marked parts in a translation: by loss of word probability, nested and separate."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from transduce.errors import TransduceError
from transduce.inference.scoring import Score
from transduce.inference.spans import MarkedSentence, align_marked
from transduce.inference.translation import Translation
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.text.vocabulary import Vocabulary
from transduce.text.word_spans import Span, encode_with_spans

# For words of the toy corpus: the source word of each, and the nats that it loses without that.
CAUSES = {
    "teacher": ("老师", 8.0),
    "the": ("老师", 3.0),
    "student": ("学生", 8.0),
    "likes": ("喜欢", 6.0),
    "eat": ("吃", 5.0),
    "fish": ("鱼", 7.0),
    "tea": ("茶", 7.0),
    "red": ("红", 6.0),
}


@pytest.fixture
def vocabulary(translator: Translator) -> Vocabulary:
    return translator.tokenizer.target


def located_texts(vocabulary: Vocabulary, source: str, text: str, *parts: str) -> list[str]:
    """Return the translation's parts; a part of the source is its first occurrence, unless `@n` gives its offset."""
    asked: list[tuple[str, str]] = []

    def score(sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        asked.extend(zip(sources, targets, strict=True))
        return [_score(vocabulary, *pair) for pair in zip(sources, targets, strict=True)]

    spans = [Span(source.index(part), source.index(part) + len(part)) for part in parts]
    (places,) = align_marked([MarkedSentence(source, text, spans)], vocabulary, score)
    assert len(places) == len(parts)
    return [text[place.start : place.end] for place in places]


def _score(vocabulary: Vocabulary, source: str, target: str) -> Score:
    values: list[float] = []
    for word in target.split():
        cause, nats = CAUSES.get(word.strip("“”.!,").lower().removesuffix("'s"), ("", 0.0))
        count = len(vocabulary.encode(word))
        values += [(-0.1 - (nats if cause and cause not in source else 0.0)) / count] * count
    return Score(source, target, tuple("x" * len(values)), (*values, -0.1), sum(values))


def test_a_span_is_located_at_the_words_that_depend_on_it(vocabulary: Vocabulary) -> None:
    source, text = "老师喜欢吃鱼", "the teacher likes eat fish"
    assert located_texts(vocabulary, source, text, "鱼") == ["fish"]
    assert located_texts(vocabulary, source, text, "吃鱼") == ["eat fish"]
    assert located_texts(vocabulary, source, text, "老师") == ["the teacher"]  # an article loses enough
    assert located_texts(vocabulary, source, text, "鱼", "老师", "喜欢") == ["fish", "the teacher", "likes"]


def test_of_separated_words_the_most_dependent_part_is_located(vocabulary: Vocabulary) -> None:
    assert located_texts(vocabulary, "老师喜欢吃鱼", "fish the teacher likes eat", "吃鱼") == ["fish"]


def test_a_nested_span_is_located_inside_its_outer_span(vocabulary: Vocabulary) -> None:
    source, text = "老师喝红茶", "red fish drink red tea the teacher"
    outer, inner = located_texts(vocabulary, source, text, "红茶", "红")
    assert (outer, inner) == ("red tea", "red")
    assert located_texts(vocabulary, source, text, "红", "红茶") == ["red", "red tea"]  # in whatever order


def test_disjoint_spans_are_located_at_disjoint_words(vocabulary: Vocabulary) -> None:
    """A part for which no word is left gets a position between words."""
    assert located_texts(vocabulary, "水茶", "tea", "水", "茶") == ["", "tea"]
    assert located_texts(vocabulary, "水茶鱼", "tea fish", "水", "茶") == ["fish", "tea"]


def test_a_span_of_all_words_is_the_whole_translation(vocabulary: Vocabulary) -> None:
    assert located_texts(vocabulary, "“老师吃鱼。”", "“the teacher eat fish.”", "老师吃鱼") == [
        "“the teacher eat fish.”"
    ]
    assert located_texts(vocabulary, "鱼", "fish tea", "鱼", "鱼") == ["fish tea", "fish tea"]


def test_located_spans_include_punctuation_only_if_the_source_span_does(vocabulary: Vocabulary) -> None:
    source, text = "老师说：“鱼！”学生", "“fish!” the teacher student"
    assert located_texts(vocabulary, source, text, "“鱼！”") == ["“fish!”"]
    assert located_texts(vocabulary, source, text, "鱼") == ["fish"]


def test_a_span_without_dependent_words_is_placed_at_its_relative_position(vocabulary: Vocabulary) -> None:
    assert located_texts(vocabulary, "大大小小红红绿绿", "one two three four", "小小") == ["two"]
    assert located_texts(vocabulary, "大大小小红红绿绿", "one two three four", "绿绿", "大大") == ["four", "one"]


def test_spans_without_words_are_located_as_positions(vocabulary: Vocabulary) -> None:
    source, text = "老师 吃鱼!", "the teacher eat fish!"
    (places,) = align_marked(
        [MarkedSentence(source, text, [Span(0, 0), Span(6, 6), Span(2, 3)])], vocabulary, lambda _, __: []
    )
    assert [place.start == place.end for place in places] == [True] * 3
    assert places[0].start == 0
    assert places[1].start == len(text)
    assert text[: places[2].start] in ("the ", "the teacher ", "the teacher eat ")


def test_a_sentence_too_long_to_score_is_located_by_position(vocabulary: Vocabulary) -> None:
    asked = MarkedSentence("大大小小红红绿绿", "one two three four", [Span(2, 4)], is_scored=False)

    def score(sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        raise AssertionError((sources, targets))

    ((place,),) = align_marked([asked], vocabulary, score)
    assert asked.text[place.start : place.end] == "two"


def test_tokens_of_scripts_without_spaces_are_not_cut(translator: Translator) -> None:
    """A token is cut only if there are fewer tokens than spans with words."""
    vocabulary, text = translator.tokenizer.source, "老师喜欢吃鱼"
    tokens = {text[start:end] for start, end in encode_with_spans(vocabulary, text)[1]}
    assert tokens == {"老师喜欢", "吃", "鱼"}

    def located(source: str, text: str) -> list[str]:
        words = [Span(word.start(), word.end()) for word in re.finditer(r"\w+", source)]
        asked = MarkedSentence(source, text, words, is_scored=False)
        (places,) = align_marked([asked], vocabulary, lambda _, __: [])
        return [text[slice(*place)] for place in places]

    assert located("teachers eat fish", text) == ["老师喜欢", "吃", "鱼"]
    assert located("teachers", "老师喜欢") == ["老师喜欢"]
    assert located("the teachers", "老师喜欢") == ["老", "喜"]


def test_spans_in_an_empty_translation_are_empty(vocabulary: Vocabulary) -> None:
    assert located_texts(vocabulary, "老师吃鱼", "", "鱼", "老师") == ["", ""]


def test_locating_spans_in_a_batch_equals_each_sentence_alone(translator: Translator) -> None:
    pairs = [("老师吃鱼。", "the teacher eat fish ."), ("我们喝茶。", "we drink tea .")]
    spans = [[(2, 4), (3, 4)], [(0, 2)]]
    together = translator.locate(pairs, spans)
    assert together == [translator.locate([pair], [own])[0] for pair, own in zip(pairs, spans, strict=True)]
    outer, inner = together[0]
    assert outer.start <= inner.start <= inner.end <= outer.end


@pytest.mark.parametrize(
    ("pairs", "spans", "message"),
    [
        ([("我", "I"), ("你", "you")], [[]], "Pass one list of spans for each sentence: there are 2 sentences"),
        (["我"], [[]], r"Pass a `Translation`, or a source and a text, not '我': write \(source, text\)"),
        ([("我", "I")], [[(1, 0)]], r"is \(start, end\) in characters, from 0 to 1 here, not \(1, 0\)"),
        ([("我", "I")], [[(0, 9)]], r"from 0 to 1 here, not \(0, 9\)"),
        ([("我", "I")], [[(-1, 1)]], r"not \(-1, 1\)"),
        ([("我", "I")], [[(0.5, 1)]], r"not \(0\.5, 1\)"),
        ([("我", "I")], [[0]], "not 0"),
        ([("我", "I")], [None], "not None"),
        ([("我爱你", "I")], [[(0, 2), (1, 3)]], r"\(0, 2\) and \(1, 3\) overlap"),
    ],
)
def test_malformed_spans_and_pairs_are_refused(translator: Translator, pairs: Any, spans: Any, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        translator.locate(pairs, spans)


def test_a_span_of_a_glossary_term_is_its_inserted_translation(vocabulary: Vocabulary) -> None:
    """The model knows nothing of milk; `fish` depends on the tea here, for whatever reason."""
    source, text = "老师吃茶", "milk eat the teacher"
    asked = MarkedSentence(source, text, [Span(3, 4), Span(0, 2)], ties=[(Span(3, 4), Span(0, 4))])

    def score(sources: Sequence[str], targets: Sequence[str]) -> list[Score]:
        return [_score(vocabulary, *pair) for pair in zip(sources, targets, strict=True)]

    (places,) = align_marked([asked], vocabulary, score)
    assert [text[place.start : place.end] for place in places] == ["milk", "the teacher"]


def test_located_spans_include_whole_contractions(vocabulary: Vocabulary) -> None:
    assert located_texts(vocabulary, "老师吃鱼", "teacher doesn't fish's eat", "鱼") == ["fish's"]
    assert located_texts(vocabulary, "老师吃鱼", "teacher's eat fish", "老师") == ["teacher's"]


def test_spans_of_a_long_text_are_located_in_their_own_sentences(translator: Translator) -> None:
    long = "老师吃鱼。我们喝茶。" * 40
    (translation,) = translator.translate([long], SearchSettings(beam_size=1))
    assert translation.parts == len(translation.joined) > 20
    asked = [(0, 2), (50, 52), (390, 395), (0, 400)]
    (places,) = translator.locate([translation], [asked])
    ends: list[int] = []
    for _, text in translation.joined:
        start = translation.text.index(text, ends[-1] if ends else 0)
        ends.append(start + len(text))
    assert places[0].end <= ends[0]
    assert ends[8] <= places[1].start <= places[1].end <= ends[10]
    assert places[2].start >= ends[-3]
    assert (places[3].start, places[3].end) == (0, len(translation.text))


def test_very_long_sentences_are_located_too(translator: Translator) -> None:
    ((place,),) = translator.locate([("老师吃鱼" * 600, "the teacher eat fish " * 600)], [[(2, 4)]])
    assert 0 <= place.start < place.end


def test_protected_spans_are_left_out_of_the_alignment(translator: Translator) -> None:
    """The words around a copied span are aligned as if it were not there, and spans keep their offsets."""
    (plain,) = translator.locate([("老师吃鱼。", "the teacher eat fish .")], [[(3, 4)]])
    copied = msgspec.structs.replace(
        Translation.of("老师{x}吃鱼。", "the teacher {x} eat fish ."), protected=((Span(2, 5), Span(12, 15)),)
    )
    ((place, all_of_it, copy),) = translator.locate([copied], [[(6, 7), (0, 8), (2, 5)]])
    assert (place.start, place.end) == (plain[0].start + 4, plain[0].end + 4)
    assert (all_of_it.start, all_of_it.end) == (0, len(copied.text))
    assert (copy.start, copy.end) == (12, 15)


def test_copies_beside_a_span_are_not_part_of_it(translator: Translator) -> None:
    copies = ((Span(0, 3), Span(0, 3)), (Span(9, 12), Span(25, 28)))
    copied = msgspec.structs.replace(
        Translation.of("{x} 老师吃鱼 {y}。", "{x} the teacher eat fish {y}."), protected=copies
    )
    ((place,),) = translator.locate([copied], [[(4, 8)]])
    assert copied.text[place.start : place.end] == "the teacher eat fish"


def test_parts_of_another_alternative_are_found(translator: Translator) -> None:
    """If one sentence has another translation, the others are found, and it is what is between them."""
    (text,) = translator.translate(["老师吃鱼。我们喝茶。老师喝茶。"], SearchSettings(beam_size=1))
    assert len(text.joined) == 3
    first, middle, last = (part for _, part in text.joined)
    other = msgspec.structs.replace(text.alternatives[0], text=f"{first} something else here. {last}")
    edited = msgspec.structs.replace(text, alternatives=(other,))
    ((one, two, three),) = translator.locate([edited], [[(0, 2), (5, 7), (10, 12)]])
    assert one.end <= len(first)
    assert len(first) <= two.start < two.end <= len(other.text) - len(last)
    assert three.start >= len(other.text) - len(last)
    assert middle not in other.text
