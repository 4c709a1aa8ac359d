"""Test that a Translator's results equal those of the model itself."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from transduce.errors import IdleSettingWarning, TransduceError
from transduce.inference.batching import pad
from transduce.inference.load import open_translator
from transduce.inference.translation import Alternative, Translation
from transduce.inference.translator import Translator
from transduce.search.settings import SamplingSettings, SearchSettings


@pytest.fixture(scope="module")
def sentences(toy_corpus: Path) -> list[str]:
    return (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:24]


def step_log_probabilities(translator: Translator, sentence: str, prefix: list[int]) -> Tensor:
    """Return log-probabilities of the next token by the whole model at once, without cache, batch or search; (V,)."""
    config = translator.model.config
    source = [*translator.tokenizer.source.encode(sentence), config.eos_id]
    with torch.no_grad():
        logits = translator.model(torch.tensor([source]), torch.tensor([[config.start_id, *prefix]]))[0, -1]
    logits[config.pad_id] = float("-inf")  # never written
    return logits.log_softmax(dim=-1)  # type: ignore[no-any-return]


def greedy_by_hand(translator: Translator, sentence: str, longest: int) -> tuple[list[int], list[float]]:
    pieces: list[int] = []
    values: list[float] = []
    while len(values) < longest:
        step = step_log_probabilities(translator, sentence, pieces)
        values.append(float(step.max()))
        if int(step.argmax()) == translator.model.config.eos_id:
            break
        pieces.append(int(step.argmax()))
    return pieces, values


def test_a_string_gives_one_translation_and_a_list_gives_a_list(translator: Translator) -> None:
    one = translator("我喜欢苹果。")
    assert isinstance(one, Translation)
    assert isinstance(one.text, str)
    assert str(one) == one.text == one.alternatives[0].text
    assert one.source == "我喜欢苹果。"
    several = translator(["我喜欢苹果。", "你吃鱼。"])
    assert [type(translation) for translation in several] == [Translation, Translation]
    assert several[0].text == one.text
    assert translator(("我喜欢苹果。",))[0].text == one.text
    assert translator([]) == []


def test_greedy_search_takes_the_models_best_token_at_every_step(translator: Translator, sentences: list[str]) -> None:
    found = translator(sentences, beam_size=1, length_penalty=0.0)
    ended = 0
    for sentence, translation in zip(sentences, found, strict=True):
        longest = len(translator.tokenizer.source.encode(sentence)) + 1 + 50
        pieces, values = greedy_by_hand(translator, sentence, longest)
        best = translation.alternatives[0]
        assert list(best.tokens) == translator.tokenizer.target.tokens(pieces)
        assert best.token_log_probabilities == pytest.approx(values, abs=1e-4)
        assert best.score == pytest.approx(sum(values), abs=1e-3)
        assert best.text == translator.tokenizer.target.decode(pieces)
        ended += best.ended
    assert ended > len(sentences) / 2


def test_a_beams_scores_are_the_models(translator: Translator, sentences: list[str]) -> None:
    for translation in translator(sentences[:6], beam_size=4, n_best=4, length_penalty=0.6):
        for alternative in translation.alternatives:
            ids = [translator.tokenizer.target.id(piece) for piece in alternative.tokens]
            expected = [
                float(step_log_probabilities(translator, translation.source, ids[:number])[id])
                for number, id in enumerate([*ids, translator.model.config.eos_id])
            ][: len(alternative.token_log_probabilities)]
            assert alternative.token_log_probabilities == pytest.approx(expected, abs=1e-4)
            assert len(alternative.token_log_probabilities) == len(ids) + alternative.ended
            penalty = ((5 + len(expected)) / 6) ** 0.6
            assert alternative.score == pytest.approx(sum(expected) / penalty, abs=1e-3)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_batch_mates_change_nothing_and_order_is_kept(
    translator: Translator, sentences: list[str], beam_size: int
) -> None:
    mixed = [*sentences, "", sentences[0] * 3, "   ", "今天"]
    together = translator(mixed, beam_size=beam_size)
    backwards = translator(mixed[::-1], beam_size=beam_size)[::-1]
    alone = [translator(sentence, beam_size=beam_size) for sentence in mixed]
    assert [translation.source for translation in together] == mixed
    for one, two, three in zip(together, backwards, alone, strict=True):
        assert one.text == two.text == three.text
        assert one.score == pytest.approx(two.score, abs=1e-5)
        assert one.score == pytest.approx(three.score, abs=1e-5)


def test_splitting_into_batches_changes_no_translation(
    translator: Translator, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = [translation.text for translation in translator(sentences)]
    monkeypatch.setattr("transduce.inference.translator.batch_token_budget", lambda _: 60)
    assert [translation.text for translation in translator(sentences)] == one


@pytest.mark.parametrize("blank", ["", " ", "    ", "\t", "\u3000", "\u00a0\u2003", "\n"])
def test_blank_texts_come_back_unchanged(translator: Translator, blank: str) -> None:
    nothing = Alternative(text=blank, tokens=(), token_log_probabilities=(), score=0.0, ended=True)
    assert translator(blank).alternatives == (nothing,)
    found = translator([blank, "我吃鱼。", blank], n_best=2)
    assert [len(translation.alternatives) for translation in found] == [1, 2, 1]


@pytest.mark.parametrize(
    "odd", ["龘龘龘", "🙂 我吃鱼", "a\u2028b", "\ud800", "x" * 3000, "\x00", "</s>", "<pad>", "▁▁", "我\r"]
)
def test_odd_sentences_are_translated_into_one_line(translator: Translator, odd: str) -> None:
    assert "\n" not in translator(odd, max_length=20).text


def test_alternatives_are_sorted_and_distinct(translator: Translator, sentences: list[str]) -> None:
    for translation in translator(sentences, beam_size=5, n_best=5):
        scores = [alternative.score for alternative in translation.alternatives]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)
        assert len({(alternative.tokens, alternative.ended) for alternative in translation.alternatives}) == 5
        assert translation.score == scores[0]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_max_length_limits_the_number_of_tokens(translator: Translator, sentences: list[str], beam_size: int) -> None:
    for translation in translator(sentences, beam_size=beam_size, max_length=3):
        best = translation.alternatives[0]
        assert len(best.token_log_probabilities) <= 3
        assert best.ended or len(best.tokens) == 3
    one = translator(sentences[0], beam_size=beam_size, max_length=1).alternatives[0]
    assert len(one.token_log_probabilities) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "`beam_size` must be at least 1, but is 0"),
        ({"n_best": 5}, r"`n_best` must be at most `beam_size` \(4\), but is 5: raise `beam_size`"),
        ({"n_best": 0}, "`n_best` must be at least 1, but is 0"),
        ({"max_length": 0}, "`max_length` must be at least 1, but is 0"),
        ({"length_penalty": -1}, "`length_penalty` must not be negative, but is -1"),
        ({"length_penalty": math.nan}, "`length_penalty` must not be negative, but is nan"),
        ({"length_penalty": 11}, "`length_penalty` must be at most 10, but is 11"),
        ({"length_penalty": "x"}, "`length_penalty` must be a number, but is 'x'"),
        ({"beam_size": 2.5}, r"`beam_size` must be a whole number, but is 2\.5"),
        ({"beam_size": True}, "`beam_size` must be a whole number, but is True"),
        ({"max_length": "9"}, "`max_length` must be a whole number, but is '9'"),
        ({"max_length": 10**9}, "`max_length` must be at most 1,000,000, but is 1,000,000,000"),
        ({"search": {"beam_size": 2}}, r"`search` must be a `SearchSettings`, but is \{'beam_size': 2\}"),
    ],
)
def test_options_out_of_range_are_refused(translator: Translator, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        translator("我", **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"Pass a text \(a `str`\) or a list of texts, not None"),
        (b"abc", r"Pass a text \(a `str`\) or a list of texts, not b'abc'"),
        (["我", None], "Each text must be a `str`, but text number 2 is None: leave it out"),
        ([["我"]], r"Each text must be a `str`, but text number 1 is \['我'\]"),
    ],
)
def test_arguments_that_are_no_text_are_refused(translator: Translator, given: Any, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        translator(given)


def test_numbers_of_numpy_are_numbers(translator: Translator) -> None:
    search = SearchSettings(beam_size=np.int64(2), max_length=np.int32(9), length_penalty=np.float32(0.5))  # type: ignore[arg-type]
    assert translator("我", search=search) == translator("我", beam_size=2, max_length=9, length_penalty=0.5)


def test_an_unused_length_limit_takes_no_memory(translator: Translator, sentences: list[str]) -> None:
    """A search without a length limit gives the same translations, and allocates no memory for unused positions.

    With a small length penalty: a great one lets the search hope for thousands of steps that a longer text is better.
    """
    unlimited, limited = (
        translator(sentences[:2], max_length=tokens, length_penalty=0.1) for tokens in (1_000_000, 500)
    )
    assert unlimited == limited


def test_memory_that_runs_out_is_reported_with_settings(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr("transduce.inference.translator.start_search", exhausted)
    with pytest.raises(TransduceError, match="Memory ran out with `beam_size` 40 and `n_best` 1: lower them, or the"):
        translator("我", beam_size=40)


def test_the_model_of_a_translator_returns_logits(translator: Translator) -> None:
    with torch.inference_mode():
        logits = translator.model(torch.tensor([[5, 6, 1]]), torch.tensor([[0, 7]]))
    assert logits.shape == (1, 2, translator.tokenizer.target.size)


def test_translating_twice_gives_the_same(trained: Path, sentences: list[str]) -> None:
    runs = [open_translator(trained, precision="fp32", device="cpu", threads=1)(sentences) for _ in range(2)]
    assert runs[0] == runs[1]


def test_loading_reports_languages_and_precision(trained: Path) -> None:
    translator = open_translator(trained, precision="bf16", device="cpu", threads=1)
    assert (translator.source_language, translator.target_language) == ("zh", "en")
    assert translator.precision == "bf16"
    assert open_translator(trained, precision="fp32", threads=1).precision == "fp32"
    assert translator("我吃鱼。").alternatives


def test_an_unknown_precision_is_refused(trained: Path) -> None:
    with pytest.raises(TransduceError, match="`precision` must be `auto`, `fp32`, `bf16` or `int8`, but is `fp16`"):
        open_translator(trained, precision="fp16")


def test_the_notebook_shows_text_and_no_markup(translator: Translator) -> None:
    translation = Translation(source="a<b", alternatives=(translator("").alternatives[0],))
    assert "a&lt;b" in translation._repr_html_()


def test_rows_are_padded_at_the_right() -> None:
    assert pad([[5, 6], [7]], 0, torch.device("cpu")).tolist() == [[5, 6], [7, 0]]


def test_a_long_text_is_translated_sentence_by_sentence_and_says_so(
    translator: Translator, sentences: list[str]
) -> None:
    known = [f"{sentence.rstrip('？。')}。" for sentence in sentences] * 8
    whole = translator("".join(known), beam_size=1, max_length=8)
    assert whole.parts == len(known)
    assert whole.text == " ".join(t.text for t in translator(known, beam_size=1, max_length=8))
    assert translator(known[0]).parts == 1


@pytest.mark.parametrize("repeated", [0, 1])
def test_a_huge_text_without_an_end_is_cut_anywhere(
    translator: Translator, sentences: list[str], repeated: int
) -> None:
    translation = translator(sentences[repeated].rstrip("？。") * 500, beam_size=1, max_length=1)
    assert translation.parts > 1
    assert "\n" not in translation.text


@pytest.mark.parametrize("odd", ["x" * 100_000, "\U0001f600" * 2_000, " \t" * 5_000, "\ud800" * 300])
def test_a_huge_odd_text_ends_in_one_line(translator: Translator, odd: str) -> None:
    assert "\n" not in translator(odd, beam_size=1, max_length=1).text


def test_samples_depend_on_seed_and_position_and_not_on_the_batch(translator: Translator, sentences: list[str]) -> None:
    drawn = SearchSettings(n_best=3, max_length=12, sampling=SamplingSettings(seed=4))

    def texts(of: list[str], search: SearchSettings) -> list[list[str]]:
        return [[a.text for a in translation.alternatives] for translation in translator(of, search=search)]

    together = texts(sentences, drawn)
    assert all(len(alternatives) == 3 for alternatives in together)
    assert texts(sentences[:5], drawn) == together[:5]
    other = SearchSettings(n_best=3, max_length=12, sampling=SamplingSettings(seed=5))
    assert texts(sentences, other) != together


def test_the_likeliest_token_alone_is_greedy_search(translator: Translator, sentences: list[str]) -> None:
    drawn = SearchSettings(max_length=12, sampling=SamplingSettings(top_k=1))
    greedy = translator(sentences, beam_size=1, max_length=12)
    assert [t.text for t in translator(sentences, search=drawn)] == [t.text for t in greedy]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_begin_with_the_prefix(translator: Translator, sentences: list[str], beam_size: int) -> None:
    for translation in translator(sentences, beam_size=beam_size, max_length=12, prefix="we like"):
        assert translation.text.startswith("we like")


def test_no_repeated_ngrams_forbids_repeated_ngrams(translator: Translator, sentences: list[str]) -> None:
    def repeating(search: SearchSettings) -> int:
        found = [list(pairwise(each.alternatives[0].tokens)) for each in translator(sentences, search=search)]
        return sum(len(set(runs)) < len(runs) for runs in found)

    assert repeating(SearchSettings(min_length=16, max_length=20)) > 0
    assert repeating(SearchSettings(min_length=16, max_length=20, no_repeated_ngrams=2)) == 0


def test_sampling_options_of_a_call_sample(translator: Translator, sentences: list[str]) -> None:
    options = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 3}
    search = SearchSettings(sampling=SamplingSettings(**options), n_best=2)  # type: ignore[arg-type]
    assert translator(sentences, n_best=2, **options) == translator(sentences, search=search)  # type: ignore[call-overload]
    drawn = translator(sentences, temperature=1.5, seed=1)
    assert drawn == translator(sentences, temperature=1.5, seed=1) != translator(sentences, temperature=1.5, seed=2)


def test_an_option_of_sampling_keeps_the_others_of_the_search(translator: Translator) -> None:
    search = SearchSettings(sampling=SamplingSettings(top_k=1))
    assert translator("我吃鱼。", seed=5, search=search).text == translator("我吃鱼。", beam_size=1).text


def test_a_temperature_of_zero_is_greedy_search(translator: Translator, sentences: list[str]) -> None:
    assert translator(sentences, temperature=0) == translator(sentences, beam_size=1)
    search = SearchSettings(sampling=SamplingSettings(), n_best=3)
    with pytest.warns(IdleSettingWarning, match="`n_best`"):
        assert translator(sentences[0], temperature=0.0, search=search) == translator(sentences[0], beam_size=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 1.0, "beam_size": 4}, "`beam_size` sets how to search, but `temperature` samples instead"),
        ({"top_p": 0.0}, r"`top_p` must be in \(0, 1\], but is 0.0"),
        ({"top_k": -1}, "`top_k` must not be negative, but is -1"),
        ({"temperature": -0.5}, "`temperature` must be greater than 0"),
        ({"temperature": False}, "`temperature` must be a number, but is False"),
    ],
)
def test_sampling_options_that_make_no_sense_are_refused(
    translator: Translator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        translator("我吃鱼。", **options)
