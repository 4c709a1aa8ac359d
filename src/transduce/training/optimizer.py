"""Adam over one flat vector of all parameters.

The model computes with float32 or bfloat16 weights; masters, moments and the average are float32. As everything lies
in one vector, a step is a handful of operations, clipping takes one norm, and processes exchange one tensor.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from transduce.training.settings import ResolvedTraining


class FlatOptimizer:
    """Owns a model's parameters: they become views into one vector of the working precision.

    Gradients are *sums* over the target tokens of micro-batches; `step` divides them once, by the tokens of the step.
    """

    def __init__(self, model: nn.Module, settings: ResolvedTraining, dtype: torch.dtype) -> None:
        self.settings = settings
        self.names, parameters = _distinct_parameters(model)
        self.shapes = [p.shape for p in parameters]
        self.master = torch.cat([p.detach().float().flatten() for p in parameters])
        self.working = self.master if dtype == torch.float32 else self.master.to(dtype)
        self.working_gradient = torch.zeros_like(self.working)
        self.gradient = self.working_gradient if dtype == torch.float32 else torch.zeros_like(self.master)
        self.average = self.master.clone()
        _make_views(parameters, self.working, self.working_gradient)
        if dtype != torch.float32:
            model.to(dtype)  # buffers; the parameters are already
        self._master_parameter = nn.Parameter(self.master)
        self._adam = torch.optim.AdamW(
            [self._master_parameter],
            lr=0.0,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._master_parameter.grad = self.gradient
        self._start_moments()

    def _start_moments(self) -> None:
        """Makes the moments now, so that a checkpoint of step 0 has them too."""
        self._adam.state[self._master_parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=self.master.device),
            "exp_avg": torch.zeros_like(self.master),
            "exp_avg_sq": torch.zeros_like(self.master),
        }

    def collect_gradient(self) -> None:
        """Adds a micro-batch's gradient to the step's, in float32."""
        if self.gradient is not self.working_gradient:
            self.gradient += self.working_gradient
            self.working_gradient.zero_()

    def step(self, tokens: int, rate: float) -> float:
        """One update.

        Args:
            tokens: target tokens of the whole step, over all micro-batches.
            rate: the learning rate.

        Returns:
            The norm of the gradient per token before clipping. Where it is not finite nothing was updated.
        """
        norm = float(self.gradient.norm()) / tokens
        if norm - norm == 0.0:  # finite
            clip = self.settings.clip_norm
            factor = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
            self.gradient *= factor / tokens
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step()
            self._average(int(self._adam.state[self._master_parameter]["step"]))
            if self.working is not self.master:
                self.working.copy_(self.master)
        self.gradient.zero_()
        return norm

    def _average(self, step: int) -> None:
        """Exponential average; at the start, where there is no past, over what there is."""
        if self.settings.average_decay:
            decay = min(self.settings.average_decay, (1 + step) / (10 + step))
            self.average.lerp_(self.master, 1.0 - decay)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Named views of master weights, moments and average."""
        moments = self._adam.state[self._master_parameter]
        vectors = {
            "weights": self.master,
            "exp_avg": moments["exp_avg"],
            "exp_avg_sq": moments["exp_avg_sq"],
            "average": self.average,
        }
        return {kind: dict(self._named(vector)) for kind, vector in vectors.items()}

    @property
    def updates(self) -> int:
        """Updates taken, which Adam's bias correction counts."""
        return int(self._adam.state[self._master_parameter]["step"])

    def load_state(self, state: dict[str, dict[str, Tensor]], updates: int) -> None:
        """Takes back what `state` returned."""
        for kind, tensors in self.state().items():
            for name, tensor in tensors.items():
                tensor.copy_(state[kind][name])
        self._adam.state[self._master_parameter]["step"].fill_(updates)
        if self.working is not self.master:
            self.working.copy_(self.master)

    def kept_weights(self) -> dict[str, Tensor]:
        """The weights that a model folder gets: the average, or the masters where there is none."""
        return dict(self._named(self.average if self.settings.average_decay else self.master))

    def _named(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        sizes = [shape.numel() for shape in self.shapes]
        for name, part, shape in zip(self.names, vector.split(sizes), self.shapes, strict=True):
            yield name, part.view(shape)


def _distinct_parameters(model: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    """Names and parameters; shared ones once, under their first name."""
    named = list(model.named_parameters())
    return [name for name, _ in named], [parameter for _, parameter in named]


def _make_views(parameters: list[nn.Parameter], working: Tensor, gradient: Tensor) -> None:
    sizes = [p.numel() for p in parameters]
    for parameter, weights, slot in zip(parameters, working.split(sizes), gradient.split(sizes), strict=True):
        parameter.data = weights.view(parameter.shape)
        parameter.grad = slot.view(parameter.shape)
