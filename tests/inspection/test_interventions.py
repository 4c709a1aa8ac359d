"""Test interventions: disabled heads, forced and forbidden tokens, changed words, and that nothing else changes."""

import pytest
import torch

from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.inspection.attention import AttentionKind
from transduce.inspection.interventions import Head, Intervention, heads_off, intervene, replace_word
from transduce.model.attention import MultiHeadAttention
from transduce.search.settings import SearchSettings

SENTENCE = "今天老师喜欢苹果。"
GREEDY = SearchSettings(beam_size=1)


@pytest.mark.parametrize("search", [GREEDY, SearchSettings(beam_size=3)])
def test_without_a_change_nothing_changes(translator: Translator, search: SearchSettings) -> None:
    both = intervene(translator, SENTENCE, Intervention(), search=search)
    assert both.before == both.after
    assert both.before.translation == translator(SENTENCE, search=search).text
    assert both.before.score == pytest.approx(translator(SENTENCE, search=search).score)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "memory"])
def test_a_head_that_is_off_is_as_if_its_part_of_the_output_matrix_were_zero(
    translator: Translator, kind: AttentionKind
) -> None:
    model = translator.transformer
    layers = model.encoder_layers if kind == "encoder" else model.decoder_layers
    attention = layers[1].memory_attention if kind == "memory" else layers[1].self_attention
    source, target = torch.tensor([[5, 6, 7, 1]]), torch.tensor([[0, 8, 9]])
    assert isinstance(attention, MultiHeadAttention)
    width, weight = attention.d_v, attention.output.weight
    with torch.inference_mode():
        before = model(source, target)
        with heads_off(model, [Head(kind, 1, 2)]):
            off = model(source, target)
        assert torch.equal(model(source, target), before)
        kept = weight.clone()
        weight[:, 2 * width : 3 * width] = 0.0
        expected = model(source, target)
        weight.copy_(kept)
    assert torch.allclose(off, expected, atol=1e-6)
    assert not torch.allclose(off, before, atol=1e-4)


def test_disabled_heads_are_enabled_again_after_an_error(translator: Translator) -> None:
    before = translator(SENTENCE, beam_size=1)

    def fail() -> None:
        with heads_off(translator.transformer, [Head("memory", 0, 0), Head("encoder", 0, 0)]):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert translator(SENTENCE, beam_size=1) == before


def test_disabling_all_cross_attention_changes_the_translation(translator: Translator) -> None:
    config = translator.model.config
    every = tuple(
        Head("memory", layer, head) for layer in range(config.num_decoder_layers) for head in range(config.num_heads)
    )
    both = intervene(translator, SENTENCE, Intervention(heads_off=every), search=GREEDY)
    assert both.after.translation != both.before.translation
    assert (
        intervene(translator, "我吃鱼。", Intervention(heads_off=every), search=GREEDY).after.tokens
        == both.after.tokens
    )


@pytest.mark.parametrize("search", [GREEDY, SearchSettings(beam_size=3)])
def test_a_forced_token_stands_at_its_position_behind_what_was_there(
    translator: Translator, search: SearchSettings
) -> None:
    both = intervene(translator, SENTENCE, Intervention(step=2, force="▁fish"), search=search)
    assert both.after.tokens[:2] == both.before.tokens[:2]
    assert both.after.tokens[2] == "▁fish" != both.before.tokens[2]
    assert both.after.token_log_probabilities[:2] == pytest.approx(both.before.token_log_probabilities[:2], abs=1e-4)


@pytest.mark.parametrize("search", [GREEDY, SearchSettings(beam_size=3)])
def test_a_forbidden_token_does_not_stand_at_its_position(translator: Translator, search: SearchSettings) -> None:
    first = intervene(translator, SENTENCE, Intervention(), search=search).before.tokens
    both = intervene(translator, SENTENCE, Intervention(step=1, forbid=(first[1],)), search=search)
    assert both.after.tokens[0] == first[0]
    assert both.after.tokens[1] != first[1]
    at_once = intervene(translator, SENTENCE, Intervention(step=0, forbid=(first[0],)), search=search)
    assert at_once.after.tokens[0] != first[0]
    again = intervene(
        translator, SENTENCE, Intervention(step=1, forbid=(first[1], both.after.tokens[1])), search=search
    )
    assert again.after.tokens[1] not in (first[1], both.after.tokens[1])


def test_replacing_a_source_word_translates_the_changed_source(translator: Translator) -> None:
    changed = replace_word("我吃鱼。", 2, "茶")
    assert changed == "我吃茶。"
    both = intervene(translator, "我吃鱼。", Intervention(source=changed), search=GREEDY)
    assert both.after.translation == translator(changed, beam_size=1).text
    assert (both.before.source, both.after.source) == ("我吃鱼。", changed)
    assert replace_word("the cat sat", 1, "dog") == "the dog sat"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Intervention(heads_off=(Head("memory", 2, 0),)), "layer from 0 to 1 .* but layer 2, head 0"),
        (Intervention(heads_off=(Head("encoder", 0, 99),)), "layer 0, head 99"),
        (Intervention(force="▁fish"), "set `step` to it"),
        (Intervention(step=99, force="▁fish"), "from 0 to [0-9]+, but is 99"),
        (Intervention(step=0, force="nothing like it"), "no token `nothing like it`"),
        (Intervention(step=0, forbid=("nope nope",)), "no token `nope nope`"),
        (Intervention(source=" "), "is empty"),
    ],
)
def test_interventions_on_missing_heads_or_tokens_are_refused(
    translator: Translator, change: Intervention, message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        intervene(translator, SENTENCE, change, search=GREEDY)


def test_a_word_that_is_not_there_cannot_be_replaced() -> None:
    with pytest.raises(TransduceError, match="0 to 2, but is 3"):
        replace_word("我吃鱼", 3, "茶")
