"""Measure how long short requests wait for long ones in the server, and what their overtaking costs.

    taskset -c 0 python benchmarks/serving_overtaking.py

A model with random weights, whose translations are as long as their sources, with one worker and one compute thread.
Clients send requests to the queue, each the next one after an answer. Every case runs with overtaking and without,
alternately in one process. Time is the processor time of the process, so that other processes count little.
"""

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from report import Row, machine, parser, report
from serving_models import sentences, write_random_model

from transduce.inference.load import open_translator
from transduce.serving.batching import Engine
from transduce.serving.jobs import Job
from transduce.serving.metrics import Metrics
from transduce.serving.models import ServedModel
from transduce.serving.settings import ServingSettings

_SECONDS = 3600.0  # no request may be refused
_START_SECONDS = 0.2  # of the long requests, before the short ones come
Make = Callable[[], list[str]]


class Case(NamedTuple):
    """Clients whose requests are measured, beside others that send requests until the former are answered."""

    name: str
    measured: Make
    """Makes the lines of a request that is measured."""
    clients: int
    requests: int
    """The number of requests of each of these clients."""
    beside: Make | None = None
    others: int = 0
    """The number of other clients."""


class Measured(NamedTuple):
    """What one run of a case measured."""

    slowest: float
    """Seconds until the slowest answer."""
    median: float
    tokens: float
    """Source tokens per second of all clients."""


class Texts:
    """A source of random sentences of given lengths for a model."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.random = random.Random(1)
        self._characters = [each for line in sentences(1000) for each in line if each.isalpha()]

    def sentence(self, shortest: int, longest: int) -> str:
        """Return a sentence whose number of tokens is between two numbers."""
        tokens = self.random.randint(shortest, longest)
        start = length = self.random.randrange(len(self._characters) // 2)
        while (count := self.model.count_tokens(["".join(self._characters[start:length])])[0]) < tokens:
            length += tokens - count
        return "".join(self._characters[start:length])


def cases(texts: Texts, *, is_quick: bool) -> Iterator[Case]:
    """Yield the cases."""
    few, many = (2, 3) if is_quick else (4, 12)

    def short() -> list[str]:
        return [texts.sentence(5, 15)]

    def long() -> list[str]:
        return [texts.sentence(120, 120)]

    def line() -> list[str]:
        return ["".join(f"{texts.sentence(20, 30)}。" for _ in range(40 if is_quick else 80))]

    def document() -> list[str]:
        return [texts.sentence(8, 40) for _ in range(50 if is_quick else 100)]

    yield Case("short requests beside two long sentences", short, 4, few, long, 2)
    yield Case("short requests beside a line of many sentences", short, 4, few, line, 1)
    yield Case("short requests beside a document of many lines", short, 4, few, document, 1)
    yield Case("only short requests", lambda: [texts.sentence(4, 25)], 16, many)
    yield Case("only long requests", lambda: [texts.sentence(60, 120)], 8, few)


def run(case: Case, model: ServedModel, *, overtaking: bool) -> Measured:
    """Run a case, with or without overtaking."""
    settings = ServingSettings(overtaking=overtaking, queue_seconds=_SECONDS, deadline_seconds=_SECONDS)
    engine = Engine(settings, Metrics(), threads=1)
    engine.workers.start()
    done, seconds, tokens = threading.Event(), list[float](), list[int]()

    def ask(make: Make, count: int | None, found: list[float]) -> None:
        for _ in itertools.count() if count is None else range(count):
            if count is None and done.is_set():
                return
            lines, began_at = make(), time.process_time()
            job = Job(model, lines, model.search, seconds=_SECONDS)
            engine.batcher.submit(job)
            job.future.result()
            found.append(time.process_time() - began_at)
            tokens.append(job.total_tokens)

    began_at = time.process_time()
    others = [
        threading.Thread(target=ask, args=(case.beside, None, [])) for _ in range(case.others if case.beside else 0)
    ]
    clients = [threading.Thread(target=ask, args=(case.measured, case.requests, seconds)) for _ in range(case.clients)]
    for thread in others:
        thread.start()
    time.sleep(_START_SECONDS if others else 0.0)
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    done.set()
    for thread in others:
        thread.join()
    total = time.process_time() - began_at
    engine.batcher.close()
    engine.workers.join(_SECONDS)
    return Measured(max(seconds), statistics.median(seconds), sum(tokens) / total)


def compare(case: Case, model: ServedModel, repeats: int) -> list[Row]:
    """Run a case alternately without and with overtaking, and return the medians of the figures."""
    pairs = [[run(case, model, overtaking=overtaking) for overtaking in (False, True)] for _ in range(repeats)]
    rows = []
    for name, unit, scale in (("slowest", "ms", 1000.0), ("median", "ms", 1000.0), ("tokens", "tokens/s", 1.0)):
        before, after = (scale * statistics.median(getattr(pair[number], name) for pair in pairs) for number in (0, 1))
        ratio = statistics.median(getattr(pair[1], name) / getattr(pair[0], name) for pair in pairs)
        bar, holds = None, None
        if case.beside is not None and name == "slowest":
            bar, holds = "at most 0.5 times", ratio <= 0.5
        elif case.beside is None and name == "tokens":
            bar, holds = "at least 0.95 times", ratio >= 0.95
        rows.append(Row(f"{case.name}: {name}", after, unit, "without overtaking", before, ratio, bar, holds))
    return rows


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    options = parser(__doc__)
    options.add_argument("--small", action="store_true", help="a model of 1+1 layers × 64 instead of 6+6 × 512")
    options.add_argument("--precision", default="int8", choices=("fp32", "bf16", "int8"))
    options.add_argument("--repeats", type=int, default=5, metavar="N", help="runs of each case (default: 5)")
    options.add_argument("--only", metavar="TEXT", default="", help="only cases with this text in their names")
    args: argparse.Namespace = options.parse_args()
    torch.set_num_threads(1)
    print(machine(), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        translator = open_translator(
            write_random_model(Path(folder) / "model", large=not args.small), precision=args.precision, threads=1
        )
        search = msgspec.structs.replace(translator.search, beam_size=4, max_length_factor=1.0, max_length_extra=2)
        model = ServedModel(translator, search=search)
        rows = []
        for case in cases(Texts(model), is_quick=args.quick):
            if args.only in case.name:
                run(case, model, overtaking=True)  # compiles kernels
                rows += compare(case, model, args.repeats)
                report(rows[-3:], None)
    return report(rows, args.json) if args.json else int(any(row.holds is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
