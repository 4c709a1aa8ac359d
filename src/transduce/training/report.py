"""Sums over the steps since the last report, which become its means."""

import math

import msgspec

from transduce.training.events import TrainEvent


class StepSums(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Stored with each checkpoint, so that a report that spans a stop is a mean over all its steps."""

    steps: int = 0
    skipped: int = 0
    tokens: int = 0
    """Target tokens of all steps,"""
    learnt_tokens: int = 0
    """and of those that changed the weights. The following are sums over these only."""
    total: float = 0.0
    likelihood: float = 0.0
    norms: float = 0.0
    seconds: float = 0.0
    """Of all steps."""
    rate: float = 0.0
    """The last learning rate."""

    def add(self, tokens: int, total: float, likelihood: float, norm: float, rate: float, seconds: float) -> None:
        """A step. One that was skipped counts as time, and in no mean."""
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds
        self.rate = rate
        if not math.isfinite(norm):
            self.skipped += 1
            return
        self.learnt_tokens += tokens
        self.total += total
        self.likelihood += likelihood
        self.norms += norm

    def text(self) -> str:
        """Loss and rate so far, for the bar."""
        if not self.learnt_tokens:
            return ""
        return f"loss {self.total / self.learnt_tokens:.3f} · {self._tokens_per_second():,.0f} tokens/s"

    def event(self, step: int, epoch: float, elapsed_seconds: float) -> TrainEvent:
        """The means."""
        learnt = self.learnt_tokens or math.nan
        return TrainEvent(
            step=step,
            epoch=round(epoch, 4),
            loss=self.total / learnt,
            perplexity=math.exp(min(self.likelihood / learnt, 100.0)),
            learning_rate=self.rate,
            gradient_norm=self.norms / (self.steps - self.skipped or math.nan),
            tokens_per_second=self._tokens_per_second(),
            elapsed_seconds=elapsed_seconds,
            skipped=self.skipped,
        )

    def _tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)  # some systems' clocks stand still for 16 ms
