"""Test the relation of a run's learning rates and weight decay."""

import math
from collections.abc import Callable

import pytest

from transduce.training.schedule import TOTAL_DECAY, ScheduleName, constant_weight_decay, step_rates
from transduce.training.settings import ResolvedTraining

Make = Callable[..., ResolvedTraining]


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "linear", "cosine", "constant"])
@pytest.mark.parametrize("steps", [100, 3_000])
def test_total_weight_decay_is_the_same_for_any_schedule_and_length(
    make_settings: Make, schedule: ScheduleName, steps: int
) -> None:
    settings = make_settings(weight_decay=None, schedule=schedule, learning_rate=0.005, warmup_steps=steps // 10)
    left = 1.0
    for step in range(1, steps + 1):
        rate, decay = step_rates(step, settings, steps)
        left *= 1.0 - rate * decay
    assert left == pytest.approx(math.exp(-TOTAL_DECAY), rel=0.03)


def test_constant_weight_decay_equals_hand_computed_values() -> None:
    # Rates of 0.1, 0.2, 0.2 × 2/3, 0.2 × 1/3 and 0.
    found = constant_weight_decay(5, schedule="linear", peak=0.2, warmup_steps=2)
    assert found == 0.1 / 0.2  # and not 1.3 / 0.5, which would take half of the weights in the second step
    assert constant_weight_decay(1, schedule="linear", peak=0.2, warmup_steps=0) == 0.1 / 0.2
    assert constant_weight_decay(1_000, schedule="constant", peak=0.01, warmup_steps=0) == pytest.approx(0.13)


def test_an_explicit_weight_decay_is_kept(make_settings: Make) -> None:
    settings = make_settings(weight_decay=0.25, learning_rate=0.01)
    assert step_rates(3, settings, 8) == step_rates(3, settings, None) == (0.01, 0.25)


def test_nothing_decays_while_the_number_of_steps_is_not_known(make_settings: Make) -> None:
    settings = make_settings(weight_decay=None, learning_rate=0.01)
    assert step_rates(3, settings, None) == (0.01, 0.0)
    assert tuple(step_rates(3, settings, 1_000)) == pytest.approx((0.01, 0.13))
