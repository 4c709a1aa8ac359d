"""Gather requests of concurrent clients into batches that decode efficiently together.

A request is waiting until one of its sentences goes into a batch, and running from then on. At most `max_running`
requests run and `max_waiting` wait; further ones are refused at once. A batch has sentences of similar length, for
one model and one set of search settings, so that little of it is padding. Each batch starts with the request that
has waited longest since its last batch, so that long texts do not block short ones.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from transduce.serving.jobs import Job, Place
from transduce.serving.request_error import RequestError

_CANDIDATES_OF_A_JOB = 256  # bounds the sorting per batch for texts of many thousand lines
# Sentences per batch below which work is not split among idle workers: the fixed cost of a decoding step is about
# that of four sentences.
_MIN_SENTENCES_PER_WORKER = 16


class Batch:
    """A batch of sentences, possibly of several jobs, that are decoded together."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        """Sentences of the batch, in the order of the decoder's rows."""
        self.jobs = list(dict.fromkeys(sentence.job for sentence in places))
        """Jobs of this batch whose sentences are still being decoded."""

    def split(self) -> list["Batch"]:
        """Return one batch per job that is still in this batch; together they replace it."""
        return [Batch([sentence for sentence in self.places if sentence.job is job]) for job in self.jobs]


class Batcher:
    """A thread-safe queue between the HTTP requests and the decoding threads, which forms batches."""

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        batch_pieces: int,
        gather_seconds: float,
        report_wait: Callable[[float], None] = lambda seconds: None,  # noqa: ARG005
    ) -> None:
        """Create an empty queue.

        Args:
            max_running: see `ServingSettings`.
            max_waiting: see `ServingSettings`.
            batch_pieces: see `ServingSettings`.
            gather_seconds: how long an idle worker waits for further requests before it decodes the first one.
            report_wait: receives the seconds that each job waited before its first batch.
        """
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.batch_pieces = batch_pieces
        self.gather_seconds = gather_seconds
        self._report_wait = report_wait
        self._changed = threading.Condition()
        self._queue: list[Job] = []  # jobs with sentences that are in no batch yet, in the order of service
        self._running: set[Job] = set()
        self.idle_workers = 0
        """Number of workers that are waiting for a batch."""
        self._closed = False

    @property
    def running(self) -> int:
        """Return the number of requests that have started decoding and are unfinished."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Return the number of requests of which no sentence has gone into a batch yet."""
        with self._changed:
            return self._count_waiting()

    def _count_waiting(self) -> int:
        return sum(job.started_at is None for job in self._queue)

    def room(self) -> int:
        """Return how many further jobs the queue would accept now."""
        with self._changed:
            return self._count_free_slots()

    def _count_free_slots(self) -> int:
        return self.max_running + self.max_waiting - len(self._running) - self._count_waiting()

    def submit(self, *jobs: Job) -> None:
        """Add jobs to the queue, all of them or none.

        Raises:
            RequestError: the queue has too few free slots, or the server is shutting down.
        """
        with self._changed:
            if self._closed:
                raise shutting_down()
            if self._count_free_slots() < len(jobs):
                raise busy()
            self._queue += jobs
            self._changed.notify_all()

    def abandon(self, job: Job) -> bool:
        """Cancel a job for which no client waits any more, and return whether it had started.

        If the job had started, its batches drop its sentences at their next step.
        """
        with self._changed:
            job.abandoned = True
            self._dequeue(job)
            return job.started_at is not None

    def _dequeue(self, job: Job) -> None:
        """Start no further sentences of a job, and free its slot if none of its sentences is being decoded."""
        if job in self._queue:
            self._queue.remove(job)
        if not job.in_batches:
            self._running.discard(job)
        self._changed.notify_all()

    def take(self) -> Batch | None:
        """Block until a batch is ready and return it, or return None once the queue is closed and empty."""
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
            self._wait_for_more()
            self._drop_late()
            head = self._next_job()
            if head is not None:
                return self._start_batch(self._pick(head))

    def _next_job(self) -> Job | None:
        """Return the first queued job that is already running or may start now, or None."""
        can_start = len(self._running) < self.max_running
        return next((job for job in self._queue if can_start or job in self._running), None)

    def _wait_for_more(self) -> None:
        """Wait for further jobs until the oldest one has waited `gather_seconds` or a full batch is available."""
        while self._queue and not self._closed and not self._can_fill_batch():
            seconds_left = min(job.accepted_at for job in self._queue) + self.gather_seconds - time.monotonic()
            if seconds_left <= 0:
                return
            self._changed.wait(seconds_left)

    def _can_fill_batch(self) -> bool:
        """Return whether the queued jobs already fill a batch."""
        tokens = sum(job.total_pieces * width(job) for job in self._queue)
        return tokens >= self.batch_pieces or len(self._running) + self._count_waiting() >= self.max_running

    def _drop_late(self) -> None:
        """Remove jobs whose deadline has passed from the queue."""
        for job in [job for job in self._queue if job.is_late]:
            self._dequeue(job)

    def _pick(self, job: Job) -> list[Place]:
        """Return a job's longest waiting sentence and others of similar length, up to the batch's size limit."""
        head = Place(job, job.waiting[0])
        candidates = sorted(self._compatible_sentences(head), key=lambda sentence: abs(sentence.pieces - head.pieces))
        max_tokens, max_sentences = self.batch_pieces // width(job), self._sentences_per_worker(1 + len(candidates))
        chosen, jobs, longest = [head], self._running | {job}, head.pieces
        for sentence in candidates:
            if len(chosen) == max_sentences or (len(chosen) + 1) * max(longest, sentence.pieces) > max_tokens:
                break
            if sentence.job in jobs or len(jobs) < self.max_running:
                chosen.append(sentence)
                jobs.add(sentence.job)
                longest = max(longest, sentence.pieces)
        return chosen

    def _sentences_per_worker(self, sentences: int) -> int:
        """Return how many of the given number of sentences one worker should take so that idle workers get some too."""
        parts = min(self.idle_workers, max(1, sentences // _MIN_SENTENCES_PER_WORKER))
        return -(-sentences // max(1, parts))

    def _compatible_sentences(self, head: Place) -> Iterator[Place]:
        for job in self._queue:
            if job.goes_with(head.job):
                for number in job.waiting[:_CANDIDATES_OF_A_JOB]:
                    if (job, number) != head:
                        yield Place(job, number)

    def _start_batch(self, sentences: list[Place]) -> Batch:
        batch, now = Batch(sentences), time.monotonic()
        for job in batch.jobs:
            if job.started_at is None:
                job.started_at = now
                self._report_wait(now - job.accepted_at)
            job.in_batches += 1
            started = {sentence.number for sentence in sentences if sentence.job is job}
            job.waiting = [number for number in job.waiting if number not in started]
            self._running.add(job)
        # Round robin: the job that headed the batch moves to the end of the queue; finished jobs leave it.
        head = sentences[0].job
        self._queue = [job for job in [*(job for job in self._queue if job is not head), head] if job.waiting]
        return batch

    def leave(self, batch: Batch, job: Job) -> None:
        """Remove a job's sentences from a batch that is still being decoded, because no client waits for them."""
        with self._changed:
            batch.jobs.remove(job)
            job.in_batches -= 1
            self._dequeue(job)

    def finish(self, batch: Batch, results: list[Any] | Exception) -> None:
        """Deliver the results of a batch or its error to its jobs, and complete each job that has all its results."""
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
        self._dequeue(job)
        if not job.future.done():
            job.future.set_exception(error)

    def close(self) -> None:
        """Accept no more jobs; the batcher still hands out those already accepted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def give_up(self) -> None:
        """Fail every unfinished job with a "shutting down" error, and accept no more jobs."""
        with self._changed:
            self._closed = True
            for job in [*self._queue, *self._running]:
                self._fail(job, shutting_down())


def width(job: Job) -> int:
    """Return how many hypotheses of each of a job's sentences are decoded in one batch."""
    return job.search.beam_size if job.search.sampling is None else job.search.n_best


def busy() -> RequestError:
    """Return the error for a request that the queue has no free slot for."""
    return RequestError(503, "The server is busy: try again in a moment.", retry_after_seconds=1)


def late() -> RequestError:
    """Return the error for a request whose deadline has passed."""
    return RequestError(504, "The translation exceeded its time limit: send less text, or try again later.")


def shutting_down() -> RequestError:
    """Return the error for a request to a server that is shutting down."""
    return RequestError(503, "The server is shutting down: try again later.", retry_after_seconds=10)
