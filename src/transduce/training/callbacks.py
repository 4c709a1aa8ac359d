"""Define callbacks that follow a training run and may stop it, and trackers that send its events to other programs."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from typing_extensions import deprecated

from transduce.deprecation import warn_renamed
from transduce.errors import TransduceError, explain_wrong_types, import_extra
from transduce.training.events import TrainEvent, ValidationEvent, event_numbers
from transduce.ui_language import localized

if TYPE_CHECKING:  # it needs the training loop, which needs this module
    from transduce.training.run_estimate import RunEstimate

# --- callbacks ---


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """The event at the start of a run, or of its continuation."""

    folder: Path
    """The run's folder."""
    step: int
    """The number of steps that the run had taken before; 0 for a new run."""
    steps: int | None
    """The number of steps planned; None: the run has a time budget, and has not decided on the number."""
    settings: Mapping[str, Any]
    """The complete settings of training (`training.*`), by their names."""


class CheckpointEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event after a checkpoint was written."""

    step: int
    """The step of the checkpoint."""
    folder: Path
    """The checkpoint's folder."""


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The event at the end of a run."""

    step: int
    """The number of steps taken."""
    best_step: int | None
    """The step of the validation with the best score; None without a validation of finite loss."""
    best_value: float | None
    """The value of the selection metric at the best validation, greater is better; None: not measured."""
    reason: str
    """Why the run ended: "finished" after its last step, a clause such as "no improvement", or the name of a signal."""


class Callback:
    """A base class of objects that follow a run; a subclass overrides the methods of the events that it needs.

    A method that returns True stops the run after the current step (`on_start`: after the first one), as if the run had
    finished: its model is saved and scored. With several processes, only the first process calls the methods. An
    exception in a method ends the run.
    """

    def on_start(self, event: RunStart) -> bool | None:
        """Receive the event at the start of a run, before its first step; return True to stop the run."""

    def on_estimate(self, event: "RunEstimate") -> None:
        """Receive the estimate of a run's time and memory, after its first steps.

        A dry run calls this method, too, and no other one.
        """
        if self._has_old_method():
            warn_renamed("on_forecast", "on_estimate")
            self.on_forecast(event)

    @deprecated("`on_forecast` is now `on_estimate`; the old name works until version 0.3.")
    def on_forecast(self, event: "RunEstimate") -> None:
        """Call `on_estimate`, under its old name; a subclass that still has the old method gets the estimate by it."""
        if not self._has_old_method():
            self.on_estimate(event)

    def _has_old_method(self) -> bool:
        """Return whether the user's code replaces `on_forecast`, in a subclass or in this callback."""
        return getattr(self.on_forecast, "__func__", None) is not Callback.on_forecast

    def on_report(self, event: TrainEvent) -> bool | None:
        """Receive a report on the last steps, every `training.report_every` steps; return True to stop the run."""

    def on_validation(self, event: ValidationEvent) -> bool | None:
        """Receive the scores of a validation on the dev set; return True to stop the run."""

    def on_checkpoint(self, event: CheckpointEvent) -> bool | None:
        """Receive the event after a checkpoint was written; return True to stop the run."""

    def on_end(self, event: RunEnd) -> bool | None:
        """Receive the event at the end of a run, before the best model is scored; the result has no effect."""


def is_true(result: object) -> bool:
    """Return whether a callback's result is True, as a boolean of Python or NumPy or as a tensor with one boolean.

    Other results, such as the number of characters that a method wrote, do not stop a run.
    """
    is_boolean = isinstance(result, bool) or str(getattr(result, "dtype", "")) in ("bool", "torch.bool")
    return is_boolean and bool(result)


# --- trackers ---


@explain_wrong_types
class Tracker(Callback):
    """A base class of callbacks that log numbers to an experiment tracker.

    A tracker that fails after the start, for example because its server is down, is reported once and then ignored, so
    tracking never ends a run.
    """

    package: str = "transduce"
    """The name of the Python package that the tracker needs, such as "wandb"; by default it needs no other one."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        """Create a tracker.

        Args:
            say: a function that receives a message if the tracker fails later; None: it is printed to standard error.

        Raises:
            TransduceError: the tracker's package is missing.
        """
        self._say = say or (lambda text: print(localized(text), file=sys.stderr))
        self._has_failed = False
        self._module: Any = import_extra(self.package, "track", type(self).__name__)

    def on_start(self, event: RunStart) -> None:
        """Start a run in the experiment tracker, with the settings as the run's parameters.

        Raises:
            TransduceError: the tracker cannot start a run.
        """
        try:
            self.begin(self._module, event)
        except Exception as error:  # of any kind: it is another program's
            raise TransduceError(
                f"{type(self).__name__} could not start a run ({error}): set the tracker up, or leave it out."
            ) from error

    def on_report(self, event: TrainEvent) -> None:
        """Log the numbers of a report on the last steps under names that begin with `train/`."""
        self._log(event)

    def on_validation(self, event: ValidationEvent) -> None:
        """Log the scores of a validation on the dev set under names that begin with `dev/`."""
        self._log(event)

    def on_end(self, event: RunEnd) -> None:
        """End the run in the experiment tracker."""
        self._try(lambda: self.finish(event))

    def begin(self, module: Any, event: RunStart) -> None:
        """Start a run in the experiment tracker; a subclass implements it.

        Args:
            module: the tracker's Python package, imported.
            event: the event at the start of the run, with its settings.
        """
        raise NotImplementedError

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers by name, such as `train/loss`, to the experiment tracker; a subclass implements it.

        `step` is the training step that the numbers belong to.
        """
        raise NotImplementedError

    def finish(self, event: RunEnd) -> None:
        """End the run in the experiment tracker; a subclass implements it."""
        raise NotImplementedError

    def _log(self, event: TrainEvent | ValidationEvent) -> None:
        self._try(lambda: self.log(event_numbers(event), event.step))

    def _try(self, act: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001  (of any kind: it is another program's)
            self._has_failed = True
            self._say(f"{type(self).__name__} failed and is left out from here on: {error}.")


class WandbTracker(Tracker):
    """A tracker that logs a run to Weights & Biases; set $WANDB_MODE to "offline" to send nothing."""

    package = "wandb"

    def __init__(self, project: str = "transduce", say: Callable[[str], None] | None = None, **options: Any) -> None:
        """Create a tracker; `options` such as `name`, `mode` and `dir` are passed to `wandb.init`.

        The options override the defaults, such as the name, which is that of the run's folder.
        """
        super().__init__(say)
        self._options = {"project": project} | options
        self._run: Any = None

    def begin(self, module: Any, event: RunStart) -> None:
        """Start a run in Weights & Biases that has the name of the run's folder."""
        named = {"name": event.folder.name, "config": dict(event.settings)}
        self._run = module.init(**named | self._options)

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers by name to Weights & Biases, at a training step."""
        self._run.log(numbers, step=step)

    def finish(self, event: RunEnd) -> None:
        """Store the best validation's step and value in Weights & Biases, and end the run there."""
        self._run.summary.update({"best_step": event.best_step, "best_value": event.best_value})
        self._run.finish()


class TrackioTracker(Tracker):
    """A tracker that logs a run to trackio, which keeps it on this machine; `trackio show` draws it."""

    package = "trackio"

    def __init__(self, project: str = "transduce", say: Callable[[str], None] | None = None, **options: Any) -> None:
        """Create a tracker that logs to trackio; `options` are passed to `trackio.init`."""
        super().__init__(say)
        self._options = {"project": project} | options

    def begin(self, module: Any, event: RunStart) -> None:
        """Start a run in trackio that has the name of the run's folder."""
        module.init(**{"name": event.folder.name, "config": dict(event.settings), "embed": False} | self._options)

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers by name to trackio, at a training step."""
        self._module.log(numbers, step=step)

    def finish(self, event: RunEnd) -> None:  # noqa: ARG002
        """End the run in trackio."""
        self._module.finish()


class MlflowTracker(Tracker):
    """A tracker that logs a run to MLflow, by default to $MLFLOW_TRACKING_URI."""

    package = "mlflow"

    def __init__(
        self, experiment: str = "transduce", tracking_uri: str | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        """Create a tracker; `tracking_uri` is a server or a folder (None: MLflow's default)."""
        super().__init__(say)
        self._experiment, self._tracking_uri = experiment, tracking_uri

    def begin(self, module: Any, event: RunStart) -> None:
        """Start a run in MLflow that has the name of the run's folder."""
        if self._tracking_uri is not None:
            module.set_tracking_uri(self._tracking_uri)
        module.set_experiment(self._experiment)
        module.start_run(run_name=event.folder.name)
        module.log_params({name: str(value)[:250] for name, value in event.settings.items() if value is not None})

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers by name to MLflow, at a training step."""
        self._module.log_metrics(numbers, step=step)

    def finish(self, event: RunEnd) -> None:
        """End the run in MLflow; a run that a signal stopped is marked as killed."""
        self._module.end_run("KILLED" if event.reason.startswith("SIG") else "FINISHED")


@explain_wrong_types
class TensorBoardTracker(Tracker):
    """A tracker that links the TensorBoard files of runs into a common folder, so that TensorBoard shows all runs.

    Every run writes TensorBoard files into its own folder, even without a tracker.
    """

    def __init__(self, folder: str | Path, say: Callable[[str], None] | None = None) -> None:
        """Create a tracker that links runs into `folder`, the folder that TensorBoard shows."""
        super().__init__(say)
        self._folder = Path(folder)

    def begin(self, module: Any, event: RunStart) -> None:  # noqa: ARG002
        """Link the run's folder `tensorboard` into the common folder, under the run's name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        link = self._folder / event.folder.name
        if not link.exists():
            os.symlink((event.folder / "tensorboard").absolute(), link, target_is_directory=True)

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log nothing, since a run writes TensorBoard's files itself."""

    def finish(self, event: RunEnd) -> None:
        """Do nothing, since a run closes TensorBoard's files itself."""


TRACKERS: dict[str, type[Tracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker, "trackio": TrackioTracker}
"""A dict from the names that `--track` takes to the classes of the trackers that it starts."""
