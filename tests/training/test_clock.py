"""Minutes become steps by the rate of the steps that have been taken, without what comes before the first."""

import random

from transduce.training.schedule import StepClock, provisional_steps


def test_making_programs_at_the_start_does_not_count() -> None:
    clock, found = StepClock(), []
    for step in range(1, 1000):
        found.append(clock.steps_within(600.0, step, 60.0 + 0.05 * step))  # a minute passes before the first step
        if found[-1] is not None:
            break
    assert found[:9] == [None] * 9
    assert found[-1] is not None
    assert abs(found[-1] - 10_800) <= 1  # 9 minutes of 50 ms each


def test_the_rate_is_not_known_before_a_twentieth_of_the_time() -> None:
    clock = StepClock()
    assert [clock.steps_within(1000.0, step, 1.0 * step) for step in range(1, 50)] == [None] * 49
    assert clock.steps_within(1000.0, 50, 50.0) == 1000


def test_a_run_that_is_over_its_time_takes_one_step_more() -> None:
    clock = StepClock()
    clock.steps_within(10.0, 9, 11.0)
    assert clock.steps_within(10.0, 10, 12.0) == 11


def test_steps_that_could_depend_on_when_the_number_became_known_do_not() -> None:
    """Steps of all lengths, that get slower or faster, or stand still for long."""
    chance = random.Random(1)
    for _ in range(500):
        clock, elapsed, found, step = StepClock(), chance.choice([0.0, 30.0]), None, chance.choice([0, 0, 3, 9])
        length, turn, factor = 10 ** chance.uniform(-2, 2.5), chance.randrange(40), 10 ** chance.uniform(-1.5, 1.5)
        while found is None:
            step += 1
            elapsed += length * chance.uniform(0.5, 2.0) * (factor if step > turn else 1.0)
            found = clock.steps_within(600.0, step, elapsed)
        assert step <= provisional_steps(found)
        assert found > step


def test_a_stop_does_not_make_a_run_short() -> None:
    """The machine sleeps for half an hour while the rate is measured."""
    clock = StepClock()
    assert [clock.steps_within(3600.0, step, 1.0 * step) for step in range(1, 150)] == [None] * 149
    assert clock.steps_within(3600.0, 150, 1950.0) == 1800
