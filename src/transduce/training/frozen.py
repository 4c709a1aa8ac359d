"""Weights that do not learn while others do: kept in float32 for the model folder, whatever the model computes in."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transduce.training.lora import merged_weights


class FrozenWeights:
    """The parameters of a model that need no gradient, as they are now, and the whole model that learnt ones make."""

    def __init__(self, model: nn.Module) -> None:
        """Before the model is put into another precision."""
        self._model = model
        self._values = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}

    @torch.no_grad()
    def complete(self, learnt: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All weights by the names of the ordinary model: with those that learnt, and with updates of LoRA added."""
        return merged_weights(self._model, self._values | dict(learnt)) if self._values else dict(learnt)


def freeze_rows(weight: nn.Parameter, rows: Tensor) -> None:
    """Keeps these rows of a matrix (V, D): they get no gradient, and without weight decay nothing else moves them."""
    learns = torch.ones(len(weight), 1, dtype=torch.bool, device=weight.device)
    learns[rows.to(weight.device)] = False
    weight.register_hook(lambda gradient: gradient * learns)
