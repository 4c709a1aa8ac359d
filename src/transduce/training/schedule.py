"""Learning-rate schedules: a rate for every step, as a pure function of the step."""

import math
from typing import Literal

ScheduleName = Literal["inverse-sqrt", "linear", "cosine", "constant"]


def learning_rate(step: int, *, schedule: ScheduleName, peak: float, warmup_steps: int, steps: int | None) -> float:
    """The learning rate of a step.

    All schedules rise linearly from 0 to `peak` over the warm-up. Then "inverse-sqrt" falls with 1/√step, "linear" and
    "cosine" fall to 0 at the last step, "constant" stays.

    Args:
        step: the step about to be taken, counted from 1.
        schedule: the shape.
        peak: the highest rate.
        warmup_steps: steps of the rise; half of all at most where the rate falls to 0 at the last one.
        steps: the last step; needed by "linear" and "cosine" after the warm-up.
    """
    if steps is not None and schedule in ("linear", "cosine"):
        # While `minutes` are no steps yet nobody knows how long a warm-up the run has room for.
        warmup_steps = min(warmup_steps, max(1, steps // 2))
        if step == steps == 1:
            return peak  # as the last one it would have none
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
    """The peak at which "inverse-sqrt" is equation (3): d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)."""
    return float((d_model * max(warmup_steps, 1)) ** -0.5)
