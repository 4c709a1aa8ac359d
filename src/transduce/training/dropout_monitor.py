"""Disable dropout during a run if the loss is higher with it than without (`training.adapt_dropout`).

A model normally predicts its training text better without dropout. If the opposite is true, the model has come to
depend on the noise, as one model that sorts words did: its translations, made without dropout, get worse while the
training loss falls.
"""

import math
from collections.abc import Iterable

import torch
from torch import nn

from transduce.model.feed_forward import Dropout
from transduce.training.loss import Loss, StepTotals

# Ratio of losses on the same batches. A step on a text usually lowers the text's loss by a tenth or more.
_HARM = 1.05


class DropoutMonitor:
    """A monitor of dropout that can disable all dropout modules of a model during a run."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [module for module in model.modules() if isinstance(module, Dropout) and module.p > 0]
        self.is_off = False

    @property
    def is_active(self) -> bool:
        """True if the model has active dropout that can be disabled."""
        return bool(self._modules) and not self.is_off

    def disable(self) -> None:
        """Disable dropout for the rest of the run."""
        for module in self._modules:
            module.set(0.0)
        self.is_off = True

    @torch.no_grad()
    def negative_log_likelihood_without_dropout(self, losses: Iterable[Loss]) -> float:
        """Return the summed negative log-likelihood of batches, in nats, computed without dropout.

        Args:
            losses: the losses of the batches, each computed on iteration.
        """
        for module in self._modules:
            module.eval()
        try:
            with torch.compiler.set_stance("force_eager"):  # compiled code is specialized for one of the two modes
                return sum(float(loss.negative_log_likelihood) for loss in losses)
        finally:
            for module in self._modules:
                module.train()

    def judge(self, step: int, sums: StepTotals, without: float) -> str | None:
        """Disable dropout if the loss is higher without it, and return a message with the reason; None: dropout stays.

        Args:
            step: the last step.
            sums: the totals of that step, with dropout.
            without: the summed negative log-likelihood of the same batches without dropout.
        """
        if not 0.0 < sums.negative_log_likelihood * _HARM < without < math.inf:
            return None
        self.disable()
        return (
            f"Dropout is off from step {step + 1:,} on: the batches of this step have a loss of "
            f"{sums.negative_log_likelihood / sums.divisor:.3f} with dropout and {without / sums.divisor:.3f} without, "
            "so the model has come to depend on the noise (`training.adapt_dropout`)."
        )
