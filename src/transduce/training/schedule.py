"""Compute learning rates as pure functions of the step, and plan how many steps a run takes."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, get_args

# --- plan of a run with a time budget ---
# The clock decides, several dozen times, at which step the run will end. The learning rate and the validations are pure
# functions of the step and of these decisions, which a run stores. So a resumed or replayed run takes the same steps.


class Decision(NamedTuple):
    """A decision of the clock (`StepClock`) of a run with a time budget: how many steps the run will take."""

    step: int
    """The step after which the number of steps was decided."""
    steps: int
    """The step at which the run will end by this decision."""
    validations: int
    """The number of validations of the whole run by this decision."""


class Position(NamedTuple):
    """A step's position in a learning-rate schedule.

    If the number of steps of the run is replanned, the schedule keeps its length, and its `speed` changes.
    """

    step: float
    """The position in the schedule, in steps from 0 to `steps`."""
    steps: int
    """The length of the schedule in steps."""
    speed: float
    """How many steps of the schedule one step of the run takes: 1.0 as first planned, less if the run takes more steps,
    more if it takes fewer.
    """


def position_of(step: int, plan: Sequence[Decision]) -> Position | None:
    """Return the position of a step in the learning-rate schedule; None if no decision was taken before the step.

    Each decision divides the rest of the schedule evenly among the remaining steps.
    """
    taken = [decision for decision in plan if decision.step < step]
    if not taken:
        return None
    position, length = float(taken[0].step), taken[0].steps
    for before, after in pairwise(taken):
        position += (after.step - before.step) * (length - position) / (before.steps - before.step)
    last = taken[-1]
    speed = (length - position) / (last.steps - last.step)
    return Position(min(position + (step - last.step) * speed, float(length)), length, speed)


def validations_until(step: int, plan: Sequence[Decision]) -> int:
    """Return how many validations of a run are due from its start up to a step.

    The validations are evenly spaced in the learning-rate schedule. Their number follows from `plan`, the clock's
    decisions; without decisions, it is 0.
    """
    if not plan or (position := position_of(step, plan) or Position(step, plan[0].steps, 1.0)).step <= 0:
        return 0
    in_effect = [decision for decision in plan if decision.step < step] or plan[:1]
    return int(in_effect[-1].validations * position.step / position.steps + 1e-9)


# All shares are of the time budget. The first decision needs this many steps and this share of the time, but is not
# later than the latest share.
_FIRST_STEPS, _FIRST_SHARE, _LATEST_SHARE = 10, 0.04, 0.2
_DECISIONS = 50  # maximum number of decisions, evenly spread over the time
_RECENT_SHARE = 0.05  # the steps in this latest part of the time determine the current speed
# Validations: their maximum number, the minimum of steps between them, and the maximum of their time.
VALIDATIONS, _MIN_STEPS, _VALIDATION_SHARE = 12, 50, 0.1
_EXPECTED_SHARE = 0.08 / VALIDATIONS  # assumed for a validation that cannot be estimated, until one is measured
_MAX_END_SHARE = 0.3  # maximum that is reserved for the final evaluation


class StepClock:
    """A clock that plans how many steps fit into a time budget, and adapts the plan to the measured speed."""

    def __init__(
        self,
        budget_seconds: float,
        *,
        validates: bool,
        every: int | None,
        end_validations: float,
        validation_steps: float | None = None,
    ) -> None:
        """Create a clock.

        Args:
            budget_seconds: the time for everything: preparation, steps, validations and the final evaluation.
            validates: True if the run validates.
            every: steps between validations; None: the clock plans their number.
            end_validations: how many validations take as long as the final evaluation.
            validation_steps: how many steps are expected to take as long as a validation, until one is measured; None:
                unknown.
        """
        self._budget, self._validates, self._every = budget_seconds, validates, every
        self._end_validations = end_validations
        self._recent: deque[float] = deque()
        self._recent_seconds = self._measured_seconds = 0.0
        self._count = 0
        self._validation_seconds = _EXPECTED_SHARE * budget_seconds if validates else 0.0
        self._validation_steps = validation_steps if validates else None
        self._decided_at = -math.inf

    def add_step(self, seconds: float) -> None:
        """Record the duration of a step in seconds, except the first of the process, which compiles kernels."""
        self._count += 1
        if self._count == 1:
            return
        self._measured_seconds += seconds
        self._recent.append(seconds)
        self._recent_seconds += seconds
        share = _RECENT_SHARE * self._budget
        while len(self._recent) > 2 * _FIRST_STEPS and self._recent_seconds - self._recent[0] > share:
            self._recent_seconds -= self._recent.popleft()

    def add_validation(self, seconds: float) -> None:
        """Record the duration of a validation in seconds, which the plan of steps takes into account."""
        self._validation_seconds, self._validation_steps = seconds, None

    def decide(self, step: int, used_seconds: float, plan: Sequence[Decision]) -> Decision | None:
        """Return a new decision on the number of steps of the run, or None.

        None: it is not yet time for a decision, the decision would equal the last one, or the run has reached its end.

        Args:
            step: the step that was just taken.
            used_seconds: the seconds of the budget that are used up.
            plan: the decisions so far.
        """
        if not self._recent or not self._is_time(used_seconds, first=not plan) or (plan and step >= plan[-1].steps):
            return None
        self._decided_at = used_seconds
        seconds_per_step = max(self._recent_seconds / len(self._recent), 1e-9)
        if self._validation_steps is not None:
            self._validation_seconds = self._validation_steps * seconds_per_step
        end = min(self._end_validations * self._validation_seconds, _MAX_END_SHARE * self._budget)
        left_seconds = self._budget - used_seconds - end
        validations = self._plan_validations(step + left_seconds / seconds_per_step, plan)
        due = self._validations_left(step, plan, validations, left_seconds / seconds_per_step)
        left = int((left_seconds - due * self._validation_seconds) / seconds_per_step)
        decision = Decision(step, step + max(1, left), validations)
        unchanged = plan and (decision.steps, decision.validations) == (plan[-1].steps, plan[-1].validations)
        return None if unchanged else decision

    def _is_time(self, used_seconds: float, *, first: bool) -> bool:
        if not first:
            return used_seconds - self._decided_at >= self._budget / _DECISIONS
        enough = len(self._recent) >= _FIRST_STEPS - 1 and self._measured_seconds >= _FIRST_SHARE * self._budget
        return enough or used_seconds >= _LATEST_SHARE * self._budget

    def _plan_validations(self, steps: float, plan: Sequence[Decision]) -> int:
        max_validations = plan[-1].validations if plan else min(VALIDATIONS, int(steps) // _MIN_STEPS)
        in_time = _VALIDATION_SHARE * self._budget / max(self._validation_seconds, 1e-9)
        return max(1, min(max_validations, int(min(in_time, VALIDATIONS))))

    def _validations_left(self, step: int, plan: Sequence[Decision], validations: int, steps_left: float) -> int:
        if not self._validates:
            return 0
        if self._every is not None:
            return 1 + int(steps_left / self._every)
        if not plan:
            return validations
        return validations - validations_until(step + 1, [*plan, Decision(step, plan[-1].steps + 1, validations)])


def default_interval(steps: int) -> int:
    """Return the steps between two validations, or two checkpoints: a twelfth of `steps`, but at least 50."""
    return max(_MIN_STEPS, math.ceil(steps / VALIDATIONS))


class StepPlan:
    """The number of steps of a run, fixed or decided by a clock, and the steps at which periodic actions are due."""

    def __init__(self, steps: int | None, decisions: Sequence[tuple[int, int, int]]) -> None:
        """Create the plan of a run.

        Args:
            steps: the number of steps; None if a clock decides it.
            decisions: the `Decision`s, as triples, of an earlier run with a time budget, which this run repeats.
        """
        self.steps = steps
        self.decisions = [Decision(*each) for each in decisions]
        self.clock: StepClock | None = None
        """The clock of a run with a time budget; None for other runs, and for runs that repeat decisions."""

    def restore(self, decisions: Sequence[tuple[int, int, int]]) -> None:
        """Restore the clock's decisions from a checkpoint of a run with a time budget.

        Old checkpoints have no decisions. Then one decision is made up from the number of steps, if that is known.
        """
        self.decisions = [Decision(*each) for each in decisions]
        if not self.decisions and self.steps is not None:
            # Earlier versions stored no decisions. They planned the length of the run after so many steps.
            self.decisions = [Decision(max(11, self.steps // 12), self.steps, VALIDATIONS)]

    def add(self, decision: Decision) -> None:
        """Record a decision of the clock, which sets the run's number of steps."""
        self.decisions.append(decision)
        self.steps = decision.steps

    def follow(self, step: int) -> None:
        """Set the number of steps to the latest decision up to `step` of the run that this run repeats.

        Before the first decision, the number is None.
        """
        self.steps = next((each.steps for each in reversed(self.decisions) if each.step <= step), None)

    def is_due(self, step: int, every: int | None) -> bool:
        """Return whether a periodic action is due after a step; every action is due after the last step.

        `every` is the number of steps between two actions; None: twelve actions per run, at least 50 steps apart, and
        none while the number of steps is not known.
        """
        if step == self.steps:
            return True
        if every is None:
            if self.steps is None:
                return False
            if self.decisions:
                return validations_until(step, self.decisions) > self._validations_before(step)
            every = default_interval(self.steps)
        return step % every == 0

    def _validations_before(self, step: int) -> int:
        """Return how many validations are due before a step, by the clock's decisions until then."""
        known = [each for each in self.decisions if each.step < step] or self.decisions[:1]
        return validations_until(step - 1, [each._replace(validations=known[-1].validations) for each in known])

    def last_saved(self, last: int, every: int | None, number: int) -> list[int]:
        """Return a list of the last `number` steps at which regular checkpoints are saved.

        The list is empty if `every` is None and the run's number of steps is not known.

        Args:
            last: later steps are left out.
            every: the number of steps between two checkpoints; None: the default interval for the run's number of
                steps.
            number: the maximum number of steps to return.
        """
        every = every or (default_interval(self.steps) if self.steps is not None else None)
        return [] if every is None or not number else list(range(every, last + 1, every))[-number:]


# --- schedules ---


ScheduleName = Literal["inverse-sqrt", "linear", "cosine", "constant"]


def learning_rate(step: float, *, schedule: ScheduleName, peak: float, warmup_steps: int, steps: int | None) -> float:
    """Return the learning rate of a step in a schedule with a warm-up.

    All schedules rise linearly from 0 to `peak` during the warm-up. Then "inverse-sqrt" falls with 1/√step, "linear"
    and "cosine" fall to 0 at the last step, and "constant" stays. A step with rate 0, here the last one, changes no
    weights. Hugging Face's schedules are one step behind: there the first step has rate 0.

    Args:
        step: the step about to be taken, counted from 1, or its position in the schedule.
        schedule: the name of the schedule.
        peak: the highest rate.
        warmup_steps: length of the warm-up; at most half of the steps for schedules that fall to 0.
        steps: the last step, which "linear" and "cosine" need after the warm-up; None: unknown, so they stay at `peak`.
            If `steps` is 1, these two use `peak`.
    """
    if steps is not None and schedule in ("linear", "cosine"):
        # With a time budget the warm-up may have been chosen before the number of steps was known.
        warmup_steps = min(warmup_steps, max(1, steps // 2))
        if step == steps == 1:
            return peak  # as the last step it would have rate 0
    if step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    if schedule == "inverse-sqrt":
        return peak * math.sqrt(max(warmup_steps, 1) / step)
    if steps is None:
        return peak
    done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    return peak * (1.0 - done) if schedule == "linear" else peak * 0.5 * (1.0 + math.cos(math.pi * done))


def paper_peak(d_model: int, warmup_steps: int) -> float:
    """Return the peak rate that makes "inverse-sqrt" the paper's equation (3): (d_model · warmup_steps)^-0.5.

    Equation (3) is d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5).
    """
    return float((d_model * max(warmup_steps, 1)) ** -0.5)


# --- weight decay ---

TOTAL_DECAY = 1.3
"""The sum of learning rate × weight decay over all steps of a run with Muon, from which the default decay follows."""
MAX_DECAY = 0.1
"""The largest learning rate × weight decay of a single step; in runs of few steps it keeps the sum below `TOTAL_DECAY`.
"""
_MAX_ADDED = 1_000_000


@cache
def constant_weight_decay(steps: int, *, schedule: ScheduleName, peak: float, warmup_steps: int) -> float:
    """Return the weight decay whose products with the learning rates of all steps add up to `TOTAL_DECAY`.

    Random initial weights then shrink to a quarter by the end of the run, whatever its length. In runs of few steps the
    decay is smaller, because no step may decay by more than `MAX_DECAY`.
    """
    stride = -(-steps // _MAX_ADDED)  # long runs are sampled at the middle of every `stride` steps
    rates = [
        learning_rate(step, schedule=schedule, peak=peak, warmup_steps=warmup_steps, steps=steps)
        for step in range(1 + stride // 2, steps + 1, stride)
    ]
    return min(TOTAL_DECAY / (stride * sum(rates)), MAX_DECAY / peak)


def decay_of_steps(training: Mapping[str, Any]) -> float | None:
    """Return the default weight decay for settings of training, a mapping by name.

    The result is None if the optimizer is not Muon. It is also None if one of the settings schedule, steps,
    learning_rate and warmup_steps is missing or has an unsuitable value.
    """
    schedule, steps = training.get("schedule"), training.get("steps")
    peak, warmup_steps = training.get("learning_rate"), training.get("warmup_steps")
    if training.get("optimizer") != "muon" or schedule not in get_args(ScheduleName):
        return None
    if not (isinstance(steps, int) and isinstance(peak, float) and isinstance(warmup_steps, int) and steps > 0 < peak):
        return None
    return constant_weight_decay(steps, schedule=schedule, peak=peak, warmup_steps=warmup_steps)


def has_decay_of_steps(training: Mapping[str, Any]) -> bool:
    """Return whether the weight decay in settings of training is the default for their number of steps.

    Such a decay must be chosen again if the number of steps changes: for many more steps, it would shrink the weights
    to almost nothing.
    """
    decay, chosen = training.get("weight_decay"), decay_of_steps(training)
    return chosen is not None and isinstance(decay, float) and math.isclose(decay, chosen, rel_tol=1e-6)


# --- the learning rate and weight decay of a step ---


class Rates(NamedTuple):
    """The learning rate and the weight decay of one training step."""

    learning_rate: float
    weight_decay: float
    """Each matrix is multiplied by 1 - learning_rate × weight_decay."""


class RateSettings(Protocol):
    """An interface of the settings that learning rates and weight decay depend on.

    `ResolvedTraining` implements it. Its module cannot be imported here, because it imports this module and PyTorch.
    """

    @property
    def minutes(self) -> float | None: ...
    @property
    def schedule(self) -> ScheduleName: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def weight_decay(self) -> float | None: ...


def step_rates(step: int, settings: RateSettings, steps: int | None, plan: Sequence[Decision] = ()) -> Rates:
    """Return the learning rate and weight decay of a step, counted from 1, as `Rates`.

    In a run with a time budget, the number of steps follows from the clock's decisions, `plan`, and `steps` is ignored.
    If the settings leave the weight decay None, it depends on the number of steps, and is 0 while that is unknown.
    """
    position, speed = float(step), 1.0
    if settings.minutes is not None:
        found = position_of(step, plan)
        steps = None if found is None else found.steps
        if found is not None and settings.schedule in ("linear", "cosine"):
            position, speed = found.step, found.speed
    schedule, peak, warmup = settings.schedule, settings.learning_rate, settings.warmup_steps
    rate = learning_rate(position, schedule=schedule, peak=peak, warmup_steps=warmup, steps=steps)
    if settings.weight_decay is not None or steps is None:
        return Rates(rate, settings.weight_decay or 0.0)
    # Slower progress through the schedule means more steps, each with less decay.
    decay = speed * constant_weight_decay(steps, schedule=schedule, peak=peak, warmup_steps=warmup)
    return Rates(rate, min(decay, MAX_DECAY / peak))
