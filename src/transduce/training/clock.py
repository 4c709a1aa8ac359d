"""How many steps a training of so many minutes is, and which of them may not depend on when that became known."""

_RATE_STEPS = 10
_RATE_SHARE = 0.05  # of the time, after which the rate is known well enough
# Of a run, in which the number may become known: more than the twentieth, for steps may get faster. No validation is
# due in it either, of which there are as many.
_SHARES = 12
_FEWEST_OPEN = _RATE_STEPS + 1  # a run that is resumed after nine measures one step more


class StepClock:
    """Takes the rate from the steps of this process but its first, before which programs are made for its shapes."""

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None

    def steps_within(self, budget_seconds: float, step: int, elapsed_seconds: float) -> int | None:
        """The last step that fits, asked after each one; None while the rate is not known well enough.

        So many at least that this one is among the `open_steps`: where steps get slower all of a sudden the run is
        longer than its time.
        """
        if self._since is None:
            self._since = (step, elapsed_seconds)
        steps, seconds = step - self._since[0], elapsed_seconds - self._since[1]
        if step < _RATE_STEPS or not steps or elapsed_seconds < _RATE_SHARE * budget_seconds:
            return None
        least = step + 1 if step <= _FEWEST_OPEN else step * _SHARES
        return max(least, step + int((budget_seconds - elapsed_seconds) * steps / max(seconds, 1e-9)))


def open_steps(steps: int) -> int:
    """The first steps of a run of minutes, taken as if nobody knew their number yet.

    When it becomes known is a matter of the clock, but always within these: so weights depend on the number alone.
    """
    return max(_FEWEST_OPEN, steps // _SHARES)
