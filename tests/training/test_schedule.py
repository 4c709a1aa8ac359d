"""Test learning rates by hand, including equation (3) of the paper."""

import math

import pytest

from transduce.training.schedule import ScheduleName, learning_rate, paper_peak


def rate(step: int, schedule: ScheduleName, *, peak: float = 1.0, warmup: int = 10, steps: int | None = 110) -> float:
    return learning_rate(step, schedule=schedule, peak=peak, warmup_steps=warmup, steps=steps)


@pytest.mark.parametrize(
    ("step", "value"),
    [(1, 1.74693e-7), (2000, 3.49386e-4), (4000, 6.98771e-4), (16_000, 3.49386e-4), (100_000, 1.39754e-4)],
)
def test_equation_3_with_the_base_models_numbers(step: int, value: float) -> None:
    """d_model 512 and 4,000 steps of warm-up: at the peak 1 / √(512 × 4000) = 6.98771e-4."""
    equation = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    ours = learning_rate(step, schedule="inverse-sqrt", peak=paper_peak(512, 4000), warmup_steps=4000, steps=100_000)
    assert ours == pytest.approx(value, rel=1e-5)
    assert ours == pytest.approx(equation, rel=1e-12)


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "linear", "cosine", "constant"])
def test_every_schedule_rises_linearly_to_the_peak(schedule: ScheduleName) -> None:
    assert [rate(step, schedule, peak=0.5) for step in (1, 5, 10)] == pytest.approx([0.05, 0.25, 0.5])


@pytest.mark.parametrize(
    ("schedule", "at_35", "at_60", "at_110"),
    [
        ("linear", 0.75, 0.5, 0.0),
        ("cosine", 0.5 + math.sqrt(0.125), 0.5, 0.0),
        ("inverse-sqrt", math.sqrt(10 / 35), math.sqrt(10 / 60), math.sqrt(10 / 110)),
        ("constant", 1.0, 1.0, 1.0),
    ],
)
def test_rates_after_warm_up_equal_hand_computed_ones(
    schedule: ScheduleName, at_35: float, at_60: float, at_110: float
) -> None:
    assert [rate(step, schedule) for step in (35, 60, 110)] == pytest.approx([at_35, at_60, at_110])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_after_the_last_step_the_rate_stays_zero(schedule: ScheduleName) -> None:
    assert rate(500, schedule) == 0.0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_while_the_last_step_is_not_known_the_rate_stays_at_the_peak(schedule: ScheduleName) -> None:
    assert rate(70, schedule, steps=None) == 1.0


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "linear", "cosine", "constant"])
def test_without_warm_up_the_first_step_has_nearly_the_peak(schedule: ScheduleName) -> None:
    assert rate(1, schedule, warmup=0, steps=1000) == pytest.approx(1.0, abs=0.01)


def test_the_papers_peak_without_warm_up() -> None:
    assert paper_peak(512, 0) == paper_peak(512, 1) == pytest.approx(512**-0.5)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_shorter_than_its_warm_up_still_reaches_the_peak_and_comes_down(schedule: ScheduleName) -> None:
    """This happens if a time limit allows only few steps after the warm-up was chosen."""
    rates = [rate(step, schedule, warmup=500, steps=200) for step in range(1, 201)]
    assert rates.index(max(rates)) == 99
    assert max(rates) == 1.0
    assert rates[-1] == 0.0
    assert rate(100, schedule, warmup=500, steps=None) == pytest.approx(0.2)
    for warmup in (0, 1, 500):
        assert rate(1, schedule, warmup=warmup, steps=1) == 1.0
