"""The learning rate and weight decay of a step: pure functions of the settings and the step."""

from functools import cache
from typing import NamedTuple

from transduce.training.schedule import ScheduleName, learning_rate, provisional_steps
from transduce.training.settings import ResolvedTraining

# With Muon, learning rate × weight decay adds up to this over a run,
TOTAL_DECAY = 1.3
# but to at most this in a single step, which limits it in runs of few steps.
MAX_DECAY = 0.1
_MAX_ADDED = 1_000_000


class Rates(NamedTuple):
    """The learning rate and weight decay of one step."""

    learning_rate: float
    weight_decay: float
    """Each matrix is multiplied by 1 - learning_rate × weight_decay."""


def step_rates(step: int, settings: ResolvedTraining, steps: int | None) -> Rates:
    """Return the learning rate and weight decay of a step, counted from 1.

    If the settings derive the decay from the number of steps, the decay is 0 while that number is unknown. In a run
    with a time budget the number counts as unknown during the first `provisional_steps`.
    """
    if settings.minutes is not None and steps is not None and step <= provisional_steps(steps):
        steps = None
    schedule, peak, warmup = settings.schedule, settings.learning_rate, settings.warmup_steps
    decay = settings.weight_decay
    if decay is None:
        decay = (
            0.0 if steps is None else constant_weight_decay(steps, schedule=schedule, peak=peak, warmup_steps=warmup)
        )
    return Rates(learning_rate(step, schedule=schedule, peak=peak, warmup_steps=warmup, steps=steps), decay)


@cache
def constant_weight_decay(steps: int, *, schedule: ScheduleName, peak: float, warmup_steps: int) -> float:
    """Return the constant weight decay that, times the learning rate, adds up to `TOTAL_DECAY` over a run.

    Random initial weights then shrink to a quarter by the end of the run, whatever its length. No step decays by more
    than `MAX_DECAY`, which limits runs of few steps.
    """
    stride = -(-steps // _MAX_ADDED)  # long runs are sampled at the middle of each stretch
    rates = [
        learning_rate(step, schedule=schedule, peak=peak, warmup_steps=warmup_steps, steps=steps)
        for step in range(1 + stride // 2, steps + 1, stride)
    ]
    return min(TOTAL_DECAY / (stride * sum(rates)), MAX_DECAY / peak)
