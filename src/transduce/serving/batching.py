"""Queue the sentences of all requests, form batches of them, and decode these in worker threads within time limits."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from transduce.errors import TransduceError, count_noun
from transduce.inference.translation import agreed_length
from transduce.serving.jobs import ContinuousDecoder, Job, JobSentence, TextProgress, estimate_work
from transduce.serving.messages import RequestError
from transduce.serving.metrics import Metrics
from transduce.serving.settings import ServingSettings

# --- queue and batches ---
# Gather requests of concurrent clients into batches that decode efficiently together.
# A request is waiting until one of its sentences goes into a batch, and running from then on. At most `max_running`
# requests run and `max_waiting` wait; further ones are refused at once. A batch has sentences of similar length,
# for one model and one set of search settings, so that little of it is padding. Each batch starts with the request
# that has waited longest since its last batch, so that long texts do not block short ones. While all workers are busy
# with much longer batches, one more thread decodes the short requests that wait, so that they overtake the others.


_CANDIDATES_OF_A_JOB = 256  # bounds the sorting per batch for texts of many thousand lines
# Sentences per batch below which work is not split among idle workers: the fixed cost of a decoding step is about
# that of four sentences.
_MIN_SENTENCES_PER_WORKER = 16
# A request overtakes if it has waited for this time, and if each batch that is being decoded has a request of at least
# this work, and of this many times its own. Small batches are slow, so the gain must be noticeable.
_OVERTAKING_SECONDS = 0.05
_OVERTAKEN_WORK = 250  # of a sentence of 50 tokens, or of ten sentences of 18 tokens
_OVERTAKING_RATIO = 4


class JobBatch:
    """A batch of sentences that are decoded together, possibly of several jobs (clients' requests)."""

    def __init__(self, sentences: list[JobSentence]) -> None:
        self.sentences = sentences
        """Sentences of the batch that are being decoded, in the order of the decoder's batch indices."""
        self.jobs = list(dict.fromkeys(sentence.job for sentence in sentences))
        """Jobs (clients' requests) that have unfinished sentences in this batch and whose clients still wait."""
        self.head = sentences[0].job
        """The job of the first sentence, from which the batch was formed."""
        self.started = len(sentences)
        """Number of sentences that the batch has had so far, including finished ones."""
        self.work = _largest_work(sentences)
        """The greatest estimated work of a single job in the batch, in decoding steps times sentences."""

    def split(self) -> list["JobBatch"]:
        """Return a list with a batch for each job (client's request), so that an error of one job fails no other."""
        return [JobBatch([sentence for sentence in self.sentences if sentence.job is job]) for job in self.jobs]


class Batcher:
    """A thread-safe queue of requests' sentences, from which decoding threads (workers) take batches."""

    def __init__(
        self,
        settings: ServingSettings,
        report_wait: Callable[[float], None] = lambda seconds: None,  # noqa: ARG005
    ) -> None:
        """Create an empty queue.

        Args:
            settings: the limits on running requests, waiting requests and tokens per batch. `gather_milliseconds` is
                how long an idle worker waits for further requests before it decodes.
            report_wait: called when a job starts, with the seconds that the job waited for its first batch.
        """
        self.max_running = settings.max_running
        self.max_waiting = settings.max_waiting
        self.batch_tokens = settings.batch_tokens
        self.gather_seconds = settings.gather_milliseconds / 1000.0
        self._report_wait = report_wait
        self._changed = threading.Condition()  # its lock is reentrant
        self._queue: list[Job] = []  # jobs with sentences that are in no batch yet, in the order of service
        self._running: set[Job] = set()
        self._decoding: list[JobBatch] = []  # batches that workers have taken and not released
        self.idle_workers = 0
        """Number of workers that are waiting for a batch."""
        self._closed = False

    @property
    def running(self) -> int:
        """The number of jobs (clients' requests) that have started decoding and are unfinished."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of jobs (clients' requests) of which no sentence has gone into a batch yet."""
        with self._changed:
            return sum(job.started_at is None for job in self._queue)

    def free_slots(self) -> int:
        """Return the number of further jobs (clients' requests) that the queue would accept now."""
        with self._changed:
            return self.max_running + self.max_waiting - self.running - self.waiting

    def submit(self, *jobs: Job) -> None:
        """Add the jobs of one client's request to the queue: either all of them or none.

        A job without sentences is complete at once.

        Raises:
            RequestError: the queue has too few free slots, or the server is shutting down.
        """
        with self._changed:
            if self._closed:
                raise shutdown_error()
            if self.free_slots() < len(jobs):
                raise busy_error()
            for job in jobs:
                if job.sentences:
                    self._queue.append(job)
                else:
                    job.future.set_result([])
            self._changed.notify_all()

    def abandon(self, job: Job) -> bool:
        """Cancel a job (client's request) that no client waits for any more; return whether its decoding had started.

        If the job is being decoded, its batches drop its sentences at their next decoding step.
        """
        with self._changed:
            job.abandoned = True
            self._dequeue(job)
            return job.started_at is not None

    def _dequeue(self, job: Job) -> None:
        """Remove a job (client's request) from the queue.

        The job also stops counting as running, unless a batch with its sentences is being decoded.
        """
        if job in self._queue:
            self._queue.remove(job)
        if not job.num_batches:
            self._running.discard(job)
        self._changed.notify_all()

    def take(self) -> JobBatch | None:
        """Block until a batch is ready, and return the batch to the calling worker.

        The result is None once the queue is closed and empty. A batch that is not full waits up to `gather_seconds` for
        further requests.
        """
        with self._changed:
            self.idle_workers += 1
            try:
                return self._take(lambda: self._queue, self.gather_seconds)
            finally:
                self.idle_workers -= 1

    def take_overtaking(self) -> JobBatch | None:
        """Block until short requests may overtake longer batches, and return a batch of these requests.

        The result is None once the queue is closed and empty.
        """
        with self._changed:
            return self._take(self._overtaking_jobs, _OVERTAKING_SECONDS)

    def release(self, batch: JobBatch) -> None:
        """Record that the decoding thread that took a batch has ended decoding it."""
        with self._changed:
            self._decoding.remove(batch)
            self._changed.notify_all()

    def _take(self, find_jobs: Callable[[], list[Job]], seconds: float) -> JobBatch | None:
        """Block until some queued jobs can form a batch, and return the batch.

        A batch is formed when these jobs fill it or when the oldest job has waited long enough. The result is None once
        the queue is closed and empty.

        Args:
            find_jobs: returns the queued jobs (clients' requests) that may be in the batch.
            seconds: how long the oldest of these jobs waits for others.
        """
        while True:
            while self._next_job(find_jobs()) is None:
                if self._closed and not self._queue:
                    return None
                self._changed.wait()
            self._wait_for_more(find_jobs, seconds)
            self._drop_late()
            jobs = find_jobs()
            head = self._next_job(jobs)
            if head is not None:
                return self._start_batch(self._pick(head, jobs))

    def _overtaking_jobs(self) -> list[Job]:
        """Return a list of the queued jobs that are short enough to overtake all batches being decoded.

        The work of such a job is at most a quarter of each batch's work. The list is empty if a worker is idle, if no
        batch is being decoded, or if one of them has little work.
        """
        if self.idle_workers or not self._decoding:
            return []
        least = min(batch.work for batch in self._decoding)
        if least < _OVERTAKEN_WORK:
            return []
        return [job for job in self._queue if job.may_overtake and job.work * _OVERTAKING_RATIO <= least]

    def _next_job(self, jobs: Sequence[Job]) -> Job | None:
        """Return the first of `jobs` that may be decoded now; None if there is none.

        A job that has started may always continue. A new job may start if fewer than `max_running` jobs are running.
        """
        can_start = len(self._running) < self.max_running
        return next((job for job in jobs if can_start or job in self._running), None)

    def _wait_for_more(self, find_jobs: Callable[[], list[Job]], seconds: float) -> None:
        """Wait for further jobs, so that they can be decoded in one batch.

        The wait ends when a batch can be filled, when the oldest job has waited long enough, when no job is left, or
        when the queue is closed.

        Args:
            find_jobs: returns the queued jobs that may be in the batch.
            seconds: how long the oldest of these jobs waits, counted from when it was accepted.
        """
        while (jobs := find_jobs()) and not self._closed and not self._can_fill_batch(jobs):
            seconds_left = min(job.accepted_at for job in jobs) + seconds - time.monotonic()
            if seconds_left <= 0:
                return
            self._changed.wait(seconds_left)

    def _can_fill_batch(self, jobs: Sequence[Job]) -> bool:
        """Return whether to form a batch of `jobs` at once instead of waiting for more jobs.

        The result is True if the jobs fill a batch. It is also True if `max_running` jobs are running or waiting,
        because no further job could start.
        """
        tokens = sum(job.total_tokens * job.search.num_hypotheses for job in jobs)
        return tokens >= self.batch_tokens or self.running + self.waiting >= self.max_running

    def _drop_late(self) -> None:
        """Remove jobs (clients' requests) whose deadline has passed, or for which no client waits, from the queue."""
        for job in [job for job in self._queue if job.is_expired]:
            self._dequeue(job)

    def _pick(self, job: Job, jobs: Sequence[Job]) -> list[JobSentence]:
        """Return a list of the sentences of a new batch.

        The batch has the longest waiting sentence of `job`, and sentences of similar length from all `jobs`. However,
        if `job` is sequential (its sentences are context of one another), the batch has exactly its sentences, in
        order.

        Args:
            job: the job (client's request) that has waited longest since its last batch.
            jobs: the jobs from which sentences may come, if they are compatible with `job`.
        """
        if job.is_sequential:
            return [JobSentence(job, number) for number in range(len(job.sentences))]
        head = JobSentence(job, job.waiting[0])
        candidates = sorted(_compatible_sentences(head, jobs), key=lambda sentence: abs(sentence.tokens - head.tokens))
        max_tokens = self.batch_tokens // job.search.num_hypotheses
        max_sentences = self._sentences_per_worker(1 + len(candidates))
        chosen, running, max_length = [head], self._running | {job}, head.tokens
        for sentence in candidates:
            if len(chosen) == max_sentences or (len(chosen) + 1) * max(max_length, sentence.tokens) > max_tokens:
                break
            if sentence.job in running or len(running) < self.max_running:
                chosen.append(sentence)
                running.add(sentence.job)
                max_length = max(max_length, sentence.tokens)
        return chosen

    def _sentences_per_worker(self, sentences: int) -> int:
        """Return the maximum number of sentences in a batch, to leave some for other idle workers.

        The sentences are divided evenly among the idle workers, but only among so many that each gets at least 16.

        Args:
            sentences: the number of queued sentences that the batch could take.
        """
        parts = min(self.idle_workers, max(1, sentences // _MIN_SENTENCES_PER_WORKER))
        return -(-sentences // max(1, parts))

    def _start_batch(self, sentences: list[JobSentence]) -> JobBatch:
        batch = JobBatch(sentences)
        for job in batch.jobs:
            job.num_batches += 1
        # Round robin: the job that headed the batch moves to the end of the queue.
        self._queue = [*(job for job in self._queue if job is not batch.head), batch.head]
        self._start_sentences(sentences)
        self._decoding.append(batch)
        self._changed.notify_all()  # shorter requests may overtake this batch
        return batch

    def _start_sentences(self, sentences: list[JobSentence]) -> None:
        """Record that sentences have gone into a batch.

        Jobs of which no sentence is waiting any more leave the queue.
        """
        now = time.monotonic()
        for job in dict.fromkeys(sentence.job for sentence in sentences):
            if job.started_at is None:
                job.started_at = now
                self._report_wait(now - job.accepted_at)
            started = {sentence.number for sentence in sentences if sentence.job is job}
            job.waiting = [number for number in job.waiting if number not in started]
            self._running.add(job)
        self._queue = [job for job in self._queue if job.waiting]

    def join(self, batch: JobBatch, free_texts: int) -> list[JobSentence]:
        """Add waiting sentences to a batch that is being decoded, and return a list of the added sentences.

        The list is empty if no sentence can join. Jobs join in the order of the queue. While all workers are busy, a
        job that cannot join this batch keeps later jobs from joining. Otherwise a stream of joining jobs could delay it
        without end.

        Args:
            batch: a batch with a continuous decoder.
            free_texts: the number of further hypotheses that the decoder can take.
        """
        if not self._queue:  # read without the lock; a job that comes just now is seen after the next step
            return []
        with self._changed:
            self._drop_late()
            chosen: list[JobSentence] = []
            for job in self._queue:
                if not job.can_join(batch.head):
                    if self.idle_workers:
                        continue
                    break
                is_new = job not in self._running
                started = len(self._running | {sentence.job for sentence in chosen})
                if is_new and started >= self.max_running:
                    break
                fitting = self._fitting_sentences(job, [*batch.sentences, *chosen], free_texts)
                chosen += fitting
                free_texts -= len(fitting) * job.search.num_hypotheses
                if len(fitting) < len(job.waiting):
                    break
            self._start_sentences(chosen)
            for job in dict.fromkeys(sentence.job for sentence in chosen):
                if job not in batch.jobs:
                    batch.jobs.append(job)
                    job.num_batches += 1
            batch.sentences += chosen
            batch.started += len(chosen)
            batch.work = _largest_work(batch.sentences)
            return chosen

    def _fitting_sentences(self, job: Job, others: Sequence[JobSentence], free_texts: int) -> list[JobSentence]:
        """Return a list of as many waiting sentences of a job as fit into a batch, the longest first.

        Args:
            job: the job (client's request).
            others: the sentences in the batch so far; all sentences together must not exceed `batch_tokens`.
            free_texts: the number of hypotheses by which the batch may grow.
        """
        width, max_length = job.search.num_hypotheses, max((sentence.tokens for sentence in others), default=0)
        fitting: list[JobSentence] = []
        for number in job.waiting:
            sentence = JobSentence(job, number)
            max_length, count = max(max_length, sentence.tokens), len(others) + len(fitting) + 1
            if (len(fitting) + 1) * width > free_texts or count * max_length * width > self.batch_tokens:
                break
            fitting.append(sentence)
        return fitting

    def deliver(self, batch: JobBatch, sentence: JobSentence, result: Any) -> None:
        """Store the result of a sentence, and remove the sentence from its batch.

        If this was the last missing result, the job is complete. A result for which no client waits is discarded.
        """
        job = sentence.job
        with self._changed:
            batch.sentences.remove(sentence)
            if job not in batch.jobs:
                return
            job.results[sentence.number] = result
            if all(each.job is not job for each in batch.sentences):
                batch.jobs.remove(job)
                job.num_batches -= 1
            self._complete(job)
            self._changed.notify_all()

    def drop_job(self, batch: JobBatch, job: Job) -> None:
        """Remove an abandoned job from a batch that is being decoded, and from the queue."""
        with self._changed:
            batch.jobs.remove(job)
            job.num_batches -= 1
            self._dequeue(job)

    def finish(self, batch: JobBatch, results: list[Any] | Exception) -> None:
        """Store the results of a decoded batch, and complete the jobs that have all their results now.

        Args:
            batch: the batch.
            results: the result of each sentence, or an error with which all jobs of the batch fail.
        """
        with self._changed:
            if not isinstance(results, Exception):
                for (job, number), result in zip(batch.sentences, results, strict=True):
                    job.results[number] = result
            for job in batch.jobs:
                job.num_batches -= 1
                if isinstance(results, Exception):
                    self._fail(job, results)
                else:
                    self._complete(job)
            self._changed.notify_all()

    def _complete(self, job: Job) -> None:
        """Complete a job (client's request) with its results, if none is missing.

        If no client waits any more, the job fails with the error of a missed deadline instead.
        """
        if job.is_expired:
            self._fail(job, deadline_error(job.timeout))
        elif None not in job.results:
            self._running.discard(job)
            job.future.set_result([result for result in job.results if result is not None])

    def _fail(self, job: Job, error: Exception) -> None:
        job.abandoned = True
        self._dequeue(job)
        if not job.future.done():
            job.future.set_exception(error)

    def close(self) -> None:
        """Accept no more jobs (clients' requests); those in the queue are still decoded."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail_remaining(self) -> None:
        """Fail every unfinished job with the error that the server is shutting down, and accept no more jobs."""
        with self._changed:
            self._closed = True
            for job in [*self._queue, *self._running]:
                self._fail(job, shutdown_error())


def _compatible_sentences(head: JobSentence, jobs: Sequence[Job]) -> Iterator[JobSentence]:
    """Yield the waiting sentences that may share a batch with the sentence `head`.

    At most 256 sentences of each job in `jobs` are yielded.
    """
    for job in jobs:
        if job.is_compatible_with(head.job) and head.job.is_compatible_with(job):  # a subclass may refuse others
            for number in job.waiting[:_CANDIDATES_OF_A_JOB]:
                if (job, number) != head:
                    yield JobSentence(job, number)


def _largest_work(sentences: Sequence[JobSentence]) -> int:
    """Return the estimated work of the job with the most work among these sentences; 0 without sentences.

    `estimate_work` states the unit. Only the sentences of a job that are among `sentences` count.
    """
    steps: dict[Job, list[int]] = {}
    for sentence in sentences:
        steps.setdefault(sentence.job, []).append(sentence.steps)
    return max(map(estimate_work, steps.values()), default=0)


def busy_error() -> RequestError:
    """Return the `RequestError` (status 503) for a request that finds no free slot in the queue."""
    return RequestError(503, "The server is busy: try again in a moment.", retry_after_seconds=1)


def deadline_error(timeout: float | None = None) -> RequestError:
    """Return the `RequestError` (status 504) for a request that was not answered before its deadline.

    Args:
        timeout: the request's own time limit in seconds; None: the server's limit was the deadline.
    """
    if timeout is None:
        return RequestError(504, "The translation exceeded its time limit: send less text, or try again later.")
    return RequestError(
        504,
        f"The translation exceeded its time limit, the request's own `timeout` of {timeout:g} seconds: set a "
        "longer one, or send less text.",
    )


def shutdown_error() -> RequestError:
    """Return the `RequestError` (status 503) for a request to a server that is shutting down."""
    return RequestError(503, "The server is shutting down: try again later.", retry_after_seconds=10)


# --- decoding threads ---
# Shapes: B is the number of sentences still being decoded, W the hypotheses of each, t the tokens so far.


_LOG = logging.getLogger("transduce.serving")
_FAILURE = "The model failed on this text; the server's log has the details."


class BatchObserver:
    """An observer of the search of a batch: reports progress, and drops sentences that no client waits for."""

    def __init__(
        self, batch: JobBatch, batcher: Batcher, metrics: Metrics, adapt_threads: Callable[[], None] = lambda: None
    ) -> None:
        """Create an observer of one batch.

        Args:
            batch: the batch.
            batcher: the queue, which records dropped sentences.
            metrics: counts decoding steps.
            adapt_threads: called at each step to adapt PyTorch's threads to the number of busy decoding threads.
        """
        self.batch = batch
        self.batcher = batcher
        self.metrics = metrics
        self._adapt_threads = adapt_threads

    def after_step(self, sentence_indices: Tensor, tokens: Tensor) -> Collection[int]:
        """Report progress to clients after a decoding step, and return a list of the sentences to abandon.

        A sentence is abandoned if its request's deadline has passed or its client has disconnected.

        Args:
            sentence_indices: the index in the batch of each of the B sentences still being decoded, (B,).
            tokens: the t tokens so far of the W hypotheses of each sentence, (B, W, t).
        """
        self.metrics.steps.inc()
        self._adapt_threads()
        # Release the GIL for the event loop: the steps of a small model hardly ever do.
        time.sleep(0)
        for job in [job for job in self.batch.jobs if job.is_expired]:
            self.batcher.drop_job(self.batch, job)
        indices = sentence_indices.tolist()
        self._report_progress(indices, tokens)
        return [index for index in indices if self.batch.sentences[index].job not in self.batch.jobs]

    def _report_progress(self, sentence_indices: list[int], tokens: Tensor) -> None:
        for number, sentence in enumerate(sentence_indices):
            entry = job, index = self.batch.sentences[sentence]
            # The parts of a split sentence are decoded separately and make no text before the end.
            is_unsplit = entry.tokens - 1 <= job.model.max_source_tokens and sentence_indices.count(sentence) == 1
            if job.progress is not None and job in self.batch.jobs and is_unsplit:
                # The longest common prefix of all hypotheses is final.
                job.progress(index, tokens[number, 0].tolist(), agreed_length(tokens[number]))

    def after_text(self, text: int, final: str, draft: str) -> None:
        """Report the growing translation of a text of several sentences to the client.

        Nothing happens if the client wants no progress or has disconnected.

        Args:
            text: the text's index in the batch.
            final: the start of the translation, which does not change any more.
            draft: the whole translation so far: `final`, then the best guess for the rest.
        """
        job, index = self.batch.sentences[text]
        if isinstance(job.progress, TextProgress) and job in self.batch.jobs:
            job.progress.report_text(index, final, draft)


class DecodingThreads:
    """The decoding threads (workers), which take batches and deliver results until the queue is closed and empty.

    Busy workers share the cores: a single batch is decoded with all of them, and two batches with half of them each.
    Separate threads avoid waiting for each other at every matrix multiplication. One more thread decodes short requests
    while all workers are busy with long ones, so that short and long requests progress at the same time.
    """

    def __init__(
        self, batcher: Batcher, metrics: Metrics, *, workers: int, overtaking: bool = True, threads: int | None = None
    ) -> None:
        """Create the worker threads, which `start` starts.

        Args:
            batcher: the queue to take batches from.
            metrics: counts batches and sentences.
            workers: number of decoding threads.
            overtaking: True for one more thread, which decodes short requests that overtake longer batches.
            threads: compute threads in all workers together; None: PyTorch's current number.
        """
        self.batcher = batcher
        self.metrics = metrics
        self._compute_threads = threads or torch.get_num_threads()
        self._lock = threading.Lock()
        self._busy: list[int] = []  # identifiers of the threads that have a batch
        takes = [batcher.take] * workers + [batcher.take_overtaking] * overtaking
        # Daemon threads do not keep the process alive when it exits.
        self._threads = [
            threading.Thread(target=self._work, args=(take,), name=f"decoder-{number}", daemon=True)
            for number, take in enumerate(takes)
        ]

    def start(self) -> None:
        """Start the decoding threads, which end once the queue is closed and empty."""
        for thread in self._threads:
            thread.start()

    @property
    def all_alive(self) -> bool:
        """True if all decoding threads are running, so that the server can translate."""
        return all(thread.is_alive() for thread in self._threads)

    def join(self, seconds: float) -> None:
        """Wait until all decoding threads have ended, for at most this number of seconds altogether."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self, take: Callable[[], JobBatch | None]) -> None:
        while (batch := take()) is not None:
            started_at = time.monotonic()
            try:
                with self._counted():
                    self._decode(batch)
            except Exception:  # noqa: BLE001 - a thread that ended would leave all further requests unanswered
                _LOG.exception("A batch failed")
                self.batcher.finish(batch, RequestError(500, _FAILURE))
            finally:
                self.batcher.release(batch)
            self.metrics.batch_seconds.observe(time.monotonic() - started_at)
            self.metrics.batch_sentences.observe(batch.started)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the calling thread as busy during a `with` block, so that busy decoding threads share the cores."""
        thread = threading.get_ident()
        with self._lock:
            self._busy.append(thread)
        self._adapt_threads()
        try:
            yield
        finally:
            with self._lock:
                self._busy.remove(thread)

    def _adapt_threads(self) -> None:
        """Set the number of PyTorch threads of the calling worker to its share of the compute threads, at least 1.

        All busy workers have about equal shares.
        """
        busy = [*self._busy]
        share, remainder = divmod(self._compute_threads, len(busy))
        share = max(1, share + (busy.index(threading.get_ident()) < remainder))
        if torch.get_num_threads() != share:
            torch.set_num_threads(share)

    def _decode(self, batch: JobBatch, *, may_grow: bool = True) -> None:
        """Decode a batch and deliver its results.

        If decoding fails, each job (client's request) of the batch is decoded again by itself. Only the jobs that fail
        by themselves get an error, so one client's text cannot make the requests of others fail.

        Args:
            batch: the batch.
            may_grow: waiting sentences may join the batch if its decoder is continuous.
        """
        results: list[Any] | Exception | None = None
        decoder = batch.head.continuous_decoder()
        try:
            if decoder is None:
                self.metrics.source_tokens.inc(sum(sentence.tokens for sentence in batch.sentences))
                observer = BatchObserver(batch, self.batcher, self.metrics, self._adapt_threads)
                results = batch.head.decode(batch.sentences, observer)
                if len(results) != len(batch.sentences):
                    count = count_noun(len(results), "result")
                    sentences = count_noun(len(batch.sentences), "sentence")
                    raise RuntimeError(f"The decoder returned {count} for {sentences}: it must return one for each.")
            else:
                self._decode_continuously(batch, decoder, may_grow=may_grow)
        except TransduceError as error:
            results = RequestError(400, str(error))
        except Exception:  # noqa: BLE001 - one failure must not end the worker or other requests
            _LOG.exception("A batch of %d sentences failed", len(batch.sentences))
            results = RequestError(500, _FAILURE)
        if isinstance(results, Exception) and len(batch.jobs) > 1:
            for part in batch.split():
                self._decode(part, may_grow=False)
        elif results is not None:
            self.batcher.finish(batch, results)

    def _decode_continuously(self, batch: JobBatch, decoder: ContinuousDecoder, *, may_grow: bool) -> None:
        """Decode a batch step by step, and deliver the result of each sentence as soon as it has finished.

        Args:
            batch: the batch.
            decoder: the decoder of the batch, which sentences of other requests may join.
            may_grow: waiting sentences join the batch after each step, if the decoder has capacity.
        """
        joining = list(batch.sentences)
        while batch.sentences:
            if joining:
                self.metrics.source_tokens.inc(sum(sentence.tokens for sentence in joining))
                decoder.join(joining)
            self.metrics.steps.inc()
            self._adapt_threads()
            time.sleep(0)  # release the GIL for the event loop: the steps of a small model hardly ever do
            for sentence, result in decoder.step():
                self.batcher.deliver(batch, sentence, result)
            for job in [job for job in batch.jobs if job.is_expired]:
                decoder.abandon(job)
                batch.sentences = [sentence for sentence in batch.sentences if sentence.job is not job]
                self.batcher.drop_job(batch, job)
            joining = self.batcher.join(batch, decoder.free_texts) if may_grow else []


# --- engine ---
# Submit the jobs of requests and await their results within the time limits.


_QUEUE_TIMEOUT = "The server is busy: the request waited too long in the queue, try again later."


def call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
    """Schedule a function call in an event loop from another thread.

    Nothing happens if the loop has been closed.
    """
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


class ClientGoneError(Exception):
    """An error that is raised when a client disconnects before its answer is ready; no response is sent."""


class Engine:
    """The queue of all requests' sentences and its decoding threads, within the limits of the server's settings."""

    def __init__(self, settings: ServingSettings, metrics: Metrics, *, threads: int | None = None) -> None:
        """Create the queue and the decoding threads, which `start` starts.

        Args:
            settings: the limits, and the number of decoding threads.
            metrics: counts what the decoding threads do.
            threads: compute threads in all decoding threads together; None: PyTorch's current number.
        """
        self.settings = settings
        self.metrics = metrics
        self.batcher = Batcher(settings, metrics.queue_seconds.observe)
        self.workers = DecodingThreads(
            self.batcher, metrics, workers=settings.workers, overtaking=settings.overtaking, threads=threads
        )

    async def decode(self, jobs: Sequence[Job], disconnected: asyncio.Future[None]) -> list[list[Any]]:
        """Decode the jobs of one request, and return a list with the list of results of each job.

        A job's results are in the order of its sentences. If a job fails, the others are abandoned.

        Args:
            jobs: all jobs of the request, not yet submitted.
            disconnected: future that is done once the client has disconnected.

        Raises:
            RequestError: the queue is full, a job waited too long or missed its deadline, the model refused the request
                or failed, or the server is shutting down.
            ClientGoneError: the client disconnected before the answer.
        """
        self.batcher.submit(*jobs)
        answers = [asyncio.wrap_future(job.future) for job in jobs]
        waiting = [
            asyncio.ensure_future(self._await_answer(job, answer, disconnected))
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

    async def _await_answer(
        self, job: Job, answer: asyncio.Future[list[Any]], disconnected: asyncio.Future[None]
    ) -> list[Any]:
        begin_by = min(job.accepted_at + self.settings.queue_seconds, job.deadline)
        await _wait(answer, disconnected, begin_by)
        if not answer.done() and not disconnected.done():
            if job.started_at is None:
                own = job.timeout is not None and job.timeout < self.settings.queue_seconds
                raise deadline_error(job.timeout) if own else RequestError(503, _QUEUE_TIMEOUT, retry_after_seconds=5)
            await _wait(answer, disconnected, job.deadline)
        if answer.done():
            return answer.result()
        if disconnected.done():
            self.metrics.disconnects.inc()
            raise ClientGoneError
        raise deadline_error(job.timeout)


async def _wait(answer: asyncio.Future[list[Any]], disconnected: asyncio.Future[None], until: float) -> None:
    waited_for: set[asyncio.Future[Any]] = {answer, disconnected}
    seconds = max(0.0, until - asyncio.get_running_loop().time())
    await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
