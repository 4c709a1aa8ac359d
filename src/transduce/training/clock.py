"""Conversion of a time budget in minutes into a number of training steps."""

_RATE_STEPS = 10
_RATE_SHARE = 0.05  # fraction of the time budget after which the measured speed is reliable
# The number of steps becomes known within the first 1 / _SHARES of the run: more than a twentieth, as steps may get
# faster. No validation is due in that time, since a run has as many validations.
_SHARES = 12
_FEWEST_OPEN = _RATE_STEPS + 1  # a run resumed after nine steps measures one more


class StepClock:
    """A measurement of training speed over this process's steps, without its first step, which compiles kernels."""

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None

    def steps_within(self, budget_seconds: float, step: int, elapsed_seconds: float) -> int | None:
        """Return the number of steps that fit into a time budget; None while too few steps have been measured.

        Call it after each step. The result is large enough that `step` is among the first `open_steps`: if steps
        suddenly get slower, the run takes longer than its budget.
        """
        if self._since is None:
            self._since = (step, elapsed_seconds)
        steps, seconds = step - self._since[0], elapsed_seconds - self._since[1]
        if step < _RATE_STEPS or not steps or elapsed_seconds < _RATE_SHARE * budget_seconds:
            return None
        least = step + 1 if step <= _FEWEST_OPEN else step * _SHARES
        return max(least, step + int((budget_seconds - elapsed_seconds) * steps / max(seconds, 1e-9)))


def open_steps(steps: int) -> int:
    """Return how many first steps of a run with a time budget must not depend on the total number of steps.

    When the total becomes known depends on the clock, but is always within these steps. So the weights depend only on
    the total, not on the moment it became known.
    """
    return max(_FEWEST_OPEN, steps // _SHARES)
