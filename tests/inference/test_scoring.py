"""Test scores of given translations against the model's log-probabilities and those that search reports."""

from pathlib import Path

import pytest
import torch

from transduce.errors import TransduceError
from transduce.inference.scoring import MAX_TOKENS, _batches
from transduce.inference.translator import Translator


@pytest.fixture(scope="module")
def sentences(toy_corpus: Path) -> list[str]:
    return (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:24]


@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 0.0), (4, 0.6), (4, 0.0)])
def test_scores_are_what_search_reports(
    translator: Translator, sentences: list[str], beam_size: int, alpha: float
) -> None:
    found = translator(sentences, beam_size=beam_size, length_penalty=alpha)
    scores = translator.score(sentences, [translation.text for translation in found], length_penalty=alpha)
    compared = 0
    for translation, score in zip(found, scores, strict=True):
        best = translation.alternatives[0]
        if best.ended and best.tokens == score.tokens:  # a text has several tokenizations
            assert score.score == pytest.approx(best.score, rel=1e-6, abs=1e-6)
            assert score.token_log_probabilities == pytest.approx(best.token_log_probabilities, abs=5e-6)
            compared += 1
    assert compared > len(sentences) / 2


def test_scores_are_the_whole_models(translator: Translator) -> None:
    source, target = "我吃鱼。", "I like tea."
    (score,) = translator.score([source], [target])
    config = translator.model.config
    source_ids = [*translator.tokenizer.source.encode(source), config.eos_id]
    target_ids = [*translator.tokenizer.target.encode(target), config.eos_id]
    with torch.no_grad():
        logits = translator.model(torch.tensor([source_ids]), torch.tensor([[config.start_id, *target_ids[:-1]]]))[0]
    logits[:, config.pad_id] = -torch.inf
    expected = logits.log_softmax(-1).gather(1, torch.tensor(target_ids)[:, None])[:, 0].tolist()
    assert score.token_log_probabilities == pytest.approx(expected, abs=1e-5)
    assert score.log_probability == score.score == sum(score.token_log_probabilities)
    assert score.tokens == tuple(translator.tokenizer.target.tokens(target_ids[:-1]))


def test_batch_mates_change_nothing_and_order_is_kept(
    translator: Translator, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [translation.text for translation in translator(sentences, beam_size=1)]
    targets[3], targets[7] = "", "the teacher " * 20
    together = translator.score(sentences, targets)
    monkeypatch.setattr("transduce.inference.scoring._BATCH_TOKENS", 40)
    monkeypatch.setattr("transduce.inference.scoring._CHUNK_ELEMENTS", 3000)
    monkeypatch.setattr("transduce.inference.scoring._MIN_ROWS", 1)
    for one, two in zip(together, translator.score(sentences, targets), strict=True):
        assert (one.source, one.target, one.tokens) == (two.source, two.target, two.tokens)
        assert one.score == pytest.approx(two.score, abs=1e-4)
    assert len(together[3].token_log_probabilities) == 1


def test_batches_are_bounded_with_their_padding() -> None:
    """A long source with a short target, and short sources with long targets, make much padding together."""
    source, target = [[3] * 100, *([[3] * 50] * 39), [3] * 5000], [[3], *([[3] * 51] * 39), [3]]
    batches = list(_batches(source, target))
    assert sorted(number for batch in batches for number in batch) == list(range(41))
    for batch in batches:
        longest = [max(len(side[number]) for number in batch) for side in (source, target)]
        assert len(batch) * sum(longest) <= 4096 or len(batch) == 1


def test_a_length_penalty_divides(translator: Translator) -> None:
    plain, penalised = (translator.score(["我吃鱼。"], ["I eat fish."], length_penalty=a)[0] for a in (0.0, 0.6))
    pieces = len(plain.token_log_probabilities)
    assert penalised.score == pytest.approx(plain.score / ((5 + pieces) / 6) ** 0.6)
    assert penalised.log_probability == plain.log_probability


def test_a_right_translation_is_likelier_than_a_wrong_one(translator: Translator) -> None:
    right, wrong = translator.score(["我吃鱼。"] * 2, ["I eat fish.", "the student sell water tomorrow."])
    assert right.score > wrong.score


def test_no_pairs_have_no_scores(translator: Translator) -> None:
    assert translator.score([], []) == []


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (["a", "b"], ["c"], "Each source has one target, but there are 2 sources and 1 targets"),
        (["我"], ["x y " * 2000], "A target must have at most 1024 tokens to be scored, but number 1 has"),
        (
            ["我", "x y " * 2000],
            ["I", "I"],
            "A source must have at most 256 tokens to be scored, because search splits longer ones, but number 2 has",
        ),
    ],
)
def test_unequal_numbers_and_too_long_texts_are_refused(
    translator: Translator, sources: list[str], targets: list[str], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        translator.score(sources, targets)


def test_sources_longer_than_search_reads_at_once_are_refused(translator: Translator) -> None:
    text = "我吃鱼。" * 200
    most, pieces = translator.max_sentence_tokens, len(translator.tokenizer.source.encode(text))
    assert pieces <= MAX_TOKENS
    assert translator(text).parts > 1
    message = f"A source must have at most {most} tokens .* but number 2 has {pieces}: split it into sentences"
    with pytest.raises(TransduceError, match=message):
        translator.score(["我吃鱼。", text], ["I eat fish.", "I eat fish."])
    # Inspection scores arbitrary sources.
    assert len(translator.scoring(translator.search)([text], ["I eat fish."])) == 1
