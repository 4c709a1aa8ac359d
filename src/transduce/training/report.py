"""Sums over the steps since the last report, from which its means are computed."""

import math

import msgspec

from transduce.training.events import TrainEvent


class StepSums(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sums over steps, stored in each checkpoint so that a report that spans an interruption covers all its steps."""

    steps: int = 0
    skipped: int = 0
    tokens: int = 0
    """Target tokens of all steps."""
    learnt_tokens: int = 0
    """Target tokens of the steps that changed the weights."""
    total: float = 0.0
    """Summed loss of the steps that changed the weights."""
    likelihood: float = 0.0
    """Summed negative log-likelihood of the steps that changed the weights."""
    norms: float = 0.0
    """Summed gradient norms of the steps that changed the weights."""
    seconds: float = 0.0
    """Duration of all steps."""
    rate: float = 0.0
    """The last learning rate."""

    def add(self, tokens: int, total: float, likelihood: float, norm: float, rate: float, seconds: float) -> None:
        """Add a step; a skipped one (non-finite `norm`) counts as time but not in the means."""
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
        """Return loss and speed so far, for the progress bar."""
        if not self.learnt_tokens:
            return ""
        return f"loss {self.total / self.learnt_tokens:.3f} · {self._tokens_per_second():,.0f} tokens/s"

    def event(self, step: int, epoch: float, elapsed_seconds: float) -> TrainEvent:
        """Return the report with the means over the steps."""
        learned = self.learnt_tokens or math.nan
        return TrainEvent(
            step=step,
            epoch=round(epoch, 4),
            loss=self.total / learned,
            perplexity=math.exp(min(self.likelihood / learned, 100.0)),
            learning_rate=self.rate,
            gradient_norm=self.norms / (self.steps - self.skipped or math.nan),
            tokens_per_second=self._tokens_per_second(),
            elapsed_seconds=elapsed_seconds,
            skipped=self.skipped,
        )

    def _tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)  # some clocks have a resolution of 16 ms
