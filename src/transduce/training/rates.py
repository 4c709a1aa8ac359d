"""How far a step moves the weights, and how far it shrinks them: pure functions of the settings and the step."""

from functools import cache
from typing import NamedTuple

from transduce.training.clock import open_steps
from transduce.training.schedule import ScheduleName, learning_rate
from transduce.training.settings import ResolvedTraining

# With Muon the decay is such that rate × decay adds up to this over a run.
TOTAL_DECAY = 1.3
# And up to this in a single step, which in a run of a few steps comes first.
MOST_DECAY = 0.1
_MOST_ADDED = 1_000_000


class Rates(NamedTuple):
    """Of one step."""

    learning_rate: float
    weight_decay: float
    """A matrix is multiplied by 1 - learning_rate × weight_decay."""


def rates_of_step(step: int, settings: ResolvedTraining, steps: int | None) -> Rates:
    """The rates of a step, counted from 1.

    Where the settings leave the decay to the number of steps, nothing decays before that is known, and in a run of
    minutes it counts as known after its `open_steps` only.
    """
    if settings.minutes is not None and steps is not None and step <= open_steps(steps):
        steps = None
    schedule, peak, warmup = settings.schedule, settings.learning_rate, settings.warmup_steps
    decay = settings.weight_decay
    if decay is None:
        decay = 0.0 if steps is None else decay_over(steps, schedule=schedule, peak=peak, warmup_steps=warmup)
    return Rates(learning_rate(step, schedule=schedule, peak=peak, warmup_steps=warmup, steps=steps), decay)


@cache
def decay_over(steps: int, *, schedule: ScheduleName, peak: float, warmup_steps: int) -> float:
    """The constant weight decay that, times the rate, adds up to `TOTAL_DECAY` over all steps of a run.

    So random weights are left with a quarter of their size at its end, whether it is short or long, but for runs of a
    few steps, as none takes more than `MOST_DECAY`.
    """
    stride = -(-steps // _MOST_ADDED)  # of a longer run, the middle of each stretch stands for all of it
    rates = [
        learning_rate(step, schedule=schedule, peak=peak, warmup_steps=warmup_steps, steps=steps)
        for step in range(1 + stride // 2, steps + 1, stride)
    ]
    return min(TOTAL_DECAY / (stride * sum(rates)), MOST_DECAY / peak)
