"""The decoding threads of the server.

Shapes: B is the number of sentences still being decoded, W the hypotheses of each, t the tokens so far.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.serving.batcher import Batch, Batcher
from transduce.serving.metrics import Metrics
from transduce.serving.request_error import RequestError

_LOG = logging.getLogger("transduce.serving")


class BatchObserver:
    """An observer of a search that reports progress and drops sentences of requests that no client waits for."""

    def __init__(
        self,
        batch: Batch,
        batcher: Batcher,
        metrics: Metrics,
        share_threads: Callable[[], None] = lambda: None,
    ) -> None:
        """Observe a batch; `share_threads` is called at each step to adapt the number of threads."""
        self.batch = batch
        self.batcher = batcher
        self.metrics = metrics
        self._share_threads = share_threads

    def after_step(self, rows: Tensor, pieces: Tensor) -> Collection[int]:
        """Report progress, and return the rows of the sentences to drop, since their requests are late or abandoned.

        Args:
            rows: index in the batch of each sentence still being decoded, (B,).
            pieces: tokens of all hypotheses, (B, W, t).
        """
        self.metrics.steps.inc()
        self._share_threads()
        # Release the GIL for the event loop: the steps of a small model hardly ever do.
        time.sleep(0)
        for job in [job for job in self.batch.jobs if job.is_late]:
            self.batcher.leave(self.batch, job)
        row_list = rows.tolist()
        self._report_progress(row_list, pieces)
        return [row for row in row_list if self.batch.places[row].job not in self.batch.jobs]

    def _report_progress(self, row_list: list[int], pieces: Tensor) -> None:
        for number, row in enumerate(row_list):
            entry = job, index = self.batch.places[row]
            # The parts of a split sentence are decoded separately and make no text before the end.
            is_unsplit = entry.pieces - 1 <= job.model.longest_source and row_list.count(row) == 1
            if job.progress is not None and job in self.batch.jobs and is_unsplit:
                # The longest common prefix of all hypotheses is final.
                agreed = (pieces[number] == pieces[number, :1]).all(dim=0)  # (t,)
                job.progress(index, pieces[number, 0].tolist(), int(agreed.cumprod(dim=0).sum()))


class Workers:
    """Decoding threads that take batches and deliver translations until the batcher is closed and empty.

    Busy workers share the cores: a single batch is decoded with all of them, and two batches with half of them each.
    Separate threads avoid waiting for each other at every matrix multiplication.
    """

    def __init__(self, batcher: Batcher, metrics: Metrics, *, workers: int, threads: int | None = None) -> None:
        """Create the worker threads, which `start` starts.

        Args:
            batcher: the queue to take batches from.
            metrics: counts batches and sentences.
            workers: number of decoding threads.
            threads: compute threads in all workers together; None: PyTorch's current number.
        """
        self.batcher = batcher
        self.metrics = metrics
        self._compute_threads = threads or torch.get_num_threads()
        self._lock = threading.Lock()
        self._decoding = 0  # number of workers that have a batch
        # Daemon threads do not keep the process alive when it exits.
        self._threads = [
            threading.Thread(target=self._work, name=f"decoder-{number}", daemon=True) for number in range(workers)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    @property
    def are_alive(self) -> bool:
        """Return whether all threads are running."""
        return all(thread.is_alive() for thread in self._threads)

    def join(self, seconds: float) -> None:
        """Wait until all threads have ended, but at most this number of seconds."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (batch := self.batcher.take()) is not None:
            started_at = time.monotonic()
            with self._counted():
                self._decode(batch)
            self.metrics.batch_seconds.observe(time.monotonic() - started_at)
            self.metrics.batch_sentences.observe(len(batch.places))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count this worker as decoding within a `with` block."""
        with self._lock:
            self._decoding += 1
        self._share_threads()
        try:
            yield
        finally:
            with self._lock:
                self._decoding -= 1

    def _share_threads(self) -> None:
        """Set the calling thread's number of PyTorch threads to its share; PyTorch keeps this number per thread."""
        share = max(1, self._compute_threads // max(1, self._decoding))
        if torch.get_num_threads() != share:
            torch.set_num_threads(share)

    def _decode(self, batch: Batch) -> None:
        """Decode a batch and deliver its results; if it fails, decode each of its jobs separately.

        A batch has sentences of several clients, so an error that one job causes must not reach the others.
        """
        results: list[Any] | Exception
        try:
            results = self._results(batch)
        except TransduceError as error:
            results = RequestError(400, str(error))
        except Exception:  # noqa: BLE001 - one failure must not end the worker or other requests
            _LOG.exception("A batch of %d sentences failed", len(batch.places))
            results = RequestError(500, "The model failed on this text; the server's log has the details.")
        if isinstance(results, Exception) and len(batch.jobs) > 1:
            for part in batch.split():
                self._decode(part)
        else:
            self.batcher.finish(batch, results)

    def _results(self, batch: Batch) -> list[Any]:
        self.metrics.source_pieces.inc(sum(sentence.pieces for sentence in batch.places))
        observer = BatchObserver(batch, self.batcher, self.metrics, self._share_threads)
        return batch.places[0].job.decode(batch.places, observer)
