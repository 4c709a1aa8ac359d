"""Learning-rate schedules as pure functions of the step."""

import math
from typing import Literal

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
