"""The learning rate and weight decay of a step: pure functions of the settings and the step."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from transduce.training.schedule import Decision, ScheduleName, learning_rate, position_of
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


def step_rates(step: int, settings: ResolvedTraining, steps: int | None, plan: Sequence[Decision] = ()) -> Rates:
    """Return the learning rate and weight decay of a step, counted from 1.

    In a run with a time budget, they follow the plan of its clock instead of the number of steps. If the settings
    derive the decay from that number, the decay is 0 while the number is unknown.
    """
    position: float = step
    speed = 1.0
    if settings.minutes is not None:
        found = position_of(step, plan)
        steps = None if found is None else found.steps
        if found is not None and settings.schedule in ("linear", "cosine"):
            position, speed = found.step, found.speed
    schedule, peak, warmup = settings.schedule, settings.learning_rate, settings.warmup_steps
    decay = settings.weight_decay
    if decay is None:
        decay = (
            0.0
            if steps is None
            # Slower progress through the schedule means more steps, each with less decay.
            else speed * constant_weight_decay(steps, schedule=schedule, peak=peak, warmup_steps=warmup)
        )
    return Rates(
        learning_rate(position, schedule=schedule, peak=peak, warmup_steps=warmup, steps=steps),
        min(decay, MAX_DECAY / peak) if settings.weight_decay is None else decay,
    )


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
