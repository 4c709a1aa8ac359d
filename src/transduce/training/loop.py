"""Train a model: take steps, and at intervals report, validate and save checkpoints.

It does not depend on text or translation: the loss of a batch and the validation are functions that the caller
passes.
"""

import contextlib
import math
import signal
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from transduce.data.batches import Plan
from transduce.errors import TransduceError, count_noun
from transduce.machine import DTYPES
from transduce.training.callbacks import Callback, CheckpointEvent, RunEnd, RunStart, is_true
from transduce.training.checkpoint import (
    Best,
    Checkpoint,
    Environment,
    RunState,
    average_weights,
    check_kinds,
    checkpoint_path,
    differences,
    load_newest,
    refuse_missing_run,
    save_checkpoint,
    tolerate_full_disk,
)
from transduce.training.display import ProgressDisplay, format_duration
from transduce.training.distributed import Processes, current_processes
from transduce.training.events import NO_LOG, Durations, EventLog, Log, StepSums, ValidationEvent
from transduce.training.loss import Loss, StepTotals
from transduce.training.loss_spikes import (
    NO_FINITE_LOSS,
    DropoutMonitor,
    LossWindow,
    MicroBatch,
    NonFiniteOrigin,
    SkippedStep,
    find_origin,
)
from transduce.training.memory import explain_step_out_of_memory, try_batches
from transduce.training.optimizer import FlatOptimizer, Optimizer, refuse_buffers_of_one_process
from transduce.training.schedule import Decision, StepClock, StepPlan, step_rates
from transduce.training.settings import ResolvedTraining
from transduce.training.stopping import AbandonedError, BestModelSelector, Interruption

# --- safeguards ---


class Safeguards(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs for the checks, records and messages of a run, which do not change what it learns."""

    largest: Sequence[Any] = ()
    """Batches of the sizes that need most memory, whose gradients are computed before the first step."""
    describe: Callable[[Any], dict[str, Any]] | None = None
    """A function from a batch to its description, a dict that JSON can hold, for the record of a skipped step; None: no
    description.
    """
    batch_setting: str = "training.batch_tokens"
    """The dotted name of the setting of a step's size, for messages."""
    environment: Environment | None = None
    """The run's environment, which is stored and compared on resume; None: it is not stored."""
    settings: Mapping[str, Any] = types.MappingProxyType({})
    """The run's settings, nested as in a settings file, which every checkpoint stores; empty: they are not stored."""


class TimeUse(msgspec.Struct, frozen=True, kw_only=True):
    """The time that a run with a time budget (`training.minutes`) needs outside its steps and validations."""

    overhead_seconds: float = 0.0
    """The seconds of wall clock that preparations have taken in this process."""
    end_validations: float = 0.0
    """The duration of the final evaluation, for which time is kept, as a multiple of the duration of a validation."""
    validation_steps: float | None = None
    """The expected duration of a validation as a number of steps, until one is measured; None: unknown."""


# --- training loop ---


CHECKPOINTS = "checkpoints"
_STEPS_BETWEEN_SHARING = 10  # after so many steps, processes exchange the clock's decisions
_NO_DECISION = Decision(0, 0, 0)
_MIN_PROBED = 3  # minimum number of steps that a probe measures
# The mean duration of a step is known after this many steps, or this time, without the first step.
_SETTLED_STEPS, _SETTLED_SECONDS = 10, 5.0


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """The step, the best score and the reason with which a training run ended."""

    step: int
    """Number of steps taken, including skipped ones."""
    epochs: float = 0.0
    """Number of passes over the training examples; 0 in results that earlier versions stored."""
    steps: int | None
    """Number of steps planned; None: a run with a time budget ended before it decided on the number."""
    best_step: int | None
    """The step of the best validation, whose weights are kept; None without a validation of finite loss."""
    best_value: float | None
    """The value of the selection metric at the best validation, greater is better; None: not measured."""
    elapsed_seconds: float
    """Training time in seconds of wall clock, over all processes that have continued the run one after another."""
    time_plan: tuple[Decision, ...] = ()
    """The clock's decisions on the number of steps in a run with a time budget, by which the run can be repeated;
    else empty.
    """
    reason: str
    """"finished", why training stopped before its last step, or the name of the signal that stopped the run."""


class StepTimer:
    """A timer of the mean duration of a run's first steps, without the very first one, which compiles kernels."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def add(self, seconds: float) -> float | None:
        """Record the duration of a step in seconds; return the mean when it is settled, and otherwise None.

        The mean leaves out the first step. It is settled after 10 further steps, or after at least two that took 5
        seconds together. It is returned once; later steps are not recorded.
        """
        if self._is_settled():
            return None
        self._seconds.append(seconds)
        return sum(self._seconds[1:]) / (len(self._seconds) - 1) if self._is_settled() else None

    def _is_settled(self) -> bool:
        later = self._seconds[1:]
        return len(later) >= _SETTLED_STEPS or (len(later) > 1 and sum(later) >= _SETTLED_SECONDS)


def make_optimizer(
    model: nn.Module, loss: Callable[[Any], Loss], settings: ResolvedTraining, processes: Processes
) -> tuple[Optimizer, Callable[[Any], Loss]]:
    """Create a model's optimizer, and return it in a pair with the loss function.

    If the model is divided among processes (`training.sharded`), the function is replaced by a module that gathers the
    parameters.

    Raises:
        TransduceError: there are several processes, and the model has buffers that would differ between them or would
            not be stored.
    """
    refuse_buffers_of_one_process(model, processes.count, sharded=settings.sharded)
    dtype = DTYPES[settings.precision]
    if not settings.sharded or processes.count == 1:
        return FlatOptimizer(model, settings, dtype, processes), loss
    from transduce.training.sharding import ShardedOptimizer, shard  # imports FSDP, which takes seconds

    sharded = shard(model, loss, dtype, next(model.parameters()).device.type)
    return ShardedOptimizer(sharded, settings, processes), sharded


class Trainer:
    """A training run of a model: its optimizer, the current step and the best validation so far; `run` trains."""

    def __init__(
        self,
        *,
        model: nn.Module,
        loss: Callable[[Any], Loss],
        batches: Plan[Any],
        settings: ResolvedTraining,
        folder: Path,
        validate: Callable[[Mapping[str, Tensor], int], ValidationEvent] | None = None,
        keep_model: Callable[[Mapping[str, Tensor], ValidationEvent | None], None] | None = None,
        display: ProgressDisplay | None = None,
        safeguards: Safeguards | None = None,
    ) -> None:
        """Create a run at step 0.

        Args:
            model: the model to train.
            loss: a function from a batch to the model's `Loss`.
            batches: the plan of the run's micro-batches.
            settings: the settings of training.
            folder: the run's folder, for checkpoints and logs.
            validate: a function that scores weights on the dev set. Its arguments are the weights by name and the step.
                None: the run does not validate.
            keep_model: a function that writes the model folder. Its arguments are the weights by name and their
                validation, which is None if the run does not validate. None: no model folder is written.
            display: shows the progress; None: a display on standard error.
            safeguards: inputs of checks and records; None: there are none.

        Raises:
            TransduceError: the model has buffers that several processes cannot share.
        """
        self.model = model
        self.processes = current_processes()
        self.batches = batches
        self.settings = settings
        self.folder = folder
        self.validate = validate
        self.keep_model = keep_model
        self.display = display or ProgressDisplay()
        self.safeguards = safeguards or Safeguards()
        self.optimizer, self.loss = make_optimizer(model, loss, settings, self.processes)
        self.plan = StepPlan(settings.steps, settings.time_plan)
        self.step = 0
        self.elapsed_seconds = 0.0
        self._best_model = BestModelSelector(settings)
        self._dropout = DropoutMonitor(model)
        self.time_use = TimeUse()
        self.callbacks: Sequence[Callback] = ()
        self.after_first_steps: Callable[[float], None] | None = None
        """A function that is called once with the mean seconds of the first steps; None: there is none."""
        self._stopped_by: str | None = None
        self._validation_due = False
        self._has_folder = False  # True once the run has written into its folder
        self._stop_signaled = False
        self._report = StepSums()
        self._loss_window = LossWindow()

    @property
    def steps(self) -> int | None:
        """The number of steps of the whole run; None while a run with a time budget has not decided on it."""
        return self.plan.steps

    def resume(self) -> bool:
        """Resume from the newest undamaged checkpoint in the run's folder, and report each damaged one.

        Return True if there is such a checkpoint; if not, return False, and the run starts at step 0.
        """
        checkpoint, refused = load_newest(self.folder / CHECKPOINTS)
        for sentence in refused:
            self.display.say(sentence)
        if checkpoint is None:
            return False
        self.resume_from(checkpoint)
        return True

    def resume_from(self, checkpoint: Checkpoint) -> None:
        """Set the trainer to the state of a checkpoint, and report differences of machine and versions since then.

        Raises:
            TransduceError: the checkpoint is of another model.
        """
        check_kinds(checkpoint, self.optimizer.state(), self.optimizer.rows)
        state = checkpoint.state
        self.optimizer.load_state(checkpoint.all_tensors, state.updates)
        self.step, self.elapsed_seconds = state.step, state.elapsed_seconds
        self.plan.steps = self.settings.steps or state.steps
        if self.settings.minutes is not None and not self.settings.time_plan:
            overhead = self.time_use.overhead_seconds + state.overhead_seconds
            self.time_use = msgspec.structs.replace(self.time_use, overhead_seconds=overhead)
            self.plan.restore(state.time_plan)
        # A best value of another metric cannot be compared: the next validation becomes the best so far. The same holds
        # for the skill in a checkpoint of a format below 4, which may be measured against another baseline.
        self._best_model.best, by = state.best, self.settings.best_by
        if state.best_by not in (None, by) or (by == "skill" and state.format_version < 4):
            best = msgspec.structs.replace(state.best, value=None, validations_since=0, contributions=[])
            self._best_model.best = best
        if state.dropout_off:
            self._dropout.disable()
        # The last step is validated, also if it is the last one only since this continuation.
        self._validation_due = state.validation_due or 0 < state.step == self.steps != state.steps
        self._report, self._loss_window = state.report, state.loss_window
        self._compare_environments(state.environment)

    def _compare_environments(self, before: Environment | None) -> None:
        now = self.safeguards.environment
        changed = list(differences(before, now)) if before and now else []
        if changed:
            self.display.say(
                f"The run continues, but not bit for bit as without the interruption: {', '.join(changed)}."
            )

    def run(self) -> TrainResult:
        """Train the model, save a checkpoint at the end, and return a `TrainResult`.

        Training ends after the last step, when nothing improves, when a signal arrives, or when a callback stops it.

        Raises:
            TransduceError: memory or disk space ran out, training diverged, no validation had a finite loss, or the
                run's folder is gone.
        """
        log: Log = NO_LOG
        if self.processes.is_first:
            log = EventLog(self.folder, resume_at=self.step, validate_again=self._validation_due)
            self._has_folder = True
        self.model.train()
        self.display.start(self.step, self.steps)
        settings = msgspec.to_builtins(self.settings)
        self._notify("on_start", RunStart(folder=self.folder, step=self.step, steps=self.steps, settings=settings))
        try:
            with Interruption(alone=self.processes.count == 1) as interruption:
                reason = self._run_until_stopped(log, interruption)
                self._save()
                if interruption.requested:
                    reason = interruption.requested.name
        except FileNotFoundError:
            self._check_folder()
            raise
        finally:
            self.display.stop()
            log.close()
        best = self._best_model.best
        self._notify("on_end", RunEnd(step=self.step, best_step=best.step, best_value=best.value, reason=reason))
        if best.step is None and best.validations_since and not interruption.requested:
            raise TransduceError(NO_FINITE_LOSS)
        return TrainResult(
            step=self.step,
            epochs=self._epochs(),
            steps=self.steps,
            best_step=best.step,
            best_value=best.value,
            elapsed_seconds=self.elapsed_seconds,
            time_plan=tuple(self.plan.decisions),
            reason=reason,
        )

    def probe(
        self, seconds: float, max_steps: int, validations: int, limit: float = math.inf
    ) -> tuple[Durations, list[ValidationEvent]]:
        """Measure a run: take real steps for some seconds, validate, and save once.

        The trainer cannot continue its run afterwards.

        Args:
            seconds: the time for steps after the first one.
            max_steps: the largest number of steps.
            validations: how many validations to make, evenly spaced.
            limit: the time for everything in seconds. If full steps would take too long, some micro-batches are timed
                instead, and nothing is validated or saved.

        Returns:
            A pair: the durations, and a list of the validation events. Without a validation, its duration is NaN.

        Raises:
            KeyboardInterrupt: a signal arrived.
            TransduceError: memory or disk space ran out.
        """
        self.callbacks = ()  # which would receive the checkpoint of a run that does not exist
        self.model.train()
        times, events, validation_seconds = list[float](), list[ValidationEvent](), math.nan
        weights: Mapping[str, Tensor] = {}
        try:
            with Interruption() as interruption:
                started_at = time.monotonic()
                self._try_largest(interruption)
                if (slow := self._slow_step(interruption, limit)) is not None:
                    return Durations(first_step=slow, step=slow, validation=math.nan), events
                self._take_step(interruption)
                first = time.monotonic() - started_at
                for part in range(1, validations + 1):
                    share = part / validations
                    while self.step < share * max_steps and (len(times) < _MIN_PROBED or sum(times) < share * seconds):
                        before = time.monotonic()
                        self._take_step(interruption)
                        times.append(time.monotonic() - before)
                    weights = self.optimizer.weights_to_keep()
                    validated_at = time.monotonic()
                    if self.validate is not None:
                        with interruption.abandonable():
                            events.append(self.validate(weights, self.step))
                        self.model.train()
                    validation_seconds = time.monotonic() - validated_at
                    if time.monotonic() - started_at + validation_seconds > limit:
                        break
                kept_at = time.monotonic()
                self._keep(weights, events[-1] if events else None)
                saved_at = time.monotonic()
                self._save()
        except AbandonedError:
            raise KeyboardInterrupt from None
        durations = Durations(
            first_step=first,
            step=sum(times) / len(times) if times else first,
            validation=validation_seconds,
            keep=saved_at - kept_at,
            save=time.monotonic() - saved_at,
        )
        return durations, events

    def _slow_step(self, interruption: Interruption, limit: float) -> float | None:
        """Estimate the duration of a step from micro-batches, if full steps would exceed the time limit.

        In this case, one step of a single micro-batch is taken, `settings.accumulate` becomes 1, and the result is the
        duration of a full step in seconds. If full steps stay within the limit, no step is taken, and the result is
        None.
        """
        accumulate, micro_seconds = self.settings.accumulate, math.inf
        for number in range(2):  # the first one may compile kernels
            started_at = time.monotonic()
            with interruption.abandonable(), self._explain_out_of_memory("step 1"):
                self._accumulate_gradient(number % accumulate)
            micro_seconds = min(micro_seconds, time.monotonic() - started_at)
            self.optimizer.discard_gradient()
            if micro_seconds * accumulate * (1 + _MIN_PROBED) <= limit / 2:  # the other half is for validations
                return None
        self.display.say(
            f"A step takes about {format_duration(micro_seconds * accumulate)} here, so the dry run times single "
            f"micro-batches ({accumulate} to a step) and estimates the time of a validation."
        )
        self.settings = msgspec.structs.replace(self.settings, accumulate=1)
        started_at = time.monotonic()
        self._take_step(interruption)
        return time.monotonic() - started_at + micro_seconds * (accumulate - 1)

    def _run_until_stopped(self, log: Log, interruption: Interruption) -> str:
        try:
            return self._run_steps(log, interruption)
        except AbandonedError:
            number = interruption.requested or signal.SIGTERM
            sentence = f"{number.name}: saving the run at step {self.step:,}"
            self.display.say(f"{sentence}. Ctrl-C now stops without saving." if interruption.alone else f"{sentence}.")
            return number.name

    def _run_steps(self, log: Log, interruption: Interruption) -> str:
        self.processes.wait()  # the first one may take long to start, with callbacks and a base model to validate
        started_at = time.monotonic() - self.elapsed_seconds
        self._start_clock()
        if self._validation_due:
            self._validate(log, interruption)
        if (reason := self._best_model.stop_reason()) is not None:
            return reason
        if self.steps is None or self.step < self.steps:
            self._try_largest(interruption)
        timer = StepTimer()
        while self.steps is None or self.step < self.steps:
            before = time.monotonic()
            parts, sums = self._take_step(interruption)
            self.elapsed_seconds = time.monotonic() - started_at
            self._decide_steps(seconds := time.monotonic() - before)
            if (mean := timer.add(seconds)) is not None and self.after_first_steps is not None:
                self.after_first_steps(mean)
            self.display.advance(self.step, self.steps, self._report.loss, self._report.tokens_per_second)
            last = self.step == self.steps
            if self.step % self.settings.report_every == 0 or last:
                self._write_report(log)
            self._stop_if_diverged(sums.divisor)
            if self.plan.is_due(self.step, self.settings.validate_every):
                self._check_dropout(parts, sums, last=last)
                self._validate(log, interruption)
            self.elapsed_seconds = time.monotonic() - started_at
            if self._stop_signaled:
                raise AbandonedError
            reason = self._stop_reason(log, interruption)
            if reason is None and not last and self.plan.is_due(self.step, self.settings.save_every):
                with tolerate_full_disk(self.display.say, "The checkpoint"):
                    self._save()
                reason = self._stop_reason(log, interruption)
            if reason is not None:
                return reason
        return "finished"

    def _stop_reason(self, log: Log, interruption: Interruption) -> str | None:
        """Return why the run stops after the current step; None: it goes on.

        If a callback stops the run before its first validation, the model is validated now.
        """
        reason, best = self._best_model.stop_reason() or self._shared_stop(), self._best_model.best
        if reason is not None and best.step is None and not best.validations_since:
            self._validate(log, interruption)
        return reason

    def _notify(self, name: str, event: Any) -> None:
        """Call the method `name` of each callback in the first process; store the first callback that stops the run."""
        for callback in self.callbacks if self.processes.is_first else ():
            if is_true(getattr(callback, name)(event)):
                self._stopped_by = self._stopped_by or f"stopped by {type(callback).__name__}"

    def _shared_stop(self) -> str | None:
        """Return why a callback stops the run, the same in all processes; None if no callback does.

        Only the first process has callbacks, so it sends the reason to the others.
        """
        if not self.callbacks or self.processes.count == 1:
            return self._stopped_by
        return self.processes.broadcast(self._stopped_by or "", str) or None

    def _try_largest(self, interruption: Interruption) -> None:
        """Compute the gradients of the largest batches before the first step, so that a lack of memory shows early."""
        largest, batch_setting = self.safeguards.largest, self.safeguards.batch_setting
        if largest:
            self.display.say(f"Trying the largest batch (`{batch_setting}` {self.settings.batch_tokens:,}).")
        with interruption.abandonable(), self._explain_out_of_memory("the largest batch of the corpus"):
            try_batches(self.optimizer, self.loss, largest)

    def _explain_out_of_memory(self, what: str) -> Any:
        size, accumulate = self.settings.batch_tokens, self.settings.accumulate
        return explain_step_out_of_memory(what, self.safeguards.batch_setting, size, accumulate)

    def _take_step(self, interruption: Interruption) -> tuple[list[MicroBatch], StepTotals]:
        """Run one training step; return a pair: this process's micro-batches, and loss totals over all processes.

        A step with a bad loss or gradient changes no weights and is reported.

        Raises:
            AbandonedError: a signal arrived before all gradients were computed; no weight was updated.
        """
        started_at = time.monotonic()
        step, sums = self.step + 1, StepTotals()
        parts: list[MicroBatch] = []
        with interruption.abandonable(), self._explain_out_of_memory(f"step {step}"):
            for number in range(self.settings.accumulate):
                loss, part = self._accumulate_gradient(number)
                parts.append(part)
                sums = sums.add(loss)
        sums = sums.sum_over(self.processes, stop=interruption.requested is not None)
        rate, weight_decay = step_rates(step, self.settings, self.steps, self.plan.decisions)
        mean, limit = sums.total / (sums.divisor or 1.0), self._loss_window.limit()
        high = math.isfinite(mean) and mean > limit
        if discarded := high or sums.divisor == 0.0:
            self.optimizer.discard_gradient()
        norm = math.nan if discarded else self.optimizer.step(sums.divisor, rate, weight_decay)
        self._report.add(sums, norm, rate, time.monotonic() - started_at)
        if math.isfinite(norm):
            self._loss_window.record_accepted(step, mean)
        else:
            self._loss_window.skipped(high=high)
            self._report_skipped_step(SkippedStep(step, parts, mean, limit, norm, rate, sums.divisor))
        self.step = step
        self._stop_signaled = sums.stop > 0 and self.processes.count > 1
        return parts, sums

    def _check_dropout(self, parts: Sequence[MicroBatch], sums: StepTotals, *, last: bool) -> None:
        """Disable dropout if the loss of a step's batches is more than 5 % higher without dropout than with it.

        The model has then come to depend on the noise. Nothing is done at the last step, or if `training.adapt_dropout`
        is false.
        """
        if self.settings.adapt_dropout and self._dropout.is_active and not last:
            losses = (self._seeded_loss(part.batch, part.position) for part in parts)
            (without,) = self.processes.sum([self._dropout.negative_log_likelihood_without_dropout(losses)])
            if sentence := self._dropout.judge(self.step, sums, without):
                self.display.say(sentence)

    def _accumulate_gradient(self, number: int) -> tuple[Loss, MicroBatch]:
        """Add the gradient of micro-batch `number` to the step's gradient; return a pair, `Loss` and `MicroBatch`."""
        position = self.step * self.settings.accumulate + number
        batch = self.batches.batch(*divmod(position, len(self.batches)))
        self.optimizer.begin_batch(last=number == self.settings.accumulate - 1)
        loss = self._seeded_loss(batch, position)
        mean = loss.total.detach() / (loss.divisor or 1.0)
        # A non-finite gradient makes the optimizer skip this step in every process. No value is read back before the
        # whole backward pass has been launched on the GPU.
        (loss.total * torch.where(mean.isfinite(), 1.0, math.nan)).backward()
        self.optimizer.finish_batch()
        return loss, MicroBatch(position, batch, float(mean))

    def _seeded_loss(self, batch: Any, position: int) -> Loss:
        _set_seed(_seed(self.settings.seed, position, self.processes.rank), next(self.model.parameters()).device)
        loss = self.loss(batch)
        # A process without rows must take part in the gradient, with the row of another process.
        return loss.uncounted() if getattr(batch, "is_stand_in", False) else loss

    def _report_skipped_step(self, skipped: SkippedStep) -> None:
        """Print why a training step was skipped, and write a record of its batch and the cause to a file.

        Of several processes, only the first and those with a bad micro-batch do so.
        """
        first, origin = skipped.suspects[0], NonFiniteOrigin()
        if self.processes.count > 1 and not (skipped.at_fault or self.processes.is_first):
            return  # the cause lies in another process
        if self.processes.count == 1 and not skipped.is_high and not skipped.is_empty:
            origin = find_origin(self.model, lambda: self._seeded_loss(first.batch, first.position))
            self.optimizer.discard_gradient()
        path = skipped.write(self.folder, self.safeguards.describe, origin)
        sentence = f"Step {skipped.step:,} changed nothing: {skipped.reason}"
        self.display.say(f"{sentence}. The batch is in {path}." if path else f"{sentence}.")

    def _stop_if_diverged(self, divisor: float) -> None:
        """Stop the run if training has diverged, or if the last steps had no targets.

        `divisor` is the sum of the weights of the last step's targets.

        Raises:
            TransduceError: training has diverged, or has no targets.
        """
        if divisor == 0.0 and self._loss_window.skips_too_many:
            raise TransduceError(
                f"No target of the last steps (until step {self.step}) has a weight above 0 in the loss: correct the "
                "weights of the training data (`data.weight_column`), or the objective, whose losses count no targets."
            )
        verdict = self._loss_window.verdict(self.step)
        if verdict is not None:
            raise TransduceError(
                f"{verdict}: lower `training.learning_rate` ({self.settings.learning_rate:g}) or raise "
                f"`training.warmup_steps` ({self.settings.warmup_steps})."
            )

    def _start_clock(self) -> None:
        """Start the clock of a run with a time budget.

        There is no clock if `time_plan` in the settings already determines the number of steps.
        """
        settings = self.settings
        if settings.minutes is not None and not settings.time_plan:
            self.plan.clock = StepClock(
                60.0 * settings.minutes,
                validates=self.validate is not None or not self.processes.is_first,
                every=settings.validate_every,
                end_validations=self.time_use.end_validations,
                validation_steps=self.time_use.validation_steps,
            )

    def _decide_steps(self, step_seconds: float) -> None:
        """Set the number of steps of a run with a time budget.

        With `time_plan` in the settings, the number comes from that plan. Otherwise it comes from the run's clock,
        which estimates how many steps fit into the time. A new decision of the clock is added to `self.plan`. Without a
        plan and a clock, the number does not change.

        Args:
            step_seconds: the duration of the last step.
        """
        if self.settings.time_plan:
            self.plan.follow(self.step)
        if self.plan.clock is None:
            return
        self.plan.clock.add_step(step_seconds)
        decisions = self.plan.decisions
        if decisions and self.processes.count > 1 and self.step % _STEPS_BETWEEN_SHARING:
            return
        used_seconds = self.elapsed_seconds + self.time_use.overhead_seconds
        decision = self.plan.clock.decide(self.step, used_seconds, decisions)
        decision = self.processes.broadcast(decision or _NO_DECISION, Decision)
        if decision == _NO_DECISION:
            return
        if not decisions:
            self.display.say(
                f"{self.settings.minutes:g} min are about {count_noun(decision.steps, 'step')} at the current speed."
            )
        self.plan.add(decision)

    def _epochs(self) -> float:
        return self.step * self.settings.accumulate / len(self.batches)

    def _write_report(self, log: Log) -> None:
        event = self._report.event(self.step, self._epochs(), self.elapsed_seconds)
        self._report = StepSums()
        log.write(event)
        self._notify("on_report", event)
        left = None if self.steps is None else (self.steps - self.step) * self.elapsed_seconds / self.step
        self.display.report(event, self.steps, left)

    def _validate(self, log: Log, interruption: Interruption) -> None:
        """Validate the model in the first process, and keep its weights if it is the best so far.

        Raises:
            AbandonedError: a signal arrived before the validation was complete; it will be repeated.
        """
        self._validation_due = True
        if self._stop_signaled:
            raise AbandonedError
        started_at = time.monotonic()
        weights = self._averaged_weights()
        is_done = not self.processes.is_first or self._validate_in_first_process(weights, log, interruption)
        # `torchrun` kills 30 seconds after its signal, and a validation alone may take longer.
        if not self.processes.broadcast(is_done, bool):
            raise AbandonedError
        self._best_model.best = self.processes.broadcast(self._best_model.best, Best)
        self._validation_due = False
        if self.plan.clock is not None:
            self.plan.clock.add_validation(time.monotonic() - started_at)

    def _averaged_weights(self) -> Mapping[str, Tensor]:
        """Return the weights to keep by name: those of the optimizer (a moving average, if there is one).

        With `training.average_checkpoints`, they are averaged with those of the last checkpoints; damaged checkpoints
        are reported and left out.
        """
        weights = self.optimizer.weights_to_keep()
        if not self.settings.average_checkpoints or not self.processes.is_first:
            return weights
        steps = self.plan.last_saved(self.step - 1, self.settings.save_every, self.settings.average_checkpoints - 1)
        mean, refused = average_weights(weights, self.folder / CHECKPOINTS, steps)
        for sentence in refused:
            self.display.say(f"{sentence} The mean of the last checkpoints leaves it out.")
        return mean

    def _validate_in_first_process(self, weights: Mapping[str, Tensor], log: Log, interruption: Interruption) -> bool:
        """Validate the model and record its scores; return False if a signal interrupted the validation, else True.

        Without a validation function, the model is only kept.
        """
        if self.validate is None:
            self._keep(weights, None)
            return True
        try:
            with interruption.abandonable(by_itself=True):
                event = self.validate(weights, self.step)
        except AbandonedError:
            return False
        finally:
            self.model.train()
        self._judge(event, weights, log)
        return True

    def _judge(self, event: ValidationEvent, weights: Mapping[str, Tensor], log: Log) -> None:
        better = self._best_model.is_better(event)
        log.write(event)
        self._notify("on_validation", event)
        self.display.validation(event, best=better)
        self._best_model.record(event, kept=better and self._keep(weights, event))

    def _keep(self, weights: Mapping[str, Tensor], event: ValidationEvent | None) -> bool:
        """Write the model folder by `keep_model`, and return whether it was written; True without such a function.

        If the disk is full, a message is shown and the result is False. At the last step, it is an error instead.

        Raises:
            TransduceError: the run's folder is gone.
        """
        self._check_folder()
        if self.keep_model is None:
            return True
        tolerance = tolerate_full_disk(self.display.say, f"The model of step {self.step:,}")
        with contextlib.nullcontext() if self.step == self.steps else tolerance:
            self.keep_model(weights, event)
            return True
        return False

    def _check_folder(self) -> None:
        """Raise an error if the run's folder has gone since it was opened, instead of creating another one."""
        if self._has_folder:
            refuse_missing_run(self.folder)

    def _save(self) -> None:
        self._check_folder()
        state = RunState(
            step=self.step,
            updates=self.optimizer.updates,
            steps=self.steps,
            best=self._best_model.best,
            best_by=self.settings.best_by,
            elapsed_seconds=self.elapsed_seconds,
            overhead_seconds=self.time_use.overhead_seconds,
            time_plan=list(self.plan.decisions),
            validation_due=self._validation_due,
            dropout_off=self._dropout.is_off,
            report=self._report,
            loss_window=self._loss_window,
            environment=self.safeguards.environment,
            settings=dict(self.safeguards.settings),
        )
        checkpoint = Checkpoint(state, self.optimizer.state(), self.optimizer.rows)
        folder = self.folder / CHECKPOINTS
        # The checkpoint of this step counts itself if it is a regular one.
        averaged = self.plan.last_saved(self.step, self.settings.save_every, self.settings.average_checkpoints)
        kept = self.settings.keep_checkpoints
        save_checkpoint(folder, checkpoint, keep=kept, averaged=averaged, processes=self.processes)
        self._notify("on_checkpoint", CheckpointEvent(step=self.step, folder=checkpoint_path(folder, self.step)))


def _seed(seed: int, position: int, rank: int) -> int:
    """Return the random seed of one process's micro-batch, a number below 2^63.

    Equal arguments give equal seeds, different ones almost always different seeds. PyTorch's random numbers on the CPU
    depend on the low 32 bits only: among 10,000 micro-batches, two have the same ones with a probability of 1 %.
    """
    return (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + rank * 0x8CB92BA72F3D8DD7 + 1) % 2**63


def _set_seed(seed: int, device: torch.device) -> None:
    """Set the seed of a device's random numbers and of the CPU's.

    On a CPU, `torch.manual_seed` is avoided: it takes 0.7 ms for each kind of device that PyTorch has not opened.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
