"""What a model remembers beside its weights: the running statistics of BatchNorm.

They change in every forward pass, also in one whose step is left out, abandoned or only tried. So they are held twice:
as the model changes them, and as they were after the last complete update, which is what a checkpoint gets.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transduce.training.rows import Sliceable

KIND = "statistics"
"""What a checkpoint calls them."""


class RunningStatistics:
    """The stored buffers of a model; most models have none, and then all of this does nothing."""

    def __init__(self, model: nn.Module) -> None:
        stored = model.state_dict().keys()
        self._live = {name: buffer for name, buffer in model.named_buffers() if name in stored}
        self.accepted = {name: buffer.detach().clone() for name, buffer in self._live.items()}
        """By name, as they were after the last complete update."""

    @torch.no_grad()
    def accept(self) -> None:
        """An update is complete: what its batches told is kept."""
        _copy(self._live, self.accepted)

    @torch.no_grad()
    def restore(self) -> None:
        """What forward passes told since the last update counts for nothing."""
        _copy(self.accepted, self._live)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Sliceable]) -> None:
        """Takes back what a checkpoint holds."""
        for name, accepted in self.accepted.items():
            stored = tensors[name]
            accepted.copy_(stored if isinstance(stored, Tensor) else stored[:])
        self.restore()


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
