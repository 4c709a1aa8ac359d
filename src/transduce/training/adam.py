"""Adam (section 5.3) over one flat float32 vector, with clipping and a running average."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transduce.training.settings import ResolvedTraining


class FlatAdam:
    """Masters, moments and, where one is kept, the average of so many parameters, and the vector of their gradient."""

    def __init__(
        self, master: Tensor, gradient: Tensor, shapes: Sequence[torch.Size], settings: ResolvedTraining
    ) -> None:
        """`shapes` are the parameters', one after another in `master`: weight decay is for matrices alone."""
        self.master, self.gradient, self.settings = master, gradient, settings
        parts = master.split([shape.numel() for shape in shapes])
        self._matrices = [part for part, shape in zip(parts, shapes, strict=True) if len(shape) > 1]
        self.average = master.clone() if settings.average_decay else None
        self._parameter = nn.Parameter(master)
        self._adam = torch.optim.AdamW(
            [self._parameter],
            lr=0.0,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=0.0,  # ours does not take all of the vector
            fused=True,
        )
        self._parameter.grad = gradient
        # The moments are made now, so that a checkpoint of step 0 has them too.
        self._adam.state[self._parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=master.device),
            "exp_avg": torch.zeros_like(master),
            "exp_avg_sq": torch.zeros_like(master),
        }

    def update(self, norm: float, tokens: int, rate: float) -> None:
        """One update by a gradient that is a sum over so many tokens, whose norm per token is `norm`."""
        clip = self.settings.clip_norm
        factor = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
        self.gradient *= factor / tokens
        if self.settings.weight_decay and self._matrices:
            torch._foreach_mul_(self._matrices, 1.0 - rate * self.settings.weight_decay)
        self._adam.param_groups[0]["lr"] = rate
        self._adam.step()
        self._average(self.updates)

    def _average(self, step: int) -> None:
        """Exponential average; at the start, where there is no past, over what there is."""
        if self.average is not None:
            decay = min(self.settings.average_decay, (1 + step) / (10 + step))
            self.average.lerp_(self.master, 1.0 - decay)

    @property
    def updates(self) -> int:
        """Updates taken, which Adam's bias correction counts."""
        return int(self._adam.state[self._parameter]["step"])

    @updates.setter
    def updates(self, updates: int) -> None:
        self._adam.state[self._parameter]["step"].fill_(updates)

    def vectors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, by kind."""
        moments = self._adam.state[self._parameter]
        found = {"weights": self.master, "exp_avg": moments["exp_avg"], "exp_avg_sq": moments["exp_avg_sq"]}
        return found if self.average is None else found | {"average": self.average}

    @property
    def kept(self) -> Tensor:
        """What a model folder gets: the average, or the masters where there is none."""
        return self.master if self.average is None else self.average


def is_finite(number: float) -> bool:
    """Neither infinite nor NaN."""
    return number - number == 0.0
