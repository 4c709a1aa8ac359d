"""Decode the jobs of requests: submit them to the batcher and await their results within the time limits."""

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
    """An error raised when a client disconnects before its answer is ready."""


class Engine:
    """A batcher with its worker threads, which decodes jobs within the limits of the settings."""

    def __init__(self, settings: ServingSettings, metrics: Metrics, *, threads: int | None = None) -> None:
        """Create the batcher and the workers, which `start` starts.

        Args:
            settings: the limits.
            metrics: counts what the workers do.
            threads: compute threads in all workers together; None: PyTorch's current number.
        """
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
        """Start the worker threads."""
        self.workers.start()

    def check_room(self) -> None:
        """Refuse a request before its body is read if the queue is full.

        Raises:
            RequestError: status 503, the queue is full.
        """
        if not self.batcher.room():
            raise busy()

    async def decode(self, jobs: Sequence[Job], gone: asyncio.Future[None]) -> list[list[Any]]:
        """Submit jobs together and return their results, one list per job with one result per sentence.

        Args:
            jobs: all jobs of one request, not yet submitted. If one fails, the others are abandoned.
            gone: done once the client has disconnected.

        Raises:
            RequestError: the queue is full, the jobs waited too long, or the deadline has passed.
            ClientGoneError: the client disconnected before the answer.
        """
        self.batcher.submit(*jobs)
        answers = [asyncio.wrap_future(job.future) for job in jobs]
        waiting = [
            asyncio.ensure_future(self._await_answer(job, answer, gone))
            for job, answer in zip(jobs, answers, strict=True)
        ]
        try:
            return list(await asyncio.gather(*waiting))
        finally:
            for task, job, answer in zip(waiting, jobs, answers, strict=True):
                task.cancel()
                if not answer.done():
                    self.batcher.abandon(job)
                    answer.cancel()

    async def _await_answer(self, job: Job, answer: asyncio.Future[list[Any]], gone: asyncio.Future[None]) -> list[Any]:
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
        """Accept no more jobs; those already accepted are still decoded."""
        self.batcher.close()

    def give_up(self) -> None:
        """Fail all unfinished jobs, because the server is shutting down."""
        self.batcher.give_up()


async def _wait(answer: asyncio.Future[list[Any]], gone: asyncio.Future[None], until: float) -> None:
    waited_for: set[asyncio.Future[Any]] = {answer, gone}
    seconds = max(0.0, until - asyncio.get_running_loop().time())
    await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def waited_too_long() -> RequestError:
    """Return the error for a request that did not start decoding in time."""
    return RequestError(
        503, "The server is busy: the request waited too long in the queue, try again later.", retry_after_seconds=5
    )
