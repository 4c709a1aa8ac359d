"""Test the causal tools on models of every kind: hand-solved cases, exact identities, and refusals."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from transduce.errors import TransduceError
from transduce.inference.classifier import Classifier
from transduce.inference.embedder import Embedder
from transduce.inference.generator import Generator
from transduce.inference.mask_filler import Filler
from transduce.inference.tagger import Tagger
from transduce.inference.translator import Translator
from transduce.inspection.attention import attention_maps, word_attention
from transduce.inspection.attribution import Method, attribute, attributions
from transduce.inspection.causal import Grid, ablate, logit_lens, patch_activations
from transduce.inspection.interventions import Head, heads_off
from transduce.inspection.plots_runs import plot_attention
from transduce.inspection.probing import probe
from transduce.inspection.reading import Reader, read
from transduce.inspection.sentence import inspect_text
from transduce.model.build import build_any_model
from transduce.model.config import ModelConfig
from transduce.text.corpus import Pair
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import SPECIAL_TOKENS
from transduce.ui_language_choice import use_ui_language

LINES = ["the cat sat on the mat.", "the dog ran to the bank.", "a cat saw a dog.", "the river has a bank."]
TEXT = "the cat saw a bank."
KINDS = ("filler", "classifier", "tagger", "generator")
SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_encoder_layers": 2, "num_decoder_layers": 2}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    pairs = [Pair(line, line, number) for number, line in enumerate(LINES, 1)]
    settings = TokenizerSettings(vocabulary_size=60, byte_fallback=False, user_symbols=SPECIAL_TOKENS)
    return Tokenizer.train(lambda: pairs, settings, adjust=True)


@pytest.fixture(scope="module")
def build(tokenizer: Tokenizer) -> Callable[..., Reader]:
    """Return a function that builds a model of a kind with random weights, equal at every call."""

    def make(kind: str, **settings: Any) -> Reader:
        torch.manual_seed(3)
        own: dict[str, dict[str, Any]] = {
            "filler": {"kind": "encoder", "masked_language_head": True, "norm_order": "post"},
            "classifier": {"kind": "encoder", "num_labels": 3},
            "tagger": {"kind": "encoder", "num_labels": 4, "token_labels": True},
            "embedder": {"kind": "encoder"},
            "generator": {"kind": "decoder"},
            "recurrent": {"kind": "recurrent", "attention_score": "general", "num_heads": 8},
        }
        sizes = {f"{side}_vocabulary_size": tokenizer.source.size for side in ("source", "target")}
        model: Any = build_any_model(ModelConfig(**(sizes | SIZES | own[kind] | settings))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)  # heads and layers matter more
        if kind == "generator":
            return Generator(model, tokenizer, context=64)
        if kind == "recurrent":
            return Translator(model, tokenizer)
        if kind == "classifier":
            return Classifier(model, tokenizer, ["good", "bad", "odd"], length=64)
        if kind == "tagger":
            return Tagger(model, tokenizer, ["N", "V", "D", "P"], length=64)
        return (Filler if kind == "filler" else Embedder)(model, tokenizer, length=64)

    return make


# --- reading ---


def test_readings_give_the_answers_and_probabilities_of_the_models(build: Callable[..., Any]) -> None:
    classifier, tagger, filler, generator = (build(kind) for kind in ("classifier", "tagger", "filler", "generator"))
    with torch.inference_mode():
        assert read(classifier, TEXT).answer == classifier(TEXT).label
        assert read(classifier, TEXT).log_probabilities().exp().item() == pytest.approx(classifier(TEXT).probability)
        tags = tagger(TEXT)
        assert read(tagger, TEXT).answer == " ".join(f"{w}/{t}" for w, t in zip(tags.words, tags.tags, strict=True))
        assert read(tagger, TEXT).log_probabilities().exp()[0].tolist() == pytest.approx(list(tags.probabilities))
        masked = "the [MASK] saw a [MASK]"
        filled = filler(masked, candidates=1)
        assert read(filler, masked).outputs == tuple(mask[0].token for mask in filled.masks)
        assert read(filler, masked).answer == filled.text
        probabilities = read(filler, masked).log_probabilities().exp()[0].tolist()
        assert probabilities == pytest.approx([mask[0].probability for mask in filled.masks])
        nats = -read(generator, TEXT).log_probabilities()[0, :-1].sum().item()
        assert nats == pytest.approx(generator.score(TEXT).nats, rel=1e-5)
        assert read(generator, TEXT).answer == generator(TEXT, temperature=0, max_length=1).continuations[0].tokens[0]


def test_texts_and_models_that_cannot_be_read_are_refused(build: Callable[..., Any]) -> None:
    with pytest.raises(TransduceError, match="this is a Encoder"):
        read(build("classifier").model, TEXT)
    with pytest.raises(TransduceError, match="reads at most 64 tokens"):
        read(build("classifier"), TEXT * 20)
    with pytest.raises(TransduceError, match="A translation belongs to a translator, but this model is a generator"):
        read(build("generator"), TEXT, "x")
    with pytest.raises(TransduceError, match="probabilities of tokens, classes or tags, but a embedder has none"):
        read(build("embedder"), TEXT).logits()


@pytest.mark.parametrize("kind", [*KINDS, "embedder", "recurrent"])
def test_attention_maps_of_every_kind_of_model(build: Callable[..., Any], kind: str) -> None:
    reader = build(kind)
    maps = attention_maps(reader, TEXT, *(["the dog."] if kind == "recurrent" else []))
    shown = maps.kinds[0]
    weights, rows, columns = maps.of(shown)
    assert weights.shape == (*weights.shape[:2], len(rows), len(columns))
    assert np.allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    assert shown == {"generator": "decoder", "recurrent": "memory"}.get(kind, "encoder")
    is_causal = np.triu(weights, k=1).max() == 0.0 if kind != "recurrent" else False
    assert is_causal == (kind == "generator")
    words = word_attention(maps)
    assert words.source_words == ("the", "cat", "saw", "a", "bank.")
    assert words.target_words == (("the", "dog.") if kind == "recurrent" else words.source_words)
    chart = plot_attention(maps, kind=None, layer=1)
    assert len(chart.panels) == weights.shape[1]
    found = inspect_text(reader, TEXT, attributions=True)
    assert "attention: a darker column" in found.draw()
    assert "value" in [each.method for each in found.attributions] or kind in ("embedder", "recurrent")
    assert f"<title>{TEXT}" in found.to_html()
    if kind != "recurrent":
        with pytest.raises(TransduceError, match=f"must be {shown} for this model"):
            plot_attention(maps, kind="memory", layer=None)


def test_a_recurrent_model_without_attention_is_refused(build: Callable[..., Any]) -> None:
    with pytest.raises(TransduceError, match=r"`model\.recurrent_attention` is none"):
        attention_maps(build("recurrent", recurrent_attention="none"), TEXT, "the dog.")


# --- attribution ---


@pytest.mark.parametrize("kind", KINDS)
def test_attributions_of_every_kind_of_model(build: Callable[..., Any], kind: str) -> None:
    reader = build(kind)
    text = "the [MASK] saw a bank." if kind == "filler" else TEXT
    found = attributions(reader, text)
    assert ("occlusion" in found) == (kind != "tagger")  # a removed word has no tag
    for each in found.values():
        assert each.tokens.shape == (len(each.target_tokens), len(each.source_tokens))
        assert each.words.shape == (len(each.target_words), len(each.source_words))
        assert np.abs(each.words).max() > 0.0
        if kind == "generator":
            assert np.abs(np.triu(each.tokens, k=1)).max() == 0.0  # nothing depends on later tokens
    assert np.allclose(found["value"].tokens.sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("kind", ["filler", "classifier", "generator"])
def test_occlusion_is_what_removing_a_word_changes(build: Callable[..., Any], kind: str) -> None:
    reader = build(kind)
    text, without = ("the cat saw a [MASK]", "the saw a [MASK]") if kind == "filler" else (TEXT, "the saw a bank.")
    found = attribute(reader, text, method="occlusion")
    whole, shorter = read(reader, text), read(reader, without)
    with torch.inference_mode():
        before, after = whole.logits()[0, -1].log_softmax(-1), shorter.logits()[0, -1].log_softmax(-1)
    label = whole.labels[-1]
    drop = found.words[-1, found.source_words.index("cat")]
    assert drop == pytest.approx(float(before[label] - after[label]), abs=1e-4)


def test_integrated_gradients_of_a_class_sum_to_the_whole_change(build: Callable[..., Any]) -> None:
    """The classifier's embeddings have no norm; those of BERT do, and are integrated before it."""
    from transduce.inspection.attribution import _frozen, _Subject
    from transduce.inspection.recorder import record_activations

    for kind, settings in (("classifier", {}), ("filler", {"embedding_norm": True})):
        reading = read(build(kind, **settings), "the cat [MASK]")
        subject = _Subject(reading)
        is_special = torch.tensor(subject.is_special)[:, None]
        nothing = subject._embedding().complete(subject._word_vectors() * is_special)
        with _frozen(reading.model):
            whole = reading.log_probabilities()[0]
            with record_activations(reading.model, (), edit={"encoder.embedding": partial(replaced_by, nothing)}):
                without = reading.log_probabilities()[0]
            nodes, weights = np.polynomial.legendre.leggauss(128)
            sums = subject.integrated([range(len(subject.ids))], (nodes + 1) / 2, weights / 2).sum(axis=1)
        assert np.allclose(sums, (whole - without).detach().numpy(), atol=0.05)


def test_a_recurrent_model_is_explained_by_occlusion_alone(build: Callable[..., Any]) -> None:
    reader = build("recurrent")
    assert list(attributions(reader, TEXT, "the dog.")) == ["occlusion"]
    method: Method = "value"
    with pytest.raises(TransduceError, match="`value` needs a Transformer, but the model is recurrent"):
        attribute(reader, TEXT, "the dog.", method=method)


def replaced_by(replacement: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return replacement


# --- ablation ---


@pytest.mark.parametrize("kind", KINDS)
def test_ablating_a_head_is_what_zero_weights_do(build: Callable[..., Any], kind: str) -> None:
    reader = build(kind)
    found = ablate(reader, TEXT)
    reading = read(reader, TEXT)
    attention = reader.model.layers[1].self_attention
    with torch.inference_mode():
        attention.output.weight[:, attention.d_v : 2 * attention.d_v] = 0.0
        after = float(reading.log_probabilities().sum())
    assert found.heads[0].values[1][1] == pytest.approx(found.log_probability - after, abs=1e-4)


@pytest.mark.parametrize("kind", ["filler", "generator"])
def test_ablating_a_layer_is_what_zero_outputs_do(build: Callable[..., Any], kind: str) -> None:
    reader = build(kind)
    found = ablate(reader, TEXT)
    assert found.layers[0].columns == ("self-attention", "feed-forward", "whole layer")
    reading, layer = read(reader, TEXT), reader.model.layers[0]
    with torch.inference_mode():
        for number, part in enumerate((layer.self_attention.output, layer.feed_forward.outer)):
            saved = [each.clone() for each in (part.weight, part.bias)]
            part.weight.zero_()
            part.bias.zero_()
            after = float(reading.log_probabilities().sum())
            assert found.layers[0].values[0][number] == pytest.approx(found.log_probability - after, abs=1e-4)
            if not number:
                part.weight.copy_(saved[0])
                part.bias.copy_(saved[1])
        layer.self_attention.output.weight.zero_()
        layer.self_attention.output.bias.zero_()
        after = float(reading.log_probabilities().sum())
    assert found.layers[0].values[0][2] == pytest.approx(found.log_probability - after, abs=1e-4)


def test_ablation_of_a_translator_is_that_of_heads_off(translator: Translator) -> None:
    sentence, target = "今天老师喜欢苹果。", "the teacher like apples today."
    found = ablate(translator, sentence, target)
    assert [grid.title for grid in found.heads] == [
        "encoder self-attention, heads",
        "decoder self-attention, heads",
        "decoder cross-attention, heads",
    ]
    (score,) = translator.score([sentence], [target])
    assert found.log_probability == pytest.approx(score.log_probability, abs=1e-4)
    reading = read(translator, sentence, target)
    with torch.inference_mode(), heads_off(translator.transformer, [Head("memory", 1, 2)]):
        after = float(reading.log_probabilities().sum())
    assert found.heads[2].values[1][2] == pytest.approx(found.log_probability - after, abs=1e-4)
    lines = found.draw().split("\n")
    assert f"log-probability {found.log_probability:.3f} nats" in lines[1]
    assert len(found.chart().panels) == 5


def test_a_mean_that_is_the_activation_itself_changes_nothing(build: Callable[..., Any]) -> None:
    """With uniform attention and no positions, all positions of a head have its mean already."""
    reader = build("classifier", positions="none")
    with torch.no_grad():
        for layer in reader.model.layers:
            layer.self_attention.projection.weight[:32] = 0.0
    assert np.abs(np.array(ablate(reader, TEXT, fill="mean").heads[0].values)).max() < 1e-5
    assert np.abs(np.array(ablate(reader, TEXT).heads[0].values)).max() > 1e-3
    others = ablate(reader, TEXT, fill="mean", reference=["the river has a bank."])
    assert np.abs(np.array(others.heads[0].values)).max() > 1e-5


# --- patching ---


def test_patching_a_translator_recovers_where_the_sentences_differ(translator: Translator) -> None:
    clean, corrupted = "今天老师喜欢苹果。", "今天老师喜欢牛奶。"
    found = patch_activations(translator, clean, corrupted, answers=("▁apples", "▁milk"), after="the teacher like")
    encoder, decoder = found.residual
    changed = next(number for number, name in enumerate(encoder.rows) if "|" in name)
    table = np.array(encoder.values)
    assert table[changed, 0] == pytest.approx(1.0, abs=1e-4)  # only this word's embedding differs
    assert np.abs(np.delete(table[:, 0], changed)).max() < 1e-4
    assert np.array(decoder.values)[-1, -1] == pytest.approx(1.0, abs=1e-4)  # the state that is projected
    assert np.abs(np.array(decoder.values)[:, 0]).max() < 1e-4  # both decoders read the same
    assert found.clean_difference > found.corrupted_difference
    assert "▁apples" in found.draw()
    assert [panel.title for panel in found.chart().panels][:2] == [
        "encoder, residual stream",
        "decoder, residual stream",
    ]


@pytest.mark.parametrize("kind", ["filler", "classifier", "generator"])
def test_patching_one_text_recovers_by_the_changed_word_and_by_the_predicting_state(
    build: Callable[..., Any], kind: str
) -> None:
    reader = build(kind)
    clean, corrupted = ("the cat [MASK]", "the dog [MASK]") if kind == "filler" else ("the cat", "the dog")
    names = {"classifier": ("good", "bad")}.get(kind, ("▁the", "▁a"))
    found = patch_activations(reader, clean, corrupted, answers=names)
    table = np.array(found.residual[0].values)
    changed = [number for number, name in enumerate(found.residual[0].rows) if "|" in name]
    reading = read(reader, clean)
    for row in set(range(len(table))) - set(changed):
        assert table[row, 0] == pytest.approx(0.0, abs=1e-3)
    if len(changed) == 1:
        assert table[changed[0], 0] == pytest.approx(1.0, abs=1e-3)
    assert table[reading.positions[-1], -1] == pytest.approx(1.0, abs=1e-3)
    assert len(found.heads[0].values) == 2


def test_patching_of_unequal_texts_or_answers_is_refused(build: Callable[..., Any], translator: Translator) -> None:
    generator = build("generator")
    with pytest.raises(TransduceError, match="the texts have 3 and 4 tokens"):
        patch_activations(generator, "the cat", "the cat saw", answers=("▁the", "▁a"))
    with pytest.raises(TransduceError, match="cannot answer `nothing`"):
        patch_activations(generator, "the cat", "the dog", answers=("nothing", "▁a"))
    with pytest.raises(TransduceError, match="answers both texts with"):
        patch_activations(generator, "the cat", "the dog", answers=("▁a", "▁a"))
    with pytest.raises(TransduceError, match="does not translate: leave it out"):
        patch_activations(generator, "the cat", "the dog", after="x")
    with pytest.raises(TransduceError, match="Both texts have the same translation"):
        patch_activations(translator, "我吃鱼。", "我吃鱼。")
    with pytest.raises(TransduceError, match="needs the heads and layers of a Transformer"):
        patch_activations(build("recurrent"), "the cat", "the dog", answers=("▁a", "▁the"), after="")
    for tool in (ablate, logit_lens):
        with pytest.raises(TransduceError, match="`recurrent`: attribution by `occlusion` works"):
            tool(build("recurrent"), TEXT, "the dog.")
        with pytest.raises(TransduceError, match="probabilities of tokens, classes or tags"):
            tool(build("embedder"), TEXT)
    with pytest.raises(TransduceError, match="Reference texts are averaged by `fill` = mean"):
        ablate(generator, TEXT, reference=[TEXT])


# --- logit lens ---


@pytest.mark.parametrize("kind", [*KINDS, "translator"])
def test_the_last_layer_of_the_lens_is_the_model(build: Callable[..., Any], translator: Translator, kind: str) -> None:
    reader: Any = translator if kind == "translator" else build(kind)
    text = {"translator": "我吃鱼。", "filler": "the [MASK] saw a bank."}.get(kind, TEXT)
    found, reading = logit_lens(reader, text), read(reader, text)
    with torch.inference_mode():
        chances = reading.logits().softmax(-1)
    assert found.layers == ("embedding", "layer 1", "layer 2")
    assert found.probabilities[-1] == pytest.approx(reading.chosen(chances)[0].tolist(), abs=1e-5)
    for row, best in enumerate(found.candidates[-1]):
        assert best[0].probability == pytest.approx(float(chances[0, row].max()), abs=1e-5)
        assert (found.ranks[-1][row] == 1) == (best[0].probability <= found.probabilities[-1][row] + 1e-6)
    assert all(len(layer) == len(reading.outputs) for layer in found.candidates)
    assert found.draw().count("\n") == 3 + len(reading.outputs)
    assert len(found.chart().panels) == 1


def test_a_model_whose_layers_do_nothing_predicts_the_same_at_each(build: Callable[..., Any]) -> None:
    reader = build("generator")
    with torch.no_grad():
        for layer in reader.model.layers:
            for part in (layer.self_attention.output, layer.feed_forward.outer):
                part.weight.zero_()
                part.bias.zero_()
    found = logit_lens(reader, TEXT)
    assert found.candidates[0] == found.candidates[1] == found.candidates[2]


# --- probing ---


def sentences() -> list[str]:
    nouns, verbs = ("cat", "dog", "bank", "river", "mat"), ("sat", "ran", "saw", "has")
    return [f"the {noun} {verb} a {other}" for noun in nouns for verb in verbs for other in nouns[:3]]


@pytest.mark.parametrize("kind", ["filler", "generator", "tagger", "recurrent"])
def test_probes_find_a_word_s_own_label_and_no_random_one_of_a_text(build: Callable[..., Any], kind: str) -> None:
    texts = sentences()
    labels = [
        ["D" if w in ("the", "a") else "V" if w in ("sat", "ran", "saw", "has") else "N" for w in t.split()]
        for t in texts
    ]
    found = probe(build(kind), texts, labels)
    assert found.of_words
    assert found.num_test + found.num_train == 5 * len(texts)
    assert found.num_test == 5 * 15
    assert found.word_majority == 1.0
    assert found.accuracy[0] > 0.85 if kind == "recurrent" else found.accuracy[0] == 1.0  # cells mix words
    assert 0.3 < found.majority < 0.5
    assert found.layers == (("layer 1", "layer 2") if kind == "recurrent" else ("embedding", "layer 1", "layer 2"))
    assert "selectivity" in found.draw()
    assert len(found.chart().panels) == 1


def test_labels_of_texts_at_random_cannot_be_held_out(build: Callable[..., Any]) -> None:
    texts = sentences()
    found = probe(build("classifier"), texts, [str(number % 2) for number in range(len(texts))], seed=2)
    about = probe(build("classifier"), texts, ["cat" if "the cat" in text else "other" for text in texts])
    assert not found.of_words
    assert found.accuracy[0] < 0.8
    assert about.accuracy[-1] > about.majority
    assert max(about.control_accuracy) < 0.95


def test_probing_with_too_few_or_unequal_labels_is_refused(build: Callable[..., Any]) -> None:
    reader, texts = build("filler"), sentences()
    with pytest.raises(TransduceError, match="at least 10 texts with labels, but there are 3 texts and 3 labels"):
        probe(reader, texts[:3], ["a", "b", "a"])
    with pytest.raises(TransduceError, match="text 2 has 5 words and 4 labels"):
        probe(reader, texts, [["x"] * 5, *[["y"] * 4] * (len(texts) - 1)])
    with pytest.raises(TransduceError, match="all are `x`"):
        probe(reader, texts, ["x"] * len(texts))
    with pytest.raises(TransduceError, match="text 3 is empty"):
        probe(reader, [*texts[:2], " ", *texts[3:]], ["x", "y"] * (len(texts) // 2) + ["x"] * (len(texts) % 2))


def test_a_table_names_parts_in_the_language_of_messages_and_leaves_tokens() -> None:
    grid = Grid(
        title="encoder self-attention, heads", rows=("layer 1", "head"), columns=("head 1",), values=((1,), (2,))
    )
    with use_ui_language("zh"):
        title, columns, *rows = grid.draw().split("\n")
    assert (title, columns.strip()) == ("编码器自注意力，各个头", "第 1 个头")
    assert [row.split("  ")[0] for row in rows] == ["第 1 层", "head"]
