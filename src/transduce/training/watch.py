"""Detection of loss spikes, whose batches are skipped, and of divergence, which ends a run.

A loss jumps for one of two reasons. A single bad batch is skipped: its step changes nothing. If the weights have gone
astray, every batch has a high loss and skipping does not help: the run must train on and recover, or stop.

* A step is **skipped** if the loss of a micro-batch is not finite. It is also skipped if its mean loss, over all
  micro-batches and processes, exceeds that of the last 128 steps in three ways. It is above it by more than six
  standard deviations (the limit of OLMo-core's optimizer that skips steps), more than twice as high, and higher by
  more than 3 nats. Batches are grouped by length, and those of the longest sentences are the hardest: once a model
  has learned the short ones, they may have more than twice the mean (the limit of llm-foundry's KillLossSpike) and
  must still be trained on.
* At most 4 steps **in a row** are skipped for a high loss (KillLossSpike also waits for the fifth). The following
  losses are taken as the new level, and the window starts afresh.
* A run has **diverged** when the mean of 64 steps is 1.5 times the lowest such mean before, and 2 nats above it; or
  when 20 steps in a row had no finite loss and gradient.

The window contains only the finite losses of steps that changed the weights, so a NaN does not corrupt it. It is
stored in each checkpoint: a resumed run decides as an uninterrupted one.
"""

import math
from statistics import fmean

import msgspec

_WINDOW_STEPS = 128
_FEWEST_STEPS = 8  # with fewer losses in the window no step is skipped for a high loss
_DEVIATIONS = 6.0
_LEAST_JUMP_NATS, _JUMP_MEANS = 3.0, 2.0
_MOST_SKIPPED_HIGH = 4
_LEVEL_STEPS = 64
_DIVERGED_NATS = 2.0
_DIVERGED_SHARE = 0.5
_MOST_SKIPPED = 20

NOTHING_FINITE = "No model was kept, as the dev loss was not finite at any validation: lower `training.learning_rate`."


class LossWatch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A window of recent losses (means per target token, in nats), with counts of skipped steps."""

    losses: list[float] = []
    """Losses of the last steps that changed the weights, newest last."""
    refused_in_a_row: int = 0
    """Steps skipped for a high loss since the last step that changed the weights."""
    skipped_in_a_row: int = 0
    """Steps skipped for any reason since the last step that changed the weights."""
    lowest_mean: float | None = None
    """The lowest mean of 64 consecutive losses in the run; None if there are fewer losses."""
    lowest_step: int = 0
    """The last of those 64 steps."""

    def limit(self) -> float:
        """Return the highest loss that is accepted; infinity while the window is too short."""
        if len(self.losses) < _FEWEST_STEPS or self.refused_in_a_row >= _MOST_SKIPPED_HIGH:
            return math.inf
        mean = fmean(self.losses)
        deviation = math.sqrt(fmean((loss - mean) ** 2 for loss in self.losses))
        return mean + max(_DEVIATIONS * deviation, _JUMP_MEANS * mean, _LEAST_JUMP_NATS)

    def learnt(self, step: int, loss: float) -> None:
        """Record a step that changed the weights."""
        if self.refused_in_a_row >= _MOST_SKIPPED_HIGH:
            self.losses = []
        self.refused_in_a_row = self.skipped_in_a_row = 0
        self.losses = [*self.losses[-_WINDOW_STEPS + 1 :], loss]
        level = self.level()
        if level is not None and (self.lowest_mean is None or level < self.lowest_mean):
            self.lowest_mean, self.lowest_step = level, step

    def skipped(self, *, high: bool) -> None:
        """Record a step that changed nothing, because its loss was too high or something was not finite."""
        self.skipped_in_a_row += 1
        self.refused_in_a_row += high

    def level(self) -> float | None:
        """Return the mean of the last 64 losses; None while there are fewer."""
        return fmean(self.losses[-_LEVEL_STEPS:]) if len(self.losses) >= _LEVEL_STEPS else None

    def verdict(self, step: int) -> str | None:
        """Return why the run should stop, as the first half of a sentence; None if it should continue."""
        if self.skipped_in_a_row >= _MOST_SKIPPED:
            return f"No gradient was finite over the last {self.skipped_in_a_row} steps (until step {step})"
        level, lowest = self.level(), self.lowest_mean
        if level is None or lowest is None or level <= lowest + max(_DIVERGED_NATS, _DIVERGED_SHARE * lowest):
            return None
        return (
            f"Training has diverged: the mean loss of the last {_LEVEL_STEPS} steps (until step {step}) is "
            f"{level:.2f} nats per token, and was {lowest:.2f} until step {self.lowest_step}"
        )
