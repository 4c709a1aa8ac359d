"""Train models, or optimizer states, that do not fit into one process, by dividing them among processes.

PyTorch's `fully_shard` (FSDP2) holds 1/N of each parameter's rows in each of N processes, in float32. A layer's rows
are gathered, in the model's precision, just before the layer runs; its gradient is summed and sharded again
afterwards. Master weights, moments and the average exist only for each process's own rows. Importing PyTorch's FSDP
takes seconds, so this module is imported by sharded runs only.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from typing_extensions import override

from transduce.model.known_classes import register_wrapper
from transduce.training.checkpoint import RowRange, StoredTensor
from transduce.training.distributed import Processes
from transduce.training.loss import Loss
from transduce.training.optimizer import FlatUpdate, Optimizer, trainable_parameters, vector_norm
from transduce.training.settings import ResolvedTraining

register_wrapper(FSDPModule, "torch.distributed.fsdp")


class ShardedLoss(nn.Module):
    """The loss of a batch as a module, so that FSDP gathers parameters when the loss is computed."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Loss]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Loss:
        """Return the loss of a batch, which the wrapped function computes."""
        return self._loss(batch)


def shard(model: nn.Module, loss: Callable[[Any], Loss], dtype: torch.dtype, device: str) -> ShardedLoss:
    """Shard the parameters of a model over all processes, layer by layer: each process holds some rows of each.

    Args:
        model: equal in every process; changed in place.
        loss: a function that uses the model.
        dtype: the dtype that the model computes in.
        device: "cpu" or "cuda".

    Returns:
        A module to call instead of the loss function.
    """
    full = ShardedLoss(model, loss)
    mesh = init_device_mesh(device.split(":", maxsplit=1)[0], (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    parts: list[nn.Module] = [layer for layers in lists for layer in layers]
    for part in [*parts, full]:
        sharded = fully_shard(part, mesh=mesh, mp_policy=policy)
        sharded.set_gradient_divide_factor(1.0)  # gradients are sums
        # Some backends would multiply by 1/N first; this requests the plain sum.
        sharded.set_force_sum_reduction_for_comms(True)
    for buffers in model.modules():
        for name, buffer in buffers.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(buffers, name, buffer.to(dtype))
    return full


class ShardedOptimizer(Optimizer):
    """An optimizer of a model that is divided among processes (FSDP), each of which updates its own rows."""

    def __init__(self, loss: ShardedLoss, settings: ResolvedTraining, processes: Processes) -> None:
        self.settings, self.processes = settings, processes
        self._module = cast("FSDPModule", loss)
        parameters, matrices = trainable_parameters(loss.model, settings)
        self._parameters = {name: cast("DTensor", parameter) for name, parameter in parameters.items()}
        master = torch.cat([p.to_local().detach().flatten() for p in self._parameters.values()])
        shapes = {name: parameter.to_local().shape for name, parameter in self._parameters.items()}
        self._rows = {name: self._own_rows(parameter.shape) for name, parameter in self._parameters.items()}
        gradient = torch.zeros_like(master)
        self._update = FlatUpdate(master, gradient, shapes, settings, matrices, gather=self._gather_from)

    @override
    def begin_batch(self, *, last: bool) -> None:
        self._module.set_requires_gradient_sync(last)
        self._module.set_is_last_backward(last)
        self._last = last

    @override
    def finish_batch(self) -> None:
        if not self._last:
            return
        torch.cat([_own_gradient(p) for p in self._parameters.values()], out=self._update.gradient)
        for parameter in self._parameters.values():
            parameter.grad = None

    @override
    def step(self, tokens: float, rate: float, weight_decay: float = 0.0) -> float:
        squares = vector_norm(self._update.gradient) ** 2
        norm = math.sqrt(self.processes.sum([squares])[0]) / tokens
        if math.isfinite(norm):
            self._update.update(norm, tokens, rate, weight_decay)
            self._show_masters()
        else:
            self._update.gradient.zero_()
        return norm

    @override
    def discard_gradient(self) -> None:
        self._update.gradient.zero_()
        for parameter in self._parameters.values():
            parameter.grad = None
        # FSDP keeps the gradients of batches before a step's last one, and has no public method that discards them.
        for module in self._module.modules():  # type: ignore[attr-defined]
            group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
            for sharded in () if group is None else group.fsdp_params:
                sharded.unsharded_accumulated_grad = None
                if hasattr(sharded, "_unsharded_param"):
                    sharded._unsharded_param.grad = None

    @torch.no_grad()
    def _show_masters(self) -> None:
        for name, part in self._update.masters.items():
            self._parameters[name].to_local().copy_(part)

    @override
    def state(self) -> dict[str, dict[str, Tensor]]:
        return self._update.state()

    def _own_rows(self, full: torch.Size) -> RowRange:
        each = -(-full[0] // self.processes.count)
        return RowRange(min(self.processes.rank * each, full[0]), list(full))

    @property
    @override
    def rows(self) -> dict[str, RowRange]:
        return self._rows

    @property
    @override
    def updates(self) -> int:
        return self._update.updates

    @override
    def load_state(self, state: Mapping[str, Mapping[str, Tensor | StoredTensor]], updates: int) -> None:
        for kind, tensors in self.state().items():
            for name, tensor in tensors.items():
                start = self._rows[name].start
                tensor.copy_(state[kind][name][start : start + len(tensor)])
        self._update.updates = updates
        self._show_masters()

    def weights_to_keep(self) -> dict[str, Tensor]:
        """Return a dict of the complete weights for a model folder, gathered from all processes; all must call it."""
        return {name: self._gather_from(name, part)[0] for name, part in self._update.weights_to_keep.items()}

    def _gather_from(self, name: str, part: Tensor) -> tuple[Tensor, int]:
        """Gather the complete tensor of a parameter from all processes, each of which passes its rows as `part`.

        The result is a pair: the complete tensor, and the index in it of the first row of this process.
        """
        like = self._parameters[name]
        local = DTensor.from_local(part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
        return local.full_tensor(), self._rows[name].start


def _own_gradient(parameter: DTensor) -> Tensor:
    """Return the flat gradient of the rows of a parameter that this process holds; zeros for an unused parameter."""
    gradient = cast("DTensor | None", parameter.grad)
    return torch.zeros_like(parameter.to_local()).flatten() if gradient is None else gradient.to_local().flatten()
