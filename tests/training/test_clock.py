"""Minutes become steps by the rate of the steps that have been taken, without what comes before the first."""

from transduce.training.clock import StepClock


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
    clock.steps_within(10.0, 20, 11.0)
    assert clock.steps_within(10.0, 21, 12.0) == 22
