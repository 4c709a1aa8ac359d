"""The threads that decode.

Legend: B sentences still decoded, W hypotheses of each, t pieces so far.
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

    def after_step(self, rows: Tensor, pieces: Tensor) -> Collection[int]:
        """Reports progress, and gives up the sentences of requests that are late or whose client has gone."""
        self.metrics.steps.inc()
        self._share_threads()
        # Lets the thread run that answers requests: a small model's steps hardly ever leave the interpreter to it.
        time.sleep(0)
        for job in [job for job in self.batch.jobs if job.is_late]:
            self.batcher.leave(self.batch, job)
        places = rows.tolist()
        self._report_progress(places, pieces)
        return [row for row in places if self.batch.places[row].job not in self.batch.jobs]

    def _report_progress(self, places: list[int], pieces: Tensor) -> None:
        for number, row in enumerate(places):
            place = job, sentence = self.batch.places[row]
            # A sentence that was cut is decoded in several parts, side by side or not, which make no text yet.
            is_whole = place.pieces - 1 <= job.model.longest_source and places.count(row) == 1
            if job.progress is not None and job in self.batch.jobs and is_whole:
                # What all hypotheses begin with is what the result will begin with.
                agreed = (pieces[number] == pieces[number, :1]).all(dim=0)  # (t,)
                job.progress(sentence, pieces[number, 0].tolist(), int(agreed.cumprod(dim=0).sum()))


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
        self.metrics.source_pieces.inc(sum(place.pieces for place in batch.places))
        observer = BatchObserver(batch, self.batcher, self.metrics, self._share_threads)
        return batch.places[0].job.decode(batch.places, observer)
