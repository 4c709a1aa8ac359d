"""Protocol of the worker processes of decoding_speed.py and generation_speed.py; imports no toolkit.

A worker runs one engine in a separate process. It reads a plan, opens the model, runs a measurement for each line of
standard input, and answers with a line of JSON. Thus engines can alternate on an otherwise idle machine.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple


class Plan(NamedTuple):
    """The model, sentences and settings of a worker."""

    folder: str
    """The model in this engine's format."""
    sentences: str
    """A JSON file: {"ids": [[…], …], "pieces": [[…], …]}; both with the end symbol, shortest first."""
    form: str
    """The engine's precision and other options."""
    threads: int
    device: str
    """`cpu` or `cuda`."""
    longest: int
    """Maximum number of new tokens, end symbol included."""
    length_penalty: float
    together: int = 1
    """Number of batches decoded concurrently."""
    shortest: int = 0
    """Minimum number of new tokens, end symbol not included."""


class Order(NamedTuple):
    """The settings of one measurement."""

    beam_size: int
    batch_size: int
    sentences: int
    """Number of sentences, evenly spread over the lengths."""


# A function of the indices of a batch's sentences and the beam size, which returns the number of output tokens.
Decode = Callable[[list[int], int], int]


def resident_bytes() -> int:
    """Return the peak memory of this process so far, in bytes."""
    try:
        # The kernel's resource usage also counts the parent process before the fork.
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak() -> None:
    """Reset the peak that `resident_bytes` returns, if the system supports that."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return  # the peak then includes opening the model


def read_plan() -> tuple[Plan, dict[str, list[list[Any]]]]:
    """Return the plan from the first argument, and its sentences."""
    _answers()
    plan = Plan(**json.loads(sys.argv[1]))
    with open(plan.sentences, encoding="utf-8") as file:
        return plan, json.load(file)


class Clock:
    """The time since its creation, in seconds."""

    def __init__(self) -> None:
        self._wall, self._processor = time.monotonic(), time.process_time()

    def figures(self) -> dict[str, float]:
        """Return wall time and processor time by name."""
        return {
            "seconds": time.monotonic() - self._wall,
            "processor_seconds": time.process_time() - self._processor,
        }


def serve(decode: Decode, count: int, bare_bytes: int, together: int = 1, *, opening: Clock | None = None) -> None:
    """Run measurements as standard input requests, with `together` concurrent batches.

    `bare_bytes` is the memory after the engine's import, before opening the model; `opening` was started then.
    Concurrent batches have no latencies.
    """
    _send({"ready": True} if opening is None else opening.figures())
    pool = ThreadPoolExecutor(together)
    for line in sys.stdin:
        forget_peak()
        order = Order(**json.loads(line))
        indices = [number * count // order.sentences for number in range(order.sentences)]
        batches = [indices[first : first + order.batch_size] for first in range(0, len(indices), order.batch_size)]
        latencies, pieces = [], 0
        started_at, processor_at = time.monotonic(), time.process_time()
        if together > 1:
            # Start with the longest batch, so that it does not finish last.
            pieces = sum(pool.map(lambda batch, beam=order.beam_size: decode(batch, beam), reversed(batches)))
        for batch in batches if together == 1 else ():
            one_at, one_processor_at = time.monotonic(), time.process_time()
            pieces += decode(batch, order.beam_size)
            latencies.append((time.monotonic() - one_at, time.process_time() - one_processor_at))
        _send(
            {
                "seconds": time.monotonic() - started_at,
                "processor_seconds": time.process_time() - processor_at,
                "pieces": pieces,
                "latencies": [wall for wall, _ in latencies],
                "processor_latencies": [processor for _, processor in latencies],
                "model_bytes": resident_bytes() - bare_bytes,
            }
        )


def _send(answer: dict[str, Any]) -> None:
    os.write(_answers(), (json.dumps(answer) + "\n").encode())


@cache
def _answers() -> int:
    """Return the file descriptor for answers, and redirect later output of the engine to standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers
