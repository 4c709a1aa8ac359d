"""Frozen weights, kept in float32 for the model folder while other weights are trained."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transduce.training.lora import merged_weights


class FrozenWeights:
    """The parameters of a model that need no gradient, which complete the trained ones to a full model."""

    def __init__(self, model: nn.Module) -> None:
        """Keep the frozen parameters; call this before the model is converted to another precision."""
        self._model = model
        self._values = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}

    @torch.no_grad()
    def complete(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all weights by the names of the original model: frozen ones, trained ones, and merged LoRA updates."""
        return merged_weights(self._model, self._values | dict(trained)) if self._values else dict(trained)


def freeze_rows(weight: nn.Parameter, rows: Tensor) -> None:
    """Freeze rows of a matrix (V, D) by zeroing their gradients, which suffices if they have no weight decay."""
    learns = torch.ones(len(weight), 1, dtype=torch.bool, device=weight.device)
    learns[rows.to(weight.device)] = False
    weight.register_hook(lambda gradient: gradient * learns)
