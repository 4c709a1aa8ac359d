"""Requests in, translations out: the batcher, the threads behind it, and how a request waits for its answer."""

import asyncio
from collections.abc import Sequence
from typing import Any

from transduce.serving.batcher import Batcher, busy, late
from transduce.serving.jobs import Job
from transduce.serving.metrics import Metrics
from transduce.serving.request_error import RequestError
from transduce.serving.settings import ServingSettings
from transduce.serving.worker import Workers


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
            batch_pieces=settings.batch_pieces,
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
