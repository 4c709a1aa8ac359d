"""Engines that are timed beside one another: each is a process of its own, and they take turns."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from decoding_worker import Order, Plan

BEHIND = 1.4  # times the seconds of an engine's best form


class Contender(NamedTuple):
    """An engine in one of its forms."""

    engine: str
    script: str
    form: str
    threads: int | None = None
    """None: as many as the plan says."""
    together: int = 1
    """Batches that it decodes at once, each on so many threads."""

    @property
    def name(self) -> str:
        """With what is not the plan's."""
        threads = "" if self.threads is None else f", {self.threads} thread{'s'[: self.threads != 1]}"
        return f"{self.engine} {self.form}{threads}{f', {self.together} batches at once' if self.together > 1 else ''}"


class Worker:
    """A contender's process."""

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

    def wait(self) -> None:
        """Until it has opened its model, or cannot."""
        self.runs = self._read() is not None

    def run(self, order: Order) -> dict[str, Any] | None:
        """What a measurement gave; None where the engine cannot."""
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
        """Ends the process."""
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
    """A process each, which ends with the stack: of the plan's folder, or CTranslate2's of the converted one if any."""
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
        if plan.device != "cpu":  # where starting is slow, and all can start beside one another
            worker.wait()
    return workers


Answers = dict[tuple[Contender, Order], list[dict[str, Any]]]


def measure(workers: list[Worker], orders: list[Order], rounds: int) -> Answers:
    """All contenders in turns, once more than `rounds`, the first time for nothing."""
    answers: Answers = {}
    chosen = {order: [each for each in workers if _takes_part(each.contender, order, orders)] for order in orders}
    for number in range(rounds + 1):
        for order, own in chosen.items():
            now = {worker: worker.run(order) for worker in own}
            if number == 1:
                chosen[order] = _in_the_running(now)
            for worker, answer in now.items():
                _tell(worker.contender, order, answer)
                if answer and number:  # a form that this machine does not have ends its process
                    answers.setdefault((worker.contender, order), []).append(answer)
    return answers


def _tell(contender: Contender, order: Order, answer: dict[str, Any] | None) -> None:
    what = f"{contender.name}, beam {order.beam_size}, batch {order.batch_size}"
    rate = f"{answer['pieces'] / answer['seconds']:,.0f} pieces/s" if answer else "cannot"
    print(f"... {what}: {rate}", file=sys.stderr, flush=True)


def _takes_part(contender: Contender, order: Order, orders: list[Order]) -> bool:
    """Hugging Face's `generate` is slow, and only its rate at the greatest batch size is asked for.

    Who decodes batches at once is not asked how long a sentence takes alone.
    """
    if contender.together > 1 and order.batch_size == 1:
        return False
    largest = max(each.batch_size for each in orders)
    return contender.engine != "Hugging Face" or order.batch_size == largest


def _in_the_running(answers: dict[Worker, dict[str, Any] | None]) -> list[Worker]:
    """Ours, and those not far behind the best form of their engine."""
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
