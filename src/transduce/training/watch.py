"""Keeps an eye on the loss: which batch must not be learnt from, and when a run has come to nothing.

Two things make a loss jump. A single bad batch: it is refused, and its step changes nothing. Or weights that have gone
astray: then every batch is high, refusing does not help, and the run has to train on and come down, or stop.

* **Refused** is a step with a micro-batch whose loss is not finite; or whose mean, over all its micro-batches and
  processes, is above that of the last 128 steps by more than six standard deviations (the limit of OLMo-core's
  optimizer that skips steps), more than twice that mean, and more than 3 nats. Batches hold sentences of like lengths,
  and those of the longest ones are the hardest: in a model that has learnt the short ones well they may have more than
  twice the mean (the limit of llm-foundry's KillLossSpike), and must still be learnt from.
* No more than 4 steps **in a row** are refused for being high (KillLossSpike also waits for the fifth): what follows is
  taken as the new level, and the window begins anew.
* A run has **diverged** when the mean of 64 steps is half as much again as the lowest such mean before, and 2 nats
  above it; or when 20 steps in a row had nothing finite to learn from.

Only finite losses that were learnt from are in the window, so one NaN does not spoil it. The window is stored with each
checkpoint: a resumed run decides as one that was never stopped.
"""

import math
from statistics import fmean

import msgspec

_WINDOW_STEPS = 128
_FEWEST_STEPS = 8  # with less in the window nothing is refused for being high
_DEVIATIONS = 6.0
_LEAST_JUMP_NATS, _JUMP_MEANS = 3.0, 2.0
_MOST_REFUSED = 4
_LEVEL_STEPS = 64
_DIVERGED_NATS = 2.0
_DIVERGED_SHARE = 0.5
_MOST_SKIPPED = 20

NOTHING_FINITE = (
    "No model was kept, for the dev loss was not finite at any validation: train with a lower `training.learning_rate`."
)


class LossWatch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The window, and what was seen so far. Losses are means per target token, in nats."""

    losses: list[float] = []
    """Of the last steps that were learnt from, the newest last."""
    refused_in_a_row: int = 0
    """Steps refused for being high since the last that was learnt from."""
    skipped_in_a_row: int = 0
    """Steps refused for whatever reason."""
    lowest_mean: float | None = None
    """Of 64 steps in a row, all through the run."""
    lowest_step: int = 0
    """The last of these 64."""

    def limit(self) -> float:
        """The highest loss that is still learnt from; infinity while too little is known."""
        if len(self.losses) < _FEWEST_STEPS or self.refused_in_a_row >= _MOST_REFUSED:
            return math.inf
        mean = fmean(self.losses)
        deviation = math.sqrt(fmean((loss - mean) ** 2 for loss in self.losses))
        return mean + max(_DEVIATIONS * deviation, _JUMP_MEANS * mean, _LEAST_JUMP_NATS)

    def learnt(self, step: int, loss: float) -> None:
        """A step changed the weights."""
        if self.refused_in_a_row >= _MOST_REFUSED:
            self.losses = []
        self.refused_in_a_row = self.skipped_in_a_row = 0
        self.losses = [*self.losses[-_WINDOW_STEPS + 1 :], loss]
        level = self.level()
        if level is not None and (self.lowest_mean is None or level < self.lowest_mean):
            self.lowest_mean, self.lowest_step = level, step

    def skipped(self, *, high: bool) -> None:
        """A step changed nothing, because its loss was too high, or because something in it was not finite."""
        self.skipped_in_a_row += 1
        self.refused_in_a_row += high

    def level(self) -> float | None:
        """The mean of the last 64 steps; None while there are fewer."""
        return fmean(self.losses[-_LEVEL_STEPS:]) if len(self.losses) >= _LEVEL_STEPS else None

    def verdict(self, step: int) -> str | None:
        """Why the run should not go on, as the first half of a sentence; None where all is well."""
        if self.skipped_in_a_row >= _MOST_SKIPPED:
            return f"No gradient was finite over the last {self.skipped_in_a_row} steps (until step {step})"
        level, lowest = self.level(), self.lowest_mean
        if level is None or lowest is None or level <= lowest + max(_DIVERGED_NATS, _DIVERGED_SHARE * lowest):
            return None
        return (
            f"Training has diverged: the mean loss of the last {_LEVEL_STEPS} steps (until step {step}) is "
            f"{level:.2f} nats per token, and was {lowest:.2f} until step {self.lowest_step}"
        )
