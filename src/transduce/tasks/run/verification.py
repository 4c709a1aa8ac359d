"""Verify that a run that was killed and resumed ends like an uninterrupted one, by a few steps of each."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from transduce.errors import TransduceError, count_noun
from transduce.process_environment import child_environment, common_words, module_command
from transduce.tasks.run.run import RunRequest, prepare_run
from transduce.tasks.settings.reading import make_settings, put_setting
from transduce.training.checkpoint import Environment, checkpoints, load_checkpoint
from transduce.training.display import ProgressDisplay
from transduce.training.events import read_events
from transduce.training.loop import CHECKPOINTS

_CHECKPOINT_STEPS = 4  # steps between checkpoints; fewer for a short run
_MIN_STEPS = 6
_STEPS_FOR_MINUTES = 1_000
_DEV_SENTENCES = 4
_TIMES = ("tokens_per_second", "elapsed_seconds", "validation_seconds")
_POLL_SECONDS = 0.02


class ResumeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing a run that was killed and resumed with an uninterrupted one."""

    equal: bool
    """True if both runs are equal bit by bit."""
    killed_after_step: int
    """Last step before the run was killed."""
    resumed_from_step: int
    """Step of the checkpoint that the run resumed from."""
    compared_at_step: int
    """Step at which both runs are compared."""
    differences: list[str]
    """Descriptions of what differs: kinds of tensors, and the first step with other metrics; empty if nothing does."""
    repeatable: bool | None
    """True if two uninterrupted runs are equal; None if that was not tested, as the resumed run is equal to one."""
    environment: Environment
    """The device, instruction set, threads and PyTorch version that the results depend on."""
    notes: list[str]
    """Remarks for the user on settings that were changed for the test."""

    def __str__(self) -> str:
        used = self.environment
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
            return "Equal: weights, optimizer moments, weight average and the metrics of every step agree in every bit."
        differences = f"Not equal: {', '.join(self.differences)}."
        if self.repeatable:
            return f"{differences} Two uninterrupted runs are equal, so resuming is at fault: please report this."
        return (
            f"{differences} Two uninterrupted runs differ as well, so the difference is not due to resuming: sums are "
            f"computed in another order each time on `{self.environment.device}`. `--device cpu` is exact."
        )


def verify_resume(request: RunRequest) -> ResumeReport:
    """Train a few steps in a temporary folder: once killed by SIGKILL and resumed, and once without interruption.

    Args:
        request: the arguments of `train`; `out` is not used.

    Returns:
        A `ResumeReport`, which compares both.

    Raises:
        TransduceError: settings or files are invalid, training fails, or it ends before the run can be killed.
    """
    display = ProgressDisplay()
    with tempfile.TemporaryDirectory(prefix="transduce-verify-") as name:
        return _Verification(request, Path(name), display).report()


class _Verification:
    """A check that a run which is killed and resumed gets the same results as a run without interruption.

    The runs start from copies of one prepared folder: `stopped` is killed and resumed, `whole` runs through. If these
    differ, `again` repeats `whole`, to find out whether training is repeatable at all on this machine.
    """

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
        """Train the runs to compare in separate processes, compare their results, and return a `ResumeReport`."""
        killed, resumed, compared = self._stop_and_resume()
        self.display.say(f"Training again without interruption, to step {compared}.")
        self._train_until("whole", lambda run: _has_checkpoint(run, compared))
        differences = _differences(self.folder / "stopped", self.folder / "whole", compared)
        repeatable = None
        if differences:
            self.display.say("The runs differ. Training once more without interruption.")
            self._train_until("again", lambda run: _has_checkpoint(run, compared))
            repeatable = not _differences(self.folder / "again", self.folder / "whole", compared)
        state = load_checkpoint(_checkpoint(self.folder / "whole", compared)).state
        assert state.environment is not None
        return ResumeReport(
            equal=not differences,
            killed_after_step=killed,
            resumed_from_step=resumed,
            compared_at_step=compared,
            differences=differences,
            repeatable=repeatable,
            environment=state.environment,
            notes=self.notes,
        )

    def _stop_and_resume(self) -> tuple[int, int, int]:
        """Kill a run and resume it; return the last step before the kill, the checkpoint's step and the final step.

        Raises:
            TransduceError: the run ended before it could be killed, or its training failed.
        """
        self.display.say("Training a run that is killed.")
        run = self._train_until("stopped", lambda run: _last_step(run) > self.every and _newest(run) > 0)
        killed, resumed = _last_step(run), _newest(run)
        compared = min(self.last, resumed + 2 * self.every)
        if compared == resumed:
            raise TransduceError(
                f"The run ended after {count_noun(self.last, 'step')}, before it could be killed: set more "
                "`training.steps`."
            )
        self.display.say(f"Killed after step {killed}; resuming from step {resumed} to step {compared}.")
        self._train_until("stopped", lambda run: _has_checkpoint(run, compared))
        return killed, resumed, compared

    def _train_until(self, name: str, ready: Callable[[Path], bool]) -> Path:
        """Run the training command in a separate process, kill it once `ready(folder)` is true, and return the folder.

        The folder's name is `name`. A new folder starts as a copy of the prepared run; the run in an existing one is
        resumed.

        Raises:
            TransduceError: training ended before `ready` was true.
        """
        run = self.folder / name
        if not run.exists():
            shutil.copytree(self.folder / "prepared", run)
        command = [*module_command("transduce"), "train", "--resume", "--out", str(run)]
        command += ["--device", self.request.device, *common_words()]
        command += [] if self.request.threads is None else ["--threads", str(self.request.threads)]
        log = self.folder / "output.log"
        environment = child_environment(stops_with_parent=True)
        with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process:
            try:
                while not ready(run) and process.poll() is None:
                    time.sleep(_POLL_SECONDS)
            finally:
                process.kill()
        if not ready(run):
            last = log.read_text("utf-8", "replace").strip().split("\n")[-1]
            raise TransduceError(f"Training ended before the comparison, with the words: {last}")
        return run


def _shortened(settings: Any) -> tuple[dict[str, Any], list[str]]:
    """Return settings for a short run with frequent checkpoints, and a list of notes for the user.

    A time budget is replaced by a number of steps, which a note states. The other changes do not affect the weights.

    Raises:
        TransduceError: the settings ask for fewer than 6 steps.
    """
    content: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    training, notes = make_settings(content).training, []
    if training.minutes is not None:
        content["training"].pop("minutes")
        put_setting(content, "training.steps", _STEPS_FOR_MINUTES)
        notes.append(
            f"`training.minutes` ({training.minutes:g}) was replaced by {_STEPS_FOR_MINUTES} steps: minutes are "
            "converted to steps once the speed is known, and a run that is stopped before that measures it again."
        )
    steps = training.steps or _STEPS_FOR_MINUTES
    if steps < _MIN_STEPS:
        raise TransduceError(f"`training.steps` must be at least {_MIN_STEPS} for this test, but is {steps}.")
    every = min(_CHECKPOINT_STEPS, steps // 3)
    overrides = {"save_every": every, "validate_every": every + 1, "report_every": 1, "keep_checkpoints": 1_000_000}
    for name, value in (
        overrides | {"patience": 0, "translate_dev": min(training.translate_dev, _DEV_SENTENCES)}
    ).items():
        put_setting(content, f"training.{name}", value)
    return content, notes


def _checkpoint(run: Path, step: int) -> Path:
    return run / CHECKPOINTS / f"step-{step:09d}"


def _has_checkpoint(run: Path, step: int) -> bool:
    return _checkpoint(run, step).is_dir()


def _newest(run: Path) -> int:
    """Return the step of a run's newest checkpoint; 0 if there is none."""
    return next((int(path.name.removeprefix("step-")) for path in checkpoints(run / CHECKPOINTS)), 0)


def _events(run: Path) -> list[dict[str, Any]]:
    """Return a list of the events in a run's metrics.jsonl, dicts without times; empty without the file."""
    events = read_events(run, dict[str, Any])
    return [{name: value for name, value in event.items() if name not in _TIMES} for event in events]


def _last_step(run: Path) -> int:
    return max((event["step"] for event in _events(run)), default=0)


def _differences(run: Path, reference: Path, step: int) -> list[str]:
    """Return texts that name what differs between two runs up to a step; empty if nothing does.

    The texts name kinds of tensors in the checkpoints, the number of updates, and the first step with other metrics.
    """
    ours, theirs = (load_checkpoint(_checkpoint(one, step)) for one in (run, reference))
    different = [
        kind
        for kind, tensors in theirs.tensors.items()
        if not all(torch.equal(ours.tensors[kind][name], tensor) for name, tensor in tensors.items())
    ]
    if ours.state.updates != theirs.state.updates:
        different.append("the number of updates")
    pairs = zip(*([event for event in _events(one) if event["step"] <= step] for one in (run, reference)), strict=False)
    unequal = next((our_event["step"] for our_event, their_event in pairs if our_event != their_event), None)
    return different if unequal is None else [*different, f"the metrics from step {unequal} on"]
