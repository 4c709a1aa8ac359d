"""Test attribution: the sums that each method promises, hand-made cases, and words that a trained model needs."""

import copy
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

import transduce
from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.inspection.attribution import Attribution, Method, _contributions, _Pair, attribute, recorded_attention
from transduce.model.attention import MultiHeadAttention

SENTENCE = "今天老师喜欢苹果。"


@pytest.fixture(scope="module")
def target(translator: Translator) -> str:
    return translator(SENTENCE).text


def found(translator: Translator, target: str, method: Method) -> Attribution:
    return attribute(translator, SENTENCE, target, method=method)


@pytest.mark.parametrize("method", ["value", "occlusion", "integrated"])
def test_a_word_is_attributed_to_its_translation(translator: Translator, target: str, method: Method) -> None:
    result = found(translator, target, method)
    assert "apples" in target
    row = next(number for number, word in enumerate(result.target_words) if word.startswith("apples"))
    named = [result.source_words[column] for column in np.argsort(-result.words[row])[:2]]
    assert set("".join(named)) & set("苹果")


def test_occlusion_is_the_difference_of_two_scores(translator: Translator, target: str) -> None:
    result = found(translator, target, "occlusion")
    vocabulary = translator.tokenizer.source
    ids = vocabulary.with_special_tokens(vocabulary.encode(SENTENCE))
    config = translator.model.config
    targets = translator.tokenizer.target
    target_ids = targets.with_special_tokens(targets.encode(target))
    inputs = torch.tensor([[config.start_id, *target_ids[:-1]]])

    def log_probabilities(source: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits = translator.model(torch.tensor([source]), inputs)[0].log_softmax(-1)
        chosen: torch.Tensor = logits[torch.arange(len(target_ids)), torch.tensor(target_ids)]
        return chosen

    for removed in (0, 2):
        without = [id for number, id in enumerate(ids) if number != removed]
        drop = log_probabilities(ids) - log_probabilities(without)
        assert np.allclose(result.tokens[:, removed], drop.numpy(), atol=1e-4)


def test_integrated_gradients_sum_to_the_whole_change(translator: Translator, target: str) -> None:
    vocabulary, targets = translator.tokenizer.source, translator.tokenizer.target
    ids = vocabulary.with_special_tokens(vocabulary.encode(SENTENCE))
    target_ids = targets.with_special_tokens(targets.encode(target))
    model = copy.deepcopy(translator.transformer).eval().requires_grad_(requires_grad=False)
    pair = _Pair(model, ids, target_ids, torch.device("cpu"))
    embedded, mask = pair._embedded()
    zero = embedded - pair._word_vectors()
    with torch.no_grad():
        whole, nothing = (pair._log_probabilities((model.encode_embedded(x, mask), mask))[0] for x in (embedded, zero))
    assert np.allclose(pair.gradients(256).sum(axis=1), (whole - nothing).numpy(), atol=0.05)


@pytest.mark.parametrize("method", ["value", "rollout"])
def test_shares_of_all_source_tokens_sum_to_one(translator: Translator, target: str, method: Method) -> None:
    result = found(translator, target, method)
    assert np.allclose(result.tokens.sum(axis=1), 1.0, atol=1e-5)
    assert result.tokens.min() >= 0.0
    assert result.words.shape == (len(result.target_words), len(result.source_words))
    assert np.allclose(result.shares().sum(axis=1), 1.0, atol=1e-5)


def test_recorded_inputs_and_weights_give_the_module_s_output(translator: Translator) -> None:
    model, outputs = translator.transformer, []
    ids = torch.tensor([translator.tokenizer.source.encode(SENTENCE)])
    attention = model.encoder_layers[0].self_attention
    assert isinstance(attention, MultiHeadAttention)
    hook = attention.register_forward_hook(lambda *args: outputs.append(args[-1]))
    with torch.inference_mode(), recorded_attention(model) as records:
        model.encode(ids)
    hook.remove()
    record = records[0]
    assert record.module is attention
    with torch.inference_mode():
        heads = record.weights @ attention._project_self(record.x)[2]
        assert torch.allclose(attention.output(heads.transpose(1, 2).flatten(2)), outputs[0], atol=1e-5)
        assert torch.allclose(_contributions(record).sum(dim=-1), torch.ones(ids.shape[1]), atol=1e-5)
    assert not attention._forward_hooks
    assert not attention._forward_pre_hooks


def test_the_model_is_unchanged_afterwards(translator: Translator, target: str) -> None:
    model = translator.transformer
    before = [(parameter.requires_grad, parameter.clone()) for parameter in model.parameters()]
    for method in ("gradient", "value"):
        found(translator, target, method)
    for (needed, values), parameter in zip(before, model.parameters(), strict=True):
        assert parameter.requires_grad == needed
        assert torch.equal(parameter, values)
        assert parameter.grad is None
    assert translator(SENTENCE).text == target


def test_unusable_requests_are_refused(translator: Translator) -> None:
    with pytest.raises(TransduceError, match="`method` must be one of value, occlusion"):
        attribute(translator, SENTENCE, method="magic")  # type: ignore[arg-type]
    with pytest.raises(TransduceError, match="needs words"):
        attribute(translator, "")
    with pytest.raises(TransduceError, match="needs a translator, but this is a str"):
        attribute("models/demo", SENTENCE)  # type: ignore[arg-type]
    assert transduce.attribute is attribute


def test_moved_vectors_of_an_unknown_attention_are_not_guessed(translator: Translator, target: str) -> None:
    class Halved(MultiHeadAttention):
        pass

    attention = translator.transformer.encoder_layers[0].self_attention
    before = type(attention)
    attention.__class__ = Halved
    try:
        with pytest.raises(TransduceError, match=r"encoder_layers\.0\.self_attention is of class Halved"):
            found(translator, target, "value")
    finally:
        attention.__class__ = before


def test_gradients_need_weights_in_floating_point(trained: Path) -> None:
    quantized = transduce.load(trained, task="translation", precision="int8", device="cpu", threads=1)
    assert attribute(quantized, SENTENCE, method="occlusion").words.size
    for method in get_args(Method):
        if method not in ("occlusion", "rollout"):
            with pytest.raises(TransduceError, match=f"`{method}` needs weights in floating point"):
                attribute(quantized, SENTENCE, method=method)
