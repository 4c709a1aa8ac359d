"""Requests in, translations out: the batcher, the threads behind it, and how a request waits for its answer."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.serving.jobs import Job, Place
from transduce.serving.messages import RequestError
from transduce.serving.metrics import Metrics
from transduce.serving.settings import ServingSettings

# --- batcher ---
# Strangers' requests, gathered into batches that decode well together.
# A request is waiting until one of its sentences goes into a batch, and running from then on. At most `max_running`
# run and `max_waiting` wait; what comes on top is refused at once. A batch has sentences of one model and one way
# to search, of like length, so that little of it is padding. It begins with the request that has waited longest
# since its last turn, so that a long text does not keep short ones out.


_CANDIDATES_OF_A_JOB = 256  # so that a text of ten thousand lines is not sorted again for every batch
# Fewer do not get a batch of their own while another worker is idle: every step of a batch has a price of its own,
# which is about that of four sentences.
_LEAST_APART = 16


class Batch:
    """Sentences that are decoded together."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self.jobs = list(dict.fromkeys(place.job for place in places))
        """Those whose sentences are still decoded."""

    def split(self) -> list["Batch"]:
        """A batch for each job that is still in this one, which they replace."""
        return [Batch([place for place in self.places if place.job is job]) for job in self.jobs]


class Batcher:
    """The queue between the requests and the decoding threads."""

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        batch_tokens: int,
        gather_seconds: float,
        report_wait: Callable[[float], None] = lambda seconds: None,  # noqa: ARG005
    ) -> None:
        """`report_wait` learns how many seconds each job waited; the rest is explained in `ServingSettings`."""
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.batch_tokens = batch_tokens
        self.gather_seconds = gather_seconds
        self._report_wait = report_wait
        self._changed = threading.Condition()
        self._queue: list[Job] = []  # with sentences still to go into a batch; whose turn is next comes first
        self._running: set[Job] = set()
        self.idle_workers = 0
        """Those that wait for a batch."""
        self._closed = False

    @property
    def running(self) -> int:
        """Requests of which something is being decoded."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests of which nothing was begun."""
        with self._changed:
            return self._count_waiting()

    def _count_waiting(self) -> int:
        return sum(job.started_at is None for job in self._queue)

    def room(self) -> int:
        """How many more jobs would be taken in at this moment."""
        with self._changed:
            return self._room()

    def _room(self) -> int:
        return self.max_running + self.max_waiting - len(self._running) - self._count_waiting()

    def submit(self, *jobs: Job) -> None:
        """Takes jobs in, all of them or none.

        Raises:
            RequestError: there is no room, or the server is about to end.
        """
        with self._changed:
            if self._closed:
                raise shutting_down()
            if self._room() < len(jobs):
                raise busy()
            self._queue += jobs
            self._changed.notify_all()

    def abandon(self, job: Job) -> bool:
        """Nobody waits for it any more. Tells whether it had begun; then its batches find out at their next step."""
        with self._changed:
            job.abandoned = True
            self._forget(job)
            return job.started_at is not None

    def _forget(self, job: Job) -> None:
        """Nothing more of it is begun, and its room is free once nothing of it is being decoded."""
        if job in self._queue:
            self._queue.remove(job)
        if not job.in_batches:
            self._running.discard(job)
        self._changed.notify_all()

    def take(self) -> Batch | None:
        """The next batch, once there is one; None when no more will come."""
        with self._changed:
            self.idle_workers += 1
            try:
                return self._take()
            finally:
                self.idle_workers -= 1

    def _take(self) -> Batch | None:
        while True:
            while self._next_job() is None:
                if self._closed and not self._queue:
                    return None
                self._changed.wait()
            self._gather()
            self._drop_late()
            head = self._next_job()
            if head is not None:
                return self._begin(self._pick(head))

    def _next_job(self) -> Job | None:
        """The first that has begun already or finds room to begin."""
        has_room = len(self._running) < self.max_running
        return next((job for job in self._queue if has_room or job in self._running), None)

    def _gather(self) -> None:
        """Waits for company until the first job has been here for a moment, or there is enough for a batch."""
        while self._queue and not self._closed and not self._is_enough():
            left = min(job.accepted_at for job in self._queue) + self.gather_seconds - time.monotonic()
            if left <= 0:
                return
            self._changed.wait(left)

    def _is_enough(self) -> bool:
        """Whether more would find no room in the next batch."""
        tokens = sum(job.total_tokens * width(job) for job in self._queue)
        return tokens >= self.batch_tokens or len(self._running) + self._count_waiting() >= self.max_running

    def _drop_late(self) -> None:
        """What is late is not begun, nor gone on with."""
        for job in [job for job in self._queue if job.is_late]:
            self._forget(job)

    def _pick(self, job: Job) -> list[Place]:
        """The longest sentence of the job whose turn it is, and those of like length that go with it."""
        head = Place(job, job.waiting[0])
        others = sorted(self._candidates(head), key=lambda place: abs(place.tokens - head.tokens))
        max_tokens, most_places = self.batch_tokens // width(job), self._share(1 + len(others))
        chosen, jobs, longest = [head], self._running | {job}, head.tokens
        for place in others:
            if len(chosen) == most_places or (len(chosen) + 1) * max(longest, place.tokens) > max_tokens:
                break
            if place.job in jobs or len(jobs) < self.max_running:
                chosen.append(place)
                jobs.add(place.job)
                longest = max(longest, place.tokens)
        return chosen

    def _share(self, sentences: int) -> int:
        """How many of so many one worker takes, where others are idle too."""
        parts = min(self.idle_workers, max(1, sentences // _LEAST_APART))
        return -(-sentences // max(1, parts))

    def _candidates(self, head: Place) -> Iterator[Place]:
        for job in self._queue:
            if job.goes_with(head.job):
                for number in job.waiting[:_CANDIDATES_OF_A_JOB]:
                    if (job, number) != head:
                        yield Place(job, number)

    def _begin(self, places: list[Place]) -> Batch:
        batch, now = Batch(places), time.monotonic()
        for job in batch.jobs:
            if job.started_at is None:
                job.started_at = now
                self._report_wait(now - job.accepted_at)
            job.in_batches += 1
            begun = {place.number for place in places if place.job is job}
            job.waiting = [number for number in job.waiting if number not in begun]
            self._running.add(job)
        # Whose turn it was goes to the end of the queue; who has nothing left to begin leaves it.
        head = places[0].job
        self._queue = [job for job in [*(job for job in self._queue if job is not head), head] if job.waiting]
        return batch

    def leave(self, batch: Batch, job: Job) -> None:
        """A job's sentences leave a batch before its end, for nobody waits for them."""
        with self._changed:
            batch.jobs.remove(job)
            job.in_batches -= 1
            self._forget(job)

    def finish(self, batch: Batch, results: list[Any] | Exception) -> None:
        """Delivers a batch, or what went wrong with it. A job that has all its sentences is answered."""
        with self._changed:
            if not isinstance(results, Exception):
                for (job, number), result in zip(batch.places, results, strict=True):
                    job.results[number] = result
            for job in batch.jobs:
                job.in_batches -= 1
                if isinstance(results, Exception):
                    self._fail(job, results)
                elif job.is_late:
                    self._fail(job, late())
                elif None not in job.results:
                    self._running.discard(job)
                    job.future.set_result([result for result in job.results if result is not None])
            self._changed.notify_all()

    def _fail(self, job: Job, error: Exception) -> None:
        job.abandoned = True
        self._forget(job)
        if not job.future.done():
            job.future.set_exception(error)

    def close(self) -> None:
        """Takes in no more; what was accepted is still worked on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def give_up(self) -> None:
        """Ends the rest: whoever still waits is told so, and whoever would be taken in from now on."""
        with self._changed:
            self._closed = True
            for job in [*self._queue, *self._running]:
                self._fail(job, shutting_down())


def width(job: Job) -> int:
    """Hypotheses of a sentence that are decoded side by side."""
    return job.search.beam_size if job.search.sampling is None else job.search.n_best


def busy() -> RequestError:
    """There is no room."""
    return RequestError(503, "The server is busy: come again in a moment.", retry_after_seconds=1)


def late() -> RequestError:
    """The deadline has passed."""
    return RequestError(504, "The translation took longer than it may: send less text, or come again later.")


def shutting_down() -> RequestError:
    """The server is about to end."""
    return RequestError(503, "The server is shutting down: come again later.", retry_after_seconds=10)


# --- worker ---
# The threads that decode.
# Legend: B sentences still decoded, W hypotheses of each, t pieces so far.


_LOG = logging.getLogger("transduce.serving")


class BatchObserver:
    """Looks at a batch after every step: who still waits for it, and how far it is."""

    def __init__(
        self,
        batch: Batch,
        batcher: Batcher,
        metrics: Metrics,
        share_threads: Callable[[], None] = lambda: None,
    ) -> None:
        """`share_threads` is called where the next step may take more threads, or fewer, than the last one."""
        self.batch = batch
        self.batcher = batcher
        self.metrics = metrics
        self._share_threads = share_threads

    def after_step(self, rows: Tensor, tokens: Tensor) -> Collection[int]:
        """Reports progress, and gives up the sentences of requests that are late or whose client has gone."""
        self.metrics.steps.inc()
        self._share_threads()
        # Lets the thread run that answers requests: a small model's steps hardly ever leave the interpreter to it.
        time.sleep(0)
        for job in [job for job in self.batch.jobs if job.is_late]:
            self.batcher.leave(self.batch, job)
        places = rows.tolist()
        self._report_progress(places, tokens)
        return [row for row in places if self.batch.places[row].job not in self.batch.jobs]

    def _report_progress(self, places: list[int], tokens: Tensor) -> None:
        for number, row in enumerate(places):
            place = job, sentence = self.batch.places[row]
            # A sentence that was cut is decoded in several parts, side by side or not, which make no text yet.
            is_whole = place.tokens - 1 <= job.model.longest_source and places.count(row) == 1
            if job.progress is not None and job in self.batch.jobs and is_whole:
                # What all hypotheses begin with is what the result will begin with.
                agreed = (tokens[number] == tokens[number, :1]).all(dim=0)  # (t,)
                job.progress(sentence, tokens[number, 0].tolist(), int(agreed.cumprod(dim=0).sum()))


class Workers:
    """Threads that take batches and deliver translations until the batcher is closed and empty.

    Those that have something to do share the cores: a single request is decoded by all of them, and of two batches each
    by its own half, without waiting for one another at every product.
    """

    def __init__(self, batcher: Batcher, metrics: Metrics, *, workers: int, threads: int | None = None) -> None:
        """`threads` compute, in all workers together; None: as many as PyTorch is set to."""
        self.batcher = batcher
        self.metrics = metrics
        self._compute_threads = threads or torch.get_num_threads()
        self._lock = threading.Lock()
        self._decoding = 0  # workers that have a batch
        # A daemon does not keep the process from leaving, whatever it is in the middle of.
        self._threads = [
            threading.Thread(target=self._work, name=f"decoder-{number}", daemon=True) for number in range(workers)
        ]

    def start(self) -> None:
        """Begins to work."""
        for thread in self._threads:
            thread.start()

    @property
    def are_alive(self) -> bool:
        """Whether every thread is there to work."""
        return all(thread.is_alive() for thread in self._threads)

    def join(self, seconds: float) -> None:
        """Waits until all have ended, but not longer than this."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while (batch := self.batcher.take()) is not None:
            started_at = time.monotonic()
            with self._counted():
                self._decode(batch)
            self.metrics.batch_seconds.observe(time.monotonic() - started_at)
            self.metrics.batch_sentences.observe(len(batch.places))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Within it, this worker is one of those that compute."""
        with self._lock:
            self._decoding += 1
        self._share_threads()
        try:
            yield
        finally:
            with self._lock:
                self._decoding -= 1

    def _share_threads(self) -> None:
        """Has the thread that calls it compute with its share; PyTorch's number of threads is each thread's own."""
        share = max(1, self._compute_threads // max(1, self._decoding))
        if torch.get_num_threads() != share:
            torch.set_num_threads(share)

    def _decode(self, batch: Batch) -> None:
        """Delivers translations. Strangers' sentences are decoded together: no fault of one may reach another."""
        results: list[Any] | Exception
        try:
            results = self._results(batch)
        except TransduceError as error:
            results = RequestError(400, str(error))
        except Exception:  # noqa: BLE001 - whatever it is, others' requests go on
            _LOG.exception("A batch of %d sentences failed", len(batch.places))
            results = RequestError(500, "The model failed on this text; the server's log says more.")
        if isinstance(results, Exception) and len(batch.jobs) > 1:
            for part in batch.split():
                self._decode(part)
        else:
            self.batcher.finish(batch, results)

    def _results(self, batch: Batch) -> list[Any]:
        self.metrics.source_tokens.inc(sum(place.tokens for place in batch.places))
        observer = BatchObserver(batch, self.batcher, self.metrics, self._share_threads)
        return batch.places[0].job.decode(batch.places, observer)


# --- batching ---


class ClientGoneError(Exception):
    """Nobody is there to answer."""


class Engine:
    """Decodes jobs within the limits of the settings."""

    def __init__(self, settings: ServingSettings, metrics: Metrics, *, threads: int | None = None) -> None:
        """`threads` compute, shared among the workers; None: as many as PyTorch is set to."""
        self.settings = settings
        self.metrics = metrics
        self.batcher = Batcher(
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            batch_tokens=settings.batch_pieces,
            gather_seconds=settings.gather_milliseconds / 1000.0,
            report_wait=metrics.queue_seconds.observe,
        )
        self.workers = Workers(self.batcher, metrics, workers=settings.workers, threads=threads)

    def start(self) -> None:
        """Begins to work."""
        self.workers.start()

    def check_room(self) -> None:
        """Refuses before a body is read what would be refused after it.

        Raises:
            RequestError: 503.
        """
        if not self.batcher.room():
            raise busy()

    async def decode(self, jobs: Sequence[Job], gone: asyncio.Future[None]) -> list[list[Any]]:
        """The results of jobs, for each of them one for each of its sentences. They are in the queue at once.

        Args:
            jobs: of one request, not yet submitted. Where one fails the others are given up.
            gone: done when the client has gone.

        Raises:
            RequestError: there was no room, they waited too long, or the deadline has passed.
            ClientGoneError: the client went away first.
        """
        self.batcher.submit(*jobs)
        answers = [asyncio.wrap_future(job.future) for job in jobs]
        waiting = [
            asyncio.ensure_future(self._first(job, answer, gone)) for job, answer in zip(jobs, answers, strict=True)
        ]
        try:
            return list(await asyncio.gather(*waiting))
        finally:
            for task, job, answer in zip(waiting, jobs, answers, strict=True):
                task.cancel()
                if not answer.done():
                    self.batcher.abandon(job)
                    answer.cancel()

    async def _first(self, job: Job, answer: asyncio.Future[list[Any]], gone: asyncio.Future[None]) -> list[Any]:
        begin_by = min(job.accepted_at + self.settings.queue_seconds, job.deadline)
        await _wait(answer, gone, begin_by)
        if not answer.done() and not gone.done():
            if job.started_at is None:
                raise waited_too_long()
            await _wait(answer, gone, job.deadline)
        if answer.done():
            return answer.result()
        if gone.done():
            self.metrics.disconnects.inc()
            raise ClientGoneError
        raise late()

    def stop(self) -> None:
        """Takes in nothing more; what was accepted is still answered."""
        self.batcher.close()

    def give_up(self) -> None:
        """Tells everybody who still waits that the server ends."""
        self.batcher.give_up()


async def _wait(answer: asyncio.Future[list[Any]], gone: asyncio.Future[None], until: float) -> None:
    waited_for: set[asyncio.Future[Any]] = {answer, gone}
    seconds = max(0.0, until - asyncio.get_running_loop().time())
    await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def waited_too_long() -> RequestError:
    """The queue is too slow for this request."""
    return RequestError(503, "The server is busy: no room was found in time, come again later.", retry_after_seconds=5)
