"""Test that short requests overtake long ones, and that none of them changes what another one gets."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.serving import batching
from transduce.serving.batching import Batcher, DecodingThreads
from transduce.serving.jobs import FunctionJob, Job, TranslationJob
from transduce.serving.messages import RequestError
from transduce.serving.metrics import Metrics
from transduce.serving.models import ServedModel
from transduce.serving.settings import ServingSettings

LONG = "今天老师喜欢苹果昨天学生买书" * 8
SHORT = ("我喜欢书。", "她昨天吃鱼。", "学生看见水。")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests overtake at once, without the time in which they may get their turn."""
    monkeypatch.setattr(batching, "_OVERTAKING_SECONDS", 0.0)


@pytest.fixture
def model(translator: Translator) -> ServedModel:
    return ServedModel(translator, languages=("zh", "en"))


def make(**settings: Any) -> Batcher:
    return Batcher(
        ServingSettings(
            **{"max_running": 9, "max_waiting": 9, "batch_tokens": 2000, "gather_milliseconds": 0.0} | settings
        )
    )


@contextmanager
def working(batcher: Batcher) -> Iterator[DecodingThreads]:
    """Decode the requests of a batcher with one worker, and one for requests that overtake."""
    workers = DecodingThreads(batcher, Metrics(), workers=1, threads=1)
    workers.start()
    try:
        yield workers
    finally:
        batcher.close()
        workers.join(30)
        assert not any(thread.is_alive() for thread in workers._threads)


def while_decoding(job: Job, act: Callable[[], None]) -> None:
    """Run `act` in the thread that decodes a job, after the first step; the job goes on when it returns."""
    is_first = iter([True])
    job.progress = lambda *_: act() if next(is_first, False) else None


class Progress:
    """A callback that records the progress of a job."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, Sequence[int], int]] = []

    def __call__(self, number: int, ids: Sequence[int], certain: int) -> None:
        self.reports.append((number, ids, certain))


def texts_of(job: Job) -> list[str]:
    return [result.translation.text for result in job.future.result(30)]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_short_requests_are_answered_while_a_long_one_is_decoded(model: ServedModel, beam_size: int) -> None:
    """The long request waits in the midst of its search until the others are answered."""
    search = msgspec.structs.replace(model.search, beam_size=beam_size)

    def jobs() -> list[Job]:
        made = [TranslationJob(model, texts, search, seconds=60.0) for texts in ([LONG], *zip(SHORT))]
        for job in made:
            job.progress = Progress()
        return [*made]

    alone, together = jobs(), jobs()
    for part in (alone[:1], alone[1:]):
        with working(batcher := make()):
            batcher.submit(*part)
            for job in part:
                job.future.result(60)
    long, *others = together
    progress = long.progress

    def let_others_overtake(*report: Any) -> None:
        assert progress is not None
        progress(*report)
        long.progress = progress
        batcher.submit(*others)
        for job in others:
            job.future.result(60)

    long.progress = let_others_overtake
    with working(batcher := make()):
        batcher.submit(long)
        assert [job.future.result(60) for job in together] == [job.future.result(60) for job in alone]
    reports = [[job.progress.reports for job in each] for each in (together, alone)]  # type: ignore[union-attr]
    assert reports[0] == reports[1]
    assert all(reports[0])


def test_requests_go_on_when_another_one_is_canceled(model: ServedModel) -> None:
    """The long request is given up while two are decoded beside it, one of which is given up, too."""
    (expected,) = model.translator.translate(SHORT[:1], model.search)
    long, short, canceled = (TranslationJob(model, [text], model.search, seconds=60.0) for text in (LONG, *SHORT[:2]))
    beside = threading.Event()

    def cancel_long() -> None:
        batcher.submit(short, canceled)
        assert beside.wait(30)
        batcher.abandon(long)

    def cancel_one() -> None:
        batcher.abandon(canceled)
        beside.set()

    while_decoding(long, cancel_long)
    while_decoding(short, cancel_one)
    with working(batcher := make()):
        batcher.submit(long)
        assert texts_of(short) == [expected.text]
    assert not long.future.done()
    assert not canceled.future.done()
    assert (batcher.running, batcher.waiting) == (0, 0)


class Held:
    """A long request that a thread decodes until it is released."""

    def __init__(self, gated_model: Any) -> None:
        class HeldModel(gated_model):  # type: ignore[misc]
            """A model that waits before it translates a long sentence."""

            def translate(held, sentences: list[str], *args: Any, **options: Any) -> Any:  # noqa: N805
                if max(map(held.tokens_of, sentences)) > 50:
                    self.begun.set()
                    assert self.released.wait(30)
                return super().translate(sentences, *args, **options)

            def tokens_of(held, sentence: str) -> int:  # noqa: N805
                return int(held.count_tokens([sentence])[0])

        self.begun, self.released = threading.Event(), threading.Event()
        self.model = HeldModel()
        self.job = self.request("lang " * 99)

    def request(self, *texts: str, seconds: float = 60.0) -> Job:
        return TranslationJob(self.model, texts, self.model.search, seconds=seconds)

    def begin(self, batcher: Batcher) -> None:
        batcher.submit(self.job)
        assert self.begun.wait(30)


@pytest.fixture
def held(gated_model: Any) -> Held:
    return Held(gated_model)


def test_an_error_reaches_the_request_that_caused_it_alone(held: Held) -> None:
    good, bad = held.request("gut"), held.request("poison")
    with working(batcher := make()):
        held.begin(batcher)
        batcher.submit(good, bad)
        assert texts_of(good) == ["GUT"]
        assert isinstance(bad.future.exception(30), RequestError)
        held.released.set()
        assert texts_of(held.job) == [held.job.sentences[0].upper()]


def test_a_late_request_does_not_overtake(held: Held) -> None:
    late, good = held.request("spät", seconds=-1.0), held.request("gut")
    with working(batcher := make()):
        held.begin(batcher)
        batcher.submit(late, good)
        assert texts_of(good) == ["GUT"]
        held.released.set()
        assert held.job.future.result(30)
    assert ["spät"] not in held.model.batches
    assert not late.future.done()


def test_all_accepted_requests_are_answered_at_the_end(held: Held) -> None:
    short = held.request("kurz")
    with working(batcher := make()):
        held.begin(batcher)
        batcher.submit(short)
        batcher.close()
        assert texts_of(short) == ["KURZ"]
        assert not held.job.future.done()
        held.released.set()
    assert held.job.future.done()


# --- which requests overtake ---


def request(model: Any, *lengths: int) -> Job:
    """Return a request of sentences with these numbers of tokens, including the end symbol."""
    sentences = [" ".join(["a"] * (length - 1)) for length in lengths]
    return TranslationJob(model, sentences, SearchSettings(beam_size=1), seconds=60.0)


def test_only_much_shorter_requests_overtake(gated_model: Any) -> None:
    batcher, model = make(), gated_model()
    batcher.submit(request(model, 60))
    assert batcher.take() is not None
    one, several, inspection, short, other = (
        request(model, 16),
        request(model, 9, 9, 9, 9, 9),
        FunctionJob(model, "a", model.search, seconds=60.0, work=lambda _: None),
        request(model, 14),
        request(model, 15),
    )
    batcher.submit(one, several, inspection, short, other)
    batch = batcher.take_overtaking()
    assert batch is not None
    assert batch.jobs == [short, other]
    assert batcher.waiting == 3


def test_short_requests_do_not_overtake_one_another(gated_model: Any) -> None:
    """A batch of many short requests is no long one, while one with a text of as many lines is."""
    for requests, overtakes in (([[40]] * 9, False), ([[30] * 9], True), ([[9], [30] * 9], True)):
        batcher, model = make(), gated_model()
        batcher.submit(*(request(model, *lengths) for lengths in requests))
        assert batcher.take() is not None
        batcher.submit(short := request(model, 5))
        assert (batcher._overtaking_jobs() == [short]) is overtakes


def test_no_request_overtakes_while_a_worker_is_free_or_has_a_short_batch(gated_model: Any) -> None:
    batcher, model = make(), gated_model()
    batcher.submit(request(model, 100))
    long = batcher.take()
    assert long is not None
    batcher.submit(request(model, 5))
    assert batcher._overtaking_jobs()
    batcher.idle_workers = 1
    assert not batcher._overtaking_jobs()
    batcher.idle_workers = 0
    batch = batcher.take()  # the second worker takes the short request
    assert batch is not None
    batcher.submit(request(model, 5))
    assert not batcher._overtaking_jobs()
    batcher.release(batch)
    assert batcher._overtaking_jobs()
    batcher.release(long)
    assert not batcher._overtaking_jobs()


def test_requests_that_overtake_wait_for_one_another(gated_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_OVERTAKING_SECONDS", 30.0)
    batcher, model = make(max_running=3), gated_model()
    batcher.submit(request(model, 100))
    assert batcher.take() is not None
    first, second = request(model, 5), request(model, 5)
    batcher.submit(first)
    taken = list[Any]()
    thread = threading.Thread(target=lambda: taken.append(batcher.take_overtaking()))
    thread.start()
    batcher.submit(second)  # as many as may run at once, so no more will come
    thread.join(20)
    assert taken[0].jobs == [first, second]
