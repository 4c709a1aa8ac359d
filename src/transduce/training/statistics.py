"""Running statistics of BatchNorm, which a model stores besides its weights.

They change in every forward pass, even if its step is skipped, abandoned or only a trial. So there are two copies:
the live one, and one from the last complete update, which a checkpoint stores.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from transduce.training.rows import Sliceable

KIND = "statistics"
"""The kind of these tensors in a checkpoint."""


class RunningStatistics:
    """The persistent buffers of a model; most models have none, and every method is then a no-op."""

    def __init__(self, model: nn.Module) -> None:
        stored = model.state_dict().keys()
        self._live = {name: buffer for name, buffer in model.named_buffers() if name in stored}
        self.accepted = {name: buffer.detach().clone() for name, buffer in self._live.items()}
        """The buffers by name, as of the last complete update."""

    @torch.no_grad()
    def accept(self) -> None:
        """Keep the current statistics after a complete update."""
        _copy(self._live, self.accepted)

    @torch.no_grad()
    def restore(self) -> None:
        """Discard changes to the statistics since the last complete update."""
        _copy(self.accepted, self._live)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Sliceable]) -> None:
        """Load the statistics of a checkpoint."""
        for name, accepted in self.accepted.items():
            accepted.copy_(tensors[name][:])
        self.restore()


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
