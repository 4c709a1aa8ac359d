"""How many steps a training of so many minutes is."""

_RATE_STEPS = 10
_RATE_SHARE = 0.05  # of the time, after which the rate is known well enough


class StepClock:
    """Takes the rate from the steps of this process but its first, before which programs are made for its shapes."""

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None

    def steps_within(self, budget_seconds: float, step: int, elapsed_seconds: float) -> int | None:
        """The last step that fits, asked after each one; None while the rate is not known well enough."""
        if self._since is None:
            self._since = (step, elapsed_seconds)
        steps, seconds = step - self._since[0], elapsed_seconds - self._since[1]
        if step < _RATE_STEPS or not steps or elapsed_seconds < _RATE_SHARE * budget_seconds:
            return None
        return max(step + 1, step + int((budget_seconds - elapsed_seconds) * steps / max(seconds, 1e-9)))
