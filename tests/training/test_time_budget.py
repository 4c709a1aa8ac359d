"""Test that a run with a time budget ends in time at any speed, and that its plan alone determines its schedule."""

import random
from collections.abc import Callable

import pytest

from transduce.training.schedule import Decision, StepClock, learning_rate, position_of, step_rates, validations_until
from transduce.training.settings import ResolvedTraining

Make = Callable[..., ResolvedTraining]


def simulate(
    budget: float,
    duration: Callable[[int, float], float],
    *,
    validation: float = 0.0,
    overhead: float = 0.0,
    forecast: float | None = None,
) -> tuple[float, list[Decision], int]:
    """Return the time at which a run ends, its plan and the number of its validations."""
    clock = StepClock(budget, validates=validation > 0.0, every=None, end_validations=2.0, validation_steps=forecast)
    plan: list[Decision] = []
    step, now, validated = 0, overhead, 0
    while not plan or step < plan[-1].steps:
        seconds = duration(step, now)
        step, now = step + 1, now + seconds
        clock.add_step(seconds)
        if (decision := clock.decide(step, now, plan)) is not None:
            assert decision.steps > step
            plan.append(decision)
        last = bool(plan) and step == plan[-1].steps
        due = last or (
            bool(plan)
            and validations_until(step, plan)
            > validations_until(step - 1, [each for each in plan if each.step < step] or plan[:1])
        )
        if validation and due:
            validated += 1
            now += validation
            clock.add_validation(validation)
    return now + 2.0 * validation, plan, validated


@pytest.mark.parametrize("budget", [120.0, 300.0, 1200.0])
@pytest.mark.parametrize("validation", [0.0, 1.0])
def test_a_run_of_even_steps_ends_in_time(budget: float, validation: float) -> None:
    end, plan, validated = simulate(budget, lambda *_: 0.1, validation=validation, overhead=5.0)
    assert end == pytest.approx(budget, abs=max(2.0, 0.02 * budget))
    assert len(plan) <= 50
    assert validated == (12 if validation else 0) or (budget == 120.0 and validated >= 10)


@pytest.mark.parametrize("budget", [120.0, 300.0, 1200.0])
def test_a_run_on_a_machine_that_others_load_ends_in_time(budget: float) -> None:
    """The first steps compile, then the speed changes by factors of up to four at any time."""
    for seed in range(30):
        chance = random.Random(seed)
        changes = sorted(chance.uniform(0.0, budget) for _ in range(6))
        factors = [2.0 ** chance.uniform(-1.0, 1.0) for _ in range(7)]

        def duration(step: int, now: float, changes: list[float] = changes, factors: list[float] = factors) -> float:
            return 8.0 if step == 0 else 0.2 * factors[sum(each < now for each in changes)]

        end, _, _ = simulate(budget, duration, validation=1.5)
        assert abs(end - budget) <= max(15.0, 0.05 * budget)


def test_slow_validations_become_fewer() -> None:
    end, plan, validated = simulate(120.0, lambda *_: 0.1, validation=6.0)
    assert plan[-1].validations < 12
    assert validated <= 4
    assert abs(end - 120.0) <= 15.0


def test_a_forecast_of_validations_leaves_time_for_the_only_one() -> None:
    unexpected, _, _ = simulate(120.0, lambda *_: 1.0, validation=25.0)
    end, _, validated = simulate(120.0, lambda *_: 1.0, validation=25.0, forecast=20.0)
    assert validated == 1
    assert unexpected >= 160.0
    assert abs(end - 120.0) <= 20.0


def test_steps_longer_than_the_budget_end_the_run_at_the_second() -> None:
    end, plan, _ = simulate(60.0, lambda *_: 100.0)
    assert plan[-1].steps == 3
    assert end == 300.0


def test_one_decided_number_of_steps_gives_the_schedule_of_that_number(make_settings: Make) -> None:
    plan = [Decision(12, 100, 2)]
    settings = make_settings(steps=None, minutes=1.0, schedule="linear", warmup_steps=10, learning_rate=0.01)
    for step in range(13, 101):
        expected = learning_rate(step, schedule="linear", peak=0.01, warmup_steps=10, steps=100)
        assert step_rates(step, settings, 100, plan).learning_rate == expected
    assert step_rates(12, settings, 100, plan).learning_rate == 0.01


def test_the_rest_of_the_schedule_is_spread_over_the_rest_of_the_steps(make_settings: Make) -> None:
    """Planned as 100 steps; after 20 the machine gets slower, and 40 more fit; after 40, 20 more."""
    plan = [Decision(10, 100, 4), Decision(20, 60, 4), Decision(40, 60, 3)]
    assert position_of(10, plan) is None
    assert position_of(20, plan) == (20.0, 100, 1.0)
    assert position_of(30, plan) == (40.0, 100, 2.0)
    assert position_of(60, plan) == (100.0, 100, 2.0)
    assert position_of(30, plan[:2]) == position_of(30, plan)  # later decisions change nothing before them
    assert [validations_until(step, plan) for step in (20, 21, 22, 23, 40, 47, 60)] == [0, 0, 0, 1, 2, 2, 3]
    settings = make_settings(steps=None, minutes=1.0, schedule="linear", warmup_steps=1, weight_decay=None)
    settled, plain = step_rates(30, settings, 60, plan), step_rates(40, settings, 100, [Decision(10, 100, 1)])
    assert settled.learning_rate == plain.learning_rate
    assert settled.weight_decay == 2.0 * plain.weight_decay
