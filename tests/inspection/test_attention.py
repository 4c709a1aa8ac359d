"""Test attention maps: the model's weights, merged by words, and drawn in aligned columns."""

import copy

import numpy as np
import pytest
import torch
from rich.cells import cell_len

from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.inspection.attention import AttentionMaps, WordAttention, attention_maps, group_words, word_attention
from transduce.inspection.sentence import inspect_sentence
from transduce.inspection.sentence_view import draw_attention

SENTENCE, TRANSLATION = "今天老师喜欢苹果。", "the teacher like apples today."


@pytest.fixture(scope="module")
def maps(translator: Translator) -> AttentionMaps:
    return attention_maps(translator, SENTENCE, TRANSLATION)


def test_attention_maps_have_one_row_of_weights_per_token_that_sums_to_one(
    maps: AttentionMaps, translator: Translator
) -> None:
    config = translator.model.config
    source, target = len(maps.source_tokens), len(maps.target_tokens)
    assert maps.encoder.shape == (config.num_encoder_layers, config.num_heads, source, source)
    assert maps.decoder.shape == (config.num_decoder_layers, config.num_heads, target, target)
    assert maps.memory.shape == (config.num_decoder_layers, config.num_heads, target, source)
    for weights in (maps.encoder, maps.decoder, maps.memory):
        assert np.allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
        assert weights.min() >= 0.0


def test_tokens_are_the_texts_with_the_end_symbol(maps: AttentionMaps) -> None:
    assert "".join(maps.source_tokens).replace("▁", "") == SENTENCE + "</s>"
    assert "".join(maps.target_tokens).replace("▁", " ").strip() == TRANSLATION + "</s>"


def test_decoder_attention_to_later_tokens_is_zero(maps: AttentionMaps) -> None:
    assert np.triu(maps.decoder, k=1).max() == 0.0
    assert np.tril(maps.decoder).max() > 0.0


def test_weights_of_the_first_layer_equal_its_softmax_formula(maps: AttentionMaps, translator: Translator) -> None:
    """softmax(Q Kᵀ / √d_k) of the encoder's first layer, computed here from the weights alone."""
    model, config = translator.model, translator.model.config
    ids = [translator.tokenizer.source.id(piece) for piece in maps.source_tokens]
    with torch.inference_mode():
        x = model.source_embedding(torch.tensor([ids]), model.source_weight)
        weights = dict(model.named_parameters())
        norm = "encoder_layers.0.self_attention_residual.norm_before"
        shape = [config.d_model]
        x = torch.nn.functional.layer_norm(x, shape, weights[f"{norm}.weight"], weights[f"{norm}.bias"])
        matrix = weights["encoder_layers.0.self_attention.projection.weight"]
        bias = weights["encoder_layers.0.self_attention.projection.bias"]
        query, key, _ = (x[0] @ matrix.T + bias).split(config.d_model, dim=-1)
        for head in range(config.num_heads):
            part = slice(head * config.key_width, (head + 1) * config.key_width)
            scores = query[:, part] @ key[:, part].T / config.key_width**0.5
            assert np.allclose(maps.encoder[0, head], scores.softmax(dim=-1).numpy(), atol=1e-5)


def test_attention_maps_default_to_the_models_own_translation(translator: Translator) -> None:
    own = translator(SENTENCE).text
    assert attention_maps(translator, SENTENCE).target_tokens == attention_maps(translator, SENTENCE, own).target_tokens


@pytest.mark.parametrize(("source", "target"), [("", "fish."), (SENTENCE, ""), ("", "")])
def test_an_empty_side_has_no_words(translator: Translator, source: str, target: str) -> None:
    words = word_attention(attention_maps(translator, source, target))
    assert words.weights.shape == (len(words.target_words), len(words.source_words))
    assert words.weights.size == 0
    assert isinstance(draw_attention(words), str)


@pytest.mark.parametrize(
    ("pieces", "words", "groups"),
    [
        (
            ["▁the", "▁teach", "er", "▁likes", "▁fish", "."],
            ["the", "teacher", "likes", "fish."],
            [[0], [1, 2], [3], [4, 5]],
        ),
        (["▁He", "llo"], ["Hello"], [[0, 1]]),
        (["▁我", "喜欢", "苹果", "。"], ["我", "喜欢", "苹果", "。"], [[0], [1], [2], [3]]),
        (["▁", "今天", "我"], ["今天", "我"], [[0, 1], [2]]),
        (["▁", "<0xE9>", "<0xBE>", "<0x98>", "吃"], ["龘", "吃"], [[0, 1, 2, 3], [4]]),
        (["▁我", "▁", "▁你", "▁"], ["我", "你"], [[0], [2]]),
        (["▁", "x", "yz"], ["xyz"], [[0, 1, 2]]),
        (["▁我", "用", "Py", "thon", "写"], ["我", "用", "Python", "写"], [[0], [1], [2, 3], [4]]),
        (["▁我", "<0xE9>", "<0xBE>", "<0x98>", "吃"], ["我", "龘", "吃"], [[0], [1, 2, 3], [4]]),
        (["▁"], [], []),
        ([], [], []),
    ],
)
def test_tokens_are_grouped_into_words(pieces: list[str], words: list[str], groups: list[list[int]]) -> None:
    assert group_words(pieces) == (tuple(words), groups)


def test_words_take_the_sum_over_source_tokens_and_the_mean_over_target_tokens() -> None:
    memory = np.array([[[[0.1, 0.2, 0.6, 0.1], [0.5, 0.1, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25]]]], dtype=np.float32)
    nothing = np.zeros((1, 1, 0, 0), dtype=np.float32)
    maps = AttentionMaps(("▁a", "b", "▁c", "</s>"), ("▁x", "y", "</s>"), nothing, nothing, memory)
    words = word_attention(maps)
    assert (words.source_words, words.target_words) == (("ab", "c"), ("xy",))
    assert np.allclose(words.weights, [[(0.3 + 0.6) / 2, (0.6 + 0.2) / 2]])


def test_word_attention_weights_heads_by_their_squared_maximum() -> None:
    even = [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    decided = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    memory = np.array([[even, decided]], dtype=np.float32)
    nothing = np.zeros((1, 2, 0, 0), dtype=np.float32)
    words = word_attention(AttentionMaps(("▁a", "▁b", "</s>"), ("▁x", "</s>"), nothing, nothing, memory))
    # The even head weighs 0.5², the decided one 1².
    assert np.allclose(words.weights, [[(0.25 * 0.5 + 1.0) / 1.25, 0.25 * 0.5 / 1.25]])


def test_drawn_attention_is_aligned_in_columns() -> None:
    weights = np.array([[1.0, 0.0, 0.0], [0.0, 0.25, 1.0], [0.5, 1.0, 0.25]], dtype=np.float32)
    attention = WordAttention(("我", "喜欢", "tea"), ("I", "like", "茶茶茶"), weights)
    lines = draw_attention(attention).split("\n")
    # Start of each column in cells: names have the width of the widest (6) plus two spaces; then 2 + 1, 4 + 1, 3.
    assert lines[0] == " " * 8 + "我 喜欢 tea"
    assert lines[1] == "     I  ██"
    assert lines[2] == "  like     ░░   ██"
    assert lines[3] == "茶茶茶  ▒▒ ██   ░░"


@pytest.mark.parametrize("words", [("猫", "a", "很长的词"), ("a",), ("ｱｲｳ", "é", "中")])
def test_columns_begin_in_the_same_cell_in_every_row(words: tuple[str, ...]) -> None:
    weights = np.eye(len(words), dtype=np.float32)
    lines = draw_attention(WordAttention(words, words, weights)).split("\n")
    starts = [cell_len(lines[0][: lines[0].index(word, len(lines[0]) - len(lines[0].lstrip()))]) for word in words]
    for row, line in enumerate(lines[1:]):
        assert cell_len(line[: line.index("█")]) == starts[row]
        assert line.endswith("██")


def test_a_real_drawing_has_a_row_for_every_word(maps: AttentionMaps) -> None:
    words = word_attention(maps)
    assert words.target_words == ("the", "teacher", "like", "apples", "today.")
    assert "".join(words.source_words) == SENTENCE
    lines = draw_attention(words).split("\n")
    assert len(lines) == 6
    assert all(line.count("█") >= 2 for line in lines[1:])  # the most looked-at word of each row


def test_ensembles_and_unloaded_models_are_refused(translator: Translator) -> None:
    several = Translator(translator.model, translator.tokenizer, ensemble=[translator.model])
    with pytest.raises(TransduceError, match="this translator is an ensemble of 2"):
        attention_maps(several, SENTENCE)
    with pytest.raises(TransduceError, match="this translator is an ensemble of 2"):
        inspect_sentence(several, SENTENCE)
    with pytest.raises(TransduceError, match="Only a loaded model can be inspected, but this is a Transformer"):
        attention_maps(translator.model, SENTENCE)  # type: ignore[arg-type]


def test_a_model_in_training_does_not_translate(translator: Translator) -> None:
    learning = Translator(copy.deepcopy(translator.model).train(), translator.tokenizer)
    with pytest.raises(TransduceError, match=r"applies dropout, .*: call `eval\(\)` on it"):
        learning(SENTENCE)
    learning.model.eval()
    assert learning(SENTENCE).text == translator(SENTENCE).text
