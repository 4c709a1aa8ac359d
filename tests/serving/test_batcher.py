"""Test which sentences form a batch, in which order, and how results are delivered."""

import threading
from typing import Any

import pytest

from transduce.inference.translation import Alternative, Translation
from transduce.search.settings import SearchSettings
from transduce.serving.batching import Batcher
from transduce.serving.jobs import FunctionJob, Job, TranslationJob
from transduce.serving.messages import RequestError
from transduce.serving.settings import ServingSettings


def make(**settings: Any) -> Batcher:
    return Batcher(
        ServingSettings(
            **{"max_running": 100, "max_waiting": 100, "batch_tokens": 1000, "gather_milliseconds": 0.0} | settings
        )
    )


@pytest.fixture
def model(gated_model: Any) -> Any:
    return gated_model()


def sentence(words: int) -> str:
    """Return a sentence with this number of tokens, including the end symbol."""
    return " ".join(["a"] * (words - 1))


def job(model: Any, *lengths: int, seconds: float = 60.0, beam_size: int = 1) -> TranslationJob:
    return TranslationJob(
        model, [sentence(length) for length in lengths], SearchSettings(beam_size=beam_size), seconds=seconds
    )


def translated(text: str) -> Translation:
    return Translation(text, (Alternative(text.upper(), (), (), score=0.0, ended=True),))


def lengths(batcher: Batcher) -> list[int]:
    """Take and finish the next batch, and return its sentences' numbers of tokens."""
    batch = batcher.take()
    assert batch is not None
    batcher.finish(batch, [translated(sentence.sentence) for sentence in batch.sentences])
    return [sentence.tokens for sentence in batch.sentences]


def test_a_batch_has_no_more_tokens_than_it_may_with_padding(model: Any) -> None:
    batcher = make(batch_tokens=40)
    for length in (10, 9, 10, 8, 3):
        batcher.submit(job(model, length))
    assert lengths(batcher) == [10, 10, 9, 8]
    assert lengths(batcher) == [3]


def test_hypotheses_count_as_tokens(model: Any) -> None:
    batcher = make(batch_tokens=40)
    for _ in range(3):
        batcher.submit(job(model, 10, beam_size=2))
    assert lengths(batcher) == [10, 10]


def test_sentences_of_like_length_go_together_and_the_oldest_request_first(model: Any) -> None:
    batcher = make(batch_tokens=40)
    for length in (20, 5, 19, 6):
        batcher.submit(job(model, length))
    assert lengths(batcher) == [20, 19]
    assert lengths(batcher) == [5, 6]


def test_a_sentence_beyond_the_token_budget_is_a_batch_of_its_own(model: Any) -> None:
    batcher = make(batch_tokens=40)
    batcher.submit(job(model, 500))
    batcher.submit(job(model, 5))
    assert lengths(batcher) == [500]
    assert lengths(batcher) == [5]


def test_a_long_text_does_not_keep_short_ones_waiting(model: Any) -> None:
    batcher = make(batch_tokens=20)
    long = job(model, *[10] * 9)
    short = job(model, 3)
    batcher.submit(long)
    batcher.submit(short)
    taken = [lengths(batcher) for _ in range(3)]
    assert any(3 in batch for batch in taken[:2])
    assert short.future.done()
    assert not long.future.done()


def test_jobs_with_different_settings_or_models_are_not_batched_together(model: Any, gated_model: Any) -> None:
    batcher = make()
    first, second, third = job(model, 4), job(model, 4, beam_size=2), job(gated_model(), 4)
    for each in (first, second, third):
        batcher.submit(each)
    for each in (first, second, third):
        batch = batcher.take()
        assert batch is not None
        assert batch.jobs == [each]


@pytest.mark.parametrize("function_is_first", [True, False])
def test_a_function_is_alone_in_its_batch(model: Any, function_is_first: bool) -> None:
    function = FunctionJob(model, sentence(5), model.search, seconds=60.0, work=lambda _: "result")
    jobs = [function, job(model, 5, 4)] if function_is_first else [job(model, 5, 4), function]
    batcher = make()
    for each in jobs:
        batcher.submit(each)
    batcher.close()
    batches = [batcher.take(), batcher.take()]
    assert [batch.jobs for batch in batches if batch is not None] == [[each] for each in jobs]


def test_answers_are_in_the_order_of_the_request(model: Any) -> None:
    batcher = make(batch_tokens=10)
    request = job(model, 3, 9, 1, 5, 7)
    batcher.submit(request)
    while not request.future.done():
        lengths(batcher)
    assert [result.source for result in request.future.result()] == list(request.sentences)


def test_free_slots_are_counted_exactly(model: Any) -> None:
    batcher = make(max_running=2, max_waiting=3)
    jobs = [job(model, 4) for _ in range(5)]
    for each in jobs:
        batcher.submit(each)
    assert batcher.free_slots() == 0
    with pytest.raises(RequestError, match="busy"):
        batcher.submit(job(model, 4))
    batch = batcher.take()
    assert batch is not None
    assert batch.jobs == jobs[:2]
    assert (batcher.running, batcher.waiting) == (2, 3)
    with pytest.raises(RequestError, match="busy"):
        batcher.submit(job(model, 4))
    batcher.drop_job(batch, jobs[0])
    assert (batcher.running, batcher.waiting) == (1, 3)
    batcher.submit(job(model, 4))
    batcher.finish(batch, [translated(sentence.sentence) for sentence in batch.sentences])
    assert jobs[1].future.done()
    assert not jobs[0].future.done()
    assert (batcher.running, batcher.waiting) == (0, 4)


def test_the_jobs_of_one_request_are_admitted_together_or_not_at_all(model: Any) -> None:
    batcher = make(max_running=1, max_waiting=2)
    batcher.submit(job(model, 4), job(model, 4))
    with pytest.raises(RequestError, match="busy"):
        batcher.submit(job(model, 4), job(model, 4))
    assert batcher.free_slots() == 1
    assert batcher.waiting == 2


def test_a_job_without_sentences_is_complete_at_once(model: Any) -> None:
    batcher, empty = make(), job(model)
    batcher.submit(empty, job(model, 4))
    assert empty.future.result(timeout=0) == []
    assert lengths(batcher) == [4]


def test_a_full_batcher_does_not_wait_to_gather_more_requests(model: Any) -> None:
    batcher = make(max_running=2, gather_milliseconds=3_600_000.0)
    for _ in range(2):
        batcher.submit(job(model, 4))
    assert lengths(batcher) == [4, 4]


@pytest.mark.parametrize(("sentences", "shares"), [(40, [20, 20]), (33, [17, 16]), (31, [31]), (1, [1])])
def test_idle_workers_divide_large_batches(model: Any, wait_until: Any, sentences: int, shares: list[int]) -> None:
    batcher, taken = make(), []

    def work() -> None:
        while (batch := batcher.take()) is not None:
            taken.append(len(batch.sentences))
            batcher.finish(batch, [translated(sentence.sentence) for sentence in batch.sentences])

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    wait_until(lambda: batcher.idle_workers == 2)
    request = job(model, *[10] * sentences)
    batcher.submit(request)
    assert len(request.future.result(10)) == sentences
    batcher.close()
    for worker in workers:
        worker.join(10)
    assert sorted(taken, reverse=True) == shares


def test_a_running_request_continues_when_new_ones_must_wait(model: Any) -> None:
    batcher = make(max_running=1, batch_tokens=10)
    long, other = job(model, 10, 10), job(model, 10)
    batcher.submit(other)
    batcher.submit(long)
    assert lengths(batcher) == [10]
    first = batcher.take()
    assert first is not None
    assert first.jobs == [long]
    expired = job(model, 10)
    batcher.submit(expired)
    second = batcher.take()
    assert second is not None
    assert second.jobs == [long]
    for batch in (first, second):
        batcher.finish(batch, [translated(sentence.sentence) for sentence in batch.sentences])
    assert long.future.done()
    assert batcher.running == 0


class JoiningJob(TranslationJob):
    def can_join(self, other: Job) -> bool:
        return isinstance(other, JoiningJob)


def joining(model: Any, *lengths: int) -> JoiningJob:
    return JoiningJob(model, [sentence(length) for length in lengths], SearchSettings(beam_size=1), seconds=60.0)


def test_requests_join_a_batch_in_their_order_and_overtake_none(model: Any) -> None:
    batcher = make(batch_tokens=40, max_running=4)
    first, second, other, last = joining(model, 5), joining(model, 5, 6, 7), job(model, 5), joining(model, 5)
    batcher.submit(first)
    batch = batcher.take()
    assert batch is not None
    batcher.submit(second, other, last)
    assert [entry.tokens for entry in batcher.join(batch, 2)] == [7, 6]  # the longest first
    assert batcher.join(batch, 0) == []
    batcher.deliver(batch, batch.sentences[0], "a")
    assert first.future.result(0) == ["a"]
    assert [entry.job for entry in batcher.join(batch, 9)] == [second]  # `last` does not overtake `other`
    assert batcher.join(batch, 9) == []
    batcher.idle_workers = 1  # which decodes `other`
    assert [entry.job for entry in batcher.join(batch, 9)] == [last]
    assert batcher.join(batch, 9) == []
    for entry in list(batch.sentences):
        batcher.deliver(batch, entry, entry.number)
    assert (second.future.result(0), last.future.result(0)) == ([0, 1, 2], [0])
    assert (batch.jobs, batcher.running, batcher.waiting) == ([], 0, 1)


def test_a_joining_request_waits_for_space(model: Any) -> None:
    batcher = make(batch_tokens=20, max_running=3)
    jobs = [joining(model, length) for length in (8, 5, 5, 5)]
    batcher.submit(*jobs)
    batch = batcher.take()
    assert batch is not None
    assert [entry.tokens for entry in batch.sentences] == [8, 5]
    assert batcher.join(batch, 9) == []  # 3 × 8 tokens, with padding, are too many
    batcher.deliver(batch, batch.sentences[0], "a")
    assert len(batcher.join(batch, 9)) == 2


def test_an_abandoned_request_leaves_the_queue(model: Any) -> None:
    batcher = make()
    disconnected, other = job(model, 4), job(model, 4)
    batcher.submit(disconnected)
    batcher.submit(other)
    assert batcher.abandon(disconnected) is False
    batch = batcher.take()
    assert batch is not None
    assert batch.jobs == [other]
    assert batcher.abandon(other) is True
    batcher.finish(batch, [translated("x")])
    assert (batcher.running, batcher.waiting) == (0, 0)
    assert isinstance(other.future.exception(), RequestError)


def test_a_late_request_is_not_begun(model: Any) -> None:
    batcher = make()
    expired, other = job(model, 4, seconds=-1), job(model, 4)
    batcher.submit(expired)
    batcher.submit(other)
    batch = batcher.take()
    assert batch is not None
    assert batch.jobs == [other]


def test_a_batch_that_failed_reports_its_requests(model: Any) -> None:
    batcher = make(batch_tokens=10)
    request = job(model, 10, 10, 10)
    batcher.submit(request)
    batch = batcher.take()
    assert batch is not None
    batcher.finish(batch, RequestError(500, "sorry"))
    assert request.future.exception(0).sentence == "sorry"  # type: ignore[union-attr]
    assert (batcher.running, batcher.waiting) == (0, 0)


def test_a_closed_batcher_refuses_new_jobs_and_finishes_accepted_ones(model: Any) -> None:
    batcher = make()
    request = job(model, 4)
    batcher.submit(request)
    batcher.close()
    with pytest.raises(RequestError, match="shutting down"):
        batcher.submit(job(model, 4))
    assert lengths(batcher) == [4]
    assert batcher.take() is None
    assert request.future.done()


def test_a_client_that_waits_when_all_is_stopped_is_answered(model: Any) -> None:
    batcher = make(batch_tokens=4)
    running, waiting = job(model, 4), job(model, 4)
    batcher.submit(running)
    batch = batcher.take()
    batcher.submit(waiting)
    batcher.fail_remaining()
    assert batch is not None
    for each in (running, waiting):
        with pytest.raises(RequestError, match="shutting down"):
            each.future.result(0)
    with pytest.raises(RequestError, match="shutting down"):
        batcher.submit(job(model, 4))
    assert batcher.take() is None
    batcher.finish(batch, [translated("x")])
