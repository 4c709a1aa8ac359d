"""Test concurrently decoded batches: the same translations in order, and unchanged errors."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from transduce.inference import translator as module
from transduce.inference.batching import decode_in_parallel
from transduce.inference.translator import Translator
from transduce.kernels.select import has_kernels, quantize
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search.scorer import Hypothesis
from transduce.search.settings import SamplingSettings, SearchSettings


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_batches_are_decoded_concurrently_and_the_remainder_with_all_threads() -> None:
    together = threading.Barrier(3, timeout=60)

    def decode(number: int) -> tuple[int, int]:
        if number < 6:
            together.wait()  # for ever, if fewer ran at once
        return number, torch.get_num_threads()

    found = list(decode_in_parallel(decode, range(8), 3))
    assert found == [(number, 1 if number < 6 else 3) for number in range(8)]
    assert torch.get_num_threads() == 3


def test_new_threads_keep_the_number_of_pytorch_threads() -> None:
    list(decode_in_parallel(lambda number: number, range(3), 3))
    found = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [3]


def test_an_error_is_raised_and_waiting_batches_are_not_decoded() -> None:
    done = []

    def decode(number: int) -> None:
        done.append(number)
        raise ValueError(f"batch {number}")

    with pytest.raises(ValueError, match="batch 0"):
        list(decode_in_parallel(decode, range(3000), 3))
    assert len(done) < 3000
    assert torch.get_num_threads() == 3


def test_with_one_thread_batches_are_decoded_in_the_calling_thread() -> None:
    own = threading.get_ident()
    assert list(decode_in_parallel(lambda _: threading.get_ident(), range(4), 1)) == [own] * 4


@pytest.mark.usefixtures("every_thread")
@pytest.mark.parametrize(
    "search",
    [
        SearchSettings(beam_size=1),
        SearchSettings(beam_size=3, n_best=2),
        SearchSettings(sampling=SamplingSettings(seed=7)),
    ],
    ids=["greedy", "beam", "sampled"],
)
def test_concurrently_decoded_translations_equal_sequential_ones(
    search: SearchSettings, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernels():
        pytest.skip("there are no kernels for this processor, so batches are decoded one by one")
    torch.manual_seed(1)
    config = ModelConfig(
        source_vocabulary_size=translator.tokenizer.source.size,
        target_vocabulary_size=translator.tokenizer.target.size,
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=64,
        d_ff=128,
        num_heads=2,
    )
    own = Translator(quantize(Transformer(config).eval()), translator.tokenizer)
    monkeypatch.setattr(module, "batch_token_budget", lambda _: 24)
    decoding, search_ids = set(), own.search_ids

    def watched(*arguments: Any, **options: Any) -> list[list[Hypothesis]]:
        decoding.add(threading.get_ident())
        return search_ids(*arguments, **options)

    monkeypatch.setattr(own, "search_ids", watched)
    sentences = [line * times for line in ("我喜欢苹果。", "她今天看见老师。", "他买书。") for times in (1, 2, 3, 4)]
    found = own.translate(sentences, search)
    assert len(decoding) > 1
    torch.set_num_threads(1)
    decoding.clear()
    assert found == own.translate(sentences, search)
    assert decoding == {threading.get_ident()}
