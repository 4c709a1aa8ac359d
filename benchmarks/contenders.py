"""Run engines in separate worker processes that are timed alternately, for the speed benchmarks."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from decoding_worker import Order, Plan

BEHIND = 1.4  # a form slower than this multiple of its engine's best form is dropped


class Contender(NamedTuple):
    """An engine with one precision and thread setup."""

    engine: str
    script: str
    form: str
    threads: int | None = None
    """Number of threads; None: the number of the plan."""
    together: int = 1
    """Number of batches decoded concurrently, each with `threads` threads."""

    @property
    def name(self) -> str:
        """The engine and its form, with the settings that differ from the plan."""
        threads = "" if self.threads is None else f", {self.threads} thread{'s'[: self.threads != 1]}"
        return f"{self.engine} {self.form}{threads}{f', {self.together} batches at once' if self.together > 1 else ''}"


class Worker:
    """A process that runs one contender."""

    def __init__(self, contender: Contender, plan: Plan, python: Path, environment: dict[str, str]) -> None:
        self.contender = contender
        self.process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name(contender.script)), json.dumps(plan._asdict())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if "--verbose" in sys.argv else subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(plan.threads), **environment},
            text=True,
        )
        self.runs = False
        self.opening: dict[str, Any] | None = None
        """The seconds that the engine took to open its model, if it reports them."""

    def wait(self) -> None:
        """Wait until the process has opened its model or failed."""
        self.opening = self._read()
        self.runs = self.opening is not None

    def run(self, order: Order) -> dict[str, Any] | None:
        """Return the result of a measurement, or None if the engine cannot run it."""
        if not self.runs or self.process.stdin is None:
            return None
        self.process.stdin.write(json.dumps(order._asdict()) + "\n")
        self.process.stdin.flush()
        answer = self._read()
        self.runs = answer is not None
        return answer

    def _read(self) -> dict[str, Any] | None:
        line = "" if self.process.stdout is None else self.process.stdout.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def start_workers(
    stack: ExitStack,
    contenders: list[Contender],
    plan: Plan,
    converted: Path | None,
    python: Path,
    environment: dict[str, str],
) -> list[Worker]:
    """Start a process per contender, which ends with the stack; CTranslate2 is skipped if no model was converted for
    it.
    """
    workers = []
    for contender in contenders:
        if contender.engine == "CTranslate2" and converted is None:
            continue
        folder = str(converted) if contender.engine == "CTranslate2" else plan.folder
        interpreter = Path(sys.executable) if contender.engine == "transduce" else python
        threads = contender.threads or plan.threads
        own = plan._replace(folder=folder, form=contender.form, threads=threads, together=contender.together)
        workers.append(Worker(contender, own, interpreter, environment))
        stack.callback(workers[-1].close)
        if plan.device == "cpu":
            workers[-1].wait()
    for worker in workers:
        if plan.device != "cpu":  # starting is slow on a GPU, so all start concurrently
            worker.wait()
    return workers


Answers = dict[tuple[Contender, Order], list[dict[str, Any]]]


def measure(workers: list[Worker], orders: list[Order], rounds: int) -> Answers:
    """Run all contenders alternately for `rounds` rounds after a warm-up round, and return their answers."""
    answers: Answers = {}
    chosen = {order: [each for each in workers if _takes_part(each.contender, order, orders)] for order in orders}
    for number in range(rounds + 1):
        for order, own in chosen.items():
            now = {worker: worker.run(order) for worker in own}
            if number == 1:
                chosen[order] = _competitive(now)
            for worker, answer in now.items():
                _log(worker.contender, order, answer)
                if answer and number:  # a form that this machine does not support ends its process
                    answers.setdefault((worker.contender, order), []).append(answer)
    return answers


def _log(contender: Contender, order: Order, answer: dict[str, Any] | None) -> None:
    what = f"{contender.name}, beam {order.beam_size}, batch {order.batch_size}"
    rate = f"{answer['pieces'] / answer['seconds']:,.0f} tokens/s" if answer else "cannot"
    print(f"... {what}: {rate}", file=sys.stderr, flush=True)


def _takes_part(contender: Contender, order: Order, orders: list[Order]) -> bool:
    """Return whether a contender runs a measurement.

    Hugging Face's `generate` is slow, so it runs only at the largest batch size. Contenders with concurrent batches do
    not measure the latency of single sentences.
    """
    if contender.together > 1 and order.batch_size == 1:
        return False
    largest = max(each.batch_size for each in orders)
    return contender.engine != "Hugging Face" or order.batch_size == largest


def _competitive(answers: dict[Worker, dict[str, Any] | None]) -> list[Worker]:
    """Return the workers of transduce, and the other workers that are not much slower than their engine's best form."""
    seconds = {worker: answer["seconds"] for worker, answer in answers.items() if answer}
    best: dict[str, float] = {}
    for worker, taken in seconds.items():
        engine = worker.contender.engine
        best[engine] = min(taken, best.get(engine, taken))
    return [
        worker
        for worker, taken in seconds.items()
        if worker.contender.engine == "transduce" or taken <= BEHIND * best[worker.contender.engine]
    ]
