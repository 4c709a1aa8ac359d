"""What the workers of decoding_speed.py and generation_speed.py share; imports neither ours nor a peer's package.

A worker is one engine in a process of its own. It reads a plan, opens the model, and then decodes as each line of its
input says, answering with a line of JSON. So the engines can take turns on an otherwise idle machine.
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
    """What a worker opens, and what it is given."""

    folder: str
    """The model as this engine wants it."""
    sentences: str
    """A JSON file: {"ids": [[…], …], "pieces": [[…], …]}; both with the end symbol, shortest first."""
    form: str
    """The engine's precision, and what else it can choose."""
    threads: int
    device: str
    """`cpu` or `cuda`."""
    longest: int
    """New pieces at most, end symbol included."""
    length_penalty: float
    together: int = 1
    """Batches that are decoded at once."""


class Order(NamedTuple):
    """One measurement."""

    beam_size: int
    batch_size: int
    sentences: int
    """So many of them, spread evenly over the lengths."""


# Places of the sentences to decode together, and the beam size, to the number of pieces found.
Decode = Callable[[list[int], int], int]


def resident_bytes() -> int:
    """The greatest memory of this process so far."""
    try:
        # What the kernel's resource usage says counts the parent process too, until this one began.
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak() -> None:
    """From now on, `resident_bytes` is the greatest memory since now, where the system knows how."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return  # opening the model counts, too


def read_plan() -> tuple[Plan, dict[str, list[list[Any]]]]:
    """The plan in the first argument, and the sentences."""
    _answers()
    plan = Plan(**json.loads(sys.argv[1]))
    with open(plan.sentences, encoding="utf-8") as file:
        return plan, json.load(file)


def serve(decode: Decode, count: int, bare_bytes: int, together: int = 1) -> None:
    """Decodes as asked, so many batches at once.

    `bare_bytes` is the memory after the engine's import, before the model.

    Of several at once the seconds of each are not told.
    """
    _say({"ready": True})
    pool = ThreadPoolExecutor(together)
    for line in sys.stdin:
        forget_peak()
        order = Order(**json.loads(line))
        places = [number * count // order.sentences for number in range(order.sentences)]
        batches = [places[first : first + order.batch_size] for first in range(0, len(places), order.batch_size)]
        latencies, pieces = [], 0
        started_at, processor_at = time.monotonic(), time.process_time()
        if together > 1:
            # The longest first, so that none is left for the end.
            pieces = sum(pool.map(lambda batch, beam=order.beam_size: decode(batch, beam), reversed(batches)))
        for batch in batches if together == 1 else ():
            one_at, one_processor_at = time.monotonic(), time.process_time()
            pieces += decode(batch, order.beam_size)
            latencies.append((time.monotonic() - one_at, time.process_time() - one_processor_at))
        _say(
            {
                "seconds": time.monotonic() - started_at,
                "processor_seconds": time.process_time() - processor_at,
                "pieces": pieces,
                "latencies": [wall for wall, _ in latencies],
                "processor_latencies": [processor for _, processor in latencies],
                "model_bytes": resident_bytes() - bare_bytes,
            }
        )


def _say(answer: dict[str, Any]) -> None:
    os.write(_answers(), (json.dumps(answer) + "\n").encode())


@cache
def _answers() -> int:
    """Where answers go. What an engine prints from now on goes to standard error, not between them."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers
