"""Points at which a training run can be stopped, and a comparison of an interrupted with an uninterrupted run.

Signals and power cuts are simulated inside the process, by wrapping functions of the run. A power cut is an exception
that nothing catches, so that nothing is saved.
"""

import contextlib
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from transduce.tasks.kinds.translation import DevSet, TranslationObjective
from transduce.tasks.run.run import RunRequest, prepare_run
from transduce.tasks.settings.reading import put_setting
from transduce.tasks.train import train
from transduce.training import loop
from transduce.training.checkpoint import load_newest

EVERY = 4  # steps between checkpoints and between validations
WARMUP = 6
TIMES = ("tokens_per_second", "elapsed_seconds", "validation_seconds")


class PowerCutError(Exception):
    """An exception that simulates a power cut."""


class Point(NamedTuple):
    """A point at which a run with two micro-batches per step is stopped."""

    name: str
    where: str
    """The function at which the run stops: loss, backward, validation, keeping or saving."""
    call: int
    """The number of the function's call, from 1."""
    crash: bool = False
    """Simulate a power cut instead of SIGTERM."""


def points(steps: int, epoch_steps: int) -> list[Point]:
    """Return twelve kinds of points for a run; the losses of the trial of the largest batches do not count as calls."""
    return [
        Point("in the first micro-batch of all", "loss", 1),
        Point("between the micro-batches of a step", "loss", 2 * 2),
        Point("in a backward pass", "backward", 2 * 2 + 1),
        Point("in the warm-up", "loss", 2 * (WARMUP - 3) + 1),
        Point("after the last step of the warm-up", "loss", 2 * WARMUP + 1),
        Point("in the middle of an epoch", "loss", 2 * (epoch_steps + 3) + 1),
        Point("after the last batch of an epoch", "loss", 2 * epoch_steps + 1),
        Point("in a validation", "validation", 2),
        Point("while the model folder is written", "keeping", 1),
        Point("by a power cut while a checkpoint is written", "saving", 2, crash=True),
        Point("by a power cut between checkpoints", "loss", 2 * (EVERY + 2), crash=True),
        Point("in the last micro-batch of all", "loss", 2 * steps),
    ]


@contextlib.contextmanager
def stopping_at(point: Point | None) -> Iterator[None]:
    """Within the context, stop a run when it reaches the point; None: never."""
    if point is None:
        yield
        return
    calls = 0

    def due() -> bool:
        nonlocal calls
        calls += 1
        return calls == point.call

    def stop() -> None:
        if point.crash:
            raise PowerCutError
        signal.raise_signal(signal.SIGTERM)

    owner, name = {
        "loss": (TranslationObjective, "loss"),
        "backward": (TranslationObjective, "loss"),
        "validation": (DevSet, "validate"),
        "keeping": (loop.Trainer, "_keep"),
        "saving": (loop, "save_checkpoint"),
    }[point.where]
    original = getattr(owner, name)

    def around(*arguments: Any, **named: Any) -> Any:
        counts = point.where not in ("loss", "backward") or arguments[1].indices[0] >= 0
        if not (counts and due()):
            return original(*arguments, **named)
        if point.where == "backward":
            found = original(*arguments, **named)
            found.total.register_hook(lambda _: stop())
            return found
        stop()
        return original(*arguments, **named)

    with mock.patch.object(owner, name, around):
        yield


class Runs:
    """Training runs of one corpus and one set of settings, each in a separate folder."""

    def __init__(self, folder: Path, settings: dict[str, Any], *, steps: int, threads: int) -> None:
        self.folder, self.threads = folder, threads
        always = {
            "training.steps": steps,
            "training.accumulate": 2,
            "training.warmup_steps": WARMUP,
            "training.report_every": 1,
            "training.validate_every": EVERY,
            "training.save_every": EVERY,
            "training.keep_checkpoints": 3,
        }
        content: dict[str, Any] = {}
        for key, value in (settings | always).items():
            put_setting(content, key, value)
        request = RunRequest(settings=content, out=folder / "prepared", device="cpu", threads=threads)
        prepare_run(request)

    def run(self, name: str, point: Point | None = None) -> Path:
        """Run a training, and if a point is given, stop it there and resume it; return the folder."""
        out = self.folder / name
        shutil.copytree(self.folder / "prepared", out)
        with stopping_at(point), contextlib.suppress(PowerCutError):
            self._train(out)
        if point is not None:
            assert not finished(out), f"{point.name}: the run was not stopped"
            self._train(out)
        return out

    def _train(self, out: Path) -> None:
        train(out=out, resume=True, device="cpu", threads=self.threads)


def finished(run: Path) -> bool:
    """Return whether a run reached its end, where the dev set is scored."""
    return (run / "dev_score.json").exists()


def differences(run: Path, whole: Path) -> list[str]:
    """Return the names of files and tensors that differ in any bit between two finished runs."""
    ours, theirs = (load_newest(one / "checkpoints")[0] for one in (run, whole))
    assert ours is not None
    assert theirs is not None
    found = [
        kind for kind in theirs.tensors if _bytes(run, ours.state.step, kind) != _bytes(whole, theirs.state.step, kind)
    ]
    if timeless_state(run) != timeless_state(whole):
        found.append("state.json")
    if metrics(run) != metrics(whole):
        found.append("metrics.jsonl")
    found += [name for name in ("model.safetensors", "dev_score.json") if _read(run / name) != _read(whole / name)]
    return found


def _bytes(run: Path, step: int, kind: str) -> bytes:
    return _read(run / "checkpoints" / f"step-{step:09d}" / f"{kind}.safetensors")


def _read(path: Path) -> bytes:
    return path.read_bytes()


def timeless_state(run: Path) -> dict[str, Any]:
    """Return the state of the newest checkpoint without times."""
    newest = max((run / "checkpoints").glob("step-*"))
    state: dict[str, Any] = json.loads(_read(newest / "state.json"))
    state.pop("elapsed_seconds")
    state["report"].pop("seconds")
    return state


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return all events of a run without times."""
    events = [json.loads(line) for line in _read(run / "metrics.jsonl").split(b"\n") if line]
    return [{name: value for name, value in event.items() if name not in TIMES} for event in events]
