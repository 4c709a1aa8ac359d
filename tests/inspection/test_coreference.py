"""Test the attention from a pronoun to its antecedent: by hand, by words, in encoders and decoders."""

import math
from typing import Any

import numpy as np
import pytest

from transduce.errors import TransduceError
from transduce.inference.generator import Generator
from transduce.inference.mask_filler import Filler
from transduce.inference.translator import Translator
from transduce.inspection import coreference
from transduce.inspection.attention import attention_maps
from transduce.inspection.coreference import pronoun_attention
from transduce.inspection.sentence_view import PronounAttention, PronounPair
from transduce.model.build import build_model
from transduce.model.config import ModelConfig
from transduce.model.transformer import Decoder, Encoder
from transduce.text.corpus import Pair
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import SPECIAL_TOKENS

WORDS = ("The", "animal", "didn't", "cross", "the", "street", "because", "it", "was", "tired", ".")
SENTENCE = "The animal didn't cross the street because it was tired."


def by_hand(*heads: dict[str, float], antecedent: str = "animal", left_to_right: bool = False) -> PronounAttention:
    """Return the attention of a pronoun in one layer whose heads have these weights by word."""
    return PronounAttention(
        words=WORDS,
        pronoun=7,
        candidates=((1,), (5,)),
        antecedent=["animal", "street"].index(antecedent),
        left_to_right=left_to_right,
        weights=(tuple(tuple(head.get(word, 0.0) for word in WORDS) for head in heads),),
    )


# --- what the weights say ---


def test_a_head_points_where_its_strongest_candidate_is_the_antecedent() -> None:
    found = by_hand({"it": 0.6, "animal": 0.3, "street": 0.1}, {"street": 0.5, "animal": 0.4}, {"tired": 0.9})
    first, second, third = found.pointers
    assert (WORDS[first.word], first.weight) == ("it", 0.6)
    assert (found.names[first.candidate], first.candidate_weight) == ("animal", 0.3)
    assert [each.points for each in (first, second)] == [True, False]
    assert WORDS[third.word] == "tired"
    assert [(each.layer, each.head) for each in found.pointers] == [(0, 0), (0, 1), (0, 2)]
    assert found.chance == 0.5


def test_the_table_marks_the_heads_that_point() -> None:
    drawn = by_hand({"it": 0.6, "animal": 0.3}, {"street": 0.5, "animal": 0.4}).draw().split("\n")
    assert drawn[0] == "From `it` (candidates: animal, street)"
    assert drawn[1] == "layer  1, head  1   it       60 %   animal  30 %  ◀"
    assert drawn[2] == "layer  1, head  2   street   50 %   street  50 %"
    assert drawn[3] == "◀ 1 of 2 heads look at `animal` more than at any other candidate; by chance it would be 1."


def test_without_an_antecedent_nothing_is_marked() -> None:
    found = PronounAttention(
        words=WORDS, pronoun=7, candidates=((1,), (5,)), left_to_right=False, weights=(((0.0, 1.0, *[0.0] * 9),),)
    )
    assert not any(each.points for each in found.pointers)
    assert "◀" not in found.draw()


def test_a_pair_counts_the_heads_that_are_right_in_both() -> None:
    tired = by_hand({"animal": 0.7}, {"animal": 0.6}, {"street": 0.2})
    wide = by_hand({"street": 0.8}, {"animal": 0.5}, {"street": 0.4}, antecedent="street")
    pair = PronounPair(tired, wide)
    assert pair.resolving == ((0, 0),)
    assert pair.chance == 0.25
    assert pair.largest_difference == pytest.approx(0.8)
    drawn = pair.draw().split("\n")
    assert [line.endswith("both") for line in drawn[2:5]] == [True, False, False]
    assert drawn[5] == "1 of 3 heads point to the right word in both; by chance it would be 1."
    assert len(drawn) == 6


def test_a_pair_without_difference_explains_left_to_right_attention() -> None:
    one = by_hand({"animal": 0.7}, left_to_right=True)
    other = by_hand({"animal": 0.7}, antecedent="street", left_to_right=True)
    pair = PronounPair(one, other)
    assert (pair.largest_difference, pair.resolving) == (0.0, ())
    assert pair.draw().endswith("the words after the pronoun cannot change its attention there.")
    shifted = PronounAttention(
        words=("So", *WORDS[1:]), pronoun=7, candidates=((1,),), left_to_right=True, weights=other.weights
    )
    assert PronounPair(one, shifted).largest_difference == math.inf


def test_in_a_notebook_both_sentences_are_tables() -> None:
    html = PronounPair(by_hand({"animal": 0.7}), by_hand({"street": 0.8}, antecedent="street"))._repr_html_()
    assert html.count("<table>") == 3
    assert html.count("layer 1, head 1 ◀") == 2
    assert "[it]" in html
    assert "0.70" in html


# --- words and pieces ---


def test_tokens_of_one_word_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pronoun is the last two of three tokens, so its row is their mean; two tokens spell `ab`."""
    rows = [[1.0, 0.0, 0.0, 0.0, 0.0]] * 2 + [[0.3, 0.2, 0.1, 0.2, 0.2], [0.1, 0.2, 0.5, 0.0, 0.2]] + [[0.2] * 5]
    weights = np.array(rows, dtype=np.float32)[None, None]
    reading = coreference._Reading(weights, ["▁a", "b", "▁i", "t"], 0, left_to_right=False)
    monkeypatch.setattr(coreference, "_read", lambda *_: reading)
    found = pronoun_attention(None, "ab it", "IT", antecedent="AB")
    assert found.words == ("ab", "it")
    assert found.weights == (((0.4, 0.4),),)
    assert found.pointers[0].points


def test_punctuation_is_no_part_of_a_word(translator: Translator) -> None:
    found = pronoun_attention(translator, "a cat, (the dog) saw it.", "it", antecedent="dog")
    assert found.words == ("a", "cat", ",", "(", "the", "dog", ")", "saw", "it", ".")
    assert found.names == ("a", "cat", "the", "dog", "saw")  # the model's source is Chinese, for which there is no list


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "The animal can't cross the street because", "animal cross street"),
        ("de", "Das Tier hat die Straße nicht überquert", "Tier Straße überquert"),
        ("fr", "la rue die a 7", "la rue die a"),  # there is no list
        (None, "The animal die Straße", "animal Straße"),
    ],
)
def test_candidates_are_content_words(language: str | None, text: str, expected: str) -> None:
    words = text.split()
    assert [words[number] for number in coreference._candidate_words(words, language)] == expected.split()


def test_in_a_script_without_spaces_a_candidate_is_several_words(translator: Translator) -> None:
    found = pronoun_attention(translator, "老师喜欢苹果，他吃。", "他", antecedent="老师", among=["苹果"])
    assert (found.candidates, found.antecedent) == (((0, 1), (4, 5)), 0)
    assert found.names == ("老师", "苹果")
    layer, head = found.pointers[0].layer, found.pointers[0].head
    sums = [sum(found.weights[layer][head][number] for number in candidate) for candidate in found.candidates]
    assert found.pointers[0].candidate_weight == max(sums)
    assert "`老师`" in found.draw()
    assert found.chance == 0.5


# --- models ---


def test_weights_of_an_encoder_equal_its_attention_map(translator: Translator) -> None:
    sentence = "老师喜欢苹果他"
    maps = attention_maps(translator, sentence, "x")
    pieces = [piece.removeprefix("▁") for piece in maps.source_tokens[:-1]]
    row = len(pieces) - 1
    assert pieces[row] == "他"
    found = pronoun_attention(translator, sentence, "他")
    assert not found.left_to_right
    assert found.array.sum(axis=-1) == pytest.approx(maps.encoder[:, :, row, :-1].sum(axis=-1), abs=1e-3)
    assert found.array[..., found.pronoun] == pytest.approx(maps.encoder[:, :, row, row], abs=1e-3)


def test_decoder_attention_is_read_at_the_position_after_the_pronoun(translator: Translator) -> None:
    """The row that predicts what follows, and nothing after the pronoun has weight."""
    source, sentence = "老师喜欢苹果。", "the teacher like apples he today"
    found = pronoun_attention(translator, sentence, "he", translation_of=source)
    maps = attention_maps(translator, source, sentence)
    place = maps.target_tokens.index("▁today")
    assert found.left_to_right
    assert found.array[..., -1].max() == 0.0
    own = maps.decoder[:, :, place, 1 : place + 1].sum(axis=-1)
    assert found.array.sum(axis=-1) == pytest.approx(own, abs=1e-3)


def test_words_after_the_pronoun_change_encoder_attention_only(translator: Translator) -> None:
    source = "老师喜欢苹果。"
    sentences = ("the teacher like apples he today", "the teacher like apples he now")
    read = [pronoun_attention(translator, each, "he", translation_of=source) for each in sentences]
    assert PronounPair(read[0], read[1]).largest_difference < 1e-3
    seen = [pronoun_attention(translator, each, "他") for each in ("老师喜欢他苹果", "老师喜欢他牛奶")]
    assert PronounPair(seen[0], seen[1]).largest_difference > 1e-3


@pytest.fixture
def generator(translator: Translator) -> Generator:
    size = translator.tokenizer.target.size
    sizes: dict[str, Any] = {"num_decoder_layers": 2, "d_model": 16, "d_ff": 16, "num_heads": 2}
    model = build_model(ModelConfig(kind="decoder", source_vocabulary_size=size, target_vocabulary_size=size, **sizes))
    assert isinstance(model, Decoder)
    return Generator(model.eval(), translator.tokenizer, context=16, language="en")


def test_pronouns_in_a_language_model(generator: Generator) -> None:
    found = pronoun_attention(generator, "the teacher eat fish he", "he", antecedent="teacher")
    assert found.array.shape == (2, 2, 5)
    assert found.left_to_right
    # The rest is spent on the line's end before the text.
    assert (found.array.sum(axis=-1) < 1.0).all()
    with pytest.raises(TransduceError, match=r"The model reads at most 16 tokens, but this sentence has \d+"):
        pronoun_attention(generator, "fish " * 20 + "he", "he")
    with pytest.raises(TransduceError, match="`translation_of` applies to translators only"):
        pronoun_attention(generator, "fish he", "he", translation_of="x")


def test_pronouns_in_a_masked_language_model() -> None:
    pairs = [
        Pair(line, line, number) for number, line in enumerate(["the cat sat. it slept.", "the dog ran. it barked."], 1)
    ]
    tokenizer = Tokenizer.train(
        lambda: pairs,
        TokenizerSettings(vocabulary_size=40, byte_fallback=False, user_symbols=SPECIAL_TOKENS),
        adjust=True,
    )
    size = tokenizer.source.size
    sizes: dict[str, Any] = {"num_encoder_layers": 1, "d_model": 16, "d_ff": 16, "num_heads": 2}
    model = build_model(ModelConfig(kind="encoder", source_vocabulary_size=size, target_vocabulary_size=size, **sizes))
    assert isinstance(model, Encoder)
    filler = Filler(model.eval(), tokenizer, length=48)
    found = pronoun_attention(filler, "the cat sat. it slept.", "it", antecedent="cat", among=["sat"])
    assert found.array.shape == (1, 2, 7)
    assert found.array[..., -2].min() > 0.0  # it sees what follows


@pytest.mark.parametrize(
    ("sentence", "pronoun", "options", "message"),
    [
        (SENTENCE, "she", {}, "The pronoun must be a word of the sentence, but `she` is none of"),
        (SENTENCE, "it", {"antecedent": "tired"}, "`tired` does not occur before `it` in"),
        (SENTENCE, "it", {"among": ["dog"]}, "`dog` does not occur before `it` in"),
        ("It was tired.", "it", {}, "no word before `it` in `It was tired.` names something"),
    ],
)
def test_unknown_pronouns_and_antecedents_are_refused(
    translator: Translator, sentence: str, pronoun: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        pronoun_attention(translator, sentence, pronoun, **options)
