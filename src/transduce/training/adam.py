"""Adam (section 5.3) over one flat float32 vector."""

import torch
from torch import Tensor, nn

from transduce.training.settings import ResolvedTraining


class Adam:
    """The two moments of a vector's gradient, and the update by them."""

    def __init__(self, master: Tensor, gradient: Tensor, settings: ResolvedTraining) -> None:
        """`master` and `gradient` are float32 vectors of one length."""
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

    def step(self, rate: float) -> None:
        """One update by the gradient."""
        self._adam.param_groups[0]["lr"] = rate
        self._adam.step()

    @property
    def updates(self) -> int:
        """Updates taken, which the bias correction counts."""
        return int(self._adam.state[self._parameter]["step"])

    @updates.setter
    def updates(self, updates: int) -> None:
        self._adam.state[self._parameter]["step"].fill_(updates)

    def vectors(self) -> dict[str, Tensor]:
        """What a checkpoint holds beside the weights."""
        moments = self._adam.state[self._parameter]
        return {"exp_avg": moments["exp_avg"], "exp_avg_sq": moments["exp_avg_sq"]}
