"""Test how many threads each worker uses."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from transduce.commands.serve import default_workers
from transduce.inference.batching import Documents
from transduce.inference.translation import Translation, empty_alternative
from transduce.inference.translator import Translator
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings
from transduce.serving.batching import Batcher, DecodingThreads
from transduce.serving.jobs import TranslationJob
from transduce.serving.metrics import Metrics
from transduce.serving.models import ServedModel
from transduce.serving.settings import ServingSettings
from transduce.text.glossary import Glossary
from transduce.text.text_settings import TextSettings
from transduce.text.word_spans import Span


class Meeting:
    """A model that records how many threads it may use, alone and while another batch is decoded."""

    source_language, target_language = "de", "en"
    search = SearchSettings(beam_size=1)
    max_source_tokens = 256
    glossary: Glossary | None = None
    context_before = 0

    def __init__(self, batches: int) -> None:
        self.meeting = threading.Barrier(batches)
        self.threads: list[tuple[int, ...]] = []

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        return [1] * len(sentences)

    def translate(
        self,
        sentences: list[str],
        search: SearchSettings,  # noqa: ARG002
        indices: Sequence[int],  # noqa: ARG002
        observer: Observer,
        glossary: Glossary | None,  # noqa: ARG002
        text_settings: TextSettings,  # noqa: ARG002
        *,
        protected: Sequence[Sequence[Span]] | None = None,  # noqa: ARG002
        documents: Documents | None = None,  # noqa: ARG002
    ) -> list[Translation]:
        self.meeting.wait(10)
        seen = [self._threads_of_step(observer)]
        self.meeting.wait(10)
        seen.append(self._threads_of_step(observer))
        self.meeting.wait(10)  # a worker that finishes leaves its threads to the others
        self.threads.append(tuple(seen))
        return [Translation(sentence, (empty_alternative(),)) for sentence in sentences]

    def is_plain_sentence(self, text: str, text_settings: TextSettings) -> bool:
        return bool(text) and bool(text_settings)

    def check(self, glossary: Glossary, search: SearchSettings) -> None:
        """Accept every glossary."""

    def align_spans(
        self,
        translations: Sequence[Translation],  # noqa: ARG002
        spans: Sequence[Sequence[Span]],
        glossary: Glossary | None,  # noqa: ARG002
    ) -> list[list[Span]]:
        return [list(own) for own in spans]

    def encode_target(self, text: str) -> list[int]:
        return list(range(len(text)))

    def decode_start(self, ids: Sequence[int], source: str) -> str:
        return f"{source} {ids}"

    def unknown_characters(self, sentence: str) -> str:
        return sentence[:0]

    def _threads_of_step(self, observer: Observer) -> int:
        observer.after_step(torch.tensor([0]), torch.zeros(1, 1, 1, dtype=torch.int64))
        return torch.get_num_threads()


@pytest.fixture
def threads_stay() -> Iterator[None]:
    """Restore PyTorch's number of threads after the test, because new threads start with the last number set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [[4], [2, 2], [2, 1, 1]])
def test_computing_workers_share_the_threads(threads_stay: None, threads: list[int]) -> None:  # noqa: ARG001
    batches = len(threads)
    model = Meeting(batches)
    batcher = Batcher(ServingSettings(max_running=4, max_waiting=4, batch_tokens=1, gather_milliseconds=0.0))
    workers = DecodingThreads(batcher, Metrics(), workers=3, threads=4)
    workers.start()
    jobs = [TranslationJob(model, ["a"], model.search, seconds=60.0) for _ in range(batches)]
    batcher.submit(*jobs)
    for job in jobs:
        assert job.future.result(10)[0].translation.source == "a"
    batcher.close()
    workers.join(10)
    assert sorted(model.threads, reverse=True) == [(each, each) for each in threads]


def test_as_many_batches_are_decoded_side_by_side_as_there_are_threads(translator: Translator) -> None:
    model = ServedModel(translator, languages=("de", "en"))
    assert default_workers([model]) == min(torch.get_num_threads(), 4)


def test_answers_are_the_same_from_several_workers(serve: Any, translator: Translator) -> None:
    model = ServedModel(translator, languages=("de", "en"))
    sentences = [f"今天老师喜欢苹果{number}。" for number in range(40)]
    with serve(model, workers=2) as live:
        asks = [live.in_background(lambda text=text: live.translate(text)) for text in sentences]
        found = [ask.reply().json["translatedText"] for ask in asks]
    assert found == [each.text for each in translator.translate(sentences, model.search)]


@pytest.mark.parametrize("failing", ["decode", "finish"])
def test_a_worker_survives_a_batch_without_a_result_for_each_sentence(
    failing: str, serve: Any, gated_model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serve(gated_model(), workers=1, overtaking=False) as live:
        with monkeypatch.context() as patch:
            if failing == "decode":
                patch.setattr(TranslationJob, "decode", lambda *_: [])
            else:
                finish = Batcher.finish

                def fail(self: Batcher, batch: Any, results: Any) -> None:
                    if not isinstance(results, Exception):
                        raise ValueError("unexpected")
                    finish(self, batch, results)

                patch.setattr(Batcher, "finish", fail)
            failed = live.translate("eins")
            assert (failed.status, failed.error.partition(";")[0]) == (500, "The model failed on this text")
        reason = "The decoder returned 0 results for 1 sentence" if failing == "decode" else "unexpected"
        assert reason in caplog.text
        assert live.translate("eins").json == {"translatedText": "EINS"}
        assert live.ask("GET", "/health").status == 200
        assert live.service.engine.batcher.running == 0
