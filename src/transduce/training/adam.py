"""Adam (section 5.3) over one flat float32 vector."""

import torch
from torch import Tensor
from torch.optim.adam import adam

from transduce.model.backend import AdamNumbers
from transduce.training.settings import ResolvedTraining


class Adam:
    """An Adam optimizer for one vector: the two moments of its gradient and the update computed from them.

    It calls PyTorch's function instead of `torch.optim.Adam`, whose import loads a compiler (one second and 70 MiB).
    """

    def __init__(self, master: Tensor, gradient: Tensor, settings: ResolvedTraining) -> None:
        """Start with zero moments; `master` and `gradient` are float32 vectors of equal length."""
        self._master, self._gradient, self._settings = master, gradient, settings
        self._moments = {"exp_avg": torch.zeros_like(master), "exp_avg_sq": torch.zeros_like(master)}
        self._updates = torch.zeros((), dtype=torch.float32, device=master.device)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the master vector from the gradient; weight decay is applied elsewhere, to matrices only."""
        adam(
            [self._master],
            [self._gradient],
            [self._moments["exp_avg"]],
            [self._moments["exp_avg_sq"]],
            [],
            [self._updates],
            fused=True,
            amsgrad=False,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            lr=rate,
            weight_decay=0.0,
            eps=self._settings.epsilon,
            maximize=False,
        )

    def numbers(self, factor: float, rate: float, updates: int) -> AdamNumbers:
        """Return a fused kernel's scalars for update number `updates`, with the gradient scaled by `factor`."""
        beta1, beta2 = self._settings.beta1, self._settings.beta2
        rate, inverse_root = rate / (1.0 - beta1**updates), (1.0 - beta2**updates) ** -0.5
        return AdamNumbers(factor, beta1, beta2, rate, inverse_root, self._settings.epsilon)

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """The running means of the gradient and of its square."""
        return self._moments["exp_avg"], self._moments["exp_avg_sq"]

    @property
    def updates(self) -> int:
        """The number of updates taken so far, which the bias correction uses."""
        return int(self._updates)

    @updates.setter
    def updates(self, updates: int) -> None:
        self._updates.fill_(updates)

    def vectors(self) -> dict[str, Tensor]:
        """Return the optimizer state that a checkpoint stores besides the weights, by name."""
        return dict(self._moments)
