"""Test attribution: the sums that each method promises, hand-made cases, and words that a trained model needs."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from typing_extensions import override

import transduce
from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.inspection.attribution import Attribution, Method, _frozen, _moved_vectors, _Subject, attribute
from transduce.inspection.reading import Reading, read
from transduce.inspection.recorder import record_activations
from transduce.inspection.sentence import shown_attribution
from transduce.model.attention import MultiHeadAttention
from transduce.model.masks import AttentionMask

SENTENCE = "今天老师喜欢苹果。"


@pytest.fixture(scope="module")
def target(translator: Translator) -> str:
    return translator(SENTENCE).text


def attributed(translator: Translator, target: str, method: Method) -> Attribution:
    return attribute(translator, SENTENCE, target, method=method)


@pytest.mark.parametrize("method", ["value", "occlusion", "integrated"])
def test_a_word_is_attributed_to_its_translation(translator: Translator, target: str, method: Method) -> None:
    result = attributed(translator, target, method)
    assert "apples" in target
    row = next(number for number, word in enumerate(result.target_words) if word.startswith("apples"))
    named = [result.source_words[column] for column in np.argsort(-result.words[row])[:2]]
    assert set("".join(named)) & set("苹果")


def test_occlusion_is_the_difference_of_two_scores(translator: Translator, target: str) -> None:
    result = attributed(translator, target, "occlusion")
    vocabulary = translator.tokenizer.source
    ids = vocabulary.with_special_tokens(vocabulary.encode(SENTENCE))
    config = translator.model.config
    targets = translator.tokenizer.target
    target_ids = targets.with_special_tokens(targets.encode(target))
    inputs = torch.tensor([[config.start_id, *target_ids[:-1]]])

    def log_probabilities(source: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits = translator.model(torch.tensor([source]), inputs)[0]
            logits[:, config.forbidden_tokens] = float("-inf")
        chosen: torch.Tensor = logits.log_softmax(-1)[torch.arange(len(target_ids)), torch.tensor(target_ids)]
        return chosen

    for removed in (0, 2):
        without = [id for number, id in enumerate(ids) if number != removed]
        drop = log_probabilities(ids) - log_probabilities(without)
        assert np.allclose(result.tokens[:, removed], drop.numpy(), atol=1e-4)


def log_probabilities_without(translator: Translator, reading: Reading, hidden: Sequence[int]) -> torch.Tensor:
    """Return the log-probability of each target token if no position attends to some source tokens, (T,)."""
    model, config = translator.transformer, translator.transformer.config
    source = torch.tensor([reading.ids])
    allowed = torch.ones(1, 1, 1, len(reading.ids), dtype=torch.bool)
    allowed[..., list(hidden)] = False
    inputs = torch.tensor([[config.start_id, *reading.labels[:-1]]])
    with torch.inference_mode():
        embedded = model.source_embedding(source, model.source_weight)
        memory = model.encode_embedded(embedded, AttentionMask(allowed))
        return reading.chosen(reading.predict(model.decode(inputs, memory, AttentionMask(allowed))).log_softmax(-1))[0]


@pytest.mark.parametrize("hides_all", [True, False], ids=["all-words", "one-word"])
def test_integrated_gradients_sum_to_the_change_without_attention_to_words(
    translator: Translator, target: str, hides_all: bool
) -> None:
    subject = _Subject(read(translator, SENTENCE, target))
    hidden = range(len(subject.ids) - 1) if hides_all else [1]
    if not hides_all:
        subject.is_special = [number != 1 for number in range(len(subject.ids))]
    nodes, weights = np.polynomial.legendre.leggauss(64)
    with _frozen(translator.transformer):
        whole = log_probabilities_without(translator, subject.reading, [])
        without = log_probabilities_without(translator, subject.reading, hidden)
        sums = subject.integrated([range(len(subject.ids))], (nodes + 1) / 2, weights / 2).sum(axis=1)
        changes = subject.whole_changes()
    assert np.abs((whole - without).numpy()).max() > 0.1
    assert np.allclose(sums, (whole - without).numpy(), atol=0.005)
    assert np.allclose(changes, (whole - without).numpy(), atol=1e-4)


def test_the_sum_of_contributions_is_shown_with_the_change_that_it_misses(translator: Translator, target: str) -> None:
    found = attributed(translator, target, "integrated")
    assert found.changes is not None
    assert found.changes.shape == (len(found.target_words),)
    shown = shown_attribution(found)
    assert shown.total == pytest.approx(float(found.words.sum()), abs=1e-3)
    assert shown.change == pytest.approx(float(found.changes.sum()), abs=1e-3)
    note = shown.note()
    assert note is not None
    assert f"sum to {shown.total:.1f} nats" in note
    assert f"falls by {shown.change:.1f} nats" in note
    others = attributed(translator, target, "value")
    assert others.changes is None
    assert shown_attribution(others).note() is None


class UnbiasedAttention(MultiHeadAttention):
    """An attention that reads no term of a mask but the padding, as a component of one's own may."""

    @override
    def forward(self, *args: Any, **named: Any) -> torch.Tensor:
        if (mask := named.get("mask")) is not None:
            named["mask"] = AttentionMask(mask.allowed)
        return super().forward(*args, **named)


def test_integrated_follows_embeddings_if_an_attention_has_a_class_of_its_own(target: str, trained: Path) -> None:
    translator = transduce.load(trained, precision="fp32", device="cpu")
    assert isinstance(translator, Translator)
    for layer in translator.transformer.encoder_layers:
        layer.self_attention.__class__ = UnbiasedAttention
    subject = _Subject(read(translator, SENTENCE, target))
    assert not subject.weighs_attention
    is_special = torch.tensor(subject.is_special)[:, None]
    nothing = subject._embedding().complete(subject._word_vectors() * is_special)
    with _frozen(subject.model):
        whole = subject.reading.log_probabilities()[0]
        with record_activations(subject.model, (), edit={"encoder.embedding": lambda _: nothing}):
            without = subject.reading.log_probabilities()[0]
        nodes, weights = np.polynomial.legendre.leggauss(64)
        sums = subject.integrated([range(len(subject.ids))], (nodes + 1) / 2, weights / 2).sum(axis=1)
        changes = subject.whole_changes()
    assert np.allclose(sums, (whole - without).numpy(), atol=0.05)
    assert np.allclose(changes, (whole - without).numpy(), atol=1e-4)


def test_integrated_follows_embeddings_if_a_forward_was_set_on_an_attention(target: str, trained: Path) -> None:
    translator = transduce.load(trained, precision="fp32", device="cpu")
    assert isinstance(translator, Translator)
    assert _Subject(read(translator, SENTENCE, target)).weighs_attention
    attention = translator.transformer.encoder_layers[0].self_attention
    assert isinstance(attention, MultiHeadAttention)
    attention.forward = attention.forward  # type: ignore[method-assign]
    assert not _Subject(read(translator, SENTENCE, target)).weighs_attention


def test_integration_points_are_stratified_per_word(
    translator: Translator, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, seen = _Subject(read(translator, SENTENCE, target)), []

    def constant(factors: np.ndarray[Any, Any]) -> torch.Tensor:
        seen.append(factors)
        return torch.ones(len(subject.reading.outputs), len(factors))

    monkeypatch.setattr(subject, "attention_gradients", constant)
    _, groups = subject.words_read()
    found = subject.integrated(groups)
    # The integral of a constant gradient is that gradient, at whatever points each word was.
    assert np.allclose(found[:, :-1], 1.0, atol=1e-6)
    assert np.array_equal(found[:, -1], np.zeros(len(found)))
    for before, after in pairwise(groups):
        assert len({each[before[0]] for each in seen}) == len(seen) == 2
        assert all(len({each[index] for index in before}) == 1 for each in seen)
        assert all(each[before[0]] != each[after[0]] for each in seen)
    assert all(each[-1] == 1.0 for each in seen)


def test_gradients_by_target_prefix_equal_those_of_the_whole_target(
    translator: Translator, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = attributed(translator, target, "integrated")
    prefixes: list[int] = []

    def counted(lengths: Sequence[int]) -> list[torch.Tensor]:
        prefixes.extend(lengths)
        assert subject.reading.prefix_states is not None
        return subject.reading.prefix_states(lengths)

    subject = _Subject(read(translator, SENTENCE, target))
    monkeypatch.setattr("transduce.inspection.attribution._MIN_OPERATIONS_OF_PREFIXES", 0.0)
    parts = _Subject(replace(subject.reading, prefix_states=counted))
    with _frozen(translator.transformer):
        tokens = parts.integrated(parts.words_read()[1])
    assert 1 < prefixes[0] < prefixes[-1] == len(whole.target_tokens)
    assert np.allclose(tokens, whole.tokens, atol=1e-4)


@pytest.mark.parametrize("method", ["value", "rollout"])
def test_shares_of_all_source_tokens_sum_to_one(translator: Translator, target: str, method: Method) -> None:
    result = attributed(translator, target, method)
    assert np.allclose(result.tokens.sum(axis=1), 1.0, atol=1e-5)
    assert result.tokens.min() >= 0.0
    assert result.words.shape == (len(result.target_words), len(result.source_words))
    assert np.allclose(result.shares().sum(axis=1), 1.0, atol=1e-5)


def test_value_weighted_vectors_sum_to_the_output_of_the_module(translator: Translator) -> None:
    model, reading = translator.transformer, read(translator, SENTENCE)
    with torch.inference_mode(), record_activations(model) as recording:
        reading.forward(1)
        for stack, count in (("encoder", 2), ("decoder", 4)):
            vectors = list(_moved_vectors(model, recording, stack))
            assert len(vectors) == count
            for moved in vectors:
                shares = moved.shares()
                assert shares.shape == (moved.weights.shape[2], moved.weights.shape[3] + (not moved.is_self_attention))
                assert torch.allclose(shares.sum(dim=-1), torch.ones(len(shares)), atol=1e-5)


def test_the_model_is_unchanged_afterwards(translator: Translator, target: str) -> None:
    model = translator.transformer
    before = [(parameter.requires_grad, parameter.clone()) for parameter in model.parameters()]
    for method in ("gradient", "value"):
        attributed(translator, target, method)
    for (needed, values), parameter in zip(before, model.parameters(), strict=True):
        assert parameter.requires_grad == needed
        assert torch.equal(parameter, values)
        assert parameter.grad is None
    assert translator(SENTENCE).text == target


def test_weights_are_trained_again_after_attributions_in_several_threads(translator: Translator) -> None:
    model = translator.model
    first, second = _frozen(model), _frozen(model)
    with ThreadPoolExecutor(1) as pool:
        first.__enter__()
        pool.submit(second.__enter__).result()
        first.__exit__(None, None, None)  # while the other thread still needs the weights without gradients
        assert not any(parameter.requires_grad for parameter in model.parameters())
        pool.submit(second.__exit__, None, None, None).result()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_threads_that_look_inside_and_translate_do_not_disturb_one_another(translator: Translator) -> None:
    """All threads share the model, and are switched as often as possible."""
    heads_off = transduce.Intervention(heads_off=(transduce.Head("memory", 0, 0), transduce.Head("encoder", 1, 2)))
    views: list[Callable[[str], Any]] = [
        lambda text: [ord(letter) for letter in translator(text, beam_size=1).text],
        lambda text: [ord(each) for each in transduce.intervene(translator, text, heads_off).after.translation],
        lambda text: transduce.attention_maps(translator, text).memory,
        lambda text: transduce.logit_lens(translator, text).probabilities,
        lambda text: transduce.ablate(translator, text).heads[0].values,
        *(
            lambda text, method=method: attribute(translator, text, method=method).words
            for method in ("value", "gradient", "integrated", "rollout")
        ),
    ]
    texts = [SENTENCE, "他买了苹果", "我们明天去学校"]
    tasks = [(view, text) for text in texts for view in views]
    expected = [view(text) for view, text in tasks]
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda task: task[0](task[1]), tasks))
    finally:
        sys.setswitchinterval(0.005)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


def test_unknown_methods_empty_texts_and_wrong_models_are_refused(translator: Translator) -> None:
    with pytest.raises(TransduceError, match="`method` must be one of value, occlusion"):
        attribute(translator, SENTENCE, method="magic")  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match="needs words"):
        attribute(translator, "")
    with pytest.raises(TransduceError, match="this is a str"):
        attribute("models/demo", SENTENCE)  # type: ignore[arg-type]
    assert transduce.attribute is attribute


def test_value_attribution_refuses_an_unknown_attention_class(translator: Translator, target: str) -> None:
    class Halved(MultiHeadAttention):
        pass

    attention = translator.transformer.encoder_layers[0].self_attention
    before = type(attention)
    attention.__class__ = Halved
    try:
        with pytest.raises(TransduceError, match=r"encoder_layers\.0\.self_attention is of class Halved"):
            attributed(translator, target, "value")
    finally:
        attention.__class__ = before


def test_gradients_need_weights_in_floating_point(trained: Path) -> None:
    quantized = transduce.load(trained, task="translation", precision="int8", device="cpu", threads=1)
    assert attribute(quantized, SENTENCE, method="occlusion").words.size
    for method in get_args(Method):
        if method not in ("occlusion", "rollout"):
            with pytest.raises(TransduceError, match=f"`{method}` needs weights in floating point"):
                attribute(quantized, SENTENCE, method=method)
