"""Learning-rate schedules as pure functions of the step, and the number of steps that fit into a time budget."""

import math
from typing import Literal

# --- time budget ---


_RATE_STEPS = 10
_RATE_SHARE = 0.05  # fraction of the time budget after which the measured speed is reliable
# The number of steps becomes known within the first 1 / _SHARES of the run: more than a twentieth, as steps may get
# faster. No validation is due in that time, since a run has as many validations.
_SHARES = 12
_MIN_OPEN = _RATE_STEPS + 1  # a run resumed after nine steps measures one more


class StepClock:
    """A clock that measures training speed without the process's first step, which compiles kernels."""

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None

    def steps_within(self, budget_seconds: float, step: int, elapsed_seconds: float) -> int | None:
        """Return the number of steps that fit into a time budget; None while too few steps have been measured.

        Call it after each step. The result is large enough that `step` is among the first `provisional_steps`: if steps
        suddenly get slower, the run takes longer than its budget.
        """
        if self._since is None:
            self._since = (step, elapsed_seconds)
        steps, seconds = step - self._since[0], elapsed_seconds - self._since[1]
        if step < _RATE_STEPS or not steps or elapsed_seconds < _RATE_SHARE * budget_seconds:
            return None
        least = step + 1 if step <= _MIN_OPEN else step * _SHARES
        return max(least, step + int((budget_seconds - elapsed_seconds) * steps / max(seconds, 1e-9)))


def provisional_steps(steps: int) -> int:
    """Return how many steps at the start of a run with a time budget must not depend on the total number of steps.

    When the total becomes known depends on the clock, but is always within these steps. So the weights depend only on
    the total, not on the moment it became known.
    """
    return max(_MIN_OPEN, steps // _SHARES)


# --- schedules ---


ScheduleName = Literal["inverse-sqrt", "linear", "cosine", "constant"]


def learning_rate(step: int, *, schedule: ScheduleName, peak: float, warmup_steps: int, steps: int | None) -> float:
    """Return the learning rate of a step.

    All schedules rise linearly from 0 to `peak` during the warm-up. Then "inverse-sqrt" falls with 1/√step, "linear"
    and "cosine" fall to 0 at the last step, and "constant" stays.

    Args:
        step: the step about to be taken, counted from 1.
        schedule: the name of the schedule.
        peak: the highest rate.
        warmup_steps: length of the warm-up; at most half of the steps for schedules that fall to 0.
        steps: the last step, which "linear" and "cosine" need after the warm-up.
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
    """Return the peak at which "inverse-sqrt" is equation (3): d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    return float((d_model * max(warmup_steps, 1)) ** -0.5)
