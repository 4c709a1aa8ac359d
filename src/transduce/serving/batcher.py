"""Strangers' requests, gathered into batches that decode well together.

A request is waiting until one of its sentences goes into a batch, and running from then on. At most `max_running`
run and `max_waiting` wait; what comes on top is refused at once. A batch has sentences of one model and one way to
search, of like length, so that little of it is padding. It begins with the request that has waited longest since its
last turn, so that a long text does not keep short ones out.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from transduce.serving.jobs import Job, Place
from transduce.serving.request_error import RequestError

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
        batch_pieces: int,
        gather_seconds: float,
        report_wait: Callable[[float], None] = lambda seconds: None,  # noqa: ARG005
    ) -> None:
        """`report_wait` learns how many seconds each job waited; the rest is explained in `ServingSettings`."""
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.batch_pieces = batch_pieces
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
        pieces = sum(job.total_pieces * width(job) for job in self._queue)
        return pieces >= self.batch_pieces or len(self._running) + self._count_waiting() >= self.max_running

    def _drop_late(self) -> None:
        """What is late is not begun, nor gone on with."""
        for job in [job for job in self._queue if job.is_late]:
            self._forget(job)

    def _pick(self, job: Job) -> list[Place]:
        """The longest sentence of the job whose turn it is, and those of like length that go with it."""
        head = Place(job, job.waiting[0])
        others = sorted(self._candidates(head), key=lambda place: abs(place.pieces - head.pieces))
        most_pieces, most_places = self.batch_pieces // width(job), self._share(1 + len(others))
        chosen, jobs, longest = [head], self._running | {job}, head.pieces
        for place in others:
            if len(chosen) == most_places or (len(chosen) + 1) * max(longest, place.pieces) > most_pieces:
                break
            if place.job in jobs or len(jobs) < self.max_running:
                chosen.append(place)
                jobs.add(place.job)
                longest = max(longest, place.pieces)
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
