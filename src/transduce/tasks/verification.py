"""Does a run of these settings, killed and resumed, end as one that was never stopped? Tried out, for a few steps."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from transduce.errors import TransduceError
from transduce.own_process import own_environment, run_module
from transduce.tasks.run import RunRequest, prepare_run
from transduce.tasks.settings_reading import make_settings, put_setting
from transduce.training.checkpoint import load_checkpoint
from transduce.training.events import ProgressDisplay
from transduce.training.loop import CHECKPOINTS
from transduce.training.surroundings import Surroundings

_EVERY = 4  # steps between checkpoints; less where the run is short
_FEWEST_STEPS = 6
_STEPS_FOR_MINUTES = 1_000
_DEV_SENTENCES = 4
_TIMES = ("tokens_per_second", "elapsed_seconds", "validation_seconds")
_POLL_SECONDS = 0.02


class ResumeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    equal: bool
    killed_after_step: int
    resumed_from_step: int
    compared_at_step: int
    differences: list[str]
    """What differs in any bit: kinds of tensors, and the first step whose metrics differ."""
    repeatable: bool | None
    """Whether two runs that were never stopped are equal; None where that was not looked at."""
    surroundings: Surroundings
    notes: list[str]

    def __str__(self) -> str:
        used = self.surroundings
        threads = f"{used.threads} thread{'s' if used.threads > 1 else ''}"
        around = f"{used.device}, {used.instructions}, {threads}, torch {used.torch}"
        tried = (
            f"A run of these settings ({around}) was killed after step {self.killed_after_step}, resumed from the "
            f"checkpoint of step {self.resumed_from_step}, and compared at step {self.compared_at_step} with one that "
            "was never stopped."
        )
        return "\n".join([tried, self._verdict(), *self.notes])

    def _verdict(self) -> str:
        if self.equal:
            return (
                "Equal: weights, the optimiser's moments, the average and the metrics of every step agree in every bit."
            )
        found = f"Not equal: {', '.join(self.differences)}."
        if self.repeatable:
            return f"{found} Two runs that were never stopped are equal, so resuming is at fault: please report this."
        return (
            f"{found} Two runs that were never stopped differ as well, so it is not the resuming: sums are taken in "
            f"another order each time on `{self.surroundings.device}`. `--device cpu` is exact."
        )


def verify_resume(request: RunRequest) -> ResumeReport:
    """Trains a few steps of a request in a temporary folder: stopped by SIGKILL and resumed, and never stopped.

    Args:
        request: what `train` would be asked; its `out` is not used.

    Raises:
        TransduceError: settings or files are not what they should be, or training fails.
    """
    display = ProgressDisplay()
    with tempfile.TemporaryDirectory(prefix="transduce-verify-") as name:
        return _Verification(request, Path(name), display).report()


class _Verification:
    """Three runs of one prepared folder: `stopped`, `whole`, and `again` where the first two differ."""

    def __init__(self, request: RunRequest, folder: Path, display: ProgressDisplay) -> None:
        content, self.notes = _shortened(request.settings)
        self.folder, self.display = folder, display
        self.request = msgspec.structs.replace(request, settings=content, out=folder / "prepared")
        display.say("Preparing the corpus.")
        self.resolved = prepare_run(self.request)
        training = self.resolved.training
        assert training.steps is not None
        assert training.save_every is not None
        self.last, self.every = training.steps, training.save_every

    def report(self) -> ResumeReport:
        """Runs and compares."""
        killed, resumed, compared = self._stop_and_resume()
        self.display.say(f"The same without a stop, to step {compared}.")
        self._train_until("whole", lambda run: _has_checkpoint(run, compared))
        found = _differences(self.folder / "stopped", self.folder / "whole", compared)
        repeatable = None
        if found:
            self.display.say("They differ. Once more without a stop.")
            self._train_until("again", lambda run: _has_checkpoint(run, compared))
            repeatable = not _differences(self.folder / "again", self.folder / "whole", compared)
        state = load_checkpoint(_checkpoint(self.folder / "whole", compared)).state
        assert state.surroundings is not None
        return ResumeReport(
            equal=not found,
            killed_after_step=killed,
            resumed_from_step=resumed,
            compared_at_step=compared,
            differences=found,
            repeatable=repeatable,
            surroundings=state.surroundings,
            notes=self.notes,
        )

    def _stop_and_resume(self) -> tuple[int, int, int]:
        """The last step before the kill, the step of its newest checkpoint, and the step to compare at."""
        self.display.say("A run that is killed.")
        run = self._train_until("stopped", lambda run: _last_step(run) > self.every and _newest(run) > 0)
        killed, resumed = _last_step(run), _newest(run)
        compared = min(self.last, resumed + 2 * self.every)
        if compared == resumed:
            raise TransduceError(
                f"The run was over after {self.last} steps, before it could be killed: give more `training.steps`."
            )
        self.display.say(f"Killed after step {killed}; going on from step {resumed} to step {compared}.")
        self._train_until("stopped", lambda run: _has_checkpoint(run, compared))
        return killed, resumed, compared

    def _train_until(self, name: str, ready: Callable[[Path], bool]) -> Path:
        """Starts the command in a process of its own, and kills it when it is ready."""
        run = self.folder / name
        if not run.exists():
            shutil.copytree(self.folder / "prepared", run)
        command = [*run_module("transduce"), "train", "--resume", "--out", str(run)]
        command += ["--device", self.request.device]
        command += [] if self.request.threads is None else ["--threads", str(self.request.threads)]
        said = self.folder / "said.txt"
        environment = own_environment()
        with said.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process:
            try:
                while not ready(run) and process.poll() is None:
                    time.sleep(_POLL_SECONDS)
            finally:
                process.kill()
        if not ready(run):
            last = said.read_text("utf-8", "replace").strip().split("\n")[-1]
            raise TransduceError(f"Training ended before the comparison, with the words: {last}")
        return run


def _shortened(settings: Any) -> tuple[dict[str, Any], list[str]]:
    """The settings with checkpoints, validations and reports every few steps, which change no bit, and notes."""
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    training, notes = make_settings(content).training, []
    if training.minutes is not None:
        content["training"].pop("minutes")
        put_setting(content, "training.steps", _STEPS_FOR_MINUTES)
        notes.append(
            f"`training.minutes` ({training.minutes:g}) was replaced by {_STEPS_FOR_MINUTES} steps: minutes become "
            "steps once the rate is known, and a run that is stopped before that measures again."
        )
    steps = training.steps or _STEPS_FOR_MINUTES
    if steps < _FEWEST_STEPS:
        raise TransduceError(f"`training.steps` must be at least {_FEWEST_STEPS} for this test, but is {steps}.")
    every = min(_EVERY, steps // 3)
    few = {"save_every": every, "validate_every": every + 1, "report_every": 1, "keep_checkpoints": 1_000_000}
    for name, value in (few | {"patience": 0, "translate_dev": min(training.translate_dev, _DEV_SENTENCES)}).items():
        put_setting(content, f"training.{name}", value)
    return content, notes


def _checkpoint(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:09d}"


def _has_checkpoint(run: Path, step: int) -> bool:
    return _checkpoint(run, step).is_dir()


def _newest(run: Path) -> int:
    """Step of the newest checkpoint, 0 where there is none."""
    folder = run / CHECKPOINTS
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name.removeprefix("step-")) for name in names if name.startswith("step-")), default=0)


def _events(run: Path) -> list[dict[str, Any]]:
    """Complete lines of the metrics, without what depends on the clock."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    events = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
    return [{name: value for name, value in event.items() if name not in _TIMES} for event in events]


def _last_step(run: Path) -> int:
    return max((event["step"] for event in _events(run)), default=0)


def _differences(run: Path, other: Path, step: int) -> list[str]:
    """Kinds of tensors that differ at a step, and where the metrics begin to."""
    ours, theirs = (load_checkpoint(_checkpoint(one, step)) for one in (run, other))
    found = [
        kind
        for kind, tensors in theirs.tensors.items()
        if not all(torch.equal(ours.tensors[kind][name], tensor) for name, tensor in tensors.items())
    ]
    if ours.state.updates != theirs.state.updates:
        found.append("the number of updates")
    pairs = zip(*([event for event in _events(one) if event["step"] <= step] for one in (run, other)), strict=False)
    unequal = next((mine["step"] for mine, their in pairs if mine != their), None)
    return found if unequal is None else [*found, f"the metrics from step {unequal} on"]
