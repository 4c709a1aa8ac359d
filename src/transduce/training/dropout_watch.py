"""Whether dropout helps a run, or harms it.

Noise makes a text harder to tell, so a model tells what it learns from better without it. Where the opposite is so, the
model has come to need the noise, as one did that sorts words. Its translations, which are made without, grow worse
while the loss of training falls. Then dropout is turned off (docs/training.md).
"""

import math
from collections.abc import Iterable

import torch
from torch import nn

from transduce.model.dropout import Dropout
from transduce.training.engine import StepTotals
from transduce.training.loss import Loss

# Batches differ, but these are the same ones; what is learnt from a text usually makes it easier by a tenth or more.
_HARM = 1.05


class DropoutWatch:
    """The dropout of a model: all of it, or none."""

    def __init__(self, model: nn.Module) -> None:
        self._places = [module for module in model.modules() if isinstance(module, Dropout) and module.p > 0]
        self.is_off = False

    @property
    def drops(self) -> bool:
        """Whether there is anything to be turned off."""
        return bool(self._places) and not self.is_off

    def turn_off(self) -> None:
        """From here on nothing is dropped."""
        for place in self._places:
            place.set(0.0)
        self.is_off = True

    @torch.no_grad()
    def likelihood_without(self, losses: Iterable[Loss]) -> float:
        """The negative log-likelihood of batches, in nats, summed, with nothing dropped.

        Args:
            losses: of the batches, each computed when it is asked for.
        """
        for place in self._places:
            place.eval()
        try:
            with torch.compiler.set_stance("force_eager"):  # compiled for one of the two ways alone
                return sum(float(loss.negative_log_likelihood) for loss in losses)
        finally:
            for place in self._places:
                place.train()

    def judge(self, step: int, sums: StepTotals, without: float) -> str | None:
        """Turns dropout off where it does harm, and tells why.

        Args:
            step: the last one.
            sums: of it, with dropout.
            without: the negative log-likelihood of the same batches without.
        """
        if not 0.0 < sums.likelihood * _HARM < without < math.inf:
            return None
        self.turn_off()
        return (
            f"Dropout is off from step {step + 1:,} on: the text of this step had a loss of "
            f"{sums.likelihood / sums.tokens:.3f} with it and has {without / sums.tokens:.3f} without, so the model "
            "has come to need the noise (`training.adapt_dropout`)."
        )
