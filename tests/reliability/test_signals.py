"""Test signals at any moment: the run saves and ends at once without losing a step; a lost terminal ends nothing."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.training.checkpoint import load_newest
from transduce.training.display import ProgressDisplay
from transduce.training.events import ValidationEvent
from transduce.training.stopping import AbandonedError, Interruption, ignore_hangup

SOURCES = Path(__file__).resolve().parents[2] / "src"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")


class DelayedSignal:
    """A timer that sends a signal to this process, and records when."""

    def __init__(self, number: signal.Signals, seconds: float) -> None:
        self.sent_at = 0.0
        self._number = number
        self._timer = threading.Timer(seconds, self._send)

    def _send(self) -> None:
        self.sent_at = time.monotonic()
        os.kill(os.getpid(), self._number)

    def __enter__(self) -> "DelayedSignal":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()


@pytest.mark.parametrize("steps", [10**6 + number for number in range(6)])
def test_sigterm_at_a_random_moment_saves_every_finished_step(tmp_path: Path, tiny_run: Any, steps: int) -> None:
    run = tiny_run(tmp_path, steps=steps)
    with DelayedSignal(signal.SIGTERM, random.SystemRandom().uniform(0.05, 0.4)) as moment:
        result = run.trainer.run()
    gone_after = time.monotonic() - moment.sent_at
    assert result.reason == "SIGTERM"
    assert gone_after < 5.0
    newest, refused = load_newest(tmp_path / "checkpoints")
    assert newest is not None
    assert refused == []
    assert newest.state.step == run.trainer.step == result.step
    for name, tensor in run.trainer.optimizer.state()["weights"].items():
        assert torch.equal(newest.tensors["weights"][name], tensor)


def slow_validation(seconds: float) -> Callable[[Mapping[str, Tensor], int], ValidationEvent]:
    def validate(_: Mapping[str, Tensor], step: int) -> ValidationEvent:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            torch.ones(10).sum()
        return ValidationEvent(step=step, loss=1.0 / step, perplexity=2.0)

    return validate


def test_a_validation_is_stopped_and_comes_first_on_resume(tmp_path: Path, tiny_run: Any) -> None:
    run = tiny_run(tmp_path, steps=4, validate_every=2, options={"validate": slow_validation(60.0)})
    with DelayedSignal(signal.SIGTERM, 0.5) as moment:
        result = run.trainer.run()
    assert time.monotonic() - moment.sent_at < 5.0
    assert (result.step, result.reason) == (2, "SIGTERM")
    steps: list[int] = []

    def validate(weights: Mapping[str, Tensor], step: int) -> ValidationEvent:
        steps.append(step)
        return slow_validation(0.0)(weights, step)

    resumed = tiny_run(tmp_path, steps=4, validate_every=2, options={"validate": validate})
    assert resumed.trainer.resume()
    assert resumed.trainer.run().reason == "finished"
    assert steps == [2, 4]
    again = tiny_run(tmp_path, steps=6, validate_every=2, options={"validate": validate})
    assert again.trainer.resume()
    again.trainer.run()
    assert steps == [2, 4, 6]


def test_a_signal_during_the_last_save_is_obeyed_after_it(tmp_path: Path, tiny_run: Any) -> None:
    """Otherwise the final scoring would go on for minutes."""

    def keep(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    run = tiny_run(tmp_path, steps=4, validate_every=4, options={"keep_model": keep})
    result = run.trainer.run()
    assert (result.step, result.reason) == (4, "SIGTERM")


def test_the_second_ctrl_c_stops_at_once_and_the_checkpoint_before_stays(
    tmp_path: Path, tiny_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_run(tmp_path, steps=3).trainer.run()
    run = tiny_run(tmp_path, steps=6)
    run.trainer.resume()

    def impatient(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("transduce.training.loop.save_checkpoint", impatient)
    with pytest.raises(KeyboardInterrupt):
        run.trainer.run()
    newest, _ = load_newest(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.state.step == 3


def test_a_second_sigterm_is_ignored() -> None:
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interruption.requested == signal.SIGTERM


def test_abandonable_work_is_stopped_and_not_started_again() -> None:
    with Interruption() as interruption:
        with pytest.raises(AbandonedError):
            give_up(interruption)
        with pytest.raises(AbandonedError), interruption.abandonable():
            pytest.fail("it must not begin")


def give_up(interruption: Interruption) -> None:
    with interruption.abandonable():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # does not interrupt the way out


# --- the terminal ---


def test_sighup_is_ignored_and_its_handler_restored() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with ignore_hangup():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is before


def test_a_progress_display_survives_a_closed_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        display = ProgressDisplay()
        display.say("heard")
        os.close(reader)
        display.say("not heard")
        with pytest.raises(BrokenPipeError):
            stream.write("this is what a display survives\n")
        monkeypatch.undo()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, writer)  # what is still to be flushed may go there
        os.close(null)


def test_a_run_goes_on_when_its_terminal_closes_and_obeys_sigterm_then(
    tmp_path: Path, toy_settings: dict[str, Any]
) -> None:
    import pty

    folder = tmp_path / "run"
    person, terminal = pty.openpty()
    settings = toy_settings | {"training.steps": 100_000, "training.validate_every": 50_000, "training.report_every": 1}
    sets = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    command = [sys.executable, "-m", "transduce", "train", "--out", str(folder), "--threads", "1", *sets]
    with subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(SOURCES), "TERM": "xterm"},
    ) as process:
        os.close(terminal)
        metrics = folder / "metrics.jsonl"

        def has_grown_to(size: int) -> bool:
            assert process.poll() is None, "the run ended"
            return metrics.exists() and metrics.stat().st_size > size

        _read_until(person, lambda: has_grown_to(0))
        os.close(person)  # hangs up
        process.send_signal(signal.SIGHUP)
        size = metrics.stat().st_size
        _read_until(None, lambda: has_grown_to(size + 2000))
        sent_at = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
        assert time.monotonic() - sent_at < 5.0
    assert load_newest(folder / "checkpoints")[0] is not None


def _read_until(terminal: int | None, ready: Callable[[], bool], seconds: float = 60.0) -> None:
    """Read the output of the run, as a terminal does, until a condition is met; otherwise the run would block."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "nothing happened"
        if terminal is not None and select.select([terminal], [], [], 0.02)[0]:
            os.read(terminal, 65536)
        else:
            time.sleep(0.02)
