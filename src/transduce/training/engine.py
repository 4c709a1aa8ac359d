"""Operations that one process or several perform (optimizer setup, step totals, saving), and compilation."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from transduce.errors import TransduceError
from transduce.machine import DTYPES
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.training.checkpoint import Checkpoint, save_checkpoint
from transduce.training.distributed import Processes
from transduce.training.loss import Loss
from transduce.training.optimizer import FlatOptimizer, Optimizer, RunningStatistics
from transduce.training.settings import ResolvedTraining

# --- compilation by torch.compile ---
# Compilation takes about a minute at the start. It pays off on a GPU, where a step otherwise waits for the many small
# operations between matrix multiplications.


_MAX_RECOMPILATIONS = 64


def compile_layers(model: nn.Module, device: str, *, backend: str = "inductor") -> int:
    """Compile each encoder and decoder layer in place, for batches of any shape; parameters and their names stay.

    Layers share compiled code, so six layers take as long as one.

    Returns:
        The number of compiled layers; 0 for a model without such layers, such as a recurrent one.

    Raises:
        TransduceError: the device is a CPU, which would need a C++ compiler and gain nothing.
    """
    if backend == "inductor" and not device.startswith("cuda"):
        raise TransduceError(
            f"`training.compile` is true, but the device is {device}: it is for GPUs only. Leave it out."
        )
    # Inputs of one row, inputs of equal lengths and disabled dropout are compiled separately. PyTorch's default limit
    # of 8 would end the run.
    from torch._dynamo import config  # takes seconds to import

    config.recompile_limit = max(config.recompile_limit, _MAX_RECOMPILATIONS)
    layers = [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    for layer in layers:
        layer.compile(dynamic=True, fullgraph=True, backend=backend)
    return len(layers)


# --- one process or several ---


def make_optimizer(
    model: nn.Module, loss: Callable[[Any], Loss], settings: ResolvedTraining, processes: Processes
) -> tuple[Optimizer, Callable[[Any], Loss]]:
    """Create a model's optimizer; return it and the loss function, wrapped in a module if the model is sharded.

    Raises:
        TransduceError: there are several processes, and the model keeps BatchNorm statistics, which would differ
            between them.
    """
    if processes.count > 1 and RunningStatistics(model).accepted:
        raise TransduceError(
            "`model.norm` = batch keeps statistics of the rows that a process sees, so the number of processes would "
            f"change the model, but there are {processes.count}: train with one, or set `model.norm` to layer or rms."
        )
    dtype = DTYPES[settings.precision]
    if not settings.sharded or processes.count == 1:
        return FlatOptimizer(model, settings, dtype, processes), loss
    from transduce.training.sharding import ShardedOptimizer, shard  # imports FSDP, which takes seconds

    sharded = shard(model, loss, dtype, next(model.parameters()).device.type)
    return ShardedOptimizer(sharded, settings, processes), sharded


class StepTotals(NamedTuple):
    """Sums over the micro-batches of a step, in this process (`add`) or in all processes (`sum_over`)."""

    tokens: int = 0
    divisor: float = 0.0
    """The sum of the tokens' weights, by which the sums are divided; without weights, the number of tokens."""
    total: float = 0.0
    negative_log_likelihood: float = 0.0
    stop: int = 0
    """The number of processes that were asked to stop."""

    def add(self, loss: Loss) -> "StepTotals":
        """Return these totals plus the sums of one more micro-batch."""
        return StepTotals(
            self.tokens + loss.tokens,
            self.divisor + loss.divisor,
            self.total + float(loss.total.detach()),
            self.negative_log_likelihood + float(loss.negative_log_likelihood),
        )

    def sum_over(self, processes: Processes, *, stop: bool) -> "StepTotals":
        """Sum these totals over all processes; `stop`: a signal asked this process to stop the run."""
        if processes.count == 1:
            return self._replace(stop=int(stop))
        tokens, divisor, total, negative_log_likelihood, stops = processes.sum([*self[:-1], float(stop)])
        return StepTotals(int(tokens), divisor, total, negative_log_likelihood, int(stops))


def save_together(
    folder: Path, checkpoint: Checkpoint, processes: Processes, *, keep: int, averaged: Collection[int] = ()
) -> None:
    """Save a checkpoint: the first process writes all of it, or each process its part if the model is sharded.

    The newest `keep` checkpoints stay, and those of the steps in `averaged`.

    Raises:
        TransduceError: the checkpoint cannot be written; earlier checkpoints are untouched.
    """
    if checkpoint.rows is None:
        try:
            if processes.is_first:
                save_checkpoint(folder, checkpoint, keep=keep, averaged=averaged)
        finally:
            processes.wait()  # also after a failure: the run may continue and needs all processes
        return
    save_checkpoint(folder, checkpoint, keep=keep, averaged=averaged, processes=processes)
